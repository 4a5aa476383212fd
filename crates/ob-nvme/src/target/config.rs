//! What a target allows: sizes, counts and times, all of them bounds.

use std::time::Duration;

/// Bytes of a transfer that every target takes, and of the largest one where nothing else is said: 32 pages of 4 KiB.
pub const TRANSFER_LEN_MIN: usize = 128 << 10;

/// An opcode of I/O queues that a service answers: see [`super::Target::next_foreign`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignOpcode {
    opcode: u8,
    data_len_max: u32,
}

impl ForeignOpcode {
    /// A vendor's opcode (80h to FFh). Its two lowest bits say which way data goes, and how much it may be is said here; both
    /// ways, what the host sends comes in the capsule. `None` for other opcodes, and for more than [`TRANSFER_LEN_MIN`].
    #[must_use]
    pub const fn new(opcode: u8, data_len_max: u32) -> Option<Self> {
        let is_served = opcode >= 0x80 && data_len_max as usize <= TRANSFER_LEN_MIN;
        if is_served { Some(Self { opcode, data_len_max }) } else { None }
    }

    /// The opcode.
    #[must_use]
    pub const fn opcode(self) -> u8 {
        self.opcode
    }

    /// The most bytes of data.
    #[must_use]
    pub const fn data_len_max(self) -> u32 {
        self.data_len_max
    }
}

/// The bounds of a [`super::Target`].
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// Connections at once. For a further one the oldest is closed of those that anybody could have and that are of the
    /// address with most such; where there are none, it is closed itself. One that says nothing costs less than a kibibyte
    /// here, besides what its socket has in the kernel.
    pub connections_max: usize,
    /// Buffers for the data of capsules, all connections together.
    pub capsule_buffers: usize,
    /// Bytes of the largest transfer of one command, as Identify's MDTS says it: a power of two, else the next smaller one is
    /// meant, and [`TRANSFER_LEN_MIN`] at least. Half of the buffers are so long.
    pub transfer_len_max: usize,
    /// Bytes of buffers for reads and for writes that are asked for by R2T, all connections together.
    pub transfer_memory: usize,
    /// Bytes of those that one connection may have at once.
    pub connection_transfer_max: usize,
    /// Solicited transfers (R2T) that one connection may have under way.
    pub transfers_max: usize,
    /// Bytes of answers, besides payload, that wait to be sent on one connection before nothing more is read from it.
    pub unsent_max: usize,
    /// The same for connections that are no I/O queue; one answer may be [`TRANSFER_LEN_MIN`] more.
    pub control_unsent_max: usize,
    /// Bytes that are taken with one receive from a connection that is no I/O queue.
    pub control_receive_len: usize,
    /// Bytes that are taken from a connection with one receive, besides a payload that goes to its own buffer.
    pub receive_len: usize,
    /// Bytes of one operation of a Write Zeroes or a deallocation, as far as they are whole units by which the namespace gives
    /// space back, and one such unit at least: others on the device are not to wait for more.
    pub zeroes_at_once: u64,
    /// Compare commands (they need two buffers) at once, all connections together.
    pub compares_max: usize,
    /// How long a new connection has for its ICReq.
    pub open_timeout: Duration,
    /// How long it has until its Connect is there, from the begin.
    pub connect_timeout: Duration,
    /// How long a PDU may take from its first byte to its last.
    pub pdu_timeout: Duration,
    /// How long the data that an R2T asked for may take.
    pub data_timeout: Duration,
    /// How long a peer may take nothing of what is to be sent.
    pub send_timeout: Duration,
    /// How long it may take for all that was to be sent at some moment: a byte now and then would otherwise keep buffers
    /// from the others for ever.
    pub drain_timeout: Duration,
    /// How long the second half of a fused pair may follow the first, which keeps a buffer that comparisons need.
    pub fused_timeout: Duration,
    /// How long a connection that is given up may take to hear of it.
    pub close_timeout: Duration,
    /// Opcodes of I/O queues that a service answers; of one that is named twice, the first.
    pub foreign: Vec<ForeignOpcode>,
}

impl TargetConfig {
    /// The largest transfer in pages of 4 KiB, as MDTS has it: the power of two.
    pub(super) fn transfer_shift(&self) -> u8 {
        (self.transfer_len_max.max(TRANSFER_LEN_MIN) >> 12).ilog2() as u8
    }

    /// Bytes of the largest transfer.
    pub(super) fn transfer_len(&self) -> usize {
        4096 << self.transfer_shift()
    }

    /// What is said of an opcode, if a service answers it.
    pub(super) fn foreign(&self, opcode: u8) -> Option<ForeignOpcode> {
        self.foreign.iter().find(|foreign| foreign.opcode == opcode).copied()
    }
}

impl Default for TargetConfig {
    fn default() -> Self {
        Self {
            connections_max: 1024,
            capsule_buffers: 1024,
            transfer_len_max: TRANSFER_LEN_MIN,
            transfer_memory: 64 << 20,
            connection_transfer_max: 4 << 20,
            transfers_max: 64,
            unsent_max: 256 << 10,
            control_unsent_max: 16 << 10,
            control_receive_len: 16 << 10,
            receive_len: 128 << 10,
            zeroes_at_once: 8 << 20,
            compares_max: 32,
            open_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(10),
            pdu_timeout: Duration::from_secs(30),
            data_timeout: Duration::from_secs(30),
            send_timeout: Duration::from_secs(30),
            drain_timeout: Duration::from_secs(120),
            fused_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(2),
            foreign: Vec::new(),
        }
    }
}
