//! Numbers for people: the description that tells most.

use std::fmt;

use super::Number;
use super::word::filled;

/// From here on ends are written as hexadecimal numbers, which are easier to tell apart.
const LONG: u64 = 1 << 20;

impl<const BITS: u32> fmt::Display for Number<BITS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(constant) = self.as_constant() {
            return write!(f, "{}", End(Self::WHOLE.signed(constant)));
        }
        let mut says = Separated { f, is_first: true };
        self.write_interval(&mut says)?;
        self.write_lower_half(&mut says)?;
        self.write_bits(&mut says)?;
        if says.is_first { f.write_str("any") } else { Ok(()) }
    }
}

impl<const BITS: u32> Number<BITS> {
    fn write_interval(&self, says: &mut Separated<'_, '_>) -> fmt::Result {
        let (low, high) = self.whole.signed_span(Self::WHOLE);
        let span = self.whole.span();
        if self.whole.positive.is_empty() || self.whole.negative.is_empty() {
            return says.say(format_args!("{}..={}", End(low), End(high)));
        }
        let any = Self::any();
        let is_signed_less = (low.abs_diff(high)) <= span.high - span.low;
        if is_signed_less && self.signed_bounds() != any.signed_bounds() {
            says.say(format_args!("{}..={}", End(low), End(high)))
        } else if self.unsigned_bounds() != any.unsigned_bounds() {
            says.say(format_args!("{}..={}", Unsigned(span.low), Unsigned(span.high)))
        } else {
            Ok(())
        }
    }

    /// The lower half, unless what is said of the word says it already.
    fn write_lower_half(&self, says: &mut Separated<'_, '_>) -> fmt::Result {
        let implied = Self::described(self.whole, super::Pieces::any(Self::HALF), self.bits);
        if implied.half == self.half {
            return Ok(());
        }
        let span = self.half.span();
        let (low, high) = self.half.signed_span(Self::HALF);
        if self.half.negative.is_empty() || low.abs_diff(high) > span.high - span.low {
            says.say(format_args!("lower half {}..={}", Unsigned(span.low), Unsigned(span.high)))
        } else {
            says.say(format_args!("lower half {}..={}", End(low), End(high)))
        }
    }

    /// The lowest bits as a remainder, and others that the intervals do not give.
    fn write_bits(&self, says: &mut Separated<'_, '_>) -> fmt::Result {
        let lowest = self.bits.unknown.trailing_zeros();
        let (divisor, remainder) = (1u64 << lowest.min(63), self.bits.value & ((1 << lowest.min(63)) - 1));
        match (divisor, remainder) {
            (1, _) => {}
            (2, 0) => says.say(format_args!("even"))?,
            (2, _) => says.say(format_args!("odd"))?,
            (divisor, 0) => says.say(format_args!("multiple of {}", Unsigned(divisor)))?,
            (divisor, rest) => {
                says.say(format_args!("{} above a multiple of {}", Unsigned(rest), Unsigned(divisor)))?;
            }
        }
        let known = filled(self.bits.unknown) & !self.bits.unknown & !(divisor - 1);
        let above = Self::WHOLE.mask() & !self.whole.varying() & !filled(self.bits.unknown);
        let prefix = Self::WHOLE.mask() & !filled(self.bits.unknown) & !above;
        let known = known | prefix;
        if known == 0 {
            return Ok(());
        }
        says.say(format_args!("bits {known:#x} are {:#x}", self.bits.value & known))
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
struct End(i64);

impl fmt::Display for End {
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
