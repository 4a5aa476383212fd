//! What the card has to know of its namespaces in its next life: their ids, and reservations that are to last.
//!
//! One small file, replaced as a whole: written beside itself, made durable, renamed.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ob_nvme::target::control::ReservationState;
use serde::{Deserialize, Serialize};

use super::{NvmeError, fill};

/// The file's version; another one is refused.
const VERSION: u32 = 1;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Contents {
    version: u32,
    /// Drawn once: the subsystem's serial number.
    serial: String,
    namespaces: Vec<Row>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    nsid: u32,
    uuid: String,
    /// What it lies on; nothing for the namespace that the configuration names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<PathBuf>,
    /// Bytes of memory, which has no other place to say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// Removed by hand, and not to come back with the next start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    removed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reservations: Option<String>,
}

/// What is known of a namespace.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) nsid: u32,
    pub(super) uuid: [u8; 16],
    /// What it lies on, unless the configuration says that.
    pub(super) device: Option<PathBuf>,
    /// How large it was made, where the configuration does not say that.
    pub(super) size: Option<u64>,
    pub(super) reservations: Option<ReservationState>,
}

/// The namespace that the configuration names.
#[derive(Debug)]
pub(super) enum Configured {
    /// It was never served.
    New,
    /// It was.
    Known(Entry),
    /// Somebody removed it, and it stays away.
    Removed,
}

/// What is known of all namespaces, in a file.
#[derive(Debug)]
pub(super) struct Catalogue {
    path: PathBuf,
    contents: Contents,
}

impl Catalogue {
    /// Reads the file; a new one if there is none.
    pub(super) fn load(path: &Path) -> Result<Self, NvmeError> {
        let damaged = |source: io::Error| NvmeError::Catalogue {
            path: path.to_owned(),
            source,
            hint: "put a copy in its place; without it namespaces get new ids, and hosts take them for other disks",
        };
        let text = match std::fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let contents =
                    Contents { version: VERSION, serial: hex(&random::<8>()), namespaces: Vec::new() };
                return Ok(Self { path: path.to_owned(), contents });
            }
            Err(error) => return Err(damaged(error)),
        };
        let contents: Contents = serde_json::from_slice(&text).map_err(|error| damaged(error.into()))?;
        if contents.version != VERSION {
            let message = format!("its version is {}, and this program knows {VERSION}", contents.version);
            return Err(damaged(io::Error::new(io::ErrorKind::InvalidData, message)));
        }
        Ok(Self { path: path.to_owned(), contents })
    }

    pub(super) fn serial(&self) -> String {
        self.contents.serial.clone()
    }

    /// What is known of the namespace that the configuration names.
    pub(super) fn configured(&self, nsid: u32) -> Result<Configured, NvmeError> {
        match self.contents.namespaces.iter().find(|row| row.nsid == nsid) {
            None => Ok(Configured::New),
            Some(row) if row.device.is_none() && !row.removed => self.entry(row).map(Configured::Known),
            // Its id may have been given to another one since.
            Some(_) => Ok(Configured::Removed),
        }
    }

    /// The namespaces that were added by hand.
    pub(super) fn added(&self) -> Result<Vec<Entry>, NvmeError> {
        let rows = self.contents.namespaces.iter().filter(|row| row.device.is_some() && !row.removed);
        rows.map(|row| self.entry(row)).collect()
    }

    /// Writes down a new namespace, with ids of its own.
    pub(super) fn add(
        &mut self,
        nsid: u32,
        device: Option<PathBuf>,
        size: Option<u64>,
    ) -> Result<Entry, NvmeError> {
        let row = Row { nsid, uuid: hex(&random_uuid()), device, size, removed: false, reservations: None };
        let before = self.contents.clone();
        self.contents.namespaces.retain(|row| row.nsid != nsid);
        self.contents.namespaces.push(row.clone());
        if let Err(error) = self.save() {
            self.contents = before;
            return Err(error);
        }
        self.entry(&row)
    }

    /// Writes down that a namespace is not served any more.
    pub(super) fn remove(&mut self, nsid: u32) -> Result<(), NvmeError> {
        let before = self.contents.clone();
        for row in self.contents.namespaces.iter_mut().filter(|row| row.nsid == nsid) {
            (row.removed, row.reservations) = (true, None);
        }
        let saved = self.save();
        if saved.is_err() {
            self.contents = before;
        }
        saved
    }

    /// Forgets a namespace that was written down and never served.
    pub(super) fn forget(&mut self, nsid: u32) -> Result<(), NvmeError> {
        self.contents.namespaces.retain(|row| row.nsid != nsid);
        self.save()
    }

    fn entry(&self, row: &Row) -> Result<Entry, NvmeError> {
        let read = || {
            let uuid = unhex(&row.uuid)?.try_into().ok()?;
            let reservations = match &row.reservations {
                None => None,
                Some(text) => Some(ReservationState::decode(&unhex(text)?).ok()?),
            };
            let (device, size) = (row.device.clone(), row.size);
            Some(Entry { nsid: row.nsid, uuid, device, size, reservations })
        };
        read().ok_or_else(|| {
            let text = format!("namespace {} cannot be read", row.nsid);
            let source = io::Error::new(io::ErrorKind::InvalidData, text);
            NvmeError::Catalogue { path: self.path.clone(), source, hint: "put a copy in its place" }
        })
    }

    /// Makes a namespace's reservations durable, or forgets them.
    pub(super) fn save_reservations(
        &mut self,
        nsid: u32,
        state: Option<&ReservationState>,
    ) -> Result<(), NvmeError> {
        let text = state.map(|state| hex(&state.encode()));
        let Some(row) = self.contents.namespaces.iter_mut().find(|row| row.nsid == nsid) else {
            return Ok(());
        };
        if row.reservations == text {
            return Ok(());
        }
        let before = std::mem::replace(&mut row.reservations, text);
        let saved = self.save();
        if saved.is_err() {
            // What is on the disk still holds; the next change tries again.
            for row in self.contents.namespaces.iter_mut().filter(|row| row.nsid == nsid) {
                row.reservations.clone_from(&before);
            }
        }
        saved
    }

    fn save(&self) -> Result<(), NvmeError> {
        let saved = serde_json::to_vec_pretty(&self.contents)
            .map_err(io::Error::from)
            .and_then(|text| replace(&self.path, &text));
        saved.map_err(|source| NvmeError::Catalogue {
            path: self.path.clone(),
            source,
            hint: "the card must be able to write it",
        })
    }
}

/// Replaces a file so that after any crash it is the old one or the new one.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("json.new");
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    match path.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}

fn random<const LEN: usize>() -> [u8; LEN] {
    let mut bytes = [0; LEN];
    fill(&mut bytes);
    bytes
}

/// A random UUID, marked as one (RFC 9562 §5.4).
fn random_uuid() -> [u8; 16] {
    let mut bytes = random::<16>();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// A UUID as everybody writes it.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let digits = hex(uuid);
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_outlive_the_card_and_removed_ones_stay_away() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("nvme.json");
        let mut first = Catalogue::load(&path).unwrap();
        let (serial, one) = (first.serial(), first.add(1, None, None).unwrap());
        let known = |catalogue: &Catalogue| match catalogue.configured(1).unwrap() {
            Configured::Known(entry) => entry.uuid,
            other => panic!("{other:?}"),
        };
        assert_eq!(known(&first), one.uuid);
        let two = first.add(2, Some(PathBuf::from("/dev/two")), Some(4096)).unwrap();
        assert_ne!(one.uuid, two.uuid);
        let mut second = Catalogue::load(&path).unwrap();
        assert_eq!((second.serial(), known(&second)), (serial, one.uuid));
        let added = second.added().unwrap();
        assert_eq!(added.iter().map(|entry| (entry.nsid, entry.uuid)).collect::<Vec<_>>(), [(2, two.uuid)]);
        second.remove(1).unwrap();
        second.remove(2).unwrap();
        let mut third = Catalogue::load(&path).unwrap();
        assert!(matches!(third.configured(1).unwrap(), Configured::Removed));
        assert!(third.added().unwrap().is_empty());
        let again = third.add(2, Some(PathBuf::from("/dev/two")), Some(4096)).unwrap();
        assert_ne!(again.uuid, two.uuid, "it may hold other data by now");
    }

    #[test]
    fn reservations_outlive_the_card_and_damage_is_told() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("nvme.json");
        let mut catalogue = Catalogue::load(&path).unwrap();
        assert!(matches!(catalogue.configured(1).unwrap(), Configured::New));
        catalogue.add(1, None, None).unwrap();
        catalogue.save_reservations(1, Some(&ReservationState::default())).unwrap();
        let Configured::Known(entry) = Catalogue::load(&path).unwrap().configured(1).unwrap() else {
            panic!("it was served");
        };
        let restored = entry.reservations.map(|state| state.encode());
        assert_eq!(restored, Some(ReservationState::default().encode()));
        let text = std::fs::read_to_string(&path).unwrap();
        let damaged = text.replace("\"uuid\": \"", "\"uuid\": \"zz");
        for (damage, told) in [(damaged, "namespace 1"), ("{".to_owned(), "EOF")] {
            std::fs::write(&path, damage).unwrap();
            let error = Catalogue::load(&path).and_then(|catalogue| catalogue.configured(1)).unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
        }
        std::fs::write(&path, text.replace("\"version\": 1", "\"version\": 2")).unwrap();
        assert!(Catalogue::load(&path).unwrap_err().to_string().contains("version is 2"));
    }
}
