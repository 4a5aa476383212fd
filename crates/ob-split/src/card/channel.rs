//! Channels: connections to peers, what waits to be sent there, and what was asked and is not answered.
//!
//! ```text
//!   ask ─▶ output (header 64 B, before, payload, zeros: one vectored send) ─▶ peer
//!            │ tag, who awaits it                                              │
//!            ▼                                                                 ▼
//!         unanswered ◀── tag ── header, then payload into the memory that waits for it
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::net::SocketAddr;

use ob_core::{ConnectionAction, ConnectionId, Instant};
use ob_memory::{Shared, Slice};

use super::config::PortConfig;
use super::dialect::ZEROS_MAX;
use super::flight::FlightKey;
use crate::wire::{ChannelId, HEADER_LEN, Header, REPLY_PAYLOAD_MAX};

/// Bytes that are received before it is known what they are: some replies without payload at once, and little of a payload.
const STAGED_LEN: usize = 512;
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
}

/// A message to a peer.
pub(super) struct Outgoing {
    pub(super) header: Shared,
    pub(super) before: Shared,
    pub(super) payload: Option<Shared>,
    pub(super) zeros: u8,
}

/// What is to be known of its reply.
pub(super) struct Ask {
    pub(super) awaiter: Awaiter,
    pub(super) reply_len_max: u32,
    pub(super) deadline: Instant,
    /// Where the reply's payload goes; if nowhere, what is not long is kept until the next.
    pub(super) into: Option<Slice>,
}

struct Asked {
    tag: u64,
    len: u64,
    reply_len_max: u32,
    /// None once it was given up, or is being received.
    ask: Option<Ask>,
    is_over: bool,
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
        tag: u64,
        header: Header,
        ask: Option<Ask>,
        filled: usize,
    },
}

struct Wire {
    life: u32,
    address: SocketAddr,
    connection: Option<ConnectionId>,
    is_up: bool,
    is_dirty: bool,
    output: VecDeque<(Outgoing, u64)>,
    /// Bytes of the first message that are sent.
    sent: usize,
    /// In the order of tags. `in_window` of them may be sent.
    unanswered: VecDeque<Asked>,
    /// Messages of `output` from the front on that may be sent now.
    in_window: usize,
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
}

impl Outgoing {
    fn slices(&self) -> [&[u8]; SLICES] {
        let zeros = ZEROS.get(..usize::from(self.zeros)).unwrap_or_default();
        [&self.header, &self.before, self.payload.as_deref().unwrap_or_default(), zeros]
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
        }
    }

    /// A channel that is to be connected; none if there is one of that number, or no room.
    pub(super) fn insert(&mut self, channel: ChannelId, address: SocketAddr) -> Option<ChannelKey> {
        // The number of one that is over can be used again.
        let is_free =
            self.all.get(&channel).map_or(self.all.len() < self.channels_max, |wire| wire.life == 0);
        if !is_free {
            return None;
        }
        let life = self.next_life;
        self.next_life = self.next_life.wrapping_add(1).max(1);
        let wire = Wire {
            life,
            address,
            connection: None,
            is_up: false,
            is_dirty: false,
            output: VecDeque::new(),
            sent: 0,
            unanswered: VecDeque::new(),
            in_window: 0,
            window_requests: 0,
            window_bytes: 0,
            input: Input::Header,
            staged: Box::new([0; STAGED_LEN]),
            staged_len: 0,
            small: Box::new([0; REPLY_PAYLOAD_MAX]),
        };
        self.all.insert(channel, wire);
        Some(ChannelKey { channel, life })
    }

    /// Whether there is such a channel, up or not.
    pub(super) fn has(&self, channel: ChannelId) -> bool {
        self.all.contains_key(&channel)
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
        let receiving = if let Input::Payload { ask, .. } = input { ask } else { None };
        let asked = wire.unanswered.drain(..).filter_map(|asked| asked.ask);
        failed.extend(asked.chain(receiving).map(|ask| (ask.awaiter, ask.into)));
        wire.output.clear();
        (wire.sent, wire.in_window, wire.window_requests, wire.window_bytes) = (0, 0, 0, 0);
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
        channel: ChannelId,
        tag: u64,
        message: Outgoing,
        ask: Ask,
    ) -> Result<(), Ask> {
        let Some(wire) = self.all.get_mut(&channel).filter(|wire| wire.is_up) else { return Err(ask) };
        let len = message.len() as u64;
        self.check_at = Some(self.check_at.map_or(ask.deadline, |at| at.min(ask.deadline)));
        let reply_len_max = ask.reply_len_max;
        wire.unanswered.push_back(Asked { tag, len, reply_len_max, ask: Some(ask), is_over: false });
        wire.output.push_back((message, len));
        let key = ChannelKey { channel, life: wire.life };
        self.widen(key);
        Ok(())
    }

    /// Lets as many more messages go as may be unanswered.
    fn widen(&mut self, key: ChannelKey) {
        let (requests_max, window_len) = (self.requests_max, self.window_len);
        let Some(wire) = self.get_mut(key) else { return };
        while let Some((_, len)) = wire.output.get(wire.in_window) {
            let has_room = wire.window_requests < requests_max && wire.window_bytes + len <= window_len;
            if !has_room && wire.window_requests > 0 {
                break;
            }
            wire.in_window += 1;
            wire.window_requests += 1;
            wire.window_bytes += len;
        }
        if wire.in_window > 0 && !std::mem::replace(&mut wire.is_dirty, true) {
            self.dirty.push_back(key);
        }
    }

    pub(super) fn writable(&mut self, key: ChannelKey) {
        if let Some(wire) = self.get_mut(key)
            && wire.in_window > 0
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
        for (message, _) in wire.output.iter().take(wire.in_window) {
            for slice in message.slices() {
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
    pub(super) fn sent(&mut self, key: ChannelKey, count: usize, offered: usize) -> bool {
        let Some(wire) = self.get_mut(key) else { return false };
        wire.sent += count;
        while wire.in_window > 0
            && let Some((_, len)) = wire.output.front()
            && let Some(rest) = wire.sent.checked_sub(*len as usize)
        {
            wire.sent = rest;
            wire.in_window -= 1;
            wire.output.pop_front();
        }
        wire.in_window > 0 && count == offered
    }

    pub(super) fn receive_into(&mut self, key: ChannelKey) -> Option<[&mut [u8]; 2]> {
        let wire = self.get_mut(key)?;
        let staged = wire.staged.get_mut(wire.staged_len..)?;
        match &mut wire.input {
            Input::Header => Some([staged, &mut []]),
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

    pub(super) fn received(&mut self, key: ChannelKey, count: usize) {
        let Some(wire) = self.get_mut(key) else { return };
        let mut count = count;
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
    pub(super) fn next_reply(&mut self, key: ChannelKey) -> Result<Option<Reply>, Garbage> {
        let magic = self.magic;
        loop {
            let Some(wire) = self.get_mut(key) else { return Ok(None) };
            if matches!(wire.input, Input::Header) && !wire.take_header(magic)? {
                return Ok(None);
            }
            if !wire.take_payload() {
                return Ok(None);
            }
            let Input::Payload { tag, header, ask, .. } = std::mem::replace(&mut wire.input, Input::Header)
            else {
                return Ok(None);
            };
            wire.is_answered(tag);
            self.widen(key);
            if let Some(Ask { awaiter, into, .. }) = ask {
                return Ok(Some(Reply { awaiter, header, into, len: header.payload_len }));
            }
        }
    }

    /// The payload of the reply just given, if it went nowhere else.
    pub(super) fn small(&self, key: ChannelKey, len: u32) -> &[u8] {
        self.get(key).and_then(|wire| wire.small.get(..len as usize)).unwrap_or_default()
    }

    /// Gives up what has been awaited for too long; its reply, if it comes at all, is read away.
    pub(super) fn expire(&mut self, now: Instant, failed: &mut Vec<(Awaiter, Option<Slice>)>) {
        if self.check_at.is_none_or(|at| now < at) {
            return;
        }
        let mut next: Option<Instant> = None;
        for wire in self.all.values_mut() {
            let receiving = match &mut wire.input {
                Input::Payload { ask, .. } => Some(ask),
                Input::Header => None,
            };
            for ask in wire.unanswered.iter_mut().map(|asked| &mut asked.ask).chain(receiving) {
                match ask.take_if(|ask| ask.deadline <= now) {
                    Some(ask) => failed.push((ask.awaiter, ask.into)),
                    None => next = next.into_iter().chain(ask.as_ref().map(|ask| ask.deadline)).min(),
                }
            }
            wire.drop_unsent();
        }
        self.check_at = next;
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.check_at
    }

    pub(super) fn has_work(&self) -> bool {
        !self.dirty.is_empty() || !self.actions.is_empty()
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
        let header = Header::decode(bytes, magic).map_err(|_| Garbage::Header)?;
        if !header.is_reply() {
            return Err(Garbage::Header);
        }
        self.unstage(HEADER_LEN);
        let place = self.unanswered.binary_search_by_key(&header.tag, |asked| asked.tag);
        // What has not been sent yet cannot be answered, either: those are the last.
        let sent = self.unanswered.len() - self.output.len();
        let place = place.ok().filter(|place| *place < sent);
        let asked = place.and_then(|place| self.unanswered.get_mut(place)).filter(|asked| !asked.is_over);
        let asked = asked.ok_or(Garbage::Tag)?;
        asked.is_over = true;
        let (ask, len_max) = (asked.ask.take(), asked.reply_len_max);
        // Whoever awaits it hears of the channel's end, if it ends.
        self.input = Input::Payload { tag: header.tag, header, ask, filled: 0 };
        if header.payload_len > len_max { Err(Garbage::Length) } else { Ok(true) }
    }

    /// Drops messages that nobody waits for any more and of which nothing was sent.
    fn drop_unsent(&mut self) {
        let first = self.unanswered.len() - self.output.len();
        let begun = usize::from(self.sent > 0);
        for place in (begun..self.output.len()).rev() {
            if self.unanswered.get(first + place).is_none_or(|asked| asked.ask.is_some()) {
                continue;
            }
            self.unanswered.remove(first + place);
            let dropped = self.output.remove(place);
            if place < self.in_window {
                self.in_window -= 1;
                self.window_requests = self.window_requests.saturating_sub(1);
                self.window_bytes = self.window_bytes.saturating_sub(dropped.map_or(0, |(_, len)| len));
            }
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

    /// The reply to this tag has come: others may be sent instead.
    fn is_answered(&mut self, tag: u64) {
        if let Ok(place) = self.unanswered.binary_search_by_key(&tag, |asked| asked.tag)
            && let Some(asked) = self.unanswered.get(place)
        {
            self.window_requests = self.window_requests.saturating_sub(1);
            self.window_bytes = self.window_bytes.saturating_sub(asked.len);
        }
        while self.unanswered.pop_front_if(|asked| asked.is_over).is_some() {}
    }
}
