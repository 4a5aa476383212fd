//! The card's files, and who changes them all the time from within the card.
//!
//! A change is one request to the files: between two of them a file is in a state that the model has. A chain must have found one state of
//! each file, and there must be a moment within the request at which all of these were there.

use std::collections::{BTreeMap, VecDeque};

use ob_core::{NodeId, Token};
use ob_files_card::{Completion, LocalFiles, MetadataOp, Op, Outcome};
use ob_format::files::ROOT;
use ob_memory::{Pool, Source};
use ob_sim::{Failure, Report, Rng};

use super::Ticks;
use super::node::{Content, Entry, NODE, NODES};

/// The folder that hosts may use.
pub(super) const FOLDER: &str = "shared";

/// All of them.
pub(super) struct Named {
    local: LocalFiles,
    pool: Pool,
    ticks: Ticks,
    slots: Vec<Slot>,
    /// Files that are written one after another: a newer one of a later file is never there together with an older one of an earlier.
    procession: VecDeque<usize>,
    lives: BTreeMap<u64, Life>,
    /// Which slot waits for which token.
    out: BTreeMap<u64, usize>,
    tokens: u64,
}

/// A name, and what is done to what has it.
struct Slot {
    steps: VecDeque<Step>,
    /// What is being done.
    current: Option<Step>,
    file: Option<Lived>,
    /// What is to be renamed to the name.
    next: Option<Lived>,
}

/// A file that was created once.
#[derive(Clone, Copy, Debug)]
struct Lived {
    owner: u64,
    node: NodeId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    MakeFolder,
    Create { is_beside: bool },
    Write { from: u64, to: u64, stamp: u64, is_beside: bool },
    Resize(u64),
    Remove,
    RenameOver,
}

/// What became of a file.
struct Life {
    slot: usize,
    states: Vec<State>,
}

struct State {
    /// Nothing once it is removed.
    content: Option<Content>,
    /// When the change to it was begun, and when the one from it was over.
    from: u64,
    until: u64,
}

impl Named {
    pub(super) fn new(local: LocalFiles, names: usize, ticks: Ticks) -> Self {
        let whole = Step::Write { from: 0, to: NODES, stamp: 0, is_beside: false };
        let slots = (0..names).map(|_| Slot {
            steps: [Step::Create { is_beside: false }, whole].into(),
            current: None,
            file: None,
            next: None,
        });
        let mut slots: Vec<Slot> = slots.collect();
        slots[0].steps.push_front(Step::MakeFolder);
        let pool = Pool::new((NODE * NODES) as usize, names + 1);
        let (procession, lives, out) = (VecDeque::new(), BTreeMap::new(), BTreeMap::new());
        Self { local, pool, ticks, slots, procession, lives, out, tokens: 0 }
    }

    pub(super) fn names(&self) -> usize {
        self.slots.len()
    }

    /// What hosts call it.
    pub(super) fn name(slot: usize) -> String {
        format!("file{slot}")
    }

    /// Whether nothing is being changed, nor about to be.
    pub(super) fn is_quiet(&self) -> bool {
        self.slots.iter().all(|slot| slot.current.is_none() && slot.steps.is_empty())
    }

    /// Begins to change a file, if it is not being changed.
    pub(super) fn change(&mut self, rng: &mut Rng, report: &mut Report) {
        let number = rng.index(self.slots.len());
        if self.procession.is_empty() && rng.one_in(4) {
            self.procession.extend((0..self.slots.len()).map(|after| (number + after) % self.slots.len()));
            return;
        }
        let Some(len) = self.content(number).map(|content| content.len) else { return };
        let slot = &mut self.slots[number];
        if slot.current.is_some() || !slot.steps.is_empty() || !self.procession.is_empty() {
            return;
        }
        let whole = |is_beside| Step::Write { from: 0, to: NODES, stamp: 0, is_beside };
        let nodes = len / NODE;
        match rng.below(12) {
            // A file that ends within a node ends before it next.
            _ if !len.is_multiple_of(NODE) => slot.steps.push_back(Step::Resize(nodes * NODE)),
            0..=5 => {
                let from = rng.below(nodes + 1).min(NODES - 1);
                let to = from + 1 + rng.below(NODES - from);
                slot.steps.push_back(Step::Write { from, to, stamp: 0, is_beside: false });
            }
            6 => slot.steps.push_back(whole(false)),
            7 | 8 => {
                let size = rng.below(NODES + 1) * NODE;
                let size = if size > len || rng.one_in(2) { size } else { size + 8 * rng.below(NODE / 8) };
                slot.steps.push_back(Step::Resize(size.min(NODES * NODE)));
            }
            9 => {
                report.count("files created anew", 1);
                let steps = [Step::Remove, Step::Create { is_beside: false }, whole(false)];
                slot.steps.extend(steps);
            }
            _ => {
                report.count("files renamed over", 1);
                let steps = [Step::Create { is_beside: true }, whole(true), Step::RenameOver];
                slot.steps.extend(steps);
            }
        }
    }

    /// Makes every file whole again.
    pub(super) fn mend(&mut self) {
        for slot in &mut self.slots {
            slot.steps.push_back(Step::Write { from: 0, to: NODES, stamp: 0, is_beside: false });
        }
    }

    /// Takes what is over, and begins what comes next; whether anything moved.
    pub(super) fn turn(&mut self) -> Result<bool, Failure> {
        let mut moved = false;
        while let Some(completion) = self.local.poll() {
            moved = true;
            self.over(completion)?;
        }
        self.proceed();
        for number in 0..self.slots.len() {
            // The folder is there before anything else.
            let is_first = self.slots[0].steps.front() == Some(&Step::MakeFolder)
                || self.slots[0].current == Some(Step::MakeFolder);
            if self.slots[number].current.is_none() && (number == 0 || !is_first) {
                moved |= self.begin(number);
            }
        }
        Ok(moved)
    }

    /// Writes the next file of the procession, when the one before is written.
    fn proceed(&mut self) {
        let Some(number) = self.procession.front().copied() else { return };
        if !self.is_quiet() || self.content(number).is_none() {
            return;
        }
        self.procession.pop_front();
        let whole = Step::Write { from: 0, to: NODES, stamp: 0, is_beside: false };
        self.slots[number].steps.push_back(whole);
    }

    fn begin(&mut self, number: usize) -> bool {
        let Some(step) = self.slots[number].steps.pop_front() else { return false };
        let now = self.ticks.next();
        let base = ROOT;
        let path = format!("{FOLDER}/{}", Self::name(number)).into_bytes();
        let beside = format!("{FOLDER}/{}.new", Self::name(number)).into_bytes();
        let (file, next) = (self.slots[number].file, self.slots[number].next);
        let mut step = step;
        let op = match &mut step {
            Step::MakeFolder => {
                Op::Metadata(MetadataOp::MakeDirectory { base, path: FOLDER.as_bytes().to_vec() })
            }
            Step::Create { is_beside } => {
                let path = if *is_beside { beside } else { path };
                Op::Metadata(MetadataOp::Open { base, path, create: true, exclusive: true })
            }
            Step::Write { from, to, stamp, is_beside } => {
                let Some(lived) = (if *is_beside { next } else { file }) else { return false };
                *stamp = now;
                let (from, to) = (*from, *to);
                let changed = self.changed(lived.owner, now, |content| {
                    content.stamps.iter_mut().take(to as usize).skip(from as usize).for_each(|at| *at = now);
                    content.len = content.len.max(to * NODE);
                });
                let bytes = changed.bytes(from, to);
                let Some(mut buffer) = self.pool.take() else { return false };
                buffer.truncate(bytes.len());
                buffer.copy_from_slice(&bytes);
                let from = Source::Owned(buffer);
                let offset = (to * NODE).saturating_sub(bytes.len() as u64);
                Op::Write { file: lived.node, offset, from, durable: false }
            }
            Step::Resize(size) => {
                let (Some(lived), size) = (file, *size) else { return false };
                self.changed(lived.owner, now, |content| {
                    content.len = size;
                    let whole = size.div_ceil(NODE) as usize;
                    content.stamps.iter_mut().skip(whole).for_each(|stamp| *stamp = 0);
                });
                Op::Resize { file: lived.node, size }
            }
            Step::Remove | Step::RenameOver => {
                if let Some(life) = file.and_then(|lived| self.lives.get_mut(&lived.owner)) {
                    life.states.push(State { content: None, from: now, until: u64::MAX });
                }
                if step == Step::Remove {
                    Op::Metadata(MetadataOp::Remove { base, path, only: None })
                } else {
                    let to = MetadataOp::Rename {
                        base,
                        path: beside,
                        to_base: base,
                        to_path: path,
                        replace: true,
                    };
                    Op::Metadata(to)
                }
            }
        };
        self.tokens += 1;
        self.slots[number].current = Some(step);
        self.out.insert(self.tokens, number);
        self.local.submit(Token(self.tokens), op).is_ok()
    }

    /// The next state of a file, which begins now.
    fn changed(&mut self, owner: u64, now: u64, change: impl FnOnce(&mut Content)) -> Content {
        let Some(life) = self.lives.get_mut(&owner) else { return Content::default() };
        let mut content = life.states.last().and_then(|state| state.content.clone()).unwrap_or_default();
        change(&mut content);
        life.states.push(State { content: Some(content.clone()), from: now, until: u64::MAX });
        content
    }

    fn over(&mut self, completion: Completion) -> Result<(), Failure> {
        let now = self.ticks.next();
        let number = self.out.remove(&completion.token.0).ok_or_else(|| Failure::new("nobody asked"))?;
        let step = self.slots[number].current.take().ok_or_else(|| Failure::new("nothing was asked"))?;
        let outcome = completion
            .result
            .map_err(|error| Failure::new(format!("{step:?} of the card's file {number}: {error}")))?;
        let slot = &mut self.slots[number];
        let mut ended = slot.file;
        match step {
            Step::Create { is_beside } => {
                let Outcome::Node(node) = outcome else { return Err(Failure::new("no node was created")) };
                let lived = Lived { owner: now, node: node.id };
                let content = Content { owner: now, stamps: vec![0; NODES as usize], len: 0 };
                let states = vec![State { content: Some(content), from: now, until: u64::MAX }];
                self.lives.insert(now, Life { slot: number, states });
                if is_beside {
                    slot.next = Some(lived);
                } else {
                    slot.file = Some(lived);
                }
                return Ok(());
            }
            Step::Write { is_beside: true, .. } => ended = slot.next,
            Step::Remove => slot.file = None,
            Step::RenameOver => slot.file = slot.next.take(),
            Step::MakeFolder => return Ok(()),
            Step::Write { .. } | Step::Resize(_) => {}
        }
        if let Some(life) = ended.and_then(|lived| self.lives.get_mut(&lived.owner))
            && let [.., before, _] = life.states.as_mut_slice()
        {
            before.until = now;
        }
        Ok(())
    }

    /// What a file is like when nothing is done to it.
    fn content(&self, slot: usize) -> Option<&Content> {
        let life = self.lives.get(&self.slots[slot].file?.owner)?;
        life.states.last()?.content.as_ref()
    }

    /// Fails unless the entries of each file are of one state of it, and there was a moment at which all of them were, and what others found was
    /// there, too.
    pub(super) fn check(
        &self,
        files: &[(usize, Vec<Entry>)],
        others: Vec<Vec<(u64, u64)>>,
        read_len: u32,
        (began, ended): (u64, u64),
    ) -> Result<(), Failure> {
        let mut found = others;
        for (slot, entries) in files {
            let states = self.lives.values().filter(|life| life.slot == *slot).flat_map(|life| &life.states);
            let during = states.filter(|state| state.from <= ended && state.until >= began);
            let agreeing = during.filter(|state| {
                let content = state.content.as_ref();
                content.is_some_and(|content| entries.iter().all(|entry| content.agrees(entry, read_len)))
            });
            let spans: Vec<(u64, u64)> =
                agreeing.map(|state| (state.from.max(began), state.until.min(ended))).collect();
            if spans.is_empty() {
                let what = format!(
                    "between {began} and {ended}, {} was never what was found: {entries:?}",
                    Self::name(*slot)
                );
                return Err(Failure::new(what));
            }
            found.push(spans);
        }
        let has = |spans: &Vec<(u64, u64)>, at: u64| {
            spans.iter().any(|(from, until)| (*from..=*until).contains(&at))
        };
        let mut moments = found.iter().flatten().map(|(from, _)| *from);
        if found.is_empty() || moments.any(|at| found.iter().all(|spans| has(spans, at))) {
            return Ok(());
        }
        Err(Failure::new(format!("{files:?} were never so at one moment, but at {found:?}")))
    }
}
