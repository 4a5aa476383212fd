//! Plans there and back, and entries that are none.

use ob_core::Epoch;
use ob_split::wire::{Definitions, FromHost, HostMessage, MessageBuilder, kind};
use proptest::prelude::*;

use super::*;
use crate::wire::{Request, RequestMessage};

const HANDLE: Handle = Handle(0x0102_0304);
const SLOT: Slot = Slot(0x0506);

fn sequence(count: u64) -> Sequence {
    Sequence::new(Epoch::FIRST, count).unwrap()
}

fn all_definitions() -> Definitions {
    let mut known = Definitions::new();
    for definition in definitions().unwrap() {
        known.define(definition).unwrap();
    }
    known
}

/// Through a message of the ring and back.
fn across(posted: &PostedPlan, check: impl FnOnce(&PlanEntry<'_>)) {
    let known = all_definitions();
    let mut builder = MessageBuilder::default();
    builder.begin(kind::PLANS);
    assert!(builder.push_plan(&posted.entry()), "a message has room for any plan");
    let message = FromHost::decode(builder.finish(0, 0), &known).unwrap().message;
    let HostMessage::Plans(plans) = message else { panic!("{message:?}") };
    assert_eq!(plans.len(), 1);
    check(&plans.iter().next().unwrap().0);
}

#[test]
fn definitions_are_plans_with_the_payload_in_a_register_of_their_own() {
    assert_eq!(scratch().number(), 2);
    assert_eq!(all_definitions().get(id::TAKE).unwrap().id(), id::TAKE);
    assert!(definitions().unwrap().is_sorted_by_key(Definition::id));
}

#[test]
fn a_write_is_sixteen_bytes() {
    let posted = PostedPlan::write(HANDLE, SLOT, 0, sequence(7), None).unwrap();
    assert_eq!(posted.plan, id::WRITE_RAW);
    assert_eq!(posted.arguments, [7, 0, 0, 0, 0x10, 0, 0, 0]);
    across(&posted, |entry| {
        let write = VolumePlan::Write { slot: SLOT, effort: 0, sequence: sequence(7), part: None };
        assert_eq!(VolumePlan::decode(entry), Ok(write));
        assert_eq!((entry.handle, entry.arguments.len()), (HANDLE, 8));
    });
    let part = Some(Part { first: 3, blocks: 0x0102 });
    let posted = PostedPlan::write(HANDLE, SLOT, 4, sequence(7), part).unwrap();
    assert_eq!((posted.plan, posted.argument), (id::WRITE_PART, 4));
    assert_eq!(posted.arguments[8..], [3, 0, 0, 0, 2, 1, 0, 0]);
}

#[test]
fn runs_are_read_one_behind_the_other() {
    let record =
        Run::Record { slot: Slot(9), place: Units(64), units: Units(65), lba: Lba(0x0A0B), blocks: 1 };
    let runs = [Run::Zeros { blocks: 2 }, record];
    let posted = PostedPlan::read(HANDLE, Some(2), None, &runs).unwrap();
    let bytes =
        [0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 65, 0, 1, 0, 0, 0, 64, 0, 0, 0, 11, 10, 0, 0];
    assert_eq!((posted.plan, posted.argument, posted.slot), (id::READ, 2, Slot(3)));
    assert_eq!(posted.arguments, bytes);
    across(&posted, |entry| {
        let Ok(VolumePlan::Read { member: Some(2), first: None, runs: read }) = VolumePlan::decode(entry)
        else {
            panic!("{entry:?}");
        };
        assert_eq!(read.iter().collect::<Vec<_>>(), runs);
        assert_eq!((read.len(), read.blocks()), (2, 3));
    });
}

#[test]
fn as_many_runs_and_ranges_as_the_document_says_have_room() {
    let runs = vec![Run::Zeros { blocks: 1 }; RUNS_MAX];
    across(&PostedPlan::read(HANDLE, None, Some(5), &runs).unwrap(), |entry| {
        let plan = VolumePlan::decode(entry);
        assert!(matches!(plan, Ok(VolumePlan::Read { first: Some(5), .. })), "{plan:?}");
    });
    assert!(PostedPlan::read(HANDLE, None, None, &vec![runs[0]; RUNS_MAX + 1]).is_err());
    let ranges = vec![TrimRange { lba: Lba(1), blocks: 1 }; RANGES_MAX];
    across(&PostedPlan::trim(HANDLE, SLOT, sequence(1), true, &ranges).unwrap(), |entry| {
        let Ok(VolumePlan::Trim { is_part: true, ranges: trimmed, .. }) = VolumePlan::decode(entry) else {
            panic!("{entry:?}");
        };
        assert_eq!(trimmed.iter().collect::<Vec<_>>(), ranges);
    });
    assert!(PostedPlan::trim(HANDLE, SLOT, sequence(1), true, &vec![ranges[0]; RANGES_MAX + 1]).is_err());
}

#[test]
fn answers_have_their_status_where_others_have_a_chunk() {
    for status in [Status::SUCCESS, Status::LBA_OUT_OF_RANGE.with_do_not_retry(), Status::NAMESPACE_NOT_READY]
    {
        for has_bytes in [false, true] {
            across(&PostedPlan::answer(HANDLE, status, has_bytes), |entry| {
                assert_eq!(VolumePlan::decode(entry), Ok(VolumePlan::Answer { status, has_bytes }));
            });
        }
    }
}

#[test]
fn calls_bring_their_payload_along() {
    let payload = [7; 36];
    let request = Request::Hello { port: 0, tier: ob_core::TierId(1), session: 1 };
    let header = RequestMessage { tag: 1, payload_len: 36, request }.encode().unwrap();
    let handle = Handle(HOST_HANDLES);
    let posted = PostedPlan::call(handle, ChannelId(3), &header, &payload).unwrap();
    assert_eq!(posted.argument, 9);
    across(&posted, |entry| {
        let call = VolumePlan::Call { channel: ChannelId(3), header: &header, payload: &payload };
        assert_eq!(VolumePlan::decode(entry), Ok(call));
    });
    let refused =
        |channel, header, payload: &[u8]| PostedPlan::call(handle, channel, header, payload).is_err();
    assert!(refused(ChannelId(0), &header, &payload));
    assert!(refused(ChannelId(3), &header, &payload[..32]), "less than the header says");
    assert!(refused(ChannelId(3), &header, &payload[..35]), "no whole words");
    assert!(refused(ChannelId(3), &[0; HEADER_LEN], &[]));
}

#[test]
fn what_cannot_be_is_not_posted() {
    let write = |effort, sequence, part| PostedPlan::write(HANDLE, SLOT, effort, sequence, part);
    assert!(write(EFFORT_MAX, sequence(0), None).is_ok());
    assert!(write(EFFORT_MAX + 1, sequence(0), None).is_err());
    assert!(write(0, Sequence(5), None).is_err(), "of no epoch");
    let part = |first, blocks| write(0, sequence(1), Some(Part { first, blocks }));
    assert!(part(0, COMMAND_BLOCKS_MAX).is_ok());
    assert!(part(0, 0).is_err());
    assert!(part(1, COMMAND_BLOCKS_MAX).is_err());
    assert!(part(u32::MAX, 1).is_err());
    let read = |member, first, runs: &[Run]| PostedPlan::read(HANDLE, member, first, runs);
    assert!(read(Some(3), None, &[Run::Zeros { blocks: 1 }]).is_ok());
    assert!(read(Some(4), None, &[Run::Zeros { blocks: 1 }]).is_err());
    assert!(read(None, None, &[]).is_err());
    assert!(read(None, None, &[Run::Zeros { blocks: 0 }]).is_err());
    assert!(read(None, Some(1), &[Run::Zeros { blocks: COMMAND_BLOCKS_MAX }]).is_err());
    let record = |place, units, lba, blocks| {
        read(
            None,
            None,
            &[Run::Record { slot: SLOT, place: Units(place), units: Units(units), lba: Lba(lba), blocks }],
        )
    };
    assert!(record(64, 1025, 0, 16).is_ok());
    for (place, units, lba, blocks) in [
        (63, 2, 0, 1),
        (64, 1, 0, 1),
        (64, 1026, 0, 1),
        (1 << 26, 2, 0, 1),
        (64, 1 << 16, 0, 1),
        (64, 2, u32::MAX, 1),
    ] {
        assert!(record(place, units, lba, blocks).is_err(), "{place} {units} {lba} {blocks}");
    }
    let trim = |lba, blocks| {
        PostedPlan::trim(HANDLE, SLOT, sequence(1), false, &[TrimRange { lba: Lba(lba), blocks }])
    };
    assert!(trim(0, 1).is_ok());
    assert!(trim(0, 0).is_err());
    assert!(trim(u32::MAX, 1).is_err());
    assert!(PostedPlan::trim(HANDLE, SLOT, sequence(1), false, &[]).is_err());
    assert!(PostedPlan::take(HANDLE, SLOT, 0, 4096).is_ok());
    assert!(PostedPlan::take(HANDLE, SLOT, 0, 0).is_err());
    assert!(PostedPlan::take(HANDLE, SLOT, u32::MAX, 1).is_err());
}

const CHUNK: ob_core::ChunkName = ob_core::ChunkName {
    volume: ob_core::VolumeId(1),
    segment: ob_core::SegmentId(2),
    chunk: ob_core::ChunkId(3),
};

#[test]
fn looks_have_room_for_all_that_may_come() {
    let (chunk, epoch, from, to) = (CHUNK, Epoch::FIRST, Units(64), Units(1 << 20));
    let look = |request, room| Look { channel: ChannelId(3), request, at: 65536, room };
    let list = |most| Request::List { chunk, epoch, from, to, most };
    let read = |len| Request::Read { chunk, epoch, offset: from, len };
    let good = look(list(LOOK_ENTRIES_MAX), LOOK_BYTES_MAX);
    let posted = PostedPlan::look(HANDLE, &good).unwrap();
    assert_eq!((posted.plan, posted.slot, posted.arguments.len()), (id::LOOK, Slot(3), 80));
    across(&posted, |entry| assert_eq!(VolumePlan::decode(entry), Ok(VolumePlan::Look(good))));
    let is_posted = |look: Look| PostedPlan::look(HANDLE, &look).is_ok();
    assert!(is_posted(look(read(1025 * 64), 1)));
    assert!(!is_posted(look(read(1026 * 64), LOOK_BYTES_MAX)), "more than a record");
    assert!(!is_posted(look(read(128), 0)) && !is_posted(look(read(128), LOOK_BYTES_MAX + 1)));
    assert!(!is_posted(look(list(LOOK_ENTRIES_MAX + 1), LOOK_BYTES_MAX)));
    assert!(is_posted(look(list(1), 255 * 32 + 4)) && !is_posted(look(list(1), 255 * 32 + 3)), "ranges");
    let chunks = Request::Chunks { after: CHUNK, is_of_segment: true, most: 2 };
    assert!(is_posted(look(chunks, 68)) && !is_posted(look(chunks, 67)));
    assert!(!is_posted(look(Request::Ping, 64)), "it brings nothing");
    assert!(!is_posted(Look { channel: ChannelId(0), ..good }));
    assert!(!is_posted(Look { at: u64::MAX - 5, ..good }));
}

#[test]
fn records_of_the_index_are_whole_pages_or_parts_of_a_root() {
    let page = ob_format::volume::PAGE_LEN as u32;
    let part = IndexPart::Page(7);
    let good = Index { slot: SLOT, effort: 2, sequence: sequence(9), at: 1 << 16, length: page, part };
    let posted = PostedPlan::index(HANDLE, &good).unwrap();
    assert_eq!((posted.plan, posted.argument, posted.arguments.len()), (id::INDEX, 2, 32));
    across(&posted, |entry| assert_eq!(VolumePlan::decode(entry), Ok(VolumePlan::Index(good))));
    let is_posted = |index: Index| PostedPlan::index(HANDLE, &index).is_ok();
    let root = |length| Index { part: IndexPart::Root, length, ..good };
    assert!(is_posted(root(1)) && is_posted(root(65536)) && !is_posted(root(65537)) && !is_posted(root(0)));
    assert!(!is_posted(Index { length: page - 1, ..good }));
    assert!(!is_posted(Index { part: IndexPart::Page(u32::MAX), ..good }));
    assert!(!is_posted(Index { effort: EFFORT_MAX + 1, ..good }));
    assert!(!is_posted(Index { sequence: Sequence(5), ..good }));
    assert!(!is_posted(Index { at: u64::MAX, ..good }));
}

#[test]
fn moves_say_where_from_and_how_much() {
    let (from, to, block_len) = (Slot(4), SLOT, BlockLen::Large);
    let (place, units, lba, blocks) = (Units(64), Units(1025), Lba(3), 16);
    let whole = Move { from, to, place, units, lba, blocks, block_len, sequence: sequence(9), cut: None };
    let cut = Move { blocks: 2, cut: Some(1), ..whole };
    for (good, plan, argument) in [(whole, id::MOVE, 0), (cut, id::MOVE_CUT, 1)] {
        let posted = PostedPlan::move_record(HANDLE, &good).unwrap();
        assert_eq!((posted.plan, posted.argument, posted.arguments.len()), (plan, argument, 32));
        across(&posted, |entry| assert_eq!(VolumePlan::decode(entry), Ok(VolumePlan::Move(good))));
    }
    let is_posted = |moved: Move| PostedPlan::move_record(HANDLE, &moved).is_ok();
    assert!(!is_posted(Move { blocks: 17, ..whole }) && !is_posted(Move { blocks: 0, ..whole }));
    assert!(is_posted(Move { blocks: 128, block_len: BlockLen::Small, ..whole }));
    assert!(
        !is_posted(Move { units: Units(1), ..whole }) && !is_posted(Move { units: Units(1026), ..whole })
    );
    assert!(!is_posted(Move { units: Units(1 << 16), ..whole }));
    assert!(!is_posted(Move { place: Units(63), ..whole }));
    assert!(!is_posted(Move { place: CHUNK_UNITS_MAX, ..whole }));
    assert!(!is_posted(Move { lba: Lba(u32::MAX), ..whole }));
    assert!(!is_posted(Move { from: to, ..whole }), "to where it comes from");
    assert!(!is_posted(Move { sequence: Sequence(5), ..whole }));
    assert!(!is_posted(Move { cut: Some(EFFORT_MAX + 1), ..whole }));
}

#[test]
fn what_the_host_gives_lies_in_its_area() {
    let piece = GivenPiece { at: TAKE_BASE, stored: 100, is_lz4: true, is_back: false };
    let part = Some(Part { first: 3, blocks: 40 });
    for (part, is_back) in [(None, false), (part, false), (part, true)] {
        let piece = GivenPiece { is_back, ..piece };
        let posted = PostedPlan::given(HANDLE, SLOT, sequence(9), part, &[piece; 3]).unwrap();
        assert_eq!(posted.arguments[28], 1 + 2 * u8::from(is_back));
        across(&posted, |entry| {
            let Ok(VolumePlan::Given(given)) = VolumePlan::decode(entry) else { panic!("{entry:?}") };
            assert_eq!((given.slot, given.sequence, given.part, given.len()), (SLOT, sequence(9), part, 3));
            assert_eq!((given.piece(2), given.piece(3)), (Some(piece), None));
        });
    }
    let is_posted =
        |part, pieces: &[GivenPiece]| PostedPlan::given(HANDLE, SLOT, sequence(9), part, pieces).is_ok();
    assert!(
        is_posted(None, &[piece; GIVEN_MAX])
            && !is_posted(None, &[piece; GIVEN_MAX + 1])
            && !is_posted(None, &[])
    );
    assert!(!is_posted(None, &[GivenPiece { stored: 0, ..piece }]));
    assert!(!is_posted(None, &[GivenPiece { stored: PIECE_LEN + 1, ..piece }]));
    assert!(!is_posted(None, &[GivenPiece { at: u64::MAX, ..piece }]));
    assert!(!is_posted(Some(Part { first: 1, blocks: 0 }), &[piece]));
    assert!(!is_posted(Some(Part { first: u32::MAX, blocks: 1 }), &[piece]));
}

#[test]
fn what_the_card_compresses_for_the_host_is_a_piece_at_most() {
    let press = CardPress { effort: 2, at: TAKE_BASE, into: TAKE_BASE + TAKE_SLOT_LEN, length: PIECE_LEN };
    let posted = PostedPlan::press(HANDLE, &press).unwrap();
    assert_eq!((posted.argument, posted.arguments.len()), (2, 24));
    across(&posted, |entry| assert_eq!(VolumePlan::decode(entry), Ok(VolumePlan::Press(press))));
    let is_posted = |press| PostedPlan::press(HANDLE, &press).is_ok();
    assert!(!is_posted(CardPress { effort: 0, ..press }), "what stays as it is needs no card");
    assert!(!is_posted(CardPress { effort: EFFORT_MAX + 1, ..press }));
    assert!(
        !is_posted(CardPress { length: 0, ..press })
            && !is_posted(CardPress { length: PIECE_LEN + 1, ..press })
    );
    assert!(
        !is_posted(CardPress { at: u64::MAX, ..press }) && !is_posted(CardPress { into: u64::MAX, ..press })
    );
}

#[test]
fn writes_are_cut_into_full_pieces() {
    assert_eq!(piece_blocks(BlockLen::Large), 16);
    assert_eq!([1, 16, 17, 256].map(|blocks| pieces(blocks, BlockLen::Large)), [1, 1, 2, 16]);
    assert_eq!(pieces(2048, BlockLen::Small), 16);
}

proptest! {
    /// Whatever an entry has is refused, or is what would be posted for it.
    #[test]
    fn entries_have_one_meaning(
        plan in 0u8..23,
        argument in prop_oneof![0u8..6, any::<u8>()],
        slot in prop_oneof![0u16..6, any::<u16>()],
        arguments in prop::collection::vec(prop_oneof![Just(0u8), 0u8..3, Just(64), any::<u8>()], 0..128),
    ) {
        let entry = PlanEntry { plan: PlanId(plan), argument, slot: Slot(slot), handle: HANDLE, arguments: &arguments };
        let Ok(decoded) = VolumePlan::decode(&entry) else { return Ok(()) };
        let posted = match decoded {
            VolumePlan::Write { slot, effort, sequence, part } => PostedPlan::write(HANDLE, slot, effort, sequence, part),
            VolumePlan::Read { member, first, runs } => {
                PostedPlan::read(HANDLE, member, first, &runs.iter().collect::<Vec<_>>())
            }
            VolumePlan::Trim { slot, sequence, is_part, ranges } => {
                PostedPlan::trim(HANDLE, slot, sequence, is_part, &ranges.iter().collect::<Vec<_>>())
            }
            VolumePlan::Answer { status, has_bytes } => Ok(PostedPlan::answer(HANDLE, status, has_bytes)),
            VolumePlan::Call { channel, header, payload } => PostedPlan::call(HANDLE, channel, header, payload),
            VolumePlan::Take { slot, offset, length } => PostedPlan::take(HANDLE, slot, offset, length),
            VolumePlan::Press(press) => PostedPlan::press(HANDLE, &press),
            VolumePlan::Copy(copy) => PostedPlan::copy(HANDLE, &copy),
            VolumePlan::Look(look) => PostedPlan::look(HANDLE, &look),
            VolumePlan::Index(index) => PostedPlan::index(HANDLE, &index),
            VolumePlan::Move(moved) => PostedPlan::move_record(HANDLE, &moved),
            VolumePlan::Given(given) => {
                let pieces: Vec<GivenPiece> = (0..given.len()).map(|at| given.piece(at).unwrap()).collect();
                PostedPlan::given(HANDLE, given.slot, given.sequence, given.part, &pieces)
            }
        };
        let posted = posted.unwrap();
        prop_assert_eq!(posted.entry(), entry);
    }

    #[test]
    fn reads_come_back(
        first in prop::option::of(0u32..1000),
        member in prop::option::of(0u8..4),
        runs in prop::collection::vec((any::<bool>(), any::<u16>(), 64u32..1 << 20, 2u32..=1025, 0u32..1 << 30, 1u32..100), 1..20),
    ) {
        let runs: Vec<Run> = runs
            .into_iter()
            .map(|(is_zero, slot, place, units, lba, blocks)| {
                let record =
                    Run::Record { slot: Slot(slot), place: Units(place), units: Units(units), lba: Lba(lba), blocks };
                if is_zero { Run::Zeros { blocks } } else { record }
            })
            .collect();
        let posted = PostedPlan::read(HANDLE, member, first, &runs).unwrap();
        across(&posted, |entry| {
            let Ok(VolumePlan::Read { member: of, first: from, runs: read }) = VolumePlan::decode(entry) else {
                panic!("{entry:?}");
            };
            assert_eq!((of, from, read.iter().collect::<Vec<_>>()), (member, first, runs));
        });
    }
}
