//! What is done with chunks: their queues, their batches, and whatever needs a chunk for itself.

use std::collections::VecDeque;

use ob_core::{ChunkName, Units};
use ob_files_card::Op;
use ob_format::volume::{ChunkHeader, RECORDS_START};
use ob_wire_link::files::FileError;

use super::batch::{Batch, Entry};
use super::chunk::{Chunk, Running, Task, Work};
use super::directory::{self, DirectoryState};
use super::peers::ReplyTo;
use super::reads;
use super::scan::{Found, Place};
use super::server::{ChunkServer, JobOf, Out};
use super::steps::{self, refusal_of};
use crate::plant::{Bug, is_planted};
use crate::wire::{CreateState, Refusal, ReplicaState, Reply, Request};

/// Chunks of a server.
const CHUNKS_MAX: usize = 1_000_000;
/// What is kept of what chunks had that nothing goes on with: they need it again.
const SPARE: usize = 256;

/// The chunk that a request is about.
fn chunk_of(request: &Request) -> Option<ChunkName> {
    match *request {
        Request::Hello { .. } | Request::Ping | Request::Chunks { .. } | Request::Fence { .. } => None,
        Request::Create { chunk, .. }
        | Request::Append { chunk, .. }
        | Request::Read { chunk, .. }
        | Request::Stop { chunk, .. }
        | Request::Fill { chunk, .. }
        | Request::Seal { chunk, .. }
        | Request::Delete { chunk, .. }
        | Request::Stat { chunk, .. }
        | Request::List { chunk, .. }
        | Request::Repair { chunk, .. }
        | Request::Check { chunk, .. } => Some(chunk),
    }
}

impl ChunkServer {
    /// Takes a request whose epoch is durable.
    pub(super) fn admit(&mut self, task: Task) {
        if let Some(refusal) = self.is_stale(&task) {
            return self.refuse(task.to, refusal);
        }
        let Some(name) = chunk_of(&task.request) else {
            return self.answer(task.to, Reply::Fence);
        };
        let Some(chunk) = self.chunks.get_mut(&name) else { return self.admit_missing(name, task) };
        if let Request::Read { offset, len, .. } = task.request
            && chunk.may_be_read()
            && (reads::is_durable(chunk, offset, len) || chunk.work.is_none())
        {
            let place = (chunk.file, chunk.readable());
            return self.begin_read(&task, place);
        }
        self.queue(name, task);
    }

    fn admit_missing(&mut self, name: ChunkName, task: Task) {
        match task.request {
            // An earlier answer may have got lost.
            Request::Delete { .. } => self.promise(task.to, Reply::Delete),
            Request::Create { .. } => {
                if let Err((to, refusal)) = self.begin_create(name, task) {
                    self.refuse(to, refusal);
                }
            }
            _ => self.refuse(task.to, Refusal::NoChunk),
        }
    }

    fn begin_create(&mut self, name: ChunkName, task: Task) -> Result<(), (ReplyTo, Refusal)> {
        let Request::Create { epoch, length, block_len, state, kind, may_use_reserve, .. } = task.request
        else {
            return Ok(());
        };
        let refused = |refusal| Err((task.to, refusal));
        let pool = self.peers.get(task.to.connection).map(|connection| connection.pool).unwrap_or_default();
        let Some(server) = self.server.as_mut() else { return refused(Refusal::Busy) };
        if server.pool.is_some_and(|own| own != pool) {
            return refused(Refusal::WrongPool);
        }
        let state = state_of(state);
        // The ledger still says of it that it is stopped; no owner uses a number twice.
        let was_there = self.deleted.contains(&name) || self.deleted_before.contains(&name);
        if state == ReplicaState::Open && was_there {
            return refused(Refusal::Exists);
        }
        let chunk = Chunk::new(epoch, kind, block_len, length, state);
        let (free, needed) = (self.space.free(), self.space.promise_of(&chunk));
        let kept = if may_use_reserve { 0 } else { self.config.reserve_len };
        if needed > free.saturating_sub(kept) || self.chunks.len() >= CHUNKS_MAX {
            return refused(Refusal::Full { free });
        }
        let is_first = server.pool.replace(pool).is_none();
        self.space.promise(needed);
        self.chunks.insert(name, chunk);
        let gate = self.note_state(name);
        if let Some(chunk) = self.chunks.get_mut(&name) {
            chunk.gate = gate;
        }
        self.queue(name, task);
        if is_first {
            self.end_strangers(pool);
        }
        Ok(())
    }

    /// Puts a request behind the others of its chunk.
    fn queue(&mut self, name: ChunkName, task: Task) {
        self.make_ready(name);
        if let Some(chunk) = self.chunks.get_mut(&name) {
            chunk.work().queue.push_back(task);
        }
    }

    /// Looks at a chunk in this turn.
    pub(super) fn make_ready(&mut self, name: ChunkName) {
        let Some(chunk) = self.chunks.get_mut(&name) else { return };
        let spare = &mut self.spare_work;
        let work = chunk.work.get_or_insert_with(|| spare.pop().unwrap_or_default());
        if work.busy_at.is_none() {
            work.busy_at = Some(self.busy.len());
            self.busy.push(name);
        }
        if !std::mem::replace(&mut work.is_ready, true) {
            self.ready.push_back(name);
        }
    }

    /// Nothing goes on with a chunk any more; what waited for it.
    pub(super) fn end_work(&mut self, name: ChunkName) -> VecDeque<Task> {
        let work = self.chunks.get_mut(&name).and_then(|chunk| chunk.work.take());
        let Some(mut work) = work else { return VecDeque::new() };
        if let Some(at) = work.busy_at.filter(|at| self.busy.get(*at) == Some(&name)) {
            self.busy.swap_remove(at);
            let moved = self.busy.get(at).and_then(|moved| self.chunks.get_mut(moved));
            if let Some(moved) = moved.and_then(|chunk| chunk.work.as_deref_mut()) {
                moved.busy_at = Some(at);
            }
        }
        let waiting = if work.queue.is_empty() { VecDeque::new() } else { std::mem::take(&mut work.queue) };
        if self.spare_work.len() < SPARE {
            let queue = std::mem::take(&mut work.queue);
            *work = Work { queue, ..Work::default() };
            self.spare_work.push(work);
        }
        waiting
    }

    /// Goes on with all chunks for which there is something to do; whether there was one.
    pub(super) fn run_ready(&mut self) -> bool {
        let did = !self.ready.is_empty();
        for _ in 0..self.ready.len() {
            let Some(name) = self.ready.pop_front() else { break };
            self.run(name);
        }
        did
    }

    fn run(&mut self, name: ChunkName) {
        loop {
            let Some(chunk) = self.chunks.get_mut(&name) else { return };
            let gate = chunk.gate;
            let work = chunk.work();
            work.is_ready = false;
            if work.running.is_some() {
                return;
            }
            if gate > self.ledger.durable && self.ledger.has_failed() {
                self.give_up_gate(name);
                continue;
            }
            if gate > self.ledger.durable {
                if !std::mem::replace(&mut work.is_gated, true) {
                    self.gated.push_back((gate, name));
                }
                return;
            }
            let Some(task) = work.queue.pop_front() else { break };
            if !chunk.is_here && !chunk.is_asked_by(&task.request) {
                // Who asked for the chunk is heard no more.
                work_first(chunk, task);
                return self.unmake(name);
            }
            if let Some(refusal) = self.is_stale(&task) {
                self.refuse(task.to, refusal);
                continue;
            }
            if let Some(task) = self.execute(name, task) {
                if let Some(chunk) = self.chunks.get_mut(&name) {
                    chunk.work().queue.push_front(task);
                }
                break;
            }
        }
        self.write_batch(name);
        if let Some(work) = self.chunks.get_mut(&name).and_then(|chunk| chunk.work.as_deref_mut()) {
            // What waited for it is over: the next one gets it.
            work.granted = None;
        }
        self.rest(name);
    }

    /// Nothing is left to do: what is left over is done now.
    fn rest(&mut self, name: ChunkName) {
        let Some(chunk) = self.chunks.get_mut(&name) else { return };
        let is_waiting = chunk.work.as_deref().is_some_and(|work| !work.queue.is_empty() || work.is_ready);
        if is_waiting || !chunk.is_at_rest() {
            return;
        }
        if !chunk.is_here {
            return self.unmake(name);
        }
        if chunk.is_to_be_cut {
            let (file, length) = (chunk.file, chunk.end);
            chunk.work().running = Some(Running::Cut);
            self.start_job(JobOf::Chunk(name), move |io| steps::cut(io, file, length));
        } else if chunk.directory == DirectoryState::Wanted {
            self.make_directory(name);
        } else {
            self.end_work(name);
        }
    }

    /// Makes a sealed chunk's directory, where there is room that nobody was promised.
    fn make_directory(&mut self, name: ChunkName) {
        let Some(chunk) = self.chunks.get_mut(&name) else { return };
        let needed = self.space.taken_by(directory::len_most(chunk.end));
        let room = self.space.free().saturating_sub(self.config.reserve_len);
        let Some(summary) = chunk.summary().filter(|_| needed <= room) else {
            chunk.directory = DirectoryState::LeftOut;
            return self.make_ready(name);
        };
        let place = Place { limit: summary.length, ..place_of(name, chunk) };
        self.space.promise(needed);
        self.start_running(name, Running::Directory(needed), move |io| directory::make(io, place, summary));
    }

    /// Does what a request asks for, or gives it back if it has to wait.
    fn execute(&mut self, name: ChunkName, task: Task) -> Option<Task> {
        let chunk = self.chunks.get_mut(&name)?;
        if chunk.left_alone.is_some() {
            return self.execute_left_alone(name, task);
        }
        match task.request {
            Request::Append { .. } | Request::Fill { .. } if chunk.is_here => {
                return self.take_records(name, task);
            }
            Request::Read { offset, len, .. } if chunk.is_here => {
                if !reads::is_durable(chunk, offset, len) && !chunk.is_at_rest() {
                    return Some(task);
                }
                let place = (chunk.file, chunk.readable());
                self.begin_read(&task, place);
                return None;
            }
            _ => {}
        }
        if !chunk.is_at_rest() {
            return Some(task);
        }
        let end = chunk.end();
        match task.request {
            Request::Create { .. } => self.create(name, task),
            Request::Stop { epoch, .. } => {
                self.stop(name, epoch);
                self.promise(task.to, Reply::Stop(end));
            }
            Request::Stat { .. } => {
                let state = chunk.state;
                self.answer(task.to, Reply::Stat { end, state });
            }
            Request::Delete { .. } => {
                self.start_running(name, Running::Delete(task), move |io| steps::delete(io, name));
            }
            Request::Seal { .. } => self.seal(name, task),
            Request::List { .. } => self.list(name, task),
            Request::Repair { offset, .. } => self.repair(name, task, offset),
            Request::Check { offset, .. } => self.check(name, task, offset),
            _ => self.refuse(task.to, Refusal::Busy),
        }
        None
    }

    /// The same of a chunk that cannot be served: what there is of it stays as it is until its owner does without.
    fn execute_left_alone(&mut self, name: ChunkName, task: Task) -> Option<Task> {
        match task.request {
            Request::Delete { .. } => {
                self.start_running(name, Running::Delete(task), move |io| steps::delete(io, name));
            }
            Request::Create { .. } => self.refuse(task.to, Refusal::Exists),
            _ => self.refuse(task.to, Refusal::Medium),
        }
        None
    }

    pub(super) fn start_running<F>(
        &mut self,
        name: ChunkName,
        running: Running,
        make: impl FnOnce(super::jobs::Io) -> F,
    ) where
        F: Future<Output = steps::Finding> + 'static,
    {
        if let Some(chunk) = self.chunks.get_mut(&name) {
            chunk.work().running = Some(running);
            self.start_job(JobOf::Chunk(name), make);
        }
    }

    /// A chunk that was to be made is not.
    pub(super) fn unmake(&mut self, name: ChunkName) {
        if let Some(chunk) = self.chunks.get(&name) {
            let promised = self.space.promise_of(chunk);
            self.forget(name, promised);
        }
    }

    fn create(&mut self, name: ChunkName, task: Task) {
        let Request::Create { epoch, length, block_len, kind, .. } = task.request else { return };
        let (Some(chunk), Some(server)) = (self.chunks.get(&name), self.server) else { return };
        if chunk.is_here {
            let is_same = chunk.is_asked_by(&task.request) && chunk.end == RECORDS_START;
            let free = self.space.free();
            return match is_same {
                true => self.promise(task.to, Reply::Create { free }),
                false => self.refuse(task.to, Refusal::Exists),
            };
        }
        let pool = server.pool.unwrap_or_default();
        let header = ChunkHeader { name, epoch, kind, length, block_len, pool };
        let join = (!self.has_joined).then_some(server);
        self.start_running(name, Running::Create(task), move |io| steps::create(io, header, join));
    }

    /// Takes records that belong at the end, and compares those that should be there.
    fn take_records(&mut self, name: ChunkName, task: Task) -> Option<Task> {
        let chunk = self.chunks.get_mut(&name)?;
        let (is_fill, offset) = match task.request {
            Request::Append { offset, .. } => (false, offset),
            Request::Fill { offset, .. } => (true, offset),
            _ => return None,
        };
        let front = chunk.front();
        let refusal = match (chunk.state, is_fill) {
            _ if task.records != Some(chunk.kind) || task.end > chunk.length => Some(Refusal::Bad),
            (ReplicaState::Open, true) => Some(Refusal::Bad),
            (ReplicaState::Sealed, _) | (ReplicaState::Stopped | ReplicaState::Filling, false) => {
                Some(Refusal::Stopped)
            }
            _ if offset > front.end => Some(Refusal::Gap { end: front.end }),
            // A part of it is there: what is missing is sent from the end.
            _ if offset < front.end && task.end > front.end => Some(Refusal::Gap { end: front.end }),
            _ => None,
        };
        if let Some(refusal) = refusal {
            self.refuse(task.to, refusal);
            return None;
        }
        if offset == front.end {
            return self.add_to_batch(name, task, is_fill);
        }
        if !chunk.is_at_rest() {
            return Some(task);
        }
        let file = chunk.file;
        let mut task = task;
        if let Some(records) = task.payload.take() {
            self.start_running(name, Running::Compare(task), move |io| {
                steps::compare(io, file, offset, records)
            });
        }
        None
    }

    fn add_to_batch(&mut self, name: ChunkName, task: Task, is_fill: bool) -> Option<Task> {
        let (records, epoch) = (task.payload.as_deref()?, task.epoch()?);
        let chunk = self.chunks.get_mut(&name)?;
        let front = chunk.front();
        if chunk.work().batch.is_none() {
            let mut buffer = chunk.work().granted.take();
            if buffer.is_none() && self.unbuffered.is_empty() {
                buffer = self.memory.batches.take();
            }
            let Some(buffer) = buffer else {
                // Those that wait already come first, or it would be a matter of luck who ever gets one.
                if !std::mem::replace(&mut chunk.work().is_unbuffered, true) {
                    self.unbuffered.push_back(name);
                }
                return Some(task);
            };
            let entries = self.spare_entries.pop().unwrap_or_default();
            let batch = Batch::new(buffer, front, chunk.tail.as_deref(), entries);
            chunk.work().batch = Some(batch);
        }
        let batch = chunk.work().batch.as_mut()?;
        if !batch.has_room(records.len()) {
            return Some(task);
        }
        batch.push(Entry { to: task.to, epoch, is_fill }, records, (task.end, task.everywhere));
        None
    }

    /// Writes the records that have come together, unless others are being written.
    fn write_batch(&mut self, name: ChunkName) {
        let block_len = self.block_len;
        let Some(chunk) = self.chunks.get_mut(&name) else { return };
        let file = chunk.file;
        let Some(work) = chunk.work.as_deref_mut().filter(|work| work.writing.is_none()) else { return };
        let Some(mut batch) = work.batch.take() else { return };
        let Some((offset, bytes)) = batch.seal(block_len, &mut chunk.tail) else { return };
        if is_planted(Bug::AckBeforeDurable) {
            let durable = batch.front.end;
            for entry in std::mem::take(&mut batch.entries) {
                let free = self.space.free();
                self.peers.answer(
                    self.now,
                    entry.to,
                    records_reply(entry.is_fill, durable, free),
                    super::connection::Payload::None,
                );
            }
        }
        work.writing = Some(batch);
        self.peers.counts.batches += 1;
        self.send(Out::Batch(name), Op::Write { file, offset, from: bytes.into(), durable: true });
    }

    /// A chunk's records were written, or could not be.
    pub(super) fn written(&mut self, name: ChunkName, result: Result<(), FileError>) {
        let Some(chunk) = self.chunks.get_mut(&name) else { return };
        let Some(batch) = chunk.work().writing.take() else { return };
        if let Err(error) = result {
            return self.writing_failed(name, batch, error);
        }
        let before = self.space.promise_of(chunk);
        (chunk.end, chunk.everywhere, chunk.content_crc) =
            (batch.front.end, batch.front.everywhere, batch.front.content_crc);
        let after = self.space.promise_of(chunk);
        self.space.kept(before, after);
        let is_fill = batch.entries.first().is_some_and(|entry| entry.is_fill);
        if !is_fill {
            chunk.end_state = crate::wire::EndState::Known;
        }
        self.peers.counts.appends += batch.entries.len() as u64;
        self.peers.counts.append_bytes += batch.len() as u64;
        let mut entries = batch.entries;
        if is_fill && chunk.tail.is_none() && chunk.work().batch.is_none() {
            let (place, known) = (place_of(name, chunk), chunk.known());
            let waiting = entries.iter().map(|entry| entry.to).collect();
            let make = move |io| steps::look_behind(io, place, known);
            return self.start_running(name, Running::Scan(waiting), make);
        }
        for entry in entries.drain(..) {
            self.answer_records(entry.to, is_fill, batch.front.end);
        }
        if self.spare_entries.len() < SPARE {
            self.spare_entries.push(entries);
        }
        self.make_ready(name);
    }

    /// Answers records that are durable.
    pub(super) fn answer_records(&mut self, to: ReplyTo, is_fill: bool, durable: Units) {
        let reply = records_reply(is_fill, durable, self.space.free());
        self.answer(to, reply);
    }

    /// What is there now nobody knows: the chunk takes no more.
    fn writing_failed(&mut self, name: ChunkName, batch: Batch, error: FileError) {
        tracing::warn!(?name, %error, "a chunk is stopped, because it could not be written");
        let mut unwritten = Vec::new();
        let mut by = None;
        if let Some(chunk) = self.chunks.get_mut(&name) {
            chunk.tail = None;
            unwritten.extend(chunk.work().batch.take().into_iter().flat_map(|batch| batch.entries));
        }
        let refusal = refusal_of(error, self.space.free());
        for entry in batch.entries {
            by = by.max(Some(entry.epoch));
            self.refuse(entry.to, refusal);
        }
        if let Some(by) = by {
            self.stop(name, by);
        }
        for entry in unwritten {
            self.refuse(entry.to, Refusal::Stopped);
        }
        self.make_ready(name);
    }
}

fn state_of(state: CreateState) -> ReplicaState {
    match state {
        CreateState::Open => ReplicaState::Open,
        CreateState::Filling => ReplicaState::Filling,
    }
}

fn records_reply(is_fill: bool, durable: Units, free: u64) -> Reply {
    if is_fill { Reply::Fill { durable } } else { Reply::Append { durable, free } }
}

/// A chunk's bytes, up to the end of its file.
pub(super) fn place_of(name: ChunkName, chunk: &Chunk) -> Place {
    Place { name, kind: chunk.kind, file: chunk.file, limit: chunk.length }
}

/// Puts a request back before the others.
fn work_first(chunk: &mut Chunk, task: Task) {
    chunk.work().queue.push_front(task);
}

impl Chunk {
    /// Whether this is the request that makes such a chunk.
    fn is_asked_by(&self, request: &Request) -> bool {
        let Request::Create { epoch, length, block_len, state, kind, .. } = *request else { return false };
        (self.epoch, self.length, self.block_len) == (epoch, length, block_len)
            && (self.state, self.kind) == (state_of(state), kind)
    }

    /// How far it is known to go.
    pub(super) fn known(&self) -> Found {
        Found {
            end: self.end,
            everywhere: self.everywhere,
            content_crc: self.content_crc,
            ..Found::nothing()
        }
    }
}
