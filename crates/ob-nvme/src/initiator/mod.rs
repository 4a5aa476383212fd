//! An initiator: a library for programs that use namespaces of an NVMe/TCP target.
//!
//! ```text
//!   Initiator, Namespace      Session                    Connection
//!   futures, any executor ──▶ association, retries ──▶ one queue's PDUs ──▶ bytes
//!        ▲                     (pure)                   (pure)
//!        └───── driver: one thread, plain sockets, poll ◀──────────────────┘
//! ```

mod connection;
mod discovery;
mod driver;
mod error;
mod executor;
mod handle;
mod namespace;
mod options;
mod payload;
mod session;
mod shared;
mod unflushed;

pub use connection::{Completion, Connection, ConnectionConfig, DEPTH_MAX, Data, Submission};
pub use discovery::discover;
pub use error::{Cause, Error, ProtocolError, Unreachable};
pub use executor::{InOrder, block_on};
pub use handle::{Initiator, RawCommand};
pub use namespace::Namespace;
pub use options::{Options, Reconnect, RetryPolicy, Secrets, random_host_id};
pub use payload::Payload;
pub use session::{Action, Answer, Event, Facts, LinkKey, Queue, Random, Request, RequestId, Session};
