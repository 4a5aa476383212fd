//! Who reads the files from within the card, and goes by their versions.
//!
//! A program that is led from one place of a file to the next takes all of its reads for reads of one file, if they have the
//! same version. So whatever reads of one version have in common must be the same in all of them: the bytes, and where the file
//! ends. Nothing else needs to be known of the files to judge that, and nothing of what the model knows is used.

use std::collections::BTreeMap;
use std::ops::Range;

use ob_core::{NodeId, Token};
use ob_files_card::{Completion, FileVersion, LocalFiles, Op, Outcome};
use ob_memory::Pool;
use ob_sim::{Failure, Rng};

use super::model::Model;

/// Bytes of one read at most.
const READ_MAX: usize = 16 << 10;
/// Reads on their way at once.
const OUT_MAX: usize = 4;
/// Reads of a file's last version that are kept to be compared with.
const KEPT_MAX: usize = 16;

/// The reader.
pub(super) struct Chains {
    files: LocalFiles,
    pool: Pool,
    next: u64,
    out: BTreeMap<u64, Place>,
    last: Option<Place>,
    seen: BTreeMap<NodeId, (FileVersion, Vec<Found>)>,
    agreed: u64,
    without_version: u64,
}

/// What is read.
#[derive(Clone, Copy, Debug)]
struct Place {
    file: NodeId,
    offset: u64,
    len: u32,
}

/// What was found there.
struct Found {
    place: Place,
    bytes: Vec<u8>,
}

impl Chains {
    pub(super) fn new(files: LocalFiles) -> Self {
        Self {
            files,
            pool: Pool::new(READ_MAX, OUT_MAX),
            next: 0,
            out: BTreeMap::new(),
            last: None,
            seen: BTreeMap::new(),
            agreed: 0,
            without_version: 0,
        }
    }

    /// What was done.
    pub(super) fn counts(&self) -> [(&'static str, u64); 2] {
        [("reads of one version", self.agreed), ("reads without a version", self.without_version)]
    }

    /// Judges what was read, and now and then reads more.
    pub(super) fn turn(&mut self, rng: &mut Rng, model: &Model, span: u64) -> Result<(), Failure> {
        while let Some(completion) = self.files.poll() {
            self.judge(completion)?;
        }
        if self.out.len() < OUT_MAX && rng.one_in(2) {
            self.read(rng, model, span);
        }
        Ok(())
    }

    fn read(&mut self, rng: &mut Rng, model: &Model, span: u64) {
        // The same again is what shows a change best.
        let again = self.last.filter(|_| rng.one_in(2));
        let Some(place) = again.or_else(|| draw(rng, model, span)) else { return };
        let Some(mut into) = self.pool.take() else { return };
        into.truncate((place.len as usize).next_multiple_of(4096));
        let Place { file, offset, len } = place;
        self.next += 1;
        if self.files.submit(Token(self.next), Op::Read { file, offset, len, into }).is_ok() {
            self.out.insert(self.next, place);
            self.last = Some(place);
        }
    }

    fn judge(&mut self, completion: Completion) -> Result<(), Failure> {
        let Completion { token, result, buffer } = completion;
        let (Some(place), Some(buffer)) = (self.out.remove(&token.0), buffer) else {
            return Err(Failure::new("a read within the card was answered twice, or without its memory"));
        };
        // The file may be gone, and the device may fail.
        let Ok(outcome) = result else { return Ok(()) };
        let Outcome::Read { len, version } = outcome else {
            return Err(Failure::new(format!("a read within the card was answered with {outcome:?}")));
        };
        let Some(version) = version else {
            self.without_version += 1;
            return Ok(());
        };
        let bytes = buffer.get(..len as usize).unwrap_or_default().to_vec();
        let found = Found { place, bytes };
        let (newest, reads) = self.seen.entry(place.file).or_insert_with(|| (version, Vec::new()));
        if version < *newest {
            return Ok(());
        }
        if version > *newest {
            *newest = version;
            reads.clear();
        }
        for earlier in reads.iter() {
            if !found.agrees_with(earlier) {
                let (one, other) = (earlier.place, found.place);
                let text = format!("{one:?} and {other:?} are of {version:?}, and do not agree");
                return Err(Failure::new(text));
            }
            self.agreed += 1;
        }
        if reads.len() >= KEPT_MAX {
            reads.remove(0);
        }
        reads.push(found);
        Ok(())
    }
}

fn draw(rng: &mut Rng, model: &Model, span: u64) -> Option<Place> {
    let files = model.live_files();
    let file = model.id(*rng.choose(&files)?)?;
    let anywhere = rng.below(span);
    let offset = if rng.one_in(3) { anywhere } else { anywhere / 4096 * 4096 };
    let len = 1 + rng.below(READ_MAX as u64) as u32;
    Some(Place { file, offset, len })
}

impl Found {
    /// Whether both found the same where both looked.
    fn agrees_with(&self, other: &Self) -> bool {
        let (one, another) = (self.place, other.place);
        let end = |place: Place| place.offset + u64::from(place.len);
        let both = one.offset.max(another.offset)..end(one).min(end(another));
        both.is_empty() || self.within(&both) == other.within(&both)
    }

    /// What was found of a range; less of it if the file ended there.
    fn within(&self, range: &Range<u64>) -> &[u8] {
        let at = |place: u64| ((place - self.place.offset) as usize).min(self.bytes.len());
        self.bytes.get(at(range.start)..at(range.end)).unwrap_or_default()
    }
}
