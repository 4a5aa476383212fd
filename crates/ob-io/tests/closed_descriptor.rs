//! A descriptor that is closed under its watch. Alone in its process: descriptor numbers are reused, and another test
//! that opens a file at the wrong moment would take the place of the closed one.

#![allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.

use std::io::Write;
use std::os::unix::net::UnixStream;

use ob_io::{Config, Event, Interest, Reactor, Wait};

fn turn_until(reactor: &mut Reactor, wanted: impl Fn(&Event) -> bool) {
    let mut events = Vec::new();
    while !events.drain(..).any(|event| wanted(&event)) {
        reactor.turn(Wait::Until(None), &mut events);
    }
}

#[test]
fn a_descriptor_closed_under_its_watch_does_no_harm() {
    for newest_features in [true, false] {
        let mut reactor = Reactor::new(&Config { newest_features, ..Config::default() }).unwrap();
        let handle = reactor.handle();
        let (ours, theirs) = UnixStream::pair().unwrap();
        let watch = handle.watch(&ours, Interest::Readable).unwrap();
        // Closed before the kernel has even seen the watch: it says that it is lost.
        drop(ours);
        let lost = |event: &Event| matches!(event, Event::Ready { readiness, .. } if readiness.is_lost());
        turn_until(&mut reactor, lost);
        handle.unwatch(watch);
        // Closed after: the watch goes on with the open file, and ends as any other.
        let (ours, mut theirs_again) = UnixStream::pair().unwrap();
        let watch = handle.watch(&ours, Interest::Readable).unwrap();
        reactor.turn(Wait::Poll, &mut Vec::new());
        drop(ours);
        theirs_again.write_all(b"x").unwrap();
        turn_until(&mut reactor, |event| matches!(event, Event::Ready { watch: told, .. } if *told == watch));
        handle.unwatch(watch);
        drop((theirs, theirs_again));
        reactor.turn(Wait::Poll, &mut Vec::new());
    }
}
