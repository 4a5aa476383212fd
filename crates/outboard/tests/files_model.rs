//! Applications beside a model: processes, threads and groups that read, write, grow, shrink, rename and remove, with
//! operations from 1 byte to 8 MiB, over shared memory and over tcp, while links are cut and cards are killed. Every
//! read is compared with what was written; after it all the device is checked.
//!
//! `OUTBOARD_FILES_ROUNDS` makes it longer.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod proxy;
use crate::support;
mod worker;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use ob_files_host::Endpoint;
use proxy::Proxy;
use rustix::process::Signal;
use support::{Place, Program};
use worker::Plan;

const ROLE: &str = "OUTBOARD_FILES_WORKER";
const CONFIG: &str = "[status]\nlisten = \"127.0.0.1:0\"\n[files]\nsize = \"1 GiB\"\nsegment = \"64 KiB\"\n";

fn rounds(usual: u64) -> u64 {
    std::env::var("OUTBOARD_FILES_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// How a worker ends that has done its work. A test program that found no test to run ends with 0.
const DONE: i32 = 42;

/// Not a test: what the other processes run.
#[test]
fn child() {
    let Ok(plan) = std::env::var(ROLE) else { return };
    let fields: Vec<&str> = plan.split('|').collect();
    let number = |index: usize| fields[index].parse::<u64>().unwrap();
    let endpoint = match fields[0].parse::<SocketAddr>() {
        Ok(address) => Endpoint::Tcp(address),
        Err(_) => Endpoint::Unix(fields[0].into()),
    };
    worker::work(&Plan {
        endpoint,
        seed: number(1),
        threads: number(2),
        worker: number(3),
        workers: number(4),
        rounds: number(5),
    });
    std::process::exit(DONE);
}

/// Workers, and the lines they say every few rounds.
struct Workers {
    children: Vec<Child>,
    lines: Receiver<String>,
}

impl Workers {
    fn start(endpoints: &[String], seed: u64, rounds: u64) -> Self {
        let (tell, lines) = channel();
        let count = endpoints.len();
        let children = endpoints.iter().enumerate().map(|(index, endpoint)| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "files_model::child", "--nocapture", "--test-threads=1"]);
            command.env(ROLE, format!("{endpoint}|{seed}|3|{index}|{count}|{rounds}"));
            let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
            let (out, tell) = (child.stdout.take().unwrap(), tell.clone());
            std::thread::spawn(move || {
                let lines = BufReader::new(out).lines().map_while(Result::ok);
                for line in lines.filter(|line| line.contains(worker::PROGRESS)) {
                    let _ = tell.send(line);
                }
            });
            child
        });
        Self { children: children.collect(), lines }
    }

    fn finish(self) {
        for mut worker in self.children {
            let status = worker.wait().unwrap();
            assert_eq!(status.code(), Some(DONE), "a worker failed: {status}");
        }
    }
}

fn start_card(place: &Place) -> Program {
    let mut card = place.start(&["card"]);
    card.wait_for("card ready");
    card
}

/// Stops the card and checks the device.
fn check(place: &Place, mut card: Program) {
    card.signal(Signal::TERM);
    assert_eq!(card.wait().code(), Some(0), "{:#?}", card.seen());
    let check = place.output(&["files", "check", "--config", "outboard.toml", "--data", "data"]);
    let said = String::from_utf8_lossy(&check.stdout).into_owned() + &String::from_utf8_lossy(&check.stderr);
    assert!(check.status.success(), "{said}");
}

fn socket(place: &Place) -> String {
    place.data().join("link.sock").display().to_string()
}

#[test]
fn processes_threads_and_groups_agree_with_their_models() {
    let place = Place::with_config(CONFIG);
    let card = start_card(&place);
    Workers::start(&vec![socket(&place); 3], 1, rounds(150)).finish();
    check(&place, card);
}

#[test]
fn nothing_that_was_answered_is_lost_when_cards_are_killed() {
    let place = Place::with_config(CONFIG);
    let mut card = start_card(&place);
    let workers = Workers::start(&vec![socket(&place); 2], 2, rounds(200));
    let mut kills = 0;
    // Workers say something every few rounds: each time a card is killed in the middle of what they do next.
    while workers.lines.recv().is_ok() {
        card.signal(Signal::KILL);
        card.wait();
        card = start_card(&place);
        kills += 1;
        while workers.lines.try_recv().is_ok() {}
    }
    workers.finish();
    assert!(kills > 3, "only {kills} cards were killed");
    check(&place, card);
}

#[test]
fn a_tcp_link_that_is_cut_again_and_again_loses_nothing() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let config = format!("{CONFIG}[link]\nkind = \"tcp\"\nlisten = \"{address}\"\n");
    let place = Place::with_config(&config);
    let card = start_card(&place);
    let proxies: Vec<Proxy> = (0..2).map(|seed| Proxy::start(address, seed + 1, 4 << 20)).collect();
    let endpoints: Vec<String> = proxies.iter().map(|proxy| proxy.address.to_string()).collect();
    Workers::start(&endpoints, 3, rounds(60)).finish();
    let cuts: u64 = proxies.iter().map(Proxy::cuts).sum();
    assert!(cuts > 10, "only {cuts} cuts");
    check(&place, card);
}
