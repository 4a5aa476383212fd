//! Sizes and durations as people write them: `64MiB`, `10s`.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

const SIZE_UNITS: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

const DURATION_UNITS: &[(&str, u64)] = &[
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl ByteSize {
    /// Reads a number with a unit, such as `64MiB`.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        parse(text, SIZE_UNITS).map(ByteSize)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only powers of two are written back: they are what memory is counted in.
        formatter.write_str(&format(self.0, &SIZE_UNITS[..4], "B"))
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteRate(pub u64);

impl ByteRate {
    /// Reads a number of bytes a second, such as `64MiB/s`.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        let size = text.trim().strip_suffix("/s").unwrap_or(text);
        ByteSize::parse(size).map(|size| Self(size.0))
    }
}

impl fmt::Display for ByteRate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/s", ByteSize(self.0))
    }
}

impl Serialize for ByteRate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A part of a whole, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(pub u32);

impl fmt::Display for Share {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", f64::from(self.0) / 1000.0)
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(f64::from(self.0) / 1000.0)
    }
}

/// A length of time, exact to the nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(pub Duration);

impl TimeSpan {
    /// Reads a number with a unit, such as `10s`. A bare `0` needs no unit.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        if text.trim() == "0" {
            return Ok(Self(Duration::ZERO));
        }
        parse(text, DURATION_UNITS).map(|nanoseconds| Self(Duration::from_nanos(nanoseconds)))
    }
}

impl fmt::Display for TimeSpan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        formatter.write_str(&format(nanoseconds, DURATION_UNITS, "s"))
    }
}

impl Serialize for TimeSpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Why a text is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// It does not begin with a number.
    #[error("it does not begin with a number")]
    NoNumber,
    /// The number has no unit.
    #[error("the unit is missing; the units are {0}")]
    NoUnit(String),
    /// The unit is none that exists here.
    #[error("there is no unit `{unit}`; the units are {known}")]
    UnknownUnit {
        /// What was written.
        unit: String,
        /// What could have been.
        known: String,
    },
    /// The number does not fit.
    #[error("the number is too large")]
    TooLarge,
}

fn parse(text: &str, units: &[(&str, u64)]) -> Result<u64, QuantityError> {
    let text = text.trim();
    let digits = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(QuantityError::NoNumber);
    }
    let known = || units.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let unit = unit.trim_start();
    if unit.is_empty() {
        return Err(QuantityError::NoUnit(known()));
    }
    let Some((_, factor)) = units.iter().find(|(name, _)| *name == unit) else {
        return Err(QuantityError::UnknownUnit { unit: unit.to_owned(), known: known() });
    };
    let number: u64 = number.parse().map_err(|_| QuantityError::TooLarge)?;
    number.checked_mul(*factor).ok_or(QuantityError::TooLarge)
}

/// The shortest exact form: the largest unit that divides the number.
fn format(number: u64, units: &[(&str, u64)], smallest: &str) -> String {
    let exact = units.iter().find(|(_, factor)| number >= *factor && number.is_multiple_of(*factor));
    match exact {
        Some((unit, factor)) => format!("{}{unit}", number / factor),
        None => format!("{number}{smallest}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn common_forms_are_read() {
        assert_eq!(ByteSize::parse("64MiB"), Ok(ByteSize(64 << 20)));
        assert_eq!(ByteSize::parse("1 GB"), Ok(ByteSize(1_000_000_000)));
        assert_eq!(TimeSpan::parse("50us"), Ok(TimeSpan(Duration::from_micros(50))));
        assert_eq!(TimeSpan::parse("0"), Ok(TimeSpan(Duration::ZERO)));
        assert_eq!(TimeSpan::parse("2min"), Ok(TimeSpan(Duration::from_secs(120))));
    }

    #[test]
    fn mistakes_are_told_apart() {
        assert_eq!(ByteSize::parse("MiB"), Err(QuantityError::NoNumber));
        assert_eq!(ByteSize::parse("-1MiB"), Err(QuantityError::NoNumber));
        assert!(matches!(ByteSize::parse("64"), Err(QuantityError::NoUnit(_))));
        assert!(matches!(ByteSize::parse("64Mb"), Err(QuantityError::UnknownUnit { .. })));
        assert_eq!(ByteSize::parse("99999999TiB"), Err(QuantityError::TooLarge));
        assert_eq!(TimeSpan::parse("99999999999999999999h"), Err(QuantityError::TooLarge));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(bytes: u64, nanoseconds: u64) {
            let size = ByteSize(bytes);
            prop_assert_eq!(ByteSize::parse(&size.to_string()), Ok(size));
            let span = TimeSpan(Duration::from_nanos(nanoseconds));
            prop_assert_eq!(TimeSpan::parse(&span.to_string()), Ok(span));
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = ByteSize::parse(&text);
            let _ = TimeSpan::parse(&text);
        }
    }
}
