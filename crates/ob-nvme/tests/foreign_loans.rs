//! Buffers that a service behind the target is lent: in which order, how many, and what becomes of them.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::foreign::{BARE, config, expect_ended, lend, next_command, rig, rig_with, vendor};
use crate::support::{BLOCK, Client, Rig, Wish};

use ob_memory::Shared;
use ob_nvme::target::{ForeignEvent, ForeignKey, LOANS_MAX, LendError, TargetConfig};
use ob_wire_nvme::pdu::Digests;
use ob_wire_nvme::{DataPointer, Status};

const LARGE: usize = 128 << 10;

/// A command that a service has.
fn served(rig: &mut Rig, io: Client) -> ForeignKey {
    let entry = vendor(rig, io, BARE, 1, DataPointer::None);
    rig.submit(io, &entry, &[]);
    next_command(rig).key
}

fn lent_lens(rig: &mut Rig, key: ForeignKey) -> Option<Vec<usize>> {
    match rig.target.next_foreign()? {
        ForeignEvent::Lent { key: lent, loans } if lent == key => {
            Some(loans.iter().flatten().map(|loan| loan.len()).collect())
        }
        other => panic!("{other:?}"),
    }
}

/// Nothing is left to do, however often somebody looks.
fn assert_waiting(rig: &mut Rig) {
    for _ in 0..3 {
        rig.run();
        assert!(!rig.target.can_go_on() && rig.target.next_foreign().is_none());
    }
}

#[test]
fn a_service_is_lent_buffers_in_the_order_of_its_connection() {
    const BEFORE: usize = 100;
    let mut rig = rig();
    let (_, controller) = rig.admin(Digests::NONE);
    let io = rig.open(Digests::NONE);
    let wish = Wish { controller, entries: 128, ..Wish::default() };
    assert_eq!(rig.connect_as(io, 1, &wish).status(), Status::SUCCESS);
    rig.disk.is_held = true;
    for _ in 0..BEFORE {
        rig.submit_read(io, 0, (LARGE / BLOCK) as u32);
    }
    assert!(rig.target.counts().waiting_for_buffer > 50);
    let key = served(&mut rig, io);
    rig.target.lend(key, &[LARGE]).unwrap();
    // The host keeps its queue full: for each answer it sends another read.
    let mut answers = 0;
    let lent = loop {
        rig.run();
        if let Some(lent) = lent_lens(&mut rig, key) {
            break lent;
        }
        rig.complete(0);
        rig.run();
        rig.submit_read(io, 0, (LARGE / BLOCK) as u32);
        answers += 1;
        assert!(answers <= BEFORE, "it waits behind those that came after it");
    };
    assert_eq!(lent, [LARGE]);
}

#[test]
fn what_can_never_be_lent_is_refused_and_everything_else_is_lent() {
    // As much as one of 64 threads has.
    let mut rig = rig_with(TargetConfig { transfer_memory: 1 << 20, ..config() });
    let (_admin, io) = rig.queues(Digests::NONE, false);
    let key = served(&mut rig, io);
    for too_much in [&[LARGE + 1][..], &[LARGE; 3], &[512; LOANS_MAX + 1]] {
        assert_eq!(rig.target.lend(key, too_much), Err(LendError::Never));
    }
    for lens in [&[LARGE; 2][..], &[4096, LARGE], &[512; LOANS_MAX], &[0]] {
        rig.target.lend(key, lens).unwrap();
        assert_eq!(lent_lens(&mut rig, key).as_deref(), Some(lens));
        assert_eq!(rig.target.memory_used(), 0);
    }
    // Its host's own commands have a share first: it waits until they are over, and then has what it needs.
    rig.disk.is_held = true;
    rig.submit_read(io, 0, (LARGE / BLOCK) as u32);
    rig.target.lend(key, &[LARGE; 2]).unwrap();
    assert_waiting(&mut rig);
    assert_eq!(rig.target.lend(key, &[512]), Err(LendError::Asked));
    rig.release_disk();
    assert_eq!(lent_lens(&mut rig, key), Some(vec![LARGE; 2]));
}

#[test]
fn a_service_that_waits_hears_of_memory_that_comes_back_by_whatever_way() {
    let mut rig = rig_with(TargetConfig { transfer_memory: 1 << 10, ..config() });
    let (_admin, io) = rig.queues(Digests::NONE, false);
    let key = served(&mut rig, io);
    // The memory, wherever it is kept, and not the loan, until there is no more.
    let mut kept: Vec<Shared> = Vec::new();
    for _ in 0..4 {
        kept.push(lend(&mut rig, key, LARGE).into_slice().share());
    }
    rig.target.lend(key, &[4096, 4096, LARGE]).unwrap();
    // Those that are given back because there are not enough of them are no news.
    assert_waiting(&mut rig);
    let other = served(&mut rig, io);
    rig.target.lend(other, &[512]).unwrap();
    assert_waiting(&mut rig);
    kept.pop();
    assert!(rig.target.can_go_on());
    rig.run();
    assert_eq!(lent_lens(&mut rig, key), Some(vec![4096, 4096, LARGE]));
    // What the first was lent is given back: that is news to the second.
    assert!(rig.target.can_go_on());
    rig.run();
    assert_eq!(lent_lens(&mut rig, other), Some(vec![512]));
}

#[test]
fn a_command_that_is_over_leaves_the_line_and_hears_nothing() {
    let mut rig = rig_with(TargetConfig { transfer_memory: 1 << 10, ..config() });
    let (_admin, io) = rig.queues(Digests::NONE, false);
    let [one, two, three] = [(); 3].map(|()| served(&mut rig, io));
    let held = lend(&mut rig, one, LARGE);
    rig.target.lend(two, &[LARGE; 2]).unwrap();
    rig.target.lend(three, &[LARGE; 2]).unwrap();
    assert_eq!(rig.target.counts().waiting_for_buffer, 2);
    rig.target.foreign_done(two, Err(Status::INTERNAL_ERROR), 0);
    assert_eq!(rig.target.counts().waiting_for_buffer, 1);
    // Lent or read, and not told of when the command is answered.
    rig.target.foreign_read(one, 1, 0, held).unwrap();
    rig.run();
    rig.target.foreign_done(one, Err(Status::INTERNAL_ERROR), 0);
    assert_eq!(lent_lens(&mut rig, three), None, "the read is not told of");
    rig.run();
    rig.target.foreign_done(three, Err(Status::INTERNAL_ERROR), 0);
    rig.run();
    assert!(rig.target.next_foreign().is_none());
    assert_eq!((rig.target.memory_used(), rig.messages(io).len()), (0, 3));
    // The same of one whose connection is gone.
    let [one, two] = [(); 2].map(|()| served(&mut rig, io));
    let held = lend(&mut rig, one, LARGE);
    rig.target.lend(two, &[LARGE; 2]).unwrap();
    rig.hang_up(io);
    drop(held);
    rig.run();
    for key in [one, two] {
        expect_ended(&mut rig, key);
        rig.target.foreign_done(key, Err(Status::INTERNAL_ERROR), 0);
    }
    assert_waiting(&mut rig);
    assert_eq!((rig.target.memory_used(), rig.target.counts().in_flight), (0, 0));
}

#[test]
fn a_command_whose_namespace_is_gone_is_not_handed_out_as_one_without() {
    let mut rig = rig();
    let (_admin, io) = rig.queues(Digests::NONE, false);
    let entry = vendor(&mut rig, io, BARE, 1, DataPointer::None);
    rig.submit(io, &entry, &[]);
    rig.target.control_mut().remove_namespace(rig.subsystem, 1).unwrap();
    assert!(rig.target.next_foreign().is_none());
    rig.run();
    assert!(rig.response(io).status().is(Status::INVALID_NAMESPACE));
}
