//! Subsystems and namespaces as they are served: from the configuration and the catalogue to the target.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use ob_core::DeviceInfo;
use ob_files_card::LocalFiles;
use ob_io::Handle;
use ob_nvme::driver::Store;
use ob_nvme::target::control::{
    AdminError, BackendId, Control, HostPolicy, HostSecrets, HostSpec, NamespaceSpec, PortKey, PortSpec,
    SubsystemKey, SubsystemSpec, TransportAddress,
};
use ob_wire_nvme::text::Nqn;

use super::catalogue::{Entry, NamespacePlace};
use super::devices::Wanted;
use super::recorder::Recorder;
use super::{DISCOVERY_PORT, Driver, NamespaceDeviceError, NvmeError, SUBSYSTEM_PORT};
use crate::config::{
    ByteSize, CardConfig, FilesDevice, KEY_WITHOUT_HOSTS, NamespaceDevice, SubsystemConfig, TWO_THREADS,
};

/// A namespace that is served.
pub(super) struct Served {
    pub(super) nsid: u32,
    pub(super) backend: BackendId,
    pub(super) device: NamespaceDevice,
}

/// A namespace that is not.
pub(super) struct LeftOut {
    pub(super) nsid: u32,
    pub(super) uuid: [u8; 16],
    pub(super) device: NamespaceDevice,
    pub(super) block_len: u32,
    /// Bytes of the device's blocks.
    pub(super) device_block: u32,
}

/// A subsystem that is served.
pub(super) struct ServedSubsystem {
    pub(super) key: SubsystemKey,
    pub(super) config: SubsystemConfig,
    pub(super) namespaces: Vec<Served>,
    /// Namespaces that cannot be served in this life of the card, and keep their ids.
    pub(super) left_out: Vec<LeftOut>,
    pub(super) serial: String,
    port: PortKey,
    /// Its number in the catalogue.
    number: usize,
    address: SocketAddr,
}

impl ServedSubsystem {
    /// Has the target know a subsystem, without namespaces.
    pub(super) fn add(
        card: &CardConfig,
        control: &mut Control,
        config: SubsystemConfig,
        port: PortKey,
        number: usize,
        serial: &str,
    ) -> Result<Self, NvmeError> {
        let key = control.add_subsystem(subsystem_spec(card, &config, port, serial)?)?;
        let address = config.listen.unwrap_or(card.nvme.listen);
        let (namespaces, left_out, serial) = (Vec::new(), Vec::new(), serial.to_owned());
        Ok(Self { key, config, namespaces, left_out, serial, port, number, address })
    }

    /// What others tell of it.
    pub(super) fn announced(&self) -> AnnouncedSubsystem {
        let (config, serial) = (self.config.clone(), self.serial.clone());
        AnnouncedSubsystem { config, serial, port: self.port, address: self.address }
    }

    pub(super) fn is(&self, other: &AnnouncedSubsystem) -> bool {
        self.config.nqn == other.config.nqn
    }

    pub(super) fn place(&self, nsid: u32) -> NamespacePlace {
        NamespacePlace { subsystem: self.number, nsid }
    }

    pub(super) fn index_of(&self, nsid: u32) -> Result<usize, NvmeError> {
        self.namespaces.iter().position(|served| served.nsid == nsid).ok_or(NvmeError::Unknown(nsid))
    }
}

/// A subsystem as it is announced to everybody, whichever thread serves it.
#[derive(Clone)]
pub(crate) struct AnnouncedSubsystem {
    config: SubsystemConfig,
    serial: String,
    port: PortKey,
    address: SocketAddr,
}

impl AnnouncedSubsystem {
    pub(super) fn nqn(&self) -> &str {
        self.config.nqn.as_str()
    }

    /// Has discovery tell of it. Nobody can connect to it here, because its port is another thread's.
    pub(super) fn tell(&self, card: &CardConfig, control: &mut Control) -> Result<(), NvmeError> {
        match control.add_port(port_spec(self.port, self.address)) {
            Ok(()) | Err(AdminError::PortExists(_)) => {}
            Err(error) => return Err(error.into()),
        }
        control.add_subsystem(subsystem_spec(card, &self.config, self.port, &self.serial)?)?;
        Ok(())
    }

    /// Where it is served.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What its first namespace lies on, as the configuration says.
    pub(crate) fn device(&self) -> &NamespaceDevice {
        &self.config.device
    }

    /// What to type to connect.
    pub(crate) fn connect_command(&self) -> String {
        connect_command(&self.config, self.address)
    }
}

/// What to type to connect to a subsystem.
pub(crate) fn connect_command(config: &SubsystemConfig, address: SocketAddr) -> String {
    let reachable = match address.ip() {
        IpAddr::V4(any) if any.is_unspecified() => "THIS-MACHINE".to_owned(),
        IpAddr::V6(any) if any.is_unspecified() => "THIS-MACHINE".to_owned(),
        address => address.to_string(),
    };
    let secrets = match (&config.key, &config.controller_key) {
        (None, _) => "",
        (Some(_), None) => " --dhchap-secret KEY",
        (Some(_), Some(_)) => " --dhchap-secret KEY --dhchap-ctrl-secret CONTROLLER-KEY",
    };
    format!("nvme connect -t tcp -a {reachable} -s {} -n {}{secrets}", address.port(), config.nqn.as_str())
}

/// The thread of each subsystem, counted from 0.
pub(super) fn threads(card: &CardConfig, subsystems: &[SubsystemConfig]) -> Result<Vec<usize>, NvmeError> {
    card.nvme.threads_of(subsystems).map_err(|index| NvmeError::Configuration {
        what: TWO_THREADS,
        fix: card.source.line_to_change(
            subsystems.get(index).map_or("nvme", |one| &one.section),
            "thread",
            "1",
        ),
    })
}

/// A port for each subsystem: those that name the same address, or none, share one.
pub(super) fn ports(card: &CardConfig, subsystems: &[SubsystemConfig]) -> Vec<PortKey> {
    let port = |number: usize| match number {
        0 => SUBSYSTEM_PORT,
        own => PortKey(u16::try_from(own).unwrap_or(u16::MAX).saturating_add(DISCOVERY_PORT.0)),
    };
    card.nvme.address_numbers(subsystems).into_iter().map(port).collect()
}

pub(crate) fn subsystem_spec(
    card: &CardConfig,
    config: &SubsystemConfig,
    port: PortKey,
    serial: &str,
) -> Result<SubsystemSpec, NvmeError> {
    let hosts = hosts(card, config)?;
    Ok(SubsystemSpec { hosts, ports: vec![port], ..SubsystemSpec::open(config.nqn.clone(), serial) })
}

pub(crate) fn port_spec(port: PortKey, address: SocketAddr) -> PortSpec {
    let discovery_only = port == DISCOVERY_PORT;
    PortSpec { port, address: TransportAddress::of(address.ip(), address.port()), discovery_only }
}

fn hosts(card: &CardConfig, subsystem: &SubsystemConfig) -> Result<HostPolicy, NvmeError> {
    let SubsystemConfig { hosts, key, controller_key, section, .. } = subsystem;
    if let Some(what) = subsystem.keys_fault() {
        let (missing, example) = match what {
            KEY_WITHOUT_HOSTS => ("hosts", "[\"nqn.…\"]"),
            _ => ("key", "\"DHHC-1:…\""),
        };
        let fix = card.source.line_to_change(section, missing, example);
        return Err(NvmeError::Configuration { what, fix });
    }
    if hosts.is_empty() {
        return Ok(HostPolicy::Any);
    }
    let secrets = key.clone().map(|host| HostSecrets { host, controller: controller_key.clone() });
    let spec = |nqn: &Nqn| HostSpec { nqn: nqn.clone(), secrets: secrets.clone() };
    Ok(HostPolicy::Listed(hosts.iter().map(spec).collect()))
}

/// What is written down of a namespace, or what the configuration says of its subsystem's first.
fn device_at(subsystem: &ServedSubsystem, path: Option<&Path>) -> Result<NamespaceDevice, NvmeError> {
    match path {
        Some(path) => NamespaceDevice::parse(path).ok_or_else(|| NvmeError::BadDevice(path.to_owned())),
        None => Ok(subsystem.config.device.clone()),
    }
}

/// A device as the catalogue knows it: the same wherever the data directory is.
pub(super) fn lies_on(config: &CardConfig, device: &NamespaceDevice) -> String {
    let data = config.directory.parent().unwrap_or(&config.directory);
    match device {
        NamespaceDevice::Device(FilesDevice::Path(path)) => {
            path.strip_prefix(data).unwrap_or(path).display().to_string()
        }
        other => other.to_string(),
    }
}

/// A namespace's block, of the two that hosts know: what it was when it was first served, because hosts count in it what
/// they have laid out there, and a device may have another one on another kernel or disk. An error if the
/// device has a larger one.
fn block_len(known: Option<u32>, info: &DeviceInfo) -> Result<u32, u32> {
    let block_len = known.unwrap_or(if info.block_len <= 512 { 512 } else { 4096 });
    if info.block_len <= block_len { Ok(block_len) } else { Err(block_len) }
}

/// What it takes to serve a namespace.
pub(super) struct Serving<'a> {
    pub(super) config: &'a CardConfig,
    pub(super) handle: &'a Handle,
    /// The card's files, if this is the thread that they are on.
    pub(super) files: Option<&'a LocalFiles>,
    /// Lets the card's files go on; none where nothing may wait.
    pub(super) wait: Option<&'a mut dyn FnMut()>,
    /// Whether the card starts, and may wait for its earlier life to let go of devices.
    pub(super) is_starting: bool,
    pub(super) driver: &'a mut Driver,
    pub(super) recorder: &'a Recorder,
}

impl Serving<'_> {
    /// One that was never served before. Its device is there before it is written down, so that a card that dies in
    /// between finds one that it may use, and none that it misses.
    pub(super) fn serve_new(
        &mut self,
        subsystem: &mut ServedSubsystem,
        nsid: u32,
        path: Option<&Path>,
        size: ByteSize,
    ) -> Result<(), NvmeError> {
        let device = device_at(subsystem, path)?;
        let section = path.is_none().then_some(subsystem.config.section.as_str());
        let backend = self.open(&Wanted { device: &device, size, may_make: true, section })?;
        self.serve_opened(subsystem, nsid, path, size, (device, backend))
    }

    /// One whose device is there.
    pub(super) fn serve_opened(
        &mut self,
        subsystem: &mut ServedSubsystem,
        nsid: u32,
        path: Option<&Path>,
        size: ByteSize,
        (device, backend): (NamespaceDevice, BackendId),
    ) -> Result<(), NvmeError> {
        let (place, size) = (subsystem.place(nsid), path.map(|_| size.0));
        let lies_on = path.is_none().then(|| lies_on(self.config, &device));
        let path = path.map(Path::to_owned);
        let entry = self.recorder.call(move |catalogue| catalogue.add(place, path, lies_on, size));
        let served = entry.and_then(|entry| self.serve(subsystem, &entry, backend, device));
        if served.is_err() {
            self.driver.store_mut().close(backend);
            self.recorder.call(move |catalogue| catalogue.forget(place))?;
        }
        served
    }

    /// One of an earlier life. It is left out if its device has larger blocks than hosts count in: that is not put right in a
    /// moment, as a missing device may be, and the others need not wait until somebody has moved it.
    pub(super) fn serve_again(
        &mut self,
        subsystem: &mut ServedSubsystem,
        entry: &Entry,
    ) -> Result<(), NvmeError> {
        let served = self.serve_known(subsystem, entry);
        let Err(error @ NvmeError::Device(NamespaceDeviceError::Blocks { device_block, block, .. })) =
            &served
        else {
            return served;
        };
        let (nsid, uuid, nqn) = (entry.nsid, entry.uuid, subsystem.config.nqn.as_str());
        tracing::error!("namespace {nsid} of {nqn} is not served: {error}");
        let device = device_at(subsystem, entry.device.as_deref())?;
        let (block_len, device_block) = (*block, *device_block);
        subsystem.left_out.push(LeftOut { nsid, uuid, device, block_len, device_block });
        Ok(())
    }

    fn serve_known(&mut self, subsystem: &mut ServedSubsystem, entry: &Entry) -> Result<(), NvmeError> {
        let device = device_at(subsystem, entry.device.as_deref())?;
        let size = entry.size.map_or(subsystem.config.size, ByteSize);
        let section = entry.device.is_none().then_some(subsystem.config.section.as_str());
        let backend = self.open(&Wanted { device: &device, size, may_make: false, section })?;
        let served = match self.is_passing(&device) {
            // What it held is gone: hosts are not to take it for the disk that they knew.
            true => {
                let place = subsystem.place(entry.nsid);
                let (path, size) = (entry.device.clone(), entry.size);
                let lies_on = path.is_none().then(|| lies_on(self.config, &device));
                let renewed = self.recorder.call(move |catalogue| catalogue.add(place, path, lies_on, size));
                renewed.and_then(|entry| self.serve(subsystem, &entry, backend, device))
            }
            false => self.serve(subsystem, entry, backend, device),
        };
        served.inspect_err(|_| self.driver.store_mut().close(backend))
    }

    /// Whether a device is empty with each start of the card.
    pub(super) fn is_passing(&self, device: &NamespaceDevice) -> bool {
        match device {
            NamespaceDevice::Device(device) => *device == FilesDevice::Memory,
            NamespaceDevice::CardFile(_) => self.config.files.device == FilesDevice::Memory,
        }
    }

    fn serve(
        &mut self,
        subsystem: &mut ServedSubsystem,
        entry: &Entry,
        backend: BackendId,
        device: NamespaceDevice,
    ) -> Result<(), NvmeError> {
        let Entry { nsid, uuid, reservations, .. } = entry;
        let info = self.driver.store().info(backend).ok_or(NvmeError::Unknown(*nsid))?;
        let block_len = block_len(entry.block_len, &info).map_err(|block| NamespaceDeviceError::Blocks {
            device: device.to_string(),
            device_block: info.block_len,
            block,
        })?;
        if info.block_len < block_len {
            let nqn = subsystem.config.nqn.as_str();
            tracing::warn!(
                "namespace {nsid} of {nqn} has blocks of {block_len} bytes, and {device} writes {} at once: \
                 a loss of power may leave a block half written",
                info.block_len
            );
        }
        if entry.block_len.is_none() && !self.is_passing(&device) {
            let place = subsystem.place(*nsid);
            self.recorder.call(move |catalogue| catalogue.note_block_len(place, block_len))?;
        }
        let spec = NamespaceSpec {
            nsid: Some(*nsid),
            backing: backend.into(),
            blocks: info.capacity / u64::from(block_len),
            block_len,
            uuid: *uuid,
            nguid: *uuid,
            volatile_cache: info.volatile_cache,
            // Holes of files read as zeros, and so does memory; disks are told to unmap only where that leaves zeros
            // (`FALLOC_FL_PUNCH_HOLE` on a block device fails otherwise). A file of the card gives whole segments back and
            // keeps the rest as it is; zeros have to be asked for there, and they give the same segments back.
            deallocated_reads_zero: matches!(device, NamespaceDevice::Device(_)),
            deallocate_len: info.discard_unit,
            ana_group: 1,
            read_only: false,
        };
        let taken = self.driver.store_mut().volume(backend).map(|volume| volume.allocated());
        let control = self.driver.target_mut().control_mut();
        control.add_namespace(subsystem.key, &spec)?;
        if let Some(taken) = taken {
            control.count_taken(subsystem.key, *nsid, taken)?;
        }
        if let Some(saved) = reservations {
            control.restore_reservations(subsystem.key, *nsid, saved.clone())?;
        }
        subsystem.namespaces.push(Served { nsid: *nsid, backend, device });
        Ok(())
    }
}

/// Listens for each subsystem, once on each port.
pub(super) fn listen(
    config: &CardConfig,
    driver: &mut Driver,
    subsystems: &mut [ServedSubsystem],
) -> Result<(), NvmeError> {
    let mut open: Vec<(PortKey, SocketAddr)> = Vec::new();
    for subsystem in subsystems {
        let port = subsystem.port;
        let known = open.iter().find(|(known, _)| *known == port);
        subsystem.address = match known {
            Some((_, address)) => *address,
            None => {
                let section = if port == SUBSYSTEM_PORT { "nvme" } else { &subsystem.config.section };
                let fix = config.source.line_to_change(section, "listen", "\"127.0.0.1:4430\"");
                let address = listen_on(driver, subsystem.address, port, "NVMe/TCP", fix)?;
                open.push((port, address));
                address
            }
        };
    }
    Ok(())
}

/// Listens for discovery alone.
pub(super) fn listen_for_discovery(
    config: &CardConfig,
    driver: &mut Driver,
) -> Result<SocketAddr, NvmeError> {
    let fix = config.source.line_to_change("nvme", "discovery", "\"127.0.0.1:8010\"");
    listen_on(driver, config.nvme.discovery, DISCOVERY_PORT, "NVMe discovery", fix)
}

fn listen_on(
    driver: &mut Driver,
    wanted: SocketAddr,
    port: PortKey,
    purpose: &'static str,
    fix: String,
) -> Result<SocketAddr, NvmeError> {
    let address = driver.listen(wanted, port).map_err(|source| NvmeError::Listen {
        address: wanted,
        purpose,
        source: Box::new(source),
        fix,
    })?;
    driver.target_mut().control_mut().add_port(port_spec(port, address))?;
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_count_in_the_same_blocks_whatever_the_device_has_by_now() {
        let of = |known: Option<u32>, device: u32| {
            let info = DeviceInfo {
                capacity: 1 << 20,
                block_len: device,
                volatile_cache: true,
                discard_unit: device,
            };
            block_len(known, &info)
        };
        assert_eq!([of(None, 512), of(None, 1024), of(None, 4096)], [Ok(512), Ok(4096), Ok(4096)]);
        assert_eq!(of(Some(4096), 512), Ok(4096), "on another kernel, or another disk");
        assert_eq!(of(Some(512), 4096), Err(512), "no write of one block could be made");
        assert_eq!(of(None, 16384), Err(4096));
    }
}
