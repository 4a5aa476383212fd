//! What goes on besides requests: writing the log, flushing, cleaning the log, zeroing free space.

use ob_core::{DeviceError, DeviceOp};
use ob_format::files::Superblock;

use super::{CardFiles, FlightId, FlushInFlight, Piece, Stage};
use crate::log::{Cleaning, Object};
use crate::map::{NOT_LOGGED, Stretch};
use crate::mount::slot_of;
use crate::plant::{self, Bug};
use crate::tree::Body;
use ob_wire_link::files::FileError;

/// Zeroing operations at the device at once.
const ZEROING_MAX: u32 = 2;
/// Bytes of one zeroing operation.
const ZERO_LEN: u64 = 32 << 20;
/// When so many have failed one after the other, the device is left alone until a write finds no clean segment.
const ZERO_FAILURES_MAX: u32 = 4;

impl CardFiles {
    pub(super) fn upkeep(&mut self) {
        if self.frozen {
            return;
        }
        if std::mem::take(&mut self.log_eased) {
            self.ready.extend(self.waits.log.drain(..));
        }
        self.clean_log();
        if let Some(frame) = self.log.seal() {
            let op = DeviceOp::Write { offset: frame.offset, from: frame.bytes.into(), durable: false };
            self.start_first(Piece::Frame { sequence: frame.sequence }, op);
        }
        if let Some(tail) = self.log.tail_due() {
            let superblock = Superblock { sequence: self.superblock.sequence + 1, tail, ..self.superblock };
            self.write_superblock(superblock);
        }
        self.zero_some();
        if self.flush.is_none() && self.is_flush_due() {
            let spare = std::mem::take(&mut self.waits.spare);
            let flights = std::mem::replace(&mut self.waits.flush, spare);
            let flush =
                FlushInFlight { flights, written: self.log.written(), blank: self.space.take_blank() };
            self.flush = Some(flush);
            self.counts.device_flushes += 1;
            if plant::is_planted(Bug::FlushSkipped) {
                return self.flush_done(Ok(()));
            }
            self.start_first(Piece::Flush, DeviceOp::Flush);
        }
    }

    fn is_flush_due(&self) -> bool {
        let scarce = self.space.clean_count() < self.clean_low();
        let frees =
            self.space.has_waiting() && !self.space.has_free() && self.log.written() > self.log.durable();
        !self.waits.flush.is_empty()
            || self.log.wants_flush()
            || (self.space.has_blank() && self.zeroing == 0)
            || (scarce && frees)
    }

    /// Below so many clean segments more are made.
    fn clean_low(&self) -> u32 {
        let wanted = (self.options.clean_len / self.geometry.segment_len).max(8);
        (wanted.min(u64::from(u32::MAX)) as u32).min(self.space.total() / 4).max(1)
    }

    fn zero_some(&mut self) {
        let most = (ZERO_LEN / self.geometry.segment_len).clamp(1, u64::from(u32::MAX)) as u32;
        while self.zeroing < ZEROING_MAX
            && self.zero_failures < ZERO_FAILURES_MAX
            && self.space.clean_count() < self.clean_low()
            && !self.space.has_blank()
        {
            let Some(stretch) = self.space.next_to_zero(most.min(self.clean_low())) else { return };
            self.zeroing += 1;
            let offset = self.geometry.segment_offset(stretch.start);
            let len = u64::from(stretch.count) * self.geometry.segment_len;
            let len = if plant::is_planted(Bug::SkipZeroing) { 0 } else { len };
            self.start(Piece::Zero(stretch), DeviceOp::WriteZeroes { offset, len });
        }
    }

    pub(super) fn zero_done(&mut self, stretch: Stretch, result: Result<(), DeviceError>) {
        self.zeroing -= 1;
        match result {
            Ok(()) => {
                self.zero_failures = 0;
                self.space.zeroed(stretch);
            }
            // They stay free: the device may fail for a moment only, and those behind them come first now.
            Err(error) => {
                if self.zero_failures == 0 {
                    tracing::warn!(
                        first = stretch.start,
                        count = stretch.count,
                        "free segments cannot be zeroed: {error}"
                    );
                }
                self.zero_failures += 1;
                self.space.free_again(stretch);
                if self.zero_failures >= ZERO_FAILURES_MAX {
                    for id in std::mem::take(&mut self.waits.segments) {
                        self.end_unmapped(id, FileError::Io);
                    }
                }
            }
        }
    }

    /// Lets a write wait for clean segments. A device that was left alone is asked again for it.
    pub(super) fn wait_segments(&mut self, id: FlightId) {
        if self.zero_failures >= ZERO_FAILURES_MAX {
            // Not none: people were told, and would be with every write.
            self.zero_failures = 1;
        }
        self.waits.segments.push_back(id);
    }

    fn write_superblock(&mut self, superblock: Superblock) {
        let Some(mut block) = self.block_pool.take() else { return };
        let mut from = block.split_to(self.geometry.block_len as usize);
        from.fill(0);
        let bytes = superblock.encode();
        from[..bytes.len()].copy_from_slice(&bytes);
        let op = DeviceOp::Write { offset: slot_of(&superblock), from: from.into(), durable: true };
        self.start_first(Piece::Superblock(superblock), op);
    }

    pub(super) fn superblock_done(&mut self, superblock: Superblock, result: Result<(), DeviceError>) {
        match result {
            Ok(()) => {
                self.superblock = superblock;
                self.log.tail_moved(superblock.tail);
                self.log_eased = true;
            }
            Err(error) => self.freeze("the superblock", error),
        }
    }

    pub(super) fn frame_done(&mut self, sequence: u64, result: Result<(), DeviceError>) {
        if let Err(error) = result {
            return self.freeze("the log", error);
        }
        self.counts.frames += 1;
        self.log.frame_written(sequence);
        while self.unheard.pop_front_if(|unheard| unheard.sequence <= sequence).is_some() {}
        self.log_eased = true;
        while let Some((wanted, id)) = self.waits.written.front().copied()
            && wanted <= sequence
        {
            self.waits.written.pop_front();
            self.frame_of_flight_written(id);
        }
    }

    pub(super) fn flush_done(&mut self, result: Result<(), DeviceError>) {
        let Some(mut flush) = self.flush.take() else { return };
        if let Err(error) = result {
            for id in flush.flights {
                self.fail(id, FileError::Io);
            }
            return self.freeze("a flush", error);
        }
        self.log.frames_durable(flush.written);
        self.space.durable(flush.written);
        for stretch in flush.blank {
            self.space.cleaned(stretch);
        }
        self.ready.extend(self.waits.segments.drain(..));
        for id in flush.flights.drain(..) {
            match self.flights.get(id).map(|flight| flight.stage) {
                Some(Stage::Tidying(_)) => self.tidy_flushed(id),
                Some(Stage::Flushing) => self.flushed(id),
                _ => {}
            }
        }
        self.waits.spare = flush.flights;
    }

    /// Writes what counts of the log's oldest section again, as much as should go into this frame.
    fn clean_log(&mut self) {
        if self.log.is_busy() {
            return;
        }
        let mut budget = self.log.cleaning_due(self.tree.live_bytes());
        while budget > 0 {
            match self.log.next_to_clean() {
                Cleaning::Object(object, range) => {
                    budget = budget.saturating_sub(self.log_again(object, &range));
                }
                Cleaning::Emptied => budget = budget.min(self.log.cleaning_due(self.tree.live_bytes())),
                Cleaning::AtHead => return,
            }
        }
    }

    /// Logs an object again if its last record is in the section with these sequences; bytes that took.
    fn log_again(&mut self, object: Object, range: &std::ops::RangeInclusive<u64>) -> usize {
        match object {
            Object::Node(id) => {
                let Some(node) = self.tree.node(id).filter(|node| range.contains(&node.home)) else {
                    return 0;
                };
                if plant::is_planted(Bug::CleanerForgets) && id.0.is_multiple_of(4) {
                    return 0;
                }
                let len = ob_format::files::node_record_len(node.name.len());
                let sequence = self.log.push_node(&node.record(id));
                if let Some(node) = self.tree.node_mut(id) {
                    node.home = sequence;
                }
                len
            }
            Object::Part(id, first) => {
                let Some(Body::File(file)) = self.tree.node(id).map(|node| &node.body) else { return 0 };
                let part = file.map.part(first).filter(|part| part.home != NOT_LOGGED);
                let Some(part) = part.filter(|part| range.contains(&part.home)) else { return 0 };
                let len = ob_format::files::map_record_len(part.runs.len());
                self.log_parts(id, &[first]);
                len
            }
        }
    }

    /// The device does not keep what it is given: nothing is changed any more. What is there can still be read.
    pub(crate) fn freeze(&mut self, what: &str, error: DeviceError) {
        if self.frozen {
            return;
        }
        tracing::error!(
            "{what} could not be written ({error}): files are read-only until the card is started again"
        );
        self.frozen = true;
        self.leave_unsaid();
        let mut stopped: Vec<_> = self.waits.written.drain(..).map(|(_, id)| id).collect();
        stopped.extend(self.waits.log.drain(..).chain(self.waits.segments.drain(..)));
        stopped.append(&mut self.waits.flush);
        for id in stopped {
            let Some(flight) = self.flights.get_mut(id) else { continue };
            flight.error = Some(FileError::ReadOnly);
            // Pieces at the device have its memory: it ends when they are back.
            if flight.transfer_mut().is_none_or(|transfer| transfer.out == 0) {
                self.answer(id);
            }
        }
    }
}
