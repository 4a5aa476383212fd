//! Numbers that are widened stop growing.

use std::collections::HashMap;

use ob_ebpf::number::Number;

use crate::family::{Seeded, all_words, family};

/// How many times a number can grow, whatever comes, by all ways there are.
fn longest<const BITS: u32>(
    number: &Number<BITS>,
    thresholds: &[u64],
    known: &mut HashMap<Number<BITS>, usize>,
) -> usize {
    if let Some(length) = known.get(number) {
        return *length;
    }
    let mut length = 0;
    for word in all_words::<BITS>().filter(|word| !number.contains(*word)) {
        let widened = number.widen(&Number::constant(word), thresholds);
        assert!(widened.contains(word) && number.is_subset_of(&widened), "{number} and {word}: {widened}");
        length = length.max(1 + longest(&widened, thresholds, known));
    }
    known.insert(*number, length);
    length
}

fn longest_of_all<const BITS: u32>(thresholds: &[u64]) -> usize {
    let mut known = HashMap::new();
    all_words::<BITS>().map(|word| longest(&Number::constant(word), thresholds, &mut known)).max().unwrap()
}

#[test]
fn a_narrow_number_grows_few_times_whatever_comes() {
    for (thresholds, steps_max) in [(&[][..], 10), (&[5], 11), (&[2, 9, 12], 12), (&[1, 2, 3, 13, 14], 12)] {
        let steps = longest_of_all::<4>(thresholds);
        println!("4 bits, {thresholds:?}: {steps}");
        assert!(steps <= steps_max, "{steps} with {thresholds:?}");
    }
    for (thresholds, steps_max) in [(&[][..], 18), (&[20], 20)] {
        let steps = longest_of_all::<6>(thresholds);
        println!("6 bits, {thresholds:?}: {steps}");
        assert!(steps <= steps_max, "{steps} with {thresholds:?}");
    }
}

/// Each end of eight stops at each threshold and where signs and halves end, and known bits are lost few times. An end that was
/// held back by something else than a threshold moves once more when that goes.
const STEPS_BESIDE_THRESHOLDS_MAX: usize = 40;

/// A word outside of the number that is as near as possible to it, to make it grow as little as possible.
fn nearest_outside(number: &Number, seeded: &mut Seeded) -> Option<u64> {
    let (unsigned, signed) = (number.unsigned_bounds(), number.signed_bounds());
    let (lower, lower_signed) = (number.lower_unsigned_bounds(), number.lower_signed_bounds());
    let upper = seeded.next() << 32;
    let near = [
        unsigned.end().wrapping_add(1),
        unsigned.start().wrapping_sub(1),
        signed.end().wrapping_add(1) as u64,
        signed.start().wrapping_sub(1) as u64,
        (unsigned.start() & !0xffff_ffff) | ((lower.end() + 1) & 0xffff_ffff),
        (unsigned.start() & !0xffff_ffff) | (lower.start().wrapping_sub(1) & 0xffff_ffff),
        (unsigned.end() & !0xffff_ffff) | ((lower_signed.end() + 1) as u64 & 0xffff_ffff),
        upper | (lower_signed.start().wrapping_sub(1) as u64 & 0xffff_ffff),
        unsigned.end() ^ (1 << seeded.below(64)),
        unsigned.start() ^ (1 << seeded.below(64)),
        unsigned.end().wrapping_add(number.known_bits().unknown & number.known_bits().unknown.wrapping_neg()),
        seeded.next() >> seeded.below(64),
    ];
    let begin = seeded.below(near.len() as u64) as usize;
    let mut turned = near.iter().cycle().skip(begin).take(near.len());
    turned.find(|word| !number.contains(**word)).copied()
}

#[test]
fn a_wide_number_grows_few_times_whatever_comes() {
    let mut seeded = Seeded::new(31);
    let mut longest = 0;
    for _ in 0..3000 {
        let mut thresholds: Vec<u64> =
            (0..seeded.below(10)).map(|_| seeded.next() >> seeded.below(64)).collect();
        thresholds.sort_unstable();
        let mut number = Number::constant(seeded.next() >> seeded.below(64));
        let mut steps = 0;
        while let Some(word) = nearest_outside(&number, &mut seeded) {
            let widened = number.widen(&Number::constant(word), &thresholds);
            assert!(
                widened.contains(word) && number.is_subset_of(&widened),
                "{number} and {word}: {widened}"
            );
            assert_ne!(widened, number);
            number = widened;
            steps += 1;
            let steps_max = STEPS_BESIDE_THRESHOLDS_MAX + 8 * thresholds.len();
            assert!(steps <= steps_max, "{steps} steps with {thresholds:?}: {number}");
        }
        longest = longest.max(steps);
    }
    println!("the longest chain has {longest} steps");
}

#[test]
fn what_does_not_grow_stays_as_it_is() {
    for number in family::<6>(3000, 32) {
        assert_eq!(number.widen(&number, &[3]), number);
        assert_eq!(Number::any().widen(&number, &[3]), Number::any());
    }
}

/// A loop as the verifier sees it: `for (i = from; i < end; i += step)`.
fn counted(from: u64, step: u64, end: u64, thresholds: &[u64]) -> (Number, usize) {
    use ob_ebpf::isa::{AluOp, Test, Width};
    let (end, step) = (Number::constant(end), Number::constant(step));
    let around = |head: &Number| {
        let (body, _) = Number::refine(Test::Below, Width::W64, head, &end, true).unwrap();
        Number::alu(AluOp::Add, Width::W64, &body, &step).join(&Number::constant(from))
    };
    let mut head = Number::constant(from);
    for steps in 0.. {
        let next = around(&head);
        if next.is_subset_of(&head) {
            return (head.narrow(&next), steps);
        }
        head = head.widen(&next, thresholds);
    }
    unreachable!("the loop ends when nothing changes")
}

#[test]
fn a_counter_is_bounded_by_what_it_is_compared_with() {
    for thresholds in [&[][..], &[64], &[1000]] {
        let (head, steps) = counted(0, 8, 64, thresholds);
        assert_eq!(head.to_string(), "0..=64, multiple of 8", "with {thresholds:?}");
        assert!(steps <= 6, "{steps} steps with {thresholds:?}");
    }
}
