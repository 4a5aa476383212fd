//! What plans move between card memory and the areas of their host.

use ob_ring::{Bulk, BulkDone, BulkRefusal, CardSender, RefusedBulk};

use super::dialect::{Dialect, Encoding, Found, Moved};
use super::flight::{Doing, Flight, FlightKey, Memory, of_token, token_of};
use super::front::Front;
use super::port::{Hostile, Port};
use super::run::{Went, number};
use crate::engine::Engines;
use crate::wire::{CompletionStatus, Register, Step};

impl<F: Front, D: Dialect, E: Engines> Port<F, D, E> {
    /// Into the card's area, at the place that the dialect knows.
    pub(super) fn move_to_host(
        &mut self,
        key: FlightKey,
        flight: &mut Flight,
        piece: u16,
        from: Register,
    ) -> Went {
        let refused = Went::Failed(CompletionStatus::Refused);
        let Some(source) = self.source(flight, piece, from) else { return Went::Hostile };
        let moved = Moved::ToHost(source.len() as u32);
        let Some(area) = self.dialect.area(&flight.entry.posted(), number(piece), moved) else {
            return refused;
        };
        // More than there is, a host knows not to ask for.
        let Some(bytes) = source.part(0..area.len as usize) else { return Went::Hostile };
        self.begin_transfer(key, flight, piece, Bulk::Write { from: bytes.into(), at: area.at })
    }

    /// Out of the host's area, or what was put into the card's.
    pub(super) fn move_from_host(
        &mut self,
        key: FlightKey,
        flight: &mut Flight,
        piece: u16,
        into: Register,
    ) -> Went {
        let refused = Went::Failed(CompletionStatus::Refused);
        let Some(area) = self.dialect.area(&flight.entry.posted(), number(piece), Moved::FromHost) else {
            return refused;
        };
        let room = if flight.is_record(Step::FromHost { into }, into) {
            match self.record_room(key, flight, piece, area.len as usize) {
                Ok(room) => Some(room),
                Err(went) => return went,
            }
        } else {
            flight.piece_mut(piece).take_room(into)
        };
        let Some(mut room) = room else { return refused };
        if room.len() < area.len as usize {
            return Went::Hostile;
        }
        room.truncate(area.len as usize);
        let (at, into) = (area.at, room);
        let bulk = if area.is_back { Bulk::ReadBack { at, into } } else { Bulk::Read { at, into } };
        self.begin_transfer(key, flight, piece, bulk)
    }

    fn begin_transfer(&mut self, key: FlightKey, flight: &mut Flight, piece: u16, bulk: Bulk) -> Went {
        flight.piece_mut(piece).doing = Doing::Transfer;
        self.transfers.push_back((key, piece, bulk));
        Went::Waits
    }

    /// Gives the ring transfers, as many as it takes.
    pub(super) fn transfer(&mut self, ring: &mut CardSender) {
        while let Some((key, piece, bulk)) = self.transfers.pop_front() {
            let Err(RefusedBulk { bulk, reason }) = ring.transfer(token_of(key, piece).0, bulk) else {
                continue;
            };
            match reason {
                BulkRefusal::Full | BulkRefusal::Overlapping => {
                    return self.transfers.push_front((key, piece, bulk));
                }
                BulkRefusal::OutOfArea | BulkRefusal::TooLarge { .. } => {
                    self.hostile = Some(Hostile::Arguments);
                }
            }
        }
    }

    /// A transfer is over.
    pub(super) fn transferred(&mut self, done: BulkDone) {
        let (key, piece) = of_token(ob_core::Token(done.tag));
        let Some(mut flight) = self.flights.take(key) else { return };
        let at = flight.piece(piece).at;
        let step = flight.steps().get(usize::from(at)).copied();
        let plan = flight.entry.posted().plan;
        self.cross(plan, done.bulk.extent().1 as usize);
        let of = flight.piece_mut(piece);
        of.doing = Doing::Nothing;
        match (done.result, done.bulk, step) {
            (
                Ok(()),
                Bulk::Read { into, .. } | Bulk::ReadBack { into, .. },
                Some(Step::FromHost { into: register }),
            ) => {
                of.know(register, Found { len: into.len() as u32, encoding: Encoding::Plain, crc: None });
                of.put(register, Memory::Written(into.share()));
                of.at = at + 1;
            }
            (Ok(()), Bulk::Write { .. }, _) => of.at = at + 1,
            _ => flight.fail(piece, CompletionStatus::Refused, at + 1),
        }
        self.flights.put(key, flight);
        self.ready.push_back((key, piece));
    }
}
