//! Numbers for people: the description that tells most.

use std::fmt;

use super::WordSet;
use super::pieces::Pieces;
use super::word::{Word, low_bits};

/// From here on ends are written as hexadecimal numbers, which are easier to tell apart.
const LONG: u64 = 1 << 20;

impl<const BITS: u32> fmt::Display for WordSet<BITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(constant) = self.as_constant() {
            return write!(f, "{}", Signed(Self::WHOLE.signed(constant)));
        }
        let mut says = Separated { f, is_first: true };
        if self.is_interval_telling() {
            write_interval(Self::WHOLE, &self.whole, "", &mut says)?;
        }
        let is_half_said = self.is_lower_half_telling();
        if is_half_said {
            write_interval(Self::HALF, &self.half, "lower half ", &mut says)?;
        }
        self.write_bits(is_half_said, &mut says)?;
        if says.is_first { f.write_str("any") } else { Ok(()) }
    }
}

impl<const BITS: u32> WordSet<BITS> {
    /// Whether the lower half and the bits, without those that all words of the interval have in common, would not say it.
    fn is_interval_telling(&self) -> bool {
        let bits = self.bits.forgotten(Self::WHOLE.mask() & !self.whole.varying());
        Self::described(Pieces::any(Self::WHOLE), self.half, bits).whole != self.whole
    }

    /// Whether the interval and the bits, without those that all lower halves have in common, would not say it.
    fn is_lower_half_telling(&self) -> bool {
        let bits = self.bits.forgotten(Self::HALF.mask() & !self.half.varying());
        let is_constant = self.half.varying() == 0;
        !is_constant && Self::described(self.whole, Pieces::any(Self::HALF), bits).half != self.half
    }

    /// The lowest bits as a remainder, and others that the intervals do not say.
    fn write_bits(&self, is_half_said: bool, says: &mut Separated<'_, '_>) -> fmt::Result {
        let lowest = low_bits(self.bits.unknown.trailing_zeros());
        match (lowest + 1, self.bits.value & lowest) {
            (1, _) => {}
            (2, 0) => says.say(format_args!("even"))?,
            (2, _) => says.say(format_args!("odd"))?,
            (divisor, 0) => says.say(format_args!("multiple of {}", Unsigned(divisor)))?,
            (divisor, rest) => {
                says.say(format_args!("{} above a multiple of {}", Unsigned(rest), Unsigned(divisor)))?;
            }
        }
        let half_said = if is_half_said { Self::HALF.mask() & !self.half.varying() } else { 0 };
        let known = self.whole.varying() & !self.bits.unknown & !lowest & !half_said;
        if known == 0 {
            return Ok(());
        }
        says.say(format_args!("bits {known:#x} are {:#x}", self.bits.value & known))
    }
}

/// The shorter one of the two intervals, with a sign if they are equally long.
fn write_interval(word: Word, pieces: &Pieces, of: &str, says: &mut Separated<'_, '_>) -> fmt::Result {
    let (low, high) = pieces.signed_span(word);
    let span = pieces.span();
    if low.abs_diff(high) <= span.high - span.low {
        says.say(format_args!("{of}{}..={}", Signed(low), Signed(high)))
    } else {
        says.say(format_args!("{of}{}..={}", Unsigned(span.low), Unsigned(span.high)))
    }
}

/// Writes with commas between.
struct Separated<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    is_first: bool,
}

impl Separated<'_, '_> {
    fn say(&mut self, what: fmt::Arguments<'_>) -> fmt::Result {
        if !std::mem::replace(&mut self.is_first, false) {
            self.f.write_str(", ")?;
        }
        self.f.write_fmt(what)
    }
}

/// A number with a sign.
struct Signed(i64);

impl fmt::Display for Signed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        write!(f, "{sign}{}", Unsigned(self.0.unsigned_abs()))
    }
}

/// A number without one.
struct Unsigned(u64);

impl fmt::Display for Unsigned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < LONG { write!(f, "{}", self.0) } else { write!(f, "{:#x}", self.0) }
    }
}
