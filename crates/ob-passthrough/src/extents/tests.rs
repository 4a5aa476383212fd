//! What a map makes of what the file system says, made up here.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::fiemap::FiemapExtent;
use super::*;

fn device(partition_start: u64) -> BlockDevice {
    let (name, partition_name) = ("nvme0n1".to_owned(), "nvme0n1p1".to_owned());
    BlockDevice { name, partition_name, major: 259, minor: 0, partition_start, len: 1 << 40 }
}

fn found(logical: u64, physical: u64, len: u64, flags: u32) -> FiemapExtent {
    FiemapExtent { logical, physical, len, flags, ..FiemapExtent::default() }
}

fn join(file_len: u64, extents: &[FiemapExtent]) -> Result<Vec<Extent>, ExtentsError> {
    let device = device(1 << 20);
    let mut joined = Joined::new(&device, (file_len, 4096), 3);
    extents.iter().try_for_each(|extent| joined.push(extent))?;
    Ok(joined.list)
}

fn extent(file_offset: u64, device_offset: u64, len: u64) -> Extent {
    Extent { file_offset, device_offset, len }
}

#[test]
fn the_partition_is_added_and_neighbours_are_joined() {
    let list = [found(0, 4096, 4096, 0), found(4096, 8192, 4096, 0x2000), found(8192, 0, 4096, 0x1001)];
    let expected = [extent(0, (1 << 20) + 4096, 8192), extent(8192, 1 << 20, 4096)];
    assert_eq!(join(12_288, &list).unwrap(), expected);
    let apart = [found(0, 4096, 4096, 0), found(8192, 8192, 4096, 0)];
    assert_eq!(join(12_288, &apart).unwrap().len(), 2, "there is a hole between");
}

#[test]
fn the_last_extent_ends_with_the_last_block() {
    let long = [found(0, 4096, 1 << 20, 0)];
    assert_eq!(join(4097, &long).unwrap(), [extent(0, (1 << 20) + 4096, 8192)]);
    assert_eq!(join(4096, &long).unwrap(), [extent(0, (1 << 20) + 4096, 4096)]);
}

#[test]
fn each_reason_has_its_name() {
    let reasons = [
        (0x0002, Unsuitable::Unknown),
        (0x0006, Unsuitable::DelayedAllocation),
        (0x0008, Unsuitable::Encoded),
        (0x0088, Unsuitable::Encrypted),
        (0x0100, Unsuitable::NotAligned),
        (0x0300, Unsuitable::Inline),
        (0x0500, Unsuitable::Tail),
        (0x0801, Unsuitable::Unwritten),
        (0x4000, Unsuitable::Unknown),
        (0x8000_0000, Unsuitable::Unknown),
    ];
    for (flags, expected) in reasons {
        let error = join(4096, &[found(0, 4096, 4096, flags)]).unwrap_err();
        assert!(
            matches!(error, ExtentsError::Unsuitable(reason) if reason == expected),
            "{flags:#x}: {error}"
        );
        assert_eq!(
            join(4096, &[found(0, 4096, 4096, 0), found(4096, 0, 4096, flags)]).unwrap().len(),
            1,
            "past the end"
        );
    }
    let odd = join(4096, &[found(0, 4096, 100, 0)]);
    assert!(matches!(odd, Err(ExtentsError::Unsuitable(Unsuitable::NotAligned))), "{odd:?}");
}

#[test]
fn what_cannot_be_is_refused() {
    let wrong = [
        vec![found(0, 0, 0, 0)],
        vec![found(0, 0, 8192, 0), found(4096, 8192, 4096, 0)],
        vec![found(4096, 0, 4096, 0), found(0, 8192, 4096, 0)],
        vec![found(u64::MAX - 511, 0, 1024, 0)],
        vec![found(0, u64::MAX - 511, 512, 0)],
        vec![found(0, 1 << 40, 512, 0)],
    ];
    for list in wrong {
        let outcome = join(u64::MAX, &list);
        assert!(matches!(outcome, Err(ExtentsError::Impossible(_))), "{list:?}: {outcome:?}");
    }
    let many: Vec<_> = (0..4).map(|index| found(index * 8192, 0, 4096, 0)).collect();
    assert_eq!(join(u64::MAX, &many[..3]).unwrap().len(), 3);
    assert!(matches!(join(u64::MAX, &many), Err(ExtentsError::TooMany { max: 3 })));
}

proptest! {
    /// Every offset is where a model says that has an entry a block.
    #[test]
    fn offsets_are_located_as_in_a_model(
        blocks in prop::collection::vec(prop::option::of(0u64..64), 1..40),
        cut in 0u64..512,
    ) {
        let len = blocks.len() as u64 * 512 - cut;
        let device = BlockDevice { partition_start: 0, ..device(0) };
        let mut joined = Joined::new(&device, (len, 512), usize::MAX);
        for (index, block) in blocks.iter().enumerate() {
            if let Some(place) = block {
                joined.push(&found(index as u64 * 512, place * 512, 512, 0)).unwrap();
            }
        }
        let extents = Extents {
            inode_id: 1, generation: None, len, block_len: 512, device: device.clone(), can_be_remapped: false, list: joined.list,
        };
        let mut offset = 0;
        while offset < len {
            let block = blocks[(offset / 512) as usize];
            let step = match (extents.locate(offset), block) {
                (Located::At { device_offset, len }, Some(place)) => {
                    prop_assert_eq!(device_offset, place * 512 + offset % 512);
                    len
                }
                (Located::Hole { len }, None) => len,
                (located, block) => return Err(TestCaseError::fail(format!("{located:?} for {block:?}"))),
            };
            prop_assert!(step > 0 && offset + step <= len);
            // Each step must hold for the whole of its length: look at a later offset within it too.
            offset += step.min(300);
        }
        prop_assert_eq!(extents.locate(len), Located::End);
        prop_assert_eq!(extents.locate(u64::MAX), Located::End);
    }
}
