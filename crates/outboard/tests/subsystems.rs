//! Several NVMe subsystems on one card, as hosts and administrators see them.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

use crate::support;

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::time::Instant;

use ob_nvme::initiator::{Data, Initiator, Options, RawCommand, discover};
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::text::DISCOVERY_NQN;
use ob_wire_nvme::{CommandId, NamespaceId, SubmissionEntry};
use rustix::process::Signal;
use serde_json::Value;
use support::{DEADLINE, Place, Program};

const ONE: &str = "nqn.2026-01.example:one";
const TWO: &str = "nqn.2026-01.example:two";
const HOST: [u8; 16] = [7; 16];

const CONFIG: &str = r#"
[status]
listen = "127.0.0.1:0"

[nvme]
listen = "127.0.0.1:0"
discovery = "127.0.0.1:0"

[[nvme.subsystem]]
nqn = "nqn.2026-01.example:one"
device = "memory"
size = "16MiB"

[[nvme.subsystem]]
nqn = "nqn.2026-01.example:two"
device = "card/two.img"
size = "8MiB"
listen = "127.0.0.1:0"
"#;

/// A card, and where it serves what.
struct Card {
    program: Program,
    one: SocketAddr,
    two: SocketAddr,
    discovery: SocketAddr,
    status: String,
}

fn start(place: &Place) -> Card {
    let mut program = place.start(&["card", "--json"]);
    let ready: Value = serde_json::from_str(&program.wait_for("\"services\"")).unwrap();
    let services = ready["ready"]["services"].as_array().unwrap();
    let texts: Vec<&str> = services.iter().map(|service| service["address"].as_str().unwrap()).collect();
    let nvme: Vec<&&str> = texts.iter().filter(|text| text.contains("discovery at")).collect();
    let first = |text: &str| text.split(' ').next().unwrap().parse().unwrap();
    let discovery = nvme[0].rsplit(' ').next().unwrap().parse().unwrap();
    let status = ready["ready"]["status"].as_str().unwrap().to_owned();
    Card { one: first(nvme[0]), two: first(nvme[1]), discovery, status, program }
}

fn options(address: SocketAddr, subsystem: &str) -> Options {
    Options::new(address, subsystem, HOST).unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn namespace(place: &Place, arguments: &[&str]) -> Result<Value, String> {
    let mut all = vec!["namespace"];
    all.extend(arguments);
    all.extend(["--json", "--config", "outboard.toml", "--data", "data"]);
    let output = place.output(&all);
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

/// Subsystem, id and size of each.
fn rows(listed: &Value) -> Vec<(&str, u64, u64)> {
    let rows = listed.as_array().unwrap().iter();
    let of = |row: &Value, key: &str| row[key].as_u64().unwrap();
    rows.map(|row| (row["subsystem"].as_str().unwrap(), of(row, "nsid"), of(row, "size"))).collect()
}

async fn write_and_read(address: SocketAddr, subsystem: &str, fill: u8) {
    let initiator = Initiator::connect(options(address, subsystem)).await.unwrap();
    let namespace = initiator.namespace(NamespaceId(1)).await.unwrap();
    let block_len = namespace.block_len() as usize;
    let data = vec![fill; 64 * block_len];
    namespace.write(8, data.clone()).await.unwrap();
    namespace.flush().await.unwrap();
    assert_eq!(namespace.read(8, 64).await.unwrap(), data);
    // Space that is given back reads as zeros, as Identify says.
    namespace.write_zeroes(16, 8, true).await.unwrap();
    assert_eq!(namespace.read(16, 8).await.unwrap(), vec![0; 8 * block_len]);
    initiator.disconnect().await;
}

/// Bytes of the disk that the second subsystem's file takes.
fn space_of_two(place: &Place) -> u64 {
    std::fs::metadata(place.data().join("card/two.img")).unwrap().blocks() * 512
}

/// Zeros that may deallocate give the space of what was written back.
async fn give_space_back(place: &Place, address: SocketAddr) {
    let initiator = Initiator::connect(options(address, TWO)).await.unwrap();
    let namespace = initiator.namespace(NamespaceId(1)).await.unwrap();
    let blocks = (1 << 20) / u64::from(namespace.block_len());
    let start = 4 * blocks;
    namespace.write(start, vec![5; 1 << 20]).await.unwrap();
    namespace.flush().await.unwrap();
    let before = space_of_two(place);
    namespace.write_zeroes(start, blocks, true).await.unwrap();
    namespace.flush().await.unwrap();
    let after = space_of_two(place);
    assert!(after + (1 << 19) <= before, "{before} bytes before, {after} after");
    assert_eq!(namespace.read(start, blocks).await.unwrap(), vec![0; 1 << 20]);
    initiator.disconnect().await;
}

/// Registers a reservation key that is to outlive a loss of power.
async fn register(address: SocketAddr, subsystem: &str) {
    let initiator = Initiator::connect(options(address, subsystem)).await.unwrap();
    let mut entry = SubmissionEntry::new(IoOpcode::ReservationRegister.code(), CommandId(0), NamespaceId(1));
    entry.dword10 = (3 << 30_u32).into();
    let mut keys = vec![0; 16];
    keys[8] = 1;
    let data = Data::ToController(keys.into());
    initiator.io(RawCommand { entry, data, is_idempotent: false }).await.unwrap();
    initiator.disconnect().await;
}

fn saved_reservations(place: &Place) -> Vec<String> {
    let text = std::fs::read(place.data().join("card/nvme.json")).unwrap();
    let whole: Value = serde_json::from_slice(&text).unwrap();
    let subsystems = whole["subsystems"].as_array().unwrap().iter();
    let has_some = |subsystem: &&Value| {
        subsystem["namespaces"].as_array().unwrap().iter().any(|row| row["reservations"].is_string())
    };
    subsystems.filter(has_some).map(|subsystem| subsystem["nqn"].as_str().unwrap().to_owned()).collect()
}

/// Nanoseconds that a thread of the card has run so far.
fn run_time(card: &Card, name: &str) -> u64 {
    let tasks = format!("/proc/{}/task", card.program.pid());
    let tasks = std::fs::read_dir(tasks).unwrap().map(|task| task.unwrap().path());
    let named =
        |path: &std::path::PathBuf| std::fs::read_to_string(path.join("comm")).unwrap().trim() == name;
    let task = tasks.into_iter().find(named).expect("the thread");
    let text = std::fs::read_to_string(task.join("schedstat")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn status(place: &Place, card: &Card) -> Value {
    let output = place.output(&["status", "--json", "--endpoint", &card.status]);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Commands over NVMe that the status tells.
fn commands(place: &Place, card: &Card) -> u64 {
    let status = status(place, card);
    let requests = status["requests"].as_array().unwrap().iter();
    requests.filter(|row| row["service"] == "nvme").map(|row| row["count"].as_u64().unwrap()).sum()
}

/// Writes and reads a part of a namespace that nobody else touches, again and again.
async fn load(address: SocketAddr, subsystem: &str, part: u64) {
    let host = [part as u8 + 1; 16];
    let initiator = Initiator::connect(Options::new(address, subsystem, host).unwrap()).await.unwrap();
    let namespace = initiator.namespace(NamespaceId(1)).await.unwrap();
    let blocks = 64;
    for round in 0..100 {
        let data = vec![(round * 7 + part) as u8; blocks as usize * namespace.block_len() as usize];
        namespace.write(part * blocks, data.clone()).await.unwrap();
        assert_eq!(namespace.read(part * blocks, blocks).await.unwrap(), data);
    }
    namespace.flush().await.unwrap();
    initiator.disconnect().await;
}

#[test]
fn threads_serve_a_subsystem_each_under_load() {
    let place = Place::with_config(&CONFIG.replace("[nvme]", "[nvme]\nthreads = 2"));
    let mut card = start(&place);
    let before = run_time(&card, "nvme-2");
    let (one, two) = (card.one, card.two);
    std::thread::scope(|scope| {
        for part in 0..3 {
            scope.spawn(move || block_on(load(one, ONE, part)));
            scope.spawn(move || block_on(load(two, TWO, part)));
        }
        // Administration goes to the thread that it is about, meanwhile.
        for nsid in ["2", "3"] {
            for nqn in [ONE, TWO] {
                namespace(&place, &["add", "--size", "1MiB", "--nqn", nqn]).unwrap();
                namespace(&place, &["resize", nsid, "2MiB", "--nqn", nqn]).unwrap();
            }
        }
    });
    assert!(run_time(&card, "nvme-2") > before, "the second subsystem is the second thread's");
    let listed = namespace(&place, &["list"]).unwrap();
    let added = |nqn| [(nqn, 2, 2 << 20), (nqn, 3, 2 << 20)];
    let [one, two] = [(ONE, 1, 16 << 20), (TWO, 1, 8 << 20)];
    assert_eq!(rows(&listed), [&[one][..], &added(ONE), &[two], &added(TWO)].concat());
    block_on(async {
        for address in [card.discovery, card.one, card.two] {
            let entries = discover(&options(address, ONE)).await.unwrap();
            let mut found: Vec<_> = entries.iter().map(|entry| entry.subsystem.as_str()).collect();
            found.sort_unstable();
            assert_eq!(found, [DISCOVERY_NQN, ONE, TWO], "whichever thread is asked");
        }
        assert!(Initiator::connect(options(card.one, TWO)).await.is_err(), "it is served elsewhere");
        register(card.two, TWO).await;
    });
    assert_eq!(saved_reservations(&place), [TWO]);
    // Numbers of other threads are told a moment later.
    let deadline = Instant::now() + DEADLINE;
    while commands(&place, &card) < 6 * 200 {
        assert!(Instant::now() < deadline, "the figures of both threads are summed");
    }
    card.program.signal(Signal::TERM);
    assert!(card.program.wait().success());

    let mut card = start(&place);
    block_on(async {
        let initiator = Initiator::connect(options(card.two, TWO)).await.unwrap();
        let namespace = initiator.namespace(NamespaceId(1)).await.unwrap();
        assert_eq!(namespace.read(64, 1).await.unwrap()[0], (99 * 7 + 1) as u8);
        initiator.disconnect().await;
    });
    card.program.signal(Signal::KILL);
    card.program.wait();
}

#[test]
fn connections_that_are_too_many_are_closed_and_counted() {
    let place = Place::with_config(&CONFIG.replace("[nvme]", "[nvme]\nthreads = 2"));
    let mut card = start(&place);
    let deadline = Instant::now() + DEADLINE;
    // Again if it took so long that the first were given up for their silence.
    while status(&place, &card)["nvme"]["refused"].as_u64().unwrap() == 0 {
        assert!(Instant::now() < deadline, "nobody was refused");
        // Of 1024 each of the two threads has half.
        let mut silent: Vec<TcpStream> = (0..530).map(|_| TcpStream::connect(card.one).unwrap()).collect();
        silent.iter().for_each(|stream| stream.set_nonblocking(true).unwrap());
        let has_ended = |stream: &mut TcpStream| match stream.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        };
        while !silent.iter_mut().any(has_ended) {
            assert!(Instant::now() < deadline, "none was closed");
            std::thread::yield_now();
        }
    }
    card.program.signal(Signal::TERM);
    assert!(card.program.wait().success());
}

#[test]
fn a_thread_that_cannot_start_says_why_as_the_first_would() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let text = CONFIG.replace("[nvme]", "[nvme]\nthreads = 2");
    let at = text.rfind("127.0.0.1:0").unwrap();
    let text = format!("{}{}{}", &text[..at], taken.local_addr().unwrap(), &text[at + "127.0.0.1:0".len()..]);
    let place = Place::with_config(&text);
    let output = place.output(&["card", "--config", "outboard.toml", "--data", "data"]);
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success(), "{told}");
    let line = 1 + text[..text.rfind("listen = ").unwrap()].matches('\n').count();
    assert!(told.contains("cannot listen on") && told.contains(&format!("outboard.toml:{line}")), "{told}");
}

#[test]
fn subsystems_are_served_apart_and_told_together() {
    let place = Place::with_config(CONFIG);
    let mut card = start(&place);
    assert_ne!(card.one.port(), card.two.port());
    block_on(async {
        let entries = discover(&options(card.discovery, ONE)).await.unwrap();
        let found: Vec<(&str, u16)> =
            entries.iter().map(|entry| (entry.subsystem.as_str(), entry.service)).collect();
        let own = (DISCOVERY_NQN, card.discovery.port());
        assert_eq!(found, [(ONE, card.one.port()), (TWO, card.two.port()), own]);
        write_and_read(card.one, ONE, 1).await;
        write_and_read(card.two, TWO, 2).await;
        give_space_back(&place, card.two).await;
        assert!(Initiator::connect(options(card.one, TWO)).await.is_err(), "it is served elsewhere");
        register(card.two, TWO).await;
    });
    assert_eq!(saved_reservations(&place), [TWO], "answered means saved");

    let before = namespace(&place, &["list"]).unwrap();
    assert_eq!(rows(&before), [(ONE, 1, 16 << 20), (TWO, 1, 8 << 20)]);
    let added = namespace(&place, &["add", "--size", "1MiB", "--nqn", TWO]).unwrap();
    assert_eq!(rows(&added), [(TWO, 1, 8 << 20), (TWO, 2, 1 << 20)]);
    let added = namespace(&place, &["add", "--size", "2MiB"]).unwrap();
    assert_eq!(rows(&added), [(ONE, 1, 16 << 20), (ONE, 2, 2 << 20)], "the first, where none is named");
    namespace(&place, &["resize", "2", "4MiB", "--nqn", TWO]).unwrap();
    namespace(&place, &["rm", "2", "--nqn", ONE]).unwrap();
    let refused = namespace(&place, &["rm", "1", "--nqn", "nqn.2026-01.example:three"]).unwrap_err();
    assert!(refused.contains("no subsystem") && refused.contains(TWO), "{refused}");

    card.program.signal(Signal::KILL);
    card.program.wait();
    let mut card = start(&place);
    let after = namespace(&place, &["list"]).unwrap();
    assert_eq!(rows(&after), [(ONE, 1, 16 << 20), (TWO, 1, 8 << 20), (TWO, 2, 4 << 20)]);
    assert_eq!(after[1]["uuid"], before[1]["uuid"]);
    assert_ne!(after[0]["uuid"], before[0]["uuid"], "what was in memory is gone");
    block_on(async {
        let initiator = Initiator::connect(options(card.two, TWO)).await.unwrap();
        let namespace = initiator.namespace(NamespaceId(1)).await.unwrap();
        assert_eq!(namespace.read(8, 1).await.unwrap()[0], 2);
        initiator.disconnect().await;
    });
    card.program.signal(Signal::TERM);
    assert!(card.program.wait().success());
}
