//! Every call, against a card that does what it should.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first surprise.

use crate::common;

use std::sync::mpsc::channel;

use common::{FakeCard, LONG, collect, pattern};
use ob_files_host::{Error, GroupOptions, NodeKind, OpenOptions, ROOT, Session, SessionOptions};
use ob_wire_link::files::Operation;

#[test]
fn files_and_directories_are_made_listed_renamed_and_removed() {
    let card = FakeCard::start();
    let session = card.session();
    session.make_directory("/a").wait().unwrap();
    session.make_directory("a//b/").wait().unwrap();
    assert_eq!(session.make_directory("/a").wait().unwrap_err(), Error::Exists);
    assert_eq!(session.make_directory("/x/y").wait().unwrap_err(), Error::NotFound);
    let file = session.create("/a/b/file").wait().unwrap();
    assert_eq!(session.stat("/a/b/file").wait().unwrap().id, file.node());
    let exclusive = OpenOptions::new().create_new(true);
    assert_eq!(session.open_file("/a/b/file", exclusive).wait().unwrap_err(), Error::Exists);
    assert_eq!(session.open_file("/none", OpenOptions::new()).wait().unwrap_err(), Error::NotFound);
    assert_eq!(session.open_file("/a", OpenOptions::new()).wait().unwrap_err(), Error::IsADirectory);
    session.rename("/a/b/file", "/moved").wait().unwrap();
    session.create("/other").wait().unwrap();
    assert_eq!(session.rename_new("/moved", "/other").wait().unwrap_err(), Error::Exists);
    session.rename("/moved", "/other").wait().unwrap();
    assert_eq!(session.stat("/other").wait().unwrap().id, file.node());
    assert_eq!(session.remove_file("/a").wait().unwrap_err(), Error::IsADirectory);
    assert_eq!(session.remove_directory("/other").wait().unwrap_err(), Error::NotADirectory);
    assert_eq!(session.remove("/a").wait().unwrap_err(), Error::NotEmpty);
    session.remove_directory("/a/b").wait().unwrap();
    session.remove("/a").wait().unwrap();
    session.remove_file("/other").wait().unwrap();
    assert_eq!(session.list("/").wait().unwrap(), []);
    assert_eq!(file.stat().wait().unwrap_err(), Error::NotFound, "the file behind the handle is gone");
}

#[test]
fn a_directory_is_listed_over_many_pages() {
    let card = FakeCard::start();
    let session = card.session();
    session.make_directory("/d").wait().unwrap();
    let mut names: Vec<String> = (0..100).map(|number| format!("file-{number}")).collect();
    for name in &names {
        session.create(format!("/d/{name}")).wait().unwrap();
    }
    names.sort();
    let listed = session.list("/d").wait().unwrap();
    assert_eq!(listed.iter().map(|entry| entry.name_text().into_owned()).collect::<Vec<_>>(), names);
    assert!(listed.iter().all(|entry| entry.kind == NodeKind::File));
    assert!(card.requests_of(Operation::List).len() > 10, "in pages");
    let root = session.own_group().list_page(ROOT, b"").wait().unwrap();
    assert_eq!((root.entries.len(), root.more), (1, false));
    assert_eq!(root.entries[0].kind, NodeKind::Directory);
    assert_eq!(root.entries[0].size, 100);
    assert_eq!(session.list("/d/file-1").wait().unwrap_err(), Error::NotADirectory);
    assert_eq!(session.list("/none").wait().unwrap_err(), Error::NotFound);
}

#[test]
fn bytes_are_read_back_as_they_were_written() {
    let card = FakeCard::start();
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    let bytes = pattern(10_000, 1);
    let (written, buffer) = file.write_at(bytes.clone(), 3).wait();
    assert_eq!((written.unwrap(), &buffer), (10_000, &bytes));
    let (read, buffer) = file.read_at(vec![9; 20_000], 0).wait();
    assert_eq!(read.unwrap(), 10_003, "short where the file ends");
    assert_eq!(buffer[..3], [0; 3]);
    assert_eq!(buffer[3..10_003], bytes);
    assert_eq!(buffer[10_003..], [9; 9_997], "what was not read stays as it was");
    let (read, _) = file.read_at(vec![0; 10], 1 << 30).wait();
    assert_eq!(read.unwrap(), 0);
    assert_eq!(file.stat().wait().unwrap().size, 10_003);
    assert_eq!(file.resize(100).wait().unwrap().size, 100);
    file.zero(50, u32::MAX).wait().unwrap();
    assert_eq!((&card.content("/f")[3..50], &card.content("/f")[50..]), (&bytes[..47], &[0; 50][..]));
    let truncated = session.open_file("/f", OpenOptions::new().truncate(true)).wait().unwrap();
    assert_eq!(truncated.node(), file.node());
    assert_eq!(card.content("/f"), b"");
    file.flush().wait().unwrap();
    assert_eq!(card.shared.store.lock().unwrap().flushes, 1);
    assert_eq!(session.space().wait().unwrap().files, 1);
}

#[test]
fn pieces_are_gathered_and_scattered() {
    let card = FakeCard::start();
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    let bytes = pattern(30_000, 2);
    let pieces: Vec<Vec<u8>> = bytes.chunks(1234).map(<[u8]>::to_vec).collect();
    let (written, _) = file.write_at(pieces, 0).wait();
    assert_eq!(written.unwrap(), 30_000);
    assert_eq!(card.content("/f"), bytes);
    let room: Vec<Box<[u8]>> = [1, 7, 20_000, 0, 9_992].map(|len| vec![0; len].into_boxed_slice()).into();
    let (read, room) = file.read_at(room, 0).wait();
    assert_eq!(read.unwrap(), 30_000);
    assert_eq!(room.concat(), bytes);
}

#[test]
fn aligned_writes_lie_aligned_in_the_ring() {
    let card = FakeCard::start();
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    for (offset, len) in [(0, 4096), (4096, 8192), (12288, 4096), (0, 300_000), (8192, 1 << 20)] {
        assert_eq!(file.write_at(vec![1; len], offset).wait().0.unwrap(), len);
    }
    assert_eq!(card.misaligned(), 0);
}

#[test]
fn operations_complete_by_tag_in_any_order() {
    let card = FakeCard::start();
    let session = card.session();
    let group = session.group(GroupOptions::polled()).unwrap();
    let file = group.add(&session.create("/f").wait().unwrap());
    assert_eq!(group.poll(|_| panic!("nothing is out")), 0);
    for tag in 0..10 {
        file.submit_write(vec![tag as u8; 100], tag * 100, tag).unwrap();
    }
    let mut written = collect(&group, 10);
    written.sort_by_key(|completion| completion.tag);
    for (tag, completion) in written.into_iter().enumerate() {
        assert_eq!((completion.tag, completion.result), (tag as u64, Ok(100)));
        assert_eq!(completion.buffer.into_bytes(), vec![tag as u8; 100]);
    }
    file.submit_read(vec![0; 1000], 0, 77).unwrap();
    group.submit_flush(78).unwrap();
    file.submit_read(Vec::<u8>::new(), 0, 79).unwrap();
    let mut done = collect(&group, 3);
    done.sort_by_key(|completion| completion.tag);
    let results: Vec<_> = done.iter().map(|done| (done.tag, done.result.clone())).collect();
    assert_eq!(results, [(77, Ok(1000)), (78, Ok(0)), (79, Ok(0))]);
    assert_eq!(done.swap_remove(0).buffer.into_bytes(), card.content("/f"));
}

#[test]
fn callbacks_run_in_poll_or_on_the_groups_thread() {
    let card = FakeCard::start();
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    for options in [GroupOptions::polled(), GroupOptions::default()] {
        let group = session.group(options.clone()).unwrap();
        let file = group.add(&file);
        let (told, tell) = channel();
        let bytes = pattern(5000, 3);
        let then = told.clone();
        file.write_then(bytes.clone(), 0, move |result, _| then.send(result).unwrap()).unwrap();
        let polled = options.driver == ob_files_host::Driver::Caller;
        if polled {
            assert_eq!(group.wait(LONG, |_| panic!("no tags are out")), 1);
        }
        assert_eq!(tell.recv_timeout(LONG).unwrap(), Ok(5000));
        let (payload, look) = channel();
        file.read_with(6000, 0, move |read| {
            let read = read.unwrap();
            let mut copy = vec![0; read.len()];
            assert_eq!(read.copy(0, &mut copy), Ok(5000));
            payload.send(copy).unwrap();
        })
        .unwrap();
        if polled {
            assert_eq!(group.wait(LONG, |_| panic!("no tags are out")), 1);
        }
        assert_eq!(look.recv_timeout(LONG).unwrap(), bytes);
    }
}

#[test]
fn what_cannot_be_is_refused_before_it_is_sent() {
    let card = FakeCard::start();
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    let sent = card.requests().len();
    for path in ["..", "/a/./b", "a\0b"] {
        assert!(matches!(session.create(path).wait(), Err(Error::Path(_))), "{path}");
    }
    assert!(matches!(session.create("/").wait(), Err(Error::Path(_))));
    assert!(matches!(session.remove("//").wait(), Err(Error::Path(_))));
    let (read, buffer) = file.read_at(vec![5; 10], u64::MAX - 5).wait();
    assert_eq!((read.unwrap_err(), buffer), (Error::Invalid, vec![5; 10]));
    let (written, _) = file.write_at(vec![5; 10], i64::MAX as u64).wait();
    assert_eq!(written.unwrap_err(), Error::TooLarge);
    let refused = file.submit_read(vec![1, 2, 3], u64::MAX, 1).unwrap_err();
    assert_eq!((refused.buffer, refused.reason), (vec![1, 2, 3], Error::Invalid));
    assert_eq!(card.requests().len(), sent);
    let none = session.group(GroupOptions::default().outstanding(0)).unwrap_err();
    assert_eq!(none, Error::Invalid);
}

#[test]
fn a_session_needs_a_card() {
    let directory = tempfile::tempdir().unwrap();
    let error = Session::open(SessionOptions::unix(directory.path().join("none.sock"))).unwrap_err();
    assert!(error.to_string().contains("no card answers"), "{error}");
    assert_eq!(error.kind(), std::io::ErrorKind::NotConnected);
}

#[test]
fn everything_also_over_tcp() {
    let card = FakeCard::start();
    let session = Session::open(SessionOptions::tcp(card.tcp.unwrap())).unwrap();
    let file = session.create("/f").wait().unwrap();
    let bytes = pattern(3 << 20, 4);
    assert_eq!(file.write_at(bytes.clone(), 0).wait().0.unwrap(), bytes.len());
    let (read, buffer) = file.read_at(vec![0; bytes.len()], 0).wait();
    assert_eq!(read.unwrap(), bytes.len());
    assert!(buffer == bytes);
    assert_eq!(session.list("/").wait().unwrap().len(), 1);
}
