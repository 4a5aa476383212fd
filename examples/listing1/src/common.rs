//! What both programs have besides: the card's port, and the protocol of this example.

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ob_core::Incarnation;
use ob_io::doorbell;
use ob_link::{Endpoint, HostGroup, HostLink, HostLinkConfig, OpenGroupError};
use ob_split::host::{Completion, HostEnds, PortOptions, RingEnds, Split};
use ob_split::wire::{ChannelId, HEADER_LEN, Header, PACKED, REPLY, SPLIT_SERVICE};
use ob_wire_link::group::GroupSizes;

/// Bytes of the longest block, which is what an engine takes at a time.
pub const MAX: u32 = 64 << 10;
/// What messages begin with; `[split] magic` of the card.
pub const MAGIC: [u8; 2] = *b"OX";
/// In `flags` of a request: its sender waits for each microsecond.
pub const LATENCY_SENSITIVE: u16 = 1;
/// Bytes of each ring of the group.
const RING: u32 = 64 << 10;
/// How long it may take until a program that has ended is gone, and how often that is looked at.
const GONE_WITHIN: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(20);

type Sleep = fn(&[(&AtomicU64, u32)], Option<Duration>);

/// A port of a card, and what joins this process with that.
pub struct CardPort {
    /// The port, by the paper's API.
    pub split: Split<RingEnds<Sleep>>,
    // In this order: the group goes before the link.
    _group: HostGroup,
    _link: HostLink,
}

/// Attaches to the card that has this socket.
pub fn open(socket: &Path) -> Result<CardPort, Box<dyn Error>> {
    // Which life of this process it is.
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let incarnation = Incarnation(u64::try_from(now.as_nanos())?);
    let link = HostLink::attach(&HostLinkConfig {
        endpoint: Endpoint::Unix(socket.to_owned()),
        name: "listing1".to_owned(),
        incarnation,
        pollers: 0,
        attach_within: Duration::from_secs(10),
        dead_after: Duration::from_secs(10),
    })?;
    let group = open_group(&link)?;
    let sleep: Sleep = |words, within| _ = doorbell::futex_wait_any(words, within);
    let ends = RingEnds::new(group.sender.clone(), group.receiver.clone(), None, sleep);
    let split = Split::open(ends, &PortOptions { incarnation, ..PortOptions::default() })?;
    Ok(CardPort { split, _group: group, _link: link })
}

/// The port has one program at a time, and the card may not know yet that the one before this is gone.
fn open_group(link: &HostLink) -> Result<HostGroup, OpenGroupError> {
    let begun = Instant::now();
    loop {
        match link.open_group_of(SPLIT_SERVICE, GroupSizes::rings(RING, RING)) {
            Err(OpenGroupError::Refused(_)) if begun.elapsed() < GONE_WITHIN => std::thread::sleep(AGAIN),
            result => return result,
        }
    }
}

/// Has the card listen, and takes the first who connects.
pub fn accept(
    split: &mut Split<impl HostEnds>,
    address: SocketAddr,
    listening: impl FnOnce(u16),
) -> Result<ChannelId, Box<dyn Error>> {
    let event = split.listen(address)?;
    let Completion::Listening { listener, port } = split.wait(event) else {
        return Err(format!("the card cannot listen at {address}: its log says why").into());
    };
    listening(port);
    let event = split.accept(listener);
    match split.wait(event) {
        Completion::Connected(channel) => Ok(channel),
        other => Err(format!("nobody connects any more: {other:?}").into()),
    }
}

/// Tells who has sent a block that is longer than may be that it is not stored.
pub fn refuse(
    split: &mut Split<impl HostEnds>,
    to: ChannelId,
    header: &[u8; HEADER_LEN],
) -> Result<(), Box<dyn Error>> {
    let event = split.mixed_send(to, &Request::parse(header)?.answer(false), None)?;
    split.wait(event);
    Ok(())
}

/// What a virtual machine asks: that a block is stored. Its bytes 24 to 39 are the port's; the rest is as the storage server is to have it.
pub struct Request {
    header: Header,
    /// Whether its sender waits for each microsecond.
    pub is_latency_sensitive: bool,
}

impl Request {
    /// Takes a header that has come.
    pub fn parse(header: &[u8; HEADER_LEN]) -> Result<Self, Box<dyn Error>> {
        let header = Header::decode(header, MAGIC)?;
        Ok(Self { header, is_latency_sensitive: header.flags & LATENCY_SENSITIVE != 0 })
    }

    /// What the storage server is told. Tag, length and checksum are put in when it is sent, and only who compresses says that it has.
    pub fn storage_header(&self) -> Header {
        Header { flags: self.header.flags & !PACKED, ..self.header }
    }

    /// What is answered.
    pub fn answer(&self, is_stored: bool) -> [u8; HEADER_LEN] {
        let status = u16::from(!is_stored);
        Header { kind: self.header.kind | REPLY, status, flags: 0, payload_len: 0, ..self.header }.encode()
    }
}
