//! What is written: blocks of files if a folder of some is named, else of the same compressibility as those of the Silesia corpus.

use std::io::Read;
use std::path::Path;

use ob_sim::Rng;

use crate::bench::BenchFailure;
use crate::bench::load::stamp;

/// A folder of files whose bytes are written.
pub(super) const CORPUS_VARIABLE: &str = "OUTBOARD_BENCH_CORPUS";

/// How files begin that zip, gzip, bzip2, xz and zstd have packed.
const PACKED: [&[u8]; 5] =
    [b"PK\x03\x04", &[0x1f, 0x8b], b"BZh", &[0xfd, b'7', b'z', b'X', b'Z'], &[0x28, 0xb5, 0x2f, 0xfd]];
const MAGIC_MAX: u64 = 8;

/// So many bytes, stamped with their places.
pub(super) fn image(len: usize) -> Result<Vec<u8>, BenchFailure> {
    let mut bytes = match std::env::var_os(CORPUS_VARIABLE) {
        Some(folder) => corpus(Path::new(&folder), len)?,
        None => generated(len),
    };
    stamp(&mut bytes, 0);
    Ok(bytes)
}

/// The folder's files one behind the other, by name, and from the first again until there is enough.
fn corpus(folder: &Path, len: usize) -> Result<Vec<u8>, BenchFailure> {
    let mut paths =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.retain(|path| path.is_file());
    paths.sort();
    // Packed bytes are noise: nothing of it shrinks, and a library that copies them is measured instead of one that decodes.
    for path in &paths {
        let mut start = Vec::new();
        std::fs::File::open(path)?.take(MAGIC_MAX).read_to_end(&mut start)?;
        if PACKED.iter().any(|magic| start.starts_with(magic)) {
            return Err(
                format!("{} is packed; {CORPUS_VARIABLE} is to name unpacked files", path.display()).into()
            );
        }
    }
    // Of each as much as there is room for, so that a large one does not stand for all.
    let share = len.div_ceil(paths.len().max(1)).next_multiple_of(64 << 10);
    let mut bytes = Vec::with_capacity(len);
    for path in paths {
        let file = std::fs::read(path)?;
        bytes.extend(file.iter().cycle().take(if file.is_empty() { 0 } else { share }));
    }
    if bytes.len() < len {
        return Err(format!("{} holds no bytes; {CORPUS_VARIABLE} names it", folder.display()).into());
    }
    bytes.truncate(len);
    Ok(bytes)
}

/// Random bytes, and copies of what came before them, near ones more often. How long each is was fitted to the corpus: LZ4 makes 1.9
/// of its blocks of 4 KiB, and 2.7 of those of 64 KiB.
fn generated(len: usize) -> Vec<u8> {
    let mut rng = Rng::new(9).fork("blocks");
    let mut bytes: Vec<u8> = Vec::with_capacity(len + 128);
    bytes.extend((0..64).map(|_| rng.below(256) as u8));
    while bytes.len() < len {
        let fresh = 1 + rng.below(22);
        bytes.extend((0..fresh).map(|_| rng.below(256) as u8));
        let nearness = 3 + rng.below(13);
        let distance = ((1 << nearness) + rng.below(1 << nearness)).min(bytes.len() as u64) as usize;
        let from = bytes.len() - distance;
        for at in from..from + 8 + rng.below(77) as usize {
            bytes.push(bytes[at]);
        }
    }
    bytes.truncate(len);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_corpus_that_is_packed_is_refused() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("plain"), b"PK is how it begins").unwrap();
        assert_eq!(corpus(place.path(), 4096).unwrap().len(), 4096);
        std::fs::write(place.path().join("packed"), b"PK\x03\x04 and so on").unwrap();
        let error = corpus(place.path(), 4096).unwrap_err().to_string();
        assert!(error.contains("packed is packed"), "{error}");
    }

    #[test]
    fn blocks_shrink_as_those_of_the_corpus() {
        let image = image(4 << 20).unwrap();
        let ratio = |block: usize| {
            let stored: usize = image
                .chunks_exact(block)
                .map(|block| lz4::block::compress(block, None, false).unwrap().len())
                .sum();
            image.len() as f64 / stored as f64
        };
        let (small, large) = (ratio(4 << 10), ratio(64 << 10));
        assert!((1.7..2.1).contains(&small) && (2.3..3.1).contains(&large), "{small} {large}");
    }
}
