//! Which device a file system is on, and where on it.

use std::io;
use std::path::Path;

use super::{ExtentsError, SECTOR_LEN};
use crate::System;
use crate::nvme::numbers_of;
use crate::system::{read_number, read_text};

/// A whole block device, and the part of it that a file system is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// The whole device, as in `/sys/block`: `nvme0n1`.
    pub name: String,
    /// What the file system is on: the same, or a partition (`nvme0n1p1`).
    pub partition_name: String,
    /// The whole device's numbers.
    pub major: u32,
    /// The whole device's numbers.
    pub minor: u32,
    /// Where the partition begins, in bytes; zero without one.
    pub partition_start: u64,
    /// Bytes of the whole device.
    pub len: u64,
}

/// On which devices a file system may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllowedDevices {
    /// NVMe namespaces, and partitions of them.
    #[default]
    Namespaces,
    /// Any single device, loop devices too: for tests, which have no namespaces. What is made of several stays refused.
    SingleDevices,
}

impl BlockDevice {
    /// The device with these numbers.
    pub(super) fn find(
        system: &System,
        major: u32,
        minor: u32,
        allowed: AllowedDevices,
    ) -> Result<Self, ExtentsError> {
        let link = system.sys.join("dev/block").join(format!("{major}:{minor}"));
        let folder = read(&link, Path::canonicalize)?;
        let partition_name = name_of(&folder)?;
        let is_partition = folder.join("partition").exists();
        let (whole, partition_start) = if is_partition {
            let start = read(&folder.join("start"), read_number)?.checked_mul(SECTOR_LEN);
            let whole = folder.parent().ok_or(ExtentsError::Impossible("a partition of nothing"))?;
            (whole.to_owned(), start.ok_or(ExtentsError::Impossible("a partition begins past any device"))?)
        } else {
            (folder, 0)
        };
        let name = name_of(&whole)?;
        check_kind(&whole, &name, allowed)?;
        let numbers = read(&whole.join("dev"), read_text)?;
        let (major, minor) = numbers
            .split_once(':')
            .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)))
            .ok_or(ExtentsError::Impossible("a device without numbers"))?;
        let len = read(&whole.join("size"), read_number)?.checked_mul(SECTOR_LEN);
        let len = len.ok_or(ExtentsError::Impossible("a device longer than any"))?;
        Ok(Self { name, partition_name, major, minor, partition_start, len })
    }
}

fn read<T>(path: &Path, how: impl FnOnce(&Path) -> io::Result<T>) -> Result<T, ExtentsError> {
    how(path).map_err(|source| ExtentsError::Read { path: path.to_owned(), source })
}

fn name_of(folder: &Path) -> Result<String, ExtentsError> {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned).ok_or(ExtentsError::Impossible("a device without a name"))
}

fn check_kind(folder: &Path, name: &str, allowed: AllowedDevices) -> Result<(), ExtentsError> {
    const DIRECTLY: &str = "put it on the namespace itself, or on a partition of it";
    let refused = |kind, hint| Err(ExtentsError::Device { name: name.to_owned(), kind, hint });
    if folder.join("dm").is_dir() {
        let id = read_text(&folder.join("dm/uuid")).unwrap_or_default();
        let kind = match id.split('-').next() {
            Some("LVM") => "a logical volume (LVM)",
            Some("CRYPT") => "an encrypted device (dm-crypt)",
            Some("mpath") => "a multipath device (dm-multipath)",
            _ => "a mapped device (dm)",
        };
        return refused(kind, DIRECTLY);
    }
    if folder.join("md").is_dir() || name.starts_with("md") {
        return refused("a RAID (md)", DIRECTLY);
    }
    if folder.join("bcache").is_dir() || name.starts_with("bcache") {
        return refused("a cached device (bcache)", DIRECTLY);
    }
    if numbers_of(name).is_some() || allowed == AllowedDevices::SingleDevices {
        return Ok(());
    }
    if name.starts_with("loop") {
        return refused("a loop device", "put it on a namespace: this one is a file of another file system");
    }
    refused("no NVMe namespace", "pushdown reaches files on namespaces that the card serves")
}

#[cfg(test)]
mod tests {
    // A test that cannot go on should say where.
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    /// A device of a made-up sysfs: its numbers, its folder, files in it.
    fn add(root: &Path, numbers: &str, folder: &str, files: &[(&str, &str)]) {
        let devices = root.join("devices").join(folder);
        for (path, text) in [("dev", numbers), ("size", "8192")].iter().chain(files) {
            let path = devices.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        fs::create_dir_all(root.join("dev/block")).unwrap();
        symlink(format!("../../devices/{folder}"), root.join("dev/block").join(numbers)).unwrap();
    }

    #[test]
    fn a_partition_begins_somewhere() {
        let root = tempfile::tempdir().unwrap();
        let system = System { sys: root.path().to_owned(), ..System::default() };
        add(root.path(), "259:0", "nvme-subsys0/nvme0n1", &[]);
        add(root.path(), "259:1", "nvme-subsys0/nvme0n1/nvme0n1p1", &[("partition", "1"), ("start", "2048")]);
        let find = |minor| BlockDevice::find(&system, 259, minor, AllowedDevices::Namespaces);
        let whole = find(0).unwrap();
        assert_eq!((whole.name.as_str(), whole.partition_start, whole.len), ("nvme0n1", 0, 8192 * 512));
        let part = find(1).unwrap();
        assert_eq!((part.name.as_str(), part.partition_name.as_str()), ("nvme0n1", "nvme0n1p1"));
        assert_eq!((part.partition_start, part.minor), (2048 * 512, 0));
        assert!(matches!(find(2), Err(ExtentsError::Read { .. })));
        for wrong in ["", "x", "18446744073709551615"] {
            fs::write(root.path().join("devices/nvme-subsys0/nvme0n1/nvme0n1p1/start"), wrong).unwrap();
            assert!(find(1).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_no_namespace_is_refused_by_name() {
        let root = tempfile::tempdir().unwrap();
        let system = System { sys: root.path().to_owned(), ..System::default() };
        type Files = &'static [(&'static str, &'static str)];
        let kinds: [(&str, Files, &str, bool); 8] = [
            ("dm-0", &[("dm/uuid", "LVM-abc")], "LVM", false),
            ("dm-1", &[("dm/uuid", "CRYPT-LUKS2-abc")], "dm-crypt", false),
            ("dm-2", &[("dm/name", "x")], "a mapped device (dm)", false),
            ("md0", &[("md/level", "raid1")], "RAID", false),
            ("bcache0", &[("bcache/state", "clean")], "bcache", false),
            ("loop0", &[], "loop", true),
            ("vda", &[], "no NVMe namespace", true),
            ("nvme0c0n1", &[], "no NVMe namespace", true),
        ];
        for (minor, (name, files, said, is_single)) in kinds.into_iter().enumerate() {
            add(root.path(), &format!("9:{minor}"), &format!("virtual/block/{name}"), files);
            let error = BlockDevice::find(&system, 9, minor as u32, AllowedDevices::Namespaces).unwrap_err();
            assert!(error.to_string().contains(said) && error.to_string().contains(name), "{error}");
            let loosely = BlockDevice::find(&system, 9, minor as u32, AllowedDevices::SingleDevices);
            assert_eq!(loosely.is_ok(), is_single, "{name}");
        }
    }
}
