//! What a server must answer: every value is derived from its key and its version, and the client knows which versions a
//! key may have.

use crate::bench::BenchFailure;

/// Bytes of a key.
pub(super) const KEY_LEN: usize = 16;
/// Spreads a word over a value, so that no two of its words are alike.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a server holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) struct Shape {
    pub(in crate::bench) keys: u32,
    /// Bytes of a value, at least 8.
    pub(in crate::bench) value_len: usize,
}

/// A key as clients write it: `key:000000000042`.
pub(super) fn key_text(key: u32) -> [u8; KEY_LEN] {
    let mut text = *b"key:000000000000";
    let mut rest = key;
    for digit in text.iter_mut().rev() {
        if rest == 0 {
            break;
        }
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    text
}

/// Appends the value of a version of a key.
pub(super) fn append_value(into: &mut Vec<u8>, len: usize, key: u32, version: u32) {
    let end = into.len() + len;
    let mut word = u64::from(key) | u64::from(version) << 32;
    while into.len() < end {
        let bytes = word.to_le_bytes();
        into.extend_from_slice(&bytes[..bytes.len().min(end - into.len())]);
        word = word.wrapping_mul(SPREAD).rotate_left(29);
    }
}

/// The version of a key that a value is, if it is one, whole.
fn version_of(value: &[u8], key: u32) -> Option<u32> {
    let mut word = u64::from_le_bytes(*value.first_chunk()?);
    let version = (word >> 32) as u32;
    if word as u32 != key {
        return None;
    }
    for chunk in value.chunks(8) {
        if chunk != &word.to_le_bytes()[..chunk.len()] {
            return None;
        }
        word = word.wrapping_mul(SPREAD).rotate_left(29);
    }
    Some(version)
}

/// Which versions the keys of a server may have. All that writes to it is one client, so that one ledger knows.
///
/// Writes of one key may be out at once, and take effect in either order. When none is out any more, the value is one of
/// those that were out together, and nothing older.
pub(in crate::bench) struct Ledger {
    keys: Vec<Key>,
}

#[derive(Clone, Copy, Default)]
struct Key {
    /// No read that begins now may find an older one.
    oldest: u32,
    /// The first of the writes that are out together.
    first_out: u32,
    /// The newest that was ever written.
    newest: u32,
    out: u32,
}

impl Ledger {
    /// Every key has its version 0, or is about to.
    pub(super) fn new(shape: Shape) -> Self {
        Self { keys: vec![Key::default(); shape.keys as usize] }
    }

    /// A write begins: of this version.
    pub(super) fn write(&mut self, key: u32) -> u32 {
        let key = &mut self.keys[key as usize];
        key.newest += 1;
        if key.out == 0 {
            key.first_out = key.newest;
        }
        key.out += 1;
        key.newest
    }

    /// A write is complete.
    pub(super) fn written(&mut self, key: u32) {
        let key = &mut self.keys[key as usize];
        key.out = key.out.saturating_sub(1);
        if key.out == 0 {
            key.oldest = key.oldest.max(key.first_out);
        }
    }

    /// A read begins: the oldest version that it may find.
    pub(super) fn read(&self, key: u32) -> u32 {
        self.keys[key as usize].oldest
    }

    /// A read that began with `oldest` has found this.
    pub(super) fn found(&self, key: u32, oldest: u32, value: &[u8]) -> Result<(), BenchFailure> {
        let Some(version) = version_of(value, key) else {
            return Err(format!("the value of key {key} is not one that was ever written").into());
        };
        let newest = self.keys[key as usize].newest;
        if version < oldest {
            return Err(
                format!("version {version} of key {key} was read after {oldest} had replaced it").into()
            );
        }
        if version > newest {
            return Err(format!("version {version} of key {key} was read, and {newest} is the newest").into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(key: u32, version: u32, len: usize) -> Vec<u8> {
        let mut value = Vec::new();
        append_value(&mut value, len, key, version);
        assert_eq!(value.len(), len);
        value
    }

    #[test]
    fn keys_are_written_in_decimal() {
        assert_eq!(&key_text(0), b"key:000000000000");
        assert_eq!(&key_text(1_203_040), b"key:000001203040");
    }

    #[test]
    fn a_value_belongs_to_its_key_and_version() {
        for len in [8, 100, 4096] {
            assert_eq!(version_of(&value(7, 3, len), 7), Some(3));
            assert_eq!(version_of(&value(7, 3, len), 8), None);
            let mut torn = value(7, 3, len);
            torn[len - 1] ^= 1;
            assert_ne!(version_of(&torn, 7), Some(3), "{len}");
        }
        let mut mixed = value(7, 3, 100);
        mixed[50..].copy_from_slice(&value(7, 4, 100)[50..]);
        assert_eq!(version_of(&mixed, 7), None, "half of one version and half of another");
    }

    #[test]
    fn what_was_replaced_before_a_read_began_is_not_to_be_found() {
        let mut ledger = Ledger::new(Shape { keys: 8, value_len: 8 });
        assert_eq!(ledger.write(5), 1);
        let early = ledger.read(5);
        ledger.found(5, early, &value(5, 0, 8)).unwrap();
        ledger.found(5, early, &value(5, 1, 8)).unwrap();
        ledger.written(5);
        let late = ledger.read(5);
        assert!(ledger.found(5, late, &value(5, 0, 8)).is_err(), "stale");
        ledger.found(5, early, &value(5, 0, 8)).unwrap();
        assert!(ledger.found(5, late, &value(5, 2, 8)).is_err(), "from the future");
    }

    #[test]
    fn writes_that_are_out_together_may_take_effect_in_either_order() {
        let mut ledger = Ledger::new(Shape { keys: 1, value_len: 8 });
        assert_eq!((ledger.write(0), ledger.write(0)), (1, 2));
        ledger.written(0);
        assert_eq!(ledger.read(0), 0, "one of the two is out yet");
        ledger.written(0);
        let oldest = ledger.read(0);
        ledger.found(0, oldest, &value(0, 1, 8)).unwrap();
        ledger.found(0, oldest, &value(0, 2, 8)).unwrap();
        assert!(ledger.found(0, oldest, &value(0, 0, 8)).is_err());
    }
}
