//! Whoever has something under way: tasks of hosts, and their keepers of maps.
//!
//! ```text
//!   a turn ──▶ each task ─┬─ session ── version?, hold, current ──▶ Source ── seam ──▶ another task, a keeper
//!              keepers    └─ session ── a command ────────────────▶ Port ──── seam ──▶ another task, a keeper
//! ```
//!
//! Programs have threads: between any two things that a request does, another may do something. The code that ships is one future a request,
//! and one a keeper; where it turns to the file system or to the transport, somebody else may have his turn before it goes on ([`seam`]). All
//! of them are polled only if they were woken, and a keeper late where the seed says so.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use ob_core::{Clock, Instant};
use ob_sim::{Failure, Rng, SimClock};

pub(super) type Task = Pin<Box<dyn Future<Output = Result<(), Failure>>>>;

thread_local! {
    /// The crowd of the run that this thread has: sources of maps are for threads, and can have no `Rc` of it.
    static CROWD: RefCell<Option<Rc<Crowd>>> = const { RefCell::new(None) };
}

/// What somebody is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// He asks, or does something else that ends.
    Task,
    /// He writes a file of the client's.
    Writer,
    /// He keeps maps, until he is to leave.
    Keeper,
}

/// All of them.
pub(super) struct Crowd {
    members: RefCell<Vec<Rc<Member>>>,
    rng: RefCell<Rng>,
    clock: SimClock,
    /// At one seam in so many somebody else has his turn.
    seam_one_in: u64,
    /// A keeper who could do something does it one turn in so many.
    keeper_one_in: u64,
    /// Somebody has his turn at a seam.
    is_within: Cell<bool>,
}

struct Member {
    host: usize,
    role: Role,
    /// Nothing while he has his turn, and when he is done.
    task: RefCell<Option<Task>>,
    woken: Arc<Woken>,
    outcome: RefCell<Option<Result<(), Failure>>>,
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Member {
    /// Whether he could do something.
    fn is_ready(&self) -> bool {
        self.woken.0.load(Ordering::Relaxed) && self.task.borrow().is_some()
    }

    fn poll(&self) {
        let Some(mut task) = self.task.borrow_mut().take() else { return };
        self.woken.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&self.woken));
        match task.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(outcome) => *self.outcome.borrow_mut() = Some(outcome),
            Poll::Pending => *self.task.borrow_mut() = Some(task),
        }
    }
}

impl Crowd {
    /// The crowd of this thread's run from now on.
    pub(super) fn gather(rng: Rng, clock: SimClock, seam_one_in: u64, keeper_one_in: u64) -> Rc<Self> {
        let (members, is_within) = Default::default();
        let crowd = Self { members, rng: RefCell::new(rng), clock, seam_one_in, keeper_one_in, is_within };
        let crowd = Rc::new(crowd);
        CROWD.with(|current| *current.borrow_mut() = Some(Rc::clone(&crowd)));
        crowd
    }

    /// Nobody is there any more.
    pub(super) fn scatter(&self) {
        CROWD.with(|current| *current.borrow_mut() = None);
        // Whoever goes may have something to say to the others.
        let gone = std::mem::take(&mut *self.members.borrow_mut());
        drop(gone);
    }

    pub(super) fn join(&self, host: usize, role: Role, task: Task) {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let member =
            Member { host, role, task: RefCell::new(Some(task)), woken, outcome: RefCell::new(None) };
        self.members.borrow_mut().push(Rc::new(member));
    }

    /// Has a host's keeper do what it can, now.
    pub(super) fn poll_keeper(&self, host: usize) {
        let keepers: Vec<Rc<Member>> = self.of(host, Role::Keeper);
        keepers.iter().for_each(|keeper| keeper.poll());
    }

    /// Drops a host's keeper, wherever it is; whether it was not just doing something.
    pub(super) fn kill_keeper(&self, host: usize) -> bool {
        let keepers: Vec<Rc<Member>> = self.of(host, Role::Keeper);
        keepers.iter().any(|keeper| {
            let task = keeper.task.borrow_mut().take();
            let is_killed = task.is_some();
            if is_killed {
                *keeper.outcome.borrow_mut() = Some(Ok(()));
            }
            drop(task);
            is_killed
        })
    }

    fn of(&self, host: usize, role: Role) -> Vec<Rc<Member>> {
        let members = self.members.borrow();
        members.iter().filter(|member| member.host == host && member.role == role).cloned().collect()
    }

    /// The hosts of those who do something that ends.
    pub(super) fn busy(&self) -> Vec<usize> {
        let members = self.members.borrow();
        members.iter().filter(|member| member.role != Role::Keeper).map(|member| member.host).collect()
    }

    /// Whether there is one of those.
    pub(super) fn is_busy(&self) -> bool {
        self.members.borrow().iter().any(|member| member.role != Role::Keeper)
    }

    /// Everybody has his turn. How many are done.
    pub(super) fn turn(&self) -> Result<usize, Failure> {
        // Who joins meanwhile has his first turn next time, and nobody goes before all had theirs.
        let count = self.members.borrow().len();
        for index in 0..count {
            let Some(member) = self.members.borrow().get(index).cloned() else { break };
            let waits = member.role == Role::Keeper && !self.rng.borrow_mut().one_in(self.keeper_one_in);
            if member.is_ready() && !waits {
                member.poll();
            }
        }
        let mut over = Vec::new();
        self.members.borrow_mut().retain(|member| {
            let outcome = member.outcome.borrow_mut().take();
            let is_over = outcome.is_some();
            over.extend(outcome);
            !is_over
        });
        let count = over.len();
        over.into_iter().collect::<Result<Vec<()>, Failure>>()?;
        Ok(count)
    }

    /// Somebody has his turn, if the seed says so.
    fn pass(&self, may: impl Fn(Role) -> bool, one_in: u64) {
        if self.is_within.get() || !self.rng.borrow_mut().one_in(one_in) {
            return;
        }
        let ready: Vec<Rc<Member>> = {
            let members = self.members.borrow();
            members.iter().filter(|member| may(member.role) && member.is_ready()).cloned().collect()
        };
        let chosen = self.rng.borrow_mut().choose(&ready).cloned();
        if let Some(member) = chosen {
            self.is_within.set(true);
            member.poll();
            self.is_within.set(false);
        }
    }
}

fn crowd() -> Option<Rc<Crowd>> {
    CROWD.with(|current| current.borrow().clone())
}

/// Here another thread may do something. Whoever is here holds no lock that another could want.
pub(super) fn seam() {
    if let Some(crowd) = crowd() {
        crowd.pass(|_| true, crowd.seam_one_in);
    }
}

/// Here somebody may go on who writes a file: whoever is here makes a map, and nobody else makes one of the same file.
pub(super) fn seam_for_writers() {
    if let Some(crowd) = crowd() {
        crowd.pass(|role| role == Role::Writer, 2);
    }
}

/// What time it is.
pub(super) fn now() -> Instant {
    crowd().map_or_else(Instant::default, |crowd| crowd.clock.now())
}

/// Lets others have their turn.
pub(super) async fn pause() {
    let mut is_over = false;
    std::future::poll_fn(|context| {
        let was_over = std::mem::replace(&mut is_over, true);
        if was_over {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
