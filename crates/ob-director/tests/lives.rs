//! When the host dies, and comes back.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where something is missing")]

use crate::support;

use std::time::Duration;

use ob_core::{ConnectionId, Instant, NodeId};
use ob_director::DirectorConfig;
use ob_wire_link::stream::{
    Entries, FRAGMENT_LEN, FromHost, Recovered, SEEN_END, STAMP_END, VERSION, push_entry,
};
use support::{Said, World, director_config, engine_config};

#[test]
fn stored_reads_go_on_without_the_host_and_the_rest_is_told_to_try_again() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.send(client, "SET b 1\nGET a\nSET c 1\n");
    assert_eq!(world.reads(), 1);
    world.host_dies();
    assert_eq!(world.got(client), "~\n", "nobody knows whether it was applied");
    world.answer_reads();
    assert_eq!(world.got(client), "$1\n?\n");
    world.send(client, "GET a\nSET a 2\nGET a\n");
    world.answer_reads();
    assert_eq!(world.got(client), "$1\n?\n$1\n", "what was not forwarded has changed nothing");
    assert_eq!(world.driver.director().counts().unavailable, 3);
    // A connection that the host has not admitted stays without an answer of the card.
    let stranger = world.connect();
    world.send(stranger, "GET a\n");
    assert_eq!(world.got(stranger), "?\n");
}

#[test]
fn what_falls_back_while_the_host_is_away_is_told_to_try_again() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.send(client, "GET a\nLEN a\n");
    world.host_dies();
    world.disk.0.borrow_mut().contents.clear();
    world.answer_reads();
    assert_eq!(world.got(client), "?\n#1\n");
}

#[test]
fn half_a_reply_ends_the_connection_when_the_host_dies() {
    let (mut world, client) = <World>::admitted();
    world.send(client, "DUMP\nDUMP\n");
    let requests = world.requests();
    world.reply_part(requests[1].0, requests[1].1, b"half", 0, 10);
    world.host_dies();
    assert_eq!(world.got(client), "~\n~\n", "what was held back can be forgotten");
    assert!(!world.is_closed(client));
    let (mut world, client) = <World>::admitted();
    world.send(client, "DUMP\n");
    let (connection, stamp) = world.expect_request("DUMP");
    world.reply_part(connection, stamp, b"half", 0, 10);
    world.host_dies();
    assert!(world.is_closed(client), "what the client has got cannot");
}

#[test]
fn a_host_that_comes_back_begins_a_life_with_greater_stamps() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.send(client, "SET b 1\n");
    world.host_dies();
    assert_eq!(world.got(client), "~\n");
    world.said();
    world.meet(7, world.written());
    let said = world.said();
    assert!(matches!(said.as_slice(), [Said::Begin(8), Said::Opened(_, _)]), "{said:?}");
    assert!(world.find("a").is_some(), "the host has what was admitted");
    // The new host has not admitted anybody.
    world.send(client, "GET a\n");
    let (connection, stamp) = world.expect_request("GET a");
    assert_eq!(stamp, 8);
    world.say(&FromHost::Standing { connection: ConnectionId(connection), stamp, word: 2 });
    world.reply(connection, stamp, "$1\n");
    world.send(client, "LEN a\n");
    assert_eq!(world.got(client), "$1\n#1\n");
    // Its own greatest stamp counts where the card's is greater.
    world.host_dies();
    world.meet(0, world.written());
    assert!(matches!(world.said().as_slice(), [Said::Begin(9), ..]));
}

#[test]
fn what_a_host_says_to_have_seen_keeps_no_other_out_and_is_not_in_its_log() {
    for lie in [(1 << 40) + 8, SEEN_END - 1, SEEN_END, STAMP_END - 1_000_000, STAMP_END - 3, STAMP_END - 2] {
        let (mut world, client) = <World>::admitted();
        world.store("a", "1", 1);
        world.host_dies();
        world.meet(lie, world.written());
        world.said();
        world.send(client, "SET b 1\n");
        let stamps: Vec<u64> = world.requests().iter().map(|(_, stamp, _)| *stamp).collect();
        if lie < SEEN_END {
            assert_eq!(stamps, [lie + 1]);
        } else {
            let said = format!("the stamp of a frame of kind 16 cannot be {lie}");
            assert_eq!((stamps.len(), world.host.0.borrow().closed.as_ref()), (0, Some(&said)));
        }
        world.host_dies();
        world.got(client);
        world.meet(7, world.written());
        assert!(matches!(world.said().as_slice(), [Said::Begin(8), ..]), "{lie}");
        world.admit(client);
        world.store("a", "234", 8);
        world.send(client, "LEN a\n");
        assert_eq!(world.got(client), "#3\n", "{lie}: the card answers again");
        world.send(client, "SET a 5\nLEN a\n");
        assert_eq!(world.texts(), ["SET a 5", "LEN a"], "{lie}: and knows what was changed");
    }
}

#[test]
fn stamps_that_left_no_record_are_not_given_again() {
    let (mut world, _) = <World>::admitted();
    world.store("a", "1", 1);
    world.host_dies();
    world.meet(1 << 40, world.written());
    world.host_dies();
    world.said();
    world.meet(0, world.written());
    assert!(matches!(world.said().as_slice(), [Said::Begin(begin), ..] if *begin == (1 << 40) + 1));
    assert!(world.find("a").is_some(), "and the table is kept");
}

#[test]
fn a_turn_takes_so_many_entries_whatever_frames_they_come_in() {
    let (mut world, _) = <World>::admitted();
    let attested = |world: &World| world.driver.director().engine().counts().attested;
    for (entries, frames, at_once) in [(15, 300, 256 * 15), (20_000, 3, 20_000)] {
        let before = attested(&world);
        let bytes = [1, 0, b'k'].repeat(entries);
        let (inline, payload) = FromHost::Attest { stamp: 1, entries: Entries::new(&bytes) }.encode();
        (0..frames).for_each(|_| world.say_later(&inline, payload.bytes()));
        world.driver.turn(world.now);
        assert_eq!(attested(&world) - before, at_once);
        world.turn();
        assert_eq!(attested(&world) - before, (entries * frames) as u64, "the rest follows");
    }
}

#[test]
fn invalidations_outlive_the_host_that_never_applied_them() {
    let (mut world, client) = <World>::admitted();
    let place = world.store("a", "1", 1);
    world.send(client, "SET a 2\n");
    world.host_dies();
    world.meet(1, world.written());
    assert_eq!(world.find("a"), None);
    // The new life knows that the SET was lost.
    world.attest("a", place, 2);
    assert!(world.find("a").is_some());
}

#[test]
fn a_host_that_has_lost_what_was_admitted_empties_the_table() {
    let (mut world, client) = <World>::admitted();
    let place = world.store("a", "1", 1);
    world.host_dies();
    world.meet(1, world.written() - 1);
    assert_eq!(world.find("a"), None);
    // What an earlier life has written is not admitted either, unless the host attests it in this one.
    world.attest("a", place, 1);
    world.admit_again(client);
    assert!(world.find("a").is_some(), "as of the end of the life before");
}

#[test]
fn another_store_empties_the_table() {
    let (mut world, _) = <World>::admitted();
    world.store("a", "1", 1);
    world.host_dies();
    let recovered = Recovered { store: [3; 16], end: u64::MAX };
    world.arrive_host();
    world.say(&FromHost::Meet { stamp: 0, recovered, terms: 7 });
    assert_eq!(world.find("a"), None);
}

#[test]
fn what_an_earlier_life_was_writing_is_forgotten() {
    let (mut world, _) = <World>::admitted();
    world.write("a", "1", 1);
    world.host_dies();
    world.meet(1, 0);
    world.settle();
    assert_eq!(world.find("a"), None);
    assert_eq!(world.driver.director().engine().candidates(), 0);
}

#[test]
fn connections_whose_session_the_host_kept_end_when_another_life_begins() {
    let (mut world, plain) = <World>::admitted();
    let named = world.connect();
    world.said();
    world.send(named, "AUTH me\n");
    let (connection, stamp) = world.expect_request("AUTH me");
    world.say(&FromHost::Standing { connection: ConnectionId(connection), stamp, word: 3 });
    world.reply(connection, stamp, "+\n");
    world.store("a", "1", 1);
    world.host_dies();
    world.send(named, "LEN a\n");
    assert_eq!(world.got(named), "+\n#1\n", "while there is no host it is what it was");
    let refused = world.connect();
    world.send(refused, "AUTH me\n");
    assert_eq!(world.got(refused), "?\n", "what it sends next may rest on what it did not get");
    world.meet(2, world.written());
    assert!(world.is_finished(named) && world.is_finished(refused) && !world.is_finished(plain));
}

#[test]
fn a_request_that_waits_for_the_hosts_word_is_let_go_when_it_dies() {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.send(client, "AUTH me\nLEN a\n");
    assert_eq!(world.got(client), "");
    world.host_dies();
    assert_eq!(world.got(client), "~\n?\n", "its standing is not known any more");
}

#[test]
fn a_long_request_of_which_the_host_had_a_part_is_told_to_try_again() {
    let (mut world, client) = <World>::admitted();
    world.set_room(1);
    world.send(client, &format!("SET a {}\n", "v".repeat(200_000)));
    world.host_dies();
    assert_eq!(world.got(client), "?\n");
    world.set_room(1000);
    world.meet(1, 0);
    world.said();
    world.send(client, "SET a 2\n");
    assert_eq!(world.texts(), ["SET a 2"]);
}

#[test]
fn what_a_host_may_not_say_ends_the_stream_and_nothing_else() {
    let connection = ConnectionId(1);
    let meet = FromHost::Meet { stamp: 0, recovered: Recovered { store: [1; 16], end: 0 }, terms: 7 };
    let wrong = [
        meet,
        FromHost::Standing { connection, stamp: 99, word: 2 },
        FromHost::Close { connection, stamp: 99 },
        FromHost::Attest { stamp: 99, entries: ob_wire_link::stream::Entries::new(&[1, 0, b'k']) },
    ];
    for frame in wrong {
        let (mut world, client) = <World>::admitted();
        world.store("a", "1", 1);
        world.send(client, "SET b 1\n");
        world.say(&frame);
        assert!(world.host.0.borrow().closed.is_some(), "{frame:?}");
        assert_eq!(world.got(client), "~\n");
        world.send(client, "LEN a\n");
        assert_eq!(world.got(client), "#1\n");
        assert_eq!(world.driver.director().counts().host_refused, 1);
        world.meet(5, world.written());
        assert!(world.driver.director().has_host());
    }
    let mut world = <World>::new();
    world.arrive_host();
    world.say(&FromHost::File { name: 1, node: NodeId(1) });
    assert!(world.host.0.borrow().closed.is_some(), "the first word is the meeting");
}

/// What these bytes of the host end the stream with. A client must have gone on meanwhile, and a host come back.
fn refused_for(inline: &[u8], payload: &[u8]) -> String {
    let (mut world, client) = <World>::admitted();
    world.store("a", "1", 1);
    world.send(client, "SET b 1\n");
    world.say_bytes(inline, payload);
    let reason = world.host.0.borrow().closed.clone();
    let reason = reason.unwrap_or_else(|| panic!("{inline:?} and {payload:?} were taken for a frame"));
    assert_eq!(world.got(client), "~\n");
    world.send(client, "LEN a\n");
    assert_eq!(world.got(client), "#1\n");
    assert_eq!(world.driver.director().counts().host_refused, 1);
    world.meet(5, world.written());
    assert!(world.driver.director().has_host());
    reason
}

#[test]
fn bytes_that_are_no_frame_end_the_stream_and_nothing_else() {
    let clock = FromHost::Clock { stamp: 0, unix_ms: 7 };
    let (header, payload) = clock.encode();
    let payload = payload.bytes();
    let with = |offset: usize, byte: u8| {
        let mut header = header;
        header[offset] = byte;
        header
    };
    for (inline, payload, reason) in [
        (&[][..], payload, "a frame of 0 and 8 bytes cannot be"),
        (&header[..31], payload, "a frame of 31 and 8 bytes cannot be"),
        (&[&header[..], &[0]].concat(), payload, "a frame of 33 and 8 bytes cannot be"),
        (&header[..], &[], "a frame of 32 and 0 bytes cannot be"),
        (&header[..], &payload[..7], "a frame of 32 and 7 bytes cannot be"),
        (&header[..], &vec![0; FRAGMENT_LEN + 1], "a frame of 32 and 65537 bytes cannot be"),
        (&with(0, 0), payload, "there is no frame of kind 0"),
        (&with(0, 25), payload, "there is no frame of kind 25"),
        (&with(1, 1), payload, "there is no frame of kind 280"),
        // Only a card says so.
        (&with(0, 3), payload, "there is no frame of kind 3"),
        (&with(2, 1), payload, "the reserved of a frame of kind 24 cannot be 1"),
        (&with(23, 0x80), payload, "the stamp of a frame of kind 24 cannot be 9223372036854775808"),
    ] {
        assert_eq!(refused_for(inline, payload), reason);
    }
}

#[test]
fn a_host_of_another_version_is_told_both() {
    let meet = FromHost::Meet { stamp: 0, recovered: Recovered { store: [1; 16], end: 0 }, terms: 7 };
    for version in [0, VERSION + 1, u32::MAX] {
        let (mut header, payload) = meet.encode();
        header[28..].copy_from_slice(&version.to_le_bytes());
        let mut world = <World>::new();
        world.arrive_host();
        world.say_bytes(&header, payload.bytes());
        let said = format!("the other half speaks version {version} of the stream, this one {VERSION}");
        assert_eq!(world.host.0.borrow().closed, Some(said));
        assert!(!world.driver.director().has_host());
        world.meet(0, 0);
        assert!(world.driver.director().has_host(), "one of the right version is met");
    }
}

#[test]
fn a_host_that_serves_on_other_terms_is_sent_away() {
    let recovered = Recovered { store: [1; 16], end: 0 };
    for terms in [0, 8, u32::MAX] {
        let mut world = <World>::new();
        world.arrive_host();
        world.say(&FromHost::Meet { stamp: 0, recovered, terms });
        let said = "it serves on other terms than this card: another number".to_owned();
        assert_eq!(world.host.0.borrow().closed, Some(said));
        assert!(!world.driver.director().has_host());
        world.meet(0, 0);
        assert!(world.driver.director().has_host(), "one that serves on the same is met");
    }
}

#[test]
fn entries_that_the_table_cannot_hold_end_the_stream() {
    let longest = (ob_table::KEY_BYTES_MAX, ob_table::ITEM_BYTES_MAX);
    for (key_len, item_len) in [(longest.0 + 1, 1), (255, 1), (1, longest.1 + 1), (1, 255)] {
        let mut entries = Vec::new();
        assert!(push_entry(&mut entries, &vec![b'k'; key_len], &vec![b'i'; item_len]));
        let (header, payload) = FromHost::Attest { stamp: 1, entries: Entries::new(&entries) }.encode();
        assert_eq!(refused_for(&header, payload.bytes()), "an entry cannot be", "{key_len} {item_len}");
    }
}

#[test]
fn no_more_files_have_names_than_may() {
    let config = DirectorConfig { files_max: 3, ..director_config() };
    let mut world = World::<false>::with(engine_config(), config);
    world.meet(0, 0);
    let name = |world: &mut World, name: u32| world.say(&FromHost::File { name, node: NodeId(80) });
    name(&mut world, 1001);
    name(&mut world, 1002);
    world.say(&FromHost::FileGone { name: 1001 });
    name(&mut world, 1003);
    // A name that there is may get another file: that is not one more.
    name(&mut world, 1003);
    assert_eq!(world.host.0.borrow().closed, None);
    name(&mut world, 1004);
    assert_eq!(world.host.0.borrow().closed.as_deref(), Some("too many files have names"));
    world.meet(0, 0);
    assert!(world.driver.director().has_host(), "the next life has names of its own");
}

#[test]
fn the_host_hears_which_of_its_files_are_known() {
    let mut world = <World>::new();
    world.host.0.borrow_mut().room = 1;
    world.meet(0, 0);
    let named = |world: &World| world.host.0.borrow().named;
    assert_eq!(named(&world), None, "there is no room to say it");
    assert!(world.driver.director().awaits_room());
    world.say(&FromHost::File { name: 8, node: NodeId(8) });
    world.host.0.borrow_mut().room = 1000;
    assert_eq!(
        world.driver.next_due(),
        Some(Instant::default()),
        "nobody tells a driver of room: it looks for it"
    );
    world.turn();
    assert_eq!(named(&world), Some(2));
    assert!(!world.driver.director().awaits_room());
    world.say(&FromHost::FileGone { name: 8 });
    world.say(&FromHost::File { name: 9, node: NodeId(9) });
    assert_eq!(named(&world), Some(3));
    world.host_dies();
    world.meet(0, 0);
    assert_eq!(named(&world), Some(1), "each life has its own");
}

#[test]
fn replies_that_cannot_be_end_the_stream() {
    let wrong: [fn(&mut World, u64, u64); 4] = [
        |world, connection, stamp| world.reply(connection, stamp + 1, "x"),
        |world, connection, stamp| world.reply_part(connection, stamp, b"x", 1, 2),
        |world, connection, stamp| {
            world.reply_part(connection, stamp, b"x", 0, 3);
            world.reply_part(connection, stamp, b"x", 1, 4);
        },
        |world, connection, stamp| {
            world.reply(connection, stamp, "x");
            world.reply(connection, stamp, "x");
        },
    ];
    for reply in wrong {
        let (mut world, client) = <World>::admitted();
        world.send(client, "SET b 1\n");
        let (connection, stamp) = world.expect_request("SET b 1");
        reply(&mut world, connection, stamp);
        assert!(world.host.0.borrow().closed.is_some());
    }
}

#[test]
fn the_hosts_clock_is_known_before_the_card_answers_for_what_expires() {
    let (mut world, client) = <World>::admitted();
    let ahead = |world: &World| world.driver.director().host_ahead_ms();
    assert_eq!(ahead(&world), None, "it has not said anything");
    let begun = world.now.unix_ms;
    world.now.unix_ms += 20;
    world.send(client, "SET a 1\n");
    let (connection, stamp) = world.expect_request("SET a 1");
    world.now.unix_ms += 3;
    // It looked at its clock before it had the request: then that is compared with when its life began.
    world.say(&FromHost::Clock { stamp: stamp - 1, unix_ms: begun + 500 });
    assert_eq!(ahead(&world), Some(500));
    // After it had: then the request may have taken no time, and no less.
    world.say(&FromHost::Clock { stamp, unix_ms: begun + 500 });
    assert_eq!(ahead(&world), Some(480));
    world.reply(connection, stamp, "+\n");
    // Without a newer request the difference looks greater the longer that is ago, and never less.
    world.say(&FromHost::Clock { stamp, unix_ms: begun + 700 });
    assert_eq!(ahead(&world), Some(680));
    world.now.unix_ms += 177;
    world.send(client, "SET a 2\n");
    let (_, stamp) = world.expect_request("SET a 2");
    world.say(&FromHost::Clock { stamp, unix_ms: begun + 100 });
    assert_eq!(
        ahead(&world),
        Some(-100),
        "a host that is behind calls things over later than the card would"
    );
    // What it says of requests that nobody has asked cannot be.
    world.host_dies();
    assert_eq!(ahead(&world), Some(-100), "nobody else decides meanwhile");
    world.meet(stamp, world.written());
    assert_eq!(ahead(&world), None, "another host has another clock");
    world.say(&FromHost::Clock { stamp: 99, unix_ms: 1 });
    assert!(world.host.0.borrow().closed.is_some());
}

#[test]
fn a_card_whose_clock_is_set_back_knows_how_long_ago_the_host_has_told_the_time() {
    let (mut world, client) = <World>::admitted();
    let begun = world.now.unix_ms;
    world.now.unix_ms -= 3600;
    for _ in 0..1000 {
        // Each of these is too short to count alone.
        world.now.instant = world.now.instant + Duration::from_micros(10_500);
        world.turn();
    }
    world.send(client, "SET a 1\n");
    let (_, stamp) = world.expect_request("SET a 1");
    world.say(&FromHost::Clock { stamp, unix_ms: begun + 10_500 + 7 });
    assert_eq!(world.driver.director().host_ahead_ms(), Some(7));
    // If it was the card's clock that was wrong before, a host that has the right time says by how much.
    world.say(&FromHost::Clock { stamp, unix_ms: begun + 10_500 + 7 - 3600 });
    assert_eq!(world.driver.director().host_ahead_ms(), Some(7 - 3600));
}
