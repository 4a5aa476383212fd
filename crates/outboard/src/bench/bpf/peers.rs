//! The contenders that are no part of the product: a process of their own, which is asked over pipes.
//!
//! ```text
//!   workload NAME ANSWER_LEN DATA QUERIES ─▶         (bytes in hexadecimal)
//!                                         ◀─ ready CONTENDER DIGEST │ absent CONTENDER WHY …, end
//!   measure CONTENDER LAPS                ─▶
//!                                         ◀─ took NANOSECONDS       (of processor time)
//! ```
//!
//! It is on the same core as this process, and sleeps while it is not asked.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::BenchFailure;
use super::workload::Workload;

/// The process. Ended when dropped.
pub(super) struct Peers {
    child: Child,
    /// Closed to end it.
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// What the process says of a contender and a workload.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// It can be measured, and gives results that this number tells.
    Ready { name: String, digest: u64 },
    /// It cannot.
    Absent { name: String, why: String },
}

impl Peers {
    pub(super) fn start(program: &Path) -> Result<Self, BenchFailure> {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start the peers, {}: {error}", program.display()))?;
        let questions = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().ok_or("the peers have no output")?);
        Ok(Self { child, questions, answers })
    }

    /// Has all of them take a workload up.
    pub(super) fn take_up(&mut self, workload: &Workload) -> Result<Vec<Peer>, BenchFailure> {
        let (data, queries) = (hexadecimal(&workload.data), hexadecimal(&workload.queries.concat()));
        self.ask(&format!("workload {} {} {data} {queries}", workload.name, workload.answer_len))?;
        let mut peers = Vec::new();
        loop {
            match self.answer()? {
                line if line == "end" => return Ok(peers),
                line => peers.push(parse_peer(&line).ok_or_else(|| not_understood(&line))?),
            }
        }
    }

    /// Processor time of so many laps over all queries.
    pub(super) fn measure(&mut self, peer: &str, laps: u32) -> Result<Duration, BenchFailure> {
        self.ask(&format!("measure {peer} {laps}"))?;
        let line = self.answer()?;
        let nanoseconds = line.strip_prefix("took ").and_then(|took| took.parse().ok());
        Ok(Duration::from_nanos(nanoseconds.ok_or_else(|| not_understood(&line))?))
    }

    fn ask(&mut self, question: &str) -> Result<(), BenchFailure> {
        let questions = self.questions.as_mut().ok_or("the peers take no questions")?;
        questions.write_all(format!("{question}\n").as_bytes())?;
        Ok(questions.flush()?)
    }

    fn answer(&mut self) -> Result<String, BenchFailure> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err("the peers have ended".into());
        }
        line.truncate(line.trim_end().len());
        Ok(line)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        drop(self.questions.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn parse_peer(line: &str) -> Option<Peer> {
    let (what, rest) = line.split_once(' ')?;
    let (name, rest) = rest.split_once(' ')?;
    let name = name.to_owned();
    match what {
        "ready" => Some(Peer::Ready { name, digest: u64::from_str_radix(rest, 16).ok()? }),
        "absent" => Some(Peer::Absent { name, why: rest.to_owned() }),
        _ => None,
    }
}

fn not_understood(line: &str) -> BenchFailure {
    format!("the peers said what is not understood, `{line}`; are they built from the same source?").into()
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_peers_say_is_understood_or_not() {
        let ready = Peer::Ready { name: "native_c".to_owned(), digest: 0xff };
        assert_eq!(parse_peer("ready native_c 00000000000000ff"), Some(ready));
        let absent = Peer::Absent { name: "native_c".to_owned(), why: "no C compiler".to_owned() };
        assert_eq!(parse_peer("absent native_c no C compiler"), Some(absent));
        assert_eq!(parse_peer("ready native_c"), None);
        assert_eq!(parse_peer("ready native_c zz"), None);
        assert_eq!(parse_peer(""), None);
    }
}
