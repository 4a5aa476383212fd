//! A case: a program, the memory that it gets, and what comes of it.
//!
//! A file of the public suite is one case; a file of ours has many, each below a line `=== name`. Both are cut into sections by
//! lines that begin with `-- `. The first section of a case of ours is its `asm`.
//!
//! | section | what it holds |
//! |---|---|
//! | `asm` | the program as text |
//! | `raw` | the program as bytes in hexadecimal, or as words of eight bytes |
//! | `mem` | the bytes that `r1` points to; `r2` is how many |
//! | `result` | what the program returns |
//! | `mem after` | what those bytes are then (ours) |
//! | `error` | there is no result; what is said about it contains this text (of ours) |

use ob_ebpf::program::Program;
use ob_ebpf::text;

/// What is to come of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The program returns this.
    Result(u64),
    /// There is no program, or it is stopped; and what is said then.
    Error(String),
}

/// A program, its memory, and what is expected.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) asm: Option<String>,
    pub(crate) raw: Option<Vec<u8>>,
    pub(crate) memory: Vec<u8>,
    pub(crate) memory_after: Option<Vec<u8>>,
    pub(crate) expected: Expected,
}

impl Case {
    /// A case that is only text, as tables make them.
    pub(crate) fn of_text(name: String, asm: String, result: u64) -> Self {
        let expected = Expected::Result(result);
        Self { name, asm: Some(asm), raw: None, memory: Vec::new(), memory_after: None, expected }
    }

    /// The program; the bytes are taken where there are some.
    pub(crate) fn program(&self) -> Result<Program, String> {
        if let Some(raw) = &self.raw {
            return Program::from_bytes(raw).map_err(|error| error.to_string());
        }
        let asm = self.asm.as_deref().unwrap_or_default();
        let assembled = text::assemble(asm).map_err(|error| error.to_string())?;
        assembled.program().map_err(|error| error.to_string())
    }
}

/// The cases of one of our files.
pub(crate) fn read_many(file: &str, text: &str) -> Vec<Case> {
    let parts: Vec<&str> = text.split("\n=== ").collect();
    let cases = parts.iter().skip(1).map(|part| {
        let (name, rest) = part.split_once('\n').unwrap_or((part, ""));
        let name = format!("{file}: {name}");
        read_one(&name, &format!("-- asm\n{rest}")).unwrap_or_else(|error| panic!("{name}: {error}"))
    });
    cases.collect()
}

/// A case of the public suite.
pub(crate) fn read_one(name: &str, text: &str) -> Result<Case, String> {
    let mut case = Case {
        name: name.into(),
        asm: None,
        raw: None,
        memory: Vec::new(),
        memory_after: None,
        expected: Expected::Error(String::new()),
    };
    let mut section = String::new();
    let mut has_expectation = false;
    for line in text.lines() {
        if let Some(next) = line.strip_prefix("-- ") {
            section = next.trim().into();
            match section.as_str() {
                "asm" => case.asm = Some(String::new()),
                "raw" => case.raw = Some(Vec::new()),
                "mem after" => case.memory_after = Some(Vec::new()),
                "result" | "error" => has_expectation = true,
                "mem" | "c" | "no register offset" => {}
                other => return Err(format!("there is no section {other}")),
            }
            continue;
        }
        let bare = line.split('#').next().unwrap_or_default().trim();
        match (section.as_str(), &mut case.expected) {
            ("asm", _) => case.asm.iter_mut().for_each(|asm| *asm += &format!("{line}\n")),
            ("raw", _) => read_hex(bare, case.raw.get_or_insert_default())?,
            ("mem", _) => read_hex(bare, &mut case.memory)?,
            ("mem after", _) => read_hex(bare, case.memory_after.get_or_insert_default())?,
            ("result", expected) if !bare.is_empty() => *expected = Expected::Result(read_number(bare)?),
            ("error", Expected::Error(said)) if !bare.is_empty() => *said = bare.into(),
            _ => {}
        }
    }
    let is_program = case.asm.is_some() || case.raw.is_some();
    if is_program && has_expectation { Ok(case) } else { Err("a program or its result is missing".into()) }
}

/// A number, in decimal or hexadecimal, with a sign or without.
pub(crate) fn read_number(text: &str) -> Result<u64, String> {
    let (is_negative, bare) = text.strip_prefix('-').map_or((false, text), |bare| (true, bare));
    let number = match bare.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(&digits.replace('_', ""), 16),
        None => bare.parse(),
    };
    let number = number.map_err(|error| format!("{text}: {error}"))?;
    Ok(if is_negative { number.wrapping_neg() } else { number })
}

/// Bytes of two digits each, or words of eight bytes that begin with `0x`.
fn read_hex(line: &str, into: &mut Vec<u8>) -> Result<(), String> {
    for word in line.split_whitespace() {
        if word.starts_with("0x") && word.len() > 4 {
            into.extend(read_number(word)?.to_le_bytes());
        } else {
            let digits = word.trim_start_matches("0x");
            into.push(u8::from_str_radix(digits, 16).map_err(|error| format!("{word}: {error}"))?);
        }
    }
    Ok(())
}
