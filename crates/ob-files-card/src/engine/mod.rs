//! The engine: requests in, device operations out, completions back.
//!
//! ```text
//!   submit ──▶ Flight ──step──▶ pieces ──▶ outbox ──▶ Device ──▶ completed piece ──▶ Flight ──step──▶ …
//!                │  ▲                                                                  │
//!                │  └── woken: segments, room in the log, a bounce buffer, a frame     ▼
//!                ▼      written, a flush, the file for itself                     Completion
//!            waits for
//! ```
//!
//! One owner of all state, no thread, no clock: [`CardFiles::submit`] takes a request, [`CardFiles::poll`] moves
//! everything on that can move, [`CardFiles::next_completion`] gives answers. Which answers may be given when is in
//! `docs/format/files.md`, "What order keeps".

mod data;
mod flight;
mod metadata;
mod op;
mod slots;
mod tidy;
mod upkeep;
mod zero;

use std::collections::{HashMap, VecDeque};

use ob_core::{Device, DeviceCompletion, DeviceOp, NodeId, RefusedReason, Token};
use ob_format::files::{Geometry, ROOT, Superblock};
use ob_memory::{Pool, Slice, Source};
use ob_wire_link::files::{CardInfo, FileError, NodeInfo, SpaceInfo};

pub use op::{Completion, FileVersion, FilesCounts, FilesOptions, MetadataOp, Op, Outcome};

use crate::log::Log;
use crate::plant::{self, Bug};
use crate::space::Space;
use crate::tree::{ById, File, Tree};
use flight::{
    Draining, Durability, Flight, FlightId, FlushInFlight, Fresh, Ghost, Kind, Piece, RangeLock, Stage,
    Transfer, Unheard, Unsaid, Waits,
};
use slots::Slots;
use zero::ZeroRange;

/// Device operations that one call of [`CardFiles::poll`] takes back at most. Answers leave the card between calls, and
/// the sooner the first of them is there, the sooner its host sends the next request.
const COMPLETIONS_A_TURN: usize = 8;

/// A device that is mounted.
pub(crate) struct Mounted {
    pub(crate) superblock: Superblock,
    pub(crate) tree: Tree,
    pub(crate) space: Space,
    pub(crate) log: Log,
}

/// The card's files on one device.
pub struct CardFiles {
    superblock: Superblock,
    geometry: Geometry,
    options: FilesOptions,
    tree: Tree,
    space: Space,
    log: Log,
    flights: Slots<Flight>,
    pieces: Slots<Piece>,
    /// Flights that can go on.
    ready: VecDeque<FlightId>,
    /// Operations that the device has not taken yet.
    outbox: VecDeque<(Token, DeviceOp)>,
    done: VecDeque<Completion>,
    waits: Waits,
    /// Segments mapped so recently that their frame is not written: readers see holes there.
    fresh: ById<Vec<Fresh>>,
    /// Files that are removed while requests are at their data.
    ghosts: ById<Ghost>,
    /// Who has a file for itself.
    exclusive: ById<FlightId>,
    /// Files that nobody may change through rings, rename or remove.
    held: ById<()>,
    /// Those of them whose holder waits for changes that began before.
    draining: ById<Draining>,
    /// Names that were changed so recently that the frame which says so is not written; ascending.
    unheard: VecDeque<Unheard>,
    /// What is not told any more, because those frames could not be written.
    unsaid: Unsaid,
    /// Blocks that are read, changed and written back, and the writes that wait for that: in the order in which they came.
    locks: Vec<RangeLock>,
    /// Those of them that were found to be first in line; empty but while they are looked for.
    first_in_line: Vec<(u64, u64)>,
    flush: Option<FlushInFlight>,
    /// The log may have more room than when somebody was told to wait for it.
    log_eased: bool,
    zeroing: u32,
    /// Zeroings that failed, with none between them that succeeded.
    zero_failures: u32,
    bounce: Pool,
    block_pool: Pool,
    /// Vectors to use again.
    spare_parts: Vec<Vec<(u32, Slice)>>,
    frozen: bool,
    counts: FilesCounts,
}

impl CardFiles {
    pub(crate) fn new(mounted: Mounted, options: &FilesOptions) -> Self {
        let Mounted { superblock, tree, space, log } = mounted;
        let geometry = superblock.geometry;
        let block = geometry.block_len as usize;
        let bounce_len = options.bounce_len.next_multiple_of(block).max(2 * block);
        Self {
            superblock,
            geometry,
            options: *options,
            tree,
            space,
            log,
            flights: Slots::new(),
            pieces: Slots::new(),
            ready: VecDeque::new(),
            outbox: VecDeque::new(),
            done: VecDeque::new(),
            waits: Waits::default(),
            fresh: HashMap::default(),
            ghosts: HashMap::default(),
            exclusive: HashMap::default(),
            held: HashMap::default(),
            draining: HashMap::default(),
            unheard: VecDeque::new(),
            unsaid: Unsaid::default(),
            locks: Vec::new(),
            first_in_line: Vec::new(),
            flush: None,
            log_eased: false,
            zeroing: 0,
            zero_failures: 0,
            bounce: Pool::new(bounce_len, options.bounce_buffers.max(2)),
            block_pool: Pool::new(block, 1),
            spare_parts: Vec::new(),
            frozen: false,
            counts: FilesCounts::default(),
        }
    }

    /// What a host is told when it says hello.
    pub fn card_info(&self) -> CardInfo {
        CardInfo {
            version: ob_wire_link::files::VERSION,
            block_len: self.geometry.block_len,
            transfer_max: self.options.transfer_max,
            segment_len: self.geometry.segment_len,
            epoch: self.superblock.epoch,
            uuid: self.superblock.uuid,
            file_len_max: self.geometry.file_len_max(),
        }
    }

    /// Total and free space, files and directories.
    pub fn space_info(&self) -> SpaceInfo {
        let bytes = |segments: u32| u64::from(segments) * self.geometry.segment_len;
        SpaceInfo {
            total: bytes(self.space.total()),
            free: bytes(self.space.unmapped()),
            files: self.tree.files(),
            directories: self.tree.directories(),
            log_total: self.log.len(),
            log_live: self.tree.live_bytes(),
        }
    }

    /// Bytes of the log that a mount would have to read now.
    pub fn log_used(&self) -> u64 {
        self.log.used_len()
    }

    /// What was done so far.
    pub fn counts(&self) -> FilesCounts {
        self.counts
    }

    /// Whether the log could not be written: nothing can be changed any more until the next mount.
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// Requests that are taken at once.
    pub fn requests_max(&self) -> usize {
        self.options.requests_max
    }

    /// Whether one more request is taken.
    pub fn has_room(&self) -> bool {
        self.flights.len() < self.options.requests_max
    }

    /// Whether somebody within the card holds the file.
    pub fn is_held(&self, file: NodeId) -> bool {
        self.held.contains_key(&file)
    }

    /// Bytes of the device that a file has.
    pub fn allocated(&self, file: NodeId) -> u64 {
        self.tree.node(file).map_or(0, |node| u64::from(node.segments()) * self.geometry.segment_len)
    }

    /// How many of `len` bytes a read at `offset` would find now.
    pub fn readable(&self, file: NodeId, offset: u64, len: u32) -> u32 {
        let visible = self.tree.file(file).map_or(0, |file| file.visible);
        u64::from(len).min(visible.saturating_sub(offset)) as u32
    }

    /// Requests on their way.
    pub fn in_flight(&self) -> usize {
        self.flights.len() + self.done.len()
    }

    /// Whether upkeep (cleaning the log, zeroing free space) has something at the device.
    pub fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.pieces.is_empty() && self.outbox.is_empty()
    }

    /// Takes a request. The caller asked [`CardFiles::has_room`].
    pub fn submit(&mut self, token: Token, op: Op) {
        let kind = match op {
            Op::Read { file, offset, len, into } => {
                let len = len.min(into.len() as u32);
                Kind::Read(self.transfer(file, offset, len, into.into(), false))
            }
            Op::Write { file, offset, from, durable } => {
                let len = from.len() as u32;
                Kind::Write(self.transfer(file, offset, len, from, durable))
            }
            Op::Flush => Kind::Flush,
            Op::Resize { file, size } => Kind::Resize { file, size },
            Op::Zero { file, offset, len } => Kind::Zero(ZeroRange::new(file, offset, len)),
            Op::Metadata(op) => Kind::Metadata(op),
        };
        let is_counted = self.begin_change(&kind);
        let (stage, pinned) = (Stage::Start, false);
        let flight = Flight { token, kind, stage, pinned, is_counted, error: None, outcome: None };
        let id = self.flights.insert(flight);
        self.step(id);
    }

    /// Counts a request that may change what readers of a file see. From here on, and not from when it gets at the file:
    /// nothing can go wrong then with those that wait.
    fn begin_change(&mut self, kind: &Kind) -> bool {
        if plant::is_planted(Bug::ChangeUncounted) && matches!(kind, Kind::Resize { .. } | Kind::Zero(_)) {
            return false;
        }
        // A host may name any node: what is no file now may be one when this is answered.
        let file = if kind.changes_data() { kind.file() } else { None };
        file.and_then(|file| self.tree.file_mut(file).ok()).map(File::begin_change).is_some()
    }

    /// Takes the version from a read whose file was changed since it began.
    fn confirm_version(&self, file: Option<NodeId>, outcome: &mut Outcome) {
        if let (Some(file), Outcome::Read { version, .. }) = (file, outcome) {
            let now = self.tree.file(file).ok().and_then(File::version);
            *version = version.filter(|begun_with| now == Some(*begun_with));
        }
    }

    fn transfer(&mut self, file: NodeId, offset: u64, len: u32, buffer: Source, durable: bool) -> Transfer {
        Transfer {
            file,
            offset,
            len,
            cursor: 0,
            out: 0,
            durability: if durable { Durability::Pieces } else { Durability::Unasked },
            promised: 0,
            log_promised: 0,
            buffer: Some(buffer),
            parts: self.spare_parts.pop().unwrap_or_default(),
            grew: false,
        }
    }

    /// The next answer.
    pub fn next_completion(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    /// Moves everything on that can move; `true` if something did.
    pub fn poll(&mut self, device: &mut dyn Device) -> bool {
        let (mut moved, mut taken) = (false, 0);
        loop {
            let mut moving = false;
            while taken < COMPLETIONS_A_TURN
                && let Some(completion) = device.poll()
            {
                self.completed(completion);
                moving = true;
                taken += 1;
            }
            while let Some(id) = self.ready.pop_front() {
                self.step(id);
                moving = true;
            }
            self.upkeep();
            moving |= self.send(device);
            if !moving && self.ready.is_empty() {
                return moved;
            }
            moved = true;
        }
    }

    /// Gives the device what waits for it.
    fn send(&mut self, device: &mut dyn Device) -> bool {
        let mut sent = false;
        while let Some((token, op)) = self.outbox.pop_front() {
            match device.submit(token, op) {
                Ok(()) => sent = true,
                Err(refused) if refused.reason == RefusedReason::Busy => {
                    self.outbox.push_front((token, refused.op));
                    return sent;
                }
                Err(refused) => {
                    let result = Err(ob_core::DeviceError::Gone);
                    self.completed(DeviceCompletion { token, op: refused.op, result });
                    sent = true;
                }
            }
        }
        sent
    }

    /// Puts an operation of a request behind those that wait.
    fn start(&mut self, piece: Piece, op: DeviceOp) {
        let token = Token(self.pieces.insert(piece));
        self.outbox.push_back((token, op));
    }

    /// Puts an operation that others wait for before those that wait.
    fn start_first(&mut self, piece: Piece, op: DeviceOp) {
        let token = Token(self.pieces.insert(piece));
        self.outbox.push_front((token, op));
    }

    fn completed(&mut self, completion: DeviceCompletion) {
        let DeviceCompletion { token, op, result } = completion;
        let Some(piece) = self.pieces.remove(token.0) else { return };
        match piece {
            Piece::Direct { flight, at, range } => self.direct_done(flight, at, range, op, result),
            Piece::Bounced { .. } => self.bounced_done(piece, op, result),
            Piece::Tidy { flight } => self.tidy_done(flight, op, result),
            Piece::Edge { flight } => self.edge_done(flight, op, result),
            Piece::Frame { sequence } => self.frame_done(sequence, result),
            Piece::Flush => self.flush_done(result),
            Piece::Superblock(superblock) => self.superblock_done(superblock, result),
            Piece::Zero(stretch) => self.zero_done(stretch, result),
        }
    }

    /// Moves one flight on as far as it goes now.
    fn step(&mut self, id: FlightId) {
        let Some(flight) = self.flights.get(id) else { return };
        match (&flight.kind, flight.stage) {
            (_, Stage::Logged | Stage::Flushing) => {}
            (Kind::Zero(_), Stage::Start) => self.start_zero(id),
            (Kind::Zero(_), _) => self.step_zero(id),
            (_, Stage::Draining | Stage::Tidying(_)) => self.step_tidy(id),
            (Kind::Read(_), Stage::Start) => self.start_read(id),
            (Kind::Write(_), Stage::Start) => self.start_write(id),
            (Kind::Read(_) | Kind::Write(_), Stage::Data | Stage::Zeroing) => self.move_data(id),
            (Kind::Resize { .. }, _) => self.start_resize(id),
            (Kind::Flush, _) => {
                self.counts.flushes += 1;
                self.wait_flush(id);
            }
            (Kind::Metadata(_), _) => self.start_metadata(id),
        }
    }

    /// Answers when the frame `sequence` is written.
    fn answer_after(&mut self, id: FlightId, sequence: u64, result: Result<Outcome, FileError>) {
        let Some(flight) = self.flights.get_mut(id) else { return };
        match result {
            Ok(outcome) => flight.outcome = Some(outcome),
            Err(error) => flight.error = Some(error),
        }
        if self.frozen && sequence > self.log.written() {
            // What was to be changed is not on the device and will not be. What was only looked at is told all the same.
            let is_unsaid = flight.file().is_some_and(|file| self.unsaid.nodes.contains_key(&file));
            // A file that is not found because its removal was refused is there.
            if !matches!(flight.kind, Kind::Metadata(_)) && (flight.error.is_none() || is_unsaid) {
                flight.error = Some(FileError::ReadOnly);
            }
            return self.answer(id);
        }
        if sequence <= self.log.written() {
            return self.frame_of_flight_written(id);
        }
        flight.stage = Stage::Logged;
        let sequence = self.waits.written.back().map_or(sequence, |(last, _)| sequence.max(*last));
        self.waits.written.push_back((sequence, id));
    }

    /// What a flight changed or saw is on the device.
    fn frame_of_flight_written(&mut self, id: FlightId) {
        let Some(flight) = self.flights.get(id) else { return };
        let (file, failed) = (flight.file(), flight.error.is_some());
        let (Some(file), false) = (file, failed) else { return self.answer(id) };
        let durability = match &flight.kind {
            Kind::Write(transfer) => transfer.durability,
            _ => Durability::Unasked,
        };
        let Ok(found) = self.tree.file_mut(file) else { return self.fail_gone(id) };
        match &flight.kind {
            Kind::Write(transfer) => {
                // Others may have moved the end on; what is written up to here is what readers may see.
                if transfer.grew {
                    found.visible = found.visible.max(transfer.end()).min(found.size);
                }
                let flush = match durability {
                    Durability::Unasked => false,
                    Durability::Pieces => found.sequence > self.log.durable(),
                    // Its frame says nothing here: another write of the file may have logged what this one changed, and have
                    // had it flushed, before this one's bytes were at the device.
                    Durability::Flush if plant::is_planted(Bug::FlushAssumed) => {
                        found.sequence > self.log.durable()
                    }
                    Durability::Flush => true,
                };
                if found.fresh {
                    self.date_fresh(file);
                }
                if flush {
                    return self.wait_flush(id);
                }
            }
            // A write may have moved the end on since, in a frame that is not written yet.
            Kind::Resize { size, .. } => found.visible = found.visible.max(*size).min(found.size),
            Kind::Read(_) | Kind::Flush | Kind::Zero(_) | Kind::Metadata(_) => {}
        }
        self.answer(id);
    }

    fn wait_flush(&mut self, id: FlightId) {
        if self.frozen {
            self.fail(id, FileError::ReadOnly);
            return;
        }
        if let Some(flight) = self.flights.get_mut(id) {
            flight.stage = Stage::Flushing;
            self.waits.flush.push(id);
        }
    }

    /// What a flight waited for is durable.
    fn flushed(&mut self, id: FlightId) {
        let file = self.flights.get(id).and_then(Flight::file);
        if file.is_some_and(|file| self.tree.file(file).is_err()) {
            self.fail_gone(id);
        } else {
            self.answer(id);
        }
    }

    /// Ends a flight whose file is gone. It is not told so before the removal is on the device, not even by the size of what is left.
    fn fail_gone(&mut self, id: FlightId) {
        self.answer_after(id, self.log.pending(), Err(FileError::NotFound));
    }

    fn fail(&mut self, id: FlightId, error: FileError) {
        if let Some(flight) = self.flights.get_mut(id) {
            flight.error = Some(error);
            self.answer(id);
        }
    }

    /// Ends a flight.
    fn answer(&mut self, id: FlightId) {
        let Some(flight) = self.flights.remove(id) else { return };
        let file = flight.file();
        if let Some(file) = file {
            self.leave_file(id, file, flight.pinned);
            if flight.changes(file) {
                self.drained_one(file);
            }
            if let (true, Ok(found)) = (flight.is_counted, self.tree.file_mut(file)) {
                found.end_change();
            }
        }
        let (token, mut error) = (flight.token, flight.error);
        let mut outcome = flight.outcome.unwrap_or(Outcome::Done);
        self.confirm_version(file, &mut outcome);
        let buffer = match flight.kind {
            Kind::Read(transfer) => {
                self.counts.reads += 1;
                let buffer = self.reassemble(transfer);
                if let Outcome::Read { len, .. } = &outcome {
                    self.counts.read_bytes += u64::from(*len);
                }
                buffer
            }
            Kind::Write(transfer) => {
                self.space.forget_promise(transfer.promised);
                self.log.forget_promise(transfer.log_promised);
                self.log_eased |= transfer.log_promised > 0;
                self.counts.writes += 1;
                self.counts.written_bytes += u64::from(transfer.len);
                let size = self.tree.file(transfer.file).map_or(0, |file| file.visible);
                outcome = Outcome::Written { len: transfer.len, size };
                self.keep_parts(transfer.parts);
                None
            }
            Kind::Resize { file, .. } => {
                self.counts.metadata += 1;
                match self.node_info(file) {
                    Some(info) => outcome = Outcome::Node(info),
                    // It was removed in the meantime, and there is nothing left to tell of.
                    None => error = error.or(Some(FileError::NotFound)),
                }
                None
            }
            Kind::Metadata(_) | Kind::Zero(_) => {
                self.counts.metadata += 1;
                None
            }
            Kind::Flush => None,
        };
        self.counts.errors += u64::from(error.is_some());
        self.done.push_back(Completion { token, result: error.map_or(Ok(outcome), Err), buffer });
    }

    fn keep_parts(&mut self, mut parts: Vec<(u32, Slice)>) {
        parts.clear();
        if parts.capacity() > 0 && self.spare_parts.len() < 256 {
            self.spare_parts.push(parts);
        }
    }

    /// Joins a read's buffer again.
    fn reassemble(&mut self, transfer: Transfer) -> Option<Slice> {
        let Transfer { mut parts, buffer, .. } = transfer;
        if parts.len() > 1 {
            parts.sort_unstable_by_key(|(at, _)| *at);
        }
        let mut whole: Option<Slice> = None;
        for slice in parts.drain(..).map(|(_, slice)| slice).chain(buffer.and_then(Source::into_slice)) {
            whole = Some(match whole {
                None => slice,
                Some(front) if slice.is_empty() => front,
                Some(front) => match front.join(slice) {
                    Ok(joined) => joined,
                    // They were cut from one slice, so they join.
                    Err((front, _)) => front,
                },
            });
        }
        self.keep_parts(parts);
        whole
    }

    fn node_info(&self, id: NodeId) -> Option<NodeInfo> {
        let node = self.tree.node(id)?;
        Some(NodeInfo {
            id,
            kind: node.kind(),
            size: node.size(),
            allocated: self.allocated(id),
            parent: (id != ROOT).then_some(node.parent),
        })
    }
}
