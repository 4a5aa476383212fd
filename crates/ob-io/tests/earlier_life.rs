//! What a process had in flight when it was killed is over before another can open the device: the kernel finishes or
//! forgets it, and only then gives up the lock.

#![allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ob_core::{Device, DeviceCompletion, DeviceOp, Token};
use ob_io::{Config, FileDevice, FileDeviceOptions, OpenError, Reactor, Space, Wait};
use ob_memory::Pool;

const VARIABLE: &str = "OB_EARLIER_LIFE";
const BLOCK: usize = 256 << 10;
const BLOCKS: usize = 64;
const ROUNDS: u8 = 12;

/// A process that does not outlive the test, however that ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may be dead already, which is as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes over and over, with as much in flight as there is, until it is killed; or a minute, if nobody does.
fn live_and_be_killed(path: &Path) -> ! {
    let mut reactor = Reactor::new(&Config::default()).unwrap();
    let mut device = FileDevice::open(&reactor.handle(), path, &FileDeviceOptions::default()).unwrap();
    let pool = Pool::new(BLOCK, BLOCKS / 2);
    let (mut next, begin) = (0, Instant::now());
    while begin.elapsed() < Duration::from_secs(60) {
        while let Some(mut from) = pool.take() {
            from.fill(0xEE);
            let offset = (next % BLOCKS * BLOCK) as u64;
            let op = DeviceOp::Write { offset, from: from.into(), durable: false };
            if device.submit(Token(next as u64), op).is_err() {
                break;
            }
            next += 1;
            if next == BLOCKS {
                println!("writing");
            }
        }
        reactor.turn(Wait::Until(None), &mut Vec::new());
        while let Some(completion) = device.poll() {
            completion.result.unwrap();
        }
    }
    panic!("nobody came to kill this process")
}

fn run(reactor: &mut Reactor, device: &mut FileDevice, op: DeviceOp) -> DeviceCompletion {
    device.submit(Token(1), op).unwrap();
    loop {
        if let Some(completion) = device.poll() {
            completion.result.unwrap();
            return completion;
        }
        reactor.turn(Wait::Until(None), &mut Vec::new());
    }
}

/// That every block holds this and nothing else.
fn check(reactor: &mut Reactor, device: &mut FileDevice, pool: &Pool, fill: u8) {
    for block in 0..BLOCKS {
        let op = DeviceOp::Read { offset: (block * BLOCK) as u64, into: pool.take().unwrap() };
        let DeviceOp::Read { into, .. } = run(reactor, device, op).op else { panic!("not the read") };
        assert!(into.iter().all(|byte| *byte == fill), "block {block} is not what was written last");
    }
}

#[test]
fn writes_of_a_killed_process_never_land_on_those_of_the_next() {
    if let Some(path) = std::env::var_os(VARIABLE) {
        live_and_be_killed(Path::new(&path));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("device");
    let mut reactor = Reactor::new(&Config::default()).unwrap();
    let (handle, options) = (reactor.handle(), FileDeviceOptions::default());
    let len = (BLOCK * BLOCKS) as u64;
    drop(FileDevice::create(&handle, &path, len, Space::Sparse, &options).unwrap());
    let pool = Pool::new(BLOCK, 1);
    for round in 1..=ROUNDS {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writes_of_a_killed_process_never_land_on_those_of_the_next", "--nocapture"])
            .env(VARIABLE, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = Killed(child);
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("writing")), "the other process writes");
        assert!(matches!(FileDevice::open(&handle, &path, &options), Err(OpenError::InUse(_))));
        child.0.kill().unwrap();
        // Not waited for: who starts anew may not know that there was another.
        let mut device = loop {
            match FileDevice::open(&handle, &path, &options) {
                Ok(device) => break device,
                Err(OpenError::InUse(_)) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        for block in 0..BLOCKS {
            let mut from = pool.take().unwrap();
            from.fill(round);
            let offset = (block * BLOCK) as u64;
            run(&mut reactor, &mut device, DeviceOp::Write { offset, from: from.into(), durable: false });
        }
        check(&mut reactor, &mut device, &pool, round);
        child.0.wait().unwrap();
        check(&mut reactor, &mut device, &pool, round);
    }
}
