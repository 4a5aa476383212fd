//! What a controller has here. It ends with it.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use ob_core::Instant;
use ob_nvme::target::Target;
use ob_nvme::target::control::ControllerKey;
use ob_programs::{Entry, Object};
use ob_wire_nvme::Status;

use super::Functions;
use super::files::{OpenFile, Place};
use super::pairs::Pairs;
use super::room::Recency;
use super::turns::TurnKey;
use super::uploads::Uploads;

const UNKNOWN: Status = Status::PUSHDOWN_UNKNOWN.with_do_not_retry();

/// Refusals that are kept until they are asked for.
const REFUSALS_MAX: usize = 4;

/// A controller.
pub(super) struct Client {
    /// Its host, by NQN.
    pub(super) tenant: String,
    pub(super) turn: TurnKey,
    /// The last number that was given out; the upper half is the client's own.
    last: u64,
    pub(super) programs: BTreeMap<u64, Program>,
    pub(super) files: BTreeMap<u64, Rc<OpenFile>>,
    file_recency: Recency,
    /// Extents that are kept for it, of files that are open or that plans and requests still have.
    pub(super) extents: Rc<Cell<usize>>,
    pub(super) plans: BTreeMap<u64, Rc<Plan>>,
    plan_recency: Recency,
    pub(super) pairs: Pairs,
    pub(super) uploads: Uploads,
    refusals: VecDeque<(u32, String)>,
}

/// A program that a client has found.
#[derive(Clone)]
pub(super) struct Program {
    pub(super) object: Arc<Object>,
    /// Which of the object's.
    pub(super) index: usize,
}

impl Program {
    pub(super) fn entry(&self) -> Option<&Entry> {
        self.object.entries.get(self.index)
    }
}

/// A request that was prepared.
pub(super) struct Plan {
    pub(super) program: Program,
    pub(super) files: Vec<Rc<OpenFile>>,
    pub(super) first: FirstRead,
    pub(super) read_len_max: u32,
    pub(super) reads_max: u16,
    pub(super) scratch: Vec<u8>,
    /// When it was run last, or prepared.
    pub(super) run_at: Cell<Instant>,
}

/// The first read of a chain, or the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FirstRead {
    pub(super) file: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Client {
    /// A number that nothing of this client has had.
    pub(super) fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Takes a file in, whose number is nobody's.
    pub(super) fn insert_file(&mut self, place: Place, now: Instant) -> u64 {
        let number = self.number();
        self.files.insert(number, Rc::new(OpenFile::new(place, &self.extents, now)));
        let files = &self.files;
        self.file_recency.insert(number, now, |number| Some(files.get(&number)?.used_at(now)));
        number
    }

    /// Takes a plan in.
    pub(super) fn insert_plan(&mut self, plan: Plan, now: Instant) -> u64 {
        let number = self.number();
        self.plans.insert(number, Rc::new(plan));
        let plans = &self.plans;
        self.plan_recency.insert(number, now, |number| Some(plans.get(&number)?.run_at.get()));
        number
    }

    /// Closes the file that was used least recently, if that was at `until` or before and no request has it; whether there was one.
    pub(super) fn close_idle(&mut self, until: Instant, now: Instant) -> bool {
        let files = &self.files;
        let found = self.file_recency.take(until, |number| Some(files.get(&number)?.used_at(now)));
        let closed = found.and_then(|number| self.files.remove(&number));
        closed.inspect(|file| file.withdraw()).is_some()
    }

    /// Forgets the plan that was run least recently, if that was at `until` or before; whether there was one.
    pub(super) fn forget_idle(&mut self, until: Instant) -> bool {
        let plans = &self.plans;
        let found = self.plan_recency.take(until, |number| Some(plans.get(&number)?.run_at.get()));
        found.and_then(|number| self.plans.remove(&number)).is_some()
    }

    /// The number of a program: the one that it has already, if it has one.
    pub(super) fn program_number(&mut self, object: &Arc<Object>, index: usize) -> u64 {
        self.forget_retired();
        let is_same = |program: &Program| program.index == index && Arc::ptr_eq(&program.object, object);
        let known = self.programs.iter().find(|(_, program)| is_same(program)).map(|(number, _)| *number);
        known.unwrap_or_else(|| {
            let number = self.number();
            self.programs.insert(number, Program { object: Arc::clone(object), index });
            number
        })
    }

    /// Lets go of objects that were taken out, or replaced: they are no good to anybody, and counted for nobody.
    pub(super) fn forget_retired(&mut self) {
        self.programs.retain(|_, program| !program.object.is_retired());
        self.plans.retain(|_, plan| !plan.program.object.is_retired());
    }

    /// A program that may be called.
    pub(super) fn program(&self, number: u64) -> Option<&Program> {
        self.programs.get(&number).filter(|program| !program.object.is_retired())
    }

    /// Keeps why an upload was refused.
    pub(super) fn refuse(&mut self, token: u32, why: String) {
        self.refusals.retain(|(of, _)| *of != token);
        if self.refusals.len() >= REFUSALS_MAX {
            self.refusals.pop_front();
        }
        self.refusals.push_back((token, why));
    }

    /// Tells why, once.
    pub(super) fn refusal(&mut self, token: u32) -> Option<String> {
        let at = self.refusals.iter().position(|(of, _)| *of == token)?;
        self.refusals.remove(at).map(|(_, why)| why)
    }
}

impl Functions {
    /// Has files make room that nobody needs, if there is none for one more; whether there is.
    pub(super) fn room_for_file(&mut self, controller: ControllerKey) -> Result<bool, Status> {
        let open_max = self.limits.open_max;
        self.close_until(controller, |client| client.files.len() < open_max)
    }

    /// The same for so many extents more, where so many others are given back.
    pub(super) fn room_for_extents(
        &mut self,
        controller: ControllerKey,
        more: usize,
        freed: usize,
    ) -> Result<bool, Status> {
        let extents_max = self.limits.extents_max;
        self.close_until(controller, |client| client.extents.get() + more <= extents_max + freed)
    }

    fn close_until(
        &mut self,
        controller: ControllerKey,
        has_room: impl Fn(&Client) -> bool,
    ) -> Result<bool, Status> {
        let (until, now) = (self.idle_since(), self.now);
        let client = self.clients.get_mut(&controller).ok_or(UNKNOWN)?;
        while !has_room(client) {
            if !until.is_some_and(|until| client.close_idle(until, now)) {
                return Ok(false);
            }
            self.counts.displaced += 1;
        }
        Ok(true)
    }

    /// Who made use of something since then may still be at it; nothing while the clock has not come so far.
    fn idle_since(&self) -> Option<Instant> {
        let time = u64::try_from(self.limits.request_time.as_nanos()).ok()?;
        self.now.nanoseconds().checked_sub(time).map(Instant::from_nanoseconds)
    }

    /// Has a plan make room that nobody needs, if there is none for one more; whether there is.
    pub(super) fn room_for_plan(&mut self, controller: ControllerKey) -> Result<bool, Status> {
        let (until, plans_max) = (self.idle_since(), self.limits.plans_max);
        let client = self.clients.get_mut(&controller).ok_or(UNKNOWN)?;
        while client.plans.len() >= plans_max {
            if !until.is_some_and(|until| client.forget_idle(until)) {
                return Ok(false);
            }
            self.counts.displaced += 1;
        }
        Ok(true)
    }

    /// The client that a controller is, from its first command on.
    pub(super) fn client(
        &mut self,
        target: &Target,
        controller: ControllerKey,
    ) -> Result<&mut Client, Status> {
        if !self.clients.contains_key(&controller) {
            let host = target.control().host(controller).ok_or(Status::COMMAND_SEQUENCE_ERROR)?;
            let tenant = host.as_str().to_owned();
            self.programs.came(&tenant);
            let turn = self.turns.came(&tenant, self.limits.programs.share, self.now);
            let mut upper = [0; 4];
            (self.random)(&mut upper);
            let client = Client {
                tenant,
                turn,
                last: u64::from(u32::from_le_bytes(upper)) << 32,
                programs: BTreeMap::new(),
                files: BTreeMap::new(),
                file_recency: Recency::default(),
                extents: Rc::default(),
                plans: BTreeMap::new(),
                plan_recency: Recency::default(),
                pairs: Pairs::default(),
                uploads: Uploads::default(),
                refusals: VecDeque::new(),
            };
            self.clients.insert(controller, client);
        }
        self.clients.get_mut(&controller).ok_or(Status::INTERNAL_ERROR)
    }
}
