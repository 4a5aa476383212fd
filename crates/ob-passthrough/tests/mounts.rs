//! File systems in images, mounted for a test. That takes root and loop devices.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ob_passthrough::System;
use ob_passthrough::extents::{AllowedDevices, Extents, ExtentsError, ExtentsOptions, Located};
use tempfile::TempDir;

/// Where a test's partition begins: not at a block of the file system's own, so that forgetting it shows.
pub(crate) const PARTITION_START: u64 = 2048 * 512;

const IMAGE_LEN: u64 = 400 << 20;

/// A mounted image, which is unmounted and gone when this is dropped.
pub(crate) struct Mounted {
    loop_device: String,
    point: PathBuf,
    image: File,
    // Removed last.
    _folder: TempDir,
}

/// Whether a command did what it should; its words otherwise.
fn run(command: &str, arguments: &[&str]) -> Result<String, String> {
    let output =
        Command::new(command).args(arguments).output().map_err(|error| format!("{command}: {error}"))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() {
        Ok(said(&output.stdout))
    } else {
        Err(format!("{command}: {}", said(&output.stderr)))
    }
}

impl Mounted {
    /// Makes a file system with `mkfs` and its arguments and mounts it with options; none, loudly, where that is impossible.
    pub(crate) fn new(mkfs: &[&str], options: &str, has_partition: bool) -> Option<Self> {
        match Self::try_new(mkfs, &[], options, has_partition) {
            Ok(mounted) => Some(mounted),
            Err(reason) => {
                ob_plant::not_tested(format!("no file system can be mounted here: {reason}"));
                None
            }
        }
    }

    /// As `new`, with a command run on the device before it is mounted.
    pub(crate) fn try_new(
        mkfs: &[&str],
        before_mount: &[&str],
        options: &str,
        has_partition: bool,
    ) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let path = folder.path().join("image");
        let image = File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        image.set_len(IMAGE_LEN).unwrap();
        let loop_device = run("losetup", &["--find", "--show", path.to_str().unwrap()])?;
        let point = folder.path().join("mount");
        std::fs::create_dir(&point).unwrap();
        // From here on dropping it cleans up.
        let mounted = Self { loop_device, point, image, _folder: folder };
        let device = if has_partition {
            // Told to the kernel: it may know no kind of partition table.
            let sectors = (IMAGE_LEN - PARTITION_START) / 512;
            let (start, len) = ((PARTITION_START / 512).to_string(), sectors.to_string());
            run("addpart", &[&mounted.loop_device, "1", &start, &len])?;
            format!("{}p1", mounted.loop_device)
        } else {
            mounted.loop_device.clone()
        };
        run(mkfs[0], &[&mkfs[1..], &[&device]].concat())?;
        if let Some((command, arguments)) = before_mount.split_first() {
            run(command, &[arguments, &[&device]].concat())?;
        }
        let options = if options.is_empty() { "rw" } else { options };
        run("mount", &["-o", options, &device, mounted.point.to_str().unwrap()])?;
        Ok(mounted)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.point.join(name)
    }

    pub(crate) fn extents(&self, path: &Path) -> Result<Extents, ExtentsError> {
        extents(path)
    }

    /// The file's bytes by its map, from the image.
    pub(crate) fn read_by(&self, extents: &Extents) -> Vec<u8> {
        let mut bytes = vec![0; extents.len as usize];
        let mut offset = 0;
        loop {
            match extents.locate(offset) {
                Located::At { device_offset, len } => {
                    let piece = &mut bytes[offset as usize..][..len as usize];
                    self.image.read_exact_at(piece, device_offset).unwrap();
                    offset += len;
                }
                Located::Hole { len } => offset += len,
                Located::End => return bytes,
            }
        }
    }
}

/// A file's map, whatever single device it is on.
pub(crate) fn extents(path: &Path) -> Result<Extents, ExtentsError> {
    let options = ExtentsOptions { devices: AllowedDevices::SingleDevices, ..ExtentsOptions::default() };
    Extents::of(File::open(path).unwrap().as_fd(), &System::default(), &options)
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let point = self.point.to_str().unwrap_or_default();
        // A process that another test is about to start has this one's files open until it is what was started.
        let is_unmounted = (0..200).any(|_| {
            let outcome = run("umount", &[point]);
            let is_busy = matches!(&outcome, Err(reason) if reason.contains("busy"));
            if is_busy {
                std::thread::sleep(Duration::from_millis(10));
            }
            !is_busy
        });
        if !is_unmounted {
            let _ = run("umount", &["--lazy", point]);
        }
        let _ = run("delpart", &[&self.loop_device, "1"]);
        let _ = run("losetup", &["--detach", &self.loop_device]);
    }
}
