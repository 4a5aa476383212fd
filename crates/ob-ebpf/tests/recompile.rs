//! The checked-in objects are what clang makes of the sources beside them.
//!
//! `OB_BLESS=1 cargo test -p ob-ebpf recompile` makes them anew, with clang and llvm-strip of [`VERSION`].

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::process::Command;

use ob_ebpf::elf::Object;

/// The version that the checked-in objects were made with; others give other instructions.
const VERSION: u32 = 19;
/// The first version that knows `-mcpu=v4`.
const VERSION4_SINCE: u32 = 18;
const OBJECTS: [(&str, &str); 11] = [
    ("calls", "v3"),
    ("data", "v2"),
    ("entries", "v1"),
    ("narrow", "v3"),
    ("version4", "v4"),
    ("atomics", "v3"),
    ("refused", "v3"),
    ("function_alone", "v3"),
    ("hook_twice", "v3"),
    ("two_functions", "v3"),
    ("leaks", "v3"),
];
/// Programs that people are shown, in `examples/programs`.
const PROGRAMS: [(&str, &str); 10] = [
    ("bpfkv_get", "v3"),
    ("bpfkv_scan", "v3"),
    ("btree_search", "v3"),
    ("count_lines", "v3"),
    ("fetch", "v3"),
    ("kv_get", "v3"),
    ("readings", "v3"),
    ("rocksdb_block", "v3"),
    ("rocksdb_get", "v3"),
    ("stamps", "v3"),
];

/// Programs with a bug, which the scenario of the store has to find.
const WRONG: [(&str, &str); 1] = [("kv_get_unchecked", "v3")];

/// What the scenario of storage functions runs, and their tests.
const FOLLOW: [(&str, &str); 1] = [("follow", "v3")];
const OBEY: [(&str, &str); 1] = [("obey", "v3")];

/// A compiler and what strips its debug information, which BTF is not part of.
struct Tools {
    clang: String,
    strip: String,
    version: u32,
}

fn tools() -> Option<Tools> {
    [format!("-{VERSION}"), String::new()].into_iter().find_map(|suffix| {
        let (clang, strip) = (format!("clang{suffix}"), format!("llvm-strip{suffix}"));
        let said = Command::new(&clang).arg("--version").output().ok()?;
        Command::new(&strip).arg("--version").output().ok()?;
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let version = said.split("clang version ").nth(1)?.split('.').next()?.parse().ok()?;
        Some(Tools { clang, strip, version })
    })
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn compile(tools: &Tools, sources: &Path, name: &str, cpu: &str, into: &Path) -> Vec<u8> {
    let object = into.join(format!("{name}.o"));
    // Compiled where the source lies, so that no path of the machine gets into the object.
    let compiler = Command::new(&tools.clang)
        .current_dir(sources)
        .args(["-target", "bpfel", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fdebug-compilation-dir=."])
        .arg(format!("-mcpu={cpu}"))
        .arg("-I")
        .arg(here().join("include"))
        .args(["-c", &format!("{name}.c"), "-o"])
        .arg(&object)
        .output()
        .unwrap();
    assert!(compiler.status.success(), "{name}.c: {}", String::from_utf8_lossy(&compiler.stderr));
    assert!(Command::new(&tools.strip).arg("-g").arg(&object).status().unwrap().success());
    std::fs::read(object).unwrap()
}

#[test]
fn objects_are_what_the_sources_say() {
    compare(&here().join("tests/objects"), &OBJECTS);
}

#[test]
fn programs_are_what_the_sources_say() {
    compare(&here().join("../../examples/programs"), &PROGRAMS);
}

#[test]
fn wrong_programs_are_what_the_sources_say() {
    compare(&here().join("../ob-scenarios/tests/programs"), &WRONG);
}

#[test]
fn programs_of_storage_functions_are_what_the_sources_say() {
    compare(&here().join("../ob-scenarios/programs"), &FOLLOW);
    compare(&here().join("../ob-pushdown/tests/programs"), &OBEY);
}

fn compare(sources: &Path, objects: &[(&str, &str)]) {
    let Some(tools) = tools() else {
        ob_plant::not_tested(format_args!(
            "neither clang-{VERSION} nor clang with llvm-strip is installed; checked-in objects may be stale"
        ));
        return;
    };
    let version = tools.version;
    let is_blessed = std::env::var_os("OB_BLESS").is_some();
    let into = if is_blessed { sources } else { Path::new(env!("CARGO_TARGET_TMPDIR")) };
    for (name, cpu) in objects.iter().copied() {
        if cpu == "v4" && version < VERSION4_SINCE {
            ob_plant::not_tested(format_args!("{name}.c, as clang {version} does not know -mcpu=v4"));
            continue;
        }
        let bytes = compile(&tools, sources, name, cpu, into);
        let checked_in = std::fs::read(sources.join(format!("{name}.o"))).unwrap();
        let (found, wanted) = (Object::parse(&bytes).unwrap(), Object::parse(&checked_in).unwrap());
        assert_eq!(found.entries(), wanted.entries(), "{name}");
        for entry in found.entries() {
            let (program, wanted) = (found.program(Some(&entry.name)), wanted.program(Some(&entry.name)));
            assert_eq!(program.is_ok(), wanted.is_ok(), "{}: {program:?}", entry.name);
            if version == VERSION {
                assert_eq!(program, wanted, "{name}: the object is stale");
            }
        }
        if version != VERSION {
            ob_plant::not_tested(format_args!(
                "whether {name}.o is stale, as clang {version} compiles otherwise"
            ));
        }
    }
}
