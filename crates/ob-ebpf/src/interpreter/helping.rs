//! Calls of helpers, in the order that [`crate::helpers`] says.

use super::memory::Memory;
use super::value::{Pointer, Value};
use crate::call::{FaultKind, Violation};
use crate::helpers;
use crate::isa::Register;
use crate::world::{Argument, Helper, KEY_LEN_MAX, Region};

/// The registers that arguments are in.
pub(super) const ARGUMENTS: [Register; 5] =
    [Register::R1, Register::R2, Register::R3, Register::R4, Register::R5];

/// The arguments of a call: numbers in the one, addresses in the other.
#[derive(Default)]
struct Arguments {
    numbers: [u64; ARGUMENTS.len()],
    pointers: [Option<Pointer>; ARGUMENTS.len()],
}

/// Bytes that a helper was given, which are all where they should be.
#[derive(Clone, Copy)]
struct Bytes {
    pointer: Pointer,
    begin: usize,
    len: usize,
}

/// Calls a helper, whose arguments are in registers.
pub(super) fn call(
    memory: &mut Memory<'_, '_>,
    registers: &[Value; Register::COUNT],
    number: u32,
) -> Result<Value, FaultKind> {
    let helper = Helper::of_number(number).filter(|helper| memory.world.has(*helper));
    let helper = helper.ok_or(FaultKind::Unproven(Violation::NoHelper(number)))?;
    let arguments = read_arguments(helper, registers)?;
    check_lens(helper, &arguments)?;
    memory.call.charge(helpers::fuel_of(helper, &arguments.numbers))?;
    let ranges = find_ranges(memory, helper, &arguments)?;
    let [first, second, ..] = arguments.numbers;
    let result = match (helper, ranges) {
        (Helper::TableLookup, [Some(key), _]) => return look_up(memory, key),
        (Helper::Copy, [Some(to), Some(from)]) => copy(memory, to, from)?,
        (Helper::Crc32c, [Some(bytes), _]) => helpers::crc32c(first, read(memory, bytes)?),
        (Helper::Xxh3, [Some(bytes), _]) => helpers::xxh3(read(memory, bytes)?),
        (Helper::Compare, [Some(left), Some(right)]) => {
            helpers::compare(read(memory, left)?, read(memory, right)?)
        }
        (Helper::Varint, [Some(bytes), Some(into)]) => varint(memory, bytes, into)?,
        (Helper::Log, _) => {
            memory.call.log.log(first, second);
            0
        }
        // The ranges of a helper are those of its signature.
        _ => return Err(FaultKind::Unproven(Violation::NoHelper(number))),
    };
    Ok(Value::Number(result))
}

fn read_arguments(helper: Helper, registers: &[Value; Register::COUNT]) -> Result<Arguments, FaultKind> {
    let mut arguments = Arguments::default();
    let places = arguments.numbers.iter_mut().zip(&mut arguments.pointers);
    for ((argument, register), (number, pointer)) in
        helper.signature().arguments.iter().zip(ARGUMENTS).zip(places)
    {
        let is_number = matches!(argument, Argument::Number | Argument::Len { .. });
        match registers[register.index()] {
            Value::Number(given) if is_number => *number = given,
            Value::Pointer(given) if !is_number => *pointer = Some(given),
            Value::Uninitialised => return unproven(Violation::UninitialisedRegister(register)),
            Value::Number(_) => return unproven(Violation::NumberAsPointer(register)),
            Value::Pointer(_) => return unproven(Violation::PointerAsNumber(register)),
        }
    }
    Ok(arguments)
}

fn check_lens(helper: Helper, arguments: &Arguments) -> Result<(), FaultKind> {
    for (at, (argument, len)) in helper.signature().arguments.iter().zip(arguments.numbers).enumerate() {
        if let Argument::Len { max } = *argument
            && len > max.into()
        {
            return Err(FaultKind::RangeTooLong { helper, argument: at as u8, len, max });
        }
    }
    Ok(())
}

/// The ranges that a helper was given, at most two.
fn find_ranges(
    memory: &Memory<'_, '_>,
    helper: Helper,
    arguments: &Arguments,
) -> Result<[Option<Bytes>; 2], FaultKind> {
    let mut found = [None; 2];
    let mut places = found.iter_mut();
    let lens = arguments.numbers.iter().skip(1);
    for ((argument, pointer), len) in helper.signature().arguments.iter().zip(arguments.pointers).zip(lens) {
        let Some(pointer) = pointer else { continue };
        let len = *len as usize;
        let bytes = if *argument == Argument::Write {
            Bytes { pointer, begin: memory.find_writable(pointer, len)?, len }
        } else {
            let bytes = Bytes { pointer, begin: memory.find(pointer, len)?, len };
            // On the stack, they have to be numbers.
            read(memory, bytes)?;
            bytes
        };
        if let Some(place) = places.next() {
            *place = Some(bytes);
        }
    }
    Ok(found)
}

fn read<'m>(memory: &'m Memory<'_, '_>, bytes: Bytes) -> Result<&'m [u8], FaultKind> {
    memory.read(bytes.pointer, bytes.begin, bytes.len)
}

fn look_up(memory: &mut Memory<'_, '_>, key: Bytes) -> Result<Value, FaultKind> {
    let mut bytes = [0; KEY_LEN_MAX as usize];
    let len = helpers::copy(&mut bytes, read(memory, key)?) as usize;
    let key = bytes.get(..len).unwrap_or_default();
    let is_found = memory.call.table.lookup(key, &mut memory.buffers.table_value);
    Ok(if is_found { Value::Pointer(Pointer::to(Region::TableValue)) } else { Value::Number(0) })
}

/// By way of a third place, since the ranges may overlap.
fn copy(memory: &mut Memory<'_, '_>, to: Bytes, from: Bytes) -> Result<u64, FaultKind> {
    let len = helpers::copy_len(to.len, from.len);
    let mut moving = std::mem::take(&mut memory.buffers.moving);
    moving.clear();
    let copied = read(memory, Bytes { len, ..from }).map(|bytes| moving.extend_from_slice(bytes));
    let copied = copied.and_then(|()| Ok(helpers::copy(memory.write(to.pointer, to.begin, len)?, &moving)));
    memory.buffers.moving = moving;
    copied
}

fn varint(memory: &mut Memory<'_, '_>, bytes: Bytes, into: Bytes) -> Result<u64, FaultKind> {
    let mut begin = [0; helpers::VARINT_LEN_MAX];
    let len = helpers::copy(&mut begin, read(memory, bytes)?) as usize;
    let into = memory.write(into.pointer, into.begin, into.len)?;
    Ok(helpers::varint(begin.get(..len).unwrap_or_default(), into))
}

fn unproven<T>(violation: Violation) -> Result<T, FaultKind> {
    Err(FaultKind::Unproven(violation))
}
