//! A client of the key-value store: what is asked for.

use std::net::SocketAddr;

use ob_sim::Rng;

use super::conversation::{Ask, Conversation};
use super::keys::{Distribution, Keys};
use super::ledger::{Ledger, Shape};
use crate::bench::BenchFailure;
use crate::bench::talk::{Measured, Pace, Processes, Span, Talk};

/// Questions that a connection has out while a server is filled.
const FILL_DEPTH: usize = 32;

/// What is asked for, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::bench) struct Job {
    pub(in crate::bench) what: What,
    pub(in crate::bench) pace: Pace,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum What {
    /// Keys: reads, so many of a hundred, and writes.
    Mix(Distribution, u64),
    /// Keys, with a command that only a host answers.
    HostRead,
    /// Lengths of values, for which a card needs nothing but its table.
    Length,
    /// Nothing but an answer.
    Ping,
}

/// Connections to one server.
pub(in crate::bench) struct Client {
    talk: Talk<Conversation>,
    shape: Shape,
}

impl Client {
    /// Connects.
    pub(in crate::bench) fn connect(
        address: SocketAddr,
        connections: usize,
        shape: Shape,
    ) -> Result<Self, BenchFailure> {
        let talk = Talk::connect(address, connections, || Conversation::new(shape), Ledger::new(shape))?;
        Ok(Self { talk, shape })
    }

    /// Writes the first version of every key.
    pub(in crate::bench) fn fill(&mut self) -> Result<(), BenchFailure> {
        self.talk.ask_all(FILL_DEPTH, (0..self.shape.keys).map(Ask::Create))
    }

    /// Reads every key once: what was filled is there, and whoever keeps what was read keeps it now.
    pub(in crate::bench) fn read_all(&mut self) -> Result<(), BenchFailure> {
        self.talk.ask_all(FILL_DEPTH, (0..self.shape.keys).map(Ask::Read))
    }

    /// Asks for the length of every value once.
    pub(in crate::bench) fn measure_all(&mut self) -> Result<(), BenchFailure> {
        self.talk.ask_all(FILL_DEPTH, (0..self.shape.keys).map(Ask::Length))
    }

    /// Runs a job for some time, and checks every answer.
    pub(in crate::bench) fn run(
        &mut self,
        job: Job,
        round: u64,
        span: Span,
        processes: Processes,
    ) -> Result<Measured, BenchFailure> {
        let rng = Rng::new(1).fork_numbered(&format!("{:?}", job.what), round);
        let asks = asks(job.what, self.shape, rng.fork("keys"));
        self.talk.measure(job.pace, rng.fork("times"), asks, span, processes)
    }
}

fn asks(what: What, shape: Shape, rng: Rng) -> impl FnMut() -> Ask {
    let distribution = match what {
        What::Mix(distribution, _) => distribution,
        What::HostRead | What::Length | What::Ping => Distribution::Uniform,
    };
    let mut keys = Keys::new(distribution, shape.keys, rng);
    move || {
        let key = keys.next();
        match what {
            What::Mix(_, reads) if reads < 100 && keys.percent() >= reads => Ask::Write(key),
            What::Mix(..) => Ask::Read(key),
            What::HostRead => Ask::HostRead(key),
            What::Length => Ask::Length(key),
            What::Ping => Ask::Ping,
        }
    }
}
