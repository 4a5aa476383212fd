//! Histories of a store that does one thing at a time, and the same with a mistake in them.

use std::collections::BTreeMap;

use super::brute::is_linearizable;
use super::*;
use crate::Rng;
use crate::history::{KvState, Specification, Window};

/// What is simulated.
#[derive(Clone, Copy)]
struct Plan {
    clients: u32,
    operations: u64,
    keys: u64,
    /// One in so many operations never returns.
    lost: u64,
    with_expiry: bool,
}

/// Runs clients against a store that executes each command at one instant between call and return.
fn simulate(seed: u64, plan: Plan) -> Vec<KvOperation> {
    let mut random = Rng::new(seed);
    let mut history = Vec::new();
    // The operations under way, by the instant at which they take effect.
    let mut effects: BTreeMap<(u64, usize), Command> = BTreeMap::new();
    for client in 0..plan.clients {
        let mut now = random.below(10);
        for _ in 0..plan.operations {
            let effect = now + random.below(20);
            let at = effect + random.below(20);
            let command = command(&mut random, plan, history.len());
            effects.insert((effect, history.len()), command.clone());
            if random.one_in(plan.lost) {
                history.push(lost(client, now, command));
            } else {
                history.push(did(client, now, at, command, Reply::Done));
            }
            now = at + random.below(10);
        }
    }
    let spec = KvSpec { margin: 0 };
    let mut state = spec.initial();
    for ((effect, index), command) in effects {
        let operation = &mut history[index];
        if operation.returned.is_none() && random.one_in(2) {
            continue;
        }
        let mut successors = Vec::new();
        let window = Window { earliest: effect, latest: effect };
        let reply = reply_of(&spec, &state, &command, window);
        spec.apply(&state, &command, Some(&reply), window, &mut successors);
        state = successors.pop().expect("the reply is its own");
        if let Some(end) = &mut operation.returned {
            end.reply = reply;
        }
    }
    history
}

/// What the store answers: the one of all thinkable replies that it accepts.
fn reply_of(spec: &KvSpec, state: &KvState, command: &Command, window: Window) -> Reply {
    spec.replies(state, command, window).into_iter().next().expect("every command is answered")
}

fn command(random: &mut Rng, plan: Plan, unique: usize) -> Command {
    let key = random.below(plan.keys).to_string();
    let other = random.below(plan.keys).to_string();
    let text = unique.to_string();
    match random.below(16) {
        0..=4 => get(&key),
        5..=6 => set(&key, &text),
        7 if plan.with_expiry => set_for(&key, &text, random.range(5..60)),
        7 => Command::SetIfAbsent(bytes(&key), bytes(&text)),
        8 => delete(&key),
        9..=10 => increment(&key),
        11 => append(&key, "x"),
        12..=13 => get_many(&[&key, &other]),
        14 => set_many(&[(&key, &text), (&other, &text)]),
        _ => Command::GetAndDelete(bytes(&key)),
    }
}

const SMALL: Plan = Plan { clients: 3, operations: 2, keys: 2, lost: 8, with_expiry: false };
const MIDDLE: Plan = Plan { clients: 5, operations: 30, keys: 3, lost: 20, with_expiry: false };
const LARGE: Plan = Plan { clients: 10, operations: 200, keys: 4, lost: 100, with_expiry: false };

#[test]
fn what_an_atomic_store_does_passes() {
    for seed in 0..200 {
        for with_expiry in [false, true] {
            let history = simulate(seed, Plan { with_expiry, ..MIDDLE });
            let verdict = verdict(&history);
            assert!(verdict.is_linearizable(), "seed {seed}, expiry {with_expiry}: {verdict}");
        }
    }
}

#[test]
fn ten_clients_with_two_hundred_operations_each_are_few_steps() {
    for seed in 0..4 {
        for with_expiry in [false, true] {
            let history = simulate(seed, Plan { with_expiry, ..LARGE });
            let verdict = check(&SPEC, &history, Limits { steps_max: 200_000 });
            assert!(verdict.is_linearizable(), "seed {seed}, expiry {with_expiry}: {verdict}");
        }
    }
}

/// Gives one operation the reply of another, or an instant that it did not have.
fn mutate(history: &mut [KvOperation], random: &mut Rng) {
    let (one, other) = (random.index(history.len()), random.index(history.len()));
    let reply = history[other].returned.as_ref().map(|end| end.reply.clone());
    if random.one_in(2) {
        if let (Some(end), Some(reply)) = (&mut history[one].returned, reply) {
            end.reply = reply;
        }
    } else {
        let operation = &mut history[one];
        let later = random.below(60);
        operation.called += later;
        if let Some(end) = &mut operation.returned {
            end.at += later;
        }
    }
}

#[test]
fn mutations_are_judged_as_by_trying_everything() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..3000 {
        let mut random = Rng::new(seed).fork("mutation");
        let mut history = simulate(seed, SMALL);
        mutate(&mut history, &mut random);
        let expected = is_linearizable(&history);
        let verdict = verdict(&history);
        assert_eq!(verdict.is_linearizable(), expected, "seed {seed}: {verdict}\n{history:#?}");
        if expected { good += 1 } else { bad += 1 }
    }
    assert!(good > 300 && bad > 300, "{good} good and {bad} bad ones");
}

#[test]
fn a_stale_read_in_a_large_history_is_found_and_cut_out() {
    for seed in 0..4 {
        let mut history = simulate(seed, Plan { lost: u64::MAX, ..LARGE });
        // A value that was overwritten long ago comes back.
        let is_set =
            |operation: &&KvOperation| matches!(&operation.command, Command::Set(key, ..) if **key == *b"0");
        let sets: Vec<KvOperation> = history.iter().filter(is_set).cloned().collect();
        let middle = sets.iter().map(|set| set.called).max().unwrap() / 2;
        let old = sets.iter().find(|set| set.called < middle / 4).unwrap();
        let Command::Set(_, old, _) = &old.command else { unreachable!("sets are sets") };
        let is_get = |operation: &KvOperation| operation.command == get("0") && operation.called > middle;
        let index = history.iter().position(is_get).unwrap();
        history[index].returned.as_mut().unwrap().reply = Reply::Value(old.clone());
        match verdict(&history) {
            Verdict::Violated(violation) => {
                assert_eq!(violation.culprit, index, "seed {seed}");
                assert!(violation.operations.len() < history.len());
            }
            other => panic!("seed {seed}: {other}"),
        }
    }
}
