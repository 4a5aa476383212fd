//! What peers ask that have connected here: one message of each at a time, as long as there is memory for it and the host wants more.
//!
//! ```text
//!                    memory is there              all of it is there              the host wants a message
//!   header ─▶ Awaited ────────────▶ Into ───────────────────────────▶ Whole ───────────────────────────▶ header …
//!       └─ longer than may be ─▶ Away ── read away, and refused ─▶ header …
//! ```
//!
//! Whoever is not at `header`, `Into` or `Away` is not received from: its peer waits, as TCP has it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use ob_core::{ConnectionAction, ConnectionId, Instant};
use ob_memory::{Pool, Shared, Slice};

use super::{ChannelKey, Head, Input, Outgoing, Sending, Wire, Wires};
use crate::card::config::{IntakeConfig, PortConfig};
use crate::wire::{ACCEPTED_FROM, ChannelId, Header, OVERSIZE, REPLY, REPLY_PAYLOAD_MAX};

/// Answers that wait for a peer to take them before no more is heard of it.
const ANSWERS_MAX: usize = 64;
/// In place of a tag: of an answer, which nobody awaits.
const NO_TAG: u64 = 0;

/// Memory for what peers ask, and who waits for what.
pub(super) struct Intake {
    /// From the shortest blocks to the longest.
    pools: Vec<Pool>,
    payload_max: u32,
    stall: Duration,
    is_there: bool,
    /// Channels of which a message is there, in their order.
    whole: VecDeque<ChannelKey>,
    /// Channels that want memory, likewise; and what had come back when the first of them asked last.
    wanting: VecDeque<ChannelKey>,
    returned: u64,
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
        Self {
            pools: classes.iter().map(|(len, blocks)| Pool::new(*len as usize, *blocks as usize)).collect(),
            payload_max: longest.unwrap_or(0).min(config.payload_max),
            stall: intake.stall,
            is_there: config.intake.is_some(),
            whole: VecDeque::new(),
            wanting: VecDeque::new(),
            returned: 0,
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
        for waiting in [&mut self.whole, &mut self.wanting, &mut self.opened] {
            waiting.retain(|other| *other != key);
        }
    }

    pub(super) fn open_again(&mut self, key: ChannelKey) {
        if !self.opened.contains(&key) {
            self.opened.push_back(key);
        }
    }

    fn take(&self, len: u32) -> Option<Slice> {
        let fits = |pool: &&Pool| pool.block_len() >= len as usize;
        let mut slice = self.pools.iter().filter(fits).find_map(Pool::take)?;
        slice.truncate(len as usize);
        Some(slice)
    }

    fn returned(&self) -> u64 {
        self.pools.iter().map(|pool| u64::from(pool.returned())).sum()
    }

    fn blocks_out(&self) -> usize {
        self.pools.iter().map(Pool::blocks_out).sum()
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
        (wire.connection, wire.moved_at) = (Some(connection), now);
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
            Payload::Awaited if len > 0 => match intake.take(len) {
                Some(slice) => (taken.payload, wire.moved_at) = (Payload::Into(slice), now),
                None => {
                    if !intake.wanting.contains(&key) {
                        intake.wanting.push_back(key);
                    }
                    return false;
                }
            },
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

    /// The next message that a peer asks. Those of one peer do not go before another's.
    pub(in super::super) fn next_request(&mut self) -> Option<(ChannelKey, Header, Option<Slice>)> {
        while let Some(key) = self.intake.whole.pop_front() {
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

    /// The next channel that is held up no more: what has come of it ahead is looked at, and it is received from.
    pub(in super::super) fn next_opened(&mut self, now: Instant) -> Option<ChannelKey> {
        self.give_memory(now);
        while let Some(key) = self.intake.opened.pop_front() {
            if let Some(connection) = self.get(key).and_then(|wire| wire.connection) {
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
        if intake.wanting.is_empty() || std::mem::replace(&mut intake.returned, returned) == returned {
            return;
        }
        while let Some(key) = intake.wanting.front().copied() {
            if let Some(wire) = all.get_mut(&key.channel).filter(|wire| wire.life == key.life)
                && let Input::Request(taken) = &mut wire.input
            {
                let Some(slice) = intake.take(taken.header.payload_len) else { break };
                (taken.payload, wire.moved_at) = (Payload::Into(slice), now);
                intake.open_again(key);
            }
            intake.wanting.pop_front();
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
        if wire.answers == 0 {
            wire.moved_at = now;
        }
        wire.answers += 1;
        let len = message.len() as u64;
        wire.output.push_back(Sending { message, len, tag: NO_TAG, is_fetch: false });
        if !std::mem::replace(&mut wire.is_dirty, true) {
            self.dirty.push_back(key);
        }
        self.check_stall(now);
    }

    /// Somebody may stand still from now on.
    fn check_stall(&mut self, now: Instant) {
        let at = now + self.intake.stall;
        self.check_at = self.check_at.into_iter().chain([at]).min();
    }
}

impl Wire {
    /// Whether its peer takes too little of what it is answered to ask for more.
    pub(super) const fn answers_too_little(&self) -> bool {
        self.answers >= ANSWERS_MAX
    }

    /// Since when its peer stands still, if it is its turn.
    pub(super) fn stalls_since(&self) -> Option<Instant> {
        let is_amidst = |taken: &Taken| matches!(taken.payload, Payload::Into(_) | Payload::Away);
        let owes = matches!(&self.input, Input::Request(taken) if is_amidst(taken));
        (owes || self.answers > 0).then_some(self.moved_at)
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
        let asked = self.unanswered.remove(place)?;
        let ask = asked.ask?;
        self.leave_window(asked.len);
        Some(ask.awaiter)
    }
}
