//! What the guest is made of: packages of the distribution, fetched with apt-get and unpacked below the target folder.
//!
//! ```text
//!   apt-get --print-uris ──▶ versions ──┬── as recorded: what was unpacked is used again
//!                                       └── others: fetched, unpacked, recorded
//! ```
//!
//! Nothing but QEMU is installed on this machine. apt-get is shown an empty record of installed packages, so that it
//! names every dependency: what runs in the guest then depends on nothing that happens to be installed here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::repository::Repository;
use crate::{apt, command};

/// The emulator.
pub const EMULATOR: &str = "qemu-system-x86_64";

const EMULATOR_PACKAGES: &[&str] = &["qemu-system-x86"];
const GUEST_PACKAGES: &[&str] =
    &["busybox-static", "nvme-cli", "fio", "e2fsprogs", "xfsprogs", "util-linux", "kmod", "xz-utils"];

// The kernel for virtual machines: the same sources and NVMe modules as the large one, at a third of its size.
const KERNEL_PREFIX: &str = "linux-image-";
const KERNEL_SUFFIX: &str = "-cloud-amd64";

// A package list may name kernels that the mirror has dropped already.
const KERNELS_TRIED_MAX: usize = 3;

const LISTS_AGE_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The unpacked packages.
#[derive(Debug)]
pub struct Parts {
    /// The root of the guest's programs and their libraries.
    pub programs: PathBuf,
    /// The root of the kernel package: `boot/`, `lib/modules/`.
    pub kernel: PathBuf,
    /// The files that were unpacked, by name with version, one a line.
    pub versions: String,
}

/// Fetches and unpacks what is missing.
///
/// # Errors
/// When it cannot be had on this machine; the text says what is missing and what to do.
pub fn gather(repository: &Repository, folder: &Path) -> Result<Parts> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("the guest is an x86-64 machine, and this one is not");
    }
    for program in ["apt-get", "apt-cache", "dpkg-deb"] {
        if !command::is_installed(program) {
            bail!("there is no {program}: the guest is made of Debian's packages");
        }
    }
    apt::install(repository, EMULATOR_PACKAGES, || command::is_installed(EMULATOR))?;
    let apt = Apt::new(folder)?;
    apt.refresh_lists()?;
    let (programs, kernels) = apt.resolve()?;
    let record = folder.join("packages.txt");
    let parts = |versions: String| Parts {
        programs: folder.join("programs"),
        kernel: folder.join("kernel"),
        versions,
    };
    let recorded = fs::read_to_string(&record).unwrap_or_default();
    let newest = kernels.first().context("the package lists have no kernel of this kind")?;
    if recorded == versions_of(&programs, &newest.file) {
        return Ok(parts(recorded));
    }
    let _ = fs::remove_file(&record);
    apt.fetch_programs(&folder.join("programs"))?;
    let mut failure = None;
    for KernelPackage { package, file } in kernels.iter().take(KERNELS_TRIED_MAX) {
        match apt.fetch_kernel(package, &folder.join("kernel")) {
            Ok(()) => {
                let versions = versions_of(&programs, file);
                fs::write(&record, &versions)?;
                return Ok(parts(versions));
            }
            Err(error) => failure = Some(error),
        }
    }
    Err(failure.context("no kernel was tried")?)
}

fn versions_of(programs: &[String], kernel: &str) -> String {
    let mut lines: Vec<&str> = programs.iter().map(String::as_str).collect();
    lines.push(kernel);
    lines.join("\n") + "\n"
}

/// A kernel that can be had.
struct KernelPackage {
    package: String,
    file: String,
}

/// apt-get with folders of its own.
struct Apt {
    folder: PathBuf,
}

impl Apt {
    fn new(folder: &Path) -> Result<Self> {
        let folder = folder.join("apt");
        for below in ["none/partial", "archives/partial"] {
            fs::create_dir_all(folder.join(below))?;
        }
        fs::write(folder.join("status"), "")?;
        Ok(Self { folder })
    }

    /// A fresh image has no package lists, and a stale one names old kernels: neither can be told from the lists. Without a
    /// network, or without the right to change them, the lists stay as they are.
    fn refresh_lists(&self) -> Result<()> {
        let stamp = self.folder.join("lists-refreshed");
        let age = fs::metadata(&stamp)
            .and_then(|metadata| metadata.modified())
            .ok()
            .and_then(|at| at.elapsed().ok());
        if age.is_none_or(|age| age > LISTS_AGE_MAX)
            && command::run(Command::new("apt-get").args(["update", "-qq"])).is_ok()
        {
            fs::write(&stamp, "")?;
        }
        Ok(())
    }

    fn command(&self, archives: &str) -> Command {
        let folder = self.folder.display();
        let mut command = Command::new("apt-get");
        for option in [
            format!("Dir::State::status={folder}/status"),
            format!("Dir::Cache::archives={folder}/{archives}"),
            "APT::Sandbox::User=root".to_owned(),
            "Debug::NoLocking=1".to_owned(),
        ] {
            command.args(["-o", &option]);
        }
        command.args(["-qq", "--yes", "--no-install-recommends"]);
        command
    }

    /// The files behind the guest's programs, and the kernels there are, newest first.
    fn resolve(&self) -> Result<(Vec<String>, Vec<KernelPackage>)> {
        // With an archive folder that stays empty, files count as missing even when they were fetched before.
        let mut command = self.command("none");
        let programs = files_named_by(command.args(["--print-uris", "install"]).args(GUEST_PACKAGES))?;
        let listed = command::capture(Command::new("apt-cache").args(["pkgnames", KERNEL_PREFIX]))?;
        let mut kernels = Vec::new();
        for package in newest_kernels(&String::from_utf8_lossy(&listed.stdout)) {
            let mut command = self.command("none");
            if let Ok(files) = files_named_by(command.args(["--print-uris", "download", &package]))
                && let Some(file) = files.into_iter().next()
            {
                kernels.push(KernelPackage { package, file });
            }
            if kernels.len() == KERNELS_TRIED_MAX {
                break;
            }
        }
        if kernels.is_empty() {
            bail!("the package lists have no {KERNEL_PREFIX}VERSION{KERNEL_SUFFIX}");
        }
        Ok((programs, kernels))
    }

    fn fetch_programs(&self, root: &Path) -> Result<()> {
        let archives = self.folder.join("archives");
        remake(&archives.join("partial"))?;
        command::run(self.command("archives").args(["--download-only", "install"]).args(GUEST_PACKAGES))
            .context("the guest's programs cannot be fetched")?;
        remake(root)?;
        unpack_all(&archives, root)
    }

    fn fetch_kernel(&self, package: &str, root: &Path) -> Result<()> {
        let fetched = self.folder.join("kernel");
        remake(&fetched)?;
        command::run(self.command("archives").args(["download", package]).current_dir(&fetched))
            .with_context(|| format!("{package} cannot be fetched"))?;
        remake(root)?;
        unpack_all(&fetched, root)
    }
}

/// The file names of lines such as `'URI' nvme-cli_2.4_amd64.deb 1234 SHA256:…`.
fn files_named_by(command: &mut Command) -> Result<Vec<String>> {
    let output = command::capture(command)?;
    if !output.status.success() {
        bail!("apt-get: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut files: Vec<String> = text
        .lines()
        .filter(|line| line.starts_with('\''))
        .filter_map(|line| line.split_whitespace().nth(1))
        .map(str::to_owned)
        .collect();
    files.sort();
    if files.is_empty() {
        bail!("apt-get names no packages");
    }
    Ok(files)
}

/// The kernels among these packages, newest first; names without a full version only point at one that has it.
fn newest_kernels(packages: &str) -> Vec<String> {
    let mut kernels: Vec<(Vec<u64>, String)> = packages
        .lines()
        .filter_map(|package| {
            let version = package.strip_prefix(KERNEL_PREFIX)?.strip_suffix(KERNEL_SUFFIX)?;
            let numbers: Vec<u64> = version
                .split(|character: char| !character.is_ascii_digit())
                .filter_map(|digits| digits.parse().ok())
                .collect();
            (version.starts_with(|first: char| first.is_ascii_digit()) && numbers.len() > 2)
                .then(|| (numbers, package.to_owned()))
        })
        .collect();
    kernels.sort();
    kernels.into_iter().rev().map(|(_, package)| package).collect()
}

fn unpack_all(archives: &Path, root: &Path) -> Result<()> {
    for entry in fs::read_dir(archives)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            let output = command::capture(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(root))?;
            if !output.status.success() {
                bail!("{} cannot be unpacked: {}", path.display(), String::from_utf8_lossy(&output.stderr));
            }
        }
    }
    Ok(())
}

fn remake(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_kernel_is_first_by_number_and_not_by_letter() {
        let packages = "linux-image-6.1.0-54-cloud-amd64\nlinux-image-6.12.99+deb12-cloud-amd64\n\
            linux-image-6.12.115+deb12-cloud-amd64\nlinux-image-6.12-cloud-amd64\nlinux-image-cloud-amd64\n\
            linux-image-7.0.1-amd64\nlinux-image-6.12.115+deb12-cloud-amd64-unsigned\n";
        assert_eq!(
            newest_kernels(packages),
            [
                "linux-image-6.12.115+deb12-cloud-amd64",
                "linux-image-6.12.99+deb12-cloud-amd64",
                "linux-image-6.1.0-54-cloud-amd64"
            ]
        );
    }
}
