//! The state of a running card: gathered, served, asked for and shown.
//!
//! ```text
//!   reactor ── publish ──▶ StatusBoard ◀── ask, at most now and then ── HTTP server (its own thread)
//!                                                                          │ /status, /healthz
//!                                                                          ▼
//!                                                        outboard status, load balancers, scripts
//! ```
//!
//! Nothing here runs on its own clock: a card that nobody asks is not woken.

mod board;
mod checks;
mod client;
mod listener;
mod server;
mod show;
mod volumes;

use serde::{Deserialize, Serialize};

pub use board::{
    CardFacts, FilesFacts, Freshness, HostCpu, HostFacts, LinkFacts, NvmeFacts, Snapshot, StatusBoard,
};
pub use checks::{Check, Severity};
pub use client::{StatusError, fetch};
pub use server::StatusServer;
pub use show::show;
pub use volumes::{ChunkServerStatus, VolumesStatus};

use crate::halves::Half;

/// What `/status` answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The whole in one word.
    pub health: Health,
    /// The card's version.
    pub version: String,
    /// The card, which answers.
    pub card: HalfStatus,
    /// The host, as the card sees it.
    pub host: HalfStatus,
    /// What joins them.
    pub link: LinkStatus,
    /// Who answered clients' requests, and why that half.
    pub requests: Vec<RequestCount>,
    /// The card's files.
    pub files: Option<FilesStatus>,
    /// What hosts reach over NVMe/TCP.
    #[serde(default)]
    pub nvme: Option<NvmeStatus>,
    /// The key-value store, where clients reach it through the card.
    #[serde(default)]
    pub kv: Option<KvStatus>,
    /// Volumes, where they are served.
    #[serde(default)]
    pub volumes: Option<VolumesStatus>,
    /// What wants attention.
    pub checks: Vec<Check>,
}

/// The whole in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Nothing wants attention.
    Ok,
    /// Something is missing, and the card serves what it can.
    Degraded,
    /// The card does not serve.
    Failing,
}

/// One half.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HalfStatus {
    /// What it does.
    pub state: HalfState,
    /// Its process.
    pub pid: Option<u32>,
    /// Which life of it this is.
    pub incarnation: Option<u64>,
    /// How long it has been in this state.
    pub uptime_s: Option<f64>,
    /// Processor time since it started.
    pub cpu_us: Option<u64>,
}

/// What a half does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HalfState {
    /// The card, whenever it can answer at all.
    Running,
    /// A host on the link.
    Attached,
    /// No host on the link.
    NotAttached,
}

/// The link, and what it has carried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Its kind.
    pub kind: String,
    /// Where a host attaches.
    pub endpoint: String,
    /// Transfers from host memory.
    pub dma_reads: u64,
    /// Transfers to host memory.
    pub dma_writes: u64,
    /// Bytes of messages and bulk read from host memory.
    pub dma_read_bytes: u64,
    /// Bytes of messages and bulk written to host memory.
    pub dma_written_bytes: u64,
    /// Bytes of pointers and other words, read and written.
    pub dma_word_bytes: u64,
    /// Hosts that are attached and connected.
    pub hosts: usize,
    /// The round trip of the host's last probe through the rings.
    pub probe_ns: Option<u64>,
}

/// How many requests one half answered for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCount {
    /// The service asked.
    pub service: String,
    /// Who answered.
    pub half: Half,
    /// Why that half.
    pub reason: String,
    /// How often.
    pub count: u64,
}

/// The card's files: what they lie on, how much of it is used, and what was done with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesStatus {
    /// The device.
    pub device: String,
    /// Drawn when it was formatted.
    pub uuid: String,
    /// How often it was mounted.
    pub mounts: u64,
    /// The device's block.
    pub block_bytes: u32,
    /// The unit in which files get space.
    pub segment_bytes: u64,
    /// Space for files.
    pub total_bytes: u64,
    /// What no file has of it.
    pub free_bytes: u64,
    /// Files.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// The log of names, sizes and places.
    pub log_bytes: u64,
    /// What a mount would read of it.
    pub log_used_bytes: u64,
    /// What counts in it.
    pub log_live_bytes: u64,
    /// Whether nothing can be changed any more, because the device failed.
    pub read_only: bool,
    /// Reads answered.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes answered.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Requests about names, sizes and space answered.
    pub metadata: u64,
    /// Flushes asked for.
    pub flushes: u64,
    /// Pieces of reads and writes that were copied because they were not aligned.
    pub unaligned: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Frames of the log written.
    pub log_frames: u64,
    /// Flushes of the device.
    pub device_flushes: u64,
}

/// The NVMe/TCP target: who uses it, what was done, and what holds it up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmeStatus {
    /// Where subsystems are served.
    pub address: String,
    /// Where discovery is.
    pub discovery: String,
    /// Namespaces.
    pub namespaces: usize,
    /// Hosts that are connected.
    pub hosts: u64,
    /// Their controllers.
    pub controllers: u64,
    /// Their connections, and those of nobody yet.
    pub connections: u64,
    /// Connections that there can be.
    pub connections_max: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections closed because there were too many.
    pub refused: u64,
    /// Connections given up for what their peer sent.
    pub protocol_errors: u64,
    /// Connections given up because their peer was silent or slow.
    pub timeouts: u64,
    /// Data whose digest was wrong.
    pub digest_errors: u64,
    /// Fabrics, admin and reservation commands.
    pub control_commands: u64,
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Write Zeroes.
    pub write_zeroes: u64,
    /// Dataset Management: discards, and hints.
    pub dataset_managements: u64,
    /// Compare, alone or with a write.
    pub compares: u64,
    /// Verify.
    pub verifies: u64,
    /// Commands answered with an error.
    pub failed: u64,
    /// Bytes received from the network.
    pub received_bytes: u64,
    /// Bytes handed to the network.
    pub sent_bytes: u64,
    /// Commands under way.
    pub in_flight: u64,
    /// Of those: commands whose connection is gone.
    pub orphans: u64,
    /// Commands that wait for a buffer.
    pub waiting_for_buffer: u64,
    /// Commands that wait for others on the same blocks.
    pub waiting_for_range: u64,
    /// Commands that had to wait for a buffer, since the start.
    pub waits_for_buffer: u64,
    /// Commands that had to wait for others on the same blocks, since the start.
    pub waits_for_range: u64,
    /// Connections from which nothing is read for the moment.
    pub held_up: u64,
    /// How often that was so, and why.
    pub hold_ups: NvmeHoldUps,
    /// Connects that had to wait for what an earlier association left behind.
    pub connects_delayed: u64,
    /// Memory for data on its way.
    pub buffer_bytes: u64,
    /// What is in use of it.
    pub buffer_used_bytes: u64,
    /// How often a buffer was wanted and none was left.
    pub buffers_exhausted: u64,
    /// Storage functions, if hosts may bring any.
    #[serde(default)]
    pub functions: Option<FunctionStatus>,
}

/// Storage functions of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionStatus {
    /// Programs that hosts have loaded.
    pub programs: u64,
    /// Files that they have open.
    pub files: u64,
    /// Requests that they have prepared.
    pub plans: u64,
    /// Requests under way.
    pub running: u64,
    /// Requests so far.
    pub requests: u64,
    /// Those that were answered.
    pub answered: u64,
    /// Those that ended because a file had changed.
    pub changed: u64,
    /// Those that their program gave up, or that it was stopped in.
    pub given_up: u64,
    /// Commands of all kinds that failed.
    pub failed: u64,
    /// Reads for programs.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// How often a host had to wait because it had used its share of a core.
    pub over_share: u64,
    /// Files and plans that were closed to make room, because nobody had made use of them for a while.
    #[serde(default)]
    pub displaced: u64,
}

/// The card's half of the key-value store: who uses it, what its table holds, and what became of those that it could not serve.
/// Who answered which requests is told with those of other services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvStatus {
    /// Where clients reach it.
    pub address: String,
    /// Clients' connections.
    pub connections: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections closed because there were too many.
    pub refused: u64,
    /// Connections closed for what their client sent.
    pub protocol_errors: u64,
    /// Connections closed because their long message did not come on, and others waited for its memory.
    pub starved: u64,
    /// Connections closed because all together had too much that was not taken, and they most.
    pub closed_for_memory: u64,
    /// Bytes of replies that wait for clients.
    pub unread_bytes: u64,
    /// Memory for long messages that nobody has.
    pub long_free_bytes: u64,
    /// Requests that were told to try again, because the host was away.
    pub unavailable: u64,
    /// Lives of the host that began.
    pub host_lives: u64,
    /// Hosts that were sent away.
    pub host_refused: u64,
    /// Reads of files for requests that the card answered.
    pub reads: u64,
    /// Memory that the table takes.
    pub table_bytes: u64,
    /// Entries that it could hold.
    pub table_slots: u64,
    /// Entries that it holds.
    pub table_entries: u64,
    /// Keys of which it knows only that they have changed.
    pub table_tombstones: u64,
    /// Entries that were admitted.
    pub table_admitted: u64,
    /// Entries that were refused because a newer request may have changed the key.
    pub table_refused_stale: u64,
    /// Entries that were refused because there was no place.
    pub table_refused_full: u64,
    /// Entries that made room for others.
    pub table_evicted: u64,
    /// Records that the host has written and that were shown to the table.
    pub offered: u64,
    /// Records that the host has attested.
    pub attested: u64,
    /// Records that the host has written and for which there was no room to wait.
    pub dropped: u64,
}

/// How often nothing more was read from a connection for a while, by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NvmeHoldUps {
    /// No buffer was left for its data.
    pub buffer: u64,
    /// Its host had as many commands under way as its queue has entries.
    pub queue_full: u64,
    /// Its host did not take its answers.
    pub unsent: u64,
    /// Its Connect waited for an earlier association's end.
    pub connect: u64,
}
