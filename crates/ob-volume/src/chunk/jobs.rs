//! Operations of many steps: each asks the files for one thing, waits, and goes on with what it found.
//!
//! ```text
//!   Jobs::start ─▶ future ── Io::ask ──▶ place ──▶ the server submits it
//!                    ▲                     │
//!                    └──── Jobs::go_on ◀───┴── completion
//! ```
//!
//! A job knows nothing of the server: what it needs it is given, and what it found it gives back.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ob_core::{IdMap, NodeId};
use ob_files_card::{Completion, MetadataOp, Op, Outcome};
use ob_memory::{Pool, Slice};
use ob_wire_link::files::{FileError, NodeInfo};

/// What a job asks, and what it is answered.
#[derive(Default)]
struct Place {
    asked: Option<Op>,
    answer: Option<Completion>,
}

/// A job's way to the files. It asks for one thing at a time.
#[derive(Clone)]
pub(super) struct Io {
    place: Rc<RefCell<Place>>,
    pool: Pool,
    /// Of the device.
    pub(super) block_len: usize,
}

impl Io {
    async fn ask(&self, op: Op) -> Completion {
        self.place.borrow_mut().asked = Some(op);
        poll_fn(|_| match self.place.borrow_mut().answer.take() {
            Some(completion) => Poll::Ready(completion),
            None => Poll::Pending,
        })
        .await
    }

    /// A buffer, when one is free. No job has two: none waits for another one's.
    pub(super) async fn buffer(&self) -> Slice {
        poll_fn(|_| self.pool.take().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Bytes of the longest piece that is read or written at once.
    pub(super) fn piece_len(&self) -> usize {
        1 << 20
    }

    /// Asks for something about names.
    pub(super) async fn metadata(&self, op: MetadataOp) -> Result<Outcome, FileError> {
        self.ask(Op::Metadata(op)).await.result
    }

    /// The same, where a node is the answer.
    pub(super) async fn node(&self, op: MetadataOp) -> Result<NodeInfo, FileError> {
        match self.metadata(op).await? {
            Outcome::Node(info) => Ok(info),
            _ => Err(FileError::Invalid),
        }
    }

    /// Reads so many bytes; how many there were, and the buffer.
    pub(super) async fn read(
        &self,
        file: NodeId,
        offset: u64,
        len: usize,
        into: Slice,
    ) -> (Result<usize, FileError>, Slice) {
        let completion = self.ask(Op::Read { file, offset, len: len as u32, into }).await;
        let read = match completion.result {
            Ok(Outcome::Read { len, .. }) => Ok(len as usize),
            Ok(_) => Err(FileError::Invalid),
            Err(error) => Err(error),
        };
        match completion.buffer {
            Some(buffer) => (read, buffer),
            None => (read, self.buffer().await),
        }
    }

    /// Writes all of `from`, durably.
    pub(super) async fn write(&self, file: NodeId, offset: u64, from: Slice) -> Result<(), FileError> {
        self.ask(Op::Write { file, offset, from: from.into(), durable: true }).await.result.map(|_| ())
    }

    /// Writes some bytes at the beginning of a block, zeros behind them; durable.
    pub(super) async fn write_block(&self, file: NodeId, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        let mut block = self.buffer().await;
        block.truncate(bytes.len().next_multiple_of(self.block_len));
        block.fill(0);
        block.get_mut(..bytes.len()).ok_or(FileError::TooLarge)?.copy_from_slice(bytes);
        self.write(file, offset, block).await
    }

    /// Changes a file's size.
    pub(super) async fn resize(&self, file: NodeId, size: u64) -> Result<(), FileError> {
        self.ask(Op::Resize { file, size }).await.result.map(|_| ())
    }

    /// Makes durable what was answered before.
    pub(super) async fn flush(&self) -> Result<(), FileError> {
        self.ask(Op::Flush).await.result.map(|_| ())
    }

    /// Makes a directory, if it is not there.
    pub(super) async fn make_directory(&self, path: &str) -> Result<(), FileError> {
        let op = MetadataOp::MakeDirectory { base: ob_format::files::ROOT, path: path.into() };
        match self.metadata(op).await {
            Ok(_) | Err(FileError::Exists) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes a file, if it is there.
    pub(super) async fn remove(&self, path: &str) -> Result<(), FileError> {
        let op = MetadataOp::Remove { base: ob_format::files::ROOT, path: path.into(), only: None };
        match self.metadata(op).await {
            Ok(_) | Err(FileError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes a directory in which nothing is left.
    pub(super) async fn remove_empty(&self, path: &str) -> Result<(), FileError> {
        let only = Some(ob_core::NodeKind::Directory);
        let op = MetadataOp::Remove { base: ob_format::files::ROOT, path: path.into(), only };
        match self.metadata(op).await {
            Ok(_) | Err(FileError::NotFound | FileError::NotEmpty) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A file that is there.
    pub(super) async fn open(&self, path: &str) -> Result<NodeInfo, FileError> {
        let base = ob_format::files::ROOT;
        self.node(MetadataOp::Open { base, path: path.into(), create: false, exclusive: false }).await
    }

    /// A new file.
    pub(super) async fn create(&self, path: &str) -> Result<NodeInfo, FileError> {
        let base = ob_format::files::ROOT;
        self.node(MetadataOp::Open { base, path: path.into(), create: true, exclusive: true }).await
    }
}

/// Reads a file ahead, in one buffer.
pub(super) struct Reader<'a> {
    io: &'a Io,
    file: NodeId,
    buffer: Option<Slice>,
    /// Where in the file the buffer begins, and how much of it there is.
    start: u64,
    len: usize,
    /// A long piece could not be read: what is wanted is read alone.
    is_careful: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(io: &'a Io, file: NodeId) -> Self {
        Self { io, file, buffer: None, start: 0, len: 0, is_careful: false }
    }

    /// One that reads no more than is wanted.
    pub(super) fn of_little(io: &'a Io, file: NodeId) -> Self {
        Self { is_careful: true, ..Self::new(io, file) }
    }

    /// Bytes of the device's block.
    pub(super) fn block_len(&self) -> usize {
        self.io.block_len
    }

    /// So many bytes from an offset on, at most as many as a record has; fewer if the file ends before.
    pub(super) async fn at(&mut self, offset: u64, want: usize) -> Result<&[u8], FileError> {
        let end = self.start.saturating_add(self.len as u64);
        if offset < self.start || offset + want as u64 > end {
            let mut filled = self.fill(offset, want).await;
            if filled.is_err() && !self.is_careful {
                self.is_careful = true;
                filled = self.fill(offset, want).await;
            }
            filled?;
        }
        let buffer = self.buffer.as_deref().unwrap_or_default();
        let buffer = buffer.get(..self.len).unwrap_or_default();
        let from = usize::try_from(offset.saturating_sub(self.start)).unwrap_or(usize::MAX).min(buffer.len());
        let to = from.saturating_add(want).min(buffer.len());
        Ok(buffer.get(from..to).unwrap_or_default())
    }

    async fn fill(&mut self, offset: u64, want: usize) -> Result<(), FileError> {
        let block_len = self.io.block_len as u64;
        let buffer = match self.buffer.take() {
            Some(buffer) => buffer,
            None => self.io.buffer().await,
        };
        let start = offset - offset % block_len;
        let needed = ((offset - start) as usize + want).next_multiple_of(self.io.block_len);
        let len = if self.is_careful { needed } else { needed.max(self.io.piece_len()) }.min(buffer.len());
        let (read, buffer) = self.io.read(self.file, start, len, buffer).await;
        self.buffer = Some(buffer);
        match read {
            Ok(read) => {
                (self.start, self.len) = (start, read);
                Ok(())
            }
            Err(error) => {
                self.len = 0;
                Err(error)
            }
        }
    }
}

struct Job<T, O> {
    future: Pin<Box<dyn Future<Output = T>>>,
    place: Rc<RefCell<Place>>,
    of: O,
}

/// What became of a job.
pub(super) enum Turned<T, O> {
    /// It asks for this.
    Asks(Op),
    /// It waits for a buffer.
    Waits,
    /// It is over.
    Ended(T, O),
    /// There is no such job.
    Unknown,
}

/// Jobs that are under way, each with what it is for.
pub(super) struct Jobs<T, O> {
    jobs: IdMap<u64, Job<T, O>>,
    pool: Pool,
    block_len: usize,
}

impl<T, O> Jobs<T, O> {
    pub(super) fn new(pool: Pool, block_len: u32) -> Self {
        Self { jobs: IdMap::default(), pool, block_len: block_len as usize }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Begins a job, which goes on when it is turned.
    pub(super) fn start<F>(&mut self, id: u64, of: O, make: impl FnOnce(Io) -> F)
    where
        F: Future<Output = T> + 'static,
    {
        let place = Rc::<RefCell<Place>>::default();
        let io = Io { place: Rc::clone(&place), pool: self.pool.clone(), block_len: self.block_len };
        self.jobs.insert(id, Job { future: Box::pin(make(io)), place, of });
    }

    /// Gives a job what it asked for.
    pub(super) fn answer(&mut self, id: u64, completion: Completion) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.place.borrow_mut().answer = Some(completion);
        }
    }

    /// Lets a job go on.
    pub(super) fn turn(&mut self, id: u64) -> Turned<T, O> {
        let Some(job) = self.jobs.get_mut(&id) else { return Turned::Unknown };
        match job.future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(end) => match self.jobs.remove(&id) {
                Some(job) => Turned::Ended(end, job.of),
                None => Turned::Unknown,
            },
            Poll::Pending => match job.place.borrow_mut().asked.take() {
                Some(op) => Turned::Asks(op),
                None => Turned::Waits,
            },
        }
    }
}
