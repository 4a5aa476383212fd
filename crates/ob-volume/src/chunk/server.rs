//! The server: connections on one side, files on the other.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::IoSlice;

use ob_core::{
    ChunkName, ConnectionAction, ConnectionId, Epoch, IdMap, Incarnation, Instant, SegmentName,
    StreamProtocol, Token,
};
use ob_files_card::{Completion, LocalFiles, MetadataOp, Op, Outcome};
use ob_format::volume::ServerFile;
use ob_memory::ArenaSpan;
use ob_wire_link::files::CardInfo;

use super::batch::Entry;
use super::chunk::{Chunk, Task, Work};
use super::config::{ChunkServerConfig, ChunkServerFacts, ServerState};
use super::connection::{Connection, ConnectionKey, Payload};
use super::jobs::{Io, Jobs, Turned};
use super::ledger::Ledger;
use super::memory::Memory;
use super::mending::Kept;
use super::peers::{Peers, ReplyTo};
use super::reads::Reading;
use super::space::Space;
use super::start;
use super::steps::Finding;
use crate::wire::{Refusal, Reply};

/// Rounds of completions and of what follows from them in one turn.
const ROUNDS_A_TURN: usize = 8;

/// A segment, as far as a server has to know it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) epoch: Epoch,
    /// The ledger's ticket of the epoch.
    pub(super) ticket: u64,
}

/// What a request to the files is for.
pub(super) enum Out {
    Job(u64),
    Batch(ChunkName),
    Read(Reading),
    Ledger,
    Space,
}

/// Whose a job is.
#[derive(Clone, Copy, Debug)]
pub(super) enum JobOf {
    Server,
    Ledger,
    Chunk(ChunkName),
}

/// An answer that waits for the ledger.
pub(super) struct Promise {
    pub(super) ticket: u64,
    pub(super) to: ReplyTo,
    pub(super) reply: Reply,
}

/// A chunk server without sockets and files.
///
/// Memory is bounded by its buffers, by 256 requests a connection, and by what it has of chunks and segments.
pub struct ChunkServer {
    pub(super) config: ChunkServerConfig,
    pub(super) block_len: usize,
    pub(super) state: ServerState,
    has_begun: bool,
    pub(super) server: Option<ServerFile>,
    /// That it is of its pool is durable.
    pub(super) has_joined: bool,
    pub(super) now: Instant,
    pub(super) peers: Peers,
    pub(super) memory: Memory,
    pub(super) space: Space,
    pub(super) ledger: Ledger,
    pub(super) segments: BTreeMap<SegmentName, Segment>,
    pub(super) chunks: BTreeMap<ChunkName, Chunk>,
    /// Chunks that were deleted in this life, of which the ledger still says something.
    pub(super) deleted: BTreeSet<ChunkName>,
    /// The same, of which a ledger says nothing any more that is being written.
    pub(super) deleted_before: BTreeSet<ChunkName>,
    /// Until when no segments are forgotten, since there were too few that can be.
    pub(super) forget_again_at: Option<Instant>,
    /// Chunks with which something goes on, in no order.
    pub(super) busy: Vec<ChunkName>,
    #[allow(clippy::vec_box)] // They are what chunks have, and are not moved.
    pub(super) spare_work: Vec<Box<Work>>,
    pub(super) spare_entries: Vec<Vec<Entry>>,
    /// Requests whose segment's epoch is not durable yet, each with its ticket.
    pub(super) fenced: VecDeque<(u64, Task)>,
    pub(super) promises: VecDeque<Promise>,
    /// Chunks that wait for the ledger.
    pub(super) gated: VecDeque<(u64, ChunkName)>,
    /// Chunks for which there is something to do.
    pub(super) ready: VecDeque<ChunkName>,
    /// Chunks that wait for a buffer to write from.
    pub(super) unbuffered: VecDeque<ChunkName>,
    /// Reads that wait for a buffer of each class.
    pub(super) reads: [VecDeque<Reading>; 2],
    /// Blocks that cannot be read, as far as what they have was sent; those come last that were sent something for last.
    pub(super) patches: Vec<(ChunkName, Kept)>,
    pub(super) jobs: Jobs<Finding, JobOf>,
    /// Jobs that wait for a buffer.
    pub(super) waiting_jobs: VecDeque<u64>,
    pub(super) out: IdMap<u64, Out>,
    next_token: u64,
    to_submit: VecDeque<(Token, Op)>,
    /// A buffer has come back outside of a turn.
    is_freed: bool,
    has_more: bool,
}

impl ChunkServer {
    /// A server of these files, which it begins to look at with its first turn.
    #[must_use]
    pub fn new(config: ChunkServerConfig, files: CardInfo) -> Self {
        let memory = Memory::new(&config, files.block_len as usize);
        Self {
            jobs: Jobs::new(memory.jobs.clone(), files.block_len),
            memory,
            config,
            block_len: files.block_len as usize,
            state: ServerState::Starting,
            has_begun: false,
            server: None,
            has_joined: false,
            now: Instant::default(),
            peers: Peers::default(),
            space: Space::new(files.segment_len),
            ledger: Ledger::default(),
            segments: BTreeMap::new(),
            chunks: BTreeMap::new(),
            deleted: BTreeSet::new(),
            deleted_before: BTreeSet::new(),
            forget_again_at: None,
            busy: Vec::new(),
            spare_work: Vec::new(),
            spare_entries: Vec::new(),
            fenced: VecDeque::new(),
            promises: VecDeque::new(),
            gated: VecDeque::new(),
            ready: VecDeque::new(),
            unbuffered: VecDeque::new(),
            reads: Default::default(),
            patches: Vec::new(),
            waiting_jobs: VecDeque::new(),
            out: IdMap::default(),
            next_token: 0,
            to_submit: VecDeque::new(),
            is_freed: false,
            has_more: false,
        }
    }

    /// Somebody has connected; nothing if there is no room, or the server cannot serve. Until it does, nothing is received.
    pub fn accept(&mut self, now: Instant, connection: ConnectionId) -> Option<ConnectionKey> {
        if matches!(self.state, ServerState::Failed(_)) {
            return None;
        }
        self.peers.accept(now, connection, self.config.connections_max)
    }

    /// Takes what the files have done, and asks them for more; whether there was anything.
    pub fn turn(&mut self, now: Instant, files: &mut LocalFiles) -> bool {
        self.now = now;
        let mut did = false;
        if !self.has_begun {
            self.has_begun = true;
            let fresh = self.config.fresh;
            self.start_job(JobOf::Server, move |io| async move {
                Finding::Started(Box::new(start::start(io, fresh).await))
            });
            did = true;
        }
        self.sweep();
        self.has_more = false;
        for _ in 0..ROUNDS_A_TURN {
            let moved = self.round(files);
            did |= moved;
            self.has_more = moved;
            if !moved {
                break;
            }
        }
        did
    }

    /// When the next turn is due, if nothing happens before.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        self.peers.next_due()
    }

    /// Whether a turn would do something now.
    #[must_use]
    pub fn can_go_on(&self) -> bool {
        !self.has_begun
            || self.has_more
            || !self.ready.is_empty()
            || (self.is_freed && self.reads.iter().any(|reads| !reads.is_empty()))
            || self.peers.has_over()
    }

    /// Whether nothing that it has taken is on its way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.out.is_empty() && self.jobs.is_empty() && self.ready.is_empty()
    }

    /// How far it is.
    #[must_use]
    pub fn state(&self) -> &ServerState {
        &self.state
    }

    /// What it is like.
    #[must_use]
    pub fn facts(&self) -> ChunkServerFacts {
        ChunkServerFacts {
            state: self.state.clone(),
            server: self.server.map(|server| server.server),
            incarnation: self.server.map_or(Incarnation(0), |server| server.incarnation),
            pool: self.server.and_then(|server| server.pool),
            capacity: self.space.capacity(),
            free: self.space.free(),
            chunks: self.chunks.len() as u64,
            connections: self.peers.open(),
            counts: self.peers.counts,
        }
    }

    /// Where its buffers lie, for registration.
    pub fn arenas(&self) -> impl Iterator<Item = ArenaSpan> {
        self.memory.arenas()
    }

    fn sweep(&mut self) {
        let is_serving = self.state == ServerState::Serving;
        for key in self.peers.sweep(self.now, &self.config, is_serving) {
            self.peers.cut_off(key);
            self.forget_requests(key);
        }
    }

    /// One round of everything; whether anything moved.
    fn round(&mut self, files: &mut LocalFiles) -> bool {
        let mut moved = self.submit(files);
        while let Some(completion) = files.poll() {
            moved = true;
            self.completed(completion);
        }
        self.is_freed = false;
        moved |= self.greet();
        moved |= self.feed();
        moved |= self.run_ready();
        moved |= self.keep_ledger();
        self.ask_space();
        moved | self.submit(files)
    }

    /// Begins a job; it is turned at once.
    pub(super) fn start_job<F>(&mut self, of: JobOf, make: impl FnOnce(Io) -> F)
    where
        F: Future<Output = Finding> + 'static,
    {
        let id = self.next_token;
        self.next_token += 1;
        self.jobs.start(id, of, make);
        self.turn_job(id);
    }

    pub(super) fn turn_job(&mut self, id: u64) {
        match self.jobs.turn(id) {
            Turned::Asks(op) => self.send(Out::Job(id), op),
            Turned::Waits => self.waiting_jobs.push_back(id),
            Turned::Ended(finding, of) => self.found(finding, of),
            Turned::Unknown => {}
        }
    }

    /// Sends a request to the files, as soon as they take it.
    pub(super) fn send(&mut self, out: Out, op: Op) {
        let token = self.next_token;
        self.next_token += 1;
        self.out.insert(token, out);
        self.to_submit.push_back((Token(token), op));
    }

    fn submit(&mut self, files: &mut LocalFiles) -> bool {
        let mut moved = false;
        while let Some((token, op)) = self.to_submit.pop_front() {
            if let Err(op) = files.submit(token, op) {
                self.to_submit.push_front((token, op));
                break;
            }
            moved = true;
        }
        moved
    }

    fn completed(&mut self, completion: Completion) {
        match self.out.remove(&completion.token.0) {
            Some(Out::Job(id)) => {
                self.jobs.answer(id, completion);
                self.turn_job(id);
            }
            Some(Out::Batch(name)) => self.written(name, completion.result.map(|_| ())),
            Some(Out::Read(reading)) => self.read(reading, completion),
            Some(Out::Ledger) => {
                self.ledger.written(completion.result.map(|_| ()));
                self.ledger_moved();
            }
            Some(Out::Space) => {
                self.space.is_asked = false;
                if let Ok(Outcome::Space(info)) = completion.result {
                    self.space.told(&info);
                }
            }
            None => {}
        }
    }

    fn ask_space(&mut self) {
        if self.space.is_stale && !self.space.is_asked && self.state == ServerState::Serving {
            (self.space.is_stale, self.space.is_asked) = (false, true);
            self.send(Out::Space, Op::Metadata(MetadataOp::Space));
        }
    }

    /// Answers that something was done.
    pub(super) fn answer(&mut self, to: ReplyTo, reply: Reply) {
        self.peers.answer(self.now, to, reply, Payload::None);
    }

    /// Answers that it was not.
    pub(super) fn refuse(&mut self, to: ReplyTo, refusal: Refusal) {
        self.peers.refuse(self.now, to, refusal);
    }

    /// Answers when everything is durable that the ledger was told up to now.
    pub(super) fn promise(&mut self, to: ReplyTo, reply: Reply) {
        let ticket = self.ledger.latest();
        if self.ledger.has_failed() && ticket > self.ledger.durable {
            self.refuse(to, Refusal::Medium);
        } else if ticket <= self.ledger.durable {
            self.answer(to, reply);
        } else {
            self.promises.push_back(Promise { ticket, to, reply });
        }
    }
}

impl StreamProtocol for ChunkServer {
    type Key = ConnectionKey;
    type Now = Instant;

    fn receive_into(&mut self, key: ConnectionKey) -> Option<[&mut [u8]; 2]> {
        if self.state != ServerState::Serving {
            return None;
        }
        self.peers.get_mut(key)?.receive_into()
    }

    fn received(&mut self, now: Instant, key: ConnectionKey, count: usize) {
        self.now = now;
        if let Some(connection) = self.peers.get_mut(key) {
            connection.received(count);
            self.take_messages(key);
        }
    }

    /// What a tier has sent last is of no use without a way to answer it: the same as a break.
    fn ended(&mut self, now: Instant, key: ConnectionKey) {
        self.broken(now, key);
    }

    fn broken(&mut self, now: Instant, key: ConnectionKey) {
        self.now = now;
        self.peers.end(key);
        self.forget_requests(key);
    }

    fn writable(&mut self, key: ConnectionKey) {
        self.peers.touch(key);
    }

    fn next_dirty(&mut self) -> Option<(ConnectionKey, ConnectionId)> {
        self.peers.next_dirty()
    }

    fn transmit<'a>(&'a self, key: ConnectionKey, into: &mut [IoSlice<'a>]) -> usize {
        self.peers.get(key).map_or(0, |connection| connection.transmit(into))
    }

    fn sent(&mut self, now: Instant, key: ConnectionKey, count: usize, offered: usize) -> bool {
        let Some(connection) = self.peers.get_mut(key) else { return false };
        self.is_freed |= connection.sent(now, count);
        self.now = now;
        self.go_on_after_sending(key);
        count == offered && self.peers.get(key).is_some_and(Connection::has_output)
    }

    fn next_action(&mut self) -> Option<ConnectionAction> {
        self.peers.next_action()
    }
}
