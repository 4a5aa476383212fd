//! Requests under way. Their memory is used again, so that a card that has served for a while allocates none.

use std::ops::Range;
use std::rc::Rc;

use ob_core::Instant;
use ob_files_card::FileVersion;
use ob_nvme::target::control::ControllerKey;
use ob_nvme::target::{ForeignKey, Loan};

use super::clients::{FirstRead, Program};
use super::files::OpenFile;
use super::turns::TurnKey;

/// A chain.
pub(super) struct Request {
    pub(super) key: ForeignKey,
    pub(super) controller: ControllerKey,
    pub(super) turn: TurnKey,
    pub(super) program: Program,
    pub(super) files: Vec<FileUse>,
    /// What is read next, or was read last.
    pub(super) next: FirstRead,
    pub(super) read_len_max: u32,
    pub(super) reads_max: u16,
    pub(super) reads: u16,
    pub(super) fuel: u64,
    pub(super) until: Instant,
    /// How many bytes of the scratch the client wants.
    pub(super) answer_len: u32,
    /// The beginning of the scratch, until there is one.
    pub(super) input: Vec<u8>,
    pub(super) scratch: Option<Loan>,
    /// Where reads go, while none is under way.
    pub(super) buffer: Option<Loan>,
    pub(super) reading: Option<Reading>,
    /// What the program sees of the buffer.
    pub(super) view: Range<usize>,
    /// The program is done, and files that it read before the last are looked at again: this one next.
    pub(super) looking: Option<usize>,
}

/// A file of a request.
pub(super) struct FileUse {
    pub(super) file: Rc<OpenFile>,
    /// What the card's file was like at the first read of it.
    pub(super) pinned: Option<FileVersion>,
}

impl FileUse {
    pub(super) fn new(file: &Rc<OpenFile>) -> Self {
        file.requests.set(file.requests.get() + 1);
        Self { file: Rc::clone(file), pinned: None }
    }
}

impl Drop for FileUse {
    fn drop(&mut self) {
        self.file.requests.set(self.file.requests.get() - 1);
    }
}

/// A read of a map, which may lie in several places.
pub(super) struct Reading {
    /// What is still to be read, of the file.
    pub(super) left: Range<u64>,
    /// What was read, in front of that.
    pub(super) done: Option<Loan>,
    /// Where the rest goes.
    pub(super) rest: Option<Loan>,
}

/// All of them, in the places of their commands.
#[derive(Default)]
pub(super) struct Requests {
    slots: Vec<Option<Box<Request>>>,
    /// Boxes, because they move between this list and the other.
    #[expect(clippy::vec_box)]
    spare: Vec<Box<Request>>,
    live: usize,
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// Whether there is such a request.
    pub(super) fn is_here(&self, key: ForeignKey) -> bool {
        self.slots.get(key.slot()).is_some_and(|slot| slot.as_ref().is_some_and(|request| request.key == key))
    }

    /// Takes a request out, to do something with it.
    pub(super) fn remove(&mut self, key: ForeignKey) -> Option<Box<Request>> {
        let slot = self.slots.get_mut(key.slot())?;
        if slot.as_ref()?.key != key {
            return None;
        }
        self.live -= 1;
        slot.take()
    }

    /// Puts a request into its place.
    pub(super) fn insert(&mut self, request: Box<Request>) {
        let at = request.key.slot();
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = Some(request);
            self.live += 1;
        }
    }

    /// Memory for a new request: that of one that is over, if there is one, in the state in which that was left.
    pub(super) fn fresh(&mut self, request: Request) -> Box<Request> {
        match self.spare.pop() {
            Some(mut spare) => {
                let (files, input) = (std::mem::take(&mut spare.files), std::mem::take(&mut spare.input));
                *spare = Request { files, input, ..request };
                spare
            }
            None => Box::new(request),
        }
    }

    /// A request is over.
    pub(super) fn recycle(&mut self, mut request: Box<Request>) {
        request.files.clear();
        request.input.clear();
        (request.scratch, request.buffer, request.reading) = (None, None, None);
        self.spare.push(request);
    }

    /// Where the data of each lies whose read is over.
    pub(super) fn views(&self) -> Vec<Range<usize>> {
        let data =
            |request: &Request| Some(request.buffer.as_ref()?.get(request.view.clone())?.as_ptr_range());
        let views = self.slots.iter().flatten().filter_map(|request| data(request));
        views.map(|view| view.start.addr()..view.end.addr()).collect()
    }

    /// Those that take too long.
    pub(super) fn late(&self, now: Instant) -> Vec<ForeignKey> {
        let requests = self.slots.iter().flatten();
        requests.filter(|request| request.until <= now).map(|request| request.key).collect()
    }
}
