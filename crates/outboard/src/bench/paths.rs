//! One request after the other, each of one kind: what `cargo xtask paths` has a card do while it counts.
//!
//! Nothing is timed here. Whoever counts does so at the card's process, for two numbers of requests, and what the one has more
//! than the other is the requests' own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ob_files_host::{GroupOptions, Session, SessionOptions};
use ob_nvme::initiator::Payload;

use super::BenchFailure;
use super::nvme::path::{Carriage, write_one_by_one};
use crate::halves::Half;
use crate::status::fetch;

/// Requests before those that are asked for: buffers and lists have their sizes then.
const WARM_UP: u64 = 64;
/// Bytes of a value.
const VALUE_LEN: usize = 100;
/// Bytes of a file's read, and of the file.
const READ_LEN: usize = 8 << 10;
const FILE_LEN: usize = 1 << 20;
/// Bytes of a namespace's write.
const WRITE_LEN: usize = 4 << 10;
/// What a store answers that has done what it was asked for.
const OK: &[u8] = b"+OK\r\n";
/// Much longer than a record takes to the card's device and into its table.
const UNTIL_ADMITTED: Duration = Duration::from_secs(2);
/// Pauses between attempts to reach a store: long, for a card does work for each of them too.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(500);
/// Pauses between connections that keep a card awake.
const BETWEEN_POKES: Duration = Duration::from_millis(20);
/// Where the file is on the card.
const PATH: &str = "/paths";
/// Longer than a card takes that runs in a simulator of processors.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PathKind {
    /// A value that the card answers with
    Get,
    /// A value for the host
    Set,
    /// 4 KiB for a namespace, together with the command
    WriteInCapsule,
    /// 4 KiB for a namespace, when the target asks for them
    WriteSolicited,
    /// 8 KiB of a file, through the library
    Read,
}

/// The command line of the load.
#[derive(Clone, Debug, clap::Args)]
pub struct PathOptions {
    /// What is asked for
    pub kind: PathKind,
    /// How often
    #[arg(long)]
    pub count: u64,
    /// Milliseconds between an answer and the next request, in which the card falls asleep
    #[arg(long, default_value_t = 0)]
    pub pause: u64,
    /// Where clients reach the store or the namespace
    #[arg(long, required_if_eq_any([("kind", "get"), ("kind", "set"), ("kind", "write-in-capsule"), ("kind", "write-solicited")]))]
    pub address: Option<SocketAddr>,
    /// Where the card tells its status
    #[arg(long, required_if_eq("kind", "get"))]
    pub status: Option<SocketAddr>,
    /// Where hosts attach
    #[arg(long, required_if_eq("kind", "read"))]
    pub socket: Option<PathBuf>,
}

/// Asks.
pub fn run_path(options: &PathOptions) -> Result<(), BenchFailure> {
    let address = options.address.ok_or("where to?");
    let pace = Pace { count: options.count, pause: Duration::from_millis(options.pause) };
    match options.kind {
        PathKind::Get => get(address?, options.status.ok_or("whom to ask for the status?")?, &pace),
        PathKind::Set => set(address?, &pace),
        PathKind::WriteInCapsule => write(address?, Carriage::InCapsule, &pace),
        PathKind::WriteSolicited => write(address?, Carriage::Solicited, &pace),
        PathKind::Read => read(options.socket.as_ref().ok_or("where do hosts attach?")?.into(), &pace),
    }
}

/// How many requests follow one another, and how fast.
pub(super) struct Pace {
    count: u64,
    pause: Duration,
}

impl Pace {
    /// Asks so often, after a warm-up.
    pub(super) fn warmed_up(
        &self,
        mut ask: impl FnMut(u64) -> Result<(), BenchFailure>,
    ) -> Result<(), BenchFailure> {
        (0..WARM_UP).try_for_each(&mut ask)?;
        self.each(|turn| ask(WARM_UP + turn))
    }

    /// Asks so often.
    fn each(&self, mut ask: impl FnMut(u64) -> Result<(), BenchFailure>) -> Result<(), BenchFailure> {
        (0..self.count).try_for_each(|turn| {
            std::thread::sleep(self.pause);
            ask(turn)
        })
    }
}

/// A connection to the store.
struct Resp {
    stream: TcpStream,
    answer: Vec<u8>,
}

impl Resp {
    fn connect(address: SocketAddr) -> Result<Self, BenchFailure> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, answer: Vec::new() })
    }

    /// Asks, and checks the answer.
    fn ask(&mut self, request: &[u8], expected: &[u8]) -> Result<(), BenchFailure> {
        self.stream.write_all(request)?;
        self.answer.resize(expected.len(), 0);
        self.stream.read_exact(&mut self.answer)?;
        if self.answer == expected { Ok(()) } else { Err("another answer than expected".into()) }
    }

    /// Connects, and sets the value as soon as the store does so: a host may be on its way to the card still.
    fn with_value(address: SocketAddr) -> Result<Self, BenchFailure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut resp = Self::connect(address)?;
            match resp.ask(&set_request(), OK) {
                Err(error) if Instant::now() > deadline => return Err(error),
                // What was answered instead was not read to its end, so this connection is of no use any more.
                Err(_) => std::thread::sleep(BETWEEN_ATTEMPTS),
                Ok(()) => return Ok(resp),
            }
        }
    }
}

fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn value() -> Vec<u8> {
    vec![b'v'; VALUE_LEN]
}

fn set_request() -> Vec<u8> {
    request(&[b"SET", b"path", &value()])
}

fn get(address: SocketAddr, status: SocketAddr, pace: &Pace) -> Result<(), BenchFailure> {
    let mut resp = Resp::with_value(address)?;
    let mut expected = format!("${VALUE_LEN}\r\n").into_bytes();
    expected.extend_from_slice(&value());
    expected.extend_from_slice(b"\r\n");
    let request = request(&[b"GET", b"path"]);
    let by_card = || by_card(status, address);
    // Not before the record is on the card's device and in its table does the card answer by itself. Asking for that again and again
    // would cost the card more than what is counted, and never the same twice: so it gets time, and is checked at the end.
    std::thread::sleep(UNTIL_ADMITTED);
    for _ in 0..WARM_UP {
        resp.ask(&request, &expected)?;
    }
    let begun = by_card()?;
    pace.each(|_| resp.ask(&request, &expected))?;
    let (done, count) = (by_card()? - begun, pace.count);
    if done == count { Ok(()) } else { Err(format!("the card answered {done} of {count} by itself").into()) }
}

/// Requests that the card has answered by itself.
///
/// Under valgrind no thread of a program runs while another one sleeps in io_uring, for which it does not give its place to others. The
/// status is told by a thread of its own: so the card is kept awake until it is told, by connections that say nothing.
fn by_card(status: SocketAddr, address: SocketAddr) -> Result<u64, BenchFailure> {
    let is_told = AtomicBool::new(false);
    let counted = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_told.load(Ordering::Relaxed) {
                drop(TcpStream::connect(address));
                std::thread::sleep(BETWEEN_POKES);
            }
        });
        let fetched = fetch(status);
        is_told.store(true, Ordering::Relaxed);
        fetched
    });
    let counted = counted?.requests;
    let own = counted.iter().filter(|count| count.service == "kv" && count.half == Half::Card);
    Ok(own.map(|count| count.count).sum())
}

fn set(address: SocketAddr, pace: &Pace) -> Result<(), BenchFailure> {
    let mut resp = Resp::with_value(address)?;
    let request = set_request();
    pace.warmed_up(|_| resp.ask(&request, OK))
}

fn write(address: SocketAddr, carriage: Carriage, pace: &Pace) -> Result<(), BenchFailure> {
    write_one_by_one(address, carriage, &Payload::from(vec![7; WRITE_LEN].as_slice()), pace)
}

fn read(socket: PathBuf, pace: &Pace) -> Result<(), BenchFailure> {
    let mut options = SessionOptions::unix(socket).group(GroupOptions::polled());
    options.attach_within = PATIENCE;
    options.patience = PATIENCE;
    let session = Session::open(options)?;
    let file = session.create(PATH).wait()?;
    file.write_at(vec![7; FILE_LEN], 0).wait().0?;
    let mut buffer = vec![0; READ_LEN];
    pace.warmed_up(|turn| {
        let offset = turn * READ_LEN as u64 % FILE_LEN as u64;
        let (read, filled) = file.read_at(std::mem::take(&mut buffer), offset).wait();
        buffer = filled;
        if read? == READ_LEN { Ok(()) } else { Err("a read was cut short".into()) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_the_protocol_has_them() {
        assert_eq!(request(&[b"GET", b"path"]), b"*2\r\n$3\r\nGET\r\n$4\r\npath\r\n");
    }
}
