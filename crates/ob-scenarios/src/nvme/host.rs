//! A host: the initiator's session, as it ships, on the simulated network.

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;

use ob_core::{ConnectionId, Instant, Net, NetEvent, Received};
use ob_nvme::initiator::{
    Action, Answer, Error, Event, LinkKey, Options, Request, RequestId, Session, Unreachable,
};
use ob_sim::{Rng, SimNet};

/// Slices that one send takes at most.
const SEND_SLICES: usize = 16;

pub(crate) struct Host {
    net: SimNet,
    address: SocketAddr,
    session: Session,
    links: Vec<(LinkKey, ConnectionId, bool)>,
}

impl Host {
    pub(crate) fn new(net: SimNet, options: Options, mut rng: Rng, now: Instant) -> Self {
        let address = options.address;
        let session = Session::new(options, Box::new(move |bytes: &mut [u8]| rng.fill(bytes)), now);
        Self { net, address, session, links: Vec::new() }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.session.is_ready()
    }

    /// Why this host will never get anything again.
    pub(crate) fn over(&self) -> Option<&Error> {
        self.session.over()
    }

    pub(crate) fn submit(&mut self, now: Instant, id: u64, request: Request) {
        self.session.submit(now, RequestId(id), request);
    }

    pub(crate) fn next_outcome(&mut self) -> Option<(u64, Result<Answer, Error>)> {
        self.session.next_outcome().map(|(id, outcome)| (id.0, outcome))
    }

    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.session.next_due()
    }

    /// Does what there is to do; how many associations it has lost.
    pub(crate) fn turn(&mut self, now: Instant) -> u64 {
        while let Some(event) = self.net.poll() {
            self.handle(now, event);
        }
        for index in 0..self.links.len() {
            self.receive(now, index);
        }
        // After a pause answers lie in the sockets: they have come in time.
        if self.session.next_due().is_some_and(|due| due <= now) {
            self.session.tick(now);
        }
        self.act(now);
        for index in 0..self.links.len() {
            self.send(now, index);
        }
        self.act(now);
        let events = std::iter::from_fn(|| self.session.next_event());
        events.filter(|event| matches!(event, Event::Disconnected(_))).count() as u64
    }

    fn handle(&mut self, now: Instant, event: NetEvent) {
        match event {
            NetEvent::Connected(id) => {
                if let Some(link) = self.links.iter_mut().find(|link| link.1 == id) {
                    link.2 = true;
                    self.session.dialed(now, link.0);
                }
            }
            NetEvent::Closed { connection, .. } => {
                if let Some(at) = self.links.iter().position(|link| link.1 == connection) {
                    let (key, ..) = self.links.remove(at);
                    self.session.broken(now, key, Unreachable::System(ErrorKind::ConnectionReset));
                }
            }
            NetEvent::Accepted { .. } | NetEvent::Readable(_) | NetEvent::Writable(_) => {}
        }
    }

    fn act(&mut self, now: Instant) {
        while let Some(action) = self.session.next_action() {
            match action {
                Action::Open(key) => match self.net.connect(self.address) {
                    Ok(id) => self.links.push((key, id, false)),
                    Err(_) => self.session.broken(now, key, Unreachable::System(ErrorKind::OutOfMemory)),
                },
                Action::Close { key, .. } => {
                    if let Some(at) = self.links.iter().position(|link| link.0 == key) {
                        let (_, id, _) = self.links.remove(at);
                        self.net.close(id);
                    }
                }
            }
        }
    }

    fn receive(&mut self, now: Instant, index: usize) {
        while let Some((key, id, true)) = self.links.get(index).copied() {
            let Some([direct, scratch]) = self.session.receive_into(key) else { return };
            let mut slices = [IoSliceMut::new(direct), IoSliceMut::new(scratch)];
            match self.net.receive_vectored(id, &mut slices) {
                Ok(Received::Bytes(count)) => self.session.received(now, key, count),
                Ok(Received::Nothing) => return,
                Ok(Received::End) | Err(_) => return self.session.ended(now, key),
            }
        }
    }

    fn send(&mut self, now: Instant, index: usize) {
        while let Some((key, id, true)) = self.links.get(index).copied() {
            let mut slices = [IoSlice::new(&[]); SEND_SLICES];
            let count = self.session.transmit(key, &mut slices);
            let offered = slices.get(..count).unwrap_or_default();
            if offered.iter().all(|slice| slice.is_empty()) {
                return;
            }
            match self.net.send_vectored(id, offered) {
                Ok(sent) if sent.0 == 0 => return,
                Ok(sent) => self.session.sent(key, sent.0),
                Err(_) => {
                    let why = Unreachable::System(ErrorKind::BrokenPipe);
                    return self.session.broken(now, key, why);
                }
            }
        }
    }
}
