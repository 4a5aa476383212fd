//! A service that appends to chunks and reads from them, and where its messages come from.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use ob_core::{Instant, Units};
use ob_split::card::{
    Area, Arrived, Call, Channels, Dialect, Encoding, Found, Front, FrontAnswer, FrontKey, Judgement, Moved,
    Name, Outcome, Part, Parts, Pieces, Place, Posted, Reject, Told, Words,
};
use ob_split::wire::{
    Answers, Broken, ChannelId, CompletionStatus, Definition, Header, Otherwise, Plan, PlanId, REPLY,
    Register, Set, SetWhat, Slot, Step,
};

pub const MAGIC: [u8; 2] = *b"OX";
pub const WRITE: PlanId = PlanId(1);
pub const READ: PlanId = PlanId(2);
pub const ANSWER: PlanId = PlanId(3);
pub const CALL: PlanId = PlanId(4);
pub const PACK: PlanId = PlanId(5);
pub const BULK: PlanId = PlanId(6);
/// A header to all members of a chunk, of a message, without an answer.
pub const NOTE: PlanId = PlanId(7);
/// A header to all members, of which the first counts, and once more.
pub const TWICE: PlanId = PlanId(8);
pub const PATIENCE: Duration = Duration::from_millis(200);
pub const REPLY_MAX: u32 = 1024;
/// Bytes of the record's header that a write sends before its payload.
pub const RECORD: usize = 64;

/// Which requests the peers know.
pub mod ask {
    pub const APPEND: u8 = 1;
    pub const READ: u8 = 2;
    pub const HELLO: u8 = 3;
}

const fn register(number: u8) -> Register {
    match Register::new(number) {
        Some(register) => register,
        None => panic!("there is no such register"),
    }
}

pub fn definitions() -> Vec<Definition> {
    let (two, three) = (register(2), register(3));
    let write = |first: Step| {
        let rest = [
            Step::Checksum { of: two },
            Step::Send { payload: Some(two) },
            Step::Keep { what: two },
            Step::Merge { answers: Answers::All },
            Step::EndEach,
            Step::Answer { payload: None },
        ];
        [Step::Each, first].into_iter().chain(rest).collect::<Vec<_>>()
    };
    let copy = Step::Copy { from: Register::PAYLOAD, into: two };
    let pack = Step::Compress { from: Register::PAYLOAD, into: two, otherwise: Otherwise::Copy };
    let read = vec![
        Step::Each,
        Step::Fetch { into: two },
        Step::Decode { from: two, into: Register::ANSWER },
        Step::EndEach,
        Step::Answer { payload: Some(Register::ANSWER) },
    ];
    let (send, first) = (Step::Send { payload: None }, Step::Merge { answers: Answers::First });
    let bulk = vec![Step::FromHost { into: three }, Step::ToHost { from: three }];
    let define = |id, steps, entry_len, each_len| {
        Definition::new(id, Plan::new(steps).unwrap(), entry_len, each_len).unwrap()
    };
    vec![
        define(WRITE, write(copy), 16, 0),
        define(PACK, write(pack), 16, 0),
        define(READ, read, 8, 16),
        define(ANSWER, vec![Step::Answer { payload: None }], 8, 0),
        define(BULK, bulk, 8, 0),
        define(NOTE, vec![send, Step::Merge { answers: Answers::All }], 8, 0),
        define(TWICE, vec![send, first, send, first], 8, 0),
        Call::definition(CALL).unwrap(),
    ]
}

/// One run of a read.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub slot: u16,
    pub from: u32,
    pub len: u32,
    pub into: u32,
}

impl Run {
    pub fn encode(self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.slot.to_le_bytes());
        into.extend_from_slice(&[0; 2]);
        for word in [self.from, self.len, self.into] {
            into.extend_from_slice(&word.to_le_bytes());
        }
    }

    fn all(bytes: &[u8]) -> impl Iterator<Item = Self> + '_ {
        bytes.chunks_exact(16).map(|bytes| {
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            Self {
                slot: u16::from_le_bytes([bytes[0], bytes[1]]),
                from: word(4),
                len: word(8),
                into: word(12),
            }
        })
    }
}

/// A service that appends to chunks and reads from them.
#[derive(Default)]
pub struct TestDialect {
    pub slots: HashMap<Slot, Set>,
    /// Where the next record of a chunk goes.
    pub ends: BTreeMap<Slot, u32>,
    pub broken: VecDeque<Broken>,
    pub told: Vec<Outcome>,
    /// Too much is under way.
    pub is_full: bool,
    /// Pieces are said to lie behind the payload.
    pub is_beyond: bool,
    /// What is fetched is taken for packed.
    pub is_packed: bool,
    /// What was written is looked for in what is retained.
    pub seeks: bool,
    /// What is found there is taken for wrong.
    pub is_rotten: bool,
    pub gone: Vec<ChannelId>,
    pub places: HashMap<(u32, u16), u32>,
    /// Bytes that were known of what was to be fetched.
    pub known_before: Vec<u32>,
}

impl TestDialect {
    fn channels(&self, slot: Slot) -> Channels {
        let set = &self.slots[&slot];
        Channels::new(&set.channels[..usize::from(set.members)]).unwrap()
    }

    fn run(plan: &Posted<'_>, piece: u16) -> Run {
        Run::all(plan.arguments).nth(piece.into()).unwrap()
    }
}

impl Dialect for TestDialect {
    fn magic(&self) -> [u8; 2] {
        MAGIC
    }

    fn set(&mut self, set: &Set) -> Result<(), Reject> {
        if set.what == SetWhat::Forget {
            self.slots.remove(&set.slot);
        } else {
            self.slots.insert(set.slot, *set);
            self.ends.entry(set.slot).or_insert(set.offset.0);
        }
        Ok(())
    }

    fn slots(&self, plan: &Posted<'_>, visit: &mut dyn FnMut(Slot)) {
        match plan.plan {
            WRITE | PACK | NOTE | TWICE => visit(plan.slot),
            READ => Run::all(plan.arguments)
                .filter(|run| run.slot != u16::MAX)
                .for_each(|run| visit(Slot(run.slot))),
            _ => {}
        }
    }

    fn pieces(&mut self, plan: &Posted<'_>, _: &mut Vec<u32>) -> Result<Pieces, Reject> {
        match plan.plan {
            WRITE | PACK => {
                let len = plan.message.ok_or(Reject::Hostile)?.payload_len;
                if len == 0 {
                    return Err(Reject::Hostile);
                }
                Ok(Pieces { count: len.div_ceil(64 << 10) as u16, told: Told::Each })
            }
            READ => {
                let answer_len = plan.message.ok_or(Reject::Hostile)?.answer_len;
                if Run::all(plan.arguments)
                    .any(|run| u64::from(run.into) + u64::from(run.len) > answer_len.into())
                {
                    return Err(Reject::Hostile);
                }
                Ok(Pieces { count: plan.argument.into(), told: Told::Once })
            }
            CALL => match Call::of(plan, MAGIC) {
                Some(_) => Ok(Pieces { count: 1, told: Told::Reply }),
                None => Err(Reject::Hostile),
            },
            _ => Ok(Pieces { count: 1, told: Told::Once }),
        }
    }

    fn piece(&self, plan: &Posted<'_>, piece: u16) -> std::ops::Range<u32> {
        let len = plan.message.map_or(0, |message| message.payload_len);
        let from = u32::from(piece) * (64 << 10) + u32::from(self.is_beyond);
        from..(from + (64 << 10)).min(len + u32::from(self.is_beyond))
    }

    fn memory(&self, plan: &Posted<'_>, piece: u16, of: Register) -> u32 {
        match (plan.plan, of) {
            (READ, _) => Self::run(plan, piece).len,
            _ => 64,
        }
    }

    fn has_room(&self, _: &Posted<'_>) -> bool {
        !self.is_full
    }

    fn place(
        &mut self,
        _: Instant,
        plan: &Posted<'_>,
        piece: u16,
        found: &Found,
        before: &mut [u8],
    ) -> Result<Place, Reject> {
        let place = |channels, before_len, reply_len_max| {
            let patience = PATIENCE;
            Ok(Place { channels, first: 0, skipped: 0, before_len, zeros: 0, reply_len_max, patience })
        };
        match plan.plan {
            WRITE | PACK => {
                let channels = self.channels(plan.slot);
                let set = self.slots[&plan.slot];
                let end = self.ends.get_mut(&plan.slot).unwrap();
                let zeros = (found.len.next_multiple_of(64) - found.len) as u8;
                let units = (RECORD as u32 + found.len + u32::from(zeros)) / 64;
                if *end + units > set.length.0 {
                    return Err(Reject::Ends(CompletionStatus::ChunkFull));
                }
                before[..4].copy_from_slice(&end.to_le_bytes());
                before[4..8].copy_from_slice(&found.crc.unwrap().to_le_bytes());
                before[8] = u8::from(found.encoding == Encoding::Lz4);
                before[9..13].copy_from_slice(&found.len.to_le_bytes());
                self.places.insert((plan.handle.0, piece), *end);
                *end += units;
                Ok(Place { zeros, ..place(channels, RECORD as u16, 0)? })
            }
            READ => {
                self.known_before.push(found.len);
                let run = Self::run(plan, piece);
                let channels =
                    if run.slot == u16::MAX { Channels::default() } else { self.channels(Slot(run.slot)) };
                place(channels, 0, run.len)
            }
            NOTE | TWICE => place(self.channels(plan.slot), 0, 0),
            CALL => Ok(Call::of(plan, MAGIC).unwrap().place(before, REPLY_MAX, PATIENCE).unwrap()),
            _ => Err(Reject::Hostile),
        }
    }

    fn header(&mut self, plan: &Posted<'_>, piece: u16, _: ChannelId) -> Header {
        match plan.plan {
            CALL => Call::of(plan, MAGIC).unwrap().header,
            READ => {
                let run = Self::run(plan, piece);
                let mut rest = [0; 40];
                rest[..4].copy_from_slice(&run.from.to_le_bytes());
                rest[4..8].copy_from_slice(&run.len.to_le_bytes());
                Header { rest, ..request(ask::READ) }
            }
            _ => request(ask::APPEND),
        }
    }

    fn judge(&mut self, plan: &Posted<'_>, _: u16, _: ChannelId, reply: &Header) -> Judgement {
        if reply.status == 0 || plan.plan == CALL { Judgement::Good } else { Judgement::Next }
    }

    fn accept(
        &mut self,
        plan: &Posted<'_>,
        piece: u16,
        reply: Option<(ChannelId, &Header)>,
        payload: &[u8],
        parts: &mut Parts,
    ) -> Judgement {
        let run = Self::run(plan, piece);
        let Some((_, header)) = reply else {
            assert!(parts.push(Part::zeros(run.into, run.len)));
            return Judgement::Good;
        };
        if header.status != 0 {
            return Judgement::Next;
        }
        let (encoding, decoded) =
            if self.is_packed { (Encoding::Lz4, run.len) } else { (Encoding::Plain, payload.len() as u32) };
        let part = Part {
            from: 0,
            stored: payload.len() as u32,
            encoding,
            decoded,
            skip: 0,
            take: run.len,
            into: run.into,
        };
        assert!(parts.push(part));
        Judgement::Good
    }

    fn kept(&self, plan: &Posted<'_>, piece: u16) -> Option<Name> {
        let place = *self.places.get(&(plan.handle.0, piece))?;
        Some(Name { slot: plan.slot, place })
    }

    fn sought(&self, plan: &Posted<'_>, piece: u16) -> Option<Name> {
        if plan.plan != READ || !self.seeks {
            return None;
        }
        let run = Self::run(plan, piece);
        (run.slot != u16::MAX).then_some(Name { slot: Slot(run.slot), place: run.from })
    }

    /// It believes what it is given.
    fn accept_kept(
        &mut self,
        plan: &Posted<'_>,
        piece: u16,
        before: &[u8],
        payload: &[u8],
        parts: &mut Parts,
    ) -> Judgement {
        let run = Self::run(plan, piece);
        assert_eq!(before.len(), RECORD);
        if self.is_rotten {
            return Judgement::Bad;
        }
        let encoding = if before[8] == 1 { Encoding::Lz4 } else { Encoding::Plain };
        let stored = payload.len() as u32;
        let decoded = if before[8] == 1 { run.len } else { stored };
        assert!(parts.push(Part {
            from: 0,
            stored,
            encoding,
            decoded,
            skip: 0,
            take: run.len,
            into: run.into
        }));
        Judgement::Good
    }

    fn area(&self, plan: &Posted<'_>, _: u16, _: Moved) -> Option<Area> {
        // In place of the slot, in units of 64 bytes.
        (plan.slot.0 != u16::MAX).then_some(Area::new(u64::from(plan.slot.0) * 64, plan.argument.into()))
    }

    fn status(&self, plan: &Posted<'_>) -> u16 {
        if plan.plan == ANSWER { plan.slot.0 } else { 0 }
    }

    fn may_answer(&self, _: Instant, _: &Posted<'_>) -> bool {
        true
    }

    fn words(&mut self, plan: &Posted<'_>, piece: u16, outcome: &Outcome) -> Words {
        self.told.push(*outcome);
        if outcome.status == CompletionStatus::Broken {
            self.broken.push_back(Broken { slot: plan.slot, channel: ChannelId(0), offset: Units(0) });
        }
        let offset = self.places.remove(&(plan.handle.0, piece)).unwrap_or(0);
        Words { units: 0, offset, word: outcome.found.crc.unwrap_or(0) }
    }

    fn channel_gone(&mut self, channel: ChannelId) {
        self.gone.push(channel);
    }

    fn next_broken(&mut self) -> Option<Broken> {
        self.broken.pop_front()
    }

    fn ended(&mut self) {
        self.slots.clear();
        self.ends.clear();
    }
}

pub fn request(kind: u8) -> Header {
    Header { magic: MAGIC, version: 1, kind, status: 0, flags: 0, tag: 0, payload_len: 0, rest: [0; 40] }
}

pub fn reply_to(header: &Header, status: u16, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        kind: header.kind | REPLY,
        status,
        payload_len: payload.len() as u32,
        rest: [9; 40],
        ..*header
    };
    [&header.encode()[..], payload].concat()
}

/// What a message was answered with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Bytes(Vec<u8>),
    Status(u16),
    Nobody,
}

#[derive(Default)]
pub struct TestFront {
    pub inbox: VecDeque<Arrived>,
    pub answers: Vec<(FrontKey, Said)>,
    pub gone: VecDeque<FrontKey>,
}

impl Front for TestFront {
    fn next(&mut self, _: Instant) -> Option<Arrived> {
        self.inbox.pop_front()
    }

    fn answer(&mut self, key: FrontKey, answer: FrontAnswer) {
        let said = match answer {
            FrontAnswer::Data(slice) => Said::Bytes(slice.to_vec()),
            FrontAnswer::Shared(shared) => Said::Bytes(shared.to_vec()),
            FrontAnswer::Status(status) => Said::Status(status),
            FrontAnswer::Nobody => Said::Nobody,
        };
        self.answers.push((key, said));
    }

    fn gone(&mut self) -> Option<FrontKey> {
        self.gone.pop_front()
    }
}
