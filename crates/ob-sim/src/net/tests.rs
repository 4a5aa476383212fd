//! Streams stay whole and in order whatever the network does, and it does everything it can.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::{PerMillion, SimClock};
use ob_core::Clock;

const PORT: u16 = 4420;
const SERVER: NodeId = NodeId(0);
const CLIENT: NodeId = NodeId(1);

/// The byte at a position of a connection's stream.
fn byte_at(stream: u64, position: u64) -> u8 {
    (stream.wrapping_mul(0x9e37_79b9).wrapping_add(position.wrapping_mul(31)) >> 2) as u8
}

/// The checker: a stream's bytes, one after the other, nothing left out, nothing twice.
#[derive(Default)]
struct Stream {
    sent: u64,
    received: u64,
    ended: bool,
}

impl Stream {
    fn check(&mut self, stream: u64, bytes: &[u8]) -> Result<(), String> {
        for byte in bytes {
            if *byte != byte_at(stream, self.received) {
                return Err(format!("byte {} of stream {stream} is not what was sent", self.received));
            }
            self.received += 1;
        }
        if self.received > self.sent { Err("more than was sent".into()) } else { Ok(()) }
    }
}

struct Rig {
    network: Network,
    clock: SimClock,
    rng: Rng,
    nets: [SimNet; 2],
    /// The client's end of each connection, and the client's streams by the server's end.
    streams: BTreeMap<ConnectionId, Stream>,
    /// The accepting end of each, from the first bytes (its name).
    names: BTreeMap<ConnectionId, (u64, Vec<u8>)>,
    closed: BTreeMap<&'static str, u64>,
}

impl Rig {
    fn new(seed: u64, plan: NetPlan) -> Self {
        let clock = SimClock::new();
        let rng = Rng::new(seed);
        let network = Network::new(plan, rng.fork("net"), Trace::new(clock.clone()));
        let mut nets = [SERVER, CLIENT].map(|node| network.attach(node));
        nets[0].listen(Network::address(SERVER, PORT)).unwrap();
        let (streams, names, closed) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { network, clock, rng, nets, streams, names, closed }
    }

    fn connect(&mut self) -> ConnectionId {
        let id = self.nets[1].connect(Network::address(SERVER, PORT)).unwrap();
        self.streams.insert(id, Stream::default());
        id
    }

    fn step(&mut self) -> bool {
        let Some(due) = self.network.next_due() else { return false };
        self.clock.advance_to(due);
        self.network.advance();
        true
    }

    /// The client's end sends of its stream until it is told to wait. The first eight bytes are its name, so that the server knows.
    fn send_some(&mut self, id: ConnectionId) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let name = id.0.to_le_bytes();
        let byte =
            |position: u64| if position < 8 { name[position as usize] } else { byte_at(id.0, position - 8) };
        loop {
            let len = 1 + self.rng.below(5000);
            let bytes: Vec<u8> = (stream.sent..stream.sent + len).map(byte).collect();
            // Every other piece goes as slices, one of them of no length.
            let result = if len.is_multiple_of(2) {
                let (front, back) = bytes.split_at(self.rng.below(len + 1) as usize);
                self.nets[1].send_vectored(id, &[front, &[], back].map(IoSlice::new))
            } else {
                self.nets[1].send(id, &bytes)
            };
            let Ok(Sent(taken)) = result else { return };
            stream.sent += taken as u64;
            if taken < bytes.len() {
                return;
            }
        }
    }

    /// The server takes what there is.
    fn serve(&mut self, id: ConnectionId) {
        let mut buffer = [0; 700];
        loop {
            let (front, back) = buffer.split_at_mut(self.rng.below(701) as usize);
            let mut slices = [front, &mut [], back].map(IoSliceMut::new);
            let Ok(received) = self.nets[0].receive_vectored(id, &mut slices) else { return };
            let bytes = match received {
                Received::Bytes(len) => &buffer[..len],
                Received::Nothing => return,
                Received::End => {
                    let name = self.names.get(&id).map_or(0, |(name, _)| *name);
                    if let Some(stream) = self.streams.get_mut(&ConnectionId(name)) {
                        stream.ended = true;
                    }
                    return;
                }
            };
            let (name, head) = self.names.entry(id).or_default();
            let rest = bytes.len().min(8 - head.len());
            head.extend(&bytes[..rest]);
            if head.len() == 8 && *name == 0 {
                *name = u64::from_le_bytes(head.as_slice().try_into().unwrap());
            }
            let stream = self.streams.entry(ConnectionId(*name)).or_default();
            stream.check(*name, &bytes[rest..]).unwrap();
        }
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.nets[0].poll() {
            match event {
                NetEvent::Accepted { connection, .. } | NetEvent::Readable(connection) => {
                    self.serve(connection);
                }
                NetEvent::Closed { error, .. } => self.count_closed(error),
                _ => {}
            }
        }
        while let Some(event) = self.nets[1].poll() {
            match event {
                NetEvent::Connected(id) | NetEvent::Writable(id) => self.send_some(id),
                NetEvent::Closed { error, .. } => self.count_closed(error),
                _ => {}
            }
        }
    }

    fn count_closed(&mut self, error: NetError) {
        let name = match error {
            NetError::Reset => "reset",
            NetError::TimedOut => "timed out",
            NetError::Refused => "refused",
            _ => "other",
        };
        *self.closed.entry(name).or_default() += 1;
    }
}

fn chaotic() -> NetPlan {
    NetPlan {
        reset: PerMillion(200),
        refuse: PerMillion::percent(5),
        window: 8 << 10,
        timeout: Duration::from_secs(1),
        ..NetPlan::default()
    }
}

#[test]
fn streams_stay_whole_under_chaos_and_every_fault_is_reached() {
    let (mut sum, mut closed) = (NetStats::default(), BTreeMap::<&str, u64>::new());
    for seed in 0..40 {
        let mut rig = Rig::new(seed, chaotic());
        for round in 0..1500 {
            if round % 150 == 0 {
                rig.connect();
            }
            match rig.rng.below(400) {
                0 => rig.network.cut(CLIENT, SERVER),
                1 => rig.network.cut(SERVER, CLIENT),
                2..=5 => rig.network.heal_all(),
                6 => rig.network.reset_between(SERVER, CLIENT),
                7 => {
                    let how = if rig.rng.one_in(2) { Death::Process } else { Death::Power };
                    rig.network.kill(SERVER, how);
                    rig.nets[0] = rig.network.attach(SERVER);
                    rig.nets[0].listen(Network::address(SERVER, PORT)).unwrap();
                    rig.names.clear();
                }
                _ => {}
            }
            rig.step();
            rig.handle_events();
        }
        let stats = rig.network.stats();
        sum.bytes += stats.bytes;
        sum.short_sends += stats.short_sends;
        sum.short_receives += stats.short_receives;
        sum.held_up += stats.held_up;
        sum.refused += stats.refused;
        sum.timeouts += stats.timeouts;
        sum.resets += stats.resets;
        for (name, count) in rig.closed {
            *closed.entry(name).or_default() += count;
        }
    }
    assert!(sum.bytes > 1_000_000, "{sum:?}");
    for count in [sum.short_sends, sum.short_receives, sum.held_up, sum.refused, sum.timeouts, sum.resets] {
        assert!(count > 5, "{sum:?}");
    }
    assert!(["reset", "timed out", "refused"].iter().all(|name| closed.contains_key(name)), "{closed:?}");
}

#[test]
fn the_checker_finds_bytes_lost_doubled_changed_or_made_up() {
    let bytes: Vec<u8> = (0..10).map(|position| byte_at(3, position)).collect();
    let check = |bytes: &[u8]| Stream { sent: 10, ..Stream::default() }.check(3, bytes);
    assert_eq!(check(&bytes), Ok(()));
    assert!(check(&bytes[1..]).is_err(), "lost");
    assert!(check(&[&bytes[..5], &bytes[4..]].concat()).is_err(), "doubled");
    let changed: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
    assert!(check(&changed).is_err());
    assert!(check(&(0..11).map(|position| byte_at(3, position)).collect::<Vec<_>>()).is_err(), "made up");
}

#[test]
fn a_finished_stream_ends_after_its_last_byte() {
    for seed in 0..50 {
        let mut rig = Rig::new(seed, NetPlan { window: 4096, ..NetPlan::default() });
        let id = rig.connect();
        while rig.streams[&id].sent < 20_000 {
            assert!(rig.step(), "the network stands still, seed {seed}");
            rig.handle_events();
        }
        if seed % 2 == 0 {
            rig.nets[1].finish(id).unwrap();
        } else {
            rig.nets[1].close(id);
        }
        while rig.step() {
            rig.handle_events();
        }
        let stream = &rig.streams[&id];
        assert!(stream.ended && stream.received + 8 == stream.sent, "seed {seed}");
        assert_eq!(rig.nets[1].send(id, &[1]), Err(NetError::Unknown));
    }
}

#[test]
fn a_cut_that_heals_in_time_loses_nothing_and_one_that_does_not_times_out() {
    let plan = NetPlan { timeout: Duration::from_secs(2), ..NetPlan::default() };
    for (seed, heals) in [(1, true), (2, false)] {
        let mut rig = Rig::new(seed, plan.clone());
        let id = rig.connect();
        while rig.streams[&id].sent < 5000 {
            assert!(rig.step());
            rig.handle_events();
        }
        rig.network.cut(CLIENT, SERVER);
        rig.send_some(id);
        let cut_at = rig.clock.now();
        let mut healed = false;
        for _ in 0..3000 {
            if heals && !healed && rig.clock.now().since(cut_at) > Duration::from_secs(1) {
                rig.network.heal_all();
                healed = true;
            }
            rig.step();
            rig.handle_events();
        }
        assert_eq!(rig.closed.contains_key("timed out"), !heals);
    }
}

#[test]
fn the_dead_are_noticed_by_a_reset_or_by_silence() {
    for how in [Death::Process, Death::Power] {
        let mut rig = Rig::new(9, NetPlan::default());
        let id = rig.connect();
        while rig.streams[&id].sent < 1000 {
            assert!(rig.step());
            rig.handle_events();
        }
        rig.network.kill(SERVER, how);
        assert_eq!(rig.nets[0].poll(), None, "the dead hear nothing");
        assert!(rig.nets[0].connect(Network::address(CLIENT, PORT)).is_err());
        rig.send_some(id);
        let started = rig.clock.now();
        while rig.closed.is_empty() {
            assert!(rig.step());
            rig.handle_events();
        }
        let waited = rig.clock.now().since(started);
        match how {
            Death::Process => assert!(rig.closed.contains_key("reset") && waited < Duration::from_secs(1)),
            Death::Power => assert!(rig.closed.contains_key("timed out") && waited >= Duration::from_secs(9)),
        }
        // A dead process's machine refuses at once; a dead machine says nothing.
        let before = rig.clock.now();
        rig.connect();
        rig.closed.clear();
        while rig.closed.is_empty() {
            assert!(rig.step());
            rig.handle_events();
        }
        assert_eq!(rig.closed.contains_key("refused"), how == Death::Process);
        assert_eq!(rig.clock.now().since(before) < Duration::from_secs(1), how == Death::Process);
    }
}

#[test]
fn addresses_ports_and_ids_are_checked() {
    let mut rig = Rig::new(1, NetPlan { exhausted: PerMillion::ALWAYS, ..NetPlan::default() });
    let net = &mut rig.nets[0];
    assert!(matches!(net.listen(Network::address(SERVER, PORT)), Err(NetListenError::InUse(_))));
    assert!(matches!(net.listen(Network::address(CLIENT, 1)), Err(NetListenError::Unavailable(..))));
    let any = net.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    assert_ne!(net.listener_address(any).unwrap().port(), 0);
    assert_eq!(net.connect("192.0.2.1:1".parse().unwrap()), Err(NetError::Unreachable));
    assert_eq!(net.connect(Network::address(CLIENT, 1)), Err(NetError::Exhausted));
    assert_eq!(net.receive(ConnectionId(77), &mut [0]), Err(NetError::Unknown));
    assert_eq!(net.receive_vectored(ConnectionId(77), &mut []), Err(NetError::Unknown));
    assert_eq!(net.send_vectored(ConnectionId(77), &[]), Err(NetError::Unknown));
    assert_eq!(net.finish(ConnectionId(77)), Err(NetError::Unknown));
    net.close(ConnectionId(77));
}

#[test]
fn one_seed_is_one_story() {
    let story = |seed| {
        let mut rig = Rig::new(seed, chaotic());
        rig.connect();
        for _ in 0..500 {
            rig.step();
            rig.handle_events();
        }
        (rig.network.stats(), rig.clock.now())
    };
    assert_eq!(story(3), story(3));
    assert_ne!(story(3), story(4));
}
