//! What happened, as one number and as the last lines of a log.
//!
//! ```text
//!   every event ──▶ hash = (rotate(hash ^ word, 23)) * odd      one seed, one hash
//!        │
//!        └───────▶ the last N lines, printed when a run fails
//! ```

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::rc::Rc;

use ob_core::{Clock, Instant};

use crate::SimClock;

/// Where the hash begins (FNV-1a's offset), and what each step multiplies by (the golden ratio, odd).
const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// Numbers that a line keeps; the hash takes all of them.
const LINE_WORDS: usize = 6;

/// A running hash over everything that happened and when, and a log of the last of it. Clones share both.
///
/// The hash takes, for each event: the virtual time, the bytes of its kind, how many numbers there are, and the
/// numbers. It is not cryptographic; it tells two runs apart.
#[derive(Clone)]
pub struct Trace {
    clock: SimClock,
    record: Rc<RefCell<Record>>,
}

struct Record {
    hash: u64,
    events: u64,
    lines: VecDeque<Line>,
    lines_max: usize,
    echo: bool,
}

/// One event, kept as numbers: only a failure pays for the text.
#[derive(Clone, Copy)]
struct Line {
    at: Instant,
    kind: &'static str,
    words: [u64; LINE_WORDS],
    len: usize,
}

impl Trace {
    /// Lines kept unless told otherwise.
    pub const LINES_KEPT: u32 = 60;

    /// An empty trace that takes its times from `clock`.
    pub fn new(clock: SimClock) -> Self {
        let record = Record {
            hash: HASH_START,
            events: 0,
            lines: VecDeque::new(),
            lines_max: Self::LINES_KEPT as usize,
            echo: false,
        };
        Self { clock, record: Rc::new(RefCell::new(record)) }
    }

    /// Keeps so many lines.
    pub fn keep_lines(&self, lines: usize) {
        self.record.borrow_mut().lines_max = lines;
    }

    /// Writes each line to standard error as it comes.
    pub fn echo(&self, on: bool) {
        self.record.borrow_mut().echo = on;
    }

    /// The clock it goes by.
    pub fn clock(&self) -> &SimClock {
        &self.clock
    }

    /// Notes an event.
    pub fn note(&self, kind: &'static str, words: &[u64]) {
        let at = self.clock.now();
        let mut record = self.record.borrow_mut();
        record.mix(at.nanoseconds());
        for chunk in kind.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            record.mix(u64::from_le_bytes(word));
        }
        record.mix(words.len() as u64);
        words.iter().for_each(|word| record.mix(*word));
        record.events += 1;
        let mut line = Line { at, kind, words: [0; LINE_WORDS], len: words.len().min(LINE_WORDS) };
        line.words[..line.len].copy_from_slice(&words[..line.len]);
        record.keep(line);
    }

    /// The hash over all events so far.
    pub fn hash(&self) -> u64 {
        self.record.borrow().hash
    }

    /// How many events there were.
    pub fn events(&self) -> u64 {
        self.record.borrow().events
    }

    /// The last lines, oldest first.
    pub fn last_lines(&self) -> Vec<String> {
        self.record.borrow().lines.iter().map(Line::to_string).collect()
    }
}

impl Record {
    fn mix(&mut self, word: u64) {
        self.hash = (self.hash ^ word).rotate_left(23).wrapping_mul(HASH_FACTOR);
    }

    fn keep(&mut self, line: Line) {
        if self.echo {
            eprintln!("{line}");
        }
        while self.lines.len() >= self.lines_max.max(1) {
            self.lines.pop_front();
        }
        if self.lines_max > 0 {
            self.lines.push_back(line);
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:>14} ns  {}", self.at.nanoseconds(), self.kind)?;
        self.words[..self.len].iter().try_for_each(|word| write!(formatter, " {word}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_of(events: &[(u64, &'static str, &[u64])]) -> u64 {
        let clock = SimClock::new();
        let trace = Trace::new(clock.clone());
        for (at, kind, words) in events {
            clock.advance_to(Instant::from_nanoseconds(*at));
            trace.note(kind, words);
        }
        trace.hash()
    }

    #[test]
    fn the_hash_knows_time_kind_numbers_and_order() {
        let base = hash_of(&[(1, "a", &[1]), (2, "b", &[2])]);
        assert_eq!(base, hash_of(&[(1, "a", &[1]), (2, "b", &[2])]));
        for other in [
            hash_of(&[(1, "a", &[1]), (3, "b", &[2])]),
            hash_of(&[(1, "a", &[1]), (2, "c", &[2])]),
            hash_of(&[(1, "a", &[1]), (2, "b", &[3])]),
            hash_of(&[(1, "a", &[1]), (2, "b", &[2, 0])]),
            hash_of(&[(1, "b", &[2]), (2, "a", &[1])]),
            hash_of(&[(1, "a", &[1])]),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn only_the_last_lines_are_kept() {
        let trace = Trace::new(SimClock::new());
        trace.keep_lines(2);
        (0..5).for_each(|number| trace.note("event", &[number]));
        let lines = trace.last_lines();
        assert_eq!(lines.len(), 2);
        assert!(lines[1].ends_with("event 4"), "{lines:?}");
        assert_eq!(trace.events(), 5);
    }
}
