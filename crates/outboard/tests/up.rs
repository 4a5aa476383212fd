//! `outboard up` as people use it: the real program, real signals, and no process left behind.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support;

use std::net::TcpListener;

use rustix::process::{Signal, pidfd_send_signal};

use support::{Place, Program, handle, number_after, pid_after, wait_for_end};

/// The numbers of card and host in the line that says both are up.
fn pids(line: &str) -> (u32, u32) {
    (pid_after(line, "card (pid "), pid_after(line, "host (pid "))
}

fn wait_until_up(up: &mut Program) -> (u32, u32) {
    pids(&up.wait_for("Outboard is up"))
}

fn stops_cleanly_on(signal: Signal) {
    let place = Place::new();
    let mut up = place.start(&["up"]);
    let (card, host) = wait_until_up(&mut up);
    up.wait_for("link.sock");
    let status = up.wait_for("status    http://127.0.0.1:");
    assert_ne!(number_after(&status, "127.0.0.1:"), 0);
    up.wait_for("files     data/card/files.img, ");
    up.wait_for("outboard status --endpoint 127.0.0.1:");
    let halves = [handle(card), handle(host)];
    up.signal(signal);
    let end = up.wait();
    assert_eq!(end.code(), Some(0), "{:#?}", up.seen());
    assert!(up.seen().iter().any(|line| line.ends_with("| stopped")), "{:#?}", up.seen());
    for half in &halves {
        wait_for_end(half);
    }
}

/// Whether a process ignores a signal, as the kernel tells it.
fn ignores(pid: &str, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 << (signal.as_raw() - 1) != 0
}

#[test]
fn up_stops_cleanly_on_sigint() {
    if is_tested(Signal::INT) {
        stops_cleanly_on(Signal::INT);
    }
}

/// Whether what is started here gets a signal: not if these tests were put in the background, where it is ignored.
fn is_tested(signal: Signal) -> bool {
    let is_ignored = ignores("self", signal);
    if is_ignored {
        ob_plant::not_tested(format_args!("what {signal:?} stops, which is ignored where these tests run"));
    }
    !is_ignored
}

/// As `nohup` has it: the end of a terminal is no reason to stop then.
#[test]
fn a_signal_that_is_to_be_ignored_stops_nobody() {
    let place = Place::new();
    let mut card = place.start_behind("trap '' HUP", &["card"]);
    card.wait_for("The card is ready");
    assert!(ignores(&card.pid().to_string(), Signal::HUP));
    card.signal(Signal::TERM);
    assert_eq!(card.wait().code(), Some(0), "{:#?}", card.seen());
    if !is_tested(Signal::HUP) {
        return;
    }
    let mut card = place.start(&["card"]);
    card.wait_for("The card is ready");
    card.signal(Signal::HUP);
    assert_eq!(card.wait().code(), Some(0), "{:#?}", card.seen());
}

#[test]
fn up_stops_cleanly_on_sigterm() {
    stops_cleanly_on(Signal::TERM);
}

fn comes_back_after_being_killed(half: &str) {
    let place = Place::new();
    let mut up = place.start(&["up"]);
    let (card, host) = wait_until_up(&mut up);
    assert_eq!((place.incarnation("card"), place.incarnation("host")), (1, 1));
    let pid = if half == "card" { card } else { host };
    pidfd_send_signal(handle(pid), Signal::KILL).unwrap();
    up.wait_for(&format!("the {half} (pid {pid}) was killed by signal 9 (SIGKILL) at "));
    up.wait_for("starting it again in 100 ms");
    let back = up.wait_for(&format!("the {half} is back: "));
    assert_ne!(pid_after(&back, "pid "), pid);
    assert_eq!(number_after(&back, "incarnation "), 2);
    assert_eq!(place.incarnation(half), 2);
    let other = if half == "card" { "host" } else { "card" };
    assert_eq!(place.incarnation(other), 1, "the other half goes on");
    up.signal(Signal::TERM);
    assert_eq!(up.wait().code(), Some(0), "{:#?}", up.seen());
}

#[test]
fn a_killed_card_comes_back_with_the_next_incarnation() {
    comes_back_after_being_killed("card");
}

#[test]
fn a_killed_host_comes_back_with_the_next_incarnation() {
    comes_back_after_being_killed("host");
}

#[test]
fn the_halves_die_with_their_supervisor() {
    let place = Place::new();
    let mut up = place.start(&["up"]);
    let (card, host) = wait_until_up(&mut up);
    let halves = [handle(card), handle(host)];
    up.signal(Signal::KILL);
    for half in &halves {
        wait_for_end(half);
    }
    // Nothing holds a lock any more.
    let mut next = place.start(&["up"]);
    wait_until_up(&mut next);
}

#[test]
fn a_half_that_does_not_stop_is_killed_after_the_grace_period() {
    let place = Place::new();
    let mut up = place.start(&["up"]);
    let (_, host) = wait_until_up(&mut up);
    let host_handle = handle(host);
    pidfd_send_signal(&host_handle, Signal::STOP).unwrap();
    up.signal(Signal::TERM);
    up.wait_for(&format!("the host (pid {host}) has not stopped yet: killing it"));
    wait_for_end(&host_handle);
    assert_eq!(up.wait().code(), Some(1));
    assert!(up.seen().iter().any(|line| line.ends_with("the host had to be killed")), "{:#?}", up.seen());
}

#[test]
fn a_second_up_on_the_same_data_is_refused() {
    let place = Place::new();
    let mut up = place.start(&["up"]);
    wait_until_up(&mut up);
    let output = place.output(&["up", "--config", "outboard.toml", "--data", "data"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    let expected = format!("the process {} runs `outboard up` on the data directory data already", up.pid());
    assert!(text.contains(&expected), "{text}");
    assert!(text.contains("--data DIR"), "{text}");
}

#[test]
fn a_mistake_in_the_configuration_is_explained_before_anything_starts() {
    let place = Place::with_config("[status]\nlistn = \"127.0.0.1:0\"\n");
    let output = place.output(&["up", "--config", "outboard.toml", "--data", "data"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("unknown key `listn` in [status]\n --> outboard.toml:2:1"), "{text}");
    assert!(text.contains("did you mean `listen`?"), "{text}");
    assert!(!place.data().exists());
}

#[test]
fn a_port_in_use_ends_up_with_the_line_to_change() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let place = Place::with_config(&format!("# ours\n[status]\nlisten = \"{address}\"\n"));
    let mut up = place.start(&["up"]);
    let end = up.wait();
    assert_eq!(end.code(), Some(2), "{:#?}", up.seen());
    let text = up.seen().join("\n");
    assert!(text.contains("error: the card failed 5 times in a row: cannot listen on"), "{text}");
    let line = format!("change `[status] listen` at outboard.toml:3: listen = \"{address}\"");
    assert!(text.contains(&line), "{text}");
}

#[test]
fn with_json_every_event_is_a_line_for_scripts() {
    let place = Place::new();
    let mut up = place.start(&["up", "--json"]);
    let ready: serde_json::Value = serde_json::from_str(&up.wait_for("\"event\":\"ready\"")).unwrap();
    let host = ready["host"]["pid"].as_u64().unwrap();
    assert_eq!(ready["card"]["incarnation"], 1);
    assert!(ready["card"]["status"].as_str().unwrap().starts_with("127.0.0.1:"));
    pidfd_send_signal(handle(host.try_into().unwrap()), Signal::KILL).unwrap();
    let died: serde_json::Value = serde_json::from_str(&up.wait_for("\"event\":\"died\"")).unwrap();
    assert_eq!((&died["half"], &died["pid"]), (&"host".into(), &host.into()));
    let back: serde_json::Value = serde_json::from_str(&up.wait_for("\"event\":\"back\"")).unwrap();
    assert_eq!(back["incarnation"], 2);
    up.signal(Signal::TERM);
    up.wait_for("\"event\":\"stopped\"");
    assert_eq!(up.wait().code(), Some(0));
}
