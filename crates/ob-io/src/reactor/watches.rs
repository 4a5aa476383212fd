//! Readiness watches: which descriptors the kernel reports on.
//!
//! ```text
//!            arm                      unwatch
//!   Free ──▶ Armed ◀─ kernel dropped ─▶ Idle      Armed ──▶ Removing ──last completion──▶ Free
//!                       the watch, re-arm                        (a slot is reused only then)
//! ```

use std::collections::VecDeque;
use std::os::fd::RawFd;

use rustix::event::PollFlags;

/// One watch of a reactor. Never means another watch later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WatchId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl WatchId {
    /// A small number that no other live watch of the reactor has: an index for a table of watches.
    pub fn index(self) -> usize {
        self.slot as usize
    }
}

/// What a watch is about. Errors and hang-ups are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Something to read, or to accept, or the end of the stream.
    Readable,
    /// Room to write.
    Writable,
    /// Both.
    Both,
}

impl Interest {
    fn flags(self) -> PollFlags {
        match self {
            Self::Readable => PollFlags::IN | PollFlags::RDHUP,
            Self::Writable => PollFlags::OUT,
            Self::Both => PollFlags::IN | PollFlags::RDHUP | PollFlags::OUT,
        }
    }
}

/// What a descriptor is ready for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness(PollFlags);

impl Readiness {
    /// Of a watch that is over: what those who watch can be told without a reactor.
    pub const LOST: Self = Self(PollFlags::NVAL);

    /// There may be something to read, or the end, or an error that reading would report.
    pub fn is_readable(self) -> bool {
        self.0.intersects(PollFlags::IN | PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }

    /// There may be room to write, or an error that writing would report.
    pub fn is_writable(self) -> bool {
        self.0.intersects(PollFlags::OUT | PollFlags::HUP | PollFlags::ERR)
    }

    /// The peer has closed, wholly or its sending half.
    pub fn is_hangup(self) -> bool {
        self.0.intersects(PollFlags::HUP | PollFlags::RDHUP)
    }

    /// The descriptor has an error.
    pub fn is_error(self) -> bool {
        self.0.contains(PollFlags::ERR)
    }

    /// The watch is over: the descriptor cannot be watched (it was closed, most likely). No event follows; the
    /// watch still wants to be removed.
    pub fn is_lost(self) -> bool {
        self.0.contains(PollFlags::NVAL)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Wanted, and not with the kernel.
    Idle,
    /// With the kernel.
    Armed,
    /// With the kernel, and to be given up.
    Removing,
}

struct Slot {
    generation: u32,
    state: State,
    fd: RawFd,
    flags: PollFlags,
    /// Seen and not told yet.
    ready: PollFlags,
}

/// What the reactor has to do for a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Todo {
    Nothing,
    /// Give the watch to the kernel (again).
    Arm,
    /// Ask the kernel to give the watch up.
    Cancel,
}

pub(super) struct Watches {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Slots with something to tell, each at most once.
    told_next: VecDeque<u32>,
    /// How many slots the kernel holds.
    with_kernel: usize,
}

impl Watches {
    pub(super) fn new(capacity: u32) -> Self {
        let slot = || Slot {
            generation: 0,
            state: State::Free,
            fd: -1,
            flags: PollFlags::empty(),
            ready: PollFlags::empty(),
        };
        Self {
            slots: (0..capacity).map(|_| slot()).collect(),
            free: (0..capacity).rev().collect(),
            told_next: VecDeque::with_capacity(capacity as usize),
            with_kernel: 0,
        }
    }

    /// A new watch, to be armed; `None` when there is no room.
    pub(super) fn add(&mut self, fd: RawFd, interest: Interest) -> Option<WatchId> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        slot.state = State::Idle;
        slot.fd = fd;
        slot.flags = interest.flags();
        slot.ready = PollFlags::empty();
        Some(WatchId { slot: index, generation: slot.generation })
    }

    /// Ends a watch. What it had to tell is forgotten, and the id means nothing from now on.
    pub(super) fn remove(&mut self, id: WatchId) -> Todo {
        let Some(slot) = self.slots.get_mut(id.slot as usize) else { return Todo::Nothing };
        if slot.generation != id.generation || matches!(slot.state, State::Free | State::Removing) {
            return Todo::Nothing;
        }
        slot.generation = slot.generation.wrapping_add(1);
        slot.ready = PollFlags::empty();
        if slot.state == State::Armed {
            slot.state = State::Removing;
            return Todo::Cancel;
        }
        slot.state = State::Free;
        self.free.push(id.slot);
        Todo::Nothing
    }

    /// The descriptor and flags to arm a slot with, if it is wanted and not with the kernel.
    pub(super) fn to_arm(&self, index: u32) -> Option<(WatchId, RawFd, u32)> {
        let slot = self.slots.get(index as usize)?;
        let id = WatchId { slot: index, generation: slot.generation };
        (slot.state == State::Idle).then(|| (id, slot.fd, u32::from(slot.flags.bits())))
    }

    /// The slot's watch is with the kernel now.
    pub(super) fn armed(&mut self, index: u32) {
        self.slots[index as usize].state = State::Armed;
        self.with_kernel += 1;
    }

    /// A completion of the slot's watch. `more`: the kernel keeps the watch.
    pub(super) fn complete(&mut self, index: u32, result: i32, more: bool) -> Todo {
        let Some(slot) = self.slots.get_mut(index as usize) else { return Todo::Nothing };
        if !more {
            self.with_kernel -= 1;
        }
        match slot.state {
            State::Armed => {}
            State::Removing if !more => {
                slot.state = State::Free;
                self.free.push(index);
                return Todo::Nothing;
            }
            _ => return Todo::Nothing,
        }
        let lost = result < 0 && result != -libc::ECANCELED;
        let ready = if lost {
            PollFlags::NVAL
        } else {
            PollFlags::from_bits_truncate(u16::try_from(result.max(0)).unwrap_or(0))
        };
        if !ready.is_empty() && slot.ready.is_empty() {
            self.told_next.push_back(index);
        }
        slot.ready |= ready;
        if more {
            return Todo::Nothing;
        }
        slot.state = State::Idle;
        if lost { Todo::Nothing } else { Todo::Arm }
    }

    /// The next watch with something to tell.
    pub(super) fn next_ready(&mut self) -> Option<(WatchId, Readiness)> {
        loop {
            let index = self.told_next.pop_front()?;
            let slot = &mut self.slots[index as usize];
            let ready = std::mem::replace(&mut slot.ready, PollFlags::empty());
            if !ready.is_empty() {
                return Some((WatchId { slot: index, generation: slot.generation }, Readiness(ready)));
            }
        }
    }

    pub(super) fn has_ready(&self) -> bool {
        !self.told_next.is_empty()
    }

    pub(super) fn with_kernel(&self) -> usize {
        self.with_kernel
    }

    /// Every watch that the kernel holds and has not been asked to give up.
    pub(super) fn held(&self) -> impl Iterator<Item = WatchId> {
        let armed = (0u32..).zip(&self.slots).filter(|(_, slot)| slot.state == State::Armed);
        armed.map(|(slot, entry)| WatchId { slot, generation: entry.generation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN: i32 = PollFlags::IN.bits() as i32;

    fn armed() -> (Watches, WatchId) {
        let mut watches = Watches::new(1);
        let id = watches.add(7, Interest::Readable).unwrap();
        assert!(watches.add(8, Interest::Readable).is_none(), "bounded");
        watches.armed(id.slot);
        (watches, id)
    }

    #[test]
    fn many_completions_become_one_event() {
        let (mut watches, id) = armed();
        assert_eq!(watches.complete(0, IN, true), Todo::Nothing);
        assert_eq!(watches.complete(0, i32::from(PollFlags::HUP.bits()), true), Todo::Nothing);
        let (told, readiness) = watches.next_ready().unwrap();
        assert!(told == id && readiness.is_readable() && readiness.is_hangup() && !readiness.is_lost());
        assert!(watches.next_ready().is_none());
    }

    #[test]
    fn a_watch_that_the_kernel_drops_is_armed_again() {
        let (mut watches, _) = armed();
        assert_eq!(watches.complete(0, IN, false), Todo::Arm);
        assert!(watches.to_arm(0).is_some() && watches.with_kernel() == 0);
    }

    #[test]
    fn a_descriptor_that_cannot_be_watched_is_told_once() {
        let (mut watches, id) = armed();
        assert_eq!(watches.complete(0, -libc::EBADF, false), Todo::Nothing);
        assert!(watches.next_ready().unwrap().1.is_lost());
        assert_eq!(watches.remove(id), Todo::Nothing);
        assert!(watches.add(9, Interest::Both).is_some());
    }

    #[test]
    fn a_slot_is_reused_only_after_the_kernel_let_go() {
        let (mut watches, id) = armed();
        watches.complete(0, IN, true);
        assert_eq!(watches.remove(id), Todo::Cancel);
        assert_eq!(watches.remove(id), Todo::Nothing, "twice is harmless");
        assert!(watches.next_ready().is_none(), "nothing is told after the end");
        assert!(watches.add(9, Interest::Both).is_none());
        assert_eq!(watches.complete(0, IN, true), Todo::Nothing);
        assert_eq!(watches.complete(0, -libc::ECANCELED, false), Todo::Nothing);
        let next = watches.add(9, Interest::Both).unwrap();
        assert_ne!(next, id);
        assert_eq!(watches.remove(id), Todo::Nothing, "a stale id does not touch its successor");
    }
}
