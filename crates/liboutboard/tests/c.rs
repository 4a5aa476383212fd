//! The header and the example are compiled as C and C++, linked with the library, and run against a card.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first surprise.

#[path = "../../ob-files-host/tests/common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use common::FakeCard;

const HEADER: &str = include_str!("../include/outboard.h");

/// Where the tree is.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Builds the library, and says where it is. Cargo builds a C library for nobody who does not ask for it by name.
fn library() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // target/PROFILE/deps/this
        let this = std::env::current_exe().unwrap();
        let target = this.ancestors().nth(3).unwrap();
        let built = Command::new(env!("CARGO"))
            .args(["build", "--offline", "--package", "liboutboard", "--target-dir"])
            .arg(target)
            .current_dir(root())
            .output()
            .unwrap();
        succeeded(&built);
        target.join("debug")
    })
}

fn succeeded(output: &Output) -> String {
    let (told, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}\n{complained}");
    told.into_owned()
}

/// Compiles a program and links it with the library.
fn compile(compiler: &str, standard: &str, source: &Path, extra: &[&str], program: &Path) {
    let mut command = Command::new(compiler);
    command.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-I"]);
    command.arg(root().join("crates/liboutboard/include")).arg(source).args(extra);
    command.arg("-o").arg(program);
    succeeded(&command.output().unwrap());
}

fn dynamic() -> [String; 3] {
    let at = library().display();
    [format!("-L{at}"), "-loutboard".to_owned(), format!("-Wl,-rpath,{at}")]
}

#[test]
fn the_example_writes_reads_and_lists() {
    let card = FakeCard::start();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("files");
    let source = root().join("examples/c/files.c");
    let link = dynamic();
    compile("cc", "-std=c99", &source, &link.each_ref().map(String::as_str), &program);
    for endpoint in [card.socket.display().to_string(), card.tcp.unwrap().to_string()] {
        let told = succeeded(&Command::new(&program).arg(&endpoint).output().unwrap());
        assert_eq!(
            told,
            "11 bytes: hello, card\n64 blocks written and read back\nfile blocks 262144\nfile greeting 11\n"
        );
        assert_eq!(card.content("/example/greeting"), b"hello, card");
    }
    let nobody = Command::new(&program).arg(directory.path().join("none.sock")).output().unwrap();
    assert_eq!(nobody.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&nobody.stderr).into_owned();
    assert!(complaint.contains("no card answers"), "{complaint}");
}

#[test]
fn the_static_library_does_the_same() {
    let card = FakeCard::start();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("files");
    let archive = library().join("liboutboard.a");
    let link = [archive.to_str().unwrap(), "-lpthread", "-ldl", "-lm"];
    compile("cc", "-std=c99", &root().join("examples/c/files.c"), &link, &program);
    succeeded(&Command::new(&program).arg(&card.socket).output().unwrap());
}

#[test]
fn every_call_holds_in_c() {
    let card = FakeCard::start();
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("calls");
    let source = root().join("crates/liboutboard/tests/calls.c");
    let link = dynamic();
    compile("cc", "-std=c99", &source, &link.each_ref().map(String::as_str), &program);
    let told = succeeded(&Command::new(&program).arg(&card.socket).output().unwrap());
    assert_eq!(told, "ok\n");
}

#[test]
fn the_header_is_c_plus_plus_too() {
    if Command::new("c++").arg("--version").output().is_err() {
        // The header is plain C; where there is no C++ compiler nobody includes it from C++.
        return ob_plant::not_tested("there is no C++ compiler");
    }
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("main.cpp");
    let text = "#include \"outboard.h\"\nint main() { return ob_error_text(OB_OK) == nullptr; }\n";
    std::fs::write(&source, text).unwrap();
    let program = directory.path().join("main");
    let link = dynamic();
    compile("c++", "-std=c++11", &source, &link.each_ref().map(String::as_str), &program);
    succeeded(&Command::new(&program).output().unwrap());
}

/// The names of functions that the header declares.
fn declared() -> Vec<String> {
    let is_name = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let declaration = |line: &str| {
        let (before, _) = line.split_once('(')?;
        let name = &before[before.rfind(|character| !is_name(character))? + 1..];
        (line.starts_with(|first: char| first.is_ascii_alphabetic()) && name.starts_with("ob_"))
            .then(|| name.to_owned())
    };
    let mut names: Vec<String> = HEADER.lines().filter_map(declaration).collect();
    names.sort();
    names
}

/// The names of functions that the library has.
fn defined() -> Vec<String> {
    let sources = root().join("crates/liboutboard/src");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(sources).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        for (at, _) in text.match_indices("extern \"C\" fn ob_") {
            let rest = &text[at + "extern \"C\" fn ".len()..];
            names.push(rest[..rest.find('(').unwrap()].to_owned());
        }
    }
    names.sort();
    names
}

#[test]
fn header_and_library_have_the_same_functions() {
    assert_eq!(declared(), defined());
    assert!(declared().len() > 30);
    // What the header declares, the file really exports.
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only"]).arg(library().join("liboutboard.so"));
    let symbols = succeeded(&nm.output().unwrap());
    for name in declared() {
        assert!(symbols.lines().any(|line| line.ends_with(&format!(" T {name}"))), "{name}");
    }
}
