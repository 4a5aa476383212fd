//! The instructions of RFC 9669: what they are, and how they lie in memory.
//!
//! [`decode`] is the line at which hostile bytes stop: behind it every register exists, every jump lands on an instruction, and nothing
//! is set that has no meaning.

mod code;

use std::fmt;

pub use code::{DecodeError, Decoded, EncodeError, Undecodable, decode, encode};

/// Bytes of a slot. A wide instruction takes two.
pub const SLOT_LEN: usize = 8;
/// Instructions of the longest program.
pub const INSTRUCTIONS_MAX: usize = 16 << 10;

/// One of the eleven registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Register(u8);

impl Register {
    /// Results, of a program and of calls.
    pub const R0: Self = Self(0);
    /// The first argument.
    pub const R1: Self = Self(1);
    /// The second argument.
    pub const R2: Self = Self(2);
    /// The third argument.
    pub const R3: Self = Self(3);
    /// The fourth argument.
    pub const R4: Self = Self(4);
    /// The fifth argument.
    pub const R5: Self = Self(5);
    /// Outlasts calls.
    pub const R6: Self = Self(6);
    /// Outlasts calls.
    pub const R7: Self = Self(7);
    /// Outlasts calls.
    pub const R8: Self = Self(8);
    /// Outlasts calls.
    pub const R9: Self = Self(9);
    /// Behind the last byte of the frame on the stack; cannot be written.
    pub const R10: Self = Self(10);
    /// How many there are.
    pub const COUNT: usize = 11;

    /// The register of a number, if there is one.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < Self::COUNT as u8 { Some(Self(number)) } else { None }
    }

    /// Its number.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// How much of a register an operation works on. With 32 bits the upper half of the result is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Width {
    /// The lower half.
    W32,
    /// All of it.
    W64,
}

impl Width {
    /// How many bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::W32 => 32,
            Self::W64 => 64,
        }
    }
}

/// How many bytes of memory, or of a register, are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Size {
    /// One byte.
    B1,
    /// Two bytes.
    B2,
    /// Four bytes.
    B4,
    /// Eight bytes.
    B8,
}

impl Size {
    /// All of them, the shortest first.
    pub const ALL: [Self; 4] = [Self::B1, Self::B2, Self::B4, Self::B8];

    /// How many bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::B1 => 1,
            Self::B2 => 2,
            Self::B4 => 4,
            Self::B8 => 8,
        }
    }

    /// How many bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.bytes() as u32 * 8
    }
}

/// Where an operation's second operand comes from. An immediate is sign-extended to the operation's width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// From a register.
    Register(Register),
    /// From the instruction.
    Immediate(i32),
}

/// What is computed from two operands (RFC 9669, 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AluOp {
    /// The sum, modulo the width.
    Add,
    /// The difference, modulo the width.
    Sub,
    /// The product, modulo the width.
    Mul,
    /// The quotient of numbers without a sign; 0 if the divisor is 0.
    Div,
    /// The quotient of numbers with a sign, truncated; 0 if the divisor is 0.
    SignedDiv,
    /// The remainder of numbers without a sign; the dividend if the divisor is 0.
    Mod,
    /// The remainder of numbers with a sign, which has the dividend's; the dividend if the divisor is 0.
    SignedMod,
    /// Bits of either.
    Or,
    /// Bits of both.
    And,
    /// Bits of one.
    Xor,
    /// Shifted to the left; how far is taken modulo the width, as in the following two.
    ShiftLeft,
    /// Shifted to the right, with zeroes.
    ShiftRight,
    /// Shifted to the right, with the sign.
    ShiftRightSigned,
}

impl AluOp {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Add,
        Self::Sub,
        Self::Mul,
        Self::Div,
        Self::SignedDiv,
        Self::Mod,
        Self::SignedMod,
        Self::Or,
        Self::And,
        Self::Xor,
        Self::ShiftLeft,
        Self::ShiftRight,
        Self::ShiftRightSigned,
    ];

    /// What it means: the one definition, which the interpreter executes and the verifier and the compiler are tested against.
    #[must_use]
    pub fn apply(self, width: Width, left: u64, right: u64) -> u64 {
        match width {
            Width::W64 => self.apply64(left, right),
            Width::W32 => u64::from(self.apply32(left as u32, right as u32)),
        }
    }

    fn apply64(self, left: u64, right: u64) -> u64 {
        match self {
            Self::Add => left.wrapping_add(right),
            Self::Sub => left.wrapping_sub(right),
            Self::Mul => left.wrapping_mul(right),
            Self::Div => left.checked_div(right).unwrap_or(0),
            Self::SignedDiv => match right as i64 {
                0 => 0,
                right => (left as i64).wrapping_div(right) as u64,
            },
            Self::Mod => left.checked_rem(right).unwrap_or(left),
            Self::SignedMod => match right as i64 {
                0 => left,
                right => (left as i64).wrapping_rem(right) as u64,
            },
            Self::Or => left | right,
            Self::And => left & right,
            Self::Xor => left ^ right,
            Self::ShiftLeft => left.wrapping_shl(right as u32),
            Self::ShiftRight => left.wrapping_shr(right as u32),
            Self::ShiftRightSigned => (left as i64).wrapping_shr(right as u32) as u64,
        }
    }

    fn apply32(self, left: u32, right: u32) -> u32 {
        match self {
            Self::SignedDiv | Self::SignedMod | Self::ShiftRightSigned => {
                // The sign is that of the lower half.
                let (left, right) = (left as i32, right as i32);
                (match self {
                    Self::SignedDiv if right == 0 => 0,
                    Self::SignedDiv => left.wrapping_div(right),
                    Self::SignedMod if right == 0 => left,
                    Self::SignedMod => left.wrapping_rem(right),
                    _ => left.wrapping_shr(right as u32),
                }) as u32
            }
            Self::ShiftLeft => left.wrapping_shl(right),
            Self::ShiftRight => left.wrapping_shr(right),
            // The lower halves of results do not depend on the upper halves of operands, or those are zero.
            _ => self.apply64(left.into(), right.into()) as u32,
        }
    }
}

/// What a branch asks (RFC 9669, 4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Test {
    /// The same.
    Equal,
    /// Not the same.
    NotEqual,
    /// Bits in common.
    AnyBit,
    /// Above, without a sign.
    Above,
    /// Above or the same, without a sign.
    AboveOrEqual,
    /// Below, without a sign.
    Below,
    /// Below or the same, without a sign.
    BelowOrEqual,
    /// Greater, with a sign.
    Greater,
    /// Greater or the same, with a sign.
    GreaterOrEqual,
    /// Less, with a sign.
    Less,
    /// Less or the same, with a sign.
    LessOrEqual,
}

impl Test {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Equal,
        Self::NotEqual,
        Self::AnyBit,
        Self::Above,
        Self::AboveOrEqual,
        Self::Below,
        Self::BelowOrEqual,
        Self::Greater,
        Self::GreaterOrEqual,
        Self::Less,
        Self::LessOrEqual,
    ];

    /// What it means: the one definition.
    #[must_use]
    pub fn holds(self, width: Width, left: u64, right: u64) -> bool {
        let (left, right) = match width {
            Width::W64 => (left, right),
            Width::W32 => (left & u64::from(u32::MAX), right & u64::from(u32::MAX)),
        };
        let signed = |value: u64| match width {
            Width::W64 => value as i64,
            Width::W32 => i64::from(value as u32 as i32),
        };
        match self {
            Self::Equal => left == right,
            Self::NotEqual => left != right,
            Self::AnyBit => left & right != 0,
            Self::Above => left > right,
            Self::AboveOrEqual => left >= right,
            Self::Below => left < right,
            Self::BelowOrEqual => left <= right,
            Self::Greater => signed(left) > signed(right),
            Self::GreaterOrEqual => signed(left) >= signed(right),
            Self::Less => signed(left) < signed(right),
            Self::LessOrEqual => signed(left) <= signed(right),
        }
    }
}

/// What an atomic operation does to a word in memory (RFC 9669, 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// Adds; with `fetch` the register gets what was there before, as in the following three.
    Add {
        /// Whether it does.
        fetch: bool,
    },
    /// Sets bits.
    Or {
        /// Whether the register gets what was there.
        fetch: bool,
    },
    /// Keeps bits.
    And {
        /// Whether the register gets what was there.
        fetch: bool,
    },
    /// Flips bits.
    Xor {
        /// Whether the register gets what was there.
        fetch: bool,
    },
    /// Exchanges the word and the register.
    Exchange,
    /// Puts the register there if `r0` is what is there; `r0` gets what was there.
    CompareExchange,
}

/// How bytes of a register are turned (RFC 9669, 4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// To little-endian: on our machines the upper bits are cut off, and nothing else.
    Little,
    /// To big-endian.
    Big,
    /// The other way round, whatever the machine.
    Swap,
}

impl ByteOrder {
    /// What it means, on a machine that is little-endian.
    #[must_use]
    pub fn apply(self, size: Size, value: u64) -> u64 {
        let cut = match size {
            Size::B8 => value,
            _ => value & ((1 << size.bits()) - 1),
        };
        match self {
            Self::Little => cut,
            Self::Big | Self::Swap => cut.swap_bytes() >> (64 - size.bits()),
        }
    }
}

/// What a wide instruction puts into a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wide {
    /// A number.
    Number(u64),
    /// The address of a byte of the program's read-only data.
    ReadOnly(u32),
    /// The address of a byte of the program's per-call data.
    PerCall(u32),
}

/// What a call goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Callee {
    /// A helper of the card, by its number.
    Helper(u32),
    /// The function that begins with this instruction.
    Local(usize),
}

/// An instruction. Targets are numbers of instructions, counted from the program's first; a wide one counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// `to = to op from`.
    Alu {
        /// How much of the register.
        width: Width,
        /// What.
        op: AluOp,
        /// The first operand, and where the result goes.
        to: Register,
        /// The second operand.
        from: Operand,
    },
    /// `to = -to`.
    Negate {
        /// How much of the register.
        width: Width,
        /// The register.
        to: Register,
    },
    /// `to = from`.
    Move {
        /// How much of the register.
        width: Width,
        /// Where it goes.
        to: Register,
        /// Where it comes from.
        from: Operand,
    },
    /// `to = from`, whose lower bytes are extended by their sign.
    MoveSigned {
        /// How much of the register is written; with 32 bits the upper half becomes zero.
        width: Width,
        /// How many bytes are taken.
        size: Size,
        /// Where it goes.
        to: Register,
        /// Where it comes from.
        from: Register,
    },
    /// Turns the lower bytes of a register round; what is above them becomes zero.
    Bytes {
        /// How.
        order: ByteOrder,
        /// How many bytes; not one.
        size: Size,
        /// The register.
        to: Register,
    },
    /// `to` = 64 bits of the instruction.
    LoadWide {
        /// Where it goes.
        to: Register,
        /// What.
        value: Wide,
    },
    /// `to = *(base + offset)`.
    Load {
        /// How many bytes.
        size: Size,
        /// Whether they are extended by their sign.
        is_signed: bool,
        /// Where they go.
        to: Register,
        /// The address.
        base: Register,
        /// What is added to it.
        offset: i16,
    },
    /// `*(base + offset) = from`.
    Store {
        /// How many bytes.
        size: Size,
        /// The address.
        base: Register,
        /// What is added to it.
        offset: i16,
        /// What is stored.
        from: Operand,
    },
    /// An atomic operation at `base + offset`.
    Atomic {
        /// Four bytes, or eight.
        width: Width,
        /// What.
        op: AtomicOp,
        /// The address.
        base: Register,
        /// What is added to it.
        offset: i16,
        /// The operand, and where the old word goes if that is asked for.
        from: Register,
    },
    /// Goes on elsewhere.
    Jump {
        /// Where.
        target: usize,
    },
    /// Goes on elsewhere if a test holds.
    Branch {
        /// How much of the registers is compared.
        width: Width,
        /// What is asked.
        test: Test,
        /// The first operand.
        left: Register,
        /// The second operand.
        right: Operand,
        /// Where.
        target: usize,
    },
    /// Calls a function with `r1` to `r5`, which are lost, and gets its result in `r0`.
    Call {
        /// Which.
        callee: Callee,
    },
    /// Returns `r0`.
    Exit,
}

impl Instruction {
    /// The register that gets another value, if one does. Calls change more.
    #[must_use]
    pub fn written(&self) -> Option<Register> {
        match *self {
            Self::Alu { to, .. }
            | Self::Negate { to, .. }
            | Self::Move { to, .. }
            | Self::MoveSigned { to, .. }
            | Self::Bytes { to, .. }
            | Self::LoadWide { to, .. }
            | Self::Load { to, .. } => Some(to),
            Self::Atomic { op, from, .. } => match op {
                AtomicOp::CompareExchange => Some(Register::R0),
                AtomicOp::Exchange
                | AtomicOp::Add { fetch: true }
                | AtomicOp::Or { fetch: true }
                | AtomicOp::And { fetch: true }
                | AtomicOp::Xor { fetch: true } => Some(from),
                _ => None,
            },
            Self::Call { .. } => Some(Register::R0),
            Self::Store { .. } | Self::Jump { .. } | Self::Branch { .. } | Self::Exit => None,
        }
    }

    /// Where execution may go on elsewhere.
    #[must_use]
    pub fn target(&self) -> Option<usize> {
        match *self {
            Self::Jump { target } | Self::Branch { target, .. } => Some(target),
            _ => None,
        }
    }

    /// Whether the next instruction may follow.
    #[must_use]
    pub fn falls_through(&self) -> bool {
        !matches!(self, Self::Jump { .. } | Self::Exit)
    }
}
