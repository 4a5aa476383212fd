//! The initiator against our own target, over loopback sockets.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::loopback;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use loopback::{BLOCK, BLOCKS, NQN, Served, block_on, join_all, namespace, pattern};
use ob_nvme::auth::{HashId, Policy, Secret, SecretSize};
use ob_nvme::initiator::{
    Cause, Data, Error, Event, Initiator, Options, ProtocolError, RawCommand, RetryPolicy, Secrets,
    Unreachable, discover,
};
use ob_nvme::target::control::{HostPolicy, HostSecrets, HostSpec, NamespaceSpec};
use ob_wire_nvme::command::{AdminOpcode, IoOpcode};
use ob_wire_nvme::log::DiscoverySubtype;
use ob_wire_nvme::pdu::{DataAlignment, Digests, IcResponse, PduError, Role};
use ob_wire_nvme::text::unpadded;
use ob_wire_nvme::{CommandId, NamespaceId, Status, SubmissionEntry};

const DIGESTS: [Digests; 4] = [
    Digests::NONE,
    Digests { header: true, data: false },
    Digests { header: false, data: true },
    Digests::BOTH,
];

#[test]
fn what_was_written_is_read_with_every_combination_of_digests_and_several_queues() {
    for (digests, queues) in DIGESTS.into_iter().zip([1, 2, 4, 3]) {
        let served = Served::new();
        let options = Options { digests, queues, ..served.options() };
        block_on(async {
            let initiator = Initiator::connect(options).await.unwrap();
            assert_eq!(initiator.facts().unwrap().queues, queues);
            let [one] = &initiator.namespaces().await.unwrap()[..] else { panic!("one namespace") };
            assert_eq!((one.blocks(), one.block_len(), one.ids().uuid), (BLOCKS, 512, Some([1; 16])));
            // In a capsule, by one R2T, and split at the controller's largest transfer.
            for (start, len) in [(0, BLOCK), (1, 8192), (100, 128 << 10), (1000, (1 << 20) + 3 * BLOCK)] {
                let data = pattern(start + 1, len);
                one.write(start, data.clone()).await.unwrap();
                assert!(one.read(start, (len / BLOCK) as u64).await.unwrap() == data, "{digests:?} {len}");
                assert!(one.compare(start, data.clone()).await.unwrap());
                let mut other = data;
                *other.last_mut().unwrap() ^= 1;
                assert!(!one.compare(start, other).await.unwrap());
            }
            initiator.disconnect().await;
            assert_eq!(one.read(0, 1).await, Err(Error::Closed));
        });
        assert_eq!(served.ask(|driver| driver.target().counts().in_flight), 0);
    }
}

#[test]
fn a_controller_and_its_namespaces_describe_themselves_without_io_queues() {
    let served = Served::new();
    block_on(async {
        let initiator = Initiator::connect(Options { queues: 0, ..served.options() }).await.unwrap();
        let controller = initiator.controller().await.unwrap();
        assert_eq!(unpadded(&controller.subsystem), NQN);
        assert_eq!(controller.controller_id.get(), initiator.facts().unwrap().controller.0);
        let id = NamespaceId(1);
        let (layout, ids) = initiator.describe(id).await.unwrap();
        assert_eq!((layout.blocks.get(), ids.uuid), (BLOCKS, Some([1; 16])));
        let namespace = initiator.namespace(id).await.unwrap();
        assert_eq!((namespace.used(), namespace.blocks()), (layout.used.get(), BLOCKS));
        let missing = NamespaceId(9);
        assert_eq!(initiator.describe(missing).await.err(), Some(Error::NoSuchNamespace(missing)));
        initiator.disconnect().await;
    });
}

#[test]
fn every_other_command_does_what_it_says() {
    let served = Served::new();
    block_on(async {
        let one = served.connect().namespace(NamespaceId(1)).await.unwrap();
        one.write(0, vec![7; 64 * BLOCK]).await.unwrap();
        one.flush().await.unwrap();
        assert_eq!(served.count("flush"), 1);
        one.write_durably(0, vec![8; BLOCK]).await.unwrap();
        assert_eq!(served.count("durable write"), 1);
        one.write_zeroes(8, 8, false).await.unwrap();
        let bytes = one.read(7, 10).await.unwrap();
        assert!(bytes[..BLOCK] == [7; BLOCK] && bytes[9 * BLOCK..] == [7; BLOCK]);
        assert!(bytes[BLOCK..9 * BLOCK].iter().all(|byte| *byte == 0));
        // All of it: more than one command.
        one.write_zeroes(0, BLOCKS, true).await.unwrap();
        assert!(one.read(0, 64).await.unwrap().iter().all(|byte| *byte == 0));
        let before = served.count("discard");
        let ranges: Vec<_> = (0..300).map(|index| index * 2..index * 2 + 1).collect();
        one.deallocate_ranges(&ranges).await.unwrap();
        one.deallocate(5000, 100).await.unwrap();
        assert_eq!(served.count("discard") - before, 301);
    });
}

#[test]
fn mistakes_of_the_caller_are_told_before_anything_is_sent() {
    let served = Served::new();
    block_on(async {
        let initiator = served.connect();
        let one = initiator.namespace(NamespaceId(1)).await.unwrap();
        for (start, blocks) in [(BLOCKS, 1), (BLOCKS - 1, 2), (0, 0), (u64::MAX, 1), (1, u64::MAX)] {
            let expected = Error::OutOfRange { start, blocks, capacity: BLOCKS };
            assert_eq!(one.read(start, blocks).await, Err(expected.clone()));
            assert_eq!(one.write_zeroes(start, blocks, true).await, Err(expected));
        }
        let expected = Error::NotWholeBlocks { len: 513, block_len: 512 };
        assert_eq!(one.write(0, vec![0; 513]).await, Err(expected));
        assert!(one.deallocate(BLOCKS - 1, 2).await.is_err());
        assert_eq!(
            initiator.namespace(NamespaceId(9)).await.unwrap_err(),
            Error::NoSuchNamespace(NamespaceId(9))
        );
        let limit = initiator.facts().unwrap().transfer_max as usize;
        let entry = SubmissionEntry::new(0xC1, CommandId(0), NamespaceId(1));
        let data = Data::ToController(vec![0; limit + 1].into());
        let raw = RawCommand { entry, data, is_idempotent: false };
        assert_eq!(initiator.io(raw).await, Err(Error::TooLong { len: limit + 1, limit }));
    });
    assert_eq!(served.count("read") + served.count("write"), 0);
}

#[test]
fn raw_commands_reach_the_controller_and_its_refusals_come_back() {
    let served = Served::new();
    block_on(async {
        let initiator = served.connect();
        let raw = |opcode, data| RawCommand {
            entry: SubmissionEntry::new(opcode, CommandId(77), NamespaceId(1)),
            data,
            is_idempotent: false,
        };
        let vendor = initiator.io(raw(0xC2, Data::ToHost(4096))).await.unwrap_err();
        assert!(vendor.status().unwrap().is(Status::INVALID_OPCODE), "{vendor}");
        let vendor = initiator.admin(raw(0xC1, Data::ToController(vec![1; 64].into()))).await.unwrap_err();
        assert!(vendor.status().unwrap().is(Status::INVALID_OPCODE), "{vendor}");
        let answer = initiator.io(raw(IoOpcode::Read.code(), Data::ToHost(512))).await.unwrap();
        assert_eq!(answer.data, vec![0; 512]);
        let answer = initiator.admin(raw(AdminOpcode::KeepAlive.code(), Data::None)).await.unwrap();
        assert_eq!((answer.result, answer.data), (0, Vec::new()));
    });
}

#[test]
fn discovery_tells_where_the_subsystem_is() {
    let served = Served::new();
    let entries = block_on(discover(&served.options())).unwrap();
    let subsystem = entries.iter().find(|entry| entry.subtype == DiscoverySubtype::Nvm).unwrap();
    assert_eq!((subsystem.subsystem.as_str(), subsystem.service), (NQN, 4420));
}

#[test]
fn who_is_not_let_in_is_told_why() {
    let served = Served::with(HostPolicy::Listed(Vec::new()));
    let refused = block_on(Initiator::connect(served.options())).unwrap_err();
    assert!(refused.status().unwrap().is(Status::CONNECT_INVALID_HOST), "{refused}");
    let elsewhere = Options::new(served.address, "nqn.2026-01.example:other", [5; 16]).unwrap();
    let refused = block_on(Initiator::connect(elsewhere)).unwrap_err();
    assert!(refused.status().unwrap().is(Status::CONNECT_INVALID_PARAMETERS), "{refused}");
    let address = served.address;
    drop(served);
    let nobody = block_on(Initiator::connect(Options::new(address, NQN, [5; 16]).unwrap())).unwrap_err();
    let expected = Unreachable::System(std::io::ErrorKind::ConnectionRefused);
    assert_eq!(nobody, Error::Unreachable(expected));
}

fn secret(fill: u8) -> Secret {
    Secret::generate(SecretSize::Bytes32, Some(HashId::Sha256), &mut |bytes: &mut [u8]| bytes.fill(fill))
}

#[test]
fn both_sides_prove_who_they_are_on_every_queue() {
    let bare = Options::new(([127, 0, 0, 1], 0).into(), NQN, [5; 16]).unwrap();
    let secrets = HostSecrets { host: secret(1), controller: Some(secret(2)) };
    let served = Served::with(HostPolicy::Listed(vec![HostSpec { nqn: bare.host, secrets: Some(secrets) }]));
    let with = |host, controller: Option<Secret>| Options {
        secrets: Some(Secrets { host, controller, policy: Policy::default() }),
        queues: 2,
        ..served.options()
    };
    for controller in [None, Some(secret(2))] {
        block_on(async {
            let initiator = Initiator::connect(with(secret(1), controller)).await.unwrap();
            let one = initiator.namespace(NamespaceId(1)).await.unwrap();
            one.write(3, vec![9; BLOCK]).await.unwrap();
            initiator.disconnect().await;
        });
    }
    let none = block_on(Initiator::connect(served.options())).unwrap_err();
    assert_eq!(none, Error::AuthenticationRequired);
    let wrong = block_on(Initiator::connect(with(secret(3), None))).unwrap_err();
    assert!(matches!(wrong, Error::Authentication(_)), "{wrong}");
    let wrong = block_on(Initiator::connect(with(secret(1), Some(secret(4))))).unwrap_err();
    assert!(matches!(wrong, Error::Authentication(_)), "{wrong}");
}

#[test]
fn a_turn_computes_for_one_authentication_at_most() {
    let hosts = 1..=6;
    let bare = |host| Options::new(([127, 0, 0, 1], 0).into(), NQN, [host; 16]).unwrap();
    let spec = |host| HostSpec {
        nqn: bare(host).host,
        secrets: Some(HostSecrets { host: secret(1), controller: None }),
    };
    let served = Served::with(HostPolicy::Listed(hosts.clone().map(spec).collect()));
    let mut waiting_most = 0;
    // Several wait at once nearly always; where they did not, nothing was tried.
    for _ in 0..50 {
        let connect = |host| {
            let secrets = Some(Secrets { host: secret(1), controller: None, policy: Policy::default() });
            let options = Options { address: served.address, secrets, ..bare(host) };
            std::thread::spawn(move || block_on(async { Initiator::connect(options).await.map(drop) }))
        };
        let connecting: Vec<_> = hosts.clone().map(connect).collect();
        let most = served.ask(move |driver| {
            let begun = std::time::Instant::now();
            let mut most = 0;
            while connecting.iter().any(|thread| !thread.is_finished()) {
                let before = driver.target().counts();
                most = most.max(before.waiting_for_proof);
                driver.turn(ob_core::Instant::from_nanoseconds(1) + begun.elapsed());
                assert!(driver.target().counts().proofs <= before.proofs + 1);
                driver.net_mut().wait();
            }
            connecting.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
            most
        });
        waiting_most = waiting_most.max(most);
        if waiting_most > 1 {
            return;
        }
    }
    panic!("no two ever waited");
}

#[test]
fn namespaces_that_come_and_go_are_told() {
    let served = Served::new();
    let subsystem = served.subsystem;
    block_on(async {
        let initiator = served.connect();
        assert_eq!(initiator.next_event().await, Some(Event::Connected));
        served.ask(move |driver| {
            driver.target_mut().control_mut().add_namespace(subsystem, &namespace(2)).unwrap();
        });
        assert_eq!(initiator.next_event().await, Some(Event::NamespacesChanged(vec![NamespaceId(2)])));
        assert_eq!(initiator.namespaces().await.unwrap().len(), 2);
        served.ask(move |driver| {
            driver.target_mut().control_mut().resize_namespace(subsystem, 1, 100).unwrap();
        });
        assert_eq!(initiator.next_event().await, Some(Event::NamespacesChanged(vec![NamespaceId(1)])));
        assert_eq!(initiator.namespace(NamespaceId(1)).await.unwrap().blocks(), 100);
        initiator.disconnect().await;
        assert_eq!(initiator.next_event().await, None);
    });
}

#[test]
fn another_namespace_under_the_same_number_gets_nothing() {
    for is_away in [false, true] {
        let served = Served::new();
        let subsystem = served.subsystem;
        let initiator = served.connect();
        let one = block_on(initiator.namespace(NamespaceId(1))).unwrap();
        block_on(one.write(0, vec![1; BLOCK])).unwrap();
        assert_eq!(block_on(initiator.next_event()), Some(Event::Connected));
        served.ask(move |driver| {
            let control = driver.target_mut().control_mut();
            control.remove_namespace(subsystem, 1).unwrap();
            control.add_namespace(subsystem, &NamespaceSpec { uuid: [9; 16], ..namespace(1) }).unwrap();
            if is_away {
                driver.net_mut().cut();
            }
        });
        // With the connection, or by the event: the initiator looks again before it sends anything.
        while !is_away
            && block_on(initiator.next_event()) != Some(Event::NamespacesChanged(vec![NamespaceId(1)]))
        {
        }
        let expected = Error::NamespaceChanged(NamespaceId(1));
        assert_eq!(block_on(one.write(0, vec![2; BLOCK])), Err(expected.clone()), "{is_away}");
        assert_eq!(served.count("write"), 1);
        let new = block_on(initiator.namespace(NamespaceId(1))).unwrap();
        block_on(new.write(0, vec![3; BLOCK])).unwrap();
        assert_eq!(block_on(one.flush()), Err(expected));
    }
}

#[test]
fn connections_cut_under_load_lose_nothing_that_may_be_repeated() {
    for (digests, queues) in [(Digests::NONE, 1), (Digests::BOTH, 3)] {
        let served = Served::new();
        let options = Options { digests, queues, ..served.options() };
        let initiator = block_on(Initiator::connect(options)).unwrap();
        let one = block_on(initiator.namespace(NamespaceId(1))).unwrap();
        let mut cuts = 0;
        for round in 0..20_u64 {
            // Somewhere within what is sent next, in another place each time.
            let cut_after = round as usize * 9_973;
            served.ask(move |driver| driver.net_mut().cut_after = Some(cut_after));
            let writes = (0..32).map(|index| {
                let (one, len) = (one.clone(), if index % 4 == 0 { 40 * BLOCK } else { 2 * BLOCK });
                async move {
                    let data = pattern(round * 100 + index, len);
                    one.write(index * 50, data.clone()).await.unwrap();
                    assert!(one.read(index * 50, (len / BLOCK) as u64).await.unwrap() == data, "{index}");
                }
            });
            block_on(join_all(writes));
            cuts += usize::from(served.ask(|driver| driver.net_mut().cut_after.take().is_none()));
        }
        assert!(cuts > 10, "{cuts} cuts only");
        assert_eq!(served.ask(|driver| driver.target().counts().in_flight), 0);
    }
}

#[test]
fn without_the_policy_a_command_under_way_fails_and_what_was_not_sent_waits() {
    let served = Served::new();
    let options = Options { retry: RetryPolicy::never(), depth: 4, ..served.options() };
    let initiator = block_on(Initiator::connect(options)).unwrap();
    let one = block_on(initiator.namespace(NamespaceId(1))).unwrap();
    served.ask(|driver| driver.store_mut().is_held = true);
    let reads = (0..6).map(move |index| {
        let one = one.clone();
        async move { one.read(index, 1).await }
    });
    let reads = std::thread::spawn(move || block_on(join_all(reads)));
    // Four are on the disk; two wait for room.
    while served.count("read") < 4 {
        std::thread::yield_now();
    }
    served.ask(|driver| {
        driver.net_mut().cut();
        driver.store_mut().is_held = false;
    });
    let outcomes = reads.join().unwrap();
    let lost = outcomes.iter().filter(|outcome| matches!(outcome, Err(Error::Lost(_)))).count();
    let done = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    assert_eq!((lost, done), (4, 2), "{outcomes:?}");
}

#[test]
fn a_flush_does_not_speak_for_what_an_earlier_association_completed() {
    let served = Served::new();
    let initiator = served.connect();
    let one = block_on(initiator.namespace(NamespaceId(1))).unwrap();
    let write = |block| block_on(one.write(block, pattern(1, BLOCK))).unwrap();
    write(0);
    assert_eq!(block_on(one.flush()), Ok(()));
    served.ask(|driver| driver.net_mut().cut());
    assert_eq!(block_on(one.flush()), Ok(()), "all of it was flushed before");
    write(1);
    block_on(one.write_durably(2, pattern(1, BLOCK))).unwrap();
    served.ask(|driver| driver.net_mut().cut());
    write(3);
    let again = block_on(initiator.namespace(NamespaceId(1))).unwrap();
    assert_eq!(block_on(again.flush()), Err(Error::Unflushed), "the first may be gone, whoever asks");
    assert_eq!(block_on(one.flush()), Err(Error::Unflushed), "and its own writer has to know");
    write(1);
    assert_eq!(block_on(one.flush()), Ok(()), "it was told, and written again");
    block_on(one.write_durably(4, pattern(1, BLOCK))).unwrap();
    served.ask(|driver| driver.net_mut().cut());
    assert_eq!(block_on(one.flush()), Ok(()), "what is durable needs no flush");
}

#[test]
fn a_loss_is_told_to_every_handle_that_there_was_and_once_to_each() {
    let served = Served::new();
    let initiator = served.connect();
    let one = block_on(initiator.namespace(NamespaceId(1))).unwrap();
    let other = one.clone();
    let lost = Err(Error::Unflushed);
    for (block, handle) in [&one, &other].into_iter().enumerate() {
        block_on(handle.write(block as u64, pattern(1, BLOCK))).unwrap();
    }
    served.ask(|driver| driver.net_mut().cut());
    assert_eq!(block_on(one.flush()), lost);
    let [informed, uninformed] = [one.clone(), other.clone()];
    let new = block_on(initiator.namespace(NamespaceId(1))).unwrap();
    assert_eq!(block_on(one.flush()), Ok(()));
    assert_eq!(block_on(other.flush()), lost, "what it wrote may be gone as well");
    assert_eq!(block_on(other.flush()), Ok(()));
    assert_eq!(block_on(informed.flush()), Ok(()));
    assert_eq!(block_on(uninformed.flush()), lost);
    assert_eq!(block_on(new.flush()), Ok(()), "it came after the loss was told");
}

#[test]
fn raw_commands_and_those_that_nobody_waits_for_have_to_be_flushed_too() {
    let served = Served::new();
    let initiator = served.connect();
    let one = block_on(initiator.namespace(NamespaceId(1))).unwrap();
    let entry = SubmissionEntry::new(IoOpcode::Write.code(), CommandId(0), NamespaceId(1));
    let data = Data::ToController(pattern(1, BLOCK).into());
    block_on(initiator.io(RawCommand { entry, data, is_idempotent: true })).unwrap();
    served.ask(|driver| driver.net_mut().cut());
    assert_eq!(block_on(one.flush()), Err(Error::Unflushed));
    assert_eq!(block_on(one.flush()), Ok(()));

    let mut write = Box::pin(one.write(0, pattern(2, BLOCK)));
    block_on(std::future::poll_fn(|context| {
        assert!(write.as_mut().poll(context).is_pending());
        std::task::Poll::Ready(())
    }));
    drop(write);
    // Commands of one queue are answered in order here: after the read, the write is complete.
    assert_eq!(block_on(one.read(0, 1)), Ok(pattern(2, BLOCK)));
    served.ask(|driver| driver.net_mut().cut());
    assert_eq!(block_on(one.flush()), Err(Error::Unflushed));
}

#[test]
fn what_must_not_happen_twice_is_not_repeated_unless_that_is_said() {
    for repeat_all in [false, true] {
        let served = Served::new();
        let retry = RetryPolicy { repeat_all, ..RetryPolicy::default() };
        let initiator = block_on(Initiator::connect(Options { retry, ..served.options() })).unwrap();
        served.ask(|driver| driver.store_mut().is_held = true);
        let entry = SubmissionEntry::new(IoOpcode::Read.code(), CommandId(0), NamespaceId(1));
        let data = Data::ToHost(BLOCK as u32);
        let read = RawCommand { entry, data, is_idempotent: false };
        let read = std::thread::spawn(move || block_on(initiator.io(read)));
        while served.count("read") < 1 {
            std::thread::yield_now();
        }
        served.ask(|driver| {
            driver.net_mut().cut();
            driver.store_mut().is_held = false;
        });
        let outcome = read.join().unwrap();
        if repeat_all {
            assert_eq!(outcome.unwrap().data, vec![0; BLOCK]);
        } else {
            assert!(matches!(outcome, Err(Error::Lost(_))), "{outcome:?}");
        }
    }
}

#[test]
fn a_target_that_comes_back_is_used_again_and_another_in_its_place_is_not() {
    let served = Served::new();
    let address = served.address;
    let initiator = served.connect();
    let one = block_on(initiator.namespace(NamespaceId(1))).unwrap();
    drop(served);
    let again = Served::at(address, HostPolicy::Any, "SN1");
    assert_eq!(block_on(one.read(0, 1)), Ok(vec![0; BLOCK]));
    drop(again);
    let other = Served::at(address, HostPolicy::Any, "SN2");
    assert_eq!(block_on(one.read(0, 1)), Err(Error::TargetChanged));
    assert_eq!(other.count("read"), 0);
}

#[test]
fn a_target_that_stays_away_is_given_up() {
    let served = Served::new();
    let mut options = served.options();
    options.reconnect.give_up_after = Duration::from_millis(50);
    let initiator = block_on(Initiator::connect(options)).unwrap();
    let one = block_on(initiator.namespace(NamespaceId(1))).unwrap();
    drop(served);
    assert!(matches!(block_on(one.write(0, vec![1; BLOCK])), Err(Error::GaveUp(_) | Error::Lost(_))));
    assert_eq!(block_on(initiator.next_event()), Some(Event::Connected));
    assert!(matches!(block_on(initiator.next_event()), Some(Event::Disconnected(_))));
    assert_eq!(block_on(initiator.next_event()), None, "the end");
    assert!(matches!(block_on(one.read(0, 1)), Err(Error::GaveUp(_))));
}

#[test]
fn commands_beyond_the_slots_wait_and_dropped_ones_give_way() {
    let served = Served::new();
    let options = Options { depth: 2, ..served.options() };
    let initiator = block_on(Initiator::connect(options)).unwrap();
    let one = block_on(initiator.namespace(NamespaceId(1))).unwrap();
    // A hundred at once through two slots.
    let reads = (0..100).map(|index| {
        let one = one.clone();
        async move { one.read(index, 1).await }
    });
    assert!(block_on(join_all(reads)).iter().all(Result::is_ok));
    served.ask(|driver| driver.store_mut().is_held = true);
    let mut waiting: Vec<_> = (0..10).map(|index| Box::pin(one.read(index, 1))).collect();
    block_on(std::future::poll_fn(|context| {
        for read in &mut waiting {
            assert!(read.as_mut().poll(context).is_pending());
        }
        std::task::Poll::Ready(())
    }));
    // The two that were sent, and those first in line, go away.
    waiting.drain(..6);
    served.ask(|driver| driver.store_mut().is_held = false);
    assert!(block_on(join_all(waiting)).iter().all(Result::is_ok));
}

#[test]
fn futures_run_on_tokio_too() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let served = Served::new();
    let options = Options { queues: 2, ..served.options() };
    runtime.block_on(async {
        let initiator = Initiator::connect(options).await.unwrap();
        let one = initiator.namespace(NamespaceId(1)).await.unwrap();
        let tasks: Vec<_> = (0..64_u64)
            .map(|index| {
                let one = one.clone();
                tokio::spawn(async move {
                    let data = pattern(index, 16 * BLOCK);
                    one.write(index * 16, data.clone()).await.unwrap();
                    assert!(one.read(index * 16, 16).await.unwrap() == data);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        initiator.disconnect().await;
    });
}

#[test]
fn the_last_handle_disconnects() {
    let served = Served::new();
    let initiator = served.connect();
    assert_eq!(served.ask(|driver| driver.target().control().controllers()), 1);
    let one = block_on(initiator.namespace(NamespaceId(1))).unwrap();
    drop(initiator);
    assert!(block_on(one.read(0, 1)).is_ok(), "a namespace is a handle too");
    drop(one);
    while served.ask(|driver| driver.target().control().controllers()) > 0 {
        std::thread::yield_now();
    }
}

/// A target that says these bytes to everybody who connects, and then ends the connection, or does not.
fn say(bytes: Vec<u8>, ends: bool) -> Result<Initiator, Error> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut options = Options::new(listener.local_addr().unwrap(), NQN, [5; 16]).unwrap();
    options.connect_timeout = Duration::from_millis(if ends { 10_000 } else { 100 });
    let target = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // ICReq, so that the end of the connection is no reset.
        let said = stream.read_exact(&mut [0; 128]).and_then(|()| stream.write_all(&bytes));
        if ends {
            return said.unwrap();
        }
        // Until the initiator has enough of it: on a busy machine that may be before it has said anything.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let outcome = block_on(Initiator::connect(options));
    target.join().unwrap();
    outcome
}

#[test]
fn targets_that_speak_nonsense_or_nothing_are_left_with_a_reason() {
    let response =
        |digests| IcResponse { alignment: DataAlignment::DWORD, digests, data_max: 4096 }.encode().to_vec();
    let protocol = |outcome: Result<Initiator, Error>| match outcome.unwrap_err() {
        Error::NotConnected(Cause::Protocol(error)) => error,
        other => panic!("{other}"),
    };
    assert!(matches!(protocol(say(b"HTTP/1.1 400 Bad Request\r\n".to_vec(), true)), ProtocolError::Pdu(_)));
    assert_eq!(protocol(say(response(Digests::BOTH), true)), ProtocolError::Digests);
    let again = [response(Digests::NONE), response(Digests::NONE)].concat();
    assert_eq!(protocol(say(again, true)), ProtocolError::Sequence);
    let terminated = PduError::unsupported(8).encode(Role::Target, &[]).to_vec();
    let outcome = say(terminated, true).unwrap_err();
    assert!(matches!(outcome, Error::NotConnected(Cause::Terminated(_))), "{outcome}");
    for bytes in [Vec::new(), response(Digests::NONE)[..127].to_vec()] {
        let outcome = say(bytes.clone(), true).unwrap_err();
        assert_eq!(outcome, Error::NotConnected(Cause::Ended));
        assert_eq!(say(bytes, false).unwrap_err(), Error::Unreachable(Unreachable::TimedOut));
    }
}
