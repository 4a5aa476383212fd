//! The commands that both servers get: a text that people read, one command a line.
//!
//! ```text
//!   == name                 a new connection, and nothing stored; `== locked: name` where a password is needed
//!   SET k "a b\x00"         words as redis-cli cuts them
//!   > 2 PING\r\nPING\r\n    these bytes, which are answered with two replies
//!   >close 1 *x\r\n         the same, and the server ends the connection
//!   # a reason
//!   @near 1000 PTTL k       a reply that may differ, in one certain way; the line before says why
//! ```

use std::fmt;

use anyhow::{Context, Result, bail};

use super::reply::encoded;

/// In which way replies may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tolerance {
    /// In none: byte by byte they are the same.
    Exact,
    /// Both are numbers, and this close.
    Near(i64),
    /// The same replies within, in any order.
    AnyOrder,
    /// Maps, or arrays of pairs, with the same keys.
    SameKeys,
    /// Both begin with the same byte.
    SameKind,
    /// Redis has the command, and we say that there is none in its words.
    Missing,
    /// Redis does it, and we say with an error that we do not.
    Refused,
    /// Whatever it is, it is a reply, and no error where Redis has none.
    Anything,
}

/// Bytes to send, and what has to come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The line of the script, from 1.
    pub line: usize,
    /// As the script has it.
    pub text: String,
    /// The strings of the request, where it is not raw bytes.
    pub words: Vec<Vec<u8>>,
    /// What is sent.
    pub bytes: Vec<u8>,
    /// How many replies come.
    pub replies: usize,
    /// Whether the server ends the connection behind them.
    pub closes: bool,
    /// In which way replies may differ.
    pub tolerance: Tolerance,
}

impl fmt::Display for Exchange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: {}", self.line, self.text)
    }
}

/// Commands that build on each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// What they are about.
    pub name: String,
    /// Whether the servers want a password.
    pub is_locked: bool,
    /// In order, on one connection.
    pub exchanges: Vec<Exchange>,
}

/// Reads a script.
///
/// # Errors
/// When a line is not one of those above; the text says which.
pub fn parse(text: &str) -> Result<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    let mut before = "";
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if let Some(name) = line.strip_prefix("== ") {
            let (is_locked, name) = match name.strip_prefix("locked: ") {
                Some(name) => (true, name),
                None => (false, name),
            };
            groups.push(Group { name: name.to_owned(), is_locked, exchanges: Vec::new() });
        } else if !line.trim().is_empty() && !line.starts_with('#') {
            if line.starts_with('@') && !before.starts_with('#') && !before.starts_with('@') {
                bail!("line {number}: nobody says why the replies may differ");
            }
            let exchange = exchange(number, line).with_context(|| format!("line {number}: {line}"))?;
            groups.last_mut().context("the first line names no group")?.exchanges.push(exchange);
        }
        before = line;
    }
    Ok(groups)
}

fn exchange(number: usize, line: &str) -> Result<Exchange> {
    let (tolerance, rest) = tolerance(line)?;
    let (closes, raw) = match (rest.strip_prefix("> "), rest.strip_prefix(">close ")) {
        (Some(raw), _) => (false, Some(raw)),
        (_, Some(raw)) => (true, Some(raw)),
        _ => (false, None),
    };
    let (words, bytes, replies) = match raw {
        Some(raw) => {
            let (count, bytes) = raw.split_once(' ').context("how many replies?")?;
            (Vec::new(), unescaped(bytes)?, count.parse().context("how many replies?")?)
        }
        None => {
            let words = words(rest)?;
            let bytes = encoded(&words);
            (words, bytes, 1)
        }
    };
    Ok(Exchange { line: number, text: line.to_owned(), words, bytes, replies, closes, tolerance })
}

fn tolerance(line: &str) -> Result<(Tolerance, &str)> {
    let Some(tagged) = line.strip_prefix('@') else { return Ok((Tolerance::Exact, line)) };
    let (tag, rest) = tagged.split_once(' ').context("no command")?;
    Ok(match tag {
        "near" => {
            let (distance, rest) = rest.split_once(' ').context("no command")?;
            (Tolerance::Near(distance.parse().context("how near?")?), rest)
        }
        "order" => (Tolerance::AnyOrder, rest),
        "keys" => (Tolerance::SameKeys, rest),
        "kind" => (Tolerance::SameKind, rest),
        "missing" => (Tolerance::Missing, rest),
        "refused" => (Tolerance::Refused, rest),
        "any" => (Tolerance::Anything, rest),
        other => bail!("unknown tag @{other}"),
    })
}

/// Words, of which those in double quotes may have spaces and escapes.
fn words(line: &str) -> Result<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (word, behind) = match rest.strip_prefix('"') {
            Some(quoted) => {
                let end = closing_quote(quoted).context("a quotation does not end")?;
                (unescaped(&quoted[..end])?, &quoted[end + 1..])
            }
            None => {
                let end = rest.find(' ').unwrap_or(rest.len());
                (rest.as_bytes()[..end].to_vec(), &rest[end..])
            }
        };
        words.push(word);
        rest = behind.trim_start();
    }
    Ok(words)
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

/// Bytes with `\r`, `\n`, `\\`, `\"`, `\xHH`, and `\*N*TEXT*` for a text many times over.
fn unescaped(text: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        rest = &rest[at + 1..];
        let escape = rest.chars().next().context("nothing behind a backslash")?;
        rest = &rest[escape.len_utf8()..];
        match escape {
            'r' => bytes.push(b'\r'),
            'n' => bytes.push(b'\n'),
            '\\' | '"' => bytes.push(u8::try_from(escape)?),
            'x' => {
                let digits = rest.get(..2).context("two digits behind \\x")?;
                bytes.push(u8::from_str_radix(digits, 16)?);
                rest = &rest[2..];
            }
            '*' => {
                let mut parts = rest.splitn(3, '*');
                let (Some(count), Some(repeated), Some(behind)) = (parts.next(), parts.next(), parts.next())
                else {
                    bail!("\\*COUNT*TEXT* is how a text is repeated");
                };
                bytes.extend_from_slice(repeated.repeat(count.parse()?).as_bytes());
                rest = behind;
            }
            other => bail!("unknown escape \\{other}"),
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_words_or_bytes_and_say_what_may_differ() {
        let text = "== one\nSET k \"a b\\x00\\\"\"\n\n== locked: two\n> 2 PING\\r\\nPING\\r\\n\n# Time goes by.\n@near 5 PTTL k\n\
                    >close 1 \\*3*x*\n";
        let groups = parse(text).unwrap();
        assert_eq!((groups.len(), groups[0].is_locked, groups[1].is_locked), (2, false, true));
        assert_eq!(groups[0].exchanges[0].words, [&b"SET"[..], b"k", b"a b\0\""]);
        let [raw, near, closing] = &groups[1].exchanges[..] else { panic!("{groups:?}") };
        assert_eq!((raw.bytes.as_slice(), raw.replies, raw.closes), (&b"PING\r\nPING\r\n"[..], 2, false));
        assert_eq!((near.tolerance, near.words.len(), near.line), (Tolerance::Near(5), 2, 7));
        assert_eq!((closing.bytes.as_slice(), closing.closes), (&b"xxx"[..], true));
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (text, told) in [
            ("PING", "names no group"),
            ("== a\nPING\n@any INFO", "line 3: nobody says why"),
            ("== a\n#\n@often INFO", "line 3"),
            ("== a\nSET \"k", "line 2"),
            ("== a\n> PING", "line 2"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(told), "{text}: {error}");
        }
    }
}
