//! What the manifest's records come to: column families, their tables and logs.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Damage;
use crate::keys::Sequence;
use crate::manifest::{Edit, TableFacts};

/// A column family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FamilyState {
    /// Its name.
    pub name: String,
    /// The comparator's name, if a record had it.
    pub comparator: Option<String>,
    /// Logs before this one are not needed.
    pub log_number: u64,
    /// Its tables by number, with their levels.
    pub tables: BTreeMap<u64, (u32, Arc<TableFacts>)>,
}

/// All that the manifest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Column families by number.
    pub families: BTreeMap<u32, FamilyState>,
    /// The largest number that a column family has had.
    pub max_family: u32,
    /// The newest write.
    pub last_sequence: Sequence,
    /// Logs before this one are not needed at all.
    pub min_log_number: u64,
    /// Logs that the manifest knows, with how many bytes of them were synced.
    pub logs: BTreeMap<u64, u64>,
    // Records of a group that is not whole yet.
    group: Vec<Edit>,
    // What tables, column families and that group take, roughly.
    bytes: usize,
}

impl Default for State {
    fn default() -> Self {
        let default = FamilyState { name: "default".to_owned(), ..FamilyState::default() };
        let bytes = family_len(&default);
        Self {
            families: [(0, default)].into(),
            max_family: 0,
            last_sequence: Sequence(0),
            min_log_number: 0,
            logs: BTreeMap::new(),
            group: Vec::new(),
            bytes,
        }
    }
}

// What an entry of a map takes beside its own bytes, roughly.
const ENTRY_LEN: usize = 64;

fn table_len(facts: &TableFacts) -> usize {
    ENTRY_LEN + size_of::<TableFacts>() + facts.smallest.len() + facts.largest.len()
}

fn edit_len(edit: &Edit) -> usize {
    let names = [&edit.added_family, &edit.comparator].into_iter().flatten().map(String::len).sum::<usize>();
    let tables = edit.added.iter().map(|(_, facts)| table_len(facts)).sum::<usize>();
    let small = size_of_val(&edit.deleted[..]) + size_of_val(&edit.added_logs[..]);
    ENTRY_LEN + size_of::<Edit>() + names + tables + small
}

fn family_len(family: &FamilyState) -> usize {
    let tables = family.tables.values().map(|(_, facts)| table_len(facts)).sum::<usize>();
    let comparator = family.comparator.as_ref().map_or(0, String::len);
    ENTRY_LEN + size_of::<FamilyState>() + family.name.len() + comparator + tables
}

// Groups have a record a column family or two.
const GROUP_MAX: usize = 1 << 20;

impl State {
    /// The first log that some column family needs.
    #[must_use]
    pub fn first_log(&self) -> u64 {
        let needed = self.families.values().map(|family| family.log_number).min();
        needed.unwrap_or(0).max(self.min_log_number)
    }

    /// What it takes in memory, roughly.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes + self.logs.len() * ENTRY_LEN
    }

    /// Takes a record. Those of a group are taken with its last one.
    ///
    /// # Errors
    /// When it does not fit what was there.
    pub fn take(&mut self, edit: Edit) -> Result<(), Damage> {
        match edit.group_remaining {
            None if self.group.is_empty() => self.apply(edit),
            None => Err(Damage::Malformed("a record stands within a group and does not belong to it")),
            Some(_) if self.group.len() >= GROUP_MAX => {
                Err(Damage::Malformed("a group of records is too large"))
            }
            Some(remaining) => {
                if let Some(before) = self.group.last().and_then(|before| before.group_remaining)
                    && before != remaining.wrapping_add(1)
                {
                    return Err(Damage::Malformed("the records of a group are out of order"));
                }
                self.bytes += edit_len(&edit);
                self.group.push(edit);
                if remaining == 0 {
                    for edit in std::mem::take(&mut self.group) {
                        self.bytes -= edit_len(&edit);
                        self.apply(edit)?;
                    }
                }
                Ok(())
            }
        }
    }

    fn apply(&mut self, edit: Edit) -> Result<(), Damage> {
        self.last_sequence = self.last_sequence.max(edit.last_sequence.unwrap_or_default());
        self.min_log_number = self.min_log_number.max(edit.min_log_number_to_keep.unwrap_or_default());
        self.max_family = self.max_family.max(edit.max_family.unwrap_or_default()).max(edit.family);
        for (number, synced) in edit.added_logs {
            let known = self.logs.entry(number).or_default();
            *known = synced.unwrap_or_default().max(*known);
        }
        if let Some(before) = edit.deleted_logs {
            self.logs = self.logs.split_off(&before);
        }
        if let Some(name) = edit.added_family {
            let family = FamilyState { name, ..FamilyState::default() };
            self.bytes += family_len(&family);
            if self.families.insert(edit.family, family).is_some() {
                return Err(Damage::Malformed("a column family is added that is there"));
            }
        }
        if edit.drops_family {
            let dropped = self.families.remove(&edit.family);
            self.bytes -= dropped.as_ref().map_or(0, family_len);
            return dropped
                .map(drop)
                .ok_or(Damage::Malformed("a column family is dropped that is not there"));
        }
        // Records of a family that was dropped may come late, and say nothing.
        let Some(family) = self.families.get_mut(&edit.family) else { return Ok(()) };
        if let Some(comparator) = edit.comparator {
            self.bytes += comparator.len();
            self.bytes -= family.comparator.replace(comparator).map_or(0, |before| before.len());
        }
        family.log_number = family.log_number.max(edit.log_number.unwrap_or_default());
        for (level, number) in edit.deleted {
            match family.tables.remove(&number) {
                Some((found, facts)) if found == level => self.bytes -= table_len(&facts),
                _ => return Err(Damage::Malformed("a table is deleted that is not there")),
            }
        }
        for (level, facts) in edit.added {
            self.bytes += table_len(&facts);
            if family.tables.insert(facts.number, (level, Arc::new(facts))).is_some() {
                return Err(Damage::Malformed("a table is added that is there"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Kind, encode};

    fn table(number: u64) -> TableFacts {
        TableFacts {
            number,
            len: 100,
            smallest: encode(b"a", Sequence(1), Kind::Value),
            largest: encode(b"b", Sequence(1), Kind::Value),
            smallest_sequence: Sequence(1),
            largest_sequence: Sequence(1),
            epoch: 0,
        }
    }

    /// What it takes is what a count of everything comes to.
    fn check_bytes(state: &State) {
        let families = state.families.values().map(family_len).sum::<usize>();
        let group = state.group.iter().map(edit_len).sum::<usize>();
        assert_eq!(state.bytes(), families + group + state.logs.len() * ENTRY_LEN);
    }

    fn numbers(state: &State, family: u32) -> Vec<u64> {
        state.families[&family].tables.keys().copied().collect()
    }

    #[test]
    fn tables_come_and_go() {
        let mut state = State::default();
        state
            .take(Edit { added: vec![(0, table(7)), (1, table(8))], log_number: Some(5), ..Edit::default() })
            .unwrap();
        // A table may move to another level within one record.
        state.take(Edit { deleted: vec![(0, 7)], added: vec![(2, table(7))], ..Edit::default() }).unwrap();
        assert_eq!((numbers(&state, 0), state.first_log()), (vec![7, 8], 5));
        check_bytes(&state);
        for comparator in ["some", "another"] {
            state.take(Edit { comparator: Some(comparator.into()), ..Edit::default() }).unwrap();
            check_bytes(&state);
        }
        assert_eq!(state.families[&0].tables[&7].0, 2);
        assert!(state.take(Edit { deleted: vec![(0, 7)], ..Edit::default() }).is_err(), "it is at level 2");
        assert!(state.take(Edit { added: vec![(0, table(8))], ..Edit::default() }).is_err(), "it is there");
    }

    #[test]
    fn a_group_is_taken_at_once() {
        let of = |remaining, number| Edit {
            group_remaining: Some(remaining),
            added: vec![(0, table(number))],
            ..Edit::default()
        };
        let mut state = State::default();
        state.take(of(1, 1)).unwrap();
        assert_eq!(numbers(&state, 0), [0_u64; 0]);
        check_bytes(&state);
        let mut other = state.clone();
        state.take(of(0, 2)).unwrap();
        assert_eq!(numbers(&state, 0), [1, 2]);
        check_bytes(&state);
        assert!(other.clone().take(of(1, 2)).is_err());
        assert!(other.take(Edit::default()).is_err());
    }

    #[test]
    fn families_come_and_go() {
        let mut state = State::default();
        let added =
            Edit { family: 3, added_family: Some("x".into()), log_number: Some(9), ..Edit::default() };
        state.take(added).unwrap();
        assert_eq!((state.max_family, state.first_log()), (3, 0));
        state.take(Edit { family: 3, added: vec![(0, table(5))], ..Edit::default() }).unwrap();
        check_bytes(&state);
        state.take(Edit { family: 3, drops_family: true, ..Edit::default() }).unwrap();
        assert!(!state.families.contains_key(&3));
        check_bytes(&state);
        assert!(state.take(Edit { family: 3, drops_family: true, ..Edit::default() }).is_err());
        assert_eq!(state.max_family, 3, "its number is not given again");
    }
}
