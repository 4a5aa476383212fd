//! The card's process: its files on a disk, the director, and the engine.

use std::rc::Rc;
use std::sync::Arc;

use ob_core::{Clock, Device, Instant};
use ob_director::{Director, DirectorConfig, DirectorDriver, Now, Signature};
use ob_files_card::{FilesOptions, FilesService};
use ob_kv::card::KvApplication;
use ob_offload::{BufferClass, Engine, EngineConfig, ProgramSlot, Programmed, Watcher};
use ob_ring::CardService;
use ob_sim::{Failure, Network, Rng, SimClock, SimDisk, SimNet};
use ob_table::{Table, TableConfig};

use super::fickle::FickleFiles;
use super::port::{SharedWire, SimPort, Wire};
use super::{CARD, PORT, unix_ms};
use crate::files::SimDrive;

/// One life of the card.
pub(super) struct Card {
    pub(super) service: FilesService<SimDisk>,
    pub(super) driver: DirectorDriver<SimNet, SimPort, FickleFiles, Programmed<KvApplication>>,
    pub(super) watcher: Watcher<Programmed<KvApplication>>,
    pub(super) wire: SharedWire,
    pub(super) clock: SimClock,
    pub(super) programs: Arc<ProgramSlot>,
}

impl Card {
    /// Mounts the disk and listens.
    pub(super) fn new(
        mut disk: SimDisk,
        network: &Network,
        clock: SimClock,
        mut rng: Rng,
        margin_ms: u64,
        programs: Arc<ProgramSlot>,
    ) -> Result<Self, Failure> {
        let failed =
            |error: &dyn std::fmt::Display| Failure::new(format!("the card does not begin: {error}"));
        let options = FilesOptions { clean_len: 1 << 20, ..FilesOptions::default() };
        let mounted = ob_files_card::mount(&mut SimDrive::new(&mut disk, clock.clone(), None), &options);
        let files = mounted.map_err(|error| failed(&error))?;
        let service = FilesService::new(files, disk);
        let native = KvApplication { margin_ms, ..KvApplication::default() };
        let application = Rc::new(Programmed::new(native, Arc::clone(&programs), Rc::new(clock.clone())));
        // Few places, so that entries and tombstones go all the time; sometimes one bucket has all keys.
        let buckets = *rng.choose(&[2, 4, 64]).unwrap_or(&4);
        let seed = Some(rng.word());
        let table =
            Table::new(TableConfig { buckets, overflow: 0, seed, ..TableConfig::with_memory_max(1 << 16) });
        let (_, writer) = table.map_err(|error| failed(&error))?;
        let config = EngineConfig {
            contexts: 4,
            buffers: vec![BufferClass { len: 8192, count: 3 }, BufferClass { len: 32 << 10, count: 1 }],
            copy_len_max: *rng.choose(&[0, 256]).unwrap_or(&0),
            ..EngineConfig::default()
        };
        let engine =
            Engine::new(Rc::clone(&application), writer, config, service.files().card_info().block_len);
        let watcher = engine.watcher();
        let director =
            DirectorConfig { pending_max: 8, output_len_max: 16 << 10, ..DirectorConfig::default() };
        let director = Director::new(application, engine, director);
        let wire = Wire::new(clock.clone(), rng.fork("wire"));
        let port = SimPort(Rc::clone(&wire));
        let files = FickleFiles::new(service.local(), rng.fork("files"));
        let mut driver = DirectorDriver::new(network.attach(CARD), port, files, director);
        let signature = Signature::new([Network::address(CARD, PORT)]);
        driver.listen(&signature).map_err(|error| failed(&error))?;
        Ok(Self { service, driver, watcher, wire, clock, programs })
    }

    /// One turn of its reactor; whether there is more to do at once.
    pub(super) fn turn(&mut self) -> bool {
        let now = self.clock.now();
        let moved = self.service.poll(now);
        let turn = self.driver.turn(Now { instant: now, unix_ms: unix_ms(now) });
        moved || turn.has_more
    }

    /// What is due when, for people.
    pub(super) fn describe(&mut self) -> String {
        let disk = self.service.device().next_due();
        let (files, director) = (self.service.next_due(), self.driver.next_due());
        format!(
            "files due {files:?}, director due {director:?}, disk due {disk:?}, {}",
            self.wire.borrow().describe()
        )
    }

    pub(super) fn next_due(&mut self) -> Option<Instant> {
        let wire = self.wire.borrow().next_due();
        let disk = self.service.device().next_due();
        [self.service.next_due(), self.driver.next_due(), disk, wire].into_iter().flatten().min()
    }

    /// The process ends; what it leaves is the disk.
    pub(super) fn into_disk(self) -> SimDisk {
        drop(self.driver);
        self.service.into_device()
    }
}
