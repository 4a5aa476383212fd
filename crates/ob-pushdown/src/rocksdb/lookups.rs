//! Lookups: what memory has first, then one request for the rest.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ob_rocksdb::{Database, Entrance, Error, Files, Found, GetPlan, MergeOperator, Sequence, Version};

use super::PushedFile;
use super::question::Question;
use crate::client::{Detour, Program, PushError, Session, Transport};

const GET: &[u8] = include_bytes!("../../../../examples/programs/rocksdb_get.o");
/// Bytes of reads that a request has room for at first, and at most: what blocks the program takes.
const READ_LEN: u32 = 16 << 10;
const READ_LEN_MAX: u32 = (64 << 10) + 4;
/// Bytes of values that are asked for at first; and in which steps more are.
const VALUE_LEN: usize = 1024;

/// Who answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Path {
    /// Logs and cached blocks alone.
    Memory,
    /// The card.
    Pushed,
    /// Ordinary reads.
    Ordinary,
}

/// What was looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupCounts {
    /// What memory has answered.
    pub from_memory: u64,
    /// What the card has.
    pub pushed: u64,
    /// What ordinary reads have.
    pub ordinary: u64,
    /// Those of them that fill the cache, though the card could have answered.
    pub sampled: u64,
    /// Those of them that were not asked for, because of what there is in the tables.
    pub not_pushed: u64,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The database cannot be read.
    #[error(transparent)]
    Database(#[from] Error),
    /// The card cannot be asked.
    #[error(transparent)]
    Push(#[from] PushError),
}

/// Looks keys up in databases, by requests where the card answers them.
pub struct Lookups<'session, T> {
    session: &'session Session<T>,
    program: Program,
    // What has been enough so far.
    read_len: AtomicU32,
    value_len: AtomicU32,
    tallies: Tallies,
}

#[derive(Default)]
struct Tallies {
    from_memory: AtomicU64,
    pushed: AtomicU64,
    ordinary: AtomicU64,
    sampled: AtomicU64,
    not_pushed: AtomicU64,
}

fn count(tally: &AtomicU64) {
    tally.fetch_add(1, Ordering::Relaxed);
}

impl<'session, T: Transport> Lookups<'session, T> {
    /// Over a session whose card can read the databases' tables. The program is loaded when it is first needed.
    #[must_use]
    pub fn new(session: &'session Session<T>) -> Self {
        Self {
            session,
            program: session.program("rocksdb_get", Some(GET.to_vec())),
            read_len: AtomicU32::new(READ_LEN),
            value_len: AtomicU32::new(VALUE_LEN as u32),
            tallies: Tallies::default(),
        }
    }

    /// What was looked up so far.
    #[must_use]
    pub fn counts(&self) -> LookupCounts {
        let read = |tally: &AtomicU64| tally.load(Ordering::Relaxed);
        LookupCounts {
            from_memory: read(&self.tallies.from_memory),
            pushed: read(&self.tallies.pushed),
            ordinary: read(&self.tallies.ordinary),
            sampled: read(&self.tallies.sampled),
            not_pushed: read(&self.tallies.not_pushed),
        }
    }

    /// The value of a key, and who found it; with the newest snapshot if none is given. The operator for merged values is the one that
    /// the OPTIONS file names if none is given.
    ///
    /// # Errors
    ///
    /// When something cannot be read or merged, or nobody is reached.
    pub async fn get<F: Files>(
        &self,
        database: &Database<F>,
        family: &str,
        key: &[u8],
        snapshot: Option<Sequence>,
        operator: Option<&Arc<dyn MergeOperator>>,
    ) -> Result<(Option<Vec<u8>>, Path), LookupError>
    where
        F::File: PushedFile,
    {
        let mut attempts = 0;
        loop {
            let version = database.view().family(family)?;
            match self.find(database, &version, key, snapshot.unwrap_or(Sequence::MAX)).await {
                Ok((found, path)) => {
                    count(match path {
                        Path::Memory => &self.tallies.from_memory,
                        Path::Pushed => &self.tallies.pushed,
                        Path::Ordinary => &self.tallies.ordinary,
                    });
                    return Ok((version.value(key, found, operator)?, path));
                }
                Err(LookupError::Database(error)) => {
                    database.follow_after(error, snapshot.is_some(), &mut attempts).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn find<F: Files>(
        &self,
        database: &Database<F>,
        version: &Version<F::File>,
        key: &[u8],
        snapshot: Sequence,
    ) -> Result<(Found, Path), LookupError>
    where
        F::File: PushedFile,
    {
        let mut plan = version.plan_get(database.cache(), key, snapshot)?;
        if let Some(answer) = plan.answer() {
            return Ok((answer.clone(), Path::Memory));
        }
        if plan.steps().any(|step| step.from == Entrance::Footer) {
            // Tables are opened once; what is in their footers is needed to ask for anything.
            let mut are_read = true;
            for step in plan.steps().filter(|step| step.from == Entrance::Footer) {
                are_read &= database.reader().table(&step.file).await.is_ok();
            }
            if !are_read {
                // A table that cannot be read may not be needed: the ordinary path sees whether it is.
                count(&self.tallies.not_pushed);
                return Ok((plan.execute_ordinary(database.reader()).await?, Path::Ordinary));
            }
            plan = version.plan_get(database.cache(), key, snapshot)?;
        }
        if database.is_sampled() {
            count(&self.tallies.sampled);
        } else if let Ok(question) = Question::new(&plan) {
            let asked = self.ask(&question, plan).await?;
            match asked {
                Ok(found) => return Ok((found, Path::Pushed)),
                Err(given_back) => plan = given_back,
            }
        } else {
            count(&self.tallies.not_pushed);
        }
        Ok((plan.execute_ordinary(database.reader()).await?, Path::Ordinary))
    }

    /// What the card finds; or the plan, for the ordinary path.
    async fn ask<H>(
        &self,
        question: &Question,
        plan: GetPlan<H>,
    ) -> Result<Result<Found, GetPlan<H>>, LookupError> {
        let read_len = self.read_len.load(Ordering::Relaxed).max(question.read_len);
        let wanted = Question::answer_len(self.value_len.load(Ordering::Relaxed) as usize);
        let query = self
            .session
            .query(&self.program, &question.files)?
            .with_read_len_max(read_len)
            .with_reads_max(question.reads_max);
        let answer = match self.session.ask(&query, question.first, &question.input, wanted).await {
            Ok(answer) => answer,
            Err(error) => {
                if error.detour() == Some(Detour::Range) && read_len < READ_LEN_MAX {
                    // A block was longer than any before. The next request has room for it.
                    self.read_len.store(READ_LEN_MAX, Ordering::Relaxed);
                }
                return if error.has_ordinary_path() { Ok(Err(plan)) } else { Err(error.into()) };
            }
        };
        match question.findings(&answer.scratch).map_err(Error::Outcome)? {
            Ok(findings) => Ok(Ok(plan.resolve(findings)?)),
            Err(len) => {
                let enough = len.next_multiple_of(VALUE_LEN) as u32;
                self.value_len.fetch_max(enough, Ordering::Relaxed);
                Ok(Err(plan))
            }
        }
    }
}
