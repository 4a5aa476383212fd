//! The host's end: requests become what the tier is asked, and what it tells becomes answers.

use ob_core::{BlockLen, VolumeId};
use ob_format::volume::long_digits;
use ob_format::volume::metadata::{Class, Text};
use ob_volume::tier::{
    AdminAnswer, AdminError, AdminRequest, NewVolume, SEGMENT_BLOCKS, SegmentFacts as TierSegment, Ticket,
    VolumeFacts as TierVolume, VolumeHealth,
};

use super::talk::{decode_request, encode_answer};
use super::{
    ClassName, CreateRequest, OwnSegmentFacts, SegmentFacts, VolumeFacts, VolumesAnswer, VolumesReply,
    VolumesRequest, uuid_text,
};
use crate::random;

/// What a volume has of which nothing else was said.
#[derive(Clone, Copy, Debug)]
pub(in crate::volumes) struct Defaults {
    pub(in crate::volumes) replicas: u8,
    pub(in crate::volumes) replicas_min: u8,
    pub(in crate::volumes) chunk_len: u32,
}

/// Where requests come in.
#[derive(Debug)]
pub(in crate::volumes) struct Counter(Defaults);

/// What becomes of a message of the card's.
pub(in crate::volumes) enum Came {
    /// It is for the tier.
    Request(Ticket, AdminRequest),
    /// It is answered already, with these messages.
    Answered(Vec<Vec<u8>>),
    /// It is no request.
    Nothing,
}

impl Counter {
    pub(in crate::volumes) const fn new(defaults: Defaults) -> Self {
        Self(defaults)
    }

    /// The card has said something.
    pub(in crate::volumes) fn take(&self, message: &[u8]) -> Came {
        let Some((ticket, text)) = decode_request(message) else { return Came::Nothing };
        let request = serde_json::from_slice::<VolumesRequest>(text)
            .map_err(|error| {
                format!("the host does not understand the request: {error}\nhint: are card and host of the same version?")
            })
            .and_then(|request| self.request(request));
        match request {
            Ok(request) => Came::Request(Ticket(ticket), request),
            Err(why) => Came::Answered(answer_messages(Ticket(ticket), &Err(why))),
        }
    }

    fn request(&self, request: VolumesRequest) -> Result<AdminRequest, String> {
        Ok(match request {
            VolumesRequest::List => AdminRequest::ListVolumes,
            VolumesRequest::Show { name } => AdminRequest::ShowVolume { name: text(&name)? },
            VolumesRequest::Create(create) => AdminRequest::CreateVolume(self.new_volume(&create)?),
            VolumesRequest::Resize { name, size, shrink } => {
                AdminRequest::ResizeVolume { name: text(&name)?, size, may_shrink: shrink }
            }
            VolumesRequest::Remove { name, .. } => AdminRequest::RemoveVolume { name: text(&name)? },
        })
    }

    fn new_volume(&self, create: &CreateRequest) -> Result<NewVolume, String> {
        let block_len = BlockLen::from_bytes(create.block).ok_or_else(|| {
            format!("blocks of {} bytes\nhint: there are blocks of 512 and of 4096", create.block)
        })?;
        let chunk_len = match create.chunk {
            None => self.0.chunk_len,
            Some(len) => {
                u32::try_from(len).map_err(|_| of_error(&AdminError::Shape("chunks have at most 1 GiB")))?
            }
        };
        let replicas = create.replicas.unwrap_or(self.0.replicas);
        Ok(NewVolume {
            name: text(&create.name)?,
            uuid: random::uuid().map_err(|error| format!("the kernel gives no random bytes: {error}"))?,
            size: create.size,
            block_len,
            class: create.class.into(),
            segment_len: create.segment.unwrap_or(SEGMENT_BLOCKS * u64::from(block_len.bytes())),
            chunk_len,
            replicas,
            replicas_min: self.0.replicas_min.min(replicas),
        })
    }
}

fn text(name: &str) -> Result<Text<64>, String> {
    Text::new(name).ok_or_else(|| of_error(&AdminError::Name))
}

/// The messages that answer a request.
pub(in crate::volumes) fn answer_messages(ticket: Ticket, answer: &VolumesAnswer) -> Vec<Vec<u8>> {
    // Numbers and texts can always be written.
    let text = serde_json::to_string(answer).unwrap_or_default();
    encode_answer(ticket.0, &text).unwrap_or_else(|| {
        let why = Err::<VolumesReply, _>("the answer is too long\nhint: ask for one volume at a time");
        encode_answer(ticket.0, &serde_json::to_string(&why).unwrap_or_default()).unwrap_or_default()
    })
}

/// What the tier tells, as it is answered.
pub(in crate::volumes) fn answer_of(answer: &Result<AdminAnswer, AdminError>) -> VolumesAnswer {
    match answer {
        Ok(AdminAnswer::Volumes(volumes)) => Ok(VolumesReply::Volumes(volumes.iter().map(volume).collect())),
        Ok(AdminAnswer::Volume(facts, segments)) => {
            let segments = segments.iter().map(segment).collect();
            Ok(VolumesReply::Volume { volume: volume(facts), segments })
        }
        Err(error) => Err(of_error(error)),
    }
}

/// What went wrong, and what to do.
fn of_error(error: &AdminError) -> String {
    let hint = match error {
        AdminError::NotReady | AdminError::Trouble(_) => "`outboard status` tells how the tier is".to_owned(),
        AdminError::Busy | AdminError::Contended => {
            "try again; `outboard volume ls` shows what there is".to_owned()
        }
        AdminError::Name => "such as `outboard volume create data-1 --size 100GiB`".to_owned(),
        AdminError::UnknownVolume(_) => "`outboard volume ls` shows which there are".to_owned(),
        AdminError::NameTaken(name) => format!("`outboard volume show {name}` shows it; choose another name"),
        AdminError::Removing(name) => {
            format!("its name is free when `outboard volume ls` does not show {name} any more")
        }
        AdminError::TooMany => "remove one that nobody needs".to_owned(),
        AdminError::Size(_) => "such as --size 100GiB".to_owned(),
        AdminError::WouldShrink => "say --shrink if that is meant".to_owned(),
        AdminError::StillShrinking => {
            "wait until `outboard volume ls` does not call it shrinking any more".to_owned()
        }
        AdminError::Shape(_) => "leave --segment, --chunk and --replicas out, and they fit".to_owned(),
    };
    format!("{error}\nhint: {hint}")
}

fn volume(facts: &TierVolume) -> VolumeFacts {
    let TierVolume { id: VolumeId(id), volume, used, stored, health } = *facts;
    let (health, trouble) = health_of(health);
    VolumeFacts {
        name: volume.name.as_str().to_owned(),
        id,
        nsid: volume.namespace.0,
        uuid: uuid_text(&volume.uuid),
        size: volume.size,
        block: volume.block_len.bytes(),
        class: volume.class.into(),
        segment: volume.segment_len,
        chunk: volume.chunk_len,
        replicas: volume.replicas,
        used,
        stored,
        ratio: (stored > 0).then(|| (used as f64 / stored as f64 * 100.0).round() / 100.0),
        health: health.to_owned(),
        trouble,
    }
}

fn health_of(health: VolumeHealth) -> (&'static str, Option<String>) {
    match health {
        VolumeHealth::Good => ("good", None),
        VolumeHealth::Degraded(chunks) => {
            ("degraded", Some(format!("{chunks} chunks have too few replicas")))
        }
        VolumeHealth::Waiting(chunks) => {
            ("waiting", Some(format!("{chunks} chunks wait for a chunk server")))
        }
        VolumeHealth::Unserved(trouble) => ("unserved", Some(trouble.to_string())),
        VolumeHealth::Shrinking => ("shrinking", None),
        VolumeHealth::Removing => ("removing", None),
    }
}

fn segment(facts: &TierSegment) -> SegmentFacts {
    SegmentFacts {
        segment: facts.segment.0,
        owner: facts.owner.map(|owner| long_digits(owner.0)),
        epoch: facts.epoch.number(),
        own: facts.own.map(|own| OwnSegmentFacts {
            lease_left_ms: u64::try_from(own.lease_left.as_millis()).unwrap_or(u64::MAX),
            trouble: own.trouble.map(|trouble| trouble.to_string()),
            open: own.open as u64,
            sealed: own.sealed as u64,
            dead: own.dead as u64,
            degraded: own.degraded as u64,
            logged_blocks: own.logged,
            mapped_blocks: own.mapped,
        }),
    }
}

impl From<ClassName> for Class {
    fn from(class: ClassName) -> Self {
        match class {
            ClassName::Plain => Self::Plain,
            ClassName::Fast => Self::Fast,
            ClassName::Standard => Self::Standard,
            ClassName::Dense => Self::Dense,
        }
    }
}

impl From<Class> for ClassName {
    fn from(class: Class) -> Self {
        match class {
            Class::Plain => Self::Plain,
            Class::Fast => Self::Fast,
            Class::Standard => Self::Standard,
            Class::Dense => Self::Dense,
        }
    }
}
