//! A host's process: the store as it ships, its log in files of the card.

use std::collections::BTreeMap;

use ob_core::{Instant, NodeId, Now, Token};
use ob_files_card::{Completion, LocalFiles, MetadataOp, Op, Outcome, WriteObserver};
use ob_format::kv::{part_name, part_number};
use ob_kv::host::{HostLimits, HostStream};
use ob_kv::store::{Config, LogCompletion, LogFailure, LogOp, Recovery, Revisit, Revisited, Store};
use ob_memory::Pool;
use ob_sim::{Failure, Rng};
use ob_wire_link::files::{Entries, FileError, ROOT};
use ob_wire_link::stream::FromCard;

use super::card::Card;
use super::port::SharedWire;

/// The token of the request that lists the parts: no operation of the log has it.
const LISTING: Token = Token(u64::MAX);

/// Bytes of the parts' list.
const LIST_LEN: u32 = 64 << 10;

enum Stage {
    /// The parts are being listed.
    Listing,
    Recovering(Box<Recovery>),
    Serving(Box<HostStream<Store>>),
}

/// A store that has met its card again looks whether its log is what it was.
enum Check {
    Listing,
    Reading(Box<Revisit>),
}

/// One life of the host.
pub(super) struct Host {
    config: Config,
    stage: Stage,
    check: Option<Check>,
    parts: BTreeMap<u64, NodeId>,
    /// The card's files, and the stream, of the card's present life.
    files: Option<LocalFiles>,
    wire: Option<SharedWire>,
    /// Operations that are out, and those that are held back for a while.
    out: BTreeMap<u64, LogOp>,
    held: Vec<LogOp>,
    rng: Rng,
    is_listed: bool,
    pub(super) counts: HostCounts,
}

/// What became of a store when its host met the card again.
#[derive(Clone, Copy, Default)]
pub(super) struct HostCounts {
    pub(super) kept: u64,
    pub(super) lost: u64,
    pub(super) overtaken: u64,
}

impl Host {
    pub(super) fn new(config: Config, rng: Rng) -> Self {
        Self {
            config,
            stage: Stage::Listing,
            check: None,
            parts: BTreeMap::new(),
            files: None,
            wire: None,
            out: BTreeMap::new(),
            held: Vec::new(),
            rng,
            is_listed: false,
            counts: HostCounts::default(),
        }
    }

    /// Whether requests are applied.
    pub(super) fn serves(&self) -> bool {
        matches!(&self.stage, Stage::Serving(stream) if stream.is_running())
    }

    /// Whether it takes nothing more of what the card says until it has got on with what it has.
    pub(super) fn is_full(&self) -> bool {
        matches!(&self.stage, Stage::Serving(stream) if !stream.has_room())
    }

    /// What it does now, for people.
    pub(super) fn describe(&self) -> String {
        let stage = match &self.stage {
            Stage::Listing => "lists its parts",
            Stage::Recovering(_) => "recovers",
            Stage::Serving(stream) if stream.is_running() => "serves",
            Stage::Serving(_) => "has not begun to serve",
        };
        let check = if self.check.is_some() { " while it looks at its log again" } else { "" };
        let room = if self.is_full() { ", takes nothing more from the card" } else { "" };
        let (held, out) = (self.held.len(), self.out.len());
        format!("{stage}{check}{room}, has {held} operations for the log and {out} under way")
    }

    /// What the stream has done in this life.
    pub(super) fn attested(&self) -> u64 {
        match &self.stage {
            Stage::Serving(stream) => stream.counts().attested,
            _ => 0,
        }
    }

    pub(super) fn store(&self) -> Option<&Store> {
        match &self.stage {
            Stage::Serving(stream) => Some(stream.service()),
            _ => None,
        }
    }

    /// The process is gone: what the card has of it, it finishes.
    pub(super) fn die(mut self) -> Option<LocalFiles> {
        if let Some(wire) = self.wire.take() {
            wire.borrow_mut().close();
        }
        self.files.take()
    }

    /// The link is gone, and both halves live: what the card has of this host, it finishes.
    pub(super) fn lose_link(&mut self) -> Option<LocalFiles> {
        if let Some(wire) = self.wire.take() {
            wire.borrow_mut().close();
        }
        let files = self.files.take();
        self.lose_card();
        files
    }

    /// The card is gone.
    pub(super) fn lose_card(&mut self) {
        (self.files, self.wire, self.is_listed) = (None, None, false);
        let Stage::Serving(stream) = &mut self.stage else {
            return self.begin_anew();
        };
        stream.ended();
        // They are listed anew.
        self.parts.clear();
        // Every file is there when the card is back, and what was out is asked for again; but for what was read to compare.
        let out = std::mem::take(&mut self.out);
        if self.check.replace(Check::Listing).is_none() {
            self.held.extend(out.into_values());
        }
    }

    /// Recovers the store from what is on the card.
    fn begin_anew(&mut self) {
        (self.stage, self.check, self.is_listed) = (Stage::Listing, None, false);
        self.parts.clear();
        self.out.clear();
        self.held.clear();
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        self.store().and_then(Store::next_due)
    }

    /// Whether there is something that waits for nothing but a turn.
    pub(super) fn has_more(&self) -> bool {
        !self.held.is_empty() && self.files.is_some()
    }

    /// `now` is what its own clocks say.
    pub(super) fn turn(&mut self, card: &mut Card, now: Now) -> Result<(), Failure> {
        if self.files.is_none() {
            self.files = Some(card.service.local());
        }
        while let Some(completion) = self.files.as_mut().and_then(LocalFiles::poll) {
            self.complete(completion)?;
        }
        if self.check.is_some() {
            self.revisit(card);
            return Ok(());
        }
        match &mut self.stage {
            Stage::Listing => self.list(),
            Stage::Recovering(recovery) => {
                if let Some(op) = recovery.next_op() {
                    self.held.push(op);
                }
            }
            Stage::Serving(_) => self.serve(card, now)?,
        }
        self.submit(card);
        Ok(())
    }

    fn list(&mut self) {
        if !std::mem::replace(&mut self.is_listed, true)
            && let Some(files) = &mut self.files
        {
            let list = MetadataOp::List { directory: ROOT, after: Vec::new(), most: LIST_LEN };
            let _ = files.submit(LISTING, Op::Metadata(list));
        }
    }

    /// Takes a step of the look at the log; nothing else is asked of it meanwhile.
    fn revisit(&mut self, card: &mut Card) {
        let Some(Check::Reading(revisit)) = &mut self.check else { return self.list() };
        if let Some(op) = revisit.next_op()
            && let Some(files) = &mut self.files
            && let Some(request) = request(&op, &self.parts, &mut card.watcher)
            && files.submit(op.token(), request).is_ok()
        {
            self.out.insert(op.token().0, op);
        }
        match revisit.outcome() {
            None => {}
            Some(Revisited::Same) => {
                self.counts.kept += 1;
                self.check = None;
                if let Stage::Serving(stream) = &mut self.stage {
                    stream.service_mut().rejoined();
                }
            }
            Some(Revisited::Lost) => {
                self.counts.lost += 1;
                self.begin_anew();
            }
            Some(Revisited::Overtaken) => {
                self.counts.overtaken += 1;
                self.begin_anew();
            }
        }
    }

    fn serve(&mut self, card: &mut Card, now: Now) -> Result<(), Failure> {
        let Stage::Serving(stream) = &mut self.stage else { return Ok(()) };
        if self.wire.as_ref().is_some_and(|wire| !std::rc::Rc::ptr_eq(wire, &card.wire)) {
            self.wire = None;
        }
        let wire = self.wire.get_or_insert_with(|| {
            card.wire.borrow_mut().open();
            std::rc::Rc::clone(&card.wire)
        });
        if let Some(why) = wire.borrow_mut().refused.take() {
            return Err(Failure::new(format!("the card has sent the host away: {why}")));
        }
        // How much is applied before the log moves on is another one each time.
        for _ in 0..self.rng.below(8) {
            if !stream.has_room() {
                break;
            }
            let Some(frame) = wire.borrow_mut().hear() else { break };
            let heard = FromCard::decode(&frame.inline, &frame.payload);
            let heard =
                heard.map_err(|error| Failure::new(format!("the card said what cannot be: {error}")))?;
            stream.received(now, &heard).map_err(|fault| Failure::new(fault.to_string()))?;
        }
        stream.service_mut().tick(now);
        while stream.may_write()
            && let Some(op) = stream.service_mut().next_op()
        {
            if let LogOp::Remove { part, .. } = &op {
                stream.forget_file(*part as u32);
            }
            self.held.push(op);
        }
        if let Some(failure) = stream.service().failure() {
            return Err(Failure::new(format!("the store takes no more changes: {failure}")));
        }
        stream.set_clock(now.unix_ms);
        stream.send(&mut |frame| wire.borrow_mut().say(frame));
        Ok(())
    }

    /// Hands some of what is held to the card, in any order.
    fn submit(&mut self, card: &mut Card) {
        let Some(files) = &mut self.files else { return };
        let mut kept = Vec::new();
        self.rng.shuffle(&mut self.held);
        for op in std::mem::take(&mut self.held) {
            if self.rng.one_in(3) || !files.has_room() {
                kept.push(op);
                continue;
            }
            let Some(request) = request(&op, &self.parts, &mut card.watcher) else {
                kept.push(op);
                continue;
            };
            if files.submit(op.token(), request).is_ok() {
                self.out.insert(op.token().0, op);
            } else {
                kept.push(op);
            }
        }
        self.held = kept;
    }

    fn complete(&mut self, completion: Completion) -> Result<(), Failure> {
        if completion.token == LISTING {
            return self.listed(completion.result);
        }
        let Some(op) = self.out.remove(&completion.token.0) else { return Ok(()) };
        let bytes = match (&op, completion.result) {
            (LogOp::Create { part, len, .. }, Ok(Outcome::Node(info))) => {
                self.parts.insert(*part, info.id);
                if info.size < *len {
                    // It is there, and gets its length next.
                    self.held.push(op);
                    return Ok(());
                }
                if let Stage::Serving(stream) = &mut self.stage {
                    stream.name_file(*part as u32, info.id);
                }
                Vec::new()
            }
            (LogOp::Read { .. }, Ok(Outcome::Read { len, .. })) => {
                let buffer = completion.buffer.as_deref().unwrap_or_default();
                buffer.get(..len as usize).unwrap_or_default().to_vec()
            }
            (LogOp::Remove { part, .. }, Ok(_) | Err(FileError::NotFound)) => {
                self.parts.remove(part);
                Vec::new()
            }
            (_, Ok(_)) => Vec::new(),
            // A part that another host has removed is not what it was.
            (LogOp::Read { token, .. }, Err(_)) if self.check.is_some() => {
                if let Some(Check::Reading(revisit)) = &mut self.check {
                    revisit.completed(LogCompletion { token: *token, result: Err(LogFailure::Device) });
                }
                return Ok(());
            }
            (op, Err(error)) => return Err(Failure::new(format!("{op:?} failed: {error}"))),
        };
        let done = LogCompletion { token: op.token(), result: Ok(bytes) };
        if let Some(Check::Reading(revisit)) = &mut self.check {
            revisit.completed(done);
            return Ok(());
        }
        match std::mem::replace(&mut self.stage, Stage::Listing) {
            Stage::Recovering(mut recovery) => {
                recovery.completed(done).map_err(|error| Failure::new(format!("not recovered: {error}")))?;
                self.stage = finish(*recovery, &self.parts);
            }
            Stage::Serving(mut stream) => {
                stream.service_mut().completed(done);
                self.stage = Stage::Serving(stream);
            }
            Stage::Listing => {}
        }
        Ok(())
    }

    fn listed(&mut self, result: Result<Outcome, FileError>) -> Result<(), Failure> {
        let Ok(Outcome::Entries { bytes, .. }) = result else {
            return Err(Failure::new(format!("the parts are not listed: {result:?}")));
        };
        let mut sizes = Vec::new();
        for entry in Entries::new(&bytes).flatten() {
            if let Some(part) = std::str::from_utf8(entry.name).ok().and_then(part_number) {
                self.parts.entry(part).or_insert(entry.id);
                sizes.push((part, entry.size));
            }
        }
        if let (Some(check), Stage::Serving(stream)) = (&mut self.check, &self.stage) {
            *check = Check::Reading(Box::new(stream.service().revisit(sizes)));
            return Ok(());
        }
        let recovery = Recovery::new(self.config.clone(), sizes);
        let recovery = recovery.map_err(|error| Failure::new(format!("not recovered: {error}")))?;
        self.stage = finish(recovery, &self.parts);
        Ok(())
    }
}

fn finish(recovery: Recovery, parts: &BTreeMap<u64, NodeId>) -> Stage {
    match recovery.finish() {
        Err(going_on) => Stage::Recovering(going_on),
        Ok(mut store) => {
            store.mark_life();
            let mut stream = HostStream::new(store, HostLimits::default());
            for (part, node) in parts {
                stream.name_file(*part as u32, *node);
            }
            Stage::Serving(Box::new(stream))
        }
    }
}

/// What an operation of the log asks of the files; nothing, while the part is not known.
fn request(op: &LogOp, parts: &BTreeMap<u64, NodeId>, watcher: &mut dyn WriteObserver) -> Option<Op> {
    let path = |part: &u64| part_name(*part).into_bytes();
    Some(match op {
        LogOp::Create { part, len, .. } => match parts.get(part) {
            Some(file) => Op::Resize { file: *file, size: *len },
            None => {
                let (base, path) = (ROOT, path(part));
                Op::Metadata(MetadataOp::Open { base, path, create: true, exclusive: false })
            }
        },
        LogOp::Remove { part, .. } => {
            Op::Metadata(MetadataOp::Remove { base: ROOT, path: path(part), only: None })
        }
        LogOp::Flush { .. } => Op::Flush,
        LogOp::Write { part, offset, bytes, is_durable, .. } => {
            let file = *parts.get(part)?;
            let mut from = Pool::new(bytes.len(), 1).take()?;
            from.truncate(bytes.len());
            from.copy_from_slice(bytes);
            // The rings show writes to whoever watches; here there are none.
            watcher.write_taken(file, *offset, bytes);
            Op::Write { file, offset: *offset, from: from.into(), durable: *is_durable }
        }
        LogOp::Read { part, offset, len, .. } => {
            let into = Pool::new(len + 2 * 4096, 1).take()?;
            Op::Read { file: *parts.get(part)?, offset: *offset, len: *len as u32, into }
        }
    })
}
