//! Objects as compilers make them, and objects that are wrong in every way.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use crate::common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::elf::{
    ALLOC, EXECUTE, FUNCTION, GLOBAL, HEADER_LEN, Maker, NOBITS, OBJECT, PROGBITS, R_64_32, R_64_64, RELA,
    WRITE,
};
use ob_ebpf::elf::{LoadError, OBJECT_LEN_MAX, Object, Unlinkable};
use ob_ebpf::hooks::STORAGE;
use ob_ebpf::isa::{self, Callee, Instruction, Undecodable, Wide};
use ob_ebpf::program::{Program, ProgramError};
use ob_ebpf::text::{Listing, disassemble};
use ob_ebpf::verifier::{Options, verify};
use ob_ebpf::world::Helper;
use proptest::prelude::*;

/// An object's name and bytes, and what a listing of each of its entries is.
type CheckedIn = (&'static str, &'static [u8], &'static [(&'static str, &'static str)]);

const OBJECTS: [CheckedIn; 6] = [
    ("calls", include_bytes!("objects/calls.o"), &[("calls", include_str!("golden/calls.txt"))]),
    ("data", include_bytes!("objects/data.o"), &[("data", include_str!("golden/data.txt"))]),
    (
        "entries",
        include_bytes!("objects/entries.o"),
        &[("first", include_str!("golden/first.txt")), ("second", include_str!("golden/second.txt"))],
    ),
    ("narrow", include_bytes!("objects/narrow.o"), &[("narrow", include_str!("golden/narrow.txt"))]),
    ("version4", include_bytes!("objects/version4.o"), &[("version4", include_str!("golden/version4.txt"))]),
    ("atomics", include_bytes!("objects/atomics.o"), &[("atomics", include_str!("golden/atomics.txt"))]),
];

fn object(name: &str) -> &'static [u8] {
    OBJECTS.iter().find(|(known, ..)| *known == name).unwrap().1
}

fn load(bytes: &[u8]) -> Result<Program, LoadError> {
    Object::parse(bytes)?.program(None)
}

/// What is wrong with an instruction of a function, and where in the object that is.
fn unlinkable(bytes: &[u8]) -> (String, u64, Unlinkable) {
    match load(bytes) {
        Err(LoadError::Instruction { function, offset, what }) => (function, offset, what),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_clang_has_made_is_what_the_listings_say() {
    for (name, bytes, entries) in OBJECTS {
        let object = Object::parse(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let names: Vec<_> = object.entries().iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, entries.iter().map(|(entry, _)| *entry).collect::<Vec<_>>());
        for (entry, wanted) in entries {
            let program = object.program(Some(entry)).unwrap_or_else(|error| panic!("{entry}: {error}"));
            let found = disassemble(&program, Listing { has_lines: true, has_data: true });
            if std::env::var_os("OB_BLESS").is_some() {
                std::fs::write(format!("{}/tests/golden/{entry}.txt", env!("CARGO_MANIFEST_DIR")), &found)
                    .unwrap();
                continue;
            }
            assert_eq!(found, *wanted, "{entry}: OB_BLESS=1 writes what was found");
        }
    }
}

#[test]
fn what_needs_a_kernel_is_refused() {
    let object = Object::parse(include_bytes!("objects/refused.o")).unwrap();
    let refused = |name: &str| match object.program(Some(name)) {
        Err(LoadError::Instruction { function, what, .. }) if function == name => what,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(refused("map"), Unlinkable::Map("counters".into()));
    assert_eq!(refused("kernel_data"), Unlinkable::Extern("jiffies".into()));
    assert_eq!(refused("kernel_call"), Unlinkable::Extern("kernel_function".into()));
    assert_eq!(refused("kernel_type"), Unlinkable::CoRe);
    assert_eq!(refused("pointers"), Unlinkable::PointersInData(".rodata".into()));
    assert_eq!(refused("indirect"), Unlinkable::FunctionAddress(".text".into()));
    let program = object.program(Some("by_name")).unwrap();
    let call = Instruction::Call { callee: Callee::Helper(Helper::Varint.number()) };
    assert!(program.instructions().contains(&call));
}

#[test]
fn sections_say_the_hooks() {
    let object = Object::parse(object("entries")).unwrap();
    let hooks: Vec<_> =
        object.entries().iter().map(|entry| (entry.name.as_str(), entry.hook.as_str())).collect();
    assert_eq!(hooks, [("first", "storage"), ("second", "offload")]);
    let ambiguous = LoadError::EntryAmbiguous { known: "first, second".into() };
    assert_eq!(object.program(None), Err(ambiguous));
    let missing = LoadError::EntryMissing { name: "third".into(), known: "first, second".into() };
    assert_eq!(object.program(Some("third")), Err(missing));
}

#[test]
fn only_what_is_reached_is_taken() {
    let program = load(object("calls")).unwrap();
    let names: Vec<_> = program.functions().iter().map(|function| function.name.as_str()).collect();
    assert_eq!(names, ["calls", "beside_the_entry", "sum_of_squares", "square"]);
    let first = Object::parse(object("entries")).unwrap().program(Some("first")).unwrap();
    let names: Vec<_> = first.functions().iter().map(|function| function.name.as_str()).collect();
    assert_eq!(names, ["first", "shared"]);
    let helpers = |program: &Program| {
        let calls = program.instructions().iter().filter_map(|instruction| match instruction {
            Instruction::Call { callee: Callee::Helper(number) } => Helper::of_number(*number),
            _ => None,
        });
        calls.collect::<Vec<_>>()
    };
    assert_eq!(helpers(&program), [Helper::Crc32c]);
    assert_eq!(helpers(&first), []);
}

#[test]
fn data_is_laid_out_with_its_alignment() {
    let program = load(object("data")).unwrap();
    // .rodata.magic has three bytes, .rodata.cst32 wants to begin at a multiple of four, .rodata.str1.1 follows.
    let mut read_only = vec![0x0b, 0x0a, 0x0d, 0];
    for prime in [2u32, 3, 5, 7, 11, 13, 17, 19] {
        read_only.extend(prime.to_le_bytes());
    }
    read_only.extend(b"outboard\0card\0");
    assert_eq!(program.read_only(), read_only);
    // .data.step of two bytes, .data at a multiple of eight, .bss of six words.
    let per_call = [&[0x34, 0x12, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0][..], &[0; 24]].concat();
    assert_eq!(program.per_call(), per_call);
    assert_eq!(program.data_len_min(), 64);
    let addresses: Vec<_> = program
        .instructions()
        .iter()
        .filter_map(|instruction| match instruction {
            Instruction::LoadWide { value, .. } => Some(*value),
            _ => None,
        })
        .collect();
    let wanted = [
        Wide::PerCall(0),
        Wide::PerCall(8),
        Wide::ReadOnly(4),
        Wide::PerCall(16),
        Wide::PerCall(16),
        Wide::ReadOnly(0),
        Wide::ReadOnly(36),
        Wide::ReadOnly(45),
    ];
    assert_eq!(addresses, wanted);
}

#[test]
fn lines_are_those_of_the_source() {
    let source = include_str!("objects/calls.c");
    let program = load(object("calls")).unwrap();
    let mut count = 0;
    for at in 0..program.instructions().len() {
        let Some(line) = program.line(at) else { continue };
        assert_eq!(&*line.file, "./calls.c");
        // What would move a cursor is a space.
        let wanted = source.lines().nth(line.line as usize - 1).map(|line| line.replace('\t', " "));
        assert_eq!(wanted.as_deref(), Some(&*line.text));
        count += 1;
    }
    assert!(count * 10 > program.instructions().len() * 9, "{count} of {}", program.instructions().len());
}

#[test]
fn lines_are_not_needed() {
    let with = load(object("data")).unwrap();
    // Both sections begin with the same four bytes, of which they are known.
    let mut bytes = object("data").to_vec();
    let magic = [0x9f, 0xeb, 1, 0];
    let found: Vec<usize> = (0..bytes.len() - 4).filter(|at| bytes[*at..*at + 4] == magic).collect();
    assert_eq!(found.len(), 2);
    found.iter().for_each(|at| bytes[*at] = 0);
    let without = load(&bytes).unwrap();
    assert!(with.line(0).is_some());
    assert!((0..without.instructions().len()).all(|at| without.line(at).is_none()));
    assert_eq!(with.instructions(), without.instructions());
}

/// One function that returns 0.
fn minimal() -> Maker {
    let mut maker = Maker::new();
    let section = maker.code("storage", "r0 = 0\nexit");
    maker.entry("main", section);
    maker
}

#[test]
fn the_least_object_is_a_program() {
    let program = load(&minimal().finish()).unwrap();
    assert_eq!(program.instructions().len(), 2);
    assert_eq!((program.functions()[0].name.as_str(), program.data_len_min()), ("main", 0));
}

#[test]
fn other_files_are_told_apart() {
    assert_eq!(load(&vec![0; OBJECT_LEN_MAX + 1]), Err(LoadError::TooLarge { len: OBJECT_LEN_MAX + 1 }));
    for bytes in [&vec![0; OBJECT_LEN_MAX][..], b"", b"\x7fELF"] {
        assert!(matches!(load(bytes), Err(LoadError::Container { offset: 0, .. })));
    }
    let good = minimal().finish();
    let kind = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        match load(&bytes) {
            Err(LoadError::Kind { wanted, found }) => (wanted, found),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(kind(&|bytes| bytes[4] = 1), ("of 64 bits", "of 32 bits".into()));
    assert_eq!(kind(&|bytes| bytes[5] = 2), ("little-endian", "big-endian".into()));
    assert_eq!(kind(&|bytes| bytes[18] = 62), ("of BPF", "of machine 62".into()));
    assert_eq!(kind(&|bytes| bytes[16] = 2), ("relocatable", "of type 2".into()));
}

#[test]
fn an_entry_is_global_and_not_in_text() {
    let mut maker = Maker::new();
    let text = maker.code(".text", "exit");
    maker.entry("callee", text);
    let own_section = maker.code(".text.other_callee", "exit");
    maker.entry("other_callee", own_section);
    let storage = maker.code("storage", "exit\nexit\nexit");
    maker.symbol("local", FUNCTION, storage, 0, 8);
    maker.symbol("hidden", GLOBAL | FUNCTION, storage, 8, 8);
    maker.hide();
    maker.symbol("label", GLOBAL, storage, 16, 8);
    assert_eq!(load(&maker.finish()), Err(LoadError::NoEntry));
    maker.symbol("entry", GLOBAL | FUNCTION, storage, 16, 8);
    assert_eq!(load(&maker.finish()).unwrap().functions()[0].name, "entry");
}

#[test]
fn symbols_of_functions_make_sense() {
    let with = |symbols: &[(u64, u64)]| {
        let mut maker = Maker::new();
        let storage = maker.code("storage", "r0 = 0\nexit\nexit");
        for (at, (value, len)) in symbols.iter().enumerate() {
            maker.symbol(&format!("f{at}"), GLOBAL | FUNCTION, storage, *value, *len);
        }
        match Object::parse(&maker.finish()).map(|object| object.entries().len()) {
            Err(LoadError::Function { name, begin, what, .. }) => Err((name, begin, what)),
            other => Ok(other.unwrap()),
        }
    };
    let wrong = |name: &str, begin, what| Err((name.to_owned(), begin, what));
    assert_eq!(with(&[(0, 32)]), wrong("f0", 0, "it ends behind its section"));
    assert_eq!(with(&[(8, u64::MAX)]), wrong("f0", 8, "it ends behind its section"));
    assert_eq!(with(&[(4, 8)]), wrong("f0", 4, "it is no multiple of eight bytes"));
    assert_eq!(with(&[(0, 16), (8, 16)]), wrong("f1", 8, "it begins within another function"));
    // Two names of one function.
    assert_eq!(with(&[(0, 16), (0, 16), (16, 8)]), Ok(2));
}

#[test]
fn sections_make_sense() {
    let wrong = |maker: &Maker| match load(&maker.finish()) {
        Err(LoadError::Section { name, offset, what }) => (name, offset, what),
        other => panic!("{other:?}"),
    };
    let mut maker = minimal();
    maker.section("storage/cut", PROGBITS, ALLOC | EXECUTE, &[0; 12]);
    let what = "its instructions are cut: it is no multiple of eight bytes";
    assert_eq!(wrong(&maker), ("storage/cut".into(), HEADER_LEN as u64 + 16, what));

    let mut maker = minimal();
    maker.relocations(1, &[(0, 1, R_64_32)]);
    maker.sections[1].kind = RELA;
    assert_eq!(wrong(&maker).2, "its relocations have addends, as those of BPF do not");

    let mut maker = minimal();
    maker.section("outboard.data_min", PROGBITS, ALLOC, &[64, 0, 0]);
    assert_eq!(wrong(&maker).2, "it holds one u32, the number of bytes of data that the program asks for");

    // A section that ends behind the object.
    let mut maker = minimal();
    maker.sections[0].len = 1 << 40;
    let broken = maker.finish();
    let headers = u64::from_le_bytes(broken[40..48].try_into().unwrap());
    // The first section is none; of the second, where it begins.
    let first = headers as usize + 64 + 24;
    let begin = u64::from_le_bytes(broken[first..first + 8].try_into().unwrap());
    assert!(matches!(load(&broken), Err(LoadError::Container { offset, .. }) if offset == begin));

    // Headers that begin behind the object.
    let mut broken = minimal().finish();
    broken[40..48].copy_from_slice(&(1u64 << 40).to_le_bytes());
    assert!(matches!(load(&broken), Err(LoadError::Container { offset, .. }) if offset == 1 << 40));
}

/// An entry of which one instruction is relocated by a symbol.
fn relocated(text: &str, offset: u64, kind: u32, symbol: impl Fn(&mut Maker) -> u32) -> Vec<u8> {
    let mut maker = Maker::new();
    let storage = maker.code("storage", text);
    maker.entry("main", storage);
    let symbol = symbol(&mut maker);
    maker.relocations(storage, &[(offset, symbol, kind)]);
    maker.finish()
}

const WIDE: &str = "r0 = 0\nr1 = 2 ll\nexit";
const CALL: &str = "r0 = 0\ncall 4294967295\nexit";

#[test]
fn addresses_are_of_the_program_s_own_data() {
    let data = |name: &'static str, bytes: &'static [u8]| {
        move |maker: &mut Maker| {
            let section = maker.section(name, PROGBITS, ALLOC, bytes);
            maker.symbol("", 3, section, 0, 0)
        }
    };
    for (name, value) in [
        (".rodata", Wide::ReadOnly(2)),
        (".rodata.x", Wide::ReadOnly(2)),
        (".data", Wide::PerCall(2)),
        (".bss.x", Wide::PerCall(2)),
    ] {
        let program = load(&relocated(WIDE, 8, R_64_64, data(name, b"abcd"))).unwrap();
        assert!(
            matches!(program.instructions()[1], Instruction::LoadWide { value: found, .. } if found == value)
        );
    }
    // One behind the last byte can still be subtracted from; further out there is nothing.
    assert!(load(&relocated(WIDE, 8, R_64_64, data(".rodata", b"ab"))).is_ok());
    let here = HEADER_LEN as u64 + 8;
    let address = |offset, len| Unlinkable::Address { section: ".rodata".into(), offset, len };
    let short = relocated(WIDE, 8, R_64_64, data(".rodata", b"a"));
    assert_eq!(unlinkable(&short), ("main".into(), here, address(2, 1)));
    let negative = relocated("r0 = 0\nr1 = -1 ll\nexit", 8, R_64_64, data(".rodata", b"a"));
    assert_eq!(unlinkable(&negative).2, address(-1, 1));
    let upper = relocated("r0 = 0\nr1 = 0x100000000 ll\nexit", 8, R_64_64, data(".rodata", b"a"));
    assert_eq!(unlinkable(&upper).2, Unlinkable::Misplaced("an address of 32 bits"));

    for name in [".rodatax", "license", ".strange"] {
        let other = relocated(WIDE, 8, R_64_64, data(name, b"abcd"));
        assert_eq!(unlinkable(&other).2, Unlinkable::Section(name.into()));
    }
    for name in ["maps", ".maps"] {
        let map = relocated(WIDE, 8, R_64_64, |maker| {
            let section = maker.section(name, PROGBITS, ALLOC | WRITE, &[0; 32]);
            maker.symbol("counters", GLOBAL | OBJECT, section, 0, 32)
        });
        assert_eq!(unlinkable(&map).2, Unlinkable::Map("counters".into()));
    }
    let function = relocated(WIDE, 8, R_64_64, |_| 1);
    assert_eq!(unlinkable(&function).2, Unlinkable::FunctionAddress("main".into()));
    let missing = relocated(WIDE, 8, R_64_64, |maker| maker.symbol("jiffies", GLOBAL, 0, 0, 0));
    assert_eq!(unlinkable(&missing).2, Unlinkable::Extern("jiffies".into()));
}

#[test]
fn data_that_nobody_uses_may_hold_anything() {
    let mut maker = Maker::new();
    let storage = maker.code("storage", WIDE);
    let main = maker.entry("main", storage);
    let table = maker.section(".data.rel.ro", PROGBITS, ALLOC | WRITE, &[0; 8]);
    let symbol = maker.symbol("table", OBJECT, table, 0, 8);
    maker.relocations(table, &[(0, main, 2)]);
    let huge = maker.section(".bss.huge", NOBITS, ALLOC | WRITE, &[]);
    maker.sections[huge - 1].len = u64::MAX;
    let huge = maker.symbol("huge", OBJECT, huge, 0, 8);
    assert_eq!(load(&maker.finish()).unwrap().per_call(), []);

    let mut pointers = maker.clone();
    pointers.relocations(storage, &[(8, symbol, R_64_64)]);
    assert_eq!(unlinkable(&pointers.finish()).2, Unlinkable::PointersInData(".data.rel.ro".into()));
    maker.relocations(storage, &[(8, huge, R_64_64)]);
    let too_much = ProgramError::Section { section: "per-call", len: usize::MAX };
    assert_eq!(load(&maker.finish()), Err(LoadError::Program(too_much)));
}

#[test]
fn calls_go_to_functions_and_helpers() {
    // By the name of a helper that is declared extern.
    let bytes = relocated(CALL, 8, R_64_32, |maker| maker.symbol("ob_copy", GLOBAL, 0, 0, 0));
    let copy = Instruction::Call { callee: Callee::Helper(Helper::Copy.number()) };
    assert_eq!(load(&bytes).unwrap().instructions()[1], copy);
    let bytes = relocated(CALL, 8, R_64_32, |maker| maker.symbol("bpf_kfunc", GLOBAL, 0, 0, 0));
    assert_eq!(
        unlinkable(&bytes),
        ("main".into(), HEADER_LEN as u64 + 8, Unlinkable::Extern("bpf_kfunc".into()))
    );

    // By a section and the distance in it: the second function of .text.
    let text = |maker: &mut Maker| {
        let text = maker.code(".text", "exit\nr0 = 7\nexit");
        maker.symbol("first", FUNCTION, text, 0, 8);
        maker.symbol("second", FUNCTION, text, 8, 16);
        maker.symbol("", 3, text, 0, 0)
    };
    let program = load(&relocated("r0 = 0\ncall 0\nexit", 8, R_64_32, text)).unwrap();
    assert_eq!(program.functions()[1].name, "second");
    assert_eq!(program.instructions()[1], Instruction::Call { callee: Callee::Local(3) });
    let inside = relocated("r0 = 0\ncall 1\nexit", 8, R_64_32, text);
    let callee = |offset| Unlinkable::Callee { section: ".text".into(), offset };
    assert_eq!(unlinkable(&inside).2, callee(16));
    let before = relocated("r0 = 0\ncall 4294967294\nexit", 8, R_64_32, text);
    assert_eq!(unlinkable(&before).2, callee(-8));

    // Within a section, without a relocation.
    let mut maker = Maker::new();
    let storage = maker.code("storage", "call local +1\nexit\nr0 = 1\nexit");
    maker.symbol("main", GLOBAL | FUNCTION, storage, 0, 16);
    let callee = Unlinkable::Callee { section: "storage".into(), offset: 16 };
    assert_eq!(unlinkable(&maker.finish()).2, callee);
    maker.symbol("helper", FUNCTION, storage, 16, 16);
    assert_eq!(load(&maker.finish()).unwrap().functions().len(), 2);
}

#[test]
fn relocations_fit_to_their_instructions() {
    let symbol = |maker: &mut Maker| {
        let section = maker.section(".rodata", PROGBITS, ALLOC, b"abcd");
        maker.symbol("table", OBJECT, section, 0, 4)
    };
    let what = |text: &str, offset, kind| unlinkable(&relocated(text, offset, kind, symbol)).2;
    assert_eq!(what(WIDE, 0, R_64_64), Unlinkable::Misplaced("a wide instruction"));
    assert_eq!(what(WIDE, 8, R_64_32), Unlinkable::Misplaced("a call"));
    assert_eq!(what(WIDE, 16, R_64_64), Unlinkable::Misplaced("the beginning of one instruction"));
    assert_eq!(what(WIDE, 9, R_64_64), Unlinkable::Misplaced("the beginning of one instruction"));
    assert_eq!(what(WIDE, 8, 2), Unlinkable::Relocation(2));
    assert_eq!(what(WIDE, 8, 77), Unlinkable::Relocation(77));
    assert_eq!(unlinkable(&relocated(WIDE, 8, R_64_64, |_| 99)).2, Unlinkable::Symbol(99));
    // One that says nothing, and one of what nobody reaches.
    assert!(load(&relocated(WIDE, 8, 0, symbol)).is_ok());
    assert!(load(&relocated(WIDE, 1 << 40, R_64_64, symbol)).is_ok());
    // Two of the same instruction.
    let mut maker = Maker::new();
    let storage = maker.code("storage", WIDE);
    maker.entry("main", storage);
    let symbol = symbol(&mut maker);
    maker.relocations(storage, &[(8, symbol, R_64_64), (8, symbol, R_64_64)]);
    assert_eq!(unlinkable(&maker.finish()).2, Unlinkable::Misplaced("the beginning of one instruction"));
}

#[test]
fn what_is_no_instruction_is_said_of_its_function() {
    let mut maker = Maker::new();
    let text = maker.section(".text", PROGBITS, ALLOC | EXECUTE, &[0xff; 8]);
    let callee = maker.symbol("broken", FUNCTION, text, 0, 8);
    let storage = maker.code("storage", CALL);
    maker.entry("main", storage);
    maker.relocations(storage, &[(8, callee, R_64_32)]);
    let wanted = ("broken".into(), HEADER_LEN as u64, Undecodable::Opcode(0xff).into());
    assert_eq!(unlinkable(&maker.finish()), wanted);

    // The first half of a wide instruction, at a function's end.
    let mut maker = Maker::new();
    let bytes = isa::encode(&[Instruction::Exit]).unwrap();
    let bytes = [&bytes[..], &[0x18, 1, 0, 0, 0, 0, 0, 0]].concat();
    let storage = maker.section("storage", PROGBITS, ALLOC | EXECUTE, &bytes);
    maker.entry("main", storage);
    assert_eq!(unlinkable(&maker.finish()).2, Undecodable::Cut.into());
    // An address that no relocation has put there.
    let mut maker = Maker::new();
    let storage = maker.code("storage", ".read_only 00\nr1 = read_only ll\nexit");
    maker.entry("main", storage);
    let field = Undecodable::Field { field: "source", value: 6 };
    assert_eq!(unlinkable(&maker.finish()).2, field.into());
    // A jump out of the function, whose bytes alone are taken.
    let mut maker = Maker::new();
    let storage = maker.code("storage", "goto +1\nexit\nexit");
    maker.symbol("main", GLOBAL | FUNCTION, storage, 0, 16);
    assert_eq!(unlinkable(&maker.finish()).2, Undecodable::Target(2).into());
    // Instructions that are no program.
    let mut maker = Maker::new();
    let storage = maker.code("storage", "r0 = 1");
    maker.entry("main", storage);
    assert!(matches!(load(&maker.finish()), Err(LoadError::Program(ProgramError::FallsThrough { .. }))));
}

#[test]
fn an_object_can_hold_more_than_a_program() {
    let mut maker = minimal();
    let long = maker.section("other", PROGBITS, ALLOC | EXECUTE, &[0x95, 0, 0, 0, 0, 0, 0, 0].repeat(40_000));
    maker.entry("long", long);
    let bytes = maker.finish();
    let object = Object::parse(&bytes).unwrap();
    assert!(object.program(Some("main")).is_ok());
    let error = object.program(Some("long")).unwrap_err();
    assert!(matches!(
        error,
        LoadError::Instruction { what: Unlinkable::Undecodable(Undecodable::TooLong), .. }
    ));
}

/// `.BTF` and `.BTF.ext` of strings, lines, and what the kernel is to relocate.
fn describe(maker: &mut Maker, strings: &[u8], lines: &[u32], core: &[u32]) {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let btf = [words(&[0x0001_eb9f, 24, 0, 0, 0, strings.len() as u32]), strings.to_vec()].concat();
    let [lines_len, core_len] = [lines, core].map(|words| 4 * words.len() as u32);
    let header = words(&[0x0001_eb9f, 32, 0, 0, 0, lines_len, lines_len, core_len]);
    maker.section(".BTF", PROGBITS, 0, &btf);
    maker.section(".BTF.ext", PROGBITS, 0, &[header, words(lines), words(core)].concat());
}

/// One line, and whether the kernel is to relocate the first instruction.
fn described(maker: &mut Maker, is_core: bool) {
    let core: &[u32] = if is_core { &[16, 1, 1, 0, 0, 0, 0] } else { &[] };
    describe(maker, b"\0storage\0a.c\0int a;\0", &[16, 1, 1, 0, 9, 13, 7 << 10 | 3], core);
}

#[test]
fn lines_can_be_told_by_hand() {
    let mut maker = minimal();
    described(&mut maker, false);
    let program = load(&maker.finish()).unwrap();
    let line = program.line(0).unwrap();
    assert_eq!((&*line.file, line.line, &*line.text), ("a.c", 7, "int a;"));
}

/// Strings of lines may begin anywhere in their section, and many programs may have the same lines.
#[test]
fn no_more_is_kept_of_lines_than_the_object_has() {
    const LINES: usize = 4000;
    let mut maker = Maker::new();
    let entries = "call local long\n exit\n".repeat(2);
    let code = maker.code("storage", &format!("{entries} long: {} exit", "r0 = 0\n".repeat(LINES - 1)));
    for (at, name) in ["first", "second"].into_iter().enumerate() {
        maker.symbol(name, GLOBAL | FUNCTION, code, at as u64 * 16, 16);
    }
    maker.symbol("long", FUNCTION, code, 32, LINES as u64 * 8);
    for strings in [[0xff; 2 * LINES].to_vec(), b"\xff\0".repeat(LINES)] {
        let strings = [&b"\0storage\0"[..], &strings, &[0]].concat();
        let line = |at: u32| [32 + at * 8, 9 + 2 * at, 9 + 2 * ((at + 1) % LINES as u32), 1 << 10];
        let lines: Vec<u32> = (0..LINES as u32).flat_map(line).collect();
        let mut maker = maker.clone();
        describe(&mut maker, &strings, &[&[16, 1, LINES as u32], &*lines].concat(), &[]);
        let bytes = maker.finish();
        let object = Object::parse(&bytes).unwrap();
        let programs = ["first", "second"].map(|name| object.program(Some(name)).unwrap());
        let lines = programs.iter().flat_map(|program| (2..2 + LINES).filter_map(|at| program.line(at)));
        let lines: Vec<_> = lines.collect();
        assert_eq!(lines.len(), 2 * LINES);
        let kept: BTreeMap<_, _> = lines
            .iter()
            .flat_map(|line| [&line.file, &line.text])
            .map(|text| (text.as_ptr(), text.len()))
            .collect();
        // A byte that is no text becomes three.
        assert!(kept.values().sum::<usize>() <= 3 * strings.len());
        assert!(kept.len() <= LINES, "{} strings", kept.len());
    }
}

#[test]
fn what_an_object_says_moves_no_cursor() {
    let mut maker = Maker::new();
    let code = maker.code("storage", "r0 = r3\n exit");
    maker.symbol("ma\x1b[2J\nin", GLOBAL | FUNCTION, code, 0, 16);
    describe(&mut maker, b"\0storage\0a\x1b[2J.c\0r0 =\n\x07r3;\0", &[16, 1, 1, 0, 9, 17, 7 << 10], &[]);
    let bytes = maker.finish();
    let object = Object::parse(&bytes).unwrap();
    assert_eq!(object.entries()[0].name, "ma [2J in");
    let program = Arc::new(object.program(None).unwrap());
    let refused = verify(&program, &STORAGE, Options::default()).unwrap_err().to_string();
    assert!(refused.contains("a [2J.c:7: r0 =  r3;"), "{refused}");
    assert!(refused.lines().all(|line| !line.contains(char::is_control)), "{refused:?}");
    assert_eq!(program.functions()[0].name, "ma [2J in");
}

#[test]
fn what_the_kernel_would_relocate_is_refused() {
    let mut maker = minimal();
    described(&mut maker, true);
    assert_eq!(unlinkable(&maker.finish()), ("main".into(), HEADER_LEN as u64, Unlinkable::CoRe));
}

/// Whatever is broken of the lines, the program is there, unless the one thing that refuses it can still be read.
fn is_loaded_or_core(maker: &Maker) {
    match load(&maker.finish()) {
        Ok(program) => assert_eq!(program.instructions().len(), 2),
        Err(LoadError::Instruction { what: Unlinkable::CoRe, .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn broken_lines_are_no_lines() {
    let mut whole = minimal();
    described(&mut whole, true);
    for section in [1, 2] {
        let bytes = whole.sections[section].bytes.clone();
        for len in 0..bytes.len() {
            let mut maker = whole.clone();
            maker.sections[section].bytes.truncate(len);
            maker.sections[section].len = len as u64;
            is_loaded_or_core(&maker);
        }
        for at in 0..bytes.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut maker = whole.clone();
                maker.sections[section].bytes[at] = byte;
                is_loaded_or_core(&maker);
            }
        }
    }
}

/// Everything in this object is long and overlaps: were it read as often as it is mentioned, this would take hours.
#[test]
fn nothing_takes_the_square_of_the_object_s_length() {
    let mut maker = minimal();
    let long = "n".repeat(1 << 20);
    maker.symbol(&long, FUNCTION, 0, 0, 0);
    for _ in 0..60_000 {
        maker.symbol("", FUNCTION, 1, 0, 16);
    }
    let mut bytes = maker.finish();
    // All symbols are given the long name.
    let name = bytes.windows(8).position(|window| window == b"nnnnnnnn").unwrap();
    let symbols = HEADER_LEN + 16;
    let strings = symbols + 24 * (1 + 2 + 60_000);
    for at in 0..60_000 {
        let at = symbols + 24 * (3 + at);
        bytes[at..at + 4].copy_from_slice(&((name - strings) as u32).to_le_bytes());
    }
    assert!(load(&bytes).unwrap().functions()[0].name.len() <= 128);

    // One table of relocations, mentioned by many sections.
    let mut maker = minimal();
    maker.relocations(1, &vec![(0, 1, 0); 100_000]);
    let relocations = maker.sections[1].clone();
    for _ in 0..1000 {
        let number = maker.section("", relocations.kind, 0, &[]);
        maker.sections[number - 1].info = 1;
    }
    let mut bytes = maker.finish();
    let headers = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    let (offset, len) =
        (bytes[headers + 128 + 24..][..8].to_vec(), bytes[headers + 128 + 32..][..8].to_vec());
    for number in 3..1003 {
        let at = headers + number * 64;
        bytes[at + 24..at + 32].copy_from_slice(&offset);
        bytes[at + 32..at + 40].copy_from_slice(&len);
    }
    let what = "its relocations are those of another section";
    assert!(matches!(load(&bytes), Err(LoadError::Section { what: found, .. }) if found == what));
}

/// Whatever was made of bytes is a program.
fn checked(bytes: &[u8]) -> Result<(), TestCaseError> {
    let Ok(object) = Object::parse(bytes) else { return Ok(()) };
    for entry in object.entries().iter().take(8) {
        if let Ok(program) = object.program(Some(&entry.name)) {
            let again = isa::decode(&isa::encode(program.instructions()).unwrap()).unwrap();
            prop_assert_eq!(again.instructions, program.instructions());
            let listing = disassemble(&program, Listing { has_lines: true, has_data: true });
            prop_assert!(listing.lines().count() > program.instructions().len());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn changed_objects_are_programs_or_refused(
        which in 0..OBJECTS.len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        len in prop_oneof![3 => Just(usize::MAX), 1 => 0..6000usize],
    ) {
        let mut bytes = OBJECTS[which].1.to_vec();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(len);
        checked(&bytes)?;
    }

    /// The same where it hurts: in headers, symbols and relocations, which are words.
    #[test]
    fn changed_words_are_programs_or_refused(
        which in 0..OBJECTS.len(),
        changes in proptest::collection::vec(
            (any::<prop::sample::Index>(), prop_oneof![0..32u32, any::<u32>(), Just(u32::MAX), Just(1 << 31)]), 1..4),
    ) {
        let mut bytes = OBJECTS[which].1.to_vec();
        for (at, word) in changes {
            let at = at.index(bytes.len() / 4) * 4;
            bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        checked(&bytes)?;
    }
}
