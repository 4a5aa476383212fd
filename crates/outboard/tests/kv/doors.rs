//! Who is let in, and whose requests the card looks at.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Instant;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::support::DEADLINE;
use super::support::kv::{Service, Setup, host_reads, wait_until, wait_until_the_card_serves};
use super::support::resp::{Client, Value};

/// As documented.
const CONNECTIONS_MAX: usize = 4096;
const EXCLUDED_PORT: u16 = 7000;

#[test]
fn there_is_room_for_so_many_and_the_next_is_told_so() {
    fill(Setup::CARD);
}

#[test]
fn and_so_it_is_where_the_host_does_it_all() {
    fill(Setup::HOST);
}

fn pong() -> Value {
    Value::Status("PONG".to_owned())
}

/// One more connection, if there is room for it.
fn enter(service: &Service) -> Option<Client> {
    let mut client = service.client();
    match client.ask_line("PING") {
        Ok(said) if said == pong() => Some(client),
        _ => None,
    }
}

fn fill(setup: Setup) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let service = Service::start(setup);
    let mut clients: Vec<Client> = Vec::new();
    let deadline = Instant::now() + DEADLINE;
    // Those who came before may be on their way out, and keep one of these out for a moment.
    while clients.len() < CONNECTIONS_MAX {
        assert!(Instant::now() < deadline, "only {} were let in", clients.len());
        clients.extend(enter(&service));
    }
    assert_eq!(clients[0].ask_line("SET a 1").unwrap(), Value::ok());
    for _ in 0..5 {
        let said = service.client().wait_for_end();
        assert_eq!(said, [Value::Error("ERR max number of clients reached".to_owned())]);
    }
    for client in &mut clients {
        assert_eq!(client.ask_line("GET a").unwrap(), Value::bytes("1"));
    }
    // Whoever leaves makes room for one.
    clients.pop();
    wait_until("there is room again", || {
        clients.extend(enter(&service));
        clients.len() == CONNECTIONS_MAX
    });
    assert_eq!(service.client().wait_for_end().len(), 1);
}

#[test]
fn the_card_looks_only_at_whom_it_is_told_to() {
    let more = "offload_clients = [\"127.0.0.0/16\"]\noffload_excluded_ports = [7000]\n";
    let service = Service::start(Setup { more, ..Setup::CARD });
    let IpAddr::V4(own) = service.address.ip() else { panic!("{}", service.address) };
    let [_, _, high, low] = own.octets();
    // An address of this test alone has that port free.
    let near = Ipv4Addr::new(127, 0, high, low);
    let from =
        |address, port| Client::connect_from(SocketAddr::new(IpAddr::V4(address), port), service.address);
    let mut matched = from(near, 0).unwrap();
    assert_eq!(matched.ask_line("SET key value").unwrap(), Value::ok());
    wait_until_the_card_serves(&mut matched, &["key"]);
    for mut left_out in [from(near, EXCLUDED_PORT).unwrap(), from(own, 0).unwrap()] {
        // A client that the host has not heard of is the host's for that reason.
        assert_eq!(left_out.ask_line("PING").unwrap(), pong());
        let before = host_reads(&mut matched);
        for _ in 0..10 {
            assert_eq!(left_out.ask_line("GET key").unwrap(), Value::bytes("value"));
        }
        assert_eq!(host_reads(&mut matched), before + 10, "the host has answered all of them");
        // What it changes is no less changed for the others.
        assert_eq!(left_out.ask_line("SET key other").unwrap(), Value::ok());
        assert_eq!(matched.ask_line("GET key").unwrap(), Value::bytes("other"));
        assert_eq!(left_out.ask_line("SET key value").unwrap(), Value::ok());
        wait_until_the_card_serves(&mut matched, &["key"]);
    }
    wait_until("the card tells why", || service.sent_to_host_as("not-matched") == 20);
}
