//! Connections between a host and the card: ordered bytes that take their time, until somebody cuts them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use ob_core::Instant;
use ob_wire_link::frame::{FRAME_MAX, Frame};

use crate::{Failure, Rng};

/// One connection, never used again once cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WireId(pub(super) u64);

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    ToCard,
    ToHost,
}

struct Wire {
    host: usize,
    /// Bytes arrive in the order they were sent.
    last: [Instant; 2],
}

/// All connections that are not cut.
pub(super) struct Wires {
    /// How long bytes travel.
    delay: Range<Duration>,
    wires: BTreeMap<WireId, Wire>,
    next: u64,
}

impl Wires {
    pub(super) fn new(delay: Range<Duration>) -> Self {
        Self { delay, wires: BTreeMap::new(), next: 0 }
    }

    pub(super) fn connect(&mut self, host: usize, now: Instant) -> WireId {
        self.next += 1;
        let wire = WireId(self.next);
        self.wires.insert(wire, Wire { host, last: [now; 2] });
        wire
    }

    /// Cuts a connection: nothing that is on its way arrives. `false` if it is cut already.
    pub(super) fn cut(&mut self, wire: WireId) -> bool {
        self.wires.remove(&wire).is_some()
    }

    pub(super) fn is_whole(&self, wire: WireId) -> bool {
        self.wires.contains_key(&wire)
    }

    pub(super) fn of_host(&self, host: usize) -> Vec<WireId> {
        self.wires.iter().filter(|(_, wire)| wire.host == host).map(|(id, _)| *id).collect()
    }

    pub(super) fn all(&self) -> Vec<WireId> {
        self.wires.keys().copied().collect()
    }

    /// Sends bytes, in pieces that arrive one after the other. What is sent on a cut connection is lost.
    pub(super) fn send(
        &mut self,
        wire: WireId,
        way: Way,
        out: &mut Vec<u8>,
        now: Instant,
        rng: &mut Rng,
    ) -> Vec<(Instant, Vec<u8>)> {
        let mut pieces = Vec::new();
        let Some(wire) = self.wires.get_mut(&wire) else {
            out.clear();
            return pieces;
        };
        let last = &mut wire.last[way as usize];
        let mut rest = out.as_slice();
        while !rest.is_empty() {
            let whole = rng.one_in(2);
            let len = if whole { rest.len() } else { rng.range(1..rest.len() as u64 + 1) as usize };
            *last = (*last).max(now + rng.skewed(self.delay.clone()));
            pieces.push((*last, rest[..len].to_vec()));
            rest = &rest[len..];
        }
        out.clear();
        pieces
    }
}

/// Puts pieces together to frames again.
#[derive(Default)]
pub(super) struct Assembler {
    bytes: Vec<u8>,
}

impl Assembler {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame's bytes.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let len = Frame::length(&self.bytes, FRAME_MAX).map_err(|error| Failure::new(error.to_string()))?;
        let Some(len) = len.filter(|len| self.bytes.len() >= *len) else { return Ok(None) };
        Ok(Some(self.bytes.drain(..len).collect()))
    }
}
