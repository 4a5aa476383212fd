//! Layouts, and what return values mean.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used)]

use super::*;

fn sample() -> Command {
    Command {
        opcode: 0xC2,
        nsid: 7,
        cdw2: 0x0202_0202,
        cdw3: 0x0303_0303,
        cdw10_15: [10, 11, 12, 13, 14, 15],
        data: Data::In(512),
        timeout: Some(Duration::from_secs(2)),
    }
}

#[test]
fn a_command_has_the_bytes_that_the_kernel_reads() {
    let prepared = sample().into_kernel().unwrap();
    assert_eq!((prepared.buffer.len(), prepared.receives), (512, true));
    let bytes = UringCommand { address: 0x1122_3344_5566_7788, ..prepared.command }.to_bytes();
    #[rustfmt::skip]
    let golden: [u8; 80] = [
        0xC2, 0, 0, 0, 7, 0, 0, 0, 2, 2, 2, 2, 3, 3, 3, 3,
        0, 0, 0, 0, 0, 0, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
        0, 0, 0, 0, 0, 2, 0, 0, 10, 0, 0, 0, 11, 0, 0, 0,
        12, 0, 0, 0, 13, 0, 0, 0, 14, 0, 0, 0, 15, 0, 0, 0,
        0xD0, 0x07, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(bytes, golden);
}

#[test]
fn a_read_names_its_blocks() {
    let command = Command::read(1, 0x1_0000_0002, 8, 512);
    assert_eq!((command.opcode, command.cdw10_15[..3].to_vec()), (2, vec![2, 1, 7]));
    assert_eq!(command.data, Data::In(4096));
    assert_eq!(Command::read(1, 0, 0, 512).data, Data::In(512), "none is as little as one");
}

#[test]
fn data_goes_one_way() {
    let direction =
        |opcode, data| Command { opcode, data, ..sample() }.into_kernel().map(|sent| sent.command.data_len);
    assert_eq!(direction(0xC1, Data::In(4)), Err(PassthroughError::Direction { opcode: 0xC1 }));
    assert_eq!(direction(0xC2, Data::Out(vec![0; 4])), Err(PassthroughError::Direction { opcode: 0xC2 }));
    assert_eq!(direction(0xC1, Data::Out(vec![0; 4])), Ok(4));
    assert_eq!(direction(0xC2, Data::In(DATA_LEN_MAX)), Ok(DATA_LEN_MAX as u32));
    let len = DATA_LEN_MAX + 1;
    assert_eq!(direction(0xC2, Data::In(len)), Err(PassthroughError::TooLong { len }));
    assert_eq!(direction(0xC2, Data::In(usize::MAX)), Err(PassthroughError::TooLong { len: usize::MAX }));
}

#[test]
fn a_timeout_is_never_taken_for_none() {
    let timeout = |timeout| Command { timeout, ..sample() }.into_kernel().unwrap().command.timeout_ms;
    assert_eq!(timeout(None), 0);
    assert_eq!(timeout(Some(Duration::ZERO)), 1);
    assert_eq!(timeout(Some(Duration::MAX)), u32::MAX);
}

#[test]
fn a_status_is_no_errno() {
    let status = |returned| match PassthroughError::check(returned, 9) {
        Err(PassthroughError::Status { status, result: 9 }) => {
            Some((status.kind(), status.code(), status.do_not_retry()))
        }
        _ => None,
    };
    assert_eq!(status(0x4002), Some((0, 2, true)), "invalid field, do not retry");
    assert_eq!(status(0x0371), Some((3, 0x71, false)), "the path's");
    assert_eq!(status(0x07C5), Some((7, 0xC5, false)), "the vendor's");
    assert_eq!(PassthroughError::check(0, 9), Ok(()));
    let errno = |returned| PassthroughError::check(returned, 0).unwrap_err();
    assert_eq!(errno(-libc::EACCES), PassthroughError::Permission);
    assert_eq!(errno(-libc::EINTR), PassthroughError::Cancelled);
    assert_eq!(errno(-libc::EIO), PassthroughError::Os(Errno::IO));
    assert!(matches!(errno(-libc::ENOTTY), PassthroughError::Unsupported(_)));
    assert!(matches!(errno(-libc::EOPNOTSUPP), PassthroughError::Unsupported(_)));
}
