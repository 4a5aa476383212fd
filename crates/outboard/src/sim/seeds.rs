//! Which seeds are run: numbers, or those that a commit stands for.

/// Digits of a commit's name.
const COMMIT_DIGITS: usize = 40;
/// So many of them make a seed: few enough for all seeds that may follow.
const SEED_DIGITS: usize = 15;

/// Seeds, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// The first.
    pub first: u64,
    /// How many; one at least.
    pub count: u64,
    /// The commit that the first was drawn from.
    pub commit: Option<String>,
}

impl Seeds {
    /// The last.
    pub(super) fn last(&self) -> u64 {
        self.first.saturating_add(self.count - 1)
    }
}

/// Reads one seed: a number, or a commit.
pub(super) fn parse_seed(text: &str) -> Result<Seeds, String> {
    match (text.parse(), of_commit(text)) {
        (Ok(first), _) => Ok(Seeds { first, count: 1, commit: None }),
        (Err(_), Some(first)) => Ok(Seeds { first, count: 1, commit: Some(text.to_owned()) }),
        (Err(_), None) => Err("write a number, or the 40 hexadecimal digits of a commit".to_owned()),
    }
}

/// Reads `A..B`, or `A+N`; none of them may be empty.
pub(super) fn parse_seeds(text: &str) -> Result<Seeds, String> {
    let form = "write two numbers with two dots between them, such as 0..1000, or a first seed and how many: COMMIT+1000";
    if let Some((first, count)) = text.split_once('+') {
        let seeds = parse_seed(first)?;
        let count: u64 = count.parse().map_err(|_| form)?;
        if count == 0 {
            return Err(format!("{text} holds no seed"));
        }
        return Ok(Seeds { count, ..seeds });
    }
    let (first, end) = text.split_once("..").ok_or(form)?;
    let first: u64 = first.parse().map_err(|_| form)?;
    let end: u64 = end.parse().map_err(|_| form)?;
    if end <= first {
        return Err(format!("{first}..{end} holds no seed: the first number must be the smaller"));
    }
    Ok(Seeds { first, count: end - first, commit: None })
}

/// The seed that a commit stands for: its first digits, as a number.
fn of_commit(text: &str) -> Option<u64> {
    let is_commit = text.len() == COMMIT_DIGITS && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    u64::from_str_radix(text.get(..SEED_DIGITS).filter(|_| is_commit)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "00000000000002a38d19e3c0ffee00000000beef";

    #[test]
    fn a_commit_stands_for_a_seed() {
        let seeds = parse_seed(COMMIT).unwrap();
        assert_eq!((seeds.first, seeds.count, seeds.commit.as_deref()), (0x2a, 1, Some(COMMIT)));
        assert_eq!(parse_seed("42").unwrap(), Seeds { first: 42, count: 1, commit: None });
        // As many digits as a commit has, and a number for people.
        assert_eq!(parse_seed("0000000000000000000000000000000000000042").unwrap().first, 42);
        assert_eq!(parse_seed(&"f".repeat(40)).unwrap().first, (1 << 60) - 1);
        for text in ["", "-1", "38d19e3", "g".repeat(40).as_str(), "f".repeat(41).as_str()] {
            assert!(parse_seed(text).is_err(), "{text}");
        }
    }

    #[test]
    fn seeds_are_counted_from_a_number_or_a_commit() {
        let seeds = parse_seeds(&format!("{COMMIT}+100")).unwrap();
        assert_eq!((seeds.first, seeds.last(), seeds.commit.as_deref()), (0x2a, 0x2a + 99, Some(COMMIT)));
        assert_eq!(parse_seeds("3..5").unwrap(), Seeds { first: 3, count: 2, commit: None });
        assert_eq!(parse_seeds("3+2").unwrap(), parse_seeds("3..5").unwrap());
        for text in ["", "5", "5..5", "6..5", "a..b", "1...3", "..", "-1..4", "5+0", "5+", "+5", "x+3"] {
            assert!(parse_seeds(text).is_err(), "{text}");
        }
    }
}
