//! A segment that is taken goes on without what nobody has any more, since an administrator accepts that.

use std::collections::BTreeSet;

use ob_core::{Instant, SegmentName, Sequence};
use ob_format::volume::ChunkKind;

use super::*;

impl TierCore {
    /// Whether the head of a segment that is taken is on chunks that are gone for good.
    pub(in crate::tier) fn is_head_gone(&self, now: Instant, name: SegmentName) -> bool {
        let Some(segment) = self.segments.get(&name) else { return false };
        let needs = segment.head_needs();
        let of = |chunk: &&TierChunk| chunk.kind == ChunkKind::Index && needs.contains(&chunk.number);
        segment.chunks.iter().filter(of).any(|chunk| self.gives_nothing(now, name, chunk))
    }

    /// Whether nobody has all of a chunk, and who has some of it has been asked for long enough.
    fn gives_nothing(&self, now: Instant, name: SegmentName, chunk: &TierChunk) -> bool {
        let taking = self.segments.get(&name).and_then(|segment| segment.taking.as_ref());
        let is_stuck = taking.is_some_and(|taking| taking.is_stuck(now));
        self.is_gone(name, chunk) || (is_stuck && self.is_gone_but_in_part(name, chunk))
    }

    /// The index is put together from what all records say that are still there.
    pub(in crate::tier) fn go_on_without_head(&mut self, now: Instant, name: SegmentName) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some(taking) = segment.taking.as_mut().filter(|taking| taking.phase == Phase::Loading) else {
            return;
        };
        let logs = segment.chunks.iter().enumerate().filter(|(_, chunk)| chunk.is_log() && !chunk.is_lost);
        let logs: BTreeSet<usize> = logs.map(|(place, _)| place).collect();
        (taking.replay, taking.missing, taking.moved) = (Replay::since(Sequence(0)), logs, now);
        // Nothing goes of what is replayed before another head is past it.
        segment.record.iter_mut().for_each(|record| record.head = None);
        segment.space.is_loss_new = true;
        self.begin_replay(now, name);
    }

    /// Chunks whose records are to be applied, and that nobody tells any more; and whether nobody has anything of them.
    pub(in crate::tier) fn untold(&self, now: Instant, name: SegmentName) -> Vec<(usize, bool)> {
        let Some(segment) = self.segments.get(&name) else { return Vec::new() };
        let Some(taking) = segment.taking.as_ref().filter(|taking| taking.phase == Phase::Replaying) else {
            return Vec::new();
        };
        let missing = taking.missing.iter().filter_map(|place| Some((*place, segment.chunks.get(*place)?)));
        let untold = missing.filter(|(_, chunk)| self.gives_nothing(now, name, chunk));
        untold.map(|(place, chunk)| (place, self.is_gone(name, chunk))).collect()
    }

    /// Nobody waits for the records of a chunk any more.
    pub(in crate::tier) fn go_on_without_list(&mut self, name: SegmentName, place: usize) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        if let Some(taking) = &mut segment.taking {
            taking.missing.remove(&place);
            taking.lists.remove(&place);
            // Before a head is past it the next one would wait for it again.
            segment.space.is_loss_new = true;
        }
    }
}
