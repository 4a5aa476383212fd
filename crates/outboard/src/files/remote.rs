//! The card as the commands reach it.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use ob_files_host::{
    AsPath, Endpoint, Error, GroupOptions, NodeInfo, NodeKind, PathError, Pending, RingSizes, Session,
    SessionOptions,
};

use super::error::FilesError;
use crate::cli::ConfigOptions;
use crate::config::{Config, LinkKind};
use crate::random;

/// How long a command waits for a card that died to come back: a supervisor starts it again in less.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// How often a command looks whether a card is back.
const PAUSE: Duration = Duration::from_millis(50);
/// How often a command begins again because the card died.
pub(super) const LIVES_MAX: u64 = 5;
/// Bytes of one transfer.
pub(super) const CHUNK: usize = 1 << 20;
/// Transfers on their way at once.
pub(super) const DEPTH: usize = 8;
/// Requests about names on their way at once.
const NAMES_DEPTH: usize = 64;

/// What goes through the rings, which take the card's time to make: no larger than they must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Traffic {
    /// Names, sizes, space.
    Names,
    /// Names and the bytes of files, to the card.
    Writes,
    /// Names and the bytes of files, from the card.
    Reads,
}

impl Traffic {
    fn group(self) -> GroupOptions {
        // What one request may move is bounded by the ring for responses, for writes too.
        let bulk = match self {
            Self::Names => RingSizes::both(64 << 10),
            Self::Writes => RingSizes { requests: 8 << 20, responses: 4 << 20 },
            Self::Reads => RingSizes { requests: 64 << 10, responses: 16 << 20 },
        };
        GroupOptions::polled().outstanding(2 * NAMES_DEPTH).small(RingSizes::both(256 << 10)).bulk(bulk)
    }
}

/// A card, and what to say when it does not answer.
pub(super) struct Remote {
    pub(super) session: Session,
    /// What a command needs to reach the same card.
    options: String,
}

impl Remote {
    /// Attaches to the card that the configuration names.
    pub(super) fn open(options: &ConfigOptions, traffic: Traffic) -> Result<Self, FilesError> {
        let config = options.load()?;
        let host = config.host();
        let endpoint = match host.link.kind {
            LinkKind::Shm | LinkKind::Model => Endpoint::Unix(host.link.socket.clone()),
            LinkKind::Tcp => Endpoint::Tcp(host.link.card),
        };
        let flags = config.card().command_options();
        let mut session = SessionOptions::new(endpoint).patience(PATIENCE).group(traffic.group());
        session.name = "outboard files".to_owned();
        session.dead_after = host.link.dead_after.0;
        let session = open_session(&session).map_err(|error| no_card(&config, &flags, &error))?;
        Ok(Self { session, options: flags })
    }

    /// Waits until the card answers: its next life, or the same one if it only closed the group.
    pub(super) fn wait_for_card(&self) -> bool {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            match self.session.space().wait() {
                // The session may not have noticed yet.
                Err(Error::CardGone) => std::thread::sleep(PAUSE),
                Err(Error::Detached) => return false,
                _ => return true,
            }
        }
        false
    }

    /// What stands behind a path; none if nothing does.
    pub(super) fn find(&self, path: &RemotePath) -> Result<Option<NodeInfo>, FilesError> {
        match self.session.stat(path).wait() {
            Ok(node) => Ok(Some(node)),
            Err(Error::NotFound | Error::NotADirectory) => Ok(None),
            Err(error) => Err(self.error("look at", path, error)),
        }
    }

    pub(super) fn is_directory(&self, path: &RemotePath) -> Result<bool, FilesError> {
        Ok(self.find(path)?.is_some_and(|node| node.kind == NodeKind::Directory))
    }

    /// Where something of this name goes: into the directory that the path is, or to the path itself.
    pub(super) fn destination(&self, path: RemotePath, name: &[u8]) -> Result<RemotePath, FilesError> {
        if path.wants_directory || self.is_directory(&path)? { Ok(path.join(name)) } else { Ok(path) }
    }

    /// Makes a directory and those that it is in, as far as they are missing.
    pub(super) fn make_directories(&self, path: &RemotePath) -> Result<(), FilesError> {
        for directory in path.way() {
            match self.session.make_directory(&directory).wait() {
                Ok(_) => {}
                Err(Error::Exists) if self.is_directory(&directory)? => {}
                Err(error @ (Error::Exists | Error::NotADirectory)) => {
                    let hint = "a file has this name; give another, or move the file away";
                    return Err(FilesError::remote("make the directory", &directory, error, hint));
                }
                Err(error) => return Err(self.error("make the directory", &directory, error)),
            }
        }
        Ok(())
    }

    /// Makes everything durable that the command did.
    pub(super) fn flush(&self) -> Result<(), FilesError> {
        self.session.flush().wait().map_err(|source| FilesError::Remote {
            action: "make durable",
            path: "what was done".to_owned(),
            hint: self.hint(&source),
            source,
        })
    }

    pub(super) fn error(&self, action: &'static str, path: &RemotePath, source: Error) -> FilesError {
        self.error_about(action, path.to_string(), source)
    }

    /// The same about several paths.
    pub(super) fn error_about(&self, action: &'static str, path: String, source: Error) -> FilesError {
        FilesError::Remote { action, path, hint: self.hint(&source), source }
    }

    fn hint(&self, error: &Error) -> Option<String> {
        let options = &self.options;
        match error {
            Error::NotFound => Some(format!("`outboard files ls DIRECTORY{options}` shows what there is")),
            Error::NoSpace => Some(format!(
                "`outboard files df -h{options}` shows the space, `outboard files rm` makes room"
            )),
            Error::InUse => Some(
                "`outboard namespace list` shows which; `outboard namespace rm` lets the file go".to_owned(),
            ),
            Error::ReadOnly | Error::Io => Some("`outboard status` and the card's log tell more".to_owned()),
            Error::Path(PathError::Name(_)) => Some(
                "a path has the names of all directories from the root on, such as /backups/2026".to_owned(),
            ),
            Error::Path(PathError::Root) => {
                Some(format!("name what is in it: `outboard files ls /{options}` shows that"))
            }
            Error::CardGone => {
                Some(format!("look with `outboard files ls{options}`, and run the command again if need be"))
            }
            Error::Detached => Some(format!(
                "the card has not come back within {} s; start it with `outboard up{options}`, and try again",
                PATIENCE.as_secs()
            )),
            _ => None,
        }
    }
}

/// Attaches. A card that was there a moment ago is waited for: it may be on its way back.
fn open_session(options: &SessionOptions) -> Result<Session, Error> {
    // A card that stops in order takes its socket with it; one that died leaves it.
    let may_come = match &options.endpoint {
        Endpoint::Unix(socket) => socket.exists(),
        Endpoint::Tcp(_) => true,
    };
    let started = Instant::now();
    let bar = ProgressBar::new_spinner().with_message("waiting for the card");
    let opened = loop {
        match Session::open(options.clone()) {
            Err(error) if may_come && nobody_answers(&error) && started.elapsed() < PATIENCE => {
                bar.tick();
                std::thread::sleep(PAUSE);
            }
            opened => break opened,
        }
    };
    bar.finish_and_clear();
    opened
}

/// Whether there was no card, rather than one that said no.
fn nobody_answers(error: &Error) -> bool {
    match error {
        Error::Attach(reason) => !reason.starts_with("the card refused"),
        error => is_gone(error),
    }
}

fn no_card(config: &Config, options: &str, error: &Error) -> FilesError {
    let reason = match error {
        Error::Attach(reason) => reason.clone(),
        Error::CardGone | Error::Detached => "the card died while this command attached to it".to_owned(),
        other => format!("cannot reach the card: {other}"),
    };
    let place = match config.link.kind {
        LinkKind::Shm | LinkKind::Model => {
            "if its data are elsewhere, name the place with --data DIR or --config FILE"
        }
        LinkKind::Tcp => "`[link] card` in the configuration says where it is looked for",
    };
    FilesError::NoCard { reason, hint: format!("start it with `outboard up{options}`; {place}") }
}

/// Whether the card went away, rather than said no.
pub(super) fn is_gone(error: &Error) -> bool {
    matches!(error, Error::CardGone | Error::Detached)
}

/// A path on the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemotePath {
    /// Names with one slash between them; the root is no bytes.
    bytes: Vec<u8>,
    /// It was written with a slash at its end, or is the root.
    pub(super) wants_directory: bool,
}

impl RemotePath {
    pub(super) fn new(text: &OsStr) -> Self {
        let written = text.as_bytes();
        let names: Vec<&[u8]> = written.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        let wants_directory = names.is_empty() || written.ends_with(b"/");
        Self { bytes: names.join(&b'/'), wants_directory }
    }

    pub(super) fn is_root(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The last name; none of the root.
    pub(super) fn name(&self) -> Option<&[u8]> {
        self.bytes.rsplit(|byte| *byte == b'/').next().filter(|name| !name.is_empty())
    }

    /// The directory that it is in; the root is in itself.
    pub(super) fn parent(&self) -> Self {
        let end = self.bytes.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        Self { bytes: self.bytes[..end].to_vec(), wants_directory: true }
    }

    pub(super) fn join(&self, name: &[u8]) -> Self {
        let mut bytes = self.bytes.clone();
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        Self { bytes, wants_directory: false }
    }

    /// The directories on the way to it and it itself, without the root.
    fn way(&self) -> impl Iterator<Item = Self> {
        let slashes = self.bytes.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let ends = slashes.chain((!self.is_root()).then_some(self.bytes.len()));
        ends.map(|end| Self { bytes: self.bytes[..end].to_vec(), wants_directory: true })
    }
}

impl AsPath for RemotePath {
    fn path_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl fmt::Display for RemotePath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "/{}", readable(&self.bytes))
    }
}

/// A name for people: what a terminal would obey is shown as an escape, and what is no text is replaced.
pub(super) fn readable(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// A name that nobody else has: for a file that is not finished yet.
pub(crate) fn unfinished_name(purpose: &str) -> std::io::Result<String> {
    Ok(format!(".outboard-{purpose}-{:016x}", u64::from_ne_bytes(random::bytes()?)))
}

/// A bar for so many bytes, if that is known. Only a terminal shows it.
pub(crate) fn transfer_bar(bytes: Option<u64>, what: &str) -> ProgressBar {
    let bar = bytes.map_or_else(ProgressBar::no_length, ProgressBar::new);
    let template = match bytes {
        Some(_) => "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        None => "{msg} {spinner} {bytes} {bytes_per_sec}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.with_message(what.to_owned())
}

/// Many requests about names, so many of them on their way at once. The first error is kept.
pub(super) struct Crowd<T> {
    out: VecDeque<(RemotePath, Pending<Result<T, Error>>)>,
    failed: Option<(RemotePath, Error)>,
}

impl<T> Crowd<T> {
    pub(super) fn new() -> Self {
        Self { out: VecDeque::new(), failed: None }
    }

    pub(super) fn add(&mut self, path: RemotePath, pending: Pending<Result<T, Error>>) {
        self.out.push_back((path, pending));
        if self.out.len() >= NAMES_DEPTH {
            self.take_first();
        }
    }

    fn take_first(&mut self) {
        if let Some((path, pending)) = self.out.pop_front()
            && let Err(error) = pending.wait()
            && self.failed.is_none()
        {
            self.failed = Some((path, error));
        }
    }

    /// Waits for all of them.
    pub(super) fn finish(mut self) -> Result<(), (RemotePath, Error)> {
        while !self.out.is_empty() {
            self.take_first();
        }
        self.failed.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> RemotePath {
        RemotePath::new(OsStr::new(text))
    }

    #[test]
    fn paths_are_the_same_however_they_are_written() {
        for text in ["a/b", "/a/b", "//a//b"] {
            assert_eq!(path(text), path("/a/b"));
            assert_eq!(path(text).to_string(), "/a/b");
        }
        assert!(path("/a/b/").wants_directory && !path("a").wants_directory);
        for root in ["", "/", "//"] {
            assert!(path(root).is_root() && path(root).wants_directory);
            assert_eq!((path(root).name(), path(root).parent().is_root()), (None, true));
        }
    }

    #[test]
    fn paths_are_cut_and_joined_at_names() {
        let long = path("a/b/c");
        assert_eq!(long.name(), Some(&b"c"[..]));
        assert_eq!(long.parent().to_string(), "/a/b");
        assert_eq!(path("a").parent().to_string(), "/");
        assert_eq!(path("/").join(b"x").to_string(), "/x");
        assert_eq!(long.join(b"x").to_string(), "/a/b/c/x");
        let way: Vec<String> = long.way().map(|path| path.to_string()).collect();
        assert_eq!(way, ["/a", "/a/b", "/a/b/c"]);
        assert_eq!(path("/").way().count(), 0);
    }

    #[test]
    fn names_cannot_drive_a_terminal() {
        assert_eq!(readable("né w".as_bytes()), "né w");
        assert_eq!(readable(b"a\x1b[31m\n"), "a\\u{1b}[31m\\n");
        assert_eq!(readable(b"\xff"), "\u{fffd}");
    }
}
