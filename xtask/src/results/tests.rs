//! The verb with a program that only says that it measures.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// A program that writes reports, but for benchmarks that it has a file named after, `NAME.fails`, beside it; and a line
/// for each call.
const PROGRAM: &str = r#"#!/bin/sh
echo "$@" >> "$0.calls"
[ -e "$(dirname "$0")/$2.fails" ] && exit 1
printf '{"bench": "%s", "cases": [], "ratios": {"entry_ns": 12.5}}' "$2" > "$4"
"#;

struct Place {
    folder: PathBuf,
    program: PathBuf,
}

impl Place {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("xtask-results-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let program = folder.join("program");
        fs::write(&program, PROGRAM).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Self { folder, program }
    }

    fn facts(&self) -> Facts {
        let program = Some(self.program.clone());
        Facts { program, quick: true, peers: None, seconds: BTreeMap::new(), ..facts::tests::sample() }
    }

    /// What the program was called for, since this was last asked.
    fn calls(&self) -> Vec<String> {
        let path = self.folder.join("program.calls");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        text.lines().map(|line| line.split(' ').nth(1).unwrap().to_owned()).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn arguments() -> Arguments {
    Arguments {
        runs: None,
        from: None,
        anew: false,
        only: Vec::new(),
        quick: false,
        to: None,
        spdk: None,
        peers: None,
        outboard: None,
    }
}

#[test]
fn what_broke_off_goes_on() {
    let (repository, place) = (Repository::here().unwrap(), Place::new("resumed"));
    let table = Table::own().unwrap();
    let parts = chosen(&table, &["bpf".to_owned(), "ring".to_owned()]).unwrap();
    let jobs = jobs(&parts, 2, &place.folder);
    let fails = place.folder.join("ring.fails");
    fs::write(&fails, "").unwrap();
    let error = measure(&repository, &place.folder, None, place.facts(), &jobs).unwrap_err().to_string();
    assert!(error.contains("ring.1, ring.2 failed") && error.contains("--from"), "{error}");
    assert_eq!(place.calls(), ["ring", "bpf", "ring", "bpf"]);
    let earlier = Facts::read(&place.folder).unwrap().unwrap();
    assert_eq!(earlier.seconds.keys().collect::<Vec<_>>(), ["bpf.1", "bpf.2"]);

    fs::remove_file(fails).unwrap();
    let other = Facts { quick: false, ..place.facts() };
    assert!(measure(&repository, &place.folder, Some(earlier.clone()), other, &jobs).is_err());
    assert_eq!(place.calls(), [""; 0]);
    let facts = measure(&repository, &place.folder, Some(earlier), place.facts(), &jobs).unwrap();
    assert_eq!(place.calls(), ["ring", "ring"]);
    assert_eq!(facts.seconds.len(), 4);
    assert_eq!(Facts::read(&place.folder).unwrap().unwrap(), facts);
    let text =
        document::write(&chapters(&table, &jobs, Some(&facts)).unwrap(), &table.elsewhere, Some(&facts));
    assert!(text.contains("| `entry_ns` | below 15 ns | 12.5 ns | reached |"), "{text}");
}

#[test]
fn a_report_that_lacks_a_figure_is_told_right_away_and_in_the_end() {
    let (repository, place) = (Repository::here().unwrap(), Place::new("lacking"));
    let table = Table::own().unwrap();
    let parts = chosen(&table, &["ring".to_owned()]).unwrap();
    let jobs = jobs(&parts, 1, &place.folder);
    let full = Facts { quick: false, ..place.facts() };
    let error = measure(&repository, &place.folder, None, full.clone(), &jobs).unwrap_err().to_string();
    assert!(error.contains("ring.1 failed"), "{error}");
    let error = chapters(&table, &jobs, Some(&full)).unwrap_err().to_string();
    assert!(error.contains("ring.1.json has no figure `progress_vs_farm.pcie4.p64`"), "{error}");
}

#[test]
fn reports_are_neither_mixed_nor_lost_unasked() {
    let place = Place::new("kept");
    let from = Arguments { from: Some(place.folder.clone()), ..arguments() };
    assert!(earlier(&place.folder, &from).unwrap_err().to_string().contains("has no facts.json"));
    assert_eq!(earlier(&place.folder, &arguments()).unwrap(), None);

    place.facts().write(&place.folder).unwrap();
    let error = earlier(&place.folder, &arguments()).unwrap_err().to_string();
    assert!(error.contains("has reports of commit 0123456789abcdef already: `--from"), "{error}");
    assert_eq!(earlier(&place.folder, &from).unwrap(), Some(place.facts()));
    assert_eq!(earlier(&place.folder, &Arguments { runs: Some(0), ..arguments() }).unwrap(), None);
    assert!(place.folder.join(facts::FILE).exists());
    assert_eq!(earlier(&place.folder, &Arguments { anew: true, ..arguments() }).unwrap(), None);
    assert!(!place.folder.exists());
}

#[test]
fn each_run_has_every_benchmark() {
    let table = Table::own().unwrap();
    let only = ["bpf".to_owned(), "ring".to_owned()];
    let parts = chosen(&table, &only).unwrap();
    let names: Vec<String> = jobs(&parts, 2, Path::new("r")).into_iter().map(|job| job.name).collect();
    assert_eq!(names, ["ring.1", "bpf.1", "ring.2", "bpf.2"]);
    assert_eq!(chosen(&table, &[]).unwrap().len(), table.parts.len());
    let error = chosen(&table, &["rng".to_owned()]).unwrap_err().to_string();
    assert!(error.contains("no benchmark `rng`; there are ring, files"), "{error}");
}

#[test]
fn a_benchmark_is_given_what_it_takes() {
    let repository = Repository::here().unwrap();
    let table = Table::own().unwrap();
    let facts = Facts { quick: true, spdk: Some(PathBuf::from("/spdk")), ..facts::tests::sample() };
    let only = ["bpf", "nvme", "pushdown"].map(str::to_owned);
    let jobs = jobs(&chosen(&table, &only).unwrap(), 1, Path::new("/r"));
    let shown = |job| command::shown(&bench(&repository, Path::new("outboard"), job, &facts));
    assert!(shown(&jobs[0]).contains("SPDK_DIR=/spdk outboard bench nvme --json /r/nvme.1.part --quick"));
    assert!(shown(&jobs[1]).ends_with("bench bpf --json /r/bpf.1.part --quick --peers /somewhere/peers"));
    assert!(shown(&jobs[2]).ends_with("/r/pushdown.1.part --quick --peers /somewhere/peers"));
    assert!(!shown(&jobs[0]).contains("--peers"));
    let without = Facts { spdk: None, ..facts.clone() };
    assert!(
        !command::shown(&bench(&repository, Path::new("outboard"), &jobs[0], &without)).contains("SPDK_DIR")
    );
}

#[test]
fn a_program_that_is_not_there_is_noticed_at_once() {
    let folder = Repository::here().unwrap().root().join("xtask");
    assert_eq!(there(None, None).unwrap(), None);
    assert_eq!(there(Some(&folder), Some("Cargo.toml")).unwrap(), Some(folder.clone()));
    let file = folder.join("Cargo.toml");
    assert_eq!(there(Some(&file), None).unwrap(), Some(file));
    for inside in [None, Some(SPDK_TARGET)] {
        let error = there(Some(&folder), inside).unwrap_err().to_string();
        assert!(error.contains("there is no program"), "{error}");
    }
}

#[test]
fn a_document_of_nothing_has_every_part() {
    let table = Table::own().unwrap();
    let text = document::write(&chapters(&table, &[], None).unwrap(), &table.elsewhere, None);
    for part in &table.parts {
        assert!(text.contains(&format!("## {}\n", part.title)), "{}", part.title);
    }
}
