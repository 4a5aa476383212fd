//! Lookups in two phases (BPF-oF §5.2.1): first all that memory has, then what is left to read.
//!
//! ```text
//!   Version::plan_get ─▶ GetPlan ─┬─ answer()                    nothing is left
//!     logs, cached blocks         ├─ execute_ordinary(reader)    reads block by block, and fills the cache
//!     of every table              └─ steps() ─▶ somebody else's findings ─▶ resolve()
//! ```
//!
//! Whoever gives the findings, they go through the same [`Lookup`]: both ways give the same answer.

use std::sync::Arc;

use crate::cache::BlockCache;
use crate::error::Error;
use crate::files::Files;
use crate::keys::Sequence;
use crate::lookup::{Finding, Found, Lookup};
use crate::plant::{Bug, is_planted};
use crate::reader::{Reader, TableFile, look};
use crate::table::{Entrance, FilterSays, Probe};
use crate::version::Version;

/// What is left to do in one table.
#[derive(Debug)]
pub struct Step<H> {
    /// The table; its number, length, first and last key are there, and whatever was read of it.
    pub file: Arc<TableFile<H>>,
    /// Where to begin.
    pub from: Entrance,
    /// What its filter says.
    pub filter: FilterSays,
    /// The newest of its tombstones that spans the key, if the table was used before: then it need not be looked for again.
    pub covering: Option<Sequence>,
}

impl<H> Clone for Step<H> {
    fn clone(&self) -> Self {
        let Self { file, from, filter, covering } = self;
        Self { file: file.clone(), from: *from, filter: *filter, covering: *covering }
    }
}

#[derive(Debug)]
enum Slot<H> {
    Known(Finding),
    Step(Step<H>),
}

/// A lookup, as far as memory goes.
#[derive(Debug)]
pub struct GetPlan<H> {
    key: Vec<u8>,
    snapshot: Sequence,
    // Newest first, each with whether it is the last of its level; nothing behind what surely ends the lookup.
    slots: Vec<(Slot<H>, bool)>,
    answer: Option<Found>,
}

impl<H> GetPlan<H> {
    pub(crate) fn new(
        version: &Version<H>,
        cache: &BlockCache,
        key: &[u8],
        snapshot: Sequence,
    ) -> Result<Self, Error> {
        let mut plan = Self { key: key.to_vec(), snapshot, slots: Vec::new(), answer: None };
        // What the known findings alone come to: what ends that ends the lookup, whatever the steps bring before it.
        let mut known = Lookup::default();
        let finding = version.memory().find(key, snapshot);
        known.absorb(&finding, true).map_err(|what| version.refused(what))?;
        plan.slots.push((Slot::Known(finding), true));
        for (file, is_last) in version.tables_for(key, snapshot) {
            if known.found().is_some() {
                break;
            }
            let step = |from, filter, covering| Step { file: file.clone(), from, filter, covering };
            let slot = match look(file, cache, key, snapshot)? {
                None => Slot::Step(step(Entrance::Footer, FilterSays::NotLookedAt, None)),
                Some((Probe::Missing { entrance, filter, .. }, covering)) => {
                    Slot::Step(step(entrance, filter, Some(covering)))
                }
                Some((Probe::Done(finding), _)) => {
                    known.absorb(&finding, is_last).map_err(|what| version.refused(what))?;
                    Slot::Known(finding)
                }
            };
            plan.slots.push((slot, is_last));
            if is_planted(Bug::FirstTableEnds) {
                break;
            }
        }
        if plan.steps().next().is_none() {
            plan.answer = Some(known.finish());
        }
        Ok(plan)
    }

    /// The answer, if memory had it.
    #[must_use]
    pub const fn answer(&self) -> Option<&Found> {
        self.answer.as_ref()
    }

    /// The key that is looked for.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// What is visible to the lookup.
    #[must_use]
    pub const fn snapshot(&self) -> Sequence {
        self.snapshot
    }

    /// What is left to do, newest first.
    pub fn steps(&self) -> impl Iterator<Item = &Step<H>> {
        self.slots.iter().filter_map(|(slot, _)| match slot {
            Slot::Step(step) => Some(step),
            Slot::Known(_) => None,
        })
    }

    /// The answer, from findings of the steps in their order. There may be fewer of them than steps where the lookup ends sooner.
    ///
    /// # Errors
    /// When the findings end before the lookup does, go on behind the last step, or have what is not supported.
    pub fn resolve(self, findings: impl IntoIterator<Item = Finding>) -> Result<Found, Error> {
        if let Some(answer) = self.answer {
            return Ok(answer);
        }
        let mut findings = findings.into_iter();
        let mut lookup = Lookup::default();
        for (slot, is_last) in &self.slots {
            let (file, finding) = match slot {
                Slot::Known(finding) => (None, finding.clone()),
                Slot::Step(step) => {
                    let finding =
                        findings.next().ok_or(Error::Outcome("there are findings for too few steps"))?;
                    (Some(&step.file), finding)
                }
            };
            absorb(&mut lookup, file, &finding, *is_last)?;
            if lookup.found().is_some() {
                return Ok(lookup.finish());
            }
        }
        match findings.next() {
            Some(_) => Err(Error::Outcome("there are findings for more steps than there are")),
            None => Ok(lookup.finish()),
        }
    }

    /// The answer by the ordinary way: blocks are read one by one, and kept in the cache.
    ///
    /// # Errors
    /// When a table cannot be read, or has what is not supported.
    pub async fn execute_ordinary<F: Files<File = H>>(self, reader: Reader<'_, F>) -> Result<Found, Error> {
        if let Some(answer) = self.answer {
            return Ok(answer);
        }
        let mut lookup = Lookup::default();
        for (slot, is_last) in &self.slots {
            match slot {
                Slot::Known(finding) => absorb::<H>(&mut lookup, None, finding, *is_last)?,
                Slot::Step(step) => {
                    let finding = reader.find(&step.file, &self.key, self.snapshot).await?;
                    absorb(&mut lookup, Some(&step.file), &finding, *is_last)?;
                }
            }
            if lookup.found().is_some() {
                break;
            }
        }
        Ok(lookup.finish())
    }
}

fn absorb<H>(
    lookup: &mut Lookup,
    file: Option<&Arc<TableFile<H>>>,
    finding: &Finding,
    is_last: bool,
) -> Result<(), Error> {
    let name = || file.map_or_else(|| "a write-ahead log".to_owned(), |file| file.name.clone());
    lookup.absorb(finding, is_last).map_err(|what| Error::Unsupported { file: name(), what })
}
