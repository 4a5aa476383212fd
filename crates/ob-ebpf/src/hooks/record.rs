//! What lies in a scratch, for hooks that say more than numbers: records of fixed length, without padding.

use crate::world::is_same;

/// A record: one behind the other, its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What programs call it.
    pub name: &'static str,
    /// What it is for.
    pub purpose: &'static str,
    /// What it is made of.
    pub members: &'static [Member],
}

/// A member of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// What programs call it.
    pub name: &'static str,
    /// What it is.
    pub kind: MemberKind,
    /// What it is for.
    pub purpose: &'static str,
}

/// What a member is. Numbers have their lowest byte first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberKind {
    /// A number of four bytes.
    U32,
    /// A number of eight bytes.
    U64,
    /// So many bytes.
    Bytes(usize),
    /// So many records.
    Records(&'static Record, usize),
}

impl MemberKind {
    /// Bytes of it.
    #[must_use]
    pub const fn len(self) -> usize {
        match self {
            Self::U32 => 4,
            Self::U64 => 8,
            Self::Bytes(len) => len,
            Self::Records(record, count) => record.len() * count,
        }
    }

    /// Whether there is nothing of it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl Record {
    /// Bytes of it.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.offset_of_member(self.members.len())
    }

    /// Whether it has no members.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where a member begins; for constants, as there is no program to be had with a wrong name.
    ///
    /// # Panics
    ///
    /// When there is no such member.
    #[must_use]
    pub const fn offset_of(&self, name: &str) -> usize {
        let mut at = 0;
        while at < self.members.len() {
            if is_same(self.members[at].name.as_bytes(), name.as_bytes()) {
                return self.offset_of_member(at);
            }
            at += 1;
        }
        panic!("the record has no such member");
    }

    /// Where the member of this number begins; the end of the record, for the number behind the last.
    #[must_use]
    pub const fn offset_of_member(&self, number: usize) -> usize {
        let (mut at, mut offset) = (0, 0);
        while at < number && at < self.members.len() {
            offset += self.members[at].kind.len();
            at += 1;
        }
        offset
    }
}

#[cfg(test)]
mod tests {
    use crate::hooks::{ALL, RECORDS};

    use super::*;

    fn alignment(kind: MemberKind) -> usize {
        match kind {
            MemberKind::U32 => 4,
            MemberKind::U64 => 8,
            MemberKind::Bytes(_) => 1,
            MemberKind::Records(record, _) => alignment_of(record),
        }
    }

    fn alignment_of(record: &Record) -> usize {
        record.members.iter().map(|member| alignment(member.kind)).max().unwrap_or(1)
    }

    #[test]
    fn a_compiler_of_c_puts_members_where_the_tables_do() {
        for record in RECORDS {
            for (number, member) in record.members.iter().enumerate() {
                assert_eq!(record.offset_of_member(number) % alignment(member.kind), 0, "{}", member.name);
            }
            assert_eq!(record.len() % alignment_of(record), 0, "{}", record.name);
        }
    }

    #[test]
    fn a_scratch_is_as_long_as_its_record() {
        for world in ALL {
            let name = format!("ob_{}_scratch", world.name);
            if let Some(record) = RECORDS.iter().find(|record| record.name == name) {
                assert_eq!(record.len(), world.scratch_len as usize, "{name}");
            }
        }
    }
}
