//! What the card knows of a chunk: where its next record goes, who has how much of it, and whether it is still written to.

use ob_core::{ChunkName, Epoch, Units};
use ob_format::volume::{CHUNK_UNITS_MAX, RECORDS_START};
use ob_split::card::Channels;
use ob_split::wire::{Broken, ChannelId, MEMBERS_MAX, Set, SetWhat, Slot};

/// Units that records under way may have before another begins: almost 4 MiB.
const BEHIND_MAX: u32 = u16::MAX as u32 - 1;

/// A chunk that a slot is set to.
#[derive(Clone, Copy, Debug)]
pub(super) struct SetChunk {
    slot: Slot,
    pub(super) name: ChunkName,
    pub(super) epoch: Epoch,
    pub(super) members: Channels,
    /// Only of one that is written to.
    writer: Option<Writer>,
}

/// Appends to a chunk. It goes forward or stops, and then for good: the host sets the slot anew.
///
/// ```text
///   writing ── a member is gone, late, or says anything but "durable" ──▶ stopped
/// ```
#[derive(Clone, Copy, Debug)]
struct Writer {
    /// Where the next record goes.
    offset: Units,
    length: Units,
    /// How far each member has it durably.
    durable: [Units; MEMBERS_MAX],
    is_stopped: bool,
}

/// Why a record has no place in a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// It is read only: no host that keeps to the document posts this.
    ReadOnly,
    /// There is no room for it.
    Full,
    /// A member has failed.
    Stopped,
}

/// The place of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordPlace {
    pub(super) offset: Units,
    /// Units between it and how far all members have the chunk, if that is not too many.
    pub(super) behind: Option<u16>,
}

impl SetChunk {
    /// What a host says of a chunk; nothing if that cannot be.
    pub(super) fn new(set: &Set) -> Option<Self> {
        let channels =
            set.channels.get(..usize::from(set.members)).filter(|channels| !channels.is_empty())?;
        let is_twice = |(index, one): (usize, &ChannelId)| {
            one.0 == 0 || channels.iter().take(index).any(|other| other == one)
        };
        if channels.iter().enumerate().any(is_twice) {
            return None;
        }
        let is_length = set.length > RECORDS_START && set.length <= CHUNK_UNITS_MAX;
        let is_place = set.offset >= RECORDS_START && set.offset <= set.length;
        let writer = match set.what {
            SetWhat::Append if is_length && is_place => Some(Writer {
                offset: set.offset,
                length: set.length,
                durable: [set.offset; MEMBERS_MAX],
                is_stopped: false,
            }),
            SetWhat::ReadOnly => None,
            SetWhat::Append | SetWhat::Forget => return None,
        };
        let (slot, name, epoch) = (set.slot, set.chunk, set.epoch?);
        Some(Self { slot, name, epoch, members: Channels::new(channels)?, writer })
    }

    /// Whether another record may be under way: how far it lies behind what all members have can be said then. One that has stopped
    /// has room for all that is to hear of it.
    pub(super) fn has_room(&self) -> bool {
        let Some(writer) = self.writer.as_ref().filter(|writer| !writer.is_stopped) else { return true };
        writer.offset.0.saturating_sub(self.everywhere().0) < BEHIND_MAX
    }

    /// Gives a record of so many units the next place.
    pub(super) fn take_place(&mut self, units: Units) -> Result<RecordPlace, NoPlace> {
        let everywhere = self.everywhere();
        let writer = self.writer.as_mut().ok_or(NoPlace::ReadOnly)?;
        if writer.is_stopped {
            return Err(NoPlace::Stopped);
        }
        let offset = writer.offset;
        let end = offset.checked_add(units).filter(|end| *end <= writer.length).ok_or(NoPlace::Full)?;
        writer.offset = end;
        let behind = offset.0.saturating_sub(everywhere.0);
        // The greatest number says that it is not known.
        let behind = u16::try_from(behind).ok().filter(|behind| *behind != u16::MAX);
        Ok(RecordPlace { offset, behind })
    }

    /// A member says how far it has the chunk durably; whether that can be, and has this record in it.
    pub(super) fn is_durable(&mut self, channel: ChannelId, durable: Units, end: Units) -> bool {
        let members = self.members;
        let Some(writer) = &mut self.writer else { return false };
        let place = members.as_slice().iter().position(|member| *member == channel);
        let Some(known) = place.and_then(|place| writer.durable.get_mut(place)) else { return false };
        if durable < end || durable < *known || durable > writer.offset {
            return false;
        }
        *known = durable;
        true
    }

    /// No record goes there any more, because of this channel; what the host is to know, if that is news.
    pub(super) fn stop(&mut self, channel: ChannelId) -> Option<Broken> {
        let (slot, offset) = (self.slot, self.everywhere());
        let writer = self.writer.as_mut()?;
        let was_stopped = std::mem::replace(&mut writer.is_stopped, true);
        (!was_stopped).then_some(Broken { slot, channel, offset })
    }

    /// The channels over which it is written to.
    pub(super) fn written_over(&self) -> impl Iterator<Item = ChannelId> + use<> {
        let count = if self.writer.is_some() { self.members.as_slice().len() } else { 0 };
        let members = self.members;
        (0..count).filter_map(move |at| members.as_slice().get(at).copied())
    }

    /// How far all members have it.
    pub(super) fn everywhere(&self) -> Units {
        let count = self.members.as_slice().len();
        let durable = self.writer.iter().flat_map(|writer| writer.durable.iter().take(count).copied());
        durable.min().unwrap_or(RECORDS_START)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod tests {
    use ob_core::{ChunkId, SegmentId, VolumeId};

    use super::*;

    fn set(what: SetWhat, offset: u32, length: u32) -> Set {
        Set {
            slot: Slot(4),
            what,
            epoch: Some(Epoch::FIRST),
            chunk: ChunkName { volume: VolumeId(1), segment: SegmentId(0), chunk: ChunkId(9) },
            channels: [ChannelId(1), ChannelId(2), ChannelId(3), ChannelId(0)],
            members: 3,
            offset: Units(offset),
            length: Units(length),
        }
    }

    #[test]
    fn records_follow_each_other_and_say_how_far_all_members_are() {
        let mut chunk = SetChunk::new(&set(SetWhat::Append, 64, 1024)).unwrap();
        assert_eq!(chunk.take_place(Units(65)), Ok(RecordPlace { offset: Units(64), behind: Some(0) }));
        assert_eq!(chunk.take_place(Units(65)), Ok(RecordPlace { offset: Units(129), behind: Some(65) }));
        for member in [1, 2] {
            assert!(chunk.is_durable(ChannelId(member), Units(194), Units(129)));
        }
        assert_eq!(chunk.take_place(Units(1)).unwrap().behind, Some(130), "one has nothing yet");
        assert!(chunk.is_durable(ChannelId(3), Units(129), Units(129)));
        assert_eq!(chunk.take_place(Units(1)).unwrap().behind, Some(66));
        assert_eq!(chunk.take_place(Units(829)), Err(NoPlace::Full));
        assert_eq!(chunk.take_place(Units(828)).unwrap().offset, Units(196));
        assert_eq!(chunk.take_place(Units(1)), Err(NoPlace::Full));
    }

    #[test]
    fn what_a_member_cannot_have_is_not_believed() {
        let mut chunk = SetChunk::new(&set(SetWhat::Append, 64, 1024)).unwrap();
        chunk.take_place(Units(10)).unwrap();
        assert!(!chunk.is_durable(ChannelId(1), Units(75), Units(74)), "more than was sent");
        assert!(!chunk.is_durable(ChannelId(1), Units(73), Units(74)), "not all of the record");
        assert!(!chunk.is_durable(ChannelId(4), Units(74), Units(74)), "no member");
        assert!(chunk.is_durable(ChannelId(1), Units(74), Units(74)));
        assert!(!chunk.is_durable(ChannelId(1), Units(70), Units(70)), "less than before");
    }

    #[test]
    fn so_much_is_under_way_and_no_more() {
        let mut chunk = SetChunk::new(&set(SetWhat::Append, 64, 1 << 20)).unwrap();
        let mut end = 64;
        while chunk.has_room() {
            let place = chunk.take_place(Units(1025)).unwrap();
            assert!(place.behind.is_some(), "it is always known");
            end = place.offset.0 + 1025;
        }
        assert!((60_000..70_000).contains(&(end - 64)));
        (1..=2).for_each(|member| assert!(chunk.is_durable(ChannelId(member), Units(end), Units(end))));
        assert!(!chunk.has_room(), "one has nothing yet");
        assert!(chunk.is_durable(ChannelId(3), Units(64 + 1025), Units(64 + 1025)) && chunk.has_room());
        chunk.take_place(Units(1025)).unwrap();
        assert!(!chunk.has_room());
        chunk.stop(ChannelId(3));
        assert!(chunk.has_room(), "who comes now is told");
    }

    #[test]
    fn a_chunk_that_has_stopped_stays_so_and_is_told_of_once() {
        let mut chunk = SetChunk::new(&set(SetWhat::Append, 64, 1024)).unwrap();
        assert_eq!(chunk.written_over().collect::<Vec<_>>(), [1, 2, 3].map(ChannelId));
        let broken = Broken { slot: Slot(4), channel: ChannelId(2), offset: Units(64) };
        assert_eq!(chunk.stop(ChannelId(2)), Some(broken));
        assert_eq!(chunk.stop(ChannelId(3)), None);
        assert_eq!(chunk.take_place(Units(2)), Err(NoPlace::Stopped));
        let mut read = SetChunk::new(&set(SetWhat::ReadOnly, 0, 0)).unwrap();
        assert_eq!((read.stop(ChannelId(2)), read.take_place(Units(2))), (None, Err(NoPlace::ReadOnly)));
    }

    #[test]
    fn chunks_that_cannot_be_are_not_set() {
        let good = set(SetWhat::Append, 64, 1024);
        let wrong = [
            Set { offset: Units(63), ..good },
            Set { offset: Units(1025), ..good },
            Set { length: Units(64), ..good },
            Set { length: Units(CHUNK_UNITS_MAX.0 + 1), ..good },
            Set { members: 0, ..good },
            Set { members: 4, ..good },
            Set { members: 5, ..good },
            Set { channels: [ChannelId(1), ChannelId(1), ChannelId(2), ChannelId(0)], ..good },
            Set { epoch: None, ..good },
            Set { what: SetWhat::Forget, ..good },
        ];
        for set in &wrong {
            assert!(SetChunk::new(set).is_none(), "{set:?}");
        }
    }
}
