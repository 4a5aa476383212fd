//! Calls of helpers: their results, and what is checked before.

use super::*;
use crate::world::{HELPER_LEN_MAX, KEY_LEN_MAX, Region};

/// Runs a call with addresses that are offset by the context's number, for every edge.
fn check_edges(text: &str, inside: std::ops::RangeInclusive<i64>) {
    let numbers =
        [0, 1, -1, 2, 44, 45, 54, 55, 56, 57, 63, 64, 65, 90, 91, 92, 99, 100, 101, i64::MIN, i64::MAX];
    for (number, After { outcome, .. }) in numbers.into_iter().zip(run_all(text, &with_numbers(&numbers))) {
        assert_eq!(outcome.is_ok(), inside.contains(&number), "{number}: {outcome:?}");
    }
}

#[test]
fn checksums_are_of_ranges_within_their_region() {
    let text = "
        r6 = *(u64 *)(r1 + 0)
        r2 = *(u64 *)(r1 + 16)
        r2 += r6
        r1 = 5
        r3 = 9
        call 3
        exit";
    check_edges(text, 0..=91);
    let empty = text.replace("r3 = 9", "r3 = 0");
    check_edges(&empty, 0..=100);
}

#[test]
fn copies_may_overlap_and_stay_in_bounds() {
    let text = "
        r6 = *(u64 *)(r1 + 0)
        r3 = *(u64 *)(r1 + 32)
        r1 = r3
        r1 += r6
        r2 = 8
        r4 = 20
        call 2
        exit";
    check_edges(text, 0..=56);
    // The other way, from where the number says.
    check_edges(&text.replace("r1 = r3\n        r1 += r6", "r1 = r3\n r3 += r6"), 0..=44);
}

#[test]
fn lookups_find_values_and_a_key_may_lie_in_the_last_one() {
    let text = "
        r6 = *(u64 *)(r1 + 0)
        *(u64 *)(r10 - 8) = r6
        r1 = r10
        r1 += -8
        r2 = 8
        call 1
        if r0 == 0 goto nothing
        r6 = r0
        r1 = r0
        r1 += 3
        r2 = 20
        call 1
        if r0 == 0 goto nothing
        r1 = *(u64 *)(r0 + 0)
        r0 = *(u64 *)(r6 + 16)
        r0 ^= r1
        exit
    nothing:
        r0 = 77
        exit";
    assert_eq!(run(text, &Setup { number: 0, ..Setup::new() }).outcome, Ok(77));
    assert!(run(text, &Setup { number: 0x0102_0304_0506_0708, ..Setup::new() }).outcome.unwrap() != 77);
}

#[test]
fn comparisons_have_a_sign() {
    for (number, expected) in [(0u64, 0i64), (1, 1), (u64::MAX >> 1, 1)] {
        let text = "
            r6 = *(u64 *)(r1 + 0)
            *(u64 *)(r10 - 8) = r6
            *(u64 *)(r10 - 16) = 0
            r1 = r10
            r1 += -8
            r3 = r10
            r3 += -16
            r2 = 8
            r4 = 8
            call 4
            r7 = r0
            r2 = 7
            r1 = r10
            r1 += -8
            r3 = r10
            r3 += -8
            r4 = 8
            call 4
            r0 <<= 8
            r0 += r7
            exit";
        let after = run(text, &Setup { number, ..Setup::new() });
        assert_eq!(after.outcome, Ok(((-1i64 << 8) + expected) as u64));
    }
}

#[test]
fn varints_are_read_and_may_be_put_where_they_were() {
    let text = "
        r6 = *(u64 *)(r1 + 0)
        *(u64 *)(r10 - 8) = r6
        r1 = r10
        r1 += -8
        r2 = 8
        r3 = r1
        r4 = 8
        call 5
        r1 = *(u64 *)(r10 - 8)
        r1 <<= 8
        r0 |= r1
        exit";
    assert_eq!(run(text, &Setup { number: 0xffff_02ac, ..Setup::new() }).outcome, Ok(300 << 8 | 2));
    assert_eq!(run(text, &Setup { number: u64::MAX, ..Setup::new() }).outcome, Ok(0));
}

#[test]
fn the_log_hears_two_numbers() {
    let after = run("r1 = 5\nr2 = -1\ncall 6\nexit", &Setup::new());
    assert_eq!((after.outcome, after.log), (Ok(0), vec![(5, u64::MAX)]));
}

#[test]
fn lengths_are_compared_before_fuel_and_fuel_before_bounds() {
    let text = "
        r6 = *(u64 *)(r1 + 0)
        r3 = *(u64 *)(r1 + 16)
        r1 = *(u64 *)(r1 + 32)
        r1 += 100
        r2 = 8
        r4 = r6
        call 2
        exit";
    let max = HELPER_LEN_MAX;
    let long = |len: u64| FaultKind::RangeTooLong { helper: Helper::Copy, argument: 3, len, max };
    for len in [u64::from(max) + 1, u64::MAX, 1 << 32] {
        let after = run(text, &Setup { number: len, ..Setup::new() });
        assert_eq!(after.outcome, fault(6, long(len)));
    }
    let poor = Setup { number: max.into(), fuel: 8000, ..Setup::new() };
    assert_eq!(run(text, &poor).outcome, fault(6, FaultKind::OutOfFuel));
    let rich = Setup { fuel: 10_000, ..poor };
    let what = FaultKind::OutOfBounds { region: Region::Scratch, offset: 100, len: 8 };
    assert_eq!(run(text, &rich).outcome, fault(6, what));
}

#[test]
fn a_key_that_is_too_long_is_a_fault() {
    let text = "
        r2 = *(u64 *)(r1 + 0)
        r1 = *(u64 *)(r1 + 16)
        call 1
        r0 = 0
        exit";
    let max = KEY_LEN_MAX;
    assert_eq!(run(text, &Setup { number: max.into(), ..Setup::new() }).outcome, Ok(0));
    let len = u64::from(max) + 1;
    let what = FaultKind::RangeTooLong { helper: Helper::TableLookup, argument: 1, len, max };
    assert_eq!(run(text, &Setup { number: len, ..Setup::new() }).outcome, fault(2, what));
}

#[test]
fn kept_checks_of_ranges_tell_that_a_proof_is_broken() {
    let text = "
        r3 = *(u64 *)(r1 + 0)
        r2 = *(u64 *)(r1 + 16)
        r1 = 0
        call 3
        exit";
    let setup =
        Setup { number: 100, bounds: Bounds::Proven, options: Options { keep_checks: true }, ..Setup::new() };
    assert!(run(text, &setup).outcome.is_ok());
    let compiled = compile_observed(text, &setup);
    for (number, len) in [(101, 101), (u64::MAX, u32::MAX)] {
        let after = call(&Setup { number, ..setup.clone() }, |call| compiled.run(call));
        assert_eq!(after.outcome, fault(3, FaultKind::ProofBroken { region: Region::Data, offset: 0, len }));
    }
}
