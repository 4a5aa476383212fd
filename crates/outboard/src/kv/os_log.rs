//! The store's log in files of the operating system: what a store has that runs on the host alone.
//!
//! ```text
//!   LogOp ─▶ Transfer: pieces of at most PIECE_LEN, one after the other ─▶ FileDevice of the part ─▶ io_uring
//! ```
//!
//! Blocks bypass the page cache, as they do on the card, so that memory is what the configuration says.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::{Path, PathBuf};

use ob_core::{Device, DeviceCompletion, DeviceError, DeviceOp, Refused, RefusedReason, Token};
use ob_format::kv::{BLOCK_LEN, part_name, part_number};
use ob_io::{FileDevice, FileDeviceOptions, Handle, OpenError, Reactor, ReactorError, Space, Wait};
use ob_kv::store::{LogCompletion, LogFailure, LogOp};
use ob_memory::{Pool, Slice};
use rustix::io::Errno;

use crate::files::open_patiently;
use crate::halves::make_directory;

/// Bytes of one operation on a file.
const PIECE_LEN: usize = 256 << 10;
const PIECES: usize = 32;
/// Bytes of most reads: a record and what surrounds it.
const SMALL_LEN: usize = 8 << 10;
const SMALLS: usize = 512;

/// The log's parts in a directory.
pub(super) struct OsLog {
    handle: Handle,
    directory: PathBuf,
    parts: BTreeMap<u64, FileDevice>,
    small: Pool,
    large: Pool,
    transfers: HashMap<u64, Transfer>,
    /// Flushes, each with how many files it waits for, and whether one has failed.
    flushes: HashMap<u64, (usize, bool)>,
    /// Parts that were written to since they were flushed.
    dirty: BTreeSet<u64>,
    waiting: VecDeque<LogOp>,
    done: VecDeque<LogCompletion>,
    /// The last part that there was no descriptor for: people were told of it.
    without_descriptor: Option<u64>,
}

/// A read or write, and how far it has come.
struct Transfer {
    op: LogOp,
    moved: usize,
    read: Vec<u8>,
}

impl OsLog {
    /// The parts that there are in a directory, which is made if it is missing.
    pub(super) fn open(handle: &Handle, directory: &Path) -> Result<Self, OpenError> {
        let failed = |what: &'static str, error: &std::io::Error| OpenError::System {
            what,
            path: directory.to_owned(),
            errno: Errno::from_io_error(error).unwrap_or(Errno::IO),
        };
        make_directory(directory).map_err(|error| failed("make", &error))?;
        let mut parts = BTreeMap::new();
        for entry in std::fs::read_dir(directory).map_err(|error| failed("list", &error))? {
            let entry = entry.map_err(|error| failed("list", &error))?;
            let number = entry.file_name().to_str().and_then(part_number);
            if let Some(part) = number {
                // Whoever made it may have died before it had a length, or somebody has cut it off where it was damaged.
                let len = entry.metadata().map_err(|error| failed("look at", &error))?.len();
                if len < BLOCK_LEN as u64 {
                    let file = std::fs::OpenOptions::new().write(true).open(entry.path());
                    file.and_then(|file| file.set_len(BLOCK_LEN as u64))
                        .map_err(|error| failed("lengthen", &error))?;
                }
                let options = FileDeviceOptions::default();
                let opened = open_patiently(&entry.path(), |path| FileDevice::open(handle, path, &options))?;
                parts.insert(part, opened);
            }
        }
        let (small, large) = (Pool::new(SMALL_LEN, SMALLS), Pool::new(PIECE_LEN, PIECES));
        for pool in [&small, &large] {
            // Without it the kernel maps the memory for each operation: slower, and as right.
            let _ = handle.register_arena(pool.arena());
        }
        Ok(Self {
            handle: handle.clone(),
            directory: directory.to_owned(),
            small,
            large,
            transfers: HashMap::new(),
            flushes: HashMap::new(),
            // Whoever wrote them before may not have flushed them.
            dirty: parts.keys().copied().collect(),
            parts,
            waiting: VecDeque::new(),
            done: VecDeque::new(),
            without_descriptor: None,
        })
    }

    /// The parts, and how long they are.
    pub(super) fn parts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.parts.iter().map(|(part, device)| (*part, device.info().capacity))
    }

    /// Bytes that the file system has left for this process, if it says so.
    pub(super) fn left(&self) -> Option<u64> {
        // One without a size has no blocks at all, and as much space as there is memory.
        let space = rustix::fs::statvfs(&self.directory).ok().filter(|space| space.f_blocks > 0)?;
        space.f_bavail.checked_mul(space.f_frsize)
    }

    /// Begins an operation.
    pub(super) fn submit(&mut self, op: LogOp) {
        match op {
            LogOp::Create { token, part, len } => {
                let result = match self.parts.get_mut(&part) {
                    Some(device) => lengthen(device, len).map_err(|error| failure(&error)),
                    None => self.create(part, len),
                };
                self.finish(token, result.map(|()| Vec::new()));
            }
            LogOp::Remove { token, part } => {
                self.parts.remove(&part);
                self.dirty.remove(&part);
                let result = self.remove(part).map(|()| Vec::new()).map_err(|error| failure(&error));
                self.finish(token, result);
            }
            LogOp::Flush { token } => self.flush(token),
            LogOp::Read { len, .. } => self.begin(op, len),
            LogOp::Write { .. } => self.begin(op, 0),
        }
    }

    /// Does an operation while nothing else is under way, and waits for it.
    pub(super) fn run(&mut self, reactor: &mut Reactor, op: LogOp) -> LogCompletion {
        self.submit(op);
        let mut events = Vec::new();
        loop {
            // Some are done as soon as they are submitted, and no event tells of those.
            if let Some(done) = self.next_done() {
                return done;
            }
            if !self.poll() {
                reactor.turn(Wait::Until(None), &mut events);
                events.clear();
            }
        }
    }

    fn create(&mut self, part: u64, len: u64) -> Result<(), LogFailure> {
        let path = self.directory.join(part_name(part));
        let options = FileDeviceOptions::default();
        // Its name is durable then: a part whose name is lost with the power would take the log behind it along.
        let made = FileDevice::create(&self.handle, &path, len, Space::Sparse, &options);
        let device = made.map_err(|error| self.create_failure(part, &error))?;
        self.parts.insert(part, device);
        Ok(())
    }

    /// Why a part cannot be made. What others may give back is wanting for a while only, and the store tries again.
    fn create_failure(&mut self, part: u64, error: &OpenError) -> LogFailure {
        match error {
            // The store tells of that by itself.
            OpenError::NoSpace { .. } => LogFailure::Space,
            OpenError::System { errno: Errno::MFILE | Errno::NFILE, .. }
            | OpenError::Reactor { reason: ReactorError::Full(_), .. } => {
                if self.without_descriptor.replace(part) != Some(part) {
                    tracing::warn!("the log of the key-value store: {error}; trying again");
                }
                LogFailure::Space
            }
            _ => {
                tracing::error!("the log of the key-value store: {error}");
                LogFailure::Device
            }
        }
    }

    /// Removes a part for good: a part whose name comes back after a loss of power, when a later one's does not, would leave a gap
    /// that recovery has to take for a loss.
    fn remove(&self, part: u64) -> std::io::Result<()> {
        match std::fs::remove_file(self.directory.join(part_name(part))) {
            // Only the sync had failed before.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            removed => removed?,
        }
        std::fs::File::open(&self.directory)?.sync_all()
    }

    fn begin(&mut self, op: LogOp, len: usize) {
        let token = op.token();
        self.transfers.insert(token.0, Transfer { op, moved: 0, read: Vec::with_capacity(len) });
        self.go_on(token);
    }

    /// Moves the next piece of a transfer, or finishes it.
    fn go_on(&mut self, token: Token) {
        let Some(transfer) = self.transfers.get_mut(&token.0) else { return };
        let (part, op) = match &transfer.op {
            LogOp::Write { part, offset, bytes, is_durable, .. } => {
                let rest = bytes.get(transfer.moved..).unwrap_or_default();
                if rest.is_empty() {
                    return self.end(token, Ok(Vec::new()));
                }
                let Some(mut from) = piece(&self.small, &self.large, rest.len()) else {
                    return self.wait(token);
                };
                let len = rest.len().min(from.len());
                from.truncate(len);
                from.copy_from_slice(&rest[..len]);
                let offset = offset + transfer.moved as u64;
                (*part, DeviceOp::Write { offset, from: from.into(), durable: *is_durable })
            }
            LogOp::Read { part, offset, len, .. } => {
                let start = offset + transfer.read.len() as u64;
                let (aligned, end) = (start - start % BLOCK_LEN as u64, offset + *len as u64);
                let end = end.next_multiple_of(BLOCK_LEN as u64);
                let Some(device) = self.parts.get(part) else {
                    return self.end(token, Err(LogFailure::Device));
                };
                let end = end.min(device.info().capacity);
                if transfer.read.len() >= *len || aligned >= end {
                    let read = std::mem::take(&mut transfer.read);
                    return self.end(token, Ok(read));
                }
                let Some(mut into) = piece(&self.small, &self.large, (end - aligned) as usize) else {
                    return self.wait(token);
                };
                into.truncate((end - aligned) as usize);
                (*part, DeviceOp::Read { offset: aligned, into })
            }
            _ => return self.end(token, Err(LogFailure::Device)),
        };
        let Some(device) = self.parts.get_mut(&part) else {
            return self.end(token, Err(LogFailure::Device));
        };
        match device.submit(token, op) {
            Ok(()) => {}
            Err(Refused { reason: RefusedReason::Busy, .. }) => self.wait(token),
            Err(Refused { reason: RefusedReason::Gone, .. }) => self.end(token, Err(LogFailure::Device)),
        }
    }

    /// Tries the rest of a transfer again when something is done.
    fn wait(&mut self, token: Token) {
        if let Some(transfer) = self.transfers.get(&token.0) {
            self.waiting.push_back(transfer.op.clone());
        }
    }

    fn flush(&mut self, token: Token) {
        let (mut count, mut has_failed) = self.flushes.remove(&token.0).unwrap_or_default();
        while let Some(part) = self.dirty.pop_first() {
            let Some(device) = self.parts.get_mut(&part) else { continue };
            match device.submit(Token(token.0 | FLUSH), DeviceOp::Flush) {
                Ok(()) => count += 1,
                Err(Refused { reason: RefusedReason::Busy, .. }) => {
                    // The rest of it goes when there is room.
                    self.dirty.insert(part);
                    self.flushes.insert(token.0, (count, has_failed));
                    return self.waiting.push_back(LogOp::Flush { token });
                }
                Err(Refused { reason: RefusedReason::Gone, .. }) => has_failed = true,
            }
        }
        if count > 0 {
            self.flushes.insert(token.0, (count, has_failed));
        } else {
            self.finish(token, if has_failed { Err(LogFailure::Device) } else { Ok(Vec::new()) });
        }
    }

    /// Takes what the files have done; whether anything was.
    pub(super) fn poll(&mut self) -> bool {
        let before = self.done.len();
        let numbers: Vec<u64> = self.parts.keys().copied().collect();
        for part in numbers {
            while let Some(completion) = self.parts.get_mut(&part).and_then(Device::poll) {
                self.complete(&completion);
            }
        }
        for _ in 0..self.waiting.len() {
            match self.waiting.pop_front() {
                Some(LogOp::Flush { token }) => self.flush(token),
                Some(op) => self.go_on(op.token()),
                None => break,
            }
        }
        self.done.len() > before
    }

    fn complete(&mut self, completion: &DeviceCompletion) {
        let token = completion.token;
        if token.0 & FLUSH != 0 {
            return self.complete_flush(Token(token.0 & !FLUSH), completion.result.is_err());
        }
        let Some(transfer) = self.transfers.get_mut(&token.0) else { return };
        if let Err(error) = completion.result {
            let space = error == DeviceError::NoSpace;
            return self.end(token, Err(if space { LogFailure::Space } else { LogFailure::Device }));
        }
        match (&completion.op, &transfer.op) {
            (DeviceOp::Write { from, durable, .. }, op) => {
                transfer.moved += from.len();
                // Only now: a flush that was submitted before does not cover it.
                if let (LogOp::Write { part, .. }, false) = (op, durable) {
                    self.dirty.insert(*part);
                }
            }
            (DeviceOp::Read { offset: aligned, into }, LogOp::Read { offset, len, .. }) => {
                let skip = (offset + transfer.read.len() as u64 - aligned) as usize;
                let wanted = len - transfer.read.len();
                let bytes = into.get(skip..).unwrap_or_default();
                transfer.read.extend_from_slice(&bytes[..bytes.len().min(wanted)]);
            }
            _ => {}
        }
        self.go_on(token);
    }

    fn complete_flush(&mut self, token: Token, has_failed: bool) {
        let Some((count, failed)) = self.flushes.get_mut(&token.0) else { return };
        *count -= 1;
        *failed |= has_failed;
        let waits = |op: &LogOp| matches!(op, LogOp::Flush { token: waiting } if *waiting == token);
        if *count == 0 && !self.waiting.iter().any(waits) {
            let result = if *failed { Err(LogFailure::Device) } else { Ok(Vec::new()) };
            self.flushes.remove(&token.0);
            self.finish(token, result);
        }
    }

    fn end(&mut self, token: Token, result: Result<Vec<u8>, LogFailure>) {
        self.transfers.remove(&token.0);
        self.finish(token, result);
    }

    fn finish(&mut self, token: Token, result: Result<Vec<u8>, LogFailure>) {
        self.done.push_back(LogCompletion { token, result });
    }

    /// The next operation that is done.
    pub(super) fn next_done(&mut self) -> Option<LogCompletion> {
        self.done.pop_front()
    }
}

/// The bit that tells flushes from transfers at a device. The store's tokens count up from zero.
const FLUSH: u64 = 1 << 63;

/// Memory for so many bytes, or for some of them.
fn piece(small: &Pool, large: &Pool, len: usize) -> Option<Slice> {
    if len <= SMALL_LEN { small.take().or_else(|| large.take()) } else { large.take() }
}

/// Makes a part so long that is there, and shorter. Nothing is written to it meanwhile: the store waits for this.
fn lengthen(device: &mut FileDevice, len: u64) -> std::io::Result<()> {
    let outcome = device.resize(len)?.run();
    device.resized(outcome)
}

fn failure(error: &std::io::Error) -> LogFailure {
    let is_wanting = matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE));
    if is_wanting || error.kind() == std::io::ErrorKind::StorageFull {
        return LogFailure::Space;
    }
    tracing::error!("the log of the key-value store: {error}");
    LogFailure::Device
}

#[cfg(test)]
#[path = "os_log_tests.rs"]
mod tests;
