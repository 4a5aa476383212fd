//! What touches memory: loads, stores, atomic operations, and the ranges that helpers are given.
//!
//! A check takes the offset of an address from where its region begins, without a sign, so that what lies before the region is far
//! behind it. Offsets below a limit are in bounds; the limit is as many bytes as the region has, less those of the access, plus
//! one, or 0 when the region is shorter.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::types::{I32, I64};
use cranelift_codegen::ir::{AbiParam, AtomicRmwOp, Endianness, InstBuilder, MemFlagsData, Signature, Value};

use super::function::{ARGUMENTS, Translator, alias_region};
use super::machine;
use crate::call::{Fault, FaultKind, Violation};
use crate::isa::{AtomicOp, Instruction, Register, Size, Width};
use crate::plant::{Bug, is_planted};
use crate::program::FRAME_LEN;
use crate::verdict::{Access, Bounds, Variant};
use crate::world::{Argument, FIELD_LEN, FieldKind, Helper, Region, Returns};

/// How a check is called when it fails.
#[derive(Clone, Copy)]
enum Check {
    /// It was left to be made.
    Needed,
    /// It was proven that it cannot fail.
    Kept,
}

impl Check {
    fn fault(self, at: usize, region: Region) -> Fault {
        let (offset, len) = (0, 0);
        let what = match self {
            Self::Needed => FaultKind::OutOfBounds { region, offset, len },
            Self::Kept => FaultKind::ProofBroken { region, offset, len },
        };
        Fault { at, what }
    }
}

/// A range that a helper is given.
struct Range {
    access: Access,
    address: Value,
    len: Value,
    /// Which argument the length is, and the most that it may be.
    len_argument: u8,
    len_max: u32,
}

impl Translator<'_, '_> {
    /// An instruction that touches memory.
    pub(super) fn access(&mut self, at: usize, instruction: &Instruction, access: Access) {
        match *instruction {
            Instruction::Load { size, is_signed, to, base, offset } => {
                let base = self.get(base);
                self.check_access(at, access, base, offset, size);
                self.load(size, is_signed, to, (base, offset), access);
            }
            Instruction::Store { size, base, offset, from } => {
                let base = self.get(base);
                self.check_access(at, access, base, offset, size);
                let value = self.operand(Width::W64, from);
                self.store(size, value, (base, offset), access);
            }
            Instruction::Atomic { width, op, base, offset, from } => {
                let size = if width == Width::W32 { Size::B4 } else { Size::B8 };
                let base = self.get(base);
                self.check_access(at, access, base, offset, size);
                let address = self.builder.ins().iadd_imm_s(base, i64::from(offset));
                self.check_alignment(at, access, address, size);
                self.operate(width, op, address, from, access);
            }
            _ => {}
        }
    }

    fn load(&mut self, size: Size, is_signed: bool, to: Register, place: (Value, i16), access: Access) {
        if access.region == Region::Context {
            let field = self.field(place.0, i64::from(place.1));
            return self.set(to, field);
        }
        let flags = self.flags(access.region);
        let (base, offset) = (place.0, i32::from(place.1));
        let ins = self.builder.ins();
        let value = match (size, is_signed) {
            (Size::B1, false) => ins.uload8(I64, flags, base, offset),
            (Size::B1, true) => ins.sload8(I64, flags, base, offset),
            (Size::B2, false) => ins.uload16(I64, flags, base, offset),
            (Size::B2, true) => ins.sload16(I64, flags, base, offset),
            (Size::B4, false) => ins.uload32(flags, base, offset),
            (Size::B4, true) => ins.sload32(flags, base, offset),
            (Size::B8, _) => ins.load(I64, flags, base, offset),
        };
        self.set(to, value);
    }

    /// A field of the context. Those that tell of data and scratch are not in memory: to put them there, and to take them out again, costs
    /// every call, and programs read few of them.
    fn field(&mut self, base: Value, offset: i64) -> Value {
        let world = self.source.verified.world();
        if self.builder.func.dfg.resolve_aliases(base) == self.context {
            let field = usize::try_from(offset).ok().and_then(|at| world.field(at));
            let told = field.and_then(|field| self.told(field.kind));
            return told.unwrap_or_else(|| self.load_field(base, offset));
        }
        // Behind a loop or in a function that is called nothing is known of the address here; where it is found out later on, only one of
        // these stays.
        let address = self.builder.ins().iadd_imm_s(base, offset);
        let at = self.builder.ins().isub(address, self.context);
        let mut value = self.load_field(base, offset);
        for (number, field) in (0..).zip(world.fields) {
            let Some(told) = self.told(field.kind) else { continue };
            let here = self.number(number * FIELD_LEN as u64);
            let is_here = self.builder.ins().icmp(IntCC::Equal, at, here);
            value = self.builder.ins().select(is_here, told, value);
        }
        value
    }

    fn load_field(&mut self, base: Value, offset: i64) -> Value {
        let flags = self.flags(Region::Context);
        self.builder.ins().load(I64, flags, base, offset as i32)
    }

    /// What a field is that is not in memory.
    fn told(&mut self, kind: FieldKind) -> Option<Value> {
        match kind {
            FieldKind::Number | FieldKind::Result => None,
            FieldKind::Data => Some(self.load_constant(machine::DATA)),
            FieldKind::DataLen => Some(self.load_constant(machine::DATA_LEN)),
            FieldKind::Scratch => Some(self.load_constant(machine::SCRATCH)),
            FieldKind::ScratchLen => Some(self.number(self.source.verified.world().scratch_len.into())),
        }
    }

    fn store(&mut self, size: Size, value: Value, place: (Value, i16), access: Access) {
        let flags = self.flags(access.region);
        let (base, offset) = (place.0, i32::from(place.1));
        let ins = self.builder.ins();
        match size {
            Size::B1 => ins.istore8(flags, value, base, offset),
            Size::B2 => ins.istore16(flags, value, base, offset),
            Size::B4 => ins.istore32(flags, value, base, offset),
            Size::B8 => ins.store(flags, value, base, offset),
        };
    }

    fn operate(&mut self, width: Width, op: AtomicOp, address: Value, from: Register, access: Access) {
        let flags = self.flags(access.region).with_aligned();
        let operand = self.get_narrow(width, from);
        let (operation, fetch) = match op {
            AtomicOp::Add { fetch } => (AtomicRmwOp::Add, fetch),
            AtomicOp::Or { fetch } => (AtomicRmwOp::Or, fetch),
            AtomicOp::And { fetch } => (AtomicRmwOp::And, fetch),
            AtomicOp::Xor { fetch } => (AtomicRmwOp::Xor, fetch),
            AtomicOp::Exchange => (AtomicRmwOp::Xchg, true),
            AtomicOp::CompareExchange => {
                let expected = self.get_narrow(width, Register::R0);
                let before = self.builder.ins().atomic_cas(flags, address, expected, operand);
                return self.set_wide(Register::R0, before);
            }
        };
        let kind = if width == Width::W32 { I32 } else { I64 };
        let before = self.builder.ins().atomic_rmw(kind, flags, operation, address, operand);
        if fetch {
            self.set_wide(from, before);
        }
    }

    /// A region's memory. Regions do not overlap, so what is written to one leaves the others as they were. Nothing of this may be moved
    /// to before its check.
    fn flags(&mut self, region: Region) -> MemFlagsData {
        let alias = alias_region(&mut self.builder, 1 + region as u32, region.name());
        let mut flags = MemFlagsData::new().with_notrap().with_alias_region(Some(alias));
        flags.set_endianness(Endianness::Little);
        flags
    }

    /// How an access is checked, if it is.
    fn check_of(&self, access: Access) -> Option<Check> {
        match access.bounds {
            Bounds::Checked => Some(Check::Needed),
            Bounds::Proven => self.source.options.keep_checks.then_some(Check::Kept),
        }
    }

    fn check_access(&mut self, at: usize, access: Access, base: Value, offset: i16, size: Size) {
        let Some(check) = self.check_of(access) else { return };
        let begin = self.begin_of(access);
        let address = self.builder.ins().iadd_imm_s(base, i64::from(offset));
        let offset = self.builder.ins().isub(address, begin);
        let limit = match self.source.verified.region_len(access.region) {
            Some(len) => self.number(machine::limit(len, size)),
            None => self.data_limit(size),
        };
        let is_outside = self.builder.ins().icmp(IntCC::UnsignedGreaterThanOrEqual, offset, limit);
        let len = self.number(size.bytes() as u64);
        self.fault_if(is_outside, check.fault(at, access.region), Some((offset, len)));
    }

    /// What offsets of accesses of a size have to be below in the data.
    fn data_limit(&mut self, size: Size) -> Value {
        let (len, less) = (self.load_constant(machine::DATA_LEN), size.bytes() as u64 - 1);
        let less = self.number(less);
        let is_shorter = self.source.verified.program().data_len_min() < size.bytes() as u32;
        let len = if is_shorter { self.builder.ins().umax(len, less) } else { len };
        self.builder.ins().isub(len, less)
    }

    /// Whatever is known of bounds, nobody has proven this, and some processors would trap.
    fn check_alignment(&mut self, at: usize, access: Access, address: Value, size: Size) {
        let mask = self.number(size.bytes() as u64 - 1);
        let below = self.builder.ins().band(address, mask);
        let begin = self.begin_of(access);
        let offset = self.builder.ins().isub(address, begin);
        let what = FaultKind::Misaligned { region: access.region, offset: 0 };
        let len = self.number(size.bytes() as u64);
        self.fault_if(below, Fault { at, what }, Some((offset, len)));
    }

    /// Where a region begins.
    pub(super) fn begin_of(&mut self, access: Access) -> Value {
        match access.region {
            Region::Context => self.context,
            Region::Data => self.load_constant(machine::DATA),
            Region::Scratch => self.load_constant(machine::SCRATCH),
            Region::Stack => {
                let end = self.get(Register::R10);
                let frames = i64::from(access.frame) + 1;
                self.builder.ins().iadd_imm_s(end, -(frames * FRAME_LEN as i64))
            }
            Region::ReadOnly => self.read_only(),
            Region::PerCall => self.load_constant(machine::PER_CALL),
            Region::TableValue => self.load_constant(machine::TABLE_VALUE),
        }
    }

    /// Calls a helper, in the order that [`crate::helpers`] says.
    pub(super) fn help(&mut self, variant: &Variant, at: usize, number: u32) {
        let world = self.source.verified.world();
        let Some(helper) = Helper::of_number(number).filter(|helper| world.has(*helper)) else {
            return self.end(Fault { at, what: FaultKind::Unproven(Violation::NoHelper(number)) });
        };
        let Some(ranges) = self.ranges(variant, at, helper) else { return self.end_unreached(at) };
        for range in &ranges {
            self.check_range_len(at, helper, range);
        }
        let mut cost = self.number(helper.signature().fuel.into());
        for range in &ranges {
            let three = self.number(3);
            let eights = self.builder.ins().ushr(range.len, three);
            cost = self.builder.ins().iadd(cost, eights);
        }
        self.charge(at, cost);
        for range in &ranges {
            self.check_range(at, range);
        }
        if let Returns::Number { min, max } = helper.signature().returns
            && min == max
            && is_planted(Bug::HelperLeftOut)
        {
            let known = self.number(min as u64);
            return self.set(Register::R0, known);
        }
        let count = helper.signature().arguments.len();
        let mut signature = Signature::new(self.builder.func.signature.call_conv);
        signature.params.extend(vec![AbiParam::new(I64); 1 + count]);
        signature.returns.push(AbiParam::new(I64));
        let signature = self.builder.import_signature(signature);
        let mut arguments = vec![self.machine];
        for register in ARGUMENTS.into_iter().take(count) {
            arguments.push(self.get(register));
        }
        let address = self.number(machine::address_of(helper) as u64);
        let call = self.builder.ins().call_indirect(signature, address, &arguments);
        if let Some(result) = self.builder.inst_results(call).first().copied() {
            self.set(Register::R0, result);
        }
    }

    /// The ranges of a call, if all of them are known.
    fn ranges(&mut self, variant: &Variant, at: usize, helper: Helper) -> Option<Vec<Range>> {
        let arguments = helper.signature().arguments;
        let mut ranges = Vec::new();
        for (place, argument) in arguments.iter().enumerate() {
            if !matches!(argument, Argument::Read | Argument::Write) {
                continue;
            }
            let register = *ARGUMENTS.get(place)?;
            let Some(Argument::Len { max }) = arguments.get(place + 1).copied() else { return None };
            ranges.push(Range {
                access: *variant.ranges.get(&(at, register))?,
                address: self.get(register),
                len: self.get(*ARGUMENTS.get(place + 1)?),
                len_argument: place as u8 + 1,
                len_max: max,
            });
        }
        Some(ranges)
    }

    fn check_range_len(&mut self, at: usize, helper: Helper, range: &Range) {
        let Some(check) = self.check_of(range.access) else { return };
        let fault = match check {
            Check::Needed => {
                let (argument, max) = (range.len_argument, range.len_max);
                Fault { at, what: FaultKind::RangeTooLong { helper, argument, len: 0, max } }
            }
            Check::Kept => check.fault(at, range.access.region),
        };
        let max = self.number(range.len_max.into());
        let is_longer = self.builder.ins().icmp(IntCC::UnsignedGreaterThan, range.len, max);
        let begin = self.begin_of(range.access);
        let offset = self.builder.ins().isub(range.address, begin);
        self.fault_if(is_longer, fault, Some((offset, range.len)));
    }

    /// A range may have no bytes; then it may begin where the region ends. Its length was checked, so that the sum is what it seems where the
    /// offset is not behind the region.
    fn check_range(&mut self, at: usize, range: &Range) {
        let Some(check) = self.check_of(range.access) else { return };
        let region = range.access.region;
        let begin = self.begin_of(range.access);
        let offset = self.builder.ins().isub(range.address, begin);
        let region_len = match self.source.verified.region_len(region) {
            Some(len) => self.number(len as u64),
            None => self.load_constant(machine::DATA_LEN),
        };
        let is_behind = self.builder.ins().icmp(IntCC::UnsignedGreaterThan, offset, region_len);
        let end = self.builder.ins().iadd(offset, range.len);
        let ends_behind = self.builder.ins().icmp(IntCC::UnsignedGreaterThan, end, region_len);
        let is_outside = self.builder.ins().bor(is_behind, ends_behind);
        self.fault_if(is_outside, check.fault(at, region), Some((offset, range.len)));
    }
}
