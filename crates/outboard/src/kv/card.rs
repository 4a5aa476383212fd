//! The key-value service on the card: clients' sockets, the director, and what it answers by itself.
//!
//! ```text
//!   reactor ── events ──▶ KvCard ── turn ──▶ director ─▶ engine ─▶ files of the card (LocalFiles)
//!                                               │
//!                                               └─▶ RingPort ─▶ RingService ─▶ link ─▶ host
//! ```

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use ob_core::{AttachmentId, Instant};
use ob_director::ring::{RingPort, RingService};
use ob_director::{
    Director, DirectorConfig, DirectorCounts, DirectorDriver, FlowPattern, Now, Protocol, Signature,
};
use ob_files_card::{LocalFiles, WriteObserver};
use ob_io::{Event, Handle, MonotonicClock, TcpNet};
use ob_kv::card::KvApplication;
use ob_offload::{Engine, EngineConfig, EngineCounts, ProgramSlot, Programmed, Reason};
use ob_ring::{Batch, CardSender, CardService, GroupKey};
use ob_table::{Counts as TableCounts, Table, TableConfig};
use ob_wire_link::stream::KV_SERVICE;

use super::{KvError, unix_ms};
use crate::config::{CardConfig, KvConfig};
use crate::halves::{CardPart, ServiceEndpoint};

/// Connections at once.
pub(super) const CONNECTIONS_MAX: u32 = 4096;
/// Connections that may be accepted beyond those in one turn: a client has to be accepted to be told that there is no room.
const CONNECTIONS_AT_THE_DOOR: u32 = 16;

/// Descriptors that a reactor watches for this service, beside its own.
pub const WATCHES_MAX: u32 = CONNECTIONS_MAX + CONNECTIONS_AT_THE_DOOR;

/// Which connections the card looks at (DDS §5.1).
fn signature(config: &KvConfig) -> Signature {
    let any = FlowPattern { protocol: Some(Protocol::Tcp), ..FlowPattern::default() };
    let clients = config.offload_clients.iter().map(|network| Some(network.0));
    let ports = config.offload_excluded_ports.iter().map(|port| Some(*port..=*port));
    Signature::new([config.listen])
        .only(clients.map(|client| FlowPattern { client, ..any.clone() }))
        .without(ports.map(|client_ports| FlowPattern { client_ports, ..any.clone() }))
}

/// The card's half of the service.
pub struct KvCard {
    driver: DirectorDriver<TcpNet, RingPort, LocalFiles, Programmed<KvApplication>>,
    address: SocketAddr,
}

/// What the link and the files need of it.
pub struct Attachments {
    /// Serves the host's group.
    pub group: KvGroup,
    /// Sees what the host writes to files.
    pub observer: Box<dyn WriteObserver>,
}

/// The host's group, of a card that may not have the service.
#[derive(Default)]
pub struct KvGroup(Option<RingService>);

impl CardService for KvGroup {
    fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String> {
        match &mut self.0 {
            Some(ring) => ring.open(key, service),
            None => Err("this card is not configured to serve the key-value store".to_owned()),
        }
    }

    fn requests(&mut self, key: GroupKey, batch: Batch, responses: &mut CardSender) {
        if let Some(ring) = &mut self.0 {
            ring.requests(key, batch, responses);
        }
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        if let Some(ring) = &mut self.0 {
            ring.responses(key, responses);
        }
    }

    fn closed(&mut self, key: GroupKey) {
        if let Some(ring) = &mut self.0 {
            ring.closed(key);
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.0.as_ref().and_then(CardService::next_due)
    }

    fn waiting(&self, groups: &mut Vec<GroupKey>) {
        if let Some(service) = &self.0 {
            service.waiting(groups);
        }
    }

    fn channel(&mut self, _attachment: AttachmentId, _message: &[u8]) {}
}

/// What the service is like, for the status.
#[derive(Clone, Debug)]
pub struct KvFacts {
    /// Where clients reach it.
    pub address: SocketAddr,
    /// What the director did.
    pub director: DirectorCounts,
    /// What the engine did.
    pub engine: EngineCounts,
    /// What the table holds.
    pub table: TableCounts,
    /// How many entries it could hold.
    pub table_slots: u64,
    /// Bytes that it takes.
    pub table_bytes: u64,
}

impl KvFacts {
    /// How many requests went to the host for each reason, without those for which none did.
    pub fn reasons(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counted = Reason::ALL.iter().map(|reason| (reason.name(), self.director.host.of(*reason)));
        counted.filter(|(_, count)| *count > 0)
    }
}

impl KvCard {
    /// Listens.
    pub fn start(
        config: &CardConfig,
        handle: &Handle,
        files: LocalFiles,
        programs: Arc<ProgramSlot>,
    ) -> Result<(Self, Attachments), KvError> {
        let section = &config.kv;
        let native = KvApplication { needs_password: section.password.is_some(), ..KvApplication::default() };
        let application = Rc::new(Programmed::new(native, programs, Rc::new(MonotonicClock)));
        let table = Table::new(TableConfig::with_memory_max(section.table.0));
        let (_, writer) = table.map_err(|error| KvError::Table {
            error,
            fix: config.source.line_to_change("kv", "table", "\"64MiB\""),
        })?;
        let block_len = files.card_info().block_len;
        let engine = Engine::new(Rc::clone(&application), writer, EngineConfig::default(), block_len);
        for arena in engine.arenas() {
            // Without it the kernel maps the memory for each read: slower, and as right.
            let _ = handle.register_arena(arena);
        }
        let observer = Box::new(engine.watcher());
        let (port, service) = ob_director::ring::pair(KV_SERVICE);
        let connections_max = CONNECTIONS_MAX as usize;
        let director = Director::new(
            application,
            engine,
            DirectorConfig { connections_max, ..DirectorConfig::default() },
        );
        let net = TcpNet::new(handle, WATCHES_MAX);
        let mut driver = DirectorDriver::new(net, port, files, director);
        let listening = driver.listen(&signature(section)).map_err(|error| KvError::Listen {
            error,
            fix: config.source.line_to_change("kv", "listen", "\"127.0.0.1:6380\""),
        })?;
        let address = listening.first().copied().unwrap_or(section.listen);
        Ok((Self { driver, address }, Attachments { group: KvGroup(Some(service)), observer }))
    }

    /// What it is like now.
    pub fn facts(&self) -> KvFacts {
        let director = self.driver.director();
        let writer = director.engine().writer();
        KvFacts {
            address: self.address,
            director: director.counts(),
            engine: director.engine().counts(),
            table: writer.counts(),
            table_slots: writer.table().slots(),
            table_bytes: writer.table().bytes(),
        }
    }
}

impl CardPart for KvCard {
    fn handle(&mut self, event: &Event) -> bool {
        self.driver.net_mut().handle(event)
    }

    fn turn(&mut self, now: Instant) -> bool {
        let turn = self.driver.turn(Now { instant: now, unix_ms: unix_ms() });
        turn.events > 0 || turn.has_more
    }

    fn next_due(&self) -> Option<Instant> {
        self.driver.next_due()
    }

    fn is_idle(&self) -> bool {
        self.driver.director().engine().in_flight() == 0
    }

    fn endpoints(&self) -> Vec<ServiceEndpoint> {
        vec![ServiceEndpoint::kv(self.address)]
    }
}

#[cfg(test)]
mod tests {
    use ob_director::Flow;

    use super::*;
    use crate::config::Network;

    #[test]
    fn the_configuration_says_whose_requests_the_card_may_answer() {
        let is_matched = |config: &KvConfig, client: &str| {
            let (client, local) = (client.parse().unwrap(), config.listen);
            signature(config).matches(&Flow { protocol: Protocol::Tcp, client, local })
        };
        let everybody = KvConfig::default();
        assert!(is_matched(&everybody, "192.0.2.1:5000") && is_matched(&everybody, "[2001:db8::1]:5000"));
        let some = KvConfig {
            offload_clients: vec![Network::parse("10.0.0.0/8").unwrap()],
            offload_excluded_ports: vec![7000],
            ..KvConfig::default()
        };
        assert!(is_matched(&some, "10.1.2.3:5000"));
        assert!(!is_matched(&some, "10.1.2.3:7000"));
        assert!(!is_matched(&some, "192.0.2.1:5000") && !is_matched(&some, "[2001:db8::1]:5000"));
        let nobody = KvConfig { offload_clients: Vec::new(), ..KvConfig::default() };
        assert!(!is_matched(&nobody, "10.1.2.3:5000"));
        assert_eq!(signature(&some).listens(), [some.listen]);
    }
}
