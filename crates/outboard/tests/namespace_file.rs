//! Namespaces on files of the card's own file system: the real program, our own initiator, and cards that are killed.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

use crate::support;

use std::net::SocketAddr;
use std::process::Output;

use ob_nvme::initiator::{Error, Initiator, Namespace, Options, RetryPolicy};
use ob_wire_nvme::{NamespaceId, Status};
use rustix::process::Signal;
use serde_json::Value;
use support::{FREE_NVME_PORTS, Place, Program, number_after};

const NQN: &str = "nqn.2026-11.io.outboard:card";
const MIB: u64 = 1 << 20;
/// More than one block, whatever the device has.
const PIECE: u64 = 8192;
const SEGMENT: u64 = 64 << 10;

/// 32 MiB of files in segments of 64 KiB.
fn place() -> Place {
    let files = "[files]\nsize = \"32MiB\"\nsegment = \"64KiB\"\n";
    Place::with_config(&format!("[status]\nlisten = \"127.0.0.1:0\"\n{files}{FREE_NVME_PORTS}"))
}

/// A card, and where it serves NVMe/TCP.
fn start(place: &Place) -> (Program, SocketAddr) {
    let mut card = place.start(&["card", "--json"]);
    let line = card.wait_for("nvme connect");
    let port = u16::try_from(number_after(&line, "-a 127.0.0.1 -s ")).unwrap();
    (card, SocketAddr::from(([127, 0, 0, 1], port)))
}

fn run(place: &Place, arguments: &[&str]) -> Output {
    let mut all = arguments.to_vec();
    all.extend(["--config", "outboard.toml", "--data", "data"]);
    place.output(&all)
}

fn done(place: &Place, arguments: &[&str]) -> String {
    let output = run(place, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(place: &Place, arguments: &[&str], told: &str) {
    let output = run(place, arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains(told), "{arguments:?}: {text}");
}

/// Pieces of requests that the card's files had to copy.
fn copied(place: &Place, card: &Program) -> u64 {
    let line = card.seen().iter().find(|line| line.contains("nvme connect")).unwrap();
    let endpoint = format!("127.0.0.1:{}", number_after(line, "\"status\":\"127.0.0.1:"));
    let status = place.output(&["status", "--endpoint", &endpoint, "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    status["files"]["unaligned"].as_u64().unwrap()
}

/// Bytes that files have, as `df` counts them.
fn used(place: &Place) -> u64 {
    let space: Value = serde_json::from_str(&done(place, &["files", "df", "--json"])).unwrap();
    space["used_bytes"].as_u64().unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

async fn connect(address: SocketAddr) -> Initiator {
    let options = Options::new(address, NQN, [7; 16]).unwrap();
    Initiator::connect(Options { retry: RetryPolicy::never(), ..options }).await.unwrap()
}

/// Bytes of a namespace that have content, as it says now.
async fn used_by(initiator: &Initiator, nsid: u32) -> u64 {
    let namespace = initiator.namespace(NamespaceId(nsid)).await.unwrap();
    namespace.used() * u64::from(namespace.block_len())
}

/// So many bytes in blocks of a namespace.
fn blocks(namespace: &Namespace, bytes: u64) -> u64 {
    bytes / u64::from(namespace.block_len())
}

async fn write(namespace: &Namespace, at: u64, bytes: &[u8]) -> Result<(), Error> {
    namespace.write(blocks(namespace, at), bytes.to_vec()).await
}

async fn read(namespace: &Namespace, at: u64, len: u64) -> Vec<u8> {
    namespace.read(blocks(namespace, at), blocks(namespace, len)).await.unwrap()
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

fn pattern(tag: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| ((at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u8 ^ tag as u8 | 1).collect()
}

/// While a namespace lies on `/volumes/a`, nothing and nobody else changes it.
fn nobody_takes_it_away(place: &Place) {
    for change in [
        &["files", "rm", "/volumes/a"][..],
        &["files", "mv", "/volumes/a", "/b"],
        &["files", "mv", "/volumes", "/elsewhere"],
        &["files", "put", "copy", "/volumes/a"],
    ] {
        refused(place, change, "outboard namespace list");
    }
    refused(place, &["namespace", "add", "--device", "file:/volumes/a"], "a namespace lies on this file");
    refused(place, &["namespace", "add", "--device", "file:a"], "file:/volumes/a");
    refused(place, &["namespace", "add", "--device", "file:/volumes/a/b"], "hint: ");
}

#[test]
fn a_namespace_on_a_file_keeps_what_it_promised_and_gives_space_back() {
    let place = place();
    let (mut card, address) = start(&place);
    let added = done(&place, &["namespace", "add", "--size", "8MiB", "--device", "file:/volumes/a"]);
    assert!(added.contains("file:/volumes/a"), "{added}");
    assert_eq!(used(&place), 0, "nothing is written, nothing is taken");
    let (flushed, durable) = (pattern(1, MIB + PIECE), pattern(2, PIECE));
    block_on(async {
        let initiator = connect(address).await;
        let two = initiator.namespace(NamespaceId(2)).await.unwrap();
        assert_eq!(two.len(), 8 * MIB);
        assert_eq!(used_by(&initiator, 2).await, 0);
        assert_eq!(used_by(&initiator, 1).await, 64 * MIB, "this one is no such file");
        write(&two, SEGMENT, &flushed).await.unwrap();
        two.flush().await.unwrap();
        two.write_durably(blocks(&two, 4 * MIB), durable.clone()).await.unwrap();
        assert!(read(&two, SEGMENT, MIB + PIECE).await == flushed);
    });
    assert_eq!(copied(&place, &card), 0, "the buffers of the network are those of the device");
    card.signal(Signal::KILL);
    card.wait();

    let (mut card, address) = start(&place);
    assert!(done(&place, &["files", "ls", "/volumes", "-l"]).contains('a'));
    done(&place, &["files", "get", "/volumes/a", "copy"]);
    let copy = std::fs::read(place.path().join("copy")).unwrap();
    assert!(copy.len() as u64 == 8 * MIB && copy[SEGMENT as usize..][..flushed.len()] == flushed);
    block_on(async {
        let initiator = connect(address).await;
        let two = initiator.namespace(NamespaceId(2)).await.unwrap();
        assert!(read(&two, SEGMENT, MIB + PIECE).await == flushed);
        assert!(read(&two, 4 * MIB, PIECE).await == durable);
        assert!(is_zero(&read(&two, 3 * MIB, PIECE).await));
        let before = used(&place);
        assert_eq!(before, 2 * SEGMENT + MIB, "17 segments, and one");
        assert_eq!(used_by(&initiator, 2).await, before);
        two.deallocate(blocks(&two, SEGMENT), blocks(&two, MIB)).await.unwrap();
        assert_eq!(used(&place), before - MIB, "what is deallocated is free");
        assert_eq!(used_by(&initiator, 2).await, before - MIB);
        assert!(is_zero(&read(&two, SEGMENT, MIB).await));
        assert!(read(&two, SEGMENT + MIB, PIECE).await == flushed[MIB as usize..]);
        two.write_zeroes(blocks(&two, SEGMENT + MIB), blocks(&two, PIECE / 2), true).await.unwrap();
        let left = read(&two, SEGMENT + MIB, PIECE).await;
        let (zeros, kept) = left.split_at(PIECE as usize / 2);
        assert!(is_zero(zeros) && *kept == flushed[(MIB + PIECE / 2) as usize..]);
        assert!(read(&two, 4 * MIB, PIECE).await == durable);
    });

    nobody_takes_it_away(&place);
    done(&place, &["namespace", "resize", "2", "16MiB"]);
    done(&place, &["namespace", "resize", "2", "5MiB", "--shrink"]);
    block_on(async {
        let initiator = connect(address).await;
        let two = initiator.namespace(NamespaceId(2)).await.unwrap();
        assert_eq!(two.len(), 5 * MIB);
        assert!(read(&two, 4 * MIB, PIECE).await == durable);
    });
    done(&place, &["namespace", "rm", "2"]);
    let stat: Value =
        serde_json::from_str(&done(&place, &["files", "stat", "/volumes/a", "--json"])).unwrap();
    assert_eq!(stat["size"].as_u64(), Some(5 * MIB), "what it lay on stays");
    done(&place, &["files", "rm", "/volumes/a"]);
    assert_eq!(used(&place), 0);
    card.signal(Signal::TERM);
    assert!(card.wait().success());
}

#[test]
fn full_files_are_told_to_the_host_and_lose_nothing() {
    let place = place();
    let (mut card, address) = start(&place);
    // A promise of more than there is: space is taken as it is written.
    done(&place, &["namespace", "add", "--size", "64MiB", "--device", "file:/thin"]);
    let written = block_on(async {
        let initiator = connect(address).await;
        let two = initiator.namespace(NamespaceId(2)).await.unwrap();
        let mut written = 0;
        let error = loop {
            match write(&two, written * SEGMENT, &pattern(written, SEGMENT)).await {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert!(
            matches!(error, Error::Command { status, .. } if status.code() == Status::CAPACITY_EXCEEDED.code()),
            "{error}"
        );
        assert!(written * SEGMENT > 24 * MIB, "{written} segments");
        two.flush().await.unwrap();
        two.deallocate(0, blocks(&two, SEGMENT)).await.unwrap();
        write(&two, written * SEGMENT, &pattern(written, SEGMENT)).await.unwrap();
        two.flush().await.unwrap();
        written
    });
    card.signal(Signal::KILL);
    card.wait();
    let (card, address) = start(&place);
    block_on(async {
        let initiator = connect(address).await;
        let two = initiator.namespace(NamespaceId(2)).await.unwrap();
        for segment in 1..=written {
            let found = read(&two, segment * SEGMENT, SEGMENT).await;
            assert!(found == pattern(segment, SEGMENT), "segment {segment}");
        }
    });
    drop(card);
}

#[test]
fn the_configured_namespace_may_lie_on_a_file_too() {
    let files = "[files]\nsize = \"32MiB\"\nsegment = \"64KiB\"\n";
    let nvme = format!("{FREE_NVME_PORTS}device = \"file:/volumes/first\"\n");
    let place = Place::with_config(&format!("[status]\nlisten = \"127.0.0.1:0\"\n{files}{nvme}"));
    let bytes = pattern(3, PIECE);
    let (mut card, address) = start(&place);
    block_on(async {
        let one = connect(address).await.namespace(NamespaceId(1)).await.unwrap();
        assert_eq!(one.len(), 64 * MIB);
        one.write_durably(blocks(&one, MIB), bytes.clone()).await.unwrap();
    });
    card.signal(Signal::KILL);
    card.wait();
    let (mut card, address) = start(&place);
    block_on(async {
        let one = connect(address).await.namespace(NamespaceId(1)).await.unwrap();
        assert!(read(&one, MIB, PIECE).await == bytes);
    });
    card.signal(Signal::TERM);
    assert!(card.wait().success());

    // Data that is missing is not replaced by an empty disk of the same name.
    std::fs::remove_file(place.data().join("card/files.img")).unwrap();
    refused(&place, &["card"], "file:/volumes/first is missing");
}
