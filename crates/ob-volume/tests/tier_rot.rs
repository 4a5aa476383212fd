//! Records that rot at servers: they are read elsewhere, and written over with what others have.

use std::time::Duration;

use ob_core::{BlockLen, ChunkName, ServerId, Units, VolumeId};
use ob_format::volume::metadata::ChunkState;
use ob_format::volume::{ChunkKind, Record};
use ob_split::wire::{Completion, CompletionStatus};
use ob_volume::metadata::{MetadataValue, Name};
use ob_volume::plans::Run;
use ob_volume::tier::TierConfig;
use ob_volume::wire::EndState;
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;

use crate::tier_model::{both, read_all, seeds, send_any};
use crate::tier_rig::{Dice, Rig, Running, config, done, value_of, volume};
use crate::tier_servers::{Replica, ReplicaIs};

/// Records that a tier keeps in mind at a time.
const WAITING_MAX: usize = 64;
const VOLUME: VolumeId = VolumeId(1);

/// A member that gave what is wrong, or that has nothing.
struct Fetched {
    result: Result<Vec<u64>, CompletionStatus>,
    bad_members: u8,
}

impl Rig {
    pub(crate) fn read(&mut self, at: usize, first: Option<u32>, runs: &[Run]) {
        let Running { plan, expected, .. } = self.running.remove(at);
        if runs.len() > self.runs_max {
            return self.complete(&[done(plan.handle, CompletionStatus::Refused)], None);
        }
        let (id, _) = self.command(plan.handle);
        let mut values = Vec::new();
        let mut status = if self.whim() { CompletionStatus::NotVerified } else { CompletionStatus::Good };
        let (mut bad, mut bad_run) = (0, 0);
        for (number, run) in runs.iter().enumerate() {
            match run {
                Run::Zeros { blocks } => values.resize(values.len() + *blocks as usize, 0),
                Run::Record { .. } => {
                    let Fetched { result, bad_members } = self.fetch(id, run);
                    if bad_members != 0 && bad_run == 0 {
                        bad_run = number as u16 + 1;
                    }
                    bad |= bad_members;
                    match result {
                        Ok(found) => values.extend(found),
                        Err(of) => {
                            status = of;
                            break;
                        }
                    }
                }
            }
        }
        if status == CompletionStatus::Good && first.is_none() && self.is_gate_late() {
            status = CompletionStatus::Withheld;
        }
        if status == CompletionStatus::Good {
            let is_as_expected = self.is_shared || values == expected;
            assert!(is_as_expected, "blocks are not what they were when they were looked up");
            let from = first.unwrap_or(0) as usize;
            let message = self.messages.get_mut(&plan.handle.0).unwrap();
            message.read[from..from + values.len()].copy_from_slice(&values);
            if first.is_none() {
                self.finish_message(&plan, Status::SUCCESS, true);
            }
        }
        let completion = Completion { bad_members: bad, units: bad_run, ..done(plan.handle, status) };
        self.complete(&[completion], None);
    }

    /// The blocks of a run, as a member has them; or why nobody gives them, and which members are wrong.
    fn fetch(&self, id: VolumeId, run: &Run) -> Fetched {
        let Run::Record { slot, place, units, lba, blocks } = *run else { panic!("{run:?}") };
        let set = &self.slots[&slot.0].set;
        assert_eq!(set.chunk.volume, id);
        let mut bad_members = 0;
        let mut numbers: Vec<usize> = (0..usize::from(set.members)).collect();
        let all = self.servers.len();
        numbers
            .sort_by_key(|number| (usize::from(set.channels[*number].0) - 1 + all - self.first_asked) % all);
        for number in numbers {
            let server = self.server_of(set.channels[number]).map(|server| &self.servers[server]);
            let Some(server) = server.filter(|server| !server.hangs) else { continue };
            let replica = server.chunks.get(&set.chunk).filter(|replica| !replica.rotten.contains(&place));
            let bytes = replica.and_then(|replica| replica.records.get(&place));
            let Some(record) = bytes.and_then(|bytes| Record::decode(bytes).ok()) else {
                bad_members |= 1 << number;
                continue;
            };
            let header = record.header;
            assert_eq!((header.chunk, header.offset, header.units()), (set.chunk, place, units));
            assert!(
                header.lba <= lba && lba.0 + blocks <= header.lba.0 + header.blocks,
                "{run:?} of {header:?}"
            );
            let all = record.payload.chunks(self.block_len(id).bytes() as usize).map(value_of);
            let values = all.skip((lba.0 - header.lba.0) as usize).take(blocks as usize).collect();
            return Fetched { result: Ok(values), bad_members };
        }
        let of = if bad_members == 0 { CompletionStatus::NoMember } else { CompletionStatus::NotVerified };
        Fetched { result: Err(of), bad_members }
    }

    /// How many records servers cannot read any more, of chunks that the store names them for.
    fn rotten(&mut self) -> usize {
        let names: Vec<(usize, ChunkName)> = self
            .servers
            .iter()
            .enumerate()
            .flat_map(|(number, server)| server.chunks.keys().map(move |name| (number, *name)))
            .collect();
        let mut count = 0;
        for (server, name) in names {
            let Some(MetadataValue::Chunk(chunk)) = self.stored(Name::Chunk(name)) else { continue };
            let is_member = chunk.members.servers().contains(&ServerId(server as u64 + 100));
            if chunk.state != ChunkState::Dead && is_member {
                count += self.servers[server].chunks[&name].rotten.len();
            }
        }
        count
    }
}

/// Until nothing waits to be mended, and all replicas are there.
fn mend(rig: &mut Rig) {
    for _ in 0..10_000 {
        rig.settle();
        let status = rig.tier.status();
        let is_whole = status.segments.iter().all(|segment| segment.closing == 0 && segment.degraded == 0);
        if status.mends_waiting == 0 && is_whole {
            return;
        }
        rig.pass(Duration::from_millis(50));
    }
    panic!("{:#?}", rig.tier.status());
}

fn one_volume(servers: u16) -> Rig {
    let mut config = config(vec![volume(1, BlockLen::Large, 3000)], servers);
    config.lost_after = Duration::from_secs(2);
    let mut rig = Rig::new(config, 1);
    rig.open();
    rig
}

fn ask(rig: &mut Rig, opcode: IoOpcode, start: u64, blocks: u32) -> Status {
    let handle = rig.send(opcode, VOLUME, start, blocks);
    rig.finish();
    rig.status_of(handle).unwrap()
}

/// Sixty records of eight blocks, in several chunks, of which the last one is open.
fn fill(rig: &mut Rig) {
    for record in 0..60 {
        assert_eq!(ask(rig, IoOpcode::Write, record * 8, 8), Status::SUCCESS);
    }
    mend(rig);
}

fn read_from(rig: &mut Rig, first: usize) {
    rig.first_asked = first;
    for record in 0..60 {
        assert_eq!(ask(rig, IoOpcode::Read, record * 8, 8), Status::SUCCESS);
    }
}

fn rot_all(rig: &mut Rig, server: usize) {
    rig.servers[server].chunks.values_mut().for_each(super::tier_servers::Replica::rot);
}

#[test]
fn what_a_read_finds_rotten_is_mended() {
    let mut rig = one_volume(3);
    fill(&mut rig);
    rot_all(&mut rig, 1);
    let rotten = rig.rotten();
    assert!(rotten >= 60);
    read_from(&mut rig, 1);
    mend(&mut rig);
    assert_eq!(rig.rotten(), 0, "{:?}", rig.tier.status());
    let status = rig.tier.status();
    assert_eq!(status.mended, status.rotten_found);
    assert_eq!((status.mends_given_up, status.members_dropped, status.errors), (0, 0, 0));
    assert!(rig.servers[1].mended >= rotten && rig.servers[0].mended + rig.servers[2].mended == 0);
    rig.check_log(&[0, 1, 2]);
}

/// A read of many records says of one which it was: the others show when they are read again.
#[test]
fn a_read_of_many_records_mends_the_first() {
    let mut rig = one_volume(3);
    for record in 0..8 {
        assert_eq!(ask(&mut rig, IoOpcode::Write, record * 2, 2), Status::SUCCESS);
    }
    let places: Vec<Units> = rig.servers[0].chunks.values().next().unwrap().records.keys().copied().collect();
    for server in 0..2 {
        let replica = rig.servers[server].chunks.values_mut().next().unwrap();
        replica.rotten.extend([places[2 + server], places[6]]);
    }
    for _ in 0..8 {
        rig.first_asked = (rig.first_asked + 1) % 3;
        assert_eq!(ask(&mut rig, IoOpcode::Read, 0, 16), Status::SUCCESS);
        mend(&mut rig);
    }
    assert_eq!(rig.rotten(), 0, "{:?}", rig.tier.status());
    rig.check_log(&[0, 1, 2]);
}

#[test]
fn what_compaction_finds_rotten_is_mended() {
    let mut rig = one_volume(3);
    fill(&mut rig);
    rot_all(&mut rig, 0);
    // Every other record is overwritten, so that what is left is moved.
    for record in (0..60).step_by(2) {
        assert_eq!(ask(&mut rig, IoOpcode::Write, record * 8, 8), Status::SUCCESS);
    }
    for _ in 0..400 {
        rig.pass(Duration::from_millis(50));
        rig.settle();
    }
    let status = rig.tier.status();
    assert!(status.moves >= 5 && status.rotten_found > 0, "{status:?}");
    mend(&mut rig);
    read_from(&mut rig, 0);
    rig.check_log(&[0, 1, 2]);
}

#[test]
fn what_a_copy_finds_rotten_is_mended() {
    let mut rig = one_volume(4);
    fill(&mut rig);
    // Whoever has a chunk beside 3 and the one that dies has to give it.
    rot_all(&mut rig, 2);
    rig.kill(1);
    rig.send(IoOpcode::Write, VOLUME, 0, 1);
    rig.finish();
    for _ in 0..100 {
        rig.pass(Duration::from_millis(50));
        rig.settle();
    }
    mend(&mut rig);
    let status = rig.tier.status();
    assert!(status.replicas_made > 0 && status.mended > 0, "{status:?}");
    read_from(&mut rig, 0);
    read_from(&mut rig, 1);
    read_from(&mut rig, 2);
    mend(&mut rig);
    rig.check_log(&[0, 2, 3]);
}

fn pass_ten_seconds(rig: &mut Rig) {
    for _ in 0..200 {
        rig.pass(Duration::from_millis(50));
        rig.settle();
    }
}

/// A server that does not take the record has its replica no more: another has it.
#[test]
fn a_member_that_cannot_be_mended_is_dropped_and_made_anew() {
    let mut rig = one_volume(4);
    fill(&mut rig);
    rot_all(&mut rig, 1);
    rig.servers[1].cannot_mend = true;
    let before = rig.servers[1].deleted;
    (0..4).for_each(|first| read_from(&mut rig, first));
    mend(&mut rig);
    pass_ten_seconds(&mut rig);
    let status = rig.tier.status();
    assert!(status.members_dropped > 3, "{status:?}");
    assert!(rig.servers[1].deleted > before, "what nobody needs any more goes");
    assert_eq!(rig.rotten(), 0, "{status:?}");
    rig.check_log(&[0, 1, 2, 3]);
    read_from(&mut rig, 1);
}

/// Where nobody else can have a replica, one that is whole but for some records is better than none.
#[test]
fn a_member_that_cannot_be_mended_stays_where_there_is_no_other() {
    let mut rig = one_volume(3);
    fill(&mut rig);
    rot_all(&mut rig, 1);
    rig.servers[1].cannot_mend = true;
    let before = rig.servers[1].deleted;
    (0..3).for_each(|first| read_from(&mut rig, first));
    mend(&mut rig);
    pass_ten_seconds(&mut rig);
    let status = rig.tier.status();
    assert_eq!((status.members_dropped, rig.servers[1].deleted), (0, before), "{status:?}");
    assert!(status.mends_given_up > 0, "{status:?}");
    // It is tried again with the next read.
    rig.servers[1].cannot_mend = false;
    read_from(&mut rig, 1);
    mend(&mut rig);
    assert_eq!(rig.rotten(), 0, "{:?}", rig.tier.status());
    rig.check_log(&[0, 1, 2]);
}

/// One that is the only one there keeps what it has.
#[test]
fn the_last_one_that_is_there_is_not_dropped() {
    let mut rig = one_volume(3);
    fill(&mut rig);
    rig.kill(0);
    rig.kill(2);
    rig.settle();
    rig.servers[1].cannot_mend = true;
    let replica = rig.servers[1].chunks.values_mut().next().unwrap();
    let first = *replica.records.keys().next().unwrap();
    replica.rotten.insert(first);
    let read = rig.send(IoOpcode::Read, VOLUME, 0, 8);
    for _ in 0..100 {
        rig.pass(Duration::from_millis(50));
        rig.settle();
    }
    assert_eq!((rig.status_of(read), rig.tier.status().members_dropped), (None, 0));
    assert!(rig.tier.status().mends_given_up > 0);
    rig.revive(0);
    rig.revive(2);
    rig.servers[1].cannot_mend = false;
    rig.finish();
    assert_eq!(rig.status_of(read), Some(Status::SUCCESS));
    read_from(&mut rig, 0);
    read_from(&mut rig, 1);
    read_from(&mut rig, 2);
    mend(&mut rig);
    assert_eq!(rig.rotten(), 0);
    rig.check_log(&[0, 1, 2]);
}

#[test]
fn no_more_is_kept_in_mind_than_there_is_room_for() {
    let mut rig = one_volume(3);
    for block in 0..200 {
        assert_eq!(ask(&mut rig, IoOpcode::Write, block, 1), Status::SUCCESS);
    }
    mend(&mut rig);
    rot_all(&mut rig, 0);
    // Nothing is agreed on, so nothing that is open is sealed.
    rig.is_store_silent = true;
    for block in 0..200 {
        let read = rig.send(IoOpcode::Read, VOLUME, block, 1);
        for _ in 0..8 {
            rig.step();
        }
        let _ = rig.status_of(read);
    }
    assert!(rig.tier.status().mends_waiting <= WAITING_MAX + 1, "{:?}", rig.tier.status());
    rig.is_store_silent = false;
    rig.finish();
    for _ in 0..8 {
        for block in 0..200 {
            assert_eq!(ask(&mut rig, IoOpcode::Read, block, 1), Status::SUCCESS);
        }
        mend(&mut rig);
    }
    assert_eq!(rig.rotten(), 0, "{:?}", rig.tier.status());
}

fn rot_any(rig: &mut Rig, dice: &mut Dice) {
    // At one server alone, so that others have it; and not of the index, which is read when nobody asks.
    let replicas: Vec<_> =
        rig.servers[0].chunks.values_mut().filter(|replica| replica.kind == ChunkKind::Data).collect();
    let count = replicas.len() as u64;
    let Some(replica) = replicas.into_iter().nth(dice.below(count) as usize) else { return };
    let places: Vec<Units> = replica.records.keys().copied().collect();
    if let Some(place) = places.get(dice.below(places.len() as u64) as usize) {
        replica.rotten.insert(*place);
    }
}

/// Whatever else befalls servers meanwhile: what is read in the end from whoever is asked first is what was written, and nothing that was
/// read stays rotten.
#[test]
fn rot_under_random_commands_is_never_read_and_is_mended() {
    let mut mended = 0;
    for seed in 0..seeds() {
        let mut rig = Rig::new(TierConfig { lost_after: Duration::from_secs(2), ..both() }, seed);
        let mut dice = Dice::new(seed + 9_000_000);
        rig.open();
        let mut left = 250;
        while left > 0 {
            rig.first_asked = dice.below(3) as usize;
            if dice.below(20) == 0 {
                rot_any(&mut rig, &mut dice);
            } else if dice.below(200) == 0 {
                let server = 1 + dice.below(3) as usize;
                if rig.servers.iter().all(|server| !server.is_down) {
                    rig.kill(server);
                } else {
                    (1..4).for_each(|server| rig.revive(server));
                }
            } else if dice.below(3) == 0 && rig.messages.len() < 24 {
                send_any(&mut rig, &mut dice);
                left -= 1;
            } else if !rig.step() || dice.below(50) == 0 {
                rig.pass(Duration::from_millis(1 + dice.below(300)));
            }
        }
        (1..4).for_each(|server| rig.revive(server));
        rig.finish();
        // Of a read of many records the first that has rotted is told.
        let mut found = u64::MAX;
        while rig.tier.status().rotten_found != found {
            found = rig.tier.status().rotten_found;
            for first in 0..4 {
                rig.first_asked = first;
                read_all(&mut rig);
                mend(&mut rig);
            }
        }
        let is_legal = |status| [Status::SUCCESS, Status::NAMESPACE_NOT_READY].contains(&status);
        for answered in &rig.answered {
            assert!(is_legal(answered.status), "seed {seed}: {answered:?}");
        }
        rig.check_log(&[0, 1, 2, 3]);
        let status = rig.tier.status();
        assert_eq!(status.mistakes, 0, "seed {seed}");
        mended += status.mended;
    }
    assert!(mended > 20, "{mended} mended");
}

/// C4, C8: no member has all that was acknowledged, and two of them have it together.
#[test]
fn what_two_rotten_members_have_together_is_sealed() {
    let mut rig = one_volume(3);
    for record in 0..3 {
        assert_eq!(ask(&mut rig, IoOpcode::Write, record * 8, 8), Status::SUCCESS);
    }
    rig.kill(2);
    rig.die();
    for (server, rotten) in [(0, 1), (1, 0)] {
        let replica = rig.servers[server].chunks.values_mut().next().unwrap();
        replica.is_scanned = true;
        let place = *replica.records.keys().nth(rotten).unwrap();
        replica.rotten.insert(place);
    }
    let read = rig.send(IoOpcode::Read, VOLUME, 0, 24);
    for _ in 0..200 {
        rig.pass(Duration::from_millis(50));
        rig.settle();
    }
    assert_eq!(rig.status_of(read), Some(Status::SUCCESS), "{:?}", rig.tier.status());
    rig.revive(2);
    mend(&mut rig);
    assert_eq!(rig.rotten(), 0);
    rig.check_log(&[0, 1, 2]);
}

/// C4: nobody knows of the longest whether it has all that was acknowledged. Of the shorter one, which is broken in the middle, it shows when it has
/// been filled up.
#[test]
fn what_the_longest_has_mends_a_shorter_one() {
    let mut rig = one_volume(3);
    for record in 0..3 {
        assert_eq!(ask(&mut rig, IoOpcode::Write, record * 8, 8), Status::SUCCESS);
    }
    rig.kill(2);
    rig.die();
    let [longest, shorter] =
        [0, 1].map(|server| *rig.servers[server].chunks.keys().next().expect("it is a member"));
    rig.servers[0].chunks.get_mut(&longest).unwrap().known = EndState::Doubtful;
    let replica = rig.servers[1].chunks.get_mut(&shorter).unwrap();
    replica.is_scanned = true;
    let place = *replica.records.keys().nth(1).unwrap();
    replica.rotten.insert(place);
    let read = rig.send(IoOpcode::Read, VOLUME, 0, 24);
    for _ in 0..200 {
        rig.pass(Duration::from_millis(50));
        rig.settle();
    }
    assert_eq!(rig.status_of(read), Some(Status::SUCCESS), "{:?}", rig.tier.status());
    rig.revive(2);
    mend(&mut rig);
    assert_eq!(rig.rotten(), 0);
    rig.check_log(&[0, 1, 2]);
}

/// A sealed chunk that servers have, and where its first records begin.
fn sealed_records(rig: &Rig) -> (ChunkName, Vec<Units>) {
    let is_sealed =
        |replica: &&Replica| matches!(replica.is, ReplicaIs::Sealed(_)) && replica.records.len() > 2;
    let chunks = rig.servers[1].chunks.iter();
    let (name, replica) =
        chunks.filter(|(_, replica)| replica.kind == ChunkKind::Data).find(|(_, of)| is_sealed(of)).unwrap();
    (*name, replica.records.keys().copied().collect())
}

/// R6: two records have a block in common that cannot be read.
#[test]
fn what_lies_beside_is_sent_first() {
    let mut rig = one_volume(3);
    fill(&mut rig);
    let (name, places) = sealed_records(&rig);
    for (one, two) in [(0, 1), (1, 2)] {
        let server = &mut rig.servers[1];
        server.shares.insert((name, places[one], places[two]));
        server.chunks.get_mut(&name).unwrap().rotten.extend([places[one], places[two]]);
    }
    read_from(&mut rig, 1);
    mend(&mut rig);
    let status = rig.tier.status();
    assert_eq!((rig.rotten(), status.members_dropped, status.mends_given_up), (0, 0, 0), "{status:?}");
    rig.check_log(&[0, 1, 2]);
}

/// The same, where no other member has both.
#[test]
fn what_lies_beside_is_given_by_whoever_has_it() {
    let mut rig = one_volume(3);
    fill(&mut rig);
    let (name, places) = sealed_records(&rig);
    for (server, rotten) in [(0, vec![places[0]]), (1, vec![places[0], places[1]]), (2, vec![places[1]])] {
        rig.servers[server].chunks.get_mut(&name).unwrap().rotten.extend(rotten);
    }
    rig.servers[1].shares.insert((name, places[0], places[1]));
    (0..3).for_each(|first| read_from(&mut rig, first));
    mend(&mut rig);
    let status = rig.tier.status();
    assert_eq!((rig.rotten(), status.members_dropped), (0, 0), "{status:?}");
    rig.check_log(&[0, 1, 2]);
}

/// A server that forgets what it was sent does not keep the others waiting.
#[test]
fn a_server_that_asks_for_the_same_again_is_given_up() {
    let mut rig = one_volume(3);
    fill(&mut rig);
    let (name, places) = sealed_records(&rig);
    rig.servers[1].shares.insert((name, places[0], places[1]));
    rig.servers[1].chunks.get_mut(&name).unwrap().rotten.extend([places[0], places[1]]);
    rig.servers[1].forgets_halves = true;
    read_from(&mut rig, 1);
    mend(&mut rig);
    let status = rig.tier.status();
    assert!(status.mends_given_up > 0 && status.members_dropped == 0, "{status:?}");
    rig.servers[1].forgets_halves = false;
    read_from(&mut rig, 1);
    mend(&mut rig);
    assert_eq!(rig.rotten(), 0);
}

/// That a device could not may be said once, whatever the reason: a replica is not given up for it.
#[test]
fn what_a_device_could_not_is_tried_again() {
    let mut rig = one_volume(4);
    fill(&mut rig);
    rot_all(&mut rig, 1);
    rig.servers[1].medium_mends = 3;
    (0..4).for_each(|first| read_from(&mut rig, first));
    mend(&mut rig);
    let status = rig.tier.status();
    assert_eq!((status.members_dropped, rig.rotten()), (0, 0), "{status:?}");
    // One that never can has its replica no more.
    rot_all(&mut rig, 1);
    rig.servers[1].medium_mends = usize::MAX;
    (0..4).for_each(|first| read_from(&mut rig, first));
    mend(&mut rig);
    assert!(rig.tier.status().members_dropped > 0, "{:?}", rig.tier.status());
}
