//! Objects, made by hand, so that they can be wrong in any way.

#![allow(dead_code, reason = "each test takes what it needs")]

pub(crate) const PROGBITS: u32 = 1;
pub(crate) const NOBITS: u32 = 8;
pub(crate) const REL: u32 = 9;
pub(crate) const RELA: u32 = 4;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
pub(crate) const WRITE: u64 = 1;
pub(crate) const ALLOC: u64 = 2;
pub(crate) const EXECUTE: u64 = 4;
pub(crate) const FUNCTION: u8 = 2;
pub(crate) const OBJECT: u8 = 1;
pub(crate) const GLOBAL: u8 = 1 << 4;
pub(crate) const R_64_64: u32 = 1;
pub(crate) const R_64_32: u32 = 10;
pub(crate) const HEADER_LEN: usize = 64;

#[derive(Clone)]
pub(crate) struct Section {
    pub(crate) name: String,
    pub(crate) kind: u32,
    pub(crate) flags: u64,
    pub(crate) bytes: Vec<u8>,
    /// In memory; different from the bytes only where there are none.
    pub(crate) len: u64,
    pub(crate) info: u32,
    pub(crate) align: u64,
}

#[derive(Clone)]
struct Symbol {
    name: String,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    len: u64,
}

/// An object in the making. Its first section is the null one, the last three are names, symbols and their names.
#[derive(Clone)]
pub(crate) struct Maker {
    pub(crate) machine: u16,
    pub(crate) kind: u16,
    pub(crate) sections: Vec<Section>,
    symbols: Vec<Symbol>,
}

impl Maker {
    pub(crate) fn new() -> Self {
        Self { machine: 247, kind: 1, sections: Vec::new(), symbols: Vec::new() }
    }

    /// Adds a section; its number.
    pub(crate) fn section(&mut self, name: &str, kind: u32, flags: u64, bytes: &[u8]) -> usize {
        self.sections.push(Section {
            name: name.into(),
            kind,
            flags,
            bytes: bytes.to_vec(),
            len: bytes.len() as u64,
            info: 0,
            align: 1,
        });
        self.sections.len()
    }

    /// Adds instructions from text, which may hold `call +n` only within themselves.
    pub(crate) fn code(&mut self, name: &str, text: &str) -> usize {
        let instructions = ob_ebpf::text::assemble(text).unwrap().decoded.instructions;
        let bytes = ob_ebpf::isa::encode(&instructions).unwrap();
        self.section(name, PROGBITS, ALLOC | EXECUTE, &bytes)
    }

    /// Adds a symbol; its number.
    pub(crate) fn symbol(&mut self, name: &str, info: u8, section: usize, value: u64, len: u64) -> u32 {
        self.symbols.push(Symbol { name: name.into(), info, other: 0, section: section as u16, value, len });
        self.symbols.len() as u32
    }

    /// Adds a global function that fills a section.
    pub(crate) fn entry(&mut self, name: &str, section: usize) -> u32 {
        let len = self.sections[section - 1].bytes.len() as u64;
        self.symbol(name, GLOBAL | FUNCTION, section, 0, len)
    }

    /// Hides the last symbol from other objects.
    pub(crate) fn hide(&mut self) {
        self.symbols.last_mut().unwrap().other = 2;
    }

    /// Adds relocations of a section: where, by which symbol, and how.
    pub(crate) fn relocations(&mut self, section: usize, relocations: &[(u64, u32, u32)]) {
        let mut bytes = Vec::new();
        for (offset, symbol, kind) in relocations {
            bytes.extend(offset.to_le_bytes());
            bytes.extend((u64::from(*symbol) << 32 | u64::from(*kind)).to_le_bytes());
        }
        let number = self.section(&format!(".rel{section}"), REL, 0, &bytes);
        self.sections[number - 1].info = section as u32;
    }

    pub(crate) fn finish(&self) -> Vec<u8> {
        let mut strings = vec![0];
        let mut name = |name: &str| {
            let at = strings.len() as u32;
            strings.extend(name.bytes().chain([0]));
            at
        };
        let mut symbols = vec![0; 24];
        for symbol in &self.symbols {
            symbols.extend(name(&symbol.name).to_le_bytes());
            symbols.extend([symbol.info, symbol.other]);
            symbols.extend(symbol.section.to_le_bytes());
            symbols.extend(symbol.value.to_le_bytes());
            symbols.extend(symbol.len.to_le_bytes());
        }
        let count = self.sections.len() as u32 + 3;
        let (symtab, strtab) = (count - 2, count - 1);
        let names: Vec<u32> = self.sections.iter().map(|section| name(&section.name)).collect();
        let table = |kind, bytes: Vec<u8>| Section {
            name: String::new(),
            kind,
            flags: 0,
            len: bytes.len() as u64,
            bytes,
            info: 0,
            align: 8,
        };
        let tables = [table(SYMTAB, symbols), table(STRTAB, strings)];
        let mut content: Vec<u8> = Vec::new();
        let mut headers = vec![0; 64];
        for (number, section) in self.sections.iter().chain(&tables).enumerate() {
            let offset = (HEADER_LEN + content.len()) as u64;
            content.extend(&section.bytes);
            let link = match section.kind {
                REL | RELA => symtab,
                SYMTAB => strtab,
                _ => 0,
            };
            headers.extend(names.get(number).copied().unwrap_or(0).to_le_bytes());
            headers.extend(section.kind.to_le_bytes());
            headers.extend(section.flags.to_le_bytes());
            headers.extend(0u64.to_le_bytes());
            headers.extend(offset.to_le_bytes());
            headers.extend(section.len.to_le_bytes());
            headers.extend(link.to_le_bytes());
            headers.extend(section.info.to_le_bytes());
            headers.extend(section.align.to_le_bytes());
            headers.extend(if section.kind == SYMTAB { 24u64 } else { 16 }.to_le_bytes());
        }
        let mut object = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        object.extend(self.kind.to_le_bytes());
        object.extend(self.machine.to_le_bytes());
        object.extend(1u32.to_le_bytes());
        object.extend([0; 16]);
        object.extend(((HEADER_LEN + content.len()) as u64).to_le_bytes());
        object.extend(0u32.to_le_bytes());
        for half in [64, 0, 0, 64, count as u16, strtab as u16] {
            object.extend(half.to_le_bytes());
        }
        object.extend(content);
        object.extend(headers);
        object
    }
}
