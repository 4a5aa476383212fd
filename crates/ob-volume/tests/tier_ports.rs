//! Several ports of a tier in the rig: in it slots, channels and messages have numbers that say whose they are; each port has its own.

use std::time::Duration;

use ob_core::{BlockLen, VolumeId};
use ob_format::volume::metadata::Class;
use ob_split::wire::{ChannelId, ChannelIs, Completion, CompletionStatus, Handle, Slot};
use ob_volume::plans::{HOST_HANDLES, PostedPlan, Run, VolumePlan, id};
use ob_volume::tier::{Placement, PortNumber, TierConfig, TierError, TierEvent};
use ob_wire_nvme::Status;
use ob_wire_nvme::command::IoOpcode;

use crate::tier_model::{both, read_all, seeds, send_any};
use crate::tier_rig::{Dice, PORT, Rig, Running, config, done, volume};

/// What numbers of each port are apart.
const SLOTS: u16 = 8192;
const CHANNELS: u16 = 1000;

pub(crate) const fn port_of_slot(slot: u16) -> PortNumber {
    PortNumber((slot / SLOTS) as u32)
}

/// A channel's number at its port.
pub(crate) const fn at_port(channel: u16) -> u16 {
    channel % CHANNELS
}

pub(crate) const fn port_of_channel(channel: u16) -> PortNumber {
    PortNumber((channel / CHANNELS) as u32)
}

/// The number in the rig of a port's channel.
pub(crate) const fn channel_in_rig(port: PortNumber, channel: u16) -> u16 {
    channel + port.0 as u16 * CHANNELS
}

pub(crate) const fn slot_in_rig(port: PortNumber, slot: Slot) -> Slot {
    Slot(slot.0 + port.0 as u16 * SLOTS)
}

/// What a port says of a slot of the rig.
pub(crate) const fn slot_at_port(slot: Slot) -> Slot {
    Slot(slot.0 % SLOTS)
}

pub(crate) fn channel_at_port(is: ChannelIs) -> ChannelIs {
    ChannelIs { channel: ChannelId(at_port(is.channel.0)), ..is }
}

impl Rig {
    /// By which port a message comes, and as what that knows it: two of different ports may be the same.
    pub(crate) fn message_at_port(&self, handle: u32) -> (PortNumber, u32) {
        (PortNumber(handle % self.config.ports), handle / self.config.ports)
    }

    /// A plan of a port, with the rig's numbers.
    pub(crate) fn lift(&mut self, port: PortNumber, plan: PostedPlan) -> PostedPlan {
        let handle = match plan.handle {
            Handle(of_host) if of_host >= HOST_HANDLES => {
                assert!(
                    self.calls_of.insert(of_host, port).is_none_or(|before| before == port) || port == PORT
                );
                Handle(of_host)
            }
            Handle(message) => Handle(message * self.config.ports + port.0),
        };
        if port == PORT {
            return PostedPlan { handle, ..plan };
        }
        let decoded = VolumePlan::decode(&plan.entry()).unwrap();
        match decoded {
            VolumePlan::Read { member, first, runs } => {
                let runs = runs.iter().map(|run| match run {
                    Run::Record { slot, place, units, lba, blocks } => {
                        Run::Record { slot: slot_in_rig(port, slot), place, units, lba, blocks }
                    }
                    zeros @ Run::Zeros { .. } => zeros,
                });
                PostedPlan::read(handle, member, first, &runs.collect::<Vec<_>>()).unwrap()
            }
            VolumePlan::Write { .. } | VolumePlan::Given(_) | VolumePlan::Trim { .. } => {
                PostedPlan { handle, slot: slot_in_rig(port, plan.slot), ..plan }
            }
            VolumePlan::Call { .. } => {
                PostedPlan { handle, slot: Slot(channel_in_rig(port, plan.slot.0)), ..plan }
            }
            VolumePlan::Answer { .. } | VolumePlan::Take { .. } | VolumePlan::Press(_) => {
                PostedPlan { handle, ..plan }
            }
            VolumePlan::Copy(_) | VolumePlan::Look(_) | VolumePlan::Index(_) | VolumePlan::Move(_) => {
                panic!("the first port does what is of no command, and not {port:?}: {plan:?}")
            }
        }
    }

    /// A completion, and the port whose it is.
    pub(crate) fn lower(&self, completion: &Completion) -> (PortNumber, Completion) {
        let handle = completion.handle.0;
        let (port, handle) = match self.calls_of.get(&handle) {
            Some(port) => (*port, handle),
            None => self.message_at_port(handle),
        };
        (port, Completion { handle: Handle(handle), ..*completion })
    }

    /// The group of one port ends, and all with it: they are opened anew, and messages offered again. Whoever goes on by the first one reads
    /// these blocks as they were before.
    pub(crate) fn close_by(&mut self, port: PortNumber, (id, start, blocks): (VolumeId, u64, u32)) {
        self.tell(TierEvent::PortClosed { port });
        let nothing = TierEvent::Noted { port: PORT, number: 0 };
        if self.tier.handle(self.now, nothing).is_ok() {
            self.running.retain(|running| running.plan.handle.0 % self.config.ports != port.0);
            self.next_handle += self.next_handle % self.config.ports;
            self.send(IoOpcode::Read, id, start, blocks);
            self.settle();
        }
        self.forget_card();
        self.open();
        self.offer();
    }

    /// Of no port are more plans under way than there may be.
    pub(crate) fn check_room(&self, handle: Handle, most: u32) {
        let port_of = |handle| self.lower(&done(handle, CompletionStatus::Good)).0;
        let is_its = |of: &&Running| port_of(of.plan.handle) == port_of(handle);
        assert!(self.running.iter().filter(is_its).count() < most as usize, "more plans than there may be");
    }

    /// All ports are opened, one behind the other, by one gate.
    pub(crate) fn open_others(&mut self) {
        for number in 1..self.config.ports {
            let welcome = self.welcome();
            self.tell(TierEvent::PortOpened { port: PortNumber(number), welcome });
        }
    }

    /// A write of another port than the first is on all members and answered; what its ring has of that nobody hears, as it is over.
    /// Which blocks these are.
    fn lose_port(&mut self, port: PortNumber) -> Option<(VolumeId, u64, u32)> {
        let is_its =
            |plan: &PostedPlan| self.message_at_port(plan.handle.0).0 == port && plan.plan == id::WRITE_RAW;
        let found = self.running.iter().position(|running| is_its(&running.plan) && running.placed.is_some());
        let running = self.running.remove(found?);
        let (id, command) = self.command(running.plan.handle);
        let chunk = self.slots[&running.plan.slot.0].set.chunk;
        for completion in running.placed.unwrap() {
            assert_eq!(completion.status, CompletionStatus::Good);
            self.decide(chunk, ob_core::Units(completion.offset));
        }
        self.finish_message(&running.plan, Status::SUCCESS, false);
        Some((id, command.start, command.blocks))
    }
}

fn two_ports() -> TierConfig {
    TierConfig { ports: 2, ..both() }
}

fn play(mut of: TierConfig, seed: u64, commands: usize) -> Rig {
    if seed.is_multiple_of(2) {
        // So few that chunks lose theirs to others.
        of.slots_max = 5;
    }
    let mut rig = Rig::new(of, seed);
    let mut dice = Dice::new(seed + 1_000_000);
    rig.open();
    let mut left = commands;
    while left > 0 {
        if dice.below(3) == 0 && rig.messages.len() < 24 {
            send_any(&mut rig, &mut dice);
            left -= 1;
        } else if !rig.step() || dice.below(50) == 0 {
            rig.pass(Duration::from_millis(1 + dice.below(40)));
        }
    }
    rig.finish();
    rig
}

/// What is written by one port is read by another, and blocks of commands that come by different ones are changed one behind the other.
#[test]
fn ports_share_an_index_and_nothing_else() {
    for seed in 700..700 + seeds() {
        let mut rig = play(two_ports(), seed, 300);
        assert!(rig.answered.iter().all(|answered| answered.status == Status::SUCCESS), "seed {seed}");
        read_all(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
        let written = |port: u32| {
            let is_its = |plan: &&PostedPlan| {
                matches!(plan.plan, id::WRITE_RAW | id::WRITE_RAW_PART) && port_of_slot(plan.slot.0).0 == port
            };
            rig.posted.iter().filter(is_its).count()
        };
        assert!(written(0) > 20 && written(1) > 20, "seed {seed}: {} and {}", written(0), written(1));
        let status = rig.tier.status();
        assert_eq!(
            (status.commands, status.plans, status.mistakes, status.lined_up),
            (0, 0, 0, 0),
            "seed {seed}"
        );
    }
}

/// The same where payloads go to the host and servers come and go, which each port notices for itself.
#[test]
fn servers_that_come_and_go_are_left_and_found_again_by_each_port() {
    for seed in 800..800 + seeds() {
        let mut of = two_ports();
        of.lost_after = Duration::from_secs(2);
        if seed % 3 == 0 {
            of.placement = Placement::Accelerator;
            of.volumes.iter_mut().for_each(|(_, volume)| volume.class = Class::Standard);
        }
        let mut rig = Rig::new(of, seed);
        let mut dice = Dice::new(seed + 2_000_000);
        rig.open();
        let mut left = 250;
        while left > 0 {
            let is_any_down = rig.servers.iter().any(|server| server.is_down);
            match dice.below(400) {
                0 if !is_any_down => {
                    let server = dice.below(4) as usize;
                    rig.kill(server);
                }
                1..4 if is_any_down => (0..4).for_each(|server| rig.revive(server)),
                _ if dice.below(3) == 0 && rig.messages.len() < 24 => {
                    send_any(&mut rig, &mut dice);
                    left -= 1;
                }
                _ if !rig.step() || dice.below(50) == 0 => {
                    rig.pass(Duration::from_millis(1 + dice.below(40)));
                }
                _ => {}
            }
        }
        rig.finish();
        (0..4).for_each(|server| rig.revive(server));
        for _ in 0..600 {
            rig.settle();
            rig.pass(Duration::from_millis(50));
        }
        rig.settle();
        read_all(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
        rig.check_sealed();
        let is_legal = |status| [Status::SUCCESS, Status::NAMESPACE_NOT_READY].contains(&status);
        assert!(rig.answered.iter().all(|answered| is_legal(answered.status)), "seed {seed}");
        let status = rig.tier.status();
        assert_eq!((status.commands, status.plans, status.mistakes), (0, 0, 0), "seed {seed}: {status:?}");
    }
}

/// A channel of one port that breaks ends that port's chunks alone: the server is there, and the others go on with theirs.
#[test]
fn a_channel_of_one_port_is_its_own() {
    let mut rig = Rig::new(TierConfig { ports: 2, ..one() }, 1);
    rig.open();
    let write = |rig: &mut Rig, start: u64| {
        let handle = rig.send(IoOpcode::Write, volume(1, BlockLen::Large, 1024).0, start, 1);
        rig.finish();
        assert_eq!(rig.status_of(handle), Some(Status::SUCCESS));
        rig.message_at_port(handle).0
    };
    let ports: Vec<PortNumber> = (0..4).map(|start| write(&mut rig, start)).collect();
    assert!(ports.contains(&PortNumber(0)) && ports.contains(&PortNumber(1)));
    let opened = rig.tier.status().chunks_opened;
    assert_eq!(opened, 2, "one a port");
    rig.lose_channel(PortNumber(1), 0);
    rig.settle();
    (4..8).for_each(|start| _ = write(&mut rig, start));
    let status = rig.tier.status();
    assert_eq!((status.chunks_opened, status.chunks_sealed), (3, 1), "{status:?}");
    assert!(status.servers.iter().all(|server| server.is_ready));
    rig.check_log(&[0, 1, 2]);
}

fn one() -> TierConfig {
    config(vec![volume(1, BlockLen::Large, 1024)], 3)
}

/// Ports after the first come behind it, with its gate, and no more of them than there may be.
#[test]
fn a_port_without_the_first_ones_gate_is_none() {
    let mut rig = Rig::new(TierConfig { ports: 2, ..one() }, 1);
    let welcome = rig.welcome();
    let opened = |rig: &mut Rig, port: u32, welcome| {
        rig.tier.handle(rig.now, TierEvent::PortOpened { port: PortNumber(port), welcome })
    };
    assert_eq!(opened(&mut rig, 1, welcome), Err(TierError::Port(PortNumber(1))), "the first is not there");
    assert_eq!(opened(&mut rig, 0, welcome), Ok(()));
    let mut other = welcome;
    other.gate.0 += 1;
    assert_eq!(opened(&mut rig, 1, other), Err(TierError::Port(PortNumber(1))));
    assert_eq!(opened(&mut rig, 2, welcome), Err(TierError::Port(PortNumber(2))));
    assert_eq!(opened(&mut rig, 1, welcome), Ok(()));
    assert_eq!(opened(&mut rig, 1, welcome), Err(TierError::Port(PortNumber(1))));
    let completion = done(Handle(3), CompletionStatus::Good);
    let event = TierEvent::Done { port: PortNumber(1), completion, reply: None };
    assert_eq!(rig.tier.handle(rig.now, event), Err(TierError::NotPosted(Handle(3))));
}

/// I2: what one port has acknowledged, and did not live to tell, no other port knows: all begin anew, and find it in the log.
#[test]
fn a_port_that_is_lost_takes_all_others_along() {
    for seed in 900..900 + seeds() {
        let mut rig = Rig::new(two_ports(), seed);
        let mut dice = Dice::new(seed + 3_000_000);
        rig.open();
        let mut lost = 0;
        while lost < 3 {
            if dice.below(3) == 0 && rig.messages.len() < 24 {
                send_any(&mut rig, &mut dice);
            } else if !rig.step() {
                rig.pass(Duration::from_millis(1 + dice.below(40)));
            }
            if dice.below(20) == 0
                && let Some(blocks) = rig.lose_port(PortNumber(1))
            {
                lost += 1;
                rig.close_by(PortNumber(1), blocks);
                read_some(&mut rig, &mut dice);
            }
        }
        rig.finish();
        read_all(&mut rig);
        rig.check_log(&[0, 1, 2, 3]);
    }
}

/// Reads everywhere, by both ports.
fn read_some(rig: &mut Rig, dice: &mut Dice) {
    for (id, of) in [volume(1, BlockLen::Small, 2500), volume(2, BlockLen::Large, 2100)] {
        let all = of.size / u64::from(of.block_len.bytes());
        for start in [0, 1000, 2048] {
            rig.send(IoOpcode::Read, id, start, (all - start).min(52) as u32);
        }
    }
    (0..dice.below(200)).for_each(|_| _ = rig.step());
}
