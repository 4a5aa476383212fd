//! The engine in software: LZ4 of the C library, and CRC32C, on the port's own thread.

use std::collections::VecDeque;

use lz4::block::{CompressionMode, compress_to_buffer, decompress_to_buffer};
use ob_core::{Instant, Refused, RefusedReason, Token};

use super::{Capability, Effort, Engine, EngineDone, EngineError, EngineId, Engines, Task};

/// Bytes of the longest task: a turn does one, and a turn is short.
pub const TASK_MAX: usize = 64 << 10;
/// A block of LZ4 with what saves fewer bytes than one of so many is not worth decoding.
const GAIN: usize = 16;

/// Does a task when it is asked to, or, of those that were submitted, one in each [`poll`](Engine::poll), in the order in which they
/// came: no lock, no wake-up, and the same in the simulator.
///
/// Bytes to decode are hostile. The library decodes them with a bound on both sides; that what comes out depends on them alone, and on
/// nothing that was in the memory before, tests and a fuzz target look at: a match may name bytes that were never written.
///
/// Nothing is allocated, but by the library for efforts 3 and 4, and for the text of an error.
pub struct SoftEngine {
    waiting: VecDeque<(Token, Task)>,
    depth: u16,
    is_queued: bool,
    capabilities: [Capability; 1],
    /// Where compressed bytes go first if what they are to be written into could be too short for them: the library is faster, and
    /// fails nowhere, if it has all the space there may be need of.
    space: Box<[u8]>,
}

impl SoftEngine {
    /// An engine with a queue of so many tasks, at least one.
    #[must_use]
    pub fn new(depth: u16) -> Self {
        let depth = depth.max(1);
        let capability = Capability {
            compresses: true,
            decompresses: true,
            sums: true,
            efforts: Effort::MAX.number(),
            depth,
            task_max: TASK_MAX as u32,
        };
        Self {
            waiting: VecDeque::with_capacity(depth.into()),
            depth,
            is_queued: false,
            capabilities: [capability],
            space: vec![0; space(TASK_MAX)].into_boxed_slice(),
        }
    }

    /// One that does nothing at once, as hardware does not: for tests of who uses engines.
    #[must_use]
    pub fn queued(depth: u16) -> Self {
        Self { is_queued: true, ..Self::new(depth) }
    }

    fn run(&mut self, task: &mut Task) -> Result<u32, EngineError> {
        match task {
            Task::Compress { effort, from, into } => self.compress(*effort, from, into),
            Task::Decompress { from, into, len } => decompress(from, into, *len as usize),
            Task::Checksum { from, seed } => {
                check_len(from.len())?;
                Ok(crc32c::crc32c_append(*seed, from))
            }
        }
    }

    /// Compresses bytes at once, for who has no engine to wait for.
    ///
    /// # Errors
    ///
    /// When it would save less than a sixteenth, or there is no such effort or no room.
    pub fn compress(&mut self, effort: Effort, from: &[u8], into: &mut [u8]) -> Result<u32, EngineError> {
        check_len(from.len())?;
        let mode = mode(effort).ok_or(EngineError::Unsupported)?;
        let is_wide = into.len() >= space(from.len());
        let space = if is_wide { &mut *into } else { &mut *self.space };
        let len = compress_to_buffer(from, Some(mode), false, space).map_err(|_| EngineError::NoGain)?;
        if len * GAIN > from.len() * (GAIN - 1) {
            return Err(EngineError::NoGain);
        }
        if !is_wide {
            let (compressed, place) = (self.space.get(..len), into.get_mut(..len));
            let (Some(compressed), Some(place)) = (compressed, place) else {
                return Err(EngineError::TooLarge);
            };
            place.copy_from_slice(compressed);
        }
        Ok(len as u32)
    }
}

/// Bytes that so many may become at most: `LZ4_compressBound`.
const fn space(len: usize) -> usize {
    len + len / 255 + 16
}

fn check_len(len: usize) -> Result<(), EngineError> {
    if len <= TASK_MAX { Ok(()) } else { Err(EngineError::TooLarge) }
}

const fn mode(effort: Effort) -> Option<CompressionMode> {
    match effort.number() {
        1 => Some(CompressionMode::FAST(8)),
        2 => Some(CompressionMode::FAST(1)),
        3 => Some(CompressionMode::HIGHCOMPRESSION(4)),
        4 => Some(CompressionMode::HIGHCOMPRESSION(9)),
        _ => None,
    }
}

fn decompress(from: &[u8], into: &mut [u8], len: usize) -> Result<u32, EngineError> {
    check_len(from.len().max(len))?;
    let into = into.get_mut(..len).ok_or(EngineError::TooLarge)?;
    let size = i32::try_from(len).map_err(|_| EngineError::TooLarge)?;
    let written = decompress_to_buffer(from, Some(size), into).map_err(|_| EngineError::Broken)?;
    if written == len { Ok(len as u32) } else { Err(EngineError::Broken) }
}

impl Engine for SoftEngine {
    fn capability(&self) -> Capability {
        let [capability] = self.capabilities;
        capability
    }

    fn at_once(&mut self, task: &mut Task) -> Option<Result<u32, EngineError>> {
        (!self.is_queued).then(|| self.run(task))
    }

    fn submit(&mut self, token: Token, task: Task) -> Result<(), Refused<Task>> {
        if self.waiting.len() >= self.depth.into() {
            return Err(Refused { op: task, reason: RefusedReason::Busy });
        }
        self.waiting.push_back((token, task));
        Ok(())
    }

    fn poll(&mut self, _now: Instant) -> Option<EngineDone> {
        let (token, mut task) = self.waiting.pop_front()?;
        let result = self.run(&mut task);
        Some(EngineDone { token, task, result })
    }

    fn load(&self) -> u8 {
        // No more wait than `depth`.
        (self.waiting.len() * usize::from(u8::MAX) / usize::from(self.depth)) as u8
    }

    /// At once, while something waits.
    fn next_due(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then(Instant::default)
    }
}

/// A port that has this engine and no other.
impl Engines for SoftEngine {
    fn engine(&mut self, id: EngineId) -> Option<&mut dyn Engine> {
        if id == EngineId(0) { Some(self) } else { None }
    }

    fn list(&self) -> &[Capability] {
        &self.capabilities
    }
}
