//! The store on the host, behind the stream of a card.
//!
//! ```text
//!   attach ─▶ group ─▶ list parts ─▶ recover ─┬─▶ MEET … serve … the card dies ─┐
//!      ▲                                      └── the next card's group, revisit ◀┘
//!      └── another host has the group, or has had it; this one was sent away ◀────┘
//! ```
//!
//! One thread has the store. It takes frames out of its ring, applies them, hands the log's operations to the file library and
//! takes their completions, and sleeps on the bells of all of these at once.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ob_core::{Clock, NodeId, Now};
use ob_files_host::{Endpoint, Error, Group, GroupOptions, RingSizes, Session, SessionOptions};
use ob_format::kv::part_number;
use ob_io::{MonotonicClock, doorbell};
use ob_kv::host::{HostLimits, HostStream, Service};
use ob_kv::store::{LogCompletion, LogFailure, LogOp, Recovery, Revisited, Store};
use ob_link::HostGroup;
use ob_ring::{Outgoing, PushError, ReceiveError};
use ob_wire_link::stream::{FRAGMENT_LEN, FromCard, FromHost, HEADER_LEN, KV_SERVICE};

use super::card_log::{CardLog, DIRECTORY};
use super::thread::WatchedThread;
use super::{KvError, LogNews, fitted_part_len, now, recover, store_config, unwritten};
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
    thread: WatchedThread,
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
        Ok(Self { stop, thread: WatchedThread::start("kv", run)? })
    }

    /// Becomes readable when its thread has ended, though nobody has asked it to.
    pub fn end(&self) -> BorrowedFd<'_> {
        self.thread.as_fd()
    }
}

impl Drop for KvHost {
    fn drop(&mut self) {
        self.stop.asked.store(true, Ordering::Release);
        self.stop.bell.fetch_add(1, Ordering::AcqRel);
        doorbell::futex_wake_all(&self.stop.bell);
        self.thread.join();
    }
}

/// Why the store cannot be served now.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("cannot use the card's files: {0}")]
    Files(#[from] Error),
    #[error(transparent)]
    Store(#[from] KvError),
    #[error("the card has closed the stream, and says why in its own log; beginning anew")]
    SentAway,
    #[error(
        "the card has closed the stream before anything was served, and says why in its own log\n\
         hint: card and host have to be of the same version, and [kv] password has to be set for both or for none"
    )]
    NotMet,
    #[error("another host has written to the log meanwhile; recovering what it has left")]
    Overtaken,
    #[error("the log cannot be written to: {0}; trying again")]
    Unmarked(LogFailure),
    #[error("the card has lost the log's last groups with its power; recovering what is left")]
    Lost,
}

impl ServeError {
    /// How long to wait before the next attempt.
    fn pause(&self) -> Duration {
        match self {
            Self::Files(_) | Self::SentAway | Self::Overtaken | Self::Lost => RETRY,
            // That does not change by itself.
            Self::Store(_) | Self::Unmarked(_) | Self::NotMet => Duration::from_secs(30),
        }
    }
}

struct Serving<'a> {
    session: Session,
    /// The group that is to be served next.
    group: Option<HostGroup>,
    log: CardLog,
    stream: HostStream<Store>,
    /// Whether the card has begun the last life of the stream.
    was_met: bool,
    stop: &'a Stop,
    news: LogNews,
    /// The payload of a frame.
    payload: Vec<u8>,
}

/// Why a life of the stream is over.
enum Ended {
    Asked,
    Closed(String),
    /// This life could not be begun.
    Unmarked(LogFailure),
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
            match Session::attach(options) {
                Ok(session) => break session,
                // The other thread of this half tells people about a card that is not there.
                Err(error) if stop.sleep(RETRY) => return Err(error.into()),
                Err(_) => {}
            }
        };
        // Who has the group is the only host that writes to the log. What it holds is looked at only then.
        let attachment = session.attachments();
        let group = ask_for_group(&session, stop, attachment)?;
        // A card finishes what the host before had asked for before it begins with a group that was opened later.
        let files = session.group(GroupOptions::polled())?;
        match files.make_directory(DIRECTORY).wait() {
            Ok(_) | Err(Error::Exists) => {}
            Err(error) => return Err(error.into()),
        }
        let parts = list_parts(&files)?;
        let mut store_config = store_config(&config.kv).map_err(KvError::from)?;
        if parts.is_empty() {
            store_config.part_len = fitted_part_len(store_config.part_len, files.space().wait()?.free);
        }
        let mut log = CardLog::new(files, parts.iter().map(|(part, node, _)| (*part, *node)));
        let sizes = parts.iter().map(|(part, _, size)| (*part, *size));
        let recovery = Recovery::new(store_config, sizes).map_err(KvError::from)?;
        let is_over = || stop.is_asked() || session.attachments() != attachment;
        let recovered = recover(recovery, |op| finish(&mut log, op, is_over, drop));
        if session.attachments() != attachment {
            // Another host may have come between what was read before and after.
            return Err(Error::CardGone.into());
        }
        let mut store = recovered?;
        store.mark_life();
        let mut stream = HostStream::new(store, HostLimits::default());
        for (part, node) in log.parts() {
            stream.name_file(part as u32, node);
        }
        let (news, payload) = (LogNews::default(), vec![0; FRAGMENT_LEN]);
        Ok(Self { session, group: Some(group), log, stream, was_met: false, stop, news, payload })
    }

    /// Serves one card after the other, for as long as no other host has written to the log in between.
    fn run(mut self) -> Result<(), ServeError> {
        loop {
            let attachment = self.session.attachments();
            if let Some(group) = self.group.take() {
                let ended = self.serve(&group);
                self.was_met = self.stream.is_running();
                self.stream.ended();
                match ended {
                    Ended::Asked => {
                        self.wind_down();
                        return Ok(());
                    }
                    Ended::Unmarked(failure) => return Err(ServeError::Unmarked(failure)),
                    Ended::Closed(why) => tracing::warn!("the card's clients are gone: {why}"),
                }
            }
            if !self.rejoin(attachment)? {
                return Ok(());
            }
        }
    }

    /// Waits for the card's next life, for its group, and for the log to be found as it was; `false` if nobody waits any more.
    fn rejoin(&mut self, mut attachment: u64) -> Result<bool, ServeError> {
        loop {
            self.log.leave();
            while let Some(done) = self.log.next_done() {
                self.stream.service_mut().completed(done);
            }
            let closed = Instant::now();
            while !self.session.wait_attached(attachment + 1, RETRY) {
                if self.stop.is_asked() {
                    return Ok(false);
                }
                // A card that dies takes its group along, and is known to be dead a moment later. One that lives has ended
                // the group, and the next one may be another host's.
                if self.session.is_attached() && closed.elapsed() > SENT_AWAY_AFTER {
                    return Err(if self.was_met { ServeError::SentAway } else { ServeError::NotMet });
                }
            }
            attachment = self.session.attachments();
            if let Ok(group) = ask_for_group(&self.session, self.stop, attachment)
                && self.revisit(attachment)?
            {
                self.group = Some(group);
                return Ok(true);
            }
        }
    }

    /// Looks whether the log is what it was when the card was left; `false` if the card is gone again. Nobody else writes to it
    /// meanwhile, and this host does not either.
    fn revisit(&mut self, attachment: u64) -> Result<bool, ServeError> {
        // Opened behind the one of the service, like the first.
        let opened = self.session.group(GroupOptions::polled());
        let (files, parts) = match opened.and_then(|files| list_parts(&files).map(|parts| (files, parts))) {
            Ok(opened) => opened,
            Err(Error::CardGone | Error::Detached) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        self.log.join(files, parts.iter().map(|(part, node, _)| (*part, *node)));
        let mut revisit = self.stream.service().revisit(parts.iter().map(|(part, _, size)| (*part, *size)));
        while let Some(op) = revisit.next_op() {
            let is_over = || self.stop.is_asked() || self.session.attachments() != attachment;
            let others = |done| self.stream.service_mut().completed(done);
            let Some(done) = finish(&mut self.log, op, is_over, others) else { return Ok(false) };
            revisit.completed(done);
        }
        self.log.go_on();
        match revisit.outcome() {
            Some(Revisited::Same) => {
                self.stream.service_mut().rejoined();
                Ok(true)
            }
            Some(Revisited::Lost) => Err(ServeError::Lost),
            Some(Revisited::Overtaken) | None => Err(ServeError::Overtaken),
        }
    }

    fn serve(&mut self, group: &HostGroup) -> Ended {
        loop {
            if self.stop.is_asked() {
                return Ended::Asked;
            }
            let received = match receive(group, &mut self.stream, &mut self.payload, now) {
                Ok(received) => received,
                Err(why) => return Ended::Closed(why),
            };
            let moved = self.move_log();
            let store = self.stream.service();
            if let Some(failure) = store.failure().filter(|_| !store.is_life_marked()) {
                return Ended::Unmarked(failure);
            }
            self.stream.set_clock(now().unix_ms);
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
        self.stream.service_mut().tick(now());
        if self.stream.service_mut().wants_measure() {
            self.log.measure();
        }
        let mut moved = false;
        while self.stream.may_write()
            && let Some(op) = self.stream.service_mut().next_op()
        {
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
        self.news.tell(self.stream.service());
        moved
    }

    /// Sleeps until the card has said something, a file has moved, or it is time.
    fn sleep(&mut self, group: &HostGroup, wants_room: bool) {
        let due = self.stream.service().next_due().map(|due| due - MonotonicClock.now());
        // What could be done at once and may not be waits for the card, which rings.
        let due = due.filter(|due| !due.is_zero() || self.stream.may_write());
        let within = due.unwrap_or(SLEEP_MAX).min(SLEEP_MAX);
        let (stop, takes_more) = (self.stop, self.stream.has_room());
        let register = || {
            let receiver = (group.receiver.bell(), group.receiver.register_sleeper().bell);
            let sender = wants_room.then(|| (group.sender.bell(), group.sender.register_sleeper().bell));
            [Some(receiver), sender, Some((&stop.bell, stop.bell.load(Ordering::Acquire) as u32))]
        };
        let is_there = || stop.is_asked() || group.is_closed() || (takes_more && !group.receiver.is_empty());
        self.log.take(|files, completions| {
            files.wait_beside(within, |completion| completions.push(completion), register, is_there)
        });
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

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        if let Some(told) = unwritten(self.stream.service()) {
            tracing::error!("{told}");
        }
    }
}

/// The log's parts on the card: their numbers, files and lengths.
fn list_parts(files: &Group) -> Result<Vec<(u64, NodeId, u64)>, Error> {
    let entries = files.list(DIRECTORY).wait()?;
    let named = |entry: &ob_files_host::DirectoryEntry| {
        let part = std::str::from_utf8(&entry.name).ok().and_then(part_number)?;
        Some((part, entry.node, entry.size))
    };
    Ok(entries.iter().filter_map(named).collect())
}

/// Asks for the service's group until it is there; the last refusal, if the card is gone or nobody waits any more. Whoever is refused
/// may find another host in its place, or its own group, which a card that has not noticed the end of the link still has: a store
/// in memory is kept meanwhile, for it may have what the log has not, and the look at the log will tell.
fn ask_for_group(session: &Session, stop: &Stop, attachment: u64) -> Result<HostGroup, Error> {
    let mut is_told = false;
    loop {
        let error = match session.service(KV_SERVICE, RingSizes::both(RINGS)) {
            Ok(group) => return Ok(group),
            Err(error) => error,
        };
        if matches!(error, Error::CardGone | Error::Detached) || session.attachments() != attachment {
            return Err(error);
        }
        if !std::mem::replace(&mut is_told, true) {
            tracing::warn!("the card does not serve the key-value store yet: {error}; trying again");
        }
        if stop.sleep(REFUSED_PAUSE) {
            return Err(error);
        }
    }
}

/// Waits until an operation is done; nothing, if nobody waits for it any more.
fn finish(
    log: &mut CardLog,
    op: LogOp,
    is_over: impl Fn() -> bool,
    mut others: impl FnMut(LogCompletion),
) -> Option<LogCompletion> {
    let token = op.token();
    log.submit(op);
    while !is_over() {
        log.wait(Duration::from_secs(1));
        while let Some(done) = log.next_done() {
            if done.token == token {
                return Some(done);
            }
            others(done);
        }
        log.begin_again(token);
    }
    None
}

/// Takes what the card says; how many frames that were. `scratch` has room for the payload of a frame. Each is received at a time
/// that is looked at when it is there: a thread that had to wait meanwhile would take a request for older than it is.
pub(crate) fn receive<S: Service>(
    group: &HostGroup,
    stream: &mut HostStream<S>,
    scratch: &mut [u8],
    now: impl Fn() -> Now,
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
        claimed.check().map_err(|error| error.to_string())?;
        drop(claimed);
        let (Some(inline), Some(payload)) = (inline.get(..inline_len), scratch.get(..len)) else {
            return Err("a frame is longer than frames are".to_owned());
        };
        let frame = FromCard::decode(inline, payload).map_err(|error| error.to_string())?;
        stream.received(now(), &frame).map_err(|fault| fault.to_string())?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_change_by_itself_is_not_tried_all_the_time() {
        // Each attempt reads the whole log, and writes to it.
        assert!(ServeError::NotMet.pause() >= Duration::from_secs(30));
        assert!(ServeError::Unmarked(LogFailure::Space).pause() >= Duration::from_secs(30));
        // A host that was served may be again at once.
        assert!(ServeError::SentAway.pause() < Duration::from_secs(1));
    }
}
