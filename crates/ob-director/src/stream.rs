//! The stream to the host: its lives, and what the host says.
//!
//! ```text
//!   Away ── a group is opened ──▶ Greeting ── MEET ──▶ Here (BEGIN, OPENED for each client, then requests)
//!    ▲                               │                  │
//!    └────────── the group is gone, or the host says what cannot be
//! ```

use ob_core::Now;
use ob_offload::{Application, Item, Key, ReplyOrder, Stamp, Standing};
use ob_wire_link::stream::{
    CREDIT_LEN, Entries, Fragment, FromCard, FromHost, Recovered, STAMP_END, StreamError,
};

use crate::clock::HostClock;
use crate::connection::{Connection, ConnectionKey, Ending, Pending};
use crate::director::Director;
use crate::host::{HostFrame, HostPort};
use crate::plant::{Bug, is_planted};

/// Credit is given back in portions, so that it does not cost a frame each time.
const CREDIT_PORTION: u32 = CREDIT_LEN / 4;
/// How many requests may have passed that a host has seen nothing of: those since its log was written last, which changed nothing. If there
/// were more, an earlier host had said to have seen what there never was.
const UNSEEN_MAX: u64 = 1 << 40;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum HostState {
    #[default]
    Away,
    Greeting,
    Here,
}

/// What is known of the host.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    state: HostState,
    /// The greatest stamp that was given, or seen by a host.
    last: u64,
    /// What `BEGIN` is to say, until it is said.
    begin: Option<u64>,
    store: Option<[u8; 16]>,
    clock: HostClock,
    files: FilesHeard,
}

/// How many frames have named a file in this life, and how many of them the host knows to be heard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FilesHeard {
    count: u32,
    told: u32,
}

impl Stream {
    pub(crate) fn is_here(&self) -> bool {
        self.state == HostState::Here
    }

    /// Whether requests may follow.
    pub(crate) fn has_begun(&self) -> bool {
        self.is_here() && self.begin.is_none()
    }

    pub(crate) fn last(&self) -> Stamp {
        Stamp::new(self.last).unwrap_or(Stamp::MAX)
    }

    /// The stamp of a request that is about to be forwarded. There are [`SEEN_END`](ob_wire_link::stream::SEEN_END) of them behind
    /// what any host can say to have seen: nobody lives to see the last.
    pub(crate) fn next(&self) -> Stamp {
        Stamp::new(self.last + 1).unwrap_or(Stamp::MAX)
    }

    pub(crate) fn given(&mut self, stamp: Stamp, now: Now) {
        self.last = stamp.number();
        self.clock.sent(self.last, now.unix_ms);
    }

    /// Whether there is anything to say that is about no connection.
    pub(crate) fn has_news(&self) -> bool {
        self.begin.is_some() || self.files.told != self.files.count
    }

    /// What is known of the host's clock.
    pub(crate) fn clock(&self) -> &HostClock {
        &self.clock
    }
}

/// What a host may not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    #[error("{0}")]
    Frame(#[from] StreamError),
    #[error("a host meets the card first, and once")]
    Meeting,
    #[error("it serves on other terms than this card: {0}")]
    Terms(&'static str),
    #[error("stamp {0} is not one that was given")]
    Stamp(u64),
    #[error("a fragment does not follow the one before it")]
    Fragment,
    #[error("more bytes of replies than there was credit for")]
    Credit,
    #[error("too many files have names")]
    Files,
    #[error("an entry cannot be")]
    Entry,
}

impl<C> Connection<C> {
    /// Whether the host is to get credit back.
    pub(crate) fn wants_credit(&self) -> bool {
        self.credit_due >= CREDIT_PORTION
    }
}

impl<A: Application> Director<A> {
    pub(crate) fn host_arrived(&mut self) {
        self.host_gone();
        self.stream.state = HostState::Greeting;
    }

    /// The host is away. What it was asked and has not answered gets the protocol's own error; the card goes on with what it
    /// can answer, on connections that were admitted.
    pub(crate) fn host_gone(&mut self) {
        self.stream.state = HostState::Away;
        self.stream.begin = None;
        self.stream.files = FilesHeard::default();
        self.control.clear();
        for index in 0..self.connections.len() {
            let Some(mut connection) = self.connections.get_mut(index).and_then(Option::take) else {
                continue;
            };
            if connection.ending == Ending::Gone {
                self.vacate(connection.key);
                continue;
            }
            (connection.is_announced, connection.flags.is_in_control) = (false, false);
            (connection.credit, connection.credit_due) = (CREDIT_LEN, 0);
            connection.underway.forwarded = 0;
            if std::mem::take(&mut connection.awaits_standing) {
                // Nobody knows what the request has made of it.
                connection.standing = Standing::NONE;
            }
            if self.give_up(&mut connection) {
                let key = connection.key;
                self.put_back(connection);
                self.make_ready(key);
            } else {
                // Half of a reply is with the client already, and the rest will never come.
                self.forget(connection, true);
            }
        }
    }

    /// Answers what only the host could have; `false` if that cannot be.
    fn give_up(&mut self, connection: &mut Connection<A::Cutter>) -> bool {
        for pending in &mut connection.pending {
            let Pending::Host(forwarded) = pending else { continue };
            if forwarded.is_complete() {
                // Should stamps begin anew, this one is another request's.
                forwarded.stamp = STAMP_END;
                continue;
            }
            if forwarded.received as usize > forwarded.held.len() {
                return false;
            }
            let mut said = Vec::new();
            self.application.unavailable(forwarded.id, true, &mut said);
            self.counts.unavailable += 1;
            connection.unread -= forwarded.held.len();
            self.unread -= forwarded.held.len();
            *pending = Pending::Said(said);
        }
        true
    }

    /// Takes a frame of the host; how many entries for the table it brought. What cannot be ends the stream.
    pub(crate) fn host_says(&mut self, frame: &impl HostFrame) -> Result<usize, Violation> {
        let said = self.take_frame(frame);
        if said.is_err() {
            self.host_gone();
        }
        said
    }

    fn take_frame(&mut self, frame: &impl HostFrame) -> Result<usize, Violation> {
        if self.stream.state == HostState::Away {
            // What was on its way when the stream was closed.
            return Ok(0);
        }
        let decoded = FromHost::decode(frame.inline(), frame.payload());
        if decoded.is_err() && is_planted(Bug::UndecodedIgnored) {
            return Ok(0);
        }
        let frame = decoded?;
        let is_meeting = matches!(frame, FromHost::Meet { .. });
        if is_meeting == self.stream.is_here() {
            return Err(Violation::Meeting);
        }
        match frame {
            FromHost::Meet { stamp, recovered, terms } => {
                self.check_terms(terms)?;
                self.meet(stamp, recovered);
            }
            FromHost::Reply(fragment) => self.reply(&fragment)?,
            FromHost::Standing { connection, stamp, word } => {
                self.known(stamp)?;
                if let Some(connection) = self.find(ConnectionKey(connection.0))
                    && stamp >= connection.standing_told
                {
                    (connection.standing, connection.standing_told) = (Standing(word), stamp);
                }
            }
            FromHost::Close { connection, stamp } => {
                self.known(stamp)?;
                self.close_after(ConnectionKey(connection.0), stamp);
            }
            FromHost::Attest { stamp, entries } => return self.attested(stamp, entries),
            FromHost::File { name, node } => {
                if !self.engine.has_file(name) && self.engine.file_count() >= self.config.files_max {
                    return Err(Violation::Files);
                }
                self.engine.name_file(name, node);
                self.stream.files.count = self.stream.files.count.wrapping_add(1);
            }
            FromHost::FileGone { name } => self.engine.forget_file(name),
            FromHost::Clock { stamp, unix_ms } => {
                self.known(stamp)?;
                self.stream.clock.told(stamp, unix_ms);
            }
            FromHost::Settled { address } => self.engine.settled(address),
        }
        Ok(0)
    }

    fn attested(&mut self, stamp: u64, entries: Entries<'_>) -> Result<usize, Violation> {
        let as_of = self.known(stamp)?;
        let mut count = 0;
        for (key, item) in entries {
            let key = Key::new(key).map_err(|_| Violation::Entry)?;
            let item = Item::new(item).map_err(|_| Violation::Entry)?;
            self.engine.attest(&key, &item, as_of);
            count += 1;
        }
        Ok(count)
    }

    fn check_terms(&self, terms: u32) -> Result<(), Violation> {
        let own = self.application.terms();
        if terms == own.number { Ok(()) } else { Err(Violation::Terms(own.difference)) }
    }

    /// A stamp that was given, or with which this life began.
    fn known(&self, stamp: u64) -> Result<Stamp, Violation> {
        let found = Stamp::new(stamp).ok().filter(|_| stamp <= self.stream.last);
        found.ok_or(Violation::Stamp(stamp))
    }

    /// A life of the host begins: see "Lives" in `docs/linearizable-offload.md`.
    fn meet(&mut self, seen: u64, recovered: Recovered) {
        let seen = if is_planted(Bug::StampsReused) { 0 } else { seen };
        // The stamps of a host that lied are not for the log of the next one, or its log would have to be refused one day.
        let is_lied_to = self.stream.last.saturating_sub(seen) > UNSEEN_MAX;
        if is_lied_to && self.engine.begin_anew() {
            (self.stream.last, self.stream.store) = (0, None);
        }
        self.stream.last = self.stream.last.max(seen);
        let before = self.stream.last();
        self.stream.begin = Some(self.stream.next().number());
        self.stream.clock.begin(before.number(), self.now.unix_ms);
        self.stream.files = FilesHeard::default();
        self.stream.state = HostState::Here;
        let is_same_store = self.stream.store.replace(recovered.store) == Some(recovered.store);
        let kept = is_planted(Bug::TableKept) && is_same_store;
        let end = if kept { u64::MAX } else { recovered.end };
        self.engine.begin(before, recovered.store, end, is_same_store);
        self.counts.host_lives += 1;
        for index in 0..self.connections.len() {
            let Some(connection) = self.connections.get_mut(index).and_then(Option::as_mut) else { continue };
            // The host that said so is gone, and with it who the client was and what it had chosen.
            connection.standing = Standing::NONE;
            (connection.standing_from, connection.standing_told) = (0, 0);
            let key = connection.key;
            if connection.has_session && connection.ending == Ending::Open {
                // It would go on as somebody else than it takes itself for: it ends as if its server had.
                connection.ending = Ending::AfterReplies;
            }
            self.tell_host(key);
            self.make_ready(key);
        }
    }

    fn reply(&mut self, fragment: &Fragment<'_>) -> Result<(), Violation> {
        self.known(fragment.stamp)?;
        let key = ConnectionKey(fragment.connection.0);
        // The client may be gone without the host knowing yet.
        let Some(connection) = self.find(key) else { return Ok(()) };
        let len = fragment.bytes.len() as u32;
        connection.credit = connection.credit.checked_sub(len).ok_or(Violation::Credit)?;
        let Some(at) = connection.find(fragment.stamp) else {
            // What stood behind the last reply of a connection that ends is forgotten.
            let is_ending = connection.ending != Ending::Open;
            return if is_ending { Ok(()) } else { Err(Violation::Stamp(fragment.stamp)) };
        };
        let Some(Pending::Host(forwarded)) = connection.pending.get_mut(at) else { return Ok(()) };
        let length = *forwarded.length.get_or_insert(fragment.length);
        if fragment.offset != forwarded.received || fragment.length != length {
            return Err(Violation::Fragment);
        }
        forwarded.received += len;
        connection.unread += fragment.bytes.len();
        // What is at the front needs no detour.
        if at == 0 && A::REPLIES == ReplyOrder::AsAsked && forwarded.held.is_empty() {
            connection.output.push_hosts(fragment.bytes);
        } else {
            forwarded.held.extend_from_slice(fragment.bytes);
        }
        if forwarded.is_complete() && connection.awaits_standing && connection.standing_from == fragment.stamp
        {
            connection.awaits_standing = false;
        }
        self.unread += fragment.bytes.len();
        self.make_ready(key);
        Ok(())
    }

    /// Nothing follows the reply to a request.
    fn close_after(&mut self, key: ConnectionKey, stamp: u64) {
        let Some(mut connection) = self.take(key) else { return };
        let last = connection.find(stamp);
        self.abandon(&mut connection, last.map_or(0, |at| at + 1));
        if connection.ending == Ending::Open {
            connection.ending = Ending::AfterReplies;
        }
        connection.awaits_standing = false;
        self.put_back(connection);
        self.make_ready(key);
    }

    /// Tells the host what it has to know before requests can follow; `true` if it was told anything.
    pub(crate) fn speak<P: HostPort>(&mut self, port: &mut P) -> bool {
        let mut spoke = false;
        if let Some(stamp) = self.stream.begin
            && port.has_room(0)
        {
            port.send(&FromCard::Begin { stamp });
            self.stream.begin = None;
            spoke = true;
        }
        let FilesHeard { count, told } = self.stream.files;
        if self.stream.has_begun() && told != count && port.has_room(0) {
            port.send(&FromCard::Named { count });
            self.stream.files.told = count;
            spoke = true;
        }
        while self.stream.has_begun()
            && let Some(key) = self.control.front().copied()
        {
            // The longest of the frames that are sent here brings an address.
            if !port.has_room(ob_wire_link::stream::ADDRESS_LEN) {
                break;
            }
            self.control.pop_front();
            spoke |= self.speak_of(key, port);
        }
        spoke
    }

    fn speak_of<P: HostPort>(&mut self, key: ConnectionKey, port: &mut P) -> bool {
        let Some(connection) = self.connections.get_mut(key.index()).and_then(Option::as_mut) else {
            return false;
        };
        if connection.key != key {
            return false;
        }
        connection.flags.is_in_control = false;
        let number = key.number();
        if connection.ending == Ending::Gone {
            if connection.is_announced {
                port.send(&FromCard::Closed { connection: number });
            }
            self.vacate(key);
            return true;
        }
        if !connection.is_announced {
            port.send(&FromCard::Opened { connection: number, address: connection.peer });
            connection.is_announced = true;
            self.make_ready(key);
            return true;
        }
        // What an earlier host has sent is nothing that this one has to get back.
        let length = std::mem::take(&mut connection.credit_due).min(CREDIT_LEN - connection.credit);
        connection.credit += length;
        if length == 0 {
            return false;
        }
        port.send(&FromCard::Credit { connection: number, length });
        true
    }
}
