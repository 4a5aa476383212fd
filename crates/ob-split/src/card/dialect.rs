//! What a service knows of its own headers: the steps of plans ask it.

use std::ops::Range;
use std::time::Duration;

use ob_core::Instant;

use crate::wire::{
    Broken, ChannelId, CompletionStatus, HEADER_LEN, Handle, Header, MEMBERS_MAX, PlanId, Register, Set, Slot,
};

/// Bytes of a payload that are a piece, where the dialect says nothing else.
pub const PIECE_LEN: u32 = 64 << 10;
/// Most pieces of a plan.
pub const PIECES_MAX: u16 = 256;
/// Most bytes that may come before a message's payload.
pub const BEFORE_MAX: usize = 2304;
/// Most parts of one fetched payload.
pub const PARTS_MAX: usize = 1024;
/// Zeros that may follow a payload.
pub const ZEROS_MAX: u8 = 63;
/// Most bytes before a payload with which it can be retained.
pub const KEPT_BEFORE_MAX: usize = 64;

/// A plan under way, as the dialect sees it.
#[derive(Clone, Copy, Debug)]
pub struct Posted<'a> {
    /// Which plan.
    pub plan: PlanId,
    /// The second byte of its entry.
    pub argument: u8,
    /// The slot that its entry names.
    pub slot: Slot,
    /// The handle that its entry names.
    pub handle: Handle,
    /// The rest of its entry: as long as its definition says.
    pub arguments: &'a [u8],
    /// The message that it is about, if it is about one.
    pub message: Option<Message<'a>>,
    /// What the dialect has noted in [`Dialect::pieces`].
    pub notes: &'a [u32],
}

/// The message that a plan is about.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// As it came.
    pub header: &'a [u8; HEADER_LEN],
    /// Bytes of its payload.
    pub payload_len: u32,
    /// Bytes of its answer's memory.
    pub answer_len: u32,
}

/// How often the steps between `Each` and its end are done, and what the host is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// How often, at most [`PIECES_MAX`]. 0 does them not at all; a plan without `Each` has one piece, whatever this says.
    pub count: u16,
    /// How many completions there are.
    pub told: Told,
}

/// What the host is told when a plan is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Each piece, in their order.
    Each,
    /// The plan, once.
    Once,
    /// The plan, once, with the last reply that was awaited: its header, and up to
    /// [`REPLY_PAYLOAD_MAX`](crate::wire::REPLY_PAYLOAD_MAX) bytes of its payload.
    Reply,
}

/// Some channels, in the order of a chunk's members: at most [`MEMBERS_MAX`], each once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    all: [ChannelId; MEMBERS_MAX],
    count: u8,
}

impl Channels {
    /// These channels, unless they are too many.
    #[must_use]
    pub fn new(channels: &[ChannelId]) -> Option<Self> {
        let mut all = [ChannelId::default(); MEMBERS_MAX];
        all.get_mut(..channels.len())?.copy_from_slice(channels);
        Some(Self { all, count: channels.len() as u8 })
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[ChannelId] {
        self.all.get(..usize::from(self.count)).unwrap_or_default()
    }
}

/// Where a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// `Send` sends to all of them; `Fetch` asks one after the other. `Fetch` with none asks nobody, and accepts what is empty.
    pub channels: Channels,
    /// Which of them `Fetch` asks first, before those behind it and then those in front of it; one that has room for more requests goes
    /// before one that has not.
    pub first: u8,
    /// Which of them `Fetch` does not ask: bit n of the nth.
    pub skipped: u8,
    /// How many bytes were put before the payload.
    pub before_len: u16,
    /// Zeros behind it, at most [`ZEROS_MAX`].
    pub zeros: u8,
    /// Most bytes that follow the header of a reply. A peer that sends more has its channel ended. Of `Fetch` it is at most what
    /// [`Dialect::memory`] said, of `Send` at most [`REPLY_PAYLOAD_MAX`](crate::wire::REPLY_PAYLOAD_MAX).
    pub reply_len_max: u32,
    /// How long the reply is waited for, from when the message may be sent on. What has not come then is as good as
    /// [`Judgement::Next`].
    pub patience: Duration,
}

/// Where bytes lie in an area: of the card's, where `ToHost` puts them, and of the host's, from where `FromHost` takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// Where they begin.
    pub at: u64,
    /// How many they are: of `ToHost` from the front of the register on.
    pub len: u32,
    /// Whether `FromHost` takes them out of the card's area, where they were put before.
    pub is_back: bool,
}

impl Area {
    /// Bytes that go to the host, or that it gives.
    #[must_use]
    pub const fn new(at: u64, len: u32) -> Self {
        Self { at, len, is_back: false }
    }
}

/// What is moved between a register and an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Bytes of a register, which has so many.
    ToHost(u32),
    /// Bytes that it is to have.
    FromHost,
}

/// What is known of a piece's bytes when they are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Bytes of what is sent, without what comes before and behind.
    pub len: u32,
    /// How they are encoded.
    pub encoding: Encoding,
    /// The CRC32C that the last `Checksum` has computed; nothing if there was none.
    pub crc: Option<u32>,
}

/// By what a record is retained: a slot, and where in the chunk that the slot is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// Which slot; the plan names it.
    pub slot: Slot,
    /// Where. What lies there is never something else, whoever names the chunk in this epoch.
    pub place: u32,
}

/// How bytes are encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// As they are.
    #[default]
    Plain,
    /// A block of LZ4.
    Lz4,
    /// They are nowhere, and mean zeros. (Of parts only.)
    Zeros,
}

/// A part of what was fetched, and where its bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Where in the payload it begins; means nothing of zeros.
    pub from: u32,
    /// How many bytes it has there.
    pub stored: u32,
    /// How they are encoded.
    pub encoding: Encoding,
    /// How many bytes it is when it is decoded: exactly.
    pub decoded: u32,
    /// How many of these are left out in front.
    pub skip: u32,
    /// How many are taken behind that.
    pub take: u32,
    /// Where they go, in the register that is written.
    pub into: u32,
}

impl Part {
    /// Zeros.
    #[must_use]
    pub const fn zeros(into: u32, len: u32) -> Self {
        Self { from: 0, stored: 0, encoding: Encoding::Zeros, decoded: len, skip: 0, take: len, into }
    }

    /// Whether it takes no more than it has, and where its bytes are and go: in the payload, and in what is written.
    pub(super) fn ranges(&self) -> Option<(Range<usize>, Range<usize>)> {
        let from = self.from as usize..self.from.checked_add(self.stored)? as usize;
        let into = self.into as usize..self.into.checked_add(self.take)? as usize;
        let is_within = self.skip.checked_add(self.take)? <= self.decoded;
        let is_plain = self.encoding != Encoding::Plain || self.stored == self.decoded;
        (is_within && is_plain).then_some((from, into))
    }
}

/// What was fetched, part by part. The memory for it is kept from plan to plan.
#[derive(Debug, Default)]
pub struct Parts {
    all: Vec<Part>,
}

impl Parts {
    /// One more; `false`, and nothing, if there are [`PARTS_MAX`].
    #[must_use]
    pub fn push(&mut self, part: Part) -> bool {
        let has_room = self.all.len() < PARTS_MAX;
        if has_room {
            self.all.push(part);
        }
        has_room
    }

    /// All of them.
    #[must_use]
    pub fn as_slice(&self) -> &[Part] {
        &self.all
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.all.clear();
    }
}

/// What a reply is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It is what was asked for.
    Good,
    /// This channel does not give it, another may. A `Merge` of all fails by it.
    Next,
    /// This channel gives what is wrong. The host is told which member it was; else as `Next`.
    Bad,
}

/// Why a plan cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// No host that keeps to the document posts this: the group is closed.
    Hostile,
    /// The plan ends with this status.
    Ends(CompletionStatus),
}

/// How a piece ended, or a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How.
    pub status: CompletionStatus,
    /// The step that it failed in; 0 if it went well.
    pub step: u8,
    /// Members that were bad: bit n of the nth of its place. Of what was sent, all that did not say that it is good.
    pub bad_members: u8,
    /// What was known of its bytes.
    pub found: Found,
}

/// What a completion says besides how it went. Of [`Told::Reply`] the offset is the length of the reply's payload, whatever this
/// says; of what failed the word is the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// Stored units of a record.
    pub units: u16,
    /// Unit at which it lies.
    pub offset: u32,
    /// By plan.
    pub word: u32,
}

/// What a service knows of its own headers. It runs on the card, and is asked by the steps of plans.
///
/// Of one plan it is asked in this order: [`slots`](Self::slots) and [`pieces`](Self::pieces) when it is posted,
/// [`memory`](Self::memory) of each piece and register; then for each piece, by its steps, [`place`](Self::place) and at once
/// [`header`](Self::header) for each channel, and [`judge`](Self::judge) or [`accept`](Self::accept) of replies; [`status`](Self::status)
/// and [`may_answer`](Self::may_answer) if it answers; and [`words`](Self::words) once for each completion, whatever happened, unless
/// the group has ended.
pub trait Dialect {
    /// What messages of its peers begin with.
    fn magic(&self) -> [u8; 2];

    /// The host sets a slot; its channels are known, though they may be down. One that plans under way name is set to the same chunk only.
    ///
    /// # Errors
    ///
    /// When no host would.
    fn set(&mut self, set: &Set) -> Result<(), Reject>;

    /// Names the slots of a plan, each as often as it likes. They must be set, and stay so while the plan is under way: the port sees
    /// to both. The same plan names the same each time.
    fn slots(&self, plan: &Posted<'_>, visit: &mut dyn FnMut(Slot));

    /// How often the steps between `Each` and its end are done. Here the arguments are checked: what comes later is asked only of
    /// plans that were taken. What it is not to find out again for each piece it notes, and is then given it in [`Posted::notes`].
    ///
    /// # Errors
    ///
    /// When the arguments cannot be, or the plan cannot be done now.
    fn pieces(&mut self, plan: &Posted<'_>, notes: &mut Vec<u32>) -> Result<Pieces, Reject>;

    /// Which bytes of register 0 a piece reads; they must be there, or the group is closed. A plan without `Each` reads all of them.
    fn piece(&self, plan: &Posted<'_>, piece: u16) -> Range<u32> {
        let len = plan.message.map_or(0, |message| message.payload_len);
        let from = u32::from(piece).saturating_mul(PIECE_LEN).min(len);
        from..from.saturating_add(PIECE_LEN).min(len)
    }

    /// Which bytes of register 0 a plan without pieces reads, and what is not of a piece: all of them, if nothing is said.
    fn payload(&self, plan: &Posted<'_>) -> Range<u32> {
        0..plan.message.map_or(0, |message| message.payload_len)
    }

    /// Whose memory register 1 is, if it is not the memory of the message's answer: some that the host was granted. What a plan writes
    /// there is its content when the plan is over.
    fn answer(&self, plan: &Posted<'_>) -> Option<Handle> {
        let _ = plan;
        None
    }

    /// The checksum of what lies before what a plan sums.
    fn seed(&self, plan: &Posted<'_>) -> u32 {
        let _ = plan;
        0
    }

    /// Bytes of a register from 2 on of a piece: of what `Fetch` brings, and of what else is written but for copies and compressed bytes
    /// of register 0, which have as many as the piece.
    fn memory(&self, plan: &Posted<'_>, piece: u16, register: Register) -> u32;

    /// Whether a piece may be sent now: its chunk has not too much under way. It is asked before its place, and again when something
    /// has been answered, or has failed.
    fn has_room(&self, plan: &Posted<'_>) -> bool {
        let _ = plan;
        true
    }

    /// Where a piece's message goes: of a chunk that is appended to, this is where its place in the chunk is taken. All channels are
    /// sent to in the order of these calls. What comes before the payload is put into the front of `before`, which has
    /// [`BEFORE_MAX`] bytes.
    ///
    /// # Errors
    ///
    /// When it can go nowhere.
    fn place(
        &mut self,
        now: Instant,
        plan: &Posted<'_>,
        piece: u16,
        found: &Found,
        before: &mut [u8],
    ) -> Result<Place, Reject>;

    /// The header for one channel of the place just given. Tag, length and checksum are put in by the port, and the magic is
    /// [`Dialect::magic`].
    fn header(&mut self, plan: &Posted<'_>, piece: u16, channel: ChannelId) -> Header;

    /// What a reply to something sent is worth.
    fn judge(&mut self, plan: &Posted<'_>, piece: u16, channel: ChannelId, reply: &Header) -> Judgement;

    /// What a reply to something fetched is worth, and what is in it. Nothing of it is believed before; of parts that do not lie in
    /// the payload, or in what they are to be written into, the channel is taken for bad. `reply` is none where nobody was asked.
    fn accept(
        &mut self,
        plan: &Posted<'_>,
        piece: u16,
        reply: Option<(ChannelId, &Header)>,
        payload: &[u8],
        parts: &mut Parts,
    ) -> Judgement;

    /// By what that which a piece has just sent is retained, by `Keep`: with at most [`KEPT_BEFORE_MAX`] bytes before it. It is found
    /// when all is well with the piece, until its memory is needed or the group ends, by plans that name the same chunk in the same epoch.
    fn kept(&self, plan: &Posted<'_>, piece: u16) -> Option<Name> {
        let _ = (plan, piece);
        None
    }

    /// By what that which a piece is about to fetch may be retained: if it is, nobody is asked for it.
    fn sought(&self, plan: &Posted<'_>, piece: u16) -> Option<Name> {
        let _ = (plan, piece);
        None
    }

    /// As [`accept`](Self::accept), of what was retained: what was before the payload, and the payload without zeros behind it. If it is
    /// not good it is forgotten, and fetched.
    fn accept_kept(
        &mut self,
        plan: &Posted<'_>,
        piece: u16,
        before: &[u8],
        payload: &[u8],
        parts: &mut Parts,
    ) -> Judgement {
        let _ = (plan, piece, before, payload, parts);
        Judgement::Next
    }

    /// Where in an area a piece's bytes lie, if any do: without that, `ToHost` and `FromHost` fail. More than there are to be put there, or
    /// have room where they are to go, or what leaves the area, closes the group.
    fn area(&self, plan: &Posted<'_>, piece: u16, moved: Moved) -> Option<Area> {
        let _ = (plan, piece, moved);
        None
    }

    /// What the message is answered with, if it is not bytes: 0 if all is well.
    fn status(&self, plan: &Posted<'_>) -> u16;

    /// Whether a plan may answer now: by its own deadline. (The port looks at the gate.)
    fn may_answer(&self, now: Instant, plan: &Posted<'_>) -> bool;

    /// What the completion says of a piece, or of the plan (then `piece` is 0).
    fn words(&mut self, plan: &Posted<'_>, piece: u16, outcome: &Outcome) -> Words;

    /// A channel is gone: what was to be sent there has failed.
    fn channel_gone(&mut self, channel: ChannelId) {
        let _ = channel;
    }

    /// The next chunk whose writer has stopped, for the host to know.
    fn next_broken(&mut self) -> Option<Broken> {
        None
    }

    /// The group has ended: no slot is set any more, and plans under way are not asked about again.
    fn ended(&mut self);
}
