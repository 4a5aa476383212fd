//! Who worked how much: processor time of client, card, host and the whole machine, per operation.

use std::io;
use std::time::Duration;

use serde::Serialize;

use crate::accounting;

/// Reads the accounts at its start and again at its end. The client is the calling process.
#[derive(Debug)]
pub struct CpuMeter {
    card: Option<u32>,
    host: Option<u32>,
    start: Accounts,
}

/// Processor time per operation, in microseconds. A half that was not there has none, and stands in JSON as null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CpuPerOperation {
    /// The process that measures.
    pub client_cpu_us: Option<f64>,
    /// The card.
    pub card_cpu_us: Option<f64>,
    /// The host.
    pub host_cpu_us: Option<f64>,
    /// Everything that the machine did, kernel and neighbours included.
    pub machine_cpu_us: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
struct Accounts {
    client: Duration,
    card: Option<Duration>,
    host: Option<Duration>,
    machine: Duration,
}

impl CpuMeter {
    /// Starts with the halves that have processes of their own.
    pub fn start(card: Option<u32>, host: Option<u32>) -> io::Result<Self> {
        Ok(Self { card, host, start: Accounts::read(card, host)? })
    }

    /// What was spent since the start, for each of so many operations.
    pub fn finish(&self, operations: u64) -> io::Result<CpuPerOperation> {
        let end = Accounts::read(self.card, self.host)?;
        let each = |start: Duration, end: Duration| {
            end.saturating_sub(start).as_secs_f64() * 1e6 / operations.max(1) as f64
        };
        let each_of = |start: Option<Duration>, end: Option<Duration>| Some(each(start?, end?));
        Ok(CpuPerOperation {
            client_cpu_us: Some(each(self.start.client, end.client)),
            card_cpu_us: each_of(self.start.card, end.card),
            host_cpu_us: each_of(self.start.host, end.host),
            machine_cpu_us: Some(each(self.start.machine, end.machine)),
        })
    }
}

impl Accounts {
    fn read(card: Option<u32>, host: Option<u32>) -> io::Result<Self> {
        Ok(Self {
            client: accounting::own_cpu(),
            card: card.map(accounting::process_cpu).transpose()?,
            host: host.map(accounting::process_cpu).transpose()?,
            machine: accounting::machine_busy()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_divided_by_operations_and_absent_halves_have_none() {
        let meter = CpuMeter::start(None, Some(std::process::id())).unwrap();
        let begin = accounting::thread_cpu();
        while accounting::thread_cpu() < begin + Duration::from_millis(50) {
            std::hint::black_box(0);
        }
        let spent = meter.finish(1000).unwrap();
        assert!(spent.client_cpu_us.unwrap() >= 50.0);
        assert!(spent.host_cpu_us.unwrap() > 0.0);
        assert_eq!(spent.card_cpu_us, None);
    }
}
