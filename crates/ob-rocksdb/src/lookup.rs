//! How findings about a key become an answer, wherever they come from: newest first, one source after the other.

use crate::error::Unsupported;
use crate::keys::{Kind, Sequence};
use crate::plant::{Bug, is_planted};

/// One entry of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it was written.
    pub sequence: Sequence,
    /// What it is.
    pub kind: Kind,
    /// The value or operand.
    pub value: Vec<u8>,
}

/// What one source knows of a key at a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Finding {
    /// Entries that are visible, newest first, up to the first that is no merge operand.
    pub entries: Vec<Entry>,
    /// The newest visible tombstone of a range that spans the key; 0 if none does.
    pub covering: Sequence,
}

/// What a key has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing: it was never written, or is deleted.
    Absent,
    /// A value.
    Value(Vec<u8>),
    /// Operands that have to be merged.
    Merge {
        /// Newest first.
        operands: Vec<Vec<u8>>,
        /// The value below the oldest of them.
        base: Option<Vec<u8>>,
    },
}

/// A lookup under way.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    operands: Vec<Vec<u8>>,
    covering: Sequence,
    found: Option<Found>,
}

impl Lookup {
    /// The answer, once there is one.
    #[must_use]
    pub const fn found(&self) -> Option<&Found> {
        self.found.as_ref()
    }

    /// Takes what the next source knows; sources come newest first. After the last source of a level everything older is below its
    /// tombstones, so one that spans the key ends the lookup.
    ///
    /// # Errors
    /// When an entry is of a kind that is not supported.
    pub fn absorb(&mut self, finding: &Finding, is_last_of_level: bool) -> Result<(), Unsupported> {
        self.covering = self.covering.max(finding.covering);
        for entry in &finding.entries {
            if self.found.is_some() {
                return Ok(());
            }
            if entry.sequence < self.covering {
                self.end(None);
                return Ok(());
            }
            match entry.kind {
                Kind::Value => self.end(Some(entry.value.clone())),
                Kind::Deletion | Kind::SingleDeletion => self.end(None),
                Kind::Merge => self.operands.push(entry.value.clone()),
                other => return Err(refusal(other)),
            }
        }
        if self.found.is_none() && is_last_of_level && self.covering > Sequence(0) {
            self.end(None);
        }
        Ok(())
    }

    /// The answer when no source is left.
    #[must_use]
    pub fn finish(mut self) -> Found {
        if self.found.is_none() {
            self.end(None);
        }
        self.found.unwrap_or(Found::Absent)
    }

    fn end(&mut self, base: Option<Vec<u8>>) {
        let operands = std::mem::take(&mut self.operands);
        self.found = Some(match base {
            base if !operands.is_empty() => {
                Found::Merge { operands, base: base.filter(|_| !is_planted(Bug::BaseForgotten)) }
            }
            Some(value) => Found::Value(value),
            None => Found::Absent,
        });
    }
}

/// Why an entry of a kind is not taken.
#[must_use]
pub const fn refusal(kind: Kind) -> Unsupported {
    match kind {
        Kind::BlobIndex => Unsupported::Blob,
        Kind::WideColumns => Unsupported::WideColumns,
        Kind::DeletionWithTimestamp => Unsupported::Timestamps,
        Kind::PreferredSequence => Unsupported::PreferredSequence,
        other => Unsupported::EntryKind(other.number()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(covering: u64, entries: &[(u64, Kind, &str)]) -> Finding {
        let entry = |(sequence, kind, value): &(u64, Kind, &str)| Entry {
            sequence: Sequence(*sequence),
            kind: *kind,
            value: value.as_bytes().to_vec(),
        };
        Finding { entries: entries.iter().map(entry).collect(), covering: Sequence(covering) }
    }

    fn looked_up(findings: &[Finding]) -> Result<Found, Unsupported> {
        let mut lookup = Lookup::default();
        for finding in findings {
            lookup.absorb(finding, true)?;
        }
        Ok(lookup.finish())
    }

    #[test]
    fn newest_wins() {
        let value = |text: &str| Ok(Found::Value(text.into()));
        let newer = finding(0, &[(9, Kind::Value, "new")]);
        let older = finding(0, &[(5, Kind::Value, "old")]);
        assert_eq!(looked_up(&[newer, older.clone()]), value("new"));
        assert_eq!(looked_up(&[finding(0, &[]), older.clone()]), value("old"));
        assert_eq!(
            looked_up(&[finding(0, &[(7, Kind::SingleDeletion, "")]), older.clone()]),
            Ok(Found::Absent)
        );
        assert_eq!(looked_up(&[finding(6, &[]), older.clone()]), Ok(Found::Absent), "below a tombstone");
        assert_eq!(looked_up(&[finding(4, &[(5, Kind::Value, "old")])]), value("old"), "above a tombstone");
        let merge = finding(0, &[(8, Kind::Merge, "b"), (7, Kind::Merge, "a")]);
        let operands = vec![b"b".to_vec(), b"a".to_vec()];
        let merged = |base: Option<&str>| {
            Ok(Found::Merge { operands: operands.clone(), base: base.map(|base| base.into()) })
        };
        assert_eq!(looked_up(&[merge.clone(), older.clone()]), merged(Some("old")));
        assert_eq!(looked_up(&[merge.clone(), finding(6, &[]), older]), merged(None));
        assert_eq!(looked_up(&[merge]), merged(None));
        assert_eq!(looked_up(&[finding(0, &[(1, Kind::BlobIndex, "")])]), Err(Unsupported::Blob));
    }
}
