//! Operations that devices have no room for yet.
//!
//! ```text
//!   submit ─▶ │ backend 0: ops … │ long: account A … │ B … │ ─▶ next ─▶ device        refused: back to the front, until something is done
//!             │ backend 1: ops … │ long …                  │
//! ```
//!
//! They are kept here and not with the devices, so that a command can still be taken back: those of connections that end
//! are, and what they leave behind is no more than what a device has taken. Backends take turns, so a slow one holds
//! nobody up.
//!
//! Giving space back and writing zeros can keep a device busy for long: a backend gets one of those at a time, and other
//! commands do not wait behind them. Accounts take turns with them, so that nobody's many are in the way of another's few; those of
//! one account are done one command after the other. If its commands took turns too, all of a burst would be answered
//! in its last moments, when a host has lost its patience with the first.

use std::collections::{BTreeMap, VecDeque};

use ob_core::DeviceOp;

use super::control::BackendId;
use super::flight::FlightKey;
use super::shares::AccountId;

/// Backends that are remembered with the room that their lists took.
const BACKENDS_KEPT: usize = 64;

/// Whose an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) key: FlightKey,
    pub(super) account: AccountId,
    /// How many commands came before its command.
    pub(super) number: u64,
}

/// All that waits.
#[derive(Default)]
pub(super) struct Backlog {
    backends: BTreeMap<BackendId, Waiting>,
    /// Backends that have something and may take it.
    ready: VecDeque<BackendId>,
    /// Backends that had no room lately.
    full: Vec<BackendId>,
    len: usize,
}

#[derive(Default)]
struct Waiting {
    ops: VecDeque<(FlightKey, DeviceOp)>,
    long: Long,
    is_full: bool,
    is_ready: bool,
}

impl Waiting {
    fn has_next(&self) -> bool {
        !self.is_full && (!self.ops.is_empty() || self.long.has_next())
    }

    fn next(&mut self) -> Option<(FlightKey, DeviceOp)> {
        if !self.has_next() {
            return None;
        }
        // The long one first: there is at most one, so it holds nobody up, and it would wait for ever behind the others.
        self.long.next().or_else(|| self.ops.pop_front())
    }
}

/// Long operations for one backend.
#[derive(Default)]
struct Long {
    /// Those that wait, by account: the one whose turn it is first. Of each account in the order of their commands.
    accounts: VecDeque<(AccountId, VecDeque<(Owner, DeviceOp)>)>,
    /// The one that the device has.
    out: Option<Owner>,
}

impl Long {
    fn has_next(&self) -> bool {
        self.out.is_none() && !self.accounts.is_empty()
    }

    fn next(&mut self) -> Option<(FlightKey, DeviceOp)> {
        if self.out.is_some() {
            return None;
        }
        let (account, mut ops) = self.accounts.pop_front()?;
        let next = ops.pop_front();
        if !ops.is_empty() {
            self.accounts.push_back((account, ops));
        }
        let (owner, op) = next?;
        self.out = Some(owner);
        Some((owner.key, op))
    }

    /// Adds one to those of its account, whose turn comes when it comes.
    fn push(&mut self, owner: Owner, op: DeviceOp) {
        let at = self.accounts.iter().position(|(account, _)| *account == owner.account);
        let at = at.unwrap_or_else(|| {
            self.accounts.push_back((owner.account, VecDeque::new()));
            self.accounts.len() - 1
        });
        if let Some((_, ops)) = self.accounts.get_mut(at) {
            let before = ops.partition_point(|(other, _)| other.number < owner.number);
            ops.insert(before, (owner, op));
        }
    }

    /// Takes the one back that was given out: it is its account's turn still.
    fn put_back(&mut self, op: DeviceOp) {
        let Some(owner) = self.out.take() else { return };
        self.push(owner, op);
        if let Some(at) = self.accounts.iter().position(|(account, _)| *account == owner.account)
            && let Some(of_account) = self.accounts.remove(at)
        {
            self.accounts.push_front(of_account);
        }
    }

    fn retain(&mut self, is_wanted: impl Fn(FlightKey) -> bool) {
        for (_, ops) in &mut self.accounts {
            ops.retain(|(owner, _)| is_wanted(owner.key));
        }
        self.accounts.retain(|(_, ops)| !ops.is_empty());
    }

    fn len(&self) -> usize {
        self.accounts.iter().map(|(_, ops)| ops.len()).sum()
    }
}

impl Backlog {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether a device may take one now.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Adds one behind the others.
    pub(super) fn push(&mut self, backend: BackendId, owner: Owner, op: DeviceOp) {
        if self.backends.len() >= BACKENDS_KEPT && !self.backends.contains_key(&backend) {
            // Namespaces come and go; those that are gone have nothing here.
            self.backends
                .retain(|_, waiting| waiting.is_ready || waiting.is_full || waiting.long.out.is_some());
        }
        self.len += 1;
        let waiting = self.backends.entry(backend).or_default();
        match is_long(&op) {
            true => waiting.long.push(owner, op),
            false => waiting.ops.push_back((owner.key, op)),
        }
        self.wake(backend);
    }

    fn wake(&mut self, backend: BackendId) {
        if let Some(waiting) = self.backends.get_mut(&backend)
            && waiting.has_next()
            && !waiting.is_ready
        {
            waiting.is_ready = true;
            self.ready.push_back(backend);
        }
    }

    /// Takes the next one for a device.
    pub(super) fn next(&mut self) -> Option<(BackendId, FlightKey, DeviceOp)> {
        while let Some(backend) = self.ready.pop_front() {
            let Some(waiting) = self.backends.get_mut(&backend) else { continue };
            waiting.is_ready = false;
            let next = waiting.next();
            self.wake(backend);
            if let Some((key, op)) = next {
                self.len -= 1;
                return Some((backend, key, op));
            }
        }
        None
    }

    /// Takes one back that its device had no room for. Nothing more of this backend is given out before
    /// [`Backlog::retry`].
    pub(super) fn put_back(&mut self, backend: BackendId, key: FlightKey, op: DeviceOp) {
        self.len += 1;
        let waiting = self.backends.entry(backend).or_default();
        match is_long(&op) {
            true => waiting.long.put_back(op),
            false => waiting.ops.push_front((key, op)),
        }
        if !waiting.is_full {
            waiting.is_full = true;
            self.full.push(backend);
        }
    }

    /// Devices may have room again.
    pub(super) fn retry(&mut self) {
        while let Some(backend) = self.full.pop() {
            if let Some(waiting) = self.backends.get_mut(&backend) {
                waiting.is_full = false;
            }
            self.wake(backend);
        }
    }

    /// A device has done what a command gave it.
    pub(super) fn done(&mut self, backend: BackendId, key: FlightKey) {
        let Some(waiting) = self.backends.get_mut(&backend) else { return };
        if waiting.long.out.is_some_and(|owner| owner.key == key) {
            waiting.long.out = None;
            self.wake(backend);
        }
        // What had no room may have some now.
        if !self.full.is_empty() {
            self.retry();
        }
    }

    /// Drops the operations of commands that are not wanted any more.
    pub(super) fn retain(&mut self, is_wanted: impl Fn(FlightKey) -> bool) {
        for waiting in self.backends.values_mut() {
            waiting.ops.retain(|(key, _)| is_wanted(*key));
            waiting.long.retain(&is_wanted);
        }
        self.len = self.backends.values().map(|waiting| waiting.ops.len() + waiting.long.len()).sum();
    }
}

fn is_long(op: &DeviceOp) -> bool {
    matches!(op, DeviceOp::Discard { .. } | DeviceOp::WriteZeroes { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ob_core::Token;

    const ZEROS: DeviceOp = DeviceOp::WriteZeroes { offset: 0, len: 512 };

    fn key(number: u64) -> FlightKey {
        FlightKey::from_token(Token(number))
    }

    /// Its command is the one of that number, of the only account there is.
    fn owner(number: u64) -> Owner {
        of_account(1, number)
    }

    fn of_account(account: u64, number: u64) -> Owner {
        Owner { key: key(number), account: AccountId(account), number }
    }

    fn drain(backlog: &mut Backlog) -> Vec<(u32, u64)> {
        std::iter::from_fn(|| backlog.next()).map(|(backend, key, _)| (backend.0, key.token().0)).collect()
    }

    #[test]
    fn backends_take_turns_and_one_without_room_keeps_its_order() {
        let mut backlog = Backlog::default();
        for number in 0..6 {
            backlog.push(BackendId(number as u32 % 2), owner(number), DeviceOp::Flush);
        }
        let (backend, first, op) = backlog.next().unwrap();
        assert_eq!((backend, first), (BackendId(0), key(0)));
        backlog.put_back(backend, first, op);
        assert_eq!(backlog.len(), 6);
        assert_eq!(drain(&mut backlog), [(1, 1), (1, 3), (1, 5)]);
        assert!(!backlog.is_ready() && backlog.len() == 3);
        backlog.retry();
        assert_eq!(drain(&mut backlog), [(0, 0), (0, 2), (0, 4)]);
        assert_eq!(backlog.len(), 0);
    }

    #[test]
    fn one_long_operation_at_a_time_and_others_do_not_wait_behind_it() {
        let mut backlog = Backlog::default();
        for number in 0..3 {
            backlog.push(BackendId(0), owner(number), ZEROS);
        }
        backlog.push(BackendId(0), owner(3), DeviceOp::Flush);
        assert_eq!(drain(&mut backlog), [(0, 0), (0, 3)]);
        backlog.done(BackendId(0), key(3));
        assert!(!backlog.is_ready());
        backlog.done(BackendId(0), key(0));
        let (backend, second, op) = backlog.next().unwrap();
        assert_eq!(second, key(1));
        // Refused, it is not the one that the device has.
        backlog.put_back(backend, second, op);
        backlog.retry();
        assert_eq!(drain(&mut backlog), [(0, 1)]);
        backlog.retain(|wanted| wanted != key(2));
        backlog.done(BackendId(0), key(1));
        assert_eq!((drain(&mut backlog), backlog.len()), (vec![], 0));
    }

    /// Has a backend do what waits, each command in so many operations; which commands they were of.
    fn run_long(backlog: &mut Backlog, owners: &[Owner], parts: usize) -> Vec<u64> {
        let mut done = Vec::new();
        let mut left = vec![parts; owners.len()];
        while let Some((backend, key, op)) = backlog.next() {
            done.push(key.token().0);
            backlog.done(backend, key);
            let at = owners.iter().position(|owner| owner.key == key).unwrap();
            left[at] -= 1;
            if left[at] > 0 {
                backlog.push(backend, owners[at], op);
            }
        }
        assert_eq!((done.len(), backlog.len()), (parts * owners.len(), 0));
        done
    }

    #[test]
    fn long_commands_of_an_account_go_one_after_the_other_and_accounts_take_turns() {
        let mut backlog = Backlog::default();
        let alone = [owner(1), owner(2), owner(3)];
        for owner in alone {
            backlog.push(BackendId(0), owner, ZEROS);
        }
        assert_eq!(run_long(&mut backlog, &alone, 3), [1, 1, 1, 2, 2, 2, 3, 3, 3]);
        let several = [of_account(1, 1), of_account(1, 2), of_account(1, 3), of_account(2, 4)];
        for owner in several {
            backlog.push(BackendId(0), owner, ZEROS);
        }
        assert_eq!(
            run_long(&mut backlog, &several, 2),
            [1, 4, 1, 4, 2, 2, 3, 3],
            "nobody waits for all of another"
        );
        // One that the device has no room for loses nothing by it.
        for owner in several {
            backlog.push(BackendId(0), owner, ZEROS);
        }
        for _ in 0..3 {
            let (backend, key, op) = backlog.next().unwrap();
            assert_eq!(key, several[0].key);
            backlog.put_back(backend, key, op);
            backlog.retry();
        }
        assert_eq!(run_long(&mut backlog, &several, 1), [1, 4, 2, 3]);
    }

    #[test]
    fn backends_that_are_gone_are_forgotten() {
        let mut backlog = Backlog::default();
        for number in 0..1000 {
            backlog.push(BackendId(number), owner(u64::from(number)), DeviceOp::Flush);
            assert!(backlog.next().is_some() && backlog.backends.len() <= BACKENDS_KEPT);
        }
    }
}
