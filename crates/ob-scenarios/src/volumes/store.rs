//! The metadata store of a pool, as a tier meets it: it takes its time, and what it has to say may be lost before or after what was asked
//! for was done.
//!
//! ```text
//!   submit ─▶ on the way ─▶ done ─▶ answer on the way ─▶ poll
//!                 │           │            └─ lost: Unknown
//!                 │           └─ (a copy that was lost may be done later, behind newer ones)
//!                 └─ lost: Unknown, or refused: Unreachable
//! ```

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use ob_core::{Clock, Instant, Refused, RefusedReason, SessionId, Token};
use ob_sim::{Failure, PerMillion, Rng, Trace};
use ob_volume::metadata::{
    MemoryStore, MetadataAnswer, MetadataCompletion, MetadataError, MetadataOp, MetadataStore,
};

use super::embedded::Embedded;
use super::plan::TIERS_MAX;

/// Operations that are taken at once.
const OPERATIONS_MAX: usize = 64;
/// How long somebody waits who is told nothing.
const PATIENCE: Duration = Duration::from_secs(2);

/// How a store behaves.
#[derive(Clone, Debug)]
pub(super) struct StorePlan {
    /// How long an operation, and its answer, are on their way.
    pub(super) latency: Range<Duration>,
    /// How often an operation is refused, and surely not done.
    pub(super) unreachable: PerMillion,
    /// How often nobody hears what became of one.
    pub(super) unknown: PerMillion,
    /// How often one is not taken for the moment.
    pub(super) busy: PerMillion,
}

/// What happens to an operation on its way.
#[derive(Clone, Debug)]
enum Step {
    /// It is done, and its answer goes on its way, or is lost.
    Do { caller: usize, token: Token, op: MetadataOp, is_heard: bool },
    /// It comes behind all that was said of it.
    DoLate { caller: usize, op: MetadataOp },
}

/// An answer on its way, and to which tier.
#[derive(Clone, Debug)]
struct Answer {
    caller: usize,
    completion: MetadataCompletion,
}

/// A tier's way to the store.
#[derive(Clone)]
pub(super) struct StoreEnd {
    pub(super) store: Rc<RefCell<SimMetadata>>,
    pub(super) caller: usize,
}

impl StoreEnd {
    /// The tier's process is gone: its answers are for nobody.
    pub(super) fn lose(&self) {
        self.store.borrow_mut().caller_lost(self.caller);
    }
}

impl MetadataStore for StoreEnd {
    fn submit(&mut self, token: Token, op: MetadataOp) -> Result<(), Refused<MetadataOp>> {
        self.store.borrow_mut().submit(self.caller, token, op)
    }

    fn poll(&mut self) -> Option<MetadataCompletion> {
        self.store.borrow_mut().poll(self.caller)
    }

    fn next_due(&self) -> Option<Instant> {
        self.store.borrow().next_due(self.caller)
    }
}

/// What has the keys.
enum Backend {
    /// Somewhere else, on as many machines as it takes.
    Elsewhere(MemoryStore),
    /// On the machine of the only tier, in its process.
    Embedded(Box<Embedded>),
}

/// The store. Lives of tiers ask it; it outlives all of them.
pub(super) struct SimMetadata {
    backend: Backend,
    plan: StorePlan,
    steps: BTreeMap<(Instant, u64), Step>,
    answers: BTreeMap<(Instant, u64), Answer>,
    number: u64,
    /// Nothing of a tier gets through before.
    silent_until: Vec<Instant>,
    /// Sessions that were given, and to whom.
    sessions: Vec<(usize, SessionId)>,
    /// Answers are so much later before then.
    slow: (Duration, Instant),
    /// Whose session ends when it has been renewed once more, and for how long that one hears nothing then.
    disowned: Option<(usize, Duration)>,
    rng: Rng,
    trace: Trace,
    pub(super) unknowns: u64,
    pub(super) late: u64,
}

impl SimMetadata {
    pub(super) fn new(plan: StorePlan, rng: Rng, trace: Trace, is_embedded: bool) -> Result<Self, Failure> {
        let backend = match is_embedded {
            true => Backend::Embedded(Box::new(Embedded::new(&rng)?)),
            false => Backend::Elsewhere(MemoryStore::new()),
        };
        Ok(Self {
            backend,
            plan,
            steps: BTreeMap::new(),
            answers: BTreeMap::new(),
            number: 0,
            silent_until: vec![Instant::default(); TIERS_MAX],
            sessions: Vec::new(),
            slow: (Duration::ZERO, Instant::default()),
            disowned: None,
            rng,
            trace,
            unknowns: 0,
            late: 0,
        })
    }

    fn now(&self) -> Instant {
        self.trace.clock().now()
    }

    fn plan_step(&mut self, at: Instant, step: Step) {
        self.number += 1;
        self.steps.insert((at, self.number), step);
    }

    fn plan_answer(&mut self, at: Instant, caller: usize, completion: MetadataCompletion) {
        self.number += 1;
        self.answers.insert((at, self.number), Answer { caller, completion });
    }

    /// One tier does not reach it for so long, or none does.
    pub(super) fn be_silent(&mut self, until: Instant, of: Option<usize>) {
        self.trace.note("store silent", &[until.nanoseconds(), of.map_or(u64::MAX, |of| of as u64)]);
        for (caller, silent) in self.silent_until.iter_mut().enumerate() {
            if of.is_none_or(|of| of == caller) {
                *silent = until;
            }
        }
    }

    /// It behaves from now on.
    pub(super) fn mend(&mut self) {
        let plan = &mut self.plan;
        (plan.unreachable, plan.unknown, plan.busy) =
            (PerMillion::NEVER, PerMillion::NEVER, PerMillion::NEVER);
        self.silent_until.fill(Instant::default());
        (self.slow, self.disowned) = ((Duration::ZERO, Instant::default()), None);
        if let Backend::Embedded(store) = &mut self.backend {
            store.mend();
        }
    }

    /// Answers take so much longer for a while.
    pub(super) fn be_slow(&mut self, by: Duration, until: Instant) {
        self.trace.note("store slow", &[by.as_nanos() as u64, until.nanoseconds()]);
        self.slow = (by, until);
    }

    /// A tier is renewed once more, and then its session ends, of which it hears nothing for so long: it has the longest lease there can be, and
    /// nobody has to wait until its session ends by itself.
    pub(super) fn disown(&mut self, caller: usize, silent: Duration) {
        self.disowned = Some((caller, silent));
    }

    /// Whether somebody is about to be.
    pub(super) fn is_disowning(&self) -> bool {
        self.disowned.is_some()
    }

    fn renewed(&mut self, caller: usize, session: SessionId) {
        if let Some((_, silent)) = self.disowned.take_if(|(of, _)| *of == caller) {
            self.trace.note("disowned", &[caller as u64, session.0]);
            let until = self.now() + silent;
            self.be_silent(until, Some(caller));
            let _ = self.execute(caller, MetadataOp::Revoke { session });
        }
    }

    /// A session ends though it was renewed, by whatever clock the store has.
    pub(super) fn end_a_session(&mut self) -> bool {
        let Some((caller, session)) = self.sessions.pop() else { return false };
        self.trace.note("session ends", &[session.0]);
        self.execute(caller, MetadataOp::Revoke { session }).is_ok()
    }

    /// The same of all sessions that a tier has.
    pub(super) fn end_sessions_of(&mut self, caller: usize) {
        let ended: Vec<SessionId> =
            self.sessions.extract_if(.., |(of, _)| *of == caller).map(|(_, session)| session).collect();
        for session in ended {
            self.trace.note("session ends", &[session.0]);
            let _ = self.execute(caller, MetadataOp::Revoke { session });
        }
    }

    /// The power of the machine that it is on goes, when its disk has done so much more; nothing, if that is another than the tier's.
    pub(super) fn cut_power(&mut self, after: u64) -> bool {
        match &mut self.backend {
            Backend::Embedded(store) => store.cut_power(after),
            Backend::Elsewhere(_) => return false,
        }
        true
    }

    /// Sessions that there are, where that is known.
    pub(super) fn sessions(&self) -> Option<usize> {
        match &self.backend {
            Backend::Embedded(_) => None,
            Backend::Elsewhere(store) => Some(store.sessions()),
        }
    }

    /// Whether it has gone since this was asked last: the host's process is gone with it.
    pub(super) fn take_power_lost(&mut self) -> bool {
        match &mut self.backend {
            Backend::Embedded(store) => std::mem::take(&mut store.has_lost_power),
            Backend::Elsewhere(_) => false,
        }
    }

    fn caller_lost(&mut self, lost: usize) {
        if let Backend::Embedded(store) = &mut self.backend {
            // It is in the same process.
            store.restart();
            self.steps.clear();
        }
        self.answers.retain(|_, answer| answer.caller != lost);
        for step in self.steps.values_mut() {
            if let Step::Do { caller, op, .. } = step
                && *caller == lost
            {
                *step = Step::DoLate { caller: lost, op: op.clone() };
            }
        }
    }

    /// What it has, past everybody.
    pub(super) fn look(&mut self, op: MetadataOp) -> Result<MetadataAnswer, MetadataError> {
        self.execute(usize::MAX, op)
    }

    fn execute(&mut self, caller: usize, op: MetadataOp) -> Result<MetadataAnswer, MetadataError> {
        let now = self.now();
        let result = match &mut self.backend {
            Backend::Embedded(store) => store.execute(now, op),
            Backend::Elsewhere(store) => {
                store.set_time(now);
                // It is empty between two operations, and so takes any.
                let is_taken = store.submit(Token(0), op).is_ok();
                let done = if is_taken { store.poll() } else { None };
                done.map_or(Err(MetadataError::Unreachable), |done| done.result)
            }
        };
        if let Ok(MetadataAnswer::Session(session)) = &result {
            self.sessions.push((caller, *session));
        }
        result
    }

    fn catch_up(&mut self) {
        let now = self.now();
        while let Some(entry) = self.steps.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((at, _), step) = entry.remove_entry();
            match step {
                Step::Do { caller, token, op, is_heard } => {
                    let renewed = match &op {
                        MetadataOp::Renew { session } if is_heard => Some(*session),
                        _ => None,
                    };
                    let result = self.execute(caller, op);
                    self.trace.note("store done", &[token.0, u64::from(result.is_ok()), u64::from(is_heard)]);
                    if let (Some(session), Ok(MetadataAnswer::Renewed)) = (renewed, &result) {
                        self.renewed(caller, session);
                    }
                    let (result, pause) = if is_heard {
                        let slower = if now < self.slow.1 { self.slow.0 } else { Duration::ZERO };
                        (result, slower + self.rng.skewed(self.plan.latency.clone()))
                    } else {
                        self.unknowns += 1;
                        (Err(MetadataError::Unknown), self.rng.duration(Duration::ZERO..PATIENCE))
                    };
                    self.plan_answer(at + pause, caller, MetadataCompletion { token, result });
                }
                Step::DoLate { caller, op } => {
                    self.late += 1;
                    let result = self.execute(caller, op);
                    self.trace.note("store done late", &[u64::from(result.is_ok())]);
                }
            }
        }
    }

    /// An operation of which nobody hears: it was never done, or will be at some time.
    fn lose(&mut self, caller: usize, token: Token, op: MetadataOp) {
        let now = self.now();
        let told = now + self.rng.duration(Duration::ZERO..PATIENCE);
        let result = Err(MetadataError::Unknown);
        self.unknowns += 1;
        self.plan_answer(told, caller, MetadataCompletion { token, result });
        if self.rng.one_in(2) {
            let late = now + self.rng.skewed(Duration::from_micros(10)..PATIENCE * 2);
            self.plan_step(late, Step::DoLate { caller, op });
        }
    }

    fn submit(&mut self, caller: usize, token: Token, op: MetadataOp) -> Result<(), Refused<MetadataOp>> {
        let count = self.steps.len() + self.answers.len();
        if count >= OPERATIONS_MAX || (count > 0 && self.rng.chance(self.plan.busy)) {
            return Err(Refused { op, reason: RefusedReason::Busy });
        }
        let now = self.now();
        if self.silent_until.get(caller).is_some_and(|until| now < *until) {
            self.lose(caller, token, op);
            return Ok(());
        }
        let at = now + self.rng.skewed(self.plan.latency.clone());
        if self.rng.chance(self.plan.unreachable) {
            let result = Err(MetadataError::Unreachable);
            self.plan_answer(at, caller, MetadataCompletion { token, result });
        } else if self.rng.chance(self.plan.unknown) {
            if self.rng.one_in(2) {
                self.lose(caller, token, op);
            } else {
                self.plan_step(at, Step::Do { caller, token, op, is_heard: false });
            }
        } else {
            self.plan_step(at, Step::Do { caller, token, op, is_heard: true });
        }
        Ok(())
    }

    fn poll(&mut self, caller: usize) -> Option<MetadataCompletion> {
        self.catch_up();
        let now = self.now();
        let due = self.answers.range(..=(now, u64::MAX));
        let first = { due }.find(|(_, answer)| answer.caller == caller).map(|(at, _)| *at)?;
        self.answers.remove(&first).map(|answer| answer.completion)
    }

    fn next_due(&self, caller: usize) -> Option<Instant> {
        let answer = self.answers.iter().find(|(_, answer)| answer.caller == caller);
        let step = self.steps.first_key_value().map(|((at, _), _)| *at);
        answer.map(|((at, _), _)| *at).into_iter().chain(step).min()
    }
}
