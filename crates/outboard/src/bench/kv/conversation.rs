//! One connection to a server that speaks RESP, without its socket: questions in order, and answers that are checked.

use std::collections::VecDeque;
use std::time::Instant;

use super::ledger::{KEY_LEN, Ledger, Shape, append_value, key_text};
use crate::bench::BenchFailure;
use crate::bench::talk::{Dialogue, INPUT_LEN};

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Ask {
    /// The value of a key.
    Read(u32),
    /// The value of a key, in words that a card leaves to the host.
    HostRead(u32),
    /// The length of a key's value.
    Length(u32),
    /// The next version of a key.
    Write(u32),
    /// The first version of a key.
    Create(u32),
    /// Nothing but an answer.
    Ping,
}

/// A question that waits for its answer.
#[derive(Clone, Copy, Debug)]
struct Question {
    ask: Ask,
    /// The oldest version that a read may find.
    oldest: u32,
    /// Since when it is waited for.
    since: Instant,
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply<'a> {
    Word(&'a [u8]),
    Error(&'a [u8]),
    Bytes(&'a [u8]),
    Number(u64),
    Nothing,
}

/// Questions and answers.
pub(super) struct Conversation {
    shape: Shape,
    waiting: VecDeque<Question>,
}

impl Conversation {
    pub(super) fn new(shape: Shape) -> Self {
        Self { shape, waiting: VecDeque::new() }
    }

    fn append_set(&self, output: &mut Vec<u8>, key: u32, version: u32) {
        output.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
        append_key(output, key);
        let len = self.shape.value_len;
        output.extend_from_slice(format!("${len}\r\n").as_bytes());
        append_value(output, len, key, version);
        output.extend_from_slice(b"\r\n");
    }
}

fn append_key(output: &mut Vec<u8>, key: u32) {
    const { assert!(KEY_LEN == 16) };
    output.extend_from_slice(b"$16\r\n");
    output.extend_from_slice(&key_text(key));
    output.extend_from_slice(b"\r\n");
}

impl Dialogue for Conversation {
    type Ask = Ask;
    type Book = Ledger;

    fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn ask(&mut self, ask: Ask, since: Instant, output: &mut Vec<u8>, book: &mut Ledger) {
        let mut oldest = 0;
        match ask {
            Ask::Read(key) => {
                oldest = book.read(key);
                output.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
                append_key(output, key);
            }
            Ask::HostRead(key) => {
                oldest = book.read(key);
                output.extend_from_slice(b"*4\r\n$8\r\nGETRANGE\r\n");
                append_key(output, key);
                output.extend_from_slice(b"$1\r\n0\r\n$2\r\n-1\r\n");
            }
            Ask::Length(key) => {
                output.extend_from_slice(b"*2\r\n$6\r\nSTRLEN\r\n");
                append_key(output, key);
            }
            Ask::Write(key) => self.append_set(output, key, book.write(key)),
            Ask::Create(key) => self.append_set(output, key, 0),
            Ask::Ping => output.extend_from_slice(b"*1\r\n$4\r\nPING\r\n"),
        }
        self.waiting.push_back(Question { ask, oldest, since });
    }

    fn take(
        &mut self,
        bytes: &[u8],
        book: &mut Ledger,
        answered: &mut dyn FnMut(Instant),
    ) -> Result<Option<usize>, BenchFailure> {
        let Some((reply, len)) = parse(bytes)? else { return Ok(None) };
        let question = self.waiting.pop_front().ok_or("an answer to no question")?;
        check(question, reply, self.shape, book)?;
        answered(question.since);
        Ok(Some(len))
    }
}

fn check(
    question: Question,
    reply: Reply<'_>,
    shape: Shape,
    ledger: &mut Ledger,
) -> Result<(), BenchFailure> {
    match (question.ask, reply) {
        (ask, Reply::Error(text)) => {
            Err(format!("{ask:?} was answered with `{}`", String::from_utf8_lossy(text)).into())
        }
        (Ask::Read(key) | Ask::HostRead(key), Reply::Bytes(value)) if value.len() == shape.value_len => {
            ledger.found(key, question.oldest, value)
        }
        (Ask::Read(key), Reply::Nothing) => Err(format!("key {key} is lost").into()),
        (Ask::Write(key), Reply::Word(b"OK")) => {
            ledger.written(key);
            Ok(())
        }
        (Ask::Length(_), Reply::Number(len)) if len == shape.value_len as u64 => Ok(()),
        (Ask::Create(_), Reply::Word(b"OK")) | (Ask::Ping, Reply::Word(b"PONG")) => Ok(()),
        (ask, reply) => Err(format!("{ask:?} was answered with {reply:?}").into()),
    }
}

/// The answer that the bytes begin with, and its length, if all of it is there.
fn parse(bytes: &[u8]) -> Result<Option<(Reply<'_>, usize)>, BenchFailure> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let (line, body) = (&bytes[..end], end + 2);
    let reply = match line.split_first() {
        Some((b'+', word)) => Reply::Word(word),
        Some((b'-', text)) => Reply::Error(text),
        Some((b':', number)) => Reply::Number(std::str::from_utf8(number)?.parse()?),
        Some((b'_', [])) | Some((b'$', b"-1")) => Reply::Nothing,
        Some((b'$', len)) => {
            let len: usize = std::str::from_utf8(len)?.parse()?;
            let Some(rest) = bytes.get(body..body + len.min(INPUT_LEN) + 2) else { return Ok(None) };
            let Some(value) = rest.strip_suffix(b"\r\n") else { return Err("a value has no end".into()) };
            return Ok(Some((Reply::Bytes(value), body + rest.len())));
        }
        _ => return Err(format!("`{}` is no answer", String::from_utf8_lossy(line)).into()),
    };
    Ok(Some((reply, body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { keys: 100, value_len: 8 };

    struct Pair {
        conversation: Conversation,
        ledger: Ledger,
        asked: Vec<u8>,
        answers: usize,
    }

    impl Pair {
        fn new() -> Self {
            let (conversation, ledger) = (Conversation::new(SHAPE), Ledger::new(SHAPE));
            Self { conversation, ledger, asked: Vec::new(), answers: 0 }
        }

        fn ask(&mut self, ask: Ask) {
            self.conversation.ask(ask, Instant::now(), &mut self.asked, &mut self.ledger);
        }

        /// Gives it bytes, a few at a time.
        fn answer(&mut self, bytes: &[u8], step: usize) -> Result<(), BenchFailure> {
            let mut taken = 0;
            for received in (0..bytes.len()).step_by(step).map(|from| bytes.len().min(from + step)) {
                let answered = &mut |_| self.answers += 1;
                while let Some(len) =
                    self.conversation.take(&bytes[taken..received], &mut self.ledger, answered)?
                {
                    taken += len;
                }
            }
            Ok(())
        }
    }

    fn bulk(key: u32, version: u32) -> Vec<u8> {
        let mut bytes = b"$8\r\n".to_vec();
        append_value(&mut bytes, 8, key, version);
        bytes.extend_from_slice(b"\r\n");
        bytes
    }

    #[test]
    fn questions_are_written_as_redis_reads_them() {
        let mut pair = Pair::new();
        pair.ask(Ask::Read(42));
        pair.ask(Ask::Ping);
        let expected = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000042\r\n*1\r\n$4\r\nPING\r\n";
        assert_eq!(pair.asked, expected);
        pair.asked.clear();
        pair.ask(Ask::Write(7));
        let mut expected = b"*3\r\n$3\r\nSET\r\n$16\r\nkey:000000000007\r\n".to_vec();
        expected.extend(bulk(7, 1));
        assert_eq!(pair.asked, expected);
    }

    #[test]
    fn answers_may_come_in_any_pieces() {
        for step in [1, 3, 1000] {
            let mut pair = Pair::new();
            for ask in [Ask::Create(1), Ask::Write(1), Ask::Read(1), Ask::Ping] {
                pair.ask(ask);
            }
            let mut bytes = b"+OK\r\n+OK\r\n".to_vec();
            bytes.extend(bulk(1, 1));
            bytes.extend_from_slice(b"+PONG\r\n");
            pair.answer(&bytes, step).unwrap();
            assert_eq!((pair.answers, pair.conversation.waiting()), (4, 0), "step {step}");
        }
    }

    #[test]
    fn wrong_answers_are_told() {
        let told = |asks: &[Ask], answer: &[u8]| {
            let mut pair = Pair::new();
            for ask in asks {
                pair.ask(*ask);
            }
            pair.answer(answer, 7).unwrap_err().to_string()
        };
        assert_eq!(told(&[Ask::Read(3)], b"$-1\r\n"), "key 3 is lost");
        assert_eq!(told(&[Ask::Read(3)], b"_\r\n"), "key 3 is lost");
        assert_eq!(told(&[Ask::Ping], b"-ERR no\r\n"), "Ping was answered with `ERR no`");
        assert_eq!(told(&[], b"+OK\r\n"), "an answer to no question");
        assert!(told(&[Ask::Read(3)], &bulk(4, 0)).contains("not one that was ever written"));
        let mut pair = Pair::new();
        pair.ask(Ask::Write(3));
        pair.answer(b"+OK\r\n", 9).unwrap();
        pair.ask(Ask::Read(3));
        let told = pair.answer(&bulk(3, 0), 9).unwrap_err().to_string();
        assert_eq!(told, "version 0 of key 3 was read after 1 had replaced it");
    }
}
