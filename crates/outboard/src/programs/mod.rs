//! Programs of a running card: loaded by command, kept over restarts.
//!
//! ```text
//!   outboard offload load ─▶ control socket ─▶ CardPrograms ─▶ Workshop: verify, compile ─▶ ProgramSlot ─▶ the store
//!                                                    └─▶ card/programs/kv/NAME.o, before the next life needs it
//! ```

mod command;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ob_offload::{HookCounts, ProgramCounts, ProgramSlot};
use ob_programs::{Library, Limits, LoadRefusal, Object, Workshop};
use serde::{Deserialize, Serialize};

pub(crate) use command::run;
pub use command::{OffloadCommand, OffloadError};

use crate::config::{CardConfig, Placement};
use crate::durable;
use crate::halves::make_directory;

/// Whose programs they are: the only service of the card that asks programs.
const TENANT: &str = "kv";
/// What files of objects are called behind their names.
const SUFFIX: &str = ".o";
/// What an object is called that is not accepted yet: no name of an object begins so.
const STAGED: &str = ".new";

/// What can be asked about programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ProgramRequest {
    /// Tell which there are.
    List,
    /// Take the object that follows.
    Load {
        /// What it is called from now on.
        name: String,
        /// Its bytes.
        len: usize,
    },
    /// Take one out.
    Remove {
        /// Which.
        name: String,
    },
}

/// The programs of a service, as they are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePrograms {
    /// Whose they are.
    pub service: String,
    /// Objects, by name.
    pub objects: Vec<ObjectFacts>,
    /// Calls that were not made because the service had used its share of a core.
    pub over_share: u64,
    /// Requests that went to the host because their programs were replaced or taken out meanwhile.
    pub outdated: u64,
    /// Lines of the log that programs wrote and that were too many.
    pub log_dropped: u64,
    /// Why a program was last stopped.
    pub last_fault: Option<String>,
}

/// An object, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectFacts {
    /// What it is called.
    pub name: String,
    /// Bytes of it.
    pub len: usize,
    /// How long it took to verify and compile, in microseconds.
    pub took_us: u64,
    /// Its programs.
    pub programs: Vec<ProgramFacts>,
}

/// A program, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramFacts {
    /// What calls it.
    pub hook: String,
    /// The function.
    pub function: String,
    /// Its instructions.
    pub instructions: usize,
    /// Accesses to memory.
    pub accesses: usize,
    /// How many of them are checked when it runs.
    pub checks: usize,
    /// Bytes of native code.
    pub code_len: usize,
    /// Calls of its hook, since the card has started.
    pub calls: u64,
    /// Those that it has left to the service's own function, or to the host.
    pub left: u64,
    /// Those in which it was stopped.
    pub faults: u64,
    /// Those in which it has said what cannot be.
    pub wrong: u64,
    /// Fuel of all calls.
    pub fuel: u64,
}

/// The programs of a card.
pub(crate) struct CardPrograms {
    library: Arc<Library>,
    workshop: Workshop,
    /// Where objects are kept.
    directory: PathBuf,
    limits: Limits,
    slot: Arc<ProgramSlot>,
    /// Held while objects change: what is loaded and what is kept change together.
    changing: Mutex<()>,
    /// What an earlier life had is loaded again, as far as it can be.
    is_restored: Arc<AtomicBool>,
    /// Why no service would ask them, if none would.
    unused: Option<String>,
}

impl CardPrograms {
    /// None yet: [`Self::restore`] takes those up again that an earlier life of the card had.
    pub(crate) fn start(config: &CardConfig) -> io::Result<Self> {
        let unused = match (config.kv.enabled, config.kv.placement) {
            (true, Placement::Card) => None,
            (true, Placement::Host) => Some(("placement", "\"card\"")),
            (false, _) => Some(("enabled", "true")),
        };
        let unused = unused.map(|(key, value)| config.source.line_to_change("kv", key, value));
        Ok(Self {
            library: Arc::new(Library::default()),
            workshop: Workshop::start()?,
            directory: config.directory.join("programs").join(TENANT),
            limits: config.programs.limits(),
            slot: Arc::new(ProgramSlot::default()),
            changing: Mutex::new(()),
            is_restored: Arc::default(),
            unused,
        })
    }

    /// Who verifies and compiles, for others who have programs too.
    pub(crate) fn workshop(&self) -> Workshop {
        self.workshop.clone()
    }

    /// Where the service finds them.
    pub(crate) fn slot(&self) -> Arc<ProgramSlot> {
        Arc::clone(&self.slot)
    }

    /// Does what is asked.
    pub(crate) fn ask(&self, request: ProgramRequest, body: Vec<u8>) -> Result<ServicePrograms, String> {
        if let Some(fix) = &self.unused {
            return Err(format!(
                "this card does not serve the key-value store, whose requests programs are asked about\nhint: {fix}"
            ));
        }
        // What an earlier life had is loaded again before anything is told or taken out. Later nobody who only asks waits for what is
        // verified.
        if !self.is_restored.load(Ordering::Acquire) {
            self.workshop.run(|| ()).map_err(|error| error.to_string())?;
        }
        let change = || self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        match request {
            ProgramRequest::List => {}
            ProgramRequest::Load { name, .. } => {
                let _alone = change();
                self.load(&name, body)?;
            }
            ProgramRequest::Remove { name } => {
                let _alone = change();
                self.remove(&name)?;
            }
        }
        Ok(self.facts())
    }

    fn load(&self, name: &str, bytes: Vec<u8>) -> Result<(), String> {
        let bytes = Arc::new(bytes);
        // What can fail for want of room fails before anything is changed.
        let staged = self.stage(&bytes).map_err(|error| {
            format!(
                "the object cannot be kept in {}: {error}\nhint: the card's directory must be writable, with room in it",
                self.directory.display()
            )
        })?;
        let object = self.prepare(name, &bytes).inspect_err(|_| _ = fs::remove_file(&staged))?;
        self.put();
        durable::put(&staged, &self.path_of(name)).map_err(|error| {
            format!(
                "the programs are loaded, but will not be when the card starts again: {error}\n\
                 hint: load them again when {} can be written",
                self.directory.display()
            )
        })?;
        tracing::info!(%object, took = ?object.took, "programs loaded");
        Ok(())
    }

    /// Puts bytes beside the objects that are kept; their name is given to them when they are accepted.
    fn stage(&self, bytes: &[u8]) -> io::Result<PathBuf> {
        make_directory(&self.directory)?;
        let path = self.directory.join(STAGED);
        durable::stage(&path, bytes)?;
        Ok(path)
    }

    /// Verifies and compiles, off every reactor's thread.
    fn prepare(&self, name: &str, bytes: &Arc<Vec<u8>>) -> Result<Arc<Object>, String> {
        let (library, limits) = (Arc::clone(&self.library), self.limits);
        let (name, bytes) = (name.to_owned(), Arc::clone(bytes));
        let job = move || library.load(TENANT, &name, &bytes, ProgramSlot::HOOKS, &limits);
        let loaded: Result<_, LoadRefusal> = self.workshop.run(job).map_err(|error| error.to_string())?;
        loaded.map_err(|refusal| refusal.to_string())
    }

    fn remove(&self, name: &str) -> Result<(), String> {
        let Some(object) = self.library.remove(TENANT, name) else {
            let known: Vec<String> =
                self.library.of(TENANT).iter().map(|object| object.name.clone()).collect();
            let hint = match known.is_empty() {
                true => "there are none; `outboard offload load FILE` loads one".to_owned(),
                false => format!("there are {}", known.join(", ")),
            };
            return Err(format!("no programs of the name `{name}` are loaded\nhint: {hint}"));
        };
        self.put();
        tracing::info!(%object, "programs taken out");
        match fs::remove_file(self.path_of(name)).and_then(|()| File::open(&self.directory)?.sync_all()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!(
                "they are taken out now, but will be back when the card starts again: {error}\n\
                 hint: remove {} yourself",
                self.path_of(name).display()
            )),
            _ => Ok(()),
        }
    }

    fn put(&self) {
        self.slot.put(self.library.of(TENANT), self.limits);
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}{SUFFIX}"))
    }

    /// Loads again what is kept, while the card serves already. What cannot be is told and left where it is: the service answers without
    /// it.
    pub(crate) fn restore(&self) {
        if self.unused.is_some() {
            return;
        }
        let (library, slot) = (Arc::clone(&self.library), self.slot());
        let (directory, limits) = (self.directory.clone(), self.limits);
        let is_restored = Arc::clone(&self.is_restored);
        let restored = self.workshop.submit(move || {
            for path in kept(&directory) {
                match load_kept(&library, &path, &limits) {
                    Ok(object) => tracing::info!(%object, took = ?object.took, "programs loaded"),
                    Err(error) => {
                        let path = path.display();
                        tracing::warn!(%path, "programs of an earlier life cannot be loaded: {error}");
                    }
                }
            }
            slot.put(library.of(TENANT), limits);
            is_restored.store(true, Ordering::Release);
        });
        if let Err(error) = restored {
            tracing::warn!("programs of an earlier life are not loaded: {error}");
        }
    }

    fn facts(&self) -> ServicePrograms {
        let ProgramCounts { hooks, over_share, outdated, log_dropped, last_fault } = self.slot.counts();
        let counts = |hook: &str| {
            hooks
                .iter()
                .find(|(name, _)| *name == hook)
                .map_or_else(HookCounts::default, |(_, counts)| *counts)
        };
        let objects = self.library.of(TENANT);
        ServicePrograms {
            service: TENANT.to_owned(),
            objects: objects.iter().map(|object| object_facts(object, counts)).collect(),
            over_share,
            outdated,
            log_dropped,
            last_fault,
        }
    }
}

/// The files of objects, by name.
fn kept(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut paths: Vec<PathBuf> = paths.filter(|path| name_of(path).is_some()).collect();
    paths.sort();
    paths
}

/// What the object in a file is called.
fn name_of(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()?.strip_suffix(SUFFIX)
}

fn load_kept(library: &Library, path: &Path, limits: &Limits) -> Result<Arc<Object>, String> {
    let mut bytes = Vec::new();
    // One byte more than there can be shows that there are too many.
    let longest = limits.object_len as u64 + 1;
    let read = File::open(path).and_then(|file| file.take(longest).read_to_end(&mut bytes));
    read.map_err(|error| error.to_string())?;
    let name = name_of(path).unwrap_or_default();
    let loaded = library.load(TENANT, name, &bytes, ProgramSlot::HOOKS, limits);
    loaded.map_err(|refusal| refusal.to_string())
}

fn object_facts(object: &Object, counts: impl Fn(&str) -> HookCounts) -> ObjectFacts {
    let programs = object.entries.iter().map(|entry| {
        let HookCounts { calls, left, faults, wrong, fuel } = counts(entry.hook.name);
        ProgramFacts {
            hook: entry.hook.name.to_owned(),
            function: entry.name.clone(),
            instructions: entry.instructions,
            accesses: entry.accesses,
            checks: entry.checks,
            code_len: entry.code.code_len(),
            calls,
            left,
            faults,
            wrong,
            fuel,
        }
    });
    ObjectFacts {
        name: object.name.clone(),
        len: object.len,
        took_us: u64::try_from(object.took.as_micros()).unwrap_or(u64::MAX),
        programs: programs.collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::config::Config;

    #[test]
    fn who_asks_does_not_wait_for_what_is_verified() {
        let directory = tempfile::tempdir().unwrap();
        let config = CardConfig { directory: directory.path().to_owned(), ..Config::default().card() };
        let programs = Arc::new(CardPrograms::start(&config).unwrap());
        programs.restore();
        let list = |programs: &CardPrograms| programs.ask(ProgramRequest::List, Vec::new()).unwrap();
        assert_eq!(list(&programs).objects, [], "it has waited for what there was");
        let (go_on, wait) = mpsc::channel::<()>();
        programs.workshop.submit(move || _ = wait.recv()).unwrap();
        let (tell, told) = mpsc::channel();
        let asking = Arc::clone(&programs);
        let asked = std::thread::spawn(move || tell.send(list(&asking)));
        let answer = told.recv_timeout(Duration::from_secs(60));
        drop(go_on);
        assert_eq!(answer.map(|programs| programs.service), Ok(TENANT.to_owned()));
        asked.join().unwrap().unwrap();
    }
}
