//! What redb takes for its file: all of it in memory, with what has changed of it since the last sync.
//!
//! ```text
//!   redb ── write, set_len ─▶ bytes, dirty pages ── sync_data ─▶ an epoch: what the device must have before anything later
//! ```
//!
//! Nothing waits here, so the store is a state machine above a [`ob_core::Device`] though redb knows only calls that return when they
//! are done. What redb believes to be durable is when the device has taken the epochs, and before that nobody is told.

use std::collections::{BTreeSet, VecDeque};
use std::io::{Error, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

/// Bytes of a page of redb's, which is the unit of what is written to the device.
pub(super) const PAGE: u64 = 4096;
/// Most bytes of one write to the device.
pub(super) const RUN_LEN: usize = 64 << 10;

/// What the device must have before anything of a later one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Epoch {
    /// Another length, which is to be durable before the pages are written.
    pub(super) len: Option<NewLen>,
    /// Pages that follow each other, as they were at the sync; but for the first of all.
    pub(super) runs: Vec<(u64, Vec<u8>)>,
    /// That one: it names what is in the others, and is to be written behind them.
    pub(super) first: Option<Vec<u8>>,
}

/// How much of the device is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NewLen {
    /// Bytes from here to `len` are to be zeros.
    pub(super) zero_from: u64,
    pub(super) len: u64,
}

#[derive(Debug)]
struct Bytes {
    bytes: Vec<u8>,
    /// How long it may become.
    most: u64,
    /// Pages that were written since the last sync.
    dirty: BTreeSet<u64>,
    /// The shortest that it was since then, if its length has changed.
    shortest: Option<u64>,
    epochs: VecDeque<Epoch>,
    /// The length that there was no room for.
    refused: Option<u64>,
}

/// The mirror: redb has one end of it and the store the other, both on one thread.
#[derive(Clone, Debug)]
pub(super) struct Mirror(Arc<Mutex<Bytes>>);

impl Mirror {
    /// Of a device that has these bytes, and room for so many.
    pub(super) fn new(bytes: Vec<u8>, most: u64) -> Self {
        Self(Arc::new(Mutex::new(Bytes {
            bytes,
            most,
            dirty: BTreeSet::new(),
            shortest: None,
            epochs: VecDeque::new(),
            refused: None,
        })))
    }

    /// What the device has to take, the oldest first.
    pub(super) fn take_epochs(&self) -> VecDeque<Epoch> {
        std::mem::take(&mut self.lock().epochs)
    }

    /// The length for which there was no room, if there was one.
    pub(super) fn refused(&self) -> Option<u64> {
        self.lock().refused
    }

    fn lock(&self) -> MutexGuard<'_, Bytes> {
        // Each call leaves it whole, whatever became of the one before.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Bytes {
    /// What has changed becomes an epoch.
    fn sync(&mut self) {
        let mut epoch = Epoch::default();
        let len = self.bytes.len() as u64;
        epoch.len = self.shortest.take().map(|zero_from| NewLen { zero_from, len });
        for page in std::mem::take(&mut self.dirty) {
            let start = page * PAGE;
            let Some(bytes) = self.bytes.get(start as usize..(start + PAGE) as usize) else { continue };
            match epoch.runs.last_mut() {
                _ if page == 0 => epoch.first = Some(bytes.to_vec()),
                Some((at, run)) if *at + run.len() as u64 == start && run.len() < RUN_LEN => {
                    run.extend_from_slice(bytes);
                }
                _ => epoch.runs.push((start, bytes.to_vec())),
            }
        }
        if epoch != Epoch::default() {
            self.epochs.push_back(epoch);
        }
    }
}

fn beyond_the_end() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "beyond the end of the metadata store")
}

impl StorageBackend for Mirror {
    fn len(&self) -> Result<u64, Error> {
        Ok(self.lock().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let bytes = self.lock();
        let start = usize::try_from(offset).map_err(|_| beyond_the_end())?;
        let end = start.checked_add(out.len()).ok_or_else(beyond_the_end)?;
        out.copy_from_slice(bytes.bytes.get(start..end).ok_or_else(beyond_the_end)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> Result<(), Error> {
        let mut bytes = self.lock();
        if len > bytes.most {
            bytes.refused = Some(len);
            return Err(Error::new(ErrorKind::StorageFull, "the device of the metadata store is full"));
        }
        let before = bytes.bytes.len() as u64;
        bytes.shortest = Some(bytes.shortest.unwrap_or(before).min(before).min(len));
        bytes.dirty.split_off(&len.div_ceil(PAGE));
        bytes.bytes.resize(usize::try_from(len).map_err(|_| beyond_the_end())?, 0);
        Ok(())
    }

    fn sync_data(&self) -> Result<(), Error> {
        self.lock().sync();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut bytes = self.lock();
        let start = usize::try_from(offset).map_err(|_| beyond_the_end())?;
        let end = start.checked_add(data.len()).ok_or_else(beyond_the_end)?;
        bytes.bytes.get_mut(start..end).ok_or_else(beyond_the_end)?.copy_from_slice(data);
        bytes.dirty.extend(offset / PAGE..(end as u64).div_ceil(PAGE));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(at: u64, byte: u8, pages: usize) -> (u64, Vec<u8>) {
        (at * PAGE, vec![byte; pages * PAGE as usize])
    }

    #[test]
    fn an_epoch_is_what_has_changed_since_the_last_sync() {
        let mirror = Mirror::new(Vec::new(), 64 * PAGE);
        mirror.set_len(40 * PAGE).unwrap();
        for page in [3, 4, 8] {
            mirror.write(page * PAGE, &run(0, 7, 1).1).unwrap();
        }
        // Of what is written twice the device needs only the second.
        mirror.write(8 * PAGE, &run(0, 9, 1).1).unwrap();
        assert!(mirror.take_epochs().is_empty(), "nothing is durable before a sync");
        mirror.sync_data().unwrap();
        mirror.sync_data().unwrap();
        let len = Some(NewLen { zero_from: 0, len: 40 * PAGE });
        assert_eq!(
            mirror.take_epochs(),
            [Epoch { len, runs: vec![run(3, 7, 2), run(8, 9, 1)], first: None }]
        );
        mirror.write(0, &run(0, 2, 2).1).unwrap();
        mirror.sync_data().unwrap();
        let first = Some(run(0, 2, 1).1);
        assert_eq!(mirror.take_epochs(), [Epoch { len: None, runs: vec![run(1, 2, 1)], first }]);
        // A part of a page is all of it, and a long run is several.
        mirror.write(10 * PAGE - 5, &run(0, 1, 20).1).unwrap();
        mirror.sync_data().unwrap();
        let epochs = mirror.take_epochs();
        let lens: Vec<(u64, usize)> =
            epochs[0].runs.iter().map(|(at, run)| (*at / PAGE, run.len())).collect();
        assert_eq!(
            (epochs.len(), epochs[0].len, lens),
            (1, None, vec![(9, RUN_LEN), (25, 5 * PAGE as usize)])
        );
    }

    #[test]
    fn what_was_cut_off_is_zeros_when_it_is_there_again() {
        let mirror = Mirror::new(vec![5; 8 * PAGE as usize], 16 * PAGE);
        mirror.write(7 * PAGE, &[6]).unwrap();
        mirror.set_len(4 * PAGE).unwrap();
        mirror.set_len(8 * PAGE).unwrap();
        mirror.sync_data().unwrap();
        let len = Some(NewLen { zero_from: 4 * PAGE, len: 8 * PAGE });
        assert_eq!(mirror.take_epochs(), [Epoch { len, ..Epoch::default() }]);
        let mut read = [1; 8];
        mirror.read(7 * PAGE, &mut read).unwrap();
        assert_eq!(read, [0; 8]);
    }

    #[test]
    fn nothing_is_beyond_its_end_and_it_grows_no_further_than_the_device() {
        let mirror = Mirror::new(vec![0; PAGE as usize], 2 * PAGE);
        assert!(mirror.read(PAGE - 4, &mut [0; 8]).is_err());
        assert!(mirror.write(u64::MAX, &[0; 8]).is_err());
        assert_eq!(mirror.set_len(3 * PAGE).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!((mirror.refused(), mirror.len().unwrap()), (Some(3 * PAGE), PAGE));
        mirror.set_len(2 * PAGE).unwrap();
    }
}
