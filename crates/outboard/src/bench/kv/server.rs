//! The servers: this store in either placement, as users run it, and Redis where it is installed.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::bench::BenchFailure;
use crate::bench::cores::Layout;
use crate::bench::process::{ServerProcess, free_address};
use crate::bench::talk::Processes;
use crate::halves::{Half, Readiness};
use crate::status::fetch;
use crate::worker::WorkerMessage;

/// What is started if it is found.
const REDIS: &str = "redis-server";
/// How long a server may take to answer a PING before it is asked again.
const PING_WITHIN: Duration = Duration::from_secs(1);
/// How often Redis is started before that fails.
const ATTEMPTS: usize = 3;

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Who {
    /// This store, with the card.
    Card,
    /// This store, wholly on the host.
    Host,
    Redis,
}

impl Who {
    pub(in crate::bench) fn name(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::Host => "host",
            Self::Redis => "redis",
        }
    }
}

/// Whether Redis is installed.
pub(in crate::bench) fn has_redis() -> bool {
    let mut command = Command::new(REDIS);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// How much memory the store may have.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) struct Memory {
    /// Of the host.
    pub(in crate::bench) host: u64,
    /// For the card's table.
    pub(in crate::bench) table: u64,
}

/// A server, ready to be asked. Ended when dropped.
pub(in crate::bench) struct Server {
    card: Option<ServerProcess>,
    host: Option<ServerProcess>,
    pub(in crate::bench) address: SocketAddr,
    /// Where the card tells its status.
    status: Option<SocketAddr>,
    place: PathBuf,
}

/// How many requests were answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::bench) struct Answered {
    pub(in crate::bench) by_card: u64,
    pub(in crate::bench) by_host: u64,
}

impl Answered {
    /// Of what was answered since, the part that the card has, from 0 to 1. A status may be a moment old: it says nothing if it
    /// does not know of so many.
    pub(in crate::bench) fn share_of_card(self, before: Self, least: u64) -> Option<f64> {
        let (card, host) = (self.by_card - before.by_card, self.by_host - before.by_host);
        (card + host > 0 && card + host >= least).then(|| card as f64 / (card + host) as f64)
    }
}

impl Server {
    /// Starts one in a directory of its own, and waits until it answers.
    pub(in crate::bench) fn start(
        who: Who,
        memory: Memory,
        place: &Path,
        layout: Layout,
    ) -> Result<Self, BenchFailure> {
        std::fs::create_dir_all(place)?;
        if who == Who::Redis {
            return Self::start_redis(place, layout);
        }
        let config = write_config(who, memory, place)?;
        let start = |half: Half, core: Option<usize>| {
            let log = place.join(format!("{half}.log"));
            ServerProcess::start(&mut half_command(half, &config, place)?, &log, core)
        };
        let mut card = start(Half::Card, layout.card)?;
        let card_ready = readiness(&mut card)?;
        let mut host = start(Half::Host, layout.host)?;
        let host_ready = readiness(&mut host)?;
        let mut services = card_ready.services.iter().chain(&host_ready.services);
        let endpoint = services.find(|endpoint| endpoint.service == "kv").ok_or("nobody serves the store")?;
        let address = endpoint.address.parse()?;
        host.wait_until("answer a PING", || is_answered(address).unwrap_or(false))?;
        let (card, host, place) = (Some(card), Some(host), place.to_owned());
        Ok(Self { card, host, address, status: card_ready.status, place })
    }

    /// Redis takes no port that is free by itself, and one that was free may be taken meanwhile.
    fn start_redis(place: &Path, layout: Layout) -> Result<Self, BenchFailure> {
        for attempt in 1.. {
            let address = free_address()?;
            let mut command = redis_command(address, place);
            let mut host = ServerProcess::start(&mut command, &place.join("redis.log"), layout.host)?;
            match host.wait_until("answer a PING", || is_answered(address).unwrap_or(false)) {
                Ok(()) => {
                    let (host, place) = (Some(host), place.to_owned());
                    return Ok(Self { card: None, host, address, status: None, place });
                }
                Err(error) if attempt == ATTEMPTS => return Err(error),
                Err(_) => {}
            }
        }
        Err("Redis was not started".into())
    }

    pub(in crate::bench) fn processes(&self) -> Processes {
        Processes {
            card: self.card.as_ref().map(ServerProcess::pid),
            host: self.host.as_ref().map(ServerProcess::pid),
        }
    }

    /// What its halves have answered so far, as far as the card knows.
    pub(in crate::bench) fn answered(&self) -> Result<Answered, BenchFailure> {
        let mut answered = Answered::default();
        if let Some(status) = self.status {
            for count in fetch(status)?.requests.iter().filter(|count| count.service == "kv") {
                match count.half {
                    Half::Card => answered.by_card += count.count,
                    Half::Host => answered.by_host += count.count,
                }
            }
        }
        Ok(answered)
    }

    /// Moves its halves to the cores of a layout.
    pub(in crate::bench) fn move_to(&self, layout: Layout) -> Result<(), BenchFailure> {
        self.card.as_ref().map_or(Ok(()), |card| card.move_to(layout.card))?;
        self.host.as_ref().map_or(Ok(()), |host| host.move_to(layout.host))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The host first: it may have something to write down. Files can go when nobody writes to them any more.
        self.host = None;
        self.card = None;
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

/// Waits until a half says that it is ready, and how.
fn readiness(half: &mut ServerProcess) -> Result<Readiness, BenchFailure> {
    let mut said = None;
    half.wait_until_said("get ready", |line| {
        if let Ok(WorkerMessage::Ready(readiness)) = serde_json::from_str(line) {
            said = Some(readiness);
        }
        said.is_some()
    })?;
    said.ok_or_else(|| "a half says nothing".into())
}

/// Whether a PING is answered as it should be.
fn is_answered(address: SocketAddr) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PING_WITHIN))?;
    stream.write_all(b"PING\r\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line == "+PONG\r\n")
}

fn redis_command(address: SocketAddr, place: &Path) -> Command {
    let mut command = Command::new(REDIS);
    command.args(["--bind", &address.ip().to_string(), "--port", &address.port().to_string()]);
    command.args(["--save", "", "--appendonly", "yes", "--appendfsync", "everysec"]);
    command.arg("--dir").arg(place);
    command
}

fn write_config(who: Who, memory: Memory, place: &Path) -> Result<PathBuf, BenchFailure> {
    let text = format!(
        "[kv]\nlisten = \"127.0.0.1:0\"\nplacement = \"{}\"\ndurability = \"everysec\"\nmemory = \"{}MiB\"\ntable = \"{}MiB\"\n\
         [nvme]\nlisten = \"127.0.0.1:0\"\ndiscovery = \"127.0.0.1:0\"\ndevice = \"memory\"\nsize = \"1MiB\"\n\
         [status]\nlisten = \"127.0.0.1:0\"\n[log]\nlevel = \"warn\"\n",
        who.name(),
        memory.host >> 20,
        memory.table >> 20,
    );
    let config = place.join("outboard.toml");
    std::fs::write(&config, text)?;
    Ok(config)
}

fn half_command(half: Half, config: &Path, place: &Path) -> Result<Command, BenchFailure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(half.name()).arg("--json").arg("--config").arg(config).arg("--data").arg(place.join("data"));
    // It does not outlive this process, however that ends.
    command.arg("--supervisor").arg(std::process::id().to_string());
    Ok(command)
}
