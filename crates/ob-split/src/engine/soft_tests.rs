use ob_core::{Instant, RefusedReason, Token};
use ob_memory::{Pool, Slice, Source};
use proptest::prelude::*;

use super::soft::TASK_MAX;
use super::*;

/// Memory for tests: what is taken holds these bytes, and behind them what a stranger left.
fn slice(bytes: &[u8], len: usize) -> Slice {
    let mut slice = Pool::new(len.max(bytes.len()).max(1), 1).take().unwrap();
    slice.fill(0xEE);
    slice[..bytes.len()].copy_from_slice(bytes);
    slice.truncate(len.max(bytes.len()));
    slice
}

fn source(bytes: &[u8]) -> Source {
    let mut slice = slice(bytes, bytes.len());
    slice.truncate(bytes.len());
    slice.into()
}

fn run(engine: &mut SoftEngine, task: Task) -> EngineDone {
    engine.submit(Token(7), task).unwrap();
    let done = engine.poll(Instant::default()).unwrap();
    assert_eq!(done.token, Token(7));
    assert!(engine.poll(Instant::default()).is_none());
    done
}

#[test]
fn what_is_done_at_once_is_what_would_have_been_done_later() {
    let (mut now, mut later) = (SoftEngine::new(1), SoftEngine::queued(1));
    let tasks = || {
        let (plain, effort) = (text(4096), Effort::DEFAULT);
        let packed = compress(&mut SoftEngine::new(1), 2, &plain, 4096).unwrap();
        [
            Task::Compress { effort, from: source(&plain), into: slice(&[], 4096) },
            Task::Compress { effort, from: source(&noise(4096)), into: slice(&[], 4096) },
            Task::Decompress { from: source(&packed), into: slice(&[], 4096), len: 4096 },
            Task::Decompress { from: source(&packed), into: slice(&[], 4096), len: 4095 },
            Task::Checksum { from: source(&plain), seed: 7 },
        ]
    };
    let written = |task: &Task| match task {
        Task::Compress { into, .. } | Task::Decompress { into, .. } => into.to_vec(),
        Task::Checksum { .. } => Vec::new(),
    };
    for (mut task, mut other) in tasks().into_iter().zip(tasks()) {
        let result = now.at_once(&mut task).unwrap();
        assert!(later.at_once(&mut other).is_none(), "it is to be submitted");
        let done = run(&mut later, other);
        assert_eq!((result, now.load(), now.poll(Instant::default()).is_none()), (done.result, 0, true));
        assert_eq!(result.is_ok().then(|| written(&task)), result.is_ok().then(|| written(&done.task)));
    }
}

fn compress(engine: &mut SoftEngine, effort: u8, bytes: &[u8], space: usize) -> Result<Vec<u8>, EngineError> {
    let effort = Effort::new(effort).unwrap();
    let task = Task::Compress { effort, from: source(bytes), into: slice(&[], space) };
    let done = run(engine, task);
    let Task::Compress { from, into, .. } = done.task else { panic!("another task came back") };
    assert_eq!(&from[..], bytes);
    assert_eq!(into.len(), space);
    done.result.map(|len| into[..len as usize].to_vec())
}

fn decompress(
    engine: &mut SoftEngine,
    bytes: &[u8],
    len: usize,
    into: Slice,
) -> Result<Vec<u8>, EngineError> {
    let space = into.len();
    let done = run(engine, Task::Decompress { from: source(bytes), into, len: len as u32 });
    let Task::Decompress { into, .. } = done.task else { panic!("another task came back") };
    assert_eq!(into.len(), space);
    assert!(space < len || into[len..].iter().all(|byte| *byte == 0xEE), "it wrote beyond what it was to");
    done.result.map(|written| {
        assert_eq!(written as usize, len);
        into[..len].to_vec()
    })
}

/// Bytes as a file system has them: words again and again, and now and then what was never seen.
fn text(len: usize) -> Vec<u8> {
    let mut state = 7u32;
    let mut dice = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 16
    };
    let words: Vec<Vec<u8>> =
        (0..40).map(|_| (0..3 + dice() % 9).map(|_| b'a' + (dice() % 26) as u8).collect()).collect();
    let mut bytes = Vec::new();
    while bytes.len() < len {
        bytes.extend_from_slice(&words[dice() as usize % words.len()]);
        bytes.push(b' ');
    }
    bytes.truncate(len);
    bytes
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(step).take(len).collect()
}

#[test]
fn more_effort_makes_fewer_bytes() {
    let mut engine = SoftEngine::new(1);
    for len in [4096, 16 << 10, TASK_MAX] {
        let bytes = text(len);
        let sizes: Vec<usize> =
            (1..=4).map(|effort| compress(&mut engine, effort, &bytes, len).unwrap().len()).collect();
        assert!(sizes.is_sorted_by(|less, more| less >= more), "{len}: {sizes:?}");
        assert!(sizes[0] > sizes[3] && sizes[0] < len, "{len}: {sizes:?}");
    }
}

#[test]
fn what_does_not_shrink_by_a_sixteenth_is_not_kept() {
    let mut engine = SoftEngine::new(1);
    for effort in 1..=4 {
        for len in [0, 1, 15, 512, 4096, TASK_MAX] {
            let space = len + 1024;
            assert_eq!(compress(&mut engine, effort, &noise(len), space), Err(EngineError::NoGain), "{len}");
        }
        // Noise, and behind it some zeros: what is saved is about as much as there are of those.
        let mixed = |zeros: usize| [noise(4096 - zeros), vec![0; zeros]].concat();
        assert_eq!(compress(&mut engine, effort, &mixed(128), 8192), Err(EngineError::NoGain));
        assert!(compress(&mut engine, effort, &mixed(512), 8192).unwrap().len() <= 4096 - 256);
    }
}

#[test]
fn a_task_that_cannot_be_done_comes_back_with_the_reason() {
    let mut engine = SoftEngine::new(1);
    let long = vec![0; TASK_MAX + 1];
    for effort in 1..=4 {
        assert_eq!(compress(&mut engine, effort, &long, 8192), Err(EngineError::TooLarge));
        // It shrinks, but not to nothing.
        assert_eq!(compress(&mut engine, effort, &[0; 4096], 2), Err(EngineError::TooLarge));
    }
    assert_eq!(compress(&mut engine, 0, &[0; 4096], 4096), Err(EngineError::Unsupported));
    assert_eq!(decompress(&mut engine, &long, 1, slice(&[], 1)), Err(EngineError::TooLarge));
    assert_eq!(decompress(&mut engine, &[0], TASK_MAX + 1, slice(&[], 1)), Err(EngineError::TooLarge));
    assert_eq!(decompress(&mut engine, &[0], 2, slice(&[], 1)), Err(EngineError::TooLarge));
    let sum = run(&mut engine, Task::Checksum { from: source(&long), seed: 0 });
    assert_eq!(sum.result, Err(EngineError::TooLarge));
}

#[test]
fn the_queue_is_bounded_and_the_load_says_how_full_it_is() {
    let mut engine = SoftEngine::new(4);
    let task = || Task::Checksum { from: source(b"123456789"), seed: 0 };
    assert_eq!((engine.load(), engine.next_due()), (0, None));
    for number in 0..4 {
        engine.submit(Token(number), task()).unwrap();
        assert!(engine.next_due().is_some());
    }
    assert_eq!(engine.load(), 255);
    let refused = engine.submit(Token(4), task()).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::Busy);
    assert!(matches!(refused.op, Task::Checksum { .. }), "the task comes back");
    for number in 0..4 {
        let done = engine.poll(Instant::default()).unwrap();
        assert_eq!((done.token, done.result), (Token(number), Ok(0xE306_9283)), "CRC32C, in order");
    }
    assert_eq!(engine.load(), 0);
    engine.submit(Token(5), task()).unwrap();
    assert_eq!(engine.load(), 63);
}

#[test]
fn a_port_may_have_this_engine_alone() {
    let mut engine = SoftEngine::new(3);
    let list = engine.list().to_vec();
    assert_eq!(list, [engine.capability()]);
    assert_eq!((list[0].depth, list[0].efforts, list[0].task_max), (3, 4, 64 << 10));
    assert!(engine.engine(EngineId(0)).is_some() && engine.engine(EngineId(1)).is_none());
}

/// A block of LZ4 by hand: some literals, a match with this distance, and the literals that a block ends with.
fn by_hand(distance: u16) -> Vec<u8> {
    let mut block = vec![0x48, b'a', b'b', b'c', b'd'];
    block.extend_from_slice(&distance.to_le_bytes());
    block.extend_from_slice(&[0x50, b'v', b'w', b'x', b'y', b'z']);
    block
}

#[test]
fn a_match_finds_nothing_that_a_stranger_left() {
    let mut engine = SoftEngine::new(1);
    let good = decompress(&mut engine, &by_hand(4), 21, slice(&[], 64)).unwrap();
    assert_eq!(good, b"abcdabcdabcdabcdvwxyz");
    for distance in [0, 5, 6, 100, u16::MAX] {
        let secrets = [slice(&[0x11; 21], 64), slice(&[0x22; 21], 64)];
        let [one, other] = secrets.map(|into| decompress(&mut engine, &by_hand(distance), 21, into));
        assert_eq!(one, other, "a distance of {distance}");
        assert!(one.is_err() || distance == 0, "a distance of {distance}");
    }
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let repeated = (prop::collection::vec(any::<u8>(), 1..200), 1usize..600)
        .prop_map(|(bytes, times)| bytes.repeat(times).into_iter().take(TASK_MAX).collect());
    let pieces =
        prop::collection::vec((any::<u8>(), 1usize..300, any::<bool>()), 0..100).prop_map(|pieces| {
            let piece = |(byte, len, is_run): (u8, usize, bool)| {
                if is_run {
                    vec![byte; len]
                } else {
                    noise(len + usize::from(byte)).split_off(usize::from(byte))
                }
            };
            pieces.into_iter().flat_map(piece).collect()
        });
    prop_oneof![prop::collection::vec(any::<u8>(), 0..5000), repeated, pieces]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_was_compressed_comes_back(bytes in bytes(), effort in 1u8..=4, is_wide in any::<bool>()) {
        let mut engine = SoftEngine::new(1);
        let space = if is_wide { bytes.len() * 2 + 1024 } else { bytes.len() };
        match compress(&mut engine, effort, &bytes, space) {
            Ok(compressed) => {
                prop_assert!(compressed.len() * 16 <= bytes.len() * 15);
                let back = decompress(&mut engine, &compressed, bytes.len(), slice(&[], bytes.len() + 64));
                prop_assert_eq!(back.as_ref(), Ok(&bytes));
                // Any other length is not what it was.
                for wrong in [bytes.len() - 1, bytes.len() + 1].into_iter().filter(|wrong| *wrong <= TASK_MAX) {
                    let back = decompress(&mut engine, &compressed, wrong, slice(&[], wrong));
                    prop_assert_eq!(back, Err(EngineError::Broken));
                }
                // Nor is what was cut.
                let cut = &compressed[..compressed.len() - 1];
                prop_assert_eq!(
                    decompress(&mut engine, cut, bytes.len(), slice(&[], bytes.len())),
                    Err(EngineError::Broken)
                );
            }
            Err(error) => prop_assert_eq!(error, EngineError::NoGain),
        }
    }

    #[test]
    fn hostile_bytes_are_broken_or_as_long_as_they_should_be(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..600),
            prop::collection::vec(prop_oneof![Just(0u8), Just(0xF0), Just(0x0F), Just(0xFF), any::<u8>()], 0..600),
        ],
        len in prop_oneof![0usize..1000, Just(TASK_MAX)],
        spare in 0usize..40,
    ) {
        let mut engine = SoftEngine::new(1);
        let one = decompress(&mut engine, &bytes, len, slice(&vec![0x11; len], len + spare));
        let other = decompress(&mut engine, &bytes, len, slice(&vec![0x22; len], len + spare));
        prop_assert_eq!(&one, &other, "what comes out depends on the bytes alone");
        prop_assert!(matches!(one, Ok(_) | Err(EngineError::Broken)));
    }

    #[test]
    fn damaged_blocks_are_broken_or_as_long_as_they_should_be(
        at in any::<prop::sample::Index>(),
        bits in 1u8..,
        effort in 1u8..=4,
    ) {
        let mut engine = SoftEngine::new(1);
        let bytes = text(4096);
        let mut compressed = compress(&mut engine, effort, &bytes, 4096).unwrap();
        let at = at.index(compressed.len());
        compressed[at] ^= bits;
        let one = decompress(&mut engine, &compressed, 4096, slice(&[0x11; 4096], 4200));
        let other = decompress(&mut engine, &compressed, 4096, slice(&[0x22; 4096], 4200));
        prop_assert_eq!(one, other);
    }

    #[test]
    fn sums_of_parts_are_the_sum_of_the_whole(bytes in bytes(), at in any::<prop::sample::Index>()) {
        let mut engine = SoftEngine::new(1);
        let at = at.index(bytes.len() + 1);
        let mut sum = |bytes: &[u8], seed| {
            run(&mut engine, Task::Checksum { from: source(bytes), seed }).result.unwrap()
        };
        let first = sum(&bytes[..at], 0);
        prop_assert_eq!(sum(&bytes[at..], first), crc32c::crc32c(&bytes));
    }
}
