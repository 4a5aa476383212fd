#![allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.

use std::collections::HashMap;

use ob_core::{ChunkId, ChunkName, Epoch, SegmentId, VolumeId};
use ob_memory::{Shared, Slice};
use proptest::prelude::*;

use super::config::PortConfig;
use super::records::{BLOCK_LEN, RecordMemory};
use super::retained::{Before, Kept, Label};

fn memory(records: u32) -> RecordMemory {
    RecordMemory::new(&PortConfig { records, ..PortConfig::default() })
}

fn label(chunk: u32, place: u32) -> Label {
    let chunk = ChunkName { volume: VolumeId(1), segment: SegmentId(0), chunk: ChunkId(chunk) };
    Label { chunk, epoch: Epoch::new(1), place }
}

fn kept(label: Label, payload: Shared) -> Kept {
    Kept { label: Some(label), before: Before::of(&label.place.to_le_bytes()).unwrap(), payload }
}

fn filled(mut slice: Slice, mark: u8) -> Shared {
    slice.fill(mark);
    slice.share()
}

#[test]
fn records_of_unknown_lengths_lie_one_behind_the_other() {
    let mut memory = memory(2);
    let mut records = Vec::new();
    for len in [1000, 64, 3000] {
        let tail = memory.lend(64 << 10).unwrap();
        let record = memory.give_back(tail, Some(len)).unwrap();
        assert_eq!(record.len(), len);
        records.push(record.share());
    }
    let starts: Vec<usize> = records.iter().map(Shared::start).collect();
    assert_eq!(starts, [0, 1024, 1088], "and at whole units");
    // What did not shrink has taken nothing.
    let tail = memory.lend(64 << 10).unwrap();
    assert!(memory.give_back(tail, None).is_none());
    assert_eq!(memory.exact(10).unwrap().start(), 1088 + 3008);
    assert!(memory.exact(BLOCK_LEN + 1).is_none() && memory.lend(BLOCK_LEN + 1).is_none());
}

#[test]
fn so_many_blocks_are_written_to_and_no_more() {
    let mut memory = memory(16);
    let lent: Vec<Slice> = std::iter::from_fn(|| memory.lend(1)).collect();
    assert_eq!(lent.len(), 4);
    assert!(memory.exact(1).is_none() && !memory.make_room(1));
    for tail in lent {
        assert!(memory.give_back(tail, Some(1)).is_some());
    }
    assert!(memory.make_room(1) && memory.exact(1).is_some());
    // None is as long any more, but there are others.
    assert!(memory.exact(BLOCK_LEN).is_some());
    assert_eq!(memory.counts().blocks, 3, "what nobody has is free, but for the other tails");
}

#[test]
fn what_is_retained_goes_when_others_need_its_memory_the_oldest_first() {
    let mut memory = memory(4);
    for place in 0..4 {
        let payload = filled(memory.exact(BLOCK_LEN / 2).unwrap(), place as u8);
        memory.retain(kept(label(1, place), payload));
    }
    assert_eq!((memory.counts().records, memory.counts().blocks), (4, 2));
    let reader = memory.find(label(1, 0)).unwrap().payload.clone();
    // All four blocks are wanted; one has a reader, who is not disturbed.
    let wanted: Vec<Slice> = (0..3).map(|_| memory.exact(BLOCK_LEN).unwrap()).collect();
    assert!(memory.exact(BLOCK_LEN).is_none());
    assert_eq!(memory.counts().records, 0);
    assert!((0..4).all(|place| memory.find(label(1, place)).is_none()));
    assert!(reader.iter().all(|byte| *byte == 0));
    drop(reader);
    assert!(memory.exact(BLOCK_LEN).is_some());
    drop(wanted);
}

#[test]
fn a_quarter_is_kept_free_of_what_is_retained() {
    let mut memory = memory(8);
    for place in 0..100 {
        let payload = filled(memory.exact(BLOCK_LEN / 4).unwrap(), place as u8);
        memory.retain(kept(label(1, place), payload));
        assert!(memory.counts().blocks <= 6);
    }
    let counts = memory.counts();
    assert!(counts.records > 18 && counts.bytes == counts.records * BLOCK_LEN as u64 / 4, "{counts:?}");
    let found: Vec<bool> = (0..100).map(|place| memory.find(label(1, place)).is_some()).collect();
    let first = found.iter().position(|found| *found).unwrap();
    assert!(found[first..].iter().all(|found| *found), "those that came last: {first}");
    memory.clear();
    assert_eq!((memory.counts().records, memory.counts().bytes, memory.counts().blocks), (0, 0, 0));
}

#[test]
fn another_chunk_epoch_or_place_is_another_record() {
    let mut memory = memory(4);
    let payload = filled(memory.exact(100).unwrap(), 7);
    memory.retain(kept(label(1, 64), payload));
    let others = [
        label(2, 64),
        label(1, 65),
        Label { epoch: Epoch::new(2), ..label(1, 64) },
        Label { epoch: None, ..label(1, 64) },
        Label { chunk: ChunkName { volume: VolumeId(2), ..label(1, 64).chunk }, ..label(1, 64) },
        Label { chunk: ChunkName { segment: SegmentId(1), ..label(1, 64).chunk }, ..label(1, 64) },
    ];
    assert!(others.into_iter().all(|other| memory.find(other).is_none()));
    assert!(memory.find(label(1, 64)).is_some());
    memory.forget(label(1, 64));
    assert!(memory.find(label(1, 64)).is_none(), "it was not what it should be");
    let counts = memory.counts();
    assert_eq!((counts.hits, counts.misses), (0, 8));
}

#[test]
fn what_is_somebody_elses_is_copied_if_it_is_short() {
    let (mut one, mut other) = (memory(4), memory(4));
    let own = filled(one.exact(100 << 10).unwrap(), 1);
    let start = own.start();
    assert_eq!(one.own_or_copy(own, false).unwrap().start(), start, "its own is not copied");
    let short = filled(other.exact(16 << 10).unwrap(), 2);
    assert!(one.own_or_copy(short.clone(), false).is_none());
    let copy = one.own_or_copy(short.clone(), true).unwrap();
    assert!(copy[..] == short[..] && copy.arena() != short.arena());
    assert!(one.own_or_copy(filled(other.exact((16 << 10) + 1).unwrap(), 3), true).is_none());
}

#[test]
fn without_retaining_there_is_memory_for_records() {
    let mut memory = RecordMemory::new(&PortConfig { records: 0, retains: false, ..PortConfig::default() });
    assert!(!memory.retains());
    let payload = filled(memory.exact(100).unwrap(), 1);
    memory.retain(kept(label(1, 1), payload));
    assert!(memory.find(label(1, 1)).is_none() && memory.exact(BLOCK_LEN).is_some());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever is retained, wanted and let go: what is found is what was retained under that name last, and all memory comes back.
    #[test]
    fn what_is_found_is_what_was_retained(
        steps in prop::collection::vec((0u8..8, 1u32..4, 0u32..400, 1usize..40_000), 1..400)
    ) {
        let mut memory = memory(3);
        let mut all: HashMap<(u32, u32), (u8, usize)> = HashMap::new();
        let mut held: Vec<(u8, Shared)> = Vec::new();
        let mut hits = 0;
        for (mark, (action, chunk, place, len)) in steps.into_iter().enumerate() {
            let mark = mark as u8;
            match action {
                0..=3 if !all.contains_key(&(chunk, place)) => {
                    let Some(slice) = memory.exact(len) else {
                        prop_assert!(!held.is_empty(), "somebody has it");
                        continue;
                    };
                    memory.retain(kept(label(chunk, place), filled(slice, mark)));
                    all.insert((chunk, place), (mark, len));
                }
                4 => held.extend(memory.exact(len).map(|slice| (mark, filled(slice, mark)))),
                5 if !held.is_empty() => drop(held.swap_remove(len % held.len())),
                _ => {
                    let expected = all.get(&(chunk, place)).copied();
                    if let Some(found) = memory.find(label(chunk, place)) {
                        prop_assert_eq!(found.before.as_slice(), &place.to_le_bytes()[..]);
                        let (mark, len) = expected.unwrap();
                        prop_assert_eq!(found.payload.len(), len);
                        prop_assert!(found.payload.iter().all(|byte| *byte == mark));
                        hits += 1;
                        if place % 3 == 0 {
                            held.push((mark, found.payload.clone()));
                        }
                    }
                }
            }
            prop_assert!(held.iter().all(|(mark, bytes)| bytes.iter().all(|byte| byte == mark)));
        }
        prop_assert_eq!(memory.counts().hits, hits);
        held.clear();
        memory.clear();
        prop_assert_eq!(memory.counts().blocks, 0);
    }
}
