//! What lies in files, and what a chain through them finds.
//!
//! Every word of a node follows from whose it is and when it was written, so a few numbers of an answer tell whether all of its bytes
//! are of one file and one version.

use ob_sim::Failure;

/// Bytes of a node.
pub(super) const NODE: u64 = 512;
/// Nodes of the longest file.
pub(super) const NODES: u64 = 24;
/// In a node's third word: the next node is in the next file.
const HOP: u64 = 1 << 63;
/// Bytes of the scratch before the first entry, and of an entry.
const HEAD: usize = 16;
const ENTRY: usize = 48;

/// What a file is like: whose it is, and the stamp of each node; 0 are zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) owner: u64,
    pub(super) stamps: Vec<u64>,
    /// Bytes of the file, which may end within its last node.
    pub(super) len: u64,
}

/// What one read of a chain found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) owner: u64,
    pub(super) stamp: u64,
    pub(super) len: u64,
    pub(super) sum: u64,
}

/// A question: how many files there are, from where on, and how much is read at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) files: usize,
    pub(super) first_file: usize,
    pub(super) first_node: u64,
    pub(super) read_len: u32,
}

impl Question {
    /// The beginning of the scratch.
    pub(super) fn input(&self) -> Vec<u8> {
        [(self.files as u32).to_le_bytes(), self.read_len.to_le_bytes()].concat()
    }
}

impl Content {
    /// A file that is written all at once.
    pub(super) fn whole(owner: u64, stamp: u64, nodes: u64) -> Self {
        Self { owner, stamps: vec![stamp; nodes as usize], len: nodes * NODE }
    }

    /// The bytes of its nodes, from one to another.
    pub(super) fn bytes(&self, from: u64, to: u64) -> Vec<u8> {
        (from..to).flat_map(|node| self.words(node)).flat_map(u64::to_le_bytes).collect()
    }

    fn words(&self, node: u64) -> [u64; NODE as usize / 8] {
        let stamp = self.stamps.get(node as usize).copied().unwrap_or_default();
        if stamp == 0 {
            return [0; NODE as usize / 8];
        }
        let owner = self.owner;
        std::array::from_fn(|at| match at {
            0 => owner,
            1 => stamp,
            2 => next_word(owner, stamp, node),
            at => mix(owner ^ mix(stamp ^ mix(node << 8 | at as u64))),
        })
    }

    /// Whether this is what a read found.
    pub(super) fn agrees(&self, entry: &Entry, read_len: u32) -> bool {
        let end = (entry.offset + u64::from(read_len)).min(self.len);
        let Some(len) = end.checked_sub(entry.offset).filter(|_| entry.offset.is_multiple_of(NODE)) else {
            return false;
        };
        let first = entry.offset / NODE;
        let words = (first..=end / NODE).flat_map(|node| self.words(node)).take(len as usize / 8);
        let [owner, stamp, ..] = self.words(first);
        let sum = words.fold(0u64, u64::wrapping_add);
        (entry.owner, entry.stamp, entry.len, entry.sum) == (owner, stamp, len, sum)
    }
}

/// Where a chain goes from a node: to the next file or not, and to which node; nowhere from the last.
fn next_of(owner: u64, stamp: u64, node: u64) -> Option<(bool, u64)> {
    if stamp == 0 {
        return None;
    }
    let drawn = mix(owner ^ mix(stamp.wrapping_mul(31) ^ node));
    let next = node + 1 + drawn % 2;
    (next < NODES).then_some((drawn >> 8 & 7 == 0, next))
}

fn next_word(owner: u64, stamp: u64, node: u64) -> u64 {
    next_of(owner, stamp, node).map_or(0, |(hops, next)| (next * NODE) | if hops { HOP } else { 0 })
}

/// Every bit of the result depends on every bit of the number (SplitMix64).
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ number >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ number >> 31
}

/// Reads an answer, and fails if it cannot have been given by the program to this question, whatever lay in the files.
pub(super) fn parse(question: &Question, scratch: &[u8], reads: u32) -> Result<Vec<Entry>, Failure> {
    let fail = |what: &str| Failure::new(format!("{question:?} has an answer in {reads} reads that {what}"));
    let word = |at: usize| {
        let bytes = scratch.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_le_bytes).ok_or_else(|| fail("is too short"))
    };
    if scratch.get(..8) != Some(question.input().as_slice()) {
        return Err(fail("is for another question"));
    }
    let count = word(8)? as usize;
    if count != reads as usize || count == 0 {
        return Err(fail(&format!("tells of {count}")));
    }
    let behind = scratch.get(HEAD + count * ENTRY..).ok_or_else(|| fail("is too short"))?;
    if behind.iter().any(|byte| *byte != 0) {
        return Err(fail("has something of another's behind its end"));
    }
    let mut entries = Vec::with_capacity(count);
    let mut place = Some((question.first_file, question.first_node * NODE));
    for at in (0..count).map(|index| HEAD + index * ENTRY) {
        let [file, offset, owner, stamp, len, sum] =
            [word(at)?, word(at + 8)?, word(at + 16)?, word(at + 24)?, word(at + 32)?, word(at + 40)?];
        let entry = Entry { file: file as usize, offset, owner, stamp, len, sum };
        if place != Some((entry.file, offset)) {
            return Err(fail(&format!("is nowhere led to {entry:?}")));
        }
        place = next_of(owner, stamp, offset / NODE)
            .map(|(hops, next)| ((entry.file + usize::from(hops)) % question.files, next * NODE));
        entries.push(entry);
    }
    if place.is_some() {
        return Err(fail("ends before its end"));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(question: &Question, contents: &[Content]) -> (Vec<u8>, u32) {
        let mut scratch = question.input();
        let (mut entries, mut count) = (Vec::new(), 0);
        let mut place = Some((question.first_file, question.first_node));
        while let Some((file, node)) = place {
            let content = &contents[file];
            let end = (node * NODE + u64::from(question.read_len)).min(content.len);
            let words: Vec<u64> = (node..NODES).flat_map(|node| content.words(node)).collect();
            let len = end - node * NODE;
            let sum = words[..len as usize / 8].iter().copied().fold(0, u64::wrapping_add);
            let stamp = content.stamps[node as usize];
            entries.extend([file as u64, node * NODE, content.owner, stamp, len, sum]);
            count += 1;
            place = next_of(content.owner, stamp, node)
                .map(|(hops, next)| ((file + usize::from(hops)) % question.files, next));
        }
        scratch.extend(u64::from(count).to_le_bytes());
        scratch.extend(entries.into_iter().flat_map(u64::to_le_bytes));
        scratch.resize(4096, 0);
        (scratch, count)
    }

    #[test]
    fn what_is_right_agrees_and_nothing_else_does() {
        let contents = [Content::whole(5, 100, NODES), Content::whole(6, 101, NODES)];
        let question = Question { files: 2, first_file: 0, first_node: 1, read_len: 1024 };
        let (scratch, reads) = answer(&question, &contents);
        let entries = parse(&question, &scratch, reads).unwrap();
        assert!(entries.iter().any(|entry| entry.file == 1), "it goes from file to file");
        for entry in &entries {
            assert!(contents[entry.file].agrees(entry, 1024));
            assert!(!contents[1 - entry.file].agrees(entry, 1024));
            assert!(
                !Content { len: entry.offset + entry.len - 8, ..contents[entry.file].clone() }
                    .agrees(entry, 1024)
            );
            let mut torn = contents[entry.file].clone();
            torn.stamps[entry.offset as usize / NODE as usize + usize::from(entry.len > NODE)] += 1;
            assert!(!torn.agrees(entry, 1024));
        }
        assert!(parse(&question, &scratch, reads - 1).is_err());
        for wrong in [0, 8, 16, 24, 40, 4088] {
            let mut scratch = scratch.clone();
            scratch[wrong] ^= 1;
            assert!(parse(&question, &scratch, reads).is_err(), "byte {wrong}");
        }
    }
}
