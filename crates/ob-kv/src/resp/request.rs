//! Requests, cut out of a stream of bytes.
//!
//! ```text
//!   *3\r\n $3\r\nSET\r\n $1\r\nk\r\n $5\r\nvalue\r\n  *1\r\n $4\r\nPI…
//!   └──────────────────── Request ─────────────────┘  └─ Cut::Part
//! ```
//!
//! A request is an array of byte strings, or, for people with a terminal, a line of words. What Redis refuses is refused
//! here, with its words; and so that nothing has to be looked at twice, the cutter remembers how far it has come in a
//! request that arrives in pieces.

use std::borrow::Cow;

use memchr::memchr;

/// Digits of a length, with its sign, and the end of its line: more is no length.
const NUMBER_LEN_MAX: usize = 32;

/// Bytes of the shortest string, with its length, of which the last two may be missing where a request ends.
const STRING_LEN_MIN: usize = b"$0\r\n\r\n".len();

/// What a request may be at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Strings of a request.
    pub arguments: usize,
    /// Bytes of one of them.
    pub argument_len: usize,
    /// Bytes of all of it.
    pub request_len: usize,
    /// Bytes of a line of words.
    pub line_len: usize,
}

impl Limits {
    /// What a client may say whom the server does not know.
    pub const STRANGER: Self =
        Self { arguments: 10, argument_len: 16 << 10, request_len: 256 << 10, line_len: 16 << 10 };
}

/// Why a stream cannot be cut any further. The connection is told, and closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The number of strings is none, or too great.
    #[error("Protocol error: invalid multibulk length")]
    Count,
    /// The same, for somebody who has not said who he is.
    #[error("Protocol error: unauthenticated multibulk length")]
    StrangerCount,
    /// A number of strings without an end.
    #[error("Protocol error: too big mbulk count string")]
    CountLine,
    /// The length of a string is none, or too great.
    #[error("Protocol error: invalid bulk length")]
    Length,
    /// The same, for somebody who has not said who he is.
    #[error("Protocol error: unauthenticated bulk length")]
    StrangerLength,
    /// A length without an end.
    #[error("Protocol error: too big bulk count string")]
    LengthLine,
    /// Something else where a string should begin.
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0))]
    Unexpected(u8),
    /// A line of words without an end.
    #[error("Protocol error: too big inline request")]
    Line,
    /// A quotation that does not end.
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    /// More than a request may have.
    #[error("Protocol error: too big request")]
    Request,
}

/// What the bytes at the front of a stream are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The begin of a request, of which at least so many bytes are missing.
    Part(usize),
    /// A request of so many bytes: [`Request::new`] reads it.
    Request(usize),
    /// A line of words, of so many bytes: [`Request::of_line`] makes a request of it.
    Line(usize),
    /// So many bytes that ask for nothing.
    Nothing(usize),
}

/// Cuts one connection's stream.
#[derive(Debug, Default)]
pub struct Cutter {
    /// Of a request of which the begin is there: how many bytes of it were looked at, and how many strings are to come.
    within: Option<(usize, usize)>,
}

impl Cutter {
    /// Looks at what is at the front of the stream. Called again with the same bytes and more behind them after
    /// [`Cut::Part`], and with what follows after everything else.
    pub fn cut(&mut self, bytes: &[u8], limits: &Limits, is_stranger: bool) -> Result<Cut, RequestError> {
        let (mut at, mut left) = match (self.within, bytes.first()) {
            (Some(within), _) => within,
            (None, None) => return Ok(Cut::Part(1)),
            (None, Some(b'*')) => match self.count(bytes, limits, is_stranger)? {
                Ok(within) => within,
                Err(cut) => return Ok(cut),
            },
            (None, Some(_)) => return line(bytes, limits),
        };
        while left > 0 {
            let rest = bytes.get(at..).unwrap_or_default();
            let missing = match string(rest, limits, is_stranger)? {
                Step::Whole(len) if rest.len() >= len => {
                    (at, left) = (at + len, left - 1);
                    continue;
                }
                Step::Whole(len) => {
                    if at + len > limits.request_len {
                        return Err(RequestError::Request);
                    }
                    len - rest.len()
                }
                Step::Part => 1,
            };
            self.within = Some((at, left));
            return Ok(Cut::Part(missing));
        }
        self.within = None;
        if at > limits.request_len {
            return Err(RequestError::Request);
        }
        Ok(Cut::Request(at))
    }

    /// Reads how many strings a request has.
    fn count(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
        is_stranger: bool,
    ) -> Result<Result<(usize, usize), Cut>, RequestError> {
        let Some((count, len)) = number(bytes).map_err(|error| match error {
            BadNumber::Digits => RequestError::Count,
            BadNumber::End => RequestError::CountLine,
        })?
        else {
            return Ok(Err(Cut::Part(1)));
        };
        if count <= 0 {
            return Ok(Err(Cut::Nothing(len)));
        }
        match usize::try_from(count) {
            Ok(count) if count <= limits.arguments => Ok(Ok((len, count))),
            _ if is_stranger => Err(RequestError::StrangerCount),
            _ => Err(RequestError::Count),
        }
    }
}

enum Step {
    /// A string that takes so many bytes, with its length and the end of its line.
    Whole(usize),
    Part,
}

/// Looks at a string of a request.
fn string(bytes: &[u8], limits: &Limits, is_stranger: bool) -> Result<Step, RequestError> {
    match bytes.first() {
        None => return Ok(Step::Part),
        Some(b'$') => {}
        Some(other) => return Err(RequestError::Unexpected(*other)),
    }
    let number = number(bytes).map_err(|error| match error {
        BadNumber::Digits => RequestError::Length,
        BadNumber::End => RequestError::LengthLine,
    })?;
    let Some((len, header_len)) = number else { return Ok(Step::Part) };
    match usize::try_from(len) {
        Ok(len) if len <= limits.argument_len => Ok(Step::Whole(header_len + len + 2)),
        _ if is_stranger => Err(RequestError::StrangerLength),
        _ => Err(RequestError::Length),
    }
}

enum BadNumber {
    Digits,
    End,
}

/// The number behind the first byte, and how many bytes its line has; nothing if the line has no end yet.
fn number(bytes: &[u8]) -> Result<Option<(i64, usize)>, BadNumber> {
    let line = bytes.get(..NUMBER_LEN_MAX.min(bytes.len())).unwrap_or_default();
    let Some(end) = memchr(b'\r', line) else {
        return if line.len() < NUMBER_LEN_MAX { Ok(None) } else { Err(BadNumber::End) };
    };
    // Redis does not look at the byte behind the carriage return either.
    if end + 2 > bytes.len() {
        return Ok(None);
    }
    let digits = line.get(1..end).unwrap_or_default();
    let (is_negative, digits) = match digits {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || (digits.len() > 1 && digits.first() == Some(&b'0')) {
        return Err(BadNumber::Digits);
    }
    let mut value = 0_i64;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return Err(BadNumber::Digits);
        }
        let longer = value.checked_mul(10).and_then(|value| value.checked_add(i64::from(digit - b'0')));
        value = longer.ok_or(BadNumber::Digits)?;
    }
    Ok(Some((if is_negative { -value } else { value }, end + 2)))
}

fn line(bytes: &[u8], limits: &Limits) -> Result<Cut, RequestError> {
    let Some(end) = memchr(b'\n', bytes.get(..limits.line_len.min(bytes.len())).unwrap_or_default()) else {
        return if bytes.len() < limits.line_len { Ok(Cut::Part(1)) } else { Err(RequestError::Line) };
    };
    let words = bytes.get(..end).unwrap_or_default();
    let is_empty = words.iter().all(u8::is_ascii_whitespace);
    Ok(if is_empty { Cut::Nothing(end + 1) } else { Cut::Line(end + 1) })
}

/// A whole request.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    bytes: Cow<'a, [u8]>,
}

impl<'a> Request<'a> {
    /// The request that [`Cut::Request`] has found.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes: Cow::Borrowed(bytes) }
    }

    /// The request that a line of words asks for, which [`Cut::Line`] has found.
    pub fn of_line(line: &[u8]) -> Result<Request<'static>, RequestError> {
        let words = words(line)?;
        Ok(Self::of_words(words.iter().map(Vec::as_slice)))
    }

    /// The request that these strings are.
    pub fn of_words<'w>(words: impl Iterator<Item = &'w [u8]>) -> Request<'static> {
        let (mut count, mut strings) = (0, Vec::new());
        for word in words {
            count += 1;
            strings.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            strings.extend_from_slice(word);
            strings.extend_from_slice(b"\r\n");
        }
        let mut bytes = format!("*{count}\r\n").into_bytes();
        bytes.append(&mut strings);
        Request { bytes: Cow::Owned(bytes) }
    }

    /// Its bytes, as a client would send them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its strings. The first is the command.
    pub fn arguments(&self) -> Arguments<'_> {
        match number(&self.bytes) {
            Ok(Some((count, at))) => {
                let rest = self.bytes.get(at..).unwrap_or_default();
                // Nobody has cut the bytes that another half says are a request, and memory is reserved by what this says.
                let count_max = (rest.len() + 2) / STRING_LEN_MIN;
                Arguments { rest, left: usize::try_from(count).unwrap_or(0).min(count_max) }
            }
            _ => Arguments { rest: &[], left: 0 },
        }
    }
}

/// The strings of a request.
#[derive(Clone, Debug)]
pub struct Arguments<'a> {
    rest: &'a [u8],
    left: usize,
}

impl<'a> Iterator for Arguments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.left == 0 {
            return None;
        }
        let (len, at) = number(self.rest).ok().flatten()?;
        let end = at.checked_add(usize::try_from(len).ok()?)?;
        let argument = self.rest.get(at..end)?;
        self.rest = self.rest.get(end + 2..).unwrap_or_default();
        self.left -= 1;
        Some(argument)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Arguments<'_> {}

/// Cuts a line into words as Redis does: quotes keep spaces, and in double ones a backslash names other bytes.
fn words(line: &[u8]) -> Result<Vec<Vec<u8>>, RequestError> {
    let mut words = Vec::new();
    let mut rest = line;
    loop {
        let start = rest.iter().position(|byte| !byte.is_ascii_whitespace());
        let Some(start) = start else { return Ok(words) };
        let mut word = Vec::new();
        rest = rest.get(start..).unwrap_or_default();
        rest = loop {
            match rest {
                [] => break rest,
                [byte, ..] if byte.is_ascii_whitespace() => break rest,
                [b'"', tail @ ..] => rest = quoted(tail, b'"', &mut word)?,
                [b'\'', tail @ ..] => rest = quoted(tail, b'\'', &mut word)?,
                [byte, tail @ ..] => {
                    word.push(*byte);
                    rest = tail;
                }
            }
        };
        words.push(word);
    }
}

/// Takes what is in quotes; what follows them ends the word, or the quotes are wrong.
fn quoted<'a>(mut rest: &'a [u8], quote: u8, word: &mut Vec<u8>) -> Result<&'a [u8], RequestError> {
    loop {
        match rest {
            [] => return Err(RequestError::Quotes),
            [b'\\', b'x', high, low, tail @ ..]
                if quote == b'"' && high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                word.push(hexadecimal(*high) << 4 | hexadecimal(*low));
                rest = tail;
            }
            [b'\\', byte, tail @ ..] if quote == b'"' => {
                word.push(match byte {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                rest = tail;
            }
            [b'\\', b'\'', tail @ ..] if quote == b'\'' => {
                word.push(b'\'');
                rest = tail;
            }
            [byte, tail @ ..] if *byte == quote => {
                return match tail.first() {
                    Some(byte) if !byte.is_ascii_whitespace() => Err(RequestError::Quotes),
                    _ => Ok(tail),
                };
            }
            [byte, tail @ ..] => {
                word.push(*byte);
                rest = tail;
            }
        }
    }
}

fn hexadecimal(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => (digit | 0x20).wrapping_sub(b'a').wrapping_add(10),
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
