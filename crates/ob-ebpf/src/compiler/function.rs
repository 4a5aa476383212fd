//! A variant of a function, translated: blocks, jumps, calls, fuel, and how a call ends early.
//!
//! A compiled function takes the [`Machine`](super::machine::Machine) and `r1` to `r5`, and returns `r0` and 0, or anything and the number of a fault. Who
//! gets a fault back returns it at once.

use std::collections::BTreeMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::I64;
use cranelift_codegen::ir::{
    self, AbiParam, AliasRegion, AliasRegionData, Block, ExtFuncData, ExternalName, FuncRef, InstBuilder,
    MemFlagsData, Signature, UserExternalName, Value,
};
use cranelift_codegen::isa::{CallConv, TargetFrontendConfig};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext, Variable};

use super::Options;
use super::blocks::{Blocks, Question, way};
use super::machine::{self, FieldOffset};
use crate::call::{Fault, FaultKind, Violation};
use crate::isa::{Callee, Instruction, Operand, Register, Test, Wide, Width};
use crate::plant::{Bug, is_planted};
use crate::program::{FRAME_LEN, Function};
use crate::verdict::{Comparison, Variant, Verified};
use crate::world::Entry;

/// The registers that arguments are in.
pub(super) const ARGUMENTS: [Register; 5] =
    [Register::R1, Register::R2, Register::R3, Register::R4, Register::R5];

/// Faults that leave a function by the same block. A block that thousands go to, or that is given values by them, takes the code generator
/// time that grows with the square of their number.
const LEAVING_MAX: usize = 64;

/// The alias region of the machine; those of [`Region`](crate::world::Region) follow.
const MACHINE_REGION: u32 = 0;
/// That of the machine's [`machine::FRAME`], which is nothing that the rest of the machine overlaps with: where a function is made part of
/// its caller, it gets fuel and frame without asking memory.
const FRAME_REGION: u32 = u32::MAX;

/// What is translated.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) verified: &'a Verified,
    pub(super) options: Options,
    /// Which variant.
    pub(super) number: usize,
}

/// How compiled functions are called.
pub(super) fn signature(convention: CallConv) -> Signature {
    let mut signature = Signature::new(convention);
    signature.params.extend([AbiParam::new(I64); 1 + ARGUMENTS.len()]);
    signature.returns.extend([AbiParam::new(I64); 2]);
    signature
}

/// Translates a variant. What may go wrong in it is added to `faults`.
pub(super) fn translate(
    source: Source<'_>,
    target: TargetFrontendConfig,
    function: &mut ir::Function,
    context: &mut FunctionBuilderContext,
    faults: &mut Vec<Fault>,
) {
    let mut builder = FunctionBuilder::new(function, context);
    let registers = std::array::from_fn(|_| builder.declare_var(I64));
    let fuel = builder.declare_var(I64);
    let entry = builder.create_block();
    builder.append_block_params_for_function_params(entry);
    builder.switch_to_block(entry);
    builder.seal_block(entry);
    let machine_region = alias_region(&mut builder, MACHINE_REGION, "machine");
    let machine = builder.block_params(entry).first().copied().unwrap_or_else(|| Value::from_u32(0));
    let mut translator = Translator {
        machine,
        context: machine,
        builder,
        source,
        registers,
        fuel,
        leaving: None,
        machine_region,
        callees: BTreeMap::new(),
        faults,
        is_open: true,
        denied: None,
    };
    let variant = source.verified.variants().get(source.number);
    let function = variant.and_then(|variant| source.verified.program().functions().get(variant.function));
    if let Some((variant, function)) = variant.zip(function) {
        translator.enter(entry);
        translator.translate(variant, function);
    } else {
        translator.end_unreached(0);
    }
    translator.finish_leaving();
    let Translator { mut builder, .. } = translator;
    builder.seal_all_blocks();
    builder.finalize(target);
}

pub(super) fn alias_region(
    builder: &mut FunctionBuilder<'_>,
    number: u32,
    description: &'static str,
) -> AliasRegion {
    let data = AliasRegionData { user_id: number, description: description.into() };
    builder.func.dfg.alias_regions.insert(data)
}

pub(super) struct Translator<'a, 'f> {
    pub(super) builder: FunctionBuilder<'f>,
    pub(super) source: Source<'a>,
    /// The address of the machine.
    pub(super) machine: Value,
    /// That of the context.
    pub(super) context: Value,
    registers: [Variable; Register::COUNT],
    fuel: Variable,
    /// Where faults go, and how many do so already.
    leaving: Option<(Block, usize)>,
    machine_region: AliasRegion,
    /// Functions that are called, by the number of the variant.
    callees: BTreeMap<usize, FuncRef>,
    faults: &'a mut Vec<Fault>,
    /// Whether the current block can still be added to.
    is_open: bool,
    /// What the last branch has asked, where the answer was no.
    denied: Option<(usize, Question)>,
}

impl Translator<'_, '_> {
    /// Gives registers and fuel their first values.
    fn enter(&mut self, entry: Block) {
        self.context = self.load_constant(machine::CONTEXT);
        if self.source.number == 0 {
            self.begin();
        } else {
            let arguments: Vec<Value> = self.builder.block_params(entry).iter().skip(1).copied().collect();
            for (register, argument) in ARGUMENTS.into_iter().zip(arguments) {
                self.set(register, argument);
            }
        }
        self.reload_fuel();
        // The program's own frame is the first. Others begin where their callers' end.
        let frame = if self.source.number == 0 {
            self.builder.ins().iadd_imm_s(self.machine, i64::from(machine::STACK.0))
        } else {
            // Whoever needs it not, not even to compare what points to its callers' frames, does not pay for it.
            let flags = self.frame_flags();
            self.builder.ins().load(I64, flags, self.machine, machine::FRAME.0)
        };
        let end = self.builder.ins().iadd_imm_s(frame, FRAME_LEN as i64);
        self.set(Register::R10, end);
    }

    /// What a program begins with in its registers.
    fn begin(&mut self) {
        match self.source.verified.world().entry {
            Entry::Context => self.set(Register::R1, self.context),
            Entry::Memory => {
                let scratch = self.load_constant(machine::SCRATCH);
                let len = self.number(self.source.verified.world().scratch_len.into());
                self.set(Register::R1, scratch);
                self.set(Register::R2, len);
            }
        }
    }

    fn translate(&mut self, variant: &Variant, function: &Function) {
        let program = self.source.verified.program();
        let instructions = program.instructions();
        let blocks = Blocks::new(&mut self.builder, instructions, variant, function);
        for at in function.begin..function.end {
            if let Some(begin) = blocks.begin(at) {
                if self.is_open {
                    self.builder.ins().jump(begin.block, &[]);
                }
                self.builder.switch_to_block(begin.block);
                if begin.is_only_ahead {
                    self.builder.seal_block(begin.block);
                }
                self.is_open = true;
                self.denied = self.denied.filter(|(branch, _)| branch + 1 == at && begin.ways == 1);
            }
            let Some(instruction) = instructions.get(at).filter(|_| self.is_open) else { continue };
            self.instruction(variant, &blocks, at, instruction);
        }
        if self.is_open {
            // A program's functions end with a jump or an exit.
            self.end_unreached(function.end);
        }
    }

    fn instruction(&mut self, variant: &Variant, blocks: &Blocks, at: usize, instruction: &Instruction) {
        match *instruction {
            Instruction::Alu { width, op, to, from } => self.alu(width, op, to, from),
            Instruction::Negate { width, to } => self.negate(width, to),
            Instruction::Move { width, to, from } => self.move_to(width, to, from),
            Instruction::MoveSigned { width, size, to, from } => self.move_signed(width, size, to, from),
            Instruction::Bytes { order, size, to } => self.turn_bytes(order, size, to),
            Instruction::LoadWide { to, value } => self.load_wide(to, value),
            Instruction::Load { .. } | Instruction::Store { .. } | Instruction::Atomic { .. } => {
                match variant.accesses.get(&at) {
                    Some(access) => self.access(at, instruction, *access),
                    None => self.end_unreached(at),
                }
            }
            Instruction::Jump { target } => self.jump(blocks, at, target),
            Instruction::Branch { width, test, left, right, .. } => {
                let comparison = variant.comparisons.get(&at).copied();
                self.branch(variant, blocks, at, (width, test, left, right), comparison);
            }
            Instruction::Call { callee: Callee::Helper(number) } => self.help(variant, at, number),
            Instruction::Call { callee: Callee::Local(target) } => match variant.calls.get(&at) {
                Some(callee) if *callee < self.source.verified.variants().len() => {
                    self.call(at, target, *callee);
                }
                _ => self.end_unreached(at),
            },
            Instruction::Exit => {
                self.store_fuel();
                let (result, no_fault) = (self.get(Register::R0), self.number(0));
                self.builder.ins().return_(&[result, no_fault]);
                self.is_open = false;
            }
        }
    }

    fn load_wide(&mut self, to: Register, value: Wide) {
        let value = match value {
            Wide::Number(number) => self.number(number),
            Wide::ReadOnly(offset) => {
                let begin = self.read_only();
                self.builder.ins().iadd_imm_s(begin, i64::from(offset))
            }
            Wide::PerCall(offset) => {
                let begin = self.load_constant(machine::PER_CALL);
                self.builder.ins().iadd_imm_s(begin, i64::from(offset))
            }
        };
        self.set(to, value);
    }

    fn branch(
        &mut self,
        variant: &Variant,
        blocks: &Blocks,
        at: usize,
        (width, test, left, right): (Width, Test, Register, Operand),
        comparison: Option<Comparison>,
    ) {
        let in_register = match right {
            Operand::Register(right) => Some(self.get(right)),
            Operand::Immediate(_) => None,
        };
        let question =
            Question { width, test, left: self.get(left), right: (right, in_register), comparison };
        if self.denied.is_some_and(|(_, denied)| denied.is_same(&question)) {
            return;
        }
        let holds = match comparison {
            None => self.test(width, test, left, right),
            Some(comparison) => self.compare(comparison, test, left, right),
        };
        let ways = way(self.source.verified.program().instructions(), variant, at).zip(blocks.get(at + 1));
        let Some(((from, target), behind)) = ways else { return self.end_unreached(at) };
        let taken = self.builder.create_block();
        self.builder.ins().brif(holds, taken, &[], behind, &[]);
        self.builder.switch_to_block(taken);
        self.builder.seal_block(taken);
        self.jump(blocks, from, target);
        self.denied = Some((at, question));
    }

    fn jump(&mut self, blocks: &Blocks, at: usize, target: usize) {
        let Some(block) = blocks.get(target) else { return self.end_unreached(at) };
        let cost = self.source.verified.program().fuel(at, target);
        if cost > 0 {
            let cost = if is_planted(Bug::EdgeForLess) { cost.div_ceil(2) } else { cost };
            let cost = self.number(cost.into());
            self.charge(at, cost);
        }
        self.builder.ins().jump(block, &[]);
        self.is_open = false;
    }

    /// A local call. The callee's frame begins where ours ends.
    fn call(&mut self, at: usize, target: usize, callee: usize) {
        let cost = self.number(self.source.verified.program().fuel(at, target).into());
        self.charge(at, cost);
        self.store_fuel();
        let (frame, flags) = (self.get(Register::R10), self.frame_flags());
        self.builder.ins().store(flags, frame, self.machine, machine::FRAME.0);
        let function = self.callee(callee);
        let mut arguments = vec![self.machine];
        arguments.extend(ARGUMENTS.map(|register| self.get(register)));
        let call = self.builder.ins().call(function, &arguments);
        let (result, fault) = match *self.builder.inst_results(call) {
            [result, fault] => (result, fault),
            _ => return self.end_unreached(at),
        };
        let (failed, behind) = (self.builder.create_block(), self.builder.create_block());
        self.builder.set_cold_block(failed);
        self.builder.ins().brif(fault, failed, &[], behind, &[]);
        self.builder.switch_to_block(failed);
        self.builder.seal_block(failed);
        // Who found the fault has stored the fuel.
        self.builder.ins().return_(&[result, fault]);
        self.builder.switch_to_block(behind);
        self.builder.seal_block(behind);
        self.reload_fuel();
        self.set(Register::R0, result);
    }

    fn callee(&mut self, variant: usize) -> FuncRef {
        if let Some(known) = self.callees.get(&variant) {
            return *known;
        }
        let own = self.builder.func.signature.clone();
        let signature = self.builder.import_signature(own);
        let name = UserExternalName { namespace: 0, index: variant as u32 };
        let name = self.builder.func.declare_imported_user_function(name);
        let function = self.builder.import_function(ExtFuncData {
            name: ExternalName::user(name),
            signature,
            colocated: true,
            patchable: false,
        });
        self.callees.insert(variant, function);
        function
    }

    /// Takes fuel, or ends the call if there is less.
    pub(super) fn charge(&mut self, at: usize, cost: Value) {
        let fuel = self.builder.use_var(self.fuel);
        let is_less = self.builder.ins().icmp(IntCC::UnsignedLessThan, fuel, cost);
        self.fault_if(is_less, Fault { at, what: FaultKind::OutOfFuel }, None);
        let rest = self.builder.ins().isub(fuel, cost);
        self.builder.def_var(self.fuel, rest);
    }

    /// Ends the call with a fault if a condition holds. Where it was is told by an offset and a length.
    pub(super) fn fault_if(&mut self, condition: Value, fault: Fault, place: Option<(Value, Value)>) {
        let (failed, behind) = (self.builder.create_block(), self.builder.create_block());
        self.builder.set_cold_block(failed);
        self.builder.ins().brif(condition, failed, &[], behind, &[]);
        self.builder.switch_to_block(failed);
        self.builder.seal_block(failed);
        if let Some((offset, len)) = place {
            self.store_machine(machine::FAULT_OFFSET, offset);
            self.store_machine(machine::FAULT_LEN, len);
        }
        self.end(fault);
        self.builder.switch_to_block(behind);
        self.builder.seal_block(behind);
        self.is_open = true;
    }

    /// Ends the call: the verifier says that this is never reached.
    pub(super) fn end_unreached(&mut self, at: usize) {
        self.end(Fault { at, what: FaultKind::Unproven(Violation::NoInstruction) });
    }

    /// Ends the call. What there is to say of the fault goes by way of memory, not by values that a block is given.
    pub(super) fn end(&mut self, fault: Fault) {
        self.faults.push(fault);
        let number = self.number(self.faults.len() as u64);
        self.store_machine(machine::FAULT, number);
        self.store_fuel();
        let (block, count) = self.leaving.unwrap_or_else(|| {
            let block = self.builder.create_block();
            self.builder.set_cold_block(block);
            (block, 0)
        });
        self.builder.ins().jump(block, &[]);
        self.is_open = false;
        self.leaving = Some((block, count + 1));
        if count + 1 == LEAVING_MAX {
            self.finish_leaving();
        }
    }

    fn finish_leaving(&mut self) {
        let Some((block, _)) = self.leaving.take() else { return };
        self.builder.switch_to_block(block);
        self.builder.seal_block(block);
        let (nothing, number) = (self.number(0), self.load_machine(machine::FAULT));
        self.builder.ins().return_(&[nothing, number]);
    }

    pub(super) fn get(&mut self, register: Register) -> Value {
        self.builder.use_var(self.registers[register.index()])
    }

    pub(super) fn set(&mut self, register: Register, value: Value) {
        self.builder.def_var(self.registers[register.index()], value);
    }

    pub(super) fn number(&mut self, number: u64) -> Value {
        self.builder.ins().iconst(I64, number as i64)
    }

    fn store_fuel(&mut self) {
        let fuel = self.builder.use_var(self.fuel);
        self.store_machine(machine::FUEL, fuel);
    }

    fn reload_fuel(&mut self) {
        let fuel = self.load_machine(machine::FUEL);
        self.builder.def_var(self.fuel, fuel);
    }

    fn machine_flags(&self) -> MemFlagsData {
        MemFlagsData::trusted().with_alias_region(Some(self.machine_region))
    }

    fn frame_flags(&mut self) -> MemFlagsData {
        let region = alias_region(&mut self.builder, FRAME_REGION, "frame");
        MemFlagsData::trusted().with_alias_region(Some(region))
    }

    fn load_machine(&mut self, field: FieldOffset) -> Value {
        let flags = self.machine_flags();
        self.builder.ins().load(I64, flags, self.machine, field.0)
    }

    fn store_machine(&mut self, field: FieldOffset, value: Value) {
        let flags = self.machine_flags();
        self.builder.ins().store(flags, value, self.machine, field.0);
    }

    /// Loads what stays the same throughout a call, so that it may be loaded anywhere, and once.
    pub(super) fn load_constant(&mut self, field: FieldOffset) -> Value {
        let flags = self.machine_flags().with_readonly().with_can_move();
        self.builder.ins().load(I64, flags, self.machine, field.0)
    }

    /// The address of the program's read-only data, which stays where it is as long as the code that has it.
    pub(super) fn read_only(&mut self) -> Value {
        let bytes = self.source.verified.program().read_only();
        let begin = machine::beginning(bytes.as_ptr(), bytes.len());
        self.number(begin.expose_provenance() as u64)
    }
}
