//! The card: its files, and for clients that it answers itself, a director before them.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::SystemTime;

use ob_core::Clock;
use ob_director::ring::{RingPort, RingService};
use ob_director::{Director, DirectorConfig, DirectorDriver, Now, Signature};
use ob_files_card::{FilesService, LocalFiles};
use ob_io::{Config, FileDevice, FileDeviceOptions, Handle, MonotonicClock, Reactor, Space, TcpNet};
use ob_link::{CardLoop, CardService};
use ob_offload::remote::RemoteFiles;
use ob_offload::{Engine, EngineConfig};
use ob_table::{Table, TableConfig};
use ob_wire_link::files::FILES_SERVICE;

use super::SPIN;
use super::host::READY;
use super::plain::say_listening;
use crate::bench::BenchFailure;
use crate::bench::files::{link, mounted};
use crate::bench::process::end_with_parent;
use crate::router::{Router, Services};

/// The number of the service between the halves; a benchmark's card has no other that it could be taken for.
pub(super) const REMOTE_SERVICE: u32 = 100;
/// A port that is free.
pub(super) const ANY_PORT: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
/// Connections at once.
const CONNECTIONS_MAX: u32 = 64;
/// There is nothing to look up.
const TABLE_BYTES: u64 = 4096;

/// The command line of the card, which the benchmark starts by itself.
#[derive(Clone, Debug, clap::Args)]
pub struct RemoteCardOptions {
    /// Where the host attaches
    #[arg(long)]
    pub socket: PathBuf,
    /// The file that is the device
    #[arg(long)]
    pub device: PathBuf,
    /// Bytes of the device
    #[arg(long)]
    pub bytes: u64,
    /// Whether clients are served
    #[arg(long)]
    pub serve: bool,
    /// Whether what was read is copied before it is sent
    #[arg(long)]
    pub copy: bool,
}

struct CardServices {
    files: FilesService<FileDevice>,
    stream: RingService,
}

impl Services for CardServices {
    const DIRECTORY: &'static [(u32, &'static str)] = &[(FILES_SERVICE, "files"), (REMOTE_SERVICE, "remote")];

    fn service(&self, index: usize) -> &dyn CardService {
        if index == 0 { &self.files } else { &self.stream }
    }

    fn service_mut(&mut self, index: usize) -> &mut dyn CardService {
        if index == 0 { &mut self.files } else { &mut self.stream }
    }
}

type Driver = DirectorDriver<TcpNet, RingPort, LocalFiles, RemoteFiles>;

/// Runs the card until it is ended.
pub fn run_remote_card(options: &RemoteCardOptions) -> Result<(), BenchFailure> {
    end_with_parent()?;
    let mut reactor = Reactor::new(&Config::default())?;
    let handle = reactor.handle();
    let device = FileDeviceOptions::default();
    let mut device =
        FileDevice::create(&handle, &options.device, options.bytes, Space::Preallocated, &device)?;
    let files = mounted(&mut reactor, &mut device, false)?;
    let files = FilesService::new(files, device);
    let (port, stream) = ob_director::ring::pair(REMOTE_SERVICE);
    let local = files.local();
    let mut driver = options.serve.then(|| director(&handle, port, local, options.copy)).transpose()?;
    let link = link(&reactor, &options.socket)?;
    println!("{READY}");
    let mut card = CardLoop::new(reactor, link, Router::new(CardServices { files, stream }), SPIN);
    let mut events = Vec::new();
    loop {
        card.turn(driver.as_ref().and_then(Driver::next_due), &mut events);
        let Some(driver) = &mut driver else {
            events.clear();
            continue;
        };
        for event in events.drain(..) {
            driver.net_mut().handle(&event);
        }
        let instant = MonotonicClock.now();
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let turn = driver.turn(Now { instant, unix_ms: unix.as_millis() as u64 });
        if turn.events > 0 || turn.has_more {
            card.worked(instant);
        }
    }
}

fn director(handle: &Handle, port: RingPort, files: LocalFiles, copy: bool) -> Result<Driver, BenchFailure> {
    let application = Rc::new(RemoteFiles::default());
    let (_, writer) = Table::new(TableConfig::with_memory_max(TABLE_BYTES))?;
    let block_len = files.card_info().block_len;
    let mut config = EngineConfig::default();
    if copy {
        config.copy_len_max = usize::MAX;
    }
    let engine = Engine::new(Rc::clone(&application), writer, config, block_len);
    for arena in engine.arenas() {
        // Without it the kernel maps the memory for each read: slower, and as right.
        let _ = handle.register_arena(arena);
    }
    let connections_max = CONNECTIONS_MAX as usize;
    let director =
        Director::new(application, engine, DirectorConfig { connections_max, ..DirectorConfig::default() });
    let mut driver = DirectorDriver::new(TcpNet::new(handle, CONNECTIONS_MAX), port, files, director);
    driver.listen(&Signature::new([ANY_PORT]))?.into_iter().for_each(say_listening);
    Ok(driver)
}
