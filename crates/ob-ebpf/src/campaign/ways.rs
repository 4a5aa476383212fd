//! Idioms of loops, branches, the context, and pointers that are compared.

use crate::campaign::generate::{Kind, Writer};
use crate::campaign::idioms::OFF;
use crate::isa::{AluOp, Instruction, Operand, Register, Size, Test, Wide, Width};
use crate::world::{FieldKind, Region};

impl Writer {
    /// A loop that counts up, over bytes of a region or over nothing; with its test in front or behind.
    pub(super) fn count_loop(&mut self) {
        let Some((base, region)) = self.pointer() else { return };
        let counter = self.random.of([Register::R4, Register::R5, Register::R9]);
        if counter == base {
            return;
        }
        let size = self.random.of([Size::B1, Size::B1, Size::B4, Size::B8]);
        let step = self.random.of([size.bytes() as i32, size.bytes() as i32, 1, -1]);
        let limit = match self.pick(|kind| kind == Kind::Length) {
            Some(length) if region == Region::Data => Operand::Register(length),
            _ => Operand::Immediate(self.len_of(region) + self.random.of(OFF)),
        };
        let first = self.random.of([0, 0, 0, 1, -1]);
        self.set_number(counter, first);
        let saved = self.kinds;
        let head = self.code.len();
        let width = self.random.of([Width::W64, Width::W64, Width::W64, Width::W32]);
        let is_tested_first = self.random.once_in(2);
        let out = is_tested_first.then(|| {
            let test = self.random.of([
                Test::AboveOrEqual,
                Test::AboveOrEqual,
                Test::GreaterOrEqual,
                Test::Equal,
                Test::Above,
            ]);
            self.branch(width, test, counter, limit)
        });
        let at = self.random.of([Register::R2, Register::R3]);
        self.copy(at, base);
        self.emit(Instruction::Alu {
            width: Width::W64,
            op: AluOp::Add,
            to: at,
            from: Operand::Register(counter),
        });
        self.set_kind(at, Kind::Pointer { region, frame: 0, offset: None });
        self.touch(at, 0, size, region);
        if self.budget > 0 && self.random.once_in(2) {
            self.idiom();
        }
        if self.random.once_in(12) {
            let by = self.number();
            self.emit(Instruction::Alu {
                width: Width::W64,
                op: AluOp::Add,
                to: counter,
                from: Operand::Register(by),
            });
        } else {
            self.add_number(counter, step);
        }
        match out {
            Some(out) => {
                self.emit(Instruction::Jump { target: head });
                self.land(out);
            }
            None => {
                let test = self.random.of([
                    Test::Below,
                    Test::Below,
                    Test::NotEqual,
                    Test::Less,
                    Test::BelowOrEqual,
                ]);
                self.emit(Instruction::Branch { width, test, left: counter, right: limit, target: head });
            }
        }
        self.kinds.join(&saved);
    }

    /// One way or the other.
    pub(super) fn either(&mut self) {
        let (left, right) = (self.number(), self.operand());
        let (width, test) = (self.width(), self.random.of(Test::ALL));
        let otherwise = self.branch(width, test, left, right);
        let before = self.kinds;
        for _ in 0..1 + self.random.below(2) {
            self.idiom();
        }
        if self.random.once_in(2) {
            if self.random.once_in(3) {
                let by = self.random.of([1, -1, 8, i32::MIN]);
                self.add_number(left, by);
            }
            self.land(otherwise);
            self.kinds.join(&before);
            if self.random.once_in(2) {
                self.ask_again(width, test, left, right);
            }
            return;
        }
        let end = self.emit(Instruction::Jump { target: 0 });
        self.land(otherwise);
        let then = std::mem::replace(&mut self.kinds, before);
        self.idiom();
        self.land(end);
        self.kinds.join(&then);
    }

    /// The question of the branch before, about what may have become something else.
    fn ask_again(&mut self, width: Width, test: Test, left: Register, right: Operand) {
        let otherwise = self.branch(width, test, left, right);
        let before = self.kinds;
        self.idiom();
        self.land(otherwise);
        self.kinds.join(&before);
    }

    /// A register that is one pointer on one way and another on the other, and is used where they meet.
    pub(super) fn unclear(&mut self) {
        let (Some((first, _)), Some((second, region))) = (self.pointer(), self.pointer()) else { return };
        let (left, right, at) = (self.number(), self.operand(), self.free());
        if at == first || at == second {
            return;
        }
        self.copy(at, first);
        let skip = self.branch(Width::W64, Test::Above, left, right);
        self.copy(at, second);
        self.land(skip);
        let size = self.random.of(Size::ALL);
        self.touch(at, 0, size, region);
    }

    pub(super) fn context(&mut self) {
        let Some(context) = self.pick(|kind| kind == Kind::to(Region::Context)) else { return };
        let to = self.free();
        if to == context {
            return;
        }
        let fields = self.world().fields;
        match self.random.below(10) {
            0 => {
                let offset = self.random.below(self.world().context_len() + 4) as i16;
                let size = self.random.of(Size::ALL);
                self.load(size, false, to, context, offset);
            }
            1..=3 => {
                let (from, is_right) = (self.operand(), self.random.below(4) > 0);
                let offset = self.field(|kind| (kind == FieldKind::Result) == is_right).unwrap_or(0);
                self.store(Size::B8, context, offset, from);
            }
            4 => {
                let (left, right) = (self.number(), self.operand());
                self.copy(to, context);
                let skip = self.branch(Width::W64, Test::Above, left, right);
                let by = self.random.below(fields.len()) as i32;
                self.add_number(to, 8 * by);
                self.land(skip);
                let at = self.random.below(fields.len());
                self.load(Size::B8, false, to, to, 8 * at as i16);
                self.set_kind(to, Kind::Number);
            }
            _ => {
                let at = self.random.below(fields.len());
                self.load(Size::B8, false, to, context, 8 * at as i16);
                let kind = match fields.get(at).map(|field| field.kind) {
                    Some(FieldKind::Data) => Kind::to(Region::Data),
                    Some(FieldKind::DataLen) => Kind::Length,
                    Some(FieldKind::Scratch) => Kind::to(Region::Scratch),
                    _ => Kind::Number,
                };
                self.set_kind(to, kind);
            }
        }
    }

    /// A pointer is compared with another, as with the end of the data.
    pub(super) fn compare_pointers(&mut self) {
        let Some((base, region)) = self.pointer() else { return };
        let (at, end) =
            (self.random.of([Register::R2, Register::R3]), self.random.of([Register::R4, Register::R5]));
        if at == base || end == base {
            return;
        }
        self.copy(end, base);
        match self.pick(|kind| kind == Kind::Length) {
            Some(length) if region == Region::Data && length != end => {
                let from = Operand::Register(length);
                self.emit(Instruction::Alu { width: Width::W64, op: AluOp::Add, to: end, from });
            }
            _ => self.add_number(end, self.len_of(region)),
        }
        if self.random.once_in(4) {
            // In front of the memory, by a little.
            self.copy(at, base);
            let by = -1 - self.random.below(12) as i32;
            self.add_number(at, by);
            let test = self.random.of([Test::Below, Test::Above, Test::Less]);
            self.leave_if(Width::W64, test, at, Operand::Register(base));
            self.leave_if(Width::W64, Test::Equal, at, Operand::Immediate(0));
            return;
        }
        if self.random.once_in(4) {
            // Far away, where addresses wrap around and offsets with a sign do.
            let by = self.random.of([i64::MAX, i64::MIN, i64::MAX - 0xffff, i64::MIN + 0xffff, 1 << 62]);
            self.emit(Instruction::LoadWide { to: at, value: Wide::Number(by as u64) });
            let from = Operand::Register(base);
            self.emit(Instruction::Alu { width: Width::W64, op: AluOp::Add, to: at, from });
            self.set_kind(at, Kind::Pointer { region, frame: 0, offset: None });
            let (test, with) = (self.random.of(Test::ALL), self.random.of([base, end]));
            self.leave_if(Width::W64, test, at, Operand::Register(with));
            return;
        }
        let index = self.number();
        if [at, end, base].contains(&index) {
            return;
        }
        let most = self.random.of([16, 63, 64, 200, 5000]);
        self.bound(index, most);
        self.copy(at, base);
        self.emit(Instruction::Alu {
            width: Width::W64,
            op: AluOp::Add,
            to: at,
            from: Operand::Register(index),
        });
        let pointer = Kind::Pointer { region, frame: 0, offset: None };
        self.set_kind(at, pointer);
        let size = self.random.of(Size::ALL);
        let len = size.bytes() as i32 + self.random.of(OFF);
        if self.random.once_in(2) {
            let behind = self.random.of([Register::R0, Register::R1]);
            self.copy(behind, at);
            self.add_number(behind, len);
            let test = self.random.of([Test::Above, Test::Above, Test::Greater, Test::AboveOrEqual]);
            self.leave_if(Width::W64, test, behind, Operand::Register(end));
            self.set_kind(behind, pointer);
        } else {
            let test =
                self.random.of([Test::AboveOrEqual, Test::AboveOrEqual, Test::GreaterOrEqual, Test::Above]);
            self.leave_if(Width::W64, test, at, Operand::Register(end));
        }
        self.touch(at, 0, size, region);
        if self.random.once_in(6) {
            self.leave_if(Width::W64, Test::Equal, at, Operand::Immediate(0));
        }
    }
}
