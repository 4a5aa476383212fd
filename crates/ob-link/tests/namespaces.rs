//! The `tcp` link over networks that fail: a stretch of network that the test cuts at any byte, and two network
//! namespaces joined by a cable that the test pulls.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

mod common;
// To be run once more, with card and host in namespaces of their own.
mod link_suite;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::process::{Child, orders, role, say, setting};
use common::proxy::{Mode, Proxy};
use common::watched::{Bystander, WatchedCard, turn};
use common::{ECHO, Echo, LONG, config, host_config, observe, scenes};
use ob_core::Incarnation;
use ob_io::{Config, Reactor};
use ob_link::{
    AddressRange, CardLink, CardLoop, Endpoint, HostLink, HostLinkConfig, Listen, OpenGroupError, Over,
    WaitError, address_bits,
};

/// Plays the role that the parent gave, in a process (and a namespace) of its own.
#[test]
fn child() {
    let Some(role) = role() else { return };
    match role.as_str() {
        "card" => card(),
        "host" => host(),
        other => panic!("no role {other}"),
    }
}

fn through(proxy: &Proxy, dead_after: Duration) -> HostLinkConfig {
    HostLinkConfig { dead_after, ..host_config(Endpoint::Tcp(proxy.address)) }
}

#[test]
fn cuts_at_any_byte_lose_double_and_reorder_nothing() {
    let card = WatchedCard::start(|config| config.dead_after = LONG);
    let bystander = Bystander::start(card.tcp());
    let limit = Instant::now() + Duration::from_secs(12);
    std::thread::scope(|scope| {
        let card = &card;
        // Short connections are cut within handshakes and small frames, longer ones under load.
        for (seed, within) in [(1, 1500), (2, 6000), (3, 40_000)] {
            scope.spawn(move || {
                let proxy = Proxy::start(card.tcp, seed, within);
                let link = HostLink::attach(&through(&proxy, LONG)).unwrap();
                proxy.set(Mode::CutRandomly);
                let steps = AtomicU64::new(0);
                scenes::steady(&link, &steps, || proxy.cuts() >= 1500 || Instant::now() > limit);
                println!("{} cuts, {} messages", proxy.cuts(), steps.load(Ordering::Acquire));
                assert!(proxy.cuts() > 30, "{}", proxy.cuts());
            });
        }
    });
    // (A host that leaves while it is cut off cannot say so: the card would wait for it as long as it may be away.)
    bystander.finish();
}

#[test]
fn groups_open_and_close_across_cuts() {
    let card = WatchedCard::start(|config| config.dead_after = LONG);
    let proxy = Proxy::start(card.tcp, 4, 900);
    let link = HostLink::attach(&through(&proxy, LONG)).unwrap();
    proxy.set(Mode::CutRandomly);
    for number in 0..1000u64 {
        if proxy.cuts() > 60 {
            break;
        }
        let group = link.open_group(ECHO, 4096, 4096).unwrap();
        common::push(&group, &number.to_le_bytes(), None);
        assert_eq!(common::take(&group).0, number.to_le_bytes());
    }
    assert!(proxy.cuts() > 10, "{}", proxy.cuts());
    // Every one of them was closed, once.
    proxy.set(Mode::Forward);
    observe("no group is left", || (card.hosts()[0].groups == 0).then_some(()));
    assert_eq!(link.over(), None);
}

#[test]
fn a_stall_is_sat_out() {
    let card = WatchedCard::start(|config| config.dead_after = LONG);
    let proxy = Proxy::start(card.tcp, 5, 1000);
    let link = HostLink::attach(&through(&proxy, LONG)).unwrap();
    let stop = AtomicBool::new(false);
    let steps = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| scenes::steady(&link, &steps, || stop.load(Ordering::Acquire)));
        for _ in 0..5 {
            let before = steps.load(Ordering::Acquire);
            observe("progress", || (steps.load(Ordering::Acquire) > before + 50).then_some(()));
            proxy.set(Mode::Stall);
            std::thread::sleep(Duration::from_millis(60));
            proxy.set(Mode::Forward);
        }
        stop.store(true, Ordering::Release);
    });
    assert_eq!(proxy.cuts(), 0);
}

/// Cut for longer than `dead_after`: both sides report the end, sleepers wake, and the host can attach afresh.
fn cut_for_good(mode: Mode) {
    let short = Duration::from_millis(600);
    let card = WatchedCard::start(|config| config.dead_after = short);
    let bystander = Bystander::start(card.unix());
    let proxy = Proxy::start(card.tcp, 6, 200);
    let link = HostLink::attach(&through(&proxy, short)).unwrap();
    let attachment = link.welcome().attachment;
    let group = link.open_group(ECHO, 4096, 4096).unwrap();
    std::thread::scope(|scope| {
        let sleepers: Vec<_> =
            (0..3).map(|_| scope.spawn(|| group.wait_response(LONG, || None::<()>))).collect();
        proxy.set(Mode::Refuse);
        if mode == Mode::Stall {
            // The card's machine answers, the card does not.
            observe("a cut", || (proxy.cuts() > 0).then_some(()));
            proxy.set(Mode::Stall);
        }
        assert!(matches!(link.wait_over(LONG), Some(Over::Ended(_))), "{:?}", link.over());
        sleepers.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), Err(WaitError::Gone)));
    });
    card.wait_hosts(1);
    assert!(!link.send(b"too late"));
    assert_eq!(link.open_group(ECHO, 4096, 4096).err(), Some(OpenGroupError::Gone));
    proxy.set(Mode::Forward);
    let again = HostLink::attach(&through(&proxy, short)).unwrap();
    assert_ne!(again.welcome().attachment, attachment);
    scenes::echo(&again);
    bystander.finish();
}

#[test]
fn a_cut_for_longer_than_allowed_ends_the_attachment_on_both_sides() {
    cut_for_good(Mode::Refuse);
}

#[test]
fn a_card_that_accepts_and_says_nothing_has_not_taken_the_host_back() {
    cut_for_good(Mode::Stall);
}

#[test]
fn a_host_that_is_away_can_be_dropped_at_once() {
    let card = WatchedCard::start(|config| config.dead_after = LONG);
    let proxy = Proxy::start(card.tcp, 7, 200);
    let link = HostLink::attach(&through(&proxy, LONG)).unwrap();
    proxy.set(Mode::Refuse);
    observe("a cut", || (proxy.cuts() > 0).then_some(()));
    let start = Instant::now();
    drop(link);
    assert!(start.elapsed() < LONG / 2);
}

/// A card in a namespace of its own.
fn card() {
    let told = orders();
    let address: SocketAddr = setting("ADDRESS").parse().unwrap();
    let reactor = Reactor::new(&Config::default()).unwrap();
    let mut config = config(vec![Listen::Tcp(address)]);
    config.incarnation = Incarnation(5);
    config.dead_after = dead_after();
    let address: IpAddr = setting("ALLOW").parse().unwrap();
    config.allow_addresses = vec![AddressRange { address, prefix_bits: address_bits(address) }];
    let link = CardLink::new(&reactor.handle(), config).unwrap();
    let mut card = CardLoop::new(reactor, link, Echo::default(), Duration::from_micros(50));
    say("ready");
    let (mut letters, mut others, mut known) = (VecDeque::new(), Vec::new(), 0);
    while told.try_recv().is_err() {
        turn(&mut card, &mut letters, &mut others);
        let hosts = card.link.hosts().len();
        if hosts != known {
            known = hosts;
            say(&format!("hosts {hosts}"));
        }
    }
}

fn dead_after() -> Duration {
    Duration::from_millis(setting("DEAD_AFTER").parse().unwrap())
}

/// A host in another namespace: every scene, then steady load until it is told otherwise.
fn host() {
    let told = orders();
    let endpoint = Endpoint::Tcp(setting("ADDRESS").parse().unwrap());
    let config = HostLinkConfig { dead_after: dead_after(), ..host_config(endpoint) };
    let link = HostLink::attach(&config).unwrap();
    scenes::all(&link);
    say("scenes done");
    let (steps, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| scenes::steady(&link, &steps, || stop.load(Ordering::Acquire)));
        for order in &told {
            match order.as_str() {
                "progress" => {
                    let before = steps.load(Ordering::Acquire);
                    observe("progress", || (steps.load(Ordering::Acquire) > before + 300).then_some(()));
                    say("progressed");
                }
                _ => break,
            }
        }
        stop.store(true, Ordering::Release);
    });
    say("steady done");
    // From here on the cut is longer than allowed.
    let group = link.open_group(ECHO, 4096, 4096).unwrap();
    say("waiting");
    assert_eq!(group.wait_response(LONG, || None::<()>), Err(WaitError::Gone));
    say(&format!("over {:?}", link.wait_over(LONG).unwrap()));
    assert_eq!(told.recv().unwrap(), "again");
    let link = observe("the card, again", || HostLink::attach(&config).ok());
    scenes::echo(&link);
    say("again done");
}

/// Two namespaces and a cable; gone when dropped.
struct Namespaces {
    card: String,
    host: String,
}

const CARD: &str = "192.0.2.1";
const HOST: &str = "192.0.2.2";

impl Namespaces {
    /// `None`, and a line that says why, where this machine does not allow it.
    fn make() -> Option<Self> {
        let id = std::process::id();
        // Tests of one process run beside each other.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let id = format!("{id}n{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let made = Self { card: format!("obcard{id}"), host: format!("obhost{id}") };
        let steps: Vec<String> = vec![
            format!("netns add {}", made.card),
            format!("netns add {}", made.host),
            format!("-n {} link add cable type veth peer name cable netns {}", made.card, made.host),
            format!("-n {} addr add {CARD}/24 dev cable", made.card),
            format!("-n {} addr add {HOST}/24 dev cable", made.host),
            format!("-n {} link set cable up", made.card),
            format!("-n {} link set cable up", made.host),
        ];
        for step in steps {
            if let Err(reason) = ip(&step) {
                ob_plant::not_tested(format_args!("no network namespaces here: `ip {step}`: {reason}"));
                return None;
            }
        }
        Some(made)
    }

    fn cable(&self, state: &str) {
        ip(&format!("-n {} link set cable {state}", self.host)).unwrap();
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        let _ = ip(&format!("netns del {}", self.card));
        let _ = ip(&format!("netns del {}", self.host));
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|error| error.to_string())?;
    let complaint = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(complaint) }
}

#[test]
fn the_link_across_namespaces_survives_a_pulled_cable() {
    let Some(namespaces) = Namespaces::make() else { return };
    let settings =
        [("ADDRESS", format!("{CARD}:7410")), ("ALLOW", HOST.to_owned()), ("DEAD_AFTER", "2500".to_owned())];
    let card = Child::start_in(Some(&namespaces.card), "card", &settings);
    card.expect("ready");
    let mut host = Child::start_in(Some(&namespaces.host), "host", &settings);
    card.expect("hosts 1");
    host.expect("scenes done");
    let progress = |host: &mut Child| {
        host.tell("progress");
        host.expect("progressed");
    };
    progress(&mut host);
    // (a) The cable is pulled for a while: TCP sends again.
    namespaces.cable("down");
    std::thread::sleep(Duration::from_millis(1200));
    namespaces.cable("up");
    progress(&mut host);
    // (b) The connections are killed, where the kernel can.
    for _ in 0..3 {
        let filter = ["netns", "exec", namespaces.host.as_str(), "ss", "-K", "dst", CARD];
        let killed = Command::new("ip").args(filter).output();
        println!(
            "ss -K: {}",
            killed.map_or_else(|error| error.to_string(), |output| output.status.to_string())
        );
        progress(&mut host);
    }
    host.tell("stop");
    host.expect("steady done");
    // (c) Pulled for longer than allowed: both sides say so.
    host.expect("waiting");
    namespaces.cable("down");
    println!("the host says: over {}", host.expect("over"));
    card.expect("hosts 0");
    namespaces.cable("up");
    host.tell("again");
    host.expect("again done");
    host.finish();
}

#[test]
fn the_whole_suite_passes_with_card_and_host_in_namespaces_of_their_own() {
    let Some(namespaces) = Namespaces::make() else { return };
    let mut suite = Command::new("ip");
    suite.args(["netns", "exec", &namespaces.host]).arg(std::env::current_exe().unwrap());
    suite.args(["link_suite::", "--test-threads=2"]);
    suite.env(common::CARD_NAMESPACE, &namespaces.card).env(common::CARD_ADDRESS, format!("{CARD}:0"));
    let output = suite.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    let passed =
        said.lines().filter(|line| line.starts_with("test link_suite::") && line.ends_with("... ok")).count();
    assert!(passed >= 10, "{said}");
}
