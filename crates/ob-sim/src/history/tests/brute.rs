//! The same question, answered by trying everything: every order, and every instant that could matter.

use std::collections::BTreeMap;

use super::*;
use crate::Rng;
use crate::history::{KvState, Specification, Window};

/// Whether some order explains the history, each operation at an instant of its own.
///
/// Slow, and unlike the search in every way: it gives instants to operations and to expiries one by one, and has no windows,
/// no memory of what was tried, no parts.
pub(super) fn is_linearizable(history: &[KvOperation]) -> bool {
    let state = KvSpec { margin: 0 }.initial();
    explore(history, &mut vec![false; history.len()], &state, 0)
}

fn explore(history: &[KvOperation], is_done: &mut [bool], state: &KvState, now: u64) -> bool {
    if history.iter().zip(&*is_done).all(|(operation, done)| *done || operation.returned.is_none()) {
        return true;
    }
    for index in 0..history.len() {
        let operation = &history[index];
        if is_done[index] {
            continue;
        }
        // Instants count only where something expires; for all else the earliest is as good as any.
        let first = now.max(operation.called);
        let last = match &operation.returned {
            Some(end) => end.at,
            None => first.min(operation.gone_by.unwrap_or(u64::MAX)),
        };
        let instants = if is_timed(history) { first..=last } else { first..=last.min(first) };
        for instant in instants {
            let mut successors = Vec::new();
            for command in with_fixed_expiry(&operation.command, instant) {
                let reply = operation.returned.as_ref().map(|end| &end.reply);
                let window = Window { earliest: instant, latest: instant };
                KvSpec { margin: 0 }.apply(state, &command, reply, window, &mut successors);
            }
            is_done[index] = true;
            let is_found = successors.iter().any(|state| explore(history, is_done, state, instant));
            is_done[index] = false;
            if is_found {
                return true;
            }
        }
    }
    false
}

fn is_timed(history: &[KvOperation]) -> bool {
    history.iter().any(|operation| SPEC.is_timed(&operation.command))
}

/// The command with every instant of expiry that the margin allows.
fn with_fixed_expiry(command: &Command, instant: u64) -> Vec<Command> {
    match command {
        Command::Set(key, value, Expiry::After(time)) => {
            let middle = instant + time;
            let all = middle.saturating_sub(MARGIN)..=middle + MARGIN;
            all.map(|at| Command::Set(key.clone(), value.clone(), Expiry::At(at))).collect()
        }
        other => vec![other.clone()],
    }
}

/// A few operations of a few clients with replies that may be anything that looks right.
fn arbitrary(random: &mut Rng, with_expiry: bool) -> Vec<KvOperation> {
    let mut clock: BTreeMap<u32, u64> = BTreeMap::new();
    let count = if with_expiry { 4 } else { random.range(2..7) };
    (0..count)
        .map(|_| {
            let client = random.below(3) as u32;
            let called = clock.get(&client).copied().unwrap_or(0) + random.below(3);
            let at = called + random.below(5);
            clock.insert(client, at + 1);
            let (command, reply) = arbitrary_command(random, with_expiry);
            if random.one_in(8) {
                lost(client, called, command)
            } else {
                did(client, called, at, command, reply)
            }
        })
        .collect()
}

fn arbitrary_command(random: &mut Rng, with_expiry: bool) -> (Command, Reply) {
    let key = ["a", "b"][random.index(2)];
    let text = ["1", "2"][random.index(2)];
    let seen = if random.one_in(3) { Reply::Nil } else { value(text) };
    let some = |random: &mut Rng| [None, Some("1"), Some("2")][random.index(3)];
    match random.below(if with_expiry { 4 } else { 9 }) {
        0 => (get(key), seen),
        1 if with_expiry => (set_for(key, text, random.range(1..5)), Reply::Done),
        1 | 2 => (set(key, text), Reply::Done),
        3 => (get(key), seen),
        4 => (delete(key), Reply::Integer(random.below(2) as i64)),
        5 => (increment(key), Reply::Integer(random.range(1..4) as i64)),
        6 => (get_many(&["a", "b"]), values(&[some(random), some(random)])),
        7 => (set_many(&[("a", text), ("b", text)]), Reply::Done),
        _ => (Command::GetAndDelete(bytes(key)), seen),
    }
}

#[test]
fn the_search_agrees_with_trying_everything() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..4000 {
        let history = arbitrary(&mut Rng::new(seed), false);
        let expected = is_linearizable(&history);
        let verdict = verdict(&history);
        assert_eq!(verdict.is_linearizable(), expected, "seed {seed}: {verdict}\n{history:#?}");
        if expected { good += 1 } else { bad += 1 }
    }
    assert!(good > 400 && bad > 400, "{good} good and {bad} bad ones");
}

#[test]
fn what_time_allows_is_never_called_wrong() {
    let (mut good, mut refused) = (0, 0);
    for seed in 0..3000 {
        let history = arbitrary(&mut Rng::new(seed), true);
        let verdict = verdict(&history);
        // The search knows instants as windows only, so it may pass what has no instants that fit together.
        if is_linearizable(&history) {
            assert!(verdict.is_linearizable(), "seed {seed}: {verdict}\n{history:#?}");
            good += 1;
        } else {
            refused += i32::from(!verdict.is_linearizable());
        }
    }
    assert!(good > 300 && refused > 300, "{good} good and {refused} refused");
}
