//! Reads and writes: from a file's bytes to pieces at the device, and back.
//!
//! ```text
//!   request ─▶ extents ─▶ aligned: the request's own buffer goes to the device      (Direct)
//!                         not:     through a bounce buffer, read first if need be   (Bounced)
//!                         holes:   zeros, without the device
//! ```

use ob_core::{DeviceError, DeviceOp, NodeId};
use ob_format::files::{CUT_LEN, RUNS_MAX, map_record_len, node_record_len};
use ob_memory::{Slice, Source};
use ob_wire_link::files::FileError;

use super::{CardFiles, Durability, FlightId, Fresh, Kind, Outcome, Piece, RangeLock, Stage, Transfer};
use crate::map::Extent;
use crate::plant::{self, Bug};

/// Pieces of one request at the device at once.
const PIECES_MAX: u32 = 32;

/// What to do with the next bytes of a transfer.
enum Next {
    /// They are zero.
    Zeros(u32),
    /// They lie at this byte of the device.
    At { device: u64, len: u32 },
}

impl CardFiles {
    pub(super) fn start_read(&mut self, id: FlightId) {
        let Some(Kind::Read(transfer)) = self.flights.get(id).map(|flight| &flight.kind) else { return };
        let (file, offset, len) = (transfer.file, transfer.offset, transfer.len);
        if let Err(error) = self.enter_file(id, file) {
            if let Some(error) = error {
                self.answer_after(id, self.log.pending(), Err(error));
            }
            return;
        }
        let Ok(found) = self.tree.file(file) else { return };
        if self.frozen && found.taken_away > self.log.written() {
            // Who wanted that was told that it is not so. The bytes are on the device, and found again by the next life.
            return self.fail(id, FileError::ReadOnly);
        }
        let (visible, version) = (found.visible, found.version());
        let len = u64::from(len).min(visible.saturating_sub(offset)) as u32;
        if let Some(flight) = self.flights.get_mut(id) {
            flight.stage = Stage::Data;
            flight.outcome = Some(Outcome::Read { len, version });
            if let Some(transfer) = flight.transfer_mut() {
                transfer.len = len;
            }
        }
        self.move_data(id);
    }

    pub(super) fn start_write(&mut self, id: FlightId) {
        let Some(Kind::Write(transfer)) = self.flights.get(id).map(|flight| &flight.kind) else { return };
        let (file, offset, len) = (transfer.file, transfer.offset, transfer.len);
        if self.frozen {
            self.fail(id, FileError::ReadOnly);
            return;
        }
        if let Err(error) = self.enter_file(id, file) {
            if let Some(error) = error {
                self.answer_after(id, self.log.pending(), Err(error));
            }
            return;
        }
        let end = offset.checked_add(u64::from(len)).filter(|end| *end <= self.geometry.file_len_max());
        let Some(end) = end else { return self.fail(id, FileError::TooLarge) };
        let Ok(found) = self.tree.file(file) else { return };
        if len > 0 && end > found.size && found.garbage {
            self.begin_tidying(id, file);
            return;
        }
        match self.map_holes(id, file, offset, end) {
            Ok(true) => {
                self.choose_durability(id, file, end);
                if let Some(flight) = self.flights.get_mut(id) {
                    flight.stage = Stage::Data;
                }
                self.move_data(id);
            }
            Ok(false) => {}
            Err(error) => self.end_unmapped(id, error),
        }
    }

    /// Ends a write that does not get the segments it needs.
    pub(super) fn end_unmapped(&mut self, id: FlightId, error: FileError) {
        // What others wait for must not be kept until the answer is given, and what was mapped must be logged.
        self.space.forget_promise(self.promised(id));
        self.set_promised(id, 0);
        if let Some(file) = self.flights.get(id).and_then(super::Flight::file) {
            self.log_dirty(file);
        }
        self.answer_after(id, self.log.pending(), Err(error));
    }

    /// Decides what makes a write durable. One that changes what the log says of the file waits for a frame and a flush behind
    /// it in any case, so its pieces need not be made durable as well. Nothing but time depends on whether that was guessed right:
    /// a write whose pieces are not durable waits for a flush of its own, whatever has become of the file meanwhile.
    fn choose_durability(&mut self, id: FlightId, file: NodeId, end: u64) {
        let durable = self.log.durable();
        let awaits_flush = self
            .tree
            .file(file)
            .is_ok_and(|found| end > found.size || found.map.is_dirty() || found.sequence > durable);
        if let Some(transfer) = self.flights.get_mut(id).and_then(super::Flight::transfer_mut)
            && transfer.durability == Durability::Pieces
            && awaits_flush
        {
            transfer.durability = Durability::Flush;
        }
    }

    /// Lets a flight at a file's data, or says why not; no error means that it waits.
    pub(super) fn enter_file(&mut self, id: FlightId, file: NodeId) -> Result<(), Option<FileError>> {
        let found = self.tree.file_mut(file).map_err(Some)?;
        let Some(flight) = self.flights.get_mut(id).filter(|flight| !flight.pinned) else { return Ok(()) };
        // Who is in already is waited for, so it must be let on.
        if self.exclusive.get(&file).is_some_and(|owner| *owner != id) {
            self.waits.file.entry(file).or_default().push_back(id);
            return Err(None);
        }
        flight.pinned = true;
        found.in_flight += 1;
        Ok(())
    }

    /// A flight is done with a file's data.
    pub(super) fn leave_file(&mut self, id: FlightId, file: NodeId, pinned: bool) {
        if pinned {
            if let Ok(found) = self.tree.file_mut(file) {
                found.in_flight -= 1;
                if found.in_flight == 1
                    && let Some(owner) = self.exclusive.get(&file)
                {
                    self.ready.push_back(*owner);
                }
            } else if let Some(ghost) = self.ghosts.get_mut(&file) {
                ghost.in_flight -= 1;
                if ghost.in_flight == 0
                    && let Some(ghost) = self.ghosts.remove(&file)
                {
                    for stretch in ghost.stretches {
                        self.space.release(ghost.sequence, stretch);
                    }
                    // The frame may be durable already, and then no flush will come for it.
                    self.space.durable(self.log.durable());
                }
            }
        }
        if self.exclusive.get(&file) == Some(&id) {
            self.end_exclusive(file);
        }
    }

    /// Others may go at the file again.
    pub(super) fn end_exclusive(&mut self, file: NodeId) {
        self.exclusive.remove(&file);
        if let Some(waiting) = self.waits.file.remove(&file) {
            self.ready.extend(waiting);
        }
    }

    /// Gives segments to the holes that a write will fill. `false` if it must wait.
    fn map_holes(&mut self, id: FlightId, file: NodeId, offset: u64, end: u64) -> Result<bool, FileError> {
        if offset == end {
            return Ok(true);
        }
        let segment_len = self.geometry.segment_len;
        let (first, last) = ((offset / segment_len) as u32, ((end - 1) / segment_len) as u32);
        let wanted = self.count_holes(file, first, last);
        let grows = self.tree.file(file).is_ok_and(|file| end > file.size);
        if wanted > 0 || grows {
            // Who was let on once is not sent back: it may have segments already.
            if self.log_promised(id) == 0 && self.tree.live_bytes() > self.log.live_max() {
                return Err(FileError::NoSpace);
            }
            if !self.promise_log(id, file, wanted) {
                self.waits.log.push_back(id);
                return Ok(false);
            }
        }
        let promised = self.promised(id);
        if promised > wanted {
            self.space.forget_promise(promised - wanted);
        } else if !self.space.promise(wanted - promised) {
            return Err(FileError::NoSpace);
        }
        self.set_promised(id, wanted);
        let mut logical = first;
        while logical <= last {
            let Ok(found) = self.tree.file(file) else { return Err(FileError::NotFound) };
            let hole = match found.map.extent(logical) {
                Extent::Mapped { count, .. } => {
                    logical = logical.saturating_add(count);
                    continue;
                }
                Extent::Hole { count } => count.min(last - logical + 1),
            };
            let near = found.map.physical_before(logical).map(|before| before + 1);
            let Some(stretch) = self.space.take(hole, near) else {
                self.wait_segments(id);
                return Ok(false);
            };
            self.set_promised(id, self.promised(id) - stretch.count);
            let splits = self.tree.change_map(file, |map| map.insert(logical, stretch)).unwrap_or_default();
            let fresh = Fresh { logical, count: stretch.count, sequence: u64::MAX };
            self.fresh.entry(file).or_default().push(fresh);
            if let Ok(found) = self.tree.file_mut(file) {
                found.fresh = true;
            }
            for (left, right) in splits {
                self.log_parts(file, &[left, right]);
            }
            logical += stretch.count;
        }
        Ok(true)
    }

    /// Keeps room in the log for what a write that maps `wanted` segments will log.
    fn promise_log(&mut self, id: FlightId, file: NodeId, wanted: u32) -> bool {
        let name_len = self.tree.node(file).map_or(0, |node| node.name.len());
        let Some(transfer) = self.flights.get_mut(id).and_then(super::Flight::transfer_mut) else {
            return false;
        };
        if transfer.log_promised == 0 {
            // Every run may be one of its own, and every part be split.
            let parts = 2 + 2 * (wanted as usize).div_ceil(RUNS_MAX);
            let len = node_record_len(name_len) + CUT_LEN + parts * map_record_len(RUNS_MAX);
            transfer.log_promised = self.log.promise(len).unwrap_or(0);
        }
        transfer.log_promised > 0
    }

    fn log_promised(&self, id: FlightId) -> u64 {
        match self.flights.get(id).map(|flight| &flight.kind) {
            Some(Kind::Write(transfer)) => transfer.log_promised,
            _ => 0,
        }
    }

    fn promised(&self, id: FlightId) -> u32 {
        match self.flights.get(id).map(|flight| &flight.kind) {
            Some(Kind::Write(transfer)) => transfer.promised,
            _ => 0,
        }
    }

    fn set_promised(&mut self, id: FlightId, promised: u32) {
        if let Some(transfer) = self.flights.get_mut(id).and_then(super::Flight::transfer_mut) {
            transfer.promised = promised;
        }
    }

    fn count_holes(&self, file: NodeId, first: u32, last: u32) -> u32 {
        let Ok(found) = self.tree.file(file) else { return 0 };
        let (mut logical, mut holes) = (first, 0);
        while logical <= last {
            let count = match found.map.extent(logical) {
                Extent::Mapped { count, .. } => count,
                Extent::Hole { count } => {
                    let count = count.min(last - logical + 1);
                    holes += count;
                    count
                }
            };
            let Some(next) = logical.checked_add(count) else { break };
            logical = next;
        }
        holes
    }

    /// Puts what is left of a transfer into pieces, or ends it if all of them are back.
    pub(super) fn move_data(&mut self, id: FlightId) {
        loop {
            let Some(flight) = self.flights.get_mut(id) else { return };
            let failed = flight.error.is_some();
            let is_write = matches!(flight.kind, Kind::Write(_));
            let Some(transfer) = flight.transfer_mut() else { return };
            if transfer.cursor >= transfer.len || failed {
                if transfer.out == 0 {
                    self.data_moved(id);
                }
                return;
            }
            if transfer.out >= PIECES_MAX {
                return;
            }
            let (file, at, left) =
                (transfer.file, transfer.offset + u64::from(transfer.cursor), transfer.len - transfer.cursor);
            let went_on = match self.next_bytes(file, at, left, is_write) {
                None => {
                    // The file is gone; pieces under way still hold its segments.
                    if let Some(flight) = self.flights.get_mut(id) {
                        flight.error = Some(FileError::NotFound);
                    }
                    true
                }
                Some(Next::Zeros(len)) => {
                    self.give_zeros(id, len);
                    true
                }
                Some(Next::At { device, len }) if is_write => self.write_piece(id, device, len),
                Some(Next::At { device, len }) => self.read_piece(id, device, len),
            };
            if !went_on {
                return;
            }
        }
    }

    fn next_bytes(&self, file: NodeId, at: u64, left: u32, is_write: bool) -> Option<Next> {
        let segment_len = self.geometry.segment_len;
        let found = self.tree.file(file).ok()?;
        let (logical, within) = ((at / segment_len) as u32, at % segment_len);
        let limit = |count: u32| (u64::from(count) * segment_len - within).min(u64::from(left)) as u32;
        let extent = found.map.extent(logical);
        let hidden = if found.fresh && !is_write { self.hidden(file, logical) } else { None };
        Some(match (extent, hidden) {
            (Extent::Hole { count }, _) => Next::Zeros(limit(count)),
            (Extent::Mapped { .. }, Some((true, count))) => Next::Zeros(limit(count)),
            (Extent::Mapped { physical, count }, hidden) => {
                let count = hidden.map_or(count, |(_, until)| count.min(until));
                Next::At { device: self.geometry.segment_offset(physical) + within, len: limit(count) }
            }
        })
    }

    /// Whether a segment is mapped so recently that readers must not see it, and for how many segments that holds.
    fn hidden(&self, file: NodeId, logical: u32) -> Option<(bool, u32)> {
        let written = self.log.written();
        let mut until = u32::MAX;
        for fresh in self.fresh.get(&file)?.iter().filter(|fresh| fresh.sequence > written) {
            if (fresh.logical..fresh.logical + fresh.count).contains(&logical) {
                return Some((true, fresh.logical + fresh.count - logical));
            }
            if fresh.logical > logical {
                until = until.min(fresh.logical - logical);
            }
        }
        Some((false, until))
    }

    fn give_zeros(&mut self, id: FlightId, len: u32) {
        let Some(transfer) = self.flights.get_mut(id).and_then(super::Flight::transfer_mut) else { return };
        let at = transfer.cursor;
        transfer.cursor += len;
        if let Some(Source::Owned(mut slice)) = cut(transfer, len) {
            slice.fill(0);
            transfer.parts.push((at, slice));
        }
    }

    /// Whether a transfer's next bytes may go between its own memory and the device.
    fn is_direct(&self, transfer: &Transfer, device: u64) -> bool {
        let block = self.geometry.block_len;
        let align = block.min(ob_memory::PAGE as u32) as usize;
        let memory = transfer.buffer.as_ref().is_some_and(|slice| slice.start().is_multiple_of(align));
        !self.options.copy_everything && memory && device.is_multiple_of(u64::from(block))
    }

    fn read_piece(&mut self, id: FlightId, device: u64, len: u32) -> bool {
        let block = self.geometry.block_len;
        let Some(Kind::Read(transfer)) = self.flights.get(id).map(|flight| &flight.kind) else {
            return false;
        };
        let whole = len.next_multiple_of(block);
        let room = transfer.buffer.as_ref().map_or(0, |slice| slice.len());
        if self.is_direct(transfer, device) && room >= whole as usize {
            let Some(transfer) = self.flights.get_mut(id).and_then(super::Flight::transfer_mut) else {
                return false;
            };
            let at = transfer.cursor;
            (transfer.cursor, transfer.out) = (at + len, transfer.out + 1);
            let Some(Source::Owned(into)) = cut(transfer, whole) else { return false };
            let piece = Piece::Direct { flight: id, at, range: None };
            self.start(piece, DeviceOp::Read { offset: device, into });
            return true;
        }
        let skip = (device % u64::from(block)) as u32;
        let len = len.min(self.bounce.block_len() as u32 - skip);
        let Some(mut bounce) = self.bounce.take() else {
            self.waits.bounce.push_back(id);
            return false;
        };
        let Some(transfer) = self.flights.get_mut(id).and_then(super::Flight::transfer_mut) else {
            return false;
        };
        let at = transfer.cursor;
        (transfer.cursor, transfer.out) = (at + len, transfer.out + 1);
        let Some(data) = cut(transfer, len) else { return false };
        let into = bounce.split_to((skip + len).next_multiple_of(block) as usize);
        let piece = Piece::Bounced { flight: id, at, data, skip, range: None, reading: true };
        self.counts.unaligned += 1;
        self.start(piece, DeviceOp::Read { offset: device - u64::from(skip), into });
        true
    }

    fn write_piece(&mut self, id: FlightId, device: u64, len: u32) -> bool {
        let block = self.geometry.block_len;
        let Some(Kind::Write(transfer)) = self.flights.get(id).map(|flight| &flight.kind) else {
            return false;
        };
        let durable = transfer.durability == Durability::Pieces;
        if len >= block && self.is_direct(transfer, device) {
            let len = len - len % block;
            let range = (device, device + u64::from(len));
            if self.is_locked(id, range) {
                return false;
            }
            let Some(transfer) = self.flights.get_mut(id).and_then(super::Flight::transfer_mut) else {
                return false;
            };
            let at = transfer.cursor;
            (transfer.cursor, transfer.out) = (at + len, transfer.out + 1);
            let Some(from) = cut(transfer, len) else { return false };
            let piece = Piece::Direct { flight: id, at, range: Some(range) };
            self.start(piece, DeviceOp::Write { offset: device, from, durable });
            return true;
        }
        self.write_bounced(id, device, len, durable)
    }

    fn write_bounced(&mut self, id: FlightId, device: u64, len: u32, durable: bool) -> bool {
        let block = self.geometry.block_len;
        let skip = (device % u64::from(block)) as u32;
        let len = len.min(self.bounce.block_len() as u32 - skip);
        let cover = (skip + len).next_multiple_of(block);
        let start = device - u64::from(skip);
        let range = (start, start + u64::from(cover));
        let reading = skip != 0 || !len.is_multiple_of(block);
        let Some(mut bounce) = self.bounce.take() else {
            self.waits.bounce.push_back(id);
            return false;
        };
        // Who changes a part of a block must be alone at it from the read to the write.
        let must_wait = if reading { !self.lock(id, range) } else { self.is_locked(id, range) };
        if must_wait && !plant::is_planted(Bug::UnlockedEdges) {
            return false;
        }
        let Some(transfer) = self.flights.get_mut(id).and_then(super::Flight::transfer_mut) else {
            return false;
        };
        let at = transfer.cursor;
        (transfer.cursor, transfer.out) = (at + len, transfer.out + 1);
        let Some(data) = cut(transfer, len) else { return false };
        let mut memory = bounce.split_to(cover as usize);
        self.counts.unaligned += 1;
        let op = if reading {
            DeviceOp::Read { offset: start, into: memory }
        } else {
            memory.copy_from_slice(&data);
            DeviceOp::Write { offset: start, from: memory.into(), durable }
        };
        self.start(Piece::Bounced { flight: id, at, data, skip, range: Some(range), reading }, op);
        true
    }

    /// Whether a write of whole blocks must wait for somebody who changes a part of one of them, or who waits for that himself and
    /// stands in line before it. Then it stands there as well: whoever comes later lets it go first, however many they are.
    fn is_locked(&mut self, id: FlightId, range: (u64, u64)) -> bool {
        if self.locks.is_empty() {
            return false;
        }
        let index = self.stand_in_line(id, range);
        let must_wait = self.is_behind(index);
        if !must_wait {
            self.leave_line(index);
        }
        must_wait
    }

    /// Takes the blocks of a range for one flight; `false` if it must wait, and then its lock stands in line.
    fn lock(&mut self, id: FlightId, range: (u64, u64)) -> bool {
        let index = self.stand_in_line(id, range);
        let busy = || {
            self.pieces.iter().any(|piece| match piece {
                Piece::Direct { range: Some(other), .. } | Piece::Bounced { range: Some(other), .. } => {
                    overlaps(*other, range)
                }
                _ => false,
            })
        };
        if self.is_behind(index) || busy() {
            return false;
        }
        self.locks[index].held = true;
        true
    }

    /// The place of a flight in line for its next piece; of others it is the last one if it had none yet. What the piece covers may
    /// have changed while it stood there: writes of others split the file's map in other places.
    fn stand_in_line(&mut self, id: FlightId, range: (u64, u64)) -> usize {
        let (start, end) = range;
        let Some(index) = self.locks.iter().position(|lock| lock.flight == id && !lock.held) else {
            self.locks.push(RangeLock { start, end, flight: id, held: false });
            return self.locks.len() - 1;
        };
        let before = self.locks[index].range();
        if before != range {
            (self.locks[index].start, self.locks[index].end) = range;
            self.range_is_free(before);
        }
        index
    }

    /// Whether somebody has some of the blocks that the lock at this place wants, or stands in line for them before it.
    fn is_behind(&self, index: usize) -> bool {
        let range = self.locks[index].range();
        let is_before = |(other, lock): (usize, &RangeLock)| {
            (other < index || (lock.held && other != index)) && overlaps(lock.range(), range)
        };
        self.locks.iter().enumerate().any(is_before)
    }

    fn leave_line(&mut self, index: usize) {
        let left = self.locks.remove(index);
        self.range_is_free(left.range());
    }

    fn unlock(&mut self, id: FlightId, range: (u64, u64)) {
        let held = |lock: &RangeLock| lock.flight == id && lock.held && lock.range() == range;
        if let Some(index) = self.locks.iter().position(held) {
            self.locks.remove(index);
        }
    }

    /// Somebody is no longer at these blocks, or in line for them. Only who is first in line for some of them can go on: to wake the
    /// others would take more time with each of them, and they could be as many as there are requests.
    fn range_is_free(&mut self, freed: (u64, u64)) {
        for lock in self.locks.iter().filter(|lock| overlaps(lock.range(), freed)) {
            let range = lock.range();
            if !self.first_in_line.iter().any(|earlier| overlaps(*earlier, range)) {
                self.first_in_line.push(range);
                if !lock.held {
                    self.ready.push_back(lock.flight);
                }
            }
        }
        self.first_in_line.clear();
    }

    pub(super) fn direct_done(
        &mut self,
        id: FlightId,
        at: u32,
        range: Option<(u64, u64)>,
        op: DeviceOp,
        result: Result<(), DeviceError>,
    ) {
        let slice = match op {
            DeviceOp::Read { into, .. } => Some(into),
            _ => None,
        };
        self.piece_done(id, slice.map(|slice| (at, slice)), result);
        if let Some(range) = range {
            self.range_is_free(range);
        }
    }

    pub(super) fn bounced_done(&mut self, piece: Piece, op: DeviceOp, result: Result<(), DeviceError>) {
        let Piece::Bounced { flight, at, mut data, skip, range, reading } = piece else { return };
        let is_write = range.is_some();
        match op {
            DeviceOp::Read { into, offset } if is_write && reading && result.is_ok() => {
                let mut from = into;
                from[skip as usize..][..data.len()].copy_from_slice(&data);
                let durable = match self.flights.get(flight).map(|flight| &flight.kind) {
                    Some(Kind::Write(transfer)) => transfer.durability == Durability::Pieces,
                    _ => false,
                };
                let piece = Piece::Bounced { flight, at, data, skip, range, reading };
                self.start(piece, DeviceOp::Write { offset, from: from.into(), durable });
                return;
            }
            DeviceOp::Read { into, .. } if !is_write && result.is_ok() => {
                if let Source::Owned(data) = &mut data {
                    let len = data.len();
                    data.copy_from_slice(&into[skip as usize..][..len]);
                }
            }
            _ => {}
        }
        let part = data.into_slice().filter(|_| !is_write).map(|slice| (at, slice));
        if let Some(range) = range {
            if reading {
                self.unlock(flight, range);
            }
            self.range_is_free(range);
        }
        self.piece_done(flight, part, result);
        // The bounce buffer went back when the operation was dropped above.
        self.ready.extend(self.waits.bounce.drain(..));
    }

    fn piece_done(&mut self, id: FlightId, part: Option<(u32, Slice)>, result: Result<(), DeviceError>) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        if let Err(error) = result {
            flight.error.get_or_insert(error_of(error));
        }
        if let Some(transfer) = flight.transfer_mut() {
            transfer.out -= 1;
            transfer.parts.extend(part);
        }
        self.ready.push_back(id);
    }

    /// All pieces of a transfer are back.
    fn data_moved(&mut self, id: FlightId) {
        while let Some(index) = self.locks.iter().position(|lock| lock.flight == id && !lock.held) {
            self.leave_line(index);
        }
        let Some(flight) = self.flights.get(id) else { return };
        let Kind::Write(transfer) = &flight.kind else {
            let is_gone = flight.error == Some(FileError::NotFound);
            return if is_gone { self.fail_gone(id) } else { self.answer(id) };
        };
        let (file, end, len, error) = (transfer.file, transfer.end(), transfer.len, flight.error);
        let Ok(found) = self.tree.file_mut(file) else {
            return self.answer_after(id, self.log.pending(), Err(FileError::NotFound));
        };
        let mut grew = false;
        if error.is_some() {
            found.garbage |= end > found.size;
        } else if len > 0 && end > found.size {
            found.size = end;
            grew = true;
        }
        self.log_dirty(file);
        if grew && !plant::is_planted(Bug::SizeNotLogged) {
            self.log_node(file);
        }
        if let Some(transfer) = self.flights.get_mut(id).and_then(super::Flight::transfer_mut) {
            transfer.grew |= grew;
            self.log_eased |= transfer.log_promised > 0;
            self.log.forget_promise(std::mem::take(&mut transfer.log_promised));
        }
        let sequence = self.tree.file(file).map_or(0, |file| file.sequence);
        match error {
            Some(error) => self.answer_after(id, sequence, Err(error)),
            None => self.answer_after(id, sequence, Ok(Outcome::Done)),
        }
    }

    /// Logs what changed of a file's map.
    fn log_dirty(&mut self, file: NodeId) {
        if self.tree.file(file).is_ok_and(|found| found.map.is_dirty()) {
            let dirty = self.tree.change_map(file, crate::map::FileMap::take_dirty).unwrap_or_default();
            for first in dirty {
                self.log_parts(file, &[first]);
            }
        }
        self.date_fresh(file);
    }

    /// Puts parts of a file's map into one frame.
    pub(super) fn log_parts(&mut self, file: NodeId, firsts: &[u32]) -> u64 {
        let Ok(found) = self.tree.file_mut(file) else { return 0 };
        let len = |first: &u32| {
            found.map.part(*first).map_or(0, |part| ob_format::files::map_record_len(part.runs.len()))
        };
        self.log.reserve(firsts.iter().map(len).sum());
        for first in firsts {
            let Some(part) = found.map.part(*first) else { continue };
            let sequence = self.log.push_map(file, *first, &part.runs);
            found.map.logged(*first, sequence);
            found.sequence = sequence;
        }
        found.sequence
    }

    /// Notes in which frame recent segments are, if all of the file's map is in one, and forgets those whose frame is
    /// written: readers see them from now on.
    pub(super) fn date_fresh(&mut self, file: NodeId) {
        let (Some(fresh), Ok(found)) = (self.fresh.get_mut(&file), self.tree.file_mut(file)) else { return };
        let written = self.log.written();
        if !found.map.is_dirty() {
            for entry in fresh.iter_mut().filter(|entry| entry.sequence == u64::MAX) {
                entry.sequence = found.sequence;
            }
        }
        fresh.retain(|entry| entry.sequence > written);
        if fresh.is_empty() {
            self.fresh.remove(&file);
            found.fresh = false;
        }
    }
}

/// Takes the next bytes of a transfer's buffer. Most transfers are one piece, which takes all of it as it is: to split a
/// slice and to join it again counts its parts up and down.
fn cut(transfer: &mut Transfer, len: u32) -> Option<Source> {
    match transfer.buffer.take_if(|buffer| buffer.len() == len as usize) {
        Some(all) => Some(all),
        None => transfer.buffer.as_mut().map(|buffer| buffer.split_to(len as usize)),
    }
}

fn overlaps(one: (u64, u64), other: (u64, u64)) -> bool {
    one.0 < other.1 && other.0 < one.1
}

pub(super) fn error_of(error: DeviceError) -> FileError {
    match error {
        DeviceError::NoSpace => FileError::NoSpace,
        DeviceError::Misaligned
        | DeviceError::OutOfRange
        | DeviceError::Io
        | DeviceError::Unsupported
        | DeviceError::Gone => FileError::Io,
    }
}
