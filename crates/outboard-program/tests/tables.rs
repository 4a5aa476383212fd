//! Contexts and helpers are what the tables of hooks and helpers say: they are made from them.
//!
//! `OB_BLESS=1 cargo test -p outboard-program --test tables` makes them anew.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::fmt::Write;
use std::path::Path;

use ob_ebpf::hooks;
use ob_ebpf::hooks::record::{Member, MemberKind, Record};
use ob_ebpf::world::{Argument, FIELD_LEN, Field, FieldKind, HELPER_LEN_MAX, Helper, Returns, World};

const MADE: &str = "Made from the tables of `ob-ebpf`; `OB_BLESS=1 cargo test -p outboard-program --test tables` makes it anew.";

/// A purpose as a sentence.
fn sentence(purpose: &str) -> String {
    let mut letters = purpose.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    format!("{first}{}.", letters.as_str())
}

/// `storage` as the beginning of a type's name.
fn capitalised(name: &str) -> String {
    sentence(name).trim_end_matches('.').to_owned()
}

/// The type of a record: of `ob_function_scratch`, `FunctionScratch`.
fn type_of(record: &Record) -> String {
    record.name.split('_').skip(1).map(capitalised).collect()
}

/// The type of a hook's scratch: its record, or so many bytes.
fn scratch_of(world: &World) -> String {
    let name = format!("ob_{}_scratch", world.name);
    match hooks::RECORDS.iter().find(|record| record.name == name) {
        Some(record) => type_of(record),
        None => format!("[u8; {}_SCRATCH_LEN]", world.name.to_uppercase()),
    }
}

fn record(text: &mut String, record: &Record) {
    let (kind, len) = (type_of(record), record.len());
    let kinds = record.members.iter().map(|Member { name, kind, purpose }| {
        let (kind, zero) = match kind {
            MemberKind::U32 => ("u32".into(), "0".into()),
            MemberKind::U64 => ("u64".into(), "0".into()),
            MemberKind::Bytes(len) => (format!("[u8; {len}]"), format!("[0; {len}]")),
            MemberKind::Records(of, 1) => (type_of(of), format!("{}::ZEROED", type_of(of))),
            MemberKind::Records(of, count) => {
                (format!("[{}; {count}]", type_of(of)), format!("[{}::ZEROED; {count}]", type_of(of)))
            }
        };
        (name, kind, zero, sentence(purpose))
    });
    let kinds: Vec<_> = kinds.collect();
    writeln!(text, "\n/// {}\n#[derive(Debug)]\n#[repr(C)]\npub struct {kind} {{", sentence(record.purpose))
        .unwrap();
    for (name, kind, _, purpose) in &kinds {
        writeln!(text, "    /// {purpose}\n    pub {name}: {kind},").unwrap();
    }
    writeln!(text, "}}\n\nconst _: () = assert!(size_of::<{kind}>() == {len});").unwrap();
    writeln!(text, "\nimpl {kind} {{\n    /// One of zeroes.").unwrap();
    let zeroes: Vec<_> = kinds.iter().map(|(name, _, zero, _)| format!("{name}: {zero}")).collect();
    let value = format!("Self {{ {} }};", zeroes.join(", "));
    // As rustfmt breaks lines.
    let space = if value.len() > 80 { "\n        " } else { " " };
    writeln!(text, "    pub const ZEROED: Self ={space}{value}\n}}").unwrap();
}

fn context(text: &mut String, world: &World) {
    let (name, upper, data_len_max) = (world.name, world.name.to_uppercase(), world.data_len_max);
    let kind = format!("{}Context", capitalised(name));
    let has_data = world.fields.iter().any(|field| field.kind == FieldKind::Data);
    writeln!(text, "\n/// Bytes of the scratch of the hook `{name}`.").unwrap();
    writeln!(text, "pub const {upper}_SCRATCH_LEN: usize = {};", world.scratch_len).unwrap();
    if has_data {
        writeln!(text, "/// Bytes of data in a call of the hook `{name}`, at most.").unwrap();
        writeln!(text, "pub const {upper}_DATA_LEN_MAX: usize = {data_len_max};").unwrap();
    }
    writeln!(text, "\n/// The context of the hook `{name}`.\n#[repr(C)]").unwrap();
    writeln!(text, "pub struct {kind}<'call> {{").unwrap();
    for Field { name, kind, purpose } in world.fields {
        match kind {
            FieldKind::Data => writeln!(text, "    {name}: *const u8,"),
            FieldKind::Scratch => writeln!(text, "    {name}: *mut u8,"),
            FieldKind::Number | FieldKind::DataLen => writeln!(text, "    {name}: u64,"),
            FieldKind::ScratchLen => writeln!(
                text,
                "    #[allow(dead_code, reason = \"the same in every call, and known from the scratch's type\")]\n    {name}: u64,"
            ),
            FieldKind::Result => writeln!(text, "    /// {}\n    pub {name}: u64,", sentence(purpose)),
        }
        .unwrap();
    }
    writeln!(text, "    memory: PhantomData<&'call mut [u8]>,\n}}\n").unwrap();
    for (at, field) in world.fields.iter().enumerate() {
        writeln!(
            text,
            "const _: () = assert!(offset_of!({kind}<'_>, {}) == {});",
            field.name,
            at * FIELD_LEN
        )
        .unwrap();
    }
    reading(text, world, &kind);
    making(text, world, &kind, has_data);
}

/// What programs do with a context, besides writing results.
fn reading(text: &mut String, world: &World, kind: &str) {
    let scratch = scratch_of(world);
    writeln!(text, "\nimpl<'call> {kind}<'call> {{").unwrap();
    let mut methods = Vec::new();
    for Field { name, kind, purpose } in world.fields {
        // The type says which struct it is.
        let purpose =
            if purpose.starts_with("a struct ob_") { "The scratch.".into() } else { sentence(purpose) };
        let method = match kind {
            FieldKind::Data => format!(
                "pub fn {name}(&self) -> &'call [u8] {{
        // SAFETY: whoever made the context has borrowed so many bytes for as long as the call lasts, and nobody writes them.
        unsafe {{ slice::from_raw_parts(self.{name}, self.{name}_len as usize) }}
    }}"
            ),
            FieldKind::Scratch => format!(
                "pub fn {name}(&mut self) -> &mut {scratch} {{
        // SAFETY: whoever made the context has borrowed so many bytes for as long as the call lasts, to nobody else, and aligned;
        // they are numbers, of any value; and the context is borrowed for as long as they are.
        unsafe {{ &mut *self.{name}.cast() }}
    }}"
            ),
            FieldKind::Number => format!("pub const fn {name}(&self) -> u64 {{\n        self.{name}\n    }}"),
            FieldKind::DataLen | FieldKind::ScratchLen | FieldKind::Result => continue,
        };
        methods.push(format!("    /// {purpose}\n    #[inline(always)]\n    #[must_use]\n    {method}\n"));
    }
    writeln!(text, "{}}}", methods.join("\n")).unwrap();
}

/// What authors do with a context in their tests.
fn making(text: &mut String, world: &World, kind: &str, has_data: bool) {
    let (upper, scratch) = (world.name.to_uppercase(), scratch_of(world));
    let data = if has_data { "data: &'call [u8], " } else { "" };
    writeln!(text, "\n/// For tests of programs; on the card it is the card that makes contexts.").unwrap();
    writeln!(text, "#[cfg(not(target_arch = \"bpf\"))]\nimpl<'call> {kind}<'call> {{").unwrap();
    writeln!(text, "    /// A context of zeroes, and this memory.\n    #[must_use]").unwrap();
    writeln!(text, "    pub fn new({data}scratch: &'call mut {scratch}) -> Self {{").unwrap();
    writeln!(text, "        Self {{").unwrap();
    for Field { name, kind, .. } in world.fields {
        let value = match kind {
            FieldKind::Data => "data.as_ptr()".into(),
            FieldKind::DataLen => "data.len() as u64".into(),
            FieldKind::Scratch => "ptr::from_mut(scratch).cast()".into(),
            FieldKind::ScratchLen => format!("{upper}_SCRATCH_LEN as u64"),
            FieldKind::Number | FieldKind::Result => "0".into(),
        };
        writeln!(text, "            {name}: {value},").unwrap();
    }
    writeln!(text, "            memory: PhantomData,\n        }}\n    }}").unwrap();
    for Field { name, .. } in world.fields.iter().filter(|field| field.kind == FieldKind::Number) {
        writeln!(text, "\n    /// Changes what the program sees as [`Self::{name}`].\n    #[must_use]")
            .unwrap();
        writeln!(text, "    pub const fn with_{name}(mut self, {name}: u64) -> Self {{").unwrap();
        writeln!(text, "        self.{name} = {name};\n        self\n    }}").unwrap();
    }
    writeln!(text, "}}").unwrap();
}

fn contexts() -> String {
    let mut text = format!("//! The contexts of hooks. {MADE}\n\n");
    text += "use core::marker::PhantomData;\nuse core::mem::offset_of;\n#[cfg(not(target_arch = \"bpf\"))]\nuse core::ptr;\nuse core::slice;\n";
    let scratches = hooks::ALL.iter().map(|world| scratch_of(world));
    let records: Vec<_> = scratches.filter(|scratch| !scratch.starts_with('[')).collect();
    if !records.is_empty() {
        writeln!(text, "\nuse crate::records::{{{}}};", sorted(records).join(", ")).unwrap();
    }
    hooks::ALL.iter().for_each(|world| context(&mut text, world));
    text
}

fn sorted(mut names: Vec<String>) -> Vec<String> {
    names.sort();
    names
}

fn records() -> String {
    let mut text = format!("//! What lies in the scratches of hooks. {MADE}\n");
    hooks::RECORDS.iter().for_each(|each| record(&mut text, each));
    text
}

fn helper(text: &mut String, helper: Helper) {
    let signature = helper.signature();
    let mut ranges = ["first", "second"].into_iter();
    let mut range = "";
    let arguments = signature.arguments.iter().enumerate().map(|(at, argument)| match argument {
        Argument::Number => format!("number{at}: u64"),
        Argument::Read => {
            range = ranges.next().unwrap();
            format!("{range}: *const u8")
        }
        Argument::Write => {
            range = ranges.next().unwrap();
            format!("{range}: *mut u8")
        }
        Argument::Len { .. } => format!("{range}_len: u64"),
    });
    let arguments = arguments.collect::<Vec<_>>().join(", ");
    let returns = match signature.returns {
        Returns::Number { min, max } if min < 0 && max < i64::MAX => "i64",
        Returns::Number { .. } => "u64",
        Returns::TableValueOrNull => "*const u8",
    };
    let (name, purpose) = (signature.name, sentence(signature.purpose));
    let line = format!("    pub(super) fn {name}({arguments}) -> {returns};");
    writeln!(text, "    /// {purpose}\n{line}").unwrap();
}

/// The helpers that some hook has.
fn helpers() -> String {
    let mut text = format!("//! The helpers, as they are called. {MADE}\n\n");
    text += "// SAFETY: what the card has under these names takes so many arguments, of these kinds.\nunsafe extern \"C\" {\n";
    let is_there = |helper: &Helper| hooks::ALL.iter().any(|world| world.has(*helper));
    Helper::ALL.into_iter().filter(is_there).for_each(|each| helper(&mut text, each));
    text + "}\n"
}

#[test]
fn contexts_and_helpers_are_what_the_tables_say() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for (file, made) in [("hooks.rs", contexts()), ("records.rs", records()), ("raw.rs", helpers())] {
        let path = sources.join(file);
        if std::env::var_os("OB_BLESS").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        assert_eq!(std::fs::read_to_string(path).unwrap(), made, "{file}");
    }
    assert_eq!(outboard_program::helpers::LEN_MAX, HELPER_LEN_MAX as usize);
}
