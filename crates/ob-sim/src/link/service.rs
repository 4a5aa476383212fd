//! The service behind the rings: it gives every request back after checking it, with a payload in the message or by bulk.
//!
//! ```text
//!   a request by bulk:  wanted ── read of the host's area ──▶ here ── checked, in order ── write to the card's area ──▶
//!                          ▲ failed │                          ▲ failed │                                            │
//!                          └────────┘                          └────────┘                     answered, in order ◀───┘
//! ```

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use ob_core::{AttachmentId, Incarnation};
use ob_link::{CardService, GroupKey};
use ob_memory::{Pool, Source};
use ob_ring::{Batch, Bulk, BulkDone, CardSender, Message};
use ob_wire_link::ring::Shape;

use super::host::{BULK_SERVICE, SLOT_LEN, slot_of};
use super::ledger::{Hop, Ledger, Life, Name};

/// Requests are checked and given back.
pub(super) struct Echo {
    incarnation: Incarnation,
    ledger: Rc<RefCell<Ledger>>,
    waiting: BTreeMap<GroupKey, VecDeque<Message>>,
    bulk: BTreeMap<GroupKey, VecDeque<Job>>,
    /// Attachments whose transfers may fail alone: there an answer waits until its bytes are known to have arrived. On
    /// the others it goes out right behind them.
    may_fail: Vec<AttachmentId>,
    pool: Pool,
    tag: u64,
}

/// A request whose payload goes by bulk.
struct Job {
    name: Name,
    tag: u64,
    state: State,
}

enum State {
    Wanted,
    Reading,
    /// The bytes, and whether they were checked already.
    Here(Source, bool),
    Writing,
    Written,
}

impl Echo {
    pub(super) fn new(incarnation: Incarnation, ledger: Rc<RefCell<Ledger>>) -> Self {
        Self {
            incarnation,
            ledger,
            waiting: BTreeMap::new(),
            bulk: BTreeMap::new(),
            may_fail: Vec::new(),
            pool: Pool::new(SLOT_LEN as usize, 256),
            tag: 0,
        }
    }

    pub(super) fn ledger(&self) -> &RefCell<Ledger> {
        &self.ledger
    }

    /// Transfers of this attachment may fail alone.
    pub(super) fn expect_failures(&mut self, attachment: AttachmentId) {
        self.may_fail.push(attachment);
    }

    fn life(&self, attachment: AttachmentId) -> Life {
        Life { card: self.incarnation, attachment }
    }

    fn move_bulk(&mut self, key: GroupKey, responses: &mut CardSender) {
        let Some(mut jobs) = self.bulk.remove(&key) else { return };
        for job in jobs.iter_mut().filter(|job| matches!(job.state, State::Wanted)) {
            if responses.transfer_room() == 0 || !self.read(job, responses) {
                break;
            }
        }
        let waits = self.may_fail.contains(&key.attachment);
        while let Some(job) = jobs.front_mut() {
            if !self.answer(key, job, waits, responses) {
                break;
            }
            jobs.pop_front();
        }
        if waits {
            // Behind the first, bytes may be on their way already; only answers keep their order.
            for job in &mut jobs {
                if !self.check(key, job) || !self.write(job, responses) {
                    break;
                }
            }
        }
        self.bulk.insert(key, jobs);
    }

    fn read(&mut self, job: &mut Job, responses: &mut CardSender) -> bool {
        let Some(mut block) = self.pool.take() else { return false };
        let into = block.split_to(job.name.payload().len());
        let at = slot_of(&job.name);
        job.tag = self.next_tag();
        let taken = responses.transfer(job.tag, Bulk::Read { at, into }).is_ok();
        if taken {
            job.state = State::Reading;
        }
        taken
    }

    /// The bytes are what their sender said, and its next. `false` while they are not here.
    fn check(&self, key: GroupKey, job: &mut Job) -> bool {
        match &mut job.state {
            State::Here(bytes, checked) => {
                if !std::mem::replace(checked, true) {
                    let life = self.life(key.attachment);
                    self.ledger.borrow_mut().arrived(life, Hop::Request, &job.name.encode(), bytes);
                }
                true
            }
            State::Writing | State::Written => true,
            State::Wanted | State::Reading => false,
        }
    }

    /// Sends the bytes back, if that is what is next. `false` if there is no room for it.
    fn write(&mut self, job: &mut Job, responses: &mut CardSender) -> bool {
        if !matches!(job.state, State::Here(..)) {
            return true;
        }
        if responses.transfer_room() == 0 {
            return false;
        }
        let State::Here(from, _) = std::mem::replace(&mut job.state, State::Writing) else { return false };
        job.tag = self.next_tag();
        let taken = responses.transfer(job.tag, Bulk::Write { from, at: slot_of(&job.name) });
        if let Err(refused) = taken {
            self.ledger.borrow_mut().complain(format!("{:?}: {}", job.name, refused.reason));
            return false;
        }
        true
    }

    /// Answers the oldest request. `false` if that has to wait.
    fn answer(&mut self, key: GroupKey, job: &mut Job, waits: bool, responses: &mut CardSender) -> bool {
        if !self.check(key, job) {
            return false;
        }
        if waits {
            return self.write(job, responses)
                && matches!(job.state, State::Written)
                && responses.push(&job.name.encode()).is_ok();
        }
        if responses.transfer_room() == 0 {
            return false;
        }
        let shape = Shape { inline_len: Name::LEN as u16, payload: None };
        let Ok(reservation) = responses.reserve(shape) else { return false };
        self.write(job, responses);
        responses.commit(reservation, &job.name.encode(), 0);
        true
    }

    fn next_tag(&mut self) -> u64 {
        self.tag += 1;
        self.tag
    }
}

impl CardService for Echo {
    fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String> {
        if service == BULK_SERVICE {
            self.bulk.insert(key, VecDeque::new());
        } else {
            self.waiting.insert(key, VecDeque::new());
        }
        Ok(())
    }

    fn requests(&mut self, key: GroupKey, mut batch: Batch, responses: &mut CardSender) {
        let life = self.life(key.attachment);
        while let Some(message) = batch.take_next() {
            if let (Some(jobs), Some(name)) = (self.bulk.get_mut(&key), Name::decode(&message.inline)) {
                jobs.push_back(Job { name, tag: 0, state: State::Wanted });
                continue;
            }
            let payload = message.payload.as_deref().unwrap_or_default();
            self.ledger.borrow_mut().arrived(life, Hop::Request, &message.inline, payload);
            self.waiting.entry(key).or_default().push_back(message);
        }
        self.responses(key, responses);
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        self.move_bulk(key, responses);
        let Some(waiting) = self.waiting.get_mut(&key) else { return };
        while let Some(message) = waiting.front() {
            let len = message.payload.as_ref().map_or(0, |payload| payload.len() as u32);
            let shape = Shape { inline_len: message.inline.len() as u16, payload: Some((len, 512)) };
            let Ok(mut reservation) = responses.reserve(shape) else { return };
            if let (Some(to), Some(from)) = (&mut reservation.payload, &message.payload) {
                to.copy_from_slice(from);
            }
            responses.commit(reservation, &message.inline, len);
            waiting.pop_front();
        }
    }

    fn transferred(&mut self, key: GroupKey, done: BulkDone, _: &mut CardSender) {
        let is_ok = done.result.is_ok();
        self.ledger.borrow_mut().transferred(is_ok);
        let jobs = self.bulk.entry(key).or_default();
        let Some(job) = jobs.iter_mut().find(|job| job.tag == done.tag) else {
            // Answered before it was known to be over: then it must not fail.
            if !is_ok {
                self.ledger.borrow_mut().complain(format!("{:?}: what was announced failed", done.result));
            }
            return;
        };
        job.state = match (done.bulk, is_ok) {
            (Bulk::Read { into, .. } | Bulk::ReadBack { into, .. }, true) => State::Here(into.into(), false),
            (Bulk::Read { .. } | Bulk::ReadBack { .. }, false) => State::Wanted,
            (Bulk::Write { .. }, true) => State::Written,
            (Bulk::Write { from, .. }, false) => State::Here(from, true),
        };
    }

    fn closed(&mut self, key: GroupKey) {
        self.waiting.remove(&key);
        self.bulk.remove(&key);
    }

    fn channel(&mut self, attachment: AttachmentId, message: &[u8]) {
        let life = self.life(attachment);
        self.ledger.borrow_mut().arrived(life, Hop::ChannelToCard, message, &[]);
    }
}
