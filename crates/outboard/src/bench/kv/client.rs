//! One client thread: several connections, each with as many questions out as it may have.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZero;
use std::ops::Range;
use std::time::{Duration, Instant};

use ob_sim::Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::set_current_timer_slack;

use super::conversation::{Ask, Conversation};
use super::keys::{Distribution, Keys, part};
use super::ledger::{Ledger, Shape};
use crate::bench::{BenchFailure, CpuMeter, CpuPerOperation, Latencies};

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Questions that a connection has out at most when they come by themselves.
const OUT_MAX: usize = 256;
/// Questions that a connection has out while a server is filled.
const FILL_DEPTH: usize = 32;
/// A round is as long as it takes to get so many answers, however short it was meant to be.
const ANSWERS_LEAST: u64 = 20;

/// When the next question is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::bench) enum Pace {
    /// When one was answered: each connection keeps so many out.
    Closed(usize),
    /// When its time has come, whatever was answered: so many a second on average, as independent users come. An answer
    /// has taken as long as it was waited for, from the time at which its question was due.
    Open(f64),
}

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
    /// Nothing but an answer.
    Ping,
}

/// The halves of a server that have processes of their own.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) struct Processes {
    pub(in crate::bench) card: Option<u32>,
    pub(in crate::bench) host: Option<u32>,
}

/// What one round measured.
pub(in crate::bench) struct Measured {
    pub(in crate::bench) latencies: Latencies,
    pub(in crate::bench) seconds: f64,
    pub(in crate::bench) cpu: CpuPerOperation,
}

/// Connections to one server.
pub(in crate::bench) struct Client {
    streams: Vec<TcpStream>,
    conversations: Vec<Conversation>,
    ledger: Ledger,
    shape: Shape,
}

impl Client {
    /// Connects.
    pub(in crate::bench) fn connect(
        address: SocketAddr,
        connections: usize,
        shape: Shape,
    ) -> Result<Self, BenchFailure> {
        // A question that is due is not to wait for the kernel to find others to wake for as well.
        set_current_timer_slack(NonZero::new(1))?;
        let connect = |_| -> Result<TcpStream, BenchFailure> {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        };
        let streams: Vec<_> = (0..connections).map(connect).collect::<Result<_, _>>()?;
        let conversations = streams.iter().map(|_| Conversation::new(shape)).collect();
        Ok(Self { streams, conversations, ledger: Ledger::new(shape), shape })
    }

    /// Writes the first version of every key.
    pub(in crate::bench) fn fill(&mut self) -> Result<(), BenchFailure> {
        self.each(Ask::Create)
    }

    /// Reads every key once: what was filled is there, and whoever keeps what was read keeps it now.
    pub(in crate::bench) fn read_all(&mut self) -> Result<(), BenchFailure> {
        self.each(Ask::Read)
    }

    fn each(&mut self, ask: fn(u32) -> Ask) -> Result<(), BenchFailure> {
        let mut each = Each { keys: 0..self.shape.keys, ask };
        Run::new(self, Pace::Closed(FILL_DEPTH), Rng::new(0)).go(&mut each)
    }

    /// Runs a job for so long, after a time to get going, and checks every answer.
    pub(in crate::bench) fn run(
        &mut self,
        job: Job,
        round: u64,
        warm_up: Duration,
        time: Duration,
        processes: Processes,
    ) -> Result<Measured, BenchFailure> {
        let rng = Rng::new(1).fork_numbered(&format!("{:?}", job.what), round);
        let mut round = Round {
            asks: asks(job.what, self.shape, rng.fork("keys")),
            begin: Instant::now() + warm_up,
            time,
            processes,
            started: None,
            latencies: Latencies::new(),
            ended: None,
        };
        Run::new(self, job.pace, rng.fork("times")).go(&mut round)?;
        let (cpu, seconds) = round.ended.ok_or("a round has no end")??;
        Ok(Measured { latencies: round.latencies, seconds, cpu })
    }
}

/// What is asked, and what becomes of it.
trait Asker {
    /// The next question; none when there are no more.
    fn ask(&mut self, now: Instant) -> Option<Ask>;

    /// An answer has come that was waited for since then.
    fn answered(&mut self, since: Instant, now: Instant);
}

/// Every key once.
struct Each {
    keys: Range<u32>,
    ask: fn(u32) -> Ask,
}

impl Asker for Each {
    fn ask(&mut self, _: Instant) -> Option<Ask> {
        self.keys.next().map(self.ask)
    }

    fn answered(&mut self, _: Instant, _: Instant) {}
}

/// Some time of a job: what is out at its end does not count.
struct Round<Asks> {
    asks: Asks,
    begin: Instant,
    time: Duration,
    processes: Processes,
    started: Option<(CpuMeter, Instant)>,
    latencies: Latencies,
    ended: Option<io::Result<(CpuPerOperation, f64)>>,
}

impl<Asks> Round<Asks> {
    /// Starts and ends when it is time.
    fn advance(&mut self, now: Instant) {
        match &self.started {
            None if now >= self.begin => match CpuMeter::start(self.processes.card, self.processes.host) {
                Ok(meter) => self.started = Some((meter, now)),
                Err(error) => self.ended = Some(Err(error)),
            },
            Some((meter, started))
                if now >= *started + self.time && self.latencies.count() >= ANSWERS_LEAST =>
            {
                let seconds = (now - *started).as_secs_f64();
                self.ended = Some(meter.finish(self.latencies.count()).map(|cpu| (cpu, seconds)));
            }
            None | Some(_) => {}
        }
    }
}

impl<Asks: FnMut() -> Ask> Asker for Round<Asks> {
    fn ask(&mut self, now: Instant) -> Option<Ask> {
        if self.ended.is_none() {
            self.advance(now);
        }
        self.ended.is_none().then(&mut self.asks)
    }

    fn answered(&mut self, since: Instant, now: Instant) {
        if self.ended.is_none() && self.started.is_some() {
            self.latencies.record(now - since);
        }
    }
}

fn asks(what: What, shape: Shape, rng: Rng) -> impl FnMut() -> Ask {
    let distribution = match what {
        What::Mix(distribution, _) => distribution,
        What::HostRead | What::Ping => Distribution::Uniform,
    };
    let mut keys = Keys::new(distribution, shape.keys, rng);
    move || {
        let key = keys.next();
        match what {
            What::Mix(_, reads) if reads < 100 && keys.percent() >= reads => Ask::Write(key),
            What::Mix(..) => Ask::Read(key),
            What::HostRead => Ask::HostRead(key),
            What::Ping => Ask::Ping,
        }
    }
}

/// Questions and answers until there are no more.
struct Run<'a> {
    streams: &'a [TcpStream],
    conversations: &'a mut [Conversation],
    ledger: &'a mut Ledger,
    pace: Pace,
    rng: Rng,
    /// When the next question is due, if they come by themselves.
    due: Instant,
    /// The connection that has the next one.
    next: usize,
    is_over: bool,
}

impl<'a> Run<'a> {
    fn new(client: &'a mut Client, pace: Pace, rng: Rng) -> Self {
        Self {
            streams: &client.streams,
            conversations: &mut client.conversations,
            ledger: &mut client.ledger,
            pace,
            rng,
            due: Instant::now(),
            next: 0,
            is_over: false,
        }
    }

    /// Until there is nothing more to ask, and everything was answered.
    fn go(&mut self, asker: &mut dyn Asker) -> Result<(), BenchFailure> {
        let mut ready = vec![true; self.streams.len()];
        let mut last = Instant::now();
        loop {
            for index in (0..ready.len()).filter(|index| ready[*index]) {
                if self.receive(index, asker)? {
                    last = Instant::now();
                }
            }
            self.ask(asker);
            for index in 0..ready.len() {
                self.send(index)?;
            }
            let waiting: usize = self.conversations.iter().map(Conversation::waiting).sum();
            if self.is_over && waiting == 0 {
                return Ok(());
            }
            if waiting > 0 && last.elapsed() > PATIENCE {
                return Err(format!("{waiting} questions were not answered in time").into());
            }
            self.wait(&mut ready)?;
        }
    }

    /// Asks what is to be asked now.
    fn ask(&mut self, asker: &mut dyn Asker) {
        let now = Instant::now();
        match self.pace {
            Pace::Closed(depth) => {
                for conversation in self.conversations.iter_mut() {
                    while !self.is_over && conversation.waiting() < depth {
                        match asker.ask(now) {
                            Some(ask) => conversation.ask(ask, now, self.ledger),
                            None => self.is_over = true,
                        }
                    }
                }
            }
            Pace::Open(rate) => {
                while !self.is_over && self.due <= now {
                    let conversation = &mut self.conversations[self.next];
                    if conversation.waiting() >= OUT_MAX {
                        break;
                    }
                    match asker.ask(now) {
                        Some(ask) => conversation.ask(ask, self.due, self.ledger),
                        None => self.is_over = true,
                    }
                    self.next = (self.next + 1) % self.conversations.len();
                    // Times between independent arrivals have an exponential distribution.
                    let pause = -(1.0 - part(&mut self.rng)).ln() / rate;
                    self.due += Duration::from_secs_f64(pause);
                }
            }
        }
    }

    /// Takes what there is; whether there was anything.
    fn receive(&mut self, index: usize, asker: &mut dyn Asker) -> Result<bool, BenchFailure> {
        let mut stream = &self.streams[index];
        let conversation = &mut self.conversations[index];
        match stream.read(conversation.receive_into()) {
            Ok(0) => Err("the server has closed a connection".into()),
            Ok(count) => {
                let now = Instant::now();
                conversation.received(count, self.ledger, |since| asker.answered(since, now))?;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends what there is, as far as the network takes it.
    fn send(&mut self, index: usize) -> Result<(), BenchFailure> {
        let mut stream = &self.streams[index];
        let conversation = &mut self.conversations[index];
        while !conversation.output().is_empty() {
            match stream.write(conversation.output()) {
                Ok(count) => conversation.sent(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sleeps until there is something to receive, room to send, or a question is due.
    fn wait(&self, ready: &mut [bool]) -> Result<(), BenchFailure> {
        let pairs = self.streams.iter().zip(self.conversations.iter());
        let mut watched: Vec<_> = pairs
            .map(|(stream, conversation)| {
                let sends = !conversation.output().is_empty();
                PollFd::new(stream, if sends { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN })
            })
            .collect();
        let is_full = self.conversations[self.next].waiting() >= OUT_MAX;
        let time = match self.pace {
            Pace::Open(_) if !self.is_over && !is_full => self.due.saturating_duration_since(Instant::now()),
            Pace::Open(_) | Pace::Closed(_) => PATIENCE,
        };
        let time = Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
        match poll(&mut watched, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for (ready, watched) in ready.iter_mut().zip(&watched) {
            *ready = watched.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
        }
        Ok(())
    }
}
