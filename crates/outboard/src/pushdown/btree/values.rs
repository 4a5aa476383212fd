//! Values of a tree, as they are typed and shown.

use clap::ValueEnum;
use ob_pushdown::btree::VALUE_LEN;

use crate::pushdown::text::escaped;

/// How a value of 64 bytes is written in a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Values {
    /// The line's own bytes, with zeros behind them
    #[default]
    Text,
    /// Up to eight numbers of eight bytes each, with blanks between them
    Numbers,
    /// Hexadecimal digits, two a byte
    Hex,
}

impl Values {
    /// What a line says; or what is wrong with it.
    pub(super) fn parse(self, text: &[u8]) -> Result<[u8; VALUE_LEN], String> {
        let utf8 = || std::str::from_utf8(text).map(str::trim).map_err(|_| "the value is no text".to_owned());
        let bytes = match self {
            Self::Text => text.to_vec(),
            Self::Numbers => {
                let number = |word: &str| {
                    let parsed = word.parse::<u64>();
                    parsed.map_err(|_| format!("`{word}` is no number from 0 to {}", u64::MAX))
                };
                let words = utf8()?.split_whitespace();
                let numbers: Vec<u64> = words.map(number).collect::<Result<_, _>>()?;
                numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
            }
            Self::Hex => {
                let digits = utf8()?;
                crate::nvme::unhex(digits).ok_or_else(|| format!("`{digits}` are no bytes in hexadecimal"))?
            }
        };
        let mut value = [0; VALUE_LEN];
        let Some(head) = value.get_mut(..bytes.len()) else {
            return Err(format!("the value has {} bytes, more than {VALUE_LEN}", bytes.len()));
        };
        head.copy_from_slice(&bytes);
        Ok(value)
    }

    /// A value in a line. Zeros at its end are those that every shorter value has there; they are shown in hexadecimal alone.
    pub(super) fn show(self, value: &[u8; VALUE_LEN]) -> String {
        let without_end = |len: usize| value.get(..len).unwrap_or_default();
        let used = value.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        match self {
            Self::Text => escaped(without_end(used)),
            Self::Numbers => {
                let (words, _) = without_end(used.next_multiple_of(8).max(8)).as_chunks::<8>();
                let numbers: Vec<String> =
                    words.iter().map(|word| u64::from_le_bytes(*word).to_string()).collect();
                numbers.join(" ")
            }
            Self::Hex => crate::nvme::hex(value),
        }
    }

    /// A value to try things with.
    pub(super) fn sample(self, key: u64) -> [u8; VALUE_LEN] {
        let mut value = [0; VALUE_LEN];
        let bytes = match self {
            Self::Text | Self::Hex => format!("value {key}").into_bytes(),
            Self::Numbers => [key, key % 100].map(u64::to_le_bytes).concat(),
        };
        if let Some(head) = value.get_mut(..bytes.len()) {
            head.copy_from_slice(&bytes);
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_can_be_typed_again() {
        for (values, text) in [
            (Values::Text, "some text"),
            (Values::Text, ""),
            (Values::Numbers, "0"),
            (Values::Numbers, "7 0 18446744073709551615"),
            (Values::Hex, &"0a".repeat(VALUE_LEN)),
        ] {
            let value = values.parse(text.as_bytes()).unwrap();
            assert_eq!(values.show(&value), text);
        }
        assert_eq!(Values::Numbers.show(&Values::Text.parse(b"\x05\0\0\0\0\0\0\0\x06").unwrap()), "5 6");
        assert_eq!(Values::Text.show(&Values::Hex.parse(b"410a5c").unwrap()), "A\\n\\\\");
        for values in [Values::Text, Values::Numbers, Values::Hex] {
            let sample = values.sample(u64::MAX);
            assert_eq!(values.parse(values.show(&sample).as_bytes()), Ok(sample));
        }
    }

    #[test]
    fn what_is_no_value_is_refused() {
        for (values, text, problem) in [
            (Values::Text, "x".repeat(65), "65 bytes, more than 64"),
            (Values::Numbers, "1 2 3 4 5 6 7 8 9".to_owned(), "72 bytes"),
            (Values::Numbers, "-1".to_owned(), "`-1` is no number"),
            (Values::Numbers, "18446744073709551616".to_owned(), "is no number"),
            (Values::Hex, "abc".to_owned(), "no bytes in hexadecimal"),
        ] {
            let refused = values.parse(text.as_bytes()).unwrap_err();
            assert!(refused.contains(problem), "{refused}");
        }
    }
}
