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
/// Bytes that a connection receives at once: more than the longest answer.
pub(in crate::bench) const INPUT_LEN: usize = 256 << 10;
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

/// One connection without its socket and buffers: questions in, bytes out, bytes in, answers that are checked.
pub(in crate::bench) trait Dialogue {
    /// A question.
    type Ask;
    /// What is known of the server, for all of its connections.
    type Book;

    /// Asks, by bytes behind what is to be sent already; the answer will have taken since then.
    fn ask(&mut self, ask: Self::Ask, since: Instant, output: &mut Vec<u8>, book: &mut Self::Book);

    /// Questions that have no answer yet.
    fn waiting(&self) -> usize;

    /// Takes the reply that the bytes begin with, and gives its length, if all of it is there. It is checked; an answer that it
    /// completes is told with the time since which it was waited for.
    fn take(
        &mut self,
        bytes: &[u8],
        book: &mut Self::Book,
        answered: &mut dyn FnMut(Instant),
    ) -> Result<Option<usize>, BenchFailure>;
}

/// Connections to one server.
pub(in crate::bench) struct Talk<D: Dialogue> {
    lines: Vec<Line<D>>,
    book: D::Book,
}

/// One of them.
struct Line<D> {
    stream: TcpStream,
    dialogue: D,
    /// What is to be sent …
    output: Vec<u8>,
    /// … but for so many bytes, which were.
    sent: usize,
    input: Input,
}

impl<D> Line<D> {
    fn has_output(&self) -> bool {
        self.sent < self.output.len()
    }

    /// Sends what there is, as far as the network takes it.
    fn send(&mut self) -> io::Result<()> {
        while self.has_output() {
            match (&self.stream).write(&self.output[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }
}

/// What was received and not taken yet: the bytes from `start` to `end`.
struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    fn new(len: usize) -> Self {
        Self { bytes: vec![0; len].into_boxed_slice(), start: 0, end: 0 }
    }

    /// Where to receive.
    fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }

    /// So many bytes were received: has everything taken that is whole.
    fn received(
        &mut self,
        count: usize,
        mut take: impl FnMut(&[u8]) -> Result<Option<usize>, BenchFailure>,
    ) -> Result<(), BenchFailure> {
        self.end += count;
        while let Some(len) = take(&self.bytes[self.start..self.end])? {
            self.start += len;
        }
        if self.end - self.start == self.bytes.len() {
            return Err("an answer is too long".into());
        }
        Ok(())
    }
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
        let connect = |_| -> Result<Line<D>, BenchFailure> {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let input = Input::new(INPUT_LEN);
            Ok(Line { stream, dialogue: dialogue(), output: Vec::new(), sent: 0, input })
        };
        let lines = (0..connections).map(connect).collect::<Result<_, _>>()?;
        Ok(Self { lines, book })
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
    lines: &'a mut [Line<D>],
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
            lines: &mut talk.lines,
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
        let mut ready = vec![true; self.lines.len()];
        let mut last = Instant::now();
        loop {
            for index in (0..ready.len()).filter(|index| ready[*index]) {
                if self.receive(index, asker)? {
                    last = Instant::now();
                }
            }
            self.ask(asker);
            for line in self.lines.iter_mut() {
                line.send()?;
            }
            let waiting: usize = self.lines.iter().map(|line| line.dialogue.waiting()).sum();
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
                for line in self.lines.iter_mut() {
                    while !self.is_over && line.dialogue.waiting() < depth {
                        match asker.ask(now) {
                            Some(ask) => line.dialogue.ask(ask, now, &mut line.output, self.book),
                            None => self.is_over = true,
                        }
                    }
                }
            }
            Pace::Open(rate) => {
                while !self.is_over && self.due <= now {
                    let line = &mut self.lines[self.next];
                    if line.dialogue.waiting() >= OUT_MAX {
                        break;
                    }
                    match asker.ask(now) {
                        Some(ask) => line.dialogue.ask(ask, self.due, &mut line.output, self.book),
                        None => self.is_over = true,
                    }
                    self.next = (self.next + 1) % self.lines.len();
                    // Times between independent arrivals have an exponential distribution.
                    let pause = -(1.0 - part(&mut self.rng)).ln() / rate;
                    self.due += Duration::from_secs_f64(pause);
                }
            }
        }
    }

    /// Takes what there is; whether there was anything.
    fn receive(&mut self, index: usize, asker: &mut dyn Asker<D::Ask>) -> Result<bool, BenchFailure> {
        let Line { stream, dialogue, input, .. } = &mut self.lines[index];
        match stream.read(input.room()) {
            Ok(0) => Err("the server has closed a connection".into()),
            Ok(count) => {
                let now = Instant::now();
                let mut answered = |since| asker.answered(since, now);
                input.received(count, |bytes| dialogue.take(bytes, self.book, &mut answered))?;
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Sleeps until there is something to receive, room to send, or a question is due.
    fn wait(&self, ready: &mut [bool]) -> Result<(), BenchFailure> {
        let lines = self.lines.iter();
        let mut watched: Vec<_> = lines
            .map(|line| {
                let sends = if line.has_output() { PollFlags::OUT } else { PollFlags::empty() };
                PollFd::new(&line.stream, PollFlags::IN | sends)
            })
            .collect();
        let is_full = self.lines[self.next].dialogue.waiting() >= OUT_MAX;
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
    fn replies_are_taken_when_they_are_whole() {
        let mut input = Input::new(8);
        let mut taken = Vec::new();
        for piece in [&b"ab"[..], b"c.de.f", b"g", b".", b"h"] {
            input.room()[..piece.len()].copy_from_slice(piece);
            let take = |bytes: &[u8]| {
                let len = bytes.iter().position(|byte| *byte == b'.').map(|end| end + 1);
                taken.extend(len.map(|len| bytes[..len].to_vec()));
                Ok(len)
            };
            input.received(piece.len(), take).unwrap();
        }
        assert_eq!(taken, [&b"abc."[..], b"de.", b"fg."]);
        // One byte is there still.
        input.room().fill(b'h');
        assert!(input.received(7, |_| Ok(None)).is_err(), "an answer that does not fit");
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
