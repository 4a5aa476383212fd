//! Administration of a running card, over a socket in the card's directory.
//!
//! ```text
//!   outboard namespace … ─┐   a line: the request, and bytes if it says so        ┌─▶ nvme: the thread that serves them
//!   outboard offload …   ─┼─▶ card/control.sock ─▶ a thread for each, some at once ┼─▶ programs
//!   outboard volume …    ─┘                                                        └─▶ volumes: the host decides
//!                         ◀── a line: the answer
//! ```
//!
//! Whoever may use the socket may change what the card serves: it belongs to the card's user alone.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::deadline::Until;
use crate::nvme::admin::AdminMessage;
use crate::programs::ProgramRequest;
use crate::volumes::VolumesRequest;

/// Bytes of a request's line at most.
const REQUEST_LEN_MAX: u64 = 64 << 10;
/// Bytes that can follow it.
const BODY_LEN_MAX: usize = ob_ebpf::elf::OBJECT_LEN_MAX;
/// Requests that are answered at once: one that waits for a device keeps those from nobody who only look.
const AT_ONCE_MAX: usize = 8;
/// How long a request may take to be heard, and its answer to be told.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long nobody is let in after that has failed: it goes on failing until descriptors are given back.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// What can be asked of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ControlRequest {
    /// About namespaces.
    Namespaces(AdminMessage),
    /// About programs.
    Programs(ProgramRequest),
    /// About volumes.
    Volumes(VolumesRequest),
}

impl ControlRequest {
    /// Bytes that follow the request.
    fn body_len(&self) -> usize {
        match self {
            Self::Programs(ProgramRequest::Load { len, .. }) => *len,
            Self::Programs(_) | Self::Namespaces(_) | Self::Volumes(_) => 0,
        }
    }
}

/// What a card answers, or why nothing was done.
pub(crate) type ControlAnswer = Result<serde_json::Value, String>;

/// Why a card could not be asked, or refused.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
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

/// The card's end of the socket.
pub(crate) struct ControlServer {
    path: PathBuf,
}

impl ControlServer {
    /// Listens, and has requests answered.
    pub(crate) fn start(
        path: &Path,
        answer: impl Fn(ControlRequest, Vec<u8>) -> ControlAnswer + Send + Sync + 'static,
    ) -> io::Result<Self> {
        // The card's directory is locked: what is there is of a card that is gone.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        let answer = Arc::new(answer);
        thread()
            .spawn(move || {
                for stream in listener.incoming() {
                    let stream = match stream {
                        Ok(stream) => stream,
                        Err(error) => {
                            tracing::warn!("the control socket cannot let anybody in: {error}");
                            std::thread::sleep(ACCEPT_PAUSE);
                            continue;
                        }
                    };
                    // This one, and those who answer.
                    if Arc::strong_count(&answer) > AT_ONCE_MAX {
                        refuse(&stream);
                        continue;
                    }
                    let answer = Arc::clone(&answer);
                    if let Err(error) = thread().spawn(move || answer_one(&stream, &*answer)) {
                        tracing::warn!("a request of the control socket is not answered: {error}");
                    }
                }
            })
            .map(|_| Self { path: path.to_owned() })
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn thread() -> std::thread::Builder {
    std::thread::Builder::new().name("control".to_owned())
}

/// Sends away who cannot be answered now. Nothing is heard of it, so that nobody can keep others from the door.
fn refuse(stream: &UnixStream) {
    let refused: ControlAnswer =
        Err(format!("the card answers {AT_ONCE_MAX} requests at once, and has so many\nhint: try again"));
    // A line finds room in a socket that is empty.
    let _ = stream.set_nonblocking(true).and_then(|()| tell(stream, &refused));
}

fn answer_one(stream: &UnixStream, answer: impl Fn(ControlRequest, Vec<u8>) -> ControlAnswer) {
    if let Err(error) = serve(stream, answer) {
        tracing::debug!("a request of the control socket failed: {error}");
    }
}

fn serve(stream: &UnixStream, answer: impl Fn(ControlRequest, Vec<u8>) -> ControlAnswer) -> io::Result<()> {
    let answer = match hear(Until::new(stream, PATIENCE))? {
        Ok((request, body)) => answer(request, body),
        Err(why) => {
            Err(format!("this is not a request: {why}\nhint: are card and command of the same version?"))
        }
    };
    tell(Until::new(stream, PATIENCE), &answer)
}

fn tell(mut stream: impl Write, answer: &ControlAnswer) -> io::Result<()> {
    let mut text = serde_json::to_string(answer)?;
    text.push('\n');
    stream.write_all(text.as_bytes())
}

/// A request and what follows it, or what is wrong with it.
fn hear(stream: impl Read) -> io::Result<Result<(ControlRequest, Vec<u8>), String>> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    (&mut reader).take(REQUEST_LEN_MAX).read_line(&mut line)?;
    let request: ControlRequest = match serde_json::from_str(&line) {
        Ok(request) => request,
        Err(error) => return Ok(Err(error.to_string())),
    };
    let len = request.body_len();
    if len > BODY_LEN_MAX {
        return Ok(Err(format!("{len} bytes are to follow, and {BODY_LEN_MAX} is the most")));
    }
    let mut body = Vec::new();
    reader.take(len as u64).read_to_end(&mut body)?;
    if body.len() < len {
        return Ok(Err(format!("{len} bytes were to follow, and {} came", body.len())));
    }
    Ok(Ok((request, body)))
}

/// Asks the card at this socket.
pub(crate) fn ask<T: DeserializeOwned>(
    path: &Path,
    request: &ControlRequest,
    body: &[u8],
) -> Result<T, ControlError> {
    let asked = || -> io::Result<String> {
        let stream = UnixStream::connect(path)?;
        let mut stream = Until::new(&stream, PATIENCE * 2);
        let mut text = serde_json::to_string(request)?;
        text.push('\n');
        // A card that refuses does not hear all of it, and says why.
        let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.write_all(body));
        let mut line = String::new();
        match BufReader::new(stream).read_line(&mut line)? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended before it had answered")),
            _ => Ok(line),
        }
    };
    let line = asked().map_err(|source| ControlError::Unreachable { path: path.to_owned(), source })?;
    let answer: Result<T, String> = serde_json::from_str(&line).map_err(ControlError::Answer)?;
    answer.map_err(ControlError::Refused)
}

/// An answer as it is sent.
pub(crate) fn answer_of<T: Serialize>(answer: Result<T, String>) -> ControlAnswer {
    answer.and_then(|facts| serde_json::to_value(facts).map_err(|error| error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(len: usize) -> ControlRequest {
        ControlRequest::Programs(ProgramRequest::Load { name: "a".to_owned(), len })
    }

    #[test]
    fn requests_are_heard_with_what_follows_them_and_answered() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control.sock");
        let server = ControlServer::start(&path, |request, body| match request {
            ControlRequest::Programs(ProgramRequest::Load { .. }) => answer_of(Ok(body)),
            _ => Err("no".to_owned()),
        })
        .unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let long = vec![7; 1 << 20];
        assert_eq!(ask::<Vec<u8>>(&path, &load(long.len()), &long).unwrap(), long);
        assert_eq!(ask::<Vec<u8>>(&path, &load(2), b"abc").unwrap(), b"ab", "what is beyond is not heard");
        let refused = ask::<Vec<u8>>(&path, &ControlRequest::Programs(ProgramRequest::List), &[]);
        assert!(matches!(refused, Err(ControlError::Refused(why)) if why == "no"));
        let too_long = ask::<Vec<u8>>(&path, &load(BODY_LEN_MAX + 1), &[]);
        assert!(matches!(too_long, Err(ControlError::Refused(why)) if why.contains("is the most")));
        drop(server);
        assert!(matches!(ask::<Vec<u8>>(&path, &load(0), &[]), Err(ControlError::Unreachable { .. })));
    }

    #[test]
    fn who_only_looks_does_not_wait_for_who_changes() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control.sock");
        let gate = Arc::new(std::sync::Barrier::new(2));
        let for_server = Arc::clone(&gate);
        let _server = ControlServer::start(&path, move |request, _| match request {
            ControlRequest::Programs(ProgramRequest::List) => answer_of(Ok("looked")),
            _ => {
                for_server.wait();
                for_server.wait();
                answer_of(Ok("changed"))
            }
        })
        .unwrap();
        std::thread::scope(|scope| {
            let changing = scope.spawn(|| ask::<String>(&path, &load(0), &[]).unwrap());
            gate.wait();
            let look = ControlRequest::Programs(ProgramRequest::List);
            assert_eq!(ask::<String>(&path, &look, &[]).unwrap(), "looked");
            gate.wait();
            assert_eq!(changing.join().unwrap(), "changed");
        });
    }

    #[test]
    fn who_says_nothing_keeps_nobody_from_being_told() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control.sock");
        let _server = ControlServer::start(&path, |_, _| answer_of(Ok("answered"))).unwrap();
        let silent: Vec<UnixStream> = (0..AT_ONCE_MAX).map(|_| UnixStream::connect(&path).unwrap()).collect();
        // They were let in before.
        let refused = ask::<String>(&path, &load(0), &[]);
        assert!(
            matches!(&refused, Err(ControlError::Refused(why)) if why.contains("at once")),
            "{refused:?}"
        );
        drop(silent);
        // Their threads take a moment to notice.
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while let Err(error) = ask::<String>(&path, &load(0), &[]) {
            assert!(matches!(error, ControlError::Refused(_)), "{error:?}");
            assert!(std::time::Instant::now() < deadline, "who has gone still has its place");
        }
    }

    /// Or eight of them would keep everybody out for as long as they like.
    #[test]
    fn who_says_a_byte_at_a_time_is_not_heard_for_ever() {
        let request = serde_json::to_string(&load(1 << 16)).unwrap() + "\n";
        // With the line, and with what follows it.
        for at_once in ["", &request] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            (&theirs).write_all(at_once.as_bytes()).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    while (&theirs).write_all(b" ").is_ok() {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
                let heard = hear(Until::new(&ours, Duration::from_millis(50)));
                assert_eq!(heard.unwrap_err().kind(), io::ErrorKind::TimedOut);
                drop(ours);
            });
        }
    }

    #[test]
    fn a_card_that_dies_has_said_nothing_that_could_be_misunderstood() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask::<Vec<u8>>(&path, &load(0), &[]));
            let (stream, _) = listener.accept().unwrap();
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            drop(stream);
            let error = asking.join().unwrap().unwrap_err();
            assert!(error.to_string().contains("ended before it had answered\nhint: "), "{error}");
        });
    }

    #[test]
    fn nonsense_is_refused_and_the_card_goes_on() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control.sock");
        let _server = ControlServer::start(&path, |_, _| panic!("nobody asked anything")).unwrap();
        let negative = "{\"namespaces\":{\"request\":{\"add_namespace\":{\"size\":-1}}}}\n";
        for nonsense in
            ["\n", "{\n", negative, "[[[[[[\n", "{\"programs\":{\"load\":{\"name\":\"a\",\"len\":-1}}}\n"]
        {
            let stream = UnixStream::connect(&path).unwrap();
            (&stream).write_all(nonsense.as_bytes()).unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let answer: ControlAnswer = serde_json::from_str(&line).unwrap();
            let told = answer.unwrap_err();
            assert!(told.contains("not a request") && told.contains("\nhint: "), "{nonsense}: {told}");
        }
        let stream = UnixStream::connect(&path).unwrap();
        (&stream).write_all(b"{\"programs\":{\"load\":{\"name\":\"a\",\"len\":9}}}\nshort").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        assert!(line.contains("9 bytes were to follow, and 5 came"), "{line}");
    }
}
