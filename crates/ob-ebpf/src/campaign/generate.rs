//! Makes a program from a seed: idioms of parsers one behind the other, each with what it needs in registers.
//!
//! What registers and slots of the stack hold is tracked only roughly, so that a good part of the programs is accepted; the rest are
//! refused for reasons that are worth trying, too.

use std::sync::Arc;

use crate::campaign::mutate;
use crate::campaign::random::Random;
use crate::campaign::setting::Setting;
use crate::isa::{Callee, Decoded, Instruction, Operand, Register, Size, Test, Wide, Width};
use crate::program::{Parts, Program};
use crate::world::{Entry, FieldKind, Region, World};

/// Slots of a frame that are tracked, from its end downwards.
pub(super) const SLOTS: usize = 6;
/// Functions of a program, and calls within calls.
const FUNCTIONS_MAX: usize = 4;
const DEPTH_MAX: usize = 3;

/// What a register or a slot holds, roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Nothing,
    Number,
    /// The data's length.
    Length,
    Pointer {
        region: Region,
        frame: u8,
        /// Where it points to, if that is known.
        offset: Option<i32>,
    },
    /// What a lookup gave.
    Nullable,
}

impl Kind {
    pub(super) fn to(region: Region) -> Self {
        Self::Pointer { region, frame: 0, offset: Some(0) }
    }

    pub(super) fn is_number(self) -> bool {
        matches!(self, Self::Number | Self::Length)
    }

    /// The region of a pointer other than the context's.
    pub(super) fn region(self) -> Option<Region> {
        match self {
            Self::Pointer { region, .. } if region != Region::Context => Some(region),
            _ => None,
        }
    }

    fn join(self, other: Self) -> Self {
        match (self, other) {
            _ if self == other => self,
            _ if self.is_number() && other.is_number() => Self::Number,
            (
                Self::Pointer { region, frame, .. },
                Self::Pointer { region: other_region, frame: other_frame, .. },
            ) if (region, frame) == (other_region, other_frame) => {
                Self::Pointer { region, frame, offset: None }
            }
            _ => Self::Nothing,
        }
    }

    /// The same as a function that is called sees it.
    fn lent(self) -> Self {
        match self {
            Self::Pointer { region: Region::Stack, frame, offset } => {
                Self::Pointer { region: Region::Stack, frame: frame + 1, offset }
            }
            kind => kind,
        }
    }
}

/// What registers and slots hold at one place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kinds {
    pub(super) registers: [Kind; Register::COUNT - 1],
    pub(super) slots: [Kind; SLOTS],
    /// The slots of the caller.
    pub(super) lent: [Kind; SLOTS],
}

impl Kinds {
    const NOTHING: Self = Self {
        registers: [Kind::Nothing; Register::COUNT - 1],
        slots: [Kind::Nothing; SLOTS],
        lent: [Kind::Nothing; SLOTS],
    };

    pub(super) fn join(&mut self, other: &Self) {
        let own = self.registers.iter_mut().chain(&mut self.slots).chain(&mut self.lent);
        let others = other.registers.iter().chain(&other.slots).chain(&other.lent);
        for (own, other) in own.zip(others) {
            *own = own.join(*other);
        }
    }
}

/// A function that is called and not made yet, or was.
#[derive(Clone, Copy)]
struct Sketch {
    entry: Kinds,
    depth: usize,
    /// What it is to return: one of its arguments, or a number.
    returns: Option<Register>,
    /// An argument that it is to store in the first slot of its caller.
    stores: Option<Register>,
}

/// A program as it is made and changed: its instructions, and the rest.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub(super) instructions: Vec<Instruction>,
    pub(super) parts: Parts,
    pub(super) setting: Setting,
}

impl Draft {
    pub(super) fn of_seed(seed: u64) -> Self {
        let mut draft = Writer::new(Random::new(seed), Setting::of_seed(seed)).program();
        let mut random = Random::new(seed ^ 0x5eed);
        let mutations = random.of([0, 0, 0, 1, 1, 2]);
        for _ in 0..mutations {
            mutate::mutate(&mut random, &mut draft);
        }
        draft
    }

    pub(super) fn program(&self) -> Option<Arc<Program>> {
        let mut slot = 0;
        let slots = self.instructions.iter().map(|instruction| {
            let begin = slot;
            slot += if matches!(instruction, Instruction::LoadWide { .. }) { 2 } else { 1 };
            begin
        });
        let decoded = Decoded { slots: slots.collect(), instructions: self.instructions.clone() };
        Program::new(decoded, self.parts.clone()).ok().map(Arc::new)
    }
}

/// Writes one function after another.
pub(super) struct Writer {
    pub(super) random: Random,
    setting: Setting,
    pub(super) code: Vec<Instruction>,
    pub(super) kinds: Kinds,
    /// Branches that leave the function.
    pub(super) leaving: Vec<usize>,
    pub(super) parts: Parts,
    pub(super) depth: usize,
    functions: Vec<Sketch>,
    /// Which of them is being written.
    function: usize,
    /// Idioms that may still be written.
    pub(super) budget: usize,
}

impl Writer {
    fn new(mut random: Random, setting: Setting) -> Self {
        let min = random.of([0, 0, 8, 16, 17, 64]).min(setting.world.data_len_max);
        let read_only_len = random.of([0, 8, 24, 33]);
        let per_call_len = random.of([0, 16, 30]);
        let mut bytes = |len: usize| (0..len).map(|_| random.word() as u8).collect();
        let parts = Parts {
            read_only: bytes(read_only_len),
            per_call: bytes(per_call_len),
            data_len_min: min,
            ..Parts::default()
        };
        let mut entry = Kinds::NOTHING;
        match setting.world.entry {
            Entry::Context => entry.registers[1] = Kind::to(Region::Context),
            Entry::Memory => {
                entry.registers[1] = Kind::to(Region::Scratch);
                entry.registers[2] = Kind::Number;
            }
        }
        let budget = 2 + random.below(8);
        let main = Sketch { entry, depth: 0, returns: None, stores: None };
        Self {
            random,
            setting,
            code: Vec::new(),
            kinds: entry,
            leaving: Vec::new(),
            parts,
            depth: 0,
            functions: vec![main],
            function: 0,
            budget,
        }
    }

    fn program(mut self) -> Draft {
        let (mut bodies, mut begin) = (Vec::new(), 0);
        let mut begins = Vec::new();
        while let Some(sketch) = self.functions.get(self.function).copied() {
            (self.kinds, self.depth) = (sketch.entry, sketch.depth);
            if self.function > 0 {
                self.budget = 1 + self.random.below(4);
            }
            self.body(&sketch);
            begins.push(begin);
            begin += self.code.len();
            bodies.push(std::mem::take(&mut self.code));
            self.function += 1;
        }
        let mut instructions = Vec::with_capacity(begin);
        for (body, begin) in bodies.into_iter().zip(&begins) {
            for mut instruction in body {
                match &mut instruction {
                    Instruction::Jump { target } | Instruction::Branch { target, .. } => *target += begin,
                    Instruction::Call { callee: Callee::Local(target) } => {
                        *target = begins.get(*target).copied().unwrap_or(0);
                    }
                    _ => {}
                }
                instructions.push(instruction);
            }
        }
        Draft { instructions, parts: self.parts, setting: self.setting }
    }

    fn body(&mut self, sketch: &Sketch) {
        if self.function == 0 {
            self.prologue();
        } else {
            // What is to outlast calls within it.
            for (from, to) in [(1, 6), (2, 7), (3, 8)] {
                if self.kinds.registers[from] != Kind::Nothing && self.random.below(4) > 0 {
                    self.copy(register(to), register(from));
                }
            }
        }
        if let (Some(stored), true) = (sketch.stores, self.is_stack(Register::R1)) {
            self.store(Size::B8, Register::R1, 0, Operand::Register(stored));
        }
        while self.budget > 0 {
            self.idiom();
        }
        if self.function > 0 && self.random.once_in(8) {
            // A function may leave anything in `r0`, if only on some ways.
            let number = self.pick(Kind::is_number).unwrap_or(Register::R2);
            let skip = self.branch(Width::W64, Test::Above, number, Operand::Immediate(7));
            self.copy(Register::R0, Register::R10);
            self.land(skip);
            if self.random.once_in(2) {
                self.emit(Instruction::Exit);
            }
        }
        match sketch.returns.map(|returned| register(returned.index() + 5)) {
            Some(returned) if self.kinds.registers[returned.index()] != Kind::Nothing => {
                self.copy(Register::R0, returned);
                if self.random.below(8) > 0 {
                    self.emit(Instruction::Exit);
                }
            }
            _ if self.random.once_in(2) => {
                if let Some(number) = self.pick(Kind::is_number) {
                    self.copy(Register::R0, number);
                    self.emit(Instruction::Exit);
                }
            }
            _ => {}
        }
        for at in std::mem::take(&mut self.leaving) {
            self.land(at);
        }
        self.set_number(Register::R0, 0);
        self.emit(Instruction::Exit);
    }

    /// What most programs begin with: the data, its length, the scratch, in registers that outlast calls.
    fn prologue(&mut self) {
        let mut free = [6, 7, 8, 9];
        for at in (1..free.len()).rev() {
            free.swap(at, self.random.below(at + 1));
        }
        let mut free = free.into_iter();
        let wanted = [
            (FieldKind::Data, Kind::to(Region::Data), 8),
            (FieldKind::DataLen, Kind::Length, 8),
            (FieldKind::Scratch, Kind::to(Region::Scratch), 6),
        ];
        for (field, kind, share) in wanted {
            if self.random.below(9) < share
                && let Some(offset) = self.field(|kind| kind == field)
                && let Some(to) = free.next().map(register)
            {
                self.load(Size::B8, false, to, Register::R1, offset);
                self.kinds.registers[to.index()] = kind;
            }
        }
        for _ in 0..2 {
            let to = register(self.random.below(6));
            if to != Register::R1 {
                self.load_number(to, Register::R1);
            }
        }
        if let (Some(to), true) = (free.next(), self.random.below(3) > 0) {
            self.copy(register(to), Register::R1);
        }
    }

    /// Where in the context there is a field of a kind, if there is one.
    pub(super) fn field(&mut self, is_right: impl Fn(FieldKind) -> bool) -> Option<i16> {
        let fields = self.world().fields;
        let first = self.random.below(fields.len());
        let mut all = (first..fields.len()).chain(0..first);
        let found = all.find(|at| fields.get(*at).is_some_and(|field| is_right(field.kind)));
        found.map(|at| 8 * at as i16)
    }

    /// Loads a number that nothing is known of: from the context, or from the scratch.
    pub(super) fn load_number(&mut self, to: Register, base: Register) {
        let offset = match self.kinds.registers.get(base.index()) {
            Some(Kind::Pointer { region: Region::Context, .. }) => {
                let Some(offset) = self.field(|kind| matches!(kind, FieldKind::Number | FieldKind::Result))
                else {
                    return self.set_number(to, 1);
                };
                offset
            }
            _ => 8 * self.random.below(self.world().scratch_len.min(256) as usize / 8) as i16,
        };
        self.load(Size::B8, false, to, base, offset);
    }

    pub(super) fn world(&self) -> &'static World {
        self.setting.world
    }

    pub(super) fn is_stack(&self, register: Register) -> bool {
        matches!(
            self.kinds.registers.get(register.index()),
            Some(Kind::Pointer { region: Region::Stack, .. })
        )
    }

    /// Calls a function: a new one, or one that was called before, with arguments of the same kinds or others.
    pub(super) fn call(&mut self) {
        let callable = |sketch: &Sketch| sketch.depth == self.depth + 1;
        let known = (self.function + 1..self.functions.len())
            .rfind(|at| self.functions.get(*at).is_some_and(callable));
        if self.depth + 1 > DEPTH_MAX {
            return;
        }
        let count = 1 + self.random.below(3);
        if self.random.below(3) > 0 {
            // A part of the stack is lent.
            let slot = self.random.below(SLOTS);
            if self.random.once_in(2) {
                self.spill(slot);
            }
            self.copy(Register::R1, Register::R10);
            self.add_number(Register::R1, -8 * (slot as i32 + 1));
        } else if let Some(from) = self.pick(|kind| kind != Kind::Nothing) {
            self.copy(Register::R1, from);
        }
        for to in [Register::R2, Register::R3].into_iter().take(count) {
            match self.pick_kept() {
                Some(from) if self.random.below(4) > 0 => self.copy(to, from),
                _ => {
                    let number = self.random.number() as i32;
                    self.set_number(to, number);
                }
            }
        }
        let function = match known {
            Some(known) if self.random.below(3) > 0 || self.functions.len() >= FUNCTIONS_MAX => known,
            _ if self.functions.len() >= FUNCTIONS_MAX => return,
            _ => self.sketch(),
        };
        let Some(sketch) = self.functions.get(function).copied() else { return };
        let registers = self.kinds.registers;
        self.emit(Instruction::Call { callee: Callee::Local(function) });
        self.forget_arguments();
        let kind_of = |register: Register| registers.get(register.index()).copied().unwrap_or(Kind::Nothing);
        self.kinds.registers[0] = sketch.returns.map_or(Kind::Number, kind_of);
        if let (Some(stored), Kind::Pointer { region: Region::Stack, frame: 0, offset: Some(offset) }) =
            (sketch.stores, kind_of(Register::R1))
            && let Some(slot) = self.kinds.slots.get_mut(((-offset / 8) - 1).max(0) as usize)
        {
            *slot = kind_of(stored);
        }
    }

    /// Calls a function again and again with other numbers, more often than the verifier keeps them apart.
    pub(super) fn call_often(&mut self) {
        if self.depth + 1 > DEPTH_MAX || self.functions.len() >= FUNCTIONS_MAX {
            return;
        }
        let pointer = self.pick_kept();
        let mut function = None;
        for time in 0..4 + self.random.below(4) as i32 {
            if let Some(pointer) = pointer {
                self.copy(Register::R2, pointer);
            }
            let number = match self.random.below(3) {
                0 => self.random.number() as i32,
                _ => 8 * time + self.random.of([0, 1, 7]),
            };
            self.set_number(Register::R1, number);
            self.set_number(Register::R3, time);
            let called = *function.get_or_insert_with(|| self.sketch());
            self.emit(Instruction::Call { callee: Callee::Local(called) });
            self.forget_arguments();
            self.kinds.registers[0] = Kind::Number;
            if let Some(sketch) = self.functions.get_mut(called) {
                (sketch.returns, sketch.stores) = (None, None);
            }
            if self.random.once_in(3) {
                self.idiom();
            }
        }
    }

    fn sketch(&mut self) -> usize {
        let mut entry = Kinds::NOTHING;
        for at in 1..=5 {
            entry.registers[at] = self.kinds.registers[at].lent();
        }
        if let Kind::Pointer { region: Region::Stack, .. } = entry.registers[1] {
            entry.lent = self.kinds.slots.map(Kind::lent);
        }
        let argument = |random: &mut Random| random.of([Register::R1, Register::R2, Register::R3]);
        let returns = self.random.once_in(4).then(|| argument(&mut self.random));
        let stores = self.random.once_in(3).then(|| self.random.of([Register::R2, Register::R3]));
        self.functions.push(Sketch { entry, depth: self.depth + 1, returns, stores });
        self.functions.len() - 1
    }

    pub(super) fn forget_arguments(&mut self) {
        for kind in &mut self.kinds.registers[1..=5] {
            *kind = Kind::Nothing;
        }
    }

    pub(super) fn emit(&mut self, instruction: Instruction) -> usize {
        self.code.push(instruction);
        self.code.len() - 1
    }

    /// A branch to somewhere that is not known yet.
    pub(super) fn branch(&mut self, width: Width, test: Test, left: Register, right: Operand) -> usize {
        self.emit(Instruction::Branch { width, test, left, right, target: 0 })
    }

    /// Has a branch go to what comes next.
    pub(super) fn land(&mut self, at: usize) {
        let here = self.code.len();
        if let Some(Instruction::Jump { target } | Instruction::Branch { target, .. }) = self.code.get_mut(at)
        {
            *target = here;
        }
    }

    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.emit(Instruction::Move { width: Width::W64, to, from: Operand::Register(from) });
        let kind = self.kinds.registers.get(from.index()).copied().unwrap_or(Kind::to(Region::Stack));
        self.set_kind(to, kind);
    }

    pub(super) fn set_kind(&mut self, to: Register, kind: Kind) {
        if let Some(place) = self.kinds.registers.get_mut(to.index()) {
            *place = kind;
        }
    }

    pub(super) fn set_number(&mut self, to: Register, number: i32) {
        self.emit(Instruction::Move { width: Width::W64, to, from: Operand::Immediate(number) });
        self.set_kind(to, Kind::Number);
    }

    pub(super) fn set_wide(&mut self, to: Register, value: Wide) {
        self.emit(Instruction::LoadWide { to, value });
        let pointer = |region, offset: u32| Kind::Pointer { region, frame: 0, offset: Some(offset as i32) };
        self.set_kind(
            to,
            match value {
                Wide::Number(_) => Kind::Number,
                Wide::ReadOnly(offset) => pointer(Region::ReadOnly, offset),
                Wide::PerCall(offset) => pointer(Region::PerCall, offset),
            },
        );
    }

    pub(super) fn add_number(&mut self, to: Register, by: i32) {
        use crate::isa::AluOp;
        self.emit(Instruction::Alu { width: Width::W64, op: AluOp::Add, to, from: Operand::Immediate(by) });
        match self.kinds.registers.get_mut(to.index()) {
            Some(Kind::Pointer { offset: Some(offset), .. }) => *offset = offset.saturating_add(by),
            Some(kind @ Kind::Length) => *kind = Kind::Number,
            _ => {}
        }
    }

    pub(super) fn load(&mut self, size: Size, is_signed: bool, to: Register, base: Register, offset: i16) {
        self.emit(Instruction::Load { size, is_signed: is_signed && size != Size::B8, to, base, offset });
        self.set_kind(to, Kind::Number);
    }

    pub(super) fn store(&mut self, size: Size, base: Register, offset: i16, from: Operand) {
        self.emit(Instruction::Store { size, base, offset, from });
    }

    /// Stores something in a slot.
    pub(super) fn spill(&mut self, slot: usize) {
        let Some(from) = self.pick(|kind| kind != Kind::Nothing) else { return };
        self.spill_register(slot, from);
    }

    pub(super) fn spill_register(&mut self, slot: usize, from: Register) {
        self.store(Size::B8, Register::R10, -8 * (slot as i16 + 1), Operand::Register(from));
        let kind = self.kinds.registers.get(from.index()).copied().unwrap_or(Kind::to(Region::Stack));
        if let Some(slot) = self.kinds.slots.get_mut(slot) {
            *slot = kind;
        }
    }

    /// A register that holds something of a kind.
    pub(super) fn pick(&mut self, is_right: impl Fn(Kind) -> bool) -> Option<Register> {
        let first = self.random.below(Register::COUNT - 1);
        let all = (0..Register::COUNT - 1).map(|at| (first + at) % (Register::COUNT - 1));
        let found = all.into_iter().find(|at| is_right(self.kinds.registers[*at]));
        found.map(register)
    }

    /// The same among those that outlast calls.
    fn pick_kept(&mut self) -> Option<Register> {
        let first = self.random.below(4);
        let found =
            (0..4).map(|at| 6 + (first + at) % 4).find(|at| self.kinds.registers[*at] != Kind::Nothing);
        found.map(register)
    }

    /// A register to write to; those that outlast calls hold what is worth keeping.
    pub(super) fn free(&mut self) -> Register {
        register(if self.random.once_in(6) { self.random.below(10) } else { self.random.below(6) })
    }

    /// Bytes of a region, as far as they are known.
    pub(super) fn len_of(&self, region: Region) -> i32 {
        match region {
            Region::Context => self.world().context_len() as i32,
            Region::Data => self.parts.data_len_min as i32,
            Region::Scratch => self.world().scratch_len as i32,
            Region::Stack => 0,
            Region::ReadOnly => self.parts.read_only.len() as i32,
            Region::PerCall => self.parts.per_call.len() as i32,
            Region::TableValue => self.world().table_value_len as i32,
        }
    }
}

/// The register of a number that is one's.
pub(super) fn register(number: usize) -> Register {
    Register::new(number as u8).unwrap_or(Register::R0)
}
