//! What a target counts, for whoever wants to show it.

use std::ops::AddAssign;

use super::connection::Stall;
use super::io::IoKind;

/// Numbers since the start, and a few of the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetCounts {
    /// Connections now.
    pub connections: u64,
    /// Controllers now, those of the discovery service included.
    pub controllers: u64,
    /// Hosts that they belong to.
    pub hosts: u64,
    /// Namespaces now.
    pub namespaces: u64,
    /// Connections accepted.
    pub accepted: u64,
    /// Connections closed because there were too many: as soon as they came, or for others that came later.
    pub refused: u64,
    /// Connections given up for what their peer sent.
    pub protocol_errors: u64,
    /// Connections given up because their peer was silent or slow.
    pub timeouts: u64,
    /// Fabrics, admin and reservation commands.
    pub control_commands: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Write Zeroes.
    pub write_zeroes: u64,
    /// Dataset Management.
    pub dataset: u64,
    /// Compare, alone or in a pair.
    pub compares: u64,
    /// Verify.
    pub verifies: u64,
    /// Commands that were handed to a service, reads and writes of its namespaces included.
    pub foreign: u64,
    /// Reads that services had made for them.
    pub foreign_reads: u64,
    /// Commands that services have now.
    pub in_service: u64,
    /// Commands that were answered with an error.
    pub failed: u64,
    /// Bytes of data that went to hosts.
    pub bytes_read: u64,
    /// Bytes of data that came from hosts.
    pub bytes_written: u64,
    /// Bytes received from the network.
    pub bytes_received: u64,
    /// Bytes handed to the network.
    pub bytes_sent: u64,
    /// Payload whose digest was wrong.
    pub digest_errors: u64,
    /// Commands now under way, those of connections that are gone included.
    pub in_flight: u64,
    /// Of those: commands whose connection is gone.
    pub orphans: u64,
    /// Commands now waiting for a buffer.
    pub waiting_for_buffer: u64,
    /// Commands now waiting for others on the same range.
    pub waiting_for_range: u64,
    /// Connections now held up: nothing is read from them.
    pub held_up: u64,
    /// How often a connection was held up for want of a buffer for a capsule's data.
    pub hold_ups_for_buffer: u64,
    /// How often because its host had as many commands under way as it may.
    pub hold_ups_for_queue: u64,
    /// How often because its host did not take its answers.
    pub hold_ups_for_unsent: u64,
    /// How often because its Connect waited for what an earlier association left behind.
    pub hold_ups_for_connect: u64,
    /// Commands that had to wait for a buffer, because there was none or because their connection had its share.
    pub waits_for_buffer: u64,
    /// Commands that had to wait for others on the same range.
    pub waits_for_range: u64,
    /// How often one that waits for a buffer was looked at in vain.
    pub buffer_refusals: u64,
    /// How often somebody who asked for a buffer got none, and there were few left for anybody.
    pub buffers_exhausted: u64,
    /// Bytes of buffers.
    pub buffer_memory: u64,
    /// Bytes of buffers that are now in use.
    pub buffer_memory_used: u64,
    /// Connects that had to wait for what an earlier association left behind.
    pub connects_delayed: u64,
    /// How often all commands were looked at for the sake of controllers that were shut down, or whose hosts were preempted.
    pub awaited_looks: u64,
    /// How many commands were looked at for the sake of fused pairs that wait for those on their range.
    pub pair_looks: u64,
    /// Computations that hosts had done to authenticate themselves.
    pub proofs: u64,
    /// Commands now waiting for such a one.
    pub waiting_for_proof: u64,
}

impl TargetCounts {
    /// I/O commands, reservations aside.
    #[must_use]
    pub fn io_commands(&self) -> u64 {
        let Self { reads, writes, flushes, write_zeroes, dataset, compares, verifies, .. } = self;
        reads + writes + flushes + write_zeroes + dataset + compares + verifies
    }

    pub(super) fn count_hold_up(&mut self, stall: Stall) {
        let count = match stall {
            Stall::CapsuleBuffer => &mut self.hold_ups_for_buffer,
            Stall::QueueFull => &mut self.hold_ups_for_queue,
            Stall::Unsent => &mut self.hold_ups_for_unsent,
            Stall::Connecting => &mut self.hold_ups_for_connect,
        };
        *count += 1;
    }

    pub(super) fn count_io(&mut self, kind: IoKind) {
        let count = match kind {
            IoKind::Read => &mut self.reads,
            IoKind::Write => &mut self.writes,
            IoKind::Flush => &mut self.flushes,
            IoKind::WriteZeroes => &mut self.write_zeroes,
            IoKind::Discard | IoKind::Hint => &mut self.dataset,
            IoKind::Compare => &mut self.compares,
            IoKind::Verify => &mut self.verifies,
        };
        *count += 1;
    }
}

/// What several targets count together.
impl AddAssign for TargetCounts {
    fn add_assign(&mut self, other: Self) {
        // A field that is added is not forgotten here: the pattern has to name all of them. A host of two targets counts
        // twice.
        macro_rules! add {
            ($($field:ident),* $(,)?) => {
                let Self { $($field),* } = other;
                $(self.$field += $field;)*
            };
        }
        add!(
            connections,
            controllers,
            hosts,
            namespaces,
            accepted,
            refused,
            protocol_errors,
            timeouts,
            control_commands,
            reads,
            writes,
            flushes,
            write_zeroes,
            dataset,
            compares,
            verifies,
            foreign,
            foreign_reads,
            in_service,
            failed,
            bytes_read,
            bytes_written,
            bytes_received,
            bytes_sent,
            digest_errors,
            in_flight,
            orphans,
            waiting_for_buffer,
            waiting_for_range,
            held_up,
            hold_ups_for_buffer,
            hold_ups_for_queue,
            hold_ups_for_unsent,
            hold_ups_for_connect,
            waits_for_buffer,
            waits_for_range,
            buffer_refusals,
            buffers_exhausted,
            buffer_memory,
            buffer_memory_used,
            connects_delayed,
            awaited_looks,
            pair_looks,
            proofs,
            waiting_for_proof,
        );
    }
}
