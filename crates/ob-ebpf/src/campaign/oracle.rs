//! What an accepted program may not do, whatever it is called with.

use std::fmt;

use crate::call::{CallError, Fault, FaultKind, Outcome};
use crate::campaign::input::{Input, Machines};
#[cfg(feature = "compiler")]
use crate::compiler;
use crate::interpreter::{Observer, Value};
use crate::isa::{Callee, Instruction, Register};
use crate::verdict::{Access, Bounds, Variant, Verified};
use crate::verifier::States;
use crate::world::{Argument, Helper, Region};

/// Something that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The seed that repeats it.
    pub seed: u64,
    /// What.
    pub breach: Breach,
    /// The hook that the program was made for.
    pub world: &'static str,
    /// Whether it was accepted where no check may be left.
    pub is_strict: bool,
    /// The program, shrunk.
    pub text: String,
    /// What it was called with.
    pub input: String,
}

/// How an accepted program, or what runs it, broke its promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breach {
    /// It did what no accepted program does.
    Violation(Fault),
    /// An access that was proven to be in bounds is not.
    Proven(Fault),
    /// It touched memory, or called, where that was said to be out of reach, or to be other memory.
    Elsewhere {
        /// The instruction.
        at: usize,
    },
    /// Registers held what the verifier has ruled out.
    RuledOut {
        /// The instruction.
        at: usize,
        /// What was known there, and what was so.
        what: String,
    },
    /// Compiled code did not do what the interpreter did.
    Compiled(String),
    /// The same program got two verdicts.
    Verdicts,
    /// The verifier has worked for longer than it may.
    Unbounded {
        /// Instructions that it has interpreted.
        steps: u64,
    },
    /// Something of ours has panicked.
    Panicked,
}

impl Breach {
    /// Whether another is the same sort of thing, though elsewhere.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, breach, world, is_strict, text, input } = self;
        let strictly = if *is_strict { ", strictly" } else { "" };
        writeln!(f, "seed {seed}: {breach:?}\nfor {world}{strictly}, with {input}\n{text}")
    }
}

/// Calls a program in the interpreter.
pub(super) fn interpret(
    machines: &mut Machines,
    verified: &Verified,
    states: Option<&States>,
    input: &Input,
) -> Result<Outcome, Breach> {
    let (program, world) = (verified.program(), verified.world());
    let outcome = if states.is_some() {
        let mut watch = Watch::new(verified, states, input);
        let outcome = machines.call(world, input, |interpreter, call| {
            interpreter.run_observed(program, world, call, &mut watch)
        });
        if let Some(breach) = watch.breach {
            return Err(breach);
        }
        outcome
    } else {
        machines.call(world, input, |interpreter, call| interpreter.run(program, world, call))
    };
    let Err(CallError::Fault(fault)) = outcome else { return Ok(outcome) };
    match fault.what {
        FaultKind::Unproven(_) | FaultKind::ProofBroken { .. } => Err(Breach::Violation(fault)),
        FaultKind::OutOfBounds { .. } | FaultKind::RangeTooLong { .. } => {
            // Which variant of the function it was is known by how it was called.
            let mut watch = Watch::new(verified, None, input);
            // What comes of it is known already.
            let _ = machines.call(world, input, |interpreter, call| {
                interpreter.run_observed(program, world, call, &mut watch)
            });
            match watch.variant() {
                Some(variant) if is_proven(variant, fault, &watch.registers) => Err(Breach::Proven(fault)),
                _ => Ok(outcome),
            }
        }
        FaultKind::OutOfFuel | FaultKind::Misaligned { .. } => Ok(outcome),
    }
}

/// Whether what failed was said to be proven, with what registers held then.
fn is_proven(variant: &Variant, fault: Fault, registers: &[Value; Register::COUNT]) -> bool {
    let is_proven = |access: &Access| access.bounds == Bounds::Proven;
    if let Some(access) = variant.accesses.get(&fault.at) {
        return is_proven(access);
    }
    match fault.what {
        FaultKind::RangeTooLong { argument, .. } => {
            let address = Register::new(argument).unwrap_or(Register::R0);
            variant.ranges.get(&(fault.at, address)).is_none_or(is_proven)
        }
        FaultKind::OutOfBounds { region, offset, len } => {
            // There may be another one in the same memory, with other bounds.
            let has_failed = |address: Register| match registers.get(address.index()..address.index() + 2) {
                Some([Value::Pointer(begin), Value::Number(of)]) => {
                    (begin.region, begin.offset, *of) == (region, offset, len.into())
                }
                _ => false,
            };
            let ranges = variant.ranges.iter().filter(|((at, _), _)| *at == fault.at);
            ranges.filter(|((_, address), _)| has_failed(*address)).any(|(_, access)| is_proven(access))
        }
        _ => false,
    }
}

/// Compares compiled code with the interpreter: with all checks first, so that code without them is only run where they have held.
#[cfg(feature = "compiler")]
pub(super) fn compiled(
    machines: &mut Machines,
    verified: &Verified,
    inputs: &[Input],
) -> Result<(), (Input, Breach)> {
    for keep_checks in [true, false] {
        let compiled = match compiler::compile(verified, compiler::Options { keep_checks }) {
            Ok(compiled) => compiled,
            Err(error) => {
                let breach = Breach::Compiled(error.to_string());
                return inputs.first().map_or(Ok(()), |input| Err((*input, breach)));
            }
        };
        for input in inputs {
            let (program, world) = (verified.program(), verified.world());
            let expected =
                machines.effects(world, input, |interpreter, call| interpreter.run(program, world, call));
            let effects = machines.effects(world, input, |_, call| compiled.run(call));
            if expected != effects {
                let breach = format!("checks kept {keep_checks}: {expected:x?}, compiled {effects:x?}");
                return Err((*input, Breach::Compiled(breach)));
            }
        }
    }
    Ok(())
}

/// Without a compiler there is nothing to compare.
#[cfg(not(feature = "compiler"))]
pub(super) fn compiled(
    _machines: &mut Machines,
    _verified: &Verified,
    _inputs: &[Input],
) -> Result<(), (Input, Breach)> {
    Ok(())
}

/// Follows which variant of which function is running, and compares what happens with what was said of it.
struct Watch<'a> {
    verified: &'a Verified,
    states: Option<&'a States>,
    data_len: usize,
    /// Variants under way, the running one last.
    chain: Vec<usize>,
    before: Option<(usize, Instruction)>,
    /// What they held before that instruction.
    registers: [Value; Register::COUNT],
    breach: Option<Breach>,
}

impl<'a> Watch<'a> {
    fn new(verified: &'a Verified, states: Option<&'a States>, input: &Input) -> Self {
        let data_len = input.data_len();
        Self {
            verified,
            states,
            data_len,
            chain: vec![0],
            before: None,
            registers: [Value::Uninitialised; Register::COUNT],
            breach: None,
        }
    }

    fn variant(&self) -> Option<&'a Variant> {
        self.verified.variants().get(*self.chain.last()?)
    }

    /// Whether an access is one that the verifier has seen.
    fn is_known(&self, at: usize, instruction: &Instruction, registers: &[Value; Register::COUNT]) -> bool {
        let Some(variant) = self.variant() else { return false };
        let is_there = |access: Option<&Access>, address: Register| {
            let (Some(access), Value::Pointer(pointer)) = (access, registers[address.index()]) else {
                // What is no pointer is a violation of its own.
                return access.is_some();
            };
            let Value::Pointer(own) = registers[Register::R10.index()] else { return false };
            let frame =
                if pointer.region == Region::Stack { own.frame.wrapping_sub(pointer.frame) } else { 0 };
            (access.region, access.frame) == (pointer.region, frame)
        };
        match *instruction {
            Instruction::Load { base, .. }
            | Instruction::Store { base, .. }
            | Instruction::Atomic { base, .. } => is_there(variant.accesses.get(&at), base),
            Instruction::Call { callee: Callee::Local(_) } => variant.calls.contains_key(&at),
            Instruction::Call { callee: Callee::Helper(number) } => {
                let signature = Helper::of_number(number).map(Helper::signature);
                let arguments = signature.map_or(&[][..], |signature| signature.arguments);
                arguments.iter().enumerate().all(|(number, argument)| {
                    let Some(address) = Register::new(number as u8 + 1) else { return true };
                    !matches!(argument, Argument::Read | Argument::Write)
                        || is_there(variant.ranges.get(&(at, address)), address)
                })
            }
            _ => true,
        }
    }
}

impl Observer for Watch<'_> {
    fn before(&mut self, at: usize, registers: &[Value; Register::COUNT], _fuel: u32) {
        match self.before {
            Some((called, Instruction::Call { callee: Callee::Local(_) })) => {
                let callee = self.variant().and_then(|variant| variant.calls.get(&called));
                self.chain.push(callee.copied().unwrap_or(usize::MAX));
            }
            Some((_, Instruction::Exit)) => {
                self.chain.pop();
            }
            _ => {}
        }
        let instruction = self.verified.program().instructions().get(at).copied();
        self.before = instruction.map(|instruction| (at, instruction));
        self.registers = *registers;
        let (Some(states), Some(instruction), None) = (self.states, instruction, &self.breach) else {
            return;
        };
        if !self.is_known(at, &instruction, registers) {
            self.breach = Some(Breach::Elsewhere { at });
        }
        let variant = self.chain.last().copied().unwrap_or(usize::MAX);
        if let Err(what) = states.check((variant, at), registers, self.data_len) {
            self.breach = Some(Breach::RuledOut { at, what });
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::campaign::setting::Setting;
    use crate::{text, verifier};

    /// Of two ranges of a helper in the same memory one is proven and the other checked: it matters which of them fails.
    #[test]
    fn the_range_that_fails_is_the_one_that_was_proven_or_not() {
        let text = ".data_len_min 1\n r6 = *(u64 *)(r1 + 0)\n r1 = r6\n r2 = 1\n r3 = r6\n r3 += 8\n r4 = 2\n call ob_compare\n exit";
        let program = Arc::new(text::assemble(text).unwrap().program().unwrap());
        let Setting { world, options } = Setting::all().next().unwrap();
        let accepted = verifier::verify(&program, world, options).unwrap();
        let input = Input::given(&program, world, 1);
        let interpreted = |verified: &Verified| interpret(&mut Machines::new(), verified, None, &input);
        assert!(interpreted(&accepted.verified).is_ok());
        let mut variants = accepted.verified.variants().to_vec();
        for access in variants[0].ranges.values_mut() {
            access.bounds = if access.bounds == Bounds::Proven { Bounds::Checked } else { Bounds::Proven };
        }
        let wrong = Verified::new(program, *world, variants);
        assert!(matches!(interpreted(&wrong), Err(Breach::Proven(_))));
    }
}
