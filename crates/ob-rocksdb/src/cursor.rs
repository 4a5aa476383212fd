//! Places in one source of entries: a table, a level of tables, a chunk of a log.

use std::sync::Arc;

use crate::block::BlockCursor;
use crate::cache::Class;
use crate::error::{Damage, Error, ParseError};
use crate::files::Files;
use crate::footer::Handle;
use crate::keys::{self, InternalKey, Sequence};
use crate::lookup::Entry;
use crate::memory::Chunk;
use crate::reader::{Reader, TableFile};
use crate::table::Table;

/// A place in a table.
pub(crate) struct TableCursor<H> {
    file: Arc<TableFile<H>>,
    table: Arc<Table>,
    // From the root of the index to the data: two or three.
    path: Vec<(Handle, BlockCursor)>,
}

impl<H: Clone + Send + Sync> TableCursor<H> {
    /// A cursor that is at no entry yet.
    pub(crate) async fn new<F: Files<File = H>>(
        reader: Reader<'_, F>,
        file: Arc<TableFile<H>>,
    ) -> Result<Self, Error> {
        let table = reader.table(&file).await?;
        Ok(Self { file, table, path: Vec::new() })
    }

    fn depth(&self) -> usize {
        usize::from(self.table.index_levels) + 1
    }

    fn failed(&self, handle: Handle) -> impl Fn(ParseError) -> Error {
        let name = self.file.name.clone();
        move |error| Error::at(&name, handle.offset, error)
    }

    /// The entry's key, if it is at one.
    pub(crate) fn key(&self) -> Result<Option<InternalKey<'_>>, Error> {
        let Some((handle, cursor)) = self.data() else { return Ok(None) };
        self.table.internal_key(cursor.key()).map(Some).map_err(self.failed(handle))
    }

    pub(crate) fn value(&self) -> &[u8] {
        self.data().map_or(&[], |(_, cursor)| cursor.value())
    }

    fn data(&self) -> Option<(Handle, &BlockCursor)> {
        let (handle, cursor) = self.path.get(self.depth() - 1)?;
        cursor.is_valid().then_some((*handle, cursor))
    }

    /// Opens the block that the last cursor of the path is at, or the root of the index.
    async fn descend<F: Files<File = H>>(&mut self, reader: Reader<'_, F>) -> Result<(), Error> {
        let handle = match self.path.last() {
            None => self.table.index,
            Some((above, cursor)) => cursor.handle().map_err(|damage| self.failed(*above)(damage.into()))?,
        };
        let class = if self.path.len() + 1 == self.depth() { Class::Data } else { Class::Index };
        let content = reader.block(&self.file, &self.table, handle, class).await?;
        let cursor = match class {
            Class::Data => self.table.data_cursor(content),
            _ => self.table.index_cursor(content),
        };
        let cursor = cursor.map_err(self.failed(handle))?;
        self.path.push((handle, cursor));
        Ok(())
    }

    fn step(&mut self, go: impl FnOnce(&mut BlockCursor) -> Result<bool, ParseError>) -> Result<bool, Error> {
        let Some((handle, cursor)) = self.path.last_mut() else { return Ok(false) };
        let handle = *handle;
        go(cursor).map_err(|error| self.failed(handle)(error))
    }

    /// Goes to the first entry that is not before the target.
    pub(crate) async fn seek<F: Files<File = H>>(
        &mut self,
        reader: Reader<'_, F>,
        target: &[u8],
    ) -> Result<(), Error> {
        self.path.clear();
        while self.path.len() < self.depth() {
            self.descend(reader).await?;
            if !self.step(|cursor| cursor.seek(target))? {
                return self.turn(reader, true).await;
            }
        }
        Ok(())
    }

    /// Goes to the last entry.
    pub(crate) async fn last<F: Files<File = H>>(&mut self, reader: Reader<'_, F>) -> Result<(), Error> {
        self.path.clear();
        while self.path.len() < self.depth() {
            self.descend(reader).await?;
            if !self.step(BlockCursor::last)? {
                return self.turn(reader, false).await;
            }
        }
        Ok(())
    }

    pub(crate) async fn advance<F: Files<File = H>>(&mut self, reader: Reader<'_, F>) -> Result<(), Error> {
        if self.step(BlockCursor::advance)? {
            return Ok(());
        }
        self.turn(reader, true).await
    }

    pub(crate) async fn back<F: Files<File = H>>(&mut self, reader: Reader<'_, F>) -> Result<(), Error> {
        if self.step(BlockCursor::back)? {
            return Ok(());
        }
        self.turn(reader, false).await
    }

    /// The last block of the path is at its end: goes to its neighbour's first entry, or last.
    async fn turn<F: Files<File = H>>(
        &mut self,
        reader: Reader<'_, F>,
        is_forward: bool,
    ) -> Result<(), Error> {
        loop {
            self.path.pop();
            if self.path.is_empty() {
                return Ok(());
            }
            let moved = self.step(if is_forward { BlockCursor::advance } else { BlockCursor::back })?;
            if !moved {
                continue;
            }
            let mut is_there = true;
            while is_there && self.path.len() < self.depth() {
                self.descend(reader).await?;
                is_there = self.step(if is_forward { BlockCursor::first } else { BlockCursor::last })?;
            }
            if is_there {
                return Ok(());
            }
        }
    }
}

/// A place in tables that follow each other.
pub(crate) struct LevelCursor<H> {
    files: Vec<Arc<TableFile<H>>>,
    at: usize,
    cursor: Option<TableCursor<H>>,
}

impl<H: Clone + Send + Sync> LevelCursor<H> {
    pub(crate) const fn new(files: Vec<Arc<TableFile<H>>>) -> Self {
        Self { files, at: 0, cursor: None }
    }

    async fn open<F: Files<File = H>>(&mut self, reader: Reader<'_, F>, at: usize) -> Result<(), Error> {
        self.at = at;
        self.cursor = Some(TableCursor::new(reader, self.files[at].clone()).await?);
        Ok(())
    }

    fn is_at_entry(&self) -> Result<bool, Error> {
        Ok(self.cursor.as_ref().map(TableCursor::key).transpose()?.flatten().is_some())
    }

    async fn seek<F: Files<File = H>>(&mut self, reader: Reader<'_, F>, target: &[u8]) -> Result<(), Error> {
        let user = keys::user_part(target);
        let from = self.files.partition_point(|file| file.bounds.largest() < user);
        self.cursor = None;
        for at in from..self.files.len() {
            self.open(reader, at).await?;
            if let Some(cursor) = &mut self.cursor {
                cursor.seek(reader, target).await?;
            }
            if self.is_at_entry()? {
                return Ok(());
            }
        }
        self.cursor = None;
        Ok(())
    }

    /// Goes to the last entry of a user's key before `user`, or to the last of all.
    async fn seek_before<F: Files<File = H>>(
        &mut self,
        reader: Reader<'_, F>,
        user: Option<&[u8]>,
    ) -> Result<(), Error> {
        let end = user.map_or(self.files.len(), |user| {
            self.files.partition_point(|file| file.bounds.smallest() < user)
        });
        self.cursor = None;
        for at in (0..end).rev() {
            self.open(reader, at).await?;
            if let Some(cursor) = &mut self.cursor {
                seek_before_in(cursor, reader, user).await?;
            }
            if self.is_at_entry()? {
                return Ok(());
            }
        }
        self.cursor = None;
        Ok(())
    }

    async fn advance<F: Files<File = H>>(&mut self, reader: Reader<'_, F>) -> Result<(), Error> {
        let Some(cursor) = &mut self.cursor else { return Ok(()) };
        cursor.advance(reader).await?;
        while !self.is_at_entry()? {
            if self.at + 1 >= self.files.len() {
                self.cursor = None;
                return Ok(());
            }
            self.open(reader, self.at + 1).await?;
            if let Some(cursor) = &mut self.cursor {
                cursor.seek(reader, &keys::encode_target(&[], Sequence::MAX)).await?;
            }
        }
        Ok(())
    }
}

async fn seek_before_in<F: Files>(
    cursor: &mut TableCursor<F::File>,
    reader: Reader<'_, F>,
    user: Option<&[u8]>,
) -> Result<(), Error> {
    let Some(user) = user else { return cursor.last(reader).await };
    cursor.seek(reader, &keys::encode_target(user, Sequence::MAX)).await?;
    match cursor.key()?.is_some() {
        true => cursor.back(reader).await,
        false => cursor.last(reader).await,
    }
}

/// A place in one source.
pub(crate) enum Source<H> {
    Chunk { chunk: Arc<Chunk>, at: Option<usize> },
    Table(TableCursor<H>),
    Level(LevelCursor<H>),
}

impl<H: Clone + Send + Sync> Source<H> {
    /// Goes to the first entry whose user's key is not before `user`.
    pub(crate) async fn seek<F: Files<File = H>>(
        &mut self,
        reader: Reader<'_, F>,
        user: &[u8],
    ) -> Result<(), Error> {
        let target = keys::encode_target(user, Sequence::MAX);
        match self {
            Self::Chunk { chunk, at } => {
                *at = Some(chunk.seek(user));
                Ok(())
            }
            Self::Table(cursor) => cursor.seek(reader, &target).await,
            Self::Level(cursor) => cursor.seek(reader, &target).await,
        }
    }

    /// Goes to the last entry whose user's key is before `user`, or to the last of all.
    pub(crate) async fn seek_before<F: Files<File = H>>(
        &mut self,
        reader: Reader<'_, F>,
        user: Option<&[u8]>,
    ) -> Result<(), Error> {
        match self {
            Self::Chunk { chunk, at } => {
                let behind = user.map_or(chunk.records().len(), |user| chunk.seek(user));
                *at = behind.checked_sub(1);
                Ok(())
            }
            Self::Table(cursor) => seek_before_in(cursor, reader, user).await,
            Self::Level(cursor) => cursor.seek_before(reader, user).await,
        }
    }

    pub(crate) async fn advance<F: Files<File = H>>(&mut self, reader: Reader<'_, F>) -> Result<(), Error> {
        match self {
            Self::Chunk { at, .. } => {
                *at = at.map(|at| at + 1);
                Ok(())
            }
            Self::Table(cursor) => cursor.advance(reader).await,
            Self::Level(cursor) => cursor.advance(reader).await,
        }
    }

    fn table(&self) -> Option<&TableCursor<H>> {
        match self {
            Self::Chunk { .. } => None,
            Self::Table(cursor) => Some(cursor),
            Self::Level(cursor) => cursor.cursor.as_ref(),
        }
    }

    /// What it means that the entry which it is at is damaged.
    pub(crate) fn refused(&self, damage: Damage) -> Error {
        match (self.table(), self.table().and_then(TableCursor::data)) {
            (Some(table), Some((handle, _))) => table.failed(handle)(damage.into()),
            _ => Error::at("a write-ahead log", 0, damage.into()),
        }
    }

    /// The user's key of the entry that it is at.
    pub(crate) fn user(&self) -> Result<Option<&[u8]>, Error> {
        if let Self::Chunk { chunk, at } = self {
            return Ok(at.and_then(|at| chunk.records().get(at)).map(|record| &record.key[..]));
        }
        let key = self.table().map(TableCursor::key).transpose()?.flatten();
        Ok(key.map(|key| key.user))
    }

    /// The entry that it is at, if it is visible at a snapshot.
    pub(crate) fn entry(&self, snapshot: Sequence) -> Result<Option<Entry>, Error> {
        if let Self::Chunk { chunk, at } = self {
            let record = at.and_then(|at| chunk.records().get(at));
            return Ok(record.filter(|record| record.sequence <= snapshot).map(|record| Entry {
                sequence: record.sequence,
                kind: record.kind,
                value: record.value.clone(),
            }));
        }
        let Some(cursor) = self.table() else { return Ok(None) };
        Ok(cursor.key()?.filter(|key| key.sequence <= snapshot).map(|key| Entry {
            sequence: key.sequence,
            kind: key.kind,
            value: cursor.value().to_vec(),
        }))
    }
}
