//! The dialect of LLVM: statements as C would have them.

use super::cursor::{Cursor, is_register};
use super::mnemonic::{byte_order, mnemonic, wide};
use super::token::Kind;
use super::{ALU_NAMES, ATOMIC_NAMES, Fault, Parsed, SIZE_NAMES, TEST_NAMES, Unreadable};
use crate::isa::{AtomicOp, Instruction, Operand, Register, Size, Wide, Width};

/// Reads an instruction of either dialect; nothing may follow it.
pub(super) fn instruction<'a>(cursor: &mut Cursor<'a, '_>) -> Result<Parsed<'a>, Fault> {
    let column = cursor.column();
    let parsed = match (cursor.peek(), cursor.peek_second()) {
        (Some(Kind::Sign("*")), _) => store(cursor).map(Parsed::from),
        (Some(Kind::Word("lock")), Some(Kind::Sign("*"))) => lock(cursor).map(Parsed::from),
        (Some(Kind::Word("if")), _) => branch(cursor),
        (Some(Kind::Word(word)), _) if is_register(word) => assignment(cursor).map(Parsed::from),
        _ => mnemonic(cursor),
    }?;
    cursor.end()?;
    if parsed.instruction.written() == Some(Register::R10) {
        return Err(Fault { column, what: Unreadable::FrameWritten });
    }
    Ok(parsed)
}

/// Everything that begins with the register it writes.
fn assignment(cursor: &mut Cursor<'_, '_>) -> Result<Instruction, Fault> {
    let (to, width) = cursor.any_register()?;
    if !cursor.eat("=") {
        let op = operator(cursor, "an assignment, such as = or +=", |name| {
            ALU_NAMES.iter().find(|(_, _, known)| *known == name).map(|(op, ..)| *op)
        })?;
        return Ok(Instruction::Alu { width, op, to, from: cursor.operand(width)? });
    }
    match (cursor.peek(), cursor.peek_second()) {
        (Some(Kind::Sign("*")), _) => load(cursor, to, width),
        (Some(Kind::Sign("(")), _) => move_signed(cursor, to, width),
        (Some(Kind::Sign("-")), Some(Kind::Word(_))) => {
            cursor.skip();
            cursor.same_register(to, width)?;
            Ok(Instruction::Negate { width, to })
        }
        (Some(Kind::Word(word)), _) if is_register(word) => {
            Ok(Instruction::Move { width, to, from: Operand::Register(cursor.register(width)?) })
        }
        (Some(Kind::Word("read_only" | "per_call")), _) => {
            let value = wide(cursor)?;
            if width == Width::W32 || !cursor.eat_word("ll") {
                return Err(cursor.expected("ll, as an address has 64 bits"));
            }
            Ok(Instruction::LoadWide { to, value })
        }
        (Some(Kind::Word(word)), _) => match byte_order(word) {
            Some((order, size)) if width == Width::W64 => {
                cursor.skip();
                cursor.same_register(to, width)?;
                Ok(Instruction::Bytes { order, size, to })
            }
            _ => fetch(cursor, to, width),
        },
        _ => number(cursor, to, width),
    }
}

/// A number, of 32 bits unless it says that it has more.
fn number(cursor: &mut Cursor<'_, '_>, to: Register, width: Width) -> Result<Instruction, Fault> {
    let is_negative = matches!(cursor.peek(), Some(Kind::Sign("-")));
    let behind = if is_negative { cursor.peek_third() } else { cursor.peek_second() };
    if width == Width::W64 && behind == Some(Kind::Word("ll")) {
        let value = Wide::Number(cursor.wide()?);
        cursor.skip();
        return Ok(Instruction::LoadWide { to, value });
    }
    Ok(Instruction::Move { width, to, from: Operand::Immediate(cursor.immediate()?) })
}

/// `(s8)r1`
fn move_signed(cursor: &mut Cursor<'_, '_>, to: Register, width: Width) -> Result<Instruction, Fault> {
    cursor.sign("(")?;
    let sizes = SIZE_NAMES.iter().filter(|(size, ..)| size.bits() < width.bits());
    let size = named(cursor, "s8, s16 or, of 64 bits, s32", |name| {
        sizes.clone().find(|(_, _, _, signed)| *signed == name).map(|(size, ..)| *size)
    })?;
    cursor.sign(")")?;
    Ok(Instruction::MoveSigned { width, size, to, from: cursor.register(width)? })
}

/// `*(u8 *)(r1 + 0)`. What is loaded without a sign fills the upper half with zeroes, so both halves' names are right.
fn load(cursor: &mut Cursor<'_, '_>, to: Register, width: Width) -> Result<Instruction, Fault> {
    cursor.sign("*")?;
    let (size, is_signed) = pointer_type(cursor)?;
    let is_lower_half = width == Width::W32;
    if is_lower_half && (is_signed || size == Size::B8) {
        return Err(cursor.expected("u8, u16 or u32 before this, as the register has 32 bits"));
    }
    cursor.sign("(")?;
    let (base, offset) = cursor.address(")")?;
    Ok(Instruction::Load { size, is_signed, to, base, offset })
}

/// `*(u8 *)(r1 + 0) = r2`
fn store(cursor: &mut Cursor<'_, '_>) -> Result<Instruction, Fault> {
    let (size, base, offset) = memory(cursor)?;
    cursor.sign("=")?;
    let is_lower_half = matches!(cursor.peek(), Some(Kind::Word(word)) if word.starts_with('w'));
    let width = if is_lower_half && size != Size::B8 { Width::W32 } else { Width::W64 };
    Ok(Instruction::Store { size, base, offset, from: cursor.operand(width)? })
}

/// `lock *(u64 *)(r1 + 0) += r2`
fn lock(cursor: &mut Cursor<'_, '_>) -> Result<Instruction, Fault> {
    cursor.skip();
    let column = cursor.column();
    let (size, base, offset) = memory(cursor)?;
    let width = word_width(size, column)?;
    let op = operator(cursor, "+=, |=, &= or ^=", |name| {
        ATOMIC_NAMES.iter().find(|(.., known)| *known == name).map(|(bare, ..)| *bare)
    })?;
    let from = atomic_register(cursor, width)?;
    Ok(Instruction::Atomic { width, op, base, offset, from })
}

/// `*(u64 *)(r1 + 0)`
fn memory(cursor: &mut Cursor<'_, '_>) -> Result<(Size, Register, i16), Fault> {
    cursor.sign("*")?;
    let unsigned = cursor.expected("a type without a sign, as this one is stored");
    let (size, is_signed) = pointer_type(cursor)?;
    if is_signed {
        return Err(unsigned);
    }
    cursor.sign("(")?;
    let (base, offset) = cursor.address(")")?;
    Ok((size, base, offset))
}

/// What fetches what was there: `atomic_fetch_add((u64 *)(r1 + 0), r2)`, `xchg_64(r1 + 0, r2)`, `cmpxchg_64(r1 + 0, r0, r2)`.
fn fetch(cursor: &mut Cursor<'_, '_>, to: Register, to_width: Width) -> Result<Instruction, Fault> {
    let unknown = cursor.expected("a value");
    let column = cursor.column();
    let word = cursor.word("a value")?;
    let exchange = match word {
        "xchg_64" => Some((AtomicOp::Exchange, Width::W64)),
        "xchg32_32" => Some((AtomicOp::Exchange, Width::W32)),
        "cmpxchg_64" => Some((AtomicOp::CompareExchange, Width::W64)),
        "cmpxchg32_32" => Some((AtomicOp::CompareExchange, Width::W32)),
        _ => None,
    };
    if let Some((op, width)) = exchange {
        cursor.sign("(")?;
        let (base, offset) = cursor.address(",")?;
        if op == AtomicOp::CompareExchange {
            cursor.same_register(Register::R0, width)?;
            cursor.sign(",")?;
        }
        let from = cursor.register(width)?;
        cursor.sign(")")?;
        let written = if op == AtomicOp::Exchange { from } else { Register::R0 };
        return assigned((to, to_width), (written, width), column).map(|()| Instruction::Atomic {
            width,
            op,
            base,
            offset,
            from,
        });
    }
    let name = word.strip_prefix("atomic_fetch_").ok_or_else(|| unknown.clone())?;
    let op = ATOMIC_NAMES.iter().find(|(_, _, known, _)| *known == name).map(|(_, fetched, ..)| *fetched);
    let op = op.ok_or(unknown)?;
    cursor.sign("(")?;
    let type_column = cursor.column();
    let (size, _) = pointer_type(cursor)?;
    let width = word_width(size, type_column)?;
    cursor.sign("(")?;
    let (base, offset) = cursor.address(")")?;
    cursor.sign(",")?;
    let from = atomic_register(cursor, width)?;
    cursor.sign(")")?;
    // LLVM has named the operand of 32 bits both ways.
    let to_width = if from == to && width == Width::W32 { width } else { to_width };
    assigned((to, to_width), (from, width), column)?;
    Ok(Instruction::Atomic { width, op, base, offset, from })
}

/// The register on the left has to be the one that the operation writes.
fn assigned(left: (Register, Width), written: (Register, Width), column: usize) -> Result<(), Fault> {
    if left == written {
        return Ok(());
    }
    let (register, width) = written;
    let name = format!("{}{}", if width == Width::W32 { "w" } else { "r" }, register.index());
    let expected = "an operation that writes the register on the left";
    let found = format!("one that writes {name}");
    Err(Fault { column, what: Unreadable::Expected { expected, found } })
}

/// `if r1 == 3 goto label`
fn branch<'a>(cursor: &mut Cursor<'a, '_>) -> Result<Parsed<'a>, Fault> {
    cursor.skip();
    let (left, width) = cursor.any_register()?;
    let test = operator(cursor, "a comparison, such as == or s<", |name| {
        TEST_NAMES.iter().find(|(_, _, known)| *known == name).map(|(test, ..)| *test)
    })?;
    let right = cursor.operand(width)?;
    if !cursor.eat_word("goto") {
        return Err(cursor.expected("goto"));
    }
    let target = Some(cursor.target()?);
    Ok(Parsed { instruction: Instruction::Branch { width, test, left, right, target: 0 }, target })
}

/// `(u8 *)`: how many bytes, and whether they have a sign.
fn pointer_type(cursor: &mut Cursor<'_, '_>) -> Result<(Size, bool), Fault> {
    cursor.sign("(")?;
    let found = named(cursor, "a type: u8, u16, u32, u64, s8, s16 or s32", |name| {
        SIZE_NAMES.iter().find_map(|(size, _, unsigned, signed)| match name {
            _ if name == *unsigned => Some((*size, false)),
            _ if name == *signed && *size != Size::B8 => Some((*size, true)),
            _ => None,
        })
    })?;
    cursor.sign("*")?;
    cursor.sign(")")?;
    Ok(found)
}

/// Words of memory that atomic operations work on.
fn word_width(size: Size, column: usize) -> Result<Width, Fault> {
    match size {
        Size::B4 => Ok(Width::W32),
        Size::B8 => Ok(Width::W64),
        Size::B1 | Size::B2 => {
            let found = format!("a type of {} bits", size.bits());
            Err(Fault { column, what: Unreadable::Expected { expected: "u32 or u64", found } })
        }
    }
}

/// The operand of an atomic operation; LLVM before version 12 wrote `r` for both widths.
fn atomic_register(cursor: &mut Cursor<'_, '_>, width: Width) -> Result<Register, Fault> {
    match cursor.peek() {
        Some(Kind::Word(word)) if width == Width::W32 && word.starts_with('r') => cursor.register(Width::W64),
        _ => cursor.register(width),
    }
}

/// A word that means something.
fn named<T>(
    cursor: &mut Cursor<'_, '_>,
    expected: &'static str,
    find: impl Fn(&str) -> Option<T>,
) -> Result<T, Fault> {
    let unknown = cursor.expected(expected);
    find(cursor.word(expected)?).ok_or(unknown)
}

/// An operator, which has an `s` before it if it minds the sign.
fn operator<T>(
    cursor: &mut Cursor<'_, '_>,
    expected: &'static str,
    find: impl Fn(&str) -> Option<T>,
) -> Result<T, Fault> {
    let unknown = cursor.expected(expected);
    let is_signed = cursor.eat_word("s");
    let Some(Kind::Sign(sign)) = cursor.peek() else { return Err(unknown) };
    cursor.skip();
    if is_signed { find(&format!("s{sign}")) } else { find(sign) }.ok_or(unknown)
}
