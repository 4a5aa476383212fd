//! The compiler: native code for verified programs.
//!
//! ```text
//!   Verified ─▶ function: a variant becomes a function of Cranelift's ─▶ Image ─ linked ─▶ Code, executable ─▶ Compiled
//!                 ├ blocks: jumps
//!                 ├ inline: small ones in their callers
//!                 ├ arithmetic: registers                                                                        │ run(Call)
//!                 └ access: memory, checks, helpers                                                  Machine ◀──┘
//! ```
//!
//! Pointers are addresses. An access that is proven is a bare load or store. One that is to be checked compares its offset in the region, and
//! leaves the call when it is out of bounds; with [`Options::keep_checks`] proven ones do so as well, and say that the proof was
//! wrong. Registers are Cranelift's values, and so is fuel.
//!
//! A call allocates nothing and makes no system call. Its use of the native stack is known when a program is compiled
//! ([`Compiled::stack_len`]), and at most [`STACK_LEN_MAX`].
//!
//! **What it rests on.** That a [`Verified`] is true; that Cranelift translates rightly. A program that was not verified is never
//! compiled.

mod access;
mod arithmetic;
mod blocks;
mod code;
mod function;
mod inline;
mod machine;

use std::cell::Cell;
use std::fmt;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir;
use cranelift_codegen::isa::{OwnedTargetIsa, TargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{CodegenError, Context, FinalizedRelocTarget};
use cranelift_frontend::FunctionBuilderContext;
use thiserror::Error;

use self::code::{Code, Image, Link};
use self::inline::{Small, is_small};
use self::machine::Machine;
use crate::call::{Call, Fault, FaultKind, Outcome};
use crate::isa::{INSTRUCTIONS_MAX, Instruction};
use crate::program::{Data, FRAME_LEN, FRAMES_MAX, Function, Program};
use crate::verdict::Verified;
use crate::world::{Region, World};

/// Bytes of native stack that a program may need, with those of [`Compiled::run`]. Programs of people need a few hundred bytes besides the
/// 4096 of their frames.
pub const STACK_LEN_MAX: usize = 64 << 10;
/// Instructions of all variants together.
const TRANSLATED_MAX: usize = 4 * INSTRUCTIONS_MAX;
/// Functions of more instructions are translated as they are, and so are those with loops within more loops: what optimising costs
/// grows faster than either.
const OPTIMISED_MAX: usize = 4 << 10;
const NESTED_MAX: usize = 32;

/// How to compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether accesses that are proven to be in bounds are checked all the same, and end the call with
    /// [`FaultKind::ProofBroken`] when they are not.
    pub keep_checks: bool,
}

impl Default for Options {
    /// Debug builds keep checks.
    fn default() -> Self {
        Self { keep_checks: cfg!(debug_assertions) }
    }
}

/// Why there is no native code of a program. It can still be interpreted.
#[derive(Debug, Error)]
pub enum CompileError {
    /// There is no code generator for this processor.
    #[error("no code can be generated for this processor: {0}")]
    Processor(String),
    /// More than anyone should wait for, or keep.
    #[error("the program is too large: more than {max} {limit}")]
    TooLarge {
        /// Of what.
        limit: &'static str,
        /// The most.
        max: usize,
    },
    /// The code generator has given up, which is a fault of its own or of ours.
    #[error("the code generator has failed: {0}")]
    Generator(String),
    /// The system gives no memory for code.
    #[error("no memory for code: {0}")]
    Memory(rustix::io::Errno),
    /// The system does not let all cores see code, which 64-bit Arm needs.
    #[error("the system does not let all cores see new code (membarrier): {0}")]
    Publish(rustix::io::Errno),
}

/// A program as native code. Copies share it.
#[derive(Clone)]
pub struct Compiled {
    parts: Arc<Parts>,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Compiled({} bytes for {})", self.code_len(), self.parts.world.name)
    }
}

struct Parts {
    code: Code,
    /// Of the program nothing else is needed any more: names and source lines are for who reads refusals.
    data: Arc<Data>,
    world: World,
    entry_fuel: u32,
    /// What can go wrong, by the number that code returns less one; offsets and lengths are filled in when it has.
    faults: Vec<Fault>,
    stack_len: usize,
}

thread_local! {
    /// Memory for per-call data and the table's value, for the next call on this thread that needs some.
    static BUFFER: Cell<Vec<u64>> = const { Cell::new(Vec::new()) };
}

/// Compiles a program.
///
/// # Errors
///
/// When it is too large, or there is no code generator for this processor.
pub fn compile(verified: &Verified, options: Options) -> Result<Compiled, CompileError> {
    // Programs are others', and a code generator is large: should it panic, that is this program's end and not the server's.
    catch_unwind(AssertUnwindSafe(|| Generator::new(verified, options)?.compile()))
        .unwrap_or_else(|_| Err(CompileError::Generator("it has panicked".to_owned())))
}

impl Compiled {
    /// Runs the program.
    ///
    /// # Errors
    ///
    /// When the call does not fit it, or it is stopped.
    pub fn run(&self, call: &mut Call<'_>) -> Outcome {
        let parts = &*self.parts;
        call.check(parts.data.data_len_min, &parts.world)?;
        call.charge(parts.entry_fuel).map_err(|what| Fault { at: 0, what })?;
        if parts.data.per_call.is_empty() && parts.world.table_value_len == 0 {
            return parts.execute(call, ptr::null_mut(), ptr::null_mut());
        }
        parts.execute_with_buffer(call)
    }

    /// Bytes of native code.
    #[must_use]
    pub fn code_len(&self) -> usize {
        self.parts.code.len()
    }

    /// Bytes of native stack that a call needs, at most; helpers come on top.
    #[must_use]
    pub fn stack_len(&self) -> usize {
        self.parts.stack_len
    }
}

impl Parts {
    /// Per-call data as the program has it, and a value of zeroes.
    fn prepare(&self, buffer: &mut Vec<u64>) -> (NonNull<u8>, NonNull<u8>) {
        let per_call = &self.data.per_call;
        let (per_call_words, value_len) = (per_call.len().div_ceil(8), self.world.table_value_len as usize);
        buffer.clear();
        buffer.resize(per_call_words + value_len.div_ceil(8), 0);
        let (words, value) = buffer.split_at_mut(per_call_words);
        for (word, bytes) in words.iter_mut().zip(per_call.chunks(8)) {
            let mut whole = [0; 8];
            for (to, from) in whole.iter_mut().zip(bytes) {
                *to = *from;
            }
            *word = u64::from_ne_bytes(whole);
        }
        (NonNull::from(words).cast(), NonNull::from(value).cast())
    }

    /// Apart from [`Self::execute`], so that calls which need no buffer do not pay for it.
    #[inline(never)]
    fn execute_with_buffer(&self, call: &mut Call<'_>) -> Outcome {
        // A call within a call, by way of a table, finds none and makes one.
        let mut buffer = BUFFER.take();
        let (per_call, table_value) = self.prepare(&mut buffer);
        let outcome = self.execute(call, per_call.as_ptr(), table_value.as_ptr());
        BUFFER.set(buffer);
        outcome
    }

    /// A part of its callers: the way in and out is what a short program costs.
    #[inline(always)]
    fn execute(&self, call: &mut Call<'_>, per_call: *mut u8, table_value: *mut u8) -> Outcome {
        let data_len = call.data.len();
        let data = machine::beginning(call.data.as_ptr(), data_len);
        let scratch = machine::beginning(call.scratch.as_mut_ptr(), call.scratch.len()).cast_mut();
        let per_call = machine::beginning(per_call, self.data.per_call.len()).cast_mut();
        let table_value_len = self.world.table_value_len as usize;
        let table_value = machine::beginning(table_value, table_value_len).cast_mut();
        let mut machine = Machine {
            fuel: call.fuel.into(),
            fault: 0,
            fault_offset: 0,
            fault_len: 0,
            frame: ptr::null_mut(),
            context: call.context.as_mut_ptr().cast(),
            data,
            data_len,
            scratch,
            per_call,
            table_value,
            table_value_len,
            table: &call.table,
            log: &call.log,
            stack: MaybeUninit::uninit(),
        };
        let function = self.code.first();
        // SAFETY: the code is a verified program's. It touches what the machine points to, all of which is alive until it returns and borrowed by
        // nobody else: the call's memory by `call`, the buffers by who called us. Their lengths are those that the code was
        // compiled for (`Call::check`) or that the machine says.
        let returned = unsafe { function(&raw mut machine, 0, 0, 0, 0, 0) };
        call.fuel = machine.fuel as u32;
        match returned.fault.checked_sub(1) {
            None => Ok(returned.result),
            Some(number) => Err(self.fault(number, &machine).into()),
        }
    }

    #[cold]
    fn fault(&self, number: u64, machine: &Machine<'_>) -> Fault {
        let unknown = Fault { at: 0, what: FaultKind::OutOfFuel };
        let mut fault = self.faults.get(number as usize).copied().unwrap_or(unknown);
        match &mut fault.what {
            FaultKind::OutOfBounds { region, offset, len }
            | FaultKind::ProofBroken { region, offset, len } => {
                *offset = place(*region, machine.fault_offset);
                *len = u32::try_from(machine.fault_len).unwrap_or(u32::MAX);
            }
            FaultKind::Misaligned { region, offset } => *offset = place(*region, machine.fault_offset),
            FaultKind::RangeTooLong { len, .. } => *len = machine.fault_len,
            FaultKind::OutOfFuel | FaultKind::Unproven(_) => {}
        }
        fault
    }
}

/// An offset as people see it: in a frame of the stack it is counted from the end.
fn place(region: Region, offset: u64) -> i64 {
    match region {
        Region::Stack => offset.wrapping_sub(FRAME_LEN as u64) as i64,
        _ => offset as i64,
    }
}

/// Makes code of a program.
struct Generator<'a> {
    verified: &'a Verified,
    options: Options,
    optimising: OwnedTargetIsa,
    /// The same without optimisation, for what would take too long, or too much of the stack.
    plain: OwnedTargetIsa,
    builder: FunctionBuilderContext,
    faults: Vec<Fault>,
    small: Small,
}

/// A function's code.
struct Generated {
    bytes: Vec<u8>,
    calls: Vec<Link>,
    /// Bytes of its native frame.
    frame_len: usize,
}

impl<'a> Generator<'a> {
    fn new(verified: &'a Verified, options: Options) -> Result<Self, CompileError> {
        let variants = verified.variants().iter();
        let lens = variants.filter_map(|variant| verified.program().functions().get(variant.function));
        if lens.map(|function| function.len()).sum::<usize>() > TRANSLATED_MAX {
            return Err(CompileError::TooLarge {
                limit: "instructions in all variants",
                max: TRANSLATED_MAX,
            });
        }
        Ok(Self {
            verified,
            options,
            optimising: processor("speed")?,
            plain: processor("none")?,
            builder: FunctionBuilderContext::new(),
            faults: Vec::new(),
            small: Small::new(),
        })
    }

    fn compile(mut self) -> Result<Compiled, CompileError> {
        self.keep_small();
        let mut image = Image::default();
        let mut frames = Vec::with_capacity(self.verified.variants().len());
        for number in 0..self.verified.variants().len() {
            let generated = self.generate(number)?;
            frames.push(generated.frame_len);
            image.add(&generated.bytes, generated.calls)?;
        }
        let stack_len = size_of::<Machine<'_>>() + self.deepest(&frames);
        if stack_len > STACK_LEN_MAX {
            return Err(CompileError::TooLarge { limit: "bytes of native stack", max: STACK_LEN_MAX });
        }
        let world = *self.verified.world();
        let parts = Parts {
            code: image.finish()?,
            data: Arc::clone(self.verified.program().data()),
            world,
            entry_fuel: self.verified.program().entry_fuel(),
            faults: self.faults,
            stack_len,
        };
        Ok(Compiled { parts: Arc::new(parts) })
    }

    /// Translates the functions that others may be given as part of themselves.
    fn keep_small(&mut self) {
        for number in 1..self.verified.variants().len() {
            let small =
                self.function_of(number).filter(|function| is_small(self.verified.program(), function));
            if let Some(len) = small.map(Function::len).filter(|len| self.small.has_room(*len)) {
                let function = self.translate(number);
                self.small.keep(number, function, len);
            }
        }
    }

    /// The function that a variant is of.
    fn function_of(&self, number: usize) -> Option<&'a Function> {
        let variant = self.verified.variants().get(number)?;
        self.verified.program().functions().get(variant.function)
    }

    /// The code of a variant: optimised, unless that is not worth it.
    fn generate(&mut self, number: usize) -> Result<Generated, CompileError> {
        let known_faults = self.faults.len();
        if self.function_of(number).is_some_and(|function| is_optimised(self.verified.program(), function)) {
            let mut context = Context::for_function(self.translated(number));
            let inlined = context.inline(&mut self.small);
            match inlined.and_then(|_| emit(context, &*self.optimising)) {
                Ok(generated) if generated.frame_len <= STACK_LEN_MAX / FRAMES_MAX / 2 => {
                    return Ok(generated);
                }
                // Values that are used again far away may fill the stack, and code may be larger than there is room for.
                Ok(_) | Err(CodegenError::CodeTooLarge | CodegenError::ImplLimitExceeded) => {}
                Err(error) => return Err(CompileError::Generator(error.to_string())),
            }
            self.faults.truncate(known_faults);
        }
        let context = Context::for_function(self.translated(number));
        emit(context, &*self.plain).map_err(|error| match error {
            CodegenError::CodeTooLarge | CodegenError::ImplLimitExceeded => {
                CompileError::TooLarge { limit: "instructions in a function", max: OPTIMISED_MAX }
            }
            error => CompileError::Generator(error.to_string()),
        })
    }

    /// A variant for the code generator, which may have been translated before.
    fn translated(&mut self, number: usize) -> ir::Function {
        match self.small.get(number) {
            Some(known) => known.clone(),
            None => self.translate(number),
        }
    }

    /// Translates a variant. That is the same whether it will be optimised or not.
    fn translate(&mut self, number: usize) -> ir::Function {
        let mut function = ir::Function::with_name_signature(
            ir::UserFuncName::user(0, number as u32),
            function::signature(self.optimising.default_call_conv()),
        );
        function::translate(
            function::Source { verified: self.verified, options: self.options, number },
            self.optimising.frontend_config(),
            &mut function,
            &mut self.builder,
            &mut self.faults,
        );
        function
    }

    /// The most that the native frames of functions that call each other take. Calls do not recurse, so a function calls
    /// only what comes to rest after as many rounds as there are frames.
    fn deepest(&self, frames: &[usize]) -> usize {
        let variants = self.verified.variants();
        let mut below = vec![0usize; frames.len()];
        for _ in 0..FRAMES_MAX {
            let before = below.clone();
            for (below, variant) in below.iter_mut().zip(variants) {
                let callees = variant
                    .calls
                    .values()
                    .filter_map(|callee| Some(before.get(*callee)?.saturating_add(*frames.get(*callee)?)));
                *below = callees.max().unwrap_or(0);
            }
            if before == below {
                break;
            }
        }
        let first = frames.first().zip(below.first());
        first.map_or(0, |(own, below)| own.saturating_add(*below))
    }
}

/// Makes code of a function.
fn emit(mut context: Context, isa: &dyn TargetIsa) -> Result<Generated, CodegenError> {
    let compiled = context.compile(isa, &mut ControlPlane::default()).map_err(|error| error.inner)?;
    let frame_len = compiled.buffer.frame_layout().map_or(usize::MAX, |layout| {
        // What was pushed before: the return address and the caller's frame pointer.
        layout.frame_to_fp_offset as usize + 16
    });
    let bytes = compiled.code_buffer().to_vec();
    let relocations: Vec<_> = compiled.buffer.relocs().to_vec();
    let calls = relocations
        .into_iter()
        .map(|relocation| {
            let FinalizedRelocTarget::ExternalName(ir::ExternalName::User(name)) = relocation.target else {
                return Err(CodegenError::Unsupported("a link to elsewhere".to_owned()));
            };
            Ok(Link {
                offset: relocation.offset as usize,
                kind: relocation.kind,
                target: context.func.params.user_named_funcs()[name].index as usize,
                addend: relocation.addend,
            })
        })
        .collect::<Result<_, _>>()?;
    Ok(Generated { bytes, calls, frame_len })
}

/// Whether optimising a function takes a time that somebody would wait for.
fn is_optimised(program: &Program, function: &Function) -> bool {
    // How many more back-edges lead over an instruction than over the one before it.
    let mut steps = vec![0isize; function.len() + 1];
    for at in function.begin..function.end {
        let target = program.instructions().get(at).and_then(Instruction::target);
        if let Some(target) = target.filter(|target| (function.begin..=at).contains(target)) {
            steps[target - function.begin] += 1;
            steps[at + 1 - function.begin] -= 1;
        }
    }
    let nested = steps.into_iter().scan(0, |nested, step| {
        *nested += step;
        Some(*nested)
    });
    function.len() <= OPTIMISED_MAX && nested.max().is_none_or(|nested| nested <= NESTED_MAX as isize)
}

/// The processor that we run on.
fn processor(opt_level: &str) -> Result<OwnedTargetIsa, CompileError> {
    let mut flags = settings::builder();
    let verify = if cfg!(debug_assertions) { "true" } else { "false" };
    let wanted = [
        ("opt_level", opt_level),
        ("enable_verifier", verify),
        // Nothing unwinds through generated code.
        ("unwind_info", "false"),
        // A frame that is larger than a page touches each, so that the end of a stack is not stepped over.
        ("enable_probestack", "true"),
        ("probestack_strategy", "inline"),
    ];
    for (name, value) in wanted {
        flags.set(name, value).map_err(|error| CompileError::Generator(error.to_string()))?;
    }
    let native = cranelift_native::builder().map_err(|reason| CompileError::Processor(reason.to_owned()))?;
    native.finish(settings::Flags::new(flags)).map_err(|error| CompileError::Processor(error.to_string()))
}

#[cfg(test)]
mod tests;
