//! What needs a file for itself: making it smaller, and tidying up beyond its end before it grows.
//!
//! ```text
//!   Start ─▶ Draining ─ nobody else at it ─▶ Size: flush, if it is not durable ─▶ cut the map
//!                                              ─▶ Block: read, zero, write ─▶ Rest: zeros ─▶ Flush ─▶ Start
//! ```

use ob_core::{DeviceError, DeviceOp, NodeId};
use ob_wire_link::files::FileError;

use super::data::error_of;
use super::{CardFiles, FlightId, Kind, Outcome, Piece, Stage};
use crate::map::Extent;
use crate::plant::{self, Bug};
use crate::replay::has_remains;

/// Which step of tidying comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tidying {
    /// What made the file smaller is being flushed.
    Size,
    /// The block that the end is in is being read and written.
    Block,
    /// The blocks after it are being zeroed.
    Rest,
    /// That is being flushed.
    Flush,
}

impl CardFiles {
    /// Changes a file's size.
    pub(super) fn start_resize(&mut self, id: FlightId) {
        let Some(Kind::Resize { file, size }) = self.flights.get(id).map(|flight| &flight.kind) else {
            return;
        };
        let (file, size) = (*file, *size);
        if self.frozen {
            return self.fail(id, FileError::ReadOnly);
        }
        if size > self.geometry.file_len_max() {
            return self.fail(id, FileError::TooLarge);
        }
        if let Err(error) = self.enter_file(id, file) {
            if let Some(error) = error {
                self.answer_after(id, self.log.pending(), Err(error));
            }
            return;
        }
        if !self.log.has_room() {
            self.waits.log.push_back(id);
            return;
        }
        let Ok(found) = self.tree.file_mut(file) else { return };
        if size == found.size {
            let sequence = found.sequence;
            return self.answer_after(id, sequence, Ok(Outcome::Done));
        }
        if size > found.size && !found.garbage {
            found.size = size;
            let sequence = self.log_node(file);
            return self.answer_after(id, sequence, Ok(Outcome::Done));
        }
        self.begin_tidying(id, file);
    }

    /// Takes the file for this flight alone.
    pub(super) fn begin_tidying(&mut self, id: FlightId, file: NodeId) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        match self.exclusive.get(&file) {
            Some(owner) if *owner != id => {
                // The owner waits for everybody else to leave.
                let pinned = std::mem::take(&mut flight.pinned);
                self.leave_file(id, file, pinned);
                self.waits.file.entry(file).or_default().push_back(id);
                return;
            }
            _ => {}
        }
        flight.stage = Stage::Draining;
        self.exclusive.insert(file, id);
        self.step(id);
    }

    pub(super) fn step_tidy(&mut self, id: FlightId) {
        let Some(flight) = self.flights.get(id) else { return };
        let Some(file) = flight.file() else { return };
        if flight.stage != Stage::Draining {
            // It is at the device, or waits for a flush: that ends it, or moves it on.
            return;
        }
        if let Some(error) = flight.error {
            return self.fail(id, error);
        }
        if self.frozen {
            return self.fail(id, FileError::ReadOnly);
        }
        let Ok(found) = self.tree.file(file) else { return self.fail_gone(id) };
        if found.in_flight > 1 {
            return;
        }
        // There may have been room when it began to wait.
        if !self.log.has_room() {
            self.waits.log.push_back(id);
            return;
        }
        if let Kind::Resize { size, .. } = flight.kind
            && size < found.size
        {
            return self.shrink(id, file, size);
        }
        if plant::is_planted(Bug::TailKept) {
            return self.tidied(id, file);
        }
        // Zeros before the smaller size is durable: a loss of power could bring the larger one back, with zeros in it.
        if found.sequence > self.log.durable() {
            return self.flush_tidying(id, Tidying::Size);
        }
        self.cut_beyond(file);
        self.zero_beyond(id, file);
    }

    fn shrink(&mut self, id: FlightId, file: NodeId, size: u64) {
        let Ok(found) = self.tree.file_mut(file) else { return };
        (found.size, found.visible) = (size, size);
        // Cut and size go into one frame: a file is never seen with its old size and half its segments.
        let name_len = self.tree.node(file).map_or(0, |node| node.name.len());
        self.log.reserve(ob_format::files::CUT_LEN + ob_format::files::node_record_len(name_len));
        self.cut_beyond(file);
        let sequence = self.log_node(file);
        let segment_len = self.geometry.segment_len;
        if let Ok(found) = self.tree.file_mut(file) {
            found.garbage = has_remains(found, segment_len);
            found.taken_away = sequence;
        }
        self.unheard(file, sequence);
        self.answer_after(id, sequence, Ok(Outcome::Done));
    }

    /// Gives back the segments beyond the one that the end is in.
    fn cut_beyond(&mut self, file: NodeId) {
        let Ok(found) = self.tree.file(file) else { return };
        let first = found.size.div_ceil(self.geometry.segment_len) as u32;
        self.cut_from(file, first);
    }

    /// Gives back a file's segments from this one on. Nobody else is at the file.
    pub(super) fn cut_from(&mut self, file: NodeId, first: u32) {
        let Some(Some(freed)) = self.tree.change_map(file, |map| map.cut(first)) else { return };
        let sequence = self.log.push_cut(file, first);
        for stretch in freed {
            self.space.unmap(stretch);
            self.space.release(sequence, stretch);
        }
        if let Ok(found) = self.tree.file_mut(file) {
            (found.sequence, found.taken_away) = (sequence, sequence);
        }
        if let Some(fresh) = self.fresh.get_mut(&file) {
            fresh.retain(|entry| entry.logical < first);
        }
    }

    /// Where on the device the segment lies that a file's end is in, and how far into it the end is.
    fn last_segment(&self, file: NodeId) -> Option<(u64, u64)> {
        let found = self.tree.file(file).ok()?;
        let (logical, within) =
            ((found.size / self.geometry.segment_len) as u32, found.size % self.geometry.segment_len);
        match found.map.extent(logical) {
            Extent::Mapped { physical, .. } if within > 0 => {
                Some((self.geometry.segment_offset(physical), within))
            }
            _ => None,
        }
    }

    fn zero_beyond(&mut self, id: FlightId, file: NodeId) {
        let Some((segment, within)) = self.last_segment(file) else { return self.tidied(id, file) };
        let block = u64::from(self.geometry.block_len);
        if within.is_multiple_of(block) {
            return self.zero_rest(id, file);
        }
        let Some(mut bounce) = self.bounce.take() else {
            self.waits.bounce.push_back(id);
            return;
        };
        let into = bounce.split_to(block as usize);
        self.set_stage(id, Stage::Tidying(Tidying::Block));
        self.start(
            Piece::Tidy { flight: id },
            DeviceOp::Read { offset: segment + within - within % block, into },
        );
    }

    fn zero_rest(&mut self, id: FlightId, file: NodeId) {
        let Some((segment, within)) = self.last_segment(file) else { return self.tidied(id, file) };
        let start = within.next_multiple_of(u64::from(self.geometry.block_len));
        let len = self.geometry.segment_len - start;
        if len == 0 {
            return self.flush_tidying(id, Tidying::Flush);
        }
        self.set_stage(id, Stage::Tidying(Tidying::Rest));
        self.start(Piece::Tidy { flight: id }, DeviceOp::WriteZeroes { offset: segment + start, len });
    }

    fn flush_tidying(&mut self, id: FlightId, step: Tidying) {
        if self.frozen {
            return self.fail(id, FileError::ReadOnly);
        }
        self.set_stage(id, Stage::Tidying(step));
        self.waits.flush.push(id);
    }

    fn set_stage(&mut self, id: FlightId, stage: Stage) {
        if let Some(flight) = self.flights.get_mut(id) {
            flight.stage = stage;
        }
    }

    pub(super) fn tidy_done(&mut self, id: FlightId, op: DeviceOp, result: Result<(), DeviceError>) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        let (stage, file) = (flight.stage, flight.file());
        let Some(file) = file else { return };
        if let Err(error) = result {
            drop(op);
            self.ready.extend(self.waits.bounce.drain(..));
            return self.fail(id, error_of(error));
        }
        match (stage, op) {
            (Stage::Tidying(Tidying::Block), DeviceOp::Read { offset, into }) => {
                let mut from = into;
                // A file that is gone may come back with a loss of power: nothing of it is zeroed.
                let Ok(size) = self.tree.file(file).map(|file| file.size) else {
                    drop(from);
                    self.ready.extend(self.waits.bounce.drain(..));
                    return self.fail_gone(id);
                };
                from[(size % u64::from(self.geometry.block_len)) as usize..].fill(0);
                let op = DeviceOp::Write { offset, from: from.into(), durable: false };
                self.start(Piece::Tidy { flight: id }, op);
            }
            (Stage::Tidying(Tidying::Block), DeviceOp::Write { .. }) => {
                self.ready.extend(self.waits.bounce.drain(..));
                self.zero_rest(id, file);
            }
            (Stage::Tidying(Tidying::Rest), _) => self.flush_tidying(id, Tidying::Flush),
            _ => {}
        }
    }

    /// A flush for tidying is done.
    pub(super) fn tidy_flushed(&mut self, id: FlightId) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        let Some(file) = flight.file() else { return };
        if flight.stage == Stage::Tidying(Tidying::Size) {
            flight.stage = Stage::Draining;
            self.ready.push_back(id);
        } else {
            self.tidied(id, file);
        }
    }

    /// Nothing is left beyond the file's end: the flight begins again, and others may go at the file.
    fn tidied(&mut self, id: FlightId, file: NodeId) {
        if let Ok(found) = self.tree.file_mut(file) {
            found.garbage = false;
        }
        self.end_exclusive(file);
        self.set_stage(id, Stage::Start);
        self.ready.push_front(id);
    }
}
