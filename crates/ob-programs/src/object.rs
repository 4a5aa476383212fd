//! An object: its programs, ready to run.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ob_ebpf::compiler::{self, CompileError, Compiled};
use ob_ebpf::elf::{self, LoadError};
use ob_ebpf::hooks;
use ob_ebpf::program::Program;
use ob_ebpf::verifier::{self, Refused};
use ob_ebpf::world::World;

use crate::Limits;

/// Programs of an object at most. However short one is, its native code takes a page at least and its verification a start.
const ENTRIES_MAX: usize = 64;

/// Why a card does not take an object.
#[derive(Debug, thiserror::Error)]
pub enum LoadRefusal {
    /// It is too long.
    #[error("the object has {len} bytes, and {max} is the most")]
    TooLong {
        /// Its bytes.
        len: usize,
        /// The most.
        max: usize,
    },
    /// It is no object.
    #[error("{0}")]
    Object(#[from] LoadError),
    /// There is nothing in it that could be called.
    #[error(
        "no function of it is for a hook\nhint: put OB_PROGRAM(\"HOOK\") before one; hooks here are {hooks}"
    )]
    NoEntry {
        /// Which hooks there are.
        hooks: String,
    },
    /// A function for a hook that is not here.
    #[error("`{entry}` is for the hook `{hook}`, which is not here; hooks here are {hooks}")]
    Hook {
        /// The function.
        entry: String,
        /// For which hook.
        hook: String,
        /// Which hooks there are.
        hooks: String,
    },
    /// Two functions for the same hook.
    #[error(
        "`{first}` and `{second}` are both for the hook `{hook}`, and one object can have one\nhint: make two objects of it"
    )]
    HookTwice {
        /// One.
        first: String,
        /// The other.
        second: String,
        /// The hook.
        hook: &'static str,
    },
    /// Two functions of one name.
    #[error("two functions for hooks are called `{0}`, and a call could mean either")]
    NameTwice(String),
    /// More programs than an object can have.
    #[error("{count} of its functions are for hooks, and {max} is the most\nhint: make two objects of it")]
    TooManyEntries {
        /// How many there are.
        count: usize,
        /// The most.
        max: usize,
    },
    /// Functions that only work together.
    #[error("it has a `{has}` without a `{lacks}`: what one of them writes down, only the other can read")]
    Half {
        /// What it has.
        has: &'static str,
        /// What it lacks.
        lacks: &'static str,
    },
    /// It would never be called.
    #[error(
        "`{entry}` asks for {min} bytes of data at least, and the hook `{hook}` never has more than {max}\n\
         hint: OB_DATA_MIN is for all programs of an object"
    )]
    DataMin {
        /// The function.
        entry: String,
        /// Its hook.
        hook: &'static str,
        /// What it asks for.
        min: u32,
        /// The most.
        max: u32,
    },
    /// It would never get to its first instruction.
    #[error(
        "`{entry}` costs {fuel} of fuel before its first instruction, and a call has {max}: it would never run\n\
         hint: a call pays for its first function at once, loops and other functions when it comes to them; \
         `[programs] fuel` is what a call has"
    )]
    Fuel {
        /// The function.
        entry: String,
        /// What it costs.
        fuel: u32,
        /// What a call has.
        max: u32,
    },
    /// The verifier has refused one.
    #[error("`{entry}` is refused: {why}")]
    Refused {
        /// The function.
        entry: String,
        /// Where and why.
        why: Box<Refused>,
    },
    /// There is no native code of one.
    #[error("`{entry}` cannot be compiled: {why}")]
    NotCompiled {
        /// The function.
        entry: String,
        /// Why.
        why: CompileError,
    },
    /// The tenant has as many as it may.
    #[error("`{tenant}` has {max} objects, which is its limit\nhint: take one out first")]
    TooMany {
        /// The tenant.
        tenant: String,
        /// The limit.
        max: usize,
    },
    /// The tenant's programs would be longer than they may.
    #[error(
        "the programs of `{tenant}` would have {instructions} instructions together, and its limit is {max}\nhint: take one out first"
    )]
    TooLarge {
        /// The tenant.
        tenant: String,
        /// How many there would be.
        instructions: usize,
        /// The limit.
        max: usize,
    },
    /// The name is no name.
    #[error(
        "`{0}` is no name for an object: use up to 64 letters, digits, `.`, `-` and `_`, and no `.` at the begin"
    )]
    Name(String),
    /// The hook is taken.
    #[error(
        "the hook `{hook}` has a program already, of `{by}`\nhint: take that out first, or give this one the same name, which replaces it"
    )]
    Taken {
        /// The hook.
        hook: &'static str,
        /// Whose program is there.
        by: String,
    },
    /// Verifier or compiler have failed by themselves.
    #[error(
        "the card has failed over this object: {0}\nhint: this is a fault of Outboard; please report it with the object"
    )]
    Failed(String),
}

/// A program of an object.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The function's name.
    pub name: String,
    /// What it is called by.
    pub hook: &'static World,
    /// What is run.
    pub code: Compiled,
    /// Its instructions.
    pub instructions: usize,
    /// Accesses to memory, and ranges that helpers get.
    pub accesses: usize,
    /// How many of them are checked when it runs.
    pub checks: usize,
    /// What became of its calls, for who counts them here.
    pub tally: Arc<Tally>,
}

/// What became of a program's calls. Several threads of a card may call it.
#[derive(Debug, Default)]
pub struct Tally {
    calls: AtomicU64,
    faults: AtomicU64,
    fuel: AtomicU64,
}

impl Tally {
    /// Notes a call that has cost so much.
    pub fn called(&self, fuel: u32, is_fault: bool) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.fuel.fetch_add(fuel.into(), Ordering::Relaxed);
        if is_fault {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Calls, those that were stopped, and fuel of all.
    #[must_use]
    pub fn read(&self) -> [u64; 3] {
        [&self.calls, &self.faults, &self.fuel].map(|count| count.load(Ordering::Relaxed))
    }
}

/// An object whose programs are ready to run.
#[derive(Debug)]
pub struct Object {
    /// What it is called here.
    pub name: String,
    /// Its programs: one a hook, and any number for a hook whose programs are called by their names.
    pub entries: Vec<Entry>,
    /// Bytes of it.
    pub len: usize,
    /// How long it took to verify and compile.
    pub took: Duration,
    is_retired: AtomicBool,
}

impl Object {
    /// An object of programs that are ready.
    #[must_use]
    pub fn new(name: &str, entries: Vec<Entry>, len: usize, took: Duration) -> Self {
        Self { name: name.to_owned(), entries, len, took, is_retired: AtomicBool::new(false) }
    }

    /// Whether it was taken out or replaced: calls that are under way end as they would have, and no others begin.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Acquire)
    }

    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::Release);
    }

    /// The program that a hook calls; none where it [calls by name](World::is_called_by_name).
    #[must_use]
    pub fn entry(&self, hook: &World) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.hook.name == hook.name && !entry.hook.is_called_by_name)
    }

    /// The program of a name, if it is for this hook: what was verified for another one finds nothing here that it expects.
    #[must_use]
    pub fn entry_named(&self, hook: &World, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name && entry.hook.name == hook.name)
    }

    /// Instructions of all its programs.
    #[must_use]
    pub fn instructions(&self) -> usize {
        self.entries.iter().map(|entry| entry.instructions).sum()
    }

    /// Verifies and compiles what is in an object for these hooks. This takes milliseconds, and seconds at worst.
    pub(crate) fn prepare(
        name: &str,
        bytes: &[u8],
        hooks: &[&'static World],
        limits: &Limits,
        has_room: impl Fn(usize) -> Result<(), LoadRefusal>,
    ) -> Result<Self, LoadRefusal> {
        if bytes.len() > limits.object_len {
            return Err(LoadRefusal::TooLong { len: bytes.len(), max: limits.object_len });
        }
        let begun = Instant::now();
        // Bytes of others go through a large machinery here: should it panic, that is this object's end and not the card's.
        let made = catch_unwind(AssertUnwindSafe(|| make(bytes, hooks, limits.call_fuel, has_room)));
        let entries = made.unwrap_or_else(|_| Err(LoadRefusal::Failed("it has panicked".to_owned())))?;
        Ok(Self::new(name, entries, bytes.len(), begun.elapsed()))
    }
}

fn make(
    bytes: &[u8],
    hooks: &[&'static World],
    call_fuel: u32,
    has_room: impl Fn(usize) -> Result<(), LoadRefusal>,
) -> Result<Vec<Entry>, LoadRefusal> {
    let known = || hooks.iter().map(|world| world.name).collect::<Vec<_>>().join(", ");
    let object = elf::Object::parse(bytes)?;
    let count = object.entries().len();
    if count > ENTRIES_MAX {
        return Err(LoadRefusal::TooManyEntries { count, max: ENTRIES_MAX });
    }
    let (mut programs, mut instructions) = (Vec::new(), 0);
    for entry in object.entries() {
        // A section may say more behind its hook, such as `check/get`.
        let hook = entry.hook.split('/').next().unwrap_or_default();
        let Some(world) = hooks.iter().copied().find(|world| world.name == hook) else {
            return Err(LoadRefusal::Hook {
                entry: entry.name.clone(),
                hook: hook.to_owned(),
                hooks: known(),
            });
        };
        has_place(&programs, &entry.name, world)?;
        let program = object.program(Some(&entry.name))?;
        // Short entries can have long functions in common, of which each has its own copy.
        instructions += program.instructions().len();
        has_room(instructions)?;
        can_run(&program, &entry.name, world, call_fuel)?;
        programs.push((entry.name.clone(), world, Arc::new(program)));
    }
    if programs.is_empty() {
        return Err(LoadRefusal::NoEntry { hooks: known() });
    }
    let has = |hook: &World| programs.iter().any(|(_, world, _)| world.name == hook.name);
    for (one, other) in [(FUNCTION, CHECK), (CHECK, FUNCTION), (CACHE, FUNCTION)] {
        if has(one) && !has(other) {
            return Err(LoadRefusal::Half { has: one.name, lacks: other.name });
        }
    }
    // Others wait for the object, so its programs have the verifier's time together.
    let mut options = verifier::Options::default();
    programs
        .into_iter()
        .map(|(name, hook, program)| {
            let accepted = verifier::verify(&program, hook, options)
                .map_err(|why| LoadRefusal::Refused { entry: name.clone(), why })?;
            options.work_max = options.work_max.saturating_sub(accepted.work);
            let code = compiler::compile(&accepted.verified, compiler::Options::default())
                .map_err(|why| LoadRefusal::NotCompiled { entry: name.clone(), why })?;
            Ok(Entry {
                name,
                hook,
                code,
                instructions: program.instructions().len(),
                accesses: accepted.accesses,
                checks: accepted.checks.len(),
                tally: Arc::default(),
            })
        })
        .collect()
}

/// Whether one more program can be called, beside those that come before it.
fn has_place(
    earlier: &[(String, &'static World, Arc<Program>)],
    name: &str,
    hook: &'static World,
) -> Result<(), LoadRefusal> {
    // The loader finds functions by their names, too: of two with the same it would take the first for both.
    if earlier.iter().any(|(other, ..)| other == name) {
        return Err(LoadRefusal::NameTwice(name.to_owned()));
    }
    let mut same = earlier.iter().filter(|(_, other, _)| other.name == hook.name && !hook.is_called_by_name);
    match same.next() {
        Some((first, ..)) => {
            let (first, second) = (first.clone(), name.to_owned());
            Err(LoadRefusal::HookTwice { first, second, hook: hook.name })
        }
        None => Ok(()),
    }
}

/// Whether a program would ever be called, and then get to its first instruction.
fn can_run(program: &Program, entry: &str, hook: &'static World, call_fuel: u32) -> Result<(), LoadRefusal> {
    let entry = || entry.to_owned();
    let (min, max) = (program.data_len_min(), hook.data_len_max);
    if min > max {
        return Err(LoadRefusal::DataMin { entry: entry(), hook: hook.name, min, max });
    }
    let (fuel, max) = (program.entry_fuel(), call_fuel);
    if fuel > max {
        return Err(LoadRefusal::Fuel { entry: entry(), fuel, max });
    }
    Ok(())
}

const FUNCTION: &World = &hooks::offload::FUNCTION;
const CHECK: &World = &hooks::offload::CHECK;
const CACHE: &World = &hooks::offload::CACHE;

impl fmt::Display for Object {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hooks: Vec<&str> = self.entries.iter().map(|entry| entry.hook.name).collect();
        write!(formatter, "{} ({})", self.name, hooks.join(", "))
    }
}
