//! The chunk protocol (`docs/wire/chunk.md`): what a tier's card says to a chunk server, and what it answers.
//!
//! ```text
//!   RequestMessage { tag, Request } ─▶ 64 bytes, payload ─▶ ReplyMessage { tag, Answer::Good(Reply) | Refused }
//!                    messages          header    payloads
//! ```
//!
//! Headers and payloads are decoded apart, so that a payload can stay where no header goes.

mod header;
mod messages;
mod payloads;
mod replies;

#[cfg(test)]
mod doc_tests;
#[cfg(test)]
mod tests;

pub use header::{
    HEADER_LEN, MAGIC, PAYLOAD_MAX, READ_MAX, RECORDS_MAX, REQUESTS_MAX, VERSION, WINDOW_LEN, WireError,
};
pub use messages::{CreateState, Kind, LIST_MAX, Request, RequestMessage};
pub use payloads::{
    CHUNK_LINE_LEN, ChunkLine, HELLO_LEN, HelloPayload, RecordsSummary, WELCOME_LEN, WelcomePayload,
    check_records, decode_chunks, decode_entries, encode_chunks, encode_entries, is_summed, sum_up_records,
};
pub use replies::{Answer, End, EndState, Refusal, ReplicaState, Reply, ReplyMessage};
