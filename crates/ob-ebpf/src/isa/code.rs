//! Instructions as bytes (RFC 9669, 3): [`decode`] and [`encode`].

use thiserror::Error;

use super::{
    AluOp, AtomicOp, ByteOrder, Callee, INSTRUCTIONS_MAX, Instruction, Operand, Register, SLOT_LEN, Size,
    Test, Wide, Width,
};

/// Classes, in the lower three bits of an opcode.
mod class {
    pub(super) const LD: u8 = 0;
    pub(super) const LDX: u8 = 1;
    pub(super) const ST: u8 = 2;
    pub(super) const STX: u8 = 3;
    pub(super) const ALU: u8 = 4;
    pub(super) const JMP: u8 = 5;
    pub(super) const JMP32: u8 = 6;
    pub(super) const ALU64: u8 = 7;
}

/// Modes of loads and stores, in the upper three bits.
mod mode {
    pub(super) const IMM: u8 = 0x00;
    pub(super) const MEM: u8 = 0x60;
    pub(super) const MEMSX: u8 = 0x80;
    pub(super) const ATOMIC: u8 = 0xc0;
}

/// The second operand is a register, and not the immediate.
const FROM_REGISTER: u8 = 0x08;
const MOVE: u8 = 0xb0;
const NEGATE: u8 = 0x80;
const BYTES: u8 = 0xd0;
const JUMP: u8 = 0x00;
const CALL: u8 = 0x80;
const EXIT: u8 = 0x90;
const LOAD_WIDE: u8 = class::LD | mode::IMM | 0x18;
/// What the source of a wide load says: a number, or an offset into a section that is named by its index.
const WIDE_NUMBER: u8 = 0;
const WIDE_SECTION: u8 = 6;
const SECTION_READ_ONLY: i32 = 0;
const SECTION_PER_CALL: i32 = 1;
/// What the source of a call says.
const CALL_HELPER: u8 = 0;
const CALL_LOCAL: u8 = 1;
/// What the offset of a division says if it has a sign.
const SIGNED: i16 = 1;

const ALU_CODES: [(u8, i16, AluOp); 13] = [
    (0x00, 0, AluOp::Add),
    (0x10, 0, AluOp::Sub),
    (0x20, 0, AluOp::Mul),
    (0x30, 0, AluOp::Div),
    (0x30, SIGNED, AluOp::SignedDiv),
    (0x40, 0, AluOp::Or),
    (0x50, 0, AluOp::And),
    (0x60, 0, AluOp::ShiftLeft),
    (0x70, 0, AluOp::ShiftRight),
    (0x90, 0, AluOp::Mod),
    (0x90, SIGNED, AluOp::SignedMod),
    (0xa0, 0, AluOp::Xor),
    (0xc0, 0, AluOp::ShiftRightSigned),
];

const TEST_CODES: [(u8, Test); 11] = [
    (0x10, Test::Equal),
    (0x20, Test::Above),
    (0x30, Test::AboveOrEqual),
    (0x40, Test::AnyBit),
    (0x50, Test::NotEqual),
    (0x60, Test::Greater),
    (0x70, Test::GreaterOrEqual),
    (0xa0, Test::Below),
    (0xb0, Test::BelowOrEqual),
    (0xc0, Test::Less),
    (0xd0, Test::LessOrEqual),
];

const ATOMIC_CODES: [(i32, AtomicOp); 10] = [
    (0x00, AtomicOp::Add { fetch: false }),
    (0x01, AtomicOp::Add { fetch: true }),
    (0x40, AtomicOp::Or { fetch: false }),
    (0x41, AtomicOp::Or { fetch: true }),
    (0x50, AtomicOp::And { fetch: false }),
    (0x51, AtomicOp::And { fetch: true }),
    (0xa0, AtomicOp::Xor { fetch: false }),
    (0xa1, AtomicOp::Xor { fetch: true }),
    (0xe1, AtomicOp::Exchange),
    (0xf1, AtomicOp::CompareExchange),
];

/// Why bytes are no instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("slot {slot}: {what}")]
pub struct DecodeError {
    /// In which slot of eight bytes, counted from the first.
    pub slot: usize,
    /// What is wrong there.
    pub what: Undecodable,
}

/// What is wrong with a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Undecodable {
    /// Bytes are missing.
    #[error("the bytes end within an instruction")]
    Cut,
    /// There is nothing.
    #[error("there are no instructions")]
    Empty,
    /// There is too much.
    #[error("there are more than {INSTRUCTIONS_MAX} instructions")]
    TooLong,
    /// An opcode that does not exist, or not in this version.
    #[error("opcode {0:#04x} is not known")]
    Opcode(u8),
    /// Access to packets as it was before eBPF.
    #[error("opcode {0:#04x} reads a packet, which there is not; use loads from the data")]
    Packet(u8),
    /// A call whose target is in a register.
    #[error("calls through a register are not supported; call a function by its name")]
    CallRegister,
    /// A register that does not exist.
    #[error("there is no register r{0}")]
    Register(u8),
    /// `r10` is where the frame ends.
    #[error("r10 cannot be written")]
    FrameWritten,
    /// Something has a value that means nothing.
    #[error("the {field} field has the value {value}, which means nothing here")]
    Field {
        /// Which.
        field: &'static str,
        /// Its value.
        value: i64,
    },
    /// A jump or call that goes nowhere.
    #[error("it goes to slot {0}, where no instruction begins")]
    Target(i64),
}

/// What was decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// The instructions.
    pub instructions: Vec<Instruction>,
    /// The slot in which each begins.
    pub slots: Vec<u32>,
}

/// The fields of a slot.
#[derive(Clone, Copy)]
struct Slot {
    opcode: u8,
    to: u8,
    from: u8,
    offset: i16,
    immediate: i32,
}

impl Slot {
    fn new(opcode: u8) -> Self {
        Self { opcode, to: 0, from: 0, offset: 0, immediate: 0 }
    }

    fn read(bytes: [u8; SLOT_LEN]) -> Self {
        let [opcode, registers, o0, o1, i0, i1, i2, i3] = bytes;
        Self {
            opcode,
            to: registers & 15,
            from: registers >> 4,
            offset: i16::from_le_bytes([o0, o1]),
            immediate: i32::from_le_bytes([i0, i1, i2, i3]),
        }
    }

    fn write(&self, into: &mut Vec<u8>) {
        into.extend([self.opcode, self.to | self.from << 4]);
        into.extend(self.offset.to_le_bytes());
        into.extend(self.immediate.to_le_bytes());
    }

    fn to(&self) -> Result<Register, Undecodable> {
        Register::new(self.to).ok_or(Undecodable::Register(self.to))
    }

    /// A register that gets a value.
    fn written(&self) -> Result<Register, Undecodable> {
        if self.to()? == Register::R10 { Err(Undecodable::FrameWritten) } else { self.to() }
    }

    fn from(&self) -> Result<Register, Undecodable> {
        Register::new(self.from).ok_or(Undecodable::Register(self.from))
    }

    /// The second operand; what it is not must be zero.
    fn operand(&self) -> Result<Operand, Undecodable> {
        if self.opcode & FROM_REGISTER == 0 {
            self.no_from()?;
            return Ok(Operand::Immediate(self.immediate));
        }
        self.no_immediate()?;
        Ok(Operand::Register(self.from()?))
    }

    fn no_to(&self) -> Result<(), Undecodable> {
        unused("destination", self.to.into())
    }

    fn no_from(&self) -> Result<(), Undecodable> {
        unused("source", self.from.into())
    }

    fn no_offset(&self) -> Result<(), Undecodable> {
        unused("offset", self.offset.into())
    }

    fn no_immediate(&self) -> Result<(), Undecodable> {
        unused("immediate", self.immediate.into())
    }

    fn size(&self) -> Size {
        match self.opcode & 0x18 {
            0x00 => Size::B4,
            0x08 => Size::B2,
            0x10 => Size::B1,
            _ => Size::B8,
        }
    }
}

fn unused(field: &'static str, value: i64) -> Result<(), Undecodable> {
    if value == 0 { Ok(()) } else { Err(Undecodable::Field { field, value }) }
}

/// Makes instructions of bytes.
///
/// # Errors
///
/// With the first slot that is not legal.
pub fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let (slots, rest) = bytes.as_chunks::<SLOT_LEN>();
    let wrong = |slot, what| DecodeError { slot, what };
    if !rest.is_empty() {
        return Err(wrong(slots.len(), Undecodable::Cut));
    }
    if slots.is_empty() {
        return Err(wrong(0, Undecodable::Empty));
    }
    if slots.len() > 2 * INSTRUCTIONS_MAX {
        return Err(wrong(2 * INSTRUCTIONS_MAX, Undecodable::TooLong));
    }
    let mut decoded = Decoded::default();
    // Which instruction begins in a slot.
    let mut begins = vec![None; slots.len()];
    let mut at = 0;
    while let Some(slot) = slots.get(at) {
        let slot = Slot::read(*slot);
        let next = slots.get(at + 1).map(|next| Slot::read(*next));
        let instruction = one(at, &slot, next.as_ref()).map_err(|what| wrong(at, what))?;
        if let Some(begin) = begins.get_mut(at) {
            *begin = Some(decoded.instructions.len());
        }
        if decoded.instructions.len() == INSTRUCTIONS_MAX {
            return Err(wrong(at, Undecodable::TooLong));
        }
        decoded.instructions.push(instruction);
        decoded.slots.push(at as u32);
        at += if slot.opcode == LOAD_WIDE { 2 } else { 1 };
    }
    for (instruction, slot) in decoded.instructions.iter_mut().zip(&decoded.slots) {
        let (Instruction::Jump { target }
        | Instruction::Branch { target, .. }
        | Instruction::Call { callee: Callee::Local(target) }) = instruction
        else {
            continue;
        };
        // So far it is a slot, and wrapped around where there is none.
        let found = begins.get(*target).copied().flatten();
        let missing = wrong(*slot as usize, Undecodable::Target(*target as i64));
        *target = found.ok_or(missing)?;
    }
    Ok(decoded)
}

/// Decodes one; targets are slots.
fn one(at: usize, slot: &Slot, next: Option<&Slot>) -> Result<Instruction, Undecodable> {
    match slot.opcode & 7 {
        class::LD if slot.opcode == LOAD_WIDE => wide(slot, next.ok_or(Undecodable::Cut)?),
        class::LD if matches!(slot.opcode & 0xe0, 0x20 | 0x40) => Err(Undecodable::Packet(slot.opcode)),
        class::LDX | class::ST | class::STX => memory(slot),
        class::ALU => arithmetic(slot, Width::W32),
        class::ALU64 => arithmetic(slot, Width::W64),
        class::JMP => jump(at, slot, Width::W64),
        class::JMP32 => jump(at, slot, Width::W32),
        _ => Err(Undecodable::Opcode(slot.opcode)),
    }
}

fn wide(slot: &Slot, next: &Slot) -> Result<Instruction, Undecodable> {
    slot.no_offset()?;
    unused("second opcode", next.opcode.into())?;
    next.no_to()?;
    next.no_from()?;
    next.no_offset()?;
    let (lower, upper) = (slot.immediate, next.immediate);
    let value = match (slot.from, lower) {
        (WIDE_NUMBER, _) => Wide::Number(u64::from(lower as u32) | u64::from(upper as u32) << 32),
        (WIDE_SECTION, SECTION_READ_ONLY) => Wide::ReadOnly(upper as u32),
        (WIDE_SECTION, SECTION_PER_CALL) => Wide::PerCall(upper as u32),
        (WIDE_SECTION, other) => return Err(Undecodable::Field { field: "section", value: other.into() }),
        (other, _) => return Err(Undecodable::Field { field: "source", value: other.into() }),
    };
    Ok(Instruction::LoadWide { to: slot.written()?, value })
}

fn memory(slot: &Slot) -> Result<Instruction, Undecodable> {
    let (size, offset) = (slot.size(), slot.offset);
    match (slot.opcode & 7, slot.opcode & 0xe0) {
        (class::LDX, mode @ (mode::MEM | mode::MEMSX)) => {
            let is_signed = mode == mode::MEMSX;
            if is_signed && size == Size::B8 {
                return Err(Undecodable::Opcode(slot.opcode));
            }
            slot.no_immediate()?;
            Ok(Instruction::Load { size, is_signed, to: slot.written()?, base: slot.from()?, offset })
        }
        (class::ST, mode::MEM) => {
            slot.no_from()?;
            let from = Operand::Immediate(slot.immediate);
            Ok(Instruction::Store { size, base: slot.to()?, offset, from })
        }
        (class::STX, mode::MEM) => {
            slot.no_immediate()?;
            let from = Operand::Register(slot.from()?);
            Ok(Instruction::Store { size, base: slot.to()?, offset, from })
        }
        (class::STX, mode::ATOMIC) => {
            let width = match size {
                Size::B4 => Width::W32,
                Size::B8 => Width::W64,
                Size::B1 | Size::B2 => return Err(Undecodable::Opcode(slot.opcode)),
            };
            let code = ATOMIC_CODES.iter().find(|(code, _)| *code == slot.immediate);
            let missing = Undecodable::Field { field: "immediate", value: slot.immediate.into() };
            let (_, op) = *code.ok_or(missing)?;
            let instruction = Instruction::Atomic { width, op, base: slot.to()?, offset, from: slot.from()? };
            match instruction.written() {
                Some(Register::R10) => Err(Undecodable::FrameWritten),
                _ => Ok(instruction),
            }
        }
        _ => Err(Undecodable::Opcode(slot.opcode)),
    }
}

fn arithmetic(slot: &Slot, width: Width) -> Result<Instruction, Undecodable> {
    let unknown = Undecodable::Opcode(slot.opcode);
    let is_register = slot.opcode & FROM_REGISTER != 0;
    match slot.opcode & 0xf0 {
        NEGATE if is_register => Err(unknown),
        BYTES if is_register && width == Width::W64 => Err(unknown),
        NEGATE => {
            slot.no_from()?;
            slot.no_offset()?;
            slot.no_immediate()?;
            Ok(Instruction::Negate { width, to: slot.written()? })
        }
        MOVE => {
            let (to, from) = (slot.written()?, slot.operand()?);
            let size = match (slot.offset, width) {
                (0, _) => return Ok(Instruction::Move { width, to, from }),
                (8, _) => Size::B1,
                (16, _) => Size::B2,
                (32, Width::W64) => Size::B4,
                _ => return Err(Undecodable::Field { field: "offset", value: slot.offset.into() }),
            };
            let Operand::Register(from) = from else {
                return Err(Undecodable::Field { field: "offset", value: slot.offset.into() });
            };
            Ok(Instruction::MoveSigned { width, size, to, from })
        }
        BYTES => {
            slot.no_from()?;
            slot.no_offset()?;
            let size = match slot.immediate {
                16 => Size::B2,
                32 => Size::B4,
                64 => Size::B8,
                value => return Err(Undecodable::Field { field: "immediate", value: value.into() }),
            };
            let order = match (width, is_register) {
                (Width::W32, false) => ByteOrder::Little,
                (Width::W32, true) => ByteOrder::Big,
                (Width::W64, _) => ByteOrder::Swap,
            };
            Ok(Instruction::Bytes { order, size, to: slot.written()? })
        }
        code => {
            let mut known = ALU_CODES.iter().filter(|(known, ..)| *known == code).peekable();
            known.peek().ok_or(unknown)?;
            let (_, _, op) = *known
                .find(|(_, offset, _)| *offset == slot.offset)
                .ok_or(Undecodable::Field { field: "offset", value: slot.offset.into() })?;
            Ok(Instruction::Alu { width, op, to: slot.written()?, from: slot.operand()? })
        }
    }
}

fn jump(at: usize, slot: &Slot, width: Width) -> Result<Instruction, Undecodable> {
    let unknown = Undecodable::Opcode(slot.opcode);
    let is_register = slot.opcode & FROM_REGISTER != 0;
    match (slot.opcode & 0xf0, width) {
        (CALL, Width::W64) if is_register => Err(Undecodable::CallRegister),
        (JUMP | CALL | EXIT, _) if is_register => Err(unknown),
        (JUMP, _) => {
            slot.no_to()?;
            slot.no_from()?;
            // The long form has its distance where there are more bits.
            let distance = match width {
                Width::W64 => {
                    slot.no_immediate()?;
                    slot.offset.into()
                }
                Width::W32 => {
                    slot.no_offset()?;
                    slot.immediate
                }
            };
            Ok(Instruction::Jump { target: target(at, distance)? })
        }
        (CALL, Width::W64) => {
            slot.no_to()?;
            slot.no_offset()?;
            let callee = match slot.from {
                CALL_HELPER => Callee::Helper(slot.immediate as u32),
                CALL_LOCAL => Callee::Local(target(at, slot.immediate)?),
                other => return Err(Undecodable::Field { field: "source", value: other.into() }),
            };
            Ok(Instruction::Call { callee })
        }
        (EXIT, Width::W64) => {
            slot.no_to()?;
            slot.no_from()?;
            slot.no_offset()?;
            slot.no_immediate()?;
            Ok(Instruction::Exit)
        }
        (code, _) => {
            let (_, test) = *TEST_CODES.iter().find(|(known, _)| *known == code).ok_or(unknown)?;
            let (left, right) = (slot.to()?, slot.operand()?);
            Ok(Instruction::Branch { width, test, left, right, target: target(at, slot.offset.into())? })
        }
    }
}

fn target(at: usize, distance: i32) -> Result<usize, Undecodable> {
    let target = at as i64 + 1 + i64::from(distance);
    usize::try_from(target).map_err(|_| Undecodable::Target(target))
}

/// Why instructions cannot be written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// A branch or a call that goes too far, or nowhere.
    #[error("instruction {at} cannot reach its target")]
    Target {
        /// Which.
        at: usize,
    },
    /// A combination that the encoding does not have.
    #[error("instruction {at} has no encoding")]
    Illegal {
        /// Which.
        at: usize,
    },
}

/// Makes bytes of instructions; [`decode`] gives them back.
///
/// # Errors
///
/// With the first instruction for which there are no bytes.
pub fn encode(instructions: &[Instruction]) -> Result<Vec<u8>, EncodeError> {
    let mut slots = Vec::with_capacity(instructions.len());
    let mut slot = 0i64;
    for instruction in instructions {
        slots.push(slot);
        slot += if matches!(instruction, Instruction::LoadWide { .. }) { 2 } else { 1 };
    }
    let mut bytes = Vec::with_capacity(slot as usize * SLOT_LEN);
    for (at, instruction) in instructions.iter().enumerate() {
        let distance = |target: usize| {
            let found = slots.get(target).zip(slots.get(at)).map(|(target, here)| target - here - 1);
            found.ok_or(EncodeError::Target { at })
        };
        written(instruction, at, &distance)?.write(&mut bytes);
        if let Instruction::LoadWide { value, .. } = instruction {
            let upper = match *value {
                Wide::Number(number) => (number >> 32) as i32,
                Wide::ReadOnly(offset) | Wide::PerCall(offset) => offset as i32,
            };
            Slot { immediate: upper, ..Slot::new(0) }.write(&mut bytes);
        }
    }
    Ok(bytes)
}

fn written(
    instruction: &Instruction,
    at: usize,
    distance: &dyn Fn(usize) -> Result<i64, EncodeError>,
) -> Result<Slot, EncodeError> {
    let slot = match *instruction {
        Instruction::LoadWide { to, value } => {
            let (from, immediate) = match value {
                Wide::Number(number) => (WIDE_NUMBER, number as i32),
                Wide::ReadOnly(_) => (WIDE_SECTION, SECTION_READ_ONLY),
                Wide::PerCall(_) => (WIDE_SECTION, SECTION_PER_CALL),
            };
            Some(Slot { to: number(to), from, immediate, ..Slot::new(LOAD_WIDE) })
        }
        Instruction::Load { .. } | Instruction::Store { .. } | Instruction::Atomic { .. } => {
            memory_slot(instruction)
        }
        Instruction::Jump { .. }
        | Instruction::Branch { .. }
        | Instruction::Call { .. }
        | Instruction::Exit => {
            return jump_slot(instruction, at, distance);
        }
        _ => arithmetic_slot(instruction),
    };
    slot.ok_or(EncodeError::Illegal { at })
}

fn arithmetic_slot(instruction: &Instruction) -> Option<Slot> {
    let class = |width| if width == Width::W32 { class::ALU } else { class::ALU64 };
    Some(match *instruction {
        Instruction::Alu { width, op, to, from } => {
            let (code, offset, _) = *ALU_CODES.iter().find(|(_, _, known)| *known == op)?;
            with_operand(Slot { to: number(to), offset, ..Slot::new(code | class(width)) }, from)
        }
        Instruction::Negate { width, to } => Slot { to: number(to), ..Slot::new(NEGATE | class(width)) },
        Instruction::Move { width, to, from } => {
            with_operand(Slot { to: number(to), ..Slot::new(MOVE | class(width)) }, from)
        }
        Instruction::MoveSigned { width, size, to, from } if size.bits() < width.bits() => {
            let opcode = MOVE | FROM_REGISTER | class(width);
            Slot { to: number(to), from: number(from), offset: size.bits() as i16, ..Slot::new(opcode) }
        }
        Instruction::Bytes { order, size, to } if size != Size::B1 => {
            let opcode = match order {
                ByteOrder::Little => BYTES | class::ALU,
                ByteOrder::Big => BYTES | FROM_REGISTER | class::ALU,
                ByteOrder::Swap => BYTES | class::ALU64,
            };
            Slot { to: number(to), immediate: size.bits() as i32, ..Slot::new(opcode) }
        }
        _ => return None,
    })
}

fn memory_slot(instruction: &Instruction) -> Option<Slot> {
    Some(match *instruction {
        Instruction::Load { size, is_signed, to, base, offset } if !(is_signed && size == Size::B8) => {
            let mode = if is_signed { mode::MEMSX } else { mode::MEM };
            let opcode = class::LDX | mode | size_code(size);
            Slot { to: number(to), from: number(base), offset, ..Slot::new(opcode) }
        }
        Instruction::Store { size, base, offset, from } => {
            let slot = Slot { to: number(base), offset, ..Slot::new(mode::MEM | size_code(size)) };
            match from {
                Operand::Register(from) => {
                    Slot { opcode: slot.opcode | class::STX, from: number(from), ..slot }
                }
                Operand::Immediate(immediate) => Slot { opcode: slot.opcode | class::ST, immediate, ..slot },
            }
        }
        Instruction::Atomic { width, op, base, offset, from } => {
            let (immediate, _) = *ATOMIC_CODES.iter().find(|(_, known)| *known == op)?;
            let size = if width == Width::W32 { Size::B4 } else { Size::B8 };
            let opcode = class::STX | mode::ATOMIC | size_code(size);
            Slot { to: number(base), from: number(from), offset, immediate, ..Slot::new(opcode) }
        }
        _ => return None,
    })
}

fn jump_slot(
    instruction: &Instruction,
    at: usize,
    distance: &dyn Fn(usize) -> Result<i64, EncodeError>,
) -> Result<Slot, EncodeError> {
    let too_far = EncodeError::Target { at };
    Ok(match *instruction {
        Instruction::Jump { target } => {
            let distance = distance(target)?;
            match i16::try_from(distance) {
                Ok(offset) => Slot { offset, ..Slot::new(JUMP | class::JMP) },
                Err(_) => {
                    let immediate = i32::try_from(distance).map_err(|_| too_far)?;
                    Slot { immediate, ..Slot::new(JUMP | class::JMP32) }
                }
            }
        }
        Instruction::Branch { width, test, left, right, target } => {
            let code = TEST_CODES.iter().find(|(_, known)| *known == test);
            let (code, _) = *code.ok_or(EncodeError::Illegal { at })?;
            let offset = i16::try_from(distance(target)?).map_err(|_| too_far)?;
            let class = if width == Width::W32 { class::JMP32 } else { class::JMP };
            with_operand(Slot { to: number(left), offset, ..Slot::new(code | class) }, right)
        }
        Instruction::Call { callee: Callee::Helper(helper) } => {
            Slot { from: CALL_HELPER, immediate: helper as i32, ..Slot::new(CALL | class::JMP) }
        }
        Instruction::Call { callee: Callee::Local(target) } => {
            let immediate = i32::try_from(distance(target)?).map_err(|_| too_far)?;
            Slot { from: CALL_LOCAL, immediate, ..Slot::new(CALL | class::JMP) }
        }
        Instruction::Exit => Slot::new(EXIT | class::JMP),
        _ => return Err(EncodeError::Illegal { at }),
    })
}

fn number(register: Register) -> u8 {
    register.index() as u8
}

fn with_operand(slot: Slot, operand: Operand) -> Slot {
    match operand {
        Operand::Register(from) => {
            Slot { opcode: slot.opcode | FROM_REGISTER, from: from.index() as u8, ..slot }
        }
        Operand::Immediate(immediate) => Slot { immediate, ..slot },
    }
}

fn size_code(size: Size) -> u8 {
    match size {
        Size::B4 => 0x00,
        Size::B2 => 0x08,
        Size::B1 => 0x10,
        Size::B8 => 0x18,
    }
}
