//! Power is lost at every write of a run, with any part of what was not flushed: what is left must be files as they were.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

use crate::support;

use std::collections::{BTreeMap, BTreeSet};

use ob_core::{Device, NodeId, NodeKind, Token};
use ob_files_card::{MetadataOp, Op, Outcome};
use ob_sim::Rng;
use ob_wire_link::files::ROOT;
use support::journal::{BlockOfChange, Event, Journal, Medium};
use support::model::{History, Moment, Step};
use support::{Image, MemoryDevice, Rig, SMALL, UUID, pattern, slice_of, small_format};

/// Superblocks, and a log of eight sections.
const DATA_START: u64 = 384 << 10;
const LOG_LEN: u64 = 256 << 10;
/// No file gets longer.
const READ_LEN: usize = 128 << 10;
const SEGMENTS: u64 = 128;
/// The run leaves the other segments free, so that it never runs out.
const SEGMENTS_USED_MAX: u64 = 80;

/// The device of a run.
#[derive(Clone, Copy, Debug)]
struct Setup {
    block_len: u32,
    segment_len: u64,
}

/// What a run did, for losing power afterwards.
struct Run {
    setup: Setup,
    history: History,
    start: Image,
    events: Vec<Event>,
    /// What a mark in the journal means.
    marks: Vec<Mark>,
    /// What was done, for people.
    story: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
enum Mark {
    Begun(Step),
    /// All steps up to this one.
    Answered(Step),
    Flushed(Step),
    Durable(Step),
}

struct Runner {
    setup: Setup,
    rig: Rig,
    history: History,
    journal: Journal,
    marks: Vec<Mark>,
    rng: Rng,
    ids: BTreeMap<u64, NodeId>,
    story: Vec<String>,
}

impl Runner {
    /// Formats a device, for steps that follow from the seed.
    fn format(setup: Setup, seed: u64) -> (Self, Image) {
        let mut device = MemoryDevice::new(DATA_START + SEGMENTS * setup.segment_len, setup.block_len);
        ob_files_card::format(&mut device, &small_format(setup.segment_len), UUID).unwrap();
        let start = device.image().clone();
        (Self::mount(setup, start.clone(), seed), start)
    }

    fn mount(setup: Setup, start: Image, seed: u64) -> Self {
        let mut device = MemoryDevice::with(start, setup.block_len);
        let journal = Journal::default();
        device.journal = Some(journal.clone());
        device.credit = Some(0);
        let rng = Rng::new(seed);
        let mut order = rng.fork("device");
        device.order = Some(Box::new(move |limit| order.below(limit)));
        let rig = Rig::mount(device, &SMALL);
        let history = History::new(setup.segment_len, setup.block_len);
        Self { setup, rig, history, journal, marks: Vec::new(), rng, ids: BTreeMap::new(), story: Vec::new() }
    }

    /// Goes on from what a loss of power left.
    fn resume(setup: Setup, start: &Image, seed: u64) -> Self {
        let mut found = Rig::mount(MemoryDevice::with(start.clone(), setup.block_len), &SMALL);
        let mut runner = Self::mount(setup, start.clone(), seed);
        for (path, entry) in found.walk() {
            let bytes = match entry.kind {
                NodeKind::File => found.read(entry.id, 0, READ_LEN).unwrap(),
                NodeKind::Directory => Vec::new(),
            };
            let key = runner.history.adopt(&path, entry.kind, &bytes);
            runner.ids.insert(key, entry.id);
        }
        runner
    }

    fn tell(&mut self, step: Step, what: &str, path: &[u8], numbers: &str) {
        let key = self.history.state(step).get(path).or_else(|| self.history.state(step - 1).get(path));
        let key = key.map(|node| node.key);
        self.story.push(format!("step {step}: {what} {key:?} {numbers}"));
    }

    fn mark(&mut self, mark: Mark) {
        self.journal.push(Event::Mark(self.marks.len() as u64));
        self.marks.push(mark);
    }

    /// Something from what there is.
    fn pick(&mut self, wanted: impl Fn(NodeKind) -> bool) -> Option<Vec<u8>> {
        let names = self.history.names();
        let paths: Vec<&Vec<u8>> =
            names.iter().filter(|(_, node)| wanted(node.kind)).map(|(path, _)| path).collect();
        self.rng.choose(&paths).map(|path| path.to_vec())
    }

    fn id(&self, path: &[u8]) -> NodeId {
        self.ids[&self.history.names()[path].key]
    }

    fn used_segments(&self) -> u64 {
        self.history.names().values().map(|node| node.size.div_ceil(self.setup.segment_len) + 1).sum()
    }

    fn new_path(&mut self) -> Vec<u8> {
        let mut path = match self.rng.below(3) {
            0 => Vec::new(),
            _ => self.pick(|kind| kind == NodeKind::Directory).unwrap_or_default(),
        };
        if path.iter().filter(|byte| **byte == b'/').count() > 3 {
            path.clear();
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        let name = format!("n{}-", self.rng.below(40));
        path.extend(name.as_bytes());
        let padding = if self.rng.one_in(3) { 255 - name.len() } else { self.rng.below(20) as usize };
        path.extend(std::iter::repeat_n(b'x', padding));
        path
    }

    /// A change of names that can be done now, and the model's step for it.
    fn metadata(&mut self, alone: bool) -> Option<(Step, MetadataOp, Option<Vec<u8>>)> {
        let kind = self.rng.below(10);
        if kind < 5 {
            let path = self.new_path();
            if self.history.names().contains_key(&path) || self.history.names().len() > 40 {
                return None;
            }
            let base = ROOT;
            if kind == 0 {
                let step = self.history.create(&path, NodeKind::Directory);
                return Some((step, MetadataOp::MakeDirectory { base, path: path.clone() }, Some(path)));
            }
            let step = self.history.create(&path, NodeKind::File);
            return Some((step, support::create(base, &path), Some(path)));
        }
        let path = self.pick(|_| true)?;
        let below = |path: &[u8], name: &[u8]| name.starts_with(&[path, b"/"].concat());
        let is_empty = |history: &History, path: &[u8]| !history.names().keys().any(|name| below(path, name));
        if kind < 7 {
            // A removal may overtake what waits for room in the log.
            if !alone || !is_empty(&self.history, &path) {
                return None;
            }
            let step = self.history.remove(&path);
            return Some((step, MetadataOp::Remove { base: ROOT, path, only: None }, None));
        }
        let node = self.history.names()[&path].kind;
        let to = if self.rng.one_in(2) { self.pick(|kind| kind == node)? } else { self.new_path() };
        let replaced = self.history.names().get(&to).map(|node| node.kind);
        let legal = replaced.is_none_or(|kind| kind == node) && is_empty(&self.history, &to);
        // The directory of the new name must still be there when the old one is gone.
        if !legal || to == path || below(&path, &to) || below(&to, &path) {
            return None;
        }
        let step = self.history.rename(&path, &to);
        Some((step, support::rename(&path, &to), None))
    }

    /// Changes of names, submitted together.
    fn metadata_batch(&mut self, most: u64) {
        let mut tokens: BTreeMap<Token, Option<u64>> = BTreeMap::new();
        for _ in 0..most {
            let Some((step, op, created)) = self.metadata(most == 1) else { continue };
            let kind = format!("{op:?}");
            let kind = kind.split(' ').next().unwrap_or_default();
            let key = created.as_ref().map(|path| self.history.names()[path].key);
            self.story.push(format!("step {step}: {kind} {key:?}"));
            self.mark(Mark::Begun(step));
            let key = created.map(|path| self.history.names()[&path].key);
            tokens.insert(self.rig.submit(Op::Metadata(op)), key);
        }
        // A file becomes smaller in the same frames.
        if most > 4
            && let Some(op) = self.resize_op()
        {
            tokens.insert(self.rig.submit(op), None);
        }
        while !tokens.is_empty() {
            let completion = self.rig.next();
            let key = tokens.remove(&completion.token).unwrap();
            match (completion.result.unwrap(), key) {
                (Outcome::Node(info), Some(key)) => {
                    self.ids.insert(key, info.id);
                }
                (Outcome::Done | Outcome::Node(_), None) => {}
                other => panic!("unexpected answer {other:?}"),
            }
        }
        self.mark(Mark::Answered(self.history.last()));
    }

    fn write(&mut self) {
        let Some(path) = self.pick(|kind| kind == NodeKind::File) else { return };
        let size = self.history.names()[&path].size;
        let mut offset = self.rng.below(size + 3000);
        let most = if self.rng.one_in(3) { 14_000 } else { 1500 };
        let mut len = 1 + self.rng.below(most);
        if self.rng.one_in(2) {
            let block_len = u64::from(self.setup.block_len);
            offset -= offset % block_len;
            len = len.next_multiple_of(block_len);
        }
        if self.used_segments() + len.div_ceil(self.setup.segment_len) + 2 > SEGMENTS_USED_MAX
            || offset + len > 60_000
        {
            return;
        }
        let durable = self.rng.one_in(5);
        let bytes = pattern(self.history.last() as u64, offset, len as usize);
        let step = self.history.write(&path, offset, &bytes, durable);
        self.tell(step, "write", &path, &format!("at {offset}, {len} bytes, durable: {durable}"));
        self.mark(Mark::Begun(step));
        let op = Op::Write { file: self.id(&path), offset, from: slice_of(&bytes, 0), durable };
        self.rig.run(op).result.unwrap();
        self.mark(Mark::Answered(step));
        if durable {
            self.mark(Mark::Durable(step));
        }
    }

    /// A change of a file's size, mostly to a smaller one.
    fn resize_op(&mut self) -> Option<Op> {
        let path = self.pick(|kind| kind == NodeKind::File)?;
        let size = self.history.names()[&path].size;
        let size = if self.rng.one_in(3) { size + self.rng.below(9000) } else { self.rng.below(size + 1) };
        // A file that was created just now has no id yet.
        let file = *self.ids.get(&self.history.names()[&path].key)?;
        if self.used_segments() + 3 > SEGMENTS_USED_MAX || size > 60_000 {
            return None;
        }
        let step = self.history.resize(&path, size);
        self.tell(step, "resize", &path, &format!("to {size}"));
        self.mark(Mark::Begun(step));
        Some(Op::Resize { file, size })
    }

    fn resize(&mut self) {
        let Some(op) = self.resize_op() else { return };
        self.rig.run(op).result.unwrap();
        self.mark(Mark::Answered(self.history.last()));
    }

    fn zero(&mut self) {
        let Some(path) = self.pick(|kind| kind == NodeKind::File) else { return };
        let size = self.history.names()[&path].size;
        let mut offset = self.rng.below(size + 1);
        let mut len = 1 + self.rng.below(30_000);
        if self.rng.one_in(2) {
            offset -= offset % self.setup.segment_len;
            len = len.next_multiple_of(self.setup.segment_len);
        }
        let step = self.history.zero(&path, offset, len);
        self.tell(step, "zero", &path, &format!("at {offset}, {len} bytes"));
        self.mark(Mark::Begun(step));
        self.rig.run(Op::Zero { file: self.id(&path), offset, len }).result.unwrap();
        self.mark(Mark::Answered(step));
    }

    fn flush(&mut self) {
        let covered = self.history.last();
        self.rig.flush().unwrap();
        self.mark(Mark::Flushed(covered));
    }

    /// The process dies and starts again; the device has not lost its power.
    fn restart(self) -> Self {
        let Self { setup, rig, history, journal, marks, rng, ids, mut story } = self;
        let (_, mut device) = rig.into_parts();
        // What the dead process had under way is done, and nobody hears of it.
        device.credit = None;
        while device.poll().is_some() {}
        device.credit = Some(0);
        story.push(format!("step {}: restart", history.last()));
        let rig = Rig::mount(device, &SMALL);
        let mut runner = Self { setup, rig, history, journal, marks, rng, ids, story };
        // What a mount has read is durable before it goes on.
        runner.mark(Mark::Flushed(runner.history.last()));
        runner
    }

    fn step(&mut self) {
        match self.rng.below(27) {
            0..=6 => self.metadata_batch(1),
            7..=9 => self.metadata_batch(20),
            10..=15 => self.write(),
            16..=19 => self.resize(),
            20 | 21 => self.flush(),
            22..=24 => self.zero(),
            _ => {
                // What goes on by itself goes on between requests too.
                self.rig.device.allow_one();
                self.rig.files.poll(&mut self.rig.device);
            }
        }
    }
}

/// Takes so many steps; everything in them follows from the runner's seed.
fn run(mut runner: Runner, start: Image, steps: usize) -> Run {
    for _ in 0..steps {
        runner.step();
        if runner.rng.one_in(80) {
            runner = runner.restart();
        }
    }
    let found = runner.rig.walk();
    let expected = runner.history.names().clone();
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (path, entry) in found.iter().filter(|(_, entry)| entry.kind == NodeKind::File) {
        let bytes = runner.rig.read(entry.id, 0, READ_LEN).unwrap();
        assert_eq!(
            bytes,
            runner.history.bytes(path),
            "without a loss of power files are as they were written"
        );
    }
    runner.rig.assert_space_is_exact();
    let Runner { setup, history, journal, marks, story, .. } = runner;
    Run { setup, history, start, events: journal.take(), marks, story }
}

/// What was found in the images of a run.
#[derive(Debug, Default)]
struct Tally {
    images: u64,
    /// Images that were used on, and those at whose use power was lost again.
    continued: u64,
    resumed: u64,
    /// Images that had lost something that was answered and not flushed.
    older: u64,
}

/// Checks one image, and sometimes goes on with it.
fn check_image(run: &Run, moment: &Moment, image: &Image, tally: &mut Tally) -> Result<(), String> {
    tally.images += 1;
    let mut device = MemoryDevice::with(image.clone(), run.setup.block_len);
    let report = ob_files_card::check(&mut device, &mut |_, _| {}).map_err(|error| error.to_string())?;
    if !report.findings.is_empty() || !report.superblocks.is_empty() {
        return Err(format!("check finds {:?} and {:?}", report.findings, report.superblocks));
    }
    let files = ob_files_card::mount(&mut device, &SMALL).map_err(|error| error.to_string())?;
    let space = files.space_info();
    if (report.total, report.free) != (space.total, space.free) {
        return Err(format!("check counts {report:?}, the mount {space:?}"));
    }
    let mut rig = Rig::from_parts(files, device);
    let found = rig.walk();
    rig.assert_space_is_exact();
    let kinds = |kind| found.values().filter(|entry| entry.kind == kind).count() as u64;
    if (space.files, space.directories) != (kinds(NodeKind::File), kinds(NodeKind::Directory) + 1) {
        return Err(format!("files and directories are miscounted: {space:?}"));
    }
    let is_state = |step: &Step| {
        let names = run.history.state(*step);
        let same = |((path, entry), (other_path, node)): ((&Vec<u8>, &support::Listed), _)| {
            let node: &support::model::Node = node;
            let size = entry.kind == NodeKind::Directory || entry.size == node.size;
            path == other_path && entry.kind == node.kind && size
        };
        names.len() == found.len() && found.iter().zip(names).all(same)
    };
    let mut steps: Vec<Step> = (run.history.oldest(moment)..=moment.begun).filter(is_state).collect();
    if steps.is_empty() {
        let before = (0..moment.begun).rev().find(is_state);
        return Err(format!(
            "names and sizes are of no step in {moment:?}; an older one: {before:?}: {found:?}"
        ));
    }
    tally.older += u64::from(steps.iter().all(|step| *step < moment.begun));
    let mut why = String::new();
    let mut bytes = BTreeMap::new();
    for (path, entry) in found.iter().filter(|(_, entry)| entry.kind == NodeKind::File) {
        let mut read = rig.read(entry.id, 0, READ_LEN).map_err(|error| error.to_string())?;
        if read.len() as u64 != entry.size {
            return Err(format!("{} bytes of {entry:?} can be read", read.len()));
        }
        steps.retain(|step| {
            let key = run.history.state(*step)[path].key;
            let explained = run.history.explains(moment, *step, key, &read);
            explained.map_err(|error| why = error).is_ok()
        });
        read.shrink_to_fit();
        bytes.insert(path.clone(), read);
    }
    if steps.is_empty() {
        return Err(format!("{why} ({moment:?})"));
    }
    if tally.images.is_multiple_of(16) {
        tally.continued += 1;
        go_on(rig, &bytes)?;
    }
    Ok(())
}

/// Files that survived can be used: they grow with zeros, and what is written and flushed is there after another mount.
fn go_on(mut rig: Rig, bytes: &BTreeMap<Vec<u8>, Vec<u8>>) -> Result<(), String> {
    let text = |error| format!("going on after the loss of power: {error}");
    let mut expected = bytes.clone();
    for (index, (path, bytes)) in expected.iter_mut().enumerate() {
        let id = rig.stat(ROOT, path).map_err(text)?.id;
        let end = bytes.len() as u64;
        if index % 2 == 0 {
            rig.resize(id, end + 5000).map_err(text)?;
            bytes.resize(bytes.len() + 5000, 0);
        } else if index < 20 {
            let more = pattern(99, end + 700, 100);
            rig.write(id, end + 700, &more).map_err(text)?;
            bytes.resize(bytes.len() + 700, 0);
            bytes.extend(more);
        }
    }
    if rig.files.space_info().free > 0 {
        rig.create(ROOT, b"after the loss of power").map_err(text)?;
    }
    rig.flush().map_err(text)?;
    let (image, block_len) = (rig.device.image().clone(), rig.device.info().block_len);
    let mut rig = Rig::mount(MemoryDevice::with(image, block_len), &SMALL);
    for (path, bytes) in &expected {
        let id = rig.stat(ROOT, path).map_err(text)?.id;
        if rig.read(id, 0, bytes.len() + 1).map_err(text)? != *bytes {
            let name = String::from_utf8_lossy(path);
            return Err(format!("file {name} is not what was there and was added"));
        }
    }
    rig.assert_space_is_exact();
    Ok(())
}

/// Which blocks of those at risk are kept, in each image that is made of one moment.
fn choices(at_risk: &[BlockOfChange], newest: Option<u64>, rng: &mut Rng) -> Vec<BTreeSet<BlockOfChange>> {
    let all: BTreeSet<BlockOfChange> = at_risk.iter().copied().collect();
    let mut kept = vec![all.clone(), BTreeSet::new()];
    if at_risk.is_empty() {
        kept.truncate(1);
        return kept;
    }
    let of_newest: Vec<BlockOfChange> =
        at_risk.iter().filter(|(id, _)| Some(*id) == newest).copied().collect();
    // The newest change is torn after each of its blocks (a large one, at some of them).
    for end in 1..of_newest.len() {
        if of_newest.len() <= 16 || rng.one_in(of_newest.len() as u64 / 8) {
            let lost: BTreeSet<_> = of_newest[end..].iter().copied().collect();
            kept.push(all.difference(&lost).copied().collect());
        }
    }
    let mut singles: Vec<BlockOfChange> = at_risk.to_vec();
    rng.shuffle(&mut singles);
    singles.truncate(2);
    singles.extend(of_newest.first());
    for single in singles {
        kept.push(all.iter().filter(|block| **block != single).copied().collect());
        kept.push(BTreeSet::from([single]));
    }
    for _ in 0..2 {
        kept.push(all.iter().filter(|_| rng.one_in(2)).copied().collect());
    }
    kept
}

/// Loses power at every event of a run, and `again` and again while what is left of some images is used.
fn lose_power_everywhere(run: &Run, seed: u64, again: u32, tally: &mut Tally) {
    let mut medium = Medium::new(run.start.clone(), run.setup.block_len);
    let (mut moment, mut answered) = (Moment::default(), 0);
    let mut rng = Rng::new(seed).fork("power");
    for (index, event) in run.events.iter().enumerate() {
        medium.apply(event);
        let newest = match event {
            Event::Started(change) => Some(change.id),
            Event::FlushStarted(_) => None,
            Event::Finished(_) | Event::Read => continue,
            Event::Mark(mark) => {
                match run.marks[*mark as usize] {
                    Mark::Begun(step) => moment.begun = step,
                    Mark::Answered(step) => answered = step,
                    Mark::Flushed(step) => moment.flushed = moment.flushed.max(step),
                    Mark::Durable(step) => moment.durable.push(step),
                }
                continue;
            }
        };
        let at_risk = medium.at_risk();
        // Where only the process dies, the device keeps what it has answered for, and the rest or not.
        let mut killed = medium.answered_for();
        killed.extend(at_risk.iter().filter(|_| rng.one_in(2)));
        let dies = (Moment { flushed: answered, ..moment.clone() }, killed);
        let loses_power = choices(&at_risk, newest, &mut rng).into_iter().map(|kept| (moment.clone(), kept));
        for (moment, kept) in std::iter::once(dies).chain(loses_power) {
            let image = medium.image(&kept);
            if let Err(error) = check_image(run, &moment, &image, tally) {
                let event = event.describe();
                println!("{}", run.story.join("\n"));
                panic!("{:?}, seed {seed}, event {index} ({event}), kept {kept:?}: {error}", run.setup);
            }
            if again > 0 && rng.one_in(1000) {
                tally.resumed += 1;
                let seed = rng.word();
                let next = self::run(Runner::resume(run.setup, &image, seed), image, 12);
                lose_power_everywhere(&next, seed, again - 1, tally);
            }
        }
    }
}

/// Loses power everywhere in a run that goes round the log more than once.
fn lose_power(setup: Setup, seed: u64, steps: usize) {
    let (runner, start) = Runner::format(setup, seed);
    let run = run(runner, start, steps);
    let in_log = |offset: u64| (DATA_START - LOG_LEN..DATA_START).contains(&offset);
    let mut log_written = 0;
    let mut superblocks = 0;
    for event in &run.events {
        if let Event::Started(change) = event {
            log_written += if in_log(change.offset) { change.len } else { 0 };
            let is_superblock = change.offset < DATA_START - LOG_LEN;
            superblocks += u64::from(is_superblock);
            assert!(!is_superblock || change.durable, "sections are given back when a superblock is durable");
        }
    }
    assert!(
        log_written > LOG_LEN && superblocks > 4,
        "the log wraps around: {log_written} bytes, {superblocks}"
    );
    let mut tally = Tally::default();
    lose_power_everywhere(&run, seed, 2, &mut tally);
    println!("{setup:?}, seed {seed}: {} events, {log_written} bytes of log, {tally:?}", run.events.len());
    assert!(tally.images > 2000 && tally.continued > 100 && tally.resumed > 2 && tally.older > 1000);
}

#[test]
fn power_may_be_lost_at_every_write_of_small_blocks() {
    lose_power(Setup { block_len: 512, segment_len: 4096 }, 1, 700);
}

#[test]
fn power_may_be_lost_at_every_write_of_large_blocks() {
    lose_power(Setup { block_len: 4096, segment_len: 8192 }, 2, 300);
}
