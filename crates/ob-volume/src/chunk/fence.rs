//! Epochs and the ledger: whose requests are heard, and what is promised.

use ob_core::{ChunkId, ChunkName, Epoch, SegmentName};
use ob_files_card::Op;
use ob_format::volume::LedgerFact;

use super::chunk::Task;
use super::config::ServerState;
use super::connection::Payload;
use super::ledger;
use super::server::{ChunkServer, JobOf, Out, Promise, Segment};
use super::start::{StartError, facts_of};
use super::steps::Finding;
use crate::plant::{Bug, is_planted};
use crate::wire::{ChunkLine, Refusal, ReplicaState, Reply, Request, encode_chunks};

/// How long nothing is forgotten again after little could be.
const FORGET_AGAIN: std::time::Duration = std::time::Duration::from_secs(10);

impl ChunkServer {
    /// Decides about a request by its epoch, before anything else.
    pub(super) fn route(&mut self, task: Task) {
        let Some((segment, epoch)) = task.request.fence() else { return self.route_unfenced(&task) };
        // Whoever makes the first chunk says which pool it is of. Until then nobody's epoch counts.
        let is_nobodys = self.server.is_none_or(|server| server.pool.is_none());
        if is_nobodys && !matches!(task.request, Request::Create { .. }) {
            return self.refuse(task.to, Refusal::WrongPool);
        }
        match self.heed(segment, epoch, &task) {
            Err(refusal) => self.refuse(task.to, refusal),
            Ok(ticket) if ticket > self.ledger.durable && self.ledger.has_failed() => {
                self.refuse(task.to, Refusal::Medium);
            }
            Ok(ticket) if ticket > self.ledger.durable => self.fenced.push_back((ticket, task)),
            Ok(_) => self.admit(task),
        }
    }

    fn route_unfenced(&mut self, task: &Task) {
        match task.request {
            Request::Ping => {
                let load = u8::try_from(self.out.len()).unwrap_or(u8::MAX);
                let (free, used) = (self.space.free(), self.space.used());
                self.answer(task.to, Reply::Ping { load, free, used });
            }
            Request::Chunks { after, is_of_segment, most } => {
                self.tell_chunks(task, after, is_of_segment, most);
            }
            _ => self.refuse(task.to, Refusal::Bad),
        }
    }

    /// Whether an epoch is one that is heard, and the ticket of it.
    fn heed(&mut self, segment: SegmentName, epoch: Epoch, task: &Task) -> Result<u64, Refusal> {
        match self.segments.get(&segment) {
            Some(known) if known.epoch > epoch => {
                if is_unfenced(task) {
                    return Ok(known.ticket);
                }
                Err(Refusal::Stale { known: known.epoch.number().into() })
            }
            Some(known) if known.epoch == epoch => Ok(known.ticket),
            _ if self.ledger.has_failed() => Err(Refusal::Medium),
            known => {
                if known.is_none() && !self.has_room_for_segment() {
                    return Err(Refusal::Busy);
                }
                let ticket = self.ledger.push(LedgerFact::Epoch { segment, epoch });
                self.segments.insert(segment, Segment { epoch, ticket });
                self.drop_unbegun(segment, epoch);
                Ok(ticket)
            }
        }
    }

    /// Whether one more segment can be known; some others are forgotten for it.
    fn has_room_for_segment(&mut self) -> bool {
        if self.segments.len() < self.config.segments_max {
            return true;
        }
        if self.forget_again_at.is_none_or(|at| at <= self.now) {
            self.forget_segments();
        }
        self.segments.len() < self.config.segments_max
    }

    /// Forgets the older half of the segments of which nothing is here: whom a fence would refuse finds no chunk, and one that it
    /// makes counts for nobody (C2).
    fn forget_segments(&mut self) {
        let mut ages: Vec<(u64, SegmentName)> = self
            .segments
            .iter()
            .filter(|(name, segment)| segment.ticket <= self.ledger.durable && !self.has_something_of(**name))
            .map(|(name, segment)| (segment.ticket, *name))
            .collect();
        ages.sort_unstable();
        let most = self.config.segments_max;
        let forgotten = ages.len().min((most / 2).max(1));
        for (_, name) in ages.into_iter().take(forgotten) {
            self.segments.remove(&name);
        }
        if forgotten < most / 16 {
            self.forget_again_at = Some(self.now + FORGET_AGAIN);
        }
        self.ledger.is_outdated |= forgotten > 0;
    }

    /// Whether there is a chunk of a segment, or was one in this life of which the ledger still says something.
    fn has_something_of(&self, segment: SegmentName) -> bool {
        let of_segment = ChunkName::new(segment, ChunkId(0))..=ChunkName::new(segment, ChunkId(u32::MAX));
        self.chunks.range(of_segment.clone()).next().is_some()
            || self.deleted.range(of_segment.clone()).next().is_some()
            || self.deleted_before.range(of_segment).next().is_some()
    }

    /// Whether a request is of an epoch that is over by now: which one is known.
    pub(super) fn is_stale(&self, task: &Task) -> Option<Refusal> {
        let (segment, epoch) = task.request.fence()?;
        let known = self.segments.get(&segment)?.epoch;
        let is_stale = known > epoch && !is_unfenced(task);
        is_stale.then_some(Refusal::Stale { known: known.number().into() })
    }

    /// Records of a segment that no write has yet are of an owner that has it no more.
    fn drop_unbegun(&mut self, segment: SegmentName, epoch: Epoch) {
        if is_planted(Bug::AppendUnfenced) {
            return;
        }
        let first = ChunkName::new(segment, ChunkId(0));
        let last = ChunkName::new(segment, ChunkId(u32::MAX));
        let mut dropped = Vec::new();
        for (_, chunk) in self.chunks.range_mut(first..=last) {
            let batch = chunk.work.as_deref_mut().and_then(|work| work.batch.take());
            dropped.extend(batch.into_iter().flat_map(|batch| batch.entries));
        }
        for entry in dropped {
            self.refuse(entry.to, Refusal::Stale { known: epoch.number().into() });
        }
    }

    fn tell_chunks(&mut self, task: &Task, after: ChunkName, is_of_segment: bool, most: u32) {
        use std::ops::Bound::{Excluded, Unbounded};
        let behind = self.chunks.range((Excluded(after), Unbounded));
        let of_segment = |name: &ChunkName| !is_of_segment || name.segment_name() == after.segment_name();
        let mut lines: Vec<ChunkLine> = behind
            .take_while(|(name, _)| of_segment(name))
            .filter(|(_, chunk)| chunk.is_here && chunk.left_alone.is_none())
            .take(most as usize + 1)
            .map(|(name, chunk)| ChunkLine {
                chunk: *name,
                epoch: chunk.epoch,
                state: chunk.state,
                kind: chunk.kind,
                end: chunk.end,
                allocated_kib: u32::try_from(self.space.taken_by(chunk.end.bytes()) >> 10)
                    .unwrap_or(u32::MAX),
            })
            .collect();
        let has_more = lines.len() > most as usize;
        lines.truncate(most as usize);
        match encode_chunks(&lines) {
            Ok(bytes) => {
                let reply = Reply::Chunks { has_more };
                self.peers.answer(self.now, task.to, reply, Payload::Bytes(bytes));
            }
            Err(_) => self.refuse(task.to, Refusal::Damaged),
        }
    }

    /// The ledger has become durable further, or cannot any more.
    pub(super) fn ledger_moved(&mut self) {
        let (durable, has_failed) = (self.ledger.durable, self.ledger.has_failed());
        while self.fenced.front().is_some_and(|(ticket, _)| *ticket <= durable || has_failed) {
            let Some((ticket, task)) = self.fenced.pop_front() else { break };
            if ticket <= durable { self.admit(task) } else { self.refuse(task.to, Refusal::Medium) }
        }
        while self.promises.front().is_some_and(|promise| promise.ticket <= durable || has_failed) {
            let Some(Promise { ticket, to, reply }) = self.promises.pop_front() else { break };
            if ticket <= durable { self.answer(to, reply) } else { self.refuse(to, Refusal::Medium) }
        }
        for _ in 0..self.gated.len() {
            let Some((ticket, name)) = self.gated.pop_front() else { break };
            if let Some(work) = self.chunks.get_mut(&name).and_then(|chunk| chunk.work.as_deref_mut()) {
                work.is_gated = ticket > durable;
            }
            if ticket <= durable {
                self.make_ready(name);
            } else if has_failed {
                self.give_up_gate(name);
            } else {
                self.gated.push_back((ticket, name));
            }
        }
        if let Some(error) = self.ledger.failed.filter(|_| self.state == ServerState::Serving) {
            // Another life may be able to write it anew.
            self.state = ServerState::Failed(StartError::LedgerUnwritten(error));
            self.end_all();
        }
    }

    /// What waited for the ledger will not come. A chunk that was to be made is not.
    pub(super) fn give_up_gate(&mut self, name: ChunkName) {
        let Some(chunk) = self.chunks.get_mut(&name) else { return };
        if chunk.work.as_deref().is_some_and(|work| work.running.is_some()) {
            return;
        }
        let tasks = chunk.work.as_deref_mut().map(|work| std::mem::take(&mut work.queue)).unwrap_or_default();
        if chunk.is_here {
            (chunk.gate, chunk.is_to_be_cut) = (0, false);
        } else {
            let promise = self.space.promise_of(chunk);
            self.space.withdraw(promise);
            self.end_work(name);
            self.chunks.remove(&name);
        }
        for task in tasks {
            self.refuse(task.to, Refusal::Medium);
        }
    }

    /// Writes what is pending of the ledger; whether anything was begun.
    pub(super) fn keep_ledger(&mut self) -> bool {
        if !self.ledger.is_wanting() {
            return false;
        }
        if self.ledger.is_to_be_rewritten() {
            let segments = self.segments.iter().map(|(name, segment)| (*name, segment.epoch)).collect();
            let facts = facts_of(&segments, &self.chunks);
            let (server, first) = self.ledger.begin_rewrite();
            // A new one says nothing of what is not there, once it is in the old one's place.
            self.deleted_before.append(&mut self.deleted);
            if is_planted(Bug::LedgerBelievedEarly) {
                self.deleted_before.clear();
            }
            self.start_job(JobOf::Ledger, move |io| async move {
                Finding::Ledger(ledger::rewrite(io, server, first, facts).await)
            });
            return true;
        }
        let Some(buffer) = self.memory.ledger.take() else { return false };
        match self.ledger.begin_write(buffer, self.block_len) {
            Ok((file, offset, bytes)) => {
                self.send(Out::Ledger, Op::Write { file, offset, from: bytes.into(), durable: true });
            }
            Err(error) => {
                tracing::error!(%error, "a fact cannot be said");
                self.ledger.fail(ob_wire_link::files::FileError::Invalid);
                self.ledger_moved();
            }
        }
        true
    }

    /// Notes durably how a chunk is; the ticket.
    pub(super) fn note_state(&mut self, name: ChunkName) -> u64 {
        let fact = self.chunks.get(&name).and_then(|chunk| super::start::chunk_fact(name, chunk));
        fact.map_or(0, |fact| self.ledger.push(fact))
    }

    /// Stops a chunk; durable only later.
    pub(super) fn stop(&mut self, name: ChunkName, by: Epoch) {
        let Some(chunk) = self.chunks.get_mut(&name) else { return };
        if chunk.state == ReplicaState::Open {
            (chunk.state, chunk.by) = (ReplicaState::Stopped, by);
            self.note_state(name);
        }
    }
}

/// With the plants, requests of any epoch are heard.
fn is_unfenced(task: &Task) -> bool {
    match task.request {
        Request::Append { .. } => is_planted(Bug::AppendUnfenced),
        Request::Stop { .. } | Request::Seal { .. } => is_planted(Bug::SealUnfenced),
        Request::Delete { .. } => is_planted(Bug::DeleteUnfenced),
        Request::Read { .. } => is_planted(Bug::ReadUnfenced),
        _ => false,
    }
}
