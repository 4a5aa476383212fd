//! The stream with a service that echoes, and a card that is played by the test.

use super::*;

/// Answers each request with its own bytes; one that begins with `slow` when it is told to.
#[derive(Default)]
struct Echo {
    answers: VecDeque<Answer>,
    attested: VecDeque<(u64, Vec<u8>, Item)>,
    slow: Vec<Answer>,
    applied: Vec<(u64, Vec<u8>)>,
    gone: Vec<ConnectionId>,
    greatest: u64,
    begun: Vec<u64>,
    settled: u64,
    is_busy: bool,
    is_full: bool,
    /// How many answers wait at most, if that counts.
    answers_max: Option<usize>,
}

impl Service for Echo {
    type Session = u32;

    fn opened(&mut self, _: ConnectionId, _: SocketAddr) -> u32 {
        0
    }

    fn standing(session: &u32) -> u32 {
        *session
    }

    fn has_room(&self) -> bool {
        !self.is_full && self.answers_max.is_none_or(|most| self.answers.len() < most)
    }

    fn closed(&mut self, connection: ConnectionId, _: u32) {
        self.gone.push(connection);
    }

    fn request(&mut self, _: Now, connection: ConnectionId, stamp: u64, session: &mut u32, request: &[u8]) {
        if request.starts_with(b"hello") {
            *session = 3;
        }
        self.greatest = stamp;
        self.applied.push((stamp, request.to_vec()));
        let answer = Answer {
            connection,
            stamp,
            bytes: request.to_vec(),
            attest: request.starts_with(b"get").then(|| (request.to_vec(), ITEM)),
            closes: request.starts_with(b"quit"),
        };
        if request.starts_with(b"slow") {
            self.slow.push(answer);
        } else {
            self.answers.push_back(answer);
        }
    }

    fn is_ready(&self) -> bool {
        !self.is_busy
    }

    fn next_answer(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }

    fn next_attested(&mut self) -> Option<(u64, Vec<u8>, Item)> {
        self.attested.pop_front()
    }

    fn recycle(&mut self, _: Vec<u8>) {}

    fn greatest_stamp(&self) -> u64 {
        self.greatest
    }

    fn recovered(&self) -> Recovered {
        Recovered { store: [7; 16], end: 99 }
    }

    fn begins(&mut self, stamp: u64) {
        self.begun.push(stamp);
    }

    fn settled(&self) -> u64 {
        self.settled
    }
}

const ITEM: Item = Item { part: 1, offset: 64, value_length: 3, stamp: 9, expires: None };
const ONE: ConnectionId = ConnectionId(1);
const TWO: ConnectionId = ConnectionId(2);

fn address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1))
}

/// What was said, in words, and at most `room` frames of it.
fn said_up_to(stream: &mut HostStream<Echo>, room: usize) -> Vec<String> {
    let mut said = Vec::new();
    stream.send(&mut |frame| {
        if said.len() == room {
            return false;
        }
        said.push(match frame {
            FromHost::Reply(fragment) => {
                let Fragment { connection, stamp, length, offset, bytes } = fragment;
                format!("reply {} {stamp}: {offset}+{} of {length}", connection.0, bytes.len())
            }
            FromHost::Attest { stamp, entries } => format!("attest {} as of {stamp}", entries.count()),
            other => format!("{other:?}"),
        });
        true
    });
    said
}

fn said(stream: &mut HostStream<Echo>) -> Vec<String> {
    said_up_to(stream, usize::MAX)
}

fn running(limits: HostLimits) -> HostStream<Echo> {
    let mut stream = HostStream::new(Echo::default(), limits);
    assert_eq!(said(&mut stream).len(), 1, "the host meets the card");
    stream.received(Now::default(), &FromCard::Begin { stamp: 10 }).unwrap();
    for connection in [ONE, TWO] {
        stream.received(Now::default(), &FromCard::Opened { connection, address: address() }).unwrap();
    }
    stream
}

fn request(
    stream: &mut HostStream<Echo>,
    connection: ConnectionId,
    stamp: u64,
    bytes: &[u8],
) -> Result<(), HostFault> {
    let length = bytes.len() as u32;
    stream.received(
        Now::default(),
        &FromCard::Request(Fragment { connection, stamp, length, offset: 0, bytes }),
    )
}

#[test]
fn a_long_reply_does_not_use_up_the_credit_of_a_slow_one_before_it() {
    let mut stream = running(HostLimits::default());
    request(&mut stream, ONE, 10, b"slow").unwrap();
    request(&mut stream, ONE, 11, &vec![b'x'; CREDIT_LEN as usize]).unwrap();
    request(&mut stream, TWO, 12, b"other").unwrap();
    assert_eq!(said(&mut stream), ["reply 2 12: 0+5 of 5"]);
    let slow = std::mem::take(&mut stream.service_mut().slow);
    stream.service_mut().answers.extend(slow);
    let replies = said(&mut stream);
    assert_eq!(replies[0], "reply 1 10: 0+4 of 4");
    assert_eq!(replies.len(), 1 + CREDIT_LEN as usize / FRAGMENT_LEN);
    assert_eq!(replies[4], format!("reply 1 11: {}+{} of {CREDIT_LEN}", 3 * FRAGMENT_LEN, FRAGMENT_LEN - 4));
    stream.received(Now::default(), &FromCard::Credit { connection: ONE, length: 4 }).unwrap();
    assert_eq!(said(&mut stream), [format!("reply 1 11: {}+4 of {CREDIT_LEN}", CREDIT_LEN - 4)]);
}

#[test]
fn an_answer_of_an_earlier_life_is_told_to_nobody() {
    let mut stream = running(HostLimits::default());
    request(&mut stream, ONE, 10, b"slow").unwrap();
    stream.ended();
    assert_eq!(said(&mut stream).len(), 1, "the host meets the card");
    stream.received(Now::default(), &FromCard::Begin { stamp: 20 }).unwrap();
    stream.received(Now::default(), &FromCard::Opened { connection: ONE, address: address() }).unwrap();
    request(&mut stream, ONE, 21, b"new").unwrap();
    let slow = std::mem::take(&mut stream.service_mut().slow);
    stream.service_mut().answers.extend(slow);
    assert_eq!(said(&mut stream), ["reply 1 21: 0+3 of 3"]);
}

#[test]
fn answers_of_an_earlier_life_leave_room_for_the_meeting() {
    let mut stream = running(HostLimits::default());
    stream.service_mut().answers_max = Some(2);
    request(&mut stream, ONE, 10, b"slow one").unwrap();
    request(&mut stream, TWO, 11, b"slow two").unwrap();
    stream.ended();
    // They are done while there is no card to be told.
    let slow = std::mem::take(&mut stream.service_mut().slow);
    stream.service_mut().answers.extend(slow);
    assert!(!stream.has_room());
    assert_eq!(said(&mut stream).len(), 1, "the host meets the card");
    assert!(stream.has_room(), "whoever drives it would not hear how the stream begins");
    stream.received(Now::default(), &FromCard::Begin { stamp: 20 }).unwrap();
    assert!(stream.is_running());
    assert_eq!(said(&mut stream), [] as [&str; 0]);
}

#[test]
fn requests_are_applied_and_answered() {
    let mut stream = running(HostLimits::default());
    request(&mut stream, ONE, 10, b"hello").unwrap();
    request(&mut stream, TWO, 12, b"get").unwrap();
    request(&mut stream, ONE, 13, b"quit").unwrap();
    assert_eq!(
        said(&mut stream),
        [
            "Standing { connection: connection 1, stamp: 10, word: 3 }",
            "reply 1 10: 0+5 of 5",
            "Close { connection: connection 1, stamp: 13 }",
            "reply 1 13: 0+4 of 4",
            "reply 2 12: 0+3 of 3",
            "attest 1 as of 12",
        ]
    );
    assert_eq!(said(&mut stream), [""; 0]);
    stream.received(Now::default(), &FromCard::Closed { connection: ONE }).unwrap();
    assert_eq!((stream.clients(), &stream.service().gone), (1, &vec![ONE]));
    assert_eq!(request(&mut stream, ONE, 14, b"get"), Err(HostFault::Connection(ONE)));
}

#[test]
fn a_full_ring_loses_and_doubles_nothing() {
    let all = |room: usize| {
        let mut stream = running(HostLimits::default());
        stream.name_file(4, NodeId(44));
        stream.service_mut().settled = 4096;
        for (stamp, text) in [(10, "hello"), (11, "get 1"), (12, "get 2"), (13, "quit")] {
            request(&mut stream, ONE, stamp, text.as_bytes()).unwrap();
        }
        let mut frames = Vec::new();
        loop {
            let some = said_up_to(&mut stream, room);
            if some.is_empty() {
                return frames;
            }
            frames.extend(some);
        }
    };
    let whole = all(usize::MAX);
    assert_eq!(whole.len(), 9, "{whole:?}");
    for room in 1..9 {
        assert_eq!(all(room), whole, "{room} at a time");
    }
}

#[test]
fn fragments_are_put_together_and_others_pass_between_them() {
    let mut stream = running(HostLimits::default());
    let long = vec![b'x'; 10];
    let part = |offset: usize, len: usize, stamp| {
        let bytes = &long[offset..offset + len];
        FromCard::Request(Fragment { connection: ONE, stamp, length: 10, offset: offset as u32, bytes })
    };
    stream.received(Now::default(), &part(0, 4, 0)).unwrap();
    request(&mut stream, TWO, 10, b"get").unwrap();
    stream.received(Now::default(), &part(4, 4, 0)).unwrap();
    stream.received(Now::default(), &part(8, 2, 11)).unwrap();
    assert_eq!(stream.service().applied, [(10, b"get".to_vec()), (11, long.clone())]);
    stream.received(Now::default(), &part(0, 4, 0)).unwrap();
    assert_eq!(
        stream.received(Now::default(), &part(5, 4, 0)),
        Err(HostFault::Fragment(ONE)),
        "one is missing"
    );
    let other = Fragment { connection: ONE, stamp: 0, length: 11, offset: 4, bytes: &long[..4] };
    assert_eq!(
        stream.received(Now::default(), &FromCard::Request(other)),
        Err(HostFault::Fragment(ONE)),
        "another length"
    );
    let mut small = running(HostLimits { request_len: 9, ..HostLimits::default() });
    assert_eq!(small.received(Now::default(), &part(0, 4, 0)), Err(HostFault::Fragment(ONE)), "too long");
}

#[test]
fn the_card_keeps_to_the_order() {
    let mut stream = HostStream::new(Echo { greatest: 5, ..Echo::default() }, HostLimits::default());
    let begin = |stamp| FromCard::Begin { stamp };
    assert_eq!(stream.received(Now::default(), &begin(6)), Err(HostFault::Meeting), "the host speaks first");
    said(&mut stream);
    let opened = FromCard::Opened { connection: ONE, address: address() };
    assert_eq!(stream.received(Now::default(), &opened), Err(HostFault::Meeting));
    assert_eq!(stream.received(Now::default(), &begin(5)), Err(HostFault::Stamp(5)), "an old stamp");
    stream.received(Now::default(), &begin(6)).unwrap();
    assert_eq!(stream.service().begun, [6]);
    assert_eq!(stream.received(Now::default(), &begin(7)), Err(HostFault::Meeting), "once");
    stream.received(Now::default(), &opened).unwrap();
    assert_eq!(stream.received(Now::default(), &opened), Err(HostFault::Connection(ONE)), "twice");
    request(&mut stream, ONE, 8, b"get").unwrap();
    assert_eq!(request(&mut stream, ONE, 8, b"get"), Err(HostFault::Stamp(8)));
    assert_eq!(request(&mut stream, ONE, 7, b"get"), Err(HostFault::Stamp(7)));
    stream.ended();
    assert_eq!((stream.clients(), stream.is_running()), (0, false));
    assert!(said(&mut stream)[0].starts_with("Meet { stamp: 8"), "and begins anew");
}

#[test]
fn replies_wait_for_credit_and_a_client_that_takes_none_is_closed() {
    let mut stream = running(HostLimits { replies_len: 1_000_000, ..HostLimits::default() });
    let long = vec![b'y'; 300_000];
    request(&mut stream, ONE, 10, &long).unwrap();
    request(&mut stream, TWO, 11, b"get").unwrap();
    let frames = said(&mut stream);
    assert_eq!(frames.iter().filter(|frame| frame.starts_with("reply 1 10")).count(), 4, "{frames:?}");
    assert!(frames.contains(&"reply 2 11: 0+3 of 3".to_owned()), "the other one is not held up");
    stream.received(Now::default(), &FromCard::Credit { connection: ONE, length: 1000 }).unwrap();
    assert_eq!(said(&mut stream), ["reply 1 10: 262144+1000 of 300000"]);
    for stamp in 12..20 {
        request(&mut stream, ONE, stamp, &long).unwrap();
    }
    let frames = said(&mut stream);
    assert_eq!(frames, ["Close { connection: connection 1, stamp: 0 }"]);
    assert_eq!((stream.replies_len, stream.counts().closed_for_memory), (0, 1));
    request(&mut stream, TWO, 20, b"get").unwrap();
    assert_eq!(said(&mut stream), ["reply 2 20: 0+3 of 3", "attest 1 as of 20"]);
}

#[test]
fn files_and_the_settled_log_are_told_in_each_life() {
    let mut stream = HostStream::new(Echo::default(), HostLimits::default());
    stream.name_file(1, NodeId(11));
    stream.name_file(2, NodeId(22));
    stream.service_mut().settled = 4096;
    let told =
        ["File { name: 1, node: node 11 }", "File { name: 2, node: node 22 }", "Settled { address: 4096 }"];
    for life in 1..3 {
        assert_eq!(said(&mut stream).len(), 1);
        stream.received(Now::default(), &FromCard::Begin { stamp: life }).unwrap();
        assert_eq!(said(&mut stream), told);
        stream.ended();
    }
    said(&mut stream);
    stream.received(Now::default(), &FromCard::Begin { stamp: 3 }).unwrap();
    stream.forget_file(1);
    stream.forget_file(9);
    assert_eq!(said(&mut stream), ["File { name: 2, node: node 22 }", "FileGone { name: 1 }", told[2]]);
}

#[test]
fn files_are_written_to_when_the_card_knows_them() {
    let mut stream = HostStream::new(Echo::default(), HostLimits::default());
    stream.name_file(1, NodeId(11));
    assert!(stream.may_write(), "there is nobody to wait for");
    said(&mut stream);
    stream.received(Now::default(), &FromCard::Begin { stamp: 10 }).unwrap();
    assert!(!stream.may_write(), "it is not said yet");
    said(&mut stream);
    assert!(!stream.may_write(), "it is not heard yet");
    assert_eq!(stream.received(Now::default(), &FromCard::Named { count: 2 }), Err(HostFault::Named(2)));
    stream.received(Now::default(), &FromCard::Named { count: 1 }).unwrap();
    assert!(stream.may_write());
    for name in [2, 3] {
        stream.name_file(name, NodeId(22));
    }
    stream.forget_file(3);
    said(&mut stream);
    assert!(!stream.may_write());
    stream.received(Now::default(), &FromCard::Named { count: 2 }).unwrap();
    assert!(stream.may_write(), "what is gone before it was said is not waited for");
    assert_eq!(stream.received(Now::default(), &FromCard::Named { count: 1 }), Err(HostFault::Named(1)));

    stream.name_file(4, NodeId(44));
    assert!(!stream.may_write());
    stream.service_mut().is_full = true;
    assert!(stream.may_write(), "nobody waits for what is not taken");
    stream.ended();
    assert!(stream.may_write());
}

#[test]
fn what_is_attested_by_itself_is_said_whatever_the_room() {
    let mut stream = running(HostLimits::default());
    let count = 5000_u64;
    stream.service_mut().attested = (0..count).map(|key| (9, key.to_le_bytes().to_vec(), ITEM)).collect();
    let mut said = 0;
    for _ in 0..20 {
        for frame in said_up_to(&mut stream, 1) {
            let number = frame.strip_prefix("attest ").and_then(|frame| frame.strip_suffix(" as of 9"));
            said += number.and_then(|number| number.parse::<u64>().ok()).unwrap();
        }
    }
    assert_eq!((said, stream.counts().attested), (count, count));
}

#[test]
fn the_card_is_told_the_time_before_replies_that_were_made_much_later() {
    let mut stream = HostStream::new(Echo::default(), HostLimits::default());
    said(&mut stream);
    stream.received(Now::default(), &FromCard::Begin { stamp: 10 }).unwrap();
    stream.received(Now::default(), &FromCard::Opened { connection: ONE, address: address() }).unwrap();
    let clock = |stamp: u64, unix_ms: u64| format!("Clock {{ stamp: {stamp}, unix_ms: {unix_ms} }}");
    stream.set_clock(1000);
    assert_eq!(said(&mut stream), [clock(9, 1000)], "at once, before anybody is answered");
    request(&mut stream, ONE, 10, b"one").unwrap();
    stream.set_clock(1099);
    assert_eq!(said(&mut stream), ["reply 1 10: 0+3 of 3"]);
    request(&mut stream, ONE, 11, b"two").unwrap();
    stream.set_clock(1100);
    assert_eq!(said(&mut stream), [clock(11, 1100), "reply 1 11: 0+3 of 3".to_owned()]);
    // With nothing to say there is nothing to tell; and a clock that was set back stands still.
    stream.set_clock(900);
    assert!(said(&mut stream).is_empty());
    stream.set_clock(5000);
    assert!(said(&mut stream).is_empty());
    request(&mut stream, ONE, 12, b"slow").unwrap();
    assert_eq!(said(&mut stream), [clock(12, 5000)]);
    let slow = std::mem::take(&mut stream.service_mut().slow);
    stream.service_mut().answers.extend(slow);
    stream.set_clock(5100);
    assert_eq!(said(&mut stream), [clock(12, 5100), "reply 1 12: 0+4 of 4".to_owned()]);
}

#[test]
fn a_service_that_is_not_ready_does_not_meet_the_card() {
    let mut stream = HostStream::new(Echo { is_busy: true, ..Echo::default() }, HostLimits::default());
    assert!(said(&mut stream).is_empty());
    stream.service_mut().is_busy = false;
    assert!(said(&mut stream)[0].starts_with("Meet"));
}
