//! Reads the documents that formats and protocols are written down in, to hold them against the types.

/// Cells of every table row of a document.
pub fn rows(document: &str) -> impl Iterator<Item = Vec<&str>> {
    document.lines().filter_map(cells)
}

/// Name, offset and length of the fields in each table that has such, in the document's order. A field without a fixed
/// length has length 0.
#[must_use]
pub fn field_tables(document: &str) -> Vec<Vec<(&str, usize, usize)>> {
    let mut tables: Vec<Vec<_>> = Vec::new();
    let mut is_of_fields = false;
    for line in document.lines() {
        let Some(cells) = cells(line) else {
            is_of_fields = false;
            continue;
        };
        if let ["field", "offset", "bytes", ..] = cells[..] {
            is_of_fields = true;
            tables.push(Vec::new());
        }
        if let (true, [name, offset, length, _], Some(table)) = (is_of_fields, &cells[..], tables.last_mut())
            && let Ok(offset) = offset.parse()
        {
            table.push((*name, offset, length.parse().unwrap_or(0)));
        }
    }
    tables
}

/// Name and number in each table that begins with two such columns, in the document's order: those of kinds, states, statuses.
#[must_use]
pub fn number_tables<'a>(document: &'a str, first_column: &str) -> Vec<Vec<(&'a str, u64)>> {
    let mut tables: Vec<Vec<_>> = Vec::new();
    let mut is_of_numbers = false;
    for line in document.lines() {
        let Some(cells) = cells(line) else {
            is_of_numbers = false;
            continue;
        };
        if matches!(cells[..], [first, "number", ..] if first == first_column) {
            is_of_numbers = true;
            tables.push(Vec::new());
        }
        if let (true, [name, number, ..], Some(table)) = (is_of_numbers, &cells[..], tables.last_mut())
            && let Ok(number) = number.parse()
        {
            table.push((*name, number));
        }
    }
    tables
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.strip_prefix('|')?;
    let row = row.strip_suffix('|').unwrap_or(row);
    Some(row.split('|').map(|cell| cell.trim().trim_matches('`')).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "\
| field | offset | bytes | meaning |
|---|---|---|---|
| `magic` | 0 | 4 | `OBXY` |
| `name` | 4 | | text |

| state | number | means |
|---|---|---|
| `CLEAN` | 1 | |

| what | 5 | 6 | no field |
";

    #[test]
    fn tables_are_read_as_they_are() {
        assert_eq!(field_tables(DOCUMENT), [[("magic", 0, 4), ("name", 4, 0)]]);
        assert_eq!(number_tables(DOCUMENT, "state"), [[("CLEAN", 1)]]);
        assert!(number_tables(DOCUMENT, "kind").is_empty());
    }

    #[test]
    fn what_a_document_says_otherwise_is_read_otherwise() {
        for (from, to) in [("| 0 | 4 |", "| 0 | 8 |"), ("`magic`", "`magick`"), ("| 4 | |", "| 8 | |")] {
            let other = DOCUMENT.replacen(from, to, 1);
            assert_ne!(field_tables(&other), field_tables(DOCUMENT), "{to}");
        }
        let other = DOCUMENT.replacen("| 1 |", "| 2 |", 1);
        assert_ne!(number_tables(&other, "state"), number_tables(DOCUMENT, "state"));
    }
}
