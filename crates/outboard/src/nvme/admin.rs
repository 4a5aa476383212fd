//! What administrators ask about namespaces, on its way to the thread that serves them.
//!
//! ```text
//!   outboard namespace … ──▶ the control socket's thread ──▶ AdminOutbox ──▶ AdminInbox ──▶ the Shard that it is about
//!                        ◀─────────────────────────── answer ◀─┘
//! ```

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long the thread that asks waits for the one that serves.
const PATIENCE: Duration = Duration::from_secs(30);
/// Requests that wait for the reactor.
const WAITING_MAX: usize = 16;

/// What can be asked of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum AdminRequest {
    /// Tell the namespaces.
    ListNamespaces,
    /// Serve another one.
    AddNamespace {
        /// Its id; if none is given, one that is used again as late as can be.
        nsid: Option<u32>,
        /// A path, or `memory`; a file in the card's directory if none is given.
        device: Option<PathBuf>,
        /// Bytes of a file or memory that is made.
        size: u64,
    },
    /// Serve one no more; its device stays.
    RemoveNamespace {
        /// Which.
        nsid: u32,
    },
    /// Make one larger or smaller.
    ResizeNamespace {
        /// Which.
        nsid: u32,
        /// Its new length in bytes.
        size: u64,
    },
}

/// A request, and whose namespaces it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdminMessage {
    /// The subsystem's name. Without one, all of them are listed, and the first is changed.
    #[serde(default)]
    pub subsystem: Option<String>,
    /// What is asked.
    pub request: AdminRequest,
}

/// A namespace, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceFacts {
    /// The name of its subsystem.
    pub subsystem: String,
    /// Its id.
    pub nsid: u32,
    /// Its UUID.
    pub uuid: String,
    /// What it lies on.
    pub device: String,
    /// Bytes.
    pub size: u64,
    /// Bytes of a block.
    pub block_len: u32,
    /// Why it is not served, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_served: Option<String>,
}

/// What a card answers: the namespaces as they are then, or why nothing was done.
pub type AdminAnswer = Result<Vec<NamespaceFacts>, String>;

/// A request, and where its answer goes.
pub(crate) struct AdminCall {
    pub(crate) message: AdminMessage,
    answer: SyncSender<AdminAnswer>,
}

impl AdminCall {
    pub(crate) fn answer(self, answer: AdminAnswer) {
        // Whoever asked may have gone meanwhile.
        let _ = self.answer.send(answer);
    }
}

/// Where requests for one reactor thread go in.
pub(crate) struct AdminOutbox {
    calls: SyncSender<AdminCall>,
    rung: Arc<AtomicBool>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl AdminOutbox {
    /// Asks the thread, and waits for its answer.
    pub(crate) fn ask(&self, message: AdminMessage) -> AdminAnswer {
        let (answer, answered) = sync_channel(1);
        if self.calls.send(AdminCall { message, answer }).is_err() {
            return Err(ENDING.to_owned());
        }
        self.rung.store(true, Ordering::Release);
        (self.wake)();
        answered.recv_timeout(PATIENCE).unwrap_or_else(|error| Err(unanswered(error, PATIENCE)))
    }
}

/// What is told where the thread that was asked is gone.
const ENDING: &str = "the card is shutting down\n\
     hint: nothing more is done; ask again when it runs, which `outboard status` tells";

/// Why there is no answer.
fn unanswered(error: RecvTimeoutError, waited: Duration) -> String {
    match error {
        RecvTimeoutError::Disconnected => ENDING.to_owned(),
        RecvTimeoutError::Timeout => format!(
            "the card has not done it within {} seconds, and may do it yet\n\
             hint: `outboard namespace list` shows whether it has; the card's log tells what it waits for",
            waited.as_secs()
        ),
    }
}

/// What is told where too many wait for one that does not end.
const CROWDED: &str = "too many changes wait for one that is under way\n\
     hint: the card's log tells what that one waits for; `outboard namespace list` shows what there is";

/// Where the thread takes them out.
pub(crate) struct AdminInbox {
    calls: Receiver<AdminCall>,
    /// Changes that wait for one that is under way.
    line: VecDeque<AdminCall>,
    rung: Arc<AtomicBool>,
}

impl AdminInbox {
    /// The next request, if there is one. While a change is under way, others stand in line: it may take as long as a device does, and
    /// whoever only looks is not to wait for it.
    pub(crate) fn next(&mut self, is_changing: bool) -> Option<AdminCall> {
        if !is_changing && let Some(call) = self.line.pop_front() {
            return Some(call);
        }
        loop {
            let call = self.receive()?;
            if !is_changing || call.message.request == AdminRequest::ListNamespaces {
                return Some(call);
            }
            if self.line.len() < WAITING_MAX {
                self.line.push_back(call);
            } else {
                call.answer(Err(CROWDED.to_owned()));
            }
        }
    }

    fn receive(&self) -> Option<AdminCall> {
        if !self.rung.load(Ordering::Acquire) {
            return None;
        }
        let call = self.calls.try_recv().ok();
        if call.is_none() {
            self.rung.store(false, Ordering::Release);
            // One that came in between has set the flag before this, or rings after it.
            return self.calls.try_recv().ok();
        }
        call
    }
}

/// Both ends; `wake` is called when there is something to take.
pub(crate) fn mailbox(wake: impl Fn() + Send + Sync + 'static) -> (AdminOutbox, AdminInbox) {
    let (sender, calls) = sync_channel(WAITING_MAX);
    let rung = Arc::new(AtomicBool::new(false));
    let outbox = AdminOutbox { calls: sender, rung: Arc::clone(&rung), wake: Box::new(wake) };
    (outbox, AdminInbox { calls, line: VecDeque::new(), rung })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> NamespaceFacts {
        NamespaceFacts {
            subsystem: "nqn.2026-01.example:a".to_owned(),
            nsid: 3,
            uuid: "0".repeat(32),
            device: "memory".to_owned(),
            size: 4096,
            block_len: 512,
            not_served: None,
        }
    }

    fn message(request: AdminRequest) -> AdminMessage {
        AdminMessage { subsystem: None, request }
    }

    #[test]
    fn requests_reach_the_loop_and_answers_come_back() {
        let (rang, rings) = sync_channel(16);
        let (outbox, mut inbox) = mailbox(move || _ = rang.send(()));
        assert!(inbox.next(false).is_none());
        let removal = message(AdminRequest::RemoveNamespace { nsid: 3 });
        let removal_too = removal.clone();
        let asking = std::thread::spawn(move || {
            (outbox.ask(removal_too), outbox.ask(message(AdminRequest::ListNamespaces)))
        });
        rings.recv().unwrap();
        let call = inbox.next(false).unwrap();
        assert_eq!(call.message, removal);
        call.answer(Ok(vec![facts()]));
        rings.recv().unwrap();
        inbox.next(false).unwrap().answer(Err("no".to_owned()));
        assert_eq!(asking.join().unwrap(), (Ok(vec![facts()]), Err("no".to_owned())));
    }

    #[test]
    fn who_only_looks_does_not_wait_for_a_change() {
        let (outbox, mut inbox) = mailbox(|| ());
        let post = |request| {
            let (answer, answered) = sync_channel(1);
            outbox.calls.send(AdminCall { message: message(request), answer }).unwrap();
            outbox.rung.store(true, Ordering::Release);
            answered
        };
        let removal = |nsid| AdminRequest::RemoveNamespace { nsid };
        let mut asked = Vec::new();
        for nsid in 0..=WAITING_MAX as u32 {
            asked.push(post(removal(nsid)));
            assert!(inbox.next(true).is_none(), "one change at a time");
        }
        let _look = post(AdminRequest::ListNamespaces);
        assert_eq!(inbox.next(true).unwrap().message.request, AdminRequest::ListNamespaces);
        assert_eq!(asked.pop().unwrap().try_recv().unwrap(), Err(CROWDED.to_owned()));
        let _last = post(removal(99));
        let rest: Vec<_> =
            std::iter::from_fn(|| inbox.next(false)).map(|call| call.message.request).collect();
        let expected: Vec<_> = (0..WAITING_MAX as u32).chain([99]).map(removal).collect();
        assert_eq!(rest, expected, "in the order in which they came");
    }

    #[test]
    fn who_gets_no_answer_is_told_what_that_means() {
        let list = move || message(AdminRequest::ListNamespaces);
        // A card that ends with the request taken, and one that has ended before.
        let (rang, rings) = sync_channel(16);
        let (outbox, inbox) = mailbox(move || _ = rang.send(()));
        let asking = std::thread::spawn(move || (outbox.ask(list()), outbox.ask(list())));
        rings.recv().unwrap();
        drop(inbox);
        assert_eq!(asking.join().unwrap(), (Err(ENDING.to_owned()), Err(ENDING.to_owned())));
        let late = unanswered(RecvTimeoutError::Timeout, PATIENCE);
        assert!(late.contains("30 seconds") && late.contains("\nhint: `outboard namespace list`"), "{late}");
        assert!(ENDING.contains("\nhint: "));
    }
}
