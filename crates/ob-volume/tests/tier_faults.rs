//! What befalls servers of the rig, and what must be true whatever does.

use ob_core::{ChunkName, ServerId, Units};
use ob_format::volume::metadata::ChunkState;
use ob_split::wire::{Broken, ChannelId, ChannelState, Completion, CompletionStatus, Handle, SetWhat, Slot};
use ob_volume::metadata::{MetadataValue, Name};
use ob_volume::plans::Copy;
use ob_volume::tier::TierNews;
use ob_volume::wire::{Answer, CreateState, Reply, ReplyMessage, Request};

use crate::tier_rig::{Rig, channel_is, done};
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
        let number = server as u16 + 1;
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

    /// It is there again, with what it had.
    pub(crate) fn revive(&mut self, server: usize) {
        self.servers[server].is_down = false;
    }

    /// Records go from one server to another.
    pub(crate) fn copy(&mut self, handle: Handle, copy: &Copy) {
        let server = |channel| self.server_of(channel).filter(|server| !self.servers[*server].hangs);
        let (from, to) = (server(copy.from), server(copy.to));
        let given = from.map(|from| self.servers[from].give(copy)).unwrap_or_default();
        let mut completion = done(handle, CompletionStatus::NoMember);
        if given.is_empty() {
            completion.word = 1;
            return self.complete(&[completion], None);
        }
        completion.word = 4;
        let Some(to) = to else { return self.complete(&[completion], None) };
        let answer = match self.servers[to].fill(copy, given) {
            Ok(durable) => Answer::Good(Reply::Fill { durable }),
            Err(refusal) => Answer::Refused { kind: 7, refusal },
        };
        let reply = ReplyMessage { tag: 0, payload_len: 0, answer }.encode().unwrap();
        self.complete(&[done(handle, CompletionStatus::Good)], Some(&reply));
    }

    /// No two chunks have one number (C7).
    pub(crate) fn note_request(&mut self, place: usize, request: &Request) {
        if let Request::Create { chunk, state: CreateState::Open, .. } = request {
            let times = self.asked.entry((*chunk, place)).or_default();
            *times += 1;
            assert_eq!(*times, 1, "C7: {chunk:?} is made twice");
        }
    }

    /// A record counts.
    pub(crate) fn decide(&mut self, chunk: ChunkName, offset: Units) {
        let records = self.undecided.get_mut(&chunk).unwrap();
        let at = records.iter().position(|record| record.offset == offset).unwrap();
        let record = records.remove(at);
        let blocks = self.model.get_mut(&chunk.volume).unwrap();
        blocks[record.start..record.start + record.values.len()].copy_from_slice(&record.values);
    }

    /// The tier has told something. Of a chunk that is sealed, what lies before its end counts, and nothing else of it (I9).
    pub(crate) fn hear(&mut self, news: TierNews) {
        self.news.push(news);
        let TierNews::Sealed { chunk, length, .. } = news else { return };
        let mut records = self.undecided.remove(&chunk).unwrap_or_default();
        records.sort_by_key(|record| record.sequence);
        for record in records.into_iter().filter(|record| record.offset.0 + record.units.0 <= length.0) {
            let blocks = self.model.get_mut(&chunk.volume).unwrap();
            blocks[record.start..record.start + record.values.len()].copy_from_slice(&record.values);
        }
    }

    /// What is acknowledged is in a chunk that the store has, before its end, on all the members that it names (C1, C2, C3, C5).
    pub(crate) fn check_acknowledged(&mut self, value: u64) {
        let places = self.written.get(&value).cloned().unwrap_or_default();
        let is_safe = places.iter().any(|(name, offset)| {
            let Some(MetadataValue::Chunk(chunk)) = self.stored(Name::Chunk(*name)) else { return false };
            let is_there = |id: &ServerId| {
                let server = &self.servers[id.0 as usize - 100];
                server.chunks.get(name).is_some_and(|replica| replica.records.contains_key(offset))
            };
            let is_within = chunk.state == ChunkState::Open || *offset < chunk.length;
            is_within && chunk.members.servers().iter().all(is_there)
        });
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
                .map(|id| &self.servers[id.0 as usize - 100].chunks[&name])
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
            let is_write = |header: &&ob_format::volume::RecordHeader| {
                header.kind == ob_format::volume::RecordKind::Write
            };
            let blocks: u32 = headers.iter().filter(is_write).map(|header| header.blocks).sum();
            assert_eq!(blocks, chunk.blocks, "{name:?}");
        }
    }
}
