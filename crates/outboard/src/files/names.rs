//! Commands about names and space: `ls`, `rm`, `mv`, `mkdir`, `stat`, `df`.

use std::io::{self, IsTerminal, Write};

use ob_files_host::{DirectoryEntry, Error, NodeKind};
use serde_json::json;

use super::command::{
    ListOptions, MakeDirectoryOptions, MoveOptions, RemoveOptions, SpaceOptions, StatOptions,
};
use super::error::FilesError;
use super::remote::{Crowd, Remote, RemotePath, Traffic, readable};
use crate::terminal::{BAD, bytes, say, styled, table, warn};

fn kind_word(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::Directory => "directory",
        NodeKind::File => "file",
    }
}

pub(super) fn list(options: &ListOptions) -> Result<(), FilesError> {
    let remote = Remote::open(&options.config, Traffic::Names)?;
    let path = RemotePath::new(&options.path);
    let entries = match remote.session.list(&path).wait() {
        Ok(entries) => entries,
        // A file lists itself.
        Err(Error::NotADirectory) if !path.wants_directory => {
            let node =
                remote.session.stat(&path).wait().map_err(|error| remote.error("list", &path, error))?;
            let name = path.name().unwrap_or_default().to_vec();
            vec![DirectoryEntry { name, node: node.id, kind: node.kind, size: node.size }]
        }
        Err(error) => return Err(remote.error("list", &path, error)),
    };
    if options.json {
        let entries: Vec<_> = entries.iter().map(entry_json).collect();
        return Ok(say(&serde_json::to_string_pretty(&entries).map_err(io::Error::from)?)?);
    }
    let mut output = io::BufWriter::new(io::stdout().lock());
    let is_terminal = io::stdout().is_terminal();
    for entry in &entries {
        if options.long {
            let kind = if entry.kind == NodeKind::Directory { "dir " } else { "file" };
            write!(output, "{kind} {:>15} ", entry.size)?;
        }
        // Scripts get the name's bytes as they are, whatever they are.
        if is_terminal {
            output.write_all(readable(&entry.name).as_bytes())?;
        } else {
            output.write_all(&entry.name)?;
        }
        output.write_all(b"\n")?;
    }
    Ok(output.flush()?)
}

fn entry_json(entry: &DirectoryEntry) -> serde_json::Value {
    let mut value = json!({
        "name": entry.name_text(), "kind": kind_word(entry.kind), "size": entry.size, "node": entry.node.0,
    });
    if std::str::from_utf8(&entry.name).is_err() {
        // The name above has lost something.
        let hex: String = entry.name.iter().map(|byte| format!("{byte:02x}")).collect();
        value["name_hex"] = hex.into();
    }
    value
}

pub(super) fn stat(options: &StatOptions) -> Result<(), FilesError> {
    let remote = Remote::open(&options.config, Traffic::Names)?;
    let path = RemotePath::new(&options.path);
    let node = remote.session.stat(&path).wait().map_err(|error| remote.error("look at", &path, error))?;
    let text = if options.json {
        let value = json!({
            "path": path.to_string(), "kind": kind_word(node.kind), "size": node.size,
            "allocated_bytes": node.allocated, "node": node.id.0, "parent": node.parent.map(|parent| parent.0),
        });
        serde_json::to_string_pretty(&value).map_err(io::Error::from)?
    } else if node.kind == NodeKind::Directory {
        format!("{path}: a directory with {} entries, node {}", node.size, node.id.0)
    } else {
        format!(
            "{path}: a file of {} bytes, {} bytes of space, node {}",
            node.size, node.allocated, node.id.0
        )
    };
    Ok(say(&text)?)
}

pub(super) fn space(options: &SpaceOptions) -> Result<(), FilesError> {
    let remote = Remote::open(&options.config, Traffic::Names)?;
    let root = RemotePath::new("/".as_ref());
    let space =
        remote.session.space().wait().map_err(|error| remote.error("tell the space of", &root, error))?;
    let used = space.total - space.free.min(space.total);
    if options.json {
        let value = json!({
            "total_bytes": space.total, "used_bytes": used, "free_bytes": space.free, "files": space.files,
            "directories": space.directories, "log_bytes": space.log_total, "log_live_bytes": space.log_live,
        });
        return Ok(say(&serde_json::to_string_pretty(&value).map_err(io::Error::from)?)?);
    }
    let size = |count: u64| if options.human { bytes(count) } else { count.to_string() };
    let percent = format!("{:.0} %", 100.0 * used as f64 / space.total.max(1) as f64);
    let row = vec![
        size(space.total),
        size(used),
        size(space.free),
        percent,
        space.files.to_string(),
        space.directories.to_string(),
        format!("{} of {}", size(space.log_live), size(space.log_total)),
    ];
    let heading = ["total", "used", "free", "used", "files", "directories", "log"];
    Ok(say(&table(&heading, &[row]))?)
}

pub(super) fn make_directories(options: &MakeDirectoryOptions) -> Result<(), FilesError> {
    let remote = Remote::open(&options.config, Traffic::Names)?;
    for path in &options.paths {
        let path = RemotePath::new(path);
        if options.parents {
            remote.make_directories(&path)?;
            continue;
        }
        if let Err(error) = remote.session.make_directory(&path).wait() {
            let hint = match error {
                Error::NotFound => "-p makes the directories that it is in as well",
                Error::Exists if remote.is_directory(&path)? => "it is a directory already; -p does not mind",
                Error::Exists => "a file has this name; give another, or move the file away",
                error => return Err(remote.error("make the directory", &path, error)),
            };
            return Err(FilesError::remote("make the directory", &path, error, hint));
        }
    }
    remote.flush()
}

pub(super) fn rename(options: &MoveOptions) -> Result<(), FilesError> {
    let remote = Remote::open(&options.config, Traffic::Names)?;
    let from = RemotePath::new(&options.from);
    let to = match from.name() {
        Some(name) => remote.destination(RemotePath::new(&options.to), name)?,
        None => RemotePath::new(&options.to),
    };
    match remote.session.rename(&from, &to).wait() {
        Ok(()) => remote.flush(),
        Err(error) => Err(move_error(&remote, &from, &to, error)),
    }
}

fn move_error(remote: &Remote, from: &RemotePath, to: &RemotePath, error: Error) -> FilesError {
    let paths = format!("{from} to {to}");
    let hint = match error {
        // Either of them may be what is not there.
        Error::NotFound if matches!(remote.find(from), Ok(Some(_))) => {
            let directory = to.parent();
            format!("there is no directory {directory}; `outboard files mkdir -p {directory}` makes it")
        }
        Error::NotFound => {
            format!("there is no {from}; `outboard files ls {}` shows what there is", from.parent())
        }
        Error::WithinItself => format!("give a path that is not within {from}"),
        Error::NotADirectory => "a file stands where a directory is needed".to_owned(),
        Error::IsADirectory => format!("{to} is a directory, which a file does not replace"),
        error => return remote.error_about("move", paths, error),
    };
    FilesError::remote("move", &paths, error, hint)
}

/// Removes all that it can, and tells of each that it cannot.
pub(super) fn remove(options: &RemoveOptions) -> Result<(), FilesError> {
    let remote = Remote::open(&options.config, Traffic::Names)?;
    let mut failed = false;
    for path in &options.paths {
        let path = RemotePath::new(path);
        let removed = match (path.is_root(), options.recursive) {
            (true, _) => Err(FilesError::Request {
                problem: "the root directory cannot be removed".to_owned(),
                hint: "name what is in it: `outboard files ls /` shows that",
            }),
            (false, true) => remove_tree(&remote, &path),
            (false, false) => remove_file(&remote, &path),
        };
        if let Err(error) = removed {
            warn(&format!("{} {error}", styled(BAD, "error:")));
            failed = true;
        }
    }
    remote.flush()?;
    if failed { Err(FilesError::Told) } else { Ok(()) }
}

fn remove_file(remote: &Remote, path: &RemotePath) -> Result<(), FilesError> {
    remote.session.remove_file(path).wait().map_err(|error| match error {
        Error::IsADirectory => FilesError::Remote {
            action: "remove",
            path: path.to_string(),
            source: Error::IsADirectory,
            hint: Some("-r removes a directory with everything in it".to_owned()),
        },
        error => remote.error("remove", path, error),
    })
}

/// Removes a directory with everything in it, the deepest first.
fn remove_tree(remote: &Remote, path: &RemotePath) -> Result<(), FilesError> {
    let failed = |(path, error): (RemotePath, Error)| remote.error("remove", &path, error);
    let node = remote.session.stat(path).wait().map_err(|error| failed((path.clone(), error)))?;
    if node.kind == NodeKind::File {
        return remove_file(remote, path);
    }
    let mut unlisted = vec![path.clone()];
    let mut directories = Vec::new();
    while let Some(directory) = unlisted.pop() {
        let entries =
            remote.session.list(&directory).wait().map_err(|error| failed((directory.clone(), error)))?;
        let mut crowd = Crowd::new();
        for entry in entries {
            let path = directory.join(&entry.name);
            match entry.kind {
                NodeKind::Directory => unlisted.push(path),
                NodeKind::File => {
                    let pending = remote.session.remove_file(&path);
                    crowd.add(path, pending);
                }
            }
        }
        crowd.finish().map_err(failed)?;
        directories.push(directory);
    }
    // Those found last are the deepest.
    for directory in directories.iter().rev() {
        let removed = remote.session.remove_directory(directory).wait();
        removed.map_err(|error| failed((directory.clone(), error)))?;
    }
    Ok(())
}
