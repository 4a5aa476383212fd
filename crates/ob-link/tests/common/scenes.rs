//! What every link must do, as scenes that a host plays with a card that sends channel messages back.

use std::sync::atomic::{AtomicU64, Ordering};

use ob_link::{GroupRefusal, HostGroup, HostLink, OpenGroupError};

use super::{ECHO, LONG, observe, push, take};

/// Every scene, one after the other.
pub fn all(link: &HostLink) {
    echo(link);
    many_threads(link);
    refusals(link);
    let steps = AtomicU64::new(0);
    steady(link, &steps, || steps.load(Ordering::Acquire) > 1500);
}

pub fn echo(link: &HostLink) {
    let group = link.open_group(ECHO, 1 << 15, 1 << 15).unwrap();
    for number in 0..200u64 {
        let payload = vec![number as u8; (number as usize * 97) % 9000];
        push(&group, &number.to_le_bytes(), Some(&payload));
        assert_eq!(take(&group), (number.to_le_bytes().to_vec(), payload));
    }
}

/// Several threads put requests in and several take responses out: each arrives once.
pub fn many_threads(link: &HostLink) {
    const THREADS: u64 = 3;
    const EACH: u64 = 200;
    let group = link.open_group(ECHO, 1 << 13, 1 << 13).unwrap();
    let mut seen: Vec<u64> = std::thread::scope(|scope| {
        let group = &group;
        for thread in 0..THREADS {
            scope
                .spawn(move || (0..EACH).for_each(|n| push(group, &(thread * EACH + n).to_le_bytes(), None)));
        }
        let takers: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(move || (0..EACH).map(|_| number(&take(group).0)).collect::<Vec<_>>()))
            .collect();
        takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect()
    });
    seen.sort_unstable();
    assert_eq!(seen, (0..THREADS * EACH).collect::<Vec<_>>());
}

pub fn refusals(link: &HostLink) {
    let refusal = |service, request, response| match link.open_group(service, request, response) {
        Err(OpenGroupError::Refused(refusal)) => refusal,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("opened"),
    };
    assert!(matches!(refusal(ECHO, 5000, 4096), GroupRefusal::Capacity(_)));
    assert!(matches!(refusal(ECHO, 1 << 30, 4096), GroupRefusal::Budget(_)));
    assert!(matches!(refusal(99, 4096, 4096), GroupRefusal::Service(_)));
}

/// Requests and channel messages, numbered, until `enough`; nothing may be lost, doubled or out of order. `steps`
/// counts what came back.
pub fn steady(link: &HostLink, steps: &AtomicU64, enough: impl Fn() -> bool + Sync) {
    let group = link.open_group(ECHO, 1 << 13, 1 << 13).unwrap();
    let ends = [AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)];
    let taken = [AtomicU64::new(0), AtomicU64::new(0)];
    std::thread::scope(|scope| {
        let (group, ends, taken, enough) = (&group, &ends, &taken, &enough);
        scope.spawn(move || {
            send_numbers(&ends[0], &taken[0], enough, |number| {
                push(group, &number.to_le_bytes(), Some(&payload_of(number)));
            });
        });
        scope.spawn(move || {
            send_numbers(&ends[1], &taken[1], enough, |number| {
                observe("room on the channel", || link.send(&number.to_le_bytes()).then_some(()));
            });
        });
        scope.spawn(move || take_numbers(&ends[0], &taken[0], steps, || response(group)));
        take_numbers(&ends[1], &taken[1], steps, || number(&link.receive(LONG).unwrap()));
    });
    assert_eq!(link.over(), None);
}

const WINDOW: u64 = 100;

/// Sends numbers until `enough`, not more than a window ahead; then tells where the end is.
fn send_numbers(end: &AtomicU64, taken: &AtomicU64, enough: &impl Fn() -> bool, send: impl Fn(u64)) {
    let mut next = 0;
    while !enough() {
        observe("answers", || (next - taken.load(Ordering::Acquire) < WINDOW).then_some(()));
        send(next);
        next += 1;
    }
    // One that tells the taker to look at the end.
    end.store(next, Ordering::Release);
    send(next);
}

fn take_numbers(end: &AtomicU64, taken: &AtomicU64, steps: &AtomicU64, take: impl Fn() -> u64) {
    let mut next = 0;
    loop {
        assert_eq!(take(), next, "lost, doubled or out of order");
        if end.load(Ordering::Acquire) == next {
            return;
        }
        next += 1;
        taken.store(next, Ordering::Release);
        steps.fetch_add(1, Ordering::AcqRel);
    }
}

fn payload_of(number: u64) -> Vec<u8> {
    vec![number as u8; (number as usize * 37) % 700]
}

fn response(group: &HostGroup) -> u64 {
    let (inline, payload) = take(group);
    let number = number(&inline);
    assert_eq!(payload, payload_of(number));
    number
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}
