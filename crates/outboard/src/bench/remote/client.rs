//! A client of remote files, without its socket: messages of several requests, and replies that are checked.

use std::collections::HashMap;
use std::time::Instant;

use ob_offload::remote::{REPLY_LEN, RemoteRequest, message_head};

use crate::bench::BenchFailure;
use crate::bench::load::{Direction, check, stamp};
use crate::bench::talk::Dialogue;

/// The name of the file, whoever serves it.
pub(super) const FILE: u32 = 1;

/// A message: requests of one kind at places of the file.
pub(super) struct Message {
    pub(super) direction: Direction,
    /// Bytes of each request.
    pub(super) len: usize,
    pub(super) offsets: Vec<u64>,
}

/// A request that waits for its reply.
struct Waiting {
    /// The message that it belongs to.
    message: u64,
    offset: u64,
    direction: Direction,
    len: usize,
}

/// A message of which not everything was answered.
struct Open {
    since: Instant,
    left: usize,
}

/// Messages and replies of one connection.
#[derive(Default)]
pub(super) struct RemoteDialogue {
    /// By their ids.
    requests: HashMap<u64, Waiting>,
    messages: HashMap<u64, Open>,
    next: u64,
}

/// The id, the status, and how many bytes follow.
fn reply_head(head: &[u8; REPLY_LEN]) -> (u64, u32, usize) {
    let [i0, i1, i2, i3, i4, i5, i6, i7, s0, s1, s2, s3, l0, l1, l2, l3] = *head;
    let id = u64::from_le_bytes([i0, i1, i2, i3, i4, i5, i6, i7]);
    (id, u32::from_le_bytes([s0, s1, s2, s3]), u32::from_le_bytes([l0, l1, l2, l3]) as usize)
}

impl Dialogue for RemoteDialogue {
    type Ask = Message;
    type Book = ();

    fn ask(&mut self, ask: Message, since: Instant, output: &mut Vec<u8>, (): &mut ()) {
        let is_write = ask.direction == Direction::Write;
        let request_len = ob_offload::remote::REQUEST_LEN + if is_write { ask.len } else { 0 };
        let head = message_head(ask.offsets.len() as u32, (ask.offsets.len() * request_len) as u32);
        output.extend_from_slice(&head);
        let message = self.next;
        self.messages.insert(message, Open { since, left: ask.offsets.len() });
        for offset in ask.offsets {
            let id = self.next;
            self.next += 1;
            let length = ask.len as u32;
            let request = RemoteRequest { id, offset, file: FILE, length, is_write };
            output.extend_from_slice(&request.encode());
            if is_write {
                let begin = output.len();
                output.resize(begin + ask.len, 0);
                stamp(&mut output[begin..], offset);
            }
            let waiting = Waiting { message, offset, direction: ask.direction, len: ask.len };
            self.requests.insert(id, waiting);
        }
    }

    fn waiting(&self) -> usize {
        self.messages.len()
    }

    fn take(
        &mut self,
        bytes: &[u8],
        (): &mut (),
        answered: &mut dyn FnMut(Instant),
    ) -> Result<Option<usize>, BenchFailure> {
        let Some((head, rest)) = bytes.split_first_chunk::<REPLY_LEN>() else { return Ok(None) };
        let (id, status, len) = reply_head(head);
        let Some(data) = rest.get(..len) else { return Ok(None) };
        let request = self.requests.remove(&id).ok_or("a reply to no request")?;
        if status != 0 {
            return Err(format!("a request at {} was answered with status {status}", request.offset).into());
        }
        match request.direction {
            Direction::Read if len == request.len => check(data, request.offset)?,
            Direction::Write if len == 0 => {}
            Direction::Read | Direction::Write => return Err("a reply has another length".into()),
        }
        if let Some(open) = self.messages.get_mut(&request.message) {
            open.left -= 1;
            if open.left == 0 {
                answered(open.since);
                self.messages.remove(&request.message);
            }
        }
        Ok(Some(REPLY_LEN + len))
    }
}

#[cfg(test)]
mod tests {
    use ob_offload::remote::{MESSAGE_HEAD_LEN, REQUEST_LEN, Status, reply};

    use super::*;

    /// A dialogue that has asked for two places, and what it said.
    fn asked(direction: Direction) -> (RemoteDialogue, Vec<u8>) {
        let (mut dialogue, mut output) = (RemoteDialogue::default(), Vec::new());
        let message = Message { direction, len: 1024, offsets: vec![4096, 0] };
        dialogue.ask(message, Instant::now(), &mut output, &mut ());
        (dialogue, output)
    }

    /// How many answers one reply completes.
    fn receive(dialogue: &mut RemoteDialogue, reply: &[u8]) -> Result<usize, BenchFailure> {
        let mut answers = 0;
        assert_eq!(dialogue.take(&reply[..reply.len() - 1], &mut (), &mut |_| answers += 1)?, None);
        assert_eq!(dialogue.take(reply, &mut (), &mut |_| answers += 1)?, Some(reply.len()));
        Ok(answers)
    }

    fn read(id: u64, offset: u64) -> Vec<u8> {
        let mut data = vec![0; 1024];
        stamp(&mut data, offset);
        [&reply(id, Status::Done, 1024)[..], &data].concat()
    }

    #[test]
    fn a_message_is_answered_when_all_of_its_requests_are() {
        let (mut dialogue, output) = asked(Direction::Read);
        assert_eq!(output.len(), MESSAGE_HEAD_LEN + 2 * REQUEST_LEN);
        assert_eq!(receive(&mut dialogue, &read(1, 0)).unwrap(), 0);
        assert_eq!(dialogue.waiting(), 1);
        assert_eq!(receive(&mut dialogue, &read(0, 4096)).unwrap(), 1);
        assert_eq!(dialogue.waiting(), 0);
    }

    #[test]
    fn writes_bring_what_belongs_at_their_place() {
        let (_, output) = asked(Direction::Write);
        let first = &output[MESSAGE_HEAD_LEN..];
        let (request, len) = RemoteRequest::decode(first).unwrap();
        assert_eq!((request.offset, request.length, len), (4096, 1024, REQUEST_LEN + 1024));
        check(&first[REQUEST_LEN..len], 4096).unwrap();
    }

    #[test]
    fn wrong_replies_are_told() {
        let is_wrong = |direction, reply: &[u8]| receive(&mut asked(direction).0, reply).is_err();
        assert!(is_wrong(Direction::Read, &read(1, 4096)), "the bytes of another place");
        assert!(is_wrong(Direction::Read, &read(7, 0)), "a reply to no request");
        assert!(is_wrong(Direction::Write, &reply(0, Status::Wrong, 0)), "a refusal");
    }
}
