//! Numbers that are widened stop growing.

use std::collections::HashMap;

use ob_ebpf::number::{Number, WordSet};

use crate::family::{Seeded, all_words, family};

/// How many times a number can grow, whatever comes, by all ways there are.
fn longest<const BITS: u32>(
    number: &WordSet<BITS>,
    thresholds: &[u64],
    known: &mut HashMap<WordSet<BITS>, usize>,
) -> usize {
    if let Some(length) = known.get(number) {
        return *length;
    }
    let mut length = 0;
    for word in all_words::<BITS>().filter(|word| !number.contains(*word)) {
        let widened = number.widen(&WordSet::constant(word), thresholds);
        assert!(widened.contains(word) && number.is_subset_of(&widened), "{number} and {word}: {widened}");
        length = length.max(1 + longest(&widened, thresholds, known));
    }
    known.insert(*number, length);
    length
}

fn longest_of_all<const BITS: u32>(thresholds: &[u64]) -> usize {
    let mut known = HashMap::new();
    all_words::<BITS>()
        .map(|word| longest::<BITS>(&WordSet::constant(word), thresholds, &mut known))
        .max()
        .unwrap()
}

/// How many times each end can grow, of all ends, and how many times known bits are lost: what was found by trying everything.
fn check_longest<const BITS: u32>(thresholds: &[u64], steps_max: usize) {
    let steps = longest_of_all::<BITS>(thresholds);
    println!("{BITS} bits, {thresholds:?}: {steps}");
    assert!(steps <= steps_max, "{steps} with {thresholds:?}");
}

#[test]
fn a_narrow_number_grows_few_times_whatever_comes() {
    check_longest::<4>(&[], 12);
    check_longest::<4>(&[5], 13);
    check_longest::<4>(&[1, 2, 3, 13, 14], 15);
    check_longest::<6>(&[], 20);
}

#[test]
#[ignore = "takes minutes: all chains with thresholds"]
fn a_number_of_six_bits_grows_few_times_whatever_comes() {
    check_longest::<6>(&[20], 22);
    check_longest::<6>(&[1, 2, 3, 30, 40, 41, 42], 30);
}

/// Each of eight ends stops at each threshold and where signs and halves end, and known bits are lost few times. An end that was
/// held back by something else than a threshold moves once more when that goes.
const STEPS_BESIDE_THRESHOLDS_MAX: usize = 40;

/// Words outside of the number and near to it, to make it grow as little as possible.
fn near(number: &Number, seeded: &mut Seeded) -> Vec<u64> {
    let (unsigned, signed) = (number.unsigned_bounds(), number.signed_bounds());
    let (lower, lower_signed) = (number.lower_unsigned_bounds(), number.lower_signed_bounds());
    let unknown = number.known_bits().unknown;
    let mut near = vec![
        unsigned.end().wrapping_add(1),
        unsigned.start().wrapping_sub(1),
        signed.end().wrapping_add(1) as u64,
        signed.start().wrapping_sub(1) as u64,
        unsigned.end().wrapping_add(unknown & unknown.wrapping_neg()),
        unsigned.end() ^ (1 << seeded.below(64)),
        unsigned.start() ^ (1 << seeded.below(64)),
        seeded.next() >> seeded.below(64),
    ];
    for upper in [unsigned.start() >> 32, unsigned.end() >> 32, seeded.next() >> 32] {
        for lower in [
            lower.end() + 1,
            lower.start().wrapping_sub(1),
            (lower_signed.end() + 1) as u64,
            lower_signed.start().wrapping_sub(1) as u64,
        ] {
            near.push(upper << 32 | (lower & 0xffff_ffff));
        }
    }
    near.retain(|word| !number.contains(*word));
    near
}

/// How much a number leaves open, about.
fn openness(number: &Number) -> u32 {
    let logarithm = |low: u64, high: u64| 64 - (high - low).leading_zeros();
    let (unsigned, signed) = (number.unsigned_bounds(), number.signed_bounds());
    let (lower, lower_signed) = (number.lower_unsigned_bounds(), number.lower_signed_bounds());
    number.known_bits().unknown.count_ones()
        + logarithm(*unsigned.start(), *unsigned.end())
        + logarithm(*lower.start(), *lower.end())
        + logarithm(0, signed.start().abs_diff(*signed.end()))
        + logarithm(0, lower_signed.start().abs_diff(*lower_signed.end()))
}

#[test]
fn a_wide_number_grows_few_times_whatever_comes() {
    let mut seeded = Seeded::new(31);
    let mut longest = 0;
    for round in 0..20_000 {
        let mut thresholds: Vec<u64> =
            (0..seeded.below(10)).map(|_| seeded.next() >> seeded.below(64)).collect();
        thresholds.sort_unstable();
        let mut number = Number::constant(seeded.next() >> seeded.below(64));
        let steps_max = STEPS_BESIDE_THRESHOLDS_MAX + 8 * thresholds.len();
        let mut steps = 0;
        loop {
            let grown = near(&number, &mut seeded).into_iter().map(|word| {
                let widened = number.widen(&Number::constant(word), &thresholds);
                assert!(
                    widened.contains(word) && number.is_subset_of(&widened),
                    "{number} and {word}: {widened}"
                );
                widened
            });
            let mut grown: Vec<Number> = grown.collect();
            // Half of the chains grow by as little as there is, the others by chance.
            grown.sort_by_key(openness);
            let next = if round % 2 == 0 { grown.first() } else { grown.last().map(|_| seeded.pick(&grown)) };
            let Some(next) = next else { break };
            number = *next;
            steps += 1;
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
        assert_eq!(WordSet::any().widen(&number, &[3]), WordSet::any());
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
    for steps in 0..100 {
        let next = around(&head);
        if next.is_subset_of(&head) {
            return (head.meet(&next).unwrap(), steps);
        }
        head = head.widen(&next, thresholds);
    }
    panic!("{head} does not stop growing")
}

#[test]
fn a_counter_is_bounded_by_what_it_is_compared_with() {
    for thresholds in [&[][..], &[64], &[1000]] {
        let (head, steps) = counted(0, 8, 64, thresholds);
        assert_eq!(head.to_string(), "0..=64, multiple of 8", "with {thresholds:?}");
        assert!(steps <= 6, "{steps} steps with {thresholds:?}");
    }
}
