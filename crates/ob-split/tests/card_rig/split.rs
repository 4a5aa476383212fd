//! A port that has the paper's API, its host, and peers that connect to it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use ob_split::card::{IntakeConfig, NoFront, PortConfig, SplitDialect};
use ob_split::host::{CardMemory, Completion, HostEnds, PortOptions, RingEnds, Split};
use ob_split::wire::{ChannelId, HEADER_LEN, Header, REPLY};

use super::{MAGIC, Rig, address, config};

pub const PATIENCE: Duration = Duration::from_secs(1);
pub const STALL: Duration = Duration::from_secs(5);
/// Where the card listens, and the ports of peers.
pub const DOOR: u16 = 7000;
pub const VM: u16 = 41;
pub const OTHER: u16 = 42;
pub const STORAGE: u16 = 1;
pub const GRANTED: u32 = 2;

pub type Port = Rc<RefCell<Rig<NoFront, SplitDialect>>>;

pub fn port_config() -> PortConfig {
    let memory = vec![(4 << 10, 8), (64 << 10, 2)];
    PortConfig {
        granted: vec![(64 << 10, GRANTED)],
        intake: Some(IntakeConfig { memory, stall: STALL, ..IntakeConfig::default() }),
        payload_max: 64 << 10,
        ..config()
    }
}

pub fn rig(config: PortConfig) -> Port {
    Rc::new(RefCell::new(Rig::of(config, NoFront, SplitDialect::new(MAGIC, PATIENCE))))
}

/// A host that has the paper's API: whenever it would sleep, the card runs.
pub fn host(port: &Port) -> Split<impl HostEnds + use<>> {
    host_with_ring(port, 64 << 10)
}

pub fn host_with_ring(port: &Port, ring_len: u32) -> Split<impl HostEnds + use<>> {
    port.borrow_mut().open(ring_len);
    let (sender, receiver) = port.borrow_mut().ends();
    let card = Rc::clone(port);
    let sleeper = move |_: &[(&AtomicU64, u32)], _: Option<Duration>| card.borrow_mut().run();
    Split::open(RingEnds::new(sender, receiver, None, sleeper), &PortOptions::default()).unwrap()
}

/// Both take turns until neither has anything to say.
pub fn settle(port: &Port, split: &mut Split<impl HostEnds>) {
    for _ in 0..4 {
        split.flush();
        port.borrow_mut().run();
    }
}

pub fn listen(split: &mut Split<impl HostEnds>) -> ChannelId {
    let event = split.listen(address(DOOR)).unwrap();
    let Completion::Listening { listener, port } = split.wait(event) else { panic!() };
    assert_eq!(port, DOOR);
    listener
}

pub fn accept(port: &Port, split: &mut Split<impl HostEnds>, listener: ChannelId, peer: u16) -> ChannelId {
    port.borrow_mut().card.net_mut().arrive(DOOR, peer);
    let event = split.accept(listener);
    let Completion::Connected(channel) = split.wait(event) else { panic!() };
    channel
}

pub fn message(tag: u64, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        magic: MAGIC,
        version: 1,
        kind: 1,
        status: 0,
        flags: 0,
        tag,
        payload_len: payload.len() as u32,
        rest: [3; 40],
    };
    [&header.encode()[..], payload].concat()
}

pub fn say(port: &Port, peer: u16, bytes: &[u8]) {
    port.borrow_mut().card.net_mut().say(peer, bytes);
}

pub fn heard(port: &Port, peer: u16) -> Vec<(Header, Vec<u8>)> {
    port.borrow_mut().card.net_mut().heard(peer)
}

pub fn unread(port: &Port, peer: u16) -> usize {
    port.borrow_mut().card.net_mut().pipe(peer).1.to_card.len()
}

pub fn blocks_out(port: &Port) -> usize {
    port.borrow().card.counts().blocks_out
}

pub fn received(completion: Completion) -> (u64, CardMemory, u32) {
    let Completion::Received { header, payload, len, .. } = completion else { panic!("{completion:?}") };
    (u64::from_le_bytes(header[8..16].try_into().unwrap()), payload, len)
}

pub fn compressible(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 97) as u8).collect()
}

pub fn unpacked(bytes: &[u8], len: usize) -> Vec<u8> {
    lz4::block::decompress(bytes, Some(len as i32)).unwrap()
}

pub const ANSWER: fn(u64) -> [u8; HEADER_LEN] = |tag| {
    let (status, flags, payload_len, rest) = (0, 0, 0, [0; 40]);
    Header { magic: MAGIC, version: 1, kind: 1 | REPLY, status, flags, tag, payload_len, rest }.encode()
};
