//! What sysfs tells of a namespace: its generic device, its subsystem, the controllers that lead to it.
//!
//! ```text
//!   with multipath:     …/nvme-subsys0/{nvme0n1, ng0n1, subsysnqn, nvme0 ─▶ …/ctl/nvme0}    …/ctl/nvme0/nvme0c0n1: a path
//!   without:            …/ctl/nvme0/{nvme0n1, ng0n1, subsysnqn, transport}
//! ```

use std::io;
use std::path::{Path, PathBuf};

use crate::System;
use crate::system::{read_number, read_text};

/// A namespace that this kernel has connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// As in `/sys/block`: `nvme0n1`.
    pub name: String,
    /// Its block device.
    pub block_path: PathBuf,
    /// Its generic character device, which takes commands.
    pub generic_path: PathBuf,
    /// Its id in the subsystem.
    pub nsid: u32,
    /// Its subsystem.
    pub subsystem_nqn: String,
    /// The controllers that lead to it, one a path. With more than one the kernel chooses for each command, and two commands
    /// that belong together may go to different ones.
    pub controllers: Vec<Controller>,
    /// Bytes of a logical block.
    pub block_len: u32,
}

/// A controller of this kernel's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// As in `/sys/class/nvme`: `nvme0`.
    pub name: String,
    /// `tcp`, `rdma`, `fc`, `loop`, `pcie`.
    pub transport: String,
    /// Where it is, in the kernel's words: `traddr=…,trsvcid=…`.
    pub address: String,
}

/// Why a namespace was not found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// A block device of some other kind.
    #[error("{name} is no NVMe namespace")]
    NoNamespace {
        /// The device.
        name: String,
    },
    /// The kernel offers no generic device for it.
    #[error("{name} has no generic device: a kernel before 5.13, or a command set that it does not know")]
    NoGeneric {
        /// The device.
        name: String,
    },
    /// Something is not where the kernel has it.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl Namespace {
    /// The namespace with this block device, by its name in `/sys/block`.
    pub fn find(system: &System, name: &str) -> Result<Self, FindError> {
        let numbers = numbers_of(name).ok_or_else(|| FindError::NoNamespace { name: name.to_owned() })?;
        let folder = read(&system.sys.join("block").join(name), |path| path.canonicalize())?;
        Self::at(system, name, numbers, &folder)
    }

    fn at(system: &System, name: &str, numbers: (u32, u32), folder: &Path) -> Result<Self, FindError> {
        let no_namespace = || FindError::NoNamespace { name: name.to_owned() };
        let above = folder.parent().ok_or_else(no_namespace)?;
        let generic = name.replacen("nvme", "ng", 1);
        if !above.join(&generic).is_dir() {
            return Err(FindError::NoGeneric { name: name.to_owned() });
        }
        let above_name = above.file_name().and_then(|name| name.to_str()).ok_or_else(no_namespace)?;
        let controllers = if above_name.starts_with("nvme-subsys") {
            controllers_of(above, numbers)?
        } else {
            vec![controller(above_name, above)?]
        };
        let nsid = read(&folder.join("nsid"), read_number)?;
        let block_len = read(&folder.join("queue/logical_block_size"), read_number)?;
        Ok(Self {
            name: name.to_owned(),
            block_path: system.dev.join(name),
            generic_path: system.dev.join(generic),
            nsid: u32::try_from(nsid).map_err(|_| no_namespace())?,
            subsystem_nqn: read(&above.join("subsysnqn"), read_text)?,
            controllers,
            block_len: u32::try_from(block_len).map_err(|_| no_namespace())?,
        })
    }

    /// Whether every way to it is NVMe/TCP.
    #[must_use]
    pub fn is_tcp(&self) -> bool {
        !self.controllers.is_empty()
            && self.controllers.iter().all(|controller| controller.transport == "tcp")
    }
}

fn read<T>(path: &Path, how: impl FnOnce(&Path) -> io::Result<T>) -> Result<T, FindError> {
    how(path).map_err(|source| FindError::Read { path: path.to_owned(), source })
}

/// The two numbers in `nvme0n1`; neither partitions (`nvme0n1p1`) nor hidden paths (`nvme0c0n1`) have just these.
pub(crate) fn numbers_of(name: &str) -> Option<(u32, u32)> {
    let (first, second) = name.strip_prefix("nvme")?.split_once('n')?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?;
    Some((digits(first)?, digits(second)?))
}

/// The controllers of a subsystem that have a path to the namespace. Where the kernel hides paths, all of them: too many refuse
/// what too few would let through.
fn controllers_of(subsystem: &Path, (first, second): (u32, u32)) -> Result<Vec<Controller>, FindError> {
    let mut with_path = Vec::new();
    let mut all = Vec::new();
    for name in names_in(subsystem)? {
        let is_controller = name
            .strip_prefix("nvme")
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()));
        if !is_controller {
            continue;
        }
        let folder = subsystem.join(&name);
        let found = controller(&name, &folder)?;
        let (prefix, suffix) = (format!("nvme{first}c"), format!("n{second}"));
        if names_in(&folder)?.iter().any(|name| {
            name.strip_prefix(&prefix)
                .and_then(|rest| rest.strip_suffix(&suffix))
                .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
        }) {
            with_path.push(found.clone());
        }
        all.push(found);
    }
    Ok(if with_path.is_empty() { all } else { with_path })
}

fn controller(name: &str, folder: &Path) -> Result<Controller, FindError> {
    Ok(Controller {
        name: name.to_owned(),
        transport: read(&folder.join("transport"), read_text)?,
        // Not every transport has one.
        address: read_text(&folder.join("address")).unwrap_or_default(),
    })
}

/// The names in a folder, in order.
fn names_in(folder: &Path) -> Result<Vec<String>, FindError> {
    let entries = read(folder, |path| path.read_dir()?.collect::<io::Result<Vec<_>>>())?;
    let mut names: Vec<_> = entries.iter().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    // A test that cannot go on should say where.
    #![allow(clippy::unwrap_used)]

    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn put(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
    }

    fn system(root: &Path) -> System {
        System { sys: root.join("sys"), proc: root.join("proc"), dev: "/dev".into() }
    }

    const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:1";

    /// A subsystem with two controllers, of which both lead to the first namespace and one to the second.
    fn multipath(root: &Path) -> System {
        let subsystem = "sys/devices/virtual/nvme-subsystem/nvme-subsys3";
        put(
            root,
            &[
                (&format!("{subsystem}/subsysnqn"), NQN),
                (&format!("{subsystem}/nvme3n1/nsid"), "1"),
                (&format!("{subsystem}/nvme3n1/queue/logical_block_size"), "4096"),
                (&format!("{subsystem}/ng3n1/dev"), "238:0"),
                (&format!("{subsystem}/nvme3n2/nsid"), "17"),
                (&format!("{subsystem}/nvme3n2/queue/logical_block_size"), "512"),
                (&format!("{subsystem}/ng3n2/dev"), "238:1"),
                ("sys/devices/virtual/nvme-fabrics/ctl/nvme4/transport", "tcp"),
                ("sys/devices/virtual/nvme-fabrics/ctl/nvme4/address", "traddr=127.0.0.1,trsvcid=4420"),
                ("sys/devices/virtual/nvme-fabrics/ctl/nvme4/nvme3c4n1/size", "1"),
                ("sys/devices/virtual/nvme-fabrics/ctl/nvme4/nvme3c4n2/size", "1"),
                ("sys/devices/virtual/nvme-fabrics/ctl/nvme12/transport", "rdma"),
                ("sys/devices/virtual/nvme-fabrics/ctl/nvme12/nvme3c12n1/size", "1"),
            ],
        );
        fs::create_dir_all(root.join("sys/block")).unwrap();
        for controller in ["nvme4", "nvme12"] {
            let target = format!("../../nvme-fabrics/ctl/{controller}");
            symlink(target, root.join(subsystem).join(controller)).unwrap();
        }
        for name in ["nvme3n1", "nvme3n2"] {
            let target = format!("../devices/virtual/nvme-subsystem/nvme-subsys3/{name}");
            symlink(target, root.join("sys/block").join(name)).unwrap();
        }
        system(root)
    }

    #[test]
    fn each_path_to_a_namespace_is_counted() {
        let root = tempfile::tempdir().unwrap();
        let system = multipath(root.path());
        let two = Namespace::find(&system, "nvme3n1").unwrap();
        assert_eq!((two.controllers.len(), two.is_tcp(), two.nsid, two.block_len), (2, false, 1, 4096));
        let one = Namespace::find(&system, "nvme3n2").unwrap();
        assert_eq!((one.controllers.len(), one.is_tcp(), one.nsid, one.block_len), (1, true, 17, 512));
        assert_eq!(one.controllers[0].name, "nvme4");
        assert_eq!(one.controllers[0].address, "traddr=127.0.0.1,trsvcid=4420");
        assert_eq!(one.generic_path, Path::new("/dev/ng3n2"));
        assert_eq!(one.subsystem_nqn, NQN);
    }

    #[test]
    fn hidden_paths_count_as_many() {
        let root = tempfile::tempdir().unwrap();
        let system = multipath(root.path());
        for path in ["nvme4/nvme3c4n2", "nvme4/nvme3c4n1", "nvme12/nvme3c12n1"] {
            fs::remove_dir_all(root.path().join("sys/devices/virtual/nvme-fabrics/ctl").join(path)).unwrap();
        }
        assert_eq!(Namespace::find(&system, "nvme3n2").unwrap().controllers.len(), 2);
    }

    #[test]
    fn a_namespace_below_its_controller_has_one_path() {
        let root = tempfile::tempdir().unwrap();
        let controller = "sys/devices/virtual/nvme-fabrics/ctl/nvme0";
        put(
            root.path(),
            &[
                (&format!("{controller}/subsysnqn"), NQN),
                (&format!("{controller}/transport"), "tcp"),
                (&format!("{controller}/nvme0n1/nsid"), "1"),
                (&format!("{controller}/nvme0n1/queue/logical_block_size"), "512"),
            ],
        );
        fs::create_dir_all(root.path().join("sys/block")).unwrap();
        symlink("../devices/virtual/nvme-fabrics/ctl/nvme0/nvme0n1", root.path().join("sys/block/nvme0n1"))
            .unwrap();
        let system = system(root.path());
        let without = Namespace::find(&system, "nvme0n1");
        assert!(matches!(without, Err(FindError::NoGeneric { .. })), "{without:?}");
        put(root.path(), &[(&format!("{controller}/ng0n1/dev"), "238:0")]);
        let found = Namespace::find(&system, "nvme0n1").unwrap();
        assert_eq!((found.controllers.len(), found.is_tcp()), (1, true));
        assert!(matches!(Namespace::find(&system, "nvme1n1"), Err(FindError::Read { .. })));
        assert!(matches!(Namespace::find(&system, "vda"), Err(FindError::NoNamespace { .. })));
    }

    #[test]
    fn only_names_of_namespaces_are() {
        assert_eq!(numbers_of("nvme0n1"), Some((0, 1)));
        assert_eq!(numbers_of("nvme10n23"), Some((10, 23)));
        for name in [
            "nvme0",
            "nvme0n",
            "nvmen1",
            "nvme0n1p1",
            "nvme0c0n1",
            "vda",
            "nvme-1n1",
            "nvme+1n1",
            "nvme0n1/..",
        ] {
            assert_eq!(numbers_of(name), None, "{name}");
        }
    }
}
