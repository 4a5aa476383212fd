//! Two tiers of a disk: each a card and a host, over chunk servers of both and an etcd. One is killed while it is written to, and etcd is
//! stopped and started again; what was acknowledged is read through the other.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ob_nvme::initiator::{
    Error, InOrder, Initiator, Namespace, Options, Reconnect, RetryPolicy, block_on, random_host_id,
};
use ob_plant::not_tested;
use ob_wire_nvme::Status;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::etcd::Etcd;
use crate::support::{DEADLINE, Place, Program, number_after};
use crate::volumes::{BLOCK, NQN, bytes, disk_at, kill, start_server};

/// Blocks of a writer, and how many it writes at a time.
const BLOCKS: u64 = 64;
const AT_ONCE: u64 = 8;

/// A card and its host.
struct Tier {
    card: Program,
    host: Program,
    volume: SocketAddr,
    status: SocketAddr,
}

impl Tier {
    fn start(place: &Place, data: &str) -> Self {
        let mut card = place.start_with("outboard.toml", data, &["card"]);
        let ready = card.wait_for("The card is ready");
        let at = |word: &str| -> SocketAddr {
            format!("127.0.0.1:{}", number_after(&ready, &format!("{word}127.0.0.1:"))).parse().unwrap()
        };
        let (volume, status) = (at("volumes on "), at("status http://"));
        let host = place.start_with("outboard.toml", data, &["host"]);
        Self { card, host, volume, status }
    }

    fn kill(&mut self) {
        kill(&mut self.host);
        kill(&mut self.card);
    }

    fn wait_for(&self, place: &Place, what: &str, is: impl Fn(&Value) -> bool) {
        let address = self.status.to_string();
        let deadline = Instant::now() + DEADLINE;
        loop {
            let output = place.output(&["status", "--json", "--endpoint", &address]);
            let status: Value = serde_json::from_slice(&output.stdout).unwrap();
            if is(&status) {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: {status:#}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// What a writer has asked for, and what it was answered.
#[derive(Default)]
struct Known {
    tried: BTreeMap<u64, u64>,
    acknowledged: BTreeMap<u64, u64>,
    rounds: u64,
}

impl Known {
    /// Whether these are the bytes of what was acknowledged last, or of what was under way.
    fn has(&self, block: u64, found: &[u8]) -> bool {
        let (tried, acknowledged) = (self.tried.get(&block), self.acknowledged.get(&block));
        tried.is_some_and(|stamp| found == content(block, *stamp))
            || acknowledged
                .map_or_else(|| found.iter().all(|byte| *byte == 0), |stamp| found == content(block, *stamp))
    }
}

/// A client that writes its blocks again and again, and reads what it has written.
struct Writer {
    start: u64,
    known: Arc<Mutex<Known>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// One that goes on whatever happens, or one that ends with the first thing that fails.
    fn start(volume: SocketAddr, start: u64, is_patient: bool) -> Self {
        let (known, stop) = (Arc::new(Mutex::new(Known::default())), Arc::new(AtomicBool::new(false)));
        let (shared, asked) = (Arc::clone(&known), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut options = Options::new(volume, NQN, random_host_id()).unwrap();
            if !is_patient {
                options.retry = RetryPolicy::never();
                options.reconnect = Reconnect { give_up_after: Duration::ZERO, ..Reconnect::default() };
            }
            let written = block_on(write(options, start, &shared, &asked));
            assert!(written.is_ok() || !is_patient, "{written:?}");
        });
        Self { start, known, stop, thread }
    }

    fn rounds(&self) -> u64 {
        self.known.lock().unwrap().rounds
    }

    /// Until so much more was written and read.
    fn wait_for(&self, rounds: u64) {
        let (before, deadline) = (self.rounds(), Instant::now() + DEADLINE);
        while self.rounds() < before + rounds {
            assert!(Instant::now() < deadline && !self.thread.is_finished(), "it does not get on");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it knows, when it has come to its end.
    fn end(self) -> (u64, Known) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
        (self.start, Arc::into_inner(self.known).unwrap().into_inner().unwrap())
    }
}

fn content(block: u64, stamp: u64) -> Vec<u8> {
    let mut content = bytes(BLOCK, (block * 7 + stamp) as u8);
    content[..8].copy_from_slice(&stamp.to_le_bytes());
    content[8..16].copy_from_slice(&block.to_le_bytes());
    content
}

async fn write(options: Options, start: u64, known: &Mutex<Known>, stop: &AtomicBool) -> Result<(), Error> {
    let initiator = Initiator::connect(options).await?;
    let disk = initiator.namespaces().await?.pop().unwrap();
    let mut stamp = 0;
    while !stop.load(Ordering::Relaxed) {
        stamp += 1;
        let first = start + stamp * AT_ONCE % BLOCKS;
        let mut writes = InOrder::default();
        for block in first..first + AT_ONCE {
            known.lock().unwrap().tried.insert(block, stamp);
            let disk = &disk;
            writes.begin(async move { (block, disk.write(block, content(block, stamp)).await) });
        }
        let mut failed = None;
        while let Some((block, written)) = writes.next().await {
            match written {
                Ok(()) => drop(known.lock().unwrap().acknowledged.insert(block, stamp)),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)?;
        let read = disk.read(first, AT_ONCE).await?;
        for (block, found) in (first..).zip(read.chunks(BLOCK)) {
            assert!(found == content(block, stamp), "block {block} is not what was just written");
        }
        known.lock().unwrap().rounds += 1;
    }
    Ok(())
}

/// All that a writer was told is there.
fn assert_there(disk: &Namespace, start: u64, known: &Known) {
    let deadline = Instant::now() + DEADLINE;
    let read = loop {
        match block_on(disk.read(start, BLOCKS)) {
            Ok(read) => break read,
            Err(error) => {
                let is_held = error.status().is_some_and(|status| status.is(Status::NAMESPACE_NOT_READY));
                assert!(is_held && Instant::now() < deadline, "{error}");
            }
        }
    };
    for (block, found) in (start..).zip(read.chunks(BLOCK)) {
        assert!(known.has(block, found), "block {block} has something else than what was acknowledged");
    }
}

/// Chunk servers, etcd, and the configuration of both tiers.
struct Pool {
    // Programs are killed before their directory is removed.
    _servers: Vec<Program>,
    etcd: Etcd,
    place: Place,
}

impl Pool {
    fn start() -> Option<Self> {
        let etcd = Etcd::start()?;
        let chunks = Place::new();
        let started: Vec<_> = (1..=3).map(|number| start_server(&chunks, number)).collect();
        let addresses: Vec<String> = started.iter().map(|(_, address)| format!("\"{address}\"")).collect();
        let text = format!(
            "[status]\nlisten = \"127.0.0.1:0\"\n[files]\nsize = \"64MiB\"\n[volumes]\nports = [\"127.0.0.1:0\"]\n\
             hold = \"10s\"\nlease = \"2s\"\nservers = [{}]\nmetadata = [\"http://{}\"]\n",
            addresses.join(", "),
            etcd.address
        );
        let place = Place::with_config(&text);
        // Its directory goes with the other one's.
        std::fs::rename(chunks.path(), place.path().join("chunks")).unwrap();
        let servers = started.into_iter().map(|(server, _)| server).collect();
        Some(Self { _servers: servers, etcd, place })
    }
}

/// Needs an etcd, and takes twenty seconds of leases that run out: so it is run by `cargo xtask etcd` alone.
#[test]
#[ignore = "over a real etcd; `cargo xtask etcd` runs it"]
fn a_tier_is_killed_while_it_writes_and_etcd_stopped_and_the_other_tier_goes_on() {
    let Some(mut pool) = Pool::start() else {
        return not_tested("etcd is not installed: `cargo xtask etcd` installs it");
    };
    let mut first = Tier::start(&pool.place, "tier-1");
    let second = Tier::start(&pool.place, "tier-2");
    let (disk, other) = (disk_at(first.volume), disk_at(second.volume));
    assert_eq!((disk.ids(), disk.id(), disk.len()), (other.ids(), other.id(), other.len()));
    assert_eq!(pool.etcd.count("/outboard/default/tiers/"), 2);
    // Both are written to, and the segment goes to and fro between them.
    let one = Writer::start(first.volume, 0, true);
    let two = Writer::start(second.volume, 1000, true);
    for _ in 0..2 {
        one.wait_for(2);
        two.wait_for(2);
    }
    let mut written = vec![one.end(), two.end()];
    for (start, known) in &written {
        assert_there(&disk, *start, known);
        assert_there(&other, *start, known);
    }
    // The first is killed in the midst of writes; and so that its session cannot end meanwhile, etcd is stopped.
    let load = Writer::start(first.volume, 2000, false);
    load.wait_for(20);
    first.kill();
    let killed = Instant::now();
    pool.etcd.stop();
    pool.etcd.begin();
    written.push(load.end());
    let started = Instant::now();
    written.iter().for_each(|(start, known)| assert_there(&other, *start, known));
    eprintln!(
        "the other tier goes on {:.1} s after the first was killed, and {:.1} s after etcd was back",
        killed.elapsed().as_secs_f64(),
        started.elapsed().as_secs_f64()
    );
    // Without etcd the lease runs out, and nothing is answered; with it all goes on.
    let load = Writer::start(second.volume, 3000, true);
    load.wait_for(5);
    pool.etcd.stop();
    second.wait_for(&pool.place, "the lease runs out", |status| {
        status["checks"].as_array().unwrap().iter().any(|check| check["code"] == "OB014")
    });
    let held = load.rounds();
    pool.etcd.begin();
    load.wait_for(5);
    assert!(held > 0);
    written.push(load.end());
    // The first one's next life has all of it.
    first = Tier::start(&pool.place, "tier-1");
    let disk = disk_at(first.volume);
    written.iter().for_each(|(start, known)| assert_there(&disk, *start, known));
    written.iter().for_each(|(start, known)| assert_there(&other, *start, known));
    for mut program in [first.host, first.card, second.host, second.card] {
        program.signal(Signal::TERM);
        assert_eq!(program.wait().code(), Some(0), "{:#?}", program.seen());
    }
    // Whoever is stopped gives back what it has, and its session.
    assert_eq!(pool.etcd.count("/outboard/default/tiers/"), 0);
}
