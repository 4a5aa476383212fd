//! Any bytes as a block of LZ4: broken, or exactly as long as they should be, and what comes out depends on the bytes alone. What was
//! compressed comes back.

#![no_main]

use std::cell::RefCell;

use ob_core::{Instant, Token};
use ob_memory::{Pool, Slice};
use ob_split::engine::{Effort, Engine, EngineError, SoftEngine, TASK_MAX, Task};

thread_local! {
    static RIG: RefCell<(SoftEngine, Pool)> = RefCell::new((SoftEngine::new(1), Pool::new(TASK_MAX, 2)));
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((head, bytes)) = input.split_first_chunk::<3>() else { return };
    let bytes = &bytes[..bytes.len().min(TASK_MAX)];
    let len = usize::from(u16::from_le_bytes([head[0], head[1]]));
    RIG.with_borrow_mut(|(engine, pool)| {
        let one = decompress(engine, pool, bytes, len, 0x11);
        let other = decompress(engine, pool, bytes, len, 0x22);
        assert_eq!(one, other);
        if let Some(effort) = Effort::new(head[2] % 5).filter(|effort| *effort != Effort::NONE) {
            round_trip(engine, pool, bytes, effort);
        }
    });
});

fn filled(pool: &Pool, bytes: &[u8]) -> Slice {
    let mut slice = pool.take().unwrap();
    slice[..bytes.len()].copy_from_slice(bytes);
    slice.truncate(bytes.len());
    slice
}

fn run(engine: &mut SoftEngine, task: Task) -> (Task, Result<u32, EngineError>) {
    engine.submit(Token(1), task).unwrap();
    let done = engine.poll(Instant::default()).unwrap();
    (done.task, done.result)
}

fn decompress(engine: &mut SoftEngine, pool: &Pool, bytes: &[u8], len: usize, before: u8) -> Option<Vec<u8>> {
    let mut into = pool.take().unwrap();
    into.fill(before);
    let task = Task::Decompress { from: filled(pool, bytes).into(), into, len: len as u32 };
    let (Task::Decompress { into, .. }, result) = run(engine, task) else { panic!("another task came back") };
    assert!(into[len..].iter().all(|byte| *byte == before), "it wrote beyond what it was to");
    match result {
        Ok(written) => {
            assert_eq!(written as usize, len);
            Some(into[..len].to_vec())
        }
        Err(error) => {
            assert_eq!(error, EngineError::Broken);
            None
        }
    }
}

fn round_trip(engine: &mut SoftEngine, pool: &Pool, bytes: &[u8], effort: Effort) {
    let task = Task::Compress { effort, from: filled(pool, bytes).into(), into: pool.take().unwrap() };
    let (Task::Compress { into, .. }, result) = run(engine, task) else { panic!("another task came back") };
    match result {
        Ok(written) => {
            let compressed = into[..written as usize].to_vec();
            assert!(compressed.len() * 16 <= bytes.len() * 15);
            drop(into);
            assert_eq!(decompress(engine, pool, &compressed, bytes.len(), 0x11).as_deref(), Some(bytes));
        }
        Err(error) => assert_eq!(error, EngineError::NoGain),
    }
}
