//! Commands as a client sees them: replies and errors in Redis' words, connections, failures, limits, wild requests.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use crate::support;

use std::collections::BTreeSet;

use ob_kv::resp::{Cut, Cutter, Limits, Request};
use ob_kv::store::{Config, Durability, LogFailure, RecoveryError};
use ob_sim::Rng;
use proptest::prelude::*;
use support::client::{Client, recovered, recovered_as, small};
use support::{at, encoded, ms};

#[test]
fn strings_are_set_and_got() {
    let mut client = Client::new(small());
    client.says("get k", "$-1");
    client.says("set k v", "+OK");
    client.says("get k", "$1\r\nv");
    client.says("set k w nx", "$-1");
    client.says("set k w xx get", "$1\r\nv");
    client.says("set none w xx", "$-1");
    client.says("set none w nx get", "$-1");
    client.says("getset k x", "$1\r\nw");
    client.says("setnx k y", ":0");
    client.says("setnx k2 y", ":1");
    client.says("mget k missing k2", "*3\r\n$1\r\nx\r\n$-1\r\n$1\r\ny");
    client.says("mset a 1 b 2 a 3", "+OK");
    client.says("mget a b", "*2\r\n$1\r\n3\r\n$1\r\n2");
    client.says("msetnx a 9 c 9", ":0");
    client.says("msetnx c 9 d 9", ":1");
    client.says("append c 1", ":2");
    client.says("append new 1", ":1");
    client.says("strlen c", ":2");
    client.says("strlen missing", ":0");
    client.says("set s 'Hello World'", "+OK");
    client.says("getrange s 0 4", "$5\r\nHello");
    client.says("getrange s -5 -1", "$5\r\nWorld");
    client.says("getrange s 3 1", "$0\r\n");
    client.says("getrange s 50 100", "$0\r\n");
    client.says("getrange s -100 0", "$1\r\nH");
    client.says("getrange missing 0 -1", "$0\r\n");
    client.says("getdel s", "$11\r\nHello World");
    client.says("getdel s", "$-1");
    client.says("type a", "+string");
    client.says("type s", "+none");
    client.says("exists a a b s", ":3");
    client.says("touch a s", ":1");
    client.says("del a a b s", ":2");
    client.says("unlink c", ":1");
    client.says("dbsize", ":5");
    client.says("flushdb sync", "+OK");
    client.says("dbsize", ":0");
    client.says("get k", "$-1");
    client.says("set '' v", "-ERR empty keys are not supported");
}

#[test]
fn of_a_key_that_a_request_names_twice_there_is_one_record() {
    let appended = |line: &str| {
        let mut client = Client::new(small());
        client.ask(line);
        client.says("get a", "$2\r\n22");
        client.store.stats().log_unsettled_len
    };
    let once = appended("mset b 3 a 22");
    assert_eq!(["mset a 1 b 3 a 22", "msetnx a 1 a 333 b 3 a 22"].map(appended), [once; 2]);
}

#[test]
fn numbers_are_counted() {
    let mut client = Client::new(small());
    client.says("incr n", ":1");
    client.says("incrby n 41", ":42");
    client.says("decr n", ":41");
    client.says("decrby n 51", ":-10");
    client.says("get n", "$3\r\n-10");
    client.says("set n 9223372036854775807", "+OK");
    client.says("incr n", "-ERR increment or decrement would overflow");
    client.says("decrby n -9223372036854775808", "-ERR decrement would overflow");
    client.says("set n ' 1'", "+OK");
    client.says("incr n", "-ERR value is not an integer or out of range");
    client.says("incrby m x", "-ERR value is not an integer or out of range");
}

#[test]
fn keys_expire() {
    let mut client = Client::new(small());
    client.says("set k v px 100", "+OK");
    client.says("pttl k", ":100");
    client.says("ttl k", ":0");
    client.says("pexpiretime k", ":1000100");
    client.says("set k w keepttl", "+OK");
    client.says("pttl k", ":100");
    client.says("append k w", ":2");
    client.says("pttl k", ":100");
    // Its last millisecond is its own: the one in which it was set had begun already.
    client.now += 100;
    client.says("get k", "$2\r\nww");
    client.says("pttl k", ":0");
    client.says("scan 0", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\nk");
    client.now += 1;
    client.says("get k", "$-1");
    client.says("dbsize", ":0");
    client.says("ttl k", ":-2");
    client.says("setex k 10 v", "+OK");
    client.says("ttl k", ":10");
    client.says("persist k", ":1");
    client.says("persist k", ":0");
    client.says("ttl k", ":-1");
    client.says("psetex k 1500 v", "+OK");
    client.says("ttl k", ":2");
    client.says("expire k 100 nx", ":0");
    client.says("expire k 1 gt", ":0");
    client.says("expire k 100 gt", ":1");
    client.says("pexpire k 5000 lt", ":1");
    client.says("ttl k", ":5");
    client.says("expireat k 2000", ":1");
    client.says("expiretime k", ":2000");
    client.says("expire missing 100", ":0");
    client.says("expire k -1", ":1");
    client.says("exists k", ":0");
    client.says("set k v exat 1", "+OK");
    client.says("get k", "$-1");
    client.says("set k v ex 0", "-ERR invalid expire time in 'set' command");
    client.says("setex k 0 v", "-ERR invalid expire time in 'setex' command");
    client.says("expire k 9223372036854775807", "-ERR invalid expire time in 'expire' command");
    client.says("expire k 1 foo", "-ERR Unsupported option foo");
    client.says("set k v ex 1 px 1", "-ERR syntax error");
    client.says("set k v foo", "-ERR syntax error");
    // A clock that is set back stands still.
    client.says("set k v px 10", "+OK");
    client.now += 11;
    client.says("get k", "$-1");
    client.says("set k v px 10", "+OK");
    client.now -= 1000;
    client.says("pttl k", ":10");
}

#[test]
fn keys_that_nobody_looks_at_expire_too() {
    let mut client = Client::new(small());
    for number in 0..300 {
        client.says(&format!("set k{number} v px {}", 1000 + number), "+OK");
    }
    client.says("set k0 v", "+OK");
    client.says("pexpire k1 60000", ":1");
    client.says("dbsize", ":300");
    client.now += 3000;
    assert!(client.store.next_due().map(ms).unwrap() <= client.now);
    client.store.tick(at(client.now));
    client.says("dbsize", ":2");
    client.settle();
    client.says("get k0", "$1\r\nv");
    client.says("ttl k1", ":47");
}

/// Lets time pass from one thing that is due to the next, as a driver would that nobody else wakes; for so long at most.
fn idle(client: &mut Client, for_ms: u64) {
    let end = client.now + for_ms;
    while let Some(due) = client.store.next_due().map(ms).filter(|due| *due <= end) {
        client.now = client.now.max(due);
        client.store.tick(at(client.now));
        client.submit();
        while !client.files.is_idle() {
            client.step();
            client.submit();
        }
    }
    client.now = end;
    client.store.tick(at(end));
}

#[test]
fn keys_expire_though_the_list_of_them_is_full() {
    for memory_len in [0, 1 << 20] {
        let mut client = Client::new(Config { index_len_max: 60_000, memory_len, ..small() });
        for number in 0..1500 {
            client.says(&format!("set key{number} v px {}", 2000 + number), "+OK");
        }
        for number in 0..100 {
            client.says(&format!("set stays{number} v px 1000000"), "+OK");
            client.says(&format!("set forever{number} v"), "+OK");
        }
        assert!(client.store.stats().expiries_unlisted > 500);
        // The same after a restart, which lists what it finds.
        client.settle();
        let config = Config { index_len_max: 60_000, memory_len, ..small() };
        client.store = recovered_as(&mut client, config).unwrap();
        assert!(client.store.stats().keys > 1000);
        idle(&mut client, 60_000);
        assert_eq!(client.store.stats().keys, 200);
        client.says("get stays7", "$1\r\nv");
        // Now the list has room for all of them, and there is nothing to look for any more.
        let due = client.store.next_due().map(ms).unwrap();
        assert!(due > client.now + 500_000, "{} ms", due - client.now);
        idle(&mut client, 1_000_000);
        client.says("dbsize", ":100");
    }
}

#[test]
fn what_a_request_copies_while_it_waits_is_counted() {
    let mut client = Client::new(Config { memory_len: 0, ..small() });
    client.says("set cold v", "+OK");
    client.settle();
    // These are in memory, in groups that are not written yet.
    let value = "v".repeat(10_000);
    let warm: Vec<String> = (0..50).map(|number| format!("warm{number}")).collect();
    for key in &warm {
        client.send(&encoded(&["set", key, &value]));
        assert_eq!(client.store.next_answer().unwrap().bytes, b"+OK\r\n");
    }
    let mut request = vec!["mget"; 1];
    request.extend(warm.iter().map(String::as_str));
    request.push("cold");
    client.send(&encoded(&request));
    let waiting = client.store.stats().waiting_len;
    assert!(waiting > 50 * value.len(), "{waiting} bytes wait");
    // There is one copy of a record, however often it is named.
    let mut request = vec!["mget"; 1];
    request.extend(["warm0"; 50]);
    request.push("cold");
    client.send(&encoded(&request));
    let more = client.store.stats().waiting_len - waiting;
    assert!(more > value.len() && more < 2 * value.len(), "{more} bytes more wait");
}

#[test]
fn values_are_read_one_by_one_where_there_is_memory_for_one() {
    let mut client = Client::new(Config { waiting_len_max: 1000, memory_len: 0, ..small() });
    let value = "v".repeat(20_000);
    for number in 0..8 {
        client.says(&format!("set key{number} {value}"), "+OK");
    }
    client.settle();
    let (mut asked, mut answered) = (0, 0);
    while answered < 8 {
        if client.store.has_room() && asked < 8 {
            client.send(&encoded(&["get", &format!("key{asked}")]));
            asked += 1;
        } else if let Some(answer) = client.store.next_answer() {
            assert!(answer.bytes.len() > 20_000);
            answered += 1;
        } else {
            client.step();
        }
        assert!(client.store.stats().waiting_len < 60_000 && asked <= answered + 1);
    }
}

#[test]
fn keys_that_never_expire_do_not_keep_others() {
    let mut client = Client::new(Config { index_len_max: 1 << 20, memory_len: 0, ..small() });
    for number in 0..20_000 {
        client.says(&format!("set forever{number} v"), "+OK");
    }
    // They fill the list, and those behind them find no place in it.
    let mut number = 0;
    while client.store.stats().expiries_unlisted == 0 {
        client.says(&format!("set key{number} v px 5000"), "+OK");
        number += 1;
    }
    for number in 0..100 {
        client.says(&format!("set soon{number} v px 50000"), "+OK");
    }
    idle(&mut client, 55_000);
    assert_eq!(client.store.stats().keys, 20_000);
}

/// Keys that a refill attests, to the end of it, with a driver that sleeps whenever nothing is due.
fn refilled(client: &mut Client, mut meanwhile: impl FnMut(&mut Client)) -> BTreeSet<Vec<u8>> {
    let mut attested = BTreeSet::new();
    client.store.begin_refill(client.stamp + 1);
    for turn in 0..100_000 {
        meanwhile(client);
        client.submit();
        let completion = client.files.complete(&mut client.rng);
        let has_moved = completion.is_some();
        completion.into_iter().for_each(|completion| client.store.completed(completion));
        if has_moved && turn % 1000 != 999 {
            continue;
        }
        // They leave late, so that the walk has to wait for them.
        attested.extend(std::iter::from_fn(|| client.store.next_attestation()).map(|(_, found)| found.key));
        if !client.store.is_refilling() {
            return attested;
        }
        let is_due = client.store.next_due().map(ms).is_some_and(|due| due <= client.now);
        assert!(has_moved || is_due, "it sleeps, and the walk is not over");
    }
    panic!("it never comes to an end");
}

#[test]
fn a_refill_comes_to_its_end_without_a_pause() {
    let keys = |numbers: std::ops::Range<u32>| -> BTreeSet<Vec<u8>> {
        numbers.map(|number| format!("key{number}").into_bytes()).collect()
    };
    let mut client = filled();
    assert_eq!(refilled(&mut client, |_| ()), keys(0..50));
    // More of them than may wait.
    for number in 0..10_000 {
        client.says(&format!("set key{number} v"), "+OK");
    }
    client.settle();
    assert_eq!(refilled(&mut client, |_| ()), keys(0..10_000));
    // While the log grows, everything is met that was there before.
    for seed in 0..100 {
        let mut client = filled();
        client.rng = Rng::new(seed);
        let (mut number, mut rng) = (0, Rng::new(seed));
        let attested = refilled(&mut client, |client| {
            number += 1;
            if number < 100 && rng.one_in(2) {
                client.send(&encoded(&[b"set", &format!("new{number}").into_bytes()[..], &[b'v'; 900]]));
                while client.store.next_answer().is_some() {}
            }
            client.now += rng.below(4);
            client.store.tick(at(client.now));
        });
        assert!(attested.is_superset(&keys(0..50)), "seed {seed}: {} keys", attested.len());
    }
    // And a log that grows for ever does not keep it from its end.
    let mut client = filled();
    let mut number = 0;
    let attested = refilled(&mut client, |client| {
        number += 1;
        client.says(&format!("set more{number} {}", "v".repeat(900)), "+OK");
        client.now += 5;
        client.store.tick(at(client.now));
    });
    assert!(attested.is_superset(&keys(0..50)));
    // What cannot be read takes its part along, and no more.
    let mut client = filled();
    client.files.edit(|files| files.get_mut(&0).unwrap()[100] ^= 1);
    let attested = refilled(&mut client, |_| ());
    assert!(attested.len() > 20 && attested.contains(&b"key49"[..]), "{}", attested.len());
}

#[test]
fn mistakes_are_told_in_the_words_of_redis() {
    let mut client = Client::new(small());
    client.says("get", "-ERR wrong number of arguments for 'get' command");
    client.says("mset a 1 b", "-ERR wrong number of arguments for 'mset' command");
    client.says("lpush a b", "-ERR unknown command 'lpush', with args beginning with: 'a' 'b' ");
    client.says("scan x", "-ERR invalid cursor");
    client.says("scan 0 count 0", "-ERR syntax error");
    client.says("flushall now", "-ERR syntax error");
    client.says("select 1", "-ERR DB index is out of range");
    client.says("select 0", "+OK");
    client.says("client foo", "-ERR unknown subcommand 'foo'. Try CLIENT HELP.");
    client.says("ping a b", "-ERR wrong number of arguments for 'ping' command");
    let reply = client.reply(&encoded(&[&b"no\r\nsuch"[..], &[0xff; 300], b"x"]));
    assert!(reply.starts_with(b"-ERR unknown command 'no  such'") && reply.len() < 600);
    assert_eq!(reply.iter().filter(|byte| **byte == b'\n').count(), 1);
}

#[test]
fn connections_are_authenticated_greeted_and_named() {
    let mut client = Client::new(Config { password: Some("secret".to_owned()), ..small() });
    assert_eq!(client.session.standing(), 0);
    client.says("get k", "-NOAUTH Authentication required.");
    client.says("hello 3", "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time");
    client.says("auth wrong", "-WRONGPASS invalid username-password pair or user is disabled.");
    client.says("auth other secret", "-WRONGPASS invalid username-password pair or user is disabled.");
    client.says("auth a b c", "-ERR syntax error");
    client.says("auth secret", "+OK");
    assert_eq!(client.session.standing(), 2);
    client.says("hello 4", "-NOPROTO unsupported protocol version");
    assert!(client.ask("hello 3 auth default secret setname me").starts_with("%7\r\n$6\r\nserver\r\n"));
    assert_eq!(client.session.standing(), 3);
    client.says("get k", "_");
    client.says("client getname", "$2\r\nme");
    client.says(
        "client setname 'a b'",
        "-ERR Client names cannot contain spaces, newlines or special characters.",
    );
    client.says("client setinfo lib-name test", "+OK");
    client.says("client id", ":5");
    assert!(client.ask("client list").contains("id=5 addr= name=me "));
    client.says("reset", "+RESET");
    assert_eq!(client.session.standing(), 0);
    client.says("auth default secret", "+OK");
    client.says("ping", "+PONG");
    client.says("ping hi", "$2\r\nhi");
    client.says("echo hi", "$2\r\nhi");
    client.send(&encoded(&["quit"]));
    assert!(client.store.next_answer().unwrap().is_last);
    let mut open = Client::new(small());
    let text = "-ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?";
    open.says("auth x", text);
}

#[test]
fn nothing_of_a_transaction_is_applied() {
    let mut client = Client::new(small());
    client.says("set k v", "+OK");
    client.says("exec", "-ERR EXEC without MULTI");
    client.says("discard", "-ERR DISCARD without MULTI");
    let ends = [
        ("exec", "-EXECABORT Transaction discarded because of previous errors."),
        ("discard", "+OK"),
        ("reset", "+RESET"),
    ];
    for (end, told) in ends {
        assert_eq!(client.session.standing(), 2);
        client.says("multi", "+OK");
        assert_eq!(client.session.standing(), 0, "the card answers nothing of it either");
        for line in ["incr n", "set k w", "get k", "hello 3", "ping"] {
            client.says(line, "-ERR transactions are not supported");
        }
        assert!(client.ask("watch k").starts_with("-ERR unknown command 'watch'"));
        client.says("multi", "-ERR MULTI calls can not be nested");
        client.says("flushall", "-ERR transactions are not supported");
        client.says(end, told);
    }
    client.says("mget k n", "*2\r\n$1\r\nv\r\n$-1");
    // Nobody who has not said who it is begins one.
    let mut client = Client::new(Config { password: Some("secret".to_owned()), ..small() });
    client.says("multi", "-NOAUTH Authentication required.");
    client.says("auth secret", "+OK");
    client.says("set k v", "+OK");
}

#[test]
fn tools_get_what_they_ask_for_first() {
    let mut client = Client::new(small());
    client.says("config get save", "*2\r\n$4\r\nsave\r\n$0\r\n");
    client.says("config get appendon*", "*2\r\n$10\r\nappendonly\r\n$3\r\nyes");
    client.says("config get nothing", "*0");
    assert!(client.ask("config set maxmemory 1").starts_with("-ERR Unknown option"));
    client.says("command docs", "*0");
    assert!(client.ask("command").starts_with("*49\r\n*10\r\n$3\r\nget\r\n:2\r\n"));
    assert!(client.ask("command info get nope").ends_with("$-1\r\n"));
    client.says("set k v px 1000", "+OK");
    let info = client.ask("info");
    assert!(info.contains("\r\n# Keyspace\r\ndb0:keys=1,expires=1,avg_ttl=0\r\n"), "{info}");
    assert!(info.contains("redis_version:7."));
    assert!(!client.ask("info keyspace").contains("redis_version"));
    client.says("get k", "$1\r\nv");
    assert!(client.ask("info stats").contains("keyspace_hits:1\r\n"));
    client.says("config resetstat", "+OK");
    assert!(client.ask("info stats").contains("keyspace_hits:0\r\n"));
}

#[test]
fn a_scan_matches_patterns() {
    let mut client = Client::new(small());
    for number in 0..50 {
        client.says(&format!("set user:{number} v"), "+OK");
        client.says(&format!("set other:{number} v"), "+OK");
    }
    client.settle();
    let reply = client.ask("scan 0 match user:1* count 1000");
    assert!(reply.starts_with("*2\r\n$1\r\n0\r\n*11\r\n"), "{reply}");
    assert!(client.ask("scan 0 type list count 1000").ends_with("*0\r\n"));
}

#[test]
fn a_full_index_takes_no_new_keys_and_goes_on_with_the_old_ones() {
    let mut client = Client::new(Config { index_len_max: 3000, ..small() });
    client.says("set first v", "+OK");
    let mut count = 1;
    while client.ask(&format!("set key{count} v")) == "+OK\r\n" {
        count += 1;
        assert!(count < 1000);
    }
    let refused = format!("key{count}");
    let error = "-OOM command not allowed when used memory > 'maxmemory'.";
    client.says(&format!("set {refused} v"), error);
    client.says(&format!("incr {refused}"), error);
    client.says("set first w", "+OK");
    client.says("get first", "$1\r\nw");
    // Where keys have gone there is room for others.
    for number in 1..count {
        client.says(&format!("del key{number}"), ":1");
    }
    client.says(&format!("set {refused} v"), "+OK");
}

#[test]
fn a_full_log_takes_no_more_until_something_is_removed() {
    let mut client = Client::new(Config { parts_max: 6, ..small() });
    let value = "v".repeat(1000);
    let mut count = 0;
    while client.ask(&format!("set key{count} {value}")) == "+OK\r\n" {
        client.step();
        count += 1;
        assert!(count < 1000);
    }
    client.says("set more v", "-OOM command not allowed when the log has no space left.");
    for number in 0..count {
        client.says(&format!("get key{number}"), &format!("$1000\r\n{value}"));
    }
    for number in 0..count - 5 {
        client.says(&format!("del key{number}"), ":1");
    }
    client.settle();
    client.says("set more v", "+OK");
    for number in count - 5..count {
        client.says(&format!("get key{number}"), &format!("$1000\r\n{value}"));
    }
}

#[test]
fn long_values_are_kept_and_longer_ones_refused() {
    let mut client = Client::new(Config { value_len_max: 40_000, ..small() });
    let value = "v".repeat(40_000);
    client.says(&format!("set k {value}"), "+OK");
    client.settle();
    client.says("set other v", "+OK");
    client.settle();
    client.says("get k", &format!("$40000\r\n{value}"));
    client.says("append k v", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    client.says(&format!("set k {value}v"), "-ERR string exceeds maximum allowed size (proto-max-bulk-len)");
    client.says(&format!("mset a {value} b {value}"), "-ERR request exceeds a part of the log");
    client.says("exists a b k", ":1");
    let long_key = "k".repeat(70_000);
    client.says(&format!("get {long_key}"), "$-1");
    client.says(&format!("set {long_key} v"), "-ERR key exceeds maximum allowed size");
}

#[test]
fn a_key_named_many_times_is_not_read_many_times() {
    let mut client = Client::new(Config { value_len_max: 40_000, ..small() });
    client.says(&format!("set k {}", "v".repeat(40_000)), "+OK");
    client.says("set small v", "+OK");
    for _ in 0..2 {
        let many = " k".repeat(10_000);
        client.says(&format!("mget {many}"), "-ERR reply exceeds maximum allowed size");
        client.says(&format!("exists {many}"), ":10000");
        let many = " small".repeat(10_000);
        assert_eq!(client.ask(&format!("mget {many}")).len(), 8 + 7 * 10_000);
        assert!(client.ask("scan 0").contains("small"));
        client.settle();
        assert_eq!(client.store.stats().waiting_len, 0);
    }
    client.says(
        &format!("client setname {}", "n".repeat(2000)),
        "-ERR Client names cannot contain spaces, newlines or special characters.",
    );
}

#[test]
fn a_log_that_fails_is_never_lied_about() {
    for durability in [Durability::Always, Durability::EverySecond] {
        let mut client = Client::new(Config { durability, ..small() });
        client.says("set k v", "+OK");
        client.settle();
        client.files.failure = Some(LogFailure::Device);
        client.send(&encoded(&["set", "k", "w"]));
        client.settle();
        let answer = client.store.next_answer().unwrap().bytes;
        let error = "-MISCONF Errors writing to the log: the log's device failed";
        let is_always = durability == Durability::Always;
        // It was promised in the one case, and only told in the other.
        assert_eq!(
            answer,
            if is_always { format!("{error}\r\n") } else { "+OK\r\n".to_owned() }.into_bytes()
        );
        client.says("set k x", error);
        client.says("get k", if is_always { error } else { "$1\r\nw" });
        client.says("ping", "+PONG");
        assert_eq!(client.store.failure(), Some(LogFailure::Device));
        assert!(client.store.has_room(), "or nobody is told");
    }
}

#[test]
fn a_read_that_fails_is_told() {
    let mut client = Client::new(Config { memory_len: 0, ..small() });
    client.says("set k 1", "+OK");
    client.settle();
    client.says("set other 1", "+OK");
    client.settle();
    client.files.failure = Some(LogFailure::Device);
    client.says("get k", "-ERR a record could not be read: the log's device failed");
    client.says("incr k", "-ERR a record could not be read: the log's device failed");
    client.files.failure = None;
    client.says("incr k", ":2");
}

/// A store of three parts at least, settled.
fn filled() -> Client {
    let mut client = Client::new(small());
    let value = "v".repeat(3000);
    for number in 0..50 {
        client.says(&format!("set key{number} {value}"), "+OK");
    }
    client.settle();
    assert!(client.files.parts().len() >= 3);
    client
}

#[test]
fn a_new_life_knows_the_keys_and_stamps_of_the_last() {
    let mut client = filled();
    let (stamp, before) = (client.stamp, client.store.stats());
    client.store = recovered(&mut client).unwrap();
    assert_eq!((client.store.stamp_max(), client.store.stats().keys), (stamp, 50));
    assert_eq!(client.store.stats().log_live_len, before.log_live_len);
    for number in 0..50 {
        client.says(&format!("strlen key{number}"), ":3000");
    }
    client.says("set more v", "+OK");
    client.settle();
    client.store = recovered(&mut client).unwrap();
    client.says("dbsize", ":51");
}

#[test]
fn a_log_keeps_the_length_of_parts_that_it_was_made_with() {
    let mut client = filled();
    let (made_with, keys) = (small().part_len, client.store.stats().keys);
    for part_len in [made_with / 2, made_with * 4] {
        client.store = recovered_as(&mut client, Config { part_len, ..small() }).unwrap();
        assert_eq!(client.store.stats().keys, keys);
        let before = client.files.parts().last().copied();
        while client.files.parts().last().copied() == before {
            client.says(&format!("set key1 {}", "changed".repeat(1000)), "+OK");
            client.settle();
        }
        assert!(client.files.parts().iter().all(|(_, len)| *len == made_with), "{:?}", client.files.parts());
    }
}

#[test]
fn a_log_that_has_lost_what_was_durable_is_not_taken_for_a_smaller_one() {
    let mut client = filled();
    client.files.edit(|files| drop(files.remove(&1)));
    assert_eq!(recovered(&mut client).err(), Some(RecoveryError::Missing { part: 1 }));
    // Without its first part it looks like one that was compacted, and those begin well.
    let mut client = filled();
    client.files.edit(|files| {
        files.remove(&0);
        files.get_mut(&1).unwrap()[8] ^= 1;
    });
    assert_eq!(recovered(&mut client).err(), Some(RecoveryError::Damaged { part: 1, offset: 0 }));
    let mut client = filled();
    client.files.edit(|files| files.get_mut(&0).unwrap()[4] = 4);
    let error = recovered(&mut client).err().unwrap();
    assert_eq!(
        error.to_string(),
        "part 0 of the log: the format's version is 4, and this outboard knows versions 2 and 3"
    );
    // Nor is what a later build has written behind it taken for the end.
    let mut client = filled();
    client.files.edit(|files| files.get_mut(&1).unwrap()[4] = 4);
    assert!(matches!(recovered(&mut client).err(), Some(RecoveryError::Version { part: 1, .. })));
    let mut client = filled();
    client.files.failure = Some(LogFailure::Device);
    let failure = LogFailure::Device;
    assert_eq!(recovered(&mut client).err(), Some(RecoveryError::Unreadable { part: 0, failure }));
}

#[test]
fn a_log_ends_at_its_first_damage() {
    let mut client = filled();
    client.files.edit(|files| files.get_mut(&1).unwrap()[4096] ^= 1);
    client.store = recovered(&mut client).unwrap();
    let keys = client.store.stats().keys;
    assert!(keys > 5 && keys < 45, "{keys}");
    // What lies behind the damage is written over, and does not come back.
    client.says("set more v", "+OK");
    client.settle();
    client.store = recovered(&mut client).unwrap();
    assert_eq!(client.store.stats().keys, keys + 1);
    for part in 0..40 {
        client.says(&format!("set new{part} {}", "w".repeat(3000)), "+OK");
    }
    client.settle();
    client.store = recovered(&mut client).unwrap();
    assert_eq!(client.store.stats().keys, keys + 41);
}

proptest! {
    /// Whatever is cut out of a stream is answered once, and nothing panics.
    #[test]
    fn no_request_is_too_wild(seed: u64, noise in prop::collection::vec(any::<u8>(), 0..200)) {
        let words: [&[u8]; 24] = [
            b"set", b"get", b"mset", b"mget", b"scan", b"incrby", b"expire", b"getrange", b"hello", b"auth", b"client",
            b"config", b"command", b"info", b"k", b"v", b"0", b"-1", b"9223372036854775807", b"px", b"match", b"[a-", b"",
            &noise,
        ];
        let mut rng = Rng::new(seed);
        let mut client = Client::new(small());
        for _ in 0..60 {
            let count = rng.range(1..7) as usize;
            let strings: Vec<&[u8]> = (0..count).map(|_| words[rng.index(words.len())]).collect();
            let reply = client.reply(&encoded(&strings));
            prop_assert!(reply.ends_with(b"\r\n"));
        }
        let limits = Limits { arguments: 100, argument_len: 1000, request_len: 10_000, line_len: 1000 };
        match Cutter::default().cut(&noise, &limits, false) {
            Ok(Cut::Request(len)) => drop(client.reply(&noise[..len])),
            Ok(Cut::Line(len)) => {
                if let Ok(request) = Request::of_line(&noise[..len]) {
                    client.reply(request.bytes());
                }
            }
            _ => {}
        }
    }
}

#[test]
fn a_card_that_announces_more_keys_than_it_sends_takes_no_memory() {
    let mut client = Client::new(small());
    for request in
        [&b"*100000000000000\r\n$4\r\nMGET\r\n$1\r\nk\r\n"[..], b"*4000000000\r\n$3\r\nDEL\r\n$1\r\nk\r\n"]
    {
        let reply = client.reply(request);
        assert!(reply == b"*1\r\n$-1\r\n" || reply == b":0\r\n", "{reply:?}");
    }
}

#[test]
fn a_pattern_that_takes_too_long_is_refused() {
    let mut client = Client::new(small());
    let key = "a".repeat(20_000);
    client.reply(&encoded(&["SET", &key, "v"]));
    let pattern = format!("*{}b", "a".repeat(10_000));
    let refused = b"-ERR the pattern takes too long to compare; to SCAN with a smaller COUNT helps\r\n";
    assert_eq!(client.reply(&encoded(&["SCAN", "0", "MATCH", &pattern])), refused);
    assert_eq!(client.reply(&encoded(&["CONFIG", "GET", &format!("*[{}]", "\n".repeat(8 << 20))])), refused);
    assert!(
        client.reply(&encoded(&["SCAN", "0", "MATCH", "*aaa*"])).ends_with(format!("{key}\r\n").as_bytes())
    );
}
