//! The controller (Base §5.17.2.1) and what its I/O command set adds (NVM §4.1.5.4).

use zerocopy::little_endian::{U16, U32, U64, U128};

use crate::fabrics::Version;
use crate::id::ControllerId;
use crate::text::{NQN_FIELD_LEN, Nqn, padded};

codes! {
    /// CNTRLTYPE (Base §5.17.2.1).
    ControllerKind: u8, "controller type" {
        /// Does I/O.
        Io = 1,
        /// Tells of subsystems.
        Discovery = 2,
        /// Admin commands alone.
        Administrative = 3,
    }
}

layout! {
    /// Identify Controller, CNS 01h (Base §5.17.2.1).
    Controller[4096] {
        /// VID: PCI vendor.
        0 => vendor: U16,
        /// SSVID: PCI subsystem vendor.
        2 => subsystem_vendor: U16,
        /// SN.
        4 => serial: [u8; 20],
        /// MN.
        24 => model: [u8; 40],
        /// FR.
        64 => firmware: [u8; 8],
        /// RAB: recommended arbitration burst, a power of two.
        72 => arbitration_burst: u8,
        /// IEEE: OUI.
        73 => oui: [u8; 3],
        /// CMIC, see [`multipath`].
        76 => multipath: u8,
        /// MDTS: largest transfer, `4096 << this` (pages of CAP.MPSMIN), 0 for no limit.
        77 => transfer_max: u8,
        /// CNTLID.
        78 => controller_id: U16,
        /// VER.
        80 => version: U32,
        /// RTD3R.
        84 => resume_latency: U32,
        /// RTD3E.
        88 => entry_latency: U32,
        /// OAES, see [`async_event`].
        92 => async_events: U32,
        /// CTRATT, see [`attribute`].
        96 => attributes: U32,
        /// RRLS.
        100 => read_recovery_levels: U16,
        /// Reserved, and fields of Base 2.1.
        102 => reserved102: [u8; 9],
        /// CNTRLTYPE, see [`ControllerKind`].
        111 => kind: u8,
        /// FGUID.
        112 => fru_guid: [u8; 16],
        /// CRDT1 in units of 100 ms.
        128 => retry_delay1: U16,
        /// CRDT2.
        130 => retry_delay2: U16,
        /// CRDT3.
        132 => retry_delay3: U16,
        /// Reserved.
        134 => reserved134: [u8; 119],
        /// NVMSR.
        253 => subsystem_report: u8,
        /// VWCI.
        254 => vpd_write_cycles: u8,
        /// MEC.
        255 => management: u8,
        /// OACS: optional admin commands.
        256 => admin_commands: U16,
        /// ACL: Aborts at once, less one.
        258 => abort_limit: u8,
        /// AERL: asynchronous event requests at once, less one.
        259 => async_event_limit: u8,
        /// FRMW: bit 0 slot 1 is read only, bits 3:1 slots.
        260 => firmware_updates: u8,
        /// LPA, see [`log_support`].
        261 => log_attributes: u8,
        /// ELPE: entries of the error log, less one.
        262 => error_log_entries: u8,
        /// NPSS: power states, less one.
        263 => power_states: u8,
        /// AVSCC.
        264 => vendor_commands: u8,
        /// APSTA.
        265 => autonomous_power: u8,
        /// WCTEMP in kelvins.
        266 => warning_temperature: U16,
        /// CCTEMP in kelvins.
        268 => critical_temperature: U16,
        /// MTFA.
        270 => firmware_activation_time: U16,
        /// HMPRE.
        272 => host_memory_preferred: U32,
        /// HMMIN.
        276 => host_memory_min: U32,
        /// TNVMCAP in bytes.
        280 => capacity_total: U128,
        /// UNVMCAP in bytes.
        296 => capacity_unallocated: U128,
        /// RPMBS.
        312 => replay_protected: U32,
        /// EDSTT.
        316 => self_test_time: U16,
        /// DSTO.
        318 => self_test_options: u8,
        /// FWUG.
        319 => firmware_granularity: u8,
        /// KAS: granularity of KATO in units of 100 ms; 0 for no keep alive.
        320 => keep_alive_100ms: U16,
        /// HCTMA.
        322 => thermal_management: U16,
        /// MNTMT.
        324 => thermal_min: U16,
        /// MXTMT.
        326 => thermal_max: U16,
        /// SANICAP.
        328 => sanitize: U32,
        /// HMMINDS.
        332 => host_memory_descriptor_min: U32,
        /// HMMAXD.
        336 => host_memory_descriptors_max: U16,
        /// NSETIDMAX.
        338 => nvm_set_max: U16,
        /// ENDGIDMAX.
        340 => endurance_group_max: U16,
        /// ANATT: most seconds in the transition state.
        342 => ana_transition_seconds: u8,
        /// ANACAP, see [`ana_capability`].
        343 => ana_capabilities: u8,
        /// ANAGRPMAX: largest ANA group.
        344 => ana_group_max: U32,
        /// NANAGRPID: number of ANA groups.
        348 => ana_groups: U32,
        /// PELS.
        352 => persistent_event_log: U32,
        /// DID.
        356 => domain: U16,
        /// Reserved, and fields of Base 2.1.
        358 => reserved358: [u8; 10],
        /// MEGCAP.
        368 => endurance_group_capacity_max: U128,
        /// Reserved.
        384 => reserved384: [u8; 128],
        /// SQES: sizes of submission entries, powers of two; bits 3:0 required, 7:4 most.
        512 => submission_entry: u8,
        /// CQES: the same for completion entries.
        513 => completion_entry: u8,
        /// MAXCMD: commands at once in a queue.
        514 => commands_max: U16,
        /// NN: largest namespace id.
        516 => namespaces: U32,
        /// ONCS, see [`command_support`].
        520 => commands: U16,
        /// FUSES: bit 0 Compare and Write.
        522 => fused: U16,
        /// FNA.
        524 => format_attributes: u8,
        /// VWC, see [`write_cache`].
        525 => write_cache: u8,
        /// AWUN: blocks that are written as one in normal operation, less one.
        526 => atomic_write: U16,
        /// AWUPF: the same when power fails.
        528 => atomic_write_power_fail: U16,
        /// ICSVSCC.
        530 => vendor_io_commands: u8,
        /// NWPC.
        531 => write_protection: u8,
        /// ACWU: blocks of an atomic Compare and Write, less one.
        532 => atomic_compare_and_write: U16,
        /// OCFS: copy descriptor formats.
        534 => copy_formats: U16,
        /// SGLS, see [`sgl_support`].
        536 => sgls: U32,
        /// MNAN: most namespaces allowed.
        540 => namespaces_max: U32,
        /// MAXDNA.
        544 => domain_attachments_max: U128,
        /// MAXCNA.
        560 => controller_attachments_max: U32,
        /// Reserved, and fields of Base 2.1.
        564 => reserved564: [u8; 204],
        /// SUBNQN.
        768 => subsystem: [u8; NQN_FIELD_LEN],
        /// Reserved.
        1024 => reserved1024: [u8; 768],
        /// IOCCSZ: largest command capsule of an I/O queue, in units of 16 bytes.
        1792 => command_capsule: U32,
        /// IORCSZ: largest response capsule, in units of 16 bytes.
        1796 => response_capsule: U32,
        /// ICDOFF: where in-capsule data begins, in units of 16 bytes.
        1800 => capsule_data_offset: U16,
        /// FCATT: bit 0 is clear for dynamic controllers.
        1802 => fabrics_attributes: u8,
        /// MSDBD: SGL data blocks of a capsule.
        1803 => sgl_descriptors: u8,
        /// OFCS: bit 0 Disconnect.
        1804 => fabrics_commands: U16,
        /// DCTYPE of a discovery controller: 0 not said, 1 direct, 2 central.
        1806 => discovery_kind: u8,
        /// Reserved.
        1807 => reserved1807: [u8; 241],
        /// PSD0 to PSD31.
        2048 => power: [PowerState; 32],
        /// Vendor specific.
        3072 => vendor_specific: [u8; 1024],
    }

    /// A power state (Base §5.17.2.1).
    PowerState[32] {
        /// MP: most power in units of 10 mW.
        0 => power_max: U16,
        /// Reserved.
        2 => reserved2: u8,
        /// MXPS and NOPS.
        3 => flags: u8,
        /// ENLAT in microseconds.
        4 => entry_latency_us: U32,
        /// EXLAT in microseconds.
        8 => exit_latency_us: U32,
        /// RRT, RRL, RWT, RWL and the rest.
        12 => rest: [u8; 20],
    }

    /// Identify Controller of the NVM command set, CNS 06h (NVM §4.1.5.4).
    CommandSetController[4096] {
        /// VSL: largest Verify, `4096 << this`, 0 for no limit.
        0 => verify_max: u8,
        /// WZSL: largest Write Zeroes, as above.
        1 => write_zeroes_max: u8,
        /// WUSL: largest Write Uncorrectable, as above.
        2 => write_uncorrectable_max: u8,
        /// DMRL: most ranges of a Dataset Management, 0 for no limit.
        3 => deallocate_ranges_max: u8,
        /// DMRSL: most blocks of one range, 0 for no limit.
        4 => deallocate_range_blocks_max: U32,
        /// DMSL: most blocks of all ranges, 0 for no limit.
        8 => deallocate_blocks_max: U64,
        /// Reserved, and fields of later versions.
        16 => reserved16: [u8; 4080],
    }
}

/// Bits of [`Controller::multipath`], CMIC.
pub mod multipath {
    /// The subsystem may have several ports.
    pub const PORTS: u8 = 1 << 0;
    /// The subsystem may have several controllers.
    pub const CONTROLLERS: u8 = 1 << 1;
    /// The subsystem reports asymmetric namespace access.
    pub const ANA: u8 = 1 << 3;
}

/// Bits of [`Controller::async_events`], OAES, and of the asynchronous event configuration (Base §5.27.1.8).
pub mod async_event {
    /// Namespaces changed.
    pub const NAMESPACES: u32 = 1 << 8;
    /// Firmware is being activated.
    pub const FIRMWARE: u32 = 1 << 9;
    /// Asymmetric namespace access changed.
    pub const ANA: u32 = 1 << 11;
    /// The discovery log changed.
    pub const DISCOVERY: u32 = 1 << 31;
}

/// Bits of [`Controller::attributes`], CTRATT.
pub mod attribute {
    /// Host identifiers of 128 bits.
    pub const HOST_ID_128: u32 = 1 << 0;
    /// Any command keeps the association alive.
    pub const TRAFFIC_KEEPS_ALIVE: u32 = 1 << 6;
}

/// Bits of [`Controller::commands`], ONCS.
pub mod command_support {
    /// Compare.
    pub const COMPARE: u16 = 1 << 0;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u16 = 1 << 1;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u16 = 1 << 2;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u16 = 1 << 3;
    /// Features can be saved.
    pub const SAVE: u16 = 1 << 4;
    /// Reservations.
    pub const RESERVATIONS: u16 = 1 << 5;
    /// Timestamp.
    pub const TIMESTAMP: u16 = 1 << 6;
    /// Verify.
    pub const VERIFY: u16 = 1 << 7;
    /// Copy.
    pub const COPY: u16 = 1 << 8;
}

/// Bits of [`Controller::log_attributes`], LPA.
pub mod log_support {
    /// SMART for each namespace.
    pub const SMART_NAMESPACE: u8 = 1 << 0;
    /// Commands Supported and Effects.
    pub const EFFECTS: u8 = 1 << 1;
    /// Offsets and long lengths.
    pub const EXTENDED: u8 = 1 << 2;
    /// The log of supported logs, and with it those of features' and of management commands' effects (12h, 13h), and a
    /// scope in the effects of each command: who has but some of them says nothing.
    pub const SUPPORTED_LOGS: u8 = 1 << 5;
}

/// Bits of [`Controller::write_cache`], VWC.
pub mod write_cache {
    /// There is one.
    pub const PRESENT: u8 = 1 << 0;
    /// A Flush of all namespaces is refused.
    pub const FLUSH_ALL_REFUSED: u8 = 2 << 1;
    /// A Flush of all namespaces flushes them.
    pub const FLUSH_ALL: u8 = 3 << 1;
}

/// Bits of [`Controller::sgls`], SGLS.
pub mod sgl_support {
    /// SGLs, of any alignment.
    pub const ANY: u32 = 1 << 0;
    /// Offsets into the capsule.
    pub const OFFSET: u32 = 1 << 20;
    /// Transport SGL data blocks.
    pub const TRANSPORT: u32 = 1 << 21;
}

/// Bits of [`Controller::ana_capabilities`], ANACAP.
pub mod ana_capability {
    /// The optimized state.
    pub const OPTIMIZED: u8 = 1 << 0;
    /// The non-optimized state.
    pub const NON_OPTIMIZED: u8 = 1 << 1;
    /// The inaccessible state.
    pub const INACCESSIBLE: u8 = 1 << 2;
    /// The persistent loss state.
    pub const PERSISTENT_LOSS: u8 = 1 << 3;
    /// The change state.
    pub const CHANGE: u8 = 1 << 4;
    /// A namespace's group does not change while it is attached.
    pub const GROUP_FIXED: u8 = 1 << 6;
    /// Every state.
    pub const ALL: u8 = OPTIMIZED | NON_OPTIMIZED | INACCESSIBLE | PERSISTENT_LOSS | CHANGE;
}

/// What a controller says of itself; [`Controller::new`] fills in what follows from it and from NVMe/TCP. What is not
/// here can be set in the structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerDescription<'a> {
    /// CNTRLTYPE.
    pub kind: ControllerKind,
    /// CNTLID, the one of Connect.
    pub controller: ControllerId,
    /// VER, the same as the property's.
    pub version: Version,
    /// SUBNQN.
    pub subsystem: &'a Nqn,
    /// SN.
    pub serial: &'a str,
    /// MN.
    pub model: &'a str,
    /// FR.
    pub firmware: &'a str,
    /// CMIC.
    pub multipath: u8,
    /// MDTS.
    pub transfer_max: u8,
    /// OAES.
    pub async_events: u32,
    /// Asynchronous event requests at once, at least 1.
    pub async_event_limit: u8,
    /// KAS.
    pub keep_alive_100ms: u16,
    /// MAXCMD.
    pub commands_max: u16,
    /// NN and MNAN.
    pub namespaces_max: u32,
    /// ONCS.
    pub commands: u16,
    /// FUSES: Compare and Write.
    pub has_compare_and_write: bool,
    /// VWC.
    pub write_cache: u8,
    /// In-capsule data of an I/O queue, in bytes.
    pub capsule_data_max: u32,
    /// Entries of the error log, at least 1.
    pub error_log_entries: u8,
    /// LPA.
    pub log_attributes: u8,
    /// ANAGRPMAX and NANAGRPID; 0 without ANA.
    pub ana_groups: u32,
}

impl Controller {
    /// The structure for a controller that is reached by NVMe/TCP.
    #[must_use]
    pub fn new(description: &ControllerDescription<'_>) -> Self {
        let is_io = description.kind == ControllerKind::Io;
        let has_ana = description.multipath & multipath::ANA != 0;
        Self {
            serial: padded(description.serial),
            model: padded(description.model),
            firmware: padded(description.firmware),
            multipath: description.multipath,
            transfer_max: description.transfer_max,
            controller_id: description.controller.0.into(),
            version: description.version.bits().into(),
            async_events: description.async_events.into(),
            attributes: (attribute::HOST_ID_128 | attribute::TRAFFIC_KEEPS_ALIVE).into(),
            kind: description.kind.code(),
            abort_limit: 3,
            async_event_limit: description.async_event_limit.saturating_sub(1),
            // One slot, which cannot be written to.
            firmware_updates: 0b11,
            log_attributes: description.log_attributes,
            error_log_entries: description.error_log_entries.saturating_sub(1),
            keep_alive_100ms: description.keep_alive_100ms.into(),
            ana_transition_seconds: if has_ana { 10 } else { 0 },
            ana_capabilities: if has_ana { ana_capability::ALL } else { 0 },
            ana_group_max: if has_ana { description.ana_groups } else { 0 }.into(),
            ana_groups: if has_ana { description.ana_groups } else { 0 }.into(),
            // 64 bytes and 16 bytes, neither more nor less.
            submission_entry: if is_io { 0x66 } else { 0 },
            completion_entry: if is_io { 0x44 } else { 0 },
            commands_max: description.commands_max.into(),
            namespaces: description.namespaces_max.into(),
            namespaces_max: description.namespaces_max.into(),
            commands: description.commands.into(),
            fused: u16::from(description.has_compare_and_write).into(),
            write_cache: description.write_cache,
            sgls: (sgl_support::ANY | sgl_support::OFFSET | sgl_support::TRANSPORT).into(),
            subsystem: description.subsystem.to_field(),
            command_capsule: if is_io { 4 + description.capsule_data_max / 16 } else { 0 }.into(),
            response_capsule: u32::from(is_io).into(),
            sgl_descriptors: u8::from(is_io),
            fabrics_commands: u16::from(is_io).into(),
            discovery_kind: u8::from(description.kind == ControllerKind::Discovery),
            ..Self::default()
        }
    }

    /// In-capsule data that an I/O queue takes, in bytes, as an initiator reads it.
    #[must_use]
    pub fn capsule_data_max(&self) -> u32 {
        self.command_capsule.get().saturating_sub(4).saturating_mul(16)
    }

    /// The largest transfer in bytes, `None` for no limit.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> Option<u64> {
        match self.transfer_max {
            0 => None,
            // Beyond this the limit is larger than any transfer can be.
            shift => 4096_u64.checked_shl(u32::from(shift)).filter(|bytes| *bytes != 0).or(Some(u64::MAX)),
        }
    }
}
