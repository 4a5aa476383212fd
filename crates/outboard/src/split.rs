//! The card's port for an application that splits messages: `[split]`.
//!
//! ```text
//!   peers ◀── sockets ──▶ SplitCard ◀── SplitGroup ◀── link ◀── an application with `ob_split::host::Split`
//! ```
//!
//! What it is to do with messages, the application says; all that there is of the card here are sockets, memory and an engine.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ob_core::{AttachmentId, Incarnation, Instant};
use ob_io::{Event, Handle, TcpNet};
use ob_ring::{Batch, BulkDone, CardSender, CardService, GroupKey};
use ob_split::card::{IntakeConfig, NoFront, PortConfig, RECORD_BLOCK_LEN, SplitCard, SplitDialect};
use ob_split::engine::SoftEngine;

use crate::config::CardConfig;
use crate::halves::{CardPart, ServiceEndpoint};

/// Connections that the application has at a time, and as many that its peers have made.
const CHANNELS_MAX: u16 = 128;
/// Descriptors that a reactor watches for it: those, and its listeners, which are among the former.
pub(crate) const WATCHES_MAX: u32 = 2 * CHANNELS_MAX as u32 + LISTENERS_AND_DOOR;
/// Listeners that no application has any more, and connections that are sent away.
const LISTENERS_AND_DOOR: u32 = 80;
/// Messages that the application may have at a time, and plans under way.
const MESSAGES_MAX: u32 = 1024;
/// Tasks that the engine has waiting.
const ENGINE_DEPTH: u16 = 256;
/// How long a peer may take for its reply.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest payload.
const PAYLOAD_MAX: u32 = 1 << 20;
/// Bytes of memory for what is sent with a payload: a message has as much.
const HEAD_LEN: u32 = 4 << 10;
/// Memory that an application is granted ahead: what an engine writes at most, and how often.
const GRANTED: (u32, u32) = (64 << 10, 16);

type Split = SplitCard<TcpNet, NoFront, SplitDialect, SoftEngine>;

/// The port.
pub(crate) struct SplitPort(Rc<RefCell<Split>>);

/// What the link needs of it.
pub(crate) struct SplitGroup(Rc<RefCell<Split>>);

impl SplitPort {
    /// Makes it. It listens where its application says.
    pub(crate) fn start(config: &CardConfig, incarnation: Incarnation, handle: &Handle) -> Self {
        let net = TcpNet::new(handle, WATCHES_MAX);
        let dialect = SplitDialect::new(config.split.magic.0, PATIENCE);
        let port = PortConfig { incarnation, ..port_config(config.split.memory.0) };
        let split = SplitCard::new(port, net, NoFront, dialect, SoftEngine::new(ENGINE_DEPTH));
        Self(Rc::new(RefCell::new(split)))
    }

    /// What the link needs of it.
    pub(crate) fn group(&self) -> SplitGroup {
        SplitGroup(Rc::clone(&self.0))
    }
}

/// Half of the memory is for what comes, a quarter for what is compressed, and the rest for what else is made of it and for messages that
/// are sent.
fn port_config(memory: u64) -> PortConfig {
    let blocks = |share: u64, len: u32| {
        let count = memory / share / u64::from(len);
        (len, u32::try_from(count).unwrap_or(u32::MAX).max(4))
    };
    let (_, records) = blocks(4, RECORD_BLOCK_LEN);
    let (_, heads) = blocks(16, HEAD_LEN);
    PortConfig {
        payload_max: PAYLOAD_MAX,
        handles_max: MESSAGES_MAX,
        plans_max: MESSAGES_MAX,
        channels_max: CHANNELS_MAX,
        slots_max: 0,
        memory: vec![blocks(16, 4 << 10), blocks(16, 16 << 10), blocks(16, 64 << 10)],
        records,
        // Its dialect names nothing that could be found again.
        retains: false,
        heads,
        granted: vec![GRANTED],
        intake: Some(IntakeConfig {
            memory: vec![blocks(8, 4 << 10), blocks(8, 64 << 10), blocks(4, PAYLOAD_MAX)],
            ..IntakeConfig::default()
        }),
        ..PortConfig::default()
    }
}

impl CardPart for SplitPort {
    fn handle(&mut self, event: &Event) -> bool {
        self.0.borrow_mut().net_mut().handle(event)
    }

    fn turn(&mut self, now: Instant) -> bool {
        self.0.borrow_mut().turn(now)
    }

    fn next_due(&self) -> Option<Instant> {
        self.0.borrow().next_due()
    }

    fn is_idle(&self) -> bool {
        self.0.borrow().counts().plans == 0
    }

    fn endpoints(&self) -> Vec<ServiceEndpoint> {
        vec![ServiceEndpoint {
            service: "split".to_owned(),
            address: "where its application listens".to_owned(),
            next: "examples/listing1".to_owned(),
        }]
    }
}

impl CardService for SplitGroup {
    fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String> {
        self.0.borrow_mut().open(key, service)
    }

    fn requests(&mut self, key: GroupKey, batch: Batch, responses: &mut CardSender) {
        self.0.borrow_mut().requests(key, batch, responses);
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        self.0.borrow_mut().responses(key, responses);
    }

    fn transferred(&mut self, key: GroupKey, done: BulkDone, responses: &mut CardSender) {
        self.0.borrow_mut().transferred(key, done, responses);
    }

    fn suspended(&mut self, attachment: AttachmentId, is_suspended: bool) {
        self.0.borrow_mut().suspended(attachment, is_suspended);
    }

    fn closed(&mut self, key: GroupKey) {
        self.0.borrow_mut().closed(key);
    }

    fn poll(&mut self, now: Instant) -> bool {
        self.0.borrow_mut().poll(now)
    }

    fn next_due(&self) -> Option<Instant> {
        CardService::next_due(&*self.0.borrow())
    }

    fn waiting(&self, groups: &mut Vec<GroupKey>) {
        self.0.borrow().waiting(groups);
    }

    fn channel(&mut self, _: AttachmentId, _: &[u8]) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_a_port_has_is_what_it_was_given() {
        for memory in [16u64 << 20, 64 << 20, 1 << 30, 16 << 30] {
            let config = port_config(memory);
            let intake = config.intake.unwrap().memory;
            let blocks =
                config.memory.iter().chain(&intake).map(|(len, count)| u64::from(*len) * u64::from(*count));
            let records = u64::from(config.records) * u64::from(RECORD_BLOCK_LEN);
            let all = blocks.sum::<u64>() + records + u64::from(config.heads) * u64::from(HEAD_LEN);
            assert!(all <= memory && all > memory / 8 * 7, "{all} of {memory}");
        }
    }
}
