//! The devices behind namespaces.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use ob_core::{Device, DeviceCompletion, DeviceInfo, DeviceOp, Instant, Refused, RefusedReason, Token};
use ob_files_card::{FileVolume, VolumeError};
use ob_io::{FileDevice, FileDeviceOptions, Handle, MemoryDevice, OpenError, Space};
use ob_nvme::driver::Store;
use ob_nvme::target::control::BackendId;

use crate::config::{ByteSize, CardConfig, FilesDevice, NamespaceDevice};
use crate::files::{CardDevice, machine_memory, open_patiently, put_in_place, unfinished_path};

/// The block of a namespace in memory.
const MEMORY_BLOCK: u32 = 512;

/// Why a namespace has no device.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceDeviceError {
    /// It cannot be opened or made.
    #[error("cannot open the device of the namespace: {source}\nhint: {fix}")]
    Open {
        /// Why not.
        source: OpenError,
        /// The line to change.
        fix: String,
    },
    /// It was served before, and is not there.
    #[error(
        "{} is missing, and has the data of a namespace that this card served before\n\
         hint: put it back; or take its entry out of nvme.json in the card's directory, and begin anew",
        path.display()
    )]
    Lost {
        /// The device.
        path: PathBuf,
    },
    /// A file of the card's file system cannot be used.
    #[error("cannot use file:/{path} for a namespace: {source}\nhint: {fix}")]
    Volume {
        /// The file.
        path: String,
        /// Why not.
        source: VolumeError,
        /// What to do.
        fix: String,
    },
    /// A new file cannot get its name.
    #[error("cannot put {} in place: {source}\nhint: its directory must be writable; {fix}", path.display())]
    Place {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
        /// The line to change.
        fix: String,
    },
    /// The machine has less memory than the device would take.
    #[error("a namespace of {size} in memory is more than this machine has, which is {memory}\nhint: {fix}")]
    TooMuchMemory {
        /// What was asked for.
        size: ByteSize,
        /// What there is.
        memory: ByteSize,
        /// The line to change.
        fix: String,
    },
}

/// A device that is to be opened.
pub(super) struct Wanted<'a> {
    pub(super) device: &'a NamespaceDevice,
    /// Bytes of a file or memory that is made.
    pub(super) size: ByteSize,
    /// Whether a file that is missing is made: not if it held data before.
    pub(super) may_make: bool,
    /// The section that asks for it, unless somebody typed it.
    pub(super) section: Option<&'a str>,
}

impl Wanted<'_> {
    /// What to change.
    pub(super) fn fix(&self, config: &CardConfig, key: &str, example: &str) -> String {
        match self.section {
            Some(section) => config.source.line_to_change(section, key, &format!("\"{example}\"")),
            None => format!("give another one, such as --{key} {example}"),
        }
    }
}

/// The devices behind namespaces, by number.
#[derive(Default)]
pub(crate) struct Devices {
    slots: BTreeMap<u32, Slot>,
    /// Numbers are not used again: an operation that comes late must not find another device.
    opened: u32,
}

struct Slot {
    device: Backing,
    in_flight: usize,
    /// No namespace lies on it any more; it goes with its last operation.
    leaving: bool,
    /// It was made shorter while operations were on their way.
    cut: Option<Cut>,
}

/// What is to be done again when the operations are over that were on their way when a file was made shorter: they may have
/// made it longer. Others wait until then.
#[derive(Clone, Copy)]
struct Cut {
    to: u64,
    /// What it was made since.
    then: u64,
}

impl Slot {
    /// The last operation is done: what came after a file was made shorter is taken off again, so that the next life finds
    /// the length that hosts were told.
    fn settle(&mut self) {
        if self.in_flight > 0 {
            return;
        }
        if let (Some(cut), Backing::Whole(CardDevice::File(file))) = (self.cut.take(), &mut self.device)
            && let Err(error) = file.resize(cut.to).and_then(|()| file.resize(cut.then))
        {
            tracing::error!("a namespace's file may have grown again: {error}");
        }
    }
}

/// What a namespace's bytes are on.
enum Backing {
    Whole(CardDevice),
    /// A file of the card's own file system.
    Volume(FileVolume),
}

impl Backing {
    fn device(&self) -> &dyn Device {
        match self {
            Self::Whole(device) => device,
            Self::Volume(volume) => volume,
        }
    }

    fn device_mut(&mut self) -> &mut dyn Device {
        match self {
            Self::Whole(device) => device,
            Self::Volume(volume) => volume,
        }
    }
}

impl Devices {
    /// Opens a device, or makes it.
    pub(super) fn open(
        &mut self,
        config: &CardConfig,
        handle: &Handle,
        device: &FilesDevice,
        wanted: &Wanted<'_>,
        is_patient: bool,
    ) -> Result<BackendId, NamespaceDeviceError> {
        let device = match device {
            FilesDevice::Memory => in_memory(config, wanted)?,
            FilesDevice::Path(path) => CardDevice::File(on_path(config, handle, path, wanted, is_patient)?),
        };
        Ok(self.insert(Backing::Whole(device)))
    }

    /// Takes a file of the card's file system in.
    pub(super) fn adopt(&mut self, volume: FileVolume) -> BackendId {
        self.insert(Backing::Volume(volume))
    }

    fn insert(&mut self, device: Backing) -> BackendId {
        let backend = self.opened;
        self.opened += 1;
        self.slots.insert(backend, Slot { device, in_flight: 0, leaving: false, cut: None });
        BackendId(backend)
    }

    /// The file of the card's file system behind a namespace, if it lies on one.
    pub(super) fn volume(&mut self, backend: BackendId) -> Option<&mut FileVolume> {
        match self.slots.get_mut(&backend.0).map(|slot| &mut slot.device) {
            Some(Backing::Volume(volume)) => Some(volume),
            _ => None,
        }
    }

    /// Lets a device go as soon as nothing is on its way there.
    pub(super) fn close(&mut self, backend: BackendId) {
        let Some(slot) = self.slots.get_mut(&backend.0) else { return };
        slot.leaving = true;
        if slot.in_flight == 0 {
            self.slots.remove(&backend.0);
        }
    }

    /// Gives a file another length.
    pub(super) fn resize(&mut self, backend: BackendId, size: u64) -> io::Result<()> {
        match self.slots.get_mut(&backend.0) {
            Some(Slot { device: Backing::Whole(CardDevice::File(file)), in_flight, cut, .. }) => {
                let is_cut = *in_flight > 0 && (cut.is_some() || size < file.info().capacity);
                file.resize(size)?;
                if is_cut {
                    *cut = Some(Cut { to: cut.map_or(size, |cut| cut.to.min(size)), then: size });
                }
                Ok(())
            }
            _ => Err(io::Error::new(io::ErrorKind::Unsupported, "memory has the length that it has")),
        }
    }

    /// All of them, to be flushed. Files of the card are flushed with the device that they are on.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut CardDevice> {
        self.slots.values_mut().filter_map(|slot| match &mut slot.device {
            Backing::Whole(device) => Some(device),
            Backing::Volume(_) => None,
        })
    }
}

fn in_memory(config: &CardConfig, wanted: &Wanted<'_>) -> Result<CardDevice, NamespaceDeviceError> {
    let (size, memory) = (wanted.size, machine_memory());
    match usize::try_from(size.0).ok().filter(|_| size <= memory) {
        Some(capacity) => Ok(CardDevice::Memory(MemoryDevice::new(capacity, MEMORY_BLOCK))),
        None => {
            let fix = wanted.fix(config, "size", "256MiB");
            Err(NamespaceDeviceError::TooMuchMemory { size, memory, fix })
        }
    }
}

/// A device that is there is used as it is; a file that is not is made, whole before it has its name.
fn on_path(
    config: &CardConfig,
    handle: &Handle,
    path: &Path,
    wanted: &Wanted<'_>,
    is_patient: bool,
) -> Result<FileDevice, NamespaceDeviceError> {
    let options = FileDeviceOptions::default();
    let cannot = |source: OpenError| {
        let (key, example) = match source {
            OpenError::NoSpace { .. } | OpenError::TooSmall { .. } => ("size", "16GiB"),
            _ => ("device", "card/nvme.img"),
        };
        NamespaceDeviceError::Open { source, fix: wanted.fix(config, key, example) }
    };
    let open = |path: &Path| FileDevice::open(handle, path, &options);
    // Once hosts are served, nobody may wait for another program.
    let opened = if is_patient { open_patiently(path, open) } else { open(path) };
    match opened {
        Err(OpenError::Missing(_)) if !wanted.may_make => {
            return Err(NamespaceDeviceError::Lost { path: path.to_owned() });
        }
        Err(OpenError::Missing(_)) if !path.starts_with("/dev") => {}
        opened => return opened.map_err(cannot),
    }
    let unfinished = unfinished_path(path);
    // What a card that died while it made one has left is nobody's.
    let _ = std::fs::remove_file(&unfinished);
    let made = FileDevice::create(handle, &unfinished, wanted.size.0, Space::Sparse, &options);
    let made = made.map_err(|error| match (error, path.parent()) {
        // What is made cannot be missing: its folder is, and that is what people know by name.
        (OpenError::Missing(_), Some(folder)) => cannot(OpenError::Missing(folder.into())),
        (error, _) => cannot(error),
    })?;
    match put_in_place(&unfinished, path) {
        Ok(()) => Ok(made),
        Err(source) => {
            let _ = std::fs::remove_file(&unfinished);
            let fix = wanted.fix(config, "device", "card/nvme.img");
            Err(NamespaceDeviceError::Place { path: path.to_owned(), source, fix })
        }
    }
}

impl Store for Devices {
    fn info(&self, backend: BackendId) -> Option<DeviceInfo> {
        self.slots.get(&backend.0).map(|slot| slot.device.device().info())
    }

    fn submit(&mut self, backend: BackendId, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        match self.slots.get_mut(&backend.0).filter(|slot| !slot.leaving) {
            Some(Slot { cut: Some(_), .. }) => Err(Refused { op, reason: RefusedReason::Busy }),
            Some(slot) => {
                slot.device.device_mut().submit(token, op)?;
                slot.in_flight += 1;
                Ok(())
            }
            None => Err(Refused { op, reason: RefusedReason::Gone }),
        }
    }

    fn poll(&mut self) -> Option<(BackendId, DeviceCompletion)> {
        let mut polled = self.slots.iter_mut();
        let (index, completion, is_over) = polled.find_map(|(index, slot)| {
            let completion = slot.device.device_mut().poll()?;
            slot.in_flight -= 1;
            slot.settle();
            Some((*index, completion, slot.leaving && slot.in_flight == 0))
        })?;
        if is_over {
            self.slots.remove(&index);
        }
        Some((BackendId(index), completion))
    }

    fn next_due(&self) -> Option<Instant> {
        self.slots.values().filter_map(|slot| slot.device.device().next_due()).min()
    }
}

#[cfg(test)]
mod tests {
    use ob_io::{Config as ReactorConfig, Reactor, Wait};
    use ob_memory::Pool;

    use super::*;
    use crate::config::Config;

    #[test]
    fn a_folder_that_is_missing_is_named() {
        let place = tempfile::tempdir().unwrap();
        let reactor = Reactor::new(&ReactorConfig::default()).unwrap();
        let config = Config::parse(Path::new("outboard.toml"), "").unwrap().card();
        let device = NamespaceDevice::Device(FilesDevice::Path(place.path().join("missing/device")));
        let wanted = Wanted { device: &device, size: ByteSize(1 << 20), may_make: true, section: None };
        let NamespaceDevice::Device(on) = &device else { return };
        let opened = Devices::default().open(&config, &reactor.handle(), on, &wanted, false);
        let error = opened.err().unwrap().to_string();
        assert!(error.contains("/missing does not exist") && !error.contains("unfinished"), "{error}");
    }

    #[test]
    fn a_file_that_was_made_shorter_under_load_stays_so() {
        const LEN: u64 = 1 << 20;
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("device");
        let mut reactor = Reactor::new(&ReactorConfig::default()).unwrap();
        let config = Config::parse(Path::new("outboard.toml"), "").unwrap().card();
        let device = NamespaceDevice::Device(FilesDevice::Path(path.clone()));
        let wanted = Wanted { device: &device, size: ByteSize(LEN), may_make: true, section: None };
        let NamespaceDevice::Device(on) = &device else { return };
        let mut devices = Devices::default();
        let backend = devices.open(&config, &reactor.handle(), on, &wanted, false).unwrap();
        // Writes that the kernel gets only when the reactor turns, which is after the file was made shorter.
        let pool = Pool::new(4096, 2);
        for (token, offset) in [(0, LEN - 4096), (1, LEN / 2 - 4096)] {
            let mut from = pool.take().unwrap();
            from.fill(9);
            devices.submit(backend, Token(token), DeviceOp::Write { offset, from, durable: false }).unwrap();
        }
        assert!(devices.resize(backend, 0).is_err());
        devices.submit(backend, Token(5), DeviceOp::Flush).unwrap();
        devices.resize(backend, LEN / 4).unwrap();
        devices.resize(backend, LEN / 2).unwrap();
        let refused = devices.submit(backend, Token(2), DeviceOp::Flush).unwrap_err();
        assert_eq!(refused.reason, RefusedReason::Busy, "those that follow wait");
        let (mut events, mut done, mut lens) = (Vec::new(), 0, Vec::new());
        while done < 3 {
            reactor.turn(Wait::Until(None), &mut events);
            events.clear();
            lens.push(std::fs::metadata(&path).unwrap().len());
            while let Some((_, completion)) = devices.poll() {
                completion.result.unwrap();
                done += 1;
            }
        }
        assert!(lens.contains(&LEN), "the test is about files that have grown again: {lens:?}");
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(devices.info(backend).unwrap().capacity, LEN / 2);
        assert!(bytes.len() as u64 == LEN / 2 && bytes.iter().all(|byte| *byte == 0), "nothing came back");
        devices.submit(backend, Token(3), DeviceOp::Flush).unwrap();
        devices.close(backend);
        let refused = devices.submit(backend, Token(4), DeviceOp::Flush).unwrap_err();
        assert_eq!(refused.reason, RefusedReason::Gone, "nothing new for a device that goes");
    }
}
