//! Out of descriptors. Alone in its process, because the limit is the process's.

#![allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use ob_core::{Net, NetEvent};
use ob_io::{Config, Reactor, TcpNet, Wait};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn out_of_descriptors_accepting_pauses_without_spinning() {
    let mut reactor = Reactor::new(&Config::default()).unwrap();
    let handle = reactor.handle();
    let mut net = TcpNet::new(&handle, 8);
    let listener = net.listen(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let stream = TcpStream::connect(net.listener_address(listener).unwrap()).unwrap();
    // The next descriptor would be at least this number.
    let before = getrlimit(Resource::Nofile);
    let spare = std::fs::File::open("/dev/null").unwrap();
    let limit = Rlimit { current: Some(spare.as_raw_fd() as u64), maximum: before.maximum };
    drop(spare);
    setrlimit(Resource::Nofile, limit).unwrap();

    let mut events = Vec::new();
    let mut turns = 0;
    let until = handle.now() + Duration::from_millis(350);
    while handle.now() < until {
        reactor.turn(Wait::Until(Some(until)), &mut events);
        for event in events.drain(..) {
            assert!(net.handle(&event), "{event:?}");
        }
        assert_eq!(net.poll(), None);
        turns += 1;
    }
    assert!(turns < 40, "{turns} turns in 350 ms");

    setrlimit(Resource::Nofile, before).unwrap();
    let accepted = loop {
        reactor.turn(Wait::Until(None), &mut events);
        for event in events.drain(..) {
            assert!(net.handle(&event), "{event:?}");
        }
        if let Some(event) = net.poll() {
            break event;
        }
    };
    assert!(matches!(accepted, NetEvent::Accepted { peer, .. } if peer == stream.local_addr().unwrap()));
}
