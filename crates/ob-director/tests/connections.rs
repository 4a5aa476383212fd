//! What clients do that nobody should: partial messages, garbage, ends, resets, and not reading.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where something is missing")]

use crate::support;

use std::time::Duration;

use ob_core::ConnectionId;
use ob_director::{DirectorConfig, Now};
use ob_wire_link::stream::{CREDIT_LEN, FRAGMENT_LEN, FromHost};
use support::{Said, World, director_config, engine_config};

fn later<const BY_ID: bool>(world: &mut World<BY_ID>, duration: Duration) {
    world.now = Now { instant: world.now.instant + duration, ..world.now };
    assert!(world.driver.next_due().is_some_and(|due| due <= world.now.instant), "it asks to be called");
    world.turn();
}

fn pass<const BY_ID: bool>(world: &mut World<BY_ID>, seconds: u64) {
    world.now = Now { instant: world.now.instant + Duration::from_secs(seconds), ..world.now };
    world.turn();
}

#[test]
fn messages_come_byte_by_byte() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    for byte in b"\nGET a\nSET b 1\n\nLEN a\n" {
        world.arrive(client, &[*byte]);
        world.turn();
        world.disk.0.borrow_mut().answer_all();
    }
    world.turn();
    let (connection, stamp) = world.expect_request("SET b 1");
    world.reply(connection, stamp, "+\n");
    assert_eq!(world.got(client), "$1\n+\n#1\n");
}

#[test]
fn a_request_that_is_answered_makes_no_further_turn_due() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.arrive(client, b"LEN a\n");
    let turn = world.driver.turn(world.now);
    assert!(turn.events > 0 && !turn.has_more, "all that came was looked at: {turn:?}");
    assert_eq!(world.got(client), "#1\n");
    assert_ne!(world.driver.next_due(), Some(ob_core::Instant::default()), "nothing is to be done at once");
}

#[test]
fn garbage_is_answered_behind_what_was_asked_before_and_ends_the_connection() {
    let (mut world, client) = <World>::admitted();
    world.arrive(client, b"SET a 1\n\x01junk and more of it\nSET b 1\n");
    world.turn();
    let (connection, stamp) = world.expect_request("SET a 1");
    assert!(!world.is_finished(client));
    world.reply(connection, stamp, "+\n");
    assert_eq!(world.got(client), "+\n!no\n");
    assert!(world.is_finished(client) && !world.is_closed(client));
    // What it still sends is taken and forgotten, or a reset would take the last reply from it.
    world.arrive(client, &[b'x'; 200_000]);
    world.turn();
    assert_eq!(world.net.0.borrow().clients[&client].arriving.len(), 0);
    world.end(client);
    assert!(world.is_closed(client));
    assert_eq!(world.said(), [Said::Closed(connection)]);
    assert_eq!(world.driver.director().counts().wrong, 1);
}

#[test]
fn the_end_of_a_client_is_seen_behind_all_that_it_has_sent() {
    let (mut world, client) = <World>::admitted();
    world.send(client, "QUIT\n");
    let (connection, stamp) = world.expect_request("QUIT");
    world.set_room(0);
    world.arrive(client, "SET a 1\n".repeat(20_000).as_bytes());
    world.end(client);
    world.say(&FromHost::Close { connection: ConnectionId(connection), stamp });
    world.reply(connection, stamp, "+\n");
    assert_eq!(world.got(client), "+\n");
    assert!(world.is_closed(client), "its buffer was full");
}

#[test]
fn who_does_not_end_its_side_is_closed_after_a_while() {
    let (mut world, client) = <World>::admitted();
    world.arrive(client, b"\x01");
    world.turn();
    assert!(world.is_finished(client) && !world.is_closed(client));
    later(&mut world, DirectorConfig::default().linger);
    assert!(world.is_closed(client));
}

#[test]
fn a_client_that_has_ended_its_side_gets_what_it_asked_for() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.arrive(client, b"SET b 1\nGET a\nhalf of a mess");
    world.end(client);
    let (connection, stamp) = world.expect_request("SET b 1");
    world.answer_reads();
    assert!(!world.is_closed(client));
    world.reply(connection, stamp, "+\n");
    assert_eq!(world.got(client), "+\n$1\n");
    assert!(world.is_closed(client));
    assert_eq!(world.said(), [Said::Closed(connection)]);
}

#[test]
fn a_reset_forgets_reads_that_are_in_flight_and_their_buffers_come_back() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.send(client, "SET x 1\nGET a\nGET a\nSET b 1\n");
    let (connection, stamp) = world.expect_request("SET x 1");
    world.reset(client);
    assert_eq!(world.said(), [Said::Closed(connection)], "the second SET was never forwarded");
    assert_eq!(world.driver.director().engine().buffers_out(), 2);
    world.answer_reads();
    let engine = world.driver.director().engine();
    assert_eq!((engine.buffers_out(), engine.in_flight()), (0, 0));
    // The host may not know yet.
    world.reply(connection, stamp, "+\n");
    assert_eq!(world.host.0.borrow().closed, None);
    let next = world.connect();
    world.admit(next);
}

#[test]
fn the_host_ends_a_connection_behind_a_reply() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.send(client, "LEN a\nQUIT\nSET b 1\nGET a\n");
    let requests = world.requests();
    let (connection, stamp) = (requests[0].0, requests[0].1);
    world.say(&FromHost::Close { connection: ConnectionId(connection), stamp });
    assert_eq!(world.got(client), "#1\n");
    assert!(!world.is_finished(client));
    world.reply(connection, stamp, "+bye\n");
    assert_eq!(world.got(client), "+bye\n");
    assert!(world.is_finished(client));
    world.answer_reads();
    world.end(client);
    assert!(world.is_closed(client));
    assert_eq!(world.driver.director().engine().in_flight(), 0);
}

#[test]
fn a_client_that_does_not_read_is_not_read_from_and_disturbs_nobody() {
    let config = DirectorConfig { output_len_max: 4096, ..director_config() };
    let mut world = <World>::with(engine_config(), config);
    world.meet(0, 0);
    let (slow, other) = (world.connect(), world.connect());
    world.said();
    world.admit(slow);
    world.store("a", &"v".repeat(3000), 1);
    world.disk.0.borrow_mut().is_quick = true;
    world.net.0.borrow_mut().clients.get_mut(&slow).unwrap().window = 0;
    world.arrive(slow, "GET a\n".repeat(40_000).as_bytes());
    world.turn();
    let left = world.net.0.borrow().clients[&slow].arriving.len();
    assert!(left > 150_000, "only what fits into its buffer is received: {left}");
    let out = world.driver.director().engine().buffers_out();
    assert_eq!(out, 0, "what waits for it is nobody's buffer");
    world.admit(other);
    world.send(other, "GET a\n");
    assert_eq!((world.got(other).len(), world.texts()), (3002, vec![]));
    // It reads on: everything comes, in order.
    let mut got = 0;
    while got < 40_000 * 3002 {
        world.open_window(slow, 1 << 20);
        got += world.got(slow).len();
    }
    assert_eq!((got, world.driver.director().engine().buffers_out()), (40_000 * 3002, 0));
    assert_eq!(world.requests(), []);
}

#[test]
fn what_all_clients_together_do_not_take_is_bounded() {
    let config = DirectorConfig { outputs_len_max: 200_000, ..director_config() };
    let mut world = <World>::with(engine_config(), config);
    world.meet(0, 0);
    let clients: Vec<u64> = (0..60).map(|_| world.connect()).collect();
    world.said();
    for client in &clients {
        world.admit(*client);
    }
    world.store("a", &"v".repeat(3000), 1);
    world.disk.0.borrow_mut().is_quick = true;
    let (reader, silent) = clients.split_last().unwrap();
    for client in silent {
        world.net.0.borrow_mut().clients.get_mut(client).unwrap().window = 0;
        world.send(*client, &"GET a\n".repeat(10));
        assert!(world.driver.director().counts().unread <= 200_000);
        world.send(*reader, "GET a\n");
        assert_eq!(world.got(*reader).len(), 3002, "who takes its replies notices nothing");
    }
    let (closed, left): (Vec<u64>, Vec<u64>) = silent.iter().partition(|client| world.is_closed(**client));
    assert_eq!(left.len(), 200_000 / 30_020);
    assert_eq!(world.driver.director().counts().closed_for_memory, closed.len() as u64);
    for client in left {
        world.open_window(client, usize::MAX);
        assert_eq!(world.got(client).len(), 30_020, "the others get all that they have asked for");
    }
    assert_eq!(world.driver.director().counts().unread, 0);
}

#[test]
fn what_the_host_has_sent_counts_as_unread_wherever_it_waits() {
    let config = DirectorConfig { outputs_len_max: 150_000, ..director_config() };
    let mut world = <World>::with(engine_config(), config);
    world.meet(0, 0);
    let clients: Vec<u64> = (0..4).map(|_| world.connect()).collect();
    world.said();
    let unread = |world: &World| world.driver.director().counts().unread;
    let part = "x".repeat(60_000);
    for client in &clients {
        world.net.0.borrow_mut().clients.get_mut(client).unwrap().window = 0;
        world.send(*client, "DUMP\nDUMP\n");
    }
    let requests = world.requests();
    // The first gets a reply that it does not take; those of the others wait for another one.
    world.reply(requests[0].0, requests[0].1, &part);
    world.reply(requests[3].0, requests[3].1, &part);
    assert_eq!(unread(&world), 120_000);
    world.reply(requests[5].0, requests[5].1, &part[1..]);
    let (closed, open): (Vec<u64>, Vec<u64>) = clients.iter().partition(|client| world.is_closed(**client));
    assert_eq!((unread(&world), closed.len()), (119_999, 1));
    // Replies that are forgotten do not count, and their places are free.
    world.host_dies();
    open.iter().for_each(|client| world.open_window(*client, usize::MAX));
    assert_eq!(unread(&world), 0);
    assert_eq!(world.driver.director().counts().closed_for_memory, 1);
}

#[test]
fn a_request_that_reads_more_than_it_may_is_the_hosts() {
    let engine = ob_offload::EngineConfig { reads_len_max: 8192, ..engine_config() };
    let mut world = <World>::with(engine, director_config());
    world.meet(0, 0);
    let client = world.connect();
    world.said();
    world.admit(client);
    world.store("a", "1", 1);
    world.send(client, "MGET a a\nMGET a a a\n");
    assert_eq!((world.reads(), world.driver.director().engine().buffers_out()), (2, 2));
    world.answer_reads();
    assert_eq!((world.got(client).as_str(), world.texts()), ("$1$1\n", vec!["MGET a a a".to_owned()]));
    assert_eq!(world.driver.director().counts().host.of(ob_offload::Reason::TooLarge), 1);
}

#[test]
fn what_waits_behind_a_slow_host_leaves_the_engine_to_others() {
    let config = DirectorConfig { held_len_max: 4 << 12, ..director_config() };
    let mut world = <World>::with(engine_config(), config);
    world.meet(0, 0);
    let (first, other) = (world.connect(), world.connect());
    world.said();
    world.admit(first);
    world.store("a", "12", 1);
    world.disk.0.borrow_mut().is_quick = true;
    world.send(first, &format!("SET b 1\n{}", "GET a\nLEN a\n".repeat(50)));
    assert_eq!(world.driver.director().engine().in_flight(), 4);
    let (connection, stamp) = world.expect_request("SET b 1");
    world.admit(other);
    world.send(other, "GET a\n");
    assert_eq!(world.got(other), "$12\n");
    world.reply(connection, stamp, "+\n");
    assert_eq!(world.got(first), format!("+\n{}", "$12\n#2\n".repeat(50)));
}

#[test]
fn the_host_gets_credit_as_replies_are_sent_on() {
    let (mut world, client) = <World>::admitted();
    world.net.0.borrow_mut().clients.get_mut(&client).unwrap().window = 0;
    world.send(client, "DUMP\n");
    let (connection, stamp) = world.expect_request("DUMP");
    let (length, part) = (10 * FRAGMENT_LEN, "x".repeat(FRAGMENT_LEN));
    // The admission's reply has used some, and that is not given back before it is worth a frame.
    for at in 0..3 {
        world.reply_part(connection, stamp, part.as_bytes(), at * FRAGMENT_LEN, length);
    }
    assert_eq!(world.said(), []);
    world.open_window(client, usize::MAX / 2);
    let given: u32 =
        world.said().iter().map(|said| if let Said::Credit(_, len) = said { *len } else { 0 }).sum();
    assert_eq!(given as usize, 3 * FRAGMENT_LEN + 4, "with the four bytes of the admission's reply");
    for at in 3..10 {
        world.reply_part(connection, stamp, part.as_bytes(), at * FRAGMENT_LEN, length);
    }
    assert_eq!(world.got(client).len(), length);
    assert_eq!(world.host.0.borrow().closed, None);
}

#[test]
fn more_than_there_is_credit_for_ends_the_stream() {
    let (mut world, client) = <World>::admitted();
    world.net.0.borrow_mut().clients.get_mut(&client).unwrap().window = 0;
    world.send(client, "DUMP\n");
    let (connection, stamp) = world.expect_request("DUMP");
    let part = "x".repeat(FRAGMENT_LEN);
    for at in 0..CREDIT_LEN as usize / FRAGMENT_LEN {
        world.reply_part(connection, stamp, part.as_bytes(), at * FRAGMENT_LEN, 10 * FRAGMENT_LEN);
    }
    assert!(world.host.0.borrow().closed.as_ref().unwrap().contains("credit"));
    assert!(world.is_closed(client), "half of a reply cannot be taken back");
}

#[test]
fn long_requests_go_in_fragments_and_others_overtake_them() {
    let (mut world, client) = <World>::admitted();
    let other = world.connect();
    world.store("a", "1", 1);
    world.said();
    world.set_room(2);
    let long = format!("SET a {}", "v".repeat(4 * FRAGMENT_LEN));
    world.send(client, &format!("{long}\n"));
    let fragments = world.host.0.borrow().fragments;
    assert_eq!((fragments, world.requests()), (3, vec![]), "the first was the admission");
    assert!(world.find("a").is_some(), "its stamp is given with the last fragment");
    world.send(other, "SET b 1\n");
    world.set_room(2);
    world.turn();
    assert_eq!(world.requests(), [], "who waits longer comes first");
    world.set_room(100);
    world.turn();
    let requests = world.requests();
    assert_eq!(
        requests.iter().map(|(_, stamp, text)| (*stamp, text.len())).collect::<Vec<_>>(),
        [(2, 7), (3, long.len())]
    );
    assert_eq!(world.find("a"), None);
}

#[test]
fn a_long_request_is_looked_through_once_however_many_turns_it_takes() {
    let (mut world, client) = <World>::admitted();
    let long = format!("SET a {}", "v".repeat(40 * FRAGMENT_LEN));
    world.set_room(0);
    let before = world.application.predicates.get();
    world.send(client, &format!("{long}\n"));
    let cuts = world.application.cuts.get();
    // Each turn takes a fragment, and brings something more of the client.
    for _ in 0..30 {
        world.set_room(1);
        world.send(client, "SET b 1\n");
    }
    let fragments = world.host.0.borrow().fragments;
    assert_eq!((fragments, world.requests()), (31, vec![]), "one was the admission");
    assert_eq!(world.application.predicates.get() - before, 1);
    assert_eq!(world.application.cuts.get(), cuts, "what is behind it is not looked at");
    world.set_room(1000);
    world.turn();
    assert_eq!(world.texts().iter().map(String::len).collect::<Vec<_>>()[..2], [long.len(), 7]);
}

#[test]
fn of_all_that_wait_one_has_a_long_list_and_none_is_looked_through_in_vain() {
    let (mut world, first) = <World>::admitted();
    let mut clients = vec![first];
    clients.extend((0..20).map(|_| world.connect()));
    world.said();
    world.set_room(0);
    let long = format!("MGET{}", " k".repeat(3 * FRAGMENT_LEN));
    for client in &clients {
        world.send(*client, &format!("{long}\n"));
        assert!(world.driver.director().counts().long_lists <= 1);
    }
    let before = world.application.predicates.get();
    for _ in 0..50 {
        clients.iter().for_each(|client| world.send(*client, "\n"));
    }
    assert_eq!(world.application.predicates.get(), before, "what comes behind it changes nothing");
    let mut texts = Vec::new();
    while texts.len() < clients.len() {
        world.set_room(1);
        world.turn();
        texts.extend(world.texts());
        assert!(world.driver.director().counts().long_lists <= 1, "also while a part of them is forwarded");
    }
    assert!(texts.iter().all(|text| *text == long));
    let listed = world.application.predicates.get() - before;
    assert!(listed <= 2 * clients.len(), "{listed} times for {}", clients.len());
}

#[test]
fn a_long_list_that_waits_for_reads_is_made_again_when_they_are_done() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    let long = format!("MGET{}", " k".repeat(3000));
    world.send(client, &format!("{}{long}\n", "GET a\n".repeat(20)));
    assert_eq!((world.reads(), world.driver.director().counts().long_lists), (20, 0));
    let before = world.application.predicates.get();
    while world.reads() > 0 {
        assert_eq!(world.texts(), Vec::<String>::new());
        world.answer_read(0);
    }
    assert!(world.texts() == [long.as_str()]);
    assert_eq!(world.application.predicates.get() - before, 1);
    // A connection that is gone keeps nothing, although the host has not heard of it.
    world.set_room(0);
    world.send(client, &format!("{long}\n"));
    assert_eq!(world.driver.director().counts().long_lists, 1);
    world.reset(client);
    assert_eq!(world.driver.director().counts().long_lists, 0);
}

#[test]
fn a_request_of_which_the_host_has_a_part_goes_there_whatever_becomes_of_the_connection() {
    let engine = ob_offload::EngineConfig { request_len_max: 4 * FRAGMENT_LEN, ..engine_config() };
    let mut world = <World>::with(engine, director_config());
    world.meet(0, 0);
    let client = world.connect();
    world.admit(client);
    let keys = (0..64).map(|at| format!("k{at}")).collect::<Vec<_>>();
    let text = format!("MGET {}{}", keys.join(" "), " k0".repeat(FRAGMENT_LEN / 2));
    world.set_room(1);
    world.send(client, &format!("{text}\n"));
    assert_eq!(world.requests(), []);
    let connection = 1 << 24;
    world.say(&FromHost::Standing { connection: ConnectionId(connection), stamp: 1, word: 3 });
    world.set_room(1000);
    world.turn();
    assert!(world.texts() == [text]);
    assert_eq!(world.driver.director().counts().host.of(ob_offload::Reason::TooManyKeys), 1);
}

#[test]
fn who_waits_for_the_stream_gets_it_in_turn() {
    let (mut world, first) = <World>::admitted();
    let second = world.connect();
    world.said();
    world.set_room(0);
    world.send(first, &"SET a 1\n".repeat(20));
    world.send(second, &"SET b 1\n".repeat(20));
    let mut texts = Vec::new();
    for _ in 0..8 {
        world.set_room(1);
        world.turn();
        texts.extend(world.texts());
    }
    assert_eq!(
        texts,
        ["SET a 1", "SET b 1", "SET a 1", "SET b 1", "SET a 1", "SET b 1", "SET a 1", "SET b 1"]
    );
    world.set_room(1000);
    world.turn();
    assert_eq!(world.requests().len(), 32);
}

#[test]
fn who_waits_for_more_room_is_not_passed_by_those_who_need_less() {
    let (mut world, first) = <World>::admitted();
    let second = world.connect();
    world.said();
    world.host.0.borrow_mut().room_len = Some(100);
    let long = format!("SET a {}", "v".repeat(200));
    world.send(first, &format!("{long}\n"));
    world.send(second, &"SET b 1\n".repeat(3));
    assert_eq!(world.requests(), [], "or the first could wait for ever");
    world.host.0.borrow_mut().room_len = None;
    world.turn();
    assert_eq!(world.texts(), [&long, "SET b 1", "SET b 1", "SET b 1"]);
}

#[test]
fn memory_for_long_messages_is_shared_and_who_sits_on_it_is_closed() {
    let config = DirectorConfig { long_len_max: 256 << 10, ..director_config() };
    let mut world = <World>::with(engine_config(), config);
    world.meet(0, 0);
    let (hog, polite, small) = (world.connect(), world.connect(), world.connect());
    world.arrive(hog, &[b'x'; 300 << 10]);
    world.turn();
    assert_eq!(world.driver.director().counts().long_left, 0);
    assert!(!world.is_closed(hog), "nobody else wants it");
    world.now = Now { instant: world.now.instant + Duration::from_secs(100), ..world.now };
    world.turn();
    assert!(!world.is_closed(hog), "even if it takes long");
    world.send(hog, "x");
    world.said();
    let long = format!("SET a {}", "v".repeat(100 << 10));
    world.send(polite, &format!("{long}\n"));
    world.send(small, "SET c 1\n");
    let lens: Vec<usize> = world.texts().iter().map(String::len).collect();
    assert_eq!(lens, ["SET c 1".len()], "short messages need no such memory");
    later(&mut world, DirectorConfig::default().long_stall_max);
    assert!(world.is_closed(hog) && !world.is_closed(polite));
    assert!(world.texts() == [long]);
    let counts = world.driver.director().counts();
    assert_eq!((counts.starved, counts.long_left), (1, 256 << 10));
}

#[test]
fn a_byte_now_and_then_does_not_keep_memory_that_others_wait_for() {
    let config = DirectorConfig { long_len_max: 256 << 10, ..director_config() };
    let mut world = <World>::with(engine_config(), config);
    world.meet(0, 0);
    let (honest, other) = (world.connect(), world.connect());
    let hogs = [world.connect(), world.connect()];
    world.said();
    let long = format!("SET a {}", "v".repeat(250 << 10));
    let (begin, rest) = long.split_at(100 << 10);
    world.send(honest, begin);
    world.arrive(hogs[0], &[b'x'; 130 << 10]);
    world.arrive(hogs[1], &[b'x'; 70 << 10]);
    world.turn();
    assert_eq!(world.driver.director().counts().long_left, 0);
    world.send(honest, &format!("{rest}\n"));
    world.send(other, &format!("{}\n", long.replace("SET a", "SET b")));
    for _ in 0..4 {
        pass(&mut world, 4);
        hogs.iter().for_each(|hog| world.send(*hog, "x"));
    }
    assert_eq!((world.is_closed(honest), world.is_closed(other)), (false, false), "they were held up");
    assert!(hogs.iter().all(|hog| world.is_closed(*hog)));
    let mut texts = world.texts();
    texts.sort();
    assert!(texts == [long.clone(), long.replace("SET a", "SET b")]);
}

#[test]
fn who_sends_steadily_is_left_alone_while_others_wait() {
    let config = DirectorConfig { long_len_max: 256 << 10, ..director_config() };
    let mut world = <World>::with(engine_config(), config);
    world.meet(0, 0);
    let (steady, other) = (world.connect(), world.connect());
    world.said();
    world.arrive(steady, &[b'x'; 200 << 10]);
    world.turn();
    world.arrive(steady, &[b'x'; 50 << 10]);
    world.turn();
    let long = format!("SET a {}", "v".repeat(100 << 10));
    world.send(other, &format!("{long}\n"));
    for part in [40 << 10, 30 << 10] {
        pass(&mut world, 4);
        world.arrive(steady, &vec![b'x'; part]);
        world.turn();
        assert!(!world.is_closed(steady) && !world.is_closed(other));
    }
}

#[test]
fn of_those_that_wait_for_each_other_the_largest_goes() {
    let config = DirectorConfig { long_len_max: 256 << 10, ..director_config() };
    let mut world = <World>::with(engine_config(), config);
    world.meet(0, 0);
    let (small, large) = (world.connect(), world.connect());
    world.said();
    let long = format!("SET a {}", "v".repeat(200 << 10));
    let (begin, rest) = long.split_at(100 << 10);
    world.send(small, begin);
    world.arrive(large, &[b'x'; 300 << 10]);
    world.turn();
    world.send(small, &format!("{rest}\n"));
    assert_eq!(world.texts(), Vec::<String>::new());
    later(&mut world, DirectorConfig::default().long_stall_max);
    assert!(world.is_closed(large) && !world.is_closed(small));
    assert!(world.texts() == [long]);
    assert_eq!(world.driver.director().counts().long_left, 256 << 10);
}

#[test]
fn who_keeps_a_whole_long_message_waiting_by_not_reading_is_closed_too() {
    let config = DirectorConfig {
        long_len_max: 256 << 10,
        long_progress_min: 4096,
        output_len_max: 4096,
        ..director_config()
    };
    let mut world = <World>::with(engine_config(), config);
    world.meet(0, 0);
    let (hog, polite) = (world.connect(), world.connect());
    world.said();
    world.admit(hog);
    world.store("a", &"v".repeat(3000), 1);
    world.disk.0.borrow_mut().is_quick = true;
    // The second request of a message waits until the replies to the first have left.
    let long = format!("{}SET a {}", "GET a;".repeat(8), "v".repeat(300 << 10));
    world.net.0.borrow_mut().clients.get_mut(&hog).unwrap().window = 0;
    world.send(hog, &format!("{long}\n"));
    let other = format!("SET b {}", "v".repeat(100 << 10));
    world.send(polite, &format!("{other}\n"));
    assert_eq!(world.driver.director().counts().long_left, 0);
    // Whoever takes enough goes on.
    pass(&mut world, 4);
    world.open_window(hog, 17 << 10);
    pass(&mut world, 1);
    assert!(!world.is_closed(hog));
    pass(&mut world, 4);
    world.open_window(hog, 10);
    assert!(!world.is_closed(hog));
    later(&mut world, Duration::from_secs(1));
    assert!(world.is_closed(hog) && !world.is_closed(polite));
    assert!(world.texts() == [other]);
}

#[test]
fn a_whole_long_message_that_waits_for_the_host_is_not_to_blame() {
    let config = DirectorConfig { long_len_max: 256 << 10, ..director_config() };
    let mut world = <World>::with(engine_config(), config);
    world.meet(0, 0);
    let (first, second) = (world.connect(), world.connect());
    world.said();
    world.set_room(1);
    let long = format!("SET a {}", "v".repeat(300 << 10));
    world.send(first, &format!("{long}\n"));
    world.send(second, &format!("{long}\n"));
    assert_eq!(world.driver.director().counts().long_left, 0);
    world.now = Now { instant: world.now.instant + Duration::from_secs(100), ..world.now };
    world.turn();
    assert!(!world.is_closed(first));
    world.set_room(1000);
    world.turn();
    assert!(world.texts() == [long.clone(), long]);
}

#[test]
fn pipelines_are_bounded_and_all_of_them_is_answered() {
    let (mut world, client) = <World>::admitted();
    world.arrive(client, "SET a 1\n".repeat(1000).as_bytes());
    world.turn();
    let mut answered = 0;
    while answered < 1000 {
        let requests = world.requests();
        assert!(!requests.is_empty() && requests.len() <= 64, "{}", requests.len());
        for (connection, stamp, _) in requests {
            world.reply(connection, stamp, "+\n");
            answered += 1;
        }
    }
    assert_eq!(world.got(client), "+\n".repeat(1000));
}

#[test]
fn there_are_only_so_many_connections_and_places_are_used_again() {
    let mut world = <World>::new();
    world.meet(0, 0);
    let clients: Vec<u64> = (0..64).map(|_| world.connect()).collect();
    let refused = world.connect();
    assert!(world.is_closed(refused) && !world.is_closed(clients[63]));
    assert_eq!((world.got(refused), world.driver.director().counts().refused), ("!full\n".to_owned(), 1));
    let said = world.said();
    world.set_room(0);
    world.reset(clients[0]);
    assert!(
        {
            let one = world.connect();
            world.is_closed(one)
        },
        "the host does not know yet that there is room"
    );
    world.set_room(100);
    world.turn();
    let next = world.connect();
    assert!(!world.is_closed(next));
    let opened = |said: &Said| if let Said::Opened(number, _) = said { Some(*number) } else { None };
    let mut numbers: Vec<u64> = said.iter().chain(&world.said()).filter_map(opened).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 65, "numbers are not used twice");
}
