//! What `strace -c` has counted.

use std::collections::BTreeMap;

use anyhow::{Result, bail};

/// Calls by name.
pub(super) type Calls = BTreeMap<String, u64>;

/// Reads the table: percent, seconds, microseconds a call, calls, errors if there were any, and the name.
///
/// # Errors
/// When there is none.
pub(super) fn parse(text: &str) -> Result<Calls> {
    let mut calls = Calls::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [_, _, _, count, .., name] = words[..]
            && name != "total"
            && let Ok(count) = count.parse()
        {
            calls.insert(name.to_owned(), count);
        }
    }
    if calls.is_empty() {
        bail!("strace has counted nothing: {text}");
    }
    Ok(calls)
}

/// What one of so many more requests has called.
pub(super) fn difference(few: &Calls, many: &Calls, more: f64) -> BTreeMap<String, f64> {
    let before = |name: &String| few.get(name).copied().unwrap_or(0);
    many.iter().map(|(name, count)| (name.clone(), (*count as f64 - before(name) as f64) / more)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 60.00    0.000600           6       100           sendto
 40.00    0.000400           2       200        50 recvfrom
------ ----------- ----------- --------- --------- ----------------
100.00    0.001000           3       300        50 total
";

    #[test]
    fn calls_are_read_with_and_without_errors() {
        let calls = parse(TEXT).unwrap();
        assert_eq!(calls, Calls::from([("recvfrom".to_owned(), 200), ("sendto".to_owned(), 100)]));
        let fewer = Calls::from([("recvfrom".to_owned(), 100)]);
        let difference = difference(&fewer, &calls, 100.0);
        assert_eq!(difference, BTreeMap::from([("recvfrom".to_owned(), 1.0), ("sendto".to_owned(), 1.0)]));
        assert!(parse("nothing").is_err());
    }
}
