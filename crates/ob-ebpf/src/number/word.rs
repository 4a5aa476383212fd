//! Words of any width up to 64 bits, held in the lower bits of a `u64`.

use crate::isa::AluOp;

/// Words of so many bits. Everything about numbers is written for any width, so that the narrow ones can be tested with all values
/// that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word {
    bits: u32,
}

impl Word {
    pub(super) const fn new(bits: u32) -> Self {
        Self { bits }
    }

    pub(super) const fn bits(self) -> u32 {
        self.bits
    }

    /// All bits; the greatest word.
    pub(super) const fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits)
    }

    /// The bit of the sign; the least word with a sign.
    pub(super) const fn sign(self) -> u64 {
        1 << (self.bits - 1)
    }

    /// All bits but the sign; the greatest word with a sign.
    pub(super) const fn body(self) -> u64 {
        self.sign() - 1
    }

    pub(super) const fn signed(self, word: u64) -> i64 {
        ((word << (64 - self.bits)) as i64) >> (64 - self.bits)
    }
}

/// The lower bits of a word, as many as are said.
pub(super) const fn low_bits(count: u32) -> u64 {
    if count >= 64 { u64::MAX } else { (1 << count) - 1 }
}

/// All bits from the highest one that is set down.
pub(super) const fn filled(word: u64) -> u64 {
    if word == 0 { 0 } else { u64::MAX >> word.leading_zeros() }
}

/// What an operation means for words of any width. For 32 and 64 bits it is [`AluOp::apply`].
#[must_use]
pub fn apply(op: AluOp, bits: u32, left: u64, right: u64) -> u64 {
    let word = Word::new(bits);
    let (left, right) = (left & word.mask(), right & word.mask());
    let (signed_left, signed_right) = (word.signed(left), word.signed(right));
    let amount = (right % u64::from(bits)) as u32;
    let result = match op {
        AluOp::Add => left.wrapping_add(right),
        AluOp::Sub => left.wrapping_sub(right),
        AluOp::Mul => left.wrapping_mul(right),
        AluOp::Div => left.checked_div(right).unwrap_or(0),
        AluOp::Mod => left.checked_rem(right).unwrap_or(left),
        AluOp::SignedDiv if right == 0 => 0,
        AluOp::SignedDiv => signed_left.wrapping_div(signed_right) as u64,
        AluOp::SignedMod if right == 0 => left,
        AluOp::SignedMod => signed_left.wrapping_rem(signed_right) as u64,
        AluOp::Or => left | right,
        AluOp::And => left & right,
        AluOp::Xor => left ^ right,
        AluOp::ShiftLeft => left << amount,
        AluOp::ShiftRight => left >> amount,
        AluOp::ShiftRightSigned => (signed_left >> amount) as u64,
    };
    result & word.mask()
}
