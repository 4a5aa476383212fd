//! Where everything lies on a device.

/// Bytes at the start of a device that belong to the superblocks, whatever the length of a section.
pub const SUPERBLOCK_AREA_LEN: u64 = 128 << 10;
/// A log of fewer sections could not be cleaned while it is written.
pub const LOG_SECTIONS_MIN: u32 = 8;
/// A device with fewer segments is of no use.
pub const DATA_SEGMENTS_MIN: u32 = 8;

const BLOCK_LEN_MIN: u32 = 512;
const BLOCK_LEN_MAX: u32 = 32 << 10;
const SECTION_LEN_MIN: u32 = 32 << 10;
const SECTION_LEN_MAX: u32 = 4 << 20;
const SECTION_LEN_DEFAULT: u32 = 512 << 10;
const SEGMENT_LEN_MIN: u64 = 4 << 10;
const SEGMENT_LEN_MAX: u64 = 1 << 30;
/// Blocks of the longest frame fill this part of a section.
const FRAMES_PER_SECTION_MIN: u32 = 8;
/// Offsets are signed where the kernel takes them.
const CAPACITY_MAX: u64 = i64::MAX as u64;

/// A device below this length is small: it has shorter sections, segments and logs by default.
const SMALL_DEVICE: u64 = 64 << 20;
const LOG_SECTIONS_DEFAULT_MIN: u64 = 16;
const LOG_LEN_DEFAULT_MAX: u64 = 8 << 30;

/// What a device is formatted with; what is not given is chosen after the device's capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FormatOptions {
    /// Bytes of a segment, the unit of data space: a power of two from 4 KiB to 1 GiB, at least a block.
    pub segment_len: Option<u64>,
    /// Bytes of a section of the log: a power of two from 32 KiB to 4 MiB, at least eight blocks.
    pub section_len: Option<u32>,
    /// Bytes of the log, rounded up to whole sections.
    pub log_len: Option<u64>,
}

/// Where everything lies on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The device's unit: a block is written as a whole or not at all.
    pub block_len: u32,
    /// Bytes of a section of the log.
    pub section_len: u32,
    /// Bytes of a segment, the unit of data space.
    pub segment_len: u64,
    /// Bytes of the device.
    pub capacity: u64,
    /// Sections of the log.
    pub log_sections: u32,
    /// Where segment 0 begins.
    pub data_start: u64,
    /// How many segments there are.
    pub data_segments: u32,
}

/// Why a device cannot be laid out so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The device's block is not one that the format knows.
    #[error(
        "a block of {block_len} bytes cannot be: it is a power of two from {BLOCK_LEN_MIN} to {BLOCK_LEN_MAX}"
    )]
    BlockLen {
        /// Its bytes.
        block_len: u32,
    },
    /// The length of a section is not legal.
    #[error(
        "a section of {section_len} bytes cannot be: it is a power of two from {least} to {SECTION_LEN_MAX} on this device"
    )]
    SectionLen {
        /// Its bytes.
        section_len: u32,
        /// The shortest that can be.
        least: u32,
    },
    /// The length of a segment is not legal.
    #[error(
        "a segment of {segment_len} bytes cannot be: it is a power of two from {least} to {SEGMENT_LEN_MAX} on this device"
    )]
    SegmentLen {
        /// Its bytes.
        segment_len: u64,
        /// The shortest that can be.
        least: u64,
    },
    /// The log is too short, or has more sections than can be counted.
    #[error(
        "a log of {sections} sections cannot be: it has from {LOG_SECTIONS_MIN} to {} sections",
        u32::MAX
    )]
    LogLen {
        /// How many sections it would have.
        sections: u64,
    },
    /// Superblocks, log and a few segments do not fit.
    #[error("the device has {capacity} bytes, and {needed} are needed")]
    TooSmall {
        /// How many bytes the device should have.
        needed: u64,
        /// How many it has.
        capacity: u64,
    },
    /// The capacity is more than offsets can tell.
    #[error("a device of {capacity} bytes is too large, the largest has {CAPACITY_MAX}")]
    TooLarge {
        /// How many bytes it has.
        capacity: u64,
    },
    /// The data has more segments than can be counted.
    #[error("the device would have {segments} segments, and {} can be counted: take longer ones", u32::MAX)]
    TooManySegments {
        /// How many there would be.
        segments: u64,
    },
    /// The data does not begin where the log's length says.
    #[error("the data begins at {found} and should begin at {expected}")]
    DataStart {
        /// What is said.
        found: u64,
        /// What follows from the rest.
        expected: u64,
    },
    /// The number of segments does not follow from the capacity.
    #[error("there are {found} segments and should be {expected}")]
    DataSegments {
        /// What is said.
        found: u32,
        /// What follows from the rest.
        expected: u32,
    },
}

impl Geometry {
    /// Lays a device out, with what the options give and what suits its capacity.
    ///
    /// # Errors
    ///
    /// When the block or an option is not legal, or too little of the device would remain for data.
    pub fn plan(block_len: u32, capacity: u64, options: &FormatOptions) -> Result<Self, GeometryError> {
        check_block(block_len)?;
        let small = capacity < SMALL_DEVICE;
        let section_len = options.section_len.unwrap_or_else(|| {
            let suits = if small { power_below(capacity / 128) } else { u64::from(SECTION_LEN_DEFAULT) };
            let least = u64::from(section_len_min(block_len));
            suits.min(u64::from(SECTION_LEN_DEFAULT)).max(least) as u32
        });
        check_section(section_len, block_len)?;
        let segment_len = options.segment_len.unwrap_or_else(|| {
            let suits = if small {
                power_below(capacity / 1024).clamp(SEGMENT_LEN_MIN, 64 << 10)
            } else {
                power_below(capacity / 8192).clamp(64 << 10, 1 << 20)
            };
            suits.max(u64::from(block_len))
        });
        check_segment(segment_len, block_len)?;
        let log_len = options.log_len.unwrap_or_else(|| {
            let least = if small { u64::from(LOG_SECTIONS_MIN) } else { LOG_SECTIONS_DEFAULT_MIN };
            (capacity / 64).clamp(least * u64::from(section_len), LOG_LEN_DEFAULT_MAX)
        });
        let log_sections = checked_log(log_len.div_ceil(u64::from(section_len)))?;
        let data_start = data_start(section_len, log_sections, segment_len);
        let data_segments = data_segments(capacity, data_start, segment_len)?;
        Ok(Self { block_len, section_len, segment_len, capacity, log_sections, data_start, data_segments })
    }

    /// Whether all numbers are legal and agree with each other. No number is too wild to be asked about.
    ///
    /// # Errors
    ///
    /// When one is not legal: the first that was found.
    pub fn check(&self) -> Result<(), GeometryError> {
        check_block(self.block_len)?;
        check_section(self.section_len, self.block_len)?;
        check_segment(self.segment_len, self.block_len)?;
        let log_sections = checked_log(u64::from(self.log_sections))?;
        let expected = data_start(self.section_len, log_sections, self.segment_len);
        if self.data_start != expected {
            return Err(GeometryError::DataStart { found: self.data_start, expected });
        }
        let expected = data_segments(self.capacity, expected, self.segment_len)?;
        if self.data_segments != expected {
            return Err(GeometryError::DataSegments { found: self.data_segments, expected });
        }
        Ok(())
    }

    /// Longest frame, in bytes.
    pub fn frame_max(&self) -> usize {
        (self.section_len / FRAMES_PER_SECTION_MIN) as usize
    }

    /// Where the log begins.
    pub fn log_start(&self) -> u64 {
        log_start(self.section_len)
    }

    /// Where a section of the log begins.
    pub fn section_offset(&self, section: u32) -> u64 {
        self.log_start() + u64::from(section) * u64::from(self.section_len)
    }

    /// Where a segment begins.
    pub fn segment_offset(&self, segment: u32) -> u64 {
        self.data_start + u64::from(segment) * self.segment_len
    }

    /// Largest size of a file.
    pub fn file_len_max(&self) -> u64 {
        self.segment_len.saturating_mul(u64::from(u32::MAX)).min(i64::MAX as u64)
    }

    /// Where in the same section the frame goes that follows one whose last block ends at `end`; none, if it goes
    /// to the start of the next section.
    pub fn next_in_section(&self, end: u32) -> Option<u32> {
        let remaining = self.section_len.saturating_sub(end);
        (remaining >= self.section_len / FRAMES_PER_SECTION_MIN).then_some(end)
    }

    /// The section after this one: the log is a circle.
    pub fn next_section(&self, section: u32) -> u32 {
        if section >= self.log_sections - 1 { 0 } else { section + 1 }
    }

    /// Bytes of the whole blocks that a frame of this length occupies.
    pub fn padded(&self, frame_length: usize) -> usize {
        frame_length.next_multiple_of(self.block_len as usize)
    }
}

fn check_block(block_len: u32) -> Result<(), GeometryError> {
    let legal = block_len.is_power_of_two() && (BLOCK_LEN_MIN..=BLOCK_LEN_MAX).contains(&block_len);
    if legal { Ok(()) } else { Err(GeometryError::BlockLen { block_len }) }
}

/// The shortest section in which a frame can have a block.
fn section_len_min(block_len: u32) -> u32 {
    SECTION_LEN_MIN.max(FRAMES_PER_SECTION_MIN * block_len)
}

fn check_section(section_len: u32, block_len: u32) -> Result<(), GeometryError> {
    let least = section_len_min(block_len);
    let legal = section_len.is_power_of_two() && (least..=SECTION_LEN_MAX).contains(&section_len);
    if legal { Ok(()) } else { Err(GeometryError::SectionLen { section_len, least }) }
}

fn check_segment(segment_len: u64, block_len: u32) -> Result<(), GeometryError> {
    let least = SEGMENT_LEN_MIN.max(u64::from(block_len));
    let legal = segment_len.is_power_of_two() && (least..=SEGMENT_LEN_MAX).contains(&segment_len);
    if legal { Ok(()) } else { Err(GeometryError::SegmentLen { segment_len, least }) }
}

fn checked_log(sections: u64) -> Result<u32, GeometryError> {
    let count = u32::try_from(sections).ok().filter(|count| *count >= LOG_SECTIONS_MIN);
    count.ok_or(GeometryError::LogLen { sections })
}

/// Short sections begin behind the superblocks too: the second slot is in the second 64 KiB.
fn log_start(section_len: u32) -> u64 {
    SUPERBLOCK_AREA_LEN.max(u64::from(section_len))
}

/// With legal lengths this stays far below 2⁶³: the log has less than 2³² sections of at most 2²² bytes.
fn data_start(section_len: u32, log_sections: u32, segment_len: u64) -> u64 {
    (log_start(section_len) + u64::from(log_sections) * u64::from(section_len)).next_multiple_of(segment_len)
}

fn data_segments(capacity: u64, data_start: u64, segment_len: u64) -> Result<u32, GeometryError> {
    if capacity > CAPACITY_MAX {
        return Err(GeometryError::TooLarge { capacity });
    }
    let needed = data_start + u64::from(DATA_SEGMENTS_MIN) * segment_len;
    if capacity < needed {
        return Err(GeometryError::TooSmall { needed, capacity });
    }
    let segments = (capacity - data_start) / segment_len;
    u32::try_from(segments).map_err(|_| GeometryError::TooManySegments { segments })
}

/// The largest power of two that is not above, or 1.
fn power_below(value: u64) -> u64 {
    1 << value.checked_ilog2().unwrap_or(0)
}
