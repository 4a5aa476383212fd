//! The halves of one case: started under a tool that counts, asked, and ended.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Case, Programs};

/// How long a half may take to start or to end, in a simulator of processors.
const PATIENCE: Duration = Duration::from_secs(120);
/// Pauses between looks at what another process has done.
const PAUSE: Duration = Duration::from_millis(20);
/// Milliseconds between requests: time enough for a card in a simulator of processors to fall asleep.
const BETWEEN_REQUESTS: &str = "5";
/// The subsystem that `outboard bench-path` connects to.
const SUBSYSTEM: &str = "nqn.2026-11.io.outboard:bench";

/// What counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counter {
    Callgrind,
    Strace,
}

impl Counter {
    /// The beginning of a command whose rest is what is counted.
    fn before(self, output: &Path) -> Command {
        match self {
            Self::Callgrind => {
                // Valgrind hides the kernel's own code (vDSO) from a program, but not where the program finds it by asking for
                // the auxiliary vector. So that question fails, and the clock is read by a system call.
                let mut command = Command::new("strace");
                command.args(["-D", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=prctl"]);
                command.args(["-e", "inject=prctl:error=EINVAL", "valgrind", "--tool=callgrind", "-q"]);
                command.args(["--dump-instr=yes", "--compress-pos=no", "--fair-sched=try"]);
                command.arg(format!("--callgrind-out-file={}", output.display()));
                command
            }
            Self::Strace => {
                // The one that traces is a grandchild (`-D`), so that what is traced is the child.
                let mut command = Command::new("strace");
                command.args(["-D", "-f", "-c", "-o"]).arg(output);
                command
            }
        }
    }

    fn wraps(self, is_counted: bool, output: &Path, program: &Path) -> Command {
        if !is_counted {
            return Command::new(program);
        }
        let mut command = self.before(output);
        command.arg(program);
        command
    }
}

/// Runs a case once; what the tool has written down.
///
/// # Errors
/// When a half does not start, does not answer as it should, or does not end.
pub(super) fn run_case(
    case: &Case,
    programs: &Programs,
    counter: Counter,
    of_host: bool,
    requests: u64,
) -> Result<String> {
    let place = Place::new()?;
    let config = place.0.join("outboard.toml");
    fs::write(&config, configuration(case, &place.0))?;
    let output = place.0.join("counted");
    let start = |half: &str, is_counted: bool| {
        let mut command = counter.wraps(is_counted, &output, &programs.outboard);
        command.args([half, "--json", "--config"]).arg(&config).arg("--data").arg(place.0.join("data"));
        HalfProcess::start(command, &place.0.join(format!("{half}.log")))
    };
    let mut card = start("card", !of_host)?;
    let ready = card.readiness()?;
    let mut host = None;
    if case.has_host {
        let mut started = start("host", of_host)?;
        started.readiness()?;
        host = Some(started);
    }
    let is_application = of_host && !case.has_host;
    let mut asking = counter.wraps(is_application, &output, &programs.load);
    asking.args(["bench-path", case.kind, "--count", &requests.to_string(), "--pause", BETWEEN_REQUESTS]);
    address_the_load(&mut asking, case, &ready, &place.0)?;
    let asked = asking.stdin(Stdio::null()).output().context("cannot start the load")?;
    if !asked.status.success() {
        bail!("the load failed: {}\n{}", String::from_utf8_lossy(&asked.stderr), card.said());
    }
    let poked = endpoint(&ready, "nvme")?;
    if let Some(host) = host {
        host.end(poked)?;
    }
    card.end(poked)?;
    written(&output)
}

fn configuration(case: &Case, place: &Path) -> String {
    let device = if case.name.contains(".file.") {
        place.join("namespace").display().to_string()
    } else {
        "memory".to_owned()
    };
    format!(
        "[reactor]\nspin = 0\n[nvme]\nlisten = \"127.0.0.1:0\"\ndiscovery = \"127.0.0.1:0\"\nnqn = \"{SUBSYSTEM}\"\n\
         device = \"{device}\"\nsize = \"16MiB\"\n[status]\nlisten = \"127.0.0.1:0\"\n[log]\nlevel = \"warn\"\n{}",
        case.config
    )
}

/// Tells the load where the card is, out of what the card said when it was ready.
fn address_the_load(
    asking: &mut Command,
    case: &Case,
    ready: &serde_json::Value,
    place: &Path,
) -> Result<()> {
    if case.kind == "read" {
        asking.arg("--socket").arg(place.join("data/link.sock"));
        return Ok(());
    }
    let service = if case.kind.starts_with("write") { "nvme" } else { "kv" };
    asking.arg("--address").arg(endpoint(ready, service)?.to_string());
    if let Some(status) = ready.get("status").and_then(serde_json::Value::as_str) {
        asking.arg("--status").arg(status);
    }
    Ok(())
}

/// Where clients reach a service, out of what the card said when it was ready.
fn endpoint(ready: &serde_json::Value, service: &str) -> Result<SocketAddr> {
    let services = ready.get("services").and_then(serde_json::Value::as_array);
    let of_service =
        |one: &&serde_json::Value| one.get("service").and_then(serde_json::Value::as_str) == Some(service);
    let found = services.and_then(|services| services.iter().find(of_service));
    let address = found.and_then(|one| one.get("address")).and_then(serde_json::Value::as_str);
    let address = address.and_then(|text| text.split(' ').next()?.parse().ok());
    address.with_context(|| format!("the card does not serve `{service}`"))
}

/// A tool that traces may write a moment after what it traced has ended.
fn written(output: &Path) -> Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match fs::read_to_string(output) {
            Ok(text) if text.lines().last().is_some_and(|line| line.contains("total")) => return Ok(text),
            _ if Instant::now() > deadline => bail!("nothing was counted"),
            _ => thread::sleep(PAUSE),
        }
    }
}

/// A half's process. Killed when dropped.
struct HalfProcess {
    child: Child,
    log: PathBuf,
}

impl HalfProcess {
    fn start(mut command: Command, log: &Path) -> Result<Self> {
        let file = fs::File::create(log)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().context("cannot start a half")?;
        Ok(Self { child, log: log.to_owned() })
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it says that it is ready, and how.
    fn readiness(&mut self) -> Result<serde_json::Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let said = self.said();
            let lines = said.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
            if let Some(ready) = lines.into_iter().find_map(|message| message.get("ready").cloned()) {
                return Ok(ready);
            }
            if self.child.try_wait()?.is_some() || Instant::now() > deadline {
                bail!("a half did not get ready: {said}");
            }
            thread::sleep(PAUSE);
        }
    }

    /// Asks it to end, and waits for that. Under valgrind no thread of a card runs while its data path sleeps in io_uring, the one that
    /// hears of signals neither: so the card is kept awake meanwhile, by connections to one of its services.
    fn end(mut self, poked: SocketAddr) -> Result<()> {
        let pid = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().context("cannot send a signal")?;
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                bail!("a half did not end: {}", self.said());
            }
            drop(TcpStream::connect(poked));
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

impl Drop for HalfProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory for one run. Removed when dropped.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self> {
        // Sockets lie there, and their paths must be short.
        let path = std::env::temp_dir().join(format!("ob-paths-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
