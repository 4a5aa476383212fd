//! What the host tells its card of volumes, for the status (`docs/wire/probe.md`): on the ordered channel of the link.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ob_core::layout;
use ob_volume::tier::{Fullness, RebuildStatus, ServerTrouble, TierStatus, Trouble};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Says that a channel message is a report of volumes.
const REPORT_KIND: u32 = 2;
/// Bytes before the servers, and of each server.
const REPORT_LEN: usize = 160;
const SERVER_LEN: usize = 32;
/// More servers are not told of.
const SERVERS_MAX: usize = 64;

layout!(ReportBody, REPORT_LEN, {
    kind: U32, servers: U32, is_open: U32, segments: U32, chunks: U32, closing: U32, waiting: U32, degraded: U32,
    unresolved: U32, fullness: U32, commands: U64, errors: U64, sealed: U64, broken: U64, replicas: U64, bad_members: U64,
    reads_again: U64, rotten_found: U64, mended: U64, mends_given_up: U64, members_dropped: U64,
    rebuilt: U64, rebuild_left: U64, rebuild_rate: U64, unindexed: U32, reserved: U32
});
layout!(ServerBody, SERVER_LEN, { address: [u8; 16], port: U16, flags: U16, trouble: U32, free: U64 });

mod flag {
    pub(super) const IS_READY: u16 = 1;
    pub(super) const HAS_FAILED: u16 = 2;
    pub(super) const IS_FULL: u16 = 4;
}

/// How a tier is doing, as its card is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumesReport {
    /// Whether anything is answered.
    pub is_open: bool,
    /// Segments that it has.
    pub segments: u32,
    /// Their chunks.
    pub chunks: u32,
    /// Chunks that are being sealed.
    pub closing: u32,
    /// Those that wait for a chunk server with that.
    pub waiting: u32,
    /// Sealed ones with fewer replicas than they should have.
    pub degraded: u32,
    /// Records of which nobody knows whether they count.
    pub unresolved: u32,
    /// Commands.
    pub commands: u64,
    /// Those that were answered with an error.
    pub errors: u64,
    /// Chunks that were sealed.
    pub sealed: u64,
    /// Chunks that lost a member while they were written to.
    pub broken: u64,
    /// Replicas that were made anew.
    pub replicas: u64,
    /// Members that gave bytes which were wrong.
    pub bad_members: u64,
    /// Reads that were tried again, because not all members had answered.
    pub reads_again: u64,
    /// Records that members did not have as they should.
    pub rotten_found: u64,
    /// Those of them that were mended.
    pub mended: u64,
    /// Those that could not be, so far.
    pub mends_given_up: u64,
    /// Members that were dropped for it.
    pub members_dropped: u64,
    /// How full the pool is.
    pub fullness: Fullness,
    /// Bytes that were copied since replicas are missing, those that are still to be, and how many are in a second.
    pub rebuild: RebuildStatus,
    /// Segments whose index does not fit into memory.
    pub unindexed: u32,
    /// Its chunk servers.
    pub servers: Vec<ServerReport>,
}

/// How a chunk server is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerReport {
    /// Where it is.
    pub address: SocketAddr,
    /// Whether it is connected and answers.
    pub is_ready: bool,
    /// Whether it has not done of late what it was asked to.
    pub has_failed: bool,
    /// Whether it has no room.
    pub is_full: bool,
    /// Why it cannot be used, if it has said so.
    pub trouble: Option<ServerTrouble>,
    /// Bytes that are free.
    pub free: u64,
}

const FULLNESS: [Fullness; 3] = [Fullness::Roomy, Fullness::Short, Fullness::Full];

const TROUBLES: [ServerTrouble; 6] = [
    ServerTrouble::WrongPool,
    ServerTrouble::WrongServer,
    ServerTrouble::Twice,
    ServerTrouble::Version,
    ServerTrouble::Session,
    ServerTrouble::Other,
];

impl VolumesReport {
    /// What a tier says of itself.
    #[must_use]
    pub fn of(status: &TierStatus) -> Self {
        let sum = |of: fn(&ob_volume::tier::SegmentStatus) -> usize| {
            u32::try_from(status.segments.iter().map(of).sum::<usize>()).unwrap_or(u32::MAX)
        };
        let servers = status.servers.iter().take(SERVERS_MAX).map(|server| ServerReport {
            address: server.address,
            is_ready: server.is_ready,
            has_failed: server.has_failed,
            is_full: server.is_full,
            trouble: server.trouble,
            free: server.free,
        });
        Self {
            is_open: status.is_open,
            segments: u32::try_from(status.segments.len()).unwrap_or(u32::MAX),
            chunks: sum(|segment| segment.chunks),
            closing: sum(|segment| segment.closing),
            waiting: sum(|segment| segment.waiting),
            degraded: sum(|segment| segment.degraded),
            unresolved: sum(|segment| segment.unresolved),
            commands: status.commands_total,
            errors: status.errors,
            sealed: status.chunks_sealed,
            broken: status.chunks_broken,
            replicas: status.replicas_made,
            bad_members: status.bad_members,
            reads_again: status.reads_again,
            rotten_found: status.rotten_found,
            mended: status.mended,
            mends_given_up: status.mends_given_up,
            members_dropped: status.members_dropped,
            fullness: status.fullness,
            rebuild: status.rebuild,
            unindexed: sum(|segment| usize::from(segment.trouble == Some(Trouble::NoMemory))),
            servers: servers.collect(),
        }
    }

    /// The message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let body = ReportBody {
            kind: REPORT_KIND.into(),
            servers: u32::try_from(self.servers.len()).unwrap_or(0).into(),
            is_open: u32::from(self.is_open).into(),
            segments: self.segments.into(),
            chunks: self.chunks.into(),
            closing: self.closing.into(),
            waiting: self.waiting.into(),
            degraded: self.degraded.into(),
            unresolved: self.unresolved.into(),
            fullness: FULLNESS.iter().position(|of| *of == self.fullness).map_or(0, |at| at as u32).into(),
            commands: self.commands.into(),
            errors: self.errors.into(),
            sealed: self.sealed.into(),
            broken: self.broken.into(),
            replicas: self.replicas.into(),
            bad_members: self.bad_members.into(),
            reads_again: self.reads_again.into(),
            rotten_found: self.rotten_found.into(),
            mended: self.mended.into(),
            mends_given_up: self.mends_given_up.into(),
            members_dropped: self.members_dropped.into(),
            rebuilt: self.rebuild.done.into(),
            rebuild_left: self.rebuild.left.into(),
            rebuild_rate: self.rebuild.rate.into(),
            unindexed: self.unindexed.into(),
            reserved: 0.into(),
        };
        let mut bytes = body.as_bytes().to_vec();
        for server in &self.servers {
            bytes.extend_from_slice(server.body().as_bytes());
        }
        bytes
    }

    /// What a message says, if it is such a report.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, rest) = ReportBody::ref_from_prefix(bytes).ok()?;
        let servers = <[ServerBody]>::ref_from_bytes(rest).ok()?;
        if body.kind.get() != REPORT_KIND
            || body.servers.get() as usize != servers.len()
            || servers.len() > SERVERS_MAX
        {
            return None;
        }
        Some(Self {
            is_open: body.is_open.get() != 0,
            segments: body.segments.get(),
            chunks: body.chunks.get(),
            closing: body.closing.get(),
            waiting: body.waiting.get(),
            degraded: body.degraded.get(),
            unresolved: body.unresolved.get(),
            commands: body.commands.get(),
            errors: body.errors.get(),
            sealed: body.sealed.get(),
            broken: body.broken.get(),
            replicas: body.replicas.get(),
            bad_members: body.bad_members.get(),
            reads_again: body.reads_again.get(),
            rotten_found: body.rotten_found.get(),
            mended: body.mended.get(),
            mends_given_up: body.mends_given_up.get(),
            members_dropped: body.members_dropped.get(),
            fullness: FULLNESS.get(body.fullness.get() as usize).copied().unwrap_or_default(),
            rebuild: RebuildStatus {
                done: body.rebuilt.get(),
                left: body.rebuild_left.get(),
                rate: body.rebuild_rate.get(),
            },
            unindexed: body.unindexed.get(),
            servers: servers.iter().map(ServerReport::of).collect(),
        })
    }
}

impl ServerReport {
    fn body(&self) -> ServerBody {
        let address = match self.address.ip() {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let flag = |is: bool, flag: u16| if is { flag } else { 0 };
        let flags = flag(self.is_ready, flag::IS_READY)
            | flag(self.has_failed, flag::HAS_FAILED)
            | flag(self.is_full, flag::IS_FULL);
        let place = TROUBLES.iter().position(|trouble| Some(*trouble) == self.trouble);
        ServerBody {
            address: address.octets(),
            port: self.address.port().into(),
            flags: flags.into(),
            trouble: place.map_or(0, |place| place as u32 + 1).into(),
            free: self.free.into(),
        }
    }

    fn of(body: &ServerBody) -> Self {
        let flags = body.flags.get();
        let place = (body.trouble.get() as usize).checked_sub(1);
        Self {
            address: SocketAddr::new(Ipv6Addr::from(body.address).to_canonical(), body.port.get()),
            is_ready: flags & flag::IS_READY != 0,
            has_failed: flags & flag::HAS_FAILED != 0,
            is_full: flags & flag::IS_FULL != 0,
            trouble: place.map(|place| TROUBLES.get(place).copied().unwrap_or(ServerTrouble::Other)),
            free: body.free.get(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod tests {
    use super::*;

    #[test]
    fn a_report_comes_back_and_other_messages_are_none() {
        let server = |port, trouble: Option<ServerTrouble>| ServerReport {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            is_ready: trouble.is_none(),
            has_failed: true,
            is_full: port == 4441,
            trouble,
            free: 1 << 40,
        };
        let report = VolumesReport {
            is_open: true,
            segments: 1,
            chunks: 2,
            closing: 3,
            waiting: 4,
            degraded: 5,
            unresolved: 6,
            commands: 7,
            errors: 8,
            sealed: 9,
            broken: 10,
            replicas: 11,
            bad_members: 12,
            reads_again: 13,
            rotten_found: 14,
            mended: 15,
            mends_given_up: 16,
            members_dropped: 17,
            fullness: Fullness::Short,
            rebuild: RebuildStatus { done: 18, left: 19, rate: 20 },
            unindexed: 21,
            servers: vec![server(4440, None), server(4441, Some(ServerTrouble::Version))],
        };
        let bytes = report.encode();
        assert_eq!((bytes.len(), bytes[..8].to_vec()), (224, vec![2, 0, 0, 0, 2, 0, 0, 0]));
        assert_eq!(VolumesReport::decode(&bytes), Some(report));
        assert_eq!(VolumesReport::decode(&bytes[..223]), None);
        assert_eq!(VolumesReport::decode(&bytes[..192]), None, "a server less than it says");
        assert_eq!(VolumesReport::decode(&[1; 24]), None);
    }

    /// The tables of the document are the layouts.
    #[test]
    fn the_document_says_the_same() {
        let text = include_str!("../../../../docs/wire/probe.md");
        for (name, at, len) in ReportBody::FIELDS.iter().chain(ServerBody::FIELDS) {
            let row = format!("| `{name}` | {at} | {len} |");
            assert!(text.contains(&row), "{row}");
        }
    }
}
