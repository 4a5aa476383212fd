//! The file service behind the rings: requests in a group's ring become operations, answers go back.
//!
//! ```text
//!   Batch ─▶ Message ─▶ parse ─▶ a read: its place in the response ring is reserved first (DDS Figure 10)
//!                                a write: its payload goes to the device from where the DMA put it
//!                                anything else: answered in a place that is reserved when it is done
//! ```
//!
//! Whatever does not find room (in the engine, or in the response ring) stays in its batch: the mirror fills up, then the
//! request ring, and then the host is told to retry. Nothing is dropped.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use ob_core::{AttachmentId, Device, Instant, NodeId, NodeKind, Token};
use ob_memory::PAGE;
use ob_ring::{Batch, CardSender, CardService, GroupKey, Message, Reservation, ReserveError};
use ob_wire_link::files::{
    CARD_INFO_LEN, CardInfo, FILES_SERVICE, FileError, NodeInfo, Operation, RESPONSE_LEN, RequestHeader,
    ResponseHeader, SpaceInfo, VERSION, flag, rename_paths,
};
use ob_wire_link::ring::Shape;

use crate::engine::{CardFiles, Completion, FilesCounts, MetadataOp, Op, Outcome};
use crate::local::{Hub, LocalFiles};
use crate::observer::WriteObserver;

/// Requests of one group on their way at once.
const GROUP_REQUESTS_MAX: u32 = 512;
/// Answers of one group that wait for room in its ring.
const GROUP_ANSWERS_MAX: usize = 1024;
/// Bytes of lists of one group that are being made or wait for room in its ring; one more may be taken below that.
const GROUP_LISTS_LEN_MAX: usize = 2 << 20;
/// Bytes of the longest inline part of an answer.
const INLINE_MAX: usize = RESPONSE_LEN + CARD_INFO_LEN;
/// What a message needs besides its payload, at most: its headers, and padding to a page.
const OVERHEAD: u32 = 2 * PAGE as u32;

/// Files of one device, served to all groups that ask for them.
pub struct FilesService<D> {
    files: CardFiles,
    device: D,
    groups: BTreeMap<GroupKey, Group>,
    requests: Vec<Option<Pending>>,
    free: Vec<u32>,
    /// Where users within the card leave their requests, and how many of those are at the engine.
    hub: Rc<RefCell<Hub>>,
    local: usize,
    observer: Option<Box<dyn WriteObserver>>,
    /// Groups that are gone and whose requests are not over, by when they went: how many of each are left.
    gone: BTreeMap<u64, (GroupKey, u32)>,
    /// How many groups went.
    departures: u64,
    /// Hosts of which nothing begins for now.
    suspended: BTreeSet<AttachmentId>,
    /// The engine moved while one group was served, and others may have answers of it.
    moved: bool,
}

#[derive(Default)]
struct Group {
    greeted: bool,
    /// How many groups had gone when it was opened. What they had begun is over before anything of this one begins: it
    /// may be the next life of the same host, and writes to where the last one was writing.
    departures: u64,
    /// Groups of hosts that may have been dead then, and had requests at the engine: the same holds for them.
    after: Vec<GroupKey>,
    batches: VecDeque<Batch>,
    /// A request that found no room.
    held: Option<Message>,
    /// Reads that are done; their places in the ring are reserved.
    filled: Vec<(Reservation, ResponseHeader)>,
    /// Answers that have no place in the ring yet.
    answers: VecDeque<Answer>,
    /// The first of them found no room. No read may take what becomes free before it: a long list would wait for ever
    /// beside short reads.
    waits_for_room: bool,
    in_flight: u32,
    /// Bytes of lists in `answers`, and the most that lists in flight can have.
    lists_len: usize,
}

/// A request at the engine, by who sent it.
enum Pending {
    Group(GroupRequest),
    Local { user: u64, token: Token, space_of: Option<NodeId> },
}

struct GroupRequest {
    key: GroupKey,
    id: u64,
    reservation: Option<Reservation>,
    /// Bytes that the answer may have as its payload.
    list_len: usize,
}

struct Answer {
    header: ResponseHeader,
    /// What the operation adds to the header.
    more: More,
    payload: Option<Vec<u8>>,
}

enum More {
    Nothing,
    Server(CardInfo),
    Node(NodeInfo),
    Space(SpaceInfo),
}

impl Answer {
    fn new(id: u64, status: Result<(), FileError>) -> Self {
        let header = ResponseHeader { id, status, length: 0, value: 0 };
        Self { header, more: More::Nothing, payload: None }
    }

    fn payload_len(&self) -> usize {
        self.payload.as_ref().map_or(0, Vec::len)
    }

    /// The inline part, and its length.
    fn inline(&self) -> ([u8; INLINE_MAX], usize) {
        let mut bytes = [0; INLINE_MAX];
        bytes[..RESPONSE_LEN].copy_from_slice(&self.header.encode());
        let mut add = |more: &[u8]| {
            bytes[RESPONSE_LEN..RESPONSE_LEN + more.len()].copy_from_slice(more);
            RESPONSE_LEN + more.len()
        };
        let len = match &self.more {
            More::Nothing => RESPONSE_LEN,
            More::Server(info) => add(&info.encode()),
            More::Node(info) => add(&info.encode()),
            More::Space(info) => add(&info.encode()),
        };
        (bytes, len)
    }
}

/// What became of a request that was looked at.
enum Taken {
    /// It is on its way, or answered.
    Yes,
    /// There is no room for it now.
    NotNow(Message),
}

impl<D: Device> FilesService<D> {
    /// Serves a mounted device.
    pub fn new(files: CardFiles, device: D) -> Self {
        let (groups, requests, free) = (BTreeMap::new(), Vec::new(), Vec::new());
        let hub = Rc::default();
        Self {
            files,
            device,
            groups,
            requests,
            free,
            hub,
            local: 0,
            observer: None,
            gone: BTreeMap::new(),
            departures: 0,
            suspended: BTreeSet::new(),
            moved: false,
        }
    }

    /// An end for somebody within the card.
    pub fn local(&self) -> LocalFiles {
        LocalFiles::new(&self.hub, self.files.card_info())
    }

    /// Shows the writes and reads of hosts to somebody within the card, from now on.
    pub fn observe_writes(&mut self, observer: Box<dyn WriteObserver>) {
        self.observer = Some(observer);
    }

    /// The files, for those who want to know about them.
    pub fn files(&self) -> &CardFiles {
        &self.files
    }

    /// The device.
    pub fn device(&mut self) -> &mut D {
        &mut self.device
    }

    /// What was done so far.
    pub fn counts(&self) -> FilesCounts {
        self.files.counts()
    }

    /// Groups that are open.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Whether nothing is on its way: no request, no operation at the device.
    pub fn is_idle(&self) -> bool {
        // What may not begin is not waited for.
        let waits = |(key, group): (&GroupKey, &Group)| {
            !self.suspended.contains(&key.attachment)
                && (group.held.is_some()
                    || !group.batches.is_empty()
                    || !group.answers.is_empty()
                    || !group.filled.is_empty())
        };
        let nothing_asked = self.free.len() == self.requests.len() && self.hub.borrow().is_empty();
        self.files.is_idle() && nothing_asked && !self.groups.iter().any(waits)
    }

    /// Ends the service, and gives the device back.
    pub fn into_device(self) -> D {
        self.device
    }

    /// Whether nothing of a group may begin now: its host is not known to live, or it may be the next life of one whose last
    /// requests are not over. Those are at the engine, and end by themselves.
    fn must_wait(&self, key: GroupKey) -> bool {
        let Some(group) = self.groups.get(&key) else { return true };
        let before =
            |gone: &GroupKey, departure: u64| departure < group.departures || group.after.contains(gone);
        self.suspended.contains(&key.attachment)
            || self.gone.iter().any(|(departure, (gone, _))| before(gone, *departure))
            || group.after.iter().any(|other| self.lingers(other))
    }

    /// Whether a group of a host that may be dead has requests that are not over.
    fn lingers(&self, key: &GroupKey) -> bool {
        let in_flight = self.groups.get(key).map_or(0, |group| group.in_flight);
        in_flight > 0 && self.suspended.contains(&key.attachment)
    }

    /// Takes as many of a group's requests as there is room for.
    fn take_requests(&mut self, key: GroupKey, responses: &mut CardSender) {
        // No group gets so much that another one gets nothing.
        let share = self.files.requests_max() / self.groups.len().max(1);
        let share = (share as u32).clamp(1, GROUP_REQUESTS_MAX);
        if self.must_wait(key) {
            return;
        }
        loop {
            let Some(group) = self.groups.get_mut(&key) else { return };
            let message = match group.held.take() {
                Some(message) => message,
                None => match group.batches.front_mut().map(Batch::take_next) {
                    Some(Some(message)) => message,
                    Some(None) => {
                        group.batches.pop_front();
                        continue;
                    }
                    None => return,
                },
            };
            let waiting = group.waits_for_room
                || group.answers.len() >= GROUP_ANSWERS_MAX
                || group.lists_len >= GROUP_LISTS_LEN_MAX;
            if waiting || group.in_flight >= share || !self.files.has_room() {
                group.held = Some(message);
                return;
            }
            if let Taken::NotNow(message) = self.take(key, message, responses) {
                if let Some(group) = self.groups.get_mut(&key) {
                    group.held = Some(message);
                }
                return;
            }
        }
    }

    fn take(&mut self, key: GroupKey, message: Message, responses: &mut CardSender) -> Taken {
        let Some((header, rest)) = RequestHeader::decode(&message.inline) else {
            self.refuse(key, 0, FileError::Invalid);
            return Taken::Yes;
        };
        let Some(operation) = Operation::from_code(header.operation) else {
            self.refuse(key, header.id, FileError::Unsupported);
            return Taken::Yes;
        };
        let greeted = self.groups.get(&key).is_some_and(|group| group.greeted);
        match operation {
            _ if !greeted && operation != Operation::Hello => {
                self.refuse(key, header.id, FileError::Unsupported);
            }
            // Whoever sets one relies on it: to leave out what it means would be to promise what is not kept.
            _ if header.flags & !known_flags(operation) != 0 => {
                self.refuse(key, header.id, FileError::Invalid);
            }
            Operation::Hello => self.greet(key, &header, responses),
            Operation::Write | Operation::Resize | Operation::Zero if self.files.is_held(header.node) => {
                self.refuse(key, header.id, FileError::InUse);
            }
            Operation::Read => return self.take_read(key, header, message, responses),
            Operation::Write => {
                // Nothing to write needs no payload.
                let mut inline = message.inline;
                let payload = message.payload.or_else(|| Some(inline.split_to(0)));
                match payload.filter(|payload| payload.len() == header.length as usize) {
                    _ if header.length > self.transfer_max(responses) => {
                        self.refuse(key, header.id, FileError::TooLarge);
                    }
                    Some(from) => {
                        let durable = header.flags & flag::DURABLE != 0;
                        if let Some(observer) = &mut self.observer {
                            observer.write_taken(header.node, header.offset, &from);
                        }
                        let (file, offset) = (header.node, header.offset);
                        let op = Op::Write { file, offset, from: from.into(), durable };
                        self.submit(key, header.id, None, op);
                    }
                    None => self.refuse(key, header.id, FileError::Invalid),
                }
            }
            Operation::Flush => self.submit(key, header.id, None, Op::Flush),
            Operation::Resize => {
                self.submit(key, header.id, None, Op::Resize { file: header.node, size: header.offset });
            }
            Operation::Zero => {
                let len = u64::from(header.length);
                let op = Op::Zero { file: header.node, offset: header.offset, len };
                self.submit(key, header.id, None, op);
            }
            _ => match metadata_op(operation, &header, rest, self.transfer_max(responses)) {
                Ok(op) => self.submit(key, header.id, None, Op::Metadata(op)),
                Err(error) => self.refuse(key, header.id, error),
            },
        }
        Taken::Yes
    }

    fn take_read(
        &mut self,
        key: GroupKey,
        header: RequestHeader,
        mut message: Message,
        responses: &mut CardSender,
    ) -> Taken {
        if header.length > self.transfer_max(responses) {
            self.refuse(key, header.id, FileError::TooLarge);
            return Taken::Yes;
        }
        let block = self.files.card_info().block_len;
        let len = self.files.readable(header.node, header.offset, header.length);
        // The device fills whole blocks; where the request does not begin with one, they are copied anyway.
        let whole = header.offset.is_multiple_of(u64::from(block));
        let room = if whole { len.next_multiple_of(block) } else { len };
        let payload = (len > 0).then_some((room, block.min(PAGE as u32)));
        let mut reservation = match responses.reserve(Shape { inline_len: RESPONSE_LEN as u16, payload }) {
            Ok(reservation) => reservation,
            Err(ReserveError::Full) => return Taken::NotNow(message),
            Err(ReserveError::TooLarge { .. }) => {
                self.refuse(key, header.id, FileError::TooLarge);
                return Taken::Yes;
            }
        };
        let into = match reservation.payload.take() {
            Some(payload) => payload,
            // Nothing to read, but the engine decides whether that is an error.
            None => message.inline.split_to(0),
        };
        if let Some(observer) = &mut self.observer {
            observer.read_taken(header.node, header.offset, u64::from(len));
        }
        let op = Op::Read { file: header.node, offset: header.offset, len, into };
        self.submit(key, header.id, Some(reservation), op);
        Taken::Yes
    }

    /// The most bytes that one request of a group can move.
    fn transfer_max(&self, responses: &CardSender) -> u32 {
        let block = self.files.card_info().block_len;
        let fits = responses.message_max().saturating_sub(OVERHEAD.max(block + PAGE as u32));
        let most = self.files.card_info().transfer_max.min(fits);
        if most > block { most - most % block } else { most }
    }

    fn greet(&mut self, key: GroupKey, header: &RequestHeader, responses: &CardSender) {
        if header.offset != u64::from(VERSION) {
            return self.refuse_version(key, header.id);
        }
        let info = CardInfo { transfer_max: self.transfer_max(responses), ..self.files.card_info() };
        // Rings that cannot move a byte are of no use to anybody.
        if info.transfer_max == 0 {
            return self.refuse(key, header.id, FileError::Invalid);
        }
        let Some(group) = self.groups.get_mut(&key) else { return };
        group.greeted = true;
        group.answers.push_back(Answer { more: More::Server(info), ..Answer::new(header.id, Ok(())) });
    }

    /// Says which version would be understood: who asked has to know what to install.
    fn refuse_version(&mut self, key: GroupKey, id: u64) {
        if let Some(group) = self.groups.get_mut(&key) {
            let mut answer = Answer::new(id, Err(FileError::Unsupported));
            answer.header.value = u64::from(VERSION);
            group.answers.push_back(answer);
        }
    }

    fn refuse(&mut self, key: GroupKey, id: u64, error: FileError) {
        if let Some(group) = self.groups.get_mut(&key) {
            group.answers.push_back(Answer::new(id, Err(error)));
        }
    }

    fn submit(&mut self, key: GroupKey, id: u64, reservation: Option<Reservation>, op: Op) {
        let list_len = match &op {
            Op::Metadata(MetadataOp::List { most, .. }) => *most as usize,
            _ => 0,
        };
        if let Some(group) = self.groups.get_mut(&key) {
            group.in_flight += 1;
            group.lists_len += list_len;
        }
        self.submit_for(Pending::Group(GroupRequest { key, id, reservation, list_len }), op);
    }

    /// A request of a group that is gone is over.
    fn orphan_is_over(&mut self, key: GroupKey) {
        let Some((departure, left)) = self
            .gone
            .iter_mut()
            .find_map(|(departure, (gone, left))| (*gone == key).then_some((*departure, left)))
        else {
            return;
        };
        *left -= 1;
        if *left == 0 {
            self.gone.remove(&departure);
            // Somebody may have waited for that.
            self.moved = true;
        }
    }

    fn submit_for(&mut self, pending: Pending, op: Op) {
        let pending = Some(pending);
        let index = match self.free.pop() {
            Some(index) => {
                self.requests[index as usize] = pending;
                index
            }
            None => {
                self.requests.push(pending);
                self.requests.len() as u32 - 1
            }
        };
        self.files.submit(Token(u64::from(index)), op);
    }

    /// Moves the engine on, and sorts its answers to their groups.
    fn move_on(&mut self) -> bool {
        let mut moved = self.take_local();
        moved |= self.files.poll(&mut self.device);
        while let Some(completion) = self.files.next_completion() {
            moved = true;
            let index = completion.token.0 as u32;
            let Some(pending) = self.requests.get_mut(index as usize).and_then(Option::take) else {
                continue;
            };
            self.free.push(index);
            let pending = match pending {
                Pending::Group(pending) => pending,
                Pending::Local { user, token, space_of } => {
                    self.local -= 1;
                    let mut hub = self.hub.borrow_mut();
                    if let Some(file) = space_of {
                        hub.set_allocated(user, self.files.allocated(file));
                    }
                    hub.answer(user, Completion { token, ..completion });
                    continue;
                }
            };
            // A group that is gone wants no answer; what was reserved in its ring goes with it.
            let Some(group) = self.groups.get_mut(&pending.key) else {
                self.orphan_is_over(pending.key);
                continue;
            };
            group.in_flight -= 1;
            let answer = answer(pending.id, completion.result);
            group.lists_len -= pending.list_len;
            group.lists_len += answer.payload_len();
            match pending.reservation {
                Some(mut reservation) => {
                    reservation.payload = completion.buffer.filter(|buffer| !buffer.is_empty());
                    group.filled.push((reservation, answer.header));
                }
                None => group.answers.push_back(answer),
            }
        }
        moved
    }

    /// Whether there is room for one more request from within the card: not so many that nothing is left for groups.
    fn has_room_for_local(&self) -> bool {
        self.local < (self.files.requests_max() / 2).max(1) && self.files.has_room()
    }

    /// Takes what users within the card have left.
    fn take_local(&mut self) -> bool {
        let mut taken = false;
        while self.has_room_for_local() {
            let Some(request) = self.hub.borrow_mut().take() else { break };
            self.local += 1;
            let (user, token, space_of) = (request.user, request.token, request.op.space_of());
            self.submit_for(Pending::Local { user, token, space_of }, request.op);
            taken = true;
        }
        taken
    }

    /// Puts a group's answers into its ring, as far as there is room.
    fn deliver(&mut self, key: GroupKey, responses: &mut CardSender) {
        let Some(group) = self.groups.get_mut(&key) else { return };
        for (reservation, header) in group.filled.drain(..) {
            let len = if header.status.is_ok() { header.length } else { 0 };
            responses.commit(reservation, &header.encode(), len);
        }
        group.waits_for_room = false;
        while let Some(answer) = group.answers.pop_front() {
            let (inline, inline_len) = answer.inline();
            let payload = answer.payload.as_ref().map(|payload| (payload.len() as u32, 8));
            group.lists_len -= answer.payload_len();
            match responses.reserve(Shape { inline_len: inline_len as u16, payload }) {
                Ok(mut reservation) => {
                    if let (Some(into), Some(from)) = (reservation.payload.as_mut(), &answer.payload) {
                        into.copy_from_slice(from);
                    }
                    responses.commit(reservation, &inline[..inline_len], payload.map_or(0, |(len, _)| len));
                }
                Err(ReserveError::Full) => {
                    group.lists_len += answer.payload_len();
                    group.waits_for_room = true;
                    return group.answers.push_front(answer);
                }
                Err(ReserveError::TooLarge { .. }) => {
                    group.answers.push_front(Answer::new(answer.header.id, Err(FileError::TooLarge)));
                }
            }
        }
    }
}

fn answer(id: u64, result: Result<Outcome, FileError>) -> Answer {
    let mut answer = Answer::new(id, Ok(()));
    match result {
        Err(error) => answer.header.status = Err(error),
        Ok(Outcome::Done) => {}
        // Hosts are told nothing of versions: they would have to be told of every change, too, to make use of one.
        Ok(Outcome::Read { len, .. }) => answer.header.length = len,
        Ok(Outcome::Written { len, size }) => (answer.header.length, answer.header.value) = (len, size),
        Ok(Outcome::Node(info)) => answer.more = More::Node(info),
        Ok(Outcome::Space(info)) => answer.more = More::Space(info),
        Ok(Outcome::Entries { bytes, more }) => {
            (answer.header.length, answer.header.value) = (bytes.len() as u32, u64::from(more));
            answer.payload = (!bytes.is_empty()).then_some(bytes);
        }
    }
    answer
}

/// The flags that an operation has.
fn known_flags(operation: Operation) -> u16 {
    match operation {
        Operation::Write => flag::DURABLE,
        Operation::Open => flag::CREATE | flag::EXCLUSIVE,
        Operation::Remove => flag::ONLY_FILE | flag::ONLY_DIRECTORY,
        Operation::Rename => flag::NO_REPLACE,
        Operation::Hello
        | Operation::Read
        | Operation::Flush
        | Operation::MakeDirectory
        | Operation::List
        | Operation::Stat
        | Operation::Resize
        | Operation::Space
        | Operation::Zero => 0,
    }
}

/// Makes an operation of a request about names.
fn metadata_op(
    operation: Operation,
    header: &RequestHeader,
    rest: &[u8],
    transfer_max: u32,
) -> Result<MetadataOp, FileError> {
    let has = |flag: u16| header.flags & flag != 0;
    let (base, path) = (header.node, rest);
    Ok(match operation {
        // What need not be made cannot have to be missing.
        Operation::Open if has(flag::EXCLUSIVE) && !has(flag::CREATE) => return Err(FileError::Invalid),
        Operation::Open => MetadataOp::Open {
            base,
            path: path.to_vec(),
            create: has(flag::CREATE),
            exclusive: has(flag::EXCLUSIVE),
        },
        Operation::MakeDirectory => MetadataOp::MakeDirectory { base, path: path.to_vec() },
        Operation::Remove => {
            let only = match (has(flag::ONLY_FILE), has(flag::ONLY_DIRECTORY)) {
                (false, false) => None,
                (true, false) => Some(NodeKind::File),
                (false, true) => Some(NodeKind::Directory),
                (true, true) => return Err(FileError::Invalid),
            };
            MetadataOp::Remove { base, path: path.to_vec(), only }
        }
        Operation::Rename => {
            let (path, to_path) = rename_paths(header, rest)?;
            MetadataOp::Rename {
                base,
                path: path.to_vec(),
                to_base: header.node_more,
                to_path: to_path.to_vec(),
                replace: !has(flag::NO_REPLACE),
            }
        }
        Operation::List => {
            MetadataOp::List { directory: base, after: rest.to_vec(), most: header.length.min(transfer_max) }
        }
        Operation::Stat => MetadataOp::Stat { base, path: path.to_vec() },
        Operation::Space => MetadataOp::Space,
        Operation::Hello
        | Operation::Read
        | Operation::Write
        | Operation::Flush
        | Operation::Resize
        | Operation::Zero => return Err(FileError::Invalid),
    })
}

impl<D: Device> CardService for FilesService<D> {
    fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String> {
        if service != FILES_SERVICE {
            return Err(format!("the file service has number {FILES_SERVICE}, not {service}"));
        }
        let after = self.groups.keys().filter(|other| self.lingers(other)).copied().collect();
        self.groups.insert(key, Group { departures: self.departures, after, ..Group::default() });
        Ok(())
    }

    fn requests(&mut self, key: GroupKey, batch: Batch, responses: &mut CardSender) {
        if let Some(group) = self.groups.get_mut(&key) {
            group.batches.push_back(batch);
        }
        self.deliver(key, responses);
        self.take_requests(key, responses);
        // What was taken goes to the device now, not in the next turn.
        self.moved |= self.move_on();
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        self.deliver(key, responses);
        let waits =
            self.groups.get(&key).is_some_and(|group| group.held.is_some() || !group.batches.is_empty());
        if waits {
            self.take_requests(key, responses);
            self.moved |= self.move_on();
            self.deliver(key, responses);
        }
    }

    fn suspended(&mut self, attachment: AttachmentId, is_suspended: bool) {
        if is_suspended {
            self.suspended.insert(attachment);
        } else if self.suspended.remove(&attachment) {
            // It lives, so it is no earlier life of anybody who came meanwhile, and is none when it is doubted again. What it
            // had begun and has given up, or has ended with it, is waited for all the same.
            let gone = &self.gone;
            let is_gone = |key: &GroupKey| gone.values().any(|(gone, _)| gone == key);
            for group in self.groups.values_mut() {
                group.after.retain(|key| key.attachment != attachment || is_gone(key));
            }
            // Others may have waited for that.
            self.moved = true;
        }
    }

    fn closed(&mut self, key: GroupKey) {
        let Some(group) = self.groups.remove(&key) else { return };
        if group.in_flight > 0 {
            self.gone.insert(self.departures, (key, group.in_flight));
        }
        self.departures += 1;
    }

    fn channel(&mut self, _attachment: AttachmentId, _message: &[u8]) {}

    fn poll(&mut self, _now: Instant) -> bool {
        let moved = self.move_on();
        std::mem::take(&mut self.moved) || moved
    }

    fn next_due(&self) -> Option<Instant> {
        // Nothing else tells of answers that came while another group was served.
        // Nor of requests from within the card; but those that find no room wait for the device, like everything in it.
        let asked = !self.hub.borrow().is_empty() && self.has_room_for_local();
        if self.moved || asked { Some(Instant::from_nanoseconds(0)) } else { self.device.next_due() }
    }
}
