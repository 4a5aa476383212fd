//! What goes into the table and comes out: keys, items, stamps.

use std::fmt;

use crate::sync::{ITEM_WORDS, KEY_WORDS};

/// The longest key, in bytes. Whoever has longer ones passes a digest.
pub const KEY_BYTES_MAX: usize = KEY_WORDS * 8;

/// The longest item, in bytes.
pub const ITEM_BYTES_MAX: usize = ITEM_WORDS * 8;

/// Why bytes are not a key, an item or a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WordError {
    /// Keys have 1 to [`KEY_BYTES_MAX`] bytes.
    #[error("a key has 1 to {KEY_BYTES_MAX} bytes, not {0}")]
    Key(usize),
    /// Items have up to [`ITEM_BYTES_MAX`] bytes.
    #[error("an item has up to {ITEM_BYTES_MAX} bytes, not {0}")]
    Item(usize),
    /// Stamps end at [`Stamp::MAX`].
    #[error("a stamp is at most {max}, not {0}", max = Stamp::MAX.number())]
    Stamp(u64),
}

/// A key of 1 to [`KEY_BYTES_MAX`] bytes.
// Words, and not bytes: a key that was just put together in small pieces would be read back in one large piece, and then the
// processor waits until the pieces have come as far as the cache.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    // In the order of memory. Behind the length all bytes are zero.
    words: [u64; KEY_WORDS],
    len: u8,
}

impl Key {
    /// Takes the bytes, if there are neither none nor too many.
    ///
    /// # Errors
    /// When there are.
    #[inline(always)]
    pub fn new(bytes: &[u8]) -> Result<Self, WordError> {
        if bytes.is_empty() || bytes.len() > KEY_BYTES_MAX {
            return Err(WordError::Key(bytes.len()));
        }
        // Word by word and without a loop, so that they stay in registers.
        let words = std::array::from_fn(|index| word_at(bytes, index * 8));
        Ok(Self { words, len: bytes.len() as u8 })
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let len = usize::from(self.len).min(KEY_BYTES_MAX);
        // SAFETY: the words are initialised, lie side by side as an array does, and have at least `len` bytes; any byte is a
        // `u8`, and the slice borrows the key.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), len) }
    }

    #[inline(always)]
    pub(crate) fn words(&self) -> [u64; KEY_WORDS] {
        self.words
    }

    /// How many words hold all bytes, or some more: few numbers of words are as well predicted as one.
    #[inline(always)]
    pub(crate) fn words_in_use(&self) -> usize {
        if self.len <= 16 { KEY_WORDS.min(2) } else { KEY_WORDS }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> u8 {
        self.len
    }

    pub(crate) fn from_words(words: [u64; KEY_WORDS], len: u8) -> Self {
        Self { words, len }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Key({})", self.bytes().escape_ascii())
    }
}

/// What the table keeps for a key: up to [`ITEM_BYTES_MAX`] bytes that mean nothing to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C, align(8))]
pub struct Item {
    bytes: [u8; ITEM_BYTES_MAX],
    len: u8,
}

impl Item {
    /// No bytes.
    pub const EMPTY: Self = Self { bytes: [0; ITEM_BYTES_MAX], len: 0 };

    /// Takes the bytes, if they are not too many.
    ///
    /// # Errors
    /// When they are.
    #[inline]
    pub fn new(bytes: &[u8]) -> Result<Self, WordError> {
        if bytes.len() > ITEM_BYTES_MAX {
            return Err(WordError::Item(bytes.len()));
        }
        let mut padded = [0; ITEM_BYTES_MAX];
        padded[..bytes.len()].copy_from_slice(bytes);
        Ok(Self { bytes: padded, len: bytes.len() as u8 })
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    #[inline(always)]
    pub(crate) fn words(&self) -> [u64; ITEM_WORDS] {
        words_of(&self.bytes)
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> u8 {
        self.len
    }

    /// From words that a reader may have torn: any of them make some item.
    #[inline(always)]
    pub(crate) fn from_words(words: [u64; ITEM_WORDS], len: u8) -> Self {
        let mut bytes = [0; ITEM_BYTES_MAX];
        bytes_of(&words, &mut bytes);
        Self { bytes, len: len.min(ITEM_BYTES_MAX as u8) }
    }
}

impl fmt::Debug for Item {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Item({})", self.bytes().escape_ascii())
    }
}

/// Where a request stands in the one order of requests that may change something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stamp(u64);

impl Stamp {
    /// The first.
    pub const ZERO: Self = Self(0);
    /// The last: a slot's state holds a stamp, one bit more, and a word that means *free*.
    pub const MAX: Self = Self((1 << 63) - 2);

    /// Takes the number.
    ///
    /// # Errors
    /// When it is above [`Stamp::MAX`].
    #[inline]
    pub const fn new(number: u64) -> Result<Self, WordError> {
        if number > Self::MAX.0 { Err(WordError::Stamp(number)) } else { Ok(Self(number)) }
    }

    /// The number.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// From a word of the table, which holds only what was a stamp.
    #[inline]
    pub(crate) const fn from_word(number: u64) -> Self {
        Self(number)
    }
}

/// What a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The item, as it was admitted.
    pub item: Item,
    /// The stamp that it was admitted with.
    pub stamp: Stamp,
}

/// The word that begins at a place, zeroes beyond the end.
#[inline(always)]
fn word_at(bytes: &[u8], start: usize) -> u64 {
    match bytes.get(start..) {
        Some([a, b, c, d, e, f, g, h, ..]) => u64::from_ne_bytes([*a, *b, *c, *d, *e, *f, *g, *h]),
        Some(rest) => {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            u64::from_ne_bytes(last)
        }
        None => 0,
    }
}

#[inline(always)]
fn words_of<const BYTES: usize, const WORDS: usize>(bytes: &[u8; BYTES]) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*chunk);
    }
    words
}

#[inline(always)]
fn bytes_of(words: &[u64], bytes: &mut [u8]) {
    for (word, chunk) in words.iter().zip(bytes.as_chunks_mut::<8>().0) {
        *chunk = word.to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_fits_is_a_key_an_item_or_a_stamp() {
        assert_eq!(Key::new(b""), Err(WordError::Key(0)));
        assert_eq!(Key::new(&[7; KEY_BYTES_MAX + 1]), Err(WordError::Key(KEY_BYTES_MAX + 1)));
        assert_eq!(Key::new(&[7; KEY_BYTES_MAX]).map(|key| key.bytes().len()), Ok(KEY_BYTES_MAX));
        assert_eq!(Item::new(&[7; ITEM_BYTES_MAX + 1]), Err(WordError::Item(ITEM_BYTES_MAX + 1)));
        assert_eq!(Item::new(b"").map(|item| item.bytes().len()), Ok(0));
        assert_eq!(Stamp::new(u64::MAX >> 1), Err(WordError::Stamp(u64::MAX >> 1)));
        assert_eq!(Stamp::new(Stamp::MAX.number()), Ok(Stamp::MAX));
    }

    #[test]
    fn words_give_the_bytes_back() {
        let key = Key::new(b"some key of 23 bytes...").unwrap();
        assert_eq!(Key::from_words(key.words(), key.len()), key);
        let item = Item::new(b"an item").unwrap();
        assert_eq!(Item::from_words(item.words(), item.len()), item);
    }

    #[test]
    fn zeroes_at_the_end_of_a_key_count() {
        assert_ne!(Key::new(b"a"), Key::new(b"a\0"));
        assert_ne!(Item::new(b""), Item::new(b"\0"));
    }
}
