//! What becomes of what jobs have found; and sealing, listing and mending, which begin with one.

use ob_core::{ChunkName, Epoch, NodeId, Units};
use ob_format::volume::Entry;
use ob_wire_link::files::FileError;

use super::chunk::{Chunk, Running, Task};
use super::config::ServerState;
use super::connection::Payload;
use super::directory::{self, DirectoryState};
use super::ledger::Ledger;
use super::mending;
use super::run::place_of;
use super::scan::{Found, Place};
use super::server::{ChunkServer, JobOf, Segment};
use super::start::{StartError, Started};
use super::steps::{self, Finding, refusal_of};
use crate::wire::{EndState, Refusal, ReplicaState, Reply, Request, encode_entries};

/// Bytes that a ledger may take when it is written anew beside itself, and has become longer.
fn promise_of_ledger(len: u64) -> u64 {
    len.saturating_mul(2)
}

impl ChunkServer {
    /// A job is over.
    pub(super) fn found(&mut self, finding: Finding, of: JobOf) {
        match (of, finding) {
            (JobOf::Server, Finding::Started(result)) => self.started(*result),
            (JobOf::Ledger, Finding::Ledger(result)) => {
                let before = self.ledger.len();
                self.ledger.rewritten(result);
                if !self.ledger.has_failed() {
                    self.deleted_before.clear();
                    self.space.promise_again(promise_of_ledger(before), promise_of_ledger(self.ledger.len()));
                }
                self.ledger_moved();
            }
            (JobOf::Chunk(name), finding) => {
                let running = self.chunks.get_mut(&name).and_then(|chunk| chunk.work().running.take());
                if let Some(running) = running {
                    self.found_of_chunk(name, running, finding);
                    self.make_ready(name);
                }
            }
            _ => {}
        }
    }

    fn started(&mut self, result: Result<Started, StartError>) {
        let started = match result {
            Ok(started) => started,
            Err(error) => {
                tracing::error!(%error, "the chunk server cannot serve");
                self.state = ServerState::Failed(error);
                return self.end_all();
            }
        };
        let ledger_len = started.ledger.len;
        self.ledger = Ledger::new(started.server.server, started.ledger);
        self.has_joined = started.server.pool.is_some();
        self.server = Some(started.server);
        let segments = started.segments.into_iter();
        self.segments = segments.map(|(name, epoch)| (name, Segment { epoch, ticket: 0 })).collect();
        self.space.told(&started.space);
        self.chunks = started.chunks;
        let promised =
            self.chunks.values().map(|chunk| self.space.promise_of(chunk)).fold(0, u64::saturating_add);
        // The ledger may become full, and be written anew beside itself.
        self.space.promise(promised.saturating_add(promise_of_ledger(ledger_len)));
        self.state = ServerState::Serving;
        self.peers.resume_all(self.now);
    }

    fn found_of_chunk(&mut self, name: ChunkName, running: Running, finding: Finding) {
        match (running, finding) {
            (Running::Create(task), Finding::Created { joined, result }) => {
                self.has_joined |= joined;
                self.created(name, &task, result);
            }
            (Running::Delete(task), Finding::Deleted(result)) => self.removed(name, &task, result),
            (Running::Compare(task), Finding::Compared(result)) => {
                let is_fill = matches!(task.request, Request::Fill { .. });
                let end = self.chunks.get(&name).map_or(task.end, |chunk| chunk.end);
                match result {
                    Ok(true) => self.answer_records(task.to, is_fill, end),
                    Ok(false) => self.refuse(task.to, Refusal::Conflict),
                    Err(error) => self.refuse(task.to, refusal_of(error, self.space.free())),
                }
            }
            (Running::Scan(waiting), Finding::Scanned(found)) => {
                let end = found.end;
                self.scanned(name, found);
                for to in waiting {
                    self.answer_records(to, true, end);
                }
            }
            (Running::Seal(task), Finding::Summed(result)) => match result {
                Ok(content_crc) => self.sealed(name, &task, content_crc),
                Err(error) => self.refuse(task.to, refusal_of(error, self.space.free())),
            },
            (Running::Cut, Finding::Cut(result)) => {
                if let Err(error) = result {
                    tracing::warn!(?name, %error, "a sealed chunk keeps space that it does not need");
                }
                if let Some(chunk) = self.chunks.get_mut(&name) {
                    chunk.is_to_be_cut = false;
                }
                self.space.is_stale = true;
            }
            (Running::Directory(promised), Finding::Directory(result)) => {
                // What it has taken is not free, until the files say how much that was.
                self.space.kept(promised, 0);
                self.directory_made(name, result);
            }
            (Running::List(task), Finding::Listed { result, is_by_directory }) => {
                if !is_by_directory {
                    self.want_directory(name);
                }
                self.listed(&task, result);
            }
            (Running::Repair(task), Finding::Repaired(result, patches)) => {
                self.keep_patches(name, patches);
                self.answer_or_refuse(&task, result.map(|()| Reply::Repair));
            }
            (Running::Check(task), Finding::Checked(result)) => {
                self.answer_or_refuse(&task, result.map(|sound| Reply::Check { sound }));
            }
            _ => {}
        }
    }

    /// A chunk goes so far behind what was filled in.
    fn scanned(&mut self, name: ChunkName, found: Found) {
        let Some(chunk) = self.chunks.get_mut(&name) else { return };
        let before = self.space.promise_of(chunk);
        // Who knew that nothing is missing knows it still.
        let was_known = chunk.end_state == EndState::Known;
        chunk.found(found);
        if was_known {
            chunk.end_state = EndState::Known;
        }
        let after = self.space.promise_of(chunk);
        self.space.kept(before, after);
        self.space.is_stale = true;
    }

    fn directory_made(&mut self, name: ChunkName, result: Result<bool, FileError>) {
        if let Err(error) = result {
            tracing::debug!(?name, %error, "a sealed chunk has no directory");
        }
        if let Some(chunk) = self.chunks.get_mut(&name) {
            let is_made = result == Ok(true);
            chunk.directory = if is_made { DirectoryState::Made } else { DirectoryState::LeftOut };
        }
        self.space.is_stale = true;
    }

    /// A sealed chunk was listed by its records, since its directory does not fit: it is made, unless that did not go before.
    fn want_directory(&mut self, name: ChunkName) {
        let is_wanting =
            |chunk: &&mut Chunk| chunk.summary().is_some() && chunk.directory != DirectoryState::LeftOut;
        if let Some(chunk) = self.chunks.get_mut(&name).filter(is_wanting) {
            chunk.directory = DirectoryState::Wanted;
        }
    }

    fn created(
        &mut self,
        name: ChunkName,
        task: &Task,
        result: Result<(NodeId, Option<Vec<u8>>), FileError>,
    ) {
        let Some(chunk) = self.chunks.get_mut(&name) else { return };
        let before = self.space.promise_of(chunk);
        match result {
            Ok((file, tail)) => {
                (chunk.file, chunk.tail, chunk.is_here) = (file, tail, true);
                let after = self.space.promise_of(chunk);
                self.space.kept(before, after);
                self.space.is_stale = true;
                let free = self.space.free();
                self.promise(task.to, Reply::Create { free });
            }
            Err(error) => {
                self.refuse(task.to, refusal_of(error, self.space.free()));
                self.forget(name, before);
            }
        }
    }

    fn removed(&mut self, name: ChunkName, task: &Task, result: Result<(), FileError>) {
        if let Err(error) = result {
            return self.refuse(task.to, refusal_of(error, self.space.free()));
        }
        let promised = self.chunks.get(&name).map_or(0, |chunk| self.space.promise_of(chunk));
        self.answer(task.to, Reply::Delete);
        self.forget(name, promised);
    }

    /// A chunk is not there any more; who waited for it is told.
    pub(super) fn forget(&mut self, name: ChunkName, promised: u64) {
        let waiting = self.end_work(name);
        let Some(chunk) = self.chunks.remove(&name) else { return };
        drop(self.take_patches(name));
        self.space.withdraw(promised);
        if super::start::chunk_fact(name, &chunk).is_some() {
            self.deleted.insert(name);
        }
        for task in waiting {
            self.admit(task);
        }
    }

    /// Seals a chunk, or finds out first what it consists of.
    pub(super) fn seal(&mut self, name: ChunkName, task: Task) {
        let Request::Seal { epoch, length, content_crc, .. } = task.request else { return };
        let Some(chunk) = self.chunks.get_mut(&name) else { return };
        let (end, file) = (chunk.end, chunk.file);
        let is_sealed = chunk.state == ReplicaState::Sealed;
        if is_sealed && (length, content_crc) == (end, chunk.content_crc) {
            return self.promise(task.to, Reply::Seal);
        }
        if is_sealed && epoch <= chunk.by {
            return self.refuse(task.to, Refusal::Conflict);
        }
        if chunk.state == ReplicaState::Open || length > chunk.length {
            return self.refuse(task.to, Refusal::Bad);
        }
        if length > end {
            if is_sealed {
                self.fill_again(name, epoch);
            }
            return self.refuse(task.to, Refusal::Gap { end });
        }
        if length == end {
            let content_crc = chunk.content_crc;
            return self.sealed(name, &task, content_crc);
        }
        self.start_running(name, Running::Seal(task), move |io| steps::sum(io, file, length));
    }

    /// A sealed chunk is to become longer: until it is, it is one that is filled.
    fn fill_again(&mut self, name: ChunkName, epoch: Epoch) {
        let Some(chunk) = self.chunks.get_mut(&name) else { return };
        (chunk.state, chunk.by, chunk.is_to_be_cut) = (ReplicaState::Filling, epoch, false);
        chunk.directory = DirectoryState::Unknown;
        chunk.tail = None;
        let promise = self.space.promise_of(chunk);
        self.space.promise(promise);
        let ticket = self.note_state(name);
        if let Some(chunk) = self.chunks.get_mut(&name) {
            chunk.gate = ticket;
        }
    }

    /// The records up to the length that a chunk is to be sealed at have this sum.
    fn sealed(&mut self, name: ChunkName, task: &Task, found: u32) {
        let Request::Seal { epoch, length, content_crc, .. } = task.request else { return };
        let Some(chunk) = self.chunks.get_mut(&name) else { return };
        if found != content_crc {
            return self.refuse(task.to, Refusal::Conflict);
        }
        let promised = self.space.promise_of(chunk);
        (chunk.state, chunk.by, chunk.end) = (ReplicaState::Sealed, epoch, length);
        (chunk.content_crc, chunk.end_state, chunk.tail) = (content_crc, EndState::Known, None);
        chunk.everywhere = chunk.everywhere.min(length);
        (chunk.is_to_be_cut, chunk.directory) = (true, DirectoryState::Wanted);
        self.space.withdraw(promised);
        let ticket = self.note_state(name);
        if let Some(chunk) = self.chunks.get_mut(&name) {
            // Nothing is cut before it is durable that nothing behind is needed.
            chunk.gate = ticket;
        }
        self.promise(task.to, Reply::Seal);
    }

    pub(super) fn list(&mut self, name: ChunkName, task: Task) {
        let Request::List { from, to, most, .. } = task.request else { return };
        let Some(chunk) = self.chunks.get(&name) else { return };
        let mut place = place_of(name, chunk);
        place.limit = chunk.end;
        let (to, summary) = (to.min(chunk.end), chunk.summary());
        let make = move |io| directory::list(io, place, summary, (from, to), most as usize);
        self.start_running(name, Running::List(task), make);
    }

    fn listed(&mut self, task: &Task, result: Result<(Vec<Entry>, Units), Option<FileError>>) {
        let Request::List { to, .. } = task.request else { return };
        let (entries, at) = match result {
            Ok(listed) => listed,
            Err(None) => return self.refuse(task.to, Refusal::Damaged),
            Err(Some(error)) => return self.refuse(task.to, refusal_of(error, self.space.free())),
        };
        match encode_entries(&entries) {
            Ok(bytes) => {
                let next = if at == Units(u32::MAX) { to } else { at };
                self.peers.answer(self.now, task.to, Reply::List { next }, Payload::Bytes(bytes));
            }
            Err(_) => self.refuse(task.to, Refusal::Damaged),
        }
    }

    pub(super) fn repair(&mut self, name: ChunkName, mut task: Task, offset: Units) {
        let Some(chunk) = self.chunks.get(&name) else { return };
        let Some(summary) = chunk.summary().filter(|summary| task.end <= summary.length) else {
            return self.refuse(task.to, Refusal::Bad);
        };
        let place = place_of(name, chunk);
        if let Some(record) = task.payload.take() {
            let kept = self.take_patches(name);
            self.start_running(name, Running::Repair(task), move |io| {
                mending::repair(io, place, summary, (offset, record), kept)
            });
        }
    }

    /// Looks at what a sealed chunk has on the device.
    pub(super) fn check(&mut self, name: ChunkName, task: Task, offset: Units) {
        let Some(chunk) = self.chunks.get(&name) else { return };
        let Some(summary) = chunk.summary().filter(|summary| offset < summary.length) else {
            return self.refuse(task.to, Refusal::Bad);
        };
        let place = Place { limit: summary.length, ..place_of(name, chunk) };
        self.start_running(name, Running::Check(task), move |io| steps::check(io, place, offset));
    }

    fn answer_or_refuse(&mut self, task: &Task, result: Result<Reply, Refusal>) {
        match result {
            Ok(reply) => self.answer(task.to, reply),
            Err(refusal) => self.refuse(task.to, refusal),
        }
    }
}
