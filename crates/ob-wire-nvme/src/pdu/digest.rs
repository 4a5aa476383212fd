//! Digests: CRC32C, little-endian (TCP §3.3.1.1).

/// Bytes of a digest.
pub const DIGEST_LEN: usize = 4;

/// The digest of bytes that are all there.
#[must_use]
pub fn digest(bytes: &[u8]) -> [u8; DIGEST_LEN] {
    crc32c::crc32c(bytes).to_le_bytes()
}

/// The digest of data that comes in pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataDigest(u32);

impl DataDigest {
    /// Of nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(0)
    }

    /// Takes the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0 = crc32c::crc32c_append(self.0, bytes);
    }

    /// The bytes that follow the data.
    #[must_use]
    pub const fn finish(self) -> [u8; DIGEST_LEN] {
        self.0.to_le_bytes()
    }

    /// Whether the bytes that followed the data are right.
    #[must_use]
    pub fn matches(self, received: &[u8]) -> bool {
        received == self.finish()
    }
}
