//! Zeroing a range of a file: whole segments are given back, what the range covers in part is written with zeros.
//!
//! ```text
//!   Start ─▶ Draining ─ nobody else at it ─▶ edges: zeros, one after the other ─▶ holes: a part of the map a record
//!                                                                                   ─▶ Logged ─▶ answered
//! ```
//!
//! The file is taken for this flight alone, as when it shrinks: nobody is at the segments that are given back, and whoever
//! reads them afterwards comes after the frames that say so.

use std::collections::VecDeque;

use ob_core::{DeviceError, DeviceOp, NodeId};
use ob_wire_link::files::FileError;

use super::data::error_of;
use super::{CardFiles, FlightId, Kind, Outcome, Piece, Stage};
use crate::map::Extent;
use crate::plant::{self, Bug};

/// A range to be zeroed, and how far that has come.
#[derive(Debug)]
pub(super) struct ZeroRange {
    pub(super) file: NodeId,
    offset: u64,
    len: u64,
    edges: VecDeque<Edge>,
    /// Whether the first of the edges is at the device.
    is_out: bool,
    /// Logical segments that are to become a hole.
    holes: std::ops::Range<u32>,
}

/// Bytes of one segment that are written with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edge {
    /// Whole blocks, at this byte of the device.
    Blocks { device: u64, len: u64 },
    /// A part of the block at this byte of the device.
    Part { device: u64, start: u32, end: u32 },
}

impl ZeroRange {
    pub(super) fn new(file: NodeId, offset: u64, len: u64) -> Self {
        Self { file, offset, len, edges: VecDeque::new(), is_out: false, holes: 0..0 }
    }

    /// The bytes of the range that a file of this size has.
    fn within(&self, size: u64) -> Option<(u64, u64)> {
        let end = self.offset.saturating_add(self.len).min(size);
        (self.offset < end).then_some((self.offset, end))
    }
}

impl CardFiles {
    pub(super) fn start_zero(&mut self, id: FlightId) {
        let Some(Kind::Zero(range)) = self.flights.get(id).map(|flight| &flight.kind) else { return };
        let file = range.file;
        if self.frozen {
            return self.fail(id, FileError::ReadOnly);
        }
        if let Err(error) = self.enter_file(id, file) {
            if let Some(error) = error {
                self.answer_after(id, self.log.pending(), Err(error));
            }
            return;
        }
        let Some(Kind::Zero(range)) = self.flights.get(id).map(|flight| &flight.kind) else { return };
        let Ok(found) = self.tree.file(file) else { return };
        let segment_len = self.geometry.segment_len;
        let is_mapped = range.within(found.size).is_some_and(|(start, end)| {
            let (first, last) = ((start / segment_len) as u32, ((end - 1) / segment_len) as u32);
            !matches!(found.map.extent(first), Extent::Hole { count } if count > last - first)
        });
        if is_mapped {
            self.begin_tidying(id, file);
        } else {
            // There are zeros already.
            self.answer_after(id, found.sequence, Ok(Outcome::Done));
        }
    }

    /// Goes on once nobody else is at the file.
    pub(super) fn step_zero(&mut self, id: FlightId) {
        let Some(flight) = self.flights.get(id) else { return };
        let (Kind::Zero(range), stage) = (&flight.kind, flight.stage) else { return };
        let file = range.file;
        if range.is_out {
            return;
        }
        if self.frozen {
            return self.fail(id, FileError::ReadOnly);
        }
        let Ok(found) = self.tree.file(file) else { return self.fail_gone(id) };
        if stage == Stage::Draining {
            if found.in_flight > 1 {
                return;
            }
            if let Err(error) = self.plan_zero(id, file) {
                return self.fail(id, error);
            }
        }
        let Some(Kind::Zero(range)) = self.flights.get(id).map(|flight| &flight.kind) else { return };
        match range.edges.front().copied() {
            Some(edge) => self.zero_edge(id, edge),
            None => self.make_holes(id, file),
        }
    }

    /// Decides what is written with zeros and what becomes a hole. Nothing else changes the file from here on.
    fn plan_zero(&mut self, id: FlightId, file: NodeId) -> Result<(), FileError> {
        let segment_len = self.geometry.segment_len;
        let found = self.tree.file(file)?;
        let Some(flight) = self.flights.get_mut(id) else { return Ok(()) };
        let Kind::Zero(range) = &mut flight.kind else { return Ok(()) };
        flight.stage = Stage::Zeroing;
        let Some((start, end)) = range.within(found.size) else { return Ok(()) };
        let first = start.div_ceil(segment_len);
        // What lies beyond the end means nothing, and need not be kept.
        let last = if end == found.size { end.div_ceil(segment_len) } else { end / segment_len };
        if first < last {
            range.holes = first as u32..last as u32;
        }
        let head_end = end.min(first * segment_len);
        let tail_start = head_end.max(last * segment_len);
        for (start, end) in [(start, head_end), (tail_start, end)] {
            let (logical, within) = ((start / segment_len) as u32, start % segment_len);
            if start < end
                && let Extent::Mapped { physical, .. } = found.map.extent(logical)
            {
                let device = self.geometry.segment_offset(physical) + within;
                push_edges(&mut range.edges, device, end - start, u64::from(self.geometry.block_len));
            }
        }
        // A hole in the middle of a run makes the map longer, and the log may be as full as it can be.
        let holes = &range.holes;
        let splits = holes.start < holes.end
            && holes.start > 0
            && matches!(
                found.map.extent(holes.start - 1),
                Extent::Mapped { count, .. } if count > holes.end - holes.start + 1
            );
        if splits && self.tree.live_bytes() > self.log.live_max() {
            return Err(FileError::NoSpace);
        }
        Ok(())
    }

    fn zero_edge(&mut self, id: FlightId, edge: Edge) {
        let op = match edge {
            Edge::Blocks { device, len } => DeviceOp::WriteZeroes { offset: device, len },
            Edge::Part { device, .. } => {
                let Some(mut bounce) = self.bounce.take() else {
                    self.waits.bounce.push_back(id);
                    return;
                };
                let into = bounce.split_to(self.geometry.block_len as usize);
                DeviceOp::Read { offset: device, into }
            }
        };
        if let Some(Kind::Zero(range)) = self.flights.get_mut(id).map(|flight| &mut flight.kind) {
            range.is_out = true;
        }
        self.start(Piece::Edge { flight: id }, op);
    }

    pub(super) fn edge_done(&mut self, id: FlightId, op: DeviceOp, result: Result<(), DeviceError>) {
        let Some(Kind::Zero(range)) = self.flights.get_mut(id).map(|flight| &mut flight.kind) else { return };
        let (file, edge) = (range.file, range.edges.front().copied());
        range.is_out = false;
        // A file that is gone may come back with a loss of power: nothing more of it is zeroed.
        let is_gone = self.tree.file(file).is_err();
        if result.is_err() || is_gone {
            drop(op);
            self.ready.extend(self.waits.bounce.drain(..));
            return match result {
                Err(error) => self.fail(id, error_of(error)),
                Ok(()) => self.fail_gone(id),
            };
        }
        if let (DeviceOp::Read { offset, into }, Some(Edge::Part { start, end, .. })) = (op, edge) {
            let mut from = into;
            from[start as usize..end as usize].fill(0);
            range.is_out = true;
            let op = DeviceOp::Write { offset, from: from.into(), durable: false };
            return self.start(Piece::Edge { flight: id }, op);
        }
        range.edges.pop_front();
        // A bounce buffer went back when the operation was dropped above.
        self.ready.extend(self.waits.bounce.drain(..));
        self.step_zero(id);
    }

    /// Gives the segments back, a part of the map after the other.
    fn make_holes(&mut self, id: FlightId, file: NodeId) {
        loop {
            let Some(Kind::Zero(range)) = self.flights.get(id).map(|flight| &flight.kind) else { return };
            let holes = range.holes.clone();
            let Ok(found) = self.tree.file(file) else { return self.fail_gone(id) };
            if holes.is_empty() || found.map.end() <= holes.start {
                let sequence = found.sequence;
                return self.answer_after(id, sequence, Ok(Outcome::Done));
            }
            if !self.log.has_room() {
                self.waits.log.push_back(id);
                return;
            }
            let next = if found.map.end() <= holes.end {
                self.cut_from(file, holes.start);
                holes.end
            } else {
                self.punch(file, &holes)
            };
            if let Some(Kind::Zero(range)) = self.flights.get_mut(id).map(|flight| &mut flight.kind) {
                range.holes = next..holes.end;
            }
        }
    }

    /// Makes a hole within one part of the map, and says from which segment on there is more to do.
    fn punch(&mut self, file: NodeId, holes: &std::ops::Range<u32>) -> u32 {
        let punched = self.tree.change_map(file, |map| map.punch(holes.start, holes.end)).unwrap_or_default();
        if punched.freed.is_empty() {
            return punched.next;
        }
        let sequence = self.log_parts(file, &punched.parts);
        if let Ok(found) = self.tree.file_mut(file) {
            found.taken_away = sequence;
        }
        for stretch in punched.freed {
            self.space.unmap(stretch);
            if plant::is_planted(Bug::HoleReusedEarly) {
                self.space.release(0, stretch);
                self.space.durable(self.log.durable());
            } else {
                self.space.release(sequence, stretch);
            }
        }
        // Nobody is at the file, so the frames of what was mapped before are written: nothing needs to be hidden.
        if let Some(fresh) = self.fresh.get_mut(&file) {
            fresh.retain(|entry| entry.logical + entry.count <= holes.start || holes.end <= entry.logical);
        }
        punched.next
    }
}

/// Cuts a range of the device into whole blocks and parts of blocks.
fn push_edges(edges: &mut VecDeque<Edge>, device: u64, len: u64, block: u64) {
    let (mut at, end) = (device, device + len);
    while at < end {
        let within = at % block;
        let whole = (end - at) / block * block;
        if within == 0 && whole > 0 {
            edges.push_back(Edge::Blocks { device: at, len: whole });
            at += whole;
        } else {
            let stop = end.min(at - within + block);
            let (start, until) = (within as u32, (stop - (at - within)) as u32);
            edges.push_back(Edge::Part { device: at - within, start, end: until });
            at = stop;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_cover_every_byte_once() {
        for (device, len) in [(0, 512), (100, 50), (100, 412), (100, 413), (511, 1026), (512, 5 * 512 + 7)] {
            let mut edges = VecDeque::new();
            push_edges(&mut edges, device, len, 512);
            let mut at = device;
            for edge in edges {
                let (start, end) = match edge {
                    Edge::Blocks { device, len } => {
                        assert!(device.is_multiple_of(512) && len.is_multiple_of(512));
                        (device, device + len)
                    }
                    Edge::Part { device, start, end } => {
                        assert!(device.is_multiple_of(512) && end <= 512 && end - start < 512);
                        (device + u64::from(start), device + u64::from(end))
                    }
                };
                assert_eq!(start, at);
                at = end;
            }
            assert_eq!(at, device + len);
        }
    }
}
