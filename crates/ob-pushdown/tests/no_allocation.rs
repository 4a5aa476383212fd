//! A plan that is run over a map has the card allocate nothing, from bytes to bytes. Alone in its process: it counts what the allocator does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

#[path = "../../ob-io/tests/counting/mod.rs"]
mod counting;
mod lab;

use std::time::Duration;

use counting::allocations;
use lab::support::HOST;
use lab::{DONE, Lab, OBEY, READ, body, header, script};
use ob_wire_nvme::pushdown::{Function, Run};
use ob_wire_nvme::{CommandId, DataPointer, NamespaceId};

const WARM: u64 = 100;
const ROUNDS: u64 = 1000;

#[test]
fn plans_are_run_without_an_allocation() {
    let mut lab = Lab::new();
    let io = lab.host(HOST, 9).io;
    let program = lab.load(io, "obey", OBEY).unwrap();
    // Two extents, so that reads are of two parts.
    let file = lab.map(io, (0, 1), 4096, &[(0, 0, 512), (512, 8192, 4096)]).unwrap();
    let orders = script(&[[READ, 0, 256, 1024], [READ, 0, 0, 4096], [DONE, 0, 0, 0]]);
    let request = body(&header(program, (0, 0, 1024)), &[(file, 1)], &orders);
    let plan = lab.number(io, Function::Prepare, &request).unwrap();
    let mut counted = 0;
    for round in 0..WARM + ROUNDS {
        let run = Function::Run(Run::new(plan, Some(512), &[0; 8]).unwrap());
        let entry = run.encode(CommandId(round as u16), NamespaceId(1));
        let entry = entry.with_data(DataPointer::Transport { len: 64 });
        let bytes = lab.rig.capsule(io, &entry, &[]);
        lab.rig.state(io).outbox.extend(bytes);
        // A tenant's programs have a share of a core, of time that passes.
        lab.rig.now = lab.rig.now + Duration::from_millis(1);
        let before = allocations();
        lab.run();
        if round >= WARM {
            counted += allocations() - before;
        }
        let answer = &mut lab.rig.state(io).inbox;
        assert!(answer.len() > 64, "round {round}: it is answered with {answer:?}");
        answer.clear();
        lab.rig.disk.log.clear();
    }
    assert_eq!(lab.functions.counts().answered, WARM + ROUNDS);
    assert_eq!(counted, 0, "in {ROUNDS} runs");
}
