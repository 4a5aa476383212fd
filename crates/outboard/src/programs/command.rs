//! What can be typed after `outboard offload`.

use std::io;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{ObjectFacts, ProgramFacts, ProgramRequest, ServicePrograms};
use crate::cli::{CommandError, ConfigOptions};
use crate::control::{self, ControlRequest};
use crate::terminal::{BAD, say, styled, table};

/// The commands about a service's programs.
#[derive(Debug, Subcommand)]
pub enum OffloadCommand {
    /// Load an object; one of the same name is replaced
    #[command(after_help = "\
Examples:
  clang -target bpf -O2 -g -c -I crates/ob-ebpf/include examples/programs/kv_get.c -o kv_get.o
  outboard offload load kv_get.o
  outboard offload load kv_get.o --name get-2     under another name

The card verifies and compiles it, and says what is wrong if it is refused; `outboard bpf verify`
tells the same without a card.")]
    Load(LoadOptions),
    /// List what is loaded, and what became of its calls
    #[command(after_help = "\
Examples:
  outboard offload ls
  outboard offload ls --json | jq '.objects[].programs[].calls'")]
    Ls(ListOptions),
    /// Take an object out: the service answers by itself again
    #[command(after_help = "\
Example:
  outboard offload rm kv_get")]
    Rm(RemoveOptions),
}

/// `outboard offload ls`.
#[derive(Clone, Debug, Args)]
pub struct ListOptions {
    /// Show everything as JSON
    #[arg(long)]
    pub json: bool,
    /// Which card.
    #[command(flatten)]
    pub config: ConfigOptions,
}

/// `outboard offload load`.
#[derive(Clone, Debug, Args)]
pub struct LoadOptions {
    /// An object that clang has made for eBPF
    pub file: PathBuf,
    /// What it is called on the card [default: the file's name, without what follows its last dot]
    #[arg(long)]
    pub name: Option<String>,
    /// What all show.
    #[command(flatten)]
    pub list: ListOptions,
}

/// `outboard offload rm`.
#[derive(Clone, Debug, Args)]
pub struct RemoveOptions {
    /// What `ls` calls it
    pub name: String,
    /// What all show.
    #[command(flatten)]
    pub list: ListOptions,
}

/// Why nothing was asked of a card.
#[derive(Debug, thiserror::Error)]
pub enum OffloadError {
    /// The object cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The object is longer than any may be.
    #[error("{} has {len} bytes, and {} is the most that an object can have", path.display(), ob_ebpf::elf::OBJECT_LEN_MAX)]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        len: usize,
    },
}

/// Does what was typed.
pub(crate) fn run(command: &OffloadCommand) -> Result<(), CommandError> {
    let (list, request, body) = match command {
        OffloadCommand::Ls(list) => (list, ProgramRequest::List, Vec::new()),
        OffloadCommand::Rm(RemoveOptions { name, list }) => {
            (list, ProgramRequest::Remove { name: name.clone() }, Vec::new())
        }
        OffloadCommand::Load(LoadOptions { file, name, list }) => {
            let path = file.clone();
            let bytes = std::fs::read(file)
                .map_err(|error| CommandError::Offload(OffloadError::Read { path: path.clone(), error }))?;
            if bytes.len() > ob_ebpf::elf::OBJECT_LEN_MAX {
                return Err(CommandError::Offload(OffloadError::TooLong { path, len: bytes.len() }));
            }
            let stem = || file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let name = name.clone().unwrap_or_else(stem);
            (list, ProgramRequest::Load { name, len: bytes.len() }, bytes)
        }
    };
    let card = list.config.load()?.card();
    let programs: ServicePrograms =
        control::ask(&card.control_socket(), &ControlRequest::Programs(request), &body)?;
    if list.json {
        say(&serde_json::to_string_pretty(&programs).map_err(io::Error::from)?)?;
    } else {
        say(&show(&programs))?;
    }
    Ok(())
}

fn show(programs: &ServicePrograms) -> String {
    if programs.objects.is_empty() {
        return "No programs are loaded; `outboard offload load FILE` loads some.".to_owned();
    }
    let row = |object: &ObjectFacts, program: &ProgramFacts| {
        vec![
            object.name.clone(),
            programs.service.clone(),
            program.hook.clone(),
            program.instructions.to_string(),
            format!("{} of {}", program.checks, program.accesses),
            program.calls.to_string(),
            program.left.to_string(),
            (program.faults + program.wrong).to_string(),
            program.fuel.checked_div(program.calls).map_or_else(|| "-".to_owned(), |fuel| fuel.to_string()),
        ]
    };
    let rows: Vec<Vec<String>> = programs
        .objects
        .iter()
        .flat_map(|object| object.programs.iter().map(move |program| row(object, program)))
        .collect();
    let names =
        ["object", "service", "hook", "instructions", "checked", "calls", "left", "failed", "fuel/call"];
    let mut text = table(&names, &rows);
    if programs.over_share > 0 {
        text.push_str(&format!(
            "\n{} calls were not made: the service's share of a core was used up ([programs] share)",
            programs.over_share
        ));
    }
    if let Some(fault) = &programs.last_fault {
        text.push_str(&format!("\n{} {fault}", styled(BAD, "last stopped in")));
    }
    text
}
