//! NVMe/TCP at the card: a target on the card's reactor, and the devices behind its namespaces.
//!
//! ```text
//!   initiators ─▶ TcpNet ─▶ TargetDriver ─▶ Devices ─▶ a file, a disk, memory, a file of the card's file system
//!                              │
//!                              └─▶ Catalogue: ids and reservations that outlive the card
//! ```

pub mod admin;
mod catalogue;
mod command;
mod devices;
mod volumes;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use ob_core::{DeviceInfo, Instant, NetListenError};
use ob_files_card::LocalFiles;
use ob_io::{Event, Handle, TcpNet};
use ob_nvme::driver::{Store, TargetDriver};
use ob_nvme::target::control::{
    AdminError, BackendId, Control, ControlConfig, HostPolicy, HostSecrets, HostSpec, NamespaceSpec, PortKey,
    PortSpec, SubsystemKey, SubsystemSpec, TransportAddress,
};
use ob_nvme::target::{Target, TargetConfig};
use ob_wire_nvme::log::AddressFamily;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::config::{ByteSize, CardConfig, NamespaceDevice, NvmeConfig};
use crate::status::NvmeFacts;
use admin::{AdminAnswer, AdminCall, AdminRequest, AdminServer, NamespaceFacts};
use catalogue::{Catalogue, Configured, Entry};
pub(crate) use catalogue::{hex, uuid_text};
pub use command::NamespaceCommand;
pub(crate) use command::run;
pub use devices::NamespaceDeviceError;
use devices::{Devices, Wanted};
use volumes::Work;

/// Connections at once, admin and I/O queues together.
const CONNECTIONS_MAX: u32 = 1024;
/// The namespace that the configuration names.
const CONFIGURED: u32 = 1;
const SUBSYSTEM_PORT: PortKey = PortKey(1);
const DISCOVERY_PORT: PortKey = PortKey(2);

/// Why nothing is served over NVMe/TCP.
#[derive(Debug, thiserror::Error)]
pub enum NvmeError {
    /// The namespace's device cannot be used.
    #[error(transparent)]
    Device(#[from] NamespaceDeviceError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address} for {purpose}: {source}\nhint: {fix}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What would have been served there.
        purpose: &'static str,
        /// Why not.
        source: Box<NetListenError>,
        /// The line to change.
        fix: String,
    },
    /// What the card knows of its namespaces cannot be read or written.
    #[error("cannot use {}: {source}\nhint: it holds the ids and reservations of namespaces; {hint}", path.display())]
    Catalogue {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
        /// What to do.
        hint: &'static str,
    },
    /// The configuration contradicts itself.
    #[error("{what}\nhint: {fix}")]
    Configuration {
        /// How.
        what: &'static str,
        /// The line to change.
        fix: String,
    },
    /// The target refuses what it is to serve.
    #[error("cannot serve the namespace: {0}")]
    Refused(#[from] AdminError),
    /// There is no such namespace.
    #[error("there is no namespace {0}\nhint: `outboard namespace list` shows those that there are")]
    Unknown(u32),
    /// A removed namespace has left its file.
    #[error(
        "{} is there already, of a namespace that was removed\n\
         hint: `--device {}` serves it again, with what it holds; or move it away first", .0.display(), .0.display()
    )]
    LeftOver(PathBuf),
    /// What it is to lie on cannot be.
    #[error("{} is neither a path nor `memory` nor a file of the card\nhint: such as file:/volumes/a", .0.display())]
    BadDevice(PathBuf),
    /// A namespace cannot get another size.
    #[error("cannot resize namespace {nsid}: {source}")]
    Resize {
        /// Which.
        nsid: u32,
        /// Why not.
        source: io::Error,
    },
    /// The control socket cannot be made.
    #[error("cannot listen on {} for administration: {source}", path.display())]
    Socket {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A namespace that is served.
struct Served {
    nsid: u32,
    backend: BackendId,
    device: NamespaceDevice,
}

/// What the card serves over NVMe/TCP.
pub(crate) struct NvmeService {
    driver: TargetDriver<TcpNet, Devices>,
    catalogue: Catalogue,
    admin: AdminServer,
    /// What an administrator asked for and the card's files are at.
    waiting: Option<(AdminCall, Work)>,
    files: LocalFiles,
    served: Vec<Served>,
    subsystem: SubsystemKey,
    config: CardConfig,
    handle: Handle,
    address: SocketAddr,
    discovery: SocketAddr,
}

impl NvmeService {
    /// Opens the devices, and listens. The card's files are mounted; `wait` lets them go on.
    pub(crate) fn start(
        config: &CardConfig,
        handle: &Handle,
        files: LocalFiles,
        wait: &mut dyn FnMut(),
    ) -> Result<Self, NvmeError> {
        let nvme = &config.nvme;
        let mut catalogue = Catalogue::load(&config.directory.join("nvme.json"))?;
        let mut control = Control::new(ControlConfig::default()).with_random(fill);
        let mut spec = SubsystemSpec::open(nvme.nqn.clone(), &catalogue.serial());
        spec.hosts = hosts(config)?;
        let subsystem = control.add_subsystem(spec)?;
        let configured = catalogue.configured(CONFIGURED)?;
        let added = catalogue.added()?;
        let target = Target::new(TargetConfig::default(), control);
        for arena in target.arenas() {
            if let Err(error) = handle.register_arena(arena) {
                tracing::debug!("buffers are not registered: {error}");
            }
        }
        let mut driver = TargetDriver::new(TcpNet::new(handle, CONNECTIONS_MAX), Devices::default(), target);
        let mut served = Vec::new();
        let mut serving = Serving {
            config,
            handle,
            files: &files,
            wait: Some(wait),
            driver: &mut driver,
            catalogue: &mut catalogue,
            subsystem,
        };
        match configured {
            Configured::Removed => {}
            Configured::New => served.push(serving.serve_new(CONFIGURED, None, nvme.size)?),
            Configured::Known(entry) => served.push(serving.serve_known(&entry)?),
        }
        for entry in &added {
            served.push(serving.serve_known(entry)?);
        }
        let address = listen(config, &mut driver, SUBSYSTEM_PORT)?;
        let discovery = listen(config, &mut driver, DISCOVERY_PORT)?;
        let path = config.control_socket();
        let waker = handle.waker();
        let admin = AdminServer::start(&path, move || waker.wake())
            .map_err(|source| NvmeError::Socket { path, source })?;
        let (config, handle) = (config.clone(), handle.clone());
        let waiting = None;
        Ok(Self {
            driver,
            catalogue,
            admin,
            waiting,
            files,
            served,
            subsystem,
            config,
            handle,
            address,
            discovery,
        })
    }

    /// Where the subsystem is served.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where discovery is.
    pub(crate) fn discovery(&self) -> SocketAddr {
        self.discovery
    }

    /// What to type to connect.
    pub(crate) fn connect_command(&self) -> String {
        connect_command(&self.config.nvme, self.address)
    }

    /// What there is to know, for the status.
    pub(crate) fn facts(&self) -> NvmeFacts {
        NvmeFacts {
            address: self.address,
            discovery: self.discovery,
            namespaces: self.served.len(),
            connections_max: u64::from(CONNECTIONS_MAX),
            counts: self.driver.target().counts(),
        }
    }

    /// Takes an event of the reactor, if it is for this service.
    pub(crate) fn handle(&mut self, event: &Event) -> bool {
        self.driver.net_mut().handle(event)
    }

    /// When there is something to do, if nothing happens before.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.driver.next_due()
    }

    /// Does what there is to do; `true` if something was done.
    pub(crate) fn turn(&mut self, now: Instant) -> bool {
        let turn = self.driver.turn(now);
        while let Some(changed) = self.driver.target_mut().next_reservations_changed() {
            self.save_reservations(changed.nsid, changed.namespace);
        }
        let finished = self.finish_waiting();
        while self.waiting.is_none()
            && let Some(call) = self.admin.next()
        {
            self.administer(call);
            // Hosts hear of it now: nothing else may happen for a while.
            self.driver.turn(now);
        }
        turn.events > 0 || turn.has_more || finished
    }

    /// Does what an administrator asks for.
    fn administer(&mut self, call: AdminCall) {
        let done = match &call.request {
            AdminRequest::ListNamespaces => Ok(None),
            AdminRequest::AddNamespace { nsid, device, size } => {
                self.add_namespace(*nsid, device.as_deref(), ByteSize(*size))
            }
            AdminRequest::RemoveNamespace { nsid } => self.remove_namespace(*nsid).map(|()| None),
            AdminRequest::ResizeNamespace { nsid, size } => self.resize_namespace(*nsid, *size),
        };
        match done {
            Ok(Some(work)) => self.waiting = Some((call, work)),
            Ok(None) => self.answer(call, Ok(())),
            Err(error) => self.answer(call, Err(error)),
        }
    }

    fn answer(&self, call: AdminCall, done: Result<(), NvmeError>) {
        if let Err(error) = &done {
            tracing::warn!("{:?}: {error}", call.request);
        }
        let answer: AdminAnswer = done.map(|()| self.namespaces()).map_err(|error| error.to_string());
        call.answer(answer);
    }

    fn namespaces(&self) -> Vec<NamespaceFacts> {
        let control = self.driver.target().control();
        let facts = control.namespaces(self.subsystem).filter_map(|namespace| {
            let served = self.served.iter().find(|served| served.nsid == namespace.nsid)?;
            Some(NamespaceFacts {
                nsid: namespace.nsid,
                uuid: catalogue::uuid_text(&namespace.uuid),
                device: served.device.to_string(),
                size: namespace.blocks * u64::from(namespace.block_len),
                block_len: namespace.block_len,
            })
        });
        facts.collect()
    }

    fn add_namespace(
        &mut self,
        nsid: Option<u32>,
        device: Option<&Path>,
        size: ByteSize,
    ) -> Result<Option<Work>, NvmeError> {
        let is_free = |nsid: &u32| self.served.iter().all(|served| served.nsid != *nsid);
        let max = self.driver.target().control().config().namespaces_max;
        let nsid = match nsid {
            Some(nsid) if nsid == 0 || nsid > max || !is_free(&nsid) => {
                return Err(AdminError::BadNamespaceId { nsid, max }.into());
            }
            Some(nsid) => nsid,
            None => (1..=max).find(is_free).ok_or(AdminError::NamespacesFull)?,
        };
        let path = match device {
            Some(path) => path.to_owned(),
            None => self.config.directory.join(format!("namespace-{nsid}.img")),
        };
        if device.is_none() && path.exists() {
            return Err(NvmeError::LeftOver(path));
        }
        match NamespaceDevice::parse(&path) {
            None => return Err(NvmeError::BadDevice(path)),
            Some(NamespaceDevice::CardFile(file)) => {
                return Ok(Some(Work::add(&self.files, nsid, &file, size)));
            }
            Some(NamespaceDevice::Device(_)) => {}
        }
        let served = self.serving().serve_new(nsid, Some(&path), size)?;
        self.served.push(served);
        Ok(None)
    }

    fn remove_namespace(&mut self, nsid: u32) -> Result<(), NvmeError> {
        let index = self.index_of(nsid)?;
        // Written down first: a card that dies now does not serve it again.
        self.catalogue.remove(nsid)?;
        self.driver.target_mut().control_mut().remove_namespace(self.subsystem, nsid)?;
        let served = self.served.swap_remove(index);
        self.driver.store_mut().close(served.backend);
        Ok(())
    }

    fn resize_namespace(&mut self, nsid: u32, size: u64) -> Result<Option<Work>, NvmeError> {
        let backend = self.served[self.index_of(nsid)?].backend;
        let cannot = |source| NvmeError::Resize { nsid, source };
        let info = self.driver.store().info(backend).ok_or(NvmeError::Unknown(nsid))?;
        let block_len = block_len(&info);
        let blocks = size / u64::from(block_len);
        if blocks == 0 {
            let text = format!("{size} bytes are less than a block");
            return Err(cannot(io::Error::new(io::ErrorKind::InvalidInput, text)));
        }
        // Nobody may reach beyond the end of the device, so the later of the two is the one that makes room.
        let bytes = blocks * u64::from(block_len);
        if self.driver.store_mut().volume(backend).is_some() {
            return self.resize_volume(nsid, backend, (blocks, bytes)).map(Some);
        }
        if bytes > info.capacity {
            self.driver.store_mut().resize(backend, bytes).map_err(cannot)?;
            self.driver.target_mut().control_mut().resize_namespace(self.subsystem, nsid, blocks)?;
        } else {
            self.driver.target_mut().control_mut().resize_namespace(self.subsystem, nsid, blocks)?;
            self.driver.store_mut().resize(backend, bytes).map_err(cannot)?;
        }
        Ok(None)
    }

    fn index_of(&self, nsid: u32) -> Result<usize, NvmeError> {
        self.served.iter().position(|served| served.nsid == nsid).ok_or(NvmeError::Unknown(nsid))
    }

    /// Whether nothing is on its way to or from the device.
    pub(crate) fn is_idle(&self) -> bool {
        self.driver.in_store() == 0
    }

    /// Ends, and gives the devices back.
    pub(crate) fn into_devices(self) -> Devices {
        self.driver.into_parts().1
    }

    /// Reservations change seldom, and an answer that says they are saved must be true: the reactor waits for the disk.
    fn save_reservations(&mut self, nsid: u32, namespace: ob_nvme::target::control::NamespaceKey) {
        let target = self.driver.target_mut();
        let Ok(state) = target.control().reservations(self.subsystem, nsid) else { return };
        let version = state.version();
        let saved = Some(state).filter(|state| state.persists());
        match self.catalogue.save_reservations(nsid, saved) {
            Ok(()) => target.reservations_saved(namespace, version),
            // The host that asked waits in vain and tries again, which is better than a promise not kept.
            Err(error) => tracing::error!("reservations are not saved: {error}"),
        }
    }
}

fn fill(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(rest) = bytes.get_mut(at..).filter(|rest| !rest.is_empty()) {
        match getrandom(rest, GetRandomFlags::empty()) {
            Ok(len) => at += len,
            Err(rustix::io::Errno::INTR) => {}
            // Nobody can authenticate with a challenge that is known; better to stop here than to pretend.
            Err(errno) => panic!("the kernel gives no random bytes: {errno}"),
        }
    }
}

fn hosts(config: &CardConfig) -> Result<HostPolicy, NvmeError> {
    let NvmeConfig { hosts, key, controller_key, .. } = &config.nvme;
    let secrets = match (key, controller_key) {
        (Some(key), controller) => Some(HostSecrets { host: key.clone(), controller: controller.clone() }),
        (None, None) => None,
        (None, Some(_)) => {
            return Err(NvmeError::Configuration {
                what: "`controller_key` is for hosts that authenticate themselves, and there is no `key` for them",
                fix: config.source.line_to_change("nvme", "key", "\"DHHC-1:…\""),
            });
        }
    };
    if hosts.is_empty() {
        return match secrets {
            None => Ok(HostPolicy::Any),
            Some(_) => Err(NvmeError::Configuration {
                what: "`key` belongs to hosts, and none is listed",
                fix: config.source.line_to_change("nvme", "hosts", "[\"nqn.…\"]"),
            }),
        };
    }
    let spec = |nqn: &ob_wire_nvme::text::Nqn| HostSpec { nqn: nqn.clone(), secrets: secrets.clone() };
    Ok(HostPolicy::Listed(hosts.iter().map(spec).collect()))
}

/// NVMe knows blocks of 512 and 4096 bytes.
fn block_len(info: &DeviceInfo) -> u32 {
    if info.block_len <= 512 { 512 } else { 4096 }
}

/// What it takes to serve a namespace.
struct Serving<'a> {
    config: &'a CardConfig,
    handle: &'a Handle,
    files: &'a LocalFiles,
    /// Lets the card's files go on; none where nothing may wait.
    wait: Option<&'a mut dyn FnMut()>,
    driver: &'a mut TargetDriver<TcpNet, Devices>,
    catalogue: &'a mut Catalogue,
    subsystem: SubsystemKey,
}

impl Serving<'_> {
    /// One that was never served before. Its device is there before it is written down, so that a card that dies in
    /// between finds one that it may use, and none that it misses.
    fn serve_new(&mut self, nsid: u32, path: Option<&Path>, size: ByteSize) -> Result<Served, NvmeError> {
        let device = self.device_at(path)?;
        let wanted = Wanted { device: &device, size, may_make: true, is_configured: path.is_none() };
        let backend = self.open(&wanted)?;
        self.serve_opened(nsid, path, size, device, backend)
    }

    /// One whose device is there.
    fn serve_opened(
        &mut self,
        nsid: u32,
        path: Option<&Path>,
        size: ByteSize,
        device: NamespaceDevice,
        backend: BackendId,
    ) -> Result<Served, NvmeError> {
        let size = path.map(|_| size.0);
        let entry = self.catalogue.add(nsid, path.map(Path::to_owned), size);
        let served = entry.and_then(|entry| self.serve(&entry, backend, device));
        if served.is_err() {
            self.driver.store_mut().close(backend);
            self.catalogue.forget(nsid)?;
        }
        served
    }

    /// One of an earlier life.
    fn serve_known(&mut self, entry: &Entry) -> Result<Served, NvmeError> {
        let nvme = &self.config.nvme;
        let device = self.device_at(entry.device.as_deref())?;
        let size = entry.size.map_or(nvme.size, ByteSize);
        let is_configured = entry.device.is_none();
        let wanted = Wanted { device: &device, size, may_make: false, is_configured };
        let backend = self.open(&wanted)?;
        self.serve(entry, backend, device).inspect_err(|_| self.driver.store_mut().close(backend))
    }

    /// What is written down, or what the configuration says.
    fn device_at(&self, path: Option<&Path>) -> Result<NamespaceDevice, NvmeError> {
        match path {
            Some(path) => NamespaceDevice::parse(path).ok_or_else(|| NvmeError::BadDevice(path.to_owned())),
            None => Ok(self.config.nvme.device.clone()),
        }
    }

    fn serve(
        &mut self,
        entry: &Entry,
        backend: BackendId,
        device: NamespaceDevice,
    ) -> Result<Served, NvmeError> {
        let Entry { nsid, uuid, reservations, .. } = entry;
        let info = self.driver.store().info(backend).ok_or(NvmeError::Unknown(*nsid))?;
        let block_len = block_len(&info);
        let spec = NamespaceSpec {
            nsid: Some(*nsid),
            backend,
            blocks: info.capacity / u64::from(block_len),
            block_len,
            uuid: *uuid,
            nguid: *uuid,
            volatile_cache: info.volatile_cache,
            deallocated_reads_zero: false,
            ana_group: 1,
            read_only: false,
        };
        let control = self.driver.target_mut().control_mut();
        control.add_namespace(self.subsystem, &spec)?;
        if let Some(saved) = reservations {
            control.restore_reservations(self.subsystem, *nsid, saved.clone())?;
        }
        Ok(Served { nsid: *nsid, backend, device })
    }
}

fn listen(
    config: &CardConfig,
    driver: &mut TargetDriver<TcpNet, Devices>,
    port: PortKey,
) -> Result<SocketAddr, NvmeError> {
    let is_discovery = port == DISCOVERY_PORT;
    let (wanted, key, purpose, example) = if is_discovery {
        (config.nvme.discovery, "discovery", "NVMe discovery", "\"127.0.0.1:8010\"")
    } else {
        (config.nvme.listen, "listen", "NVMe/TCP", "\"127.0.0.1:4430\"")
    };
    let address = driver.listen(wanted, port).map_err(|source| NvmeError::Listen {
        address: wanted,
        purpose,
        source: Box::new(source),
        fix: config.source.line_to_change("nvme", key, example),
    })?;
    let family = if address.is_ipv4() { AddressFamily::Ipv4 } else { AddressFamily::Ipv6 };
    driver.target_mut().control_mut().add_port(PortSpec {
        port,
        address: TransportAddress { family, address: address.ip().to_string(), service: address.port() },
        discovery_only: is_discovery,
    })?;
    Ok(address)
}

fn connect_command(nvme: &NvmeConfig, address: SocketAddr) -> String {
    let reachable = match address.ip() {
        IpAddr::V4(any) if any.is_unspecified() => "THIS-MACHINE".to_owned(),
        IpAddr::V6(any) if any.is_unspecified() => "THIS-MACHINE".to_owned(),
        address => address.to_string(),
    };
    let secrets = match (&nvme.key, &nvme.controller_key) {
        (None, _) => "",
        (Some(_), None) => " --dhchap-secret KEY",
        (Some(_), Some(_)) => " --dhchap-secret KEY --dhchap-ctrl-secret CONTROLLER-KEY",
    };
    format!("nvme connect -t tcp -a {reachable} -s {} -n {}{secrets}", address.port(), nvme.nqn.as_str())
}
