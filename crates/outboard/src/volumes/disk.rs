//! The disks that a card shows: its host says which, and the card remembers them, so that initiators see the same ones after restarts of
//! either.
//!
//! ```text
//!   store ─▶ tier: Serve ─▶ messages of disks ══ channel of the link ══▶ card: namespaces, volumes.json ─▶ the card's next life
//! ```

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ob_core::layout;
use ob_format::volume::metadata::Volume;
use serde::{Deserialize, Serialize};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use crate::durable;
use crate::nvme::{hex, unhex};

/// Says that a channel message is of disks.
const DISKS_KIND: u32 = 4;
/// Bytes before the disks, and of each disk.
const DISKS_LEN: usize = 24;
const DISK_LEN: usize = 40;
/// Disks of one message.
const DISKS_A_MESSAGE: usize = 100;
/// The most bytes that a disk has.
const BYTES_MAX: u64 = 1 << 60;
/// Numbers that initiators know disks by, and so the most disks that there are.
const NUMBERS: u32 = 1024;
/// Where the card remembers them, in its data directory.
const FILE: &str = "volumes.json";
const FILE_NEW: &str = "volumes.json.new";
const VERSION: u32 = 2;
/// A file of a card that had one disk.
const VERSION_ONE: u32 = 1;

layout!(DisksBody, DISKS_LEN, { kind: U32, count: U32, first: U32, total: U32, round: U64 });
layout!(DiskBody, DISK_LEN, {
    namespace: U32, block_len: U32, uuid: [u8; 16], blocks: U64, reserved: U64
});

/// A disk, as its tier knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Disk {
    /// Its NSID in the pool.
    pub(super) namespace: u32,
    pub(super) uuid: [u8; 16],
    pub(super) blocks: u64,
    pub(super) block_len: u32,
}

/// A disk, and the number by which initiators know it: the pool's own, unless they knew another disk by that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) disk: Disk,
    pub(super) number: u32,
}

/// All that are shown, and the number that was given last: others are given first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShownDisks {
    pub(super) disks: Vec<Shown>,
    last: u32,
}

/// The file, and what it has of a disk.
#[derive(Serialize, Deserialize)]
struct Remembered {
    version: u32,
    last: u32,
    disks: Vec<RememberedDisk>,
}

#[derive(Serialize, Deserialize)]
struct RememberedDisk {
    number: u32,
    namespace: u32,
    uuid: String,
    blocks: u64,
    block_len: u32,
}

/// The file of a card that had one.
#[derive(Deserialize)]
struct RememberedOne {
    version: u32,
    #[serde(flatten)]
    disk: RememberedDisk,
}

impl Disk {
    pub(super) fn of(volume: &Volume) -> Self {
        let block_len = volume.block_len.bytes();
        Self {
            namespace: volume.namespace.0,
            uuid: volume.uuid,
            blocks: volume.size / u64::from(block_len),
            block_len,
        }
    }

    fn body(&self) -> DiskBody {
        DiskBody {
            namespace: self.namespace.into(),
            block_len: self.block_len.into(),
            uuid: self.uuid,
            blocks: self.blocks.into(),
            reserved: 0.into(),
        }
    }

    fn from_body(body: &DiskBody) -> Option<Self> {
        let disk = Self {
            namespace: body.namespace.get(),
            uuid: body.uuid,
            blocks: body.blocks.get(),
            block_len: body.block_len.get(),
        };
        disk.is_legal().then_some(disk)
    }

    fn is_legal(&self) -> bool {
        (1..u32::MAX).contains(&self.namespace)
            && self.uuid != [0; 16]
            && matches!(self.block_len, 512 | 4096)
            && (1..=BYTES_MAX / u64::from(self.block_len)).contains(&self.blocks)
    }

    /// Whether it is this one, of whatever size.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.namespace, self.uuid, self.block_len) == (other.namespace, other.uuid, other.block_len)
    }
}

/// The messages that tell of all disks there are. Initiators can tell so many apart; more are not told of.
pub(super) fn encode_disks(round: u64, disks: &[Disk]) -> Vec<Vec<u8>> {
    let disks = disks.get(..NUMBERS as usize).unwrap_or(disks);
    let total = disks.len() as u32;
    let mut messages = Vec::new();
    let mut first = 0;
    // At least one: that there is none is to be said, too.
    while first < disks.len() || messages.is_empty() {
        let part = disks.get(first..).unwrap_or_default();
        let part = part.get(..DISKS_A_MESSAGE).unwrap_or(part);
        let body = DisksBody {
            kind: DISKS_KIND.into(),
            count: (part.len() as u32).into(),
            first: (first as u32).into(),
            total: total.into(),
            round: round.into(),
        };
        let mut message = body.as_bytes().to_vec();
        for disk in part {
            message.extend_from_slice(disk.body().as_bytes());
        }
        messages.push(message);
        first += DISKS_A_MESSAGE;
    }
    messages
}

/// Disks that a host tells of, message by message.
#[derive(Debug, Default)]
pub(super) struct ToldDisks {
    round: u64,
    total: u32,
    disks: Vec<Disk>,
}

/// What a message says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Something else.
    NotOfDisks,
    /// More is to come.
    Part,
    /// These, and no others.
    All(Vec<Disk>),
    /// What cannot be.
    Wrong,
}

impl ToldDisks {
    /// A message has come.
    pub(super) fn take(&mut self, message: &[u8]) -> Told {
        let Ok((body, rest)) = DisksBody::ref_from_prefix(message) else { return Told::NotOfDisks };
        if body.kind.get() != DISKS_KIND {
            return Told::NotOfDisks;
        }
        let Some(all) = self.add(body, rest) else {
            *self = Self::default();
            return Told::Wrong;
        };
        if !all {
            return Told::Part;
        }
        Told::All(std::mem::take(self).disks)
    }

    /// Whether that was the last part; nothing if it cannot be one.
    fn add(&mut self, body: &DisksBody, rest: &[u8]) -> Option<bool> {
        let bodies = <[DiskBody]>::ref_from_bytes(rest).ok()?;
        let (first, total) = (body.first.get(), body.total.get());
        if first == 0 {
            *self = Self { round: body.round.get(), total, disks: Vec::new() };
        }
        let is_next = self.round == body.round.get()
            && self.total == total
            && self.disks.len() == first as usize
            && bodies.len() == body.count.get() as usize;
        let is_within = total <= NUMBERS && self.disks.len() + bodies.len() <= total as usize;
        if !is_next || !is_within || (bodies.is_empty() && total > 0) {
            return None;
        }
        for body in bodies {
            self.disks.push(Disk::from_body(body)?);
        }
        let is_all = self.disks.len() == total as usize;
        let namespaces: BTreeSet<u32> = self.disks.iter().map(|disk| disk.namespace).collect();
        let uuids: BTreeSet<[u8; 16]> = self.disks.iter().map(|disk| disk.uuid).collect();
        let is_each_once = namespaces.len() == self.disks.len() && uuids.len() == self.disks.len();
        is_each_once.then_some(is_all)
    }
}

impl ShownDisks {
    /// These disks in place of what is shown now. Initiators send again by the number alone what was for one that is gone: so no other has
    /// its number before all others were used.
    pub(super) fn instead(&self, disks: &[Disk]) -> Self {
        let known = |disk: &Disk| self.disks.iter().find(|shown| shown.disk.is_same(disk));
        let mut next = Self { disks: Vec::new(), last: self.last };
        next.disks = disks
            .iter()
            .filter_map(|disk| known(disk).map(|shown| Shown { disk: *disk, number: shown.number }))
            .collect();
        let mut new: Vec<Disk> = disks.iter().filter(|disk| known(disk).is_none()).copied().collect();
        new.sort_by_key(|disk| disk.namespace);
        for disk in new {
            let Some(number) = next.free_number(self, disk.namespace) else { break };
            next.last = number;
            next.disks.push(Shown { disk, number });
        }
        next.disks.sort_by_key(|shown| shown.number);
        next
    }

    /// The pool's own number, if no disk had it and none will for long; else the next one.
    fn free_number(&self, before: &Self, wanted: u32) -> Option<u32> {
        let is_free =
            |number: &u32| !self.disks.iter().chain(&before.disks).any(|shown| shown.number == *number);
        let own = Some(wanted).filter(|wanted| (self.last + 1..=NUMBERS).contains(wanted)).filter(is_free);
        own.or_else(|| (0..NUMBERS).map(|step| (self.last + step) % NUMBERS + 1).find(is_free))
    }

    /// What the card's earlier life has shown, if that is known.
    pub(super) fn recall(directory: &Path) -> Self {
        let path = directory.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(
                        "cannot read {}: {error}; the host says which disks there are",
                        path.display()
                    );
                }
                return Self::default();
            }
        };
        Self::parse(&text).unwrap_or_else(|| {
            tracing::warn!("{} cannot be understood; the host says which disks there are", path.display());
            Self::default()
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let one = || {
            let one = serde_json::from_str::<RememberedOne>(text).ok()?;
            let last = one.disk.number;
            (one.version == VERSION_ONE).then(|| Remembered { version: VERSION, last, disks: vec![one.disk] })
        };
        let known = serde_json::from_str::<Remembered>(text).ok().or_else(one)?;
        let disks = known.disks.iter().map(RememberedDisk::shown).collect::<Option<Vec<Shown>>>()?;
        let numbers: BTreeSet<u32> = disks.iter().map(|shown| shown.number).collect();
        let uuids: BTreeSet<[u8; 16]> = disks.iter().map(|shown| shown.disk.uuid).collect();
        let is_legal = known.version == VERSION
            && known.last <= NUMBERS
            && numbers.len() == disks.len()
            && uuids.len() == disks.len();
        is_legal.then_some(Self { disks, last: known.last })
    }

    fn text(&self) -> String {
        let disk = |shown: &Shown| RememberedDisk {
            number: shown.number,
            namespace: shown.disk.namespace,
            uuid: hex(&shown.disk.uuid),
            blocks: shown.disk.blocks,
            block_len: shown.disk.block_len,
        };
        let disks = self.disks.iter().map(disk).collect();
        // Numbers and digits can always be written.
        serde_json::to_string(&Remembered { version: VERSION, last: self.last, disks }).unwrap_or_default()
    }
}

impl RememberedDisk {
    fn shown(&self) -> Option<Shown> {
        let uuid = unhex(&self.uuid).and_then(|bytes| <[u8; 16]>::try_from(bytes).ok())?;
        let Self { number, namespace, blocks, block_len, .. } = *self;
        let disk = Disk { namespace, uuid, blocks, block_len };
        ((1..=NUMBERS).contains(&number) && disk.is_legal()).then_some(Shown { disk, number })
    }
}

/// What has the card's next life know the disks: a thread that may wait for the file system, with room for one text, the last that it was
/// given.
pub(super) struct Memory {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Mailbox {
    mail: Mutex<Mail>,
    has_come: Condvar,
}

#[derive(Default)]
struct Mail {
    text: Option<String>,
    is_over: bool,
}

impl Mailbox {
    fn mail(&self) -> MutexGuard<'_, Mail> {
        // Nothing panics while it has the mail, and if it did, a text is whole or not there.
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, change: impl FnOnce(&mut Mail)) {
        change(&mut self.mail());
        self.has_come.notify_one();
    }

    /// The next text; `None` when there is none any more.
    fn take(&self) -> Option<String> {
        let mut mail = self.mail();
        loop {
            if mail.text.is_some() || mail.is_over {
                return mail.text.take();
            }
            mail = self.has_come.wait(mail).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Memory {
    /// Remembers in a folder.
    pub(super) fn start(directory: &Path) -> io::Result<Self> {
        let mailbox = Arc::new(Mailbox::default());
        let (mails, directory) = (Arc::clone(&mailbox), directory.to_owned());
        let write = move || {
            let path = directory.join(FILE);
            while let Some(text) = mails.take() {
                if let Err(error) = durable::replace(&directory.join(FILE_NEW), &path, text.as_bytes()) {
                    tracing::warn!("cannot write {}: {error}", path.display());
                }
            }
        };
        let thread = std::thread::Builder::new().name("volumes-disk".to_owned()).spawn(write)?;
        Ok(Self { mailbox, thread: Some(thread) })
    }

    /// Remembers disks instead of what was there before. Until that is written, the host says it again.
    pub(super) fn remember(&self, shown: &ShownDisks) {
        let text = shown.text();
        self.mailbox.put(|mail| mail.text = Some(text));
    }
}

impl Drop for Memory {
    /// What it was given last is written.
    fn drop(&mut self) {
        self.mailbox.put(|mail| mail.is_over = true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that remembers disks has panicked");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod tests {
    use super::*;

    const DISK: Disk = Disk { namespace: 1, uuid: [7; 16], blocks: 1 << 22, block_len: 4096 };

    fn disks(count: u32) -> Vec<Disk> {
        (1..=count).map(|number| disk(number, number)).collect()
    }

    fn disk(namespace: u32, seed: u32) -> Disk {
        let uuid = [seed.to_le_bytes(); 4].as_flattened().try_into().unwrap();
        Disk { namespace, uuid, ..DISK }
    }

    #[test]
    fn disks_come_back_and_what_cannot_be_are_none() {
        for count in [0, 1, 2, 100, 101, 1024] {
            let disks = disks(count);
            let messages = encode_disks(7, &disks);
            assert_eq!(messages.len(), (count as usize).div_ceil(100).max(1));
            assert!(messages.iter().all(|message| message.len() <= 4096));
            let mut told = ToldDisks::default();
            for (number, message) in messages.iter().enumerate() {
                let expected =
                    if number + 1 < messages.len() { Told::Part } else { Told::All(disks.clone()) };
                assert_eq!(told.take(message), expected);
            }
        }
        let message = encode_disks(7, &[DISK]).remove(0);
        assert_eq!((message.len(), &message[..8]), (64, &[4, 0, 0, 0, 1, 0, 0, 0][..]));
        for len in 24..64 {
            assert_eq!(ToldDisks::default().take(&message[..len]), Told::Wrong);
        }
        assert_eq!(ToldDisks::default().take(&message[..23]), Told::NotOfDisks);
        for wrong in [
            Disk { namespace: 0, ..DISK },
            Disk { namespace: u32::MAX, ..DISK },
            Disk { uuid: [0; 16], ..DISK },
            Disk { blocks: 0, ..DISK },
            Disk { blocks: u64::MAX, ..DISK },
            Disk { block_len: 0, ..DISK },
            Disk { block_len: 1000, ..DISK },
        ] {
            assert_eq!(ToldDisks::default().take(&encode_disks(1, &[wrong])[0]), Told::Wrong, "{wrong:?}");
        }
        // One that is there twice, and parts that are not of one whole.
        for twice in [disk(1, 2), disk(2, 1)] {
            assert_eq!(ToldDisks::default().take(&encode_disks(1, &[disk(1, 1), twice])[0]), Told::Wrong);
        }
        let (old, new) = (encode_disks(1, &disks(150)), encode_disks(2, &disks(150)));
        let mut told = ToldDisks::default();
        assert_eq!((told.take(&old[0]), told.take(&new[1])), (Told::Part, Told::Wrong));
        assert_eq!(told.take(&old[1]), Told::Wrong, "its beginning is forgotten");
        assert_eq!((told.take(&old[0]), told.take(&new[0])), (Told::Part, Told::Part));
        assert_eq!(told.take(&new[1]), Told::All(disks(150)));
        let mut other = message;
        other[0] = 2;
        assert_eq!(told.take(&other), Told::NotOfDisks);
    }

    fn numbers(shown: &ShownDisks) -> Vec<(u32, u32)> {
        shown.disks.iter().map(|shown| (shown.disk.namespace, shown.number)).collect()
    }

    #[test]
    fn the_same_disk_keeps_its_number_and_another_never_has_it() {
        let first = ShownDisks::default().instead(&disks(3));
        assert_eq!(numbers(&first), [(1, 1), (2, 2), (3, 3)]);
        let larger = Disk { blocks: 1 << 23, ..disk(2, 2) };
        let next = first.instead(&[larger, disk(7, 7)]);
        assert_eq!(numbers(&next), [(2, 2), (7, 7)]);
        assert_eq!(next.disks[0].disk, larger);
        // Another pool's disks have the same numbers there.
        let other = next.instead(&[disk(1, 11), disk(2, 12)]);
        assert_eq!(numbers(&other), [(1, 8), (2, 9)]);
        // A number is used again when all others were.
        let mut last = ShownDisks::default().instead(&[DISK]);
        for life in 1..3000 {
            let next = last.instead(&[disk(1, life)]);
            let (number, before) = (next.disks[0].number, last.disks[0].number);
            assert!((1..=1024).contains(&number) && number == before % 1024 + 1);
            last = next;
        }
        assert_eq!(ShownDisks::default().instead(&[disk(5000, 1)]).disks[0].number, 1);
        // As many as there are numbers, and no more.
        let many = ShownDisks::default().instead(&disks(1024));
        assert_eq!(many.disks.len(), 1024);
    }

    #[test]
    fn a_card_remembers_and_does_not_believe_everything() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(ShownDisks::recall(directory.path()), ShownDisks::default());
        let shown = ShownDisks { disks: vec![Shown { disk: DISK, number: 9 }], last: 12 };
        let path = directory.path().join(FILE);
        std::fs::write(&path, shown.text()).unwrap();
        assert_eq!(ShownDisks::recall(directory.path()), shown);
        for (from, to) in [
            ("\"version\":2", "\"version\":3"),
            ("\"number\":9", "\"number\":0"),
            ("\"last\":12", "\"last\":1025"),
            ("07", "0x"),
            ("{", ""),
        ] {
            std::fs::write(&path, shown.text().replacen(from, to, 1)).unwrap();
            assert_eq!(ShownDisks::recall(directory.path()), ShownDisks::default(), "{from}");
        }
        // What a card has left that had one disk.
        let uuid = "07".repeat(16);
        let one = format!(
            "{{\"version\":1,\"number\":9,\"namespace\":1,\"uuid\":\"{uuid}\",\"blocks\":4194304,\"block_len\":4096}}"
        );
        std::fs::write(&path, &one).unwrap();
        let known = ShownDisks::recall(directory.path());
        assert_eq!(known, ShownDisks { last: 9, ..shown });
        std::fs::write(&path, one.replacen("\"version\":1", "\"version\":2", 1)).unwrap();
        assert_eq!(ShownDisks::recall(directory.path()), ShownDisks::default());
    }

    #[test]
    fn what_was_shown_last_is_remembered_however_often_it_changed() {
        let directory = tempfile::tempdir().unwrap();
        let memory = Memory::start(directory.path()).unwrap();
        let shown = |last| ShownDisks { disks: vec![Shown { disk: DISK, number: last }], last };
        for number in 1..=300 {
            memory.remember(&shown(number));
        }
        drop(memory);
        assert_eq!(ShownDisks::recall(directory.path()), shown(300));
    }

    /// The tables of the document are the layouts.
    #[test]
    fn the_document_says_the_same() {
        let text = include_str!("../../../../docs/wire/probe.md");
        let text = text.split("## Of disks").nth(1).unwrap();
        for (name, at, len) in DisksBody::FIELDS.iter().chain(DiskBody::FIELDS) {
            let row = format!("| `{name}` | {at} | {len} |");
            assert!(text.contains(&row), "{row}");
        }
    }
}
