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
        sched_setaffinity(None, &one_core(core))?;
    }
    Ok(before)
}

/// That core and no other.
pub(in crate::bench) fn one_core(core: usize) -> CpuSet {
    let mut own = CpuSet::new();
    own.set(core);
    own
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

/// Which core client, card and host have; none on a machine with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) struct Layout {
    pub(in crate::bench) client: Option<usize>,
    pub(in crate::bench) card: Option<usize>,
    pub(in crate::bench) host: Option<usize>,
}

impl Layout {
    /// The client has a core, and both halves of a server share another: what one does not use the other has, so that a
    /// server has one core however its work is divided.
    pub(in crate::bench) fn together() -> Result<Self, BenchFailure> {
        let server = card_core()?;
        Ok(Self { client: first_core(server)?, card: server, host: server })
    }

    /// Card and host have different cores. If there is no third one, the card is where the client is.
    pub(in crate::bench) fn apart() -> Result<Self, BenchFailure> {
        let together = Self::together()?;
        let cores = sched_getaffinity(None)?;
        let taken = |core: usize| [together.client, together.host].contains(&Some(core));
        let third = (0..CpuSet::MAX_CPU).find(|core| cores.is_set(*core) && !taken(*core));
        Ok(Self { card: third.or(together.client), ..together })
    }
}

/// The first core, if it is not that one.
fn first_core(other: Option<usize>) -> Result<Option<usize>, BenchFailure> {
    let cores = sched_getaffinity(None)?;
    let first = (0..CpuSet::MAX_CPU).find(|core| cores.is_set(*core));
    Ok(first.filter(|_| other.is_some()))
}
