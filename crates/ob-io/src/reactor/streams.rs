//! Work on sockets that goes on by itself: accepting, and receiving into buffers that the kernel picks.
//!
//! ```text
//!   start ─▶ slot (owns the socket) ─▶ one SQE ─▶ kernel ─▶ CQE, CQE, CQE … ─▶ News in the group's queue
//!                                                   │
//!                              stopped, out of buffers, end or error: News::Over, the slot is free
//! ```
//!
//! A group is what one network owns: a ring of buffers, and a queue of news. It outlives its owner until the kernel
//! has given back its last stream, because until then the kernel may write the buffers.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use io_uring::types::Fd;
use io_uring::{cqueue, opcode, squeue};
use ob_memory::Slice;
use rustix::io::Errno;

use super::ReactorError;
use super::buffer_ring::BufferRing;
use super::ring::Ring;

/// Groups at one time.
const GROUPS_MAX: u16 = 64;

/// One stretch of work on a socket. Never means another one later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamWork {
    Accept,
    Receive,
}

/// What became of a stream.
pub(crate) enum News {
    Accepted(OwnedFd),
    /// Bytes, at the beginning of a buffer that is the receiver's now.
    Received(Slice, usize),
    /// Nothing follows: the peer ended its stream (`Ok`), or what the kernel says.
    Over(Result<(), Errno>),
}

struct Stream {
    group: u16,
    tag: u64,
    work: StreamWork,
    /// Keeps the number from meaning another socket while an entry with it is on its way to the kernel.
    socket: Rc<OwnedFd>,
    armed: bool,
}

struct Slot {
    generation: u32,
    stream: Option<Stream>,
}

struct Group {
    buffers: BufferRing,
    news: VecDeque<(u64, News)>,
    streams: usize,
    /// The owner is gone.
    orphaned: bool,
}

pub(super) struct Streams {
    slots: Vec<Slot>,
    free: Vec<u32>,
    groups: Vec<Option<Group>>,
    with_kernel: usize,
    newest_features: bool,
}

impl Streams {
    pub(super) fn new(capacity: u32, newest_features: bool) -> Self {
        Self {
            slots: (0..capacity).map(|_| Slot { generation: 0, stream: None }).collect(),
            free: (0..capacity).rev().collect(),
            groups: Vec::new(),
            with_kernel: 0,
            newest_features,
        }
    }

    pub(super) fn add_group(&mut self, ring: &Ring, len: usize, count: u16) -> Result<u16, ReactorError> {
        const LACKING: ReactorError = ReactorError::Lacking("receiving into buffers that it picks", "6.0");
        if !self.newest_features || !ring.receives_by_itself() {
            return Err(LACKING);
        }
        let index = match self.groups.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.groups.len() < usize::from(GROUPS_MAX) => {
                self.groups.push(None);
                self.groups.len() - 1
            }
            None => return Err(ReactorError::Full("group of streams")),
        };
        let group = index as u16;
        let buffers = BufferRing::new(len, count);
        // SAFETY: the memory is the group's, which is dropped only after `unregister_buffer_ring`, or leaked; and the
        // buffers that its entries name are owned by it until a completion has named them.
        unsafe { ring.register_buffer_ring(buffers.address(), buffers.count(), group) }
            .map_err(ReactorError::Register)?;
        self.groups[index] =
            Some(Group { buffers, news: VecDeque::with_capacity(64), streams: 0, orphaned: false });
        Ok(group)
    }

    /// The owner is gone: forgets the news, and names the streams to be stopped.
    pub(super) fn orphan_group(&mut self, group: u16) -> Vec<StreamId> {
        if let Some(group) = self.group(group) {
            group.orphaned = true;
            group.news.clear();
        }
        self.live().filter(|(_, stream)| stream.group == group).map(|(id, _)| id).collect()
    }

    pub(super) fn release_if_over(&mut self, ring: &Ring, index: u16) {
        let Some(slot) = self.groups.get_mut(usize::from(index)) else { return };
        if let Some(over) = slot.take_if(|group| group.orphaned && group.streams == 0)
            && let Err(error) = ring.unregister_buffer_ring(index)
        {
            tracing::error!(%error, "leaking a ring of buffers that the kernel does not give back");
            std::mem::forget(over);
        }
    }

    pub(super) fn add(
        &mut self,
        group: u16,
        tag: u64,
        work: StreamWork,
        socket: &Rc<OwnedFd>,
    ) -> Option<StreamId> {
        self.group(group)?.streams += 1;
        let Some(index) = self.free.pop() else {
            self.group(group)?.streams -= 1;
            return None;
        };
        let slot = &mut self.slots[index as usize];
        slot.stream = Some(Stream { group, tag, work, socket: Rc::clone(socket), armed: false });
        Some(StreamId { slot: index, generation: slot.generation })
    }

    pub(super) fn is_current(&self, id: StreamId) -> bool {
        let slot = self.slots.get(id.slot as usize);
        slot.is_some_and(|slot| slot.generation == id.generation && slot.stream.is_some())
    }

    /// The kernel's words for a stream.
    pub(super) fn entry(&self, index: u32) -> Option<(StreamId, squeue::Entry)> {
        let slot = self.slots.get(index as usize)?;
        let stream = slot.stream.as_ref()?;
        let fd = Fd(stream.socket.as_raw_fd());
        let entry = match stream.work {
            StreamWork::Accept => {
                opcode::AcceptMulti::new(fd).flags(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC).build()
            }
            StreamWork::Receive => opcode::RecvMulti::new(fd, stream.group).build(),
        };
        Some((StreamId { slot: index, generation: slot.generation }, entry))
    }

    pub(super) fn armed(&mut self, index: u32) {
        if let Some(stream) = &mut self.slots[index as usize].stream {
            stream.armed = true;
            self.with_kernel += 1;
        }
    }

    /// The kernel's answer for a slot; `true` when somebody has news.
    pub(super) fn complete(&mut self, ring: &Ring, index: u32, completion: &cqueue::Entry) -> bool {
        let Some(slot) = self.slots.get_mut(index as usize) else { return false };
        let Some(stream) = &slot.stream else { return false };
        let (tag, work, group_index) = (stream.tag, stream.work, stream.group);
        let Some(group) = self.groups.get_mut(usize::from(group_index)).and_then(Option::as_mut) else {
            return false;
        };
        let news = match usize::try_from(completion.result()) {
            Err(_) => None,
            Ok(count) => match work {
                // SAFETY: the kernel made this descriptor for us just now and told nobody else.
                StreamWork::Accept => Some(News::Accepted(unsafe { OwnedFd::from_raw_fd(count as i32) })),
                StreamWork::Receive => cqueue::buffer_select(completion.flags())
                    .and_then(|number| group.buffers.take(number))
                    .filter(|_| count > 0)
                    .map(|slice| News::Received(slice, count)),
            },
        };
        let over = !cqueue::more(completion.flags());
        let ended = news.is_none();
        if !group.orphaned {
            group.news.extend(news.map(|news| (tag, news)));
        }
        if over {
            let result = match completion.result() {
                0 if ended => Ok(()),
                errno if errno < 0 => Err(Errno::from_raw_os_error(-errno)),
                // It stopped without a reason (the queue of completions was full, say), and can go on.
                _ => Err(Errno::AGAIN),
            };
            group.streams -= 1;
            if !group.orphaned {
                group.news.push_back((tag, News::Over(result)));
            }
            slot.generation = slot.generation.wrapping_add(1);
            slot.stream = None;
            self.free.push(index);
            self.with_kernel -= 1;
            self.release_if_over(ring, group_index);
        }
        true
    }

    pub(super) fn next_news(&mut self, group: u16) -> Option<(u64, News)> {
        self.group(group)?.news.pop_front()
    }

    /// Gives the kernel buffers for those that came back with bytes.
    pub(super) fn refill(&mut self) {
        for group in self.groups.iter_mut().flatten() {
            group.buffers.refill();
        }
    }

    pub(super) fn has_buffers(&mut self, group: u16) -> bool {
        self.group(group).is_some_and(|group| {
            group.buffers.refill();
            group.buffers.has_lent()
        })
    }

    pub(super) fn with_kernel(&self) -> usize {
        self.with_kernel
    }

    /// Every stream that the kernel holds.
    pub(super) fn held(&self) -> impl Iterator<Item = StreamId> {
        self.live().filter(|(_, stream)| stream.armed).map(|(id, _)| id)
    }

    /// At the end: gives up every group, and leaks those that the kernel did not let go of.
    pub(super) fn let_go(&mut self, ring: &Ring) {
        for index in 0..self.groups.len() {
            if let Some(group) = self.groups[index].as_mut() {
                (group.orphaned, group.streams) =
                    (true, if self.with_kernel == 0 { 0 } else { group.streams });
                group.news.clear();
            }
            self.release_if_over(ring, index as u16);
        }
        if self.with_kernel > 0 {
            tracing::error!(count = self.with_kernel, "leaking buffers that the kernel does not give back");
            std::mem::forget(std::mem::take(&mut self.groups));
        }
    }

    fn group(&mut self, group: u16) -> Option<&mut Group> {
        self.groups.get_mut(usize::from(group))?.as_mut()
    }

    fn live(&self) -> impl Iterator<Item = (StreamId, &Stream)> {
        (0u32..).zip(&self.slots).filter_map(|(slot, entry)| {
            let id = StreamId { slot, generation: entry.generation };
            entry.stream.as_ref().map(|stream| (id, stream))
        })
    }
}
