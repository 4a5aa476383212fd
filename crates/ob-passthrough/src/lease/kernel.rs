//! The calls behind leases. rustix has none of them.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

/// Ignored unless somebody asks for it, and one of those that never turn into SIGIO.
const SIGNAL: libc::c_int = libc::SIGURG;

const F_SETSIG: libc::c_int = 10;
const F_SETOWN_EX: libc::c_int = 15;
const F_OWNER_TID: libc::c_int = 0;

/// `struct f_owner_ex` of linux/fcntl.h.
#[repr(C)]
struct Owner {
    kind: libc::c_int,
    id: libc::pid_t,
}

fn check(returned: libc::c_int) -> Result<libc::c_int, Errno> {
    if returned < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(returned)
}

fn fcntl(file: BorrowedFd<'_>, command: libc::c_int, argument: libc::c_int) -> Result<libc::c_int, Errno> {
    // SAFETY: the descriptor is open, and the commands that are passed here take a number.
    check(unsafe { libc::fcntl(file.as_raw_fd(), command, argument) })
}

/// Has breaks of the lease that will be on this file told to one thread.
pub(super) fn direct_breaks_to(file: BorrowedFd<'_>, thread: libc::pid_t) -> Result<(), Errno> {
    fcntl(file, F_SETSIG, SIGNAL)?;
    let owner = Owner { kind: F_OWNER_TID, id: thread };
    // SAFETY: the command reads an `f_owner_ex`, which lives until the call returns.
    check(unsafe { libc::fcntl(file.as_raw_fd(), F_SETOWN_EX, &raw const owner) })?;
    Ok(())
}

/// Takes a read lease.
pub(super) fn take(file: BorrowedFd<'_>) -> Result<(), Errno> {
    fcntl(file, libc::F_SETLEASE, libc::F_RDLCK as libc::c_int).map(drop)
}

/// Gives a lease up. One that the kernel has taken away already is none.
pub(super) fn release(file: BorrowedFd<'_>) {
    let _ = fcntl(file, libc::F_SETLEASE, libc::F_UNLCK as libc::c_int);
}

/// Whether the lease is there and nobody wants it broken: while somebody does the kernel already answers what it will be, none.
pub(super) fn is_held(file: BorrowedFd<'_>) -> bool {
    fcntl(file, libc::F_GETLEASE, 0) == Ok(libc::F_RDLCK as libc::c_int)
}

/// This thread's own number.
pub(super) fn thread_id() -> libc::pid_t {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Blocks every signal on this thread, so that the process' own go to others, and has those that tell of breaks come by a
/// descriptor, which this thread must read.
pub(super) fn receive_breaks() -> Result<OwnedFd, Errno> {
    // SAFETY: an all-zero set is one, and is filled before it is used; all pointers are to this stack. Signals that are blocked on
    // a thread are taken away from nobody: this is one of our own.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        check(libc::sigfillset(&raw mut all))?;
        match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut()) {
            0 => {}
            error => return Err(Errno::from_raw_os_error(error)),
        }
        let mut breaks: libc::sigset_t = std::mem::zeroed();
        check(libc::sigemptyset(&raw mut breaks))?;
        check(libc::sigaddset(&raw mut breaks, SIGNAL))?;
        let descriptor =
            check(libc::signalfd(-1, &raw const breaks, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(OwnedFd::from_raw_fd(descriptor))
    }
}

/// Takes every signal that has come; each is a `signalfd_siginfo` of 128 bytes, of which nothing is used.
pub(super) fn drain(signals: &OwnedFd) {
    let mut room = [0; 8 * 128];
    while rustix::io::read(signals, &mut room).is_ok_and(|len| len > 0) {}
}
