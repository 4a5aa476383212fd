//! Administration of a running card: requests of one line, answers of one line, over a socket in the card's directory.
//!
//! ```text
//!   outboard namespace … ──▶ card/control.sock ──▶ a thread ──▶ queue ──▶ the reactor's loop ──▶ NvmeService::administer
//!                        ◀──────────────────────────────────── answer ◀─┘
//! ```
//!
//! Whoever may use the socket may change what the card serves: it belongs to the card's user alone.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Bytes of a request at most.
const REQUEST_LEN_MAX: u64 = 64 << 10;
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(30);
/// Requests that wait for the reactor.
const WAITING_MAX: usize = 16;

/// What can be asked of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AdminRequest {
    /// Tell the namespaces.
    ListNamespaces,
    /// Serve another one.
    AddNamespace {
        /// Its id; the lowest free one if none is given.
        nsid: Option<u32>,
        /// A path, or `memory`; a file in the card's directory if none is given.
        device: Option<PathBuf>,
        /// Bytes of a file or memory that is made.
        size: u64,
    },
    /// Serve one no more; its device stays.
    RemoveNamespace {
        /// Which.
        nsid: u32,
    },
    /// Make one larger or smaller.
    ResizeNamespace {
        /// Which.
        nsid: u32,
        /// Its new length in bytes.
        size: u64,
    },
}

/// A namespace, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceFacts {
    /// Its id.
    pub nsid: u32,
    /// Its UUID.
    pub uuid: String,
    /// What it lies on.
    pub device: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block_len: u32,
}

/// What a card answers: the namespaces as they are then, or why nothing was done.
pub type AdminAnswer = Result<Vec<NamespaceFacts>, String>;

/// Why a card could not be asked, or refused.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Nobody answers there.
    #[error("no card answers at {}: {source}\nhint: is it running? --data DIR and --config FILE say which", path.display())]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It answered nonsense.
    #[error("the card's answer cannot be understood: {0}\nhint: are card and command of the same version?")]
    Answer(serde_json::Error),
    /// It refused.
    #[error("{0}")]
    Refused(String),
}

/// A request, and where its answer goes.
pub(crate) struct AdminCall {
    pub(crate) request: AdminRequest,
    answer: SyncSender<AdminAnswer>,
}

impl AdminCall {
    pub(crate) fn answer(self, answer: AdminAnswer) {
        // Whoever asked may have gone meanwhile.
        let _ = self.answer.send(answer);
    }
}

/// The card's end of the socket.
pub(crate) struct AdminServer {
    calls: Receiver<AdminCall>,
    rung: Arc<AtomicBool>,
    path: PathBuf,
}

impl AdminServer {
    /// Listens; `wake` is called when there is something to take.
    pub(crate) fn start(path: &Path, wake: impl Fn() + Send + 'static) -> io::Result<Self> {
        // The card's directory is locked: what is there is of a card that is gone.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let (sender, calls) = sync_channel(WAITING_MAX);
        let rung = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&rung);
        std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                let served = serve(&stream, |call| {
                    let sent = sender.send(call).is_ok();
                    flag.store(true, Ordering::Release);
                    wake();
                    sent
                });
                if let Err(error) = served {
                    tracing::debug!("a request of the control socket failed: {error}");
                }
            }
        })?;
        Ok(Self { calls, rung, path: path.to_owned() })
    }

    /// The next request, if there is one.
    pub(crate) fn next(&self) -> Option<AdminCall> {
        if !self.rung.load(Ordering::Acquire) {
            return None;
        }
        let call = self.calls.try_recv().ok();
        if call.is_none() {
            self.rung.store(false, Ordering::Release);
            // One that came in between has set the flag before this, or rings after it.
            return self.calls.try_recv().ok();
        }
        call
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve(stream: &UnixStream, call: impl FnOnce(AdminCall) -> bool) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(REQUEST_LEN_MAX)).read_line(&mut line)?;
    let answer: AdminAnswer = match serde_json::from_str(&line) {
        Err(error) => Err(format!("this is not a request: {error}")),
        Ok(request) => {
            let (answer, answered) = sync_channel(1);
            let refused = || Err("the card is shutting down, or busy".to_owned());
            if call(AdminCall { request, answer }) {
                answered.recv_timeout(PATIENCE).unwrap_or_else(|_| refused())
            } else {
                refused()
            }
        }
    };
    let mut text = serde_json::to_string(&answer)?;
    text.push('\n');
    let mut stream = stream;
    stream.write_all(text.as_bytes())
}

/// Asks the card at this socket.
pub(crate) fn ask(path: &Path, request: &AdminRequest) -> Result<Vec<NamespaceFacts>, AdminError> {
    let asked = || -> io::Result<String> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE * 2))?;
        let mut text = serde_json::to_string(request)?;
        text.push('\n');
        (&stream).write_all(text.as_bytes())?;
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        Ok(line)
    };
    let line = asked().map_err(|source| AdminError::Unreachable { path: path.to_owned(), source })?;
    let answer: AdminAnswer = serde_json::from_str(&line).map_err(AdminError::Answer)?;
    answer.map_err(AdminError::Refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> NamespaceFacts {
        NamespaceFacts {
            nsid: 3,
            uuid: "0".repeat(32),
            device: "memory".to_owned(),
            size: 4096,
            block_len: 512,
        }
    }

    #[test]
    fn requests_reach_the_loop_and_answers_come_back() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control.sock");
        let (rang, rings) = sync_channel(16);
        let server = AdminServer::start(&path, move || _ = rang.send(())).unwrap();
        assert!(server.next().is_none());
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask(&path, &AdminRequest::RemoveNamespace { nsid: 3 }));
            rings.recv().unwrap();
            let call = server.next().unwrap();
            assert_eq!(call.request, AdminRequest::RemoveNamespace { nsid: 3 });
            call.answer(Ok(vec![facts()]));
            assert_eq!(asking.join().unwrap().unwrap(), [facts()]);
            let asking = scope.spawn(|| ask(&path, &AdminRequest::ListNamespaces));
            rings.recv().unwrap();
            server.next().unwrap().answer(Err("no".to_owned()));
            assert!(matches!(asking.join().unwrap(), Err(AdminError::Refused(why)) if why == "no"));
        });
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(server);
        assert!(matches!(ask(&path, &AdminRequest::ListNamespaces), Err(AdminError::Unreachable { .. })));
    }

    #[test]
    fn nonsense_is_refused_and_harms_nobody() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control.sock");
        let server = AdminServer::start(&path, || {}).unwrap();
        for nonsense in ["\n", "{\n", "{\"add_namespace\":{\"size\":-1}}\n", "[[[[[[\n"] {
            let stream = UnixStream::connect(&path).unwrap();
            (&stream).write_all(nonsense.as_bytes()).unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let answer: AdminAnswer = serde_json::from_str(&line).unwrap();
            assert!(answer.unwrap_err().contains("not a request"), "{nonsense}");
        }
        assert!(server.next().is_none());
    }
}
