//! Whether the history of one block can be explained, where every write has a value of its own: without a search.
//!
//! A write and the reads of its value are a *cluster*. From the first return among them to the last call the block must have had that value
//! (a forward zone), or else there is a moment between the last call and the first return at which all of them can be (a backward zone).
//! There is an order if, and only if, no two forward zones overlap and no backward zone lies within a forward one (Gibbons and Korach,
//! "Testing shared memories", 1997). Many writes at once that nobody reads make a search try all of their orders; this does not care.

use std::collections::BTreeMap;

use ob_sim::history::Operation;

use super::{Asked, Said, Stamp};

/// From its first return to its last call, or the other way round.
#[derive(Clone, Copy)]
struct Cluster {
    write_called: Option<u64>,
    first_returned: u64,
    last_called: u64,
}

/// Whether the zones of a block's values are as they must be; nothing, if values were written twice.
pub(super) fn are_apart(operations: &[Operation<Asked, Said>]) -> Option<bool> {
    let empty = Cluster { write_called: None, first_returned: u64::MAX, last_called: 0 };
    let mut clusters: BTreeMap<Stamp, Cluster> = BTreeMap::new();
    // What is there at first was written before all.
    clusters.insert(0, Cluster { write_called: Some(0), first_returned: 0, last_called: 0 });
    for operation in operations {
        let returned = operation.returned.as_ref();
        let stamp = match (operation.command.write, returned.map(|returned| returned.reply)) {
            // It is not the only one that makes a block empty.
            (Some(0), _) => return None,
            (Some(stamp), _) | (None, Some(Said::Has(stamp))) => stamp,
            (None, _) => continue,
        };
        let cluster = clusters.entry(stamp).or_insert(empty);
        if operation.command.write.is_some() {
            cluster.write_called = Some(operation.called);
        }
        let at = returned.map_or(u64::MAX, |returned| returned.at);
        cluster.first_returned = cluster.first_returned.min(at);
        cluster.last_called = cluster.last_called.max(operation.called);
    }
    // Nobody has written it, or it was read before.
    let is_early =
        |cluster: &Cluster| cluster.write_called.is_none_or(|called| cluster.first_returned < called);
    if clusters.values().any(is_early) {
        return Some(false);
    }
    let is_forward = |cluster: &&Cluster| cluster.first_returned < cluster.last_called;
    let mut forward: Vec<(u64, u64)> =
        clusters.values().filter(is_forward).map(|zone| (zone.first_returned, zone.last_called)).collect();
    forward.sort_unstable();
    if forward.windows(2).any(|pair| matches!(pair, [one, next] if next.0 < one.1)) {
        return Some(false);
    }
    let is_within = |zone: &Cluster| {
        let (start, end) = (zone.last_called, zone.first_returned);
        // The last that begins before it.
        let before = forward.partition_point(|(from, _)| *from < start);
        before.checked_sub(1).and_then(|at| forward.get(at)).is_some_and(|(_, to)| end < *to)
    };
    Some(!clusters.values().filter(|zone| !is_forward(zone)).any(is_within))
}

#[cfg(test)]
mod tests {
    use ob_sim::Rng;
    use ob_sim::history::{Limits, Returned, Verdict, check};

    use super::super::Blocks;
    use super::*;

    /// A short history of a few clients, that may or may not be explained.
    fn draw(rng: &mut Rng) -> Vec<Operation<Asked, Said>> {
        let count = 2 + rng.below(7);
        let mut operations = Vec::new();
        for number in 1..=count {
            let called = 1 + rng.below(20);
            let at = called + rng.below(12);
            let is_write = rng.one_in(2);
            let write = is_write.then_some(number);
            let reply = if is_write { Said::Done } else { Said::Has(rng.below(count + 1)) };
            let returned = (!is_write || !rng.one_in(5)).then_some(Returned { at, reply });
            let command = Asked { block: 1, write };
            let client = number as u32;
            operations.push(Operation { client, session: None, command, called, returned, gone_by: None });
        }
        operations
    }

    #[test]
    fn zones_say_what_a_search_says() {
        let (mut rng, mut sound) = (Rng::new(1), 0);
        for _ in 0..20_000 {
            let operations = draw(&mut rng);
            let found = check(&Blocks, &operations, Limits::default());
            let is_sound = found == Verdict::Linearizable;
            sound += u64::from(is_sound);
            assert_eq!(are_apart(&operations), Some(is_sound), "{operations:?}: {found}");
        }
        assert!(sound > 1000, "{sound} of them could be explained");
    }
}
