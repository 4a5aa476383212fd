//! The rules of `docs/linearizable-offload.md`, as far as the card keeps them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where something is missing")]

use crate::support;

use ob_core::ConnectionId;
use ob_director::{FlowPattern, Signature};
use ob_offload::{EngineConfig, Reason};
use ob_wire_link::stream::FromHost;
use support::{Said, World, director_config, engine_config};

#[test]
fn a_stored_record_is_read_by_the_card_alone() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "some value that is not copied", 1);
    world.send(client, "GET a\n");
    assert_eq!(world.reads(), 1);
    world.answer_reads();
    assert_eq!(world.got(client), "$some value that is not copied\n");
    assert_eq!(world.requests(), []);
    let counts = world.driver.director().counts();
    assert_eq!((counts.card, counts.host.total()), (1, 1));
    assert_eq!(world.driver.director().engine().buffers_out(), 0);
    assert_eq!(world.driver.director().engine().in_flight(), 0);
}

#[test]
fn what_the_item_says_needs_no_read() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "12345", 1);
    world.send(client, "LEN a\nLEN a\n");
    assert_eq!((world.got(client).as_str(), world.reads()), ("#5\n#5\n", 0));
}

#[test]
fn what_is_behind_a_request_is_glanced_at_once() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.send(client, "GET a\n");
    assert_eq!(world.application.glances.get(), 0, "nothing is behind it");
    world.set_room(0);
    world.send(client, "GET a\nSET b 1\nGET a\n");
    assert_eq!(world.application.glances.get(), 2);
    world.answer_reads();
    world.turn();
    assert_eq!(world.application.glances.get(), 2, "not again in each turn");
    let other = world.connect();
    world.send(other, "GET a\nGET a\n");
    assert_eq!(world.application.glances.get(), 2, "the card may not answer there");
}

#[test]
fn a_key_is_invalidated_before_its_change_is_forwarded() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    // The scripted host looks into the table at the moment of the frame.
    world.send(client, "SET a 2\nGET a\n");
    let requests = world.requests();
    assert_eq!(requests.iter().map(|(_, _, text)| text.as_str()).collect::<Vec<_>>(), ["SET a 2", "GET a"]);
    assert_eq!(requests.iter().map(|(_, stamp, _)| *stamp).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(world.find("a"), None);
    let (connection, ..) = requests[0];
    world.reply(connection, 2, "+\n");
    world.reply(connection, 3, "$2\n");
    assert_eq!(world.got(client), "+\n$2\n");
    // The old record does not come back, the new one does.
    world.write("a", "1", 1);
    world.settle();
    assert_eq!(world.find("a"), None);
    world.store("a", "2", 2);
    assert_eq!(world.find("a").map(|stamp| stamp.number()), Some(2));
}

#[test]
fn what_changes_everything_empties_the_table() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.store("b", "1", 1);
    world.send(client, "WIPE\n");
    assert_eq!((world.find("a"), world.find("b")), (None, None));
    assert_eq!(world.texts(), ["WIPE"]);
}

#[test]
fn replies_of_both_halves_keep_the_order_of_requests() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.send(client, "SET x 1\nGET a\nLEN a\nSET y 1\nGET a\n");
    // The second SET waits until the read before it is settled, and so does what is behind it.
    assert_eq!((world.texts(), world.reads()), (vec!["SET x 1".to_owned()], 1));
    world.answer_reads();
    let requests = world.requests();
    assert_eq!((requests.len(), requests[0].2.as_str(), world.reads()), (1, "SET y 1", 1));
    world.answer_reads();
    assert_eq!(world.got(client), "", "the first has no reply yet");
    let connection = requests[0].0;
    world.reply(connection, requests[0].1, "+y\n");
    assert_eq!(world.got(client), "", "nor does a later reply of the host overtake it");
    world.reply(connection, requests[0].1 - 1, "+x\n");
    assert_eq!(world.got(client), "+x\n$1\n#1\n+y\n$1\n");
}

#[test]
fn nothing_is_forwarded_past_a_read_that_is_not_settled() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.send(client, "GET a\nSET a 2\n");
    assert_eq!(world.requests(), [], "the SET waits for the GET");
    // What the table names is not there any more: the GET is the host's, and comes first.
    world.disk.0.borrow_mut().contents.clear();
    world.answer_reads();
    assert_eq!(world.texts(), ["GET a", "SET a 2"]);
    assert_eq!(world.driver.director().counts().host.of(Reason::Mismatch), 1);
}

#[test]
fn a_request_that_falls_back_takes_along_what_was_started_behind_it() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    let place = world.store("b", "1", 1);
    world.send(client, "GET a\nGET b\nLEN b\n");
    assert_eq!(world.reads(), 2);
    world.answer_read(1);
    assert_eq!(world.got(client), "", "the second waits for the first");
    world.disk.0.borrow_mut().contents.get_mut(&support::NODE.0).unwrap()[..4].fill(b'?');
    world.answer_read(0);
    assert_eq!(world.texts(), ["GET a", "GET b", "LEN b"], "one order for all of them");
    assert_eq!(world.driver.director().counts().host.of(Reason::Behind), 2);
    assert_eq!(world.driver.director().engine().in_flight(), 0);
    assert_eq!(place.value_len, 1);
}

#[test]
fn what_was_read_is_checked() {
    for damage in ["a=1@7;", "b=1@1;", "a=1@1?"] {
        let (mut world, client) = <World>::admitted();
        world.store("a", "1", 1);
        let mut disk = world.disk.0.borrow_mut();
        let content = disk.contents.get_mut(&support::NODE.0).unwrap();
        content[..damage.len()].copy_from_slice(damage.as_bytes());
        drop(disk);
        world.send(client, "GET a\n");
        world.answer_reads();
        assert_eq!((world.got(client).as_str(), world.texts()), ("", vec!["GET a".to_owned()]), "{damage}");
    }
}

#[test]
fn a_read_that_fails_or_is_short_is_the_hosts() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.disk.0.borrow_mut().fails = true;
    world.send(client, "GET a\n");
    world.answer_reads();
    assert_eq!(world.driver.director().counts().host.of(Reason::ReadFailed), 1);
    world.disk.0.borrow_mut().fails = false;
    world.disk.0.borrow_mut().contents.get_mut(&support::NODE.0).unwrap().truncate(3);
    world.send(client, "GET a\n");
    world.answer_reads();
    assert_eq!(world.driver.director().counts().host.of(Reason::Mismatch), 1);
    assert_eq!(world.driver.director().engine().buffers_out(), 0);
}

#[test]
fn records_are_admitted_when_the_log_is_settled_behind_them() {
    let (mut world, client) = <World>::admitted();
    world.write("a", "1", 1);
    assert_eq!(world.find("a"), None, "its write was taken, and may still be lost");
    let before = world.written();
    world.write("b", "1", 1);
    world.say(&FromHost::Settled { address: before });
    assert!(world.find("a").is_some() && world.find("b").is_none());
    world.settle();
    assert!(world.find("b").is_some());
    world.send(client, "GET b\n");
    world.answer_reads();
    assert_eq!(world.got(client), "$1\n");
}

#[test]
fn a_log_that_settles_many_records_at_once_keeps_nobody_waiting() {
    let engine = EngineConfig { candidates_max: 1 << 14, ..engine_config() };
    let mut world = <World>::with(engine, director_config());
    world.meet(0, 0);
    let client = world.connect();
    world.admit(client);
    // Each write brings so many records.
    let records = |count: u64| (1..count).map(|at| format!("v@1;k{at}=")).collect::<String>() + "v";
    world.write("k0", &records(100), 1);
    for _ in 0..10 {
        world.write("k0", &records(1000), 1);
    }
    let settled = FromHost::Settled { address: world.written() };
    let (inline, payload) = settled.encode();
    world.say_later(&inline, payload.bytes());
    world.arrive(client, b"SET a 1\n");
    let mut offered = Vec::new();
    loop {
        let has_more = world.driver.turn(world.now).has_more;
        offered.push(world.driver.director().engine().counts().offered);
        if offered.len() == 1 {
            world.expect_request("SET a 1");
        }
        if !has_more {
            break;
        }
    }
    assert_eq!(offered, [4100, 9100, 10_100]);
    assert_eq!(world.driver.director().engine().candidates(), 0);
}

#[test]
fn what_a_request_has_replaced_by_itself_is_never_found() {
    let engine = EngineConfig { candidates_max: 1 << 14, ..engine_config() };
    let mut world = <World>::with(engine, director_config());
    world.meet(0, 0);
    let client = world.connect();
    world.admit(client);
    // A request has set a key twice, and one between so often that a turn admits no more.
    world.write("twice", &format!("1{}@1;twice=22", "@1;other=v".repeat(5000)), 1);
    let settled = FromHost::Settled { address: world.written() };
    let (inline, payload) = settled.encode();
    world.say_later(&inline, payload.bytes());
    world.arrive(client, b"LEN twice\n");
    world.driver.turn(world.now);
    assert_eq!(world.got(client), "#2\n");
}

#[test]
fn what_the_host_reads_to_change_it_is_the_hosts_until_it_says_more() {
    let (mut world, client) = <World>::admitted();
    world.application.invalidates.set(true);
    world.disk.0.borrow_mut().is_quick = true;
    let (a, _) = (world.store("a", "1", 1), world.store("b", "1", 1));
    let c = world.write("c", "1", 1);
    world.read_by_host(&a);
    world.read_by_host(&c);
    assert_eq!((world.find("a"), world.find("b").map(|stamp| stamp.number())), (None, Some(1)));
    world.settle();
    assert_eq!(world.find("c"), None, "what was on its way to the table is outdated too");
    world.attest("a", a, 1);
    assert_eq!(world.find("a"), None, "and so is what the host says of the time before");
    world.send(client, "GET b\nGET a\n");
    assert_eq!(world.got(client), "$1\n");
    let (connection, stamp) = world.expect_request("GET a");
    world.reply(connection, stamp, "$1\n");
    world.attest("a", a, stamp);
    world.send(client, "GET a\n");
    assert_eq!((world.got(client), world.texts()), ("$1\n$1\n".to_owned(), vec![]));
    // An application that does not ask for it is not troubled.
    world.application.invalidates.set(false);
    world.read_by_host(&a);
    assert!(world.find("a").is_some());
}

#[test]
fn a_record_with_a_stamp_that_nobody_was_given_is_not_admitted() {
    let (mut world, _) = <World>::admitted();
    world.store("a", "1", 2);
    assert_eq!(world.find("a"), None);
}

#[test]
fn candidates_are_bounded() {
    let (mut world, _) = <World>::admitted();
    for number in 0..20 {
        world.write(&format!("k{number}"), "1", 1);
    }
    assert_eq!(world.driver.director().engine().candidates(), 16);
    assert_eq!(world.driver.director().engine().counts().dropped, 4);
    world.settle();
    assert!(world.find("k15").is_some() && world.find("k16").is_none());
}

#[test]
fn what_the_host_attests_comes_back() {
    let (mut world, client) = <World>::admitted();
    let place = world.store("a", "1", 1);
    world.send(client, "WIPE\nSET b 1\n");
    assert_eq!(world.requests().len(), 2);
    world.attest("a", place, 1);
    assert_eq!(world.find("a"), None, "older than what changed everything");
    world.attest("a", place, 3);
    world.send(client, "GET a\n");
    assert_eq!(world.reads(), 1);
}

#[test]
fn nobody_is_served_before_the_host_has_admitted_the_connection() {
    let (mut world, _) = <World>::admitted();
    world.store("a", "1", 1);
    let stranger = world.connect();
    world.send(stranger, "GET a\n");
    let (connection, stamp) = world.expect_request("GET a");
    assert_eq!(world.reads(), 0);
    world.say(&FromHost::Standing { connection: ConnectionId(connection), stamp, word: 3 });
    world.reply(connection, stamp, "$1\n");
    world.send(stranger, "GET a\n");
    assert_eq!((world.reads(), world.requests()), (1, vec![]));
    assert_eq!(world.driver.director().counts().host.of(Reason::NotAdmitted), 1);
}

#[test]
fn what_the_signature_leaves_out_is_the_hosts_and_invalidates_all_the_same() {
    // Clients of these worlds come from port 1000 and their number on.
    let writers = FlowPattern { client_ports: Some(1002..=1002), ..FlowPattern::default() };
    let listen = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let signature = Signature::new([listen]).without([writers]);
    let mut world = <World>::with_signature(engine_config(), director_config(), &signature);
    world.meet(0, 0);
    let (reader, writer) = (world.connect(), world.connect());
    world.said();
    world.admit(reader);
    world.admit(writer);
    world.store("a", "1", 1);
    world.disk.0.borrow_mut().is_quick = true;
    world.send(writer, "GET a\n");
    let (connection, stamp) = world.expect_request("GET a");
    world.reply(connection, stamp, "$1\n");
    assert_eq!(world.driver.director().counts().host.of(Reason::NotMatched), 1);
    world.send(reader, "GET a\n");
    assert_eq!((world.got(reader), world.texts()), ("$1\n".to_owned(), vec![]));
    world.send(writer, "SET a 2\n");
    assert_eq!((world.texts(), world.find("a")), (vec!["SET a 2".to_owned()], None));
}

#[test]
fn what_may_change_the_standing_stops_offload_until_it_is_answered() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.send(client, "AUTH me\nGET a\nSET b 1\n");
    let (connection, stamp) = world.expect_request("AUTH me");
    assert_eq!(world.reads(), 0, "nothing behind it is looked at");
    world.say(&FromHost::Standing { connection: ConnectionId(connection), stamp, word: 0 });
    world.reply(connection, stamp, "-no\n");
    assert_eq!((world.texts(), world.reads()), (vec!["GET a".to_owned(), "SET b 1".to_owned()], 0));
    world.reply(connection, stamp + 1, "-no\n");
    world.reply(connection, stamp + 2, "-no\n");
    assert_eq!(world.got(client), "-no\n-no\n-no\n");
    // What an earlier request decided does not count any more.
    world.say(&FromHost::Standing { connection: ConnectionId(connection), stamp: 1, word: 2 });
    world.send(client, "GET a\n");
    assert_eq!(world.reads(), 0);
    world.say(&FromHost::Standing { connection: ConnectionId(connection), stamp, word: 2 });
    world.send(client, "LEN b\nGET a\n");
    assert_eq!(
        world.requests().len(),
        2,
        "what falls back keeps its place before what the card could answer"
    );
}

#[test]
fn several_keys_are_answered_by_one_half() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.store("b", "2", 1);
    world.send(client, "MGET a b\nMGET a c\n");
    assert_eq!(world.reads(), 2);
    world.answer_reads();
    assert_eq!(world.got(client), "$1$2\n");
    assert_eq!(world.texts(), ["MGET a c"]);
    assert_eq!(world.reads(), 0);
}

#[test]
fn the_requests_of_one_message_go_each_its_way() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.send(client, "GET a;SET b 1;GET a\n");
    world.answer_reads();
    world.answer_reads();
    let (connection, stamp) = world.expect_request("SET b 1");
    assert_eq!(world.got(client), "$1\n");
    world.reply(connection, stamp, "+\n");
    assert_eq!(world.got(client), "+\n$1\n");
}

#[test]
fn replies_with_ids_come_when_they_are_there() {
    let (mut world, client) = World::<true>::admitted();
    world.store("a", "a long value", 1);
    world.send(client, "1:GET a;2:SET b 1;3:SET c 1;4:GET a\n");
    assert_eq!(world.reads(), 2);
    let requests = world.requests();
    assert_eq!(
        requests.iter().map(|(_, _, text)| text.as_str()).collect::<Vec<_>>(),
        ["2:SET b 1", "3:SET c 1"]
    );
    let connection = requests[0].0;
    // A reply that comes in parts is not mixed with others.
    world.reply_part(connection, requests[1].1, b"3:", 0, 4);
    assert_eq!(world.got(client), "3:");
    world.answer_read(1);
    assert_eq!(world.got(client), "");
    world.reply_part(connection, requests[1].1, b"+\n", 2, 4);
    assert_eq!(world.got(client), "+\n4:$a long value\n");
    world.disk.0.borrow_mut().contents.clear();
    world.answer_read(0);
    let (_, stamp) = world.expect_request("1:GET a");
    world.reply(connection, stamp, "1:$a\n");
    world.reply(connection, requests[0].1, "2:+\n");
    assert_eq!(world.got(client), "1:$a\n2:+\n");
}

#[test]
fn a_full_engine_sends_requests_to_the_host() {
    let (mut world, client) = <World>::admitted();
    world.store("a", &"x".repeat(9000), 1);
    world.store("b", "1", 1);
    world.store("c", &"x".repeat(20_000), 1);
    world.send(client, "GET c\nGET a\nGET a\nGET a\n");
    assert_eq!(world.reads(), 2);
    assert_eq!(world.driver.director().counts().host.of(Reason::TooLarge), 1);
    world.answer_reads();
    let requests = world.requests();
    let texts: Vec<&str> = requests.iter().map(|(_, _, text)| text.as_str()).collect();
    assert_eq!(texts, ["GET c", "GET a"], "the third found no buffer, and waited for those before it");
    requests.iter().for_each(|(connection, stamp, _)| world.reply(*connection, *stamp, "$\n"));
    assert_eq!(world.driver.director().counts().host.of(Reason::NoBuffer), 1);
    for client in 2..=40 {
        assert_eq!(world.connect(), client);
        world.said();
        world.admit(client);
        world.send(client, "GET b\n");
    }
    // Of the files' buffers the long ones are taken by short reads too.
    assert_eq!(world.reads(), 26);
    world.answer_reads();
    assert_eq!(world.driver.director().engine().buffers_out(), 0);
}

#[test]
fn the_host_hears_of_clients_before_their_requests() {
    let mut world = <World>::new();
    let early = world.connect();
    world.meet(41, 0);
    let late = world.connect();
    world.send(late, "HI\n");
    world.end(early);
    let said = world.said();
    assert!(matches!(
        said.as_slice(),
        [Said::Begin(42), Said::Opened(one, _), Said::Opened(two, address), Said::Request(three, 42, _), Said::Closed(four)]
            if two == three && one == four && one != two && address.port() == 1002
    ));
}
