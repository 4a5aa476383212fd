//! Frames that must arrive once and in order, across a connection that breaks.

use std::collections::VecDeque;

/// Frames kept until the peer has acknowledged them, at most.
const UNACKNOWLEDGED_MAX: usize = 256;
/// An acknowledgement is due after so many frames.
const ACK_EVERY: u64 = 16;

/// Counts and keeps the sequenced frames of one attachment, both ways (`docs/wire/link.md`).
#[derive(Debug, Default)]
pub(crate) struct Sequencer {
    /// Sent and not yet acknowledged, oldest first.
    kept: VecDeque<Vec<u8>>,
    /// How many were ever sent.
    sent: u64,
    received: u64,
    /// How many of those are done with. A message that waits for the application is not, and so holds its sender back.
    taken: u64,
    acknowledged: u64,
}

/// The peer counts frames that were never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadCount;

impl Sequencer {
    /// Whether one more frame may be sent.
    pub(crate) fn has_room(&self) -> bool {
        self.kept.len() < UNACKNOWLEDGED_MAX
    }

    /// Whether the peer asks and asks and never acknowledges the answers.
    pub(crate) fn is_overrun(&self) -> bool {
        self.kept.len() >= 4 * UNACKNOWLEDGED_MAX
    }

    /// Keeps a frame that is being sent.
    pub(crate) fn keep(&mut self, frame: Vec<u8>) {
        self.sent += 1;
        self.kept.push_back(frame);
    }

    /// Counts a frame that arrived.
    pub(crate) fn arrived(&mut self) {
        self.received += 1;
    }

    /// Counts a frame that is done with; the count to acknowledge now, if one is due.
    pub(crate) fn took(&mut self) -> Option<u64> {
        self.taken += 1;
        (self.taken - self.acknowledged >= ACK_EVERY).then(|| {
            self.acknowledged = self.taken;
            self.taken
        })
    }

    /// How many frames arrived, to be told when resuming.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// Whether a peer that received `count` frames can be brought up to date.
    pub(crate) fn may_resume(&self, count: u64) -> bool {
        (self.sent - self.kept.len() as u64..=self.sent).contains(&count)
    }

    /// The peer has received `count` frames.
    pub(crate) fn acknowledge(&mut self, count: u64) -> Result<(), BadCount> {
        if count > self.sent {
            return Err(BadCount);
        }
        // What was received may have been told before, when resuming, and is acknowledged again when it is taken.
        let gone = count.saturating_sub(self.sent - self.kept.len() as u64);
        self.kept.drain(..gone as usize);
        Ok(())
    }

    /// After a cut: what to send again to a peer that received `count` frames.
    pub(crate) fn resume(&mut self, count: u64) -> Result<impl Iterator<Item = &[u8]>, BadCount> {
        self.acknowledge(count)?;
        Ok(self.kept.iter().map(Vec::as_slice))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn impossible_counts_are_refused() {
        let mut sequencer = Sequencer::default();
        sequencer.keep(vec![1]);
        sequencer.keep(vec![2]);
        assert_eq!(sequencer.acknowledge(3), Err(BadCount));
        assert_eq!(sequencer.acknowledge(u64::MAX), Err(BadCount));
        assert_eq!(sequencer.acknowledge(2), Ok(()));
        assert_eq!(sequencer.acknowledge(1), Ok(()), "an old count changes nothing");
        assert_eq!(sequencer.acknowledge(3), Err(BadCount));
    }

    proptest! {
        /// However often the connection breaks, and whatever was lost with it, the other side gets everything once.
        #[test]
        fn nothing_is_lost_or_doubled_by_cuts(script in prop::collection::vec(0u8..4, 1..200)) {
            let (mut ours, mut theirs) = (Sequencer::default(), Sequencer::default());
            let (mut wire, mut delivered, mut next) = (VecDeque::new(), Vec::new(), 0u8);
            for step in script {
                match step {
                    0 if ours.has_room() => {
                        ours.keep(vec![next]);
                        wire.push_back(vec![next]);
                        next = next.wrapping_add(1);
                    }
                    1 | 2 => if let Some(frame) = wire.pop_front() {
                        delivered.push(frame[0]);
                        theirs.arrived();
                        if let Some(count) = theirs.took() {
                            prop_assert_eq!(ours.acknowledge(count), Ok(()));
                        }
                    },
                    _ => {
                        wire.clear();
                        let again = ours.resume(theirs.received()).map_err(|_| TestCaseError::fail("count"))?;
                        wire.extend(again.map(<[u8]>::to_vec));
                    }
                }
            }
            delivered.extend(wire.iter().map(|frame| frame[0]));
            let expected: Vec<u8> = (0..delivered.len()).map(|number| number as u8).collect();
            prop_assert_eq!(delivered, expected);
        }
    }
}
