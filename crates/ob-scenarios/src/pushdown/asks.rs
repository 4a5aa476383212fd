//! What hosts do with functions: ask by sessions, as programs do; move the files that they map; and say what no session would.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ob_nvme::initiator::{Data, Queue, Request};
use ob_pushdown::client::{
    Command, CommandAnswer, CommandData, Detour, File, Query, Read, Session, Transport, TransportError,
    name_by_content,
};
use ob_sim::{Failure, Report, Rng};
use ob_wire_nvme::io::Abort;
use ob_wire_nvme::pushdown::{
    Extent, FileRef, Function, MapHeader, Piece, RequestBody, RequestHeader, Run, SCRATCH_LEN,
};
use ob_wire_nvme::{CommandId, QueueId, Status};
use zerocopy::IntoBytes;

use super::crowd::{now, pause};
use super::leased::{Leasing, Open, SimFile, Source};
use super::mapped::{self, Space};
use super::named::Named;
use super::node::{self, Content, Entry, NODE, NODES, Question};
use super::port::Port;
use super::{NAMESPACE, Ticks};

/// The program, and the name that it has.
pub(super) const FOLLOW: &[u8] = include_bytes!("../../programs/follow.o");
pub(super) const NAME: &str = "follow";
/// Queries that a host keeps.
pub(super) const QUERIES_MAX: usize = 6;
/// How long somebody asks for a file that nobody changes.
const ANSWERED_AFTER: Duration = Duration::from_secs(10);
/// How long he waits after each try.
const AGAIN_AFTER: Duration = Duration::from_millis(1);
/// Requests that were given up and may still be answered.
const ABANDONED_MAX: usize = 64;
/// Commands that are tried to be given up at once.
const ABORTS: usize = 24;

/// What all tasks share.
pub(super) struct Shared {
    pub(super) named: RefCell<Named>,
    pub(super) report: RefCell<Report>,
    pub(super) ticks: Ticks,
    pub(super) hosts: Vec<Client>,
    /// I/O queues of a host.
    pub(super) queues: u16,
    pub(super) leasing: Leasing,
    /// One request in so many is given up before it is answered.
    pub(super) abandon_one_in: u64,
}

/// A host, above its initiator.
pub(super) struct Client {
    pub(super) port: Port,
    pub(super) session: RefCell<Option<Rc<Session<Port>>>>,
    pub(super) files: Vec<Arc<SimFile>>,
    pub(super) space: RefCell<Space>,
    queries: RefCell<Vec<Rc<Asked>>>,
    /// The files as the session has them, each opened once.
    handles: RefCell<BTreeMap<usize, File>>,
    /// Whether somebody keeps the maps of its session.
    pub(super) is_kept: Rc<Cell<bool>>,
    /// Whether its session is being ended.
    pub(super) is_ending: Cell<bool>,
    /// What was asked by requests that were given up, after which commands.
    abandoned: RefCell<Vec<(u64, Rc<Asked>, Question)>>,
}

/// A query, and what its files are.
struct Asked {
    query: Query,
    files: Vec<Kind>,
    read_len: u32,
}

#[derive(Clone, Debug)]
enum Kind {
    Named(usize),
    Mapped(Arc<SimFile>),
}

impl std::fmt::Debug for SimFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{:?}", self.content().map(|content| content.owner))
    }
}

impl Client {
    pub(super) fn new(port: Port, files: usize, space: Space) -> Self {
        let files = (0..files).map(|_| Arc::new(SimFile::default())).collect();
        let (queries, handles, is_kept, is_ending, abandoned) = Default::default();
        let (space, session) = (RefCell::new(space), RefCell::new(None));
        Self { port, session, files, space, queries, handles, is_kept, is_ending, abandoned }
    }

    /// Drops all that it asks by.
    pub(super) fn forget(&self) {
        let (queries, handles) = (self.queries.take(), self.handles.take());
        drop((queries, handles));
    }
}

impl Shared {
    pub(super) fn count(&self, what: &'static str) {
        self.report.borrow_mut().count(what, 1);
    }

    /// Begins a host's session, however often that takes.
    pub(super) async fn begin_session(self: Rc<Self>, number: usize) -> Result<(), Failure> {
        loop {
            let client = &self.hosts[number];
            match Session::begin(client.port.clone(), NAMESPACE).await {
                Ok(session) if session.description().is_some() => {
                    *client.session.borrow_mut() = Some(Rc::new(session));
                    return Ok(());
                }
                // An Abort may have met it.
                Ok(_) | Err(_) => self.count("sessions not begun"),
            }
        }
    }

    /// Asks, and judges the answer; whether there was one.
    pub(super) async fn ask(self: Rc<Self>, number: usize, mut rng: Rng) -> Result<bool, Failure> {
        let client = &self.hosts[number];
        let Some(session) = client.session.borrow().clone() else { return Ok(false) };
        let Some(asked) = self.choose(number, &session, &mut rng) else { return Ok(false) };
        let turns = rng.one_in(self.abandon_one_in).then(|| rng.below(60));
        let question = Question {
            files: asked.files.len(),
            first_file: rng.index(asked.files.len()),
            first_node: if rng.one_in(3) { rng.below(NODES) } else { 0 },
            read_len: asked.read_len,
        };
        let Some(turns) = turns else {
            for _ in 0..rng.below(4) {
                if self.ask_this(&session, &asked, &question).await? {
                    return Ok(true);
                }
                // Whoever writes it, or maps it, may be done by then.
                for _ in 0..rng.below(40) {
                    pause().await;
                }
            }
            return self.ask_this(&session, &asked, &question).await;
        };
        let last = client.port.last();
        let mut asking = Box::pin(self.ask_this(&session, &asked, &question));
        let answered = for_turns(turns, asking.as_mut()).await;
        drop(asking);
        if answered.is_none() {
            self.count("requests given up");
            client.abandoned.borrow_mut().push((last, Rc::clone(&asked), question));
        }
        answered.unwrap_or(Ok(false))
    }

    /// Looks at answers to requests that were given up: nobody believes them, but programs have seen what they say.
    pub(super) fn judge_late(&self, number: usize) -> Result<(), Failure> {
        let client = &self.hosts[number];
        while let Some((command, answer)) = client.port.next_late() {
            let abandoned = client.abandoned.borrow();
            let before = abandoned.iter().rev().filter(|(last, ..)| *last < command);
            for (_, asked, question) in before.take(ABANDONED_MAX) {
                // It is another's, or torn: or of another kind altogether.
                let Ok(entries) = node::parse(question, &answer.data, answer.result as u32) else { continue };
                self.count("late answers judged");
                for entry in &entries {
                    if let Some(Kind::Mapped(file)) = asked.files.get(entry.file)
                        && file.has_seen_too_much(entry, command)
                    {
                        let what = format!(
                            "a map was to be withdrawn before {entry:?} was written, and it was read by it"
                        );
                        return Err(Failure::new(what));
                    }
                }
            }
        }
        let mut abandoned = client.abandoned.borrow_mut();
        let many = abandoned.len().saturating_sub(ABANDONED_MAX);
        abandoned.drain(..many);
        Ok(())
    }

    /// Asks for every file alone, from its beginning.
    pub(super) async fn ask_all(self: Rc<Self>, number: usize) -> Result<(), Failure> {
        let client = &self.hosts[number];
        let Some(session) = client.session.borrow().clone() else {
            return Err(Failure::new(format!("host {number} has no session in the end")));
        };
        let named = (0..self.named.borrow().names()).map(Kind::Named);
        // Of a short file chains do not find the end, and blocks may have run out.
        let is_whole =
            |file: &&Arc<SimFile>| file.content().is_some_and(|content| content.len == NODES * NODE);
        let mapped: Vec<Kind> = client.files.iter().filter(is_whole).cloned().map(Kind::Mapped).collect();
        for kind in named.chain(mapped) {
            let Some(asked) = self.query(number, &session, vec![kind], NODE as u32) else { continue };
            let question = Question { files: 1, first_file: 0, first_node: 0, read_len: NODE as u32 };
            // The first may find that a connection was lost, or that a program is another by now; a keeper takes its time, and so does a kernel
            // that has refused a lease.
            let until = now() + ANSWERED_AFTER;
            while !self.ask_this(&session, &asked, &question).await? {
                if now() >= until {
                    let what = format!("host {number} asks for {:?}, and there is no answer", asked.files);
                    return Err(Failure::new(what));
                }
                // A refusal can come in no time, and then that would be a million tries.
                let again = now() + AGAIN_AFTER;
                while now() < again {
                    pause().await;
                }
            }
        }
        Ok(())
    }

    async fn ask_this(
        &self,
        session: &Session<Port>,
        asked: &Asked,
        question: &Question,
    ) -> Result<bool, Failure> {
        let began = self.ticks.next();
        let first = Read {
            file: question.first_file as u16,
            offset: question.first_node * NODE,
            len: question.read_len,
        };
        let input = question.input();
        match session.ask(&asked.query, first, &input, SCRATCH_LEN as u32).await {
            Ok(answer) => {
                self.count("answered");
                let entries = node::parse(question, &answer.scratch, answer.reads)?;
                self.judge(asked, &entries, question, (began, self.ticks.next()))?;
                Ok(true)
            }
            Err(error) => {
                self.count(match error.detour() {
                    Some(Detour::Changed) => "changed",
                    Some(Detour::Unmapped) => "unmapped",
                    _ => "detours",
                });
                Ok(false)
            }
        }
    }

    fn judge(
        &self,
        asked: &Asked,
        entries: &[Entry],
        question: &Question,
        during: (u64, u64),
    ) -> Result<(), Failure> {
        let (mut named, mut mapped) = (Vec::new(), Vec::new());
        for (index, kind) in asked.files.iter().enumerate() {
            let of_file: Vec<Entry> = entries.iter().copied().filter(|entry| entry.file == index).collect();
            if of_file.is_empty() {
                continue;
            }
            match kind {
                Kind::Named(slot) => named.push((*slot, of_file)),
                Kind::Mapped(file) => {
                    // Whether or not it is still there.
                    let spans = file.had(&of_file, question.read_len, during);
                    if spans.is_empty() {
                        let what =
                            format!("a client believes {of_file:?}, and there is {:?}", file.content());
                        return Err(Failure::new(what));
                    }
                    mapped.push(spans);
                    self.count("mapped files judged");
                }
            }
        }
        if named.len() > 1 {
            self.count("several files judged");
        }
        self.named.borrow().check(&named, mapped, question.read_len, during)
    }

    /// A query that the host has, or a new one.
    fn choose(&self, number: usize, session: &Session<Port>, rng: &mut Rng) -> Option<Rc<Asked>> {
        let client = &self.hosts[number];
        let mut queries = client.queries.borrow_mut();
        if queries.len() >= QUERIES_MAX && rng.one_in(8) {
            queries.swap_remove(rng.index(QUERIES_MAX));
        }
        if queries.len() >= QUERIES_MAX || (!queries.is_empty() && rng.one_in(2)) {
            return rng.choose(&queries).cloned();
        }
        let names = self.named.borrow().names();
        let first = rng.index(names);
        let sort = rng.below(4);
        // Between two files of the card one of the client's own: time in which they change one after another, and neither is read.
        let count = if sort == 3 { 3 } else { 1 + rng.index(3) };
        let mut kinds: Vec<Kind> = Vec::new();
        for number in 0..count {
            let is_named = match sort {
                0 => true,
                1 => false,
                2 => rng.one_in(2),
                _ => number != 1,
            };
            let kind = if is_named {
                Kind::Named((first + number.div_ceil(2)) % names)
            } else {
                Kind::Mapped(Arc::clone(rng.choose(&client.files)?))
            };
            kinds.push(kind);
        }
        let read_len = *rng.choose(&[512, 512, 1024, 4096])?;
        if rng.one_in(12) {
            // Whoever has it still reads by it.
            let dropped = client.handles.borrow_mut().pop_first();
            dropped.inspect(|_| self.count("files opened anew"));
        }
        let asked = self.query(number, session, kinds, read_len)?;
        queries.push(Rc::clone(&asked));
        Some(asked)
    }

    fn query(
        &self,
        number: usize,
        session: &Session<Port>,
        kinds: Vec<Kind>,
        read_len: u32,
    ) -> Option<Rc<Asked>> {
        let client = &self.hosts[number];
        let open = |kind: &Kind| match kind {
            Kind::Named(slot) => session.named(&Named::name(*slot)),
            Kind::Mapped(file) => {
                let which =
                    client.files.iter().position(|other| Arc::ptr_eq(other, file)).unwrap_or_default();
                let mut handles = client.handles.borrow_mut();
                let anew = || session.mapped(Arc::new(Source::new(file, self.leasing)));
                handles.entry(which).or_insert_with(anew).clone()
            }
        };
        let files: Vec<File> = kinds.iter().map(open).collect();
        let program = session.program(NAME, Some(FOLLOW.to_vec()));
        let query = session.query(&program, &files).ok()?.with_read_len_max(read_len);
        Some(Rc::new(Asked { query, files: kinds, read_len }))
    }

    /// Writes one of the host's files anew: elsewhere, and what it had becomes another's; or in place.
    pub(super) async fn rewrite(
        self: Rc<Self>,
        number: usize,
        which: usize,
        mut rng: Rng,
    ) -> Result<(), Failure> {
        let client = &self.hosts[number];
        let file = &client.files[which % client.files.len()];
        if !file.begin_change() {
            return Ok(());
        }
        let owner = (number * 100 + which % client.files.len()) as u64 + 1_000_000_000;
        if self.leasing.can_be_remapped && rng.one_in(3) {
            self.remap(client, file, &mut rng).await;
            file.end_change();
            return Ok(());
        }
        let is_in_place = rng.one_in(3);
        // What is written elsewhere the file gets in a moment, most often.
        let nodes = mapped::nodes(&mut rng);
        let early = if is_in_place || rng.one_in(4) {
            None
        } else {
            self.write_beside(client, owner, nodes, &mut rng).await
        };
        let losses = client.port.losses();
        let open = file.open(&self.leasing, &mut rng).await;
        let last = client.port.last();
        // Whoever has told something in vain has not withdrawn it.
        let is_polite = open.is_polite && client.port.losses() == losses;
        self.count_open(&open, is_polite);
        file.begin_to_write(self.ticks.next());
        let had = file.blocks();
        if is_in_place && !had.is_empty() {
            let content = Content::whole(owner, self.ticks.next(), had.len() as u64);
            if is_polite {
                file.is_written_politely(content.stamps[0], last);
            }
            match mapped::write(&client.port, &had, &content).await {
                Ok(()) => {
                    self.count("files written in place");
                    file.close(Some(content), self.ticks.next());
                }
                // Nobody knows what is there, nor when the last of it comes: nobody gets these blocks any more.
                Err(_) => file.lose(),
            }
        } else if let Some((blocks, content)) = match early {
            Some(early) => Some(early),
            None => self.write_beside(client, owner, nodes, &mut rng).await,
        } {
            self.count("files moved");
            let had = file.lies(blocks);
            file.close(Some(content), self.ticks.next());
            client.space.borrow_mut().give(had);
        } else if had.is_empty() {
            file.lose();
        } else {
            self.count("files opened in vain");
            file.close(None, self.ticks.next());
        }
        file.end_change();
        Ok(())
    }

    fn count_open(&self, open: &Open, is_polite: bool) {
        for (what, is_so) in [
            ("writers that broke a lease", open.was_leased),
            ("writers that waited for a keeper", is_polite),
            ("writers that did not wait any longer", open.was_late),
        ] {
            if is_so {
                self.count(what);
            }
        }
    }

    /// Writes what a file is to have to blocks that nobody has.
    async fn write_beside(
        &self,
        client: &Client,
        owner: u64,
        nodes: u64,
        rng: &mut Rng,
    ) -> Option<(Vec<u64>, Content)> {
        let content = Content::whole(owner, self.ticks.next(), nodes);
        let blocks = client.space.borrow_mut().take(rng, nodes)?;
        mapped::write(&client.port, &blocks, &content).await.ok()?;
        Some((blocks, content))
    }

    /// Moves a file's blocks under its leases, as deduplication may: what is in it stays the same.
    async fn remap(&self, client: &Client, file: &SimFile, rng: &mut Rng) {
        let Some(content) = file.content() else { return };
        let blocks = client.space.borrow_mut().take(rng, content.stamps.len() as u64);
        if let Some(blocks) = blocks
            && mapped::write(&client.port, &blocks, &content).await.is_ok()
        {
            self.count("files moved under a lease");
            let had = file.lies(blocks);
            client.space.borrow_mut().give(had);
        }
    }

    /// Maps a file by hand, has a chain run over it, and takes the map away meanwhile. From then on the blocks are another's. Another host
    /// tries to use its number.
    pub(super) async fn withdraw(
        self: Rc<Self>,
        number: usize,
        other: usize,
        mut rng: Rng,
    ) -> Result<(), Failure> {
        let client = &self.hosts[number];
        let Some(blocks) = client.space.borrow_mut().take(&mut rng, 2 * NODES) else { return Ok(()) };
        let (old, new) = blocks.split_at(NODES as usize);
        let content = Content::whole(self.ticks.next(), self.ticks.next(), NODES);
        let port = &client.port;
        if mapped::write(port, &blocks, &Content::whole(content.owner, content.stamps[0], 2 * NODES))
            .await
            .is_err()
        {
            return Ok(());
        }
        let upload = rng.word() as u32;
        let Ok(file) = map(port, upload, 0, 1, old, &content).await else {
            client.space.borrow_mut().give(blocks);
            return Ok(());
        };
        let question = Question { files: 1, first_file: 0, first_node: 0, read_len: NODE as u32 };
        let refs = [FileRef { file: file.into(), version: 1.into() }];
        let (way, token) = (rng.below(3), rng.word());
        let chain = async {
            let program = find(port).await?;
            ask_raw(port, program, &refs, &question, way, token).await
        };
        let is_closed = rng.one_in(2);
        let mut clock = rng.clone();
        let withdrawal = async {
            for _ in 0..clock.below(12) {
                pause().await;
            }
            if is_closed {
                execute(port, Function::Close(file), CommandData::None).await?;
            } else {
                map(port, upload.wrapping_add(1), file, 2, new, &content).await?;
            }
            // What lies there now is not the file's any more.
            let others = Content::whole(content.owner + 1, self.ticks.next(), NODES);
            mapped::write(port, old, &others).await
        };
        let (answer, withdrawn) = both(chain, withdrawal).await;
        if let Ok(answer) = answer {
            self.count("chains that ended before their map");
            let entries = node::parse(&question, &answer.data, answer.result as u32)?;
            if let Some(wrong) = entries.iter().find(|entry| !content.agrees(entry, question.read_len)) {
                return Err(Failure::new(format!("a map was withdrawn, and {wrong:?} read by it")));
            }
        } else {
            self.count("chains whose map was withdrawn");
        }
        if withdrawn.is_err() {
            return Ok(());
        }
        self.try_in_vain((number, other), file, way, &mut rng).await?;
        let _ = execute(port, Function::Close(file), CommandData::None).await;
        client.space.borrow_mut().give(blocks);
        Ok(())
    }

    /// The version before, or a file that is closed, has no answers; nor has another host's.
    async fn try_in_vain(
        &self,
        (number, other): (usize, usize),
        file: u64,
        way: u64,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        let question = Question { files: 1, first_file: 0, first_node: 0, read_len: NODE as u32 };
        let (own, theirs) = ((number, 1_u64), (other, 2));
        for (who, version) in [own].into_iter().chain((number != other).then_some(theirs)) {
            let port = &self.hosts[who].port;
            let Ok(program) = find(port).await else { continue };
            let refs = [FileRef { file: file.into(), version: version.into() }];
            if let Ok(answer) = ask_raw(port, program, &refs, &question, way, rng.word()).await {
                let what = format!("host {who} is answered of host {number}'s file {file}: {answer:?}");
                return Err(Failure::new(what));
            }
            self.count("requests rightly refused");
        }
        Ok(())
    }

    /// Loads the program anew, takes it out, lists what there is.
    pub(super) async fn administer(self: Rc<Self>, number: usize, mut rng: Rng) -> Result<(), Failure> {
        let Some(session) = self.hosts[number].session.borrow().clone() else { return Ok(()) };
        let object = name_by_content(NAME, FOLLOW);
        match rng.below(4) {
            0 | 1 => {
                if session.load(&object, FOLLOW).await.is_ok() {
                    self.count("programs replaced");
                }
            }
            2 => {
                if session.unload(&object).await.is_ok() {
                    self.count("programs unloaded");
                }
            }
            _ => {
                let listed = session.list().await.unwrap_or_default();
                if listed.iter().any(|entry| entry.object != object || entry.function != NAME) {
                    return Err(Failure::new(format!("a list has {listed:?}")));
                }
            }
        }
        Ok(())
    }

    /// Half a pair, or a number that nobody has.
    pub(super) async fn say_nonsense(self: Rc<Self>, number: usize, mut rng: Rng) -> Result<(), Failure> {
        let port = &self.hosts[number].port;
        let question = Question { files: 1, first_file: 0, first_node: 0, read_len: NODE as u32 };
        let token = rng.word();
        let refs = [FileRef { file: rng.word().into(), version: 0.into() }];
        let receive = CommandData::Receive(SCRATCH_LEN as u32);
        let (what, answer) = match rng.below(4) {
            0 => {
                // Nobody asks for it.
                let body = RequestBody::encode(&header(1, &question), &refs, &question.input());
                let _ = execute(port, Function::Query(token), CommandData::Send(body)).await;
                return Ok(());
            }
            1 => ("an answer without its query", execute(port, Function::Answer(token), receive).await),
            2 => {
                let Some(run) = Run::new(rng.below(1 << 40), None, &[]) else { return Ok(()) };
                ("a plan that nobody has", execute(port, Function::Run(run), receive).await)
            }
            _ => {
                let Ok(program) = find(port).await else { return Ok(()) };
                let way = rng.below(3);
                let answer = ask_raw(port, program, &refs, &question, way, token).await;
                ("a file that nobody has", answer)
            }
        };
        match answer {
            Ok(answer) => Err(Failure::new(format!("{what} is answered: {answer:?}"))),
            Err(TransportError::Status { status, .. }) if status.is(Status::PUSHDOWN_TIME) => {
                self.count("answers that found no query");
                Ok(())
            }
            Err(_) => Ok(()),
        }
    }

    /// Gives up commands, if there are such: an initiator tells which use of a slot a command is, and this one knows nothing of that.
    pub(super) async fn abort(self: Rc<Self>, number: usize, mut rng: Rng) -> Result<(), Failure> {
        let port = &self.hosts[number].port;
        let queue = QueueId(1 + rng.below(self.queues.into()) as u16);
        let slot = rng.below(4) as u16;
        for _ in 0..ABORTS {
            let command = CommandId(slot | (rng.below(64) as u16) << 10);
            let request = Request {
                queue: Queue::Admin,
                entry: Abort { queue, command }.encode(CommandId(0)),
                data: Data::None,
                is_idempotent: true,
                may_be_short: false,
                expects: None,
            };
            if port.request(request).await.is_err() {
                return Ok(());
            }
        }
        self.report.borrow_mut().count("commands aborted", port.take_aborted());
        Ok(())
    }
}

async fn execute(
    port: &Port,
    function: Function,
    data: CommandData,
) -> Result<CommandAnswer, TransportError> {
    port.execute(Command { function, namespace: NAMESPACE, data }).await
}

/// The program's number, if somebody has loaded it.
async fn find(port: &Port) -> Result<u64, TransportError> {
    let name = name_by_content(NAME, FOLLOW);
    let answer = execute(port, Function::Find, CommandData::Send(name.into_bytes())).await?;
    Ok(answer.result)
}

/// Sends a map in one piece; the file's number.
async fn map(
    port: &Port,
    token: u32,
    file: u64,
    version: u64,
    blocks: &[u64],
    content: &Content,
) -> Result<u64, TransportError> {
    let map = mapped::map_of(blocks, version, content);
    let header = MapHeader {
        file: file.into(),
        version: version.into(),
        len: map.len.into(),
        extents: (map.extents.len() as u32).into(),
        ..MapHeader::default()
    };
    let extents = map.extents.iter().map(|extent| Extent {
        at: extent.at.into(),
        offset: extent.offset.into(),
        len: extent.len.into(),
    });
    let extents: Vec<Extent> = extents.collect();
    let bytes = [header.as_bytes(), extents.as_bytes()].concat();
    let function = Function::Map(Piece { token, offset: 0, whole: bytes.len() as u32 });
    Ok(execute(port, function, CommandData::Send(bytes)).await?.result)
}

fn header(program: u64, question: &Question) -> RequestHeader {
    RequestHeader {
        program: program.into(),
        first: (question.first_file as u16).into(),
        first_offset: (question.first_node * NODE).into(),
        first_len: question.read_len.into(),
        ..RequestHeader::default()
    }
}

/// Asks by hand, in one of three ways.
async fn ask_raw(
    port: &Port,
    program: u64,
    refs: &[FileRef],
    question: &Question,
    way: u64,
    token: u64,
) -> Result<CommandAnswer, TransportError> {
    let wanted = SCRATCH_LEN as u32;
    let input = question.input();
    let body = RequestBody::encode(&header(program, question), refs, &input);
    match way {
        0 => execute(port, Function::Request(wanted), CommandData::Exchange(body, wanted)).await,
        1 => {
            let query = execute(port, Function::Query(token), CommandData::Send(body));
            let answer = execute(port, Function::Answer(token), CommandData::Receive(wanted));
            // Whichever comes first.
            let (query, answer) = if token & 1 == 0 {
                both(query, answer).await
            } else {
                let (answer, query) = both(answer, query).await;
                (query, answer)
            };
            query.and(answer)
        }
        _ => {
            let plan = execute(port, Function::Prepare, CommandData::Send(body)).await?.result;
            let run = Run::new(plan, None, &input)
                .ok_or_else(|| TransportError::Broken("the input is too long".to_owned()))?;
            let answer = execute(port, Function::Run(run), CommandData::Receive(wanted)).await;
            let _ = execute(port, Function::Forget(plan), CommandData::None).await;
            answer
        }
    }
}

/// Waits for something, for so many turns; nothing if it takes longer.
async fn for_turns<T>(turns: u64, mut work: Pin<&mut impl Future<Output = T>>) -> Option<T> {
    let mut left = turns;
    std::future::poll_fn(|context| match (work.as_mut().poll(context), left.checked_sub(1)) {
        (std::task::Poll::Ready(output), _) => std::task::Poll::Ready(Some(output)),
        (std::task::Poll::Pending, None) => std::task::Poll::Ready(None),
        (std::task::Poll::Pending, Some(less)) => {
            left = less;
            // Each turn counts, whether or not there is something to do.
            context.waker().wake_by_ref();
            std::task::Poll::Pending
        }
    })
    .await
}

/// Waits for two futures, side by side.
async fn both<A, B>(first: impl Future<Output = A>, second: impl Future<Output = B>) -> (A, B) {
    let (mut first, mut second) = (std::pin::pin!(first), std::pin::pin!(second));
    let (mut one, mut other) = (None, None);
    std::future::poll_fn(move |context| {
        if one.is_none()
            && let std::task::Poll::Ready(value) = first.as_mut().poll(context)
        {
            one = Some(value);
        }
        if other.is_none()
            && let std::task::Poll::Ready(value) = second.as_mut().poll(context)
        {
            other = Some(value);
        }
        match (one.take(), other.take()) {
            (Some(one), Some(other)) => std::task::Poll::Ready((one, other)),
            (first, second) => {
                (one, other) = (first, second);
                std::task::Poll::Pending
            }
        }
    })
    .await
}
