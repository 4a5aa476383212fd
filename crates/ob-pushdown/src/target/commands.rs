//! What clients ask for, command by command.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use ob_core::{Instant, NodeId};
use ob_ebpf::hooks::STORAGE_DATA_LEN_MAX;
use ob_nvme::target::control::ControllerKey;
use ob_nvme::target::{Answer, ForeignCommand, ForeignKey, Loans, Target};
use ob_programs::Object;
use ob_wire_link::files::FileError;
use ob_wire_nvme::Status;
use ob_wire_nvme::pushdown::{
    Description, EXTENTS_MAX, Extent, FILES_MAX, FileRef, Function, ListEntry, LoadHeader, MapHeader,
    PATH_LEN_MAX, Piece, READ_LEN_DEFAULT, READS_DEFAULT, REQUEST_LEN_MAX, RequestBody, RequestHeader, Run,
    SCRATCH_LEN, VERSION, name_bytes, name_of,
};
use zerocopy::{FromBytes, IntoBytes};

use super::clients::{Client, FirstRead, Plan, Program};
use super::files::{OpenFile, Place};
use super::map_check::Room;
use super::pairs::{Arrived, Asked, Half};
use super::programs::{Load, Loaded};
use super::requests::{FileUse, Request};
use super::uploads::{Bounds, Content, Kind, Progress};
use super::{Functions, buffer_len};
use crate::plant::{Bug, is_planted};

/// Bytes of the longest object with its header.
const OBJECT_LEN_MAX: usize = size_of::<LoadHeader>() + (4 << 20);
/// Bytes of the longest map with its header.
const MAP_LEN_MAX: usize = size_of::<MapHeader>() + EXTENTS_MAX * size_of::<Extent>();
/// Fuel that the check of an extent costs its tenant.
const EXTENT_COST: u32 = 100;
/// Bytes of the largest block of a namespace, or of the card's device.
const BLOCK_LEN_MAX: u32 = 4096;

const INVALID: Status = Status::INVALID_FIELD.with_do_not_retry();
const UNKNOWN: Status = Status::PUSHDOWN_UNKNOWN.with_do_not_retry();
const LIMIT: Status = Status::PUSHDOWN_LIMIT.with_do_not_retry();

/// Why a command is not done: the status, and its detail.
#[derive(Clone, Copy)]
struct Denial {
    status: Status,
    detail: u32,
    /// A map has another version than the one that is named.
    is_mismatch: bool,
}

impl From<Status> for Denial {
    fn from(status: Status) -> Self {
        Self { status, detail: 0, is_mismatch: false }
    }
}

impl Denial {
    /// The number that goes with the status, of a request that has read nothing.
    fn value(self) -> u64 {
        u64::from(self.detail) << 32
    }
}

/// What becomes of a command.
enum Outcome {
    /// It is answered with this.
    Done(u64),
    /// It is answered when there is a buffer, with these bytes.
    Reply(Vec<u8>, u64),
    /// It is answered later.
    Later,
}

/// A reply that waits for its buffer.
pub(super) struct Reply {
    key: ForeignKey,
    bytes: Vec<u8>,
    value: u64,
}

impl Reply {
    pub(super) fn is_of(&self, key: ForeignKey) -> bool {
        self.key == key
    }
}

impl Functions {
    pub(super) fn command(&mut self, target: &mut Target, mut command: ForeignCommand) {
        let data = command.data.take();
        let outcome = Function::parse(&command.entry)
            .map_err(Denial::from)
            .and_then(|function| self.obey(target, &command, function, data.as_deref().unwrap_or_default()));
        // Who waits for buffers must not hold one.
        drop(data);
        let key = command.key;
        match outcome {
            Ok(Outcome::Done(value)) => target.foreign_done(key, Ok(Answer::Nothing), value),
            Ok(Outcome::Reply(mut bytes, value)) => {
                bytes.truncate(command.answer_len_max as usize);
                if bytes.is_empty() || target.lend(key, &[bytes.len()]).is_err() {
                    return target.foreign_done(key, Ok(Answer::Nothing), value);
                }
                self.replies.push(Reply { key, bytes, value });
            }
            Ok(Outcome::Later) => {}
            Err(denial) => {
                self.counts.failed += 1;
                target.foreign_done(key, Err(denial.status), denial.value());
            }
        }
    }

    /// A reply has its buffer.
    pub(super) fn reply(&mut self, target: &mut Target, key: ForeignKey, loans: Loans) {
        let Some(at) = self.replies.iter().position(|reply| reply.key == key) else { return };
        let Reply { bytes, value, .. } = self.replies.swap_remove(at);
        let [Some(mut loan), ..] = loans else { return };
        loan.iter_mut().zip(&bytes).for_each(|(to, from)| *to = *from);
        target.foreign_done(key, Ok(Answer::Loan(loan)), value);
    }

    fn obey(
        &mut self,
        target: &mut Target,
        command: &ForeignCommand,
        function: Function,
        data: &[u8],
    ) -> Result<Outcome, Denial> {
        let controller = command.queue.controller;
        let (key, len) = (command.key, command.answer_len_max);
        self.client(target, controller)?;
        match function {
            Function::Load(piece) => Ok(self.load(key, controller, piece, data)?),
            Function::Map(piece) => Ok(self.map(target, command, piece, data)?),
            Function::Open => Ok(self.open(target, key, controller, data)?),
            Function::Find => Ok(self.find(controller, data)?),
            Function::Prepare => self.prepare(controller, data),
            Function::Query(token) => Ok(self.query(target, controller, token, data)?),
            Function::Describe => Ok(Outcome::Reply(self.describe(target, controller), 0)),
            Function::List(first) => Ok(self.list(controller, first, len)?),
            Function::Refusal(token) => {
                let why = self.client_mut(controller)?.refusal(token).ok_or(UNKNOWN)?;
                let value = why.len() as u64;
                Ok(Outcome::Reply(why.into_bytes(), value))
            }
            Function::Run(run) => Ok(self.run(target, key, controller, &run, len)?),
            Function::Answer(token) => self.answer(target, key, controller, token, len),
            Function::Unload(program) => {
                let client = self.clients.get(&controller).ok_or(UNKNOWN)?;
                let found = client.program(program).ok_or(UNKNOWN)?;
                self.programs.unload(&client.tenant, &found.object);
                Ok(Outcome::Done(0))
            }
            Function::Close(file) => {
                let closed = self.client_mut(controller)?.files.remove(&file).ok_or(UNKNOWN)?;
                closed.withdraw();
                Ok(Outcome::Done(0))
            }
            Function::Forget(plan) => {
                self.client_mut(controller)?.plans.remove(&plan).ok_or(UNKNOWN)?;
                Ok(Outcome::Done(0))
            }
            Function::Request(wanted) => self.execute(target, key, controller, data, wanted.min(len)),
        }
    }

    fn client_mut(&mut self, controller: ControllerKey) -> Result<&mut Client, Status> {
        self.clients.get_mut(&controller).ok_or(UNKNOWN)
    }

    fn load(
        &mut self,
        key: ForeignKey,
        controller: ControllerKey,
        piece: Piece,
        data: &[u8],
    ) -> Result<Outcome, Status> {
        let uploaded = self.uploaded(controller, (Kind::Object, OBJECT_LEN_MAX), piece, data)?;
        let Some(Content::Object(mut bytes)) = uploaded else {
            return Ok(Outcome::Done(0));
        };
        let (header, _) = LoadHeader::read_from_prefix(&bytes).map_err(|_| INVALID)?;
        let name = name_of(&header.name).ok_or(INVALID)?.to_owned();
        bytes.drain(..size_of::<LoadHeader>());
        let (tenant, token) = (self.client_mut(controller)?.tenant.clone(), piece.token);
        self.programs.load(Load { key, controller, tenant, token, name, bytes });
        Ok(Outcome::Later)
    }

    /// Takes a piece; the whole, if it was the last one.
    fn uploaded(
        &mut self,
        controller: ControllerKey,
        (kind, len_max): (Kind, usize),
        piece: Piece,
        data: &[u8],
    ) -> Result<Option<Content>, Status> {
        let (now, until) = (self.now, self.now + self.limits.request_time);
        let bounds = Bounds { len_max, uploads_max: self.limits.uploads_max, until };
        let client = self.client_mut(controller)?;
        client.uploads.expire(now);
        let (progress, turn) = (client.uploads.take(kind, piece, data, bounds), client.turn);
        if let Kind::Map(_) = kind {
            // Who sends maps pays for their checks, whatever comes of them: of each piece, and of the whole, which is put in order once more.
            let whole =
                if let Progress::Whole(Content::Map(check)) = &progress { check.extents() } else { 0 };
            let extents = data.len().div_ceil(size_of::<Extent>()) + whole;
            self.turns.spend(turn, extents as u32 * EXTENT_COST);
            self.checked += extents;
        }
        match progress {
            Progress::More => {
                self.arm();
                Ok(None)
            }
            Progress::Misplaced => Err(INVALID),
            Progress::TooMany => Err(LIMIT),
            Progress::Whole(content) => Ok(Some(content)),
        }
    }

    /// Answers those whose objects are loaded, or refused; whether there were any.
    pub(super) fn take_loaded(&mut self, target: &mut Target) -> bool {
        let mut did = false;
        while let Some((loaded, is_awaited)) = self.programs.next_loaded() {
            did = true;
            let Loaded { key, controller, token, result } = loaded;
            let Some(client) = self.clients.get_mut(&controller).filter(|_| is_awaited) else { continue };
            match result {
                Ok(object) => {
                    tracing::info!(%object, host = client.tenant, took = ?object.took, "programs loaded");
                    let (number, tenant) = (client.program_number(&object, 0), client.tenant.clone());
                    target.foreign_done(key, Ok(Answer::Nothing), number);
                    // What it may have replaced is nobody's any more.
                    let others = self.clients.values_mut().filter(|other| other.tenant == tenant);
                    others.for_each(Client::forget_retired);
                }
                Err(refused) => {
                    self.counts.failed += 1;
                    client.refuse(token, refused.to_string());
                    let status = match refused.is_for_now() {
                        true => LIMIT,
                        false => Status::PUSHDOWN_REFUSED.with_do_not_retry(),
                    };
                    target.foreign_done(key, Err(status), 0);
                }
            }
        }
        did
    }

    fn map(
        &mut self,
        target: &Target,
        command: &ForeignCommand,
        piece: Piece,
        data: &[u8],
    ) -> Result<Outcome, Status> {
        let controller = command.queue.controller;
        let namespace = target.control().namespace(controller, command.entry.namespace().0)?;
        let kind = Kind::Map(Room::of(namespace));
        let uploaded = self.uploaded(controller, (kind, MAP_LEN_MAX), piece, data)?;
        let Some(Content::Map(check)) = uploaded else {
            return Ok(Outcome::Done(0));
        };
        let now = self.now;
        let (number, map) = check.finish().map_err(|_| INVALID)?;
        if number == 0 {
            let has_room =
                self.room_for_file(controller)? && self.room_for_extents(controller, map.extents(), 0)?;
            let client = self.client_mut(controller)?;
            return has_room.then(|| Outcome::Done(client.insert_file(Place::Map(map), now))).ok_or(LIMIT);
        }
        let earlier = Rc::clone(self.client_mut(controller)?.files.get(&number).ok_or(UNKNOWN)?);
        let is_newer = matches!(&earlier.place, Place::Map(old) if old.version < map.version);
        if !is_newer {
            return Err(INVALID);
        }
        // It does not make room for its own map.
        earlier.name(now);
        if !self.room_for_extents(controller, map.extents(), earlier.extents())? {
            return Err(LIMIT);
        }
        earlier.withdraw();
        let client = self.client_mut(controller)?;
        let file = OpenFile::new(Place::Map(map), &client.extents, now);
        client.files.insert(number, Rc::new(file));
        Ok(Outcome::Done(number))
    }

    fn open(
        &mut self,
        target: &Target,
        key: ForeignKey,
        controller: ControllerKey,
        data: &[u8],
    ) -> Result<Outcome, Status> {
        if data.is_empty() || data.len() > PATH_LEN_MAX {
            return Err(INVALID);
        }
        let subsystem = target.control().subsystem_of(controller).ok_or(UNKNOWN)?;
        let names = self.names.as_mut().ok_or(UNKNOWN)?;
        if names.open((key, controller), subsystem, data) { Ok(Outcome::Later) } else { Err(UNKNOWN) }
    }

    /// A file was looked for by name.
    pub(super) fn opened(
        &mut self,
        target: &mut Target,
        key: ForeignKey,
        controller: ControllerKey,
        result: Result<NodeId, FileError>,
    ) {
        let now = self.now;
        let result = result.map_err(|error| match error {
            FileError::Io => Status::UNRECOVERED_READ_ERROR,
            _ => UNKNOWN,
        });
        let number = result.and_then(|node| {
            if !self.room_for_file(controller)? {
                return Err(LIMIT);
            }
            Ok(self.client_mut(controller)?.insert_file(Place::Node(node), now))
        });
        match number {
            Ok(number) => target.foreign_done(key, Ok(Answer::Nothing), number),
            Err(status) => {
                self.counts.failed += 1;
                target.foreign_done(key, Err(status), 0);
            }
        }
    }

    fn find(&mut self, controller: ControllerKey, data: &[u8]) -> Result<Outcome, Status> {
        let name = std::str::from_utf8(data).map_err(|_| INVALID)?;
        let (object, function) =
            name.split_once('/').map_or((name, None), |(object, name)| (object, Some(name)));
        let client = self.clients.get_mut(&controller).ok_or(UNKNOWN)?;
        let object = self.programs.find(&client.tenant, object).ok_or(UNKNOWN)?;
        let index = match function {
            None => 0,
            Some(name) => object.entries.iter().position(|entry| entry.name == name).ok_or(UNKNOWN)?,
        };
        Ok(Outcome::Done(client.program_number(&object, index)))
    }

    fn list(&mut self, controller: ControllerKey, first: u32, len: u32) -> Result<Outcome, Status> {
        let client = self.clients.get(&controller).ok_or(UNKNOWN)?;
        let objects = self.programs.of(&client.tenant);
        let all = objects.iter().flat_map(|object| object.entries.iter().map(move |entry| (object, entry)));
        let count = objects.iter().map(|object| object.entries.len() as u64).sum();
        let room = len as usize / size_of::<ListEntry>();
        let describe = |(object, entry): (&Arc<Object>, &ob_programs::Entry)| {
            let [calls, faults, fuel] = entry.tally.read();
            ListEntry {
                object: name_bytes(&object.name),
                function: name_bytes(&entry.name),
                instructions: (entry.instructions as u32).into(),
                checks: (entry.checks as u32).into(),
                calls: calls.into(),
                faults: faults.into(),
                fuel: fuel.into(),
                reserved: [0; 32],
            }
        };
        let entries: Vec<ListEntry> = all.skip(first as usize).take(room).map(describe).collect();
        Ok(Outcome::Reply(entries.as_bytes().to_vec(), count))
    }

    fn describe(&self, target: &Target, controller: ControllerKey) -> Vec<u8> {
        let limits = &self.limits;
        let subsystem = target.control().subsystem_of(controller);
        let names = subsystem.zip(self.names.as_ref());
        let by_name = names.is_some_and(|(subsystem, names)| names.has_folder(subsystem));
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX).into();
        let description = Description {
            version: VERSION.into(),
            flags: if by_name { Description::BY_NAME } else { 0 }.into(),
            files_max: (FILES_MAX as u16).into(),
            scratch_len: number(SCRATCH_LEN),
            read_len_max: STORAGE_DATA_LEN_MAX.into(),
            reads_max: u32::from(limits.reads_max).into(),
            open_max: number(limits.open_max),
            extents_max: number(limits.extents_max),
            plans_max: number(limits.plans_max),
            queries_max: number(limits.queries_max),
            objects_max: number(limits.programs.objects),
            instructions_max: number(limits.programs.instructions),
            call_fuel: limits.programs.call_fuel.into(),
            share: limits.programs.share.into(),
            ..Description::default()
        };
        description.as_bytes().to_vec()
    }

    fn prepare(&mut self, controller: ControllerKey, data: &[u8]) -> Result<Outcome, Denial> {
        let body = RequestBody::parse(data).map_err(|_| INVALID)?;
        if body.header.plan.get() != 0 {
            return Err(INVALID.into());
        }
        let now = self.now;
        let (read_len_max, reads_max) = self.bounds(body.header, (READ_LEN_DEFAULT, READS_DEFAULT))?;
        let client = self.client_mut(controller)?;
        let program = client.program(body.header.program.get()).ok_or(UNKNOWN)?.clone();
        let named = body.files.iter().enumerate();
        let files = named.map(|(at, file)| find_file(client, at, file, now)).collect::<Result<_, _>>()?;
        let (first, scratch, run_at) = (first_of(body.header), body.scratch.to_vec(), Cell::new(now));
        if !self.room_for_plan(controller)? {
            return Err(LIMIT.into());
        }
        let plan = Plan { program, files, first, read_len_max, reads_max, scratch, run_at };
        Ok(Outcome::Done(self.client_mut(controller)?.insert_plan(plan, now)))
    }

    /// What a request says of its reads, within what may be.
    fn bounds(&self, header: &RequestHeader, (len, reads): (u32, u16)) -> Result<(u32, u16), Status> {
        let or = |value: u32, default: u32| if value == 0 { default } else { value };
        let len = or(header.read_len_max.get(), len);
        let reads = or(header.reads_max.get().into(), reads.into());
        if len > STORAGE_DATA_LEN_MAX || reads > u32::from(self.limits.reads_max) {
            return Err(INVALID);
        }
        Ok((len, reads as u16))
    }

    fn query(
        &mut self,
        target: &mut Target,
        controller: ControllerKey,
        token: u64,
        data: &[u8],
    ) -> Result<Outcome, Status> {
        let (until, max) = (self.now + self.limits.request_time, self.limits.queries_max);
        let pairs = &mut self.client_mut(controller)?.pairs;
        if data.len() > REQUEST_LEN_MAX {
            let asked = pairs.refuse(token, Half::Query, until, max);
            return Err(self.refuse_pair(target, asked, INVALID));
        }
        match pairs.query(token, data, until, max) {
            Arrived::Kept => self.arm(),
            Arrived::Taken => return Err(INVALID),
            Arrived::Orphan => return Err(LIMIT),
            Arrived::Full => {
                let asked = pairs.refuse(token, Half::Query, until, max);
                return Err(self.refuse_pair(target, asked, LIMIT));
            }
            // What is wrong with the request, who asks for its answer is told.
            Arrived::Asked(asked) => {
                if let Err(denial) = self.execute(target, asked.key, controller, data, asked.len) {
                    self.counts.failed += 1;
                    target.foreign_done(asked.key, Err(denial.status), denial.value());
                }
            }
        }
        Ok(Outcome::Done(0))
    }

    fn answer(
        &mut self,
        target: &mut Target,
        key: ForeignKey,
        controller: ControllerKey,
        token: u64,
        len: u32,
    ) -> Result<Outcome, Denial> {
        let (until, max) = (self.now + self.limits.request_time, self.limits.queries_max);
        match self.client_mut(controller)?.pairs.answer((token, key, len), until, max) {
            Ok(Some(body)) => {
                let executed = self.execute(target, key, controller, &body, len);
                self.client_mut(controller)?.pairs.give_back(body);
                executed
            }
            Ok(None) => {
                self.arm();
                Ok(Outcome::Later)
            }
            Err(Arrived::Full) => {
                self.client_mut(controller)?.pairs.refuse(token, Half::Answer, until, max);
                self.arm();
                Err(LIMIT.into())
            }
            Err(Arrived::Orphan) => Err(LIMIT.into()),
            Err(_) => Err(INVALID.into()),
        }
    }

    /// A query is refused: who waits for its answer is told at once, and who comes later then.
    fn refuse_pair(&mut self, target: &mut Target, asked: Option<Asked>, status: Status) -> Status {
        match asked {
            Some(asked) => {
                self.counts.failed += 1;
                target.foreign_done(asked.key, Err(status), 0);
            }
            None => self.arm(),
        }
        status
    }

    fn run(
        &mut self,
        target: &mut Target,
        key: ForeignKey,
        controller: ControllerKey,
        run: &Run,
        answer_len: u32,
    ) -> Result<Outcome, Status> {
        let plan = Rc::clone(self.client_mut(controller)?.plans.get(&run.plan).ok_or(UNKNOWN)?);
        let first = FirstRead { offset: run.offset.unwrap_or(plan.first.offset), ..plan.first };
        let bounds = (plan.read_len_max, plan.reads_max);
        self.begin(target, (key, controller, answer_len), &plan, (first, bounds), run.input())
    }

    /// Begins a request that brings everything along, or a plan's number.
    fn execute(
        &mut self,
        target: &mut Target,
        key: ForeignKey,
        controller: ControllerKey,
        data: &[u8],
        answer_len: u32,
    ) -> Result<Outcome, Denial> {
        let body = RequestBody::parse(data).map_err(|_| INVALID)?;
        let planned = body.header.plan.get();
        if planned != 0 {
            let plan = Rc::clone(self.client_mut(controller)?.plans.get(&planned).ok_or(UNKNOWN)?);
            let given = first_of(body.header);
            let first = if given.len == 0 { plan.first } else { given };
            let bounds = self.bounds(body.header, (plan.read_len_max, plan.reads_max))?;
            let who = (key, controller, answer_len);
            return Ok(self.begin(target, who, &plan, (first, bounds), body.scratch)?);
        }
        let (read_len_max, reads_max) = self.bounds(body.header, (READ_LEN_DEFAULT, READS_DEFAULT))?;
        let client = self.client_mut(controller)?;
        let program = client.program(body.header.program.get()).ok_or(UNKNOWN)?.clone();
        let mut request =
            self.new_request((key, controller, answer_len), program, read_len_max, reads_max)?;
        request.next = first_of(body.header);
        request.input.extend_from_slice(body.scratch);
        for (at, file) in body.files.iter().enumerate() {
            match self.find_file(controller, at, file) {
                Ok(file) => request.files.push(FileUse::new(&file)),
                Err(denial) => {
                    self.counts.changed += u64::from(denial.is_mismatch);
                    self.requests.recycle(request);
                    return Err(denial);
                }
            }
        }
        Ok(self.wait(target, request)?)
    }

    fn find_file(
        &self,
        controller: ControllerKey,
        at: usize,
        file: &FileRef,
    ) -> Result<Rc<OpenFile>, Denial> {
        let own = self.clients.get(&controller).ok_or(UNKNOWN)?;
        let found = find_file(own, at, file, self.now);
        if is_planted(Bug::FilesOfAnybody) && found.is_err() {
            let mut clients = self.clients.values();
            let theirs = clients.find_map(|client| find_file(client, at, file, self.now).ok());
            return theirs.ok_or(UNKNOWN.into());
        }
        found
    }

    /// Begins a plan, with input.
    fn begin(
        &mut self,
        target: &mut Target,
        who: (ForeignKey, ControllerKey, u32),
        plan: &Plan,
        (first, (read_len_max, reads_max)): (FirstRead, (u32, u16)),
        input: &[u8],
    ) -> Result<Outcome, Status> {
        if plan.program.object.is_retired() {
            return Err(UNKNOWN);
        }
        if plan.files.iter().any(|file| file.is_withdrawn()) {
            return Err(UNKNOWN);
        }
        plan.run_at.set(self.now);
        plan.files.iter().for_each(|file| file.name(self.now));
        let program = plan.program.clone();
        let mut request = self.new_request(who, program, read_len_max, reads_max)?;
        request.next = first;
        request.files.extend(plan.files.iter().map(FileUse::new));
        request.input.extend_from_slice(&plan.scratch);
        if request.input.len() < input.len() {
            request.input.resize(input.len(), 0);
        }
        request.input.iter_mut().zip(input).for_each(|(to, from)| *to = *from);
        self.wait(target, request)
    }

    fn new_request(
        &mut self,
        (key, controller, answer_len): (ForeignKey, ControllerKey, u32),
        program: Program,
        read_len_max: u32,
        reads_max: u16,
    ) -> Result<Box<Request>, Status> {
        let turn = self.client_mut(controller)?.turn;
        // Most chains are a few calls; a long one has as much as so many calls of full length.
        let fuel = u64::from(self.limits.programs.call_fuel) * u64::from(reads_max.clamp(1, FULL_CALLS_MAX));
        let until = self.now + self.limits.request_time;
        Ok(self.requests.fresh(Request {
            key,
            controller,
            turn,
            program,
            files: Vec::new(),
            next: FirstRead::default(),
            read_len_max,
            reads_max,
            reads: 0,
            fuel,
            until,
            answer_len,
            input: Vec::new(),
            scratch: None,
            buffer: None,
            reading: None,
            view: 0..0,
            looking: None,
        }))
    }

    /// Has a request wait for its buffers.
    fn wait(&mut self, target: &mut Target, request: Box<Request>) -> Result<Outcome, Status> {
        let key = request.key;
        let lens = [SCRATCH_LEN, buffer_len(request.read_len_max, BLOCK_LEN_MAX)];
        self.counts.requests += 1;
        self.requests.insert(request);
        self.arm();
        if let Err(error) = target.lend(key, &lens) {
            tracing::debug!("no buffers for a request: {error}");
            if let Some(request) = self.requests.remove(key) {
                self.requests.recycle(request);
            }
            return Err(LIMIT);
        }
        Ok(Outcome::Later)
    }
}

/// Calls of full length that a request's fuel is enough for.
const FULL_CALLS_MAX: u16 = 64;

fn first_of(header: &RequestHeader) -> FirstRead {
    FirstRead {
        file: header.first.get().into(),
        offset: header.first_offset.get(),
        len: header.first_len.get().into(),
    }
}

/// A file that a request names, and at which place it does.
fn find_file(client: &Client, at: usize, named: &FileRef, now: Instant) -> Result<Rc<OpenFile>, Denial> {
    let file = client.files.get(&named.file.get()).ok_or(UNKNOWN)?;
    if file.version() != named.version.get() && !is_planted(Bug::MapVersionUnchecked) {
        // A file by name has no versions: who names one has not seen it change.
        let is_mismatch = matches!(file.place, Place::Map(_));
        let status = Status::PUSHDOWN_CHANGED.with_do_not_retry();
        return Err(Denial { status, detail: at as u32, is_mismatch });
    }
    file.name(now);
    Ok(Rc::clone(file))
}
