//! Open files: reads and writes at an offset.

use std::fmt;
use std::sync::Arc;

use ob_core::NodeId;
use ob_wire_link::files::NodeInfo;

use crate::buffer::{Buffer, OwnedBuffer};
use crate::control::Control;
use crate::deliver::{Cell, Deliver, Outcome, Payload, count_of};
use crate::error::{Error, Refused, Result};
use crate::group::{Group, node_of};
use crate::pending::Pending;
use crate::request::{Operation, Value};
use crate::transfer::{Direction, Transfer};

/// An open file. It is nothing but the file's number and the group that its operations go through, so it is cheap to
/// clone, needs no closing, and stays valid when the card dies and comes back.
#[derive(Clone)]
pub struct File {
    group: Group,
    node: NodeId,
}

impl fmt::Debug for File {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("File").field("node", &self.node).finish_non_exhaustive()
    }
}

/// What a read or write brings: the bytes moved, or why not, and the buffer in any case.
pub type Moved<B> = (Result<usize>, B);

impl File {
    pub(crate) fn new(group: Group, node: NodeId) -> Self {
        Self { group, node }
    }

    /// The file's number on its card: never used twice.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The group that this handle's operations go through.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Reads into the buffer, up to its length. Short only where the file ends.
    pub fn read_at<B: OwnedBuffer>(&self, buffer: B, offset: u64) -> Pending<Moved<B>> {
        self.transfer(Direction::Read, buffer, offset)
    }

    /// Writes all of the buffer. The file grows as needed.
    pub fn write_at<B: OwnedBuffer>(&self, buffer: B, offset: u64) -> Pending<Moved<B>> {
        self.transfer(Direction::Write { durable: false }, buffer, offset)
    }

    /// As [`File::write_at`]; durable when it is done.
    pub fn write_durable_at<B: OwnedBuffer>(&self, buffer: B, offset: u64) -> Pending<Moved<B>> {
        self.transfer(Direction::Write { durable: true }, buffer, offset)
    }

    /// As [`File::read_at`], by tag: the completion comes from [`Group::poll`] or [`Group::wait`].
    pub fn submit_read<B: OwnedBuffer>(
        &self,
        buffer: B,
        offset: u64,
        tag: u64,
    ) -> std::result::Result<(), Refused<B>> {
        self.submit(Direction::Read, buffer, offset, Deliver::Tag(tag))
    }

    /// As [`File::write_at`], by tag.
    pub fn submit_write<B: OwnedBuffer>(
        &self,
        buffer: B,
        offset: u64,
        tag: u64,
    ) -> std::result::Result<(), Refused<B>> {
        self.submit(Direction::Write { durable: false }, buffer, offset, Deliver::Tag(tag))
    }

    /// As [`File::write_durable_at`], by tag.
    pub fn submit_write_durable<B: OwnedBuffer>(
        &self,
        buffer: B,
        offset: u64,
        tag: u64,
    ) -> std::result::Result<(), Refused<B>> {
        self.submit(Direction::Write { durable: true }, buffer, offset, Deliver::Tag(tag))
    }

    /// As [`File::read_at`], by callback.
    pub fn read_then<B: OwnedBuffer>(
        &self,
        buffer: B,
        offset: u64,
        then: impl FnOnce(Result<usize>, B) + Send + 'static,
    ) -> std::result::Result<(), Refused<B>> {
        if let Err(reason) = self.group.core().drive() {
            return Err(Refused { buffer, reason });
        }
        self.submit(Direction::Read, buffer, offset, callback(then))
    }

    /// As [`File::write_at`], by callback.
    pub fn write_then<B: OwnedBuffer>(
        &self,
        buffer: B,
        offset: u64,
        then: impl FnOnce(Result<usize>, B) + Send + 'static,
    ) -> std::result::Result<(), Refused<B>> {
        if let Err(reason) = self.group.core().drive() {
            return Err(Refused { buffer, reason });
        }
        self.submit(Direction::Write { durable: false }, buffer, offset, callback(then))
    }

    /// Reads without a buffer: the callback looks at the bytes where they lie in the ring. At most as many as one request
    /// takes ([`Error::TooLarge`] otherwise).
    pub fn read_with(
        &self,
        len: usize,
        offset: u64,
        then: impl FnOnce(Result<Payload<'_>>) + Send + 'static,
    ) -> std::result::Result<(), Refused<()>> {
        self.group.core().drive().map_err(|reason| Refused { buffer: (), reason })?;
        if len == 0 {
            return Err(Refused { buffer: (), reason: Error::Invalid });
        }
        let transfer = Transfer::new(Direction::ReadInPlace, self.node, offset, len);
        let started = transfer.and_then(|transfer| {
            let operation = Operation::transfer(transfer, Buffer::Empty, Deliver::InPlace(Box::new(then)));
            self.group.core().start(operation).map_err(|(_, reason)| reason)
        });
        started.map_err(|reason| Refused { buffer: (), reason })
    }

    /// Size and the like.
    pub fn stat(&self) -> Pending<Result<NodeInfo>> {
        self.group.control(Ok(Control::stat_node(self.node)), |_, outcome| node_of(outcome))
    }

    /// Cuts the file to this size, or lets it grow with zeros.
    pub fn resize(&self, size: u64) -> Pending<Result<NodeInfo>> {
        self.group.control(Ok(Control::resize(self.node, size)), |_, outcome| node_of(outcome))
    }

    /// Makes a range read as zeros, as far as the file reaches, and gives back the space that it has as a whole.
    pub fn zero(&self, offset: u64, len: u32) -> Pending<Result<()>> {
        self.group.control(Ok(Control::zero(self.node, offset, len)), |_, outcome| outcome.result.map(|_| ()))
    }

    /// Makes everything durable, of all files, that was completed before this call.
    pub fn flush(&self) -> Pending<Result<()>> {
        self.group.flush()
    }

    fn transfer<B: OwnedBuffer>(&self, direction: Direction, buffer: B, offset: u64) -> Pending<Moved<B>> {
        let buffer = buffer.into_buffer();
        let cell = match Transfer::new(direction, self.node, offset, buffer.len()) {
            Ok(transfer) => {
                let cell = Arc::new(Cell::default());
                let is_empty = transfer.is_empty();
                let deliver = Deliver::Cell(Arc::clone(&cell));
                let operation = Operation::transfer(transfer, buffer, deliver);
                if is_empty {
                    self.group.core().finish(operation, Ok(Value::Count(0)));
                } else {
                    self.group.core().start_or_wait(operation);
                }
                cell
            }
            Err(error) => Cell::failed(error, buffer),
        };
        Pending::new(cell, self.group.clone(), moved)
    }

    fn submit<B: OwnedBuffer>(
        &self,
        direction: Direction,
        buffer: B,
        offset: u64,
        deliver: Deliver,
    ) -> std::result::Result<(), Refused<B>> {
        let buffer = buffer.into_buffer();
        let core = self.group.core();
        match Transfer::new(direction, self.node, offset, buffer.len()) {
            Ok(transfer) => {
                let is_empty = transfer.is_empty();
                let operation = Operation::transfer(transfer, buffer, deliver);
                let started =
                    if is_empty { core.complete(operation, Value::Count(0)) } else { core.start(operation) };
                started.map_err(|(operation, reason)| Refused { buffer: again(operation.buffer), reason })
            }
            Err(reason) => Err(Refused { buffer: again(buffer), reason }),
        }
    }
}

fn callback<B: OwnedBuffer>(then: impl FnOnce(Result<usize>, B) + Send + 'static) -> Deliver {
    Deliver::Callback(Box::new(move |result, buffer| then(result, again(buffer))))
}

fn moved<B: OwnedBuffer>(_: &Group, outcome: Outcome) -> Moved<B> {
    (count_of(outcome.result), again(outcome.buffer))
}

/// The buffer as the type that it was given as.
fn again<B: OwnedBuffer>(buffer: Buffer) -> B {
    match B::from_buffer(buffer) {
        Some(own) => own,
        // A buffer is stored as what `into_buffer` made of it, and nobody changes that.
        None => unreachable!("a buffer came back as another type"),
    }
}
