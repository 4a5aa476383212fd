//! What the host knows of a port's channels: what it has asked for, and what the card may say of them.

use std::collections::BTreeMap;

use super::port::PostError;
use crate::wire::{ACCEPTED_FROM, Channel, ChannelId, ChannelIs, ChannelState, ChannelWhat};

/// Where a channel is. The card says once that one is over; its number is then free for another, or given back by closing it.
///
/// ```text
///   connect ─▶ Connecting ──Up──▶ Up ─┐            listen ─▶ Opening ──Listening──▶ Listening
///                   └── Refused, Gone ┴──▶ Over ◀── Refused, Gone ──┴────────────────┘
///            Accepted ──Ended──▶ Ended ── Gone ──▲
///                └────── Gone ───────────────────┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Connecting,
    Up,
    Opening,
    Listening,
    Accepted,
    Ended,
    Over,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    phase: Phase,
    /// The host has closed it, and the card has not yet said that it is gone.
    is_closing: bool,
}

/// All channels of a port.
#[derive(Default)]
pub(super) struct Channels {
    known: BTreeMap<ChannelId, Known>,
    limit: usize,
}

impl Channels {
    /// No more than this, and as many that were accepted.
    pub(super) fn limit(&mut self, limit: u16) {
        self.limit = limit.into();
    }

    /// Whether the host may say this, and notes it when `is_said`.
    pub(super) fn ask(&mut self, channel: &Channel, is_said: bool) -> Result<(), PostError> {
        let id = channel.channel;
        let phase = match channel.what {
            ChannelWhat::Close => return self.close(id, is_said),
            ChannelWhat::Connect => Phase::Connecting,
            ChannelWhat::Listen => Phase::Opening,
        };
        let known = self.known.get(&id);
        if known.is_some_and(|known| known.phase != Phase::Over) || id.0 == 0 || id.0 >= ACCEPTED_FROM {
            return Err(PostError::Channel(id));
        }
        if known.is_none() && self.known.range(..ChannelId(ACCEPTED_FROM)).count() >= self.limit {
            return Err(PostError::TooMany);
        }
        if is_said {
            self.known.insert(id, Known { phase, is_closing: false });
        }
        Ok(())
    }

    fn close(&mut self, id: ChannelId, is_said: bool) -> Result<(), PostError> {
        let known = self.known.get_mut(&id).filter(|known| !known.is_closing);
        let known = known.ok_or(PostError::Channel(id))?;
        known.is_closing |= is_said;
        if known.is_closing && known.phase == Phase::Over {
            self.known.remove(&id);
        }
        Ok(())
    }

    /// Whether the card knows it, or will when it hears of it.
    pub(super) fn is_known(&self, id: ChannelId) -> bool {
        self.known.get(&id).is_some_and(|known| !known.is_closing)
    }

    /// The lowest number of the host's own that is free.
    pub(super) fn free(&self) -> Option<ChannelId> {
        let taken = self.known.iter().filter(|(_, known)| known.phase != Phase::Over);
        let taken = taken.zip(1..).take_while(|((id, _), number)| id.0 == *number).count();
        u16::try_from(taken + 1).ok().filter(|number| *number < ACCEPTED_FROM).map(ChannelId)
    }

    /// Takes what the card says; `None` if it cannot be.
    pub(super) fn apply(&mut self, is: &ChannelIs) -> Option<()> {
        let id = is.channel;
        if is.state == ChannelState::Accepted {
            let listener = self.known.get(&is.listener)?;
            let accepted = self.known.range(ChannelId(ACCEPTED_FROM)..).count();
            let known = self.known.get(&id);
            let is_free = known.map_or(accepted < self.limit, |known| known.phase == Phase::Over);
            if listener.phase != Phase::Listening || !is_free {
                return None;
            }
            self.known.insert(id, Known { phase: Phase::Accepted, is_closing: false });
            return Some(());
        }
        let known = self.known.get_mut(&id)?;
        match (known.phase, is.state) {
            // A peer may tell later which life of it this is.
            (Phase::Connecting | Phase::Up, ChannelState::Up) => known.phase = Phase::Up,
            (Phase::Opening, ChannelState::Listening) => known.phase = Phase::Listening,
            (Phase::Accepted, ChannelState::Ended) => known.phase = Phase::Ended,
            (Phase::Over, _) => return None,
            (_, ChannelState::Gone) | (Phase::Connecting | Phase::Opening, ChannelState::Refused) => {
                known.phase = Phase::Over;
                if known.is_closing {
                    self.known.remove(&id);
                }
            }
            _ => return None,
        }
        Some(())
    }
}
