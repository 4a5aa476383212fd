//! Data on its way to a controller.

use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes that several commands may share, and that stay until the last of them is answered. Cloning copies nothing.
#[derive(Clone, Default)]
pub struct Payload {
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Payload {
    /// A part of it. What reaches beyond the end is cut off.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Self {
        let end = range.end.saturating_add(self.range.start).min(self.range.end);
        let start = range.start.saturating_add(self.range.start).min(end);
        Self { bytes: Arc::clone(&self.bytes), range: start..end }
    }
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or_default()
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        Self { bytes: Arc::new(bytes), range }
    }
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

impl std::fmt::Debug for Payload {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} bytes", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_never_reach_beyond_the_whole() {
        let whole = Payload::from(vec![0, 1, 2, 3, 4, 5]);
        let middle = whole.part(2..5);
        assert_eq!(middle[..], [2, 3, 4]);
        assert_eq!(middle.part(1..2)[..], [3]);
        assert_eq!(middle.part(1..usize::MAX)[..], [3, 4]);
        assert!(middle.part(usize::MAX..usize::MAX).is_empty());
    }
}
