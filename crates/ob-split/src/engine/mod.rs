//! What computes on card memory: a library, or hardware.
//!
//! ```text
//!   plan's step ── submit(token, task with its buffers) ─▶ Engine ── poll ─▶ EngineDone: the task back, and how it went
//! ```
//!
//! One shape for both, as of all I/O here: submit and poll. A task owns its buffers while it is under way, and they come back with
//! it. An engine that can take no more hands a task back whole. One that would do it on the caller's thread anyway may do so
//! [at once](Engine::at_once): it would gain nothing by a queue.

mod soft;
#[cfg(test)]
mod soft_tests;

use ob_core::{Instant, Refused, Token};
use ob_memory::{Slice, Source};

pub use soft::{SoftEngine, TASK_MAX};

/// What an engine can do, as the host is told in the welcome.
pub use crate::wire::Engine as Capability;

/// Which engine of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineId(pub u8);

/// How hard compression tries: 0 not at all, 1 LZ4 with acceleration 8, 2 with acceleration 1, 3 high compression of level 4, 4 of
/// level 9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Effort(u8);

impl Effort {
    /// Not at all.
    pub const NONE: Self = Self(0);
    /// What is right for most.
    pub const DEFAULT: Self = Self(2);
    /// The hardest.
    pub const MAX: Self = Self(4);

    /// The effort of this number, if there is one.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number <= Self::MAX.0 { Some(Self(number)) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

/// What an engine is to do.
#[derive(Debug)]
pub enum Task {
    /// Compresses all of `from` into the front of `into`. The result is the bytes written; [`EngineError::NoGain`] if it would save
    /// less than a sixteenth.
    Compress {
        /// How hard; never [`Effort::NONE`].
        effort: Effort,
        /// What.
        from: Source,
        /// Into what: as long as `from` is enough.
        into: Slice,
    },
    /// Decompresses all of `from`. The result is `len`, or [`EngineError::Broken`], whatever the bytes are.
    Decompress {
        /// What.
        from: Source,
        /// Into what; not shorter than `len`.
        into: Slice,
        /// How many bytes it must be, exactly.
        len: u32,
    },
    /// Computes CRC32C, which is the result.
    Checksum {
        /// Of what.
        from: Source,
        /// The checksum of what lies before it; 0 of nothing.
        seed: u32,
    },
}

/// Why a task failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// It would not shrink by a sixteenth: keep it as it is.
    #[error("the bytes do not shrink")]
    NoGain,
    /// The bytes cannot be decoded to the length that was asked for: ask another replica.
    #[error("the bytes cannot be decoded")]
    Broken,
    /// It is longer than the engine takes, or what it is to be written into is too short: a mistake of whoever submits.
    #[error("the task is larger than the engine takes")]
    TooLarge,
    /// The engine does not do that: ask another.
    #[error("the engine does nothing of the kind")]
    Unsupported,
}

/// A task that is over, well or not.
#[derive(Debug)]
pub struct EngineDone {
    /// As given at submission.
    pub token: Token,
    /// As given, with its buffers; what was written lies at the front of `into`.
    pub task: Task,
    /// Bytes that were written, or the checksum.
    pub result: Result<u32, EngineError>,
}

/// What computes on card memory. Every task that was taken is given back once, in any order.
pub trait Engine {
    /// What it can do. It does not change.
    fn capability(&self) -> Capability;

    /// Does a task here and now, and says how it went, as [`EngineDone::result`] would; or leaves it as it is, to be submitted. That is
    /// what hardware does, which has it while others go on. Whoever calls bounds how much of it there is in a turn.
    fn at_once(&mut self, task: &mut Task) -> Option<Result<u32, EngineError>> {
        let _ = task;
        None
    }

    /// Takes a task.
    ///
    /// # Errors
    ///
    /// With the task, when it can take no more now (`Busy`), or no more at all (`Gone`). What it cannot do is taken, and fails.
    fn submit(&mut self, token: Token, task: Task) -> Result<(), Refused<Task>>;

    /// The next task that is over. An engine in software does one here, of a bounded length.
    fn poll(&mut self, now: Instant) -> Option<EngineDone>;

    /// How busy it is: 0 idle, 255 as much waits as may.
    fn load(&self) -> u8;

    /// When it is to be polled again although nothing wakes the card, if something is under way.
    fn next_due(&self) -> Option<Instant> {
        None
    }
}

/// The engines of a port.
pub trait Engines {
    /// The engine of this number, if there is one.
    fn engine(&mut self, id: EngineId) -> Option<&mut dyn Engine>;

    /// What each can do: the nth is that of [`EngineId`] n. At most [`ENGINES_MAX`](crate::wire::ENGINES_MAX).
    fn list(&self) -> &[Capability];
}

/// No engine.
impl Engines for () {
    fn engine(&mut self, _: EngineId) -> Option<&mut dyn Engine> {
        None
    }

    fn list(&self) -> &[Capability] {
        &[]
    }
}
