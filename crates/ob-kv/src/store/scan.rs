//! `SCAN`: keys in the order of their hashes. Only the heads of records are read, as far as keys reach; that a head is right
//! is known by the hash of its key.

use ob_format::kv::{KEY_LEN_MAX, RECORD_HEADER_LEN, RecordPlace};

use super::Store;
use super::arguments::ScanArguments;
use super::errors::Refusal;
use super::expiry::is_over;
use super::glob;
use super::index::KeyHash;
use super::reads::{Missing, Reads};
use super::slots::Slot;
use super::tasks::{Instant, Job, Kind, Task};
use crate::command::Outline;
use crate::resp::Replies;

/// Keys of one request, each of which may be a read of the device.
const COUNT_MAX: usize = 1024;
/// Bytes that one request reads, if there is more than one key in it.
const READ_LEN_MAX: usize = 4 << 20;

/// What a scan has found so far.
#[derive(Debug)]
pub(crate) struct Scan {
    /// The cursor to answer.
    next: u64,
    keys: Vec<Vec<u8>>,
    /// The hashes of the keys that are read.
    hashes: Vec<KeyHash>,
}

impl Store {
    pub(super) fn scan(&mut self, job: Job, request: &[u8], outline: &Outline<'_>) {
        let arguments = match ScanArguments::parse(outline.arguments()) {
            Ok(arguments) => arguments,
            Err(refusal) => return self.refuse(job, &refusal),
        };
        let head_len = |len_max: usize| len_max.min(RECORD_HEADER_LEN + KEY_LEN_MAX);
        let mut count = arguments.count.min(COUNT_MAX);
        let mut places = Vec::new();
        let next = loop {
            places.clear();
            let next = self.index.scan(arguments.cursor, count, self.log.begin(), &mut places);
            let len: usize = places.iter().map(|(_, place)| head_len(place.len_max)).sum();
            if len <= READ_LEN_MAX || count == 1 {
                break next;
            }
            count /= 2;
        };
        let instant = self.instant();
        let mut scan = Scan { next, keys: Vec::new(), hashes: Vec::new() };
        let mut missing = Vec::new();
        for (hash, place) in places {
            match self.log.in_memory(place.address).and_then(RecordPlace::key_alone) {
                Some((key, expires)) => scan.take(key, expires, instant.now_ms),
                None => {
                    let (slot, len) = (missing.len(), head_len(place.len_max));
                    missing.push(Missing { slot, address: place.address, len });
                    scan.hashes.push(hash);
                }
            }
        }
        if missing.is_empty() {
            return self.answer_scan(job, outline, scan, Vec::new(), instant);
        }
        let id = self.new_task_id();
        let slots = missing.iter().map(|_| Slot::Reading).collect();
        let reads = Reads::of(missing);
        let task = Task::reading(job, Kind::Scan(scan), request, Vec::new(), (slots, 0), reads, instant);
        self.begin_reading(id, task);
    }

    pub(super) fn answer_scan(
        &mut self,
        job: Job,
        outline: &Outline<'_>,
        mut scan: Scan,
        slots: Vec<Slot>,
        instant: Instant,
    ) {
        self.stats.records_unreadable += scan.look_at(slots, &self.config.name, instant.now_ms);
        let result = ScanArguments::parse(outline.arguments()).and_then(|arguments| scan.wanted(&arguments));
        let wanted = match result {
            Ok(wanted) => wanted,
            Err(refusal) => return self.refuse_after(instant.needs, job, &refusal),
        };
        let write = |replies: &mut Replies<'_>| {
            replies.array(2);
            replies.bulk(scan.next.to_string().as_bytes());
            replies.array(wanted.len());
            wanted.iter().for_each(|key| replies.bulk(key));
        };
        self.answer(job, instant, write);
    }
}

impl Scan {
    fn take(&mut self, key: &[u8], expires: Option<u64>, now_ms: u64) {
        if !is_over(expires, now_ms) {
            self.keys.push(key.to_vec());
        }
    }

    /// The keys that were asked for.
    fn wanted(&self, arguments: &ScanArguments<'_>) -> Result<Vec<&Vec<u8>>, Refusal> {
        let mut effort = glob::Effort::default();
        let mut wanted = Vec::new();
        for key in self.keys.iter().filter(|_| !arguments.is_other_type) {
            let fits = match arguments.pattern {
                Some(pattern) => glob::matches(pattern, key, false, &mut effort)?,
                None => true,
            };
            wanted.extend(fits.then_some(key));
        }
        Ok(wanted)
    }

    /// Takes the keys that were read; how many could not be. An error instead would keep everybody from all that lies behind such a one.
    fn look_at(&mut self, slots: Vec<Slot>, name: &[u8; 16], now_ms: u64) -> u64 {
        let mut unreadable = 0;
        for (slot, hash) in slots.into_iter().zip(std::mem::take(&mut self.hashes)) {
            let bytes = if let Slot::Raw { bytes, .. } = slot { Some(bytes) } else { None };
            let head = bytes.as_deref().and_then(|bytes| RecordPlace::key_alone(bytes));
            match head.filter(|(key, _)| KeyHash::of(name, key) == hash) {
                Some((key, expires)) => self.take(key, expires, now_ms),
                None => unreadable += 1,
            }
        }
        unreadable
    }
}
