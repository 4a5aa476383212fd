//! Random commands against an array, over a card that does plans in any order.

use std::time::Duration;

use ob_core::BlockLen;
use ob_format::volume::metadata::Class;
use ob_volume::plans::{PostedPlan, VolumePlan, id};
use ob_volume::tier::{Placement, TierConfig};
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;

use crate::tier_rig::{Dice, Rig, config, volume};

/// Blocks of the volumes: three segments each, the last of which is not whole.
const SMALL: u64 = 2500;
const LARGE: u64 = 2100;

pub(crate) fn both() -> TierConfig {
    config(vec![volume(1, BlockLen::Small, SMALL), volume(2, BlockLen::Large, LARGE)], 4)
}

/// A command somewhere, most of them where others are too.
pub(crate) fn send_any(rig: &mut Rig, dice: &mut Dice) {
    let (id, block_len) = if dice.below(2) == 0 {
        volume(1, BlockLen::Small, SMALL)
    } else {
        volume(2, BlockLen::Large, LARGE)
    };
    let all = block_len.size / u64::from(block_len.block_len.bytes());
    let around = [0, 1000, 2048, all - 40][dice.below(4) as usize];
    let start = (around + dice.below(48)).min(all - 1);
    // The longest payload, of large blocks.
    let most = [1, 8, 40, 256][dice.below(4) as usize];
    let blocks = (1 + dice.below(most)).min(all - start) as u32;
    let opcode = match dice.below(16) {
        0..7 => IoOpcode::Write,
        7..9 => IoOpcode::WriteZeroes,
        9 => IoOpcode::Flush,
        _ => IoOpcode::Read,
    };
    rig.send(opcode, id, start, blocks);
}

fn run(seed: u64, commands: usize, unknown: u64) -> Rig {
    run_with(seed, commands, unknown, false)
}

pub(crate) fn run_with(seed: u64, commands: usize, unknown: u64, has_whims: bool) -> Rig {
    let mut config = both();
    if seed.is_multiple_of(2) {
        // So few that chunks lose theirs to others.
        config.slots_max = 5;
    }
    let mut rig = Rig::new(config, seed);
    rig.unknown = unknown;
    rig.has_whims = has_whims;
    let mut dice = Dice::new(seed + 1_000_000);
    rig.open();
    let mut left = commands;
    while left > 0 {
        if dice.below(3) == 0 && rig.messages.len() < 24 {
            send_any(&mut rig, &mut dice);
            left -= 1;
        } else if !rig.step() || dice.below(50) == 0 {
            rig.pass(Duration::from_millis(1 + dice.below(40)));
        }
    }
    rig.finish();
    rig
}

pub(crate) fn read_all(rig: &mut Rig) {
    for (id, blocks) in
        [(volume(1, BlockLen::Small, SMALL).0, SMALL), (volume(2, BlockLen::Large, LARGE).0, LARGE)]
    {
        let read = rig.send(IoOpcode::Read, id, 0, blocks as u32);
        rig.finish();
        let answered = rig.answered.iter().find(|answered| answered.handle == read).unwrap();
        assert_eq!(answered.status, Status::SUCCESS);
        assert_eq!(answered.read, rig.model[&id]);
    }
}

/// `OUTBOARD_TIER_SEEDS` has another number, for campaigns.
pub(crate) fn seeds() -> u64 {
    if let Some(seeds) = std::env::var("OUTBOARD_TIER_SEEDS").ok().and_then(|seeds| seeds.parse().ok()) {
        return seeds;
    }
    if ob_plant::is_any_chosen() { 60 } else { 20 }
}

/// Every read gives what its blocks were when they were looked up, every change is in the log, and the log is what blocks are.
#[test]
fn random_commands_do_what_they_do_to_an_array() {
    for seed in 0..seeds() {
        let mut rig = run(seed, 300, u64::MAX);
        assert!(rig.answered.iter().all(|answered| answered.status == Status::SUCCESS), "seed {seed}");
        read_all(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
        let status = rig.tier.status();
        assert_eq!((status.commands, status.plans, status.mistakes), (0, 0, 0), "seed {seed}");
        assert!(status.chunks_opened > 6, "chunks follow each other");
        assert_eq!(rig.resets > 0, seed.is_multiple_of(2), "slots are given to others if there are few");
    }
}

/// A store that does not answer, or answers what it did not do, delays and changes nothing (M1).
#[test]
fn commits_that_are_not_answered_are_sent_again() {
    for seed in 100..100 + seeds() {
        let mut rig = run(seed, 120, 4);
        assert!(rig.answered.iter().all(|answered| answered.status == Status::SUCCESS), "seed {seed}");
        read_all(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
    }
}

/// What a card may do without lying: it says that a chunk is full, that a peer has given up, that it withholds an answer, that no member
/// gives what can be verified.
#[test]
fn a_card_with_whims_delays_commands_and_changes_nothing_else() {
    for seed in 300..300 + seeds() {
        let mut rig = run_with(seed, 200, u64::MAX, true);
        let verdicts = [Status::SUCCESS, Status::ABORT_REQUESTED];
        for answered in &rig.answered {
            assert!(verdicts.contains(&answered.status), "seed {seed}: {}", answered.status);
        }
        rig.has_whims = false;
        read_all(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
        assert!(rig.tier.status().withheld > 0, "seed {seed}");
    }
}

/// A card that has memory for a few records at once reads more of them in parts, without being asked for more than that again and again.
#[test]
fn a_card_of_little_memory_reads_in_parts() {
    for seed in 600..600 + seeds() {
        let mut rig = Rig::new(both(), seed);
        let mut dice = Dice::new(seed + 1_000_000);
        rig.runs_max = 1 + dice.below(4) as usize;
        rig.open();
        let mut left = 200;
        while left > 0 {
            if dice.below(3) == 0 && rig.messages.len() < 24 {
                send_any(&mut rig, &mut dice);
                left -= 1;
            } else if !rig.step() || dice.below(50) == 0 {
                rig.pass(Duration::from_millis(1 + dice.below(40)));
            }
        }
        rig.finish();
        assert!(rig.answered.iter().all(|answered| answered.status == Status::SUCCESS), "seed {seed}");
        read_all(&mut rig);
        let too_long = rig.posted.iter().filter(|plan| {
            let plan = VolumePlan::decode(&plan.entry()).unwrap();
            matches!(plan, VolumePlan::Read { runs, .. } if runs.len() > rig.runs_max)
        });
        let refused = too_long.count();
        // Those that were under way when the first was refused, too.
        assert!((1..24).contains(&refused), "seed {seed}: {refused}");
        let status = rig.tier.status();
        assert_eq!((status.commands, status.plans, status.mistakes), (0, 0, 0), "seed {seed}");
    }
}

/// Payloads that go to the host and come back are written as those that stay on the card, whoever compresses them.
#[test]
fn payloads_may_go_to_the_host() {
    for seed in 500..500 + seeds() {
        let mut of = both();
        let is_pressed = seed % 2 == 0;
        of.placement = if is_pressed { Placement::Accelerator } else { Placement::Host };
        of.volumes.iter_mut().for_each(|(_, volume)| volume.class = Class::Standard);
        let mut rig = Rig::new(of, seed);
        let mut dice = Dice::new(seed + 1_000_000);
        rig.open();
        let mut left = 200;
        while left > 0 {
            if dice.below(3) == 0 && rig.messages.len() < 200 {
                send_any(&mut rig, &mut dice);
                left -= 1;
            } else if !rig.step() || dice.below(50) == 0 {
                rig.pass(Duration::from_millis(1 + dice.below(40)));
            }
        }
        rig.finish();
        assert!(rig.answered.iter().all(|answered| answered.status == Status::SUCCESS), "seed {seed}");
        let count = |id| rig.posted.iter().filter(|plan| plan.plan == id).count();
        let (stayed, given, pressed) = (count(id::WRITE_RAW), count(id::WRITE_GIVEN), count(id::PRESS));
        assert!(given > 10 && stayed == 0, "{given} given, {stayed} not");
        assert_eq!(pressed > 10, is_pressed, "{pressed} by the card");
        // What the card compresses has a place for that behind its own.
        let first = if is_pressed { 256 } else { 128 };
        let is_long = |plan: &PostedPlan| plan.plan == id::TAKE && plan.slot.0 >= first;
        assert!(rig.posted.iter().any(is_long), "some are longer than a slot");
        read_all(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
    }
}
