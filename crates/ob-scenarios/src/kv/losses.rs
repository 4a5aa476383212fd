//! Runs in which answers are not durable and everything happens: what is lost must be an end of what was written, and no more of
//! it than is promised.
//!
//! One client writes numbers, one after the other or some at once, to keys in turn. After each misfortune it reads all keys. The
//! greatest number that it finds tells where the log has ended: everything up to there has to be found, and what was lost must not
//! come back.

use std::time::Duration;

use ob_kv::store::Durability;
use ob_sim::history::{Command, Expiry, Reply};
use ob_sim::{Death, Failure, Report};

use super::Run;
use super::client::{KEYS, bytes};
use super::stretch::OVER_AFTER;

/// A host that dies takes along what it had not written: a group that was open for some milliseconds, and those on their way.
const UNWRITTEN: Duration = Duration::from_millis(300);
/// What is complete is flushed every second, and that takes a while.
const UNFLUSHED: Duration = Duration::from_millis(1500);

/// A number that was written.
struct Entry {
    number: u64,
    key: usize,
    /// When the client knew; nothing, if it never did.
    known_at: Option<u64>,
}

/// What was written, in its order, but for what is known to be lost.
#[derive(Default)]
struct Ledger {
    entries: Vec<Entry>,
    /// The last ones, by their places in the history, until their ends are known.
    asked: Vec<usize>,
    written: u64,
    lost: u64,
}

impl Ledger {
    /// What was found under each key, after a misfortune at `when` that may have lost what was younger than `at_most`.
    fn judge(&mut self, found: &[Option<u64>], when: u64, at_most: Option<Duration>) -> Result<(), Failure> {
        // What was still on its way then may be the first that the next life has applied. It tells nothing of where the log had ended,
        // and hides what its key was before.
        let late = self.entries.last().filter(|entry| entry.known_at.is_some_and(|at| at > when));
        let late = late.filter(|late| found[late.key] == Some(late.number));
        let late = late.map(|late| (late.key, late.number));
        let is_late = |key: usize| late.is_some_and(|(late, _)| late == key);
        let of_log = found.iter().enumerate().filter(|(key, _)| !is_late(*key));
        let end = of_log.clone().filter_map(|(_, number)| *number).max().unwrap_or(0);
        for (key, number) in of_log {
            let of_key = || self.entries.iter().filter(|entry| entry.key == key && entry.number <= end);
            let is_written = number.is_none_or(|number| of_key().any(|entry| entry.number == number));
            if !is_written {
                return Err(Failure::new(format!("{} is {number:?}, which was lost before", KEYS[key])));
            }
            let newer = of_key().find(|entry| entry.number > number.unwrap_or(0) && entry.known_at.is_some());
            if let Some(newer) = newer {
                let newer = newer.number;
                return Err(Failure::new(format!(
                    "{} is {number:?}: {newer} is lost, and {end} behind it is not",
                    KEYS[key]
                )));
            }
        }
        let promised = |entry: &&Entry| {
            let age = entry.known_at.map(|at| Duration::from_nanos(when.saturating_sub(at)));
            age.zip(at_most).is_some_and(|(age, at_most)| age >= at_most)
        };
        let is_lost = |entry: &&Entry| entry.number > end && !is_late(entry.key);
        if let Some(entry) = self.entries.iter().filter(is_lost).find(promised) {
            let number = entry.number;
            return Err(Failure::new(format!("{number} was promised, and the log ends with {end}")));
        }
        self.lost +=
            self.entries.iter().filter(is_lost).filter(|entry| entry.known_at.is_some()).count() as u64;
        self.entries.retain(|entry| entry.number <= end || is_late(entry.key));
        // What it hides may be lost or not.
        for entry in self.entries.iter_mut().filter(|entry| entry.number > end) {
            entry.known_at = entry.known_at.filter(|_| late == Some((entry.key, entry.number)));
        }
        Ok(())
    }
}

impl Run {
    pub(super) fn play_losses(mut self, steps: u64) -> Result<Report, Failure> {
        let mut ledger = Ledger::default();
        while (self.history.len() as u64) < steps {
            // Hosts that were never asked to change anything leave no less behind.
            let writes = if self.rng.one_in(3) { 0 } else { self.rng.range(1..12) };
            for _ in 0..writes {
                self.write(&mut ledger, false)?;
            }
            if self.rng.one_in(3) {
                self.hurry(&mut ledger)?;
            }
            if self.rng.one_in(2) {
                self.write(&mut ledger, true)?;
            }
            let when = self.now().nanoseconds();
            let at_most = self.misfortune();
            self.finish_write(&mut ledger)?;
            let found = self.find_all()?;
            ledger.judge(&found, when, at_most)?;
        }
        self.report.count("numbers written", ledger.written);
        self.report.count("numbers lost", ledger.lost);
        self.collect()?;
        Ok(self.report)
    }

    /// Something dies; what may be lost by it, as long as it is younger. Nothing stands for everything.
    fn misfortune(&mut self) -> Option<Duration> {
        let unflushed = (self.config.durability == Durability::EverySecond).then_some(UNFLUSHED);
        self.is_alone = false;
        match self.rng.below(6) {
            0 => {
                self.kill_card(Death::Process);
                Some(Duration::ZERO)
            }
            1 => {
                self.is_alone = true;
                self.cut_link();
                Some(Duration::ZERO)
            }
            2 => {
                self.cut_link();
                Some(UNWRITTEN)
            }
            3 => {
                self.kill_host();
                Some(UNWRITTEN)
            }
            4 => {
                self.report.count("losses of the card's power", 1);
                self.kill_card(Death::Power);
                unflushed
            }
            _ => {
                self.lose_power();
                unflushed
            }
        }
    }

    /// Writes the next number; `is_left` if its end is not waited for.
    fn write(&mut self, ledger: &mut Ledger, is_left: bool) -> Result<(), Failure> {
        if self.rng.one_in(6) {
            let pause = self.rng.duration(Duration::from_millis(1)..Duration::from_millis(2500));
            self.rest(pause)?;
        }
        self.wait_for_client()?;
        self.ask_to_write(ledger, 0);
        if is_left {
            for _ in 0..self.rng.below(60) {
                self.turn()?;
            }
            return Ok(());
        }
        self.finish_write(ledger)
    }

    /// Writes numbers whose groups are on their way together, when what was written before them is durable and cannot be lost instead.
    fn hurry(&mut self, ledger: &mut Ledger) -> Result<(), Failure> {
        self.rest(UNFLUSHED)?;
        self.wait_for_client()?;
        let numbers = self.rng.range(2..6);
        self.report.count("numbers written at once", numbers);
        for _ in 0..numbers {
            // Two do not fit into a group.
            self.ask_to_write(ledger, 5000);
        }
        self.finish_write(ledger)
    }

    /// Asks for the next number to be written, with so many bytes behind it.
    fn ask_to_write(&mut self, ledger: &mut Ledger, padding: usize) {
        ledger.written += 1;
        let (number, key) = (ledger.written, self.rng.index(KEYS.len()));
        let value = format!("{number}.{}", "x".repeat(padding));
        let command = Command::Set(bytes(KEYS[key]), bytes(&value), Expiry::Never);
        ledger.asked.push(self.history.len());
        self.clients[0].ask(command, &mut self.history);
        ledger.entries.push(Entry { number, key, known_at: None });
    }

    /// Waits for the end of the last writes, if they were left.
    fn finish_write(&mut self, ledger: &mut Ledger) -> Result<(), Failure> {
        if ledger.asked.is_empty() {
            return Ok(());
        }
        self.wait_until_idle()?;
        let entries = ledger.entries.split_off(ledger.entries.len() - ledger.asked.len());
        let mut is_unknown = false;
        for (place, mut entry) in ledger.asked.drain(..).zip(entries) {
            if self.clients[0].not_done.contains(&place) {
                continue;
            }
            entry.known_at = self.history[place].returned.as_ref().map(|returned| returned.at);
            is_unknown |= entry.known_at.is_none();
            ledger.entries.push(entry);
        }
        if is_unknown { self.rest(OVER_AFTER) } else { Ok(()) }
    }

    /// Reads all keys.
    fn find_all(&mut self) -> Result<Vec<Option<u64>>, Failure> {
        let mut found = Vec::new();
        while let Some(key) = KEYS.get(found.len()) {
            self.wait_for_client()?;
            self.clients[0].ask(Command::Get(bytes(key)), &mut self.history);
            self.wait_until_idle()?;
            match self
                .history
                .last()
                .and_then(|operation| operation.returned.as_ref())
                .map(|told| &told.reply)
            {
                Some(Reply::Nil) => found.push(None),
                Some(Reply::Value(value)) => {
                    let text = String::from_utf8_lossy(value);
                    let number = text.split('.').next().unwrap_or_default();
                    let number = number.parse().map_err(|_| Failure::new(format!("{key} is {text}")))?;
                    found.push(Some(number));
                }
                // There is no host yet.
                _ => self.rest(Duration::from_millis(1))?,
            }
        }
        Ok(found)
    }

    pub(super) fn rest(&mut self, pause: Duration) -> Result<(), Failure> {
        let until = self.now() + pause;
        while self.now() < until {
            self.turn()?;
        }
        Ok(())
    }

    fn wait_for_client(&mut self) -> Result<(), Failure> {
        self.wait_until(|run| run.clients[0].may_ask())
    }

    fn wait_until_idle(&mut self) -> Result<(), Failure> {
        self.wait_until(|run| run.clients[0].is_idle())
    }

    fn wait_until(&mut self, is_there: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        while !is_there(self) {
            self.turn()?;
        }
        Ok(())
    }
}
