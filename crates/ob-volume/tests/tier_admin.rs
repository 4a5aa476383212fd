//! Administrators: volumes that are made, resized and removed, whoever dies meanwhile, and however many ask at once.

use std::collections::BTreeSet;
use std::time::Duration;

use ob_core::{BlockLen, SegmentId, SegmentName, Token, VolumeId};
use ob_format::volume::metadata::{Class, Text, Volume, VolumeState};
use ob_volume::metadata::{Keys, MetadataAnswer, MetadataOp, MetadataStore, MetadataValue, Name};
use ob_volume::tier::{
    AdminAnswer, AdminError, AdminRequest, NewVolume, Ticket, TierEvent, VolumeFacts, VolumeHealth,
};
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;

use crate::tier_model::seeds;
use crate::tier_pair::{Tiers, shared};
use crate::tier_rig::{Dice, Rig, config, volume};

const FIRST: VolumeId = VolumeId(1);
const BLOCKS: u64 = 3000;

fn rig(seed: u64) -> Rig {
    let mut rig = Rig::new(config(vec![volume(1, BlockLen::Large, BLOCKS)], 4), seed);
    rig.accepts_volumes = true;
    rig.open();
    rig
}

fn name(text: &str) -> Text<64> {
    Text::new(text).unwrap()
}

/// A volume of so many blocks, in segments of 1024.
fn new(text: &str, uuid: u8, blocks: u64) -> NewVolume {
    NewVolume {
        name: name(text),
        uuid: [uuid; 16],
        size: blocks * 4096,
        block_len: BlockLen::Large,
        class: Class::Plain,
        segment_len: 1024 * 4096,
        chunk_len: 16 << 20,
        replicas: 3,
        replicas_min: 2,
    }
}

impl Rig {
    fn administer(&mut self, ticket: u64, request: AdminRequest) {
        self.tell(TierEvent::Administer { ticket: Ticket(ticket), request });
    }

    /// Asks, and waits for the answer.
    fn ask(&mut self, request: AdminRequest) -> Result<AdminAnswer, AdminError> {
        self.administer(1000, request);
        for _ in 0..2000 {
            self.settle();
            let told = self.told_admin.iter().position(|(ticket, _)| *ticket == Ticket(1000));
            if let Some(at) = told {
                return self.told_admin.swap_remove(at).1;
            }
            self.pass(Duration::from_millis(20));
        }
        panic!("nobody answers: {:#?}", self.tier.status());
    }

    fn create(&mut self, text: &str, uuid: u8, blocks: u64) -> Result<VolumeFacts, AdminError> {
        let answer = self.ask(AdminRequest::CreateVolume(new(text, uuid, blocks)))?;
        let AdminAnswer::Volume(facts, _) = answer else { panic!("{answer:?}") };
        self.know(facts.id, &facts.volume);
        Ok(facts)
    }

    /// What the card's half of the rig has to know of a volume.
    fn know(&mut self, id: VolumeId, volume: &Volume) {
        self.volumes.insert(id, *volume);
        let blocks = (volume.size / u64::from(volume.block_len.bytes())) as usize;
        self.model.entry(id).or_default().resize(blocks, 0);
    }

    fn remove(&mut self, text: &str) -> Result<AdminAnswer, AdminError> {
        self.ask(AdminRequest::RemoveVolume { name: name(text) })
    }

    fn resize(&mut self, text: &str, blocks: u64, may_shrink: bool) -> Result<VolumeFacts, AdminError> {
        let size = blocks * 4096;
        let answer = self.ask(AdminRequest::ResizeVolume { name: name(text), size, may_shrink })?;
        let AdminAnswer::Volume(facts, _) = answer else { panic!("{answer:?}") };
        self.know(facts.id, &facts.volume);
        Ok(facts)
    }

    fn list(&mut self) -> Vec<VolumeFacts> {
        match self.ask(AdminRequest::ListVolumes) {
            Ok(AdminAnswer::Volumes(volumes)) => volumes,
            other => panic!("{other:?}"),
        }
    }

    fn do_io(&mut self, opcode: IoOpcode, id: VolumeId, start: u64, blocks: u32) -> Status {
        let handle = self.send(opcode, id, start, blocks);
        self.finish();
        self.status_of(handle).unwrap()
    }

    /// Time passes, and whatever is under way happens.
    fn rest(&mut self, time: Duration) {
        for _ in 0..time.as_millis() / 50 {
            self.pass(Duration::from_millis(50));
            self.settle();
        }
    }

    /// Keys that the store has below a prefix.
    fn keys_of(&mut self, prefix: ob_volume::metadata::Key) -> Vec<String> {
        self.store.submit(Token(u64::MAX), MetadataOp::List { prefix, after: None, most: 1024 }).unwrap();
        match self.store.poll().unwrap().result {
            Ok(MetadataAnswer::Values { entries, .. }) => {
                entries.iter().map(|entry| entry.key.as_str().to_owned()).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// All that the store has of a volume but its record and its name.
    fn rest_of(&mut self, id: VolumeId) -> Vec<String> {
        let keys = Keys::new("default").unwrap();
        let mut all = self.keys_of(keys.segments(id));
        for segment in 0..8 {
            all.extend(self.keys_of(keys.chunks(SegmentName { volume: id, segment: SegmentId(segment) })));
        }
        all
    }

    fn record(&mut self, id: VolumeId) -> Option<Volume> {
        match self.stored(Name::Volume(id)) {
            Some(MetadataValue::Volume(volume)) => Some(volume),
            _ => None,
        }
    }

    fn named(&mut self, text: &str) -> Option<VolumeId> {
        match self.stored(Name::VolumeName(name(text))) {
            Some(MetadataValue::VolumeName(id)) => Some(id),
            _ => None,
        }
    }

    /// Replicas of a volume's chunks on all servers.
    fn replicas_of(&self, id: VolumeId) -> usize {
        self.servers.iter().flat_map(|server| server.chunks.keys()).filter(|chunk| chunk.volume == id).count()
    }

    fn wait_gone(&mut self, id: VolumeId) {
        for _ in 0..2000 {
            self.settle();
            if self.record(id).is_none() {
                return;
            }
            self.pass(Duration::from_millis(50));
        }
        panic!("{:?} is never gone: {:?} {:#?}", id, self.rest_of(id), self.tier.status());
    }
}

#[test]
fn volumes_are_made_and_each_has_what_was_written_to_it() {
    let mut rig = rig(1);
    let second = rig.create("data", 9, 2048).unwrap();
    assert_eq!((second.id, second.volume.namespace.0), (VolumeId(2), 2));
    let third = rig.create("more", 10, 5000).unwrap();
    assert_eq!((third.id, third.volume.namespace.0), (VolumeId(3), 3));
    for (id, blocks) in [(FIRST, BLOCKS), (second.id, 2048), (third.id, 5000)] {
        for start in [0, 1000, blocks - 40] {
            assert_eq!(rig.do_io(IoOpcode::Write, id, start, 40), Status::SUCCESS, "{id}");
        }
        let beyond = rig.do_io(IoOpcode::Write, id, blocks - 1, 2);
        assert!(beyond.is(Status::LBA_OUT_OF_RANGE), "{beyond}");
    }
    let check = |rig: &mut Rig| {
        for (id, blocks) in [(FIRST, BLOCKS), (second.id, 2048), (third.id, 5000)] {
            for start in (0..blocks).step_by(500) {
                let count = 500.min(blocks - start) as u32;
                assert_eq!(rig.do_io(IoOpcode::Read, id, start, count), Status::SUCCESS);
                let read = rig.answered.last().unwrap().read.clone();
                assert_eq!(read, rig.model[&id][start as usize..start as usize + count as usize], "{id}");
            }
        }
    };
    check(&mut rig);
    // The next life finds them, and makes none of those that are configured.
    rig.die();
    check(&mut rig);
    let names: Vec<String> = rig.list().iter().map(|facts| facts.volume.name.as_str().to_owned()).collect();
    assert_eq!(names, ["disk1", "data", "more"]);
    assert_eq!(rig.served, BTreeSet::from([FIRST, second.id, third.id]));
    let used: Vec<u64> = rig.list().iter().map(|facts| facts.used / 4096).collect();
    assert_eq!(used, [120, 120, 120]);
}

#[test]
fn what_cannot_be_is_refused() {
    let mut rig = rig(1);
    for wrong in ["", "-a", ".a", "a b", "a/b", "ä", "a\u{7f}", "_x"] {
        let Some(text) = Text::new(wrong) else { continue };
        let asked = AdminRequest::CreateVolume(NewVolume { name: text, ..new("a", 1, 100) });
        assert_eq!(rig.ask(asked), Err(AdminError::Name), "{wrong}");
    }
    let good = new("a", 9, 100);
    for wrong in [
        NewVolume { size: 0, ..good },
        NewVolume { size: 4097, ..good },
        NewVolume { size: u64::MAX / 4096 * 4096, ..good },
        NewVolume { segment_len: 4096, ..good },
        NewVolume { segment_len: 3 << 30, ..good },
        // Its index does not fit into two chunks.
        NewVolume { segment_len: 32 << 30, ..good },
        NewVolume { chunk_len: 1 << 20, ..good },
        NewVolume { chunk_len: 17 << 20, ..good },
        NewVolume { replicas: 0, ..good },
        NewVolume { replicas: 5, ..good },
        NewVolume { replicas_min: 4, ..good },
    ] {
        let told = rig.ask(AdminRequest::CreateVolume(wrong));
        assert!(matches!(told, Err(AdminError::Size(_) | AdminError::Shape(_))), "{wrong:?}: {told:?}");
    }
    assert_eq!(rig.create("disk1", 9, 100), Err(AdminError::NameTaken(name("disk1"))));
    assert_eq!(rig.remove("none"), Err(AdminError::UnknownVolume(name("none"))));
    assert_eq!(rig.resize("none", 1, true), Err(AdminError::UnknownVolume(name("none"))));
    assert_eq!(rig.resize("disk1", 100, false), Err(AdminError::WouldShrink));
    assert_eq!(rig.resize("disk1", BLOCKS, false).map(|facts| facts.volume.generation), Ok(1));
    let told = rig.ask(AdminRequest::ResizeVolume { name: name("disk1"), size: 1, may_shrink: true });
    assert_eq!(told, Err(AdminError::Size(4096)));
    let unchanged = rig.record(FIRST).unwrap();
    assert_eq!((unchanged.generation, rig.list().len()), (1, 1));
    // The default of people fits.
    let large = NewVolume { segment_len: 32 << 30, chunk_len: 64 << 20, size: 1 << 40, ..good };
    assert_eq!(large.check(), Ok(()));
    let small = NewVolume { block_len: BlockLen::Small, segment_len: 4 << 30, ..large };
    assert_eq!(small.check(), Ok(()));
}

/// A volume grows at once, and what was there stays; the memory of its index is counted right.
#[test]
fn a_volume_grows_and_keeps_what_it_has() {
    let mut rig = rig(3);
    let made = rig.create("data", 9, 1500).unwrap();
    assert_eq!(rig.do_io(IoOpcode::Write, made.id, 1490, 10), Status::SUCCESS);
    let reserved = rig.tier.status().index_reserved;
    let grown = rig.resize("data", 4000, false).unwrap();
    assert_eq!((grown.volume.generation, grown.volume.size), (2, 4000 * 4096));
    for start in [1495, 2047, 3990] {
        assert_eq!(rig.do_io(IoOpcode::Write, made.id, start, 10), Status::SUCCESS);
    }
    assert!(rig.tier.status().index_reserved > reserved);
    for life in 0..2 {
        assert_eq!(rig.do_io(IoOpcode::Read, made.id, 1400, 700), Status::SUCCESS);
        assert_eq!(rig.answered.last().unwrap().read, rig.model[&made.id][1400..2100], "life {life}");
        rig.die();
    }
    assert_eq!(rig.remove("data").map(drop), Ok(()));
    rig.wait_gone(made.id);
    assert_eq!(rig.tier.status().index_reserved, 0, "only the one that is gone had any");
}

/// What is cut off from a volume never comes back: not by the next life, nor when the volume grows, whoever has its segments.
#[test]
fn what_is_cut_off_never_comes_back() {
    for seed in 0..seeds() * 3 {
        let mut rig = rig(seed);
        rig.unknown = if seed.is_multiple_of(2) { u64::MAX } else { 6 };
        let mut dice = Dice::new(seed + 8_000_000);
        let made = rig.create("data", 9, 4000).unwrap();
        // In three segments: one is cut in its midst, one is beyond the end, one is not touched.
        for start in [0, 1000, 1040, 1500, 2100, 3000, 3990] {
            assert_eq!(rig.do_io(IoOpcode::Write, made.id, start, 10), Status::SUCCESS);
        }
        let end = 1045;
        // Something is under way on both sides of the end when it is cut.
        let under_way: Vec<u32> =
            [1030, 1043, 2105].map(|start| rig.send(IoOpcode::Write, made.id, start, 8)).into();
        for _ in 0..dice.below(20) {
            rig.step();
        }
        let cut = rig.resize("data", end, true).unwrap();
        assert_eq!((cut.volume.size, cut.volume.cut_from), (end * 4096, Some(4000 * 4096)), "seed {seed}");
        assert_eq!(rig.resize("data", 4000, false), Err(AdminError::StillShrinking), "seed {seed}");
        for _ in 0..dice.below(4) {
            for _ in 0..dice.below(60) {
                if !rig.step() {
                    rig.pass(Duration::from_millis(20));
                }
            }
            rig.die();
        }
        rig.finish();
        for handle in under_way {
            let status = rig.status_of(handle).unwrap();
            let is_legal = [Status::SUCCESS, Status::NAMESPACE_NOT_READY, Status::LBA_OUT_OF_RANGE]
                .into_iter()
                .any(|legal| status.is(legal) || status == legal);
            assert!(is_legal, "seed {seed}: {status}");
        }
        for _ in 0..2000 {
            rig.settle();
            if rig.record(made.id).unwrap().cut_from.is_none() {
                break;
            }
            rig.pass(Duration::from_millis(50));
        }
        let record = rig.record(made.id).unwrap();
        assert_eq!(record.cut_from, None, "seed {seed}: {:#?}", rig.tier.status());
        if dice.below(2) == 0 {
            rig.die();
        }
        rig.model.get_mut(&made.id).unwrap().truncate(end as usize);
        rig.resize("data", 4000, false).unwrap();
        rig.finish();
        if dice.below(2) == 0 {
            rig.die();
        }
        assert_eq!(rig.do_io(IoOpcode::Read, made.id, 0, 4000), Status::SUCCESS, "seed {seed}");
        let read = rig.answered.last().unwrap().read.clone();
        assert!(
            read[end as usize..].iter().all(|value| *value == 0),
            "seed {seed}: what was cut off is back"
        );
        assert_eq!(read[..1030], rig.model[&made.id][..1030], "seed {seed}");
    }
}

/// What is older than the cut is waited for: a head before it would have what was cut off replayed.
#[test]
fn a_cut_waits_for_what_is_older() {
    let mut rig = rig(11);
    let made = rig.create("data", 9, 2048).unwrap();
    assert_eq!(rig.do_io(IoOpcode::Write, made.id, 1024, 4), Status::SUCCESS);
    let older = rig.send(IoOpcode::Write, made.id, 1030, 4);
    rig.held = Some(older);
    let beyond = rig.send(IoOpcode::Write, made.id, 1500, 20);
    rig.settle();
    assert_eq!(rig.status_of(beyond), Some(Status::SUCCESS));
    rig.resize("data", 1100, true).unwrap();
    rig.rest(Duration::from_secs(5));
    assert!(rig.status_of(older).is_none());
    rig.held = None;
    rig.finish();
    rig.rest(Duration::from_secs(5));
    assert_eq!(rig.record(made.id).unwrap().cut_from, None);
    rig.die();
    rig.model.get_mut(&made.id).unwrap().truncate(1100);
    rig.resize("data", 2048, false).unwrap();
    assert_eq!(rig.do_io(IoOpcode::Read, made.id, 1024, 1024), Status::SUCCESS);
    assert_eq!(rig.answered.last().unwrap().read, rig.model[&made.id][1024..]);
}

/// A volume is cut once more while the first cut still waits: what came between the two is forgotten for good as well.
#[test]
fn a_second_cut_takes_the_place_of_one_that_waits() {
    let mut rig = rig(12);
    let made = rig.create("data", 9, 2048).unwrap();
    assert_eq!(rig.do_io(IoOpcode::Write, made.id, 1600, 4), Status::SUCCESS);
    let older = rig.send(IoOpcode::Write, made.id, 1490, 20);
    rig.held = Some(older);
    rig.settle();
    rig.resize("data", 1500, true).unwrap();
    rig.rest(Duration::from_millis(1200));
    let between = rig.send(IoOpcode::Write, made.id, 1480, 15);
    rig.settle();
    rig.resize("data", 1100, true).unwrap();
    rig.rest(Duration::from_millis(1200));
    assert!(rig.status_of(older).is_none() && rig.status_of(between).is_none());
    rig.held = None;
    rig.finish();
    rig.rest(Duration::from_secs(5));
    assert_eq!(rig.record(made.id).unwrap().cut_from, None);
    rig.die();
    rig.model.get_mut(&made.id).unwrap().truncate(1100);
    rig.resize("data", 2048, false).unwrap();
    assert_eq!(rig.do_io(IoOpcode::Read, made.id, 1024, 1024), Status::SUCCESS);
    assert_eq!(rig.answered.last().unwrap().read, rig.model[&made.id][1024..]);
}

/// A tier that has not heard yet that a volume is gone takes no segment of it (S1).
#[test]
fn who_has_not_heard_takes_nothing_of_a_volume_that_is_gone() {
    let mut tiers = Tiers::new(&shared(), 2, 1);
    let mut dice = Dice::new(3);
    for rig in &mut tiers.rigs {
        rig.accepts_volumes = true;
    }
    tiers.open();
    tiers.settle(&mut dice);
    tiers.pass(Duration::from_millis(100));
    tiers.settle(&mut dice);
    assert_eq!(tiers.with(0).remove("disk1").map(drop), Ok(()));
    tiers.with(0).settle();
    assert_eq!(tiers.with(0).record(FIRST), None);
    let write = tiers.send(1, IoOpcode::Write, 0, 16);
    tiers.finish(&mut dice);
    let status = tiers.rigs[1].status_of(write).unwrap();
    assert!(status.is(Status::INVALID_NAMESPACE), "{status}");
    assert_eq!(tiers.with(0).rest_of(FIRST), Vec::<String>::new());
}

#[test]
fn a_removed_volume_leaves_nothing_and_its_name_is_another_s() {
    let mut rig = rig(4);
    let made = rig.create("data", 9, 3000).unwrap();
    assert_eq!(rig.do_io(IoOpcode::Write, FIRST, 5, 20), Status::SUCCESS);
    for start in [0, 1024, 2048, 2900] {
        assert_eq!(rig.do_io(IoOpcode::Write, made.id, start, 60), Status::SUCCESS);
    }
    assert!(rig.replicas_of(made.id) >= 9);
    // What is under way is told so, or done; it never comes back.
    let under_way: Vec<u32> =
        (0..4).map(|number| rig.send(IoOpcode::Write, made.id, number * 700, 30)).collect();
    assert_eq!(rig.remove("data").map(drop), Ok(()));
    assert_eq!(rig.served, BTreeSet::from([FIRST]), "its namespace goes before it is answered");
    rig.finish();
    for handle in under_way {
        let status = rig.status_of(handle).unwrap();
        assert!(status.is_success() || status.is(Status::INVALID_NAMESPACE), "{status}");
    }
    let refused = rig.do_io(IoOpcode::Read, made.id, 0, 1);
    assert!(refused.is(Status::INVALID_NAMESPACE) && refused.do_not_retry(), "{refused}");
    rig.wait_gone(made.id);
    rig.rest(Duration::from_secs(3));
    assert_eq!((rig.rest_of(made.id), rig.named("data")), (Vec::new(), None));
    assert_eq!(rig.replicas_of(made.id), 0);
    // The next one of that name is another, and has nothing.
    let next = rig.create("data", 11, 3000).unwrap();
    assert_eq!((next.id, next.volume.namespace.0), (VolumeId(3), 3));
    assert_eq!(rig.do_io(IoOpcode::Read, next.id, 0, 3000), Status::SUCCESS);
    assert!(rig.answered.last().unwrap().read.iter().all(|value| *value == 0));
    assert_eq!(rig.do_io(IoOpcode::Read, FIRST, 0, 30), Status::SUCCESS);
    assert_eq!(rig.answered.last().unwrap().read, rig.model[&FIRST][..30]);
    // Not even one that was configured is made again.
    assert_eq!(rig.remove("disk1").map(drop), Ok(()));
    rig.wait_gone(FIRST);
    rig.die();
    rig.rest(Duration::from_secs(2));
    assert_eq!(rig.list().iter().map(|facts| facts.id).collect::<Vec<_>>(), [VolumeId(3)]);
}

/// Servers that are away when a volume goes have its chunks until they return.
#[test]
fn what_a_server_had_that_was_away_goes_when_it_returns() {
    for all_away in [false, true] {
        let mut rig = rig(5);
        let made = rig.create("data", 9, 3000).unwrap();
        for start in [0, 1024, 2048] {
            assert_eq!(rig.do_io(IoOpcode::Write, made.id, start, 60), Status::SUCCESS);
        }
        let away = if all_away { 0..4 } else { 1..2 };
        away.clone().for_each(|server| rig.kill(server));
        rig.settle();
        assert_eq!(rig.remove("data").map(drop), Ok(()));
        rig.wait_gone(made.id);
        assert!(rig.replicas_of(made.id) > 0);
        if all_away {
            // Its next life has never heard of it.
            rig.die();
        }
        away.for_each(|server| rig.revive(server));
        rig.rest(Duration::from_secs(20));
        assert_eq!(rig.replicas_of(made.id), 0, "all away: {all_away}");
    }
}

/// A chunk of a volume that the store has never heard of is of another time of the store, and stays.
#[test]
fn what_the_store_has_never_heard_of_stays() {
    let mut rig = rig(6);
    let copy = rig.store.clone();
    let made = rig.create("data", 9, 3000).unwrap();
    assert_eq!(rig.do_io(IoOpcode::Write, made.id, 0, 60), Status::SUCCESS);
    let before = rig.replicas_of(made.id);
    rig.store = copy;
    rig.die();
    rig.rest(Duration::from_secs(30));
    assert!(before > 0 && rig.replicas_of(made.id) == before);
    // One that another tier has made a moment ago is there, though this one does not know it yet.
    let again = rig.create("data", 9, 3000).unwrap();
    assert_eq!(again.id, made.id);
}

/// Whoever dies at whatever step, and whatever the store loses of its answers: a volume is there with its name, or neither is.
#[test]
fn whoever_dies_a_volume_is_as_before_or_as_after() {
    for seed in 0..seeds() * 10 {
        let mut rig = rig(seed);
        rig.unknown = if seed.is_multiple_of(2) { u64::MAX } else { 4 };
        let mut dice = Dice::new(seed + 5_000_000);
        rig.rest(Duration::from_secs(1));
        let kind = seed % 3;
        let mut before = None;
        if kind > 0 {
            let made = rig.create("data", 9, 2048).unwrap();
            assert_eq!(rig.do_io(IoOpcode::Write, made.id, 0, 60), Status::SUCCESS);
            before = Some(made.volume);
        }
        let request = match kind {
            0 => AdminRequest::CreateVolume(new("data", 9, 2048)),
            1 => AdminRequest::RemoveVolume { name: name("data") },
            _ => AdminRequest::ResizeVolume { name: name("data"), size: 4096 * 4096, may_shrink: false },
        };
        rig.administer(7, request);
        for _ in 0..dice.below(12) {
            if !rig.step() {
                rig.pass(Duration::from_millis(20));
            }
        }
        let told =
            rig.told_admin.iter().find(|(ticket, _)| *ticket == Ticket(7)).map(|(_, told)| told.is_ok());
        rig.die();
        rig.rest(Duration::from_secs(3));
        let (id, after) = (rig.named("data"), rig.record(VolumeId(2)));
        match kind {
            0 => {
                assert_eq!(id.is_some(), after.is_some(), "seed {seed}");
                assert!(told != Some(true) || after.is_some(), "seed {seed}: what was answered is durable");
            }
            1 => {
                let is_going = after.is_none_or(|after| after.state == VolumeState::Removing);
                assert!(told != Some(true) || is_going, "seed {seed}");
                assert_eq!(id.is_some(), after.is_some(), "seed {seed}");
            }
            _ => {
                let after = after.unwrap();
                let is_grown = after.size == 4096 * 4096 && after.generation == 2;
                assert!(is_grown || Some(after) == before, "seed {seed}: {after:?}");
                assert!(told != Some(true) || is_grown, "seed {seed}");
            }
        }
        // Whatever it was, another one can be made now, and removed.
        let other = rig.create("other", 77, 2048).unwrap();
        assert!(other.id.0 >= 2 && Some(other.id) != id, "seed {seed}");
        assert_eq!(rig.remove("other").map(drop), Ok(()), "seed {seed}");
        rig.wait_gone(other.id);
    }
}

/// Two tiers, and an administrator at each: numbers and names are given once, and the second one sees what the first one has done.
#[test]
fn two_administrators_at_once_agree() {
    for seed in 0..seeds() * 4 {
        let mut tiers = Tiers::new(&shared(), 2, seed);
        let mut dice = Dice::new(seed + 6_000_000);
        for rig in &mut tiers.rigs {
            rig.accepts_volumes = true;
            rig.unknown = if seed.is_multiple_of(2) { u64::MAX } else { 5 };
        }
        tiers.open();
        let rest = |tiers: &mut Tiers, dice: &mut Dice| {
            for _ in 0..100 {
                tiers.settle(dice);
                tiers.pass(Duration::from_millis(50));
            }
        };
        rest(&mut tiers, &mut dice);
        for by in 0..2 {
            let same = new("same", 20 + by as u8, 2048);
            tiers.with(by).administer(1, AdminRequest::CreateVolume(same));
            let own = new(["a", "b"][by], 30 + by as u8, 2048);
            tiers.with(by).administer(2, AdminRequest::CreateVolume(own));
        }
        rest(&mut tiers, &mut dice);
        let told = |tiers: &Tiers, by: usize, ticket: u64| {
            let mut all = tiers.rigs[by].told_admin.iter();
            all.find(|(of, _)| *of == Ticket(ticket)).unwrap().1.clone()
        };
        let made = [told(&tiers, 0, 1), told(&tiers, 1, 1)];
        assert_eq!(made.iter().filter(|made| made.is_ok()).count(), 1, "seed {seed}: {made:?}");
        assert!(made.contains(&Err(AdminError::NameTaken(name("same")))), "seed {seed}: {made:?}");
        assert!(told(&tiers, 0, 2).is_ok() && told(&tiers, 1, 2).is_ok(), "seed {seed}");
        // Both see all of them.
        for rig in &tiers.rigs {
            assert_eq!(rig.served.len(), 4, "seed {seed}");
        }
        // One resizes what the other removes.
        let size = 4096 * 4096;
        tiers.with(0).administer(3, AdminRequest::ResizeVolume { name: name("a"), size, may_shrink: false });
        tiers.with(1).administer(3, AdminRequest::RemoveVolume { name: name("a") });
        rest(&mut tiers, &mut dice);
        assert!(told(&tiers, 1, 3).is_ok(), "seed {seed}");
        for rig in &tiers.rigs {
            assert_eq!(rig.served.len(), 3, "seed {seed}");
        }
        let rig = tiers.with(0);
        assert_eq!(rig.named("a"), None, "seed {seed}");
    }
}

/// A volume goes though another tier has its segments, or nobody has.
#[test]
fn a_volume_of_several_tiers_goes() {
    let mut tiers = Tiers::new(&shared(), 2, 1);
    let mut dice = Dice::new(3);
    for rig in &mut tiers.rigs {
        rig.accepts_volumes = true;
    }
    tiers.open();
    for (by, start) in [(0, 0), (1, 1100), (0, 2100), (1, 1110), (0, 2110)] {
        tiers.send(by, IoOpcode::Write, start, 16);
        tiers.finish(&mut dice);
    }
    tiers.with(0).administer(1, AdminRequest::RemoveVolume { name: name("disk1") });
    for _ in 0..400 {
        tiers.settle(&mut dice);
        tiers.pass(Duration::from_millis(50));
    }
    let rig = tiers.with(0);
    assert_eq!((rig.record(FIRST), rig.rest_of(FIRST)), (None, Vec::new()));
    assert_eq!(rig.replicas_of(FIRST), 0);
    for rig in &tiers.rigs {
        assert!(rig.served.is_empty() && rig.tier.status().segments.is_empty());
    }
}

#[test]
fn what_is_wrong_with_a_volume_is_shown() {
    let mut rig = rig(8);
    assert_eq!(rig.do_io(IoOpcode::Write, FIRST, 0, 60), Status::SUCCESS);
    let shown = rig.ask(AdminRequest::ShowVolume { name: name("disk1") });
    let Ok(AdminAnswer::Volume(facts, segments)) = shown else { panic!("{shown:?}") };
    assert_eq!((facts.used, facts.health), (60 * 4096, VolumeHealth::Good));
    assert!(facts.stored >= 60 * 4096);
    assert_eq!(segments.len(), 1);
    let own = segments[0].own.unwrap();
    assert_eq!((own.open, own.mapped, own.trouble), (1, 60, None));
    rig.store = ob_volume::metadata::MemoryStore::new();
    // Who asks before a tier knows what there is waits for it.
    let mut early = Rig::new(config(vec![volume(1, BlockLen::Large, BLOCKS)], 4), 1);
    early.administer(5, AdminRequest::ListVolumes);
    assert!(early.told_admin.is_empty());
    early.open();
    early.settle();
    early.pass(Duration::from_millis(10));
    early.settle();
    assert!(matches!(&early.told_admin[..], [(Ticket(5), Ok(AdminAnswer::Volumes(all)))] if all.len() == 1));
}
