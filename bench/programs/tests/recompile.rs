//! What is checked in below `programs` is what compilers make of the sources.
//!
//! `OB_BLESS=1 cargo test --test recompile` makes it anew. That takes clang and llvm-strip of [`VERSION`]; the linker for WebAssembly is the one that
//! comes with Rust.

use std::path::{Path, PathBuf};
use std::process::Command;

use ob_ebpf::elf::Object;

/// Other versions give other instructions.
const VERSION: u32 = 19;
const EXAMPLES: &str = "../../examples/programs";
const WARNINGS: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-const-variable"];

fn run(program: &str, arguments: &[&str]) -> String {
    let output =
        Command::new(program).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn has_clang() -> bool {
    let has = |program: String| Command::new(program).arg("--version").output().is_ok();
    let is_there = has(format!("clang-{VERSION}")) && has(format!("llvm-strip-{VERSION}"));
    if !is_there {
        eprintln!(
            "NOT TESTED: there is no clang-{VERSION} with llvm-strip-{VERSION}; `programs` may be stale"
        );
    }
    is_there
}

/// Where compilers write, and what is checked in.
fn places(name: &str) -> (PathBuf, PathBuf) {
    let checked_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name);
    let is_blessed = std::env::var_os("OB_BLESS").is_some();
    let made =
        if is_blessed { checked_in.clone() } else { Path::new(env!("CARGO_TARGET_TMPDIR")).join(name) };
    (made, checked_in)
}

#[test]
fn web_assembly_is_what_the_sources_say() {
    if !has_clang() {
        return;
    }
    let sources = [
        "programs/empty.c".to_owned(),
        format!("{EXAMPLES}/btree_search.c"),
        format!("{EXAMPLES}/bpfkv_get.c"),
        format!("{EXAMPLES}/rocksdb_block.c"),
    ];
    let mut objects = Vec::new();
    for (number, source) in sources.iter().enumerate() {
        let object = format!("{}/wasm{number}.o", env!("CARGO_TARGET_TMPDIR"));
        let target = ["--target=wasm32", "-O2", "-ffreestanding", "-Iinclude", "-c", source, "-o", &object];
        run(&format!("clang-{VERSION}"), &[&WARNINGS[..], &target].concat());
        objects.push(object);
    }
    let sysroot = run("rustc", &["--print", "sysroot"]);
    let host = run("rustc", &["--print", "host-tuple"]);
    let linker = format!("{}/lib/rustlib/{}/bin/rust-lld", sysroot.trim(), host.trim());
    let (made, checked_in) = places("programs.wasm");
    let mut arguments = vec!["-flavor", "wasm", "--no-entry", "--strip-all", "-o", made.to_str().unwrap()];
    arguments.extend([
        "--export=empty",
        "--export=btree_search",
        "--export=bpfkv_get",
        "--export=rocksdb_block",
    ]);
    arguments.extend(objects.iter().map(String::as_str));
    run(&linker, &arguments);
    assert!(std::fs::read(made).unwrap() == std::fs::read(checked_in).unwrap(), "programs.wasm is stale");
}

#[test]
fn objects_are_what_the_sources_say() {
    if !has_clang() {
        return;
    }
    // For a JIT in which functions have no frames of their own all of them are one.
    let inlined = ["-Dnoinline=always_inline", "-Dstatic=static __attribute__((always_inline))", "-w"];
    let rocksdb_block = format!("{EXAMPLES}/rocksdb_block.c");
    for (name, source, options) in
        [("empty.o", "programs/empty.c", &[][..]), ("rocksdb_block_inlined.o", &rocksdb_block, &inlined)]
    {
        let (made, checked_in) = places(name);
        let made = made.to_str().unwrap();
        let target = [
            "-target",
            "bpfel",
            "-mcpu=v3",
            "-O2",
            "-I../../crates/ob-ebpf/include",
            "-c",
            source,
            "-o",
            made,
        ];
        run(&format!("clang-{VERSION}"), &[options, &target].concat());
        run(&format!("llvm-strip-{VERSION}"), &["-g", made]);
        let [made, checked_in] = [Path::new(made), &checked_in].map(|path| {
            let bytes = std::fs::read(path).unwrap();
            Object::parse(&bytes).unwrap().program(None).unwrap()
        });
        assert_eq!(made, checked_in, "{name} is stale");
    }
}
