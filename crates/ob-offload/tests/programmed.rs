//! Programs say what they like; what becomes of it.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

mod support;

use std::rc::Rc;

use ob_core::NodeId;
use ob_ebpf::hooks::offload::{
    CACHE, CHECK, CHECK_SCRATCH, FUNCTION, FUNCTION_SCRATCH, INVALIDATE, PREDICATE,
};
use ob_files_card::WriteObserver;
use ob_offload::{
    Application, BufferClass, Candidates, Changes, Engine, EngineConfig, FileRead, HookCounts, Item, Key,
    Programmed, Reads, Reason, Reply, Route, Stamp, Verdict,
};
use ob_programs::Limits;
use ob_table::{Table, TableConfig};
use support::{Native, Rig, at, entry, hit, object, rig, says};

const NATIVE: Route =
    Route::Host { reason: Reason::Command, changes: Changes::Nothing, may_change_standing: false };

/// Of messages that begin with `c` the rest is a key for the card; others it leaves.
fn key_behind_c() -> String {
    format!(
        "r2 = *(u64 *){len}\nif r2 < 2 goto leave\nr3 = *(u64 *){data}\nr4 = *(u8 *)(r3 + 0)\nif r4 != 99 goto leave\n\
         r5 = *(u64 *){scratch}\nr4 = 1\n*(u32 *)(r5 + 0) = r4\nr2 += -1\n*(u32 *)(r5 + 4) = r2\n\
         *(u64 *){keys} = r4\nr0 = 0\nexit\nleave:\nr0 = 1\nexit\n",
        len = at(&PREDICATE, "data_len"),
        data = at(&PREDICATE, "data"),
        scratch = at(&PREDICATE, "scratch"),
        keys = at(&PREDICATE, "keys"),
    )
}

#[test]
fn a_predicate_answers_or_leaves_it_to_the_service() {
    let rig = rig();
    assert_eq!(rig.predicate(b"ckey", 1), [(0..4, NATIVE, vec![])], "there is none");
    rig.put(vec![entry(&PREDICATE, &key_behind_c())]);
    assert_eq!(rig.predicate(b"ckey", 1), [(0..4, Route::Card, vec![Key::new(b"key").unwrap()])]);
    assert_eq!(rig.predicate(b"dkey", 1), [(0..4, NATIVE, vec![])]);
    assert_eq!(
        rig.counts(&PREDICATE),
        HookCounts { calls: 2, left: 1, fuel: rig.counts(&PREDICATE).fuel, ..HookCounts::default() }
    );
    assert_eq!(rig.predicate(b"ckey", 0), [(0..4, NATIVE, vec![])], "the host has not admitted it");
    let long = [b'c'; 34];
    assert_eq!(rig.predicate(&long, 1), [(0..34, NATIVE, vec![])], "no key of the table");
    assert_eq!(rig.counts(&PREDICATE).wrong, 2);
    rig.slot.put(Vec::new(), Limits::default());
    assert_eq!(rig.predicate(b"ckey", 1), [(0..4, NATIVE, vec![])], "it was taken out");
    assert_eq!(rig.counts(&PREDICATE).calls, 4);
}

#[test]
fn a_predicate_lists_every_byte_of_a_message() {
    let rig = rig();
    let all = |rig: &Rig, words: &[(&str, i64)]| {
        rig.put(vec![entry(&PREDICATE, &says(&PREDICATE, words))]);
        rig.predicate(b"abcdef", 1)
    };
    let host = |changes| Route::Host { reason: Reason::Program, changes, may_change_standing: true };
    let found = all(&rig, &[("route", 1), ("changes", 2), ("changes_standing", 1), ("id", 7)]);
    assert_eq!(found, [(0..6, host(Changes::Everything), vec![])]);
    for wrong in [
        &[("len", 7_i64)] as &[(&str, i64)],
        &[("len", 5)],
        &[("len", 6), ("more", 1)],
        &[("route", 2)],
        &[("route", 1), ("changes", 3)],
        &[("keys", 513)],
        &[("keys", -1)],
        &[("keys", 1)],
    ] {
        assert_eq!(all(&rig, wrong), [(0..6, NATIVE, vec![])], "{wrong:?}");
    }
    // Two bytes each, as long as there are some.
    let pairs = format!(
        "r2 = 2\n*(u64 *){len} = r2\n*(u64 *){more} = r2\nr3 = *(u64 *){at}\nr4 = *(u64 *){data_len}\nr3 += 2\n\
         if r3 < r4 goto more\nr2 = 0\n*(u64 *){more} = r2\nmore:\nr0 = 0\nexit\n",
        len = at(&PREDICATE, "len"),
        more = at(&PREDICATE, "more"),
        at = at(&PREDICATE, "at"),
        data_len = at(&PREDICATE, "data_len"),
    );
    rig.put(vec![entry(&PREDICATE, &pairs)]);
    let ranges: Vec<_> = rig.predicate(b"abcdef", 1).into_iter().map(|(range, ..)| range).collect();
    assert_eq!(ranges, [0..2, 2..4, 4..6]);
}

#[test]
fn a_program_that_is_stopped_leaves_it_to_the_service() {
    let rig = rig();
    rig.put(vec![entry(&PREDICATE, "again:\ngoto again\n")]);
    assert_eq!(rig.predicate(b"ckey", 1), [(0..4, NATIVE, vec![])]);
    let counts = rig.counts(&PREDICATE);
    assert_eq!((counts.calls, counts.faults), (1, 1));
    assert!(counts.fuel <= u64::from(Limits::default().call_fuel), "{counts:?}");
    assert!(rig.slot.counts().last_fault.unwrap().contains("out of fuel"));
}

#[test]
fn a_program_that_takes_more_than_its_share_waits() {
    let rig = rig();
    let spin = entry(&PREDICATE, "again:\ngoto again\n");
    rig.slot.put(vec![object(vec![spin])], Limits { share: 100, ..Limits::default() });
    for _ in 0..1000 {
        rig.predicate(b"ckey", 1);
    }
    // Ten milliseconds of a tenth of a core, in calls of fifty microseconds.
    let calls = rig.counts(&PREDICATE).calls;
    assert!((20..=21).contains(&calls), "{calls}");
    assert_eq!(rig.slot.counts().over_share, 1000 - calls);
    rig.time.0.set(5_000_000);
    for _ in 0..1000 {
        rig.predicate(b"ckey", 1);
    }
    assert!((30..=31).contains(&rig.counts(&PREDICATE).calls));
}

#[test]
fn a_program_holds_nobody_up_for_many_calls() {
    let rig = rig();
    // A thousand units a call, for a byte of the message each.
    let source = format!(
        "r2 = 1\n*(u64 *){len} = r2\n*(u64 *){more} = r2\nr3 = 1000\nagain:\nr3 += -1\nif r3 != 0 goto again\nr0 = 0\nexit\n",
        len = at(&PREDICATE, "len"),
        more = at(&PREDICATE, "more"),
    );
    rig.put(vec![entry(&PREDICATE, &source)]);
    let message = [b'x'; 1000];
    assert_eq!(rig.predicate(&message, 1), [(0..1000, NATIVE, vec![])]);
    let counts = rig.counts(&PREDICATE);
    assert!(counts.fuel <= 5 * u64::from(Limits::default().call_fuel), "{counts:?}");
    assert!(counts.calls < 256, "{counts:?}");
    // Nor does one that lists the same keys again and again.
    let source = format!(
        "r2 = 1\n*(u64 *){len} = r2\n*(u64 *){more} = r2\nr2 = 512\n*(u64 *){keys} = r2\nr3 = *(u64 *){scratch}\n\
         r4 = 0\nr5 = 1\nagain:\n*(u32 *)(r3 + 4) = r5\nr3 += 8\nr4 += 1\nif r4 < 512 goto again\nr0 = 0\nexit\n",
        len = at(&PREDICATE, "len"),
        more = at(&PREDICATE, "more"),
        keys = at(&PREDICATE, "keys"),
        scratch = at(&PREDICATE, "scratch"),
    );
    rig.put(vec![entry(&PREDICATE, &source)]);
    let before = rig.counts(&PREDICATE).calls;
    assert_eq!(rig.predicate(&message, 1), [(0..1000, NATIVE, vec![])]);
    assert_eq!(rig.counts(&PREDICATE).calls - before, 2);
}

#[test]
fn a_check_holds_nobody_up_for_many_reads() {
    // Some forty thousand units a read.
    let source = format!("r3 = 20000\nagain:\nr3 += -1\nif r3 != 0 goto again\n{}", takes_last(b'>'));
    let checked = |count: usize| {
        let rig = rig();
        rig.put(vec![entry(&FUNCTION, &reads_item()), entry(&CHECK, &source)]);
        let (_, _, mut reply) = rig.function();
        let reads = Reads::of(vec![&b"x1234567"[..]; count]);
        let is_right = rig.service.check(b"request", &[hit()], &reads.bytes(), &mut reply);
        (is_right, rig.counts(&CHECK).calls)
    };
    assert_eq!(checked(4), (true, 4));
    assert_eq!(checked(64), (false, 5), "the rest is the host's");
}

/// Plans to read eight bytes at the item's number.
fn reads_item() -> String {
    let (hit, read) = (FUNCTION_SCRATCH.offset_of("hits") + 16, FUNCTION_SCRATCH.offset_of("reads"));
    format!(
        "r2 = *(u64 *){scratch}\nr3 = *(u32 *)(r2 + {hit})\n*(u64 *)(r2 + {read}) = r3\nr3 = 3\n*(u32 *)(r2 + {file}) = r3\n\
         r3 = 8\n*(u32 *)(r2 + {len}) = r3\nr3 = 1\n*(u64 *){reads} = r3\nr0 = 0\nexit\n",
        scratch = at(&FUNCTION, "scratch"),
        file = read + 8,
        len = read + 12,
        reads = at(&FUNCTION, "reads"),
    )
}

/// Takes the last bytes of what was read if the first is `x`, behind a head of one byte.
fn takes_last(head: u8) -> String {
    format!(
        "r2 = *(u64 *){data}\nr3 = *(u64 *){data_len}\nif r3 < 8 goto wrong\nr4 = *(u8 *)(r2 + 0)\nif r4 != 120 goto wrong\n\
         r5 = *(u64 *){scratch}\nr4 = {head}\n*(u8 *)(r5 + {at_head}) = r4\nr4 = 1\n*(u64 *){head_len} = r4\n\
         *(u64 *){offset} = r4\nr3 += -1\n*(u64 *){len} = r3\nr0 = 0\nexit\nwrong:\nr0 = 1\nexit\n",
        data = at(&CHECK, "data"),
        data_len = at(&CHECK, "data_len"),
        scratch = at(&CHECK, "scratch"),
        at_head = CHECK_SCRATCH.offset_of("head"),
        head_len = at(&CHECK, "head_len"),
        offset = at(&CHECK, "value_offset"),
        len = at(&CHECK, "value_len"),
    )
}

/// What the client gets, if what was read is what was meant.
fn check(rig: &Rig, reply: &mut Reply, bytes: &[u8]) -> Option<Vec<u8>> {
    let reads = Reads::of([bytes]);
    let is_right = rig.service.check(b"request", &[hit()], &reads.bytes(), reply);
    reply.whole(&reads.bytes()).filter(|_| is_right)
}

#[test]
fn a_function_plans_and_its_check_makes_the_reply() {
    let rig = rig();
    rig.put(vec![entry(&FUNCTION, &reads_item()), entry(&CHECK, &takes_last(b'>'))]);
    let (verdict, reads, mut reply) = rig.function();
    assert_eq!((verdict, reads), (Verdict::Read, vec![FileRead { file: 3, offset: 7, len: 8 }]));
    assert_eq!(check(&rig, &mut reply, b"x1234567").unwrap(), b">1234567");
    let (_, _, mut reply) = rig.function();
    assert_eq!(check(&rig, &mut reply, b"y1234567"), None, "the program says that it is another one's");
    let mut reply = Reply::default();
    let own = check(&rig, &mut reply, b"x1234567");
    assert_eq!(own.unwrap(), b"native", "the service has planned it itself");
}

#[test]
fn what_programs_planned_that_are_gone_is_the_hosts() {
    let rig = rig();
    let programs = |head| vec![entry(&FUNCTION, &reads_item()), entry(&CHECK, &takes_last(head))];
    rig.put(programs(b'>'));
    let (_, _, mut reply) = rig.function();
    rig.put(programs(b'<'));
    assert_eq!(check(&rig, &mut reply, b"x1234567"), None);
    let (_, _, mut reply) = rig.function();
    rig.slot.put(Vec::new(), Limits::default());
    assert_eq!(check(&rig, &mut reply, b"x1234567"), None);
    assert_eq!(rig.slot.counts().outdated, 2);
}

#[test]
fn a_function_answers_at_once_or_sends_to_the_host_and_nothing_else() {
    let rig = rig();
    let decide = |words: &[(&str, i64)]| {
        rig.put(vec![entry(&FUNCTION, &says(&FUNCTION, words)), entry(&CHECK, "r0 = 1\nexit\n")]);
        let (verdict, reads, reply) = rig.function();
        (verdict, reads.len(), reply.whole(&Reads::of([]).bytes()).unwrap().len())
    };
    assert_eq!(decide(&[("reply_len", 4096)]), (Verdict::Answer, 0, 4096));
    assert_eq!(decide(&[("to_host", 1)]), (Verdict::Host(Reason::Program), 0, 0));
    assert_eq!(decide(&[("reads", 64)]), (Verdict::Read, 64, 0));
    for wrong in [("reply_len", 4097), ("reply_len", 0), ("reads", 65), ("reads", -1)] {
        assert_eq!(decide(&[wrong]), (Verdict::Host(Reason::Command), 0, 0), "{wrong:?}");
    }
}

#[test]
fn a_check_stays_within_what_was_read() {
    let rig = rig();
    for (words, is_right) in [
        (&[("value_offset", 8_i64), ("head_len", 1)] as &[(&str, i64)], true),
        // A client would wait for ever.
        (&[("value_offset", 8), ("value_len", 0)], false),
        (&[("value_offset", 7), ("value_len", 2)], false),
        (&[("value_offset", i64::MAX), ("value_len", i64::MAX)], false),
        (&[("head_len", 1025)], false),
        (&[("tail_len", -1)], false),
        (&[("head_len", 1024), ("tail_len", 1024)], true),
    ] {
        rig.put(vec![entry(&FUNCTION, &reads_item()), entry(&CHECK, &says(&CHECK, words))]);
        let (_, _, mut reply) = rig.function();
        assert_eq!(check(&rig, &mut reply, b"x1234567").is_some(), is_right, "{words:?}");
    }
}

fn cached(rig: &Rig) -> (usize, u64) {
    let mut candidates = Candidates::default();
    rig.service.cache(b"the secret store", 3, 4096, b"abcd", &mut candidates);
    (candidates.list().len(), candidates.end())
}

#[test]
fn a_cache_function_lists_records_and_changes_what_the_table_means() {
    let rig = rig();
    assert_eq!(cached(&rig), (0, 4711));
    assert!(!rig.service.is_renewed());
    // A key and an item of one byte each, with the offset in the data as the stamp; one a call.
    let source = format!(
        "r2 = *(u64 *){scratch}\nr3 = *(u64 *){at}\n*(u64 *)(r2 + 0) = r3\nr4 = 1\n*(u32 *)(r2 + 8) = r4\n*(u32 *)(r2 + 12) = r4\n\
         *(u8 *)(r2 + 16) = r3\n*(u64 *){candidates} = r4\nr5 = 99\n*(u64 *){settled} = r5\nr3 += 1\nr5 = *(u64 *){data_len}\n\
         if r3 < r5 goto more\nr3 = 0\nmore:\n*(u64 *){next} = r3\nr0 = 0\nexit\n",
        scratch = at(&CACHE, "scratch"),
        at = at(&CACHE, "at"),
        candidates = at(&CACHE, "candidates"),
        settled = at(&CACHE, "settled_at"),
        data_len = at(&CACHE, "data_len"),
        next = at(&CACHE, "next"),
    );
    rig.put(vec![entry(&CACHE, &source)]);
    assert!(rig.service.is_renewed() && !rig.service.is_renewed(), "once");
    assert_eq!(cached(&rig), (4, 99));
    let key = ("candidates", 1);
    for words in
        [&[("candidates", 101_i64)] as &[(&str, i64)], &[("next", 5)], &[key], &[key, ("settled_at", 9)]]
    {
        rig.put(vec![entry(&CACHE, &says(&CACHE, words))]);
        assert_eq!(cached(&rig), (0, 0), "the table does not take the service's records instead: {words:?}");
    }
    rig.put(vec![entry(&CACHE, "r0 = 1\nexit\n")]);
    assert_eq!(cached(&rig), (0, 0), "the table has nothing of the service's own");
    assert!(!rig.service.has_own_items());
    assert!(rig.service.is_renewed());
    rig.slot.put(Vec::new(), Limits::default());
    assert_eq!(
        rig.function().0,
        Verdict::Host(Reason::Program),
        "what was looked up is of a function that is gone"
    );
    assert!(rig.service.is_renewed() && rig.service.has_own_items());
    assert_eq!(rig.function().0, Verdict::Host(Reason::Command));
}

#[test]
fn what_an_invalidate_function_does_not_know_is_everything() {
    let rig = rig();
    let ask = || {
        let mut keys = Vec::new();
        (rig.service.invalidate(3, 0, 10, &mut keys), keys.len())
    };
    assert_eq!(ask(), (Changes::Nothing, 0));
    let source = format!(
        "r2 = *(u64 *){scratch}\nr3 = 2\n*(u32 *)(r2 + 0) = r3\n*(u32 *)(r2 + 40) = r3\n*(u64 *){keys} = r3\nr0 = 0\nexit\n",
        scratch = at(&INVALIDATE, "scratch"),
        keys = at(&INVALIDATE, "keys"),
    );
    rig.put(vec![entry(&INVALIDATE, &source)]);
    assert_eq!(ask(), (Changes::Keys, 2));
    for (source, expected) in [
        ("again:\ngoto again\n".to_owned(), (Changes::Everything, 0)),
        (says(&INVALIDATE, &[("keys", 101)]), (Changes::Everything, 0)),
        (says(&INVALIDATE, &[("next", 1)]), (Changes::Everything, 0)),
        ("r0 = 1\nexit\n".to_owned(), (Changes::Everything, 0)),
    ] {
        rig.put(vec![entry(&INVALIDATE, &source)]);
        assert_eq!(ask(), expected, "{source}");
    }
}

#[test]
fn programs_do_not_flood_the_log() {
    let rig = rig();
    rig.put(vec![entry(&PREDICATE, "r1 = 1\nr2 = 2\ncall 6\nr0 = 1\nexit\n")]);
    (0..80).for_each(|_| _ = rig.predicate(b"message", 1));
    assert_eq!(rig.slot.counts().log_dropped, 30);
    rig.time.0.set(1_000_000_000);
    (0..80).for_each(|_| _ = rig.predicate(b"message", 1));
    assert_eq!(rig.slot.counts().log_dropped, 30 + 70);
}

/// Whether the table has something for a key: only then is a function asked, and the service's own says so.
fn has(engine: &mut Engine<Programmed<Native>>, key: &Key) -> bool {
    match engine.start(0, 0, b"request", &[*key], 0) {
        Err(Reason::Absent) => false,
        Err(Reason::Command | Reason::Program) => true,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_table_has_nothing_of_functions_that_are_gone() {
    let Rig { service, slot, .. } = rig();
    let (_, writer) = Table::new(TableConfig::with_memory_max(1 << 20)).unwrap();
    let config = EngineConfig {
        contexts: 4,
        buffers: vec![BufferClass { len: 4096, count: 1 }],
        ..EngineConfig::default()
    };
    let mut engine = Engine::new(Rc::new(service), writer, config, 4096);
    let (key, item) = (Key::new(b"key").unwrap(), Item::new(b"item").unwrap());
    let stamp = |number| Stamp::new(number).unwrap();
    let put = |entries| slot.put(vec![object(entries)], Limits::default());
    engine.given(stamp(1));
    engine.attest(&key, &item, stamp(1));
    assert!(has(&mut engine, &key));
    // The programs of a set without a cache function understand what there is.
    put(vec![entry(&PREDICATE, "r0 = 1\nexit\n")]);
    assert!(has(&mut engine, &key));
    put(vec![entry(&CACHE, "r0 = 0\nexit\n")]);
    assert!(!has(&mut engine, &key), "it would have been another function's");
    engine.given(stamp(5));
    engine.attest(&key, &item, stamp(5));
    assert!(!has(&mut engine, &key), "the host's are the service's own");
    slot.put(Vec::new(), Limits::default());
    assert!(!has(&mut engine, &key));
    engine.given(stamp(9));
    engine.attest(&key, &item, stamp(9));
    assert!(has(&mut engine, &key));
    // What the host reads, and no program can name, may be anything.
    put(vec![entry(&INVALIDATE, "again:\ngoto again\n")]);
    assert!(has(&mut engine, &key));
    engine.name_file(3, NodeId(7));
    engine.watcher().read_taken(NodeId(8), 0, 1);
    assert!(has(&mut engine, &key), "a file of somebody else");
    engine.watcher().read_taken(NodeId(7), 0, 1);
    assert!(!has(&mut engine, &key));
}
