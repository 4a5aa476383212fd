//! The store behind the stream.

use std::net::SocketAddr;

use ob_core::{ConnectionId, Now};
use ob_format::kv::Item;
use ob_wire_link::stream::Recovered;

use super::{Answer, Service};
use crate::resp::Request;
use crate::store::{self, Attestation, Session, Store};
use crate::terms;

impl Service for Store {
    type Session = Session;

    fn opened(&mut self, connection: ConnectionId, address: SocketAddr) -> Session {
        self.open(connection.0).of_client(address)
    }

    fn closed(&mut self, _connection: ConnectionId, _session: Session) {}

    fn request(
        &mut self,
        now: Now,
        connection: ConnectionId,
        stamp: u64,
        session: &mut Session,
        request: &[u8],
    ) {
        let line = (!request.starts_with(b"*")).then(|| Request::of_line(request).ok()).flatten();
        // A card forwards what it has cut. Bytes of another one that make no request are one without a command.
        let request = line.unwrap_or_else(|| Request::new(request));
        self.apply(now, stamp, connection.0, session, &request);
    }

    fn standing(session: &Session) -> u32 {
        session.standing()
    }

    fn has_room(&self) -> bool {
        Store::has_room(self)
    }

    fn next_answer(&mut self) -> Option<Answer> {
        let store::Answer { connection, stamp, bytes, attestation, is_last } = Store::next_answer(self)?;
        let attest =
            attestation.and_then(|found| Some((item(&found)?, found.key))).map(|(item, key)| (key, item));
        Some(Answer { connection: ConnectionId(connection), stamp, bytes, attest, closes: is_last })
    }

    fn next_attested(&mut self) -> Option<(u64, Vec<u8>, Item)> {
        // One that cannot be said is the host's to answer.
        loop {
            let (stamp, found) = self.next_attestation()?;
            if let Some(item) = item(&found) {
                return Some((stamp, found.key, item));
            }
        }
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        self.give_back(bytes);
    }

    fn is_ready(&self) -> bool {
        self.is_life_marked()
    }

    fn greatest_stamp(&self) -> u64 {
        self.stamp_max()
    }

    fn recovered(&self) -> Recovered {
        Recovered { store: self.name(), end: self.known_end() }
    }

    fn terms(&self) -> u32 {
        terms(self.needs_password())
    }

    /// Whichever half has had a new life, the card's table may have less than it could.
    fn begins(&mut self, stamp: u64) {
        self.met();
        self.begin_refill(stamp);
    }

    fn settled(&self) -> u64 {
        Store::settled(self)
    }
}

/// What the card's table is to hold; nothing, if it cannot say that.
fn item(found: &Attestation) -> Option<Item> {
    Some(Item {
        part: u32::try_from(found.part).ok()?,
        offset: found.offset,
        value_length: u32::try_from(found.value_len).ok()?,
        stamp: found.stamp as u32,
        expires: found.expires,
    })
}
