//! Operations and tests on narrow words, with all the words of each set.

use ob_ebpf::isa::{AluOp, ByteOrder, Size, Test, Width};
use ob_ebpf::number::{WordSet, apply};

use crate::family::{
    Seeded, WIDTHS, all_words, bits_of, described, family, holds, low, members, signed, simple,
};

/// Sets of words of four bits as sixteen bits.
type Set = u16;

/// Of how many results of a thousand it is required that no better one can be described. What is lost is little where programs
/// divide or shift by constants, as they mostly do; here they are divided and shifted by everything.
const OPS: [(AluOp, u32); 13] = [
    (AluOp::Add, 950),
    (AluOp::Sub, 950),
    (AluOp::Mul, 690),
    (AluOp::Div, 800),
    (AluOp::SignedDiv, 900),
    (AluOp::Mod, 650),
    (AluOp::SignedMod, 750),
    (AluOp::Or, 930),
    (AluOp::And, 930),
    (AluOp::Xor, 800),
    (AluOp::ShiftLeft, 490),
    (AluOp::ShiftRight, 520),
    (AluOp::ShiftRightSigned, 860),
];

fn set_of(number: &WordSet<4>) -> Set {
    members(number).iter().fold(0, |set, word| set | 1 << word)
}

fn words_of(set: Set) -> Vec<u64> {
    (0..16).filter(|word| set >> word & 1 == 1).collect()
}

/// For each word and each set, the results with the word on the left and all of the set on the right.
fn images(op: AluOp, width: Width) -> Vec<[Set; 16]> {
    let mut images = vec![[0; 16]; 1 << 16];
    for set in 1..1usize << 16 {
        let right = u64::from(set.trailing_zeros());
        let mut image = images[set & (set - 1)];
        for (left, results) in image.iter_mut().enumerate() {
            *results |= 1 << apply(op, bits_of::<4>(width), left as u64, right);
        }
        images[set] = image;
    }
    images
}

fn check_all_pairs(numbers: &[WordSet<4>]) {
    let sets: Vec<Set> = numbers.iter().map(set_of).collect();
    let best: Vec<Option<WordSet<4>>> = (0..=Set::MAX).map(|set| described(&words_of(set))).collect();
    for (op, wanted) in OPS {
        let (mut exact, mut all) = (0u64, 0u64);
        for width in WIDTHS {
            let images = images(op, width);
            for (left, left_set) in numbers.iter().zip(&sets) {
                let lefts = words_of(*left_set);
                for (right, right_set) in numbers.iter().zip(&sets) {
                    let of_right = &images[usize::from(*right_set)];
                    let results = lefts.iter().fold(0, |set, left| set | of_right[*left as usize]);
                    let best = best[usize::from(results)].unwrap();
                    let number = WordSet::alu(op, width, left, right);
                    assert!(
                        best.is_subset_of(&number)
                            && words_of(results).iter().all(|word| number.contains(*word)),
                        "{left} {op:?} {right} in {width:?} is {number}, and not {best}"
                    );
                    exact += u64::from(number == best);
                    all += 1;
                }
            }
        }
        let found = exact * 1000 / all;
        println!("{op:?}: {found} of 1000 are the best");
        assert!(
            found >= u64::from(wanted),
            "{op:?}: {found} of 1000 results are the best, {wanted} are wanted"
        );
    }
}

#[test]
fn all_pairs_of_sets_of_four_bits_give_all_results() {
    check_all_pairs(&family(600, 1));
}

#[test]
#[ignore = "takes minutes: all that can be said of words of four bits in several ways"]
fn all_pairs_of_very_many_sets_of_four_bits_give_all_results() {
    check_all_pairs(&family(6000, 2));
}

/// Pairs by chance, with all or many of their words.
fn check_pairs<const BITS: u32>(numbers: &[WordSet<BITS>], pairs: u32, words_max: usize, seed: u64) {
    let mut seeded = Seeded::new(seed);
    for _ in 0..pairs {
        let (left, right) = (seeded.pick(numbers), seeded.pick(numbers));
        let (lefts, rights) = (some(left, words_max, &mut seeded), some(right, words_max, &mut seeded));
        for op in AluOp::ALL {
            for width in WIDTHS {
                let number = WordSet::alu(op, width, left, right);
                for left_word in &lefts {
                    for right_word in &rights {
                        let result = apply(op, bits_of::<BITS>(width), *left_word, *right_word);
                        assert!(
                            number.contains(result),
                            "{left} {op:?} {right} in {width:?} is {number}, and not {left_word} and {right_word}: {result}"
                        );
                    }
                }
            }
        }
    }
}

/// The words of a set, or its ends and some others.
fn some<const BITS: u32>(number: &WordSet<BITS>, count: usize, seeded: &mut Seeded) -> Vec<u64> {
    let all = members(number);
    if all.len() <= count {
        return all;
    }
    let mut some: Vec<u64> = (2..count).map(|_| *seeded.pick(&all)).collect();
    some.extend([all[0], all[all.len() - 1]]);
    some
}

#[test]
fn pairs_of_sets_of_six_and_eight_bits_give_all_results() {
    check_pairs(&family::<6>(20_000, 3), 600, 64, 4);
    check_pairs(&family::<8>(20_000, 5), 1500, 16, 6);
}

#[test]
#[ignore = "takes minutes: more pairs, with all of their words"]
fn very_many_pairs_of_sets_of_six_and_eight_bits_give_all_results() {
    check_pairs(&family::<6>(100_000, 7), 40_000, 64, 8);
    check_pairs(&family::<8>(100_000, 9), 3000, 256, 10);
}

fn check_each<const BITS: u32>(numbers: &[WordSet<BITS>]) {
    for number in numbers {
        let words = members(number);
        for width in WIDTHS {
            let bits = bits_of::<BITS>(width);
            let (truncated, negated) = (number.truncate(width), number.negate(width));
            for word in &words {
                assert!(truncated.contains(low(*word, bits)), "{number} in {width:?} is {truncated}");
                let result = low(word.wrapping_neg(), bits);
                assert!(negated.contains(result), "-({number}) in {width:?} is {negated}, and not {result}");
            }
            for from_bits in 1..=BITS {
                let extended = number.sign_extend(width, from_bits);
                let of = |word: u64| low(signed(word, from_bits) as u64, bits);
                let results: Vec<u64> = words.iter().map(|word| of(*word)).collect();
                assert!(
                    results.iter().all(|result| extended.contains(*result)),
                    "{from_bits} bits of {number} in {width:?} are {extended}, and not {results:?}"
                );
            }
        }
    }
}

#[test]
fn operations_on_one_set_give_all_results() {
    check_each(&family::<4>(3000, 11));
    check_each(&family::<6>(4000, 12));
    check_each(&family::<8>(1500, 13));
}

#[test]
fn bytes_of_one_bit_are_turned() {
    for number in family::<8>(4000, 14) {
        for (size, order) in [Size::B1, Size::B2, Size::B4, Size::B8]
            .into_iter()
            .flat_map(|size| [ByteOrder::Little, ByteOrder::Big, ByteOrder::Swap].map(|order| (size, order)))
        {
            let turned = number.bytes(order, size);
            for word in members(&number) {
                let kept = low(word, size.bytes() as u32);
                let result = match order {
                    ByteOrder::Little => kept,
                    _ => kept.reverse_bits() >> (64 - size.bytes()),
                };
                assert!(
                    turned.contains(result),
                    "{order:?} {size:?} of {number} is {turned}, and not {result}"
                );
            }
        }
    }
}

#[test]
fn what_is_loaded_is_all_that_a_load_gives_and_no_more() {
    for size in Size::ALL {
        let bits = size.bytes() as u32;
        let results = all_words::<8>().map(|word| low(word, bits)).collect::<Vec<u64>>();
        assert_eq!(Some(WordSet::<8>::loaded(size, false)), described(&results));
        let results = all_words::<8>().map(|word| low(signed(word, bits) as u64, 8)).collect::<Vec<u64>>();
        assert_eq!(Some(WordSet::<8>::loaded(size, true)), described(&results));
    }
}

/// What a test says of two sets, beside what it says of all pairs of their words.
fn check_refined<const BITS: u32>(left: &WordSet<BITS>, right: &WordSet<BITS>) {
    let (lefts, rights) = (members(left), members(right));
    for (test, width) in Test::ALL.into_iter().flat_map(|test| WIDTHS.map(|width| (test, width))) {
        let is_order = !matches!(test, Test::AnyBit);
        for outcome in [true, false] {
            let refined = WordSet::refine(test, width, left, right, outcome);
            let mut is_possible = false;
            for (one, other) in lefts.iter().flat_map(|one| rights.iter().map(move |other| (*one, *other))) {
                if holds(test, bits_of::<BITS>(width), one, other) != outcome {
                    continue;
                }
                is_possible = true;
                let (of_left, of_right) = refined.unwrap_or_else(|| {
                    panic!("{left} {test:?} {right} in {width:?} is {outcome} of {one} and {other}")
                });
                assert!(
                    of_left.contains(one) && of_right.contains(other),
                    "{left} {test:?} {right} in {width:?} is {outcome} of {one} and {other}: {of_left} and {of_right}"
                );
            }
            assert!(
                is_possible || !is_order || refined.is_none(),
                "{left} {test:?} {right} in {width:?} is never {outcome}"
            );
            if let Some((of_left, of_right)) = refined {
                assert!(of_left.is_subset_of(left) && of_right.is_subset_of(right), "nothing is forgotten");
            }
        }
    }
}

#[test]
fn a_branch_keeps_all_words_with_which_it_is_taken() {
    let numbers = family::<4>(400, 15);
    for left in &numbers {
        for right in numbers.iter().step_by(3) {
            check_refined(left, right);
        }
    }
    let (numbers, mut seeded) = (family::<6>(20_000, 16), Seeded::new(17));
    for _ in 0..300 {
        check_refined(seeded.pick(&numbers), seeded.pick(&numbers));
    }
    let simple = simple::<8>();
    for _ in 0..30 {
        check_refined(seeded.pick(&simple), seeded.pick(&simple));
    }
}

#[test]
#[ignore = "takes minutes: more pairs of sets"]
fn a_branch_keeps_all_words_of_very_many_sets_with_which_it_is_taken() {
    let numbers = family::<4>(3000, 18);
    for left in &numbers {
        numbers.iter().for_each(|right| check_refined(left, right));
    }
    let (numbers, mut seeded) = (family::<8>(100_000, 19), Seeded::new(20));
    for _ in 0..5000 {
        check_refined(seeded.pick(&numbers), seeded.pick(&numbers));
    }
}
