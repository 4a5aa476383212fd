//! What the card does for a host that has the paper's API: the plans that [`Split`](crate::host::Split) posts of its own, and those that its
//! user defines.

use std::ops::Range;
use std::time::Duration;

use ob_core::Instant;

use super::dialect::{
    Channels, Dialect, Encoding, Found, Judgement, Outcome, PIECE_LEN, Parts, Pieces, Place, Posted, Reject,
    Told, Words,
};
use crate::wire::{
    CHECKSUM, COMPRESS, ChannelId, CompletionStatus, HEADER_LEN, Handle, Header, MEMBERS_MAX, OWN_PLANS,
    PACKED, PEERS_LEN, PLACE_LEN, REPLY_PAYLOAD_MAX, Register, SEND, SEND_HEADER, Set, Slot,
};

/// The dialect of applications: it knows no chunks, and of headers what all have.
#[derive(Debug)]
pub struct SplitDialect {
    magic: [u8; 2],
    patience: Duration,
    /// What is known of what is sent just now.
    found: Found,
}

/// What is behind the entry of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arguments<'a> {
    /// Bytes of the memory, and a header, to the channel that is in place of the slot.
    Send(Range4, Header),
    Header(Header),
    /// Bytes of the memory, and other memory that they are compressed into.
    Compress(Range4, Handle),
    /// Bytes of the memory, and the sum of what lies before.
    Checksum(Range4, u32),
    /// A user's that sends.
    User(Channels, Header),
    /// A user's that does not.
    Nothing(&'a [u8]),
}

/// A place: where, and how many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range4 {
    offset: u32,
    len: u32,
}

impl Range4 {
    /// The place that bytes begin with, and what is behind it.
    fn cut(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (place, rest) = bytes.split_at_checked(PLACE_LEN)?;
        let (offset, len) = place.split_at_checked(4)?;
        Some((Self { offset: word(offset)?, len: word(len)? }, rest))
    }

    /// The bytes, if so many are there.
    fn within(self, len: u32) -> Option<Range<u32>> {
        let end = self.offset.checked_add(self.len).filter(|end| *end <= len)?;
        Some(self.offset..end)
    }
}

fn word(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_le_bytes)
}

/// Four bytes, and four that are zero.
fn word_alone(bytes: &[u8]) -> Option<u32> {
    let (value, reserved) = bytes.split_at_checked(4)?;
    word(value).filter(|_| reserved == [0; 4])
}

impl<'a> Arguments<'a> {
    /// Takes those of a plan apart; `None` if they cannot be.
    fn of(plan: &Posted<'a>, magic: [u8; 2]) -> Option<Self> {
        let bytes = plan.arguments;
        let header = |bytes: &[u8]| Header::decode(bytes, magic).ok().filter(|_| bytes.len() == HEADER_LEN);
        if plan.plan.0 < OWN_PLANS {
            if bytes.len() != PEERS_LEN + HEADER_LEN {
                return Some(Self::Nothing(bytes));
            }
            let (channels, bytes) = bytes.split_at_checked(PEERS_LEN)?;
            return Some(Self::User(channels_of(channels)?, header(bytes)?));
        }
        match plan.plan {
            SEND_HEADER => Some(Self::Header(header(bytes)?)),
            SEND => Range4::cut(bytes).and_then(|(place, rest)| Some(Self::Send(place, header(rest)?))),
            COMPRESS => Range4::cut(bytes)
                .and_then(|(place, rest)| Some(Self::Compress(place, Handle(word_alone(rest)?)))),
            CHECKSUM => {
                Range4::cut(bytes).and_then(|(place, rest)| Some(Self::Checksum(place, word_alone(rest)?)))
            }
            _ => None,
        }
    }

    const fn place(&self) -> Option<Range4> {
        match self {
            Self::Send(place, _) | Self::Compress(place, _) | Self::Checksum(place, _) => Some(*place),
            Self::Header(_) | Self::User(..) | Self::Nothing(_) => None,
        }
    }

    const fn header(&self) -> Option<&Header> {
        match self {
            Self::Send(_, header) | Self::Header(header) | Self::User(_, header) => Some(header),
            Self::Compress(..) | Self::Checksum(..) | Self::Nothing(_) => None,
        }
    }
}

/// Those in front of the first 0, behind which there is nothing else.
fn channels_of(bytes: &[u8]) -> Option<Channels> {
    let mut all = [ChannelId(0); MEMBERS_MAX];
    for (place, bytes) in all.iter_mut().zip(bytes.chunks_exact(PEERS_LEN / MEMBERS_MAX)) {
        *place = ChannelId(u16::from_le_bytes(bytes.try_into().ok()?));
    }
    let count = all.iter().take_while(|channel| channel.0 != 0).count();
    let (named, rest) = all.split_at_checked(count)?;
    let is_each_once = named
        .iter()
        .enumerate()
        .all(|(at, channel)| !named.iter().skip(at + 1).any(|other| other == channel));
    (is_each_once && rest.iter().all(|channel| channel.0 == 0)).then(|| Channels::new(named))?
}

impl SplitDialect {
    /// Of messages that begin so, whose peers are waited for so long.
    #[must_use]
    pub fn new(magic: [u8; 2], patience: Duration) -> Self {
        Self { magic, patience, found: Found::default() }
    }

    fn payload_len(plan: &Posted<'_>) -> u32 {
        plan.message.map_or(0, |message| message.payload_len)
    }
}

impl Dialect for SplitDialect {
    fn magic(&self) -> [u8; 2] {
        self.magic
    }

    fn set(&mut self, _: &Set) -> Result<(), Reject> {
        Err(Reject::Hostile)
    }

    fn slots(&self, _: &Posted<'_>, _: &mut dyn FnMut(Slot)) {}

    fn pieces(&mut self, plan: &Posted<'_>, _: &mut Vec<u32>) -> Result<Pieces, Reject> {
        let arguments = Arguments::of(plan, self.magic).ok_or(Reject::Hostile)?;
        let len = Self::payload_len(plan);
        if let Some(place) = arguments.place() {
            plan.message.ok_or(Reject::Hostile)?;
            // Less may have been written than there is memory.
            place.within(len).ok_or(Reject::Ends(CompletionStatus::Refused))?;
        }
        if plan.plan.0 >= OWN_PLANS {
            return Ok(Pieces { count: 1, told: Told::Once });
        }
        let count = u16::try_from(len.div_ceil(PIECE_LEN)).unwrap_or(u16::MAX);
        // The reply to one piece is not the other's.
        let told = if count > 1 { Told::Each } else { Told::Reply };
        Ok(Pieces { count: count.max(1), told })
    }

    fn payload(&self, plan: &Posted<'_>) -> Range<u32> {
        let len = Self::payload_len(plan);
        let place = Arguments::of(plan, self.magic).and_then(|arguments| arguments.place());
        place.and_then(|place| place.within(len)).unwrap_or(0..len)
    }

    fn memory(&self, plan: &Posted<'_>, piece: u16, _: Register) -> u32 {
        let Range { start, end } = self.piece(plan, piece);
        end.saturating_sub(start)
    }

    fn answer(&self, plan: &Posted<'_>) -> Option<Handle> {
        match Arguments::of(plan, self.magic)? {
            Arguments::Compress(_, into) => Some(into),
            _ => None,
        }
    }

    fn seed(&self, plan: &Posted<'_>) -> u32 {
        match Arguments::of(plan, self.magic) {
            Some(Arguments::Checksum(_, seed)) => seed,
            _ => 0,
        }
    }

    fn place(
        &mut self,
        _: Instant,
        plan: &Posted<'_>,
        _: u16,
        found: &Found,
        _: &mut [u8],
    ) -> Result<Place, Reject> {
        self.found = *found;
        let channels = match Arguments::of(plan, self.magic) {
            Some(Arguments::Send(..) | Arguments::Header(_)) => Channels::new(&[ChannelId(plan.slot.0)]),
            Some(Arguments::User(channels, _)) => Some(channels),
            // It sends, and does not say what.
            _ => None,
        };
        Ok(Place {
            channels: channels.ok_or(Reject::Hostile)?,
            first: 0,
            skipped: 0,
            before_len: 0,
            zeros: 0,
            reply_len_max: REPLY_PAYLOAD_MAX as u32,
            patience: self.patience,
        })
    }

    fn header(&mut self, plan: &Posted<'_>, piece: u16, _: ChannelId) -> Header {
        let (magic, rest) = (self.magic, [0; 40]);
        let nothing =
            Header { magic, version: 0, kind: 0, status: 0, flags: 0, tag: 0, payload_len: 0, rest };
        let arguments = Arguments::of(plan, self.magic);
        let mut header = arguments.as_ref().and_then(Arguments::header).copied().unwrap_or(nothing);
        if plan.plan.0 < OWN_PLANS {
            let packed = if self.found.encoding == Encoding::Lz4 { PACKED } else { 0 };
            header.flags = header.flags & !PACKED | packed;
            if Self::payload_len(plan) > PIECE_LEN {
                header.status = piece;
            }
        }
        header
    }

    fn judge(&mut self, _: &Posted<'_>, _: u16, _: ChannelId, reply: &Header) -> Judgement {
        if reply.status == 0 { Judgement::Good } else { Judgement::Bad }
    }

    fn accept(
        &mut self,
        _: &Posted<'_>,
        _: u16,
        _: Option<(ChannelId, &Header)>,
        _: &[u8],
        _: &mut Parts,
    ) -> Judgement {
        // What is in it nobody here can tell.
        Judgement::Bad
    }

    fn status(&self, plan: &Posted<'_>) -> u16 {
        plan.slot.0
    }

    fn may_answer(&self, _: Instant, _: &Posted<'_>) -> bool {
        true
    }

    fn words(&mut self, plan: &Posted<'_>, _: u16, outcome: &Outcome) -> Words {
        let word = match plan.plan {
            CHECKSUM => outcome.found.crc.unwrap_or(0),
            _ => outcome.found.len,
        };
        Words { units: 0, offset: 0, word }
    }

    fn ended(&mut self) {}
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::host::arguments;
    use crate::wire::PlanId;

    const MAGIC: [u8; 2] = *b"OX";

    fn header() -> Header {
        Header {
            magic: MAGIC,
            version: 1,
            kind: 1,
            status: 0,
            flags: 3,
            tag: 5,
            payload_len: 0,
            rest: [7; 40],
        }
    }

    fn posted(plan: u8, arguments: &[u8]) -> Posted<'_> {
        let (plan, slot, handle) = (PlanId(plan), Slot(9), Handle(3));
        Posted { plan, argument: 1, slot, handle, arguments, message: None, notes: &[] }
    }

    #[test]
    fn channels_stand_one_behind_the_other_and_each_once() {
        let named = |channels: &[u16]| {
            let bytes: Vec<u8> = channels.iter().flat_map(|channel| channel.to_le_bytes()).collect();
            channels_of(&bytes).map(|channels| channels.as_slice().len())
        };
        assert_eq!(
            [named(&[0, 0, 0, 0]), named(&[5, 0, 0, 0]), named(&[1, 2, 3, 4])],
            [Some(0), Some(1), Some(4)]
        );
        assert_eq!([named(&[0, 5, 0, 0]), named(&[5, 5, 0, 0]), named(&[1, 0, 0, 4])], [None; 3]);
    }

    #[test]
    fn what_a_user_posts_is_what_the_card_reads() {
        let to = [ChannelId(3), ChannelId(0x8001)];
        let bytes = arguments(&to, &header().encode());
        let read = Arguments::of(&posted(1, &bytes), MAGIC);
        assert_eq!(read, Some(Arguments::User(Channels::new(&to).unwrap(), header())));
        assert_eq!(Arguments::of(&posted(1, &bytes), *b"OC"), None, "it is of another protocol");
        assert_eq!(Arguments::of(&posted(1, &[]), MAGIC), Some(Arguments::Nothing(&[])));
    }

    proptest! {
        /// Whatever a host posts, the card finds what there is, or refuses it.
        #[test]
        fn any_arguments_are_taken_or_refused(
            plan in prop_oneof![Just(1u8), 250u8..=255],
            bytes in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..90),
            offset: u32,
            len in prop_oneof![0u32..70_000, any::<u32>()],
            payload_len in 0u32..=1 << 20,
            is_headed: bool,
        ) {
            let mut bytes = bytes;
            if is_headed {
                let place = [offset.to_le_bytes(), len.to_le_bytes()].concat();
                bytes = [&place[..], &header().encode()].concat();
            }
            let header = [0; HEADER_LEN];
            let message = super::super::dialect::Message { header: &header, payload_len, answer_len: 0 };
            let posted = Posted { message: Some(message), ..posted(plan, &bytes) };
            let mut dialect = SplitDialect::new(MAGIC, Duration::from_secs(1));
            if dialect.pieces(&posted, &mut Vec::new()).is_ok() {
                let range = dialect.payload(&posted);
                prop_assert!(range.start <= range.end && range.end <= payload_len);
                let found = Found { len: 4, encoding: Encoding::Lz4, crc: None };
                let _ = dialect.place(Instant::default(), &posted, 0, &found, &mut []);
                let sent = dialect.header(&posted, 0, ChannelId(1));
                prop_assert_eq!(sent.magic, MAGIC);
                let _ = (dialect.answer(&posted), dialect.seed(&posted), dialect.memory(&posted, 0, Register::ANSWER));
            }
        }
    }
}
