//! The search for an order.
//!
//! ```text
//!   events by time:   call A ─ call B ─ return A ─ call C ─ return C ─ ...     (a linked list)
//!                     ╰─ may come next ─╯  │
//!                                          ╰ whatever comes next must have been called by now: A returned
//!
//!   take one out, with its return, and go on from the front; at a return, put the last one back and try the one after it
//! ```

use std::collections::{HashMap, HashSet};

use super::{OperationOf, Specification, Window};

/// What a search came to.
pub(super) enum Outcome {
    /// There is an order.
    Found,
    /// There is none. The longest that was found, as places in the history.
    Impossible(Vec<usize>),
    /// It took too long.
    GaveUp,
}

/// A part of a history, up to some instant.
pub(super) struct Search<'history, S: Specification> {
    specification: &'history S,
    history: &'history [OperationOf<S>],
    /// Places in the history, of what was called by the instant.
    operations: Vec<usize>,
    /// For each of them, when it returned, if that was by the instant.
    returns: Vec<Option<u64>>,
    /// For each of them, those of its session that have to be in the order before it, and those that must not be.
    sessions: Vec<Session>,
    is_timed: bool,
}

/// Where an operation stands in its session.
#[derive(Default)]
struct Session {
    /// The last one before it that returned.
    before: Option<usize>,
    /// Those behind it, up to the first that returned.
    behind: Vec<usize>,
    /// Those before it that never returned, since the last that did.
    lost: Vec<usize>,
}

impl<'history, S: Specification> Search<'history, S> {
    /// A search in the operations of a part, as they were known at the instant `until`.
    pub(super) fn new(
        specification: &'history S,
        history: &'history [OperationOf<S>],
        part: &[usize],
        until: u64,
    ) -> Self {
        let returned_at = |index: usize| {
            let end = history[index].returned.as_ref()?;
            (end.at <= until).then_some(end.at)
        };
        // A read without a reply says nothing and does nothing.
        let counts = |index: &usize| {
            let operation = &history[*index];
            let is_known = returned_at(*index).is_some();
            operation.called <= until && (is_known || !specification.is_read(&operation.command))
        };
        let mut operations: Vec<usize> = part.iter().copied().filter(counts).collect();
        operations.sort_by_key(|index| history[*index].called);
        let returns: Vec<_> = operations.iter().map(|index| returned_at(*index)).collect();
        let sessions = sessions(operations.iter().map(|index| history[*index].session), &returns);
        let is_timed = operations.iter().any(|index| {
            let operation = &history[*index];
            specification.is_timed(&operation.command) || operation.gone_by.is_some()
        });
        Self { specification, history, operations, returns, sessions, is_timed }
    }

    /// Looks for an order, for so many steps at most, which are counted down.
    pub(super) fn run(&self, steps_left: &mut u64) -> Outcome {
        let mut walk = Walk::new(self);
        loop {
            if walk.is_complete() {
                return Outcome::Found;
            }
            if *steps_left == 0 {
                return Outcome::GaveUp;
            }
            *steps_left -= 1;
            if !walk.advance() && !walk.retreat() {
                return Outcome::Impossible(walk.longest);
            }
        }
    }

    fn called(&self, operation: usize) -> u64 {
        self.history[self.operations[operation]].called
    }

    fn successors(&self, state: &S::State, operation: usize, mut window: Window) -> Vec<S::State> {
        let full = &self.history[self.operations[operation]];
        if full.returned.is_none() {
            window.latest = window.latest.min(full.gone_by.unwrap_or(u64::MAX));
            if window.earliest > window.latest {
                return Vec::new();
            }
        }
        let reply =
            full.returned.as_ref().filter(|_| self.returns[operation].is_some()).map(|end| &end.reply);
        let mut successors = Vec::new();
        self.specification.apply(state, &full.command, reply, window, &mut successors);
        successors
    }
}

/// Where each operation stands in its session.
fn sessions(of: impl Iterator<Item = Option<u64>>, returns: &[Option<u64>]) -> Vec<Session> {
    let mut all: Vec<Session> = returns.iter().map(|_| Session::default()).collect();
    let mut open: HashMap<u64, Vec<usize>> = HashMap::new();
    for (operation, session) in of.enumerate() {
        let Some(session) = session else { continue };
        // Of each session those since the last that returned, and that one.
        let before = open.entry(session).or_default();
        for earlier in before.iter() {
            all[*earlier].behind.push(operation);
        }
        all[operation].before = before.iter().copied().find(|earlier| returns[*earlier].is_some());
        all[operation].lost = before.iter().copied().filter(|earlier| returns[*earlier].is_none()).collect();
        if returns[operation].is_some() {
            before.clear();
        }
        before.push(operation);
    }
    all
}

/// An operation that was put into the order, and how to take it out again.
struct Step<State> {
    operation: usize,
    before: State,
    earliest_before: u64,
    /// Other states that it may lead to.
    alternatives: Vec<State>,
    /// It was the best choice, so there is no other to try.
    is_forced: bool,
}

/// Where the search stands.
struct Walk<'search, 'history, S: Specification> {
    search: &'search Search<'history, S>,
    events: Events,
    order: Vec<Step<S::State>>,
    state: S::State,
    /// All that is in the order was called by then.
    earliest: u64,
    done: Done,
    /// Operations that returned and are not in the order.
    missing: usize,
    /// The event to look at next; the first one, when the state is new.
    cursor: usize,
    tried: HashSet<(Signature, S::State)>,
    longest: Vec<usize>,
}

impl<'search, 'history, S: Specification> Walk<'search, 'history, S> {
    fn new(search: &'search Search<'history, S>) -> Self {
        let events = Events::new(search);
        Self {
            search,
            cursor: events.first(),
            events,
            order: Vec::new(),
            state: search.specification.initial(),
            earliest: 0,
            done: Done::new(search.operations.len()),
            missing: search.returns.iter().flatten().count(),
            tried: HashSet::new(),
            longest: Vec::new(),
        }
    }

    fn is_complete(&self) -> bool {
        self.missing == 0
    }

    /// Puts one more operation into the order, and says whether there was one.
    fn advance(&mut self) -> bool {
        let latest = self.events.first_return();
        if self.cursor == self.events.first()
            && let Some(read) = self.free_read(latest)
        {
            let state = self.state.clone();
            return self.put(read, vec![state], true);
        }
        while let Event::Call(operation) = self.events.at(self.cursor) {
            if self.keeps_session(operation) {
                let earliest = self.earliest.max(self.search.called(operation));
                let successors = self.search.successors(&self.state, operation, Window { earliest, latest });
                if self.put(operation, successors, false) {
                    return true;
                }
            }
            self.cursor = self.events.after(self.cursor);
        }
        false
    }

    /// A read that fits the present state and may come next.
    ///
    /// Where time counts, it must not take any away from those that come after it; nor the last chance from what was lost in
    /// its session before it.
    fn free_read(&self, latest: u64) -> Option<usize> {
        let mut cursor = self.events.first();
        while let Event::Call(operation) = self.events.at(cursor) {
            let full = &self.search.history[self.search.operations[operation]];
            let is_free = self.search.returns[operation].is_some()
                && self.keeps_session(operation)
                && self.search.sessions[operation].lost.iter().all(|lost| self.done.contains(*lost))
                && self.search.specification.is_read(&full.command)
                && (!self.search.is_timed || full.called <= self.earliest);
            let earliest = self.earliest.max(full.called);
            if is_free
                && self
                    .search
                    .successors(&self.state, operation, Window { earliest, latest })
                    .contains(&self.state)
            {
                return Some(operation);
            }
            cursor = self.events.after(cursor);
        }
        None
    }

    /// Whether the operation is the next of its session.
    fn keeps_session(&self, operation: usize) -> bool {
        let Session { before, behind, .. } = &self.search.sessions[operation];
        before.is_none_or(|before| self.done.contains(before))
            && !behind.iter().any(|behind| self.done.contains(*behind))
    }

    /// Puts an operation into the order with the first of its successors that was not tried, and says whether there is one.
    fn put(&mut self, operation: usize, mut alternatives: Vec<S::State>, is_forced: bool) -> bool {
        self.done.insert(operation);
        let Some(next) = self.take_untried(&mut alternatives) else {
            self.done.remove(operation);
            return false;
        };
        let before = std::mem::replace(&mut self.state, next);
        let earliest_before = self.earliest;
        self.order.push(Step { operation, before, earliest_before, alternatives, is_forced });
        self.earliest = self.earliest.max(self.search.called(operation));
        self.events.lift(operation);
        self.missing -= usize::from(self.search.returns[operation].is_some());
        self.cursor = self.events.first();
        if self.order.len() > self.longest.len() {
            self.longest.clear();
            self.longest.extend(self.order.iter().map(|step| self.search.operations[step.operation]));
        }
        true
    }

    fn take_untried(&mut self, alternatives: &mut Vec<S::State>) -> Option<S::State> {
        while let Some(state) = alternatives.pop() {
            if self.tried.insert((self.done.signature(), state.clone())) {
                return Some(state);
            }
        }
        None
    }

    /// Goes back to the last choice that has another way, and says whether there is one.
    fn retreat(&mut self) -> bool {
        while let Some(mut step) = self.order.pop() {
            if let Some(state) = self.take_untried(&mut step.alternatives) {
                self.state = state;
                self.order.push(step);
                self.cursor = self.events.first();
                return true;
            }
            self.done.remove(step.operation);
            self.events.put_back(step.operation);
            self.missing += usize::from(self.search.returns[step.operation].is_some());
            self.state = step.before;
            self.earliest = step.earliest_before;
            if !step.is_forced {
                self.cursor = self.events.after(self.events.call_of(step.operation));
                return true;
            }
        }
        false
    }
}

/// What happened at a place of the list.
#[derive(Clone, Copy)]
enum Event {
    Call(usize),
    Return(u64),
    End,
}

/// Calls and returns by time, of the operations that are not in the order.
struct Events {
    kinds: Vec<Event>,
    /// The list has a beginning of its own, at 0, and an end.
    next: Vec<usize>,
    previous: Vec<usize>,
    /// For each operation the places of its call and its return.
    places: Vec<(usize, Option<usize>)>,
}

impl Events {
    fn new<S: Specification>(search: &Search<'_, S>) -> Self {
        let calls =
            (0..search.operations.len()).map(|operation| (search.called(operation), false, operation));
        let returns = search.returns.iter().enumerate();
        let returns = returns.filter_map(|(operation, at)| at.map(|at| (at, true, operation)));
        let mut all: Vec<(u64, bool, usize)> = calls.chain(returns).collect();
        // At the same instant calls come first: such operations overlap.
        all.sort_unstable();
        let mut kinds = vec![Event::End];
        let mut places = vec![(0, None); search.operations.len()];
        for (at, is_return, operation) in all {
            if is_return {
                places[operation].1 = Some(kinds.len());
                kinds.push(Event::Return(at));
            } else {
                places[operation].0 = kinds.len();
                kinds.push(Event::Call(operation));
            }
        }
        kinds.push(Event::End);
        let next = (1..=kinds.len()).collect();
        let previous = (0..kinds.len()).map(|place| place.saturating_sub(1)).collect();
        Self { kinds, next, previous, places }
    }

    fn first(&self) -> usize {
        self.next[0]
    }

    fn at(&self, place: usize) -> Event {
        self.kinds[place]
    }

    fn after(&self, place: usize) -> usize {
        self.next[place]
    }

    fn call_of(&self, operation: usize) -> usize {
        self.places[operation].0
    }

    /// When the first of the operations returned.
    fn first_return(&self) -> u64 {
        let mut place = self.first();
        loop {
            match self.kinds[place] {
                Event::Call(_) => place = self.next[place],
                Event::Return(at) => return at,
                Event::End => return u64::MAX,
            }
        }
    }

    fn lift(&mut self, operation: usize) {
        let (call, end) = self.places[operation];
        for place in [Some(call), end].into_iter().flatten() {
            let (previous, next) = (self.previous[place], self.next[place]);
            self.next[previous] = next;
            self.previous[next] = previous;
        }
    }

    /// Undoes the last [`Events::lift`] that is not undone; what was lifted still knows its neighbours.
    fn put_back(&mut self, operation: usize) {
        let (call, end) = self.places[operation];
        for place in [end, Some(call)].into_iter().flatten() {
            let (previous, next) = (self.previous[place], self.next[place]);
            self.next[previous] = place;
            self.previous[next] = place;
        }
    }
}

/// A set of operations.
struct Done {
    words: Vec<u64>,
    /// Words before this one are full.
    full: usize,
    /// Words from this one on are empty.
    used: usize,
}

/// A set of operations, without the words at either end that are as they were bound to be.
#[derive(PartialEq, Eq, Hash)]
struct Signature {
    full: usize,
    words: Box<[u64]>,
}

impl Done {
    fn new(count: usize) -> Self {
        Self { words: vec![0; count.div_ceil(64)], full: 0, used: 0 }
    }

    fn insert(&mut self, operation: usize) {
        self.words[operation / 64] |= 1 << (operation % 64);
        self.used = self.used.max(operation / 64 + 1);
        while self.words.get(self.full) == Some(&u64::MAX) {
            self.full += 1;
        }
    }

    fn remove(&mut self, operation: usize) {
        self.words[operation / 64] &= !(1 << (operation % 64));
        self.full = self.full.min(operation / 64);
        while self.used > 0 && self.words[self.used - 1] == 0 {
            self.used -= 1;
        }
    }

    fn contains(&self, operation: usize) -> bool {
        self.words[operation / 64] & 1 << (operation % 64) != 0
    }

    fn signature(&self) -> Signature {
        Signature { full: self.full, words: self.words[self.full..self.used.max(self.full)].into() }
    }
}
