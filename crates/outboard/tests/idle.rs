//! `outboard up` with nothing to do: under 1 % of a core, both halves together.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support;

use std::time::{Duration, Instant};

use outboard::accounting::process_cpu;
use rustix::process::Signal;

use support::{Place, pid_after};

/// Long enough for several probes, and for the kernel's clock ticks of 10 ms not to matter.
const WATCHED: Duration = Duration::from_secs(12);

#[test]
fn both_halves_together_take_under_one_percent_of_a_core() {
    let config = "[status]\nlisten = \"127.0.0.1:0\"\n[kv]\nlisten = \"127.0.0.1:0\"\n";
    let place = Place::with_config(config);
    let mut up = place.start(&["up"]);
    let line = up.wait_for("Outboard is up");
    let halves = [pid_after(&line, "card (pid "), pid_after(&line, "host (pid ")];
    let spent = || halves.iter().map(|pid| process_cpu(*pid).unwrap()).sum::<Duration>();
    let (before, started) = (spent(), Instant::now());
    while started.elapsed() < WATCHED {
        std::thread::sleep(WATCHED.saturating_sub(started.elapsed()));
    }
    let share = (spent() - before).as_secs_f64() / started.elapsed().as_secs_f64();
    println!("idle: {:.3} % of a core", share * 100.0);
    assert!(share < 0.01, "{:.3} % of a core", share * 100.0);
    up.signal(Signal::TERM);
    assert_eq!(up.wait().code(), Some(0));
}
