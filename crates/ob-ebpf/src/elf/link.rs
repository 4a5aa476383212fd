//! From an entry to a program: the functions that it reaches, one behind the other, and the data that they use.

use std::collections::{BTreeMap, HashMap};

use super::parse::{Function, Object, Relocation, Role, Section, Symbol};
use super::{LoadError, Unlinkable};
use crate::isa::{self, Decoded, INSTRUCTIONS_MAX, SLOT_LEN, Undecodable};
use crate::program::{Parts, Program, ProgramError, SECTION_LEN_MAX};
use crate::world::Helper;

/// Relocations of instructions (the psABI of BPF).
const R_BPF_NONE: u32 = 0;
const R_BPF_64_64: u32 = 1;
const R_BPF_64_32: u32 = 10;
/// Opcodes that relocations are of.
const LOAD_WIDE: u8 = 0x18;
const CALL: u8 = 0x85;
/// What the source of a call says.
const CALL_HELPER: u8 = 0;
const CALL_LOCAL: u8 = 1;
/// What the source of a wide load says when it is an offset into a section, and which.
const WIDE_SECTION: u8 = 6;
const SECTION_READ_ONLY: u32 = 0;
const SECTION_PER_CALL: u32 = 1;

/// The program that begins with a function.
pub(super) fn program(object: &Object<'_>, entry: usize) -> Result<Program, LoadError> {
    let mut linker = Linker {
        object,
        begins: HashMap::new(),
        order: Vec::new(),
        calls: Vec::new(),
        wide: Vec::new(),
        bytes: Vec::new(),
    };
    linker.reach(entry);
    let mut next = 0;
    // The list grows while it is gone through.
    while let Some(function) = linker.order.get(next).copied() {
        linker.take(function)?;
        next += 1;
    }
    linker.finish()
}

/// A place in what was taken that is filled in at the end.
struct Hole {
    /// Which byte.
    at: usize,
    /// What the target is: a function's number, or a section's.
    target: usize,
    /// Of which byte of the section.
    offset: u32,
}

struct Linker<'object, 'data> {
    object: &'object Object<'data>,
    /// Where the functions begin that were taken, in bytes; none yet of those that are only reached.
    begins: HashMap<usize, Option<usize>>,
    /// Functions in the order in which they were reached.
    order: Vec<usize>,
    calls: Vec<Hole>,
    wide: Vec<Hole>,
    bytes: Vec<u8>,
}

/// An instruction of a function, for what is said of it.
struct Place<'a> {
    function: &'a Function,
    section: &'a Section<'a>,
    /// Which byte of the section.
    offset: usize,
}

impl Place<'_> {
    fn wrong(&self, what: Unlinkable) -> LoadError {
        LoadError::Instruction {
            function: self.function.name.clone(),
            offset: self.section.offset.saturating_add(self.offset as u64),
            what,
        }
    }
}

impl<'object, 'data> Linker<'object, 'data> {
    fn reach(&mut self, function: usize) {
        self.begins.entry(function).or_insert_with(|| {
            self.order.push(function);
            None
        });
    }

    /// Takes a function's bytes, and notes what they refer to.
    fn take(&mut self, number: usize) -> Result<(), LoadError> {
        let object = self.object;
        let Some(function) = object.functions.get(number) else { return Ok(()) };
        let Some(section) = object.sections.get(function.section) else { return Ok(()) };
        let code = section.bytes.get(function.begin..function.end).unwrap_or(&[]);
        let base = self.bytes.len();
        let core = object
            .btf
            .as_ref()
            .and_then(|btf| btf.core_relocation(&section.name, function.begin, function.end));
        if let Some(offset) = core {
            return Err(Place { function, section, offset }.wrong(Unlinkable::CoRe));
        }
        if base + code.len() > 2 * INSTRUCTIONS_MAX * SLOT_LEN {
            return Err(
                Place { function, section, offset: function.begin }.wrong(Undecodable::TooLong.into())
            );
        }
        self.begins.insert(number, Some(base));
        self.bytes.extend_from_slice(code);
        let first = section.relocations.partition_point(|found| found.offset < function.begin as u64);
        let mut relocations = section.relocations.iter().skip(first).peekable();
        let (slots, _) = code.as_chunks::<SLOT_LEN>();
        let mut at = 0;
        while let Some(slot) = slots.get(at) {
            let place = Place { function, section, offset: function.begin + at * SLOT_LEN };
            let is_wide = slot[0] == LOAD_WIDE;
            let end = place.offset + if is_wide { 2 * SLOT_LEN } else { SLOT_LEN };
            let mut found = None;
            while let Some(relocation) = relocations.next_if(|next| next.offset < end as u64) {
                if relocation.kind == R_BPF_NONE {
                    continue;
                }
                if relocation.offset != place.offset as u64 || found.is_some() {
                    return Err(place.wrong(Unlinkable::Misplaced("the beginning of one instruction")));
                }
                found = Some(relocation);
            }
            let next = slots.get(at + 1).filter(|_| is_wide);
            if is_wide && next.is_none() {
                // Its other half would be the next function's.
                return Err(place.wrong(Undecodable::Cut.into()));
            }
            self.refer(&place, base + at * SLOT_LEN, slot, next, found)?;
            at += if is_wide { 2 } else { 1 };
        }
        Ok(())
    }

    /// Notes what one instruction refers to; `at` is where it lies in what was taken.
    fn refer(
        &mut self,
        place: &Place<'_>,
        at: usize,
        slot: &[u8; SLOT_LEN],
        next: Option<&[u8; SLOT_LEN]>,
        relocation: Option<&Relocation>,
    ) -> Result<(), LoadError> {
        let [opcode, registers, _, _, i0, i1, i2, i3] = *slot;
        let (source, immediate) = (registers >> 4, i32::from_le_bytes([i0, i1, i2, i3]));
        let Some(relocation) = relocation else {
            return match opcode {
                // Within a section the compiler knows the distance.
                CALL if source == CALL_LOCAL => {
                    let target = place.offset as i64 + (i64::from(immediate) + 1) * SLOT_LEN as i64;
                    self.call(place, at, place.function.section, target)
                }
                LOAD_WIDE if source != 0 => {
                    Err(place.wrong(Undecodable::Field { field: "source", value: source.into() }.into()))
                }
                _ => Ok(()),
            };
        };
        let symbol = self.object.symbols.get(relocation.symbol as usize);
        let symbol = symbol.ok_or_else(|| place.wrong(Unlinkable::Symbol(relocation.symbol)))?;
        match (relocation.kind, opcode) {
            (R_BPF_64_64, LOAD_WIDE) => {
                let upper = next.map_or(0, |[.., i0, i1, i2, i3]| i32::from_le_bytes([*i0, *i1, *i2, *i3]));
                if upper != 0 && upper != immediate >> 31 {
                    return Err(place.wrong(Unlinkable::Misplaced("an address of 32 bits")));
                }
                self.address(place, at, symbol, immediate)
            }
            (R_BPF_64_32, CALL) => self.call_symbol(place, at, symbol, immediate),
            (R_BPF_64_64, _) => Err(place.wrong(Unlinkable::Misplaced("a wide instruction"))),
            (R_BPF_64_32, _) => Err(place.wrong(Unlinkable::Misplaced("a call"))),
            (kind, _) => Err(place.wrong(Unlinkable::Relocation(kind))),
        }
    }

    /// A call by a symbol: a function's, or a section's with the distance in the instruction.
    fn call_symbol(
        &mut self,
        place: &Place<'_>,
        at: usize,
        symbol: &Symbol,
        immediate: i32,
    ) -> Result<(), LoadError> {
        if let Some(section) = symbol.section.filter(|section| *section != 0) {
            let distance = (i64::from(immediate) + 1) * SLOT_LEN as i64;
            let target = i64::try_from(symbol.value).ok().and_then(|value| value.checked_add(distance));
            return self.call(place, at, section, target.unwrap_or(i64::MAX));
        }
        let helper = Helper::ALL.into_iter().find(|helper| helper.signature().name == symbol.name);
        let helper = helper.ok_or_else(|| place.wrong(Unlinkable::Extern(symbol.name.clone())))?;
        self.patch_source(at, CALL_HELPER);
        self.patch(at + 4, &helper.number().to_le_bytes());
        Ok(())
    }

    fn call(&mut self, place: &Place<'_>, at: usize, section: usize, target: i64) -> Result<(), LoadError> {
        let found = usize::try_from(target).ok().and_then(|begin| {
            self.object
                .functions
                .binary_search_by_key(&(section, begin), |known| (known.section, known.begin))
                .ok()
        });
        let Some(function) = found else {
            let section = self.section_name(section);
            return Err(place.wrong(Unlinkable::Callee { section, offset: target }));
        };
        self.reach(function);
        self.patch_source(at, CALL_LOCAL);
        self.calls.push(Hole { at, target: function, offset: 0 });
        Ok(())
    }

    /// An address: a symbol's, and what the instruction adds to it.
    fn address(
        &mut self,
        place: &Place<'_>,
        at: usize,
        symbol: &Symbol,
        immediate: i32,
    ) -> Result<(), LoadError> {
        let found = symbol.section.filter(|number| *number != 0);
        let found = found.and_then(|number| Some((number, self.object.sections.get(number)?)));
        let Some((number, section)) = found else {
            return Err(place.wrong(Unlinkable::Extern(symbol.name.clone())));
        };
        // The symbol of a section itself has no name.
        let name = if symbol.name.is_empty() { &section.name } else { &symbol.name };
        match section.role {
            Role::ReadOnly | Role::PerCall if !section.relocations.is_empty() => {
                return Err(place.wrong(Unlinkable::PointersInData(section.name.clone())));
            }
            Role::ReadOnly | Role::PerCall => {}
            Role::Map => return Err(place.wrong(Unlinkable::Map(name.clone()))),
            Role::Code => return Err(place.wrong(Unlinkable::FunctionAddress(name.clone()))),
            Role::Other => return Err(place.wrong(Unlinkable::Section(section.name.clone()))),
        }
        let offset = i64::try_from(symbol.value).unwrap_or(i64::MAX).saturating_add(immediate.into());
        let inside = u32::try_from(offset).ok().filter(|offset| u64::from(*offset) <= section.len);
        let Some(offset) = inside else {
            let what = Unlinkable::Address { section: section.name.clone(), offset, len: section.len };
            return Err(place.wrong(what));
        };
        self.wide.push(Hole { at, target: number, offset });
        Ok(())
    }

    fn section_name(&self, section: usize) -> String {
        self.object.sections.get(section).map_or_else(String::new, |section| section.name.clone())
    }

    /// Overwrites bytes of what was taken, which are there.
    fn patch(&mut self, at: usize, new: &[u8]) {
        if let Some(bytes) = self.bytes.get_mut(at..at + new.len()) {
            bytes.copy_from_slice(new);
        }
    }

    /// Overwrites the source of an instruction, and leaves its destination.
    fn patch_source(&mut self, at: usize, source: u8) {
        if let Some(registers) = self.bytes.get_mut(at + 1) {
            *registers = source << 4 | *registers & 15;
        }
    }

    fn finish(mut self) -> Result<Program, LoadError> {
        for Hole { at, target, .. } in std::mem::take(&mut self.calls) {
            let begin = self.begins.get(&target).copied().flatten().unwrap_or(0);
            let distance = (begin as i64 - at as i64) / SLOT_LEN as i64 - 1;
            // At most so many slots are taken that this has room.
            self.patch(at + 4, &(distance as i32).to_le_bytes());
        }
        let mut parts = self.fill_addresses()?;
        let decoded = isa::decode(&self.bytes).map_err(|error| self.undecodable(error.slot, error.what))?;
        self.describe(&decoded, &mut parts);
        parts.data_len_min = self.object.data_len_min;
        Ok(Program::new(decoded, parts)?)
    }

    /// Lays out the sections that are used, in the object's order, and tells the instructions where.
    fn fill_addresses(&mut self) -> Result<Parts, LoadError> {
        let mut parts = Parts::default();
        let holes = std::mem::take(&mut self.wide);
        let mut begins: BTreeMap<usize, usize> = holes.iter().map(|hole| (hole.target, 0)).collect();
        for (number, begin) in &mut begins {
            let Some(section) = self.object.sections.get(*number) else { continue };
            let (data, name) = match section.role {
                Role::ReadOnly => (&mut parts.read_only, "read-only"),
                _ => (&mut parts.per_call, "per-call"),
            };
            *begin =
                data.len().next_multiple_of(usize::try_from(section.align).unwrap_or(1).clamp(1, SLOT_LEN));
            let end = (*begin as u64).saturating_add(section.len);
            if end > SECTION_LEN_MAX as u64 {
                let len = usize::try_from(end).unwrap_or(usize::MAX);
                return Err(ProgramError::Section { section: name, len }.into());
            }
            data.resize(*begin, 0);
            data.extend_from_slice(section.bytes);
            // What has no bytes in the object is zero.
            data.resize(end as usize, 0);
        }
        for Hole { at, target, offset } in holes {
            let is_read_only =
                self.object.sections.get(target).is_some_and(|section| section.role == Role::ReadOnly);
            let section = if is_read_only { SECTION_READ_ONLY } else { SECTION_PER_CALL };
            let offset = begins.get(&target).map_or(0, |begin| *begin as u32) + offset;
            self.patch_source(at, WIDE_SECTION);
            self.patch(at + 4, &section.to_le_bytes());
            self.patch(at + 12, &offset.to_le_bytes());
        }
        Ok(parts)
    }

    /// An error of decoding, said of the function and the place in the object.
    fn undecodable(&self, slot: usize, what: Undecodable) -> LoadError {
        let at = slot * SLOT_LEN;
        let taken = self.order.iter().filter_map(|number| {
            let function = self.object.functions.get(*number)?;
            Some((function, self.begins.get(number).copied().flatten()?))
        });
        let found = taken.filter(|(_, begin)| *begin <= at).max_by_key(|(_, begin)| *begin);
        let found = found.and_then(|(function, begin)| {
            let section = self.object.sections.get(function.section)?;
            Some(Place { function, section, offset: function.begin + at - begin }.wrong(what.into()))
        });
        found.unwrap_or(LoadError::Program(isa::DecodeError { slot, what }.into()))
    }

    /// Names and source lines, by the instructions as they are numbered now.
    fn describe(&self, decoded: &Decoded, parts: &mut Parts) {
        let instruction = |byte: usize| decoded.slots.binary_search(&((byte / SLOT_LEN) as u32)).ok();
        for number in &self.order {
            let Some(function) = self.object.functions.get(*number) else { continue };
            let Some(base) = self.begins.get(number).copied().flatten() else { continue };
            parts.names.extend(instruction(base).map(|at| (at, function.name.clone())));
            let (Some(btf), Some(section)) = (&self.object.btf, self.object.sections.get(function.section))
            else {
                continue;
            };
            for (offset, line) in btf.lines(&section.name, function.begin, function.end) {
                let at = instruction(base + offset - function.begin);
                parts.lines.extend(at.map(|at| (at, line)));
            }
        }
    }
}
