//! Ten times as much as the host may keep in memory, through both halves, while the log is compacted, and over a death of both.
//!
//! A value is made of its key's number and its version, so the model is a number for each key: the version that was answered
//! last, beside the one that was tried last.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::Scope;

use ob_sim::Rng;

use super::support::confinement::Confinement;
use super::support::kv::{Service, Setup, host_reads, wait_until};
use super::support::resp::{Client, Value, request};

const MIB: u64 = 1 << 20;
const MEMORY: u64 = 16 * MIB;
const SETUP: Setup = Setup { more: "memory = \"16MiB\"\npart = \"8MiB\"\n", ..Setup::CARD };
/// What the program takes beside the store's memory: its own code and data, stacks, rings, buffers of the log, and requests
/// that wait. Both together are a fraction of what is stored.
const BESIDE: u64 = 48 * MIB;
const KEYS: u32 = 22_000;
const VALUE_LEN_MAX: u64 = 16 << 10;
const WRITERS: u32 = 3;
const READERS: u64 = 2;
/// Requests that a client has under way.
const WINDOW: usize = 32;
/// Parts that compaction has to have removed.
const PARTS_REMOVED: u64 = 4;

#[test]
fn ten_times_the_hosts_memory_is_held_while_the_log_is_compacted() {
    let mut service = Service::start_confined(SETUP, Confinement::new(MEMORY + BESIDE));
    let stored = Stored::default();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (stored, mut client) = (&stored, service.client());
            scope.spawn(move || {
                let numbers: Vec<u32> = (0..KEYS).filter(|number| number % WRITERS == writer).collect();
                for numbers in numbers.chunks(WINDOW) {
                    stored.write(&mut client, numbers).unwrap();
                }
            });
        }
    });
    assert!(service.log_facts().live_bytes >= 10 * MEMORY, "{:?}", service.log_facts());
    stored.while_it_changes(service.address, || {
        wait_until("the log is compacted", || {
            let facts = service.log_facts();
            (facts.parts_removed >= PARTS_REMOVED && facts.records_copied > 0) || stored.is_over()
        });
    });
    read_by_both_halves(&service, &stored);

    // Both die while everybody is at work, and what was answered is there.
    let mut peaks = vec![service.host_memory_peak()];
    stored.while_it_changes(service.address, || {
        let wanted = stored.writes.load(Ordering::SeqCst) + 1000;
        wait_until("clients write", || stored.writes.load(Ordering::SeqCst) >= wanted || stored.is_over());
        stored.may_fail.store(true, Ordering::SeqCst);
        service.kill_both();
    });
    service.start_what_is_dead();
    service.wait_until_it_serves();
    stored.check(&service);
    read_by_both_halves(&service, &stored);
    let facts = service.log_facts();
    assert!(facts.live_bytes >= 10 * MEMORY, "{facts:?}");
    peaks.push(service.host_memory_peak());
    println!(
        "the host's memory had peaks of {:?} MiB; {facts:?}",
        peaks.iter().map(|peak| peak / MIB).collect::<Vec<_>>()
    );
    assert!(peaks.iter().all(|peak| *peak < MEMORY + BESIDE), "{peaks:?}");
}

/// Reads everything until the card has answered most of what it may: what was changed last becomes the card's when it is on the
/// device, or when it was read once.
fn read_by_both_halves(service: &Service, stored: &Stored) {
    let mut client = service.client();
    // Keys that are too long for the card's table are the host's for ever.
    let long = (0..KEYS).filter(|number| is_long(*number)).count() as u64;
    wait_until("the card answers most reads", || {
        let before = host_reads(&mut client);
        stored.check(service);
        let host = host_reads(&mut client) - before;
        println!("of {KEYS} reads the host has answered {host}, {long} of them because keys are long");
        assert!(host >= long, "{host} of {long}");
        host < u64::from(KEYS) / 2
    });
}

/// What is stored, and who is at work on it.
struct Stored {
    answered: Vec<AtomicU32>,
    tried: Vec<AtomicU32>,
    writes: AtomicU64,
    is_over: AtomicBool,
    /// Whether it is right that a connection ends.
    may_fail: AtomicBool,
}

impl Default for Stored {
    fn default() -> Self {
        let zeroes = || (0..KEYS).map(|_| AtomicU32::new(0)).collect();
        Self {
            answered: zeroes(),
            tried: zeroes(),
            writes: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            may_fail: AtomicBool::new(false),
        }
    }
}

impl Stored {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Has clients change and read what is stored until something was done.
    fn while_it_changes(&self, address: SocketAddr, what: impl FnOnce()) {
        self.is_over.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let farewell = Farewell(&self.is_over);
            self.start(address, scope);
            what();
            drop(farewell);
        });
    }

    fn start<'scope>(&'scope self, address: SocketAddr, scope: &'scope Scope<'scope, '_>) {
        let seed = self.writes.load(Ordering::SeqCst);
        for writer in 0..WRITERS {
            let mut client = Client::connect(address).unwrap();
            let mut rng = Rng::new(seed).fork_numbered("writer", writer.into());
            scope.spawn(move || {
                let _farewell = Farewell(&self.is_over);
                while !self.is_over() {
                    // Each writer has keys of its own, and none of them twice in a window.
                    let mut numbers: Vec<u32> = (0..WINDOW)
                        .map(|_| {
                            u32::try_from(rng.below((KEYS / WRITERS).into())).unwrap() * WRITERS + writer
                        })
                        .collect();
                    numbers.sort_unstable();
                    numbers.dedup();
                    if let Err(error) = self.write(&mut client, &numbers) {
                        assert!(self.may_fail.load(Ordering::SeqCst), "{error}");
                        return;
                    }
                }
            });
        }
        for reader in 0..READERS {
            let mut client = Client::connect(address).unwrap();
            let mut rng = Rng::new(seed).fork_numbered("reader", reader);
            scope.spawn(move || {
                let _farewell = Farewell(&self.is_over);
                while !self.is_over() {
                    let numbers: Vec<u32> =
                        (0..WINDOW).map(|_| u32::try_from(rng.below(KEYS.into())).unwrap()).collect();
                    if let Err(error) = self.read(&mut client, &numbers) {
                        assert!(self.may_fail.load(Ordering::SeqCst), "{error}");
                        return;
                    }
                }
            });
        }
    }

    /// Writes the next version of each.
    fn write(&self, client: &mut Client, numbers: &[u32]) -> std::io::Result<()> {
        let mut versions = Vec::new();
        let mut pipeline = Vec::new();
        for number in numbers {
            let version = self.tried[*number as usize].fetch_add(1, Ordering::SeqCst) + 1;
            versions.push(version);
            pipeline.extend(request(&[&b"SET"[..], key(*number).as_bytes(), &value(*number, version)]));
        }
        client.send(&pipeline)?;
        for (number, version) in numbers.iter().zip(versions) {
            match client.receive()? {
                Value::Error(text) => {
                    // The host has died and the card has not yet.
                    assert!(self.may_fail.load(Ordering::SeqCst), "{text}");
                    return Err(std::io::Error::other(text));
                }
                answer => assert_eq!(answer, Value::ok()),
            }
            self.answered[*number as usize].store(version, Ordering::SeqCst);
            self.writes.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Reads, and compares: nothing older than what had been answered, nothing that was not tried.
    fn read(&self, client: &mut Client, numbers: &[u32]) -> std::io::Result<()> {
        let floors: Vec<u32> =
            numbers.iter().map(|number| self.answered[*number as usize].load(Ordering::SeqCst)).collect();
        let pipeline: Vec<u8> = numbers.iter().flat_map(|number| request(&["GET", &key(*number)])).collect();
        client.send(&pipeline)?;
        for (number, floor) in numbers.iter().zip(floors) {
            let bytes = match client.receive()? {
                Value::Bytes(bytes) => bytes,
                Value::Error(text) if self.may_fail.load(Ordering::SeqCst) => {
                    return Err(std::io::Error::other(text));
                }
                other => panic!("{}: {other:?}", key(*number)),
            };
            let version = version_of(&bytes);
            let range = floor..=self.tried[*number as usize].load(Ordering::SeqCst);
            assert!(range.contains(&version), "{} is {version}, and should be in {range:?}", key(*number));
            assert!(bytes == value(*number, version), "{} is damaged", key(*number));
        }
        Ok(())
    }

    /// Reads everything.
    fn check(&self, service: &Service) {
        self.may_fail.store(false, Ordering::SeqCst);
        let mut client = service.client();
        let numbers: Vec<u32> = (0..KEYS).collect();
        for numbers in numbers.chunks(WINDOW) {
            self.read(&mut client, numbers).unwrap();
        }
    }
}

/// Ends the work when a client is done, or has failed.
struct Farewell<'a>(&'a AtomicBool);

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn is_long(number: u32) -> bool {
    number.is_multiple_of(4)
}

fn key(number: u32) -> String {
    let name = if is_long(number) { "a name that is longer than the table takes" } else { "key" };
    format!("{name}:{number}")
}

/// Its version, and bytes that nothing else has.
fn value(number: u32, version: u32) -> Vec<u8> {
    let mut rng = Rng::new(u64::from(number) << 32 | u64::from(version));
    let mut value = vec![0; 4 + usize::try_from(rng.below(VALUE_LEN_MAX)).unwrap()];
    rng.fill(&mut value);
    value[..4].copy_from_slice(&version.to_le_bytes());
    value
}

fn version_of(value: &[u8]) -> u32 {
    value.first_chunk().map_or(0, |version| u32::from_le_bytes(*version))
}
