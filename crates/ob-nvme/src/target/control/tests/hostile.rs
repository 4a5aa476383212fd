//! Whatever comes on whatever queue: an answer within bounds, never a panic.

use ob_wire_nvme::command::FABRICS_OPCODE;
use proptest::prelude::*;
use zerocopy::FromBytes;

use super::*;

/// An entry of random bytes whose opcode, and fabrics type, are often ones that exist.
fn entry() -> impl Strategy<Value = SubmissionEntry> {
    let opcode = prop_oneof![
        3 => proptest::sample::select(vec![0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x0D, 0x0E, 0x11, 0x15, 0x18]),
        2 => Just(FABRICS_OPCODE),
        1 => any::<u8>(),
    ];
    let small = prop_oneof![Just(0_u32), 0_u32..0x300, Just(u32::MAX), any::<u32>()];
    let namespace = prop_oneof![0_u32..10, Just(u32::MAX), any::<u32>()];
    (any::<[u8; 64]>(), opcode, namespace, small, any::<bool>()).prop_map(
        |(bytes, opcode, namespace, dword10, is_wild)| {
            let entry = SubmissionEntry::read_from_bytes(&bytes).unwrap();
            let dword10 = if is_wild { entry.dword10 } else { dword10.into() };
            SubmissionEntry { opcode, namespace: namespace.into(), dword10, ..entry }
        },
    )
}

#[derive(Clone, Debug)]
enum Step {
    Command(usize, SubmissionEntry, Vec<u8>, u32),
    Connect([u8; 64], Vec<u8>),
    Tick(u64),
    Remove(u32),
    Add(u32),
    Ended(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let data = || proptest::collection::vec(any::<u8>(), 0..600);
    prop_oneof![
        20 => (0_usize..6, entry(), data(), prop_oneof![0_u32..5000, any::<u32>()])
            .prop_map(|(queue, entry, data, len)| Step::Command(queue, entry, data, len)),
        1 => (any::<[u8; 64]>(), proptest::collection::vec(any::<u8>(), 1024..1025))
            .prop_map(|(entry, data)| Step::Connect(entry, data)),
        1 => (0_u64..200).prop_map(Step::Tick),
        1 => (0_u32..4).prop_map(Step::Remove),
        1 => (0_u32..4).prop_map(Step::Add),
        1 => (0_usize..6).prop_map(Step::Ended),
    ]
}

fn run(steps: Vec<Step>) {
    let mut stage = Stage::new();
    let (admin, io) = stage.with_queue(1);
    let (other_admin, other_io) = stage.with_queue(2);
    let discovery = stage.discovery(3);
    let disabled = stage.connect(4).identity;
    let queues = [admin, io, other_admin, other_io, discovery, disabled];
    for step in steps {
        match step {
            Step::Command(queue, entry, data, len) => {
                let verdict = stage.control.command(stage.now, queues[queue], &entry, &data, len);
                if let Verdict::Data { bytes, .. } = verdict {
                    assert!(bytes.len() <= LARGE as usize && bytes.len() <= len as usize);
                }
            }
            Step::Connect(bytes, data) => {
                let entry = SubmissionEntry::read_from_bytes(&bytes).unwrap();
                let _ = stage.control.connect(stage.now, PORT, &entry, &data);
            }
            Step::Tick(later) => {
                stage.now = stage.now + Duration::from_millis(later * 50);
                stage.control.tick(stage.now);
                assert!(stage.control.next_due().is_none_or(|due| due > stage.now));
            }
            Step::Remove(nsid) => {
                let _ = stage.control.remove_namespace(stage.subsystem, nsid);
            }
            Step::Add(backend) => {
                let _ = stage.control.add_namespace(stage.subsystem, &namespace(backend));
            }
            Step::Ended(queue) => {
                stage.control.disconnected(queues[queue]);
            }
        }
        for queue in queues {
            for nsid in [0, 1, 2, u32::MAX] {
                if let Ok(namespace) = stage.control.namespace(queue.controller, nsid) {
                    let _ = stage.control.admit(queue, namespace, Access::Write);
                }
            }
        }
        assert!(stage.events().len() < 100);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_input_panics(steps in proptest::collection::vec(step(), 1..80)) {
        run(steps);
    }
}
