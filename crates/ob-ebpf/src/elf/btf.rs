//! Source lines, as the sections `.BTF` and `.BTF.ext` have them.
//!
//! They are for people: what is broken gives no lines, and nothing else. All of it is little-endian words of 32 bits.
//!
//! ```text
//!   .BTF      magic, version, flags | header_len | type_off | type_len | string_off | string_len | ... strings
//!   .BTF.ext  magic, version, flags | header_len | function_off, _len | line_off, _len | relocation_off, _len | ...
//!   lines     record_len | { section's name | count | count records: offset in the section | file | text | line << 10, column }
//! ```

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use crate::isa::SLOT_LEN;
use crate::program::SourceLine;
use crate::text::in_a_line;

const MAGIC: u32 = 0xeb9f;
const VERSION: u32 = 1;
/// Bytes of a file's name or a line that are kept: more than anybody reads.
const STRING_LEN_MAX: usize = 256;
/// The line of a record, above the bits of its column.
const COLUMN_BITS: u32 = 10;

/// What is known of an object's source.
pub(super) struct Btf<'data> {
    strings: &'data [u8],
    /// By section: where a line begins, and what it is.
    lines: HashMap<&'data [u8], Vec<(u32, Line)>>,
    /// By section: instructions that the kernel would relocate.
    core_relocations: HashMap<&'data [u8], Vec<u32>>,
    /// Strings that lines have, by their offsets: an object can have many programs of the same functions.
    known: RefCell<HashMap<u32, Arc<str>>>,
}

#[derive(Clone, Copy)]
struct Line {
    file: u32,
    text: u32,
    line: u32,
}

impl<'data> Btf<'data> {
    /// What two sections say, if they can be read at all.
    pub(super) fn parse(types: &'data [u8], lines: &'data [u8]) -> Option<Self> {
        let header = Header::parse(types)?;
        let strings = header.part(types, 16)?;
        let header = Header::parse(lines)?;
        let mut found = Self {
            strings,
            lines: HashMap::new(),
            core_relocations: HashMap::new(),
            known: RefCell::default(),
        };
        if let Some(part) = header.part(lines, 16) {
            for (section, record) in Records::new(part, strings) {
                if let [offset, file, text, line] = [0, 4, 8, 12].map(|at| word(record, at))
                    && let (Some(offset), Some(file), Some(text), Some(line)) = (offset, file, text, line)
                {
                    let line = Line { file, text, line: line >> COLUMN_BITS };
                    found.lines.entry(section).or_default().push((offset, line));
                }
            }
        }
        if let Some(part) = header.part(lines, 24) {
            for (section, record) in Records::new(part, strings) {
                if let Some(offset) = word(record, 0) {
                    found.core_relocations.entry(section).or_default().push(offset);
                }
            }
        }
        found.lines.values_mut().for_each(|lines| lines.sort_by_key(|(offset, _)| *offset));
        found.core_relocations.values_mut().for_each(|offsets| offsets.sort_unstable());
        Some(found)
    }

    /// The lines of some bytes of a section, in order, with the slots' first bytes where they begin.
    pub(super) fn lines(&self, section: &str, begin: usize, end: usize) -> Vec<(usize, SourceLine)> {
        let mut known = self.known.borrow_mut();
        let mut shared =
            |offset: u32| Arc::clone(known.entry(offset).or_insert_with(|| self.string(offset).into()));
        let lines = self.lines.get(section.as_bytes()).map_or(&[][..], Vec::as_slice);
        let first = lines.partition_point(|(offset, _)| (*offset as usize) < begin);
        let mut records = lines.iter().skip(first).peekable();
        let mut found = Vec::new();
        while let Some((offset, line)) = records.next_if(|(offset, _)| (*offset as usize) < end) {
            // Of several lines at one place the last counts; line 0 is code that belongs to none, as the compiler says.
            let is_last = records.peek().is_none_or(|(next, _)| next != offset);
            if is_last && line.line != 0 && (*offset as usize).is_multiple_of(SLOT_LEN) {
                let line = SourceLine { file: shared(line.file), line: line.line, text: shared(line.text) };
                found.push((*offset as usize, line));
            }
        }
        found
    }

    /// The first instruction within some bytes of a section that the kernel would relocate by its types.
    pub(super) fn core_relocation(&self, section: &str, begin: usize, end: usize) -> Option<usize> {
        let offsets = self.core_relocations.get(section.as_bytes())?;
        let first = offsets.partition_point(|offset| (*offset as usize) < begin);
        offsets.get(first).map(|offset| *offset as usize).filter(|offset| *offset < end)
    }

    fn string(&self, offset: u32) -> String {
        in_a_line(&String::from_utf8_lossy(string(self.strings, offset)))
    }
}

/// The bytes of a string, without the zero behind them. Within another string none begins: so no more is kept of all than there is.
fn string(strings: &[u8], offset: u32) -> &[u8] {
    let (before, rest) = strings.split_at_checked(offset as usize).unwrap_or_default();
    if before.last().is_some_and(|byte| *byte != 0) {
        return &[];
    }
    let rest = rest.get(..STRING_LEN_MAX).unwrap_or(rest);
    let len = rest.iter().position(|byte| *byte == 0).unwrap_or(rest.len());
    rest.get(..len).unwrap_or(rest)
}

/// The beginning of either section.
struct Header {
    len: usize,
}

impl Header {
    fn parse(section: &[u8]) -> Option<Self> {
        let (magic, len) = (word(section, 0)?, word(section, 4)? as usize);
        (magic & 0xff_ffff == MAGIC | VERSION << 16 && len <= section.len()).then_some(Self { len })
    }

    /// A part that the words from `at` on tell the place and the length of; places are counted from the header's end.
    fn part<'data>(&self, section: &'data [u8], at: usize) -> Option<&'data [u8]> {
        if at + 8 > self.len {
            return None;
        }
        let begin = self.len.checked_add(word(section, at)? as usize)?;
        section.get(begin..begin.checked_add(word(section, at + 4)? as usize)?)
    }
}

/// Records, each with its section's name.
struct Records<'data> {
    rest: &'data [u8],
    strings: &'data [u8],
    record_len: usize,
    section: &'data [u8],
    /// How many there are still of this section.
    count: u32,
}

impl<'data> Records<'data> {
    fn new(part: &'data [u8], strings: &'data [u8]) -> Self {
        let record_len = word(part, 0).map_or(0, |len| len as usize);
        Self { rest: part.get(4..).unwrap_or(&[]), strings, record_len, section: &[], count: 0 }
    }
}

impl<'data> Iterator for Records<'data> {
    type Item = (&'data [u8], &'data [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        // Records without bytes would never end.
        if self.record_len < 4 {
            return None;
        }
        while self.count == 0 {
            self.section = string(self.strings, word(self.rest, 0)?);
            self.count = word(self.rest, 4)?;
            self.rest = self.rest.get(8..)?;
        }
        let (record, rest) = self.rest.split_at_checked(self.record_len)?;
        self.rest = rest;
        self.count -= 1;
        Some((self.section, record))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*bytes))
}
