//! `[split]`: the card's port for an application that has the API of split messages.

use std::fmt;

use serde::{Serialize, Serializer};

use super::ByteSize;

/// What an application has of the card.
#[derive(Clone, Debug, Serialize)]
pub struct SplitConfig {
    /// Whether one may have the port. A section `[split]` lets it.
    pub enabled: bool,
    /// What messages of its protocol begin with.
    pub magic: Magic,
    /// Memory of the card for payloads that have come, and for what is made of them.
    pub memory: ByteSize,
}

impl Default for SplitConfig {
    fn default() -> Self {
        Self { enabled: false, magic: Magic(*b"OX"), memory: ByteSize(64 << 20) }
    }
}

/// Two letters that say of which protocol a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Magic(pub [u8; 2]);

impl Magic {
    /// Two capital letters.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes: [u8; 2] = text.as_bytes().try_into().ok()?;
        bytes.iter().all(u8::is_ascii_uppercase).then_some(Self(bytes))
    }
}

impl fmt::Display for Magic {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, second] = self.0.map(char::from);
        write!(formatter, "{first}{second}")
    }
}

impl Serialize for Magic {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
