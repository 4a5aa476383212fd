//! What programs find around them: the regions of memory, the contexts of hooks, and the helpers of the card.
//!
//! These tables are what the verifier, the interpreter and the compiler go by. A hook is a [`World`]; its owner fills in a call's
//! memory as the world says, and gets the result and what the program wrote.

use crate::isa::Size;

/// Memory that a program can reach. A pointer belongs to one of them, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Region {
    /// What the hook says of the call.
    Context,
    /// What the program is to look at; read only, and of another length in each call.
    Data,
    /// What stays between the calls of a request.
    Scratch,
    /// The frame of a function.
    Stack,
    /// The program's constants.
    ReadOnly,
    /// The program's variables, which begin anew in each call.
    PerCall,
    /// What the last lookup has found; read only. The next lookup puts another value into its place.
    TableValue,
}

impl Region {
    /// What people call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Context => "context",
            Self::Data => "data",
            Self::Scratch => "scratch",
            Self::Stack => "stack",
            Self::ReadOnly => "read-only data",
            Self::PerCall => "per-call data",
            Self::TableValue => "table value",
        }
    }

    /// Whether a program may write to it. Fields of the context say so one by one.
    #[must_use]
    pub const fn is_writable(self) -> bool {
        matches!(self, Self::Scratch | Self::Stack | Self::PerCall)
    }
}

/// What a field of a context is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// A number that the program reads.
    Number,
    /// A number that the program reads and writes; the hook reads it afterwards.
    Result,
    /// The address of the data's first byte.
    Data,
    /// The number of the data's bytes.
    DataLen,
    /// The address of the scratch's first byte.
    Scratch,
    /// The number of the scratch's bytes.
    ScratchLen,
}

/// A field of a context: eight bytes, at an offset that is a multiple of eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// What programs call it.
    pub name: &'static str,
    /// What it is.
    pub kind: FieldKind,
    /// What it is for.
    pub purpose: &'static str,
}

/// Bytes of a field.
pub const FIELD_LEN: usize = Size::B8.bytes();

/// What a helper wants as an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// Any number.
    Number,
    /// The address of bytes to read; the argument behind it is a [`Self::Len`].
    Read,
    /// The address of bytes to write; the argument behind it is a [`Self::Len`].
    Write,
    /// How many bytes there are at the address before it: at most so many, zero included.
    Len {
        /// The most.
        max: u32,
    },
}

/// What a helper gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// A number between these, with a sign.
    Number {
        /// The least.
        min: i64,
        /// The greatest.
        max: i64,
    },
    /// A pointer to the beginning of a table's value, or null.
    TableValueOrNull,
}

/// A helper. Which one it is, is its number in [`Helper::ALL`], counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Helper {
    /// Looks a key up in the card's table.
    TableLookup,
    /// Copies bytes from one place to another. They may overlap.
    Copy,
    /// The CRC32C of bytes, going on from an earlier one.
    Crc32c,
    /// Compares bytes, in the order of `memcmp`.
    Compare,
    /// Reads a number of seven bits a byte, the lowest first (LEB128), as RocksDB and protocol buffers have it.
    Varint,
    /// Tells two numbers to the card's log, now and then.
    Log,
    /// The XXH3 of bytes, of 64 bits and without a seed.
    Xxh3,
}

/// The longest range of bytes that a helper takes.
pub const HELPER_LEN_MAX: u32 = 64 << 10;
/// The longest key of a lookup.
pub const KEY_LEN_MAX: u32 = 32;

/// What is known of a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// What programs call it.
    pub name: &'static str,
    /// What it takes, at most five.
    pub arguments: &'static [Argument],
    /// What it gives.
    pub returns: Returns,
    /// Fuel of a call, besides one for eight bytes of each range.
    pub fuel: u32,
    /// What it does.
    pub purpose: &'static str,
}

impl Helper {
    /// All of them; a helper's number is its place, counted from 1.
    pub const ALL: [Self; 7] =
        [Self::TableLookup, Self::Copy, Self::Crc32c, Self::Compare, Self::Varint, Self::Log, Self::Xxh3];

    /// The helper of a number.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.get(number.checked_sub(1)? as usize).copied()
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u32 {
        Self::ALL.iter().position(|helper| *helper == self).map_or(0, |at| at as u32 + 1)
    }

    /// What is known of it.
    #[must_use]
    pub const fn signature(self) -> Signature {
        use Argument::{Len, Number, Read, Write};
        const BYTES: Argument = Len { max: HELPER_LEN_MAX };
        match self {
            Self::TableLookup => Signature {
                name: "ob_table_lookup",
                arguments: &[Read, Len { max: KEY_LEN_MAX }],
                returns: Returns::TableValueOrNull,
                fuel: 200,
                purpose: "looks up the key of so many bytes; its value, or null",
            },
            Self::Copy => Signature {
                name: "ob_copy",
                arguments: &[Write, BYTES, Read, BYTES],
                returns: Returns::Number { min: 0, max: HELPER_LEN_MAX as i64 },
                fuel: 20,
                purpose: "copies as many bytes as the shorter of both ranges has, which may overlap; how many",
            },
            Self::Crc32c => Signature {
                name: "ob_crc32c",
                arguments: &[Number, Read, BYTES],
                returns: Returns::Number { min: 0, max: u32::MAX as i64 },
                fuel: 20,
                purpose: "the CRC32C of bytes that follow others whose CRC32C is given, or 0",
            },
            Self::Compare => Signature {
                name: "ob_compare",
                arguments: &[Read, BYTES, Read, BYTES],
                returns: Returns::Number { min: -1, max: 1 },
                fuel: 20,
                purpose: "-1, 0 or 1: how two ranges follow each other, byte by byte, the shorter first",
            },
            Self::Varint => Signature {
                name: "ob_varint",
                arguments: &[Read, BYTES, Write, Len { max: 8 }],
                returns: Returns::Number { min: 0, max: 10 },
                fuel: 20,
                purpose: "puts the number that bytes begin with into eight others; how many bytes it has, or 0 if it is none",
            },
            Self::Log => Signature {
                name: "ob_log",
                arguments: &[Number, Number],
                returns: Returns::Number { min: 0, max: 0 },
                fuel: 100,
                purpose: "tells the card's log two numbers; not every time, if it is often",
            },
            Self::Xxh3 => Signature {
                name: "ob_xxh3",
                arguments: &[Read, BYTES],
                returns: Returns::Number { min: i64::MIN, max: i64::MAX },
                fuel: 20,
                purpose: "the XXH3 of bytes: 64 bits, without a seed",
            },
        }
    }
}

/// What a program finds in its registers when it begins. The others are uninitialised, but for `r10`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// `r1` is the address of the context.
    Context,
    /// `r1` is the address of the scratch, and `r2` the number of its bytes. There is no context: this is how other runtimes call
    /// programs, and how test vectors are written.
    Memory,
}

/// A hook, as programs see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// What people call it, and how sections of objects say for which hook they are.
    pub name: &'static str,
    /// What programs find in their registers.
    pub entry: Entry,
    /// The fields of its context, one behind the other.
    pub fields: &'static [Field],
    /// Bytes of the scratch.
    pub scratch_len: u32,
    /// Bytes of the data, at most.
    pub data_len_max: u32,
    /// Bytes of a table's value; 0 where there is no table.
    pub table_value_len: u32,
    /// Whether whoever calls says which program, by its name. Where nobody does, a tenant has one program for the hook.
    pub is_called_by_name: bool,
}

/// Bytes of data in a call, at most, whatever the hook.
pub const DATA_LEN_MAX: u32 = 16 << 20;

impl World {
    /// No hook, but memory of so many bytes and nothing else ([`Entry::Memory`]).
    #[must_use]
    pub const fn raw(scratch_len: u32) -> Self {
        Self {
            name: "raw",
            entry: Entry::Memory,
            fields: &[],
            scratch_len,
            data_len_max: 0,
            table_value_len: 0,
            is_called_by_name: false,
        }
    }

    /// Bytes of the context.
    #[must_use]
    pub const fn context_len(&self) -> usize {
        self.fields.len() * FIELD_LEN
    }

    /// The field at an offset of the context, if one begins there.
    #[must_use]
    pub fn field(&self, offset: usize) -> Option<&'static Field> {
        if offset.is_multiple_of(FIELD_LEN) { self.fields.get(offset / FIELD_LEN) } else { None }
    }

    /// Which word of the context a field is; for constants, as there is no program to be had with a wrong name.
    ///
    /// # Panics
    ///
    /// When there is no such field.
    #[must_use]
    pub const fn word(&self, name: &str) -> usize {
        let mut at = 0;
        while at < self.fields.len() {
            if is_same(self.fields[at].name.as_bytes(), name.as_bytes()) {
                return at;
            }
            at += 1;
        }
        panic!("the hook has no such field");
    }

    /// Whether programs of the hook may call a helper.
    #[must_use]
    pub fn has(&self, helper: Helper) -> bool {
        helper != Helper::TableLookup || self.table_value_len > 0
    }
}

/// Whether two names are the same.
pub(crate) const fn is_same(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}
