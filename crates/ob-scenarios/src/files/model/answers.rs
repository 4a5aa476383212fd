//! Judging answers.

use std::collections::BTreeSet;

use ob_core::{NodeId, NodeKind};
use ob_sim::Failure;
use ob_wire_link::files::{Entries, FileError, NodeInfo, entry_len};

use super::bytes::Fate;
use super::size::Effect;
use super::tree::{Locks, NameChange, Verdict};
use super::{Answer, Asked, File, Key, Model, NEVER, ROOT_KEY, Tick, Tree, What};

type Judged = Result<(), Failure>;

fn wrong(what: impl Into<String>) -> Judged {
    Err(Failure::new(what))
}

impl Model {
    /// Judges an answer, and learns from it.
    pub(crate) fn answer(&mut self, asked: &Asked, answer: &Answer) -> Judged {
        let now = self.next_tick();
        self.outstanding.remove(&asked.at);
        if answer.status == Err(FileError::ReadOnly) {
            self.frozen = true;
        }
        let judged = match &asked.what {
            What::Read { key, offset, len } => self.answer_read(asked.at, *key, *offset, *len, answer),
            What::Write { .. } => self.answer_write(asked, answer, now),
            What::Resize { .. } => self.answer_resize(asked, answer, now),
            What::Zero { .. } => self.answer_zero(asked, answer, now),
            What::Flush => self.answer_flush(asked.at, answer),
            What::Name { .. } => self.answer_name(asked, answer, now),
            What::Look { base, path } => self.answer_look(asked.at, *base, path, answer),
            What::List { directory, after, most } => {
                self.answer_list(asked.at, *directory, after, *most, answer)
            }
            What::Space => match answer.status {
                Ok(()) => Ok(()),
                Err(error) if self.is_trouble(error) => Ok(()),
                Err(error) => wrong(format!("SPACE was answered with {error:?}")),
            },
            What::Hostile { refusals } => match answer.status {
                Err(error) if refusals.contains(&error) || self.is_trouble(error) => Ok(()),
                // Which of two reasons is told is not said anywhere.
                Err(FileError::NoSpace) if self.may_be_full_since(asked.at, false) => Ok(()),
                status => {
                    wrong(format!("a request that cannot be was answered with {status:?}, not {refusals:?}"))
                }
            },
            What::Nothing => Ok(()),
        };
        self.count_segments();
        judged.map_err(|failure| Failure::new(format!("{}; asked: {:?}", failure.what, asked)))
    }

    /// Whether the device's failing explains an error.
    fn is_trouble(&self, error: FileError) -> bool {
        self.errors && matches!(error, FileError::Io | FileError::ReadOnly)
    }

    /// Whether `NOT_FOUND` for a file's data can be, and whether anything else can.
    fn judge_presence(&self, key: Key, asked: Tick, status: Result<(), FileError>) -> Judged {
        let removal = self.files.get(&key).map(|file| file.removal);
        let (may_be_gone, must_be_gone) = match removal {
            None => (true, true),
            Some(None) => (false, false),
            Some(Some((_, answered))) => (true, answered < asked),
        };
        match status {
            Err(FileError::NotFound) if !may_be_gone => wrong("NOT_FOUND for a file that is there"),
            Err(FileError::NotFound) => Ok(()),
            Err(error) if self.is_trouble(error) => Ok(()),
            status if must_be_gone => wrong(format!("a file that is gone answered {status:?}")),
            _ => Ok(()),
        }
    }

    fn answer_read(&mut self, asked: Tick, key: Key, offset: u64, len: u32, answer: &Answer) -> Judged {
        self.judge_presence(key, asked, answer.status)?;
        let (now, block_len) = (self.tick, self.shape.block_len);
        let trouble = answer.status.is_err_and(|error| self.is_trouble(error));
        let Some(file) = self.files.get_mut(&key) else { return Ok(()) };
        file.in_flight -= 1;
        match answer.status {
            Err(FileError::NotFound) => return Ok(()),
            Err(_) if trouble => return Ok(()),
            Err(error) => return wrong(format!("a read was answered with {error:?}")),
            Ok(()) => {}
        }
        let found = answer.length;
        if answer.payload.len() != found as usize {
            return wrong(format!("a read says {found} bytes and brings {}", answer.payload.len()));
        }
        let sizes = file.size.since(asked);
        let lengths: BTreeSet<u32> =
            sizes.iter().map(|size| u64::from(len).min(size.saturating_sub(offset)) as u32).collect();
        if !lengths.contains(&found) {
            return wrong(format!("a read found {found} bytes, where the sizes {sizes:?} are possible"));
        }
        let checked = file.bytes.check(offset, &answer.payload, block_len, asked, now);
        checked.map_err(|wrong| self.describe(key, &wrong))
    }

    fn answer_write(&mut self, asked: &Asked, answer: &Answer, now: Tick) -> Judged {
        let What::Write { key, op, offset, len, durable, slot } = asked.what else { return Ok(()) };
        self.judge_presence(key, asked.at, answer.status)?;
        if answer.status == Err(FileError::NoSpace) && !self.may_be_full_since(asked.at, true) {
            return wrong(format!("NO_SPACE, where there is space: {:?} of {:?}", self.upper, self.shape));
        }
        let trouble = answer.status.is_err_and(|error| self.is_trouble(error));
        let Some(file) = self.files.get_mut(&key) else { return Ok(()) };
        file.in_flight -= 1;
        let (fate, effect) = match answer.status {
            Ok(()) => (Fate::Done { durable }, Effect::Yes),
            Err(FileError::NoSpace) => (Fate::Refused, Effect::No),
            Err(FileError::NotFound) => (Fate::Uncertain, Effect::No),
            Err(_) if trouble => (Fate::Uncertain, Effect::Unknown),
            Err(error) => return wrong(format!("a write was answered with {error:?}")),
        };
        let end = offset + u64::from(len);
        let resized = file.segments.resized_since(asked.at);
        if let Some(slot) = slot {
            let sizes = file.size.since(asked.at);
            if !file.size.answered(slot, effect, now) {
                return wrong("the answer to a write contradicts the size");
            }
            if answer.status.is_ok() {
                let gone = file.removal.is_some() && answer.value == 0;
                if answer.length != len || !(gone || sizes.contains(&answer.value)) {
                    let told = (answer.length, answer.value);
                    return wrong(format!(
                        "a write tells length and size {told:?}, where {sizes:?} are possible"
                    ));
                }
            }
            file.bytes.answered(op, (offset, end), fate, now);
            if fate == Fate::Uncertain {
                file.bytes.left_up_to(op, sizes);
            }
            if answer.status.is_ok() {
                file.recent.answered(op, now);
            }
            file.segments.write_answered(op, fate == (Fate::Done { durable }), fate != Fate::Refused);
            if durable && answer.status.is_ok() && file.removal.is_none() {
                let floor = if resized { 0 } else { end };
                file.durable = Some(file.durable.unwrap_or(0).max(floor));
            }
        }
        Ok(())
    }

    fn answer_resize(&mut self, asked: &Asked, answer: &Answer, now: Tick) -> Judged {
        let What::Resize { key, op, size, slot } = asked.what else { return Ok(()) };
        self.judge_presence(key, asked.at, answer.status)?;
        let trouble = answer.status.is_err_and(|error| self.is_trouble(error));
        let id = self.id(key);
        let Some(file) = self.files.get_mut(&key) else { return Ok(()) };
        file.in_flight -= 1;
        let (fate, effect) = match answer.status {
            Ok(()) => (Fate::Done { durable: false }, Effect::Yes),
            // It may have been resized before it went, and a loss of power may bring it back so.
            Err(FileError::NotFound) => (Fate::Uncertain, Effect::Unknown),
            Err(_) if trouble => (Fate::Uncertain, Effect::Unknown),
            Err(error) => return wrong(format!("a resize was answered with {error:?}")),
        };
        let sizes = file.size.since(asked.at);
        if !file.size.answered(slot, effect, now) {
            return wrong("the answer to a resize contradicts the size");
        }
        file.bytes.answered(op, (size, NEVER), fate, now);
        if answer.status.is_ok() {
            file.recent.answered(op, now);
        }
        match fate {
            Fate::Uncertain => file.segments.resize_uncertain(op, now),
            fate => file.segments.resize_answered(op, fate != Fate::Refused, now),
        }
        if answer.status.is_ok() {
            let Some(info) = NodeInfo::decode(&answer.more) else {
                return wrong("a resize went well and tells nothing");
            };
            if Some(info.id) != id || !sizes.contains(&info.size) {
                return wrong(format!("a resize tells {info:?}, where the sizes {sizes:?} are possible"));
            }
        }
        Ok(())
    }

    fn answer_zero(&mut self, asked: &Asked, answer: &Answer, now: Tick) -> Judged {
        let What::Zero { key, op, range } = asked.what else { return Ok(()) };
        self.judge_presence(key, asked.at, answer.status)?;
        // A hole in the middle of a run makes the map longer.
        let full = self.may_be_full_since(asked.at, false);
        let trouble = answer.status.is_err_and(|error| self.is_trouble(error));
        let Some(file) = self.files.get_mut(&key) else { return Ok(()) };
        file.in_flight -= 1;
        let fate = match answer.status {
            Ok(()) => Fate::Done { durable: false },
            Err(FileError::NoSpace) if full => Fate::Refused,
            Err(FileError::NotFound) => Fate::Uncertain,
            Err(_) if trouble => Fate::Uncertain,
            Err(error) => return wrong(format!("zeroing was answered with {error:?}")),
        };
        if range.0 < range.1 {
            file.bytes.answered(op, range, fate, now);
        }
        file.segments.zero_answered(op, now);
        Ok(())
    }

    fn answer_flush(&mut self, asked: Tick, answer: &Answer) -> Judged {
        match answer.status {
            Ok(()) => {
                self.flushed(asked);
                Ok(())
            }
            Err(error) if self.is_trouble(error) => Ok(()),
            Err(error) => wrong(format!("a flush was answered with {error:?}")),
        }
    }

    fn answer_name(&mut self, asked: &Asked, answer: &Answer, now: Tick) -> Judged {
        let What::Name { number, verdict, adds } = &asked.what else { return Ok(()) };
        let (number, asked) = (*number, asked.at);
        if answer.status.is_err_and(|error| self.is_trouble(error)) {
            // It may have happened: a change stays on its way until the card has been started again.
            if !matches!(verdict, Verdict::Change(_)) {
                self.names.answered(number, now);
            }
            return Ok(());
        }
        if answer.status == Err(FileError::NoSpace) && *adds && self.may_be_full_since(asked, false) {
            self.names.refused(number, now);
            if let Verdict::Change(change) = verdict
                && let Some(file) = change.removes().and_then(|key| self.files.get_mut(&key))
            {
                file.removal = None;
            }
            return Ok(());
        }
        self.names.answered(number, now);
        match (verdict, answer.status) {
            (Verdict::Refused(expected), Err(error)) if *expected == error => Ok(()),
            (Verdict::Unchanged, Ok(())) => Ok(()),
            (Verdict::Found(key), Ok(())) => {
                let key = *key;
                self.judge_info(asked, answer, |tree| (tree.contains(key)).then_some(key))
            }
            (Verdict::Change(change), Ok(())) => self.changed(asked, change, answer, now),
            (verdict, status) => wrong(format!("answered with {status:?}, where {verdict:?} is right")),
        }
    }

    fn changed(&mut self, asked: Tick, change: &NameChange, answer: &Answer, now: Tick) -> Judged {
        if let Some(gone) = change.removes()
            && let Some(file) = self.files.get_mut(&gone)
        {
            file.removal = Some((file.removal.map_or(asked, |(asked, _)| asked), now));
        }
        let NameChange::Insert { key, place } = change else { return Ok(()) };
        let Some(info) = NodeInfo::decode(&answer.more) else {
            return wrong("something was created, and nothing is told of it");
        };
        if info.kind != place.kind
            || (info.size, info.allocated) != (0, 0)
            || info.parent != self.id(place.parent)
        {
            return wrong(format!("what was created is {info:?}, and should be {place:?}"));
        }
        self.born(*key, info.id, place.kind, now)
    }

    /// A node has an id now.
    pub(super) fn born(&mut self, key: Key, id: NodeId, kind: NodeKind, now: Tick) -> Judged {
        if let Some(other) = self.keys.insert(id, key) {
            return wrong(format!("{id:?} is given to node {} and was given to {} before", key.0, other.0));
        }
        self.ids.insert(key, id);
        match kind {
            NodeKind::File => drop(self.files.insert(key, File::new(now))),
            NodeKind::Directory => drop(self.directories.insert(key)),
        }
        Ok(())
    }

    /// Checks what is told of a node against every tree since the request was sent.
    fn judge_info(&self, asked: Tick, answer: &Answer, find: impl Fn(&Tree) -> Option<Key>) -> Judged {
        let Some(info) = NodeInfo::decode(&answer.more) else { return wrong("nothing is told of a node") };
        let suits = |tree: &Tree| {
            let Some(key) = find(tree) else { return false };
            let id_fits = self.id(key).map_or_else(|| !self.keys.contains_key(&info.id), |id| id == info.id);
            let parent_fits = tree.parent(key).map_or(info.parent.is_none(), |parent| {
                self.id(parent).is_none_or(|parent| info.parent == Some(parent))
            });
            let kind_fits = tree.kind(key) == Some(info.kind);
            let size_fits = match info.kind {
                NodeKind::Directory => info.size == tree.entries(key).count() as u64,
                NodeKind::File => {
                    self.files.get(&key).is_none_or(|file| file.size.since(asked).contains(&info.size))
                }
            };
            id_fits && parent_fits && kind_fits && size_fits
        };
        if self.names.any_since(asked, suits) {
            return Ok(());
        }
        wrong(format!("{info:?} was told, and cannot be"))
    }

    fn answer_look(&mut self, asked: Tick, base: Key, path: &[u8], answer: &Answer) -> Judged {
        match answer.status {
            Ok(()) => {
                self.judge_info(asked, answer, |tree| tree.find(base, path, &mut Locks::default()).ok())
            }
            Err(error) if self.is_trouble(error) => Ok(()),
            Err(error) => {
                let fails = |tree: &Tree| tree.find(base, path, &mut Locks::default()) == Err(error);
                if self.names.any_since(asked, fails) {
                    return Ok(());
                }
                wrong(format!("a name was looked for and {error:?} was answered"))
            }
        }
    }

    fn answer_list(
        &mut self,
        asked: Tick,
        directory: Key,
        after: &[u8],
        most: u32,
        answer: &Answer,
    ) -> Judged {
        let entries: Result<Vec<_>, _> = Entries::new(&answer.payload).collect();
        let entries = match entries {
            Ok(entries) => entries,
            Err(error) => return wrong(format!("a list that cannot be: {error}")),
        };
        if answer.status.is_ok() && answer.length as usize != answer.payload.len() {
            return wrong("a list says another length than it has");
        }
        let suits = |tree: &Tree| {
            let (expected, more) = match listed(tree, directory, after, most) {
                Ok(expected) => expected,
                Err(error) => return answer.status == Err(error),
            };
            answer.status.is_ok()
                && answer.value == u64::from(more)
                && expected.len() == entries.len()
                && expected.iter().zip(&entries).all(|((name, key), entry)| {
                    let id = self.id(*key);
                    let id_fits = id.map_or_else(|| !self.keys.contains_key(&entry.id), |id| id == entry.id);
                    let size_fits = match entry.kind {
                        NodeKind::Directory => entry.size == tree.entries(*key).count() as u64,
                        NodeKind::File => self
                            .files
                            .get(key)
                            .is_none_or(|file| file.size.since(asked).contains(&entry.size)),
                    };
                    *name == entry.name && tree.kind(*key) == Some(entry.kind) && id_fits && size_fits
                })
        };
        if answer.status.is_err_and(|error| self.is_trouble(error)) || self.names.any_since(asked, suits) {
            return Ok(());
        }
        wrong(format!("a list that cannot be: {:?}, {:?}, more: {}", answer.status, entries, answer.value))
    }
}

/// A name, and what has it.
type Entry<'a> = (&'a [u8], Key);

/// What a list must show, and whether there is more.
fn listed<'a>(
    tree: &'a Tree,
    directory: Key,
    after: &[u8],
    most: u32,
) -> Result<(Vec<Entry<'a>>, bool), FileError> {
    if directory != ROOT_KEY && !tree.contains(directory) {
        return Err(FileError::NotFound);
    }
    if tree.kind(directory) == Some(NodeKind::File) {
        return Err(FileError::NotADirectory);
    }
    let (mut found, mut len) = (Vec::new(), 0);
    for (name, key) in tree.entries(directory).filter(|(name, _)| *name > after) {
        len += entry_len(name.len());
        if len > most as usize {
            return if found.is_empty() { Err(FileError::Invalid) } else { Ok((found, true)) };
        }
        found.push((name, key));
    }
    Ok((found, false))
}
