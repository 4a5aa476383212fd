//! The dialect of the public test files: a mnemonic and its operands.

use super::cursor::Cursor;
use super::token::Kind;
use super::{ALU_NAMES, ATOMIC_NAMES, Fault, Parsed, SIZE_NAMES, TEST_NAMES, Unreadable};
use crate::isa::{AtomicOp, ByteOrder, Callee, Instruction, Operand, Register, Size, Wide, Width};
use crate::world::Helper;

/// Reads an instruction whose first word is a mnemonic.
pub(super) fn mnemonic<'a>(cursor: &mut Cursor<'a, '_>) -> Result<Parsed<'a>, Fault> {
    let column = cursor.column();
    let word = cursor.word("an instruction")?;
    match word {
        "exit" => return Ok(Instruction::Exit.into()),
        "ja" | "ja32" | "goto" | "gotol" => {
            let target = Some(cursor.target()?);
            return Ok(Parsed { instruction: Instruction::Jump { target: 0 }, target });
        }
        "call" => return call(cursor),
        "callx" => return Err(Fault { column, what: Unreadable::CallRegister }),
        "lock" => return lock(cursor).map(Parsed::from),
        "lddw" => {
            let to = first(cursor)?;
            return Ok(Instruction::LoadWide { to, value: wide(cursor)? }.into());
        }
        _ => {}
    }
    if let Some(parsed) = memory(word, cursor)? {
        return Ok(parsed.into());
    }
    if let Some(parsed) = bytes_or_signed(word, cursor)? {
        return Ok(parsed.into());
    }
    let (name, width) = match (word.strip_suffix("32"), word.strip_suffix("64")) {
        (Some(name), _) => (name, Width::W32),
        (_, Some(name)) => (name, Width::W64),
        _ => (word, Width::W64),
    };
    if let Some((test, ..)) = TEST_NAMES.iter().find(|(_, known, _)| *known == name) {
        let left = first(cursor)?;
        let right = cursor.operand(Width::W64)?;
        cursor.sign(",")?;
        let target = Some(cursor.target()?);
        return Ok(Parsed {
            instruction: Instruction::Branch { width, test: *test, left, right, target: 0 },
            target,
        });
    }
    let op = ALU_NAMES.iter().find(|(_, known, _)| *known == name);
    let instruction = match (name, op) {
        ("neg", _) => Instruction::Negate { width, to: cursor.register(Width::W64)? },
        ("mov", _) => Instruction::Move { width, to: first(cursor)?, from: cursor.operand(Width::W64)? },
        (_, Some((op, ..))) => {
            Instruction::Alu { width, op: *op, to: first(cursor)?, from: cursor.operand(Width::W64)? }
        }
        _ => return Err(Fault { column, what: Unreadable::Mnemonic(word.into()) }),
    };
    Ok(instruction.into())
}

/// A register and the comma behind it.
fn first(cursor: &mut Cursor<'_, '_>) -> Result<Register, Fault> {
    let register = cursor.register(Width::W64)?;
    cursor.sign(",")?;
    Ok(register)
}

/// What a wide instruction loads: a number, or the address of a byte of the program's data.
pub(super) fn wide(cursor: &mut Cursor<'_, '_>) -> Result<Wide, Fault> {
    let is_read_only = cursor.eat_word("read_only");
    if !is_read_only && !cursor.eat_word("per_call") {
        return cursor.wide().map(Wide::Number);
    }
    let offset = if cursor.eat("+") { cursor.unsigned("an offset into data")? } else { 0 };
    Ok(if is_read_only { Wide::ReadOnly(offset) } else { Wide::PerCall(offset) })
}

/// Loads and stores.
fn memory(word: &str, cursor: &mut Cursor<'_, '_>) -> Result<Option<Instruction>, Fault> {
    let size_of =
        |suffix: &str| SIZE_NAMES.iter().find(|(_, known, ..)| *known == suffix).map(|(size, ..)| *size);
    if let Some(suffix) = word.strip_prefix("ldx") {
        let (is_signed, suffix) = suffix.strip_prefix('s').map_or((false, suffix), |suffix| (true, suffix));
        let Some(size) = size_of(suffix).filter(|size| !is_signed || *size != Size::B8) else {
            return Ok(None);
        };
        let to = first(cursor)?;
        cursor.sign("[")?;
        let (base, offset) = cursor.address("]")?;
        return Ok(Some(Instruction::Load { size, is_signed, to, base, offset }));
    }
    let Some(suffix) = word.strip_prefix("st") else { return Ok(None) };
    let (is_register, suffix) = suffix.strip_prefix('x').map_or((false, suffix), |suffix| (true, suffix));
    let Some(size) = size_of(suffix) else { return Ok(None) };
    cursor.sign("[")?;
    let (base, offset) = cursor.address("]")?;
    cursor.sign(",")?;
    let from = match is_register {
        true => Operand::Register(cursor.register(Width::W64)?),
        false => Operand::Immediate(cursor.immediate()?),
    };
    Ok(Some(Instruction::Store { size, base, offset, from }))
}

/// What names the bits of its operand: turned bytes, and moves with a sign.
fn bytes_or_signed(word: &str, cursor: &mut Cursor<'_, '_>) -> Result<Option<Instruction>, Fault> {
    if let Some(bits) = word.strip_prefix("movsx") {
        let (size, width) = match bits {
            "832" => (Size::B1, Width::W32),
            "1632" => (Size::B2, Width::W32),
            "864" => (Size::B1, Width::W64),
            "1664" => (Size::B2, Width::W64),
            "3264" => (Size::B4, Width::W64),
            _ => return Ok(None),
        };
        let to = first(cursor)?;
        return Ok(Some(Instruction::MoveSigned { width, size, to, from: cursor.register(Width::W64)? }));
    }
    let Some((order, size)) = byte_order(word) else { return Ok(None) };
    Ok(Some(Instruction::Bytes { order, size, to: cursor.register(Width::W64)? }))
}

/// How bytes are turned, and how many, by the word that both dialects have for it.
pub(super) fn byte_order(word: &str) -> Option<(ByteOrder, Size)> {
    let orders = [
        ("le", ByteOrder::Little),
        ("be", ByteOrder::Big),
        ("bswap", ByteOrder::Swap),
        ("swap", ByteOrder::Swap),
    ];
    let (bits, order) = orders.iter().find_map(|(name, order)| Some((word.strip_prefix(name)?, *order)))?;
    let size = Size::ALL.into_iter().skip(1).find(|size| size.bits().to_string() == bits)?;
    Some((order, size))
}

/// A helper by its number or name, or a function by a label or its distance.
fn call<'a>(cursor: &mut Cursor<'a, '_>) -> Result<Parsed<'a>, Fault> {
    let column = cursor.column();
    if cursor.is_register() {
        return Err(Fault { column, what: Unreadable::CallRegister });
    }
    // `local` and `helper` could be names of functions themselves.
    let is_alone = cursor.peek_second().is_none();
    let local = |target| Parsed { instruction: Instruction::Call { callee: Callee::Local(0) }, target };
    if !is_alone && cursor.eat_word("local") {
        return Ok(local(Some(cursor.target()?)));
    }
    let is_helper = !is_alone && cursor.eat_word("helper");
    if cursor.is_register() {
        return Err(Fault { column, what: Unreadable::CallRegister });
    }
    match cursor.peek() {
        Some(Kind::Number { .. }) => {
            let helper = cursor.unsigned("a helper's number")?;
            Ok(Instruction::Call { callee: Callee::Helper(helper) }.into())
        }
        Some(Kind::Word(name)) if is_helper => {
            let helper = Helper::ALL.into_iter().find(|helper| helper.signature().name == name);
            let helper = helper.ok_or_else(|| cursor.expected("a helper's number or name"))?;
            cursor.skip();
            Ok(Instruction::Call { callee: Callee::Helper(helper.number()) }.into())
        }
        Some(Kind::Word(_)) => Ok(local(Some(cursor.target()?))),
        _ => Err(cursor.expected("a helper's number or name, or a function's name")),
    }
}

/// Atomic operations, behind the word `lock`.
fn lock(cursor: &mut Cursor<'_, '_>) -> Result<Instruction, Fault> {
    let is_fetch = cursor.eat_word("fetch");
    let column = cursor.column();
    let word = cursor.word("an atomic operation")?;
    let (name, width) = match (word.strip_suffix("32"), word.strip_suffix("64")) {
        (Some(name), _) => (name, Width::W32),
        (_, Some(name)) => (name, Width::W64),
        _ => (word, Width::W64),
    };
    let named = ATOMIC_NAMES.iter().find(|(_, _, known, _)| *known == name);
    let op = match (name, named) {
        // They always fetch; whoever says so as well is right.
        ("xchg", _) => AtomicOp::Exchange,
        ("cmpxchg", _) => AtomicOp::CompareExchange,
        (_, Some((_, fetched, ..))) if is_fetch => *fetched,
        (_, Some((bare, ..))) => *bare,
        _ => return Err(Fault { column, what: Unreadable::Mnemonic(word.into()) }),
    };
    cursor.sign("[")?;
    let (base, offset) = cursor.address("]")?;
    cursor.sign(",")?;
    Ok(Instruction::Atomic { width, op, base, offset, from: cursor.register(Width::W64)? })
}
