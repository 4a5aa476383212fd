//! A part's file has the length of a part before anything is written to it, whoever made it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use crate::support;

use ob_kv::store::{Config, Durability, LogOp};
use support::client::{Client, recovered_as, small};
use support::encoded;

fn config() -> Config {
    Config { durability: Durability::Always, ..small() }
}

/// A log of two parts and more, whose files are as long as what was written to them: earlier builds left such.
fn of_an_earlier_build() -> Client {
    let mut client = Client::new(config());
    for number in 0..20 {
        client.says(&format!("set key{number} {}", "v".repeat(3000)), "+OK");
    }
    client.settle();
    client.files.edit(|_| ());
    let parts = client.files.parts();
    assert!(parts.len() > 1 && parts.last().is_some_and(|(_, len)| *len < config().part_len), "{parts:?}");
    client
}

/// What the store asks for now, in short.
fn asked(client: &mut Client) -> Vec<(&'static str, u64)> {
    let asked: Vec<LogOp> = std::iter::from_fn(|| client.store.next_op()).collect();
    let named = asked.iter().map(|op| match op {
        LogOp::Create { part, len, .. } => {
            assert_eq!(*len, config().part_len);
            ("create", *part)
        }
        LogOp::Write { part, .. } => ("write", *part),
        other => panic!("{other:?}"),
    });
    let named = named.collect();
    asked.into_iter().for_each(|op| client.files.submit(op));
    named
}

fn complete(client: &mut Client) {
    while let Some(done) = client.files.complete(&mut client.rng) {
        client.store.completed(done);
    }
}

#[test]
fn a_part_has_its_length_before_it_is_written_to() {
    let mut client = Client::new(config());
    client.send(&encoded(&["set", "k", "v"]));
    assert_eq!(asked(&mut client), [("create", 0)]);
    assert_eq!(asked(&mut client), [], "nothing is written meanwhile");
    complete(&mut client);
    assert_eq!(client.files.parts(), [(0, config().part_len)]);
    assert_eq!(asked(&mut client), [("write", 0)]);
}

#[test]
fn the_last_part_of_an_earlier_build_is_made_longer_and_the_others_stay() {
    let mut client = of_an_earlier_build();
    let before = client.files.parts();
    let last = before.last().unwrap().0;
    for is_first in [true, false] {
        client.store = recovered_as(&mut client, config()).unwrap();
        assert_eq!(client.store.stats().keys, 20);
        client.store.mark_life();
        if is_first {
            assert_eq!(asked(&mut client), [("create", last)]);
            complete(&mut client);
        }
        assert_eq!(asked(&mut client), [("write", last)]);
        complete(&mut client);
        let parts = client.files.parts();
        assert_eq!(parts[..parts.len() - 1], before[..before.len() - 1]);
        assert_eq!(parts.last(), Some(&(last, config().part_len)));
    }
}

#[test]
fn files_behind_one_that_is_to_be_made_longer_come_after_it() {
    let mut client = of_an_earlier_build();
    let (last, len) = client.files.parts().last().copied().unwrap();
    // The next one is there already, and has its length.
    client.files.edit(|files| drop(files.insert(last + 1, vec![0; config().part_len as usize])));
    client.store = recovered_as(&mut client, config()).unwrap();
    client.session = client.store.open(5);
    // The first of two groups goes to the one, and the second, for which that has no room, to the other.
    client.send(&encoded(&["set", "small", "v"]));
    client.send(&encoded(&["set", "large", &"v".repeat((config().part_len - len) as usize)]));
    assert_eq!(asked(&mut client), [("create", last)]);
    complete(&mut client);
    client.settle();
    let answers: Vec<_> = std::iter::from_fn(|| client.store.next_answer()).collect();
    assert_eq!(answers.len(), 2);
    client.store = recovered_as(&mut client, config()).unwrap();
    assert_eq!(client.store.stats().keys, 22);
}
