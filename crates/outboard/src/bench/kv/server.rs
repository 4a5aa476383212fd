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
use crate::halves::Half;
use crate::status::fetch;

/// What is started if it is found.
const REDIS: &str = "redis-server";
/// How long a server may take to answer a PING before it is asked again.
const PING_WITHIN: Duration = Duration::from_secs(1);

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
    status: SocketAddr,
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
        let address = free_address()?;
        let status = free_address()?;
        let mut server = Self { card: None, host: None, address, status, place: place.to_owned() };
        let log = |name: &str| place.join(format!("{name}.log"));
        if who == Who::Redis {
            let mut command = redis_command(address, place);
            server.host = Some(ServerProcess::start(&mut command, &log("redis"), layout.host)?);
        } else {
            let config = write_config(who, memory, (address, status), place)?;
            let half = |half: &str| half_command(half, &config, place);
            server.card = Some(ServerProcess::start(&mut half("card")?, &log("card"), layout.card)?);
            server.host = Some(ServerProcess::start(&mut half("host")?, &log("host"), layout.host)?);
        }
        let host = server.host.as_mut().ok_or("there is no host")?;
        host.wait_until("answer a PING", || is_answered(address).unwrap_or(false))?;
        Ok(server)
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
        if self.card.is_some() {
            for count in fetch(self.status)?.requests.iter().filter(|count| count.service == "kv") {
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

fn write_config(
    who: Who,
    memory: Memory,
    (address, status): (SocketAddr, SocketAddr),
    place: &Path,
) -> Result<PathBuf, BenchFailure> {
    let text = format!(
        "[kv]\nlisten = \"{address}\"\nplacement = \"{}\"\ndurability = \"everysec\"\nmemory = \"{}MiB\"\ntable = \"{}MiB\"\n\
         [nvme]\nlisten = \"127.0.0.1:0\"\ndiscovery = \"127.0.0.1:0\"\ndevice = \"memory\"\nsize = \"1MiB\"\n\
         [status]\nlisten = \"{status}\"\n[log]\nlevel = \"warn\"\n",
        who.name(),
        memory.host >> 20,
        memory.table >> 20,
    );
    let config = place.join("outboard.toml");
    std::fs::write(&config, text)?;
    Ok(config)
}

fn half_command(half: &str, config: &Path, place: &Path) -> Result<Command, BenchFailure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(half).arg("--config").arg(config).arg("--data").arg(place.join("data"));
    // It does not outlive this process, however that ends.
    command.arg("--supervisor").arg(std::process::id().to_string());
    Ok(command)
}
