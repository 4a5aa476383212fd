//! Formatting, mounting and checking a device.

use ob_core::{DeviceError, DeviceInfo};
use ob_format::files::{
    FormatOptions, Geometry, GeometryError, LogStart, SUPERBLOCK_SLOTS, Superblock, SuperblockError,
};

use crate::drive::{self, Drive};
use crate::engine::{CardFiles, FilesOptions, Mounted};
use crate::log::{Log, LogState};
use crate::replay::{Finding, Replay, read_log};
use crate::space::Space;
use crate::tree::Tree;

/// Bytes at the start of a device that are looked at before it counts as empty.
const BLANK_LEN: u64 = 128 << 10;

/// What a device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Zeros, as far as one looks.
    Blank,
    /// Files of this version.
    Files(Box<Superblock>),
    /// Files of another version.
    OtherVersion(u32),
    /// Both superblocks are damaged, but they were ours.
    Damaged,
    /// Somebody else's data.
    Foreign,
}

/// Why a device cannot be formatted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The device or the options do not make a file system.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The device failed.
    #[error("the device failed while it was formatted: {0}")]
    Device(#[from] DeviceError),
}

/// Why a device cannot be mounted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// It was never formatted.
    #[error("the device is empty: it must be formatted first")]
    Blank,
    /// It holds something else.
    #[error("the device holds data that is not ours; formatting it would destroy them")]
    Foreign,
    /// It was written by another version.
    #[error("the device has format version {found}, and this outboard knows version {known}")]
    Version {
        /// The device's.
        found: u32,
        /// Ours.
        known: u32,
    },
    /// Neither superblock can be read.
    #[error("both superblocks are damaged")]
    Superblocks,
    /// The device is not the one that was formatted.
    #[error("the device has {found}, and had {formatted} when it was formatted")]
    Changed {
        /// What it has now.
        found: String,
        /// What it had.
        formatted: String,
    },
    /// It counts from where no card has come. What is written now could be beyond what a later mount believes.
    #[error(
        "the device counts its {what} from {count}, where no card has come; files were not written by one"
    )]
    Exhausted {
        /// What is counted.
        what: &'static str,
        /// How far.
        count: u64,
    },
    /// What it holds is damaged.
    #[error("{first}{}", more_in_words(*.more))]
    Damaged {
        /// The first thing that is wrong.
        first: Box<Finding>,
        /// How many more there are.
        more: usize,
    },
    /// The device failed.
    #[error("the device failed while it was mounted: {0}")]
    Device(#[from] DeviceError),
}

fn more_in_words(more: usize) -> String {
    if more == 0 { String::new() } else { format!(" (and {more} more findings)") }
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// What is odd about the superblocks; each is harmless while the other is sound.
    pub superblocks: Vec<String>,
    /// Frames of the log that were read.
    pub frames: u64,
    /// Records in them.
    pub records: u64,
    /// Files there are.
    pub files: u64,
    /// Directories there are, the root included.
    pub directories: u64,
    /// Bytes of all segments.
    pub total: u64,
    /// Bytes of segments that no file has.
    pub free: u64,
}

/// Looks at what a device holds.
pub fn identify(drive: &mut dyn Drive) -> Result<Contents, DeviceError> {
    let (slots, blank) = read_slots(drive)?;
    // Another version's program may have written only one of the slots so far; what it did with the rest is not for us.
    for slot in &slots {
        if let Err(SuperblockError::Version { found }) = slot {
            return Ok(Contents::OtherVersion(*found));
        }
    }
    let best = slots.iter().filter_map(|slot| slot.as_ref().ok()).max_by_key(|found| found.sequence);
    if let Some(superblock) = best {
        return Ok(Contents::Files(Box::new(*superblock)));
    }
    if slots.iter().any(|slot| !matches!(slot, Err(SuperblockError::Missing))) {
        return Ok(Contents::Damaged);
    }
    Ok(if blank { Contents::Blank } else { Contents::Foreign })
}

type Slots = [Result<Superblock, SuperblockError>; 2];

/// Both superblocks, and whether the start of the device is all zeros.
fn read_slots(drive: &mut dyn Drive) -> Result<(Slots, bool), DeviceError> {
    let info = drive.device().info();
    let len = BLANK_LEN.min(info.capacity) as usize;
    let bytes = drive::read(drive, 0, len)?;
    let slots = SUPERBLOCK_SLOTS.map(|offset| match bytes.get(offset as usize..) {
        Some(bytes) if bytes.len() >= ob_format::files::SUPERBLOCK_LEN => Superblock::decode(bytes),
        _ => Err(SuperblockError::Missing),
    });
    let blank = bytes.iter().all(|byte| *byte == 0);
    Ok((slots, blank))
}

/// Formats a device, whatever it holds.
pub fn format(
    drive: &mut dyn Drive,
    options: &FormatOptions,
    uuid: [u8; 16],
) -> Result<Superblock, FormatError> {
    let DeviceInfo { block_len, capacity, .. } = drive.device().info();
    let geometry = Geometry::plan(block_len, capacity, options)?;
    let tail = LogStart { section: 0, sequence: 1, previous: 0 };
    let first = Superblock { geometry, uuid, sequence: 1, epoch: 0, tail };
    let second = Superblock { sequence: 2, ..first };
    // The slot that an older format may have newer is written first: while only it is new, nothing else is mounted
    // that half exists.
    drive::write_block(drive, SUPERBLOCK_SLOTS[1], &first.encode())?;
    drive::write_block(drive, SUPERBLOCK_SLOTS[0], &second.encode())?;
    Ok(second)
}

/// Mounts a device: reads its log, and begins a new epoch on it.
pub fn mount(drive: &mut dyn Drive, options: &FilesOptions) -> Result<CardFiles, MountError> {
    let superblock = usable_superblock(drive)?;
    let (mut replay, mut findings) = (Replay::default(), Vec::new());
    let mut state = read_log(drive, &superblock, &mut replay, &mut findings, &mut |_, _| {})?;
    let (tree, space) = if findings.is_empty() {
        finish(replay, &superblock, &state, &mut findings)
    } else {
        finish(Replay::default(), &superblock, &state, &mut Vec::new())
    };
    if let Some(first) = findings.first() {
        return Err(MountError::Damaged { first: Box::new(first.clone()), more: findings.len() - 1 });
    }
    leaves_room_to_count(&superblock, &state)?;
    // What the log tells of is held to what the log says was given: a check does no less.
    let epoch = superblock.epoch.max(state.epoch);
    state.next_node = state.next_node.max(first_id(&superblock, epoch));
    drive::perform(drive, ob_core::DeviceOp::Flush)?;
    let cleared = clear_next_place(drive, &superblock.geometry, &state);
    // Frames of a later epoch than the superblock's tell that there was a newer superblock, which is damaged now.
    let superblock = Superblock { sequence: superblock.sequence + 1, epoch: epoch + 1, ..superblock };
    drive::write_block(drive, slot_of(&superblock), &superblock.encode())?;
    let log = Log::new(superblock.geometry, superblock.format_tag(), superblock.epoch, state);
    let mut files = CardFiles::new(Mounted { superblock, tree, space, log }, options);
    if let Err(error) = cleared {
        files.freeze("the place of the log's next frame", error);
    }
    Ok(files)
}

/// Half a frame of an earlier life may lie where the next frame goes. It would be whole again if this life's frame ended like it, and of that
/// one a loss of power left only the end. Where that cannot be prevented nothing may be written, and what is there can be read.
fn clear_next_place(drive: &mut dyn Drive, geometry: &Geometry, state: &LogState) -> Result<(), DeviceError> {
    let Some(offset) = state.next_frame_at(geometry) else { return Ok(()) };
    let block_len = drive.device().info().block_len as usize;
    // A place that was never used may be one that a device has no room for.
    if drive::read(drive, offset, block_len)?.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    drive::write_block(drive, offset, &[])
}

/// Where the ids of a mount begin. Frames that a loss of power took may have given ids that nobody knows of any more, so each
/// mount has its own. And a host that kept an id over a formatting must find nothing by it, rather than another file, so each
/// format begins elsewhere: anywhere below 2⁵², so that ids stay exact where numbers are floating-point.
fn first_id(superblock: &Superblock, epoch: u64) -> u64 {
    (superblock.format_tag() >> 12) + (epoch.min(1 << 28) << 32)
}

/// What the log says, and what is wrong with that; the same for a mount and a check.
fn finish(
    replay: Replay,
    superblock: &Superblock,
    state: &LogState,
    findings: &mut Vec<Finding>,
) -> (Tree, Space) {
    let geometry = &superblock.geometry;
    let (tree, space) = replay.finish(geometry, state.next_node, findings);
    let (live, used, sections) = (tree.live_bytes(), state.used(), geometry.log_sections);
    if !state.can_be_cleaned(geometry, live) {
        findings.push(Finding::LogFull { used, sections, live });
    }
    (tree, space)
}

/// Where a superblock is written: never over the one before it.
pub(crate) fn slot_of(superblock: &Superblock) -> u64 {
    SUPERBLOCK_SLOTS[(superblock.sequence % 2) as usize]
}

/// The superblock of a device that is ours and that this build can read.
fn usable_superblock(drive: &mut dyn Drive) -> Result<Superblock, MountError> {
    let superblock = match identify(drive)? {
        Contents::Files(superblock) => *superblock,
        Contents::Blank => return Err(MountError::Blank),
        Contents::Foreign => return Err(MountError::Foreign),
        Contents::Damaged => return Err(MountError::Superblocks),
        Contents::OtherVersion(found) => {
            return Err(MountError::Version { found, known: ob_format::files::VERSION });
        }
    };
    fits(&superblock, drive.device().info())?;
    Ok(superblock)
}

/// Whether the device can hold what the superblock says, and counting on from its numbers comes to no end.
fn fits(superblock: &Superblock, info: DeviceInfo) -> Result<(), MountError> {
    let countable = 0..u64::MAX / 2;
    let counts = [superblock.sequence, superblock.epoch, superblock.tail.sequence];
    if superblock.tail.sequence == 0 || !counts.iter().all(|count| countable.contains(count)) {
        return Err(MountError::Superblocks);
    }
    let geometry = &superblock.geometry;
    // Whole blocks of the format are whole blocks of a device whose own are smaller: the same disk can have them when a newer kernel
    // tells them, or a file when it lies elsewhere.
    if geometry.block_len.is_multiple_of(info.block_len) && info.capacity >= geometry.capacity {
        return Ok(());
    }
    let describe = |capacity, block_len| format!("{capacity} bytes in blocks of {block_len}");
    Err(MountError::Changed {
        found: describe(info.capacity, info.block_len),
        formatted: describe(geometry.capacity, geometry.block_len),
    })
}

/// What is read may have counted to `u64::MAX / 2`; what is written to has a long way to there.
fn leaves_room_to_count(superblock: &Superblock, state: &LogState) -> Result<(), MountError> {
    let counts = [
        ("superblocks", superblock.sequence),
        ("mounts", superblock.epoch.max(state.epoch)),
        ("frames", state.sequence),
        ("ids", state.next_node),
    ];
    match counts.into_iter().find(|(_, count)| *count >= u64::MAX / 4) {
        Some((what, count)) => Err(MountError::Exhausted { what, count }),
        None => Ok(()),
    }
}

/// Checks everything, changes nothing. `progress` is told sections read, and how many there are at most.
pub fn check(drive: &mut dyn Drive, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport, MountError> {
    let (slots, _) = read_slots(drive)?;
    let mut report = CheckReport::default();
    for (slot, offset) in slots.iter().zip(SUPERBLOCK_SLOTS) {
        if let Err(error) = slot {
            report.superblocks.push(format!("the superblock at byte {offset}: {error}"));
        }
    }
    let superblock = usable_superblock(drive)?;
    let mut replay = Replay::default();
    let state = read_log(drive, &superblock, &mut replay, &mut report.findings, progress)?;
    (report.frames, report.records) = (replay.frames, replay.records);
    let (tree, space) = finish(replay, &superblock, &state, &mut report.findings);
    (report.files, report.directories) = (tree.files(), tree.directories());
    let bytes = |segments| u64::from(segments) * superblock.geometry.segment_len;
    (report.total, report.free) = (bytes(space.total()), bytes(space.unmapped()));
    Ok(report)
}
