//! What formats and protocols of our own share: structs with the layout of a document's table, and their checksums.

/// A struct with the layout of a table in a document: its length is checked here, its fields by a test. Who uses it depends on
/// `zerocopy`.
#[macro_export]
macro_rules! layout {
    ($name:ident, $len:expr, { $($field:ident: $ty:ty),* $(,)? }) => {
        #[derive(
            zerocopy::FromBytes,
            zerocopy::IntoBytes,
            zerocopy::KnownLayout,
            zerocopy::Immutable,
            zerocopy::Unaligned,
            Clone,
            Copy,
            Debug,
            PartialEq,
            Eq,
        )]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $ty),* }
        const _: () = assert!(size_of::<$name>() == $len);
        #[cfg(test)]
        impl $name {
            /// Name, offset and length of each field.
            pub(crate) const FIELDS: &[(&str, usize, usize)] =
                &[$((stringify!($field), std::mem::offset_of!($name, $field), size_of::<$ty>())),*];
        }
    };
}

/// CRC32C of `bytes`, as if the four bytes of the checksum itself, at `at`, were zero.
#[must_use]
pub fn checksum_of(bytes: &[u8], at: usize) -> u32 {
    let (before, rest) = bytes.split_at_checked(at).unwrap_or((bytes, &[]));
    let (field, after) = rest.split_at_checked(4).unwrap_or((rest, &[]));
    let zeros = [0; 4];
    let zeros = zeros.get(..field.len()).unwrap_or_default();
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(before), zeros), after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_leaves_itself_out() {
        let whole = crc32c::crc32c(b"head\0\0\0\0tail");
        assert_eq!(checksum_of(b"head\0\0\0\0tail", 4), whole);
        assert_eq!(checksum_of(b"head\x01\x02\x03\x04tail", 4), whole);
        assert_ne!(checksum_of(b"heat\0\0\0\0tail", 4), whole);
        // Bytes that end before it are no reason to fail.
        for end in 0..8 {
            let _ = checksum_of(&b"head\0\0\0\0"[..end], 4);
        }
    }
}
