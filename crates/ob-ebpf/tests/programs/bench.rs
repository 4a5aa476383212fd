//! What verifying and calling the programs costs.

use std::time::Instant;

use ob_ebpf::call::Outcome;
use ob_ebpf::hooks::STORAGE;
use ob_ebpf::interpreter::Interpreter;
use ob_ebpf::verifier::{self, Options};

use crate::PROGRAMS;
use crate::nodes::{bpfkv_file, bytes_of};
use crate::rig::{Request, Rig};
use crate::rocksdb::{DATA, Query, usual_block};

/// Nanoseconds of one of so many, at best.
fn nanoseconds(count: u32, mut work: impl FnMut()) -> f64 {
    let once = || {
        let begin = Instant::now();
        for _ in 0..count {
            work();
        }
        begin.elapsed().as_secs_f64() * 1e9 / f64::from(count)
    };
    std::iter::repeat_with(once).take(9).fold(f64::INFINITY, f64::min)
}

/// A call that does the program's work: its query, and what was read.
fn usual_call(name: &str) -> (Request, Vec<u8>) {
    match name {
        "bpfkv_get" => {
            let keys: Vec<u64> = (0..31).collect();
            (Request::of(&[20]), bpfkv_file(&keys)[..512].to_vec())
        }
        "btree_search" | "btree_search_rust" => {
            let mut words = vec![1, 255];
            words.extend((0..255).chain(0..255));
            (Request::of(&[200]), bytes_of(&words))
        }
        "count_lines" => {
            let line = |at: usize| if at % 80 == 79 { b'\n' } else { b'x' };
            (Request::of(&[4096]), (0..4096).map(line).collect())
        }
        "fetch" => (Request::of(&[]), vec![7; 512]),
        "rocksdb_get" => {
            let block = usual_block();
            let key = b"user00000030";
            let mut request = Request::of(&[8]);
            // One step, which is a data block without a checksum.
            request.scratch[8..12].copy_from_slice(&[key.len() as u8, 0, 1, 0]);
            request.scratch[16..20].copy_from_slice(&(block.len() as u32 - 5).to_le_bytes());
            request.scratch[64..64 + key.len()].copy_from_slice(key);
            (request, block)
        }
        _ => {
            let query = Query { stage: DATA, index_format: 0, sequence: 8, key: b"user00000030".to_vec() };
            (query.request(), usual_block())
        }
    }
}

fn report(count: u32) {
    for name in PROGRAMS {
        let rig = Rig::new(name);
        let (request, data) = usual_call(name);
        let (outcome, executed) = rig.call(&mut request.clone(), &data);
        assert_eq!(outcome, Ok(0), "{name}");
        let verifying = nanoseconds(1 + count / 10_000, || {
            verifier::verify(&rig.program, &STORAGE, Options::default()).unwrap();
        });
        let mut begun = request.clone();
        let mut measure = |count, run: &mut dyn FnMut(&mut ob_ebpf::call::Call<'_>) -> Outcome| {
            nanoseconds(count, || {
                // What the program is told by its query, and what it writes, is in the first bytes.
                begun.scratch[..128].copy_from_slice(&request.scratch[..128]);
                assert_eq!(begun.with_call(&data, &mut *run).0, Ok(0));
            })
        };
        let compiled = measure(count, &mut |call| rig.compiled.run(call));
        let mut interpreter = Interpreter::new();
        let interpreted = measure(1 + count / 100, &mut |call| interpreter.run(&rig.program, &STORAGE, call));
        println!(
            "{name}: verified in {} steps and {:.0} µs; a call with {} accesses, {} of them checked: {compiled:.0} ns compiled, {interpreted:.0} ns interpreted",
            rig.accepted.steps,
            verifying / 1e3,
            executed.accesses,
            executed.checks,
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn calls_cost() {
    report(100_000);
}

#[test]
fn the_measurement_runs() {
    report(10);
}
