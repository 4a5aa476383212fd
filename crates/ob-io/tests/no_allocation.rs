//! After start-up the data path allocates nothing. Alone in its process: it counts what the allocator does.

#![allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.

mod counting;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use ob_core::{Device, DeviceOp, Token};
use ob_io::{Config, FileDevice, FileDeviceOptions, Interest, Reactor, Space, Wait};
use ob_memory::Pool;

#[test]
fn a_running_reactor_allocates_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let config = Config::default();
    let mut reactor = Reactor::new(&config).unwrap();
    let handle = reactor.handle();
    let path = directory.path().join("device");
    let options = FileDeviceOptions::default();
    let mut device = FileDevice::create(&handle, &path, 1 << 20, Space::Sparse, &options).unwrap();
    let pool = Pool::new(4096, 64);
    handle.register_arena(pool.arena()).unwrap();
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    handle.watch(&ours, Interest::Readable).unwrap();
    let mut events = Vec::with_capacity(config.events_max());
    let before = counting::allocations();
    for round in 0..100u64 {
        for token in 0..64 {
            let slice = pool.take().unwrap();
            let offset = token * 4096;
            let op = if (round + token) % 2 == 0 {
                let from = if token % 4 == 0 { slice.share().into() } else { slice.into() };
                DeviceOp::Write { offset, from, durable: false }
            } else {
                DeviceOp::Read { offset, into: slice }
            };
            device.submit(Token(token), op).unwrap();
        }
        theirs.write_all(b"x").unwrap();
        let timer = handle.set_timer(handle.now()).unwrap();
        let mut done = 0;
        while done < 64 || handle.cancel_timer(timer) {
            reactor.turn(Wait::Until(None), &mut events);
            events.clear();
            while let Some(completion) = device.poll() {
                completion.result.unwrap();
                done += 1;
            }
        }
        ours.read_exact(&mut [0]).unwrap();
    }
    assert_eq!(counting::allocations() - before, 0);
}
