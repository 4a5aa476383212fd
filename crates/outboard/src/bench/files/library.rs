//! The contender: a file on the card, through the library.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ob_files_host::{Buffer, Completion, File, GroupOptions, Payload, RingSizes, Session, SessionOptions};

use super::BenchFailure;
use super::card::CardProcess;
use crate::bench::load::{Contender, Direction, Load, Measured, Places, Round, stamp};

/// Bytes written at once while the file is made.
const FILL_LEN: usize = 1 << 20;
/// How many such writes at a time.
const FILL_DEPTH: usize = 8;
/// Longer than any request takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Where the file is on the card.
const PATH: &str = "/bench";

/// How reads arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// In a buffer of the application, by one copy.
    Copied,
    /// In the ring, where the application looks at them.
    InPlace,
}

/// A file on a card of its own.
pub(super) struct Library {
    // Before the card: the session says goodbye while there is somebody to say it to.
    session: Session,
    file: File,
    card: CardProcess,
    len: u64,
    pub(super) arrival: Arrival,
}

impl Library {
    /// Attaches to the card and makes a file there, all of it written and on the device.
    pub(super) fn create(card: CardProcess, len: u64) -> Result<Self, BenchFailure> {
        let options = SessionOptions::unix(card.socket()).group(GroupOptions::polled());
        let session = Session::open(options)?;
        let file = session.create(PATH).wait()?;
        let mut writes = VecDeque::new();
        for offset in (0..len).step_by(FILL_LEN) {
            let mut buffer = vec![0; FILL_LEN];
            stamp(&mut buffer, offset);
            writes.push_back(file.write_at(buffer, offset));
            if writes.len() > FILL_DEPTH {
                let oldest = writes.pop_front().ok_or("there is a write")?;
                oldest.wait().0?;
            }
        }
        for write in writes {
            write.wait().0?;
        }
        session.flush().wait()?;
        Ok(Self { session, file, card, len, arrival: Arrival::Copied })
    }
}

/// One load on its way. A slot gets its next request as soon as its last one is complete, so that the card has work while
/// the rest is looked at; a callback that looks into the ring does that too, hence the lock, which nobody else wants.
struct Run {
    file: File,
    load: Load,
    arrival: Arrival,
    places: Places,
    /// Requests that do not count yet.
    warm_up: usize,
    time: Duration,
    card: u32,
    measured: Option<Round>,
    buffers: Vec<Vec<u8>>,
    /// Requests that are out.
    out: usize,
    failed: Option<BenchFailure>,
}

type Shared = Arc<Mutex<Run>>;

impl Contender for Library {
    fn run(&mut self, load: Load, round: u64, time: Duration) -> Result<Measured, BenchFailure> {
        let options = options(load);
        // Once around the ring: its pages are there then, as the baseline's buffers are.
        let warm_up = options.small.responses as usize / load.len + load.depth;
        let group = self.session.group(options)?;
        let run = Arc::new(Mutex::new(Run {
            file: group.add(&self.file),
            load,
            arrival: self.arrival,
            places: Places::new(load, self.len, round),
            warm_up,
            time,
            card: self.card.pid(),
            measured: None,
            buffers: vec![vec![0; load.len]; load.depth],
            out: 0,
            failed: None,
        }));
        for slot in 0..load.depth {
            submit(&run, &mut lock(&run), slot);
        }
        let mut measured = None;
        while lock(&run).out > 0 {
            let completed = group.wait(PATIENCE, |Completion { tag, result, buffer }| {
                complete(&run, tag as usize, &result, Some(buffer));
            });
            let mut run = lock(&run);
            if let Some(failed) = run.failed.take() {
                return Err(failed);
            }
            if completed == 0 {
                return Err("no request was answered in time".into());
            }
            if run.measured.as_mut().is_some_and(|measured| !measured.waited()) {
                // What is still out holds its buffers, so it is waited for, but it does not count.
                measured = run.measured.take().map(Round::end).transpose()?;
            }
        }
        measured.ok_or_else(|| "the round did not end".into())
    }

    fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, BenchFailure> {
        let (read, buffer) = self.file.read_at(vec![0; len], offset).wait();
        if read? == len { Ok(buffer) } else { Err("a read was cut short".into()) }
    }
}

/// A group with room for everything that is out at once: an application that wants a depth gives it a ring.
fn options(load: Load) -> GroupOptions {
    let bytes = (load.depth * (load.len + 4096)).next_power_of_two();
    let options = GroupOptions::polled().outstanding(load.depth);
    let bytes = u32::try_from(bytes).unwrap_or(1 << 30).max(options.small.requests);
    options.small(RingSizes::both(bytes))
}

impl Run {
    /// Counts a completion, if it is time to count; whether another request is to take its slot.
    fn counts(&mut self, slot: usize) -> bool {
        if let Some(measured) = &mut self.measured {
            return measured.completed(slot);
        }
        match self.warm_up.checked_sub(1) {
            Some(left) => {
                self.warm_up = left;
                if left == 0 {
                    match Round::begin(self.load.depth, self.time, Some(self.card)) {
                        Ok(round) => self.measured = Some(round),
                        Err(error) => self.failed = Some(error),
                    }
                }
                true
            }
            // The round is over, and what was still out comes in.
            None => false,
        }
    }
}

fn lock(run: &Shared) -> MutexGuard<'_, Run> {
    run.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends the next request of a slot.
fn submit(shared: &Shared, run: &mut Run, slot: usize) {
    let Run { file, load, arrival, places, buffers, .. } = run;
    let (offset, tag) = (places.next(), slot as u64);
    let refused = match (load.direction, arrival) {
        (Direction::Read, Arrival::InPlace) => {
            let shared = Arc::clone(shared);
            let look = move |read: ob_files_host::Result<Payload<'_>>| {
                complete(&shared, slot, &read.map(|payload| payload.len()), None);
            };
            file.read_with(load.len, offset, look).map_err(|refused| refused.reason)
        }
        (Direction::Read, Arrival::Copied) => {
            let buffer = std::mem::take(&mut buffers[slot]);
            file.submit_read(buffer, offset, tag).map_err(|refused| refused.reason)
        }
        (Direction::Write, _) => {
            let mut buffer = std::mem::take(&mut buffers[slot]);
            stamp(&mut buffer, offset);
            file.submit_write(buffer, offset, tag).map_err(|refused| refused.reason)
        }
    };
    match refused {
        Ok(()) => run.out += 1,
        Err(reason) => run.failed = Some(reason.into()),
    }
}

/// A request is complete: its slot gets the next one.
fn complete(shared: &Shared, slot: usize, result: &ob_files_host::Result<usize>, buffer: Option<Buffer>) {
    let mut run = lock(shared);
    run.out -= 1;
    if let Some(buffer) = buffer {
        run.buffers[slot] = buffer.into_bytes();
    }
    if *result != Ok(run.load.len) {
        run.failed = Some(format!("a request failed: {result:?}").into());
    } else if run.counts(slot) {
        submit(shared, &mut run, slot);
    }
}
