//! `outboard pushdown btree get`, `range` and `aggregate`.

use std::io::{self, Write};

use ob_nvme::initiator::block_on;
use ob_pushdown::btree::{Filter, VALUE_LEN};
use serde_json::{Value, json};

use super::command::{AggregateOptions, GetOptions, Only, RangeOptions, TreeOptions};
use super::place::{Opened, begin_for, open};
use super::values::Values;
use crate::pushdown::carrier::within;
use crate::pushdown::error::PushdownError;
use crate::terminal::{counted, say, warn};

/// Keys of a range that are held at once.
const PAGE: u64 = 4096;

fn with_tree(
    options: &TreeOptions,
    ask: impl AsyncFnOnce(&Opened<'_>) -> Result<(), PushdownError>,
) -> Result<(), PushdownError> {
    block_on(async {
        within(begin_for(options).await?, async |session| {
            let opened = open(session, options).await?;
            let asked = ask(&opened).await;
            opened.tell();
            asked
        })
        .await
    })
}

fn line((key, value): &(u64, [u8; VALUE_LEN]), values: Values) -> String {
    format!("{key} {}", values.show(value)).trim_end().to_owned()
}

fn entry(key: u64, value: Option<&[u8; VALUE_LEN]>, values: Values) -> Value {
    json!({ "key": key, "value": value.map(|value| values.show(value)) })
}

pub(super) fn get(options: &GetOptions) -> Result<(), PushdownError> {
    let GetOptions { keys, values, tree } = options;
    with_tree(tree, async |opened| {
        let found = opened.tree.multi_get(keys).await.map_err(|error| opened.explain(error))?;
        let all: Vec<_> = keys.iter().copied().zip(found).collect();
        if tree.target.json {
            let entries = all.iter().map(|(key, value)| entry(*key, value.as_ref(), *values));
            show_entries(opened, &entries.collect::<Vec<_>>())?;
        } else {
            for (key, value) in &all {
                match value {
                    Some(value) => say(&line(&(*key, *value), *values))?,
                    None => warn(&format!("{key} is not there")),
                }
            }
        }
        let is_missing = all.iter().any(|(_, value)| value.is_none());
        if is_missing { Err(PushdownError::Told) } else { Ok(()) }
    })
}

fn show_entries(opened: &Opened<'_>, entries: &[Value]) -> Result<(), PushdownError> {
    say(&format!("{:#}", json!({ "entries": entries, "answered": opened.answered() })))?;
    Ok(())
}

pub(super) fn range(options: &RangeOptions) -> Result<(), PushdownError> {
    let RangeOptions { from, to, limit, values, tree } = options;
    with_tree(tree, async |opened| {
        let (mut first, mut left) = (Some(*from), limit.unwrap_or(u64::MAX));
        let (mut told, mut output) = (Vec::new(), io::stdout().lock());
        while let Some(from) = first.filter(|from| from <= to && left > 0) {
            let wanted = left.min(PAGE);
            let page = opened.tree.range(from, *to, wanted as usize).await;
            let page = page.map_err(|error| opened.explain(error))?;
            if tree.target.json {
                told.extend(page.iter().map(|(key, value)| entry(*key, Some(value), *values)));
            } else {
                let lines: String = page.iter().map(|found| line(found, *values) + "\n").collect();
                output.write_all(lines.as_bytes())?;
            }
            left -= (page.len() as u64).min(left);
            let is_full = page.len() as u64 == wanted;
            first = page.last().filter(|_| is_full).and_then(|(key, _)| key.checked_add(1));
        }
        output.flush()?;
        drop(output);
        if tree.target.json { show_entries(opened, &told) } else { Ok(()) }
    })
}

pub(super) fn aggregate(options: &AggregateOptions) -> Result<(), PushdownError> {
    let AggregateOptions { from, to, field, low, high, only, tree } = options;
    with_tree(tree, async |opened| {
        let filter = Filter { field: usize::from(*field), low: *low, high: *high };
        let found = opened.tree.aggregate(*from, *to, filter).await;
        let found = found.map_err(|error| opened.explain(error))?;
        if tree.target.json {
            let told = json!({
                "count": found.count, "sum": found.sum, "least": found.least, "greatest": found.greatest,
                "answered": opened.answered(),
            });
            say(&format!("{told:#}"))?;
            return Ok(());
        }
        let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let told = match only {
            Some(Only::Count) => found.count.to_string(),
            Some(Only::Sum) => found.sum.to_string(),
            Some(Only::Least) => number(found.least),
            Some(Only::Greatest) => number(found.greatest),
            None => format!(
                "{}, sum {}, least {}, greatest {}",
                counted(found.count, "number", "numbers"),
                found.sum,
                number(found.least),
                number(found.greatest)
            ),
        };
        say(&told)?;
        Ok(())
    })
}
