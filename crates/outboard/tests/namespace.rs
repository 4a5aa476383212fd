//! `outboard namespace` against a real card: what is added, removed and resized, and what of it outlives the card.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

use crate::support;

use std::process::Output;

use rustix::process::Signal;
use serde_json::Value;
use support::{Place, Program};

fn namespace(place: &Place, arguments: &[&str]) -> Output {
    let mut all = vec!["namespace"];
    all.extend(arguments);
    all.extend(["--config", "outboard.toml", "--data", "data"]);
    place.output(&all)
}

/// Id, size and UUID of each namespace, after a command that must succeed.
fn listed(place: &Place, arguments: &[&str]) -> Vec<(u64, u64, String)> {
    let mut all = arguments.to_vec();
    all.push("--json");
    let output = namespace(place, &all);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = |row: &Value| {
        (
            row["nsid"].as_u64().unwrap(),
            row["size"].as_u64().unwrap(),
            row["uuid"].as_str().unwrap().to_owned(),
        )
    };
    rows.as_array().unwrap().iter().map(row).collect()
}

fn refused(place: &Place, arguments: &[&str], told: &str) {
    let output = namespace(place, arguments);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains(told), "{arguments:?}: {text}");
    assert!(text.contains("hint: "), "{arguments:?} does not say what to do: {text}");
}

fn start(place: &Place) -> Program {
    let mut card = place.start(&["card", "--json"]);
    card.wait_for("incarnation");
    card
}

fn stop(card: &mut Program) {
    card.signal(Signal::TERM);
    assert!(card.wait().success());
}

const MIB: u64 = 1 << 20;

#[test]
fn namespaces_come_and_go_and_are_the_same_after_a_restart() {
    let place = Place::new();
    let mut card = start(&place);
    let first = listed(&place, &["list"]);
    assert_eq!((first.len(), first[0].0, first[0].1), (1, 1, 64 * MIB));
    let added = listed(&place, &["add", "--size", "8MiB"]);
    assert_eq!((added[1].0, added[1].1), (2, 8 * MIB));
    assert_ne!(added[0].2, added[1].2);
    let memory = listed(&place, &["add", "--size", "1MiB", "--device", "memory", "--nsid", "7"]);
    assert_eq!((memory[2].0, memory[2].1), (7, MIB));

    let grown = listed(&place, &["resize", "2", "16MiB"]);
    assert_eq!(grown[1].1, 16 * MIB);
    refused(&place, &["resize", "2", "4MiB"], "--shrink");
    let shrunk = listed(&place, &["resize", "2", "4MiB", "--shrink"]);
    assert_eq!(shrunk[1].1, 4 * MIB);
    refused(&place, &["resize", "7", "2MiB"], "memory");
    refused(&place, &["resize", "7", "512KiB", "--shrink"], "memory");
    assert_eq!(listed(&place, &["list"])[2].1, MIB, "what failed has not happened");
    refused(&place, &["resize", "3", "2MiB"], "no namespace 3");
    refused(&place, &["add", "--nsid", "2"], "in use");
    refused(&place, &["rm", "9"], "no namespace 9");
    let left = listed(&place, &["rm", "1"]);
    assert_eq!(left.iter().map(|row| row.0).collect::<Vec<_>>(), [2, 7]);
    assert!(place.data().join("card/nvme.img").exists(), "what it lay on stays");

    stop(&mut card);
    refused(&place, &["list"], "no card answers");
    let mut card = start(&place);
    let again = listed(&place, &["list"]);
    assert_eq!((again.len(), &again[0]), (2, &shrunk[1]), "sizes and ids; 1 stays away");
    assert_eq!((again[1].0, again[1].1), (7, MIB));
    assert_ne!(again[1].2, memory[2].2, "what was in memory is gone, and is not the disk that hosts knew");
    listed(&place, &["rm", "2"]);
    let image = place.data().join("card/namespace-2.img");
    refused(&place, &["add", "--nsid", "2"], "of a namespace that was removed");
    let again = listed(&place, &["add", "--nsid", "2", "--device", image.to_str().unwrap()]);
    assert_eq!((again[0].1, again[0].2 == shrunk[1].2), (4 * MIB, false), "it may hold other data by now");
    refused(&place, &["add", "--device", "/dev/no-such-disk"], "--device");
    stop(&mut card);

    // Data that is missing is not replaced by an empty disk of the same name.
    std::fs::remove_file(&image).unwrap();
    let output = place.output(&["card", "--config", "outboard.toml", "--data", "data"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("namespace-2.img is missing"), "{text}");
}

/// What a card says when it waits for a device that another program has.
const WAITING: &str = "waiting for another program";

#[test]
fn a_card_that_serves_hosts_waits_for_nobody_and_one_that_starts_does() {
    let place = Place::new();
    let mut card = start(&place);
    let image = place.path().join("another.img");
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(4 * MIB).unwrap();
    file.lock().unwrap();
    refused(&place, &["add", "--device", image.to_str().unwrap()], "another.img");
    assert_eq!(listed(&place, &["list"]).len(), 1);
    file.unlock().unwrap();
    assert_eq!(listed(&place, &["add", "--device", image.to_str().unwrap()]).len(), 2);
    stop(&mut card);
    let told: Vec<&String> = card.seen().iter().filter(|line| line.contains(WAITING)).collect();
    assert!(told.is_empty(), "hosts would have waited meanwhile: {told:?}");

    // An earlier life may still have it when a card starts, and is given time.
    file.lock().unwrap();
    let mut card = place.start(&["card", "--json"]);
    card.wait_for(WAITING);
    file.unlock().unwrap();
    card.wait_for("incarnation");
    assert_eq!(listed(&place, &["list"]).len(), 2);
    stop(&mut card);
}
