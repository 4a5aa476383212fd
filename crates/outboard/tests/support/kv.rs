//! The key-value service, in two processes that can be killed one by one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use outboard::halves::Half;
use outboard::status;
use rustix::process::Signal;

use super::confinement::Confinement;
use super::resp::{Client, Value};
use super::{DEADLINE, FREE_NVME_PORTS, Place, Program, confinement, number_after};

/// How often something is looked at that cannot be waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// As few descriptors as a shell gives are not what bounds a half.
const SHELL: &str = "ulimit -S -n 256";

/// The store's GET, as programs.
pub(crate) const KV_GET: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/programs/kv_get.o");
const OF_THIS_CARD: &[&str] = &["--config", "outboard.toml", "--data", "data"];

/// How the service is configured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) placement: &'static str,
    pub(crate) durability: &'static str,
    /// Lines of `[files]`.
    pub(crate) files: &'static str,
    /// More lines of `[kv]`, and sections behind it.
    pub(crate) more: &'static str,
    /// Whether the store's GET is answered by programs.
    pub(crate) by_programs: bool,
}

impl Setup {
    pub(crate) const CARD: Self = Self {
        placement: "card",
        durability: "always",
        files: "size = \"4GiB\"\n",
        more: "memory = \"64MiB\"\npart = \"128MiB\"\n",
        by_programs: false,
    };
    pub(crate) const PROGRAMS: Self = Self { by_programs: true, ..Self::CARD };
    pub(crate) const HOST: Self = Self { placement: "host", ..Self::CARD };
    /// A log of many parts of which hardly anything fits into memory: it is flushed, read and compacted all the time.
    pub(crate) const TIGHT: Self = Self { more: "memory = \"8MiB\"\npart = \"1MiB\"\n", ..Self::CARD };
}

/// What the store tells of its log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogFacts {
    pub(crate) live_bytes: u64,
    pub(crate) unsettled_bytes: u64,
    pub(crate) parts_removed: u64,
    pub(crate) records_copied: u64,
}

/// Card and host, each running or not, and where clients go, which is the same in all their lives.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    status: SocketAddr,
    place: Place,
    card: Option<Program>,
    host: Option<Program>,
    /// What bounds the host, behind the programs because it outlives them.
    confinement: Option<Confinement>,
}

impl Service {
    /// A service that serves.
    pub(crate) fn start(setup: Setup) -> Self {
        Self::start_within(setup, None)
    }

    /// A service whose host is bounded.
    pub(crate) fn start_confined(setup: Setup, confinement: Confinement) -> Self {
        Self::start_within(setup, Some(confinement))
    }

    fn start_within(setup: Setup, confinement: Option<Confinement>) -> Self {
        let (address, status) = free_addresses();
        let Setup { placement, durability, files, more, by_programs } = setup;
        let place = Place::with_config(&format!(
            "[status]\nlisten = \"{status}\"\n[files]\n{files}{FREE_NVME_PORTS}\
             [kv]\nlisten = \"{address}\"\nplacement = \"{placement}\"\ndurability = \"{durability}\"\n{more}"
        ));
        let mut service = Self { address, status, place, card: None, host: None, confinement };
        service.start_card();
        service.start_host();
        service.wait_until_it_serves();
        if by_programs {
            service.offload(&["load", KV_GET]);
        }
        service
    }

    /// What `outboard offload` says, after it has done what it was asked to.
    pub(crate) fn offload(&self, arguments: &[&str]) -> serde_json::Value {
        let output = self.place.output(&[&["offload"], arguments, &["--json"], OF_THIS_CARD].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What it says when it does not.
    pub(crate) fn offload_refused(&self, arguments: &[&str]) -> String {
        let output = self.place.output(&[&["offload"], arguments, OF_THIS_CARD].concat());
        assert!(!output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).unwrap()
    }

    /// How many GETs programs have answered.
    pub(crate) fn answered_by_programs(&self) -> u64 {
        let listed = self.offload(&["ls"]);
        let programs = listed["objects"].as_array().unwrap().iter().flat_map(|object| {
            object["programs"].as_array().unwrap().iter().filter(|program| program["hook"] == "check")
        });
        programs.map(|check| check["calls"].as_u64().unwrap() - check["left"].as_u64().unwrap()).sum()
    }

    pub(crate) fn start_card(&mut self) {
        self.card.insert(self.place.start_behind(SHELL, &["card"])).wait_for("The card is ready");
    }

    pub(crate) fn start_host(&mut self) {
        let host = match &self.confinement {
            None => self.place.start_behind(SHELL, &["host"]),
            Some(confinement) => {
                self.place.start_behind(&format!("{SHELL} && {}", confinement.script()), &["host"])
            }
        };
        self.host.insert(host).wait_for("The host is ready");
    }

    /// Waits for something that the host says, or has said since it was started: what it says on one stream may come before what it has
    /// said on the other.
    pub(crate) fn wait_for_host(&mut self, text: &str) {
        let host = self.host.as_mut().unwrap();
        if !host.seen().iter().any(|line| line.contains(text)) {
            host.wait_for(text);
        }
    }

    /// Another host at the same card, with a directory of its own.
    pub(crate) fn another_host(&self) -> Program {
        self.another_host_without("")
    }

    /// The same, in whose configuration some lines are missing.
    pub(crate) fn another_host_without(&self, lines: &str) -> Program {
        let socket = self.place.data().join("link.sock");
        let config = std::fs::read_to_string(self.place.path().join("outboard.toml")).unwrap();
        let config = config.replace(lines, "");
        let config = format!("[link]\nsocket = \"{}\"\n{config}", socket.display());
        std::fs::write(self.place.path().join("another.toml"), config).unwrap();
        self.place.start_with("another.toml", "another", &["host"])
    }

    /// The most memory that the host has had in its present life.
    pub(crate) fn host_memory_peak(&self) -> u64 {
        confinement::memory_peak(self.host.as_ref().unwrap().pid())
    }

    /// The most memory that the card has had in its present life.
    pub(crate) fn card_memory_peak(&self) -> u64 {
        confinement::memory_peak(self.card.as_ref().unwrap().pid())
    }

    /// Where applications attach.
    pub(crate) fn socket(&self) -> std::path::PathBuf {
        self.place.data().join("link.sock")
    }

    /// What `INFO` says of the store's log.
    pub(crate) fn log_facts(&self) -> LogFacts {
        let answer = self.client().ask_line("INFO persistence").unwrap();
        let Value::Bytes(text) = answer else { panic!("{answer:?}") };
        let text = String::from_utf8(text).unwrap();
        let fact = |name| number_after(&text, &format!("\nlog_{name}:"));
        LogFacts {
            live_bytes: fact("live_bytes"),
            unsettled_bytes: fact("unsettled_bytes"),
            parts_removed: fact("parts_removed"),
            records_copied: fact("records_copied"),
        }
    }

    /// Waits until a host that is killed would find everything again that was answered before.
    pub(crate) fn wait_until_settled(&self) {
        wait_until("the log is settled", || self.log_facts().unsettled_bytes == 0);
    }

    pub(crate) fn kill_card(&mut self) {
        Self::end(&mut self.card, Signal::KILL);
    }

    pub(crate) fn kill_host(&mut self) {
        Self::end(&mut self.host, Signal::KILL);
    }

    /// Kills the card, and then the host at once.
    pub(crate) fn kill_both(&mut self) {
        self.kill_card();
        self.kill_host();
    }

    /// Starts each half that was killed.
    pub(crate) fn start_what_is_dead(&mut self) {
        if self.card.is_none() {
            self.start_card();
        }
        if self.host.is_none() {
            self.start_host();
        }
    }

    /// Stops both as an administrator would.
    pub(crate) fn stop(&mut self) {
        Self::end(&mut self.host, Signal::TERM);
        Self::end(&mut self.card, Signal::TERM);
    }

    fn end(half: &mut Option<Program>, signal: Signal) {
        let mut program = half.take().unwrap();
        program.signal(signal);
        let status = program.wait();
        assert!(signal == Signal::KILL || status.success(), "{status}: {:#?}", program.seen());
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address).unwrap()
    }

    /// Waits until a request that only the host can answer is answered without an error.
    pub(crate) fn wait_until_it_serves(&self) {
        wait_until("the service serves", || {
            let answer = Client::connect(self.address).and_then(|mut client| client.ask_line("DBSIZE"));
            match answer {
                Ok(Value::Number(_)) => true,
                Ok(Value::Error(text)) => text.starts_with("NOAUTH"),
                _ => false,
            }
        });
    }

    /// How many requests of clients a half has answered in the card's present life, as of some moments ago.
    pub(crate) fn served_by(&self, half: Half) -> u64 {
        let status = status::fetch(self.status).unwrap();
        let rows = status.requests.iter().filter(|row| row.service == "kv" && row.half == half);
        rows.map(|row| row.count).sum()
    }

    /// What the card tells of its half, as of some moments ago.
    pub(crate) fn told(&self) -> Option<status::KvStatus> {
        status::fetch(self.status).unwrap().kv
    }

    /// How many requests the host has answered for a reason in the card's present life, as of some moments ago.
    pub(crate) fn sent_to_host_as(&self, reason: &str) -> u64 {
        let status = status::fetch(self.status).unwrap();
        let rows = status.requests.iter().filter(|row| row.service == "kv" && row.half == Half::Host);
        rows.filter(|row| row.reason == reason).map(|row| row.count).sum()
    }

    /// Asks for a key until the card answers: then its record is on the device, and the card knows where.
    pub(crate) fn wait_until_the_card_serves(&self, key: &str) {
        wait_until_the_card_serves(&mut self.client(), &[key]);
    }
}

/// Asks for keys until the card answers for all of them; nobody else may be reading.
pub(crate) fn wait_until_the_card_serves<K: AsRef<str>>(client: &mut Client, keys: &[K]) {
    wait_until("the card serves these keys", || {
        let before = host_reads(client);
        for key in keys {
            let answer = client.ask(&["GET", key.as_ref()]).unwrap();
            assert!(matches!(answer, Value::Bytes(_)), "{}: {answer:?}", key.as_ref());
        }
        host_reads(client) == before
    });
}

/// How many keys the host has looked for in its present life, because of requests that read. Unlike the card's counts, which are
/// published now and then, this is as of now: what was answered and not read by the host was read by the card.
pub(crate) fn host_reads(client: &mut Client) -> u64 {
    let answer = client.ask_line("INFO stats").unwrap();
    let Value::Bytes(text) = answer else { panic!("{answer:?}") };
    let text = String::from_utf8(text).unwrap();
    number_after(&text, "keyspace_hits:") + number_after(&text, "keyspace_misses:")
}

/// Looks until it is so, or the deadline is over.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < deadline, "it did not come to this: {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Two addresses that nobody uses, and that nobody else will be given: they are the same in each life of a card, so ports
/// that are free by chance will not do. Each service of each test process has an address of the loopback network to
/// itself, which connections to other addresses do not take ports of.
fn free_addresses() -> (SocketAddr, SocketAddr) {
    static SERVICES: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let own = Ipv4Addr::new(127, high | 0x80, low, SERVICES.fetch_add(1, Ordering::Relaxed));
    let listeners = [(); 2].map(|()| TcpListener::bind((IpAddr::V4(own), 0)).unwrap());
    let [address, status] = listeners.map(|listener| listener.local_addr().unwrap());
    (address, status)
}
