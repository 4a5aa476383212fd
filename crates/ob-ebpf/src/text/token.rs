//! A line, cut into tokens.

use super::{Fault, Unreadable};

/// What a line is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// A name, a mnemonic or a register; the `%` before a register is not part of it.
    Word(&'a str),
    /// A number without its sign.
    Number {
        /// Its value.
        value: u64,
        /// Whether it was written with `0x`, and therefore means bits.
        is_hex: bool,
    },
    /// An operator, or punctuation.
    Sign(&'static str),
}

/// A token and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    /// What.
    pub(super) kind: Kind<'a>,
    /// As it was written.
    pub(super) text: &'a str,
    /// Its first character, counted from 1.
    pub(super) column: usize,
}

/// Longer ones first, so that none hides another.
const SIGNS: [&str; 31] = [
    "<<=", ">>=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "^=", "==", "!=", ">=", "<=", ">", "<", "&", "=",
    "+", "-", "*", "(", ")", "[", "]", ",", ":", "@", "/", "%", "|",
];

/// The tokens of a line, without its comment.
pub(super) fn tokens(line: &str) -> Result<Vec<Token<'_>>, Fault> {
    let mut tokens = Vec::new();
    let mut rest = line;
    let mut column = 1;
    while let Some(first) = rest.chars().next() {
        if first == '#' || first == ';' || rest.starts_with("//") {
            break;
        }
        let (len, kind) = if first.is_ascii_whitespace() {
            (first.len_utf8(), None)
        } else {
            token(rest, first).map(|(len, kind)| (len, Some(kind))).map_err(|what| Fault { column, what })?
        };
        // A token is of ASCII only, so that its bytes are its characters.
        let (text, behind) = rest.split_at_checked(len).unwrap_or((rest, ""));
        if let Some(kind) = kind {
            tokens.push(Token { kind, text, column });
        }
        rest = behind;
        column += len;
    }
    Ok(tokens)
}

/// The first token of a text that begins with no space: its length, and what it is.
fn token(rest: &str, first: char) -> Result<(usize, Kind<'_>), Unreadable> {
    let word_len = |text: &str| text.find(|c| !is_word(c)).unwrap_or(text.len());
    if let Some(register) = rest.strip_prefix('%')
        && register.starts_with(['r', 'w'])
    {
        let len = word_len(register);
        return Ok((len + 1, Kind::Word(register.get(..len).unwrap_or(register))));
    }
    if first.is_ascii_digit() {
        let text = rest.get(..word_len(rest)).unwrap_or(rest);
        let (digits, radix) = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
            Some(digits) => (digits, 16),
            None => (text, 10),
        };
        // `from_str_radix` would take a sign as well, but no word has one.
        let value = u64::from_str_radix(digits, radix)
            .map_err(|_| Unreadable::Expected { expected: "a number of 64 bits", found: text.into() })?;
        return Ok((text.len(), Kind::Number { value, is_hex: radix == 16 }));
    }
    if is_word(first) {
        let text = rest.get(..word_len(rest)).unwrap_or(rest);
        return Ok((text.len(), Kind::Word(text)));
    }
    let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign)).ok_or(Unreadable::Character(first))?;
    Ok((sign.len(), Kind::Sign(sign)))
}

/// Whether a character can be part of a name.
pub(super) fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$')
}
