//! Operations on etcd beside a gateway that is scripted: it does as etcd does, and answers late, in part, or not at all.

use std::collections::BTreeMap;
use std::time::Duration;

use ob_core::{Instant, Refused, Revision, SessionId, Token};
use ob_volume::metadata::{
    Change, EtcdOp, EtcdOutcome, EtcdRequest, EtcdSessions, EtcdStep, Expect, Key, MetadataAnswer,
    MetadataCompletion, MetadataError, MetadataOp, MetadataStore, Transaction, Value,
};
use serde_json::{Value as Json, json};

/// As much of etcd as a store needs, by the JSON of its gateway. Keys and values stay in base64, whose order is not that of the bytes:
/// so ranges decode them.
#[derive(Default)]
pub(crate) struct Gateway {
    revision: u64,
    kvs: BTreeMap<Vec<u8>, Kv>,
    /// With their length, and when they end.
    leases: BTreeMap<i64, (u64, u64)>,
    last_lease: i64,
    /// What was before this revision is forgotten.
    compacted: u64,
    /// In seconds.
    pub(crate) now: u64,
}

#[derive(Clone)]
struct Kv {
    value: String,
    created: u64,
    modified: u64,
    lease: i64,
}

fn decode(field: &Json) -> Vec<u8> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(field.as_str().unwrap()).unwrap()
}

fn encode(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn number(field: Option<&Json>) -> i64 {
    field.map_or(0, |field| field.as_str().unwrap().parse().unwrap())
}

fn error(code: u64, message: &str) -> (u16, Json) {
    let status = if code == 5 { 404 } else { 400 };
    (status, json!({ "error": message, "code": code, "message": message }))
}

impl Gateway {
    /// Does what is asked.
    pub(crate) fn post(&mut self, request: &EtcdRequest) -> (u16, Vec<u8>) {
        let body: Json = serde_json::from_str(&request.body).unwrap();
        let (status, answer) = match request.path {
            "/v3/kv/range" => (200, self.range(&body)),
            "/v3/kv/txn" => self.transaction(&body),
            "/v3/lease/grant" => self.grant(&body),
            "/v3/lease/keepalive" => self.keep_alive(&body),
            "/v3/lease/revoke" => {
                let lease = number(body.get("ID"));
                if self.leases.contains_key(&lease) {
                    self.end(lease);
                    (200, json!({ "header": self.header() }))
                } else {
                    error(5, "etcdserver: requested lease not found")
                }
            }
            "/v3/kv/compaction" => {
                let before = number(body.get("revision")) as u64;
                if before <= self.compacted {
                    error(11, "etcdserver: mvcc: required revision has been compacted")
                } else {
                    self.compacted = before;
                    (200, json!({ "header": self.header() }))
                }
            }
            other => panic!("{other}"),
        };
        (status, answer.to_string().into_bytes())
    }

    pub(crate) fn set_time(&mut self, now: u64) {
        self.now = now;
        let over = self.leases.iter().filter(|(_, (_, ends))| *ends <= now);
        let over: Vec<i64> = over.map(|(lease, _)| *lease).collect();
        over.into_iter().for_each(|lease| self.end(lease));
    }

    fn end(&mut self, lease: i64) {
        self.leases.remove(&lease);
        let before = self.kvs.len();
        self.kvs.retain(|_, kv| kv.lease != lease);
        self.revision += u64::from(before != self.kvs.len());
    }

    fn header(&self) -> Json {
        json!({ "cluster_id": "14841639068965178418", "member_id": "10276657743932975437", "revision": self.revision.to_string(), "raft_term": "2" })
    }

    fn range(&self, body: &Json) -> Json {
        let start = decode(&body["key"]);
        let end = body.get("range_end").map(decode);
        let found = self.kvs.iter().filter(|(key, _)| match &end {
            Some(end) => **key >= start && *key < end,
            None => **key == start,
        });
        let found: Vec<(&Vec<u8>, &Kv)> = found.collect();
        let limit = number(body.get("limit")) as usize;
        let most = if limit == 0 { found.len() } else { limit };
        // What is zero, or empty, is left out.
        let kvs = found.iter().take(most).map(|(key, kv)| {
            let mut shown = json!({
                "key": encode(key), "create_revision": kv.created.to_string(), "mod_revision": kv.modified.to_string(), "version": "1",
            });
            if !kv.value.is_empty() {
                shown["value"] = kv.value.clone().into();
            }
            if kv.lease != 0 {
                shown["lease"] = kv.lease.to_string().into();
            }
            shown
        });
        let kvs: Vec<Json> = kvs.collect();
        let mut answer = json!({ "header": self.header() });
        if !kvs.is_empty() {
            answer["kvs"] = kvs.into();
            answer["count"] = found.len().to_string().into();
        }
        if found.len() > most {
            answer["more"] = true.into();
        }
        answer
    }

    fn transaction(&mut self, body: &Json) -> (u16, Json) {
        let empty = Vec::new();
        let all = |field: &str| body[field].as_array().unwrap_or(&empty).clone();
        let holds = all("compare").iter().all(|compare| {
            assert_eq!(compare["result"], "EQUAL");
            let kv = self.kvs.get(&decode(&compare["key"]));
            match compare["target"].as_str().unwrap() {
                "CREATE" => kv.map_or(0, |kv| kv.created) == number(compare.get("create_revision")) as u64,
                "MOD" => kv.map_or(0, |kv| kv.modified) == number(compare.get("mod_revision")) as u64,
                other => panic!("{other}"),
            }
        });
        let branch = all(if holds { "success" } else { "failure" });
        let leases = branch.iter().filter_map(|op| op.get("request_put")).map(|put| number(put.get("lease")));
        if leases.into_iter().any(|lease| lease != 0 && !self.leases.contains_key(&lease)) {
            return error(5, "etcdserver: requested lease not found");
        }
        self.revision += u64::from(branch.iter().any(|op| self.changes(op)));
        let revision = self.revision;
        let mut responses = Vec::new();
        for op in branch {
            if let Some(put) = op.get("request_put") {
                let key = decode(&put["key"]);
                let created = self.kvs.get(&key).map_or(revision, |kv| kv.created);
                let value = put["value"].as_str().unwrap_or_default().to_owned();
                let lease = number(put.get("lease"));
                self.kvs.insert(key, Kv { value, created, modified: revision, lease });
                responses.push(json!({ "response_put": {} }));
            } else if let Some(delete) = op.get("request_delete_range") {
                self.kvs.remove(&decode(&delete["key"]));
                responses.push(json!({ "response_delete_range": {} }));
            } else {
                responses.push(json!({ "response_range": self.range(&op["request_range"]) }));
            }
        }
        let mut answer = json!({ "header": self.header(), "responses": responses });
        if holds {
            answer["succeeded"] = true.into();
        }
        (200, answer)
    }

    fn changes(&self, op: &Json) -> bool {
        let is_deleted = |delete: &Json| self.kvs.contains_key(&decode(&delete["key"]));
        op.get("request_put").is_some() || op.get("request_delete_range").is_some_and(is_deleted)
    }

    fn grant(&mut self, body: &Json) -> (u16, Json) {
        let ttl = number(body.get("TTL")) as u64;
        // Numbers of etcd's leases are of 63 bits.
        self.last_lease += 0x1234_5678_9abc;
        self.leases.insert(self.last_lease, (ttl, self.now + ttl));
        (200, json!({ "header": self.header(), "ID": self.last_lease.to_string(), "TTL": ttl.to_string() }))
    }

    fn keep_alive(&mut self, body: &Json) -> (u16, Json) {
        let lease = number(body.get("ID"));
        let mut result = json!({ "header": self.header(), "ID": lease.to_string() });
        if let Some((ttl, ends)) = self.leases.get_mut(&lease) {
            *ends = self.now + *ttl;
            result["TTL"] = ttl.to_string().into();
        }
        (200, json!({ "result": result }))
    }
}

/// A store over the gateway, whose answers come at once.
#[derive(Default)]
pub(crate) struct Etcd {
    pub(crate) gateway: Gateway,
    sessions: EtcdSessions,
    done: Vec<MetadataCompletion>,
}

impl Etcd {
    fn ask(&mut self, op: MetadataOp) -> Result<MetadataAnswer, MetadataError> {
        self.submit(Token(1), op).unwrap();
        self.poll().unwrap().result
    }
}

impl MetadataStore for Etcd {
    fn submit(&mut self, token: Token, op: MetadataOp) -> Result<(), Refused<MetadataOp>> {
        let mut next = self.sessions.begin(op.clone());
        let result = loop {
            let under_way = match next {
                Ok(under_way) => under_way,
                Err(error) => break Err(error),
            };
            let (status, body) = self.gateway.post(&under_way.request());
            match under_way.took(EtcdOutcome::Answer { status, body: &body }) {
                EtcdStep::Done(result) => break result,
                EtcdStep::Next(op) => next = Ok(op),
            }
        };
        self.sessions.over(&op, &result);
        self.done.push(MetadataCompletion { token, result });
        Ok(())
    }

    fn poll(&mut self) -> Option<MetadataCompletion> {
        self.done.pop()
    }

    fn next_due(&self) -> Option<Instant> {
        // The model counts in nanoseconds what is in seconds here.
        self.gateway.leases.values().map(|(_, ends)| Instant::from_nanoseconds(*ends)).min()
    }
}

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn put(text: &str, expect: Expect, session: Option<SessionId>) -> Transaction {
    let value = Value::new(b"value").unwrap();
    Transaction {
        compare: vec![(key("/other"), Expect::Absent), (key(text), expect)],
        change: vec![Change::Put { key: key(text), value, session }],
    }
}

/// One operation of each kind, on what is there; those with two requests by their second, too.
fn operations(etcd: &mut Etcd) -> Vec<(MetadataOp, EtcdOp)> {
    let Ok(MetadataAnswer::Session(session)) = etcd.ask(MetadataOp::Grant { ttl: Duration::from_secs(5) })
    else {
        panic!("no session");
    };
    etcd.ask(MetadataOp::Commit(put("/a", Expect::Absent, Some(session)))).unwrap();
    let ops = [
        MetadataOp::Get { key: key("/a") },
        MetadataOp::List { prefix: key("/"), after: None, most: 10 },
        MetadataOp::Commit(put("/b", Expect::Absent, None)),
        MetadataOp::Commit(put("/a", Expect::Absent, None)),
        MetadataOp::Grant { ttl: Duration::from_millis(2500) },
        MetadataOp::Renew { session },
        MetadataOp::Revoke { session },
        MetadataOp::Forget { before: Revision(1) },
    ];
    let mut all = Vec::new();
    for op in ops {
        let first = etcd.sessions.begin(op.clone()).unwrap();
        if matches!(op, MetadataOp::Renew { .. }) {
            let (status, body) = etcd.gateway.post(&first.request());
            let EtcdStep::Next(second) = first.took(EtcdOutcome::Answer { status, body: &body }) else {
                panic!("a renewal ends with a read");
            };
            all.push((op.clone(), second));
        }
        all.push((op.clone(), etcd.sessions.begin(op).unwrap()));
    }
    all
}

/// What is said where nobody knows.
fn unclear(op: &MetadataOp) -> MetadataError {
    match op {
        // Nothing was done, whatever became of it.
        MetadataOp::Get { .. } | MetadataOp::List { .. } | MetadataOp::Forget { .. } => {
            MetadataError::Unreachable
        }
        _ => MetadataError::Unknown,
    }
}

fn done(step: EtcdStep) -> Result<MetadataAnswer, MetadataError> {
    match step {
        EtcdStep::Done(result) => result,
        EtcdStep::Next(op) => panic!("{op:?}"),
    }
}

#[test]
fn an_answer_that_is_cut_anywhere_says_nothing() {
    let count = operations(&mut Etcd::default()).len();
    for number in 0..count {
        let mut etcd = Etcd::default();
        let (op, under_way) = operations(&mut etcd).swap_remove(number);
        let (status, body) = etcd.gateway.post(&under_way.request());
        assert_eq!(status, 200, "{op:?}");
        for len in 0..body.len() {
            let (_, again) = operations(&mut Etcd::default()).swap_remove(number);
            let result = done(again.took(EtcdOutcome::Answer { status, body: &body[..len] }));
            assert_eq!(result, Err(unclear(&op)), "{len} of {}", String::from_utf8_lossy(&body));
        }
        let (_, again) = operations(&mut Etcd::default()).swap_remove(number);
        assert_eq!(done(again.took(EtcdOutcome::NoAnswer)), Err(unclear(&op)), "{op:?}");
        let (_, again) = operations(&mut Etcd::default()).swap_remove(number);
        assert_eq!(done(again.took(EtcdOutcome::NotSent)), Err(MetadataError::Unreachable), "{op:?}");
    }
}

#[test]
fn each_status_and_code_is_what_it_surely_is_and_no_more() {
    let count = operations(&mut Etcd::default()).len();
    for number in 0..count {
        let of = |status: u16, body: &str| {
            let (op, under_way) = operations(&mut Etcd::default()).swap_remove(number);
            let step = under_way.took(EtcdOutcome::Answer { status, body: body.as_bytes() });
            (op, done(step))
        };
        for code in 1..=16 {
            for body in [
                format!("{{\"error\":\"etcdserver: no\",\"code\":{code},\"message\":\"etcdserver: no\"}}"),
                format!("{{\"code\":{code},\"message\":\"etcdserver: no\",\"details\":[]}}"),
                format!(
                    "{{\"error\":{{\"grpc_code\":{code},\"http_code\":400,\"message\":\"etcdserver: no\"}}}}"
                ),
            ] {
                let (op, result) = of(400, &body);
                let expected = match (code, &op) {
                    (5, MetadataOp::Commit(_) | MetadataOp::Revoke { .. }) => MetadataError::NoSession,
                    // The second request of a renewal reads a key, and knows of no lease.
                    (5, MetadataOp::Renew { .. }) if result == Err(MetadataError::NoSession) => {
                        MetadataError::NoSession
                    }
                    (3, MetadataOp::Commit(_) | MetadataOp::Grant { .. }) => MetadataError::Malformed,
                    _ => unclear(&op),
                };
                assert_eq!(result, Err(expected), "{op:?}: {body}");
            }
            // Somebody else's page, between us and etcd.
            let (op, result) = of(400, &format!("{{\"code\":{code},\"message\":\"no such site\"}}"));
            assert_eq!(result, Err(unclear(&op)));
        }
        for status in [200, 204, 301, 302, 307, 308, 401, 403, 404, 429, 500, 502, 503, 504] {
            for body in [
                "",
                "<html>",
                "[]",
                "null",
                "{\"error\":\"etcdserver: request timed out\",\"code\":14}",
                "{\"message\":4}",
            ] {
                if (status, body) == (200, "{\"message\":4}") {
                    continue;
                }
                let (op, result) = of(status, body);
                assert_eq!(result, Err(unclear(&op)), "{status} {body:?}");
            }
        }
    }
}

#[test]
fn what_is_left_out_is_zero() {
    let etcd = &mut Etcd::default();
    let Ok(MetadataAnswer::Session(session)) = etcd.ask(MetadataOp::Grant { ttl: Duration::from_secs(5) })
    else {
        panic!("no session");
    };
    assert_eq!(etcd.ask(MetadataOp::Get { key: key("/a") }), Ok(MetadataAnswer::Value(None)));
    let empty = Transaction {
        compare: vec![(key("/a"), Expect::Absent)],
        change: vec![Change::Put { key: key("/a"), value: Value::new(b"").unwrap(), session: Some(session) }],
    };
    assert_eq!(etcd.ask(MetadataOp::Commit(empty.clone())), Ok(MetadataAnswer::Committed(Revision(1))));
    let value = Value::new(b"").unwrap();
    assert_eq!(
        etcd.ask(MetadataOp::Get { key: key("/a") }),
        Ok(MetadataAnswer::Value(Some((value, Revision(1)))))
    );
    assert_eq!(etcd.ask(MetadataOp::Commit(empty)), Ok(MetadataAnswer::Unmet(0)));
    assert_eq!(etcd.ask(MetadataOp::Renew { session }), Ok(MetadataAnswer::Renewed));
    etcd.gateway.set_time(5);
    assert_eq!(etcd.ask(MetadataOp::Renew { session }), Err(MetadataError::NoSession));
    assert_eq!(etcd.ask(MetadataOp::Get { key: key("/a") }), Ok(MetadataAnswer::Value(None)));
    // Half a second is a second.
    let request =
        etcd.sessions.begin(MetadataOp::Grant { ttl: Duration::from_millis(2500) }).unwrap().request();
    assert_eq!(request.body, "{\"TTL\":\"3\"}");
}

/// L7: a leader that was replaced says that a lease lives, which the cluster has ended.
#[test]
fn a_renewal_is_none_if_the_key_is_gone_or_another_sessions() {
    for is_taken in [false, true] {
        let etcd = &mut Etcd::default();
        let mut sessions = Vec::new();
        for _ in 0..2 {
            match etcd.ask(MetadataOp::Grant { ttl: Duration::from_secs(5) }) {
                Ok(MetadataAnswer::Session(session)) => sessions.push(session),
                other => panic!("{other:?}"),
            }
        }
        etcd.ask(MetadataOp::Commit(put("/a", Expect::Absent, Some(sessions[0])))).unwrap();
        let renewal = etcd.sessions.begin(MetadataOp::Renew { session: sessions[0] }).unwrap();
        let (status, body) = etcd.gateway.post(&renewal.request());
        // It was ended meanwhile.
        etcd.gateway.end(sessions[0].0.cast_signed());
        if is_taken {
            let taken = put("/a", Expect::Absent, Some(sessions[1]));
            let under_way = EtcdSessions::default().begin(MetadataOp::Commit(taken)).unwrap();
            etcd.gateway.post(&under_way.request());
        }
        let step = renewal.took(EtcdOutcome::Answer { status, body: &body });
        let result = match step {
            EtcdStep::Next(read) => {
                let (status, body) = etcd.gateway.post(&read.request());
                done(read.took(EtcdOutcome::Answer { status, body: &body }))
            }
            EtcdStep::Done(result) => result,
        };
        assert_eq!(result, Err(MetadataError::NoSession));
    }
}

/// M1: a proposal whose client was told of a timeout is applied later all the same.
#[test]
fn a_transaction_that_is_applied_after_its_timeout_is_found_to_be_by_sending_it_again() {
    let etcd = &mut Etcd::default();
    let op = MetadataOp::Commit(put("/a", Expect::Absent, None));
    let late = etcd.sessions.begin(op.clone()).unwrap();
    let request = late.request();
    let timeout =
        br#"{"error":"etcdserver: request timed out","code":14,"message":"etcdserver: request timed out"}"#;
    assert_eq!(
        done(late.took(EtcdOutcome::Answer { status: 503, body: timeout })),
        Err(MetadataError::Unknown)
    );
    // So it is sent again, and the first one takes effect in between.
    etcd.gateway.post(&request);
    assert_eq!(etcd.ask(op), Ok(MetadataAnswer::Unmet(1)), "the second comparison, not the first");
    let Ok(MetadataAnswer::Value(Some((value, _)))) = etcd.ask(MetadataOp::Get { key: key("/a") }) else {
        panic!("it was applied");
    };
    assert_eq!(value.bytes(), b"value", "its own doing");
    // A session whose key came so is renewed with a look at that key.
    let Ok(MetadataAnswer::Session(session)) = etcd.ask(MetadataOp::Grant { ttl: Duration::from_secs(5) })
    else {
        panic!("no session");
    };
    let op = MetadataOp::Commit(put("/b", Expect::Absent, Some(session)));
    let request = etcd.sessions.begin(op.clone()).unwrap().request();
    etcd.gateway.post(&request);
    etcd.sessions.over(&op, &Err(MetadataError::Unknown));
    let renewal = etcd.sessions.begin(MetadataOp::Renew { session }).unwrap();
    let (status, body) = etcd.gateway.post(&renewal.request());
    etcd.gateway.end(session.0.cast_signed());
    let EtcdStep::Next(read) = renewal.took(EtcdOutcome::Answer { status, body: &body }) else {
        panic!("a lease was believed to live");
    };
    let (status, body) = etcd.gateway.post(&read.request());
    let result = done(read.took(EtcdOutcome::Answer { status, body: &body }));
    assert_eq!(result, Err(MetadataError::NoSession));
}

#[test]
fn a_page_ends_with_its_prefix_and_none_is_without_an_end() {
    let etcd = &mut Etcd::default();
    for text in ["/a", "/a/1", "/a/2", "/b", "/~"] {
        etcd.ask(MetadataOp::Commit(put(text, Expect::Absent, None))).unwrap();
    }
    let mut page = |prefix: &str, after: Option<&str>, most: u32| {
        let op = MetadataOp::List { prefix: key(prefix), after: after.map(key), most };
        match etcd.ask(op) {
            Ok(MetadataAnswer::Values { entries, has_more }) => (
                entries.iter().map(|entry| entry.key.as_str().to_owned()).collect::<Vec<_>>().join(" "),
                has_more,
            ),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(page("/a", None, 10), ("/a /a/1 /a/2".to_owned(), false));
    assert_eq!(page("/a", Some("/a"), 1), ("/a/1".to_owned(), true));
    assert_eq!(page("/a", Some("/a/2"), 10), (String::new(), false));
    assert_eq!(page("/a", Some("/zzz"), 10), (String::new(), false));
    assert_eq!(page("/b", Some("/a"), 10), ("/b".to_owned(), false));
    assert_eq!(page("/", None, 0), (String::new(), true));
    assert_eq!(page("/\u{10ffff}", None, 10), (String::new(), false));
}
