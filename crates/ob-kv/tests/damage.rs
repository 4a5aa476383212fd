//! Damage in the log, which is told from its end wherever a later group knows better.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use crate::support;

use ob_format::kv::{BLOCK_LEN, GroupHeader};
use ob_kv::store::{Config, Durability, Obstacle, RecoveryError};
use support::client::{Client, recovered_as, small};
use support::ms;

/// A log of several parts, a little of it flushed at a time.
fn filled(durability: Durability) -> Client {
    let mut client = Client::new(Config { durability, garbage_percent: 100, ..small() });
    for number in 0..60 {
        client.says(&format!("set key{number} {}", "v".repeat(3000)), "+OK");
        if number % 7 == 0 {
            client.settle();
        }
    }
    client.settle();
    assert!(client.files.parts().len() >= 3);
    client
}

/// The groups of the log, by their places.
fn groups(client: &Client) -> Vec<(u64, u64, GroupHeader)> {
    let mut groups = Vec::new();
    for (part, len) in client.files.parts() {
        let mut offset = 0;
        while offset < len {
            let Ok(header) = GroupHeader::decode(client.files.bytes(part, offset)) else { break };
            groups.push((part, offset, header));
            offset += header.length as u64;
        }
    }
    groups
}

#[test]
fn damage_is_told_from_the_end_where_a_later_group_knows_better() {
    for durability in [Durability::Always, Durability::EverySecond, Durability::No] {
        let config = || Config { durability, ..small() };
        let groups = groups(&filled(durability));
        let (mut told, mut end) = (0, (0, 0));
        for (part, offset, header) in &groups {
            // A part's end that was too short for the group is where the log cannot be read on, as far as anybody knows.
            let (part_before, end_before) = end;
            let place = if end_before < small().part_len { end } else { (part_before + 1, 0) };
            end = (*part, *offset + header.length as u64);
            let is_known = groups.iter().any(|(_, _, other)| other.durable > header.address);
            // In the header, in the first record, and everything of the first block.
            let damages: [fn(&mut [u8]); 3] =
                [|block| block[8] ^= 1, |block| block[100] ^= 1, |block| block.fill(0)];
            for damage in damages {
                let mut client = filled(durability);
                let at = *offset as usize;
                client.files.edit(|files| damage(&mut files.get_mut(part).unwrap()[at..at + BLOCK_LEN]));
                let recovered = recovered_as(&mut client, config());
                if is_known {
                    let damaged = RecoveryError::Damaged { part: place.0, offset: place.1 };
                    assert_eq!(recovered.err(), Some(damaged), "{durability:?}");
                } else {
                    let keys = recovered.unwrap().stats().keys;
                    assert!(keys < 60, "{durability:?}: {keys}");
                }
            }
            told += usize::from(is_known);
        }
        let least = match durability {
            Durability::Always => groups.len() - 2,
            Durability::EverySecond => groups.len() - 10,
            // Of such a log only the begin of each life is known to be durable.
            Durability::No => 1,
        };
        assert!(told >= least, "{durability:?}: {told} of {}", groups.len());
    }
}

#[test]
fn a_part_that_was_cut_off_is_damaged_and_the_last_one_ends_there() {
    let mut client = filled(Durability::Always);
    client.files.edit(|files| files.get_mut(&1).unwrap().truncate(5 * BLOCK_LEN));
    let config = || Config { durability: Durability::Always, ..small() };
    let error = recovered_as(&mut client, config()).err().unwrap();
    assert!(matches!(error, RecoveryError::Damaged { part: 1, .. }), "{error}");
    // What the error's hint says brings back what lies before.
    let RecoveryError::Damaged { offset, .. } = error else { unreachable!() };
    client.files.edit(|files| {
        files.retain(|part, _| *part <= 1);
        files.get_mut(&1).unwrap().truncate(offset as usize);
    });
    client.store = recovered_as(&mut client, config()).unwrap();
    let keys = client.store.stats().keys;
    assert!(keys > 10 && keys < 50, "{keys}");
    client.says("set more v", "+OK");
    client.settle();
    client.store = recovered_as(&mut client, config()).unwrap();
    client.says("dbsize", &format!(":{}", keys + 1));
}

#[test]
fn an_empty_log_is_no_damage() {
    let mut client = Client::new(small());
    client.says("set k v", "+OK");
    // Its first group was torn before anything else was written.
    client.settle();
    client.files.edit(|files| files.get_mut(&0).unwrap()[8] ^= 1);
    client.store = recovered_as(&mut client, small()).unwrap();
    client.says("dbsize", ":0");
    client.says("set k w", "+OK");
    client.settle();
    client.store = recovered_as(&mut client, small()).unwrap();
    client.says("get k", "$1\r\nw");
}

#[test]
fn blocks_that_cannot_be_read_do_not_hide_damage() {
    let config = || Config { durability: Durability::Always, part_len: 8 << 20, ..small() };
    let block = BLOCK_LEN as u64;
    for (bad, is_broken) in [(1, false), (3, false), (200, false), (1000, true)] {
        let mut client = Client::new(config());
        for number in 0..60 {
            client.says(&format!("set key{number} {}", "v".repeat(100_000)), "+OK");
        }
        client.settle();
        let groups = groups(&client);
        let (_, offset, _) = groups[3];
        // Beyond what is read before the damage is met, and so that only groups behind are left to tell of it.
        let from = 1 << 20;
        client.files.edit(|files| {
            for (_, offset, _) in groups.iter().skip(3).filter(|(_, offset, _)| *offset < from) {
                files.get_mut(&0).unwrap()[*offset as usize + 8] ^= 1;
            }
        });
        client.files.unreadable.push((0, from..from + bad * block));
        let error = recovered_as(&mut client, config()).err();
        if is_broken {
            assert!(matches!(error, Some(RecoveryError::Unreadable { part: 0, .. })), "{error:?}");
        } else {
            assert_eq!(error, Some(RecoveryError::Damaged { part: 0, offset }), "{bad}");
        }
        // What lies before a place that cannot be read at the end is there.
        client.files.edit(|files| files.get_mut(&0).unwrap()[offset as usize..].fill(0));
        let keys = recovered_as(&mut client, config()).map(|store| store.stats().keys);
        assert_eq!(keys.ok(), (!is_broken).then_some(3), "{bad}");
    }
}

/// A log whose first part has one record that is current, and many that are not.
fn outdated(client: &mut Client) {
    client.says("set kept v", "+OK");
    for number in 0..200 {
        client.says(&format!("set key{} {}", number % 5, "v".repeat(3000)), "+OK");
    }
    client.settle();
}

#[test]
fn compaction_goes_on_when_the_device_can_read_again() {
    let mut client = Client::new(small());
    client.files.unreadable.push((0, 0..u64::MAX));
    outdated(&mut client);
    for _ in 0..3 {
        let before = client.store.stats();
        client.settle();
        let stats = client.store.stats();
        assert_eq!((stats.parts_removed, stats.parts_damaged), (0, 0));
        assert_eq!(stats.sweeps_failed, before.sweeps_failed + 1, "it is asked again, and not at once");
        assert_eq!(client.store.obstacle(), Some(Obstacle::Unreadable));
        assert!(client.store.next_due().is_some_and(|due| ms(due) <= client.now + 500));
        assert!(client.store.has_room(), "clients do not wait for it");
    }
    client.files.unreadable.clear();
    // Copies are written when the next group is due, and then made durable.
    (0..3).for_each(|_| client.settle());
    assert!(client.store.stats().parts_removed > 0);
    assert_eq!(client.store.obstacle(), None);
    client.says("get kept", "$1\r\nv");
}

#[test]
fn compaction_stops_at_damage() {
    let mut client = Client::new(small());
    client.files.unreadable.push((0, 0..u64::MAX));
    outdated(&mut client);
    client.files.edit(|files| files.get_mut(&0).unwrap()[8] ^= 1);
    client.files.unreadable.clear();
    for _ in 0..2 {
        client.settle();
        let stats = client.store.stats();
        assert_eq!((stats.parts_removed, stats.parts_damaged), (0, 1));
        assert_eq!(client.store.obstacle(), Some(Obstacle::Damaged));
    }
}
