//! A file as a block device: what a namespace lies on.
//!
//! ```text
//!   DeviceOp ──▶ FileVolume ──▶ Op on one file ──▶ LocalFiles ──▶ …
//! ```
//!
//! Its buffers go to the engine as they are, and from there to the device. Space is taken when something is written, and
//! given back when whole segments are discarded. While the volume is there, nobody else may change the file.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ob_core::{
    Device, DeviceCompletion, DeviceError, DeviceInfo, DeviceOp, IdMap, NodeId, Refused, RefusedReason, Token,
};
use ob_format::files::ROOT;
use ob_memory::{PAGE, Slice};
use ob_wire_link::files::FileError;

use crate::engine::{Completion, MetadataOp, Op, Outcome};
use crate::local::LocalFiles;

/// A file as a block device.
pub struct FileVolume {
    files: LocalFiles,
    file: NodeId,
    capacity: u64,
    block_len: u32,
    next: u64,
    out: IdMap<u64, Out>,
    done: VecDeque<DeviceCompletion>,
    resized: Option<Result<(), FileError>>,
}

/// A request on its way.
enum Out {
    /// The operation, without its memory.
    Device(Token, DeviceOp),
    Resize {
        size: u64,
        before: u64,
    },
    /// The new size is being made durable.
    Resized(u64),
}

impl FileVolume {
    fn new(files: LocalFiles, file: NodeId, size: u64) -> Self {
        // A namespace's blocks are no larger than a page; smaller ones than the device's are copied by the engine.
        let block_len = files.card_info().block_len.min(PAGE as u32);
        Self {
            files,
            file,
            capacity: size - size % u64::from(block_len),
            block_len,
            next: 0,
            out: IdMap::default(),
            done: VecDeque::new(),
            resized: None,
        }
    }

    /// Begins to change the file's size. What lies beyond a smaller one is out of reach at once.
    pub fn begin_resize(&mut self, size: u64) {
        let before = self.capacity;
        self.capacity = self.capacity.min(size - size % u64::from(self.block_len));
        self.resized = None;
        if let Err(error) = self.send(Out::Resize { size, before }, Op::Resize { file: self.file, size }) {
            self.resize_failed(before, error);
        }
    }

    /// It has the size that it had.
    fn resize_failed(&mut self, before: u64, error: FileError) {
        self.capacity = before;
        self.resized = Some(Err(error));
    }

    /// Bytes of the card's device that the file has. Whoever has this sees the number change.
    pub fn allocated(&self) -> Arc<AtomicU64> {
        self.files.allocated()
    }

    /// How changing the size went, once it is over.
    pub fn take_resized(&mut self) -> Option<Result<(), FileError>> {
        self.resized.take()
    }

    /// Moves answers to where they belong, without taking any.
    pub fn sort_answers(&mut self) {
        while let Some(completion) = self.files.poll() {
            self.answered(completion);
        }
    }

    fn send(&mut self, out: Out, op: Op) -> Result<(), FileError> {
        let token = self.next;
        self.files.submit(Token(token), op).map_err(|_| FileError::Busy)?;
        self.next += 1;
        self.out.insert(token, out);
        Ok(())
    }

    fn start(&mut self, token: Token, op: DeviceOp) {
        let file = self.file;
        let (shell, op) = match op {
            DeviceOp::Read { offset, mut into } => {
                let empty = into.split_off(into.len());
                let len = into.len() as u32;
                (DeviceOp::Read { offset, into: empty }, Op::Read { file, offset, len, into })
            }
            DeviceOp::Write { offset, mut from, durable } => {
                let empty = from.split_to(0);
                let op = Op::Write { file, offset, from, durable };
                (DeviceOp::Write { offset, from: empty, durable }, op)
            }
            DeviceOp::Flush => (DeviceOp::Flush, Op::Flush),
            DeviceOp::WriteZeroes { offset, len } => {
                (DeviceOp::WriteZeroes { offset, len }, Op::Zero { file, offset, len })
            }
            DeviceOp::Discard { offset, len } => {
                let shell = DeviceOp::Discard { offset, len };
                let Some((offset, len)) = self.whole_segments(offset, len) else {
                    return self.done.push_back(DeviceCompletion { token, op: shell, result: Ok(()) });
                };
                (shell, Op::Zero { file, offset, len })
            }
        };
        if self.send(Out::Device(token, shell), op).is_err() {
            // There was room a moment ago, and nobody else sends through this end.
            debug_assert!(false, "the volume's own requests filled its end");
        }
    }

    /// The segments that a range has as a whole. What else there is of it stays as it is, which a discard allows.
    fn whole_segments(&self, offset: u64, len: u64) -> Option<(u64, u64)> {
        let segment_len = self.files.card_info().segment_len;
        let start = offset.checked_next_multiple_of(segment_len)?;
        let end = offset + len;
        let end = if end == self.capacity { end } else { end - end % segment_len };
        (start < end).then(|| (start, end - start))
    }

    fn answered(&mut self, completion: Completion) {
        let Completion { token, result, buffer } = completion;
        match self.out.remove(&token.0) {
            Some(Out::Device(token, op)) => {
                self.done.push_back(DeviceCompletion { token, ..finished(op, result, buffer) });
            }
            Some(Out::Resize { size, before }) => match result {
                Err(error) => self.resize_failed(before, error),
                // The file has its new size from here on, durable or not.
                Ok(_) => self.resized = self.send(Out::Resized(size), Op::Flush).err().map(Err),
            },
            Some(Out::Resized(size)) => {
                if result.is_ok() {
                    self.capacity = size - size % u64::from(self.block_len);
                }
                self.resized = Some(result.map(|_| ()));
            }
            None => {}
        }
    }
}

/// The completion of an operation that went off without its memory.
fn finished(op: DeviceOp, result: Result<Outcome, FileError>, buffer: Option<Slice>) -> DeviceCompletion {
    let is_discard = matches!(op, DeviceOp::Discard { .. });
    let (mut len, mut op) = (None, op);
    if let (DeviceOp::Read { into, .. }, Some(buffer)) = (&mut op, buffer) {
        len = Some(buffer.len());
        *into = buffer;
    }
    let result = match (result, len) {
        // A file that ends within the volume has become smaller under it.
        (Ok(Outcome::Read { len: read, .. }), Some(len)) if (read as usize) < len => {
            Err(DeviceError::OutOfRange)
        }
        (Ok(_), _) => Ok(()),
        // What is not given back because the map cannot become longer stays as it is, which a discard allows.
        (Err(FileError::NoSpace), _) if is_discard => Ok(()),
        (Err(FileError::NoSpace), _) => Err(DeviceError::NoSpace),
        (Err(FileError::TooLarge), _) => Err(DeviceError::OutOfRange),
        (Err(FileError::NotFound), _) => Err(DeviceError::Gone),
        (Err(_), _) => Err(DeviceError::Io),
    };
    DeviceCompletion { token: Token(0), op, result }
}

impl Device for FileVolume {
    fn info(&self) -> DeviceInfo {
        let segment_len = self.files.card_info().segment_len;
        DeviceInfo {
            capacity: self.capacity,
            block_len: self.block_len,
            volatile_cache: true,
            discard_unit: u32::try_from(segment_len).unwrap_or(self.block_len),
        }
    }

    fn submit(&mut self, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        if !self.files.has_room() {
            return Err(Refused { op, reason: RefusedReason::Busy });
        }
        match self.info().check(&op) {
            Ok(()) => self.start(token, op),
            Err(error) => self.done.push_back(DeviceCompletion { token, op, result: Err(error) }),
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        self.sort_answers();
        self.done.pop_front()
    }
}

impl Drop for FileVolume {
    fn drop(&mut self) {
        self.files.send_and_forget(Op::Metadata(MetadataOp::LetGo { file: self.file }));
    }
}

/// Why a file cannot be a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeError {
    /// There is no such file, and none is to be made.
    #[error("there is no such file")]
    Missing,
    /// Less than a block.
    #[error("it has less than a block of bytes")]
    TooSmall,
    /// The files refuse.
    #[error(transparent)]
    Files(#[from] FileError),
}

/// A volume that is being opened, or made: its file, and the directories above it.
pub struct OpeningVolume {
    /// Where the file is, until the volume has it.
    files: Option<LocalFiles>,
    path: Vec<u8>,
    /// The size of a file that is made; no file is made without one.
    make: Option<u64>,
    step: Step,
    volume: Option<FileVolume>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Look,
    /// Makes the directory whose path has so many bytes.
    Directory(usize),
    Create,
    Hold,
    Resize,
    Flush,
}

impl OpeningVolume {
    /// Begins; the path has no slash in front.
    pub fn new(files: LocalFiles, path: &[u8], make: Option<u64>) -> Self {
        let (path, files) = (path.to_vec(), Some(files));
        let mut opening = Self { files, path, make, step: Step::Look, volume: None };
        let path = opening.path.clone();
        opening.ask(Step::Look, MetadataOp::Stat { base: ROOT, path });
        opening
    }

    /// The volume, or why there is none, once that is known.
    pub fn poll(&mut self) -> Option<Result<FileVolume, VolumeError>> {
        loop {
            let answer = match (&mut self.volume, &mut self.files) {
                (Some(volume), _) => volume.files.poll()?,
                (None, Some(files)) => files.poll()?,
                (None, None) => return None,
            };
            match self.next(answer.result) {
                Ok(true) => return self.volume.take().map(Ok),
                Ok(false) => {}
                Err(error) => {
                    (self.volume, self.files) = (None, None);
                    return Some(Err(error));
                }
            }
        }
    }

    fn ask(&mut self, step: Step, op: MetadataOp) {
        self.send(step, Op::Metadata(op));
    }

    fn send(&mut self, step: Step, op: Op) {
        self.step = step;
        let files = self.volume.as_mut().map(|volume| &mut volume.files).or(self.files.as_mut());
        if let Some(files) = files {
            // One request at a time always finds room.
            let _ = files.submit(Token(0), op);
        }
    }

    /// Goes on with an answer; `true` if that was the last.
    fn next(&mut self, result: Result<Outcome, FileError>) -> Result<bool, VolumeError> {
        match (self.step, result) {
            (Step::Look, Err(FileError::NotFound)) if self.make.is_none() => Err(VolumeError::Missing),
            (Step::Look, Err(FileError::NotFound)) => {
                self.make_after(0);
                Ok(false)
            }
            (Step::Directory(end), Ok(_) | Err(FileError::Exists)) => {
                self.make_after(end + 1);
                Ok(false)
            }
            (Step::Look | Step::Create, Ok(Outcome::Node(info))) => {
                self.ask(Step::Hold, MetadataOp::Hold { file: info.id });
                Ok(false)
            }
            (Step::Hold, Ok(Outcome::Node(info))) => {
                let Some(files) = self.files.take() else { return Err(FileError::Invalid.into()) };
                self.volume = Some(FileVolume::new(files, info.id, info.size));
                match self.make.filter(|_| info.size == 0) {
                    Some(size) => self.send(Step::Resize, Op::Resize { file: info.id, size }),
                    None => self.send(Step::Flush, Op::Flush),
                }
                Ok(false)
            }
            (Step::Resize, Ok(Outcome::Node(info))) => {
                if let Some(volume) = &mut self.volume {
                    volume.capacity = info.size - info.size % u64::from(volume.block_len);
                }
                // Whoever writes down that there is this volume must find it there after a loss of power.
                self.send(Step::Flush, Op::Flush);
                Ok(false)
            }
            (Step::Flush, Ok(_)) => match &self.volume {
                Some(volume) if volume.capacity > 0 => Ok(true),
                _ => Err(VolumeError::TooSmall),
            },
            (_, Err(error)) => Err(error.into()),
            (_, Ok(_)) => Err(FileError::Invalid.into()),
        }
    }

    /// Makes the next directory whose name begins at this byte of the path, or the file if there is none.
    fn make_after(&mut self, start: usize) {
        let name = self.path.get(start..).unwrap_or_default();
        match name.iter().position(|byte| *byte == b'/') {
            Some(len) => {
                let path = self.path[..start + len].to_vec();
                self.ask(Step::Directory(start + len), MetadataOp::MakeDirectory { base: ROOT, path });
            }
            None => {
                let path = self.path.clone();
                self.ask(Step::Create, MetadataOp::Open { base: ROOT, path, create: true, exclusive: false });
            }
        }
    }
}
