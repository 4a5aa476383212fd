//! The messages of operations that are no transfers, byte for byte.

use ob_wire_link::files::{Entry, push_entry, rename_paths};

use super::*;

const LIMITS: Limits = Limits { read_max: 1000, write_max: 1000, block_len: 4096 };

struct NoBytes;

impl Source for NoBytes {
    fn len(&self) -> usize {
        0
    }

    fn copy(&self, _: usize, _: &mut [u8]) -> usize {
        0
    }
}

/// What a control sends, and what follows its header.
fn sent(control: &mut Control) -> (RequestHeader, Vec<u8>) {
    let mut seen = None;
    let sending = control.send(RequestId::new(1, 2), LIMITS, |message| {
        assert!(message.payload.is_none());
        let (header, rest) = RequestHeader::decode(message.inline).unwrap();
        seen = Some((header, rest.to_vec()));
        Ok(())
    });
    assert_eq!(sending, Sending::Done);
    seen.unwrap()
}

fn code(header: &RequestHeader) -> (Operation, u16) {
    (Operation::from_code(header.operation).unwrap(), header.flags)
}

#[test]
fn messages_are_as_the_document_has_them() {
    let (header, rest) = sent(&mut Control::open("/a/b", OpenOptions::new().create_new(true)).unwrap());
    assert_eq!((code(&header), header.node), ((Operation::Open, 3), ROOT));
    assert_eq!(rest, b"a/b");
    assert_eq!(sent(&mut Control::open("a", OpenOptions::new().create(true)).unwrap()).0.flags, flag::CREATE);
    assert_eq!(sent(&mut Control::open("a", OpenOptions::new()).unwrap()).0.flags, 0);
    let (header, rest) = sent(&mut Control::rename("/old", "x/new", false).unwrap());
    assert_eq!((code(&header), header.node_more), ((Operation::Rename, flag::NO_REPLACE), ROOT));
    assert_eq!(rename_paths(&header, &rest), Ok((&b"old"[..], &b"x/new"[..])));
    let (header, _) = sent(&mut Control::remove("a", Removed::Directory).unwrap());
    assert_eq!(code(&header), (Operation::Remove, flag::ONLY_DIRECTORY));
    let (header, rest) = sent(&mut Control::resize(NodeId(9), 77));
    assert_eq!((code(&header), header.node, header.offset), ((Operation::Resize, 0), NodeId(9), 77));
    assert!(rest.is_empty());
    let (header, rest) = sent(&mut Control::zero(NodeId(9), 77, 5));
    assert_eq!((code(&header), header.node, header.offset), ((Operation::Zero, 0), NodeId(9), 77));
    assert_eq!((header.length, rest.len()), (5, 0));
    let (header, rest) = sent(&mut Control::list_page(NodeId(4), b"after"));
    assert_eq!((code(&header), header.node, header.length), ((Operation::List, 0), NodeId(4), 1000));
    assert_eq!(rest, b"after");
    let (header, rest) = sent(&mut Control::list("/").unwrap());
    assert_eq!((code(&header), header.node, rest.len()), ((Operation::List, 0), ROOT, 0));
    assert_eq!(code(&sent(&mut Control::list("/d").unwrap()).0).0, Operation::Stat);
    assert_eq!(code(&sent(&mut Control::flush()).0).0, Operation::Flush);
    assert_eq!(code(&sent(&mut Control::space()).0).0, Operation::Space);
}

#[test]
fn an_answer_is_taken_once() {
    let mut control = Control::flush();
    let response = ResponseHeader::done(0);
    assert_eq!(control.answer(0, &response, &[], &NoBytes), Step::Stray, "nothing was asked yet");
    sent(&mut control);
    assert!(control.is_out());
    assert_eq!(control.answer(1, &response, &[], &NoBytes), Step::Stray, "there is one place");
    assert_eq!(control.answer(0, &response, &[], &NoBytes), Step::Done(Ok(Value::Nothing)));
    assert_eq!(control.answer(0, &response, &[], &NoBytes), Step::Stray);
}

#[test]
fn a_file_that_is_cut_takes_a_second_request() {
    let info = NodeInfo { id: NodeId(5), kind: NodeKind::File, size: 10, allocated: 0, parent: Some(ROOT) };
    let mut control = Control::open("a", OpenOptions::new().truncate(true)).unwrap();
    sent(&mut control);
    assert_eq!(control.answer(0, &ResponseHeader::done(0), &info.encode(), &NoBytes), Step::Send);
    let (header, _) = sent(&mut control);
    assert_eq!((code(&header).0, header.node, header.offset), (Operation::Resize, NodeId(5), 0));
    let cut = NodeInfo { size: 0, ..info };
    let answer = control.answer(0, &ResponseHeader::done(0), &cut.encode(), &NoBytes);
    assert_eq!(answer, Step::Done(Ok(Value::Node(cut))));
}

#[test]
fn a_list_has_an_end() {
    struct Bytes(Vec<u8>);
    impl Source for Bytes {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn copy(&self, _: usize, into: &mut [u8]) -> usize {
            into.copy_from_slice(&self.0);
            into.len()
        }
    }
    let mut bytes = Vec::new();
    push_entry(&mut bytes, &Entry { id: NodeId(5), kind: NodeKind::File, size: 0, name: b"a" });
    let response = ResponseHeader { length: bytes.len() as u32, ..ResponseHeader::done(0) };
    let source = Bytes(bytes);
    let held = DirectoryEntry { name: Vec::new(), node: NodeId(4), kind: NodeKind::File, size: 0 };
    let mut control = Control::list("/").unwrap();
    for (count, is_done) in [(LIST_ENTRIES_MAX - 1, true), (LIST_ENTRIES_MAX, false)] {
        control.then = Then::List(vec![held.clone(); count]);
        sent(&mut control);
        match control.answer(0, &response, &[], &source) {
            Step::Done(Ok(Value::Entries(entries))) => assert!(is_done && entries.len() == count + 1),
            Step::Done(Err(error)) => assert!(!is_done && error == Error::TooLarge, "{error:?}"),
            _ => panic!("neither an end nor an error"),
        }
    }
}

#[test]
fn a_full_ring_leaves_everything_as_it_was() {
    let mut control = Control::flush();
    for (error, sending) in [
        (PushError::Retry, Sending::Full),
        (PushError::Closed, Sending::Closed),
        (PushError::TooLarge { limit: 1 }, Sending::Failed(Error::TooLarge)),
    ] {
        assert_eq!(control.send(RequestId::new(0, 0), LIMITS, |_| Err(error)), sending);
        assert!(!control.is_out());
    }
    sent(&mut control);
}
