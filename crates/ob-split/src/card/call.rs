//! `CALL`: one message to one channel, and its reply to the host. Every dialect has it.

use crate::wire::{Answers, ChannelId, Definition, HEADER_LEN, Header, Plan, PlanError, PlanId, Step};

use super::dialect::{Channels, Place, Posted};

/// Bytes of an entry without payload.
pub const CALL_LEN: u8 = 8 + HEADER_LEN as u8;

/// Bytes of what the second byte of an entry counts.
const WORD_LEN: u8 = 4;

/// What a `CALL` asks for: in place of the slot the channel, then the header, then as many words of four bytes of payload as the second
/// byte counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call<'a> {
    /// To whom.
    pub channel: ChannelId,
    /// The header as the host has made it. Its tag is replaced.
    pub header: Header,
    /// What follows it.
    pub payload: &'a [u8],
}

impl<'a> Call<'a> {
    /// The plan of it, under a number.
    ///
    /// # Errors
    ///
    /// Never: the steps make sense.
    pub fn definition(id: PlanId) -> Result<Definition, PlanError> {
        let plan = Plan::new(vec![Step::Send { payload: None }, Step::Merge { answers: Answers::First }])?;
        Definition::new(id, plan, CALL_LEN, WORD_LEN)
    }

    /// Takes the arguments of one apart, of a protocol; nothing if they are none.
    #[must_use]
    pub fn of(plan: &Posted<'a>, magic: [u8; 2]) -> Option<Self> {
        let (header, payload) = plan.arguments.split_at_checked(HEADER_LEN)?;
        let header = Header::decode(header, magic).ok()?;
        let is_whole = payload.len() == usize::from(plan.argument) * usize::from(WORD_LEN)
            && header.payload_len as usize == payload.len();
        (is_whole && !header.is_reply()).then_some(Self { channel: ChannelId(plan.slot.0), header, payload })
    }

    /// Where it goes: puts the payload into `before`.
    #[must_use]
    pub fn place(
        &self,
        before: &mut [u8],
        reply_len_max: u32,
        patience: std::time::Duration,
    ) -> Option<Place> {
        before.get_mut(..self.payload.len())?.copy_from_slice(self.payload);
        let channels = Channels::new(&[self.channel])?;
        let before_len = self.payload.len() as u16;
        Some(Place { channels, first: 0, skipped: 0, before_len, zeros: 0, reply_len_max, patience })
    }
}
