//! Layouts of devices large and small.

use proptest::prelude::*;

use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

fn plan(block_len: u32, capacity: u64) -> Result<Geometry, GeometryError> {
    Geometry::plan(block_len, capacity, &FormatOptions::default())
}

#[test]
fn defaults_follow_the_capacity() {
    let cases = [
        // capacity, section_len, segment_len, log_sections
        (MIB, 32 * KIB, 4 * KIB, 8),
        (16 * MIB, 128 * KIB, 16 * KIB, 8),
        (64 * MIB - 4096, 256 * KIB, 32 * KIB, 8),
        (64 * MIB, 512 * KIB, 64 * KIB, 16),
        (GIB, 512 * KIB, 128 * KIB, 32),
        (100 * GIB, 512 * KIB, MIB, 3200),
        (TIB, 512 * KIB, MIB, 16384),
        (512 * TIB, 512 * KIB, MIB, 16384),
    ];
    for (capacity, section_len, segment_len, log_sections) in cases {
        let geometry = plan(4096, capacity).unwrap();
        let found = (u64::from(geometry.section_len), geometry.segment_len, geometry.log_sections);
        assert_eq!(found, (section_len, segment_len, log_sections), "{capacity}");
        assert_eq!(geometry.check(), Ok(()));
    }
    assert!(plan(512, MIB).unwrap().data_segments >= 36);
    assert_eq!(plan(32 << 10, 16 * MIB).unwrap().section_len, 256 << 10, "a section has eight blocks");
    assert_eq!(plan(32 << 10, 16 * MIB).unwrap().segment_len, 32 << 10, "a segment has a block");
}

#[test]
fn what_is_asked_for_is_taken() {
    let options =
        FormatOptions { segment_len: Some(MIB), section_len: Some(64 << 10), log_len: Some(MIB + 1) };
    let geometry = Geometry::plan(512, 100 * MIB, &options).unwrap();
    assert_eq!((geometry.segment_len, geometry.section_len), (MIB, 64 << 10));
    assert_eq!(geometry.log_sections, 17, "rounded up to whole sections");
    assert_eq!(geometry.data_start, 2 * MIB, "rounded up to whole segments");
    assert_eq!(geometry.data_segments, 98);
}

#[test]
fn what_cannot_be_is_named() {
    let refused = |options: FormatOptions| Geometry::plan(4096, GIB, &options).unwrap_err();
    for section_len in [0, 16 << 10, 48 << 10, 8 << 20, u32::MAX] {
        let error = refused(FormatOptions { section_len: Some(section_len), ..FormatOptions::default() });
        assert_eq!(error, GeometryError::SectionLen { section_len, least: 32 << 10 });
    }
    for segment_len in [0, 2048, 12 << 10, 2 << 30, u64::MAX] {
        let error = refused(FormatOptions { segment_len: Some(segment_len), ..FormatOptions::default() });
        assert_eq!(error, GeometryError::SegmentLen { segment_len, least: 4096 });
    }
    for (log_len, sections) in [(0, 0), (7 * 512 * KIB, 7), (u64::MAX, 1 << 45)] {
        let error = refused(FormatOptions { log_len: Some(log_len), ..FormatOptions::default() });
        assert_eq!(error, GeometryError::LogLen { sections });
    }
    for block_len in [0, 256, 1000, 64 << 10] {
        assert_eq!(plan(block_len, GIB), Err(GeometryError::BlockLen { block_len }));
    }
    let short = FormatOptions { segment_len: Some(4 * KIB), ..FormatOptions::default() };
    let error = Geometry::plan(4096, 64 * TIB, &short).unwrap_err();
    assert!(matches!(error, GeometryError::TooManySegments { .. }), "{error}");
    assert_eq!(plan(4096, u64::MAX), Err(GeometryError::TooLarge { capacity: u64::MAX }));
}

#[test]
fn the_smallest_device_is_as_large_as_is_said() {
    let Err(GeometryError::TooSmall { needed, capacity: 0 }) = plan(512, 0) else {
        panic!("a device without bytes was laid out");
    };
    assert_eq!(plan(512, needed).unwrap().data_segments, DATA_SEGMENTS_MIN);
    assert_eq!(plan(512, needed - 512), Err(GeometryError::TooSmall { needed, capacity: needed - 512 }));
}

#[test]
fn nothing_overlaps_on_a_small_device() {
    let geometry = plan(32 << 10, 16 * MIB).unwrap();
    for geometry in [geometry, plan(512, MIB).unwrap()] {
        assert!(SUPERBLOCK_SLOTS[0] + u64::from(geometry.block_len) <= SUPERBLOCK_SLOTS[1]);
        assert!(SUPERBLOCK_SLOTS[1] + u64::from(geometry.block_len) <= geometry.section_offset(0));
        assert!(geometry.section_offset(geometry.log_sections) <= geometry.segment_offset(0));
        assert!(geometry.segment_offset(geometry.data_segments) <= geometry.capacity);
    }
}

#[test]
fn frames_follow_each_other_around_the_log() {
    let geometry = plan(4096, GIB).unwrap();
    assert_eq!(geometry.frame_max(), 64 << 10);
    assert_eq!(geometry.padded(1), 4096);
    assert_eq!(geometry.padded(4096), 4096);
    assert_eq!(geometry.next_in_section(4096), Some(4096));
    let last = geometry.section_len - geometry.frame_max() as u32;
    assert_eq!(geometry.next_in_section(last), Some(last));
    assert_eq!(geometry.next_in_section(last + 4096), None);
    assert_eq!(geometry.next_in_section(geometry.section_len), None);
    assert_eq!(geometry.next_section(0), 1);
    assert_eq!(geometry.next_section(geometry.log_sections - 1), 0);
}

#[test]
fn the_largest_file_can_be_told_in_offsets() {
    let geometry = plan(4096, TIB).unwrap();
    assert_eq!(geometry.file_len_max(), MIB * u64::from(u32::MAX));
    let wild = Geometry { segment_len: u64::MAX, ..geometry };
    assert_eq!(wild.file_len_max(), i64::MAX as u64);
}

/// Numbers near the edges of what is legal, and anywhere.
fn wild_number() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0..64u32, -1..=1i64).prop_map(|(power, near)| (1u64 << power).wrapping_add_signed(near)),
    ]
}

proptest! {
    #[test]
    fn what_is_planned_is_legal(
        block in 9..=15u32,
        capacity in wild_number(),
        segment_len in proptest::option::of(wild_number()),
        section_len in proptest::option::of(wild_number()),
        log_len in proptest::option::of(wild_number()),
    ) {
        let section_len = section_len.map(|len| len as u32);
        let options = FormatOptions { segment_len, section_len, log_len };
        if let Ok(geometry) = Geometry::plan(1 << block, capacity, &options) {
            prop_assert_eq!(geometry.check(), Ok(()));
            prop_assert!(geometry.segment_offset(geometry.data_segments) <= capacity);
            prop_assert!(geometry.frame_max() >= geometry.block_len as usize);
        }
    }

    #[test]
    fn any_device_of_a_mebibyte_or_more_can_be_formatted(block in 9..=12u32, capacity in MIB..1 << 52) {
        let geometry = plan(1 << block, capacity);
        prop_assert!(geometry.is_ok(), "{geometry:?}");
    }

    #[test]
    fn no_number_is_too_wild_to_be_checked(
        lens in [wild_number(), wild_number(), wild_number(), wild_number()],
        counts in [wild_number(), wild_number(), wild_number()],
    ) {
        let wild = Geometry {
            block_len: lens[0] as u32,
            section_len: lens[1] as u32,
            segment_len: lens[2],
            capacity: lens[3],
            log_sections: counts[0] as u32,
            data_start: counts[1],
            data_segments: counts[2] as u32,
        };
        if wild.check().is_ok() {
            prop_assert!(wild.segment_offset(wild.data_segments) <= wild.capacity);
        }
    }

    /// Legal but for one number, so that every check is reached.
    #[test]
    fn one_wrong_number_is_found(field in 0..3usize, value in wild_number()) {
        let right = plan(4096, GIB).unwrap();
        let mut wrong = right;
        match field {
            0 => wrong.log_sections = value as u32,
            1 => wrong.data_start = value,
            _ => wrong.data_segments = value as u32,
        }
        prop_assert_eq!(wrong.check().is_ok(), wrong == right);
    }
}
