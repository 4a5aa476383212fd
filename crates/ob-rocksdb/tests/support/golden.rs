//! Databases that RocksDB 7.8.3 wrote, kept here so that the reader is tested where RocksDB is not installed.
//!
//! Each folder below `tests/golden` is a database, without what is not read, and `answers`: questions and what RocksDB answered. They are
//! made anew by `OB_BLESS=1 cargo test -p ob-rocksdb golden`, where RocksDB is.

use std::path::{Path, PathBuf};

use ob_rocksdb::{Database, Error, Options};

use super::memory::MemoryFiles;
use super::{Peer, answered, block_on};

pub(crate) const GOLDEN: [(&str, &str); 4] = [
    ("plain", "keys=25 lengths=4 ranges=8 block=300"),
    ("bloom", "keys=25 lengths=4 ranges=8 filter=bloom compression=snappy block=300 checksum=crc32c"),
    (
        "partitioned",
        "keys=25 lengths=4 ranges=8 filter=partitioned index=two_level compression=lz4 format=4 checksum=xxhash64 block=300",
    ),
    (
        "zstd",
        "keys=25 lengths=4 ranges=8 filter=bloom format=2 compression=zstd hash_data=1 checksum=xxhash block=300",
    ),
];

pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../ob-rocksdb/tests/golden")).join(name)
}

/// A golden database, and its answers.
pub(crate) fn golden(name: &str) -> (MemoryFiles, Vec<String>) {
    let files = MemoryFiles::load(&folder(name));
    let answers = String::from_utf8(files.files["answers"].to_vec()).unwrap();
    (files, answers.lines().map(str::to_owned).collect())
}

/// What the reader says to a question, without the question.
pub(crate) fn expected(line: &str) -> String {
    match line.strip_prefix("get ") {
        Some(question) => question.split(' ').skip(3).collect::<Vec<_>>().join(" "),
        None => line.to_owned(),
    }
}

/// Answers all questions, or says why not.
pub(crate) fn read_all(files: MemoryFiles, answers: &[String]) -> Result<Vec<String>, Error> {
    let options = Options { attempts_max: 2, ..Options::default() };
    let database = block_on(Database::open(files, options))?;
    answers.iter().map(|line| answered(&database, line)).collect()
}

pub(crate) fn write_golden() {
    for (index, (name, options)) in GOLDEN.iter().enumerate() {
        let Some(mut peer) = Peer::start(index as u64, options) else { return };
        for command in ["write 60", "flush_all", "write 40", "flush_all", "compact", "snapshot", "write 40"] {
            peer.tell(command);
        }
        for command in ["flush_all", "ingest", "snapshot", "write 25"] {
            peer.tell(command);
        }
        // What requests find is asked of the plain one alone.
        let asked = if *name == "plain" { "ask 500" } else { "ask 60" };
        let answers = [peer.tell(asked), peer.tell("ask_all")].concat();
        let path = peer.path();
        let directory = peer.kill();
        let folder = folder(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("answers"), answers.join("\n") + "\n").unwrap();
        for (name, content) in MemoryFiles::load(&path).files {
            let is_read = ["CURRENT", "MANIFEST-"].iter().any(|start| name.starts_with(start))
                || [".sst", ".log"].iter().any(|end| name.ends_with(end));
            if is_read {
                std::fs::write(folder.join(name), &*content).unwrap();
            }
        }
        let options = MemoryFiles::load(&path).files;
        let (name, text) = options.iter().rfind(|(name, _)| name.starts_with("OPTIONS-")).unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        let is_read = |line: &&str| line.starts_with('[') || line.trim_start().starts_with("merge_operator");
        let lines: Vec<&str> = text.lines().filter(is_read).collect();
        std::fs::write(folder.join(name), lines.join("\n") + "\n").unwrap();
        drop(directory);
    }
}
