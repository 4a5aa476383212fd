//! Servers as processes of their own: started on a core, waited for, ended.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use rustix::thread::sched_setaffinity;

use super::BenchFailure;
use super::cores::{one_core, pin};

/// How long a server may take until it listens.
const START_WITHIN: Duration = Duration::from_secs(60);
/// How long it may take to end when it is asked to.
const END_WITHIN: Duration = Duration::from_secs(10);

/// A server's process. Ended when dropped.
pub(in crate::bench) struct ServerProcess {
    child: Child,
    log: PathBuf,
}

impl ServerProcess {
    /// Starts a command on a core. What it says goes to a file.
    pub(in crate::bench) fn start(
        command: &mut Command,
        log: &Path,
        core: Option<usize>,
    ) -> Result<Self, BenchFailure> {
        let file = std::fs::File::create(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let before = pin(core)?;
        let child = command.spawn();
        sched_setaffinity(None, &before)?;
        Ok(Self { child: child?, log: log.to_owned() })
    }

    pub(in crate::bench) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until somebody listens on the address, and the process is there.
    pub(in crate::bench) fn wait_for(&mut self, address: SocketAddr) -> Result<(), BenchFailure> {
        self.wait_until("listen", || TcpStream::connect(address).is_ok())
    }

    /// Waits until something is so, and the process is there.
    pub(in crate::bench) fn wait_until(
        &mut self,
        what: &str,
        mut is_so: impl FnMut() -> bool,
    ) -> Result<(), BenchFailure> {
        let deadline = Instant::now() + START_WITHIN;
        while !is_so() {
            let ended = self.child.try_wait()?;
            if ended.is_some() || Instant::now() > deadline {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                return Err(format!("a server did not {what}: {}", log.trim()).into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits until it has said a line, all of it, and is there.
    pub(in crate::bench) fn wait_until_said(
        &mut self,
        what: &str,
        mut is_it: impl FnMut(&str) -> bool,
    ) -> Result<(), BenchFailure> {
        let log = self.log.clone();
        self.wait_until(what, || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            let end = text.rfind('\n').unwrap_or(0);
            text[..end].lines().any(&mut is_it)
        })
    }

    /// Moves all of its threads to a core.
    pub(in crate::bench) fn move_to(&self, core: Option<usize>) -> Result<(), BenchFailure> {
        let Some(core) = core else { return Ok(()) };
        let core = one_core(core);
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.pid()))? {
            let name = thread?.file_name();
            let thread = name.to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
            match sched_setaffinity(thread, &core) {
                // A thread may end while the others are looked for.
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let deadline = Instant::now() + END_WITHIN;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has this process, which a benchmark has started, end with it.
pub(in crate::bench) fn end_with_parent() -> Result<(), BenchFailure> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// An address that nobody listens on at this moment. Somebody else may be first: for servers that cannot choose one themselves.
pub(in crate::bench) fn free_address() -> Result<SocketAddr, BenchFailure> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// Where a benchmark puts files. Removed when dropped.
pub(in crate::bench) struct Place(pub(in crate::bench) PathBuf);

/// Where places are made; the current directory without it.
const DIRECTORY_VARIABLE: &str = "OUTBOARD_BENCH_DIR";

impl Place {
    pub(in crate::bench) fn new() -> Result<Self, BenchFailure> {
        let parent = std::env::var_os(DIRECTORY_VARIABLE).map_or_else(|| PathBuf::from("."), PathBuf::from);
        // Sockets lie there too, and their paths must be short.
        let path = std::path::absolute(parent)?.join(format!("ob-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
