//! Guesses what somebody meant to type.

/// The candidate nearest to what was typed, if one is near enough to be worth proposing.
#[must_use]
pub(crate) fn nearest<'name>(
    typed: &str,
    candidates: impl IntoIterator<Item = &'name str>,
) -> Option<&'name str> {
    // Beyond a third of the word changed, a guess confuses more than it helps.
    let budget = (typed.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(&typed.to_lowercase(), candidate), candidate))
        .filter(|(distance, _)| *distance <= budget)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many letters must be put in, taken out, replaced or swapped with their neighbour to make one word of the other.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    let mut rows = vec![vec![0; right.len() + 1]; left.len() + 1];
    for (index, row) in rows.iter_mut().enumerate() {
        row[0] = index;
    }
    for (index, cell) in rows[0].iter_mut().enumerate() {
        *cell = index;
    }
    for i in 1..=left.len() {
        for j in 1..=right.len() {
            let replace = rows[i - 1][j - 1] + usize::from(left[i - 1] != right[j - 1]);
            let mut best = replace.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_edits_and_swaps() {
        assert_eq!(distance("kind", "kind"), 0);
        assert_eq!(distance("knid", "kind"), 1);
        assert_eq!(distance("", "kind"), 4);
        assert_eq!(distance("listn", "listen"), 1);
    }

    #[test]
    fn the_nearest_name_wins_and_far_ones_are_not_proposed() {
        assert_eq!(nearest("sokcet", ["kind", "socket"]), Some("socket"));
        assert_eq!(nearest("SHM", ["shm", "tcp"]), Some("shm"));
        assert_eq!(nearest("banana", ["kind", "socket"]), None);
    }
}
