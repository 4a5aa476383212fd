//! Chunk servers, a card and a host, as users run them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::accounting;
use crate::bench::BenchFailure;
use crate::bench::cores::Layout;
use crate::bench::nvme::target::SUBSYSTEM;
use crate::bench::process::ServerProcess;
use crate::halves::Readiness;
use crate::status::fetch;
use crate::worker::WorkerMessage;

/// Chunk servers.
pub(super) const SERVERS: usize = 3;
/// What each may keep: nothing is given back while a run lasts.
const SERVER_SIZE_GIB: usize = 16;

/// Older than what a status tells.
const STATUS_AGE: Duration = Duration::from_millis(400);

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
    /// That crossed the link, whichever way.
    pub(super) link_bytes: u64,
}

impl Pool {
    /// Starts one in a directory of its own. Chunk servers are where the client is: they stand for other machines.
    pub(super) fn start(placement: &str, place: &Path, layout: Layout) -> Result<Self, BenchFailure> {
        std::fs::create_dir_all(place)?;
        let mut servers = Vec::new();
        let mut addresses = Vec::new();
        for number in 1..=SERVERS {
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

    /// What was spent so far. What the status tells may be a moment old.
    pub(super) fn spent(&self) -> Result<Spent, BenchFailure> {
        std::thread::sleep(STATUS_AGE);
        let host =
            self.host.as_ref().map_or(Ok(Duration::ZERO), |host| accounting::process_cpu(host.pid()))?;
        let servers: std::io::Result<Duration> =
            self.servers.iter().map(|server| accounting::process_cpu(server.pid())).sum();
        Ok(Spent { host, servers: servers?, link_bytes: self.link_bytes()? })
    }

    fn link_bytes(&self) -> Result<u64, BenchFailure> {
        let link = fetch(self.status)?.link;
        Ok(link.dma_read_bytes + link.dma_written_bytes + link.dma_word_bytes)
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
        "[volumes]\nports = [\"127.0.0.1:0\"]\nnqn = \"{SUBSYSTEM}\"\nservers = [{}]\nplacement = \"{placement}\"\n[kv]\nenabled = false\n\
         [nvme]\nlisten = \"127.0.0.1:0\"\ndiscovery = \"127.0.0.1:0\"\ndevice = \"memory\"\nsize = \"1MiB\"\n\
         [files]\ndevice = \"memory\"\nsize = \"64MiB\"\n[status]\nlisten = \"127.0.0.1:0\"\n[log]\nlevel = \"warn\"\n",
        servers.join(", ")
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
