//! Several ports of a card, which have one gate: what their hosts may answer, and what ends at one of them.

#![allow(clippy::unwrap_used)] // A test stops at the first surprise.

mod card_rig;

use std::time::Duration;

use card_rig::{ANSWER, Rig, Said, config, definitions, filler, hello};
use ob_core::GateId;
use ob_split::card::SharedGate;
use ob_split::wire::{CompletionStatus, Gate, Hello, RefusedCode, kind};

/// A host comes by a port, with a gate that it has from another.
fn join(rig: &mut Rig, gate: Option<GateId>) {
    rig.open(64 << 10);
    rig.credit = 16;
    rig.say(kind::HELLO, &Hello { gate, ..hello() });
    rig.run();
    if rig.card.gate().is_some() {
        definitions().iter().for_each(|definition| rig.define(definition));
        rig.run();
    }
}

/// Two ports of one host, and its gate.
fn two() -> (Rig, Rig, SharedGate) {
    let gate = SharedGate::default();
    let (mut first, mut other) = (Rig::new(config()), Rig::new(config()));
    first.card.share_gate(&gate);
    other.card.share_gate(&gate);
    join(&mut first, None);
    let id = first.heard.welcome[0].gate;
    join(&mut other, Some(id));
    assert_eq!((other.heard.welcome[0].gate, other.card.gate()), (id, Some(id)));
    (first, other, gate)
}

#[test]
fn both_answer_by_the_gate_that_the_first_was_given() {
    let (mut first, mut other, _) = two();
    for rig in [&mut first, &mut other] {
        let (key, handle) = rig.arrived(&filler(1, 512), 0);
        rig.post(ANSWER, 0, 0, handle, &[]);
        rig.run();
        assert_eq!(rig.answers(), [(key, Said::Status(0))]);
    }
    // What the host is told at one of them holds at both.
    first.say(kind::GATE, &Gate::Prepare { number: 1 });
    first.run();
    let (key, handle) = other.arrived(&filler(2, 512), 0);
    other.post(ANSWER, 0, 0, handle, &[]);
    other.run();
    assert_eq!((other.answers(), other.done()[1].0.status), (vec![], CompletionStatus::Withheld));
    first.say(kind::GATE, &Gate::Extend { number: 1, milliseconds: 1000 });
    first.run();
    other.post(ANSWER, 0, 0, handle, &[]);
    other.run();
    assert_eq!(other.answers(), [(key, Said::Status(0))]);
    other.pass(Duration::from_secs(2));
    let (_, handle) = other.arrived(&filler(3, 512), 0);
    other.post(ANSWER, 0, 0, handle, &[]);
    other.run();
    assert_eq!(other.answers(), [], "it is late");
    assert!(first.closed.is_none() && other.closed.is_none());
}

/// The host is gone at one port: at the other it may answer nothing, whatever it says there, and its group is closed.
#[test]
fn what_ends_at_one_port_ends_at_both() {
    for is_first in [false, true] {
        let (mut first, mut other, _) = two();
        let (lost, left) = if is_first { (&mut first, &mut other) } else { (&mut other, &mut first) };
        let (key, handle) = left.arrived(&filler(1, 512), 0);
        lost.detach();
        left.post(ANSWER, 0, 0, handle, &[]);
        left.run();
        assert_eq!(left.answers(), []);
        assert!(left.closed.is_some() && left.group.is_none(), "its host is sent away");
        // By the gate that is closed nobody comes in; by a new one both do, and what was left is answered.
        join(lost, Some(GateId(1 << 32 | 1)));
        assert_eq!(lost.heard.refused, [RefusedCode::GateClosed]);
        lost.detach();
        join(left, None);
        let id = left.heard.welcome[1].gate;
        join(lost, Some(id));
        let handle = left.heard.headers.last().unwrap().descriptor().handle;
        left.post(ANSWER, 0, 0, handle, &[]);
        left.run();
        assert_eq!(left.answers(), [(key, Said::Status(0))]);
    }
}

/// Another host takes the first port while the one before has the other: that one has nothing to say any more.
#[test]
fn a_new_gate_closes_the_one_before_at_all_ports() {
    let (mut first, mut other, _) = two();
    let (_, handle) = other.arrived(&filler(1, 512), 0);
    first.detach();
    join(&mut first, None);
    other.post(ANSWER, 0, 0, handle, &[]);
    other.run();
    assert_eq!(other.answers(), []);
    assert!(other.group.is_none());
    let (key, handle) = first.arrived(&filler(2, 512), 0);
    first.post(ANSWER, 0, 0, handle, &[]);
    first.run();
    assert_eq!(
        first.answers(),
        [(key, Said::Status(0))],
        "the end of the old one closes nothing of the new one's"
    );
}
