//! Channels: connections to peers, what waits to be sent there, and what was asked and is not answered.
//!
//! ```text
//!   ask ─▶ reads, rest ─ room in the window ─▶ output (header 64 B, before, payload, zeros: one vectored send) ─▶ peer
//!                                                │ tag, who awaits it, from now on                               │
//!                                                ▼                                                               ▼
//!                                             unanswered ◀── tag ── header, then payload into the memory that waits for it
//! ```
//!
//! What waits for room is not late: only from then on can its peer know of it. Reads have somebody who waits for them alone, and go
//! before what is not on its way yet.
//!
//! Who has connected here asks too: [`intake`].

mod intake;

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::time::Duration;

use ob_core::{ConnectionAction, ConnectionId, Instant};
use ob_memory::{Shared, Slice};

use super::config::PortConfig;
use super::dialect::ZEROS_MAX;
use super::flight::FlightKey;
use crate::plant::{Bug, is_planted};
use crate::wire::{ACCEPTED_FROM, ChannelId, HEADER_LEN, Header, REPLY_PAYLOAD_MAX};
pub(super) use intake::Leaving;
use intake::{Hearing, Intake, Taken};

/// Bytes that are received before it is known what they are: some replies without payload at once, and little of a payload.
const STAGED_LEN: usize = 512;
/// A peer that has let so many patiences pass, one behind the other, and has said nothing in between, is as good as gone.
const SILENCES_MAX: u32 = 5;
/// Likewise one that leaves so many times the requests unanswered that it may have at a time: those were given up, and others asked.
const UNANSWERED_TIMES: usize = 4;
/// Slices of a message: header, what comes before the payload, the payload, zeros.
const SLICES: usize = 4;
static ZEROS: [u8; ZEROS_MAX as usize] = [0; ZEROS_MAX as usize];

/// By what a connection is known to its [`Streams`](ob_core::Streams): a channel, and which of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelKey {
    pub(super) channel: ChannelId,
    life: u32,
}

/// Who awaits a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Awaiter {
    pub(super) flight: FlightKey,
    pub(super) piece: u16,
    /// Which of the place's channels it is.
    pub(super) member: u8,
    /// A `Fetch` awaits it, and no `Merge`.
    pub(super) is_fetch: bool,
    /// Of several sends the how manieth.
    pub(super) round: u8,
}

/// The header of a message to a peer.
pub(super) enum Head {
    /// In memory that was taken for it.
    Shared(Shared),
    /// By itself.
    Own([u8; HEADER_LEN]),
}

/// A message to a peer.
pub(super) struct Outgoing {
    pub(super) header: Head,
    pub(super) before: Option<Shared>,
    pub(super) payload: Option<Shared>,
    pub(super) zeros: u8,
}

/// What is to be known of its reply.
pub(super) struct Ask {
    pub(super) awaiter: Awaiter,
    pub(super) reply_len_max: u32,
    /// How long it is waited for, once it may be sent.
    pub(super) patience: Duration,
    /// Where the reply's payload goes; if nowhere, what is not long is kept until the next.
    pub(super) into: Option<Slice>,
    /// It is an answer to its peer, who says nothing to that: it is good once it is sent.
    pub(super) is_answer: bool,
}

/// A message that waits for room in the window.
struct Queued {
    message: Outgoing,
    tag: u64,
    ask: Ask,
    since: Instant,
}

/// A message that may be sent.
struct Sending {
    message: Outgoing,
    len: u64,
    tag: u64,
    is_fetch: bool,
}

/// A message that was sent, or may be.
struct Asked {
    tag: u64,
    len: u64,
    reply_len_max: u32,
    /// None once it was given up: it is not in the window any more.
    ask: Option<Ask>,
    since: Instant,
    deadline: Instant,
    is_sent: bool,
    /// It is an answer: nothing is said to it.
    is_answer: bool,
}

/// A reply that is there, whole.
pub(super) struct Reply {
    pub(super) awaiter: Awaiter,
    pub(super) header: Header,
    /// The memory that waited for the payload, with the payload at its front.
    pub(super) into: Option<Slice>,
    pub(super) len: u32,
}

/// What comes next from the peer.
enum Input {
    Header,
    /// The payload of a reply: to whom, how much is there. Nobody: it is read away.
    Payload {
        header: Header,
        ask: Option<Ask>,
        deadline: Instant,
        filled: usize,
    },
    /// What a peer asks that has connected here.
    Request(Taken),
}

struct Wire {
    life: u32,
    address: SocketAddr,
    connection: Option<ConnectionId>,
    is_up: bool,
    is_dirty: bool,
    /// Its peer has connected here, and may ask.
    is_accepted: bool,
    /// Whether it is heard.
    hearing: Hearing,
    /// Its messages that are not answered, and how many of them no plan is about.
    held: u32,
    idle: u32,
    /// Answers to it that are not sent.
    answers: usize,
    /// When something of it has come last, and of what is sent to it has gone: since then it stands still, if it is its turn.
    received_at: Instant,
    sent_at: Instant,
    reads: VecDeque<Queued>,
    rest: VecDeque<Queued>,
    output: VecDeque<Sending>,
    /// Bytes of the first message that are sent.
    sent: usize,
    /// In the order of tags.
    unanswered: VecDeque<Asked>,
    /// How often in a row somebody has waited in vain, and since when that is the last time.
    silences: u32,
    silent_since: Instant,
    window_requests: u32,
    window_bytes: u64,
    input: Input,
    staged: Box<[u8; STAGED_LEN]>,
    staged_len: usize,
    /// The payload of a reply that is not long, or of one that nobody awaits.
    small: Box<[u8; REPLY_PAYLOAD_MAX]>,
}

/// Why a channel ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Garbage {
    #[error("what its peer sends is no reply of its protocol")]
    Header,
    #[error("its peer answers what nobody has asked")]
    Tag,
    #[error("its peer answers with more bytes than may be")]
    Length,
}

/// The channels of a port.
pub(super) struct Wires {
    all: BTreeMap<ChannelId, Wire>,
    next_life: u32,
    next_tag: u64,
    magic: [u8; 2],
    channels_max: usize,
    requests_max: u32,
    window_len: u64,
    dirty: VecDeque<ChannelKey>,
    actions: VecDeque<ConnectionAction>,
    /// Not before this has anybody waited for long enough.
    check_at: Option<Instant>,
    intake: Intake,
    /// Answers of plans that are sent.
    delivered: VecDeque<Awaiter>,
}

impl Outgoing {
    fn slices(&self) -> [&[u8]; SLICES] {
        let zeros = ZEROS.get(..usize::from(self.zeros)).unwrap_or_default();
        let header: &[u8] = match &self.header {
            Head::Shared(shared) => shared,
            Head::Own(bytes) => bytes,
        };
        let [before, payload] = [&self.before, &self.payload].map(|of| of.as_deref().unwrap_or_default());
        [header, before, payload, zeros]
    }

    fn len(&self) -> usize {
        self.slices().iter().map(|slice| slice.len()).sum()
    }
}

impl Wires {
    pub(super) fn new(config: &PortConfig, magic: [u8; 2]) -> Self {
        Self {
            all: BTreeMap::new(),
            next_life: 1,
            next_tag: 1,
            magic,
            channels_max: config.channels_max.into(),
            requests_max: config.requests_max.max(1),
            window_len: config.window_len,
            dirty: VecDeque::new(),
            actions: VecDeque::new(),
            check_at: None,
            intake: Intake::new(config),
            delivered: VecDeque::new(),
        }
    }

    /// A channel that is to be connected; none if there is one of that number, or no room beside so many listeners.
    pub(super) fn insert(
        &mut self,
        channel: ChannelId,
        address: SocketAddr,
        listeners: usize,
    ) -> Option<ChannelKey> {
        // The number of one that is over can be used again.
        let is_free = match self.all.get(&channel) {
            Some(wire) => wire.life == 0,
            None => self.count_of_host() + listeners < self.channels_max,
        };
        is_free.then(|| self.put(channel, address, false))
    }

    /// How many there are that the host has numbered.
    pub(super) fn count_of_host(&self) -> usize {
        self.all.range(..ChannelId(ACCEPTED_FROM)).count()
    }

    fn put(&mut self, channel: ChannelId, address: SocketAddr, is_accepted: bool) -> ChannelKey {
        let life = self.next_life;
        self.next_life = self.next_life.wrapping_add(1).max(1);
        let wire = Wire {
            life,
            address,
            connection: None,
            is_up: is_accepted,
            is_dirty: false,
            is_accepted,
            hearing: Hearing::On,
            held: 0,
            idle: 0,
            answers: 0,
            received_at: Instant::default(),
            sent_at: Instant::default(),
            reads: VecDeque::new(),
            rest: VecDeque::new(),
            output: VecDeque::new(),
            sent: 0,
            unanswered: VecDeque::new(),
            silences: 0,
            silent_since: Instant::default(),
            window_requests: 0,
            window_bytes: 0,
            input: Input::Header,
            staged: Box::new([0; STAGED_LEN]),
            staged_len: 0,
            small: Box::new([0; REPLY_PAYLOAD_MAX]),
        };
        self.all.insert(channel, wire);
        ChannelKey { channel, life }
    }

    /// Whether there is such a channel, up or not.
    pub(super) fn has(&self, channel: ChannelId) -> bool {
        self.all.contains_key(&channel)
    }

    /// Whether its connection is gone, and its number waits to be used again.
    pub(super) fn is_over(&self, channel: ChannelId) -> bool {
        self.all.get(&channel).is_some_and(|wire| wire.life == 0)
    }

    pub(super) fn is_up(&self, channel: ChannelId) -> bool {
        self.all.get(&channel).is_some_and(|wire| wire.is_up)
    }

    pub(super) fn address(&self, key: ChannelKey) -> Option<SocketAddr> {
        self.get(key).map(|wire| wire.address)
    }

    /// The connection of a channel that was just begun.
    pub(super) fn connecting(&mut self, key: ChannelKey, connection: ConnectionId) {
        if let Some(wire) = self.get_mut(key) {
            wire.connection = Some(connection);
        }
    }

    /// Its peer is there.
    pub(super) fn connected(&mut self, key: ChannelKey) -> Option<u16> {
        let wire = self.get_mut(key)?;
        wire.is_up = true;
        Some(wire.address.port())
    }

    pub(super) fn keys(&self) -> Vec<ChannelKey> {
        self.all.iter().map(|(channel, wire)| ChannelKey { channel: *channel, life: wire.life }).collect()
    }

    pub(super) fn key_of(&self, channel: ChannelId) -> Option<ChannelKey> {
        self.all.get(&channel).map(|wire| ChannelKey { channel, life: wire.life })
    }

    /// Ends the connection of a channel. Whoever awaited something of it is told in `failed`, with memory that was lent. Whether it was
    /// up. The channel stays, and is down, until it is forgotten.
    pub(super) fn end(
        &mut self,
        key: ChannelKey,
        failed: &mut Vec<(Awaiter, Option<Slice>)>,
    ) -> Option<bool> {
        // One that is over has no life, and ends no more.
        let wire = self.get_mut(key).filter(|wire| wire.life != 0)?;
        // From now on nothing is known by this life.
        wire.life = 0;
        let (connection, was_up) = (wire.connection.take(), std::mem::take(&mut wire.is_up));
        let input = std::mem::replace(&mut wire.input, Input::Header);
        // What it was asking for is dropped with it.
        let receiving = if let Input::Payload { ask, .. } = input { ask } else { None };
        let asked = wire.unanswered.drain(..).filter_map(|asked| asked.ask);
        let queued = wire.reads.drain(..).chain(wire.rest.drain(..)).map(|queued| queued.ask);
        failed.extend(asked.chain(queued).chain(receiving).map(|ask| (ask.awaiter, ask.into)));
        wire.output.clear();
        (wire.sent, wire.window_requests, wire.window_bytes, wire.answers) = (0, 0, 0, 0);
        self.intake.forget(key);
        self.actions.extend(connection.map(ConnectionAction::Close));
        Some(was_up)
    }

    /// The number can be used again.
    pub(super) fn forget(&mut self, channel: ChannelId) {
        self.all.remove(&channel);
    }

    /// The tag of the next message.
    pub(super) fn take_tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag - 1
    }

    /// Sends a message with a tag just taken, when there is room for it among those unanswered. `Err` if the channel is down.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        channel: ChannelId,
        tag: u64,
        message: Outgoing,
        ask: Ask,
    ) -> Result<(), Ask> {
        let Some(wire) = self.all.get_mut(&channel).filter(|wire| wire.is_up) else { return Err(ask) };
        let line = if ask.awaiter.is_fetch { &mut wire.reads } else { &mut wire.rest };
        line.push_back(Queued { message, tag, ask, since: now });
        let key = ChannelKey { channel, life: wire.life };
        self.widen(now, key);
        Ok(())
    }

    /// Whether what is asked of a channel now may be sent now.
    pub(super) fn has_room(&self, channel: ChannelId) -> bool {
        let is_free =
            |wire: &Wire| wire.is_up && wire.reads.is_empty() && wire.window_requests < self.requests_max;
        self.all.get(&channel).is_some_and(is_free)
    }

    /// Lets as many more messages go as may be unanswered.
    fn widen(&mut self, now: Instant, key: ChannelKey) {
        let (requests_max, window_len) = (self.requests_max, self.window_len);
        let mut check_at = self.check_at;
        let Some(wire) = self.get_mut(key) else { return };
        while let Some(next) = wire.reads.front().or_else(|| wire.rest.front()) {
            let len = next.message.len() as u64;
            let has_room = wire.window_requests < requests_max && wire.window_bytes + len <= window_len;
            if !has_room && wire.window_requests > 0 {
                break;
            }
            let Some(next) = wire.reads.pop_front().or_else(|| wire.rest.pop_front()) else { break };
            let from = if is_planted(Bug::QueueLate) { next.since } else { now };
            let deadline = from + next.ask.patience;
            check_at = check_at.into_iter().chain([deadline]).min();
            wire.admit(now, deadline, next, len);
        }
        let is_dirty = !wire.output.is_empty() && !std::mem::replace(&mut wire.is_dirty, true);
        let owes = wire.answers > 0;
        self.check_at = check_at;
        if owes {
            self.check_stall(now);
        }
        if is_dirty {
            self.dirty.push_back(key);
        }
    }

    pub(super) fn writable(&mut self, key: ChannelKey) {
        if let Some(wire) = self.get_mut(key)
            && !wire.output.is_empty()
            && !std::mem::replace(&mut wire.is_dirty, true)
        {
            self.dirty.push_back(key);
        }
    }

    pub(super) fn next_dirty(&mut self) -> Option<(ChannelKey, ConnectionId)> {
        while let Some(key) = self.dirty.pop_front() {
            if let Some(wire) = self.get_mut(key) {
                wire.is_dirty = false;
                if let Some(connection) = wire.connection.filter(|_| wire.is_up) {
                    return Some((key, connection));
                }
            }
        }
        None
    }

    pub(super) fn next_action(&mut self) -> Option<ConnectionAction> {
        self.actions.pop_front()
    }

    pub(super) fn transmit<'a>(&'a self, key: ChannelKey, into: &mut [IoSlice<'a>]) -> usize {
        let Some(wire) = self.get(key) else { return 0 };
        let mut skip = wire.sent;
        let mut filled = 0;
        for sending in &wire.output {
            for slice in sending.message.slices() {
                let rest = slice.get(skip..).unwrap_or_default();
                skip = skip.saturating_sub(slice.len());
                if rest.is_empty() {
                    continue;
                }
                let Some(place) = into.get_mut(filled) else { return filled };
                *place = IoSlice::new(rest);
                filled += 1;
            }
        }
        filled
    }

    /// So much was sent: memory of messages that are out is let go. Whether there is more that the network may take.
    pub(super) fn sent(&mut self, now: Instant, key: ChannelKey, count: usize, offered: usize) -> bool {
        let Some(wire) = self.all.get_mut(&key.channel).filter(|wire| wire.life == key.life) else {
            return false;
        };
        wire.sent += count;
        let was_full = wire.answers_too_little();
        if count > 0 {
            wire.sent_at = now;
        }
        let delivered = self.delivered.len();
        while let Some(Sending { len, tag, .. }) = wire.output.front()
            && let Some(rest) = wire.sent.checked_sub(*len as usize)
        {
            let tag = *tag;
            wire.sent = rest;
            wire.output.pop_front();
            self.delivered.extend(wire.is_sent(tag));
        }
        let has_more = !wire.output.is_empty() && count == offered;
        if was_full && !wire.answers_too_little() {
            self.intake.open_again(key);
        }
        if self.delivered.len() > delivered {
            self.widen(now, key);
        }
        has_more
    }

    /// The next answer of a plan that is sent.
    pub(super) fn next_delivered(&mut self) -> Option<Awaiter> {
        self.delivered.pop_front()
    }

    pub(super) fn receive_into(&mut self, key: ChannelKey) -> Option<[&mut [u8]; 2]> {
        let wire = self.get_mut(key).filter(|wire| wire.hearing == Hearing::On)?;
        let is_held_up = wire.answers_too_little();
        let staged = wire.staged.get_mut(wire.staged_len..)?;
        match &mut wire.input {
            Input::Header => (!is_held_up && !staged.is_empty()).then_some([staged, &mut []]),
            Input::Request(taken) => Some([taken.place(&mut wire.small)?, staged]),
            Input::Payload { header, ask, filled, .. } => {
                let len = header.payload_len as usize;
                let place = match ask.as_mut().and_then(|ask| ask.into.as_mut()) {
                    Some(into) => into.get_mut(*filled..len)?,
                    // What does not fit there is read away: nobody awaits it.
                    None if len <= REPLY_PAYLOAD_MAX => wire.small.get_mut(*filled..len)?,
                    None => wire.small.get_mut(..(len - *filled).min(REPLY_PAYLOAD_MAX))?,
                };
                Some([place, staged])
            }
        }
    }

    pub(super) fn received(&mut self, now: Instant, key: ChannelKey, count: usize) {
        let Some(wire) = self.get_mut(key) else { return };
        wire.received_at = now;
        let mut count = count;
        if let Input::Request(taken) = &mut wire.input {
            count -= taken.fill(count);
        }
        if let Input::Payload { header, filled, ask, .. } = &mut wire.input {
            let left = header.payload_len as usize - *filled;
            let has_place = ask.as_ref().is_some_and(|ask| ask.into.is_some());
            let room = if has_place { left } else { left.min(REPLY_PAYLOAD_MAX) };
            *filled += count.min(room);
            count -= count.min(room);
        }
        wire.staged_len += count;
    }

    /// The next reply that is there, whole, and that somebody awaits.
    pub(super) fn next_reply(&mut self, now: Instant, key: ChannelKey) -> Result<Option<Reply>, Garbage> {
        let magic = self.magic;
        loop {
            let wire = self.get_mut(key).filter(|wire| wire.hearing == Hearing::On);
            let Some(wire) = wire else { return Ok(None) };
            if matches!(wire.input, Input::Header) && !wire.take_header(magic)? {
                // There may be a part of one.
                if wire.stalls_since().is_some() {
                    self.check_stall(now);
                }
                return Ok(None);
            }
            if matches!(wire.input, Input::Request(_)) {
                if self.take_request(now, key) {
                    continue;
                }
                return Ok(None);
            }
            if !wire.take_payload() {
                return Ok(None);
            }
            let Input::Payload { header, ask, .. } = std::mem::replace(&mut wire.input, Input::Header) else {
                return Ok(None);
            };
            wire.silences = 0;
            self.widen(now, key);
            if let Some(Ask { awaiter, into, .. }) = ask {
                return Ok(Some(Reply { awaiter, header, into, len: header.payload_len }));
            }
        }
    }

    /// The payload of the reply just given, if it went nowhere else.
    pub(super) fn small(&self, key: ChannelKey, len: u32) -> &[u8] {
        self.get(key).and_then(|wire| wire.small.get(..len as usize)).unwrap_or_default()
    }

    /// Gives up what has been awaited for too long; its reply, if it comes at all, is read away. Others go in its place. Channels whose
    /// peers say nothing any more are told in `mute`.
    pub(super) fn expire(
        &mut self,
        now: Instant,
        failed: &mut Vec<(Awaiter, Option<Slice>)>,
        mute: &mut Vec<ChannelKey>,
    ) {
        if self.check_at.is_none_or(|at| now < at) {
            return;
        }
        let unanswered_max = self.requests_max as usize * UNANSWERED_TIMES;
        let stall = self.intake.stall();
        self.check_at = None;
        let mut at = ChannelId(0);
        while let Some((channel, wire)) = self.all.range_mut(at..).next() {
            let key = ChannelKey { channel: *channel, life: wire.life };
            let was_full = wire.answers_too_little();
            let next = wire.expire(now, failed);
            if was_full && !wire.answers_too_little() {
                self.intake.open_again(key);
            }
            let stalls = wire.stalls_since().map(|since| since + stall);
            let says_nothing = wire.silences >= SILENCES_MAX || wire.unanswered.len() > unanswered_max;
            // One that is about to be ended is told once.
            let is_mute =
                wire.hearing != Hearing::Off && (says_nothing || stalls.is_some_and(|at| at <= now));
            self.check_at = self.check_at.into_iter().chain(next).chain(stalls).min();
            if is_mute {
                mute.push(key);
            } else {
                self.widen(now, key);
            }
            let Some(next) = key.channel.0.checked_add(1) else { break };
            at = ChannelId(next);
        }
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.check_at
    }

    pub(super) fn has_work(&self) -> bool {
        !self.dirty.is_empty() || !self.actions.is_empty() || self.intake.has_work()
    }

    fn get(&self, key: ChannelKey) -> Option<&Wire> {
        self.all.get(&key.channel).filter(|wire| wire.life == key.life)
    }

    fn get_mut(&mut self, key: ChannelKey) -> Option<&mut Wire> {
        self.all.get_mut(&key.channel).filter(|wire| wire.life == key.life)
    }
}

impl Wire {
    /// Takes a header out of what is staged, if all of it is there.
    fn take_header(&mut self, magic: [u8; 2]) -> Result<bool, Garbage> {
        let Some(bytes) = self.staged.get(..self.staged_len).and_then(|staged| staged.get(..HEADER_LEN))
        else {
            return Ok(false);
        };
        if self.answers_too_little() {
            return Ok(false);
        }
        let header = Header::decode(bytes, magic).map_err(|_| Garbage::Header)?;
        if !header.is_reply() && !self.is_accepted {
            return Err(Garbage::Header);
        }
        self.unstage(HEADER_LEN);
        if !header.is_reply() {
            // It is there.
            self.silences = 0;
            self.input = Input::Request(Taken::new(header));
            return Ok(true);
        }
        // What has not been sent yet cannot be answered, nor twice what was.
        let place = self.unanswered.binary_search_by_key(&header.tag, |asked| asked.tag).ok();
        let place = place.filter(|place| self.unanswered.get(*place).is_some_and(|asked| asked.is_sent));
        let asked = place.and_then(|place| self.unanswered.remove(place)).ok_or(Garbage::Tag)?;
        if asked.ask.is_some() {
            self.leave_window(asked.len);
        }
        // Whoever awaits it hears of the channel's end, if it ends.
        self.input = Input::Payload { header, ask: asked.ask, deadline: asked.deadline, filled: 0 };
        if header.payload_len > asked.reply_len_max { Err(Garbage::Length) } else { Ok(true) }
    }

    /// There is room for a message: it may be sent, and is waited for from now on.
    fn admit(&mut self, now: Instant, deadline: Instant, queued: Queued, len: u64) {
        let Queued { message, tag, ask, .. } = queued;
        let (is_fetch, reply_len_max) = (ask.awaiter.is_fetch, ask.reply_len_max);
        let begun = usize::from(self.sent > 0);
        let place = if is_fetch {
            let waiting = self.output.iter().skip(begun).take_while(|sending| sending.is_fetch);
            (begun + waiting.count()).min(self.output.len())
        } else {
            self.output.len()
        };
        self.output.insert(place, Sending { message, len, tag, is_fetch });
        let (since, is_answer) = (now, ask.is_answer);
        if is_answer {
            self.owe(now);
        }
        let ask = Some(ask);
        let asked = Asked { tag, len, reply_len_max, ask, since, deadline, is_sent: false, is_answer };
        let place = self.unanswered.partition_point(|other| other.tag < tag);
        self.unanswered.insert(place, asked);
        self.window_requests += 1;
        self.window_bytes += len;
    }

    fn leave_window(&mut self, len: u64) {
        self.window_requests = self.window_requests.saturating_sub(1);
        self.window_bytes = self.window_bytes.saturating_sub(len);
    }

    fn asked(&mut self, tag: u64) -> Option<&mut Asked> {
        let place = self.unanswered.binary_search_by_key(&tag, |asked| asked.tag).ok()?;
        self.unanswered.get_mut(place)
    }

    /// Gives up what has been awaited for too long; when the next is.
    fn expire(&mut self, now: Instant, failed: &mut Vec<(Awaiter, Option<Slice>)>) -> Option<Instant> {
        let mut next: Option<Instant> = None;
        let before = failed.len();
        for at in 0..self.unanswered.len() {
            let Some(asked) = self.unanswered.get_mut(at) else { break };
            let (len, since, deadline) = (asked.len, asked.since, asked.deadline);
            match asked.ask.take_if(|_| deadline <= now) {
                Some(ask) => {
                    failed.push((ask.awaiter, ask.into));
                    self.leave_window(len);
                    // Of what was asked at once, one counts: a peer may stand still for a moment.
                    if since >= self.silent_since {
                        self.silences += 1;
                        self.silent_since = now;
                    }
                }
                None => next = next.into_iter().chain(asked.ask.as_ref().map(|_| deadline)).min(),
            }
        }
        if let Input::Payload { ask, deadline, .. } = &mut self.input {
            match ask.take_if(|_| *deadline <= now) {
                Some(ask) => failed.push((ask.awaiter, ask.into)),
                None => next = next.into_iter().chain(ask.as_ref().map(|_| *deadline)).min(),
            }
        }
        if failed.len() > before {
            self.drop_unsent();
        }
        next
    }

    /// Drops messages that nobody waits for any more and of which nothing was sent.
    fn drop_unsent(&mut self) {
        let begun = usize::from(self.sent > 0);
        for place in (begun..self.output.len()).rev() {
            let Some(tag) = self.output.get(place).map(|sending| sending.tag) else { continue };
            let given_up = self.asked(tag).filter(|asked| asked.ask.is_none()).map(|asked| asked.is_answer);
            let Some(is_answer) = given_up else { continue };
            self.answers = self.answers.saturating_sub(usize::from(is_answer));
            self.output.remove(place);
            self.unanswered.retain(|asked| asked.tag != tag);
        }
    }

    /// Moves what is staged of a payload to its place; whether all of it is there.
    fn take_payload(&mut self) -> bool {
        let Input::Payload { header, ask, filled, .. } = &mut self.input else { return false };
        let len = header.payload_len as usize;
        let count = self.staged_len.min(len - *filled);
        if let Some(from) = self.staged.get(..count) {
            let place = match ask.as_mut().and_then(|ask| ask.into.as_mut()) {
                Some(into) => into.get_mut(*filled..*filled + count),
                None => self.small.get_mut(*filled..*filled + count),
            };
            // Without a place it is one that nobody awaits.
            if let Some(place) = place {
                place.copy_from_slice(from);
            }
        }
        *filled += count;
        let is_whole = *filled == len;
        self.unstage(count);
        is_whole
    }

    fn unstage(&mut self, count: usize) {
        self.staged.copy_within(count..self.staged_len, 0);
        self.staged_len -= count;
    }
}
