//! Where no member has all that was acknowledged, several may have it together: whoever has a good record behind the end of the longest
//! gives it, until nobody has one (C4).
//!
//! What a server says of its end is how far it goes without a break; behind that it may have records that others lack. So they are asked
//! for what lies there, and what the longest is given changes no byte but those that it lacks (C8). Then those that are shorter get what
//! the longest has: one that is broken in the middle may be the one that has all that was acknowledged. Then all are asked anew: whoever was
//! filled up looks what it has behind that, and may know by now that nothing is missing.

use ob_core::{ChunkName, Instant, SegmentName, Units};

use super::{AGAIN, Copied, Phase, Seal, SealMember};
use crate::tier::chunks::ChunkIs;
use crate::tier::core::TierCore;
use crate::tier::plant::{Bug, is_planted};
use crate::tier::servers::Errand;

/// How far it has come.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// Those that have nothing behind the end of the longest.
    asked: Vec<usize>,
    /// Those that take nothing of what it has.
    ungrown: Vec<usize>,
    has_grown: bool,
}

/// The next copy: from whom, to whom, from where on, and how far at most.
type Next = ((usize, usize), (Units, Units));

impl Seal {
    /// What a member is given next that may know its end then.
    fn next_growth(&self, most: Units) -> Option<Next> {
        let ended = |member: &SealMember| member.end().map(|end| (member.server, end));
        let (longest, at) = self.members.iter().filter_map(ended).max_by_key(|(_, end)| end.end)?;
        let at = at.end;
        let mut others = self.members.iter().filter_map(ended).filter(|(server, _)| *server != longest);
        let from = others.clone().find(|(server, _)| !self.growth.asked.contains(server));
        if let Some((from, _)) = from.filter(|_| at < most && !is_planted(Bug::PrefixAlone)) {
            return Some(((from, longest), (at, most)));
        }
        let shorter = others.find(|(server, end)| end.end < at && !self.growth.ungrown.contains(server));
        let (to, end) = shorter.filter(|_| !is_planted(Bug::LongestAlone))?;
        Some(((longest, to), (end.end, at)))
    }
}

impl TierCore {
    /// What members tell is not enough: perhaps it is together.
    pub(super) fn grow(&mut self, now: Instant, name: SegmentName, place: usize) {
        if let Some(seal) = self.seal_mut(name, place) {
            seal.growth = Growth::default();
        }
        self.grow_on(now, name, place);
    }

    fn grow_on(&mut self, now: Instant, name: SegmentName, place: usize) {
        let Some(segment) = self.segments.get_mut(&name) else { return };
        let (Some(epoch), Some(chunk)) = (segment.epoch(), segment.chunks.get_mut(place)) else { return };
        let (of, most) = (ChunkName::new(name, chunk.number), chunk.length);
        let ChunkIs::Closing(seal) = &mut chunk.is else { return };
        let attempt = seal.attempt;
        let Some(((from, to), (at, end))) = seal.next_growth(most) else {
            // Who has got something is asked how its end looks now; else all wait for somebody else.
            let again = if seal.growth.has_grown { now } else { now + AGAIN };
            seal.phase = Phase::Waiting { again };
            return;
        };
        seal.phase = Phase::Growing { from, to };
        let errand = Errand { segment: name, place, attempt, is_repair: false };
        self.copy(errand, (from, to), of, epoch, at, end);
    }

    /// One has got what another has behind its end, or there is nothing.
    pub(super) fn member_grown(
        &mut self,
        now: Instant,
        errand: Errand,
        (from, to): (usize, usize),
        copied: Copied,
    ) {
        let Some(seal) = self.seal_of(errand) else { return };
        let ends = seal.members.iter().filter_map(SealMember::end).map(|end| end.end);
        let longest = ends.max().unwrap_or_default();
        let end = seal.member_mut(to).and_then(|member| match &mut member.is {
            super::MemberIs::Ended(end) => Some(end),
            _ => None,
        });
        match (copied, end) {
            (Copied::To(durable), Some(end)) if durable > end.end => {
                end.end = durable;
                seal.growth.asked.clear();
                seal.growth.has_grown = true;
            }
            (_, Some(end)) if end.end < longest => seal.growth.ungrown.push(to),
            _ => seal.growth.asked.push(from),
        }
        self.grow_on(now, errand.segment, errand.place);
    }
}
