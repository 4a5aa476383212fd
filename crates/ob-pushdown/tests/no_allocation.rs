//! A plan that is run over a map has the card allocate nothing, from bytes to bytes, and a client folds a range without keeping it. Alone in its process: it counts what the allocator does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

#[path = "../../ob-io/tests/counting/mod.rs"]
mod counting;
mod lab;

use std::time::Duration;

use counting::{allocations, take_largest};
use lab::remote::Nobody;
use lab::support::HOST;
use lab::{DONE, Lab, OBEY, READ, body, header, script};
use ob_nvme::initiator::block_on;
use ob_pushdown::btree::{BTree, BTreeOptions, BulkLoad, Filter, Pages, Shape, VALUE_LEN};
use ob_pushdown::client::Session;
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

struct Here(Vec<u8>);

impl Pages for Here {
    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        let rest = self.0.get(offset as usize..).unwrap_or_default();
        Ok(rest[..len.min(rest.len())].to_vec())
    }
}

#[test]
fn ordinary_reads_fold_a_range_without_keeping_it() {
    let keys = 20_000_u64;
    let mut bytes = Vec::new();
    let value = |number: u64| {
        let mut value = [0; VALUE_LEN];
        value[..8].copy_from_slice(&number.to_le_bytes());
        value
    };
    BulkLoad::new(Shape::new(keys, 31).unwrap(), |number| number, value).write(&mut bytes).unwrap();
    block_on(async {
        let session = Session::begin(Nobody, NamespaceId(1)).await.unwrap();
        let open = BTree::open(&session, session.named("tree"), Here(bytes), BTreeOptions::default());
        let tree = open.await.unwrap();
        take_largest();
        let filter = Filter { field: 0, low: 0, high: u64::MAX };
        let found = tree.aggregate(0, u64::MAX, filter).await.unwrap();
        let largest = take_largest();
        assert_eq!((found.count, found.sum), (keys, keys * (keys - 1) / 2));
        assert_eq!(tree.counts().ordinary, 1);
        assert!(largest <= 4096, "{largest} bytes at once, for the values of a leaf");
        // What is asked for is kept, of course, which shows that this would be seen.
        tree.range(0, u64::MAX, usize::MAX).await.unwrap();
        assert!(take_largest() > 1 << 20);
    });
}
