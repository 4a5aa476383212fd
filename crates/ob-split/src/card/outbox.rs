//! What waits for the host, and answers that wait until it has that.

use std::collections::VecDeque;

use ob_memory::Slice;
use ob_ring::{CardSender, ReserveError};

use super::flight::FlightKey;
use super::messages::Messages;
use crate::wire::{
    Broken, ChannelIs, Completion, CompletionStatus, Done, Engine, Entry, Handle, Memory, MessageBuilder,
    Noted, RefusedCode, Welcome, kind,
};

/// News of one kind that wait for a host: one that has no room for them has not looked for long.
const NEWS_MAX: usize = 1024;

/// An answer that is decided.
pub(super) struct Answer {
    /// Of which message.
    pub(super) handle: Handle,
    /// What is answered if it is not bytes.
    pub(super) status: u16,
    /// With which bytes, if with bytes.
    pub(super) with: Option<Bytes>,
}

impl Answer {
    /// Whether it tells its peer only that nothing was done, or not all.
    pub(super) const fn is_refusal(&self) -> bool {
        self.with.is_none() && self.status != 0
    }
}

/// Bytes of an answer.
pub(super) enum Bytes {
    /// The memory that came with the message.
    Own(Slice),
    /// Memory of a plan.
    Shared(ob_memory::Shared),
}

/// A completion that waits.
pub(super) struct Waiting {
    pub(super) completion: Completion,
    pub(super) reply: Option<Vec<u8>>,
    /// The plan that is over with it, and the answer that may leave then.
    pub(super) last: Option<(FlightKey, Option<Answer>)>,
}

impl Waiting {
    /// Whether a host that sleeps need not be woken for it: it went well, and whoever waits for it is answered by the card, or the rest of
    /// it follows.
    fn is_quiet(&self) -> bool {
        let Completion { status, has_more, bad_members, .. } = self.completion;
        let is_answered = matches!(self.last, Some((_, Some(_))));
        status == CompletionStatus::Good && bad_members == 0 && (has_more || is_answered)
    }
}

/// What waits for the host of a port.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) welcome: Option<(Welcome, Vec<Engine>)>,
    pub(super) refused: Option<RefusedCode>,
    pub(super) channels: VecDeque<ChannelIs>,
    pub(super) noted: VecDeque<Noted>,
    pub(super) broken: VecDeque<Broken>,
    pub(super) memory: VecDeque<Memory>,
    /// Pieces of memory that were granted to this host, those included that it has yet to be told of.
    pub(super) granted: u32,
    pub(super) done: VecDeque<Waiting>,
    /// Memory for replies that come with completions, which is used again.
    replies: Vec<Vec<u8>>,
    builder: MessageBuilder,
    /// Answers whose completions were given to the ring, and how much that has to deliver before.
    answers: VecDeque<(u64, Answer)>,
    /// Plans whose completions were given to the ring.
    pub(super) over: Vec<FlightKey>,
    /// Completions were given to it for which nobody was to be woken.
    pub(super) was_quiet: bool,
}

/// The ring has no room now, or is too small for any message.
struct NoRoom {
    ever: bool,
}

impl From<ReserveError> for NoRoom {
    fn from(error: ReserveError) -> Self {
        Self { ever: matches!(error, ReserveError::TooLarge { .. }) }
    }
}

impl Outbox {
    /// The group has ended.
    pub(super) fn clear(&mut self) {
        (self.welcome, self.refused) = (None, None);
        self.channels.clear();
        self.noted.clear();
        self.broken.clear();
        self.memory.clear();
        self.granted = 0;
        self.over.extend(self.done.drain(..).filter_map(|waiting| Some(waiting.last?.0)));
        self.answers.clear();
    }

    /// A reply for a completion, if there is one: in its place is memory for the next.
    pub(super) fn take_reply(&mut self, reply: &mut Vec<u8>) -> Option<Vec<u8>> {
        (!reply.is_empty()).then(|| std::mem::replace(reply, self.replies.pop().unwrap_or_default()))
    }

    /// Whether something waits that `messages` does not know of.
    pub(super) fn has_some(&self) -> bool {
        let has_control = self.welcome.is_some() || self.refused.is_some() || !self.channels.is_empty();
        has_control
            || !self.memory.is_empty()
            || !self.noted.is_empty()
            || !self.broken.is_empty()
            || !self.done.is_empty()
    }

    /// Whether more waits here than a host asks for that hears what it is told: all of it is what became of something that it has
    /// said, and of each slot that it has set twice.
    pub(super) fn is_unheard(&self, slots_max: u16) -> bool {
        let broken_max = NEWS_MAX + 2 * usize::from(slots_max);
        self.noted.len() > NEWS_MAX || self.channels.len() > NEWS_MAX || self.broken.len() > broken_max
    }

    /// The answers that were not given.
    pub(super) fn take_answers(&mut self) -> Vec<Answer> {
        let undelivered = self.answers.drain(..).map(|(_, answer)| answer);
        let unsaid = self.done.iter_mut().filter_map(|waiting| waiting.last.as_mut()?.1.take());
        undelivered.chain(unsaid).collect()
    }

    /// Whether answers wait.
    pub(super) fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    /// The next answer that may leave: its completion is delivered.
    pub(super) fn next_answer(
        &mut self,
        delivered: u64,
        may_leave: impl Fn(&Answer) -> bool,
    ) -> Option<Answer> {
        let delivered = self.answers.iter().take_while(|(needed, _)| *needed <= delivered);
        let place = { delivered }.position(|(_, answer)| may_leave(answer))?;
        self.answers.remove(place).map(|(_, answer)| answer)
    }

    /// Gives the ring what it has room for, and the headers of at most `room` messages; of how many the host was told. The group is to
    /// be closed if the ring never has room.
    pub(super) fn pump(
        &mut self,
        load: u8,
        messages: &mut Messages,
        room: u32,
        ring: &mut CardSender,
    ) -> u32 {
        let mut left = room;
        if let Err(NoRoom { ever: true }) = self.pump_some(load, messages, &mut left, ring) {
            ring.refuse();
        }
        room - left
    }

    fn pump_some(
        &mut self,
        load: u8,
        messages: &mut Messages,
        left: &mut u32,
        ring: &mut CardSender,
    ) -> Result<(), NoRoom> {
        let (builder, granted) = (&mut self.builder, self.granted);
        if let Some(code) = self.refused {
            builder.begin(kind::REFUSED);
            let _ = builder.push(&code);
            ring.push(builder.finish(load, granted))?;
            self.refused = None;
        }
        if let Some((welcome, engines)) = &self.welcome {
            builder.welcome(welcome, engines);
            ring.push(builder.finish(load, granted))?;
            self.welcome = None;
        }
        let told = (load, granted);
        push_all(kind::MEMORY, &mut self.memory, builder, told, ring)?;
        push_all(kind::CHANNEL_IS, &mut self.channels, builder, told, ring)?;
        push_all(kind::GATE_NOTED, &mut self.noted, builder, told, ring)?;
        self.push_done(load, ring)?;
        push_all(kind::BROKEN, &mut self.broken, &mut self.builder, told, ring)?;
        self.push_headers(load, messages, left, ring)
    }

    fn push_done(&mut self, load: u8, ring: &mut CardSender) -> Result<(), NoRoom> {
        while !self.done.is_empty() {
            self.builder.begin(kind::DONE);
            let fits = |waiting: &&Waiting| {
                let done = Done { completion: waiting.completion, reply: waiting.reply.as_deref() };
                self.builder.push_done(&done)
            };
            let count = self.done.iter().take_while(fits).count();
            // What no message has room for there is not: a reply is cut to what fits.
            let count = count.max(1);
            let is_quiet = self.done.iter().take(count).all(Waiting::is_quiet);
            let message = self.builder.finish(load, self.granted);
            if is_quiet {
                ring.push_quietly(message)?;
            } else {
                ring.push(message)?;
            }
            self.was_quiet |= is_quiet;
            let needed = ring.committed_bytes();
            for Waiting { reply, last, .. } in self.done.drain(..count) {
                if let Some(mut reply) = reply.filter(|_| self.replies.len() < NEWS_MAX) {
                    reply.clear();
                    self.replies.push(reply);
                }
                let Some((flight, answer)) = last else { continue };
                self.over.push(flight);
                self.answers.extend(answer.map(|answer| (needed, answer)));
            }
        }
        Ok(())
    }

    fn push_headers(
        &mut self,
        load: u8,
        messages: &mut Messages,
        left: &mut u32,
        ring: &mut CardSender,
    ) -> Result<(), NoRoom> {
        loop {
            self.builder.begin(kind::HEADERS);
            let mut room = *left;
            let told = messages.tell(|entry| {
                let is_told = room > 0 && self.builder.push(entry);
                room -= u32::from(is_told);
                is_told
            });
            if told == 0 {
                return Ok(());
            }
            // If the ring has no room, they are told again, in the same order.
            if let Err(error) = ring.push(self.builder.finish(load, self.granted)) {
                messages.untell();
                return Err(error.into());
            }
            *left = room;
        }
    }
}

fn push_all<E: Entry>(
    kind: u8,
    waiting: &mut VecDeque<E>,
    builder: &mut MessageBuilder,
    (load, granted): (u8, u32),
    ring: &mut CardSender,
) -> Result<(), NoRoom> {
    while !waiting.is_empty() {
        builder.begin(kind);
        let count = waiting.iter().take_while(|entry| builder.push(*entry)).count();
        ring.push(builder.finish(load, granted))?;
        waiting.drain(..count);
    }
    Ok(())
}
