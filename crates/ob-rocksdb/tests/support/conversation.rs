//! What is said to the peer, and by it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use ob_rocksdb::Sequence;

/// The peer at work: a line is said, and lines are answered.
pub(crate) struct Conversation {
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Conversation {
    /// Starts the peer, which has opened its database then.
    pub(crate) fn begin(command: &mut Command) -> std::io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let commands = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut conversation = Self { child, commands, answers };
        // Whatever it answers, it has opened the database before.
        conversation.tell("churned");
        Ok(conversation)
    }

    pub(crate) fn tell(&mut self, command: &str) -> Vec<String> {
        writeln!(self.commands.as_mut().unwrap(), "{command}").unwrap();
        let mut answer = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).unwrap() > 0, "the peer died at {command:?}");
            match line.trim_end() {
                "." => return answer,
                line => answer.push(line.to_owned()),
            }
        }
    }
}

impl Drop for Conversation {
    /// Ends the process as a crash does: nothing is closed.
    fn drop(&mut self) {
        drop(self.commands.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn bytes(hex: &str) -> Vec<u8> {
    if hex == "-" {
        return Vec::new();
    }
    (0..hex.len() / 2).map(|index| u8::from_str_radix(&hex[2 * index..2 * index + 2], 16).unwrap()).collect()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() { "-".to_owned() } else { bytes.iter().map(|byte| format!("{byte:02X}")).collect() }
}

pub(crate) fn family(hex: &str) -> String {
    String::from_utf8(bytes(hex)).unwrap()
}

pub(crate) fn snapshot(word: &str) -> Option<Sequence> {
    (word != "now").then(|| Sequence(word.parse().unwrap()))
}

/// A key that was asked for.
pub(crate) struct Lookup {
    pub(crate) family: String,
    pub(crate) snapshot: Option<Sequence>,
    pub(crate) key: Vec<u8>,
}

impl Lookup {
    pub(crate) fn new(words: &[&str]) -> Self {
        Self { family: family(words[0]), snapshot: snapshot(words[1]), key: bytes(words[2]) }
    }

    /// What a line of the peer's asks for and says of it, if it is of one key.
    pub(crate) fn parse(line: &str) -> Option<(Self, String)> {
        let words: Vec<&str> = line.strip_prefix("get ")?.split(' ').collect();
        Some((Self::new(&words), words[3..].join(" ")))
    }
}

pub(crate) fn said(value: Option<Vec<u8>>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| format!("value {}", hex(&value)))
}
