//! `outboard pushdown rocksdb ls`.

use ob_nvme::initiator::block_on;
use ob_rocksdb::{LocalDirectory, LocalFile, TableFile, Version, View};
use serde_json::{Value, json};

use super::command::{ListOptions, open};
use crate::pushdown::error::PushdownError;
use crate::pushdown::text::escaped;
use crate::terminal::{bytes, counted, say, table};

pub(super) fn list(options: &ListOptions) -> Result<(), PushdownError> {
    let directory = &options.directory;
    let view = block_on(open(directory, LocalDirectory::new(directory)))?.view();
    if options.json {
        let families: Vec<_> = view.names().map(|name| told(&view, name)).collect();
        let last = view.last_sequence().0;
        say(&format!("{:#}", json!({ "last_sequence": last, "families": families })))?;
        return Ok(());
    }
    let mut rows = Vec::new();
    for name in view.names() {
        match view.family(name) {
            Err(error) => rows.push(vec![escaped(name.as_bytes()), format!("not read: {error}")]),
            Ok(version) if options.tables => rows.extend(table_rows(&version)),
            Ok(version) => rows.extend(level_rows(&version)),
        }
    }
    let heads: &[&str] = match options.tables {
        true => &["FAMILY", "LEVEL", "TABLE", "SIZE", "SEQUENCES", "FIRST KEY", "LAST KEY"],
        false => &["FAMILY", "LEVEL", "TABLES", "SIZE"],
    };
    say(&table(heads, &rows))?;
    let families = counted(view.names().count() as u64, "column family", "column families");
    say(&format!("{families}; the newest write is {}", view.last_sequence().0))?;
    Ok(())
}

/// Levels that have tables, each with its number.
fn levels(
    version: &Version<LocalFile>,
) -> impl Iterator<Item = (usize, &[std::sync::Arc<TableFile<LocalFile>>])> {
    let filled = |(_, files): &(usize, &[_])| !files.is_empty();
    version.levels().iter().map(Vec::as_slice).enumerate().filter(filled)
}

fn level_rows(version: &Version<LocalFile>) -> Vec<Vec<String>> {
    let name = || escaped(version.name().as_bytes());
    let rows: Vec<_> = levels(version)
        .map(|(level, files)| {
            let len = files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.facts.len));
            vec![name(), level.to_string(), files.len().to_string(), bytes(len)]
        })
        .collect();
    if rows.is_empty() { vec![vec![name(), "-".into(), "0".into(), bytes(0)]] } else { rows }
}

fn table_rows(version: &Version<LocalFile>) -> Vec<Vec<String>> {
    let row = |level: usize, file: &TableFile<LocalFile>| {
        let facts = &file.facts;
        vec![
            escaped(version.name().as_bytes()),
            level.to_string(),
            file.name.clone(),
            bytes(facts.len),
            format!("{} to {}", facts.smallest_sequence.0, facts.largest_sequence.0),
            escaped(file.bounds.smallest()),
            escaped(file.bounds.largest()),
        ]
    };
    levels(version).flat_map(|(level, files)| files.iter().map(move |file| row(level, file))).collect()
}

fn told(view: &View<LocalFile>, name: &str) -> Value {
    let version = match view.family(name) {
        Ok(version) => version,
        Err(error) => return json!({ "name": name, "error": error.to_string() }),
    };
    let levels: Vec<_> = levels(&version)
        .map(|(level, files)| {
            let tables: Vec<_> = files
                .iter()
                .map(|file| {
                    json!({
                        "table": file.name, "bytes": file.facts.len,
                        "first_key": escaped(file.bounds.smallest()), "last_key": escaped(file.bounds.largest()),
                        "first_sequence": file.facts.smallest_sequence.0,
                        "last_sequence": file.facts.largest_sequence.0,
                    })
                })
                .collect();
            json!({ "level": level, "tables": tables })
        })
        .collect();
    json!({ "name": name, "id": version.id(), "levels": levels })
}
