//! What can be typed after `outboard volume`.

use clap::{Args, Subcommand};

use super::{ClassName, CreateRequest, SegmentFacts, VolumeFacts, VolumesReply, VolumesRequest};
use crate::cli::{CommandError, ConfigOptions};
use crate::config::ByteSize;
use crate::control::{self, ControlRequest};
use crate::terminal::{bytes, say, table};

/// The commands about volumes.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Make a volume
    #[command(after_help = "\
Examples:
  outboard volume create data --size 100GiB
  outboard volume create logs --size 1TiB --class dense    compressed harder, when the card has time
  outboard volume create old --size 10GiB --block 512      for what knows no larger blocks
  outboard volume create scratch --size 1TiB --replicas 2  on two chunk servers instead of three

It takes space as it is written. Hosts that are connected see it at once, as another namespace of
the subsystem; others with `nvme connect`, as `outboard up` prints it.")]
    Create(CreateOptions),
    /// List the volumes
    #[command(after_help = "\
Examples:
  outboard volume ls
  outboard volume ls --json | jq '.volumes[].uuid'

USED is what is mapped, STORED what that takes on each of its chunk servers, overwritten blocks
that compaction has not yet moved away included; both as far as this tier has the segments.")]
    Ls(AnswerOptions),
    /// Show a volume, and its segments
    #[command(after_help = "\
Example:
  outboard volume show data

A segment is listed once it was written to. Its owner is a tier; of another tier's segments only
the owner is known here.")]
    Show(NameOptions),
    /// Make a volume larger or smaller
    #[command(after_help = "\
Examples:
  outboard volume resize data --size 200GiB
  outboard volume resize data --size 50GiB --shrink

Hosts that are connected see it at once; a file system in it is another matter (resize2fs,
xfs_growfs). Shrinking destroys what lies beyond the new end, and needs --shrink; until all of that
is trimmed the volume cannot grow.")]
    Resize(ResizeOptions),
    /// Remove a volume, and everything in it
    #[command(after_help = "\
Examples:
  outboard volume rm scratch
  outboard volume rm scratch --force    though hosts are connected, which get errors from then on

All volumes of a tier are namespaces of one subsystem, so a host that is connected has this one too.
The space comes back as chunks are deleted; until then the volume is listed as removing.")]
    Rm(RemoveOptions),
}

/// Which card, and how its answer is shown.
#[derive(Clone, Debug, Args)]
pub struct AnswerOptions {
    /// Show everything as JSON
    #[arg(long)]
    pub json: bool,
    /// Which card.
    #[command(flatten)]
    pub config: ConfigOptions,
}

/// `outboard volume create`.
#[derive(Clone, Debug, Args)]
pub struct CreateOptions {
    /// What it is called: letters, digits, `-`, `_` and `.`
    pub name: String,
    /// How large it is, such as 100GiB
    #[arg(long, value_parser = ByteSize::parse)]
    pub size: ByteSize,
    /// Bytes of a block: 512 or 4096
    #[arg(long, default_value_t = 4096)]
    pub block: u32,
    /// How hard it is compressed
    #[arg(long, value_enum, default_value = "standard")]
    pub class: ClassName,
    /// The unit of ownership, a power of two [default: 32GiB; with blocks of 512, 4GiB]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse)]
    pub segment: Option<ByteSize>,
    /// Files on chunk servers, a power of two from 16MiB to 1GiB [default: 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse)]
    pub chunk: Option<ByteSize>,
    /// How many chunk servers have each chunk, 1 to 4 [default: as `[volumes]` says, 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4))]
    pub replicas: Option<u8>,
    /// What all show.
    #[command(flatten)]
    pub answer: AnswerOptions,
}

/// `outboard volume show`.
#[derive(Clone, Debug, Args)]
pub struct NameOptions {
    /// Which
    pub name: String,
    /// What all show.
    #[command(flatten)]
    pub answer: AnswerOptions,
}

/// `outboard volume resize`.
#[derive(Clone, Debug, Args)]
pub struct ResizeOptions {
    /// Which
    pub name: String,
    /// Its new size
    #[arg(long, value_parser = ByteSize::parse)]
    pub size: ByteSize,
    /// Make it smaller, which destroys what lies beyond the new end
    #[arg(long)]
    pub shrink: bool,
    /// What all show.
    #[command(flatten)]
    pub answer: AnswerOptions,
}

/// `outboard volume rm`.
#[derive(Clone, Debug, Args)]
pub struct RemoveOptions {
    /// Which
    pub name: String,
    /// Though hosts are connected
    #[arg(long)]
    pub force: bool,
    /// What all show.
    #[command(flatten)]
    pub answer: AnswerOptions,
}

/// Does what was typed.
pub(crate) fn run(command: &VolumeCommand) -> Result<(), CommandError> {
    let (answer, request) = match command {
        VolumeCommand::Ls(answer) => (answer, VolumesRequest::List),
        VolumeCommand::Show(NameOptions { name, answer }) => {
            (answer, VolumesRequest::Show { name: name.clone() })
        }
        VolumeCommand::Create(options) => (&options.answer, VolumesRequest::Create(options.request())),
        VolumeCommand::Resize(ResizeOptions { name, size, shrink, answer }) => {
            (answer, VolumesRequest::Resize { name: name.clone(), size: size.0, shrink: *shrink })
        }
        VolumeCommand::Rm(RemoveOptions { name, force, answer }) => {
            (answer, VolumesRequest::Remove { name: name.clone(), force: *force })
        }
    };
    let reply = ask(answer, request)?;
    if answer.json {
        say(&serde_json::to_string_pretty(&reply).map_err(std::io::Error::from)?)?;
    } else {
        say(&show(command, &reply))?;
    }
    Ok(())
}

fn ask(options: &AnswerOptions, request: VolumesRequest) -> Result<VolumesReply, CommandError> {
    let card = options.config.load()?.card();
    Ok(control::ask(&card.control_socket(), &ControlRequest::Volumes(request), &[])?)
}

impl CreateOptions {
    fn request(&self) -> CreateRequest {
        CreateRequest {
            name: self.name.clone(),
            size: self.size.0,
            block: self.block,
            class: self.class,
            segment: self.segment.map(|size| size.0),
            chunk: self.chunk.map(|size| size.0),
            replicas: self.replicas,
        }
    }
}

fn show(command: &VolumeCommand, reply: &VolumesReply) -> String {
    match (command, reply) {
        (_, VolumesReply::Volumes(volumes)) => show_all(volumes),
        (VolumeCommand::Create(_), VolumesReply::Volume { volume, .. }) => format!(
            "{} is there: {}, NSID {}, UUID {}",
            volume.name,
            bytes(volume.size),
            volume.nsid,
            volume.uuid
        ),
        (VolumeCommand::Resize(_), VolumesReply::Volume { volume, .. }) => {
            format!("{} has {}", volume.name, bytes(volume.size))
        }
        (VolumeCommand::Rm(_), VolumesReply::Volume { volume, .. }) => {
            format!("{} is removed; its space comes back as its chunks are deleted", volume.name)
        }
        (_, VolumesReply::Volume { volume, segments }) => show_one(volume, segments),
    }
}

fn show_all(volumes: &[VolumeFacts]) -> String {
    if volumes.is_empty() {
        return "There are no volumes; `outboard volume create NAME --size SIZE` makes one.".to_owned();
    }
    let row = |one: &VolumeFacts| {
        vec![
            one.name.clone(),
            one.nsid.to_string(),
            bytes(one.size),
            bytes(one.used),
            bytes(one.stored),
            one.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
            match &one.trouble {
                None => one.health.clone(),
                Some(why) => format!("{} ({why})", one.health),
            },
        ]
    };
    let names = ["name", "nsid", "size", "used", "stored", "ratio", "health"];
    table(&names, &volumes.iter().map(row).collect::<Vec<_>>())
}

fn show_one(volume: &VolumeFacts, segments: &[SegmentFacts]) -> String {
    let class = format!("{:?}", volume.class).to_lowercase();
    let mut text = format!(
        "{}\n\nNSID {}, UUID {}\nblocks of {} bytes, class {class}, {} replicas, segments of {}, chunks of {}",
        show_all(std::slice::from_ref(volume)),
        volume.nsid,
        volume.uuid,
        volume.block,
        volume.replicas,
        bytes(volume.segment),
        bytes(volume.chunk.into()),
    );
    if segments.is_empty() {
        text += "\nnothing was ever written to it";
        return text;
    }
    let row = |one: &SegmentFacts| {
        let mut row = vec![
            one.segment.to_string(),
            one.owner.clone().unwrap_or_else(|| "nobody".to_owned()),
            one.epoch.to_string(),
        ];
        match &one.own {
            Some(own) => row.extend([
                format!("{:.1} s", own.lease_left_ms as f64 / 1000.0),
                own.open.to_string(),
                own.sealed.to_string(),
                own.dead.to_string(),
                own.degraded.to_string(),
                own.logged_blocks.to_string(),
            ]),
            None => row.extend(std::iter::repeat_n("-".to_owned(), 6)),
        }
        row
    };
    let names = ["segment", "owner", "epoch", "lease", "open", "sealed", "dead", "degraded", "logged"];
    text += "\n\n";
    text += &table(&names, &segments.iter().map(row).collect::<Vec<_>>());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> VolumeFacts {
        VolumeFacts {
            name: "data".to_owned(),
            id: 2,
            nsid: 3,
            uuid: "00000000-0000-0000-0000-000000000001".to_owned(),
            size: 16 << 30,
            block: 4096,
            class: ClassName::Dense,
            segment: 32 << 30,
            chunk: 64 << 20,
            replicas: 3,
            used: 3 << 20,
            stored: 2 << 20,
            ratio: Some(1.5),
            health: "degraded".to_owned(),
            trouble: Some("2 chunks have too few replicas".to_owned()),
        }
    }

    #[test]
    fn volumes_are_shown_with_what_is_wrong() {
        assert!(show_all(&[]).contains("outboard volume create"));
        let all = show_all(&[volume()]);
        assert!(all.contains("1.50") && all.contains("degraded (2 chunks have too few replicas)"), "{all}");
        let own = OwnSegmentFacts {
            lease_left_ms: 2500,
            trouble: None,
            open: 1,
            sealed: 22,
            dead: 3,
            degraded: 2,
            logged_blocks: 77,
            mapped_blocks: 5,
        };
        let segments = [
            SegmentFacts { segment: 0, owner: Some("00000000000000ab".to_owned()), epoch: 4, own: Some(own) },
            SegmentFacts { segment: 5, owner: None, epoch: 9, own: None },
        ];
        let one = show_one(&volume(), &segments);
        for part in ["class dense", "2.5 s", "00000000000000ab", "nobody", "77"] {
            assert!(one.contains(part), "{part}: {one}");
        }
        assert!(show_one(&volume(), &[]).contains("nothing was ever written"));
    }

    use super::super::OwnSegmentFacts;
}
