//! The hooks of the card: what programs find there, and what they say in return.
//!
//! A storage function ([`STORAGE`], which `ob-pushdown` calls) answers requests that a client has sent for it:
//!
//! ```text
//!   request: scratch, files, first read ─▶ read ─▶ program ──┬─ result ≠ 0: the request fails
//!                                           ▲                ├─ done ≠ 0: the scratch is the answer
//!                                           └────────────────┴─ else: the next read, as the program says
//! ```
//!
//! The five of [`offload`] tell the card about a service's requests.
//!
//! `include/outboard_program.h` says the same to C; a test holds it to these tables.

pub mod offload;
pub mod record;

use self::record::Record;
use crate::world::{Entry, Field, FieldKind, World};

/// All hooks.
pub const ALL: [&World; 6] = [
    &STORAGE,
    &offload::PREDICATE,
    &offload::FUNCTION,
    &offload::CHECK,
    &offload::CACHE,
    &offload::INVALIDATE,
];

/// What lies in scratches: first what others are made of.
pub const RECORDS: &[&Record] = offload::RECORDS;

/// Fuel of a call at most, whatever the hook: about 50 µs of a core, as a unit is a nanosecond of slow instructions. What it is at worst is
/// measured (`docs/bench/bpf.md`).
pub const CALL_FUEL_MAX: u32 = 50_000;

/// Bytes of the scratch of [`STORAGE`]: the query on the way in, the answer on the way out.
pub const STORAGE_SCRATCH_LEN: u32 = 4096;
/// Bytes of one read of [`STORAGE`], at most.
pub const STORAGE_DATA_LEN_MAX: u32 = 128 << 10;

/// A storage function (XRP §4, BPF-oF §4.1): it sees what was read from a file, and answers or asks for the next read. A client sends
/// one request where it would have sent as many as there are steps.
pub const STORAGE: World = World {
    name: "storage",
    entry: Entry::Context,
    fields: &[
        field("data", FieldKind::Data, "what was read"),
        field("data_len", FieldKind::DataLen, "how many bytes of it there are"),
        field(
            "scratch",
            FieldKind::Scratch,
            "the query, and the answer; what is written here stays until the request ends",
        ),
        field("scratch_len", FieldKind::ScratchLen, "how many bytes of it there are"),
        field("file", FieldKind::Number, "which of the request's files was read, counted from 0"),
        field("offset", FieldKind::Number, "where in the file the data begins"),
        field("reads", FieldKind::Number, "how many reads the request has made, this one included"),
        field("done", FieldKind::Result, "not 0: the request is done, and the scratch is its answer"),
        field("next_file", FieldKind::Result, "which of the request's files to read next"),
        field("next_offset", FieldKind::Result, "where in that file"),
        field("next_len", FieldKind::Result, "how many bytes of it"),
    ],
    scratch_len: STORAGE_SCRATCH_LEN,
    data_len_max: STORAGE_DATA_LEN_MAX,
    table_value_len: 0,
    // Each request says which of its client's functions is to answer it.
    is_called_by_name: true,
};

const fn field(name: &'static str, kind: FieldKind, purpose: &'static str) -> Field {
    Field { name, kind, purpose }
}
