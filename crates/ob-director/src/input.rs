//! What a client has sent and nobody has looked at, or not finished.
//!
//! A small buffer is everybody's. A message that is longer grows it, with a budget that all connections share, and only as its
//! bytes come: who only says that he will send much takes nothing from anybody.

/// Bytes that a connection's buffer may have without asking.
pub(crate) const SMALL_LEN: usize = 64 << 10;
/// Bytes that it has at first.
const FIRST_LEN: usize = 4 << 10;

/// Bytes that long messages of all connections may take.
#[derive(Debug)]
pub(crate) struct Budget {
    left: usize,
}

impl Budget {
    pub(crate) fn new(len: usize) -> Self {
        Self { left: len }
    }

    pub(crate) fn left(&self) -> usize {
        self.left
    }
}

/// A connection's buffer.
#[derive(Debug, Default)]
pub(crate) struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes that the message at the front needs, as far as that is known.
    needed: usize,
    /// Taken from the budget.
    charged: usize,
}

impl Input {
    pub(crate) fn filled(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    pub(crate) fn is_charged(&self) -> bool {
        self.charged > 0
    }

    /// Bytes that it has taken from the budget.
    pub(crate) fn charged(&self) -> usize {
        self.charged
    }

    /// The message at the front will have so many bytes at least.
    pub(crate) fn needs(&mut self, len: usize) {
        self.needed = len;
    }

    /// Bytes that the message at the front needs beyond those for which it has room, if that is full.
    pub(crate) fn lacks(&self) -> usize {
        let len = self.end - self.start;
        let is_full = len >= SMALL_LEN && len == self.bytes.len();
        if is_full { self.needed.saturating_sub(len) } else { 0 }
    }

    /// Room for more, if there may be more.
    pub(crate) fn room(&mut self, budget: &mut Budget) -> Option<&mut [u8]> {
        let is_short = self.needed.min(SMALL_LEN) > self.bytes.len() - self.start;
        if self.end == self.bytes.len() || is_short {
            self.make_room(budget);
        }
        self.bytes.get_mut(self.end..).filter(|room| !room.is_empty())
    }

    fn make_room(&mut self, budget: &mut Budget) {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let len = self.bytes.len();
        if self.end < len && self.needed <= len {
            return;
        }
        if len < SMALL_LEN {
            self.bytes.resize((len * 2).max(self.needed).clamp(FIRST_LEN, SMALL_LEN), 0);
        } else if self.needed > len && self.end == len {
            // A service may know of the next few bytes only. Asking for so few at a time would be slow.
            let more = (self.needed - len).clamp(SMALL_LEN, len).min(budget.left);
            budget.left -= more;
            self.charged += more;
            self.bytes.resize(len + more, 0);
        }
    }

    pub(crate) fn received(&mut self, count: usize) {
        self.end = (self.end + count).min(self.bytes.len());
    }

    /// The front is done with. What a long message had taken goes back.
    pub(crate) fn consume(&mut self, count: usize, budget: &mut Budget) {
        self.start = (self.start + count).min(self.end);
        self.needed = 0;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        if self.charged > 0 && self.end - self.start <= SMALL_LEN {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            self.bytes.truncate(SMALL_LEN);
            self.bytes.shrink_to(SMALL_LEN);
            self.release(budget);
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self, budget: &mut Budget) {
        self.release(budget);
        *self = Self::default();
    }

    fn release(&mut self, budget: &mut Budget) {
        budget.left += std::mem::take(&mut self.charged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(input: &mut Input, budget: &mut Budget, mut bytes: &[u8]) -> usize {
        let mut taken = 0;
        while let Some(room) = input.room(budget) {
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            input.received(count);
            (bytes, taken) = (&bytes[count..], taken + count);
            if bytes.is_empty() {
                break;
            }
        }
        taken
    }

    #[test]
    fn a_long_message_takes_from_the_budget_as_it_comes_and_gives_it_back() {
        let mut budget = Budget::new(SMALL_LEN);
        let mut input = Input::default();
        assert_eq!(
            push(&mut input, &mut budget, &[1; SMALL_LEN + 1]),
            SMALL_LEN,
            "nobody said that it is longer"
        );
        input.needs(10 << 20);
        assert!(!input.is_charged());
        assert_eq!(push(&mut input, &mut budget, &[2; SMALL_LEN]), SMALL_LEN);
        assert_eq!((budget.left(), input.lacks()), (0, (10 << 20) - 2 * SMALL_LEN));
        let mut other = Input::default();
        push(&mut other, &mut budget, &[3; SMALL_LEN]);
        other.needs(SMALL_LEN + 1);
        assert_eq!(push(&mut other, &mut budget, &[3]), 0);
        input.consume(2 * SMALL_LEN - 1, &mut budget);
        assert_eq!((input.filled(), budget.left()), (&[2][..], SMALL_LEN));
        assert_eq!(push(&mut other, &mut budget, &[3]), 1);
        other.clear(&mut budget);
        assert_eq!((budget.left(), other.filled()), (SMALL_LEN, &[][..]));
    }
}
