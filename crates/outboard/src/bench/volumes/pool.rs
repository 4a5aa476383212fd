//! Chunk servers, a card and a host, as users run them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::accounting;
use crate::bench::BenchFailure;
use crate::bench::cores::Layout;
use crate::bench::nvme::target::SUBSYSTEM;
use crate::bench::process::ServerProcess;
use crate::halves::Readiness;
use crate::status::fetch;
use crate::worker::WorkerMessage;

/// Chunk servers, as many as keep each chunk; and one more, where one is to be lost.
const SERVERS: usize = 3;
/// How long a server is away until what it had is made anew elsewhere: no less can be configured.
const LOST_AFTER: Duration = Duration::from_secs(10);
/// What each may keep: nothing is given back while a run lasts.
const SERVER_SIZE_GIB: usize = 16;

/// Older than what a status tells, unless the machine has much else to do.
const STATUS_AGE: Duration = Duration::from_millis(400);
/// How long it may take then.
const TOLD_WITHIN: Duration = Duration::from_secs(30);

/// All processes of a pool. Ended when dropped, and their directory removed.
pub(super) struct Pool {
    // What asks goes before what is asked.
    host: Option<ServerProcess>,
    card: Option<ServerProcess>,
    servers: Vec<ServerProcess>,
    /// Where the volume is served.
    pub(super) address: SocketAddr,
    status: SocketAddr,
    place: PathBuf,
}

/// What the pool has spent so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Spent {
    pub(super) host: Duration,
    /// All chunk servers together.
    pub(super) servers: Duration,
    /// How often threads of the host have gone to sleep.
    pub(super) host_sleeps: u64,
    /// Commands that the card has got.
    pub(super) commands: u64,
    pub(super) link: LinkBytes,
    /// Bytes that were copied since replicas are missing.
    pub(super) rebuilt: u64,
}

/// What crossed the link, whichever way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkBytes {
    /// Messages and bulk.
    pub(super) moved: u64,
    /// The rings' words.
    pub(super) words: u64,
    /// Of what moved, that of checkpoints and of compaction.
    pub(super) checkpoints: u64,
    pub(super) compaction: u64,
}

impl LinkBytes {
    /// All of them.
    pub(super) const fn all(&self) -> u64 {
        self.moved + self.words
    }
}

impl std::ops::Sub for LinkBytes {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            moved: self.moved.saturating_sub(before.moved),
            words: self.words.saturating_sub(before.words),
            checkpoints: self.checkpoints.saturating_sub(before.checkpoints),
            compaction: self.compaction.saturating_sub(before.compaction),
        }
    }
}

impl Pool {
    /// Starts one in a directory of its own, with a server to lose perhaps. Chunk servers are where the client is: they stand for other
    /// machines.
    pub(super) fn start(
        placement: &str,
        place: &Path,
        layout: Layout,
        loses_one: bool,
    ) -> Result<Self, BenchFailure> {
        std::fs::create_dir_all(place)?;
        let mut servers = Vec::new();
        let mut addresses = Vec::new();
        for number in 1..=SERVERS + usize::from(loses_one) {
            let name = format!("chunk-{number}");
            let mut command = command("chunkserver", &write_server(place, &name)?, &place.join(&name))?;
            let mut server =
                ServerProcess::start(&mut command, &place.join(format!("{name}.log")), layout.client)?;
            let ready = readiness(&mut server)?;
            addresses.push(address_of(&ready, "chunks")?);
            servers.push(server);
        }
        let config = write_halves(place, placement, &addresses)?;
        let start = |half: &str, core| {
            let mut command = command(half, &config, &place.join("data"))?;
            ServerProcess::start(&mut command, &place.join(format!("{half}.log")), core)
        };
        let mut card = start("card", layout.card)?;
        let ready = readiness(&mut card)?;
        let address = address_of(&ready, "volumes")?;
        let status = ready.status.ok_or("the card tells no status")?;
        let host = Some(start("host", layout.host)?);
        let mut pool = Self { host, card: Some(card), servers, address, status, place: place.to_owned() };
        if let Some(host) = &mut pool.host {
            readiness(host)?;
        }
        Ok(pool)
    }

    /// The card's process.
    pub(super) fn card(&self) -> u32 {
        self.card.as_ref().map_or(0, ServerProcess::pid)
    }

    /// A server is gone, and does not come back. Waits until what it had is being made anew; meanwhile somebody is to be kept alive.
    pub(super) fn lose_server(
        &mut self,
        mut meanwhile: impl FnMut() -> Result<(), BenchFailure>,
    ) -> Result<(), BenchFailure> {
        self.servers.pop();
        let deadline = Instant::now() + LOST_AFTER + TOLD_WITHIN;
        loop {
            meanwhile()?;
            let volumes = fetch(self.status)?.volumes.ok_or("the card serves no volumes")?;
            if volumes.rebuild.is_some_and(|rebuild| rebuild.done_bytes > 0) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err("nothing is made anew of what a lost chunk server had".into());
            }
            std::thread::sleep(STATUS_AGE / 4);
        }
    }

    /// What was spent until now, when a load begins: processor time last, which goes on.
    pub(super) fn spent_before(&self) -> Result<Spent, BenchFailure> {
        let told = self.told()?;
        Ok(Spent { commands: told.commands, link: told.link, rebuilt: told.rebuilt, ..self.accounts()? })
    }

    /// What was spent until now, when a load has ended: processor time first.
    pub(super) fn spent_after(&self, before: &Spent) -> Result<Spent, BenchFailure> {
        let spent = self.accounts()?;
        let deadline = Instant::now() + TOLD_WITHIN;
        loop {
            let Spent { commands, link, rebuilt, .. } = self.told()?;
            if commands > before.commands {
                return Ok(Spent { commands, link, rebuilt, ..spent });
            }
            if Instant::now() > deadline {
                return Err("the card's status does not tell of the commands that it has answered".into());
            }
        }
    }

    /// What the kernel knows.
    fn accounts(&self) -> Result<Spent, BenchFailure> {
        let host = self.host.as_ref().ok_or("the pool has no host")?.pid();
        let (host, host_sleeps) = (accounting::process_cpu(host)?, accounting::process_sleeps(host)?);
        let servers: std::io::Result<Duration> =
            self.servers.iter().map(|server| accounting::process_cpu(server.pid())).sum();
        Ok(Spent { host, host_sleeps, servers: servers?, ..Spent::default() })
    }

    /// What the card's status tells: commands, what crossed the link, what was copied. It may be a moment old, which is waited for.
    fn told(&self) -> Result<Spent, BenchFailure> {
        std::thread::sleep(STATUS_AGE);
        let status = fetch(self.status)?;
        let volumes = status.volumes.ok_or("the card serves no volumes")?;
        let link = LinkBytes {
            moved: status.link.dma_read_bytes + status.link.dma_written_bytes,
            words: status.link.dma_word_bytes,
            checkpoints: volumes.link.checkpoints_bytes,
            compaction: volumes.link.compaction_bytes,
        };
        let rebuilt = volumes.rebuild.map_or(0, |rebuild| rebuild.done_bytes);
        Ok(Spent { commands: volumes.commands, link, rebuilt, ..Spent::default() })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.host = None;
        self.card = None;
        self.servers.clear();
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

fn readiness(process: &mut ServerProcess) -> Result<Readiness, BenchFailure> {
    let mut said = None;
    process.wait_until_said("get ready", |line| {
        if let Ok(WorkerMessage::Ready(readiness)) = serde_json::from_str(line) {
            said = Some(readiness);
        }
        said.is_some()
    })?;
    said.ok_or_else(|| "a process says nothing".into())
}

fn address_of(ready: &Readiness, service: &str) -> Result<SocketAddr, BenchFailure> {
    let endpoint = ready.services.iter().find(|endpoint| endpoint.service == service);
    let endpoint = endpoint.ok_or_else(|| format!("nobody serves {service}"))?;
    // What follows the address is for people.
    let address = endpoint.address.split([',', ' ']).next().unwrap_or_default();
    Ok(address.parse()?)
}

fn write_server(place: &Path, name: &str) -> Result<PathBuf, BenchFailure> {
    let text = format!(
        "[chunkserver]\nlisten = \"127.0.0.1:0\"\nsize = \"{SERVER_SIZE_GIB}GiB\"\n[log]\nlevel = \"warn\"\n"
    );
    let config = place.join(format!("{name}.toml"));
    std::fs::write(&config, text)?;
    Ok(config)
}

fn write_halves(place: &Path, placement: &str, servers: &[SocketAddr]) -> Result<PathBuf, BenchFailure> {
    let servers: Vec<String> = servers.iter().map(|server| format!("\"{server}\"")).collect();
    let text = format!(
        "[volumes]\nports = [\"127.0.0.1:0\"]\nnqn = \"{SUBSYSTEM}\"\nservers = [{}]\nplacement = \"{placement}\"\n\
         lost_after = \"{}s\"\n[kv]\nenabled = false\n\
         [nvme]\nlisten = \"127.0.0.1:0\"\ndiscovery = \"127.0.0.1:0\"\ndevice = \"memory\"\nsize = \"1MiB\"\n\
         [files]\ndevice = \"memory\"\nsize = \"64MiB\"\n[status]\nlisten = \"127.0.0.1:0\"\n[log]\nlevel = \"warn\"\n",
        servers.join(", "),
        LOST_AFTER.as_secs()
    );
    let config = place.join("outboard.toml");
    std::fs::write(&config, text)?;
    Ok(config)
}

fn command(what: &str, config: &Path, data: &Path) -> Result<Command, BenchFailure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(what).arg("--json").arg("--config").arg(config).arg("--data").arg(data);
    // It does not outlive this process, however that ends.
    command.arg("--supervisor").arg(std::process::id().to_string());
    Ok(command)
}
