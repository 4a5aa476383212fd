//! Patterns of names, as `SCAN … MATCH` and `CONFIG GET` take them: `*`, `?`, `[a-z]`, `[^a]` and `\`.

use super::errors::{self, Refusal};

/// Bytes of patterns that one request may have compared. To look for a word in all names of a `SCAN` takes a few for each of their
/// bytes, and they have 4 MiB at most; but a long pattern and a long name can take the product of their lengths, while
/// everybody else waits.
const COMPARISONS_MAX: usize = 32 << 20;

/// How much one request may still compare.
#[derive(Debug)]
pub(crate) struct Effort {
    left: usize,
}

impl Default for Effort {
    fn default() -> Self {
        Self { left: COMPARISONS_MAX }
    }
}

impl Effort {
    fn spend(&mut self, len: usize) -> Result<(), Refusal> {
        self.left = self.left.checked_sub(len).ok_or(errors::PATTERN_TOO_COSTLY)?;
        Ok(())
    }
}

/// Whether a pattern fits a name. Takes time in proportion to the product of their lengths, and no more than there is left of
/// the effort.
pub(crate) fn matches(
    pattern: &[u8],
    name: &[u8],
    ignores_case: bool,
    effort: &mut Effort,
) -> Result<bool, Refusal> {
    // A pattern without anything to compare has to be looked at too, and a request can have millions of them.
    effort.spend(1)?;
    let (mut at, mut name_at) = (0, 0);
    // Where to go on if what follows the last star does not fit: only the last one need be tried again.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        let rest = pattern.get(at..).unwrap_or_default();
        let fits = match (rest.first(), name.get(name_at)) {
            (None, None) => return Ok(true),
            (Some(b'*'), _) => {
                effort.spend(1)?;
                at += 1;
                retry = Some((at, name_at));
                continue;
            }
            (Some(_), Some(byte)) => one(rest, *byte, ignores_case, effort)?,
            _ => None,
        };
        match (fits, retry) {
            (Some(len), _) => (at, name_at) = (at + len, name_at + 1),
            (None, Some((star, from))) if from < name.len() => {
                retry = Some((star, from + 1));
                (at, name_at) = (star, from + 1);
            }
            (None, _) => return Ok(false),
        }
    }
}

/// Bytes of the pattern's first item, if it fits this byte.
fn one(pattern: &[u8], byte: u8, ignores_case: bool, effort: &mut Effort) -> Result<Option<usize>, Refusal> {
    let fold = |byte: u8| if ignores_case { byte.to_ascii_lowercase() } else { byte };
    effort.spend(1)?;
    Ok(match pattern {
        [b'?', ..] => Some(1),
        [b'[', set @ ..] => {
            let (fits, len) = in_set(set, fold(byte), fold);
            effort.spend(len)?;
            fits.then_some(len + 1)
        }
        [b'\\', escaped, ..] => (fold(*escaped) == fold(byte)).then_some(2),
        [literal, ..] => (fold(*literal) == fold(byte)).then_some(1),
        [] => None,
    })
}

/// Whether a byte is in the set that begins here, and how long the set is; one without an end reaches to the pattern's.
fn in_set(set: &[u8], byte: u8, fold: impl Fn(u8) -> u8) -> (bool, usize) {
    let is_negated = set.first() == Some(&b'^');
    let mut at = usize::from(is_negated);
    let mut is_in = false;
    loop {
        match set.get(at..).unwrap_or_default() {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                is_in |= fold(*escaped) == byte;
                at += 2;
            }
            [from, b'-', to, ..] => {
                let (from, to) = (fold(*from).min(fold(*to)), fold(*from).max(fold(*to)));
                is_in |= (from..=to).contains(&byte);
                at += 3;
            }
            [literal, ..] => {
                is_in |= fold(*literal) == byte;
                at += 1;
            }
        }
    }
    (is_in != is_negated, at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_in_redis() {
        let matches = |pattern: &[u8], name: &[u8], ignores_case| {
            matches(pattern, name, ignores_case, &mut Effort::default()).unwrap()
        };
        let fits = |pattern: &str, name: &str| matches(pattern.as_bytes(), name.as_bytes(), false);
        assert!(fits("*", ""));
        assert!(fits("h?llo", "hello") && !fits("h?llo", "hllo"));
        assert!(fits("h*llo", "heeeello") && fits("h*llo", "hllo") && !fits("h*llo", "hell"));
        assert!(fits("h[ae]llo", "hallo") && !fits("h[ae]llo", "hillo"));
        assert!(fits("h[^e]llo", "hbllo") && !fits("h[^e]llo", "hello"));
        assert!(fits("h[a-c]llo", "hbllo") && fits("h[c-a]llo", "hbllo") && !fits("h[a-c]llo", "hdllo"));
        assert!(fits("a\\*b", "a*b") && !fits("a\\*b", "aab"));
        assert!(fits("user:*:name", "user:12:name") && !fits("user:*:name", "user:12:age"));
        assert!(matches(b"SAVE", b"save", true) && !matches(b"SAVE", b"save", false));
    }

    #[test]
    fn a_pattern_of_many_stars_is_quick() {
        let pattern = b"*a".repeat(100);
        let fits = |name: &[u8]| matches(&pattern, name, false, &mut Effort::default()).unwrap();
        assert!(!fits(&b"a".repeat(99)));
        assert!(fits(&b"a".repeat(100)));
    }

    #[test]
    fn what_takes_too_long_is_given_up() {
        let fits = |pattern: &[u8], name: &[u8]| matches(pattern, name, false, &mut Effort::default());
        let name = b"a".repeat(65_535);
        let long = [&b"*"[..], &b"a".repeat(32_000), b"b"].concat();
        assert_eq!(fits(&long, &name), Err(errors::PATTERN_TOO_COSTLY));
        let set = [&b"*["[..], &b"b".repeat(1 << 20), b"]c"].concat();
        assert_eq!(fits(&set, &name), Err(errors::PATTERN_TOO_COSTLY));
        assert_eq!(fits(b"*aaaaaaaa*b*", &name), Ok(false), "what people ask for is not");
        // It is one for all that a request compares.
        let mut effort = Effort::default();
        let all: Result<Vec<bool>, Refusal> =
            (0..1000).map(|_| matches(b"*aaaaaaaab", &name, false, &mut effort)).collect();
        assert_eq!(all, Err(errors::PATTERN_TOO_COSTLY));
        // And no pattern is for nothing.
        let mut effort = Effort { left: 2 };
        let all = [(); 3].map(|()| matches(b"", b"name", false, &mut effort));
        assert_eq!(all, [Ok(false), Ok(false), Err(errors::PATTERN_TOO_COSTLY)]);
    }
}
