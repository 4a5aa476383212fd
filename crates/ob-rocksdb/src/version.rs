//! Versions: a column family at one instant. They never change; a lookup keeps the one that it began with.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cache::BlockCache;
use crate::error::{Error, MergeObstacle, Unsupported};
use crate::keys::Sequence;
use crate::lookup::Found;
use crate::memory::Memory;
use crate::merge::{self, MergeOperator};
use crate::plan::GetPlan;
use crate::reader::TableFile;

/// A column family at one instant.
#[derive(Debug)]
pub struct Version<H> {
    name: String,
    id: u32,
    // Its name as the OPTIONS file has it.
    merge_operator: Option<String>,
    memory: Memory,
    // Level 0 newest first, the others by key.
    levels: Vec<Vec<Arc<TableFile<H>>>>,
}

impl<H> Version<H> {
    pub(crate) const fn new(
        name: String,
        id: u32,
        merge_operator: Option<String>,
        memory: Memory,
        levels: Vec<Vec<Arc<TableFile<H>>>>,
    ) -> Self {
        Self { name, id, merge_operator, memory, levels }
    }

    /// The column family's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The column family's number.
    #[must_use]
    pub const fn id(&self) -> u32 {
        self.id
    }

    /// The tables: level 0 newest first, the others by key.
    #[must_use]
    pub fn levels(&self) -> &[Vec<Arc<TableFile<H>>>] {
        &self.levels
    }

    pub(crate) const fn memory(&self) -> &Memory {
        &self.memory
    }

    pub(crate) fn refused(&self, what: Unsupported) -> Error {
        Error::Unsupported { file: format!("column family {:?}", self.name), what }
    }

    /// The first phase of a lookup: what logs and cached blocks have, without reading anything.
    ///
    /// # Errors
    /// When a cached block is damaged, or has what is not supported.
    pub fn plan_get(&self, cache: &BlockCache, key: &[u8], snapshot: Sequence) -> Result<GetPlan<H>, Error> {
        GetPlan::new(self, cache, key, snapshot)
    }

    /// The tables that may have a key, newest first, each with whether no other of its level follows.
    pub(crate) fn tables_for(&self, key: &[u8], snapshot: Sequence) -> Vec<(&Arc<TableFile<H>>, bool)> {
        let mut tables = Vec::new();
        for (level, files) in self.levels.iter().enumerate() {
            let from = tables.len();
            tables.extend(self.overlapping(level, key).filter_map(|file| {
                // At level 0 each table is a level by itself.
                let may_have = level == 0 || file.bounds.contains(key, snapshot);
                may_have.then_some((file, level == 0))
            }));
            if tables.len() > from
                && !files.is_empty()
                && let Some((_, is_last)) = tables.last_mut()
            {
                *is_last = true;
            }
        }
        tables
    }

    /// The tables of a level whose first and last keys are around a key.
    pub(crate) fn overlapping(&self, level: usize, key: &[u8]) -> impl Iterator<Item = &Arc<TableFile<H>>> {
        let files = &self.levels[level][..];
        let from = if level == 0 { 0 } else { files.partition_point(|file| file.bounds.largest() < key) };
        let is_past = move |file: &&Arc<TableFile<H>>| level > 0 && file.bounds.smallest() > key;
        let is_around =
            move |file: &&Arc<TableFile<H>>| file.bounds.smallest() <= key && key <= file.bounds.largest();
        files[from..].iter().take_while(move |file| !is_past(file)).filter(is_around)
    }

    /// The operator that the OPTIONS file names.
    ///
    /// # Errors
    /// When it names none, or one that is not built in.
    pub fn merge_operator(&self) -> Result<Arc<dyn MergeOperator>, Error> {
        let built_in =
            self.merge_operator.as_deref().ok_or(MergeObstacle::NotNamed).and_then(merge::built_in);
        built_in.map_err(|reason| Error::MergeOperator { family: self.name.clone(), reason })
    }

    /// The value that was found, merged if need be by the operator that is given, or by the one that the OPTIONS file names.
    ///
    /// # Errors
    /// When nobody knows how to merge.
    pub fn value(
        &self,
        key: &[u8],
        found: Found,
        operator: Option<&Arc<dyn MergeOperator>>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let (operands, base) = match found {
            Found::Absent => return Ok(None),
            Found::Value(value) => return Ok(Some(value)),
            Found::Merge { operands, base } => (operands, base),
        };
        let operator = operator.map_or_else(|| self.merge_operator(), |operator| Ok(operator.clone()))?;
        let oldest_first: Vec<&[u8]> = operands.iter().rev().map(Vec::as_slice).collect();
        let merged = operator.merge(key, base.as_deref(), &oldest_first);
        let refused = || Error::MergeOperator { family: self.name.clone(), reason: MergeObstacle::Refused };
        merged.map(Some).ok_or_else(refused)
    }
}

/// All column families at one instant.
#[derive(Debug)]
pub struct View<H> {
    pub(crate) families: BTreeMap<String, Result<Arc<Version<H>>, Unsupported>>,
    pub(crate) last_sequence: Sequence,
}

impl<H> View<H> {
    /// The column families' names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.families.keys().map(String::as_str)
    }

    /// A column family.
    ///
    /// # Errors
    /// When there is none of that name, or it cannot be read.
    pub fn family(&self, name: &str) -> Result<Arc<Version<H>>, Error> {
        match self.families.get(name) {
            None => Err(Error::NoColumnFamily(name.to_owned())),
            Some(Ok(version)) => Ok(version.clone()),
            Some(Err(what)) => {
                Err(Error::Unsupported { file: format!("column family {name:?}"), what: what.clone() })
            }
        }
    }

    /// The newest write that was seen. Lookups at it see as much as those at [`Sequence::MAX`].
    #[must_use]
    pub const fn last_sequence(&self) -> Sequence {
        self.last_sequence
    }

    pub(crate) fn has_table(&self, name: &str) -> bool {
        let versions = self.families.values().flatten();
        versions.flat_map(|version| version.levels.iter().flatten()).any(|table| table.name == name)
    }
}
