//! What the card has to know of the store's clients, records and log to answer reads by itself.
//!
//! ```text
//!   GET MGET STRLEN EXISTS ─▶ keys ─▶ table ─▶ items ─┬─▶ lengths, presence: answered at once
//!                                                     └─▶ reads ─▶ RecordPlace::decode ─▶ $len … value … \r\n
//!   everything else ─▶ host; what it may change is in the table of commands
//! ```

#[cfg(test)]
mod tests;

use ob_format::kv::{GroupHeader, Item, RECORD_HEADER_LEN, Record, RecordPlace};
use ob_offload::{
    Application, Candidate, Candidates, Changes, Cut, FileRead, Hit, Key, ReadBytes, Reason, Reply,
    ReplyOrder, Requests, Route, Stamp, Standing, Terms, Verdict,
};

use crate::EXPIRY_MARGIN_MS;
use crate::command::{Command, Effect, Outline};
use crate::plant::{Bug, is_planted};
use crate::resp::{self, BULK_TAIL, Cutter, Limits, Replies, Request, Version, bulk_head};

/// Keys that a request may name for the card to answer it: as many as the table looks up at once.
const KEYS_MAX: usize = 64;

/// Keys that a request may change for each of them to be invalidated by itself. With more the table is emptied, which takes no time; a
/// million of keys would hold up everybody for a third of a second.
const CHANGED_MAX: usize = 1 << 14;

/// How the store's requests are split.
#[derive(Clone, Copy, Debug)]
pub struct KvApplication {
    /// Milliseconds before its expiry from which on a key is the host's affair: [`EXPIRY_MARGIN_MS`] but in the simulator, whose clocks
    /// jump less far.
    pub margin_ms: u64,
    /// Whether clients have to say who they are: until then they may say little.
    pub needs_password: bool,
    /// Whether the card answers anything; without that every request is the host's, and nothing needs to be invalidated.
    pub offloads: bool,
    /// What a request may be at most.
    pub limits: Limits,
}

impl Default for KvApplication {
    fn default() -> Self {
        let limits =
            Limits { arguments: 1 << 20, argument_len: 64 << 20, request_len: 72 << 20, line_len: 64 << 10 };
        Self { margin_ms: EXPIRY_MARGIN_MS, needs_password: false, offloads: true, limits }
    }
}

/// How far a glance goes: a command and a key that the table takes are shorter.
const GLANCE_LEN: usize = 96;

/// How far a connection's stream was looked at.
#[derive(Debug, Default)]
pub struct KvCutter {
    cutter: Cutter,
    /// The host has said once that it knows the client, who is no stranger when it says so again later.
    was_admitted: bool,
}

/// A request of a message, however it was written.
fn request_of(message: &[u8]) -> Option<Request<'_>> {
    if message.starts_with(b"*") { Some(Request::new(message)) } else { Request::of_line(message).ok() }
}

impl KvApplication {
    /// Whether the card can answer a command.
    fn is_answered(command: Command) -> bool {
        matches!(command, Command::Get | Command::Mget | Command::Strlen | Command::Exists)
    }

    fn route(&self, outline: &Outline<'_>, standing: Standing, requests: &mut Requests) -> Route {
        let host =
            |reason, changes| Route::Host { reason, changes, may_change_standing: outline.changes_standing };
        if !self.offloads {
            return host(Reason::Command, Changes::Nothing);
        }
        if self.needs_password && !standing.is_admitted() {
            // The host changes nothing for it, so nothing is invalidated.
            return host(Reason::NotAdmitted, Changes::Nothing);
        }
        match outline.effect {
            Effect::WritesUnnamed => return host(Reason::Write, Changes::Everything),
            Effect::Writes => {
                for (count, key) in outline.keys().enumerate() {
                    if count == CHANGED_MAX {
                        requests.forget_keys();
                        return host(Reason::Write, Changes::Everything);
                    }
                    // The table has no longer keys than it takes, so there is nothing of others to invalidate.
                    if let Ok(key) = Key::new(key) {
                        requests.key(key);
                    }
                }
                return host(Reason::Write, Changes::Keys);
            }
            Effect::Nothing | Effect::ReadsUnnamed => return host(Reason::Command, Changes::Nothing),
            Effect::Reads if !Self::is_answered(outline.command) => {
                return host(Reason::Command, Changes::Nothing);
            }
            Effect::Reads => {}
        }
        if !standing.is_admitted() {
            return host(Reason::NotAdmitted, Changes::Nothing);
        }
        for (count, key) in outline.keys().enumerate() {
            let refusal = match Key::new(key) {
                _ if count >= KEYS_MAX => Reason::TooManyKeys,
                Err(_) => Reason::TooLong,
                Ok(key) => {
                    requests.key(key);
                    continue;
                }
            };
            requests.forget_keys();
            return host(refusal, Changes::Nothing);
        }
        Route::Card
    }
}

impl Application for KvApplication {
    type Cutter = KvCutter;

    const REPLIES: ReplyOrder = ReplyOrder::AsAsked;

    fn cut(&self, cutter: &mut KvCutter, bytes: &[u8], standing: Standing, reply: &mut Vec<u8>) -> Cut {
        cutter.was_admitted |= standing.is_admitted();
        let is_stranger = self.needs_password && !cutter.was_admitted;
        let limits = if is_stranger { &Limits::STRANGER } else { &self.limits };
        let wrong = |error: resp::RequestError, reply: &mut Vec<u8>| {
            Replies::new(reply, Version::Resp2).error(&format!("ERR {error}"));
            Cut::Wrong
        };
        match cutter.cutter.cut(bytes, limits, is_stranger) {
            Ok(resp::Cut::Part(missing)) => Cut::Part(missing),
            Ok(resp::Cut::Request(len)) => Cut::Message(len),
            Ok(resp::Cut::Nothing(len)) => Cut::Nothing(len),
            Ok(resp::Cut::Line(len)) => match Request::of_line(bytes.get(..len).unwrap_or_default()) {
                Ok(_) => Cut::Message(len),
                Err(error) => wrong(error, reply),
            },
            Err(error) => wrong(error, reply),
        }
    }

    fn glance(&self, bytes: &[u8]) -> Option<Key> {
        if !self.offloads || !bytes.starts_with(b"*") {
            return None;
        }
        let request = Request::new(bytes.get(..GLANCE_LEN.min(bytes.len()))?);
        let key = request.arguments().nth(1)?;
        Key::new(key).ok()
    }

    fn predicate(&self, message: &[u8], standing: Standing, requests: &mut Requests) {
        let request = request_of(message);
        let outline = request.as_ref().and_then(|request| Outline::of(request).ok());
        let route = match outline {
            Some(outline) => self.route(&outline, standing, requests),
            // The host says what is wrong with it; nothing is changed by it.
            None => {
                Route::Host { reason: Reason::Command, changes: Changes::Nothing, may_change_standing: false }
            }
        };
        requests.push(0..message.len(), 0, route);
    }

    fn function(
        &self,
        request: &[u8],
        hits: &[Hit],
        now: u64,
        reads: &mut Vec<FileRead>,
        reply: &mut Reply,
    ) -> Verdict {
        let Some(request) = request_of(request) else { return Verdict::Host(Reason::Command) };
        let Ok(outline) = Outline::of(&request) else { return Verdict::Host(Reason::Command) };
        // Whoever has listed the keys may have been another one's function.
        if outline.keys().count() != hits.len() {
            return Verdict::Host(Reason::Mismatch);
        }
        let mut length = 0;
        for (key, hit) in outline.keys().zip(hits) {
            let Some(item) = Item::decode(hit.item.bytes()) else { return Verdict::Host(Reason::Mismatch) };
            let margin_ms = if is_planted(Bug::NoMargin) { 0 } else { self.margin_ms };
            if item.expires.is_some_and(|expires| expires <= now.saturating_add(margin_ms)) {
                return Verdict::Host(Reason::NearExpiry);
            }
            length = i64::from(item.value_length);
            let Ok(len) = u32::try_from(RECORD_HEADER_LEN + key.len() + item.value_length as usize) else {
                return Verdict::Host(Reason::TooLarge);
            };
            reads.push(FileRead { file: item.part, offset: item.offset, len });
        }
        // What is asked of them is the same in both versions of the protocol.
        let number = match outline.command {
            Command::Strlen => length,
            Command::Exists => hits.len() as i64,
            _ => return Verdict::Read,
        };
        reads.clear();
        reply.write(|own| Replies::new(own, Version::Resp2).integer(number));
        Verdict::Answer
    }

    fn check(&self, request: &[u8], hits: &[Hit], read: &ReadBytes<'_>, reply: &mut Reply) -> bool {
        let Some(request) = request_of(request) else { return false };
        let Ok(outline) = Outline::of(&request) else { return false };
        if outline.keys().count() != hits.len() {
            return false;
        }
        if outline.command == Command::Mget {
            reply.write(|own| Replies::new(own, Version::Resp2).array(hits.len()));
        }
        for (index, (key, hit)) in outline.keys().zip(hits).enumerate() {
            let (Some(item), Some(bytes)) = (Item::decode(hit.item.bytes()), read.get(index)) else {
                return false;
            };
            let Ok(place) = RecordPlace::decode(bytes) else { return false };
            let record = place.of(bytes);
            let Some(value) = place.value.clone().filter(|_| record.key == key && item.means(&record)) else {
                return false;
            };
            reply.write(|own| bulk_head(own, value.len()));
            reply.read(index, value);
            reply.bytes(BULK_TAIL);
        }
        true
    }

    fn cache(&self, store: &[u8; 16], file: u32, offset: u64, bytes: &[u8], candidates: &mut Candidates) {
        let mut at = 0;
        // Writes are whole groups; what is longer than one request of the library comes in pieces, and is left alone.
        while let Some(group) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            let Ok(header) = GroupHeader::decode(group) else { return };
            // A piece of a long group is bytes of a client, which may look like anything but this store's own.
            let place = u64::from(file)
                .checked_mul(header.origin.part_len)
                .and_then(|part| part.checked_add(offset)?.checked_add(at as u64));
            if header.origin.store != *store || place != Some(header.address) {
                return;
            }
            let Some(records) = group.get(..header.length).and_then(|group| header.records(group).ok())
            else {
                return;
            };
            for (within, place) in records {
                let record = place.of(group.get(within..).unwrap_or_default());
                candidate(file, offset + (at + within) as u64, &record)
                    .into_iter()
                    .for_each(|candidate| candidates.push(candidate));
            }
            candidates.ends_at(header.address + header.length as u64);
            at += header.length;
        }
    }

    fn terms(&self) -> Terms {
        let difference = "[kv] password is set for one half, and not for the other; it has to be the same in the configuration of both";
        Terms { number: crate::terms(self.needs_password), difference }
    }

    fn unavailable(&self, _id: u64, was_forwarded: bool, reply: &mut Vec<u8>) {
        // Clients know LOADING of servers that start: it says that nothing was done, and libraries try again by themselves. An
        // INCR that the host may have applied must not get it.
        Replies::new(reply, Version::Resp2).error(if was_forwarded {
            "ERR the host went away while it had this request, and may have applied it or not"
        } else {
            "LOADING the host is away, and only it can answer this; try again"
        });
    }

    fn full(&self, reply: &mut Vec<u8>) {
        Replies::new(reply, Version::Resp2).error("ERR max number of clients reached");
    }
}

/// What the table may hold of a record.
fn candidate(file: u32, offset: u64, record: &Record<'_>) -> Option<Candidate> {
    let item = Item::new(u64::from(file), offset, record)?;
    Some(Candidate {
        key: Key::new(record.key).ok()?,
        item: ob_offload::Item::new(&item.encode()).ok()?,
        stamp: Stamp::new(record.stamp).ok()?,
    })
}
