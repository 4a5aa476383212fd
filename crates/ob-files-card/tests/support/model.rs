//! What files should be: names, sizes and bytes after each step of a run, and which of them a loss of power may leave.

use std::collections::BTreeMap;
use std::sync::Arc;

use ob_core::NodeKind;

/// A number of a step; 0 is before the first one.
pub(crate) type Step = usize;
/// What is in place of a node's id: the model gives its own.
pub(crate) type Key = u64;

/// A file or directory of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) key: Key,
    pub(crate) kind: NodeKind,
    pub(crate) size: u64,
}

/// All names at one moment.
pub(crate) type Names = BTreeMap<Vec<u8>, Node>;

/// What a segment of a file held, from when it was given to the file until it was given back.
#[derive(Debug)]
struct Lineage {
    from: Step,
    until: Step,
    versions: Vec<Version>,
}

/// The bytes of a segment after a step, those beyond the file's size as well.
#[derive(Debug)]
struct Version {
    step: Step,
    bytes: Arc<[u8]>,
    touched: std::ops::Range<usize>,
    durable: bool,
    /// The metadata of this step must have survived where this version has: it destroys what earlier metadata shows.
    needs: Step,
    /// Where the file's metadata is as new as this step, there are zeros from here on in every older version too.
    zeros_from: Option<usize>,
}

#[derive(Debug, Default)]
struct Data {
    segments: BTreeMap<u32, Vec<Lineage>>,
    /// The step that made the file smaller within a segment, if nothing has been tidied up since.
    remains: Option<Step>,
    /// The last step that changed something about the file besides its bytes.
    changed: Step,
}

/// All moments of a run.
pub(crate) struct History {
    segment_len: usize,
    block_len: usize,
    states: Vec<Arc<Names>>,
    data: BTreeMap<Key, Data>,
    /// By durable write, the step at which its file became what the write found or made it.
    floors: BTreeMap<Step, Step>,
    next_key: Key,
}

/// What is known about a moment at which power is lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moment {
    /// Steps up to this one had begun.
    pub(crate) begun: Step,
    /// Steps up to this one are covered by a flush that was answered.
    pub(crate) flushed: Step,
    /// Durable writes that were answered.
    pub(crate) durable: Vec<Step>,
}

impl History {
    pub(crate) fn new(segment_len: u64, block_len: u32) -> Self {
        Self {
            segment_len: segment_len as usize,
            block_len: block_len as usize,
            states: vec![Arc::default()],
            data: BTreeMap::new(),
            floors: BTreeMap::new(),
            next_key: 0,
        }
    }

    /// What was there before the first step.
    pub(crate) fn adopt(&mut self, path: &[u8], kind: NodeKind, bytes: &[u8]) -> Key {
        let key = self.next_key;
        self.next_key += 1;
        let mut data = Data { segments: BTreeMap::new(), remains: Some(0), changed: 0 };
        for (segment, part) in bytes.chunks(self.segment_len).enumerate() {
            let mut lineage = Lineage::new(0, self.segment_len);
            lineage.push(0, 0..0, false, |bytes| bytes[..part.len()].copy_from_slice(part));
            data.segments.insert(segment as u32, vec![lineage]);
        }
        self.data.insert(key, data);
        let mut names = Names::clone(self.names());
        names.insert(path.to_vec(), Node { key, kind, size: bytes.len() as u64 });
        self.states = vec![Arc::new(names)];
        key
    }

    pub(crate) fn names(&self) -> &Arc<Names> {
        &self.states[self.states.len() - 1]
    }

    pub(crate) fn state(&self, step: Step) -> &Names {
        &self.states[step]
    }

    /// The last step so far.
    pub(crate) fn last(&self) -> Step {
        self.states.len() - 1
    }

    /// A step that changes nothing.
    pub(crate) fn pause(&mut self) -> Step {
        self.states.push(Arc::clone(self.names()));
        self.last()
    }

    fn change(&mut self, change: impl FnOnce(&mut Names)) -> Step {
        let mut names = Names::clone(self.names());
        change(&mut names);
        self.states.push(Arc::new(names));
        self.last()
    }

    pub(crate) fn create(&mut self, path: &[u8], kind: NodeKind) -> Step {
        let key = self.next_key;
        self.next_key += 1;
        if kind == NodeKind::File {
            self.data.insert(key, Data { changed: self.last() + 1, ..Data::default() });
        }
        self.change(|names| {
            names.insert(path.to_vec(), Node { key, kind, size: 0 });
        })
    }

    pub(crate) fn remove(&mut self, path: &[u8]) -> Step {
        let node = self.names()[path].clone();
        let step = self.change(|names| {
            names.remove(path);
        });
        self.end(node.key, 0, step);
        step
    }

    pub(crate) fn rename(&mut self, path: &[u8], to: &[u8]) -> Step {
        let replaced = self.names().get(to).filter(|_| path != to).cloned();
        let (moved, last) = (self.names()[path].key, self.last());
        if let Some(data) = self.data.get_mut(&moved) {
            data.changed = last + 1;
        }
        let step = self.change(|names| {
            names.remove(to).filter(|_| path == to).map(|same| names.insert(path.to_vec(), same));
            let below = |name: &Vec<u8>| name == path || name.starts_with(&[path, b"/"].concat());
            let moved: Vec<Vec<u8>> = names.keys().filter(|name| below(name)).cloned().collect();
            for name in moved {
                if let Some(node) = names.remove(&name) {
                    names.insert([to, &name[path.len()..]].concat(), node);
                }
            }
        });
        if let Some(replaced) = replaced {
            self.end(replaced.key, 0, step);
        }
        step
    }

    /// Segments from this one on are given back.
    fn end(&mut self, key: Key, first: u32, step: Step) {
        let Some(data) = self.data.get_mut(&key) else { return };
        for (_, lineages) in data.segments.range_mut(first..) {
            if let Some(lineage) = lineages.last_mut().filter(|lineage| lineage.until == Step::MAX) {
                lineage.until = step;
            }
        }
    }

    pub(crate) fn write(&mut self, path: &[u8], offset: u64, bytes: &[u8], durable: bool) -> Step {
        let node = self.names()[path].clone();
        let end = offset + bytes.len() as u64;
        let step = self.last() + 1;
        if end > node.size && !bytes.is_empty() {
            self.tidy(&node, step);
        }
        let segment_len = self.segment_len;
        let Some(data) = self.data.get_mut(&node.key) else { panic!("directories have no bytes") };
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (segment, within) = ((at / segment_len as u64) as u32, (at % segment_len as u64) as usize);
            let count = (segment_len - within).min(bytes.len() - done);
            let lineages = data.segments.entry(segment).or_default();
            if lineages.last().is_none_or(|lineage| lineage.until != Step::MAX) {
                lineages.push(Lineage::new(step, segment_len));
                data.changed = step;
            }
            if let Some(lineage) = lineages.last_mut() {
                let touched = within..within + count;
                lineage.push(step, touched.clone(), durable, |segment| {
                    segment[touched].copy_from_slice(&bytes[done..done + count]);
                });
            }
            done += count;
        }
        if end > node.size && !bytes.is_empty() {
            data.changed = step;
        }
        if durable {
            self.floors.insert(step, data.changed);
        }
        self.change(|names| {
            if let Some(node) = names.get_mut(path).filter(|_| !bytes.is_empty()) {
                node.size = node.size.max(end);
            }
        })
    }

    pub(crate) fn resize(&mut self, path: &[u8], size: u64) -> Step {
        let node = self.names()[path].clone();
        let step = self.last() + 1;
        let segment_len = self.segment_len as u64;
        if size < node.size {
            self.end(node.key, size.div_ceil(segment_len) as u32, step);
            if let Some(data) = self.data.get_mut(&node.key) {
                data.changed = step;
                data.remains = (!size.is_multiple_of(segment_len)).then_some(step);
            }
        } else if size > node.size {
            self.tidy(&node, step);
            if let Some(data) = self.data.get_mut(&node.key) {
                data.changed = step;
            }
        }
        self.change(|names| {
            if let Some(node) = names.get_mut(path) {
                node.size = size;
            }
        })
    }

    /// A range becomes zeros, and segments that it covers are given back.
    pub(crate) fn zero(&mut self, path: &[u8], offset: u64, len: u64) -> Step {
        let node = self.names()[path].clone();
        let step = self.last() + 1;
        let segment_len = self.segment_len as u64;
        let range_end = node.size.min(offset + len);
        let Some(data) = self.data.get_mut(&node.key) else { panic!("directories have no bytes") };
        for (segment, lineages) in &mut data.segments {
            let start = u64::from(*segment) * segment_len;
            let end = node.size.min(start + segment_len);
            let Some(lineage) = lineages.last_mut().filter(|lineage| lineage.until == Step::MAX) else {
                continue;
            };
            let (from, until) = (offset.max(start), range_end.min(end));
            if from >= until {
                continue;
            }
            if (from, until) == (start, end) {
                lineage.until = step;
                data.changed = step;
            } else {
                let touched = (from - start) as usize..(until - start) as usize;
                lineage.push(step, touched.clone(), false, |bytes| bytes[touched].fill(0));
            }
        }
        self.pause()
    }

    /// What lies beyond a file's end becomes zeros before it grows.
    fn tidy(&mut self, node: &Node, step: Step) {
        let segment_len = self.segment_len as u64;
        let (segment, within) = ((node.size / segment_len) as u32, (node.size % segment_len) as usize);
        let Some(data) = self.data.get_mut(&node.key) else { return };
        let Some(shrunk) = data.remains.take() else { return };
        let lineage = data.segments.get_mut(&segment).and_then(|lineages| lineages.last_mut());
        if let Some(lineage) = lineage.filter(|lineage| lineage.until == Step::MAX) {
            lineage.push(step, 0..0, false, |bytes| bytes[within..].fill(0));
            if let Some(version) = lineage.versions.last_mut() {
                (version.needs, version.zeros_from) = (shrunk, Some(within));
            }
        }
    }

    /// Metadata cannot be older than this step after a loss of power at a moment.
    pub(crate) fn oldest(&self, moment: &Moment) -> Step {
        let floors = moment.durable.iter().filter_map(|step| self.floors.get(step)).copied();
        floors.max().unwrap_or(0).max(moment.flushed)
    }

    /// What a file's bytes are now.
    pub(crate) fn bytes(&self, path: &[u8]) -> Vec<u8> {
        let node = &self.names()[path];
        let mut bytes = vec![0; node.size as usize];
        for (segment, lineages) in &self.data[&node.key].segments {
            let start = *segment as usize * self.segment_len;
            let lineage = lineages.last().filter(|lineage| lineage.until == Step::MAX);
            if let Some(version) = lineage.and_then(|lineage| lineage.versions.last())
                && start < bytes.len()
            {
                let count = self.segment_len.min(bytes.len() - start);
                bytes[start..start + count].copy_from_slice(&version.bytes[..count]);
            }
        }
        bytes
    }

    /// Whether bytes of a file may be there after a loss of power at a moment, where its metadata is as of a step.
    pub(crate) fn explains(&self, moment: &Moment, step: Step, key: Key, bytes: &[u8]) -> Result<(), String> {
        let data = &self.data[&key];
        for (index, block) in bytes.chunks(self.block_len).enumerate() {
            let at = index * self.block_len;
            let (segment, within) = ((at / self.segment_len) as u32, at % self.segment_len);
            let lineages = data.segments.get(&segment).map_or(&[][..], |lineages| lineages);
            let lineage = lineages.iter().find(|lineage| lineage.from <= step && step < lineage.until);
            let explained = match lineage {
                None => block.iter().all(|byte| *byte == 0),
                Some(lineage) => lineage.explains(moment, step, within, self.block_len, block),
            };
            if !explained {
                let versions = lineage.map(|lineage| lineage.describe(within));
                return Err(format!(
                    "at step {step}, bytes {at}.. of file {key} are {:02x?}…, which they never were: {versions:?}",
                    &block[..block.len().min(16)]
                ));
            }
        }
        Ok(())
    }
}

impl Lineage {
    /// The versions of a block, for people.
    fn describe(&self, within: usize) -> String {
        let version = |version: &Version| {
            let bytes = &version.bytes[within..within + 16];
            format!("step {}, zeros from {:?}: {bytes:02x?}", version.step, version.zeros_from)
        };
        let versions: Vec<String> = self.versions.iter().map(version).collect();
        format!("from {} until {}: {}", self.from, self.until, versions.join("; "))
    }

    fn new(from: Step, segment_len: usize) -> Self {
        let bytes = vec![0; segment_len].into();
        let zeros = Version { step: 0, bytes, touched: 0..0, durable: false, needs: 0, zeros_from: None };
        Self { from, until: Step::MAX, versions: vec![zeros] }
    }

    fn push(
        &mut self,
        step: Step,
        touched: std::ops::Range<usize>,
        durable: bool,
        change: impl FnOnce(&mut [u8]),
    ) {
        let Some(last) = self.versions.last() else { return };
        let mut bytes = last.bytes.to_vec();
        change(&mut bytes);
        self.versions.push(Version {
            step,
            bytes: bytes.into(),
            touched,
            durable,
            needs: 0,
            zeros_from: None,
        });
    }

    fn explains(&self, moment: &Moment, step: Step, within: usize, block_len: usize, block: &[u8]) -> bool {
        let sure = |version: &Version| {
            let touches = version.touched.start < within + block_len && within < version.touched.end;
            version.step <= moment.flushed
                || (version.durable && touches && moment.durable.contains(&version.step))
        };
        let oldest = self.versions.iter().rposition(sure).unwrap_or(0);
        (oldest..self.versions.len()).any(|index| {
            let version = &self.versions[index];
            // The oldest one is there for sure, whatever it needs.
            let possible = version.step <= moment.begun && (index == oldest || version.needs <= step);
            let tidied = self.versions[index..].iter().filter(|later| later.step <= step);
            let zeros_from = tidied.filter_map(|later| later.zeros_from).min().unwrap_or(usize::MAX);
            let cut = zeros_from.clamp(within, within + block.len()) - within;
            possible
                && version.bytes[within..within + cut] == block[..cut]
                && block[cut..].iter().all(|byte| *byte == 0)
        })
    }
}
