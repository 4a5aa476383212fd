//! OPTIONS files: which merge operator a column family has is written nowhere else.

use std::collections::BTreeMap;

/// The merge operators' names by column family, without families that have none.
#[must_use]
pub fn merge_operators(text: &str) -> BTreeMap<String, String> {
    let mut operators = BTreeMap::new();
    let mut family: Option<String> = None;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            let name = line.strip_prefix("[CFOptions \"").and_then(|rest| rest.strip_suffix("\"]"));
            family = name.map(unescaped);
        } else if let (Some(family), Some(("merge_operator", name))) = (&family, line.split_once('='))
            && name != "nullptr"
        {
            operators.insert(family.clone(), unescaped(name));
        }
    }
    operators
}

fn unescaped(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('n') => plain.push('\n'),
                Some('r') => plain.push('\r'),
                Some(escaped) => plain.push(escaped),
                None => {}
            },
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_read() {
        let text = "\
# a comment
[Version]
  rocksdb_version=7.8.3
[DBOptions]
  merge_operator=not here
[CFOptions \"default\"]
  merge_operator=UInt64AddOperator
  compression=kSnappyCompression
[TableOptions/BlockBasedTable \"default\"]
  merge_operator=nor here
[CFOptions \"a \\\\ b\"]
  merge_operator={id=StringAppendOperator;delimiter=\\:;}
[CFOptions \"none\"]
  merge_operator=nullptr
";
        let found = merge_operators(text);
        let expected =
            [("a \\ b", "{id=StringAppendOperator;delimiter=:;}"), ("default", "UInt64AddOperator")];
        assert_eq!(found, expected.map(|(family, name)| (family.to_owned(), name.to_owned())).into());
    }
}
