//! Operations and tests on words of 64 bits, with sets and words by chance: as many as `OB_NUMBER_CASES` says, if it is set.

use ob_ebpf::isa::{AluOp, ByteOrder, Size, Test, Width};
use ob_ebpf::number::{Number, apply};
use proptest::prelude::*;

/// Words near to where things change.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (any::<u64>(), 0u32..64).prop_map(|(word, shift)| word >> shift),
        (0u32..64, -3i64..=3).prop_map(|(bit, beside)| (1u64 << bit).wrapping_add(beside as u64)),
        (-20i64..=20).prop_map(|word| word as u64),
        (any::<u32>(), -3i64..=3)
            .prop_map(|(upper, lower)| (u64::from(upper) << 32).wrapping_add(lower as u64)),
    ]
}

/// A set with one word that is in it: other descriptions are met only if they have that word.
fn with_member() -> impl Strategy<Value = (Number, u64)> {
    let description = (0u8..6, word(), word());
    (word(), proptest::collection::vec(description, 0..4)).prop_map(|(member, descriptions)| {
        let of = |(kind, one, other): (u8, u64, u64)| -> Number {
            let ends = |near: u64| {
                let beside = near.wrapping_add(one & 0xff);
                near.min(beside)..=near.max(beside)
            };
            match kind {
                0 => Number::unsigned(one.min(member)..=one.max(member)),
                1 => {
                    let (one, member) = (one as i64, member as i64);
                    Number::signed(one.min(member)..=one.max(member))
                }
                2 => Number::with_bits(member, one | other),
                3 => Number::with_bits(member, one & other),
                4 => Number::lower_unsigned(ends(member & 0xffff_ffff)),
                _ => {
                    let lower = i64::from(member as i32);
                    Number::lower_signed(lower.saturating_sub(i64::from(one as u8))..=lower)
                }
            }
        };
        let all = descriptions.into_iter().map(of);
        let number = all.fold(Number::any(), |all, one| match all.meet(&one) {
            Some(met) if met.contains(member) => met,
            _ => all,
        });
        (number, member)
    })
}

fn width() -> impl Strategy<Value = Width> {
    prop_oneof![Just(Width::W32), Just(Width::W64)]
}

/// All ends are words of the set.
fn check_normal(number: &Number) {
    assert!(number.contains(*number.unsigned_bounds().start()), "{number:?}");
    assert!(number.contains(*number.unsigned_bounds().end()), "{number:?}");
    assert!(number.contains(*number.signed_bounds().start() as u64), "{number:?}");
    assert!(number.contains(*number.signed_bounds().end() as u64), "{number:?}");
    assert_eq!(number.meet(&Number::any()).as_ref(), Some(number), "it has only one form");
}

fn cases() -> u32 {
    std::env::var("OB_NUMBER_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(20_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn words_of_any_width_do_what_words_do(left in word(), right in word()) {
        for op in AluOp::ALL {
            prop_assert_eq!(apply(op, 64, left, right), op.apply(Width::W64, left, right));
            prop_assert_eq!(apply(op, 32, left, right), op.apply(Width::W32, left, right));
        }
    }

    #[test]
    fn results_are_in_the_result(left in with_member(), right in with_member(), width in width()) {
        for op in AluOp::ALL {
            let number = Number::alu(op, width, &left.0, &right.0);
            let result = op.apply(width, left.1, right.1);
            prop_assert!(number.contains(result), "{} {op:?} {} is {number}, not {result}", left.0, right.0);
            check_normal(&number);
        }
    }

    #[test]
    fn single_operands_give_their_results(of in with_member(), width in width(), from_bits in 1u32..=64) {
        let (number, word) = of;
        let cut = |word: u64| if width == Width::W32 { word & 0xffff_ffff } else { word };
        prop_assert!(number.truncate(width).contains(cut(word)));
        prop_assert!(number.negate(width).contains(cut(word.wrapping_neg())));
        let extended = ((word << (64 - from_bits)) as i64 >> (64 - from_bits)) as u64;
        prop_assert!(number.sign_extend(width, from_bits).contains(cut(extended)));
        for size in Size::ALL {
            for order in [ByteOrder::Little, ByteOrder::Big, ByteOrder::Swap] {
                prop_assert!(number.bytes(order, size).contains(order.apply(size, word)));
            }
            let below = 64 - size.bits();
            prop_assert!(Number::loaded(size, false).contains(word << below >> below));
            prop_assert!(Number::loaded(size, true).contains(((word << below) as i64 >> below) as u64));
        }
    }

    #[test]
    fn branches_keep_what_takes_them(left in with_member(), right in with_member(), width in width()) {
        for test in Test::ALL {
            let holds = test.holds(width, left.1, right.1);
            let refined = Number::refine(test, width, &left.0, &right.0, holds);
            prop_assert!(refined.is_some(), "{} {test:?} {} is {holds}", left.0, right.0);
            let (of_left, of_right) = refined.unwrap();
            prop_assert!(of_left.contains(left.1) && of_right.contains(right.1));
            prop_assert!(of_left.is_subset_of(&left.0) && of_right.is_subset_of(&right.0));
            check_normal(&of_left);
            check_normal(&of_right);
            if let Some((of_left, of_right)) = Number::refine(test, width, &left.0, &right.0, !holds) {
                check_normal(&of_left);
                check_normal(&of_right);
            }
        }
    }

    #[test]
    fn unions_and_meets_keep_their_words(
        left in with_member(),
        right in with_member(),
        mut thresholds in proptest::collection::vec(word(), 0..5),
    ) {
        thresholds.sort_unstable();
        let joined = left.0.join(&right.0);
        check_normal(&joined);
        let widened = left.0.widen(&right.0, &thresholds);
        check_normal(&widened);
        prop_assert!(joined.contains(left.1) && joined.contains(right.1) && joined.is_subset_of(&widened));
        for word in [left.1, right.1] {
            let is_both = left.0.contains(word) && right.0.contains(word);
            let met = left.0.meet(&right.0);
            prop_assert_eq!(met.is_some_and(|met| met.contains(word)), is_both);
        }
    }
}
