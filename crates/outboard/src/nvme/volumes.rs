//! Namespaces on files of the card's own file system, and new sizes of namespaces on any file.
//!
//! ```text
//!   AdminCall ─▶ Work: open or resize a file ── the reactor goes round ──▶ done: serve, or tell hosts ─▶ answer
//! ```
//!
//! The card's files answer when their log is written, others when a thread has made them longer or shorter, and the reactor must
//! not wait for that. One administrator is
//! served at a time; the next waits in its queue.

use std::io;
use std::path::{Path, PathBuf};

use ob_files_card::{FileVolume, LocalFiles, OpeningVolume, VolumeError};
use ob_nvme::driver::Store;
use ob_nvme::target::control::BackendId;
use ob_wire_link::files::FileError;

use super::devices::{Resized, Wanted};
use super::serving::Serving;
use super::shard::Shard;
use super::{NamespaceDeviceError, NvmeError, hints};
use crate::config::{ByteSize, CardConfig, NamespaceDevice};

/// What is under way for an administrator.
pub(super) enum Work {
    /// A file is opened or made for a new namespace.
    Add { subsystem: usize, nsid: u32, device: NamespaceDevice, size: ByteSize, opening: Box<OpeningVolume> },
    /// A namespace's file gets another size.
    Resize { subsystem: usize, nsid: u32, backend: BackendId, blocks: u64, block_len: u64, grows: bool },
}

impl Work {
    pub(super) fn add(files: &LocalFiles, subsystem: usize, nsid: u32, path: &str, size: ByteSize) -> Self {
        let opening = Box::new(OpeningVolume::new(files.another(), path.as_bytes(), Some(size.0)));
        let device = NamespaceDevice::CardFile(path.to_owned());
        Self::Add { subsystem, nsid, device, size, opening }
    }

    /// The subsystem that it is about.
    fn subsystem(&self) -> usize {
        match self {
            Self::Add { subsystem, .. } | Self::Resize { subsystem, .. } => *subsystem,
        }
    }
}

impl Shard {
    /// Goes on with what an administrator waits for; `true` if it is done.
    pub(super) fn finish_waiting(&mut self) -> bool {
        let Some((call, mut work)) = self.waiting.take() else { return false };
        let subsystem = work.subsystem();
        let done = match &mut work {
            Work::Add { nsid, device, size, opening, .. } => {
                opening.poll().map(|opened| self.add_volume(subsystem, *nsid, device.clone(), *size, opened))
            }
            Work::Resize { nsid, backend, blocks, block_len, grows, .. } => {
                match self.driver.store_mut().take_resized(*backend) {
                    // It was removed meanwhile.
                    Resized::Gone => Some(Err(NvmeError::Unknown(*nsid))),
                    Resized::Pending => None,
                    Resized::Done(done) => {
                        let now = self.driver.store().info(*backend).map_or(0, |info| info.capacity);
                        let sizes = (*blocks, now / *block_len, *grows);
                        Some(self.resized(subsystem, *nsid, sizes, done))
                    }
                }
            }
        };
        match done {
            None => {
                self.waiting = Some((call, work));
                false
            }
            Some(done) => {
                self.answer(call, subsystem, done);
                true
            }
        }
    }

    fn add_volume(
        &mut self,
        subsystem: usize,
        nsid: u32,
        device: NamespaceDevice,
        size: ByteSize,
        opened: Result<FileVolume, VolumeError>,
    ) -> Result<(), NvmeError> {
        let wanted = Wanted { device: &device, size, may_make: true, section: None };
        let volume = opened.map_err(|source| cannot_use(&self.config, &wanted, source))?;
        let backend = self.driver.store_mut().adopt(volume);
        let path = PathBuf::from(device.to_string());
        let (mut serving, subsystems) = self.serving();
        let Some(subsystem) = subsystems.get_mut(subsystem) else { return Ok(()) };
        serving.serve_opened(subsystem, nsid, Some(&path), size, (device, backend))
    }

    /// Begins to resize a namespace's file. Nobody may reach beyond its end, so hosts hear of a smaller one first and of a
    /// larger one last.
    pub(super) fn begin_resize(
        &mut self,
        subsystem: usize,
        nsid: u32,
        backend: BackendId,
        (blocks, block_len): (u64, u64),
    ) -> Result<Work, NvmeError> {
        let bytes = blocks * block_len;
        let capacity = self.driver.store().info(backend).map_or(0, |info| info.capacity);
        let grows = bytes > capacity;
        if !grows {
            self.tell_size(subsystem, nsid, blocks)?;
        }
        let waker = self.handle.waker();
        if let Err(error) = self.driver.store_mut().begin_resize(backend, bytes, move || waker.wake()) {
            let fix = hints::of_resizing(&error);
            let sizes = (blocks, capacity / block_len, grows);
            self.resized(subsystem, nsid, sizes, Err((error, fix)))?;
        }
        Ok(Work::Resize { subsystem, nsid, backend, blocks, block_len, grows })
    }

    fn resized(
        &mut self,
        subsystem: usize,
        nsid: u32,
        (blocks, now, grows): (u64, u64, bool),
        resized: Result<(), (io::Error, &'static str)>,
    ) -> Result<(), NvmeError> {
        let Err((source, fix)) = resized else {
            return if grows { self.tell_size(subsystem, nsid, blocks) } else { Ok(()) };
        };
        // Hosts were told of a size that it may not have.
        self.tell_size(subsystem, nsid, now)?;
        Err(NvmeError::Resize { nsid, source, fix })
    }

    fn tell_size(&mut self, subsystem: usize, nsid: u32, blocks: u64) -> Result<(), NvmeError> {
        let key = self.subsystems.get(subsystem).map(|subsystem| subsystem.key);
        let key = key.ok_or(NvmeError::Unknown(nsid))?;
        Ok(self.driver.target_mut().control_mut().resize_namespace(key, nsid, blocks)?)
    }
}

impl Serving<'_> {
    /// Opens what a namespace lies on, or makes it.
    pub(super) fn open(&mut self, wanted: &Wanted<'_>) -> Result<BackendId, NvmeError> {
        let path = match wanted.device {
            NamespaceDevice::Device(device) => {
                return Ok(self.driver.store_mut().open(
                    self.config,
                    self.handle,
                    device,
                    wanted,
                    self.is_starting,
                )?);
            }
            NamespaceDevice::CardFile(path) => path,
        };
        // Files in memory are gone with the card's last life, and a namespace in memory comes back empty too.
        let make = (wanted.may_make || self.is_passing(wanted.device)).then_some(wanted.size.0);
        let files = self.files.ok_or_else(|| NvmeError::FilesElsewhere(path.clone()))?;
        let mut opening = OpeningVolume::new(files.another(), path.as_bytes(), make);
        loop {
            if let Some(opened) = opening.poll() {
                let volume = opened.map_err(|source| cannot_use(self.config, wanted, source))?;
                return Ok(self.driver.store_mut().adopt(volume));
            }
            match &mut self.wait {
                Some(wait) => wait(),
                None => return Err(cannot_use(self.config, wanted, FileError::Busy.into())),
            }
        }
    }
}

fn cannot_use(config: &CardConfig, wanted: &Wanted<'_>, source: VolumeError) -> NvmeError {
    let path = match wanted.device {
        NamespaceDevice::CardFile(path) => path.clone(),
        NamespaceDevice::Device(device) => device.to_string(),
    };
    if source == VolumeError::Missing {
        let path = Path::new(&wanted.device.to_string()).to_owned();
        return NamespaceDeviceError::Lost { path }.into();
    }
    let fix = match source {
        VolumeError::Files(FileError::InUse) => "`outboard namespace list` shows which one has it".to_owned(),
        VolumeError::Files(FileError::NoSpace) => {
            "`outboard files df` shows the space, `outboard files rm` makes room".to_owned()
        }
        VolumeError::TooSmall | VolumeError::Files(FileError::TooLarge) => wanted.fix(config, "size", "1GiB"),
        _ => wanted.fix(config, "device", "file:/volumes/a"),
    };
    NamespaceDeviceError::Volume { path, source, fix }.into()
}
