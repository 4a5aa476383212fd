//! Sets of narrow words, many and of all kinds, and what operations mean for such words.

use std::collections::BTreeSet;

use ob_ebpf::isa::{Test, Width};
use ob_ebpf::number::WordSet;

/// A generator of numbers that look random, and are the same in each run.
pub(crate) struct Seeded(u64);

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

pub(crate) const WIDTHS: [Width; 2] = [Width::W32, Width::W64];

/// How many bits of a word a width means: half of them, or all.
pub(crate) fn bits_of<const BITS: u32>(width: Width) -> u32 {
    match width {
        Width::W32 => BITS / 2,
        Width::W64 => BITS,
    }
}

pub(crate) fn low(word: u64, bits: u32) -> u64 {
    word & (u64::MAX >> (64 - bits))
}

pub(crate) fn signed(word: u64, bits: u32) -> i64 {
    let modulus = 1i128 << bits;
    let value = i128::from(low(word, bits));
    (if value >= modulus / 2 { value - modulus } else { value }) as i64
}

pub(crate) fn all_words<const BITS: u32>() -> std::ops::Range<u64> {
    0..1 << BITS
}

pub(crate) fn members<const BITS: u32>(number: &WordSet<BITS>) -> Vec<u64> {
    all_words::<BITS>().filter(|word| number.contains(*word)).collect()
}

/// Whether a test holds of words of any width.
pub(crate) fn holds(test: Test, bits: u32, left: u64, right: u64) -> bool {
    let (left, right) = (low(left, bits), low(right, bits));
    let (signed_left, signed_right) = (signed(left, bits), signed(right, bits));
    match test {
        Test::Equal => left == right,
        Test::NotEqual => left != right,
        Test::AnyBit => left & right != 0,
        Test::Above => left > right,
        Test::AboveOrEqual => left >= right,
        Test::Below => left < right,
        Test::BelowOrEqual => left <= right,
        Test::Greater => signed_left > signed_right,
        Test::GreaterOrEqual => signed_left >= signed_right,
        Test::Less => signed_left < signed_right,
        Test::LessOrEqual => signed_left <= signed_right,
    }
}

/// The best description of some words.
pub(crate) fn described<const BITS: u32>(words: &[u64]) -> Option<WordSet<BITS>> {
    let constants = words.iter().map(|word| WordSet::constant(*word));
    constants.reduce(|all, one| all.join(&one))
}

fn unsigned_ranges(bits: u32) -> impl Iterator<Item = (u64, u64)> {
    (0..1u64 << bits).flat_map(move |low| (low..1 << bits).map(move |high| (low, high)))
}

fn signed_ranges(bits: u32) -> impl Iterator<Item = (i64, i64)> {
    let end = 1i64 << (bits - 1);
    (-end..end).flat_map(move |low| (low..end).map(move |high| (low, high)))
}

/// The sets that one description alone can say.
pub(crate) fn simple<const BITS: u32>() -> Vec<WordSet<BITS>> {
    let mut all = Vec::new();
    all.extend(unsigned_ranges(BITS).map(|(low, high)| WordSet::unsigned(low..=high)));
    all.extend(signed_ranges(BITS).map(|(low, high)| WordSet::signed(low..=high)));
    for unknown in all_words::<BITS>() {
        let values = all_words::<BITS>().filter(|value| value & unknown == 0);
        all.extend(values.map(|value| WordSet::with_bits(value, unknown)));
    }
    all.extend(unsigned_ranges(BITS / 2).map(|(low, high)| WordSet::lower_unsigned(low..=high)));
    all.extend(signed_ranges(BITS / 2).map(|(low, high)| WordSet::lower_signed(low..=high)));
    distinct(all)
}

/// Those, and the meets of some of them, until there are as many as are wanted.
pub(crate) fn family<const BITS: u32>(count: usize, seed: u64) -> Vec<WordSet<BITS>> {
    let simple = simple::<BITS>();
    let mut seeded = Seeded::new(seed);
    let mut all = simple.clone();
    // Some sets are met often and some never, so that it has to end by itself.
    for _ in 0..count * 8 {
        let mut set = *seeded.pick(&simple);
        for _ in 0..=seeded.below(3) {
            set = set.meet(seeded.pick(&simple)).unwrap_or(set);
        }
        all.push(set);
    }
    let mut all = distinct(all);
    // All are equally good; those that are left are a sample of all kinds.
    while all.len() > count {
        let at = seeded.below(all.len() as u64) as usize;
        all.swap_remove(at);
    }
    all
}

fn distinct<const BITS: u32>(all: Vec<WordSet<BITS>>) -> Vec<WordSet<BITS>> {
    let mut seen = BTreeSet::new();
    all.into_iter().filter(|number| seen.insert(format!("{number:?}"))).collect()
}
