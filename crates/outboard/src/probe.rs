//! How the two halves keep an eye on each other (`docs/wire/probe.md`).
//!
//! ```text
//!   host ── probe (request ring) ──▶ card: ProbeService
//!        ◀─ the same bytes (response ring) ──┘
//!        ── Report (ordered channel) ──▶ card: what `status` shows of the host
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ob_core::AttachmentId;
use ob_link::{CardService, GroupKey};
use ob_ring::{Batch, CardSender};

/// The number that a host asks for.
pub const PROBE_SERVICE: u32 = 1;

/// The longest probe.
pub const PROBE_LEN_MAX: usize = 64;

/// Bytes of a report.
pub const REPORT_LEN: usize = 24;

/// Says that a channel message is a report.
const REPORT_KIND: u32 = 1;

/// What a host tells about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Its process, on its own machine.
    pub pid: u32,
    /// Processor time it has used.
    pub cpu: Duration,
    /// The last probe's round trip.
    pub probe: Duration,
}

impl Report {
    /// The report as a channel message.
    #[must_use]
    pub fn encode(self) -> [u8; REPORT_LEN] {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let mut bytes = [0; REPORT_LEN];
        bytes[..4].copy_from_slice(&REPORT_KIND.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.pid.to_le_bytes());
        bytes[8..16].copy_from_slice(&nanoseconds(self.cpu).to_le_bytes());
        bytes[16..].copy_from_slice(&nanoseconds(self.probe).to_le_bytes());
        bytes
    }

    /// The report in a channel message, if it is one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REPORT_LEN] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..].first_chunk().map(|chunk| u32::from_le_bytes(*chunk));
        let time = |at: usize| {
            bytes[at..].first_chunk().map(|chunk| Duration::from_nanos(u64::from_le_bytes(*chunk)))
        };
        if word(0)? != REPORT_KIND {
            return None;
        }
        Some(Self { pid: word(4)?, cpu: time(8)?, probe: time(16)? })
    }
}

/// Answers probes, and remembers what hosts reported.
#[derive(Debug, Default)]
pub struct ProbeService {
    /// Probes that wait for room in the response ring. They stay in the batches they were fetched in, so that the ring
    /// itself holds back a host that takes no responses.
    waiting: BTreeMap<GroupKey, VecDeque<Batch>>,
    reports: BTreeMap<AttachmentId, Report>,
    answered: u64,
}

impl ProbeService {
    /// How many probes were answered so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// Whether a host probes this card.
    #[must_use]
    pub fn knows(&self, attachment: AttachmentId) -> bool {
        self.waiting.keys().any(|key| key.attachment == attachment)
    }

    /// How many groups probe this card.
    #[must_use]
    pub fn group_count(&self) -> usize {
        self.waiting.len()
    }

    /// What a host reported last.
    #[must_use]
    pub fn report(&self, attachment: AttachmentId) -> Option<Report> {
        self.reports.get(&attachment).copied()
    }
}

impl CardService for ProbeService {
    fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String> {
        if service != PROBE_SERVICE {
            return Err(format!("this card has no service {service}"));
        }
        self.waiting.insert(key, VecDeque::new());
        Ok(())
    }

    fn requests(&mut self, key: GroupKey, batch: Batch, responses: &mut CardSender) {
        let Some(waiting) = self.waiting.get_mut(&key) else { return };
        waiting.push_back(batch);
        self.responses(key, responses);
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        let Some(waiting) = self.waiting.get_mut(&key) else { return };
        while let Some(batch) = waiting.front_mut() {
            let Some(probe) = batch.iter().next() else {
                waiting.pop_front();
                continue;
            };
            if responses.push(&probe.inline[..probe.inline.len().min(PROBE_LEN_MAX)]).is_err() {
                return;
            }
            batch.take_next();
            self.answered += 1;
        }
    }

    fn closed(&mut self, key: GroupKey) {
        self.waiting.remove(&key);
        if !self.knows(key.attachment) {
            self.reports.remove(&key.attachment);
        }
    }

    fn channel(&mut self, attachment: AttachmentId, message: &[u8]) {
        // Only hosts that have a group are remembered: their groups' end is when they are forgotten.
        let known = self.knows(attachment);
        if let Some(report) = Report::decode(message).filter(|_| known) {
            self.reports.insert(attachment, report);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes_and_the_document() {
        let report = Report { pid: 7, cpu: Duration::from_nanos(256), probe: Duration::from_nanos(3) };
        let bytes = report.encode();
        assert_eq!(bytes, [1, 0, 0, 0, 7, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Report::decode(&bytes), Some(report));
        let document = include_str!("../../../docs/wire/probe.md");
        for fact in [
            format!("`PROBE_SERVICE` = {PROBE_SERVICE}"),
            format!("`PROBE_LEN_MAX` = {PROBE_LEN_MAX}"),
            format!("`REPORT_LEN` = {REPORT_LEN}"),
        ] {
            assert!(document.contains(&fact), "{fact}");
        }
    }

    #[test]
    fn other_messages_are_no_reports() {
        for bytes in [&[][..], &[0; 23], &[0; 24], &[1; 25]] {
            assert_eq!(Report::decode(bytes), None);
        }
    }
}
