//! Volumes end to end: the real programs, a real client, and chunk servers that are killed by their id.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support;

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::process::{Output, Stdio};

use ob_nvme::initiator::{Error, Initiator, Namespace, Options, RetryPolicy, block_on, random_host_id};
use ob_wire_nvme::{NamespaceId, Status};
use rustix::process::Signal;
use serde_json::Value;

use support::{Place, Program, number_after, pid_after};

pub(crate) const NQN: &str = "nqn.2026-11.io.outboard:volumes";
pub(crate) const BLOCK: usize = 4096;
const MIB: usize = 1 << 20;

/// Chunk servers, a card, a host, and where the volume is.
pub(crate) struct Tier {
    // Programs are killed before their directories are removed.
    pub(crate) servers: Vec<Program>,
    pub(crate) ports: Vec<SocketAddr>,
    pub(crate) card: Program,
    pub(crate) host: Program,
    pub(crate) place: Place,
    pub(crate) volume: SocketAddr,
    pub(crate) status: SocketAddr,
}

impl Tier {
    pub(crate) fn start() -> Self {
        Self::start_with(3)
    }

    pub(crate) fn start_with(count: u32) -> Self {
        Self::start_as(count, "ports = [\"127.0.0.1:0\"]\nhold = \"5s\"\n")
    }

    /// With these lines in the section of volumes, and behind it.
    pub(crate) fn start_as(count: u32, lines: &str) -> Self {
        let chunks = Place::new();
        let mut servers = Vec::new();
        let mut ports = Vec::new();
        let mut addresses = Vec::new();
        for number in 1..=count {
            let (server, address) = start_server(&chunks, number);
            servers.push(server);
            ports.push(address);
            addresses.push(format!("\"{address}\""));
        }
        let text = format!(
            "[status]\nlisten = \"127.0.0.1:0\"\n[files]\nsize = \"64MiB\"\n[volumes]\nservers = [{}]\n{lines}",
            addresses.join(", ")
        );
        let place = Place::with_config(&text);
        // Its directory goes with the other one's.
        std::fs::rename(chunks.path(), place.path().join("chunks")).unwrap();
        let mut card = place.start(&["card"]);
        let ready = card.wait_for("The card is ready");
        let at = |word: &str| -> SocketAddr {
            format!("127.0.0.1:{}", number_after(&ready, &format!("{word}127.0.0.1:"))).parse().unwrap()
        };
        let (volume, status) = (at("volumes on "), at("status http://"));
        let host = place.start(&["host"]);
        let tier = Self { servers, ports, card, host, place, volume, status };
        tier.wait_for("there is a disk", |volumes| volumes["disks"][0]["namespace"] == 1);
        tier
    }

    /// Starts a server that was killed: with what it has, where it was.
    pub(crate) fn restart(&mut self, server: usize) {
        let (listen, data) = (self.ports[server].to_string(), format!("chunks/chunk-{}", server + 1));
        let arguments = ["chunkserver", "--listen", &listen];
        let mut program = self.place.start_with("outboard.toml", &data, &arguments);
        program.wait_for("The chunkserver is ready");
        self.servers[server] = program;
    }

    /// Starts the card that was killed; its ports are others.
    pub(crate) fn restart_card(&mut self) {
        self.card = self.place.start(&["card"]);
        let ready = self.card.wait_for("The card is ready");
        let at = |word: &str| -> SocketAddr {
            format!("127.0.0.1:{}", number_after(&ready, &format!("{word}127.0.0.1:"))).parse().unwrap()
        };
        (self.volume, self.status) = (at("volumes on "), at("status http://"));
    }

    /// Until the status of volumes is as it should be.
    pub(crate) fn wait_for(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..600 {
            let status = self.status();
            if is(&status["volumes"]) {
                return status;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("{what}: {:#}", self.status());
    }

    fn disk(&self) -> Namespace {
        disk_at(self.volume)
    }

    fn nvme(&self, line: &str, input: &[u8]) -> Output {
        let address = self.volume.to_string();
        let mut arguments: Vec<&str> = ["nvme"].into_iter().chain(line.split(' ')).collect();
        arguments.extend(["--address", &address, "--nqn", NQN]);
        let mut command = self.place.command(&arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    pub(crate) fn status(&self) -> Value {
        let address = self.status.to_string();
        let output = self.place.output(&["status", "--json", "--endpoint", &address]);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// All bytes that have crossed the links.
    pub(crate) fn link_bytes(&self) -> u64 {
        let link = self.link();
        let fields = ["dma_read_bytes", "dma_written_bytes", "dma_word_bytes"];
        fields.iter().map(|field| link[*field].as_u64().unwrap()).sum()
    }

    fn link(&self) -> Value {
        self.status()["link"].clone()
    }
}

/// The only disk, as soon as a host has told of it. Each time as another host: a target ends what it has of a host that connects anew, and two
/// connections of one host that both live would take turns in ending each other.
pub(crate) fn disk_at(volume: SocketAddr) -> Namespace {
    block_on(async {
        let options = Options::new(volume, NQN, random_host_id()).unwrap();
        let initiator = Initiator::connect(options).await.unwrap();
        for _ in 0..600 {
            if let Some(disk) = initiator.namespaces().await.unwrap().pop() {
                return disk;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        panic!("no host tells of a disk");
    })
}

/// What was written is read, as soon as the disk can be: it never has anything else.
pub(crate) fn assert_written(disk: &Namespace, start: u64, written: &[u8]) {
    for _ in 0..20 {
        match block_on(disk.read(start, (written.len() / BLOCK) as u64)) {
            Ok(read) => return assert!(read == written, "the disk has something else"),
            Err(error) => {
                let status = error.status();
                assert!(status.is_some_and(|status| status.is(Status::NAMESPACE_NOT_READY)), "{error}");
            }
        }
    }
    panic!("it is never read");
}

pub(crate) fn start_server(place: &Place, number: u32) -> (Program, SocketAddr) {
    let data = format!("chunk-{number}");
    let mut server = place.start_with("outboard.toml", &data, &["chunkserver", "--listen", "127.0.0.1:0"]);
    let line = server.wait_for("The chunkserver is ready");
    let address = format!("127.0.0.1:{}", number_after(&line, "chunks on 127.0.0.1:"));
    (server, address.parse().unwrap())
}

pub(crate) fn bytes(len: usize, seed: u8) -> Vec<u8> {
    let mut state = u64::from(seed) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

pub(crate) fn kill(server: &mut Program) {
    server.signal(Signal::KILL);
    server.wait();
}

#[test]
fn a_volume_is_written_and_read_and_read_from_the_replicas_that_are_left() {
    let mut tier = Tier::start();
    // The command that people use: it writes, and reads back.
    let image = bytes(3 * MIB + BLOCK, 1);
    let written = tier.nvme("write --offset 64KiB --flush", &image);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let read = tier.nvme(&format!("read --offset 64KiB --length {}B", image.len()), b"");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    assert!(read.stdout == image, "what was written is read");
    let disk = tier.disk();
    assert_eq!(disk.len(), 16 << 30);
    block_on(async {
        // What was never written, beside what was.
        assert_eq!(disk.read(14, 2).await.unwrap(), vec![0; 2 * BLOCK]);
        assert_eq!(disk.read(15, 2).await.unwrap()[BLOCK..], image[..BLOCK]);
        // Written over, in the middle of a record, and across the border of two.
        for (start, blocks, seed) in [(18, 1, 2), (30, 5, 3), (20, 1, 4), (1 << 21, 16, 5)] {
            disk.write(start, bytes(blocks * BLOCK, seed)).await.unwrap();
        }
        let mut expected = image.clone();
        for (start, blocks, seed) in [(18, 1, 2), (30, 5, 3), (20, 1, 4)] {
            let at = (start - 16) * BLOCK;
            expected[at..at + blocks * BLOCK].copy_from_slice(&bytes(blocks * BLOCK, seed));
        }
        assert!(disk.read(16, 769).await.unwrap() == expected);
        assert_eq!(disk.read(1 << 21, 16).await.unwrap(), bytes(16 * BLOCK, 5));
        // Trimmed blocks are zeros, and those beside them are not.
        disk.deallocate_ranges(&[17..18, 40..300]).await.unwrap();
        disk.write_zeroes(400, 3, true).await.unwrap();
        for (from, to) in [(17, 18), (40, 300), (400, 403)] {
            expected[(from - 16) * BLOCK..(to - 16) * BLOCK].fill(0);
        }
        assert!(disk.read(16, 769).await.unwrap() == expected);
        disk.flush().await.unwrap();
        // The last block, and what is beyond it.
        disk.write((16 << 30) / BLOCK as u64 - 1, bytes(BLOCK, 6)).await.unwrap();
        let beyond = disk.read((16 << 30) / BLOCK as u64, 1).await;
        assert!(matches!(beyond, Err(Error::OutOfRange { .. })), "{beyond:?}");
        // One of three is gone, and then another: what was written is read.
        kill(&mut tier.servers[0]);
        assert!(disk.read(16, 769).await.unwrap() == expected, "from the replicas that are left");
        kill(&mut tier.servers[1]);
        assert!(disk.read(17, 700).await.unwrap() == expected[BLOCK..701 * BLOCK], "from the last one");
        kill(&mut tier.servers[2]);
        // Nobody who has it answers, and that is not for good.
        let nowhere: Error = disk.read(300, 1).await.unwrap_err();
        assert!(nowhere.status().is_some_and(|status| status.is(Status::NAMESPACE_NOT_READY)), "{nowhere}");
    });
}

/// A write that is made until it is taken: an initiator that gives up does the same.
pub(crate) async fn write(disk: &Namespace, start: u64, data: Vec<u8>) {
    for _ in 0..20 {
        match disk.write(start, data.clone()).await {
            Ok(()) => return,
            Err(error) => {
                let status = error.status();
                assert!(status.is_some_and(|status| status.is(Status::NAMESPACE_NOT_READY)), "{error}");
            }
        }
    }
    panic!("it is never written");
}

#[test]
fn writes_go_on_while_one_chunk_server_after_the_other_is_killed_and_returns() {
    let mut tier = Tier::start_with(4);
    let disk = tier.disk();
    let block = |round: usize, number: usize| bytes(BLOCK, (round * 61 + number) as u8 | 1);
    let mut expected = vec![vec![0; BLOCK]; 400];
    block_on(async {
        for round in 0..4 {
            for number in 0..40 {
                let at = round * 50 + number;
                disk.write(at as u64, block(round, number)).await.unwrap();
                expected[at] = block(round, number);
            }
            // One dies while writes go on: others have what was written, and what is written goes to others.
            kill(&mut tier.servers[round]);
            for number in 0..40 {
                let at = (round * 50 + 20 + number) % 400;
                write(&disk, at as u64, block(round + 7, number)).await;
                expected[at] = block(round + 7, number);
            }
            tier.restart(round);
            // Its replicas are taken in again.
            let is_healed = |volumes: &Value| {
                let ready = volumes["servers"].as_array().unwrap();
                ready.iter().all(|server| server["state"] != "away")
                    && volumes["degraded"] == 0
                    && volumes["closing"] == 0
                    && volumes["has_host"] == true
            };
            tier.wait_for("all replicas are there", is_healed);
        }
    });
    // The last one may be sealed only now, when the commit of that is durable, and mended after that.
    tier.wait_for("chunks are sealed, and replicas made", |volumes| {
        let is_more = |count: &str| volumes[count].as_u64() > Some(2);
        is_more("sealed") && is_more("replicas_made") && volumes["degraded"] == 0
    });
    // With any one of them gone all of it is read.
    for server in 0..4 {
        kill(&mut tier.servers[server]);
        let read = block_on(disk.read(0, 400)).unwrap();
        for (at, block) in expected.iter().enumerate() {
            assert!(read[at * BLOCK..(at + 1) * BLOCK] == **block, "block {at} without server {server}");
        }
        tier.restart(server);
        tier.wait_for("it is back", |volumes| {
            volumes["servers"].as_array().unwrap().iter().all(|server| server["state"] != "away")
                && volumes["degraded"] == 0
                && volumes["closing"] == 0
        });
    }
    let checks = tier.status()["checks"].clone();
    assert!(checks.as_array().unwrap().is_empty(), "{checks:#}");
}

#[test]
fn a_client_that_is_killed_in_the_midst_of_its_writes_leaves_the_disk_to_others() {
    let tier = Tier::start();
    let disk = tier.disk();
    let crossed = |tier: &Tier| tier.link()["dma_read_bytes"].as_u64().unwrap();
    for round in 0..6 {
        let before = crossed(&tier);
        let address = tier.volume.to_string();
        let arguments = ["nvme", "write", "--offset", "1GiB", "--address", address.as_str(), "--nqn", NQN];
        let mut command = tier.place.command(&arguments);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut client = command.spawn().unwrap();
        let mut input = client.stdin.take().unwrap();
        // It is killed before it has taken all of it.
        let feeder = std::thread::spawn(move || {
            let image = bytes(MIB, round);
            while input.write_all(&image).is_ok() {}
        });
        // Its commands have come to the host, and more are on their way.
        while crossed(&tier) < before + 10_000 {
            assert!(client.try_wait().unwrap().is_none(), "it writes on and on");
        }
        client.kill().unwrap();
        client.wait().unwrap();
        feeder.join().unwrap();
        block_on(async {
            let start = u64::from(round) * 16;
            disk.write(start, bytes(16 * BLOCK, round)).await.unwrap();
            assert_eq!(disk.read(start, 16).await.unwrap(), bytes(16 * BLOCK, round));
        });
    }
}

#[test]
fn only_headers_cross_the_link() {
    let tier = Tier::start();
    let disk = tier.disk();
    let payload = |count: usize| ((count * 64) << 10) as u64;
    block_on(disk.write(0, bytes(64 << 10, 1))).unwrap();
    let before = tier.link_bytes();
    block_on(async {
        for number in 0..64 {
            disk.write(number * 16, bytes(64 << 10, number as u8)).await.unwrap();
        }
        for number in 0..64 {
            assert_eq!(disk.read(number * 16, 16).await.unwrap(), bytes(64 << 10, number as u8));
        }
    });
    // What the status tells may be a moment old: each command and its plan have crossed when so much has.
    let mut crossed = 0;
    for _ in 0..600 {
        crossed = tier.link_bytes() - before;
        if crossed > 128 * 96 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    assert!(crossed > 128 * 96, "headers do cross: {crossed}");
    assert!(crossed < payload(128) / 20, "{crossed} bytes of {} crossed", payload(128));
}

#[test]
fn a_chunk_server_has_its_directory_alone_and_stops_cleanly() {
    let place = Place::new();
    let (mut server, address) = start_server(&place, 1);
    // Another one on the same data, and one on the same port.
    let arguments =
        ["chunkserver", "--listen", "127.0.0.1:0", "--config", "outboard.toml", "--data", "chunk-1"];
    let second = place.output(&arguments);
    assert_eq!(second.status.code(), Some(2));
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains(&format!("process {}", server.pid())) && said.contains("hint: stop it"), "{said}");
    let listen = address.to_string();
    let third =
        place.output(&["chunkserver", "--listen", &listen, "--config", "outboard.toml", "--data", "chunk-2"]);
    assert_eq!(third.status.code(), Some(2));
    let said = String::from_utf8_lossy(&third.stderr).into_owned();
    assert!(said.contains("--listen ADDRESS"), "{said}");
    let stranger = place.output(&[
        "chunkserver",
        "--listen",
        "0.0.0.0:0",
        "--config",
        "outboard.toml",
        "--data",
        "chunk-3",
    ]);
    assert_eq!(stranger.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&stranger.stderr).contains("hint: listen on 127.0.0.1"));
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0), "{:#?}", server.seen());
    // Its next life finds what is there.
    let (mut server, _) = start_server(&place, 1);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0), "{:#?}", server.seen());
}

/// Ports that are free now; another program may take one before it is used, which nobody else here does.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<TcpListener> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}

#[test]
fn up_runs_chunk_servers_and_starts_them_again() {
    let ports = free_ports(3);
    let servers: Vec<String> = ports.iter().map(|port| format!("\"127.0.0.1:{port}\"")).collect();
    let text = format!(
        "[status]\nlisten = \"127.0.0.1:0\"\n[files]\nsize = \"64MiB\"\n[volumes]\nenabled = false\n\
         ports = [\"127.0.0.1:0\"]\nservers = [{}]\n",
        servers.join(", ")
    );
    let place = Place::with_config(&text);
    let mut up = place.start(&["up", "--volumes"]);
    up.wait_for("Outboard is up");
    let line = up.wait_for("volumes   127.0.0.1:");
    let volume: SocketAddr =
        format!("127.0.0.1:{}", number_after(&line, "volumes   127.0.0.1:")).parse().unwrap();
    up.wait_for(&format!("nvme connect -t tcp -a 127.0.0.1 -s {} -n {NQN}", volume.port()));
    let disk = disk_at(volume);
    block_on(async {
        disk.write(0, bytes(BLOCK, 1)).await.unwrap();
        assert_eq!(disk.read(0, 1).await.unwrap(), bytes(BLOCK, 1));
    });
    let ids = *disk.ids();
    let lock = place.data().join("chunk-2/lock");
    let pid: u32 = std::fs::read_to_string(lock).unwrap().trim().parse().unwrap();
    rustix::process::pidfd_send_signal(support::handle(pid), Signal::KILL).unwrap();
    up.wait_for(&format!("the chunk-2 (pid {pid}) was killed by signal 9"));
    let back = up.wait_for("the chunk-2 is back: ");
    assert_ne!(pid_after(&back, "pid "), pid);
    up.signal(Signal::TERM);
    assert_eq!(up.wait().code(), Some(0), "{:#?}", up.seen());
    // The next run goes on with the same disk, and with what chunk servers have.
    let mut up = place.start(&["up", "--volumes"]);
    let line = up.wait_for("volumes   127.0.0.1:");
    let volume: SocketAddr =
        format!("127.0.0.1:{}", number_after(&line, "volumes   127.0.0.1:")).parse().unwrap();
    let disk = disk_at(volume);
    assert_eq!((*disk.ids(), disk.id()), (ids, NamespaceId(1)));
    assert_written(&disk, 0, &bytes(BLOCK, 1));
    up.signal(Signal::TERM);
    assert_eq!(up.wait().code(), Some(0), "{:#?}", up.seen());
}

#[test]
fn a_disk_is_the_same_after_restarts_of_host_card_and_both() {
    let mut tier = Tier::start();
    let disk = tier.disk();
    block_on(disk.write(0, bytes(BLOCK, 1))).unwrap();
    let ids = *disk.ids();
    // Each life reads what all before it have written, and writes.
    let is_same = |tier: &Tier, life: u8| {
        let disk = tier.disk();
        assert_eq!((*disk.ids(), disk.id(), disk.len()), (ids, NamespaceId(1), 16 << 30));
        for earlier in 0..life {
            assert_written(&disk, u64::from(earlier), &bytes(BLOCK, earlier + 1));
        }
        block_on(write(&disk, u64::from(life), bytes(BLOCK, life + 1)));
    };
    kill(&mut tier.host);
    tier.wait_for("it is gone", |volumes| volumes["has_host"] == false);
    assert_eq!((*tier.disk().ids(), tier.disk().id()), (ids, NamespaceId(1)), "while there is no host");
    tier.host = tier.place.start(&["host"]);
    tier.wait_for("it is back", |volumes| volumes["has_host"] == true);
    is_same(&tier, 1);
    // The card alone: it knows its disk before there is a host.
    for is_both in [false, true] {
        if is_both {
            kill(&mut tier.host);
        }
        kill(&mut tier.card);
        tier.restart_card();
        assert_eq!((*tier.disk().ids(), tier.disk().id()), (ids, NamespaceId(1)));
        if is_both {
            tier.host = tier.place.start(&["host"]);
        }
        tier.wait_for("it is there", |volumes| volumes["has_host"] == true);
        is_same(&tier, 2 + u8::from(is_both));
    }
}

#[test]
fn a_host_with_another_store_has_another_disk_under_another_number() {
    let mut tier = Tier::start();
    let old = tier.disk();
    block_on(old.write(0, bytes(BLOCK, 1))).unwrap();
    kill(&mut tier.host);
    let metadata = tier.place.data().join("host/volumes.redb");
    std::fs::rename(&metadata, metadata.with_extension("away")).unwrap();
    tier.host = tier.place.start(&["host"]);
    tier.wait_for("another disk", |volumes| volumes["disks"][0]["namespace"] == 2);
    let other = tier.disk();
    assert_ne!(other.ids().uuid, old.ids().uuid, "nobody takes it for the disk that was there");
    // Who goes on by the number that the old one had, as Linux does with what it sends again, finds nothing.
    let told: Error = block_on(old.write(0, bytes(BLOCK, 3))).unwrap_err();
    let is_told = told.status().is_some_and(|status| status.is(Status::INVALID_NAMESPACE));
    assert!(is_told || matches!(told, Error::NamespaceChanged(_)), "{told}");
}

#[test]
fn without_a_host_commands_are_held_and_then_sent_back() {
    let mut tier = Tier::start();
    block_on(tier.disk().write(0, bytes(BLOCK, 1))).unwrap();
    kill(&mut tier.host);
    tier.wait_for("it is gone", |volumes| volumes["has_host"] == false);
    let mut options = Options::new(tier.volume, NQN, random_host_id()).unwrap();
    options.retry = RetryPolicy::never();
    block_on(async {
        let initiator = Initiator::connect(options).await.unwrap();
        let disk = initiator.namespaces().await.unwrap().pop().unwrap();
        let error: Error = disk.read(0, 1).await.unwrap_err();
        assert!(error.status().is_some_and(|status| status.is(Status::NAMESPACE_NOT_READY)), "{error}");
    });
}
