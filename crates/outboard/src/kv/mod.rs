//! The key-value service: what the card runs of it, what the host runs, and how they are configured.
//!
//! ```text
//!   placement = "card":  clients ─▶ card: KvCard (director, engine, table) ◀─ stream ─▶ host: KvHost (store) ─▶ files of the card
//!   placement = "host":  clients ─▶ host: KvFront (the same director, without a table; the same store) ─▶ files of the system
//! ```

mod card;
mod card_log;
mod front;
mod host;
mod os_log;
mod thread;

use std::io;
use std::time::{Duration, Instant, SystemTime};

use ob_core::{Clock, NetListenError, Now};
use ob_format::kv::BLOCK_LEN;
use ob_io::{MonotonicClock, OpenError};
use ob_kv::store::{
    Config as StoreConfig, LogCompletion, LogFailure, LogOp, Obstacle, Recovery, RecoveryError, Space, Store,
};
use ob_table::ConfigError;

use crate::config::{Durability, KvConfig};
use crate::random;

pub use card::{Attachments, KvCard, KvFacts, KvGroup, WATCHES_MAX};
pub use front::KvFront;
pub use host::KvHost;
pub(crate) use host::{Pushed, push, receive};
pub(crate) use thread::WatchedThread;

/// Why the service cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum KvError {
    /// The table cannot be made.
    #[error("the table of the key-value store: {error}\nhint: {fix}")]
    Table {
        /// Why.
        error: ConfigError,
        /// What to do.
        fix: String,
    },
    /// The address cannot be listened on.
    #[error("the key-value store: {error}\nhint: {fix}")]
    Listen {
        /// Why.
        error: NetListenError,
        /// What to do.
        fix: String,
    },
    /// The log's files cannot be used.
    #[error("the log of the key-value store: {0}")]
    Log(#[from] OpenError),
    /// The log cannot be recovered.
    #[error("{0}; nothing was changed\nhint: {hint}", hint = what_to_do(.0))]
    Recovery(#[from] RecoveryError),
    /// The log cannot be written to.
    #[error(
        "the log of the key-value store cannot be written to: {0}\nhint: make room where it lies, or look at the disk; nothing of it is lost"
    )]
    Unmarked(LogFailure),
    /// The system refused something that should always work.
    #[error("the key-value store: {0}")]
    System(#[from] io::Error),
    /// Its thread has ended.
    #[error("the thread of the key-value store has ended")]
    Ended,
}

fn what_to_do(error: &RecoveryError) -> &'static str {
    match error {
        RecoveryError::Version { .. } => {
            "run the release of outboard that wrote it, or a later one; an empty directory in its place begins a new store"
        }
        _ => {
            "copy the log's files before you try anything. Where one is damaged, what lies before the damage can be had: cut \
             that file off at the byte, and remove the files of later parts. An empty directory in their place begins a new store"
        }
    }
}

/// Reads a log, one piece after the other as `read` gives them, and makes a store of it. Where that gives nothing, nobody waits for
/// the store any more. A long log says how far it has come.
fn recover(
    mut recovery: Recovery,
    mut read: impl FnMut(LogOp) -> Option<LogCompletion>,
) -> Result<Store, KvError> {
    let mut progress = Progress::default();
    loop {
        recovery = match recovery.finish() {
            Ok(store) => {
                progress.done(&store);
                return Ok(store);
            }
            Err(going_on) => *going_on,
        };
        if let Some(op) = recovery.next_op() {
            recovery.completed(read(op).ok_or(KvError::Ended)?)?;
        }
        progress.tell(&recovery);
    }
}

/// Tells people how far the recovery of a long log has come.
struct Progress {
    started: Instant,
    told: Instant,
}

impl Default for Progress {
    fn default() -> Self {
        Self { started: Instant::now(), told: Instant::now() }
    }
}

impl Progress {
    fn tell(&mut self, recovery: &Recovery) {
        if self.told.elapsed() >= TELL_EVERY {
            self.told = Instant::now();
            let progress = recovery.progress();
            let percent = progress.read * 100 / progress.total.max(1);
            tracing::info!("recovering the key-value store: {percent} % of the log, {} keys", progress.keys);
        }
    }

    fn done(&self, store: &Store) {
        let keys = store.stats().keys;
        tracing::info!(keys, "the key-value store is recovered, in {:?}", self.started.elapsed());
    }
}

/// How often they are told.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// What the configuration means for a store. Of its memory three quarters are for the index, which cannot do with less than
/// all of its keys; the rest keeps the newest records. Beside it, a quarter as much may be in requests that wait, or one of any length.
fn store_config(config: &KvConfig) -> io::Result<StoreConfig> {
    let memory = usize::try_from(config.memory.0).unwrap_or(usize::MAX);
    let default = StoreConfig::default();
    Ok(StoreConfig {
        durability: match config.durability {
            Durability::Always => ob_kv::store::Durability::Always,
            Durability::Everysec => ob_kv::store::Durability::EverySecond,
            Durability::No => ob_kv::store::Durability::No,
        },
        part_len: config.part.0,
        memory_len: memory / 4,
        index_len_max: memory - memory / 4,
        // Below the longest value it would only make others wait for it.
        waiting_len_max: (memory / 4).clamp(default.value_len_max, default.waiting_len_max),
        password: config.password.as_ref().map(|password| password.0.clone()),
        name: random::uuid()?,
        ..default
    })
}

/// Bytes of the parts of a new log, on a device that has so many left. Compaction needs the room of one, which should be little of
/// the whole; and the longest value should fit into one.
fn fitted_part_len(configured: u64, left: u64) -> u64 {
    const LEN_LEAST: u64 = 1 << 20;
    let with_longest_value = StoreConfig::default().value_len_max as u64 + LEN_LEAST;
    let fitting = (left / 16).max(with_longest_value.min(left / 8)).max(LEN_LEAST);
    if configured <= fitting { configured } else { fitting - fitting % BLOCK_LEN as u64 }
}

/// Tells people when a log's device becomes full or cannot be read, and when it no longer is so; each once.
#[derive(Default)]
struct LogNews {
    space: Space,
    obstacle: Option<Obstacle>,
}

impl LogNews {
    fn tell(&mut self, store: &Store) {
        self.tell_space(store.space());
        let obstacle = store.obstacle();
        if obstacle == std::mem::replace(&mut self.obstacle, obstacle) {
            return;
        }
        match obstacle {
            Some(Obstacle::Unreadable) => tracing::warn!(
                "the device cannot read a part of the key-value store's log, which is not compacted until it can; it tries again \
                 by itself"
            ),
            Some(Obstacle::Damaged) => tracing::error!(
                "a part of the key-value store's log is damaged: the log is not compacted any more, and grows with every change"
            ),
            None => tracing::info!("the log of the key-value store is compacted again"),
        }
    }

    fn tell_space(&mut self, space: Space) {
        match (self.space, space) {
            (Space::Plenty | Space::Short | Space::Full, Space::Refused) => tracing::error!(
                "the device has no space left for the log of the key-value store, which takes no changes until there is \
                 some; it tries again by itself"
            ),
            (Space::Plenty | Space::Short, Space::Full) => tracing::warn!(
                "the key-value store's log has filled its device, and takes no more values until keys are removed or the \
                 device has grown; they can be read and removed"
            ),
            (Space::Refused, Space::Full) => {
                tracing::warn!("the log of the key-value store is written again");
            }
            // Short of space, one value more or less decides whether it is full.
            (Space::Full, Space::Short) => return,
            (Space::Refused | Space::Full, Space::Plenty | Space::Short) => {
                tracing::info!("there is space for the log of the key-value store again");
            }
            _ => {}
        }
        self.space = space;
    }
}

/// What people are told of a store that goes without having written everything. What was on its way may have arrived.
fn unwritten(store: &Store) -> Option<&'static str> {
    store.has_unsettled_changes().then_some(
        "the key-value store goes with changes that its log may not have got; unless [kv] durability is \"always\", \
         clients may have been told that they were made",
    )
}

/// What time it is.
fn now() -> Now {
    Now { instant: MonotonicClock.now(), unix_ms: unix_ms() }
}

/// Milliseconds since 1970.
fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod tests {
    use ob_kv::resp::Request;

    use super::*;
    use crate::config::ByteSize;

    #[test]
    fn what_waits_is_bounded_by_the_memory_that_was_configured() {
        let waiting = |memory| {
            let config = KvConfig { memory: ByteSize(memory), ..KvConfig::default() };
            store_config(&config).unwrap().waiting_len_max
        };
        assert_eq!([64 << 20, 256 << 20, 512 << 20].map(waiting), [64 << 20, 64 << 20, 128 << 20]);
        assert_eq!(waiting(1 << 40), 256 << 20);
    }

    #[test]
    fn nobody_is_told_to_cut_a_log_that_a_later_release_wrote() {
        let hint = |error| KvError::from(error).to_string();
        let version = RecoveryError::Version { part: 3, error: ob_format::kv::LogError::Version(9) };
        assert!(hint(version).contains("hint: run the release"));
        assert!(hint(RecoveryError::Damaged { part: 3, offset: 0 }).contains("hint: copy the log's files"));
    }

    #[test]
    fn people_are_told_of_changes_that_go_with_a_store() {
        let mut store = Store::create(StoreConfig::default());
        assert_eq!(unwritten(&store), None);
        let (mut session, request) = (store.open(1), Request::of_line(b"SET key value").unwrap());
        store.apply(now(), 1, 1, &mut session, &request);
        assert_eq!(store.next_answer().unwrap().bytes, b"+OK\r\n");
        assert!(unwritten(&store).is_some());
    }

    #[test]
    fn parts_of_a_new_log_are_no_longer_than_its_device_bears() {
        assert_eq!(fitted_part_len(128 << 20, 1 << 40), 128 << 20);
        assert_eq!(fitted_part_len(256 << 20, (2 << 30) + 60_000), 128 << 20);
        // The longest value fits, unless that takes too much of the device.
        assert_eq!(fitted_part_len(128 << 20, 1 << 30), 65 << 20);
        assert_eq!(fitted_part_len(128 << 20, 256 << 20), 32 << 20);
        assert_eq!(fitted_part_len(128 << 20, 0), 1 << 20);
        assert_eq!(fitted_part_len(65_536, 0), 65_536);
    }
}
