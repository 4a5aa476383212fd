//! The host's half of the stream: frames of the card in, frames for the card out, a service between them.
//!
//! ```text
//!   FromCard ─▶ fragments ─▶ request ─▶ Service ─▶ Answer ─▶ replies of the connection ─▶ FromHost
//!                                          │                   as far as it has credit
//!                                          └─▶ settled, files, attested entries ────────▶ FromHost
//! ```
//!
//! `docs/wire/stream.md` says what the frames mean. Nothing here knows what a request asks for, and nothing waits: what finds
//! no room in the ring, or no credit, stays where it is. Who is owed more than there is memory for is closed, the one that is
//! owed most first.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;

use ob_core::{ConnectionId, NodeId, Now};
use ob_format::kv::Item;
use ob_wire_link::stream::{
    CREDIT_LEN, ENTRY_LEN, Entries, FRAGMENT_LEN, Fragment, FromCard, FromHost, Recovered, push_entry,
};

use crate::EXPIRY_MARGIN_MS;
use crate::plant::{Bug, is_planted};

mod service;
#[cfg(test)]
mod tests;

/// What stands behind the stream on the host.
pub trait Service {
    /// What it keeps of a client.
    type Session;

    /// A client is there.
    fn opened(&mut self, connection: ConnectionId, address: SocketAddr) -> Self::Session;

    /// A client is gone. What it was to be told is told nobody.
    fn closed(&mut self, connection: ConnectionId, session: Self::Session);

    /// Does what a request asks for, in the order of stamps; the answer may come later.
    fn request(
        &mut self,
        now: Now,
        connection: ConnectionId,
        stamp: u64,
        session: &mut Self::Session,
        request: &[u8],
    );

    /// What the card is to know of a connection now: 0 if it may answer nothing on it.
    fn standing(session: &Self::Session) -> u32;

    /// Whether it takes more requests now. What comes all the same is taken too.
    fn has_room(&self) -> bool;

    /// The next answer that may leave, if there is one.
    fn next_answer(&mut self) -> Option<Answer>;

    /// The key and the item of a record that is current as of the stamp before them, and that the card may read, if there is
    /// one that no answer comes with: what a card is told again whose table was lost.
    fn next_attested(&mut self) -> Option<(u64, Vec<u8>, Item)> {
        None
    }

    /// Takes the memory of an answer back.
    fn recycle(&mut self, bytes: Vec<u8>);

    /// Whether it may be served: until then the card is not met.
    fn is_ready(&self) -> bool {
        true
    }

    /// The greatest stamp that it has seen.
    fn greatest_stamp(&self) -> u64;

    /// What it has recovered.
    fn recovered(&self) -> Recovered;

    /// On which terms it serves: what the card has to have in common with it.
    fn terms(&self) -> u32 {
        0
    }

    /// A life of the stream begins: no request that was made before, and not applied, ever will be.
    fn begins(&mut self, stamp: u64);

    /// The address up to which its log would be recovered.
    fn settled(&self) -> u64;
}

/// An answer to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whose request it was.
    pub connection: ConnectionId,
    /// Its stamp.
    pub stamp: u64,
    /// What the client is told, at least one byte.
    pub bytes: Vec<u8>,
    /// The key and the item of a record that is current as of `stamp`, and that the card may read.
    pub attest: Option<(Vec<u8>, Item)>,
    /// Nothing follows it.
    pub closes: bool,
}

/// What may be owed to clients.
#[derive(Clone, Copy, Debug)]
pub struct HostLimits {
    /// Bytes of one request.
    pub request_len: usize,
    /// Bytes of replies that wait for credit, of all connections together.
    pub replies_len: usize,
    /// Whether there is a table on the other side to be told what is current.
    pub attests: bool,
}

impl Default for HostLimits {
    fn default() -> Self {
        Self { request_len: 80 << 20, replies_len: 256 << 20, attests: true }
    }
}

/// Why the stream cannot go on. The group is closed, and opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostFault {
    /// The card says something before, or beside, what has to come first.
    #[error("the card does not keep to the order of the meeting")]
    Meeting,
    /// The card speaks of a connection that it has not opened, or opens one twice.
    #[error("the card and the host do not agree whether there is {0}")]
    Connection(ConnectionId),
    /// A fragment does not follow the one before, or the whole is too long.
    #[error("a fragment of a request of {0} does not belong where it is")]
    Fragment(ConnectionId),
    /// The card has heard of more files than it was told of.
    #[error("the card has heard of {0} files, and was told of fewer")]
    Named(u32),
    /// Stamps do not grow.
    #[error("the stamp {0} follows a greater one")]
    Stamp(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// `MEET` is to be sent.
    Silent,
    /// `BEGIN` is to come.
    Met,
    Running,
}

/// The host's half of the stream.
pub struct HostStream<S: Service> {
    service: S,
    limits: HostLimits,
    state: State,
    clients: HashMap<ConnectionId, Client<S::Session>>,
    /// Clients that have replies and credit, each once.
    ready: VecDeque<ConnectionId>,
    /// Files of the card by their names, and which of them the card knows.
    files: BTreeMap<u32, NodeId>,
    /// What is to be said of files.
    news: VecDeque<News>,
    /// Frames of this life that have named a file, and how many of them the card has heard.
    named: u32,
    named_heard: u32,
    told_settled: u64,
    /// Entries that are current as of the stamp beside them.
    attested: Vec<u8>,
    attested_at: u64,
    /// The last stamp that the card has said.
    last_stamp: u64,
    clock: Clock,
    replies_len: usize,
    counts: HostCounts,
}

/// What the card knows of the time here.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    now_ms: u64,
    /// What it was told last in this life, and the stamp beside it.
    told: Option<(u64, u64)>,
}

impl Clock {
    /// Whether it is to be told before a reply can leave; or, without one, because it can find out more.
    fn is_due(&self, last_stamp: u64, has_replies: bool) -> bool {
        match self.told {
            None => self.now_ms > 0,
            Some(_) if is_planted(Bug::ClockUntold) => false,
            Some((told_ms, stamp)) => {
                (has_replies || stamp < last_stamp) && self.now_ms >= told_ms + CLOCK_EVERY_MS
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum News {
    File(u32),
    Gone(u32),
    /// A connection that was owed too much.
    Close(ConnectionId),
}

struct Client<Session> {
    session: Session,
    /// The begin of a request, and how long it will be.
    partial: Vec<u8>,
    partial_length: u32,
    /// Stamps of its requests that have no reply, or none that was sent whole.
    asked: VecDeque<u64>,
    /// In the order of their stamps. None is sent before those of the requests before it: the card could not send it on
    /// either, and it would use up the credit that they need.
    replies: VecDeque<Answer>,
    /// What the card will have been told of it, and by which replies it is still to be told.
    standing: u32,
    standings: VecDeque<(u64, u32)>,
    /// Bytes of the first reply that were sent.
    sent: usize,
    owed: usize,
    credit: u64,
    is_ready: bool,
    /// It was owed too much, and is told nothing more.
    is_closing: bool,
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounts {
    /// Requests received.
    pub requests: u64,
    /// Replies sent whole.
    pub replies: u64,
    /// Entries attested.
    pub attested: u64,
    /// Connections closed because they did not take their replies.
    pub closed_for_memory: u64,
}

impl<S: Service> HostStream<S> {
    /// A stream that has not met its card yet.
    pub fn new(service: S, limits: HostLimits) -> Self {
        Self {
            service,
            limits,
            state: State::Silent,
            clients: HashMap::new(),
            ready: VecDeque::new(),
            files: BTreeMap::new(),
            news: VecDeque::new(),
            named: 0,
            named_heard: 0,
            told_settled: 0,
            attested: Vec::new(),
            attested_at: 0,
            last_stamp: 0,
            clock: Clock::default(),
            replies_len: 0,
            counts: HostCounts::default(),
        }
    }

    /// The service.
    pub fn service(&self) -> &S {
        &self.service
    }

    /// The service, for its own devices and time.
    pub fn service_mut(&mut self) -> &mut S {
        &mut self.service
    }

    /// What was done so far.
    pub fn counts(&self) -> HostCounts {
        self.counts
    }

    /// Whether more of what the card says should be taken now.
    pub fn has_room(&self) -> bool {
        self.service.has_room() && self.replies_len < self.limits.replies_len
    }

    /// Whether the card has begun a life of the stream that has not ended.
    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// Clients that are connected.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// A file has a name from now on, in this life of the stream and in others.
    pub fn name_file(&mut self, name: u32, node: NodeId) {
        self.files.insert(name, node);
        if self.state == State::Running {
            self.news.push_back(News::File(name));
        }
    }

    /// A file is about to be removed.
    pub fn forget_file(&mut self, name: u32) {
        if self.files.remove(&name).is_some() && self.state == State::Running {
            self.news.push_back(News::Gone(name));
        }
    }

    /// Whether the log's files may be written to now. What the card is written before it has heard of the file is lost to its table until
    /// somebody reads it, so writes wait for that. Only what there is no room for does not wait: what the card says would not be
    /// taken either.
    pub fn may_write(&self) -> bool {
        let has_heard =
            self.named == self.named_heard && !self.news.iter().any(|news| matches!(news, News::File(_)));
        self.state != State::Running || has_heard || !self.has_room() || is_planted(Bug::FileUnheard)
    }

    /// The group is gone, and with it every client. The next one begins with a meeting.
    pub fn ended(&mut self) {
        for (connection, client) in self.clients.drain() {
            self.service.closed(connection, client.session);
        }
        self.ready.clear();
        self.news.clear();
        self.attested.clear();
        (self.state, self.replies_len) = (State::Silent, 0);
    }

    /// Takes what the card says.
    ///
    /// # Errors
    /// When it cannot say that; then the group is to be closed.
    pub fn received(&mut self, now: Now, frame: &FromCard<'_>) -> Result<(), HostFault> {
        match (self.state, frame) {
            (State::Met, FromCard::Begin { stamp }) => self.begins(*stamp),
            (State::Running, FromCard::Opened { connection, address }) => self.opened(*connection, *address),
            (State::Running, FromCard::Request(fragment)) => self.fragment(now, fragment),
            (State::Running, FromCard::Closed { connection }) => self.closed(*connection),
            (State::Running, FromCard::Credit { connection, length }) => self.credit(*connection, *length),
            (State::Running, FromCard::Named { count }) => self.heard(*count),
            _ => Err(HostFault::Meeting),
        }
    }

    fn begins(&mut self, stamp: u64) -> Result<(), HostFault> {
        if stamp <= self.service.greatest_stamp() {
            return Err(HostFault::Stamp(stamp));
        }
        self.state = State::Running;
        self.last_stamp = stamp - 1;
        self.clock.told = None;
        self.told_settled = 0;
        (self.named, self.named_heard) = (0, 0);
        if self.limits.attests {
            self.service.begins(stamp);
        }
        self.news.extend(self.files.keys().map(|name| News::File(*name)));
        Ok(())
    }

    fn opened(&mut self, connection: ConnectionId, address: SocketAddr) -> Result<(), HostFault> {
        if self.clients.contains_key(&connection) {
            return Err(HostFault::Connection(connection));
        }
        let client = Client {
            session: self.service.opened(connection, address),
            partial: Vec::new(),
            partial_length: 0,
            asked: VecDeque::new(),
            replies: VecDeque::new(),
            standing: 0,
            standings: VecDeque::new(),
            sent: 0,
            owed: 0,
            credit: u64::from(CREDIT_LEN),
            is_ready: false,
            is_closing: false,
        };
        self.clients.insert(connection, client);
        Ok(())
    }

    fn fragment(&mut self, now: Now, fragment: &Fragment<'_>) -> Result<(), HostFault> {
        let connection = fragment.connection;
        if fragment.is_last() {
            if fragment.stamp <= self.last_stamp {
                return Err(HostFault::Stamp(fragment.stamp));
            }
            self.last_stamp = fragment.stamp;
        }
        let client = self.clients.get_mut(&connection).ok_or(HostFault::Connection(connection))?;
        let is_first = client.partial.is_empty();
        let follows = client.partial.len() == fragment.offset as usize
            && (is_first || client.partial_length == fragment.length)
            && fragment.length as usize <= self.limits.request_len;
        if !follows {
            return Err(HostFault::Fragment(connection));
        }
        let whole;
        let request = match (is_first, fragment.is_last()) {
            (true, true) => fragment.bytes,
            (_, is_last) => {
                client.partial_length = fragment.length;
                client.partial.extend_from_slice(fragment.bytes);
                if !is_last {
                    return Ok(());
                }
                whole = std::mem::take(&mut client.partial);
                &whole
            }
        };
        self.counts.requests += 1;
        client.asked.push_back(fragment.stamp);
        self.service.request(now, connection, fragment.stamp, &mut client.session, request);
        let standing = S::standing(&client.session);
        if standing != client.standing {
            client.standing = standing;
            client.standings.push_back((fragment.stamp, standing));
        }
        Ok(())
    }

    fn closed(&mut self, connection: ConnectionId) -> Result<(), HostFault> {
        let client = self.clients.remove(&connection).ok_or(HostFault::Connection(connection))?;
        self.replies_len -= client.owed;
        self.service.closed(connection, client.session);
        Ok(())
    }

    fn credit(&mut self, connection: ConnectionId, length: u32) -> Result<(), HostFault> {
        let client = self.clients.get_mut(&connection).ok_or(HostFault::Connection(connection))?;
        client.credit += u64::from(length);
        if !client.replies.is_empty() && !client.is_ready {
            client.is_ready = true;
            self.ready.push_back(connection);
        }
        Ok(())
    }

    fn heard(&mut self, count: u32) -> Result<(), HostFault> {
        // Both numbers begin anew behind the greatest.
        let (heard, said) = (count.wrapping_sub(self.named_heard), self.named.wrapping_sub(self.named_heard));
        if heard > said {
            return Err(HostFault::Named(count));
        }
        self.named_heard = count;
        Ok(())
    }

    /// What time it is, read after what was received: to be told before [`HostStream::send`], in milliseconds since 1970. Like the
    /// service's, this clock never goes back.
    pub fn set_clock(&mut self, now_ms: u64) {
        self.clock.now_ms = self.clock.now_ms.max(now_ms);
    }

    /// Says what there is to say. `say` takes a frame, or says `false` if there is no room for it; then this has to be called
    /// again. Whether everything was said.
    pub fn send(&mut self, say: &mut dyn FnMut(&FromHost<'_>) -> bool) -> bool {
        if self.state != State::Running && !is_planted(Bug::AnswersKept) {
            self.drop_answers();
        }
        match self.state {
            State::Silent if !self.service.is_ready() => true,
            State::Silent => {
                let (stamp, recovered) = (self.service.greatest_stamp(), self.service.recovered());
                if say(&FromHost::Meet { stamp, recovered, terms: self.service.terms() }) {
                    self.state = State::Met;
                }
                true
            }
            State::Met => true,
            State::Running => {
                self.take_answers();
                self.send_clock(say)
                    && self.send_news(say)
                    && self.send_settled(say)
                    && self.send_replies(say)
                    && self.send_attested(say)
            }
        }
    }

    /// Takes what nobody waits for any more. Answers that stay with the service leave it no room, and without room nobody hears from the
    /// card how the next life begins.
    fn drop_answers(&mut self) {
        while let Some(answer) = self.service.next_answer() {
            self.service.recycle(answer.bytes);
        }
    }

    /// Moves answers of the service to the connections that they are for.
    fn take_answers(&mut self) {
        while let Some(mut answer) = self.service.next_answer() {
            if let Some((key, item)) = answer.attest.take().filter(|_| self.limits.attests) {
                self.attest(answer.stamp, &key, &item);
            }
            let Some(client) = self.clients.get_mut(&answer.connection) else {
                self.service.recycle(answer.bytes);
                continue;
            };
            // What was asked in an earlier life, by a client that may have had the same number, was nobody else's question.
            let is_asked = client.asked.binary_search(&answer.stamp).is_ok();
            if client.is_closing || !is_asked {
                self.service.recycle(answer.bytes);
                continue;
            }
            client.owed += answer.bytes.len();
            self.replies_len += answer.bytes.len();
            if !client.is_ready {
                client.is_ready = true;
                self.ready.push_back(answer.connection);
            }
            let place = client.replies.partition_point(|before| before.stamp < answer.stamp);
            client.replies.insert(place, answer);
            if self.replies_len >= self.limits.replies_len {
                self.close_greatest();
            }
        }
    }

    /// Entries of one frame are current as of the greatest of their stamps only if nothing changed between. So they are
    /// attested as of the least, and a frame is begun anew when that would say little.
    fn attest(&mut self, stamp: u64, key: &[u8], item: &Item) {
        if self.attested.is_empty() {
            self.attested_at = stamp;
        }
        self.attested_at = self.attested_at.min(stamp);
        // Where the frame is full the entry is not said; the next read of the key says it again.
        if push_entry(&mut self.attested, key, &item.encode()) {
            self.counts.attested += 1;
        }
    }

    fn close_greatest(&mut self) {
        let greatest = self.clients.iter_mut().max_by_key(|(_, client)| client.owed);
        let Some((connection, client)) = greatest else { return };
        self.replies_len -= client.owed;
        (client.owed, client.sent) = (0, 0);
        client.replies.clear();
        client.is_closing = true;
        self.news.push_back(News::Close(*connection));
        self.counts.closed_for_memory += 1;
    }

    /// The card answers for keys that expire by what it knows of this clock.
    fn send_clock(&mut self, say: &mut dyn FnMut(&FromHost<'_>) -> bool) -> bool {
        if !self.limits.attests || !self.clock.is_due(self.last_stamp, !self.ready.is_empty()) {
            return true;
        }
        let (stamp, unix_ms) = (self.last_stamp, self.clock.now_ms);
        if !say(&FromHost::Clock { stamp, unix_ms }) {
            return false;
        }
        self.clock.told = Some((unix_ms, stamp));
        true
    }

    fn send_news(&mut self, say: &mut dyn FnMut(&FromHost<'_>) -> bool) -> bool {
        while let Some(news) = self.news.front() {
            let said = match *news {
                News::File(name) => match self.files.get(&name) {
                    Some(node) => {
                        let is_said = say(&FromHost::File { name, node: *node });
                        self.named = self.named.wrapping_add(u32::from(is_said));
                        is_said
                    }
                    None => true,
                },
                News::Gone(name) => say(&FromHost::FileGone { name }),
                News::Close(connection) => {
                    !self.clients.contains_key(&connection) || say(&FromHost::Close { connection, stamp: 0 })
                }
            };
            if !said {
                return false;
            }
            self.news.pop_front();
        }
        true
    }

    fn send_settled(&mut self, say: &mut dyn FnMut(&FromHost<'_>) -> bool) -> bool {
        let address = self.service.settled();
        if address > self.told_settled {
            if !say(&FromHost::Settled { address }) {
                return false;
            }
            self.told_settled = address;
        }
        true
    }

    fn send_attested(&mut self, say: &mut dyn FnMut(&FromHost<'_>) -> bool) -> bool {
        loop {
            while self.attested.len() + LONGEST_ENTRY_LEN <= FRAGMENT_LEN
                && let Some((stamp, key, item)) = self.service.next_attested()
            {
                self.attest(stamp, &key, &item);
            }
            if self.attested.is_empty() {
                return true;
            }
            let entries = Entries::new(&self.attested);
            if !say(&FromHost::Attest { stamp: self.attested_at, entries }) {
                return false;
            }
            self.attested.clear();
        }
    }

    fn send_replies(&mut self, say: &mut dyn FnMut(&FromHost<'_>) -> bool) -> bool {
        while let Some(connection) = self.ready.pop_front() {
            let Some(client) = self.clients.get_mut(&connection) else { continue };
            let before = client.owed;
            let outcome =
                client.send(connection, say, &mut self.counts, &mut |bytes| self.service.recycle(bytes));
            self.replies_len -= before - client.owed;
            match outcome {
                Outcome::Full => {
                    self.ready.push_front(connection);
                    return false;
                }
                Outcome::Waits => client.is_ready = false,
                Outcome::TurnOver => self.ready.push_back(connection),
            }
        }
        true
    }
}

/// Why a client's turn to be sent replies is over.
enum Outcome {
    /// There is no room in the ring.
    Full,
    /// It has no reply that is next, or no credit.
    Waits,
    /// Others are to have a turn before its next fragment.
    TurnOver,
}

impl<Session> Client<Session> {
    fn send(
        &mut self,
        connection: ConnectionId,
        say: &mut dyn FnMut(&FromHost<'_>) -> bool,
        counts: &mut HostCounts,
        recycle: &mut dyn FnMut(Vec<u8>),
    ) -> Outcome {
        let mut fragments = 0;
        while let Some(answer) = self.replies.front_mut() {
            if self.asked.front() != Some(&answer.stamp) {
                return Outcome::Waits;
            }
            if fragments >= FRAGMENTS_A_TURN {
                return Outcome::TurnOver;
            }
            let rest = answer.bytes.get(self.sent..).unwrap_or_default();
            let len = rest.len().min(FRAGMENT_LEN).min(usize::try_from(self.credit).unwrap_or(usize::MAX));
            if len == 0 {
                return Outcome::Waits;
            }
            let (stamp, offset) = (answer.stamp, self.sent as u32);
            let fragment = Fragment {
                connection,
                stamp,
                length: answer.bytes.len() as u32,
                offset,
                bytes: &rest[..len],
            };
            // They are in the order of stamps, as replies are.
            let due = self.standings.front().filter(|(of, _)| *of == stamp && fragment.is_last());
            if let Some(&(_, word)) = due {
                if !say(&FromHost::Standing { connection, stamp, word }) {
                    return Outcome::Full;
                }
                self.standings.pop_front();
            }
            if fragment.is_last() && answer.closes {
                if !say(&FromHost::Close { connection, stamp }) {
                    return Outcome::Full;
                }
                answer.closes = false;
            }
            if !say(&FromHost::Reply(fragment)) {
                return Outcome::Full;
            }
            let is_last = fragment.is_last();
            fragments += usize::from(len == FRAGMENT_LEN);
            self.credit -= len as u64;
            self.owed -= len;
            self.sent += len;
            if is_last {
                counts.replies += 1;
                self.sent = 0;
                self.asked.pop_front();
                if let Some(answer) = self.replies.pop_front() {
                    recycle(answer.bytes);
                }
            }
        }
        Outcome::Waits
    }
}

/// Bytes of the longest entry that can be said.
const LONGEST_ENTRY_LEN: usize = ENTRY_LEN + 2 * u8::MAX as usize;
/// How much later by the host's clock a reply may be made than what the card was told: its margin covers that.
const CLOCK_EVERY_MS: u64 = 100;
const _: () =
    assert!(CLOCK_EVERY_MS <= EXPIRY_MARGIN_MS, "the card answers for no key that is over for the host");
/// Whole fragments of one connection before others have their turn.
const FRAGMENTS_A_TURN: usize = 4;
