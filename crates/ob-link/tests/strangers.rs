//! Who is not allowed does not attach: real sockets, from addresses and of users that the configuration does not name.
//!
//! The rule itself is a table in `src/card_link/admission.rs`; here it is asked.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

use crate::common;

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use common::raw::{Raw, hello};
use common::watched::{Bystander, WatchedCard};
use ob_io::{Config, Reactor};
use ob_link::{AddressRange, CardLink, CardLinkConfig, Listen};
use ob_ring::Armed;
use ob_wire_link::frame::{Frame, VERSION};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use rustix::process::Uid;
use rustix::thread::UnshareFlags;

fn range(address: &str, prefix_bits: u32) -> AddressRange {
    AddressRange { address: address.parse().unwrap(), prefix_bits }
}

/// A connection that comes from this address of this machine.
fn from(address: &str, card: SocketAddr) -> Raw {
    let kind = SocketType::STREAM;
    let socket = rustix::net::socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::new(address.parse::<IpAddr>().unwrap(), 0)).unwrap();
    rustix::net::connect(&socket, &card).unwrap();
    Raw::from_tcp(TcpStream::from(socket))
}

/// Says `HELLO`, and wants to be hung up on without a word.
fn is_not_heard(mut raw: Raw) {
    // (The card may have hung up already.)
    let _ = raw.send(&Frame::Hello(hello(VERSION)));
    let heard = raw.until_hung_up();
    assert!(heard.is_empty(), "told {:?}", heard[0].frame());
}

#[test]
fn who_comes_from_elsewhere_is_not_heard() {
    let card = WatchedCard::start(|config| config.allow_addresses = vec![range("127.7.0.0", 16)]);
    let bystander = Bystander::start(card.unix());
    for address in ["127.0.0.1", "127.6.255.255", "127.8.0.0"] {
        is_not_heard(from(address, card.tcp));
        assert_eq!(card.hosts().len(), 1, "{address} attached");
    }
    for address in ["127.7.0.1", "127.7.255.255"] {
        from(address, card.tcp).attach();
    }
    bystander.finish();
}

/// Where no list says otherwise, machines besides this one are not heard, though the card listens everywhere.
#[test]
fn without_a_list_loopback_attaches_and_nobody_else() {
    if !rustix::process::geteuid().is_root() {
        ob_plant::not_tested("only root can have a network of its own");
        return;
    }
    // A network of this thread's own, and of the card's that it starts, with an address that is not loopback.
    leave_the_network();
    for arguments in ["link set lo up", "address add 10.99.0.1/32 dev lo"] {
        let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
        assert!(status.success(), "ip {arguments}");
    }
    let card = WatchedCard::start(|config| {
        for listen in &mut config.listen {
            if let Listen::Tcp(address) = listen {
                *address = "0.0.0.0:0".parse().unwrap();
            }
        }
    });
    let port = card.tcp.port();
    is_not_heard(from("10.99.0.1", SocketAddr::new("10.99.0.1".parse().unwrap(), port)));
    // It counts where a host comes from, and not which of its addresses it has called.
    is_not_heard(from("10.99.0.1", SocketAddr::new("127.0.0.1".parse().unwrap(), port)));
    assert_eq!(card.hosts().len(), 0);
    from("127.0.0.1", SocketAddr::new("127.0.0.1".parse().unwrap(), port)).attach();
}

/// Who is turned away takes no place, so places are no bound on how many are: a crowd is not to keep hosts waiting.
#[test]
fn a_turn_meets_some_of_a_crowd_and_the_next_ones_meet_the_others() {
    let reactor = Reactor::new(&Config::default()).unwrap();
    let listen = vec![Listen::Tcp("127.0.0.1:0".parse().unwrap())];
    let allow_addresses = vec![range("127.7.0.0", 16)];
    let config = CardLinkConfig { allow_addresses, ..common::config(listen) };
    let mut link = CardLink::new(&reactor.handle(), config).unwrap();
    let address = link.tcp_address().unwrap();
    let crowd: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(address).unwrap()).collect();
    let is_gone = |stream: &&TcpStream| {
        let peeked = rustix::net::recv(stream, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        !matches!(peeked, Err(Errno::AGAIN))
    };
    let (mut service, mut turned_away) = (common::Echo::default(), 0);
    for _ in 0..4 {
        let _ = link.poll(reactor.handle().now(), &mut service);
        let now = crowd.iter().filter(is_gone).count();
        assert!((1..=16).contains(&(now - turned_away)), "{} in one turn", now - turned_away);
        turned_away = now;
        let armed = link.arm(reactor.handle().now(), &mut service);
        assert_eq!(armed, if now < 50 { Armed::NotYet } else { Armed::Yes }, "the next turn comes at once");
    }
    assert_eq!(turned_away, 50);
}

fn leave_the_network() {
    // SAFETY: a network namespace of this thread's own leaves descriptors as they are.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
}

/// Whether a process of this user is welcomed at this socket.
fn is_welcome(user: u32, socket: &Path) -> bool {
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let user = Uid::from_raw(user);
            // The user of this thread alone; the kernel notes it when the thread connects.
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            let mut raw = Raw::unix(socket);
            let _ = raw.send(&Frame::Hello(hello(VERSION)));
            let letters = raw.receive();
            match letters.as_ref().map(|letter| letter.frame()) {
                None => false,
                Some(Frame::Welcome(_)) => true,
                Some(other) => panic!("told {other:?}"),
            }
        });
        asked.join().unwrap()
    })
}

#[test]
fn users_that_are_not_listed_are_not_heard() {
    if !rustix::process::geteuid().is_root() {
        ob_plant::not_tested("only root can be somebody else");
        return;
    }
    let (listed, other) = (4242, 4343);
    let card = WatchedCard::start(|config| config.allow_users = vec![listed]);
    // Everybody can reach the socket: it is the card that turns them away.
    for path in [card.socket.as_path(), card.socket.parent().unwrap()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let bystander = Bystander::start(card.unix());
    assert!(is_welcome(listed, &card.socket));
    assert!(!is_welcome(other, &card.socket));
    assert!(is_welcome(0, &card.socket));
    bystander.finish();
    card.wait_hosts(0);
    drop(card);
    let card = WatchedCard::start(|_| {});
    for path in [card.socket.as_path(), card.socket.parent().unwrap()] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    assert!(!is_welcome(listed, &card.socket), "nobody is listed");
    assert!(is_welcome(0, &card.socket));
}
