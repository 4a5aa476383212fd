//! The targets: a card as users run it, and SPDK's where somebody has built it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::bench::BenchFailure;
use crate::bench::process::{ServerProcess, free_address};

/// The subsystem, whoever serves it.
pub(in crate::bench) const SUBSYSTEM: &str = "nqn.2026-11.io.outboard:bench";
/// SPDK's directory, with its programs in `build/bin`.
const SPDK_VARIABLE: &str = "SPDK_DIR";
/// Bytes of a block of SPDK's memory device, as ours has.
const BLOCK: u64 = 512;

/// Who serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Who {
    Card,
    Spdk,
}

impl Who {
    pub(in crate::bench) fn name(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::Spdk => "spdk",
        }
    }
}

/// SPDK's target, if the environment names its directory.
pub(in crate::bench) fn spdk_program() -> Option<PathBuf> {
    let directory = std::env::var_os(SPDK_VARIABLE)?;
    Some(Path::new(&directory).join("build/bin/nvmf_tgt"))
}

/// What is served.
#[derive(Clone, Debug)]
pub(in crate::bench) enum Backend {
    Memory(u64),
    /// A file that is made, of so many bytes.
    File(PathBuf, u64),
    /// A disk, whatever it holds.
    Disk(PathBuf),
}

/// A target's process. Ended when dropped, and its directory removed.
pub(in crate::bench) struct TargetProcess {
    server: Option<ServerProcess>,
    pid: u32,
    address: SocketAddr,
    place: PathBuf,
}

impl TargetProcess {
    /// Starts a target on a core, and waits until it can be reached. `place` is a directory of its own.
    pub(in crate::bench) fn start(
        who: Who,
        backend: &Backend,
        place: &Path,
        core: Option<usize>,
    ) -> Result<Self, BenchFailure> {
        std::fs::create_dir_all(place)?;
        let address = free_address()?;
        let mut command = match who {
            Who::Card => card_command(backend, place, address)?,
            Who::Spdk => spdk_command(backend, place, address, core)?,
        };
        let mut server = ServerProcess::start(&mut command, &place.join("log"), core)?;
        server.wait_for(address)?;
        Ok(Self { pid: server.pid(), server: Some(server), address, place: place.to_owned() })
    }

    pub(in crate::bench) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(in crate::bench) fn pid(&self) -> u32 {
        self.pid
    }
}

impl Drop for TargetProcess {
    fn drop(&mut self) {
        // Its files can go when nobody writes to them any more.
        self.server = None;
        let _ = std::fs::remove_dir_all(&self.place);
    }
}

fn card_command(backend: &Backend, place: &Path, address: SocketAddr) -> Result<Command, BenchFailure> {
    let (device, size) = match backend {
        Backend::Memory(size) => ("memory".to_owned(), *size),
        Backend::File(path, size) => (std::path::absolute(path)?.display().to_string(), *size),
        Backend::Disk(path) => (path.display().to_string(), 0),
    };
    let size = if size == 0 { String::new() } else { format!("size = \"{}MiB\"\n", size >> 20) };
    let text = format!(
        "[nvme]\nlisten = \"{address}\"\ndiscovery = \"127.0.0.1:0\"\nnqn = \"{SUBSYSTEM}\"\ndevice = \"{device}\"\n{size}\
         [files]\ndevice = \"memory\"\nsize = \"64MiB\"\n[kv]\nenabled = false\n[status]\nlisten = \"127.0.0.1:0\"\n"
    );
    let config = place.join("outboard.toml");
    std::fs::write(&config, text)?;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("card").arg("--config").arg(config).arg("--data").arg(place.join("data"));
    Ok(command)
}

/// Bytes of the huge pages that are set aside and that nobody has or was promised.
fn huge_pages_free() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let free = number("HugePages_Free:").unwrap_or(0).saturating_sub(number("HugePages_Rsvd:").unwrap_or(0));
    number("Hugepagesize:").map_or(0, |kibibytes| (free * kibibytes) << 10)
}

fn spdk_command(
    backend: &Backend,
    place: &Path,
    address: SocketAddr,
    core: Option<usize>,
) -> Result<Command, BenchFailure> {
    let program = spdk_program().ok_or("SPDK_DIR is not set")?;
    let Backend::Memory(size) = backend else { return Err("SPDK is measured in memory only".into()) };
    let call =
        |method: &str, params: serde_json::Value| serde_json::json!({"method": method, "params": params});
    let config = serde_json::json!({"subsystems": [
        {"subsystem": "bdev", "config": [
            call("bdev_malloc_create", serde_json::json!({
                "name": "Memory", "num_blocks": size / BLOCK, "block_size": BLOCK,
            })),
        ]},
        {"subsystem": "nvmf", "config": [
            call("nvmf_create_transport", serde_json::json!({"trtype": "TCP", "in_capsule_data_size": 8192})),
            call("nvmf_create_subsystem", serde_json::json!({
                "nqn": SUBSYSTEM, "allow_any_host": true, "serial_number": "BENCH",
            })),
            call("nvmf_subsystem_add_ns", serde_json::json!({
                "nqn": SUBSYSTEM, "namespace": {"bdev_name": "Memory", "nsid": 1},
            })),
            call("nvmf_subsystem_add_listener", serde_json::json!({
                "nqn": SUBSYSTEM,
                "listen_address": {
                    "trtype": "TCP", "adrfam": "IPv4", "traddr": address.ip().to_string(),
                    "trsvcid": address.port().to_string(),
                },
            })),
        ]},
    ]});
    let path = place.join("spdk.json");
    std::fs::write(&path, serde_json::to_string(&config)?)?;
    let mut command = Command::new(program);
    let memory = 2 * size + (512 << 20);
    // Huge pages as its users give it, if the machine has some set aside; no PCI devices are taken.
    command.arg(if huge_pages_free() >= memory { "--env-context=--in-memory" } else { "--no-huge" });
    command.args(["-u", "-s", &(memory >> 20).to_string()]);
    command.arg("-r").arg(place.join("rpc.sock")).arg("-c").arg(path);
    command.arg("-m").arg(format!("0x{:x}", 1_u64 << core.unwrap_or(0)));
    Ok(command)
}
