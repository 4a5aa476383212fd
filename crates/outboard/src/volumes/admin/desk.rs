//! Where the card takes requests about volumes, hands them to its host, and gives the answers back.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use ob_core::Instant;

use super::talk::{Parts, decode_part, encode_request};
use super::{VolumesAnswer, VolumesReply, VolumesRequest};

/// How long the thread that asks waits for the host.
const PATIENCE: Duration = Duration::from_secs(30);
/// Requests that wait for the reactor, and for the host.
const WAITING_MAX: usize = 16;

const NOT_HERE: &str = "this card does not serve volumes\n\
     hint: `outboard up --volumes`, or a section [volumes] in the configuration";
const ENDING: &str = "the card is shutting down\n\
     hint: nothing more is done; ask again when it runs, which `outboard status` tells";
const CROWDED: &str = "too many requests about volumes wait\n\
     hint: the host's log tells what they wait for; try again";
const NO_HOST: &str = "no host half is there, which decides about volumes\n\
     hint: `outboard up` starts it again, or start `outboard host`; `outboard status` shows whether it is there";
const HOST_ENDED: &str = "the host half ended before it had answered: it may have done it, or not\n\
     hint: `outboard volume ls` shows what there is";
const NONSENSE: &str = "the host's answer cannot be understood\n\
     hint: are card and host of the same version?";
const TOO_LONG: &str = "the request is too long\nhint: a name has at most 64 characters";

/// Where other threads ask.
pub(crate) struct Desk(Option<Open>);

struct Open {
    calls: SyncSender<Call>,
    rung: Arc<AtomicBool>,
    wake: Box<dyn Fn() + Send + Sync>,
}

struct Call {
    request: VolumesRequest,
    answer: SyncSender<VolumesAnswer>,
}

impl Desk {
    /// Of a card that serves no volumes.
    pub(crate) const fn closed() -> Self {
        Self(None)
    }

    /// Asks, and waits for the answer.
    pub(crate) fn ask(&self, request: VolumesRequest) -> VolumesAnswer {
        let Some(open) = &self.0 else { return Err(NOT_HERE.to_owned()) };
        let (answer, answered) = sync_channel(1);
        match open.calls.try_send(Call { request, answer }) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(CROWDED.to_owned()),
            Err(TrySendError::Disconnected(_)) => return Err(ENDING.to_owned()),
        }
        open.rung.store(true, Ordering::Release);
        (open.wake)();
        answered.recv_timeout(PATIENCE).unwrap_or_else(|error| {
            Err(match error {
                RecvTimeoutError::Disconnected => ENDING.to_owned(),
                RecvTimeoutError::Timeout => format!(
                    "the host has not done it within {} seconds, and may do it yet\n\
                     hint: `outboard volume ls` shows whether it has; `outboard status` tells what it waits for",
                    PATIENCE.as_secs()
                ),
            })
        })
    }
}

/// A request that the host has.
struct Waiting {
    answer: SyncSender<VolumesAnswer>,
    until: Instant,
    parts: Parts,
}

/// Where the reactor takes them out.
pub(in crate::volumes) struct DeskInbox {
    calls: Receiver<Call>,
    rung: Arc<AtomicBool>,
    waiting: BTreeMap<u64, Waiting>,
    last_ticket: u64,
    /// Messages for the host, in their order.
    outgoing: VecDeque<Vec<u8>>,
}

/// Both ends; `wake` is called when there is something to take.
pub(in crate::volumes) fn desk(wake: impl Fn() + Send + Sync + 'static) -> (Desk, DeskInbox) {
    let (sender, calls) = sync_channel(WAITING_MAX);
    let rung = Arc::new(AtomicBool::new(false));
    let open = Open { calls: sender, rung: Arc::clone(&rung), wake: Box::new(wake) };
    let inbox =
        DeskInbox { calls, rung, waiting: BTreeMap::new(), last_ticket: 0, outgoing: VecDeque::new() };
    (Desk(Some(open)), inbox)
}

impl DeskInbox {
    /// Takes what was asked; whether there was anything. `refuse` says what the card refuses by itself.
    pub(in crate::volumes) fn take(
        &mut self,
        now: Instant,
        has_host: bool,
        refuse: impl Fn(&VolumesRequest) -> Option<String>,
    ) -> bool {
        self.waiting.retain(|_, waiting| waiting.until > now);
        if !self.rung.swap(false, Ordering::AcqRel) {
            return false;
        }
        let mut did = false;
        // Whoever comes behind this rings once more.
        while let Ok(Call { request, answer }) = self.calls.try_recv() {
            did = true;
            let refused = match (has_host, refuse(&request)) {
                (_, Some(why)) => Some(why),
                (false, None) => Some(NO_HOST.to_owned()),
                (true, None) if self.waiting.len() >= WAITING_MAX => Some(CROWDED.to_owned()),
                (true, None) => None,
            };
            let text = serde_json::to_string(&request).unwrap_or_default();
            let ticket = self.last_ticket + 1;
            match (refused, encode_request(ticket, &text)) {
                (Some(why), _) => _ = answer.try_send(Err(why)),
                (None, None) => _ = answer.try_send(Err(TOO_LONG.to_owned())),
                (None, Some(message)) => {
                    self.last_ticket = ticket;
                    self.outgoing.push_back(message);
                    let waiting = Waiting { answer, until: now + PATIENCE, parts: Parts::default() };
                    self.waiting.insert(ticket, waiting);
                }
            }
        }
        did
    }

    /// The next message for the host.
    pub(in crate::volumes) fn outgoing(&mut self) -> &mut VecDeque<Vec<u8>> {
        &mut self.outgoing
    }

    /// The host is gone, and whatever it was asked.
    pub(in crate::volumes) fn host_ended(&mut self) {
        self.outgoing.clear();
        for waiting in std::mem::take(&mut self.waiting).into_values() {
            // Whoever asked may have gone meanwhile.
            let _ = waiting.answer.try_send(Err(HOST_ENDED.to_owned()));
        }
    }

    /// The host has said a part of an answer. `complete` adds what only the card knows.
    pub(in crate::volumes) fn answered(&mut self, message: &[u8], complete: impl Fn(&mut VolumesReply)) {
        let Some(part) = decode_part(message) else { return };
        let Some(waiting) = self.waiting.get_mut(&part.ticket) else { return };
        let Some(whole) = waiting.parts.add(&part) else { return };
        let answer = whole.ok().and_then(|text| serde_json::from_slice::<VolumesAnswer>(&text).ok());
        let answer = answer.unwrap_or_else(|| Err(NONSENSE.to_owned())).map(|mut reply| {
            complete(&mut reply);
            reply
        });
        if let Some(waiting) = self.waiting.remove(&part.ticket) {
            let _ = waiting.answer.try_send(answer);
        }
    }

    /// When somebody who waits is to be forgotten.
    pub(in crate::volumes) fn next_due(&self) -> Option<Instant> {
        self.waiting.values().map(|waiting| waiting.until).min()
    }
}

/// Whether a message of the host's is a part of an answer.
pub(in crate::volumes) fn is_answer(message: &[u8]) -> bool {
    decode_part(message).is_some()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test stops at the first thing that is not as it should be.
mod tests {
    use super::super::talk::{decode_request, encode_answer};
    use super::*;

    const NOW: Instant = Instant::from_nanoseconds(1);

    fn ask(asked: &VolumesRequest, mut card: impl FnMut(&mut DeskInbox)) -> VolumesAnswer {
        let (rang, rings) = sync_channel(16);
        let (desk, mut inbox) = desk(move || rang.send(()).unwrap());
        assert!(!inbox.take(NOW, true, |_| None));
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| desk.ask(asked.clone()));
            rings.recv().unwrap();
            card(&mut inbox);
            asking.join().unwrap()
        })
    }

    fn answer_with(inbox: &mut DeskInbox, text: &str) {
        let message = inbox.outgoing().pop_front().unwrap();
        let (ticket, _) = decode_request(&message).unwrap();
        for part in encode_answer(ticket, text).unwrap() {
            assert!(is_answer(&part));
            inbox.answered(&part, |_| {});
        }
    }

    #[test]
    fn a_request_goes_to_the_host_and_its_answer_comes_back() {
        let asked = VolumesRequest::Resize { name: "a".to_owned(), size: 4096, shrink: false };
        let told = ask(&asked, |inbox| {
            assert!(inbox.take(NOW, true, |_| None));
            let (_, text) =
                decode_request(&inbox.outgoing()[0]).map(|(at, text)| (at, text.to_vec())).unwrap();
            assert_eq!(serde_json::from_slice::<VolumesRequest>(&text).unwrap(), asked);
            answer_with(inbox, "{\"Ok\":{\"volumes\":[]}}");
            assert!(inbox.waiting.is_empty());
        });
        assert_eq!(told, Ok(VolumesReply::Volumes(Vec::new())));
        let told = ask(&asked, |inbox| {
            inbox.take(NOW, true, |_| None);
            answer_with(inbox, "{\"Err\":\"no\"}");
        });
        assert_eq!(told, Err("no".to_owned()));
    }

    #[test]
    fn whoever_cannot_be_answered_is_told_so() {
        let list = VolumesRequest::List;
        let told = ask(&list, |inbox| _ = inbox.take(NOW, false, |_| None));
        assert_eq!(told, Err(NO_HOST.to_owned()));
        let told = ask(&list, |inbox| _ = inbox.take(NOW, true, |_| Some("no".to_owned())));
        assert_eq!(told, Err("no".to_owned()));
        let told = ask(&list, |inbox| {
            inbox.take(NOW, true, |_| None);
            inbox.host_ended();
        });
        assert_eq!(told, Err(HOST_ENDED.to_owned()));
        for nonsense in ["", "{", "{\"Ok\":7}", "[[[["] {
            let told = ask(&list, |inbox| {
                inbox.take(NOW, true, |_| None);
                answer_with(inbox, nonsense);
            });
            assert_eq!(told, Err(NONSENSE.to_owned()), "{nonsense}");
        }
        let name = "a".repeat(5000);
        let told = ask(&VolumesRequest::Show { name }, |inbox| _ = inbox.take(NOW, true, |_| None));
        assert_eq!(told, Err(TOO_LONG.to_owned()));
        assert_eq!(Desk::closed().ask(VolumesRequest::List), Err(NOT_HERE.to_owned()));
    }

    #[test]
    fn nobody_is_kept_for_ever() {
        let (desk, mut inbox) = desk(|| {});
        let open = desk.0.as_ref().unwrap();
        let (answer, _gone) = sync_channel(1);
        open.calls.try_send(Call { request: VolumesRequest::List, answer }).unwrap();
        open.rung.store(true, Ordering::Release);
        inbox.take(NOW, true, |_| None);
        assert_eq!(inbox.next_due(), Some(NOW + PATIENCE));
        inbox.take(NOW + PATIENCE, true, |_| None);
        assert!(inbox.waiting.is_empty());
    }
}
