//! Maps of a file under leases: when one is made, until when it is true, and which version it has. Whose leases they are, where the file lies
//! and what time it is, a [`LeasedFile`] knows: a kernel's, or a simulated one.
//!
//! ```text
//!   current ─▶ none that is true, and not refused just now? ─▶ lease ─▶ extents ─▶ a map, with the next version
//!   version, hold ─▶ only while its lease is held, and the file still lies there
//! ```

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ob_core::Instant;

use super::file::{FileMap, Hold, MapSource, OnEnd, lock};
use crate::plant::{Bug, is_planted};

/// A file that can be leased, and says where it lies.
pub trait LeasedFile: Send + Sync {
    /// While this is held, nobody writes the file. Whoever drops it gives it back.
    type Lease: Send;
    /// Where the file lies.
    type Extents: Send;
    /// Why there is no map.
    type Refusal: Send + Sync;

    /// Takes a lease. Before it is given up because somebody wants to write, this is told, if somebody wants to know.
    ///
    /// # Errors
    ///
    /// When somebody writes the file, or it cannot be leased at all.
    fn lease(&self, told: Option<OnEnd>) -> Result<Self::Lease, Self::Refusal>;

    /// Where it lies. What was written is there when this returns.
    ///
    /// # Errors
    ///
    /// When its blocks are not its bytes.
    fn extents(&self) -> Result<Self::Extents, Self::Refusal>;

    /// The map that says so.
    fn map_of(&self, extents: &Self::Extents, version: u64) -> FileMap;

    /// Whether nobody can have written since the lease was taken.
    fn is_held(&self, lease: &Self::Lease) -> bool;

    /// Whether the file still lies there: on some file systems blocks can be moved under a lease.
    fn is_there(&self, extents: &Self::Extents) -> bool;

    /// A request that reads under the lease: who wants to write waits for it. Nothing if the lease is not held any more.
    fn begin(&self, lease: &Self::Lease) -> Option<Hold>;

    /// How long after this refusal it is tried again.
    fn pause_after(&self, refusal: &Self::Refusal) -> Duration;

    /// What time it is, by a clock that nobody sets.
    fn now(&self) -> Instant;
}

/// The maps of a file that can be leased.
pub struct LeasedMaps<F: LeasedFile> {
    file: F,
    /// Whoever has this makes a map.
    making: Mutex<()>,
    /// Who is told when a lease breaks.
    told: Mutex<Option<OnEnd>>,
    state: Mutex<State<F>>,
}

struct State<F: LeasedFile> {
    mapped: Option<Mapped<F>>,
    /// The last version that a map had.
    version: u64,
    /// Not before then it is tried again.
    retry_at: Option<Instant>,
    refusal: Option<Arc<F::Refusal>>,
    counts: FileCounts,
}

struct Mapped<F: LeasedFile> {
    lease: F::Lease,
    extents: F::Extents,
    map: Arc<FileMap>,
}

/// What became of a file's maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCounts {
    /// Maps that were made.
    pub maps: u64,
    /// Those that ended because somebody wanted to write, or blocks were moved.
    pub ended: u64,
    /// Attempts to make one that failed.
    pub refused: u64,
}

impl<F: LeasedFile> LeasedMaps<F> {
    /// The maps of a file, of which there is none until one is asked for.
    pub fn new(file: F) -> Self {
        let (mapped, version, retry_at, refusal) = (None, 0, None, None);
        let state = State { mapped, version, retry_at, refusal, counts: FileCounts::default() };
        Self { file, making: Mutex::new(()), told: Mutex::new(None), state: Mutex::new(state) }
    }

    /// The file.
    pub const fn file(&self) -> &F {
        &self.file
    }

    /// The file, before there are maps of it.
    pub const fn file_mut(&mut self) -> &mut F {
        &mut self.file
    }

    /// What became of its maps.
    #[must_use]
    pub fn counts(&self) -> FileCounts {
        lock(&self.state).counts
    }

    /// Why it has no map, if it was tried to make one and has failed since the last that it had.
    pub fn refusal(&self) -> Option<Arc<F::Refusal>> {
        lock(&self.state).refusal.clone()
    }

    /// Makes a map. The lease comes first: what is found under it stays so until it is broken.
    fn make(&self, version: u64) -> Result<Mapped<F>, F::Refusal> {
        let early = is_planted(Bug::MapBeforeLease).then(|| self.file.extents());
        let told = lock(&self.told).clone();
        let lease = self.file.lease(told)?;
        let extents = early.unwrap_or_else(|| self.file.extents())?;
        let map = Arc::new(self.file.map_of(&extents, version));
        Ok(Mapped { lease, extents, map })
    }

    /// The map that there is, if it is true. One that is not ends here.
    fn known(&self) -> Option<Arc<FileMap>> {
        let mut state = lock(&self.state);
        let mapped = state.mapped.take()?;
        if !self.is_true(&mapped) {
            state.counts.ended += 1;
            return None;
        }
        let map = Arc::clone(&mapped.map);
        state.mapped = Some(mapped);
        Some(map)
    }

    /// Whether a map is still true.
    fn is_true(&self, mapped: &Mapped<F>) -> bool {
        self.file.is_held(&mapped.lease) && self.file.is_there(&mapped.extents)
    }
}

impl<F: LeasedFile> MapSource for LeasedMaps<F> {
    fn current(&self) -> Option<Arc<FileMap>> {
        if let Some(map) = self.known() {
            return Some(map);
        }
        // One makes it, which takes a while: who asks for no more than the version does not wait.
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(map) = self.known() {
            return Some(map);
        }
        if !self.may_have_map() {
            return None;
        }
        let version = lock(&self.state).version + 1;
        let made = self.make(version);
        let mut state = lock(&self.state);
        match made {
            Ok(mapped) => {
                let map = Arc::clone(&mapped.map);
                state.counts.maps += 1;
                (state.mapped, state.version) = (Some(mapped), version);
                (state.retry_at, state.refusal) = (None, None);
                Some(map)
            }
            Err(refusal) => {
                state.counts.refused += 1;
                let retry_at = self.file.now() + self.file.pause_after(&refusal);
                (state.retry_at, state.refusal) = (Some(retry_at), Some(Arc::new(refusal)));
                None
            }
        }
    }

    fn may_have_map(&self) -> bool {
        lock(&self.state).retry_at.is_none_or(|at| at <= self.file.now())
    }

    fn on_end(&self, told: OnEnd) {
        *lock(&self.told) = Some(told);
    }

    /// A writer is told to wait: the lease is given up when the last request under it has ended.
    fn hold(&self, version: u64) -> Option<Hold> {
        let state = lock(&self.state);
        let mapped = state.mapped.as_ref().filter(|mapped| mapped.map.version == version)?;
        self.file.begin(&mapped.lease)
    }

    /// Without making one: what is asked for after an answer must be the map that it was asked by.
    fn version(&self) -> Option<u64> {
        let state = lock(&self.state);
        state.mapped.as_ref().filter(|mapped| self.is_true(mapped)).map(|mapped| mapped.map.version)
    }
}
