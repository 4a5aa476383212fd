//! One client thread: several connections, each with as many questions out as it may have.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZero;
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
        let mut keys = 0..self.shape.keys;
        let mut run = Run::new(self, Pace::Closed(FILL_DEPTH), Rng::new(0));
        run.go(&mut |_| keys.next().map(Ask::Create), &mut |_, _| {})
    }

    /// Reads every key once: what was filled is there, and whoever keeps what was read keeps it now.
    pub(in crate::bench) fn read_all(&mut self) -> Result<(), BenchFailure> {
        let mut keys = 0..self.shape.keys;
        let mut run = Run::new(self, Pace::Closed(FILL_DEPTH), Rng::new(0));
        run.go(&mut |_| keys.next().map(Ask::Read), &mut |_, _| {})
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
        let mut asks = asks(job.what, self.shape, rng.fork("keys"));
        let begin = Instant::now() + warm_up;
        let end = begin + time;
        let mut counting: Option<(CpuMeter, Instant)> = None;
        let mut measured = None;
        let mut latencies = Latencies::new();
        let mut failure = None;
        let mut run = Run::new(self, job.pace, rng.fork("times"));
        run.go(&mut |now| (now < end).then(&mut asks), &mut |since, now| {
            if failure.is_some() || measured.is_some() || now < begin {
                return;
            }
            match &counting {
                None => match CpuMeter::start(processes.card, processes.host) {
                    Ok(meter) => counting = Some((meter, now)),
                    Err(error) => failure = Some(error),
                },
                Some(_) if now < end => latencies.record(now - since),
                Some((meter, started)) => match meter.finish(latencies.count()) {
                    Ok(cpu) => measured = Some((cpu, (now - *started).as_secs_f64())),
                    Err(error) => failure = Some(error),
                },
            }
        })?;
        failure.map_or(Ok(()), Err)?;
        let (cpu, seconds) = measured.ok_or("nothing was answered in time")?;
        Ok(Measured { latencies, seconds, cpu })
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

    /// Until `ask` has nothing more to ask, and everything was answered. `answered` is told since when an answer was
    /// waited for, and when it came.
    fn go(
        &mut self,
        ask: &mut dyn FnMut(Instant) -> Option<Ask>,
        answered: &mut dyn FnMut(Instant, Instant),
    ) -> Result<(), BenchFailure> {
        let mut ready = vec![true; self.streams.len()];
        let mut last = Instant::now();
        loop {
            for index in (0..ready.len()).filter(|index| ready[*index]) {
                if self.receive(index, answered)? {
                    last = Instant::now();
                }
            }
            self.ask(ask);
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
    fn ask(&mut self, ask: &mut dyn FnMut(Instant) -> Option<Ask>) {
        let now = Instant::now();
        match self.pace {
            Pace::Closed(depth) => {
                for conversation in self.conversations.iter_mut() {
                    while !self.is_over && conversation.waiting() < depth {
                        match ask(now) {
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
                    match ask(now) {
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
    fn receive(
        &mut self,
        index: usize,
        answered: &mut dyn FnMut(Instant, Instant),
    ) -> Result<bool, BenchFailure> {
        let mut stream = &self.streams[index];
        let conversation = &mut self.conversations[index];
        match stream.read(conversation.receive_into()) {
            Ok(0) => Err("the server has closed a connection".into()),
            Ok(count) => {
                let now = Instant::now();
                conversation.received(count, self.ledger, |since| answered(since, now))?;
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
