//! From bytes to tasks: messages, greetings, and what becomes of requests whose connection is over.

use ob_core::TierId;
use ob_format::volume::{RecordHeader, Records};

use super::chunk::Task;
use super::config::ServerState;
use super::connection::{ConnectionKey, Greeting, Payload, Step};
use super::peers::ReplyTo;
use super::scan::everywhere_of;
use super::server::ChunkServer;
use crate::plant::{Bug, is_planted};
use crate::wire::{
    HELLO_LEN, HelloPayload, REQUESTS_MAX, Refusal, Reply, Request, RequestMessage, VERSION, WINDOW_LEN,
    WelcomePayload, check_records,
};

impl ChunkServer {
    /// Takes messages out of what a connection has received, until more is needed.
    pub(super) fn take_messages(&mut self, key: ConnectionKey) {
        loop {
            let Some(connection) = self.peers.get_mut(key).filter(|connection| !connection.is_ended) else {
                return;
            };
            if connection.greeting.is_some() || connection.is_starving {
                break;
            }
            match connection.step() {
                Step::Wait => break,
                Step::Buffer(message) => {
                    if !self.make_room(key, message) {
                        break;
                    }
                }
                Step::Hello(message, bytes) => self.hello(key, &message, &bytes),
                Step::Message(message, payload) => self.message(key, &message, payload),
                Step::Refuse { kind, tag, refusal } => {
                    self.peers.refuse_at_once(self.now, key, (kind, tag), refusal);
                }
                Step::CutOff => self.cut_off(key),
            }
            if let Some(connection) = self.peers.get_mut(key) {
                connection.within_since = None;
            }
        }
        let now = self.now;
        // Time that the connection is held up by us is not the peer's.
        if let Some(connection) = self.peers.get_mut(key)
            && connection.is_within()
            && !connection.is_starving
        {
            connection.within_since.get_or_insert(now);
            self.peers.arm(now);
        }
    }

    fn cut_off(&mut self, key: ConnectionKey) {
        self.peers.cut_off(key);
        self.forget_requests(key);
    }

    /// Finds a place for a message's payload; whether the connection can go on.
    fn make_room(&mut self, key: ConnectionKey, message: RequestMessage) -> bool {
        let is_greeted = self.peers.get(key).is_some_and(|connection| connection.is_greeted);
        if !is_greeted || !self.peers.may_begin(key, message.payload_len) {
            self.cut_off(key);
            return false;
        }
        let buffer = self.memory.take_in(message.payload_len);
        let Some(connection) = self.peers.get_mut(key) else { return false };
        match buffer {
            Some(buffer) => {
                connection.begin_records(message, buffer);
                true
            }
            None => {
                connection.is_starving = true;
                connection.within_since = None;
                self.peers.counts.hold_ups += 1;
                self.peers.starving.push_back(key);
                false
            }
        }
    }

    fn message(&mut self, key: ConnectionKey, message: &RequestMessage, payload: Option<ob_memory::Slice>) {
        let is_greeted = self.peers.get(key).is_some_and(|connection| connection.is_greeted);
        let payload_len = message.payload_len;
        if !is_greeted || !self.peers.may_begin(key, payload_len) {
            return self.cut_off(key);
        }
        let (request, kind) = (message.request, message.request.kind().code());
        let to = ReplyTo { connection: key, tag: message.tag, kind, payload_len };
        self.peers.begin(to);
        let mut task = Task {
            to,
            request,
            payload,
            end: Default::default(),
            everywhere: Default::default(),
            records: None,
        };
        if check_payload(&mut task) { self.route(task) } else { self.refuse(to, Refusal::Bad) }
    }

    fn hello(&mut self, key: ConnectionKey, message: &RequestMessage, bytes: &[u8; HELLO_LEN]) {
        let Request::Hello { port, tier, session } = message.request else { return };
        let (Ok(hello), Some(server)) = (HelloPayload::decode(bytes), self.server) else {
            return self.cut_off(key);
        };
        let is_greeted = self.peers.get(key).is_none_or(|connection| connection.is_greeted);
        if is_greeted || self.state != ServerState::Serving {
            return self.cut_off(key);
        }
        let to = ReplyTo {
            connection: key,
            tag: message.tag,
            kind: message.request.kind().code(),
            payload_len: 0,
        };
        self.peers.begin(to);
        let refusal = if !(hello.version_least..=hello.version_most).contains(&VERSION) {
            Some(Refusal::Version { least: VERSION, most: VERSION })
        } else if hello.server.is_some_and(|expected| expected != server.server) {
            Some(Refusal::WrongServer { server: server.server })
        } else if server.pool.is_some_and(|pool| pool != hello.pool) {
            Some(Refusal::WrongPool)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            return self.refuse(to, refusal);
        }
        match self.peers.begin_session((tier, port), session, key) {
            Ok(before) => self.replace(key, to, (tier, port), hello, before),
            Err(refusal) => self.refuse(to, refusal),
        }
    }

    /// A connection takes the place of an earlier one, which ends before the hello is answered (F6).
    fn replace(
        &mut self,
        key: ConnectionKey,
        to: ReplyTo,
        who: (TierId, u32),
        hello: HelloPayload,
        before: Option<ConnectionKey>,
    ) {
        let before = before.filter(|_| !is_planted(Bug::OldConnectionHeard));
        // Who was not greeted yet waits for the one before that.
        let waited = before.and_then(|before| self.peers.get(before)?.greeting.as_ref()?.after);
        if let Some(before) = before {
            self.peers.end(before);
            self.forget_requests(before);
        }
        if let Some(connection) = self.peers.get_mut(key) {
            connection.who = Some(who);
            connection.pool = hello.pool;
            connection.greeting = Some(Greeting { to, after: waited.or(before) });
        }
        self.peers.poke();
        self.greet();
    }

    /// Answers hellos that wait for nothing any more; whether there may have been one.
    pub(super) fn greet(&mut self) -> bool {
        if !self.peers.take_over() {
            return false;
        }
        while let Some((key, to)) = self.peers.next_greeting() {
            let Some(server) = self.server else { continue };
            let free = self.space.free();
            let welcome = WelcomePayload {
                pool: server.pool,
                version: VERSION,
                block_len: self.block_len as u32,
                capacity: self.space.capacity().max(free),
                free,
                requests_max: REQUESTS_MAX,
                window_len: WINDOW_LEN,
                domain: self.config.domain,
            };
            match welcome.encode() {
                Ok(bytes) => {
                    let reply = Reply::Hello { server: server.server, incarnation: server.incarnation };
                    self.peers.answer(self.now, to, reply, Payload::Bytes(bytes.to_vec()));
                    self.peers.resume(key);
                    self.take_messages(key);
                }
                Err(error) => {
                    tracing::error!(%error, "a server that cannot say who it is");
                    self.cut_off(key);
                }
            }
        }
        true
    }

    /// Drops what a connection that is over has sent and what has not begun.
    pub(super) fn forget_requests(&mut self, key: ConnectionKey) {
        let is_its = |task: &Task| task.to.connection == key;
        let mut dropped: Vec<ReplyTo> = Vec::new();
        self.fenced.retain(|(_, task)| keep(task.to, !is_its(task), &mut dropped));
        self.reads.retain(|read| keep(read.to, read.to.connection != key, &mut dropped));
        let mut unmade = Vec::new();
        for (name, chunk) in &mut self.chunks {
            let Some(work) = chunk.work.as_deref_mut() else { continue };
            let was_asked = !work.queue.is_empty();
            work.queue.retain(|task| keep(task.to, !is_its(task), &mut dropped));
            if !chunk.is_here && was_asked && work.running.is_none() {
                unmade.push(*name);
            }
        }
        for to in dropped {
            self.peers.drop_request(to);
        }
        // Who asks for a chunk besides begins it anew.
        for name in unmade {
            self.unmake(name);
        }
    }

    /// Gives buffers to who waits for them; whether anybody got one.
    pub(super) fn feed(&mut self) -> bool {
        let mut did = self.feed_reads();
        for id in std::mem::take(&mut self.waiting_jobs) {
            let waited = self.waiting_jobs.len();
            self.turn_job(id);
            did |= self.waiting_jobs.len() == waited;
        }
        did |= self.feed_batches();
        for _ in 0..self.peers.starving.len() {
            let Some(key) = self.peers.starving.pop_front() else { break };
            let Some(connection) = self.peers.get_mut(key).filter(|connection| connection.is_starving) else {
                continue;
            };
            connection.is_starving = false;
            self.take_messages(key);
            let is_starving = self.peers.get(key).is_some_and(|connection| connection.is_starving);
            if is_starving {
                // It waits on, which is counted already.
                self.peers.counts.hold_ups = self.peers.counts.hold_ups.saturating_sub(1);
                // It keeps its place before those that came later.
                self.peers.starving.pop_back();
                self.peers.starving.push_front(key);
                break;
            }
            self.peers.resume(key);
            did = true;
        }
        did
    }
}

impl ChunkServer {
    /// Lets as many chunks go on that wait for a buffer as there are buffers.
    fn feed_batches(&mut self) -> bool {
        if self.unbuffered.is_empty() {
            return false;
        }
        let batches = &self.memory.batches;
        let free = batches.blocks().saturating_sub(batches.blocks_out()).min(self.unbuffered.len());
        for _ in 0..free {
            let Some(name) = self.unbuffered.pop_front() else { break };
            if let Some(chunk) = self.chunks.get_mut(&name) {
                chunk.work().is_unbuffered = false;
            }
            self.make_ready(name);
        }
        free > 0
    }
}

/// Keeps a request, or notes that it is dropped.
fn keep(to: ReplyTo, is_kept: bool, dropped: &mut Vec<ReplyTo>) -> bool {
    if !is_kept {
        dropped.push(to);
    }
    is_kept
}

/// Checks records, and notes what they say; whether they can be.
fn check_payload(task: &mut Task) -> bool {
    let (chunk, offset) = match task.request {
        Request::Append { chunk, offset, .. }
        | Request::Fill { chunk, offset, .. }
        | Request::Repair { chunk, offset, .. } => (chunk, offset),
        _ => return true,
    };
    let bytes = task.payload.as_deref().unwrap_or_default();
    let Ok(end) = check_records(chunk, offset, bytes) else { return false };
    task.end = end;
    for record in Records::new(bytes).flatten() {
        let header: RecordHeader = record.header;
        let kind = header.kind.chunk_kind();
        if *task.records.get_or_insert(kind) != kind {
            return false;
        }
        task.everywhere = task.everywhere.max(everywhere_of(&header).unwrap_or_default());
    }
    let is_one = Records::new(bytes).nth(1).is_none();
    is_one || !matches!(task.request, Request::Repair { .. })
}
