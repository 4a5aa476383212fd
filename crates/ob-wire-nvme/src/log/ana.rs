//! Asymmetric namespace access, LID 0Ch (Base §5.16.1.13, §8.1).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::id::NamespaceId;

layout! {
    /// Begins the ANA log.
    AnaHeader[16] {
        /// Change count.
        0 => changes: U64,
        /// Number of group descriptors.
        8 => groups: U16,
        /// Reserved.
        10 => reserved: [u8; 6],
    }

    /// Begins a group's descriptor; its namespaces follow.
    AnaGroupHeader[32] {
        /// ANA Group ID, from 1.
        0 => group: U32,
        /// Number of NSID values.
        4 => namespaces: U32,
        /// Change count.
        8 => changes: U64,
        /// Bits 3:0 the state.
        16 => state: u8,
        /// Reserved.
        17 => reserved: [u8; 15],
    }
}

codes! {
    /// States of a group (Base §8.1.3).
    AnaState: u8, "ANA state" {
        /// The best way to the namespaces.
        Optimized = 0x1,
        /// A way, but not the best.
        NonOptimized = 0x2,
        /// No way, at present.
        Inaccessible = 0x3,
        /// No way, for good.
        PersistentLoss = 0x4,
        /// Between two states.
        Change = 0xF,
    }
}

/// A group of namespaces that have one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// ANAGRPID, from 1.
    pub group: u32,
    /// Change count, by which hosts see what is newer.
    pub changes: u64,
    /// The state.
    pub state: AnaState,
    /// Its namespaces, in rising order; empty if only groups were asked for.
    pub namespaces: Vec<NamespaceId>,
}

/// The log. Groups come in rising order; with `groups_only` (LSP bit 0, RGO) without their namespaces.
#[must_use]
pub fn ana_log(changes: u64, groups: &[AnaGroup], groups_only: bool) -> Vec<u8> {
    let count = groups.len().min(usize::from(u16::MAX)) as u16;
    let header = AnaHeader { changes: changes.into(), groups: count.into(), ..AnaHeader::default() };
    let mut log = header.as_bytes().to_vec();
    for group in groups.iter().take(usize::from(count)) {
        let namespaces = if groups_only { &[] } else { group.namespaces.as_slice() };
        let header = AnaGroupHeader {
            group: group.group.into(),
            namespaces: (namespaces.len() as u32).into(),
            changes: group.changes.into(),
            state: group.state.code(),
            ..AnaGroupHeader::default()
        };
        log.extend_from_slice(header.as_bytes());
        for namespace in namespaces {
            log.extend_from_slice(&namespace.0.to_le_bytes());
        }
    }
    log
}

/// What is wrong with an ANA log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnaLogError {
    /// A descriptor reaches beyond the log.
    #[error("the ANA log is shorter than it says")]
    Length,
    /// No such group or state.
    #[error("ANA group {group} in state {state:#x}")]
    Group {
        /// ANAGRPID.
        group: u32,
        /// The state.
        state: u8,
    },
}

/// Reads a log, as an initiator has to: the change count and the groups. What it allocates is bounded by what is there.
pub fn parse_ana_log(bytes: &[u8]) -> Result<(u64, Vec<AnaGroup>), AnaLogError> {
    let (header, mut rest) = AnaHeader::read_from_prefix(bytes).map_err(|_| AnaLogError::Length)?;
    let mut groups = Vec::new();
    for _ in 0..header.groups.get() {
        let (group, behind) = AnaGroupHeader::read_from_prefix(rest).map_err(|_| AnaLogError::Length)?;
        let count = group.namespaces.get() as usize;
        let (namespaces, behind) =
            <[U32]>::ref_from_prefix_with_elems(behind, count).map_err(|_| AnaLogError::Length)?;
        let id = group.group.get();
        let state = AnaState::try_from(group.state & 0xF).ok().filter(|_| id != 0);
        let state = state.ok_or(AnaLogError::Group { group: id, state: group.state })?;
        let namespaces = namespaces.iter().map(|namespace| NamespaceId(namespace.get())).collect();
        groups.push(AnaGroup { group: id, changes: group.changes.get(), state, namespaces });
        rest = behind;
    }
    Ok((header.changes.get(), groups))
}
