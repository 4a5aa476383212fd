//! Programs in the place of a service's functions.
//!
//! ```text
//!   control thread ── ProgramSlot::put ──▶ generation + 1
//!                                             │ seen before the next call
//!   engine, director ─▶ Programmed ─┬─ a program answers ────────────▶ what it says, checked
//!                                   └─ none, it leaves it, it fails ─▶ the service's own function
//! ```
//!
//! What a program says is taken as what a client says: every length and every range is checked. A request whose reads were planned by
//! programs that are gone is the host's.

mod scratch;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ob_core::Clock;
use ob_ebpf::call::{Call, CallError, LogSink, NoTable};
use ob_ebpf::compiler::Compiled;
use ob_ebpf::hooks::offload::{
    CACHE, CANDIDATES_MAX, CHECK, FUNCTION, HEAD_LEN_MAX, HITS_MAX, INVALIDATE, INVALIDATED_MAX, PREDICATE,
    PREDICATE_KEYS_MAX, REPLY_LEN_MAX, REQUEST_LEN_MAX, ROUTE_CARD, ROUTE_HOST,
};
use ob_ebpf::sampled::{Rate, SampledLog};
use ob_ebpf::world::World;
use ob_programs::{Limits, Meter, Object};
use ob_table::{Hit, Key};

use self::scratch::Scratch;
use crate::Reason;
use crate::application::{
    Application, Candidates, Changes, Cut, FileRead, ReplyOrder, Requests, Route, Standing, Terms, Verdict,
};
use crate::plant::{Bug, is_planted};
use crate::reply::{ReadBytes, Reply};

/// The hooks that a service can have programs for.
const HOOKS: [&World; 5] = [&PREDICATE, &FUNCTION, &CHECK, &CACHE, &INVALIDATE];

/// Calls for one message, one write or one read of the host.
const ROUNDS_MAX: usize = 256;
/// What all of them may cost together, in whole calls: others wait meanwhile.
const ROUNDS_FUEL: u32 = 4;

/// Lines of the card's log that a service's programs may write.
const LOG_RATE: Rate = Rate { lines_per_second: 10, burst: 50 };

/// Where a running service gets its programs from, and tells what became of them. Whoever loads them has it too.
#[derive(Debug, Default)]
pub struct ProgramSlot {
    generation: AtomicU64,
    objects: Mutex<(Vec<Arc<Object>>, Limits)>,
    hooks: [HookTally; HOOKS.len()],
    over_share: Tally,
    outdated: Tally,
    log_dropped: Tally,
    /// Of which hook, and why; what is told of it is made for who asks, as the card's thread does not allocate.
    last_fault: Mutex<Option<(&'static str, CallError)>>,
}

/// A count that one thread changes, and any can read.
#[derive(Debug, Default)]
struct Tally(AtomicU64);

impl Tally {
    fn add(&self, count: u64) {
        // One thread writes, so no count is lost; and it costs no more than one that nobody else reads.
        self.0.store(self.get().wrapping_add(count), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct HookTally {
    calls: Tally,
    left: Tally,
    faults: Tally,
    wrong: Tally,
    fuel: Tally,
}

impl ProgramSlot {
    /// The hooks that a service can have programs for.
    pub const HOOKS: &'static [&'static World] = &HOOKS;

    /// From the next call on these are the service's programs.
    pub fn put(&self, objects: Vec<Arc<Object>>, limits: Limits) {
        let mut place = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        *place = (objects, limits);
        // Whoever was stopped may be gone.
        *self.last_fault.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// What became of calls so far.
    #[must_use]
    pub fn counts(&self) -> ProgramCounts {
        let counts = |tally: &HookTally| HookCounts {
            calls: tally.calls.get(),
            left: tally.left.get(),
            faults: tally.faults.get(),
            wrong: tally.wrong.get(),
            fuel: tally.fuel.get(),
        };
        let last_fault = *self.last_fault.lock().unwrap_or_else(PoisonError::into_inner);
        ProgramCounts {
            hooks: HOOKS.iter().zip(&self.hooks).map(|(world, tally)| (world.name, counts(tally))).collect(),
            over_share: self.over_share.get(),
            outdated: self.outdated.get(),
            log_dropped: self.log_dropped.get(),
            last_fault: last_fault.map(|(hook, fault)| format!("`{hook}`: {fault}")),
        }
    }

    /// What there is, if it is another than that of a generation. Whoever asks does not wait.
    fn newer_than(&self, generation: u64) -> Option<(u64, Vec<Arc<Object>>, Limits)> {
        if self.generation.load(Ordering::Acquire) == generation {
            return None;
        }
        let place = self.objects.try_lock().ok()?;
        // It does not change while the objects are locked.
        Some((self.generation.load(Ordering::Acquire), place.0.clone(), place.1))
    }
}

/// What became of the calls of a hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookCounts {
    /// Calls.
    pub calls: u64,
    /// It left the answer to the service's own function, or, for a check, to the host.
    pub left: u64,
    /// It was stopped: a check of bounds, or fuel.
    pub faults: u64,
    /// What it said cannot be.
    pub wrong: u64,
    /// Fuel of all calls.
    pub fuel: u64,
}

/// What became of the calls of a service's programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProgramCounts {
    /// By hook, with its name.
    pub hooks: Vec<(&'static str, HookCounts)>,
    /// Calls that were not made because the service had used its share of a core.
    pub over_share: u64,
    /// Requests that went to the host because their programs were taken out or replaced meanwhile.
    pub outdated: u64,
    /// Lines that programs have logged and nobody will read, as they were too many.
    pub log_dropped: u64,
    /// Why a program was last stopped.
    pub last_fault: Option<String>,
}

/// There is no answer of a program: there is none, it may not run, it leaves the answer to others, it was stopped, or it has said what cannot
/// be. Which it was, is counted.
struct NoAnswer;

/// A service whose functions can be programs.
pub struct Programmed<A> {
    native: A,
    slot: Arc<ProgramSlot>,
    clock: Rc<dyn Clock>,
    running: RefCell<Running>,
    is_renewed: Cell<bool>,
}

/// The programs that there are now.
struct Running {
    /// Where what becomes of calls is told.
    slot: Arc<ProgramSlot>,
    generation: u64,
    code: [Option<Compiled>; HOOKS.len()],
    scratch: [Scratch; HOOKS.len()],
    limits: Limits,
    meter: Meter,
    log: SampledLog<CardLog, Box<dyn Fn() -> Duration>>,
    /// The hook whose program runs.
    speaker: Rc<Cell<&'static str>>,
}

/// The card's own log, which tells who has said something.
struct CardLog(Rc<Cell<&'static str>>);

impl LogSink for CardLog {
    fn log(&self, first: u64, second: u64) {
        tracing::info!(hook = self.0.get(), first, second, "a program says");
    }
}

impl<A: Application> Programmed<A> {
    /// A service with its own functions, and the programs that are put into a slot.
    pub fn new(native: A, slot: Arc<ProgramSlot>, clock: Rc<dyn Clock>) -> Self {
        let limits = Limits::default();
        let (speaker, time) = (Rc::new(Cell::new("")), Rc::clone(&clock));
        let now: Box<dyn Fn() -> Duration> = Box::new(move || Duration::from_nanos(time.now().nanoseconds()));
        let running = Running {
            generation: 0,
            code: Default::default(),
            scratch: HOOKS.map(|world| Scratch::new(world.scratch_len)),
            meter: Meter::new(limits.share),
            limits,
            slot: Arc::clone(&slot),
            log: SampledLog::new(CardLog(Rc::clone(&speaker)), now, LOG_RATE),
            speaker,
        };
        Self { native, slot, clock, running: RefCell::new(running), is_renewed: Cell::new(false) }
    }

    /// Takes other programs, if there are any.
    fn refresh(&self) {
        let mut running = self.running.borrow_mut();
        let Some((generation, objects, limits)) = self.slot.newer_than(running.generation) else { return };
        let code = HOOKS.map(|world| {
            objects.iter().find_map(|object| object.entry(world)).map(|entry| entry.code.clone())
        });
        // What one function has put into the table, another need not understand.
        let cached = running.code[Hook::Cache as usize].is_some() || code[Hook::Cache as usize].is_some();
        self.is_renewed.set(self.is_renewed.get() || cached);
        running.meter = Meter::new(limits.share);
        (running.generation, running.code, running.limits) = (generation, code, limits);
        running.scratch = HOOKS.map(|world| Scratch::new(world.scratch_len));
    }
}

/// A place in [`HOOKS`].
#[derive(Clone, Copy)]
enum Hook {
    Predicate,
    Function,
    Check,
    Cache,
    Invalidate,
}

impl Running {
    fn has(&self, hook: Hook) -> bool {
        self.code[hook as usize].is_some()
    }

    /// Whether there is a program, and it may run now.
    fn may(&self, hook: Hook, clock: &dyn Clock) -> bool {
        if !self.has(hook) {
            return false;
        }
        let is_admitted = self.meter.admits(|| clock.now());
        if !is_admitted {
            self.slot.over_share.add(1);
        }
        is_admitted
    }

    /// Calls a program once more, if it may run and the rounds before have left some of what there is for all.
    fn call_again(
        &mut self,
        hook: Hook,
        data: &[u8],
        context: &mut [u64],
        left: &mut u32,
        clock: &dyn Clock,
    ) -> Result<(), NoAnswer> {
        if *left == 0 || !self.may(hook, clock) {
            return Err(NoAnswer);
        }
        *left = left.saturating_sub(self.call(hook, data, context)?);
        Ok(())
    }

    /// Fuel for all calls of one event.
    fn rounds_fuel(&self) -> u32 {
        self.limits.call_fuel.saturating_mul(ROUNDS_FUEL)
    }

    /// Calls a program; the fuel that it took.
    fn call(&mut self, hook: Hook, data: &[u8], context: &mut [u64]) -> Result<u32, NoAnswer> {
        let at = hook as usize;
        let Some(code) = &self.code[at] else { return Err(NoAnswer) };
        let fuel = self.limits.call_fuel;
        let scratch = self.scratch[at].bytes_mut();
        self.speaker.set(HOOKS[at].name);
        let dropped = self.log.dropped();
        let mut call = Call { data, scratch, context, fuel, table: &NoTable, log: &self.log };
        let outcome = code.run(&mut call);
        self.slot.log_dropped.add(self.log.dropped() - dropped);
        let spent = fuel - call.fuel.min(fuel);
        self.meter.spend(spent);
        let counts = &self.slot.hooks[at];
        counts.calls.add(1);
        counts.fuel.add(u64::from(spent));
        match outcome {
            Ok(0) => Ok(spent),
            // One that is made for other data is not at fault.
            Ok(_) | Err(CallError::Refused(_)) => {
                counts.left.add(1);
                Err(NoAnswer)
            }
            Err(fault) => {
                counts.faults.add(1);
                // Whoever reads it now gets the next one.
                if let Ok(mut last) = self.slot.last_fault.try_lock() {
                    *last = Some((HOOKS[at].name, fault));
                }
                Err(NoAnswer)
            }
        }
    }

    /// The program has said what cannot be.
    fn wrong(&self, hook: Hook) -> NoAnswer {
        self.slot.hooks[hook as usize].wrong.add(1);
        NoAnswer
    }
}

/// A word of a context as a length or a number of things, of which there are at most so many.
fn bounded(word: u64, max: usize) -> Option<usize> {
    usize::try_from(word).ok().filter(|count| *count <= max)
}

impl Running {
    fn predicate(
        &mut self,
        message: &[u8],
        standing: Standing,
        requests: &mut Requests,
        clock: &dyn Clock,
    ) -> Result<(), NoAnswer> {
        const AT: usize = PREDICATE.word("at");
        let (mut at, mut left, mut keys) = (0, self.rounds_fuel(), 0);
        for _ in 0..ROUNDS_MAX {
            let mut context = [0; PREDICATE.fields.len()];
            context[PREDICATE.word("standing")] = u64::from(standing.0);
            context[AT] = at as u64;
            self.call_again(Hook::Predicate, message, &mut context, &mut left, clock)?;
            // The keys of a message that a client may make wait take memory for as long.
            keys += bounded(context[const { PREDICATE.word("keys") }], PREDICATE_KEYS_MAX).unwrap_or(0);
            if keys > PREDICATE_KEYS_MAX {
                break;
            }
            let listed = self.listed(message, at, standing, &context, requests);
            let Some((request, has_more)) = listed else { return Err(self.wrong(Hook::Predicate)) };
            at = request.end;
            match (has_more, at == message.len()) {
                (false, true) => return Ok(()),
                (true, false) => {}
                // Bytes that nobody answers for would leave a client waiting.
                _ => break,
            }
        }
        Err(self.wrong(Hook::Predicate))
    }

    /// Lists the request that a predicate has found at a place; where it is, and whether there is more.
    fn listed(
        &self,
        message: &[u8],
        at: usize,
        standing: Standing,
        context: &[u64; PREDICATE.fields.len()],
        requests: &mut Requests,
    ) -> Option<(Range<usize>, bool)> {
        let word = |word: usize| context[word];
        let rest = message.len() - at;
        let len = match bounded(word(const { PREDICATE.word("len") }), rest)? {
            0 => rest,
            len => len,
        };
        let route = match word(const { PREDICATE.word("route") }) {
            // The host has not said that the card may answer here.
            ROUTE_CARD if !standing.is_admitted() => return None,
            ROUTE_CARD => Route::Card,
            ROUTE_HOST => Route::Host {
                reason: Reason::Program,
                changes: match word(const { PREDICATE.word("changes") }) {
                    0 => Changes::Nothing,
                    1 => Changes::Keys,
                    2 => Changes::Everything,
                    _ => return None,
                },
                may_change_standing: word(const { PREDICATE.word("changes_standing") }) != 0,
            },
            _ => return None,
        };
        let count = bounded(word(const { PREDICATE.word("keys") }), PREDICATE_KEYS_MAX)?;
        for number in 0..count {
            let range = self.scratch[Hook::Predicate as usize].range(number)?;
            let key = message.get(range)?;
            match (Key::new(key), route) {
                (Ok(key), _) => requests.key(key),
                // The table has no such keys, so there is nothing of them to invalidate.
                (Err(_), Route::Host { .. }) => {}
                (Err(_), Route::Card) => return None,
            }
        }
        let request = at..at + len;
        requests.push(request.clone(), word(const { PREDICATE.word("id") }), route);
        Some((request, word(const { PREDICATE.word("more") }) != 0))
    }

    fn function(
        &mut self,
        request: &[u8],
        hits: &[Hit],
        now: u64,
        reads: &mut Vec<FileRead>,
        reply: &mut Reply,
    ) -> Result<Verdict, NoAnswer> {
        if hits.len() > HITS_MAX || request.len() > REQUEST_LEN_MAX {
            return Err(NoAnswer);
        }
        let mut context = [0; FUNCTION.fields.len()];
        context[FUNCTION.word("now")] = now;
        context[FUNCTION.word("hits")] = hits.len() as u64;
        let scratch = &mut self.scratch[Hook::Function as usize];
        hits.iter().enumerate().for_each(|(number, hit)| scratch.put_function_hit(number, hit));
        self.call(Hook::Function, request, &mut context)?;
        if context[FUNCTION.word("to_host")] != 0 {
            return Ok(Verdict::Host(Reason::Program));
        }
        let count = bounded(context[FUNCTION.word("reads")], HITS_MAX);
        let reply_len = bounded(context[FUNCTION.word("reply_len")], REPLY_LEN_MAX);
        let scratch = &self.scratch[Hook::Function as usize];
        match (count, reply_len) {
            // A client would wait for ever for a reply without a byte.
            (Some(0), Some(len)) if len > 0 => {
                reply.bytes(scratch.function_reply(len));
                Ok(Verdict::Answer)
            }
            (Some(count), _) if count > 0 => {
                reads.extend((0..count).map(|number| scratch.read(number)));
                reply.planned_by = self.generation;
                Ok(Verdict::Read)
            }
            _ => Err(self.wrong(Hook::Function)),
        }
    }

    fn check(
        &mut self,
        request: &[u8],
        hits: &[Hit],
        read: &ReadBytes<'_>,
        reply: &mut Reply,
    ) -> Result<(), NoAnswer> {
        let (mut len_in_all, mut left) = (0, self.rounds_fuel());
        for index in 0..read.len() {
            let Some(data) = read.get(index) else { return Err(self.wrong(Hook::Check)) };
            if left == 0 {
                return Err(NoAnswer);
            }
            let mut context = [0; CHECK.fields.len()];
            context[CHECK.word("request_len")] = request.len() as u64;
            context[CHECK.word("index")] = index as u64;
            context[CHECK.word("reads")] = read.len() as u64;
            self.scratch[Hook::Check as usize].put_check(hits.get(index), request);
            left = left.saturating_sub(self.call(Hook::Check, data, &mut context)?);
            let word = |word: usize, max| bounded(context[word], max);
            let (Some(head), Some(start), Some(len), Some(tail)) = (
                word(CHECK.word("head_len"), HEAD_LEN_MAX),
                word(CHECK.word("value_offset"), data.len()),
                word(CHECK.word("value_len"), data.len()),
                word(CHECK.word("tail_len"), HEAD_LEN_MAX),
            ) else {
                return Err(self.wrong(Hook::Check));
            };
            if start + len > data.len() {
                return Err(self.wrong(Hook::Check));
            }
            let scratch = &self.scratch[Hook::Check as usize];
            reply.bytes(scratch.check_head(head));
            reply.read(index, start..start + len);
            reply.bytes(scratch.check_tail(tail));
            len_in_all += head + len + tail;
        }
        // A client would wait for ever for a reply without a byte.
        if len_in_all == 0 { Err(self.wrong(Hook::Check)) } else { Ok(()) }
    }

    fn cache(
        &mut self,
        store: &[u8; 16],
        file: u32,
        offset: u64,
        bytes: &[u8],
        candidates: &mut Candidates,
        clock: &dyn Clock,
    ) -> Result<(), NoAnswer> {
        let [low, high] = scratch::halves(store);
        let (mut at, mut left) = (0, self.rounds_fuel());
        for _ in 0..ROUNDS_MAX {
            let mut context = [0; CACHE.fields.len()];
            context[CACHE.word("store_low")] = low;
            context[CACHE.word("store_high")] = high;
            context[CACHE.word("file")] = u64::from(file);
            context[CACHE.word("offset")] = offset;
            context[CACHE.word("at")] = at as u64;
            self.call_again(Hook::Cache, bytes, &mut context, &mut left, clock)?;
            let scratch = &self.scratch[Hook::Cache as usize];
            let count = bounded(context[CACHE.word("candidates")], CANDIDATES_MAX);
            let next = bounded(context[CACHE.word("next")], bytes.len());
            let (Some(count), Some(next)) = (count, next.filter(|next| *next == 0 || *next > at)) else {
                return Err(self.wrong(Hook::Cache));
            };
            let settled_at = context[CACHE.word("settled_at")];
            if count > 0 {
                // Nothing is admitted before the log is settled behind it (rule 3), and no log is settled up to its begin.
                if settled_at == 0 {
                    return Err(self.wrong(Hook::Cache));
                }
                candidates.ends_at(settled_at);
            }
            for number in 0..count {
                let Some(candidate) = scratch.candidate(number) else {
                    return Err(self.wrong(Hook::Cache));
                };
                candidates.push(candidate);
            }
            if next == 0 {
                return Ok(());
            }
            at = next;
        }
        Err(self.wrong(Hook::Cache))
    }

    fn invalidate(
        &mut self,
        file: u32,
        offset: u64,
        len: u64,
        keys: &mut Vec<Key>,
        clock: &dyn Clock,
    ) -> Result<(), NoAnswer> {
        let (mut at, mut left) = (0, self.rounds_fuel());
        for _ in 0..ROUNDS_MAX {
            let mut context = [0; INVALIDATE.fields.len()];
            context[INVALIDATE.word("file")] = u64::from(file);
            context[INVALIDATE.word("offset")] = offset;
            context[INVALIDATE.word("len")] = len;
            context[INVALIDATE.word("at")] = at;
            self.call_again(Hook::Invalidate, &[], &mut context, &mut left, clock)?;
            let scratch = &self.scratch[Hook::Invalidate as usize];
            let count = bounded(context[INVALIDATE.word("keys")], INVALIDATED_MAX);
            let next = context[INVALIDATE.word("next")];
            let Some(count) = count.filter(|_| next == 0 || next > at) else {
                return Err(self.wrong(Hook::Invalidate));
            };
            for number in 0..count {
                let Some(key) = scratch.key(number) else { return Err(self.wrong(Hook::Invalidate)) };
                keys.push(key);
            }
            if next == 0 {
                return Ok(());
            }
            at = next;
        }
        Err(self.wrong(Hook::Invalidate))
    }
}

impl<A: Application> Application for Programmed<A> {
    type Cutter = A::Cutter;

    const REPLIES: ReplyOrder = A::REPLIES;

    fn cut(&self, cutter: &mut A::Cutter, bytes: &[u8], standing: Standing, reply: &mut Vec<u8>) -> Cut {
        self.native.cut(cutter, bytes, standing, reply)
    }

    fn glance(&self, bytes: &[u8]) -> Option<Key> {
        self.native.glance(bytes)
    }

    fn predicate(&self, message: &[u8], standing: Standing, requests: &mut Requests) {
        self.refresh();
        let mut running = self.running.borrow_mut();
        if running.has(Hook::Predicate)
            && running.predicate(message, standing, requests, &*self.clock).is_ok()
        {
            return;
        }
        requests.clear();
        self.native.predicate(message, standing, requests);
    }

    fn function(
        &self,
        request: &[u8],
        hits: &[Hit],
        now: u64,
        reads: &mut Vec<FileRead>,
        reply: &mut Reply,
    ) -> Verdict {
        self.refresh();
        // What was looked up is of functions that went this moment.
        if self.is_renewed.get() {
            return Verdict::Host(Reason::Program);
        }
        let mut running = self.running.borrow_mut();
        if running.may(Hook::Function, &*self.clock)
            && let Ok(verdict) = running.function(request, hits, now, reads, reply)
        {
            return verdict;
        }
        // The service's own function does not know what a program has put into the table.
        if running.has(Hook::Cache) {
            return Verdict::Host(Reason::Program);
        }
        self.native.function(request, hits, now, reads, reply)
    }

    fn check(&self, request: &[u8], hits: &[Hit], read: &ReadBytes<'_>, reply: &mut Reply) -> bool {
        if reply.planned_by == 0 {
            return self.native.check(request, hits, read, reply);
        }
        self.refresh();
        let mut running = self.running.borrow_mut();
        if reply.planned_by != running.generation && !is_planted(Bug::OutdatedCheck) {
            running.slot.outdated.add(1);
            return false;
        }
        // It was admitted when its function was: what was read is there, and the host would have to read it again. But not if many were
        // admitted before it showed what they cost.
        if running.meter.is_overdrawn() {
            running.slot.over_share.add(1);
            return false;
        }
        running.check(request, hits, read, reply).is_ok()
    }

    fn cache(&self, store: &[u8; 16], file: u32, offset: u64, bytes: &[u8], candidates: &mut Candidates) {
        self.refresh();
        let mut running = self.running.borrow_mut();
        if running.has(Hook::Cache) {
            let (len, end) = (candidates.list.len(), candidates.end);
            // The table holds what this program says: nothing, if it says nothing.
            if running.cache(store, file, offset, bytes, candidates, &*self.clock).is_err() {
                candidates.list.truncate(len);
                candidates.end = end;
            }
            return;
        }
        self.native.cache(store, file, offset, bytes, candidates);
    }

    fn invalidate(&self, file: u32, offset: u64, len: u64, keys: &mut Vec<Key>) -> Changes {
        self.refresh();
        let mut running = self.running.borrow_mut();
        if running.has(Hook::Invalidate) {
            // Nobody else knows what is to be forgotten: if the program does not say, or may not run, everything is.
            return match running.invalidate(file, offset, len, keys, &*self.clock) {
                Ok(()) => Changes::Keys,
                Err(_) => {
                    keys.clear();
                    Changes::Everything
                }
            };
        }
        self.native.invalidate(file, offset, len, keys)
    }

    fn has_own_items(&self) -> bool {
        self.refresh();
        !self.running.borrow().has(Hook::Cache) && self.native.has_own_items()
    }

    fn is_renewed(&self) -> bool {
        self.refresh();
        self.is_renewed.take() | self.native.is_renewed()
    }

    fn terms(&self) -> Terms {
        self.native.terms()
    }

    fn unavailable(&self, id: u64, was_forwarded: bool, reply: &mut Vec<u8>) {
        self.native.unavailable(id, was_forwarded, reply);
    }

    fn full(&self, reply: &mut Vec<u8>) {
        self.native.full(reply);
    }
}
