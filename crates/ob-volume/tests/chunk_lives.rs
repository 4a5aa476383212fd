//! What a chunk server knows in its next life.

use ob_core::Units;
use ob_format::volume::RECORDS_START;
use ob_volume::chunk::{ServerState, StartError};
use ob_volume::wire::{Answer, CreateState, EndState, Refusal, ReplicaState, Reply, Request};

use super::support::{FIRST, Rig, chunk, config, create, epoch, record_behind, records, units};

#[test]
fn what_was_acknowledged_is_there_after_a_loss_of_power() {
    let mut rig = Rig::new();
    let mut all = Vec::new();
    for life in 0..4u32 {
        let client = rig.greet(0, u64::from(life) + 1);
        for number in 1..=3 {
            let name = chunk(number);
            if life == 0 {
                rig.create(client, name, FIRST).unwrap();
                all.push(Vec::new());
            }
            let bytes = &mut all[number as usize - 1];
            let (end, state) = rig.stat(client, name, FIRST);
            assert_eq!((end.end.0, state), (RECORDS_START.0 + units(bytes).0, ReplicaState::Open));
            assert_eq!(end.content_crc, crc32c::crc32c(bytes));
            let known = if life == 0 { EndState::Known } else { EndState::Clean };
            assert_eq!(end.state, known, "life {life}");
            for blocks in [[1, 2], [30, 1], [3, 77]] {
                let offset = Units(RECORDS_START.0 + units(bytes).0);
                let more = records(name, offset, &blocks);
                rig.append(client, name, FIRST, offset, &more).unwrap();
                bytes.extend(more);
            }
            assert_eq!(rig.stat(client, name, FIRST).0.state, EndState::Known);
            assert_eq!(rig.read(client, name, RECORDS_START, bytes.len() as u32).unwrap(), *bytes);
        }
        let (told, _) = {
            let other = rig.connect();
            rig.hello(other, 9, 1)
        };
        let Answer::Good(Reply::Hello { server, incarnation }) = told.answer else { panic!("{told:?}") };
        assert_eq!((server.0, incarnation.0), (99, u64::from(life) + 1));
        rig = rig.lose_power();
    }
}

#[test]
fn fences_stops_and_seals_are_remembered() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let bytes = |number| records(chunk(number), RECORDS_START, &[1, 2]);
    let end = Units(RECORDS_START.0 + units(&bytes(1)).0);
    for number in 1..=2 {
        rig.create(client, chunk(number), FIRST).unwrap();
        rig.append(client, chunk(number), FIRST, RECORDS_START, &bytes(number)).unwrap();
        rig.get(client, Request::Stop { chunk: chunk(number), epoch: FIRST }).unwrap();
    }
    rig.get(client, create(chunk(3), FIRST, CreateState::Filling)).unwrap();
    let content_crc = crc32c::crc32c(&bytes(2));
    let seal = Request::Seal { chunk: chunk(2), epoch: FIRST, length: end, content_crc };
    rig.get(client, seal).unwrap();
    rig.get(client, Request::Fence { segment: chunk(1).segment_name(), epoch: epoch(4) }).unwrap();
    for life in 0..3 {
        rig = if life == 1 { rig.restart() } else { rig.lose_power() };
        let client = rig.greet(0, 1);
        let stale = Err(Refusal::Stale { known: 4 });
        assert_eq!(rig.get(client, Request::Stop { chunk: chunk(1), epoch: epoch(3) }), stale);
        let states = [1, 2, 3].map(|number| rig.stat(client, chunk(number), epoch(4)));
        assert_eq!(
            states.map(|(_, state)| state),
            [ReplicaState::Stopped, ReplicaState::Sealed, ReplicaState::Filling]
        );
        assert_eq!((states[0].0.end, states[0].0.state), (end, EndState::Clean));
        assert_eq!((states[1].0.end, states[1].0.content_crc), (end, content_crc));
        let more = records(chunk(1), end, &[1]);
        assert_eq!(rig.append(client, chunk(1), epoch(4), end, &more), Err(Refusal::Stopped));
    }
}

#[test]
fn a_chunk_is_appended_to_where_torn_bytes_lie_and_keeps_them_beside() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    let all = records(name, RECORDS_START, &[1, 1, 1]);
    rig.append(client, name, FIRST, RECORDS_START, &all).unwrap();
    // The second record rots: what lies behind it is not followed, and not lost either.
    let place = rig.disk.find(&all[576..]).unwrap();
    rig.disk.flip(place + 100);
    let mut rig = rig.restart();
    let client = rig.greet(0, 2);
    let end = Units(RECORDS_START.0 + 9);
    let told = rig.stat(client, name, FIRST).0;
    assert_eq!((told.end, told.state), (end, EndState::Doubtful));
    assert_eq!(rig.read(client, name, Units(end.0 + 9), 576).unwrap(), &all[1152..]);
    // Filling brings it back, and the scan goes on behind it.
    rig.get(client, Request::Stop { chunk: name, epoch: FIRST }).unwrap();
    let fill = Request::Fill { chunk: name, epoch: FIRST, offset: end };
    let told = rig.ask(client, fill, &all[576..1152]).0;
    let whole = Units(RECORDS_START.0 + units(&all).0);
    assert_eq!(told.answer, Answer::Good(Reply::Fill { durable: whole }));
    let told = rig.stat(client, name, FIRST).0;
    assert_eq!((told.end, told.content_crc, told.state), (whole, crc32c::crc32c(&all), EndState::Clean));
}

#[test]
fn rot_in_what_all_members_had_is_damage() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let name = chunk(1);
    rig.create(client, name, FIRST).unwrap();
    let mut all = record_behind(name, RECORDS_START, 1, 1, 1, Some(0));
    all.extend(record_behind(name, Units(RECORDS_START.0 + 9), 2, 1, 2, Some(0)));
    rig.append(client, name, FIRST, RECORDS_START, &all).unwrap();
    let place = rig.disk.find(&all).unwrap();
    rig.disk.flip(place + 100);
    let mut rig = rig.restart();
    let client = rig.greet(0, 2);
    let told = rig.stat(client, name, FIRST).0;
    assert_eq!((told.end, told.state), (RECORDS_START, EndState::Damaged));
    assert_eq!(told.everywhere, Units(RECORDS_START.0 + 9));
}

#[test]
fn a_ledger_that_fills_up_is_written_anew_and_forgets_nothing() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    let mut other = chunk(1);
    other.segment.0 = 99;
    rig.create(client, other, FIRST).unwrap();
    let segments = |number: u32| {
        let mut name = chunk(1);
        name.segment.0 = number % 50;
        name.segment_name()
    };
    // A megabyte of entries of 64 bytes, and some more.
    for round in 0..400u32 {
        let tags: Vec<u64> = (0..50)
            .map(|number| {
                let request = Request::Fence { segment: segments(number), epoch: epoch(round + 1) };
                rig.send(client, request, &[])
            })
            .collect();
        rig.run();
        assert_eq!(rig.told(client), tags);
        tags.iter().for_each(|tag| drop(rig.take(client, *tag)));
    }
    let mut rig = rig.lose_power();
    let client = rig.greet(0, 2);
    for number in 0..50 {
        let request = Request::Fence { segment: segments(number), epoch: epoch(399) };
        assert_eq!(rig.get(client, request), Err(Refusal::Stale { known: 400 }));
    }
}

#[test]
fn a_server_that_has_lost_its_ledger_does_not_serve() {
    let mut rig = Rig::new();
    let client = rig.greet(0, 1);
    rig.create(client, chunk(1), FIRST).unwrap();
    let disk = rig.disk.clone();
    let begin = {
        let wanted: &[u8] = b"OBCL";
        (0..).map(|index| index * 64).find(|at| disk.is_at(*at, wanted)).unwrap()
    };
    // Of all copies that there may be, earlier ones included.
    for at in (begin..begin + (48 << 20)).step_by(64).filter(|at| disk.is_at(*at, b"OBCL")) {
        disk.flip(at + 20);
    }
    drop(rig);
    let mut rig = Rig::start(disk, config());
    rig.run();
    let state = rig.server.facts().state;
    assert!(matches!(state, ServerState::Failed(StartError::Ledger(_))), "{state:?}");
    assert!(rig.try_connect().is_none());
}

#[test]
fn a_chunk_whose_making_was_not_over_is_not_there() {
    for held in 0..12u32 {
        let mut rig = Rig::new();
        let client = rig.greet(0, 1);
        rig.create(client, chunk(1), FIRST).unwrap();
        let mut left = held;
        rig.disk.hold(move |op| {
            if matches!(op, ob_core::DeviceOp::Read { .. }) {
                return false;
            }
            left = left.saturating_sub(1);
            left == 0
        });
        let tag = rig.send(client, create(chunk(2), FIRST, CreateState::Open), &[]);
        rig.run();
        let is_told = rig.take(client, tag).is_some();
        let mut rig = rig.lose_power();
        let client = rig.greet(0, 2);
        let there = rig.get(client, Request::Stat { chunk: chunk(2), epoch: FIRST });
        assert!(!is_told || there.is_ok(), "{held}: {there:?}");
        assert!(matches!(rig.create(client, chunk(2), FIRST), Ok(Reply::Create { .. })), "{held}");
        rig.append(client, chunk(2), FIRST, RECORDS_START, &records(chunk(2), RECORDS_START, &[1])).unwrap();
    }
}
