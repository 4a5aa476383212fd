//! Asks a status endpoint. One request of HTTP/1.0 needs no library: the answer ends where the connection does.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::Status;
use crate::deadline::Until;

/// How long it may take to connect, and as long again to be told.
const TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// Why there is no status to show.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// Nobody is there.
    #[error(
        "nothing listens on {address}\n\
         hint: start Outboard with `outboard up`; if its status is served elsewhere, name the place with \
         --endpoint ADDRESS or --config FILE"
    )]
    NobodyThere {
        /// Where we asked.
        address: SocketAddr,
    },
    /// Somebody is there, and the conversation failed.
    #[error("no status from {address}: {source}")]
    Conversation {
        /// Where we asked.
        address: SocketAddr,
        /// What happened.
        source: io::Error,
    },
    /// What came is no status.
    #[error("what listens on {address} is not an Outboard card: {reason}")]
    NotOutboard {
        /// Where we asked.
        address: SocketAddr,
        /// What was wrong with the answer.
        reason: String,
    },
}

/// Asks a card for its status.
pub fn fetch(address: SocketAddr) -> Result<Status, StatusError> {
    let conversation = |source| StatusError::Conversation { address, source };
    let stream = match TcpStream::connect_timeout(&address, TIMEOUT) {
        Ok(stream) => stream,
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return Err(StatusError::NobodyThere { address });
        }
        Err(error) => return Err(conversation(error)),
    };
    let answer = converse(Until::new(&stream, TIMEOUT), address).map_err(conversation)?;
    parse(&answer).map_err(|reason| StatusError::NotOutboard { address, reason })
}

fn converse(mut stream: Until<'_, TcpStream>, address: SocketAddr) -> io::Result<Vec<u8>> {
    write!(stream, "GET /status HTTP/1.0\r\nHost: {address}\r\nAccept: application/json\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

fn parse(answer: &[u8]) -> Result<Status, String> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").ok_or("it does not speak HTTP")?;
    let (head, body) = (String::from_utf8_lossy(&answer[..end]), &answer[end + 4..]);
    let first = head.lines().next().unwrap_or_default();
    let mut words = first.split(' ');
    if !words.next().is_some_and(|protocol| protocol.starts_with("HTTP/")) {
        return Err("it does not speak HTTP".to_owned());
    }
    if words.next() != Some("200") {
        return Err(format!("it answered `{first}`"));
    }
    serde_json::from_slice(body).map_err(|error| format!("its answer is not a status ({error})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_strangers_are_refused_with_a_reason() {
        assert_eq!(parse(b"").unwrap_err(), "it does not speak HTTP");
        assert_eq!(parse(b"SSH-2.0-x\r\n\r\n").unwrap_err(), "it does not speak HTTP");
        assert_eq!(
            parse(b"HTTP/1.0 404 Not Found\r\n\r\n").unwrap_err(),
            "it answered `HTTP/1.0 404 Not Found`"
        );
        let error = parse(b"HTTP/1.1 200 OK\r\nx: y\r\n\r\n{}").unwrap_err();
        assert!(error.starts_with("its answer is not a status (missing field"), "{error}");
    }
}
