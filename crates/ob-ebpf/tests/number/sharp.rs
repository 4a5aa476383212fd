//! What must be known at least, of words of 64 bits: the steps of which proofs of real programs are made.

use ob_ebpf::isa::{AluOp, ByteOrder, Size, Test, Width};
use ob_ebpf::number::Number;

fn constant(value: i64) -> Number {
    Number::constant(value as u64)
}

fn unsigned(low: u64, high: u64) -> Number {
    Number::unsigned(low..=high)
}

fn signed(low: i64, high: i64) -> Number {
    Number::signed(low..=high)
}

fn alu(op: AluOp, left: Number, right: Number) -> Number {
    Number::alu(op, Width::W64, &left, &right)
}

fn alu32(op: AluOp, left: Number, right: Number) -> Number {
    Number::alu(op, Width::W32, &left, &right)
}

fn after(test: Test, width: Width, left: Number, right: Number) -> String {
    Number::refine(test, width, &left, &right, true).map_or("never".to_owned(), |(left, _)| left.to_string())
}

fn check(cases: &[(Number, &str)]) {
    for (number, wanted) in cases {
        assert_eq!(number.to_string(), *wanted, "{number:?}");
    }
}

#[test]
fn sums_products_and_quotients_are_as_sharp_as_proofs_need_them() {
    let byte = Number::loaded(Size::B1, false);
    let multiple = alu(AluOp::ShiftLeft, byte, constant(3));
    check(&[
        (multiple, "0..=2040, multiple of 8"),
        (alu(AluOp::Mul, byte, constant(24)), "0..=6120, multiple of 8"),
        (alu(AluOp::Add, multiple, constant(16)), "16..=2056, multiple of 8"),
        (alu(AluOp::Add, multiple, constant(4)), "4..=2044, 4 above a multiple of 8"),
        (alu(AluOp::Mod, unsigned(0, 100), constant(8)), "0..=7"),
        (alu(AluOp::Mod, unsigned(0, 7), constant(8)), "0..=7"),
        (alu(AluOp::Mod, unsigned(17, 22), constant(8)), "1..=6"),
        (alu(AluOp::Mod, multiple, constant(64)), "0..=56, multiple of 8"),
        (alu(AluOp::Mod, Number::any(), unsigned(1, 10)), "0..=9"),
        (alu(AluOp::Mod, Number::any(), unsigned(0, 10)), "any"),
        (alu(AluOp::SignedMod, Number::any(), constant(10)), "-9..=9"),
        (alu(AluOp::Div, unsigned(100, 1000), constant(10)), "10..=100"),
        (alu(AluOp::Div, unsigned(100, 1000), unsigned(0, 10)), "0..=1000"),
        (alu(AluOp::Div, multiple, constant(8)), "0..=255"),
        (alu(AluOp::SignedDiv, signed(-100, 50), constant(-10)), "-5..=10"),
        (alu(AluOp::Sub, unsigned(8, 15), unsigned(0, 7)), "1..=15"),
        (alu(AluOp::Sub, unsigned(0, 7), unsigned(8, 15)), "-15..=-1"),
        (alu(AluOp::Add, signed(-4, 7), signed(-4, 7)), "-8..=14"),
        (alu(AluOp::Mul, signed(-4, 7), signed(-3, 2)), "-21..=14"),
        (alu32(AluOp::Add, Number::any(), constant(1)), "0..=0xffffffff"),
        (alu32(AluOp::Add, unsigned(0, 10), constant(-1)), "0..=0xffffffff, lower half -1..=9"),
        (alu32(AluOp::Mod, Number::any(), constant(12)), "0..=11"),
        (signed(-5, 9).negate(Width::W64), "-9..=5"),
        (unsigned(1, 9).negate(Width::W64), "-9..=-1"),
    ]);
}

#[test]
fn bits_and_shifts_are_as_sharp_as_proofs_need_them() {
    let word32 = Number::loaded(Size::B4, false);
    let multiple = alu(AluOp::ShiftLeft, Number::loaded(Size::B1, false), constant(3));
    check(&[
        (alu(AluOp::And, Number::any(), constant(0x1f)), "0..=31"),
        (alu(AluOp::And, unsigned(0, 20), constant(0x1f)), "0..=20"),
        (alu(AluOp::And, unsigned(0, 20), unsigned(0, 5)), "0..=5"),
        (alu(AluOp::And, Number::any(), constant(-8)), "multiple of 8"),
        (alu(AluOp::And, unsigned(9, 21), constant(-8)), "8..=16, multiple of 8"),
        (alu(AluOp::And, Number::any(), constant(0xf0)), "0..=240, multiple of 16"),
        (alu(AluOp::Or, multiple, constant(1)), "1..=2041, 1 above a multiple of 8"),
        (alu(AluOp::Or, unsigned(0, 20), unsigned(0, 5)), "0..=23"),
        (alu(AluOp::Or, constant(0x30), unsigned(0, 1)), "48..=49"),
        (alu(AluOp::Xor, unsigned(0, 7), constant(8)), "8..=15"),
        (alu(AluOp::Xor, unsigned(0, 7), unsigned(0, 7)), "0..=7"),
        (alu(AluOp::ShiftRight, Number::any(), constant(32)), "0..=0xffffffff"),
        (alu(AluOp::ShiftRight, word32, constant(24)), "0..=255"),
        (alu(AluOp::ShiftRight, unsigned(64, 255), unsigned(2, 3)), "8..=63"),
        (alu(AluOp::ShiftRightSigned, signed(-64, 255), constant(3)), "-8..=31"),
        (alu(AluOp::ShiftRightSigned, Number::any(), constant(63)), "-1..=0"),
        (alu(AluOp::ShiftLeft, constant(1), unsigned(0, 7)), "1..=128"),
        (alu(AluOp::ShiftLeft, constant(1), alu(AluOp::And, Number::any(), constant(7))), "1..=128"),
        (alu(AluOp::ShiftLeft, signed(-2, 3), constant(4)), "-32..=48, multiple of 16"),
        (alu32(AluOp::ShiftRight, Number::any(), constant(28)), "0..=15"),
        (alu32(AluOp::ShiftRightSigned, signed(-64, -1), constant(31)), "0xffffffff"),
        (unsigned(0, 10).join(&constant(64)), "0..=64, bits 0x30 are 0x0"),
        (unsigned(0, 10).join(&constant(63)), "0..=63"),
        (constant(8).join(&constant(24)), "8..=24, 8 above a multiple of 16"),
    ]);
}

#[test]
fn parts_of_words_are_as_sharp_as_proofs_need_them() {
    let byte = Number::loaded(Size::B1, false);
    check(&[
        (Number::any().truncate(Width::W32), "0..=0xffffffff"),
        (signed(-5, -1).truncate(Width::W32), "0xfffffffb..=0xffffffff"),
        (alu(AluOp::And, signed(-5, 9), constant(0xffff_ffff)), "0..=0xffffffff, lower half -5..=9"),
        (byte.sign_extend(Width::W64, 8), "-128..=127"),
        (unsigned(0, 100).sign_extend(Width::W64, 8), "0..=100"),
        (signed(-5, 5).sign_extend(Width::W64, 16), "-5..=5"),
        (alu32(AluOp::Add, unsigned(0, 10), constant(-5)).sign_extend(Width::W64, 32), "-5..=5"),
        (byte.sign_extend(Width::W32, 8), "0..=0xffffffff, lower half -128..=127"),
        (byte.bytes(ByteOrder::Big, Size::B2), "0..=65280, multiple of 256"),
        (Number::any().bytes(ByteOrder::Swap, Size::B2), "0..=65535"),
        (Number::any().bytes(ByteOrder::Big, Size::B4), "0..=0xffffffff"),
        (unsigned(0, 9).bytes(ByteOrder::Little, Size::B4), "0..=9"),
        (constant(0x1234).bytes(ByteOrder::Big, Size::B2), "13330"),
        (Number::loaded(Size::B2, true), "-32768..=32767"),
    ]);
}

#[test]
fn branches_tell_all_that_they_can() {
    let any = Number::any();
    let word32 = Number::loaded(Size::B4, false);
    let aligned = alu(AluOp::And, any, constant(-8));
    let (w32, w64) = (Width::W32, Width::W64);
    let cases = [
        (after(Test::Below, w32, word32, constant(32)), "0..=31"),
        (after(Test::Below, w64, any, constant(32)), "0..=31"),
        (after(Test::Below, w32, any, constant(32)), "lower half 0..=31"),
        (after(Test::Below, w64, any, unsigned(5, 50)), "0..=49"),
        (after(Test::BelowOrEqual, w64, aligned, constant(63)), "0..=56, multiple of 8"),
        (after(Test::Below, w64, any, constant(0)), "never"),
        (after(Test::Above, w64, any, constant(-1)), "never"),
        (after(Test::Above, w64, unsigned(0, 9), constant(4)), "5..=9"),
        (after(Test::AboveOrEqual, w64, unsigned(0, 9), unsigned(4, 20)), "4..=9"),
        (after(Test::Greater, w64, any, constant(-1)), "0..=0x7fffffffffffffff"),
        (after(Test::GreaterOrEqual, w64, signed(-9, 9), constant(0)), "0..=9"),
        (after(Test::Less, w64, any, constant(0)), "-0x8000000000000000..=-1"),
        (after(Test::Less, w64, unsigned(0, 9), constant(0)), "never"),
        (after(Test::LessOrEqual, w32, word32, constant(-1)), "0x80000000..=0xffffffff"),
        (after(Test::Greater, w64, any, constant(i64::MAX)), "never"),
        (after(Test::Equal, w64, unsigned(0, 9), unsigned(5, 20)), "5..=9"),
        (after(Test::Equal, w64, aligned, constant(4)), "never"),
        (after(Test::Equal, w32, word32, constant(7)), "7"),
        (after(Test::NotEqual, w64, unsigned(0, 9), constant(0)), "1..=9"),
        (after(Test::NotEqual, w64, unsigned(0, 9), constant(9)), "0..=8"),
        (after(Test::NotEqual, w64, signed(-9, 9), constant(-9)), "-8..=9"),
        (after(Test::NotEqual, w64, aligned, constant(0)), "8..=0xfffffffffffffff8, multiple of 8"),
        (after(Test::NotEqual, w64, unsigned(0, 1), constant(0)), "1"),
        (after(Test::NotEqual, w64, constant(3), constant(3)), "never"),
        (after(Test::NotEqual, w64, unsigned(0, 9), constant(5)), "0..=9"),
        (after(Test::AnyBit, w64, unsigned(0, 15), constant(8)), "8..=15"),
        (after(Test::AnyBit, w64, unsigned(0, 15), constant(0x80)), "never"),
        (after(Test::AnyBit, w64, unsigned(0, 15), constant(0xfc)), "4..=15"),
        (after(Test::AnyBit, w64, any, constant(1)), "odd"),
    ];
    for (number, (found, wanted)) in cases.into_iter().enumerate() {
        assert_eq!(found, wanted, "case {number}");
    }
    let without = |number: Number, bits: i64| {
        Number::refine(Test::AnyBit, w64, &number, &constant(bits), false).unwrap().0.to_string()
    };
    assert_eq!(without(any, 7), "multiple of 8");
    assert_eq!(without(unsigned(0, 100), !31), "0..=31");
}

#[test]
fn constants_give_constants() {
    let words = [0, 1, 2, 7, 31, 32, 63, 64, 0x8000_0000, 0xffff_ffff, 1 << 63, u64::MAX - 1, u64::MAX];
    for (op, width) in AluOp::ALL.into_iter().flat_map(|op| [(op, Width::W32), (op, Width::W64)]) {
        for (left, right) in words.into_iter().flat_map(|left| words.map(|right| (left, right))) {
            let result = Number::alu(op, width, &Number::constant(left), &Number::constant(right));
            assert_eq!(result, Number::constant(op.apply(width, left, right)), "{left} {op:?} {right}");
        }
    }
    for (size, value) in Size::ALL.into_iter().flat_map(|size| words.map(|word| (size, word))) {
        let number: Number = Number::constant(value);
        let swapped = ByteOrder::Swap.apply(size, value);
        assert_eq!(number.bytes(ByteOrder::Swap, size).as_constant(), Some(swapped));
        assert_eq!(number.negate(Width::W64).as_constant(), Some(value.wrapping_neg()));
        let below = 64 - size.bits();
        let extended = ((value << below) as i64 >> below) as u64;
        assert_eq!(number.sign_extend(Width::W64, size.bits()).as_constant(), Some(extended));
    }
}

#[test]
fn a_number_is_told_by_what_tells_most() {
    let cases = [
        (constant(5), "5"),
        (constant(-4), "-4"),
        (unsigned(0, 31), "0..=31"),
        (signed(-4, 7), "-4..=7"),
        (unsigned(3, u64::MAX), "3..=0xffffffffffffffff"),
        (Number::any(), "any"),
        (Number::lower_unsigned(0..=31), "lower half 0..=31"),
        (Number::lower_signed(-2..=31), "lower half -2..=31"),
        (Number::with_bits(0, !1), "even"),
        (Number::with_bits(0x30, !0xf0), "bits 0xf0 are 0x30"),
        (Number::with_bits(0x30, 0x0f), "48..=63"),
        (Number::with_bits(0x30, 0x83), "48..=179, bits 0x7c are 0x30"),
    ];
    check(&cases);
}
