//! One request after the other, each of one kind: what `cargo xtask paths` has a card do while it counts.
//!
//! Nothing is timed here. Whoever counts does so at the card's process, for two numbers of requests, and what the one has more
//! than the other is the requests' own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
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
    let count = options.count + WARM_UP;
    match options.kind {
        PathKind::Get => get(address?, options.status.ok_or("whom to ask for the status?")?, options.count),
        PathKind::Set => set(address?, count),
        PathKind::WriteInCapsule => write(address?, Carriage::InCapsule, count),
        PathKind::WriteSolicited => write(address?, Carriage::Solicited, count),
        PathKind::Read => read(options.socket.as_ref().ok_or("where do hosts attach?")?.into(), count),
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

fn get(address: SocketAddr, status: SocketAddr, count: u64) -> Result<(), BenchFailure> {
    let mut resp = Resp::connect(address)?;
    resp.ask(&request(&[b"SET", b"path", &value()]), b"+OK\r\n")?;
    let mut expected = format!("${VALUE_LEN}\r\n").into_bytes();
    expected.extend_from_slice(&value());
    expected.extend_from_slice(b"\r\n");
    let request = request(&[b"GET", b"path"]);
    // Not before the record is on the card's device and in its table does the card answer by itself.
    let deadline = Instant::now() + PATIENCE;
    let mut begun = by_card(status)?;
    while by_card(status)? < begun + WARM_UP {
        if Instant::now() > deadline {
            return Err("the card does not answer by itself".into());
        }
        for _ in 0..WARM_UP {
            resp.ask(&request, &expected)?;
        }
    }
    begun = by_card(status)?;
    for _ in 0..count {
        resp.ask(&request, &expected)?;
    }
    let done = by_card(status)? - begun;
    if done == count { Ok(()) } else { Err(format!("the card answered {done} of {count} by itself").into()) }
}

/// Requests that the card has answered by itself.
fn by_card(status: SocketAddr) -> Result<u64, BenchFailure> {
    let counted = fetch(status)?.requests;
    let own = counted.iter().filter(|count| count.service == "kv" && count.half == Half::Card);
    Ok(own.map(|count| count.count).sum())
}

fn set(address: SocketAddr, count: u64) -> Result<(), BenchFailure> {
    let mut resp = Resp::connect(address)?;
    let request = request(&[b"SET", b"path", &value()]);
    for _ in 0..count {
        resp.ask(&request, b"+OK\r\n")?;
    }
    Ok(())
}

fn write(address: SocketAddr, carriage: Carriage, count: u64) -> Result<(), BenchFailure> {
    write_one_by_one(address, carriage, &Payload::from(vec![7; WRITE_LEN].as_slice()), count)
}

fn read(socket: PathBuf, count: u64) -> Result<(), BenchFailure> {
    let mut options = SessionOptions::unix(socket).group(GroupOptions::polled());
    options.attach_within = PATIENCE;
    options.patience = PATIENCE;
    let session = Session::open(options)?;
    let file = session.create(PATH).wait()?;
    file.write_at(vec![7; FILE_LEN], 0).wait().0?;
    let mut buffer = vec![0; READ_LEN];
    for turn in 0..count as usize {
        let offset = turn * READ_LEN % FILE_LEN;
        let (read, filled) = file.read_at(buffer, offset as u64).wait();
        if read? != READ_LEN {
            return Err("a read was cut short".into());
        }
        buffer = filled;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_the_protocol_has_them() {
        assert_eq!(request(&[b"GET", b"path"]), b"*2\r\n$3\r\nGET\r\n$4\r\npath\r\n");
    }
}
