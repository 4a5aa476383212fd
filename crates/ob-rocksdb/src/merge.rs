//! Merge operators: how operands become a value.

use std::sync::Arc;

use crate::error::MergeObstacle;

/// Puts operands together.
pub trait MergeOperator: Send + Sync {
    /// The value of a key whose operands are these, oldest first, over `base`. Nothing if they do not fit.
    fn merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>>;
}

/// RocksDB's `uint64add`: numbers of eight bytes are added. As there, whatever has another length counts as zero.
#[derive(Clone, Copy, Debug)]
pub struct Uint64Add;

impl MergeOperator for Uint64Add {
    fn merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let sum = base.iter().chain(operands).fold(0_u64, |sum, bytes| sum.wrapping_add(number(bytes)));
        Some(sum.to_le_bytes().to_vec())
    }
}

/// RocksDB's `put`: the newest operand is the value.
#[derive(Clone, Copy, Debug)]
pub struct Put;

impl MergeOperator for Put {
    fn merge(&self, _key: &[u8], _base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        operands.last().map(|operand| operand.to_vec())
    }
}

/// RocksDB's `stringappend`: one behind the other, with something in between.
#[derive(Clone, Debug)]
pub struct StringAppend {
    /// What stands in between.
    pub delimiter: Vec<u8>,
}

impl MergeOperator for StringAppend {
    fn merge(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        let all: Vec<&[u8]> = base.into_iter().chain(operands.iter().copied()).collect();
        Some(all.join(&self.delimiter[..]))
    }
}

/// The operator that an OPTIONS file names.
///
/// # Errors
/// When it is not built in.
pub fn built_in(name: &str) -> Result<Arc<dyn MergeOperator>, MergeObstacle> {
    let inner = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
    let mut fields = inner.split(';').map(|field| field.split_once('=').unwrap_or(("id", field)));
    let id = fields.clone().find(|(key, _)| *key == "id").map_or("", |(_, id)| id);
    Ok(match id {
        "UInt64AddOperator" | "uint64add" => Arc::new(Uint64Add),
        "PutOperator" | "put" | "put_v1" => Arc::new(Put),
        "StringAppendOperator" | "stringappend" | "StringAppendTESTOperator" | "stringappendtest" => {
            let delimiter = fields.find(|(key, _)| *key == "delimiter" || *key == "delim");
            Arc::new(StringAppend { delimiter: delimiter.map_or(",", |(_, text)| text).as_bytes().to_vec() })
        }
        _ => return Err(MergeObstacle::NotBuiltIn(name.to_owned())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_are_found_by_name() {
        let merged = |name: &str, base: Option<&[u8]>, operands: &[&[u8]]| {
            built_in(name).map(|operator| operator.merge(b"k", base, operands).unwrap())
        };
        assert_eq!(merged("StringAppendOperator", Some(b"a"), &[b"b", b""]), Ok(b"a,b,".to_vec()));
        let name = "{id=StringAppendOperator;delimiter=|;}";
        assert_eq!(merged(name, None, &[b"b", b"c"]), Ok(b"b|c".to_vec()));
        assert_eq!(merged("PutOperator", Some(b"a"), &[b"b", b"c"]), Ok(b"c".to_vec()));
        let one = &1_u64.to_le_bytes()[..];
        let most = u64::MAX.to_le_bytes();
        assert_eq!(merged("UInt64AddOperator", Some(&most), &[one, b"short", one]), Ok(one.to_vec()));
        assert_eq!(built_in("MyOwn").err(), Some(MergeObstacle::NotBuiltIn("MyOwn".into())));
    }
}
