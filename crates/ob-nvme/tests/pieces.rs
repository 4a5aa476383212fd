//! Commands with their data, in whatever pieces the network brings them.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::support;

use ob_nvme::target::TargetConfig;
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::pdu::{Digests, Pdu};
use ob_wire_nvme::{DataPointer, Status};
use proptest::prelude::*;
use support::{BLOCK, Client, Rig};

const ALL_DIGESTS: Digests = Digests { header: true, data: true };

fn pattern(seed: usize, blocks: usize) -> Vec<u8> {
    (0..blocks * BLOCK).map(|index| (index * 7 + seed * 13 + index / BLOCK) as u8).collect()
}

/// What a host does next.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write { blocks: usize },
    Compare,
    Read,
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => Just(Step::Write { blocks: 8 }),
        2 => (1usize..=16).prop_map(|blocks| Step::Write { blocks }),
        1 => Just(Step::Compare),
        1 => Just(Step::Read),
        1 => Just(Step::Flush),
    ]
}

fn entry_of(rig: &mut Rig, io: Client, step: Step, index: usize) -> Vec<u8> {
    let block = index as u64 * 16;
    let in_capsule = |blocks: usize| DataPointer::InCapsule { offset: 0, len: (blocks * BLOCK) as u32 };
    let (entry, data) = match step {
        Step::Write { blocks } => {
            let entry = rig.entry(io, IoOpcode::Write, block, blocks as u32, in_capsule(blocks));
            (entry, pattern(index, blocks))
        }
        Step::Compare => {
            // What nobody writes: its bytes must not be anybody's data either.
            let entry = rig.entry(io, IoOpcode::Compare, block, 8, in_capsule(8));
            (entry, vec![0; 8 * BLOCK])
        }
        Step::Read => {
            let data = DataPointer::Transport { len: 512 };
            (rig.entry(io, IoOpcode::Read, block, 1, data), Vec::new())
        }
        Step::Flush => (rig.entry(io, IoOpcode::Flush, 0, 1, DataPointer::None), Vec::new()),
    };
    rig.capsule(io, &entry, &data)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn whatever_comes_in_whatever_pieces_lands_where_it_belongs(
        steps in prop::collection::vec(step(), 1..120),
        cuts in prop::collection::vec(1usize..30_000, 1..20),
        has_digests: bool,
        capsule_buffers in 2usize..64,
    ) {
        let mut rig = Rig::with(TargetConfig { capsule_buffers, ..TargetConfig::default() });
        let (_, io) = rig.queues(if has_digests { ALL_DIGESTS } else { Digests::NONE }, false);
        let mut expected = rig.disk.bytes.clone();
        for (index, step) in steps.iter().enumerate() {
            let bytes = entry_of(&mut rig, io, *step, index);
            rig.state(io).outbox.extend(bytes);
            if let Step::Write { blocks } = step {
                let at = index * 16 * BLOCK;
                expected[at..at + blocks * BLOCK].copy_from_slice(&pattern(index, *blocks));
            }
        }
        let mut cuts = cuts.iter().cycle();
        let mut idle = 0;
        while !rig.state(io).outbox.is_empty() {
            let count = rig.deliver_some(io, *cuts.next().unwrap());
            // A connection that was held up may find that what it holds is not a whole command.
            idle = if rig.settle() || count > 0 { 0 } else { idle + 1 };
            prop_assert!(idle < 3, "nothing goes on");
        }
        rig.run();
        let statuses: Vec<Status> = rig.messages(io).iter().filter_map(|message| match &message.pdu {
            Pdu::Response(entry) => Some(entry.status()),
            _ => None,
        }).collect();
        prop_assert_eq!(statuses, vec![Status::SUCCESS; steps.len()]);
        prop_assert!(rig.disk.bytes == expected, "data went astray");
        prop_assert_eq!(rig.target.memory_used(), 0);
    }
}
