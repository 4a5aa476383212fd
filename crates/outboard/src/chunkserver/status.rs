//! How a chunk server is, told to whoever connects to a socket in its data directory.
//!
//! ```text
//!   outboard chunkserver status ─▶ chunks.sock ─▶ a thread ── asks, and wakes ──▶ the reactor's thread
//!                               ◀── a line of JSON ──┘ ◀──────── what it is like ─────────┘
//! ```
//!
//! Nothing is read from who connects, and a server that nobody asks is not woken. The socket is its user's alone.

use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use ob_format::volume::long_digits;
use ob_io::Waker;
use ob_volume::chunk::{ChunkServerFacts, ChunkServerHoldings, ServerState};
use serde::{Deserialize, Serialize};

use crate::deadline::Until;
use crate::terminal::{BAD, GOOD, HEADING, WARNING, bytes, counted, styled};

/// The socket, in the data directory.
const SOCKET: &str = "chunks.sock";
/// How long the server may take to say how it is, and who has asked to hear it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long nobody is let in after that has failed.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
const ANSWER_LEN_MAX: u64 = 4 << 20;

/// Why there is no status to show.
#[derive(Debug, thiserror::Error)]
pub enum ChunkServerStatusError {
    /// Nobody is there.
    #[error(
        "no chunk server answers at {}: {source}\n\
         hint: is it running? --data DIR and --config FILE say which; `outboard up --volumes` has its own in chunk-1, chunk-2 and chunk-3 of its data directory",
        path.display()
    )]
    NobodyThere {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What came is no status.
    #[error("what answers at {} is no chunk server: {reason}\nhint: are both of the same version?", path.display())]
    NoStatus {
        /// The socket.
        path: PathBuf,
        /// What was wrong.
        reason: String,
    },
}

/// What a chunk server is like.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ChunkServerStatus {
    /// `starting`, `serving` or `failed`.
    pub state: String,
    /// Who it is, in 16 digits, once that is known.
    pub id: Option<String>,
    /// Whose it is, if it is of a pool.
    pub pool: Option<String>,
    /// Which life of it.
    pub incarnation: u64,
    /// Where it listens.
    pub address: String,
    /// Networks that may connect.
    pub allow: Vec<String>,
    /// What fails together with it.
    pub domain: String,
    /// Bytes of its device.
    pub capacity: u64,
    /// Those that files have.
    pub used: u64,
    /// Those that chunks may still take.
    pub promised: u64,
    /// Those that are left.
    pub free: u64,
    /// Those of them that are kept for maintenance.
    pub reserve: u64,
    /// Segments of which it knows the epoch.
    pub segments: u64,
    /// Chunks that are written to.
    pub open: u64,
    /// Those that will not be, and are not sealed.
    pub stopped: u64,
    /// Replicas that are being made.
    pub filling: u64,
    /// Chunks that are complete.
    pub sealed: u64,
    /// Files that cannot be served.
    pub left_alone: u64,
    /// Connections that are open.
    pub connections: u64,
    /// Ports of tiers that are connected.
    pub tiers: Vec<ConnectedTier>,
    /// How often somebody has connected who may not.
    pub strangers: u64,
    /// Connections that were cut off.
    pub cut_off: u64,
    /// Appends and fills that were answered as durable.
    pub appends: u64,
    /// Bytes of their records.
    pub append_bytes: u64,
    /// Reads answered.
    pub reads: u64,
    /// Bytes that they gave.
    pub read_bytes: u64,
    /// Requests that were refused.
    pub refusals: u64,
}

/// A port of a tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ConnectedTier {
    /// Which tier.
    pub tier: String,
    /// Which of its ports.
    pub port: u32,
}

impl ChunkServerStatus {
    pub(super) fn new(facts: &ChunkServerFacts, holds: &ChunkServerHoldings) -> Self {
        let state = match facts.state {
            ServerState::Starting => "starting",
            ServerState::Serving => "serving",
            ServerState::Failed(_) => "failed",
        };
        let tiers = holds.tiers.iter();
        let tiers = tiers.map(|(tier, port)| ConnectedTier { tier: long_digits(tier.0), port: *port });
        Self {
            state: state.to_owned(),
            id: facts.server.map(|server| long_digits(server.0)),
            pool: facts.pool.map(|pool| pool.0.iter().map(|byte| format!("{byte:02x}")).collect()),
            incarnation: facts.incarnation.0,
            capacity: facts.capacity,
            used: holds.used,
            promised: holds.promised,
            free: facts.free,
            segments: holds.segments,
            open: holds.open,
            stopped: holds.stopped,
            filling: holds.filling,
            sealed: holds.sealed,
            left_alone: holds.left_alone,
            connections: facts.connections as u64,
            tiers: tiers.collect(),
            strangers: facts.counts.strangers,
            cut_off: facts.counts.cut_off,
            appends: facts.counts.appends,
            append_bytes: facts.counts.append_bytes,
            reads: facts.counts.reads,
            read_bytes: facts.counts.read_bytes,
            refusals: facts.counts.refusals,
            ..Self::default()
        }
    }
}

/// The socket's end at the reactor.
pub(super) struct StatusDoor {
    path: PathBuf,
    is_asked: Arc<AtomicBool>,
    tell: SyncSender<ChunkServerStatus>,
}

impl StatusDoor {
    /// Lets people ask. A server that cannot be asked serves all the same, and says so in its log.
    pub(super) fn open(directory: &Path, waker: Waker) -> Self {
        let (tell, told) = sync_channel(1);
        let door = Self { path: directory.join(SOCKET), is_asked: Arc::default(), tell };
        if let Err(error) = door.listen(waker, told) {
            tracing::warn!("nobody can ask how the chunk server is: {error}");
        }
        door
    }

    fn listen(&self, waker: Waker, told: Receiver<ChunkServerStatus>) -> io::Result<()> {
        // The directory is locked: what is there is of a server that is gone.
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&self.path)?;
        std::fs::set_permissions(&self.path, std::fs::Permissions::from_mode(0o600))?;
        let is_asked = Arc::clone(&self.is_asked);
        let ask = move || {
            // An answer that came too late is of no time that anybody asks about now.
            while told.try_recv().is_ok() {}
            is_asked.store(true, Ordering::Release);
            waker.wake();
            told.recv_timeout(PATIENCE).ok()
        };
        let answer_all = move || {
            for stream in listener.incoming() {
                let answered = stream.map(|stream| (ask(), stream));
                match answered {
                    Ok((Some(status), stream)) => {
                        if let Err(error) = answer_one(&stream, &status) {
                            tracing::debug!("a status was not heard: {error}");
                        }
                    }
                    // It ends, or its disk hangs.
                    Ok((None, _)) => {}
                    Err(error) => {
                        tracing::warn!("the status socket cannot let anybody in: {error}");
                        std::thread::sleep(ACCEPT_PAUSE);
                    }
                }
            }
        };
        std::thread::Builder::new().name("status".to_owned()).spawn(answer_all).map(drop)
    }

    /// Says how it is, if somebody has asked.
    pub(super) fn answer(&self, status: impl FnOnce() -> ChunkServerStatus) {
        if self.is_asked.load(Ordering::Relaxed) && self.is_asked.swap(false, Ordering::Acquire) {
            // One that is there already is as good.
            let _ = self.tell.try_send(status());
        }
    }
}

impl Drop for StatusDoor {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn answer_one(stream: &UnixStream, status: &ChunkServerStatus) -> io::Result<()> {
    let mut text = serde_json::to_string(status)?;
    text.push('\n');
    Until::new(stream, PATIENCE).write_all(text.as_bytes())
}

/// Asks the chunk server of a data directory.
pub(super) fn ask(directory: &Path) -> Result<ChunkServerStatus, ChunkServerStatusError> {
    let path = directory.join(SOCKET);
    let asked = || -> io::Result<String> {
        let stream = UnixStream::connect(&path)?;
        let mut text = String::new();
        Until::new(&stream, PATIENCE * 2).take(ANSWER_LEN_MAX).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = match asked() {
        Ok(text) => text,
        Err(source) => return Err(ChunkServerStatusError::NobodyThere { path, source }),
    };
    serde_json::from_str(&text).map_err(|error| {
        let reason = if text.is_empty() { "it says nothing".to_owned() } else { error.to_string() };
        ChunkServerStatusError::NoStatus { path, reason }
    })
}

/// The whole status as text, several lines without a last line's end.
pub(super) fn show(status: &ChunkServerStatus) -> String {
    let state = match status.state.as_str() {
        "serving" => styled(GOOD, &status.state),
        "starting" => styled(WARNING, &status.state),
        _ => styled(BAD, &status.state),
    };
    let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "none yet".to_owned());
    let tiers: Vec<String> =
        status.tiers.iter().map(|of| format!("{} (port {})", of.tier, of.port)).collect();
    let tiers = if tiers.is_empty() { "none is connected".to_owned() } else { tiers.join(", ") };
    format!(
        "{} {state}\n  id         {}, of pool {}\n  listens    on {}, for {}\n  domain     {}\n  \
         space      {} free of {}, {} used, {} promised; {} are kept for maintenance\n  \
         chunks     {} open, {} stopped, {} filling, {} sealed, {} that cannot be served; of {}\n  \
         tiers      {tiers}\n  \
         network    {}, {} cut off, {} who may not connect\n  \
         appends    {} ({})\n  reads      {} ({})\n  refused    {}",
        styled(HEADING, "chunk server:"),
        or_none(&status.id),
        or_none(&status.pool),
        status.address,
        status.allow.join(", "),
        if status.domain.is_empty() { "none" } else { &status.domain },
        bytes(status.free),
        bytes(status.capacity),
        bytes(status.used),
        bytes(status.promised),
        bytes(status.reserve),
        status.open,
        status.stopped,
        status.filling,
        status.sealed,
        status.left_alone,
        counted(status.segments, "segment", "segments"),
        counted(status.connections, "connection", "connections"),
        status.cut_off,
        status.strangers,
        status.appends,
        bytes(status.append_bytes),
        status.reads,
        bytes(status.read_bytes),
        status.refusals,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_shown_with_all_that_it_says() {
        let tier = ConnectedTier { tier: "00000000000000ab".to_owned(), port: 0 };
        let status = ChunkServerStatus {
            state: "serving".to_owned(),
            id: Some("00000000000000cd".to_owned()),
            address: "10.0.0.4:4440".to_owned(),
            allow: vec!["10.0.0.0/24".to_owned()],
            domain: "rack-7".to_owned(),
            capacity: 16 << 30,
            free: 5 << 30,
            reserve: 1 << 30,
            sealed: 77,
            tiers: vec![tier],
            strangers: 3,
            ..ChunkServerStatus::default()
        };
        let text = show(&status);
        for part in [
            "serving",
            "00000000000000cd, of pool none yet",
            "on 10.0.0.4:4440, for 10.0.0.0/24",
            "rack-7",
            "5.0 GiB free of 16.0 GiB",
            "1.0 GiB are kept",
            "77 sealed",
            "00000000000000ab (port 0)",
            "3 who may not connect",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = show(&ChunkServerStatus::default());
        assert!(text.contains("none is connected") && text.contains("domain     none"), "{text}");
    }

    #[test]
    fn where_nobody_is_it_says_what_to_do() {
        let place = tempfile::tempdir().unwrap();
        let error = ask(place.path()).unwrap_err();
        assert!(matches!(error, ChunkServerStatusError::NobodyThere { .. }));
        assert!(error.to_string().contains("hint: is it running?"), "{error}");
        // Somebody else, who says something else, or nothing.
        for said in ["", "SSH-2.0-x\n", "{}\n"] {
            let path = place.path().join(SOCKET);
            let listener = UnixListener::bind(&path).unwrap();
            let talks = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(said.as_bytes()).unwrap();
            });
            let error = ask(place.path()).unwrap_err();
            assert!(matches!(error, ChunkServerStatusError::NoStatus { .. }), "{said}: {error}");
            talks.join().unwrap();
            std::fs::remove_file(path).unwrap();
        }
    }
}
