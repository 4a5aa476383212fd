//! Arguments of commands: numbers and options, as strict as Redis is with them.

use super::errors::{self, Refusal};

/// A number, written in the one way in which Redis writes it.
pub(crate) fn integer(text: &[u8]) -> Result<i64, Refusal> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let is_canonical = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    let text = std::str::from_utf8(text).ok().filter(|_| is_canonical);
    text.and_then(|text| text.parse().ok()).ok_or(errors::NOT_AN_INTEGER)
}

/// A time as a client gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GivenTime {
    value: i64,
    is_seconds: bool,
    is_relative: bool,
}

impl GivenTime {
    /// Milliseconds since 1970; a time that is not positive is an error, one that is past is not.
    pub(crate) fn positive(self, now_ms: u64, command: &str) -> Result<u64, Refusal> {
        let unit = if self.is_seconds { 1000 } else { 1 };
        let base = if self.is_relative { i64::try_from(now_ms).ok() } else { Some(0) };
        let value = Some(self.value).filter(|value| *value > 0).and_then(|value| value.checked_mul(unit));
        let sum = value.zip(base).and_then(|(value, base)| value.checked_add(base));
        sum.and_then(|sum| u64::try_from(sum).ok()).ok_or_else(|| errors::invalid_expire(command))
    }
}

/// What `SET` is to do about the time at which the key is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// Leave it.
    Keep,
    /// Make it this one.
    Given(GivenTime),
}

impl Expiry {
    /// So long from now on.
    pub(crate) fn relative(value: i64, is_seconds: bool) -> GivenTime {
        GivenTime { value, is_seconds, is_relative: true }
    }
}

/// The options of `SET`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetOptions {
    pub(crate) only_absent: bool,
    pub(crate) only_present: bool,
    pub(crate) wants_old: bool,
    pub(crate) expiry: Option<Expiry>,
}

impl SetOptions {
    /// Reads them.
    pub(crate) fn parse<'a>(mut words: impl Iterator<Item = &'a [u8]>) -> Result<Self, Refusal> {
        let mut options = Self::default();
        let mut time: Option<(Vec<u8>, &[u8])> = None;
        let mut keeps = false;
        while let Some(word) = words.next() {
            let word = word.to_ascii_lowercase();
            match word.as_slice() {
                b"nx" if !options.only_present => options.only_absent = true,
                b"xx" if !options.only_absent => options.only_present = true,
                b"get" => options.wants_old = true,
                b"keepttl" if time.is_none() => keeps = true,
                // The same unit twice is allowed, and the last one counts.
                b"ex" | b"px" | b"exat" | b"pxat"
                    if !keeps && time.as_ref().is_none_or(|(unit, _)| *unit == word) =>
                {
                    time = Some((word, words.next().ok_or(errors::SYNTAX)?));
                }
                _ => return Err(errors::SYNTAX),
            }
        }
        options.expiry = match time {
            Some((unit, value)) => Some(Expiry::Given(GivenTime {
                value: integer(value)?,
                is_seconds: unit.starts_with(b"ex"),
                is_relative: unit.len() == 2,
            })),
            None => keeps.then_some(Expiry::Keep),
        };
        Ok(options)
    }
}

/// The options of `EXPIRE` and its kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpireOptions {
    only_absent: bool,
    only_present: bool,
    only_greater: bool,
    only_less: bool,
}

impl ExpireOptions {
    /// Reads them.
    pub(crate) fn parse<'a>(words: impl Iterator<Item = &'a [u8]>) -> Result<Self, Refusal> {
        let mut options = Self::default();
        for word in words {
            match word.to_ascii_lowercase().as_slice() {
                b"nx" => options.only_absent = true,
                b"xx" => options.only_present = true,
                b"gt" => options.only_greater = true,
                b"lt" => options.only_less = true,
                _ => {
                    let shown = String::from_utf8_lossy(word.get(..word.len().min(128)).unwrap_or_default());
                    return Err(errors::other(format!("ERR Unsupported option {shown}")));
                }
            }
        }
        if options.only_absent && (options.only_present || options.only_greater || options.only_less) {
            return Err(errors::OPTIONS_NX);
        }
        if options.only_greater && options.only_less {
            return Err(errors::OPTIONS_GT_LT);
        }
        Ok(options)
    }

    /// Whether a key that is gone at `current` may be gone at `when` instead. Never is later than any time.
    pub(crate) fn admits(self, current: Option<u64>, when: i64) -> bool {
        let current = current.map(|current| i64::try_from(current).unwrap_or(i64::MAX));
        !(self.only_absent && current.is_some()
            || self.only_present && current.is_none()
            || self.only_greater && current.is_none_or(|current| when <= current)
            || self.only_less && current.is_some_and(|current| when >= current))
    }
}

/// The arguments of `SCAN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScanArguments<'a> {
    pub(crate) cursor: u64,
    pub(crate) pattern: Option<&'a [u8]>,
    pub(crate) count: usize,
    /// Whether it asks for another type than there is.
    pub(crate) is_other_type: bool,
}

impl<'a> ScanArguments<'a> {
    /// Reads them.
    pub(crate) fn parse(mut words: impl Iterator<Item = &'a [u8]>) -> Result<Self, Refusal> {
        let cursor = words.next().unwrap_or_default();
        let is_digits = !cursor.is_empty() && cursor.iter().all(u8::is_ascii_digit);
        let cursor = std::str::from_utf8(cursor).ok().filter(|_| is_digits);
        let cursor = cursor.and_then(|cursor| cursor.parse().ok()).ok_or(errors::INVALID_CURSOR)?;
        let mut arguments = Self { cursor, pattern: None, count: 10, is_other_type: false };
        while let Some(word) = words.next() {
            let value = words.next().ok_or(errors::SYNTAX)?;
            match word.to_ascii_lowercase().as_slice() {
                b"match" => arguments.pattern = Some(value),
                b"count" => {
                    let count = usize::try_from(integer(value)?).ok().filter(|count| *count > 0);
                    arguments.count = count.ok_or(errors::SYNTAX)?;
                }
                b"type" => arguments.is_other_type = !value.eq_ignore_ascii_case(b"string"),
                _ => return Err(errors::SYNTAX),
            }
        }
        Ok(arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_one_way() {
        for text in ["0", "-1", "9223372036854775807", "-9223372036854775808"] {
            assert_eq!(integer(text.as_bytes()).unwrap().to_string(), text);
        }
        for text in ["", "-", "-0", "01", "+1", " 1", "1 ", "1.0", "9223372036854775808", "x"] {
            assert_eq!(integer(text.as_bytes()), Err(errors::NOT_AN_INTEGER), "{text}");
        }
    }

    fn set(words: &str) -> Result<SetOptions, Refusal> {
        SetOptions::parse(words.split_ascii_whitespace().map(str::as_bytes))
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        assert_eq!(set("nx xx"), Err(errors::SYNTAX));
        assert_eq!(set("ex 1 px 1"), Err(errors::SYNTAX));
        assert_eq!(set("ex 1 keepttl"), Err(errors::SYNTAX));
        assert_eq!(set("keepttl ex 1"), Err(errors::SYNTAX));
        assert_eq!(set("ex"), Err(errors::SYNTAX));
        assert_eq!(set("ex x"), Err(errors::NOT_AN_INTEGER));
        let time = GivenTime { value: 5, is_seconds: false, is_relative: false };
        assert_eq!(set("PXAT 5 Get XX").unwrap().expiry, Some(Expiry::Given(time)));
    }

    #[test]
    fn times_that_are_not_positive_or_too_great_are_refused() {
        let positive = |words: &str| match set(words).unwrap().expiry {
            Some(Expiry::Given(time)) => time.positive(1000, "set"),
            _ => unreachable!(),
        };
        assert_eq!(positive("ex 5"), Ok(6000));
        assert_eq!(positive("exat 5"), Ok(5000));
        assert_eq!(positive("pxat 5"), Ok(5));
        for words in ["ex 0", "px -1", "ex 9223372036854775807", "px 9223372036854775807"] {
            assert_eq!(positive(words), Err(errors::invalid_expire("set")), "{words}");
        }
    }

    #[test]
    fn conditions_on_the_expiry_are_as_in_redis() {
        let admits = |words: &str, current, when| {
            let options = ExpireOptions::parse(words.split_ascii_whitespace().map(str::as_bytes)).unwrap();
            options.admits(current, when)
        };
        assert!(admits("nx", None, 5) && !admits("nx", Some(9), 5));
        assert!(!admits("xx", None, 5) && admits("xx", Some(9), 5));
        assert!(!admits("gt", None, 5) && admits("gt", Some(4), 5) && !admits("gt", Some(5), 5));
        assert!(admits("lt", None, 5) && admits("lt", Some(6), 5) && !admits("lt", Some(5), 5));
        assert!(ExpireOptions::parse([&b"gt"[..], b"nx"].into_iter()).is_err());
    }
}
