//! Structs with the layout of a document's tables.

/// A struct with the layout of a table in the document: its length is checked here, its fields by a test.
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
        )]
        #[repr(C)]
        pub(crate) struct $name { $($field: $ty),* }
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
