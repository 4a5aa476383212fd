//! The reference: runs a program without anybody's word on what it does.
//!
//! A value knows what it is: a number, or a pointer into a region at an offset. Every rule of `docs/programs.md` is checked
//! when an instruction is executed, so a program that does what it may not is stopped with [`FaultKind::Unproven`], and that is
//! how the verifier is tested: a verified program never is.
//!
//! ```text
//!   Program, World, Call ─▶ Interpreter ── instruction by instruction ──▶ Observer
//!                                │ registers: Value              memory: Memory, whose frames know what every byte is
//!                                ▼
//!                             Outcome
//! ```
//!
//! - At entry, `r1` is what [`Entry`] says, `r10` the end of the frame, and the other registers have no value. A function finds
//!   `r1` to `r5` of its caller and nothing else; its caller finds `r0` and its own `r6` to `r9` again.
//! - A pointer may be moved anywhere. What counts is where it is when it is used.
//! - A function may leave `r0` without a value, and may return a pointer; one into its own frame is no value for its caller. A program
//!   returns a number.
//! - A pointer into the frame of a function that has returned may lie somewhere, but not be used, nor loaded.

mod frame;
mod helping;
mod memory;
mod value;

use frame::{Frame, KEPT};
use helping::ARGUMENTS;
use memory::{Buffers, Memory};
pub use value::{Pointer, Value};

use crate::call::{Call, Fault, FaultKind, Outcome, Violation};
use crate::isa::{AluOp, AtomicOp, Callee, Instruction, Operand, Register, Size, Test, Wide, Width};
use crate::program::Program;
use crate::world::{Entry, Region, World};

/// Runs programs, one call at a time. It keeps its memory, so that a call allocates nothing.
pub struct Interpreter {
    buffers: Buffers,
}

/// What watches a program at work.
pub trait Observer {
    /// An instruction is about to be executed, with these registers and so much fuel.
    fn before(&mut self, at: usize, registers: &[Value; Register::COUNT], fuel: u32);
}

/// Nobody watches.
impl Observer for () {
    fn before(&mut self, _at: usize, _registers: &[Value; Register::COUNT], _fuel: u32) {}
}

impl Default for Interpreter {
    fn default() -> Self {
        Self::new()
    }
}

impl Interpreter {
    /// One that has run nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            buffers: Buffers {
                frames: Box::new(std::array::from_fn(|_| Frame::new())),
                per_call: Vec::new(),
                table_value: Vec::new(),
                moving: Vec::new(),
            },
        }
    }

    /// Runs a program.
    ///
    /// # Errors
    ///
    /// When the call does not fit it, or it is stopped.
    pub fn run(&mut self, program: &Program, world: &World, call: &mut Call<'_>) -> Outcome {
        self.run_observed(program, world, call, &mut ())
    }

    /// Runs a program while somebody watches.
    ///
    /// # Errors
    ///
    /// When the call does not fit it, or it is stopped.
    pub fn run_observed(
        &mut self,
        program: &Program,
        world: &World,
        call: &mut Call<'_>,
        observer: &mut impl Observer,
    ) -> Outcome {
        call.check(program.data_len_min(), world)?;
        let memory = Memory::new(program, world, call, &mut self.buffers);
        let registers = [Value::Uninitialised; Register::COUNT];
        let mut machine = Machine { program, memory, registers, at: 0 };
        let result = machine.execute(world.entry, observer);
        Ok(result.map_err(|what| Fault { at: machine.at, what })?)
    }
}

/// A call under way.
struct Machine<'m, 'c> {
    program: &'m Program,
    memory: Memory<'m, 'c>,
    registers: [Value; Register::COUNT],
    /// The instruction that is executed.
    at: usize,
}

/// Where a program goes on.
enum Next {
    Behind,
    At(usize),
    Done(u64),
}

fn unproven<T>(violation: Violation) -> Result<T, FaultKind> {
    Err(FaultKind::Unproven(violation))
}

impl Machine<'_, '_> {
    fn execute(&mut self, entry: Entry, observer: &mut impl Observer) -> Result<u64, FaultKind> {
        self.memory.call.charge(self.program.entry_fuel())?;
        self.memory.enter(0)?;
        self.set(Register::R10, Value::Pointer(self.memory.frame_end()));
        match entry {
            Entry::Context => self.set(Register::R1, Value::Pointer(Pointer::to(Region::Context))),
            Entry::Memory => {
                self.set(Register::R1, Value::Pointer(Pointer::to(Region::Scratch)));
                self.set(Register::R2, Value::Number(self.memory.call.scratch.len() as u64));
            }
        }
        loop {
            let Some(instruction) = self.program.instructions().get(self.at) else {
                return unproven(Violation::NoInstruction);
            };
            observer.before(self.at, &self.registers, self.memory.call.fuel);
            match self.step(instruction)? {
                Next::Behind => self.at += 1,
                Next::At(next) => self.at = next,
                Next::Done(result) => return Ok(result),
            }
        }
    }

    fn step(&mut self, instruction: &Instruction) -> Result<Next, FaultKind> {
        match *instruction {
            Instruction::Alu { width, op, to, from } => self.alu(width, op, to, from)?,
            Instruction::Negate { width, to } => {
                let number = self.number(to)?;
                self.set(to, Value::Number(AluOp::Sub.apply(width, 0, number)));
            }
            Instruction::Move { width: Width::W64, to, from } => self.set(to, self.operand(from)?),
            Instruction::Move { width: Width::W32, to, from } => {
                let number = self.number_operand(from)?;
                self.set(to, Value::Number(number & u64::from(u32::MAX)));
            }
            Instruction::MoveSigned { width, size, to, from } => {
                let number = sign_extend(size, self.number(from)?);
                // Added to zero, so that the width is respected.
                self.set(to, Value::Number(AluOp::Add.apply(width, 0, number)));
            }
            Instruction::Bytes { order, size, to } => {
                let number = self.number(to)?;
                self.set(to, Value::Number(order.apply(size, number)));
            }
            Instruction::LoadWide { to, value } => self.set(to, wide(value)),
            Instruction::Load { size, is_signed, to, base, offset } => {
                let value = match self.memory.load(self.address(base, offset)?, size)? {
                    Value::Number(number) if is_signed => Value::Number(sign_extend(size, number)),
                    value => value,
                };
                self.set(to, value);
            }
            Instruction::Store { size, base, offset, from } => {
                let value = self.operand(from)?;
                self.memory.store(self.address(base, offset)?, size, value)?;
            }
            Instruction::Atomic { width, op, base, offset, from } => {
                self.atomic(width, op, self.address(base, offset)?, from)?;
            }
            Instruction::Jump { target } => return self.jump(target),
            Instruction::Branch { width, test, left, right, target } => {
                if self.holds(width, test, left, right)? {
                    return self.jump(target);
                }
            }
            Instruction::Call { callee: Callee::Helper(number) } => {
                let result = helping::call(&mut self.memory, &self.registers, number)?;
                self.forget_arguments();
                self.set(Register::R0, result);
            }
            Instruction::Call { callee: Callee::Local(target) } => return self.enter(target),
            Instruction::Exit => return self.exit(),
        }
        Ok(Next::Behind)
    }

    fn alu(&mut self, width: Width, op: AluOp, to: Register, from: Operand) -> Result<(), FaultKind> {
        let result = match (self.value(to)?, self.operand(from)?) {
            (Value::Number(left), Value::Number(right)) => Value::Number(op.apply(width, left, right)),
            (left, right) => value::compute(width, op, left, right)?,
        };
        self.set(to, result);
        Ok(())
    }

    fn holds(&self, width: Width, test: Test, left: Register, right: Operand) -> Result<bool, FaultKind> {
        match (self.value(left)?, self.operand(right)?) {
            (Value::Number(left), Value::Number(right)) => Ok(test.holds(width, left, right)),
            (left, right) => value::compare(width, test, left, right),
        }
    }

    /// Four bytes of memory are one half of a register: the other does not count, and becomes zero.
    fn atomic(
        &mut self,
        width: Width,
        op: AtomicOp,
        address: Pointer,
        from: Register,
    ) -> Result<(), FaultKind> {
        let operand = self.number(from)?;
        let size = if width == Width::W32 { Size::B4 } else { Size::B8 };
        let (compute, fetch) = match op {
            AtomicOp::Add { fetch } => (AluOp::Add, fetch),
            AtomicOp::Or { fetch } => (AluOp::Or, fetch),
            AtomicOp::And { fetch } => (AluOp::And, fetch),
            AtomicOp::Xor { fetch } => (AluOp::Xor, fetch),
            AtomicOp::Exchange => {
                let before = self.memory.exchange(address, size, |_| operand)?;
                self.set(from, Value::Number(before));
                return Ok(());
            }
            AtomicOp::CompareExchange => {
                let expected = self.number(Register::R0)?;
                let exchange = |word| if Test::Equal.holds(width, word, expected) { operand } else { word };
                let before = self.memory.exchange(address, size, exchange)?;
                self.set(Register::R0, Value::Number(before));
                return Ok(());
            }
        };
        let before = self.memory.exchange(address, size, |word| compute.apply(width, word, operand))?;
        if fetch {
            self.set(from, Value::Number(before));
        }
        Ok(())
    }

    fn jump(&mut self, target: usize) -> Result<Next, FaultKind> {
        if target <= self.at {
            self.memory.call.charge(self.program.fuel(self.at, target))?;
        }
        Ok(Next::At(target))
    }

    fn enter(&mut self, target: usize) -> Result<Next, FaultKind> {
        self.memory.call.charge(self.program.fuel(self.at, target))?;
        let kept = KEPT.map(|register| self.registers[register.index()]);
        let return_to = self.at + 1;
        let frame = self.memory.enter(self.memory.depth + 1)?;
        (frame.kept, frame.return_to) = (kept, return_to);
        for register in KEPT {
            self.set(register, Value::Uninitialised);
        }
        self.set(Register::R0, Value::Uninitialised);
        self.set(Register::R10, Value::Pointer(self.memory.frame_end()));
        Ok(Next::At(target))
    }

    fn exit(&mut self) -> Result<Next, FaultKind> {
        let result = self.registers[Register::R0.index()];
        let Some(frame) = self.memory.leave() else {
            return match result {
                Value::Number(number) => Ok(Next::Done(number)),
                Value::Pointer(_) => unproven(Violation::PointerReturned),
                Value::Uninitialised => unproven(Violation::UninitialisedRegister(Register::R0)),
            };
        };
        let (kept, return_to) = (frame.kept, frame.return_to);
        if let Value::Pointer(pointer) = result
            && !self.memory.is_alive(&pointer)
        {
            self.set(Register::R0, Value::Uninitialised);
        }
        for (register, value) in KEPT.into_iter().zip(kept) {
            self.set(register, value);
        }
        self.forget_arguments();
        self.set(Register::R10, Value::Pointer(self.memory.frame_end()));
        Ok(Next::At(return_to))
    }

    fn forget_arguments(&mut self) {
        for register in ARGUMENTS {
            self.set(register, Value::Uninitialised);
        }
    }

    fn set(&mut self, register: Register, value: Value) {
        self.registers[register.index()] = value;
    }

    fn value(&self, register: Register) -> Result<Value, FaultKind> {
        match self.registers[register.index()] {
            Value::Uninitialised => unproven(Violation::UninitialisedRegister(register)),
            value => Ok(value),
        }
    }

    fn number(&self, register: Register) -> Result<u64, FaultKind> {
        match self.value(register)? {
            Value::Number(number) => Ok(number),
            _ => unproven(Violation::PointerAsNumber(register)),
        }
    }

    fn address(&self, base: Register, offset: i16) -> Result<Pointer, FaultKind> {
        match self.value(base)? {
            Value::Pointer(pointer) => Ok(pointer.moved(offset.into())),
            _ => unproven(Violation::NumberAsPointer(base)),
        }
    }

    fn operand(&self, operand: Operand) -> Result<Value, FaultKind> {
        match operand {
            Operand::Register(register) => self.value(register),
            Operand::Immediate(number) => Ok(Value::Number(i64::from(number) as u64)),
        }
    }

    fn number_operand(&self, operand: Operand) -> Result<u64, FaultKind> {
        match operand {
            Operand::Register(register) => self.number(register),
            Operand::Immediate(number) => Ok(i64::from(number) as u64),
        }
    }
}

fn wide(value: Wide) -> Value {
    let address = |region, offset: u32| Value::Pointer(Pointer::to(region).moved(offset.into()));
    match value {
        Wide::Number(number) => Value::Number(number),
        Wide::ReadOnly(offset) => address(Region::ReadOnly, offset),
        Wide::PerCall(offset) => address(Region::PerCall, offset),
    }
}

/// The lower bytes of a number, extended by their sign.
fn sign_extend(size: Size, number: u64) -> u64 {
    let above = 64 - size.bits();
    (((number << above) as i64) >> above) as u64
}

#[cfg(test)]
mod tests;
