//! The card of the benchmark: a process of its own with one device and the file service on it.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ob_core::{Device, Incarnation};
use ob_files_card::{CardFiles, Drive, FilesOptions, FilesService, FormatOptions, format, mount};
use ob_io::{Config, FileDevice, FileDeviceOptions, MemoryDevice, Reactor, SPIN_DEFAULT, Space, Wait};
use ob_link::{CardLink, CardLinkConfig, CardLoop, Listen};

use super::BenchFailure;

/// Region memory for the rings of the benchmark's deepest case.
const MEMORY_MAX: u64 = 1 << 30;
/// A memory device's block, as small as a disk's.
const MEMORY_BLOCK: u32 = 512;

/// The command line of the card, which the benchmark starts by itself.
#[derive(Clone, Debug, clap::Args)]
pub struct FilesCardOptions {
    /// Where hosts attach
    #[arg(long)]
    pub socket: PathBuf,
    /// The file that is the device; without it, the device is memory
    #[arg(long)]
    pub device: Option<PathBuf>,
    /// Bytes of the device
    #[arg(long)]
    pub bytes: u64,
    /// Whether to copy what could go without
    #[arg(long)]
    pub copy_everything: bool,
}

/// Runs the card: formats the device, says `ready`, serves until its input ends.
pub fn run_files_card(options: &FilesCardOptions) -> Result<(), BenchFailure> {
    let reactor = Reactor::new(&Config::default())?;
    match &options.device {
        None => {
            let capacity = usize::try_from(options.bytes)?;
            serve(options, reactor, MemoryDevice::new(capacity, MEMORY_BLOCK))
        }
        Some(path) => {
            let handle = reactor.handle();
            let device = FileDeviceOptions::default();
            let device = FileDevice::create(&handle, path, options.bytes, Space::Preallocated, &device)?;
            serve(options, reactor, device)
        }
    }
}

/// Waits for a device by turning its reactor.
struct Turning<'a, D> {
    reactor: &'a mut Reactor,
    device: &'a mut D,
}

impl<D: Device> Drive for Turning<'_, D> {
    fn device(&mut self) -> &mut dyn Device {
        self.device
    }

    fn wait(&mut self) {
        // A device in memory wakes nobody: it is due at once.
        let wait = if self.device.next_due().is_some() { Wait::Poll } else { Wait::Until(None) };
        self.reactor.turn(wait, &mut Vec::new());
    }
}

/// Formats a device and mounts the files on it.
pub(in crate::bench) fn mounted<D: Device>(
    reactor: &mut Reactor,
    device: &mut D,
    copy_everything: bool,
) -> Result<CardFiles, BenchFailure> {
    let mut drive = Turning { reactor, device };
    format(&mut drive, &FormatOptions::default(), [1; 16])?;
    let options = FilesOptions { copy_everything, ..FilesOptions::default() };
    Ok(mount(&mut drive, &options)?)
}

/// A link for one host.
pub(in crate::bench) fn link(reactor: &Reactor, socket: &Path) -> Result<CardLink, BenchFailure> {
    let config = CardLinkConfig {
        incarnation: Incarnation(1),
        listen: vec![Listen::Unix(socket.to_owned())],
        costs: None,
        pollers: 1,
        dead_after: Duration::from_secs(10),
        memory_max: MEMORY_MAX,
        host_memory_max: MEMORY_MAX,
        hosts_max: 1,
        allow_users: Vec::new(),
        allow_addresses: Vec::new(),
    };
    Ok(CardLink::new(&reactor.handle(), config)?)
}

fn serve<D: Device>(
    options: &FilesCardOptions,
    mut reactor: Reactor,
    mut device: D,
) -> Result<(), BenchFailure> {
    let files = mounted(&mut reactor, &mut device, options.copy_everything)?;
    let link = link(&reactor, &options.socket)?;
    let waker = reactor.handle().waker();
    let mut card = CardLoop::new(reactor, link, FilesService::new(files, device), SPIN_DEFAULT);
    let over = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&over);
    std::thread::spawn(move || {
        // Nothing is ever said there; it ends when the benchmark does.
        let _ = std::io::stdin().lock().read_to_end(&mut Vec::new());
        flag.store(true, Ordering::Release);
        waker.wake();
    });
    println!("ready");
    std::io::stdout().flush()?;
    let mut others = Vec::new();
    while !over.load(Ordering::Acquire) {
        card.turn(None, &mut others);
        others.clear();
    }
    card.link.shut_down(&mut card.service);
    Ok(())
}

/// The card's process. Ended when dropped; it ends by itself when the benchmark does.
pub(super) struct CardProcess {
    child: Child,
    socket: PathBuf,
}

impl CardProcess {
    /// Starts a card with a device of so many bytes, and waits until it can be reached.
    pub(super) fn start(
        socket: &Path,
        device: Option<&Path>,
        bytes: u64,
        copy_everything: bool,
    ) -> Result<Self, BenchFailure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("bench-files-card").arg("--socket").arg(socket).args(["--bytes", &bytes.to_string()]);
        if let Some(device) = device {
            command.arg("--device").arg(device);
        }
        if copy_everything {
            command.arg("--copy-everything");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take();
        let card = Self { child, socket: socket.to_owned() };
        let mut line = String::new();
        BufReader::new(output.ok_or("the card has no output")?).read_line(&mut line)?;
        if line.trim() != "ready" {
            return Err("the benchmark's card did not start".into());
        }
        // The card has it open, so that nothing is left of it, however the benchmark ends.
        device.map(std::fs::remove_file).transpose()?;
        Ok(card)
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for CardProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.socket);
    }
}
