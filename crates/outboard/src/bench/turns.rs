//! Rounds that contenders measure by turns.
//!
//! ```text
//!   round 0: baseline, contender ─▶ round 1: baseline, contender ─▶ … ─▶ the median round of each
//! ```

use super::BenchFailure;

/// Has each contender measure once a round, one after the other: whatever else the machine does in a run, it does to all of them alike.
/// What each has measured, round by round; one that measures nothing is left out of the round.
pub(super) fn by_turns<C, M>(
    rounds: u64,
    contenders: &mut [C],
    mut measure: impl FnMut(&mut C, u64) -> Result<Option<M>, BenchFailure>,
) -> Result<Vec<Vec<M>>, BenchFailure> {
    let mut measured: Vec<Vec<M>> = contenders.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds {
        for (contender, measured) in contenders.iter_mut().zip(&mut measured) {
            measured.extend(measure(contender, round)?);
        }
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_of_all_contenders_are_interleaved() {
        let mut order = Vec::new();
        let measured = by_turns(3, &mut ["baseline", "contender"], |who, round| {
            order.push((*who, round));
            Ok((*who != "contender" || round != 1).then_some(round))
        });
        let rounds = (0..3).flat_map(|round| [("baseline", round), ("contender", round)]);
        assert_eq!(order, rounds.collect::<Vec<_>>());
        assert_eq!(
            measured.unwrap(),
            [vec![0, 1, 2], vec![0, 2]],
            "each has its own, and none of a round left out"
        );
    }

    #[test]
    fn a_round_that_fails_ends_the_run() {
        let mut count = 0;
        let failed = by_turns(3, &mut [(), ()], |(), _| -> Result<Option<()>, _> {
            count += 1;
            if count == 2 { Err("no".into()) } else { Ok(None) }
        });
        assert_eq!((failed.unwrap_err().to_string().as_str(), count), ("no", 2));
    }
}
