//! Random stories: clients, a host that applies requests when it likes, files that lag behind, deaths; and what may never
//! happen in any of them.
//!
//! Each key is a counter: `SET` makes the next number of it, and every reply that shows a number is checked:
//! - it is not older than any that was shown to anybody before the request was sent, nor newer than the host has made;
//! - on one connection numbers of a key never fall, whichever half gives them, pipelined or not;
//! - replies come in the order of the requests, one each.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where something is missing")]

use crate::support;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ob_core::ConnectionId;
use ob_director::DirectorConfig;
use ob_offload::ReasonCounts;
use ob_wire_link::stream::FromHost;
use support::lines::Place;
use support::{NODE, Said, World, director_config, engine_config};

const KEYS: [&str; 3] = ["a", "b", "c"];
const STEPS: usize = 600;

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    fn key(&mut self) -> usize {
        self.below(KEYS.len())
    }
}

#[derive(Clone, Debug)]
struct Asked {
    keys: Vec<usize>,
    changes: bool,
    /// The greatest number of each key that had been shown to anybody when it was sent.
    floors: Vec<u64>,
}

#[derive(Default)]
struct Client {
    asked: VecDeque<Asked>,
    unsent: Vec<u8>,
    got: String,
    /// The greatest number of each key that it was shown.
    shown: [u64; KEYS.len()],
}

#[derive(Default)]
struct Host {
    is_here: bool,
    inbox: VecDeque<(u64, u64, String)>,
    outbox: Vec<(u64, u64, String, bool)>,
    /// Number and stamp of each key.
    store: [(u64, u64); KEYS.len()],
    /// Where the newest record of a key lies, if it was written; and whether that is settled.
    places: [Option<(Place, bool)>; KEYS.len()],
    applied: u64,
    /// The newest of each key that was written, and that it would recover: as `store`.
    written: [(u64, u64); KEYS.len()],
    recovered: [(u64, u64); KEYS.len()],
    /// Stamps of all changes of each key.
    changes: [Vec<u64>; KEYS.len()],
    /// How far the log is settled.
    end: u64,
    /// Places of records that are not current any more.
    old: Vec<Place>,
}

struct Story {
    seed: u64,
    rng: Rng,
    world: World,
    clients: BTreeMap<u64, Client>,
    host: Host,
    shown: [u64; KEYS.len()],
    answered: usize,
}

fn value(number: u64) -> String {
    format!("{number:012}")
}

impl Story {
    fn new(seed: u64) -> Self {
        // In every other story replies wait for each other, as they do on a card.
        let gather = Duration::from_micros(if seed.is_multiple_of(2) { 0 } else { 1500 });
        let mut world = World::with(engine_config(), DirectorConfig { gather, ..director_config() });
        world.meet(0, 0);
        let host = Host { is_here: true, ..Host::default() };
        let rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        Self { seed, rng, world, clients: BTreeMap::new(), host, shown: [0; 3], answered: 0 }
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            self.step();
            self.hear();
        }
        self.finish();
    }

    fn step(&mut self) {
        match self.rng.below(32) {
            0 if self.clients.len() < 5 => {
                let client = self.world.connect();
                self.clients.insert(client, Client::default());
            }
            0..=9 => self.ask(),
            10..=15 => self.apply(),
            16..=20 => self.reply(),
            21 | 22 => {
                self.write();
                self.write();
            }
            23 => self.settle(),
            24 => self.attest(),
            25 | 26 => {
                let reads = self.world.reads();
                if reads > 0 {
                    let at = self.rng.below(reads);
                    self.world.answer_read(at);
                }
            }
            27 => {
                let room = [0, 1, 3, usize::MAX][self.rng.below(4)];
                self.world.set_room(room);
                self.world.turn();
            }
            28 => self.spoil(),
            29 if self.rng.below(4) == 0 => self.end_one(),
            30 if self.rng.below(6) == 0 => self.die_or_come_back(),
            _ => {
                self.world.now.instant = self.world.now.instant + Duration::from_millis(1);
                self.world.turn();
            }
        }
    }

    fn some_client(&mut self) -> Option<u64> {
        let at = self.rng.below(self.clients.len().max(1));
        self.clients.keys().nth(at).copied()
    }

    fn ask(&mut self) {
        let Some(id) = self.some_client() else { return };
        for _ in 0..=self.rng.below(4) {
            let (key, other) = (self.rng.key(), self.rng.key());
            let (text, keys, changes) = match self.rng.below(32) {
                0..=17 => (format!("GET {}\n", KEYS[key]), vec![key], false),
                18..=26 => (format!("MGET {} {}\n", KEYS[key], KEYS[other]), vec![key, other], false),
                27..=30 => (format!("SET {}\n", KEYS[key]), vec![key], true),
                _ => ("AUTH\n".to_owned(), vec![], false),
            };
            let floors = keys.iter().map(|key| self.shown[*key]).collect();
            let client = self.clients.get_mut(&id).unwrap();
            client.unsent.extend_from_slice(text.as_bytes());
            client.asked.push_back(Asked { keys, changes, floors });
        }
        let client = self.clients.get_mut(&id).unwrap();
        // Sometimes the end of it comes with the next ones.
        let len = client.unsent.len() - self.rng.below(2) * self.rng.below(client.unsent.len());
        let bytes: Vec<u8> = client.unsent.drain(..len).collect();
        self.world.arrive(id, &bytes);
        if self.rng.below(3) > 0 {
            self.world.turn();
        }
    }

    /// The host takes what has come, and applies one request.
    fn apply(&mut self) {
        for said in self.world.said() {
            match said {
                Said::Request(connection, stamp, text) => {
                    self.host.inbox.push_back((connection, stamp, text));
                }
                Said::Closed(connection) => self.host.outbox.retain(|(to, ..)| *to != connection),
                Said::Begin(_) | Said::Opened(..) | Said::Credit(..) => {}
            }
        }
        let Some((connection, stamp, text)) = self.host.inbox.pop_front() else { return };
        assert!(stamp > self.host.applied, "stamps grow");
        self.host.applied = stamp;
        let mut words = text.split(' ');
        let command = words.next().unwrap();
        let keys: Vec<usize> = words.map(|word| KEYS.iter().position(|key| *key == word).unwrap()).collect();
        let reply = match command {
            "SET" => {
                let key = keys[0];
                self.host.old.extend(self.host.places[key].take().map(|(place, _)| place));
                self.host.store[key] = (self.host.store[key].0 + 1, stamp);
                self.host.changes[key].push(stamp);
                format!("${}\n", value(self.host.store[key].0))
            }
            "AUTH" => "+\n".to_owned(),
            _ => {
                let values: String =
                    keys.iter().map(|key| format!("${}", value(self.host.store[*key].0))).collect();
                values + "\n"
            }
        };
        self.host.outbox.push((connection, stamp, reply, command == "AUTH"));
    }

    fn reply(&mut self) {
        if self.host.outbox.is_empty() || !self.host.is_here {
            return;
        }
        let at = self.rng.below(self.host.outbox.len());
        // Rule 1: no answer leaves before everything that was applied when it was made is durable.
        if self.unsettled().is_some_and(|stamp| stamp <= self.host.outbox[at].1) {
            return;
        }
        let (connection, stamp, text, is_login) = self.host.outbox.remove(at);
        if is_login || self.rng.below(2) == 0 {
            self.world.say(&FromHost::Standing { connection: ConnectionId(connection), stamp, word: 2 });
        }
        let cut = self.rng.below(text.len());
        if cut > 0 && self.rng.below(3) == 0 {
            self.world.reply_part(connection, stamp, &text.as_bytes()[..cut], 0, text.len());
            self.world.reply_part(connection, stamp, &text.as_bytes()[cut..], cut, text.len());
        } else {
            self.world.reply(connection, stamp, &text);
        }
        assert_eq!(self.world.host.0.borrow().closed, None, "seed {}", self.seed);
    }

    /// The oldest change that a crash would take back.
    fn unsettled(&self) -> Option<u64> {
        let changes = self.host.changes.iter().zip(&self.host.recovered);
        let lost = changes.flat_map(|(changes, (_, kept))| changes.iter().find(|stamp| *stamp > kept));
        lost.min().copied()
    }

    /// The host writes a record to its log: the oldest that is not there.
    fn write(&mut self) {
        let unwritten = (0..KEYS.len()).filter(|key| self.host.places[*key].is_none());
        let unwritten = unwritten.map(|key| (self.host.store[key], key));
        let oldest = unwritten.filter(|((number, _), _)| *number > 0).min_by_key(|((_, stamp), _)| *stamp);
        if let Some(((number, stamp), key)) = oldest
            && self.host.is_here
        {
            let place = self.world.write(KEYS[key], &value(number), stamp);
            self.host.places[key] = Some((place, false));
            self.host.written[key] = (number, stamp);
        }
    }

    fn settle(&mut self) {
        if self.host.is_here {
            self.world.settle();
            self.host.end = self.world.written();
            self.host.recovered = self.host.written;
            self.host.places.iter_mut().flatten().for_each(|(_, is_settled)| *is_settled = true);
        }
    }

    fn attest(&mut self) {
        let key = self.rng.key();
        if let Some((place, true)) = self.host.places[key]
            && self.host.is_here
            && self.host.applied > 0
        {
            self.world.attest(KEYS[key], place, self.host.applied);
        }
    }

    /// The host gives old parts of its log back, and others write there.
    fn spoil(&mut self) {
        // What a crash would bring back is kept.
        if self.unsettled().is_some() {
            return;
        }
        let mut disk = self.world.disk.0.borrow_mut();
        for place in self.host.old.drain(..) {
            let content = disk.contents.get_mut(&NODE.0).unwrap();
            content[place.offset as usize..][..place.len as usize].fill(b'?');
        }
    }

    fn end_one(&mut self) {
        let Some(id) = self.some_client() else { return };
        if self.rng.below(2) == 0 {
            self.world.reset(id);
        } else {
            self.world.end(id);
            self.hear();
        }
        self.clients.remove(&id);
    }

    fn die_or_come_back(&mut self) {
        if self.host.is_here {
            // What was received and not applied is lost, and so is every reply, and what is not settled.
            self.host.is_here = false;
            self.world.cut_log(self.host.end);
            self.host.store = self.host.recovered;
            self.host.written = self.host.recovered;
            for (changes, (_, kept)) in self.host.changes.iter_mut().zip(&self.host.recovered) {
                changes.retain(|stamp| stamp <= kept);
            }
            self.host.old.clear();
            self.host.inbox.clear();
            self.host.outbox.clear();
            self.world.host_dies();
            self.world.said();
        } else {
            let seen = self.host.applied;
            self.host
                .places
                .iter_mut()
                .for_each(|place| *place = place.filter(|(_, is_settled)| *is_settled));
            self.host.is_here = true;
            self.world.meet(seen, self.world.written());
        }
    }

    /// Checks what clients got.
    fn hear(&mut self) {
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        for id in ids {
            let got = self.world.got(id);
            let client = self.clients.get_mut(&id).unwrap();
            client.got.push_str(&got);
            while let Some(end) = client.got.find('\n') {
                let line: String = client.got.drain(..=end).collect();
                let asked = client.asked.pop_front().expect("no reply without a request");
                self.answered += 1;
                let numbers: Vec<u64> =
                    line.trim().split('$').skip(1).map(|text| text.parse().unwrap()).collect();
                if !line.starts_with('$') {
                    assert!(matches!(line.as_str(), "+\n" | "?\n" | "~\n"), "{line:?}");
                    continue;
                }
                assert_eq!(numbers.len(), asked.keys.len(), "seed {}: {line:?} to {asked:?}", self.seed);
                for ((key, floor), number) in asked.keys.iter().zip(&asked.floors).zip(numbers) {
                    let least = (*floor).max(client.shown[*key]) + u64::from(asked.changes);
                    let most = self.host.store[*key].0;
                    assert!(
                        (least..=most).contains(&number),
                        "seed {}: {} is {number}, and must be {least} to {most}: {asked:?}",
                        self.seed,
                        KEYS[*key],
                    );
                    client.shown[*key] = number;
                    self.shown[*key] = self.shown[*key].max(number);
                }
            }
            if self.world.is_closed(id) || self.world.is_finished(id) {
                self.clients.remove(&id);
            }
        }
    }

    /// Everything that can come to an end does.
    fn finish(&mut self) {
        if !self.host.is_here {
            self.die_or_come_back();
        }
        self.world.set_room(usize::MAX);
        let ids: Vec<u64> = self.clients.keys().copied().collect();
        for id in ids {
            let unsent = std::mem::take(&mut self.clients.get_mut(&id).unwrap().unsent);
            self.world.arrive(id, &unsent);
        }
        for _ in 0..2000 {
            self.world.answer_reads();
            self.world.pass(Duration::from_millis(1));
            self.apply();
            self.write();
            self.settle();
            self.reply();
            self.hear();
        }
        for (id, client) in &self.clients {
            assert!(client.asked.is_empty(), "seed {}: client {id} waits for {:?}", self.seed, client.asked);
        }
        let engine = self.world.driver.director().engine();
        assert_eq!((engine.in_flight(), engine.buffers_out()), (0, 0), "seed {}", self.seed);
    }
}

#[test]
fn no_client_sees_time_go_back() {
    let seeds = std::env::var("OB_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(300);
    let (mut answered, mut by_card, mut by_host, mut fell_back) = (0, 0, 0, 0);
    for seed in 1..=seeds {
        let mut story = Story::new(seed);
        story.run();
        let counts = story.world.driver.director().counts();
        answered += story.answered;
        by_card += counts.card;
        by_host += counts.host.total();
        fell_back += behind(&counts.host);
    }
    // A story in which one half does everything shows nothing.
    assert!(answered > 100 * seeds as usize, "{answered}");
    assert!(by_card > 3 * seeds && by_host > 5 * seeds && fell_back > 0, "{by_card} {by_host} {fell_back}");
}

fn behind(counts: &ReasonCounts) -> u64 {
    counts.of(ob_offload::Reason::Mismatch) + counts.of(ob_offload::Reason::Behind)
}
