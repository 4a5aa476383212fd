//! `cargo xtask etcd`: the metadata store of volumes, and two tiers, over a real etcd.

use anyhow::Result;

use crate::outcome::Outcome;
use crate::repository::Repository;
use crate::{apt, command};

/// One line of help.
pub const ABOUT: &str =
    "Compare the metadata store over a real etcd with the one in memory, and kill one of two tiers over it";

/// The whole help.
pub const LONG_ABOUT: &str = "\
Compare the metadata store of volumes over a real etcd with the one in memory.

The test starts an etcd of its own, on ports that are free, with its data in a directory that goes with it: transactions, pages,
sessions that are renewed, revoked and forgotten. Then two tiers, each a card and a host, serve one disk of three chunk servers over
another: one is killed while it is written to, etcd is stopped and started again, and all that was acknowledged is read. Debian's etcd-server is installed with apt-get where it is missing and we are root;
where that is impossible the verb says SKIPPED, loudly, and succeeds.

(The package may start an etcd of the system's, too; the test does not use it.)";

const PACKAGES: &[&str] = &["etcd-server"];

/// Runs the tests that want etcd.
///
/// # Errors
/// When one fails.
pub fn run(repository: &Repository) -> Result<Outcome> {
    if let Err(error) = apt::install(repository, PACKAGES, || command::is_installed("etcd")) {
        return Ok(Outcome::skipped("etcd", &format!("{error:#}")));
    }
    // Of the whole workspace, as it was built for the other tests: one package alone would be built anew.
    let arguments = ["test", "--workspace", "--lib", "volumes::etcd::"];
    command::run(&mut command::cargo(repository, &arguments))?;
    let arguments = [
        "test",
        "--workspace",
        "--test",
        "outboard-tests",
        "volumes_tiers::",
        "--",
        "--ignored",
        "--nocapture",
    ];
    command::run(&mut command::cargo(repository, &arguments))?;
    Ok(Outcome::Done)
}
