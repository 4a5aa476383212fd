//! The key-value service, in two processes that can be killed one by one.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use outboard::halves::Half;
use outboard::status;
use rustix::process::Signal;

use super::resp::{Client, Value};
use super::{DEADLINE, FREE_NVME_PORTS, Place, Program};

/// How often something is looked at that cannot be waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// How the service is configured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) placement: &'static str,
    pub(crate) durability: &'static str,
    /// More lines of `[kv]`.
    pub(crate) more: &'static str,
}

impl Setup {
    pub(crate) const CARD: Self =
        Self { placement: "card", durability: "always", more: "memory = \"64MiB\"\npart = \"128MiB\"\n" };
    pub(crate) const HOST: Self = Self { placement: "host", ..Self::CARD };
    /// A log of many parts of which hardly anything fits into memory: it is flushed, read and compacted all the time.
    pub(crate) const TIGHT: Self = Self { more: "memory = \"8MiB\"\npart = \"1MiB\"\n", ..Self::CARD };
}

/// Card and host, each running or not, and where clients go, which is the same in all their lives.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    status: SocketAddr,
    place: Place,
    card: Option<Program>,
    host: Option<Program>,
}

impl Service {
    /// A service that serves.
    pub(crate) fn start(setup: Setup) -> Self {
        let (address, status) = free_addresses();
        let Setup { placement, durability, more } = setup;
        let place = Place::with_config(&format!(
            "[status]\nlisten = \"{status}\"\n[files]\nsize = \"4GiB\"\n{FREE_NVME_PORTS}\
             [kv]\nlisten = \"{address}\"\nplacement = \"{placement}\"\ndurability = \"{durability}\"\n{more}"
        ));
        let mut service = Self { address, status, place, card: None, host: None };
        service.start_card();
        service.start_host();
        service.wait_until_it_serves();
        service
    }

    pub(crate) fn start_card(&mut self) {
        self.card.insert(self.place.start(&["card"])).wait_for("The card is ready");
    }

    pub(crate) fn start_host(&mut self) {
        self.host.insert(self.place.start(&["host"])).wait_for("The host is ready");
    }

    pub(crate) fn kill_card(&mut self) {
        Self::end(&mut self.card, Signal::KILL);
    }

    pub(crate) fn kill_host(&mut self) {
        Self::end(&mut self.host, Signal::KILL);
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
        let (card, host) = self.served();
        if half == Half::Card { card } else { host }
    }

    fn served(&self) -> (u64, u64) {
        let status = status::fetch(self.status).unwrap();
        let of = |half| {
            let rows = status.requests.iter().filter(|row| row.service == "kv" && row.half == half);
            rows.map(|row| row.count).sum()
        };
        (of(Half::Card), of(Half::Host))
    }

    /// Asks for a key until the card answers: then its record is on the device, and the card knows where.
    pub(crate) fn wait_until_the_card_serves(&self, key: &str) {
        let mut client = self.client();
        wait_until("the card serves a key", || {
            let before = self.served_until_now(&mut client);
            client.ask(&["GET", key]).unwrap();
            self.served_until_now(&mut client).0 > before.0
        });
    }

    /// How many requests each half has answered, those of just now included; nobody else may be asking. The status may be some time
    /// old: it is a new one when it has changed because of a request that was made after it had been looked at.
    fn served_until_now(&self, client: &mut Client) -> (u64, u64) {
        let old = self.served();
        let mut seen = old;
        client.ask(&["ECHO", "anybody"]).unwrap();
        wait_until("the status has changed", || {
            seen = self.served();
            seen.1 > old.1
        });
        seen
    }
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
