//! What a session has to do besides requests: files are opened at the target, their maps brought up to date, and what nobody has any more
//! is closed.
//!
//! To make a map is work for the client's file system (what is written must be on the device first), and to send one takes commands. As
//! long as somebody polls [`Session::keep_maps`], requests do none of it: they leave a file without a current map to the keeper, and
//! themselves to the ordinary path. Where nobody does, the request that finds no map makes one, and some of what is to be closed is closed
//! before each request.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use ob_wire_nvme::Status;
use ob_wire_nvme::pushdown::{Extent, Function, MapHeader};
use zerocopy::IntoBytes;

use super::chores::{Chore, ChoreList, Left, Next};
use super::error::{Detour, PushError};
use super::file::{File, Hold, Kind, MapSource, OnEnd, Opened, lock};
use super::session::Session;
use super::transport::{CommandData, Transport};
use crate::plant::{Bug, is_planted};

/// How much is closed before a request, where nobody else does.
const CLOSED_AT_ONCE: usize = 4;
/// Requests that do without a map after the target has refused one, until it is tried once more.
const REFUSED_SKIPS: u32 = 256;

/// What is to be done, and who waits for it: [`ChoreList`] for whoever has a lock and may wait.
#[derive(Default)]
pub(super) struct Chores {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    list: ChoreList,
    waker: Option<Waker>,
}

/// Somebody keeps the maps already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("somebody keeps the maps of this session already")]
pub struct AlreadyKept;

/// Whoever has this does the chores.
struct Keeping<'session>(&'session Chores);

/// Something that the target is being told. If that is broken off, it is told again.
struct Telling<'session> {
    chores: &'session Chores,
    function: Option<Function>,
}

impl Chores {
    fn is_kept(&self) -> bool {
        lock(&self.state).list.is_kept()
    }

    pub(super) fn claim(&self) -> bool {
        lock(&self.state).list.claim()
    }

    pub(super) fn unclaim(&self) {
        let abandoned = {
            let mut state = lock(&self.state);
            state.waker = None;
            state.list.unclaim()
        };
        // Not before: the last one who has a file, or a hold, says more here as it goes.
        abandoned.let_go();
    }

    /// Leaves a file to the keeper, if there is one.
    pub(super) fn map(&self, file: &File) -> bool {
        let mut state = lock(&self.state);
        let left = state.list.map(file);
        if left == Left::New {
            wake(state);
        }
        left != Left::NotKept
    }

    /// Has the target told something, some time.
    pub(super) fn tell(&self, function: Function) {
        self.tell_holding(function, Hold::default());
    }

    /// The same, and lets go of something once it is told; at once, if nobody does this before the next request, or whoever does is busy
    /// with a file for as long as that takes. (What is read meanwhile is not believed either way.)
    pub(super) fn tell_holding(&self, function: Function, hold: Hold) {
        let mut state = lock(&self.state);
        let let_go = state.list.tell(function, hold);
        wake(state);
        drop(let_go);
    }

    /// What the target is to be told next, whoever does the chores.
    pub(super) fn next_told(&self) -> Option<(Function, Hold)> {
        lock(&self.state).list.next_told()
    }

    /// The next chore; nothing when it is over.
    pub(super) async fn next(&self) -> Option<Chore> {
        poll_fn(|context| {
            let mut state = lock(&self.state);
            match state.list.next() {
                Next::Do(chore) => Poll::Ready(Some(chore)),
                Next::Over => Poll::Ready(None),
                Next::Wait => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Does something, unless it is over before that is done: a target that does not answer keeps nobody from leaving.
    async fn unless_over<F: Future>(&self, work: F) -> Option<F::Output> {
        let mut work = pin!(work);
        poll_fn(|context| {
            let mut state = lock(&self.state);
            if state.list.is_over() {
                return Poll::Ready(None);
            }
            state.waker = Some(context.waker().clone());
            drop(state);
            work.as_mut().poll(context).map(Some)
        })
        .await
    }
}

fn wake(mut state: std::sync::MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    waker.into_iter().for_each(Waker::wake);
}

impl Drop for Keeping<'_> {
    fn drop(&mut self) {
        self.0.unclaim();
    }
}

impl Telling<'_> {
    fn done(mut self) {
        self.function = None;
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if let Some(function) = self.function.take() {
            self.chores.tell(function);
        }
    }
}

impl<T: Transport> Session<T> {
    /// Opens files now: those by name at the target, and those of the client's file system by making their maps and sending them. Requests do
    /// it themselves; who has done it before has none that waits for it, or that takes the ordinary path meanwhile.
    ///
    /// # Errors
    ///
    /// When one of them is not there, or cannot be read where it lies now.
    pub async fn open(&self, files: &[File]) -> Result<(), PushError> {
        for file in files {
            self.open_now(file).await?;
        }
        Ok(())
    }

    /// Makes and sends the maps of files that requests have found without a current one, and closes what nobody has any more, until
    /// [`Session::leave_maps`]. While this is polled, no request makes a map itself, or waits for one (ordinary reads that go by a map, such as
    /// those of `btree::NamespacePages`, still do). It takes as long as a file system takes
    /// to write a file out, so it is for a thread of its own.
    ///
    /// # Errors
    ///
    /// When somebody does it already.
    pub async fn keep_maps(&self) -> Result<(), AlreadyKept> {
        if !self.claim_maps() {
            return Err(AlreadyKept);
        }
        self.keep_claimed().await;
        Ok(())
    }

    /// Becomes the one who keeps the maps, by [`Self::keep_claimed`]; whether nobody was.
    pub(crate) fn claim_maps(&self) -> bool {
        self.chores.claim()
    }

    pub(crate) fn unclaim_maps(&self) {
        self.chores.unclaim();
    }

    pub(crate) async fn keep_claimed(&self) {
        let _keeping = Keeping(&self.chores);
        while let Some(chore) = self.chores.next().await {
            match chore {
                // Whatever it fails with, requests take the ordinary path, and a later one asks again.
                Chore::Map(file) => _ = self.chores.unless_over(self.open_now(&file)).await,
                Chore::Tell(Function::Close(_), _) if is_planted(Bug::MapNotWithdrawn) => {}
                Chore::Tell(function, _hold) => _ = self.chores.unless_over(self.tell(function)).await,
            }
        }
    }

    /// Has [`Session::keep_maps`] end.
    pub fn leave_maps(&self) {
        let mut state = lock(&self.chores.state);
        state.list.leave();
        wake(state);
    }

    /// Closes some of what nobody has any more, where no keeper does.
    pub(super) async fn close_some(&self) {
        for _ in 0..CLOSED_AT_ONCE {
            let next = {
                let mut state = lock(&self.chores.state);
                if state.list.is_kept() { None } else { state.list.next_told() }
            };
            let Some((function, _)) = next else { return };
            self.tell(function).await;
        }
    }

    /// Tells the target. Whether or not it ever begins to: what is dropped before the end is told again.
    fn tell(&self, function: Function) -> impl Future<Output = ()> {
        self.held.is_told(function);
        let telling = Telling { chores: &self.chores, function: Some(function) };
        async move {
            // What is not there any more need not be closed.
            let _ = self.execute(function, CommandData::None).await;
            telling.done();
        }
    }

    /// Has a file mapped before it is asked for, by whoever keeps maps. Where nobody does, the first request will.
    pub fn expect(&self, file: &File) {
        if file.current().is_none() {
            self.leave_to_keeper(file);
        }
    }

    /// What the target knows a file by, for a request.
    pub(super) async fn open_for_request(&self, file: &File) -> Result<Opened, PushError> {
        if let Some(opened) = file.current() {
            return Ok(opened);
        }
        if file.is_skipped() || self.leave_to_keeper(file) {
            return Err(Detour::Unmapped.into());
        }
        self.open_now(file).await
    }

    /// The version of a file's map, which is made if that is not somebody else's to do.
    pub(crate) fn version_to_be(&self, file: &File) -> Option<u64> {
        file.version().or_else(|| if self.leave_to_keeper(file) { None } else { file.map_now() })
    }

    /// What [`File::incarnation`] says; a file by name that is not open is opened first, as a request would.
    pub(crate) async fn incarnation_to_be(&self, file: &File) -> Option<u64> {
        match file.kind() {
            Kind::Named(_) if self.description().is_none() => None,
            Kind::Named(_) => self.open_for_request(file).await.ok().map(|opened| opened.number),
            Kind::Mapped(_) => file.incarnation(),
        }
    }

    fn leave_to_keeper(&self, file: &File) -> bool {
        let Kind::Mapped(source) = file.kind() else { return false };
        // A file that cannot have a map for a while is not worth the keeper's time.
        if source.may_have_map() { self.chores.map(file) } else { self.chores.is_kept() }
    }

    async fn open_now(&self, file: &File) -> Result<Opened, PushError> {
        if let Some(opened) = file.current() {
            return Ok(opened);
        }
        let _passage = file.opening().enter().await;
        // Another may have opened it meanwhile.
        if let Some(opened) = file.current() {
            return Ok(opened);
        }
        let known = *file.opened();
        let opened = match self.open_as(file, known).await {
            // The target has lost it since, or has got more of it than is known here: then it is another file to it.
            Err(error) if known.is_some() && is_stale(&error) => {
                let lost = file.opened().take();
                lost.into_iter().for_each(|lost| self.chores.tell(Function::Close(lost.number)));
                self.open_as(file, None).await
            }
            other => other,
        };
        // A file by name has no other way, and each request says what the target said.
        let has_ordinary_path = matches!(file.kind(), Kind::Mapped(_));
        if has_ordinary_path && matches!(opened, Err(PushError::Detour(Detour::Limit | Detour::Device(_)))) {
            file.skip(REFUSED_SKIPS);
        }
        let opened = opened?;
        self.held.file(opened.number);
        *file.opened() = Some(opened);
        // A map that ended while it was sent found nothing to withdraw then, whether or not there is another by now.
        if file.version() != Some(opened.version) {
            let withdrawn = file.opened().take();
            withdrawn.into_iter().for_each(|lost| self.chores.tell(Function::Close(lost.number)));
        }
        Ok(opened)
    }

    async fn open_as(&self, file: &File, known: Option<Opened>) -> Result<Opened, PushError> {
        match file.kind() {
            Kind::Named(path) => {
                let number = self.ask_for(Function::Open, path.as_bytes().to_vec()).await;
                let number = number.map_err(|error| match error.detour() {
                    Some(Detour::Unknown) => PushError::NoSuchFile(path.clone()),
                    _ => error,
                })?;
                Ok(Opened { number, version: 0 })
            }
            Kind::Mapped(source) => self.send_map(source.as_ref(), known).await,
        }
    }

    async fn send_map(&self, source: &dyn MapSource, known: Option<Opened>) -> Result<Opened, PushError> {
        let map = source.current().ok_or(Detour::Unmapped)?;
        let header = MapHeader {
            file: known.map_or(0, |opened| opened.number).into(),
            version: map.version.into(),
            identity: map.identity.into(),
            len: map.len.into(),
            extents: u32::try_from(map.extents.len()).unwrap_or(u32::MAX).into(),
            ..MapHeader::default()
        };
        let extents = map.extents.iter().map(|extent| Extent {
            at: extent.at.into(),
            offset: extent.offset.into(),
            len: extent.len.into(),
        });
        let extents: Vec<Extent> = extents.collect();
        let bytes = [header.as_bytes(), extents.as_bytes()].concat();
        let (number, _) = self.send_pieces(Function::Map, map.namespace, &bytes).await?;
        Ok(Opened { number, version: map.version })
    }
}

/// Whether it is because of the number that a map was sent for.
fn is_stale(error: &PushError) -> bool {
    match error.detour() {
        Some(Detour::Device(status)) => status.is(Status::INVALID_FIELD),
        detour => detour == Some(Detour::Unknown),
    }
}

/// What is to be done when the map of a file ends: the target is told, and whoever wants to write the file waits for that. The file itself is not
/// held: it may be dropped meanwhile, but not by who calls this.
pub(super) fn ending(opened: Arc<Mutex<Option<Opened>>>, chores: &Arc<Chores>) -> OnEnd {
    let chores = Arc::downgrade(chores);
    Arc::new(move |hold| {
        let (opened, chores) = (lock(&opened).take(), chores.upgrade());
        if let Some((opened, chores)) = opened.zip(chores) {
            chores.tell_holding(Function::Close(opened.number), hold);
        }
    })
}
