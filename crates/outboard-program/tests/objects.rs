//! The checked-in objects do on the card what their sources do on the machine of an author.
//!
//! Their compiler is not one that every machine has (docs/programs.md, "Programs in Rust"): they are compared by what they do, on
//! the same inputs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use ob_ebpf::call::{Call, LogSink, NoTable};
use ob_ebpf::elf::Object;
use ob_ebpf::hooks::STORAGE;
use ob_ebpf::interpreter::Interpreter;
use ob_ebpf::program::Program;
use ob_ebpf::verifier::{Options, verify};
use outboard_program::{STORAGE_SCRATCH_LEN, StorageContext};
use proptest::collection::vec;
use proptest::prelude::*;

#[path = "../../../examples/programs/btree_search_rust.rs"]
#[allow(unused_attributes, unreachable_pub, reason = "a program is a crate of its own otherwise")]
mod btree_search_rust;
#[path = "objects/helpers.rs"]
#[allow(unused_attributes, unreachable_pub, reason = "as above")]
mod helpers;

type Source = extern "C" fn(&mut StorageContext<'_>) -> u64;

/// What a call leaves behind.
#[derive(Debug, PartialEq, Eq)]
struct After {
    result: u64,
    results: [u64; 4],
    scratch: Vec<u8>,
}

#[repr(C, align(8))]
struct Scratch([u8; STORAGE_SCRATCH_LEN]);

#[derive(Default)]
struct Log(RefCell<Vec<(u64, u64)>>);

impl LogSink for Log {
    fn log(&self, first: u64, second: u64) {
        self.0.borrow_mut().push((first, second));
    }
}

fn object(folder: &str, name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    std::fs::read(folder.join(format!("{name}.o"))).unwrap()
}

/// The program of an object, which is accepted.
fn program(folder: &str, name: &str) -> Arc<Program> {
    let program = Arc::new(Object::parse(&object(folder, name)).unwrap().program(None).unwrap());
    verify(&program, &STORAGE, Options::default()).unwrap_or_else(|refused| panic!("{name}: {refused}"));
    program
}

fn scratch(bytes: &[u8]) -> Scratch {
    let mut scratch = Scratch([0; STORAGE_SCRATCH_LEN]);
    scratch.0[..bytes.len()].copy_from_slice(bytes);
    scratch
}

fn on_the_card(program: &Program, data: &[u8], bytes: &[u8], offset: u64) -> (After, Vec<(u64, u64)>) {
    let (mut scratch, log) = (scratch(bytes), Log::default());
    let mut context = [0, 0, 0, 0, 3, offset, 1, 0, 0, 0, 0];
    let (scratch, fuel) = (&mut scratch.0, 1 << 20);
    let mut call = Call { data, scratch, context: &mut context, fuel, table: &NoTable, log: &log };
    let result = Interpreter::new().run(program, &STORAGE, &mut call).unwrap();
    let scratch = call.scratch.to_vec();
    let [.., done, file, next, len] = context;
    (After { result, results: [done, file, next, len], scratch }, log.0.into_inner())
}

fn at_the_authors(source: Source, data: &[u8], bytes: &[u8], offset: u64) -> After {
    let mut scratch = scratch(bytes);
    let mut context =
        StorageContext::new(data, &mut scratch.0).with_file(3).with_offset(offset).with_reads(1);
    let result = source(&mut context);
    let results = [context.done, context.next_file, context.next_offset, context.next_len];
    After { result, results, scratch: scratch.0.to_vec() }
}

proptest! {
    #[test]
    fn helpers_give_the_same(
        data in vec(prop_oneof![any::<u8>(), Just(0x80), Just(0xff), Just(0)], 0..260),
        compared in vec(any::<u8>(), 8),
        is_equal in any::<bool>(),
        offset in any::<u64>(),
    ) {
        let mut bytes = vec![0; 72];
        bytes[64..].copy_from_slice(&compared);
        let data = if is_equal { &compared[..] } else { &data[..] };
        let (found, logged) = on_the_card(&program("tests/objects", "helpers"), data, &bytes, offset);
        prop_assert_eq!(&found, &at_the_authors(helpers::call_helpers, data, &bytes, offset));
        let expected = if data.len() > 256 { vec![] } else { vec![(offset, data.len().min(16) as u64)] };
        prop_assert_eq!(logged, expected);
    }

    #[test]
    fn the_example_gives_the_same(
        mut words in vec(prop_oneof![0u64..20, any::<u64>()], 512),
        is_leaf in any::<bool>(),
        count in prop_oneof![0u64..300, any::<u64>()],
        key in prop_oneof![0u64..20, any::<u64>()],
    ) {
        words[0] = is_leaf.into();
        words[1] = count;
        let keys = 2..2 + (count.min(255) as usize);
        words[keys].sort_unstable();
        let node: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let program = program("../../examples/programs", "btree_search_rust");
        let (found, _) = on_the_card(&program, &node, &key.to_le_bytes(), 0);
        prop_assert_eq!(found, at_the_authors(btree_search_rust::btree_search_rust, &node, &key.to_le_bytes(), 0));
    }
}

#[test]
fn a_program_that_may_panic_is_refused() {
    let bytes = object("tests/objects", "panics");
    let error = Object::parse(&bytes).unwrap().program(None).unwrap_err().to_string();
    assert!(error.contains("panics, ") && error.contains("nothing there may panic"), "{error}");
}
