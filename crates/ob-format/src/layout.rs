//! What all formats share.

/// A struct with the layout of a table in the document: its length is checked here, its fields by a test.
macro_rules! layout {
    ($name:ident, $len:expr, { $($field:ident: $ty:ty),* $(,)? }) => {
        #[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq)]
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
pub(crate) use layout;

/// CRC32C of `bytes`, as if the four bytes of the checksum itself, at `at`, were zero.
pub(crate) fn checksum_of(bytes: &[u8], at: usize) -> u32 {
    let (before, rest) = bytes.split_at(at);
    let after = rest.get(4..).unwrap_or_default();
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(before), &[0; 4]), after)
}
