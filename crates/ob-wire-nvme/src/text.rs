//! Text in fixed fields: ASCII padded with spaces, and qualified names ended by a zero.

use std::fmt;
use std::fmt::Write as _;

/// Longest NVMe qualified name in bytes, without the zero that ends it (Base §4.5).
pub const NQN_LEN_MAX: usize = 223;
/// Bytes of a field that holds a qualified name.
pub const NQN_FIELD_LEN: usize = 256;
/// The name of every discovery service (Base §3.1.2.3.1).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// Fills a field with `text` and spaces behind it (Base §1.4.2: ASCII strings are left-justified and padded). What is
/// no printable ASCII becomes a question mark, what does not fit is cut off.
#[must_use]
pub fn padded<const LEN: usize>(text: &str) -> [u8; LEN] {
    let mut field = [b' '; LEN];
    for (byte, character) in field.iter_mut().zip(text.chars()) {
        *byte = if (' '..='~').contains(&character) { character as u8 } else { b'?' };
    }
    field
}

/// The text of a padded field, without its spaces or zeros at the end; bytes that are not printable become question
/// marks, so that a hostile peer cannot write to a terminal.
#[must_use]
pub fn unpadded(field: &[u8]) -> String {
    let text: String = field
        .iter()
        .take_while(|byte| **byte != 0)
        .map(|byte| if (b' '..=b'~').contains(byte) { char::from(*byte) } else { '?' })
        .collect();
    text.trim_end().to_owned()
}

/// What is wrong with a qualified name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    /// Nothing there.
    #[error("the qualified name is empty")]
    Empty,
    /// Longer than 223 bytes, or not ended by a zero.
    #[error("the qualified name is longer than {NQN_LEN_MAX} bytes")]
    TooLong,
    /// Not UTF-8, or with control characters.
    #[error("the qualified name is not printable UTF-8")]
    NotText,
}

/// An NVMe qualified name: 1 to 223 bytes of UTF-8 without control characters (Base §4.5).
///
/// The form "nqn.yyyy-mm.…" is not demanded: a name is compared, byte by byte, and one of another form equals nothing.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nqn(Box<str>);

impl Nqn {
    /// Takes a name from a person or a file.
    pub fn new(name: &str) -> Result<Self, NqnError> {
        if name.is_empty() {
            return Err(NqnError::Empty);
        }
        if name.len() > NQN_LEN_MAX {
            return Err(NqnError::TooLong);
        }
        if name.chars().any(char::is_control) {
            return Err(NqnError::NotText);
        }
        Ok(Self(name.into()))
    }

    /// Takes a name from a field, where a zero ends it.
    pub fn parse(field: &[u8; NQN_FIELD_LEN]) -> Result<Self, NqnError> {
        let end = field.iter().position(|byte| *byte == 0).ok_or(NqnError::TooLong)?;
        let bytes = field.get(..end).unwrap_or_default();
        Self::new(std::str::from_utf8(bytes).map_err(|_| NqnError::NotText)?)
    }

    /// The name of a host that has a number and nothing else: the form for UUIDs (Base §4.5).
    #[must_use]
    pub fn of_host_id(host_id: &[u8; 16]) -> Self {
        let mut name = String::from("nqn.2014-08.org.nvmexpress:uuid:");
        for (index, byte) in host_id.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            // Writing to a string cannot fail.
            let _ = write!(name, "{dash}{byte:02x}");
        }
        Self(name.into())
    }

    /// The discovery service's name.
    #[must_use]
    pub fn discovery() -> Self {
        Self(DISCOVERY_NQN.into())
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the discovery service's well-known name.
    #[must_use]
    pub fn is_discovery(&self) -> bool {
        &*self.0 == DISCOVERY_NQN
    }

    /// The name in a field of its own.
    #[must_use]
    pub fn to_field(&self) -> [u8; NQN_FIELD_LEN] {
        let mut field = [0; NQN_FIELD_LEN];
        for (byte, value) in field.iter_mut().zip(self.0.bytes()) {
            *byte = value;
        }
        field
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, formatter)
    }
}
