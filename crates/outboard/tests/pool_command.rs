//! `outboard pool`, end to end: the real programs, a disk that is read and written all the while, and processes that are killed.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Output;

use ob_nvme::initiator::block_on;
use ob_wire_nvme::Status;
use serde_json::Value;

use crate::volumes::{BLOCK, Tier, assert_written, bytes, disk_at, kill, start_server, write};

/// `outboard pool …` of this tier.
fn pool(tier: &Tier, line: &str) -> Output {
    let mut arguments: Vec<&str> = ["pool"].into_iter().chain(line.split(' ')).collect();
    arguments.extend(["--config", "outboard.toml", "--data", "data"]);
    tier.place.output(&arguments)
}

fn done(tier: &Tier, line: &str) -> String {
    let output = pool(tier, line);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{line}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(tier: &Tier, line: &str) -> String {
    let output = pool(tier, line);
    assert_eq!(output.status.code(), Some(1), "{line}");
    String::from_utf8(output.stderr).unwrap()
}

fn servers(tier: &Tier) -> Vec<Value> {
    let all: Value = serde_json::from_str(&done(tier, "ls --json")).unwrap();
    all["servers"].as_array().unwrap().clone()
}

/// What `ls` says of the server at an address.
fn at(tier: &Tier, address: &str) -> Value {
    servers(tier).into_iter().find(|one| one["address"] == address).unwrap()
}

fn wait_until(what: &str, is: impl Fn() -> bool) {
    for _ in 0..900 {
        if is() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{what} never comes");
}

fn restart_host(tier: &mut Tier) {
    kill(&mut tier.host);
    tier.host = tier.place.start(&["host"]);
    wait_until("the host", || pool(tier, "ls").status.success());
}

#[test]
fn a_server_is_taken_in_another_emptied_and_taken_out_and_one_that_is_gone_replaced() {
    let mut tier = Tier::start();
    let image = bytes(64 * BLOCK, 1);
    block_on(write(&disk_at(tier.volume), 0, image.clone()));
    wait_until("all of them", || servers(&tier).iter().filter(|one| one["id"].is_string()).count() == 3);
    assert!(servers(&tier).iter().all(|one| one["state"] == "in" && one["health"] == "ready"));
    let first = at(&tier, &tier.ports[0].to_string())["id"].as_str().unwrap().to_owned();
    // While it is there, and has something, it is not simply taken out; and with three of three it waits.
    let why = refused(&tier, &format!("rm {first}"));
    assert!(
        why.contains("is there") && why.contains(&format!("hint: `outboard pool drain {first}`")),
        "{why}"
    );
    assert!(done(&tier, &format!("drain {first}")).contains("is drained"));
    assert!(done(&tier, "ls").contains("waits for room"), "{}", done(&tier, "ls"));
    // There is another.
    let (fourth, address) = start_server(&tier.place, 4);
    let address = address.to_string();
    assert!(done(&tier, &format!("add {address} --domain rack-7")).contains("is of the pool"));
    assert_eq!((&at(&tier, &address)["domain"], servers(&tier).len()), (&"rack-7".into(), 4));
    // Whoever is restarted meanwhile.
    restart_host(&mut tier);
    block_on(write(&disk_at(tier.volume), 64, bytes(64 * BLOCK, 2)));
    let is_empty = |tier: &Tier| at(tier, &tier.ports[0].to_string())["replicas"] == 0;
    wait_until("the end of the drain", || is_empty(&tier));
    assert!(done(&tier, "ls").contains("drained (`outboard pool rm`"));
    done(&tier, &format!("rm {first}"));
    kill(&mut tier.servers[0]);
    let status = tier.wait_for("three that are ready", |volumes| {
        let servers = volumes["servers"].as_array().unwrap();
        servers.len() == 3 && servers.iter().all(|server| server["state"] == "ready")
    });
    let has_check = |status: &Value, code: &str| status.to_string().contains(code);
    assert!(!has_check(&status, "OB011"), "nobody misses one that is out: {status:#}");
    // One is gone for good: the status says what to do, and what it had is made anew where there is room.
    let second = at(&tier, &tier.ports[1].to_string())["id"].as_str().unwrap().to_owned();
    kill(&mut tier.servers[1]);
    let rm = format!("outboard pool rm {second}");
    wait_until("the check", || has_check(&tier.status(), &rm));
    done(&tier, &format!("rm {second}"));
    let (_fifth, fifth_at) = start_server(&tier.place, 5);
    done(&tier, &format!("add {fifth_at}"));
    tier.wait_for("all replicas", |volumes| volumes["degraded"] == 0 && volumes["closing"] == 0);
    restart_host(&mut tier);
    for (start, seed) in [(0, 1), (64, 2)] {
        assert_written(&disk_at(tier.volume), start, &bytes(64 * BLOCK, seed));
    }
    // It is as it was said, whatever the configuration says.
    let state = |tier: &Tier, state: &str| servers(tier).iter().filter(|one| one["state"] == state).count();
    assert_eq!((state(&tier, "in"), state(&tier, "out")), (3, 2));
    drop(fourth);
}

/// All that had something of a volume are gone for good: what was there cannot be read, and the volume can be used.
#[test]
fn a_volume_that_has_lost_everything_is_used_again() {
    let mut tier = Tier::start();
    block_on(write(&disk_at(tier.volume), 0, bytes(64 * BLOCK, 1)));
    let volume = |tier: &Tier, line: &str| {
        let arguments: Vec<&str> = ["volume"].into_iter().chain(line.split(' ')).collect();
        tier.place.output(&[&arguments[..], &["--config", "outboard.toml", "--data", "data"]].concat())
    };
    let said = |output: &Output| {
        String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
    };
    let nothing = volume(&tier, "recover disk0 --accept-loss");
    assert!(nothing.status.success() && said(&nothing).contains("Nothing is lost"), "{nothing:?}");
    wait_until("all of them", || servers(&tier).iter().filter(|one| one["id"].is_string()).count() == 3);
    let ids: Vec<String> = servers(&tier).iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect();
    tier.servers.iter_mut().for_each(kill);
    wait_until("all to be away", || servers(&tier).iter().all(|one| one["health"] == "away"));
    // Who is away may come back.
    let early = volume(&tier, "recover disk0 --accept-loss");
    assert!(early.status.success() && said(&early).contains("Nothing is lost"), "{early:?}");
    for id in &ids {
        done(&tier, &format!("rm {id} --accept-loss"));
    }
    let new: Vec<_> = (4..7).map(|number| start_server(&tier.place, number)).collect();
    for (_, address) in &new {
        done(&tier, &format!("add {address}"));
    }
    let asked = volume(&tier, "recover disk0");
    assert!(asked.status.code() == Some(1) && said(&asked).contains("hint: say --accept-loss"), "{asked:?}");
    let lost = volume(&tier, "recover disk0 --accept-loss --json");
    assert!(lost.status.success(), "{lost:?}");
    let told: Value = serde_json::from_slice(&lost.stdout).unwrap();
    assert_eq!(told["recovered"]["blocks"], 64, "{told}");
    for life in 0..2 {
        let error = block_on(disk_at(tier.volume).read(0, 1)).unwrap_err();
        let is_lost = |status: Status| status.is(Status::UNRECOVERED_READ_ERROR);
        assert!(error.status().is_some_and(is_lost), "life {life}: {error}");
        assert_written(&disk_at(tier.volume), 200, &vec![0; BLOCK]);
        restart_host(&mut tier);
    }
    block_on(write(&disk_at(tier.volume), 0, bytes(64 * BLOCK, 2)));
    assert_written(&disk_at(tier.volume), 0, &bytes(64 * BLOCK, 2));
}

#[test]
fn mistakes_about_servers_are_explained_and_nonsense_costs_nothing() {
    let mut tier = Tier::start();
    wait_until("all of them", || servers(&tier).iter().filter(|one| one["id"].is_string()).count() == 3);
    for (line, part) in [
        ("rm 7", "16 hexadecimal digits"),
        ("rm 0000000000000000", "16 hexadecimal digits"),
        ("drain 0000000000000007", "no chunk server 0000000000000007 in the pool"),
        ("add 127.0.0.1", "invalid socket address"),
        ("add 0.0.0.0:4440", "no chunk server can be at 0.0.0.0:4440"),
        ("add 127.0.0.1:1", "no chunk server answers at 127.0.0.1:1"),
    ] {
        let output = pool(&tier, line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(part), "{line}: {said}");
    }
    let long = format!("add {} --domain {}", tier.ports[0], "x".repeat(33));
    assert!(refused(&tier, &long).contains("at most 32 bytes"));
    // What nobody else has is not taken out by mistake.
    block_on(write(&disk_at(tier.volume), 0, bytes(BLOCK, 1)));
    for server in 0..3 {
        kill(&mut tier.servers[server]);
    }
    let id = at(&tier, &tier.ports[0].to_string())["id"].as_str().unwrap().to_owned();
    wait_until("all to be away", || servers(&tier).iter().all(|one| one["health"] == "away"));
    let why = refused(&tier, &format!("rm {id}"));
    assert!(why.contains("on no other server that is there") && why.contains("--accept-loss"), "{why}");
    for server in 0..3 {
        tier.restart(server);
    }
    assert_written(&disk_at(tier.volume), 0, &bytes(BLOCK, 1));
    // Whoever may use the socket, and says anything at all.
    let socket = tier.place.data().join("card/control.sock");
    for nonsense in [
        "{\"volumes\":{\"pool\":7}}",
        "{\"volumes\":{\"pool\":{\"add\":{\"address\":\"x\"}}}}",
        "{\"volumes\":{\"pool\":{\"drain\":{\"id\":\"\\u0000\"}}}}",
        "{\"volumes\":{\"pool\":{\"remove\":{\"id\":\"ffffffffffffffff\",\"accept_loss\":true}}}}",
        "{\"volumes\":{\"pool\":{\"remove\":{\"id\":\"ffffffffffffffff\"}}}}",
    ] {
        let stream = UnixStream::connect(&socket).unwrap();
        (&stream).write_all(nonsense.as_bytes()).unwrap();
        (&stream).write_all(b"\n").unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        let answer: Result<Value, String> = serde_json::from_str(&line).unwrap();
        assert!(answer.unwrap_err().contains("hint: "), "{nonsense}");
    }
    assert_eq!(servers(&tier).len(), 3);
    let shows = String::from_utf8(tier.place.output(&["pool", "rm", "--help"]).stdout).unwrap();
    assert!(shows.contains("Examples:") && shows.contains("--accept-loss"), "{shows}");
}
