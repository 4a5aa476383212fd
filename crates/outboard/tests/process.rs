//! The halves as processes: how many threads they have, how much memory strangers can make them take, and that no service keeps
//! another from its turns.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support;

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ob_files_host::{Endpoint, File, GroupOptions, OpenOptions, Session, SessionOptions};
use rustix::process::Signal;

use support::kv::{Service, Setup};
use support::resp::request;
use support::{DEADLINE, Place, pid_after};

/// The names of a process's threads, in order. Workers that the kernel lends to io_uring are not its own.
fn threads(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok().map(|name| name.trim_end().to_owned())
    };
    let mut names: Vec<String> = tasks.filter_map(name).filter(|name| !name.starts_with("iou-")).collect();
    names.sort();
    names
}

/// Waits until a process has these threads and no others: some are there for a moment while it starts.
fn wait_for_threads(pid: u32, expected: &[&str]) {
    let started = Instant::now();
    while threads(pid) != expected {
        assert!(started.elapsed() < DEADLINE, "{:?}, where {expected:?} were expected", threads(pid));
        std::thread::sleep(LOOK_AGAIN);
    }
}

const LOOK_AGAIN: Duration = Duration::from_millis(5);

#[test]
fn a_half_works_on_one_thread_by_default() {
    let config = "[status]\nlisten = \"127.0.0.1:0\"\n[kv]\nlisten = \"127.0.0.1:0\"\n";
    let place = Place::with_config(config);
    let mut up = place.start(&["up"]);
    let line = up.wait_for("Outboard is up");
    // `outboard` is the reactor's. The others wait for what a reactor must not wait for: readers of the status, commands, the
    // file of namespaces, programs that are verified.
    let card = ["catalogue", "control", "outboard", "programs", "status"];
    wait_for_threads(pid_after(&line, "card (pid "), &card);
    // `kv` is the store's; `outboard` watches, and the others attach.
    let host = ["kv", "outboard", "outboard-link", "outboard-link", "outboard-sessio"];
    wait_for_threads(pid_after(&line, "host (pid "), &host);
    up.signal(Signal::TERM);
    assert_eq!(up.wait().code(), Some(0));
}

/// What all longer messages may have together (docs/director.md).
const LONG_MESSAGES: u64 = 128 << 20;
/// More than one connection may have besides.
const OF_A_CONNECTION: u64 = 512 << 10;
/// What else a card allocates in that time.
const SLACK: u64 = 16 << 20;
const STRANGERS: u64 = 40;
/// Together more than there is.
const SENT_EACH: usize = 8 << 20;
/// Who is not received from for so long has been told to wait.
const STUCK: Duration = Duration::from_secs(1);

/// Sends the begin of a value of 32 MiB, as far as it is taken.
fn send_what_is_taken(address: SocketAddr, number: u64) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_write_timeout(Some(STUCK)).unwrap();
    stream
        .write_all(format!("*3\r\n$3\r\nSET\r\n$5\r\nk{number:04}\r\n${}\r\n", 32 << 20).as_bytes())
        .unwrap();
    let piece = vec![b'x'; 64 << 10];
    let mut left = SENT_EACH;
    while left > 0 {
        match stream.write(&piece[..piece.len().min(left)]) {
            Ok(count) => left -= count,
            Err(_) => break,
        }
    }
    stream
}

#[test]
fn long_messages_of_many_take_no_more_of_the_card_than_they_may() {
    let service = Service::start(Setup::CARD);
    let before = service.card_memory_peak();
    let address = service.address;
    let strangers: Vec<TcpStream> = std::thread::scope(|scope| {
        let send = |number| scope.spawn(move || send_what_is_taken(address, number));
        let sending: Vec<_> = (0..STRANGERS).map(send).collect();
        sending.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let taken = service.card_memory_peak() - before;
    println!("{} MiB for {} strangers", taken >> 20, strangers.len());
    assert!(taken > LONG_MESSAGES / 2, "only {taken} bytes: they have not filled it");
    assert!(taken < LONG_MESSAGES + STRANGERS * OF_A_CONNECTION + SLACK, "{taken} bytes");
    drop(strangers);
    assert_eq!(service.client().ask_line("GET none").unwrap(), support::resp::Value::Nothing);
}

const READS: u64 = 500;
/// How much longer reads may take beside a flood than alone: what is slow for both is the machine. Who is kept from its turns
/// waits for as long as the flood lasts.
const DISTURBED_MAX: u32 = 200;
const LEAST: Duration = Duration::from_secs(20);

/// How long some reads of a file take, one after the other.
fn read_for(file: &File) -> Duration {
    let started = Instant::now();
    for round in 0..READS {
        let (result, read) = file.read_at(vec![0; 4096], round % 16 * 4096).wait();
        assert_eq!((result.unwrap(), read[0]), (4096, 7));
    }
    started.elapsed()
}

/// Asks for what the card has, hundreds at once, until it is told to stop.
fn flood(address: SocketAddr, is_over: &AtomicBool, answers: &AtomicU64) {
    let mut client = support::resp::Client::connect(address).unwrap();
    let many = request(&["GET", "a"]).repeat(200);
    while !is_over.load(Ordering::Relaxed) {
        client.send(&many).unwrap();
        for _ in 0..200 {
            client.receive().unwrap();
        }
        answers.fetch_add(200, Ordering::Relaxed);
    }
}

#[test]
fn a_flood_of_one_service_leaves_another_its_turns() {
    let service = Service::start(Setup::CARD);
    service.client().ask_line("SET a value").unwrap();
    service.wait_until_the_card_serves("a");
    let session = Session::open(SessionOptions::new(Endpoint::Unix(service.socket()))).unwrap();
    let group = session.group(GroupOptions::default()).unwrap();
    let file = group.open("/read", OpenOptions::new().create_new(true)).wait().unwrap();
    let (written, _) = file.write_at(vec![7; 64 << 10], 0).wait();
    written.unwrap();
    let alone = read_for(&file);
    let (is_over, answers) = (AtomicBool::new(false), AtomicU64::new(0));
    let beside = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| flood(service.address, &is_over, &answers));
        }
        while answers.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let beside = read_for(&file);
        is_over.store(true, Ordering::Relaxed);
        beside
    });
    println!("{READS} reads: {alone:?} alone, {beside:?} beside {} answers", answers.into_inner());
    assert!(beside < LEAST.max(alone * DISTURBED_MAX), "{beside:?}, and {alone:?} without the flood");
}
