//! Commands of an NVMe target as messages of a port.
//!
//! ```text
//!   Command ─┬─ a write: its data ───────────────┐
//!            ├─ a read: lend ─▶ Lent ────────────┼─▶ ready ─ next ─▶ with the port ─ answer ─▶ answers ─▶ foreign_done
//!            ├─ a trim: a message each range ────┘     │                 │
//!            └─ what no volume does: refused           │                 └─ given up: gone ─▶ the port ends its plan
//!                                                      └─ given up, or too long here: answered at once
//! ```
//!
//! The payload of a write is read where the target has received it, and what is read is decoded into the buffer that the target has
//! lent: both stay counted for their connection until the command is answered.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ob_core::Instant;
use ob_memory::Slice;
use ob_nvme::driver::ForeignService;
use ob_nvme::target::control::QueueIdentity;
use ob_nvme::target::{Answer, ForeignCommand, ForeignEvent, ForeignKey, Loan, Target, Ticket};
use ob_split::card::{Arrived, Front, FrontAnswer, FrontKey};
use ob_split::wire::HEADER_LEN;
use ob_wire_nvme::command::{DataPointer, IoOpcode};
use ob_wire_nvme::io::{BlockCommand, BlockRange, DatasetManagement};
use ob_wire_nvme::{NamespaceId, Status, SubmissionEntry};
use zerocopy::{FromBytes, IntoBytes};

/// Events that are taken in one turn; sockets and plans have theirs in between.
const EVENTS_A_TURN: usize = 256;
/// Blocks of the longest message of a trim: what Write Zeroes can say.
const TRIM_BLOCKS_MAX: u32 = 1 << 16;
/// Messages of one trim that are with the port at once: another command is not to wait for the whole of a disk.
const TRIMS_AT_ONCE: u32 = 64;
/// Writes and trims that are with the port at once, of the 1024 messages that a host has at a time: when they wait for chunk servers,
/// reads go on.
const CHANGES_AT_ONCE: usize = 768;

/// Commands that are answered and still in line, before the line is cleared of them.
const STALE_MAX: usize = 64;

/// What a front has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeFrontCounts {
    /// Commands taken from the target.
    pub commands: u64,
    /// Messages given to the port.
    pub messages: u64,
    /// Commands that nobody took in time.
    pub timed_out: u64,
}

/// Where messages of volumes come from: the service behind a target, and the front of a port.
///
/// Both ends are on one thread: it is a [`Front`] in an `Rc<RefCell<_>>`, and so is the service.
pub struct VolumeFront {
    /// How long a command waits here for a host that takes it.
    hold: Duration,
    /// By the slot of its key.
    commands: Vec<Option<Command>>,
    /// Commands with messages for the port, the oldest first. One that is answered meanwhile is passed over.
    ready: VecDeque<ForeignKey>,
    /// How many of these are answered already.
    stale: usize,
    messages: Messages,
    answers: VecDeque<(ForeignKey, Result<Answer, Status>)>,
    gone: VecDeque<FrontKey>,
    counts: VolumeFrontCounts,
    /// Namespaces that initiators see, by their numbers, and what the host calls each; nothing before any was said.
    namespaces: Option<BTreeMap<u32, NamespaceId>>,
    /// Writes and trims that wait for others, the oldest first.
    put_off: VecDeque<ForeignKey>,
    /// Messages with the port that change something.
    changes: usize,
}

/// A command of the target.
struct Command {
    key: ForeignKey,
    entry: SubmissionEntry,
    from: u32,
    since: Instant,
    data: Payload,
    /// What the answer's memory is counted with.
    answer: Option<Ticket>,
    /// Messages that are with the port, and one of them.
    away: u32,
    first: Option<u32>,
    /// What of it went wrong first.
    status: Status,
    is_given_up: bool,
}

/// What a command has for the port.
enum Payload {
    /// Its buffer was asked for.
    Unlent,
    /// One message.
    Whole { payload: Option<Slice>, ticket: Option<Ticket>, answer: Option<Slice> },
    /// A message each range, and of a long range several.
    Ranges { ranges: Loan, trim: DatasetManagement, place: TrimPlace },
    /// Nothing any more. The payload is counted until the command is answered.
    Given { _ticket: Option<Ticket> },
}

/// Messages that are with the port, by number.
#[derive(Default)]
struct Messages {
    all: Vec<Message>,
    free: Vec<u32>,
}

struct Message {
    generation: u32,
    command: Option<ForeignKey>,
    /// Another one of the same command.
    next: Option<u32>,
    is_change: bool,
}

impl Messages {
    fn add(&mut self, command: ForeignKey, is_change: bool, first: &mut Option<u32>) -> FrontKey {
        let index = self.free.pop().unwrap_or_else(|| {
            self.all.push(Message { generation: 0, command: None, next: None, is_change });
            self.all.len() as u32 - 1
        });
        let Some(message) = self.all.get_mut(index as usize) else { return FrontKey(u64::MAX) };
        message.generation = message.generation.wrapping_add(1);
        (message.command, message.is_change) = (Some(command), is_change);
        message.next = first.replace(index);
        FrontKey(u64::from(message.generation) << 32 | u64::from(index))
    }

    /// The command of a message that is over, and whether it was to change something.
    fn take(&mut self, key: FrontKey) -> Option<(ForeignKey, bool)> {
        let (index, generation) = (key.0 as u32, (key.0 >> 32) as u32);
        let message = self.all.get_mut(index as usize).filter(|message| message.generation == generation)?;
        let command = message.command.take()?;
        let is_change = message.is_change;
        self.free.push(index);
        Some((command, is_change))
    }

    /// Those of a command, of which this is one.
    fn of(&self, first: Option<u32>) -> impl Iterator<Item = FrontKey> {
        let get = |index: u32| Some((index, self.all.get(index as usize)?));
        let next = move |(_, message): &(u32, &Message)| message.next.and_then(get);
        let key = |(index, message): (u32, &Message)| {
            FrontKey(u64::from(message.generation) << 32 | u64::from(index))
        };
        std::iter::successors(first.and_then(get), next).map(key)
    }

    /// One is not among those of its command any more; there are few.
    fn unlink(&mut self, first: &mut Option<u32>, index: u32) {
        let next = self.all.get_mut(index as usize).and_then(|message| message.next.take());
        if *first == Some(index) {
            *first = next;
            return;
        }
        let mut at = *first;
        while let Some(message) = at.and_then(|at| self.all.get_mut(at as usize)) {
            if message.next == Some(index) {
                message.next = next;
                return;
            }
            at = message.next;
        }
    }
}

impl VolumeFront {
    /// A front that holds commands so long for a host that takes them.
    #[must_use]
    pub fn new(hold: Duration) -> Self {
        Self {
            hold,
            commands: Vec::new(),
            ready: VecDeque::new(),
            stale: 0,
            messages: Messages::default(),
            answers: VecDeque::new(),
            gone: VecDeque::new(),
            counts: VolumeFrontCounts::default(),
            namespaces: None,
            put_off: VecDeque::new(),
            changes: 0,
        }
    }

    /// Initiators know a disk by this number from now on, and the host by that one. A command that comes for a number that is none's is of
    /// a disk that is not there any more, and never reaches another.
    pub fn set_namespace(&mut self, shown: NamespaceId, known: NamespaceId) {
        self.namespaces.get_or_insert_default().insert(shown.0, known);
    }

    /// A disk is not there any more: what was sent for it is given up, as if its host had, and what comes for it is refused.
    pub fn remove_namespace(&mut self, shown: NamespaceId) {
        let known = self.namespaces.get_or_insert_default().remove(&shown.0);
        let of = |command: &&Command| known.is_some_and(|known| command.entry.namespace() == known);
        let keys: Vec<ForeignKey> =
            self.commands.iter().flatten().filter(of).map(|command| command.key).collect();
        for key in keys {
            self.give_up(key);
        }
    }

    /// What it has done.
    #[must_use]
    pub fn counts(&self) -> VolumeFrontCounts {
        self.counts
    }

    /// Whether no command is here or with the port.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.commands.iter().all(Option::is_none) && self.answers.is_empty()
    }

    /// Whether the target is to be answered.
    #[must_use]
    pub fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    fn command(&mut self, key: ForeignKey) -> Option<&mut Command> {
        self.commands.get_mut(key.slot())?.as_mut().filter(|command| command.key == key)
    }

    fn take_event(&mut self, now: Instant, target: &mut Target, event: ForeignEvent) {
        match event {
            ForeignEvent::Command(command) => self.take_command(now, target, command),
            ForeignEvent::Lent { key, loans } => {
                let [loan, ..] = loans;
                self.lent(key, loan);
            }
            ForeignEvent::Aborted(key) | ForeignEvent::Ended(key) => self.give_up(key),
            // Nothing is kept for a controller, and nothing is read by the target.
            ForeignEvent::Read { .. } | ForeignEvent::ControllerEnded(_) => {}
        }
    }

    fn take_command(&mut self, now: Instant, target: &mut Target, command: ForeignCommand) {
        let ForeignCommand { key, queue, mut entry, data, len, .. } = command;
        self.counts.commands += 1;
        if let Some(namespaces) = &self.namespaces
            && entry.namespace() != NamespaceId::ALL
        {
            let Some(known) = namespaces.get(&entry.namespace().0) else {
                return target.foreign_done(key, Err(Status::INVALID_NAMESPACE.with_do_not_retry()), 0);
            };
            entry.namespace = known.0.into();
        }
        let invalid = Status::INVALID_OPCODE.with_do_not_retry();
        let (payload, is_ready) = match IoOpcode::try_from(entry.opcode) {
            Ok(IoOpcode::Read) => {
                if target.lend(key, &[usize::try_from(len).unwrap_or(usize::MAX)]).is_err() {
                    // The longest transfer is one buffer, so it is a mistake, or its connection is gone.
                    return target.foreign_done(key, Err(Status::INTERNAL_ERROR), 0);
                }
                (Payload::Unlent, false)
            }
            Ok(IoOpcode::Write) => {
                let (payload, ticket) = data.map(Loan::check_out).unzip();
                (Payload::Whole { payload, ticket, answer: None }, true)
            }
            Ok(IoOpcode::WriteZeroes | IoOpcode::Flush) => {
                (Payload::Whole { payload: None, ticket: None, answer: None }, true)
            }
            Ok(IoOpcode::DatasetManagement) => match (DatasetManagement::parse(&entry), data) {
                (trim, Some(ranges)) if trim.deallocate => {
                    (Payload::Ranges { ranges, trim, place: TrimPlace::default() }, true)
                }
                // It only tells how data will be used.
                _ => return target.foreign_done(key, Ok(Answer::Nothing), 0),
            },
            _ => return target.foreign_done(key, Err(invalid), 0),
        };
        let held = Command {
            key,
            entry,
            from: number_of(queue),
            since: now,
            data: payload,
            answer: None,
            away: 0,
            first: None,
            status: Status::SUCCESS,
            is_given_up: false,
        };
        if self.commands.len() <= key.slot() {
            self.commands.resize_with(key.slot() + 1, || None);
        }
        if let Some(slot) = self.commands.get_mut(key.slot()) {
            *slot = Some(held);
        }
        if is_ready {
            self.ready.push_back(key);
        }
    }

    /// The answer's buffer is there: the command may go.
    fn lent(&mut self, key: ForeignKey, loan: Option<Loan>) {
        let Some(command) = self.command(key) else { return };
        let (answer, ticket) = loan.map(Loan::check_out).unzip();
        command.answer = ticket;
        command.data = Payload::Whole { payload: None, ticket: None, answer };
        self.ready.push_back(key);
    }

    /// Nobody waits for it any longer: it is answered now if the port does not have it, else as soon as that gives it back.
    fn give_up(&mut self, key: ForeignKey) {
        let Some(command) = self.command(key) else { return };
        let was_given_up = std::mem::replace(&mut command.is_given_up, true);
        if command.away == 0 {
            self.finish(key, Err(Status::ABORT_REQUESTED));
        } else if !was_given_up {
            let first = command.first;
            self.gone.extend(self.messages.of(first));
        }
    }

    /// Answers a command, which is then forgotten here.
    fn finish(&mut self, key: ForeignKey, result: Result<Answer, Status>) {
        let Some(slot) = self.commands.get_mut(key.slot()) else { return };
        let Some(command) = slot.take_if(|command| command.key == key) else { return };
        if !matches!(command.data, Payload::Unlent | Payload::Given { .. }) {
            self.stale += 1;
            if self.stale > STALE_MAX && self.stale > (self.ready.len() + self.put_off.len()) / 2 {
                let commands = &self.commands;
                self.ready.retain(|key| is_there(commands, *key));
                self.put_off.retain(|key| is_there(commands, *key));
                self.stale = 0;
            }
        }
        self.answers.push_back((key, result));
    }

    /// The command that waits here longest, and until when. What is partly with the port was taken by somebody.
    fn next_late(&self) -> Option<(ForeignKey, Instant)> {
        let late = |queue: &VecDeque<ForeignKey>| {
            queue.iter().find_map(|key| {
                let command =
                    self.commands.get(key.slot())?.as_ref().filter(|command| command.key == *key)?;
                (command.away == 0).then_some((*key, command.since + self.hold))
            })
        };
        let both = [late(&self.ready), late(&self.put_off)];
        both.into_iter().flatten().min_by_key(|(_, due)| *due)
    }

    /// Answers those that no host has taken in time, as many as a turn may.
    fn time_out(&mut self, now: Instant) -> bool {
        let mut did = false;
        for _ in 0..EVENTS_A_TURN {
            for line in [&mut self.ready, &mut self.put_off] {
                while line.pop_front_if(|key| !is_there(&self.commands, *key)).is_some() {
                    self.stale = self.stale.saturating_sub(1);
                }
            }
            let Some((key, _)) = self.next_late().filter(|(_, due)| *due <= now) else { break };
            self.counts.timed_out += 1;
            self.finish(key, Err(Status::NAMESPACE_NOT_READY));
            did = true;
        }
        did
    }

    fn answer_all(&mut self, target: &mut Target) -> bool {
        let did = !self.answers.is_empty();
        while let Some((key, result)) = self.answers.pop_front() {
            target.foreign_done(key, result, 0);
        }
        did
    }

    /// The next message of the command in front, and whether there may be more of it.
    fn next_of(&mut self, key: ForeignKey) -> NextMessage {
        let Some(command) = self.commands.get_mut(key.slot()).and_then(Option::as_mut) else {
            return NextMessage::Over;
        };
        if command.key != key {
            return NextMessage::Over;
        }
        let (entry, from) = (command.entry, (command.from, command.since));
        let is_wanted = !command.is_given_up && command.status.is_success();
        match &mut command.data {
            Payload::Unlent | Payload::Given { .. } => NextMessage::Over,
            // The rest of a trim does not go: it is answered when what is away is over.
            Payload::Ranges { .. } if !is_wanted => NextMessage::Over,
            Payload::Whole { payload, ticket, answer } => {
                let (payload, answer, ticket) = (payload.take(), answer.take(), ticket.take());
                command.data = Payload::Given { _ticket: ticket };
                command.away = 1;
                let name = self.messages.add(key, is_change(&entry), &mut command.first);
                NextMessage::Last(arrived(name, from, &entry, payload, answer))
            }
            Payload::Ranges { ranges, trim, place } => {
                if command.away >= TRIMS_AT_ONCE {
                    return NextMessage::Later;
                }
                let Some(part) = place.next(ranges, trim) else {
                    command.data = Payload::Given { _ticket: None };
                    return NextMessage::Empty;
                };
                let is_last = place.clone().next(ranges, trim).is_none();
                command.away += 1;
                if is_last {
                    command.data = Payload::Given { _ticket: None };
                }
                let zeroes = BlockCommand { deallocate: true, ..part };
                let entry = zeroes.encode(IoOpcode::WriteZeroes, entry.command(), DataPointer::None);
                let name = self.messages.add(key, is_change(&entry), &mut command.first);
                let arrived = arrived(name, from, &entry, None, None);
                if is_last { NextMessage::Last(arrived) } else { NextMessage::One(arrived) }
            }
        }
    }

    /// A message is over, and how; the command is answered with the last of them.
    fn message_over(&mut self, key: ForeignKey, name: FrontKey, answer: FrontAnswer) {
        let command = self.commands.get_mut(key.slot()).and_then(Option::as_mut);
        let Some(command) = command.filter(|command| command.key == key) else { return };
        self.messages.unlink(&mut command.first, name.0 as u32);
        command.away = command.away.saturating_sub(1);
        let result = match answer {
            FrontAnswer::Data(slice) => match command.answer.take() {
                Some(ticket) => Ok(Answer::Loan(ticket.loan(slice))),
                // There is no such buffer: the port answers a read with what came with it.
                None => Err(Status::INTERNAL_ERROR),
            },
            FrontAnswer::Shared(shared) => Ok(Answer::Shared(shared)),
            FrontAnswer::Status(0) if command.answer.is_some() => Err(Status::INTERNAL_ERROR),
            FrontAnswer::Status(0) => Ok(Answer::Nothing),
            FrontAnswer::Status(status) => Err(Status::from_field(status << 1)),
            FrontAnswer::Nobody => Err(Status::NAMESPACE_NOT_READY),
        };
        if let Err(status) = result
            && command.status.is_success()
        {
            command.status = status;
        }
        let is_over = command.away == 0 && matches!(command.data, Payload::Given { .. });
        let is_cut = command.away == 0 && (command.is_given_up || !command.status.is_success());
        let status = command.status;
        match (is_over, is_cut) {
            (true, _) if status.is_success() => self.finish(key, result),
            // What has not gone out yet of a trim that has failed, or is not wanted, does not go.
            (true, _) | (false, true) => {
                let aborted = if status.is_success() { Status::ABORT_REQUESTED } else { status };
                self.finish(key, Err(aborted));
            }
            (false, false) => {}
        }
    }
}

/// What the command in front has for the port.
enum NextMessage {
    /// One message, and it may have more.
    One(Arrived),
    /// The last one.
    Last(Arrived),
    /// Nothing before some of it is over.
    Later,
    /// It has nothing any more.
    Over,
    /// It never had anything: it is done.
    Empty,
}

/// Whether a command is not answered yet.
fn is_there(commands: &[Option<Command>], key: ForeignKey) -> bool {
    commands.get(key.slot()).and_then(Option::as_ref).is_some_and(|command| command.key == key)
}

fn arrived(
    key: FrontKey,
    (from, since): (u32, Instant),
    entry: &SubmissionEntry,
    payload: Option<Slice>,
    answer: Option<Slice>,
) -> Arrived {
    let mut header = [0; HEADER_LEN];
    header.copy_from_slice(entry.as_bytes());
    Arrived { key, from, since, header, payload, answer }
}

/// How far a trim has come.
#[derive(Clone, Default)]
struct TrimPlace {
    range: usize,
    /// Blocks of that range.
    done: u32,
}

impl TrimPlace {
    /// The next blocks that it clears.
    fn next(&mut self, ranges: &[u8], trim: &DatasetManagement) -> Option<BlockCommand> {
        while self.range < trim.ranges {
            let range = BlockRange::parse(ranges, self.range)?;
            let blocks = range.blocks.saturating_sub(self.done).min(TRIM_BLOCKS_MAX);
            if blocks == 0 {
                *self = Self { range: self.range + 1, done: 0 };
                continue;
            }
            // What is beyond all numbers is beyond the disk: the host says so.
            let start = range.start.saturating_add(u64::from(self.done));
            self.done += blocks;
            return Some(BlockCommand::new(trim.namespace, start, blocks));
        }
        None
    }
}

/// A queue as a number: two that live at once may share one, which only people look at.
fn number_of(queue: QueueIdentity) -> u32 {
    u32::from(queue.queue.0)
}

/// Whether a command changes blocks.
fn is_change(entry: &SubmissionEntry) -> bool {
    matches!(
        IoOpcode::try_from(entry.opcode),
        Ok(IoOpcode::Write | IoOpcode::WriteZeroes | IoOpcode::DatasetManagement)
    )
}

impl VolumeFront {
    fn note_message(&mut self, arrived: &Arrived) {
        self.counts.messages += 1;
        let entry = SubmissionEntry::ref_from_bytes(&arrived.header);
        self.changes += usize::from(entry.is_ok_and(is_change));
    }

    /// Those that change something and are in front wait, as long as so many others are with the port.
    fn put_changes_off(&mut self) {
        if self.changes < CHANGES_AT_ONCE {
            // As many as may go come before all others.
            let count = self.put_off.len().min(CHANGES_AT_ONCE - self.changes);
            self.ready.extend(self.put_off.drain(..count));
            self.ready.rotate_right(count);
            return;
        }
        while let Some(key) = self.ready.front().copied() {
            let command = self.commands.get(key.slot()).and_then(Option::as_ref);
            if command.is_none_or(|command| command.key != key || !is_change(&command.entry)) {
                break;
            }
            self.put_off.extend(self.ready.pop_front());
        }
    }
}

impl Front for VolumeFront {
    fn next(&mut self, _: Instant) -> Option<Arrived> {
        self.put_changes_off();
        let mut postponed = 0;
        while postponed < self.ready.len() {
            let key = self.ready.front().copied()?;
            match self.next_of(key) {
                NextMessage::One(arrived) => {
                    self.note_message(&arrived);
                    return Some(arrived);
                }
                NextMessage::Last(arrived) => {
                    self.ready.pop_front();
                    self.note_message(&arrived);
                    return Some(arrived);
                }
                NextMessage::Later => {
                    postponed += 1;
                    self.ready.rotate_left(1);
                }
                NextMessage::Over => {
                    self.ready.pop_front();
                    if !is_there(&self.commands, key) {
                        self.stale = self.stale.saturating_sub(1);
                    }
                }
                NextMessage::Empty => {
                    self.ready.pop_front();
                    self.finish(key, Ok(Answer::Nothing));
                }
            }
        }
        None
    }

    fn answer(&mut self, key: FrontKey, answer: FrontAnswer) {
        if let Some((command, is_change)) = self.messages.take(key) {
            self.changes = self.changes.saturating_sub(usize::from(is_change));
            self.message_over(command, key, answer);
        }
    }

    fn gone(&mut self) -> Option<FrontKey> {
        self.gone.pop_front()
    }
}

impl ForeignService for VolumeFront {
    fn turn(&mut self, now: Instant, target: &mut Target) -> bool {
        let mut did = self.answer_all(target);
        for _ in 0..EVENTS_A_TURN {
            let Some(event) = target.next_foreign() else { break };
            did = true;
            self.take_event(now, target, event);
        }
        did |= self.time_out(now);
        did | self.answer_all(target)
    }

    fn next_due(&self) -> Option<Instant> {
        if !self.answers.is_empty() {
            return Some(Instant::default());
        }
        self.next_late().map(|(_, due)| due)
    }
}
