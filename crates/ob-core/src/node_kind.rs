//! What a node of the card's file system is.

/// What a node of the card's file system is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NodeKind {
    /// It has entries, and no bytes.
    Directory = 1,
    /// It has bytes, and no entries.
    File = 2,
}

impl NodeKind {
    /// Its number, the same on the device and on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The kind that has this number.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Directory),
            2 => Some(Self::File),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_kinds_are_one_to_one() {
        let known: Vec<_> = (0..=u8::MAX).filter_map(NodeKind::from_code).collect();
        assert_eq!(known, [NodeKind::Directory, NodeKind::File]);
        assert!(known.iter().all(|kind| NodeKind::from_code(kind.code()) == Some(*kind)));
    }
}
