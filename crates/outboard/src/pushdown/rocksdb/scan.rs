//! `outboard pushdown rocksdb scan`.

use std::io::{self, BufWriter, Write};

use ob_nvme::initiator::block_on;
use ob_rocksdb::{LocalDirectory, Scan};
use serde_json::json;

use super::command::{ScanOptions, failed, open};
use crate::pushdown::error::PushdownError;
use crate::terminal::{counted, say, warn};

pub(super) fn scan(options: &ScanOptions) -> Result<(), PushdownError> {
    let ScanOptions { directory, from, to, limit, reverse, family } = options;
    let bound = |typed: &Option<_>| typed.as_ref().map(|typed| family.bytes(typed)).transpose();
    let bounds = Scan { snapshot: family.snapshot(), lower: bound(from)?, upper: bound(to)?, operator: None };
    let failed = |error| failed(directory, error);
    block_on(async {
        let database = open(directory, LocalDirectory::new(directory)).await?;
        let mut iterator = database.iterate(&family.family, bounds).await.map_err(failed)?;
        let begun = if *reverse { iterator.seek_to_last().await } else { iterator.seek_to_first().await };
        begun.map_err(failed)?;
        let mut output = BufWriter::with_capacity(64 << 10, io::stdout().lock());
        let (mut shown, mut told) = (0, Vec::new());
        while let Some((key, value)) = iterator.current().filter(|_| limit.is_none_or(|limit| shown < limit))
        {
            let (key, value) = (family.show(key), family.show(value));
            match family.json {
                true => told.push(json!({ "key": key, "value": value })),
                false => writeln!(output, "{key}\t{value}")?,
            }
            shown += 1;
            let moved = if *reverse { iterator.prev().await } else { iterator.next().await };
            moved.map_err(failed)?;
        }
        output.flush()?;
        drop(output);
        if family.json {
            say(&format!("{:#}", json!({ "entries": told })))?;
        }
        if family.verbose {
            let reads = database.reader().files.reads();
            let (keys, reads) = (counted(shown, "key", "keys"), counted(reads, "read", "reads"));
            warn(&format!("by ordinary reads: {keys}, {reads}"));
        }
        Ok(())
    })
}
