//! What clients may see: a register a block, and bytes that say of which write they are.
//!
//! A command of many blocks is many operations with one call and one return, because blocks are independent of each other. One that failed,
//! or was never answered, may take effect at any time after its call, or not at all.

use std::collections::BTreeMap;
use std::fmt;

use ob_sim::Failure;
use ob_sim::history::{Limits, Operation, Returned, Specification, Verdict, Window, check};

mod zones;

/// What a block has: the number of the write, or 0.
pub(super) type Stamp = u64;

/// Bytes of a stamp and a block's number.
const PAIR: usize = 16;
/// Every so many writes do not compress.
const NOISY_ONE_IN: u64 = 3;

/// A block's bytes: stamp and number, again and again, or once and then what looks like noise.
pub(super) fn content(stamp: Stamp, first: u64, blocks: u64, block_len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(blocks as usize * block_len);
    for block in first..first + blocks {
        let start = bytes.len();
        fill(stamp, block, block_len, &mut bytes);
        debug_assert_eq!(bytes.len(), start + block_len);
    }
    bytes
}

fn fill(stamp: Stamp, block: u64, block_len: usize, bytes: &mut Vec<u8>) {
    let mut pair = [0; PAIR];
    pair[..8].copy_from_slice(&stamp.to_le_bytes());
    pair[8..].copy_from_slice(&block.to_le_bytes());
    bytes.extend_from_slice(&pair);
    let mut state = stamp.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ block;
    for _ in 1..block_len / PAIR {
        if !stamp.is_multiple_of(NOISY_ONE_IN) {
            bytes.extend_from_slice(&pair);
            continue;
        }
        for _ in 0..2 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.extend_from_slice(&(state ^ state >> 29).to_le_bytes());
        }
    }
}

/// Whose bytes these are; a failure, if nobody has written them there.
pub(super) fn stamp_of(bytes: &[u8], block: u64) -> Result<Stamp, Failure> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    let word = |at: usize| {
        let word = bytes.get(at..at + 8).and_then(|word| <[u8; 8]>::try_from(word).ok());
        word.map_or(0, u64::from_le_bytes)
    };
    let (stamp, of) = (word(0), word(8));
    if of == block && stamp != 0 {
        let mut expected = Vec::with_capacity(bytes.len());
        fill(stamp, block, bytes.len(), &mut expected);
        if expected == bytes {
            return Ok(stamp);
        }
        let at = expected.iter().zip(bytes).position(|(one, other)| one != other).unwrap_or(0);
        let text = format!("block {block} has bytes of write {stamp}, and from byte {at} on others");
        return Err(Failure::new(text));
    }
    Err(Failure::new(format!("block {block} has bytes that say to be block {of} of write {stamp}")))
}

/// What was asked of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) block: u64,
    /// What it is to have from then on; nothing if it was read.
    pub(super) write: Option<Stamp>,
}

/// What was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    Done,
    Has(Stamp),
}

impl fmt::Display for Asked {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.write {
            Some(0) => write!(formatter, "trim {}", self.block),
            Some(stamp) => write!(formatter, "write {} to {}", stamp, self.block),
            None => write!(formatter, "read {}", self.block),
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => write!(formatter, "done"),
            Self::Has(stamp) => write!(formatter, "has {stamp}"),
        }
    }
}

/// Blocks, each of which is what was written to it last.
struct Blocks;

impl Specification for Blocks {
    type Command = Asked;
    type Reply = Said;
    type Key = u64;
    type State = Stamp;

    fn initial(&self) -> Stamp {
        0
    }

    fn keys(&self, command: &Asked) -> Vec<u64> {
        vec![command.block]
    }

    fn is_read(&self, command: &Asked) -> bool {
        command.write.is_none()
    }

    fn apply(
        &self,
        state: &Stamp,
        command: &Asked,
        reply: Option<&Said>,
        _: Window,
        successors: &mut Vec<Stamp>,
    ) {
        match (command.write, reply) {
            (Some(stamp), _) => successors.push(stamp),
            (None, Some(Said::Has(stamp))) if stamp != state => {}
            (None, _) => successors.push(*state),
        }
    }
}

/// All that clients did and saw.
#[derive(Default)]
pub(super) struct History {
    operations: Vec<Operation<Asked, Said>>,
}

impl History {
    pub(super) fn add(&mut self, client: usize, asked: Asked, called: u64, returned: Option<(u64, Said)>) {
        if asked.write.is_none() && returned.is_none() {
            return;
        }
        self.operations.push(Operation {
            client: client as u32,
            session: None,
            command: asked,
            called,
            returned: returned.map(|(at, reply)| Returned { at, reply }),
            gone_by: None,
        });
    }

    pub(super) fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether it can be explained; `false` if nobody knows.
    pub(super) fn judge(&self) -> Result<bool, Failure> {
        let mut blocks: BTreeMap<u64, Vec<Operation<Asked, Said>>> = BTreeMap::new();
        for operation in self.told() {
            blocks.entry(operation.command.block).or_default().push(operation);
        }
        let mut is_known = true;
        for (block, operations) in &blocks {
            let is_sound = zones::are_apart(operations);
            if is_sound == Some(true) {
                continue;
            }
            // It says what is wrong, too.
            match check(&Blocks, operations, Limits { steps_max: 2_000_000 }) {
                Verdict::Linearizable => {}
                Verdict::GaveUp { .. } if is_sound.is_none() => is_known = false,
                verdict => return Err(Failure::new(format!("block {block}: {verdict}"))),
            }
        }
        Ok(is_known)
    }

    /// The history, as far as it says anything. A write without an end that nobody has read may as well not have been; one that somebody
    /// has read was there by then. (Each write has its own stamp, so it is known which.)
    fn told(&self) -> Vec<Operation<Asked, Said>> {
        let mut read: BTreeMap<(u64, Stamp), (u64, u64)> = BTreeMap::new();
        for operation in &self.operations {
            if let Some(Returned { at, reply: Said::Has(stamp) }) = operation.returned {
                let (first, last) = read.entry((operation.command.block, stamp)).or_insert((at, at));
                (*first, *last) = (at.min(*first), at.max(*last));
            }
        }
        let told = self.operations.iter().cloned().filter_map(|mut operation| {
            let Asked { block, write } = operation.command;
            let (None, Some(stamp)) = (&operation.returned, write) else { return Some(operation) };
            let (first, last) = *read.get(&(block, stamp))?;
            if stamp > 0 {
                let at = first.max(operation.called);
                operation.returned = Some(Returned { at, reply: Said::Done });
            } else if last < operation.called {
                return None;
            }
            Some(operation)
        });
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_says_of_which_write_it_is() {
        for stamp in [1, 2, 3, 900] {
            let bytes = content(stamp, 7, 2, 512);
            assert_eq!(stamp_of(&bytes[..512], 7), Ok(stamp));
            assert_eq!(stamp_of(&bytes[512..], 8), Ok(stamp));
            assert!(stamp_of(&bytes[512..], 7).is_err(), "another block");
            let mut torn = content(stamp + 3, 7, 1, 512);
            torn[..256].copy_from_slice(&bytes[..256]);
            assert!(stamp_of(&torn, 7).is_err(), "half of one and half of another");
        }
        assert_eq!(stamp_of(&[0; 512], 7), Ok(0));
    }

    #[test]
    fn what_was_replaced_is_not_read_again() {
        let asked = |write| Asked { block: 1, write };
        let mut history = History::default();
        history.add(0, asked(Some(5)), 1, Some((2, Said::Done)));
        history.add(0, asked(Some(6)), 3, None);
        history.add(0, asked(None), 4, Some((5, Said::Has(5))));
        history.add(0, asked(None), 6, Some((7, Said::Has(6))));
        assert_eq!(history.judge(), Ok(true));
        history.add(0, asked(None), 8, Some((9, Said::Has(5))));
        assert!(history.judge().is_err());
    }
}
