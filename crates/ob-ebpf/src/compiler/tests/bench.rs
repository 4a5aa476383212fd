//! What a call costs. `cargo test --release -p ob-ebpf --lib compiler::tests::bench -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::Instant;

use super::*;
use crate::call::{NoLog, NoTable};

/// Nanoseconds of one of so many, at best.
fn nanoseconds(count: u32, mut work: impl FnMut()) -> f64 {
    let once = || {
        let begin = Instant::now();
        for _ in 0..count {
            work();
        }
        begin.elapsed().as_secs_f64() * 1e9 / f64::from(count)
    };
    std::iter::repeat_with(once).take(15).fold(f64::INFINITY, f64::min)
}

fn measure(compiled: &Compiled, data: &[u8], count: u32, expected: u64) -> f64 {
    let mut words = [0; 8];
    let mut context = [0; 6];
    nanoseconds(count, || {
        let mut call = Call {
            data,
            scratch: bytes_of(&mut words),
            context: &mut context,
            fuel: 1_000_000,
            table: &NoTable,
            log: &NoLog,
        };
        assert_eq!(black_box(compiled).run(&mut call), Ok(expected));
    })
}

/// Sums up the data's bytes, each of which is checked.
const SUM: &str = "
        r2 = *(u64 *)(r1 + 16)
        r3 = *(u64 *)(r1 + 24)
        r0 = 0
        if r3 == 0 goto done
    again:
        r4 = *(u8 *)(r2 + 0)
        r0 += r4
        r2 += 1
        r3 -= 1
        if r3 != 0 goto again
    done:
        exit";

fn sum(data: &[u8], len: usize) -> Option<u64> {
    let mut sum = 0;
    for at in 0..len {
        sum += u64::from(*data.get(black_box(at))?);
    }
    Some(sum)
}

fn report(count: u32) {
    // Without a table, as an empty program's hook may be.
    let plain = Setup { world: World { table_value_len: 0, ..HOOK }, data: vec![3; 1000], ..Setup::new() };
    let empty = compile_observed("r0 = 0\nexit", &plain);
    println!("an empty program: {:.1} ns", measure(&empty, &plain.data, count, 0));
    let with_data = compile_observed(".per_call 00112233445566778899aabbccddeeff\nr0 = 0\nexit", &plain);
    println!(
        "an empty program with 16 bytes of per-call data: {:.1} ns",
        measure(&with_data, &plain.data, count, 0)
    );
    let calling = compile_observed("call inner\nexit\ninner:\nr0 = 0\nexit", &plain);
    println!("a program that calls a function: {:.1} ns", measure(&calling, &plain.data, count, 0));
    for (name, bounds) in [("checked", Bounds::Checked), ("proven", Bounds::Proven)] {
        let summing = compile_observed(SUM, &Setup { bounds, ..plain.clone() });
        let took = measure(&summing, &plain.data, count / 100 + 1, 3000);
        println!("a loop over 1000 bytes, {name}: {took:.0} ns, {} bytes of code", summing.code_len());
    }
    let took =
        nanoseconds(count / 100 + 1, || assert_eq!(sum(black_box(&plain.data), black_box(1000)), Some(3000)));
    println!("the same in Rust, each byte checked: {took:.0} ns");
}

#[test]
#[ignore = "a measurement"]
fn calls_cost() {
    report(1_000_000);
}

#[test]
fn the_measurement_runs() {
    report(10);
}
