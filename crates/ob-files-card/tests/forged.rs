//! Forged devices: every checksum is right, and what the records say need not be. The fuzz target `files_mount` does the same with
//! scripts that it has learnt.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

use crate::support;

use ob_files_card::Finding;
use ob_sim::Rng;
use support::forged::{Fate, image_of, judge};

#[test]
fn what_was_forged_is_refused_or_holds_together() {
    let (mut mounted, mut refused) = (0, Vec::new());
    for seed in 0..1200 {
        let mut rng = Rng::new(seed);
        let script: Vec<u8> = (0..rng.below(900)).map(|_| rng.below(256) as u8).collect();
        match judge(&image_of(&script)) {
            Fate::Mounted(names) => mounted += usize::from(names > 1),
            Fate::Refused(findings) => refused.extend(findings),
        }
    }
    // Each way to refuse was taken, and what was not refused had something to look at.
    let kinds: [fn(&Finding) -> bool; 7] = [
        |finding| matches!(finding, Finding::BadRecord { .. }),
        |finding| matches!(finding, Finding::Orphan { .. }),
        |finding| matches!(finding, Finding::TwoOfOneName { .. }),
        |finding| matches!(finding, Finding::SegmentTaken { .. }),
        |finding| matches!(finding, Finding::BadMap { .. }),
        |finding| matches!(finding, Finding::IdNotGiven { .. }),
        |finding| matches!(finding, Finding::LogFull { .. }),
    ];
    for (index, is_kind) in kinds.iter().enumerate() {
        assert!(refused.iter().any(is_kind), "no device is refused for reason {index}");
    }
    assert!(mounted >= 200, "{mounted} of 1200 are mounted");
}
