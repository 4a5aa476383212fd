//! What commands do to keys: Redis' own semantics and error texts, and nothing of where records lie.
//!
//! ```text
//!   Outline, View (what the keys are, at one instant) ─▶ run ─▶ a reply, and Changes to make at that instant
//! ```

use std::borrow::Cow;
use std::collections::HashSet;

use super::arguments::{ExpireOptions, Expiry, SetOptions, integer};
use super::errors::{self, Refusal};
use crate::command::{Command, Outline};
use crate::resp::Replies;

/// What a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found<'a> {
    /// Its value; empty where only its existence was asked for.
    pub(crate) value: &'a [u8],
    /// Milliseconds since 1970 at which it is gone, if ever.
    pub(crate) expires: Option<u64>,
}

/// The keys of a request at one instant, by their places among them. What has expired is not there.
pub(crate) trait View {
    fn found(&self, key: usize) -> Option<Found<'_>>;
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    Put { key: &'a [u8], value: Cow<'a, [u8]>, expires: Option<u64> },
    Remove { key: &'a [u8] },
    RemoveAll,
}

/// The changes of a request. Most have one, which needs no memory of its own.
#[derive(Debug, Default)]
pub(crate) struct Changes<'a> {
    first: Option<Change<'a>>,
    more: Vec<Change<'a>>,
}

impl<'a> Changes<'a> {
    /// One.
    pub(crate) fn of(change: Change<'a>) -> Self {
        Self { first: Some(change), more: Vec::new() }
    }

    fn push(&mut self, change: Change<'a>) {
        if self.first.is_none() { self.first = Some(change) } else { self.more.push(change) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Change<'a>> {
        self.first.iter().chain(&self.more)
    }
}

/// How much has to be known of a request's keys before it can be applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needed {
    /// Nothing.
    Nothing,
    /// Whether they are there, and until when; of those that never expire, the index knows.
    Existence,
    /// All.
    Content,
}

/// What has to be known of a request's keys.
pub(crate) fn needed(outline: &Outline<'_>) -> Needed {
    match outline.command {
        Command::Set => {
            let options = || outline.arguments().skip(2);
            let is_one_of = |option: &[u8], words: &[&str]| {
                words.iter().any(|word| option.eq_ignore_ascii_case(word.as_bytes()))
            };
            if options().any(|option| is_one_of(option, &["get"])) {
                Needed::Content
            } else if options().any(|option| is_one_of(option, &["nx", "xx", "keepttl"])) {
                Needed::Existence
            } else {
                Needed::Nothing
            }
        }
        Command::Setex | Command::Psetex | Command::Mset => Needed::Nothing,
        Command::Setnx
        | Command::Msetnx
        | Command::Del
        | Command::Unlink
        | Command::Exists
        | Command::Touch
        | Command::Type
        | Command::Ttl
        | Command::Pttl
        | Command::Expiretime
        | Command::Pexpiretime
        | Command::Persist => Needed::Existence,
        _ => Needed::Content,
    }
}

/// What a request runs in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances {
    pub(crate) now_ms: u64,
    pub(crate) value_len_max: usize,
}

/// Runs a request that names its keys: writes the reply, and lists what is to change.
pub(crate) fn run<'a>(
    outline: &Outline<'a>,
    circumstances: Circumstances,
    view: &dyn View,
    replies: &mut Replies<'_>,
) -> Result<Changes<'a>, Refusal> {
    let mut run = Run { outline, circumstances, view, changes: Changes::default() };
    run.command(replies)?;
    Ok(run.changes)
}

struct Run<'a, 'b> {
    outline: &'b Outline<'a>,
    circumstances: Circumstances,
    view: &'b dyn View,
    changes: Changes<'a>,
}

impl<'a> Run<'a, '_> {
    fn command(&mut self, replies: &mut Replies<'_>) -> Result<(), Refusal> {
        match self.outline.command {
            Command::Get => self.value_of_first(replies),
            Command::Strlen => replies.integer(self.first_value().len() as i64),
            Command::Getrange => return self.range(replies),
            Command::Type => replies.simple(if self.view.found(0).is_some() { "string" } else { "none" }),
            Command::Mget => self.values(replies),
            Command::Exists | Command::Touch => self.exist(replies),
            Command::Ttl | Command::Pttl | Command::Expiretime | Command::Pexpiretime => self.left(replies),
            Command::Set => return self.set(replies),
            Command::Setnx | Command::Msetnx => self.set_absent(replies),
            Command::Setex | Command::Psetex => return self.set_expiring(replies),
            Command::Getset => {
                self.value_of_first(replies);
                self.put(self.argument(0), self.argument(1), None);
            }
            Command::Getdel => {
                self.value_of_first(replies);
                if self.view.found(0).is_some() {
                    self.changes.push(Change::Remove { key: self.argument(0) });
                }
            }
            Command::Mset => {
                self.put_pairs();
                replies.simple("OK");
            }
            Command::Append => return self.append(replies),
            Command::Incr => return self.add(1, replies),
            Command::Decr => return self.add(-1, replies),
            Command::Incrby => return self.add(integer(self.argument(1))?, replies),
            Command::Decrby => {
                let by = integer(self.argument(1))?.checked_neg();
                return self.add(by.ok_or(errors::DECREMENT_OVERFLOW)?, replies);
            }
            Command::Expire | Command::Pexpire | Command::Expireat | Command::Pexpireat => {
                return self.expire(replies);
            }
            Command::Persist => self.persist(replies),
            Command::Del | Command::Unlink => self.remove(replies),
            _ => return Err(errors::SYNTAX),
        }
        Ok(())
    }

    fn argument(&self, at: usize) -> &'a [u8] {
        self.outline.arguments().nth(at).unwrap_or_default()
    }

    fn put(&mut self, key: &'a [u8], value: &'a [u8], expires: Option<u64>) {
        self.changes.push(Change::Put { key, value: Cow::Borrowed(value), expires });
    }

    fn first_value(&self) -> &[u8] {
        self.view.found(0).map_or(&[], |found| found.value)
    }

    fn value_of_first(&self, replies: &mut Replies<'_>) {
        match self.view.found(0) {
            Some(found) => replies.bulk(found.value),
            None => replies.null(),
        }
    }

    fn range(&self, replies: &mut Replies<'_>) -> Result<(), Refusal> {
        let (mut start, mut end) = (integer(self.argument(1))?, integer(self.argument(2))?);
        let value = self.first_value();
        let len = value.len() as i64;
        // Redis keeps an end before the first byte at the first byte, unless the start is behind it as it was given.
        let is_backwards = start < 0 && end < 0 && start > end;
        // Both count from the end when they are negative; neither sum can overflow then.
        start = if start < 0 { (start + len).max(0) } else { start };
        end = if end < 0 { (end + len).max(0) } else { end.min(len - 1) };
        if is_backwards {
            replies.bulk(b"");
            return Ok(());
        }
        let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        replies.bulk(range.and_then(|(start, end)| value.get(start..=end)).unwrap_or_default());
        Ok(())
    }

    fn values(&self, replies: &mut Replies<'_>) {
        let count = self.outline.keys().count();
        replies.array(count);
        for key in 0..count {
            match self.view.found(key) {
                Some(found) => replies.bulk(found.value),
                None => replies.null(),
            }
        }
    }

    fn exist(&self, replies: &mut Replies<'_>) {
        let count = self.outline.keys().count();
        replies.integer((0..count).filter(|key| self.view.found(*key).is_some()).count() as i64);
    }

    fn left(&self, replies: &mut Replies<'_>) {
        let is_absolute = matches!(self.outline.command, Command::Expiretime | Command::Pexpiretime);
        let is_in_ms = matches!(self.outline.command, Command::Pttl | Command::Pexpiretime);
        replies.integer(match self.view.found(0) {
            None => -2,
            Some(Found { expires: None, .. }) => -1,
            Some(Found { expires: Some(expires), .. }) => {
                let from = if is_absolute { 0 } else { self.circumstances.now_ms };
                let ms = expires.saturating_sub(from).min(i64::MAX as u64) as i64;
                if is_in_ms { ms } else { ms.saturating_add(500) / 1000 }
            }
        });
    }

    fn set(&mut self, replies: &mut Replies<'_>) -> Result<(), Refusal> {
        let options = SetOptions::parse(self.outline.arguments().skip(2))?;
        let expires = match options.expiry {
            Some(Expiry::Keep) => self.view.found(0).and_then(|found| found.expires),
            Some(Expiry::Given(time)) => Some(time.positive(self.circumstances.now_ms, "set")?),
            None => None,
        };
        let is_there = || self.view.found(0).is_some();
        let is_refused = (options.only_absent && is_there()) || (options.only_present && !is_there());
        match (options.wants_old, is_refused) {
            (true, _) => self.value_of_first(replies),
            (false, true) => replies.null(),
            (false, false) => replies.simple("OK"),
        }
        if !is_refused {
            self.put(self.argument(0), self.argument(1), expires);
        }
        Ok(())
    }

    fn set_absent(&mut self, replies: &mut Replies<'_>) {
        let is_any_there = (0..self.outline.keys().count()).any(|key| self.view.found(key).is_some());
        if !is_any_there {
            self.put_pairs();
        }
        replies.integer(i64::from(!is_any_there));
    }

    /// The last value of a key counts, and of one that is named again there is no record: nobody could tell it from the one that counts
    /// by its stamp.
    fn put_pairs(&mut self) {
        let values = self.outline.arguments().skip(1).step_by(2);
        let pairs: Vec<_> = self.outline.keys().zip(values).collect();
        let mut named = HashSet::with_capacity(pairs.len());
        for (key, value) in pairs.into_iter().rev() {
            if named.insert(key) {
                self.put(key, value, None);
            }
        }
    }

    fn set_expiring(&mut self, replies: &mut Replies<'_>) -> Result<(), Refusal> {
        let name = self.outline.command.traits().name;
        let time = Expiry::relative(integer(self.argument(1))?, self.outline.command == Command::Setex);
        let expires = time.positive(self.circumstances.now_ms, name)?;
        self.put(self.argument(0), self.argument(2), Some(expires));
        replies.simple("OK");
        Ok(())
    }

    fn append(&mut self, replies: &mut Replies<'_>) -> Result<(), Refusal> {
        let (old, tail) = (self.view.found(0), self.argument(1));
        let mut value = old.map_or(&[][..], |found| found.value).to_vec();
        if value.len() + tail.len() > self.circumstances.value_len_max {
            return Err(errors::TOO_LONG);
        }
        value.extend_from_slice(tail);
        replies.integer(value.len() as i64);
        let expires = old.and_then(|found| found.expires);
        self.changes.push(Change::Put { key: self.argument(0), value: Cow::Owned(value), expires });
        Ok(())
    }

    fn add(&mut self, by: i64, replies: &mut Replies<'_>) -> Result<(), Refusal> {
        let old = self.view.found(0);
        let value = old.map_or(Ok(0), |found| integer(found.value))?;
        let value = value.checked_add(by).ok_or(errors::INCREMENT_OVERFLOW)?;
        replies.integer(value);
        let expires = old.and_then(|found| found.expires);
        let value = Cow::Owned(value.to_string().into_bytes());
        self.changes.push(Change::Put { key: self.argument(0), value, expires });
        Ok(())
    }

    fn expire(&mut self, replies: &mut Replies<'_>) -> Result<(), Refusal> {
        let command = self.outline.command;
        let options = ExpireOptions::parse(self.outline.arguments().skip(2))?;
        let is_seconds = matches!(command, Command::Expire | Command::Expireat);
        let base =
            if matches!(command, Command::Expire | Command::Pexpire) { self.circumstances.now_ms } else { 0 };
        let when = integer(self.argument(1))?;
        let when = if is_seconds { when.checked_mul(1000) } else { Some(when) };
        let when = when.and_then(|when| when.checked_add(i64::try_from(base).ok()?));
        let when = when.ok_or_else(|| errors::invalid_expire(command.traits().name))?;
        let admitted = self.view.found(0).filter(|found| options.admits(found.expires, when));
        replies.integer(i64::from(admitted.is_some()));
        let Some(found) = admitted else { return Ok(()) };
        let (key, value) = (self.argument(0), Cow::Owned(found.value.to_vec()));
        match u64::try_from(when).ok().filter(|when| *when > self.circumstances.now_ms) {
            Some(when) => self.changes.push(Change::Put { key, value, expires: Some(when) }),
            None => self.changes.push(Change::Remove { key }),
        }
        Ok(())
    }

    fn persist(&mut self, replies: &mut Replies<'_>) {
        let expiring = self.view.found(0).filter(|found| found.expires.is_some());
        replies.integer(i64::from(expiring.is_some()));
        if let Some(found) = expiring {
            let value = Cow::Owned(found.value.to_vec());
            self.changes.push(Change::Put { key: self.argument(0), value, expires: None });
        }
    }

    fn remove(&mut self, replies: &mut Replies<'_>) {
        let mut removed = HashSet::new();
        for (at, key) in self.outline.keys().enumerate() {
            if self.view.found(at).is_some() && removed.insert(key) {
                self.changes.push(Change::Remove { key });
            }
        }
        replies.integer(removed.len() as i64);
    }
}
