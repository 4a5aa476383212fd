//! A chain: lend, read, program, read, and so on, until there is an answer or a reason why there is none.

use ob_core::Instant;
use ob_ebpf::call::{Call, CallError, FaultKind, NoLog, NoTable, Refusal};
use ob_ebpf::hooks::STORAGE;
use ob_nvme::target::{Answer, ForeignKey, Loan, Loans, ReadRefused, Target};
use ob_wire_link::files::FileError;
use ob_wire_nvme::Status;

use super::clients::FirstRead;
use super::files::{Map, Place};
use super::names::Named;
use super::requests::{Reading, Request};
use super::{CALLS_A_TURN, EVENTS_A_TURN, Functions};
use crate::plant::{Bug, is_planted};

const FILE: usize = STORAGE.word("file");
const OFFSET: usize = STORAGE.word("offset");
const READS: usize = STORAGE.word("reads");
const DONE: usize = STORAGE.word("done");
const NEXT_FILE: usize = STORAGE.word("next_file");
const NEXT_OFFSET: usize = STORAGE.word("next_offset");
const NEXT_LEN: usize = STORAGE.word("next_len");

/// Why a chain ends without an answer: the status, and its detail.
type End = (Status, u32);

/// What comes next of a chain.
enum Step {
    /// Something is under way.
    Reading,
    /// The program is to be called.
    Call,
    /// The scratch is the answer.
    Done,
}

impl Functions {
    /// A request has its buffers.
    pub(super) fn lent(&mut self, target: &mut Target, key: ForeignKey, loans: Loans) {
        if self.requests.is_here(key) {
            let [Some(mut scratch), buffer @ Some(_), ..] = loans else { return };
            let Some(mut request) = self.requests.remove(key) else { return };
            // Others have used this memory.
            if !is_planted(Bug::ScratchNotCleared) {
                scratch.fill(0);
            }
            for (to, from) in scratch.iter_mut().zip(&request.input) {
                *to = *from;
            }
            (request.scratch, request.buffer) = (Some(scratch), buffer);
            return self.go_on(target, request, Self::begin_read);
        }
        self.reply(target, key, loans);
    }

    /// Does something with a request, and whatever follows from it.
    fn go_on(
        &mut self,
        target: &mut Target,
        mut request: Box<Request>,
        act: impl FnOnce(&mut Self, &mut Target, &mut Request) -> Result<Step, End>,
    ) {
        match act(self, target, &mut request) {
            Ok(Step::Reading) => self.requests.insert(request),
            Ok(Step::Call) => {
                self.turns.push(request.turn, request.key);
                self.requests.insert(request);
            }
            Ok(Step::Done) => self.finish(target, request),
            Err((status, detail)) => self.give_up(target, request, status, detail),
        }
    }

    fn finish(&mut self, target: &mut Target, mut request: Box<Request>) {
        self.counts.answered += 1;
        let (reads, len) = (u64::from(request.reads), request.answer_len as usize);
        let answer = match request.scratch.take() {
            Some(mut scratch) => {
                scratch.truncate(len);
                Answer::Loan(scratch)
            }
            None => Answer::Nothing,
        };
        let key = request.key;
        self.requests.recycle(request);
        target.foreign_done(key, Ok(answer), reads);
    }

    /// Ends a request for a reason that is not of its own making.
    pub(super) fn fail(&mut self, target: &mut Target, key: ForeignKey, status: Status, detail: u32) {
        if let Some(request) = self.requests.remove(key) {
            if let Some(names) = &mut self.names {
                names.forget(key);
            }
            self.give_up(target, request, status, detail);
        }
    }

    fn give_up(&mut self, target: &mut Target, request: Box<Request>, status: Status, detail: u32) {
        self.counts.failed += 1;
        if status.is(Status::PUSHDOWN_CHANGED) {
            self.counts.changed += 1;
        }
        if status.is(Status::PUSHDOWN_PROGRAM) || status.is(Status::PUSHDOWN_FAULT) {
            self.counts.given_up += 1;
        }
        let (key, value) = (request.key, u64::from(request.reads) | u64::from(detail) << 32);
        self.requests.recycle(request);
        target.foreign_done(key, Err(status.with_do_not_retry()), value);
    }

    /// Begins the next read.
    fn begin_read(&mut self, target: &mut Target, request: &mut Request) -> Result<Step, End> {
        let FirstRead { file, offset, len } = request.next;
        let range = (Status::PUSHDOWN_RANGE, file as u32);
        let index = usize::try_from(file).map_err(|_| range)?;
        if len == 0 || len > u64::from(request.read_len_max) {
            return Err(range);
        }
        if request.reads >= request.reads_max {
            return Err((Status::PUSHDOWN_READS, 0));
        }
        let end = offset.checked_add(len).ok_or(range)?;
        let used = request.files.get(index).ok_or(range)?;
        if used.file.is_withdrawn() && !is_planted(Bug::WithdrawnMapRead) {
            return Err((Status::PUSHDOWN_CHANGED, file as u32));
        }
        match &used.file.place {
            Place::Map(map) => {
                let block = block_of(target, request, map).ok_or((Status::PUSHDOWN_CHANGED, file as u32))?;
                let end = end.min(map.len);
                if offset >= end {
                    request.view = 0..0;
                    self.count_read(request);
                    return Ok(Step::Call);
                }
                let whole = offset / block * block..end.checked_next_multiple_of(block).ok_or(range)?;
                let lead = (offset - whole.start) as usize;
                request.view = lead..lead + (end - offset) as usize;
                let fits = |buffer: &Loan| (whole.end - whole.start) as usize <= buffer.len();
                let rest = request.buffer.take().filter(fits).ok_or(range)?;
                request.reading = Some(Reading { left: whole, done: None, rest: Some(rest) });
                let step = self.read_part(target, request)?;
                self.count_read(request);
                Ok(step)
            }
            Place::Node(node) => {
                let node = *node;
                let names = self.names.as_mut().ok_or((Status::PUSHDOWN_UNKNOWN, 0))?;
                let block = u64::from(names.block_len());
                let (from, to) = (offset / block * block, end.checked_next_multiple_of(block).ok_or(range)?);
                let lead = (offset - from) as usize;
                request.view = lead..lead + len as usize;
                let fits = |buffer: &Loan| (to - from) as usize <= buffer.len();
                let buffer = request.buffer.take().filter(fits).ok_or(range)?;
                names.read(request.key, node, from, (to - from) as u32, buffer);
                self.count_read(request);
                Ok(Step::Reading)
            }
        }
    }

    fn count_read(&mut self, request: &mut Request) {
        request.reads += 1;
        self.counts.reads += 1;
    }

    /// Begins to read what lies together of a map's range.
    fn read_part(&mut self, target: &mut Target, request: &mut Request) -> Result<Step, End> {
        let file = request.next.file as u32;
        let internal = (Status::INTERNAL_ERROR, file);
        let used = request.files.get(file as usize).ok_or(internal)?;
        let Place::Map(map) = &used.file.place else { return Err(internal) };
        if used.file.is_withdrawn() && !is_planted(Bug::WithdrawnMapRead) {
            return Err((Status::PUSHDOWN_CHANGED, file));
        }
        block_of(target, request, map).ok_or((Status::PUSHDOWN_CHANGED, file))?;
        let reading = request.reading.as_mut().ok_or(internal)?;
        let (place, len) = map.find(&reading.left).ok_or((Status::PUSHDOWN_RANGE, file))?;
        let mut part = reading.rest.take().ok_or(internal)?;
        reading.rest = part.split_off(len as usize);
        reading.left.start += len;
        self.counts.read_bytes += len;
        match target.foreign_read(request.key, map.nsid, place, part) {
            Ok(()) => Ok(Step::Reading),
            Err(ReadRefused { status, .. }) => Err((status, file)),
        }
    }

    /// A read of the target's is over.
    pub(super) fn read_over(&mut self, target: &mut Target, key: ForeignKey, result: Result<Loan, Status>) {
        let Some(request) = self.requests.remove(key) else { return };
        self.go_on(target, request, |functions, target, request| {
            let file = request.next.file as u32;
            let internal = (Status::INTERNAL_ERROR, file);
            let part = result.map_err(|status| (status, file))?;
            let reading = request.reading.as_mut().ok_or(internal)?;
            let done = match reading.done.take() {
                Some(done) => done.join(part).map_err(|_| internal)?,
                None => part,
            };
            if !reading.left.is_empty() {
                reading.done = Some(done);
                return functions.read_part(target, request);
            }
            let whole = match reading.rest.take() {
                Some(rest) => done.join(rest).map_err(|_| internal)?,
                None => done,
            };
            (request.reading, request.buffer) = (None, Some(whole));
            Ok(Step::Call)
        });
    }

    /// Takes what the card's files have answered; whether that was anything.
    pub(super) fn take_named(&mut self, target: &mut Target) -> bool {
        let mut did = false;
        for _ in 0..EVENTS_A_TURN {
            let Some(named) = self.names.as_mut().and_then(super::names::Names::poll) else { break };
            did = true;
            match named {
                Named::Opened { key, controller, result } => self.opened(target, key, controller, result),
                Named::Read { key, result, buffer } => {
                    let Some(request) = self.requests.remove(key) else { continue };
                    self.go_on(target, request, |functions, _, request| {
                        functions.named_read_over(request, result, buffer)
                    });
                }
                Named::Looked { key, version } => {
                    let Some(request) = self.requests.remove(key) else { continue };
                    self.go_on(target, request, |functions, _, request| {
                        let at = request.looking.unwrap_or_default();
                        let pinned = request.files.get(at).and_then(|used| used.pinned);
                        if version.is_none() || version != pinned {
                            return Err((Status::PUSHDOWN_CHANGED, at as u32));
                        }
                        functions.look_on(request, at + 1)
                    });
                }
            }
        }
        did
    }

    fn named_read_over(
        &mut self,
        request: &mut Request,
        result: Result<(u32, Option<ob_files_card::FileVersion>), FileError>,
        buffer: Loan,
    ) -> Result<Step, End> {
        let file = request.next.file as u32;
        let used = request.files.get_mut(file as usize).ok_or((Status::INTERNAL_ERROR, file))?;
        let changed = (Status::PUSHDOWN_CHANGED, file);
        let (len, version) = result.map_err(|error| match error {
            // Who has read nothing of it has to open what has its name now.
            FileError::NotFound if used.pinned.is_none() => (Status::PUSHDOWN_UNKNOWN, file),
            FileError::NotFound => changed,
            FileError::Io => (Status::UNRECOVERED_READ_ERROR, file),
            _ => (Status::INTERNAL_ERROR, file),
        })?;
        self.counts.read_bytes += u64::from(len);
        if !is_planted(Bug::VersionsIgnored) {
            let version = version.ok_or(changed)?;
            if *used.pinned.get_or_insert(version) != version || used.file.is_withdrawn() {
                return Err(changed);
            }
        }
        request.view.end = request.view.end.min(len as usize).max(request.view.start);
        request.buffer = Some(buffer);
        Ok(Step::Call)
    }

    /// Looks whether the card's files that were read before the last one are as they were, from one of them on: then all of them were so at
    /// one moment.
    fn look_on(&mut self, request: &mut Request, from: usize) -> Result<Step, End> {
        let last = request.next.file as usize;
        let is_due = |(at, used): &(usize, &super::requests::FileUse)| {
            *at >= from && *at != last && used.pinned.is_some()
        };
        let next = request.files.iter().enumerate().find(is_due);
        let Some((at, used)) = next.filter(|_| !is_planted(Bug::LastLookSkipped)) else {
            return all_stand(request);
        };
        let internal = (Status::INTERNAL_ERROR, at as u32);
        // Only the card's own files have a version to be pinned to.
        let Place::Node(node) = used.file.place else { return Err(internal) };
        if used.file.is_withdrawn() {
            return Err((Status::PUSHDOWN_CHANGED, at as u32));
        }
        request.looking = Some(at);
        let buffer = request.buffer.as_mut().ok_or(internal)?;
        let empty = buffer.split_off(buffer.len()).ok_or(internal)?;
        self.names.as_mut().ok_or(internal)?.look(request.key, node, empty);
        Ok(Step::Reading)
    }

    /// Calls programs, of each tenant in turn; whether any was.
    pub(super) fn run_some(&mut self, target: &mut Target, now: Instant) -> bool {
        self.turns.wake();
        let mut did = false;
        for _ in 0..CALLS_A_TURN {
            let Some((_, key)) = self.turns.next(now, &mut self.counts.over_share) else { break };
            did = true;
            if let Some(request) = self.requests.remove(key) {
                self.go_on(target, request, Self::call);
            }
        }
        did
    }

    fn call(&mut self, target: &mut Target, request: &mut Request) -> Result<Step, End> {
        let file = request.next.file as u32;
        let internal = (Status::INTERNAL_ERROR, file);
        let used = request.files.get(file as usize).ok_or(internal)?;
        if used.file.is_withdrawn() && !is_planted(Bug::WithdrawnMapRead) {
            return Err((Status::PUSHDOWN_CHANGED, file));
        }
        let entry = request.program.entry().ok_or(internal)?;
        let data =
            request.buffer.as_ref().and_then(|buffer| buffer.get(request.view.clone())).ok_or(internal)?;
        let scratch = request.scratch.as_mut().ok_or(internal)?;
        let mut context = [0; STORAGE.fields.len()];
        context[FILE] = request.next.file;
        context[OFFSET] = request.next.offset;
        context[READS] = request.reads.into();
        let given = u64::from(self.limits.programs.call_fuel).min(request.fuel) as u32;
        let mut call =
            Call { data, scratch, context: &mut context, fuel: given, table: &NoTable, log: &NoLog };
        let outcome = entry.code.run(&mut call);
        let spent = given - call.fuel;
        request.fuel -= u64::from(spent);
        // A call has a cost of its own, however little its program does.
        self.turns.spend(request.turn, spent.saturating_add(CALL_COST));
        entry.tally.called(spent, matches!(outcome, Err(CallError::Fault(_))));
        match outcome {
            Ok(0) if context[DONE] != 0 => self.look_on(request, 0),
            Ok(0) => {
                request.next = FirstRead {
                    file: context[NEXT_FILE],
                    offset: context[NEXT_OFFSET],
                    len: context[NEXT_LEN],
                };
                self.begin_read(target, request)
            }
            Ok(result) => Err((Status::PUSHDOWN_PROGRAM, result as u32)),
            Err(CallError::Refused(Refusal::DataTooShort { .. })) => Err((Status::PUSHDOWN_RANGE, file)),
            Err(CallError::Refused(_)) => Err(internal),
            Err(CallError::Fault(fault)) if fault.what == FaultKind::OutOfFuel => {
                Err((Status::PUSHDOWN_FUEL, 0))
            }
            Err(CallError::Fault(fault)) => Err((Status::PUSHDOWN_FAULT, fault.at as u32)),
        }
    }
}

/// A request is done, unless one of the files that it names was closed or mapped anew, whether it was read or not.
fn all_stand(request: &Request) -> Result<Step, End> {
    match request.files.iter().position(|used| used.file.is_withdrawn()) {
        Some(at) if !is_planted(Bug::WithdrawnMapRead) => Err((Status::PUSHDOWN_CHANGED, at as u32)),
        _ => Ok(Step::Done),
    }
}

/// Fuel that a call costs its tenant besides what its program used.
const CALL_COST: u32 = 100;

/// Bytes of a block of the namespace that a map is of; nothing if that is gone, or its number is another's.
fn block_of(target: &Target, request: &Request, map: &Map) -> Option<u64> {
    let namespace = target.control().namespace(request.controller, map.nsid).ok()?;
    (namespace.key == map.namespace).then_some(namespace.block_len.into())
}
