//! The contender: a file on the card, through the library.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ob_files_host::{Completion, File, Group, GroupOptions, Payload, RingSizes, Session, SessionOptions};

use super::BenchFailure;
use super::card::CardProcess;
use super::load::{Contender, Direction, Load, Measured, Places, Round, stamp};

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

/// One load on its way.
struct Run<'a> {
    group: Group,
    file: File,
    load: Load,
    places: Places,
    buffers: Vec<Vec<u8>>,
    /// Slots whose reads were looked at in the ring.
    looked_at: &'a Arc<Mutex<Vec<usize>>>,
}

impl Contender for Library {
    fn run(&mut self, load: Load, round: u64, time: Duration) -> Result<Measured, BenchFailure> {
        let group = self.session.group(options(load))?;
        let looked_at = Arc::new(Mutex::new(Vec::with_capacity(load.depth)));
        let mut run = Run {
            file: group.add(&self.file),
            group,
            load,
            places: Places::new(load, self.len, round),
            buffers: vec![vec![0; load.len]; load.depth],
            looked_at: &looked_at,
        };
        let mut idle: Vec<usize> = (0..load.depth).collect();
        let mut measured = Round::begin(load.depth, time, Some(self.card.pid()))?;
        let measured = loop {
            for slot in idle.drain(..) {
                match self.arrival {
                    Arrival::InPlace => run.look(slot)?,
                    Arrival::Copied => run.submit(slot)?,
                }
            }
            run.wait(&mut idle)?;
            if !measured.completed(&idle) {
                break measured.end()?;
            }
        };
        // What is out holds the buffers; it ends before they do.
        while idle.len() < load.depth {
            run.wait(&mut idle)?;
        }
        Ok(measured)
    }

    fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, BenchFailure> {
        let (read, buffer) = self.file.read_at(vec![0; len], offset).wait();
        if read? == len { Ok(buffer) } else { Err("a read was cut short".into()) }
    }
}

/// A group with room for everything that is out at once, twice: an application that wants a depth gives it a ring.
fn options(load: Load) -> GroupOptions {
    let bytes = (2 * load.depth * (load.len + 4096)).next_power_of_two();
    let sizes = RingSizes::both(u32::try_from(bytes).unwrap_or(1 << 30));
    let options = GroupOptions::polled().outstanding(load.depth);
    let default = options.small;
    options.small(RingSizes::both(sizes.requests.max(default.requests)))
}

impl Run<'_> {
    fn submit(&mut self, slot: usize) -> Result<(), BenchFailure> {
        let offset = self.places.next();
        let mut buffer = std::mem::take(&mut self.buffers[slot]);
        let tag = slot as u64;
        let refused = match self.load.direction {
            Direction::Read => self.file.submit_read(buffer, offset, tag),
            Direction::Write => {
                stamp(&mut buffer, offset);
                self.file.submit_write(buffer, offset, tag)
            }
        };
        refused.map_err(|refused| refused.reason.into())
    }

    /// Reads without a buffer.
    fn look(&mut self, slot: usize) -> Result<(), BenchFailure> {
        let (offset, len) = (self.places.next(), self.load.len);
        let looked_at = Arc::clone(self.looked_at);
        let look = move |read: ob_files_host::Result<Payload<'_>>| {
            // A read that failed leaves its slot out, and the wait for it ends with an error.
            if read.is_ok_and(|payload| payload.len() == len) {
                looked_at.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
            }
        };
        self.file.read_with(len, offset, look).map_err(|refused| refused.reason.into())
    }

    /// Waits, asleep, until something is complete; what is, is idle.
    fn wait(&mut self, idle: &mut Vec<usize>) -> Result<(), BenchFailure> {
        let (buffers, mut failed) = (&mut self.buffers, None);
        let (len, before) = (self.load.len, idle.len());
        self.group.wait(PATIENCE, |Completion { tag, result, buffer }| {
            if result.as_ref() != Ok(&len) {
                failed = Some(format!("a request failed: {result:?}"));
            }
            buffers[tag as usize] = buffer.into_bytes();
            idle.push(tag as usize);
        });
        idle.append(&mut self.looked_at.lock().unwrap_or_else(PoisonError::into_inner));
        match failed {
            Some(failed) => Err(failed.into()),
            None if idle.len() == before => Err("no request was answered in time".into()),
            None => Ok(()),
        }
    }
}
