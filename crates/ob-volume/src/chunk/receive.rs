//! From bytes to tasks: messages, greetings, and what becomes of requests whose connection is over.

use ob_core::PoolId;
use ob_format::volume::ENTRY_LEN;

use super::chunk::Task;
use super::config::ServerState;
use super::connection::{ConnectionKey, Greeting, Payload, Step};
use super::memory::{Class, has_free};
use super::peers::{ReplyTo, Share};
use super::server::ChunkServer;
use crate::plant::{Bug, is_planted};
use crate::wire::{
    HELLO_LEN, HelloPayload, REQUESTS_MAX, Refusal, Reply, Request, RequestMessage, VERSION, WINDOW_LEN,
    WelcomePayload, sum_up_records,
};

impl ChunkServer {
    /// Takes messages out of what a connection has received, until more is needed.
    pub(super) fn take_messages(&mut self, key: ConnectionKey) {
        let shares = [Class::Short, Class::Long].map(|class| self.memory.share(class));
        loop {
            let Some(connection) = self.peers.get_mut(key).filter(|connection| !connection.is_ended) else {
                return;
            };
            if connection.greeting.is_some() || connection.is_starving || connection.is_held_up {
                break;
            }
            if connection.has_its_share(shares) {
                connection.is_held_up = true;
                connection.within_since = None;
                self.peers.counts.hold_ups += 1;
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
                Step::Refuse { .. } if !self.peers.may_begin(key, 0) => self.cut_off(key),
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
            && !connection.is_held_up
        {
            connection.within_since.get_or_insert(now);
            self.peers.arm(now);
        }
    }

    fn cut_off(&mut self, key: ConnectionKey) {
        self.peers.cut_off(key);
        self.forget_requests(key);
    }

    /// Something was sent: a connection that was held up for it is listened to again.
    pub(super) fn go_on_after_sending(&mut self, key: ConnectionKey) {
        let shares = [Class::Short, Class::Long].map(|class| self.memory.share(class));
        let Some(connection) = self.peers.get_mut(key) else { return };
        if connection.is_held_up && !connection.has_its_share(shares) {
            connection.is_held_up = false;
            self.peers.resume(key);
            self.take_messages(key);
        }
    }

    /// What a request takes of what all connections share.
    fn share_of(&self, message: &RequestMessage) -> Share {
        let entries = |most: u32| most.saturating_mul(ENTRY_LEN as u32);
        let (answer, read) = match message.request {
            Request::Read { len, .. } => (0, Some(self.class_of_read(len))),
            Request::List { most, .. } | Request::Chunks { most, .. } => (entries(most), None),
            _ => (0, None),
        };
        let is_long = self.memory.class_of(message.payload_len as usize) == Class::Long;
        Share { answer, read, is_long }
    }

    /// Finds a place for a message's payload; whether the connection can go on.
    fn make_room(&mut self, key: ConnectionKey, message: RequestMessage) -> bool {
        let is_greeted = self.peers.get(key).is_some_and(|connection| connection.is_greeted);
        if !is_greeted || !self.peers.may_begin(key, message.payload_len) {
            self.cut_off(key);
            return false;
        }
        let class = self.memory.class_of(message.payload_len as usize);
        let (is_long, share) = (class == Class::Long, self.memory.share(Class::Long));
        let Some(connection) = self.peers.get_mut(key) else { return false };
        let may_have = !is_long || connection.long_in < share;
        match may_have.then(|| self.memory.take_in(message.payload_len)).flatten() {
            Some(buffer) => {
                connection.long_in += u32::from(is_long);
                connection.begin_records(message, buffer);
                true
            }
            None => {
                connection.is_starving = true;
                connection.within_since = None;
                self.peers.counts.hold_ups += 1;
                self.peers.starving[class as usize].push_back(key);
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
        let share = self.share_of(message);
        let to = ReplyTo { connection: key, tag: message.tag, kind, payload_len, share };
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
            share: Share::default(),
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
        match self.peers.begin_session((tier, port), session, key, self.config.sessions_max) {
            Ok(before) => self.replace(key, to, hello, before),
            Err(refusal) => self.refuse(to, refusal),
        }
    }

    /// A connection takes the place of an earlier one, which ends before the hello is answered (F6).
    fn replace(
        &mut self,
        key: ConnectionKey,
        to: ReplyTo,
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
        if self.peers.get(key).is_none() {
            // Everything of it is answered.
            return;
        }
        let is_its = |task: &Task| task.to.connection == key;
        let mut dropped: Vec<ReplyTo> = Vec::new();
        self.fenced.retain(|(_, task)| keep(task.to, !is_its(task), &mut dropped));
        for reads in &mut self.reads {
            reads.retain(|read| keep(read.to, read.to.connection != key, &mut dropped));
        }
        let mut unmade = Vec::new();
        for name in &self.busy {
            let Some(chunk) = self.chunks.get_mut(name) else { continue };
            let Some(work) = chunk.work.as_deref_mut() else { continue };
            let before = work.queue.len();
            work.queue.retain(|task| keep(task.to, !is_its(task), &mut dropped));
            let is_unasked = before > 0 && work.queue.is_empty();
            if !chunk.is_here && is_unasked && work.running.is_none() {
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
        for _ in 0..self.waiting_jobs.len() {
            if !has_free(&self.memory.jobs) {
                break;
            }
            let Some(id) = self.waiting_jobs.pop_front() else { break };
            self.turn_job(id);
            did = true;
        }
        did |= self.feed_batches();
        did |= self.feed_starving(Class::Short);
        did | self.feed_starving(Class::Long)
    }

    /// Lets connections go on that wait for a buffer for what they send, in the order in which they began to wait. One that has its
    /// share waits on, and keeps nobody else waiting.
    fn feed_starving(&mut self, class: Class) -> bool {
        let (mut did, share) = (false, self.memory.share(class));
        for _ in 0..self.peers.starving[class as usize].len() {
            if !self.memory.has_in(class) {
                break;
            }
            let Some(key) = self.peers.starving[class as usize].pop_front() else { break };
            let Some(connection) = self.peers.get_mut(key).filter(|connection| connection.is_starving) else {
                continue;
            };
            if class == Class::Long && connection.long_in >= share {
                self.peers.starving[class as usize].push_back(key);
                continue;
            }
            connection.is_starving = false;
            self.take_messages(key);
            self.peers.resume(key);
            did = true;
        }
        did
    }

    /// Gives buffers to chunks that wait for one to write from, in the order in which they began to wait.
    fn feed_batches(&mut self) -> bool {
        let mut did = false;
        while let Some(name) = self.unbuffered.front().copied() {
            let Some(buffer) = self.memory.batches.take() else { break };
            self.unbuffered.pop_front();
            let Some(chunk) = self.chunks.get_mut(&name) else { continue };
            let work = chunk.work();
            if std::mem::take(&mut work.is_unbuffered) {
                work.granted = Some(buffer);
            }
            self.make_ready(name);
            did = true;
        }
        did
    }

    /// The server is of a pool from now on: those of another one are strangers.
    pub(super) fn end_strangers(&mut self, pool: PoolId) {
        for key in self.peers.strangers(pool) {
            self.cut_off(key);
        }
    }

    /// Nothing can be served any more: everybody goes elsewhere.
    pub(super) fn end_all(&mut self) {
        for key in self.peers.all() {
            self.peers.end(key);
            self.forget_requests(key);
        }
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
    let Ok(summary) = sum_up_records(chunk, offset, bytes) else { return false };
    (task.end, task.everywhere, task.records) = (summary.end, summary.everywhere, Some(summary.kind));
    summary.count == 1 || !matches!(task.request, Request::Repair { .. })
}
