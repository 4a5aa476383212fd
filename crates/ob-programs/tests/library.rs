//! What a tenant may load, and what is told of the rest.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

#[path = "../../ob-ebpf/tests/common/elf.rs"]
mod elf;

use elf::{FUNCTION, GLOBAL, Maker, PROGBITS};
use ob_ebpf::compiler::CompileError;
use ob_ebpf::hooks::{ALL, STORAGE, offload};
use ob_ebpf::world::World;
use ob_programs::{Library, Limits, LoadRefusal};

const COUNT_LINES: &[u8] = include_bytes!("../../../examples/programs/count_lines.o");
const BTREE: &[u8] = include_bytes!("../../../examples/programs/btree_search.o");
const KV_GET: &[u8] = include_bytes!("../../../examples/programs/kv_get.o");
const FUNCTION_ALONE: &[u8] = include_bytes!("../../ob-ebpf/tests/objects/function_alone.o");
const HOOK_TWICE: &[u8] = include_bytes!("../../ob-ebpf/tests/objects/hook_twice.o");
const TWO_FUNCTIONS: &[u8] = include_bytes!("../../ob-ebpf/tests/objects/two_functions.o");
const LEAKS: &[u8] = include_bytes!("../../ob-ebpf/tests/objects/leaks.o");

fn load(library: &Library, name: &str, bytes: &[u8], limits: &Limits) -> Result<usize, LoadRefusal> {
    library.load("tenant", name, bytes, &ALL, limits).map(|object| object.entries.len())
}

#[test]
fn a_tenant_has_what_it_loads_until_it_is_taken_out() {
    let (library, limits) = (Library::default(), Limits::default());
    assert_eq!(load(&library, "get", KV_GET, &limits).unwrap(), 3);
    assert_eq!(load(&library, "lines", COUNT_LINES, &limits).unwrap(), 1);
    let names: Vec<String> = library.of("tenant").iter().map(ToString::to_string).collect();
    assert_eq!(names, ["get (predicate, function, check)", "lines (storage)"]);
    assert!(library.of("another").is_empty());
    assert_eq!(library.remove("tenant", "get").unwrap().name, "get");
    assert!(library.remove("tenant", "get").is_none() && library.remove("another", "lines").is_none());
    // Another object of the same name takes its place.
    load(&library, "lines", BTREE, &limits).unwrap();
    let lines = library.find("tenant", "lines").unwrap();
    assert_eq!(lines.entries[0].name, "btree_search");
    assert!(library.find("tenant", "get").is_none() && library.find("another", "lines").is_none());
}

#[test]
fn a_hook_that_nobody_calls_by_name_has_one_program() {
    let (library, limits) = (Library::default(), Limits::default());
    load(&library, "get", KV_GET, &limits).unwrap();
    let taken = load(&library, "more", KV_GET, &limits).unwrap_err();
    assert!(matches!(taken, LoadRefusal::Taken { hook: "predicate", by } if by == "get"));
    assert_eq!(load(&library, "get", KV_GET, &limits).unwrap(), 3, "under the same name it is replaced");
    let get = library.find("tenant", "get").unwrap();
    assert!(get.entry(&offload::PREDICATE).is_some() && get.entry(&offload::CACHE).is_none());
}

#[test]
fn storage_functions_are_found_by_their_objects_and_names() {
    let (library, limits) = (Library::default(), Limits::default());
    load(&library, "lines", COUNT_LINES, &limits).unwrap();
    load(&library, "tree", BTREE, &limits).unwrap();
    assert_eq!(load(&library, "two", TWO_FUNCTIONS, &limits).unwrap(), 2);
    load(&library, "get", KV_GET, &limits).unwrap();
    let named = |object: &str, name: &str| {
        let object = library.find("tenant", object).unwrap();
        object.entry_named(&STORAGE, name).map(|entry| entry.name.clone())
    };
    for (object, name) in [("lines", "count_lines"), ("tree", "btree_search"), ("two", "one"), ("two", "two")]
    {
        assert_eq!(named(object, name).as_deref(), Some(name));
    }
    assert_eq!(named("two", "three"), None);
    // A program of another hook is not one of this, whatever it is called.
    let get = library.find("tenant", "get").unwrap();
    let predicate = get.entry(&offload::PREDICATE).unwrap().name.clone();
    assert_eq!(named("get", &predicate), None);
    assert!(get.entry_named(&offload::PREDICATE, &predicate).is_some());
    // And which of several a hook would call is not a question that has an answer.
    assert!(library.find("tenant", "two").unwrap().entry(&STORAGE).is_none());
}

#[test]
fn functions_of_one_name_are_refused() {
    // No compiler makes this: the second function's name is written over with the first one's.
    let mut bytes = TWO_FUNCTIONS.to_vec();
    for at in 0..bytes.len() - 4 {
        if bytes[at..at + 4] == *b"two\0" {
            bytes[at..at + 3].copy_from_slice(b"one");
        }
    }
    let refused = load(&Library::default(), "a", &bytes, &Limits::default()).unwrap_err();
    assert!(matches!(&refused, LoadRefusal::NameTwice(name) if name == "one"), "{refused}");
}

#[test]
fn what_is_beyond_a_limit_is_refused_and_harms_nobody() {
    let library = Library::default();
    let one = Limits { objects: 1, ..Limits::default() };
    load(&library, "lines", COUNT_LINES, &one).unwrap();
    assert!(matches!(load(&library, "get", KV_GET, &one), Err(LoadRefusal::TooMany { max: 1, .. })));
    load(&library, "lines", BTREE, &one).unwrap();
    library.load("another", "get", KV_GET, &ALL, &one).unwrap();
    let few = Limits { instructions: 200, ..Limits::default() };
    let refused = load(&library, "get", KV_GET, &few).unwrap_err();
    assert!(matches!(refused, LoadRefusal::TooLarge { instructions: 201.., max: 200, .. }), "{refused}");
    let short = Limits { object_len: KV_GET.len() - 1, ..Limits::default() };
    assert!(matches!(load(&library, "get", KV_GET, &short), Err(LoadRefusal::TooLong { .. })));
    assert_eq!(library.of("tenant").len(), 1);
}

/// An object whose entries are short and have a function in common that has as many lines as instructions.
fn entries_of_one_function(count: u64, len: u64) -> Vec<u8> {
    let entries = "call local long\n exit\n".repeat(count as usize);
    let mut maker = Maker::new();
    let code =
        maker.code("storage", &format!("{entries} long: {} exit", "r0 = 0\n".repeat(len as usize - 1)));
    for entry in 0..count {
        maker.symbol(&format!("entry_{entry}"), GLOBAL | FUNCTION, code, entry * 16, 16);
    }
    maker.symbol("long", FUNCTION, code, count * 16, len * 8);
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let strings = [&b"\0storage\0"[..], &[0xff; 40_000]].concat();
    let btf = [words(&[0x0001_eb9f, 24, 0, 0, 0, strings.len() as u32]), strings].concat();
    let line = |at: u32| words(&[(count * 16) as u32 + at * 8, 9 + 2 * at, 10 + 2 * at, 1 << 10]);
    let lines = [words(&[16, 1, len as u32]), (0..len as u32).flat_map(line).collect()].concat();
    let header = words(&[0x0001_eb9f, 24, 0, 0, 0, lines.len() as u32]);
    maker.section(".BTF", PROGBITS, 0, &btf);
    maker.section(".BTF.ext", PROGBITS, 0, &[header, lines].concat());
    maker.finish()
}

#[test]
fn what_is_too_large_is_refused_before_all_of_it_is_made() {
    let (library, limits) = (Library::default(), Limits::default());
    let refused = load(&library, "a", &entries_of_one_function(64, 16_000), &limits).unwrap_err();
    let LoadRefusal::TooLarge { instructions, max, .. } = refused else { panic!("{refused}") };
    assert!(
        instructions < max + 2 * 16_000,
        "{instructions}: it is the one that was too many that is refused"
    );
    assert_eq!(load(&library, "a", &entries_of_one_function(4, 100), &limits).unwrap(), 4);
}

#[test]
fn a_program_that_would_never_begin_is_refused() {
    let library = Library::default();
    let little = Limits { call_fuel: 10, ..Limits::default() };
    let refused = load(&library, "get", KV_GET, &little).unwrap_err();
    assert!(matches!(refused, LoadRefusal::Fuel { fuel: 11.., max: 10, .. }), "{refused}");
    let fuel =
        |max| load(&library, "a", &entries_of_one_function(1, 100), &Limits { call_fuel: max, ..little });
    assert!(matches!(fuel(1), Err(LoadRefusal::Fuel { fuel: 2, max: 1, .. })));
    assert_eq!(fuel(2).unwrap(), 1, "what it calls is paid for when it calls it");
}

#[test]
fn every_refusal_says_what_is_wrong() {
    let (library, limits) = (Library::default(), Limits::default());
    let told = |name: &str, bytes: &[u8], hooks: &[&'static World]| {
        library.load("tenant", name, bytes, hooks, &limits).unwrap_err().to_string()
    };
    for name in ["", ".hidden", "a/b", "a b", &"a".repeat(65), "ä"] {
        assert!(told(name, COUNT_LINES, &ALL).contains("is no name"), "{name}");
    }
    assert!(told("a", b"not an object", &ALL).contains("ELF"));
    assert!(told("a", COUNT_LINES, &[&offload::PREDICATE]).contains("`storage`, which is not here"));
    assert!(told("a", HOOK_TWICE, &ALL).contains("`one` and `two` are both for the hook `predicate`"));
    assert!(told("a", FUNCTION_ALONE, &ALL).contains("a `function` without a `check`"));
    let leaks = told("a", LEAKS, &ALL);
    assert!(leaks.contains("`leaks` is refused: ") && leaks.contains("leaks.c"), "{leaks}");
    assert!(library.of("tenant").is_empty());
}

#[test]
fn nothing_that_is_flipped_in_an_object_panics() {
    let (library, limits) = (Library::default(), Limits::default());
    let mut accepted = 0;
    for at in (0..KV_GET.len()).step_by(97) {
        let mut bytes = KV_GET.to_vec();
        bytes[at] ^= 1 << (at % 8);
        match load(&library, "a", &bytes, &limits) {
            Err(LoadRefusal::Failed(why)) => panic!("byte {at}: {why}"),
            Err(LoadRefusal::NotCompiled { why: CompileError::Generator(why), .. }) => {
                panic!("byte {at}: {why}")
            }
            Err(_) => {}
            Ok(_) => accepted += 1,
        }
    }
    assert!(accepted > 0, "some bytes mean nothing");
}
