//! Histories that are known to be good or bad, and random ones.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may stop at the first surprise")]

mod brute;
mod known;
mod random;

use super::{Command, Expiry, KvSpec, Limits, Operation, Reply, Returned, Verdict, check};

/// An operation on the key-value store.
type KvOperation = Operation<Command, Reply>;

/// Clocks of the timed histories are off by no more than this.
const MARGIN: u64 = 2;

const SPEC: KvSpec = KvSpec { margin: MARGIN };

fn verdict(history: &[KvOperation]) -> Verdict {
    check(&SPEC, history, Limits::default())
}

fn bytes(text: &str) -> std::sync::Arc<[u8]> {
    text.as_bytes().into()
}

fn value(text: &str) -> Reply {
    Reply::Value(bytes(text))
}

/// An operation of a client, from one instant to another.
fn did(client: u32, called: u64, at: u64, command: Command, reply: Reply) -> KvOperation {
    Operation {
        client,
        session: None,
        command,
        called,
        returned: Some(Returned { at, reply }),
        gone_by: None,
    }
}

/// An operation of which nobody knows whether it was executed.
fn lost(client: u32, called: u64, command: Command) -> KvOperation {
    Operation { client, session: None, command, called, returned: None, gone_by: None }
}

/// The same, where it was not executed after an instant.
fn gone(client: u32, called: u64, gone_by: u64, command: Command) -> KvOperation {
    Operation { gone_by: Some(gone_by), ..lost(client, called, command) }
}

fn get(key: &str) -> Command {
    Command::Get(bytes(key))
}

fn set(key: &str, value: &str) -> Command {
    Command::Set(bytes(key), bytes(value), Expiry::Never)
}

fn set_for(key: &str, value: &str, time: u64) -> Command {
    Command::Set(bytes(key), bytes(value), Expiry::After(time))
}

fn delete(key: &str) -> Command {
    Command::Delete(vec![bytes(key)])
}

fn increment(key: &str) -> Command {
    Command::Increment(bytes(key), 1)
}

fn append(key: &str, more: &str) -> Command {
    Command::Append(bytes(key), bytes(more))
}

fn get_many(keys: &[&str]) -> Command {
    Command::GetMany(keys.iter().map(|key| bytes(key)).collect())
}

fn set_many(pairs: &[(&str, &str)]) -> Command {
    Command::SetMany(pairs.iter().map(|(key, value)| (bytes(key), bytes(value))).collect())
}

fn values(all: &[Option<&str>]) -> Reply {
    Reply::Values(all.iter().map(|value| value.map(bytes)).collect())
}
