//! Storage functions: a vendor's commands on I/O queues (`docs/wire/pushdown.md`).
//!
//! ```text
//!   SubmissionEntry ─▶ Function::parse ─▶ Load, Map, Open, Find, Prepare, Query │ Describe, List, Refusal, Run, Answer │ Unload, …
//!   data ─▶ RequestBody::parse, MapHeader, Extent, ListEntry, Description
//! ```

mod body;
#[cfg(test)]
mod tests;

use zerocopy::little_endian::{U16, U32, U64};

pub use body::{RequestBody, RequestError};

use crate::command::{DataDirection, SubmissionEntry};
use crate::id::{CommandId, NamespaceId};
use crate::status::Status;

/// The opcode of commands without data.
pub const DO: u8 = 0xC0;
/// The opcode of commands that send data.
pub const SEND: u8 = 0xC1;
/// The opcode of commands that get data.
pub const RECEIVE: u8 = 0xC2;
/// The opcode of commands that do both.
pub const EXCHANGE: u8 = 0xC3;

/// The version that this is.
pub const VERSION: u16 = 1;
/// Files of a request at most.
pub const FILES_MAX: usize = 64;
/// Bytes of a scratch.
pub const SCRATCH_LEN: usize = 4096;
/// Bytes of the longest request.
pub const REQUEST_LEN_MAX: usize =
    size_of::<RequestHeader>() + FILES_MAX * size_of::<FileRef>() + SCRATCH_LEN;
/// Bytes of input that [`Function::Run`] has room for.
pub const INPUT_LEN_MAX: usize = 20;
/// The same with an offset.
pub const INPUT_LEN_MAX_WITH_OFFSET: usize = 12;
/// Bytes of the longest name of a card's file.
pub const PATH_LEN_MAX: usize = 1024;
/// Extents of a map at most.
pub const EXTENTS_MAX: usize = 65_536;
/// Reads of the chain, if a request does not say.
pub const READS_DEFAULT: u16 = 64;
/// Bytes of its longest read, if a request does not say.
pub const READ_LEN_DEFAULT: u32 = 16 << 10;

layout! {
    /// What stands before an object.
    LoadHeader[64] {
        /// Its name, then zeros.
        0 => name: [u8; 64],
    }

    /// What stands before the extents of a file.
    MapHeader[40] {
        /// 0, or the file that gets another map.
        0 => file: U64,
        /// The map's version, never 0.
        8 => version: U64,
        /// The client's name for the file.
        16 => identity: U64,
        /// Bytes of the file.
        24 => len: U64,
        /// Extents.
        32 => extents: U32,
        /// Reserved.
        36 => reserved: U32,
    }

    /// Bytes of a file that lie together.
    Extent[24] {
        /// Where in the file.
        0 => at: U64,
        /// Where in the namespace.
        8 => offset: U64,
        /// How many bytes.
        16 => len: U64,
    }

    /// What a request begins with.
    RequestHeader[40] {
        /// The program.
        0 => program: U64,
        /// 0, or a plan.
        8 => plan: U64,
        /// Where the first read begins.
        16 => first_offset: U64,
        /// Its bytes.
        24 => first_len: U32,
        /// Bytes of the longest read; 0: [`READ_LEN_DEFAULT`].
        28 => read_len_max: U32,
        /// Files that follow.
        32 => files: U16,
        /// Which of them is read first.
        34 => first: U16,
        /// Reads at most; 0: [`READS_DEFAULT`].
        36 => reads_max: U16,
        /// Bytes of the scratch that follow.
        38 => scratch_len: U16,
    }

    /// A file of a request.
    FileRef[16] {
        /// Its number.
        0 => file: U64,
        /// The version of its map; 0 of a file by name.
        8 => version: U64,
    }

    /// A program, as a list shows it.
    ListEntry[192] {
        /// The object's name, then zeros.
        0 => object: [u8; 64],
        /// The function's, the same.
        64 => function: [u8; 64],
        /// Instructions.
        128 => instructions: U32,
        /// Accesses that are checked when it runs.
        132 => checks: U32,
        /// Calls.
        136 => calls: U64,
        /// Those that were stopped.
        144 => faults: U64,
        /// Fuel of all of them.
        152 => fuel: U64,
        /// Reserved.
        160 => reserved: [u8; 32],
    }

    /// What a target says of itself.
    Description[64] {
        /// [`VERSION`].
        0 => version: U16,
        /// See [`Description::BY_NAME`].
        2 => flags: U16,
        /// Files of a request.
        4 => files_max: U16,
        /// Reserved.
        6 => reserved: U16,
        /// Bytes of the scratch.
        8 => scratch_len: U32,
        /// Bytes of the longest read.
        12 => read_len_max: U32,
        /// Reads of a request.
        16 => reads_max: U32,
        /// Files of a controller.
        20 => open_max: U32,
        /// Extents of all its files.
        24 => extents_max: U32,
        /// Plans of a controller.
        28 => plans_max: U32,
        /// Queries of a controller that wait.
        32 => queries_max: U32,
        /// Objects of a host.
        36 => objects_max: U32,
        /// Instructions of all its programs.
        40 => instructions_max: U32,
        /// Fuel of a call.
        44 => call_fuel: U32,
        /// Thousandths of a core.
        48 => share: U32,
        /// Reserved.
        52 => reserved_end: [u8; 12],
    }
}

impl Description {
    /// Files can be opened by name.
    pub const BY_NAME: u16 = 1;
}

/// A piece of something that is longer than a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What the client calls the upload.
    pub token: u32,
    /// Where the piece begins.
    pub offset: u32,
    /// Bytes of the whole.
    pub whole: u32,
}

/// A plan to be executed, with what the dwords bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The plan.
    pub plan: u64,
    /// Where the first read begins, if it is not as the plan says.
    pub offset: Option<u64>,
    input: [u8; INPUT_LEN_MAX],
    input_len: u8,
}

impl Run {
    /// A plan with input; `None` if that is too long.
    #[must_use]
    pub fn new(plan: u64, offset: Option<u64>, input: &[u8]) -> Option<Self> {
        let mut bytes = [0; INPUT_LEN_MAX];
        if input.len() > room(offset.is_some()) {
            return None;
        }
        bytes.get_mut(..input.len())?.copy_from_slice(input);
        Some(Self { plan, offset, input: bytes, input_len: input.len() as u8 })
    }

    /// What goes to the beginning of the scratch.
    #[must_use]
    pub fn input(&self) -> &[u8] {
        self.input.get(..usize::from(self.input_len)).unwrap_or_default()
    }
}

/// Bytes of input that there is room for.
const fn room(has_offset: bool) -> usize {
    if has_offset { INPUT_LEN_MAX_WITH_OFFSET } else { INPUT_LEN_MAX }
}

/// What a command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// Takes a piece of an object.
    Load(Piece),
    /// Takes a piece of a file map.
    Map(Piece),
    /// Opens a file by name.
    Open,
    /// Finds a program by name.
    Find,
    /// Keeps a request, to be run often.
    Prepare,
    /// Brings a request for the [`Function::Answer`] of the same token.
    Query(u64),
    /// Tells limits.
    Describe,
    /// Tells programs, from so many on.
    List(u32),
    /// Tells why an upload was refused.
    Refusal(u32),
    /// Executes a plan.
    Run(Run),
    /// Executes the [`Function::Query`] of the same token.
    Answer(u64),
    /// Takes the object of a program out.
    Unload(u64),
    /// Forgets a file.
    Close(u64),
    /// Forgets a plan.
    Forget(u64),
    /// Executes the request that it brings, and wants so many bytes of the scratch.
    Request(u32),
}

const LOAD: u8 = 0x01;
const MAP: u8 = 0x02;
const OPEN: u8 = 0x03;
const FIND: u8 = 0x04;
const PREPARE: u8 = 0x05;
const QUERY: u8 = 0x06;
const DESCRIBE: u8 = 0x11;
const LIST: u8 = 0x12;
const REFUSAL: u8 = 0x13;
const RUN: u8 = 0x14;
const ANSWER: u8 = 0x15;
const UNLOAD: u8 = 0x21;
const CLOSE: u8 = 0x22;
const FORGET: u8 = 0x23;
const REQUEST: u8 = 0x31;

/// The offset is given in [`Function::Run`].
const HAS_OFFSET: u32 = 1 << 13;

/// A command's dwords: 10 to 15, then 2 and 3.
type Dwords = [u32; 8];

impl Function {
    /// The opcode.
    #[must_use]
    pub const fn opcode(&self) -> u8 {
        match self {
            Self::Load(_) | Self::Map(_) | Self::Open | Self::Find | Self::Prepare | Self::Query(_) => SEND,
            Self::Describe | Self::List(_) | Self::Refusal(_) | Self::Run(_) | Self::Answer(_) => RECEIVE,
            Self::Unload(_) | Self::Close(_) | Self::Forget(_) => DO,
            Self::Request(_) => EXCHANGE,
        }
    }

    /// Which way its data goes.
    #[must_use]
    pub const fn direction(&self) -> DataDirection {
        DataDirection::of(self.opcode())
    }

    /// The command, without its data pointer.
    #[must_use]
    pub fn encode(&self, command: CommandId, namespace: NamespaceId) -> SubmissionEntry {
        let [ten, eleven, twelve, thirteen, fourteen, fifteen, two, three] = self.dwords();
        SubmissionEntry {
            dword2: two.into(),
            dword3: three.into(),
            dword10: ten.into(),
            dword11: eleven.into(),
            dword12: twelve.into(),
            dword13: thirteen.into(),
            dword14: fourteen.into(),
            dword15: fifteen.into(),
            ..SubmissionEntry::new(self.opcode(), command, namespace)
        }
    }

    fn dwords(&self) -> Dwords {
        let one = |code: u8, value: u32| [code.into(), value, 0, 0, 0, 0, 0, 0];
        let two = |code: u8, value: u64| [code.into(), value as u32, (value >> 32) as u32, 0, 0, 0, 0, 0];
        let piece =
            |code: u8, piece: &Piece| [code.into(), piece.token, piece.offset, piece.whole, 0, 0, 0, 0];
        match self {
            Self::Load(of) => piece(LOAD, of),
            Self::Map(of) => piece(MAP, of),
            Self::Open => one(OPEN, 0),
            Self::Find => one(FIND, 0),
            Self::Prepare => one(PREPARE, 0),
            Self::Query(token) => two(QUERY, *token),
            Self::Describe => one(DESCRIBE, 0),
            Self::List(first) => one(LIST, *first),
            Self::Refusal(token) => one(REFUSAL, *token),
            Self::Run(run) => run.dwords(),
            Self::Answer(token) => two(ANSWER, *token),
            Self::Unload(program) => two(UNLOAD, *program),
            Self::Close(file) => two(CLOSE, *file),
            Self::Forget(plan) => two(FORGET, *plan),
            Self::Request(len) => one(REQUEST, *len),
        }
    }

    /// Reads a command that has one of the opcodes.
    ///
    /// # Errors
    ///
    /// The status that the command fails with.
    pub fn parse(entry: &SubmissionEntry) -> Result<Self, Status> {
        let dwords: Dwords = [
            entry.dword10,
            entry.dword11,
            entry.dword12,
            entry.dword13,
            entry.dword14,
            entry.dword15,
            entry.dword2,
            entry.dword3,
        ]
        .map(U32::get);
        let invalid = Status::INVALID_FIELD.with_do_not_retry();
        let [ten, one, two, three, ..] = dwords;
        let number = u64::from(one) | u64::from(two) << 32;
        let piece = Piece { token: one, offset: two, whole: three };
        let function = match ten as u8 {
            LOAD => Self::Load(piece),
            MAP => Self::Map(piece),
            OPEN => Self::Open,
            FIND => Self::Find,
            PREPARE => Self::Prepare,
            QUERY => Self::Query(number),
            DESCRIBE => Self::Describe,
            LIST => Self::List(one),
            REFUSAL => Self::Refusal(one),
            RUN => Self::Run(Run::parse(&dwords).ok_or(invalid)?),
            ANSWER => Self::Answer(number),
            UNLOAD => Self::Unload(number),
            CLOSE => Self::Close(number),
            FORGET => Self::Forget(number),
            REQUEST => Self::Request(one),
            _ => return Err(invalid),
        };
        // What is written again as it was read has nothing in it that is reserved.
        let is_plain = function.opcode() == entry.opcode && function.dwords() == dwords;
        is_plain.then_some(function).ok_or(invalid)
    }
}

impl Run {
    fn dwords(&self) -> Dwords {
        let mut dwords = [0; 8];
        let (words, _) = self.input.as_chunks::<4>();
        for (dword, word) in dwords.iter_mut().skip(3).zip(words) {
            *dword = u32::from_le_bytes(*word);
        }
        let mut first = u32::from(RUN) | u32::from(self.input_len) << 8;
        if let Some(offset) = self.offset {
            first |= HAS_OFFSET;
            (dwords[6], dwords[7]) = (offset as u32, (offset >> 32) as u32);
        }
        (dwords[0], dwords[1], dwords[2]) = (first, self.plan as u32, (self.plan >> 32) as u32);
        dwords
    }

    fn parse(dwords: &Dwords) -> Option<Self> {
        let [first, plan, plan_high, .., low, high] = *dwords;
        let has_offset = first & HAS_OFFSET != 0;
        let mut input = [0; INPUT_LEN_MAX];
        let (words, _) = input.as_chunks_mut::<4>();
        for (word, dword) in words.iter_mut().zip(dwords.iter().skip(3)) {
            *word = dword.to_le_bytes();
        }
        let len = (first >> 8 & 0x1F) as usize;
        let input = input.get(..room(has_offset)).and_then(|input| input.get(..len))?;
        let offset = has_offset.then_some(u64::from(low) | u64::from(high) << 32);
        Self::new(u64::from(plan) | u64::from(plan_high) << 32, offset, input)
    }
}

/// A name that ends with its first zero; `None` if it is none or there is something behind.
#[must_use]
pub fn name_of(bytes: &[u8; 64]) -> Option<&str> {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (name, rest) = bytes.split_at_checked(len)?;
    if len == 0 || rest.iter().any(|byte| *byte != 0) {
        return None;
    }
    std::str::from_utf8(name).ok()
}

impl LoadHeader {
    /// The header of an object of this name; `None` if it does not fit: cut off, it would be another object's.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let header = Self { name: name_bytes(name) };
        (name_of(&header.name) == Some(name)).then_some(header)
    }
}

/// A name in its place, cut off where it does not fit.
#[must_use]
pub fn name_bytes(name: &str) -> [u8; 64] {
    let mut bytes = [0; 64];
    let mut end = name.len().min(bytes.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    for (to, from) in bytes.iter_mut().zip(name.as_bytes().iter().take(end)) {
        *to = *from;
    }
    bytes
}
