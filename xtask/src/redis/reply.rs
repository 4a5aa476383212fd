//! Replies as they come over a connection: cut out of the stream, kept byte by byte, and readable.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Longer than any reply takes on a busy machine; reached only when a server does not answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Replies hold replies, but no command's are deeper than this.
const DEPTH_MAX: usize = 16;

/// What a reply says, whatever its version of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reply {
    /// A line: a status, an error, a number, nothing.
    Line(u8, Vec<u8>),
    /// A string with its length before it, or none.
    String(u8, Option<Vec<u8>>),
    /// Several replies, or none. Those of a map are keys and values in turn.
    Many(u8, Option<Vec<Reply>>),
}

impl Reply {
    /// The byte that it begins with.
    #[must_use]
    pub fn kind(&self) -> u8 {
        match self {
            Self::Line(kind, _) | Self::String(kind, _) | Self::Many(kind, _) => *kind,
        }
    }

    /// The number that it is.
    #[must_use]
    pub fn number(&self) -> Option<i64> {
        match self {
            Self::Line(b':', digits) => std::str::from_utf8(digits).ok()?.parse().ok(),
            _ => None,
        }
    }
}

/// A reply, with the bytes that it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// What it says.
    pub reply: Reply,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A connection to a server, which sends bytes and reads replies.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Connection {
    /// To a port of this machine.
    ///
    /// # Errors
    /// When nobody takes it.
    pub fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// Sends bytes as they are.
    ///
    /// # Errors
    /// When they cannot be sent.
    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// The next reply.
    ///
    /// # Errors
    /// When the connection ends before it is whole, or it is no reply.
    pub fn receive(&mut self) -> Result<Received> {
        loop {
            if let Some((reply, len)) = parse(&self.buffer, DEPTH_MAX)? {
                let rest = self.buffer.split_off(len);
                return Ok(Received { reply, bytes: std::mem::replace(&mut self.buffer, rest) });
            }
            if self.read()? == 0 {
                bail!("the connection ended after {:?}", String::from_utf8_lossy(&self.buffer));
            }
        }
    }

    /// Waits until the other side ends the connection.
    ///
    /// # Errors
    /// When it says more instead.
    pub fn wait_for_end(&mut self) -> Result<()> {
        while self.buffer.is_empty() {
            match self.read() {
                // A server that did not read everything ends a connection with a reset.
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {}
            }
        }
        bail!("the connection should have ended, and said {:?}", String::from_utf8_lossy(&self.buffer))
    }

    fn read(&mut self) -> Result<usize> {
        let mut piece = [0; 16 << 10];
        let len = self.stream.read(&mut piece).context("no reply came")?;
        self.buffer.extend_from_slice(piece.get(..len).unwrap_or_default());
        Ok(len)
    }
}

/// Strings as clients send them.
#[must_use]
pub fn encoded(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// The reply at the front of the bytes and its length, or nothing if it is not all there.
fn parse(bytes: &[u8], depth_left: usize) -> Result<Option<(Reply, usize)>> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let (Some((kind, line)), at) = (bytes.get(..end).unwrap_or_default().split_first(), end + 2) else {
        bail!("a reply begins with an empty line");
    };
    let count = || -> Result<Option<usize>> {
        let text = std::str::from_utf8(line)?;
        if text == "-1" { Ok(None) } else { Ok(Some(text.parse().with_context(|| format!("`{text}`"))?)) }
    };
    match kind {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Ok(Some((Reply::Line(*kind, line.to_vec()), at))),
        b'$' | b'=' | b'!' => {
            let Some(len) = count()? else { return Ok(Some((Reply::String(*kind, None), at))) };
            let Some(rest) = bytes.get(at..at + len + 2) else { return Ok(None) };
            let (string, end) = rest.split_at(len);
            if end != b"\r\n" {
                bail!("a string of {len} bytes does not end there");
            }
            Ok(Some((Reply::String(*kind, Some(string.to_vec())), at + len + 2)))
        }
        b'*' | b'%' | b'~' | b'>' => {
            let Some(count) = count()? else { return Ok(Some((Reply::Many(*kind, None), at))) };
            let count = if *kind == b'%' { count * 2 } else { count };
            let Some(depth_left) = depth_left.checked_sub(1) else { bail!("replies within replies") };
            many(bytes, *kind, at, count, depth_left)
        }
        other => bail!("a reply begins with {:?}", char::from(*other)),
    }
}

fn many(
    bytes: &[u8],
    kind: u8,
    mut at: usize,
    count: usize,
    depth_left: usize,
) -> Result<Option<(Reply, usize)>> {
    let mut replies = Vec::new();
    for _ in 0..count {
        let Some((reply, len)) = parse(bytes.get(at..).unwrap_or_default(), depth_left)? else {
            return Ok(None);
        };
        replies.push(reply);
        at += len;
    }
    Ok(Some((Reply::Many(kind, Some(replies)), at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_whole_or_not_there() {
        let texts: [&[u8]; 9] = [
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":-7\r\n",
            b"_\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"$4\r\na\r\nb\r\n",
            b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
            b"%1\r\n+k\r\n*0\r\n",
        ];
        for text in texts {
            for len in 0..text.len() {
                assert_eq!(parse(&text[..len], DEPTH_MAX).unwrap(), None, "{len} of {text:?}");
            }
            let more = [text, b"+more\r\n"].concat();
            assert_eq!(parse(&more, DEPTH_MAX).unwrap().unwrap().1, text.len());
        }
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        for text in ["?\r\n", "\r\n", "$x\r\n", "$1\r\nabc\r\n"] {
            assert!(parse(text.as_bytes(), DEPTH_MAX).is_err(), "{text:?}");
        }
        assert!(parse("*1\r\n".repeat(DEPTH_MAX + 1).as_bytes(), DEPTH_MAX).is_err());
    }
}
