//! One client thread: several connections, each with as many questions out as it may have, whatever the protocol.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZero;
use std::time::{Duration, Instant};

use ob_sim::Rng;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::set_current_timer_slack;

use super::{BenchFailure, Case, CpuMeter, CpuPerOperation, Latencies};

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Questions that a connection has out at most when they come by themselves.
const OUT_MAX: usize = 256;
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

/// The halves of a server that have processes of their own.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) struct Processes {
    pub(in crate::bench) card: Option<u32>,
    pub(in crate::bench) host: Option<u32>,
}

/// How long something is measured, after a time to get going.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) struct Span {
    pub(in crate::bench) warm_up: Duration,
    pub(in crate::bench) time: Duration,
}

/// What one round measured.
pub(in crate::bench) struct Measured {
    pub(in crate::bench) latencies: Latencies,
    pub(in crate::bench) seconds: f64,
    pub(in crate::bench) cpu: CpuPerOperation,
}

/// One connection without its socket: questions in, bytes out, bytes in, answers that are checked.
pub(in crate::bench) trait Dialogue {
    /// A question.
    type Ask;
    /// What is known of the server, for all of its connections.
    type Book;

    /// Asks; the answer will have taken since then.
    fn ask(&mut self, ask: Self::Ask, since: Instant, book: &mut Self::Book);

    /// Questions that have no answer yet.
    fn waiting(&self) -> usize;

    /// What is to be sent.
    fn output(&self) -> &[u8];

    /// So many bytes of it were.
    fn sent(&mut self, count: usize);

    /// Where to receive.
    fn receive_into(&mut self) -> &mut [u8];

    /// So many bytes were received. Every answer is checked, and told with the time since which it was waited for.
    fn received(
        &mut self,
        count: usize,
        book: &mut Self::Book,
        answered: &mut dyn FnMut(Instant),
    ) -> Result<(), BenchFailure>;
}

/// Connections to one server.
pub(in crate::bench) struct Talk<D: Dialogue> {
    streams: Vec<TcpStream>,
    dialogues: Vec<D>,
    book: D::Book,
}

impl<D: Dialogue> Talk<D> {
    /// Connects.
    pub(in crate::bench) fn connect(
        address: SocketAddr,
        connections: usize,
        dialogue: impl Fn() -> D,
        book: D::Book,
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
        let dialogues = streams.iter().map(|_| dialogue()).collect();
        Ok(Self { streams, dialogues, book })
    }

    /// Asks everything, so many questions a connection at a time, and checks every answer.
    pub(in crate::bench) fn ask_all(
        &mut self,
        depth: usize,
        asks: impl Iterator<Item = D::Ask>,
    ) -> Result<(), BenchFailure> {
        Run::new(self, Pace::Closed(depth), Rng::new(0)).go(&mut All(asks))
    }

    /// Asks for some time, and checks every answer.
    pub(in crate::bench) fn measure(
        &mut self,
        pace: Pace,
        rng: Rng,
        asks: impl FnMut() -> D::Ask,
        span: Span,
        processes: Processes,
    ) -> Result<Measured, BenchFailure> {
        let mut round = Round {
            asks,
            begin: Instant::now() + span.warm_up,
            time: span.time,
            processes,
            started: None,
            latencies: Latencies::new(),
            ended: None,
        };
        Run::new(self, pace, rng).go(&mut round)?;
        let (cpu, seconds) = round.ended.ok_or("a round has no end")??;
        Ok(Measured { latencies: round.latencies, seconds, cpu })
    }
}

/// What is asked, and what becomes of it.
trait Asker<Ask> {
    /// The next question; none when there are no more.
    fn ask(&mut self, now: Instant) -> Option<Ask>;

    /// An answer has come that was waited for since then.
    fn answered(&mut self, since: Instant, now: Instant);
}

/// A list.
struct All<Asks>(Asks);

impl<Ask, Asks: Iterator<Item = Ask>> Asker<Ask> for All<Asks> {
    fn ask(&mut self, _: Instant) -> Option<Ask> {
        self.0.next()
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

impl<Ask, Asks: FnMut() -> Ask> Asker<Ask> for Round<Asks> {
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

/// Questions and answers until there are no more.
struct Run<'a, D: Dialogue> {
    streams: &'a [TcpStream],
    dialogues: &'a mut [D],
    book: &'a mut D::Book,
    pace: Pace,
    rng: Rng,
    /// When the next question is due, if they come by themselves.
    due: Instant,
    /// The connection that has the next one.
    next: usize,
    is_over: bool,
}

impl<'a, D: Dialogue> Run<'a, D> {
    fn new(talk: &'a mut Talk<D>, pace: Pace, rng: Rng) -> Self {
        Self {
            streams: &talk.streams,
            dialogues: &mut talk.dialogues,
            book: &mut talk.book,
            pace,
            rng,
            due: Instant::now(),
            next: 0,
            is_over: false,
        }
    }

    /// Until there is nothing more to ask, and everything was answered.
    fn go(&mut self, asker: &mut dyn Asker<D::Ask>) -> Result<(), BenchFailure> {
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
            let waiting: usize = self.dialogues.iter().map(D::waiting).sum();
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
    fn ask(&mut self, asker: &mut dyn Asker<D::Ask>) {
        let now = Instant::now();
        match self.pace {
            Pace::Closed(depth) => {
                for dialogue in self.dialogues.iter_mut() {
                    while !self.is_over && dialogue.waiting() < depth {
                        match asker.ask(now) {
                            Some(ask) => dialogue.ask(ask, now, self.book),
                            None => self.is_over = true,
                        }
                    }
                }
            }
            Pace::Open(rate) => {
                while !self.is_over && self.due <= now {
                    let dialogue = &mut self.dialogues[self.next];
                    if dialogue.waiting() >= OUT_MAX {
                        break;
                    }
                    match asker.ask(now) {
                        Some(ask) => dialogue.ask(ask, self.due, self.book),
                        None => self.is_over = true,
                    }
                    self.next = (self.next + 1) % self.dialogues.len();
                    // Times between independent arrivals have an exponential distribution.
                    let pause = -(1.0 - part(&mut self.rng)).ln() / rate;
                    self.due += Duration::from_secs_f64(pause);
                }
            }
        }
    }

    /// Takes what there is; whether there was anything.
    fn receive(&mut self, index: usize, asker: &mut dyn Asker<D::Ask>) -> Result<bool, BenchFailure> {
        let mut stream = &self.streams[index];
        let dialogue = &mut self.dialogues[index];
        match stream.read(dialogue.receive_into()) {
            Ok(0) => Err("the server has closed a connection".into()),
            Ok(count) => {
                let now = Instant::now();
                dialogue.received(count, self.book, &mut |since| asker.answered(since, now))?;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends what there is, as far as the network takes it.
    fn send(&mut self, index: usize) -> Result<(), BenchFailure> {
        let mut stream = &self.streams[index];
        let dialogue = &mut self.dialogues[index];
        while !dialogue.output().is_empty() {
            match stream.write(dialogue.output()) {
                Ok(count) => dialogue.sent(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Sleeps until there is something to receive, room to send, or a question is due.
    fn wait(&self, ready: &mut [bool]) -> Result<(), BenchFailure> {
        let pairs = self.streams.iter().zip(self.dialogues.iter());
        let mut watched: Vec<_> = pairs
            .map(|(stream, dialogue)| {
                let sends = !dialogue.output().is_empty();
                PollFd::new(stream, if sends { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN })
            })
            .collect();
        let is_full = self.dialogues[self.next].waiting() >= OUT_MAX;
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

/// A number from 0 to 1, 1 excluded.
pub(in crate::bench) fn part(rng: &mut Rng) -> f64 {
    (rng.word() >> 11) as f64 / (1_u64 << 53) as f64
}

/// The round in the middle: by throughput if that was not given, else by the 99th percentile. Processor time is that of all
/// rounds together, because the kernel tells that of another process in steps of 10 ms.
pub(in crate::bench) fn case(name: &str, pace: Pace, mut rounds: Vec<Measured>) -> Option<Case> {
    let figure = |round: &Measured| match pace {
        Pace::Closed(_) => round.latencies.count() as f64 / round.seconds,
        Pace::Open(_) => round.latencies.quantile_us(0.99),
    };
    rounds.sort_by(|left, right| figure(left).total_cmp(&figure(right)));
    let (least, most) = (figure(rounds.first()?), figure(rounds.last()?));
    let cpu = pooled(&rounds);
    let middle = rounds.get(rounds.len() / 2)?;
    let mut case = Case::new(name, middle.seconds, &middle.latencies, cpu);
    case.extra.insert("spread".to_owned(), most / least);
    Some(case)
}

/// What an operation took, over all rounds.
fn pooled(rounds: &[Measured]) -> CpuPerOperation {
    let mean = |of: fn(&CpuPerOperation) -> Option<f64>| {
        let count = |round: &Measured| round.latencies.count() as f64;
        let total: Option<f64> = rounds.iter().map(|round| Some(of(&round.cpu)? * count(round))).sum();
        Some(total? / rounds.iter().map(count).sum::<f64>().max(1.0))
    };
    CpuPerOperation {
        client_cpu_us: mean(|cpu| cpu.client_cpu_us),
        card_cpu_us: mean(|cpu| cpu.card_cpu_us),
        host_cpu_us: mean(|cpu| cpu.host_cpu_us),
        machine_cpu_us: mean(|cpu| cpu.machine_cpu_us),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(count: u64, seconds: f64, latency_us: u64, host_cpu_us: f64) -> Measured {
        let mut latencies = Latencies::new();
        (0..count).for_each(|_| latencies.record(Duration::from_micros(latency_us)));
        let cpu = CpuPerOperation { host_cpu_us: Some(host_cpu_us), ..CpuPerOperation::default() };
        Measured { latencies, seconds, cpu }
    }

    #[test]
    fn the_middle_round_is_a_case_and_processor_time_is_that_of_all() {
        let rounds = || vec![measured(30, 1.0, 7, 4.0), measured(10, 1.0, 9, 8.0), measured(20, 1.0, 8, 2.0)];
        let closed = case("a", Pace::Closed(1), rounds()).unwrap();
        assert!((closed.ops_per_s - 20.0).abs() < 1e-9);
        assert!((closed.cpu.host_cpu_us.unwrap() - 4.0).abs() < 1e-9, "240 µs for 60 operations");
        assert_eq!(closed.cpu.card_cpu_us, None);
        assert!((closed.extra["spread"] - 3.0).abs() < 1e-9);
        let open = case("a", Pace::Open(1.0), rounds()).unwrap();
        assert!((open.p99_us - 8.0).abs() < 0.1);
        assert!(case("a", Pace::Closed(1), Vec::new()).is_none());
    }
}
