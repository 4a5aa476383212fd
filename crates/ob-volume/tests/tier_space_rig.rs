//! What the rig's card does for maintenance: looks, records of the index, and moves.

use ob_core::{ChunkName, Lba, Sequence, Units};
use ob_format::volume::{Encoding, Record, RecordHeader, RecordKind};
use ob_split::wire::{Completion, CompletionStatus, Handle, SetWhat, Slot};
use ob_volume::metadata::Name;
use ob_volume::plans::{Index, LOOK_BYTES_MAX, Look, Move, PostedPlan, VolumePlan};
use ob_volume::wire::{Answer, Reply, ReplyMessage, RequestMessage, is_summed};

use crate::tier_rig::{Rig, Undecided, done, value_of};

/// A record that is to have its place.
struct New {
    kind: RecordKind,
    sequence: Sequence,
    version: Sequence,
    lba: Lba,
    blocks: u32,
    payload: Vec<u8>,
    word: u32,
    /// Who has not given it as it should be.
    bad_members: u8,
}

impl Rig {
    /// The host puts bytes into its area.
    pub(crate) fn upload(&mut self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        self.host_area.resize(self.host_area.len().max(at + bytes.len()), 0);
        self.host_area[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// A chunk server tells something, which goes into the card's area.
    pub(crate) fn run_look(&mut self, handle: Handle, look: &Look) {
        let request = RequestMessage { tag: 0, payload_len: 0, request: look.request };
        let reply =
            self.server_of(look.channel).and_then(|place| self.servers[place].serve(place, &request, &[]));
        let Some(reply) = reply else {
            return self
                .complete(&[Completion { word: 1, ..done(handle, CompletionStatus::NoMember) }], None);
        };
        let (header, payload) = reply.split_at(64);
        let word = match ReplyMessage::decode(header).unwrap().answer {
            Answer::Refused { refusal, .. } => {
                let units = refusal.status();
                let completion = Completion { units, word: 1, ..done(handle, CompletionStatus::NoMember) };
                return self.complete(&[completion], None);
            }
            Answer::Good(Reply::List { next }) => next.0,
            Answer::Good(Reply::Chunks { has_more }) => has_more.into(),
            Answer::Good(Reply::Read) => return self.bring_record(handle, look, payload),
            other => panic!("{other:?}"),
        };
        assert!(is_summed(payload) && payload.len() <= LOOK_BYTES_MAX as usize);
        let offset = payload.len() as u32;
        let completion = Completion { offset, word, ..done(handle, CompletionStatus::Good) };
        assert_eq!(
            self.tier.brought(&completion),
            Some((look.at, payload.len())),
            "its driver finds it there"
        );
        self.complete(&[completion], Some(payload));
    }

    /// The payload of the record that was read, which is of the index.
    fn bring_record(&mut self, handle: Handle, look: &Look, bytes: &[u8]) {
        let record = Record::decode(bytes).ok().filter(|_| !self.whim());
        let Some(record) = record else {
            let completion = done(handle, CompletionStatus::NotVerified);
            return self.complete(&[Completion { word: 1, bad_members: 1, ..completion }], None);
        };
        let header = record.header;
        assert!(matches!(header.kind, RecordKind::Page | RecordKind::Root));
        let (units, offset) = (header.units().0 as u16, record.payload.len() as u32);
        let completion = done(handle, CompletionStatus::Good);
        let completion = Completion { units, offset, word: header.lba.0, ..completion };
        assert_eq!(self.tier.brought(&completion), Some((look.at, record.payload.len())));
        self.complete(&[completion], Some(record.payload));
    }

    /// A record of the index, or of a move, gets its place, and goes to all members; what becomes of it.
    pub(crate) fn place_maintenance(&mut self, plan: &PostedPlan) -> Vec<Completion> {
        let new = match VolumePlan::decode(&plan.entry()).unwrap() {
            VolumePlan::Index(index) => Ok(self.index_record(&index)),
            VolumePlan::Move(moved) => self.moved_record(&moved),
            other => panic!("{other:?}"),
        };
        let placed = match new {
            Ok(new) => self.place_new(plan.handle, plan.slot, &new),
            Err((status, bad_members)) => Completion { bad_members, word: 1, ..done(plan.handle, status) },
        };
        vec![placed]
    }

    fn index_record(&self, index: &Index) -> New {
        let payload = self.host_area[index.at as usize..][..index.length as usize].to_vec();
        New {
            kind: index.kind(),
            sequence: index.sequence,
            version: index.sequence,
            lba: Lba(index.page()),
            blocks: index.length,
            word: index.length,
            payload,
            bad_members: 0,
        }
    }

    /// The record as a member has it, or the blocks of it that are to move.
    fn moved_record(&mut self, moved: &Move) -> Result<New, (CompletionStatus, u8)> {
        if self.whim() {
            return Err((CompletionStatus::NotVerified, 1));
        }
        let (bytes, bad_members) = self.record_of(moved.from, moved.place)?;
        let record = Record::decode(&bytes).unwrap();
        let header = record.header;
        assert_eq!((header.units(), header.encoding), (moved.units, Encoding::None));
        assert!(header.lba <= moved.lba && moved.lba.0 + moved.blocks <= header.lba.0 + header.blocks);
        let is_all = header.lba == moved.lba && header.blocks == moved.blocks;
        assert_eq!(moved.cut.is_none(), is_all, "a record goes whole if all of it still counts");
        assert!(header.version < moved.sequence);
        let block_len = moved.block_len.bytes() as usize;
        let first = (moved.lba.0 - header.lba.0) as usize * block_len;
        let payload = record.payload[first..first + moved.len() as usize].to_vec();
        let (sequence, version) = (moved.sequence, header.version);
        let (kind, lba, blocks, word) = (RecordKind::Move, moved.lba, moved.blocks, 0);
        Ok(New { kind, sequence, version, lba, blocks, payload, word, bad_members })
    }

    /// What a member has at a place.
    fn record_of(&self, slot: Slot, place: Units) -> Result<(Vec<u8>, u8), (CompletionStatus, u8)> {
        let set = &self.slots[&slot.0].set;
        let mut bad = 0;
        for (number, channel) in set.channels[..usize::from(set.members)].iter().enumerate() {
            let server = self.server_of(*channel).map(|server| &self.servers[server]);
            let Some(server) = server.filter(|server| !server.hangs) else { continue };
            let replica = server.chunks.get(&set.chunk).filter(|replica| !replica.rotten.contains(&place));
            match replica.and_then(|replica| replica.records.get(&place)) {
                Some(bytes) => return Ok((bytes.clone(), bad)),
                None => bad |= 1 << number,
            }
        }
        Err((if bad == 0 { CompletionStatus::NoMember } else { CompletionStatus::NotVerified }, bad))
    }

    fn place_new(&mut self, handle: Handle, slot: Slot, new: &New) -> Completion {
        let is_full = self.whim();
        let chunk = self.slots.get_mut(&slot.0).unwrap();
        assert_eq!(chunk.set.what, SetWhat::Append);
        let (name, offset) = (chunk.set.chunk, chunk.next);
        let header = RecordHeader {
            chunk: name,
            offset,
            sequence: new.sequence,
            version: new.version,
            lba: new.lba,
            blocks: new.blocks,
            stored: new.payload.len() as u32,
            payload_crc: crc32c::crc32c(&new.payload),
            kind: new.kind,
            encoding: Encoding::None,
            behind: None,
        };
        let units = header.units();
        let mut completion = done(handle, CompletionStatus::Good);
        if chunk.is_stopped {
            completion.status = CompletionStatus::Broken;
        } else if is_full || offset.0 + units.0 > chunk.set.length.0 {
            completion.status = CompletionStatus::ChunkFull;
        } else {
            chunk.next = Units(offset.0 + units.0);
            (completion.units, completion.offset, completion.word) = (units.0 as u16, offset.0, new.word);
            assert!(self.stored(Name::Chunk(name)).is_some(), "C2: {name:?} is not in the store");
            let mut bytes = Vec::new();
            Record { header, payload: &new.payload }.encode_into(&mut bytes).unwrap();
            self.note_moved(name, &header, &new.payload);
            // Nothing becomes another value by it.
            let (start, values) = (0, Vec::new());
            let record = Undecided { sequence: new.sequence, offset, units, start, values };
            self.undecided.entry(name).or_default().push(record);
            self.append(slot, offset, &bytes, &mut completion);
        }
        if completion.status == CompletionStatus::Good {
            completion.bad_members = new.bad_members;
        }
        completion
    }

    /// What was moved is where it was moved to, as well.
    fn note_moved(&mut self, name: ChunkName, header: &RecordHeader, payload: &[u8]) {
        if header.kind == RecordKind::Move {
            let block_len = self.block_len(name.volume).bytes() as usize;
            for block in payload.chunks(block_len) {
                self.written.entry(value_of(block)).or_default().push((name, header.offset));
            }
        }
    }
}
