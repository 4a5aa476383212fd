//! The host: an application that serves a file by itself, or what a card leaves to it.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ob_core::{ConnectionId, Now};
use ob_files_host::{File, Group, GroupOptions, RingSizes, Session};
use ob_io::{Config, Reactor};
use ob_kv::host::{Answer, HostLimits, HostStream, Service};
use ob_link::HostGroup;
use ob_offload::remote::{REQUEST_LEN, RemoteRequest, Status, reply};
use ob_wire_link::stream::{FRAGMENT_LEN, Recovered};

use super::backend::{LibraryFile, OsFile, create_on_card};
use super::card::{ANY_PORT, REMOTE_SERVICE};
use super::client::FILE;
use super::plain::Plain;
use crate::bench::BenchFailure;
use crate::bench::process::end_with_parent;
use crate::kv::{Pushed, push, receive};

/// Bytes of the stream's rings.
const RINGS: u32 = 1 << 20;
/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// Requests that are taken before others are done.
const WAITING_MAX: usize = 4096;

/// What a host says that a card has met.
pub(super) const READY: &str = "ready";

/// How the file is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RemoteHostKind {
    /// Sockets and a file of the operating system
    Os,
    /// Sockets and a file of the card
    Library,
    /// What the card does not answer by itself
    Offloaded,
}

/// The command line of the host, which the benchmark starts by itself.
#[derive(Clone, Debug, clap::Args)]
pub struct RemoteHostOptions {
    /// How the file is served
    #[arg(long)]
    pub kind: RemoteHostKind,
    /// The operating system's file, or where the card is attached to
    #[arg(long)]
    pub path: PathBuf,
    /// Bytes of the file
    #[arg(long)]
    pub bytes: u64,
}

/// Runs the host until it is ended: makes the file, says where it serves it or that the card may, and serves.
pub fn run_remote_host(options: &RemoteHostOptions) -> Result<(), BenchFailure> {
    end_with_parent()?;
    let RemoteHostOptions { kind, path, bytes } = options;
    if *kind == RemoteHostKind::Offloaded {
        let (session, file) = create_on_card(path, *bytes, GroupOptions::polled())?;
        return Offloaded::new(session, file)?.run();
    }
    let reactor = Reactor::new(&Config::default())?;
    let handle = reactor.handle();
    if *kind == RemoteHostKind::Os {
        let plain = Plain::new(reactor, OsFile::create(&handle, path, *bytes)?, ANY_PORT)?;
        plain.run()
    } else {
        let plain = Plain::new(reactor, LibraryFile::create(path, *bytes, handle.waker())?, ANY_PORT)?;
        plain.run()
    }
}

/// A request that the card has forwarded.
struct Forwarded {
    connection: ConnectionId,
    stamp: u64,
    request: RemoteRequest,
    data: Vec<u8>,
}

/// The file behind the stream.
struct Remote {
    file: File,
    /// By their tags.
    out: HashMap<u64, Forwarded>,
    /// What found no room.
    waiting: VecDeque<Forwarded>,
    answers: VecDeque<Answer>,
    stamp_max: u64,
}

impl Remote {
    fn begin(&mut self, mut forwarded: Forwarded) {
        let RemoteRequest { offset, length, is_write, .. } = forwarded.request;
        let tag = forwarded.stamp;
        let refused = if is_write {
            let data = std::mem::take(&mut forwarded.data);
            self.file.submit_write(data, offset, tag).err().map(|refused| refused.buffer)
        } else {
            self.file.submit_read(vec![0; length as usize], offset, tag).err().map(|_| Vec::new())
        };
        match refused {
            None => drop(self.out.insert(tag, forwarded)),
            Some(data) => self.waiting.push_back(Forwarded { data, ..forwarded }),
        }
    }

    fn done(&mut self, tag: u64, result: &ob_files_host::Result<usize>, read: &[u8]) {
        let Some(forwarded) = self.out.remove(&tag) else { return };
        let is_done = *result == Ok(forwarded.request.length as usize);
        let read = if is_done && !forwarded.request.is_write { read } else { &[] };
        let status = if is_done { Status::Done } else { Status::Wrong };
        let mut bytes = reply(forwarded.request.id, status, read.len() as u32).to_vec();
        bytes.extend_from_slice(read);
        let Forwarded { connection, stamp, .. } = forwarded;
        self.answers.push_back(Answer { connection, stamp, bytes, attest: None, closes: false });
        if let Some(next) = self.waiting.pop_front() {
            self.begin(next);
        }
    }
}

impl Service for Remote {
    type Session = ();

    fn opened(&mut self, _: ConnectionId, _: SocketAddr) {}

    fn closed(&mut self, _: ConnectionId, (): ()) {}

    fn request(&mut self, _: Now, connection: ConnectionId, stamp: u64, (): &mut (), request: &[u8]) {
        self.stamp_max = self.stamp_max.max(stamp);
        // What the card forwards it has looked at.
        let Some((head, len)) = RemoteRequest::decode(request) else { return };
        let data = request[REQUEST_LEN..len].to_vec();
        self.begin(Forwarded { connection, stamp, request: head, data });
    }

    fn standing((): &()) -> u32 {
        1
    }

    fn has_room(&self) -> bool {
        self.waiting.len() < WAITING_MAX
    }

    fn next_answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }

    fn recycle(&mut self, _: Vec<u8>) {}

    fn greatest_stamp(&self) -> u64 {
        self.stamp_max
    }

    fn recovered(&self) -> Recovered {
        Recovered { store: [1; 16], end: 0 }
    }

    fn begins(&mut self, _: u64) {}

    fn settled(&self) -> u64 {
        0
    }
}

/// The stream's end.
struct Offloaded {
    _session: Session,
    files: Group,
    group: HostGroup,
    stream: HostStream<Remote>,
}

impl Offloaded {
    fn new(session: Session, file: File) -> Result<Self, BenchFailure> {
        let files = session.own_group().clone();
        let group = session.service(REMOTE_SERVICE, RingSizes::both(RINGS))?;
        let node = file.node();
        let (out, waiting, answers) = (HashMap::new(), VecDeque::new(), VecDeque::new());
        let remote = Remote { file, out, waiting, answers, stamp_max: 0 };
        let mut stream = HostStream::new(remote, HostLimits::default());
        stream.name_file(FILE, node);
        Ok(Self { _session: session, files, group, stream })
    }

    /// Serves until the card is gone.
    fn run(mut self) -> Result<(), BenchFailure> {
        let mut payload = vec![0; FRAGMENT_LEN];
        let mut is_told = false;
        loop {
            let received = receive(&self.group, &mut self.stream, &mut payload, Now::default)?;
            let mut completions = Vec::new();
            self.files.poll_into(&mut completions);
            let mut is_full = false;
            let done = completions.len();
            self.complete(completions);
            self.stream.send(&mut |frame| {
                let pushed = push(&self.group, frame);
                is_full |= pushed == Pushed::Full;
                pushed != Pushed::Full
            });
            if !is_told && self.stream.is_running() {
                println!("{READY}");
                is_told = true;
            }
            if received == 0 && done == 0 {
                self.sleep(is_full);
            }
        }
    }

    fn complete(&mut self, completions: Vec<ob_files_host::Completion>) {
        for completion in completions {
            let bytes = completion.buffer.into_bytes();
            self.stream.service_mut().done(completion.tag, &completion.result, &bytes);
        }
    }

    /// Sleeps until the card has said something, or a file has moved.
    fn sleep(&mut self, wants_room: bool) {
        let mut completions = Vec::new();
        let group = &self.group;
        let takes_more = self.stream.has_room();
        let register = || {
            let receiver = (group.receiver.bell(), group.receiver.register_sleeper().bell);
            let sender = wants_room.then(|| (group.sender.bell(), group.sender.register_sleeper().bell));
            [Some(receiver), sender, None]
        };
        let is_there = || group.is_closed() || (takes_more && !group.receiver.is_empty());
        self.files.wait_beside(SLEEP_MAX, |completion| completions.push(completion), register, is_there);
        self.complete(completions);
    }
}
