//! Looking at everything through requests, one after the other, while nobody else sends any.

use std::collections::VecDeque;

use ob_core::{NodeId, NodeKind};
use ob_sim::Failure;
use ob_wire_link::files::{Entries, NodeInfo, Operation, ROOT, SpaceInfo};

use super::generate::{self, Draft, Intent};
use super::host::{Wire, header};
use super::model::{Key, Observed, Seen, What};
use super::{Run, Stop};

/// Bytes read where nothing should be, each time everything is read.
const EMPTY_READS: u64 = 3;

/// Name, node, kind and size of an entry.
type Listed = (Vec<u8>, NodeId, NodeKind, u64);

impl Run {
    /// Walks over all names, compares them and the space with the model, and then reads what was written. After a crash
    /// (`recovered`) the model learns from it what is left.
    pub(super) fn inspect(&mut self, recovered: bool) -> Result<(), Stop> {
        let observed = self.observe()?;
        if recovered && (self.checked.total, self.checked.free) != (observed.total, observed.free) {
            let text = format!("the check counted other space: {:?} and {observed:?}", self.checked);
            return Err(Failure::new(text).into());
        }
        self.model.settle(&observed)?;
        self.report.count("inspections", 1);
        let paths = self.model.tree().paths();
        for (path, key) in paths {
            let Some(seen) = observed.nodes.get(&path).filter(|seen| seen.kind == NodeKind::File) else {
                continue;
            };
            self.read_file(key, seen)?;
        }
        Ok(())
    }

    fn observe(&mut self) -> Result<Observed, Stop> {
        let mut observed = Observed::default();
        let mut directories = VecDeque::from([(Vec::new(), ROOT)]);
        while let Some((path, directory)) = directories.pop_front() {
            for (name, id, kind, size) in self.list_all(directory)? {
                let mut inner: Vec<u8> = path.clone();
                if !inner.is_empty() {
                    inner.push(b'/');
                }
                inner.extend_from_slice(&name);
                let info = self.stat(id)?;
                if (info.id, info.kind, info.size, info.parent) != (id, kind, size, Some(directory)) {
                    let text = format!("list and stat differ: {id:?}, {kind:?}, {size} and {info:?}");
                    return Err(Failure::new(text).into());
                }
                if kind == NodeKind::Directory {
                    directories.push_back((inner.clone(), id));
                }
                observed.nodes.insert(inner, Seen { id, kind, size, allocated: info.allocated });
            }
        }
        let answer = self.call_any(generate::plain(Operation::Space, What::Space))?;
        let Some(space) = SpaceInfo::decode(&answer.more) else {
            return Err(Failure::new("SPACE tells nothing").into());
        };
        (observed.total, observed.free) = (space.total, space.free);
        (observed.files, observed.directories) = (space.files, space.directories);
        Ok(observed)
    }

    fn call_any(&mut self, draft: Draft) -> Result<super::Answer, Stop> {
        let index = self.rng.index(self.hosts.len());
        self.call(index, draft)
    }

    /// All entries of a directory, page by page.
    fn list_all(&mut self, directory: NodeId) -> Result<Vec<Listed>, Stop> {
        let mut found: Vec<Listed> = Vec::new();
        loop {
            let after = found.last().map_or_else(Vec::new, |(name, ..)| name.clone());
            let length = if self.rng.one_in(2) { 4096 } else { 300 };
            let mut draft = generate::list(super::model::ROOT_KEY, directory, after, length, u32::MAX);
            // After a crash the model does not know yet what to expect.
            draft.intent = Intent::Other(What::Nothing);
            let answer = self.call_any(draft)?;
            if let Err(error) = answer.status {
                return Err(Failure::new(format!("LIST of {directory:?} was answered with {error:?}")).into());
            }
            for entry in Entries::new(&answer.payload) {
                let entry = entry.map_err(|error| Failure::new(error.to_string()))?;
                found.push((entry.name.to_vec(), entry.id, entry.kind, entry.size));
            }
            if answer.value == 0 {
                return Ok(found);
            }
        }
    }

    fn stat(&mut self, id: NodeId) -> Result<NodeInfo, Stop> {
        let wire = Wire::of(&header(Operation::Stat, id), &[]);
        let answer = self.call_any(Draft { wire, intent: Intent::Other(What::Nothing) })?;
        let info = NodeInfo::decode(&answer.more).filter(|_| answer.status.is_ok());
        info.ok_or_else(|| Failure::new(format!("STAT of {id:?} was answered with {answer:?}")).into())
    }

    /// Reads everything of a file that was ever written and may be there, and a little where nothing was.
    fn read_file(&mut self, key: Key, seen: &Seen) -> Result<(), Stop> {
        let mut ranges = self.model.written_ranges(key, seen.size);
        for _ in 0..EMPTY_READS {
            let start = self.rng.below(seen.size.min(2 * self.plan.span) + 1);
            ranges.push((start, (start + self.rng.below(8192)).min(seen.size)));
        }
        let block = u64::from(self.plan.disk.block_len);
        for (start, end) in ranges {
            let (mut at, end) = (start.saturating_sub(start % block), (end + block).min(seen.size));
            while at < end {
                let index = self.rng.index(self.hosts.len());
                let most = u64::from(self.hosts[index].transfer_max);
                let len = (end - at).min(most) as u32;
                let answer = self.call(index, generate::read(key, seen.id, at, len))?;
                if answer.status.is_err() || answer.length != len {
                    let text = format!("{len} bytes of {seen:?} at {at} were asked for: {:?}", answer.status);
                    return Err(Failure::new(text).into());
                }
                self.model.saw_data(key, at, &answer.payload);
                at += u64::from(len);
            }
        }
        Ok(())
    }
}
