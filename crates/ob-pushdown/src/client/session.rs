//! A session: programs, files and requests over one transport.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ob_wire_nvme::pushdown::{
    Description, FILES_MAX, FileRef, Function, ListEntry, LoadHeader, Piece, RequestBody, RequestHeader, Run,
    SCRATCH_LEN, VERSION, name_of,
};
use ob_wire_nvme::{NamespaceId, Status};
use zerocopy::{FromBytes, IntoBytes};

use super::error::{Detour, PushError};
use super::file::{File, Hold, Kind, MapSource, Opened, lock};
use super::gate::Gate;
use super::held::Held;
use super::join::join_while_well;
use super::maps::Chores;
use super::transport::{Command, CommandAnswer, CommandData, Transport, TransportError};
use crate::plant::{Bug, is_planted};

/// How often numbers that the target does not know any more are asked for anew.
const LOSSES_MAX: usize = 4;
/// Requests that are not sent after their program was refused, until it is tried once more.
const REFUSED_SKIPS: u32 = 256;
/// Bytes of a name beside what stands for the object.
const STEM_LEN_MAX: usize = 64 - 17;
/// Programs of a host that a list may have.
const LISTED_MAX: usize = 4096;
/// Bytes of a refusal that are asked for.
const REFUSAL_LEN_MAX: u32 = 64 << 10;

/// Storage functions of one target.
pub struct Session<T> {
    transport: T,
    namespace: NamespaceId,
    /// What the target can; nothing if it has no functions.
    description: Option<Description>,
    tokens: AtomicU64,
    pub(super) chores: Arc<Chores>,
    pub(super) held: Held,
    tallies: Tallies,
}

#[derive(Default)]
struct Tallies {
    pushed: AtomicU64,
    detours: AtomicU64,
    changed: AtomicU64,
    unmapped: AtomicU64,
    discarded: AtomicU64,
    commands: AtomicU64,
    renewed: AtomicU64,
}

/// What a session has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Requests that the card has answered.
    pub pushed: u64,
    /// Requests that were left to the ordinary path.
    pub detours: u64,
    /// Those of them that were so because a file had changed, before or while it was read.
    pub changed: u64,
    /// Those of them that were so because a file had no map.
    pub unmapped: u64,
    /// Those whose file had changed while the card answered: they were not believed.
    pub discarded: u64,
    /// Commands.
    pub commands: u64,
    /// Numbers that the target did not know any more.
    pub renewed: u64,
}

/// A program of a session. Cheap to clone.
#[derive(Clone)]
pub struct Program {
    inner: Arc<ProgramInner>,
}

struct ProgramInner {
    /// `object` or `object/function`.
    name: String,
    /// What it is loaded from, if it is not there.
    object: Option<Vec<u8>>,
    number: Mutex<Option<u64>>,
    /// One loads it, and the others wait.
    loading: Gate,
    /// What it was refused with, and how many requests are still spared the way.
    refused: Mutex<Option<(String, u32)>>,
}

/// The first read of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Which of the request's files.
    pub file: u16,
    /// From where on.
    pub offset: u64,
    /// How many bytes.
    pub len: u32,
}

/// What a card answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The scratch, as far as it was wanted.
    pub scratch: Vec<u8>,
    /// How many reads it took.
    pub reads: u32,
}

/// A program that is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The object.
    pub object: String,
    /// The function.
    pub function: String,
    /// Instructions.
    pub instructions: u32,
    /// Accesses that are checked when it runs.
    pub checks: u32,
    /// Calls.
    pub calls: u64,
    /// Those that were stopped.
    pub faults: u64,
    /// Fuel of all of them.
    pub fuel: u64,
}

impl<T: Transport> Session<T> {
    /// A session over a transport, whose requests name this namespace. A target without functions has sessions too: its requests are all
    /// left to the ordinary path.
    ///
    /// # Errors
    ///
    /// When the target is not reached.
    pub async fn begin(transport: T, namespace: NamespaceId) -> Result<Self, PushError> {
        let mut session = Self {
            transport,
            namespace,
            description: None,
            // Drawn anew for each: others of the process and of the machine may be the same host to the target.
            tokens: AtomicU64::new(RandomState::new().build_hasher().finish()),
            chores: Arc::default(),
            held: Held::default(),
            tallies: Tallies::default(),
        };
        let len = size_of::<Description>() as u32;
        match session.execute(Function::Describe, CommandData::Receive(len)).await {
            Ok(answer) => {
                let description = Description::read_from_bytes(&answer.data).ok();
                session.description = description.filter(|found| found.version.get() == VERSION);
            }
            Err(TransportError::Status { .. }) => {}
            Err(error) => return Err(PushError::Transport(error)),
        }
        Ok(session)
    }

    /// What the target says of itself; nothing if it has no functions.
    #[must_use]
    pub fn description(&self) -> Option<&Description> {
        self.description.as_ref()
    }

    /// The transport.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> SessionCounts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SessionCounts {
            pushed: read(&self.tallies.pushed),
            detours: read(&self.tallies.detours),
            changed: read(&self.tallies.changed),
            unmapped: read(&self.tallies.unmapped),
            discarded: read(&self.tallies.discarded),
            commands: read(&self.tallies.commands),
            renewed: read(&self.tallies.renewed),
        }
    }

    /// A program by the name of its object, or `object/function`. With these bytes of the object, it is loaded from them whenever the target
    /// does not have it, under a name that says what it is made of: what is found by it is no other version of it.
    #[must_use]
    pub fn program(&self, name: &str, object: Option<Vec<u8>>) -> Program {
        let (number, loading, refused) = Default::default();
        let name = object.as_ref().map_or_else(|| name.to_owned(), |object| name_by_content(name, object));
        let inner = ProgramInner { name, object, number, loading, refused };
        Program { inner: Arc::new(inner) }
    }

    /// A file of the card's, by name.
    #[must_use]
    pub fn named(&self, path: &str) -> File {
        File::new(Kind::Named(path.to_owned()), &self.chores)
    }

    /// A file of the client's file system.
    #[must_use]
    pub fn mapped(&self, source: Arc<dyn MapSource>) -> File {
        File::new(Kind::Mapped(source), &self.chores)
    }

    /// Loads an object now, whether the target has one of its name or not.
    ///
    /// # Errors
    ///
    /// When it is refused, or the target has no functions.
    pub async fn load(&self, name: &str, object: &[u8]) -> Result<(), PushError> {
        self.upload(name, object).await.map(|_| ())
    }

    /// Takes an object out.
    ///
    /// # Errors
    ///
    /// When there is none of this name.
    pub async fn unload(&self, name: &str) -> Result<(), PushError> {
        let found = self.ask_for(Function::Find, name.as_bytes().to_vec()).await?;
        self.execute(Function::Unload(found), CommandData::None).await.map_err(PushError::of)?;
        Ok(())
    }

    /// The programs that this host has at the target.
    ///
    /// # Errors
    ///
    /// When the target has no functions, or is not reached.
    pub async fn list(&self) -> Result<Vec<Listed>, PushError> {
        let mut found = Vec::new();
        loop {
            let len = (size_of::<ListEntry>() * 64) as u32;
            let function = Function::List(found.len() as u32);
            let answer = self.execute(function, CommandData::Receive(len)).await.map_err(PushError::of)?;
            let (entries, _) = <[ListEntry]>::ref_from_prefix_with_elems(
                &answer.data,
                answer.data.len() / size_of::<ListEntry>(),
            )
            .map_err(|_| PushError::Invalid("the target's list is cut off"))?;
            // A transport may give more bytes than came.
            let left = (answer.result as usize).saturating_sub(found.len());
            found.extend(entries.iter().take(left).map(|entry| Listed {
                object: name_of(&entry.object).unwrap_or_default().to_owned(),
                function: name_of(&entry.function).unwrap_or_default().to_owned(),
                instructions: entry.instructions.get(),
                checks: entry.checks.get(),
                calls: entry.calls.get(),
                faults: entry.faults.get(),
                fuel: entry.fuel.get(),
            }));
            if entries.is_empty() || found.len() as u64 >= answer.result {
                return Ok(found);
            }
            if found.len() >= LISTED_MAX {
                return Err(PushError::Invalid("the target's list has no end"));
            }
        }
    }

    /// Requests that a program answers over these files.
    ///
    /// # Errors
    ///
    /// When there is no file, or there are too many.
    pub fn query(&self, program: &Program, files: &[File]) -> Result<Query, PushError> {
        if files.is_empty() || files.len() > FILES_MAX {
            return Err(PushError::Invalid("a request has 1 to 64 files"));
        }
        Ok(Query {
            program: program.clone(),
            files: files.to_vec(),
            header: RequestHeader::default(),
            plan: Mutex::new(None),
            chores: Arc::clone(&self.chores),
        })
    }

    /// Asks: reads as `first` says, with this at the begin of the scratch, of which so many bytes are wanted back.
    ///
    /// # Errors
    ///
    /// [`PushError::Detour`] when the ordinary path is to answer; it is counted.
    pub async fn ask(
        &self,
        query: &Query,
        first: Read,
        input: &[u8],
        wanted: u32,
    ) -> Result<Answer, PushError> {
        let answer = self.ask_again(query, first, input, wanted).await;
        match &answer {
            Ok(_) => self.tallies.pushed.fetch_add(1, Ordering::Relaxed),
            Err(error) => {
                let reason = match error.detour() {
                    Some(Detour::Changed) => Some(&self.tallies.changed),
                    Some(Detour::Unmapped) => Some(&self.tallies.unmapped),
                    _ => None,
                };
                reason.inspect(|tally| _ = tally.fetch_add(1, Ordering::Relaxed));
                self.tallies.detours.fetch_add(u64::from(error.has_ordinary_path()), Ordering::Relaxed)
            }
        };
        answer
    }

    async fn ask_again(
        &self,
        query: &Query,
        first: Read,
        input: &[u8],
        wanted: u32,
    ) -> Result<Answer, PushError> {
        if self.description.is_none() {
            return Err(Detour::Unsupported.into());
        }
        if usize::from(first.file) >= query.files.len() || input.len() > SCRATCH_LEN {
            return Err(PushError::Invalid("its first read or its input is beyond what there is"));
        }
        let wanted = wanted.min(SCRATCH_LEN as u32);
        let mut last = PushError::from(Detour::Unknown);
        for attempt in 0..LOSSES_MAX {
            let (program, files) = match self.establish(query).await {
                Ok(both) => both,
                Err(error) if error.detour() == Some(Detour::Unknown) => {
                    self.tallies.renewed.fetch_add(1, Ordering::Relaxed);
                    query.forget_all();
                    last = error;
                    continue;
                }
                Err(error) => return Err(error),
            };
            // Until the answer is believed or not.
            let holds = query.files.iter().zip(&files).map(|(file, opened)| file.hold(opened));
            let Some(_holds) = holds.collect::<Option<Vec<Hold>>>() else {
                return Err(Detour::Changed.into());
            };
            match self.send(query, program, &files, first, input, wanted).await {
                Ok(answer) => return self.believe(query, &files, answer),
                Err(error) if error.detour() == Some(Detour::Unknown) => {
                    self.tallies.renewed.fetch_add(1, Ordering::Relaxed);
                    // Most often it is the program: others may use the files.
                    query.forget(program, if attempt == 0 { &[] } else { &files });
                    last = error;
                }
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Takes an answer, if every file is still what it was when it was asked for.
    fn believe(
        &self,
        query: &Query,
        files: &[Opened],
        mut answer: CommandAnswer,
    ) -> Result<Answer, PushError> {
        let is_same = |(file, opened): (&File, &Opened)| file.version() == Some(opened.version);
        let is_current = query.files.iter().zip(files).all(is_same);
        if !is_current && !is_planted(Bug::AfterCheckSkipped) {
            // It may be of blocks that are another file's by now: nobody finds it in memory that is used again.
            answer.data.fill(0);
            std::hint::black_box(&answer.data);
            self.tallies.discarded.fetch_add(1, Ordering::Relaxed);
            return Err(Detour::Changed.into());
        }
        Ok(Answer { scratch: answer.data, reads: answer.result as u32 })
    }

    /// Sends a request in the shortest way that there is.
    async fn send(
        &self,
        query: &Query,
        program: u64,
        files: &[Opened],
        first: Read,
        input: &[u8],
        wanted: u32,
    ) -> Result<CommandAnswer, PushError> {
        if let Some(planned) = self.plan_for(query, program, files, first, input).await? {
            let offset = (planned.first.offset != first.offset).then_some(first.offset);
            if let Some(run) = Run::new(planned.number, offset, input) {
                let data = CommandData::Receive(wanted);
                return self.execute(Function::Run(run), data).await.map_err(PushError::of);
            }
        }
        let body = query.body(program, files, first, input);
        if self.transport.exchange_max().is_some_and(|max| body.len() <= max) {
            let data = CommandData::Exchange(body, wanted);
            return self.execute(Function::Request(wanted), data).await.map_err(PushError::of);
        }
        let token = self.token();
        // Both at once: neither waits for the other on the way.
        let sent = self.execute(Function::Query(token), CommandData::Send(body));
        let asked = self.execute(Function::Answer(token), CommandData::Receive(wanted));
        if !self.transport.can_wait_twice() {
            sent.await.map_err(PushError::of)?;
            return asked.await.map_err(PushError::of);
        }
        // Where one of both is refused, nobody answers the other for a while.
        join_while_well(sent, asked).await.map(|(_, answer)| answer).map_err(PushError::of)
    }

    /// A plan that the target has, or gets now, for a request that is short enough to be run by one; nothing if it is not.
    async fn plan_for(
        &self,
        query: &Query,
        program: u64,
        files: &[Opened],
        first: Read,
        input: &[u8],
    ) -> Result<Option<Planned>, PushError> {
        let known = lock(&query.plan).clone();
        if let Some(planned) = &known
            && planned.program == program
            && planned.files == files
            && (planned.first.file, planned.first.len) == (first.file, first.len)
        {
            let offset = (planned.first.offset != first.offset).then_some(first.offset);
            return Ok(Run::new(planned.number, offset, input).is_some().then(|| planned.clone()));
        }
        if Run::new(0, Some(0), input).is_none() {
            return Ok(None);
        }
        if known.is_some() {
            // What it was made of is gone, or it is for another kind of read. Who has it already may run it once more.
            query.forget_plan();
        }
        let prepared = self.ask_for(Function::Prepare, query.body(program, files, first, &[])).await;
        let number = match prepared {
            Ok(number) => number,
            // There are other ways.
            Err(error) if error.detour() == Some(Detour::Limit) => return Ok(None),
            Err(error) => return Err(error),
        };
        self.held.plan(number);
        let planned = Planned { number, program, files: files.to_vec(), first };
        let mut current = lock(&query.plan);
        // Another request may have been faster. One of both is enough.
        let unused = match &*current {
            Some(same) if same.is_like(&planned) => Some(number),
            _ => current.replace(planned).map(|before| before.number),
        };
        query.abandon(unused.map(Function::Forget));
        Ok(current.clone())
    }

    /// The numbers of a request's program and files, asked for where they are not known.
    async fn establish(&self, query: &Query) -> Result<(u64, Vec<Opened>), PushError> {
        self.close_some().await;
        let known = *lock(&query.program.inner.number);
        let program = match known {
            Some(number) => number,
            None => self.find_or_load(&query.program).await?,
        };
        let mut files = Vec::with_capacity(query.files.len());
        for file in &query.files {
            files.push(self.open_for_request(file).await?);
        }
        Ok((program, files))
    }

    async fn find_or_load(&self, program: &Program) -> Result<u64, PushError> {
        let ProgramInner { name, object, number, loading, refused } = &*program.inner;
        let _passage = loading.enter().await;
        let known = *lock(number);
        if let Some(known) = known {
            return Ok(known);
        }
        if let Some(why) = spared(&mut lock(refused)) {
            return Err(PushError::Refused(why));
        }
        let find = || self.ask_for(Function::Find, name.as_bytes().to_vec());
        let found = match (find().await, object) {
            (Err(error), Some(bytes)) if error.detour() == Some(Detour::Unknown) => {
                self.upload_making_room(name, bytes).await.inspect_err(|error| {
                    if let PushError::Refused(why) = error {
                        *lock(refused) = Some((why.clone(), REFUSED_SKIPS));
                    }
                })?;
                find().await?
            }
            (found, _) => found?,
        };
        *lock(number) = Some(found);
        Ok(found)
    }

    /// Loads an object by a name of [`name_by_content`]. Where there is no room, other versions of it may have it: they are taken out, and who
    /// needs them loads them again.
    async fn upload_making_room(&self, name: &str, bytes: &[u8]) -> Result<u64, PushError> {
        let object = name.split('/').next().unwrap_or_default();
        let refused = match self.upload(object, bytes).await {
            Err(PushError::NoRoom(why)) => PushError::NoRoom(why),
            other => return other,
        };
        let mut others: Vec<String> = self.list().await?.into_iter().map(|listed| listed.object).collect();
        others.retain(|other| {
            other != object && stem_of(other).is_some_and(|stem| Some(stem) == stem_of(object))
        });
        others.dedup();
        if others.is_empty() {
            return Err(refused);
        }
        for other in others {
            // Somebody else may have done it.
            let _ = self.unload(&other).await;
        }
        self.upload(object, bytes).await
    }

    async fn upload(&self, name: &str, object: &[u8]) -> Result<u64, PushError> {
        let no_name = PushError::Invalid("an object's name has 1 to 64 bytes");
        let header = LoadHeader::new(name).ok_or(no_name)?;
        let bytes = [header.as_bytes(), object].concat();
        match self.send_pieces(Function::Load, self.namespace, &bytes).await {
            Ok((number, _)) => Ok(number),
            Err(PushError::Detour(Detour::Device(status))) if status.is(Status::PUSHDOWN_REFUSED) => {
                Err(PushError::Refused("it is refused, and the target does not say why".to_owned()))
            }
            Err(error) => Err(error),
        }
    }

    /// Sends something in pieces, and gives the number that it has then, and the token under which it came.
    pub(super) async fn send_pieces(
        &self,
        function: fn(Piece) -> Function,
        namespace: NamespaceId,
        bytes: &[u8],
    ) -> Result<(u64, u32), PushError> {
        let token = self.token() as u32;
        let whole = u32::try_from(bytes.len()).map_err(|_| PushError::Invalid("it is too long"))?;
        let (mut at, mut number) = (0, 0);
        for piece in bytes.chunks(self.transport.transfer_max().max(512)) {
            let function = function(Piece { token, offset: at, whole });
            let data = CommandData::Send(piece.to_vec());
            match self.execute_in(namespace, function, data).await {
                Ok(answer) => number = answer.result,
                Err(TransportError::Status { status, .. }) if status.is(Status::PUSHDOWN_REFUSED) => {
                    return Err(self.refusal(token).await.map_or_else(PushError::of, PushError::Refused));
                }
                Err(TransportError::Status { status, .. }) if status.is(Status::PUSHDOWN_LIMIT) => {
                    // Of maps there are no words.
                    let words = self.refusal(token).await.map(PushError::NoRoom);
                    return Err(words.unwrap_or_else(|_| Detour::Limit.into()));
                }
                Err(error) => return Err(PushError::of(error)),
            }
            at += piece.len() as u32;
        }
        Ok((number, token))
    }

    async fn refusal(&self, token: u32) -> Result<String, TransportError> {
        let len = REFUSAL_LEN_MAX.min(self.transport.transfer_max() as u32);
        let mut answer = self.execute(Function::Refusal(token), CommandData::Receive(len)).await?;
        answer.data.truncate(usize::try_from(answer.result).unwrap_or(usize::MAX));
        Ok(String::from_utf8_lossy(&answer.data).into_owned())
    }

    /// A token that no other request of this controller has: it may be shared with others, above one kernel.
    fn token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) async fn ask_for(&self, function: Function, data: Vec<u8>) -> Result<u64, PushError> {
        let answer = self.execute(function, CommandData::Send(data)).await.map_err(PushError::of)?;
        Ok(answer.result)
    }

    pub(super) fn execute(
        &self,
        function: Function,
        data: CommandData,
    ) -> impl Future<Output = Result<CommandAnswer, TransportError>> + Send {
        self.execute_in(self.namespace, function, data)
    }

    fn execute_in(
        &self,
        namespace: NamespaceId,
        function: Function,
        data: CommandData,
    ) -> impl Future<Output = Result<CommandAnswer, TransportError>> + Send {
        self.tallies.commands.fetch_add(1, Ordering::Relaxed);
        self.transport.execute(Command { function, namespace, data })
    }
}

/// What is asked again and again, with other keys: a program, and the files that it may read.
pub struct Query {
    program: Program,
    files: Vec<File>,
    header: RequestHeader,
    /// What the target has prepared for it.
    plan: Mutex<Option<Planned>>,
    chores: Arc<Chores>,
}

impl Drop for Query {
    fn drop(&mut self) {
        if let Some(planned) = lock(&self.plan).take() {
            self.chores.tell(Function::Forget(planned.number));
        }
    }
}

#[derive(Clone)]
struct Planned {
    number: u64,
    program: u64,
    files: Vec<Opened>,
    first: Read,
}

impl Planned {
    /// Whether both do the same.
    fn is_like(&self, other: &Self) -> bool {
        (self.program, &self.files, self.first) == (other.program, &other.files, other.first)
    }
}

impl Query {
    /// The request's bytes.
    fn body(&self, program: u64, files: &[Opened], first: Read, input: &[u8]) -> Vec<u8> {
        let refs: Vec<FileRef> = files.iter().map(file_ref).collect();
        let header = RequestHeader {
            program: program.into(),
            first: first.file.into(),
            first_offset: first.offset.into(),
            first_len: first.len.into(),
            ..self.header
        };
        RequestBody::encode(&header, &refs, input)
    }

    /// With reads of up to so many bytes.
    #[must_use]
    pub fn with_read_len_max(mut self, len: u32) -> Self {
        self.header.read_len_max = len.into();
        self
    }

    /// With so many reads at most.
    #[must_use]
    pub fn with_reads_max(mut self, reads: u16) -> Self {
        self.header.reads_max = reads.into();
        self
    }

    /// The target does not know some of the numbers any more. The others are given back.
    fn forget_all(&self) {
        *lock(&self.program.inner.number) = None;
        for file in &self.files {
            let opened = file.opened().take();
            self.abandon(opened.map(|opened| Function::Close(opened.number)));
        }
        self.forget_plan();
    }

    /// The target does not know the program, or one of these files, any more. Others may have got new numbers meanwhile.
    fn forget(&self, program: u64, files: &[Opened]) {
        let mut number = lock(&self.program.inner.number);
        if *number == Some(program) {
            *number = None;
        }
        drop(number);
        for (file, opened) in self.files.iter().zip(files) {
            let forgotten = file.opened().take_if(|current| current == opened);
            self.abandon(forgotten.map(|opened| Function::Close(opened.number)));
        }
        self.forget_plan();
    }

    fn forget_plan(&self) {
        let planned = lock(&self.plan).take();
        self.abandon(planned.map(|planned| Function::Forget(planned.number)));
    }

    /// Has the target told, some time, that something is not needed.
    fn abandon(&self, function: Option<Function>) {
        function.into_iter().for_each(|function| self.chores.tell(function));
    }
}

/// An object's name, or that of one of its functions, with a word that stands for what the object is made of: the names that
/// [`Session::program`] gives to what it loads.
#[must_use]
pub fn name_by_content(name: &str, object: &[u8]) -> String {
    let (stem, function) = match name.split_once('/') {
        Some((stem, function)) => (stem, Some(function)),
        None => (name, None),
    };
    let stem = stem.get(..stem.floor_char_boundary(STEM_LEN_MAX)).unwrap_or_default();
    let whole = format!("{stem}.{:016x}", ob_ebpf::helpers::xxh3(object));
    function.map_or_else(|| whole.clone(), |function| format!("{whole}/{function}"))
}

/// What a name of [`name_by_content`] is made of.
fn stem_of(name: &str) -> Option<&str> {
    let (stem, content) = name.rsplit_once('.')?;
    let is_content = content.len() == 16 && content.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_content.then_some(stem)
}

/// Why a program was refused, if it is not to be tried again yet.
fn spared(refused: &mut Option<(String, u32)>) -> Option<String> {
    let (why, left) = refused.as_mut()?;
    *left = left.checked_sub(1)?;
    Some(why.clone())
}

fn file_ref(opened: &Opened) -> FileRef {
    FileRef { file: opened.number.into(), version: opened.version.into() }
}
