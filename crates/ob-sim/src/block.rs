//! What a block may hold, beside whatever serves it: what was written is there, what was flushed survives a loss of power, and no
//! block is torn.

use crate::Failure;

const PAIR: usize = 16;

/// A block of a device, as whoever writes and reads it knows it. Nobody begins a write while another, or a read, is under way.
#[derive(Clone, Debug)]
pub struct Block {
    /// What a read may find; one, unless a write was lost or failed.
    current: Vec<u64>,
    /// What may be found after a loss of power: what is surely durable, and everything since. Whether each was completed
    /// while the card had power.
    versions: Vec<(u64, bool)>,
    /// How many versions came before the first of these.
    forgotten: usize,
    /// Reads under way.
    pub readers: usize,
    /// A write is under way, or nobody knows that it is not.
    pub is_written: bool,
    /// Power was lost, and nothing was written since: what is found next is what survived.
    is_unknown: bool,
}

impl Default for Block {
    /// It is there, and of zeroes.
    fn default() -> Self {
        Self {
            current: vec![0],
            versions: vec![(0, true)],
            forgotten: 0,
            readers: 0,
            is_written: false,
            is_unknown: false,
        }
    }
}

impl Block {
    /// What it holds, if that is certain.
    pub fn known(&self) -> Option<u64> {
        match self.current[..] {
            [stamp] => Some(stamp),
            _ => None,
        }
    }

    /// The newest version that was completed: what a flush that begins now makes durable.
    pub fn completed(&self) -> usize {
        self.forgotten + self.versions.iter().rposition(|(_, completed)| *completed).unwrap_or(0)
    }

    /// This version, or a newer one, survives a loss of power.
    pub fn settle(&mut self, version: usize) {
        let gone = version.saturating_sub(self.forgotten).min(self.versions.len().saturating_sub(1));
        self.versions.drain(..gone);
        self.forgotten += gone;
    }

    /// A write begins.
    pub fn begin(&mut self, stamp: u64) {
        self.is_written = true;
        self.is_unknown = false;
        self.versions.push((stamp, false));
    }

    /// A write, of which nobody knows whether and when it is executed, is over one way or the other.
    pub fn give_up(&mut self, stamp: u64) {
        self.is_written = false;
        self.current.push(stamp);
    }

    /// A write was refused before it did anything.
    pub fn refused(&mut self) {
        self.is_written = false;
        self.versions.pop();
    }

    /// A write is done.
    pub fn written(&mut self, stamp: u64, is_durable: bool) {
        self.is_written = false;
        self.current = vec![stamp];
        let Some(last) = self.versions.last_mut() else { return };
        last.1 = true;
        if is_durable {
            self.settle(self.forgotten + self.versions.len() - 1);
        }
    }

    /// A deallocation is done: the block may be what it was, or zeroes.
    pub fn discarded(&mut self) {
        self.is_written = false;
        self.current.push(0);
    }

    /// A read of the block of this index found these bytes; if it is one with FUA, they are durable.
    ///
    /// # Errors
    /// When they cannot be there.
    pub fn found(&mut self, index: usize, bytes: &[u8], is_durable: bool) -> Result<(), Failure> {
        let stamp = bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first));
        let (pairs, rest) = bytes.as_chunks();
        if !rest.is_empty() || pairs.iter().any(|found| *found != pair(stamp, index)) {
            return Err(Failure::new(format!("block {index} is torn")));
        }
        if !self.current.contains(&stamp) {
            let expected = &self.current;
            return Err(Failure::new(format!("block {index} holds {stamp}, and not one of {expected:?}")));
        }
        self.current = vec![stamp];
        if std::mem::take(&mut self.is_unknown) {
            self.forgotten += self.versions.len() - 1;
            self.versions = vec![(stamp, true)];
        }
        // Of a write that failed, a flush promises nothing.
        let version = self.versions.iter().rposition(|version| *version == (stamp, true));
        if let Some(version) = version.filter(|_| is_durable) {
            self.settle(self.forgotten + version);
        }
        Ok(())
    }

    /// Power is lost: whatever was not surely durable may be there or not.
    pub fn lose_power(&mut self) {
        self.current = self.versions.iter().map(|(stamp, _)| *stamp).collect();
        self.is_unknown = !self.is_written;
        self.versions.iter_mut().for_each(|version| version.1 = false);
    }

    /// What a stamp looks like on blocks; of the stamp 0, zeroes.
    pub fn content(stamp: u64, block: usize, blocks: usize, block_len: usize) -> Vec<u8> {
        let mut content = Vec::with_capacity(blocks * block_len);
        for block in block..block + blocks {
            content.extend_from_slice(&pair(stamp, block).repeat(block_len / PAIR));
        }
        content
    }
}

/// What blocks are made of: the stamp, and which block it is.
fn pair(stamp: u64, block: usize) -> [u8; PAIR] {
    let second = if stamp == 0 { 0 } else { block as u64 };
    (u128::from(stamp) | u128::from(second) << 64).to_le_bytes()
}
