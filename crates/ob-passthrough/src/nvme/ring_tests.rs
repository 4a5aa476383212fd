//! The ring without an NVMe device: `/dev/null` answers commands (6.2 and later), and a pipe keeps its reader waiting.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used)]

use std::os::fd::AsFd;

use super::*;

fn null(depth: u32) -> Ring {
    Ring::open(Path::new("/dev/null"), depth).unwrap()
}

/// Whatever this kernel's `/dev/null` answers, each command gets one answer.
fn drain(ring: &mut Ring) -> Vec<(RingToken, Result<Completion, PassthroughError>)> {
    let mut answers = Vec::new();
    while ring.in_flight() > 0 {
        ring.reap(Some(Duration::MAX), |token, outcome| answers.push((token, outcome)));
    }
    answers
}

#[test]
fn every_command_is_answered_once() {
    let mut ring = null(4);
    let tokens: Vec<_> = (0..4).map(|_| ring.submit(Command::read(1, 0, 1, 512)).unwrap()).collect();
    assert_eq!(ring.submit(Command::read(1, 0, 1, 512)), Err(PassthroughError::Full));
    let mut answers = drain(&mut ring);
    answers.sort_by_key(|(token, _)| token.0);
    assert_eq!(answers.iter().map(|(token, _)| *token).collect::<Vec<_>>(), tokens);
    for (_, outcome) in answers {
        match outcome {
            Ok(completion) => assert_eq!(completion, Completion { result: 0, data: vec![0; 512] }),
            Err(error) => {
                assert!(matches!(error, PassthroughError::Unsupported(_)), "{error}");
                ob_plant::not_tested(
                    "this kernel's /dev/null answers no commands, so no data was seen to come back",
                );
            }
        }
    }
    assert!(ring.submit(Command::new(0, 1)).is_ok(), "the slots are free again");
    assert_eq!(drain(&mut ring).len(), 1);
}

#[test]
fn what_is_refused_takes_no_slot() {
    let mut ring = null(1);
    for _ in 0..3 {
        let wrong = Command { data: super::super::Data::In(8), ..Command::new(1, 1) };
        assert!(matches!(ring.submit(wrong), Err(PassthroughError::Direction { .. })));
    }
    assert_eq!(ring.in_flight(), 0);
}

/// A read of a pipe, in place of a command that takes long.
fn read_pipe(ring: &mut Ring, pipe: &OwnedFd, len: usize) -> Result<RingToken, PassthroughError> {
    let buffer = Box::into_raw(vec![0u8; len].into_boxed_slice());
    let entry = opcode::Read::new(Fd(pipe.as_raw_fd()), buffer.cast(), len as u32).build();
    // SAFETY: the entry names the buffer alone, which was made raw.
    unsafe { ring.send(entry.into(), InFlight { buffer, receives: true }) }
}

#[test]
fn a_buffer_is_the_kernels_until_it_has_answered() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let mut ring = null(2);
    let token = read_pipe(&mut ring, &reader, 3).unwrap();
    let mut answers = Vec::new();
    ring.reap(None, |token, outcome| answers.push((token, outcome)));
    ring.reap(Some(Duration::from_millis(1)), |token, outcome| answers.push((token, outcome)));
    assert!(answers.is_empty() && ring.in_flight() == 1);
    assert_eq!(rustix::io::write(writer.as_fd(), b"abc"), Ok(3));
    while ring.in_flight() > 0 {
        ring.reap(Some(Duration::MAX), |token, outcome| answers.push((token, outcome)));
    }
    // A read returns its length, which for a command would be a status.
    let status = ob_wire_nvme::status::Status::from_field(3 << 1);
    assert_eq!(answers, [(token, Err(PassthroughError::Status { status, result: 0 }))]);
}

#[test]
fn a_ring_that_is_dropped_frees_no_buffer_that_the_kernel_has() {
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let mut ring = null(1);
    read_pipe(&mut ring, &reader, 4096).unwrap();
    ring.flush();
    let buffer = ring.slots[0].as_ref().unwrap().buffer;
    drop(ring);
    // The kernel may still write there, or has given the read up; the memory must be the process' in either case.
    let _ = rustix::io::write(writer.as_fd(), &[7; 4096]);
    // SAFETY: the ring has left the box to nobody, which is what is tested: under a checker of memory this would be found.
    let bytes = unsafe { Box::from_raw(buffer) };
    assert!(bytes.iter().all(|byte| [0, 7].contains(byte)));
    // The kernel may not be done with it.
    std::mem::forget(bytes);
}
