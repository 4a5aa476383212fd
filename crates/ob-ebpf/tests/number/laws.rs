//! The normal form, and the laws of unions and meets.

use ob_ebpf::number::WordSet;

use crate::family::{Seeded, described, family, members, signed};

/// All ends are words of the set.
fn check_normal<const BITS: u32>(number: &WordSet<BITS>) {
    let words = members(number);
    let ends = |words: &[u64], bits: u32| {
        let unsigned = *words.iter().min().unwrap()..=*words.iter().max().unwrap();
        let signed = words.iter().map(|word| signed(*word, bits));
        (unsigned, signed.clone().min().unwrap()..=signed.max().unwrap())
    };
    assert_eq!((number.unsigned_bounds(), number.signed_bounds()), ends(&words, BITS), "{number:?}");
    let lower: Vec<u64> = words.iter().map(|word| word & ((1 << (BITS / 2)) - 1)).collect();
    let bounds = (number.lower_unsigned_bounds(), number.lower_signed_bounds());
    assert_eq!(bounds, ends(&lower, BITS / 2), "{number:?}");
    assert_eq!(number.as_constant().is_some(), words.len() == 1, "{number:?}");
    assert_eq!(number.meet(&WordSet::any()).as_ref(), Some(number), "it has only one form");
    let best = described::<BITS>(&words).unwrap();
    assert!(best.is_subset_of(number), "{best:?} {number:?}");
}

#[test]
fn no_end_could_be_nearer() {
    family::<4>(4000, 21).iter().for_each(check_normal);
    family::<6>(10_000, 22).iter().for_each(check_normal);
    family::<8>(10_000, 23).iter().for_each(check_normal);
}

fn check_pair<const BITS: u32>(left: &WordSet<BITS>, right: &WordSet<BITS>) {
    let (lefts, rights) = (members(left), members(right));
    let both: Vec<u64> = lefts.iter().copied().filter(|word| right.contains(*word)).collect();
    let met = left.meet(right);
    assert_eq!(met.as_ref().map(members).unwrap_or_default(), both, "{left} and {right}");
    assert_eq!(met, right.meet(left));
    if let Some(met) = met {
        check_normal(&met);
        assert!(met.is_subset_of(left) && met.is_subset_of(right));
    }
    let joined = left.join(right);
    check_normal(&joined);
    assert_eq!(joined, right.join(left));
    assert_eq!(joined.join(left), joined);
    assert!(left.is_subset_of(&joined) && right.is_subset_of(&joined), "{left} or {right} is {joined}");
    let is_every = lefts.iter().chain(&rights).all(|word| joined.contains(*word));
    assert!(is_every, "{left} or {right} is {joined}");
    if left.is_subset_of(right) {
        assert_eq!(both, lefts, "{left} in {right}");
        assert_eq!(joined, *right);
    }
    let widened = left.widen(right, &[1, 3, 8, 12]);
    check_normal(&widened);
    assert!(joined.is_subset_of(&widened), "{left} widened by {right} is {widened}");
}

#[test]
fn unions_and_meets_are_what_their_words_are() {
    let numbers = family::<4>(250, 24);
    for left in &numbers {
        numbers.iter().for_each(|right| check_pair(left, right));
    }
    let mut seeded = Seeded::new(25);
    let numbers = family::<6>(10_000, 26);
    for _ in 0..5000 {
        check_pair(seeded.pick(&numbers), seeded.pick(&numbers));
    }
    let numbers = family::<8>(20_000, 27);
    for _ in 0..2000 {
        check_pair(seeded.pick(&numbers), seeded.pick(&numbers));
    }
}

#[test]
fn a_set_that_is_no_part_of_another_is_not_taken_for_one() {
    let numbers = family::<4>(400, 28);
    for left in &numbers {
        for right in &numbers {
            let is_part = members(left).iter().all(|word| right.contains(*word));
            assert!(is_part || !left.is_subset_of(right), "{left} in {right}");
        }
    }
}
