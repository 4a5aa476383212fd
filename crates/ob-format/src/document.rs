//! Reads the documents that formats are written down in, to hold them against the types.

/// Cells of every table row of a document.
pub(crate) fn rows(document: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = document.lines().filter(|line| line.starts_with('|'));
    lines.map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect())
}

/// Name, offset and length of the fields in each table that has such, in the document's order. A field without a fixed
/// length has length 0.
pub(crate) fn field_tables(document: &str) -> Vec<Vec<(&str, usize, usize)>> {
    let mut tables = Vec::new();
    for cells in rows(document) {
        match cells[..] {
            ["field", "offset", "bytes", ..] => tables.push(Vec::new()),
            [name, offset, length, _] if offset.parse::<usize>().is_ok() => {
                let table: &mut Vec<_> = tables.last_mut().unwrap();
                table.push((name, offset.parse().unwrap(), length.parse().unwrap_or(0)));
            }
            _ => {}
        }
    }
    tables
}
