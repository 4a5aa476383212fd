//! What a tier does besides commands, over the card's half of a port: looks, records of the index, and moves, with servers that lie.

use ob_core::{BlockLen, ChunkId, ChunkName, Epoch, Lba, SegmentId, Sequence, Units, VolumeId};
use ob_format::volume::{Encoding, Entry, PAGE_LEN, Record, RecordHeader, RecordKind};
use ob_split::wire::{ChannelId, Completion, CompletionStatus, Handle, SetWhat, Slot};
use ob_volume::plans::{
    COPY_FETCH_STEP, Copy, HOST_HANDLES, Index, IndexPart, LOOK_BYTES_MAX, LOOK_ENTRIES_MAX, Look, Move,
    PostedPlan,
};
use ob_volume::wire::{Answer, Kind, Refusal, Reply, Request, decode_entries, encode_chunks, encode_entries};

use crate::card_encodings::{Fault, NAME, Rig, SLOT};

const INDEX_CHUNK: ChunkName = ChunkName { volume: VolumeId(1), segment: SegmentId(0), chunk: ChunkId(3) };
const INDEX_SLOT: Slot = Slot(4);
const OTHER: ChunkName = ChunkName { volume: VolumeId(1), segment: SegmentId(0), chunk: ChunkId(5) };
const OTHER_SLOT: Slot = Slot(6);
const HANDLE: Handle = Handle(HOST_HANDLES + 1);

fn sequence(count: u64) -> Sequence {
    Sequence::new(Epoch::FIRST, count).unwrap()
}

fn do_plan(rig: &mut Rig, plan: &PostedPlan) -> Completion {
    rig.post(plan);
    rig.run();
    rig.last.remove(&HANDLE.0).unwrap()
}

fn look(rig: &mut Rig, request: Request, room: u32) -> Completion {
    let look = Look { channel: ChannelId(2), request, at: 0, room };
    do_plan(rig, &PostedPlan::look(HANDLE, &look).unwrap())
}

fn brought(rig: &Rig, completion: &Completion) -> Vec<u8> {
    let mut bytes = vec![0; completion.offset as usize];
    rig.areas.copy_out(0, &mut bytes).unwrap();
    bytes
}

fn entries(count: u32) -> Vec<Entry> {
    let entry = |number: u32| Entry {
        offset: Units(64 + number * 9),
        stored: 512,
        sequence: sequence(u64::from(number) + 1),
        lba: Lba(number),
        blocks: 1,
        kind: RecordKind::Write,
        encoding: Encoding::None,
    };
    (0..count).map(entry).collect()
}

fn list(most: u32) -> Request {
    Request::List { chunk: NAME, epoch: Epoch::FIRST, from: Units(64), to: Units(1 << 17), most }
}

/// A record of an index chunk, by `INDEX`; its completion.
fn write_index(rig: &mut Rig, number: u64, part: IndexPart, bytes: &[u8], effort: u8) -> Completion {
    rig.areas.copy_in(128, bytes).unwrap();
    let length = bytes.len() as u32;
    let index = Index { slot: INDEX_SLOT, effort, sequence: sequence(number), at: 128, length, part };
    do_plan(rig, &PostedPlan::index(HANDLE, &index).unwrap())
}

fn read_index(rig: &mut Rig, at: &Completion) -> (Completion, Vec<u8>) {
    let len = u32::from(at.units) * Units::LEN;
    let request = Request::Read { chunk: INDEX_CHUNK, epoch: Epoch::FIRST, offset: Units(at.offset), len };
    let seen = look(rig, request, LOOK_BYTES_MAX);
    let bytes = brought(rig, &seen);
    (seen, bytes)
}

#[test]
fn a_list_goes_to_the_host_and_a_broken_one_does_not() {
    let mut rig = Rig::new(1, BlockLen::Large);
    let all = entries(LOOK_ENTRIES_MAX);
    let payload = encode_entries(&all).unwrap();
    let good = |bytes: &[u8]| (Answer::Good(Reply::List { next: Units(77) }), bytes.to_vec());
    rig.script.push_back(good(&payload));
    let done = look(&mut rig, list(LOOK_ENTRIES_MAX), LOOK_BYTES_MAX);
    assert_eq!((done.status, done.offset as usize, done.word), (CompletionStatus::Good, payload.len(), 77));
    assert_eq!(decode_entries(&brought(&rig, &done)).unwrap().collect::<Vec<_>>(), all);
    assert_eq!(rig.asked, [list(LOOK_ENTRIES_MAX)]);
    // Nothing is a list too.
    rig.script.push_back(good(&encode_entries(&[]).unwrap()));
    let done = look(&mut rig, list(8), LOOK_BYTES_MAX);
    assert_eq!((done.status, done.offset), (CompletionStatus::Good, 4));
    // A byte of it is another; its end is missing, or its beginning.
    let mut flipped = payload.clone();
    flipped[1000] ^= 1;
    for bytes in [&flipped[..], &payload[..100], &payload[32..]] {
        rig.script.push_back(good(bytes));
        let done = look(&mut rig, list(LOOK_ENTRIES_MAX), LOOK_BYTES_MAX);
        assert_eq!((done.status, done.bad_members), (CompletionStatus::NotVerified, 1), "{}", bytes.len());
    }
    // Another answer than was asked for.
    rig.script.push_back((Answer::Good(Reply::Chunks { has_more: false }), encode_chunks(&[]).unwrap()));
    assert_eq!(look(&mut rig, list(8), LOOK_BYTES_MAX).status, CompletionStatus::NotVerified);
    let counts = rig.card.counts();
    assert_eq!((counts.plans, counts.blocks_out), (0, 0));
}

#[test]
fn who_refuses_says_why() {
    let mut rig = Rig::new(1, BlockLen::Large);
    for (refusal, status) in [(Refusal::Stale { known: 9 }, 1), (Refusal::NoChunk, 2), (Refusal::Damaged, 8)]
    {
        rig.script.push_back((Answer::Refused { kind: Kind::List.code(), refusal }, Vec::new()));
        let done = look(&mut rig, list(8), LOOK_BYTES_MAX);
        assert_eq!((done.status, done.units, done.word), (CompletionStatus::NoMember, status, 1));
    }
    assert_eq!(rig.card.counts().blocks_out, 0);
}

#[test]
fn the_index_goes_to_all_members_and_comes_back_as_it_was() {
    let mut rig = Rig::new(3, BlockLen::Large);
    rig.set(INDEX_SLOT, INDEX_CHUNK, SetWhat::Append);
    let mut written = Vec::new();
    for number in 1..40u64 {
        let is_root = number % 4 == 0;
        let len = if is_root { 1 + rig.dice.below(65_536 - 200) } else { PAGE_LEN };
        let bytes = rig.dice.bytes(len);
        let part = if is_root { IndexPart::Root } else { IndexPart::Page(number as u32) };
        let done = write_index(&mut rig, number, part, &bytes, (number % 3) as u8);
        assert_eq!(done.status, CompletionStatus::Good);
        assert_eq!(u32::from(done.units), 1 + done.word.div_ceil(64), "how much is stored is told");
        let record = Record::decode(&rig.chunks[&INDEX_CHUNK][done.offset as usize * 64..]).unwrap().header;
        let kind = if is_root { RecordKind::Root } else { RecordKind::Page };
        let page = if is_root { 0 } else { number as u32 };
        assert_eq!((record.kind, record.lba, record.sequence), (kind, Lba(page), sequence(number)));
        assert_eq!((record.stored, record.blocks as usize), (done.word, len));
        written.push((done, bytes, page));
    }
    let before = rig.chunks[&INDEX_CHUNK].clone();
    assert!(written.iter().any(|(done, bytes, _)| (done.word as usize) < bytes.len()), "some are shorter");
    for (done, bytes, page) in &written {
        let (seen, read) = read_index(&mut rig, done);
        assert_eq!((seen.status, seen.units, seen.word), (CompletionStatus::Good, done.units, *page));
        assert!(read == *bytes);
        // Who gives something else is not believed.
        rig.faults[1] = Fault::Flipped;
        assert_eq!(read_index(&mut rig, done).0.status, CompletionStatus::NotVerified);
        rig.faults[1] = Fault::None;
    }
    assert_eq!(rig.chunks[&INDEX_CHUNK], before);
    // A root's first part need not be known in its length.
    let (root, bytes, _) = &written[3];
    let (offset, len) = (Units(root.offset), 1025 * 64);
    let request = Request::Read { chunk: INDEX_CHUNK, epoch: Epoch::FIRST, offset, len };
    let seen = look(&mut rig, request, LOOK_BYTES_MAX);
    assert_eq!((seen.units, brought(&rig, &seen)), (root.units, bytes.clone()));
    // What has no room is not put anywhere.
    let seen = look(&mut rig, request, bytes.len() as u32 - 1);
    assert_eq!(seen.status, CompletionStatus::NotVerified);
    assert_eq!(rig.card.counts().blocks_out, 0);
}

/// Puts a record of a client into the chunk that others are moved from.
fn stored(rig: &mut Rig, offset: u32, lba: u32, payload: &[u8], blocks: u32, encoding: Encoding) -> Units {
    let header = RecordHeader {
        chunk: NAME,
        offset: Units(offset),
        sequence: sequence(5),
        version: sequence(5),
        lba: Lba(lba),
        blocks,
        stored: payload.len() as u32,
        payload_crc: crc32c::crc32c(payload),
        kind: RecordKind::Write,
        encoding,
        behind: None,
    };
    let mut bytes = Vec::new();
    Record { header, payload }.encode_into(&mut bytes).unwrap();
    let at = offset as usize * 64;
    rig.chunks.get_mut(&NAME).unwrap()[at..at + bytes.len()].copy_from_slice(&bytes);
    header.units()
}

#[test]
fn what_clients_have_written_does_not_go_to_the_host() {
    let mut rig = Rig::new(1, BlockLen::Large);
    let units = stored(&mut rig, 64, 0, &[7; 4096], 1, Encoding::None);
    let len = units.0 * 64;
    let request = Request::Read { chunk: NAME, epoch: Epoch::FIRST, offset: Units(64), len };
    assert_eq!(look(&mut rig, request, LOOK_BYTES_MAX).status, CompletionStatus::NotVerified);
}

fn move_rig() -> Rig {
    let mut rig = Rig::new(7, BlockLen::Large);
    rig.set(SLOT, NAME, SetWhat::ReadOnly);
    rig.set(OTHER_SLOT, OTHER, SetWhat::Append);
    rig
}

fn record_at(rig: &Rig, done: &Completion) -> (RecordHeader, Vec<u8>) {
    let record = Record::decode(&rig.chunks[&OTHER][done.offset as usize * 64..]).unwrap();
    (record.header, record.payload.to_vec())
}

#[test]
fn a_record_moves_as_it_is_stored_whoever_lies() {
    let mut rig = move_rig();
    let blocks = rig.dice.bytes(16 * 4096);
    let text = b"over and over again, ".repeat(4000)[..16 * 4096].to_vec();
    let pressed = lz4_of(&text);
    let cases = [(blocks.clone(), Encoding::None), (pressed, Encoding::Lz4)];
    for (number, (payload, encoding)) in cases.into_iter().enumerate() {
        let units = stored(&mut rig, 64, 100, &payload, 16, encoding);
        for faults in [[Fault::None; 3], [Fault::Flipped, Fault::Flipped, Fault::None]] {
            rig.faults = faults;
            let moved = Move {
                from: SLOT,
                to: OTHER_SLOT,
                place: Units(64),
                units,
                lba: Lba(100),
                blocks: 16,
                block_len: BlockLen::Large,
                sequence: sequence(50 + number as u64),
                cut: None,
            };
            let done = do_plan(&mut rig, &PostedPlan::move_record(HANDLE, &moved).unwrap());
            assert_eq!((done.status, u32::from(done.units)), (CompletionStatus::Good, units.0));
            let (header, bytes) = record_at(&rig, &done);
            assert!(bytes == payload);
            assert_eq!((header.kind, header.encoding), (RecordKind::Move, encoding));
            assert_eq!(
                (header.sequence, header.version),
                (moved.sequence, sequence(5)),
                "it is as old as it was"
            );
            assert_eq!((header.lba, header.blocks), (Lba(100), 16));
        }
        // Nobody has it as it should be: nothing is written.
        rig.faults = [Fault::Flipped; 3];
        let before = rig.chunks[&OTHER].clone();
        let moved = Move {
            from: SLOT,
            to: OTHER_SLOT,
            place: Units(64),
            units,
            lba: Lba(100),
            blocks: 16,
            block_len: BlockLen::Large,
            sequence: sequence(90),
            cut: None,
        };
        let done = do_plan(&mut rig, &PostedPlan::move_record(HANDLE, &moved).unwrap());
        assert_eq!((done.status, done.bad_members, done.units), (CompletionStatus::NotVerified, 0b111, 0));
        assert_eq!(rig.chunks[&OTHER], before);
        rig.faults = [Fault::None; 3];
    }
    let counts = rig.card.counts();
    assert_eq!((counts.plans, counts.blocks_out), (0, 0));
}

/// A record that the card has written just now moves from its memory: no server is asked, and all of them may lie.
#[test]
fn what_is_retained_moves_from_there() {
    let mut rig = Rig::with(7, BlockLen::Large, true);
    rig.set(OTHER_SLOT, OTHER, SetWhat::Append);
    let blocks = rig.put(100, 16, 2);
    let (place, units) = rig.place_of(100);
    rig.set(SLOT, NAME, SetWhat::ReadOnly);
    rig.faults = [Fault::Flipped; 3];
    let whole = Move {
        from: SLOT,
        to: OTHER_SLOT,
        place,
        units,
        lba: Lba(100),
        blocks: 16,
        block_len: BlockLen::Large,
        sequence: sequence(1 << 20),
        cut: None,
    };
    let cut = Move { lba: Lba(103), blocks: 2, cut: Some(0), ..whole };
    let mut moved = Vec::new();
    for of in [whole, cut] {
        let done = do_plan(&mut rig, &PostedPlan::move_record(HANDLE, &of).unwrap());
        assert_eq!((done.status, done.bad_members), (CompletionStatus::Good, 0));
        moved.push(record_at(&rig, &done));
    }
    let source = Record::decode(&rig.chunks[&NAME][place.bytes() as usize..]).unwrap();
    assert!(source.header.encoding == Encoding::Lz4 && moved[0].1 == source.payload);
    assert_eq!((moved[0].0.version, moved[0].0.encoding), (source.header.version, Encoding::Lz4));
    assert!(moved[1].1 == blocks[3 * 4096..5 * 4096]);
    assert_eq!(rig.card.counts().retained.hits, 2);
    // What was moved is retained where it is now, but for what was not compressed and is not its own; another record is not found.
    let wrong = Move { lba: Lba(99), blocks: 1, cut: Some(0), ..whole };
    let done = do_plan(&mut rig, &PostedPlan::move_record(HANDLE, &wrong).unwrap());
    assert_eq!((done.status, done.bad_members), (CompletionStatus::NotVerified, 0b111));
    let counts = rig.card.counts();
    assert_eq!((counts.plans, counts.blocks_out), (0, 0));
}

fn lz4_of(bytes: &[u8]) -> Vec<u8> {
    use ob_core::{Instant, Token};
    use ob_split::engine::{Effort, Engine, SoftEngine, Task};
    let pool = ob_memory::Pool::new(65_536, 2);
    let mut from = pool.take().unwrap();
    from.truncate(bytes.len());
    from.copy_from_slice(bytes);
    let mut engine = SoftEngine::new(4);
    let task =
        Task::Compress { effort: Effort::DEFAULT, from: from.share().into(), into: pool.take().unwrap() };
    assert!(engine.submit(Token(1), task).is_ok());
    let done = engine.poll(Instant::default()).unwrap();
    let len = done.result.unwrap() as usize;
    let Task::Compress { into, .. } = done.task else { panic!("another task") };
    into[..len].to_vec()
}

#[test]
fn blocks_that_still_count_move_without_the_others() {
    let mut rig = move_rig();
    let bytes = rig.dice.bytes(16 * 4096);
    let text = b"over and over again, ".repeat(4000)[..16 * 4096].to_vec();
    let pressed = lz4_of(&text);
    let cases = [(bytes.clone(), bytes, Encoding::None), (pressed, text, Encoding::Lz4)];
    for (payload, bytes, encoding) in cases {
        let units = stored(&mut rig, 64, 100, &payload, 16, encoding);
        for (first, blocks, effort) in [(0, 1, 0), (3, 4, 2), (15, 1, 1), (0, 16, 2)] {
            rig.faults = [Fault::Flipped, Fault::None, Fault::Flipped];
            let moved = Move {
                from: SLOT,
                to: OTHER_SLOT,
                place: Units(64),
                units,
                lba: Lba(100 + first),
                blocks,
                block_len: BlockLen::Large,
                sequence: sequence(50),
                cut: Some(effort),
            };
            let done = do_plan(&mut rig, &PostedPlan::move_record(HANDLE, &moved).unwrap());
            assert_eq!(done.status, CompletionStatus::Good);
            let (header, moved) = record_at(&rig, &done);
            assert_eq!((header.lba, header.blocks, header.version), (Lba(100 + first), blocks, sequence(5)));
            let range = first as usize * 4096..(first + blocks) as usize * 4096;
            match header.encoding {
                Encoding::None => assert!(moved == bytes[range]),
                Encoding::Lz4 => assert!(effort > 0 && moved.len() < range.len()),
            }
        }
    }
    assert_eq!(rig.card.counts().blocks_out, 0);
}

#[test]
fn a_move_of_what_lies_elsewhere_moves_nothing() {
    let mut rig = move_rig();
    let bytes = rig.dice.bytes(4 * 4096);
    let units = stored(&mut rig, 64, 100, &bytes, 4, Encoding::None);
    let good = Move {
        from: SLOT,
        to: OTHER_SLOT,
        place: Units(64),
        units,
        lba: Lba(100),
        blocks: 4,
        block_len: BlockLen::Large,
        sequence: sequence(50),
        cut: None,
    };
    let wrong = [
        Move { lba: Lba(101), blocks: 3, ..good },
        Move { lba: Lba(99), blocks: 2, cut: Some(0), ..good },
        Move { blocks: 5, cut: Some(0), ..good },
        Move { units: Units(units.0 - 1), ..good },
        Move { place: Units(65), ..good },
        Move { block_len: BlockLen::Small, cut: Some(0), ..good },
    ];
    let before = rig.chunks[&OTHER].clone();
    for moved in wrong {
        let done = do_plan(&mut rig, &PostedPlan::move_record(HANDLE, &moved).unwrap());
        assert_eq!((done.status, done.units), (CompletionStatus::NotVerified, 0), "{moved:?}");
    }
    assert_eq!(rig.chunks[&OTHER], before);
    // A record that is not older than what it would become.
    let early = Move { sequence: sequence(5), ..good };
    let done = do_plan(&mut rig, &PostedPlan::move_record(HANDLE, &early).unwrap());
    assert_eq!((done.status, done.units), (CompletionStatus::Refused, 0));
    assert_eq!(rig.card.counts().blocks_out, 0);
}

/// R1: what goes from one server to another was looked at; of a mend it is the one record, which the taker writes over what has rotted.
#[test]
fn a_copy_and_a_mend_bring_what_is_whole() {
    let mut rig = move_rig();
    let payload = rig.dice.bytes(4 * 4096);
    let first = stored(&mut rig, 64, 100, &payload, 4, Encoding::None);
    let second = stored(&mut rig, 64 + first.0, 200, &payload[..4096], 1, Encoding::None);
    let (at, end) = (Units(64), Units(64 + first.0 + second.0));
    let bytes = rig.chunks[&NAME][64 * 64..end.0 as usize * 64].to_vec();
    for is_mend in [false, true] {
        let copy =
            Copy { from: ChannelId(1), to: ChannelId(2), chunk: NAME, epoch: Epoch::FIRST, at, end, is_mend };
        let plan = PostedPlan::copy(HANDLE, &copy).unwrap();
        let (len, reply) = match is_mend {
            true => (first.0 as usize * 64, Reply::Repair),
            false => (bytes.len(), Reply::Fill { durable: end }),
        };
        rig.script.push_back((Answer::Good(Reply::Read), bytes.clone()));
        rig.script.push_back((Answer::Good(reply), Vec::new()));
        let done = do_plan(&mut rig, &plan);
        assert_eq!((done.status, rig.asked.len()), (CompletionStatus::Good, 2));
        let asked = match rig.asked[1] {
            Request::Fill { chunk, offset, .. } if !is_mend => (chunk, offset),
            Request::Repair { chunk, offset, .. } if is_mend => (chunk, offset),
            other => panic!("{other:?}"),
        };
        assert_eq!(asked, (NAME, at));
        assert!(rig.sent == bytes[..len]);
        rig.asked.clear();
        // One that gives what is wrong, has nothing, or cannot read it, is told of; of one that is busy nothing is known.
        let mut flipped = bytes.clone();
        flipped[300] ^= 1;
        let refused = |refusal| (Answer::Refused { kind: Kind::Read.code(), refusal }, Vec::new());
        let wrong = [
            ((Answer::Good(Reply::Read), flipped), CompletionStatus::NotVerified),
            (refused(Refusal::Medium), CompletionStatus::NotVerified),
            (refused(Refusal::NoChunk), CompletionStatus::NotVerified),
            (refused(Refusal::Busy), CompletionStatus::NoMember),
        ];
        for (reply, status) in wrong {
            rig.script.push_back(reply);
            let done = do_plan(&mut rig, &plan);
            assert_eq!((done.status, done.word, rig.asked.len()), (status, COPY_FETCH_STEP, 1), "R1");
            rig.asked.clear();
        }
    }
}
