//! Random requests, most of them sensible.

use ob_core::{NodeId, NodeKind};
use ob_sim::Rng;
use ob_wire_link::files::{Operation, RequestHeader, flag};

use super::host::{Wire, header};
use super::hostile;
use super::model::{Key, Model, NameOp, ROOT_KEY, What, content};
use super::plan::{Plan, Sort};

/// Few names, so that they meet; one as long as can be, and some of bytes that are no text.
const NAMES: &[&[u8]] = &[b"a", b"b", b"c", b"dir", b"sub", b"\xff\xfe", b"a b", b"..."];

/// What the model is told when a request is sent.
#[derive(Clone, Debug)]
pub(super) enum Intent {
    Read { key: Key, offset: u64, len: u32 },
    Write { key: Key, offset: u64, len: u32, durable: bool },
    Resize { key: Key, size: u64 },
    Zero { key: Key, offset: u64, len: u32 },
    Name(NameOp),
    Other(What),
}

/// A request before it is sent.
pub(super) struct Draft {
    pub(super) wire: Wire,
    pub(super) intent: Intent,
}

/// What a host can send.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) transfer_max: u32,
    pub(super) write_max: u32,
    pub(super) inline_max: usize,
}

/// Draws requests.
pub(super) struct Generator<'a> {
    pub(super) rng: &'a mut Rng,
    pub(super) model: &'a Model,
    pub(super) plan: &'a Plan,
    pub(super) limits: Limits,
}

impl Generator<'_> {
    /// A request, or none if what was drawn cannot be sent now.
    pub(super) fn draw(&mut self) -> Option<Draft> {
        if self.rng.one_in(self.plan.hostile_one_in) {
            return hostile::draw(self);
        }
        match self.plan.sort(self.rng) {
            Sort::Write => self.write(),
            Sort::Read => self.read(),
            Sort::Resize => self.resize(),
            Sort::Zero => self.zero(),
            Sort::Flush => Some(plain(Operation::Flush, What::Flush)),
            Sort::Create => self.create(),
            Sort::MakeDirectory => self.make_directory(),
            Sort::Remove => self.remove(),
            Sort::Rename => self.rename(),
            Sort::List => self.list(),
            Sort::Look => self.look(),
            Sort::Space => Some(plain(Operation::Space, What::Space)),
        }
    }

    /// A file that is there; now and then one that is gone.
    pub(super) fn file(&mut self) -> Option<(Key, NodeId)> {
        if self.rng.one_in(30) {
            let known: Vec<_> = self.model.known().collect();
            let chosen = self.rng.choose(&known).copied();
            let is_directory = |key| self.model.tree().kind(key) == Some(NodeKind::Directory);
            return chosen.filter(|(key, _)| !is_directory(*key) && !self.model.was_directory(*key));
        }
        let files = self.model.live_files();
        let key = *self.rng.choose(&files)?;
        Some((key, self.model.id(key)?))
    }

    fn offset(&mut self, key: Key) -> u64 {
        let size = self.model.largest_size(key);
        let block = u64::from(self.plan.disk.block_len);
        let segment = self.plan.segment_len;
        let anywhere = self.rng.below(self.plan.span);
        match self.rng.below(10) {
            0 => 0,
            1 => size,
            2 => size.saturating_sub(self.rng.below(2 * block)),
            3 => (anywhere / segment) * segment,
            4 => ((anywhere / segment + 1) * segment).saturating_sub(self.rng.below(2 * block)),
            5..8 => anywhere / block * block,
            _ => anywhere,
        }
    }

    fn len(&mut self, most: u32) -> u32 {
        let block = self.plan.disk.block_len;
        let len = match self.rng.below(10) {
            0 => 1,
            1 => self.rng.below(16) as u32,
            2 => self.rng.below(u64::from(block)) as u32,
            3..6 => block * (1 + self.rng.below(4) as u32),
            6..8 => self.rng.below(u64::from(most) + 1) as u32,
            8 => most / block * block,
            _ => most,
        };
        len.min(most)
    }

    fn write(&mut self) -> Option<Draft> {
        let (key, node) = self.file()?;
        if !self.model.may_change(key, false) {
            return None;
        }
        let far = 1u64 << self.rng.range(20..44);
        let offset = if self.rng.one_in(200) { far } else { self.offset(key) };
        let len = self.len(self.limits.write_max);
        let durable = self.rng.one_in(10);
        let mut payload = vec![0; len as usize];
        content::fill(self.model.next_op(), offset, &mut payload);
        let align = if self.rng.one_in(4) { 8 } else { self.plan.disk.block_len.min(4096) };
        let flags = if durable { flag::DURABLE } else { 0 };
        let header = RequestHeader { flags, length: len, offset, ..header(Operation::Write, node) };
        let mut wire = Wire::of(&header, &[]);
        wire.payload = Some((payload, align));
        Some(Draft { wire, intent: Intent::Write { key, offset, len, durable } })
    }

    fn read(&mut self) -> Option<Draft> {
        let (key, node) = self.file()?;
        let far = *self.rng.choose(&[u64::MAX, u64::MAX - 4095, 1 << 63, 1 << 40])?;
        let offset = if self.rng.one_in(100) { far } else { self.offset(key) };
        let len = self.len(self.limits.transfer_max);
        Some(read(key, node, offset, len))
    }

    fn resize(&mut self) -> Option<Draft> {
        let (key, node) = self.file()?;
        if !self.model.may_change(key, true) {
            return None;
        }
        let current = self.model.largest_size(key);
        let size = match self.rng.below(8) {
            0 => 0,
            1 => current,
            2 => current + self.rng.below(2 * self.plan.segment_len),
            3 => current.saturating_sub(self.rng.below(2 * self.plan.segment_len)),
            4 => self.rng.below(self.plan.span) / self.plan.segment_len * self.plan.segment_len,
            5 if self.rng.one_in(10) => 1 << self.rng.range(20..44),
            _ => self.rng.below(self.plan.span),
        };
        let header = RequestHeader { offset: size, ..header(Operation::Resize, node) };
        Some(Draft { wire: Wire::of(&header, &[]), intent: Intent::Resize { key, size } })
    }

    fn zero(&mut self) -> Option<Draft> {
        let (key, node) = self.file()?;
        let far = *self.rng.choose(&[u64::MAX, 1 << 63, 1 << 40])?;
        let offset = if self.rng.one_in(100) { far } else { self.offset(key) };
        let segments = self.plan.segment_len * (1 + self.rng.below(6));
        let len = match self.rng.below(4) {
            0 => self.len(self.limits.transfer_max),
            1 => self.rng.below(segments) as u32,
            2 if self.rng.one_in(4) => u32::MAX,
            _ => segments as u32,
        };
        let header = RequestHeader { offset, length: len, ..header(Operation::Zero, node) };
        Some(Draft { wire: Wire::of(&header, &[]), intent: Intent::Zero { key, offset, len } })
    }

    fn name(&mut self) -> Vec<u8> {
        if self.rng.one_in(40) {
            return vec![b'n'; 255];
        }
        if self.plan.names > NAMES.len() as u64 {
            // Each of them short or long.
            let mut name = format!("{}-", self.rng.below(self.plan.names)).into_bytes();
            name.resize(if self.rng.one_in(3) { 8 } else { 250 }, b'x');
            return name;
        }
        self.rng.choose(NAMES).map_or_else(Vec::new, |name| name.to_vec())
    }

    /// Where a path starts, and the path: to something that is there, or to anything.
    pub(super) fn place(&mut self) -> Option<(Key, NodeId, Vec<u8>)> {
        let paths = self.model.tree().paths();
        if self.rng.one_in(2) {
            let paths: Vec<_> = paths.into_keys().collect();
            let path = self.rng.choose(&paths)?.clone();
            return Some((ROOT_KEY, self.model.id(ROOT_KEY)?, path));
        }
        let known: Vec<_> = self.model.known().collect();
        let there: Vec<_> = known
            .iter()
            .copied()
            .filter(|(key, _)| self.model.tree().kind(*key) == Some(NodeKind::Directory))
            .collect();
        let from_anywhere = self.rng.one_in(10);
        let (key, node) = *self.rng.choose(if from_anywhere { &known } else { &there })?;
        let names: Vec<Vec<u8>> = (0..1 + self.rng.below(5) / 3).map(|_| self.name()).collect();
        Some((key, node, names.join(&b'/')))
    }

    /// A request about names, if nothing is on its way that it could depend on.
    fn named(&self, wire: Wire, op: NameOp) -> Option<Draft> {
        let free = self.model.names_pending() < self.plan.names_at_once && self.model.may_ask_name(&op);
        free.then_some(Draft { wire, intent: Intent::Name(op) })
    }

    fn create(&mut self) -> Option<Draft> {
        let (base, node, path) = match self.plan.names > NAMES.len() as u64 {
            true => (ROOT_KEY, self.model.id(ROOT_KEY)?, self.name()),
            false => self.place()?,
        };
        let exclusive = self.rng.one_in(2);
        let flags = flag::CREATE | if exclusive { flag::EXCLUSIVE } else { 0 };
        let header = RequestHeader { flags, ..header(Operation::Open, node) };
        self.named(Wire::of(&header, &path), NameOp::Create { base, path, exclusive })
    }

    fn make_directory(&mut self) -> Option<Draft> {
        let (base, node, path) = self.place()?;
        let wire = Wire::of(&header(Operation::MakeDirectory, node), &path);
        self.named(wire, NameOp::MakeDirectory { base, path })
    }

    fn remove(&mut self) -> Option<Draft> {
        let (base, node, path) = match self.rng.below(5) {
            0 => self.file().map(|(key, node)| (key, node, Vec::new()))?,
            // Under the hands of those who are at its data.
            1 | 2 => {
                let busy: Vec<Key> = self.model.busy_files().collect();
                let key = *self.rng.choose(&busy)?;
                (key, self.model.id(key)?, Vec::new())
            }
            _ => self.place()?,
        };
        let (only, flags) = match self.rng.below(4) {
            0 => (Some(NodeKind::File), flag::ONLY_FILE),
            1 => (Some(NodeKind::Directory), flag::ONLY_DIRECTORY),
            _ => (None, 0),
        };
        let header = RequestHeader { flags, ..header(Operation::Remove, node) };
        self.named(Wire::of(&header, &path), NameOp::Remove { base, path, only })
    }

    fn rename(&mut self) -> Option<Draft> {
        let ((base, node, path), (to_base, node_more, to_path)) = (self.place()?, self.place()?);
        let replace = !self.rng.one_in(3);
        let header = RequestHeader {
            flags: if replace { 0 } else { flag::NO_REPLACE },
            length: path.len() as u32,
            node_more,
            ..header(Operation::Rename, node)
        };
        let wire = Wire::of(&header, &[&path[..], &to_path].concat());
        self.named(wire, NameOp::Rename { base, path, to_base, to_path, replace })
    }

    fn list(&mut self) -> Option<Draft> {
        let known: Vec<_> = self.model.known().collect();
        let (directory, node) = if self.rng.one_in(2) {
            (ROOT_KEY, self.model.id(ROOT_KEY)?)
        } else {
            *self.rng.choose(&known)?
        };
        let after = if self.rng.one_in(2) { Vec::new() } else { self.name() };
        let length = self.rng.below(400) as u32;
        Some(list(directory, node, after, length, self.limits.transfer_max))
    }

    fn look(&mut self) -> Option<Draft> {
        let (base, node, path) = self.place()?;
        let path = if self.rng.one_in(3) { Vec::new() } else { path };
        let operation = if self.rng.one_in(2) { Operation::Stat } else { Operation::Open };
        let wire = Wire::of(&header(operation, node), &path);
        Some(Draft { wire, intent: Intent::Other(What::Look { base, path }) })
    }
}

/// A request that is only a header.
pub(super) fn plain(operation: Operation, what: What) -> Draft {
    Draft { wire: Wire::of(&header(operation, NodeId(0)), &[]), intent: Intent::Other(what) }
}

/// A read.
pub(super) fn read(key: Key, node: NodeId, offset: u64, len: u32) -> Draft {
    let header = RequestHeader { length: len, offset, ..header(Operation::Read, node) };
    Draft { wire: Wire::of(&header, &[]), intent: Intent::Read { key, offset, len } }
}

/// A list of a directory.
pub(super) fn list(directory: Key, node: NodeId, after: Vec<u8>, length: u32, transfer_max: u32) -> Draft {
    let header = RequestHeader { length, ..header(Operation::List, node) };
    let wire = Wire::of(&header, &after);
    Draft { wire, intent: Intent::Other(What::List { directory, after, most: length.min(transfer_max) }) }
}
