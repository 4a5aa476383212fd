//! Notification groups: rings of their own, shared by any number of threads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use ob_core::NodeId;
use ob_wire_link::files::{CardInfo, NodeInfo, SpaceInfo};

use crate::control::{Control, Removed};
use crate::core::{BESIDE, Give, GroupCore, Look};
use crate::deliver::{Cell, Completion, Deliver, Outcome};
use crate::error::{Error, Fault, Refused, Result};
use crate::file::File;
use crate::options::OpenOptions;
use crate::path::AsPath;
use crate::pending::Pending;
use crate::request::{DirectoryEntry, DirectoryPage, Operation, Value};
use crate::session::SessionKeeper;

/// A notification group: request and response rings, and the operations that are out through them.
///
/// Clones are the same group, and any number of threads may use it at the same time. Its calls do not block; only the
/// ones that have `wait` in their name do. The group's rings are given back when the last clone, file and [`Pending`]
/// of it is gone.
#[derive(Clone)]
pub struct Group {
    handle: Arc<Handle>,
}

struct Handle {
    core: Arc<GroupCore>,
    /// The session lives as long as its groups.
    _session: Arc<SessionKeeper>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.stop();
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Group").field("options", &self.core().options).finish_non_exhaustive()
    }
}

impl Group {
    pub(crate) fn new(core: Arc<GroupCore>, session: Arc<SessionKeeper>) -> Self {
        Self { handle: Arc::new(Handle { core, _session: session }) }
    }

    pub(crate) fn core(&self) -> &Arc<GroupCore> {
        &self.handle.core
    }

    /// The file, with its operations in this group from now on. The other handle stays as it is.
    #[must_use]
    pub fn add(&self, file: &File) -> File {
        File::new(self.clone(), file.node())
    }

    /// A file by its node, which [`File::node`] or a directory's entry told. Nodes stay valid across the card's lives and
    /// are never used twice.
    #[must_use]
    pub fn file(&self, node: NodeId) -> File {
        File::new(self.clone(), node)
    }

    /// Takes the completions that are there, without waiting. Callbacks run in here, and futures are woken. How many
    /// operations were completed, of all kinds.
    pub fn poll(&self, on_completion: impl FnMut(Completion)) -> usize {
        self.poll_some(usize::MAX, on_completion)
    }

    /// As [`Group::poll`], with so many completions at most; others stay for whoever polls or waits next.
    pub fn poll_some(&self, most: usize, on_completion: impl FnMut(Completion)) -> usize {
        self.core().pump(&mut Give { room: most, to: on_completion }).completed
    }

    /// As [`Group::poll`], with the completions appended to a vector.
    pub fn poll_into(&self, completions: &mut Vec<Completion>) -> usize {
        self.poll(|completion| completions.push(completion))
    }

    /// As [`Group::poll`], but sleeps while there is nothing, at most for `within`; 0 if the time was up, or the group is
    /// closed and nothing is left.
    pub fn wait(&self, within: Duration, on_completion: impl FnMut(Completion)) -> usize {
        self.wait_some(usize::MAX, within, on_completion)
    }

    /// As [`Group::wait`], with so many completions at most; others stay for whoever polls or waits next.
    pub fn wait_some(&self, most: usize, within: Duration, on_completion: impl FnMut(Completion)) -> usize {
        let deadline = Instant::now().checked_add(within);
        let core = self.core();
        let mut sink = Give { room: most, to: on_completion };
        let completed = core.sleep_until(deadline, || {
            // Asked first: what was completed before the end is found by the look that follows.
            let has_ended = core.has_ended();
            let pumped = core.pump(&mut sink);
            Look::new((pumped.completed > 0 || has_ended).then_some(pumped.completed), pumped)
        });
        completed.unwrap_or(0)
    }

    /// As [`Group::wait`], for a thread that waits for something else too: `register` says which words that rings, and
    /// `is_there` whether it has come, which ends the wait. Both are asked again each time before the thread sleeps.
    pub fn wait_beside<'w>(
        &self,
        within: Duration,
        on_completion: impl FnMut(Completion),
        register: impl FnMut() -> [Option<(&'w AtomicU64, u32)>; BESIDE],
        mut is_there: impl FnMut() -> bool,
    ) -> usize {
        let deadline = Instant::now().checked_add(within);
        let core = self.core();
        let mut sink = Give { room: usize::MAX, to: on_completion };
        let look = || {
            let is_over = is_there() || core.has_ended();
            let pumped = core.pump(&mut sink);
            Look::new((pumped.completed > 0 || is_over).then_some(pumped.completed), pumped)
        };
        core.sleep_beside(deadline, look, register).unwrap_or(0)
    }

    /// As [`Group::wait`], with the completions appended to a vector.
    pub fn wait_into(&self, completions: &mut Vec<Completion>, within: Duration) -> usize {
        self.wait(within, |completion| completions.push(completion))
    }

    /// Opens a file.
    pub fn open(&self, path: impl AsPath, options: OpenOptions) -> Pending<Result<File>> {
        self.control(Control::open(&path, options), |group, outcome| {
            node_of(outcome).map(|node| File::new(group.clone(), node.id))
        })
    }

    /// Opens a file that is created if it is missing.
    pub fn create(&self, path: impl AsPath) -> Pending<Result<File>> {
        self.open(path, OpenOptions::new().create(true))
    }

    /// Makes a directory; the one that it is in must exist.
    pub fn make_directory(&self, path: impl AsPath) -> Pending<Result<NodeInfo>> {
        self.control(Control::make_directory(&path), |_, outcome| node_of(outcome))
    }

    /// Removes a file.
    pub fn remove_file(&self, path: impl AsPath) -> Pending<Result<()>> {
        self.control(Control::remove(&path, Removed::File), |_, outcome| outcome.result.map(|_| ()))
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, path: impl AsPath) -> Pending<Result<()>> {
        self.control(Control::remove(&path, Removed::Directory), |_, outcome| outcome.result.map(|_| ()))
    }

    /// Removes a file or an empty directory.
    pub fn remove(&self, path: impl AsPath) -> Pending<Result<()>> {
        self.control(Control::remove(&path, Removed::Either), |_, outcome| outcome.result.map(|_| ()))
    }

    /// Renames a file or directory. A file replaces a file, a directory an empty directory, at once and whole.
    pub fn rename(&self, from: impl AsPath, to: impl AsPath) -> Pending<Result<()>> {
        self.control(Control::rename(&from, &to, true), |_, outcome| outcome.result.map(|_| ()))
    }

    /// As [`Group::rename`], but fails if the new name is taken.
    pub fn rename_new(&self, from: impl AsPath, to: impl AsPath) -> Pending<Result<()>> {
        self.control(Control::rename(&from, &to, false), |_, outcome| outcome.result.map(|_| ()))
    }

    /// All entries of a directory, in the byte order of their names. What is renamed in the meantime may be there twice
    /// or not at all. [`Error::TooLarge`] above four million: see [`Group::list_page`].
    pub fn list(&self, path: impl AsPath) -> Pending<Result<Vec<DirectoryEntry>>> {
        self.control(Control::list(&path), |_, outcome| match outcome.result? {
            Value::Entries(entries) => Ok(entries),
            _ => Err(Error::Protocol(Fault::Answer)),
        })
    }

    /// Some entries of the directory with this node, from the first name behind `after` on: for directories that are too
    /// large to be held in memory.
    pub fn list_page(&self, directory: NodeId, after: &[u8]) -> Pending<Result<DirectoryPage>> {
        self.control(Ok(Control::list_page(directory, after)), |_, outcome| match outcome.result? {
            Value::Page(page) => Ok(page),
            _ => Err(Error::Protocol(Fault::Answer)),
        })
    }

    /// What stands behind a path.
    pub fn stat(&self, path: impl AsPath) -> Pending<Result<NodeInfo>> {
        self.control(Control::stat(&path), |_, outcome| node_of(outcome))
    }

    /// Space on the card's device.
    pub fn space(&self) -> Pending<Result<SpaceInfo>> {
        self.control(Ok(Control::space()), |_, outcome| match outcome.result? {
            Value::Space(space) => Ok(space),
            _ => Err(Error::Protocol(Fault::Answer)),
        })
    }

    /// Makes everything durable, of all files, that was completed before this call.
    pub fn flush(&self) -> Pending<Result<()>> {
        self.control(Ok(Control::flush()), |_, outcome| outcome.result.map(|_| ()))
    }

    /// As [`Group::flush`], by tag.
    pub fn submit_flush(&self, tag: u64) -> std::result::Result<(), Refused<()>> {
        let operation = Operation::control(Control::flush(), Deliver::Tag(tag));
        self.core().start(operation).map_err(|(_, reason)| Refused { buffer: (), reason })
    }

    /// Closes the group now, whoever else has it: its rings are given back, what is out ends with [`Error::Closed`] (and may
    /// have happened or not), and so does every later call. Each callback that is out is called once: by the group's
    /// thread, or in here if it has none. Completions by tag stay to be taken.
    pub fn close(&self) {
        self.core().stop();
    }

    /// What the card said about itself when this group was opened; `None` while there is no card.
    #[must_use]
    pub fn card(&self) -> Option<CardInfo> {
        self.core().card()
    }

    /// How many operations are out at this moment. It looks at every slot, so it is for people and tests.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.core().outstanding()
    }

    /// How many answers came that nobody had asked for. A card that is sound sends none.
    #[must_use]
    pub fn stray_answers(&self) -> u64 {
        self.core().strays()
    }

    pub(crate) fn control<T>(
        &self,
        control: Result<Control>,
        convert: fn(&Self, Outcome) -> T,
    ) -> Pending<T> {
        let cell = match control {
            Ok(control) => {
                let cell = Arc::new(Cell::default());
                self.core().start_or_wait(Operation::control(control, Deliver::Cell(Arc::clone(&cell))));
                cell
            }
            Err(error) => Cell::failed(error, crate::Buffer::Empty),
        };
        Pending::new(cell, self.clone(), convert)
    }
}

pub(crate) fn node_of(outcome: Outcome) -> Result<NodeInfo> {
    match outcome.result? {
        Value::Node(node) => Ok(node),
        _ => Err(Error::Protocol(Fault::Answer)),
    }
}
