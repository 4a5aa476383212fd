//! The chunk servers of a pool, as the store has them: which there are, where, and which of them are emptied or out.
//!
//! ```text
//!   servers/ ─ when the tier begins, and every second ─▶ in, draining: connected to │ out: not any more, and what it had is gone
//!   a configured server that nobody has a record of ─ greeted ─▶ commit: it is of the pool ─▶ in
//! ```
//!
//! What the store says is what counts. The configuration says where to look for servers that it knows nothing of; where one was that is
//! out, nobody looks, until an administrator says that there is another.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ob_core::{Instant, Revision, SegmentName, ServerId, Units};
use ob_format::volume::ChunkKind;
use ob_format::volume::metadata::{Server, ServerState as Membership, Text};

use super::chunks::TierChunk;
use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::ports::MAIN;
use super::segments::Standing;
use super::servers::{ServerCore, ServerState};
use super::status::Trouble;
use super::store::{Listing, Phase, Purpose, Then};
use crate::metadata::{Expect, Key, KeyValue, LIST_MAX, MetadataOp, MetadataValue, Name};

/// Servers that a pool has at most, those that are out not counted: a card connects to no more.
pub const SERVERS_MAX: usize = 64;

/// A server, as of a revision of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PooledServer {
    pub(super) server: Server,
    pub(super) revision: Revision,
}

/// What the store has of servers.
#[derive(Debug, Default)]
pub(super) struct Pooled {
    pub(super) all: BTreeMap<ServerId, PooledServer>,
    /// Whether they were listed once: before that nobody is connected to.
    pub(super) is_listed: bool,
    is_watching: bool,
    /// Those whose records are being made.
    joining: BTreeMap<ServerId, Server>,
}

impl Pooled {
    pub(super) fn state(&self, server: ServerId) -> Option<Membership> {
        self.all.get(&server).map(|of| of.server.state)
    }

    /// Those that are not out.
    pub(super) fn living(&self) -> impl Iterator<Item = (ServerId, &PooledServer)> {
        self.all.iter().filter(|(_, of)| of.server.state != Membership::Out).map(|(id, of)| (*id, of))
    }
}

/// Where a server is, as its record says it.
pub(super) fn address_of(server: &Server) -> Option<SocketAddr> {
    server.address.as_str().parse().ok()
}

impl TierCore {
    /// The servers of the pool are listed, before anybody is connected to.
    pub(super) fn list_servers(&mut self) {
        self.store.phase = Phase::Servers;
        self.ask_servers(Listing::Begins, None);
    }

    fn ask_servers(&mut self, listing: Listing, after: Option<Key>) {
        let prefix = self.config.keys.servers();
        self.submit(Purpose::Servers(listing), MetadataOp::List { prefix, after, most: LIST_MAX });
    }

    /// It is looked whether somebody else has changed them.
    pub(super) fn watch_servers(&mut self) {
        if self.store.phase == Phase::Open && !std::mem::replace(&mut self.pooled.is_watching, true) {
            self.ask_servers(Listing::Looks, None);
        }
    }

    pub(super) fn servers_listed(
        &mut self,
        now: Instant,
        listing: Listing,
        entries: &[KeyValue],
        has_more: bool,
    ) {
        let is_beginning = listing == Listing::Begins;
        self.pooled.is_watching &= is_beginning;
        let while_in = if is_beginning { Phase::Servers } else { Phase::Open };
        if self.store.phase != while_in {
            return;
        }
        for entry in entries {
            let name = self.config.keys.parse(&entry.key);
            let value = name.map(|name| MetadataValue::decode(&name, entry.value.bytes()));
            match (name, value) {
                (Some(Name::Server(id)), Some(Ok(MetadataValue::Server(server)))) => {
                    self.server_known(now, id, server, entry.revision);
                }
                // What another version has put there while this tier serves is for others.
                _ if !is_beginning => {}
                _ => return self.fail(Trouble::Value),
            }
        }
        if let Some(last) = entries.last().filter(|_| has_more) {
            self.pooled.is_watching = !is_beginning;
            return self.ask_servers(listing, Some(last.key.clone()));
        }
        if !is_beginning {
            self.place_those_without_a_place(now);
            return self.join_servers();
        }
        if !std::mem::replace(&mut self.pooled.is_listed, true) {
            self.forget_old_addresses(now, None);
            self.connect_servers(now);
        }
        self.list_volumes();
    }

    /// Where a server was that is out, or is somewhere else now, and no other is said to be, there is none.
    fn forget_old_addresses(&mut self, now: Instant, left: Option<SocketAddr>) {
        let at = |of: &PooledServer| address_of(&of.server);
        let living: BTreeSet<SocketAddr> = self.pooled.living().filter_map(|(_, of)| at(of)).collect();
        let of_all = self.pooled.all.values().filter_map(at).chain(left);
        let old: BTreeSet<SocketAddr> = of_all.filter(|address| !living.contains(address)).collect();
        let is_old = |server: &ServerCore| {
            let is_anybody = server.id.is_some() || server.is_candidate;
            !is_anybody && !server.is_unplaced && old.contains(&server.address)
        };
        let places = self.servers.iter().enumerate().filter(|(_, server)| is_old(server));
        for place in places.map(|(place, _)| place).collect::<Vec<_>>() {
            self.unplace(now, place);
        }
    }

    /// The store has a server so, as of a revision.
    pub(super) fn server_known(&mut self, now: Instant, id: ServerId, server: Server, revision: Revision) {
        let before = self.pooled.all.get(&id).copied();
        if before.is_some_and(|before| before.revision >= revision) {
            return;
        }
        self.pooled.all.insert(id, PooledServer { server, revision });
        if before.is_some_and(|before| before.server == server) {
            return;
        }
        match server.state {
            Membership::Out => self.server_out(now, id),
            Membership::In | Membership::Draining => self.place_server(now, id, &server),
        }
        if self.pooled.is_listed {
            self.forget_old_addresses(now, before.and_then(|before| address_of(&before.server)));
        }
        // Who is to have replicas, and who is waited for, is another question now.
        self.repair_at = Some(now);
        self.repairs_left.clear();
        self.space_at = Some(self.space_at.map_or(now, |at| at.min(now)));
        self.retry_seals(now);
        self.continue_takings(now);
        self.continue_all_openings(now);
    }

    /// Where one was that is out, or that has moved, another may be, of which the store has said so before.
    fn place_those_without_a_place(&mut self, now: Instant) {
        let is_placed = |id| self.servers.iter().any(|server| !server.is_unplaced && server.id == Some(id));
        let without = self.pooled.living().filter(|(id, _)| !is_placed(*id));
        for (id, server) in without.map(|(id, of)| (id, of.server)).collect::<Vec<_>>() {
            self.place_server(now, id, &server);
        }
    }

    /// A server is of the pool: it is looked for where its record says.
    fn place_server(&mut self, now: Instant, id: ServerId, server: &Server) {
        let Some(address) = address_of(server) else { return };
        let is_it = |server: &ServerCore| {
            server.id == Some(id) || server.id.is_none() || !is_planted(Bug::ConnectedTwice)
        };
        let is_at = |server: &ServerCore| !server.is_unplaced && server.address == address;
        if self.servers.iter().any(|server| is_at(server) && is_it(server)) {
            // Who is there says so when it is greeted: this one, or another, whose disk is new, say. To be connected to twice would be for
            // neither: the later greeting ends the earlier connection (F6), and that one is made anew.
            return;
        }
        let known = self.servers.iter().position(|server| server.id == Some(id));
        // A place that was made for its name alone may lie behind those that can be connected to: it is found out who is at the other.
        let placed = known.filter(|place| *place < self.places_max());
        let Some(place) = placed.or_else(|| self.free_place()) else { return };
        self.close_if_open(place);
        if let Some(of) = self.servers.get_mut(place) {
            (of.address, of.is_unplaced, of.trouble) = (address, false, None);
            if known.is_none() {
                of.id = Some(id);
            }
            of.away_since.get_or_insert(now);
        }
        self.connect_to(now, place);
    }

    /// A place is connected to, if nothing of an earlier connection is left; else as soon as that is over.
    pub(super) fn connect_to(&mut self, now: Instant, place: usize) {
        let is_open = self.is_connected() && self.pooled.is_listed;
        let server = self.servers.get_mut(place).filter(|server| server.state == ServerState::Unused);
        if let Some(server) = server.filter(|_| is_open) {
            server.state = ServerState::Down { again: now };
        }
    }

    /// A place that nobody has; nothing, if there are as many as the card connects to.
    pub(super) fn free_place(&mut self) -> Option<usize> {
        let place = self.servers.iter().position(ServerCore::is_nobody).unwrap_or(self.servers.len());
        if place >= self.places_max() {
            return None;
        }
        if place == self.servers.len() {
            self.servers.push(ServerCore::new(SocketAddr::from(([0, 0, 0, 0], 0))));
        } else if let Some(server) = self.servers.get_mut(place) {
            *server = ServerCore::new(server.address);
        }
        Some(place)
    }

    /// Places of servers that can be connected to.
    pub(super) fn places_max(&self) -> usize {
        self.ports.get(&MAIN).map_or(SERVERS_MAX, |port| usize::from(port.welcome.channels_max))
    }

    /// What it had is gone, as an administrator has said: nobody waits for it, and nobody asks it anything.
    fn server_out(&mut self, now: Instant, id: ServerId) {
        let places = self.servers.iter().enumerate().filter(|(_, server)| server.id == Some(id));
        for place in places.map(|(place, _)| place).collect::<Vec<_>>() {
            self.unplace(now, place);
        }
    }

    /// Nobody is at this place any more; chunks that name it know it by its place still.
    pub(super) fn unplace(&mut self, now: Instant, place: usize) {
        self.close_if_open(place);
        let Some(server) = self.servers.get_mut(place) else { return };
        (server.is_unplaced, server.is_candidate) = (true, false);
        server.away_since.get_or_insert(now);
        if let ServerState::Down { .. } = server.state {
            server.state = ServerState::Unused;
        }
        self.server_gone(now, place);
    }

    fn close_if_open(&mut self, place: usize) {
        let state = self.servers.get(place).map(|server| server.state);
        if matches!(state, Some(ServerState::Connecting | ServerState::Greeting | ServerState::Ready)) {
            self.close_channel(place);
        }
    }

    /// Servers that are there, and of which nobody has a record, are of the pool from now on: they were configured.
    pub(super) fn join_servers(&mut self) {
        if self.store.phase != Phase::Open {
            return;
        }
        for place in 0..self.servers.len() {
            self.join(place);
        }
    }

    fn join(&mut self, place: usize) {
        let Some(server) = self.servers.get(place).filter(|server| server.is_ready()) else { return };
        let (Some(id), false) = (server.id, server.is_candidate) else { return };
        let is_known = self.pooled.all.contains_key(&id) || self.pooled.joining.contains_key(&id);
        if is_known || self.pooled.living().count() + self.pooled.joining.len() >= SERVERS_MAX {
            return;
        }
        let Some(address) = Text::new(&server.address.to_string()) else { return };
        let domain = Text::default();
        let record = Server { state: Membership::In, capacity: server.capacity, domain, address };
        self.pooled.joining.insert(id, record);
        let value = MetadataValue::Server(record).encode();
        self.commit(Name::Server(id), Expect::Absent, Vec::new(), value, Then::Joined(id), None);
    }

    /// It is of the pool; or somebody else has said something of it, which is seen when servers are listed the next time.
    pub(super) fn server_joined(&mut self, now: Instant, id: ServerId, revision: Option<Revision>) {
        if let (Some(record), Some(revision)) = (self.pooled.joining.remove(&id), revision) {
            self.server_known(now, id, record, revision);
        }
    }

    fn membership(&self, place: usize) -> Option<Membership> {
        self.pooled.state(self.servers.get(place)?.id?)
    }

    /// Whether what a server had is gone, as an administrator has said.
    pub(super) fn is_out(&self, place: usize) -> bool {
        self.membership(place) == Some(Membership::Out)
    }

    /// Whether what a server has is to be copied away.
    pub(super) fn is_draining(&self, place: usize) -> bool {
        self.membership(place) == Some(Membership::Draining)
    }

    /// Whether replicas may be put on a server, to stay there.
    pub(super) fn may_keep(&self, place: usize) -> bool {
        let is_candidate = self.servers.get(place).is_none_or(|server| server.is_candidate);
        !is_candidate && matches!(self.membership(place), None | Some(Membership::In))
    }

    /// What fails together with a server: what an administrator has said, or else the server itself.
    pub(super) fn domain_of(&self, place: usize) -> Option<Text<32>> {
        let server = self.servers.get(place)?;
        let said = server.id.and_then(|id| self.pooled.all.get(&id)).map(|of| of.server.domain);
        said.filter(|domain| !domain.is_empty()).or(server.domain)
    }

    /// Members that are neither lost nor emptied.
    pub(super) fn staying_members(&self, now: Instant, chunk: &TierChunk) -> Vec<usize> {
        let mut kept = self.kept_members(now, chunk);
        kept.retain(|member| !self.is_draining(*member));
        kept
    }

    /// Members that are to be named beside a new one: those that stay, and of those that are emptied as many as would else be missing.
    pub(super) fn members_beside(&self, now: Instant, name: SegmentName, chunk: &TierChunk) -> Vec<usize> {
        let mut members = self.staying_members(now, chunk);
        let missing = self.replicas(name).saturating_sub(members.len() + 1);
        let leaving = self.kept_members(now, chunk).into_iter().filter(|member| self.is_draining(*member));
        members.extend(leaving.take(if is_planted(Bug::DrainedFirst) { 0 } else { missing }));
        members
    }

    /// Whether there is somebody for a whole chunk on as many other servers as it should have.
    fn is_room_without_draining(&self, now: Instant, name: SegmentName) -> bool {
        let Some(volume) = self.volumes.get(&name.volume).map(|served| served.volume) else { return false };
        let length = Units::of_bytes(volume.chunk_len);
        let can = |place: &usize| {
            let has_failed = self.servers.get(*place).is_none_or(|server| server.has_failed(now));
            let has_room = |may_use_reserve| self.has_room(now, *place, length, may_use_reserve);
            // One that was full is asked for a chunk again after a while: it is none to count on before.
            !has_failed && self.may_keep(*place) && has_room(false) && has_room(true)
        };
        (0..self.servers.len()).filter(can).count() >= usize::from(volume.replicas)
    }

    /// Whether a server is there and has room for a chunk of this length.
    pub(super) fn has_room(&self, now: Instant, place: usize, length: Units, may_use_reserve: bool) -> bool {
        let server = self.servers.get(place).filter(|server| server.is_ready());
        // One that has refused is asked again after a while: it says what is free only when it is asked for something.
        server.is_some_and(|server| {
            let has_space = server.free >= length.bytes();
            match may_use_reserve {
                // What it has refused to others it may have kept for this.
                true => has_space,
                false if server.full_until.is_some() && is_planted(Bug::FullPoolStuck) => false,
                false => !server.is_full(now) && (server.full_until.is_some() || has_space),
            }
        })
    }

    /// What is written to servers that are emptied goes elsewhere from now on, if there is where.
    pub(super) fn close_on_draining(&mut self, now: Instant) {
        let is_its = |chunk: &TierChunk| {
            let is_data = chunk.is_open() && chunk.kind == ChunkKind::Data;
            is_data && chunk.members.iter().any(|member| self.is_draining(*member))
        };
        let owned = self.segments.iter().filter(|(_, segment)| segment.standing == Standing::Owned);
        let open = owned.flat_map(|(name, segment)| {
            let chunks = segment.chunks.iter().enumerate().filter(|(_, chunk)| is_its(chunk));
            chunks.map(|(place, _)| (*name, place))
        });
        let open: Vec<_> = open.filter(|(name, _)| self.is_room_without_draining(now, *name)).collect();
        for (name, place) in open {
            self.close_chunk(now, name, place);
        }
    }
}
