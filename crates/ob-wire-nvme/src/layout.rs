//! The two shapes that most of this crate consists of: a structure with the offsets of a table, and a list of codes.

/// A value that a list of codes does not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{value:#x} is no {what}")]
pub struct UnknownCode {
    /// The list.
    pub what: &'static str,
    /// The value.
    pub value: u32,
}

/// A structure of the specification: the offset before each field and the size after the name are the table's, and
/// the compiler holds the fields to them.
macro_rules! layout {
    ($($(#[$meta:meta])* $name:ident[$size:literal] {
        $($(#[$field_meta:meta])* $offset:literal => $field:ident: $ty:ty),* $(,)?
    })*) => {
        $(
            $(#[$meta])*
            #[derive(
                zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::KnownLayout, zerocopy::Immutable,
                zerocopy::Unaligned, Clone, Copy, Debug, PartialEq, Eq,
            )]
            #[repr(C)]
            pub struct $name { $($(#[$field_meta])* pub $field: $ty),* }
            const _: () = {
                assert!(size_of::<$name>() == $size);
                $(assert!(std::mem::offset_of!($name, $field) == $offset);)*
            };
            impl Default for $name {
                fn default() -> Self {
                    zerocopy::FromZeros::new_zeroed()
                }
            }
        )*
    };
}

/// An enumeration of the specification's codes, with the way back from a number.
macro_rules! codes {
    ($($(#[$meta:meta])* $name:ident: $ty:ty, $what:literal {
        $($(#[$code_meta:meta])* $code:ident = $value:literal),* $(,)?
    })*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            #[repr($ty)]
            pub enum $name { $($(#[$code_meta])* $code = $value),* }
            impl $name {
                /// Every code, in the order of the table.
                pub const ALL: &[Self] = &[$(Self::$code),*];
                /// The number on the wire.
                #[must_use]
                pub const fn code(self) -> $ty {
                    self as $ty
                }
            }
            impl TryFrom<$ty> for $name {
                type Error = $crate::UnknownCode;
                fn try_from(value: $ty) -> Result<Self, $crate::UnknownCode> {
                    match value {
                        $($value => Ok(Self::$code),)*
                        _ => Err($crate::UnknownCode { what: $what, value: value.into() }),
                    }
                }
            }
        )*
    };
}
