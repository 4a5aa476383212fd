//! A driver's turn: what it leaves undone, it says.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::chains::{self, Chains};
use crate::support;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use ob_core::{
    ConnectionId, DeviceCompletion, DeviceInfo, DeviceOp, Instant, ListenerId, Net, NetError, NetEvent,
    NetListenError, Received, Refused, Sent, Token,
};
use ob_nvme::driver::{Store, TargetDriver};
use ob_nvme::target::TargetConfig;
use ob_nvme::target::control::{BackendId, PortKey};
use ob_wire_nvme::command::AdminOpcode;
use ob_wire_nvme::fabrics::{Connect, ConnectParties, Property, PropertyAccess};
use ob_wire_nvme::identify::{Cns, Identify};
use ob_wire_nvme::pdu::{DataAlignment, Digests, Framing, IcRequest, Role};
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{CommandId, ControllerId, DataPointer, NamespaceId, QueueId, SubmissionEntry};
use support::{BLOCK, BLOCKS, HOST, NQN, Rig};
use zerocopy::IntoBytes;

/// A network on which one connection brings what is put there, a piece a receive, and which takes everything while it is not full.
#[derive(Default)]
struct Inbox {
    events: VecDeque<NetEvent>,
    bytes: VecDeque<u8>,
    taken: usize,
    is_full: bool,
    is_closed: bool,
}

impl Inbox {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.events.push_back(NetEvent::Readable(ConnectionId(7)));
    }
}

impl Net for Inbox {
    fn listen(&mut self, _: SocketAddr) -> Result<ListenerId, NetListenError> {
        Ok(ListenerId(0))
    }

    fn listener_address(&self, _: ListenerId) -> Option<SocketAddr> {
        None
    }

    fn connect(&mut self, _: SocketAddr) -> Result<ConnectionId, NetError> {
        Err(NetError::Refused)
    }

    fn receive(&mut self, _: ConnectionId, into: &mut [u8]) -> Result<Received, NetError> {
        if self.bytes.is_empty() && !into.is_empty() {
            return Ok(Received::Nothing);
        }
        let count = into.len().min(self.bytes.len());
        into.iter_mut().zip(self.bytes.drain(..count)).for_each(|(to, byte)| *to = byte);
        Ok(Received::Bytes(count))
    }

    fn send(&mut self, _: ConnectionId, bytes: &[u8]) -> Result<Sent, NetError> {
        if self.is_full {
            return Ok(Sent(0));
        }
        self.taken += bytes.len();
        Ok(Sent(bytes.len()))
    }

    fn finish(&mut self, _: ConnectionId) -> Result<(), NetError> {
        Ok(())
    }

    fn close(&mut self, _: ConnectionId) {
        self.is_closed = true;
    }

    fn poll(&mut self) -> Option<NetEvent> {
        self.events.pop_front()
    }
}

/// A driver with one host, whose keep-alive timeout is five seconds; and a Keep Alive of it.
fn driver_with_host(rig: Rig) -> (TargetDriver<Inbox, Instantly>, Instant, Vec<u8>) {
    let Rig { target, now, .. } = rig;
    let mut driver = TargetDriver::new(Inbox::default(), Instantly::default(), target);
    driver.listen("10.0.0.1:4420".parse().unwrap(), PortKey(1)).unwrap();
    let (peer, connection) = ("10.0.0.2:40000".parse().unwrap(), ConnectionId(7));
    let framing = Framing { role: Role::Initiator, digests: Digests::NONE, alignment: DataAlignment::DWORD };
    let capsule = |entry: &SubmissionEntry, data: &[u8]| {
        [&framing.command(entry, data.len() as u32)[..], data].concat()
    };
    let connect =
        Connect { queue: QueueId(0), queue_entries: 32, no_flow_control: false, keep_alive_ms: 5000 };
    let parties = ConnectParties {
        host_id: [9; 16],
        controller: ControllerId::DYNAMIC,
        subsystem: Nqn::new(NQN).unwrap(),
        host: Nqn::new(HOST).unwrap(),
    };
    let request = IcRequest { alignment: DataAlignment::DWORD, digests: Digests::NONE, r2t_max: 1 };
    let net = driver.net_mut();
    net.events.push_back(NetEvent::Accepted { listener: ListenerId(0), connection, peer });
    net.put(&request.encode());
    let connect = connect.encode(CommandId(1), DataPointer::InCapsule { offset: 0, len: 1024 });
    net.put(&capsule(&connect, parties.encode().as_bytes()));
    let enable = PropertyAccess { property: Property::Configuration, value: Some(0x0046_0001) };
    net.put(&capsule(&enable.encode(CommandId(2)), &[]));
    while driver.turn(now).has_more {}
    let alive = SubmissionEntry::new(AdminOpcode::KeepAlive.code(), CommandId(3), NamespaceId::NONE);
    (driver, now, capsule(&alive, &[]))
}

#[test]
fn who_has_sent_in_time_is_not_late_because_the_card_was_stopped() {
    let much_later = Duration::from_secs(60);
    let (mut driver, now, keep_alive) = driver_with_host(Rig::new());
    assert!(!driver.net_mut().is_closed, "the host is connected");
    // The Keep Alive lies in the socket when the card goes on.
    driver.net_mut().put(&keep_alive);
    let now = now + much_later;
    while driver.turn(now).has_more {}
    assert!(!driver.net_mut().is_closed, "it has sent its Keep Alive");
    // Without one it is given up.
    while driver.turn(now + much_later).has_more {}
    assert!(driver.net_mut().is_closed, "it has sent nothing");
}

#[test]
fn who_has_taken_its_answers_is_not_late_because_the_card_was_stopped() {
    let much_later = Duration::from_secs(60);
    for has_taken in [true, false] {
        let (mut driver, now, keep_alive) = driver_with_host(Rig::new());
        driver.net_mut().is_full = true;
        driver.net_mut().put(&keep_alive);
        while driver.turn(now).has_more {}
        // The answer did not go. When the card goes on, the next Keep Alive lies in the socket.
        driver.net_mut().is_full = !has_taken;
        driver.net_mut().events.extend(has_taken.then_some(NetEvent::Writable(ConnectionId(7))));
        driver.net_mut().put(&keep_alive);
        while driver.turn(now + much_later).has_more {}
        assert_eq!(driver.net_mut().is_closed, !has_taken);
    }
}

/// A disk that is done with everything at once, and has only these bytes.
#[derive(Default)]
struct Instantly(VecDeque<(BackendId, DeviceCompletion)>, BTreeMap<u64, Vec<u8>>);

impl Store for Instantly {
    fn info(&self, _: BackendId) -> Option<DeviceInfo> {
        let (capacity, block_len) = (BLOCKS * BLOCK as u64, BLOCK as u32);
        Some(DeviceInfo { capacity, block_len, volatile_cache: true, discard_unit: block_len })
    }

    fn submit(
        &mut self,
        backend: BackendId,
        token: Token,
        mut op: DeviceOp,
    ) -> Result<(), Refused<DeviceOp>> {
        if let DeviceOp::Read { offset, into } = &mut op
            && let Some(bytes) = self.1.get(offset)
        {
            into.copy_from_slice(bytes);
        }
        self.0.push_back((backend, DeviceCompletion { token, op, result: Ok(()) }));
        Ok(())
    }

    fn poll(&mut self) -> Option<(BackendId, DeviceCompletion)> {
        self.0.pop_front()
    }

    fn next_due(&self) -> Option<Instant> {
        None
    }
}

#[test]
fn a_connection_that_may_go_on_since_the_last_send_of_a_turn_does() {
    const COMMANDS: usize = 100;
    let mut rig = Rig::new();
    let (admin, _) = rig.admin(Digests::NONE);
    let bytes: Vec<u8> = (0..COMMANDS)
        .flat_map(|_| {
            let command = rig.command_id(admin);
            let entry = Identify::new(Cns::Controller, NamespaceId::NONE).encode(command);
            rig.capsule(admin, &entry, &[])
        })
        .collect();
    rig.state(admin).outbox.extend(&bytes);
    assert_eq!(rig.deliver_some(admin, usize::MAX), bytes.len());
    assert_eq!(rig.target.counts().held_up, 1, "it has more answers than it may leave unread");
    let mut driver = TargetDriver::new(Inbox::default(), Instantly::default(), rig.target);
    let mut turns = 0;
    while driver.turn(rig.now).has_more {
        assert_eq!(driver.next_due(), Some(Instant::default()));
        turns += 1;
        assert!(turns < COMMANDS, "every turn gets on");
    }
    assert!(turns > 1, "this is about several turns");
    assert_eq!(driver.target().counts().held_up, 0);
    assert!(driver.net_mut().taken > COMMANDS * 4096, "all of them are answered");
}

#[test]
fn buffers_that_come_back_with_the_last_send_of_a_turn_are_used_in_another() {
    const READS: usize = 7;
    // One address gets one of four large buffers, so reads go one after the other, each when the one before is sent.
    let mut rig = Rig::with(TargetConfig { transfer_memory: 2 * (128 << 10), ..TargetConfig::default() });
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.disk.is_held = true;
    for _ in 0..READS {
        rig.submit_read(io, 0, 256);
    }
    assert_eq!(rig.target.counts().waiting_for_buffer, READS as u64 - 1);
    assert!(!rig.target.can_go_on(), "nothing has come back");
    let mut store = Instantly::default();
    for (token, op) in rig.disk.queue.drain(..) {
        store.submit(BackendId(0), token, op).unwrap();
    }
    let mut driver = TargetDriver::new(Inbox::default(), store, rig.target);
    // No byte will come, and nothing is due: only what the turn says keeps its caller from going to sleep.
    let mut turns = 0;
    while driver.turn(rig.now).has_more {
        assert_eq!(
            driver.next_due(),
            Some(Instant::default()),
            "somebody who looks there must not sleep either"
        );
        turns += 1;
        assert!(turns < READS, "every turn gets on");
    }
    assert!(turns > 1, "this is about several turns");
    let counts = driver.target().counts();
    assert_eq!((counts.in_flight, counts.waiting_for_buffer), (0, 0));
    assert!(driver.net_mut().taken > READS * 256 * BLOCK, "all of them are answered");
}

/// A target that has a chain to hand out.
fn rig_with_chain() -> Rig {
    let mut rig = Rig::with(TargetConfig { foreign: vec![chains::opcode()], ..TargetConfig::default() });
    let (_, io) = rig.queues(Digests::NONE, false);
    let mut entry = SubmissionEntry::new(chains::CHAIN, rig.command_id(io), NamespaceId(1))
        .with_data(DataPointer::Transport { len: 8 });
    entry.dword10 = (chains::NODE as u32).into();
    let bytes = rig.capsule(io, &entry, &[]);
    rig.state(io).outbox.extend(bytes);
    assert!(rig.deliver_some(io, usize::MAX) > 0);
    rig
}

#[test]
fn what_is_handed_out_where_no_service_is_keeps_nobody_awake() {
    let Rig { target, now, .. } = rig_with_chain();
    let mut driver = TargetDriver::new(Inbox::default(), Instantly::default(), target);
    assert!(!driver.turn(now).has_more);
    let counts = driver.target().counts();
    assert_eq!((counts.in_service, counts.in_flight, counts.failed), (0, 0, 1));
    assert_ne!(driver.next_due(), Some(Instant::default()));
}

/// A service has its turn with the devices: no round of a chain waits for another turn of the loop.
#[test]
fn a_chain_over_a_device_that_is_done_at_once_is_one_turn() {
    const READS: usize = 6;
    let rig = rig_with_chain();
    let mut store = Instantly::default();
    for index in 1..=READS {
        let next = if index < READS { (index + 1) * chains::NODE } else { 0 };
        store.1.insert((index * chains::NODE) as u64, chains::node(next as u64, 1));
    }
    let mut driver = TargetDriver::with_service(Inbox::default(), store, rig.target, Chains::new());
    assert_eq!(driver.next_due(), Some(Instant::default()));
    driver.turn(rig.now);
    assert_eq!(driver.service_mut().answered, 1);
    assert_eq!(driver.service_mut().seen_at.len(), READS);
    assert!(driver.net_mut().taken > 8, "and sent");
}

#[test]
fn a_receive_that_leaves_nothing_makes_no_turn_due() {
    let Rig { target, now, .. } = Rig::new();
    let mut driver = TargetDriver::new(Inbox::default(), Instantly::default(), target);
    let peer = SocketAddr::from(([127, 0, 0, 1], 4420));
    driver.listen(peer, PortKey(1)).unwrap();
    let (listener, connection) = (ListenerId(0), ConnectionId(7));
    driver.net_mut().events.push_back(NetEvent::Accepted { listener, connection, peer });
    // The beginning of a PDU: the target waits for the rest of it.
    driver.net_mut().put(&[0, 0, 128, 0]);
    let turn = driver.turn(now);
    assert!(turn.events > 0 && driver.net_mut().bytes.is_empty());
    assert!(!turn.has_more, "all that came was looked at");
    assert_ne!(driver.next_due(), Some(Instant::default()), "nothing is to be done at once");
}
