//! A [`ChunkServer`] on sockets and on the card's files.

use std::net::SocketAddr;

use ob_core::{Arrival, Instant, Net, NetListenError, Streams};
use ob_files_card::LocalFiles;

use super::connection::ConnectionKey;
use super::{ChunkServer, ChunkServerConfig};

/// Receives a connection gets in one turn; the others are not to wait for one that always has more.
const RECEIVES_A_TURN: usize = 16;

/// What one turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Network events, receives, and answers of the files.
    pub events: usize,
    /// Whether there is more that can be done at once.
    pub has_more: bool,
}

/// Sockets, files, and the server between them.
///
/// Who has it turns it after events of the network, after turns of the files, and when [`ChunkServerDriver::next_due`] says so.
pub struct ChunkServerDriver<N> {
    streams: Streams<N, ConnectionKey>,
    files: LocalFiles,
    server: ChunkServer,
}

impl<N: Net> ChunkServerDriver<N> {
    /// Begins to look what the files have; nobody is answered before that is known.
    pub fn new(net: N, files: LocalFiles, config: ChunkServerConfig) -> Self {
        let server = ChunkServer::new(config, files.card_info());
        Self { streams: Streams::new(net, RECEIVES_A_TURN), files, server }
    }

    /// Accepts connections at an address; which one it has really.
    ///
    /// # Errors
    ///
    /// When the address cannot be listened on.
    pub fn listen(&mut self, address: SocketAddr) -> Result<SocketAddr, NetListenError> {
        let listener = self.streams.net_mut().listen(address)?;
        Ok(self.streams.net().listener_address(listener).unwrap_or(address))
    }

    /// The sockets; a reactor's events go there first.
    pub fn net_mut(&mut self) -> &mut N {
        self.streams.net_mut()
    }

    /// The server.
    pub fn server(&self) -> &ChunkServer {
        &self.server
    }

    /// Whether nothing is on its way in the files.
    pub fn is_idle(&self) -> bool {
        !self.files.has_requests() && self.server.is_idle()
    }

    /// Gives the sockets up, for another life.
    pub fn into_net(self) -> N {
        self.streams.into_net()
    }

    /// When the next turn is due, if nothing happens before; a reactor's events, and what the files have done, need one too.
    pub fn next_due(&self) -> Option<Instant> {
        if self.streams.is_readable() || self.server.can_go_on() {
            return Some(Instant::default());
        }
        self.server.next_due()
    }

    /// Does what there is to do.
    pub fn turn(&mut self, now: Instant) -> Turn {
        let mut turn = Turn::default();
        while let Some(arrival) = self.streams.take_events(now, &mut self.server, &mut turn.events) {
            self.accept(now, arrival);
        }
        // What is taken now gives memory back, and who sends now can have it.
        self.streams.send(now, &mut self.server);
        turn.events += self.streams.receive(now, &mut self.server);
        turn.events += usize::from(self.server.turn(now, &mut self.files));
        self.streams.send(now, &mut self.server);
        self.streams.act(&mut self.server);
        turn.has_more = self.streams.is_readable() || self.server.can_go_on();
        turn
    }

    fn accept(&mut self, now: Instant, arrival: Arrival) {
        match self.server.accept(now, arrival.connection) {
            Some(key) => self.streams.admit(arrival.connection, key),
            None => self.streams.net_mut().close(arrival.connection),
        }
    }
}
