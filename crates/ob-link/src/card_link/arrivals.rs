//! Hosts that arrive: from the listener to `HELLO`, and from there to an attachment, a resumed one, or the door.

use super::admission::{Caller, may_attach};
use super::*;

impl CardLink {
    /// Accepts some connections, if there is a place for them. Others wait for the next turn, which comes at once.
    pub(super) fn accept(&mut self, index: usize, now: Instant) {
        let listener = &mut self.listeners[index];
        if listener.again_at.take_if(|again| *again <= now).is_some() {
            listener.readable = true;
        }
        if listener.is_deaf && listener.again_at.is_none() {
            self.reactor.unwatch(listener.watch);
            match self.reactor.watch(&listener.socket, Interest::Readable) {
                Ok(watch) => (listener.watch, listener.is_deaf) = (watch, false),
                Err(_) => listener.again_at = Some(now + ACCEPT_AGAIN),
            }
        }
        for _ in 0..ACCEPTS_A_TURN {
            if !self.listeners[index].readable || !self.has_place(now) {
                return;
            }
            let listener = &mut self.listeners[index];
            match connection::accept(listener.socket.as_fd()) {
                Ok(Some((socket, address))) => {
                    if let Err(reason) = self.admit(index, socket, address) {
                        tracing::warn!("a host was turned away: {reason}");
                    }
                }
                Ok(None) => listener.readable = false,
                // That one is gone; there may be others behind it.
                Err(Errno::CONNABORTED | Errno::PROTO) => {}
                Err(error) => {
                    tracing::warn!("cannot accept a host: {error}");
                    listener.readable = false;
                    listener.again_at = Some(now + ACCEPT_AGAIN);
                }
            }
        }
    }

    /// Whether there is a place for one more stranger, or one has said nothing for long enough to lose its own:
    /// connections that say nothing must not keep others out. (Those wait in the listener's queue meanwhile.) One that has said
    /// `HELLO` takes none, or a crowd of them would keep out who comes back: it counts as a host.
    pub(super) fn has_place(&self, now: Instant) -> bool {
        let oldest = self.silent().map(|(_, since)| since).min();
        !self.is_crowded() || oldest.is_some_and(|since| now >= since + PLACE_FOR)
    }

    /// Whether every place has somebody who has said nothing.
    pub(super) fn is_crowded(&self) -> bool {
        self.silent().count() >= STRANGERS_MAX
    }

    /// How many hosts there are, and will be when those are let in who wait for that.
    fn expected_hosts(&self) -> usize {
        self.hosts.len() + self.strangers.len() - self.silent().count()
    }

    /// The strangers that have said nothing: where they are, and since when they are there.
    pub(super) fn silent(&self) -> impl Iterator<Item = (usize, Instant)> {
        let silent = self.strangers.iter().enumerate().filter(|(_, stranger)| stranger.hello.is_none());
        silent.map(|(index, stranger)| (index, stranger.since))
    }

    fn make_place(&mut self) {
        let oldest = self.silent().min_by_key(|(_, since)| *since);
        if let Some((index, _)) = oldest.filter(|_| self.is_crowded()) {
            tracing::warn!("too many connections that say nothing; the oldest is dropped");
            let stranger = self.strangers.remove(index);
            self.drop_wire(stranger.wire);
        }
    }

    pub(super) fn admit(
        &mut self,
        index: usize,
        socket: OwnedFd,
        address: Option<SocketAddr>,
    ) -> Result<(), String> {
        let now = self.reactor.now();
        let own_user = rustix::process::geteuid().as_raw();
        let (connection, peer) = match &self.listeners[index].listen {
            Listen::Unix(_) => {
                let peer = connection::peer_process(&socket).map_err(|error| error.to_string())?;
                may_attach(Caller::User(peer.uid), own_user, &self.config)?;
                (Connection::packet(socket), Peer::Process(peer))
            }
            Listen::Tcp(_) => {
                may_attach(Caller::Address(address.map(|address| address.ip())), own_user, &self.config)?;
                let stream = Connection::stream(socket, self.config.dead_after);
                (stream.map_err(|error| error.to_string())?, Peer::Machine)
            }
        };
        let watch =
            self.reactor.watch(connection.socket(), Interest::Both).map_err(|error| error.to_string())?;
        let wire = Wire { connection, watch, readable: true, writable: true };
        self.make_place();
        self.strangers.push(Stranger { wire, peer, since: now, hello: None });
        Ok(())
    }

    /// Reads what strangers say; a `HELLO` makes a host of one. Those that have to wait are answered in the order in which they came.
    pub(super) fn meet_strangers(&mut self, now: Instant) -> bool {
        let mut worked = false;
        let mut index = 0;
        while index < self.strangers.len() {
            let has_room = self.expected_hosts() < self.config.hosts_max;
            let stranger = &mut self.strangers[index];
            let may_wait = has_room || stranger.hello.is_some();
            let hello = match stranger.hello.take() {
                Some(hello) => Ok(Some(hello)),
                None if stranger.wire.readable => stranger.wire.hello(),
                None => Ok(None),
            };
            match hello {
                Ok(None) if now < stranger.since + HELLO_WITHIN => index += 1,
                Ok(Some(hello)) if hello.resume.is_none() && may_wait && self.is_asking(now) => {
                    self.strangers[index].hello = Some(hello);
                    index += 1;
                }
                Ok(Some(hello)) => {
                    let stranger = self.strangers.remove(index);
                    self.greet(stranger, &hello);
                    worked = true;
                }
                Ok(None) => {
                    let stranger = self.strangers.remove(index);
                    self.drop_wire(stranger.wire);
                }
                Err(error) => {
                    tracing::warn!("a host was turned away: {error}");
                    let mut stranger = self.strangers.remove(index);
                    stranger.wire.refuse(RefusedCode::Malformed, &error);
                    self.drop_wire(stranger.wire);
                }
            }
        }
        worked
    }

    /// Whether some host has not answered yet whether it lives. Nobody attaches meanwhile: each attachment is a reason to ask again,
    /// and however many there are, a host is served between any two of them. One that says nothing for long is not waited for.
    pub(super) fn is_asking(&self, now: Instant) -> bool {
        self.hosts.iter().any(|host| host.awaited_until(now).is_some())
    }

    /// When those who wait to attach need not wait any longer, if nobody answers before.
    pub(super) fn answers_due(&self) -> Option<Instant> {
        self.strangers.iter().find(|stranger| stranger.hello.is_some())?;
        let until = |host: &Host| host.awaited_until(host.asked?.1);
        self.hosts.iter().filter_map(until).max()
    }

    pub(super) fn greet(&mut self, mut stranger: Stranger, hello: &Hello) {
        match self.decide(hello, &stranger.peer) {
            Err((code, text)) => {
                tracing::warn!(name = hello.name, "a host was turned away: {text}");
                stranger.wire.refuse(code, &text);
                self.drop_wire(stranger.wire);
            }
            Ok(Some(index)) => self.come_back(index, stranger, hello),
            Ok(None) => {
                if let Err(turned_away) = self.attach(stranger, hello) {
                    let (mut stranger, text) = *turned_away;
                    tracing::warn!(name = hello.name, "a host was turned away: {text}");
                    stranger.wire.refuse(RefusedCode::NotAllowed, &text);
                    self.drop_wire(stranger.wire);
                }
            }
        }
    }

    /// Whether a host may attach: afresh (`None`) or to the attachment of a host known here.
    pub(super) fn decide(&self, hello: &Hello, peer: &Peer) -> Result<Option<usize>, (RefusedCode, String)> {
        if hello.version != VERSION {
            let text = format!(
                "this card speaks version {VERSION} of the link protocol, the host speaks version {}; \
                 run the same release of outboard on both",
                hello.version
            );
            return Err((RefusedCode::Version, text));
        }
        let Some(resume) = &hello.resume else {
            let expected = self.expected_hosts();
            if expected >= self.config.hosts_max {
                let text = format!("{expected} hosts are attached or about to be, and no more are allowed");
                return Err((RefusedCode::NotAllowed, text));
            }
            return Ok(None);
        };
        let may_resume = |host: &Host| host.over.is_none() && host.core.may_resume(resume);
        let known = self.hosts.iter().position(may_resume).filter(|_| matches!(peer, Peer::Machine));
        let text = "that attachment is over; attach afresh".to_owned();
        known.map(Some).ok_or((RefusedCode::NoSuchAttachment, text))
    }

    pub(super) fn attach(
        &mut self,
        stranger: Stranger,
        hello: &Hello,
    ) -> Result<(), Box<(Stranger, String)>> {
        let Stranger { wire, peer, since, .. } = stranger;
        // First of all: a host whose death could go unnoticed is not taken.
        let process = match peer {
            Peer::Machine => None,
            Peer::Process(peer) => match self.watch_process(peer) {
                Ok(process) => Some(process),
                Err(error) => {
                    let stranger = Stranger { wire, peer: Peer::Machine, since, hello: None };
                    return Err(Box::new((stranger, format!("its process cannot be watched: {error}"))));
                }
            },
        };
        let (kind, dma) = match (&process, self.config.costs) {
            (None, _) => (LinkKind::Tcp, CardDma::frame(FrameDma::new(TRANSFERS_MAX))),
            (Some(_), None) => (LinkKind::Shm, CardDma::local(LocalDma::new(TRANSFERS_MAX, TRANSFER_MAX))),
            (Some(_), Some(costs)) => {
                let local = LocalDma::new(TRANSFERS_MAX, TRANSFER_MAX);
                (LinkKind::Model, CardDma::model(ModelDma::new(local, MonotonicClock, costs, TRANSFERS_MAX)))
            }
        };
        let identity = Identity {
            attachment: AttachmentId(self.next_attachment),
            secret: random_secret(),
            card_incarnation: self.config.incarnation,
            host_incarnation: hello.host_incarnation,
            name: hello.name.clone(),
            kind,
            card_pollers: self.config.pollers,
            host_pollers: hello.pollers,
        };
        self.next_attachment += 1;
        // Whatever its link: an application whose machine is lost may be started again on the card's.
        self.hosts.iter_mut().for_each(|host| host.core.doubt());
        tracing::info!(name = hello.name, attachment = identity.attachment.0, "host attached");
        self.hosts.push(Host {
            core: CardAttachment::new(identity, dma),
            wire: Some(wire),
            process,
            files: BTreeMap::new(),
            arenas: Vec::new(),
            lingering: 0,
            wishes: VecDeque::new(),
            attached_at: self.reactor.now(),
            heard_at: self.reactor.now(),
            away_since: None,
            asked: None,
            asked_back: None,
            answers_after: Duration::ZERO,
            over: None,
        });
        Ok(())
    }

    pub(super) fn come_back(&mut self, index: usize, stranger: Stranger, hello: &Hello) {
        let received = hello.resume.as_ref().map_or(0, |resume| resume.received);
        let host = &mut self.hosts[index];
        host.core.disconnected();
        let old = host.wire.replace(stranger.wire);
        (host.away_since, host.heard_at) = (None, self.reactor.now());
        if let Err(error) = host.core.resume(received) {
            host.over = Some(error.to_string());
        }
        host.asked_back = host.core.asked();
        tracing::info!(name = hello.name, "host is back");
        if let Some(old) = old {
            self.drop_wire(old);
        }
        self.act(index);
    }

    /// Notices the end of a process even when its children keep its sockets open.
    pub(super) fn watch_process(&self, peer: PeerProcess) -> Result<(OwnedFd, WatchId, i32), String> {
        let watch =
            self.reactor.watch(&peer.handle, Interest::Readable).map_err(|error| error.to_string())?;
        Ok((peer.handle, watch, peer.pid))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod tests {
    use std::net::TcpStream;

    use ob_io::{Config, Reactor, Readiness, Wait};

    use super::*;
    use crate::card_link::admission::tests::config;

    #[test]
    fn a_listener_that_the_kernel_has_let_go_of_is_watched_again() {
        let mut reactor = Reactor::new(&Config::default()).unwrap();
        let listen = vec![Listen::Tcp("127.0.0.1:0".parse().unwrap())];
        let config = CardLinkConfig { listen, ..config(&[], &[]) };
        let mut link = CardLink::new(&reactor.handle(), config).unwrap();
        link.accept(0, reactor.handle().now());
        let watch = link.listeners[0].watch;
        reactor.handle().unwatch(watch);
        assert!(link.handle(&Event::Ready { watch, readiness: Readiness::LOST }));
        link.accept(0, reactor.handle().now());
        let _host = TcpStream::connect(link.tcp_address().unwrap()).unwrap();
        let deadline = reactor.handle().now() + Duration::from_secs(60);
        while link.strangers.is_empty() {
            assert!(reactor.handle().now() < deadline, "nobody is accepted");
            let mut events = Vec::new();
            reactor.turn(Wait::Until(Some(deadline)), &mut events);
            events.iter().for_each(|event| assert!(link.handle(event)));
            link.accept(0, reactor.handle().now());
        }
    }
}
