//! Local calls, frames, and fuel.

use super::*;
use crate::call::Violation;
use crate::world::Region;

#[test]
fn a_callee_has_its_own_frame_and_leaves_its_callers_registers() {
    let text = "
        r6 = 1
        r7 = 2
        r8 = 3
        r9 = 4
        *(u64 *)(r10 - 8) = 5
        r1 = 10
        r2 = 20
        r3 = 30
        r4 = 40
        r5 = 50
        call inner
        r1 = *(u64 *)(r10 - 8)
        r0 += r1
        r0 += r6
        r0 += r7
        r0 += r8
        r0 += r9
        exit
    inner:
        r6 = 100
        r7 = 100
        r8 = 100
        r9 = 100
        *(u64 *)(r10 - 8) = 100
        *(u64 *)(r10 - 512) = 100
        r0 = r1
        r0 += r2
        r0 += r3
        r0 += r4
        r0 += r5
        exit";
    assert_eq!(run(text, &Setup::new()).outcome, Ok(150 + 5 + 10));
}

/// Eight frames, each of which writes into those of all callers.
const DEEP: &str = "
        r6 = *(u64 *)(r1 + 0)
        r1 = r10
        r1 += r6
        r2 = 1
        call second
        exit
    second:
        *(u64 *)(r1 - 8) = r2
        r2 += 1
        call third
        exit
    third:
        r6 = r1
        r2 += 1
        r1 = r10
        call fourth
        r1 = *(u64 *)(r10 - 8)
        r0 += r1
        *(u64 *)(r6 - 16) = r0
        r1 = *(u64 *)(r6 - 16)
        r0 += r1
        exit
    fourth:
        r2 += 1
        call fifth
        exit
    fifth:
        r2 += 1
        call sixth
        exit
    sixth:
        r2 += 1
        call seventh
        exit
    seventh:
        r2 += 1
        call eighth
        exit
    eighth:
        *(u64 *)(r1 - 8) = r2
        r0 = r2
        exit";

#[test]
fn eight_frames_are_there_and_callers_are_reached_by_pointers() {
    let zero = Setup { number: 0, ..Setup::new() };
    assert_eq!(run(DEEP, &zero).outcome, Ok(28));
    let kept = Setup { bounds: Bounds::Proven, options: Options { keep_checks: true }, ..zero.clone() };
    assert_eq!(run(DEEP, &kept).outcome, Ok(28));
    let bare = Setup { bounds: Bounds::Proven, ..zero };
    assert_eq!(run(DEEP, &bare).outcome, Ok(28));
}

#[test]
fn a_check_in_a_callee_knows_the_callers_frame() {
    for (number, is_inside) in [(0, true), (-496, true), (-497, false), (1, false), (8, false), (-504, false)]
    {
        let setup = Setup { number: number as u64, ..Setup::new() };
        let outcome = run(DEEP, &setup).outcome;
        assert_eq!(outcome.is_ok(), is_inside, "{number} {outcome:?}");
        if let Err(CallError::Fault(Fault { what: FaultKind::OutOfBounds { region, offset, len }, .. })) =
            outcome
        {
            let at = if number == -497 { -513 } else { number - 8 };
            let at = if number == -504 { -512 - 8 } else { at };
            assert_eq!((region, offset, len), (Region::Stack, at, 8));
        }
    }
}

#[test]
fn a_fault_below_ends_the_whole_call_and_keeps_what_was_written() {
    let text = "
        r6 = *(u64 *)(r1 + 32)
        *(u8 *)(r6 + 0) = 1
        r2 = *(u64 *)(r1 + 0)
        r1 = r6
        call second
        *(u8 *)(r6 + 1) = 9
        exit
    second:
        *(u8 *)(r1 + 2) = 2
        r1 += r2
        call third
        exit
    third:
        *(u8 *)(r1 + 3) = 3
        r0 = 4
        exit";
    assert_eq!(run(text, &Setup { number: 5, ..Setup::new() }).outcome, Ok(4));
    let after = run(text, &Setup { number: 61, ..Setup::new() });
    assert_eq!(
        after.outcome,
        fault(11, FaultKind::OutOfBounds { region: Region::Scratch, offset: 64, len: 1 })
    );
    assert_eq!(after.scratch[..3], [1, Setup::new().scratch[1], 2]);
}

#[test]
fn fuel_ends_a_call_wherever_the_interpreter_says() {
    let text = "
        r6 = *(u64 *)(r1 + 0)
        r7 = 0
    again:
        r1 = r6
        call inner
        r7 += r0
        r6 -= 1
        if r6 != 0 goto again
        r1 = read_only + 0 ll
        r2 = 9
        r3 = r10
        r3 += -8
        r4 = 8
        call 5
        r0 = r7
        exit
    inner:
        r0 = 0
    around:
        r0 += 3
        r1 -= 1
        if r1 s> 0 goto around
        exit
        .read_only 808080808080808001";
    let enough = run(text, &Setup::new());
    assert_eq!(enough.outcome, Ok(3 * 28));
    let cost = Setup::new().fuel - enough.fuel;
    let mut places = std::collections::BTreeSet::new();
    let setups: Vec<Setup> = (0..=cost).map(|fuel| Setup { fuel, ..Setup::new() }).collect();
    for (Setup { fuel, .. }, after) in setups.iter().zip(run_all(text, &setups)) {
        if *fuel == cost {
            assert_eq!((after.outcome, after.fuel), (Ok(3 * 28), 0));
        } else if let Err(CallError::Fault(Fault { at, what })) = after.outcome {
            assert_eq!(what, FaultKind::OutOfFuel);
            places.insert(at);
        } else {
            panic!("{:?} with {fuel} of {cost}", after.outcome);
        }
    }
    // At entry, at the call, at both back-edges, at the helper.
    assert_eq!(places.into_iter().collect::<Vec<_>>(), [0, 3, 6, 12, 18]);
}

#[test]
fn a_program_without_end_ends() {
    let after = run("r0 = 0\nagain:\nr0 += 1\ngoto again", &Setup { fuel: 1001, ..Setup::new() });
    assert_eq!((after.outcome, after.fuel), (fault(2, FaultKind::OutOfFuel), 0));
}

#[test]
fn what_the_verifier_did_not_reach_is_a_fault() {
    let text = "
        r2 = *(u64 *)(r1 + 0)
        if r2 == 7 goto known
        r3 = *(u64 *)(r1 + 32)
        r0 = *(u64 *)(r3 + 0)
        exit
    known:
        r0 = 1
        exit";
    let compiled = compile_observed(text, &Setup::new());
    assert_eq!(call(&Setup::new(), |call| compiled.run(call)).outcome, Ok(1));
    let unknown = Setup { number: 8, ..Setup::new() };
    let outcome = call(&unknown, |call| compiled.run(call)).outcome;
    assert_eq!(outcome, fault(2, FaultKind::Unproven(Violation::NoInstruction)));
}

#[test]
fn variants_of_a_function_go_to_different_memory() {
    use crate::verdict::Variant;

    // The same function reads a byte of the data and of the scratch, at an offset that is checked for each.
    let program = program(
        "
        r6 = r1
        r2 = *(u64 *)(r1 + 0)
        r1 = *(u64 *)(r1 + 16)
        call byte
        r7 = r0
        r2 = *(u64 *)(r6 + 0)
        r1 = *(u64 *)(r6 + 32)
        call byte
        r0 <<= 8
        r0 |= r7
        exit
    byte:
        r1 += r2
        r0 = *(u8 *)(r1 + 0)
        exit",
    );
    let context = Access::new(Region::Context, Bounds::Proven);
    let byte_of = |region| {
        let mut variant = Variant::new(1);
        variant.accesses.insert(12, Access::new(region, Bounds::Checked));
        variant
    };
    let mut first = Variant::new(0);
    first.accesses = [1, 2, 5, 6].map(|at| (at, context)).into();
    first.calls = [(3, 1), (7, 2)].into();
    let verified = Verified::new(
        Arc::clone(&program),
        HOOK,
        vec![first, byte_of(Region::Data), byte_of(Region::Scratch)],
    );
    let compiled = compile(&verified, Options { keep_checks: true }).unwrap();
    for number in [0, 7, 63, 64, 99, 100, u64::MAX] {
        let setup = Setup { number, ..Setup::new() };
        let (expected, _) = observe(&program, &setup);
        assert_eq!(call(&setup, |call| compiled.run(call)), expected, "{number}");
    }
}

#[test]
fn code_is_shared_by_threads_and_outlives_what_it_was_made_of() {
    let compiled = compile_observed("r0 = *(u64 *)(r1 + 0)\nr0 *= 3\nexit", &Setup::new());
    let threads: Vec<_> = (0..4u64)
        .map(|number| {
            let compiled = compiled.clone();
            std::thread::spawn(move || {
                let setup = Setup { number, ..Setup::new() };
                (0..100).all(|_| call(&setup, |call| compiled.run(call)).outcome == Ok(3 * number))
            })
        })
        .collect();
    drop(compiled);
    assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
}

/// A callee that touches no memory still has to know where its caller's frame is, to compare what points there.
#[test]
fn a_callee_compares_pointers_to_its_callers_frame() {
    let text = |far: &str, test: &str| {
        format!(
            "
        r1 = r10
        r2 = r10
        r3 = {far} ll
        call inner
        exit
    inner:
        r1 += r3
        r0 = 0
        if r1 {test} r2 goto yes
        exit
    yes:
        r0 = 1
        exit"
        )
    };
    for far in ["0x7fffffffffff0000", "0x7fffffffffffffff", "0x8000000000000000", "-1", "0", "1"] {
        for test in [">", ">=", "<", "<=", "s>", "s<", "==", "!="] {
            run(&text(far, test), &Setup::new());
        }
    }
    assert_eq!(run(&text("0x7fffffffffff0000", ">"), &Setup::new()).outcome, Ok(1));
}
