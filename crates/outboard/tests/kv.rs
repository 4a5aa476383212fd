//! The key-value service as its clients see it: real processes, real sockets, both placements; hostile neighbours, and
//! halves that die.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

mod crowd;
mod deaths;
mod doors;
mod durability;
mod history;
mod hosts;
mod memory;
mod model;
mod programs;
mod sleep;
use crate::support;

use std::io::Write;
use std::time::{Duration, Instant};

use model::Model;
use ob_sim::Rng;
use outboard::halves::Half;
use support::kv::{Service, Setup, wait_until, wait_until_the_card_serves};
use support::resp::{Client, Value, request};

const MIB: usize = 1 << 20;

/// What a user gets is the same whoever does the work, and whatever says how.
macro_rules! in_all_placements {
    ($($name:ident)*) => {
        mod on_the_card {
            $(#[test] fn $name() { super::$name(super::Setup::CARD); })*
        }
        mod on_the_card_by_programs {
            $(#[test] fn $name() { super::$name(super::Setup::PROGRAMS); })*
        }
        mod on_the_host {
            $(#[test] fn $name() { super::$name(super::Setup::HOST); })*
        }
    };
}

in_all_placements! {
    a_get_behind_a_set_returns_what_was_set
    replies_keep_their_order
    requests_arrive_in_any_pieces
    answers_arrive_after_the_client_has_said_all
    values_are_as_long_as_promised
    what_has_expired_stays_away
    data_outlives_a_restart
    a_password_is_asked_for
    nothing_of_a_transaction_is_done
    the_store_knows_who_asks
}

fn a_get_behind_a_set_returns_what_was_set(setup: Setup) {
    let service = Service::start(setup);
    let mut client = service.client();
    // The same keys again and again: most of them lie on the device by the time they are replaced.
    for round in 0..200 {
        let mut pipeline = Vec::new();
        for key in 0..10 {
            let (key, value) = (format!("key:{key}"), format!("{round} of {key}"));
            pipeline.extend(request(&["SET", &key, &value]));
            pipeline.extend(request(&["GET", &key]));
        }
        client.send(&pipeline).unwrap();
        for key in 0..10 {
            assert_eq!(client.receive().unwrap(), Value::ok());
            assert_eq!(client.receive().unwrap(), Value::bytes(format!("{round} of {key}")));
        }
        // And on a connection of its own, as soon as the answer is there.
        let value = format!("{round} of 9");
        assert_eq!(service.client().ask(&["GET", "key:9"]).unwrap(), Value::bytes(value));
    }
}

fn replies_keep_their_order(setup: Setup) {
    let service = Service::start(setup);
    let mut rng = Rng::new(5);
    let mut model = Model::default();
    let mut client = service.client();
    for round in 0..5 {
        let requests: Vec<Vec<Vec<u8>>> =
            (0..2000).map(|_| model::any_request(&mut rng, round == 0)).collect();
        let expected: Vec<Value> = requests.iter().map(|words| model.apply(words)).collect();
        let mut sender = client.sender();
        std::thread::scope(|scope| {
            // Sent by a thread of its own: a server need not read on while nobody reads its answers.
            scope.spawn(|| {
                for words in &requests {
                    sender.write_all(&request(words)).unwrap();
                }
            });
            for (words, expected) in requests.iter().zip(&expected) {
                let got = client.receive().unwrap();
                assert!(got == *expected, "round {round}, {}: {}", shown(words), differ(expected, &got));
            }
        });
        if setup.placement == "card" && round == 0 {
            // From here on the card answers some of it.
            assert_eq!(client.ask_line("SET settled v").unwrap(), Value::ok());
            service.wait_until_the_card_serves("settled");
        }
    }
    if setup.by_programs {
        assert!(service.answered_by_programs() > 100, "{}", service.offload(&["ls"]));
    }
    if setup.placement == "card" {
        // The card publishes its counts now and then, not with each request.
        wait_until("the card has answered a good part of it", || service.served_by(Half::Card) > 200);
    }
}

fn shown(words: &[Vec<u8>]) -> String {
    let word = |word: &Vec<u8>| String::from_utf8_lossy(&word[..word.len().min(20)]).into_owned();
    words.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn differ(expected: &Value, got: &Value) -> String {
    let short = |value: &Value| format!("{value:?}").chars().take(200).collect::<String>();
    format!("{} is not {}", short(got), short(expected))
}

fn requests_arrive_in_any_pieces(setup: Setup) {
    let service = Service::start(setup);
    let mut client = service.client();
    let mut rng = Rng::new(6);
    let value = vec![b'x'; 3000];
    let mut stream = request(&[&b"SET"[..], b"k", &value]);
    stream.extend(request(&["GET", "k"]));
    stream.extend(b"PING\r\n");
    stream.extend(request(&["STRLEN", "k"]));
    let answers = [Value::ok(), Value::Bytes(value), Value::Status("PONG".to_owned()), Value::Number(3000)];
    let mut pieces_of = |len_max: u64| {
        let mut rest = &stream[..];
        while !rest.is_empty() {
            let len = usize::try_from(1 + rng.below(len_max)).unwrap().min(rest.len());
            client.send(&rest[..len]).unwrap();
            rest = &rest[len..];
        }
        for answer in &answers {
            assert_eq!(client.receive().unwrap(), *answer);
        }
    };
    for len_max in [1, 2, 7, 100, 5000] {
        pieces_of(len_max);
    }
    // Half a request, and nothing more: what was whole is answered, and the rest is nobody's affair.
    for len in [1, 5, stream.len() / 2, stream.len() - 1] {
        let mut quitter = service.client();
        quitter.send(&stream[..len]).unwrap();
        drop(quitter);
        let mut patient = service.client();
        patient.send(&[&stream[..], &stream[..len]].concat()).unwrap();
        for answer in &answers {
            assert_eq!(patient.receive().unwrap(), *answer);
        }
        patient.send(&stream[len..]).unwrap();
        for answer in &answers {
            assert_eq!(patient.receive().unwrap(), *answer);
        }
    }
}

fn answers_arrive_after_the_client_has_said_all(setup: Setup) {
    let service = Service::start(setup);
    service.client().ask(&[&b"SET"[..], b"large", &vec![b'x'; 256 << 10]]).unwrap();
    let mut client = service.client();
    let mut pipeline = Vec::new();
    for number in 0..1000 {
        let line = if number % 100 == 0 { "GET large".to_owned() } else { format!("INCRBY n {number}") };
        pipeline.extend(request(&line.split(' ').collect::<Vec<_>>()));
    }
    // Behind the last whole request lies the begin of one that will never be whole.
    pipeline.extend(b"*2\r\n$3\r\nGET\r\n$5\r\nla");
    client.send(&pipeline).unwrap();
    client.finish_sending();
    let mut total = 0;
    for number in 0..1000 {
        match client.receive().unwrap() {
            Value::Bytes(bytes) if number % 100 == 0 => assert_eq!(bytes.len(), 256 << 10),
            got => {
                total += number;
                assert_eq!(got, Value::Number(total));
            }
        }
    }
    assert_eq!(client.wait_for_end(), []);
    assert_eq!(service.client().ask_line("GET n").unwrap(), Value::bytes(total.to_string()));
}

fn values_are_as_long_as_promised(setup: Setup) {
    let service = Service::start(setup);
    let mut client = service.client();
    let mut rng = Rng::new(7);
    for len in [0, 1, 4095, 4096, 4097, 65536, MIB, 64 * MIB] {
        let mut value = vec![0; len];
        rng.fill(&mut value);
        assert_eq!(client.ask(&[&b"SET"[..], b"k", &value]).unwrap(), Value::ok(), "{len}");
        assert_eq!(client.ask_line("STRLEN k").unwrap(), Value::Number(i64::try_from(len).unwrap()));
        let got = client.ask_line("GET k").unwrap();
        assert!(got == Value::Bytes(value), "{len} bytes are not the same");
    }
    // One more byte is too much, and whoever sends it is told and cut off, or told; the value stays.
    let more = client.ask(&[&b"APPEND"[..], b"k", b"x"]).unwrap();
    assert!(matches!(more, Value::Error(_)), "{more:?}");
    assert_eq!(client.ask_line("STRLEN k").unwrap(), Value::Number(64 * MIB as i64));
}

fn what_has_expired_stays_away(setup: Setup) {
    let service = Service::start(setup);
    let mut clients = [service.client(), service.client()];
    let (begun, life) = (Instant::now(), Duration::from_millis(1500));
    for key in 0..20 {
        let line = format!("SET short:{key} v PX {}", life.as_millis());
        assert_eq!(clients[0].ask_line(&line).unwrap(), Value::ok());
        clients[0].ask_line(&format!("SET long:{key} v EX 1000")).unwrap();
    }
    let mut is_gone = [false; 20];
    wait_until("short keys are gone", || {
        for (key, is_gone) in is_gone.iter_mut().enumerate() {
            for client in &mut clients {
                let before = begun.elapsed();
                match client.ask_line(&format!("GET short:{key}")).unwrap() {
                    Value::Nothing => {
                        assert!(begun.elapsed() >= life, "short:{key} is gone after {:?}", begun.elapsed());
                        *is_gone = true;
                    }
                    Value::Bytes(_) => {
                        assert!(!*is_gone, "short:{key} was gone, and is there again");
                        // Keys were set after the clock was looked at first, by at most what a deadline allows.
                        assert!(before < life + support::DEADLINE);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        is_gone.iter().all(|is_gone| *is_gone)
    });
    for key in 0..20 {
        assert_eq!(clients[1].ask_line(&format!("GET long:{key}")).unwrap(), Value::bytes("v"));
        assert_eq!(clients[1].ask_line(&format!("EXISTS short:{key}")).unwrap(), Value::Number(0));
    }
}

fn data_outlives_a_restart(setup: Setup) {
    let mut service = Service::start(setup);
    let mut client = service.client();
    for hundred in 0..20 {
        // Many at once, since each waits until it is durable.
        let numbers = hundred * 100..(hundred + 1) * 100;
        let set = |number| request(&["SET", &format!("key:{number}"), &"v".repeat(number)]);
        client.send(&numbers.clone().flat_map(set).collect::<Vec<u8>>()).unwrap();
        for number in numbers {
            assert_eq!(client.receive().unwrap(), Value::ok(), "{number}");
        }
    }
    assert_eq!(client.ask_line("DEL key:7").unwrap(), Value::Number(1));
    assert_eq!(client.ask_line("EXPIRE key:8 1000").unwrap(), Value::Number(1));
    assert_eq!(client.ask_line("INCR n").unwrap(), Value::Number(1));
    for life in 0..2 {
        service.stop();
        assert!(client.ask_line("PING").is_err(), "nobody is there");
        service.start_card();
        service.start_host();
        service.wait_until_it_serves();
        client = service.client();
        assert_eq!(client.ask_line("DBSIZE").unwrap(), Value::Number(2000));
        for number in 0..2000 {
            let expected = if number == 7 { Value::Nothing } else { Value::bytes("v".repeat(number)) };
            assert_eq!(client.ask_line(&format!("GET key:{number}")).unwrap(), expected);
        }
        assert!(matches!(client.ask_line("TTL key:8").unwrap(), Value::Number(1..=1000)));
        assert_eq!(client.ask_line("INCR n").unwrap(), Value::Number(life + 2));
    }
}

fn the_store_knows_who_asks(setup: Setup) {
    let service = Service::start(setup);
    let mut client = service.client();
    let own = client.sender().local_addr().unwrap();
    for request in ["CLIENT INFO", "RESET", "CLIENT LIST"] {
        let answer = client.ask_line(request).unwrap();
        let Value::Bytes(line) = answer else { continue };
        let line = String::from_utf8(line).unwrap();
        assert!(line.contains(&format!(" addr={own} ")), "{own}: {line}");
    }
}

fn a_password_is_asked_for(setup: Setup) {
    let service = Service::start(Setup { more: "password = \"open sesame\"\n", ..setup });
    let mut client = service.client();
    let is_refused = |answer: Value| matches!(&answer, Value::Error(text) if text.starts_with("NOAUTH"));
    assert!(is_refused(client.ask_line("SET k v").unwrap()));
    assert_eq!(client.ask(&["AUTH", "open sesame"]).unwrap(), Value::ok());
    assert_eq!(client.ask_line("SET k v").unwrap(), Value::ok());
    if setup.placement == "card" {
        wait_until_the_card_serves(&mut client, &["k"]);
    }
    // What the card knows it tells nobody who has not said the password, before or after others have.
    let mut stranger = service.client();
    for _ in 0..20 {
        assert!(is_refused(stranger.ask_line("GET k").unwrap()));
        assert_eq!(client.ask_line("GET k").unwrap(), Value::bytes("v"));
    }
    assert!(matches!(stranger.ask(&["AUTH", "open"]).unwrap(), Value::Error(_)));
    assert!(is_refused(stranger.ask_line("GET k").unwrap()));
    // The password and what it allows, in one piece.
    let mut pipeline = request(&["GET", "k"]);
    pipeline.extend(request(&["AUTH", "open sesame"]));
    pipeline.extend(request(&["GET", "k"]));
    stranger.send(&pipeline).unwrap();
    assert!(is_refused(stranger.receive().unwrap()));
    assert_eq!(stranger.receive().unwrap(), Value::ok());
    assert_eq!(stranger.receive().unwrap(), Value::bytes("v"));
}

fn nothing_of_a_transaction_is_done(setup: Setup) {
    let service = Service::start(setup);
    let mut client = service.client();
    assert_eq!(client.ask_line("SET k v").unwrap(), Value::ok());
    if setup.placement == "card" {
        wait_until_the_card_serves(&mut client, &["k"]);
    }
    // As libraries send it: in one piece.
    let lines = ["MULTI", "GET k", "INCR n", "SET k w", "EXEC", "GET k", "EXISTS n"];
    let pipeline: Vec<u8> =
        lines.iter().flat_map(|line| request(&line.split(' ').collect::<Vec<_>>())).collect();
    client.send(&pipeline).unwrap();
    assert_eq!(client.receive().unwrap(), Value::ok());
    for _ in 0..3 {
        let refused = Value::Error("ERR transactions are not supported".to_owned());
        assert_eq!(client.receive().unwrap(), refused);
    }
    assert!(matches!(client.receive().unwrap(), Value::Error(text) if text.starts_with("EXECABORT ")));
    assert_eq!(client.receive().unwrap(), Value::bytes("v"));
    assert_eq!(client.receive().unwrap(), Value::Number(0));
}

/// A connection that has been told of a mistake in the protocol is closed, and no other one is.
#[test]
fn who_breaks_the_protocol_is_told_and_cut_off() {
    let service = Service::start(Setup::CARD);
    let mut bystander = service.client();
    for wrong in [&b"*1\r\n:1\r\n"[..], b"*x\r\n", b"*1\r\n$-5\r\n", b"GET \"k\r\n", b"*2147483648\r\n"] {
        let mut client: Client = service.client();
        client.send(&[b"PING\r\n", wrong].concat()).unwrap();
        assert_eq!(client.receive().unwrap(), Value::Status("PONG".to_owned()));
        let said = client.wait_for_end();
        let [Value::Error(text)] = &said[..] else { panic!("{wrong:?}: {said:?}") };
        assert!(text.starts_with("ERR Protocol error: "), "{text}");
        assert_eq!(bystander.ask_line("PING").unwrap(), Value::Status("PONG".to_owned()));
    }
}

/// Each new part of the log is a file that the card has to hear of before it sees what is written there.
#[test]
fn what_a_store_is_filled_with_at_once_is_the_cards() {
    const KEYS: usize = 2000;
    let service = Service::start(Setup::TIGHT);
    let (mut client, value) = (service.client(), "v".repeat(4000));
    let mut sender = client.sender();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for key in 0..KEYS {
                sender.write_all(&request(&["SET", &format!("key:{key}"), &value])).unwrap();
            }
        });
        for _ in 0..KEYS {
            assert_eq!(client.receive().unwrap(), Value::ok());
        }
    });
    service.wait_until_settled();
    let before = support::kv::host_reads(&mut client);
    for key in 0..KEYS {
        assert_eq!(client.ask(&["GET", &format!("key:{key}")]).unwrap(), Value::bytes(&value));
    }
    assert_eq!(support::kv::host_reads(&mut client) - before, 0, "keys that were the host's");
}

#[test]
fn the_status_tells_of_clients_and_of_the_table() {
    let service = Service::start(Setup::CARD);
    let mut client = service.client();
    assert_eq!(client.ask(&["SET", "a", "1"]).unwrap(), Value::ok());
    wait_until_the_card_serves(&mut client, &["a"]);
    wait_until("the status has it", || {
        // It tells how things were some moments ago.
        let Some(told) = service.told() else { return false };
        assert_eq!((told.address.parse().ok(), told.refused), (Some(service.address), 0));
        assert!(told.table_slots > 0 && told.table_bytes > 0);
        told.connections >= 1 && told.host_lives >= 1 && told.table_entries >= 1 && told.reads >= 1
    });
    assert!(Service::start(Setup::HOST).told().is_none(), "there is no such half");
}
