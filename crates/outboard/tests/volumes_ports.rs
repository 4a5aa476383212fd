//! Volumes over several ports, and with payloads in the host's memory: the real programs, a real client.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ob_nvme::initiator::{Namespace, block_on};
use serde_json::Value;

use crate::volumes::{BLOCK, Tier, assert_written, bytes, disk_at, free_ports, kill};

/// Blocks that shrink to about a half.
fn shrinking(len: usize, seed: u8) -> Vec<u8> {
    let mut block = bytes(len, seed);
    block.chunks_mut(64).for_each(|line| line[32..].fill(seed));
    block
}

/// How many bytes crossed the link, of each that was written in pieces of so many.
fn crossed_for(tier: &Tier, len: usize) -> f64 {
    const COUNT: usize = 64;
    let disk = disk_at(tier.volume);
    let blocks = (len / BLOCK) as u64;
    block_on(disk.write(0, shrinking(len, 1))).unwrap();
    // What the status tells may be a moment old.
    std::thread::sleep(std::time::Duration::from_millis(300));
    let before = tier.link_bytes();
    block_on(async {
        for number in 0..COUNT {
            disk.write(number as u64 * blocks, shrinking(len, number as u8)).await.unwrap();
        }
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    let crossed = (tier.link_bytes() - before) as f64 / (COUNT * len) as f64;
    for number in 0..COUNT {
        assert_written(&disk, number as u64 * blocks, &shrinking(len, number as u8));
    }
    crossed
}

/// To the host, to the card, compressed to the host and back: of what shrinks to some 0.55 that is 3.1 times; with `host` 1.55.
#[test]
fn what_an_accelerator_compresses_crosses_the_link_four_times() {
    let tier = Tier::start_as(3, "ports = [\"127.0.0.1:0\"]\nplacement = \"accelerator\"\n");
    let (small, large) = (crossed_for(&tier, BLOCK), crossed_for(&tier, 16 * BLOCK));
    assert!((3.0..3.6).contains(&small), "{small} of blocks of 4 KiB");
    assert!((3.0..3.3).contains(&large), "{large} of 64 KiB");
    drop(tier);
    let tier = Tier::start_as(3, "ports = [\"127.0.0.1:0\"]\nplacement = \"host\"\n");
    let host = crossed_for(&tier, 16 * BLOCK);
    assert!((1.5..1.7).contains(&host), "{host} of 64 KiB");
}

/// A tier with so many ports, and their addresses.
fn start(count: usize, lines: &str) -> (Tier, Vec<SocketAddr>) {
    let addresses: Vec<SocketAddr> =
        free_ports(count).into_iter().map(|port| ([127, 0, 0, 1], port).into()).collect();
    let texts: Vec<String> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
    let tier = Tier::start_as(3, &format!("hold = \"5s\"\nports = [{}]\n{lines}", texts.join(", ")));
    tier.wait_for("the host has all ports", |volumes| {
        let ports = volumes["ports"].as_array().unwrap();
        ports.len() == count && ports.iter().all(|port| port["has_host"] == true)
    });
    (tier, addresses)
}

fn block(at: usize, round: usize) -> Vec<u8> {
    shrinking(BLOCK, (at * 31 + round * 7) as u8 | 1)
}

/// Each disk writes every so many-th of the blocks, at once; then all of them read what all have written.
fn write_by_turns(disks: &[Namespace], blocks: usize, round: usize) {
    std::thread::scope(|scope| {
        for (number, disk) in disks.iter().enumerate() {
            let own = (0..blocks).skip(number).step_by(disks.len());
            scope.spawn(move || {
                block_on(async {
                    for at in own {
                        disk.write(at as u64, block(at, round)).await.unwrap();
                    }
                });
            });
        }
    });
    let expected: Vec<u8> = (0..blocks).flat_map(|at| block(at, round)).collect();
    for disk in disks {
        assert_written(disk, 0, &expected);
    }
}

#[test]
fn each_port_reads_what_the_others_have_written_over_deaths_of_halves_and_servers() {
    let (mut tier, addresses) = start(3, "");
    let disks = |addresses: &[SocketAddr]| addresses.iter().map(|at| disk_at(*at)).collect::<Vec<_>>();
    let all = disks(&addresses);
    assert!(all.iter().all(|disk| disk.ids() == all[0].ids()), "one disk, by whichever port");
    write_by_turns(&all, 300, 0);
    let is_used = |volumes: &Value| {
        let ports = volumes["ports"].as_array().unwrap();
        let has = |field: &str, least: u64| ports.iter().all(|port| port[field].as_u64() > Some(least));
        has("commands", 99) && volumes["ports"][1]["retained"]["records"].as_u64() > Some(50)
    };
    let status = tier.wait_for("each port has had its commands", is_used);
    assert!(status["volumes"]["ports"][2]["link_bytes"].as_u64() > Some(10_000), "{status:#}");
    // A chunk server: what each port wrote to it goes to others.
    kill(&mut tier.servers[1]);
    write_by_turns(&all, 300, 1);
    tier.restart(1);
    // The host: the next one opens all ports, and what was sent meanwhile waits.
    kill(&mut tier.host);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| block_on(all[2].write(300, block(300, 2))));
        tier.host = tier.place.start(&["host"]);
        waiting.join().unwrap().unwrap();
    });
    write_by_turns(&all, 300, 2);
    assert_written(&all[0], 300, &block(300, 2));
    // The card, with all ports.
    kill(&mut tier.card);
    tier.card = tier.place.start(&["card"]);
    let ready = tier.card.wait_for("The card is ready");
    let port = crate::support::number_after(&ready, "status http://127.0.0.1:");
    tier.status = format!("127.0.0.1:{port}").parse().unwrap();
    let all = disks(&addresses);
    assert_written(&all[1], 300, &block(300, 2));
    write_by_turns(&all, 300, 3);
}

/// Carries one link, until it is cut.
struct Relay {
    address: SocketAddr,
    is_cut: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn start(address: SocketAddr, to: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let (is_cut, streams) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (cut, kept) = (Arc::clone(&is_cut), Arc::clone(&streams));
        // It ends with the test's process.
        std::thread::spawn(move || {
            for from in listener.incoming().flatten() {
                if cut.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(onward) = TcpStream::connect(to) else { continue };
                for (from, to) in [(&from, &onward), (&onward, &from)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let mut some = vec![0; 64 << 10];
                        while let Ok(len) = from.read(&mut some) {
                            if len == 0 || to.write_all(&some[..len]).is_err() {
                                break;
                            }
                        }
                        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                    });
                }
                kept.lock().unwrap().extend([from, onward]);
            }
        });
        Self { address, is_cut, streams }
    }

    fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Two numbers one behind the other that are free now.
fn free_pair() -> u16 {
    for _ in 0..100 {
        let first = free_ports(1)[0];
        if first < u16::MAX && TcpListener::bind(("127.0.0.1", first + 1)).is_ok() {
            return first;
        }
    }
    panic!("no two numbers are free beside each other");
}

/// I2: with one port's link the host has lost what it does not know of, and so has no port until it has begun anew. What clients of the
/// others have sent meanwhile waits at the card.
#[test]
fn the_link_of_one_port_is_cut_and_all_begin_anew() {
    let (card, host) = (free_pair(), free_pair());
    let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let relays = [0, 1].map(|number| Relay::start(at(host + number), at(card + number)));
    let link = format!(
        "[link]\nkind = \"tcp\"\nlisten = \"{}\"\ncard = \"{}\"\ndead_after = \"1s\"\n",
        at(card),
        relays[0].address
    );
    let (tier, addresses) = start(2, &link);
    let all: Vec<Namespace> = addresses.iter().map(|at| disk_at(*at)).collect();
    write_by_turns(&all, 60, 0);
    for round in 1..4 {
        relays[1].cut(true);
        tier.wait_for("no port has its host any more", |volumes| {
            volumes["ports"].as_array().unwrap().iter().all(|port| port["has_host"] == false)
        });
        std::thread::scope(|scope| {
            let (first, other) = (&all[0], &all[1]);
            let waiting = scope.spawn(move || block_on(first.write(70, block(70, round))));
            let read = scope.spawn(move || block_on(other.read(0, 60)));
            std::thread::sleep(std::time::Duration::from_millis(200));
            assert!(!waiting.is_finished() && !read.is_finished(), "nobody decides about it");
            relays[1].cut(false);
            waiting.join().unwrap().unwrap();
            let expected: Vec<u8> = (0..60).flat_map(|at| block(at, round - 1)).collect();
            assert!(read.join().unwrap().unwrap() == expected, "what was acknowledged by either port");
        });
        write_by_turns(&all, 60, round);
        assert_written(&all[1], 70, &block(70, round));
    }
}
