//! The host's side of a port allocates nothing for a message, its plan and its completion. Alone in its process: it counts what the
//! allocator does.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

#[path = "../../ob-io/tests/counting/mod.rs"]
mod counting;

use std::time::Duration;

use counting::allocations;
use ob_core::{GateId, LockId, TierId};
use ob_ring::{AreaError, PushError, ReceiveError};
use ob_split::host::{HostEnds, Port, PortEvent, PortOptions, Taken, Ticket};
use ob_split::wire::{
    Completion, CompletionStatus, Definition, Descriptor, Done, HEADER_LEN, Handle, HeaderEntry,
    MessageBuilder, Plan, PlanEntry, PlanId, Slot, Step, Welcome, kind,
};

const TOGETHER: u32 = 16;
const PLAN: PlanId = PlanId(1);

/// A card that has said all that it will: each message once, in turn.
struct Script {
    messages: Vec<Vec<u8>>,
    next: usize,
    /// From which message on it begins anew.
    again: usize,
    /// Messages that may be received now.
    ready: usize,
    pushed: usize,
    /// Of how many pushes the ring has room for one only.
    full: usize,
}

impl HostEnds for Script {
    fn push(&mut self, _: &[u8]) -> Result<(), PushError> {
        self.pushed += 1;
        if self.pushed.is_multiple_of(self.full) { Err(PushError::Retry) } else { Ok(()) }
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<Option<Taken>, ReceiveError> {
        if self.ready == 0 {
            return Ok(None);
        }
        self.ready -= 1;
        let message = &self.messages[self.next];
        into[..message.len()].copy_from_slice(message);
        self.next = if self.next + 1 == self.messages.len() { self.again } else { self.next + 1 };
        Ok(Some(Taken { inline_len: message.len(), payload_len: 0 }))
    }

    fn register(&mut self, _: bool) -> Ticket {
        // What is ready is whatever a turn may hear.
        self.ready += 1;
        Ticket { responses: 0, room: None }
    }

    fn sleep(&mut self, _: Ticket, _: Option<Duration>) {}

    fn area_lens(&self) -> (u64, u64) {
        (0, 0)
    }

    fn copy_out(&self, _: u64, _: &mut [u8]) -> Result<(), AreaError> {
        Err(AreaError::OutOfArea)
    }

    fn copy_in(&self, _: u64, _: &[u8]) -> Result<(), AreaError> {
        Err(AreaError::OutOfArea)
    }
}

fn script() -> Script {
    let mut builder = MessageBuilder::default();
    let welcome = Welcome {
        engines: 0,
        payload_max: 1 << 20,
        gate: GateId(1),
        handles_max: 64,
        plans_max: 64,
        parked: 0,
        channels_max: 1,
        tier: TierId(1),
        lock: LockId([0; 16]),
    };
    builder.welcome(&welcome, &[]);
    let welcome = builder.finish(0, 0).to_vec();
    builder.begin(kind::HEADERS);
    for number in 0..TOGETHER {
        let handle = Handle(number);
        let descriptor = Descriptor { handle, length: 4096, front: 1, was_parked: false, was_sent: false };
        assert!(builder.push(&HeaderEntry::new([1; HEADER_LEN], descriptor)));
    }
    let headers = builder.finish(0, 0).to_vec();
    builder.begin(kind::DONE);
    for number in 0..TOGETHER {
        let (handle, status) = (Handle(number), CompletionStatus::Good);
        let completion =
            Completion { handle, status, has_more: false, bad_members: 0, units: 1, offset: 1, word: 1 };
        assert!(builder.push_done(&Done { completion, reply: None }));
    }
    let done = builder.finish(0, 0).to_vec();
    Script { messages: vec![welcome, headers, done], next: 0, again: 1, ready: 1, pushed: 0, full: 5 }
}

#[test]
fn a_message_its_plan_and_its_completion_allocate_nothing() {
    let mut port = Port::open(script(), &PortOptions::default()).unwrap();
    assert!(matches!(port.next_event(), Ok(Some(PortEvent::Welcome(_)))));
    let plan = Plan::new(vec![Step::Answer { payload: None }]).unwrap();
    port.define(&Definition::new(PLAN, plan, 16, 0).unwrap()).unwrap();
    let (mut before, mut done) = (0, 0);
    for round in 0..200 {
        if round == 20 {
            before = allocations();
        }
        port.grant(TOGETHER).unwrap();
        port.flush().unwrap();
        while port.wants_room() {
            port.flush().unwrap();
        }
        let _ = port.register();
        for _ in 0..TOGETHER {
            let Some(PortEvent::Header(header)) = port.next_event().unwrap() else { panic!() };
            let handle = header.descriptor().handle;
            port.post(&PlanEntry { plan: PLAN, argument: 0, slot: Slot(0), handle, arguments: &[0; 8] })
                .unwrap();
        }
        port.flush().unwrap();
        let _ = port.register();
        while let Some(event) = port.next_event().unwrap() {
            assert!(matches!(event, PortEvent::Done(_)));
            done += 1;
        }
    }
    assert_eq!((done, allocations()), (200 * TOGETHER, before));
}
