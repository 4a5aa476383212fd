//! `outboard volume`, end to end: the real programs, a real client that is connected all the while, and halves that are killed.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Output, Stdio};

use ob_nvme::initiator::{Error, Event, Initiator, Namespace, Options, block_on, random_host_id};
use ob_wire_nvme::{NamespaceId, Status};
use serde_json::Value;

use crate::volumes::{NQN, Tier, assert_written, bytes, kill, write};

const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;

/// `outboard volume …` of this tier.
pub(crate) fn volume(tier: &Tier, line: &str) -> Output {
    let mut arguments: Vec<&str> = ["volume"].into_iter().chain(line.split(' ')).collect();
    arguments.extend(["--config", "outboard.toml", "--data", "data"]);
    tier.place.output(&arguments)
}

pub(crate) fn done(tier: &Tier, line: &str) -> String {
    let output = volume(tier, line);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{line}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn json(tier: &Tier, line: &str) -> Value {
    serde_json::from_str(&done(tier, &format!("{line} --json"))).unwrap()
}

fn refused(tier: &Tier, line: &str) -> String {
    let output = volume(tier, line);
    assert_eq!(output.status.code(), Some(1), "{line}");
    String::from_utf8(output.stderr).unwrap()
}

/// What `ls` says of a volume, if it is there.
pub(crate) fn listed(tier: &Tier, name: &str) -> Option<Value> {
    let all = json(tier, "ls");
    all["volumes"].as_array().unwrap().iter().find(|one| one["name"] == name).cloned()
}

pub(crate) fn wait_until(what: &str, is: impl Fn() -> bool) {
    for _ in 0..600 {
        if is() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{what} never comes");
}

pub(crate) fn connect(tier: &Tier) -> Initiator {
    let options = Options::new(tier.volume, NQN, random_host_id()).unwrap();
    block_on(Initiator::connect(options)).unwrap()
}

pub(crate) fn disk(initiator: &Initiator, number: u32) -> Namespace {
    block_on(initiator.namespace(NamespaceId(number))).unwrap()
}

/// The next change of namespaces that a connected host hears of.
fn next_change(initiator: &Initiator) -> Vec<u32> {
    loop {
        if let Event::NamespacesChanged(changed) = block_on(initiator.next_event()).unwrap() {
            return changed.into_iter().map(|id| id.0).collect();
        }
    }
}

#[test]
fn volumes_are_made_shown_grown_and_removed_while_a_host_is_connected() {
    let tier = Tier::start();
    let initiator = connect(&tier);
    let first = disk(&initiator, 1);
    block_on(first.write(0, bytes(BLOCK, 1))).unwrap();
    // It appears.
    let made = json(&tier, "create data --size 64MiB");
    let made = &made["volume"]["volume"];
    assert_eq!((&made["nsid"], &made["size"], &made["replicas"]), (&2.into(), &(64 * MIB).into(), &3.into()));
    assert_eq!(next_change(&initiator), [2]);
    let data = disk(&initiator, 2);
    assert_eq!((data.len(), data.block_len()), (64 * MIB, 4096));
    let uuid: String = data.ids().uuid.unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(made["uuid"].as_str().unwrap().replace('-', ""), uuid);
    block_on(data.write(0, bytes(64 * BLOCK, 2))).unwrap();
    // Each has what was written to it.
    assert_written(&first, 0, &bytes(BLOCK, 1));
    assert_written(&data, 0, &bytes(64 * BLOCK, 2));
    assert_eq!(block_on(first.read(1, 63)).unwrap(), vec![0; 63 * BLOCK]);
    // It grows.
    let last = 128 * MIB / BLOCK as u64 - 1;
    assert!(matches!(block_on(data.read(last, 1)), Err(Error::OutOfRange { .. })));
    assert!(done(&tier, "resize data --size 128MiB").contains("data has 128.0 MiB"));
    assert_eq!(next_change(&initiator), [2]);
    let data = disk(&initiator, 2);
    assert_eq!(data.len(), 128 * MIB);
    block_on(data.write(last, bytes(BLOCK, 3))).unwrap();
    // It is shown.
    let facts = listed(&tier, "data").unwrap();
    assert_eq!((facts["used"].as_u64(), &facts["health"]), (Some(65 * BLOCK as u64), &"good".into()));
    assert!(done(&tier, "ls").contains("disk0") && done(&tier, "show data").contains("class standard"));
    assert_eq!(json(&tier, "show data")["volume"]["segments"].as_array().unwrap().len(), 1);
    // It is not taken from a host that may have a file system on it, but by force.
    let why = refused(&tier, "rm data");
    assert!(why.contains("connected to this card") && why.contains("--force"), "{why}");
    done(&tier, "rm data --force");
    assert_eq!(next_change(&initiator), [2]);
    let told = block_on(data.read(0, 1)).unwrap_err();
    let is_told = told.status().is_some_and(|status| status.is(Status::INVALID_NAMESPACE));
    assert!(is_told || matches!(told, Error::NamespaceChanged(_) | Error::NoSuchNamespace(_)), "{told}");
    wait_until("its end", || listed(&tier, "data").is_none());
    // The next one of that name has another number, and nothing of it.
    let again = json(&tier, "create data --size 64MiB --class plain --replicas 2");
    assert_eq!(again["volume"]["volume"]["nsid"], 3);
    let data = disk(&initiator, 3);
    assert_eq!(block_on(data.read(0, 64)).unwrap(), vec![0; 64 * BLOCK]);
    assert_written(&first, 0, &bytes(BLOCK, 1));
    assert_eq!(tier.status()["volumes"]["disks"].as_array().unwrap().len(), 2);
}

#[test]
fn a_smaller_volume_forgets_what_was_beyond_its_end() {
    let tier = Tier::start();
    let initiator = connect(&tier);
    done(&tier, "create data --size 64MiB");
    let data = disk(&initiator, 2);
    let half = 32 * MIB / BLOCK as u64;
    block_on(data.write(half - 4, bytes(8 * BLOCK, 5))).unwrap();
    let why = refused(&tier, "resize data --size 32MiB");
    assert!(why.contains("hint: say --shrink"), "{why}");
    done(&tier, "resize data --size 32MiB --shrink");
    let data = disk(&initiator, 2);
    assert_eq!(data.len(), 32 * MIB);
    wait_until("the end of what was cut off", || listed(&tier, "data").unwrap()["health"] == "good");
    done(&tier, "resize data --size 64MiB");
    let data = disk(&initiator, 2);
    let read = block_on(data.read(half - 4, 8)).unwrap();
    assert!(read[..4 * BLOCK] == bytes(8 * BLOCK, 5)[..4 * BLOCK], "what was not cut off is there");
    assert_eq!(read[4 * BLOCK..], vec![0; 4 * BLOCK]);
}

#[test]
fn volumes_are_the_same_after_restarts_of_host_card_and_both() {
    let mut tier = Tier::start();
    done(&tier, "create data --size 64MiB");
    done(&tier, "create gone --size 64MiB");
    done(&tier, "create small --size 64MiB --block 512");
    done(&tier, "rm gone");
    wait_until("its end", || listed(&tier, "gone").is_none());
    let ids = |tier: &Tier| -> Vec<(u32, Option<[u8; 16]>)> {
        let all = block_on(connect(tier).namespaces()).unwrap();
        all.iter().map(|disk| (disk.id().0, disk.ids().uuid)).collect()
    };
    let before = ids(&tier);
    assert_eq!(before.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 4]);
    for (number, seed) in [(1, 1), (2, 2)] {
        block_on(write(&disk(&connect(&tier), number), 0, bytes(BLOCK, seed)));
    }
    for (host, card) in [(true, false), (false, true), (true, true)] {
        if host {
            kill(&mut tier.host);
        }
        if card {
            kill(&mut tier.card);
            tier.restart_card();
            // It knows them before there is a host.
            assert_eq!(ids(&tier), before);
        }
        if host {
            tier.wait_for("no host", |volumes| volumes["has_host"] == false);
            let why = refused(&tier, "ls");
            assert!(why.contains("no host half is there") && why.contains("hint: "), "{why}");
            tier.host = tier.place.start(&["host"]);
        }
        tier.wait_for("it is there", |volumes| volumes["has_host"] == true);
        assert_eq!(ids(&tier), before);
        for (number, seed) in [(1, 1), (2, 2)] {
            assert_written(&disk(&connect(&tier), number), 0, &bytes(BLOCK, seed));
        }
    }
    assert_eq!(listed(&tier, "small").unwrap()["block"], 512);
    // Not even the first one comes back.
    done(&tier, "rm disk0 --force");
    wait_until("its end", || listed(&tier, "disk0").is_none());
    kill(&mut tier.host);
    tier.host = tier.place.start(&["host"]);
    wait_until("it is back", || volume(&tier, "ls").status.success());
    assert!(listed(&tier, "disk0").is_none());
    assert_eq!(ids(&tier).len(), 2);
}

#[test]
fn mistakes_are_explained_and_nonsense_costs_nothing() {
    let tier = Tier::start();
    for (line, part) in [
        ("create -x --size 1GiB", "unexpected argument"),
        ("create a/b --size 1GiB", "letters, digits"),
        ("create disk0 --size 1GiB", "there is a volume `disk0` already"),
        ("create a --size 1GiB --block 1000", "blocks of 512 and of 4096"),
        ("create a --size 1000B", "whole blocks of 4096 bytes"),
        ("create a --size 1GiB --segment 3GiB", "segments of a length that there is not"),
        ("create a --size 1GiB --chunk 1MiB", "at least 16 MiB"),
        ("resize nobody --size 1GiB", "no volume `nobody`"),
        ("rm nobody", "no volume `nobody`"),
        ("show nobody", "no volume `nobody`"),
    ] {
        let output = volume(&tier, line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(part), "{line}: {said}");
    }
    // Whoever may use the socket, and says anything at all.
    let socket = tier.place.data().join("card/control.sock");
    let long = "x".repeat(60_000);
    for nonsense in [
        "{\"volumes\":7}".to_owned(),
        "{\"volumes\":{\"create\":{\"name\":\"a\"}}}".to_owned(),
        "{\"volumes\":{\"create\":{\"name\":\"a\",\"size\":-1,\"block\":4096,\"class\":\"fast\"}}}"
            .to_owned(),
        "{\"volumes\":{\"show\":{\"name\":\"\\u0000\"}}}".to_owned(),
        "{\"volumes\":{\"show\":{\"name\":\"/../x\"}}}".to_owned(),
        format!("{{\"volumes\":{{\"show\":{{\"name\":\"{long}\"}}}}}}"),
        format!("{{\"volumes\":{}", "[".repeat(50_000)),
    ] {
        let stream = UnixStream::connect(&socket).unwrap();
        (&stream).write_all(nonsense.as_bytes()).unwrap();
        (&stream).write_all(b"\n").unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        let answer: Result<Value, String> = serde_json::from_str(&line).unwrap();
        assert!(answer.unwrap_err().contains("hint: "), "{nonsense:.80}");
    }
    // Several that ask at once, and some that go away.
    for _ in 0..20 {
        let stream = UnixStream::connect(&socket).unwrap();
        let _ = (&stream).write_all(b"{\"volumes\":\"list\"}\n");
    }
    wait_until("room at the door", || volume(&tier, "ls").status.success());
    assert_eq!(json(&tier, "ls")["volumes"].as_array().unwrap().len(), 1);
    let shows = String::from_utf8(tier.place.output(&["volume", "create", "--help"]).stdout).unwrap();
    assert!(shows.contains("Examples:") && shows.contains("--replicas"), "{shows}");
}

/// Two administrators, one of whom the other's host is killed under: what was answered is there, with its name and its number.
#[test]
fn what_was_answered_is_there_whoever_is_killed() {
    let mut tier = Tier::start();
    let mut answered = Vec::new();
    for round in 0..4 {
        let makers = (0..3).map(|maker| {
            let name = format!("v{round}-{maker}");
            let arguments =
                ["volume", "create", &name, "--size", "64MiB", "--json", "--config", "outboard.toml"];
            let mut command = tier.place.command(&arguments);
            let command = command.args(["--data", "data"]).stdout(Stdio::piped()).stderr(Stdio::null());
            (name, command.spawn().unwrap())
        });
        let makers: Vec<_> = makers.collect();
        if round % 2 == 1 {
            std::thread::sleep(std::time::Duration::from_millis(5 * round));
            tier.host.signal(rustix::process::Signal::KILL);
        }
        for (name, maker) in makers {
            let output = maker.wait_with_output().unwrap();
            answered.extend(output.status.success().then_some((name, output.stdout)));
        }
        if round % 2 == 1 {
            tier.host.wait();
            tier.host = tier.place.start(&["host"]);
        }
        wait_until("a host", || volume(&tier, "ls").status.success());
    }
    assert!(answered.len() >= 6, "nobody was answered");
    let all = json(&tier, "ls");
    let all = all["volumes"].as_array().unwrap();
    for (name, told) in &answered {
        let told: Value = serde_json::from_slice(told).unwrap();
        let told = &told["volume"]["volume"];
        let is = all.iter().find(|one| one["name"] == **name).unwrap();
        assert_eq!((&is["uuid"], &is["nsid"], &is["id"]), (&told["uuid"], &told["nsid"], &told["id"]));
    }
    let count = |field: &str| {
        let mut values: Vec<String> = all.iter().map(|one| one[field].to_string()).collect();
        values.sort();
        values.dedup();
        values.len()
    };
    assert_eq!((count("name"), count("nsid"), count("uuid")), (all.len(), all.len(), all.len()));
}
