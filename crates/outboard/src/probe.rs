//! The card's answer to probes: a service that gives each request back.
//!
//! A host opens one group of it and sends a small request now and then; the time until the response says how the link
//! is. It is the first service of the card, and the smallest.

use std::collections::{BTreeMap, VecDeque};

use ob_core::AttachmentId;
use ob_link::{CardService, GroupKey};
use ob_ring::{Batch, CardSender};

/// The number that a host asks for.
pub const PROBE_SERVICE: u32 = 1;

/// The longest probe.
pub const PROBE_LEN_MAX: usize = 64;

/// Probes that may wait for room in the response ring before the group is too far behind to be worth answering.
const WAITING_MAX: usize = 1024;

/// Answers probes.
#[derive(Debug, Default)]
pub struct ProbeService {
    waiting: BTreeMap<GroupKey, VecDeque<Vec<u8>>>,
    answered: u64,
}

impl ProbeService {
    /// How many probes were answered so far.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.answered
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
        for request in batch.iter() {
            let probe = &request.inline[..request.inline.len().min(PROBE_LEN_MAX)];
            if waiting.is_empty() && responses.push(probe).is_ok() {
                self.answered += 1;
            } else if waiting.len() < WAITING_MAX {
                waiting.push_back(probe.to_vec());
            }
        }
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        let Some(waiting) = self.waiting.get_mut(&key) else { return };
        while waiting.front().is_some_and(|probe| responses.push(probe).is_ok()) {
            waiting.pop_front();
            self.answered += 1;
        }
    }

    fn closed(&mut self, key: GroupKey) {
        self.waiting.remove(&key);
    }

    fn channel(&mut self, _attachment: AttachmentId, _message: &[u8]) {}
}
