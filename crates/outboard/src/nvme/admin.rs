//! Administration of a running card: requests of one line, answers of one line, over a socket in the card's directory.
//!
//! ```text
//!   outboard namespace … ──▶ card/control.sock ──▶ a thread ──▶ AdminOutbox ──▶ AdminInbox ──▶ the Shard that it is about
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
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
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

/// A request, and whose namespaces it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminMessage {
    /// The subsystem's name. Without one, all of them are listed, and the first is changed.
    #[serde(default)]
    pub subsystem: Option<String>,
    /// What is asked.
    pub request: AdminRequest,
}

/// A namespace, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceFacts {
    /// The name of its subsystem.
    pub subsystem: String,
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
    pub(crate) message: AdminMessage,
    answer: SyncSender<AdminAnswer>,
}

impl AdminCall {
    pub(crate) fn answer(self, answer: AdminAnswer) {
        // Whoever asked may have gone meanwhile.
        let _ = self.answer.send(answer);
    }
}

/// Where requests for one reactor thread go in.
pub(crate) struct AdminOutbox {
    calls: SyncSender<AdminCall>,
    rung: Arc<AtomicBool>,
    wake: Box<dyn Fn() + Send>,
}

impl AdminOutbox {
    /// Asks the thread, and waits for its answer.
    pub(crate) fn ask(&self, message: AdminMessage) -> AdminAnswer {
        let (answer, answered) = sync_channel(1);
        if self.calls.send(AdminCall { message, answer }).is_err() {
            return Err(ENDING.to_owned());
        }
        self.rung.store(true, Ordering::Release);
        (self.wake)();
        answered.recv_timeout(PATIENCE).unwrap_or_else(|error| Err(unanswered(error, PATIENCE)))
    }
}

/// What is told where the thread that was asked is gone.
const ENDING: &str = "the card is shutting down\n\
     hint: nothing more is done; ask again when it runs, which `outboard status` tells";

/// Why there is no answer.
fn unanswered(error: RecvTimeoutError, waited: Duration) -> String {
    match error {
        RecvTimeoutError::Disconnected => ENDING.to_owned(),
        RecvTimeoutError::Timeout => format!(
            "the card has not done it within {} seconds, and may do it yet\n\
             hint: `outboard namespace list` shows whether it has; the card's log tells what it waits for",
            waited.as_secs()
        ),
    }
}

/// Where the thread takes them out.
pub(crate) struct AdminInbox {
    calls: Receiver<AdminCall>,
    rung: Arc<AtomicBool>,
}

impl AdminInbox {
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

/// Both ends; `wake` is called when there is something to take.
pub(crate) fn mailbox(wake: impl Fn() + Send + 'static) -> (AdminOutbox, AdminInbox) {
    let (sender, calls) = sync_channel(WAITING_MAX);
    let rung = Arc::new(AtomicBool::new(false));
    let outbox = AdminOutbox { calls: sender, rung: Arc::clone(&rung), wake: Box::new(wake) };
    (outbox, AdminInbox { calls, rung })
}

/// The card's end of the socket.
pub(crate) struct AdminServer {
    path: PathBuf,
}

impl AdminServer {
    /// Listens, and has requests answered, one after the other.
    pub(crate) fn start(
        path: &Path,
        answer: impl Fn(AdminMessage) -> AdminAnswer + Send + 'static,
    ) -> io::Result<Self> {
        // The card's directory is locked: what is there is of a card that is gone.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { continue };
                if let Err(error) = serve(&stream, &answer) {
                    tracing::debug!("a request of the control socket failed: {error}");
                }
            }
        })?;
        Ok(Self { path: path.to_owned() })
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve(stream: &UnixStream, answer: impl Fn(AdminMessage) -> AdminAnswer) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(REQUEST_LEN_MAX)).read_line(&mut line)?;
    let answer: AdminAnswer = match serde_json::from_str(&line) {
        Err(error) => {
            Err(format!("this is not a request: {error}\nhint: are card and command of the same version?"))
        }
        Ok(message) => answer(message),
    };
    let mut text = serde_json::to_string(&answer)?;
    text.push('\n');
    let mut stream = stream;
    stream.write_all(text.as_bytes())
}

/// Asks the card at this socket.
pub(crate) fn ask(path: &Path, message: &AdminMessage) -> Result<Vec<NamespaceFacts>, AdminError> {
    let asked = || -> io::Result<String> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE * 2))?;
        let mut text = serde_json::to_string(message)?;
        text.push('\n');
        (&stream).write_all(text.as_bytes())?;
        let mut line = String::new();
        match BufReader::new(&stream).read_line(&mut line)? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended before it had answered")),
            _ => Ok(line),
        }
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
            subsystem: "nqn.2026-01.example:a".to_owned(),
            nsid: 3,
            uuid: "0".repeat(32),
            device: "memory".to_owned(),
            size: 4096,
            block_len: 512,
        }
    }

    fn message(request: AdminRequest) -> AdminMessage {
        AdminMessage { subsystem: None, request }
    }

    #[test]
    fn requests_reach_the_loop_and_answers_come_back() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control.sock");
        let (rang, rings) = sync_channel(16);
        let (outbox, inbox) = mailbox(move || _ = rang.send(()));
        let server = AdminServer::start(&path, move |message| outbox.ask(message)).unwrap();
        assert!(inbox.next().is_none());
        let removal = message(AdminRequest::RemoveNamespace { nsid: 3 });
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask(&path, &removal));
            rings.recv().unwrap();
            let call = inbox.next().unwrap();
            assert_eq!(call.message, removal);
            call.answer(Ok(vec![facts()]));
            assert_eq!(asking.join().unwrap().unwrap(), [facts()]);
            let asking = scope.spawn(|| ask(&path, &message(AdminRequest::ListNamespaces)));
            rings.recv().unwrap();
            inbox.next().unwrap().answer(Err("no".to_owned()));
            assert!(matches!(asking.join().unwrap(), Err(AdminError::Refused(why)) if why == "no"));
        });
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(server);
        let unheard = ask(&path, &message(AdminRequest::ListNamespaces));
        assert!(matches!(unheard, Err(AdminError::Unreachable { .. })));
    }

    #[test]
    fn who_gets_no_answer_is_told_what_that_means() {
        let list = move || message(AdminRequest::ListNamespaces);
        // A card that ends with the request taken, and one that has ended before.
        let (rang, rings) = sync_channel(16);
        let (outbox, inbox) = mailbox(move || _ = rang.send(()));
        let asking = std::thread::spawn(move || (outbox.ask(list()), outbox.ask(list())));
        rings.recv().unwrap();
        drop(inbox);
        assert_eq!(asking.join().unwrap(), (Err(ENDING.to_owned()), Err(ENDING.to_owned())));
        let late = unanswered(RecvTimeoutError::Timeout, PATIENCE);
        assert!(late.contains("30 seconds") && late.contains("\nhint: `outboard namespace list`"), "{late}");
        assert!(ENDING.contains("\nhint: "));
        // One that dies has said nothing, which is no answer that could be misunderstood.
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask(&path, &list()));
            let (stream, _) = listener.accept().unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            drop(stream);
            let error = asking.join().unwrap().unwrap_err();
            assert!(error.to_string().contains("ended before it had answered\nhint: "), "{error}");
        });
    }

    #[test]
    fn nonsense_is_refused_and_harms_nobody() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control.sock");
        let _server = AdminServer::start(&path, |_| panic!("nobody asked anything")).unwrap();
        for nonsense in ["\n", "{\n", "{\"request\":{\"add_namespace\":{\"size\":-1}}}\n", "[[[[[[\n"] {
            let stream = UnixStream::connect(&path).unwrap();
            (&stream).write_all(nonsense.as_bytes()).unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let answer: AdminAnswer = serde_json::from_str(&line).unwrap();
            let told = answer.unwrap_err();
            assert!(told.contains("not a request") && told.contains("\nhint: "), "{nonsense}: {told}");
        }
    }
}
