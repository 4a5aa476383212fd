//! Programs of the system, through apt-get.

use std::process::Command;

use anyhow::{Result, bail};

use crate::command;
use crate::repository::Repository;

/// Steps of CI run beside each other, and may both have something to install: the second one waits.
const LOCK_TIMEOUT: &str = "DPkg::Lock::Timeout=300";

/// Installs packages unless what they bring is there already.
///
/// # Errors
/// When it is not there afterwards; the text says what to install.
pub fn install(repository: &Repository, packages: &[&str], is_there: impl Fn() -> bool) -> Result<()> {
    if is_there() {
        return Ok(());
    }
    let wanted = packages.join(" ");
    let is_root = command::capture(Command::new("id").arg("-u")).is_ok_and(|output| output.stdout == b"0\n");
    if !is_root || !command::is_installed("apt-get") {
        bail!("cannot install packages here (not root, or no apt-get); please install {wanted}");
    }
    let mut install = command::program(
        repository,
        "apt-get",
        &["-o", LOCK_TIMEOUT, "install", "--yes", "-qq", "--no-install-recommends"],
    );
    install.args(packages).env("DEBIAN_FRONTEND", "noninteractive");
    // A fresh image has no package lists and a stale one has wrong lists: both show as a first attempt that fails.
    // Whether the second worked is seen by the programs being there.
    if command::run(&mut install).is_err() {
        let _ = command::run(&mut command::program(
            repository,
            "apt-get",
            &["-o", LOCK_TIMEOUT, "update", "-qq"],
        ));
        let _ = command::run(&mut install);
    }
    if !is_there() {
        bail!("apt-get cannot install {wanted}");
    }
    Ok(())
}
