//! Logs and manifests that say they are a terabyte long, and are: of zeros, or of one record. Nothing is read without end, and nothing is kept.

use std::sync::Mutex;

use ob_rocksdb::{Damage, Database, Error, Files, Options, ReadError};

use crate::support::golden::{expected, golden};
use crate::support::memory::MemoryFiles;
use crate::support::{answered, block_on};

const TERABYTE: u64 = 1 << 40;
const BLOCK_LEN: usize = 32 << 10;
const MIB: usize = 1 << 20;
const LOG: &str = "000028.log";
const MANIFEST: &str = "MANIFEST-000005";

/// Files of which one is longer than what it has: behind that, the same block comes again and again.
struct Endless {
    files: Mutex<MemoryFiles>,
    name: &'static str,
    len: u64,
    block: Vec<u8>,
    /// Bytes that were read of it, and the most at once.
    read: Mutex<(u64, usize)>,
    /// What becomes of the files after so many more reads of it.
    then: Mutex<Option<(u32, MemoryFiles)>>,
}

impl Endless {
    fn new(files: MemoryFiles, name: &'static str, len: u64, block: Vec<u8>) -> Self {
        assert_eq!(block.len(), BLOCK_LEN);
        Self { files: Mutex::new(files), name, len, block, read: Mutex::default(), then: Mutex::default() }
    }

    fn zeros(files: MemoryFiles, name: &'static str, len: u64) -> Self {
        Self::new(files, name, len, vec![0; BLOCK_LEN])
    }

    fn now(&self) -> MemoryFiles {
        self.files.lock().unwrap().clone()
    }

    /// What was read since this was asked last: bytes, and the most at once.
    fn take_read(&self) -> (u64, usize) {
        std::mem::take(&mut *self.read.lock().unwrap())
    }
}

impl Files for &Endless {
    type File = <MemoryFiles as Files>::File;

    async fn list(&self) -> Result<Vec<(String, u64)>, ReadError> {
        self.now().list().await
    }

    async fn open(&self, name: &str) -> Result<Self::File, ReadError> {
        self.now().open(name).await
    }

    async fn len(&self, file: &Self::File) -> Result<u64, ReadError> {
        if file.0 == self.name { Ok(self.len) } else { self.now().len(file).await }
    }

    async fn read(&self, file: &Self::File, offset: u64, len: usize) -> Result<Vec<u8>, ReadError> {
        let now = self.now();
        if file.0 != self.name {
            return now.read(file, offset, len).await;
        }
        assert!(offset + len as u64 <= self.len);
        {
            let mut read = self.read.lock().unwrap();
            *read = (read.0 + len as u64, read.1.max(len));
            assert!(read.1 < 256 * MIB && read.0 < 4 << 30, "{read:?}: it is read without end");
        }
        let mut bytes = Vec::with_capacity(len);
        // What it has may have been replaced since it was opened.
        let content = &now.files[self.name];
        let begin = usize::try_from(offset).map_or(content.len(), |begin| begin.min(content.len()));
        bytes.extend_from_slice(&content[begin..(begin + len).min(content.len())]);
        while bytes.len() < len {
            let from = usize::try_from((offset + bytes.len() as u64) % BLOCK_LEN as u64).unwrap();
            let part = &self.block[from..(from + len - bytes.len()).min(BLOCK_LEN)];
            bytes.extend_from_slice(part);
        }
        let mut then = self.then.lock().unwrap();
        match then.take() {
            Some((0 | 1, files)) => *self.files.lock().unwrap() = files,
            later => *then = later.map(|(reads, files)| (reads - 1, files)),
        }
        Ok(bytes)
    }
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let checked = [&[kind], payload].concat();
    let checksum = crc32c::crc32c(&checked).rotate_right(15).wrapping_add(0xa282_ead8);
    let len = u16::try_from(payload.len()).unwrap();
    [&checksum.to_le_bytes()[..], &len.to_le_bytes(), &checked].concat()
}

/// A block that is one frame.
fn block(kind: u8) -> Vec<u8> {
    frame(kind, &[7; BLOCK_LEN - 7])
}

fn open(files: &Endless) -> Result<Database<&Endless>, Error> {
    block_on(Database::open(files, Options { sample_one_in: 0, ..Options::default() }))
}

fn too_large(opened: Result<Database<&Endless>, Error>) -> (String, u64) {
    match opened.err() {
        Some(Error::Damaged { file, damage: Damage::TooLarge { len_max, .. }, .. }) => (file, len_max),
        other => panic!("{other:?}"),
    }
}

fn check_answers(database: &Database<&Endless>, answers: &[String]) {
    for line in answers {
        assert_eq!(answered(database, line).unwrap(), expected(line));
    }
}

#[test]
fn zeros_of_a_terabyte_are_too_many() {
    let (files, _) = golden("bloom");
    let without = files.with(LOG, Vec::clear);
    let torn = files.with(LOG, |log| {
        log.resize(log.len().next_multiple_of(BLOCK_LEN), 0);
        log.extend(block(2));
    });
    for (files, name) in [(&files, LOG), (&without, LOG), (&torn, LOG), (&files, MANIFEST)] {
        let endless = Endless::zeros(files.clone(), name, TERABYTE);
        assert_eq!(too_large(open(&endless)), (name.to_owned(), 1 << 30));
        let (all, at_once) = endless.take_read();
        assert!(all < 1100 << 20 && at_once <= MIB, "{all} bytes were read, {at_once} at once");
    }
}

/// Where a record of a log ends, in the middle of it.
fn half_of(log: &[u8]) -> usize {
    let mut ends = vec![0];
    while let Some(header) = log.get(*ends.last().unwrap()..).and_then(|rest| rest.get(..7)) {
        ends.push(ends.last().unwrap() + 7 + usize::from(u16::from_le_bytes([header[4], header[5]])));
    }
    assert_eq!(ends.last(), Some(&log.len()), "it is of one block");
    ends[ends.len() / 2]
}

/// The reader has seen zeros where the log goes on, and the writer, who is faster, has filled what is read next before it is.
#[test]
fn what_is_written_while_zeros_are_read_is_no_gap() {
    let (whole, answers) = golden("bloom");
    let half = half_of(&whole.files[LOG]);
    let before = whole.with(LOG, |log| log.truncate(half));
    for blocks in [33, 40, 100, 200] {
        // Behind the records come frames of a kind that may be left out.
        let after = whole.with(LOG, |log| {
            let room = BLOCK_LEN - log.len() - 7;
            log.extend(frame(130, &vec![7; room]));
            (0..blocks).for_each(|_| log.extend(block(130)));
        });
        let last = after.with(LOG, |log| {
            log.splice(BLOCK_LEN.., std::iter::repeat_n(0, 64 * BLOCK_LEN));
            log.extend(block(130));
        });
        for reads in 1..6 {
            for after in [&after, &last] {
                let endless = Endless::zeros(before.clone(), LOG, 10 * MIB as u64);
                *endless.then.lock().unwrap() = Some((reads, after.clone()));
                let database = open(&endless).unwrap();
                assert!(endless.take_read().1 <= MIB);
                block_on(database.catch_up()).unwrap();
                check_answers(&database, &answers);
            }
        }
    }
}

#[test]
fn a_log_with_room_for_more_is_read_once_and_then_followed() {
    let (whole, answers) = golden("bloom");
    let log = whole.files[LOG].to_vec();
    // First it has the first half of what it has, which ends with a record.
    let half = half_of(&log);
    let room = log.len() as u64 + (100 << 20);
    let endless = Endless::zeros(whole.with(LOG, |log| log.truncate(half)), LOG, room);
    let database = open(&endless).unwrap();
    let (all, at_once) = endless.take_read();
    assert!(all < 102 << 20 && at_once <= MIB, "{all} bytes were read, {at_once} at once");
    let sequence = database.view().last_sequence();
    for _ in 0..3 {
        block_on(database.catch_up()).unwrap();
        let (all, _) = endless.take_read();
        assert!(all <= MIB as u64, "{all} bytes of zeros were read again");
    }
    *endless.files.lock().unwrap() = whole;
    block_on(database.catch_up()).unwrap();
    assert!(database.view().last_sequence() > sequence);
    check_answers(&database, &answers);
}

#[test]
fn whole_blocks_of_zeros_are_passed_over() {
    let (whole, answers) = golden("bloom");
    let moved = |zeros: usize| {
        whole.with(LOG, |log| {
            log.splice(0..0, std::iter::repeat_n(0, zeros));
        })
    };
    for blocks in [1, 31, 32, 33, 200] {
        let files = moved(blocks * BLOCK_LEN);
        let len = files.files[LOG].len() as u64;
        let endless = Endless::zeros(files, LOG, len);
        check_answers(&open(&endless).unwrap(), &answers);
        assert!(endless.take_read().1 <= MIB);
    }
    // Zeros that end within a block are nobody's.
    for zeros in [7, BLOCK_LEN + 7, 100 * BLOCK_LEN + 7] {
        let files = moved(zeros);
        let len = files.files[LOG].len() as u64;
        let endless = Endless::zeros(files, LOG, len);
        let failed = open(&endless).err();
        assert!(matches!(failed, Some(Error::Damaged { .. })), "{zeros}: {failed:?}");
    }
}

#[test]
fn a_record_without_end_is_too_large() {
    let (files, _) = golden("bloom");
    for (name, len_max) in [(MANIFEST, 64 << 20), (LOG, 3 << 20)] {
        let begun = files.with(name, |log| {
            log.resize(log.len().next_multiple_of(BLOCK_LEN), 0);
            log.extend(block(2));
        });
        let endless = Endless::new(begun, name, TERABYTE, block(3));
        let options = Options { logs_len_max: 3 << 20, ..Options::default() };
        assert_eq!(too_large(block_on(Database::open(&endless, options))), (name.to_owned(), len_max as u64));
        assert!(endless.take_read().1 <= len_max + 2 * MIB, "as long as the longest record, and no longer");
    }
}

/// A record of some blocks whose last ones are not there yet, with and without room behind it, is not there yet.
#[test]
fn a_long_record_may_be_cut_anywhere() {
    let (files, answers) = golden("bloom");
    for blocks in [1, 2, 3, 40] {
        for (cut, room) in [(0, 0), (100, 0), (BLOCK_LEN - 10, 0), (100, 5 << 20)] {
            let torn = files.with(LOG, |log| {
                log.resize(log.len().next_multiple_of(BLOCK_LEN), 0);
                log.extend(block(2));
                (1..blocks).for_each(|_| log.extend(block(3)));
                log.truncate(log.len() - if blocks > 1 { cut } else { 0 });
            });
            // A frame that is cut off is no frame before zeros.
            let torn = if room > 0 && blocks > 1 {
                torn.with(LOG, |log| log.truncate(log.len() - (BLOCK_LEN - cut)))
            } else {
                torn
            };
            let len = torn.files[LOG].len() as u64 + room;
            let endless = Endless::zeros(torn, LOG, len);
            let opened = open(&endless);
            let database = opened.unwrap_or_else(|error| panic!("{blocks} blocks, {cut}, {room}: {error}"));
            check_answers(&database, &answers);
        }
    }
}

#[test]
fn a_manifest_that_comes_to_too_much_is_too_large() {
    let (files, answers) = golden("bloom");
    // A comparator's name, of some KiB, for one column family after the other.
    let records = |count: u32| {
        files.with(MANIFEST, |manifest| {
            manifest.resize(manifest.len().next_multiple_of(BLOCK_LEN), 0);
            for family in 100..100 + count {
                let name = [b'x'; 16_000];
                // Field 200: the column family; 201: its name.
                let mut record =
                    vec![0xC8, 0x01, (family & 0x7F) as u8 | 0x80, (family >> 7) as u8, 0xC9, 0x01];
                record.extend([0x80, 0x7D]);
                record.extend(name);
                let frame = frame(1, &record);
                let left = BLOCK_LEN - manifest.len() % BLOCK_LEN;
                if left < frame.len() {
                    manifest.resize(manifest.len() + left, 0);
                }
                manifest.extend(frame);
            }
        })
    };
    let options = Options { manifest_len_max: 1 << 20, ..Options::default() };
    let database = |count| {
        let files = records(count);
        let len = files.files[MANIFEST].len() as u64;
        let endless = Endless::zeros(files, MANIFEST, len);
        let opened = block_on(Database::open(&endless, options.clone()));
        if let Ok(database) = &opened {
            check_answers(database, &answers);
        }
        opened.map(drop)
    };
    assert_eq!(database(10), Ok(()));
    let failed = database(100).unwrap_err();
    assert!(
        matches!(failed, Error::Damaged { damage: Damage::TooLarge { len_max: 0x10_0000, .. }, .. }),
        "{failed:?}"
    );
}
