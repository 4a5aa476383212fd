//! Who the tier of a card is, over lives of the card: its number, and what keeps those lives apart.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ob_core::{LockId, TierId};

use crate::durable;
use crate::nvme::{hex, unhex};
use crate::random;

/// Where the card keeps its tier's number.
const FILE: &str = "tier";
const FILE_NEW: &str = "tier.new";
/// The file that one process at a time has locked.
const LOCK: &str = "lock";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The tier's number: drawn once.
pub(super) fn tier(directory: &Path) -> io::Result<TierId> {
    let path = directory.join(FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let bytes = unhex(text.trim()).and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
            let number = bytes.map(u64::from_be_bytes).filter(|number| *number != 0);
            let wrong = || {
                let text = format!("{} should hold 16 hexadecimal digits; remove it", path.display());
                io::Error::new(io::ErrorKind::InvalidData, text)
            };
            number.map(TierId).ok_or_else(wrong)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let bytes: [u8; 8] = random::bytes()?;
            // 0 is none.
            let number = u64::from_be_bytes(bytes).max(1);
            durable::replace(&directory.join(FILE_NEW), &path, hex(&number.to_be_bytes()).as_bytes())?;
            Ok(TierId(number))
        }
        Err(error) => Err(error),
    }
}

/// Where a lock keeps the card's lives apart: the machine as it was booted last, and the file that is locked there.
pub(super) fn lock(directory: &Path) -> io::Result<LockId> {
    let boot = std::fs::read_to_string(BOOT_ID)?;
    let boot = unhex(&boot.trim().replace('-', "")).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok());
    let boot =
        boot.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("{BOOT_ID} is no UUID")))?;
    let file = std::fs::metadata(directory.join(LOCK))?;
    Ok(lock_of(boot, file.ino(), file.dev()))
}

fn lock_of(boot: [u8; 16], file: u64, device: u64) -> LockId {
    let (first, second) = (u128::from_le_bytes(boot) as u64, (u128::from_le_bytes(boot) >> 64) as u64);
    let (first, second) = (first.wrapping_add(file), second.wrapping_add(device));
    LockId((u128::from(second) << 64 | u128::from(first)).to_le_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod tests {
    use super::*;

    #[test]
    fn a_tier_is_drawn_once() {
        let directory = tempfile::tempdir().unwrap();
        let drawn = tier(directory.path()).unwrap();
        assert!(drawn.0 != 0);
        assert_eq!(tier(directory.path()).unwrap(), drawn);
        for wrong in ["", "0000000000000000", "12", "no number at all"] {
            std::fs::write(directory.path().join(FILE), wrong).unwrap();
            assert!(tier(directory.path()).unwrap_err().to_string().contains("remove it"), "{wrong}");
        }
    }

    #[test]
    fn a_lock_is_of_its_file_and_boot() {
        let directory = tempfile::tempdir().unwrap();
        assert!(lock(directory.path()).is_err(), "there is no such file");
        std::fs::write(directory.path().join(LOCK), "").unwrap();
        let own = lock(directory.path()).unwrap();
        assert_eq!(lock(directory.path()).unwrap(), own);
        // A copy is another file.
        let copy = tempfile::tempdir().unwrap();
        std::fs::write(copy.path().join(LOCK), "").unwrap();
        assert_ne!(lock(copy.path()).unwrap(), own);
        assert_eq!(lock_of([0xff; 16], 1, 2).0, [[0; 8], 1u64.to_le_bytes()].as_flattened());
    }
}
