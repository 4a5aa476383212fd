//! Which file system a file is on, and how it is mounted.

use rustix::fs::{Statx, StatxFlags};

use super::{BlockDevice, ExtentsError};
use crate::System;
use crate::system::read_text;

/// File systems whose files can be read past them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSystem {
    Ext4,
    Xfs,
}

/// What the kernel's table says of a file's mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// The file system's name.
    kind: String,
    /// Options of the file system, not of this mount of it.
    options: String,
}

impl Mount {
    pub(super) fn of(system: &System, stat: &Statx) -> Result<Self, ExtentsError> {
        if stat.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
            return Err(ExtentsError::NotMounted);
        }
        let path = system.proc.join("self/mountinfo");
        let table = read_text(&path).map_err(|source| ExtentsError::Read { path, source })?;
        let device = format!("{}:{}", stat.stx_dev_major, stat.stx_dev_minor);
        Self::find(&table, stat.stx_mnt_id, &device)
    }

    /// A line is `id parent major:minor root point options [fields…] - kind source options`. Spaces within are escaped.
    fn find(table: &str, id: u64, device: &str) -> Result<Self, ExtentsError> {
        let lines = table.lines().filter_map(|line| line.split_once(" - "));
        let mut of_mount =
            lines.filter(|(mount, _)| mount.split(' ').next().is_some_and(|text| text.parse() == Ok(id)));
        let (mount, file_system) = of_mount.next().ok_or(ExtentsError::NotMounted)?;
        let mut words = file_system.splitn(3, ' ');
        let kind = words.next().unwrap_or_default().to_owned();
        let options = words.nth(1).unwrap_or_default().to_owned();
        let found = Self { kind, options };
        // Where a file says another device than its mount, as on btrfs, there is more than one behind it.
        if found.file_system().is_ok() && mount.split(' ').nth(2) != Some(device) {
            return Err(ExtentsError::Impossible("the file's device is not that of its mount"));
        }
        Ok(found)
    }

    pub(super) fn file_system(&self) -> Result<FileSystem, ExtentsError> {
        let hint = match self.kind.as_str() {
            "ext4" => return Ok(FileSystem::Ext4),
            "xfs" => return Ok(FileSystem::Xfs),
            "btrfs" | "bcachefs" | "zfs" => {
                "it has devices below it, checksums and data that moves; put the files on ext4 or xfs"
            }
            "overlay" => "name the file in the layer below, if that is ext4 or xfs",
            "ext2" | "ext3" => "mount it as ext4",
            _ => "put the files on ext4 or xfs",
        };
        Err(ExtentsError::FileSystem { name: self.kind.clone(), hint })
    }

    /// Whether data of an ext4 goes through its journal. The table of mounts does not show what is the default of this file
    /// system (`tune2fs -o journal_data`); what it shows of itself has everything.
    pub(super) fn journals_data(&self, system: &System, device: &BlockDevice) -> bool {
        let is_it = |option: &str| option.trim() == "data=journal";
        let own = system.proc.join("fs/ext4").join(&device.partition_name).join("options");
        let own = read_text(&own).unwrap_or_default();
        self.options.split(',').any(is_it) || own.lines().any(is_it)
    }
}

#[cfg(test)]
mod tests {
    // A test that cannot go on should say where.
    #![allow(clippy::unwrap_used)]

    use super::*;

    const TABLE: &str = "\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
45 27 259:1 / /mnt\\040a\\040-\\040b rw,relatime shared:1 master:2 - xfs /dev/nvme0n1p1 rw,inode64
46 27 259:2 / /j rw - ext4 /dev/nvme0n1p2 rw,data=journal,x
47 27 0:33 /sub /b rw - btrfs /dev/vdb rw,subvol=/data=journal
4 27 259:9 / /short rw - xfs
garbage
48 27 259:3 / /v rw - overlay overlay rw,lowerdir=/data";

    fn find(id: u64, device: &str) -> Result<Mount, ExtentsError> {
        Mount::find(TABLE, id, device)
    }

    fn device() -> BlockDevice {
        BlockDevice {
            name: "vda".into(),
            partition_name: "vda".into(),
            major: 254,
            minor: 0,
            partition_start: 0,
            len: 0,
        }
    }

    #[test]
    fn a_mount_is_found_by_its_id() {
        assert_eq!(find(27, "254:0").unwrap().file_system().unwrap(), FileSystem::Ext4);
        assert_eq!(find(45, "259:1").unwrap().file_system().unwrap(), FileSystem::Xfs);
        assert_eq!(find(4, "259:9").unwrap().options, "");
        assert!(matches!(find(5, "254:0"), Err(ExtentsError::NotMounted)));
        assert!(matches!(find(27, "254:1"), Err(ExtentsError::Impossible(_))));
    }

    #[test]
    fn other_file_systems_are_refused_by_name() {
        for (id, expected) in [(47, "btrfs"), (48, "overlay"), (22, "proc")] {
            let error = find(id, "0:0").unwrap().file_system().unwrap_err();
            assert!(matches!(&error, ExtentsError::FileSystem { name, .. } if name == expected), "{error}");
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn a_journal_of_data_is_seen() {
        let root = tempfile::tempdir().unwrap();
        let system = System { proc: root.path().to_owned(), ..System::default() };
        assert!(find(46, "259:2").unwrap().journals_data(&system, &device()));
        let plain = find(27, "254:0").unwrap();
        assert!(!plain.journals_data(&system, &device()));
        let folder = root.path().join("fs/ext4/vda");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("options"), "rw\ndata=ordered\n").unwrap();
        assert!(!plain.journals_data(&system, &device()));
        std::fs::write(folder.join("options"), "rw\ndata=journal\n").unwrap();
        assert!(plain.journals_data(&system, &device()), "a default that the table does not show");
    }
}
