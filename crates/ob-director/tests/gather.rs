//! Replies of reads that come back one by one leave together, and none of them waits for long.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where something is missing")]

use crate::support;

use std::time::Duration;

use ob_director::DirectorConfig;
use support::{World, director_config, engine_config};

const GATHER: Duration = Duration::from_micros(100);

/// A client that is admitted, and a stored value.
fn world(config: DirectorConfig) -> (World, u64) {
    let mut world = World::with(engine_config(), DirectorConfig { gather: GATHER, ..config });
    world.meet(0, 0);
    let client = world.connect();
    world.admit(client);
    world.store("a", "12", 1);
    (world, client)
}

#[test]
fn replies_wait_until_they_are_as_many_as_the_reads_under_way() {
    let (mut world, client) = world(director_config());
    world.send(client, &"GET a\n".repeat(8));
    assert_eq!(world.reads(), 8);
    for _ in 0..3 {
        world.answer_read(0);
        assert_eq!(world.got(client), "");
    }
    world.answer_read(0);
    assert_eq!(world.got(client), "$12\n".repeat(4));
    world.answer_read(0);
    assert_eq!(world.got(client), "");
    world.answer_read(0);
    assert_eq!(world.got(client), "$12\n".repeat(2));
    // One is there, and one is under way.
    world.answer_read(0);
    assert_eq!(world.got(client), "$12\n");
    world.answer_read(0);
    assert_eq!(world.got(client), "$12\n");
}

#[test]
fn no_reply_waits_longer_than_it_may_and_a_sleeper_is_told_when() {
    let (mut world, client) = world(director_config());
    assert_eq!(world.driver.next_due(), None);
    world.send(client, &"GET a\n".repeat(8));
    assert_eq!(world.driver.next_due(), None);
    let begun = world.now.instant;
    world.answer_read(0);
    assert_eq!(world.driver.next_due(), Some(begun + GATHER));
    world.pass(GATHER / 2);
    // What comes later does not make the first wait longer.
    world.answer_read(0);
    assert_eq!((world.got(client), world.driver.next_due()), (String::new(), Some(begun + GATHER)));
    world.pass(GATHER / 2);
    assert_eq!((world.got(client), world.driver.next_due()), ("$12\n".repeat(2), None));
    // And neither does what was sent before hurry the next.
    world.answer_read(0);
    assert_eq!(world.driver.next_due(), Some(begun + 2 * GATHER));
    world.answer_reads();
    assert_eq!(world.got(client), "$12\n".repeat(6));
}

#[test]
fn nobody_waits_who_has_one_request_out_or_waits_for_the_host() {
    let (mut world, client) = world(director_config());
    world.send(client, "GET a\n");
    world.answer_reads();
    assert_eq!(world.got(client), "$12\n");
    // The host's reply is the next, and it may take any time.
    world.send(client, "GET a\nSET b 1\nGET a\nGET a\n");
    world.answer_read(0);
    assert_eq!(world.got(client), "$12\n");
    let (connection, stamp) = world.expect_request("SET b 1");
    world.reply(connection, stamp, "+\n");
    world.answer_reads();
    assert_eq!(world.got(client), "+\n$12\n$12\n");
}

#[test]
fn many_bytes_do_not_wait() {
    let (mut world, client) = world(DirectorConfig { gather_len_max: 4, ..director_config() });
    world.send(client, &"GET a\n".repeat(8));
    world.answer_read(0);
    assert_eq!(world.got(client), "$12\n");
}

#[test]
fn a_client_that_goes_while_its_replies_wait_leaves_nothing_behind() {
    let (mut world, client) = world(director_config());
    world.send(client, &"GET a\n".repeat(8));
    world.answer_read(0);
    world.reset(client);
    world.answer_reads();
    world.pass(GATHER);
    assert_eq!(world.driver.next_due(), None);
    let engine = world.driver.director().engine();
    assert_eq!((engine.in_flight(), engine.buffers_out()), (0, 0));
}
