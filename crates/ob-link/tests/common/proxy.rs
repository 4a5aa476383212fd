//! A stretch of network between host and card that can be cut at any byte, stalled, or closed for good.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Dice;

/// What the stretch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Forward = 0,
    /// Connections stay, nothing moves.
    Stall = 1,
    /// Connections are cut, new ones are cut at once.
    Refuse = 2,
    /// Connections are cut after a random number of bytes, most of them within the limit given.
    CutRandomly = 3,
}

/// The stretch, for one host.
pub struct Proxy {
    pub address: SocketAddr,
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

struct Control {
    card: SocketAddr,
    mode: AtomicU8,
    cuts: AtomicU64,
    stop: AtomicBool,
    /// Most random cuts come within so many bytes.
    within: u64,
}

impl Proxy {
    pub fn start(card: SocketAddr, seed: u64, within: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (mode, cuts, stop) = (AtomicU8::new(0), AtomicU64::new(0), AtomicBool::new(false));
        let control = Arc::new(Control { card, mode, cuts, stop, within });
        let ours = control.clone();
        let thread = std::thread::spawn(move || serve(&listener, &ours, &mut Dice::new(seed)));
        Self { address, control, thread: Some(thread) }
    }

    pub fn set(&self, mode: Mode) {
        self.control.mode.store(mode as u8, Ordering::Release);
    }

    pub fn cuts(&self) -> u64 {
        self.control.cuts.load(Ordering::Acquire)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.control.stop.store(true, Ordering::Release);
        let _ = self.thread.take().unwrap().join();
    }
}

impl Control {
    fn is(&self, mode: Mode) -> bool {
        self.mode.load(Ordering::Acquire) == mode as u8
    }
}

fn serve(listener: &TcpListener, control: &Control, dice: &mut Dice) {
    while !control.stop.load(Ordering::Acquire) {
        let Ok((host, _)) = listener.accept() else {
            wait(&[(listener.as_fd(), PollFlags::IN)]);
            continue;
        };
        if control.is(Mode::Refuse) {
            cut(&[host], dice);
            continue;
        }
        let Ok(card) = TcpStream::connect(control.card) else { continue };
        // Now and then there is enough for the largest frame: otherwise nothing would ever get through.
        let within = if dice.below(4) == 0 { 1 << 16 } else { control.within };
        let budget = control.is(Mode::CutRandomly).then(|| dice.below(within));
        let streams = [host, card];
        pump(&streams, control, budget);
        control.cuts.fetch_add(1, Ordering::AcqRel);
        cut(&streams, dice);
    }
}

/// Ends connections, sometimes with a reset that also destroys what has arrived and is not read yet.
fn cut(streams: &[TcpStream], dice: &mut Dice) {
    for stream in streams {
        if dice.below(2) == 0 {
            let _ = rustix::net::sockopt::set_socket_linger(stream, Some(Duration::ZERO));
        }
    }
}

/// Moves bytes both ways until the budget is spent, the mode ends it, or an end hangs up.
fn pump(streams: &[TcpStream; 2], control: &Control, mut budget: Option<u64>) {
    for stream in streams {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_nonblocking(true);
    }
    let mut buffers = [Vec::new(), Vec::new()];
    while !control.stop.load(Ordering::Acquire) && !control.is(Mode::Refuse) {
        if control.is(Mode::CutRandomly) && budget.is_none() {
            budget = Some(control.within / 2);
        }
        if control.is(Mode::Stall) {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let mut moved = false;
        for from in [0, 1] {
            let room = budget.map_or(1 << 16, |budget| budget.min(1 << 16)) as usize;
            match read_some(&streams[from], &mut buffers[from], room) {
                Ok(len) => {
                    moved |= len > 0;
                    budget = budget.map(|budget| budget - len as u64);
                }
                Err(()) => return,
            }
            match write_some(&streams[1 - from], &mut buffers[from]) {
                Ok(len) => moved |= len > 0,
                Err(()) => return,
            }
        }
        let waiting = !buffers.iter().all(Vec::is_empty);
        if budget == Some(0) && !waiting {
            return;
        }
        if !moved {
            let both = PollFlags::IN | PollFlags::OUT;
            let interest = if waiting { both } else { PollFlags::IN };
            wait(&[(streams[0].as_fd(), interest), (streams[1].as_fd(), interest)]);
        }
    }
}

fn read_some(mut stream: &TcpStream, buffer: &mut Vec<u8>, room: usize) -> Result<usize, ()> {
    if !buffer.is_empty() || room == 0 {
        return Ok(0);
    }
    buffer.resize(room, 0);
    let read = stream.read(buffer);
    buffer.truncate(*read.as_ref().unwrap_or(&0));
    match read {
        Ok(0) => Err(()),
        Ok(len) => Ok(len),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        Err(_) => Err(()),
    }
}

fn write_some(mut stream: &TcpStream, buffer: &mut Vec<u8>) -> Result<usize, ()> {
    if buffer.is_empty() {
        return Ok(0);
    }
    match stream.write(buffer) {
        Ok(len) => {
            buffer.drain(..len);
            Ok(len)
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        Err(_) => Err(()),
    }
}

fn wait(watched: &[(std::os::fd::BorrowedFd<'_>, PollFlags)]) {
    let mut watched: Vec<_> =
        watched.iter().map(|(descriptor, flags)| PollFd::from_borrowed_fd(*descriptor, *flags)).collect();
    let _ = poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 2_000_000 }));
}
