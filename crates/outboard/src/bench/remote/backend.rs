//! What a file is kept in: the operating system's, or the card's through the library.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use ob_core::{Device, DeviceOp, Token};
use ob_files_host::{File, GroupOptions, RingSizes, Session, SessionOptions};
use ob_io::{FileDevice, FileDeviceOptions, Handle, Waker};
use ob_memory::Pool;

use super::plain::{Backend, Done, Task};
use crate::bench::BenchFailure;
use crate::bench::load::stamp;

/// Requests that are out at once.
pub(super) const OUT_MAX: usize = 1024;
/// Bytes of the longest request.
const REQUEST_LEN_MAX: usize = 4 << 10;
/// Bytes written at once while the file is made.
const FILL_LEN: usize = 1 << 20;
/// Bytes of the rings of the library's group.
const RINGS: u32 = 8 << 20;
/// Where the file is on the card.
const PATH: &str = "/remote";

/// A file of the operating system, past the page cache.
pub(super) struct OsFile {
    device: FileDevice,
    pool: Pool,
    out: HashMap<u64, Task>,
    next: u64,
}

impl OsFile {
    /// Makes the file, all of it written.
    pub(super) fn create(handle: &Handle, path: &Path, bytes: u64) -> Result<Self, BenchFailure> {
        let mut image = vec![0; usize::try_from(bytes)?];
        stamp(&mut image, 0);
        std::fs::write(path, image)?;
        std::fs::File::open(path)?.sync_all()?;
        let device = FileDevice::open(handle, path, &FileDeviceOptions::default())?;
        let pool = Pool::new(REQUEST_LEN_MAX, OUT_MAX);
        // Without it the kernel maps the memory for each operation: slower, and as right.
        let _ = handle.register_arena(pool.arena());
        Ok(Self { device, pool, out: HashMap::new(), next: 0 })
    }
}

impl Backend for OsFile {
    fn begin(&mut self, task: Task) -> Result<(), Task> {
        let Some(mut slice) = self.pool.take() else { return Err(task) };
        let len = (task.request.length as usize).min(REQUEST_LEN_MAX);
        drop(slice.split_off(len));
        let offset = task.request.offset;
        let op = if task.request.is_write {
            slice.copy_from_slice(&task.data[..len]);
            DeviceOp::Write { offset, from: slice.into(), durable: false }
        } else {
            DeviceOp::Read { offset, into: slice }
        };
        self.next += 1;
        if self.device.submit(Token(self.next), op).is_err() {
            return Err(task);
        }
        self.out.insert(self.next, task);
        Ok(())
    }

    fn next_done(&mut self) -> Option<Done> {
        let completion = self.device.poll()?;
        let task = self.out.remove(&completion.token.0)?;
        let read = match (completion.result, completion.op) {
            (Ok(()), DeviceOp::Read { into, .. }) => Some(into.to_vec()),
            (Ok(()), _) => Some(Vec::new()),
            (Err(_), _) => None,
        };
        Some((task, read))
    }
}

/// Attaches to a card and makes a file there, all of it written.
pub(super) fn create_on_card(
    socket: &Path,
    bytes: u64,
    options: GroupOptions,
) -> Result<(Session, File), BenchFailure> {
    let options = options.outstanding(OUT_MAX).small(RingSizes::both(RINGS));
    let session = Session::open(SessionOptions::unix(socket).group(options))?;
    let file = session.create(PATH).wait()?;
    for offset in (0..bytes).step_by(FILL_LEN) {
        let mut buffer = vec![0; FILL_LEN];
        stamp(&mut buffer, offset);
        file.write_at(buffer, offset).wait().0?;
    }
    session.flush().wait()?;
    Ok((session, file))
}

/// A file of the card, by callbacks of the library's own thread.
pub(super) struct LibraryFile {
    _session: Session,
    file: File,
    done: Arc<Mutex<VecDeque<Done>>>,
    waker: Waker,
}

impl LibraryFile {
    pub(super) fn create(socket: &Path, bytes: u64, waker: Waker) -> Result<Self, BenchFailure> {
        let (session, file) = create_on_card(socket, bytes, GroupOptions::default())?;
        Ok(Self { _session: session, file, done: Arc::default(), waker })
    }
}

impl Backend for LibraryFile {
    fn begin(&mut self, task: Task) -> Result<(), Task> {
        let Task { request, .. } = task;
        let task = Arc::new(Mutex::new(Some(task)));
        let (done, waker, own) = (Arc::clone(&self.done), self.waker.clone(), Arc::clone(&task));
        let finish = move |read: Option<Vec<u8>>| {
            let Some(task) = own.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            let was_empty = done.is_empty();
            done.push_back((task, read));
            drop(done);
            // Who takes one takes all.
            if was_empty {
                waker.wake();
            }
        };
        let take_back = || task.lock().unwrap_or_else(PoisonError::into_inner).take();
        let len = request.length as usize;
        let begun = if request.is_write {
            let data = task
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .as_mut()
                .map(|task| std::mem::take(&mut task.data))
                .unwrap_or_default();
            let then = move |result: ob_files_host::Result<usize>, _: Vec<u8>| {
                finish((result == Ok(len)).then(Vec::new));
            };
            self.file.write_then(data, request.offset, then).map_err(|refused| refused.buffer)
        } else {
            let then = move |result: ob_files_host::Result<usize>, buffer: Vec<u8>| {
                finish((result == Ok(len)).then_some(buffer));
            };
            self.file.read_then(vec![0; len], request.offset, then).map_err(|_| Vec::new())
        };
        match begun {
            Ok(()) => Ok(()),
            Err(data) => match take_back() {
                Some(task) => Err(Task { data, ..task }),
                None => Ok(()),
            },
        }
    }

    fn next_done(&mut self) -> Option<Done> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}
