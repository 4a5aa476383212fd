//! The store on the host, behind the stream of a card.
//!
//! ```text
//!   attach ─▶ group ─▶ list parts ─▶ recover ─┬─▶ MEET … serve … the card dies ─┐
//!      ▲                                      └── the next card's group ◀───────┘
//!      └───────────── another host has the group, or this one was sent away ◀── ┘
//! ```
//!
//! One thread has the store. It takes frames out of its ring, applies them, hands the log's operations to the file library and
//! takes their completions, and sleeps on the bells of all of these at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ob_files_host::{Endpoint, Error, GroupOptions, RingSizes, Session, SessionOptions};
use ob_format::kv::part_number;
use ob_io::doorbell;
use ob_kv::host::{HostLimits, HostStream, Service};
use ob_kv::store::{LogOp, Recovery, Store};
use ob_link::HostGroup;
use ob_ring::{Outgoing, PushError, ReceiveError};
use ob_wire_link::stream::{FRAGMENT_LEN, FromCard, FromHost, HEADER_LEN, KV_SERVICE};

use super::card_log::{CardLog, DIRECTORY};
use super::{KvError, SpaceNews, fitted_part_len, recover, store_config, unix_ms};
use crate::config::{HostConfig, LinkKind};

/// Bytes of the stream's rings.
const RINGS: u32 = 1 << 20;
/// Frames that are taken before answers are sent.
const FRAMES_A_TURN: usize = 512;
/// The longest sleep: whatever a thread might wait for by mistake, it looks again.
const SLEEP_MAX: Duration = Duration::from_secs(10);
/// Pauses between attempts to reach the card.
const RETRY: Duration = Duration::from_millis(50);
/// How long a card whose group was closed may take to be known for dead.
const SENT_AWAY_AFTER: Duration = Duration::from_secs(3);
/// Pauses between attempts to get the group of a card that gives it to another host.
const REFUSED_PAUSE: Duration = Duration::from_millis(500);
/// How long a thread that stops waits for its last writes.
const WIND_DOWN_WITHIN: Duration = Duration::from_secs(5);

/// The thread that has the store.
pub struct KvHost {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    asked: AtomicBool,
    bell: AtomicU64,
}

impl Stop {
    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Sleeps for so long, or until somebody asks; whether somebody has.
    fn sleep(&self, time: Duration) -> bool {
        let seen = self.bell.load(Ordering::Acquire) as u32;
        if !self.is_asked() {
            doorbell::futex_wait(&self.bell, seen, Some(time));
        }
        self.is_asked()
    }
}

impl KvHost {
    /// Starts the thread.
    pub fn start(config: &HostConfig) -> std::io::Result<Self> {
        let stop = Arc::new(Stop::default());
        let (config, asked) = (config.clone(), Arc::clone(&stop));
        let run = move || {
            while !asked.is_asked() {
                if let Err(error) = Serving::open(&config, &asked).and_then(|serving| serving.run())
                    && !asked.is_asked()
                {
                    tracing::error!("the key-value store: {error}");
                    asked.sleep(error.pause());
                }
            }
        };
        let thread = std::thread::Builder::new().name("kv".to_owned()).spawn(run)?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for KvHost {
    fn drop(&mut self) {
        self.stop.asked.store(true, Ordering::Release);
        self.stop.bell.fetch_add(1, Ordering::AcqRel);
        doorbell::futex_wake_all(&self.stop.bell);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the key-value store has panicked");
        }
    }
}

/// Why the store cannot be served now.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("cannot use the card's files: {0}")]
    Files(#[from] Error),
    #[error(transparent)]
    Store(#[from] KvError),
    #[error("the card has closed the stream; beginning anew")]
    SentAway,
}

impl ServeError {
    /// How long to wait before the next attempt.
    fn pause(&self) -> Duration {
        match self {
            Self::Files(_) | Self::SentAway => RETRY,
            // That does not change by itself.
            Self::Store(_) => Duration::from_secs(30),
        }
    }
}

struct Serving<'a> {
    session: Session,
    /// The group that is to be served next.
    group: Option<HostGroup>,
    log: CardLog,
    stream: HostStream<Store>,
    stop: &'a Stop,
    news: SpaceNews,
    /// The payload of a frame.
    payload: Vec<u8>,
}

/// Why a life of the stream is over.
enum Ended {
    Asked,
    Closed(String),
}

impl<'a> Serving<'a> {
    /// Attaches, and recovers the store.
    fn open(config: &HostConfig, stop: &'a Stop) -> Result<Self, ServeError> {
        let endpoint = match config.link.kind {
            LinkKind::Shm | LinkKind::Model => Endpoint::Unix(config.link.socket.clone()),
            LinkKind::Tcp => Endpoint::Tcp(config.link.card),
        };
        let session = loop {
            let options = SessionOptions {
                dead_after: config.link.dead_after.0,
                ..SessionOptions::new(endpoint.clone())
            };
            match Session::open(options.group(GroupOptions::polled())) {
                Ok(session) => break session,
                // The other thread of this half tells people about a card that is not there.
                Err(error) if stop.sleep(RETRY) => return Err(error.into()),
                Err(_) => {}
            }
        };
        // Who has the group is the only host that writes to the log. What it holds is looked at only then.
        let mut is_told = false;
        let group = loop {
            match session.service(KV_SERVICE, RingSizes::both(RINGS)) {
                Ok(group) => break group,
                Err(error) => {
                    if !std::mem::replace(&mut is_told, true) {
                        tracing::warn!(
                            "the card does not serve the key-value store yet: {error}; trying again"
                        );
                    }
                    if stop.sleep(REFUSED_PAUSE) {
                        return Err(error.into());
                    }
                }
            }
        };
        match session.make_directory(DIRECTORY).wait() {
            Ok(_) | Err(Error::Exists) => {}
            Err(error) => return Err(error.into()),
        }
        let entries = session.list(DIRECTORY).wait()?;
        let named = |entry: &ob_files_host::DirectoryEntry| {
            let part = std::str::from_utf8(&entry.name).ok().and_then(part_number)?;
            Some((part, entry.node, entry.size))
        };
        let parts: Vec<_> = entries.iter().filter_map(named).collect();
        let mut log =
            CardLog::new(session.own_group().clone(), parts.iter().map(|(part, node, _)| (*part, *node)));
        let mut store_config = store_config(&config.kv).map_err(KvError::from)?;
        if parts.is_empty() {
            store_config.part_len = fitted_part_len(store_config.part_len, session.space().wait()?.free);
        }
        let sizes = parts.iter().map(|(part, _, size)| (*part, *size));
        let recovery = Recovery::new(store_config, sizes).map_err(KvError::from)?;
        let store = recover(recovery, |op| {
            log.submit(op);
            // A card that dies meanwhile comes back, unless nobody waits for it any more.
            while !stop.is_asked() {
                log.wait(Duration::from_secs(1));
                if let Some(done) = log.next_done() {
                    return Some(done);
                }
            }
            None
        })?;
        let mut stream = HostStream::new(store, HostLimits::default());
        for (part, node) in log.parts() {
            stream.name_file(part as u32, node);
        }
        let (news, payload) = (SpaceNews::default(), vec![0; FRAGMENT_LEN]);
        Ok(Self { session, group: Some(group), log, stream, stop, news, payload })
    }

    /// Serves one card after the other, for as long as no other host can have written to the log in between.
    fn run(mut self) -> Result<(), ServeError> {
        loop {
            let attachment = self.session.attachments();
            if let Some(group) = self.group.take() {
                let ended = self.serve(&group);
                self.stream.ended();
                match ended {
                    Ended::Asked => {
                        self.wind_down();
                        return Ok(());
                    }
                    Ended::Closed(why) => tracing::warn!("the card's clients are gone: {why}"),
                }
            }
            let closed = Instant::now();
            while !self.session.wait_attached(attachment + 1, RETRY) {
                if self.stop.is_asked() {
                    return Ok(());
                }
                // A card that dies takes its group along, and is known to be dead a moment later. One that lives has ended
                // the group, and the next one may be another host's.
                if self.session.is_attached() && closed.elapsed() > SENT_AWAY_AFTER {
                    return Err(ServeError::SentAway);
                }
            }
            // Whoever is refused now finds another host in its place.
            self.group = Some(self.session.service(KV_SERVICE, RingSizes::both(RINGS))?);
        }
    }

    fn serve(&mut self, group: &HostGroup) -> Ended {
        loop {
            if self.stop.is_asked() {
                return Ended::Asked;
            }
            let received = match receive(group, &mut self.stream, &mut self.payload, unix_ms()) {
                Ok(received) => received,
                Err(why) => return Ended::Closed(why),
            };
            let moved = self.move_log();
            let mut is_full = false;
            self.stream.send(&mut |frame| {
                let pushed = push(group, frame);
                is_full |= pushed == Pushed::Full;
                pushed != Pushed::Full
            });
            // Answers make room for requests, and what was recycled for operations.
            if received == 0 && !moved {
                self.sleep(group, is_full);
            }
        }
    }

    /// Moves operations of the store to the log and completions back; whether anything moved.
    fn move_log(&mut self) -> bool {
        self.stream.service_mut().tick(unix_ms());
        if self.stream.service_mut().wants_measure() {
            self.log.measure();
        }
        let mut moved = false;
        while let Some(op) = self.stream.service_mut().next_op() {
            if let LogOp::Remove { part, .. } = &op {
                self.stream.forget_file(*part as u32);
            }
            self.log.submit(op);
            moved = true;
        }
        self.log.poll();
        while let Some((part, node)) = self.log.next_made() {
            self.stream.name_file(part as u32, node);
        }
        while let Some(done) = self.log.next_done() {
            self.stream.service_mut().completed(done);
            moved = true;
        }
        if let Some(left) = self.log.next_measured() {
            self.stream.service_mut().measured(left);
            moved = true;
        }
        self.news.tell(self.stream.service().space());
        moved
    }

    /// Sleeps until the card has said something, a file has moved, or it is time.
    fn sleep(&mut self, group: &HostGroup, wants_room: bool) {
        let now = unix_ms();
        let due = self.stream.service().next_due().map(|due| Duration::from_millis(due.saturating_sub(now)));
        let within = due.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
        let (stop, takes_more) = (self.stop, self.stream.has_room());
        let mut completions = Vec::new();
        let register = || {
            let receiver = (group.receiver.bell(), group.receiver.register_sleeper().bell);
            let sender = wants_room.then(|| (group.sender.bell(), group.sender.register_sleeper().bell));
            [Some(receiver), sender, Some((&stop.bell, stop.bell.load(Ordering::Acquire) as u32))]
        };
        let is_there = || stop.is_asked() || group.is_closed() || (takes_more && !group.receiver.is_empty());
        self.log.group().wait_beside(within, |completion| completions.push(completion), register, is_there);
        for completion in completions {
            self.log.complete(completion.tag, completion.result, completion.buffer);
        }
    }

    /// Makes what was answered durable.
    fn wind_down(mut self) {
        let deadline = Instant::now() + WIND_DOWN_WITHIN;
        while Instant::now() < deadline && !self.stream.service_mut().wind_down() {
            self.move_log();
            self.log.wait(Duration::from_millis(10));
        }
    }
}

/// Takes what the card says; how many frames that were. `scratch` has room for the payload of a frame.
pub(crate) fn receive<S: Service>(
    group: &HostGroup,
    stream: &mut HostStream<S>,
    scratch: &mut [u8],
    now_ms: u64,
) -> Result<usize, String> {
    for count in 0..FRAMES_A_TURN {
        if !stream.has_room() {
            return Ok(count);
        }
        let claimed = match group.receiver.receive() {
            Ok(Some(claimed)) => claimed,
            Ok(None) => return Ok(count),
            Err(ReceiveError::Closed) => return Err("the group was closed".to_owned()),
            Err(error) => return Err(error.to_string()),
        };
        let mut inline = [0; HEADER_LEN];
        let inline_len = claimed.inline(&mut inline).max(claimed.inline_len());
        let len = claimed.payload(0, scratch).max(claimed.payload_len());
        drop(claimed);
        let (Some(inline), Some(payload)) = (inline.get(..inline_len), scratch.get(..len)) else {
            return Err("a frame is longer than frames are".to_owned());
        };
        let frame = FromCard::decode(inline, payload).map_err(|error| error.to_string())?;
        stream.received(now_ms, &frame).map_err(|fault| fault.to_string())?;
    }
    Ok(FRAMES_A_TURN)
}

/// What became of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    Yes,
    Full,
    /// There is nobody to say it to; receiving tells.
    Gone,
}

/// Says something to the card.
pub(crate) fn push(group: &HostGroup, frame: &FromHost<'_>) -> Pushed {
    let (inline, payload) = frame.encode();
    let pieces = [payload.bytes()];
    let payload = (!payload.bytes().is_empty()).then_some((&pieces[..], 8));
    match group.sender.push(Outgoing { inline: &inline, payload }) {
        Ok(()) => Pushed::Yes,
        Err(PushError::Retry) => Pushed::Full,
        Err(PushError::Closed | PushError::TooLarge { .. } | PushError::Corrupt { .. }) => Pushed::Gone,
    }
}
