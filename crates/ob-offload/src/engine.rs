//! The engine: a table of contexts, each a request that the card answers. (DDS §6.2 has a ring of them and answers in its order;
//! here the director puts replies in order, and a slow read holds nobody else's context.)
//!
//! ```text
//!   start ──▶ lookup ──▶ function ──┬─ no read ──────────────────────────────▶ Ready ──▶ take_reply
//!                │                  └─ reads ──▶ Files ──▶ check ─┬─ right ──▶ Ready
//!                └─ absent: the host answers                      └─ wrong ──▶ Host
//! ```
//!
//! Nothing waits here: a request that finds no context or no buffer is the host's.

use std::cell::{Ref, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use ob_core::{NodeId, Token};
use ob_memory::ArenaSpan;
use ob_table::{BATCH_MAX, Hit, Item, Key, Stamp, Table, TableWriter};

use crate::Reason;
use crate::application::{Application, FileRead, Verdict};
use crate::buffers::{BufferClass, Buffers};
use crate::files::{BlockRead, BlocksRead, Files};
use crate::plant::{Bug, is_planted};
use crate::reply::{Filled, Part, ReadBytes, Reply, ReplySink};
use crate::watch::{Watch, Watcher};

/// Reads of one request, as many as there can be keys.
const READS_MAX: usize = BATCH_MAX;
/// Contexts are few enough that their number and a read's fit into a token.
const READ_BITS: u32 = 8;

/// What a request counts for at least: a context, and the shortest of buffers.
const HELD_LEN_MIN: usize = 4 << 10;

/// How large an engine is.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Requests under way at once.
    pub contexts: usize,
    /// Bytes of the longest request.
    pub request_len_max: usize,
    /// The buffers.
    pub buffers: Vec<BufferClass>,
    /// Bytes that one request reads, in whole blocks; the host answers what wants more.
    pub reads_len_max: usize,
    /// Read bytes up to so many are copied behind the reply's head, and their buffer is free again at once; more are sent from
    /// where they were read.
    pub copy_len_max: usize,
    /// Records that wait until the log is settled.
    pub candidates_max: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        let class = |len: usize, count: usize| BufferClass { len, count };
        Self {
            contexts: 4096,
            request_len_max: 4096,
            buffers: vec![
                class(4 << 10, 4096),
                class(8 << 10, 1024),
                class(64 << 10, 128),
                class(1 << 20, 16),
            ],
            reads_len_max: 1 << 20,
            copy_len_max: 512,
            candidates_max: 1 << 18,
        }
    }
}

/// A request that the engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextId(u32);

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It reads.
    Reading,
    /// Its reply is there.
    Ready,
    /// The host is to answer it.
    Host(Reason),
}

/// What an engine did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineCounts {
    /// Requests whose reply was made here.
    pub answered: u64,
    /// Reads of files.
    pub reads: u64,
    /// Records that were offered to the table when they were settled.
    pub offered: u64,
    /// Records that the host attested.
    pub attested: u64,
    /// Records that were not offered, for want of room.
    pub dropped: u64,
}

#[derive(Default)]
struct Context {
    /// Whose it is: a number of the caller.
    owner: u64,
    id: u64,
    request: Vec<u8>,
    hits: Vec<Hit>,
    plan: Vec<FileRead>,
    reply: Reply,
    filled: Vec<Option<Filled>>,
    /// Reads that are not over.
    out: usize,
    failed: Option<Reason>,
    state: Option<State>,
    /// Nobody wants the reply any more.
    abandoned: bool,
}

/// Answers requests on the card.
pub struct Engine<A> {
    application: Rc<A>,
    table: Arc<Table>,
    writer: Rc<RefCell<TableWriter>>,
    config: EngineConfig,
    buffers: Buffers,
    block_len: u32,
    contexts: Vec<Context>,
    free: Vec<u32>,
    /// Reads that the files have not taken yet.
    unsent: VecDeque<(Token, BlockRead)>,
    settled: VecDeque<(u64, ContextId)>,
    files: HashMap<u32, NodeId>,
    watch: Rc<RefCell<Watch>>,
    found: Vec<Option<Hit>>,
    /// Up to where the log was settled that the table was filled from.
    admitted_to: u64,
    /// Up to where the log is settled, if records before it may wait to be admitted.
    settled_to: Option<u64>,
    counts: EngineCounts,
}

impl<A: Application> Engine<A> {
    /// An engine over a table of its own; `block_len` is that of the files.
    pub fn new(application: Rc<A>, writer: TableWriter, config: EngineConfig, block_len: u32) -> Self {
        let contexts = config.contexts.clamp(1, 1 << 20);
        Self {
            application,
            table: Arc::clone(writer.table()),
            writer: Rc::new(RefCell::new(writer)),
            buffers: Buffers::new(&config.buffers),
            block_len: block_len.max(1),
            contexts: (0..contexts).map(|_| Context::default()).collect(),
            free: (0..contexts as u32).rev().collect(),
            unsent: VecDeque::new(),
            settled: VecDeque::new(),
            files: HashMap::new(),
            watch: Rc::new(RefCell::new(Watch::new(config.candidates_max))),
            found: Vec::new(),
            admitted_to: 0,
            settled_to: None,
            counts: EngineCounts::default(),
            config,
        }
    }

    /// What shows the host's writes and reads to this engine: for the file service.
    pub fn watcher(&self) -> Watcher<A> {
        Watcher {
            watch: Rc::clone(&self.watch),
            writer: Rc::clone(&self.writer),
            application: Rc::clone(&self.application),
        }
    }

    /// Where the buffers lie, for registration.
    pub fn arenas(&self) -> impl Iterator<Item = ArenaSpan> {
        self.buffers.arenas()
    }

    /// Buffers that are in somebody's hands.
    pub fn buffers_out(&self) -> usize {
        self.buffers.out()
    }

    /// Contexts in use.
    pub fn in_flight(&self) -> usize {
        self.contexts.len() - self.free.len()
    }

    /// The table's writer, for its counts.
    pub fn writer(&self) -> Ref<'_, TableWriter> {
        self.writer.borrow()
    }

    /// What was done so far.
    pub fn counts(&self) -> EngineCounts {
        EngineCounts { dropped: self.watch.borrow().dropped(), ..self.counts }
    }

    /// Records that wait until the log is settled.
    pub fn candidates(&self) -> usize {
        self.watch.borrow().len()
    }

    /// Takes a request that the card may answer, at the instant of this call. The host has to if there is a reason.
    ///
    /// # Errors
    /// The reason.
    pub fn start(
        &mut self,
        owner: u64,
        id: u64,
        request: &[u8],
        keys: &[Key],
        now: u64,
    ) -> Result<ContextId, Reason> {
        if request.len() > self.config.request_len_max {
            return Err(Reason::TooLong);
        }
        self.renew();
        self.look_up(keys)?;
        let index = self.free.pop().ok_or(Reason::Busy)?;
        let started = self.plan(index, request, now);
        let reading = match started {
            Ok(reading) => reading,
            Err(reason) => {
                self.release(index);
                return Err(reason);
            }
        };
        let Some(context) = self.contexts.get_mut(index as usize) else { return Err(Reason::Busy) };
        (context.owner, context.id) = (owner, id);
        context.state = Some(if reading { State::Reading } else { State::Ready });
        Ok(ContextId(index))
    }

    /// What another function has found is not for the one that there is now.
    fn renew(&mut self) {
        if self.application.is_renewed() {
            let now = self.watch.borrow_mut().forget_candidates();
            self.writer.borrow_mut().clear(now);
        }
    }

    /// Asks the memory for what the table has of a key that is likely to be asked for next.
    pub fn expect(&self, key: &Key) {
        self.table.prefetch(key);
    }

    /// Rule 8: all of them at one instant, or none.
    fn look_up(&mut self, keys: &[Key]) -> Result<(), Reason> {
        if keys.len() > BATCH_MAX {
            return Err(Reason::TooManyKeys);
        }
        self.found.clear();
        self.found.resize(keys.len(), None);
        let all = match keys {
            [key] => {
                self.found[0] = self.table.lookup(key);
                self.found[0].is_some()
            }
            keys => self.table.lookup_all_at_once(keys, &mut self.found),
        };
        if is_planted(Bug::PartlyAnswered) {
            let some = self.found.iter().flatten().next().copied();
            self.found.iter_mut().for_each(|found| *found = found.or(some));
            return if some.is_some() { Ok(()) } else { Err(Reason::Absent) };
        }
        if all { Ok(()) } else { Err(Reason::Absent) }
    }

    /// Asks the application, and takes buffers; whether there is anything to read.
    fn plan(&mut self, index: u32, request: &[u8], now: u64) -> Result<bool, Reason> {
        let Some(context) = self.contexts.get_mut(index as usize) else { return Err(Reason::Busy) };
        context.request.extend_from_slice(request);
        context.hits.extend(self.found.iter().flatten());
        let (hits, plan, reply) = (&context.hits, &mut context.plan, &mut context.reply);
        match self.application.function(request, hits, now, plan, reply) {
            Verdict::Host(reason) => return Err(reason),
            Verdict::Answer => return Ok(false),
            Verdict::Read => {}
        }
        if context.plan.is_empty() || context.plan.len() > READS_MAX {
            return Err(Reason::TooManyKeys);
        }
        let unsent = self.unsent.len();
        let block = u64::from(self.block_len);
        let mut left = self.config.reads_len_max;
        for (at, read) in context.plan.iter().enumerate() {
            let planned = self.files.get(&read.file).ok_or(Reason::NoFile).and_then(|file| {
                let start = read.offset - read.offset % block;
                let end = read.offset.checked_add(u64::from(read.len)).ok_or(Reason::TooLarge)?;
                let end = end.checked_next_multiple_of(block).ok_or(Reason::TooLarge)?;
                let len = usize::try_from(end - start).map_err(|_| Reason::TooLarge)?;
                if len == 0 || len > self.buffers.len_max() {
                    return Err(Reason::TooLarge);
                }
                left = left.checked_sub(len).ok_or(Reason::TooLarge)?;
                let into = self.buffers.take(len).ok_or(Reason::NoBuffer)?;
                Ok(BlockRead { file: *file, offset: start, into })
            });
            match planned {
                Ok(read) => self.unsent.push_back((token(index, at), read)),
                Err(reason) => {
                    self.unsent.truncate(unsent);
                    return Err(reason);
                }
            }
        }
        context.out = context.plan.len();
        context.filled.resize_with(context.plan.len(), || None);
        Ok(true)
    }

    /// Sends reads to the files, and takes what is over; `true` if anything moved.
    pub fn poll(&mut self, files: &mut impl Files) -> bool {
        let mut moved = false;
        loop {
            while let Some((token, read)) = self.unsent.pop_front() {
                match files.read(token, read) {
                    Ok(()) => {
                        self.counts.reads += 1;
                        moved = true;
                    }
                    Err(read) => {
                        self.unsent.push_front((token, read));
                        break;
                    }
                }
            }
            let Some(read) = files.poll() else { return moved };
            moved = true;
            self.read_over(read);
        }
    }

    fn read_over(&mut self, read: BlocksRead) {
        let (index, at) =
            ((read.token.0 >> READ_BITS) as u32, (read.token.0 & ((1 << READ_BITS) - 1)) as usize);
        let Some(context) = self.contexts.get_mut(index as usize).filter(|context| context.out > 0) else {
            return;
        };
        context.out -= 1;
        let planned = context.plan.get(at).zip(context.filled.get_mut(at));
        match (planned, read.buffer, read.len) {
            (Some((plan, place)), Some(buffer), Ok(len)) => {
                let start = (plan.offset % u64::from(self.block_len)) as usize;
                let bytes = start..start + plan.len as usize;
                // A file that ends before what was asked for does not have it.
                if bytes.end <= len as usize && bytes.end <= buffer.len() {
                    *place = Some(Filled { buffer, bytes });
                } else {
                    context.failed = Some(Reason::Mismatch);
                }
            }
            _ => context.failed = Some(Reason::ReadFailed),
        }
        if context.out > 0 {
            return;
        }
        if context.abandoned {
            self.release(index);
            return;
        }
        if matches!(context.state, Some(State::Host(_))) {
            return;
        }
        let state = self.check(index);
        if let Some(context) = self.contexts.get_mut(index as usize) {
            context.state = Some(state);
            self.settled.push_back((context.owner, ContextId(index)));
        }
    }

    /// Rule 5: what was read is what the table meant, or the host answers.
    fn check(&mut self, index: u32) -> State {
        let Some(context) = self.contexts.get_mut(index as usize) else { return State::Host(Reason::Busy) };
        let reads = ReadBytes { filled: &context.filled };
        let is_right = context.failed.is_none()
            && self.application.check(&context.request, &context.hits, &reads, &mut context.reply)
            && context.reply.is_sound(&reads);
        let reason = context.failed.unwrap_or(Reason::Mismatch);
        if is_right || (is_planted(Bug::UncheckedRead) && context.reply.is_sound(&reads)) {
            return State::Ready;
        }
        context.filled.clear();
        State::Host(reason)
    }

    /// The next request that has read, by its owner: its state is another one now.
    pub fn next_settled(&mut self) -> Option<(u64, ContextId)> {
        self.settled.pop_front()
    }

    /// What became of a request.
    pub fn state(&self, context: ContextId) -> State {
        let state = self.contexts.get(context.0 as usize).and_then(|context| context.state);
        state.unwrap_or(State::Host(Reason::Busy))
    }

    /// Bytes of the engine's memory that a request keeps from others, roughly; one that reads nothing has a context all the same.
    pub fn held_len(&self, context: ContextId) -> usize {
        let context = self.contexts.get(context.0 as usize);
        let reads = context.into_iter().flat_map(|context| &context.plan);
        reads.map(|read| (read.len as usize).max(HELD_LEN_MIN)).sum::<usize>().max(HELD_LEN_MIN)
    }

    /// The bytes of a request, and its id.
    pub fn request(&self, context: ContextId) -> (&[u8], u64) {
        let context = self.contexts.get(context.0 as usize);
        context.map_or((&[], 0), |context| (&context.request, context.id))
    }

    /// Hands the reply of a request out that is ready, and forgets the request.
    pub fn take_reply(&mut self, context: ContextId, sink: &mut impl ReplySink) {
        let index = context.0;
        let Some(context) = self.contexts.get_mut(index as usize) else { return };
        let (mut own, filled) = (context.reply.own.as_slice(), &mut context.filled);
        for part in &context.reply.parts {
            match part {
                Part::Own(len) => {
                    let (bytes, rest) = own.split_at((*len).min(own.len()));
                    sink.bytes(bytes);
                    own = rest;
                }
                Part::Read { index, bytes } => {
                    let Some(Filled { mut buffer, bytes: within }) =
                        filled.get_mut(*index).and_then(Option::take)
                    else {
                        continue;
                    };
                    let (start, end) = (within.start + bytes.start, within.start + bytes.end);
                    if end - start <= self.config.copy_len_max {
                        sink.bytes(buffer.get(start..end).unwrap_or_default());
                    } else {
                        buffer.truncate(end);
                        buffer.advance(start);
                        sink.slice(buffer);
                    }
                }
            }
        }
        self.counts.answered += 1;
        self.release(index);
    }

    /// Forgets a request, whatever became of it.
    pub fn abandon(&mut self, context: ContextId) {
        let Some(found) = self.contexts.get_mut(context.0 as usize) else { return };
        // What the device writes into stays ours until it is done with it.
        if found.out > 0 {
            found.abandoned = true;
        } else {
            self.release(context.0);
        }
    }

    /// The host is to answer a request after all, whatever the engine finds.
    pub fn retract(&mut self, context: ContextId) {
        if let Some(context) = self.contexts.get_mut(context.0 as usize) {
            context.state = Some(State::Host(Reason::Behind));
        }
    }

    fn release(&mut self, index: u32) {
        let Some(context) = self.contexts.get_mut(index as usize) else { return };
        context.request.clear();
        context.hits.clear();
        context.plan.clear();
        context.reply.clear();
        context.filled.clear();
        (context.out, context.failed, context.state, context.abandoned) = (0, None, None, false);
        self.free.push(index);
    }

    /// Rule 2: from now on the table has nothing older for this key.
    pub fn invalidate(&mut self, key: &Key, stamp: Stamp) {
        self.writer.borrow_mut().invalidate(key, stamp);
    }

    /// From now on the table has nothing older at all.
    pub fn clear(&mut self, stamp: Stamp) {
        if is_planted(Bug::FlushKeeps) {
            return;
        }
        self.writer.borrow_mut().clear(stamp);
    }

    /// A request was forwarded with this stamp. What the host reads from now on outdates what is older.
    pub fn given(&mut self, stamp: Stamp) {
        self.watch.borrow_mut().given(stamp);
    }

    /// Another life of the host begins: its files and what it was writing are unknown, and the table is emptied if the host
    /// does not have everything that was admitted.
    pub fn begin(&mut self, before: Stamp, store: [u8; 16], log_end: u64, is_same_store: bool) {
        if !is_planted(Bug::EarlierLifeKept) {
            self.files.clear();
            self.watch.borrow_mut().begin(store);
        }
        self.settled_to = None;
        self.given(before);
        if !is_same_store || log_end < self.admitted_to {
            self.writer.borrow_mut().clear(before);
            self.admitted_to = 0;
        }
    }

    /// Forgets every stamp, with all that the table has: those to come may be smaller. Whether there is memory for that; then
    /// [`Engine::begin`] follows, with a store that is another one.
    pub fn begin_anew(&mut self) -> bool {
        let Ok(writer) = self.writer.borrow().anew() else { return false };
        self.table = Arc::clone(writer.table());
        *self.writer.borrow_mut() = writer;
        self.watch.borrow_mut().forget_stamps();
        true
    }

    /// The host has given a file a name.
    pub fn name_file(&mut self, name: u32, node: NodeId) {
        if let Some(before) = self.files.insert(name, node) {
            self.watch.borrow_mut().unwatch(before);
        }
        self.watch.borrow_mut().watch(node, name);
    }

    /// Whether a file has this name.
    pub fn has_file(&self, name: u32) -> bool {
        self.files.contains_key(&name)
    }

    /// The host is about to remove a file.
    pub fn forget_file(&mut self, name: u32) {
        if let Some(node) = self.files.remove(&name) {
            self.watch.borrow_mut().unwatch(node);
        }
    }

    /// Files that have a name.
    pub fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Rule 3: the log is complete up to an address, and what was written before it may be admitted: [`Engine::admit`] does.
    pub fn settled(&mut self, address: u64) {
        self.admitted_to = self.admitted_to.max(address);
        self.settled_to = self.settled_to.max(Some(address));
    }

    /// Whether there may be something to admit.
    pub fn can_admit(&self) -> bool {
        self.settled_to.is_some()
    }

    /// Admits records behind which the log is settled, a write at a time until there were `most`: one address may settle all that wait.
    /// `last` is the greatest stamp that was ever given. Whether there were any.
    pub fn admit(&mut self, last: Stamp, most: usize) -> bool {
        let Some(address) = self.settled_to else { return false };
        self.renew();
        let (mut watch, mut writer) = (self.watch.borrow_mut(), self.writer.borrow_mut());
        let (admitted, has_more) = watch.settle(address, most, |candidate| {
            // A stamp that nobody was given would outlive every invalidation to come.
            if candidate.stamp <= last {
                self.counts.offered += 1;
                // Whether there was a place for it is in the table's own counts.
                let _ = writer.admit(&candidate.key, &candidate.item, candidate.stamp);
            }
        });
        self.settled_to = Some(address).filter(|_| has_more);
        admitted > 0
    }

    /// Does what a planted bug does, in builds that have them.
    pub fn misbehave(&mut self) {
        if is_planted(Bug::AdmittedAtSubmission) {
            self.settled_to = Some(u64::MAX);
        }
    }

    /// The host attests that a record is current as of a stamp.
    pub fn attest(&mut self, key: &Key, item: &Item, as_of: Stamp) {
        self.renew();
        if !self.application.has_own_items() {
            return;
        }
        self.counts.attested += 1;
        let _ = self.writer.borrow_mut().admit(key, item, as_of);
    }
}

fn token(index: u32, at: usize) -> Token {
    Token(u64::from(index) << READ_BITS | at as u64)
}
