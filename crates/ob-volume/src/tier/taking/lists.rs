//! What chunks of a segment that is taken have: lists of their records, asked of one member after the other until they are whole.

use ob_core::{ChunkName, Instant, SegmentName, Units};

use super::*;

impl TierCore {
    /// Lists are begun, as many as may be at a time; or all is there.
    pub(in crate::tier) fn continue_lists(&mut self, now: Instant, name: SegmentName) {
        loop {
            let Some(segment) = self.segments.get(&name) else { return };
            let Some(taking) = segment.taking.as_ref().filter(|taking| taking.phase == Phase::Replaying)
            else {
                return;
            };
            let is_due = |place: &usize| match taking.lists.get(place) {
                Some(list) => list.again.is_some_and(|again| again <= now),
                None => true,
            };
            let under_way = taking.lists.values().filter(|list| list.again.is_none()).count();
            let can = |place: &&usize| {
                let chunk = segment.chunks.get(**place);
                is_due(place) && chunk.is_some_and(|chunk| self.length_to_list(chunk).is_some())
            };
            let next = taking.missing.iter().find(can).copied().filter(|_| under_way < LISTS_MAX);
            let Some(place) = next else { break };
            self.begin_list(now, name, place);
        }
        self.replayed(now, name);
    }

    /// How long a chunk is that can be listed.
    fn length_to_list(&self, chunk: &TierChunk) -> Option<Units> {
        match &chunk.is {
            ChunkIs::Sealed { .. } => Some(chunk.length),
            ChunkIs::Closing(seal) => seal.length_to_list(),
            ChunkIs::Open | ChunkIs::Dead(_) | ChunkIs::Gone => None,
        }
    }

    fn begin_list(&mut self, now: Instant, name: SegmentName, place: usize) {
        self.last_attempt += 1;
        let attempt = self.last_attempt;
        let Some(segment) = self.segments.get(&name) else { return };
        let Some(length) = segment.chunks.get(place).and_then(|chunk| self.length_to_list(chunk)) else {
            return;
        };
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some(taking) = &mut segment.taking else { return };
        let before = taking.lists.remove(&place);
        let (source, impossible) = before.map_or((0, Vec::new()), |list| (list.source, list.impossible));
        let (next, entries) = (RECORDS_START, Vec::new());
        let list = List { attempt, source, asked: 0, impossible, again: None, length, next, entries };
        taking.lists.insert(place, list);
        self.ask_list(now, name, place);
    }

    /// The next part of a list is asked for, or it is whole.
    fn ask_list(&mut self, now: Instant, name: SegmentName, place: usize) {
        let Some(segment) = self.segments.get(&name) else { return };
        let (Some(epoch), Some(chunk)) = (segment.epoch(), segment.chunks.get(place)) else { return };
        let Some(list) = segment.taking.as_ref().and_then(|taking| taking.lists.get(&place)) else { return };
        if list.next >= list.length {
            return self.list_whole(now, name, place);
        }
        let there: Vec<usize> = self.listers(chunk);
        let Some(server) = there.get(list.source % there.len().max(1)).copied() else {
            return self.list_later(now, name, place);
        };
        let request = Request::List {
            chunk: ChunkName::new(name, chunk.number),
            epoch,
            from: list.next,
            to: list.length,
            most: LOOK_ENTRIES_MAX,
        };
        let errand = Errand { segment: name, place, attempt: list.attempt, is_repair: false };
        let segment = self.segments.get_mut(&name);
        if let Some(list) = segment.and_then(|segment| segment.taking.as_mut()?.lists.get_mut(&place)) {
            list.asked = server;
        }
        self.look(server, LookFor::List(errand), request);
    }

    /// Members that are there and have all of a chunk.
    fn listers(&self, chunk: &TierChunk) -> Vec<usize> {
        let is_ready = |place: &usize| self.servers.get(*place).is_some_and(ServerCore::is_ready);
        match &chunk.is {
            ChunkIs::Closing(seal) => seal.sealed_members().filter(is_ready).collect(),
            ChunkIs::Dead(_) | ChunkIs::Gone => Vec::new(),
            ChunkIs::Open | ChunkIs::Sealed { .. } => self.givers(chunk),
        }
    }

    /// Nobody gives it now.
    fn list_later(&mut self, now: Instant, name: SegmentName, place: usize) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let Some(list) = segment.taking.as_mut().and_then(|taking| taking.lists.get_mut(&place)) else {
            return;
        };
        list.source += 1;
        list.again = Some(now + LIST_AGAIN);
        list.entries = Vec::new();
        let tried = list.source;
        let Some(chunk) = self.segments.get(&name).and_then(|segment| segment.chunks.get(place)) else {
            return;
        };
        let is_sealed = matches!(chunk.is, ChunkIs::Sealed { .. });
        if is_sealed {
            self.sweep_for_strays(now);
        } else if tried >= self.listers(chunk).len() {
            // Those that have all of it may be gone for good.
            self.reseal(now, name, place);
            self.forget_list(name, place);
        }
    }

    /// What was told of a chunk does not count any more.
    pub(in crate::tier) fn forget_list(&mut self, name: SegmentName, place: usize) {
        let segment = self.segments.get_mut(&name);
        if let Some(taking) = segment.and_then(|segment| segment.taking.as_mut()) {
            taking.lists.remove(&place);
        }
    }

    /// Chunks whose records nobody tells now.
    pub(in crate::tier) fn lists_waiting(&self, name: SegmentName) -> usize {
        let taking = self.segments.get(&name).and_then(|segment| segment.taking.as_ref());
        taking.map_or(0, |taking| taking.lists.values().filter(|list| list.again.is_some()).count())
    }

    /// A server has told records of a chunk, or has not.
    pub(in crate::tier) fn listed(&mut self, now: Instant, errand: Errand, looked: Looked<'_>) {
        let (name, place) = (errand.segment, errand.place);
        let segment = self.segments.get_mut(&name);
        let list = segment.and_then(|segment| segment.taking.as_mut()?.lists.get_mut(&place));
        let Some(list) = list.filter(|list| list.attempt == errand.attempt && list.again.is_none()) else {
            return;
        };
        let told = match looked {
            Looked::Brought { bytes, word, .. } => {
                decode_entries(bytes).ok().map(|entries| (Units(word), entries.collect::<Vec<Entry>>()))
            }
            Looked::Stale | Looked::Failed => None,
        };
        let fits = |(next, entries): &(Units, Vec<Entry>)| list.may_go_on(*next, entries);
        if matches!(looked, Looked::Stale) {
            return self.segment_stale(now, name, None);
        }
        let Some((next, entries)) = told.filter(fits) else { return self.list_later(now, name, place) };
        list.next = next;
        list.entries.extend(entries);
        self.ask_list(now, name, place);
        self.continue_lists(now, name);
    }

    /// A list is whole: if it is what the chunk's record says, it is applied.
    fn list_whole(&mut self, now: Instant, name: SegmentName, place: usize) {
        let blocks = self.volumes.get(&name.volume).map_or(0, |served| served.volume.segment_blocks());
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let (Some(taking), Some(chunk)) = (&mut segment.taking, segment.chunks.get_mut(place)) else {
            return;
        };
        let Some(list) = taking.lists.get(&place) else { return };
        let sums = ListSums::of(&list.entries);
        let is_sealed = matches!(chunk.is, ChunkIs::Sealed { .. });
        if is_sealed && chunk.sums() != sums && !is_planted(Bug::ListBelieved) {
            return self.list_later(now, name, place);
        }
        // What one member tells that cannot be, another may tell as it is; so nothing of such a list is applied.
        if list.entries.iter().any(|entry| Replay::check(place, entry, blocks).is_err()) {
            return self.list_impossible(now, name, place);
        }
        for entry in &list.entries {
            // It was looked at just now.
            let _ = taking.replay.apply(place, entry, blocks);
        }
        segment.space.logged += sums.blocks;
        taking.lists.remove(&place);
        taking.missing.remove(&place);
        taking.moved = now;
        chunk.set_sums(sums);
        if !is_sealed {
            self.continue_seal(now, name, place);
        }
    }

    /// A list has what cannot be. If all members tell such, it is so; who is away may have it as it is.
    fn list_impossible(&mut self, now: Instant, name: SegmentName, place: usize) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let (Some(taking), Some(chunk)) = (&mut segment.taking, segment.chunks.get(place)) else { return };
        let Some(list) = taking.lists.get_mut(&place) else { return };
        if !list.impossible.contains(&list.asked) {
            list.impossible.push(list.asked);
        }
        let told = |member: &usize| list.impossible.contains(member);
        let is_planted = is_planted(Bug::ImpossibleCounted);
        let is_so = match &chunk.is {
            ChunkIs::Closing(seal) => seal.sealed_members().all(|member| told(&member)),
            _ => chunk.members.iter().all(told),
        };
        if is_so || is_planted {
            return self.unserve(name, Trouble::Impossible);
        }
        self.list_later(now, name, place);
    }

    /// Whether a chunk's seal still waits for its list.
    pub(in crate::tier) fn awaits_list(&self, name: SegmentName, place: usize) -> bool {
        let taking = self.segments.get(&name).and_then(|segment| segment.taking.as_ref());
        taking.is_some_and(|taking| taking.missing.contains(&place))
    }
}
