//! The two rings for comparison deliver every message once, and in its producer's order.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

mod rig;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ob_core::{Dma, Token};
use ob_ring::baseline::farm::{FarmReceiver, FarmSender};
use ob_ring::baseline::lock::LockSender;
use ob_ring::{Armed, LocalDma, PushError};
use rig::{Card, Group, REGION, Random, filler};

const TRANSFER_MAX: u32 = 2 << 20;
const MESSAGES: u64 = if cfg!(miri) { 8 } else { 20_000 };

/// Collects numbers `producer << 32 | count` and checks that each comes once and in order.
struct Arrivals {
    next: Vec<u64>,
}

impl Arrivals {
    fn new(producers: u64) -> Self {
        Self { next: vec![0; producers as usize] }
    }

    fn take(&mut self, number: u64) {
        let next = &mut self.next[(number >> 32) as usize];
        assert_eq!(number & 0xffff_ffff, *next, "of producer {}", number >> 32);
        *next += 1;
    }

    fn are_all_here(&self) -> bool {
        self.next.iter().all(|next| *next == MESSAGES)
    }
}

/// Lets producers go when the card's side fails, so that the failure is seen.
struct EndOnPanic<'a>(&'a AtomicBool);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn push_until(ended: &AtomicBool, mut push: impl FnMut() -> Result<(), PushError>) {
    while !ended.load(Ordering::Acquire) {
        match push() {
            Ok(()) => return,
            Err(PushError::Retry) => thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

/// A message of a length that its number decides.
fn message(number: u64) -> Vec<u8> {
    let len = Random(number).below(700) as usize;
    number.to_le_bytes().into_iter().chain(filler(number, len)).collect()
}

fn take_messages(card: &mut Card, arrivals: &mut Arrivals) -> bool {
    let mut came = false;
    for batch in card.drain() {
        for received in batch.iter() {
            let number = u64::from_le_bytes(*received.inline.first_chunk().unwrap());
            assert_eq!(received.inline, message(number));
            arrivals.take(number);
            came = true;
        }
    }
    came
}

fn exchange_with_locks(producers: u64, sleeping: bool) {
    let group = Group::new(4096, 4096, TRANSFER_MAX);
    let sender = LockSender::new(group.region.clone(), group.request, group.doorbell.clone());
    let (mut card, mut arrivals) = (group.card(64, TRANSFER_MAX), Arrivals::new(producers));
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for producer in 0..producers {
            let (sender, ended) = (sender.clone(), &ended);
            scope.spawn(move || {
                for count in 0..MESSAGES {
                    let bytes = message(producer << 32 | count);
                    push_until(ended, || sender.push(&bytes));
                }
            });
        }
        let _end = EndOnPanic(&ended);
        while !arrivals.are_all_here() {
            let rung = group.doorbell.count();
            card.receiver.wake();
            card.receiver.step(&mut card.dma).unwrap();
            if take_messages(&mut card, &mut arrivals) {
                continue;
            }
            if !sleeping {
                thread::yield_now();
                continue;
            }
            card.receiver.arm(&mut card.dma).unwrap();
            let came = take_messages(&mut card, &mut arrivals);
            if !came && card.receiver.arm(&mut card.dma).unwrap() == Armed::Yes {
                group.doorbell.wait_while("card", |count| count == rung);
            }
        }
    });
}

#[test]
fn the_ring_with_a_lock_delivers_each_message_once() {
    for producers in if cfg!(miri) { &[2, 3][..] } else { &[1, 2, 4] } {
        exchange_with_locks(*producers, false);
    }
}

#[test]
fn the_ring_with_a_lock_wakes_the_card() {
    exchange_with_locks(3, true);
}

#[test]
fn the_ring_with_a_lock_says_when_it_is_full_or_the_message_too_large() {
    let group = Group::new(4096, 4096, TRANSFER_MAX);
    let sender = LockSender::new(group.region.clone(), group.request, group.doorbell.clone());
    let limit = group.request.message_max();
    assert_eq!(sender.push(&vec![0; limit as usize - 7]), Err(PushError::TooLarge { limit }));
    assert_eq!(sender.push(&vec![0; 1 << 16]), Err(PushError::TooLarge { limit }));
    assert_eq!(sender.push(&vec![0; limit as usize - 8]), Ok(()));
    assert_eq!(sender.push(&vec![0; limit as usize - 8]), Ok(()));
    assert_eq!(sender.push(&[]), Err(PushError::Retry));
}

fn exchange_with_flags(producers: u64, depth: usize) {
    let group = Group::new(4096, 4096, TRANSFER_MAX);
    let sender = FarmSender::new(group.region.clone(), group.request);
    let mut receiver = FarmReceiver::new(group.request, Token(0));
    let mut dma = LocalDma::new(depth, TRANSFER_MAX as usize);
    dma.register(REGION, group.region.clone());
    let (mut arrivals, ended) = (Arrivals::new(producers), AtomicBool::new(false));
    thread::scope(|scope| {
        for producer in 0..producers {
            let (sender, ended) = (sender.clone(), &ended);
            scope.spawn(move || {
                for count in 0..MESSAGES {
                    push_until(ended, || sender.push(producer << 32 | count));
                }
            });
        }
        let _end = EndOnPanic(&ended);
        while !arrivals.are_all_here() {
            if !receiver.step(&mut dma).unwrap() {
                thread::yield_now();
            }
            while let Some(completion) = dma.poll() {
                if let Some(number) = receiver.complete(&mut dma, &completion).unwrap() {
                    arrivals.take(number);
                }
            }
        }
    });
}

#[test]
fn the_ring_with_flags_delivers_each_message_once() {
    for producers in if cfg!(miri) { &[2, 3][..] } else { &[1, 2, 4] } {
        exchange_with_flags(*producers, 16);
    }
    exchange_with_flags(2, 1);
}

#[test]
fn the_ring_with_flags_says_when_it_is_full() {
    let group = Group::new(4096, 4096, TRANSFER_MAX);
    let sender = FarmSender::new(group.region.clone(), group.request);
    for number in 0..4096 / 16 {
        assert_eq!(sender.push(number), Ok(()));
    }
    assert_eq!(sender.push(0), Err(PushError::Retry));
}
