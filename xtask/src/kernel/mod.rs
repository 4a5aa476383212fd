//! `cargo xtask kernel`: an unmodified Linux kernel, in an emulated machine, as the client of an NVMe/TCP target.
//!
//! ```text
//!   target process ◀── 127.0.0.1:PORT ◀── QEMU's user network ◀── 10.0.2.2:PORT  the guest's kernel
//!        ▲                                                              │ nvme-cli, mkfs, fio, fsck …
//!        │ kill, restart, resize, remove                                ▼
//!   this verb ◀────────────────── `please …`, `step`, `ok`, `failed` ── scenario scripts
//! ```
//!
//! With `--self-test` the target is the kernel's own, within the guest, behind a relay of this verb: it shows that the harness
//! works, and records golden bytes.

pub mod cpio;
pub mod golden;
pub mod image;
pub mod machine;
pub mod packages;
pub mod protocol;
pub mod relay;
pub mod scenarios;
pub mod target;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::PossibleValuesParser;

use self::image::Image;
use self::machine::{Event, Machine};
use self::protocol::{Answer, Report};
use self::relay::Relay;
use self::scenarios::{RECORDING, SCENARIOS, Scenario};
use self::target::{Commands, Target, free_port};
use crate::outcome::Outcome;
use crate::program;
use crate::repository::Repository;

/// An unmodified Linux kernel as the client, in an emulated machine.
///
/// Boots Debian's newest kernel under QEMU and has it discover, connect to, format, mount, fill, check and lose an NVMe/TCP
/// target of this machine. What that needs is fetched with apt-get and kept below the target folder; only QEMU is
/// installed, by root, where it is missing. Where it cannot be had the verb says SKIPPED, loudly, and succeeds.
#[derive(Args)]
pub struct Arguments {
    /// Which scenarios; all of them by default.
    #[arg(value_name = "SCENARIO", value_parser = PossibleValuesParser::new(SCENARIOS.iter().map(|one| one.name)))]
    scenarios: Vec<String>,
    /// List the scenarios, and run nothing.
    #[arg(long)]
    list: bool,
    /// Keep the target's data and output, and the console's, even when all is well.
    #[arg(long)]
    keep: bool,
    /// Try the harness itself against the kernel's own target, within the guest.
    #[arg(long)]
    self_test: bool,
    /// Record the self-test's traffic, and write its PDUs to this folder.
    #[arg(long, value_name = "FOLDER", requires = "self_test")]
    record: Option<PathBuf>,
    /// The command that serves, in the foreground. In it and in the other commands, {port}, {folder}, {config}, {bytes},
    /// {nqn}, {auth_nqn}, {host_nqn}, {host_key}, {controller_key} and {outboard} are filled in [default: our own target].
    #[arg(long, value_name = "COMMAND", conflicts_with = "self_test")]
    target: Option<String>,
    /// The port that the target serves on; a free one by default.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// What the target prints when it is ready; by default it is ready when its port takes connections.
    #[arg(long, value_name = "TEXT")]
    ready: Option<String>,
    /// The command that gives namespace {nsid} the size {size}, in bytes.
    #[arg(long, value_name = "COMMAND", default_value = OWN_RESIZE)]
    resize: String,
    /// The command that removes namespace {nsid}.
    #[arg(long, value_name = "COMMAND", default_value = OWN_REMOVE)]
    remove: String,
}

const OWN_TARGET: &str = "{outboard} up --config {config}";
pub(crate) const OWN_RESIZE: &str = "{outboard} namespace resize --config {config} --shrink {nsid} {size}B";
pub(crate) const OWN_REMOVE: &str = "{outboard} namespace rm --config {config} {nsid}";

pub(crate) const NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:6f757462-6f61-7264-0000-0000000000a1";
pub(crate) const AUTH_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:6f757462-6f61-7264-0000-0000000000a2";
const GOLDEN_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:6f757462-6f61-7264-0000-0000000000a3";
const HOST_ID: &str = "6f757462-6f61-7264-0000-0000000000f1";
pub(crate) const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:6f757462-6f61-7264-0000-0000000000f1";
// Rightly formed (they end in a checksum) and known to everybody.
pub(crate) const HOST_KEY: &str = "DHHC-1:01:b3V0Ym9hcmQgaG9zdCBrZXksIGZvciB0ZXN0cyBvbmxaAIdt:";
pub(crate) const CONTROLLER_KEY: &str =
    "DHHC-1:02:b3V0Ym9hcmQgY29udHJvbGxlciBrZXksIGZvciB0ZXN0cyBvbmx5LCBub3Qgc2VjDUVt0A==:";

// mkfs.xfs refuses less than 300 MiB.
pub(crate) const NAMESPACE_BYTES: u64 = 512 << 20;

const BOOT_PATIENCE: Duration = Duration::from_secs(120);
// A guest that does not come up has not met the target yet: it says something of the emulator, or of a machine that is busy.
const BOOTS_MAX: usize = 3;
const POWER_OFF_PATIENCE: Duration = Duration::from_secs(20);

/// What commands and configurations of a target may use: our own program, where it keeps its data, where it serves.
pub(crate) fn words(outboard: &Path, data: &Path, port: u16) -> Vec<(&'static str, String)> {
    vec![
        ("outboard", outboard.display().to_string()),
        ("folder", data.display().to_string()),
        ("config", data.join("target.toml").display().to_string()),
        ("port", port.to_string()),
        ("bytes", NAMESPACE_BYTES.to_string()),
        ("nqn", NQN.to_owned()),
        ("auth_nqn", AUTH_NQN.to_owned()),
        ("host_nqn", HOST_NQN.to_owned()),
        ("host_key", HOST_KEY.to_owned()),
        ("controller_key", CONTROLLER_KEY.to_owned()),
    ]
}

/// Runs every scenario against our own target.
///
/// # Errors
/// As [`run`].
pub fn run_with_defaults(repository: &Repository) -> Result<Outcome> {
    let arguments = Arguments {
        scenarios: Vec::new(),
        list: false,
        keep: false,
        self_test: false,
        record: None,
        target: None,
        port: None,
        ready: None,
        resize: OWN_RESIZE.to_owned(),
        remove: OWN_REMOVE.to_owned(),
    };
    run(repository, &arguments)
}

/// Runs the chosen scenarios.
///
/// # Errors
/// When a scenario fails, or the guest does not come up.
pub fn run(repository: &Repository, arguments: &Arguments) -> Result<Outcome> {
    if arguments.list {
        for scenario in SCENARIOS {
            println!("{:<15} {}", scenario.name, scenario.purpose);
        }
        return Ok(Outcome::Done);
    }
    if arguments.record.is_none() && arguments.scenarios.iter().any(|name| name == RECORDING) {
        bail!("the scenario `{RECORDING}` records: it needs --self-test and --record FOLDER");
    }
    let folder = repository.target_folder("kernel");
    fs::create_dir_all(&folder)?;
    let parts = match packages::gather(repository, &folder) {
        Ok(parts) => parts,
        Err(error) => return Ok(Outcome::skipped("kernel", &format!("{error:#}"))),
    };
    let image = image::make(&parts, &folder)?;
    let chosen = choose(arguments);
    let mut run = Run::new(repository, arguments, image, &folder)?;
    let results = run.all(&chosen)?;
    let failed = report(&results);
    if let Some(folder) = &arguments.record {
        run.write_recordings(folder)?;
    }
    if failed > 0 {
        bail!("{failed} of {} scenarios failed; what was said is in {}", results.len(), run.folder.display());
    }
    run.end(arguments.keep)?;
    let skipped: Vec<&Verdict> = results.iter().flat_map(|result| &result.skipped).collect();
    for one in &skipped {
        println!("!!!!!!!! SKIPPED kernel {} !!!!!!!!", one.0);
    }
    Ok(Outcome::Done)
}

fn choose(arguments: &Arguments) -> Vec<&'static Scenario> {
    let is_chosen = |scenario: &&Scenario| {
        if scenario.name == RECORDING {
            // It needs the relay, and so the self-test.
            return arguments.record.is_some();
        }
        arguments.scenarios.is_empty() || arguments.scenarios.iter().any(|name| name == scenario.name)
    };
    SCENARIOS.iter().filter(is_chosen).collect()
}

/// A step that could not be tried, and why.
struct Verdict(String);

/// How a scenario went.
struct ScenarioResult {
    name: &'static str,
    elapsed: Duration,
    steps: usize,
    skipped: Vec<Verdict>,
    failure: Option<String>,
}

fn report(results: &[ScenarioResult]) -> usize {
    println!();
    for result in results {
        let verdict = match &result.failure {
            None => format!("ok, {} steps", result.steps),
            Some(why) => format!("FAILED: {why}"),
        };
        println!("kernel: {:<15} {:>6.1} s  {verdict}", result.name, result.elapsed.as_secs_f64());
        for skipped in &result.skipped {
            println!("kernel: {:<15}           SKIPPED {}", "", skipped.0);
        }
    }
    let failed = results.iter().filter(|result| result.failure.is_some()).count();
    println!("kernel: {} passed, {failed} failed", results.len() - failed);
    failed
}

/// Who serves.
enum Peer {
    Process(Target),
    Guest { relay: Relay, forward: u16 },
}

struct Run {
    image: Image,
    folder: PathBuf,
    port: u16,
    peer: Peer,
    /// What scenarios run of ours, and where in the guest's job it goes.
    programs: Vec<(String, PathBuf)>,
    machine: Option<Machine>,
}

impl Run {
    fn new(repository: &Repository, arguments: &Arguments, image: Image, folder: &Path) -> Result<Self> {
        let folder = folder.join("run");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        if arguments.self_test {
            let forward = free_port()?;
            let relay = Relay::start(forward)?;
            let port = relay.port();
            let (peer, programs) = (Peer::Guest { relay, forward }, Vec::new());
            return Ok(Self { image, folder, port, peer, programs, machine: None });
        }
        let port = arguments.port.map_or_else(free_port, Ok)?;
        let own = match arguments.target {
            None => program::of_the_tests(repository)?,
            Some(_) => repository.target_folder("debug/outboard"),
        };
        let commands = Commands {
            serve: arguments.target.clone().unwrap_or_else(|| OWN_TARGET.to_owned()),
            ready: arguments.ready.clone(),
            resize: arguments.resize.clone(),
            remove: arguments.remove.clone(),
        };
        let data = folder.join("target");
        let mut words = words(&own, &data, port);
        for name in ["chunks_1", "chunks_2", "chunks_3"] {
            words.push((name, free_port()?.to_string()));
        }
        let peer = Peer::Process(Target::new(commands, &data, port, words));
        let programs = program::for_guests(repository, &own)?;
        Ok(Self { image, folder, port, peer, programs, machine: None })
    }

    /// One machine serves for all scenarios, until one of them leaves it unusable.
    fn all(&mut self, scenarios: &[&'static Scenario]) -> Result<Vec<ScenarioResult>> {
        let mut results = Vec::new();
        for scenario in scenarios {
            println!("\n==== kernel {}: {} ====", scenario.name, scenario.purpose);
            if let Peer::Process(target) = &mut self.peer {
                target.start_afresh(&match scenario.name {
                    "authentication" => target::AUTHENTICATING.to_owned(),
                    "volumes" => target::VOLUMES.to_owned(),
                    "full" => [target::VOLUMES, target::SMALL].concat(),
                    _ => target::CONFIGURATION.to_owned(),
                })?;
            }
            if self.machine.is_none() {
                self.machine = Some(self.boot_at_last()?);
            }
            let result = self.one(scenario)?;
            if let (Some(_), Peer::Process(target)) = (&result.failure, &self.peer) {
                println!("---- the end of the target's output\n{}", target.last_words());
            }
            results.push(result);
        }
        Ok(results)
    }

    fn boot_at_last(&self) -> Result<Machine> {
        for attempt in 1..BOOTS_MAX {
            match self.boot() {
                Ok(machine) => return Ok(machine),
                Err(error) => println!("!!!!!!!! kernel: boot {attempt} of {BOOTS_MAX}: {error:#} !!!!!!!!"),
            }
        }
        self.boot()
    }

    fn boot(&self) -> Result<Machine> {
        let (is_self_test, forward) = match &self.peer {
            Peer::Process(_) => ("0", None),
            Peer::Guest { forward, .. } => ("1", Some(*forward)),
        };
        let environment = [
            // QEMU's name for this machine's loopback.
            ("ADDRESS", "10.0.2.2".to_owned()),
            ("PORT", self.port.to_string()),
            ("NQN", NQN.to_owned()),
            ("AUTH_NQN", AUTH_NQN.to_owned()),
            ("GOLDEN_NQN", GOLDEN_NQN.to_owned()),
            ("HOST_NQN", HOST_NQN.to_owned()),
            ("HOST_ID", HOST_ID.to_owned()),
            ("HOST_KEY", HOST_KEY.to_owned()),
            ("CONTROLLER_KEY", CONTROLLER_KEY.to_owned()),
            ("SELF_TEST", is_self_test.to_owned()),
        ];
        let start = Instant::now();
        let mut machine = Machine::boot(&self.image, &self.folder, &environment, &self.programs, forward)?;
        loop {
            match machine.next(start + BOOT_PATIENCE) {
                Some(Event::Console(line)) => println!("guest| {line}"),
                Some(Event::Report(line)) => match Report::of(&line) {
                    Report::Ready(release) => {
                        println!("kernel: {release} is up after {:.1} s", start.elapsed().as_secs_f64());
                        return Ok(machine);
                    }
                    Report::Broken(why) => bail!("the guest cannot be used: {why}"),
                    _ => println!("guest> {line}"),
                },
                Some(Event::Ended) => bail!("the guest ended while it booted"),
                None => bail!("the guest is not up after {} s", BOOT_PATIENCE.as_secs()),
            }
        }
    }

    fn one(&mut self, scenario: &'static Scenario) -> Result<ScenarioResult> {
        let start = Instant::now();
        let deadline = start + Duration::from_secs(scenario.seconds_max);
        let mut result = ScenarioResult {
            name: scenario.name,
            elapsed: Duration::ZERO,
            steps: 0,
            skipped: Vec::new(),
            failure: None,
        };
        let mut step = String::new();
        let Some(machine) = &mut self.machine else { bail!("no machine runs") };
        machine.order(&format!("run {}", scenario.name))?;
        loop {
            let event = machine.next(deadline);
            let seconds = start.elapsed().as_secs_f64();
            match event {
                Some(Event::Console(line)) => println!("guest| {line}"),
                Some(Event::Report(line)) => {
                    println!("[{seconds:>6.1} s] {line}");
                    match Report::of(&line) {
                        Report::Step(name) => name.clone_into(&mut step),
                        Report::Ok(_) => result.steps += 1,
                        Report::Failed(name, why) => {
                            result.failure.get_or_insert(format!("{name}: {why}"));
                        }
                        Report::Skipped(name, why) => {
                            result.skipped.push(Verdict(format!("{}/{name}: {why}", scenario.name)));
                        }
                        Report::Please(words) => machine.order(&answer(&mut self.peer, &words).line())?,
                        Report::Done => break,
                        Report::Ready(_) | Report::Broken(_) | Report::Unknown(_) => {}
                    }
                }
                Some(Event::Ended) => {
                    result.failure = Some(format!("the guest died in step {step}"));
                    self.machine = None;
                    break;
                }
                None => {
                    let limit = scenario.seconds_max;
                    result.failure = Some(format!("step {step} hangs: the scenario's {limit} s are over"));
                    self.machine = None;
                    break;
                }
            }
        }
        if result.failure.is_none() && result.steps == 0 && result.skipped.is_empty() {
            result.failure = Some("no step was reported".to_owned());
        }
        result.elapsed = start.elapsed();
        Ok(result)
    }

    fn write_recordings(&self, folder: &Path) -> Result<()> {
        let Peer::Guest { relay, .. } = &self.peer else { bail!("only the self-test records") };
        let files = golden::files_of(&relay.recordings(), &self.image.release)?;
        golden::write(&files, folder, &self.recording_page(files.len()))?;
        println!("kernel: {} PDUs are in {}", files.len(), folder.display());
        Ok(())
    }

    fn recording_page(&self, count: usize) -> String {
        format!(
            "# Golden bytes\n\n\
             {count} PDUs of real sessions between Linux's NVMe/TCP host and Linux's target (`nvmet-tcp`), kernel {release},\n\
             recorded by\n\n\
             ```sh\n\
             cargo xtask kernel --self-test --record crates/ob-wire-nvme/tests/golden golden\n\
             ```\n\n\
             which boots that kernel in an emulated machine and carries the traffic between its two halves through a relay.\n\
             Recording again replaces every file, and changes what is random in them: ids, generation counters, challenges.\n\n\
             One PDU a file, from its first header byte to its last digest byte. Lines that begin with `#` are comments; all\n\
             other lines are hexadecimal digits. A name says who sent it, the kind of PDU where it is not a command capsule,\n\
             and the command that it belongs to. Names that end in `-digests` come from a session with both digests, in\n\
             `-header-digest` and `-data-digest` from one with that digest alone, in `-authentication` from one with\n\
             DH-HMAC-CHAP in both directions; all others have none.\n\n\
             | what | value |\n|---|---|\n\
             | host NQN | `{HOST_NQN}` |\n\
             | host id | `{HOST_ID}` |\n\
             | subsystem NQN | `{GOLDEN_NQN}` |\n\
             | subsystem NQN, with authentication | `{AUTH_NQN}` |\n\
             | host's secret | `{HOST_KEY}` |\n\
             | controller's secret | `{CONTROLLER_KEY}` |\n",
            release = self.image.release
        )
    }

    fn end(&mut self, keep: bool) -> Result<()> {
        if let Some(mut machine) = self.machine.take() {
            machine.order("off")?;
            let deadline = Instant::now() + POWER_OFF_PATIENCE;
            while let Some(event) = machine.next(deadline) {
                if event == Event::Ended {
                    break;
                }
            }
        }
        if let Peer::Process(target) = &mut self.peer {
            target.stop();
        }
        if keep {
            println!("kernel: kept in {}", self.folder.display());
        } else {
            fs::remove_dir_all(&self.folder)?;
        }
        Ok(())
    }
}

fn answer(peer: &mut Peer, words: &[&str]) -> Answer {
    match (peer, words) {
        (Peer::Process(target), _) => target.please(words),
        (Peer::Guest { relay, .. }, ["kill-target"]) => {
            relay.cut();
            Answer::Yes
        }
        (Peer::Guest { relay, .. }, ["restart-target"]) => match relay.mend() {
            Ok(()) => Answer::Yes,
            Err(error) => Answer::No(format!("{error:#}")),
        },
        (Peer::Guest { relay, .. }, ["record", label]) => {
            relay.record(Some(label).filter(|label| **label != "nothing").copied());
            Answer::Yes
        }
        (Peer::Guest { .. }, _) => Answer::Yourself,
    }
}
