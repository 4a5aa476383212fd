//! Whole devices that somebody forged: every checksum, length and link of the log is right, and what the records say need not be.
//!
//! Any bytes are a script. Most of what they choose is what a card could have written, so that one thing that it could not
//! have is looked at with everything around it in order.

use std::collections::BTreeSet;

use ob_core::{NodeId, NodeKind};
use ob_files_card::{CheckReport, Finding, MountError, check, mount};
use ob_format::files::{
    FRAME_HEADER_LEN, FrameBuilder, FrameStamp, Geometry, LogStart, SUPERBLOCK_SLOTS, Superblock,
};
use ob_wire_link::files::ROOT;

use super::{Image, Listed, MemoryDevice, Rig, SMALL, UUID, pattern, small_format};

const BLOCK: u32 = 512;
const SEGMENT: u64 = 4096;
const SEGMENTS: u64 = 64;
const CAPACITY: u64 = (384 << 10) + SEGMENTS * SEGMENT;
/// Ids that nodes of a script have, from behind the root's on.
const IDS: u64 = 12;
/// A log of this geometry holds fewer.
const FRAMES_MAX: usize = 600;

/// What became of a forged device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Refused, for what a check finds.
    Refused(Vec<Finding>),
    /// Mounted and used; so many names were found on it.
    Mounted(usize),
}

/// What is left of a script; zeros when nothing is.
struct Script<'a> {
    bytes: &'a [u8],
    /// How often, of 256 times, something is not as a card would have it.
    hostility: u8,
}

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.bytes.split_first() else { return 0 };
        self.bytes = rest;
        *first
    }

    fn below(&mut self, end: u64) -> u64 {
        u64::from(self.byte()) % end
    }

    /// Whether this is to be something that a card would not have written.
    fn lies(&mut self) -> bool {
        u8::MAX - self.byte() < self.hostility
    }

    /// A number at which something ends.
    fn edge(&mut self) -> u64 {
        let base = match self.byte() % 10 {
            0 => 0,
            1 => u64::from(u32::MAX),
            2 => u64::MAX / 2,
            3 => u64::MAX,
            4 => 1 << 32,
            5 => SEGMENTS,
            6 => SEGMENTS * SEGMENT,
            7 => u64::from(u32::MAX) * SEGMENT,
            8 => i64::MAX as u64,
            _ => self.below(256),
        };
        match self.byte() % 3 {
            0 => base,
            1 => base.wrapping_add(1),
            _ => base.wrapping_sub(1),
        }
    }

    fn id(&mut self) -> u64 {
        if self.lies() { self.edge() } else { ROOT.0 + 1 + self.below(IDS) }
    }

    /// One of these, or any.
    fn of(&mut self, known: &BTreeSet<u64>) -> u64 {
        let index = self.byte() as usize % known.len().max(1);
        let known = known.iter().nth(index).copied();
        if self.lies() { self.id() } else { known.unwrap_or(ROOT.0) }
    }
}

/// What the log has said so far, so that more of it can be right.
struct Forger {
    directories: BTreeSet<u64>,
    files: BTreeSet<u64>,
    mapped: BTreeSet<u64>,
    next_segment: u32,
}

impl Forger {
    fn new() -> Self {
        let directories = BTreeSet::from([ROOT.0]);
        Self { directories, files: BTreeSet::new(), mapped: BTreeSet::new(), next_segment: 0 }
    }

    fn node(&mut self, script: &mut Script<'_>, into: &mut Vec<u8>) {
        let id = script.id();
        let is_directory = id.is_multiple_of(3);
        // A directory that is in one with a greater id could be in itself.
        let mut parents = self.directories.clone();
        if is_directory && !script.lies() {
            parents.retain(|parent| *parent < id);
        }
        let parent = script.of(&parents);
        let name = match script.lies() {
            true => vec![b'b'; usize::from(script.below(8) > 0)],
            false => [vec![b'a' + (id % 26) as u8], vec![b'n'; script.below(40) as usize]].concat(),
        };
        let size = match (script.lies(), is_directory) {
            (true, _) => script.edge(),
            (false, true) => 0,
            (false, false) => script.below(16) * [1000, SEGMENT][script.below(2) as usize],
        };
        let kind = if is_directory { NodeKind::Directory } else { NodeKind::File }.code();
        let known = if is_directory { &mut self.directories } else { &mut self.files };
        known.insert(id);
        let length = ((32 + name.len()).next_multiple_of(8) as u16).to_le_bytes();
        into.extend_from_slice(&[length[0], length[1], 1, kind, name.len() as u8, 0, 0, 0]);
        for number in [id, parent, size] {
            into.extend_from_slice(&number.to_le_bytes());
        }
        into.extend_from_slice(&name);
        into.resize(into.len().next_multiple_of(8), 0);
    }

    fn map(&mut self, script: &mut Script<'_>, into: &mut Vec<u8>) {
        let file = script.of(&self.files);
        let is_first = self.mapped.insert(file);
        let first = match script.lies() {
            true => script.edge() as u32,
            false if is_first => 0,
            false => 16 * script.below(3) as u32,
        };
        let is_full = self.next_segment + 16 > SEGMENTS as u32;
        let count = match script.lies() {
            true => script.below(40),
            false if is_full => 0,
            false => script.below(4),
        };
        let length = ((24 + 12 * count as usize).next_multiple_of(8) as u16).to_le_bytes();
        into.extend_from_slice(&[length[0], length[1], 2, 0, count as u8, 0, 0, 0]);
        into.extend_from_slice(&file.to_le_bytes());
        into.extend_from_slice(&first.to_le_bytes());
        into.extend_from_slice(&[0; 4]);
        let mut logical = first;
        for _ in 0..count {
            logical = logical.wrapping_add(1 + script.below(2) as u32);
            let mut run = [logical, self.next_segment, 1 + script.below(3) as u32];
            if script.lies() {
                run[script.below(3) as usize] = script.edge() as u32;
            }
            run.iter().for_each(|word| into.extend_from_slice(&word.to_le_bytes()));
            logical = run[0].wrapping_add(run[2]);
            self.next_segment = self.next_segment.wrapping_add(run[2]) % (2 * SEGMENTS as u32);
        }
        into.resize(into.len().next_multiple_of(8), 0);
    }

    fn remove(&mut self, script: &mut Script<'_>, into: &mut Vec<u8>) {
        let id = script.of(if script.hostility > 8 { &self.directories } else { &self.files });
        self.files.remove(&id);
        self.mapped.remove(&id);
        into.extend_from_slice(&[16, 0, 3, 0, 0, 0, 0, 0]);
        into.extend_from_slice(&id.to_le_bytes());
    }

    fn cut(&mut self, script: &mut Script<'_>, into: &mut Vec<u8>) {
        into.extend_from_slice(&[24, 0, 4, 0, 0, 0, 0, 0]);
        into.extend_from_slice(&script.of(&self.mapped).to_le_bytes());
        let first = if script.lies() { script.edge() } else { script.below(9) };
        into.extend_from_slice(&(first as u32).to_le_bytes());
        into.extend_from_slice(&[0; 4]);
    }

    /// One more record, if there can be one.
    fn record(&mut self, script: &mut Script<'_>, into: &mut Vec<u8>) -> u32 {
        let before = into.len();
        match script.byte() % 16 {
            _ if script.lies() => {
                // Bytes as they come, and a length that is right.
                let len = 8 + 8 * script.below(6) as usize;
                into.extend_from_slice(&(len as u16).to_le_bytes());
                (2..len).for_each(|_| into.push(script.byte()));
            }
            0..=6 => self.node(script, into),
            7..=11 if !self.files.is_empty() => self.map(script, into),
            12 | 13 if !self.files.is_empty() => self.remove(script, into),
            14 if !self.mapped.is_empty() => self.cut(script, into),
            _ => {}
        }
        u32::from(into.len() > before)
    }
}

/// A frame around these records, sealed.
fn frame(records: &[u8], count: u32, stamp: &FrameStamp) -> Vec<u8> {
    let mut builder = FrameBuilder::new(FRAME_HEADER_LEN);
    builder.seal(stamp);
    let mut bytes = builder.bytes().to_vec();
    bytes.extend_from_slice(records);
    let length = bytes.len() as u32;
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes[12..16].copy_from_slice(&count.to_le_bytes());
    bytes[4..8].fill(0);
    let checksum = crc32c::crc32c(&bytes);
    bytes[4..8].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The device that a script describes.
pub(crate) fn image_of(script: &[u8]) -> Image {
    let hostility = [0, 1, 8, 40][script.first().map_or(0, |first| usize::from(first & 3))];
    let mut script = Script { bytes: script.get(1..).unwrap_or_default(), hostility };
    let geometry = Geometry::plan(BLOCK, CAPACITY, &small_format(SEGMENT)).unwrap();
    let mut image = Image::new(CAPACITY);
    let tail = LogStart {
        section: script.below(u64::from(geometry.log_sections)) as u32,
        sequence: if script.lies() { script.edge() } else { 1 + script.below(100) },
        previous: u32::from(script.byte()),
    };
    let sequence = if script.lies() { script.edge() } else { 1 + script.below(9) };
    let epoch = if script.lies() { script.edge() } else { script.below(3) };
    let superblock = Superblock { geometry, uuid: UUID, sequence, epoch, tail };
    image.write(SUPERBLOCK_SLOTS[(sequence % 2) as usize], &superblock.encode());
    write_log(&mut script, &superblock, &mut image);
    image
}

fn write_log(script: &mut Script<'_>, superblock: &Superblock, image: &mut Image) {
    let geometry = &superblock.geometry;
    let (mut section, mut at) = (superblock.tail.section, 0);
    let (mut sequence, mut previous) = (superblock.tail.sequence, superblock.tail.previous);
    let (mut epoch, mut next_node, mut frames) = (superblock.epoch.min(3), ROOT.0 + 1 + IDS, 0);
    let mut forger = Forger::new();
    while !script.bytes.is_empty() && frames < FRAMES_MAX {
        let mut records = Vec::new();
        let count = (0..script.below(7)).map(|_| forger.record(script, &mut records)).sum();
        let counted = if script.lies() { script.edge() as u32 } else { count };
        if script.lies() {
            (epoch, next_node) = (epoch.saturating_add(script.below(3)), script.edge());
        }
        // Few frames fill a section, so now and then there are many of one kind.
        let times = if script.byte() == 0 { 2 * script.byte() as usize } else { 1 };
        for _ in 0..times.min(FRAMES_MAX - frames) {
            let durable = sequence.saturating_sub(script.below(3));
            let format = superblock.format_tag();
            let stamp =
                FrameStamp { sequence, epoch, durable, next_node: NodeId(next_node), previous, format };
            let bytes = frame(&records, counted, &stamp);
            if bytes.len() > geometry.frame_max() {
                break;
            }
            image.write(geometry.section_offset(section) + u64::from(at), &bytes);
            (sequence, previous) = (sequence.wrapping_add(1), crc32c::crc32c(&with_checksum_zero(&bytes)));
            frames += 1;
            match geometry.next_in_section(at + geometry.padded(bytes.len()) as u32) {
                Some(next) => at = next,
                None => {
                    (section, at) = (geometry.next_section(section), 0);
                    if section == superblock.tail.section {
                        return;
                    }
                }
            }
        }
    }
}

fn with_checksum_zero(frame: &[u8]) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    bytes[4..8].fill(0);
    bytes
}

/// Checks, mounts and uses a forged device.
///
/// # Panics
/// When check and mount do not agree, or what was mounted does not hold together.
pub(crate) fn judge(image: &Image) -> Fate {
    let mut device = MemoryDevice::with(image.clone(), BLOCK);
    let report = check(&mut device, &mut |_, _| {});
    match mount(&mut device, &SMALL) {
        Err(error) => {
            agree(&report, &error);
            Fate::Refused(report.map(|report| report.findings).unwrap_or_default())
        }
        Ok(files) => {
            let report = report.expect("what cannot be checked is not mounted");
            assert_eq!(report.findings, [], "a mount refuses what a check finds");
            let mut rig = Rig::from_parts(files, device);
            let names = rig.walk();
            assert_eq!(names.len() as u64 + 1, report.files + report.directories, "each has one name");
            rig.assert_space_is_exact();
            names.values().for_each(|entry| look_at(&mut rig, entry));
            use_it(&mut rig);
            Fate::Mounted(names.len())
        }
    }
}

fn agree(report: &Result<CheckReport, MountError>, error: &MountError) {
    match (report, error) {
        (Ok(report), MountError::Damaged { first, more }) => {
            assert_eq!(report.findings.first(), Some(&**first));
            // A check goes on where the log itself is wrong, and may find more.
            let is_log = matches!(**first, Finding::BadRecord { .. } | Finding::LogDamaged { .. });
            assert!(is_log || report.findings.len() == more + 1, "{:?} and {more} more", report.findings);
        }
        (Ok(report), MountError::Exhausted { .. }) => assert_eq!(report.findings, []),
        (Err(one), other) => assert_eq!(one, other),
        (Ok(_), other) => panic!("a check finds nothing, and a mount {other}"),
    }
}

/// Reads a file at its beginning, in its middle and around its end. (The device of a test refuses what lies outside of it.)
fn look_at(rig: &mut Rig, entry: &Listed) {
    if entry.kind == NodeKind::Directory {
        return;
    }
    let size = entry.size;
    for offset in [0, size / 2, size.saturating_sub(1), size] {
        let bytes = rig.read(entry.id, offset, 5000).expect("a file can be read");
        assert_eq!(bytes.len() as u64, (size - offset).min(5000), "{entry:?} at {offset}");
    }
}

/// Whatever was mounted takes requests, and leaves a device that a check finds sound. (They may be refused: it may be full.)
fn use_it(rig: &mut Rig) {
    if let Ok(file) = rig.create(ROOT, b"one more") {
        let _ = rig.write(file.id, 100, &pattern(1, 0, 9000));
    }
    let names = rig.walk();
    for (path, entry) in &names {
        if entry.kind == NodeKind::File {
            let _ = rig.write(entry.id, 10, &pattern(2, 0, 700));
            let _ = rig.resize(entry.id, 5000);
        }
        let _ = rig.remove(ROOT, path);
    }
    rig.flush().expect("a flush is never refused");
    rig.settle();
    rig.assert_space_is_exact();
    let mut device = MemoryDevice::with(rig.device.image().clone(), BLOCK);
    let report = check(&mut device, &mut |_, _| {}).expect("it is ours");
    assert_eq!(report.findings, []);
}
