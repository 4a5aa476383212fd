//! What plans send to peers, and ask of them.

use ob_memory::Slice;

use super::channel::{Ask, Awaiter, ChannelKey, Head, Outgoing, Reply};
use super::dialect::{BEFORE_MAX, Dialect, Encoding, Found, Judgement, Parts, Told, ZEROS_MAX};
use super::flight::{Doing, Fetch, Flight, FlightKey, Memory};
use super::front::Front;
use super::memory::Need;
use super::port::Port;
use super::retained::{Before, Label};
use super::run::{Went, number};
use crate::engine::Engines;
use crate::plant::{Bug, is_planted};
use crate::wire::{
    Answers, ChannelId, CompletionStatus, HEADER_LEN, Header, REPLY_PAYLOAD_MAX, Register, Step,
};

/// A header that was made, by which tag its message is known here, and whether its peer says nothing to it.
struct Made {
    tag: u64,
    header: Head,
    is_answer: bool,
}

impl<F: Front, D: Dialect, E: Engines> Port<F, D, E> {
    /// Sends one message to each channel of the place, of the same bytes.
    pub(super) fn send(
        &mut self,
        key: FlightKey,
        flight: &mut Flight,
        piece: u16,
        register: Option<Register>,
    ) -> Went {
        let refused = Went::Failed(CompletionStatus::Refused);
        if !self.dialect.has_room(&flight.entry.posted()) {
            flight.piece_mut(piece).doing = Doing::ChunkRoom;
            self.room_line.push_back((key, piece));
            return Went::Waits;
        }
        let payload = match register {
            Some(register) => match self.source(flight, piece, register) {
                Some(shared) => Some(shared),
                None => return refused,
            },
            None => None,
        };
        let Some(mut head) = flight.piece_mut(piece).heads.pop() else { return refused };
        let len = payload.as_ref().map_or(0, |payload| payload.len() as u32);
        let found = register.map_or(Found::default(), |register| flight.known(piece, register));
        let found = Found { len, ..found };
        let len_before = BEFORE_MAX.min(head.len());
        let mut headers = head.split_off(len_before);
        head.fill(0);
        let posted = flight.entry.posted();
        let place = match self.dialect.place(self.now, &posted, number(piece), &found, &mut head) {
            Ok(place) => place,
            Err(reject) => return reject.into(),
        };
        if place.channels.as_slice().is_empty() {
            return Went::Failed(CompletionStatus::NoMember);
        }
        head.truncate(place.before_len.into());
        let before = head.share();
        flight.piece_mut(piece).before = Before::of(&before);
        let zeros = place.zeros.min(ZEROS_MAX);
        let patience = place.patience;
        flight.piece_mut(piece).is_unmerged = true;
        // What comes with such a reply is kept beside others, which are not long.
        let reply_len_max = place.reply_len_max.min(REPLY_PAYLOAD_MAX as u32);
        for (member, channel) in place.channels.as_slice().iter().enumerate() {
            let payload_len = before.len() as u32 + len + u32::from(zeros);
            let made = self.make_header(flight, piece, *channel, payload_len, &mut headers);
            let Made { tag, header, is_answer } = made;
            let before = Some(before.clone());
            let message = Outgoing { header, before, payload: payload.clone(), zeros };
            let round = flight.piece(piece).round;
            let awaiter = Awaiter { flight: key, piece, member: member as u8, is_fetch: false, round };
            let ask = Ask { awaiter, reply_len_max, patience, into: None, is_answer };
            let is_sent = self.wires.ask(self.now, *channel, tag, message, ask).is_ok();
            let of = flight.piece_mut(piece);
            if is_sent {
                of.awaited += 1;
            } else {
                of.bad = of.bad.saturating_add(1);
                of.bad_members |= 1 << member;
            }
            if is_sent
                && let Some(held) =
                    self.messages.get_mut(flight.entry.handle).filter(|_| flight.entry.has_message)
            {
                held.was_sent = true;
            }
        }
        Went::On
    }

    /// Looks again at those that wait until less is under way, each once, if something has come to its end.
    pub(super) fn take_room(&mut self) -> bool {
        if !std::mem::take(&mut self.has_ended) {
            return false;
        }
        let count = self.room_line.len();
        for _ in 0..count {
            let Some((key, piece)) = self.room_line.pop_front() else { break };
            if let Some(flight) = self.flights.get_mut(key) {
                flight.piece_mut(piece).doing = Doing::Nothing;
                self.ready.push_back((key, piece));
            }
        }
        count > 0
    }

    fn make_header(
        &mut self,
        flight: &Flight,
        piece: u16,
        channel: ChannelId,
        payload_len: u32,
        headers: &mut Slice,
    ) -> Made {
        let mut header = self.dialect.header(&flight.entry.posted(), number(piece), channel);
        let (tag, is_answer) = (self.wires.take_tag(), header.is_reply());
        (header.magic, header.payload_len) = (self.dialect.magic(), payload_len);
        // An answer has the tag of what its peer has asked.
        if !is_answer {
            header.tag = tag;
        }
        let mut place = headers.split_to(HEADER_LEN);
        place.copy_from_slice(&header.encode());
        Made { tag, header: Head::Shared(place.share()), is_answer }
    }

    /// Asks the next channel.
    pub(super) fn fetch(&mut self, key: FlightKey, flight: &mut Flight, piece: u16, into: Register) -> Went {
        let at = flight.piece(piece).at;
        if flight.piece(piece).fetch.as_ref().is_none_or(|fetch| fetch.at != at) {
            if self.find_kept(flight, piece, into) {
                return Went::On;
            }
            match self.begin_fetch(flight, piece, into) {
                Went::Again => {}
                went => return went,
            }
        }
        let of = flight.piece_mut(piece);
        let Some(mut fetch) = of.fetch.take() else { return Went::Failed(CompletionStatus::Refused) };
        let Some(mut room) = of.take_room(into) else { return Went::Failed(CompletionStatus::Refused) };
        while let Some((member, channel)) = self.next_member(&fetch) {
            let awaiter = Awaiter { flight: key, piece, member, is_fetch: true, round: 0 };
            (fetch.asked, fetch.last) = (fetch.asked | 1 << member, member);
            let payload_len = fetch.before.len() as u32;
            let made = self.make_header(flight, piece, channel, payload_len, &mut fetch.headers);
            let Made { tag, header, .. } = made;
            let before = Some(fetch.before.clone());
            let message = Outgoing { header, before, payload: None, zeros: 0 };
            let (reply_len_max, patience) =
                (fetch.place.reply_len_max.min(room.len() as u32), fetch.place.patience);
            let ask = Ask { awaiter, reply_len_max, patience, into: Some(room), is_answer: false };
            match self.wires.ask(self.now, channel, tag, message, ask) {
                Ok(()) => {
                    let of = flight.piece_mut(piece);
                    of.doing = Doing::Fetch(awaiter.member);
                    of.fetch = Some(fetch);
                    return Went::Waits;
                }
                Err(Ask { into: Some(slice), .. }) => room = slice,
                Err(_) => return Went::Failed(CompletionStatus::Refused),
            }
        }
        Went::Failed(if fetch.saw_bad { CompletionStatus::NotVerified } else { CompletionStatus::NoMember })
    }

    /// Looks whether what is to be fetched is retained. It is verified as if a peer had given it.
    fn find_kept(&mut self, flight: &mut Flight, piece: u16, into: Register) -> bool {
        if !self.records.retains() || flight.piece(piece).is_kept_bad {
            return false;
        }
        let Some(label) = self.label_sought(flight, piece) else { return false };
        let Some(kept) = self.records.find(label) else { return false };
        let (before, payload) = (kept.before, kept.payload.clone());
        self.spend(payload.len());
        let mut parts = std::mem::take(&mut flight.piece_mut(piece).parts);
        parts.clear();
        let posted = flight.entry.posted();
        let (before, len) = (before.as_slice(), payload.len() as u32);
        let judgement = self.dialect.accept_kept(&posted, number(piece), before, &payload, &mut parts);
        let is_good = judgement == Judgement::Good && self.fits(flight, piece, into, &parts, len);
        let of = flight.piece_mut(piece);
        (of.parts, of.part) = (parts, 0);
        if is_good {
            of.know(into, Found { len, encoding: Encoding::Plain, crc: None });
            // It may not decode, and is fetched then.
            of.spare = of.take_room(into);
            of.put(into, Memory::Written(payload));
        } else {
            self.records.forget(label);
            of.is_kept_bad = true;
        }
        is_good
    }

    /// By what that which a piece fetches may be retained.
    fn label_sought(&self, flight: &Flight, piece: u16) -> Option<Label> {
        let name = self.dialect.sought(&flight.entry.posted(), number(piece))?;
        self.slots.label(name.slot, name.place)
    }

    /// Whether parts lie in what was fetched to a register, and in what they are to be written into.
    fn fits(&self, flight: &Flight, piece: u16, register: Register, parts: &Parts, len: u32) -> bool {
        let place_len = self.decoded_len(flight, piece, register);
        parts.as_slice().iter().all(|part| {
            part.ranges().is_some_and(|(from, into)| {
                let is_there = part.encoding == Encoding::Zeros || from.end <= len as usize;
                is_there && place_len.is_none_or(|len| into.end <= len)
            })
        })
    }

    /// Who is asked next: of those that were not, the first that has room for it, or else the first.
    fn next_member(&self, fetch: &Fetch) -> Option<(u8, ChannelId)> {
        let channels = fetch.place.channels.as_slice();
        let count = channels.len().max(1);
        let places = (0..count).map(|at| (usize::from(fetch.place.first) + at) % count);
        let left = places.filter(|place| fetch.asked >> place & 1 == 0);
        let left = left.filter_map(|place| Some((place as u8, *channels.get(place)?)));
        let has_room = |(_, channel): &(u8, ChannelId)| self.wires.has_room(*channel);
        left.clone().find(has_room).or_else(|| left.clone().next())
    }

    /// Finds out where to fetch from; `Again` if somebody is to be asked.
    fn begin_fetch(&mut self, flight: &mut Flight, piece: u16, into: Register) -> Went {
        let of = flight.piece_mut(piece);
        let Some(mut head) = of.heads.pop() else { return Went::Failed(CompletionStatus::Refused) };
        let found = of.found;
        let len_before = BEFORE_MAX.min(head.len());
        let headers = head.split_off(len_before);
        head.fill(0);
        let posted = flight.entry.posted();
        let place = match self.dialect.place(self.now, &posted, number(piece), &found, &mut head) {
            Ok(place) => place,
            Err(reject) => return reject.into(),
        };
        if place.channels.as_slice().is_empty() {
            let Some(room) = flight.piece_mut(piece).take_room(into) else {
                return Went::Failed(CompletionStatus::Refused);
            };
            return match self.accept(flight, piece, into, None, room, 0) {
                Judgement::Good => Went::On,
                Judgement::Next => Went::Failed(CompletionStatus::NoMember),
                Judgement::Bad => Went::Failed(CompletionStatus::NotVerified),
            };
        }
        head.truncate(place.before_len.into());
        let asked = place.skipped;
        let at = flight.piece(piece).at;
        let fetch = Fetch { at, place, before: head.share(), headers, asked, last: 0, saw_bad: false };
        flight.piece_mut(piece).fetch = Some(fetch);
        Went::Again
    }

    /// Has the dialect look at what was fetched; what is good is written, and else its memory is there for another.
    fn accept(
        &mut self,
        flight: &mut Flight,
        piece: u16,
        register: Register,
        reply: Option<(ChannelId, &Header)>,
        mut room: Slice,
        len: u32,
    ) -> Judgement {
        // Whoever accepts it looks at all of it.
        self.spend(len as usize);
        let payload = room.get(..len as usize).unwrap_or_default();
        let mut parts = std::mem::take(&mut flight.piece_mut(piece).parts);
        parts.clear();
        let posted = flight.entry.posted();
        let mut judgement = self.dialect.accept(&posted, number(piece), reply, payload, &mut parts);
        if judgement == Judgement::Good && !self.fits(flight, piece, register, &parts, len) {
            judgement = Judgement::Bad;
        }
        let of = flight.piece_mut(piece);
        (of.parts, of.part) = (parts, 0);
        if judgement == Judgement::Good {
            room.truncate(len as usize);
            of.know(register, Found { len, encoding: Encoding::Plain, crc: None });
            of.put(register, Memory::Written(room.share()));
        } else {
            of.put(register, Memory::Room(room));
        }
        judgement
    }

    /// What was fetched cannot be decoded: whoever gave it is bad, and another is asked.
    pub(super) fn fetch_again(&mut self, flight: &mut Flight, piece: u16, fetched: Register) -> Went {
        let not_verified = Went::Failed(CompletionStatus::NotVerified);
        if is_planted(Bug::DecodeUnretried) {
            return not_verified;
        }
        let into = |(at, step): (u8, Step)| (step == Step::Fetch { into: fetched }).then_some(at);
        let Some(at) = flight.steps_of(piece).find_map(into) else { return not_verified };
        let of = flight.piece_mut(piece);
        if let Some(fetch) = of.fetch.as_mut().filter(|fetch| fetch.at == at) {
            fetch.saw_bad = true;
            of.bad_members |= 1 << fetch.last;
        } else if std::mem::replace(&mut of.is_kept_bad, true) {
            return not_verified;
        } else {
            // It was retained: members are asked, none of which was, and nothing is known of what they will give.
            of.found = Found::default();
            if let Some(label) = self.label_sought(flight, piece) {
                self.records.forget(label);
            }
        }
        let of = flight.piece_mut(piece);
        of.scratch = None;
        of.put(fetched, Memory::Nothing);
        let spare = of.spare.take();
        let len = self.dialect.memory(&flight.entry.posted(), number(piece), fetched);
        // What is shared cannot be written again; its block is free now, and so another is.
        let room = spare.or_else(|| self.memory.take(Need::Bytes(len)));
        let Some(room) = room else { return not_verified };
        let of = flight.piece_mut(piece);
        of.put(fetched, Memory::Room(room));
        of.at = at;
        Went::Again
    }

    /// How long that is into which what is fetched to this register will be decoded.
    fn decoded_len(&self, flight: &Flight, piece: u16, fetched: Register) -> Option<usize> {
        let into = flight.steps_of(piece).find_map(|(_, step)| match step {
            Step::Decode { from, into } if from == fetched => Some(into),
            _ => None,
        })?;
        if into == Register::ANSWER {
            return Some(flight.entry.posted().message.map_or(0, |message| message.answer_len as usize));
        }
        if flight.is_record(Step::Decode { from: fetched, into }, into) {
            return Some(self.dialect.memory(&flight.entry.posted(), number(piece), into) as usize);
        }
        Some(flight.piece(piece).room_len(into).unwrap_or(0))
    }

    /// A peer has replied.
    pub(super) fn replied(&mut self, channel: ChannelKey, reply: Reply) {
        let Reply { awaiter, header, into, len } = reply;
        self.has_ended = true;
        let (key, piece) = (awaiter.flight, awaiter.piece);
        let Some(mut flight) = self.flights.take(key) else { return };
        let at = flight.piece(piece).at;
        if awaiter.is_fetch {
            flight.piece_mut(piece).doing = Doing::Nothing;
            let step = flight.steps().get(usize::from(at)).copied();
            if let (Some(Step::Fetch { into: register }), Some(room)) = (step, into) {
                if flight.is_orphan {
                    flight.piece_mut(piece).put(register, Memory::Room(room));
                } else {
                    let from = Some((channel.channel, &header));
                    match self.accept(&mut flight, piece, register, from, room, len) {
                        Judgement::Good => flight.piece_mut(piece).at = at + 1,
                        Judgement::Next => {}
                        Judgement::Bad => {
                            let of = flight.piece_mut(piece);
                            of.bad_members |= 1 << awaiter.member;
                            of.fetch.iter_mut().for_each(|fetch| fetch.saw_bad = true);
                        }
                    }
                }
            }
        } else if awaiter.round == flight.piece(piece).round {
            let is_good = !flight.is_orphan && {
                let posted = flight.entry.posted();
                self.dialect.judge(&posted, number(piece), channel.channel, &header) == Judgement::Good
            };
            if flight.told == Told::Reply {
                flight.keep_reply(&header.encode(), self.wires.small(channel, len));
            }
            answered(&mut flight, awaiter, is_good);
        }
        self.flights.put(key, flight);
        self.ready.push_back((key, piece));
    }

    /// An answer to a peer is sent, which was all.
    pub(super) fn delivered(&mut self, awaiter: Awaiter) {
        self.has_ended = true;
        let (key, piece) = (awaiter.flight, awaiter.piece);
        let Some(mut flight) = self.flights.take(key) else { return };
        if awaiter.round == flight.piece(piece).round {
            answered(&mut flight, awaiter, true);
        }
        self.flights.put(key, flight);
        self.ready.push_back((key, piece));
    }

    /// A peer will not reply: its channel is gone, or it took too long.
    pub(super) fn not_replied(&mut self, awaiter: Awaiter, memory: Option<Slice>) {
        let (key, piece) = (awaiter.flight, awaiter.piece);
        let Some(mut flight) = self.flights.take(key) else { return };
        if awaiter.is_fetch {
            let at = usize::from(flight.piece(piece).at);
            let step = flight.steps().get(at).copied();
            let of = flight.piece_mut(piece);
            of.doing = Doing::Nothing;
            if let (Some(Step::Fetch { into }), Some(room)) = (step, memory) {
                of.put(into, Memory::Room(room));
            }
        } else if awaiter.round == flight.piece(piece).round {
            answered(&mut flight, awaiter, false);
        }
        self.flights.put(key, flight);
        self.ready.push_back((key, piece));
    }
}

/// Awaits answers to what was sent.
pub(super) fn merge(flight: &mut Flight, piece: u16, answers: Answers) -> Went {
    let of = flight.piece_mut(piece);
    let is_there = answers == Answers::First && of.good > 0;
    if of.awaited > 0 && !is_there {
        of.doing = Doing::Merge;
        return Went::Waits;
    }
    let (good, bad) = (std::mem::take(&mut of.good), std::mem::take(&mut of.bad));
    // Who has not answered by now need not any more, and does not answer what is sent next.
    (of.awaited, of.round, of.is_unmerged) = (0, of.round.wrapping_add(1), false);
    match answers {
        Answers::All if bad > 0 => Went::Failed(CompletionStatus::Broken),
        Answers::First if good == 0 => Went::Failed(CompletionStatus::NoMember),
        Answers::All | Answers::First => Went::On,
    }
}

/// One of those that were sent to has answered, or will not.
fn answered(flight: &mut Flight, awaiter: Awaiter, is_good: bool) {
    let of = flight.piece_mut(awaiter.piece);
    of.awaited = of.awaited.saturating_sub(1);
    if is_good {
        of.good = of.good.saturating_add(1);
    } else {
        of.bad = of.bad.saturating_add(1);
        of.bad_members |= 1 << awaiter.member;
    }
    if of.doing == Doing::Merge {
        of.doing = Doing::Nothing;
    }
}
