//! Which server is at which place: records name servers by their ids, and the tier knows them by where it has found them.
//!
//! One that a record names, and that was not found yet, has a place without an address. When it is found the two are one; when another is
//! found where it was, it is without an address again.

use std::net::{Ipv4Addr, SocketAddr};

use ob_core::{Instant, ServerId};

use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::ports::retire_chunk;
use super::servers::ServerCore;

impl TierCore {
    /// The place of a server that a chunk's record names.
    pub(super) fn place_of(&mut self, now: Instant, id: ServerId) -> usize {
        let known = self.servers.iter().position(|server| server.id == Some(id));
        known.unwrap_or_else(|| self.make_unplaced(now, id))
    }

    fn make_unplaced(&mut self, now: Instant, id: ServerId) -> usize {
        let mut server = ServerCore::new(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        (server.is_unplaced, server.id, server.away_since) = (true, Some(id), Some(now));
        let free = self.servers.iter().position(|server| server.is_unplaced && server.id.is_none());
        match free.and_then(|place| self.servers.get_mut(place).map(|at| (place, at))) {
            Some((place, at)) => {
                *at = server;
                place
            }
            None => {
                self.servers.push(server);
                self.servers.len() - 1
            }
        }
    }

    /// Servers that are somewhere, as far as anybody has said.
    pub(super) fn servers_placed(&self) -> usize {
        self.servers.iter().filter(|server| !server.is_unplaced).count()
    }

    /// Who was at this place is not there any more.
    pub(super) fn move_identity_out(&mut self, now: Instant, place: usize) {
        let Some(id) = self.servers.get_mut(place).and_then(|server| server.id.take()) else { return };
        let since = self.servers.get(place).and_then(|server| server.away_since);
        let to = self.make_unplaced(since.unwrap_or(now), id);
        self.rename_place(now, place, to);
    }

    /// A server is found at this place: chunks that name it mean this place.
    pub(super) fn move_identity_in(&mut self, now: Instant, place: usize, id: ServerId) {
        let is_it = |server: &ServerCore| server.is_unplaced && server.id == Some(id);
        let Some(from) = self.servers.iter().position(is_it) else { return };
        if let Some(server) = self.servers.get_mut(from) {
            server.id = None;
        }
        self.rename_place(now, from, place);
    }

    fn rename_place(&mut self, now: Instant, from: usize, to: usize) {
        for (name, segment) in &mut self.segments {
            for (number, chunk) in segment.chunks.iter_mut().enumerate() {
                let places = chunk.members.iter_mut().chain(&mut chunk.strays).chain(&mut chunk.rotten);
                let mut is_any = false;
                for place in places.filter(|place| **place == from) {
                    (*place, is_any) = (to, true);
                }
                if is_any {
                    retire_chunk(&mut self.ports, (*name, number));
                }
            }
        }
        if is_planted(Bug::PlaceBelieved) {
            return;
        }
        // What others have answered at that place is theirs, and not what is asked next (C5).
        self.rename_in_seals(now, from, to);
        self.rename_in_openings(now, from, to);
        self.rename_in_repair(now, from, to);
        self.rename_in_mends(now, from, to);
    }
}
