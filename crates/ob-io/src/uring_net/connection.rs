//! One connection: what has arrived for it, and where its next bytes come from.
//!
//! ```text
//!   Connecting ─▶ Ring: the kernel receives by itself ◀──────────────┐
//!                  │ too much unread: stopped until it is read ──────┤
//!                  │ out of buffers                                  │ nothing left, and buffers again
//!                  └──▶ Watch: told of readiness, receives by calls ─┘
//! ```

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use ob_core::{ConnectionId, NetError, NetEvent, Received, Sent};
use ob_memory::Slice;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg, sockopt,
};

use crate::reactor::{Readiness, StreamId, WatchId};
use crate::tcp::{SLICES_MAX, net_error};

/// So many buffers, and the first of them left unread for a round: then the kernel stops receiving for a connection.
const UNREAD_MAX: usize = 4;

/// Where the next bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Connecting,
    /// The kernel puts them into buffers; `None` when it has to be told to (again).
    Ring(Option<StreamId>),
    /// The socket, by a call, when the kernel tells that there are any.
    Watch {
        ready: bool,
    },
    /// There are no more.
    Over,
}

pub(super) struct Connection {
    pub(super) socket: Rc<OwnedFd>,
    pub(super) source: Source,
    /// A watch on the socket, while readiness is of interest.
    pub(super) watch: Option<WatchId>,
    /// The kernel was asked to stop receiving.
    pub(super) stopping: bool,
    arrived: VecDeque<Piece>,
    /// What broke the stream, behind the bytes that came before.
    broken: Option<NetError>,
    pub(super) failed: Option<NetError>,
    readable_told: bool,
    pub(super) wants_room: bool,
    full: bool,
    pub(super) tell_connected: bool,
    tell_readable: bool,
    tell_writable: bool,
    pub(super) queued: bool,
}

/// A buffer, and which of its bytes are not read yet.
struct Piece {
    slice: Slice,
    start: usize,
    end: usize,
    /// The round of news that brought it.
    round: u64,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, connecting: bool) -> Self {
        Self {
            socket: Rc::new(socket),
            source: if connecting { Source::Connecting } else { Source::Ring(None) },
            watch: None,
            stopping: false,
            arrived: VecDeque::new(),
            broken: None,
            failed: None,
            readable_told: false,
            wants_room: false,
            full: false,
            tell_connected: false,
            tell_readable: false,
            tell_writable: false,
            queued: false,
        }
    }

    /// Whether the kernel has to be told to receive.
    pub(super) fn wants_stream(&self) -> bool {
        let idle = match self.source {
            Source::Ring(stream) => stream.is_none(),
            Source::Watch { ready } => !ready,
            Source::Connecting | Source::Over => false,
        };
        idle && self.arrived.is_empty() && self.failed.is_none()
    }

    /// Whether readiness of the socket is of interest.
    pub(super) fn wants_watch(&self) -> bool {
        matches!(self.source, Source::Connecting | Source::Watch { .. }) || self.wants_room
    }

    /// The stream that has received too much ahead of the owner. What came in the present round does not count,
    /// because nobody could read it yet.
    pub(super) fn stream_to_stop(&mut self, round: u64) -> Option<StreamId> {
        let behind = self.arrived.front().is_some_and(|piece| piece.round != round);
        match self.source {
            Source::Ring(Some(stream)) if behind && self.arrived.len() >= UNREAD_MAX && !self.stopping => {
                self.stopping = true;
                Some(stream)
            }
            _ => None,
        }
    }

    pub(super) fn on_received(&mut self, slice: Slice, len: usize, round: u64) {
        let end = len.min(slice.len());
        self.arrived.push_back(Piece { slice, start: 0, end, round });
        self.readable();
    }

    pub(super) fn on_stream_over(&mut self, result: Result<(), Errno>) {
        self.stopping = false;
        self.source = match result {
            Ok(()) => Source::Over,
            // Stopped by us, out of buffers, or for no reason of the stream's: it can go on.
            Err(Errno::CANCELED | Errno::NOBUFS | Errno::AGAIN | Errno::INTR) => {
                self.source = Source::Ring(None);
                return;
            }
            Err(errno) => {
                self.broken = Some(net_error(errno));
                Source::Over
            }
        };
        self.readable();
    }

    pub(super) fn on_ready(&mut self, readiness: Readiness) {
        if readiness.is_lost() {
            self.failed = Some(NetError::Exhausted);
        }
        if self.failed.is_some() {
            return;
        }
        if self.source == Source::Connecting && readiness.is_writable() {
            match sockopt::socket_error(&*self.socket) {
                Ok(Ok(())) => {
                    self.source = Source::Ring(None);
                    self.tell_connected = true;
                }
                Ok(Err(errno)) | Err(errno) => self.failed = Some(net_error(errno)),
            }
        }
        if self.source == Source::Connecting || self.failed.is_some() {
            return;
        }
        if matches!(self.source, Source::Watch { .. }) && readiness.is_readable() {
            self.source = Source::Watch { ready: true };
            self.readable();
        }
        if readiness.is_writable() {
            self.full = false;
            if std::mem::take(&mut self.wants_room) {
                self.tell_writable = true;
            }
        }
    }

    fn readable(&mut self) {
        if !self.readable_told {
            self.readable_told = true;
            self.tell_readable = true;
        }
    }

    pub(super) fn has_news(&self) -> bool {
        self.tell_connected || self.tell_readable || self.tell_writable || self.failed.is_some()
    }

    pub(super) fn next_news(&mut self, id: ConnectionId) -> Option<NetEvent> {
        if std::mem::take(&mut self.tell_connected) {
            return Some(NetEvent::Connected(id));
        }
        if let Some(error) = self.failed {
            return Some(NetEvent::Closed { connection: id, error });
        }
        if std::mem::take(&mut self.tell_readable) {
            return Some(NetEvent::Readable(id));
        }
        std::mem::take(&mut self.tell_writable).then_some(NetEvent::Writable(id))
    }

    pub(super) fn receive(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<Received, NetError> {
        if into.iter().all(|slice| slice.is_empty()) {
            return self.failed.map_or(Ok(Received::Bytes(0)), Err);
        }
        if let Some(error) = self.failed {
            return Err(error);
        }
        if !self.arrived.is_empty() {
            return Ok(Received::Bytes(self.copy_arrived(into)));
        }
        if let Some(error) = self.broken {
            self.failed = Some(error);
            return Err(error);
        }
        match self.source {
            Source::Over => Ok(Received::End),
            Source::Watch { ready: true } => self.receive_by_call(into),
            Source::Connecting | Source::Ring(_) | Source::Watch { ready: false } => {
                self.readable_told = false;
                Ok(Received::Nothing)
            }
        }
    }

    /// Copies out of the buffers; there is at least one.
    fn copy_arrived(&mut self, into: &mut [IoSliceMut<'_>]) -> usize {
        let mut total = 0;
        for slice in into {
            let mut filled = 0;
            while filled < slice.len() {
                let Some(piece) = self.arrived.front_mut() else { return total };
                let count = (slice.len() - filled).min(piece.end - piece.start);
                slice[filled..filled + count].copy_from_slice(&piece.slice[piece.start..piece.start + count]);
                piece.start += count;
                (filled, total) = (filled + count, total + count);
                if piece.start == piece.end {
                    self.arrived.pop_front();
                }
            }
        }
        total
    }

    fn receive_by_call(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<Received, NetError> {
        let first = into.iter().position(|slice| !slice.is_empty()).unwrap_or(0);
        let end = into.len().min(first + SLICES_MAX);
        loop {
            let mut control = RecvAncillaryBuffer::default();
            match recvmsg(&*self.socket, &mut into[first..end], &mut control, RecvFlags::DONTWAIT) {
                Ok(message) if message.bytes == 0 => {
                    self.source = Source::Over;
                    return Ok(Received::End);
                }
                Ok(message) => return Ok(Received::Bytes(message.bytes)),
                Err(Errno::AGAIN) => {
                    self.source = Source::Watch { ready: false };
                    self.readable_told = false;
                    return Ok(Received::Nothing);
                }
                Err(Errno::INTR) => {}
                Err(errno) => {
                    let error = net_error(errno);
                    self.failed = Some(error);
                    return Err(error);
                }
            }
        }
    }

    pub(super) fn send(&mut self, slices: &[IoSlice<'_>]) -> Result<Sent, NetError> {
        let mut total = 0;
        for part in slices.chunks(SLICES_MAX) {
            let offered: usize = part.iter().map(|slice| slice.len()).sum();
            match self.send_part(part, offered) {
                Ok(count) => {
                    total += count;
                    if count < offered {
                        break;
                    }
                }
                Err(_) if total > 0 => break,
                Err(error) => return Err(error),
            }
        }
        self.failed.filter(|_| total == 0).map_or(Ok(Sent(total)), Err)
    }

    fn send_part(&mut self, part: &[IoSlice<'_>], offered: usize) -> Result<usize, NetError> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            // What broke the stream is known here before the owner has read up to it.
            self.failed = self.failed.or(self.broken);
            if let Some(error) = self.failed {
                return Err(error);
            }
            if offered == 0 {
                return Ok(0);
            }
            if self.source == Source::Connecting || self.full {
                self.wants_room = true;
                return Ok(0);
            }
            match sendmsg(&*self.socket, part, &mut SendAncillaryBuffer::default(), flags) {
                Ok(count) => {
                    self.full = count < offered;
                    self.wants_room = self.full;
                    return Ok(count);
                }
                Err(Errno::AGAIN) => self.full = true,
                Err(Errno::INTR) => {}
                Err(errno) => self.failed = Some(net_error(errno)),
            }
        }
    }
}
