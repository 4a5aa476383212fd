//! `outboard pushdown rocksdb get`.

use std::path::Path;
use std::sync::Arc;

use ob_nvme::initiator::block_on;
use ob_passthrough::System;
use ob_passthrough::lease::LeaseKeeper;
use ob_pushdown::client::{Session, SessionCounts};
use ob_pushdown::kernel::MountedDirectory;
use ob_pushdown::rocksdb::{LookupCounts, LookupError, Lookups};
use ob_rocksdb::LocalDirectory;
use serde_json::json;

use super::command::{FamilyOptions, GetOptions, failed, open};
use crate::pushdown::carrier::{Carrier, begin_device, within};
use crate::pushdown::error::PushdownError;
use crate::terminal::{counted, say, warn};

/// Values in the order of their keys, and who found them.
#[derive(Default)]
struct Looked {
    values: Vec<Option<Vec<u8>>>,
    counts: LookupCounts,
    /// What became of requests, if a card was asked.
    session: Option<SessionCounts>,
    /// Ordinary reads to open the database, and to look keys up then.
    reads: (u64, u64),
}

pub(super) fn get(options: &GetOptions) -> Result<(), PushdownError> {
    let GetOptions { directory, keys, family, device } = options;
    let keys: Vec<Vec<u8>> = keys.iter().map(|key| family.bytes(key)).collect::<Result<_, _>>()?;
    let looked = block_on(async {
        match device {
            None => look_here(directory, &keys, family).await,
            Some(device) => {
                let session = begin_device(device).await?;
                within(session, async |session| look_there(session, directory, &keys, family).await).await
            }
        }
    })?;
    show(&keys, &looked, family)?;
    if family.verbose {
        tell(&looked);
    }
    if looked.values.iter().any(Option::is_none) { Err(PushdownError::Told) } else { Ok(()) }
}

/// By ordinary reads alone.
async fn look_here(path: &Path, keys: &[Vec<u8>], family: &FamilyOptions) -> Result<Looked, PushdownError> {
    let database = open(path, LocalDirectory::new(path)).await?;
    let opening = database.reader().files.reads();
    let mut looked = Looked::default();
    for key in keys {
        let value = database.get(&family.family, key, family.snapshot(), None).await;
        looked.values.push(value.map_err(|error| failed(path, error))?);
    }
    looked.counts.ordinary = keys.len() as u64;
    looked.reads = (opening, database.reader().files.reads() - opening);
    Ok(looked)
}

/// By requests, and by ordinary reads where those have no answer.
async fn look_there(
    session: &Session<Carrier>,
    path: &Path,
    keys: &[Vec<u8>],
    family: &FamilyOptions,
) -> Result<Looked, PushdownError> {
    let Carrier::Kernel { transport, device } = session.transport() else {
        return look_here(path, keys, family).await;
    };
    let keeper = Arc::new(LeaseKeeper::start().map_err(PushdownError::Leases)?);
    let place = (transport.namespace(), device.as_str());
    let files = MountedDirectory::new(path, session, place, &System::default(), &keeper);
    let database = open(path, files).await?;
    let opening = database.reader().files.reads();
    let (lookups, mut looked) = (Lookups::new(session), Looked::default());
    for key in keys {
        let found = lookups.get(&database, &family.family, key, family.snapshot(), None).await;
        let (value, _) = found.map_err(|error| match error {
            LookupError::Database(error) => failed(path, error),
            LookupError::Push(error) => error.into(),
        })?;
        looked.values.push(value);
    }
    (looked.counts, looked.session) = (lookups.counts(), Some(session.counts()));
    looked.reads = (opening, database.reader().files.reads() - opening);
    Ok(looked)
}

fn show(keys: &[Vec<u8>], looked: &Looked, family: &FamilyOptions) -> Result<(), PushdownError> {
    let all = keys.iter().zip(&looked.values);
    if family.json {
        let LookupCounts { from_memory, pushed, ordinary, .. } = looked.counts;
        let (opening, reads) = looked.reads;
        let entries: Vec<_> = all
            .map(|(key, value)| {
                json!({ "key": family.show(key), "value": value.as_deref().map(|value| family.show(value)) })
            })
            .collect();
        let answered = json!({
            "memory": from_memory, "card": pushed, "ordinary": ordinary,
            "opening_reads": opening, "ordinary_reads": reads,
        });
        say(&format!("{:#}", json!({ "entries": entries, "answered": answered })))?;
        return Ok(());
    }
    for (key, value) in all {
        match value {
            None => warn(&format!("{} is not there", family.show(key))),
            Some(value) if keys.len() == 1 => say(&family.show(value))?,
            Some(value) => say(&format!("{}\t{}", family.show(key), family.show(value)))?,
        }
    }
    Ok(())
}

/// Says who answered.
fn tell(looked: &Looked) {
    let (opening, reads) = looked.reads;
    let lookups = |count: u64| counted(count, "key", "keys");
    let LookupCounts { from_memory, pushed, ordinary, not_pushed, .. } = looked.counts;
    warn(&format!("to open the database: {}", counted(opening, "read", "reads")));
    for (count, by) in [(from_memory, "by memory"), (pushed, "by the card"), (ordinary, "by ordinary reads")]
    {
        if count > 0 {
            warn(&format!("{by}: {}", lookups(count)));
        }
    }
    warn(&format!("to look keys up: {} of this machine", counted(reads, "read", "reads")));
    let Some(session) = looked.session else { return };
    if not_pushed > 0 {
        warn(&format!("not the card's to answer, by what the tables are: {}", lookups(not_pushed)));
    }
    if session.detours > 0 {
        let SessionCounts { detours, changed, unmapped, .. } = session;
        warn(&format!(
            "not answered by the card: {detours}, {unmapped} because of a table that has no map, {changed} because of one that changed"
        ));
    }
}
