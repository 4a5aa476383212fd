//! Answers that do not wait for the device (`everysec`, `no`): what the death of one process may take, and what it may not.

use super::support::kv::{Service, Setup};
use super::support::resp::{Client, Value, request};

/// Changes before the death that must be there afterwards, and changes of which an end may be missing.
const KEPT: usize = 2000;
const AT_RISK: usize = 3000;
const KEYS: usize = 300;
/// Requests that are under way at once.
const WINDOW: usize = 50;

/// The tests, for each way in which answers do not wait.
macro_rules! with_less_than_always {
    ($($name:ident)*) => {
        mod everysec {
            $(#[test] fn $name() { super::$name("everysec"); })*
        }
        mod no {
            $(#[test] fn $name() { super::$name("no"); })*
        }
    };
}

with_less_than_always! {
    a_card_that_dies_takes_nothing_along
    a_host_that_dies_takes_an_end_of_the_log_at_most
    a_host_that_does_it_all_takes_an_end_of_the_log_at_most
}

/// Change by change: the key that is set, or removed, and to what.
fn change(number: usize) -> (String, Option<String>) {
    let key = format!("key:{}", number * 7919 % KEYS);
    let value = (!number.is_multiple_of(11)).then(|| format!("{number},").repeat(1 + number % 200));
    (key, value)
}

/// One client makes changes in their order; how many of them were answered.
fn make_changes(client: &mut Client, numbers: std::ops::Range<usize>) -> usize {
    let mut answered = numbers.start;
    while answered < numbers.end {
        let window = answered..numbers.end.min(answered + WINDOW);
        let mut pipeline = Vec::new();
        for number in window.clone() {
            match change(number) {
                (key, Some(value)) => pipeline.extend(request(&["SET", &key, &value])),
                (key, None) => pipeline.extend(request(&["DEL", &key])),
            }
        }
        if client.send(&pipeline).is_err() {
            break;
        }
        for _ in window {
            match client.receive() {
                Ok(Value::Status(_) | Value::Number(_)) => answered += 1,
                _ => return answered,
            }
        }
    }
    answered
}

/// What there is after so many changes.
fn expected(changes: usize) -> Vec<Value> {
    let mut values = vec![Value::Nothing; KEYS];
    for number in 0..changes {
        let (_, value) = change(number);
        values[number * 7919 % KEYS] = value.map_or(Value::Nothing, Value::bytes);
    }
    values
}

fn found(service: &Service) -> Vec<Value> {
    let mut client = service.client();
    (0..KEYS).map(|key| client.ask_line(&format!("GET key:{key}")).unwrap()).collect()
}

/// How many changes there are in what was found; nothing if no number of them explains it.
fn changes_in(found: &[Value]) -> Option<usize> {
    let mut values = expected(0);
    (0..=KEPT + AT_RISK).find(|&changes| {
        if let Some(number) = changes.checked_sub(1) {
            let (_, value) = change(number);
            values[number * 7919 % KEYS] = value.map_or(Value::Nothing, Value::bytes);
        }
        // Removing what is not there leaves no trace; then the first number that explains it will do.
        values == found
    })
}

fn a_card_that_dies_takes_nothing_along(durability: &'static str) {
    let mut service = Service::start(Setup { durability, ..Setup::CARD });
    assert_eq!(make_changes(&mut service.client(), 0..KEPT), KEPT);
    // At once: some of it has not left the host yet.
    service.kill_card();
    service.start_card();
    service.wait_until_it_serves();
    assert!(found(&service) == expected(KEPT), "something that was answered is gone");
    // And with requests under way.
    let mut client = service.client();
    let answered = std::thread::scope(|scope| {
        let changes = scope.spawn(|| make_changes(&mut client, KEPT..KEPT + AT_RISK));
        service.kill_card();
        changes.join().unwrap()
    });
    service.start_card();
    service.wait_until_it_serves();
    let there = changes_in(&found(&service)).expect("changes in their order");
    assert!(is_at_least(there, answered), "{answered} changes were answered, {there} are there");
}

fn a_host_that_dies_takes_an_end_of_the_log_at_most(durability: &'static str) {
    an_end_at_most(Setup { durability, ..Setup::CARD });
}

fn a_host_that_does_it_all_takes_an_end_of_the_log_at_most(durability: &'static str) {
    an_end_at_most(Setup { durability, ..Setup::HOST });
}

fn an_end_at_most(setup: Setup) {
    let mut service = Service::start(setup);
    assert_eq!(make_changes(&mut service.client(), 0..KEPT), KEPT);
    service.wait_until_settled();
    if setup.placement == "host" {
        // The card is another process, and no affair of such a store.
        let mut client = service.client();
        service.kill_card();
        assert_eq!(client.ask_line("GET key:1").unwrap(), expected(KEPT)[1]);
        service.start_card();
    }
    // The first change that was answered later comes before the death, so that something can be lost.
    let mut client = service.client();
    let answered = make_changes(&mut client, KEPT..KEPT + AT_RISK);
    assert_eq!(answered, KEPT + AT_RISK);
    service.kill_host();
    service.start_host();
    service.wait_until_it_serves();
    let there = changes_in(&found(&service)).expect("a begin of the changes, in their order");
    println!("{} of {AT_RISK} changes were lost", answered.saturating_sub(there));
    assert!(is_at_least(there, KEPT), "{there} changes are there, and {KEPT} were settled");
    // What is there stays there: nothing that was cut off comes back.
    let before = found(&service);
    service.kill_host();
    service.start_host();
    service.wait_until_it_serves();
    assert!(found(&service) == before, "a second death has changed what there is");
}

/// Whether there are so many changes, where those at the end may have left no trace.
fn is_at_least(there: usize, wanted: usize) -> bool {
    there >= wanted || expected(there) == expected(wanted)
}
