//! `outboard files get`: a file on the card becomes a local one.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{File as LocalFile, FileType};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use ob_files_host::{Error, File, NodeKind, OpenOptions};

use super::command::GetOptions;
use super::device::put_or_replace;
use super::error::FilesError;
use super::remote::{
    CHUNK, DEPTH, LIVES_MAX, Remote, RemotePath, Traffic, readable, transfer_bar, unfinished_name,
};

const TAKEN: &str = "--force replaces it";
const NO_DIRECTORY: &str = "there is no such directory";
const MAKE_DIRECTORY: &str = "make the directory first";

/// Where the bytes go.
enum Target {
    /// To whoever reads this process's output.
    Output,
    /// Into something that is no file, as it is: a pipe, a terminal, a device.
    Through(PathBuf),
    /// To a file of this name.
    File(PathBuf),
}

pub(super) fn get(options: &GetOptions) -> Result<(), FilesError> {
    let remote = Remote::open(&options.config, Traffic::Reads)?;
    let path = RemotePath::new(&options.remote);
    let node = remote.session.stat(&path).wait().map_err(|error| remote.error("fetch", &path, error))?;
    if node.kind == NodeKind::Directory {
        return Err(FilesError::Remote {
            action: "fetch",
            path: path.to_string(),
            source: Error::IsADirectory,
            hint: Some("fetch its files one by one; `outboard files ls` shows them".to_owned()),
        });
    }
    let target = target(&path, options)?;
    let file = remote.session.open_file(&path, OpenOptions::new()).wait();
    let file = file.map_err(|error| remote.error("fetch", &path, error))?;
    let bar = transfer_bar(Some(node.size), &readable(path.name().unwrap_or_default()));
    let fetch = Fetch { remote: &remote, path: &path, file: &file, size: node.size, bar: &bar };
    let fetched = match &target {
        Target::Output => fetch.copy_to(&mut io::stdout().lock(), None),
        Target::Through(local) => {
            let opened = std::fs::OpenOptions::new().write(true).open(local);
            let mut opened = opened.map_err(FilesError::local("write to", local, None))?;
            fetch.copy_to(&mut opened, Some(local))
        }
        Target::File(local) => fetch.to_file(local, options.force),
    };
    bar.finish_and_clear();
    fetched
}

fn target(path: &RemotePath, options: &GetOptions) -> Result<Target, FilesError> {
    let local = &options.local;
    if local.as_os_str() == "-" {
        return Ok(Target::Output);
    }
    let kind = |path: &Path| path.metadata().ok().map(|metadata| metadata.file_type());
    let mut target = local.clone();
    if kind(local).as_ref().is_some_and(FileType::is_dir) {
        target.push(OsStr::from_bytes(path.name().unwrap_or_default()));
    } else if local.as_os_str().as_bytes().ends_with(b"/") {
        return Err(FilesError::local_because("write into", local, NO_DIRECTORY, MAKE_DIRECTORY));
    }
    match kind(&target) {
        Some(kind) if kind.is_dir() => {
            Err(FilesError::local_because("write", target, "a directory has this name", "give another name"))
        }
        Some(kind) if !kind.is_file() => Ok(Target::Through(target)),
        Some(_) if !options.force => {
            Err(FilesError::local_because("write", target, "the file is there already", TAKEN))
        }
        _ => Ok(Target::File(target)),
    }
}

/// A file on its way.
struct Fetch<'fetch> {
    remote: &'fetch Remote,
    path: &'fetch RemotePath,
    file: &'fetch File,
    size: u64,
    bar: &'fetch ProgressBar,
}

impl Fetch<'_> {
    /// Writes the file whole before it has its name.
    fn to_file(&self, target: &Path, force: bool) -> Result<(), FilesError> {
        let unfinished = target.with_file_name(unfinished_name("get")?);
        let created = LocalFile::options().write(true).create_new(true).open(&unfinished);
        let mut local = created.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                FilesError::local_because("write", target, NO_DIRECTORY, MAKE_DIRECTORY)
            }
            _ => FilesError::local("write", target, None)(error),
        })?;
        let fetched = self.copy_to(&mut local, Some(target)).and_then(|()| {
            local.sync_all().map_err(FilesError::local("write", target, None))?;
            put_or_replace(&unfinished, target, force).map_err(FilesError::local(
                "write",
                target,
                Some(TAKEN),
            ))
        });
        if fetched.is_err() {
            let _ = std::fs::remove_file(&unfinished);
        }
        fetched
    }

    /// Reads several large pieces at a time, and writes them in order. A card that dies and comes back is asked again.
    fn copy_to(&self, output: &mut dyn Write, target: Option<&Path>) -> Result<(), FilesError> {
        let write_error = |error| match target {
            Some(path) => FilesError::local("write", path, None)(error),
            None => FilesError::Output(error),
        };
        let read = |buffer: Vec<u8>, offset: u64| {
            let mut buffer = buffer;
            buffer.resize(CHUNK.min(usize::try_from(self.size - offset).unwrap_or(CHUNK)), 0);
            (offset, self.file.read_at(buffer, offset))
        };
        let mut out = VecDeque::with_capacity(DEPTH);
        let mut spare = Vec::new();
        let (mut next, mut lost) = (0, 0);
        loop {
            while out.len() < DEPTH && next < self.size {
                out.push_back(read(spare.pop().unwrap_or_default(), next));
                next = self.size.min(next + CHUNK as u64);
            }
            let Some((offset, pending)) = out.pop_front() else { break };
            let (result, buffer) = pending.wait();
            match result {
                Ok(count) if count == buffer.len() => {
                    output.write_all(&buffer).map_err(write_error)?;
                    self.bar.inc(count as u64);
                    spare.push(buffer);
                }
                Ok(_) => return Err(self.shrank()),
                // The session waits for the card's next life with what it is given meanwhile.
                Err(Error::CardGone) if lost < DEPTH as u64 * LIVES_MAX => {
                    lost += 1;
                    out.push_front(read(buffer, offset));
                }
                Err(error) => return Err(self.remote.error("fetch", self.path, error)),
            }
        }
        output.flush().map_err(write_error)
    }

    fn shrank(&self) -> FilesError {
        FilesError::Interrupted {
            action: "fetch",
            path: self.path.to_string(),
            why: "the file became shorter while it was read".to_owned(),
            hint: "somebody changes it; run the command again",
        }
    }
}
