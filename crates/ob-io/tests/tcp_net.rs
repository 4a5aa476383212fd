//! Two networks on one reactor, over loopback.

#![allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use ob_core::{ConnectionId, ListenerId, Net, NetError, NetEvent, NetListenError, Received, Sent};
use ob_io::{Config, Reactor, TcpNet, Wait};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A server, a client, and what each has been told.
struct Pair {
    reactor: Reactor,
    nets: [TcpNet; 2],
    told: [VecDeque<NetEvent>; 2],
    address: SocketAddr,
}

const SERVER: usize = 0;
const CLIENT: usize = 1;

impl Pair {
    fn new(connections_max: u32) -> Self {
        let reactor = Reactor::new(&Config::default()).unwrap();
        let mut nets = [0; 2].map(|_| TcpNet::new(&reactor.handle(), connections_max));
        let listener = nets[SERVER].listen(LOOPBACK).unwrap();
        let address = nets[SERVER].listener_address(listener).unwrap();
        assert_ne!(address.port(), 0);
        Self { reactor, nets, told: Default::default(), address }
    }

    fn step(&mut self, wait: Wait) {
        let mut events = Vec::new();
        self.reactor.turn(wait, &mut events);
        for event in &events {
            assert!(self.nets.iter_mut().any(|net| net.handle(event)), "{event:?} belongs to one of them");
        }
        for (net, told) in self.nets.iter_mut().zip(&mut self.told) {
            told.extend(std::iter::from_fn(|| net.poll()));
        }
    }

    /// Waits for an event that `wanted` accepts, and forgets what came before it.
    fn wait<T>(&mut self, side: usize, mut wanted: impl FnMut(NetEvent) -> Option<T>) -> T {
        loop {
            while let Some(event) = self.told[side].pop_front() {
                if let Some(found) = wanted(event) {
                    return found;
                }
            }
            self.step(Wait::Until(None));
        }
    }

    fn accepted(&mut self) -> ConnectionId {
        self.wait(SERVER, |event| match event {
            NetEvent::Accepted { listener: ListenerId(0), connection, .. } => Some(connection),
            _ => None,
        })
    }

    fn closed(&mut self, side: usize, wanted: ConnectionId) -> NetError {
        self.wait(side, |event| match event {
            NetEvent::Closed { connection, error } if connection == wanted => Some(error),
            _ => None,
        })
    }

    /// Connects the two; gives the server's and the client's id.
    fn connect(&mut self) -> [ConnectionId; 2] {
        let client = self.nets[CLIENT].connect(self.address).unwrap();
        assert_eq!(self.nets[CLIENT].send(client, b"early"), Ok(Sent(0)), "not connected yet");
        self.wait(CLIENT, |event| (event == NetEvent::Connected(client)).then_some(()));
        let server = self.accepted();
        [server, client]
    }

    /// Receives until `len` bytes are there, or the end.
    fn receive(&mut self, side: usize, id: ConnectionId, len: usize) -> Vec<u8> {
        let (mut bytes, mut buffer) = (Vec::new(), vec![0; 4096]);
        while bytes.len() < len {
            match self.nets[side].receive(id, &mut buffer).unwrap() {
                Received::Bytes(count) => bytes.extend_from_slice(&buffer[..count]),
                Received::Nothing => self.wait(side, |event| (event == NetEvent::Readable(id)).then_some(())),
                Received::End => break,
            }
        }
        bytes
    }
}

#[test]
fn bytes_arrive_and_half_a_close_is_half_a_close() {
    let mut pair = Pair::new(4);
    let [server, client] = pair.connect();
    for round in 0..50u8 {
        assert_eq!(pair.nets[CLIENT].send(client, &[round; 100]), Ok(Sent(100)));
        let got = pair.receive(SERVER, server, 100);
        assert_eq!(got, [round; 100]);
        assert_eq!(pair.nets[SERVER].send(server, &got), Ok(Sent(100)));
        assert_eq!(pair.receive(CLIENT, client, 100), [round; 100]);
    }
    pair.nets[CLIENT].finish(client).unwrap();
    assert_eq!(pair.receive(SERVER, server, 1), [], "the end");
    assert_eq!(pair.nets[SERVER].receive(server, &mut [0; 8]), Ok(Received::End), "and again");
    assert_eq!(pair.nets[SERVER].receive(server, &mut []), Ok(Received::Bytes(0)));
    assert_eq!(pair.nets[SERVER].send(server, b"still"), Ok(Sent(5)), "the other half goes on");
    assert_eq!(pair.receive(CLIENT, client, 5), b"still");
    pair.nets[SERVER].close(server);
    assert_eq!(pair.receive(CLIENT, client, 1), []);
    pair.nets[CLIENT].close(client);
    assert_eq!(pair.nets[CLIENT].receive(client, &mut [0]), Err(NetError::Unknown));
    assert_eq!(pair.nets[CLIENT].send(client, &[0]), Err(NetError::Unknown));
    assert_eq!(pair.nets[CLIENT].finish(client), Err(NetError::Unknown));
    pair.nets[CLIENT].close(client);
}

#[test]
fn a_full_pipe_pushes_back_and_goes_on() {
    let mut pair = Pair::new(4);
    let [server, client] = pair.connect();
    let total = 32 << 20;
    let pattern: Vec<u8> = (0..=250u8).cycle().take(64 * 251).collect();
    let (mut sent, mut received, mut pushed_back) = (0, 0, 0);
    let mut buffer = vec![0; 1 << 16];
    let mut may_send = true;
    while received < total {
        while may_send && sent < total {
            let chunk = &pattern[sent % 251..][..(total - sent).min(pattern.len() - 251)];
            let Sent(count) = pair.nets[CLIENT].send(client, chunk).unwrap();
            sent += count;
            may_send = count == chunk.len();
            pushed_back += usize::from(!may_send);
        }
        pair.step(Wait::Until(None));
        may_send |= pair.told[CLIENT].drain(..).any(|event| event == NetEvent::Writable(client));
        // The reader only goes on when it is told to, and reads until there is nothing.
        if !pair.told[SERVER].drain(..).any(|event| event == NetEvent::Readable(server)) {
            continue;
        }
        while let Received::Bytes(count) = pair.nets[SERVER].receive(server, &mut buffer).unwrap() {
            for (index, byte) in buffer[..count].iter().enumerate() {
                assert_eq!(*byte, ((received + index) % 251) as u8);
            }
            received += count;
        }
    }
    assert!(pushed_back > 0, "32 MiB fit no socket buffer");
    assert_eq!((sent, received), (total, total));
}

#[test]
fn nobody_listening_is_refused() {
    let mut pair = Pair::new(4);
    let free = TcpListener::bind(LOOPBACK).unwrap().local_addr().unwrap();
    match pair.nets[CLIENT].connect(free) {
        Ok(client) => assert_eq!(pair.closed(CLIENT, client), NetError::Refused),
        Err(error) => assert_eq!(error, NetError::Refused),
    }
}

#[test]
fn a_reset_is_told_and_ends_the_connection() {
    let mut pair = Pair::new(4);
    let mut stream = TcpStream::connect(pair.address).unwrap();
    let server = pair.accepted();
    // Closing with bytes unread resets.
    assert_eq!(pair.nets[SERVER].send(server, b"never read"), Ok(Sent(10)));
    stream.set_nonblocking(false).unwrap();
    std::io::Read::read_exact(&mut stream, &mut [0]).unwrap();
    drop(stream);
    let error = loop {
        match pair.nets[SERVER].receive(server, &mut [0; 8]) {
            Ok(Received::Nothing) => {
                pair.wait(SERVER, |event| (event == NetEvent::Readable(server)).then_some(()));
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        }
    };
    assert_eq!(error, NetError::Reset);
    assert_eq!(pair.nets[SERVER].send(server, b"x"), Err(NetError::Reset), "until the end has been told");
    assert_eq!(pair.closed(SERVER, server), NetError::Reset);
    assert_eq!(pair.nets[SERVER].send(server, b"x"), Err(NetError::Unknown));
}

#[test]
fn a_port_in_use_is_named() {
    let mut pair = Pair::new(4);
    let address = pair.address;
    assert_eq!(pair.nets[CLIENT].listen(address), Err(NetListenError::InUse(address)));
    let nowhere = SocketAddr::from(([192, 0, 2, 1], 1));
    assert!(matches!(pair.nets[CLIENT].listen(nowhere), Err(NetListenError::Unavailable(..))));
}

#[test]
fn connections_beyond_the_bound_wait_for_their_turn() {
    let mut pair = Pair::new(2);
    let streams: Vec<_> = (0..6).map(|_| TcpStream::connect(pair.address).unwrap()).collect();
    let mut served = 0;
    let mut open = VecDeque::new();
    while served < streams.len() {
        open.push_back(pair.accepted());
        served += 1;
        assert!(open.len() <= 2);
        // The third is not accepted while two are open, and is as soon as one closes.
        if open.len() == 2 {
            pair.step(Wait::Poll);
            assert!(!pair.told[SERVER].iter().any(|event| matches!(event, NetEvent::Accepted { .. })));
            pair.nets[SERVER].close(open.pop_front().unwrap());
        }
    }
    for _ in 0..open.len() {
        pair.nets[SERVER].close(open.pop_front().unwrap());
    }
    for _ in 0..2 {
        pair.nets[CLIENT].connect(pair.address).unwrap();
    }
    assert_eq!(pair.nets[CLIENT].connect(pair.address), Err(NetError::Exhausted));
}

#[test]
fn many_short_connections_leave_nothing_behind() {
    let mut pair = Pair::new(8);
    let mut ids = std::collections::HashSet::new();
    for round in 0..300 {
        let [server, client] = pair.connect();
        assert!(ids.insert((SERVER, server)) && ids.insert((CLIENT, client)), "ids are not used again");
        let side = round % 2;
        pair.nets[side].close([server, client][side]);
        let (other, id) = (1 - side, [server, client][1 - side]);
        assert_eq!(pair.receive(other, id, 1), []);
        pair.nets[other].close(id);
        assert!(!pair.told.iter().flatten().any(|event| matches!(event, NetEvent::Closed { .. })));
    }
}

#[test]
fn a_network_that_goes_frees_its_port() {
    let mut pair = Pair::new(4);
    let [_, client] = pair.connect();
    let handle = pair.reactor.handle();
    let address = pair.address;
    pair.nets[SERVER] = TcpNet::new(&handle, 4);
    pair.told[SERVER].clear();
    assert_eq!(pair.receive(CLIENT, client, 1), [], "its connections end");
    pair.nets[SERVER].listen(address).unwrap();
    pair.connect();
}

#[test]
fn an_idle_network_lets_the_reactor_sleep() {
    let mut pair = Pair::new(4);
    pair.connect();
    pair.step(Wait::Poll);
    let handle = pair.reactor.handle();
    let until = handle.now() + Duration::from_millis(50);
    let mut turns = 0;
    while handle.now() < until {
        pair.step(Wait::Until(Some(until)));
        turns += 1;
    }
    assert!(turns < 20, "{turns} turns with nothing to do");
}

#[test]
fn slices_are_filled_and_emptied_in_order() {
    let mut pair = Pair::new(4);
    let [server, client] = pair.connect();
    let bytes: Vec<u8> = (0..=255).collect();
    for cut in [0, 1, 100, 255, 256] {
        let (front, back) = bytes.split_at(cut);
        let slices = [&[][..], front, &[], back, &[]].map(IoSlice::new);
        assert_eq!(pair.nets[CLIENT].send_vectored(client, &slices), Ok(Sent(256)));
        let mut got = Vec::<u8>::new();
        while got.len() < 256 {
            let (mut small, mut rest) = ([0; 7], [0; 90]);
            let mut slices = [&mut small[..], &mut [], &mut rest].map(IoSliceMut::new);
            match pair.nets[SERVER].receive_vectored(server, &mut slices).unwrap() {
                Received::Bytes(count) => got.extend(small.iter().chain(&rest).take(count)),
                Received::Nothing => {
                    pair.wait(SERVER, |event| (event == NetEvent::Readable(server)).then_some(()));
                }
                Received::End => panic!("nobody ended it"),
            }
        }
        assert_eq!(got, bytes);
    }
    assert_eq!(pair.nets[SERVER].receive_vectored(server, &mut []), Ok(Received::Bytes(0)));
    let mut none = [IoSliceMut::new(&mut []), IoSliceMut::new(&mut [])];
    assert_eq!(pair.nets[SERVER].receive_vectored(server, &mut none), Ok(Received::Bytes(0)));
    assert_eq!(pair.nets[SERVER].send_vectored(server, &[]), Ok(Sent(0)));
    assert_eq!(pair.nets[SERVER].send_vectored(server, &[IoSlice::new(&[])]), Ok(Sent(0)));
    pair.nets[CLIENT].close(client);
    assert_eq!(pair.nets[CLIENT].receive_vectored(client, &mut []), Err(NetError::Unknown));
    assert_eq!(pair.nets[CLIENT].send_vectored(client, &[]), Err(NetError::Unknown));
    assert_eq!(pair.receive(SERVER, server, 1), []);
}

#[test]
fn more_slices_than_the_kernel_takes_at_once() {
    let mut pair = Pair::new(4);
    let [server, client] = pair.connect();
    let bytes: Vec<u8> = (0..=250u8).cycle().take(3000).collect();
    // Far beyond the limit of one call, most of them empty, with the bytes at the end.
    let mut slices = vec![IoSlice::new(&[]); 1500];
    slices.extend(bytes.chunks(1).map(IoSlice::new));
    let Sent(sent) = pair.nets[CLIENT].send_vectored(client, &slices).unwrap();
    assert_eq!(sent, bytes.len());
    let mut got = vec![0; bytes.len()];
    let mut filled = 0;
    while filled < got.len() {
        let mut empty = [[0u8; 0]; 1500];
        let mut slices: Vec<_> = empty.iter_mut().map(|slice| IoSliceMut::new(slice)).collect();
        slices.extend(got[filled..].chunks_mut(1).map(IoSliceMut::new));
        match pair.nets[SERVER].receive_vectored(server, &mut slices).unwrap() {
            Received::Bytes(count) => filled += count,
            Received::Nothing => {
                pair.wait(SERVER, |event| (event == NetEvent::Readable(server)).then_some(()));
            }
            Received::End => panic!("nobody ended it"),
        }
    }
    assert_eq!(got, bytes);
}

/// The last bytes and the end can be told of together, before or after somebody has looked.
#[test]
fn an_end_right_behind_the_last_bytes_is_not_missed() {
    let mut pair = Pair::new(4);
    for round in 0..200 {
        let mut stream = TcpStream::connect(pair.address).unwrap();
        let server = pair.accepted();
        stream.write_all(&[1; 10]).unwrap();
        if round % 2 == 0 {
            // Told of the bytes, and then of the end.
            assert_eq!(pair.receive(SERVER, server, 10), [1; 10]);
            stream.write_all(&[2; 10]).unwrap();
        }
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        if round % 3 == 0 {
            pair.step(Wait::Poll);
        }
        assert_eq!(pair.receive(SERVER, server, 11).len(), 10, "and then the end");
        assert_eq!(pair.nets[SERVER].send(server, b"bye"), Ok(Sent(3)));
        pair.nets[SERVER].close(server);
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"bye");
    }
}

/// Connections whose owner does not read must not keep the others from being read.
#[test]
fn those_that_are_not_read_hold_nobody_up() {
    let mut pair = Pair::new(8);
    let mut connect = || {
        let stream = TcpStream::connect(pair.address).unwrap();
        (stream, pair.accepted())
    };
    let mut ignored = [0; 6].map(|_| connect());
    let (mut stream, server) = connect();
    // More than all buffers of the tests' networks together, and less than what sockets hold.
    for (stream, _) in &mut ignored {
        stream.write_all(&[7; 60_000]).unwrap();
    }
    for round in 0..50u8 {
        stream.write_all(&[round; 5000]).unwrap();
        assert_eq!(pair.receive(SERVER, server, 5000), [round; 5000]);
        assert_eq!(pair.nets[SERVER].send(server, &[round; 10]), Ok(Sent(10)));
        let mut answer = [0; 10];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [round; 10]);
    }
    for (mut stream, id) in ignored {
        stream.write_all(&[8]).unwrap();
        let got = pair.receive(SERVER, id, 60_001);
        assert!(got[..60_000].iter().all(|byte| *byte == 7) && got[60_000..] == [8], "nothing was lost");
    }
}

#[test]
fn a_network_may_go_before_or_after_its_reactor_with_everything_in_flight() {
    for reactor_first in [true, false] {
        let mut pair = Pair::new(4);
        let [server, client] = pair.connect();
        assert_eq!(pair.nets[CLIENT].send(client, &[1; 10_000]), Ok(Sent(10_000)));
        pair.wait(SERVER, |event| (event == NetEvent::Readable(server)).then_some(()));
        let Pair { reactor, nets, .. } = pair;
        if reactor_first {
            drop(reactor);
            drop(nets);
        } else {
            drop(nets);
            drop(reactor);
        }
    }
}
