//! How long a call can take: programs that go around until their fuel is spent, with nothing but what takes processors long.

use std::sync::Arc;
use std::time::Duration;

use ob_ebpf::call::{Call, CallError, Fault, FaultKind, NoLog, NoTable};
use ob_ebpf::compiler;
use ob_ebpf::hooks::{CALL_FUEL_MAX, STORAGE, STORAGE_DATA_LEN_MAX};
use ob_ebpf::text::assemble;
use ob_ebpf::verifier::{self, Options};
use zerocopy::IntoBytes;

use super::BenchFailure;
use super::contenders::SCRATCH_LEN;
use crate::accounting::thread_cpu;

/// A program that never ends: what it begins with, and what it does again and again.
struct Endless {
    name: &'static str,
    first: &'static str,
    again: &'static str,
}

/// How often the lines are repeated within the loop, so that going around is not what is measured.
const REPEATED: usize = 10;
/// What offsets into the data are made of: a generator whose next number needs the one before.
const RANDOM: &str = "r3 = 12345
    r5 = 0x5851f42d4c957f2d ll
    r6 = *(u64 *)(r1 + 0)";

const PROGRAMS: [Endless; 8] = [
    Endless { name: "sums", first: "r3 = 7", again: "r3 += 3" },
    Endless {
        name: "atomics",
        first: "r3 = 7
            *(u64 *)(r10 - 8) = 0",
        again: "lock *(u64 *)(r10 - 8) += r3",
    },
    Endless {
        name: "divisions",
        first: "r3 = 7
            r4 = 0xffffffffffff ll
            r5 = 0xffffffffffff ll",
        again: "r4 /= r3
            r4 |= r5",
    },
    // A processor hands what was just written to who reads it, but not two pieces at once.
    Endless {
        name: "pieces_read_as_one",
        first: "r3 = 7
            *(u64 *)(r10 - 8) = 0",
        again: "*(u8 *)(r10 - 8) = r3
            r3 = *(u64 *)(r10 - 8)",
    },
    Endless {
        name: "loads_anywhere",
        first: RANDOM,
        again: "r3 *= r5
            r3 += 12345
            r4 = r3
            r4 >>= 40
            r4 &= 0x1ffff
            r8 = r6
            r8 += r4
            r9 = *(u8 *)(r8 + 0)
            r3 += r9",
    },
    Endless {
        name: "branches_anywhere",
        first: RANDOM,
        again: "r3 *= r5
            r3 += 12345
            if r3 s> 0 goto +1
            r3 += 1",
    },
    Endless {
        name: "crc32c",
        first: "r6 = *(u64 *)(r1 + 0)",
        again: "r1 = 0
            r2 = r6
            r3 = 7
            call 3",
    },
    Endless {
        name: "compare",
        first: "r6 = *(u64 *)(r1 + 0)",
        again: "r1 = r6
            r2 = 7
            r3 = r6
            r4 = 7
            call 4",
    },
];

/// Microseconds of processor time that the fuel of a call lasts, by the program: the middle one of so many calls.
pub(super) fn calls(count: usize) -> Result<Vec<(&'static str, f64)>, BenchFailure> {
    let data = vec![7; STORAGE_DATA_LEN_MAX as usize];
    PROGRAMS.iter().map(|endless| Ok((endless.name, endless.call(&data, count)?))).collect()
}

impl Endless {
    fn call(&self, data: &[u8], count: usize) -> Result<f64, BenchFailure> {
        let again = format!("{}\n", self.again).repeat(REPEATED);
        let text = format!(".data_len_min {}\n{}\nagain:\n{again}goto again", data.len(), self.first);
        let program = Arc::new(assemble(&text)?.program()?);
        let accepted = verifier::verify(&program, &STORAGE, Options::default())
            .map_err(|refused| format!("the program of {} is refused: {refused}", self.name))?;
        let compiled = compiler::compile(&accepted.verified, compiler::Options { keep_checks: false })?;
        let mut words = [0u64; SCRATCH_LEN / 8];
        let mut took: Vec<Duration> = Vec::with_capacity(count);
        for _ in 0..count {
            let mut context = [0; STORAGE.fields.len()];
            let mut call = Call {
                data,
                scratch: words.as_mut_bytes(),
                context: &mut context,
                fuel: CALL_FUEL_MAX,
                table: &NoTable,
                log: &NoLog,
            };
            let begin = thread_cpu();
            let outcome = compiled.run(&mut call);
            took.push(thread_cpu().saturating_sub(begin));
            if !matches!(outcome, Err(CallError::Fault(Fault { what: FaultKind::OutOfFuel, .. }))) {
                return Err(format!("{} has ended before its fuel: {outcome:?}", self.name).into());
            }
        }
        took.sort_unstable();
        let middle = took.get(count / 2).copied().unwrap_or_default();
        Ok(middle.as_nanos() as f64 / 1000.0)
    }
}
