//! What `docs/your-own-program.md` shows is what happens: its files are compiled, its commands are typed to a real card, and what it says that
//! they answer is compared.
//!
//! `OB_BLESS=1 cargo test -p outboard your_own_program` writes the answers into the document.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ob_nvme::initiator::block_on;

use crate::support::{Place, number_after};

#[path = "../../ob-pushdown/examples/readings.rs"]
#[allow(dead_code, unreachable_pub, reason = "it is an example, with a main of its own")]
mod readings;

const CONFIG: &str = "[nvme]\nlisten = \"127.0.0.1:0\"\ndiscovery = \"127.0.0.1:0\"\ndevice = \"memory\"\nsize = \"64MiB\"\n[status]\nlisten = \"127.0.0.1:0\"\n";
/// Where the reader is, as far as the document goes.
const HERE: &str = "/home/you/outboard";
/// The compiler whose answers are shown: others make other instructions.
const CLANG: u32 = 19;
const PROGRAM: &str = "readings.c";

/// A part of the document.
#[derive(Debug, PartialEq)]
enum Part {
    /// Lines that are for people.
    Text(String),
    /// A file, as its mark calls it: `<!-- file NAME -->`.
    File { name: String, text: String },
    /// Commands, each with what it answers.
    Console(Vec<(String, String)>),
}

fn parts(document: &str) -> Vec<Part> {
    let (mut parts, mut text, mut lines) = (Vec::new(), String::new(), document.lines());
    while let Some(line) = lines.next() {
        text += &format!("{line}\n");
        let mark = line.strip_prefix("<!-- file ").and_then(|rest| rest.strip_suffix(" -->"));
        if let Some(name) = mark {
            let fence = lines.next().unwrap();
            assert!(fence.starts_with("```"), "{name} is not in a fenced block: {fence}");
            text += &format!("{fence}\n");
            parts.push(Part::Text(std::mem::take(&mut text)));
            let (name, text) = (name.to_owned(), block(&mut lines));
            parts.push(Part::File { name, text });
        } else if line == "```console" {
            parts.push(Part::Text(std::mem::take(&mut text)));
            let mut commands: Vec<(String, String)> = Vec::new();
            for line in block(&mut lines).lines() {
                match (line.strip_prefix("$ "), commands.last_mut()) {
                    (Some(command), _) => commands.push((command.to_owned(), String::new())),
                    (None, Some((_, answer))) => *answer += &format!("{line}\n"),
                    (None, None) => panic!("an answer without a command: {line}"),
                }
            }
            parts.push(Part::Console(commands));
        } else {
            continue;
        }
        text += "```\n";
    }
    parts.push(Part::Text(text));
    parts
}

/// What is left of a fenced block.
fn block<'a>(lines: &mut impl Iterator<Item = &'a str>) -> String {
    lines.take_while(|line| *line != "```").map(|line| format!("{line}\n")).collect()
}

fn written(parts: &[Part]) -> String {
    let one = |part: &Part| match part {
        Part::Text(text) | Part::File { text, .. } => text.clone(),
        Part::Console(commands) => {
            commands.iter().map(|(command, answer)| format!("$ {command}\n{answer}")).collect()
        }
    };
    parts.iter().map(one).collect()
}

/// A shell in a checkout, whose commands find the card that runs for them.
struct Shell {
    place: Place,
    compiler: String,
}

impl Shell {
    fn new(place: Place, address: &str, compiler: String) -> Self {
        let folder = place.path().join("bin");
        std::fs::create_dir(&folder).unwrap();
        let program = env!("CARGO_BIN_EXE_outboard");
        let script = format!(
            "#!/bin/sh\ncase $1 in\npushdown) exec {program} \"$@\" --address {address} ;;\n\
             files) exec {program} \"$@\" --config outboard.toml --data data ;;\n*) exec {program} \"$@\" ;;\nesac\n"
        );
        let path = folder.join("outboard");
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(root().join("crates"), place.path().join("crates")).unwrap();
        Self { place, compiler }
    }

    /// What a command says, on whichever stream.
    fn run(&self, command: &str) -> String {
        let script = format!(
            "exec 2>&1\nPATH=\"$PWD/bin:$PATH\"\nclang() {{ {} \"$@\"; }}\n{command}\n",
            self.compiler
        );
        let output = Command::new("bash")
            .args(["-c", &script])
            .current_dir(self.place.path())
            .env_remove("OUTBOARD_LOG")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        told.replace(self.place.path().to_str().unwrap(), HERE)
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The compiler that the document means, if this machine has it.
fn compiler() -> Option<String> {
    [format!("clang-{CLANG}"), "clang".to_owned()].into_iter().find(|name| {
        let said = Command::new(name).arg("--version").output();
        said.is_ok_and(|said| {
            String::from_utf8_lossy(&said.stdout).contains(&format!("clang version {CLANG}."))
        })
    })
}

#[test]
fn what_the_document_shows_is_what_happens() {
    let path = root().join("docs/your-own-program.md");
    let document = std::fs::read_to_string(&path).unwrap();
    let mut parts = parts(&document);
    assert_eq!(written(&parts), document, "it is read as it is written");
    let Some(compiler) = compiler() else {
        return ob_plant::not_tested(format_args!("clang {CLANG} is not installed"));
    };
    let place = Place::with_config(CONFIG);
    let mut card = place.start(&["card"]);
    let line = card.wait_for("The card is ready");
    let address = format!("127.0.0.1:{}", number_after(&line, "nvme on 127.0.0.1:"));
    let shell = Shell::new(place, &address, compiler);
    let (mut commands, mut last) = (0, String::new());
    for part in &mut parts {
        match part {
            Part::Text(_) => {}
            Part::File { name, text } if name == PROGRAM => {
                std::fs::write(shell.place.path().join(&name), &text).unwrap();
                last.clone_from(text);
            }
            Part::File { name, text } => {
                let file = std::fs::read_to_string(root().join(&name)).unwrap();
                assert!(file.contains(text.as_str()), "{name} has no such lines:\n{text}");
            }
            Part::Console(steps) => {
                for (command, answer) in steps {
                    *answer = shell.run(command);
                    commands += 1;
                }
            }
        }
    }
    assert!(commands > 10, "{commands} commands are few");
    if std::env::var_os("OB_BLESS").is_some() {
        std::fs::write(&path, written(&parts)).unwrap();
    }
    assert_eq!(written(&parts), std::fs::read_to_string(&path).unwrap());
    let program = std::fs::read_to_string(root().join("examples/programs").join(PROGRAM)).unwrap();
    assert_eq!(last, program, "its last program is the one among the examples");
    // The same from Rust, and what anybody finds who adds it up himself.
    let bytes = std::fs::read(shell.place.path().join("readings.bin")).unwrap();
    for sensor in [0, 3, 6, 7, 1 << 32] {
        let answer = block_on(readings::of_card(&address, "readings.bin", sensor)).unwrap();
        assert_eq!(answer, readings::ordinary(&bytes, sensor), "{sensor}");
        assert_eq!(answer.0 > 0, sensor < 7);
    }
}

#[test]
fn a_document_that_says_otherwise_is_found() {
    let document = "One\n<!-- file a.c -->\n```c\nint a;\n```\n```console\n$ one\nanswer\n$ two\n```\nend\n";
    let mut parts = parts(document);
    assert_eq!(written(&parts), document);
    assert_eq!(parts[1], Part::File { name: "a.c".to_owned(), text: "int a;\n".to_owned() });
    let Part::Console(commands) = &mut parts[3] else { panic!("{parts:?}") };
    let told: Vec<&str> = commands.iter().flat_map(|(command, answer)| [&command[..], answer]).collect();
    assert_eq!(told, ["one", "answer\n", "two", ""]);
    commands[1].1 = "something\n".to_owned();
    assert_ne!(written(&parts), document);
}
