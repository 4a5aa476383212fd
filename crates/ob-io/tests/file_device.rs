//! The file device against a plain array of bytes, and against everything that can go wrong around it.

#![allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.

use std::path::Path;

use ob_core::{Device, DeviceCompletion, DeviceError, DeviceOp, RefusedReason, Token};
use ob_io::{Config, Event, FileDevice, FileDeviceOptions, Handle, OpenError, Reactor, Space, Wait, WatchId};
use ob_memory::{Pool, Slice, Source};

const LEN: u64 = 1 << 20;

/// A small generator, so that a failure repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn reactor(newest_features: bool) -> Reactor {
    Reactor::new(&Config { newest_features, ..Config::default() }).unwrap()
}

fn create(handle: &Handle, path: &Path) -> FileDevice {
    FileDevice::create(handle, path, LEN, Space::Sparse, &FileDeviceOptions::default()).unwrap()
}

/// Turns until the device has a completion.
fn complete(reactor: &mut Reactor, device: &mut FileDevice) -> DeviceCompletion {
    let mut events = Vec::new();
    loop {
        if let Some(completion) = device.poll() {
            return completion;
        }
        reactor.turn(Wait::Until(None), &mut events);
    }
}

fn run(reactor: &mut Reactor, device: &mut FileDevice, op: DeviceOp) -> DeviceCompletion {
    device.submit(Token(1), op).unwrap();
    complete(reactor, device)
}

fn read(reactor: &mut Reactor, device: &mut FileDevice, offset: u64, into: Slice) -> Slice {
    let completion = run(reactor, device, DeviceOp::Read { offset, into });
    completion.result.unwrap();
    let DeviceOp::Read { into, .. } = completion.op else { panic!("not the read") };
    into
}

/// Random operations, many at once on ranges that do not overlap, each checked against an array.
fn against_a_model(directory: &Path, newest_features: bool, seed: u64) {
    let mut reactor = reactor(newest_features);
    let path = directory.join(format!("device-{newest_features}"));
    let device = create(&reactor.handle(), &path);
    let model = random_operations(&mut reactor, device, seed);
    assert!(std::fs::read(&path).unwrap() == model, "the file is the model");
}

/// Works on the first MiB of a device, which must read as zeros; returns what it holds in the end.
fn random_operations(reactor: &mut Reactor, mut device: FileDevice, seed: u64) -> Vec<u8> {
    let handle = reactor.handle();
    let block = u64::from(device.info().block_len);
    let pools = [Pool::new(128 << 10, 8), Pool::new(128 << 10, 8)];
    handle.register_arena(pools[0].arena()).unwrap();
    let mut model = vec![0u8; LEN as usize];
    let mut random = Random(seed);
    for round in 0..150 {
        // Eight lanes, so that operations in flight never touch the same bytes.
        for lane in 0..8u64 {
            let lane_len = LEN / 8;
            let len = (1 + random.below(16)) * block;
            let offset = lane * lane_len + random.below((lane_len - len) / block) * block;
            let range = offset as usize..(offset + len) as usize;
            let mut slice = pools[(lane % 2) as usize].take().unwrap();
            // Not always at the start of its memory, but aligned.
            drop(slice.split_to((random.below(4) * block) as usize));
            drop(slice.split_off(len as usize));
            let op = match random.below(10) {
                0..4 => {
                    slice.fill(random.below(256) as u8);
                    model[range].copy_from_slice(&slice);
                    // What is shared is written as what has one owner is.
                    let from = if random.below(4) == 0 { slice.share().into() } else { slice.into() };
                    DeviceOp::Write { offset, from, durable: random.below(8) == 0 }
                }
                4 => {
                    model[range].fill(0);
                    DeviceOp::WriteZeroes { offset, len }
                }
                5 => {
                    model[range].fill(0);
                    DeviceOp::Discard { offset, len }
                }
                6 => DeviceOp::Flush,
                _ => DeviceOp::Read { offset, into: slice },
            };
            device.submit(Token(lane), op).unwrap();
        }
        if round == 75 {
            // Between two rounds, and with operations in flight, registration changes.
            handle.unregister_arena(pools[0].arena());
            handle.register_arena(pools[1].arena()).unwrap();
        }
        let mut seen = 0u8;
        for _ in 0..8 {
            let completion = complete(reactor, &mut device);
            completion.result.unwrap();
            seen |= 1 << completion.token.0;
            if let DeviceOp::Read { offset, into } = &completion.op {
                assert_eq!(into[..], model[*offset as usize..][..into.len()]);
            }
        }
        assert_eq!(seen, 0xff, "every token came back once");
    }
    assert_eq!(handle.operations_in_flight(), 0);
    model
}

#[test]
fn random_operations_do_what_they_do_to_an_array() {
    let directory = tempfile::tempdir().unwrap();
    against_a_model(directory.path(), true, 1);
    against_a_model(directory.path(), false, 2);
}

#[test]
fn a_file_system_without_the_finer_calls_works_too() {
    // A tmpfs cannot zero a range, and on older kernels has no direct I/O.
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        return ob_plant::not_tested("nothing can be written to /dev/shm");
    };
    against_a_model(directory.path(), true, 3);
}

#[test]
#[ignore = "overwrites the spare disk (a loop device will do) that OUTBOARD_TEST_DISK names"]
fn a_raw_disk_works_and_is_opened_by_one_at_a_time() {
    let path = std::env::var_os("OUTBOARD_TEST_DISK").unwrap();
    let path = Path::new(&path);
    let options = FileDeviceOptions::default();
    let mut reactor = reactor(true);
    let handle = reactor.handle();
    let mut device = FileDevice::open(&handle, path, &options).unwrap();
    assert!(device.info().capacity >= LEN);
    assert!(matches!(FileDevice::open(&handle, path, &options), Err(OpenError::InUse(_))));
    run(&mut reactor, &mut device, DeviceOp::WriteZeroes { offset: 0, len: LEN }).result.unwrap();
    random_operations(&mut reactor, device, 4);
    // The kernel closes a registered file in its own time.
    while matches!(FileDevice::open(&handle, path, &options), Err(OpenError::InUse(_))) {
        reactor.turn(Wait::Poll, &mut Vec::new());
    }
    FileDevice::open(&handle, path, &options).unwrap();
}

#[test]
fn a_device_is_opened_by_one_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    let options = FileDeviceOptions::default();
    let reactor = reactor(true);
    let handle = reactor.handle();
    let device = create(&handle, &path);
    assert_eq!(device.info().capacity, LEN);
    let info = device.info();
    assert!(
        info.discard_unit >= info.block_len && info.discard_unit.is_multiple_of(info.block_len),
        "{info:?}"
    );
    assert!(matches!(FileDevice::open(&handle, &path, &options), Err(OpenError::InUse(_))));
    drop(device);
    let device = FileDevice::open(&handle, &path, &options).unwrap();
    // Also when the reactor goes first.
    drop((reactor, handle, device));
    let reactor = self::reactor(true);
    FileDevice::open(&reactor.handle(), &path, &options).unwrap();
}

#[test]
fn open_errors_say_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    let options = FileDeviceOptions::default();
    let reactor = reactor(true);
    let handle = reactor.handle();
    let open = |path: &Path| FileDevice::open(&handle, path, &options).map(drop);
    assert!(matches!(open(&path), Err(OpenError::Missing(_))));
    assert!(matches!(open(directory.path()), Err(OpenError::WrongKind(_))));
    assert!(matches!(open(Path::new("/dev/null")), Err(OpenError::WrongKind(_))));
    std::fs::write(&path, b"short").unwrap();
    assert!(matches!(open(&path), Err(OpenError::TooSmall { len: 5, .. })));
    let exists = FileDevice::create(&handle, &path, LEN, Space::Preallocated, &options).map(drop);
    assert!(matches!(exists, Err(OpenError::Exists(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"short", "what exists is not touched");
    let huge = directory.path().join("huge");
    assert!(FileDevice::create(&handle, &huge, 1 << 62, Space::Preallocated, &options).is_err());
    assert!(!huge.exists(), "half a device is not left behind");
    let small = Config { devices_max: 0, ..Config::default() };
    let none = Reactor::new(&small).unwrap();
    let full = FileDevice::create(&none.handle(), &huge, LEN, Space::Sparse, &options).map(drop);
    assert!(matches!(full, Err(OpenError::Reactor { .. })));
    assert!(!huge.exists());
}

#[test]
fn illegal_operations_complete_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let mut reactor = reactor(true);
    let mut device = create(&reactor.handle(), &directory.path().join("device"));
    let pool = Pool::new(8192, 4);
    let mut odd = pool.take().unwrap();
    drop(odd.split_to(1));
    drop(odd.split_off(4096));
    let write = DeviceOp::Write { offset: 0, from: odd.into(), durable: false };
    let outcome = run(&mut reactor, &mut device, write);
    assert_eq!(outcome.result, Err(DeviceError::Misaligned), "an address that direct I/O cannot take");
    for (offset, error) in [(1, DeviceError::Misaligned), (LEN, DeviceError::OutOfRange)] {
        let op = DeviceOp::Read { offset, into: pool.take().unwrap() };
        assert_eq!(run(&mut reactor, &mut device, op).result, Err(error));
    }
    let mut nothing = pool.take().unwrap();
    drop(nothing.split_off(0));
    assert_eq!(run(&mut reactor, &mut device, DeviceOp::Read { offset: 0, into: nothing }).result, Ok(()));
}

#[test]
fn a_file_cut_short_is_an_error_and_not_a_loop() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    let mut reactor = reactor(true);
    let mut device = create(&reactor.handle(), &path);
    let pool = Pool::new(8192, 1);
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    let op = DeviceOp::Read { offset: 0, into: pool.take().unwrap() };
    assert_eq!(run(&mut reactor, &mut device, op).result, Err(DeviceError::Io));
}

#[test]
fn a_full_queue_refuses_and_hands_back() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config { operations_max: 4, submissions_max: 2, ..Config::default() };
    let mut reactor = Reactor::new(&config).unwrap();
    let handle = reactor.handle();
    let options = FileDeviceOptions { depth: 3 };
    let [mut first, mut second] = ["a", "b"].map(|name| {
        let path = directory.path().join(name);
        FileDevice::create(&handle, &path, LEN, Space::Sparse, &options).unwrap()
    });
    for token in 0..3 {
        first.submit(Token(token), DeviceOp::Flush).unwrap();
    }
    let refused = first.submit(Token(3), DeviceOp::Flush).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::Busy, "the device is full");
    second.submit(Token(4), DeviceOp::Flush).unwrap();
    let refused = second.submit(Token(5), DeviceOp::Flush).unwrap_err();
    assert_eq!(refused.reason, RefusedReason::Busy, "the reactor is full");
    assert!(matches!(refused.op, DeviceOp::Flush));
    for _ in 0..3 {
        complete(&mut reactor, &mut first).result.unwrap();
    }
    complete(&mut reactor, &mut second).result.unwrap();
    second.submit(Token(6), DeviceOp::Flush).unwrap();
    complete(&mut reactor, &mut second).result.unwrap();
}

#[test]
fn dropping_anything_with_operations_in_flight_is_safe() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::new(64 << 10, 32);
    for round in 0..10 {
        let path = directory.path().join(format!("device-{round}"));
        let mut reactor = reactor(round % 2 == 0);
        let handle = reactor.handle();
        handle.register_arena(pool.arena()).unwrap();
        let mut device = create(&handle, &path);
        for token in 0..16 {
            let into = pool.take().unwrap();
            device.submit(Token(token), DeviceOp::Read { offset: token << 12, into }).unwrap();
        }
        if round % 3 == 0 {
            reactor.turn(Wait::Poll, &mut Vec::new());
        }
        if round % 2 == 0 {
            // The device goes first: its operations finish for nobody, and give the memory back.
            drop(device);
            while handle.operations_in_flight() > 0 {
                reactor.turn(Wait::Until(None), &mut Vec::new());
            }
        } else {
            // The reactor goes first: everything comes back, done or cancelled, and nothing new goes in.
            drop(reactor);
            let refused = device.submit(Token(99), DeviceOp::Flush).unwrap_err();
            assert_eq!(refused.reason, RefusedReason::Gone);
            let results: Vec<_> = std::iter::from_fn(|| device.poll()).map(|done| done.result).collect();
            assert_eq!(results.len(), 16);
            assert!(results.iter().all(|result| matches!(result, Ok(()) | Err(DeviceError::Gone))));
        }
        let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(all.len(), 32, "no buffer is lost");
    }
}

#[test]
fn a_large_transfer_and_a_small_one_share_the_ring_with_events() {
    let directory = tempfile::tempdir().unwrap();
    let mut reactor = reactor(true);
    let handle = reactor.handle();
    let mut device = create(&handle, &directory.path().join("device"));
    let pool = Pool::new(LEN as usize, 2);
    handle.register_arena(pool.arena()).unwrap();
    handle.register_arena(pool.arena()).unwrap();
    let mut from = pool.take().unwrap();
    for (index, byte) in from.iter_mut().enumerate() {
        *byte = (index / 4096) as u8;
    }
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let watch = handle.watch(&ours, ob_io::Interest::Readable).unwrap();
    device.submit(Token(1), DeviceOp::Write { offset: 0, from: from.into(), durable: true }).unwrap();
    drop(theirs);
    let mut events = Vec::new();
    let told = |events: &[Event], wanted: WatchId| {
        events.iter().any(|event| matches!(event, Event::Ready { watch, .. } if *watch == wanted))
    };
    while !told(&events, watch) || handle.operations_in_flight() > 0 {
        reactor.turn(Wait::Until(None), &mut events);
    }
    device.poll().unwrap().result.unwrap();
    let read = read(&mut reactor, &mut device, 0, pool.take().unwrap());
    assert!(
        read.chunks(4096).enumerate().all(|(index, block)| block.iter().all(|byte| *byte == index as u8))
    );
}

#[test]
fn one_payload_is_written_to_two_devices_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut reactor = reactor(true);
    let handle = reactor.handle();
    let mut devices = ["one", "two"].map(|name| create(&handle, &directory.path().join(name)));
    let pool = Pool::new(LEN as usize, 2);
    handle.register_arena(pool.arena()).unwrap();
    let mut payload = pool.take().unwrap();
    for (index, byte) in payload.iter_mut().enumerate() {
        *byte = (index / 4096) as u8;
    }
    let payload = payload.share();
    for device in &mut devices {
        let op = DeviceOp::Write { offset: 0, from: payload.clone().into(), durable: true };
        device.submit(Token(1), op).unwrap();
    }
    assert_eq!(handle.operations_in_flight(), 2, "neither waits for the other");
    for device in &mut devices {
        let completion = complete(&mut reactor, device);
        completion.result.unwrap();
        let DeviceOp::Write { from: Source::Shared(from), .. } = completion.op else {
            panic!("not as given")
        };
        assert_eq!(from.as_ptr(), payload.as_ptr());
        assert!(read(&mut reactor, device, 0, pool.take().unwrap())[..] == payload[..]);
    }
    drop(payload);
    assert_eq!(pool.blocks_out(), 0);
}
