//! Administration of volumes: what is asked, what is answered, and the way between.
//!
//! ```text
//!   outboard volume … ─▶ control socket ─▶ Desk ─▶ DeskInbox, on the card's reactor ══ channel of the link ══▶ host: Counter ─▶ TierCore
//!                     ◀──────────────────────────────────────── answer, in parts ◀══════════════════════════════╧═
//! ```
//!
//! Requests and answers are JSON, as on the control socket; the messages that carry them are in `docs/wire/probe.md`.

pub(crate) mod command;
mod counter;
mod desk;
mod talk;

use serde::{Deserialize, Serialize};

pub(super) use counter::{Came, Counter, Defaults, answer_messages, answer_of};
pub(crate) use desk::Desk;
pub(super) use desk::{DeskInbox, desk, is_answer};

/// What can be asked about volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum VolumesRequest {
    /// All volumes.
    List,
    /// One, and its segments.
    Show {
        /// What it is called.
        name: String,
    },
    /// Make one.
    Create(CreateRequest),
    /// Make one larger or smaller.
    Resize {
        /// What it is called.
        name: String,
        /// Bytes that it is to have.
        size: u64,
        /// Whether it may be less than it has.
        shrink: bool,
    },
    /// Have it, and what it has, gone.
    Remove {
        /// What it is called.
        name: String,
        /// Though hosts are connected.
        force: bool,
    },
}

/// A volume that is to be made. What is not said is as the tier's configuration has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateRequest {
    /// What it is called.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block: u32,
    /// How hard it is compressed.
    pub class: ClassName,
    /// Bytes of a segment.
    pub segment: Option<u64>,
    /// Bytes of a chunk.
    pub chunk: Option<u64>,
    /// How many servers have each chunk.
    pub replicas: Option<u8>,
}

/// How hard a volume is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum ClassName {
    /// Not at all
    Plain,
    /// Quickly
    Fast,
    /// As LZ4 does
    Standard,
    /// High compression, when the card has time
    Dense,
}

/// A volume, as people and scripts see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VolumeFacts {
    /// What it is called.
    pub name: String,
    /// Its number, which no other ever has.
    pub id: u64,
    /// The NSID by which this card's initiators know it.
    pub nsid: u32,
    /// Its UUID.
    pub uuid: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block: u32,
    /// How hard it is compressed.
    pub class: ClassName,
    /// Bytes of a segment.
    pub segment: u64,
    /// Bytes of a chunk.
    pub chunk: u32,
    /// How many servers have each chunk.
    pub replicas: u8,
    /// Bytes of blocks that are mapped, in segments that this tier has.
    pub used: u64,
    /// Bytes of their chunks, of one replica each.
    pub stored: u64,
    /// The one by the other, if there is anything.
    pub ratio: Option<f64>,
    /// `good`, `degraded`, `waiting`, `unserved`, `shrinking` or `removing`.
    pub health: String,
    /// What is wrong, if something is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// A segment of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentFacts {
    /// Which.
    pub segment: u32,
    /// The tier that has it, as 16 digits; nothing if none does.
    pub owner: Option<String>,
    /// How often it has changed hands.
    pub epoch: u32,
    /// What the tier that was asked knows, if it is the one that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<OwnSegmentFacts>,
}

/// A segment that the tier has which was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnSegmentFacts {
    /// Milliseconds that are left of the lease.
    pub lease_left_ms: u64,
    /// Why it is not served, if it is not.
    pub trouble: Option<String>,
    /// Chunks that are written to, or being sealed.
    pub open: u64,
    /// Those that stay as they are.
    pub sealed: u64,
    /// Those that are being deleted.
    pub dead: u64,
    /// Chunks with too few replicas.
    pub degraded: u64,
    /// Blocks that were logged since the last checkpoint.
    pub logged_blocks: u64,
    /// Blocks that are mapped.
    pub mapped_blocks: u64,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumesReply {
    /// Volumes.
    Volumes(Vec<VolumeFacts>),
    /// One, and its segments if they were asked for.
    Volume {
        /// It.
        volume: VolumeFacts,
        /// They.
        segments: Vec<SegmentFacts>,
    },
}

impl VolumesReply {
    /// Volumes that it is about.
    pub(super) fn volumes_mut(&mut self) -> &mut [VolumeFacts] {
        match self {
            Self::Volumes(volumes) => volumes,
            Self::Volume { volume, .. } => std::slice::from_mut(volume),
        }
    }
}

/// What is answered, or why nothing was done.
pub(crate) type VolumesAnswer = Result<VolumesReply, String>;

/// A UUID as people write it.
pub(super) fn uuid_text(uuid: &[u8; 16]) -> String {
    let digits = crate::nvme::hex(uuid);
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}
