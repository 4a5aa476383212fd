//! Stretches of a run, each judged by itself.
//!
//! The search for an order that explains a history takes the longer the more is under way, and a request whose end nobody knows is
//! under way for ever. So everybody is quiet now and then, for longer than any request lives and any key that expires; then
//! somebody reads every key. What is found ends one stretch, and is what the next begins with: what was asked before has no part in it, and
//! whatever of it shows up there is wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use ob_sim::Failure;
use ob_sim::history::{Command, Expiry, KvSpec, Limits, Operation, Reply, Returned, Verdict, check};

use super::Run;
use super::client::{History, all_keys};

/// After so long, a request of which nobody knows the end has been applied, or never will be; and what was to expire has.
pub(super) const OVER_AFTER: Duration = Duration::from_secs(3);
/// How long a stretch is looked at: most take some hundred steps, and one in some hundreds has no end.
const STEPS_MAX: u64 = 40_000;
/// After so many requests of which nobody knows the end, a stretch is over: with more there would be too many orders to look at.
pub(super) const LOST_MAX: u64 = 8;
/// Attempts to read a key while everything is well.
const ATTEMPTS_MAX: u64 = 100;

/// Keys that were there, and their values.
type Found = BTreeMap<Arc<[u8]>, Arc<[u8]>>;

/// What a stretch begins with.
#[derive(Default)]
pub(super) struct Stretch {
    /// Its first operation's place in the history.
    first: usize,
    /// When it began, and what every key was.
    began: u64,
    /// Requests of which nobody knew the end by then.
    lost: u64,
    found: Found,
}

impl Run {
    /// Lets everything come to an end, looks at every key, and judges what was told since that was done last.
    pub(super) fn end_stretch(&mut self) -> Result<(), Failure> {
        self.mend_network();
        self.settle()?;
        self.rest(OVER_AFTER)?;
        self.settle()?;
        self.report.count("stretches", 1);
        let began = self.now().nanoseconds();
        let found = self.find_every_key()?;
        self.judge_stretch()?;
        self.stretch = Stretch { first: self.history.len(), began, lost: self.lost(), found };
        self.break_network();
        Ok(())
    }

    /// Requests of this stretch of which nobody knows the end.
    pub(super) fn lost_in_stretch(&self) -> u64 {
        self.lost() - self.stretch.lost
    }

    fn lost(&self) -> u64 {
        self.clients.iter().map(|client| client.lost).sum()
    }

    /// Finds an order that explains what clients were told in this stretch.
    pub(super) fn judge_stretch(&mut self) -> Result<(), Failure> {
        let not_done: BTreeSet<usize> =
            self.clients.iter().flat_map(|client| &client.not_done).copied().collect();
        let Stretch { first, began, found, .. } = &self.stretch;
        let present = found.iter().map(|(key, value)| Operation {
            client: u32::MAX,
            session: None,
            command: Command::Set(Arc::clone(key), Arc::clone(value), Expiry::Never),
            called: *began,
            returned: Some(Returned { at: *began, reply: Reply::Done }),
            gone_by: None,
        });
        let asked = self.history.iter().enumerate().skip(*first);
        let asked = asked.filter(|(place, _)| !not_done.contains(place)).map(|(_, asked)| asked.clone());
        let history: History = present.chain(asked).collect();
        let spec = KvSpec { margin: self.plan.expiry_margin().as_nanos() as u64 };
        match check(&spec, &history, Limits { steps_max: STEPS_MAX }) {
            Verdict::Linearizable => self.report.count("stretches judged", 1),
            Verdict::GaveUp { .. } => self.report.count("stretches not judged", 1),
            verdict => return Err(Failure::new(verdict.to_string())),
        }
        Ok(())
    }

    fn find_every_key(&mut self) -> Result<Found, Failure> {
        let client = self.rng.index(self.clients.len());
        let mut wanted: Vec<Arc<[u8]>> = all_keys().collect();
        let mut found = Found::new();
        for _ in 0..ATTEMPTS_MAX {
            let first = self.history.len();
            for key in &wanted {
                self.clients[client].ask(Command::Get(Arc::clone(key)), &mut self.history);
            }
            self.settle()?;
            for operation in &self.history[first..] {
                let Command::Get(key) = &operation.command else { continue };
                match operation.returned.as_ref().map(|told| &told.reply) {
                    Some(Reply::Value(value)) => drop(found.insert(Arc::clone(key), Arc::clone(value))),
                    Some(_) => {}
                    None => continue,
                }
                wanted.retain(|one| one != key);
            }
            if wanted.is_empty() {
                return Ok(found);
            }
        }
        Err(Failure::new(format!("{} keys cannot be read, though nothing is wrong", wanted.len())))
    }
}
