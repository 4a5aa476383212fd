//! Logs that become other logs while they are read: RocksDB renames one that it does not need any more, and writes over what it has.

use std::sync::{Arc, Mutex};

use ob_rocksdb::log::{Position, scan};
use ob_rocksdb::{Database, Error, Files, Options, ReadError};

use crate::support::golden::{expected, golden};
use crate::support::memory::MemoryFiles;
use crate::support::{answered, block_on};

const MANIFEST: &str = "MANIFEST-000005";
const LOG: &str = "000028.log";
const OLDER: &str = "000027.log";

/// A directory that becomes another one after so many calls; the older log's file is the newer log's then.
struct Recycling {
    now: Mutex<MemoryFiles>,
    next: MemoryFiles,
    calls: Mutex<u32>,
}

impl Recycling {
    fn now(&self) -> MemoryFiles {
        let mut calls = self.calls.lock().unwrap();
        if *calls > 0 {
            *calls -= 1;
            if *calls == 0 {
                *self.now.lock().unwrap() = self.next.clone();
            }
        }
        self.now.lock().unwrap().clone()
    }
}

/// The file that was opened, as it is now.
fn current(now: &MemoryFiles, opened: &(String, Arc<Vec<u8>>)) -> (String, Arc<Vec<u8>>) {
    let renamed = if opened.0 == OLDER { LOG } else { &opened.0 };
    let content = now.files.get(&opened.0).or_else(|| now.files.get(renamed));
    (opened.0.clone(), content.unwrap_or(&opened.1).clone())
}

impl Files for &Recycling {
    type File = <MemoryFiles as Files>::File;

    async fn list(&self) -> Result<Vec<(String, u64)>, ReadError> {
        self.now().list().await
    }

    async fn open(&self, name: &str) -> Result<Self::File, ReadError> {
        self.now().open(name).await
    }

    async fn len(&self, file: &Self::File) -> Result<u64, ReadError> {
        let now = self.now();
        now.len(&current(&now, file)).await
    }

    async fn read(&self, file: &Self::File, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
        let now = self.now();
        now.read(&current(&now, file), offset, len).await
    }
}

/// A record in a frame with the log's number.
fn frame(record: &[u8], number: u32) -> Vec<u8> {
    let checked = [&[5][..], &number.to_le_bytes(), record].concat();
    let checksum = crc32c::crc32c(&checked).rotate_right(15).wrapping_add(0xa282_ead8);
    let len = u16::try_from(record.len()).unwrap();
    [&checksum.to_le_bytes()[..], &len.to_le_bytes(), &checked].concat()
}

/// The records of a log as another log has them.
fn framed(log: &[u8], from: u32, to: u32) -> Vec<u8> {
    let records = scan(log, Position::default(), from).unwrap().records;
    let frames: Vec<u8> = records.iter().flat_map(|(_, record)| frame(record, to)).collect();
    assert!(frames.len() < 32 << 10, "they are of one block");
    frames
}

/// What the database says, read while the directory becomes another one after so many calls; and whether it has by then.
fn read_while_it_changes(
    before: &MemoryFiles,
    after: &MemoryFiles,
    calls: u32,
    answers: &[String],
) -> Result<(Vec<String>, bool), Error> {
    let (now, calls) = (Mutex::new(before.clone()), Mutex::new(calls));
    let files = Recycling { now, next: after.clone(), calls };
    let database = block_on(Database::open(&files, Options::default()))?;
    let has_changed = *files.calls.lock().unwrap() == 0;
    let said = answers.iter().map(|line| answered(&database, line)).collect::<Result<_, _>>()?;
    Ok((said, has_changed))
}

#[test]
fn a_log_that_is_written_over_while_it_is_read_is_read_again_as_what_it_is() {
    let (whole, answers) = golden("bloom");
    let answers: Vec<String> = answers.into_iter().rev().take(20).collect();
    let right: Vec<String> = answers.iter().map(|line| expected(line)).collect();
    let after = whole.with(LOG, |log| *log = framed(log, 28, 28));
    // Before, the manifest did not have its last records, and the log was that of what they tell of.
    let manifest = scan(&whole.files[MANIFEST], Position::default(), 0).unwrap();
    let mut changes = 0;
    for (cut, _) in manifest.records.iter().rev() {
        let mut before = whole.with(MANIFEST, |manifest| manifest.truncate(usize::try_from(*cut).unwrap()));
        before.files.remove(LOG);
        before.files.insert(OLDER.to_owned(), framed(&whole.files[LOG], 28, 27).into());
        // A state that needs tables which are gone by now cannot be read.
        let Ok((earlier, _)) = read_while_it_changes(&before, &before, 0, &answers) else { continue };
        let without = before.with(OLDER, Vec::clear);
        if read_while_it_changes(&without, &without, 0, &answers).is_ok_and(|(said, _)| said == earlier) {
            // The log is not needed.
            continue;
        }
        for calls in 1.. {
            let (found, has_changed) = read_while_it_changes(&before, &after, calls, &answers).unwrap();
            assert!(
                found == right || found == earlier,
                "{calls} calls, cut at {cut}: neither was ever there"
            );
            if !has_changed {
                break;
            }
            changes += u32::from(earlier != right && found == right);
        }
    }
    assert!(changes > 0, "the manifest had said so before the log was written over");
}
