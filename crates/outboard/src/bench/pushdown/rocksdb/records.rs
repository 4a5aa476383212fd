//! Keys and values, each of which can be told from a key's number and how often it was written.

use std::collections::BTreeMap;

/// What the database should hold.
pub(super) struct Records {
    /// How often each key was written, by its number.
    versions: Vec<u32>,
    /// The numbers, in the order of their keys.
    in_order: BTreeMap<u64, u32>,
    /// The shortest and the longest value.
    lens: (usize, usize),
}

/// A value is this part of it again and again, which is that of one key and version.
const UNIT_LEN: usize = 16;

/// A number that looks like any other, of each number a different one (the end of SplitMix64).
fn scattered(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}

/// The key of a number, in no order, as YCSB has them: `user` and 16 digits.
pub(super) fn key(number: u32) -> Vec<u8> {
    key_of(scattered(u64::from(number)))
}

fn key_of(scattered: u64) -> Vec<u8> {
    format!("user{scattered:016x}").into_bytes()
}

/// Of letters, because values go to the writer as words of a line.
fn unit(number: u32, version: u32) -> [u8; UNIT_LEN] {
    let seed = scattered((u64::from(version) << 32) | u64::from(number));
    std::array::from_fn(|at| b'a' + ((seed >> (4 * at)) & 15) as u8)
}

impl Records {
    pub(super) fn new(lens: (usize, usize)) -> Self {
        Self { versions: Vec::new(), in_order: BTreeMap::new(), lens }
    }

    /// How many keys there are.
    pub(super) fn count(&self) -> u32 {
        self.versions.len() as u32
    }

    fn value_len(&self, number: u32) -> usize {
        let (shortest, longest) = self.lens;
        shortest + (scattered(!u64::from(number)) % (longest - shortest + 1) as u64) as usize
    }

    /// The value that a key of these is to have next; a new one is the key behind the last. It is taken for written.
    pub(super) fn write(&mut self, number: u32) -> Vec<u8> {
        if number == self.count() {
            self.versions.push(0);
            self.in_order.insert(scattered(u64::from(number)), number);
        }
        let version = self.versions.get_mut(number as usize).map_or(0, |version| {
            *version += 1;
            *version
        });
        let units = unit(number, version).into_iter().cycle();
        units.take(self.value_len(number)).collect()
    }

    /// Whether a key has this value now.
    pub(super) fn is_right(&self, number: u32, value: &[u8]) -> bool {
        let Some(version) = self.versions.get(number as usize) else { return false };
        let unit = unit(number, *version);
        value.len() == self.value_len(number)
            && value.chunks(UNIT_LEN).all(|part| Some(part) == unit.get(..part.len()))
    }

    /// Whether these are the first so many keys from a key on, or all that there are, with their values.
    pub(super) fn is_range(&self, from: u32, count: usize, found: &[(Vec<u8>, Vec<u8>)]) -> bool {
        let expected = self.in_order.range(scattered(u64::from(from))..).take(count);
        expected.clone().count() == found.len()
            && expected.zip(found).all(|((scattered, number), (key, value))| {
                *key == key_of(*scattered) && self.is_right(*number, value)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_value_is_noticed() {
        let mut records = Records::new((20, 50));
        let old = records.write(0);
        let other = records.write(1);
        let new = records.write(0);
        assert!((20..=50).contains(&new.len()) && records.is_right(0, &new) && records.is_right(1, &other));
        assert!(!records.is_right(0, &old), "of an earlier version");
        assert!(!records.is_right(0, &other), "of another key");
        assert!(!records.is_right(0, &new[..new.len() - 1]), "cut off");
        assert!(!records.is_right(7, &new), "of no key");
        let mut torn = new;
        *torn.last_mut().unwrap() ^= 1;
        assert!(!records.is_right(0, &torn));
    }

    #[test]
    fn a_wrong_range_is_noticed() {
        let mut records = Records::new((16, 16));
        let mut found: Vec<_> = (0..20).map(|number| (key(number), records.write(number))).collect();
        found.sort();
        let first = (0..20).find(|number| key(*number) == found[0].0).unwrap();
        assert!(records.is_range(first, 30, &found));
        assert!(records.is_range(first, 3, &found[..3]));
        assert!(!records.is_range(first, 4, &found[..3]), "too few");
        assert!(!records.is_range(first, 3, &found[1..4]), "others");
        found.swap(1, 2);
        assert!(!records.is_range(first, 30, &found));
    }
}
