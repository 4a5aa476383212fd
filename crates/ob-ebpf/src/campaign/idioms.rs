//! What programs are made of: bounds and what they guard, spills, loops, lookups, calls.

use crate::campaign::generate::{Kind, SLOTS, Writer};
use crate::isa::{AluOp, ByteOrder, Instruction, Operand, Register, Size, Test, Wide, Width};
use crate::world::{Entry, Region};

/// How far bounds are off.
pub(super) const OFF: [i32; 12] = [0, 0, 0, 0, 0, 0, 0, 0, -1, 1, -8, 8];

impl Writer {
    /// Writes one idiom, and those within it.
    pub(super) fn idiom(&mut self) {
        self.budget = self.budget.saturating_sub(1);
        if self.depth > 0 && self.random.once_in(4) {
            return self.lent();
        }
        match self.random.below(30) {
            0 | 1 => self.compute(),
            2 => self.convert(),
            3..=7 => self.guarded_access(),
            8 => self.direct_access(),
            9 | 10 => self.move_pointer(),
            11 | 12 => self.stack(),
            13 => self.stack_by_number(),
            14 => self.lookup(),
            15 => self.helper(),
            16 => self.atomic(),
            17 | 18 => self.count_loop(),
            19 | 20 => self.either(),
            21 | 22 => self.call(),
            23 => self.context(),
            24 => self.lookup(),
            25 => self.call(),
            26 => self.unclear(),
            27 => self.call_often(),
            28 => self.count_loop(),
            _ => self.compare_pointers(),
        }
    }

    pub(super) fn operand(&mut self) -> Operand {
        match self.pick(Kind::is_number) {
            Some(register) if self.random.once_in(2) => Operand::Register(register),
            _ => Operand::Immediate(self.random.number() as i32),
        }
    }

    pub(super) fn width(&mut self) -> Width {
        self.random.of([Width::W64, Width::W64, Width::W32])
    }

    /// A register with a number, which may be changed.
    pub(super) fn number(&mut self) -> Register {
        match self.pick(|kind| kind == Kind::Number) {
            Some(number) if self.random.below(5) > 0 => number,
            _ => {
                let to = self.free();
                let has_numbers = match self.world().entry {
                    Entry::Context => Region::Context,
                    Entry::Memory => Region::Scratch,
                };
                match self.pick(|kind| kind == Kind::to(has_numbers)) {
                    Some(base) if self.random.once_in(2) => self.load_number(to, base),
                    _ => {
                        let value = self.random.number();
                        self.set_wide(to, Wide::Number(value));
                    }
                }
                to
            }
        }
    }

    pub(super) fn compute(&mut self) {
        let (to, from) = (self.number(), self.operand());
        let (width, op) = (self.width(), self.random.of(AluOp::ALL));
        self.emit(Instruction::Alu { width, op, to, from });
    }

    fn convert(&mut self) {
        let (to, from) = (self.number(), self.number());
        let instruction = match self.random.below(4) {
            0 => Instruction::Negate { width: self.width(), to },
            1 => {
                let order = self.random.of([ByteOrder::Little, ByteOrder::Big, ByteOrder::Swap]);
                let size = self.random.of([Size::B2, Size::B4, Size::B8]);
                Instruction::Bytes { order, size, to }
            }
            2 => Instruction::MoveSigned {
                width: Width::W64,
                size: self.random.of([Size::B1, Size::B2, Size::B4]),
                to,
                from,
            },
            _ => Instruction::Move { width: Width::W32, to, from: Operand::Register(from) },
        };
        self.emit(instruction);
    }

    /// Sees to it that a number is at most `most`, in one of the ways that programs have, or leaves the function. The register that is.
    pub(super) fn bound(&mut self, index: Register, most: i32) -> Register {
        let (width, immediate) = (self.width(), Operand::Immediate(most));
        let mask = (most.max(1) as u32).next_power_of_two() as i32 / 2 - 1;
        let alu =
            |op, by| Instruction::Alu { width: Width::W64, op, to: index, from: Operand::Immediate(by) };
        match self.random.below(14) {
            0 => {
                self.emit(alu(AluOp::And, mask));
            }
            1 | 2 => self.leave_if(Width::W64, Test::Above, index, immediate),
            3 => {
                if self.random.below(3) > 0 {
                    let from = Operand::Register(index);
                    self.emit(Instruction::Move { width: Width::W32, to: index, from });
                }
                self.leave_if(Width::W32, Test::Above, index, immediate);
            }
            4 => {
                self.leave_if(width, Test::Greater, index, immediate);
                if self.random.below(4) > 0 {
                    self.leave_if(width, Test::Less, index, Operand::Immediate(0));
                }
            }
            5 => {
                self.emit(alu(AluOp::Mod, most.max(0).saturating_add(1)));
            }
            6 => {
                self.emit(alu(AluOp::ShiftRight, 64 - (mask.count_ones() as i32)));
            }
            7 => {
                let copied = self.free();
                self.copy(copied, index);
                self.leave_if(width, Test::AboveOrEqual, copied, Operand::Immediate(most.wrapping_add(1)));
            }
            8 => {
                let slot = self.random.below(SLOTS);
                self.spill_register(slot, index);
                self.leave_if(Width::W64, Test::Above, index, immediate);
                let loaded = self.free();
                let size = self.random.of([Size::B8, Size::B8, Size::B4, Size::B1]);
                self.load(size, false, loaded, Register::R10, -8 * (slot as i16 + 1));
                return loaded;
            }
            9 => {
                let limit = self.free();
                self.set_number(limit, most);
                self.leave_if(width, Test::Below, limit, Operand::Register(index));
            }
            10 => self.leave_if(Width::W64, Test::AnyBit, index, Operand::Immediate(!mask)),
            11 => self.leave_if(width, Test::NotEqual, index, immediate),
            12 => {
                let by = self.number();
                self.emit(alu(AluOp::And, mask));
                let op = self.random.of([AluOp::Div, AluOp::Mod, AluOp::ShiftRight, AluOp::SignedMod]);
                self.emit(Instruction::Alu { width, op, to: index, from: Operand::Register(by) });
            }
            _ => {}
        }
        index
    }

    pub(super) fn leave_if(&mut self, width: Width, test: Test, left: Register, right: Operand) {
        let at = self.branch(width, test, left, right);
        self.leaving.push(at);
    }

    /// A pointer to somewhere, and how many bytes there are behind it.
    pub(super) fn pointer(&mut self) -> Option<(Register, Region)> {
        let wide = match self.random.below(8) {
            0 => Some(Wide::ReadOnly(self.random.below(self.parts.read_only.len() + 1) as u32)),
            1 => Some(Wide::PerCall(self.random.below(self.parts.per_call.len() + 1) as u32)),
            _ => None,
        };
        if let Some(wide) = wide {
            let to = self.free();
            self.set_wide(to, wide);
        }
        let found = self.pick(|kind| kind.region().is_some_and(|region| region != Region::Stack))?;
        let region = self.kinds.registers.get(found.index())?.region()?;
        Some((found, region))
    }

    /// An access at an index that was compared with what there is.
    fn guarded_access(&mut self) {
        let Some((base, region)) = self.pointer() else { return };
        let size = self.random.of(Size::ALL);
        let offset = self.random.of([0, 0, 0, 1, 4, 8, -1, -4, -8]);
        let len = size.bytes() as i32;
        let index = match region {
            Region::Data if self.random.below(4) > 0 => match self.bound_by_length(len + offset) {
                Some(index) => index,
                None => return,
            },
            _ => {
                let mut index = self.number();
                if index == base {
                    return;
                }
                let most = self.len_of(region) - len - offset + self.random.of(OFF);
                index = self.bound(index, most);
                index
            }
        };
        let mut at = self.free();
        if at == index {
            // A number and a pointer are added in either order.
            self.emit(Instruction::Alu {
                width: Width::W64,
                op: AluOp::Add,
                to: at,
                from: Operand::Register(base),
            });
        } else {
            if self.random.below(5) > 0 {
                self.copy(at, base);
            } else {
                at = base;
            }
            let op = self.random.of([AluOp::Add, AluOp::Add, AluOp::Add, AluOp::Add, AluOp::Sub]);
            self.emit(Instruction::Alu { width: Width::W64, op, to: at, from: Operand::Register(index) });
        }
        self.set_kind(at, Kind::Pointer { region, frame: 0, offset: None });
        self.touch(at, offset as i16, size, region);
        if self.random.once_in(3) {
            let by = self.random.of([-8, -1, 1, 8]);
            self.touch(at, (offset + by) as i16, size, region);
        }
    }

    pub(super) fn touch(&mut self, at: Register, offset: i16, size: Size, region: Region) {
        if region.is_writable() && self.random.once_in(2) {
            let from = self.operand();
            self.store(size, at, offset, from);
        } else {
            let (to, is_signed) = (self.free(), self.random.once_in(3));
            self.load(size, is_signed, to, at, offset);
        }
    }

    /// An index from which on there are so many bytes of data, or nearly.
    fn bound_by_length(&mut self, needed: i32) -> Option<Register> {
        let length = self.pick(|kind| kind == Kind::Length)?;
        let index = self.number();
        let needed = needed + self.random.of(OFF);
        let width = self.random.of([Width::W64, Width::W64, Width::W64, Width::W32]);
        if self.random.once_in(4) {
            self.leave_if(Width::W64, Test::Above, index, Operand::Immediate(5000));
        }
        match self.random.below(5) {
            // index + needed > length
            0 => {
                let end = self.free();
                self.copy(end, index);
                self.add_number(end, needed);
                self.leave_if(width, Test::Above, end, Operand::Register(length));
            }
            // length - needed < index
            1 => {
                let rest = self.free();
                if self.random.below(4) > 0 {
                    let least = needed + self.random.of(OFF);
                    self.leave_if(width, Test::Below, length, Operand::Immediate(least));
                }
                self.copy(rest, length);
                self.add_number(rest, -needed);
                let test = self.random.of([Test::Below, Test::Below, Test::Less]);
                self.leave_if(width, test, rest, Operand::Register(index));
            }
            2 => {
                let test = self.random.of([
                    Test::AboveOrEqual,
                    Test::AboveOrEqual,
                    Test::GreaterOrEqual,
                    Test::Above,
                ]);
                self.leave_if(width, test, index, Operand::Register(length));
            }
            // A part of the length.
            3 => {
                let part = self.free();
                self.copy(part, length);
                let op = self.random.of([AluOp::And, AluOp::ShiftRight, AluOp::Div, AluOp::Mod, AluOp::Sub]);
                let by = self.random.of([1, 2, 7, 8, 15, -8]);
                self.emit(Instruction::Alu { width, op, to: part, from: Operand::Immediate(by) });
                self.set_kind(part, Kind::Number);
                let test = self.random.of([Test::AboveOrEqual, Test::AboveOrEqual, Test::Above]);
                self.leave_if(Width::W64, test, index, Operand::Register(part));
            }
            _ => {
                let least = needed + self.random.below(4) as i32;
                self.leave_if(width, Test::Below, length, Operand::Immediate(least));
                let off = self.random.of(OFF);
                return Some(self.bound(index, least - needed + off));
            }
        }
        Some(index)
    }

    /// An access at a known place.
    fn direct_access(&mut self) {
        let Some((base, region)) = self.pointer() else { return };
        let size = self.random.of(Size::ALL);
        let offset = match self.random.below(4) {
            0 => self.random.of([-1, -8, 0, i16::MAX, i16::MIN]),
            1 => (self.len_of(region) - size.bytes() as i32 + self.random.of(OFF)) as i16,
            _ => self.random.below(16) as i16,
        };
        if region == Region::Data
            && let (Some(length), true) = (self.pick(|kind| kind == Kind::Length), self.random.once_in(2))
        {
            let least = i32::from(offset) + size.bytes() as i32 + self.random.of(OFF);
            let width = self.width();
            self.leave_if(width, Test::Below, length, Operand::Immediate(least));
        }
        self.touch(base, offset, size, region);
    }

    fn move_pointer(&mut self) {
        let Some((base, region)) = self.pointer() else { return };
        let to = if self.random.once_in(3) { base } else { self.free() };
        if to != base {
            self.copy(to, base);
        }
        match self.random.below(6) {
            0 | 1 => {
                let by = self.random.of([1, 4, 8, -1, -8, 16, 63, 64, 65]);
                self.add_number(to, by);
            }
            2 => {
                let by = self.number();
                if by == to {
                    return;
                }
                let op = self.random.of([AluOp::Add, AluOp::Sub]);
                self.emit(Instruction::Alu { width: Width::W64, op, to, from: Operand::Register(by) });
                self.set_kind(to, Kind::Pointer { region, frame: 0, offset: None });
            }
            3 => {
                // Far away, and perhaps back.
                let (by, value) = (self.free(), self.random.number());
                if by == to || by == base {
                    return;
                }
                self.set_wide(by, Wide::Number(value));
                for op in [AluOp::Add, AluOp::Sub].into_iter().take(1 + self.random.below(2)) {
                    self.emit(Instruction::Alu { width: Width::W64, op, to, from: Operand::Register(by) });
                }
                self.set_kind(to, Kind::Pointer { region, frame: 0, offset: None });
            }
            _ => {
                // How far apart two pointers are.
                let other = self.pick(|kind| kind.region() == Some(region)).unwrap_or(base);
                if other != to {
                    let from = Operand::Register(other);
                    self.emit(Instruction::Alu { width: Width::W64, op: AluOp::Sub, to, from });
                    self.set_kind(to, Kind::Number);
                    if self.random.once_in(2) {
                        let most = self.random.of([8, 63, 64, -1]);
                        self.bound(to, most);
                    }
                }
            }
        }
    }
}
