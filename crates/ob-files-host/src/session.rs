//! A session: one application attached to one card, again and again if need be.
//!
//! ```text
//!              ┌── the card dies ──▶ operations out: CardGone; new ones: Detached, or they wait
//!   attached ──┤
//!      ▲       └── keeper thread ──▶ attach, with pauses of 20 to 250 ms ────▶ lanes of every group ──┐
//!      └───────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use ob_core::Incarnation;
use ob_link::{AttachError, HostGroup, HostLink, HostLinkConfig};
use ob_wire_link::files::{CardInfo, NodeInfo, SpaceInfo};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::core::{GroupCore, Keeper};
use crate::error::{Error, Result};
use crate::file::File;
use crate::group::Group;
use crate::lane::{Life, open_rings};
use crate::options::{GroupOptions, OUTSTANDING_MAX, OpenOptions, RingSizes, SessionOptions};
use crate::pace::Pace;
use crate::path::AsPath;
use crate::pending::Pending;
use crate::request::DirectoryEntry;

/// One application attached to one card. Clones are the same session. It ends when the last clone, group, file and
/// [`Pending`] of it is gone.
#[derive(Clone)]
pub struct Session {
    keeper: Arc<SessionKeeper>,
    own: Arc<Own>,
}

/// The session's own group, and whether its lanes were opened.
struct Own {
    group: Group,
    opened: Once,
}

impl fmt::Debug for Session {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Session").field("attached", &self.is_attached()).finish_non_exhaustive()
    }
}

/// Ends the session when it is dropped.
pub(crate) struct SessionKeeper {
    core: Arc<SessionCore>,
}

struct SessionCore {
    options: SessionOptions,
    incarnation: Incarnation,
    state: Mutex<State>,
    changed: Condvar,
    /// Readable when the keeper thread has something to look after.
    notice: OwnedFd,
}

#[derive(Default)]
struct State {
    link: Option<Arc<HostLink>>,
    groups: Vec<Weak<GroupCore>>,
    stopping: bool,
    attachments: u64,
    last_failure: Option<String>,
}

impl Session {
    /// Attaches to the card and opens the session's own group. Waits for both, at most as long as the options say.
    pub fn open(options: SessionOptions) -> Result<Self> {
        let session = Self::attach(options)?;
        let mut opened = Ok(());
        session.own.opened.call_once(|| opened = session.keeper.core.open(session.own.group.core()));
        opened.map(|()| session)
    }

    /// Attaches to the card. The session's own group is opened when it is first used, and fails as if there were no card
    /// if that cannot be; whoever uses groups of their own only does not pay for it.
    pub fn attach(options: SessionOptions) -> Result<Self> {
        check_options(&options.group)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let notice = eventfd(0, flags).map_err(|_| Error::System)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // Never 0, and not that of an earlier life of this process.
        let incarnation = Incarnation(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX).max(1));
        let group = options.group.clone();
        let state = Mutex::new(State::default());
        let core = Arc::new(SessionCore { options, incarnation, state, changed: Condvar::new(), notice });
        let link = HostLink::attach(&core.link_config()).map_err(|error| attach_error(&error))?;
        core.attached(link);
        let keeper = Arc::new(SessionKeeper { core: Arc::clone(&core) });
        let group = Arc::new(GroupCore::new(group, Arc::clone(&core) as Arc<dyn Keeper>));
        let group = Group::new(group, Arc::clone(&keeper));
        let spawned =
            std::thread::Builder::new().name("outboard-session".to_owned()).spawn(move || core.run());
        spawned.map_err(|_| Error::System)?;
        Ok(Self { keeper, own: Arc::new(Own { group, opened: Once::new() }) })
    }

    /// Opens a notification group with rings of its own. Waits for the card's answer.
    pub fn group(&self, options: GroupOptions) -> Result<Group> {
        open_group(&self.keeper, options)
    }

    /// Opens a group for another service of the same card, with request and response rings of so many bytes. It ends with
    /// this attachment, and nobody opens it again.
    pub fn service(&self, service: u32, rings: RingSizes) -> Result<HostGroup> {
        let core = &self.keeper.core;
        let link = core.wait_link(core.options.patience).ok_or(Error::Detached)?;
        open_rings(&link, service, rings)
    }

    /// The session's own group, which its own calls use.
    #[must_use]
    pub fn own_group(&self) -> &Group {
        self.own.opened.call_once(|| {
            let core = &self.keeper.core;
            let group = self.own.group.core();
            if let Err(error) = core.open(group) {
                // The keeper thread goes on trying.
                core.lock().last_failure = Some(error.to_string());
                core.look_after(group);
            }
        });
        &self.own.group
    }

    /// Whether there is a card at this moment.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.keeper.core.link().is_some()
    }

    /// How often this session has attached to a card.
    #[must_use]
    pub fn attachments(&self) -> u64 {
        self.keeper.core.lock().attachments
    }

    /// Why the card is not there, or why it was lost the last time, for people.
    #[must_use]
    pub fn last_failure(&self) -> Option<String> {
        self.keeper.core.lock().last_failure.clone()
    }

    /// Waits until this session is attached for the `attachment`th time, and its groups are open again: `false` if the
    /// time was up.
    pub fn wait_attached(&self, attachment: u64, within: Duration) -> bool {
        let core = &self.keeper.core;
        let missing = |state: &mut State| state.attachments < attachment || !state.is_whole();
        let waited = core.changed.wait_timeout_while(core.lock(), within, missing);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !missing(&mut state)
    }

    /// What the card said about itself; `None` while there is none.
    #[must_use]
    pub fn card(&self) -> Option<CardInfo> {
        self.own_group().card()
    }

    /// See [`Group::open`].
    pub fn open_file(&self, path: impl AsPath, options: OpenOptions) -> Pending<Result<File>> {
        self.own_group().open(path, options)
    }

    /// See [`Group::create`].
    pub fn create(&self, path: impl AsPath) -> Pending<Result<File>> {
        self.own_group().create(path)
    }

    /// See [`Group::make_directory`].
    pub fn make_directory(&self, path: impl AsPath) -> Pending<Result<NodeInfo>> {
        self.own_group().make_directory(path)
    }

    /// See [`Group::remove_file`].
    pub fn remove_file(&self, path: impl AsPath) -> Pending<Result<()>> {
        self.own_group().remove_file(path)
    }

    /// See [`Group::remove_directory`].
    pub fn remove_directory(&self, path: impl AsPath) -> Pending<Result<()>> {
        self.own_group().remove_directory(path)
    }

    /// See [`Group::remove`].
    pub fn remove(&self, path: impl AsPath) -> Pending<Result<()>> {
        self.own_group().remove(path)
    }

    /// See [`Group::rename`].
    pub fn rename(&self, from: impl AsPath, to: impl AsPath) -> Pending<Result<()>> {
        self.own_group().rename(from, to)
    }

    /// See [`Group::rename_new`].
    pub fn rename_new(&self, from: impl AsPath, to: impl AsPath) -> Pending<Result<()>> {
        self.own_group().rename_new(from, to)
    }

    /// See [`Group::list`].
    pub fn list(&self, path: impl AsPath) -> Pending<Result<Vec<DirectoryEntry>>> {
        self.own_group().list(path)
    }

    /// See [`Group::stat`].
    pub fn stat(&self, path: impl AsPath) -> Pending<Result<NodeInfo>> {
        self.own_group().stat(path)
    }

    /// See [`Group::space`].
    pub fn space(&self) -> Pending<Result<SpaceInfo>> {
        self.own_group().space()
    }

    /// See [`Group::flush`].
    pub fn flush(&self) -> Pending<Result<()>> {
        self.own_group().flush()
    }
}

fn open_group(keeper: &Arc<SessionKeeper>, options: GroupOptions) -> Result<Group> {
    check_options(&options)?;
    let group = Arc::new(GroupCore::new(options, Arc::clone(&keeper.core) as Arc<dyn Keeper>));
    keeper.core.open(&group)?;
    Ok(Group::new(group, Arc::clone(keeper)))
}

fn check_options(options: &GroupOptions) -> Result<()> {
    if options.outstanding == 0 || options.outstanding > OUTSTANDING_MAX {
        return Err(Error::Invalid);
    }
    Ok(())
}

fn attach_error(error: &AttachError) -> Error {
    match error {
        AttachError::TimedOut(..) => Error::TimedOut,
        AttachError::System(_) => Error::System,
        AttachError::NoCard(..) | AttachError::Refused { .. } | AttachError::Ended(..) => {
            Error::Attach(error.to_string())
        }
    }
}

impl Drop for SessionKeeper {
    fn drop(&mut self) {
        let mut state = self.core.lock();
        state.stopping = true;
        let link = state.link.take();
        drop(state);
        // The keeper thread ends by itself. It may be attaching, and nobody is to wait for that.
        self.core.notice();
        // It may have the link for a moment longer, and the process may end before that.
        if let Some(link) = link {
            link.leave();
        }
    }
}

impl State {
    /// Whether there is a card, and every group has lanes.
    fn is_whole(&self) -> bool {
        let has_lanes = |group: &Weak<GroupCore>| {
            group.upgrade().is_none_or(|group| group.is_stopped() || group.current().is_some())
        };
        self.link.is_some() && self.groups.iter().all(has_lanes)
    }
}

impl Keeper for SessionCore {
    fn notice(&self) {
        // The count cannot reach its limit: the keeper thread takes it to zero each time it wakes.
        let _ = rustix::io::write(&self.notice, &1u64.to_ne_bytes());
    }

    fn patience(&self) -> Duration {
        self.options.patience
    }
}

impl SessionCore {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link(&self) -> Option<Arc<HostLink>> {
        self.lock().link.clone()
    }

    fn wait_link(&self, within: Duration) -> Option<Arc<HostLink>> {
        let waited = self.changed.wait_timeout_while(self.lock(), within, |state| state.link.is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.link.clone()
    }

    fn link_config(&self) -> HostLinkConfig {
        HostLinkConfig {
            endpoint: self.options.endpoint.clone(),
            name: self.options.name.clone(),
            incarnation: self.incarnation,
            // Whoever waits here sleeps on the bell; who polls does so at an application's own pace.
            pollers: 0,
            attach_within: self.options.attach_within,
            dead_after: self.options.dead_after,
        }
    }

    fn attached(&self, link: HostLink) {
        let mut state = self.lock();
        if state.stopping {
            return;
        }
        state.attachments += 1;
        state.link = Some(Arc::new(link));
        drop(state);
        self.changed.notify_all();
    }

    /// Opens a group's lanes, and looks after them from now on. Waits for the card's answer.
    fn open(&self, group: &Arc<GroupCore>) -> Result<()> {
        let link = self.wait_link(self.options.patience).ok_or(Error::Detached)?;
        group.install(Life::open(&link, &group.options, self.options.attach_within)?);
        self.look_after(group);
        Ok(())
    }

    /// From now on the keeper thread opens the group's lanes whenever there are none, as when the card has died since.
    fn look_after(&self, group: &Arc<GroupCore>) {
        self.lock().groups.push(Arc::downgrade(group));
        self.notice();
    }

    fn groups(&self) -> Vec<Arc<GroupCore>> {
        let mut state = self.lock();
        state.groups.retain(|group| group.upgrade().is_some_and(|group| !group.is_stopped()));
        state.groups.iter().filter_map(Weak::upgrade).collect()
    }

    /// The keeper thread: attaches again when the card is gone, and opens lanes for groups that have none.
    fn run(&self) {
        let (mut pace, mut attached) = (Pace::default(), Instant::now());
        while !self.lock().stopping {
            let now = Instant::now();
            let Some(link) = self.link() else {
                let next = self.groups().iter().filter_map(|group| group.expire(now)).min();
                if let Some(left) = pace.left(now) {
                    let until = next.map(|next| next.saturating_duration_since(now));
                    self.sleep(None, Some(until.map_or(left, |until| until.min(left))));
                    continue;
                }
                match HostLink::attach(&self.link_config()) {
                    Ok(link) => {
                        tracing::info!("attached to the card at {} again", self.options.endpoint);
                        self.attached(link);
                        attached = Instant::now();
                    }
                    Err(error) => {
                        self.lock().last_failure = Some(error.to_string());
                        pace.failed(Duration::ZERO);
                    }
                }
                continue;
            };
            if let Some(over) = link.over() {
                tracing::warn!("the card is gone ({over}); attaching again");
                pace.failed(attached.elapsed());
                self.detach(over.to_string());
                continue;
            }
            let next = self.look_after_groups(&link);
            self.sleep(Some(&link), next);
        }
    }

    fn detach(&self, reason: String) {
        let mut state = self.lock();
        let link = state.link.take();
        state.last_failure = Some(reason);
        drop(state);
        for group in self.groups() {
            if let Some(life) = group.current() {
                group.life_over(&life, &Error::CardGone);
            }
        }
        drop(link);
    }

    /// Opens lanes for groups that have none, and sends what waited for them. How soon to look again, if a group still
    /// has none.
    fn look_after_groups(&self, link: &HostLink) -> Option<Duration> {
        let mut next = None;
        for group in self.groups() {
            if let Some(life) = group.current()
                && let Some(error) = life.over()
            {
                group.life_over(&life, &error);
            }
            if group.current().is_none() {
                self.open_lanes(link, &group);
            }
            let now = Instant::now();
            let patient = group.expire(now).map(|until| until.saturating_duration_since(now));
            if group.current().is_none() {
                let left = group.pace().left(now).unwrap_or_default();
                next = next.into_iter().chain([left]).chain(patient).min();
            }
            group.serve_queues();
        }
        self.changed.notify_all();
        next
    }

    /// Opens a group's lanes, unless that was tried a moment ago.
    fn open_lanes(&self, link: &HostLink, group: &GroupCore) {
        if group.pace().left(Instant::now()).is_some() {
            return;
        }
        match Life::open(link, &group.options, self.options.attach_within) {
            Ok(life) => group.install(life),
            Err(error) => {
                self.lock().last_failure = Some(error.to_string());
                group.pace().failed(Duration::ZERO);
            }
        }
    }

    /// Sleeps until somebody wants something, the card is gone, or for so long.
    fn sleep(&self, link: Option<&HostLink>, within: Option<Duration>) {
        let mut watched = vec![PollFd::from_borrowed_fd(self.notice.as_fd(), PollFlags::IN)];
        watched.extend(link.map(|link| PollFd::from_borrowed_fd(link.over_descriptor(), PollFlags::IN)));
        let within = within.map(|within| Timespec {
            tv_sec: i64::try_from(within.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(within.subsec_nanos()),
        });
        let _ = poll(&mut watched, within.as_ref());
        let mut drained = [0; 8];
        let _ = rustix::io::read(&self.notice, &mut drained);
    }
}
