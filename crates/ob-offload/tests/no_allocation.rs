//! Calls of programs allocate nothing, whatever becomes of them. Alone in its process: it counts what the allocator does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

#[path = "../../ob-io/tests/counting/mod.rs"]
mod counting;
mod support;

use counting::allocations;
use ob_ebpf::hooks::offload::{CACHE, INVALIDATE, PREDICATE};
use ob_offload::{Application, Candidates, Changes, Requests, Standing};
use support::{at, entry, rig};

const ROUNDS: u64 = 1000;

#[test]
fn programs_that_answer_and_those_that_are_stopped_allocate_nothing() {
    let rig = rig();
    let stopped = format!("r2 = *(u64 *){}\nr0 = *(u8 *)(r2 + 100)\nexit\n", at(&PREDICATE, "data"));
    // Two records, of which the second is none: so the list is as it was.
    let records = format!(
        "r2 = *(u64 *){scratch}\nr3 = 1\n*(u32 *)(r2 + 8) = r3\n*(u32 *)(r2 + 12) = r3\n*(u64 *){settled} = r3\nr3 = 2\n\
         *(u64 *){candidates} = r3\nr0 = 0\nexit\n",
        scratch = at(&CACHE, "scratch"),
        settled = at(&CACHE, "settled_at"),
        candidates = at(&CACHE, "candidates"),
    );
    let keys = format!(
        "r2 = *(u64 *){scratch}\nr3 = 2\n*(u32 *)(r2 + 0) = r3\n*(u32 *)(r2 + 40) = r3\n*(u64 *){keys} = r3\nr0 = 0\nexit\n",
        scratch = at(&INVALIDATE, "scratch"),
        keys = at(&INVALIDATE, "keys"),
    );
    rig.put(vec![entry(&PREDICATE, &stopped), entry(&CACHE, &records), entry(&INVALIDATE, &keys)]);
    let (mut requests, mut candidates, mut found) = (Requests::default(), Candidates::default(), Vec::new());
    let mut round = || {
        let before = allocations();
        rig.service.predicate(b"message", Standing(1), &mut requests);
        rig.service.cache(b"the secret store", 3, 4096, b"abcd", &mut candidates);
        found.clear();
        let changes = rig.service.invalidate(3, 0, 10, &mut found);
        let counted = allocations() - before;
        assert_eq!((changes, found.len()), (Changes::Keys, 2));
        counted
    };
    round();
    assert_eq!((0..ROUNDS).map(|_| round()).sum::<u64>(), 0, "in {ROUNDS} rounds");
    assert_eq!(rig.counts(&PREDICATE).faults, ROUNDS + 1);
    assert_eq!(rig.counts(&CACHE).wrong, ROUNDS + 1);
    assert!(rig.slot.counts().last_fault.unwrap().starts_with("`predicate`: instruction 1: "));
}
