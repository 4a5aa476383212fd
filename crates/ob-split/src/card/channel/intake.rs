//! What peers ask that have connected here: one message of each at a time, as long as there is memory for it and the host wants more.
//!
//! ```text
//!                    memory is there              all of it is there              the host wants a message
//!   header ─▶ Awaited ────────────▶ Into ───────────────────────────▶ Whole ───────────────────────────▶ header …
//!       └─ longer than may be ─▶ Away ── read away, and refused ─▶ header …
//! ```
//!
//! Whoever is not at `header`, `Into` or `Away` is not received from: its peer waits, as TCP has it. A host that wants messages may have
//! those of another peer in mind: so one of whose messages it has some, and does nothing with them, is not at `Whole` for it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use ob_core::{ConnectionAction, ConnectionId, Instant};
use ob_memory::{Pool, Shared, Slice};

use super::{ChannelKey, Head, Input, Outgoing, Sending, Wire, Wires};
use crate::card::config::{IntakeConfig, PortConfig};
use crate::plant::{Bug, is_planted};
use crate::wire::{ACCEPTED_FROM, ChannelId, HEADER_LEN, Header, OVERSIZE, REPLY, REPLY_PAYLOAD_MAX};

/// Answers that wait for a peer to take them before no more is heard of it.
const ANSWERS_MAX: usize = 64;
/// In place of a tag: of an answer, which nobody awaits.
const NO_TAG: u64 = 0;

/// Memory for what peers ask, and who waits for what.
pub(super) struct Intake {
    /// From the shortest blocks to the longest, and how many were ever taken, modulo 2³².
    pools: Vec<(Pool, u32)>,
    payload_max: u32,
    stall: Duration,
    /// Messages of one peer that no plan is about.
    idle_max: u32,
    is_there: bool,
    /// Channels of which a message is there, in their order.
    whole: VecDeque<ChannelKey>,
    /// Channels that want memory, likewise, and how much; and what had come back when they asked last.
    wanting: VecDeque<(ChannelKey, u32)>,
    returned: u64,
    /// Channels that want some as well, but take what others do not need: the host has messages of them that it does nothing with.
    modest: VecDeque<ChannelKey>,
    /// Channels that are held up no more.
    opened: VecDeque<ChannelKey>,
    next_number: u16,
}

/// A message that a peer asks, as far as it is there.
pub(super) struct Taken {
    header: Header,
    payload: Payload,
    filled: usize,
}

/// Whether a peer is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hearing {
    On,
    /// It says no more, and may await answers. Whether the host knows.
    Ended {
        is_told: bool,
    },
    /// Nothing of it is read any more: it is gone, or has sent what is no message, and ends.
    Off,
}

/// Where a peer is that is about to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Leaving {
    /// Its connection ends now.
    Now,
    /// It has said all, and something is to be said to it. Whether the host knows.
    Listens { is_told: bool },
}

/// Where its payload goes.
enum Payload {
    Awaited,
    Into(Slice),
    Whole(Option<Slice>),
    Away,
}

impl Taken {
    pub(super) const fn new(header: Header) -> Self {
        Self { header, payload: Payload::Awaited, filled: 0 }
    }

    const fn left(&self) -> usize {
        (self.header.payload_len as usize).saturating_sub(self.filled)
    }

    /// Where its next bytes go; what is read away, into memory for nothing else.
    pub(super) fn place<'a>(&'a mut self, away: &'a mut [u8; REPLY_PAYLOAD_MAX]) -> Option<&'a mut [u8]> {
        let (filled, left) = (self.filled, self.left());
        match &mut self.payload {
            Payload::Into(slice) => slice.get_mut(filled..),
            Payload::Away => away.get_mut(..left.min(REPLY_PAYLOAD_MAX)),
            Payload::Awaited | Payload::Whole(_) => None,
        }
    }

    /// So many bytes came, of which those are said that were its own.
    pub(super) fn fill(&mut self, count: usize) -> usize {
        let room = match &self.payload {
            Payload::Into(_) => self.left(),
            Payload::Away => self.left().min(REPLY_PAYLOAD_MAX),
            Payload::Awaited | Payload::Whole(_) => 0,
        };
        let own = count.min(room);
        self.filled += own;
        own
    }

    /// Takes what has come ahead of it; how many bytes that were.
    fn take(&mut self, staged: &[u8]) -> usize {
        let count = staged.len().min(self.left());
        match (&mut self.payload, staged.get(..count)) {
            (Payload::Into(slice), Some(from)) => {
                if let Some(place) = slice.get_mut(self.filled..self.filled + count) {
                    place.copy_from_slice(from);
                }
            }
            (Payload::Away, Some(_)) => {}
            _ => return 0,
        }
        self.filled += count;
        count
    }
}

impl Intake {
    pub(super) fn new(config: &PortConfig) -> Self {
        let nothing = IntakeConfig { memory: Vec::new(), ..IntakeConfig::default() };
        let intake = config.intake.as_ref().unwrap_or(&nothing);
        let mut classes = intake.memory.clone();
        classes.sort_unstable();
        // What no block has room for would be waited for without end.
        let longest = classes.iter().filter(|(_, blocks)| *blocks > 0).map(|(len, _)| *len).max();
        // Whoever does nothing with messages of all of them has half of the handles for others.
        let share = config.handles_max / 2 / u32::from(config.channels_max.max(1));
        Self {
            pools: classes
                .iter()
                .map(|(len, blocks)| (Pool::new(*len as usize, *blocks as usize), 0))
                .collect(),
            payload_max: longest.unwrap_or(0).min(config.payload_max),
            stall: intake.stall,
            idle_max: intake.idle_max.min(share).max(1),
            is_there: config.intake.is_some(),
            whole: VecDeque::new(),
            wanting: VecDeque::new(),
            returned: 0,
            modest: VecDeque::new(),
            opened: VecDeque::new(),
            next_number: ACCEPTED_FROM,
        }
    }

    pub(super) const fn stall(&self) -> Duration {
        self.stall
    }

    pub(super) fn has_work(&self) -> bool {
        !self.opened.is_empty()
    }

    /// A channel is gone.
    pub(super) fn forget(&mut self, key: ChannelKey) {
        for waiting in [&mut self.whole, &mut self.modest, &mut self.opened] {
            waiting.retain(|other| *other != key);
        }
        self.wanting.retain(|(other, _)| *other != key);
    }

    pub(super) fn open_again(&mut self, key: ChannelKey) {
        if !self.opened.contains(&key) {
            self.opened.push_back(key);
        }
    }

    /// A block for so many bytes, but none that somebody waits for who wants `before` bytes at least.
    fn take(&mut self, len: u32, before: u32) -> Option<Slice> {
        let fitting = len as usize..before as usize;
        self.pools.iter_mut().filter(|(pool, _)| fitting.contains(&pool.block_len())).find_map(
            |(pool, taken)| {
                let mut slice = pool.take()?;
                *taken = taken.wrapping_add(1);
                slice.truncate(len as usize);
                Some(slice)
            },
        )
    }

    /// Whether half of the blocks of just the length that this needs are left with one more.
    fn has_plenty(&self, len: u32) -> bool {
        let own = self.pools.iter().find(|(pool, _)| pool.block_len() >= len as usize);
        own.is_some_and(|(pool, taken)| {
            2 * (taken.wrapping_sub(pool.returned()) as usize + 1) <= pool.blocks()
        })
    }

    /// The same for a peer that leaves half of the blocks to others.
    fn take_modestly(&mut self, key: ChannelKey, len: u32) -> Option<Slice> {
        if self.wanting.is_empty() && (self.has_plenty(len) || is_planted(Bug::IdleUnbounded)) {
            return self.take(len, u32::MAX);
        }
        if !self.modest.contains(&key) {
            self.modest.push_back(key);
        }
        None
    }

    /// A block for a message of a peer, who waits for one otherwise behind those who do.
    fn take_or_wait(&mut self, key: ChannelKey, len: u32) -> Option<Slice> {
        let place = self.wanting.iter().position(|(other, _)| *other == key);
        let ahead = self.wanting.iter().take(place.unwrap_or(usize::MAX)).map(|(_, wanted)| *wanted);
        let slice = self.take(len, ahead.min().unwrap_or(u32::MAX));
        match (place, &slice) {
            (Some(place), Some(_)) => _ = self.wanting.remove(place),
            (None, None) => self.wanting.push_back((key, len)),
            _ => {}
        }
        slice
    }

    fn returned(&self) -> u64 {
        self.pools.iter().map(|(pool, _)| u64::from(pool.returned())).sum()
    }

    fn blocks_out(&self) -> usize {
        self.pools.iter().map(|(pool, _)| pool.blocks_out()).sum()
    }
}

impl Wires {
    /// Whether peers may connect here at all.
    pub(in super::super) const fn has_intake(&self) -> bool {
        self.intake.is_there
    }

    /// Blocks of memory for messages that somebody has.
    pub(in super::super) fn intake_out(&self) -> usize {
        self.intake.blocks_out()
    }

    /// A peer has connected here: by what it is known, unless there are as many as may be.
    pub(in super::super) fn accept(
        &mut self,
        now: Instant,
        peer: SocketAddr,
        connection: ConnectionId,
    ) -> Option<ChannelKey> {
        let count = self.all.range(ChannelId(ACCEPTED_FROM)..).count();
        if !self.intake.is_there || count >= self.channels_max {
            return None;
        }
        let number = (0..=count).find_map(|_| {
            let number = ChannelId(self.intake.next_number);
            self.intake.next_number = self.intake.next_number.wrapping_add(1).max(ACCEPTED_FROM);
            (!self.all.contains_key(&number)).then_some(number)
        })?;
        let key = self.put(number, peer, true);
        let wire = self.get_mut(key)?;
        (wire.connection, wire.received_at) = (Some(connection), now);
        Some(key)
    }

    /// Goes on with what a peer asks. Whether it is over, and the next may come.
    pub(super) fn take_request(&mut self, now: Instant, key: ChannelKey) -> bool {
        let Self { all, intake, .. } = self;
        let Some(wire) = all.get_mut(&key.channel).filter(|wire| wire.life == key.life) else {
            return false;
        };
        let Input::Request(taken) = &mut wire.input else { return true };
        let len = taken.header.payload_len;
        match taken.payload {
            Payload::Whole(_) => return false,
            Payload::Awaited if len > intake.payload_max => taken.payload = Payload::Away,
            Payload::Awaited if len > 0 => {
                let slice = if wire.idle > 0 {
                    intake.take_modestly(key, len)
                } else {
                    intake.take_or_wait(key, len)
                };
                let Some(slice) = slice else { return false };
                (taken.payload, wire.received_at) = (Payload::Into(slice), now);
            }
            Payload::Awaited | Payload::Into(_) | Payload::Away => {}
        }
        let count = taken.take(wire.staged.get(..wire.staged_len).unwrap_or_default());
        let is_whole = taken.left() == 0;
        if is_whole && !matches!(taken.payload, Payload::Away) {
            let slice = std::mem::replace(&mut taken.payload, Payload::Whole(None));
            taken.payload = Payload::Whole(if let Payload::Into(slice) = slice { Some(slice) } else { None });
            intake.whole.push_back(key);
        }
        wire.unstage(count);
        self.check_stall(now);
        let Some(wire) = self.get_mut(key) else { return false };
        let is_away = matches!(&wire.input, Input::Request(Taken { payload: Payload::Away, .. }));
        if !is_whole || !is_away {
            return false;
        }
        if let Input::Request(Taken { header, .. }) = std::mem::replace(&mut wire.input, Input::Header) {
            self.answer(now, key, &header, OVERSIZE, None);
        }
        true
    }

    /// The next message that a peer asks of whose messages the host has not too many that it does nothing with. Those of one peer do not
    /// go before another's.
    pub(in super::super) fn next_request(&mut self) -> Option<(ChannelKey, Header, Option<Slice>)> {
        while let Some(place) = self.next_whole() {
            let Some(key) = self.intake.whole.remove(place) else { break };
            let Some(wire) = self.get_mut(key) else { continue };
            if let Input::Request(Taken { header, payload: Payload::Whole(slice), .. }) = &mut wire.input {
                let (header, slice) = (*header, slice.take());
                wire.input = Input::Header;
                self.intake.open_again(key);
                return Some((key, header, slice));
            }
        }
        None
    }

    fn next_whole(&self) -> Option<usize> {
        let idle_max = if is_planted(Bug::IdleUnbounded) { u32::MAX } else { self.intake.idle_max };
        let may_come = |key: &ChannelKey| self.get(*key).is_none_or(|wire| wire.idle < idle_max);
        self.intake.whole.iter().position(may_come)
    }

    /// The next channel that is held up no more: what has come of it ahead is looked at, and it is received from.
    pub(in super::super) fn next_opened(&mut self, now: Instant) -> Option<ChannelKey> {
        self.give_memory(now);
        while let Some(key) = self.intake.opened.pop_front() {
            let Some(wire) = self.get_mut(key) else { continue };
            if let Some(connection) = wire.connection {
                // Until now it was not its turn.
                wire.received_at = now;
                self.actions.push_back(ConnectionAction::Resume(connection));
                return Some(key);
            }
        }
        None
    }

    /// Those that wait for memory get it in their order.
    fn give_memory(&mut self, now: Instant) {
        let Self { all, intake, .. } = self;
        // What comes back while somebody asks is seen the next time.
        let returned = intake.returned();
        let wants = !intake.wanting.is_empty() || !intake.modest.is_empty();
        if !wants || std::mem::replace(&mut intake.returned, returned) == returned {
            return;
        }
        let mut place = 0;
        while let Some((key, len)) = intake.wanting.get(place).copied() {
            let wire = all.get_mut(&key.channel).filter(|wire| wire.life == key.life);
            if let Some(Wire { input: Input::Request(taken), received_at, .. }) = wire {
                let Some(slice) = intake.take_or_wait(key, len) else {
                    place += 1;
                    continue;
                };
                (taken.payload, *received_at) = (Payload::Into(slice), now);
                intake.open_again(key);
            } else {
                intake.wanting.remove(place);
            }
        }
        while let Some(key) = intake.modest.pop_front() {
            intake.open_again(key);
        }
        self.check_stall(now);
    }

    /// Answers what a peer has asked.
    pub(in super::super) fn answer(
        &mut self,
        now: Instant,
        key: ChannelKey,
        asked: &Header,
        status: u16,
        payload: Option<Shared>,
    ) {
        let Some(wire) = self.get_mut(key).filter(|wire| wire.is_up) else { return };
        let payload_len = payload.as_ref().map_or(0, |payload| payload.len() as u32);
        let kind = asked.kind | REPLY;
        let header = Header { kind, status, flags: 0, payload_len, rest: [0; 40], ..*asked };
        let header = Head::Own(header.encode());
        let message = Outgoing { header, before: None, payload, zeros: 0 };
        wire.owe(now);
        let len = message.len() as u64;
        wire.output.push_back(Sending { message, len, tag: NO_TAG, is_fetch: false });
        if !std::mem::replace(&mut wire.is_dirty, true) {
            self.dirty.push_back(key);
        }
        self.check_stall(now);
    }

    /// The host is to be told of a message of a peer, and no plan is about it yet.
    pub(in super::super) fn held(&mut self, key: ChannelKey) {
        if let Some(wire) = self.get_mut(key) {
            (wire.held, wire.idle) = (wire.held + 1, wire.idle + 1);
        }
    }

    /// A plan about a message of a peer begins, or ends.
    pub(in super::super) fn idles(&mut self, key: ChannelKey, is_idle: bool) {
        let Some(wire) = self.get_mut(key) else { return };
        wire.idle = if is_idle { wire.idle + 1 } else { wire.idle.saturating_sub(1) };
        // Then it need not leave memory to others any more.
        if wire.idle == 0
            && let Some(place) = self.intake.modest.iter().position(|other| *other == key)
        {
            self.intake.modest.remove(place);
            self.intake.open_again(key);
        }
    }

    /// A message of a peer is answered, or given back.
    pub(in super::super) fn let_go(&mut self, key: ChannelKey) {
        if let Some(wire) = self.get_mut(key) {
            wire.held = wire.held.saturating_sub(1);
        }
    }

    /// A peer has ended its side: whether it may still await answers. Of a message that it has begun nothing more comes.
    pub(in super::super) fn has_said_all(&mut self, key: ChannelKey) -> bool {
        let Some(wire) = self.get_mut(key).filter(|wire| wire.is_accepted && wire.hearing == Hearing::On)
        else {
            return false;
        };
        wire.hearing = Hearing::Ended { is_told: false };
        if matches!(wire.input, Input::Request(_)) {
            wire.input = Input::Header;
        }
        wire.staged_len = 0;
        self.intake.forget(key);
        true
    }

    /// Nothing of a peer is read any more.
    pub(in super::super) fn stop(&mut self, key: ChannelKey) {
        if let Some(wire) = self.get_mut(key) {
            wire.hearing = Hearing::Off;
            self.intake.forget(key);
        }
    }

    /// Where a peer is that is about to leave; nothing if it is gone.
    pub(in super::super) fn leaving(&self, key: ChannelKey) -> Option<Leaving> {
        let wire = self.get(key)?;
        let has_all =
            wire.held == 0 && wire.output.is_empty() && wire.reads.is_empty() && wire.rest.is_empty();
        Some(match wire.hearing {
            Hearing::Ended { is_told } if !has_all => Leaving::Listens { is_told },
            Hearing::On | Hearing::Ended { .. } | Hearing::Off => Leaving::Now,
        })
    }

    /// The host knows that a peer says no more.
    pub(in super::super) fn told_of_end(&mut self, key: ChannelKey) {
        if let Some(wire) = self.get_mut(key) {
            wire.hearing = Hearing::Ended { is_told: true };
        }
    }

    /// Somebody may stand still from now on.
    pub(super) fn check_stall(&mut self, now: Instant) {
        let at = now + self.intake.stall;
        self.check_at = self.check_at.into_iter().chain([at]).min();
    }
}

impl Wire {
    /// Whether its peer takes too little of what it is answered to ask for more.
    pub(super) const fn answers_too_little(&self) -> bool {
        self.answers >= ANSWERS_MAX
    }

    /// An answer is to be sent.
    pub(super) fn owe(&mut self, now: Instant) {
        if self.answers == 0 {
            self.sent_at = now;
        }
        self.answers += 1;
    }

    /// Since when its peer stands still, if it is its turn: to go on with a message, or to take answers. What it does of the one says nothing
    /// of the other.
    pub(super) fn stalls_since(&self) -> Option<Instant> {
        if self.hearing == Hearing::Off {
            return None;
        }
        let is_amidst = self.is_accepted
            && match &self.input {
                Input::Request(taken) => matches!(taken.payload, Payload::Into(_) | Payload::Away),
                // A part of a header.
                Input::Header => (1..HEADER_LEN).contains(&self.staged_len),
                Input::Payload { .. } => false,
            };
        let receives = is_amidst.then_some(self.received_at);
        let sends = (self.answers > 0).then_some(self.sent_at);
        receives.into_iter().chain(sends).min()
    }

    /// A message is sent, all of it. Who awaits just that.
    pub(super) fn is_sent(&mut self, tag: u64) -> Option<super::Awaiter> {
        if tag == NO_TAG {
            self.answers = self.answers.saturating_sub(1);
            return None;
        }
        let place = self.unanswered.binary_search_by_key(&tag, |asked| asked.tag).ok()?;
        let asked = self.unanswered.get_mut(place)?;
        asked.is_sent = true;
        if !asked.is_answer {
            return None;
        }
        // It is there, and takes what it is sent.
        (self.answers, self.silences) = (self.answers.saturating_sub(1), 0);
        let asked = self.unanswered.remove(place)?;
        let ask = asked.ask?;
        self.leave_window(asked.len);
        Some(ask.awaiter)
    }
}
