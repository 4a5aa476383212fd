//! Host processes that misbehave, and cards that die: nobody else is harmed.
//!
//! The bad host is another process; the card and a bystander, a host that behaves, run here.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

mod common;

use std::collections::VecDeque;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::process::{Child, orders, role, say, setting, signal_process};
use common::raw::Raw;
use common::watched::{Bystander, WatchedCard, turn};
use common::{Dice, ECHO, Echo, LONG, attach, config, host_config, push, take};
use ob_core::Incarnation;
use ob_io::{Config, Reactor};
use ob_link::{
    CardLink, CardLoop, Endpoint, GroupRefusal, HostLink, Listen, OpenGroupError, Over, WaitError,
};
use ob_wire_link::frame::Frame;
use ob_wire_link::ring::{CONTROL_LEN, control};
use rustix::fs::{FallocateFlags, OFlags, SealFlags};
use rustix::process::{Resource, Rlimit, Signal};

const CAPACITY: u32 = 1 << 18;

/// Plays the role that the parent gave, in a process of its own.
#[test]
fn child() {
    let Some(role) = role() else { return };
    match role.as_str() {
        "pusher" => pusher(),
        "forker" => forker(),
        "vandal" => vandal(),
        "flooder" => flooder(),
        "leaver" => leaver(),
        "corrupter" => corrupter(),
        "card" => card(),
        other => panic!("no role {other}"),
    }
}

fn endpoint() -> Endpoint {
    match setting("ENDPOINT").split_once(':') {
        Some(("unix", path)) => Endpoint::Unix(path.into()),
        Some(("tcp", address)) => Endpoint::Tcp(address.parse().unwrap()),
        _ => panic!("no endpoint"),
    }
}

fn unix_of(card: &WatchedCard) -> (&'static str, String) {
    ("ENDPOINT", format!("unix:{}", card.socket.display()))
}

fn tcp_of(card: &WatchedCard) -> (&'static str, String) {
    ("ENDPOINT", format!("tcp:{}", card.tcp))
}

/// A host under load: two groups, a thread each that pushes and takes, until it is told to stop (or killed).
fn pusher() {
    let told = orders();
    let link = attach(endpoint());
    let stop = AtomicBool::new(false);
    let groups: Vec<_> = (0..2).map(|_| link.open_group(ECHO, CAPACITY, CAPACITY).unwrap()).collect();
    std::thread::scope(|scope| {
        for group in &groups {
            let stop = &stop;
            scope.spawn(move || {
                let mut number = 0u64;
                while !stop.load(Ordering::Acquire) {
                    for ahead in 0..8 {
                        push(group, &(number + ahead).to_le_bytes(), Some(&[number as u8; 2000]));
                    }
                    for _ in 0..8 {
                        assert_eq!(
                            take(group),
                            (number.to_le_bytes().to_vec(), vec![number as u8 & !7; 2000])
                        );
                        number += 1;
                    }
                }
            });
        }
        say("ready");
        for order in &told {
            match order.as_str() {
                "stop" => break,
                _ => say("here"),
            }
        }
        stop.store(true, Ordering::Release);
    });
}

#[test]
fn a_host_killed_at_any_moment_leaves_nothing_behind() {
    let card = WatchedCard::start(|config| config.memory_max = 8 << 20);
    let possible = card.groups_possible(CAPACITY);
    let bystander = Bystander::start(card.unix());
    let mut dice = Dice::new(1);
    for round in 0..14 {
        let mut child = Child::start("pusher", &[unix_of(&card)]);
        // From before it attaches to far into its pushing.
        if round % 4 != 0 {
            child.expect("ready");
        }
        std::thread::sleep(Duration::from_micros(dice.below(8_000)));
        child.kill();
        card.wait_hosts(1);
    }
    bystander.finish();
    card.wait_hosts(0);
    assert_eq!(card.groups_possible(CAPACITY), possible);
}

#[test]
fn a_tcp_host_killed_at_any_moment_leaves_nothing_behind() {
    let card = WatchedCard::start(|config| {
        config.memory_max = 8 << 20;
        config.dead_after = Duration::from_millis(200);
    });
    let possible = card.groups_possible(CAPACITY);
    let bystander = Bystander::start(card.unix());
    let mut dice = Dice::new(2);
    for _ in 0..5 {
        let mut child = Child::start("pusher", &[tcp_of(&card)]);
        child.expect("ready");
        std::thread::sleep(Duration::from_micros(dice.below(8_000)));
        child.kill();
        card.wait_hosts(1);
    }
    bystander.finish();
    card.wait_hosts(0);
    assert_eq!(card.groups_possible(CAPACITY), possible);
}

#[test]
fn a_stopped_host_goes_on_where_it_was_and_harms_nobody_meanwhile() {
    let card = WatchedCard::start(|config| config.memory_max = 8 << 20);
    let possible = card.groups_possible(CAPACITY);
    let bystander = Bystander::start(card.unix());
    let mut children = [Child::start("pusher", &[unix_of(&card)]), Child::start("pusher", &[tcp_of(&card)])];
    let mut dice = Dice::new(3);
    for child in &mut children {
        child.expect("ready");
        for _ in 0..8 {
            std::thread::sleep(Duration::from_micros(dice.below(5_000)));
            child.signal(Signal::STOP);
            std::thread::sleep(Duration::from_millis(dice.below(40)));
            child.signal(Signal::CONT);
            child.tell("there?");
            child.expect("here");
        }
    }
    let [mut goes_on, mut killed] = children;
    goes_on.tell("stop");
    goes_on.finish();
    killed.tell("stop");
    killed.finish();
    card.wait_hosts(1);
    // Stopped, and then killed without waking again.
    let mut child = Child::start("pusher", &[unix_of(&card)]);
    child.expect("ready");
    child.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(card.hosts().len(), 2);
    child.kill();
    card.wait_hosts(1);
    bystander.finish();
    card.wait_hosts(0);
    assert_eq!(card.groups_possible(CAPACITY), possible);
}

/// A host whose child keeps its socket and memory open.
fn forker() {
    let _told = orders();
    let Endpoint::Unix(path) = endpoint() else { panic!() };
    let mut raw = Raw::unix(&path);
    let welcome = raw.attach();
    let group = raw.open_group(&welcome, CAPACITY);
    for descriptor in [raw.socket(), group.memory.as_fd()] {
        rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty()).unwrap();
    }
    let heir = std::process::Command::new("sleep").arg("600").stdin(std::process::Stdio::null()).spawn();
    say(&format!("heir {}", heir.unwrap().id()));
    // Until it is killed; were it not, it would end with the test.
    loop {
        group.echo(b"load");
    }
}

#[test]
fn the_death_of_a_host_is_noticed_though_its_children_hold_its_socket() {
    let card = WatchedCard::start(|config| config.memory_max = 8 << 20);
    let possible = card.groups_possible(CAPACITY);
    let bystander = Bystander::start(card.unix());
    let mut heirs = Vec::new();
    for _ in 0..3 {
        let mut child = Child::start("forker", &[unix_of(&card)]);
        heirs.push(child.expect("heir").parse::<i32>().unwrap());
        child.kill();
        card.wait_hosts(1);
    }
    bystander.finish();
    card.wait_hosts(0);
    let after = card.groups_possible(CAPACITY);
    heirs.into_iter().for_each(|heir| signal_process(heir, Signal::KILL));
    assert_eq!(after, possible);
}

/// A host that does what it likes with every descriptor it has, while its ring goes on.
fn vandal() {
    let _told = orders();
    let Endpoint::Unix(path) = endpoint() else { panic!() };
    let mut dice = Dice::new(setting("SEED").parse().unwrap());
    let mut raw = Raw::unix(&path);
    let welcome = raw.attach();
    let group = raw.open_group(&welcome, CAPACITY);
    let len = group.opened.region_len;
    for number in 0..200u64 {
        group.echo(&number.to_le_bytes());
        match dice.below(7) {
            0 => assert!(rustix::fs::ftruncate(&group.memory, dice.below(len)).is_err()),
            1 => assert!(rustix::fs::ftruncate(&group.memory, len + dice.below(1 << 20)).is_err()),
            2 => assert!(rustix::fs::fcntl_add_seals(&group.memory, SealFlags::WRITE).is_err()),
            3 => {
                let again = common::raw::map(&group.memory, len as usize);
                assert!(again.contains(0, len));
            }
            4 => {
                for descriptor in [raw.socket(), group.memory.as_fd()] {
                    rustix::fs::fcntl_setfl(descriptor, OFlags::empty()).unwrap();
                }
            }
            5 => {
                // Holes where nothing is that matters: behind what has been taken. The card meets zeros, or nothing.
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let half = u64::from(CAPACITY) / 2;
                rustix::fs::fallocate(&group.memory, flags, 4096 + half, half).unwrap();
            }
            _ => {
                let gift = rustix::fs::memfd_create("gift", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
                let given = [gift.as_fd(), group.memory.as_fd(), raw.socket()];
                let given: Vec<OwnedFd> = given.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
                let given: Vec<BorrowedFd<'_>> = given.iter().map(AsFd::as_fd).collect();
                // The kernel refuses it where the card could ask for that.
                let _ = raw.send_with(&Frame::Doorbell, &given);
            }
        }
    }
    // At last a hole in the place of everything: this group may break, nothing else.
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for _ in 0..20 {
        rustix::fs::fallocate(&group.memory, flags, 0, len).unwrap();
        let _ = group.push(b"into the void");
    }
    say("done");
}

#[test]
fn what_a_host_does_to_its_descriptors_harms_nobody() {
    let card = WatchedCard::start(|config| config.memory_max = 8 << 20);
    let possible = card.groups_possible(CAPACITY);
    let bystander = Bystander::start(card.unix());
    for seed in 0..4 {
        let child = Child::start("vandal", &[unix_of(&card), ("SEED", seed.to_string())]);
        child.expect("done");
        child.finish();
        card.wait_hosts(1);
    }
    // The card kept nothing of what it was given.
    assert_eq!(gifts(), 0);
    bystander.finish();
    card.wait_hosts(0);
    assert_eq!(card.groups_possible(CAPACITY), possible);
}

/// How many descriptors that vandals gave away are open in this process, the card's.
fn gifts() -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("memfd:gift")).count()
}

/// A host that fills its socket and never reads, then hands over a socket that is slow to close.
fn flooder() {
    let _told = orders();
    let Endpoint::Unix(path) = endpoint() else { panic!() };
    let mut raw = Raw::unix(&path);
    raw.attach();
    match setting("FLOOD").as_str() {
        "pings" => {
            let ping = common::raw::encoded(&Frame::Ping { nonce: 1 });
            say("ready");
            while raw.send_bytes(&ping).is_ok() {}
        }
        _ => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let slow = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let _never_read = listener.accept().unwrap();
            slow.set_nonblocking(true).unwrap();
            while rustix::net::send(&slow, &[0; 1 << 16], rustix::net::SendFlags::DONTWAIT).is_ok() {}
            slow.set_nonblocking(false).unwrap();
            rustix::net::sockopt::set_socket_linger(&slow, Some(2 * LONG)).unwrap();
            // Refused by the kernel where the card could ask for that.
            let given = raw.send_with(&Frame::Doorbell, &[slow.as_fd()]);
            // The card's copy is the last one, if there is one: the kernel closes it on the card's thread.
            std::mem::forget(slow.try_clone().ok().filter(|_| given.is_err()));
            if given.is_ok() {
                drop(slow);
            }
            say(&format!("ready {given:?}"));
            std::thread::sleep(LONG);
        }
    }
}

#[test]
fn a_host_that_floods_and_never_reads_is_dropped() {
    let card = WatchedCard::start(|_| {});
    let bystander = Bystander::start(card.unix());
    let child = Child::start("flooder", &[unix_of(&card), ("FLOOD", "pings".to_owned())]);
    child.expect("ready");
    // Its answers pile up to a limit; then it is over.
    card.wait_hosts(1);
    bystander.finish();
}

#[test]
fn a_descriptor_that_is_slow_to_close_does_not_hold_the_card() {
    let card = WatchedCard::start(|_| {});
    let bystander = Bystander::start(card.unix());
    let mut child = Child::start("flooder", &[unix_of(&card), ("FLOOD", "slow".to_owned())]);
    println!("handing over a descriptor: {}", child.expect("ready"));
    card.hosts();
    std::thread::sleep(Duration::from_millis(50));
    child.kill();
    card.wait_hosts(1);
    bystander.finish();
}

/// A host that writes nonsense into one of its rings, while another of its groups goes on.
fn corrupter() {
    let told = orders();
    let Endpoint::Unix(path) = endpoint() else { panic!() };
    let mut dice = Dice::new(setting("SEED").parse().unwrap());
    let mut raw = Raw::unix(&path);
    let welcome = raw.attach();
    let good = raw.open_group(&welcome, 4096);
    let mut closed = 0;
    for round in 0..60u64 {
        let bad = raw.open_group(&welcome, 4096);
        bad.echo(b"still well");
        for _ in 0..200 {
            good.echo(&round.to_le_bytes());
            corrupt(&bad.memory, bad.opened.region_len, &mut dice);
            let _ = bad.push(&dice.bytes(40));
            bad.region.store(control::CLAIM, dice.next() & 0xfff8, Ordering::Release);
            raw.send(&Frame::Doorbell).unwrap();
            if closed_corrupt(&mut raw, bad.opened.group, false) {
                closed += 1;
                break;
            }
            if round % 3 == 0 {
                // Pointers that can never be.
                bad.region.store(control::PROGRESS, u64::MAX - 7, Ordering::Release);
                raw.send(&Frame::Doorbell).unwrap();
                assert!(closed_corrupt(&mut raw, bad.opened.group, true));
                closed += 1;
                break;
            }
        }
        good.echo(b"goes on");
    }
    assert!(closed >= 20, "{closed}");
    good.echo(b"to the end");
    say("done");
    let _ = told.recv();
}

fn corrupt(memory: &OwnedFd, len: u64, dice: &mut Dice) {
    let noise_len = 1 + dice.below(64) as usize;
    let noise = dice.bytes(noise_len);
    let place = match dice.below(3) {
        0 => dice.below(2 * CONTROL_LEN as u64),
        1 => dice.below(len - 64),
        _ => 4096 + dice.below(128),
    };
    rustix::io::pwrite(memory, &noise, place).unwrap();
}

/// Whether the card has closed this group as corrupt; `wait`: it will.
fn closed_corrupt(raw: &mut Raw, group: ob_core::GroupId, wait: bool) -> bool {
    loop {
        let mut watched =
            [rustix::event::PollFd::from_borrowed_fd(raw.socket(), rustix::event::PollFlags::IN)];
        let time = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let limit = if wait { None } else { Some(&time) };
        if rustix::event::poll(&mut watched, limit).unwrap() == 0 {
            return false;
        }
        let letter = raw.receive().expect("the card goes on with this host");
        if let Frame::GroupClosed { group: gone, reason, .. } = letter.frame()
            && gone == group
        {
            assert_eq!(reason, 2);
            return true;
        }
    }
}

#[test]
fn a_corrupt_ring_closes_its_group_and_nothing_else() {
    let card = WatchedCard::start(|config| config.memory_max = 8 << 20);
    let possible = card.groups_possible(CAPACITY);
    let bystanders = [Bystander::start(card.unix()), Bystander::start(card.tcp())];
    for seed in 0..3 {
        let mut child = Child::start("corrupter", &[unix_of(&card), ("SEED", seed.to_string())]);
        child.expect("done");
        child.tell("leave");
        child.finish();
        card.wait_hosts(2);
    }
    bystanders.into_iter().for_each(Bystander::finish);
    card.wait_hosts(0);
    assert_eq!(card.groups_possible(CAPACITY), possible);
}

/// A card in a process of its own; it ends loudly if a message of another life of the card reaches it.
fn card() {
    let told = orders();
    let life: u64 = setting("LIFE").parse().unwrap();
    let listen = match endpoint() {
        Endpoint::Unix(path) => Listen::Unix(path),
        Endpoint::Tcp(address) => Listen::Tcp(address),
    };
    let reactor = Reactor::new(&Config::default()).unwrap();
    let mut config = config(vec![listen]);
    config.incarnation = Incarnation(life);
    (config.memory_max, config.host_memory_max) = (1 << 30, 1 << 30);
    let link = CardLink::new(&reactor.handle(), config).unwrap();
    let mut card = CardLoop::new(reactor, link, Echo::default(), Duration::from_micros(50));
    say("ready");
    let (mut letters, mut others) = (VecDeque::new(), Vec::new());
    while told.try_recv().is_err() {
        turn(&mut card, &mut letters, &mut others);
        for (_, message) in &letters {
            assert_eq!(message[..], life.to_le_bytes(), "a message of another life");
        }
    }
}

/// Exchanges messages that carry the card's life, both ways.
fn exchange(link: &HostLink, life: u64) {
    let group = link.open_group(ECHO, 1 << 14, 1 << 14).unwrap();
    assert_eq!(link.welcome().card_incarnation, Incarnation(life));
    for _ in 0..50 {
        push(&group, &life.to_le_bytes(), Some(&[life as u8; 500]));
        assert_eq!(take(&group), (life.to_le_bytes().to_vec(), vec![life as u8; 500]));
        assert!(link.send(&life.to_le_bytes()));
        assert_eq!(link.receive(LONG).unwrap(), life.to_le_bytes());
    }
    // Left behind in the ring when the card dies.
    (0..20).for_each(|_| push(&group, &life.to_le_bytes(), None));
}

fn live_through_deaths(endpoint: &Endpoint, name: &str) {
    let mut before: Option<HostLink> = None;
    for life in 1..=4u64 {
        let mut card = Child::start("card", &[("ENDPOINT", name.to_owned()), ("LIFE", life.to_string())]);
        card.expect("ready");
        if let Some(old) = before.take() {
            // It knows that its card is gone, or learns it from the new one, which does not know it.
            match old.wait_over(LONG).unwrap() {
                Over::Refused { code, .. } => assert_eq!(code, 3),
                Over::Ended(_) => {}
            }
            assert!(!old.send(b"from another life"));
        }
        let link = HostLink::attach(&host_config(endpoint.clone())).unwrap();
        exchange(&link, life);
        let group = link.open_group(ECHO, 4096, 4096).unwrap();
        std::thread::scope(|scope| {
            let sleepers: Vec<_> =
                (0..3).map(|_| scope.spawn(|| group.wait_response(LONG, || None::<()>))).collect();
            card.kill();
            if matches!(endpoint, Endpoint::Unix(_)) {
                sleepers.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), Err(WaitError::Gone)));
                assert!(matches!(link.over(), Some(Over::Ended(_))));
            } else {
                // Over TCP the host tries to go on; a new card on the same port ends that.
                let mut next =
                    Child::start("card", &[("ENDPOINT", name.to_owned()), ("LIFE", "99".to_owned())]);
                next.expect("ready");
                sleepers.into_iter().for_each(|one| assert_eq!(one.join().unwrap(), Err(WaitError::Gone)));
                assert!(matches!(link.over(), Some(Over::Refused { code: 3, .. })));
                next.kill();
            }
        });
        before = Some(link);
    }
}

#[test]
fn a_card_that_is_refused_memory_for_a_group_refuses_the_group_and_goes_on() {
    // More than an allocator has in store.
    const LARGE: u32 = 128 << 20;
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("link.sock");
    let settings = [("ENDPOINT", format!("unix:{}", path.display())), ("LIFE", "1".to_owned())];
    let card = Child::start("card", &settings);
    card.expect("ready");
    let link = attach(Endpoint::Unix(path));
    // Room for a region with one large ring, and not for what the card has beside it.
    let pages = std::fs::read_to_string(format!("/proc/{}/statm", card.pid())).unwrap();
    let used = pages.split(' ').next().unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64;
    let limit = Some(used + u64::from(LARGE) * 3 / 2);
    let pid = rustix::process::Pid::from_raw(card.pid());
    rustix::process::prlimit(pid, Resource::As, Rlimit { current: limit, maximum: limit }).unwrap();
    for (request, response) in [(LARGE, 4096), (4096, LARGE)] {
        let refused = link.open_group(ECHO, request, response).map(drop).unwrap_err();
        let OpenGroupError::Refused(GroupRefusal::Budget(why)) = refused else { panic!("{refused}") };
        assert!(why.contains("rings of this size"), "{why}");
    }
    exchange(&link, 1);
}

#[test]
fn hosts_outlive_a_card_that_is_killed_and_attach_to_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let path: PathBuf = directory.path().join("link.sock");
    live_through_deaths(&Endpoint::Unix(path.clone()), &format!("unix:{}", path.display()));
    // A port that the kernel gives to nobody else meanwhile.
    let first = 20_000 + (std::process::id() % 1000) as u16 * 10;
    let free = (first..first + 10).map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let free = free.clone().find(|address| TcpListener::bind(address).is_ok()).unwrap();
    live_through_deaths(&Endpoint::Tcp(free), &format!("tcp:{free}"));
}

/// A host that says goodbye behind other frames, and is gone.
fn leaver() {
    let told = orders();
    let mut raw = match endpoint() {
        Endpoint::Unix(path) => Raw::unix(&path),
        Endpoint::Tcp(address) => Raw::tcp(address),
    };
    raw.attach();
    say("attached");
    told.recv().unwrap();
    for frame in [Frame::Doorbell, Frame::Doorbell, Frame::Goodbye { code: 1, text: "" }] {
        raw.send(&frame).unwrap();
    }
}

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Also where the card finds out by its death, or by having more to say to it.
#[test]
fn a_host_that_says_goodbye_and_ends_has_left() {
    let log = Log::default();
    let for_subscriber = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || for_subscriber.clone()).finish();
    let _logged = tracing::subscriber::set_default(subscriber);
    // Where there is one subscriber alone, whichever thread passes a line first is asked whether anybody wants it, for all of them: that may be
    // another test's, which has none.
    let _another = tracing::Dispatch::new(tracing_subscriber::fmt().with_writer(std::io::sink).finish());
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("link.sock");
    let listen = vec![Listen::Unix(socket.clone()), Listen::Tcp("127.0.0.1:0".parse().unwrap())];
    let reactor = Reactor::new(&Config::default()).unwrap();
    let link = CardLink::new(&reactor.handle(), config(listen)).unwrap();
    let (unix, tcp) = (format!("unix:{}", socket.display()), format!("tcp:{}", link.tcp_address().unwrap()));
    let mut card = CardLoop::new(reactor, link, Echo::default(), Duration::ZERO);
    let mut others = Vec::new();
    for (endpoint, has_more_to_say) in [(&unix, false), (&unix, true), (&tcp, false), (&tcp, true)] {
        let mut child = Child::start("leaver", &[("ENDPOINT", endpoint.clone())]);
        while card.link.host_count() == 0 {
            card.turn(None, &mut others);
        }
        child.expect("attached");
        // The card does not look until it is gone.
        child.tell("leave");
        child.finish();
        if has_more_to_say {
            let attachment = card.link.hosts()[0].identity.attachment;
            // TCP notices with the second.
            card.link.send(attachment, b"more");
            card.link.send(attachment, b"and more");
        }
        while card.link.host_count() > 0 {
            card.turn(None, &mut others);
        }
        let logged = std::mem::take(&mut *log.0.lock().unwrap());
        let logged = String::from_utf8(logged).unwrap();
        assert!(logged.contains("host detached: it said goodbye"), "{endpoint}: {logged}");
        assert!(!logged.contains("WARN"), "{endpoint}: {logged}");
    }
}
