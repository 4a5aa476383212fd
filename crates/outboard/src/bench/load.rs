//! What is asked of a file or a namespace, place after place, and what came of it.

use std::time::{Duration, Instant};

use ob_sim::Rng;

use super::{BenchFailure, Case, CpuPerOperation, Latencies};
use crate::accounting;

/// Every unit of this length begins with its own offset in the file, whoever wrote it.
const STAMP_EVERY: usize = 512;

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Direction {
    Read,
    Write,
}

/// Which place comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Order {
    /// Any.
    Random,
    /// The one behind the last, and after the end the first.
    Sequential,
}

/// Whose processor time it is that the measuring process spends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Role {
    /// It has an application's half of a service.
    Host,
    /// It reaches the card over the network.
    Client,
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) struct Load {
    pub(in crate::bench) direction: Direction,
    /// Bytes of a request.
    pub(in crate::bench) len: usize,
    /// Requests that are out at any time.
    pub(in crate::bench) depth: usize,
    pub(in crate::bench) order: Order,
}

impl Load {
    /// Such as `read8k.d32`.
    pub(in crate::bench) fn name(self) -> String {
        let direction = match self.direction {
            Direction::Read => "read",
            Direction::Write => "write",
        };
        format!("{direction}{}k.d{}", self.len >> 10, self.depth)
    }
}

/// Places, the same for every contender.
pub(in crate::bench) struct Places {
    rng: Rng,
    order: Order,
    next: u64,
    len: u64,
    count: u64,
}

impl Places {
    pub(in crate::bench) fn new(load: Load, file_len: u64, round: u64) -> Self {
        let len = load.len as u64;
        let mut rng = Rng::new(1).fork_numbered(&load.name(), round);
        let count = file_len / len;
        let next = rng.below(count);
        Self { rng, order: load.order, next, len, count }
    }

    pub(in crate::bench) fn next(&mut self) -> u64 {
        let place = self.next;
        self.next = match self.order {
            Order::Random => self.rng.below(self.count),
            Order::Sequential => (place + 1) % self.count,
        };
        place * self.len
    }
}

/// Marks a buffer as what belongs at `offset`.
pub(in crate::bench) fn stamp(buffer: &mut [u8], offset: u64) {
    for (index, unit) in buffer.chunks_mut(STAMP_EVERY).enumerate() {
        let place = offset + (index * STAMP_EVERY) as u64;
        if let Some(stamp) = unit.first_chunk_mut() {
            *stamp = place.to_le_bytes();
        }
    }
}

/// Whether a buffer has what belongs at `offset`.
pub(in crate::bench) fn check(buffer: &[u8], offset: u64) -> Result<(), BenchFailure> {
    for (index, unit) in buffer.chunks(STAMP_EVERY).enumerate() {
        let place = offset + (index * STAMP_EVERY) as u64;
        if unit.first_chunk() != Some(&place.to_le_bytes()) {
            return Err(format!("the bytes at {place} are not what was written there").into());
        }
    }
    Ok(())
}

/// What one round measured.
pub(in crate::bench) struct Measured {
    latencies: Latencies,
    seconds: f64,
    waits: u64,
    own_cpu: Duration,
    card_cpu: Option<Duration>,
    machine_busy: Duration,
}

/// The accounts of one round: what is out at its end does not count.
pub(in crate::bench) struct Round {
    card: Option<u32>,
    started: Instant,
    until: Instant,
    own_cpu: Duration,
    card_cpu: Option<Duration>,
    machine_busy: Duration,
    latencies: Latencies,
    /// When each slot's request was submitted: when the one before it was complete.
    submitted: Vec<Instant>,
    waits: u64,
    /// When the wait that is looked at brought its first completion.
    now: Option<Instant>,
}

impl Round {
    /// Begins a round of so many slots; `card` is the card's process.
    pub(in crate::bench) fn begin(
        slots: usize,
        time: Duration,
        card: Option<u32>,
    ) -> Result<Self, BenchFailure> {
        let card_cpu = card.map(accounting::process_cpu).transpose()?;
        let machine_busy = accounting::machine_busy()?;
        let latencies = Latencies::new();
        let own_cpu = accounting::own_cpu();
        let started = Instant::now();
        Ok(Self {
            card,
            started,
            until: started + time,
            own_cpu,
            card_cpu,
            machine_busy,
            latencies,
            submitted: vec![started; slots],
            waits: 0,
            now: None,
        })
    }

    /// Counts a request that is complete, and says whether another is to take its slot.
    ///
    /// The clock is read once for everything that a wait brought, as a thrifty application would. The first of a batch
    /// seem a little slow for that and the last a little fast, for both contenders.
    pub(in crate::bench) fn completed(&mut self, slot: usize) -> bool {
        let now = *self.now.get_or_insert_with(Instant::now);
        if self.is_over(now) {
            return false;
        }
        self.latencies.record(now - self.submitted[slot]);
        self.submitted[slot] = now;
        true
    }

    /// A wait is over; whether the round goes on.
    pub(in crate::bench) fn waited(&mut self) -> bool {
        self.waits += 1;
        let now = self.now.take().unwrap_or_else(Instant::now);
        !self.is_over(now)
    }

    /// A round that has counted nothing goes on: on a machine with other work its time may have passed between two requests.
    fn is_over(&self, now: Instant) -> bool {
        now >= self.until && self.latencies.count() > 0
    }

    /// Ends the round.
    pub(in crate::bench) fn end(self) -> Result<Measured, BenchFailure> {
        let own_cpu = accounting::own_cpu().saturating_sub(self.own_cpu);
        let seconds = self.started.elapsed().as_secs_f64();
        let machine_busy = accounting::machine_busy()?.saturating_sub(self.machine_busy);
        let card_cpu = match (self.card, self.card_cpu) {
            (Some(card), Some(before)) => Some(accounting::process_cpu(card)?.saturating_sub(before)),
            _ => None,
        };
        Ok(Measured {
            latencies: self.latencies,
            seconds,
            waits: self.waits,
            own_cpu,
            card_cpu,
            machine_busy,
        })
    }
}

impl Measured {
    pub(in crate::bench) fn rate(&self) -> f64 {
        self.latencies.count() as f64 / self.seconds
    }

    pub(in crate::bench) fn case(&self, name: &str, role: Role) -> Case {
        let each = |time: Duration| time.as_secs_f64() * 1e6 / self.latencies.count().max(1) as f64;
        let own = Some(each(self.own_cpu));
        let cpu = CpuPerOperation {
            client_cpu_us: own.filter(|_| role == Role::Client),
            card_cpu_us: self.card_cpu.map(each),
            host_cpu_us: own.filter(|_| role == Role::Host),
            machine_cpu_us: Some(each(self.machine_busy)),
        };
        let mut case = Case::new(name, self.seconds, &self.latencies, cpu);
        // What a wake-up or a system call is shared by.
        let per_wait = self.latencies.count() as f64 / self.waits.max(1) as f64;
        case.extra.insert("per_wait".to_owned(), per_wait);
        case
    }
}

/// The round in the middle, as a case.
pub(in crate::bench) fn median(name: &str, role: Role, mut rounds: Vec<Measured>) -> Option<Case> {
    rounds.sort_by(|left, right| left.rate().total_cmp(&right.rate()));
    let middle = rounds.len() / 2;
    rounds.get(middle).map(|round| round.case(name, role))
}

/// Somebody who can run a load on a file.
pub(in crate::bench) trait Contender {
    /// Runs it for so long. `round` says which places.
    fn run(&mut self, load: Load, round: u64, time: Duration) -> Result<Measured, BenchFailure>;

    /// Reads the bytes at `offset`.
    fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, BenchFailure>;
}

/// Looks at a few places whether what is there is what belongs there.
pub(in crate::bench) fn check_some(
    contender: &mut dyn Contender,
    load: Load,
    file_len: u64,
    round: u64,
) -> Result<(), BenchFailure> {
    // Not places of their own: some of those that the round has just been to, and perhaps written.
    let mut places = Places::new(load, file_len, round);
    for _ in 0..8 {
        let offset = places.next();
        check(&contender.read(offset, load.len)?, offset)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_says_where_bytes_belong() {
        let mut buffer = vec![0; 2048];
        stamp(&mut buffer, 8192);
        check(&buffer, 8192).unwrap();
        assert!(check(&buffer, 9216).is_err());
        buffer[512] ^= 1;
        assert!(check(&buffer, 8192).unwrap_err().to_string().contains("8704"));
    }

    #[test]
    fn places_are_whole_requests_and_the_same_for_everyone() {
        let mut load = Load { direction: Direction::Read, len: 8192, depth: 32, order: Order::Random };
        let places = |load, round| {
            let mut places = Places::new(load, 10 * 8192 + 4096, round);
            std::iter::from_fn(move || Some(places.next())).take(100).collect::<Vec<_>>()
        };
        assert_eq!(places(load, 1), places(load, 1));
        assert_ne!(places(load, 1), places(load, 2));
        assert!(places(load, 3).iter().all(|place| place.is_multiple_of(8192) && *place < 10 * 8192));
        load.order = Order::Sequential;
        assert!(places(load, 1).windows(2).all(|pair| pair[1] == (pair[0] + 8192) % (10 * 8192)));
    }
}
