//! The card's half: what the target hands to it, by [`ForeignService`].
//!
//! ```text
//!   Target ─▶ events ─▶ Functions ─┬─ load, find, unload ─▶ Programs ─▶ Workshop (another thread)
//!                                  ├─ map, open, close ──▶ Client: its files, plans, queries
//!                                  ├─ prepare, forget ───▶      │
//!                                  └─ run, request, query+answer ─▶ Request: lend ─▶ read ⇄ Turns: program ─▶ answer
//! ```
//!
//! A request holds two buffers of the target's from its first read to its answer, and nothing else that is counted. Programs run in
//! `Turns`: each tenant one call, then the next tenant's, while there is some of its share left.

mod chain;
mod clients;
mod commands;
mod counts;
mod files;
mod map_check;
mod names;
mod pairs;
mod programs;
mod requests;
mod room;
mod turns;
mod uploads;

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use ob_core::Instant;
use ob_ebpf::hooks::STORAGE_DATA_LEN_MAX;
use ob_files_card::LocalFiles;
use ob_nvme::driver::ForeignService;
use ob_nvme::target::control::{ControllerKey, SubsystemKey};
use ob_nvme::target::{ForeignEvent, ForeignKey, ForeignOpcode, TRANSFER_LEN_MIN, Target};
use ob_programs::Limits;
use ob_wire_nvme::Status;
use ob_wire_nvme::pushdown::{DO, EXCHANGE, RECEIVE, SCRATCH_LEN, SEND};

pub use counts::FunctionCounts;
pub use programs::{Loader, Shelf};

use clients::Client;
use commands::Reply;
use names::Names;
use programs::Programs;
use requests::Requests;
use turns::Turns;

/// Events of the target that are taken in one turn.
const EVENTS_A_TURN: usize = 64;
/// Extents of maps that are checked in one turn, but for those of its last event: the longest piece has 5,461, and who brings the last piece
/// of a map has all of it put in order, up to 65,536.
const EXTENTS_A_TURN: usize = 4096;
/// Calls of programs in one turn: others wait, for 50 µs each at worst.
const CALLS_A_TURN: usize = 32;
/// How often it is looked who takes too long.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// What clients may have, each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionLimits {
    /// Of a host's programs.
    pub programs: Limits,
    /// Files of a controller.
    pub open_max: usize,
    /// Extents of all its files.
    pub extents_max: usize,
    /// Plans of a controller.
    pub plans_max: usize,
    /// Queries, and answers that wait for theirs, of a controller.
    pub queries_max: usize,
    /// Uploads of a controller that are under way.
    pub uploads_max: usize,
    /// Reads of a request.
    pub reads_max: u16,
    /// How long a request may take, a query waits to be asked for, and an upload for its next piece. Linux gives a controller up after 30 s.
    pub request_time: Duration,
}

impl Default for FunctionLimits {
    fn default() -> Self {
        Self {
            programs: Limits::default(),
            open_max: 4096,
            extents_max: 1 << 18,
            plans_max: 256,
            queries_max: 256,
            uploads_max: 4,
            reads_max: 1024,
            request_time: Duration::from_secs(10),
        }
    }
}

/// The opcodes that a target with functions serves: see [`ob_nvme::target::TargetConfig::foreign`].
#[must_use]
pub fn opcodes() -> Vec<ForeignOpcode> {
    let whole = TRANSFER_LEN_MIN as u32;
    let all = [(DO, 0), (SEND, whole), (RECEIVE, whole), (EXCHANGE, whole)];
    all.iter().filter_map(|(opcode, len)| ForeignOpcode::new(*opcode, *len)).collect()
}

/// Where random bytes come from.
type Random = Box<dyn FnMut(&mut [u8]) + Send>;

/// Files that clients may open by name.
pub struct NamedFiles {
    /// The card's files.
    pub files: LocalFiles,
    /// The folder that hosts of a subsystem may use. Those of others open nothing by name.
    pub folders: BTreeMap<SubsystemKey, Vec<u8>>,
}

/// Storage functions behind a target.
pub struct Functions {
    limits: FunctionLimits,
    programs: Programs,
    names: Option<Names>,
    clients: BTreeMap<ControllerKey, Client>,
    /// Draws the upper half of a client's numbers.
    random: Random,
    requests: Requests,
    /// What is told when there is a buffer for it.
    replies: Vec<Reply>,
    turns: Turns,
    counts: FunctionCounts,
    /// Extents that were checked in this turn.
    checked: usize,
    sweep_at: Option<Instant>,
    now: Instant,
}

impl Functions {
    /// Functions whose programs are on a shelf that other threads may have too.
    pub fn new(
        limits: FunctionLimits,
        shelf: Shelf,
        loader: Loader,
        named: Option<NamedFiles>,
        random: impl FnMut(&mut [u8]) + Send + 'static,
    ) -> Self {
        Self {
            programs: Programs::new(shelf, loader, limits.programs),
            limits,
            names: named.map(Names::new),
            clients: BTreeMap::new(),
            random: Box::new(random),
            requests: Requests::default(),
            replies: Vec::new(),
            turns: Turns::default(),
            counts: FunctionCounts::default(),
            checked: 0,
            sweep_at: None,
            now: Instant::default(),
        }
    }

    /// What was done so far, and what there is.
    pub fn counts(&self) -> FunctionCounts {
        let clients = || self.clients.values();
        FunctionCounts {
            running: self.requests.len() as u64,
            files: clients().map(|client| client.files.len() as u64).sum(),
            extents: clients().map(|client| client.extents.get() as u64).sum(),
            plans: clients().map(|client| client.plans.len() as u64).sum(),
            programs: self.programs.count() as u64,
            ..self.counts
        }
    }

    /// Where in memory the data lies that programs are to be called with, of requests whose reads are over: a test compares it with where
    /// devices have put what they read.
    #[doc(hidden)]
    pub fn views(&self) -> Vec<Range<usize>> {
        self.requests.views()
    }

    fn take(&mut self, target: &mut Target, event: ForeignEvent) {
        match event {
            ForeignEvent::Command(command) => self.command(target, command),
            ForeignEvent::Lent { key, loans } => self.lent(target, key, loans),
            ForeignEvent::Read { key, result, .. } => self.read_over(target, key, result),
            ForeignEvent::Aborted(key) | ForeignEvent::Ended(key) => {
                self.forget(key);
                target.foreign_done(key, Err(Status::ABORT_REQUESTED), 0);
            }
            ForeignEvent::ControllerEnded(controller) => self.controller_ended(controller),
        }
    }

    /// Nobody waits for this command any longer.
    fn forget(&mut self, key: ForeignKey) {
        if let Some(request) = self.requests.remove(key) {
            self.counts.gone += 1;
            self.requests.recycle(request);
        }
        self.programs.forget(key);
        self.replies.retain(|reply| !reply.is_of(key));
        if let Some(names) = &mut self.names {
            names.forget(key);
        }
        for client in self.clients.values_mut() {
            client.pairs.forget(key);
        }
    }

    fn controller_ended(&mut self, controller: ControllerKey) {
        if let Some(client) = self.clients.remove(&controller) {
            client.files.values().for_each(|file| file.withdraw());
            self.programs.left(&client.tenant);
            self.turns.left(client.turn);
        }
    }

    /// Ends what takes too long.
    fn sweep(&mut self, target: &mut Target, now: Instant) {
        for key in self.requests.late(now) {
            self.fail(target, key, Status::PUSHDOWN_TIME, 0);
        }
        for client in self.clients.values_mut() {
            client.uploads.expire(now);
            for key in client.pairs.late(now) {
                self.counts.failed += 1;
                target.foreign_done(key, Err(Status::PUSHDOWN_TIME.with_do_not_retry()), 0);
            }
        }
        self.sweep_at = (!self.is_idle()).then(|| now + SWEEP_EVERY);
    }

    /// Whether nothing is under way.
    fn is_idle(&self) -> bool {
        let has_none = |client: &Client| client.pairs.is_empty() && client.uploads.is_empty();
        self.requests.len() == 0 && self.clients.values().all(has_none)
    }

    /// Has it looked at, some time, who takes too long.
    fn arm(&mut self) {
        let now = self.now;
        self.sweep_at.get_or_insert(now + SWEEP_EVERY);
    }
}

impl ForeignService for Functions {
    fn turn(&mut self, now: Instant, target: &mut Target) -> bool {
        self.now = now;
        let mut did = false;
        for _ in 0..EVENTS_A_TURN {
            let Some(event) = target.next_foreign() else { break };
            did = true;
            self.take(target, event);
            if self.checked >= EXTENTS_A_TURN {
                break;
            }
        }
        self.checked = 0;
        did |= self.take_loaded(target);
        did |= self.take_named(target);
        did |= self.run_some(target, now);
        if self.sweep_at.is_some_and(|at| at <= now) {
            self.sweep(target, now);
            did = true;
        }
        did
    }

    fn next_due(&self) -> Option<Instant> {
        [self.turns.next_due(self.now), self.sweep_at].into_iter().flatten().min()
    }
}

/// Bytes of the buffer that reads of up to `len` bytes need: blocks that they begin and end within are read whole.
fn buffer_len(len: u32, block_len: u32) -> usize {
    let (len, block) = (len as usize, block_len.max(1) as usize);
    (len.next_multiple_of(block) + block).min(TRANSFER_LEN_MIN)
}

const _: () = assert!(SCRATCH_LEN == ob_ebpf::hooks::STORAGE_SCRATCH_LEN as usize);
const _: () = assert!(TRANSFER_LEN_MIN >= STORAGE_DATA_LEN_MAX as usize);
