//! Volumes on the card: commands of an NVMe target on one side, the steps of plans on the other.
//!
//! ```text
//!   Target ─ ForeignEvent ─▶ VolumeFront ─ Arrived ─▶ SplitCard ══ HEADERS ══▶ host
//!          ◀─ foreign_done ─            ◀─ FrontAnswer ─   │ ▲
//!                                                          ▼ │  where, which header, is the reply good
//!                                                     VolumeDialect: a Writer a chunk, records verified before they are believed
//! ```

mod chunk;
mod copy;
mod dialect;
mod front;

pub use dialect::{Patience, VolumeDialect};
pub use front::{VolumeFront, VolumeFrontCounts};
