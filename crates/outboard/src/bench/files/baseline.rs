//! The baseline: a file of the operating system, through io_uring.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ob_io::{DirectFile, DirectOp};
use rustix::fs::{FallocateFlags, fallocate};

use super::BenchFailure;
use crate::bench::load::{Contender, Direction, Load, Measured, Places, Round, stamp};

/// Bytes written at once while the file is made.
const FILL_LEN: usize = 1 << 20;
/// How many such writes at a time.
const FILL_DEPTH: usize = 8;

/// A file that is there in full. It has no name in its directory any more, so that nothing is left of it, however the
/// benchmark ends.
pub(super) struct Baseline {
    /// Keeps the file.
    _file: File,
    /// What it is called now.
    path: PathBuf,
    len: u64,
    is_direct: bool,
}

impl Baseline {
    /// Makes the file, all of it written and on the device, and nothing of it in the page cache.
    pub(super) fn create(path: &Path, len: u64) -> Result<Self, BenchFailure> {
        let file = File::create_new(path)?;
        std::fs::remove_file(path)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        fallocate(&file, FallocateFlags::empty(), 0, len)?;
        let mut direct = DirectFile::open(&path, FILL_DEPTH, FILL_LEN)?;
        let mut idle: Vec<usize> = (0..FILL_DEPTH).collect();
        for offset in (0..len).step_by(FILL_LEN) {
            while idle.is_empty() {
                direct.wait(|slot| idle.push(slot))?;
            }
            let slot = idle.pop().ok_or("no slot is free")?;
            stamp(direct.buffer(slot).ok_or("a slot is taken")?, offset);
            direct.submit(slot, DirectOp::Write, offset)?;
        }
        while idle.len() < FILL_DEPTH {
            direct.wait(|slot| idle.push(slot))?;
        }
        file.sync_all()?;
        Ok(Self { _file: file, path, len, is_direct: direct.is_direct() })
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Whether it bypasses the page cache.
    pub(super) fn is_direct(&self) -> bool {
        self.is_direct
    }
}

impl Contender for Baseline {
    fn run(&mut self, load: Load, round: u64, time: Duration) -> Result<Measured, BenchFailure> {
        let mut file = DirectFile::open(&self.path, load.depth, load.len)?;
        let mut places = Places::new(load, self.len, round);
        let mut idle: Vec<usize> = (0..load.depth).collect();
        let mut measured = Round::begin(load.depth, time, None)?;
        loop {
            for slot in idle.drain(..) {
                let offset = places.next();
                let op = match load.direction {
                    Direction::Read => DirectOp::Read,
                    Direction::Write => {
                        stamp(file.buffer(slot).ok_or("a slot is taken")?, offset);
                        DirectOp::Write
                    }
                };
                file.submit(slot, op, offset)?;
            }
            file.wait(|slot| {
                measured.completed(slot);
                idle.push(slot);
            })?;
            if !measured.waited() {
                return measured.end();
            }
        }
    }

    fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, BenchFailure> {
        let mut file = DirectFile::open(&self.path, 1, len)?;
        file.submit(0, DirectOp::Read, offset)?;
        let mut done = false;
        while !done {
            file.wait(|_| done = true)?;
        }
        Ok(file.buffer(0).ok_or("a slot is taken")?.to_vec())
    }
}
