//! What is known of a request's keys while it waits to be applied.

use std::sync::Arc;

use ob_format::kv::{LogError, RecordPlace};

use super::expiry;
use super::log::Log;
use super::ops::LogFailure;
use super::run::{Found, View};

/// A key of a request, at the instant at which it was looked up.
#[derive(Debug)]
pub(crate) enum Slot {
    /// It was not there.
    Absent,
    /// It was, and no more has to be known.
    Present,
    /// Its record is being read.
    Reading,
    /// Bytes that were read or copied, and begin with its record, if nothing is wrong.
    Raw { address: u64, bytes: Arc<Vec<u8>> },
    /// Its record could not be read.
    Failed(LogFailure),
    /// It was there.
    Seen(Seen),
}

/// A record that was looked at.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) address: u64,
    pub(crate) place: RecordPlace,
    /// Its bytes, if they are not in the log's memory.
    bytes: Option<Arc<Vec<u8>>>,
}

impl Seen {
    /// The record's bytes.
    pub(crate) fn bytes<'a>(&'a self, log: &'a Log) -> &'a [u8] {
        self.bytes.as_deref().map(Vec::as_slice).or_else(|| log.in_memory(self.address)).unwrap_or_default()
    }
}

/// What a record turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The record of the key.
    Right,
    /// Of the key, but the time is over.
    Expired,
    /// Of another key.
    Other,
}

impl Slot {
    /// Looks at a record in the log's memory.
    pub(crate) fn in_memory(address: u64, bytes: &[u8]) -> Result<Self, LogError> {
        let place = RecordPlace::trusted(bytes)?;
        Ok(Self::Seen(Seen { address, place, bytes: None }))
    }

    /// Looks at a record that was read.
    pub(crate) fn of_read(address: u64, bytes: Arc<Vec<u8>>) -> Result<Self, LogError> {
        let place = RecordPlace::decode(&bytes)?;
        Ok(Self::Seen(Seen { address, place, bytes: Some(bytes) }))
    }

    /// What was read for another key, if that is this one's record too.
    pub(crate) fn of_another(&self) -> Option<Self> {
        match self {
            Self::Raw { address, bytes } => Some(Self::Raw { address: *address, bytes: Arc::clone(bytes) }),
            Self::Failed(failure) => Some(Self::Failed(*failure)),
            Self::Absent | Self::Present | Self::Reading | Self::Seen(_) => None,
        }
    }

    /// Compares what was seen with what was looked for.
    pub(crate) fn look(&self, key: &[u8], now_ms: u64, log: &Log) -> Look {
        let Self::Seen(seen) = self else { return Look::Right };
        let record = seen.place.of(seen.bytes(log));
        if record.value.is_none() || key != record.key {
            Look::Other
        } else if expiry::is_over(record.expires, now_ms) {
            Look::Expired
        } else {
            Look::Right
        }
    }
}

/// The keys of a request, all looked up and read.
pub(crate) struct Sight<'a> {
    pub(crate) slots: &'a [Slot],
    pub(crate) log: &'a Log,
}

impl View for Sight<'_> {
    fn found(&self, key: usize) -> Option<Found<'_>> {
        match self.slots.get(key)? {
            Slot::Present => Some(Found { value: &[], expires: None }),
            Slot::Seen(seen) => {
                let record = seen.place.of(seen.bytes(self.log));
                Some(Found { value: record.value.unwrap_or_default(), expires: record.expires })
            }
            Slot::Absent | Slot::Reading | Slot::Raw { .. } | Slot::Failed(_) => None,
        }
    }
}
