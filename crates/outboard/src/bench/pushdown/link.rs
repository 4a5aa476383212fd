//! A connection to the card with a session over it, and rounds that are measured on it.

use std::time::{Duration, Instant};

use ob_nvme::initiator::block_on;
use ob_pushdown::client::Session;

use super::polled::{NAMESPACE, Polled};
use crate::bench::{BenchFailure, Case, CpuMeter, Latencies};

/// Questions of a round, however short it is to be: figures of fewer are none, not even in a test.
const COUNT_MIN: u64 = 20;

/// What all contenders over one connection share.
pub(super) struct Link<'run> {
    pub(super) polled: &'run Polled,
    pub(super) session: Session<&'run Polled>,
    /// The card's process.
    card: u32,
}

impl<'run> Link<'run> {
    pub(super) fn begin(polled: &'run Polled, card: u32) -> Result<Self, BenchFailure> {
        let session = block_on(Session::begin(polled, NAMESPACE))?;
        if session.description().is_none() {
            return Err("the card has no storage functions".into());
        }
        Ok(Self { polled, session, card })
    }

    /// Asks one question after the other for so long. `writer` is the process that writes, if one does.
    pub(super) fn round(
        &self,
        name: &str,
        writer: Option<u32>,
        time: Duration,
        mut ask: impl FnMut() -> Result<(), BenchFailure>,
    ) -> Result<Case, BenchFailure> {
        let mut latencies = Latencies::new();
        let ((trips, bytes), counts) = (self.polled.spent(), self.session.counts());
        let meter = CpuMeter::start(Some(self.card), writer)?;
        let begun = Instant::now();
        while begun.elapsed() < time || latencies.count() < COUNT_MIN {
            let asked = Instant::now();
            ask()?;
            latencies.record(asked.elapsed());
        }
        let seconds = begun.elapsed().as_secs_f64();
        let count = latencies.count();
        let mut case = Case::new(name, seconds, &latencies, meter.finish(count)?);
        let ((trips_now, bytes_now), counts_now) = (self.polled.spent(), self.session.counts());
        let each = |total: u64| total as f64 / count.max(1) as f64;
        let both = case.cpu.client_cpu_us.zip(case.cpu.card_cpu_us).map(|(client, card)| client + card);
        case.extra.extend(both.map(|both| ("client_and_card_cpu_us".to_owned(), both)));
        case.extra.insert("round_trips".to_owned(), each(trips_now - trips));
        case.extra.insert("bytes".to_owned(), each(bytes_now - bytes));
        case.extra.insert("mismatches".to_owned(), (counts_now.changed - counts.changed) as f64);
        case.extra.insert("unmapped".to_owned(), (counts_now.unmapped - counts.unmapped) as f64);
        case.extra.insert("discarded".to_owned(), (counts_now.discarded - counts.discarded) as f64);
        Ok(case)
    }
}

/// The round in the middle, by throughput.
pub(super) fn median(mut rounds: Vec<Case>) -> Option<Case> {
    rounds.sort_by(|one, other| one.ops_per_s.total_cmp(&other.ops_per_s));
    let middle = rounds.len() / 2;
    (middle < rounds.len()).then(|| rounds.swap_remove(middle))
}
