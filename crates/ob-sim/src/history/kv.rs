//! A key-value store that does one thing at a time: what Redis clients may rely on.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{Specification, Window};

/// Bytes of a key or a value; shared, because states are copied at every step of a search.
type Bytes = Arc<[u8]>;

/// A store of strings under keys that may expire.
#[derive(Clone, Copy, Debug, Default)]
pub struct KvSpec {
    /// How far the clocks that decide over expiry may be from that of the history, in nanoseconds, either way.
    pub margin: u64,
}

/// When a key expires, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Never.
    Never,
    /// So long after the command took effect.
    After(u64),
    /// At this instant.
    At(u64),
}

/// What a client can ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `GET`.
    Get(Bytes),
    /// `MGET`.
    GetMany(Vec<Bytes>),
    /// `EXISTS`: how many of the keys there are.
    Exists(Vec<Bytes>),
    /// `STRLEN`.
    Length(Bytes),
    /// `SET`.
    Set(Bytes, Bytes, Expiry),
    /// `SETNX`: 1 if it was set.
    SetIfAbsent(Bytes, Bytes),
    /// `MSET`.
    SetMany(Vec<(Bytes, Bytes)>),
    /// `DEL`: how many there were.
    Delete(Vec<Bytes>),
    /// `GETDEL`.
    GetAndDelete(Bytes),
    /// `INCRBY`; `INCR` with 1, `DECR` with -1.
    Increment(Bytes, i64),
    /// `APPEND`: the new length.
    Append(Bytes, Bytes),
    /// `EXPIRE`, or `PERSIST` with [`Expiry::Never`]: 1 if it changed something.
    Expire(Bytes, Expiry),
    /// `FLUSHALL`.
    Clear,
}

/// What the store answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It is done.
    Done,
    /// There is no such key.
    Nil,
    /// A value.
    Value(Bytes),
    /// A value or nothing for each key.
    Values(Vec<Option<Bytes>>),
    /// A number.
    Integer(i64),
    /// The value is not such that this can be done with it. Nothing was changed. (Errors that leave open whether something
    /// was changed are no replies: such an operation has not returned.)
    Refused,
}

/// What the store remembers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct KvState {
    entries: BTreeMap<Bytes, Entry>,
    /// It was seen that a key had expired: it is at least so late.
    now: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    value: Bytes,
    /// The first and the last instant at which it may expire.
    expires: Option<(u64, u64)>,
}

impl Specification for KvSpec {
    type Command = Command;
    type Reply = Reply;
    type Key = Bytes;
    type State = KvState;

    fn initial(&self) -> KvState {
        KvState::default()
    }

    fn keys(&self, command: &Command) -> Vec<Bytes> {
        command.keys()
    }

    fn is_read(&self, command: &Command) -> bool {
        use Command::{Exists, Get, GetMany, Length};
        matches!(command, Get(_) | GetMany(_) | Exists(_) | Length(_))
    }

    fn is_timed(&self, command: &Command) -> bool {
        match command {
            Command::Set(_, _, expiry) | Command::Expire(_, expiry) => *expiry != Expiry::Never,
            _ => false,
        }
    }

    fn apply(
        &self,
        state: &KvState,
        command: &Command,
        reply: Option<&Reply>,
        window: Window,
        successors: &mut Vec<KvState>,
    ) {
        for mut state in state.when_seen_by(command, window) {
            let window = Window { earliest: window.earliest.max(state.now), ..window };
            let given = self.execute(&mut state, command, window);
            if reply.is_none_or(|reply| *reply == given) {
                successors.push(state);
            }
        }
    }
}

impl KvSpec {
    fn execute(&self, state: &mut KvState, command: &Command, window: Window) -> Reply {
        let entries = &mut state.entries;
        match command {
            Command::Get(key) => value_or_nil(entries.get(key)),
            Command::GetMany(keys) => Reply::Values(
                keys.iter().map(|key| entries.get(key).map(|entry| entry.value.clone())).collect(),
            ),
            Command::Exists(keys) => integer(keys.iter().filter(|key| entries.contains_key(*key)).count()),
            Command::Length(key) => integer(entries.get(key).map_or(0, |entry| entry.value.len())),
            Command::Set(key, value, expiry) => {
                let expires = self.interval(*expiry, window);
                entries.insert(key.clone(), Entry { value: value.clone(), expires });
                Reply::Done
            }
            Command::SetIfAbsent(key, value) => {
                let is_absent = !entries.contains_key(key);
                if is_absent {
                    entries.insert(key.clone(), Entry { value: value.clone(), expires: None });
                }
                Reply::Integer(is_absent.into())
            }
            Command::SetMany(pairs) => {
                let pairs = pairs.iter().cloned();
                entries.extend(pairs.map(|(key, value)| (key, Entry { value, expires: None })));
                Reply::Done
            }
            Command::Delete(keys) => integer(keys.iter().filter_map(|key| entries.remove(key)).count()),
            Command::GetAndDelete(key) => value_or_nil(entries.remove(key).as_ref()),
            Command::Increment(key, by) => increment(entries, key, *by),
            Command::Append(key, more) => {
                let entry = entries.entry(key.clone()).or_insert_with(Entry::empty);
                entry.value = [&*entry.value, more].concat().into();
                integer(entry.value.len())
            }
            Command::Expire(key, expiry) => {
                let expires = self.interval(*expiry, window);
                let Some(entry) = entries.get_mut(key) else { return Reply::Integer(0) };
                let is_changed = expires.is_some() || entry.expires.is_some();
                entry.expires = expires;
                Reply::Integer(is_changed.into())
            }
            Command::Clear => {
                entries.clear();
                Reply::Done
            }
        }
    }

    /// The replies that the command may give within the window.
    #[cfg(test)]
    pub(super) fn replies(&self, state: &KvState, command: &Command, window: Window) -> Vec<Reply> {
        let states = state.when_seen_by(command, window);
        states.into_iter().map(|mut state| self.execute(&mut state, command, window)).collect()
    }

    /// When a key expires that was given an expiry within the window.
    fn interval(&self, expiry: Expiry, window: Window) -> Option<(u64, u64)> {
        let (first, last) = match expiry {
            Expiry::Never => return None,
            Expiry::At(at) => (at, at),
            Expiry::After(time) => (window.earliest.saturating_add(time), window.latest.saturating_add(time)),
        };
        Some((first.saturating_sub(self.margin), last.saturating_add(self.margin)))
    }
}

impl KvState {
    /// The states that a command within the window may find: each key that may have expired is there in some of them, and
    /// gone in others.
    fn when_seen_by(&self, command: &Command, window: Window) -> Vec<Self> {
        let mut states = vec![self.clone()];
        for key in command.observed() {
            let Some(expires) = self.entries.get(&key).and_then(|entry| entry.expires) else { continue };
            if expires.0 <= window.latest {
                for index in 0..states.len() {
                    let mut gone = states[index].clone();
                    if gone.entries.remove(&key).is_some() {
                        gone.now = gone.now.max(expires.0);
                        states.push(gone);
                    }
                }
            }
        }
        let is_there = |state: &Self, key: &Bytes, earliest: u64| {
            let expires = state.entries.get(key).and_then(|entry| entry.expires);
            expires.is_none_or(|expires| earliest <= expires.1)
        };
        states.retain(|state| {
            let earliest = window.earliest.max(state.now);
            earliest <= window.latest && command.observed().iter().all(|key| is_there(state, key, earliest))
        });
        states
    }
}

impl Entry {
    fn empty() -> Self {
        Self { value: Arc::from([]), expires: None }
    }
}

fn integer(count: usize) -> Reply {
    Reply::Integer(count as i64)
}

fn value_or_nil(entry: Option<&Entry>) -> Reply {
    entry.map_or(Reply::Nil, |entry| Reply::Value(entry.value.clone()))
}

/// As Redis reads numbers: as it would write them, and no other way.
fn increment(entries: &mut BTreeMap<Bytes, Entry>, key: &Bytes, by: i64) -> Reply {
    let number = match entries.get(key) {
        None => Some(0),
        Some(entry) => std::str::from_utf8(&entry.value).ok().and_then(|text| {
            let number: i64 = text.parse().ok()?;
            (number.to_string() == text).then_some(number)
        }),
    };
    let Some(sum) = number.and_then(|number| number.checked_add(by)) else { return Reply::Refused };
    let entry = entries.entry(key.clone()).or_insert_with(Entry::empty);
    entry.value = sum.to_string().into_bytes().into();
    Reply::Integer(sum)
}

impl Command {
    fn keys(&self) -> Vec<Bytes> {
        match self {
            Self::Get(key)
            | Self::Length(key)
            | Self::Set(key, ..)
            | Self::SetIfAbsent(key, _)
            | Self::GetAndDelete(key)
            | Self::Increment(key, _)
            | Self::Append(key, _)
            | Self::Expire(key, _) => vec![key.clone()],
            Self::GetMany(keys) | Self::Exists(keys) | Self::Delete(keys) => keys.clone(),
            Self::SetMany(pairs) => pairs.iter().map(|(key, _)| key.clone()).collect(),
            Self::Clear => Vec::new(),
        }
    }

    /// The keys of which it matters to the command whether they have expired.
    fn observed(&self) -> Vec<Bytes> {
        match self {
            Self::Set(..) | Self::SetMany(_) | Self::Clear => Vec::new(),
            _ => self.keys(),
        }
    }
}

impl fmt::Display for Command {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Get(key) => write!(formatter, "GET {}", shown(key)),
            Self::GetMany(keys) => write!(formatter, "MGET{}", all_shown(keys)),
            Self::Exists(keys) => write!(formatter, "EXISTS{}", all_shown(keys)),
            Self::Length(key) => write!(formatter, "STRLEN {}", shown(key)),
            Self::Set(key, value, expiry) => {
                write!(formatter, "SET {} {}{}", shown(key), shown(value), expiry_shown(*expiry))
            }
            Self::SetIfAbsent(key, value) => write!(formatter, "SETNX {} {}", shown(key), shown(value)),
            Self::SetMany(pairs) => {
                let words = pairs.iter().flat_map(|(key, value)| [key, value]);
                write!(formatter, "MSET{}", all_shown(words))
            }
            Self::Delete(keys) => write!(formatter, "DEL{}", all_shown(keys)),
            Self::GetAndDelete(key) => write!(formatter, "GETDEL {}", shown(key)),
            Self::Increment(key, by) => write!(formatter, "INCRBY {} {by}", shown(key)),
            Self::Append(key, more) => write!(formatter, "APPEND {} {}", shown(key), shown(more)),
            Self::Expire(key, Expiry::Never) => write!(formatter, "PERSIST {}", shown(key)),
            Self::Expire(key, expiry) => write!(formatter, "EXPIRE {}{}", shown(key), expiry_shown(*expiry)),
            Self::Clear => write!(formatter, "FLUSHALL"),
        }
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => write!(formatter, "OK"),
            Self::Nil => write!(formatter, "nil"),
            Self::Value(value) => write!(formatter, "\"{}\"", shown(value)),
            Self::Values(values) => {
                let words: Vec<String> = values
                    .iter()
                    .map(|value| {
                        value.as_ref().map_or("nil".to_owned(), |value| format!("\"{}\"", shown(value)))
                    })
                    .collect();
                write!(formatter, "[{}]", words.join(", "))
            }
            Self::Integer(number) => write!(formatter, "{number}"),
            Self::Refused => write!(formatter, "refused"),
        }
    }
}

fn expiry_shown(expiry: Expiry) -> String {
    match expiry {
        Expiry::Never => String::new(),
        Expiry::After(time) => format!(" for {time} ns"),
        Expiry::At(at) => format!(" until {at} ns"),
    }
}

/// Bytes of which the beginning is shown.
const SHOWN_MAX: usize = 24;

fn shown(bytes: &[u8]) -> String {
    let text = bytes[..bytes.len().min(SHOWN_MAX)].escape_ascii().to_string();
    if bytes.len() > SHOWN_MAX { format!("{text}... ({} bytes)", bytes.len()) } else { text }
}

fn all_shown<'bytes>(words: impl IntoIterator<Item = &'bytes Bytes>) -> String {
    words.into_iter().map(|word| format!(" {}", shown(word))).collect()
}
