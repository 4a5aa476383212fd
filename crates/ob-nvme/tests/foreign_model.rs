//! Random chains, reads and writes of several hosts, on a device and in a namespace of a service, with buffers that run out,
//! and hosts that are cut off or reset in the middle.
//!
//! Beside it stands what must hold: a command is answered once and only while its host waits; a value that was read is no
//! older than what was acknowledged before; nobody comes near the blocks of a write that a lost host left behind; and at the
//! end everything is answered and every buffer is back.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::chains;
use crate::support;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use chains::{CHAIN, Chains, NODE, node};
use ob_core::{DeviceOp, Token};
use ob_memory::Shared;
use ob_nvme::target::control::{Backing, NamespaceSpec};
use ob_nvme::target::{Answer, ForeignCommand, ForeignEvent, ForeignKey, TargetConfig};
use ob_sim::Rng;
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::fabrics::{Property, PropertyAccess};
use ob_wire_nvme::io::BlockCommand;
use ob_wire_nvme::pdu::{Digests, Pdu};
use ob_wire_nvme::{CommandId, DataPointer, NamespaceId, Status, SubmissionEntry};
use support::{BLOCK, Client, Rig, Wish, namespace};

const SEEDS: u64 = 60;
const HOSTS: usize = 3;
/// Nodes of each host's list: it alone writes them, everybody reads them.
const NODES: usize = 4;
const VOLUME: u32 = 2;
/// Blocks of each host in the service's namespace.
const VOLUME_BLOCKS: usize = 2;

/// What a place may hold: stamps only grow.
#[derive(Clone, Copy, Default)]
struct Place {
    acknowledged: u64,
    issued: u64,
    is_written: bool,
}

#[derive(Clone, Debug)]
enum Op {
    Chain { list: usize, at_least: u64 },
    Write { host: usize, index: usize, stamp: u64 },
    Read { host: usize, index: usize, at_least: u64 },
    VolumeWrite { host: usize, index: usize, stamp: u64 },
    VolumeRead { host: usize, index: usize, at_least: u64 },
}

struct Host {
    admin: Client,
    io: Client,
    outstanding: BTreeMap<CommandId, Op>,
}

/// The service of the namespace: payload in card memory, answers when three peers have it.
#[derive(Default)]
struct Volume {
    blocks: BTreeMap<u64, Shared>,
    commands: VecDeque<ForeignCommand>,
    /// Writes whose host is gone, by their key: who overlaps them must not come before they are over.
    left: BTreeMap<ForeignKey, u64>,
    known: BTreeMap<ForeignKey, u64>,
    /// Reads of what was never written, until there is a buffer for the zeros.
    unwritten: BTreeSet<ForeignKey>,
    peers: [VecDeque<Shared>; 3],
}

/// How much happened.
struct Run {
    answered: u64,
    cut: u64,
    /// Writes that a lost host left on the device, each of which was looked at until it was over.
    left: u64,
    /// Chains whose host was lost.
    ended: u64,
    /// For ranges, for buffers that were lent, and for those that the target takes.
    waits: [u64; 3],
}

struct World {
    rig: Rig,
    rng: Rng,
    chains: Chains,
    volume: Volume,
    hosts: Vec<Host>,
    lives: u8,
    nodes: [[Place; NODES]; HOSTS],
    blocks: [[Place; VOLUME_BLOCKS]; HOSTS],
    stamps: u64,
    /// Offsets of writes of lost hosts that the device has, with all that was there when they were lost.
    left_on_device: BTreeMap<u64, BTreeSet<Token>>,
    answered: u64,
    cut: u64,
    left: u64,
}

fn node_offset(host: usize, index: usize) -> u64 {
    ((1 + host * NODES + index) * NODE) as u64
}

fn list_node(host: usize, index: usize, stamp: u64) -> Vec<u8> {
    node(if index + 1 < NODES { node_offset(host, index + 1) } else { 0 }, stamp)
}

fn volume_block(host: usize, index: usize) -> u64 {
    (host * VOLUME_BLOCKS + index) as u64
}

impl World {
    fn new(seed: u64) -> Self {
        let config = TargetConfig {
            capsule_buffers: 64,
            transfer_memory: 64 << 10,
            foreign: vec![chains::opcode()],
            ..TargetConfig::default()
        };
        let mut rig = Rig::with(config);
        let spec = NamespaceSpec { backing: Backing::Foreign, ..namespace(VOLUME, 8) };
        rig.target.control_mut().add_namespace(rig.subsystem, &spec).unwrap();
        rig.disk.is_held = true;
        rig.disk.depth = 5;
        let mut world = Self {
            rig,
            rng: Rng::new(seed),
            chains: Chains::new(),
            volume: Volume::default(),
            hosts: Vec::new(),
            lives: 0,
            nodes: Default::default(),
            blocks: Default::default(),
            stamps: 0,
            left_on_device: BTreeMap::new(),
            answered: 0,
            cut: 0,
            left: 0,
        };
        for host in 0..HOSTS {
            for index in 0..NODES {
                let at = node_offset(host, index) as usize;
                world.rig.disk.bytes[at..at + NODE].copy_from_slice(&list_node(host, index, 0));
            }
            let host = world.join();
            world.hosts.push(host);
        }
        world
    }

    /// A host in a new life: to the target it is another, so that its Connect waits for nothing.
    fn join(&mut self) -> Host {
        self.lives += 1;
        let wish = Wish { host_id: [self.lives; 16], entries: 16, ..Wish::default() };
        let (admin, controller) = self.rig.admin_as(Digests::NONE, &wish);
        let io = self.rig.open(Digests::NONE);
        let response = self.rig.connect_as(io, 1, &Wish { controller, ..wish });
        assert_eq!(response.status(), Status::SUCCESS);
        Host { admin, io, outstanding: BTreeMap::new() }
    }

    fn issue(&mut self) {
        let by = self.rng.index(HOSTS);
        if self.hosts[by].outstanding.len() >= 12 {
            return;
        }
        let (of, node) = (self.rng.index(HOSTS), self.rng.index(NODES));
        let block = self.rng.index(VOLUME_BLOCKS);
        let op = match self.rng.below(10) {
            0..=3 => {
                let at_least = self.nodes[of].iter().map(|place| place.acknowledged).sum();
                Op::Chain { list: of, at_least }
            }
            4 | 5 if !self.nodes[by][node].is_written => {
                Op::Write { host: by, index: node, stamp: self.stamp() }
            }
            6 => Op::Read { host: of, index: node, at_least: self.nodes[of][node].acknowledged },
            7 | 8 if !self.blocks[by][block].is_written => {
                Op::VolumeWrite { host: by, index: block, stamp: self.stamp() }
            }
            9 => Op::VolumeRead { host: of, index: block, at_least: self.blocks[of][block].acknowledged },
            _ => return,
        };
        self.submit(by, op);
    }

    fn stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }

    fn submit(&mut self, by: usize, op: Op) {
        let io = self.hosts[by].io;
        let command = self.rig.command_id(io);
        let read = DataPointer::Transport { len: BLOCK as u32 };
        let capsule = DataPointer::InCapsule { offset: 0, len: BLOCK as u32 };
        let block = |nsid: u32, offset: u64| BlockCommand::new(NamespaceId(nsid), offset / BLOCK as u64, 1);
        let (entry, data) = match &op {
            Op::Chain { list, .. } => {
                let pointer = DataPointer::Transport { len: 8 };
                let mut entry = SubmissionEntry::new(CHAIN, command, NamespaceId(1)).with_data(pointer);
                entry.dword10 = (node_offset(*list, 0) as u32).into();
                (entry, Vec::new())
            }
            Op::Write { host, index, stamp } => {
                let place = &mut self.nodes[*host][*index];
                (place.issued, place.is_written) = (*stamp, true);
                let entry = block(1, node_offset(*host, *index)).encode(IoOpcode::Write, command, capsule);
                (entry, list_node(*host, *index, *stamp))
            }
            Op::Read { host, index, .. } => {
                (block(1, node_offset(*host, *index)).encode(IoOpcode::Read, command, read), Vec::new())
            }
            Op::VolumeWrite { host, index, stamp } => {
                let place = &mut self.blocks[*host][*index];
                (place.issued, place.is_written) = (*stamp, true);
                let at = volume_block(*host, *index) * BLOCK as u64;
                (block(VOLUME, at).encode(IoOpcode::Write, command, capsule), node(0, *stamp))
            }
            Op::VolumeRead { host, index, .. } => {
                let at = volume_block(*host, *index) * BLOCK as u64;
                (block(VOLUME, at).encode(IoOpcode::Read, command, read), Vec::new())
            }
        };
        self.hosts[by].outstanding.insert(command, op);
        self.rig.submit(io, &entry, &data);
    }

    /// Everything that can be done without the device and the volume's host.
    fn settle(&mut self) {
        loop {
            self.rig.run();
            self.check_device();
            let Some(event) = self.rig.target.next_foreign() else { break };
            self.hear(event);
        }
        for host in 0..HOSTS {
            self.collect(host);
        }
    }

    fn hear(&mut self, event: ForeignEvent) {
        let volume = &mut self.volume;
        match event {
            ForeignEvent::Command(command) if command.entry.opcode != CHAIN => {
                let block = command.offset / BLOCK as u64;
                let is_free = volume.left.values().all(|left| *left != block);
                assert!(is_free, "a lost write of block {block} is not over");
                if command.data.is_some() {
                    volume.known.insert(command.key, block);
                }
                volume.commands.push_back(command);
            }
            ForeignEvent::Lent { key, loans: [Some(mut zeros), ..] } if volume.unwritten.remove(&key) => {
                zeros.fill(0);
                self.rig.target.foreign_done(key, Ok(Answer::Loan(zeros)), 0);
            }
            ForeignEvent::Ended(key) if volume.unwritten.remove(&key) => {
                self.rig.target.foreign_done(key, Ok(Answer::Nothing), 0);
            }
            ForeignEvent::Ended(key) if volume.commands.iter().any(|command| command.key == key) => {
                volume.left.extend(volume.known.get(&key).map(|block| (key, *block)));
            }
            event => self.chains.take(&mut self.rig.target, event),
        }
    }

    /// Nobody is on the device with a write that a lost host left there.
    fn check_device(&self) {
        for (token, op) in &self.rig.disk.queue {
            let (offset, _) = op.extent().unwrap();
            let was_there = self.left_on_device.get(&offset).is_none_or(|tokens| tokens.contains(token));
            assert!(was_there, "{op:?} came to where a lost write is");
        }
    }

    /// The volume's host answers something that it was told of, in any order.
    fn answer(&mut self) {
        let volume = &mut self.volume;
        if volume.commands.is_empty() {
            return;
        }
        let index = self.rng.index(volume.commands.len());
        let Some(mut command) = volume.commands.remove(index) else { return };
        let block = command.offset / BLOCK as u64;
        let answer = match command.data.take() {
            Some(data) => {
                let payload = data.into_slice().share();
                for peer in &mut volume.peers {
                    peer.push_back(payload.clone());
                    peer.truncate(1);
                }
                volume.blocks.insert(block, payload);
                Answer::Nothing
            }
            None => match volume.blocks.get(&block) {
                Some(payload) => Answer::Shared(payload.clone()),
                // It is answered with what comes.
                None if self.rig.target.lend(command.key, &[BLOCK]).is_ok() => {
                    volume.unwritten.insert(command.key);
                    return;
                }
                None => Answer::Nothing,
            },
        };
        volume.known.remove(&command.key);
        volume.left.remove(&command.key);
        self.rig.target.foreign_done(command.key, Ok(answer), 0);
    }

    fn complete(&mut self) {
        if self.rig.disk.queue.is_empty() {
            return;
        }
        let index = self.rng.index(self.rig.disk.queue.len());
        if let DeviceOp::Write { offset, .. } = self.rig.disk.queue[index].1 {
            self.left_on_device.remove(&offset);
        }
        self.rig.complete(index);
    }

    fn collect(&mut self, host: usize) {
        let io = self.hosts[host].io;
        while let Some(message) = self.rig.next(io) {
            match message.pdu {
                Pdu::Data(transfer) => {
                    let op = self.hosts[host].outstanding.get(&transfer.command).cloned();
                    self.check_data(&op.expect("nobody waits for this"), &message.data);
                }
                Pdu::Response(entry) => {
                    let op = self.hosts[host].outstanding.remove(&entry.command());
                    let op = op.expect("a second answer, or one that nobody waits for");
                    assert_eq!(entry.status(), Status::SUCCESS, "{op:?}");
                    self.answered += 1;
                    match op {
                        Op::Write { host, index, stamp } => acknowledge(&mut self.nodes[host][index], stamp),
                        Op::VolumeWrite { host, index, stamp } => {
                            acknowledge(&mut self.blocks[host][index], stamp);
                        }
                        Op::Chain { .. } => assert_eq!(entry.result(), NODES as u64),
                        Op::Read { .. } | Op::VolumeRead { .. } => {}
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn check_data(&self, op: &Op, data: &[u8]) {
        let number = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
        let (found, at_least, at_most) = match op {
            Op::Chain { list, at_least } => {
                (number(0), *at_least, self.nodes[*list].iter().map(|place| place.issued).sum())
            }
            Op::Read { host, index, at_least } => (number(8), *at_least, self.nodes[*host][*index].issued),
            Op::VolumeRead { host, index, at_least } => {
                (number(8), *at_least, self.blocks[*host][*index].issued)
            }
            Op::Write { .. } | Op::VolumeWrite { .. } => panic!("data for a write"),
        };
        assert!((at_least..=at_most).contains(&found), "{op:?} found {found}, at most {at_most}");
    }

    /// A host loses its connections, or resets its controller first, and comes back.
    fn cut(&mut self, host: usize) {
        self.cut += 1;
        // What is admitted and has no room on the device comes there later, and may: it was sent beside the write. Which that
        // is cannot be seen from here, so only losses with nothing of the kind are looked at.
        let is_all_there = self.rig.target.backlog_len() == 0;
        for (_, op) in &self.rig.disk.queue {
            if is_all_there
                && let DeviceOp::Write { offset, .. } = op
                && (0..NODES).any(|index| node_offset(host, index) == *offset)
            {
                let there = self.rig.disk.queue.iter().filter(|(_, other)| other.extent() == op.extent());
                let tokens = there.map(|(token, _)| *token).collect();
                self.left_on_device.entry(*offset).or_insert(tokens);
                self.left += 1;
            }
        }
        let (admin, io) = (self.hosts[host].admin, self.hosts[host].io);
        if self.rng.below(2) == 0 {
            let command = self.rig.command_id(admin);
            let disable = PropertyAccess { property: Property::Configuration, value: Some(0x0046_0000) };
            let entry = disable.encode(command);
            self.rig.submit(admin, &entry, &[]);
        }
        self.rig.hang_up_quietly(io);
        self.rig.hang_up_quietly(admin);
        self.hosts[host] = self.join();
        // What was not acknowledged may have happened or not, or may still happen, before all that comes later.
        for place in self.nodes[host].iter_mut().chain(&mut self.blocks[host]) {
            place.is_written = false;
        }
    }

    fn finish(mut self) -> Run {
        while self.hosts.iter().any(|host| !host.outstanding.is_empty())
            || !self.rig.disk.queue.is_empty()
            || !self.volume.commands.is_empty()
        {
            let before = (self.answered, self.rig.disk.queue.len(), self.volume.commands.len());
            while !self.rig.disk.queue.is_empty() {
                self.complete();
                self.settle();
            }
            for _ in 0..4 * self.volume.commands.len() {
                self.answer();
            }
            self.settle();
            let after = (self.answered, self.rig.disk.queue.len(), self.volume.commands.len());
            assert_ne!(before, after, "nothing goes on: {:?}", self.rig.target.counts());
        }
        assert!(self.chains.is_idle() && self.volume.left.is_empty());
        // At rest, a chain finds what ordinary reads find.
        self.rig.disk.is_held = false;
        for list in 0..HOSTS {
            let found = |index: usize| {
                let at = node_offset(list, index) as usize + 8;
                u64::from_le_bytes(self.rig.disk.bytes[at..at + 8].try_into().unwrap())
            };
            let sum = (0..NODES).map(found).sum();
            self.submit(0, Op::Chain { list, at_least: sum });
            self.nodes[list] = Default::default();
            self.nodes[list][0].issued = sum;
            self.settle();
        }
        assert!(self.hosts[0].outstanding.is_empty());
        self.volume = Volume::default();
        let counts = self.rig.target.counts();
        assert_eq!(
            (counts.in_flight, counts.in_service, counts.orphans, counts.waiting_for_buffer),
            (0, 0, 0, 0)
        );
        assert_eq!(self.rig.target.memory_used(), 0, "every buffer is back");
        self.rig.run();
        assert!(!self.rig.target.can_go_on());
        let waits = [counts.waits_for_range, counts.buffers_exhausted, counts.waits_for_buffer];
        Run { answered: self.answered, cut: self.cut, left: self.left, ended: self.chains.ended, waits }
    }
}

fn acknowledge(place: &mut Place, stamp: u64) {
    (place.acknowledged, place.is_written) = (stamp, false);
}

#[test]
fn chains_volumes_and_ordinary_commands_go_on_through_cuts_and_full_pools() {
    let mut sum = Run { answered: 0, cut: 0, left: 0, ended: 0, waits: [0; 3] };
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for _ in 0..400 {
            match world.rng.below(100) {
                0..=1 => {
                    let host = world.rng.index(HOSTS);
                    world.cut(host);
                }
                2..=54 => world.issue(),
                55..=84 => world.complete(),
                _ => world.answer(),
            }
            world.settle();
        }
        let run = world.finish();
        sum.answered += run.answered;
        sum.cut += run.cut;
        sum.left += run.left;
        sum.ended += run.ended;
        for (sum, wait) in sum.waits.iter_mut().zip(run.waits) {
            *sum += wait;
        }
    }
    let Run { answered, cut, left, ended, waits } = sum;
    println!("{answered} answers, {cut} cuts, {left} writes left, {ended} chains cut, waits {waits:?}");
    // What is not met here is not tried.
    assert!(answered > 2_000 && cut > 50 && left > 20 && ended > 20);
    assert!(waits.iter().all(|waits| *waits > 20));
}
