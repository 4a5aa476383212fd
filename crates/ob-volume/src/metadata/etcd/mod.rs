//! A store that several machines share: etcd, by its JSON gateway. What to post, and what an answer means; no socket.
//!
//! ```text
//!   MetadataOp ─▶ EtcdOp ── request ─▶ driver ══ HTTP ══▶ etcd's gateway
//!                   ▲ └── took(outcome) ─▶ MetadataAnswer, or the next request
//!                   └── EtcdSessions: a key of each session
//! ```
//!
//! A change of which nobody knows whether it was, or will be, made is [`MetadataError::Unknown`]: etcd applies proposals whose client was
//! told of a timeout, and says that it is full of what it has applied. Fields that are zero are left out of its answers.

mod http;
mod json;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ob_core::{Revision, SessionId};

use self::json::{Json, object};
pub use http::{HttpAnswer, http_answer, http_post};

use super::plant::{Bug, is_planted};
use super::{
    Change, Expect, Key, KeyValue, LIST_MAX, MetadataAnswer, MetadataError, MetadataOp, Transaction, Value,
};

const RANGE: &str = "/v3/kv/range";
const TXN: &str = "/v3/kv/txn";
const GRANT: &str = "/v3/lease/grant";
const KEEP_ALIVE: &str = "/v3/lease/keepalive";
const REVOKE: &str = "/v3/lease/revoke";
const COMPACTION: &str = "/v3/kv/compaction";

/// Codes that etcd gives before it does anything, or instead: what is asked cannot be, and there is no such lease.
const INVALID_ARGUMENT: u64 = 3;
const NOT_FOUND: u64 = 5;

/// What is to be posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdRequest {
    /// Where.
    pub path: &'static str,
    /// What.
    pub body: String,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtcdOutcome<'a> {
    /// No byte of it was sent.
    NotSent,
    /// Some of it was, and there is no whole answer.
    NoAnswer,
    /// An answer.
    Answer {
        /// Of HTTP.
        status: u16,
        /// What was said.
        body: &'a [u8],
    },
}

/// What comes next.
#[derive(Debug, PartialEq, Eq)]
pub enum EtcdStep {
    /// The operation is over.
    Done(Result<MetadataAnswer, MetadataError>),
    /// There is another request.
    Next(EtcdOp),
}

/// A key of each session: that it is still the session's is what a renewal has to see.
#[derive(Debug, Default)]
pub struct EtcdSessions {
    keys: BTreeMap<SessionId, Key>,
}

/// An operation that is under way.
#[derive(Debug, PartialEq, Eq)]
pub struct EtcdOp(Stage);

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Get {
        key: Key,
    },
    List {
        prefix: Key,
        after: Option<Key>,
        most: u32,
    },
    Commit(Transaction),
    Grant {
        ttl: Duration,
    },
    KeepAlive {
        session: SessionId,
        key: Option<Key>,
    },
    /// The lease was kept alive by whoever said so: it lives if it still has its key, by a read that goes through consensus.
    StillHas {
        session: SessionId,
        key: Key,
    },
    Revoke {
        session: SessionId,
    },
    Forget {
        before: Revision,
    },
}

/// Why an answer is none.
enum Failure {
    /// It was refused with this code, before anything was done.
    Refused(u64),
    /// Nobody knows.
    Unclear,
}

impl EtcdSessions {
    /// Begins an operation.
    ///
    /// # Errors
    ///
    /// When it cannot be; nothing was done.
    pub fn begin(&self, op: MetadataOp) -> Result<EtcdOp, MetadataError> {
        Ok(EtcdOp(match op {
            MetadataOp::Get { key } => Stage::Get { key },
            MetadataOp::List { prefix, after, most } => {
                Stage::List { prefix, after, most: most.min(LIST_MAX) }
            }
            MetadataOp::Commit(transaction) => {
                transaction.check()?;
                Stage::Commit(transaction)
            }
            MetadataOp::Grant { ttl } => Stage::Grant { ttl },
            MetadataOp::Renew { session } => {
                Stage::KeepAlive { session, key: self.keys.get(&session).cloned() }
            }
            MetadataOp::Revoke { session } => Stage::Revoke { session },
            MetadataOp::Forget { before } => Stage::Forget { before },
        }))
    }

    /// Takes note of what an operation has done, which is over.
    pub fn over(&mut self, op: &MetadataOp, result: &Result<MetadataAnswer, MetadataError>) {
        match (op, result) {
            // What may have been done counts too: it may be found later, by reading, to have been.
            (
                MetadataOp::Commit(transaction),
                Ok(MetadataAnswer::Committed(_)) | Err(MetadataError::Unknown),
            ) => {
                for change in &transaction.change {
                    self.keys.retain(|_, key| key != change.key());
                    if let Change::Put { key, session: Some(session), .. } = change {
                        self.keys.insert(*session, key.clone());
                    }
                }
            }
            (MetadataOp::Revoke { session }, Ok(_))
            | (
                MetadataOp::Renew { session } | MetadataOp::Revoke { session },
                Err(MetadataError::NoSession),
            ) => {
                self.keys.remove(session);
            }
            _ => {}
        }
    }
}

impl EtcdOp {
    /// What is to be posted next.
    #[must_use]
    pub fn request(&self) -> EtcdRequest {
        let (path, body) = match &self.0 {
            Stage::Get { key } | Stage::StillHas { key, .. } => (RANGE, object(&[("key", text(key))])),
            Stage::List { prefix, after, most } => (RANGE, range_of(prefix, after.as_ref(), *most)),
            Stage::Commit(transaction) => (TXN, transaction_of(transaction)),
            // Whole seconds, and no fewer than were asked for.
            Stage::Grant { ttl } => {
                let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
                (GRANT, object(&[("TTL", quoted(seconds))]))
            }
            Stage::KeepAlive { session, .. } => (KEEP_ALIVE, object(&[("ID", lease(*session))])),
            Stage::Revoke { session } => (REVOKE, object(&[("ID", lease(*session))])),
            Stage::Forget { before } => (COMPACTION, object(&[("revision", quoted(before.0))])),
        };
        EtcdRequest { path, body }
    }

    /// What became of it.
    #[must_use]
    pub fn took(self, outcome: EtcdOutcome<'_>) -> EtcdStep {
        let answer = match outcome {
            EtcdOutcome::NotSent => return EtcdStep::Done(Err(MetadataError::Unreachable)),
            EtcdOutcome::NoAnswer => Err(Failure::Unclear),
            EtcdOutcome::Answer { status, body } => answer_of(status, body),
        };
        let result = match answer {
            Ok(answer) => self.understood(&answer),
            Err(failure) => Some(Err(self.failed(&failure))),
        };
        match (result, self.0) {
            (Some(result), _) => EtcdStep::Done(result),
            (None, Stage::KeepAlive { session, key: Some(key) }) => {
                EtcdStep::Next(Self(Stage::StillHas { session, key }))
            }
            // An answer that makes no sense says nothing.
            (None, stage) => EtcdStep::Done(Err(Self(stage).failed(&Failure::Unclear))),
        }
    }

    fn failed(&self, failure: &Failure) -> MetadataError {
        match (failure, &self.0) {
            // What only reads does nothing, whatever became of it; and nobody misses what is forgotten.
            (_, Stage::Get { .. } | Stage::List { .. } | Stage::Forget { .. }) => MetadataError::Unreachable,
            (
                Failure::Refused(NOT_FOUND),
                Stage::Commit(_) | Stage::KeepAlive { .. } | Stage::Revoke { .. },
            ) => MetadataError::NoSession,
            (Failure::Refused(INVALID_ARGUMENT), Stage::Commit(_) | Stage::Grant { .. }) => {
                MetadataError::Malformed
            }
            // A renewal that was not seen to be one can be asked for again.
            _ => MetadataError::Unknown,
        }
    }

    /// What an answer says; nothing, if it makes no sense or is not all.
    fn understood(&self, answer: &Json) -> Option<Result<MetadataAnswer, MetadataError>> {
        match &self.0 {
            Stage::Get { .. } => {
                let found = entries(answer)?.into_iter().next();
                Some(Ok(MetadataAnswer::Value(found.map(|found| (found.value, found.revision)))))
            }
            Stage::List { most, .. } => {
                let mut found = entries(answer)?;
                let has_more = truth(answer.get("more"))? || found.len() > *most as usize;
                found.truncate(*most as usize);
                Some(Ok(MetadataAnswer::Values { entries: found, has_more }))
            }
            Stage::Commit(transaction) => {
                if truth(answer.get("succeeded"))? {
                    let revision = number(answer.get("header")?.get("revision"))?;
                    return Some(Ok(MetadataAnswer::Committed(Revision(revision))));
                }
                unmet(transaction, answer).map(|number| Ok(MetadataAnswer::Unmet(number)))
            }
            Stage::Grant { .. } => {
                let id = signed(answer.get("ID")).filter(|id| *id != 0)?;
                Some(Ok(MetadataAnswer::Session(SessionId(id.cast_unsigned()))))
            }
            Stage::KeepAlive { key, .. } => {
                let result = answer.get("result")?;
                if number(result.get("TTL"))? == 0 {
                    return Some(Err(MetadataError::NoSession));
                }
                // What nobody has put a key with, nobody relies on.
                let is_all = key.is_none() || is_planted(Bug::RenewedByAnybody);
                is_all.then_some(Ok(MetadataAnswer::Renewed))
            }
            Stage::StillHas { session, .. } => {
                let kvs = list(answer.get("kvs"))?;
                let owner = kvs.first().map(|kv| signed(kv.get("lease")));
                let is_its = match owner {
                    Some(owner) => owner? == session.0.cast_signed(),
                    None => false,
                };
                Some(if is_its { Ok(MetadataAnswer::Renewed) } else { Err(MetadataError::NoSession) })
            }
            Stage::Revoke { .. } => Some(Ok(MetadataAnswer::Revoked)),
            Stage::Forget { .. } => {
                answer.get("header").filter(|header| header.is_object())?;
                Some(Ok(MetadataAnswer::Forgotten))
            }
        }
    }
}

fn text(key: &Key) -> String {
    base64(key.as_str().as_bytes())
}

/// Bytes, as the gateway has them.
fn base64(bytes: &[u8]) -> String {
    json::text(&STANDARD.encode(bytes))
}

/// Numbers of 64 bits are texts.
fn quoted(number: impl Display) -> String {
    json::text(&number.to_string())
}

fn lease(session: SessionId) -> String {
    quoted(session.0.cast_signed())
}

/// A page: from the prefix, or behind a key, to the end of what begins alike.
fn range_of(prefix: &Key, after: Option<&Key>, most: u32) -> String {
    let mut start = prefix.as_str().as_bytes().to_vec();
    if let Some(after) = after.filter(|after| *after >= prefix) {
        start = [after.as_str().as_bytes(), &[0]].concat();
    }
    let mut end = prefix.as_str().as_bytes().to_vec();
    // No byte of a text is the highest.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    if start >= end {
        // Behind the last: a range that has nothing, where etcd would take one without an end.
        end = [&start[..], &[0]].concat();
    }
    // 0 would mean all of them.
    let most = quoted(most.max(1));
    object(&[("key", base64(&start)), ("range_end", base64(&end)), ("limit", most)])
}

fn transaction_of(transaction: &Transaction) -> String {
    let compare = |(key, expect): &(Key, Expect)| {
        let (target, field, revision) = match expect {
            Expect::Absent => ("CREATE", "create_revision", 0),
            Expect::At(revision) => ("MOD", "mod_revision", revision.0),
        };
        let (target, result) = (json::text(target), json::text("EQUAL"));
        object(&[("key", text(key)), ("target", target), ("result", result), (field, quoted(revision))])
    };
    let change = |change: &Change| match change {
        Change::Put { key, value, session } => {
            let mut put = vec![("key", text(key)), ("value", base64(value.bytes()))];
            put.extend(session.map(|session| ("lease", lease(session))));
            object(&[("request_put", object(&put))])
        }
        Change::Delete { key } => object(&[("request_delete_range", object(&[("key", text(key))]))]),
    };
    // What the keys are then, in the same instant: so it is known which comparison did not hold.
    let look = |(key, _): &(Key, Expect)| object(&[("request_range", object(&[("key", text(key))]))]);
    object(&[
        ("compare", json::list(transaction.compare.iter().map(compare))),
        ("success", json::list(transaction.change.iter().map(change))),
        ("failure", json::list(transaction.compare.iter().map(look))),
    ])
}

/// The first comparison that did not hold.
fn unmet(transaction: &Transaction, answer: &Json) -> Option<usize> {
    let responses = list(answer.get("responses"))?;
    if responses.len() != transaction.compare.len() {
        return None;
    }
    for (place, ((_, expect), response)) in transaction.compare.iter().zip(responses).enumerate() {
        let range = response.get("response_range").or_else(|| response.get("responseRange"))?;
        let found = list(range.get("kvs"))?.first().map(|kv| number(kv.get("mod_revision")));
        let found = match found {
            Some(revision) => Some(Revision(revision?)),
            None => None,
        };
        let expected = match expect {
            Expect::Absent => None,
            Expect::At(revision) => Some(*revision),
        };
        if found != expected {
            return Some(place);
        }
    }
    None
}

/// What was said, if all is well.
fn answer_of(status: u16, body: &[u8]) -> Result<Json, Failure> {
    let said = Json::parse(body).filter(Json::is_object).ok_or(Failure::Unclear)?;
    // A stream says so in its own way.
    let error = said.get("error").filter(|error| error.is_object());
    let code = error
        .and_then(|error| error.get("grpc_code").or_else(|| error.get("code")))
        .or_else(|| said.get("code"));
    if status == 200 && code.is_none() && said.get("error").is_none() {
        return Ok(said);
    }
    match code.and_then(Json::as_number) {
        // A page of a proxy's may have a code of its own: only etcd says its text beside it.
        Some(code @ (INVALID_ARGUMENT | NOT_FOUND)) if is_etcds(&said) => Err(Failure::Refused(code)),
        _ => Err(Failure::Unclear),
    }
}

fn is_etcds(said: &Json) -> bool {
    let error = said.get("error").filter(|error| error.is_object()).unwrap_or(said);
    let message = error.get("message").or_else(|| error.get("error")).and_then(Json::as_text);
    message.is_some_and(|message| message.starts_with("etcdserver:"))
}

fn entries(answer: &Json) -> Option<Vec<KeyValue>> {
    // Without a header it is no answer of etcd's.
    answer.get("header").filter(|header| header.is_object())?;
    list(answer.get("kvs"))?.iter().map(entry).collect()
}

fn entry(kv: &Json) -> Option<KeyValue> {
    let bytes = |field: &str| match kv.get(field) {
        None => Some(Vec::new()),
        Some(text) => STANDARD.decode(text.as_text()?).ok(),
    };
    let key = Key::new(std::str::from_utf8(&bytes("key")?).ok()?)?;
    let (value, revision) = (Value::new(&bytes("value")?)?, Revision(number(kv.get("mod_revision"))?));
    Some(KeyValue { key, value, revision })
}

/// What is left out is nothing.
fn list(field: Option<&Json>) -> Option<&[Json]> {
    field.map_or(Some(&[]), Json::as_list)
}

fn truth(field: Option<&Json>) -> Option<bool> {
    field.map_or(Some(false), Json::as_truth)
}

fn number(field: Option<&Json>) -> Option<u64> {
    field.map_or(Some(0), Json::as_number)
}

fn signed(field: Option<&Json>) -> Option<i64> {
    field.map_or(Some(0), Json::as_number)
}
