//! The engine in software allocates nothing for what every write and read has: efforts 1 and 2, decompression, checksums. (For high
//! compression the library takes its state from the heap.) Alone in its process: it counts what the allocator does.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

#[path = "../../ob-io/tests/counting/mod.rs"]
mod counting;

use counting::allocations;
use ob_core::{Instant, Token};
use ob_memory::{Pool, Slice, Source};
use ob_split::engine::{Effort, Engine, EngineError, SoftEngine, TASK_MAX, Task};

/// Does one task; its buffers, and how it went.
fn run(engine: &mut SoftEngine, task: Task) -> (Task, Result<u32, EngineError>) {
    engine.submit(Token(1), task).unwrap();
    let done = engine.poll(Instant::default()).unwrap();
    (done.task, done.result)
}

fn compress(engine: &mut SoftEngine, effort: u8, from: Source, into: Slice) -> (Source, Slice, Option<u32>) {
    let task = Task::Compress { effort: Effort::new(effort).unwrap(), from, into };
    let (Task::Compress { from, into, .. }, result) = run(engine, task) else { panic!() };
    assert!(matches!(result, Ok(_) | Err(EngineError::NoGain)));
    (from, into, result.ok())
}

/// Noise, which does not shrink; what repeats; zeros.
fn byte(kind: usize, at: usize) -> u8 {
    match kind {
        0 => (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[1],
        1 => (at / 7 % 50) as u8,
        _ => 0,
    }
}

/// Compresses, sums, and decompresses; whether it shrank.
fn go_round(engine: &mut SoftEngine, pool: &Pool, len: usize, effort: u8, kind: usize) -> bool {
    let mut from = pool.take().unwrap();
    from.truncate(len);
    for (at, place) in from.iter_mut().enumerate() {
        *place = byte(kind, at);
    }
    let (from, mut into, written) = compress(engine, effort, from.into(), pool.take().unwrap());
    let (Task::Checksum { from, .. }, Ok(_)) = run(engine, Task::Checksum { from, seed: 0 }) else {
        panic!()
    };
    let Some(written) = written else { return false };
    into.truncate(written as usize);
    let task = Task::Decompress { from: into.into(), into: from.into_slice().unwrap(), len: len as u32 };
    assert_eq!(run(engine, task).1, Ok(len as u32));
    true
}

#[test]
fn what_every_command_has_allocates_nothing() {
    let mut engine = SoftEngine::new(4);
    let pool = Pool::new(TASK_MAX, 2);
    let (mut before, mut shrunk) = (0, 0);
    for round in 0..20 {
        if round == 4 {
            before = allocations();
        }
        for len in [512, 4096, TASK_MAX] {
            for (effort, kind) in [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)] {
                shrunk += u32::from(go_round(&mut engine, &pool, len, effort, kind));
            }
        }
    }
    assert_eq!(allocations(), before);
    assert!(shrunk >= 20 * 3 * 2, "{shrunk}");
}
