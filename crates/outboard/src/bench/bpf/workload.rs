//! What every contender is given: data as it was read from a device, and queries over it.
//!
//! All of it together fits into the first cache of a core. The queries are many and in no order, so that branches are guessed as well as they are
//! on a card, and not as well as those of a loop that asks the same again and again.

use crate::bench::table::mix;

/// Bytes that a scratch begins with: a query, and room for what follows it, which is zero.
pub(super) const QUERY_LEN: usize = 40;
/// Queries of a lap.
pub(super) const QUERIES: usize = 512;

/// Bytes of a query.
pub(super) type Query = [u8; QUERY_LEN];

/// One of the programs at its work.
pub(super) struct Workload {
    /// What it is called in the names of cases.
    pub(super) name: &'static str,
    /// The object with the program.
    pub(super) object: &'static [u8],
    pub(super) data: Vec<u8>,
    pub(super) queries: Vec<Query>,
    /// As many bytes of the scratch are the answer; what is behind them is the program's own.
    pub(super) answer_len: usize,
}

/// All of them.
pub(super) fn all() -> [Workload; 4] {
    [empty(), btree(), bpfkv(), rocksdb_block()]
}

/// A program that does nothing: what is left is the way in and out.
fn empty() -> Workload {
    Workload {
        name: "empty",
        object: &[],
        data: vec![0; 512],
        queries: vec![[0; QUERY_LEN]; QUERIES],
        answer_len: QUERY_LEN,
    }
}

/// A leaf of 4 KiB, full, with keys that are all multiples of 3: two of three queries find nothing.
fn btree() -> Workload {
    const ENTRIES: u64 = 255;
    let words = [1, ENTRIES].into_iter().chain((0..ENTRIES).map(|at| at * 3)).chain(0..ENTRIES);
    Workload {
        name: "btree",
        object: include_bytes!("../../../../../examples/programs/btree_search.o"),
        data: words.flat_map(u64::to_le_bytes).collect(),
        queries: queries(|number| query_of_word(number % (ENTRIES * 3))),
        answer_len: 24,
    }
}

/// An inner node of 512 bytes, full.
fn bpfkv() -> Workload {
    const ENTRIES: u64 = 31;
    const MARK: u64 = 1 << 63;
    let pointers = (0..ENTRIES).map(|at| ((at + 1) * 512) | MARK);
    let words = [0, 0].into_iter().chain((0..ENTRIES).map(|at| at * 100)).chain(pointers);
    Workload {
        name: "bpfkv",
        object: include_bytes!("../../../../../examples/programs/bpfkv_get.o"),
        data: words.flat_map(u64::to_le_bytes).collect(),
        queries: queries(|number| query_of_word(number % (ENTRIES * 100))),
        answer_len: 88,
    }
}

/// A data block of 4 KiB as RocksDB makes them: keys of 12 bytes and eight more, values of 100, a restart every 16 entries.
fn rocksdb_block() -> Workload {
    const ENTRIES: u64 = 36;
    const INTERVAL: u64 = 16;
    let key = |number: u64| format!("user{number:08}").into_bytes();
    let (mut data, mut restarts, mut before) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..ENTRIES {
        let internal = [key(number), ((7u64 << 8) | 1).to_le_bytes().to_vec()].concat();
        let mut shared = internal.iter().zip(&before).take_while(|(own, before)| own == before).count();
        if number % INTERVAL == 0 {
            restarts.push(data.len() as u32);
            shared = 0;
        }
        data.extend([shared as u8, (internal.len() - shared) as u8, 100]);
        data.extend_from_slice(&internal[shared..]);
        data.extend([number as u8; 100]);
        before = internal;
    }
    restarts.push(restarts.len() as u32);
    data.extend(restarts.iter().flat_map(|word| word.to_le_bytes()));
    // Not compressed, and a checksum that nobody looks at.
    data.extend([0; 5]);
    Workload {
        name: "rocksdb_block",
        object: include_bytes!("../../../../../examples/programs/rocksdb_block.o"),
        data,
        queries: queries(|number| {
            const DATA_STAGE: u64 = 1;
            let key = key(number % ENTRIES);
            let words = [DATA_STAGE, 8, key.len() as u64];
            let bytes = words.into_iter().flat_map(u64::to_le_bytes).chain(key);
            query_of(bytes)
        }),
        answer_len: 24 + 64 + 5 * 8 + 2048,
    }
}

fn queries(query: impl Fn(u64) -> Query) -> Vec<Query> {
    (0..QUERIES as u64).map(|number| query(mix(number))).collect()
}

fn query_of_word(word: u64) -> Query {
    query_of(word.to_le_bytes())
}

fn query_of(bytes: impl IntoIterator<Item = u8>) -> Query {
    let mut query = [0; QUERY_LEN];
    for (to, from) in query.iter_mut().zip(bytes) {
        *to = from;
    }
    query
}
