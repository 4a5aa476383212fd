//! A whole service, which `outboard bench remote` measures: files that are read and written over the network, many at a time (DDS §8.1).
//!
//! Reads are answered by the card, whose files they are; writes go to the host, which may do with them what it likes before it
//! writes them to the same files. A write is answered when it is in the file, so a read that is sent afterwards finds it, whoever
//! answers: there is nothing to look up in the table, and nothing to invalidate.
//!
//! A message of a client is a head and requests; everything is little-endian:
//!
//! | field | offset | bytes | meaning |
//! |---|---|---|---|
//! | `length` | 0 | 4 | bytes of the whole message |
//! | `count` | 4 | 4 | requests in it |
//!
//! | field | offset | bytes | meaning |
//! |---|---|---|---|
//! | `id` | 0 | 8 | what its reply is known by |
//! | `offset` | 8 | 8 | where in the file |
//! | `file` | 16 | 4 | the name that the host has given the file |
//! | `length` | 20 | 4 | bytes to read or write |
//! | `kind` | 24 | 4 | 1: read; 2: write, and its bytes follow |
//! | `reserved` | 28 | 4 | 0 |
//!
//! Each request gets a reply, in any order; the bytes of a read follow it:
//!
//! | field | offset | bytes | meaning |
//! |---|---|---|---|
//! | `id` | 0 | 8 | of the request |
//! | `status` | 8 | 4 | 0: done; 1: it cannot be done; 2: the host is away, try again; 3: it went away, nobody knows |
//! | `length` | 12 | 4 | bytes that follow |

use ob_table::Hit;

use crate::{
    Application, Cut, FileRead, ReadBytes, Reason, Reply, ReplyOrder, Requests, Route, Standing, Verdict,
    cut_by_length,
};

/// Bytes of a message before its requests.
pub const MESSAGE_HEAD_LEN: usize = 8;
/// Bytes of a request, without those that a write brings.
pub const REQUEST_LEN: usize = 32;
/// Bytes of a reply, without those that were read.
pub const REPLY_LEN: usize = 16;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// It was done.
    Done = 0,
    /// It cannot be done.
    Wrong = 1,
    /// The host is away; nothing was done.
    Away = 2,
    /// The host went away while it had the request.
    Lost = 3,
}

/// A request as it lies in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRequest {
    /// What its reply is known by.
    pub id: u64,
    /// Where in the file.
    pub offset: u64,
    /// The file.
    pub file: u32,
    /// Bytes to read or write.
    pub length: u32,
    /// Whether its bytes follow, to be written.
    pub is_write: bool,
}

impl RemoteRequest {
    /// Its bytes; those of a write follow.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        bytes[..8].copy_from_slice(&self.id.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.file.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.length.to_le_bytes());
        bytes[24] = 1 + u8::from(self.is_write);
        bytes
    }

    /// The request at the front of some bytes, and how many of them it takes with what it writes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        let head: &[u8; REQUEST_LEN] = bytes.first_chunk()?;
        let is_write = match word(head, 24)? {
            1 => false,
            2 => true,
            _ => return None,
        };
        let (file, length) = (word(head, 16)?, word(head, 20)?);
        let len = REQUEST_LEN + if is_write { length as usize } else { 0 };
        let request = Self { id: long(head, 0)?, offset: long(head, 8)?, file, length, is_write };
        (len <= bytes.len()).then_some((request, len))
    }
}

/// The head of a message with requests of so many bytes.
#[must_use]
pub fn message_head(count: u32, requests_len: u32) -> [u8; MESSAGE_HEAD_LEN] {
    let length = requests_len.saturating_add(MESSAGE_HEAD_LEN as u32);
    let mut bytes = [0; MESSAGE_HEAD_LEN];
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[4..].copy_from_slice(&count.to_le_bytes());
    bytes
}

/// A reply; `length` bytes follow.
#[must_use]
pub fn reply(id: u64, status: Status, length: u32) -> [u8; REPLY_LEN] {
    let mut bytes = [0; REPLY_LEN];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes[8..12].copy_from_slice(&(status as u32).to_le_bytes());
    bytes[12..].copy_from_slice(&length.to_le_bytes());
    bytes
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|chunk| u32::from_le_bytes(*chunk))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|chunk| u64::from_le_bytes(*chunk))
}

/// Files over the network.
#[derive(Clone, Copy, Debug)]
pub struct RemoteFiles {
    /// Bytes of the longest message.
    pub message_len_max: usize,
}

impl Default for RemoteFiles {
    fn default() -> Self {
        Self { message_len_max: 1 << 20 }
    }
}

impl Application for RemoteFiles {
    type Cutter = ();

    const REPLIES: ReplyOrder = ReplyOrder::ById;

    fn cut(&self, (): &mut (), bytes: &[u8], _: Standing, _: &mut Vec<u8>) -> Cut {
        cut_by_length(bytes, MESSAGE_HEAD_LEN..=self.message_len_max)
    }

    fn predicate(&self, message: &[u8], _: Standing, requests: &mut Requests) {
        let mut at = MESSAGE_HEAD_LEN;
        for _ in 0..word(message, 4).unwrap_or(0) {
            let rest = message.get(at..).unwrap_or_default();
            // What is none ends the message. Its client will wait for replies, as it would if it had not sent it.
            let Some((request, len)) = RemoteRequest::decode(rest) else { return };
            let route = if request.is_write { Route::to_host(Reason::Write) } else { Route::Card };
            requests.push(at..at + len, request.id, route);
            at += len;
        }
    }

    fn function(
        &self,
        request: &[u8],
        _: &[Hit],
        _: u64,
        reads: &mut Vec<FileRead>,
        _: &mut Reply,
    ) -> Verdict {
        let Some((request, _)) = RemoteRequest::decode(request) else {
            return Verdict::Host(Reason::Command);
        };
        reads.push(FileRead { file: request.file, offset: request.offset, len: request.length });
        Verdict::Read
    }

    fn check(&self, request: &[u8], _: &[Hit], read: &ReadBytes<'_>, into: &mut Reply) -> bool {
        let (Some((request, _)), Some(bytes)) = (RemoteRequest::decode(request), read.get(0)) else {
            return false;
        };
        into.bytes(&reply(request.id, Status::Done, request.length));
        into.read(0, 0..bytes.len());
        true
    }

    fn unavailable(&self, id: u64, was_forwarded: bool, into: &mut Vec<u8>) {
        let status = if was_forwarded { Status::Lost } else { Status::Away };
        into.extend_from_slice(&reply(id, status, 0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(requests: &[(RemoteRequest, &[u8])]) -> Vec<u8> {
        let bytes: Vec<u8> =
            requests.iter().flat_map(|(request, data)| [&request.encode()[..], data].concat()).collect();
        [&message_head(requests.len() as u32, bytes.len() as u32)[..], &bytes].concat()
    }

    fn read(id: u64) -> RemoteRequest {
        RemoteRequest { id, offset: 4096 * id, file: 3, length: 512, is_write: false }
    }

    #[test]
    fn reads_are_the_cards_and_writes_the_hosts() {
        let write = RemoteRequest { length: 4, is_write: true, ..read(2) };
        let message = message(&[(read(1), b""), (write, b"data"), (read(3), b"")]);
        let service = RemoteFiles::default();
        assert_eq!(service.cut(&mut (), &message, Standing(1), &mut Vec::new()), Cut::Message(message.len()));
        let mut requests = Requests::default();
        service.predicate(&message, Standing(1), &mut requests);
        let routes: Vec<_> = (0..requests.len()).filter_map(|at| requests.get(at)).collect();
        assert_eq!(routes.iter().map(|request| request.id).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(matches!(routes[1].route, Route::Host { reason: Reason::Write, .. }));
        assert_eq!(routes[2].route, Route::Card);
        assert!(message[routes[1].bytes.clone()].ends_with(b"data"));
        let mut reads = Vec::new();
        let third = &message[routes[2].bytes.clone()];
        assert_eq!(service.function(third, &[], 0, &mut reads, &mut Reply::default()), Verdict::Read);
        assert_eq!(reads, [FileRead { file: 3, offset: 3 * 4096, len: 512 }]);
    }

    #[test]
    fn messages_are_cut_wherever_they_are_torn_and_nonsense_is_refused() {
        let message = message(&[(read(1), b"")]);
        let service = RemoteFiles::default();
        let cut = |bytes: &[u8]| service.cut(&mut (), bytes, Standing(1), &mut Vec::new());
        for len in 0..message.len() {
            let Cut::Part(missing) = cut(&message[..len]) else { panic!("{len} bytes are not all") };
            assert!(missing >= 1 && len + missing <= message.len());
        }
        assert_eq!(cut(&[7, 0, 0, 0]), Cut::Wrong);
        assert_eq!(cut(&[0xff; 4]), Cut::Wrong);
        // A count that promises more than there is, and a kind that is not one.
        let mut requests = Requests::default();
        let mut liar = message.clone();
        liar[4] = 9;
        service.predicate(&liar, Standing(1), &mut requests);
        assert_eq!(requests.len(), 1);
        liar[MESSAGE_HEAD_LEN + 24] = 7;
        requests.clear();
        service.predicate(&liar, Standing(1), &mut requests);
        assert!(requests.is_empty());
    }
}
