//! From a connection's bytes to requests, and from replies to its output.
//!
//! ```text
//!   input ─▶ cut ─▶ predicate ─┬─ Card ─▶ engine ──────────────┐
//!                              └─ Host ─▶ invalidate, forward ─┤
//!                                                              ▼
//!   output ◀── flush ◀── settle ◀────────── pending: requests, in the order of the client
//! ```
//!
//! A request takes effect when the table is asked, or when it is forwarded. Both happen here, on one thread, in the order of a
//! connection's requests: a request that goes to the host waits until none before it can fall back behind it (rule 5), and one
//! that falls back takes along what was started behind it.

use ob_core::{ConnectionAction, ConnectionId};
use ob_offload::{
    Application, Changes, ContextId, Cut, Key, Reason, ReplyOrder, Request, Requests, Route, State,
};
use ob_offload::{ReplySink, Stamp};
use ob_wire_link::stream::{FRAGMENT_LEN, Fragment, FromCard};

use crate::connection::{Connection, ConnectionKey, Ending, Forwarded, Pending, Underway};
use crate::director::Director;
use crate::host::HostPort;
use crate::plant::{Bug, is_planted};

/// Requests of one connection that are routed before others have their turn.
const REQUESTS_A_TURN: usize = 256;
/// Bytes of one connection that are forwarded before others have their turn.
const FORWARDED_A_TURN: usize = 256 << 10;
/// Lists of requests that are kept for the next messages.
const SPARE_REQUESTS_MAX: usize = 64;

/// Why no more of a connection is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// There is no whole message.
    NoMessage,
    /// It waits for its own replies, or for its end.
    Waits,
    /// It waits for room in the stream.
    NoRoom,
    /// Others have their turn.
    Effort,
}

/// What a connection may still do in this turn.
struct Effort {
    requests: usize,
    bytes: usize,
    /// It is its turn among those that wait for the stream.
    is_first: bool,
    /// Something was forwarded.
    forwarded: bool,
}

impl Effort {
    fn new(is_first: bool) -> Self {
        Self { requests: REQUESTS_A_TURN, bytes: FORWARDED_A_TURN, is_first, forwarded: false }
    }
}

/// What is to be forwarded.
struct Outgoing<'a> {
    number: ConnectionId,
    bytes: &'a [u8],
    keys: &'a [Key],
    changes: Changes,
    reason: Reason,
}

impl<A: Application> Director<A> {
    /// Works on every connection that has something to do.
    pub(crate) fn process_all<P: HostPort>(&mut self, port: &mut P) -> bool {
        let mut moved = self.serve_awaiting(port);
        for _ in 0..self.ready.len() {
            let Some(key) = self.ready.pop_front() else { break };
            moved = true;
            self.process(key, port, Effort::new(false));
        }
        if self.is_hungry && self.budget.left() > 0 {
            self.is_hungry = false;
            self.feed();
        }
        moved
    }

    /// Those that wait for room in the stream come in turn; the first that finds none is the first the next time.
    fn serve_awaiting<P: HostPort>(&mut self, port: &mut P) -> bool {
        let mut moved = false;
        for _ in 0..self.awaiting_stream.len() {
            let Some(key) = self.awaiting_stream.pop_front() else { break };
            let Some(connection) = self.find(key) else { continue };
            connection.flags.awaits_stream = false;
            let forwarded = self.process(key, port, Effort::new(true));
            moved |= forwarded;
            if !forwarded && self.peek(key).is_some_and(|connection| connection.flags.awaits_stream) {
                if self.awaiting_stream.front() != Some(&key) {
                    let _ = self.awaiting_stream.pop_back();
                    self.awaiting_stream.push_front(key);
                }
                break;
            }
        }
        moved
    }

    /// Does what can be done for a connection; whether anything of it was forwarded.
    fn process<P: HostPort>(&mut self, key: ConnectionKey, port: &mut P, mut effort: Effort) -> bool {
        let Some(mut connection) = self.take(key) else { return false };
        connection.flags.is_ready = false;
        let stop = loop {
            self.settle(&mut connection, port, &mut effort);
            self.flush(&mut connection);
            let before = connection.pending.len();
            let stop = self.route_messages(&mut connection, port, &mut effort);
            // Replies that were made at once make room for more.
            if connection.pending.len() == before || stop != Stop::Waits {
                break stop;
            }
        };
        self.settle(&mut connection, port, &mut effort);
        self.flush(&mut connection);
        let forwarded = effort.forwarded;
        match stop {
            // Of those whose long list is kept for the rest of a request there is only one: nobody forwards before it.
            Stop::Effort | Stop::NoRoom if connection.underway.keeps_turn() => {
                if !connection.flags.awaits_stream {
                    connection.flags.awaits_stream = true;
                    self.awaiting_stream.push_front(key);
                }
            }
            Stop::Effort => {
                connection.flags.is_ready = true;
                self.ready.push_back(key);
            }
            Stop::NoRoom => self.await_stream(&mut connection),
            Stop::NoMessage | Stop::Waits => {}
        }
        self.conclude(connection, stop);
        forwarded
    }

    fn await_stream(&mut self, connection: &mut Connection<A::Cutter>) {
        if !connection.flags.awaits_stream {
            connection.flags.awaits_stream = true;
            if is_planted(Bug::TurnsIgnored) {
                self.awaiting_stream.push_front(connection.key);
                return;
            }
            self.awaiting_stream.push_back(connection.key);
        }
    }

    /// Cuts messages and routes their requests, until something stops that.
    fn route_messages<P: HostPort>(
        &mut self,
        connection: &mut Connection<A::Cutter>,
        port: &mut P,
        effort: &mut Effort,
    ) -> Stop {
        // It is lent to the loop, and comes back as it is.
        let mut input = std::mem::take(&mut connection.input);
        let stop = loop {
            if connection.ending != Ending::Open {
                break Stop::Waits;
            }
            if connection.underway.len == 0 {
                // Not even looked at: what it is may depend on the reply, and its memory is others' as long as it waits.
                if self.is_clogged(connection) {
                    break Stop::Waits;
                }
                match self.cut(connection, input.filled()) {
                    Cut::Part(missing) => {
                        input.needs(input.filled().len().saturating_add(missing));
                        break Stop::NoMessage;
                    }
                    Cut::Nothing(len) => {
                        input.consume(len.max(1), &mut self.budget);
                        continue;
                    }
                    Cut::Wrong => break Stop::Waits,
                    Cut::Message(len) => {
                        let requests = self.spare_requests.pop().unwrap_or_default();
                        connection.underway = Underway { len, requests, ..Underway::default() };
                    }
                }
            }
            let (message, behind) =
                input.filled().split_at_checked(connection.underway.len).unwrap_or_default();
            self.look_ahead(connection, behind);
            if let Err(stop) = self.route_message(connection, message, port, effort) {
                break stop;
            }
            input.consume(connection.underway.len, &mut self.budget);
            self.keep_requests(std::mem::take(&mut connection.underway).requests);
        };
        connection.input = input;
        stop
    }

    /// Asks the memory for what the message behind the one at hand will need, if there is one.
    fn look_ahead(&self, connection: &Connection<A::Cutter>, behind: &[u8]) {
        let is_first = connection.underway.listed_under.is_none() && !behind.is_empty();
        if is_first
            && connection.is_matched
            && connection.standing.is_admitted()
            && let Some(key) = self.application.glance(behind)
        {
            self.engine.expect(&key);
        }
    }

    fn keep_requests(&mut self, mut requests: Requests) {
        if self.spare_requests.len() < SPARE_REQUESTS_MAX {
            requests.clear();
            self.spare_requests.push(requests);
        }
    }

    fn cut(&mut self, connection: &mut Connection<A::Cutter>, bytes: &[u8]) -> Cut {
        if bytes.is_empty() {
            return Cut::Part(1);
        }
        self.scratch.clear();
        let standing = connection.standing;
        let cut = self.application.cut(&mut connection.cutter, bytes, standing, &mut self.scratch);
        match cut {
            Cut::Wrong => {
                self.counts.wrong += 1;
                connection.pending.push_back(Pending::Said(self.scratch.clone()));
                connection.ending = Ending::AfterReplies;
                cut
            }
            // An application that promises more than there is would make no progress.
            Cut::Message(len) if len == 0 || len > bytes.len() => Cut::Part(1),
            _ => cut,
        }
    }

    /// Routes what is left of the requests of a message.
    fn route_message<P: HostPort>(
        &mut self,
        connection: &mut Connection<A::Cutter>,
        message: &[u8],
        port: &mut P,
        effort: &mut Effort,
    ) -> Result<(), Stop> {
        // A request that falls back and finds no room comes before all that is not routed yet.
        if connection.flags.awaits_stream {
            return Err(Stop::NoRoom);
        }
        let standing = Some(connection.standing);
        // A request of which the host has a part goes there whatever has become of the connection.
        let is_stale = connection.underway.listed_under != standing && connection.underway.forwarded == 0;
        if is_stale {
            self.may_list(connection, effort)?;
        }
        let mut requests = std::mem::take(&mut connection.underway.requests);
        if is_stale {
            requests.clear();
            self.application.predicate(message, connection.standing, &mut requests);
            connection.underway.listed_under = standing;
            connection.underway.request = requests.go_on_from(connection.underway.routed_to, message.len());
        }
        let routed = self.route_requests(connection, message, &requests, port, effort);
        connection.underway.requests = requests;
        if let Err(stop) = routed {
            connection.underway.spare_memory(stop == Stop::NoRoom && effort.is_first && !effort.forwarded);
        }
        routed
    }

    /// Whether a message is looked through now: not if it is known already that nothing could be done with what is found, or
    /// a client who sends byte by byte would have all of it looked through for each of them.
    fn may_list(&self, connection: &Connection<A::Cutter>, effort: &Effort) -> Result<(), Stop> {
        let awaits_others = connection.underway.is_put_off && !self.may_follow(connection);
        if self.is_clogged(connection) || awaits_others {
            return Err(Stop::Waits);
        }
        if effort.requests == 0 { Err(Stop::Effort) } else { Ok(()) }
    }

    fn route_requests<P: HostPort>(
        &mut self,
        connection: &mut Connection<A::Cutter>,
        message: &[u8],
        requests: &Requests,
        port: &mut P,
        effort: &mut Effort,
    ) -> Result<(), Stop> {
        while let Some(request) = requests.get(connection.underway.request) {
            // What the host has a part of goes on, whether its client takes replies or not.
            if connection.underway.forwarded == 0 && self.is_clogged(connection) {
                return Err(Stop::Waits);
            }
            if effort.requests == 0 {
                return Err(Stop::Effort);
            }
            let bytes = message.get(request.bytes.clone()).unwrap_or_default();
            if !bytes.is_empty() {
                self.route(connection, bytes, request, requests.keys(request), port, effort)?;
            }
            effort.requests -= 1;
            connection.underway.request += 1;
            connection.underway.routed_to = request.bytes.end;
            connection.underway.forwarded = 0;
            connection.underway.refused = None;
        }
        Ok(())
    }

    /// Gives a request to the card or to the host.
    fn route<P: HostPort>(
        &mut self,
        connection: &mut Connection<A::Cutter>,
        bytes: &[u8],
        request: &Request,
        keys: &[Key],
        port: &mut P,
        effort: &mut Effort,
    ) -> Result<(), Stop> {
        let refused = connection.underway.refused.filter(|_| connection.underway.forwarded > 0);
        let (reason, changes, may_change_standing) = match (request.route, refused) {
            (Route::Host { reason, changes, may_change_standing }, _) => {
                (reason, changes, may_change_standing)
            }
            (Route::Card, Some(reason)) => (reason, Changes::Nothing, false),
            (Route::Card, None) => match self.start(connection, bytes, request.id, keys) {
                Ok(context) => {
                    let is_settled = connection.is_settled();
                    connection.held += self.engine.held_len(context);
                    connection.pending.push_back(Pending::Card(context));
                    if is_settled && self.engine.state(context) == State::Ready {
                        connection.settled += 1;
                    }
                    return Ok(());
                }
                Err(reason) => {
                    connection.underway.refused = Some(reason);
                    (reason, Changes::Nothing, false)
                }
            },
        };
        // A client that has its session from a host that is gone, or was refused one, may go on as if it had it.
        connection.has_session |= may_change_standing;
        if !self.stream.is_here() {
            let said = self.unavailable(request.id);
            connection.pending.push_back(Pending::Said(said));
            return Ok(());
        }
        if !self.may_follow(connection) {
            return Err(Stop::Waits);
        }
        let mut forwarded = connection.underway.forwarded;
        let outgoing = Outgoing { number: connection.key.number(), bytes, keys, changes, reason };
        let stamp = self.forward(&outgoing, connection.is_announced, &mut forwarded, port, effort);
        connection.underway.forwarded = forwarded;
        let stamp = stamp?;
        if connection.is_settled() {
            connection.settled += 1;
        }
        connection.pending.push_back(Pending::Host(Forwarded::new(stamp, request.id)));
        if may_change_standing {
            // Nothing behind it is looked at before its reply, and what the host then says of the connection holds.
            connection.standing_from = stamp;
            connection.awaits_standing = !is_planted(Bug::StandingKept);
        }
        Ok(())
    }

    /// Whether a connection waits for replies, its own or the client's taking of them, before more of it is looked at.
    pub(crate) fn is_clogged(&self, connection: &Connection<A::Cutter>) -> bool {
        connection.awaits_standing
            || connection.pending.len() >= self.config.pending_max
            || (connection.output.len() >= self.config.output_len_max && !is_planted(Bug::NeverClogged))
            || connection.held >= self.config.held_len_max
    }

    /// Whether a request may be forwarded now: none before it may fall back behind it. Where replies carry ids, nobody is
    /// promised an order.
    fn may_follow(&self, connection: &Connection<A::Cutter>) -> bool {
        A::REPLIES == ReplyOrder::ById || connection.is_settled() || is_planted(Bug::ForwardPastRead)
    }

    fn start(
        &mut self,
        connection: &Connection<A::Cutter>,
        bytes: &[u8],
        id: u64,
        keys: &[Key],
    ) -> Result<ContextId, Reason> {
        if !connection.is_matched {
            return Err(Reason::NotMatched);
        }
        if !connection.standing.is_admitted() && !is_planted(Bug::ServedUnadmitted) {
            return Err(Reason::NotAdmitted);
        }
        let now = self.stream.clock().latest(self.now.unix_ms);
        self.engine.start(connection.key.0, id, bytes, keys, now)
    }

    fn unavailable(&mut self, id: u64) -> Vec<u8> {
        let mut said = Vec::new();
        self.application.unavailable(id, false, &mut said);
        self.counts.unavailable += 1;
        said
    }

    /// Puts a request into the stream, from `from` on. Its stamp is given, and what it changes invalidated, with the last of
    /// it: so the stream's order is the order of stamps (rules 1 and 2).
    fn forward<P: HostPort>(
        &mut self,
        outgoing: &Outgoing<'_>,
        is_announced: bool,
        from: &mut usize,
        port: &mut P,
        effort: &mut Effort,
    ) -> Result<u64, Stop> {
        let is_turn = effort.is_first || self.awaiting_stream.is_empty() || is_planted(Bug::PassedBy);
        if !is_turn || !is_announced || !self.stream.has_begun() || !self.control.is_empty() {
            return Err(Stop::NoRoom);
        }
        loop {
            let rest = outgoing.bytes.get(*from..).unwrap_or_default();
            let bytes = rest.get(..FRAGMENT_LEN.min(rest.len())).unwrap_or_default();
            if !port.has_room(bytes.len()) {
                return Err(Stop::NoRoom);
            }
            if effort.bytes == 0 {
                return Err(if effort.is_first { Stop::NoRoom } else { Stop::Effort });
            }
            let stamp = self.stream.next();
            let is_last = bytes.len() == rest.len();
            let fragment = Fragment {
                connection: outgoing.number,
                stamp: if is_last { stamp.number() } else { 0 },
                length: u32::try_from(outgoing.bytes.len()).unwrap_or(u32::MAX),
                offset: *from as u32,
                bytes,
            };
            let is_late = is_planted(Bug::InvalidateAfterForward);
            if is_last && !is_late {
                self.invalidate(outgoing, stamp);
            }
            port.send(&FromCard::Request(fragment));
            effort.bytes = effort.bytes.saturating_sub(bytes.len());
            effort.forwarded = true;
            if is_last {
                if is_late {
                    self.invalidate(outgoing, stamp);
                }
                self.stream.given(stamp, self.now);
                self.engine.given(stamp);
                self.counts.host.add(outgoing.reason);
                return Ok(stamp.number());
            }
            *from += bytes.len();
        }
    }

    fn invalidate(&mut self, outgoing: &Outgoing<'_>, stamp: Stamp) {
        match outgoing.changes {
            Changes::Nothing => {}
            Changes::Keys => outgoing.keys.iter().for_each(|key| self.engine.invalidate(key, stamp)),
            Changes::Everything => self.engine.clear(stamp),
        }
    }

    /// Looks at what the engine has done, in the order of the requests: what the host has to answer after all is forwarded.
    fn settle<P: HostPort>(
        &mut self,
        connection: &mut Connection<A::Cutter>,
        port: &mut P,
        effort: &mut Effort,
    ) {
        // Where replies carry ids, those that read are passed by, and looked at again.
        let mut at = if A::REPLIES == ReplyOrder::ById { 0 } else { connection.settled };
        while let Some(pending) = connection.pending.get(at) {
            let Pending::Card(context) = pending else {
                at += 1;
                continue;
            };
            let (context, number) = (*context, connection.key.number());
            match self.engine.state(context) {
                State::Ready => {}
                State::Reading if A::REPLIES == ReplyOrder::ById => {}
                State::Reading => break,
                // Fragments of a connection's request follow each other without a gap.
                State::Host(_) if connection.underway.forwarded > 0 => {}
                State::Host(reason) => {
                    let replaced = self.fall_back(connection, context, number, reason, port, effort);
                    let Some(replaced) = replaced else {
                        self.await_stream(connection);
                        break;
                    };
                    connection.held -= self.engine.held_len(context);
                    self.engine.abandon(context);
                    let is_forwarded = matches!(replaced, Pending::Host(_));
                    if let Some(place) = connection.pending.get_mut(at) {
                        *place = replaced;
                    }
                    if is_forwarded && A::REPLIES == ReplyOrder::AsAsked && !is_planted(Bug::FallbackAlone) {
                        self.take_along(connection, at + 1);
                    }
                }
            }
            at += 1;
        }
        connection.settled = at;
    }

    /// Forwards a request that the card could not answer, or says that the host is away; nothing if there is no room.
    fn fall_back<P: HostPort>(
        &mut self,
        connection: &Connection<A::Cutter>,
        context: ContextId,
        number: ConnectionId,
        reason: Reason,
        port: &mut P,
        effort: &mut Effort,
    ) -> Option<Pending> {
        let (bytes, id) = self.engine.request(context);
        if !self.stream.is_here() {
            return Some(Pending::Said(self.unavailable(id)));
        }
        // The engine's own copy is lent to the stream, which lies beside the engine.
        self.scratch.clear();
        self.scratch.extend_from_slice(bytes);
        let bytes = std::mem::take(&mut self.scratch);
        let outgoing = Outgoing { number, bytes: &bytes, keys: &[], changes: Changes::Nothing, reason };
        let stamp = self.forward(&outgoing, connection.is_announced, &mut 0, port, effort);
        self.scratch = bytes;
        Some(Pending::Host(Forwarded::new(stamp.ok()?, id)))
    }

    /// What was started behind a request that is the host's after all took effect before it: it is done again, behind it.
    fn take_along(&mut self, connection: &Connection<A::Cutter>, from: usize) {
        for pending in connection.pending.iter().skip(from) {
            if let Pending::Card(context) = pending {
                self.engine.retract(*context);
            }
        }
    }

    /// Moves replies to the output: those at the front, or, where they carry ids, all that are there.
    fn flush(&mut self, connection: &mut Connection<A::Cutter>) {
        let mut within = connection.within_reply();
        let mut at = within.unwrap_or(0);
        while at < connection.settled {
            if self.emit(connection, at) {
                connection.pending.remove(at);
                connection.settled -= 1;
                connection.gathered += 1;
                at = if within.take().is_some() { 0 } else { at };
            } else if A::REPLIES == ReplyOrder::AsAsked || connection.is_within(at) {
                break;
            } else {
                at += 1;
            }
        }
        if !connection.is_to_be_sent() {
            return;
        }
        if !self.gathers(connection) {
            connection.flags.is_dirty = true;
            self.dirty.push_back(connection.key);
        } else if !connection.flags.is_gathering {
            connection.flags.is_gathering = true;
            self.gathering.push_back((self.now.instant + self.config.gather, connection.key));
        }
    }

    /// Whether replies are to wait for those that follow: a send costs more than most replies, and reads that were begun together
    /// come back one by one. As soon as there are as many as still to come, they go; so a client that has one request out, or
    /// two, waits for nothing.
    fn gathers(&self, connection: &Connection<A::Cutter>) -> bool {
        connection.is_reading()
            && connection.gathered < connection.pending.len()
            && connection.output.len() < self.config.gather_len_max
    }

    /// Puts what there is of a reply into the output; whether that is all of it.
    fn emit(&mut self, connection: &mut Connection<A::Cutter>, at: usize) -> bool {
        let before = connection.output.len();
        let is_all = match connection.pending.get_mut(at) {
            Some(Pending::Card(context)) => {
                let is_ready = self.engine.state(*context) == State::Ready;
                if is_ready {
                    connection.held -= self.engine.held_len(*context);
                    self.engine.take_reply(*context, &mut connection.output);
                }
                is_ready
            }
            Some(Pending::Said(bytes)) => {
                connection.output.bytes(bytes);
                true
            }
            // What it has is counted since it came.
            Some(Pending::Host(forwarded)) => {
                connection.output.push_hosts(&std::mem::take(&mut forwarded.held));
                return forwarded.is_complete();
            }
            None => false,
        };
        let more = connection.output.len() - before;
        connection.unread += more;
        self.unread += more;
        is_all
    }

    /// Forgets what stands at a place and behind it.
    pub(crate) fn abandon(&mut self, connection: &mut Connection<A::Cutter>, from: usize) {
        for pending in connection.pending.drain(from.min(connection.pending.len())..) {
            match pending {
                Pending::Card(context) => {
                    connection.held -= self.engine.held_len(context);
                    self.engine.abandon(context);
                }
                Pending::Host(forwarded) => {
                    connection.unread -= forwarded.held.len();
                    self.unread -= forwarded.held.len();
                }
                Pending::Said(_) => {}
            }
        }
        connection.settled = connection.settled.min(connection.pending.len());
    }

    /// Puts a connection back, or ends it.
    fn conclude(&mut self, mut connection: Box<Connection<A::Cutter>>, stop: Stop) {
        let is_answered = connection.pending.is_empty() && connection.output.is_empty();
        let is_over = match connection.ending {
            Ending::Open => connection.is_ended && is_answered && stop == Stop::NoMessage,
            Ending::AfterReplies | Ending::Finished { .. } => connection.is_ended && is_answered,
            Ending::Gone => false,
        };
        if is_over {
            return self.forget(connection, true);
        }
        if connection.ending == Ending::AfterReplies && is_answered {
            let until = self.now.instant + self.config.linger;
            connection.ending = Ending::Finished { until };
            self.lingering.push_back(connection.key);
            self.actions.push_back(ConnectionAction::Finish(connection.net));
        }
        if connection.ending != Ending::Open {
            // Nothing of it is looked at any more, and the client's own end is behind it.
            connection.input.clear(&mut self.budget);
            connection.underway.requests = Requests::default();
        }
        if connection.flags.is_held_up && connection.input.room(&mut self.budget).is_some() {
            connection.flags.is_held_up = false;
            connection.progress_from = None;
            self.actions.push_back(ConnectionAction::Resume(connection.net));
        }
        let is_open = connection.ending == Ending::Open && !connection.is_ended;
        connection.flags.awaits_output = stop == Stop::Waits || !is_open;
        self.is_hungry |= connection.input.lacks() > 0 && self.budget.left() == 0;
        self.put_back(connection);
    }
}
