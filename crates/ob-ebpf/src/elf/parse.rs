//! The container: sections, symbols and relocations of an object, checked once.

use std::collections::HashMap;

use object::elf::{self, FileHeader64};
use object::endian::LittleEndian;
use object::read::SectionIndex;
use object::read::elf::{FileHeader, Rel, SectionHeader, SectionTable, Sym, SymbolTable};

use super::{LoadError, OBJECT_LEN_MAX, btf::Btf, link};
use crate::isa::SLOT_LEN;
use crate::program::Program;
use crate::text::in_a_line;

type Header = FileHeader64<LittleEndian>;
const ENDIAN: LittleEndian = LittleEndian;

/// An object whose sections, symbols and relocations can be read. What it holds is looked at when a program is made of it.
pub struct Object<'data> {
    pub(super) sections: Vec<Section<'data>>,
    /// By section and place.
    pub(super) functions: Vec<Function>,
    /// Symbols, by their number.
    pub(super) symbols: Vec<Symbol>,
    entries: Vec<Entry>,
    pub(super) btf: Option<Btf<'data>>,
    pub(super) data_len_min: u32,
}

/// A function that a program can begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// For which hook it is, as its section says.
    pub hook: String,
    /// Its number among the functions.
    function: usize,
}

/// What a section is to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Code,
    ReadOnly,
    PerCall,
    Map,
    /// Nothing: names, notes, what debuggers want.
    Other,
}

pub(super) struct Section<'data> {
    pub(super) name: String,
    pub(super) role: Role,
    /// Where it lies in the object.
    pub(super) offset: u64,
    /// Its bytes; none where all are zero.
    pub(super) bytes: &'data [u8],
    /// How many bytes it has in memory.
    pub(super) len: u64,
    pub(super) align: u64,
    /// In the order of their places.
    pub(super) relocations: Vec<Relocation>,
}

#[derive(Clone, Copy)]
pub(super) struct Relocation {
    /// Which byte of the section.
    pub(super) offset: u64,
    pub(super) symbol: u32,
    pub(super) kind: u32,
}

pub(super) struct Symbol {
    pub(super) name: String,
    /// In which section, if in any.
    pub(super) section: Option<usize>,
    pub(super) value: u64,
}

/// A function, as its symbol says.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) section: usize,
    /// Its bytes in the section.
    pub(super) begin: usize,
    pub(super) end: usize,
    pub(super) name: String,
}

impl<'data> Object<'data> {
    /// Reads the container.
    ///
    /// # Errors
    ///
    /// When it is broken, or of another kind.
    pub fn parse(bytes: &'data [u8]) -> Result<Self, LoadError> {
        if bytes.len() > OBJECT_LEN_MAX {
            return Err(LoadError::TooLarge { len: bytes.len() });
        }
        let header = header(bytes)?;
        let headers = header.e_shoff(ENDIAN);
        let table = header.sections(ENDIAN, bytes).map_err(container(headers))?;
        let names = header.section_strings_index(ENDIAN, bytes).map_err(container(headers))?;
        let names = Strings::of(&table, names, headers, bytes)?;
        let mut sections = sections(&table, &names, bytes)?;
        let symbol_table = table.symbols(ENDIAN, bytes, elf::SHT_SYMTAB).map_err(container(headers))?;
        read_relocations(&table, &symbol_table, bytes, &mut sections)?;
        let names = Strings::of(&table, symbol_table.string_section(), headers, bytes)?;
        let begin = sections.get(symbol_table.section().0).map_or(headers, |section| section.offset);
        let symbols = symbols(&symbol_table, begin, &names, sections.len())?;
        let (functions, entries) = functions(&symbol_table, &symbols, &sections)?;
        let content =
            |name: &str| sections.iter().find(|section| section.name == name).map(|found| found.bytes);
        let btf = content(".BTF").and_then(|types| Btf::parse(types, content(".BTF.ext")?));
        let data_len_min = data_len_min(&sections)?;
        Ok(Self { sections, functions, symbols, entries, btf, data_len_min })
    }

    /// The functions that a program can begin with, in the order of their sections.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The program that begins with a function; without a name, with the only one.
    ///
    /// # Errors
    ///
    /// When there is no such function, or it and what it calls are no program.
    pub fn program(&self, name: Option<&str>) -> Result<Program, LoadError> {
        let entry = match (name, self.entries.as_slice()) {
            (_, []) => return Err(LoadError::NoEntry),
            (None, [only]) => only,
            (None, _) => return Err(LoadError::EntryAmbiguous { known: self.known() }),
            (Some(name), entries) => {
                let missing = || LoadError::EntryMissing { name: name.into(), known: self.known() };
                entries.iter().find(|entry| entry.name == name).ok_or_else(missing)?
            }
        };
        link::program(self, entry.function)
    }

    fn known(&self) -> String {
        // An object can have thousands of them, which nobody would read.
        let mut names: Vec<&str> = self.entries.iter().map(|entry| entry.name.as_str()).take(16).collect();
        if names.len() < self.entries.len() {
            names.push("more");
        }
        names.join(", ")
    }
}

/// What is broken in what begins there.
fn container(offset: u64) -> impl Fn(object::read::Error) -> LoadError {
    move |error| LoadError::Container { offset, what: error.to_string() }
}

fn header(bytes: &[u8]) -> Result<&Header, LoadError> {
    // What another kind of object is, can be said before it is read as one of this kind.
    if let Some([0x7f, b'E', b'L', b'F', class, data]) = bytes.first_chunk::<6>() {
        let kind = |wanted, found: &str| Err(LoadError::Kind { wanted, found: found.into() });
        match (class, data) {
            (1, _) => return kind("of 64 bits", "of 32 bits"),
            (_, 2) => return kind("little-endian", "big-endian"),
            _ => {}
        }
    }
    let header = Header::parse(bytes).map_err(container(0))?;
    header.endian().map_err(container(0))?;
    let machine = header.e_machine(ENDIAN);
    if machine != elf::EM_BPF {
        return Err(LoadError::Kind { wanted: "of BPF", found: format!("of machine {}", machine.0) });
    }
    let kind = header.e_type(ENDIAN);
    if kind != elf::ET_REL {
        return Err(LoadError::Kind { wanted: "relocatable", found: format!("of type {}", kind.0) });
    }
    Ok(header)
}

/// Bytes of a name that are read. Names may overlap in the object, so that together they are longer than it is.
const NAME_LEN_MAX: usize = 128;

/// A section of names.
struct Strings<'data>(&'data [u8]);

impl<'data> Strings<'data> {
    fn of(
        table: &SectionTable<'data, Header>,
        index: SectionIndex,
        headers: u64,
        bytes: &'data [u8],
    ) -> Result<Self, LoadError> {
        if index.0 == 0 {
            return Ok(Self(&[]));
        }
        let section = table.section(index).map_err(container(headers))?;
        let offset = section.sh_offset(ENDIAN);
        Ok(Self(section.data(ENDIAN, bytes).map_err(container(offset))?))
    }

    /// The name that begins at an offset, or what of it is read.
    fn get(&self, offset: u32) -> String {
        let rest = self.0.get(offset as usize..).unwrap_or(&[]);
        let name = rest.get(..NAME_LEN_MAX).unwrap_or(rest);
        let len = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        in_a_line(&String::from_utf8_lossy(name.get(..len).unwrap_or(name)))
    }
}

fn sections<'data>(
    table: &SectionTable<'data, Header>,
    names: &Strings<'_>,
    bytes: &'data [u8],
) -> Result<Vec<Section<'data>>, LoadError> {
    let mut sections = Vec::with_capacity(table.len());
    for section in table.iter() {
        let name = names.get(section.sh_name(ENDIAN));
        let is_code = section.sh_flags(ENDIAN).contains(elf::SHF_EXECINSTR);
        let begins = |prefix: &str| {
            name.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let role = match section.sh_type(ENDIAN) {
            elf::SHT_PROGBITS if is_code => Role::Code,
            elf::SHT_PROGBITS if begins(".rodata") => Role::ReadOnly,
            elf::SHT_PROGBITS | elf::SHT_NOBITS if begins(".data") || begins(".bss") => Role::PerCall,
            _ if name == "maps" || name == ".maps" => Role::Map,
            _ => Role::Other,
        };
        let (offset, len) = (section.sh_offset(ENDIAN), section.sh_size(ENDIAN));
        let content = section.data(ENDIAN, bytes).map_err(container(offset))?;
        let align = section.sh_addralign(ENDIAN);
        let wrong = |what| LoadError::Section { name: name.clone(), offset, what };
        if role == Role::Code && !content.len().is_multiple_of(SLOT_LEN) {
            return Err(wrong("its instructions are cut: it is no multiple of eight bytes"));
        }
        sections.push(Section { name, role, offset, bytes: content, len, align, relocations: Vec::new() });
    }
    Ok(sections)
}

/// Puts relocations of what a program may take to their sections, in order.
fn read_relocations(
    table: &SectionTable<'_, Header>,
    symbols: &SymbolTable<'_, Header>,
    bytes: &[u8],
    sections: &mut [Section<'_>],
) -> Result<(), LoadError> {
    // Sections may overlap; what they hold together is not more than the object does.
    let mut room = bytes.len() / size_of::<<Header as FileHeader>::Rel>();
    for section in table.iter() {
        let is_rel = section.sh_type(ENDIAN) == elf::SHT_REL;
        let is_other = matches!(section.sh_type(ENDIAN), elf::SHT_RELA | elf::SHT_CREL);
        let Some(target) = sections.get_mut(section.sh_info(ENDIAN) as usize).filter(|_| is_rel || is_other)
        else {
            continue;
        };
        if matches!(target.role, Role::Other | Role::Map) {
            continue;
        }
        let wrong =
            |what| LoadError::Section { name: target.name.clone(), offset: section.sh_offset(ENDIAN), what };
        if is_other {
            return Err(wrong("its relocations have addends, as those of BPF do not"));
        }
        let offset = section.sh_offset(ENDIAN);
        let Some((found, link)) = section.rel(ENDIAN, bytes).map_err(container(offset))? else { continue };
        if link != symbols.section() {
            return Err(wrong("its relocations are by symbols of another table"));
        }
        room = room
            .checked_sub(found.len())
            .ok_or_else(|| wrong("its relocations are those of another section"))?;
        target.relocations.extend(found.iter().map(|relocation| Relocation {
            offset: relocation.r_offset(ENDIAN),
            symbol: relocation.r_sym(ENDIAN),
            kind: relocation.r_type(ENDIAN).0,
        }));
    }
    for section in sections {
        section.relocations.sort_by_key(|relocation| relocation.offset);
    }
    Ok(())
}

/// The symbols of a table that begins there.
fn symbols(
    table: &SymbolTable<'_, Header>,
    begin: u64,
    names: &Strings<'_>,
    sections: usize,
) -> Result<Vec<Symbol>, LoadError> {
    let mut symbols = Vec::with_capacity(table.len());
    for (index, symbol) in table.enumerate() {
        let offset = begin.saturating_add((index.0 * size_of_val(symbol)) as u64);
        let section = table.symbol_section(ENDIAN, symbol, index).map_err(container(offset))?;
        let section = section.map(|section| section.0).filter(|section| *section < sections);
        symbols.push(Symbol {
            name: names.get(symbol.st_name(ENDIAN)),
            section,
            value: symbol.st_value(ENDIAN),
        });
    }
    Ok(symbols)
}

/// Functions by their places, and which of them are entries.
fn functions(
    table: &SymbolTable<'_, Header>,
    symbols: &[Symbol],
    sections: &[Section<'_>],
) -> Result<(Vec<Function>, Vec<Entry>), LoadError> {
    let mut functions = Vec::new();
    let mut global = HashMap::new();
    for (symbol, Symbol { name, section, value: begin }) in table.iter().zip(symbols) {
        let (begin, len) = (*begin, symbol.st_size(ENDIAN));
        let Some((number, section)) = section.and_then(|number| Some((number, sections.get(number)?))) else {
            continue;
        };
        if symbol.st_type() != elf::STT_FUNC || section.role != Role::Code || len == 0 {
            continue;
        }
        let wrong =
            |what| LoadError::Function { name: name.clone(), section: section.name.clone(), begin, what };
        let end = begin.checked_add(len).filter(|end| *end <= section.bytes.len() as u64);
        let end = end.ok_or_else(|| wrong("it ends behind its section"))?;
        if !(begin | end).is_multiple_of(SLOT_LEN as u64) {
            return Err(wrong("it is no multiple of eight bytes"));
        }
        let is_hidden = symbol.st_visibility() != elf::STV_DEFAULT;
        // Compilers that give each function a section of its own, as Rust's does, call them `.text.` and its name.
        let is_called = section.name == ".text" || section.name.starts_with(".text.");
        let is_global = symbol.st_bind() == elf::STB_GLOBAL && !is_hidden && !is_called;
        // Names of one place are one function, which is an entry if one of them is.
        if is_global {
            global.entry((number, begin as usize)).or_insert_with(|| name.clone());
        }
        functions.push(Function {
            section: number,
            begin: begin as usize,
            end: end as usize,
            name: name.clone(),
        });
    }
    functions.sort_by_key(|function| (function.section, function.begin));
    functions.dedup_by(|next, before| {
        (next.section, next.begin, next.end) == (before.section, before.begin, before.end)
    });
    for pair in functions.windows(2) {
        if let [before, next] = pair
            && before.section == next.section
            && next.begin < before.end
        {
            let section = sections.get(next.section).map_or("", |section| &section.name).into();
            let what = "it begins within another function";
            return Err(LoadError::Function {
                name: next.name.clone(),
                section,
                begin: next.begin as u64,
                what,
            });
        }
    }
    let mut entries = Vec::new();
    for (number, function) in functions.iter_mut().enumerate() {
        let Some(name) = global.remove(&(function.section, function.begin)) else { continue };
        function.name.clone_from(&name);
        let section = sections.get(function.section).map_or("", |section| &section.name);
        let hook = section.split('/').next().unwrap_or(section).into();
        entries.push(Entry { name, hook, function: number });
    }
    Ok((functions, entries))
}

fn data_len_min(sections: &[Section<'_>]) -> Result<u32, LoadError> {
    let Some(section) = sections.iter().find(|section| section.name == "outboard.data_min") else {
        return Ok(0);
    };
    let bytes = <[u8; 4]>::try_from(section.bytes).map_err(|_| LoadError::Section {
        name: section.name.clone(),
        offset: section.offset,
        what: "it holds one u32, the number of bytes of data that the program asks for",
    })?;
    Ok(u32::from_le_bytes(bytes))
}
