//! Which core is whose.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::BenchFailure;

/// The core to set aside for the card: the last one, if there is more than one.
pub(in crate::bench) fn card_core() -> Result<Option<usize>, BenchFailure> {
    let cores = sched_getaffinity(None)?;
    if cores.count() < 2 {
        return Ok(None);
    }
    Ok((0..CpuSet::MAX_CPU).rev().find(|core| cores.is_set(*core)))
}

/// Keeps this thread, and what it starts, on a core; the cores it had before.
pub(in crate::bench) fn pin(core: Option<usize>) -> Result<CpuSet, BenchFailure> {
    let before = sched_getaffinity(None)?;
    if let Some(core) = core {
        let mut own = CpuSet::new();
        own.set(core);
        sched_setaffinity(None, &own)?;
    }
    Ok(before)
}

/// Keeps this thread, and what it starts, off a core, as a host's threads are kept off a card's; the cores it had before.
pub(in crate::bench) fn leave(core: Option<usize>) -> Result<CpuSet, BenchFailure> {
    let before = sched_getaffinity(None)?;
    let mut rest = before;
    if let Some(core) = core {
        rest.unset(core);
    }
    if rest.count() > 0 {
        sched_setaffinity(None, &rest)?;
    }
    Ok(before)
}
