//! What is lost for good: its blocks cannot be read, all others can, and the segment is served again.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use ob_core::{BlockLen, ChunkId, ChunkName, SegmentId, SegmentName, Sequence, ServerId, Units, VolumeId};
use ob_format::volume::ChunkKind;
use ob_volume::tier::{AdminAnswer, AdminError, AdminRequest, LossFacts};
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;

use crate::tier_failover::heal;
use crate::tier_rig::{Rig, Undecided, config, volume};
use crate::tier_servers::Server;

const DISK: VolumeId = VolumeId(1);
const BLOCKS: u64 = 1500;
const LOST: Status = Status::UNRECOVERED_READ_ERROR.with_do_not_retry();

/// Two replicas on servers of which two die: some chunks are on others.
fn rig(servers: u16, seed: u64) -> Rig {
    let mut of = volume(1, BlockLen::Large, BLOCKS);
    (of.1.replicas, of.1.replicas_min) = (2, 1);
    let mut rig = Rig::new(config(vec![of], servers), seed);
    rig.open();
    rig.rest(Duration::from_secs(1));
    rig
}

const fn id(place: usize) -> ServerId {
    ServerId(place as u64 + 100)
}

fn address(place: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 4440 + place as u16))
}

impl Rig {
    fn recover(&mut self, accept_loss: bool) -> Result<LossFacts, AdminError> {
        let name = self.volumes[&DISK].name;
        self.ask(AdminRequest::RecoverVolume { name, accept_loss }).map(|answer| match answer {
            AdminAnswer::Recovered(lost) => lost,
            other => panic!("{other:?}"),
        })
    }

    fn take_out(&mut self, place: usize) {
        let request = AdminRequest::RemoveServer { server: id(place), accept_loss: true };
        self.ask(request).unwrap();
    }

    /// A server that has nothing, where none was.
    fn bring(&mut self, place: usize) {
        assert_eq!(self.servers.len(), place);
        self.servers.push(Server::default());
        self.ask(AdminRequest::AddServer { address: address(place), domain: None }).unwrap();
    }

    /// Writes that go to one chunk after the other, so that there are several, on other servers.
    fn write_chunks(&mut self) {
        for start in (0..BLOCKS - 40).step_by(40) {
            assert_eq!(self.do_io(IoOpcode::Write, DISK, start, 40), Status::SUCCESS);
        }
        self.rest(Duration::from_secs(5));
    }

    /// Reads every block. What can be read is what was written; the others.
    fn read_what_is_left(&mut self) -> Vec<u64> {
        let mut lost = Vec::new();
        for block in 0..BLOCKS {
            match self.do_io(IoOpcode::Read, DISK, block, 1) {
                Status::SUCCESS => {
                    let read = self.answered.last().unwrap().read[0];
                    assert_eq!(read, self.model[&DISK][block as usize], "block {block}");
                }
                status => {
                    assert_eq!(status, LOST, "block {block}: {:#?}", self.tier.status());
                    lost.push(block);
                }
            }
        }
        lost
    }

    /// What was in chunks of which nobody knows what they had reads as it was before: as nothing, for all was written once.
    fn read_as_it_may_have_been(&mut self, seed: u64) {
        let nowhere = SegmentName { volume: DISK, segment: SegmentId(9) };
        let before = Undecided {
            sequence: Sequence(0),
            offset: Units(0),
            units: Units(0),
            start: 0,
            values: vec![0; BLOCKS as usize],
        };
        self.undecided.insert(ChunkName::new(nowhere, ChunkId(u32::MAX)), vec![before]);
        self.is_shared = true;
        for block in 0..BLOCKS {
            let status = self.do_io(IoOpcode::Read, DISK, block, 1);
            assert!(status == Status::SUCCESS || status == LOST, "seed {seed}, block {block}: {status:?}");
        }
        self.undecided.retain(|name, _| name.segment_name() != nowhere);
        self.is_shared = false;
    }

    /// What was lost stays so, over lives; then it is written, and is there.
    fn check_lost(&mut self, blocks: u64) {
        let lost = self.read_what_is_left();
        assert_eq!(lost.len() as u64, blocks);
        self.die();
        self.rest(Duration::from_secs(5));
        assert_eq!(self.read_what_is_left(), lost);
        assert_eq!(self.recover(true), Ok(LossFacts::default()), "nothing more is lost");
        for block in &lost {
            assert_eq!(self.do_io(IoOpcode::Write, DISK, *block, 1), Status::SUCCESS);
        }
        assert_eq!(self.read_what_is_left(), [0; 0]);
        heal(self);
        self.die();
        self.rest(Duration::from_secs(5));
        assert_eq!(self.read_what_is_left(), [0; 0]);
        assert_eq!(self.tier.status().mistakes, 0);
    }
}

/// Whoever has the segment knows which blocks they are.
#[test]
fn blocks_that_nobody_has_any_more_answer_so_and_all_others_are_there() {
    let mut rig = rig(4, 1);
    rig.write_chunks();
    assert_eq!(rig.recover(true), Ok(LossFacts::default()));
    for place in [0, 1] {
        rig.kill(place);
        rig.rest(Duration::from_secs(1));
        rig.take_out(place);
    }
    rig.rest(Duration::from_secs(30));
    let told = rig.recover(false);
    let Err(AdminError::WouldLoseBlocks(would)) = told else { panic!("{told:?}") };
    assert!(would.chunks > 0 && would.blocks > 0 && would.indexes == 0, "{would:?}");
    let lost = rig.recover(true).unwrap();
    // What somebody has in part is not lost.
    assert!(lost.chunks == would.chunks && lost.blocks <= would.blocks, "{lost:?} of {would:?}");
    rig.check_lost(lost.blocks);
}

/// Nobody has the segment, and it waits for what is gone: its records, the end of a chunk, and its index.
#[test]
fn a_segment_that_waits_for_what_is_gone_is_served_again() {
    let mut with_index = 0;
    for seed in 0..12 {
        let mut rig = rig(4, seed);
        rig.config.checkpoint_blocks = if seed % 2 == 0 { 64 } else { 1 << 20 };
        rig.die();
        rig.rest(Duration::from_secs(2));
        rig.write_chunks();
        // In every other story those go that have the index, if it has been written.
        let records = rig.chunk_records();
        let index = records.values().rev().find(|chunk| chunk.kind == ChunkKind::Index);
        let of_index: Vec<usize> = index.map_or(vec![0, 1], |chunk| {
            chunk.members.servers().iter().map(|id| id.0 as usize - 100).collect()
        });
        let victims = if seed % 4 == 0 { of_index } else { vec![0, 1] };
        victims.iter().for_each(|place| rig.kill(*place));
        rig.die();
        rig.rest(Duration::from_secs(20));
        victims.iter().for_each(|place| rig.take_out(*place));
        rig.rest(Duration::from_secs(20));
        let told = rig.recover(false);
        if told == Ok(LossFacts::default()) {
            assert_ne!(seed % 4, 0);
            assert_eq!(rig.read_what_is_left(), [0; 0], "seed {seed}");
            continue;
        }
        let Err(AdminError::WouldLoseBlocks(would)) = told else { panic!("seed {seed}: {told:?}") };
        with_index += would.indexes;
        let lost = rig.recover(true).unwrap();
        assert_eq!((lost.chunks, lost.indexes), (would.chunks, would.indexes), "seed {seed}");
        rig.read_as_it_may_have_been(seed);
        for start in (0..BLOCKS - 40).step_by(40) {
            assert_eq!(rig.do_io(IoOpcode::Write, DISK, start, 40), Status::SUCCESS);
        }
        rig.die();
        rig.rest(Duration::from_secs(5));
        assert_eq!(rig.recover(true), Ok(LossFacts::default()), "seed {seed}");
    }
    assert!(with_index > 0, "no index was lost");
}

/// A server that is away may have what no record names it for (R9).
#[test]
fn nothing_is_given_up_that_a_server_may_have_which_is_away() {
    let mut rig = rig(3, 3);
    rig.write_chunks();
    // What it has of chunks is made anew elsewhere, and it is named no more.
    rig.kill(1);
    rig.rest(Duration::from_secs(700));
    for place in [0, 2] {
        rig.kill(place);
        rig.rest(Duration::from_secs(1));
        rig.take_out(place);
    }
    for accept in [false, true] {
        assert_eq!(rig.recover(accept), Err(AdminError::MayBeElsewhere(id(1))));
    }
    rig.revive(1);
    rig.bring(3);
    rig.rest(Duration::from_secs(60));
    let lost = rig.recover(true).unwrap().blocks;
    let unread = rig.read_what_is_left();
    assert!(
        unread.len() as u64 == lost && lost < BLOCKS / 2,
        "{lost} of {BLOCKS} are lost: what 1 has is there"
    );
}
