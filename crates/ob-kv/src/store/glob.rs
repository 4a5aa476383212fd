//! Patterns of names, as `SCAN … MATCH` and `CONFIG GET` take them: `*`, `?`, `[a-z]`, `[^a]` and `\`.

/// Whether a pattern fits a name. Takes time in proportion to the product of their lengths, whatever the pattern.
pub(crate) fn matches(pattern: &[u8], name: &[u8], ignores_case: bool) -> bool {
    let (mut at, mut name_at) = (0, 0);
    // Where to go on if what follows the last star does not fit: only the last one need be tried again.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        let rest = pattern.get(at..).unwrap_or_default();
        let fits = match (rest.first(), name.get(name_at)) {
            (None, None) => return true,
            (Some(b'*'), _) => {
                at += 1;
                retry = Some((at, name_at));
                continue;
            }
            (Some(_), Some(byte)) => one(rest, *byte, ignores_case),
            _ => None,
        };
        match (fits, retry) {
            (Some(len), _) => (at, name_at) = (at + len, name_at + 1),
            (None, Some((star, from))) if from < name.len() => {
                retry = Some((star, from + 1));
                (at, name_at) = (star, from + 1);
            }
            (None, _) => return false,
        }
    }
}

/// Bytes of the pattern's first item, if it fits this byte.
fn one(pattern: &[u8], byte: u8, ignores_case: bool) -> Option<usize> {
    let fold = |byte: u8| if ignores_case { byte.to_ascii_lowercase() } else { byte };
    match pattern {
        [b'?', ..] => Some(1),
        [b'[', set @ ..] => {
            let (fits, len) = in_set(set, fold(byte), fold);
            fits.then_some(len + 1)
        }
        [b'\\', escaped, ..] => (fold(*escaped) == fold(byte)).then_some(2),
        [literal, ..] => (fold(*literal) == fold(byte)).then_some(1),
        [] => None,
    }
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
        assert!(!matches(&pattern, &b"a".repeat(99), false));
        assert!(matches(&pattern, &b"a".repeat(100), false));
    }
}
