//! The hash of Bloom filters: XXH3 as it was in a preview, before its final version, which gives other values.
//!
//! RocksDB has kept that preview (xxHash 0.7.2) because filters on disk depend on it. It differs from the final one for short
//! inputs and in how the last stripe is taken, so no library has it. Only the form without a seed is needed.

const PRIME32_1: u64 = 0x9e37_79b1;
const PRIME32_2: u64 = 0x85eb_ca77;
const PRIME32_3: u64 = 0xc2b2_ae3d;
const PRIME64_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME64_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const PRIME64_3: u64 = 0x1656_67b1_9e37_79f9;
const PRIME64_4: u64 = 0x85eb_ca77_c2b2_ae63;
const PRIME64_5: u64 = 0x27d4_eb2f_1656_67c5;

const STRIPE_LEN: usize = 64;
// How far the secret moves from one stripe to the next.
const SECRET_STEP: usize = 8;
const SECRET_LEN: usize = 192;
// The shortest secret that xxHash allows: middle lengths count from its end.
const SECRET_LEN_MIN: usize = 136;

/// The constant that xxHash calls its secret.
const SECRET: [u8; SECRET_LEN] = [
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde,
    0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79,
    0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46,
    0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb,
    0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2,
    0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c,
    0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59,
    0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3,
    0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb, 0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3,
    0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8,
    0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb,
    0xca, 0xbb, 0x4b, 0x40, 0x7e,
];

/// The hash of a key.
#[must_use]
pub fn hash64(input: &[u8]) -> u64 {
    match input.len() {
        0 => fold(word64(&SECRET, 0), PRIME64_2),
        1..=3 => tiny(input),
        4..=8 => small(input),
        9..=16 => medium(input),
        17..=128 => up_to_128(input),
        129..=240 => up_to_240(input),
        _ => long(input),
    }
}

// Callers pass offsets that are within; a word that is not reads as zero rather than panicking.
fn word64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

fn word32(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |word| u64::from(u32::from_le_bytes(*word)))
}

#[expect(clippy::cast_possible_truncation, reason = "both halves are taken")]
fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    product as u64 ^ (product >> 64) as u64
}

const fn avalanche(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 37)).wrapping_mul(PRIME64_3);
    hash ^ (hash >> 32)
}

fn tiny(input: &[u8]) -> u64 {
    let len = input.len();
    let byte = |at: usize| u64::from(input[at]);
    let combined = byte(0) | byte(len >> 1) << 8 | byte(len - 1) << 16 | (len as u64) << 24;
    avalanche((combined ^ word32(&SECRET, 0)).wrapping_mul(PRIME64_1))
}

fn small(input: &[u8]) -> u64 {
    let len = input.len();
    let keyed = (word32(input, 0) | word32(input, len - 4) << 32) ^ word64(&SECRET, 0);
    let mixed = (keyed ^ (keyed >> 51)).wrapping_mul(PRIME32_1).wrapping_add(len as u64);
    avalanche((mixed ^ (mixed >> 47)).wrapping_mul(PRIME64_2))
}

fn medium(input: &[u8]) -> u64 {
    let len = input.len();
    let low = word64(input, 0) ^ word64(&SECRET, 0);
    let high = word64(input, len - 8) ^ word64(&SECRET, 8);
    avalanche((len as u64).wrapping_add(low).wrapping_add(high).wrapping_add(fold(low, high)))
}

fn mix16(input: &[u8], at: usize, secret_at: usize) -> u64 {
    fold(
        word64(input, at) ^ word64(&SECRET, secret_at),
        word64(input, at + 8) ^ word64(&SECRET, secret_at + 8),
    )
}

fn up_to_128(input: &[u8]) -> u64 {
    let len = input.len();
    let mut sum = (len as u64).wrapping_mul(PRIME64_1);
    // From both ends towards the middle, sixteen bytes each.
    for pair in 0..len.div_ceil(32) {
        sum = sum.wrapping_add(mix16(input, 16 * pair, 32 * pair));
        sum = sum.wrapping_add(mix16(input, len - 16 * (pair + 1), 32 * pair + 16));
    }
    avalanche(sum)
}

fn up_to_240(input: &[u8]) -> u64 {
    let len = input.len();
    let mut sum = (len as u64).wrapping_mul(PRIME64_1);
    for round in 0..8 {
        sum = sum.wrapping_add(mix16(input, 16 * round, 16 * round));
    }
    sum = avalanche(sum);
    for round in 8..len / 16 {
        sum = sum.wrapping_add(mix16(input, 16 * round, 16 * (round - 8) + 3));
    }
    avalanche(sum.wrapping_add(mix16(input, len - 16, SECRET_LEN_MIN - 17)))
}

type Lanes = [u64; 8];

fn accumulate(lanes: &mut Lanes, input: &[u8], at: usize, secret_at: usize) {
    for (index, lane) in lanes.iter_mut().enumerate() {
        let value = word64(input, at + 8 * index);
        let keyed = value ^ word64(&SECRET, secret_at + 8 * index);
        *lane = lane.wrapping_add(value).wrapping_add((keyed & 0xffff_ffff).wrapping_mul(keyed >> 32));
    }
}

fn scramble(lanes: &mut Lanes) {
    for (index, lane) in lanes.iter_mut().enumerate() {
        let key = word64(&SECRET, SECRET_LEN - STRIPE_LEN + 8 * index);
        *lane = (*lane ^ (*lane >> 47) ^ key).wrapping_mul(PRIME32_1);
    }
}

fn long(input: &[u8]) -> u64 {
    let len = input.len();
    let mut lanes = [PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1];
    let stripes_a_block = (SECRET_LEN - STRIPE_LEN) / SECRET_STEP;
    let stripes = len / STRIPE_LEN;
    for stripe in 0..stripes {
        accumulate(&mut lanes, input, STRIPE_LEN * stripe, SECRET_STEP * (stripe % stripes_a_block));
        if stripe % stripes_a_block == stripes_a_block - 1 {
            scramble(&mut lanes);
        }
    }
    if !len.is_multiple_of(STRIPE_LEN) {
        accumulate(&mut lanes, input, len - STRIPE_LEN, SECRET_LEN - STRIPE_LEN - 7);
    }
    let mut sum = (len as u64).wrapping_mul(PRIME64_1);
    for pair in 0..4 {
        let left = lanes[2 * pair] ^ word64(&SECRET, 11 + 16 * pair);
        let right = lanes[2 * pair + 1] ^ word64(&SECRET, 11 + 16 * pair + 8);
        sum = sum.wrapping_add(fold(left, right));
    }
    avalanche(sum)
}
