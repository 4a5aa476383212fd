//! Routes, reads, checks and candidates, without a card.

use ob_format::kv::{GroupWriter, Origin};

use super::*;
use crate::host::Service;
use crate::store::{Config, Store};

const ADMITTED: Standing = Standing(2);
const STORE: [u8; 16] = *b"the secret store";
/// The third block of the part with number 2.
const ADDRESS: u64 = (2 << 20) + 8192;

fn route(line: &str, standing: Standing) -> (Route, usize) {
    let mut requests = Requests::default();
    KvApplication::default().predicate(line.as_bytes(), standing, &mut requests);
    let request = requests.get(0).unwrap();
    assert_eq!((requests.len(), request.bytes.clone()), (1, 0..line.len()));
    (request.route, requests.keys(request).len())
}

fn host(reason: Reason, changes: Changes, may_change_standing: bool) -> Route {
    Route::Host { reason, changes, may_change_standing }
}

#[test]
fn reads_of_few_short_keys_are_the_cards_and_all_else_is_the_hosts() {
    for (line, keys) in [("get a\r\n", 1), ("MGET a b a\r\n", 3), ("strlen a\n", 1), ("exists a b\n", 2)] {
        assert_eq!(route(line, ADMITTED), (Route::Card, keys), "{line}");
        assert_eq!(route(line, Standing::NONE).0, host(Reason::NotAdmitted, Changes::Nothing, false));
    }
    let write = |keys| (host(Reason::Write, Changes::Keys, false), keys);
    assert_eq!(route("set a 1\n", ADMITTED), write(1));
    assert_eq!(route("mset a 1 b 2\n", ADMITTED), write(2));
    assert_eq!(route(&format!("del a {}\n", "b".repeat(33)), ADMITTED), write(1), "it is in no table");
    assert_eq!(route("flushall\n", ADMITTED).0, host(Reason::Write, Changes::Everything, false));
    let del = |keys: usize| route(&format!("del{}\n", " a".repeat(keys)), ADMITTED);
    assert_eq!(del(CHANGED_MAX), write(CHANGED_MAX));
    assert_eq!(del(CHANGED_MAX + 1), (host(Reason::Write, Changes::Everything, false), 0));
    assert_eq!(route("hello 3\n", ADMITTED).0, host(Reason::Command, Changes::Nothing, true));
    assert_eq!(route("ttl a\n", ADMITTED), (host(Reason::Command, Changes::Nothing, false), 0));
    assert_eq!(route("get a b\n", ADMITTED), (host(Reason::Command, Changes::Nothing, false), 0));
    let long = format!("mget a {}\n", "b".repeat(33));
    assert_eq!(route(&long, ADMITTED), (host(Reason::TooLong, Changes::Nothing, false), 0));
    let many = format!("mget {}\n", "a ".repeat(65));
    assert_eq!(route(&many, ADMITTED), (host(Reason::TooManyKeys, Changes::Nothing, false), 0));
}

fn hit(item: &Item) -> Hit {
    Hit { item: ob_offload::Item::new(&item.encode()).unwrap(), stamp: Stamp::new(9).unwrap() }
}

fn function(line: &str, hits: &[Hit], now: u64) -> (Verdict, Vec<FileRead>) {
    let (mut reads, mut reply) = (Vec::new(), Reply::default());
    let verdict = KvApplication::default().function(line.as_bytes(), hits, now, &mut reads, &mut reply);
    (verdict, reads)
}

#[test]
fn items_say_what_to_read_and_lengths_need_no_read() {
    let item = Item { part: 3, offset: 4096 + 64, value_length: 100, stamp: 9, expires: None };
    let (verdict, reads) = function("get key\n", &[hit(&item)], 0);
    assert_eq!(verdict, Verdict::Read);
    assert_eq!(reads, [FileRead { file: 3, offset: 4160, len: 32 + 3 + 100 }]);
    assert_eq!(function("strlen key\n", &[hit(&item)], 0), (Verdict::Answer, vec![]));
    assert_eq!(function("exists a b\n", &[hit(&item), hit(&item)], 0), (Verdict::Answer, vec![]));
    let soon = Item { expires: Some(1_000), ..item };
    assert_eq!(function("get key\n", &[hit(&soon)], 899).0, Verdict::Read);
    for command in ["get key\n", "strlen key\n", "exists key\n"] {
        assert_eq!(function(command, &[hit(&soon)], 900).0, Verdict::Host(Reason::NearExpiry), "{command}");
    }
}

#[test]
fn a_write_of_the_log_brings_its_records() {
    let mut writer = GroupWriter::default();
    let value = Record { key: b"a", value: Some(b"1"), stamp: 4, expires: None };
    let long = [b'k'; 33];
    let at = writer.push(&value).unwrap();
    writer.push(&Record { key: &long, value: Some(b"2"), stamp: 5, expires: None }).unwrap();
    writer.push(&Record { key: b"b", value: None, stamp: 6, expires: None }).unwrap();
    let second = Record { key: b"c", value: Some(b"333"), stamp: 7, expires: Some(8) };
    let second_at = writer.push(&second).unwrap();
    let bytes = writer.finish(Origin { store: STORE, life: 1, part_len: 1 << 20 }, ADDRESS);
    let mut candidates = Candidates::default();
    KvApplication::default().cache(&STORE, 2, 8192, &bytes, &mut candidates);
    let wanted = [(at, value), (second_at, second)]
        .map(|(at, record)| candidate(2, 8192 + at as u64, &record).unwrap());
    assert_eq!(candidates.list(), wanted);
    assert_eq!(candidates.end(), ADDRESS + bytes.len() as u64);
    let mut candidates = Candidates::default();
    KvApplication::default().cache(&[2; 16], 2, 8192, &bytes, &mut candidates);
    KvApplication::default().cache(&STORE, 2, 4096, &bytes, &mut candidates);
    KvApplication::default().cache(&STORE, 1, 8192, &bytes, &mut candidates);
    assert_eq!(candidates.list(), [], "of another store, or from another place");
    for broken in [&bytes[..100], &bytes[1..], b"", &[0; 4096]] {
        let mut candidates = Candidates::default();
        KvApplication::default().cache(&STORE, 2, 8192, broken, &mut candidates);
        assert_eq!(candidates.list(), []);
    }
}

#[test]
fn strangers_may_say_little_and_lines_are_checked() {
    let application = KvApplication { needs_password: true, ..KvApplication::default() };
    let cut = |bytes: &[u8], standing| {
        let mut reply = Vec::new();
        let cut = application.cut(&mut KvCutter::default(), bytes, standing, &mut reply);
        (cut, String::from_utf8(reply).unwrap())
    };
    let large = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\n";
    assert_eq!(cut(large, ADMITTED).0, Cut::Part(1_000_002));
    let told = "-ERR Protocol error: unauthenticated bulk length\r\n";
    assert_eq!(cut(large, Standing::NONE), (Cut::Wrong, told.to_owned()));
    assert_eq!(cut(b"PING\r\n", ADMITTED).0, Cut::Message(6));
    assert_eq!(cut(b"\r\n", ADMITTED).0, Cut::Nothing(2));
    assert_eq!(cut(b"SET k \"v\r\n", ADMITTED).0, Cut::Wrong);
}

#[test]
fn who_was_admitted_once_is_no_stranger_while_the_host_thinks_again() {
    let application = KvApplication { needs_password: true, ..KvApplication::default() };
    let mut cutter = KvCutter::default();
    let mut reply = Vec::new();
    assert_eq!(application.cut(&mut cutter, b"PING\r\n", ADMITTED, &mut reply), Cut::Message(6));
    let many = b"*11\r\n$4\r\n";
    assert!(matches!(application.cut(&mut cutter, many, Standing::NONE, &mut reply), Cut::Part(_)));
    assert_eq!(application.cut(&mut KvCutter::default(), many, Standing::NONE, &mut reply), Cut::Wrong);
}

#[test]
fn clients_are_told_to_try_again_only_what_was_not_done() {
    let said = |was_forwarded| {
        let mut reply = Vec::new();
        KvApplication::default().unavailable(0, was_forwarded, &mut reply);
        String::from_utf8(reply).unwrap()
    };
    assert!(said(false).starts_with("-LOADING ") && said(false).ends_with("\r\n"));
    assert!(said(true).starts_with("-ERR ") && said(true).ends_with("\r\n"));
}

#[test]
fn a_glance_finds_the_key_of_what_follows_and_minds_no_nonsense() {
    let application = KvApplication::default();
    let seen = |bytes: &[u8]| application.glance(bytes).map(|key| key.bytes().to_vec());
    let request = b"*2\r\n$3\r\nGET\r\n$5\r\nhello\r\n*1\r\n";
    assert_eq!(seen(request), Some(b"hello".to_vec()));
    for len in 0..request.len() {
        let found = seen(&request[..len]);
        assert!(found.is_none() || found == Some(b"hello".to_vec()));
    }
    for nonsense in [&b""[..], b"GET hello\r\n", b"*9\r\n$99999999999999999999\r\n", b"*2\r\n$-1\r\n$-1\r\n"]
    {
        assert_eq!(seen(nonsense), None);
    }
    assert_eq!(KvApplication { offloads: false, ..KvApplication::default() }.glance(request), None);
}

#[test]
fn clients_for_whom_there_is_no_room_are_told_so_as_redis_does() {
    let mut reply = Vec::new();
    KvApplication::default().full(&mut reply);
    assert_eq!(reply, b"-ERR max number of clients reached\r\n");
}

#[test]
fn a_host_and_a_card_agree_whether_there_is_a_password() {
    let card = |needs_password| KvApplication { needs_password, ..KvApplication::default() };
    let store = |password: Option<&str>| {
        let password = password.map(str::to_owned);
        Service::terms(&Store::create(Config { password, ..Config::default() }))
    };
    assert_eq!(card(true).terms().number, store(Some("secret")));
    assert_eq!(card(false).terms().number, store(None));
    assert_ne!(card(true).terms().number, store(None));
    // For such a card's strangers nothing is invalidated: a host without a password would change keys for them all the same.
    let mut requests = Requests::default();
    card(true).predicate(b"set a 1\n", Standing::NONE, &mut requests);
    assert_eq!(requests.get(0).unwrap().route, host(Reason::NotAdmitted, Changes::Nothing, false));
}
