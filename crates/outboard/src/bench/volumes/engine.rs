//! The card's engine in software beside the library that it uses, on the same blocks, by turns.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use lz4::block::{CompressionMode, compress_to_buffer, decompress_to_buffer};
use ob_core::Token;
use ob_memory::{Pool, Shared, Slice, Source};
use ob_split::engine::{Effort, Engine, SoftEngine, Task};

use crate::bench::BenchFailure;

/// Blocks of a turn.
const BLOCKS: usize = 16;
/// Bytes of a piece, the longest that an engine gets, and of the smallest.
const LENGTHS: [usize; 2] = [4 << 10, 64 << 10];
/// What a compressed piece may take, if it does not shrink.
const ROOM: usize = 72 << 10;

/// The engine's speed by the library's: of each, and of the worst (`lz4_vs_library`). The best of the turns of each is compared, which is
/// when nobody else had the processor.
pub(super) fn measure(image: &[u8], turns: usize) -> Result<BTreeMap<String, f64>, BenchFailure> {
    let mut ratios = BTreeMap::new();
    for len in LENGTHS {
        let pool = Pool::new(ROOM, 4 * BLOCKS);
        // From all over the image: its files shrink differently.
        let apart = (image.len() / len / BLOCKS).max(1);
        let plain: Vec<Shared> = image
            .chunks_exact(len)
            .step_by(apart)
            .take(BLOCKS)
            .map(|block| shared(&pool, block))
            .collect::<Result<_, _>>()?;
        ratios.insert(format!("lz4_vs_library.compress{}k", len >> 10), compression(&pool, &plain, turns)?);
        let packed = packed(&pool, &plain)?;
        ratios.insert(
            format!("lz4_vs_library.decompress{}k", len >> 10),
            decompression(&pool, &packed, len, turns)?,
        );
    }
    let worst = ratios.values().copied().fold(f64::INFINITY, f64::min);
    ratios.insert("lz4_vs_library".to_owned(), worst);
    Ok(ratios)
}

fn shared(pool: &Pool, bytes: &[u8]) -> Result<Shared, BenchFailure> {
    let mut slice = pool.take().ok_or("the pool has no memory")?;
    slice.truncate(bytes.len());
    slice.copy_from_slice(bytes);
    Ok(slice.share())
}

/// Blocks as the library compresses them; those that do not shrink are left out, as the engine leaves them.
fn packed(pool: &Pool, plain: &[Shared]) -> Result<Vec<Shared>, BenchFailure> {
    let mut room = vec![0; ROOM];
    let mut packed = Vec::new();
    for block in plain {
        let written = compress_to_buffer(block, mode(), false, &mut room)?;
        packed.extend((written < block.len()).then(|| shared(pool, &room[..written])).transpose()?);
    }
    Ok(packed)
}

/// As the engine has it at the effort that is right for most.
fn mode() -> Option<CompressionMode> {
    Some(CompressionMode::FAST(1))
}

fn compression(pool: &Pool, blocks: &[Shared], turns: usize) -> Result<f64, BenchFailure> {
    let task = |from, into| Task::Compress { effort: Effort::DEFAULT, from, into };
    by_turns(pool, blocks, turns, task, |from, into| compress_to_buffer(from, mode(), false, into))
}

fn decompression(pool: &Pool, blocks: &[Shared], len: usize, turns: usize) -> Result<f64, BenchFailure> {
    let task = |from, into| Task::Decompress { from, into, len: len as u32 };
    by_turns(pool, blocks, turns, task, |from, into| decompress_to_buffer(from, Some(len as i32), into))
}

/// The library's shortest time by the engine's. Both write into the same memory: where that lies, and whether the processor has it near
/// itself, matters more than who asks.
fn by_turns(
    pool: &Pool,
    blocks: &[Shared],
    turns: usize,
    task: impl Fn(Source, Slice) -> Task,
    mut library: impl FnMut(&[u8], &mut [u8]) -> io::Result<usize>,
) -> Result<f64, BenchFailure> {
    let mut engine = SoftEngine::new(1);
    let rooms = blocks.iter().map(|_| pool.take()).collect::<Option<Vec<Slice>>>();
    let mut rooms = rooms.ok_or("the pool has no memory")?;
    let (mut engines, mut librarys) = (Duration::MAX, Duration::MAX);
    for _ in 0..turns {
        let begun = Instant::now();
        rooms = blocks
            .iter()
            .zip(rooms)
            .map(|(block, room)| run(&mut engine, task(Source::from(block.clone()), room)))
            .collect::<Result<_, _>>()?;
        engines = engines.min(begun.elapsed());
        let begun = Instant::now();
        for (block, room) in blocks.iter().zip(&mut rooms) {
            black_box(library(block, room)?);
        }
        librarys = librarys.min(begun.elapsed());
    }
    Ok(librarys.as_secs_f64() / engines.as_secs_f64())
}

/// Has the engine do a task, as a port of the card does; the memory that it has written into.
fn run(engine: &mut SoftEngine, mut task: Task) -> Result<Slice, BenchFailure> {
    // What does not shrink is a result, too.
    let task = match engine.at_once(&mut task) {
        Some(result) => {
            black_box(result.is_ok());
            task
        }
        None => {
            engine.submit(Token(1), task).map_err(|_| "the engine is busy")?;
            let done = engine.poll(ob_core::Instant::default()).ok_or("the engine has nothing to give")?;
            black_box(done.result.is_ok());
            done.task
        }
    };
    match task {
        Task::Compress { into, .. } | Task::Decompress { into, .. } => Ok(into),
        Task::Checksum { .. } => Err("the engine has done another task".into()),
    }
}
