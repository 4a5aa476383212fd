//! A chunk server's process: its files on a disk, its sockets, and `ChunkServer` between them.

use std::cell::RefCell;
use std::rc::Rc;

use ob_core::{Device, Instant, ServerId};
use ob_files_card::{FilesOptions, FilesService, FormatOptions};
use ob_format::volume::metadata::Text;
use ob_ring::CardService;
use ob_sim::{Death, Failure, Network, NodeId, Rng, SimClock, SimDisk, Trace};
use ob_volume::chunk::{ChunkServerConfig, ChunkServerDriver, ServerState};

use super::CHUNK_PORT;
use super::plan::Plan;
use super::points::{Deed, Points};
use super::sockets::{Promises, Sockets, Spoken};
use crate::files::SimDrive;

/// A chunk server, over all of its lives.
pub(super) struct Server {
    node: NodeId,
    place: usize,
    life: Option<Life>,
    /// What it has left behind, while it is dead.
    disk: Option<SimDisk>,
    back_at: Instant,
    lives: u64,
    /// Who it is, since it first served.
    id: Option<ServerId>,
    promises: Rc<RefCell<Promises>>,
    told: Spoken,
}

struct Life {
    files: FilesService<SimDisk>,
    driver: ChunkServerDriver<Sockets>,
    has_more: bool,
}

impl Server {
    /// A new one, on an empty disk. It does not live yet.
    pub(super) fn new(
        place: usize,
        plan: &Plan,
        rng: &Rng,
        trace: &Trace,
        told: Spoken,
    ) -> Result<Self, Failure> {
        let disk = empty_disk(place, plan, &rng.fork_numbered("disk", place as u64), trace)?;
        Ok(Self {
            node: super::server_node(place),
            place,
            life: None,
            disk: Some(disk),
            back_at: Instant::default(),
            lives: 0,
            id: None,
            promises: Rc::default(),
            told,
        })
    }

    /// When it begins anew, while it is dead.
    pub(super) fn back_at(&self) -> Option<Instant> {
        self.life.is_none().then_some(self.back_at)
    }

    pub(super) fn set_back_at(&mut self, at: Instant) {
        self.back_at = at;
    }

    /// Begins its next life.
    pub(super) fn begin(&mut self, plan: &Plan, network: &Network, clock: &SimClock) -> Result<(), Failure> {
        let place = self.place;
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(format!("chunk server {place} does not begin: {error}"))
        };
        let Some(mut disk) = self.disk.take() else { return Ok(()) };
        let options = FilesOptions { clean_len: 1 << 20, ..FilesOptions::default() };
        let mounted = ob_files_card::mount(&mut SimDrive::new(&mut disk, clock.clone(), None), &options);
        let files = FilesService::new(mounted.map_err(|error| failed(&error))?, disk);
        self.lives += 1;
        let fresh = ServerId(1000 * self.lives + place as u64 + 1);
        let domain =
            Text::new(&format!("rack {}", place % plan.domains)).ok_or_else(|| failed(&"no text"))?;
        let config = ChunkServerConfig {
            short_buffers: plan.server_buffers,
            long_buffers: 2,
            batches: 4,
            jobs: 2,
            connections_max: 16,
            reserve_len: 0,
            ..ChunkServerConfig::new(fresh, domain)
        };
        let sockets =
            Sockets::new(network.attach(self.node), Rc::clone(&self.promises), Rc::clone(&self.told));
        let mut driver = ChunkServerDriver::new(sockets, files.local(), config);
        driver.listen(Network::address(self.node, CHUNK_PORT)).map_err(|error| failed(&error))?;
        self.life = Some(Life { files, driver, has_more: true });
        Ok(())
    }

    /// It dies, as its machine or its process; `false` if it is dead already.
    pub(super) fn die(&mut self, how: Death, network: &Network, back_at: Instant) -> bool {
        let Some(life) = self.life.take() else { return false };
        network.kill(self.node, how);
        drop(life.driver);
        let mut disk = life.files.into_device();
        match how {
            Death::Process => disk.lose_process(),
            Death::Power => disk.lose_power(),
        }
        self.disk = Some(disk);
        self.back_at = back_at;
        true
    }

    /// Its machine is replaced, disk and all.
    pub(super) fn lose_disk(
        &mut self,
        plan: &Plan,
        rng: &Rng,
        trace: &Trace,
        network: &Network,
        back_at: Instant,
    ) -> Result<(), Failure> {
        let is_dead = !self.die(Death::Power, network, back_at);
        if is_dead {
            self.back_at = self.back_at.max(back_at);
        }
        (self.disk, self.id) = (Some(empty_disk(self.place, plan, rng, trace)?), None);
        // It is another one, which has promised nothing.
        self.promises = Rc::default();
        Ok(())
    }

    /// Chunks that it has, while it lives and serves.
    pub(super) fn chunks(&self) -> Option<u64> {
        Some(self.life.as_ref()?.driver.server().facts().chunks)
    }

    /// Its disk, alive or dead.
    pub(super) fn disk(&mut self) -> Option<&mut SimDisk> {
        match &mut self.life {
            Some(life) => Some(life.files.device()),
            None => self.disk.as_mut(),
        }
    }

    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_waiting = self.life.as_ref().is_some_and(|life| life.has_more);
        is_waiting || self.next_due().is_some_and(|due| due <= now)
    }

    /// One turn; what has happened to it where it came by.
    pub(super) fn turn(&mut self, now: Instant, points: &mut Points) -> Result<Option<Deed>, Failure> {
        let place = self.place;
        let Some(life) = &mut self.life else { return Ok(None) };
        let moved = life.files.poll(now);
        let turn = life.driver.turn(now);
        let after = life.files.poll(now);
        life.has_more = turn.has_more || moved || after;
        if self.id.is_none() {
            self.id = life.driver.server().facts().server;
        }
        if let ServerState::Failed(error) = life.driver.server().state() {
            return Err(Failure::new(format!("chunk server {place} cannot serve: {error}")));
        }
        let mut promises = self.promises.borrow_mut();
        if let Some(broken) = &promises.broken {
            return Err(Failure::new(format!("chunk server {place}: {broken}")));
        }
        let struck = promises.came.drain(..).filter_map(|point| points.come(point)).last();
        Ok(struck.map(|armed| armed.deed))
    }

    pub(super) fn next_due(&mut self) -> Option<Instant> {
        let life = self.life.as_mut()?;
        let disk = life.files.device().next_due();
        [disk, life.files.next_due(), life.driver.next_due()].into_iter().flatten().min()
    }

    pub(super) fn has_more(&self) -> bool {
        self.life.as_ref().is_some_and(|life| life.has_more)
    }

    /// Who it is, while it lives.
    pub(super) fn id(&self) -> Option<ServerId> {
        self.life.as_ref()?.driver.server().facts().server
    }

    /// Who it is, alive or dead, once it has served.
    pub(super) fn known_id(&self) -> Option<ServerId> {
        self.id
    }

    /// It ends for good. What it leaves behind.
    pub(super) fn end(&mut self, network: &Network) -> Option<SimDisk> {
        self.die(Death::Process, network, Instant::default());
        self.disk.take()
    }

    pub(super) fn describe(&self) -> String {
        match &self.life {
            None => format!("server {} is dead until {:?}", self.place, self.back_at),
            Some(life) => format!("server {}: {:?}", self.place, life.driver.server().facts()),
        }
    }
}

/// A disk that was formatted, and has nothing.
fn empty_disk(place: usize, plan: &Plan, rng: &Rng, trace: &Trace) -> Result<SimDisk, Failure> {
    let mut disk = SimDisk::new(plan.disks[place].clone(), rng.fork("disk"), trace.clone());
    let format = FormatOptions {
        segment_len: Some(plan.files_segment_len),
        section_len: Some(32 << 10),
        log_len: Some(16 * (32 << 10)),
    };
    let mut drive = SimDrive::new(&mut disk, trace.clock().clone(), None);
    ob_files_card::format(&mut drive, &format, [1 + place as u8; 16])
        .map_err(|error| Failure::new(format!("a disk is not formatted: {error}")))?;
    Ok(disk)
}
