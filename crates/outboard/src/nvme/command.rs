//! What can be typed after `outboard namespace`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::admin::{AdminMessage, AdminRequest, NamespaceFacts};
use crate::cli::{CommandError, ConfigOptions};
use crate::config::{ByteSize, FilesDevice, NamespaceDevice};
use crate::control::{self, ControlError, ControlRequest};
use crate::terminal::{bytes, say, table};

/// The commands about namespaces.
#[derive(Debug, Subcommand)]
pub enum NamespaceCommand {
    /// List the namespaces that a card serves
    #[command(after_help = "\
Examples:
  outboard namespace list
  outboard namespace list --nqn nqn.2026-11.io.outboard:two   of one subsystem, where there are several
  outboard namespace list --json | jq '.[].uuid'")]
    List(ListOptions),
    /// Serve another namespace
    #[command(after_help = "\
Examples:
  outboard namespace add --size 100GiB                 a file in the card's directory
  outboard namespace add --device /dev/sdb             a disk, as it is
  outboard namespace add --size 1GiB --device memory   gone when the card ends
  outboard namespace add --size 1GiB --device file:/volumes/a
                                                       a file of the card's own file system

Hosts that are connected see it at once.")]
    Add(AddOptions),
    /// Serve a namespace no more; what it lies on stays as it is
    #[command(after_help = "\
Example:
  outboard namespace rm 2

Hosts that use it get errors from then on: unmount it there first.")]
    Rm(RemoveOptions),
    /// Make a namespace larger or smaller
    #[command(after_help = "\
Example:
  outboard namespace resize 1 200GiB

Hosts that are connected see it at once; a file system in it is another matter (resize2fs, xfs_growfs).
Shrinking destroys what lies beyond the new end, and needs --shrink.")]
    Resize(ResizeOptions),
}

/// `outboard namespace list`.
#[derive(Clone, Debug, Args)]
pub struct ListOptions {
    /// Show everything as JSON
    #[arg(long)]
    pub json: bool,
    /// The subsystem, by its name [default: the first; of `list`, all]
    #[arg(long, value_name = "NQN")]
    pub nqn: Option<String>,
    /// Which card.
    #[command(flatten)]
    pub config: ConfigOptions,
}

/// `outboard namespace add`.
#[derive(Clone, Debug, Args)]
pub struct AddOptions {
    /// How large a file or memory is made; what exists keeps its size
    #[arg(long, value_parser = ByteSize::parse, default_value = "16GiB")]
    pub size: ByteSize,
    /// A file (made if missing), a block device, `memory`, or `file:/PATH` for a file of the card's own file system
    #[arg(long, value_name = "PATH")]
    pub device: Option<PathBuf>,
    /// Its id [default: the lowest that none has had]
    #[arg(long)]
    pub nsid: Option<u32>,
    /// What both show.
    #[command(flatten)]
    pub list: ListOptions,
}

/// `outboard namespace rm`.
#[derive(Clone, Debug, Args)]
pub struct RemoveOptions {
    /// Which
    pub nsid: u32,
    /// What both show.
    #[command(flatten)]
    pub list: ListOptions,
}

/// `outboard namespace resize`.
#[derive(Clone, Debug, Args)]
pub struct ResizeOptions {
    /// Which
    pub nsid: u32,
    /// Its new size
    #[arg(value_parser = ByteSize::parse)]
    pub size: ByteSize,
    /// Make it smaller, which destroys what lies beyond the new end
    #[arg(long)]
    pub shrink: bool,
    /// What both show.
    #[command(flatten)]
    pub list: ListOptions,
}

/// Does what was typed.
pub(crate) fn run(command: &NamespaceCommand) -> Result<(), CommandError> {
    let (list, request) = match command {
        NamespaceCommand::List(list) => (list, AdminRequest::ListNamespaces),
        NamespaceCommand::Add(AddOptions { size, device, nsid, list }) => {
            // The card has another working directory, maybe.
            let device = match device {
                None => None,
                Some(path) => Some(match NamespaceDevice::parse(path) {
                    Some(NamespaceDevice::Device(FilesDevice::Path(path))) => std::path::absolute(path)?,
                    Some(_) => path.clone(),
                    None => {
                        let text = "file: is followed by a path in the card's file system\n\
                                    hint: such as --device file:/volumes/a";
                        return Err(ControlError::Refused(text.to_owned()).into());
                    }
                }),
            };
            (list, AdminRequest::AddNamespace { nsid: *nsid, device, size: size.0 })
        }
        NamespaceCommand::Rm(RemoveOptions { nsid, list }) => {
            (list, AdminRequest::RemoveNamespace { nsid: *nsid })
        }
        NamespaceCommand::Resize(ResizeOptions { nsid, size, shrink, list }) => {
            let known = ask(list, AdminRequest::ListNamespaces)?;
            // Without a name it is the first subsystem, whose namespaces are listed first.
            let subsystem = known.first().map(|one| one.subsystem.clone());
            let mut meant = known.iter().filter(|one| Some(&one.subsystem) == subsystem.as_ref());
            let shrinks = meant.any(|one| one.nsid == *nsid && one.size > size.0);
            if shrinks && !shrink {
                let text = format!(
                    "namespace {nsid} would become smaller, which destroys what lies beyond its new end\n\
                     hint: say --shrink if that is meant"
                );
                return Err(ControlError::Refused(text).into());
            }
            (list, AdminRequest::ResizeNamespace { nsid: *nsid, size: size.0 })
        }
    };
    let namespaces = ask(list, request)?;
    if list.json {
        say(&serde_json::to_string_pretty(&namespaces).map_err(std::io::Error::from)?)?;
    } else {
        say(&show(&namespaces))?;
    }
    Ok(())
}

fn ask(list: &ListOptions, request: AdminRequest) -> Result<Vec<NamespaceFacts>, CommandError> {
    let card = list.config.load()?.card();
    let message = AdminMessage { subsystem: list.nqn.clone(), request };
    Ok(control::ask(&card.control_socket(), &ControlRequest::Namespaces(message), &[])?)
}

fn show(namespaces: &[NamespaceFacts]) -> String {
    if namespaces.is_empty() {
        return "No namespaces are served; `outboard namespace add` makes one.".to_owned();
    }
    let is_one =
        namespaces.iter().all(|one| namespaces.first().is_some_and(|first| first.subsystem == one.subsystem));
    let row = |one: &NamespaceFacts| {
        let mut row = vec![
            one.nsid.to_string(),
            bytes(one.size),
            one.block_len.to_string(),
            one.uuid.clone(),
            match &one.not_served {
                None => one.device.clone(),
                Some(why) => format!("{} (not served: {why})", one.device),
            },
        ];
        row.extend((!is_one).then(|| one.subsystem.clone()));
        row
    };
    let mut names = vec!["nsid", "size", "block", "uuid", "device"];
    names.extend((!is_one).then_some("subsystem"));
    table(&names, &namespaces.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_not_served_is_shown_with_the_reason() {
        let served = NamespaceFacts {
            subsystem: "nqn.2026-01.example:a".to_owned(),
            nsid: 1,
            uuid: "0".repeat(32),
            device: "memory".to_owned(),
            size: 4096,
            block_len: 512,
            not_served: None,
        };
        let why = Some("its device has blocks of 4096".to_owned());
        let left_out =
            NamespaceFacts { nsid: 2, device: "/dev/sdb".to_owned(), not_served: why, ..served.clone() };
        let shown = show(&[served, left_out]);
        assert_eq!(shown.matches("not served").count(), 1, "{shown}");
        assert!(shown.contains("/dev/sdb (not served: its device has blocks of 4096)"), "{shown}");
    }
}
