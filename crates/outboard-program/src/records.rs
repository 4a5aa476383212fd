//! What lies in the scratches of hooks. Made from the tables of `ob-ebpf`; `OB_BLESS=1 cargo test -p outboard-program --test tables` makes it anew.

/// Bytes within the data.
#[derive(Debug)]
#[repr(C)]
pub struct Range {
    /// Where they begin.
    pub offset: u32,
    /// How many.
    pub len: u32,
}

const _: () = assert!(size_of::<Range>() == 8);

impl Range {
    /// One of zeroes.
    pub const ZEROED: Self = Self { offset: 0, len: 0 };
}

/// What the table has for a key.
#[derive(Debug)]
#[repr(C)]
pub struct Hit {
    /// Of the request that it is from.
    pub stamp: u64,
    /// Bytes of the item.
    pub item_len: u32,
    /// 0.
    pub reserved: u32,
    /// The item, and zeroes.
    pub item: [u8; 24],
}

const _: () = assert!(size_of::<Hit>() == 40);

impl Hit {
    /// One of zeroes.
    pub const ZEROED: Self = Self { stamp: 0, item_len: 0, reserved: 0, item: [0; 24] };
}

/// Bytes of a file, to be read.
#[derive(Debug)]
#[repr(C)]
pub struct Read {
    /// Where in the file.
    pub offset: u64,
    /// The name that the host has given it.
    pub file: u32,
    /// How many.
    pub len: u32,
}

const _: () = assert!(size_of::<Read>() == 16);

impl Read {
    /// One of zeroes.
    pub const ZEROED: Self = Self { offset: 0, file: 0, len: 0 };
}

/// What the table may hold once the log is settled behind it.
#[derive(Debug)]
#[repr(C)]
pub struct Candidate {
    /// Of the request that made it.
    pub stamp: u64,
    /// Bytes of the key.
    pub key_len: u32,
    /// Bytes of the item.
    pub item_len: u32,
    /// The key.
    pub key: [u8; 32],
    /// The item.
    pub item: [u8; 24],
}

const _: () = assert!(size_of::<Candidate>() == 72);

impl Candidate {
    /// One of zeroes.
    pub const ZEROED: Self = Self { stamp: 0, key_len: 0, item_len: 0, key: [0; 32], item: [0; 24] };
}

/// A key.
#[derive(Debug)]
#[repr(C)]
pub struct Key {
    /// How many bytes it has.
    pub len: u32,
    /// 0.
    pub reserved: u32,
    /// They.
    pub bytes: [u8; 32],
}

const _: () = assert!(size_of::<Key>() == 40);

impl Key {
    /// One of zeroes.
    pub const ZEROED: Self = Self { len: 0, reserved: 0, bytes: [0; 32] };
}

/// The scratch of a predicate.
#[derive(Debug)]
#[repr(C)]
pub struct PredicateScratch {
    /// The request's keys, for the card.
    pub keys: [Range; 512],
}

const _: () = assert!(size_of::<PredicateScratch>() == 4096);

impl PredicateScratch {
    /// One of zeroes.
    pub const ZEROED: Self = Self { keys: [Range::ZEROED; 512] };
}

/// The scratch of a function.
#[derive(Debug)]
#[repr(C)]
pub struct FunctionScratch {
    /// For the program, one for each key.
    pub hits: [Hit; 64],
    /// For the card, what to read.
    pub reads: [Read; 64],
    /// For the client, if nothing is to be read.
    pub reply: [u8; 4096],
}

const _: () = assert!(size_of::<FunctionScratch>() == 7680);

impl FunctionScratch {
    /// One of zeroes.
    pub const ZEROED: Self = Self { hits: [Hit::ZEROED; 64], reads: [Read::ZEROED; 64], reply: [0; 4096] };
}

/// The scratch of a check.
#[derive(Debug)]
#[repr(C)]
pub struct CheckScratch {
    /// For the program, of the key with the read's number.
    pub hit: Hit,
    /// Nothing.
    pub reserved: [u8; 24],
    /// For the program, the request.
    pub request: [u8; 4096],
    /// For the client, before what was read.
    pub head: [u8; 1024],
    /// For the client, behind it.
    pub tail: [u8; 1024],
}

const _: () = assert!(size_of::<CheckScratch>() == 6208);

impl CheckScratch {
    /// One of zeroes.
    pub const ZEROED: Self =
        Self { hit: Hit::ZEROED, reserved: [0; 24], request: [0; 4096], head: [0; 1024], tail: [0; 1024] };
}

/// The scratch of a cache function.
#[derive(Debug)]
#[repr(C)]
pub struct CacheScratch {
    /// For the card, what was found.
    pub candidates: [Candidate; 100],
}

const _: () = assert!(size_of::<CacheScratch>() == 7200);

impl CacheScratch {
    /// One of zeroes.
    pub const ZEROED: Self = Self { candidates: [Candidate::ZEROED; 100] };
}

/// The scratch of an invalidate function.
#[derive(Debug)]
#[repr(C)]
pub struct InvalidateScratch {
    /// For the card, what the table forgets.
    pub keys: [Key; 100],
}

const _: () = assert!(size_of::<InvalidateScratch>() == 4000);

impl InvalidateScratch {
    /// One of zeroes.
    pub const ZEROED: Self = Self { keys: [Key::ZEROED; 100] };
}
