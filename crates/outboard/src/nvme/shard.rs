//! What one reactor thread serves: subsystems with all their connections, namespaces and devices.
//!
//! Nothing of it is shared with another thread. Requests of administrators come in through its inbox, and what is to be
//! written down goes out through its recorder.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use ob_core::Instant;
use ob_files_card::LocalFiles;
use ob_io::{Event, Handle, TcpNet};
use ob_nvme::driver::TargetDriver;
use ob_nvme::target::control::{AdminError, Control, ControlConfig, PortKey};
use ob_nvme::target::{ReservationsChanged, Target, TargetConfig, TargetCounts};
use ob_programs::Workshop;
use ob_pushdown::target::{FunctionCounts, FunctionLimits, Functions, Loader, NamedFiles, Shelf, opcodes};

use super::admin::{AdminCall, AdminInbox, AdminRequest, NamespaceFacts};
use super::catalogue::{self, Configured, Entry};
use super::devices::Devices;
use super::recorder::{Recorder, Save};
use super::serving::{AnnouncedSubsystem, ServedSubsystem, Serving, listen, listen_for_discovery};
use super::volumes::Work;
use super::{CONFIGURED, Driver, NvmeError, hints};
use crate::config::{ByteSize, CardConfig, NamespaceDevice, SubsystemConfig};
use crate::random;

/// Connections at once, admin and I/O queues together, of all threads.
pub(super) const CONNECTIONS_MAX: usize = 1024;

/// Connections that may be accepted beyond those in one turn: the target has to see them to decide who makes room.
const CONNECTIONS_AT_THE_DOOR: u32 = 16;

/// A subsystem that is to be served, with what is known of it.
pub(super) struct Planned {
    pub(super) config: SubsystemConfig,
    pub(super) port: PortKey,
    /// Its number in the catalogue.
    pub(super) number: usize,
    pub(super) serial: String,
    pub(super) configured: Configured,
    pub(super) added: Vec<Entry>,
}

/// What a thread tells of itself.
#[derive(Clone, Debug, Default)]
pub(super) struct ShardFacts {
    pub(super) counts: TargetCounts,
    /// Of storage functions, if there are any.
    pub(super) functions: Option<FunctionCounts>,
    /// Connections that it can have.
    pub(super) connections_max: u64,
    /// Namespaces whose device keeps nothing that is written to it any more.
    pub(super) failing: Vec<String>,
    /// Namespaces that it knows and does not serve.
    pub(super) left_out: Vec<String>,
}

/// What a thread works with.
pub(super) struct Tools<'a> {
    pub(super) config: &'a CardConfig,
    pub(super) handle: &'a Handle,
    pub(super) recorder: Recorder,
    pub(super) inbox: AdminInbox,
    /// How many threads share the memory.
    pub(super) threads: usize,
    /// Programs of hosts, and who verifies and compiles them; none if nobody may bring any.
    pub(super) programs: Option<(Shelf, Workshop)>,
    /// The card's files, on the thread that they are on, and what lets them go on while namespaces are opened.
    pub(super) files: Option<(LocalFiles, &'a mut dyn FnMut())>,
}

/// The state of one thread.
pub(super) struct Shard {
    pub(super) driver: Driver,
    recorder: Recorder,
    inbox: AdminInbox,
    /// What an administrator asked for and is under way.
    pub(super) waiting: Option<(AdminCall, Work)>,
    files: Option<LocalFiles>,
    pub(super) subsystems: Vec<ServedSubsystem>,
    pub(super) config: CardConfig,
    pub(super) handle: Handle,
    /// Whether the card has no other subsystem.
    is_only: bool,
    connections_max: u64,
}

impl Shard {
    /// Opens the devices, and listens.
    pub(super) fn start(tools: Tools<'_>, planned: Vec<Planned>) -> Result<Self, NvmeError> {
        let Tools { config, handle, recorder, inbox, threads, programs, files } = tools;
        let (files, mut wait) = files.unzip();
        let mut control = Control::new(ControlConfig::default()).with_random(challenge);
        let mut subsystems = Vec::new();
        let mut known = Vec::new();
        for plan in planned {
            let Planned { config: subsystem, port, number, serial, configured, added } = plan;
            subsystems.push(ServedSubsystem::add(config, &mut control, subsystem, port, number, &serial)?);
            known.push((configured, added));
        }
        let mut limits = limits(threads);
        let functions = programs.map(|programs| {
            limits.foreign = opcodes();
            functions(config, handle, programs, files.as_ref(), &subsystems)
        });
        let connections_max = limits.connections_max as u64;
        let net = TcpNet::new(handle, limits.connections_max as u32 + CONNECTIONS_AT_THE_DOOR);
        let target = Target::new(limits, control);
        for arena in target.arenas() {
            if let Err(error) = handle.register_arena(arena) {
                tracing::debug!("buffers are not registered: {error}");
            }
        }
        let mut driver = TargetDriver::with_service(net, Devices::default(), target, functions);
        let wait = wait.as_mut().map(|wait| &mut **wait as &mut dyn FnMut());
        let mut serving = Serving {
            config,
            handle,
            files: files.as_ref(),
            wait,
            is_starting: true,
            driver: &mut driver,
            recorder: &recorder,
        };
        for (subsystem, (configured, added)) in subsystems.iter_mut().zip(known) {
            match configured {
                Configured::Removed => {}
                Configured::New => serving.serve_new(subsystem, CONFIGURED, None, subsystem.config.size)?,
                Configured::Known(entry) => serving.serve_again(subsystem, &entry)?,
            }
            for entry in &added {
                serving.serve_again(subsystem, entry)?;
            }
        }
        listen(config, &mut driver, &mut subsystems)?;
        let is_only = config.nvme.all_subsystems().len() == 1;
        let (config, handle) = (config.clone(), handle.clone());
        let waiting = None;
        Ok(Self {
            driver,
            recorder,
            inbox,
            waiting,
            files,
            subsystems,
            config,
            handle,
            is_only,
            connections_max,
        })
    }

    /// Serves discovery at an address of its own.
    pub(super) fn listen_for_discovery(&mut self) -> Result<SocketAddr, NvmeError> {
        listen_for_discovery(&self.config, &mut self.driver)
    }

    /// Its subsystems, as others tell of them.
    pub(super) fn subsystems(&self) -> Vec<AnnouncedSubsystem> {
        self.subsystems.iter().map(ServedSubsystem::announced).collect()
    }

    /// Has discovery tell of subsystems that other threads serve.
    pub(super) fn tell_of(&mut self, others: &[AnnouncedSubsystem]) -> Result<(), NvmeError> {
        let control = self.driver.target_mut().control_mut();
        for other in others.iter().filter(|other| self.subsystems.iter().all(|own| !own.is(other))) {
            other.tell(&self.config, control)?;
        }
        Ok(())
    }

    /// What it tells of itself. Looks at every connection.
    pub(super) fn facts(&self) -> ShardFacts {
        let (mut failing, mut left_out) = (Vec::new(), Vec::new());
        for subsystem in &self.subsystems {
            let nqn = subsystem.config.nqn.as_str();
            let name = |nsid: u32, device: &NamespaceDevice| format!("{nsid} of {nqn} on {device}");
            let served = subsystem.namespaces.iter();
            let broken = served.filter(|served| self.driver.store().has_failed(served.backend));
            failing.extend(broken.map(|served| name(served.nsid, &served.device)));
            left_out.extend(subsystem.left_out.iter().map(|one| name(one.nsid, &one.device)));
        }
        ShardFacts {
            counts: self.driver.target().counts(),
            functions: self.driver.service().as_ref().map(Functions::counts),
            connections_max: self.connections_max,
            failing,
            left_out,
        }
    }

    /// Takes an event of the reactor, if it is for this service.
    pub(super) fn handle(&mut self, event: &Event) -> bool {
        self.driver.net_mut().handle(event)
    }

    /// When there is something to do, if nothing happens before.
    pub(super) fn next_due(&self) -> Option<Instant> {
        [self.driver.next_due(), self.recorder.next_due()].into_iter().flatten().min()
    }

    /// Does what there is to do; `true` if something was done.
    pub(super) fn turn(&mut self, now: Instant) -> bool {
        let turn = self.driver.turn(now);
        while let Some(changed) = self.driver.target_mut().next_reservations_changed() {
            self.save_reservations(&changed);
        }
        let mut is_saved = false;
        while let Some(saved) = self.recorder.next_saved(now) {
            self.driver.target_mut().reservations_saved(saved.namespace, saved.version);
            is_saved = true;
        }
        if is_saved {
            // Those who waited for it are answered.
            self.driver.turn(now);
        }
        let is_finished = self.finish_waiting();
        if is_finished {
            self.driver.turn(now);
        }
        while let Some(call) = self.inbox.next(self.waiting.is_some()) {
            self.administer(call);
            // Hosts hear of it now: nothing else may happen for a while.
            self.driver.turn(now);
        }
        turn.events > 0 || turn.has_more || is_finished
    }

    /// Does what an administrator asks for, or begins to.
    fn administer(&mut self, call: AdminCall) {
        let named = |subsystem: &ServedSubsystem| {
            call.message.subsystem.as_deref().is_none_or(|nqn| nqn == subsystem.config.nqn.as_str())
        };
        // Whoever passed it on knows who serves what.
        let Some(subsystem) = self.subsystems.iter().position(named) else {
            return self.answer(call, 0, Err(NvmeError::Thread));
        };
        let done = match &call.message.request {
            AdminRequest::ListNamespaces => Ok(None),
            AdminRequest::AddNamespace { nsid, device, size } => {
                self.add_namespace(subsystem, *nsid, device.as_deref(), ByteSize(*size))
            }
            AdminRequest::RemoveNamespace { nsid } => self.remove_namespace(subsystem, *nsid).map(|()| None),
            AdminRequest::ResizeNamespace { nsid, size } => self.resize_namespace(subsystem, *nsid, *size),
        };
        match done {
            Ok(Some(work)) => self.waiting = Some((call, work)),
            Ok(None) => self.answer(call, subsystem, Ok(())),
            Err(error) => self.answer(call, subsystem, Err(error)),
        }
    }

    /// Tells an administrator how it went, and what there is now.
    pub(super) fn answer(&self, call: AdminCall, subsystem: usize, done: Result<(), NvmeError>) {
        if let Err(error) = &done {
            tracing::warn!("{:?}: {error}", call.message);
        }
        let facts = || self.subsystems.get(subsystem).map(|one| self.namespaces(one)).unwrap_or_default();
        call.answer(done.map(|()| facts()).map_err(|error| error.to_string()));
    }

    fn namespaces(&self, subsystem: &ServedSubsystem) -> Vec<NamespaceFacts> {
        let control = self.driver.target().control();
        let facts = control.namespaces(subsystem.key).filter_map(|namespace| {
            let served = subsystem.namespaces.iter().find(|served| served.nsid == namespace.nsid)?;
            Some(NamespaceFacts {
                subsystem: subsystem.config.nqn.as_str().to_owned(),
                nsid: namespace.nsid,
                uuid: catalogue::uuid_text(&namespace.uuid),
                device: served.device.to_string(),
                size: namespace.blocks * u64::from(namespace.block_len),
                block_len: namespace.block_len,
                not_served: None,
            })
        });
        let left_out = subsystem.left_out.iter().map(|one| NamespaceFacts {
            subsystem: subsystem.config.nqn.as_str().to_owned(),
            nsid: one.nsid,
            uuid: catalogue::uuid_text(&one.uuid),
            device: one.device.to_string(),
            size: 0,
            block_len: one.block_len,
            not_served: Some(format!("its device has blocks of {}", one.device_block)),
        });
        facts.chain(left_out).collect()
    }

    fn add_namespace(
        &mut self,
        subsystem: usize,
        nsid: Option<u32>,
        device: Option<&Path>,
        size: ByteSize,
    ) -> Result<Option<Work>, NvmeError> {
        let index = subsystem;
        let Some(subsystem) = self.subsystems.get_mut(index) else { return Ok(None) };
        let is_served = |nsid: &u32| subsystem.namespaces.iter().any(|served| served.nsid == *nsid);
        let is_left_out = |nsid: &u32| subsystem.left_out.iter().any(|one| one.nsid == *nsid);
        let is_free = |nsid: &u32| !is_served(nsid) && !is_left_out(nsid);
        let max = self.driver.target().control().config().namespaces_max;
        let nsid = match nsid {
            Some(nsid) if nsid == 0 || nsid > max || !is_free(&nsid) => {
                return Err(AdminError::BadNamespaceId { nsid, max }.into());
            }
            Some(nsid) => nsid,
            None => {
                let number = subsystem.place(0).subsystem;
                let free = self.recorder.call(move |catalogue| Ok(catalogue.free_nsid(number, max)))?;
                free.ok_or(AdminError::NamespacesFull)?
            }
        };
        // Ids are a subsystem's own, and the directory is for all of them.
        let name = match self.is_only {
            true => format!("namespace-{nsid}.img"),
            false => format!("namespace-{}-{nsid}.img", subsystem.serial),
        };
        let path = device.map_or_else(|| self.config.directory.join(name), Path::to_owned);
        if device.is_none() && path.exists() {
            return Err(NvmeError::LeftOver(path));
        }
        if let Some(NamespaceDevice::CardFile(file)) = NamespaceDevice::parse(&path) {
            let files = self.files.as_ref().ok_or_else(|| NvmeError::FilesElsewhere(file.clone()))?;
            return Ok(Some(Work::add(files, index, nsid, &file, size)));
        }
        let (mut serving, subsystems) = self.serving();
        let Some(subsystem) = subsystems.get_mut(index) else { return Ok(None) };
        serving.serve_new(subsystem, nsid, Some(&path), size)?;
        Ok(None)
    }

    /// What it takes to serve a namespace while the card runs, when nothing may wait; and the subsystems.
    pub(super) fn serving(&mut self) -> (Serving<'_>, &mut [ServedSubsystem]) {
        let serving = Serving {
            config: &self.config,
            handle: &self.handle,
            files: self.files.as_ref(),
            wait: None,
            is_starting: false,
            driver: &mut self.driver,
            recorder: &self.recorder,
        };
        (serving, &mut self.subsystems)
    }

    fn remove_namespace(&mut self, subsystem: usize, nsid: u32) -> Result<(), NvmeError> {
        let Some(subsystem) = self.subsystems.get_mut(subsystem) else { return Ok(()) };
        let place = subsystem.place(nsid);
        if let Some(at) = subsystem.left_out.iter().position(|left_out| left_out.nsid == nsid) {
            self.recorder.call(move |catalogue| catalogue.remove(place))?;
            subsystem.left_out.swap_remove(at);
            return Ok(());
        }
        let index = subsystem.index_of(nsid)?;
        // Written down first: a card that dies now does not serve it again.
        self.recorder.call(move |catalogue| catalogue.remove(place))?;
        let removed = self.driver.target_mut().control_mut().remove_namespace(subsystem.key, nsid)?;
        // What was reserved ended with it. Nobody saves it any more, so nobody may wait for that.
        self.driver.target_mut().reservations_saved(removed, u64::MAX);
        let served = subsystem.namespaces.swap_remove(index);
        self.driver.store_mut().close(served.backend);
        Ok(())
    }

    fn resize_namespace(
        &mut self,
        subsystem: usize,
        nsid: u32,
        size: u64,
    ) -> Result<Option<Work>, NvmeError> {
        let index = subsystem;
        let Some(subsystem) = self.subsystems.get(index) else { return Ok(None) };
        let backend = subsystem.namespaces[subsystem.index_of(nsid)?].backend;
        let control = self.driver.target().control();
        let known = control.namespaces(subsystem.key).find(|known| known.nsid == nsid);
        let block_len = known.map(|known| u64::from(known.block_len)).ok_or(NvmeError::Unknown(nsid))?;
        let blocks = size / block_len;
        if blocks == 0 {
            let text = format!("{size} bytes are less than a block");
            let source = io::Error::new(io::ErrorKind::InvalidInput, text);
            return Err(NvmeError::Resize { nsid, fix: hints::of_resizing(&source), source });
        }
        self.begin_resize(index, nsid, backend, (blocks, block_len)).map(Some)
    }

    /// Whether nothing is on its way to or from the device, no other thread works on one, and nobody waits for what is to be written
    /// down.
    pub(super) fn is_idle(&self) -> bool {
        self.driver.in_store() == 0 && self.waiting.is_none() && self.recorder.is_idle()
    }

    /// Ends, and gives the devices back.
    pub(super) fn into_devices(self) -> Devices {
        self.driver.into_parts().1
    }

    /// The command that changed them is answered when they are saved.
    fn save_reservations(&mut self, changed: &ReservationsChanged) {
        let ReservationsChanged { subsystem, namespace, nsid } = *changed;
        let control = self.driver.target().control();
        // By now it may be gone, and another may have its number.
        let Some(current) = control.namespaces(subsystem).find(|current| current.key == namespace) else {
            return;
        };
        let Ok(state) = control.reservations(subsystem, nsid) else { return };
        let Some(served) = self.subsystems.iter().find(|served| served.key == subsystem) else { return };
        let (uuid, version) = (current.uuid, state.version());
        let saved = state.persists().then(|| state.encode());
        self.recorder.save(served.place(nsid), Save { namespace, uuid, version, state: saved });
    }
}

/// Storage functions of a thread. Files by name are for subsystems that the card's own thread serves.
fn functions(
    config: &CardConfig,
    handle: &Handle,
    (shelf, workshop): (Shelf, Workshop),
    files: Option<&LocalFiles>,
    subsystems: &[ServedSubsystem],
) -> Functions {
    let limits = FunctionLimits { programs: config.programs.limits(), ..FunctionLimits::default() };
    let waker = handle.waker();
    let loader = Loader::Workshop(workshop, Arc::new(move || waker.wake()));
    let folder = |served: &ServedSubsystem| {
        let folder = &served.config.folder;
        (!folder.is_empty()).then(|| (served.key, folder.clone().into_bytes()))
    };
    let folders = subsystems.iter().filter_map(folder).collect();
    let named = files.map(|files| NamedFiles { files: files.another(), folders });
    Functions::new(limits, shelf, loader, named, challenge)
}

/// A thread's part of what all of them may use together.
fn limits(threads: usize) -> TargetConfig {
    let whole = TargetConfig::default();
    TargetConfig {
        connections_max: CONNECTIONS_MAX / threads,
        capsule_buffers: whole.capsule_buffers / threads,
        transfer_memory: whole.transfer_memory / threads,
        compares_max: (whole.compares_max / threads).max(8),
        ..whole
    }
}

pub(crate) fn challenge(bytes: &mut [u8]) {
    if let Err(error) = random::fill(bytes) {
        // Nobody can authenticate with a challenge that is known; better to stop here than to pretend.
        panic!("the kernel gives no random bytes: {error}");
    }
}

#[cfg(test)]
mod tests {
    use ob_io::{Config as ReactorConfig, Reactor, Wait};
    use ob_nvme::initiator::{Data, Initiator, Options, RawCommand, block_on};
    use ob_wire_nvme::command::IoOpcode;
    use ob_wire_nvme::{CommandId, NamespaceId, SubmissionEntry};

    use super::super::admin::AdminOutbox;
    use super::super::catalogue::{Catalogue, NamespacePlace};
    use super::super::{admin, plan, recorder};
    use super::*;
    use crate::config::Config;

    const CONFIG: &str = "[nvme]\nlisten = \"127.0.0.1:0\"\ndevice = \"memory\"\nsize = \"1MiB\"\n";

    fn load(directory: &Path) -> Catalogue {
        Catalogue::load(&directory.join("nvme.json")).unwrap()
    }

    fn start(
        directory: &Path,
        config: &str,
        handle: &Handle,
        mut catalogue: Catalogue,
    ) -> (Shard, AdminOutbox) {
        let parsed = Config::parse(Path::new("outboard.toml"), config).unwrap();
        let config = CardConfig { directory: directory.to_owned(), ..parsed.card() };
        let planned = plan(&config, &mut catalogue).unwrap().remove(0);
        let waker = handle.waker();
        let recorder = Recorder::new(recorder::start(catalogue).unwrap(), move || waker.wake());
        let (outbox, inbox) = admin::mailbox(|| {});
        let tools =
            Tools { config: &config, handle, recorder, inbox, threads: 1, programs: None, files: None };
        (Shard::start(tools, planned).unwrap(), outbox)
    }

    /// Registers a key that is to outlive a loss of power.
    fn register(address: SocketAddr, nqn: &str) {
        block_on(async {
            let initiator = Initiator::connect(Options::new(address, nqn, [7; 16]).unwrap()).await.unwrap();
            let opcode = IoOpcode::ReservationRegister.code();
            let mut entry = SubmissionEntry::new(opcode, CommandId(0), NamespaceId(1));
            entry.dword10 = (3 << 30_u32).into();
            let data = Data::ToController([[0; 8], [1; 8]].concat().into());
            initiator.io(RawCommand { entry, data, is_idempotent: false }).await.unwrap();
        });
    }

    #[test]
    fn a_namespace_that_goes_away_leaves_nobody_waiting_for_its_reservations() {
        let directory = tempfile::tempdir().unwrap();
        let mut reactor = Reactor::new(&ReactorConfig::default()).unwrap();
        let handle = reactor.handle();
        let (mut shard, _outbox) = start(directory.path(), CONFIG, &handle, load(directory.path()));
        let (address, nqn) = (shard.subsystems()[0].address(), shard.subsystems()[0].nqn().to_owned());
        let waker = handle.waker();
        let host = std::thread::spawn(move || {
            register(address, &nqn);
            waker.wake();
        });
        let mut step = |shard: &mut Shard| {
            let mut events = Vec::new();
            reactor.turn(Wait::Until(shard.next_due()), &mut events);
            events.iter().for_each(|event| _ = shard.handle(event));
        };
        // It is removed after the command was executed and before anybody looks what is to be saved.
        let changed = loop {
            step(&mut shard);
            shard.driver.turn(handle.now());
            if let Some(changed) = shard.driver.target_mut().next_reservations_changed() {
                break changed;
            }
        };
        shard.remove_namespace(0, CONFIGURED).unwrap();
        shard.save_reservations(&changed);
        assert!(shard.is_idle(), "there is nothing to save");
        while !host.is_finished() {
            shard.turn(handle.now());
            step(&mut shard);
        }
        host.join().unwrap();
    }

    #[test]
    fn a_namespace_whose_device_has_larger_blocks_keeps_nobody_else_from_being_served() {
        let directory = tempfile::tempdir().unwrap();
        let reactor = Reactor::new(&ReactorConfig::default()).unwrap();
        let handle = reactor.handle();
        let served = |shard: &Shard| -> Vec<u32> {
            shard.subsystems[0].namespaces.iter().map(|served| served.nsid).collect()
        };
        let (mut shard, outbox) = start(directory.path(), CONFIG, &handle, load(directory.path()));
        for nsid in [2, 3] {
            shard.add_namespace(0, Some(nsid), None, ByteSize(1 << 20)).unwrap();
        }
        assert_eq!(served(&shard), [1, 2, 3]);
        drop((shard, outbox));
        // As of a disk whose blocks were smaller than any are.
        let mut catalogue = load(directory.path());
        catalogue.note_block_len(NamespacePlace { subsystem: 0, nsid: 2 }, 256).unwrap();
        let (mut shard, outbox) = start(directory.path(), CONFIG, &handle, catalogue);
        assert_eq!(served(&shard), [1, 3]);
        let taken = shard.add_namespace(0, Some(2), Some(Path::new("memory")), ByteSize(1 << 20));
        assert!(taken.is_err(), "its id is that of what it holds");
        drop((shard, outbox));
        // It is there again when its device fits, unless it is given up.
        let mut catalogue = load(directory.path());
        catalogue.note_block_len(NamespacePlace { subsystem: 0, nsid: 2 }, 4096).unwrap();
        let (shard, outbox) = start(directory.path(), CONFIG, &handle, catalogue);
        assert_eq!(served(&shard), [1, 2, 3]);
        drop((shard, outbox));
        let mut catalogue = load(directory.path());
        catalogue.note_block_len(NamespacePlace { subsystem: 0, nsid: 2 }, 256).unwrap();
        let (mut shard, _outbox) = start(directory.path(), CONFIG, &handle, catalogue);
        shard.remove_namespace(0, 2).unwrap();
        assert_eq!(load(directory.path()).added(0).unwrap().len(), 1);
    }
}
