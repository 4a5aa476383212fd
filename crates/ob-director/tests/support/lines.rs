//! A service of lines: small enough to see through, with everything that the director distinguishes.
//!
//! `GET k`, `MGET k k`, `LEN k` are the card's if it can; `SET k v`, `DEL k`, `WIPE`, `AUTH`, `QUIT` and anything else are the
//! host's. Several requests of one message are separated by `;`. With `BY_ID`, a request is `7:GET k` and its reply `7:…`.
//! A record in a file is `key=value@stamp;`.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;

use ob_offload::{
    Application, Candidate, Candidates, Changes, Cut, FileRead, Hit, Item, Key, ReadBytes, Reason, Reply,
    ReplyOrder, Requests, Route, Stamp, Standing, Terms, Verdict,
};

#[derive(Default)]
pub struct Lines<const BY_ID: bool> {
    /// How often messages were cut, and looked through.
    pub cuts: Cell<usize>,
    pub predicates: Cell<usize>,
    /// How often it was asked for a guess.
    pub glances: Cell<usize>,
    /// What the host reads is invalidated.
    pub invalidates: Cell<bool>,
    /// Which record begins where.
    begins: RefCell<BTreeMap<u64, Key>>,
}

/// What the table holds: where a record lies, how long it is, and of which request.
#[derive(Clone, Copy)]
pub struct Place {
    pub file: u32,
    pub offset: u32,
    pub len: u32,
    pub value_len: u32,
    pub stamp: u64,
}

impl Place {
    pub fn item(self) -> Item {
        let mut bytes = Vec::new();
        for word in [self.file, self.offset, self.len, self.value_len] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.stamp.to_le_bytes());
        Item::new(&bytes).unwrap()
    }

    fn of(hit: &Hit) -> Self {
        let word = |at: usize| u32::from_le_bytes(hit.item.bytes()[at..at + 4].try_into().unwrap());
        let stamp = u64::from_le_bytes(hit.item.bytes()[16..24].try_into().unwrap());
        Self { file: word(0), offset: word(4), len: word(8), value_len: word(12), stamp }
    }
}

pub fn record(key: &str, value: &str, stamp: u64) -> String {
    format!("{key}={value}@{stamp};")
}

pub fn key(text: &str) -> Key {
    Key::new(text.as_bytes()).unwrap()
}

fn id_of(request: &str) -> (u64, &str) {
    match request.split_once(':') {
        Some((id, rest)) if id.bytes().all(|byte| byte.is_ascii_digit()) => (id.parse().unwrap_or(0), rest),
        _ => (0, request),
    }
}

fn head<const BY_ID: bool>(id: u64) -> String {
    if BY_ID { format!("{id}:") } else { String::new() }
}

/// Key, value and stamp of a record.
pub fn parse(bytes: &[u8]) -> Option<(&[u8], Range<usize>, u64)> {
    let equals = bytes.iter().position(|byte| *byte == b'=')?;
    let at = bytes.iter().rposition(|byte| *byte == b'@')?;
    let stamp = std::str::from_utf8(bytes.get(at + 1..bytes.len() - 1)?).ok()?.parse().ok()?;
    (bytes.last() == Some(&b';')).then_some((&bytes[..equals], equals + 1..at, stamp))
}

impl<const BY_ID: bool> Application for Lines<BY_ID> {
    type Cutter = usize;

    const REPLIES: ReplyOrder = if BY_ID { ReplyOrder::ById } else { ReplyOrder::AsAsked };

    fn cut(&self, looked: &mut usize, bytes: &[u8], _: Standing, reply: &mut Vec<u8>) -> Cut {
        self.cuts.set(self.cuts.get() + 1);
        if bytes.starts_with(b"\x01") {
            reply.extend_from_slice(b"!no\n");
            return Cut::Wrong;
        }
        match bytes[*looked..].iter().position(|byte| *byte == b'\n') {
            Some(at) => {
                let len = std::mem::take(looked) + at + 1;
                if len == 1 { Cut::Nothing(1) } else { Cut::Message(len) }
            }
            None => {
                *looked = bytes.len();
                Cut::Part(1)
            }
        }
    }

    fn terms(&self) -> Terms {
        Terms { number: 7, difference: "another number" }
    }

    fn glance(&self, bytes: &[u8]) -> Option<Key> {
        assert!(!bytes.is_empty());
        self.glances.set(self.glances.get() + 1);
        // A guess may be anything.
        Some(key("x"))
    }

    fn predicate(&self, message: &[u8], _: Standing, requests: &mut Requests) {
        self.predicates.set(self.predicates.get() + 1);
        let mut start = 0;
        for text in message[..message.len() - 1].split(|byte| *byte == b';') {
            let bytes = start..start + text.len();
            start = bytes.end + 1;
            let (id, text) = id_of(std::str::from_utf8(text).unwrap());
            let mut words = text.split(' ');
            let command = words.next().unwrap_or_default();
            let host =
                |reason, changes| Route::Host { reason, changes, may_change_standing: command == "AUTH" };
            let route = match command {
                "GET" | "MGET" | "LEN" => Route::Card,
                "SET" | "DEL" => host(Reason::Write, Changes::Keys),
                "WIPE" => host(Reason::Write, Changes::Everything),
                _ => host(Reason::Command, Changes::Nothing),
            };
            let keys_max = if matches!(command, "SET" | "DEL") { 1 } else { usize::MAX };
            words.take(keys_max).for_each(|word| requests.key(key(word)));
            requests.push(bytes, id, route);
        }
    }

    fn function(
        &self,
        request: &[u8],
        hits: &[Hit],
        _: u64,
        reads: &mut Vec<FileRead>,
        reply: &mut Reply,
    ) -> Verdict {
        let (id, text) = id_of(std::str::from_utf8(request).unwrap());
        if text.starts_with("LEN") {
            let len = Place::of(&hits[0]).value_len;
            reply.bytes(format!("{}#{len}\n", head::<BY_ID>(id)).as_bytes());
            return Verdict::Answer;
        }
        for place in hits.iter().map(Place::of) {
            reads.push(FileRead { file: place.file, offset: u64::from(place.offset), len: place.len });
        }
        Verdict::Read
    }

    fn check(&self, request: &[u8], hits: &[Hit], read: &ReadBytes<'_>, reply: &mut Reply) -> bool {
        let (id, text) = id_of(std::str::from_utf8(request).unwrap());
        let keys = text.split(' ').skip(1);
        reply.bytes(head::<BY_ID>(id).as_bytes());
        let mut is_right = true;
        for (index, (key, hit)) in keys.zip(hits).enumerate() {
            let bytes = read.get(index).unwrap_or_default();
            let place = Place::of(hit);
            match parse(bytes) {
                Some((found, value, stamp)) => {
                    is_right &= found == key.as_bytes() && stamp == place.stamp;
                    reply.bytes(b"$");
                    reply.read(index, value);
                }
                None => is_right = false,
            }
        }
        reply.bytes(b"\n");
        is_right
    }

    fn cache(&self, _: &[u8; 16], file: u32, offset: u64, bytes: &[u8], candidates: &mut Candidates) {
        let mut start = 0;
        for record in bytes.split_inclusive(|byte| *byte == b';') {
            if let Some((key, value, stamp)) = parse(record) {
                let place = Place {
                    file,
                    offset: offset as u32 + start,
                    len: record.len() as u32,
                    value_len: value.len() as u32,
                    stamp,
                };
                let (key, stamp) = (Key::new(key).unwrap(), Stamp::new(stamp).unwrap());
                self.begins.borrow_mut().insert(u64::from(place.offset), key);
                candidates.push(Candidate { key, item: place.item(), stamp });
            }
            start += record.len() as u32;
        }
        candidates.ends_at(offset + bytes.len() as u64);
    }

    fn invalidate(&self, _: u32, offset: u64, len: u64, keys: &mut Vec<Key>) -> Changes {
        if self.invalidates.get() {
            keys.extend(self.begins.borrow().range(offset..offset + len).map(|(_, key)| *key));
        }
        Changes::Keys
    }

    fn full(&self, reply: &mut Vec<u8>) {
        reply.extend_from_slice(b"!full\n");
    }

    fn unavailable(&self, id: u64, was_forwarded: bool, reply: &mut Vec<u8>) {
        let said = if was_forwarded { '~' } else { '?' };
        reply.extend_from_slice(format!("{}{said}\n", head::<BY_ID>(id)).as_bytes());
    }
}
