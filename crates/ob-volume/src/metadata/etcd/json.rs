//! As much of JSON as etcd's gateway says: read whole, with a bound of depth.
//!
//! (A library for it would be one for all of this crate.)

use std::fmt::Write;

/// Lists and objects within each other.
const DEPTH_MAX: usize = 32;
/// Values of one answer: a page of a list has some ten of each entry. Each takes far more memory than the byte or two that may say it.
const VALUES_MAX: usize = 1 << 16;

/// What was said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Json {
    Null,
    Truth(bool),
    /// As it was written.
    Number(String),
    Text(String),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

impl Json {
    /// Reads all of these bytes; nothing, if they are none.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader { rest: std::str::from_utf8(bytes).ok()?, values: 0 };
        let value = reader.value(0)?;
        reader.rest.trim_start_matches(SPACE).is_empty().then_some(value)
    }

    /// A field of an object: the last of that name, as others read it.
    pub(super) fn get(&self, name: &str) -> Option<&Self> {
        match self {
            Self::Object(fields) => {
                fields.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    pub(super) const fn is_object(&self) -> bool {
        matches!(self, Self::Object(_))
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn as_list(&self) -> Option<&[Self]> {
        if let Self::List(list) = self { Some(list) } else { None }
    }

    pub(super) const fn as_truth(&self) -> Option<bool> {
        if let Self::Truth(truth) = self { Some(*truth) } else { None }
    }

    /// A whole number, which may stand in quotes: those of 64 bits do.
    pub(super) fn as_number<N: std::str::FromStr>(&self) -> Option<N> {
        match self {
            Self::Number(text) | Self::Text(text) => text.parse().ok(),
            _ => None,
        }
    }
}

/// An object of these fields, whose values are JSON already.
pub(super) fn object(fields: &[(&str, String)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(name, value)| format!("{}:{value}", text(name))).collect();
    format!("{{{}}}", fields.join(","))
}

/// A list of what is JSON already.
pub(super) fn list(values: impl Iterator<Item = String>) -> String {
    format!("[{}]", values.collect::<Vec<_>>().join(","))
}

/// A text, in quotes.
pub(super) fn text(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            character if character.is_control() => {
                // Writing to a text does not fail. (All controls are below 65536.)
                let _ = write!(quoted, "\\u{:04x}", u32::from(character));
            }
            character => quoted.push(character),
        }
    }
    quoted + "\""
}

const SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

struct Reader<'a> {
    rest: &'a str,
    /// How many there were.
    values: usize,
}

impl Reader<'_> {
    /// Takes this mark, behind spaces, if it comes next.
    fn take(&mut self, mark: char) -> bool {
        self.rest = self.rest.trim_start_matches(SPACE);
        let rest = self.rest.strip_prefix(mark);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        self.values += 1;
        if depth > DEPTH_MAX || self.values > VALUES_MAX {
            return None;
        }
        if self.take('{') {
            return self.fields(depth).map(Json::Object);
        }
        if self.take('[') {
            return self.items(depth).map(Json::List);
        }
        if self.take('"') {
            return self.text().map(Json::Text);
        }
        for (word, value) in
            [("null", Json::Null), ("true", Json::Truth(true)), ("false", Json::Truth(false))]
        {
            if let Some(rest) = self.rest.strip_prefix(word) {
                self.rest = rest;
                return Some(value);
            }
        }
        let is_part = |character: char| character.is_ascii_digit() || "+-.eE".contains(character);
        let end = self.rest.find(|character| !is_part(character)).unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at_checked(end)?;
        self.rest = rest;
        number.parse::<f64>().is_ok_and(f64::is_finite).then(|| Json::Number(number.to_owned()))
    }

    fn fields(&mut self, depth: usize) -> Option<Vec<(String, Json)>> {
        let mut fields = Vec::new();
        if self.take('}') {
            return Some(fields);
        }
        loop {
            let name = self.take('"').then(|| self.text())??;
            let value = self.take(':').then(|| self.value(depth + 1))??;
            fields.push((name, value));
            if self.take('}') {
                return Some(fields);
            }
            self.take(',').then_some(())?;
        }
    }

    fn items(&mut self, depth: usize) -> Option<Vec<Json>> {
        let mut items = Vec::new();
        if self.take(']') {
            return Some(items);
        }
        loop {
            items.push(self.value(depth + 1)?);
            if self.take(']') {
                return Some(items);
            }
            self.take(',').then_some(())?;
        }
    }

    /// A text, behind its first quote.
    fn text(&mut self) -> Option<String> {
        let mut text = String::new();
        loop {
            let end = self.rest.find(['"', '\\'])?;
            let (plain, rest) = self.rest.split_at_checked(end)?;
            if plain.chars().any(|character| character < ' ') {
                return None;
            }
            text.push_str(plain);
            let mut characters = rest.chars();
            if characters.next()? == '"' {
                self.rest = characters.as_str();
                return Some(text);
            }
            let escaped = characters.next()?;
            self.rest = characters.as_str();
            text.push(match escaped {
                '"' | '\\' | '/' => escaped,
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'u' => self.unicode()?,
                _ => return None,
            });
        }
    }

    /// What four digits name, or twice four.
    fn unicode(&mut self) -> Option<char> {
        let first = self.digits()?;
        if !(0xd800..0xdc00).contains(&first) {
            return char::from_u32(first);
        }
        self.rest = self.rest.strip_prefix("\\u")?;
        let second = self.digits().filter(|second| (0xdc00..0xe000).contains(second))?;
        char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00))
    }

    fn digits(&mut self) -> Option<u32> {
        let (digits, rest) = self.rest.split_at_checked(4)?;
        self.rest = rest;
        let is_legal = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_legal.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_said_is_read_and_what_is_none_is_not() {
        let said = Json::parse(
            br#" { "a" : [ 1, -2.5e3, "\u00e9\ud83d\ude00\n\"" ] , "b":{}, "c":[],"d":null,"e":true } "#,
        );
        let said = said.unwrap();
        let list = said.get("a").and_then(Json::as_list).unwrap();
        assert_eq!(list[0].as_number::<u64>(), Some(1));
        assert_eq!((list[1].as_number::<u64>(), list[1].as_number::<f64>()), (None, Some(-2500.0)));
        assert_eq!(list[2].as_text(), Some("\u{e9}\u{1f600}\n\""));
        assert_eq!(said.get("e").and_then(Json::as_truth), Some(true));
        assert!(said.get("b").is_some_and(Json::is_object) && said.get("f").is_none());
        assert_eq!(Json::parse(br#"{"a":1,"a":"2"}"#).unwrap().get("a").and_then(Json::as_number), Some(2));
        for wrong in [
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\"}",
            "{\"a\":}",
            "{a:1}",
            "[1 2]",
            "\"",
            "\"\\x\"",
            "\"\\ud800\"",
            "\"\\u12\"",
            "1 1",
            "+",
            "--1",
            "nul",
            "{\"a\":1,}",
            "\"\n\"",
            "1e999",
            "[1]]",
            "'a'",
        ] {
            assert_eq!(Json::parse(wrong.as_bytes()), None, "{wrong}");
        }
        assert_eq!(Json::parse(&[b'[', 0xff, b']']), None);
        let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(Json::parse(deep(DEPTH_MAX).as_bytes()).is_some());
        assert_eq!(Json::parse(deep(100_000).as_bytes()), None);
        let many = |count: usize| format!("[0{}]", ",0".repeat(count - 2));
        assert!(Json::parse(many(VALUES_MAX).as_bytes()).is_some());
        assert_eq!(Json::parse(many(VALUES_MAX + 1).as_bytes()), None);
    }

    proptest! {
        #[test]
        fn every_text_comes_back(name in ".*", value in any::<String>()) {
            let said = Json::parse(object(&[(&name, list([text(&value)].into_iter()))]).as_bytes()).unwrap();
            prop_assert_eq!(said, Json::Object(vec![(name, Json::List(vec![Json::Text(value)]))]));
        }

        #[test]
        fn no_bytes_are_too_much_for_it(bytes in proptest::collection::vec(any::<u8>(), 0..200), marks in "[\\[\\]{}:,\"\\\\u0-9a-f ]{0,60}") {
            let _ = Json::parse(&bytes);
            let _ = Json::parse(marks.as_bytes());
        }
    }
}
