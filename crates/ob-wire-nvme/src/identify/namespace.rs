//! Namespaces: of the NVM command set (NVM §4.1.5.1, §4.1.5.3), and of any (Base §5.17.2.8).

use zerocopy::little_endian::{U16, U32, U64, U128};

layout! {
    /// Identify Namespace, CNS 00h (NVM §4.1.5.1).
    Namespace[4096] {
        /// NSZE in blocks.
        0 => blocks: U64,
        /// NCAP in blocks.
        8 => capacity: U64,
        /// NUSE in blocks.
        16 => used: U64,
        /// NSFEAT, see [`namespace_feature`].
        24 => features: u8,
        /// NLBAF: formats, less one.
        25 => formats: u8,
        /// FLBAS: bits 3:0 and 6:5 the format in use, bit 4 metadata in line.
        26 => format: u8,
        /// MC.
        27 => metadata_capabilities: u8,
        /// DPC.
        28 => protection_capabilities: u8,
        /// DPS.
        29 => protection: u8,
        /// NMIC: bit 0, several controllers may have it.
        30 => sharing: u8,
        /// RESCAP, see [`reservation_support`].
        31 => reservations: u8,
        /// FPI.
        32 => format_progress: u8,
        /// DLFEAT, see [`deallocation`].
        33 => deallocation: u8,
        /// NAWUN, blocks less one.
        34 => atomic_write: U16,
        /// NAWUPF.
        36 => atomic_write_power_fail: U16,
        /// NACWU.
        38 => atomic_compare_and_write: U16,
        /// NABSN.
        40 => atomic_boundary: U16,
        /// NABO.
        42 => atomic_boundary_offset: U16,
        /// NABSPF.
        44 => atomic_boundary_power_fail: U16,
        /// NOIOB.
        46 => optimal_boundary: U16,
        /// NVMCAP in bytes.
        48 => capacity_bytes: U128,
        /// NPWG, blocks less one.
        64 => write_granularity: U16,
        /// NPWA, blocks less one.
        66 => write_alignment: U16,
        /// NPDG, blocks less one.
        68 => deallocate_granularity: U16,
        /// NPDA, blocks less one.
        70 => deallocate_alignment: U16,
        /// NOWS, blocks less one.
        72 => optimal_write: U16,
        /// MSSRL.
        74 => copy_range_max: U16,
        /// MCL.
        76 => copy_max: U32,
        /// MSRC.
        80 => copy_ranges_max: u8,
        /// Reserved, and fields of later versions.
        81 => reserved81: [u8; 11],
        /// ANAGRPID.
        92 => ana_group: U32,
        /// Reserved.
        96 => reserved96: [u8; 3],
        /// NSATTR: bit 0 write protected.
        99 => attributes: u8,
        /// NVMSETID.
        100 => nvm_set: U16,
        /// ENDGID.
        102 => endurance_group: U16,
        /// NGUID.
        104 => nguid: [u8; 16],
        /// EUI64.
        120 => eui64: [u8; 8],
        /// LBAF0 to LBAF63.
        128 => block_formats: [BlockFormat; 64],
        /// Vendor specific.
        384 => vendor_specific: [u8; 3712],
    }

    /// LBA format (NVM §4.1.5.1).
    BlockFormat[4] {
        /// MS: bytes of metadata.
        0 => metadata: U16,
        /// LBADS: a block has `1 << this` bytes.
        2 => block_shift: u8,
        /// RP: relative performance, 0 is best.
        3 => performance: u8,
    }

    /// Identify Namespace of the NVM command set, CNS 05h (NVM §4.1.5.3).
    CommandSetNamespace[4096] {
        /// LBSTM.
        0 => storage_tag_mask: U64,
        /// PIC.
        8 => protection_capabilities: u8,
        /// Reserved.
        9 => reserved9: [u8; 3],
        /// ELBAF0 to ELBAF63.
        12 => extended_formats: [U32; 64],
        /// Reserved, and fields of later versions.
        268 => reserved268: [u8; 3828],
    }

    /// Identify Namespace whatever its command set, CNS 08h (Base §5.17.2.8).
    IndependentNamespace[4096] {
        /// NSFEAT: bit 4 rotational media, bit 3 the ids are not reused.
        0 => features: u8,
        /// NMIC.
        1 => sharing: u8,
        /// RESCAP.
        2 => reservations: u8,
        /// FPI.
        3 => format_progress: u8,
        /// ANAGRPID.
        4 => ana_group: U32,
        /// NSATTR.
        8 => attributes: u8,
        /// Reserved.
        9 => reserved9: u8,
        /// NVMSETID.
        10 => nvm_set: U16,
        /// ENDGID.
        12 => endurance_group: U16,
        /// NSTAT: bit 0 ready.
        14 => status: u8,
        /// Reserved.
        15 => reserved15: [u8; 4081],
    }
}

/// Bits of [`Namespace::features`], NSFEAT.
pub mod namespace_feature {
    /// The capacity may be less than the size.
    pub const THIN: u8 = 1 << 0;
    /// NAWUN, NAWUPF and NACWU apply.
    pub const ATOMIC: u8 = 1 << 1;
    /// Reading deallocated blocks can be made an error.
    pub const DEALLOCATED_ERROR: u8 = 1 << 2;
    /// NGUID and EUI64 are never used again.
    pub const IDS_NOT_REUSED: u8 = 1 << 3;
    /// NPWG, NPWA, NPDG, NPDA and NOWS apply.
    pub const OPTIMAL: u8 = 1 << 4;
}

/// Bits of [`Namespace::reservations`], RESCAP.
pub mod reservation_support {
    /// They survive a loss of power.
    pub const PERSIST: u8 = 1 << 0;
    /// Every type of reservation.
    pub const ALL_TYPES: u8 = 0b0111_1110;
    /// Ignore Existing Key as Base 1.3 and later have it.
    pub const IGNORE_KEY_1_3: u8 = 1 << 7;
}

/// Bits of [`Namespace::deallocation`], DLFEAT.
pub mod deallocation {
    /// Deallocated blocks read as zeros.
    pub const READS_ZEROS: u8 = 1;
    /// Write Zeroes may deallocate.
    pub const WRITE_ZEROES: u8 = 1 << 3;
}

/// What is said of a namespace; its structures follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceDescription {
    /// NSZE and NCAP.
    pub blocks: u64,
    /// NUSE.
    pub used: u64,
    /// A block has `1 << this` bytes: 9 or 12.
    pub block_shift: u8,
    /// NSFEAT.
    pub features: u8,
    /// NMIC: several controllers may have it.
    pub is_shared: bool,
    /// RESCAP.
    pub reservations: u8,
    /// DLFEAT.
    pub deallocation: u8,
    /// ANAGRPID, 0 without ANA.
    pub ana_group: u32,
    /// NSATTR: write protected.
    pub is_write_protected: bool,
    /// NGUID, zeros for none.
    pub nguid: [u8; 16],
    /// EUI64, zeros for none.
    pub eui64: [u8; 8],
    /// NPWG, NPWA and NOWS in blocks, at least 1: what is best written at once. They apply with
    /// [`namespace_feature::OPTIMAL`], and so do the next.
    pub write_blocks: u16,
    /// NPDG and NPDA in blocks, at least 1: by what space is given back. More than the 65536 that the fields can tell is
    /// told as 65536.
    pub deallocate_blocks: u32,
}

impl NamespaceDescription {
    /// CNS 00h.
    #[must_use]
    pub fn namespace(&self) -> Namespace {
        let mut namespace = Namespace {
            blocks: self.blocks.into(),
            capacity: self.blocks.into(),
            used: self.used.into(),
            features: self.features,
            sharing: u8::from(self.is_shared),
            reservations: self.reservations,
            deallocation: self.deallocation,
            // A shift by more than a number has bits is no block length, and gives no capacity.
            capacity_bytes: u128::from(self.blocks)
                .checked_shl(u32::from(self.block_shift))
                .unwrap_or(0)
                .into(),
            ana_group: self.ana_group.into(),
            attributes: u8::from(self.is_write_protected),
            nguid: self.nguid,
            eui64: self.eui64,
            ..Namespace::default()
        };
        if self.features & namespace_feature::OPTIMAL != 0 {
            let write = self.write_blocks.saturating_sub(1).into();
            namespace.write_granularity = write;
            namespace.write_alignment = write;
            namespace.optimal_write = write;
            let deallocate = self.deallocate_blocks.saturating_sub(1);
            let deallocate = u16::try_from(deallocate).unwrap_or(u16::MAX).into();
            namespace.deallocate_granularity = deallocate;
            namespace.deallocate_alignment = deallocate;
        }
        namespace.block_formats[0].block_shift = self.block_shift;
        namespace
    }

    /// CNS 08h.
    #[must_use]
    pub fn independent(&self) -> IndependentNamespace {
        IndependentNamespace {
            features: self.features & namespace_feature::IDS_NOT_REUSED,
            sharing: u8::from(self.is_shared),
            reservations: self.reservations,
            ana_group: self.ana_group.into(),
            attributes: u8::from(self.is_write_protected),
            status: 1,
            ..IndependentNamespace::default()
        }
    }
}

/// How large a namespace is, and in which units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks, never 0; all of them have less than 2^64 bytes.
    pub blocks: u64,
    /// A block has `1 << this` bytes: 9 to 16.
    pub block_shift: u8,
}

impl Geometry {
    /// Bytes of a block.
    #[must_use]
    pub const fn block_len(&self) -> u32 {
        1 << self.block_shift
    }

    /// Bytes of the namespace.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.blocks << self.block_shift
    }
}

impl Namespace {
    /// The size, as an initiator reads it: `None` if the namespace is not there (all zeros), has metadata, or
    /// speaks nonsense.
    #[must_use]
    pub fn geometry(&self) -> Option<Geometry> {
        let index = usize::from(self.format & 0xF | (self.format >> 1) & 0x30);
        if index > usize::from(self.formats) {
            return None;
        }
        let format = self.block_formats.get(index)?;
        let (blocks, block_shift) = (self.blocks.get(), format.block_shift);
        let is_usable = format.metadata.get() == 0 && (9..=16).contains(&block_shift);
        let fits = blocks != 0 && blocks.leading_zeros() >= u32::from(block_shift);
        (is_usable && fits).then_some(Geometry { blocks, block_shift })
    }

    /// Whether a Write Zeroes may ask for deallocation; controllers that do not know that bit refuse the command.
    #[must_use]
    pub const fn zeroes_can_deallocate(&self) -> bool {
        self.deallocation & deallocation::WRITE_ZEROES != 0
    }
}
