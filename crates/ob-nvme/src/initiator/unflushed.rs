//! Which completed changes no flush has spoken for.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use ob_wire_nvme::command::{DataDirection, IoOpcode};
use ob_wire_nvme::io::BlockCommand;
use ob_wire_nvme::{NamespaceId, SubmissionEntry};

/// Associations whose changes are told apart; older ones are counted to the oldest.
const ASSOCIATIONS_MAX: usize = 4;

/// Changes that are complete and were not flushed since. They are numbered in the order of their completion.
///
/// A flush speaks for what its own association has completed before it began; a target that came back may have lost the
/// rest. Such a loss is found by one flush and concerns everybody who wrote, so it is counted, and each
/// [`Namespace`](super::Namespace) remembers how many it was told of.
#[derive(Default)]
pub(super) struct Unflushed {
    changes: u64,
    namespaces: BTreeMap<NamespaceId, Changes>,
}

#[derive(Default)]
struct Changes {
    /// By the association that completed them.
    associations: BTreeMap<u64, RangeInclusive<u64>>,
    /// How often a flush has found that some of them may be gone.
    losses: u64,
}

impl Unflushed {
    /// A change is complete and not known to be durable.
    pub(super) fn changed(&mut self, namespace: NamespaceId, association: u64) {
        self.changes += 1;
        let number = self.changes;
        let associations = &mut self.namespaces.entry(namespace).or_default().associations;
        let first = associations.get(&association).map_or(number, |changes| *changes.start());
        associations.insert(association, first..=number);
        if associations.len() > ASSOCIATIONS_MAX
            && let Some((oldest, changes)) = associations.pop_first()
            && let Some((_, next)) = associations.pop_first()
        {
            let first = *changes.start().min(next.start());
            associations.insert(oldest, first..=*changes.end().max(next.end()));
        }
    }

    /// The newest change that a flush which begins now is to make durable.
    pub(super) fn flush_begins(&self) -> u64 {
        self.changes
    }

    /// A flush that began then is done: how many losses are known now.
    pub(super) fn flushed(&mut self, namespace: NamespaceId, begun: u64, association: u64) -> u64 {
        let Some(changes) = self.namespaces.get_mut(&namespace) else { return 0 };
        let is_lost =
            |known: &u64, changes: &RangeInclusive<u64>| *known < association && *changes.start() <= begun;
        let has_lost = changes.associations.iter().any(|(known, changes)| is_lost(known, changes));
        // What was completed meanwhile waits for the next one.
        changes.associations.retain(|_, changes| {
            *changes = *changes.start().max(&(begun + 1))..=*changes.end();
            !changes.is_empty()
        });
        changes.losses += u64::from(has_lost);
        changes.losses
    }

    /// How many losses are known.
    pub(super) fn losses(&self, namespace: NamespaceId) -> u64 {
        self.namespaces.get(&namespace).map_or(0, |changes| changes.losses)
    }
}

/// The namespace that an I/O command changes so that a flush has to follow. Deallocated blocks have no content that
/// anybody relies on. Of commands that are not known here, those that bring data are taken for changes.
pub(super) fn changed_by(entry: &SubmissionEntry) -> Option<NamespaceId> {
    let must_be_flushed = match IoOpcode::try_from(entry.opcode) {
        Ok(IoOpcode::Write | IoOpcode::WriteZeroes) => {
            BlockCommand::parse(entry).is_ok_and(|command| !command.force_unit_access)
        }
        Ok(IoOpcode::WriteUncorrectable | IoOpcode::Copy) => true,
        Ok(_) => false,
        Err(_) => matches!(entry.direction(), DataDirection::ToController | DataDirection::Both),
    };
    must_be_flushed.then(|| entry.namespace())
}

#[cfg(test)]
mod tests {
    use ob_wire_nvme::{CommandId, DataPointer};

    use super::*;

    const ONE: NamespaceId = NamespaceId(1);

    #[test]
    fn a_flush_speaks_for_what_was_complete_when_it_began_and_for_its_own_association() {
        let mut unflushed = Unflushed::default();
        unflushed.changed(ONE, 1);
        let [first, second] = [unflushed.flush_begins(), unflushed.flush_begins()];
        assert_eq!(unflushed.flushed(ONE, second, 1), 0);
        unflushed.changed(ONE, 1);
        // One that began before the change says nothing of it.
        assert_eq!(unflushed.flushed(ONE, first, 1), 0);
        let third = unflushed.flush_begins();
        unflushed.changed(ONE, 1);
        assert_eq!(unflushed.flushed(ONE, third, 2), 1);
        assert_eq!(
            unflushed.flushed(ONE, unflushed.flush_begins(), 2),
            2,
            "the one that came after it began"
        );
        assert_eq!(unflushed.flushed(ONE, unflushed.flush_begins(), 2), 2);
        for association in 2..100 {
            unflushed.changed(ONE, association);
        }
        assert!(unflushed.namespaces[&ONE].associations.len() <= ASSOCIATIONS_MAX);
        assert_eq!(unflushed.flushed(NamespaceId(2), unflushed.flush_begins(), 100), 0);
        assert_eq!(unflushed.flushed(ONE, unflushed.flush_begins(), 100), 3);
        assert_eq!((unflushed.losses(ONE), unflushed.losses(NamespaceId(2))), (3, 0));
    }

    #[test]
    fn changes_are_what_stores_data_and_does_not_say_that_it_is_durable() {
        let block = |opcode, force_unit_access| {
            let command = BlockCommand { force_unit_access, ..BlockCommand::new(ONE, 0, 1) };
            changed_by(&command.encode(opcode, CommandId(0), DataPointer::None))
        };
        for opcode in [IoOpcode::Write, IoOpcode::WriteZeroes] {
            assert_eq!((block(opcode, false), block(opcode, true)), (Some(ONE), None), "{opcode:?}");
        }
        let other = |opcode| changed_by(&SubmissionEntry::new(opcode, CommandId(0), ONE));
        for opcode in [IoOpcode::WriteUncorrectable.code(), IoOpcode::Copy.code(), 0x7D, 0xC1, 0xC3] {
            assert_eq!(other(opcode), Some(ONE), "{opcode:#x}");
        }
        let harmless = [IoOpcode::Flush, IoOpcode::Read, IoOpcode::Compare, IoOpcode::ReservationRegister];
        for opcode in harmless.map(IoOpcode::code).into_iter().chain([0xC0, 0xC2]) {
            assert_eq!(other(opcode), None, "{opcode:#x}");
        }
    }
}
