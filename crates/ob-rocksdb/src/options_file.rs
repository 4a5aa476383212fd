//! OPTIONS files: which merge operator a column family has, and where logs are, is written nowhere else.

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

/// The directory of the logs, if it is not to be the database's own.
#[must_use]
pub fn log_directory(text: &str) -> Option<String> {
    let lines = text.lines().map(str::trim);
    let options = lines.skip_while(|line| *line != "[DBOptions]").skip(1);
    let mut options = options.take_while(|line| !line.starts_with('['));
    let directory = options.find_map(|line| line.strip_prefix("wal_dir="))?;
    (!directory.is_empty()).then(|| unescaped(directory))
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
  wal_dir=/fast/logs
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
        assert_eq!(log_directory(text).as_deref(), Some("/fast/logs"));
        assert_eq!(log_directory("[DBOptions]\n  wal_dir=\n[CFOptions \"a\"]\n  wal_dir=b\n"), None);
        let found = merge_operators(text);
        let expected =
            [("a \\ b", "{id=StringAppendOperator;delimiter=:;}"), ("default", "UInt64AddOperator")];
        assert_eq!(found, expected.map(|(family, name)| (family.to_owned(), name.to_owned())).into());
    }
}
