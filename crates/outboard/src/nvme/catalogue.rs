//! What the card has to know of its namespaces in its next life: their ids, and reservations that are to last.
//!
//! One small file, replaced as a whole: written beside itself, made durable, renamed. Its fields are in `docs/format/nvme.md`.

use std::io;
use std::path::{Path, PathBuf};

use ob_nvme::target::control::ReservationState;
use ob_wire_nvme::text::Nqn;
use serde::{Deserialize, Serialize};

use super::NvmeError;
use crate::{durable, random};

/// The file's version. The second one did not know the length of blocks, and the first a single subsystem only, whose name it
/// did not say.
const VERSION: u32 = 3;
const VERSION_WITHOUT_BLOCKS: u32 = 2;
const VERSION_FIRST: u32 = 1;

/// How many devices are known that the configuration named once and does not now.
const ELSEWHERE_MAX: usize = 16;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Contents {
    version: u32,
    subsystems: Vec<SubsystemRow>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct SubsystemRow {
    /// Its name, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nqn: Option<String>,
    /// Drawn once: its serial number.
    serial: String,
    namespaces: Vec<Row>,
    /// What the namespace that the configuration names was on other devices: the same again when it lies there again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    elsewhere: Vec<Row>,
}

impl SubsystemRow {
    /// Puts a row in the place of the one with its NSID. What the configuration named, on another device, is kept: it may be named
    /// again, and a slip of the pen is no reason to forget who was let in there.
    fn put(&mut self, row: Row) {
        let before = self.namespaces.iter().position(|known| known.nsid == row.nsid);
        let before = before.map(|at| self.namespaces.remove(at));
        let is_elsewhere = |known: &Row| {
            known.device.is_none() && !known.removed && row.device.is_none() && known.lies_on != row.lies_on
        };
        self.elsewhere.extend(before.filter(is_elsewhere));
        if self.elsewhere.len() > ELSEWHERE_MAX {
            self.elsewhere.remove(0);
        }
        self.namespaces.push(row);
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    nsid: u32,
    uuid: String,
    /// What it lies on; nothing for the namespace that the configuration names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    device: Option<PathBuf>,
    /// What the namespace lay on that the configuration names: its ids are those of what it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lies_on: Option<String>,
    /// Bytes of memory, which has no other place to say so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// Bytes of a block, as hosts count them; nothing before it was served, or in files of cards that did not write it down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    block_len: Option<u32>,
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
    /// Bytes of a block, if that is known.
    pub(super) block_len: Option<u32>,
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

/// A namespace in the catalogue: its subsystem, as [`Catalogue::adopt`] numbers it, and its NSID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NamespacePlace {
    pub(super) subsystem: usize,
    pub(super) nsid: u32,
}

/// What is known of all namespaces, in a file.
#[derive(Debug)]
pub(super) struct Catalogue {
    path: PathBuf,
    contents: Contents,
    /// Whether the file may have something else than this.
    is_behind: bool,
    /// The row whose place the newest one took: it comes back if that one is never served.
    replaced: Option<(NamespacePlace, Row)>,
    /// Writes the file, by way of another one beside it.
    replace: fn(&Path, &Path, &[u8]) -> io::Result<()>,
}

impl Catalogue {
    /// Reads the file; a new one if there is none.
    pub(super) fn load(path: &Path) -> Result<Self, NvmeError> {
        let damaged = |source: io::Error| NvmeError::Catalogue {
            path: path.to_owned(),
            source,
            hint: "put a copy in its place; without it namespaces get new ids, and hosts take them for other disks",
        };
        let contents = match std::fs::read(path) {
            Ok(text) => parse(&text).map_err(damaged)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Contents { version: VERSION, subsystems: Vec::new() }
            }
            Err(error) => return Err(damaged(error)),
        };
        let (path, is_behind, replaced) = (path.to_owned(), false, None);
        Ok(Self { path, contents, is_behind, replaced, replace: durable::replace })
    }

    /// The number of the subsystem with this name; a new one gets its serial number. Where there is only one, now and
    /// before, it is the same under whatever name.
    pub(super) fn adopt(&mut self, nqn: &Nqn, is_only: bool) -> Result<usize, NvmeError> {
        let rows = &mut self.contents.subsystems;
        let named = rows.iter().position(|row| row.nqn.as_deref() == Some(nqn.as_str()));
        let nameless = || rows.iter().position(|row| row.nqn.is_none());
        let only = || (is_only && rows.len() == 1).then_some(0);
        let index = match named.or_else(nameless).or_else(only) {
            Some(index) => index,
            None => {
                let serial = random::bytes::<8>().map_err(|source| NvmeError::Catalogue {
                    path: self.path.clone(),
                    source,
                    hint: "the kernel has to give random numbers",
                })?;
                let (serial, namespaces, elsewhere) = (hex(&serial), Vec::new(), Vec::new());
                rows.push(SubsystemRow { nqn: None, serial, namespaces, elsewhere });
                rows.len() - 1
            }
        };
        if let Some(row) = rows.get_mut(index).filter(|row| row.nqn.as_deref() != Some(nqn.as_str())) {
            row.nqn = Some(nqn.as_str().to_owned());
            self.is_behind = true;
        }
        Ok(index)
    }

    pub(super) fn serial(&self, subsystem: usize) -> String {
        self.contents.subsystems.get(subsystem).map(|row| row.serial.clone()).unwrap_or_default()
    }

    /// Writes down what changed while the card started.
    pub(super) fn catch_up(&mut self) -> Result<(), NvmeError> {
        if self.is_behind { self.save() } else { Ok(()) }
    }

    /// What is known of the namespace that the configuration names, which lies on this. On something else it is another
    /// one: hosts must not take it for the disk that they knew. Where it lay before, it is the one that it was.
    pub(super) fn configured(&mut self, place: NamespacePlace, on: &str) -> Result<Configured, NvmeError> {
        let Some(subsystem) = self.contents.subsystems.get_mut(place.subsystem) else {
            return Ok(Configured::New);
        };
        match subsystem.namespaces.iter_mut().find(|row| row.nsid == place.nsid) {
            None => Ok(Configured::New),
            Some(row) if row.device.is_none() && !row.removed => {
                if row.lies_on.as_deref().is_some_and(|known| known != on) {
                    let known = subsystem.elsewhere.iter().position(|row| row.lies_on.as_deref() == Some(on));
                    let Some(known) = known else { return Ok(Configured::New) };
                    let row = subsystem.elsewhere.remove(known);
                    subsystem.put(row.clone());
                    self.is_behind = true;
                    return self.entry(&row).map(Configured::Known);
                }
                self.is_behind |= row.lies_on.is_none();
                row.lies_on = Some(on.to_owned());
                let row = row.clone();
                self.entry(&row).map(Configured::Known)
            }
            // Its id may have been given to another one since.
            Some(_) => Ok(Configured::Removed),
        }
    }

    /// The namespaces of a subsystem that were added by hand.
    pub(super) fn added(&self, subsystem: usize) -> Result<Vec<Entry>, NvmeError> {
        let rows = self.rows(subsystem).iter().filter(|row| row.device.is_some() && !row.removed);
        rows.map(|row| self.entry(row)).collect()
    }

    /// Writes down a new namespace, with ids of its own.
    pub(super) fn add(
        &mut self,
        place: NamespacePlace,
        device: Option<PathBuf>,
        lies_on: Option<String>,
        size: Option<u64>,
    ) -> Result<Entry, NvmeError> {
        let nsid = place.nsid;
        let uuid = random::uuid().map_err(|source| self.unwritten(source))?;
        let uuid = hex(&uuid);
        let (block_len, reservations) = (None, None);
        let row = Row { nsid, uuid, device, lies_on, size, block_len, removed: false, reservations };
        let replaced = self.rows(place.subsystem).iter().find(|row| row.nsid == nsid).cloned();
        self.replaced = replaced.map(|row| (place, row));
        self.change(place.subsystem, |subsystem| subsystem.put(row.clone()))?;
        self.entry(&row)
    }

    /// An id for a new namespace: the lowest that none has had; if there is none, the one that was given up first. A host that
    /// has not heard yet of a removal would write on whatever has the id now, so it is used again as late as can be.
    pub(super) fn free_nsid(&self, subsystem: usize, max: u32) -> Option<u32> {
        let rows = self.rows(subsystem);
        let is_new = |nsid: &u32| rows.iter().all(|row| row.nsid != *nsid);
        let given_up = || rows.iter().find(|row| row.removed && row.nsid <= max).map(|row| row.nsid);
        (1..=max).find(is_new).or_else(given_up)
    }

    /// Writes down that a namespace is not served any more, behind those of which that was written before.
    pub(super) fn remove(&mut self, place: NamespacePlace) -> Result<(), NvmeError> {
        self.change(place.subsystem, |SubsystemRow { namespaces: rows, .. }| {
            if let Some(at) = rows.iter().position(|row| row.nsid == place.nsid) {
                let row = rows.remove(at);
                rows.push(Row { removed: true, reservations: None, ..row });
            }
        })
    }

    /// Forgets a namespace that was written down and never served. What was known of its place before holds again.
    pub(super) fn forget(&mut self, place: NamespacePlace) -> Result<(), NvmeError> {
        let replaced = self.replaced.take().filter(|(known, _)| *known == place);
        self.change(place.subsystem, |SubsystemRow { namespaces: rows, elsewhere, .. }| {
            rows.retain(|row| row.nsid != place.nsid);
            if let Some((_, row)) = replaced {
                elsewhere.retain(|known| known.uuid != row.uuid);
                rows.push(row);
            }
        })
    }

    /// Writes down by what blocks hosts count in a namespace.
    pub(super) fn note_block_len(&mut self, place: NamespacePlace, block_len: u32) -> Result<(), NvmeError> {
        self.change(place.subsystem, |subsystem| {
            if let Some(row) = subsystem.namespaces.iter_mut().find(|row| row.nsid == place.nsid) {
                row.block_len = Some(block_len);
            }
        })
    }

    /// Makes reservations of namespaces durable, or forgets them. The UUID says whose they are.
    pub(super) fn save_reservations(
        &mut self,
        saves: impl Iterator<Item = (NamespacePlace, [u8; 16], Option<Vec<u8>>)>,
    ) -> Result<(), NvmeError> {
        let before = self.contents.clone();
        let mut is_changed = false;
        for (place, uuid, state) in saves {
            let text = state.map(|state| hex(&state));
            let rows = self.contents.subsystems.get_mut(place.subsystem).map(|row| &mut row.namespaces);
            let row = rows.and_then(|rows| rows.iter_mut().find(|row| row.nsid == place.nsid));
            // A namespace that was removed meanwhile has none, nor does it leave any to the next one in its place.
            let row = row.filter(|row| !row.removed && unhex(&row.uuid).as_deref() == Some(&uuid));
            if let Some(row) = row.filter(|row| row.reservations != text) {
                (row.reservations, is_changed) = (text, true);
            }
        }
        if !is_changed && !self.is_behind {
            return Ok(());
        }
        self.save_or(before)
    }

    /// Changes what is known of a subsystem, on the disk or not at all.
    fn change(&mut self, subsystem: usize, change: impl FnOnce(&mut SubsystemRow)) -> Result<(), NvmeError> {
        let before = self.contents.clone();
        if let Some(row) = self.contents.subsystems.get_mut(subsystem) {
            change(row);
        }
        self.save_or(before)
    }

    /// Writes the file; if that fails, what was known before holds again. The file may have its new name already by then, so
    /// that is written too: now if it can be, else with whatever is written next.
    fn save_or(&mut self, before: Contents) -> Result<(), NvmeError> {
        let saved = self.save();
        if saved.is_err() {
            self.contents = before;
            let _ = self.save();
        }
        saved
    }

    fn rows(&self, subsystem: usize) -> &[Row] {
        self.contents.subsystems.get(subsystem).map_or(&[], |row| &row.namespaces)
    }

    fn entry(&self, row: &Row) -> Result<Entry, NvmeError> {
        let read = || {
            let uuid = unhex(&row.uuid)?.try_into().ok()?;
            let reservations = match &row.reservations {
                None => None,
                Some(text) => Some(ReservationState::decode(&unhex(text)?).ok()?),
            };
            let (device, size, block_len) = (row.device.clone(), row.size, row.block_len);
            Some(Entry { nsid: row.nsid, uuid, device, size, block_len, reservations })
        };
        read().ok_or_else(|| {
            let text = format!("namespace {} cannot be read", row.nsid);
            let source = io::Error::new(io::ErrorKind::InvalidData, text);
            NvmeError::Catalogue { path: self.path.clone(), source, hint: "put a copy in its place" }
        })
    }

    fn save(&mut self) -> Result<(), NvmeError> {
        let saved = serde_json::to_vec_pretty(&self.contents)
            .map_err(io::Error::from)
            .and_then(|text| (self.replace)(&self.path.with_extension("json.new"), &self.path, &text));
        self.is_behind = saved.is_err();
        saved.map_err(|source| self.unwritten(source))
    }

    fn unwritten(&self, source: io::Error) -> NvmeError {
        NvmeError::Catalogue { path: self.path.clone(), source, hint: "the card must be able to write it" }
    }
}

/// Reads the file's text, of this version or an earlier one.
fn parse(text: &[u8]) -> io::Result<Contents> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    match serde_json::from_slice::<Versioned>(text)?.version {
        VERSION | VERSION_WITHOUT_BLOCKS => {
            Ok(Contents { version: VERSION, ..serde_json::from_slice(text)? })
        }
        VERSION_FIRST => Ok(Contents { version: VERSION, subsystems: vec![serde_json::from_slice(text)?] }),
        other => {
            let message =
                format!("its version is {other}, and this outboard knows {VERSION_FIRST} to {VERSION}");
            Err(io::Error::new(io::ErrorKind::InvalidData, message))
        }
    }
}

/// A UUID as everybody writes it.
pub(crate) fn uuid_text(uuid: &[u8; 16]) -> String {
    let digits = hex(uuid);
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod earlier_tests;

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: NamespacePlace = NamespacePlace { subsystem: 0, nsid: 1 };
    const TWO: NamespacePlace = NamespacePlace { subsystem: 0, nsid: 2 };
    const DOCUMENT: &str = include_str!("../../../../docs/format/nvme.md");

    /// The fields that each table of the document lists, in its order.
    fn documented() -> Vec<Vec<&'static str>> {
        let mut tables = Vec::new();
        for cells in DOCUMENT.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>()) {
            match cells[..] {
                ["", "field", "type", ..] => tables.push(Vec::new()),
                ["", field, ..] if field.starts_with('`') => {
                    let table: &mut Vec<_> = tables.last_mut().unwrap();
                    table.push(field.trim_matches('`'));
                }
                _ => {}
            }
        }
        tables
    }

    #[test]
    fn the_document_names_every_field() {
        let text = || Some("text".to_owned());
        let row = Row {
            nsid: 1,
            uuid: "text".to_owned(),
            device: Some(PathBuf::from("text")),
            lies_on: text(),
            size: Some(1),
            block_len: Some(1),
            removed: true,
            reservations: text(),
        };
        let (namespaces, elsewhere) = (vec![row], Vec::new());
        let subsystem = SubsystemRow { nqn: text(), serial: "text".to_owned(), namespaces, elsewhere };
        let contents = Contents { version: VERSION, subsystems: vec![subsystem] };
        // In the order in which they are written.
        let json = serde_json::to_string_pretty(&contents).unwrap();
        let fields: Vec<&str> = json.lines().filter_map(|line| line.split('"').nth(1)).collect();
        let mut documented = documented().concat();
        // Its rows are namespaces too, and it is written where there are any.
        let elsewhere = documented.iter().position(|field| *field == "elsewhere").unwrap();
        documented.remove(elsewhere);
        assert_eq!(documented, fields);
        assert!(DOCUMENT.contains(&format!("version {VERSION}: the file")));
    }

    fn nqn(name: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-01.example:{name}")).unwrap()
    }

    fn load(path: &Path) -> Catalogue {
        let mut catalogue = Catalogue::load(path).unwrap();
        assert_eq!(catalogue.adopt(&nqn("a"), true).unwrap(), 0);
        catalogue
    }

    #[test]
    fn ids_outlive_the_card_and_removed_ones_stay_away() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("nvme.json");
        let mut first = load(&path);
        let (serial, one) = (first.serial(0), first.add(ONE, None, Some("disk".to_owned()), None).unwrap());
        let known = |catalogue: &mut Catalogue| match catalogue.configured(ONE, "disk").unwrap() {
            Configured::Known(entry) => entry.uuid,
            other => panic!("{other:?}"),
        };
        assert_eq!(known(&mut first), one.uuid);
        let two = first.add(TWO, Some(PathBuf::from("/dev/two")), None, Some(4096)).unwrap();
        assert_ne!(one.uuid, two.uuid);
        first.note_block_len(TWO, 4096).unwrap();
        let mut second = load(&path);
        assert_eq!((second.serial(0), known(&mut second)), (serial, one.uuid));
        let added = second.added(0).unwrap();
        assert_eq!(added.iter().map(|entry| (entry.nsid, entry.uuid)).collect::<Vec<_>>(), [(2, two.uuid)]);
        assert_eq!((two.block_len, added[0].block_len), (None, Some(4096)));
        second.remove(ONE).unwrap();
        second.remove(TWO).unwrap();
        let mut third = load(&path);
        assert!(matches!(third.configured(ONE, "disk").unwrap(), Configured::Removed));
        assert!(third.added(0).unwrap().is_empty());
        let again = third.add(TWO, Some(PathBuf::from("/dev/two")), None, Some(4096)).unwrap();
        assert_ne!(again.uuid, two.uuid, "it may hold other data by now");
    }

    #[test]
    fn subsystems_keep_their_own_ids_whatever_their_order() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("nvme.json");
        let mut first = Catalogue::load(&path).unwrap();
        let (a, b) = (first.adopt(&nqn("a"), false).unwrap(), first.adopt(&nqn("b"), false).unwrap());
        let at = |subsystem| NamespacePlace { subsystem, nsid: 1 };
        let of_a = first.add(at(a), None, Some("disk".to_owned()), None).unwrap().uuid;
        let of_b = first.add(at(b), None, Some("disk".to_owned()), None).unwrap().uuid;
        let (serial_a, serial_b) = (first.serial(a), first.serial(b));
        assert!(serial_a != serial_b && of_a != of_b);
        let mut second = Catalogue::load(&path).unwrap();
        let (b, a) = (second.adopt(&nqn("b"), false).unwrap(), second.adopt(&nqn("a"), false).unwrap());
        assert_eq!((second.serial(a), second.serial(b)), (serial_a, serial_b));
        let mut uuid = |subsystem| match second.configured(at(subsystem), "disk").unwrap() {
            Configured::Known(entry) => entry.uuid,
            other => panic!("{other:?}"),
        };
        assert_eq!((uuid(a), uuid(b)), (of_a, of_b));
        let c = second.adopt(&nqn("c"), true).unwrap();
        assert!(c != a && c != b, "two are known: neither is taken for another");
    }

    #[test]
    fn a_file_of_the_first_version_is_that_of_the_only_subsystem() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("nvme.json");
        let uuid = "0102030405064708890a0b0c0d0e0f10";
        let row = format!(r#"{{"nsid":1,"uuid":"{uuid}"}}"#);
        std::fs::write(&path, format!(r#"{{"version":1,"serial":"00ff","namespaces":[{row}]}}"#)).unwrap();
        let mut catalogue = load(&path);
        assert_eq!(catalogue.serial(0), "00ff");
        catalogue.add(TWO, Some(PathBuf::from("/dev/two")), None, None).unwrap();
        let mut renamed = Catalogue::load(&path).unwrap();
        assert_eq!(renamed.adopt(&nqn("renamed"), true).unwrap(), 0, "a new name makes no other disks");
        let Configured::Known(entry) = renamed.configured(ONE, "disk").unwrap() else {
            panic!("it was served")
        };
        assert_eq!((hex(&entry.uuid), renamed.serial(0)), (uuid.to_owned(), "00ff".to_owned()));
    }

    #[test]
    fn ids_are_used_again_as_late_as_can_be_and_by_another_life_too() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("nvme.json");
        let at = |nsid| NamespacePlace { subsystem: 0, nsid };
        let mut first = load(&path);
        for expected in 1..=3 {
            let nsid = first.free_nsid(0, 4).unwrap();
            assert_eq!(nsid, expected);
            first.add(at(nsid), Some(PathBuf::from("memory")), None, None).unwrap();
        }
        first.remove(at(3)).unwrap();
        first.remove(at(1)).unwrap();
        assert_eq!(first.free_nsid(0, 4), Some(4));
        // One that was never served has not had its id.
        first.add(at(4), Some(PathBuf::from("memory")), None, None).unwrap();
        first.forget(at(4)).unwrap();
        let mut second = load(&path);
        assert_eq!(second.free_nsid(0, 4), Some(4));
        for expected in [4, 3, 1] {
            let nsid = second.free_nsid(0, 4).unwrap();
            assert_eq!(nsid, expected);
            second.add(at(nsid), Some(PathBuf::from("memory")), None, None).unwrap();
        }
        assert_eq!(second.free_nsid(0, 4), None);
    }

    #[test]
    fn reservations_outlive_the_card_and_damage_is_told() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("nvme.json");
        let mut catalogue = load(&path);
        assert!(matches!(catalogue.configured(ONE, "disk").unwrap(), Configured::New));
        let added = catalogue.add(ONE, None, Some("disk".to_owned()), None).unwrap();
        let state = ReservationState::default().encode();
        catalogue.save_reservations([(ONE, added.uuid, Some(state.clone()))].into_iter()).unwrap();
        let Configured::Known(entry) = load(&path).configured(ONE, "disk").unwrap() else {
            panic!("it was served");
        };
        assert_eq!(entry.reservations.map(|state| state.encode()), Some(state));
        let text = std::fs::read_to_string(&path).unwrap();
        let damaged = text.replace("\"uuid\": \"", "\"uuid\": \"zz");
        for (damage, told) in [(damaged, "namespace 1"), ("{".to_owned(), "EOF")] {
            std::fs::write(&path, damage).unwrap();
            let error = Catalogue::load(&path)
                .and_then(|mut catalogue| catalogue.configured(ONE, "disk"))
                .unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
        }
    }

    /// The file has its name, but not for sure: whoever asks is told so, and the file does not stay ahead of what is served.
    #[test]
    fn what_failed_behind_its_name_is_not_left_in_the_file() {
        fn unsure(beside: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
            durable::replace(beside, path, bytes)?;
            Err(io::Error::other("no sync"))
        }
        fn refused(_: &Path, _: &Path, _: &[u8]) -> io::Result<()> {
            Err(io::Error::other("read-only"))
        }
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("nvme.json");
        let mut catalogue = load(&path);
        let added = catalogue.add(ONE, None, Some("disk".to_owned()), None).unwrap();
        let served = std::fs::read_to_string(&path).unwrap();
        let state = ReservationState::default().encode();

        catalogue.replace = unsure;
        assert!(catalogue.remove(ONE).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), served, "it goes on being served");

        catalogue.save_reservations([(ONE, added.uuid, Some(state))].into_iter()).unwrap_err();
        let ahead = served.replace("\"lies_on\"", "\"reservations\": \"00\", \"lies_on\"");
        std::fs::write(&path, &ahead).unwrap();
        catalogue.replace = refused;
        catalogue.save_reservations([(ONE, added.uuid, None)].into_iter()).unwrap_err();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), ahead);
        catalogue.replace = durable::replace;
        catalogue.save_reservations([(ONE, added.uuid, None)].into_iter()).unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            served,
            "nothing changed, but the file was not sure"
        );
    }

    #[test]
    fn a_namespace_is_the_same_again_where_it_lay_before() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("nvme.json");
        let mut catalogue = load(&path);
        let on = |device: &str| Some(device.to_owned());
        let right = catalogue.add(ONE, None, on("a.img"), None).unwrap();
        catalogue.note_block_len(ONE, 512).unwrap();
        let state = ReservationState::default().encode();
        catalogue.save_reservations([(ONE, right.uuid, Some(state.clone()))].into_iter()).unwrap();
        // A card that is started once with another device.
        let mut mistyped = load(&path);
        assert!(matches!(mistyped.configured(ONE, "b.img").unwrap(), Configured::New));
        let wrong = mistyped.add(ONE, None, on("b.img"), None).unwrap();
        assert!(wrong.uuid != right.uuid && wrong.reservations.is_none());
        for (device, uuid, block_len, kept) in
            [("a.img", right.uuid, Some(512), Some(state)), ("b.img", wrong.uuid, None, None)]
        {
            let mut next = load(&path);
            let Configured::Known(entry) = next.configured(ONE, device).unwrap() else {
                panic!("it was served")
            };
            assert_eq!((entry.uuid, entry.block_len), (uuid, block_len), "on {device}");
            assert_eq!(entry.reservations.map(|state| state.encode()), kept);
            next.catch_up().unwrap();
        }
        // One that could not be served was never there.
        let mut failing = load(&path);
        failing.add(ONE, None, on("c.img"), None).unwrap();
        failing.forget(ONE).unwrap();
        let mut next = load(&path);
        assert!(matches!(next.configured(ONE, "c.img").unwrap(), Configured::New));
        assert!(matches!(next.configured(ONE, "b.img").unwrap(), Configured::Known(_)));
        // However often it is changed, there is an end to what is kept.
        for number in 0..100 {
            next.add(ONE, None, on(&format!("{number}.img")), None).unwrap();
        }
        assert_eq!(next.contents.subsystems[0].elsewhere.len(), ELSEWHERE_MAX);
        assert!(matches!(next.configured(ONE, "98.img").unwrap(), Configured::Known(_)));
        assert!(matches!(next.configured(ONE, "a.img").unwrap(), Configured::New));
    }

    #[test]
    fn a_file_of_a_later_version_is_refused_with_all_named_and_stays_as_it_is() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("nvme.json");
        let mut catalogue = load(&path);
        catalogue.add(ONE, None, Some("disk".to_owned()), None).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let later = text.replace("\"version\": 3", "\"version\": 4");
        assert_ne!(later, text);
        std::fs::write(&path, &later).unwrap();
        let told = Catalogue::load(&path).unwrap_err().to_string();
        assert!(told.contains("its version is 4, and this outboard knows 1 to 3"), "{told}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), later);
    }

    #[test]
    fn ids_belong_to_what_a_namespace_holds_and_names_are_written_down() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("nvme.json");
        let mut catalogue = load(&path);
        let first = catalogue.add(ONE, None, Some("a.img".to_owned()), None).unwrap();
        assert!(matches!(catalogue.configured(ONE, "b.img").unwrap(), Configured::New), "another disk");
        let Configured::Known(known) = catalogue.configured(ONE, "a.img").unwrap() else {
            panic!("it was served")
        };
        assert_eq!(known.uuid, first.uuid);
        // One that could not be served leaves what was known before.
        catalogue.remove(ONE).unwrap();
        catalogue.add(ONE, Some(PathBuf::from("memory")), None, None).unwrap();
        catalogue.forget(ONE).unwrap();
        assert!(matches!(load(&path).configured(ONE, "a.img").unwrap(), Configured::Removed));
        // Another name of the only subsystem is known to the next life, beside a second one.
        let mut renamed = Catalogue::load(&path).unwrap();
        let serial = renamed.serial(0);
        let name = Nqn::new("nqn.2026-01.example:renamed").unwrap();
        renamed.adopt(&name, true).unwrap();
        renamed.catch_up().unwrap();
        let mut both = Catalogue::load(&path).unwrap();
        let number = both.adopt(&name, false).unwrap();
        assert_eq!(both.serial(number), serial);
    }
}
