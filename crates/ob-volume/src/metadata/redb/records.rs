//! The tables in redb's file, and transactions of them.

use std::collections::BTreeMap;
use std::ops::Bound;

use ob_core::{Revision, SessionId};
use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition, WriteTransaction};

use super::super::plant::{Bug, is_planted};
use super::super::{
    Change, Expect, Key, KeyValue, LIST_MAX, MetadataAnswer, MetadataError, Transaction, Value,
};
use super::disk::Stamp;
use super::mirror::Mirror;

/// Key to revision, session and value.
const KEYS: TableDefinition<&str, &[u8]> = TableDefinition::new("keys");
/// What the store knows of itself, by name.
const STORE: TableDefinition<&str, u64> = TableDefinition::new("store");
const VERSION: &str = "version";
const LIFE: &str = "life";
const REVISION: &str = "revision";
const VERSION_NOW: u64 = 1;
/// Bytes before a value: its revision, and the session that owns it or 0.
const HEAD_LEN: usize = 16;
/// redb's own memory: the whole file is in ours already.
const CACHE_LEN: usize = 4 << 20;

/// Why a transaction did not come about.
#[derive(Debug)]
pub(super) enum Fault {
    Damaged(&'static str),
    Version(u32),
    Other(String),
}

impl Fault {
    fn of(error: redb::Error) -> Self {
        match error {
            redb::Error::Corrupted(what) => {
                tracing::error!("redb: {what}");
                Self::Damaged("its tables are not as they were written")
            }
            redb::Error::UpgradeRequired(version) => Self::Version(version.into()),
            error => Self::Other(error.to_string()),
        }
    }
}

macro_rules! faults {
    ($($error:ident),*) => {
        $(impl From<redb::$error> for Fault {
            fn from(error: redb::$error) -> Self {
                Self::of(error.into())
            }
        })*
    };
}

faults!(CommitError, DatabaseError, StorageError, TableError, TransactionError);

/// redb's file, opened.
pub(super) struct Records {
    database: Database,
    mirror: Mirror,
    stamp: Stamp,
    /// Bytes of all keys and what they have.
    used: u64,
}

fn database(mirror: Mirror) -> Result<Database, Fault> {
    let mut builder = redb::Builder::new();
    builder.set_cache_size(CACHE_LEN);
    Ok(builder.create_with_backend(mirror)?)
}

impl Records {
    pub(super) fn create(mirror: Mirror) -> Result<Self, Fault> {
        let records = Self { database: database(mirror.clone())?, mirror, stamp: Stamp::default(), used: 0 };
        let write = records.database.begin_write()?;
        {
            write.open_table(KEYS)?;
            let mut store = write.open_table(STORE)?;
            for (name, number) in [(VERSION, VERSION_NOW), (LIFE, 0), (REVISION, 0)] {
                store.insert(name, number)?;
            }
        }
        write.commit()?;
        Ok(records)
    }

    /// One that was made: whatever else it is, or one with another last commit, is damaged.
    pub(super) fn open(mirror: Mirror, stamp: Stamp) -> Result<Self, Fault> {
        let unlike = |fault| match fault {
            Fault::Other(what) => {
                tracing::error!("redb: {what}");
                Fault::Damaged("it is no file of redb's, or not as it was written")
            }
            fault => fault,
        };
        let database = database(mirror.clone()).map_err(unlike)?;
        let records = Self { database, mirror, stamp, used: 0 };
        let (version, found) = records.known().map_err(unlike)?;
        match version {
            Some(VERSION_NOW) if found == stamp => Ok(records),
            Some(VERSION_NOW) => Err(Fault::Damaged("it has gone back behind its last commit")),
            Some(other) => Err(Fault::Version(u32::try_from(other).unwrap_or(u32::MAX))),
            None => Err(Fault::Damaged("it does not say its version")),
        }
    }

    pub(super) fn mirror(&self) -> &Mirror {
        &self.mirror
    }

    fn known(&self) -> Result<(Option<u64>, Stamp), Fault> {
        let read = self.database.begin_read()?;
        let store = read.open_table(STORE)?;
        let number = |name| Ok::<_, Fault>(store.get(name)?.map(|number| number.value()));
        let stamp = Stamp { life: number(LIFE)?.unwrap_or(0), revision: number(REVISION)?.unwrap_or(0) };
        Ok((number(VERSION)?, stamp))
    }

    /// Counts a life, and deletes what sessions of the ones before own; which life it is.
    pub(super) fn begin_life(&mut self) -> Result<u64, Fault> {
        let mut transaction = self.begin()?;
        let life = transaction.number(LIFE)? + 1;
        transaction.set_number(LIFE, life)?;
        let (owned, used) = transaction.survey()?;
        transaction.used = used;
        if !is_planted(Bug::SessionsOutlive) {
            transaction.delete(&owned)?;
        }
        transaction.has_changed = true;
        self.commit(transaction)?;
        self.stamp.life = life;
        Ok(life)
    }

    pub(super) fn begin(&mut self) -> Result<Batch, Fault> {
        let write = self.database.begin_write()?;
        let mut batch = Batch { write, revision: 0, used: self.used, has_changed: false };
        batch.revision = batch.number(REVISION)?;
        Ok(batch)
    }

    /// What the last commit has left.
    pub(super) fn commit(&mut self, batch: Batch) -> Result<(), Fault> {
        let used = batch.used;
        if let Some(revision) = batch.finish()? {
            (self.stamp.revision, self.used) = (revision, used);
        }
        Ok(())
    }

    /// Bytes of all keys and what they have.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Of the last commit.
    pub(super) fn stamp(&self) -> Stamp {
        self.stamp
    }
}

/// A transaction of redb's: several of ours, one after the other.
pub(super) struct Batch {
    write: WriteTransaction,
    /// Of the last change.
    revision: u64,
    used: u64,
    has_changed: bool,
}

/// A value, and what stands before it.
struct Held {
    revision: Revision,
    session: Option<SessionId>,
    value: Value,
}

impl Held {
    fn encode(&self) -> Vec<u8> {
        let session = self.session.map_or(0, |session| session.0);
        [&self.revision.0.to_le_bytes(), &session.to_le_bytes(), self.value.bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Result<Self, Fault> {
        let held = || {
            let (revision, rest) = bytes.split_first_chunk()?;
            let (session, value) = rest.split_first_chunk()?;
            let session = Some(SessionId(u64::from_le_bytes(*session))).filter(|session| session.0 != 0);
            let revision = Revision(u64::from_le_bytes(*revision));
            Some(Self { revision, session, value: Value::new(value)? })
        };
        held().ok_or(Fault::Damaged("a value is none"))
    }
}

impl Batch {
    fn keys(&self) -> Result<Table<'_, &'static str, &'static [u8]>, Fault> {
        Ok(self.write.open_table(KEYS)?)
    }

    fn number(&self, name: &'static str) -> Result<u64, Fault> {
        let store = self.write.open_table(STORE)?;
        let number = store.get(name)?.map(|number| number.value());
        number.ok_or(Fault::Damaged("it does not know itself"))
    }

    fn set_number(&self, name: &'static str, number: u64) -> Result<(), Fault> {
        self.write.open_table(STORE)?.insert(name, number)?;
        Ok(())
    }

    pub(super) fn get(&self, key: &Key) -> Result<Option<(Value, Revision)>, Fault> {
        Ok(self.held(key)?.map(|held| (held.value, held.revision)))
    }

    fn held(&self, key: &Key) -> Result<Option<Held>, Fault> {
        let keys = self.keys()?;
        let found = keys.get(key.as_str())?;
        found.map(|bytes| Held::decode(bytes.value())).transpose()
    }

    pub(super) fn list(&self, prefix: &Key, after: Option<&Key>, most: u32) -> Result<MetadataAnswer, Fault> {
        let keys = self.keys()?;
        let first = after.filter(|after| *after >= prefix);
        let first = first.map_or(Bound::Included(prefix.as_str()), |after| Bound::Excluded(after.as_str()));
        let (mut entries, mut has_more) = (Vec::new(), false);
        for found in keys.range::<&str>((first, Bound::Unbounded))? {
            let (key, bytes) = found?;
            if !key.value().starts_with(prefix.as_str()) {
                break;
            }
            if entries.len() >= most.min(LIST_MAX) as usize {
                has_more = true;
                break;
            }
            let key = Key::new(key.value()).ok_or(Fault::Damaged("a key is none"))?;
            let Held { revision, value, .. } = Held::decode(bytes.value())?;
            entries.push(KeyValue { key, value, revision });
        }
        Ok(MetadataAnswer::Values { entries, has_more })
    }

    /// Keys that a session owns, and how much there is of all.
    fn survey(&self) -> Result<(Vec<Key>, u64), Fault> {
        let (mut owned, mut used) = (Vec::new(), 0);
        for found in self.keys()?.iter()? {
            let (key, bytes) = found?;
            used += size_of_record(key.value(), bytes.value());
            if Held::decode(bytes.value())?.session.is_some() {
                owned.push(Key::new(key.value()).ok_or(Fault::Damaged("a key is none"))?);
            }
        }
        Ok((owned, used))
    }

    /// Takes keys away, as one change.
    pub(super) fn delete(&mut self, keys: &[Key]) -> Result<(), Fault> {
        if keys.is_empty() {
            return Ok(());
        }
        self.revision += 1;
        self.has_changed = true;
        let mut freed = 0;
        let mut table = self.keys()?;
        for key in keys {
            let removed = table.remove(key.as_str())?;
            freed += removed.map_or(0, |bytes| size_of_record(key.as_str(), bytes.value()));
        }
        drop(table);
        self.used = self.used.saturating_sub(freed);
        Ok(())
    }

    /// Does a transaction of ours, if it holds and leaves no more than so many bytes.
    pub(super) fn commit(
        &mut self,
        transaction: &Transaction,
        used_max: u64,
        is_session: impl Fn(SessionId) -> bool,
        owners: &mut BTreeMap<Key, SessionId>,
    ) -> Result<Result<MetadataAnswer, MetadataError>, Fault> {
        if let Err(error) = transaction.check() {
            return Ok(Err(error));
        }
        for (number, (key, expect)) in transaction.compare.iter().enumerate() {
            let revision = self.held(key)?.map(|held| held.revision);
            let expected = match expect {
                Expect::Absent => None,
                Expect::At(revision) => Some(*revision),
            };
            if revision != expected {
                return Ok(Ok(MetadataAnswer::Unmet(number)));
            }
        }
        let session_of = |change: &Change| match change {
            Change::Put { session, .. } => *session,
            Change::Delete { .. } => None,
        };
        if !transaction.change.iter().filter_map(session_of).all(is_session) {
            return Ok(Err(MetadataError::NoSession));
        }
        let used = self.used_after(transaction)?;
        if used > used_max && used > self.used {
            return Ok(Err(MetadataError::Unreachable));
        }
        self.used = used;
        if !transaction.change.is_empty() {
            self.revision += 1;
            self.has_changed = true;
        }
        let revision = Revision(self.revision);
        let mut table = self.keys()?;
        for change in &transaction.change {
            match (change, session_of(change)) {
                (Change::Put { key, .. }, Some(session)) => drop(owners.insert(key.clone(), session)),
                (change, _) => drop(owners.remove(change.key())),
            }
            match change {
                Change::Put { key, value, session } => {
                    let held = Held { revision, session: *session, value: value.clone() };
                    table.insert(key.as_str(), held.encode().as_slice())?;
                }
                Change::Delete { key } => drop(table.remove(key.as_str())?),
            }
        }
        Ok(Ok(MetadataAnswer::Committed(revision)))
    }

    /// How much there is when this is done.
    fn used_after(&self, transaction: &Transaction) -> Result<u64, Fault> {
        let table = self.keys()?;
        let mut used = self.used;
        for change in &transaction.change {
            let key = change.key().as_str();
            let before = table.get(key)?.map_or(0, |bytes| size_of_record(key, bytes.value()));
            used = used.saturating_sub(before);
            if let Change::Put { value, .. } = change {
                used += (key.len() + HEAD_LEN + value.bytes().len()) as u64;
            }
        }
        Ok(used)
    }

    /// Ends it: redb's file has what it says, if it has changed anything; the last revision then.
    fn finish(self) -> Result<Option<u64>, Fault> {
        if !self.has_changed {
            self.write.abort()?;
            return Ok(None);
        }
        if !is_planted(Bug::RevisionForgotten) {
            self.set_number(REVISION, self.revision)?;
        }
        self.write.commit()?;
        Ok(Some(self.revision))
    }
}

fn size_of_record(key: &str, bytes: &[u8]) -> u64 {
    (key.len() + bytes.len()) as u64
}
