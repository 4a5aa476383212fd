//! A port whose host, peers and link do what they like, in turns drawn by a seed: each message is answered once, no memory is lost.

#![allow(clippy::unwrap_used)] // A test stops at the first surprise.

mod card_rig;

use std::collections::{BTreeMap, BTreeSet};

use card_rig::{ANSWER, PATIENCE, Rig, Run, ask, hello, reply_to, request, set};
use ob_split::card::FrontKey;
use ob_split::wire::{ChannelState, CompletionStatus, Handle, SetWhat, kind};

struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// What the host knows of a message.
#[derive(Clone, Copy)]
struct Known {
    payload_len: u32,
    is_busy: bool,
}

struct Play {
    rig: Rig,
    dice: Dice,
    known: BTreeMap<u32, Known>,
    answered: BTreeSet<FrontKey>,
    arrived: usize,
    calls: u32,
    /// Of the next call.
    own: u32,
    /// Headers that this host has heard of.
    told: u32,
}

impl Play {
    fn new(seed: u64) -> Self {
        let (rig, dice) = (Rig::with_peers(), Dice(seed));
        let (known, answered) = (BTreeMap::new(), BTreeSet::new());
        Self { rig, dice, known, answered, arrived: 0, calls: 0, own: 0, told: 0 }
    }

    /// Has the host hear what there is.
    fn hear(&mut self) {
        for _ in 0..3 {
            self.rig.turn();
        }
        for header in std::mem::take(&mut self.rig.heard.headers) {
            self.told += 1;
            let descriptor = header.descriptor();
            let known = Known { payload_len: descriptor.length, is_busy: false };
            assert!(self.known.insert(descriptor.handle.0, known).is_none(), "told once");
        }
        for (completion, _) in self.rig.done() {
            if completion.handle.is_of_host() {
                self.calls -= 1;
                continue;
            }
            let known = self.known.get_mut(&completion.handle.0).unwrap();
            assert!(known.is_busy, "one end each");
            if completion.has_more {
                continue;
            }
            known.is_busy = false;
            if completion.status == CompletionStatus::Good {
                self.known.remove(&completion.handle.0);
            }
        }
        for (key, _) in self.rig.answers() {
            assert!(self.answered.insert(key), "answered once");
        }
        assert!(self.rig.closed.is_none(), "{:?}", self.rig.closed);
    }

    fn post(&mut self) {
        let idle: Vec<u32> =
            self.known.iter().filter(|(_, known)| !known.is_busy).map(|(handle, _)| *handle).collect();
        if idle.is_empty() || self.rig.card.counts().plans >= 30 {
            return;
        }
        let handle = idle[self.dice.below(idle.len() as u64) as usize];
        let known = self.known.get_mut(&handle).unwrap();
        known.is_busy = true;
        let (handle, is_write) = (Handle(handle), known.payload_len > 0);
        match self.dice.below(8) {
            0 => self.rig.post(ANSWER, 0, 3, handle, &[]),
            _ if is_write => self.rig.write(handle),
            _ => {
                let slot = |is_there| if is_there { 1 } else { u16::MAX };
                let runs = [0, 1, 2].map(|at| Run {
                    slot: slot(self.dice.below(4) > 0),
                    from: 64,
                    len: 4096,
                    into: at * 4096,
                });
                self.rig.read(handle, &runs);
            }
        }
    }

    fn peers(&mut self, is_good: bool) {
        for port in 1..=3 {
            let open = self.rig.card.net().pipes.values().any(|pipe| pipe.port == port && !pipe.is_closed);
            let heard = if open { self.rig.card.net_mut().heard(port) } else { Vec::new() };
            for (header, _) in heard {
                let roll = if is_good { 9 } else { self.dice.below(12) };
                let payload = if header.kind == ask::READ { vec![port as u8; 4096] } else { Vec::new() };
                match roll {
                    // It says nothing, something that is wrong, or only half of it.
                    0 => {}
                    1 => self.rig.card.net_mut().say(port, &reply_to(&header, 5, &[])),
                    2 => {
                        let bytes = reply_to(&header, 0, &payload);
                        self.rig.card.net_mut().say(port, &bytes[..bytes.len() / 2]);
                        return self.rig.card.net_mut().cut(port);
                    }
                    3 if self.dice.below(4) == 0 => {
                        return self.rig.card.net_mut().say(port, &[self.dice.below(256) as u8; 300]);
                    }
                    _ => self.rig.card.net_mut().say(port, &reply_to(&header, 0, &payload)),
                }
            }
        }
    }

    /// Makes anew what is gone.
    fn connect(&mut self) {
        let gone: BTreeSet<u16> = self.rig.heard.channels.iter().map(|told| told.channel.0).collect();
        let last = |channel: u16| {
            let told = self.rig.heard.channels.iter().rev().find(|told| told.channel.0 == channel);
            told.map(|told| told.state)
        };
        let gone: Vec<u16> =
            gone.into_iter().filter(|channel| last(*channel) == Some(ChannelState::Gone)).collect();
        if !gone.is_empty() {
            self.rig.connect(&gone);
        }
    }

    fn host_ends(&mut self) {
        self.rig.detach();
        // What was delivered and not heard, nobody hears.
        self.rig.heard = card_rig::Heard::default();
        (self.known, self.calls, self.told) = (BTreeMap::new(), 0, 0);
        for (key, _) in self.rig.answers() {
            assert!(self.answered.insert(key), "answered once");
        }
        self.rig.attach();
        self.rig.connect(&[1, 2, 3]);
        self.rig.say(kind::SET, &set(1, SetWhat::Append, &[1, 2, 3]));
        self.rig.grant(40);
    }

    fn step(&mut self) {
        match self.dice.below(20) {
            0..4 if self.arrived - self.answered.len() < 40 => {
                let len = [512, 4096, 70_000, 200_000][self.dice.below(4) as usize];
                let is_write = self.dice.below(2) == 0;
                self.rig.arrive(&vec![1; if is_write { len } else { 0 }], if is_write { 0 } else { 12_288 });
                self.arrived += 1;
            }
            4..10 => self.post(),
            10..14 => self.peers(false),
            14 => self.connect(),
            15 => {
                let port = self.dice.below(3) as u16 + 1;
                let room = self.dice.below(10_000) as usize;
                if self.rig.card.net().pipes.values().any(|pipe| pipe.port == port && !pipe.is_closed) {
                    self.rig.card.net_mut().widen(port, room);
                }
            }
            16 => self.rig.pass(PATIENCE / 3),
            17 if self.dice.below(6) == 0 => self.host_ends(),
            18 if self.calls < 5 => {
                self.calls += 1;
                self.own += 1;
                self.rig.call(1, Handle::of_host(self.own), request(ask::HELLO), &[0; 8]);
            }
            _ => self.rig.grant(u32::from(self.rig.credit - self.told < 40)),
        }
        self.hear();
    }

    /// Everything comes to its end.
    fn end(&mut self) {
        self.host_ends();
        for port in 1..=3 {
            self.rig.card.net_mut().widen(port, 1 << 30);
        }
        for _ in 0..1000 {
            self.rig.run();
            self.hear();
            if self.known.is_empty() && self.answered.len() == self.arrived {
                break;
            }
            self.post();
            self.rig.run();
            self.peers(true);
        }
        self.rig.run();
        assert_eq!(self.answered.len(), self.arrived);
        self.rig.assert_empty();
        assert!(self.rig.card.next_due().is_none_or(|due| due > self.rig.now));
    }
}

#[test]
fn each_message_is_answered_once_and_all_memory_comes_back() {
    for seed in 0..40 {
        let mut play = Play::new(seed);
        play.rig.grant(30);
        for _ in 0..150 {
            play.step();
        }
        play.end();
    }
}

#[test]
fn whatever_a_host_says_a_turn_ends() {
    for seed in 0..100 {
        let mut dice = Dice(seed);
        let mut rig = Rig::with_peers();
        rig.arrive(&[1; 5000], 100);
        rig.run();
        for _ in 0..20 {
            if rig.group.is_none() {
                rig.open(64 << 10);
                rig.say(kind::HELLO, &hello());
            }
            let len = dice.below(80) as usize;
            let mut bytes: Vec<u8> = (0..8 + len).map(|_| dice.below(256) as u8).collect();
            // Often something that begins as a message does.
            bytes[0] = dice.below(15) as u8;
            bytes[1] = dice.below(3) as u8;
            bytes[2..4].fill(0);
            bytes[4..8].copy_from_slice(&rig.credit.to_le_bytes());
            if dice.below(2) == 0 && len > 8 {
                bytes[8] = dice.below(7) as u8;
                bytes[12..16].copy_from_slice(&(1u32 << 16).to_le_bytes());
            }
            rig.push(&bytes);
            rig.run();
        }
        rig.detach();
        rig.run();
        let counts = rig.card.counts();
        assert!(counts.plans == 0 && counts.blocks_out == 0 && counts.messages <= 1, "{seed}: {counts:?}");
    }
}
