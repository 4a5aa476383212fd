//! Transfers against a ring and answers that are made up.

use super::*;

const LIMITS: Limits = Limits { read_max: 10_000, write_max: 8192, block_len: 4096 };
const NODE: NodeId = NodeId(7);

/// Payload of an answer.
struct Bytes(Vec<u8>);

impl Source for Bytes {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn copy(&self, offset: usize, into: &mut [u8]) -> usize {
        into.copy_from_slice(&self.0[offset..offset + into.len()]);
        into.len()
    }
}

/// What was sent: the header, and the payload with its alignment.
type Sent = (RequestHeader, Option<(Vec<u8>, u32)>);

/// Sends with room for so many requests.
fn send(transfer: &mut Transfer, buffer: &Buffer, room: usize) -> (Vec<Sent>, Sending) {
    let mut sent = Vec::new();
    let id = RequestId::new(3, 5);
    let sending = transfer.send(id, LIMITS, buffer, |message| {
        if sent.len() == room {
            return Err(PushError::Retry);
        }
        let (header, _) = RequestHeader::decode(message.inline).unwrap();
        assert_eq!(RequestId::from_wire(header.id).slot(), 3);
        sent.push((header, message.payload.map(|(pieces, align)| (pieces.concat(), align))));
        Ok(())
    });
    (sent, sending)
}

fn place(header: &RequestHeader) -> usize {
    RequestId::from_wire(header.id).place()
}

fn done(header: &RequestHeader, length: u32) -> ResponseHeader {
    ResponseHeader { length, ..ResponseHeader::done(header.id) }
}

#[test]
fn a_small_read_is_one_request() {
    let mut transfer = Transfer::new(Direction::Read, NODE, 100, 50).unwrap();
    let mut buffer = Buffer::Bytes(vec![0; 50]);
    let (sent, sending) = send(&mut transfer, &buffer, 9);
    assert_eq!((sent.len(), sending), (1, Sending::Done));
    let header = sent[0].0;
    assert_eq!((header.node, header.offset, header.length), (NODE, 100, 50));
    assert!(transfer.is_out());
    let answer = transfer.answer(0, &done(&header, 20), &Bytes(vec![1; 20]), &mut buffer);
    assert_eq!(answer, Step::Done(Ok(Value::Count(20))));
    assert_eq!(buffer.into_bytes(), [vec![1; 20], vec![0; 30]].concat());
}

#[test]
fn writes_are_aligned_where_that_helps() {
    for (offset, len, align) in
        [(0, 4096, 4096), (4096, 8192, 4096), (8192, 5000, 4096), (0, 100, 8), (5, 4096, 8)]
    {
        let mut transfer = Transfer::new(Direction::Write { durable: true }, NODE, offset, len).unwrap();
        let (sent, _) = send(&mut transfer, &Buffer::Bytes(vec![7; len]), 9);
        assert_eq!(sent[0].1.as_ref().unwrap().1, align, "{offset} {len}");
        assert_eq!(sent[0].0.flags, flag::DURABLE);
    }
}

#[test]
fn a_long_write_goes_in_parts_that_end_at_blocks() {
    let bytes: Vec<u8> = (0..100_000u32).map(|number| number as u8).collect();
    let buffer = Buffer::Bytes(bytes.clone());
    let mut transfer = Transfer::new(Direction::Write { durable: false }, NODE, 1000, bytes.len()).unwrap();
    let mut written = vec![0; bytes.len()];
    let (mut out, mut room) = (Vec::new(), 1);
    loop {
        let (sent, _) = send(&mut transfer, &buffer, room);
        for (header, payload) in sent {
            let at = (header.offset - 1000) as usize;
            let payload = payload.unwrap().0;
            written[at..at + payload.len()].copy_from_slice(&payload);
            let end = header.offset + u64::from(header.length);
            assert!(end.is_multiple_of(4096) || end == 101_000, "{header:?}");
            assert!(header.length as usize <= LIMITS.write_max);
            out.push(header);
        }
        // The latest is answered first, and there is a little more room each time.
        let header = out.pop().unwrap();
        room += 1;
        let answer = done(&header, header.length);
        match transfer.answer(place(&header), &answer, &Bytes(Vec::new()), &mut Buffer::Empty) {
            Step::Done(result) => {
                assert_eq!(result, Ok(Value::Count(100_000)));
                break;
            }
            Step::Waiting | Step::Send => {}
            Step::Stray => panic!("it was asked for"),
        }
    }
    assert!(written == bytes && out.is_empty());
}

#[test]
fn no_more_parts_are_out_than_the_window_has_places() {
    let mut transfer = Transfer::new(Direction::Read, NODE, 0, 1 << 20).unwrap();
    let (sent, sending) = send(&mut transfer, &Buffer::Empty, usize::MAX);
    assert_eq!((sent.len(), sending), (WINDOW, Sending::Done));
    let places: std::collections::BTreeSet<_> = sent.iter().map(|(header, _)| place(header)).collect();
    assert_eq!(places.len(), WINDOW);
}

#[test]
fn a_full_ring_is_said_and_the_rest_is_sent_later() {
    let mut transfer = Transfer::new(Direction::Read, NODE, 0, 30_000).unwrap();
    let buffer = Buffer::Bytes(vec![0; 30_000]);
    assert_eq!(send(&mut transfer, &buffer, 0), (Vec::new(), Sending::Full));
    assert!(!transfer.is_out());
    let (sent, sending) = send(&mut transfer, &buffer, 1);
    assert_eq!((sent.len(), sending), (1, Sending::Full));
    let (sent, sending) = send(&mut transfer, &buffer, 100);
    assert_eq!(sending, Sending::Done);
    assert_eq!(sent.last().map(|(header, _)| header.offset + u64::from(header.length)), Some(30_000));
}

/// Sends a read of three parts and answers it in the reverse order, each as told.
fn three_parts(answers: [Result<u32>; 3]) -> Step {
    let mut transfer = Transfer::new(Direction::Read, NODE, 0, 24_576).unwrap();
    let mut buffer = Buffer::Bytes(vec![0; 24_576]);
    let (sent, _) = send(&mut transfer, &buffer, 100);
    assert_eq!(sent.iter().map(|(header, _)| header.length).collect::<Vec<_>>(), [8192; 3]);
    let mut last = Step::Waiting;
    for ((header, _), answer) in sent.iter().zip(answers).rev() {
        assert!(!matches!(last, Step::Done(_)));
        let (response, bytes) = match answer {
            Ok(count) => (done(header, count), vec![1; count as usize]),
            Err(Error::NoSpace) => {
                (ResponseHeader::failed(header.id, ob_wire_link::files::FileError::NoSpace), Vec::new())
            }
            Err(_) => (ResponseHeader::failed(header.id, ob_wire_link::files::FileError::Io), Vec::new()),
        };
        last = transfer.answer(place(header), &response, &Bytes(bytes), &mut buffer);
    }
    last
}

#[test]
fn what_lies_before_the_first_short_part_counts() {
    assert_eq!(three_parts([Ok(8192), Ok(8192), Ok(8192)]), Step::Done(Ok(Value::Count(24_576))));
    assert_eq!(three_parts([Ok(8192), Ok(100), Ok(0)]), Step::Done(Ok(Value::Count(8292))));
    assert_eq!(three_parts([Ok(0), Ok(8192), Ok(8192)]), Step::Done(Ok(Value::Count(0))));
    assert_eq!(three_parts([Ok(5), Err(Error::Io), Ok(8192)]), Step::Done(Ok(Value::Count(5))));
}

#[test]
fn the_first_part_that_failed_says_why() {
    assert_eq!(three_parts([Ok(8192), Err(Error::NoSpace), Err(Error::Io)]), Step::Done(Err(Error::NoSpace)));
    assert_eq!(three_parts([Err(Error::Io), Ok(5), Err(Error::NoSpace)]), Step::Done(Err(Error::Io)));
    assert_eq!(three_parts([Ok(9000), Ok(1), Ok(1)]), Step::Done(Err(Error::Protocol(Fault::Length))));
}

#[test]
fn answers_for_places_that_are_empty_are_strays() {
    let mut transfer = Transfer::new(Direction::Read, NODE, 0, 10).unwrap();
    let mut buffer = Buffer::Bytes(vec![0; 10]);
    let (sent, _) = send(&mut transfer, &buffer, 1);
    let response = done(&sent[0].0, 10);
    for place in [1, 15, 16, usize::MAX] {
        assert_eq!(transfer.answer(place, &response, &Bytes(vec![1; 10]), &mut buffer), Step::Stray);
    }
    assert_eq!(buffer.into_bytes(), [0; 10]);
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    assert_eq!(Transfer::new(Direction::Read, NODE, u64::MAX, 1).err(), Some(Error::Invalid));
    assert_eq!(Transfer::new(Direction::Read, NODE, i64::MAX as u64, 1).err(), Some(Error::TooLarge));
    assert!(Transfer::new(Direction::Read, NODE, i64::MAX as u64 - 1, 1).is_ok());
}

#[test]
fn a_read_in_place_is_never_split() {
    let mut transfer = Transfer::new(Direction::ReadInPlace, NODE, 0, 10_001).unwrap();
    assert_eq!(send(&mut transfer, &Buffer::Empty, 9), (Vec::new(), Sending::Failed(Error::TooLarge)));
}
