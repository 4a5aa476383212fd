//! The devices behind namespaces.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use ob_core::{Device, DeviceCompletion, DeviceInfo, DeviceOp, Instant, Refused, RefusedReason, Token};
use ob_files_card::{FileVolume, VolumeError};
use ob_io::{FileDevice, FileDeviceOptions, Handle, MemoryDevice, OpenError, Resize, ResizeOutcome, Space};
use ob_nvme::driver::Store;
use ob_nvme::target::control::BackendId;

use super::hints;
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
    /// Its blocks are larger than those of the namespace.
    #[error(
        "{device} is read and written by {device_block} bytes at least, and its namespace has blocks of {block}\n\
         hint: move it to a disk or file system with blocks of {block} bytes or less"
    )]
    Blocks {
        /// The device.
        device: String,
        /// Bytes of its blocks.
        device_block: u32,
        /// Bytes of the namespace's.
        block: u32,
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
    /// Those among them that make writes durable.
    durable_in_flight: usize,
    /// No namespace lies on it any more; it goes with its last operation.
    leaving: bool,
    /// Its file gets another length.
    resizing: Option<Resizing>,
    /// A flush has failed, and every later one will.
    has_failed: bool,
}

/// What tells a reactor that there is something to take.
type Wake = Box<dyn FnOnce() + Send>;

/// A file on its way to another length, which a thread of its own gives it: a file system takes its time to give much space
/// back, and the reactor has others to serve.
struct Resizing {
    /// What is to be done when nothing is on its way to the file that it has to wait for.
    waiting: Option<(Resize, Wake)>,
    /// What is on its way may reach beyond a shorter end, and would make the file longer again. So it is waited for, and others
    /// wait until the file has its length.
    shrinks: bool,
    done: (Sender<ResizeOutcome>, Receiver<ResizeOutcome>),
}

impl Resizing {
    /// How many operations have to be over before it runs, of all in flight and those among them that make writes durable.
    fn in_the_way(&self, in_flight: usize, durable: usize) -> usize {
        if self.shrinks { in_flight } else { durable }
    }

    fn begin(&mut self) -> io::Result<()> {
        let Some((resize, wake)) = self.waiting.take() else { return Ok(()) };
        let done = self.done.0.clone();
        let run = move || {
            let outcome = resize.run();
            // Whoever hears of it may close the file, and means the last that has it open.
            drop(resize);
            // The namespace may be gone meanwhile.
            let _ = done.send(outcome);
            wake();
        };
        std::thread::Builder::new().name("resize".to_owned()).spawn(run).map(|_| ())
    }
}

/// What has become of a resize.
pub(super) enum Resized {
    /// There is no such device any more.
    Gone,
    /// It is under way.
    Pending,
    /// It is done, or why not and what to do about that.
    Done(Result<(), (io::Error, &'static str)>),
}

impl Slot {
    /// An operation is done: a file that waited for the last of those that are in its way gets its length.
    fn settle(&mut self) {
        let Some(resizing) = &mut self.resizing else { return };
        if resizing.in_the_way(self.in_flight, self.durable_in_flight) > 0 {
            return;
        }
        if let Err(error) = resizing.begin() {
            let capacity = self.device.device().info().capacity;
            let _ = resizing.done.0.send(ResizeOutcome::not_run(capacity, error));
        }
    }

    /// Whether an operation has to wait until the file has its length. A resize makes it durable, and would be the one that the
    /// kernel tells of lost writes, in place of a flush at the same time.
    fn holds_up(&self, op: &DeviceOp) -> bool {
        self.resizing.as_ref().is_some_and(|resizing| resizing.shrinks || makes_durable(op))
    }
}

fn makes_durable(op: &DeviceOp) -> bool {
    matches!(op, DeviceOp::Flush | DeviceOp::Write { durable: true, .. })
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
        let (in_flight, durable_in_flight, leaving, resizing) = (0, 0, false, None);
        let slot = Slot { device, in_flight, durable_in_flight, leaving, resizing, has_failed: false };
        self.slots.insert(backend, slot);
        BackendId(backend)
    }

    /// The file of the card's file system behind a namespace, if it lies on one.
    pub(super) fn volume(&mut self, backend: BackendId) -> Option<&mut FileVolume> {
        match self.slots.get_mut(&backend.0).map(|slot| &mut slot.device) {
            Some(Backing::Volume(volume)) => Some(volume),
            _ => None,
        }
    }

    /// Whether a device keeps nothing any more that is written to it.
    pub(super) fn has_failed(&self, backend: BackendId) -> bool {
        self.slots.get(&backend.0).is_some_and(|slot| slot.has_failed)
    }

    /// Lets a device go as soon as nothing is on its way there.
    pub(super) fn close(&mut self, backend: BackendId) {
        let Some(slot) = self.slots.get_mut(&backend.0) else { return };
        slot.leaving = true;
        if slot.in_flight == 0 {
            self.slots.remove(&backend.0);
        }
    }

    /// Begins to give a file another length; `wake` is called when [`Devices::take_resized`] may tell of its end.
    pub(super) fn begin_resize(
        &mut self,
        backend: BackendId,
        size: u64,
        wake: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let Some(slot) = self.slots.get_mut(&backend.0) else { return Err(io::ErrorKind::NotFound.into()) };
        match &mut slot.device {
            Backing::Volume(volume) => {
                volume.begin_resize(size);
                Ok(())
            }
            Backing::Whole(CardDevice::File(file)) => {
                let waiting: (Resize, Wake) = (file.resize(size)?, Box::new(wake));
                let shrinks = size < file.info().capacity;
                let mut wanted = Resizing { waiting: Some(waiting), shrinks, done: channel() };
                if wanted.in_the_way(slot.in_flight, slot.durable_in_flight) == 0 {
                    wanted.begin()?;
                }
                slot.resizing = Some(wanted);
                Ok(())
            }
            Backing::Whole(_) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "memory has the length that it has"))
            }
        }
    }

    /// What has become of the last resize, told once.
    pub(super) fn take_resized(&mut self, backend: BackendId) -> Resized {
        let Some(slot) = self.slots.get_mut(&backend.0) else { return Resized::Gone };
        match &mut slot.device {
            Backing::Volume(volume) => {
                volume.sort_answers();
                match volume.take_resized() {
                    None => Resized::Pending,
                    Some(done) => Resized::Done(
                        done.map_err(|error| (io::Error::other(error), hints::of_resizing_volume(error))),
                    ),
                }
            }
            Backing::Whole(device) => {
                let done = slot.resizing.as_ref().and_then(|resizing| resizing.done.1.try_recv().ok());
                let Some(outcome) = done else { return Resized::Pending };
                slot.resizing = None;
                let CardDevice::File(file) = device else { return Resized::Gone };
                Resized::Done(file.resized(outcome).map_err(|error| {
                    let fix = hints::of_resizing(&error);
                    (error, fix)
                }))
            }
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
            Some(slot) if slot.holds_up(&op) => Err(Refused { op, reason: RefusedReason::Busy }),
            Some(slot) => {
                let is_durable = makes_durable(&op);
                slot.device.device_mut().submit(token, op)?;
                slot.in_flight += 1;
                slot.durable_in_flight += usize::from(is_durable);
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
            slot.durable_in_flight -= usize::from(makes_durable(&completion.op));
            slot.has_failed |= matches!((&completion.op, &completion.result), (DeviceOp::Flush, Err(_)));
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

    /// Waits for a resize, which a thread is at.
    fn resized(devices: &mut Devices, backend: BackendId, wakes: &Receiver<()>) {
        wakes.recv().unwrap();
        match devices.take_resized(backend) {
            Resized::Done(done) => done.unwrap(),
            Resized::Gone | Resized::Pending => panic!("it is over"),
        }
    }

    #[test]
    fn a_file_is_made_shorter_by_another_thread_and_when_nothing_is_on_its_way() {
        const LEN: u64 = 1 << 20;
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("device");
        let len = || std::fs::metadata(&path).unwrap().len();
        let mut reactor = Reactor::new(&ReactorConfig::default()).unwrap();
        let config = Config::parse(Path::new("outboard.toml"), "").unwrap().card();
        let device = NamespaceDevice::Device(FilesDevice::Path(path.clone()));
        let wanted = Wanted { device: &device, size: ByteSize(LEN), may_make: true, section: None };
        let NamespaceDevice::Device(on) = &device else { return };
        let mut devices = Devices::default();
        let backend = devices.open(&config, &reactor.handle(), on, &wanted, false).unwrap();
        // Writes that the kernel gets only when the reactor turns: after a file that was made shorter at once.
        let pool = Pool::new(4096, 2);
        for (token, offset) in [(0, LEN - 4096), (1, LEN / 2 - 4096)] {
            let mut from = pool.take().unwrap();
            from.fill(9);
            let op = DeviceOp::Write { offset, from: from.into(), durable: false };
            devices.submit(backend, Token(token), op).unwrap();
        }
        let (woken, wakes) = channel();
        let waker = || {
            let woken = woken.clone();
            move || _ = woken.send(())
        };
        assert!(devices.begin_resize(backend, 0, waker()).is_err());
        devices.begin_resize(backend, LEN / 2, waker()).unwrap();
        let refused = devices.submit(backend, Token(2), DeviceOp::Flush).unwrap_err();
        assert_eq!(refused.reason, RefusedReason::Busy, "those that follow wait");
        let (mut events, mut done) = (Vec::new(), 0);
        while done < 2 {
            assert_eq!(len(), LEN, "one that is on its way could make it longer again");
            reactor.turn(Wait::Until(None), &mut events);
            events.clear();
            while let Some((_, completion)) = devices.poll() {
                completion.result.unwrap();
                done += 1;
            }
        }
        resized(&mut devices, backend, &wakes);
        assert_eq!((len(), devices.info(backend).unwrap().capacity), (LEN / 2, LEN / 2));
        // One that becomes longer keeps nobody waiting but those who make writes durable.
        devices.submit(backend, Token(3), DeviceOp::Flush).unwrap();
        devices.begin_resize(backend, LEN, waker()).unwrap();
        let write = |durable| DeviceOp::Write { offset: 0, from: pool.take().unwrap().into(), durable };
        for op in [DeviceOp::Flush, write(true)] {
            let refused = devices.submit(backend, Token(4), op).unwrap_err();
            assert_eq!(refused.reason, RefusedReason::Busy);
        }
        devices.submit(backend, Token(4), write(false)).unwrap();
        assert_eq!(len(), LEN / 2, "a flush is on its way, and must itself hear of writes that are lost");
        while done < 4 {
            reactor.turn(Wait::Until(None), &mut events);
            events.clear();
            while let Some((_, completion)) = devices.poll() {
                completion.result.unwrap();
                done += 1;
            }
        }
        resized(&mut devices, backend, &wakes);
        devices.submit(backend, Token(5), DeviceOp::Flush).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((bytes.len() as u64, devices.info(backend).unwrap().capacity), (LEN, LEN));
        assert!(bytes[LEN as usize / 2..].iter().all(|byte| *byte == 0), "nothing came back");
        devices.close(backend);
        let refused = devices.submit(backend, Token(6), DeviceOp::Flush).unwrap_err();
        assert_eq!(refused.reason, RefusedReason::Gone, "nothing new for a device that goes");
    }
}
