//! Idioms of the stack, of tables, helpers and atomic operations.

use crate::campaign::generate::{Kind, SLOTS, Writer, register};
use crate::campaign::idioms::OFF;
use crate::isa::{AluOp, AtomicOp, Callee, Instruction, Operand, Register, Size, Test, Wide, Width};
use crate::world::{Argument, Helper, Region, Returns};

impl Writer {
    /// Spills and fills, whole and in parts.
    pub(super) fn stack(&mut self) {
        let slot = self.random.below(SLOTS);
        let offset = -8 * (slot as i16 + 1);
        match self.random.below(8) {
            0..=2 => self.spill(slot),
            3 | 4 => {
                let kind = self.kinds.slots[slot];
                if kind != Kind::Nothing || self.random.once_in(8) {
                    let to = self.free();
                    self.load(Size::B8, false, to, Register::R10, offset);
                    self.set_kind(to, kind);
                }
            }
            5 => {
                let (size, by) = (self.random.of(Size::ALL), self.random.of([0, 0, 1, 4, 7, -4]));
                let from = self.operand();
                self.store(size, Register::R10, (offset + by).min(-(size.bytes() as i16)), from);
                // What was there before may be looked for all the same.
                if self.kinds.slots[slot] != Kind::Number && self.random.below(3) > 0 {
                    self.kinds.slots[slot] = Kind::Nothing;
                }
            }
            6 => {
                let (size, to) = (self.random.of(Size::ALL), self.free());
                if self.kinds.slots[slot].is_number() {
                    let is_signed = self.random.once_in(2);
                    self.load(size, is_signed, to, Register::R10, offset);
                }
            }
            _ => self.lent(),
        }
    }

    /// What the caller has lent: pointers and numbers in its frame, read and written.
    pub(super) fn lent(&mut self) {
        let is_lent = |kind| matches!(kind, Kind::Pointer { region: Region::Stack, frame: 1.., .. });
        let Some(lent) = self.pick(is_lent) else { return };
        let Kind::Pointer { offset: Some(offset), frame, .. } = self.kinds.registers[lent.index()] else {
            return;
        };
        let by = self.random.of([0, 0, 0, 0, 8, -8]);
        let slot = ((-(offset + by) / 8) - 1).clamp(0, SLOTS as i32 - 1) as usize;
        let known = if frame == 1 { self.kinds.lent[slot] } else { Kind::Nothing };
        match (known, self.random.below(4)) {
            (Kind::Nothing, _) | (_, 0) => {
                if let Some(from) = self.pick(|kind| kind != Kind::Nothing) {
                    self.store(Size::B8, lent, by as i16, Operand::Register(from));
                    self.kinds.lent[slot] = self.kinds.registers[from.index()];
                }
            }
            (_, 1) => {
                let (size, from) = (self.random.of(Size::ALL), self.operand());
                self.store(size, lent, by as i16, from);
                self.kinds.lent[slot] = Kind::Nothing;
            }
            (kind, _) => {
                let to = self.free();
                self.load(Size::B8, false, to, lent, by as i16);
                self.set_kind(to, kind);
            }
        }
    }

    /// The stack at an offset that is a number.
    pub(super) fn stack_by_number(&mut self) {
        let slots = 1 + self.random.below(SLOTS) as i32;
        for slot in 0..slots {
            if !self.kinds.slots[slot as usize].is_number() && self.random.below(8) > 0 {
                let value = Operand::Immediate(self.random.number() as i32);
                self.store(Size::B8, Register::R10, -8 * (slot as i16 + 1), value);
                self.kinds.slots[slot as usize] = Kind::Number;
            }
        }
        let size = self.random.of(Size::ALL);
        let mut index = self.number();
        if self.random.once_in(10) {
            let value = self.random.number();
            self.set_wide(index, Wide::Number(value));
        } else {
            let off = self.random.of(OFF);
            index = self.bound(index, 8 * slots - size.bytes() as i32 + off);
        }
        let at = self.free();
        if at == index {
            return;
        }
        self.copy(at, Register::R10);
        self.add_number(at, -8 * slots);
        let op = self.random.of([AluOp::Add, AluOp::Add, AluOp::Add, AluOp::Sub]);
        self.emit(Instruction::Alu { width: Width::W64, op, to: at, from: Operand::Register(index) });
        self.set_kind(at, Kind::Pointer { region: Region::Stack, frame: 0, offset: None });
        if self.random.once_in(2) {
            let from = self.operand();
            self.store(size, at, 0, from);
            let slot = self.random.below(SLOTS);
            if self.kinds.slots[slot] != Kind::Nothing {
                let to = self.free();
                self.load(Size::B8, false, to, Register::R10, -8 * (slot as i16 + 1));
                self.set_kind(to, self.kinds.slots[slot]);
            }
        } else {
            let to = self.free();
            self.load(size, false, to, at, 0);
        }
    }

    pub(super) fn lookup(&mut self) {
        if !self.world().has(Helper::TableLookup) && self.random.below(16) > 0 {
            return self.helper();
        }
        if !self.kinds.slots[0].is_number() || self.random.once_in(2) {
            let key = Operand::Immediate(self.random.below(9) as i32);
            self.store(Size::B8, Register::R10, -8, key);
            self.kinds.slots[0] = Kind::Number;
        }
        self.copy(Register::R1, Register::R10);
        self.add_number(Register::R1, -8);
        let len = self.random.of([8, 8, 8, 1, 0, 7, 9]);
        self.set_number(Register::R2, len);
        self.emit(Instruction::Call { callee: Callee::Helper(Helper::TableLookup.number()) });
        self.forget_arguments();
        self.set_kind(Register::R0, Kind::Nullable);
        let (mut tested, slot) = (Register::R0, self.random.below(SLOTS));
        match self.random.below(5) {
            0 => {
                tested = self.free();
                self.copy(tested, Register::R0);
            }
            1 => {
                self.spill_register(slot, Register::R0);
                tested = self.free();
                self.load(Size::B8, false, tested, Register::R10, -8 * (slot as i16 + 1));
            }
            2 => {
                let kept = register(6 + self.random.below(4));
                self.copy(kept, Register::R0);
                self.spill_register(slot, kept);
            }
            _ => {}
        }
        match self.random.below(8) {
            0 | 1 => {
                // Not yet: another lookup comes first, and a test of what that gave tells nothing of this.
                let kept = register(6 + self.random.below(4));
                self.copy(kept, Register::R0);
                if self.random.once_in(2) {
                    self.lookup();
                }
                return;
            }
            2 => {
                // What was found is used where it was, and forgotten elsewhere.
                let at = self.branch(Width::W64, Test::NotEqual, tested, Operand::Immediate(0));
                self.compute();
                self.land(at);
            }
            _ => self.leave_if(Width::W64, Test::Equal, tested, Operand::Immediate(0)),
        }
        let found = Kind::to(Region::TableValue);
        for kind in &mut self.kinds.registers {
            if *kind == Kind::Nullable {
                *kind = found;
            }
        }
        for kind in &mut self.kinds.slots {
            if *kind == Kind::Nullable {
                *kind = found;
            }
        }
        if let (Some(at), true) = (self.pick(|kind| kind == found), self.random.once_in(2)) {
            let (size, to) = (self.random.of(Size::ALL), self.free());
            let offset = self.random.of([0, 0, 16, 17, 20, 23]);
            self.load(size, false, to, at, offset);
        }
    }

    /// A range for a helper: an address in one register, and how many bytes in the next.
    fn range(&mut self, address: usize, is_write: bool) {
        let (address, len) = (register(address), register(address + 1));
        let most;
        if self.random.once_in(2) {
            let slots = 1 + self.random.below(SLOTS) as i32;
            for slot in 0..slots {
                if !is_write && !self.kinds.slots[slot as usize].is_number() {
                    self.store(Size::B8, Register::R10, -8 * (slot as i16 + 1), Operand::Immediate(slot));
                    self.kinds.slots[slot as usize] = Kind::Number;
                }
            }
            most = 8 * slots;
            self.copy(address, Register::R10);
            self.add_number(address, -most);
            if self.random.once_in(12) {
                let value = self.random.number();
                self.set_wide(len, Wide::Number(value));
                let from = Operand::Register(len);
                self.emit(Instruction::Alu { width: Width::W64, op: AluOp::Add, to: address, from });
            }
            if is_write {
                for kind in self.kinds.slots.iter_mut().take(slots as usize).filter(|kind| !kind.is_number())
                {
                    *kind = Kind::Nothing;
                }
            }
        } else {
            let Some((base, region)) = self.pointer() else { return };
            if is_write && !region.is_writable() && self.random.below(8) > 0 {
                return;
            }
            most = self.len_of(region);
            self.copy(address, base);
        }
        let most = most + self.random.of(OFF);
        if self.random.once_in(2) {
            self.set_number(len, most);
        } else if let Some(from) = self.pick(Kind::is_number) {
            self.copy(len, from);
            self.bound(len, most);
        }
    }

    pub(super) fn helper(&mut self) {
        let mut helper = self.random.of(Helper::ALL);
        if !self.world().has(helper) && self.random.below(16) > 0 {
            helper = Helper::Copy;
        }
        let signature = helper.signature();
        // The last first: what a range needs is looked for in any register.
        for (at, argument) in signature.arguments.iter().enumerate().rev() {
            match argument {
                Argument::Number => {
                    let number = self.random.below(3) as i32;
                    self.set_number(register(at + 1), number);
                }
                Argument::Read | Argument::Write => self.range(at + 1, *argument == Argument::Write),
                Argument::Len { .. } => {}
            }
            if let (Argument::Write, Some(Argument::Len { max: 8 })) =
                (argument, signature.arguments.get(at + 1))
            {
                let len = self.random.of([8, 8, 7, 9]);
                self.set_number(register(at + 2), len);
            }
        }
        let number = if self.random.once_in(100) { 77 } else { helper.number() };
        self.emit(Instruction::Call { callee: Callee::Helper(number) });
        self.forget_arguments();
        let is_lookup = signature.returns == Returns::TableValueOrNull;
        self.set_kind(Register::R0, if is_lookup { Kind::Nullable } else { Kind::Number });
    }

    pub(super) fn atomic(&mut self) {
        let fetch = self.random.once_in(2);
        let op = self.random.of([
            AtomicOp::Add { fetch },
            AtomicOp::Or { fetch },
            AtomicOp::And { fetch },
            AtomicOp::Xor { fetch },
            AtomicOp::Exchange,
            AtomicOp::CompareExchange,
        ]);
        let (width, from) = (self.width(), self.number());
        let (base, offset) = match self.pick(|kind| kind.region().is_some_and(Region::is_writable)) {
            Some(base) if self.random.once_in(2) => (base, self.random.of([0, 0, 8, 4, 56, 60, 1])),
            _ => {
                let slot = self.random.below(SLOTS);
                if !self.kinds.slots[slot].is_number() {
                    self.store(Size::B8, Register::R10, -8 * (slot as i16 + 1), Operand::Immediate(1));
                    self.kinds.slots[slot] = Kind::Number;
                }
                (Register::R10, -8 * (slot as i16 + 1) + self.random.of([0, 0, 0, 4]))
            }
        };
        if op == AtomicOp::CompareExchange && self.kinds.registers[0] != Kind::Number {
            self.set_number(Register::R0, 0);
        }
        if base != from {
            self.emit(Instruction::Atomic { width, op, base, offset, from });
        }
    }
}
