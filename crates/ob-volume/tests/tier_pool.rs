//! A pool's chunk servers: taken in, emptied while they are written to, taken out, whoever dies meanwhile.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use ob_core::{BlockLen, ChunkName, PoolId, ServerId, Token, VolumeId};
use ob_format::volume::RECORDS_START;
use ob_format::volume::metadata::{Chunk, ChunkState, Server as Record, ServerState, Text};
use ob_volume::metadata::{
    Change, Expect, Keys, MetadataAnswer, MetadataOp, MetadataStore, MetadataValue, Name, Transaction,
};
use ob_volume::tier::{
    AdminAnswer, AdminError, AdminRequest, ServerFacts, ServerIs, ServerTrouble, Ticket, TierConfig,
};
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;

use crate::tier_failover::heal;
use crate::tier_model::{both, read_all, seeds, send_any};
use crate::tier_pair::Tiers;
use crate::tier_rig::{Dice, Rig, config, volume};
use crate::tier_servers::Server;

const DISK: VolumeId = VolumeId(1);
const BLOCKS: u64 = 1500;

/// The rig's servers say that they are these.
const fn id(place: usize) -> ServerId {
    ServerId(place as u64 + 100)
}

fn address(place: usize) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 4440 + place as u16))
}

fn opened(config: TierConfig, seed: u64) -> Rig {
    let mut rig = Rig::new(config, seed);
    rig.open();
    rig.rest(Duration::from_secs(1));
    rig
}

fn rig(servers: u16, seed: u64) -> Rig {
    opened(config(vec![volume(1, BlockLen::Large, BLOCKS)], servers), seed)
}

impl Rig {
    fn pool(&mut self) -> Vec<ServerFacts> {
        match self.ask(AdminRequest::ListServers) {
            Ok(AdminAnswer::Servers(servers)) => servers,
            other => panic!("{other:?}"),
        }
    }

    fn facts(&mut self, place: usize) -> ServerFacts {
        self.pool().into_iter().find(|facts| facts.id == Some(id(place))).unwrap()
    }

    fn of_server(&mut self, request: AdminRequest) -> Result<ServerFacts, AdminError> {
        self.ask(request).map(|answer| match answer {
            AdminAnswer::Servers(servers) if servers.len() == 1 => servers[0],
            other => panic!("{other:?}"),
        })
    }

    fn drain(&mut self, place: usize) -> Result<ServerFacts, AdminError> {
        self.of_server(AdminRequest::DrainServer { server: id(place) })
    }

    fn remove_server(&mut self, place: usize, accept_loss: bool) -> Result<ServerFacts, AdminError> {
        self.of_server(AdminRequest::RemoveServer { server: id(place), accept_loss })
    }

    fn add(&mut self, place: usize) -> Result<ServerFacts, AdminError> {
        self.of_server(AdminRequest::AddServer { address: address(place), domain: None })
    }

    fn server_record(&mut self, place: usize) -> Option<Record> {
        match self.stored(Name::Server(id(place))) {
            Some(MetadataValue::Server(record)) => Some(record),
            _ => None,
        }
    }

    /// All chunks' records that name anything that could be lost.
    pub(crate) fn chunk_records(&mut self) -> BTreeMap<ChunkName, Chunk> {
        let keys = Keys::new("default").unwrap();
        let (prefix, most) = (keys.all_chunks(), 1024);
        self.store.submit(Token(u64::MAX), MetadataOp::List { prefix, after: None, most }).unwrap();
        let Ok(MetadataAnswer::Values { entries, has_more: false }) = self.store.poll().unwrap().result
        else {
            panic!("no list")
        };
        let records = entries.iter().map(|entry| {
            let Some(Name::Chunk(name)) = keys.parse(&entry.key) else { panic!("{:?}", entry.key) };
            match MetadataValue::decode(&Name::Chunk(name), entry.value.bytes()) {
                Ok(MetadataValue::Chunk(chunk)) => (name, chunk),
                other => panic!("{other:?}"),
            }
        });
        let is_something = |chunk: &Chunk| match chunk.state {
            ChunkState::Sealed => chunk.length > RECORDS_START,
            ChunkState::Open => true,
            ChunkState::Dead => false,
        };
        records.filter(|(_, chunk)| is_something(chunk)).collect()
    }

    fn named_at(&mut self, place: usize) -> usize {
        self.chunk_records().values().filter(|chunk| chunk.members.contains(id(place))).count()
    }

    /// What is sealed has as many members as it should, all the while.
    fn check_members(&mut self, least: usize) {
        for (name, chunk) in self.chunk_records() {
            let members = chunk.members.servers();
            assert!(chunk.state != ChunkState::Sealed || members.len() >= least, "{name:?}: {members:?}");
        }
    }

    fn wait_emptied(&mut self, place: usize) {
        for _ in 0..10_000 {
            self.settle();
            if self.named_at(place) == 0 {
                return;
            }
            self.pass(Duration::from_millis(50));
        }
        panic!("{place} is never emptied: {:#?} {:#?}", self.pool(), self.tier.status());
    }

    fn write_some(&mut self) {
        for start in [0, 500, 1000, 1400] {
            assert_eq!(self.do_io(IoOpcode::Write, DISK, start, 80), Status::SUCCESS);
        }
    }

    fn read_disk(&mut self) {
        assert_eq!(self.do_io(IoOpcode::Read, DISK, 0, BLOCKS as u32), Status::SUCCESS);
        assert_eq!(self.answered.last().unwrap().read, self.model[&DISK]);
    }
}

#[test]
fn servers_that_are_configured_join_and_are_shown() {
    let mut rig = rig(4, 1);
    rig.write_some();
    let pool = rig.pool();
    assert_eq!(
        pool.iter().map(|of| of.id).collect::<Vec<_>>(),
        (0..4).map(|at| Some(id(at))).collect::<Vec<_>>()
    );
    for (place, of) in pool.iter().enumerate() {
        assert!(of.is == ServerIs::In && of.is_ready && !of.waits_for_room, "{of:?}");
        assert_eq!(
            (of.address.as_str(), of.domain.as_str()),
            (address(place).to_string().as_str(), format!("machine{place}").as_str())
        );
        let record = rig.server_record(place).unwrap();
        assert_eq!((record.state, record.domain.as_str()), (ServerState::In, ""));
    }
    let named: usize = (0..4).map(|place| rig.named_at(place)).sum();
    assert!(named > 6 && pool.iter().map(|of| of.replicas).sum::<u64>() == named as u64);
    // One that is nowhere is shown as well, and the next life finds the same.
    rig.kill(3);
    rig.die();
    rig.rest(Duration::from_secs(1));
    let away = rig.facts(3);
    assert!(!away.is_ready && away.is == ServerIs::In);
    rig.read_disk();
}

/// Whatever is written meanwhile, and whoever dies: what it has goes to others, nothing has fewer replicas for it, and then it can be taken out.
#[test]
fn a_server_is_emptied_while_it_is_written_to() {
    for seed in 0..seeds() {
        let mut config = both();
        config.servers = (0..5).map(address).collect();
        let mut rig = opened(config, seed);
        rig.unknown = if seed.is_multiple_of(3) { 6 } else { u64::MAX };
        let mut dice = Dice::new(seed + 9_000_000);
        let (first, second) = (dice.below(5) as usize, 250 - dice.below(150));
        let mut left = 250;
        while left > 0 {
            if left == second && rig.told_admin.is_empty() {
                rig.administer(7, AdminRequest::DrainServer { server: id(first) });
                left -= 1;
            } else if dice.below(120) == 0 {
                rig.die();
            } else if dice.below(3) == 0 && rig.messages.len() < 24 {
                send_any(&mut rig, &mut dice);
                left -= 1;
            } else if !rig.step() || dice.below(50) == 0 {
                rig.pass(Duration::from_millis(1 + dice.below(300)));
            }
        }
        rig.finish();
        // Its host may have died before it had done it.
        assert_eq!(rig.drain(first).map(|of| of.is), Ok(ServerIs::Draining), "seed {seed}");
        rig.wait_emptied(first);
        assert_eq!(rig.remove_server(first, false).map(|of| of.is), Ok(ServerIs::Out), "seed {seed}");
        heal(&mut rig);
        read_all(&mut rig);
        let others: Vec<usize> = (0..5).filter(|place| *place != first).collect();
        rig.check_log(&others);
        assert_eq!(rig.tier.status().mistakes, 0, "seed {seed}");
    }
}

/// Two at once: each replica stays where it is until there is another.
#[test]
fn what_is_emptied_keeps_its_replicas_until_there_are_others() {
    for seed in 0..seeds() {
        let mut rig = rig(6, seed);
        rig.write_some();
        rig.check_members(3);
        for place in [0, 1] {
            assert_eq!(rig.drain(place).map(|of| of.is), Ok(ServerIs::Draining));
        }
        let mut dice = Dice::new(seed);
        for _ in 0..3000 {
            if !rig.step() || dice.below(20) == 0 {
                rig.pass(Duration::from_millis(40));
            }
            rig.check_members(3);
        }
        rig.wait_emptied(0);
        rig.wait_emptied(1);
        rig.write_some();
        assert_eq!((rig.named_at(0), rig.named_at(1)), (0, 0), "nothing new is put there");
        rig.read_disk();
    }
}

/// Wherever the host dies, what was asked is done or not, and asked again it is done.
#[test]
fn a_host_may_die_at_every_step_of_a_drain() {
    for steps in 0..120 {
        let mut rig = rig(4, steps);
        rig.write_some();
        rig.administer(1, AdminRequest::DrainServer { server: id(1) });
        for _ in 0..steps {
            if !rig.step() {
                rig.pass(Duration::from_millis(50));
            }
        }
        rig.die();
        let told = rig.told_admin.iter().any(|(ticket, answer)| *ticket == Ticket(1) && answer.is_ok());
        if !told {
            assert_eq!(rig.drain(1).map(|of| of.is), Ok(ServerIs::Draining), "after {steps} steps");
        }
        rig.wait_emptied(1);
        assert!(rig.remove_server(1, false).is_ok(), "after {steps} steps");
        rig.read_disk();
        rig.check_log(&[0, 2, 3]);
    }
}

/// With too few others it waits, is written to, and goes on when there is another.
#[test]
fn a_drain_without_room_waits_for_it() {
    let mut rig = rig(3, 5);
    rig.write_some();
    assert!(rig.drain(2).unwrap().is == ServerIs::Draining);
    rig.rest(Duration::from_secs(20));
    rig.write_some();
    rig.check_members(3);
    let facts = rig.facts(2);
    assert!(facts.waits_for_room && facts.replicas > 0, "{facts:?}");
    let refused = rig.remove_server(2, true);
    assert!(matches!(refused, Err(AdminError::ServerInUse { replicas, .. }) if replicas > 0), "{refused:?}");
    rig.servers.push(Server::default());
    assert_eq!(rig.add(3).map(|of| (of.id, of.is)), Ok((Some(id(3)), ServerIs::In)));
    rig.wait_emptied(2);
    assert!(!rig.facts(2).waits_for_room);
    rig.check_members(3);
    assert!(rig.remove_server(2, false).is_ok());
    rig.write_some();
    rig.read_disk();
    // What the pool has said counts in the next life, whatever is configured.
    rig.die();
    rig.rest(Duration::from_secs(3));
    assert!(!rig.channels.values().any(|server| *server == 2), "nobody connects to it");
    let states: Vec<ServerIs> = rig.pool().iter().map(|of| of.is).collect();
    assert_eq!(states, [ServerIs::In, ServerIs::In, ServerIs::Out, ServerIs::In]);
    rig.write_some();
    rig.read_disk();
}

/// A drain ends when the server is taken in again.
#[test]
fn a_drained_server_is_taken_in_again() {
    let mut rig = rig(4, 6);
    rig.write_some();
    rig.drain(0).unwrap();
    rig.wait_emptied(0);
    assert_eq!(rig.add(0).map(|of| of.is), Ok(ServerIs::In));
    let drained: Vec<bool> = (1..4).map(|place| rig.drain(place).is_ok()).collect();
    assert_eq!(drained, [true; 3], "the last ones wait for room, and lose nothing");
    rig.rest(Duration::from_secs(20));
    assert!(rig.named_at(0) > 0);
    rig.check_members(3);
    rig.read_disk();
}

/// Nobody waits for `lost_after` when an administrator has said that a server is gone.
#[test]
fn what_a_removed_server_had_is_made_anew_at_once() {
    let mut rig = rig(4, 7);
    rig.write_some();
    let had = rig.named_at(0);
    assert!(had > 0);
    rig.kill(0);
    rig.rest(Duration::from_secs(30));
    assert!(rig.named_at(0) > 0 && rig.tier.status().segments.iter().any(|segment| segment.degraded > 0));
    assert_eq!(rig.remove_server(0, false).map(|of| of.is), Ok(ServerIs::Out));
    rig.rest(Duration::from_secs(20));
    assert_eq!(rig.named_at(0), 0);
    rig.check_members(3);
    assert!(rig.tier.status().segments.iter().all(|segment| segment.degraded == 0));
    assert!(rig.tier.status().servers.iter().all(|server| server.is_ready), "nobody looks for it");
    // Once more is no mistake; it cannot be emptied, and may come back.
    assert_eq!(rig.remove_server(0, false).map(|of| of.is), Ok(ServerIs::Out));
    assert_eq!(rig.drain(0), Err(AdminError::ServerIsOut(id(0))));
    assert_eq!(rig.add(0), Err(AdminError::NoServer(address(0))));
    rig.revive(0);
    rig.rest(Duration::from_secs(5));
    assert!(!rig.channels.values().any(|server| *server == 0));
    assert_eq!(rig.add(0).map(|of| of.is), Ok(ServerIs::In));
    heal(&mut rig);
    rig.write_some();
    rig.read_disk();
    rig.rest(Duration::from_secs(20));
    assert!(rig.facts(0).is_ready);
    rig.check_log(&[0, 1, 2, 3]);
}

/// A chunk whose end nobody else knows for certain is sealed without one that is out: it has answered (C4).
#[test]
fn a_seal_does_not_wait_for_a_server_that_is_out() {
    for seed in 0..seeds() {
        let mut rig = rig(3, seed);
        rig.write_some();
        rig.kill(0);
        // Power goes at the others as well, and what they have may be torn.
        rig.kill(1);
        rig.kill(2);
        rig.rest(Duration::from_secs(2));
        rig.die();
        for server in [1, 2] {
            rig.revive(server);
        }
        rig.rest(Duration::from_secs(5));
        assert_eq!(rig.remove_server(0, false).map(|of| of.is), Ok(ServerIs::Out), "seed {seed}");
        rig.read_disk();
    }
}

/// What only one server has is not taken away with it, unless that is said.
#[test]
fn the_only_holder_is_not_taken_out() {
    let mut rig = rig(3, 8);
    rig.write_some();
    rig.kill(0);
    rig.kill(1);
    rig.rest(Duration::from_secs(3));
    for place in [0, 1] {
        assert!(rig.remove_server(place, false).is_ok(), "the third one has it");
    }
    let refused = rig.remove_server(2, true);
    assert!(matches!(refused, Err(AdminError::ServerInUse { .. })), "{refused:?}");
    rig.kill(2);
    rig.rest(Duration::from_secs(3));
    let refused = rig.remove_server(2, false);
    assert!(matches!(refused, Err(AdminError::WouldLose { chunks: 2.., .. })), "{refused:?}");
    assert_eq!(rig.server_record(2).unwrap().state, ServerState::In);
    assert_eq!(rig.remove_server(2, true).map(|of| of.is), Ok(ServerIs::Out));
    // It was not gone after all: nothing is lost before somebody else says so.
    rig.revive(2);
    assert_eq!(rig.add(2).map(|of| of.is), Ok(ServerIs::In));
    rig.read_disk();
}

/// Each is the other one's only replica: of two that are taken out at once, by who sees the one and by who sees the other, one stays.
#[test]
fn of_two_that_are_taken_out_side_by_side_one_stays() {
    let mut of = volume(1, BlockLen::Large, BLOCKS);
    of.1.replicas = 2;
    let mut rig = opened(config(vec![of], 2), 9);
    rig.write_some();
    rig.kill(0);
    rig.rest(Duration::from_secs(3));
    // It is about to be said that 0 is out, because 1 is there.
    rig.administer(1, AdminRequest::RemoveServer { server: id(0), accept_loss: false });
    let is_commit = |op: &MetadataOp| match op {
        MetadataOp::Commit(transaction) => transaction.change.iter().any(|change| {
            let Change::Put { key, .. } = change else { return false };
            key.as_str().contains("/servers/")
        }),
        _ => false,
    };
    let held = loop {
        if let Some(at) = rig.ops.iter().position(|(_, op)| is_commit(op)) {
            break rig.ops.remove(at);
        }
        if !rig.step() {
            rig.pass(Duration::from_millis(10));
        }
    };
    // Meanwhile it is the other way round.
    rig.revive(0);
    rig.kill(1);
    rig.rest(Duration::from_secs(2));
    let second = rig.remove_server(1, false);
    assert_eq!(second.map(|of| of.is), Ok(ServerIs::Out));
    rig.ops.push(held);
    rig.rest(Duration::from_secs(2));
    let first = rig.told_admin.iter().find(|(ticket, _)| *ticket == Ticket(1)).unwrap().1.clone();
    assert!(matches!(first, Err(AdminError::ServerInUse { .. } | AdminError::WouldLose { .. })), "{first:?}");
    assert_eq!(rig.server_record(0).unwrap().state, ServerState::In);
    rig.read_disk();
}

/// What another tier has said of a server counts, though this one has not heard of it yet.
#[test]
fn who_was_taken_out_elsewhere_is_not_counted_on() {
    let mut of = volume(1, BlockLen::Large, BLOCKS);
    of.1.replicas = 2;
    let mut rig = opened(config(vec![of], 2), 15);
    rig.write_some();
    rig.kill(1);
    rig.rest(Duration::from_secs(3));
    let key = Keys::new("default").unwrap().key(Name::Server(id(0)));
    rig.store.submit(Token(u64::MAX), MetadataOp::Get { key: key.clone() }).unwrap();
    let Ok(MetadataAnswer::Value(Some((_, revision)))) = rig.store.poll().unwrap().result else {
        panic!("it has no record")
    };
    let out = Record { state: ServerState::Out, ..rig.server_record(0).unwrap() };
    let value = MetadataValue::Server(out).encode().unwrap();
    let change = vec![Change::Put { key: key.clone(), value, session: None }];
    let transaction = Transaction { compare: vec![(key, Expect::At(revision))], change };
    rig.store.submit(Token(u64::MAX), MetadataOp::Commit(transaction)).unwrap();
    assert!(matches!(rig.store.poll().unwrap().result, Ok(MetadataAnswer::Committed(_))));
    let told = rig.remove_server(1, false);
    assert!(matches!(told, Err(AdminError::WouldLose { .. })), "{told:?}");
    assert_eq!(rig.server_record(1).unwrap().state, ServerState::In);
}

#[test]
fn what_cannot_be_taken_in_is_refused() {
    let mut rig = rig(3, 10);
    for wrong in ["0.0.0.0:4440", "127.0.0.1:0", "224.0.0.1:4440"] {
        let address = wrong.parse().unwrap();
        let told = rig.ask(AdminRequest::AddServer { address, domain: None });
        assert_eq!(told, Err(AdminError::Address(address)));
    }
    assert_eq!(rig.add(3), Err(AdminError::NoServer(address(3))));
    rig.servers.push(Server { pool: Some(PoolId([9; 16])), ..Server::default() });
    let (trouble, asked) = (ServerTrouble::WrongPool, rig.now);
    assert_eq!(rig.add(3), Err(AdminError::ServerRefused { address: address(3), trouble }));
    assert!(rig.now.since(asked) < Duration::from_secs(1), "it has said why, and nobody waits for more");
    rig.rest(Duration::from_secs(2));
    assert!(!rig.channels.values().any(|server| *server == 3), "nobody goes on asking it");
    assert_eq!(rig.tier.status().servers.len(), 3);
    assert_eq!(rig.drain(7), Err(AdminError::UnknownServer(id(7))));
    assert_eq!(rig.remove_server(7, true), Err(AdminError::UnknownServer(id(7))));
    // More than there can be: the card has so many channels.
    for place in 4..30 {
        rig.servers.push(Server::default());
        let added = rig.add(place);
        if place < 17 {
            assert!(added.is_ok(), "{place}: {added:?}");
        } else {
            assert_eq!(added, Err(AdminError::TooManyServers), "{place}");
        }
    }
    rig.write_some();
    rig.read_disk();
}

/// One that has moved is looked for where it is said to be; its domain is what an administrator says.
#[test]
fn a_server_moves_and_has_another_domain() {
    let mut rig = rig(3, 11);
    rig.write_some();
    rig.kill(1);
    rig.rest(Duration::from_secs(1));
    // The same server, at another address.
    let moved = Server { number: Some(101), ..std::mem::take(&mut rig.servers[1]) };
    rig.servers[1].is_down = true;
    rig.servers.push(Server { is_down: false, ..moved });
    let domain = Text::new("rack-7");
    let added = rig.of_server(AdminRequest::AddServer { address: address(3), domain }).unwrap();
    assert_eq!((added.id, added.domain.as_str()), (Some(id(1)), "rack-7"));
    let servers = rig.tier.status().servers;
    assert!(servers.len() == 3 && servers.iter().all(|server| server.is_ready), "{servers:?}");
    for _ in 0..2 {
        heal(&mut rig);
        let facts = rig.facts(1);
        assert_eq!((facts.address.as_str(), facts.is_ready), (address(3).to_string().as_str(), true));
        rig.read_disk();
        rig.die();
        rig.rest(Duration::from_secs(2));
    }
}

/// Whose disk is replaced is another server at the same address. What the store has of the first, a tier may see when it knows the second:
/// nobody connects to one address twice, and whoever is taken out then is not looked for.
#[test]
fn a_record_of_who_was_there_before_changes_nothing() {
    let mut rig = rig(4, 13);
    rig.write_some();
    // Another tier has seen it, and this one had not heard of that.
    let address_of = Text::new(&address(1).to_string()).unwrap();
    let domain = Text::default();
    let record = Record { state: ServerState::In, capacity: 1 << 30, domain, address: address_of };
    let key = Keys::new("default").unwrap().key(Name::Server(id(800)));
    let value = MetadataValue::Server(record).encode().unwrap();
    let change = vec![Change::Put { key: key.clone(), value, session: None }];
    let transaction = Transaction { compare: vec![(key, Expect::Absent)], change };
    rig.store.submit(Token(u64::MAX), MetadataOp::Commit(transaction)).unwrap();
    assert!(matches!(rig.store.poll().unwrap().result, Ok(MetadataAnswer::Committed(_))));
    for _ in 0..2 {
        rig.rest(Duration::from_secs(5));
        let servers = rig.tier.status().servers;
        assert!(servers.len() == 4 && servers.iter().all(|server| server.is_ready), "{servers:?}");
        let facts = rig.facts(800);
        assert!(facts.is == ServerIs::In && !facts.is_ready, "{facts:?}");
        rig.write_some();
        rig.read_disk();
        rig.die();
    }
    rig.rest(Duration::from_secs(5));
    assert_eq!(rig.remove_server(800, false).map(|of| of.is), Ok(ServerIs::Out));
    rig.rest(Duration::from_secs(5));
    assert_eq!(rig.tier.status().servers.iter().filter(|server| server.is_ready).count(), 4);
    rig.read_disk();
}

/// One that was never there in a tier's life is not looked for any more by that life either when it is taken out.
#[test]
fn nobody_looks_for_one_that_is_out() {
    let mut rig = rig(4, 14);
    rig.write_some();
    rig.kill(0);
    rig.die();
    rig.rest(Duration::from_secs(3));
    assert_eq!(rig.tier.status().servers.len(), 4);
    assert_eq!(rig.remove_server(0, false).map(|of| of.is), Ok(ServerIs::Out));
    assert_eq!(rig.tier.status().servers.len(), 3);
    rig.rest(Duration::from_secs(20));
    rig.check_members(3);
    assert_eq!((rig.named_at(0), rig.tier.status().servers.len()), (0, 3));
    rig.read_disk();
}

/// What one tier was asked all of them do, with the segments that each of them has.
#[test]
fn all_tiers_hear_what_one_was_asked() {
    let mut tiers = Tiers::new(&config(vec![volume(1, BlockLen::Large, 3000)], 4), 2, 1);
    let mut dice = Dice::new(12);
    tiers.open();
    let wait = |tiers: &mut Tiers, dice: &mut Dice, is: &dyn Fn(&mut Tiers) -> bool| {
        for _ in 0..2000 {
            tiers.settle(dice);
            if is(tiers) {
                return;
            }
            tiers.pass(Duration::from_millis(50));
        }
        panic!("it never comes: {:#?}", tiers.with(0).chunk_records());
    };
    let writes = [tiers.send(0, IoOpcode::Write, 0, 100), tiers.send(1, IoOpcode::Write, 1024, 100)];
    tiers.finish(&mut dice);
    for (tier, write) in writes.into_iter().enumerate() {
        assert_eq!(tiers.rigs[tier].status_of(write), Some(Status::SUCCESS));
    }
    let segments = |tiers: &mut Tiers| {
        let records = tiers.with(0).chunk_records();
        let its = records.iter().filter(|(_, chunk)| chunk.members.contains(id(1)));
        its.map(|(name, _)| name.segment.0).collect::<std::collections::BTreeSet<u32>>().len()
    };
    assert_eq!(segments(&mut tiers), 2, "both have something there");
    tiers.with(0).administer(1, AdminRequest::DrainServer { server: id(1) });
    wait(&mut tiers, &mut dice, &|tiers| segments(tiers) == 0);
    let asked = AdminRequest::RemoveServer { server: id(1), accept_loss: false };
    tiers.with(1).administer(2, asked);
    wait(&mut tiers, &mut dice, &|tiers| !tiers.with(1).told_admin.is_empty());
    assert!(tiers.with(1).told_admin[0].1.is_ok());
    wait(&mut tiers, &mut dice, &|tiers| {
        (0..2).all(|tier| tiers.with(tier).tier.status().servers.len() == 3)
    });
}
