//! What administrators ask of a pool's chunk servers: they are shown, taken in, emptied and taken out.
//!
//! ```text
//!   add ADDRESS ─▶ connect, greet: who is it? ─▶ servers/S ──────────────────────────────────────┐
//!   drain S ─────▶ servers/S ────────────────────────────────────────────────────────────────────┼▶ commit ─▶ all tiers see it within a second
//!   rm S ────────▶ all of servers/ ─▶ all of chunks/: is it named, and who else is there? ───────┘
//! ```
//!
//! Each is one commit, which compares what it was made of: of taking one out, that all servers are what they were, so that of two that are
//! taken out at once the second one sees that the first is gone.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use ob_core::{Instant, Revision, ServerId, Units};
use ob_format::volume::RECORDS_START;
use ob_format::volume::metadata::{Chunk, ChunkState, Server, ServerState as Membership, Text};

use super::admin::{AdminAnswer, AdminError, AdminRequest, Ticket};
use super::core::TierCore;
use super::plant::{Bug, is_planted};
use super::pool::{SERVERS_MAX, address_of};
use super::servers::ServerCore;
use super::status::{ServerTrouble, Trouble};
use super::store::{Purpose, Then};
use crate::metadata::{
    Change, Expect, Key, KeyValue, LIST_MAX, MetadataAnswer, MetadataOp, MetadataValue, Name,
};

/// How long one that is to be taken in may take to answer.
const GREETED_WITHIN: Duration = Duration::from_secs(10);
/// How often somebody may be first before a request is given up.
const ATTEMPTS_MAX: u32 = 32;

/// A chunk server of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerFacts {
    /// Which; nothing, if it is configured and nobody has found it yet.
    pub id: Option<ServerId>,
    /// Where it is.
    pub address: Text<128>,
    /// What fails together with it.
    pub domain: Text<32>,
    /// Whether it takes chunks.
    pub is: ServerIs,
    /// Whether the tier that was asked is connected to it.
    pub is_ready: bool,
    /// Whether it has failed of late, or has no room.
    pub has_failed: bool,
    /// Whether it has said that it has no room.
    pub is_full: bool,
    /// Why it cannot be used, if it has said so.
    pub trouble: Option<ServerTrouble>,
    /// Bytes of its device.
    pub capacity: u64,
    /// Bytes that it has said are used.
    pub used: u64,
    /// Bytes that are free, and promised to nobody.
    pub free: u64,
    /// Replicas that the store names there, of all tiers' segments.
    pub replicas: u64,
    /// Bytes of them, as far as they are sealed.
    pub stored: u64,
    /// Whether what it has waits for another server that has room.
    pub waits_for_room: bool,
}

/// Whether a server takes chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerIs {
    /// It does.
    In,
    /// What it has is copied away.
    Draining,
    /// Not any more, and what it had is gone.
    Out,
}

/// A request that is under way.
#[derive(Debug)]
pub(super) struct PoolJob {
    request: AdminRequest,
    attempts: u32,
    step: Step,
    /// Where who is to be taken in is.
    place: Option<usize>,
    /// What the store has of servers, as far as it is to stay so.
    servers: BTreeMap<ServerId, (Server, Revision)>,
    /// What chunks' records name, by server.
    named: BTreeMap<ServerId, Named>,
    /// What is only at the server that is to go.
    only: Named,
    /// What is committed.
    wanted: Option<(ServerId, Server)>,
}

/// Replicas, and their bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Named {
    chunks: u64,
    bytes: u64,
}

impl Named {
    fn add(&mut self, chunk: &Chunk) {
        self.chunks += 1;
        self.bytes += chunk.length.bytes();
    }
}

impl PoolJob {
    /// Whether it waits for whoever is at this place to say who that is.
    fn is_greeting(&self, place: usize) -> bool {
        self.place == Some(place) && matches!(self.step, Step::Greeting { .. })
    }
}

/// By their tickets.
pub(super) type PoolJobs = BTreeMap<Ticket, PoolJob>;

/// What of a request is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Somebody is to say who is there.
    Greeting {
        until: Instant,
    },
    Server(ServerId),
    Servers,
    Chunks,
    Committing,
}

/// Whether a request is one of these.
pub(super) const fn is_about_servers(request: &AdminRequest) -> bool {
    matches!(
        request,
        AdminRequest::ListServers
            | AdminRequest::AddServer { .. }
            | AdminRequest::DrainServer { .. }
            | AdminRequest::RemoveServer { .. }
    )
}

impl TierCore {
    pub(super) fn begin_pool_job(&mut self, ticket: Ticket, request: AdminRequest) {
        let (servers, named) = (BTreeMap::new(), BTreeMap::new());
        let (step, only, wanted) = (Step::Servers, Named::default(), None);
        let job = PoolJob { request, attempts: 0, step, place: None, servers, named, only, wanted };
        self.pool_jobs.insert(ticket, job);
        self.start_pool_job(ticket);
    }

    fn start_pool_job(&mut self, ticket: Ticket) {
        let Some(job) = self.pool_jobs.get_mut(&ticket) else { return };
        (job.named, job.only) = (BTreeMap::new(), Named::default());
        job.servers.clear();
        match job.request {
            AdminRequest::AddServer { address, .. } => self.look_who_is_at(ticket, address),
            AdminRequest::DrainServer { server } => self.read_server(ticket, server),
            _ => self.list_for_pool_job(ticket, Step::Servers, None),
        }
    }

    /// The port is closed: whoever has asked is told so by who is left, and nobody is taken in.
    pub(super) fn forget_pool_jobs(&mut self) {
        self.pool_jobs.clear();
        for place in 0..self.servers.len() {
            self.forget_candidate(place);
        }
    }

    fn forget_candidate(&mut self, place: usize) {
        let Some(server) = self.servers.get_mut(place).filter(|server| server.is_candidate) else { return };
        let address = Some(server.address);
        if self.pooled.living().any(|(_, of)| address_of(&of.server) == address) {
            // Somebody else has had it taken in meanwhile.
            server.is_candidate = false;
        } else {
            self.unplace(self.now, place);
        }
    }

    /// Whether an administrator asks who is at this place, whoever that may be.
    pub(super) fn is_place_asked_for(&self, place: usize) -> bool {
        self.pool_jobs.values().any(|job| job.place == Some(place))
    }

    /// Who is there cannot be used, and has said why.
    pub(super) fn candidate_refused(&mut self, place: usize, trouble: ServerTrouble) {
        let Some(address) = self.servers.get(place).map(|server| server.address) else { return };
        for ticket in self.who_asks_for(place) {
            self.end_pool_job(ticket, Err(AdminError::ServerRefused { address, trouble }));
        }
    }

    fn who_asks_for(&self, place: usize) -> Vec<Ticket> {
        let asking = self.pool_jobs.iter().filter(|(_, job)| job.is_greeting(place));
        asking.map(|(ticket, _)| *ticket).collect()
    }

    pub(super) fn pool_jobs_next_due(&self) -> Option<Instant> {
        let due = self.pool_jobs.values().filter_map(|job| match job.step {
            Step::Greeting { until } => Some(until),
            _ => None,
        });
        due.min()
    }

    /// Those that nobody answers are told so.
    pub(super) fn pool_jobs_due(&mut self, now: Instant) {
        let late = self.pool_jobs.iter().filter_map(|(ticket, job)| match (job.step, job.place) {
            (Step::Greeting { until }, Some(place)) if until <= now => Some((*ticket, place)),
            _ => None,
        });
        for (ticket, place) in late.collect::<Vec<_>>() {
            let Some(server) = self.servers.get(place) else { continue };
            let (address, trouble) = (server.address, server.trouble);
            let error = match trouble {
                Some(trouble) => AdminError::ServerRefused { address, trouble },
                None => AdminError::NoServer(address),
            };
            self.end_pool_job(ticket, Err(error));
        }
    }

    fn end_pool_job(&mut self, ticket: Ticket, answer: Result<AdminAnswer, AdminError>) {
        let Some(job) = self.pool_jobs.remove(&ticket) else { return };
        if let Some(place) = job.place.filter(|place| !self.is_place_asked_for(*place)) {
            self.forget_candidate(place);
        }
        self.tell(ticket, answer);
    }

    /// One that is to be taken in is asked who it is.
    fn look_who_is_at(&mut self, ticket: Ticket, address: SocketAddr) {
        if address.port() == 0 || address.ip().is_unspecified() || address.ip().is_multicast() {
            return self.end_pool_job(ticket, Err(AdminError::Address(address)));
        }
        let now = self.now;
        let is_at = |server: &ServerCore| !server.is_unplaced && server.address == address;
        let known = self.servers.iter().position(is_at);
        let is_room = self.pooled.living().count() < SERVERS_MAX;
        let Some(place) = known.or_else(|| is_room.then(|| self.free_place()).flatten()) else {
            return self.end_pool_job(ticket, Err(AdminError::TooManyServers));
        };
        let Some(server) = self.servers.get_mut(place) else { return };
        if known.is_none() {
            (server.address, server.is_candidate, server.is_unplaced) = (address, true, false);
            self.connect_to(now, place);
        }
        if let Some(job) = self.pool_jobs.get_mut(&ticket) {
            (job.step, job.place) = (Step::Greeting { until: now + GREETED_WITHIN }, Some(place));
        }
        if self.servers.get(place).is_some_and(ServerCore::is_ready) {
            self.candidate_greeted(place);
        }
    }

    /// A server has said who it is.
    pub(super) fn candidate_greeted(&mut self, place: usize) {
        let Some(id) = self.servers.get(place).and_then(|server| server.id) else { return };
        for ticket in self.who_asks_for(place) {
            self.read_server(ticket, id);
        }
    }

    fn read_server(&mut self, ticket: Ticket, id: ServerId) {
        if let Some(job) = self.pool_jobs.get_mut(&ticket) {
            job.step = Step::Server(id);
            let key = self.config.keys.key(Name::Server(id));
            self.submit(Purpose::PoolAdmin(ticket), MetadataOp::Get { key });
        }
    }

    fn list_for_pool_job(&mut self, ticket: Ticket, step: Step, after: Option<Key>) {
        if let Some(job) = self.pool_jobs.get_mut(&ticket) {
            job.step = step;
            let keys = &self.config.keys;
            let prefix = if step == Step::Servers { keys.servers() } else { keys.all_chunks() };
            self.submit(Purpose::PoolAdmin(ticket), MetadataOp::List { prefix, after, most: LIST_MAX });
        }
    }

    /// The store has told what a request needs.
    pub(super) fn pool_job_read(&mut self, now: Instant, ticket: Ticket, answer: MetadataAnswer) {
        let Some(job) = self.pool_jobs.get(&ticket) else { return };
        let next = match (job.step, answer) {
            (Step::Server(id), MetadataAnswer::Value(found)) => {
                let found = found.map(|(value, revision)| {
                    (MetadataValue::decode(&Name::Server(id), value.bytes()), revision)
                });
                match found {
                    None => self.server_read(now, ticket, id, None),
                    Some((Ok(MetadataValue::Server(server)), revision)) => {
                        self.server_read(now, ticket, id, Some((server, revision)))
                    }
                    Some(_) => Err(AdminError::Trouble(Trouble::Value)),
                }
            }
            (Step::Servers, MetadataAnswer::Values { entries, has_more }) => {
                self.servers_read(now, ticket, &entries, has_more)
            }
            (Step::Chunks, MetadataAnswer::Values { entries, has_more }) => {
                self.chunks_read(ticket, &entries, has_more)
            }
            _ => Err(AdminError::Trouble(Trouble::Store)),
        };
        if let Err(error) = next {
            self.end_pool_job(ticket, Err(error));
        }
    }

    /// What the store has of the server that is to be taken in, or emptied.
    fn server_read(
        &mut self,
        now: Instant,
        ticket: Ticket,
        id: ServerId,
        found: Option<(Server, Revision)>,
    ) -> Result<(), AdminError> {
        let Some(job) = self.pool_jobs.get(&ticket) else { return Ok(()) };
        let wanted = match (&job.request, found) {
            (AdminRequest::AddServer { address, domain }, found) => {
                let of = self.servers.iter().find(|server| server.id == Some(id) && server.is_ready());
                let capacity = of.map_or(0, |server| server.capacity);
                let address = Text::new(&address.to_string()).ok_or(AdminError::Address(*address))?;
                let before = found.map(|(server, _)| server.domain).unwrap_or_default();
                let capacity = found.map_or(capacity, |(server, _)| server.capacity);
                Server { state: Membership::In, capacity, domain: domain.unwrap_or(before), address }
            }
            (_, None) => return Err(AdminError::UnknownServer(id)),
            (_, Some((server, _))) if server.state == Membership::Out => {
                return Err(AdminError::ServerIsOut(id));
            }
            (_, Some((server, _))) => Server { state: Membership::Draining, ..server },
        };
        match found {
            Some((server, revision)) if server == wanted => {
                self.pool_job_done(now, ticket, id, wanted, revision);
            }
            _ => {
                let expect = found.map_or(Expect::Absent, |(_, revision)| Expect::At(revision));
                self.commit_pool_job(ticket, (id, wanted), expect, Vec::new())?;
            }
        }
        Ok(())
    }

    fn commit_pool_job(
        &mut self,
        ticket: Ticket,
        (id, server): (ServerId, Server),
        expect: Expect,
        others: Vec<(Key, Expect)>,
    ) -> Result<(), AdminError> {
        let key = self.config.keys.key(Name::Server(id));
        let value = MetadataValue::Server(server).encode();
        let value = value.map_err(|_| AdminError::Shape("its record cannot be written"))?;
        if let Some(job) = self.pool_jobs.get_mut(&ticket) {
            (job.step, job.wanted) = (Step::Committing, Some((id, server)));
            let mut compare = vec![(key.clone(), expect)];
            compare.extend(others);
            let change = vec![Change::Put { key, value, session: None }];
            self.commit_changes(compare, change, Then::Pooled(ticket));
        }
        Ok(())
    }

    /// Which servers there are: of what is to be shown, and of what is to be taken out.
    fn servers_read(
        &mut self,
        now: Instant,
        ticket: Ticket,
        entries: &[KeyValue],
        has_more: bool,
    ) -> Result<(), AdminError> {
        for entry in entries {
            let name = self.config.keys.parse(&entry.key);
            let value = name.and_then(|name| MetadataValue::decode(&name, entry.value.bytes()).ok());
            let (Some(Name::Server(id)), Some(MetadataValue::Server(server))) = (name, value) else {
                return Err(AdminError::Trouble(Trouble::Value));
            };
            if let Some(job) = self.pool_jobs.get_mut(&ticket) {
                job.servers.insert(id, (server, entry.revision));
            }
        }
        if let Some(last) = entries.last().filter(|_| has_more) {
            self.list_for_pool_job(ticket, Step::Servers, Some(last.key.clone()));
            return Ok(());
        }
        let Some(job) = self.pool_jobs.get(&ticket) else { return Ok(()) };
        if let AdminRequest::RemoveServer { server, .. } = job.request {
            let (found, revision) = *job.servers.get(&server).ok_or(AdminError::UnknownServer(server))?;
            if found.state == Membership::Out {
                self.pool_job_done(now, ticket, server, found, revision);
                return Ok(());
            }
        }
        self.list_for_pool_job(ticket, Step::Chunks, None);
        Ok(())
    }

    /// Whom chunks' records name.
    fn chunks_read(
        &mut self,
        ticket: Ticket,
        entries: &[KeyValue],
        has_more: bool,
    ) -> Result<(), AdminError> {
        for entry in entries {
            let name = self.config.keys.parse(&entry.key);
            let value = name.and_then(|name| MetadataValue::decode(&name, entry.value.bytes()).ok());
            let Some(MetadataValue::Chunk(chunk)) = value else {
                return Err(AdminError::Trouble(Trouble::Value));
            };
            self.count_named(ticket, &chunk);
        }
        if let Some(last) = entries.last().filter(|_| has_more) {
            self.list_for_pool_job(ticket, Step::Chunks, Some(last.key.clone()));
            return Ok(());
        }
        let Some(job) = self.pool_jobs.get(&ticket) else { return Ok(()) };
        let AdminRequest::RemoveServer { server, accept_loss } = job.request else {
            let named = job.named.clone();
            let servers = self.servers_facts(&named);
            self.end_pool_job(ticket, Ok(AdminAnswer::Servers(servers)));
            return Ok(());
        };
        let named = job.named.get(&server).copied().unwrap_or_default();
        let only = job.only;
        if named.chunks > 0 && self.is_server_there(server) {
            return Err(AdminError::ServerInUse { server, replicas: named.chunks });
        }
        if only.chunks > 0 && !accept_loss && !is_planted(Bug::OnlyHolderRemoved) {
            return Err(AdminError::WouldLose { server, chunks: only.chunks, bytes: only.bytes });
        }
        let (found, revision) = *job.servers.get(&server).ok_or(AdminError::UnknownServer(server))?;
        // Those that were counted on are to be what they were.
        let living = job.servers.iter().filter(|(_, (other, _))| other.state != Membership::Out);
        let others = living.filter(|(id, _)| **id != server && !is_planted(Bug::RemovedSideBySide));
        let others = others.map(|(id, (_, at))| (self.config.keys.key(Name::Server(*id)), Expect::At(*at)));
        let others: Vec<_> = others.collect();
        if others.len() >= SERVERS_MAX {
            return Err(AdminError::TooManyServers);
        }
        let wanted = (server, Server { state: Membership::Out, ..found });
        self.commit_pool_job(ticket, wanted, Expect::At(revision), others)
    }

    fn count_named(&mut self, ticket: Ticket, chunk: &Chunk) {
        let is_empty = chunk.state == ChunkState::Sealed && chunk.length <= RECORDS_START;
        // What is dead is nobody's, and what is empty is as good.
        if chunk.state == ChunkState::Dead || is_empty {
            return;
        }
        let members = chunk.members.servers();
        let there: Vec<ServerId> = members.iter().copied().filter(|id| self.is_server_there(*id)).collect();
        let Some(job) = self.pool_jobs.get_mut(&ticket) else { return };
        // Only those count whose records the commit compares: what this tier has heard of others may be a second old.
        let is_counted =
            |id: &ServerId| job.servers.get(id).is_some_and(|(of, _)| of.state != Membership::Out);
        let there: Vec<ServerId> = there.into_iter().filter(is_counted).collect();
        for member in members {
            job.named.entry(*member).or_default().add(chunk);
        }
        if let AdminRequest::RemoveServer { server, .. } = job.request
            && members.contains(&server)
            && !there.iter().any(|other| *other != server)
        {
            job.only.add(chunk);
        }
    }

    /// Whether a server is connected here, and not out.
    fn is_server_there(&self, id: ServerId) -> bool {
        let is_it = |server: &ServerCore| server.id == Some(id) && server.is_ready();
        self.servers.iter().any(is_it) && self.pooled.state(id) != Some(Membership::Out)
    }

    /// The commit of a request is over.
    pub(super) fn pool_job_committed(&mut self, now: Instant, ticket: Ticket, revision: Option<Revision>) {
        let Some(job) = self.pool_jobs.get_mut(&ticket) else { return };
        match (revision, job.wanted) {
            (Some(revision), Some((id, server))) => self.pool_job_done(now, ticket, id, server, revision),
            _ if job.attempts < ATTEMPTS_MAX => {
                job.attempts += 1;
                self.start_pool_job(ticket);
            }
            _ => self.end_pool_job(ticket, Err(AdminError::Contended)),
        }
    }

    /// The store has it so.
    fn pool_job_done(&mut self, now: Instant, ticket: Ticket, id: ServerId, server: Server, at: Revision) {
        for of in self.servers.iter_mut().filter(|of| of.id == Some(id)) {
            of.is_candidate = false;
        }
        self.server_known(now, id, server, at);
        let facts = self.server_facts(id, &server, Named::default());
        self.end_pool_job(ticket, Ok(AdminAnswer::Servers(vec![facts])));
    }

    /// All servers: those that the store has, and those that are configured and were not found.
    fn servers_facts(&self, named: &BTreeMap<ServerId, Named>) -> Vec<ServerFacts> {
        let of = |id: &ServerId| named.get(id).copied().unwrap_or_default();
        let known = self.pooled.all.iter().map(|(id, known)| self.server_facts(*id, &known.server, of(id)));
        let mut all: Vec<ServerFacts> = known.collect();
        let is_known = |server: &&ServerCore| {
            let is_same = |of: &ServerFacts| {
                of.id == server.id
                    || (server.id.is_none() && of.address.as_str() == server.address.to_string())
            };
            server.is_unplaced || server.is_candidate || all.iter().any(is_same)
        };
        let unknown: Vec<&ServerCore> = self.servers.iter().filter(|server| !is_known(server)).collect();
        all.extend(unknown.into_iter().filter_map(|server| {
            let address = Text::new(&server.address.to_string())?;
            let domain = server.domain.unwrap_or_default();
            let of = server.id.as_ref().map(of).unwrap_or_default();
            Some(self.facts_at(Some(server), (server.id, address, domain, ServerIs::In), of))
        }));
        all
    }

    fn server_facts(&self, id: ServerId, server: &Server, named: Named) -> ServerFacts {
        let is_it = |of: &&ServerCore| of.id == Some(id) && !of.is_unplaced;
        let of = self.servers.iter().find(is_it);
        let domain = if server.domain.is_empty() { of.and_then(|of| of.domain) } else { Some(server.domain) };
        let is = match server.state {
            Membership::In => ServerIs::In,
            Membership::Draining => ServerIs::Draining,
            Membership::Out => ServerIs::Out,
        };
        let facts = self.facts_at(of, (Some(id), server.address, domain.unwrap_or_default(), is), named);
        let capacity = if facts.capacity == 0 { server.capacity } else { facts.capacity };
        ServerFacts { capacity, ..facts }
    }

    fn facts_at(
        &self,
        of: Option<&ServerCore>,
        (id, address, domain, is): (Option<ServerId>, Text<128>, Text<32>, ServerIs),
        named: Named,
    ) -> ServerFacts {
        let now = self.now;
        ServerFacts {
            id,
            address,
            domain,
            is,
            is_ready: of.is_some_and(ServerCore::is_ready),
            has_failed: of.is_some_and(|of| of.has_failed(now)),
            is_full: of.is_some_and(|of| of.is_full(now)),
            trouble: of.and_then(|of| of.trouble),
            capacity: of.map_or(0, |of| of.capacity),
            used: of.map_or(0, |of| of.used),
            free: of.map_or(0, |of| of.free),
            replicas: named.chunks,
            stored: named.bytes,
            waits_for_room: is == ServerIs::Draining && named.chunks > 0 && self.waits_for_room(now, id),
        }
    }

    /// Whether what a server has can be copied to nobody.
    fn waits_for_room(&self, now: Instant, id: Option<ServerId>) -> bool {
        let replicas = self.volumes.values().map(|served| usize::from(served.volume.replicas)).max();
        let can = |place: &usize| self.may_keep(*place) && self.has_room(now, *place, Units(0), false);
        if (0..self.servers.len()).filter(can).count() < replicas.unwrap_or(0) {
            return true;
        }
        let place = self.servers.iter().position(|server| server.id == id);
        let mut its = self
            .sealed_chunks()
            .filter(|(_, chunk)| place.is_some_and(|place| chunk.members.contains(&place)));
        its.any(|(_, chunk)| self.place_for(now, chunk).is_none())
    }
}
