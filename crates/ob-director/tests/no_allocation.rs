//! A read that the card answers allocates nothing, from a client's bytes to its reply; and the value leaves from where the device has
//! put it. Alone in its process: it counts what the allocator does.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where something is missing")]

#[path = "../../ob-io/tests/counting/mod.rs"]
mod counting;
mod support;

use counting::allocations;
use support::World;

const WARM: usize = 100;
const ROUNDS: u64 = 1000;

/// A client's bytes come in, the record is read, and its value goes out; how often memory was asked for.
fn get(world: &mut World, client: u64, value_len: usize) -> u64 {
    world.arrive(client, b"GET a\n");
    let before = allocations();
    world.turn();
    let counted = allocations() - before;
    let mut network = world.net.0.borrow_mut();
    let got = &mut network.clients.get_mut(&client).unwrap().got;
    assert_eq!(got.len(), value_len + 2, "the value between its marks");
    got.clear();
    counted
}

#[test]
fn a_stored_read_allocates_nothing() {
    let (mut world, client) = <World>::admitted();
    let value = "v".repeat(1000);
    world.store("a", &value, 1);
    world.disk.0.borrow_mut().is_quick = true;
    for _ in 0..WARM {
        get(&mut world, client, value.len());
    }
    let card = world.driver.director().counts().card;
    let counted: u64 = (0..ROUNDS).map(|_| get(&mut world, client, value.len())).sum();
    assert_eq!(world.driver.director().counts().card - card, ROUNDS, "the card has answered all of them");
    assert_eq!(counted, 0, "in {ROUNDS} requests");
}

#[test]
fn what_the_device_read_is_what_is_sent() {
    let (mut world, client) = <World>::admitted();
    let value = "v".repeat(1000);
    world.store("a", &value, 1);
    world.disk.0.borrow_mut().is_quick = true;
    world.net.0.borrow_mut().longest_sent = (0, 0);
    get(&mut world, client, value.len());
    let (address, len) = world.net.0.borrow().longest_sent;
    let read_into = world.disk.0.borrow().read_into.clone();
    assert!(len >= value.len(), "the value leaves in one piece");
    assert!(read_into.contains(&address) && read_into.contains(&(address + len - 1)), "it was copied");
}
