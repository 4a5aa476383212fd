//! `outboard bench files`: random reads and writes through the card, against io_uring on a file of the operating system.
//!
//! ```text
//!   this process: the host                         child process: the card
//!   ┌────────────────────────────────┐             ┌─────────────────────────┐
//!   │ one thread ─▶ library ─▶ rings │ ◀── DMA ──▶ │ file service ─▶ device  │
//!   │            └▶ io_uring ─▶ file │             └─────────────────────────┘
//!   └────────────────────────────────┘
//! ```
//!
//! One thread keeps a number of requests out, sleeps while there is nothing to do, and answers everything that is
//! complete with as many new requests. Baseline and contender take turns; the median round of each counts. The
//! device of the card and the file of the baseline lie in the same file system, or both in memory.

mod baseline;
mod card;
mod library;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use card::{FilesCardOptions, run_files_card};

use super::load::{Contender, Direction, Load, Measured, Order, Role, check_some, median};
use super::turns::by_turns;
use super::{Bench, BenchFailure, Case, Report, Setting};
use baseline::Baseline;
use card::CardProcess;
pub(in crate::bench) use card::{link, mounted};
use library::{Arrival, Library};

/// Where the files are put; the current directory without it.
const DIRECTORY_VARIABLE: &str = "OUTBOARD_BENCH_DIR";
/// Only cases whose names contain this are measured, for those who want to look closer.
const ONLY_VARIABLE: &str = "OUTBOARD_BENCH_ONLY";
/// Memory of the operating system, as a file system.
const MEMORY_DIRECTORY: &str = "/dev/shm";

/// The benchmark.
#[derive(Debug)]
pub struct FilesBench;

/// How much is measured.
struct Plan {
    disk_len: u64,
    memory_len: u64,
    depths: &'static [usize],
    rounds: u64,
    time: Duration,
}

const FULL: Plan = Plan {
    disk_len: 1 << 30,
    memory_len: 256 << 20,
    depths: &[1, DEPTH, 128],
    rounds: 5,
    time: Duration::from_millis(1000),
};
const QUICK: Plan = Plan {
    disk_len: 16 << 20,
    memory_len: 16 << 20,
    depths: &[DEPTH],
    rounds: 1,
    time: Duration::from_millis(50),
};

const LENGTHS: [usize; 3] = [1 << 10, 8 << 10, 64 << 10];
/// The depth of what is measured at one depth only.
const DEPTH: usize = 32;

impl Bench for FilesBench {
    fn name(&self) -> &'static str {
        "files"
    }

    fn about(&self) -> &'static str {
        "random reads and writes of files on the card against io_uring, on disk and in memory"
    }

    fn run(&self, setting: &Setting<'_>) -> Result<Report, BenchFailure> {
        let plan = if setting.quick { &QUICK } else { &FULL };
        let place = Place::new()?;
        let only = std::env::var(ONLY_VARIABLE).ok();
        let mut measuring = Measuring { plan, setting, only, cases: Vec::new() };
        setting.progress.set_length(measuring.runs());
        {
            let baseline = Baseline::create(&place.files.join("file"), plan.disk_len)?;
            let device = place.files.join("device");
            let card = place.card("disk", Some(&device), plan.disk_len, false)?;
            measuring.device("disk", baseline, Library::create(card, plan.disk_len)?)?;
        }
        let baseline = Baseline::create(&place.memory_file(), plan.memory_len)?;
        let card = place.card("memory", None, plan.memory_len, false)?;
        let library = measuring.device("memory", baseline, Library::create(card, plan.memory_len)?)?;
        let card = place.card("copying", None, plan.memory_len, true)?;
        measuring.copies(library, Library::create(card, plan.memory_len)?)?;
        let ratios = ratios(&measuring.cases);
        Ok(Report { bench: "files".to_owned(), cases: measuring.cases, ratios })
    }
}

struct Measuring<'run> {
    plan: &'run Plan,
    setting: &'run Setting<'run>,
    only: Option<String>,
    cases: Vec<Case>,
}

impl Measuring<'_> {
    /// How many rounds there will be, all contenders together.
    fn runs(&self) -> u64 {
        let on_a_device: usize = self.plan.loads().map(|load| self.contenders("", load).len()).sum();
        (2 * on_a_device + 2) as u64 * self.plan.rounds
    }

    /// Who runs a load: the baseline, the library, and where it matters the library without its copy.
    fn contenders(&self, device: &str, load: Load) -> Vec<(String, Option<Arrival>)> {
        let name = |who: &str| format!("{who}.{device}.{}", load.name());
        let mut contenders = vec![(name("os"), None), (name("card"), Some(Arrival::Copied))];
        if load.direction == Direction::Read && load.depth == DEPTH {
            contenders.push((name("card_in_place"), Some(Arrival::InPlace)));
        }
        contenders
    }

    /// Every load on one device, baseline and library by turns.
    fn device(
        &mut self,
        device: &str,
        mut baseline: Baseline,
        mut library: Library,
    ) -> Result<Library, BenchFailure> {
        let file_len = baseline.len();
        let device = if baseline.is_direct() { device.to_owned() } else { format!("{device}_cached") };
        for load in self.plan.loads() {
            let mut contenders = self.contenders(&device, load);
            let rounds = by_turns(self.plan.rounds, &mut contenders, |(name, arrival), round| {
                let contender: &mut dyn Contender = match arrival {
                    None => &mut baseline,
                    Some(arrival) => {
                        library.arrival = *arrival;
                        &mut library
                    }
                };
                self.round(name, contender, load, file_len, round)
            })?;
            let cases = contenders.iter().zip(rounds);
            self.cases.extend(cases.filter_map(|((name, _), rounds)| median(name, Role::Host, rounds)));
        }
        library.arrival = Arrival::Copied;
        Ok(library)
    }

    /// One round, unless it was not asked for.
    fn round(
        &self,
        name: &str,
        contender: &mut dyn Contender,
        load: Load,
        file_len: u64,
        round: u64,
    ) -> Result<Option<Measured>, BenchFailure> {
        self.setting.progress.inc(1);
        if self.only.as_ref().is_some_and(|only| !name.contains(only)) {
            return Ok(None);
        }
        self.setting.progress.set_message(name.to_owned());
        let failed = |error: BenchFailure| -> BenchFailure { format!("{name}: {error}").into() };
        let measured = contender.run(load, round, self.plan.time).map_err(failed)?;
        check_some(contender, load, file_len, round).map_err(failed)?;
        Ok(Some(measured))
    }

    /// The card as it is, and with the copies put back that it does without (DDS §4.3).
    fn copies(&mut self, without: Library, with: Library) -> Result<(), BenchFailure> {
        let load = Load { direction: Direction::Read, len: 64 << 10, depth: DEPTH, order: Order::Random };
        let file_len = self.plan.memory_len;
        let mut contenders = [("zero_copy", without), ("copying", with)]
            .map(|(who, library)| (format!("{who}.memory.{}", load.name()), library));
        let rounds = by_turns(self.plan.rounds, &mut contenders, |(name, library), round| {
            self.round(name, library, load, file_len, round)
        })?;
        let cases = contenders.iter().zip(rounds);
        self.cases.extend(cases.filter_map(|((name, _), rounds)| median(name, Role::Host, rounds)));
        Ok(())
    }
}

impl Plan {
    fn loads(&self) -> impl Iterator<Item = Load> {
        let depths = self.depths;
        [Direction::Read, Direction::Write].into_iter().flat_map(move |direction| {
            LENGTHS.into_iter().flat_map(move |len| {
                let order = Order::Random;
                depths.iter().map(move |depth| Load { direction, len, depth: *depth, order })
            })
        })
    }
}

/// Where files and sockets are put. Removed when dropped.
struct Place {
    files: PathBuf,
    sockets: PathBuf,
}

impl Place {
    fn new() -> Result<Self, BenchFailure> {
        let name = format!("outboard-bench-{}", std::process::id());
        let parent = std::env::var_os(DIRECTORY_VARIABLE).map_or_else(|| PathBuf::from("."), PathBuf::from);
        // A socket's path must be short, so it cannot always lie beside the files.
        let place =
            Self { files: parent.join(format!("{name}.files")), sockets: std::env::temp_dir().join(name) };
        std::fs::create_dir_all(&place.files)?;
        std::fs::create_dir_all(&place.sockets)?;
        Ok(place)
    }

    fn memory_file(&self) -> PathBuf {
        Path::new(MEMORY_DIRECTORY).join(format!("outboard-bench-{}", std::process::id()))
    }

    /// Starts a card whose device has room for a file of `len` bytes.
    fn card(
        &self,
        name: &str,
        device: Option<&Path>,
        len: u64,
        copying: bool,
    ) -> Result<CardProcess, BenchFailure> {
        let bytes = len + len / 4 + (32 << 20);
        CardProcess::start(&self.sockets.join(format!("{name}.sock")), device, bytes, copying)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.files);
        let _ = std::fs::remove_dir_all(&self.sockets);
    }
}

/// What the cases that were measured say, on the disk without a suffix.
fn ratios(cases: &[Case]) -> BTreeMap<String, f64> {
    let find = |name: &str| cases.iter().find(|case| case.case == name);
    let mut ratios = BTreeMap::new();
    for case in cases {
        let mut parts = case.case.splitn(3, '.');
        let (Some(who), Some(device), Some(load)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let Some(os) = find(&format!("os.{device}.{load}")).filter(|_| who.starts_with("card")) else {
            continue;
        };
        let in_place = if who == "card" { "" } else { ".in_place" };
        let suffix =
            if device.starts_with("disk") { in_place.to_owned() } else { format!("{in_place}.{device}") };
        let mut add = |what: &str, ratio: f64| ratios.insert(format!("{what}.{load}{suffix}"), ratio);
        add("throughput_vs_os", case.ops_per_s / os.ops_per_s);
        if let (Some(card), Some(os)) = (case.cpu.host_cpu_us, os.cpu.host_cpu_us) {
            add("host_cpu_vs_os", card / os);
        }
        if let (Some(card), Some(os)) = (case.cpu.machine_cpu_us, os.cpu.machine_cpu_us)
            && load.ends_with("8k.d32")
        {
            add("machine_cpu_vs_os", card / os);
        }
    }
    let name = |who: &str| format!("{who}.memory.read64k.d{DEPTH}");
    if let (Some(without), Some(with)) = (find(&name("zero_copy")), find(&name("copying"))) {
        ratios.insert("zero_copy_gain.read64k".to_owned(), without.ops_per_s / with.ops_per_s);
    }
    ratios
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{CpuPerOperation, Latencies};

    fn case(name: &str, ops_per_s: f64, host_cpu_us: f64) -> Case {
        let cpu = CpuPerOperation {
            host_cpu_us: Some(host_cpu_us),
            machine_cpu_us: Some(8.0),
            ..CpuPerOperation::default()
        };
        Case { ops_per_s, ..Case::new(name, 1.0, &Latencies::new(), cpu) }
    }

    #[test]
    fn ratios_are_named_after_what_was_compared() {
        let cases = [
            case("os.disk.read8k.d32", 1000.0, 4.0),
            case("card.disk.read8k.d32", 900.0, 1.0),
            case("card_in_place.disk.read8k.d32", 950.0, 0.5),
            case("os.memory.write1k.d1", 100.0, 2.0),
            case("card.memory.write1k.d1", 50.0, 4.0),
            case("zero_copy.memory.read64k.d32", 30.0, 1.0),
            case("copying.memory.read64k.d32", 20.0, 1.0),
        ];
        let expected = [
            ("host_cpu_vs_os.read8k.d32", 0.25),
            ("host_cpu_vs_os.read8k.d32.in_place", 0.125),
            ("host_cpu_vs_os.write1k.d1.memory", 2.0),
            ("machine_cpu_vs_os.read8k.d32", 1.0),
            ("machine_cpu_vs_os.read8k.d32.in_place", 1.0),
            ("throughput_vs_os.read8k.d32", 0.9),
            ("throughput_vs_os.read8k.d32.in_place", 0.95),
            ("throughput_vs_os.write1k.d1.memory", 0.5),
            ("zero_copy_gain.read64k", 1.5),
        ];
        let expected = expected.into_iter().map(|(name, ratio)| (name.to_owned(), ratio)).collect();
        assert_eq!(ratios(&cases), expected);
    }
}
