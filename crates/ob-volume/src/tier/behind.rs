//! A metadata store that was brought back from a copy: it knows less than chunk servers do (`docs/volumes-safety.md`, "A store that is
//! another").
//!
//! ```text
//!   a server knows a later epoch ─────────────────────────────┐
//!   a replica that nobody names has a number that was never    ├─▶ not served, and the segment's record says *behind* ─▶ no tier serves it,
//!     given, or is sealed and has data that is later than all ─┘   in no later life
//! ```
//!
//! What is found is put into the store that it was found of: the store that the pool has had last knows nothing of that, and is served again
//! when it is brought back.

use ob_core::{ChunkId, Revision, SegmentName};
use ob_format::volume::metadata::{Segment, SegmentState as Held};

use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::segments::Standing;
use super::status::Trouble;
use super::store::Then;
use crate::metadata::{Expect, MetadataValue, Name};
use crate::wire::ChunkLine;

impl TierCore {
    /// The store has forgotten what it was told of a segment that this tier has: nothing more goes, and nothing is answered.
    pub(super) fn found_behind(&mut self, name: SegmentName) {
        self.unserve(name, Trouble::StoreBehind);
        self.mark_behind(name);
    }

    /// Says so in the store, as soon as nothing else of the segment is being committed.
    pub(super) fn mark_behind(&mut self, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let is_meant = segment.standing == Standing::Unserved(Trouble::StoreBehind);
        let (Some(record), Some(revision)) = (segment.record, segment.revision) else { return };
        if is_meant && !segment.is_committing && record.state != Held::Behind {
            self.put_behind(name, &record, revision);
        }
    }

    /// The same of a record that was just read, whosoever it is.
    pub(super) fn put_behind(&mut self, name: SegmentName, found: &Segment, revision: Revision) {
        let record = Segment { state: Held::Behind, wait_ms: found.lease_ms, ..*found };
        if let Some(segment) = self.segments.get_mut(&name) {
            segment.record = Some(record);
        }
        let value = MetadataValue::Segment(record).encode();
        self.commit(Name::Segment(name), Expect::At(revision), Vec::new(), value, Then::Nobody, None);
    }

    /// Whether there can be such a replica. Numbers of chunks are taken by a commit before they are used: of the present epoch up to the last
    /// one that this owner has used, and of earlier ones up to where it began.
    pub(super) fn was_never_given(&self, name: SegmentName, line: &ChunkLine) -> bool {
        let segment = self.segments.get(&name).filter(|segment| segment.standing == Standing::Owned);
        let Some((segment, epoch)) = segment.and_then(|segment| Some((segment, segment.epoch()?))) else {
            return false;
        };
        let most = if line.epoch == epoch { segment.next_chunk } else { segment.first_chunk };
        let is_past = line.epoch <= epoch && line.chunk.chunk >= ChunkId(most);
        is_past && !is_planted(Bug::StoreBelieved)
    }
}
