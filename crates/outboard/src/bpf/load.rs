//! A program from a file.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use ob_ebpf::elf::{LoadError, Object};
use ob_ebpf::hooks;
use ob_ebpf::program::{Program, ProgramError};
use ob_ebpf::text::{self, AssembleError};
use ob_ebpf::world::World;

use super::FileOptions;

/// How objects begin.
const ELF_MAGIC: &[u8] = b"\x7fELF";
/// The hook of what does not say for which one it is.
const DEFAULT_HOOK: &str = "storage";

/// Why there is no program.
#[derive(Debug, thiserror::Error)]
pub enum LoadFailure {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// An object that cannot be loaded.
    #[error("{path}: {error}{}", hint_of(error))]
    Object {
        /// The file.
        path: PathBuf,
        /// Why.
        error: LoadError,
    },
    /// A text that is no program.
    #[error("{path}: {error}")]
    Text {
        /// The file.
        path: PathBuf,
        /// Why.
        error: AssembleError,
    },
    /// Instructions that are no program.
    #[error("{path}: {error}")]
    Program {
        /// The file.
        path: PathBuf,
        /// Why.
        error: ProgramError,
    },
    /// A hook that does not exist.
    #[error("there is no hook `{name}`; there are: {known}")]
    Hook {
        /// What was asked for.
        name: String,
        /// Which there are.
        known: String,
    },
}

/// What to do about an object that cannot be loaded, where that is not said already.
fn hint_of(error: &LoadError) -> &'static str {
    match error {
        LoadError::EntryAmbiguous { .. } => "\nhint: --entry NAME does",
        _ => "",
    }
}

/// A program, and the hook that it is for.
pub(super) struct Loaded {
    pub(super) program: Arc<Program>,
    pub(super) world: &'static World,
}

/// Loads a program.
pub(super) fn load(options: &FileOptions) -> Result<Loaded, Box<LoadFailure>> {
    let path = options.file.clone();
    let bytes =
        std::fs::read(&path).map_err(|error| Box::new(LoadFailure::Read { path: path.clone(), error }))?;
    let (program, hook) = if bytes.starts_with(ELF_MAGIC) {
        let loaded = Object::parse(&bytes).and_then(|object| {
            let program = object.program(options.entry.as_deref())?;
            let mut entries = object.entries().iter();
            let entry = entries.find(|entry| options.entry.as_ref().is_none_or(|name| entry.name == *name));
            Ok((program, entry.map(|entry| entry.hook.clone())))
        });
        loaded.map_err(|error| Box::new(LoadFailure::Object { path, error }))?
    } else {
        (not_an_object(path, &bytes)?, None)
    };
    // A section may say more behind its hook, such as `storage/get`.
    let hook = options.hook.clone().or(hook).unwrap_or_else(|| DEFAULT_HOOK.to_owned());
    let name = hook.split('/').next().unwrap_or_default();
    let world = hooks::ALL.iter().copied().find(|world| world.name == name).ok_or_else(|| {
        let known: Vec<&str> = hooks::ALL.iter().map(|world| world.name).collect();
        Box::new(LoadFailure::Hook { name: name.to_owned(), known: known.join(", ") })
    })?;
    Ok(Loaded { program: Arc::new(program), world })
}

fn not_an_object(path: PathBuf, bytes: &[u8]) -> Result<Program, Box<LoadFailure>> {
    let program = match std::str::from_utf8(bytes) {
        Ok(source) => match text::assemble(source) {
            Ok(assembled) => assembled.program(),
            Err(error) => return Err(Box::new(LoadFailure::Text { path, error })),
        },
        Err(_) => Program::from_bytes(bytes),
    };
    program.map_err(|error| Box::new(LoadFailure::Program { path, error }))
}
