//! Files with more holes than one part of a map has room for: what the card knows of them, the log says too.

#![allow(clippy::unwrap_used)] // A test that cannot go on has failed.

use crate::support;

use ob_core::NodeId;
use ob_files_card::Op;
use ob_wire_link::files::ROOT;
use proptest::prelude::*;
use support::{MemoryDevice, Rig, SMALL, pattern, small_format};

const BLOCK: u32 = 512;
const SEGMENT: u64 = 4096;
/// Three parts' worth and more, if every other one is a hole.
const SEGMENTS: u64 = 240;

fn rig() -> (Rig, NodeId) {
    let device = MemoryDevice::new((384 << 10) + 2 * SEGMENTS * SEGMENT, BLOCK);
    let mut rig = Rig::format(device, &small_format(SEGMENT), &SMALL);
    let file = rig.create(ROOT, b"file").unwrap().id;
    (rig, file)
}

fn again(mut rig: Rig) -> Rig {
    rig.flush().unwrap();
    rig.settle();
    Rig::mount(MemoryDevice::with(rig.device.image().clone(), BLOCK), &SMALL)
}

fn write(rig: &mut Rig, file: NodeId, segment: u64) {
    rig.write(file, segment * SEGMENT, &pattern(segment, 0, 100)).unwrap();
}

fn zero(rig: &mut Rig, file: NodeId, segment: u64, count: u64) {
    rig.run(Op::Zero { file, offset: segment * SEGMENT, len: count * SEGMENT }).result.unwrap();
}

#[test]
fn a_part_that_lost_its_segments_and_then_its_place_is_nowhere_after_a_mount() {
    let (mut rig, file) = rig();
    for segment in (0..=130).step_by(2) {
        write(&mut rig, file, segment);
    }
    zero(&mut rig, file, 2, 1);
    zero(&mut rig, file, 64, 64);
    for segments in [128, 64] {
        rig.resize(file, segments * SEGMENT).unwrap();
    }
    // The part in front grows to behind where the other was.
    write(&mut rig, file, 65);
    let mut rig = again(rig);
    assert_eq!(rig.read(file, 65 * SEGMENT, 100).unwrap(), pattern(65, 0, 100));
    rig.assert_space_is_exact();
}

#[derive(Clone, Debug)]
enum Step {
    Write { segment: u64 },
    Zero { segment: u64, count: u64 },
    Resize { segments: u64 },
    Mount,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        // Every other one, mostly, so that there are many runs.
        12 => (0..SEGMENTS / 2).prop_map(|half| Step::Write { segment: 2 * half }),
        1 => (0..SEGMENTS).prop_map(|segment| Step::Write { segment }),
        3 => (0..SEGMENTS, 1..SEGMENTS / 2).prop_map(|(segment, count)| Step::Zero { segment, count }),
        2 => (0..SEGMENTS).prop_map(|segments| Step::Resize { segments }),
        1 => Just(Step::Mount),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_has_many_holes_is_read_again_as_it_was(steps in prop::collection::vec(step(), 1..250)) {
        let (mut rig, file) = rig();
        let mut written = std::collections::BTreeSet::new();
        for step in steps {
            match step {
                Step::Write { segment } => {
                    write(&mut rig, file, segment);
                    written.insert(segment);
                }
                Step::Zero { segment, count } => {
                    zero(&mut rig, file, segment, count);
                    written.retain(|known| !(segment..segment + count).contains(known));
                }
                Step::Resize { segments } => {
                    rig.resize(file, segments * SEGMENT).unwrap();
                    written.retain(|known| *known < segments);
                }
                Step::Mount => rig = again(rig),
            }
        }
        rig = again(rig);
        rig.resize(file, SEGMENTS * SEGMENT).unwrap();
        for segment in 0..SEGMENTS {
            let expected = if written.contains(&segment) { pattern(segment, 0, 100) } else { vec![0; 100] };
            prop_assert_eq!(rig.read(file, segment * SEGMENT, 100).unwrap(), expected, "segment {}", segment);
        }
        rig.assert_space_is_exact();
    }
}
