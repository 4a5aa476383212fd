//! Points that tiers and servers come by, seen from outside: what a host decides, by what it is (each step of taking a segment, of sealing,
//! copying, compacting and letting go is something that it posts or commits), and what a chunk server is asked. A seed may say what happens to
//! whoever comes by one of them for the nth time, just before or just after, so that rare orders are not left to luck.

use std::collections::BTreeMap;
use std::time::Duration;

use ob_core::SegmentName;
use ob_format::volume::metadata::{Chunk, ChunkState, Segment, SegmentState};
use ob_sim::{Death, Report, Rng};
use ob_volume::metadata::{Change, Keys, MetadataOp, MetadataValue, Name, Transaction};
use ob_volume::plans::VolumePlan;
use ob_volume::tier::TierAction;
use ob_volume::wire::{Kind, RequestMessage};

use super::plan::pick;

/// What happens to who comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    /// The host's process dies, and is back so much later.
    HostDies(Duration),
    /// The card dies; for a server: its process or its machine.
    Dies(Death, Duration),
    /// The host stands still, with what it has decided in its hands; a server stands still.
    Pauses(Duration),
    /// Its session ends, and it hears nothing of the store for a while.
    Disowned(Duration),
}

/// Of points of which half one is.
#[derive(Clone, Debug)]
pub(super) struct Armed {
    point: &'static str,
    /// How often somebody comes by before.
    spared: u64,
    pub(super) deed: Deed,
    /// Before what is decided there is done.
    pub(super) is_before: bool,
}

/// Those that a seed may name.
pub(super) const POINTS: &[&str] = &[
    "post: read",
    "post: write",
    "post: trim",
    "post: answer",
    "post: copy",
    "post: look",
    "post: index",
    "post: move",
    "call: hello",
    "call: create",
    "call: stop",
    "call: seal",
    "call: delete",
    "call: stat",
    "call: chunks",
    "call: fence",
    "call: check",
    "store: grant",
    "store: renew",
    "store: revoke",
    "commit: pool",
    "commit: tier",
    "commit: wanted",
    "commit: taken",
    "commit: owned",
    "commit: released",
    "commit: head",
    "commit: open",
    "commit: sealed",
    "commit: sealed and next",
    "commit: dead",
    "commit: erased",
    "server: hello",
    "server: create",
    "server: append",
    "server: read",
    "server: stop",
    "server: fill",
    "server: seal",
    "server: delete",
    "server: stat",
    "server: list",
    "server: chunks",
    "server: fence",
    "server: repair",
    "server: check",
];

/// Which of them were come by, and what is to happen there.
#[derive(Default)]
pub(super) struct Points {
    came: BTreeMap<&'static str, u64>,
    armed: Vec<Armed>,
    heads: BTreeMap<SegmentName, Option<ob_format::volume::metadata::Head>>,
    struck: u64,
}

impl Points {
    /// Draws what is to happen: nothing in half of all seeds.
    pub(super) fn draw(rng: &mut Rng, has_others: bool) -> Self {
        let count = pick(rng, &[0, 0, 1, 3]);
        let armed = (0..count).map(|_| {
            let brief = rng.skewed(Duration::from_micros(10)..Duration::from_secs(5));
            let long = rng.duration(Duration::from_millis(500)..Duration::from_secs(7));
            let death = pick(rng, &[Death::Process, Death::Power]);
            let point = pick(rng, POINTS);
            let deed = match rng.below(6) {
                0 | 1 if point.starts_with("server") => Deed::Dies(death, brief),
                0 | 1 => Deed::HostDies(brief),
                2 => Deed::Dies(death, brief),
                3 | 4 if has_others => Deed::Disowned(long),
                _ => Deed::Pauses(long),
            };
            Armed { point, spared: pick(rng, &[0, 0, 1, 2, 5, 20]), deed, is_before: rng.one_in(2) }
        });
        Self { armed: armed.collect(), ..Self::default() }
    }

    /// Somebody comes by; what happens to it.
    pub(super) fn come(&mut self, point: &'static str) -> Option<Armed> {
        *self.came.entry(point).or_default() += 1;
        let at = self.armed.iter().position(|armed| armed.point == point && armed.spared == 0);
        let mut others = self.armed.iter_mut().filter(|armed| armed.point == point);
        others.by_ref().for_each(|armed| armed.spared = armed.spared.saturating_sub(1));
        self.struck += u64::from(at.is_some());
        at.map(|at| self.armed.remove(at))
    }

    /// Something happens to the next one that comes by.
    pub(super) fn arm(&mut self, point: &'static str, deed: Deed, is_before: bool) {
        self.armed.push(Armed { point, spared: 0, deed, is_before });
    }

    /// Nothing more happens.
    pub(super) fn disarm(&mut self) {
        self.armed.clear();
    }

    pub(super) fn count(&self, report: &mut Report) {
        self.came.iter().for_each(|(point, times)| report.count(point, *times));
        report.count("points struck", self.struck);
    }

    /// What a host has decided, as a point; nothing, if it is none.
    pub(super) fn of(&mut self, action: &TierAction, keys: &Keys) -> Option<&'static str> {
        match action {
            TierAction::Post { plan, .. } => match VolumePlan::decode(&plan.entry()).ok()? {
                VolumePlan::Read { .. } => Some("post: read"),
                VolumePlan::Write { .. } | VolumePlan::Given(_) => Some("post: write"),
                VolumePlan::Trim { .. } => Some("post: trim"),
                VolumePlan::Answer { .. } => Some("post: answer"),
                VolumePlan::Copy(_) => Some("post: copy"),
                VolumePlan::Look(_) => Some("post: look"),
                VolumePlan::Index(_) => Some("post: index"),
                VolumePlan::Move(_) => Some("post: move"),
                VolumePlan::Call { header, .. } => call(RequestMessage::decode(header).ok()?.request.kind()),
                VolumePlan::Take { .. } | VolumePlan::Press(_) => None,
            },
            TierAction::Metadata(_, MetadataOp::Grant { .. }) => Some("store: grant"),
            TierAction::Metadata(_, MetadataOp::Renew { .. }) => Some("store: renew"),
            TierAction::Metadata(_, MetadataOp::Revoke { .. }) => Some("store: revoke"),
            TierAction::Metadata(_, MetadataOp::Commit(transaction)) => self.of_commit(transaction, keys),
            _ => None,
        }
    }

    fn of_commit(&mut self, transaction: &Transaction, keys: &Keys) -> Option<&'static str> {
        let (mut is_open, mut is_sealed, mut other) = (false, false, None);
        for change in &transaction.change {
            let (key, value) = match change {
                Change::Put { key, value, .. } => (key, Some(value)),
                Change::Delete { key } => (key, None),
            };
            let name = keys.parse(key)?;
            let value = value.and_then(|value| MetadataValue::decode(&name, value.bytes()).ok());
            match (name, value) {
                (Name::Segment(name), Some(MetadataValue::Segment(segment))) => {
                    return Some(self.of_segment(name, &segment));
                }
                (Name::Chunk(_), Some(MetadataValue::Chunk(Chunk { state, .. }))) => match state {
                    ChunkState::Open => is_open = true,
                    ChunkState::Sealed => is_sealed = true,
                    ChunkState::Dead => other = Some("commit: dead"),
                },
                (Name::Chunk(_), None) => other = Some("commit: erased"),
                (Name::Pool, _) => return Some("commit: pool"),
                (Name::Tier(_), _) => return Some("commit: tier"),
                (Name::Wanted(_), _) => return Some("commit: wanted"),
                _ => {}
            }
        }
        match (is_sealed, is_open) {
            (true, true) => Some("commit: sealed and next"),
            (true, false) => Some("commit: sealed"),
            (false, true) => Some("commit: open"),
            (false, false) => other,
        }
    }

    fn of_segment(&mut self, name: SegmentName, segment: &Segment) -> &'static str {
        let before = self.heads.insert(name, segment.head);
        match segment.state {
            _ if before.is_some_and(|before| before != segment.head) => "commit: head",
            SegmentState::Taken => "commit: taken",
            SegmentState::Owned => "commit: owned",
            SegmentState::Released => "commit: released",
            SegmentState::Behind => "commit: behind",
        }
    }
}

fn call(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::Hello => "call: hello",
        Kind::Create => "call: create",
        Kind::Stop => "call: stop",
        Kind::Seal => "call: seal",
        Kind::Delete => "call: delete",
        Kind::Stat => "call: stat",
        Kind::Chunks => "call: chunks",
        Kind::Fence => "call: fence",
        Kind::Check => "call: check",
        _ => return None,
    })
}
