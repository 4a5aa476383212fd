//! The header for programs in C says what the tables of hooks and helpers say: it is made from them.
//!
//! `OB_BLESS=1 cargo test -p ob-ebpf header` makes it anew.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::fmt::Write;
use std::path::Path;

use ob_ebpf::hooks;
use ob_ebpf::hooks::record::{Member, MemberKind, Record};
use ob_ebpf::world::{Argument, FIELD_LEN, Field, FieldKind, Helper, Returns, World};

const BEGIN: &str = r#"/*
 * Programs for the card, in C: what they find, and what they can call. docs/programs.md says what a program may do.
 *
 *     clang -target bpf -O2 -g -c -I <where this file is> program.c
 *
 * A program is one function for a hook:
 *
 *     OB_PROGRAM("storage")
 *     u64 program(struct ob_storage *context) { context->done = 1; return 0; }
 *
 * This file is made from the tables in src/hooks and src/world.rs; `OB_BLESS=1 cargo test -p ob-ebpf header` makes it anew.
 */
#ifndef OUTBOARD_PROGRAM_H
#define OUTBOARD_PROGRAM_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char s8;
typedef signed short s16;
typedef signed int s32;
typedef signed long long s64;

/* Marks the function that a hook calls: "storage", or "storage/name" where an object has several. */
#define OB_PROGRAM(hook) __attribute__((section(hook), used))

/* Says how many bytes of data there are at least: the card does not call the program with less, and the verifier counts on it. */
#define OB_DATA_MIN(len) const u32 ob_data_min __attribute__((section("outboard.data_min"), used)) = (len)

/*
 * Numbers lie in data as the format says, which is at any address: these read them from there, the lowest byte first. The card loads
 * from any address; clang believes that eBPF does not, and would take a number of unknown alignment apart into bytes, so it is not told.
 */
typedef u16 __attribute__((may_alias)) ob_any_u16;
typedef u32 __attribute__((may_alias)) ob_any_u32;
typedef u64 __attribute__((may_alias)) ob_any_u64;
#define ob_read_u16(address) (*(const ob_any_u16 *)(address))
#define ob_read_u32(address) (*(const ob_any_u32 *)(address))
#define ob_read_u64(address) (*(const ob_any_u64 *)(address))
"#;

fn context(header: &mut String, world: &World) {
    let name = world.name;
    writeln!(header, "\n/* The hook \"{name}\". */").unwrap();
    writeln!(header, "#define OB_{}_SCRATCH_LEN {}", name.to_uppercase(), world.scratch_len).unwrap();
    writeln!(header, "#define OB_{}_DATA_LEN_MAX {}", name.to_uppercase(), world.data_len_max).unwrap();
    writeln!(header, "\nstruct ob_{name} {{").unwrap();
    for Field { name, kind, purpose } in world.fields {
        let declared = match kind {
            FieldKind::Data => format!("const u8 *{name}"),
            FieldKind::Scratch => format!("u8 *{name}"),
            FieldKind::Result => format!("u64 {name}"),
            FieldKind::Number | FieldKind::DataLen | FieldKind::ScratchLen => format!("const u64 {name}"),
        };
        writeln!(header, "\t{declared}; /* {purpose} */").unwrap();
    }
    writeln!(header, "}};").unwrap();
    for (at, field) in world.fields.iter().enumerate() {
        let offset = at * FIELD_LEN;
        let message = format!("{} is at {offset}", field.name);
        writeln!(
            header,
            "_Static_assert(__builtin_offsetof(struct ob_{name}, {}) == {offset}, \"{message}\");",
            field.name
        )
        .unwrap();
    }
}

fn record(header: &mut String, record: &Record) {
    let Record { name, purpose, members } = record;
    writeln!(header, "\n/* {purpose} */\nstruct {name} {{").unwrap();
    for Member { name, kind, purpose } in *members {
        let declared = match kind {
            MemberKind::U32 => format!("u32 {name}"),
            MemberKind::U64 => format!("u64 {name}"),
            MemberKind::Bytes(len) => format!("u8 {name}[{len}]"),
            MemberKind::Records(of, 1) => format!("struct {} {name}", of.name),
            MemberKind::Records(of, count) => format!("struct {} {name}[{count}]", of.name),
        };
        writeln!(header, "\t{declared}; /* {purpose} */").unwrap();
    }
    writeln!(header, "}};").unwrap();
    let len = record.len();
    writeln!(header, "_Static_assert(sizeof(struct {name}) == {len}, \"{name} has {len} bytes\");").unwrap();
}

fn helper(header: &mut String, helper: Helper) {
    let signature = helper.signature();
    let mut ranges = ["first", "second"].into_iter();
    let mut range = "";
    let arguments = signature.arguments.iter().enumerate().map(|(at, argument)| match argument {
        Argument::Number => format!("u64 number{at}"),
        Argument::Read => {
            range = ranges.next().unwrap();
            format!("const void *{range}")
        }
        Argument::Write => {
            range = ranges.next().unwrap();
            format!("void *{range}")
        }
        Argument::Len { .. } => format!("u64 {range}_len"),
    });
    let arguments = arguments.collect::<Vec<_>>().join(", ");
    let returns = match signature.returns {
        Returns::Number { min, max } if min < 0 && max < i64::MAX => "s64 ",
        Returns::Number { .. } => "u64 ",
        Returns::TableValueOrNull => "const void *",
    };
    let (name, purpose, number) = (signature.name, signature.purpose, helper.number());
    writeln!(header, "\n/* {purpose} */").unwrap();
    writeln!(header, "static {returns}(*const {name})({arguments}) = (void *){number};").unwrap();
}

fn made() -> String {
    let mut header = BEGIN.to_owned();
    hooks::ALL.iter().for_each(|world| context(&mut header, world));
    writeln!(header, "\n/* What lies in scratches. */").unwrap();
    hooks::RECORDS.iter().for_each(|each| record(&mut header, each));
    writeln!(header, "\n/* What programs call: each by its number. */").unwrap();
    Helper::ALL.into_iter().for_each(|each| helper(&mut header, each));
    writeln!(header, "\n#endif").unwrap();
    header
}

#[test]
fn the_header_says_what_the_tables_say() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/outboard_program.h");
    if std::env::var_os("OB_BLESS").is_some() {
        std::fs::write(&path, made()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), made());
}
