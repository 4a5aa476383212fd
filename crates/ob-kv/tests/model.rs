//! The store against a plain map: any commands, operations that become complete in any order, losses of power at any
//! moment, parts and memory so small that everything happens. One seed, one run.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

use crate::support;

use std::collections::BTreeMap;

use ob_format::kv::RecordPlace;
use ob_kv::resp::Request;
use ob_kv::store::{Answer, Attestation, Config, Durability, Recovery, Session, Store};
use ob_sim::Rng;
use support::files::Files;
use support::reference::{Reference, State};
use support::{at, decoded, encoded, ms};

const SEEDS: u64 = 400;
const STEPS: u64 = 1500;

/// What is to come of a request.
struct Expected {
    request: Vec<Vec<u8>>,
    reply: Option<Vec<u8>>,
    /// The keys that its answer shows, each with the stamp of the change that it shows.
    shows: Vec<(Vec<u8>, u64)>,
}

struct Run {
    seed: u64,
    rng: Rng,
    config: Config,
    files: Files,
    store: Store,
    session: Session,
    reference: Reference,
    /// Requests that were not answered yet.
    expected: BTreeMap<u64, Expected>,
    /// Changes that a loss of power must not take, by their stamps: what was answered, once that is promised.
    promised: BTreeMap<Vec<u8>, u64>,
    /// The same, for what was answered and is not promised yet.
    answered: BTreeMap<Vec<u8>, u64>,
    /// Requests since the last recovery that change several keys.
    together: Vec<(u64, Vec<Vec<u8>>)>,
    settled: u64,
    stamp: u64,
    now: u64,
    /// Steps until the next loss of power, where a life is to be short: what one life leaves behind, the next one meets.
    steps_left: Option<u64>,
    /// What has happened, for the test that everything does.
    crashes: u64,
    parts_removed: u64,
    records_read: u64,
    requests_queued: u64,
    attested: u64,
}

fn config(rng: &mut Rng) -> Config {
    let durability = match rng.below(10) {
        0..6 => Durability::Always,
        6..9 => Durability::EverySecond,
        _ => Durability::No,
    };
    Config {
        durability,
        part_len: 4096 * rng.range(8..20),
        group_len: 8192,
        memory_len: [0, 8192, 40_000][rng.index(3)],
        value_len_max: 25_000,
        writes_max: rng.range(1..7) as usize,
        waiting_max: 60,
        garbage_percent: rng.range(20..60),
        name: *b"the store's name",
        ..Config::default()
    }
}

/// Names of several lengths.
fn keys() -> Vec<Vec<u8>> {
    (0..22_usize).map(|number| format!("{}{number:02}", "k".repeat(number % 5)).into_bytes()).collect()
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let config = config(&mut rng);
        let store = Store::create(config.clone());
        let session = store.open(1);
        Self {
            seed,
            rng,
            config,
            files: Files::default(),
            store,
            session,
            reference: Reference::default(),
            expected: BTreeMap::new(),
            promised: BTreeMap::new(),
            answered: BTreeMap::new(),
            together: Vec::new(),
            settled: 0,
            stamp: 0,
            now: 1_000_000,
            steps_left: None,
            crashes: 0,
            parts_removed: 0,
            records_read: 0,
            requests_queued: 0,
            attested: 0,
        }
    }

    fn go(&mut self) {
        for _ in 0..STEPS {
            self.steps_left = self.steps_left.map(|left| left - 1);
            if self.steps_left.take_if(|left| *left == 0).is_some() {
                self.lose_power();
            }
            match self.rng.below(100) {
                0..50 if self.store.has_room() => self.request(),
                50..70 => self.submit(),
                70..97 => self.complete(),
                97 => self.pause(),
                98 if self.rng.one_in(3) => self.lose_power(),
                99 if self.rng.one_in(3) => self.store.begin_refill(self.stamp + 1),
                _ => {}
            }
            self.take_answers();
        }
        self.pause();
        self.check_scan();
        self.lose_power();
        self.count();
    }

    fn some_key(&mut self) -> Vec<u8> {
        let keys = keys();
        // Few keys are asked for often, so that requests meet on them.
        let among = if self.rng.one_in(2) { 4 } else { keys.len() };
        keys[self.rng.index(among)].clone()
    }

    fn some_value(&mut self) -> Vec<u8> {
        let len = match self.rng.below(20) {
            0..9 => self.rng.below(40),
            9..18 => self.rng.below(3000),
            _ => self.rng.below(12_000),
        };
        let mut value = format!("{}:", self.stamp).into_bytes();
        value.resize(value.len() + len as usize, b'.');
        value
    }

    fn some_request(&mut self) -> Vec<Vec<u8>> {
        let key = self.some_key();
        let text = |text: &str| text.as_bytes().to_vec();
        let ms = text(&self.rng.range(1..4000).to_string());
        let several = |run: &mut Self| (0..run.rng.range(1..5)).map(|_| run.some_key()).collect::<Vec<_>>();
        match self.rng.below(60) {
            0..12 => vec![text("get"), key],
            12..22 => vec![text("set"), key, self.some_value()],
            22 => vec![text("set"), key, self.some_value(), text("nx")],
            23 => vec![text("set"), key, self.some_value(), text("xx")],
            24 => vec![text("set"), key, self.some_value(), text("get")],
            25 => vec![text("set"), key, self.some_value(), text("keepttl")],
            26..29 => vec![text("set"), key, self.some_value(), text("px"), ms],
            29..33 => [vec![text("mget")], several(self)].concat(),
            33..36 => {
                let pairs = several(self).into_iter().flat_map(|key| [key, self.some_value()]).collect();
                [vec![text("mset")], pairs].concat()
            }
            36..39 => [vec![text("del")], several(self)].concat(),
            39 => [vec![text("exists")], several(self)].concat(),
            40..45 => vec![text("incr"), key],
            45 => vec![text("set"), key, text("7")],
            46..50 => vec![text("append"), key, text("+more")],
            50 => vec![text("getdel"), key],
            51..53 => vec![text("pexpire"), key, ms],
            53 => vec![text("persist"), key],
            54 => vec![text("pttl"), key],
            55 => vec![text("strlen"), key],
            56 => vec![text("scan"), text("0"), text("count"), text("5")],
            57 => vec![text("dbsize")],
            58 if self.rng.one_in(6) => vec![text("flushall")],
            _ => vec![text("get"), key],
        }
    }

    fn request(&mut self) {
        self.stamp += 1;
        let request = self.some_request();
        let reply = self.reference.apply(self.now, self.stamp, &request);
        let changed = |versions: &Vec<(u64, State)>| versions.last().is_some_and(|(of, _)| *of == self.stamp);
        let changes = self.reference.versions.iter().filter(|(_, versions)| changed(versions));
        let changes: Vec<Vec<u8>> = changes.map(|(key, _)| key.clone()).collect();
        let named = request[1..].iter().chain(&changes);
        let version_of = |key: &Vec<u8>| {
            self.reference.versions.get(key).map(|versions| (key.clone(), versions.last().unwrap().0))
        };
        let shows = named.filter_map(version_of).collect();
        if changes.len() > 1 {
            self.together.push((self.stamp, changes));
        }
        let bytes = encoded(&request);
        self.expected.insert(self.stamp, Expected { request, reply, shows });
        self.store.apply(at(self.now), self.stamp, 7, &mut self.session, &Request::new(&bytes));
    }

    fn submit(&mut self) {
        while let Some(op) = self.store.next_op() {
            self.files.submit(op);
        }
    }

    fn complete(&mut self) {
        if let Some(completion) = self.files.complete(&mut self.rng) {
            self.store.completed(completion);
        }
    }

    fn take_answers(&mut self) {
        self.settled = self.settled.max(self.store.settled());
        while let Some((as_of, attestation)) = self.store.next_attestation() {
            // No later request has changed the key by then, or the card would have to know of it.
            let state = self.reference.versions.get(&attestation.key).and_then(|versions| {
                versions.iter().rev().find(|(stamp, _)| *stamp <= as_of).map(|(_, state)| state.clone())
            });
            let state = state.unwrap_or_else(|| self.reference.keys.get(&attestation.key).cloned());
            self.check_attestation(&attestation, state.as_ref().map(|(value, _)| &value[..]));
        }
        while let Some(answer) = self.store.next_answer() {
            self.take_answer(&answer);
            self.store.give_back(answer.bytes);
        }
    }

    fn take_answer(&mut self, answer: &Answer) {
        let seed = self.seed;
        let expected =
            self.expected.remove(&answer.stamp).expect("an answer to a request, and the first one");
        let shown: Vec<String> =
            expected.request.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        if let Some(reply) = &expected.reply {
            assert!(
                answer.bytes == *reply,
                "seed {seed}, stamp {}: {shown:?}\n was answered {}\n instead of {}",
                answer.stamp,
                String::from_utf8_lossy(&answer.bytes),
                String::from_utf8_lossy(reply),
            );
        }
        assert_eq!(answer.connection, 7);
        let into = if self.config.durability == Durability::Always {
            &mut self.promised
        } else {
            &mut self.answered
        };
        for (key, stamp) in expected.shows {
            let known = into.entry(key).or_default();
            *known = stamp.max(*known);
        }
        if let Some(attestation) = &answer.attestation {
            let value = decoded(&[b"*1\r\n", &answer.bytes[..]].concat()).remove(0);
            self.check_attestation(attestation, Some(&value));
        }
    }

    /// What is attested lies on the device, and is what the key was.
    fn check_attestation(&mut self, attestation: &Attestation, expected: Option<&[u8]>) {
        // The part may be gone by then, and the card would notice.
        if self.files.parts().first().is_none_or(|(oldest, _)| attestation.part < *oldest) {
            return;
        }
        let bytes = self.files.bytes(attestation.part, attestation.offset);
        let record = RecordPlace::decode(bytes).expect("what is attested is there").of(bytes);
        assert_eq!((record.key, record.stamp), (&*attestation.key, attestation.stamp));
        let value = record.value.unwrap();
        assert_eq!((value.len(), record.expires), (attestation.value_len, attestation.expires));
        assert!(expected == Some(value), "seed {}: an old record was attested", self.seed);
        self.attested += 1;
    }

    /// Lets everything come to an end, and time pass.
    fn pause(&mut self) {
        self.drain();
        assert!(
            self.expected.is_empty(),
            "seed {}: {} requests without answer",
            self.seed,
            self.expected.len()
        );
        assert_eq!(self.store.stats().waiting_len, 0, "seed {}", self.seed);
        self.now += self.rng.below(3000);
        let due = self.store.next_due().map(ms);
        self.store.tick(at(due.unwrap_or(0).max(self.now)));
        self.now = self.now.max(due.unwrap_or(0));
        self.drain();
        if self.config.durability == Durability::EverySecond && self.rng.one_in(2) {
            // A flush is for what was complete before: the open group is written first.
            for pause in [self.config.seal_after_ms, 1001] {
                self.now += pause;
                self.store.tick(at(self.now));
                self.drain();
            }
            for (key, stamp) in std::mem::take(&mut self.answered) {
                self.promised.insert(key, stamp);
            }
        }
    }

    fn drain(&mut self) {
        for _ in 0..100_000 {
            self.submit();
            if self.files.is_idle() {
                self.take_answers();
                return;
            }
            self.complete();
            self.take_answers();
        }
        panic!("seed {}: it never comes to an end", self.seed);
    }

    /// Asks for something by itself.
    fn ask(&mut self, request: &[&[u8]]) -> Vec<u8> {
        self.stamp += 1;
        let bytes = encoded(request);
        self.store.apply(at(self.now), self.stamp, 7, &mut self.session, &Request::new(&bytes));
        for _ in 0..1000 {
            if let Some(answer) = self.store.next_answer() {
                assert_eq!(answer.stamp, self.stamp);
                return answer.bytes;
            }
            self.submit();
            self.complete();
        }
        panic!("seed {}: no answer", self.seed);
    }

    fn check_scan(&mut self) {
        let (mut cursor, mut found) = (b"0".to_vec(), Vec::new());
        loop {
            let reply = self.ask(&[b"scan", &cursor, b"count", b"4"]);
            // An array of the cursor and an array: like a request, but for the head.
            let reply = reply.strip_prefix(b"*2\r\n").unwrap();
            cursor = decoded(&[b"*1\r\n", reply].concat()).remove(0);
            let at = reply.iter().position(|byte| *byte == b'*').unwrap();
            found.extend(decoded(&reply[at..]));
            if cursor == b"0" {
                break;
            }
        }
        found.sort();
        let there: Vec<Vec<u8>> =
            keys().into_iter().filter(|key| self.reference.get(key, self.now).is_some()).collect();
        let mut there = there;
        there.sort();
        assert_eq!(found, there, "seed {}", self.seed);
    }

    fn count(&mut self) {
        let stats = self.store.stats();
        self.parts_removed += stats.parts_removed;
        self.records_read += stats.records_read;
        self.requests_queued += stats.requests_queued;
        assert_eq!(stats.hash_collisions, 0);
    }

    fn lose_power(&mut self) {
        self.crashes += 1;
        self.steps_left = (!self.rng.one_in(4)).then(|| self.rng.range(5..50));
        self.count();
        self.expected.clear();
        let files = std::mem::take(&mut self.files);
        let is_process_alone = self.rng.one_in(3);
        self.files = match is_process_alone {
            true => files.lose_process(&mut self.rng),
            false => files.lose_power(&mut self.rng),
        };
        let mut recovery = Recovery::new(self.config.clone(), self.files.parts()).unwrap();
        while let Some(op) = recovery.next_op() {
            self.files.submit(op);
            let completion = self.files.complete(&mut self.rng).unwrap();
            recovery.completed(completion).unwrap();
        }
        self.store = recovery.finish().ok().expect("it is done when there is nothing more to read");
        self.session = self.store.open(2);
        // What a write has brought to the device outlasts a process, whatever was promised.
        if self.config.durability == Durability::Always || is_process_alone {
            let seed = self.seed;
            assert!(self.store.settled() >= self.settled, "seed {seed}: less was recovered than was settled");
        }
        assert!(self.store.stamp_max() <= self.stamp);
        self.settled = self.store.settled();
        self.compare();
    }

    /// Compares what was recovered with what was promised, and goes on from there.
    fn compare(&mut self) {
        let mut recovered = BTreeMap::new();
        let mut possible = BTreeMap::new();
        for key in keys() {
            let state = self.state_of(&key);
            let now = self.now;
            let unchanged = vec![(0, self.reference.keys.get(&key).cloned())];
            let versions = self.reference.versions.get(&key).unwrap_or(&unchanged);
            let least = self.promised.get(&key).copied().unwrap_or(0);
            let is_like = |version: &State| {
                let is_over = matches!(version, Some((_, Some(expires))) if *expires < now);
                *version == state || (is_over && state.is_none())
            };
            let stamps: Vec<u64> = versions
                .iter()
                .filter(|(stamp, version)| *stamp >= least && is_like(version))
                .map(|(stamp, _)| *stamp)
                .collect();
            assert!(
                !stamps.is_empty(),
                "seed {}: key {} was promised with stamp {least}; recovered {:?}, there were {:?}",
                self.seed,
                String::from_utf8_lossy(&key),
                state.as_ref().map(|(value, expires)| (
                    String::from_utf8_lossy(&value[..value.len().min(20)]).into_owned(),
                    expires
                )),
                versions.iter().map(|(stamp, version)| (*stamp, version.is_some())).collect::<Vec<_>>(),
            );
            possible.insert(key.clone(), stamps);
            if let Some(state) = state {
                recovered.insert(key, state);
            }
        }
        for (stamp, keys) in std::mem::take(&mut self.together) {
            let is_in = |key: &Vec<u8>| possible[key].iter().all(|possible| *possible >= stamp);
            let is_out = |key: &Vec<u8>| possible[key].iter().all(|possible| *possible < stamp);
            let is_torn = keys.iter().any(is_in) && keys.iter().any(is_out);
            assert!(!is_torn, "seed {}: half of stamp {stamp} was recovered", self.seed);
        }
        self.reference = Reference::of(recovered);
        self.promised.clear();
        self.answered.clear();
    }

    fn state_of(&mut self, key: &[u8]) -> State {
        let value = self.ask(&[b"get", key]);
        if value == b"$-1\r\n" {
            return None;
        }
        let value = decoded(&[b"*1\r\n", &value[..]].concat()).remove(0);
        let expires = self.ask(&[b"pexpiretime", key]);
        let expires: i64 =
            String::from_utf8(expires[1..expires.len() - 2].to_vec()).unwrap().parse().unwrap();
        Some((value, u64::try_from(expires).ok()))
    }
}

#[test]
fn it_is_a_map_whatever_happens() {
    // `OB_SEED` repeats one run, `OB_SEEDS` makes more of them.
    let given = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let seeds = given("OB_SEED").map_or(0..given("OB_SEEDS").unwrap_or(SEEDS), |seed| seed..seed + 1);
    let is_one = seeds.end - seeds.start == 1;
    let (mut crashes, mut removed, mut read, mut queued, mut attested) = (0, 0, 0, 0, 0);
    for seed in seeds {
        let mut run = Run::new(seed);
        run.go();
        crashes += run.crashes;
        removed += run.parts_removed;
        read += run.records_read;
        queued += run.requests_queued;
        attested += run.attested;
    }
    // What never happened was not tested.
    assert!(is_one || [crashes, removed, read, queued, attested].iter().all(|count| *count > 100));
}
