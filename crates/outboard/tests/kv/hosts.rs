//! Two hosts at one card: one of them has the store, and the other takes over what it left.

use super::support::kv::{Service, Setup};
use super::support::resp::Value;

#[test]
fn a_second_host_waits_until_the_first_is_gone() {
    let mut service = Service::start(Setup::CARD);
    let mut client = service.client();
    assert_eq!(client.ask_line("SET by:first 1").unwrap(), Value::ok());

    let mut second = service.another_host();
    let refused = second.wait_for("the card does not serve the key-value store yet");
    assert!(refused.contains("another host has this service"), "{refused}");
    // The first is not disturbed.
    assert_eq!(client.ask_line("INCR by:first").unwrap(), Value::Number(2));

    service.kill_host();
    second.wait_for("the key-value store is recovered");
    service.wait_until_it_serves();
    // On the same connection, since the card has it.
    let first = client.ask_line("GET by:first").unwrap();
    assert_eq!(first, Value::bytes("2"));
    assert_eq!(client.ask_line("SET by:second 1").unwrap(), Value::ok());
    assert_eq!(client.ask_line("INCR by:first").unwrap(), Value::Number(3));

    // The first comes back as a new process, and is the one that waits now.
    service.start_host();
    service.wait_for_host("another host has this service");
    assert_eq!(client.ask_line("INCR by:second").unwrap(), Value::Number(2));
    drop(second);
    service.wait_for_host("the key-value store is recovered");
    service.wait_until_it_serves();
    let mut client = service.client();
    assert_eq!(
        client.ask_line("MGET by:first by:second").unwrap(),
        Value::Many(vec![Value::bytes("3"), Value::bytes("2"),])
    );
    assert_eq!(client.ask_line("INCR by:second").unwrap(), Value::Number(3));
}

#[test]
fn a_host_without_the_cards_password_is_told_what_may_be_wrong() {
    const PASSWORD: &str = "password = \"open sesame\"\n";
    let mut service = Service::start(Setup { more: PASSWORD, ..Setup::CARD });
    service.kill_host();
    let mut wrong = service.another_host_without(PASSWORD);
    wrong.wait_for("the card has closed the stream before anything was served");
    wrong.wait_for("[kv] password has to be set for both or for none");
    let recoveries = wrong.seen().iter().filter(|line| line.contains("the key-value store is recovered"));
    assert_eq!(recoveries.count(), 1, "{:#?}", wrong.seen());
    // It leaves the card to others meanwhile.
    service.start_host();
    service.wait_until_it_serves();
}
