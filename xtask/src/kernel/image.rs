//! The guest's first and only root file system, made out of the unpacked packages.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::cpio::Archive;
use super::packages::Parts;
use crate::command;

/// What QEMU boots.
#[derive(Debug)]
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// The root file system.
    pub initramfs: PathBuf,
    /// The kernel's release, as `uname -r` says it.
    pub release: String,
    /// Whether the kernel's NVMe host can authenticate (DH-HMAC-CHAP).
    pub has_authentication: bool,
}

const INIT: &str = include_str!("guest/init");

const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_rng",
    "brd",
    "loop",
    "configfs",
    "nvme-core",
    "nvme-fabrics",
    "nvme-tcp",
    "nvme-auth",
    "nvmet",
    "nvmet-tcp",
    "ext4",
    "xfs",
    "crc32c_generic",
    "crc32c_intel",
    "libcrc32c",
    "sha512_generic",
    "sha256_generic",
    "hmac",
    "dh_generic",
];

// Where busybox has a program of the same name, this one wins.
const PROGRAMS: &[&str] =
    &["kmod", "nvme", "fio", "mke2fs", "e2fsck", "mkfs.xfs", "xfs_repair", "fstrim", "wipefs", "blkdiscard"];

const LINKS: &[(&str, &str)] = &[
    ("sbin/modprobe", "kmod"),
    ("sbin/insmod", "kmod"),
    ("sbin/rmmod", "kmod"),
    ("sbin/lsmod", "kmod"),
    ("sbin/mkfs.ext4", "mke2fs"),
    ("etc/mtab", "/proc/mounts"),
];

const PROGRAM_FOLDERS: &[&str] = &["bin", "sbin", "usr/bin", "usr/sbin"];
const LIBRARY_FOLDERS: &[&str] =
    &["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu/ceph"];
const LOADER: &str = "ld-linux-x86-64.so.2";

/// Makes the image, unless it was made of the same packages by the same recipe before.
///
/// # Errors
/// When something that the guest needs is not in the packages.
pub fn make(parts: &Parts, folder: &Path) -> Result<Image> {
    let release = only_entry(&parts.kernel.join("lib/modules"))
        .or_else(|_| only_entry(&parts.kernel.join("usr/lib/modules")))?;
    let configuration = fs::read_to_string(parts.kernel.join(format!("boot/config-{release}")))?;
    let has = |option: &str| {
        configuration.lines().any(|line| line == format!("{option}=m") || line == format!("{option}=y"))
    };
    if !has("CONFIG_NVME_TCP") {
        bail!("the kernel {release} has no NVMe over TCP");
    }
    let image = Image {
        kernel: parts.kernel.join(format!("boot/vmlinuz-{release}")),
        initramfs: folder.join("initramfs.cpio"),
        has_authentication: has("CONFIG_NVME_HOST_AUTH"),
        release,
    };
    // The recipe is the lists above and the first process; all else that goes in is told by the packages' versions.
    let recipe = format!("{}\n{MODULES:?}\n{PROGRAMS:?}\n{LINKS:?}\n{INIT}", parts.versions);
    let record = folder.join("initramfs.txt");
    if image.initramfs.is_file() && fs::read_to_string(&record).is_ok_and(|recorded| recorded == recipe) {
        return Ok(image);
    }
    println!("kernel: making the guest's root file system");
    let _ = fs::remove_file(&record);
    write(parts, &image, folder)?;
    fs::write(&record, recipe)?;
    Ok(image)
}

fn write(parts: &Parts, image: &Image, folder: &Path) -> Result<()> {
    let mut archive = Archive::new(BufWriter::new(File::create(&image.initramfs)?));
    for path in [
        "bin",
        "sbin",
        "lib",
        "lib/x86_64-linux-gnu",
        "lib/modules",
        "lib64",
        "etc",
        "proc",
        "sys",
        "dev",
        "run",
        "tmp",
        "mnt",
        "root",
        "usr",
        "usr/lib",
        "usr/lib/x86_64-linux-gnu",
        "var",
        "var/tmp",
    ] {
        archive.folder(path)?;
    }
    archive.file("init", 0o755, INIT.as_bytes())?;
    archive.file("etc/passwd", 0o644, b"root:x:0:0:root:/:/bin/sh\n")?;
    archive.file("etc/group", 0o644, b"root:x:0:\n")?;
    for (path, to) in LINKS {
        archive.link(path, to)?;
    }
    add_programs(&mut archive, &parts.programs)?;
    let modules = choose_modules(parts, &image.release, &folder.join("modules"))?;
    archive.tree(&format!("lib/modules/{}", image.release), &modules)?;
    archive.finish()?;
    Ok(())
}

fn add_programs(archive: &mut Archive<BufWriter<File>>, root: &Path) -> Result<()> {
    let busybox = find(root, PROGRAM_FOLDERS, "busybox")?;
    archive.copy("bin/busybox", &busybox)?;
    let applets = command::capture(Command::new(&busybox).arg("--list"))?;
    let ours = |name: &str| {
        PROGRAMS.contains(&name) || LINKS.iter().any(|(path, _)| path.rsplit('/').next() == Some(name))
    };
    for applet in String::from_utf8_lossy(&applets.stdout).lines() {
        if applet != "busybox" && !ours(applet) {
            archive.link(&format!("bin/{applet}"), "busybox")?;
        }
    }
    let mut libraries = BTreeSet::new();
    for program in PROGRAMS {
        let path = find(root, PROGRAM_FOLDERS, program)?;
        archive.copy(&format!("sbin/{program}"), &path)?;
        libraries.extend(libraries_of(root, &path)?);
    }
    for library in libraries {
        let path = find(root, LIBRARY_FOLDERS, &library)?;
        archive.copy(&format!("lib/x86_64-linux-gnu/{library}"), &path)?;
    }
    archive.link(&format!("lib64/{LOADER}"), &format!("../lib/x86_64-linux-gnu/{LOADER}"))?;
    if let Ok(configuration) = find(root, &["etc"], "mke2fs.conf") {
        archive.copy("etc/mke2fs.conf", &configuration)?;
    }
    Ok(())
}

/// A program out of the packages, run here with the libraries that were packaged with it.
fn packaged(root: &Path, program: &Path) -> Result<Command> {
    let folders: Vec<String> =
        LIBRARY_FOLDERS.iter().map(|folder| root.join(folder).display().to_string()).collect();
    let mut command = Command::new(find(root, LIBRARY_FOLDERS, LOADER)?);
    command.args(["--library-path", &folders.join(":")]).arg(program);
    Ok(command)
}

fn libraries_of(root: &Path, program: &Path) -> Result<Vec<String>> {
    let mut command = packaged(root, program)?;
    // The loader lists instead of running where this variable is set.
    let output = command::capture(command.env("LD_TRACE_LOADED_OBJECTS", "1"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut libraries = vec![LOADER.to_owned()];
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if let (Some(name), Some("=>"), Some(place)) = (words.next(), words.next(), words.next()) {
            if place == "not" {
                bail!("{} needs {name}, which is in none of the packages", program.display());
            }
            if !name.contains('/') {
                libraries.push(name.to_owned());
            }
        }
    }
    Ok(libraries)
}

/// Copies the wanted modules, and those they need, to a folder of their own with an index of its own.
fn choose_modules(parts: &Parts, release: &str, stage: &Path) -> Result<PathBuf> {
    let kmod = find(&parts.programs, PROGRAM_FOLDERS, "kmod")?;
    let xz = find(&parts.programs, PROGRAM_FOLDERS, "xz")?;
    index_modules(&parts.programs, &kmod, &parts.kernel, release)?;
    let from = module_folder(&parts.kernel, release);
    let index = fs::read_to_string(from.join("modules.dep"))?;
    let builtin = fs::read_to_string(from.join("modules.builtin"))?;
    let known: BTreeMap<String, &str> =
        index.lines().filter_map(|line| Some((module_name(line.split(':').next()?), line))).collect();
    let mut chosen = BTreeSet::new();
    for module in MODULES {
        let name = module.replace('-', "_");
        match known.get(&name) {
            Some(line) => chosen.extend(line.split([':', ' ']).filter(|path| !path.is_empty())),
            None if builtin.lines().any(|path| module_name(path) == name) => {}
            // Kernels differ in their small modules; a scenario that misses a large one says so.
            None => println!("kernel: {release} has no module {module}"),
        }
    }
    if stage.exists() {
        fs::remove_dir_all(stage)?;
    }
    let to = stage.join("lib/modules").join(release);
    for path in chosen {
        let target = to.join(path.trim_end_matches(".xz"));
        fs::create_dir_all(target.parent().context("a module without a folder")?)?;
        if path.ends_with(".xz") {
            // Unpacked once here rather than at each boot in the emulator.
            let mut command = packaged(&parts.programs, &xz)?;
            let output = command::capture(command.args(["--decompress", "--stdout"]).arg(from.join(path)))?;
            fs::write(&target, output.stdout)?;
        } else {
            fs::copy(from.join(path), &target)?;
        }
    }
    for file in ["modules.builtin", "modules.builtin.modinfo", "modules.order"] {
        fs::copy(from.join(file), to.join(file))?;
    }
    index_modules(&parts.programs, &kmod, stage, release)?;
    Ok(to)
}

fn module_folder(root: &Path, release: &str) -> PathBuf {
    let merged = root.join("usr/lib/modules").join(release);
    if merged.is_dir() { merged } else { root.join("lib/modules").join(release) }
}

fn index_modules(programs: &Path, kmod: &Path, root: &Path, release: &str) -> Result<()> {
    let mut command = packaged(programs, Path::new("--argv0"))?;
    // `kmod` is several programs, told apart by the name that it is called by.
    command.arg("depmod").arg(kmod).arg("-b").arg(root).arg(release);
    command::run(&mut command)
}

fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// A file in one of these folders. Links in a package are absolute and would lead out of it, so the file that a link
/// names is looked for in the same folders.
fn find(root: &Path, folders: &[&str], name: &str) -> Result<PathBuf> {
    for folder in folders {
        let path = root.join(folder).join(name);
        if let Ok(to) = fs::read_link(&path) {
            let named = to.file_name().context("a link that names no file")?.to_string_lossy().into_owned();
            if named != name {
                return find(root, folders, &named);
            }
        } else if path.is_file() {
            return Ok(path);
        }
    }
    bail!("none of the packages has {name}")
}

fn only_entry(folder: &Path) -> Result<String> {
    let entry = fs::read_dir(folder)?.next().context("an empty folder")??;
    Ok(entry.file_name().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_called_the_same_however_it_is_written() {
        for path in ["kernel/drivers/nvme/host/nvme-tcp.ko.xz", "kernel/nvme_tcp.ko", "nvme-tcp.ko: a.ko"] {
            assert_eq!(module_name(path), "nvme_tcp");
        }
    }
}
