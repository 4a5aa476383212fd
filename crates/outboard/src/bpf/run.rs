//! A program, run on files.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use ob_ebpf::call::{Call, CallError, Fault, LogSink, NoTable, Outcome, Refusal};
use ob_ebpf::compiler::{self, CompileError};
use ob_ebpf::interpreter::{Interpreter, Observer, Value};
use ob_ebpf::isa::Register;
use ob_ebpf::program::Program;
use ob_ebpf::text::print_instruction;
use ob_ebpf::world::{FieldKind, World};
use serde_json::json;

use super::load::{Loaded, load};
use super::{BpfError, RunOptions, verify};
use crate::spelling::nearest;
use crate::terminal::say;

/// Bytes of the scratch that are shown.
const SHOWN_MAX: usize = 256;

/// Why a program has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunFailure {
    /// A file cannot be read, or written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The scratch does not fit.
    #[error("{path} has {len} bytes, and the scratch {max}")]
    Scratch {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        len: usize,
        /// The scratch's.
        max: u32,
    },
    /// A context that is none.
    #[error("`{text}` is no number of the context: {hint}")]
    Context {
        /// What was given.
        text: String,
        /// What could be.
        hint: String,
    },
    /// The code generator gave up.
    #[error("cannot compile it: {0}")]
    Compile(#[from] CompileError),
    /// Nothing was run.
    #[error("the program cannot be run so: {0}; --data FILE says what it is to look at")]
    Refused(Refusal),
    /// The program was stopped.
    #[error("the program was stopped: {0}")]
    Stopped(Fault),
}

impl From<CallError> for RunFailure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Refused(refusal) => Self::Refused(refusal),
            CallError::Fault(fault) => Self::Stopped(fault),
        }
    }
}

/// Memory of a call, in words, so that it is aligned.
struct Memory {
    data: Vec<u8>,
    scratch: Vec<u64>,
    scratch_len: usize,
    context: Vec<u64>,
    log: Log,
}

/// What the program logs, all of it.
#[derive(Default)]
struct Log(RefCell<Vec<(u64, u64)>>);

impl LogSink for Log {
    fn log(&self, first: u64, second: u64) {
        self.0.borrow_mut().push((first, second));
    }
}

impl Memory {
    fn new(options: &RunOptions, world: &World) -> Result<Self, RunFailure> {
        let data = options.data.as_deref().map_or(Ok(Vec::new()), read)?;
        let first = options.scratch.as_deref().map_or(Ok(Vec::new()), read)?;
        let scratch_len = world.scratch_len as usize;
        if first.len() > scratch_len {
            let path = options.scratch.clone().unwrap_or_default();
            return Err(RunFailure::Scratch { path, len: first.len(), max: world.scratch_len });
        }
        let mut scratch = vec![0; scratch_len.div_ceil(8)];
        for (word, bytes) in scratch.iter_mut().zip(first.chunks(8)) {
            let mut whole = [0; 8];
            whole.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            *word = u64::from_ne_bytes(whole);
        }
        let mut context = vec![0; world.fields.len()];
        for text in &options.context {
            let (at, number) = field_of(world, text)?;
            if let Some(word) = context.get_mut(at) {
                *word = number;
            }
        }
        Ok(Self { data, scratch, scratch_len, context, log: Log::default() })
    }

    fn call(&mut self, fuel: u32, run: impl FnOnce(&mut Call<'_>) -> Outcome) -> (Outcome, u32) {
        let scratch = zerocopy::IntoBytes::as_mut_bytes(self.scratch.as_mut_slice());
        let mut call = Call {
            data: &self.data,
            scratch: scratch.get_mut(..self.scratch_len).unwrap_or_default(),
            context: &mut self.context,
            fuel,
            table: &NoTable,
            log: &self.log,
        };
        let outcome = run(&mut call);
        (outcome, call.fuel)
    }

    fn scratch(&self) -> &[u8] {
        zerocopy::IntoBytes::as_bytes(self.scratch.as_slice()).get(..self.scratch_len).unwrap_or_default()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, RunFailure> {
    std::fs::read(path).map_err(|error| RunFailure::File { path: path.to_owned(), error })
}

/// A field of the context that a person may set, and its number.
fn field_of(world: &World, text: &str) -> Result<(usize, u64), RunFailure> {
    let settable: Vec<&str> = world
        .fields
        .iter()
        .filter(|field| matches!(field.kind, FieldKind::Number | FieldKind::Result))
        .map(|field| field.name)
        .collect();
    let wrong = |hint: String| RunFailure::Context { text: text.to_owned(), hint };
    let (name, number) = text.split_once('=').ok_or_else(|| wrong("write FIELD=NUMBER".to_owned()))?;
    let at = world.fields.iter().position(|field| field.name == name && settable.contains(&name));
    let at = at.ok_or_else(|| match nearest(name, settable.iter().copied()) {
        Some(meant) => wrong(format!("did you mean `{meant}`?")),
        None => wrong(format!("there are {}", settable.join(", "))),
    })?;
    let parsed = match number.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => number.parse(),
    };
    Ok((at, parsed.map_err(|error| wrong(error.to_string()))?))
}

pub(super) fn run(options: &RunOptions) -> Result<(), BpfError> {
    let loaded = load(&options.file)?;
    let accepted = verify::accepted(&loaded, options.json)?;
    let mut memory = Memory::new(options, loaded.world)?;
    let (outcome, fuel) = if options.trace {
        let mut trace = Trace { program: &loaded.program, failed: None };
        let ran = memory.call(options.fuel, |call| {
            Interpreter::new().run_observed(&loaded.program, loaded.world, call, &mut trace)
        });
        if let Some(error) = trace.failed {
            return Err(error.into());
        }
        ran
    } else if options.interpret {
        memory.call(options.fuel, |call| Interpreter::new().run(&loaded.program, loaded.world, call))
    } else {
        let compiled =
            compiler::compile(&accepted.verified, compiler::Options::default()).map_err(RunFailure::from)?;
        memory.call(options.fuel, |call| compiled.run(call))
    };
    if let Err(CallError::Refused(refusal)) = outcome {
        return Err(RunFailure::Refused(refusal).into());
    }
    if let Some(path) = &options.scratch_out {
        let written = std::fs::write(path, memory.scratch());
        written.map_err(|error| RunFailure::File { path: path.clone(), error })?;
    }
    let told = Told { loaded: &loaded, memory: &memory, fuel: options.fuel - fuel };
    say(&if options.json { told.json(&outcome) } else { told.text(&outcome) })?;
    outcome.map(drop).map_err(|error| RunFailure::from(error).into())
}

/// What is told of a run.
struct Told<'a> {
    loaded: &'a Loaded,
    memory: &'a Memory,
    fuel: u32,
}

impl Told<'_> {
    /// What the program has written to its context.
    fn results(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let fields = self.loaded.world.fields.iter().zip(&self.memory.context);
        fields.filter(|(field, _)| field.kind == FieldKind::Result).map(|(field, word)| (field.name, *word))
    }

    fn text(&self, outcome: &Outcome) -> String {
        let mut text = match outcome {
            Ok(result) => format!("result {result} ({result:#x}), fuel {}", self.fuel),
            Err(_) => format!("no result, fuel {}", self.fuel),
        };
        for (first, second) in &*self.memory.log.0.borrow() {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n  ob_log       {first} ({first:#x}), {second} ({second:#x})");
        }
        for (name, value) in self.results() {
            let _ = write!(text, "\n  {name:<12} {value} ({value:#x})");
        }
        let scratch = self.memory.scratch();
        let used = scratch.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        for (row, bytes) in scratch.get(..used.min(SHOWN_MAX)).unwrap_or_default().chunks(16).enumerate() {
            let hex: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let printable = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' };
            let ascii: String = bytes.iter().map(printable).collect();
            let _ = write!(text, "\n  {:04x}  {:<47}  {ascii}", row * 16, hex.join(" "));
        }
        if used > SHOWN_MAX {
            let _ = write!(
                text,
                "\n  … {used} bytes of the scratch are not 0; --scratch-out FILE gets all of it"
            );
        }
        text
    }

    fn json(&self, outcome: &Outcome) -> String {
        let results = self.results().map(|(name, value)| (name.to_owned(), json!(value)));
        let scratch: String = self.memory.scratch().iter().map(|byte| format!("{byte:02x}")).collect();
        json!({
            "result": outcome.as_ref().ok(), "error": outcome.as_ref().err().map(ToString::to_string),
            "fuel": self.fuel, "context": results.collect::<serde_json::Map<_, _>>(), "scratch": scratch,
            "log": *self.memory.log.0.borrow(),
        })
        .to_string()
    }
}

/// Shows each step.
struct Trace<'a> {
    program: &'a Program,
    failed: Option<io::Error>,
}

impl Observer for Trace<'_> {
    fn before(&mut self, at: usize, registers: &[Value; Register::COUNT], fuel: u32) {
        if self.failed.is_some() {
            return;
        }
        let label = |target: usize| format!("instruction {target}");
        let instruction = self.program.instructions().get(at);
        let instruction = instruction.map_or_else(String::new, |found| print_instruction(found, &label));
        let mut text = format!("{at:>5}  {instruction:<44} fuel {fuel}");
        for (register, value) in Register::all().zip(registers).take(Register::COUNT - 1) {
            let _ = match value {
                Value::Uninitialised => continue,
                Value::Number(number) => write!(text, "  {register}={number:#x}"),
                Value::Pointer(pointer) => {
                    write!(text, "  {register}={}{:+}", pointer.region.name(), pointer.offset)
                }
            };
        }
        self.failed = say(&text).err();
    }
}
