//! What is sent is what chunk servers take, and of what they answer only what was asked for is believed.

#![allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.

use ob_core::{BlockLen, ChunkId, ChunkName, Epoch, SegmentId, VolumeId};
use ob_format::volume::{Record, TrimRange};
use ob_split::card::{BEFORE_MAX, Message};
use ob_split::wire::{HEADER_LEN, Handle, MEMBERS_MAX};
use ob_wire_nvme::command::{DataPointer, IoOpcode};
use ob_wire_nvme::io::BlockCommand;
use ob_wire_nvme::{CommandId, NamespaceId};
use zerocopy::IntoBytes;

use super::*;
use crate::plans::{PostedPlan, Run};
use crate::tier::SEGMENT_BLOCKS;
use crate::wire::{Refusal, check_records};

const BLOCK: u32 = 4096;
const SLOT: Slot = Slot(7);
const HANDLE: Handle = Handle(3);
const NAME: ChunkName = ChunkName { volume: VolumeId(1), segment: SegmentId(0), chunk: ChunkId(2) };

/// A command of a message.
struct Command {
    header: [u8; HEADER_LEN],
    payload_len: u32,
    answer_len: u32,
}

impl Command {
    fn new(opcode: IoOpcode, start: u64, blocks: u32) -> Self {
        let command = BlockCommand::new(NamespaceId(1), start, blocks);
        let entry = command.encode(opcode, CommandId(9), DataPointer::None);
        let mut header = [0; HEADER_LEN];
        header.copy_from_slice(entry.as_bytes());
        let len = blocks * BLOCK;
        let (payload_len, answer_len) = if opcode == IoOpcode::Write { (len, 0) } else { (0, len) };
        Self { header, payload_len, answer_len }
    }

    fn posted<'a>(&'a self, plan: &'a PostedPlan) -> Posted<'a> {
        let message =
            Message { header: &self.header, payload_len: self.payload_len, answer_len: self.answer_len };
        Posted {
            plan: plan.plan,
            argument: plan.argument,
            slot: plan.slot,
            handle: plan.handle,
            arguments: &plan.arguments,
            message: Some(message),
            notes: &[],
        }
    }
}

/// What a dialect says of a plan, and notes of it.
fn pieces(dialect: &mut VolumeDialect, posted: &Posted<'_>) -> Result<Pieces, Reject> {
    dialect.pieces(posted, &mut Vec::new())
}

fn set(what: SetWhat) -> Set {
    let mut channels = [ChannelId(0); MEMBERS_MAX];
    channels[..3].copy_from_slice(&[ChannelId(1), ChannelId(2), ChannelId(3)]);
    let (offset, length) = (Units(64), Units(1 << 20));
    Set { slot: SLOT, what, epoch: Epoch::new(5), chunk: NAME, channels, members: 3, offset, length }
}

fn dialect() -> VolumeDialect {
    let mut dialect = VolumeDialect::new(Patience::default());
    dialect.set(&set(SetWhat::Append)).unwrap();
    dialect
}

fn sequence(count: u64) -> Sequence {
    Sequence::new(Epoch::new(5).unwrap(), count).unwrap()
}

fn bytes_of(blocks: u32, seed: u8) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn found(payload: &[u8]) -> Found {
    Found { len: payload.len() as u32, encoding: Encoding::Plain, crc: Some(crc32c::crc32c(payload)) }
}

/// What goes to a chunk server for a piece: the request and all that follows it.
fn sent(
    dialect: &mut VolumeDialect,
    posted: &Posted<'_>,
    piece: u16,
    payload: &[u8],
) -> (RequestMessage, Vec<u8>) {
    let mut before = vec![0; BEFORE_MAX];
    let place = dialect.place(Instant::default(), posted, piece, &found(payload), &mut before).unwrap();
    assert_eq!(place.channels.as_slice(), [ChannelId(1), ChannelId(2), ChannelId(3)]);
    let mut bytes = before[..usize::from(place.before_len)].to_vec();
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + usize::from(place.zeros), 0);
    let mut header = dialect.header(posted, piece, ChannelId(1));
    (header.tag, header.payload_len) = (77, bytes.len() as u32);
    (RequestMessage::decode(&header.encode()).unwrap(), bytes)
}

fn reply(answer: Answer, payload_len: u32) -> Header {
    let bytes = ReplyMessage { tag: 77, payload_len, answer }.encode().unwrap();
    Header::decode(&bytes, MAGIC).unwrap()
}

fn durable(units: u32) -> Header {
    reply(Answer::Good(Reply::Append { durable: Units(units), free: 1 << 30 }), 0)
}

fn outcome(status: CompletionStatus) -> Outcome {
    Outcome { status, step: 0, bad_members: 0, found: Found::default() }
}

#[test]
fn a_write_becomes_records_that_a_chunk_server_takes() {
    let mut dialect = dialect();
    let command = Command::new(IoOpcode::Write, 100, 20);
    let plan = PostedPlan::write(HANDLE, SLOT, 0, sequence(8), None).unwrap();
    let posted = command.posted(&plan);
    assert_eq!(pieces(&mut dialect, &posted), Ok(Pieces { count: 2, told: Told::Each }));
    assert_eq!([dialect.piece(&posted, 0), dialect.piece(&posted, 1)], [0..65536, 65536..20 * BLOCK]);
    let payload = bytes_of(20, 1);
    let mut offset = Units(64);
    for (piece, range) in [(0, 0..65536), (1, 65536..payload.len())] {
        let (request, bytes) = sent(&mut dialect, &posted, piece, &payload[range.clone()]);
        let epoch = Epoch::new(5).unwrap();
        assert_eq!(request.request, Request::Append { chunk: NAME, epoch, offset });
        let end = check_records(NAME, offset, &bytes).unwrap();
        let record = Record::decode(&bytes).unwrap();
        assert_eq!(record.payload, &payload[range]);
        let header = record.header;
        assert_eq!(
            (header.lba, header.sequence),
            (Lba(100 + 16 * u32::from(piece)), sequence(8 + u64::from(piece)))
        );
        assert_eq!(header.behind, Some(0), "all members have what is before it");
        for member in 1..=3 {
            let judged = dialect.judge(&posted, piece, ChannelId(member), &durable(end.0));
            assert_eq!(judged, Judgement::Good);
        }
        let words = dialect.words(&posted, piece, &outcome(CompletionStatus::Good));
        assert_eq!((words.offset, u32::from(words.units)), (offset.0, end.0 - offset.0));
        assert_eq!(words.word, header.payload_crc);
        offset = end;
    }
}

#[test]
fn a_part_of_a_write_has_its_own_blocks() {
    let mut dialect = dialect();
    set_to_second_segment(&mut dialect);
    let command = Command::new(IoOpcode::Write, SEGMENT_BLOCKS + 100, 20);
    let part = Part { first: 3, blocks: 2 };
    let plan = PostedPlan::write(HANDLE, SLOT, 0, sequence(1), Some(part)).unwrap();
    let posted = command.posted(&plan);
    assert_eq!(pieces(&mut dialect, &posted).unwrap().count, 1);
    assert_eq!(dialect.piece(&posted, 0), 3 * BLOCK..5 * BLOCK);
    let (_, bytes) = sent(&mut dialect, &posted, 0, &bytes_of(2, 1));
    let header = Record::decode(&bytes).unwrap().header;
    assert_eq!((header.lba, header.blocks), (Lba(103), 2), "counted within the segment");
}

fn set_to_second_segment(dialect: &mut VolumeDialect) {
    let chunk = ChunkName { segment: SegmentId(1), ..NAME };
    dialect.set(&Set { chunk, ..set(SetWhat::Append) }).unwrap();
}

/// Nobody says how many blocks segments have: it follows from the number of one that is not the first.
#[test]
fn a_block_is_counted_within_its_segment_however_long_those_are() {
    let blocks = |start: u64, count: u32| Blocks { start, count, block_len: BlockLen::Small, from: 0 };
    for shift in 10..32 {
        let of_segment = 1u64 << shift;
        for number in [0, 1, 2, 3, 5, 1000, u32::MAX] {
            for lba in [0, 1, of_segment / 2 + 7, of_segment - 20] {
                let start = u64::from(number) * of_segment + lba;
                let found = lba_of(&blocks(start, 20), SegmentId(number));
                assert_eq!(found, Ok(Lba(lba as u32)), "{number}, {of_segment}");
            }
            let behind = u64::from(number) * of_segment + of_segment - 19;
            // Of the first one nothing says where it ends; its host knows.
            assert_eq!(lba_of(&blocks(behind, 20), SegmentId(number)).is_ok(), number == 0);
        }
    }
    // No power of two puts it there.
    assert_eq!(lba_of(&blocks(3 << 10, 1), SegmentId(2)), Err(HOSTILE));
    assert_eq!(lba_of(&blocks(4, 1), SegmentId(5)), Err(HOSTILE));
    assert_eq!(lba_of(&blocks(u64::from(u32::MAX) - 3, 4), SegmentId(0)), Err(HOSTILE));
    assert_eq!(lba_of(&blocks(u64::MAX - 3, 4), SegmentId(0)), Err(HOSTILE));
}

#[test]
fn plans_that_cannot_be_are_hostile() {
    let mut dialect = dialect();
    let write = Command::new(IoOpcode::Write, 0, 4);
    let beyond = PostedPlan::write(HANDLE, SLOT, 0, sequence(1), Some(Part { first: 3, blocks: 2 })).unwrap();
    assert_eq!(pieces(&mut dialect, &write.posted(&beyond)), Err(HOSTILE));
    // Blocks of a length that there is not.
    let odd = Command { payload_len: 4 * 1000, ..Command::new(IoOpcode::Write, 0, 4) };
    let plan = PostedPlan::write(HANDLE, SLOT, 0, sequence(1), None).unwrap();
    assert_eq!(pieces(&mut dialect, &odd.posted(&plan)), Err(HOSTILE));
    // Beyond the segment: such a command is cut.
    let across = Command::new(IoOpcode::Write, 2 * SEGMENT_BLOCKS - 2, 4);
    set_to_second_segment(&mut dialect);
    assert_eq!(pieces(&mut dialect, &across.posted(&plan)), Err(HOSTILE));
    dialect.set(&set(SetWhat::Append)).unwrap();
    // More sequences than an epoch has.
    let last = PostedPlan::write(HANDLE, SLOT, 0, sequence(Sequence::COUNT_END - 1), None).unwrap();
    let long = Command::new(IoOpcode::Write, 0, 20);
    assert_eq!(pieces(&mut dialect, &long.posted(&last)), Err(HOSTILE));
    // A read of fewer blocks than its answer has.
    let read = Command::new(IoOpcode::Read, 0, 4);
    let short = PostedPlan::read(HANDLE, None, None, &[Run::Zeros { blocks: 3 }]).unwrap();
    assert_eq!(pieces(&mut dialect, &read.posted(&short)), Err(HOSTILE));
    let part = PostedPlan::read(HANDLE, None, Some(1), &[Run::Zeros { blocks: 3 }]).unwrap();
    assert!(pieces(&mut dialect, &read.posted(&part)).is_ok());
    // Something without a message, and bytes that are no plan.
    let posted = Posted { message: None, ..read.posted(&part) };
    assert_eq!(pieces(&mut dialect, &posted), Err(HOSTILE));
    for plan in 0..=u8::MAX {
        let posted = Posted {
            plan: ob_split::wire::PlanId(plan),
            argument: 3,
            arguments: &[0xFF; 13],
            ..read.posted(&part)
        };
        assert!(pieces(&mut dialect, &posted).is_err());
        assert!(
            dialect.place(Instant::default(), &posted, 0, &Found::default(), &mut [0; BEFORE_MAX]).is_err()
        );
    }
}

#[test]
fn a_member_that_says_anything_but_durable_stops_the_chunk() {
    let refusal = |refusal| reply(Answer::Refused { kind: crate::wire::Kind::Append.code(), refusal }, 0);
    let replies = [
        (refusal(Refusal::Stale { known: 9 }), Judgement::Next),
        (refusal(Refusal::Full { free: 0 }), Judgement::Next),
        (durable(64), Judgement::Bad),
        (durable(1 << 19), Judgement::Bad),
        (reply(Answer::Good(Reply::Seal), 0), Judgement::Bad),
        (NOTHING, Judgement::Bad),
    ];
    for (reply, expected) in replies {
        let mut dialect = dialect();
        let command = Command::new(IoOpcode::Write, 0, 1);
        let plan = PostedPlan::write(HANDLE, SLOT, 0, sequence(1), None).unwrap();
        let posted = command.posted(&plan);
        sent(&mut dialect, &posted, 0, &bytes_of(1, 1));
        assert_eq!(dialect.judge(&posted, 0, ChannelId(2), &reply), expected, "{reply:?}");
        let broken = Broken { slot: SLOT, channel: ChannelId(2), offset: Units(64) };
        assert_eq!(dialect.next_broken(), Some(broken));
        assert_eq!(dialect.next_broken(), None, "it is told once");
        dialect.words(&posted, 0, &outcome(CompletionStatus::Broken));
        let mut before = [0; BEFORE_MAX];
        let placed = dialect.place(Instant::default(), &posted, 0, &found(&bytes_of(1, 1)), &mut before);
        assert_eq!(placed, Err(Reject::Ends(CompletionStatus::Broken)));
    }
}

#[test]
fn a_channel_that_is_gone_stops_the_chunks_that_are_written_over_it() {
    let mut dialect = dialect();
    let read_only = Set { slot: Slot(8), offset: Units(0), length: Units(0), ..set(SetWhat::ReadOnly) };
    dialect.set(&read_only).unwrap();
    dialect.channel_gone(ChannelId(4));
    assert_eq!(dialect.next_broken(), None);
    dialect.channel_gone(ChannelId(3));
    assert_eq!(dialect.next_broken().map(|broken| broken.slot), Some(SLOT));
    assert_eq!(dialect.next_broken(), None);
    dialect.set(&set(SetWhat::Append)).unwrap();
    dialect.ended();
    dialect.channel_gone(ChannelId(3));
    assert_eq!(dialect.next_broken(), None, "there is no chunk any more");
}

#[test]
fn what_all_members_have_stops_nothing_however_its_plan_ends() {
    for (has_all, status) in [
        (true, CompletionStatus::GivenUp),
        (true, CompletionStatus::Refused),
        (false, CompletionStatus::GivenUp),
    ] {
        let mut dialect = dialect();
        let command = Command::new(IoOpcode::Write, 0, 1);
        let plan = PostedPlan::write(HANDLE, SLOT, 0, sequence(1), None).unwrap();
        let posted = command.posted(&plan);
        sent(&mut dialect, &posted, 0, &bytes_of(1, 1));
        for member in 1..=if has_all { 3 } else { 2 } {
            assert_eq!(dialect.judge(&posted, 0, ChannelId(member), &durable(64 + 65)), Judgement::Good);
        }
        let words = dialect.words(&posted, 0, &Outcome { bad_members: 0b100, ..outcome(status) });
        assert_eq!((words.offset, words.units), (64, 65), "where it lies is told");
        let broken = Broken { slot: SLOT, channel: ChannelId(3), offset: Units(64) };
        assert_eq!(dialect.next_broken(), (!has_all).then_some(broken));
        let mut before = [0; BEFORE_MAX];
        let next = dialect.place(Instant::default(), &posted, 0, &found(&bytes_of(1, 1)), &mut before);
        assert_eq!(next.is_ok(), has_all, "others write on");
    }
}

#[test]
fn reads_go_to_all_members_by_turns_and_not_to_one_that_was_not_greeted() {
    let mut dialect = dialect();
    let command = Command::new(IoOpcode::Read, 102, 1);
    let plan = PostedPlan::read(HANDLE, None, None, &[run(102, 1, 65)]).unwrap();
    let posted = command.posted(&plan);
    let mut before = [0; BEFORE_MAX];
    let mut place = |dialect: &mut VolumeDialect| {
        dialect.place(Instant::default(), &posted, 0, &Found::default(), &mut before)
    };
    let firsts: BTreeSet<u8> = (0..6).map(|_| place(&mut dialect).unwrap().first).collect();
    assert_eq!(firsts, [0, 1, 2].into());
    dialect.channel_gone(ChannelId(2));
    assert_eq!(place(&mut dialect).unwrap().skipped, 0b010);
    // It is connected anew, and says no more than that it is there.
    let request = RequestMessage { tag: 1, payload_len: 0, request: Request::Ping }.encode().unwrap();
    let call = PostedPlan::call(Handle(crate::plans::HOST_HANDLES), ChannelId(2), &request, &[]).unwrap();
    let call = Posted { message: None, ..command.posted(&call) };
    let pong = reply(Answer::Good(Reply::Ping { load: 0, free: 1, used: 1 }), 0);
    assert_eq!(dialect.judge(&call, 0, ChannelId(2), &pong), Judgement::Good);
    assert_eq!(place(&mut dialect).unwrap().skipped, 0b010);
    let hello = Reply::Hello { server: ob_core::ServerId(4), incarnation: ob_core::Incarnation(1) };
    let hello = reply(Answer::Good(hello), crate::wire::WELCOME_LEN as u32);
    assert_eq!(dialect.judge(&call, 0, ChannelId(2), &hello), Judgement::Good);
    assert_eq!(place(&mut dialect).unwrap().skipped, 0);
    (1..=3).for_each(|channel| dialect.channel_gone(ChannelId(channel)));
    assert_eq!(place(&mut dialect), Err(Reject::Ends(CompletionStatus::NoMember)));
}

#[test]
fn a_read_of_many_runs_is_looked_at_once() {
    let mut dialect = dialect();
    let runs: Vec<Run> = (0..254).map(|at| run(at * 2, 1, 65)).collect();
    let command = Command::new(IoOpcode::Read, 0, 254);
    let plan = PostedPlan::read(HANDLE, None, None, &runs).unwrap();
    let mut notes = Vec::new();
    dialect.pieces(&command.posted(&plan), &mut notes).unwrap();
    assert_eq!(notes, (0..254).collect::<Vec<_>>());
    // What is asked of its last piece looks at no other.
    let mut spoilt = plan.clone();
    spoilt.arguments[..253 * 16].fill(0xFF);
    let posted = Posted { notes: &notes, ..command.posted(&spoilt) };
    assert_eq!(dialect.memory(&posted, 253, Register::new(2).unwrap()), 65 * 64);
    let payload = stored(1, 506, NAME, 200);
    let header = reply(Answer::Good(Reply::Read), payload.len() as u32);
    let mut parts = Parts::default();
    let judged = dialect.accept(&posted, 253, Some((ChannelId(1), &header)), &payload, &mut parts);
    assert_eq!((judged, parts.as_slice()[0].into), (Judgement::Good, 253 * BLOCK));
}

#[test]
fn a_full_chunk_takes_nothing_and_is_not_broken() {
    let mut dialect = dialect();
    dialect.set(&Set { length: Units(64 + 65 + 64), ..set(SetWhat::Append) }).unwrap();
    let command = Command::new(IoOpcode::Write, 0, 1);
    let plan = PostedPlan::write(HANDLE, SLOT, 0, sequence(1), None).unwrap();
    let posted = command.posted(&plan);
    sent(&mut dialect, &posted, 0, &bytes_of(1, 1));
    let mut before = [0; BEFORE_MAX];
    let placed = dialect.place(Instant::default(), &posted, 0, &found(&bytes_of(1, 1)), &mut before);
    assert_eq!(placed, Err(Reject::Ends(CompletionStatus::ChunkFull)));
    assert_eq!(dialect.next_broken(), None);
}

#[test]
fn a_trim_of_one_range_and_of_many_is_a_record() {
    for count in [1, 2, 255] {
        let mut dialect = dialect();
        let ranges: Vec<TrimRange> =
            (0..count).map(|range| TrimRange { lba: Lba(range * 10), blocks: range + 1 }).collect();
        let plan = PostedPlan::trim(HANDLE, SLOT, sequence(4), false, &ranges).unwrap();
        let command = Command::new(IoOpcode::WriteZeroes, 0, 1);
        let posted = command.posted(&plan);
        assert_eq!(pieces(&mut dialect, &posted), Ok(Pieces { count: 1, told: Told::Once }));
        let (_, bytes) = sent(&mut dialect, &posted, 0, &[]);
        check_records(NAME, Units(64), &bytes).unwrap();
        let record = Record::decode(&bytes).unwrap();
        assert_eq!(record.trim_ranges().collect::<Vec<_>>(), ranges);
    }
}

/// A record as it lies on a chunk server, and the run that a plan has of it.
fn stored(blocks: u32, lba: u32, name: ChunkName, offset: u32) -> Vec<u8> {
    let payload = bytes_of(blocks, 9);
    let header = RecordHeader {
        chunk: name,
        offset: Units(offset),
        sequence: sequence(1),
        version: sequence(1),
        lba: Lba(lba),
        blocks,
        stored: payload.len() as u32,
        payload_crc: crc32c::crc32c(&payload),
        kind: RecordKind::Write,
        encoding: Stored::None,
        behind: None,
    };
    let mut bytes = Vec::new();
    Record { header, payload: &payload }.encode_into(&mut bytes).unwrap();
    bytes
}

fn run(lba: u32, blocks: u32, units: u32) -> Run {
    Run::Record { slot: SLOT, place: Units(200), units: Units(units), lba: Lba(lba), blocks }
}

#[test]
fn a_read_believes_the_record_that_was_asked_for_and_no_other() {
    let mut dialect = dialect();
    let command = Command::new(IoOpcode::Read, 102, 3);
    // Two blocks of the middle of a record, behind one that was never written.
    let runs = [Run::Zeros { blocks: 1 }, run(103, 2, 1 + 4 * 64)];
    let plan = PostedPlan::read(HANDLE, None, None, &runs).unwrap();
    let mut notes = Vec::new();
    let said = dialect.pieces(&command.posted(&plan), &mut notes);
    assert_eq!((said, &notes[..]), (Ok(Pieces { count: 2, told: Told::Once }), &[0, 1][..]));
    let posted = Posted { notes: &notes, ..command.posted(&plan) };
    let mut before = [0; BEFORE_MAX];
    let nobody = dialect.place(Instant::default(), &posted, 0, &Found::default(), &mut before).unwrap();
    assert!(nobody.channels.as_slice().is_empty());
    let place = dialect.place(Instant::default(), &posted, 1, &Found::default(), &mut before).unwrap();
    assert_eq!((place.channels.as_slice().len(), place.reply_len_max), (3, 257 * 64));
    let request = RequestMessage::decode(&dialect.header(&posted, 1, ChannelId(1)).encode()).unwrap();
    let epoch = Epoch::new(5).unwrap();
    assert_eq!(request.request, Request::Read { chunk: NAME, epoch, offset: Units(200), len: 257 * 64 });
    let good = stored(4, 102, NAME, 200);
    let read = |dialect: &mut VolumeDialect, payload: &[u8]| {
        let mut parts = Parts::default();
        let header = reply(Answer::Good(Reply::Read), payload.len() as u32);
        (dialect.accept(&posted, 1, Some((ChannelId(1), &header)), payload, &mut parts), parts)
    };
    let (judged, parts) = read(&mut dialect, &good);
    assert_eq!(judged, Judgement::Good);
    let part = parts.as_slice()[0];
    assert_eq!((part.from, part.stored, part.decoded), (64, 4 * BLOCK, 4 * BLOCK));
    assert_eq!((part.skip, part.take, part.into), (BLOCK, 2 * BLOCK, BLOCK));
    let mut parts = Parts::default();
    assert_eq!(dialect.accept(&posted, 0, None, &[], &mut parts), Judgement::Good);
    assert_eq!(parts.as_slice(), [BytesPart::zeros(0, BLOCK)]);
    // Each byte of it matters.
    for at in [0, 5, 20, 24, 40, 63, 64, good.len() - 1] {
        let mut flipped = good.clone();
        flipped[at] ^= 1;
        assert_eq!(read(&mut dialect, &flipped).0, Judgement::Bad, "byte {at}");
    }
    let other_chunk = ChunkName { chunk: ChunkId(3), ..NAME };
    let wrong = [
        stored(4, 102, other_chunk, 200),
        stored(4, 102, NAME, 201),
        stored(4, 104, NAME, 200),
        stored(4, 100, NAME, 200),
        stored(3, 102, NAME, 200),
        good[..good.len() - 64].to_vec(),
        Vec::new(),
    ];
    for (index, payload) in wrong.iter().enumerate() {
        assert_eq!(read(&mut dialect, payload).0, Judgement::Bad, "{index}");
    }
}

#[test]
fn a_member_without_the_record_is_passed_over() {
    let mut dialect = dialect();
    let command = Command::new(IoOpcode::Read, 102, 1);
    let plan = PostedPlan::read(HANDLE, Some(1), None, &[run(102, 1, 65)]).unwrap();
    let posted = Posted { notes: &[0], ..command.posted(&plan) };
    let mut before = [0; BEFORE_MAX];
    let place = dialect.place(Instant::default(), &posted, 0, &Found::default(), &mut before).unwrap();
    assert_eq!((place.first, place.skipped), (1, 0), "the second one is asked first");
    let kind = crate::wire::Kind::Read.code();
    let mut parts = Parts::default();
    // Who cannot read what it should have is told of to the host, which mends it; of others nobody knows what they have.
    let refusals = [
        (Refusal::Busy, Judgement::Next),
        (Refusal::Stale { known: 9 }, Judgement::Next),
        (Refusal::NoChunk, Judgement::Bad),
        (Refusal::Medium, Judgement::Bad),
        (Refusal::Damaged, Judgement::Bad),
    ];
    for (refusal, expected) in refusals {
        let header = reply(Answer::Refused { kind, refusal }, 0);
        let judged = dialect.accept(&posted, 0, Some((ChannelId(2), &header)), &[], &mut parts);
        assert_eq!(judged, expected, "{refusal:?}");
        let outcome = Outcome { bad_members: 1, ..outcome(CompletionStatus::Good) };
        let run = u16::from(expected == Judgement::Bad);
        assert_eq!(dialect.words(&posted, 0, &outcome).units, run, "{refusal:?}: of which run it was");
    }
    let durable = durable(64);
    let judged = dialect.accept(&posted, 0, Some((ChannelId(2), &durable)), &[], &mut parts);
    assert_eq!((judged, parts.as_slice().len()), (Judgement::Bad, 0));
}

#[test]
fn calls_go_to_their_channel_and_answers_say_what_the_host_says() {
    let mut dialect = dialect();
    let request = RequestMessage { tag: 1, payload_len: 0, request: Request::Ping }.encode().unwrap();
    let plan = PostedPlan::call(Handle(crate::plans::HOST_HANDLES), ChannelId(9), &request, &[]).unwrap();
    let command = Command::new(IoOpcode::Flush, 0, 1);
    let posted = Posted { message: None, ..command.posted(&plan) };
    assert_eq!(pieces(&mut dialect, &posted), Ok(Pieces { count: 1, told: Told::Reply }));
    let mut before = [0; BEFORE_MAX];
    let place = dialect.place(Instant::default(), &posted, 0, &Found::default(), &mut before).unwrap();
    assert_eq!(place.channels.as_slice(), [ChannelId(9)]);
    assert_eq!(dialect.header(&posted, 0, ChannelId(9)).encode(), request);
    let pong = reply(Answer::Good(Reply::Ping { load: 0, free: 1, used: 1 }), 0);
    assert_eq!(dialect.judge(&posted, 0, ChannelId(9), &pong), Judgement::Good);
    assert_eq!(dialect.judge(&posted, 0, ChannelId(9), &NOTHING), Judgement::Bad);
    let status = Status::CAPACITY_EXCEEDED.with_do_not_retry();
    let plan = PostedPlan::answer(HANDLE, status, false);
    assert_eq!(dialect.status(&command.posted(&plan)), status.bits());
}

/// R3: what was retained is verified as what a server gives.
#[test]
fn of_what_was_retained_only_the_record_that_is_wanted_is_believed() {
    let mut dialect = dialect();
    let write = Command::new(IoOpcode::Write, 100, 4);
    let plan = PostedPlan::write(HANDLE, SLOT, 0, sequence(1), None).unwrap();
    let posted = write.posted(&plan);
    pieces(&mut dialect, &posted).unwrap();
    let payload = bytes_of(4, 1);
    let mut before = vec![0; BEFORE_MAX];
    let place = dialect.place(Instant::default(), &posted, 0, &found(&payload), &mut before).unwrap();
    before.truncate(place.before_len.into());
    assert_eq!(dialect.kept(&posted, 0), Some(Name { slot: SLOT, place: 64 }));
    let units = Units(1 + payload.len() as u32 / Units::LEN);
    let good = Run::Record { slot: SLOT, place: Units(64), units, lba: Lba(101), blocks: 2 };
    let read = Command::new(IoOpcode::Read, 101, 2);
    let mut judge = |run: Run, before: &[u8], payload: &[u8]| {
        let plan = PostedPlan::read(HANDLE, None, None, &[run]).unwrap();
        let posted = Posted { notes: &[0], ..read.posted(&plan) };
        assert_eq!(dialect.sought(&posted, 0), Some(Name { slot: SLOT, place: 64 }));
        let mut parts = Parts::default();
        let judgement = dialect.accept_kept(&posted, 0, before, payload, &mut parts);
        (judgement, parts.as_slice().to_vec())
    };
    let (judgement, parts) = judge(good, &before, &payload);
    let [part] = parts[..] else { panic!("{parts:?}") };
    assert_eq!((judgement, part.from, part.skip, part.take), (Judgement::Good, 0, BLOCK, 2 * BLOCK));
    let mut flipped = payload.clone();
    flipped[9] ^= 1;
    let mut other = before.clone();
    other[20] ^= 1;
    let elsewhere = Run::Record { slot: SLOT, place: Units(64), units, lba: Lba(103), blocks: 2 };
    let shorter = Run::Record { slot: SLOT, place: Units(64), units: Units(9), lba: Lba(101), blocks: 2 };
    for (run, before, payload) in [
        (good, &before, &flipped),
        (good, &other, &payload),
        (good, &before, &payload[..payload.len() - 64].to_vec()),
        (good, &Vec::new(), &payload),
        (elsewhere, &before, &payload),
        (shorter, &before, &payload),
    ] {
        assert_eq!(judge(run, before, payload), (Judgement::Bad, Vec::new()));
    }
}

#[test]
fn what_was_retained_of_another_chunk_is_not_believed() {
    let mut dialect = dialect();
    let write = Command::new(IoOpcode::Write, 100, 4);
    let plan = PostedPlan::write(HANDLE, SLOT, 0, sequence(1), None).unwrap();
    let posted = write.posted(&plan);
    pieces(&mut dialect, &posted).unwrap();
    let payload = bytes_of(4, 1);
    let mut before = vec![0; BEFORE_MAX];
    let place = dialect.place(Instant::default(), &posted, 0, &found(&payload), &mut before).unwrap();
    before.truncate(place.before_len.into());
    let units = Units(1 + payload.len() as u32 / Units::LEN);
    let run = Run::Record { slot: SLOT, place: Units(64), units, lba: Lba(101), blocks: 2 };
    let read = Command::new(IoOpcode::Read, 101, 2);
    let plan = PostedPlan::read(HANDLE, None, None, &[run]).unwrap();
    let posted = Posted { notes: &[0], ..read.posted(&plan) };
    for (chunk, judgement) in [(2, Judgement::Good), (9, Judgement::Bad)] {
        let chunk = ChunkName { chunk: ChunkId(chunk), ..NAME };
        dialect.set(&Set { chunk, ..set(SetWhat::ReadOnly) }).unwrap();
        assert_eq!(dialect.accept_kept(&posted, 0, &before, &payload, &mut Parts::default()), judgement);
    }
}

#[test]
fn what_is_copied_is_never_looked_for_in_what_is_retained() {
    let dialect = dialect();
    let read = Command::new(IoOpcode::Read, 101, 2);
    // It is to be what a certain server has.
    let epoch = Epoch::new(5).unwrap();
    let copy = Copy {
        from: ChannelId(1),
        to: ChannelId(2),
        chunk: NAME,
        epoch,
        at: Units(64),
        end: Units(100),
        is_mend: false,
    };
    let plan = PostedPlan::copy(Handle(1 << 31), &copy).unwrap();
    assert_eq!(dialect.sought(&Posted { message: None, ..read.posted(&plan) }, 0), None);
}
