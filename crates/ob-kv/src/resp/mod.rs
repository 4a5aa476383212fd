//! RESP, what Redis and its clients say to each other, in versions 2 and 3.

mod reply;
mod request;

pub use reply::{BULK_TAIL, Replies, Version, bulk_head, null};
pub use request::{Arguments, Cut, Cutter, Limits, Request, RequestError};
