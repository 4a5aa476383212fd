//! What a thousand connections that do nothing cost: memory, and the time of those that do something.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::time::Duration;

use ob_core::ConnectionId;
use ob_nvme::target::control::PortKey;
use ob_nvme::target::{ConnectionKey, TargetConfig};
use ob_wire_nvme::pdu::{DataAlignment, Digests, IcRequest};
use ob_wire_nvme::{DataPointer, NamespaceId, Status, SubmissionEntry};
use rustix::time::{ClockId, clock_gettime};
use support::{Client, Rig, Wish};

const IDLE: usize = 1000;
/// So many times the processor's time for a command are more than the noise of a measurement.
const NOTICED: f64 = 1.6;

/// The processor's time of this thread: what else the machine does is not in it.
fn processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap()
}

/// Bytes of memory that this process has touched.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    let kibibytes: usize = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kibibytes << 10
}

fn receive(rig: &mut Rig, key: ConnectionKey, bytes: &[u8]) {
    let [direct, scratch] = rig.target.receive_into(key).unwrap();
    assert!(direct.is_empty());
    scratch[..bytes.len()].copy_from_slice(bytes);
    rig.target.received(rig.now, key, bytes.len());
}

/// Bytes that each of many connections takes that said `bytes` and heard the answer, if there is one.
fn cost(bytes: &[u8]) -> usize {
    let connections_max = 16 * IDLE;
    let mut rig = Rig::with(TargetConfig { connections_max, ..small() });
    let before = resident();
    for index in 0..connections_max {
        let key = rig.target.accept(rig.now, ConnectionId(index as u64), PortKey(1)).unwrap();
        receive(&mut rig, key, bytes);
    }
    let mut answer_len = 0;
    while let Some((key, _)) = rig.target.next_dirty() {
        answer_len = 128;
        rig.target.sent(rig.now, key, answer_len);
    }
    let cost = resident().saturating_sub(before) / connections_max;
    assert_eq!(rig.target.counts().connections, connections_max as u64);
    assert_eq!(rig.target.memory_used(), 0, "they take no payload memory");
    // All of them are too late at the latest after ten seconds, and then nothing is left.
    rig.now = rig.now + Duration::from_secs(11);
    rig.target.tick(rig.now);
    assert_eq!((rig.target.counts().connections, rig.target.counts().timeouts), (0, connections_max as u64));
    println!("{} bytes said, {answer_len} heard: {cost} bytes each", bytes.len());
    cost
}

fn small() -> TargetConfig {
    TargetConfig {
        transfer_memory: 1 << 20,
        capsule_buffers: 4,
        compares_max: 1,
        receive_len: 16 << 10,
        ..TargetConfig::default()
    }
}

/// What `docs/nvme.md` says. Alone in its process but for the other test, which takes its memory before or after.
fn memory_is_as_documented() {
    assert!(cost(&[]) <= 1024, "a silent connection");
    assert!(cost(&[0, 0]) <= 1024, "one with the begin of a PDU");
    let request = IcRequest { alignment: DataAlignment::DWORD, digests: Digests::BOTH, r2t_max: 1 };
    assert!(cost(&request.encode()) <= 2048, "one that is open and says nothing more");
}

/// An association of its own, which stays.
fn idle_association(rig: &mut Rig, number: usize) {
    let mut host_id = [0xEE; 16];
    host_id[..8].copy_from_slice(&(number as u64).to_le_bytes());
    rig.admin_as(Digests::NONE, &Wish { host_id, ..Wish::default() });
}

/// Reads of one block, one after the other, each a millisecond after the one before.
fn read(rig: &mut Rig, io: Client, count: usize) -> Duration {
    let entry = SubmissionEntry::new(0x02, ob_wire_nvme::CommandId(5), NamespaceId(1))
        .with_data(DataPointer::Transport { len: 512 });
    let capsule = rig.capsule(io, &entry, &[]);
    let begin = processor_time();
    for _ in 0..count {
        rig.now = rig.now + Duration::from_millis(1);
        if rig.target.next_due().is_some_and(|due| due <= rig.now) {
            rig.target.tick(rig.now);
        }
        rig.state(io).outbox.extend(&capsule);
        rig.deliver_some(io, usize::MAX);
        while rig.settle() {}
    }
    let spent = processor_time() - begin;
    assert_eq!(rig.messages(io).len(), 2 * count, "data and a response each");
    spent
}

/// How many times longer the work of a busy connection takes with idle ones beside it. The shortest of several rounds
/// each, in turn: whatever disturbs a round makes it longer.
fn slowdown(mut alone: Rig, mut crowded: Rig) -> f64 {
    let [one, two] = [&mut alone, &mut crowded].map(|rig| rig.queues(Digests::NONE, false).1);
    let mut best = [Duration::MAX; 2];
    for _ in 0..12 {
        best[0] = best[0].min(read(&mut alone, one, 1000));
        best[1] = best[1].min(read(&mut crowded, two, 1000));
    }
    best[1].as_secs_f64() / best[0].as_secs_f64()
}

fn others_do_not_notice() {
    let config = || TargetConfig { connections_max: IDLE + 2, ..small() };
    let mut crowded = Rig::with(config());
    (0..IDLE).for_each(|number| idle_association(&mut crowded, number));
    let ratio = slowdown(Rig::with(config()), crowded);
    println!("{IDLE} idle associations: {ratio:.2} times the processor's time");
    assert!(ratio < NOTICED, "a read takes {ratio:.2} times as long beside {IDLE} idle associations");
}

/// A check that cannot tell would be none: a target that looks at every connection for each command is found.
fn looking_at_everybody_would_be_noticed() {
    let mut rig = Rig::with(TargetConfig { connections_max: IDLE + 2, ..small() });
    (0..IDLE).for_each(|number| idle_association(&mut rig, number));
    let (_, io) = rig.queues(Digests::NONE, false);
    let honest = (0..5).map(|_| read(&mut rig, io, 200)).min().unwrap();
    let nosy = (0..5)
        .map(|_| {
            let begin = processor_time();
            for _ in 0..200 {
                read(&mut rig, io, 1);
                // Each of these walks over all connections, and a little of each is looked at.
                for _ in 0..4 {
                    assert_eq!(rig.target.counts().connections, IDLE as u64 + 2);
                }
            }
            processor_time() - begin
        })
        .min()
        .unwrap();
    println!("looking at everybody: {nosy:?} instead of {honest:?}");
    assert!(nosy.as_secs_f64() > honest.as_secs_f64() * NOTICED, "{nosy:?} is not far from {honest:?}");
}

#[test]
fn a_thousand_idle_connections_cost_what_is_documented_and_nobody_else_notices() {
    memory_is_as_documented();
    others_do_not_notice();
    looking_at_everybody_would_be_noticed();
    // And who is idle is still served: an association may be silent as long as it likes.
    let mut rig = Rig::with(TargetConfig { connections_max: IDLE + 2, ..small() });
    let (_, io) = rig.queues(Digests::NONE, false);
    rig.advance(Duration::from_secs(3600));
    rig.submit_read(io, 0, 1);
    assert_eq!(rig.messages(io).len(), 2);
    assert_eq!(rig.simple(io, ob_wire_nvme::command::IoOpcode::Flush, 0, 1).status(), Status::SUCCESS);
}
