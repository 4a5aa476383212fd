//! What a program holds in its hands: the initiator, and its namespaces.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use ob_wire_nvme::identify::{Cns, Controller, IDENTIFY_LEN, Identify, Namespace as NamespaceLayout};
use ob_wire_nvme::identify::{NamespaceIds, NamespaceList};
use ob_wire_nvme::{CommandId, NamespaceId, SubmissionEntry};
use zerocopy::FromBytes;

use super::connection::Data;
use super::driver;
use super::error::{Error, Unreachable};
use super::namespace::Namespace;
use super::options::Options;
use super::session::{Answer, Event, Facts, Queue, Request};
use super::shared::{Command, Shared};

/// Commands that one large read or write has under way.
const WINDOW: usize = 32;
/// Namespaces that a controller is believed to have.
const NAMESPACES_MAX: usize = 1 << 16;

/// A connection to a subsystem: a controller of one's own. Cheap to clone; when the last clone and all namespaces
/// are dropped, it disconnects.
#[derive(Clone)]
pub struct Initiator {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.close();
    }
}

/// A command in its raw form, for what has no function here: vendors' commands, reservations, features.
///
/// Its identifier and data pointer are filled in. It is sent again after a lost connection only if `is_idempotent`.
#[derive(Clone, Debug)]
pub struct RawCommand {
    /// The command.
    pub entry: SubmissionEntry,
    /// Its data.
    pub data: Data,
    /// Whether to execute it twice is the same as once.
    pub is_idempotent: bool,
}

impl Initiator {
    /// Connects, authenticates if the target wants it, and sets the queues up.
    ///
    /// The first attempt decides; later losses are mended in the background, as [`Options::reconnect`] says.
    pub async fn connect(options: Options) -> Result<Self, Error> {
        let system = |error: std::io::Error| Error::Unreachable(Unreachable::System(error.kind()));
        let shared = Arc::new(Shared::new().map_err(system)?);
        let initiator = Self { handle: Arc::new(Handle { shared: Arc::clone(&shared) }) };
        driver::start(options, shared).map_err(system)?;
        poll_fn(|context| initiator.shared().poll_started(context)).await?;
        Ok(initiator)
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }

    /// What is known of the controller; nothing after the end.
    #[must_use]
    pub fn facts(&self) -> Option<Facts> {
        self.shared().facts()
    }

    /// The next event; `None` after the end. Events are kept until somebody takes them, up to a bound.
    pub async fn next_event(&self) -> Option<Event> {
        poll_fn(|context| self.shared().poll_event(context)).await
    }

    /// Ends the association: commands under way are awaited, others fail with [`Error::Closed`], and the
    /// controller is shut down.
    pub async fn disconnect(&self) {
        self.shared().close();
        poll_fn(|context| self.shared().poll_over(context)).await;
    }

    /// The namespaces that can be used, in the order of their numbers.
    pub async fn namespaces(&self) -> Result<Vec<Namespace>, Error> {
        let mut found = Vec::new();
        for id in self.namespace_ids().await? {
            match self.namespace(id).await {
                Ok(namespace) => found.push(namespace),
                // It went away in between, or has a format that cannot be used here.
                Err(Error::NoSuchNamespace(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    async fn namespace_ids(&self) -> Result<Vec<NamespaceId>, Error> {
        let mut ids: Vec<NamespaceId> = Vec::new();
        loop {
            let last = ids.last().copied().unwrap_or(NamespaceId::NONE);
            let data = self.identify(Cns::ActiveNamespaces, last).await?;
            let list = NamespaceList::ref_from_bytes(&data).map_err(|_| Error::Unsuitable("bad list"))?;
            for id in list.iter() {
                if ids.last().is_some_and(|before| *before >= id) || ids.len() == NAMESPACES_MAX {
                    return Err(Error::Unsuitable("its list of namespaces does not rise, or has no end"));
                }
                ids.push(id);
            }
            if !list.is_full() {
                return Ok(ids);
            }
        }
    }

    /// One namespace.
    pub async fn namespace(&self, id: NamespaceId) -> Result<Namespace, Error> {
        let (layout, ids) = self.describe(id).await?;
        Namespace::new(self.clone(), id, &layout, ids)
    }

    /// What the controller says of a namespace, whether it can be used here or not, and its ids.
    pub async fn describe(&self, id: NamespaceId) -> Result<(Box<NamespaceLayout>, NamespaceIds), Error> {
        let data = self.identify(Cns::Namespace, id).await.map_err(|error| match error {
            Error::Command { .. } => Error::NoSuchNamespace(id),
            other => other,
        })?;
        let layout = NamespaceLayout::read_from_bytes(&data).ok();
        // Zeros are what a controller says of one that it does not have.
        let layout = layout.filter(|layout| layout.blocks.get() != 0).ok_or(Error::NoSuchNamespace(id))?;
        // Old controllers do not have this list.
        let ids = match self.identify(Cns::NamespaceIds, id).await {
            Ok(data) => NamespaceIds::parse(&data).unwrap_or_default(),
            Err(Error::Command { .. }) => NamespaceIds::default(),
            Err(error) => return Err(error),
        };
        Ok((Box::new(layout), ids))
    }

    /// What the controller says of itself.
    pub async fn controller(&self) -> Result<Box<Controller>, Error> {
        let data = self.identify(Cns::Controller, NamespaceId::NONE).await?;
        let identity = Controller::read_from_bytes(&data);
        identity.map(Box::new).map_err(|_| Error::Unsuitable("its identity has the wrong length"))
    }

    /// An Identify structure, as it came.
    pub async fn identify(&self, structure: Cns, namespace: NamespaceId) -> Result<Vec<u8>, Error> {
        let entry = Identify::new(structure, namespace).encode(CommandId(0));
        let request = Request {
            queue: Queue::Admin,
            entry,
            data: Data::ToHost(IDENTIFY_LEN as u32),
            is_idempotent: true,
            may_be_short: false,
            expects: None,
        };
        Ok(self.command(request).await?.data)
    }

    /// An admin command.
    pub async fn admin(&self, command: RawCommand) -> Result<Answer, Error> {
        self.raw(Queue::Admin, command).await
    }

    /// An I/O command.
    pub async fn io(&self, command: RawCommand) -> Result<Answer, Error> {
        self.raw(Queue::Io, command).await
    }

    async fn raw(&self, queue: Queue, command: RawCommand) -> Result<Answer, Error> {
        let RawCommand { entry, data, is_idempotent } = command;
        let facts = self.facts().ok_or(Error::Closed)?;
        let limit = facts.transfer_max as usize;
        if data.len() > limit {
            return Err(Error::TooLong { len: data.len(), limit });
        }
        let limit = facts.capsule_data_max as usize;
        if let Data::Both(sent, _) = &data
            && sent.len() > limit
        {
            return Err(Error::TooLong { len: sent.len(), limit });
        }
        self.command(Request { queue, entry, data, is_idempotent, may_be_short: true, expects: None }).await
    }

    pub(super) fn command(&self, request: Request) -> Command {
        Command::new(self.shared(), request)
    }

    /// Executes many commands, some at a time, and hands their answers over in order. After a failure no more are
    /// begun; those that are under way are awaited, so that none takes effect after this has returned.
    pub(super) async fn commands(
        &self,
        requests: impl Iterator<Item = Request>,
        mut take: impl FnMut(Answer),
    ) -> Result<(), Error> {
        enum Running {
            Command(Command),
            Answered(Answer),
            Failed,
        }
        let mut requests = requests.fuse();
        let mut running: VecDeque<Running> = VecDeque::new();
        let mut failure = None;
        poll_fn(move |context| {
            loop {
                while running.len() < WINDOW && failure.is_none() {
                    let Some(request) = requests.next() else { break };
                    running.push_back(Running::Command(self.command(request)));
                }
                for place in &mut running {
                    let Running::Command(command) = place else { continue };
                    match Pin::new(command).poll(context) {
                        Poll::Pending => {}
                        Poll::Ready(Ok(answer)) => *place = Running::Answered(answer),
                        Poll::Ready(Err(error)) => {
                            *place = Running::Failed;
                            failure.get_or_insert(error);
                        }
                    }
                }
                let mut has_moved = false;
                while running.front().is_some_and(|first| !matches!(first, Running::Command(_))) {
                    has_moved = true;
                    if let Some(Running::Answered(answer)) = running.pop_front() {
                        take(answer);
                    }
                }
                if running.is_empty() && !has_moved {
                    return Poll::Ready(failure.take().map_or(Ok(()), Err));
                }
                if !has_moved {
                    return Poll::Pending;
                }
            }
        })
        .await
    }
}

impl std::fmt::Debug for Initiator {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Initiator").field("facts", &self.facts()).finish()
    }
}
