//! `outboard files put`: a local file becomes a file on the card, whole and durable, or not at all.
//!
//! ```text
//!   create under another name ─▶ write ─▶ flush ─▶ rename ─▶ flush
//!        ▲                                                     │
//!        └── the card died, and came back: begin again ◀───────┘
//! ```
//!
//! A write that is answered outlives the card's process, but a loss of power may take it back until a flush is answered.
//! From here the two look the same, so a flush of another life of the card proves nothing about earlier writes: unless
//! all steps were answered in one attachment, everything is done again.

use std::collections::VecDeque;
use std::fs::File as LocalFile;
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use indicatif::ProgressBar;
use ob_files_host::{Error, Fault, File, OpenOptions};

use super::command::PutOptions;
use super::error::FilesError;
use super::remote::{
    CHUNK, DEPTH, LIVES_MAX, PATIENCE, Remote, RemotePath, Traffic, is_gone, readable, transfer_bar,
    unfinished_name,
};

const UNCHANGED: &str = "run the command again; nothing has changed under this name";
const MAYBE_REPLACED: &str =
    "run the command again; all was written, but whether it has this name for good is not known";

/// Why storing ended early.
enum Ended {
    /// The card went away; the same may work with its next life.
    CardGone {
        /// Whether the file may have its name already.
        renamed: bool,
    },
    Failed(FilesError),
}

/// What is stored.
struct Source {
    bytes: Box<dyn Read>,
    /// The same file, if it can be read again.
    again: Option<LocalFile>,
    len: Option<u64>,
}

pub(super) fn put(options: &PutOptions) -> Result<(), FilesError> {
    let mut source = open_source(&options.local)?;
    let remote = Remote::open(&options.config, Traffic::Writes)?;
    let target = target(&remote, options)?;
    if options.parents {
        remote.make_directories(&target.parent())?;
    }
    let bar = transfer_bar(source.len, &readable(target.name().unwrap_or_default()));
    let stored = store_in_one_life(&remote, &target, &mut source, options, &bar);
    bar.finish_and_clear();
    stored
}

fn store_in_one_life(
    remote: &Remote,
    target: &RemotePath,
    source: &mut Source,
    options: &PutOptions,
    bar: &ProgressBar,
) -> Result<(), FilesError> {
    let interrupted = |why: String, hint| {
        Err(FilesError::Interrupted { action: "store", path: target.to_string(), why, hint })
    };
    let mut may_have_name = false;
    for _ in 0..LIVES_MAX {
        match store(remote, target, source, options, bar) {
            Ok(()) => return Ok(()),
            Err(Ended::Failed(error)) => return Err(error),
            Err(Ended::CardGone { renamed }) => may_have_name |= renamed,
        }
        let Some(file) = &mut source.again else {
            let why = "the card died meanwhile, and standard input cannot be read twice".to_owned();
            return interrupted(why, if may_have_name { MAYBE_REPLACED } else { UNCHANGED });
        };
        if !remote.wait_for_card() {
            return Err(not_back(target));
        }
        bar.println("the card went away and came back: beginning again");
        bar.set_position(0);
        let rewound = file.rewind().and_then(|()| file.try_clone());
        source.bytes = Box::new(rewound.map_err(FilesError::local("read again", &options.local, None))?);
    }
    interrupted(format!("the card died {LIVES_MAX} times"), "`outboard status` and the card's log tell more")
}

fn not_back(target: &RemotePath) -> FilesError {
    FilesError::Interrupted {
        action: "store",
        path: target.to_string(),
        why: format!("the card died, and has not come back within {} s", PATIENCE.as_secs()),
        hint: "start it with `outboard up`, and run the command again",
    }
}

fn open_source(path: &Path) -> Result<Source, FilesError> {
    if path.as_os_str() == "-" {
        return Ok(Source { bytes: Box::new(io::stdin()), again: None, len: None });
    }
    let hint = Some("`-` is standard input; `--` goes before names that begin with a dash");
    let file = LocalFile::open(path).map_err(FilesError::local("read", path, hint))?;
    let metadata = file.metadata().map_err(FilesError::local("look at", path, None))?;
    if metadata.is_dir() {
        let hint = "put its files one by one, or as one: tar c DIRECTORY | outboard files put - /NAME.tar";
        return Err(FilesError::local_because("read", path, "this is a directory", hint));
    }
    let (again, len) = if metadata.is_file() {
        let clone = file.try_clone().map_err(FilesError::local("read", path, None))?;
        (Some(clone), Some(metadata.len()))
    } else {
        (None, None)
    };
    Ok(Source { bytes: Box::new(file), again, len })
}

/// Where the file goes.
fn target(remote: &Remote, options: &PutOptions) -> Result<RemotePath, FilesError> {
    let path = RemotePath::new(&options.remote);
    let name = options.local.file_name().filter(|_| options.local.as_os_str() != "-");
    match name {
        Some(name) => remote.destination(path, name.as_bytes()),
        None if path.wants_directory || remote.is_directory(&path)? => Err(FilesError::Request {
            problem: format!("{path} is a directory, and what is read has no name"),
            hint: "give the name too, such as /NAME",
        }),
        None => Ok(path),
    }
}

/// Stores the file under another name, and gives it its own when it is durable.
fn store(
    remote: &Remote,
    target: &RemotePath,
    source: &mut Source,
    options: &PutOptions,
    bar: &ProgressBar,
) -> Result<(), Ended> {
    let life = remote.session.attachments();
    let unfinished =
        target.parent().join(unfinished_name("put").map_err(|error| Ended::Failed(error.into()))?.as_bytes());
    let session = &remote.session;
    let failed = |error: Error| explain(remote, target, error);
    let gone = |renamed| Err(Ended::CardGone { renamed });
    let open = session.open_file(&unfinished, OpenOptions::new().create_new(true));
    let file = open.wait().map_err(failed)?;
    let stored = write_all(&file, source, options, bar)
        .map_err(|error| error.unwrap_or_else(failed))
        .and_then(|()| session.flush().wait().map_err(failed))
        .and_then(|()| if session.attachments() == life { Ok(()) } else { gone(false) })
        .and_then(|()| match session.rename(&unfinished, target).wait() {
            // It was sent, and not answered.
            Err(Error::CardGone) => gone(true),
            renamed => renamed.map_err(failed),
        });
    if let Err(ended) = stored {
        // This waits for a card that died. If it fails, a file with a telling name is left behind.
        let removed = session.remove_file(&unfinished).wait();
        let is_lost = matches!((&ended, removed), (Ended::CardGone { renamed: false }, Err(Error::Detached)));
        return Err(if is_lost { Ended::Failed(not_back(target)) } else { ended });
    }
    match session.flush().wait() {
        Ok(()) if session.attachments() == life => Ok(()),
        Err(error) if !is_gone(&error) => Err(failed(error)),
        _ => gone(true),
    }
}

fn explain(remote: &Remote, target: &RemotePath, error: Error) -> Ended {
    if is_gone(&error) {
        return Ended::CardGone { renamed: false };
    }
    let hint = match error {
        Error::NotFound => Some("-p makes directories that are missing"),
        Error::NotADirectory => Some("one of the directories on the way is a file"),
        Error::IsADirectory => Some("a directory has this name"),
        _ => None,
    };
    Ended::Failed(match hint {
        Some(hint) => FilesError::Remote {
            action: "store",
            path: target.to_string(),
            source: error,
            hint: Some(hint.to_owned()),
        },
        None => remote.error("store", target, error),
    })
}

/// What ended the writing: a local reason, or the card's.
enum WriteError {
    Local(FilesError),
    Remote(Error),
}

impl WriteError {
    fn unwrap_or_else(self, explain: impl FnOnce(Error) -> Ended) -> Ended {
        match self {
            Self::Local(error) => Ended::Failed(error),
            Self::Remote(error) => explain(error),
        }
    }
}

/// Writes everything that the source has, several large pieces at a time.
fn write_all(
    file: &File,
    source: &mut Source,
    options: &PutOptions,
    bar: &ProgressBar,
) -> Result<(), WriteError> {
    let mut out = VecDeque::with_capacity(DEPTH);
    let mut spare: Vec<Vec<u8>> = Vec::new();
    let (mut offset, mut ended) = (0, false);
    loop {
        while out.len() < DEPTH && !ended {
            let mut buffer = spare.pop().unwrap_or_default();
            buffer.resize(CHUNK, 0);
            let read = fill(&mut source.bytes, &mut buffer);
            let count =
                read.map_err(FilesError::local("read", &options.local, None)).map_err(WriteError::Local)?;
            ended = count < CHUNK;
            if count > 0 {
                buffer.truncate(count);
                out.push_back(file.write_at(buffer, offset));
                offset += count as u64;
            }
        }
        let Some(first) = out.pop_front() else { return Ok(()) };
        let (written, buffer) = first.wait();
        let written = written.map_err(WriteError::Remote)?;
        if written != buffer.len() {
            return Err(WriteError::Remote(Error::Protocol(Fault::Length)));
        }
        bar.inc(written as u64);
        spare.push(buffer);
    }
}

/// Fills the buffer, or as much of it as there is.
fn fill(source: &mut dyn Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
