//! Comparing everything that is there with everything that may be there.

use std::collections::BTreeMap;

use ob_core::{NodeId, NodeKind};
use ob_sim::Failure;

use super::{Crash, Key, Model, Tick, Tree};

/// A node as the card shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) id: NodeId,
    pub(crate) kind: NodeKind,
    pub(crate) size: u64,
    pub(crate) allocated: u64,
}

/// Everything that the card shows, by path.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub(crate) nodes: BTreeMap<Vec<u8>, Seen>,
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) files: u64,
    pub(crate) directories: u64,
}

impl Model {
    /// Checks names, sizes and space, and takes them for what they are. Nothing is on its way.
    pub(crate) fn settle(&mut self, observed: &Observed) -> Result<(), Failure> {
        let from = match self.crash {
            Some(Crash::Power) => self.durable_before,
            Some(Crash::Process) => self.crashed_at,
            None => self.tick,
        };
        let Some(tree) = self.find_tree(observed, from) else {
            return Err(Failure::new(self.describe_difference(observed, from)));
        };
        let now = self.next_tick();
        let paths = tree.paths();
        for (path, key) in &paths {
            let Some(seen) = observed.nodes.get(path) else { continue };
            if !self.ids.contains_key(key) {
                self.born(*key, seen.id, seen.kind, now)?;
            }
        }
        self.settle_files(observed, &tree, &paths, now)?;
        self.names.settle(tree, self.crash.is_some(), now);
        self.judge_space(observed)?;
        if self.crash.take().is_some() {
            // Mounting made everything durable that it found.
            self.durable_before = now;
        }
        self.prune();
        self.count_segments();
        Ok(())
    }

    /// The tree that was possible and is there.
    fn find_tree(&self, observed: &Observed, from: Tick) -> Option<Tree> {
        self.names.find_since(from, |tree, start, until| {
            let paths = tree.paths();
            let same = paths.len() == observed.nodes.len()
                && paths.iter().zip(&observed.nodes).all(|((path, key), (seen_path, seen))| {
                    path == seen_path && self.may_be(tree, *key, seen)
                });
            same && self.sizes_fit(observed, &paths, start, until)
        })
    }

    fn may_be(&self, tree: &Tree, key: Key, seen: &Seen) -> bool {
        let id_fits = match self.id(key) {
            Some(id) => id == seen.id,
            None => !self.keys.contains_key(&seen.id),
        };
        let size_fits = seen.kind == NodeKind::File || seen.size == tree.entries(key).count() as u64;
        tree.kind(key) == Some(seen.kind) && id_fits && size_fits
    }

    /// Whether at one moment of these all files could have had the sizes that are there.
    fn sizes_fit(
        &self,
        observed: &Observed,
        paths: &BTreeMap<Vec<u8>, Key>,
        start: Tick,
        until: Tick,
    ) -> bool {
        let files: Vec<_> = paths
            .iter()
            .zip(observed.nodes.values())
            .filter(|(_, seen)| seen.kind == NodeKind::File)
            .map(|((_, key), seen)| (self.files.get(key), seen.size))
            .collect();
        let known = files.iter().filter_map(|(file, _)| *file);
        let mut moments: Vec<Tick> = known.flat_map(|file| file.size.moments_since(start)).collect();
        moments.retain(|moment| *moment < until);
        moments.push(start);
        moments.sort_unstable();
        moments.dedup();
        moments.iter().any(|moment| {
            files.iter().all(|(file, size)| match file {
                Some(file) => file.size.at(*moment).contains(size),
                // It was created by a request that was not answered, so nobody has written to it.
                None => *size == 0,
            })
        })
    }

    fn settle_files(
        &mut self,
        observed: &Observed,
        tree: &Tree,
        paths: &BTreeMap<Vec<u8>, Key>,
        now: Tick,
    ) -> Result<(), Failure> {
        let crashed = self.crash.is_some();
        for (key, file) in &self.files {
            let must_be = file.durable.is_some() && file.removal.is_none();
            if must_be && !tree.contains(*key) {
                return Err(Failure::new(format!("file {} had a durable write and is gone", key.0)));
            }
        }
        for (path, key) in paths {
            let (Some(seen), Some(file)) = (observed.nodes.get(path), self.files.get_mut(key)) else {
                continue;
            };
            if seen.kind != NodeKind::File {
                continue;
            }
            if file.durable.is_some_and(|floor| seen.size < floor) {
                let text = format!("file {} lost the end of a durable write: {seen:?}", key.0);
                return Err(Failure::new(text));
            }
            let segment_len = self.shape.segment_len;
            let (count, end) = (seen.allocated / segment_len, seen.size.div_ceil(segment_len));
            if seen.allocated % segment_len != 0 || !file.segments.counted(count, end, now) {
                let bounds = file.segments.bounds();
                let text = format!(
                    "file {} has {count} segments, and must have {bounds:?} (crash: {:?}): {seen:?}",
                    key.0, self.crash
                );
                return Err(Failure::new(text));
            }
            if crashed {
                for op in file.recent.taken_back(seen.size, self.durable_before) {
                    file.bytes.taken_back(op);
                }
                file.recent.clear();
                file.size.settle(seen.size, now);
                file.bytes.ends_at(seen.size, now);
                (file.removal, file.durable) = (None, Some(seen.size));
            } else {
                file.size.learn(seen.size, now);
                file.removal = None;
            }
        }
        if crashed {
            self.files.retain(|key, _| tree.contains(*key));
        }
        for (_, file) in self.files.iter_mut().filter(|(key, _)| !tree.contains(**key)) {
            file.removal = file.removal.map(|(asked, answered)| (asked, answered.min(now)));
        }
        Ok(())
    }

    fn judge_space(&self, observed: &Observed) -> Result<(), Failure> {
        let allocated: u64 = observed.nodes.values().map(|seen| seen.allocated).sum();
        let total = self.shape.segments * self.shape.segment_len;
        let files = observed.nodes.values().filter(|seen| seen.kind == NodeKind::File).count() as u64;
        let directories = observed.nodes.len() as u64 - files + 1;
        if observed.total != total || observed.free != total - allocated {
            return Err(Failure::new(format!(
                "{} of {} bytes are free, where files have {allocated} of {total}",
                observed.free, observed.total
            )));
        }
        if (observed.files, observed.directories) != (files, directories) {
            let told = (observed.files, observed.directories);
            return Err(Failure::new(format!(
                "files and directories are counted as {told:?}, and are {:?}",
                (files, directories)
            )));
        }
        Ok(())
    }

    /// Bytes other than zeros were found in a segment.
    pub(crate) fn saw_data(&mut self, key: Key, offset: u64, bytes: &[u8]) {
        let segment_len = self.shape.segment_len;
        let Some(file) = self.files.get_mut(&key) else { return };
        let mut at = offset;
        let end = offset + bytes.len() as u64;
        while at < end {
            let stop = ((at / segment_len + 1) * segment_len).min(end);
            let piece = &bytes[(at - offset) as usize..(stop - offset) as usize];
            if piece.iter().any(|byte| *byte != 0) {
                file.segments.seen(at / segment_len);
            }
            at = stop;
        }
    }

    fn describe_difference(&self, observed: &Observed, from: Tick) -> String {
        let mut text = format!("what is there was never so since tick {from} ({:?}); there are:", self.crash);
        let show = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        for (path, seen) in &observed.nodes {
            text += &format!(" {} ({:?}, {} bytes),", show(path), seen.id, seen.size);
        }
        text += " last there were:";
        for (path, key) in self.names.tree().paths() {
            let sizes = self.files.get(&key).map(|file| file.size.since(from));
            text += &format!(" {} ({:?}, sizes {sizes:?}),", show(&path), self.id(key));
        }
        text
    }
}
