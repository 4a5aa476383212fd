//! What befalls servers of the rig, and what must be true whatever does.

use ob_core::{ChunkName, ServerId, Token, Units, VolumeId};
use ob_format::volume::metadata::ChunkState;
use ob_format::volume::{RecordHeader, RecordKind};
use ob_split::wire::{
    Broken, ChannelId, ChannelState, Completion, CompletionStatus, Descriptor, Gate, Handle, HeaderEntry,
    Set, SetWhat, Slot,
};
use ob_volume::metadata::{MetadataOp, MetadataStore, MetadataValue, Name};
use ob_volume::plans::{Copy, Given, Part, PostedPlan, Run, VolumePlan};
use ob_volume::tier::{PortNumber, TierCore, TierEvent, TierNews};
use ob_volume::wire::{Answer, CreateState, EndState, Reply, ReplyMessage, Request};

use crate::tier_ports::channel_in_rig;
use crate::tier_rig::{PORT, Rig, Undecided, channel_is, done, header_of};
use crate::tier_servers::ReplicaIs;

impl Rig {
    /// A record goes to all members: what becomes of it if one of them does not take it.
    pub(crate) fn append(&mut self, slot: Slot, offset: Units, bytes: &[u8], completion: &mut Completion) {
        let set = self.slots[&slot.0].set;
        for (number, channel) in set.channels[..usize::from(set.members)].iter().enumerate() {
            let server = self.server_of(*channel);
            let hangs = server.is_none_or(|server| self.servers[server].hangs);
            // One that hangs may have taken it all the same.
            let takes = server.is_some() && (!hangs || self.dice.below(2) == 0);
            if let Some(server) = server.filter(|_| takes) {
                if self.is_robbed(server, &set) {
                    // F1: somebody else has the segment.
                    completion.status = CompletionStatus::Broken;
                    completion.bad_members |= 1 << number;
                    self.stop_writer(slot, *channel);
                    continue;
                }
                let replica = self.servers[server].chunks.get_mut(&set.chunk).unwrap();
                assert_eq!(replica.is, ReplicaIs::Open, "{:?} is appended to", set.chunk);
                assert!(replica.records.insert(offset, bytes.to_vec()).is_none());
            }
            if hangs {
                completion.status = CompletionStatus::Broken;
                completion.bad_members |= 1 << number;
                self.stop_writer(slot, *channel);
            }
        }
    }

    /// Whether a server has heard of a later epoch than a chunk is written in.
    fn is_robbed(&self, server: usize, set: &Set) -> bool {
        let known = self.servers[server].epochs.get(&set.chunk.segment_name());
        known.is_some_and(|known| Some(*known) > set.epoch)
    }

    fn stop_writer(&mut self, slot: Slot, channel: ChannelId) {
        let chunk = self.slots.get_mut(&slot.0).unwrap();
        if chunk.set.what == SetWhat::Append && !chunk.is_stopped {
            chunk.is_stopped = true;
            let broken = Broken { slot, channel, offset: chunk.set.offset };
            self.broken.push(broken);
        }
    }

    /// A server dies: its channel is gone, writers of its chunks stop, and what is under way to them is on some members and not on others.
    pub(crate) fn kill(&mut self, server: usize) {
        if std::mem::replace(&mut self.servers[server].is_down, true) {
            return;
        }
        // It may have lost power, and look what there is.
        let knows = [EndState::Clean, EndState::Doubtful][self.dice.below(2) as usize];
        for replica in self.servers[server].chunks.values_mut() {
            if !matches!(replica.is, ReplicaIs::Sealed(_)) {
                replica.known = knows;
            }
        }
        for port in (0..self.config.ports).map(PortNumber) {
            self.lose_channel(port, server);
        }
    }

    /// The channel of a port to a server is gone.
    pub(crate) fn lose_channel(&mut self, port: PortNumber, server: usize) {
        let number = channel_in_rig(port, server as u16 + 1);
        if self.channels.contains_key(&number) {
            self.channel_events.push(channel_is(number, ChannelState::Gone));
        }
        let channel = ChannelId(number);
        let is_its = |slot: &&u16| {
            let set = &self.slots[slot].set;
            set.what == SetWhat::Append && set.channels[..usize::from(set.members)].contains(&channel)
        };
        let slots: Vec<u16> = self.slots.keys().filter(is_its).copied().collect();
        for slot in slots {
            self.tear(Slot(slot), channel);
            self.stop_writer(Slot(slot), channel);
        }
    }

    /// Of the records under way to a chunk some are everywhere, and the others on as many members as it pleases.
    fn tear(&mut self, slot: Slot, lost: ChannelId) {
        let set = self.slots[&slot.0].set;
        let of = self.running.iter().filter(|running| running.plan.slot == slot);
        let placed = of.filter_map(|running| running.placed.as_ref()).flatten();
        let good = placed.filter(|completion| completion.status == CompletionStatus::Good);
        let mut offsets: Vec<u32> = good.map(|completion| completion.offset).collect();
        let told = self.told.get(&set.chunk).copied().unwrap_or_default();
        offsets.retain(|offset| *offset > told.0);
        offsets.sort_unstable();
        let everywhere = self.dice.below(offsets.len() as u64 + 1) as usize;
        for channel in &set.channels[..usize::from(set.members)] {
            let has = everywhere + self.dice.below((offsets.len() - everywhere) as u64 + 1) as usize;
            // Those that were told of before are there.
            let (Some(cut), Some(server)) = (offsets.get(has), self.channels.get(&channel.0).copied()) else {
                continue;
            };
            self.servers[server].chunks.get_mut(&set.chunk).unwrap().cut(Units(*cut));
        }
        let torn = &offsets[everywhere..];
        let members = &set.channels[..usize::from(set.members)];
        let bad = 1 << members.iter().position(|member| *member == lost).unwrap();
        let of = self.running.iter_mut().filter(|running| running.plan.slot == slot);
        for completion in of.filter_map(|running| running.placed.as_mut()).flatten() {
            if completion.units > 0 && torn.contains(&completion.offset) {
                completion.status = CompletionStatus::Broken;
                completion.bad_members |= bad;
            }
        }
    }

    /// The connections to all members of a chunk end: what was under way is on as many of them as it pleases.
    pub(crate) fn scatter(&mut self, slot: u16) {
        let chunk = &self.slots[&slot];
        if chunk.set.what != SetWhat::Append {
            return;
        }
        let told = self.told.get(&chunk.set.chunk).copied().unwrap_or_default();
        let set = chunk.set;
        for channel in &set.channels[..usize::from(set.members)] {
            let Some(server) = self.channels.get(&channel.0).copied() else { continue };
            // One that is stopped has told its end; and it may be nobody's any more.
            let replica = self.servers[server].chunks.get_mut(&set.chunk);
            let Some(replica) = replica.filter(|replica| replica.is == ReplicaIs::Open) else { continue };
            let later: Vec<Units> = replica.records.keys().copied().filter(|at| *at > told).collect();
            let kept = self.dice.below(later.len() as u64 + 1) as usize;
            if let Some(cut) = later.get(kept) {
                self.servers[server].chunks.get_mut(&set.chunk).unwrap().cut(*cut);
            }
        }
    }

    /// What the store says of a chunk's end decides what of it counts.
    pub(crate) fn decide_sealed(&mut self, chunk: ChunkName) {
        let Some(MetadataValue::Chunk(record)) = self.stored(Name::Chunk(chunk)) else { return };
        if record.state == ChunkState::Sealed {
            self.count(chunk, record.length);
        }
    }

    /// It is there again, with what it had.
    pub(crate) fn revive(&mut self, server: usize) {
        self.servers[server].is_down = false;
    }

    /// Records go from one server to another.
    pub(crate) fn copy(&mut self, handle: Handle, copy: &Copy) {
        let server = |channel| self.server_of(channel).filter(|server| !self.servers[*server].hangs);
        let (from, to) = (server(copy.from), server(copy.to));
        let given = from.map(|from| self.servers[from].give(copy)).unwrap_or_default();
        if given.is_empty() {
            let completion = match from {
                // It has answered, and what it has is wrong.
                Some(_) => Completion { bad_members: 1, ..done(handle, CompletionStatus::NotVerified) },
                None => done(handle, CompletionStatus::NoMember),
            };
            return self.complete(&[Completion { word: 1, ..completion }], None);
        }
        let completion = Completion { word: 4, ..done(handle, CompletionStatus::NoMember) };
        let Some(to) = to else { return self.complete(&[completion], None) };
        let result = match copy.is_mend {
            true => self.servers[to].mend(copy, &given).map(|()| Reply::Repair),
            false => self.servers[to].fill(copy, given).map(|durable| Reply::Fill { durable }),
        };
        let kind = if copy.is_mend { 14 } else { 7 };
        let answer = result.map_or_else(|refusal| Answer::Refused { kind, refusal }, Answer::Good);
        let reply = ReplyMessage { tag: 0, payload_len: 0, answer }.encode().unwrap();
        self.complete(&[done(handle, CompletionStatus::Good)], Some(&reply));
    }

    fn server_called(&self, id: ServerId) -> usize {
        let is_it = |(place, server): &(usize, &crate::tier_servers::Server)| {
            server.number.unwrap_or(*place as u64 + 100) == id.0
        };
        self.servers.iter().enumerate().find(is_it).unwrap().0
    }

    /// No two chunks have one number (C7).
    pub(crate) fn note_request(&mut self, place: usize, request: &Request) {
        if let Request::Create { chunk, state: CreateState::Open, .. } = request {
            let times = self.asked.entry((*chunk, place)).or_default();
            *times += 1;
            assert_eq!(*times, 1, "C7: {chunk:?} is made twice");
        }
    }

    /// I3: of changes that overlap one is under way at a time.
    pub(crate) fn check_overlaps(&self, plan: &PostedPlan) {
        let Some((volume, blocks)) = self.changed(plan) else { return };
        for other in &self.running {
            let Some((of, others)) = self.changed(&other.plan) else { continue };
            let overlap = of == volume && blocks.start < others.end && others.start < blocks.end;
            assert!(!overlap, "{blocks:?} and {others:?} of {volume} are changed at once");
        }
    }

    fn changed(&self, plan: &PostedPlan) -> Option<(VolumeId, std::ops::Range<u64>)> {
        match VolumePlan::decode(&plan.entry()).unwrap() {
            VolumePlan::Write { part, .. } | VolumePlan::Given(Given { part, .. }) => {
                let (id, command) = self.command(plan.handle);
                let part = part.unwrap_or(Part { first: 0, blocks: command.blocks });
                let start = command.start + u64::from(part.first);
                Some((id, start..start + u64::from(part.blocks)))
            }
            VolumePlan::Trim { ranges, slot, .. } => {
                let set = &self.slots[&slot.0].set;
                let id = set.chunk.volume;
                let range = ranges.iter().next().unwrap();
                let start = u64::from(set.chunk.segment.0) * 1024 + u64::from(range.lba.0);
                Some((id, start..start + u64::from(range.blocks)))
            }
            VolumePlan::Move(moved) => {
                let of = self.slots[&moved.to.0].set.chunk;
                let start = u64::from(of.segment.0) * 1024 + u64::from(moved.lba.0);
                Some((of.volume, start..start + u64::from(moved.blocks)))
            }
            _ => None,
        }
    }

    /// A record counts.
    pub(crate) fn decide(&mut self, chunk: ChunkName, offset: Units) {
        let records = self.undecided.get_mut(&chunk).unwrap_or_else(|| {
            panic!(
                "{chunk:?} {offset:?} {:?}",
                self.news
                    .iter()
                    .filter(|n| format!("{n:?}").contains(&format!("{chunk:?}")))
                    .collect::<Vec<_>>()
            )
        });
        let at = records.iter().position(|record| record.offset == offset).unwrap();
        let record = records.remove(at);
        self.put(chunk, &record);
    }

    fn put(&mut self, chunk: ChunkName, record: &Undecided) {
        let blocks = self.model.get_mut(&chunk.volume).unwrap();
        // What lies beyond the end of a disk that was cut since nobody sees.
        let end = blocks.len().min(record.start + record.values.len());
        let blocks = &mut blocks[record.start.min(end)..end];
        self.superseded.extend(blocks.iter().copied());
        blocks.copy_from_slice(&record.values[..blocks.len()]);
    }

    /// The tier has told something. Of a chunk that is sealed, what lies before its end counts, and nothing else of it (I9).
    pub(crate) fn hear(&mut self, news: TierNews) {
        self.news.push(news);
        let TierNews::Sealed { chunk, length, .. } = news else { return };
        self.count(chunk, length);
    }

    fn count(&mut self, chunk: ChunkName, length: Units) {
        let mut records = self.undecided.remove(&chunk).unwrap_or_default();
        records.sort_by_key(|record| record.sequence);
        for record in records.into_iter().filter(|record| record.offset.0 + record.units.0 <= length.0) {
            self.put(chunk, &record);
        }
    }

    /// What is acknowledged is in a chunk that the store has, before its end, on all the members that it names (C1, C2, C3, C5).
    pub(crate) fn check_acknowledged(&mut self, value: u64) {
        let places = self.written.get(&value).cloned().unwrap_or_default();
        let is_safe = places.iter().any(|(name, offset)| {
            let Some(MetadataValue::Chunk(chunk)) = self.stored(Name::Chunk(*name)) else { return false };
            let is_there = |id: &ServerId| {
                let server = &self.servers[self.server_called(*id)];
                server.chunks.get(name).is_some_and(|replica| replica.records.contains_key(offset))
            };
            let is_within = chunk.state == ChunkState::Open || *offset < chunk.length;
            is_within && chunk.members.servers().iter().all(is_there)
        });
        // What was written over it since it was there may have taken its chunk along.
        let is_safe = is_safe || self.superseded.contains(&value);
        assert!(is_safe, "{value} is acknowledged, and not where the store says: {places:?}");
    }

    /// The servers that a sealed chunk's record names have all of it and nothing else (C5, C6).
    pub(crate) fn check_sealed(&mut self) {
        let names: std::collections::BTreeSet<ChunkName> =
            self.servers.iter().flat_map(|server| server.chunks.keys().copied()).collect();
        for name in names {
            let Some(MetadataValue::Chunk(chunk)) = self.stored(Name::Chunk(name)) else { continue };
            if chunk.state != ChunkState::Sealed {
                continue;
            }
            let replicas: Vec<_> = chunk
                .members
                .servers()
                .iter()
                .map(|id| &self.servers[self.server_called(*id)].chunks[&name])
                .collect();
            for replica in &replicas {
                assert_eq!(replica.is, ReplicaIs::Sealed(chunk.length), "{name:?}");
                assert_eq!(replica.records, replicas[0].records, "{name:?}");
                assert_eq!(replica.end(), chunk.length);
            }
            let records = replicas[0].records.values();
            let headers: Vec<_> =
                records.map(|bytes| ob_format::volume::Record::decode(bytes).unwrap().header).collect();
            assert_eq!(headers.len() as u32, chunk.records, "{name:?}");
            let last = headers.iter().map(|header| header.sequence).max().unwrap_or_default();
            assert_eq!(last, chunk.last_sequence, "{name:?}");
            let is_write =
                |header: &&RecordHeader| matches!(header.kind, RecordKind::Write | RecordKind::Move);
            let blocks: u32 = headers.iter().filter(is_write).map(|header| header.blocks).sum();
            assert_eq!(blocks, chunk.blocks, "{name:?}");
        }
    }

    /// The tier says something of the card's gate.
    pub(crate) fn gate(&mut self, gate: Gate) {
        match gate {
            Gate::Prepare { number } => self.gates.push(number),
            Gate::Extend { number, milliseconds } => {
                let its = self.noted.filter(|(last, _)| *last == number);
                let until = its.map(|(_, at)| at + std::time::Duration::from_millis(milliseconds.into()));
                self.open_until = self.open_until.max(until);
            }
        }
    }

    /// The card notes the time of a preparation, if there is one.
    pub(crate) fn note_gate(&mut self) -> bool {
        if self.gates.is_empty() {
            return false;
        }
        let number = self.gates.remove(0);
        self.noted = Some((number, self.now));
        self.tell(TierEvent::Noted { port: PORT, number });
        true
    }

    /// Whether the gate keeps answers back.
    pub(crate) fn is_gate_late(&self) -> bool {
        self.noted.is_some() && self.open_until.is_none_or(|until| self.now >= until)
    }

    /// The host dies: what is under way is on some members and not on others, what the store was asked may be done, later too; the card
    /// keeps messages, and offers them to the host's next life.
    pub(crate) fn die(&mut self) {
        let appended: Vec<u16> = self.slots.keys().copied().collect();
        for slot in appended {
            self.scatter(slot);
        }
        for (_, op) in std::mem::take(&mut self.ops) {
            match self.dice.below(3) {
                0 => self.run_late(op),
                1 => self.late.push(op),
                _ => {}
            }
        }
        self.channels.clear();
        self.slots.clear();
        self.running.clear();
        self.channel_events.clear();
        self.broken.clear();
        self.tier = TierCore::new(self.config.clone()).unwrap();
        let sealed: Vec<ChunkName> = self.undecided.keys().copied().collect();
        for name in sealed {
            self.decide_sealed(name);
        }
        self.open();
        self.offer();
    }

    /// Messages go to the host once more.
    pub(crate) fn offer(&mut self) {
        let handles: Vec<u32> = self.messages.keys().copied().collect();
        for handle in handles {
            let message = &self.messages[&handle];
            let (port, at_port) = self.message_at_port(handle);
            let header = header_of(&message.entry, at_port, message.length);
            let was_sent = message.was_sent;
            let descriptor = Descriptor { was_parked: true, was_sent, ..header.descriptor() };
            let header = HeaderEntry::new(*header.bytes(), descriptor);
            self.tell(TierEvent::Header { port, header });
        }
    }

    /// The store comes to what an earlier life has asked; nobody hears of it.
    pub(crate) fn run_late(&mut self, op: MetadataOp) {
        self.store.submit(Token(u64::MAX), op).unwrap();
        self.store.poll().unwrap();
        let names: Vec<ChunkName> = self.undecided.keys().copied().collect();
        for name in names {
            self.decide_sealed(name);
        }
    }
}

/// Slots that a plan names.
pub(crate) fn slots_of(plan: &PostedPlan) -> Vec<u16> {
    match VolumePlan::decode(&plan.entry()).unwrap() {
        VolumePlan::Write { slot, .. }
        | VolumePlan::Given(Given { slot, .. })
        | VolumePlan::Trim { slot, .. } => vec![slot.0],
        VolumePlan::Index(index) => vec![index.slot.0],
        VolumePlan::Move(moved) => vec![moved.from.0, moved.to.0],
        VolumePlan::Read { runs, .. } => {
            let slots = runs.iter().filter_map(|run| match run {
                Run::Record { slot, .. } => Some(slot.0),
                Run::Zeros { .. } => None,
            });
            slots.collect()
        }
        _ => Vec::new(),
    }
}
