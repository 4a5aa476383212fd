//! As much of HTTP/1.1 as etcd's gateway needs: a request with a body, and its answer, one a connection.

use std::fmt::Write;

/// Most bytes of the lines before a body.
const HEAD_LEN_MAX: usize = 16 << 10;
/// Most bytes of a body: a page of the longest values is some six million.
const BODY_LEN_MAX: usize = 16 << 20;
/// Most bytes of an answer, with all that says how long its parts are.
const ANSWER_LEN_MAX: usize = 2 * BODY_LEN_MAX;
/// Answers that only say that there will be one.
const INTERIM_MAX: usize = 8;

/// What has come of an answer so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpAnswer {
    /// There is more to come.
    More,
    /// All of it.
    Whole {
        /// Such as 200.
        status: u16,
        /// What was said.
        body: Vec<u8>,
    },
    /// It is no answer, or too long a one.
    Broken,
}

/// How long a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Known(usize),
    Chunked,
    /// Until the connection ends.
    Unsaid,
}

/// A request to post this text, on a connection that ends with its answer.
#[must_use]
pub fn http_post(host: &str, path: &str, body: &str) -> Vec<u8> {
    let mut text = format!("POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n");
    // Writing to a text does not fail.
    let _ = write!(text, "Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    text.into_bytes()
}

/// Reads an answer, of which these bytes have come; whether the connection is over, which ends some.
#[must_use]
pub fn http_answer(bytes: &[u8], is_over: bool) -> HttpAnswer {
    let parsed = parse(bytes, is_over);
    match parsed {
        Some(HttpAnswer::More) if is_over => HttpAnswer::Broken,
        Some(answer) => answer,
        None => HttpAnswer::Broken,
    }
}

fn parse(bytes: &[u8], is_over: bool) -> Option<HttpAnswer> {
    let mut rest = bytes;
    for _ in 0..=INTERIM_MAX {
        let end = rest.windows(4).take(HEAD_LEN_MAX).position(|window| window == b"\r\n\r\n");
        let Some(end) = end else {
            return (rest.len() < HEAD_LEN_MAX).then_some(HttpAnswer::More);
        };
        let (head, behind) = (rest.get(..end)?, rest.get(end + 4..)?);
        let mut lines = std::str::from_utf8(head).ok()?.split("\r\n");
        let status = status_of(lines.next()?)?;
        let length = lines.try_fold(Length::Unsaid, length_of)?;
        if !(100..200).contains(&status) {
            let body = body(behind, length, is_over)?;
            let is_too_long = body.is_none() && bytes.len() > ANSWER_LEN_MAX;
            return (!is_too_long)
                .then(|| body.map_or(HttpAnswer::More, |body| HttpAnswer::Whole { status, body }));
        }
        // Only what follows is the answer.
        rest = behind;
    }
    None
}

/// The body, if it is whole; nothing if it cannot be one.
fn body(rest: &[u8], length: Length, is_over: bool) -> Option<Option<Vec<u8>>> {
    match length {
        Length::Known(len) if len > BODY_LEN_MAX => None,
        Length::Known(len) => Some(rest.get(..len).map(<[u8]>::to_vec)),
        Length::Chunked => match chunks(rest)? {
            Chunks::More => Some(None),
            Chunks::Whole(body) => Some(Some(body)),
        },
        Length::Unsaid if rest.len() > BODY_LEN_MAX => None,
        Length::Unsaid => Some(is_over.then(|| rest.to_vec())),
    }
}

fn status_of(line: &str) -> Option<u16> {
    let code = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5))?;
    code.parse().ok().filter(|code| (100..600).contains(code))
}

fn length_of(known: Length, line: &str) -> Option<Length> {
    let (name, value) = line.split_once(':')?;
    let value = value.trim();
    if name.eq_ignore_ascii_case("transfer-encoding") {
        return value.eq_ignore_ascii_case("chunked").then_some(Length::Chunked);
    }
    if name.eq_ignore_ascii_case("content-length") && known != Length::Chunked {
        return value.parse().ok().map(Length::Known);
    }
    Some(known)
}

enum Chunks {
    More,
    Whole(Vec<u8>),
}

fn chunks(mut rest: &[u8]) -> Option<Chunks> {
    let mut body = Vec::new();
    loop {
        let Some(end) = rest.windows(2).position(|window| window == b"\r\n") else {
            return (rest.len() < HEAD_LEN_MAX).then_some(Chunks::More);
        };
        let line = std::str::from_utf8(rest.get(..end)?).ok()?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let len = usize::from_str_radix(size, 16).ok().filter(|len| body.len() + len <= BODY_LEN_MAX)?;
        rest = rest.get(end + 2..)?;
        if len == 0 {
            // What may follow means nothing here, but that it ends.
            let is_ended = rest.starts_with(b"\r\n") || rest.windows(4).any(|window| window == b"\r\n\r\n");
            return Some(if is_ended { Chunks::Whole(body) } else { Chunks::More });
        }
        let Some(chunk) = rest.get(..len + 2) else { return Some(Chunks::More) };
        let (chunk, mark) = chunk.split_at_checked(len)?;
        if mark != b"\r\n" {
            return None;
        }
        body.extend_from_slice(chunk);
        rest = rest.get(len + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(status: u16, body: &[u8]) -> HttpAnswer {
        HttpAnswer::Whole { status, body: body.to_vec() }
    }

    #[test]
    fn an_answer_is_whole_when_all_of_it_is_there_and_not_before() {
        for text in [
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{\"a\":1}",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length:7\r\n\r\n{\"a\":1}",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{\"a\r\n4;x=y\r\n\":1}\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\n{\"a\":1}\r\n0\r\nTrailer: x\r\n\r\n",
        ] {
            assert_eq!(http_answer(text.as_bytes(), false), whole(200, b"{\"a\":1}"), "{text}");
            assert_eq!(http_answer(text.as_bytes(), true), whole(200, b"{\"a\":1}"), "{text}");
            for len in 0..text.len() {
                assert_eq!(http_answer(&text.as_bytes()[..len], false), HttpAnswer::More, "{len} of {text}");
                assert_eq!(http_answer(&text.as_bytes()[..len], true), HttpAnswer::Broken, "{len} of {text}");
            }
        }
        let unsaid = b"HTTP/1.0 503 No\r\n\r\nlater";
        assert_eq!(http_answer(unsaid, false), HttpAnswer::More);
        assert_eq!(http_answer(unsaid, true), whole(503, b"later"));
    }

    #[test]
    fn what_is_no_answer_or_too_long_is_broken() {
        for text in [
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 9 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno header\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n",
        ] {
            assert_eq!(http_answer(text.as_bytes(), false), HttpAnswer::Broken, "{text}");
        }
        assert_eq!(http_answer(&[b'a'; HEAD_LEN_MAX + 4], false), HttpAnswer::Broken);
        let interim = "HTTP/1.1 100 Continue\r\n\r\n";
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        let many = |count: usize| http_answer((interim.repeat(count) + answer).as_bytes(), false);
        assert_eq!(many(INTERIM_MAX), whole(200, b""));
        assert_eq!(many(INTERIM_MAX + 1), HttpAnswer::Broken);
        assert_eq!(many(100_000), HttpAnswer::Broken);
        // A byte a chunk, each with as many lines as may be before it.
        let chunk = format!("1;{}\r\na\r\n", "x".repeat(HEAD_LEN_MAX / 2));
        let endless = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned()
            + &chunk.repeat(ANSWER_LEN_MAX / chunk.len() + 1);
        assert_eq!(http_answer(endless.as_bytes(), false), HttpAnswer::Broken);
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_much_for_it(bytes in proptest::collection::vec(any::<u8>(), 0..300), is_over in any::<bool>()) {
            let _ = http_answer(&bytes, is_over);
            let _ = http_answer(&[b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", &bytes[..]].concat(), is_over);
        }
    }
}
