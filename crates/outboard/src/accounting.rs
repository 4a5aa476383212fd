//! Processor time: of this process, of another, and of the whole machine.

use std::io;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time of this process so far, all threads together.
#[must_use]
pub fn own_cpu() -> Duration {
    elapsed(ClockId::ProcessCPUTime)
}

/// Processor time of the calling thread so far.
#[must_use]
pub fn thread_cpu() -> Duration {
    elapsed(ClockId::ThreadCPUTime)
}

/// Processor time of another process so far: that of all of its threads to the kernel's clock tick (10 ms as a rule), or that
/// of the threads that it has now, which is told to the nanosecond, if that is more.
pub fn process_cpu(pid: u32) -> io::Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let all = parse_process_ticks(&text).map(from_ticks).ok_or_else(|| malformed("stat of a process"))?;
    // Not every kernel tells.
    Ok(all.max(threads_cpu(pid).unwrap_or_default()))
}

/// How often the threads that a process has now have gone to sleep so far.
pub fn process_sleeps(pid: u32) -> io::Result<u64> {
    let mut sum = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended since it was listed.
        let text = std::fs::read_to_string(thread?.path().join("status")).unwrap_or_default();
        sum += parse_sleeps(&text).unwrap_or_default();
    }
    Ok(sum)
}

/// Processor time of the threads that a process has now.
fn threads_cpu(pid: u32) -> io::Result<Duration> {
    let mut sum = Duration::ZERO;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may have ended since it was listed.
        let text = std::fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        sum += parse_thread_time(&text).unwrap_or_default();
    }
    Ok(sum)
}

/// What all processors did so far besides idling: the only account that knows interrupts, and what loopback does on the
/// sender's behalf. Time that a hypervisor took away is nobody's work and does not count.
pub fn machine_busy() -> io::Result<Duration> {
    let text = std::fs::read_to_string("/proc/stat")?;
    parse_machine_ticks(&text).map(from_ticks).ok_or_else(|| malformed("stat of the machine"))
}

fn elapsed(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanoseconds = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(seconds, nanoseconds)
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the kernel's {what} has an unknown form"))
}

fn from_ticks(ticks: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_nanos(ticks.saturating_mul(1_000_000_000 / per_second))
}

/// User and system time. The name, second in the line, may hold blanks and brackets: the last bracket ends it.
fn parse_process_ticks(text: &str) -> Option<u64> {
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

fn parse_sleeps(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

/// The first number: nanoseconds on a processor.
fn parse_thread_time(text: &str) -> Option<Duration> {
    text.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// The sum of user, nice, system, irq and softirq in the first line.
fn parse_machine_ticks(text: &str) -> Option<u64> {
    let fields = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Option<Vec<u64>> = fields.split_ascii_whitespace().map(|field| field.parse().ok()).collect();
    let ticks = ticks?;
    [0, 1, 2, 5, 6].into_iter().map(|index| ticks.get(index).copied()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_brackets_does_not_confuse() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 4194304 100 0 0 0 30 12 0 0 20 0 1 0 5 0 0";
        assert_eq!(parse_process_ticks(text), Some(42));
        assert_eq!(parse_process_ticks("7 (cut"), None);
    }

    #[test]
    fn a_threads_time_comes_first_and_waiting_does_not_count() {
        assert_eq!(parse_thread_time("210735300 1408760658 462\n"), Some(Duration::from_nanos(210_735_300)));
        assert_eq!(parse_thread_time(""), None);
    }

    #[test]
    fn a_thread_sleeps_when_it_wants_to() {
        let text = "Threads:\t3\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!((parse_sleeps(text), parse_sleeps("Threads:\t3\n")), (Some(150), None));
    }

    #[test]
    fn idle_waiting_and_stolen_time_is_not_busy() {
        assert_eq!(parse_machine_ticks("cpu  1 2 4 1000 1000 8 16 1000 0 0\ncpu0 9\n"), Some(31));
        assert_eq!(parse_machine_ticks("intr 5"), None);
    }

    #[test]
    fn own_work_is_accounted() {
        let before = own_cpu();
        let thread_before = thread_cpu();
        let mut sum = 0u64;
        // The loop ends when the clock says that it worked: no assumption on the machine's speed.
        while thread_cpu() < thread_before + Duration::from_millis(30) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(own_cpu() >= before + Duration::from_millis(30));
        assert!(process_cpu(std::process::id()).unwrap() > Duration::ZERO);
        assert!(machine_busy().unwrap() > Duration::ZERO);
    }
}
