//! The hooks of offload: what a service tells the card about its requests (DDS Table 1), said by programs.
//!
//! ```text
//!   message ─▶ predicate ─▶ keys ─▶ table ─▶ hits ─▶ function ─┬─▶ reply
//!                                                              └─▶ reads ─▶ check, for each ─▶ reply
//!   the host writes ─▶ cache ─▶ records for the table          the host reads ─▶ invalidate ─▶ keys to forget
//! ```
//!
//! A result other than 0 says that the program does not answer: the service's own function does, or, of a check, the host. What a
//! program says by a list lies in its scratch, and how much of the list there is, in its context. The scratch is not cleared between
//! calls: it belongs to the programs of one service.

use super::field;
use super::record::{Member, MemberKind, Record};
use crate::world::{DATA_LEN_MAX, Entry, Field, FieldKind, World};

/// Bytes of a key at most.
pub const KEY_LEN_MAX: usize = 32;
/// Bytes of what the table keeps for a key, at most.
pub const ITEM_LEN_MAX: usize = 24;
/// Keys of a request that a predicate can list.
pub const PREDICATE_KEYS_MAX: usize = 512;
/// Keys of a request that are looked up, and reads of a request.
pub const HITS_MAX: usize = 64;
/// Bytes of a reply that a function can make.
pub const REPLY_LEN_MAX: usize = 4096;
/// Bytes of a request that a check sees.
pub const REQUEST_LEN_MAX: usize = 4096;
/// Bytes that a check puts before or behind what was read.
pub const HEAD_LEN_MAX: usize = 1024;
/// Records that a call of `cache` can list.
pub const CANDIDATES_MAX: usize = 100;
/// Keys that a call of `invalidate` can list.
pub const INVALIDATED_MAX: usize = 100;
/// Bytes of a message, a request or a read.
const LEN_MAX: u32 = 1 << 20;

/// [`PREDICATE`]'s word for the card.
pub const ROUTE_CARD: u64 = 0;
/// [`PREDICATE`]'s word for the host.
pub const ROUTE_HOST: u64 = 1;
/// [`PREDICATE`]'s words for what a request may change: nothing, its keys, everything.
pub const CHANGES: [u64; 3] = [0, 1, 2];

/// Bytes within the data.
pub const RANGE: Record = Record {
    name: "ob_range",
    purpose: "bytes within the data",
    members: &[
        member("offset", MemberKind::U32, "where they begin"),
        member("len", MemberKind::U32, "how many"),
    ],
};

/// What the table has for a key.
pub const HIT: Record = Record {
    name: "ob_hit",
    purpose: "what the table has for a key",
    members: &[
        member("stamp", MemberKind::U64, "of the request that it is from"),
        member("item_len", MemberKind::U32, "bytes of the item"),
        member("reserved", MemberKind::U32, "0"),
        member("item", MemberKind::Bytes(ITEM_LEN_MAX), "the item, and zeroes"),
    ],
};

/// Bytes of a file, to be read.
pub const READ: Record = Record {
    name: "ob_read",
    purpose: "bytes of a file, to be read",
    members: &[
        member("offset", MemberKind::U64, "where in the file"),
        member("file", MemberKind::U32, "the name that the host has given it"),
        member("len", MemberKind::U32, "how many"),
    ],
};

/// A record for the table.
pub const CANDIDATE: Record = Record {
    name: "ob_candidate",
    purpose: "what the table may hold once the log is settled behind it",
    members: &[
        member("stamp", MemberKind::U64, "of the request that made it"),
        member("key_len", MemberKind::U32, "bytes of the key"),
        member("item_len", MemberKind::U32, "bytes of the item"),
        member("key", MemberKind::Bytes(KEY_LEN_MAX), "the key"),
        member("item", MemberKind::Bytes(ITEM_LEN_MAX), "the item"),
    ],
};

/// A key.
pub const KEY: Record = Record {
    name: "ob_key",
    purpose: "a key",
    members: &[
        member("len", MemberKind::U32, "how many bytes it has"),
        member("reserved", MemberKind::U32, "0"),
        member("bytes", MemberKind::Bytes(KEY_LEN_MAX), "they"),
    ],
};

/// The scratch of [`PREDICATE`].
pub const PREDICATE_SCRATCH: Record = Record {
    name: "ob_predicate_scratch",
    purpose: "the scratch of a predicate",
    members: &[member(
        "keys",
        MemberKind::Records(&RANGE, PREDICATE_KEYS_MAX),
        "the request's keys, for the card",
    )],
};

/// The scratch of [`FUNCTION`].
pub const FUNCTION_SCRATCH: Record = Record {
    name: "ob_function_scratch",
    purpose: "the scratch of a function",
    members: &[
        member("hits", MemberKind::Records(&HIT, HITS_MAX), "for the program, one for each key"),
        member("reads", MemberKind::Records(&READ, HITS_MAX), "for the card, what to read"),
        member("reply", MemberKind::Bytes(REPLY_LEN_MAX), "for the client, if nothing is to be read"),
    ],
};

/// The scratch of [`CHECK`].
pub const CHECK_SCRATCH: Record = Record {
    name: "ob_check_scratch",
    purpose: "the scratch of a check",
    members: &[
        member("hit", MemberKind::Records(&HIT, 1), "for the program, of the key with the read's number"),
        member("reserved", MemberKind::Bytes(24), "nothing"),
        member("request", MemberKind::Bytes(REQUEST_LEN_MAX), "for the program, the request"),
        member("head", MemberKind::Bytes(HEAD_LEN_MAX), "for the client, before what was read"),
        member("tail", MemberKind::Bytes(HEAD_LEN_MAX), "for the client, behind it"),
    ],
};

/// The scratch of [`CACHE`].
pub const CACHE_SCRATCH: Record = Record {
    name: "ob_cache_scratch",
    purpose: "the scratch of a cache function",
    members: &[member(
        "candidates",
        MemberKind::Records(&CANDIDATE, CANDIDATES_MAX),
        "for the card, what was found",
    )],
};

/// The scratch of [`INVALIDATE`].
pub const INVALIDATE_SCRATCH: Record = Record {
    name: "ob_invalidate_scratch",
    purpose: "the scratch of an invalidate function",
    members: &[member(
        "keys",
        MemberKind::Records(&KEY, INVALIDATED_MAX),
        "for the card, what the table forgets",
    )],
};

/// All of them: first what others are made of.
pub(super) const RECORDS: &[&Record] = &[
    &RANGE,
    &HIT,
    &READ,
    &CANDIDATE,
    &KEY,
    &PREDICATE_SCRATCH,
    &FUNCTION_SCRATCH,
    &CHECK_SCRATCH,
    &CACHE_SCRATCH,
    &INVALIDATE_SCRATCH,
];

/// Who answers a request of a message (the paper's *OffPred*). It is called for each request of a message, one after the other.
pub const PREDICATE: World = World {
    name: "predicate",
    entry: Entry::Context,
    fields: &[
        DATA_MESSAGE,
        DATA_LEN,
        field("scratch", FieldKind::Scratch, "a struct ob_predicate_scratch"),
        SCRATCH_LEN,
        field(
            "standing",
            FieldKind::Number,
            "what the host says of the connection; 0: the card may answer nothing on it",
        ),
        field("at", FieldKind::Number, "where in the message the request begins; 0 at first"),
        field("route", FieldKind::Result, "0: the card answers if the table has all keys; 1: the host"),
        field(
            "changes",
            FieldKind::Result,
            "what a request for the host may change: 0 nothing, 1 its keys, 2 anything",
        ),
        field(
            "changes_standing",
            FieldKind::Result,
            "not 0: the standing may be another one after a request for the host",
        ),
        field("id", FieldKind::Result, "what the client knows the reply by, if replies have ids"),
        field("keys", FieldKind::Result, "how many keys are in the scratch"),
        field("len", FieldKind::Result, "bytes of the request; 0: all that follow"),
        field("more", FieldKind::Result, "not 0: another request of the message begins behind it"),
    ],
    scratch_len: PREDICATE_SCRATCH.len() as u32,
    data_len_max: LEN_MAX,
    table_value_len: 0,
    is_called_by_name: false,
};

/// What a request takes whose keys are all in the table (the paper's *OffFunc*).
pub const FUNCTION: World = World {
    name: "function",
    entry: Entry::Context,
    fields: &[
        field("data", FieldKind::Data, "the request"),
        DATA_LEN,
        field("scratch", FieldKind::Scratch, "a struct ob_function_scratch"),
        SCRATCH_LEN,
        field("now", FieldKind::Number, "milliseconds since 1970"),
        field("hits", FieldKind::Number, "how many keys the request has, and hits the scratch"),
        field("reads", FieldKind::Result, "how many reads are in the scratch; 0: the reply is there"),
        field("reply_len", FieldKind::Result, "bytes of the reply"),
        field("to_host", FieldKind::Result, "not 0: the host is to answer"),
    ],
    scratch_len: FUNCTION_SCRATCH.len() as u32,
    data_len_max: LEN_MAX,
    table_value_len: 0,
    is_called_by_name: false,
};

/// Whether what was read is what the table meant, and what the client gets of it. It is called for each read of a request that a
/// function of the same object has planned, in their order, when all are done.
pub const CHECK: World = World {
    name: "check",
    entry: Entry::Context,
    fields: &[
        field("data", FieldKind::Data, "what was read"),
        DATA_LEN,
        field("scratch", FieldKind::Scratch, "a struct ob_check_scratch"),
        SCRATCH_LEN,
        field("request_len", FieldKind::Number, "bytes of the request"),
        field("index", FieldKind::Number, "which read it is, counted from 0"),
        field("reads", FieldKind::Number, "how many reads the request has"),
        field("head_len", FieldKind::Result, "bytes of the head that the client gets first"),
        field("value_offset", FieldKind::Result, "where in the data what it gets then begins"),
        field("value_len", FieldKind::Result, "how many bytes of it"),
        field("tail_len", FieldKind::Result, "bytes of the tail that it gets last"),
    ],
    scratch_len: CHECK_SCRATCH.len() as u32,
    data_len_max: LEN_MAX,
    table_value_len: 0,
    is_called_by_name: false,
};

/// The records in what the host writes to a file (the paper's *Cache*). It is called again for what follows while it says `next`.
pub const CACHE: World = World {
    name: "cache",
    entry: Entry::Context,
    fields: &[
        field("data", FieldKind::Data, "what is written"),
        DATA_LEN,
        field("scratch", FieldKind::Scratch, "a struct ob_cache_scratch"),
        SCRATCH_LEN,
        field(
            "store_low",
            FieldKind::Number,
            "the first eight bytes of the store's id, which no client knows",
        ),
        field("store_high", FieldKind::Number, "the last eight"),
        field("file", FieldKind::Number, "the name that the host has given the file"),
        field("offset", FieldKind::Number, "where in the file the data begins"),
        field("at", FieldKind::Number, "where in the data to go on; 0 at first"),
        field("candidates", FieldKind::Result, "how many there are in the scratch"),
        field("settled_at", FieldKind::Result, "they may be admitted when the log is settled up to here"),
        field("next", FieldKind::Result, "where in the data to go on, beyond `at`; 0: nothing more"),
    ],
    scratch_len: CACHE_SCRATCH.len() as u32,
    data_len_max: DATA_LEN_MAX,
    table_value_len: 0,
    is_called_by_name: false,
};

/// The keys in what the host is about to read from a file, to change it later (the paper's *Invalidate*). It is called again while it
/// says `next`.
pub const INVALIDATE: World = World {
    name: "invalidate",
    entry: Entry::Context,
    fields: &[
        field("scratch", FieldKind::Scratch, "a struct ob_invalidate_scratch"),
        SCRATCH_LEN,
        field("file", FieldKind::Number, "the name that the host has given the file"),
        field("offset", FieldKind::Number, "where in the file the read begins"),
        field("len", FieldKind::Number, "how many bytes are read"),
        field("at", FieldKind::Number, "what `next` was; 0 at first"),
        field("keys", FieldKind::Result, "how many keys are in the scratch"),
        field("next", FieldKind::Result, "more than `at`: there is more; 0: nothing more"),
    ],
    scratch_len: INVALIDATE_SCRATCH.len() as u32,
    data_len_max: 0,
    table_value_len: 0,
    is_called_by_name: false,
};

const DATA_MESSAGE: Field = field("data", FieldKind::Data, "a message of a client");
const DATA_LEN: Field = field("data_len", FieldKind::DataLen, "how many bytes of it there are");
const SCRATCH_LEN: Field = field("scratch_len", FieldKind::ScratchLen, "how many bytes that has");

const fn member(name: &'static str, kind: MemberKind, purpose: &'static str) -> Member {
    Member { name, kind, purpose }
}
