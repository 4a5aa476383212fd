//! A subsystem: its namespaces, who may connect to it, and how it has fared.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ob_wire_nvme::log::AnaState;
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{ControllerId, Status};

use super::IoCount;
use super::reservation::ReservationState;
use super::spec::{Backing, HostPolicy, HostSecrets, NamespaceKey, PortKey, SubsystemSpec};

/// A namespace as the I/O path sees it.
#[derive(Debug)]
pub struct Namespace {
    /// Which, forever.
    pub key: NamespaceKey,
    /// NSID.
    pub nsid: u32,
    /// Where its blocks are.
    pub backing: Backing,
    /// How many.
    pub blocks: u64,
    /// Bytes of each.
    pub block_len: u32,
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Its NGUID.
    pub nguid: [u8; 16],
    /// Whether completed writes may be lost until a flush.
    pub volatile_cache: bool,
    /// Whether deallocated blocks read as zeroes.
    pub deallocated_reads_zero: bool,
    /// By what space is given back, in bytes.
    pub deallocate_len: u32,
    /// ANAGRPID.
    pub ana_group: u32,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Bytes that are taken for it, where that happens as it is written.
    pub(super) taken: Option<Arc<AtomicU64>>,
    /// Who has registered and who holds it.
    pub(super) reservations: ReservationState,
    /// The version of those that is being saved, until it is.
    pub(super) saving: Option<u64>,
}

/// A subsystem.
#[derive(Debug)]
pub(super) struct Subsystem {
    pub(super) spec: SubsystemSpec,
    /// By NSID less one.
    namespaces: Vec<Option<Namespace>>,
    /// NSIDs whose namespaces were removed, the first of them first.
    left: Vec<u32>,
    /// States other than optimized.
    ana_states: Vec<(PortKey, u32, AnaState)>,
    /// Change counts by ANAGRPID less one.
    ana_changes: Vec<u64>,
    /// CHGCNT of the whole ANA log.
    pub(super) ana_change_count: u64,
    pub(super) health: Health,
    cntlid_last: u16,
}

impl Subsystem {
    /// `start` is any number: it says where in their range CNTLIDs begin. A host that still looks for its controllers of an
    /// earlier life refuses a new one with the CNTLID of one of them (Linux, `nvme_validate_cntlid`).
    pub(super) fn new(spec: SubsystemSpec, ana_groups: u32, start: u16) -> Self {
        let (first, last) = (spec.controller_first, spec.controller_last);
        let count = u32::from(last.saturating_sub(first)) + 1;
        // The remainder is below the length of a range within 16 bits.
        let begin = first.saturating_add((u32::from(start) % count) as u16);
        Self {
            cntlid_last: if begin > first { begin - 1 } else { last },
            spec,
            namespaces: Vec::new(),
            left: Vec::new(),
            ana_states: Vec::new(),
            ana_changes: vec![0; ana_groups as usize],
            ana_change_count: 0,
            health: Health::default(),
        }
    }

    pub(super) fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        self.namespaces.get(nsid.checked_sub(1)? as usize)?.as_ref()
    }

    pub(super) fn namespace_mut(&mut self, nsid: u32) -> Option<&mut Namespace> {
        self.namespaces.get_mut(nsid.checked_sub(1)? as usize)?.as_mut()
    }

    pub(super) fn namespace_with_key(&mut self, key: NamespaceKey) -> Option<&mut Namespace> {
        self.namespaces.iter_mut().flatten().find(|namespace| namespace.key == key)
    }

    /// Ascending by NSID.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.namespaces.iter().flatten()
    }

    /// The lowest NSID that no namespace has had; if there is none, the one that was given up first. A host that has not
    /// heard yet of a removal would write on whatever has the NSID now, so it is used again as late as can be.
    pub(super) fn free_nsid(&self, max: u32) -> Option<u32> {
        let is_new = |nsid: &u32| self.namespace(*nsid).is_none() && !self.left.contains(nsid);
        (1..=max).find(is_new).or_else(|| self.left.first().copied())
    }

    /// The caller has made sure that the NSID is free, not 0 and within the limit.
    pub(super) fn insert(&mut self, namespace: Namespace) {
        let index = namespace.nsid.saturating_sub(1) as usize;
        self.left.retain(|left| *left != namespace.nsid);
        if self.namespaces.len() <= index {
            self.namespaces.resize_with(index + 1, || None);
        }
        self.bump_ana(namespace.ana_group);
        if let Some(slot) = self.namespaces.get_mut(index) {
            *slot = Some(namespace);
        }
    }

    pub(super) fn remove(&mut self, nsid: u32) -> Option<Namespace> {
        let removed = self.namespaces.get_mut(nsid.checked_sub(1)? as usize)?.take()?;
        self.bump_ana(removed.ana_group);
        self.left.push(nsid);
        Some(removed)
    }

    pub(super) fn ana_state(&self, port: PortKey, group: u32) -> AnaState {
        let found = self.ana_states.iter().find(|(at, which, _)| *at == port && *which == group);
        found.map_or(AnaState::Optimized, |(_, _, state)| *state)
    }

    /// Returns whether that is a change.
    pub(super) fn set_ana_state(&mut self, port: PortKey, group: u32, state: AnaState) -> bool {
        if self.ana_state(port, group) == state {
            return false;
        }
        self.ana_states.retain(|(at, which, _)| *at != port || *which != group);
        if state != AnaState::Optimized {
            self.ana_states.push((port, group, state));
        }
        self.bump_ana(group);
        true
    }

    pub(super) fn ana_changes(&self, group: u32) -> u64 {
        group.checked_sub(1).and_then(|index| self.ana_changes.get(index as usize)).copied().unwrap_or(0)
    }

    pub(super) fn bump_ana(&mut self, group: u32) {
        self.ana_change_count = self.ana_change_count.wrapping_add(1);
        if let Some(count) = group.checked_sub(1).and_then(|index| self.ana_changes.get_mut(index as usize)) {
            *count = count.wrapping_add(1);
        }
    }

    /// Whether it is served on a port that is not for discovery alone.
    pub(super) fn is_on(&self, port: PortKey) -> bool {
        self.spec.ports.is_empty() || self.spec.ports.contains(&port)
    }

    /// Whether a host may connect, and what it has to prove.
    pub(super) fn admits(&self, host: &Nqn) -> Option<Option<&HostSecrets>> {
        match &self.spec.hosts {
            HostPolicy::Any => Some(None),
            HostPolicy::Listed(hosts) => {
                let found = hosts.iter().find(|known| known.nqn == *host)?;
                Some(found.secrets.as_ref())
            }
        }
    }

    /// A CNTLID that `is_used` does not know, going round, so that one that ended is not given out again soon.
    pub(super) fn next_cntlid(&mut self, is_used: impl Fn(u16) -> bool) -> Option<ControllerId> {
        let range = self.spec.controller_first..=self.spec.controller_last;
        let after = self.cntlid_last.saturating_add(1)..=self.spec.controller_last;
        let found = after.chain(range).find(|candidate| !is_used(*candidate))?;
        self.cntlid_last = found;
        Some(ControllerId(found))
    }
}

/// What the SMART / Health log tells (Base §5.16.1.3).
#[derive(Debug, Default)]
pub(super) struct Health {
    pub(super) bytes_read: u128,
    pub(super) bytes_written: u128,
    pub(super) reads: u128,
    pub(super) writes: u128,
    pub(super) media_errors: u128,
    pub(super) errors: u128,
}

impl Health {
    pub(super) fn count(&mut self, count: IoCount) {
        match count {
            IoCount::Read(bytes) => {
                self.reads += 1;
                self.bytes_read += u128::from(bytes);
            }
            IoCount::Write(bytes) => {
                self.writes += 1;
                self.bytes_written += u128::from(bytes);
            }
            IoCount::Other => {}
        }
    }

    pub(super) fn count_error(&mut self, status: Status) {
        self.errors += 1;
        // Data integrity errors; a compare that found a difference is none.
        if status.kind() == 2 && !status.is(Status::COMPARE_FAILURE) {
            self.media_errors += 1;
        }
    }
}
