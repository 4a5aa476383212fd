//! Leases against writers. A writer is a thread of this process: the kernel makes no difference.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used)]

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ob_passthrough::lease::{Lease, LeaseError, LeaseKeeper, LeaseOptions};
use tempfile::TempDir;

/// A file that nobody has open; none, loudly, where temporary files cannot be leased.
fn file(name: &str) -> Option<(TempDir, PathBuf)> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, [7; 8192]).unwrap();
    match LeaseKeeper::start().unwrap().lease(read_only(&path)) {
        Err(error @ (LeaseError::Unsupported | LeaseError::Disabled | LeaseError::NotOwner)) => {
            ob_plant::not_tested(format!("temporary files cannot be leased: {error}"));
            None
        }
        other => {
            other.unwrap();
            Some((folder, path))
        }
    }
}

fn read_only(path: &Path) -> OwnedFd {
    File::open(path).unwrap().into()
}

/// Opens the file for writing in a thread; whether that has returned is seen by the flag.
fn write_to(path: &Path) -> (JoinHandle<()>, Arc<AtomicBool>) {
    let has_opened = Arc::new(AtomicBool::new(false));
    let (flag, path) = (Arc::clone(&has_opened), path.to_owned());
    let writer = std::thread::spawn(move || {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        flag.store(true, Ordering::SeqCst);
        drop(file);
    });
    (writer, has_opened)
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}

/// Far less than the kernel would wait, and than any grace here that must not be what ended the waiting.
fn took_no_grace(since: Instant) {
    assert!(since.elapsed() < Duration::from_secs(15), "the kernel or the grace ended it, not the keeper");
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_writer_waits_until_the_version_has_changed() {
    let Some((_folder, path)) = file("one") else { return };
    let keeper = LeaseKeeper::start().unwrap();
    for _ in 0..200 {
        let lease = Arc::new(keeper.lease(read_only(&path)).unwrap());
        let granted = lease.granted_version();
        assert!(lease.is_held() && lease.version() == granted);
        let of_writer = Arc::clone(&lease);
        let path = path.clone();
        let writer = std::thread::spawn(move || {
            let _file = OpenOptions::new().write(true).open(path).unwrap();
            // The moment that counts: from here on it could write.
            (of_writer.version(), of_writer.is_held())
        });
        let (version, is_held) = writer.join().unwrap();
        assert_ne!(version, granted);
        assert!(!is_held && lease.begin().is_none());
    }
}

#[test]
fn when_a_break_is_told_the_version_has_changed_and_the_writer_waits() {
    let Some((_folder, path)) = file("one") else { return };
    let keeper = LeaseKeeper::start().unwrap();
    let (to_hook, from_test) = mpsc::channel::<Arc<Lease>>();
    let (to_test, from_hook) = mpsc::channel();
    let on_break = Box::new(move |request| {
        let lease = from_test.recv().unwrap();
        to_test.send((lease.version() != lease.granted_version(), request)).unwrap();
    });
    let options = LeaseOptions { grace: LONG, on_break: Some(on_break) };
    let lease = Arc::new(keeper.lease_with(read_only(&path), options).unwrap());
    to_hook.send(Arc::clone(&lease)).unwrap();
    let (writer, has_opened) = write_to(&path);
    let (had_changed, request) = from_hook.recv().unwrap();
    assert!(had_changed, "the version must change before anything else");
    assert!(!has_opened.load(Ordering::SeqCst), "the hook's request holds the writer up");
    assert!(!request.is_valid());
    let since = Instant::now();
    drop(request);
    writer.join().unwrap();
    took_no_grace(since);
}

#[test]
fn a_break_waits_for_requests_in_flight() {
    let Some((_folder, path)) = file("one") else { return };
    let keeper = LeaseKeeper::start().unwrap();
    let options = LeaseOptions { grace: LONG, ..LeaseOptions::default() };
    let lease = keeper.lease_with(read_only(&path), options).unwrap();
    let requests = [lease.begin().unwrap(), lease.begin().unwrap()];
    let (writer, has_opened) = write_to(&path);
    wait_until(|| lease.version() != lease.granted_version());
    // Time in which a keeper that did not wait would let the writer through; one that waits never does.
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(200) {
        assert!(!has_opened.load(Ordering::SeqCst), "requests are in flight");
        std::thread::yield_now();
    }
    assert!(requests.iter().all(|request| !request.is_valid()), "their answers do not count");
    drop(requests);
    writer.join().unwrap();
    took_no_grace(since);
}

#[test]
fn the_grace_ends() {
    let Some((_folder, path)) = file("one") else { return };
    let keeper = LeaseKeeper::start().unwrap();
    let options = LeaseOptions { grace: Duration::from_millis(20), ..LeaseOptions::default() };
    let lease = keeper.lease_with(read_only(&path), options).unwrap();
    let stuck = lease.begin().unwrap();
    let since = Instant::now();
    write_to(&path).0.join().unwrap();
    took_no_grace(since);
    assert!(!stuck.is_valid());
}

#[test]
fn a_truncation_breaks_a_lease_too() {
    let Some((_folder, path)) = file("one") else { return };
    let keeper = LeaseKeeper::start().unwrap();
    let lease = keeper.lease(read_only(&path)).unwrap();
    let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    // By name, not through a descriptor.
    // SAFETY: the name ends with a zero and lives until the call returns.
    assert_eq!(unsafe { libc::truncate(name.as_ptr(), 100) }, 0);
    assert!(!lease.is_held() && lease.version() != lease.granted_version());
}

#[test]
fn writers_keep_leases_away() {
    let Some((_folder, path)) = file("one") else { return };
    let keeper = LeaseKeeper::start().unwrap();
    let writer = OpenOptions::new().write(true).open(&path).unwrap();
    assert_eq!(keeper.lease(read_only(&path)).unwrap_err(), LeaseError::Busy);
    drop(writer);
    let own = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    assert_eq!(keeper.lease(own.into()).unwrap_err(), LeaseError::Busy, "its own descriptor writes");
    let one = keeper.lease(read_only(&path)).unwrap();
    let other = keeper.lease(read_only(&path)).unwrap();
    assert_ne!(one.version(), other.version(), "readers share");
    assert_eq!(keeper.lease(read_only(Path::new("/"))).unwrap_err(), LeaseError::Unsupported);
    assert_eq!(keeper.lease(read_only(Path::new("/dev/null"))).unwrap_err(), LeaseError::Unsupported);
}

#[test]
fn a_writable_mapping_keeps_leases_away() {
    let Some((_folder, path)) = file("one") else { return };
    let keeper = LeaseKeeper::start().unwrap();
    let writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let flags = rustix::mm::MapFlags::SHARED;
    let protection = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address, and nobody uses the memory.
    let mapped =
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, protection, flags, &writer, 0) }.unwrap();
    drop(writer);
    assert_eq!(keeper.lease(read_only(&path)).unwrap_err(), LeaseError::Busy);
    // SAFETY: it was mapped above, in this length.
    unsafe { rustix::mm::munmap(mapped, 4096) }.unwrap();
    assert!(keeper.lease(read_only(&path)).is_ok());
}

#[test]
fn many_leases_break_at_once() {
    let Some((folder, _)) = file("one") else { return };
    let keeper = LeaseKeeper::start().unwrap();
    let paths: Vec<_> = (0..64).map(|index| folder.path().join(format!("file{index}"))).collect();
    for path in &paths {
        std::fs::write(path, [1; 100]).unwrap();
    }
    let leases: Vec<_> = paths.iter().map(|path| keeper.lease(read_only(path)).unwrap()).collect();
    let since = Instant::now();
    let writers: Vec<_> = paths.iter().skip(1).map(|path| write_to(path).0).collect();
    for writer in writers {
        writer.join().unwrap();
    }
    took_no_grace(since);
    assert!(leases[0].is_held(), "nobody wrote to this one");
    assert!(leases.iter().skip(1).all(|lease| !lease.is_held()));
}

#[test]
fn a_lease_that_is_dropped_holds_up_nobody_and_tells_nobody() {
    let Some((_folder, path)) = file("one") else { return };
    let keeper = LeaseKeeper::start().unwrap();
    let was_told = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&was_told);
    let on_break = Box::new(move |_| told.store(true, Ordering::SeqCst));
    let lease =
        keeper.lease_with(read_only(&path), LeaseOptions { grace: LONG, on_break: Some(on_break) }).unwrap();
    drop(lease);
    // Without waiting at all: a lease would have it refused.
    let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
    rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).unwrap();
    let lease = keeper.lease(read_only(&path)).unwrap();
    let request = lease.begin().unwrap();
    drop(lease);
    assert!(!request.is_valid());
    let (writer, _) = write_to(&path);
    drop(request);
    writer.join().unwrap();
    assert!(!was_told.load(Ordering::SeqCst));
}

#[test]
fn leases_outlive_their_keeper() {
    let Some((_folder, path)) = file("one") else { return };
    let keeper = LeaseKeeper::start().unwrap();
    let lease = keeper.lease(read_only(&path)).unwrap();
    drop(keeper);
    assert!(lease.is_held());
    let since = Instant::now();
    write_to(&path).0.join().unwrap();
    took_no_grace(since);
    assert!(!lease.is_held());
}

#[test]
fn a_hook_that_panics_holds_up_nobody() {
    let Some((_folder, path)) = file("one") else { return };
    let keeper = LeaseKeeper::start().unwrap();
    let on_break = Box::new(|_| panic!("as a test wants it"));
    let lease =
        keeper.lease_with(read_only(&path), LeaseOptions { grace: LONG, on_break: Some(on_break) }).unwrap();
    let since = Instant::now();
    write_to(&path).0.join().unwrap();
    took_no_grace(since);
    assert!(!lease.is_held());
    assert!(keeper.lease(read_only(&path)).is_ok(), "the keeper lives");
}

#[test]
fn names_come_and_go_and_the_lease_stays() {
    let Some((folder, path)) = file("one") else { return };
    let keeper = LeaseKeeper::start().unwrap();
    let lease = keeper.lease(read_only(&path)).unwrap();
    let other = folder.path().join("other");
    std::fs::write(&other, [9; 8192]).unwrap();
    std::fs::hard_link(&path, folder.path().join("link")).unwrap();
    std::fs::rename(&other, &path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(folder.path().join("link")).unwrap();
    assert!(lease.is_held(), "the file is the one that was opened, whatever its name");
    let mut bytes = [0; 8192];
    rustix::io::pread(lease.file(), &mut bytes, 0).unwrap();
    assert_eq!(bytes, [7; 8192]);
}

/// Readers that follow the rule against writers that change the whole file: no answer that counts is mixed or late.
#[test]
fn answers_that_count_are_of_one_version() {
    let Some((_folder, path)) = file("one") else { return };
    let keeper = LeaseKeeper::start().unwrap();
    let (is_over, counted) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let begun = Instant::now();
            // On a busy machine the reader may not have had its turn yet.
            let goes_on = |round: u32| round < 150 || counted.load(Ordering::SeqCst) == 0;
            for round in
                (0..).take_while(|round| goes_on(*round) && begun.elapsed() < Duration::from_secs(60))
            {
                let round = round as u8;
                // Half of the file at a time, with room between for a reader to see one half.
                let file = OpenOptions::new().write(true).open(&path).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, &[round; 4096], 0).unwrap();
                std::thread::yield_now();
                std::os::unix::fs::FileExt::write_all_at(&file, &[round; 4096], 4096).unwrap();
                drop(file);
                std::thread::sleep(Duration::from_micros(300));
            }
            is_over.store(true, Ordering::SeqCst);
        });
        while !is_over.load(Ordering::SeqCst) {
            let Ok(lease) = keeper.lease(read_only(&path)) else { continue };
            while let Some(request) = lease.begin() {
                let mut bytes = [0; 8192];
                rustix::io::pread(lease.file(), &mut bytes[..4096], 0).unwrap();
                rustix::io::pread(lease.file(), &mut bytes[4096..], 4096).unwrap();
                if request.is_valid() {
                    counted.fetch_add(1, Ordering::SeqCst);
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "an answer that counts is mixed");
                }
                drop(request);
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
            }
        }
    });
    assert!(counted.into_inner() > 0);
}
