//! What every link must do, over each kind of link.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::{Card, ECHO, LONG, attach, host_config, push, take};
use ob_link::{AttachError, Costs, Endpoint, GroupRefusal, GroupSizes, HostLink, OpenGroupError, WaitError};

/// Runs a test over every kind of link, on one machine.
fn over_every_link(test: impl Fn(&Card, Endpoint)) {
    let card = Card::start(None);
    test(&card, card.unix());
    test(&card, card.tcp());
    drop(card);
    let card = Card::start(Some(Costs::PCIE4));
    test(&card, card.unix());
}

#[test]
fn requests_come_back_as_responses() {
    over_every_link(|card, endpoint| {
        let link = attach(endpoint);
        let group = link.open_group(ECHO, 1 << 16, 1 << 16).unwrap();
        for number in 0..200u64 {
            let payload = vec![number as u8; (number as usize * 97) % 9_000];
            push(&group, &number.to_le_bytes(), Some(&payload));
            let (inline, returned) = take(&group);
            assert_eq!(inline, number.to_le_bytes());
            assert_eq!(returned, payload);
        }
        assert!(card.requests.load(Ordering::Relaxed) >= 200);
    });
}

#[test]
fn many_threads_share_a_group_and_each_message_arrives_once() {
    over_every_link(|_card, endpoint| {
        let link = attach(endpoint);
        let group = link.open_group(ECHO, 1 << 14, 1 << 14).unwrap();
        let (producers, each) = (4u64, 500u64);
        let mut seen: Vec<u64> = std::thread::scope(|scope| {
            for producer in 0..producers {
                let group = &group;
                scope.spawn(move || {
                    (0..each).for_each(|n| push(group, &(producer * each + n).to_le_bytes(), None));
                });
            }
            let consumer = || {
                let take_one = || u64::from_le_bytes(take(&group).0.try_into().unwrap());
                (0..producers * each / 2).map(|_| take_one()).collect::<Vec<u64>>()
            };
            let others = scope.spawn(consumer);
            let mut ours = consumer();
            ours.extend(others.join().unwrap());
            ours
        });
        let unique: BTreeSet<u64> = seen.iter().copied().collect();
        assert_eq!(seen.len() as u64, producers * each);
        assert_eq!(unique.len(), seen.len());
        seen.sort_unstable();
        assert_eq!(seen.last(), Some(&(producers * each - 1)));
    });
}

#[test]
fn a_message_too_large_is_refused_and_the_largest_goes_through() {
    over_every_link(|_card, endpoint| {
        let link = attach(endpoint);
        let group = link.open_group(ECHO, 1 << 22, 1 << 22).unwrap();
        let limit = group.sender.message_max() as usize;
        let payload = vec![5; limit - 4096];
        push(&group, b"big", Some(&payload));
        assert_eq!(take(&group).1, payload);
        let pieces = [&payload[..], &payload[..]];
        let message = ob_ring::Outgoing { inline: b"", payload: Some((&pieces, 512)) };
        assert_eq!(group.sender.push(message), Err(ob_ring::PushError::TooLarge { limit: limit as u32 }));
    });
}

#[test]
fn groups_are_refused_with_a_reason() {
    over_every_link(|_card, endpoint| {
        let link = attach(endpoint);
        let refusal = |service, request, response| match link.open_group(service, request, response) {
            Err(OpenGroupError::Refused(refusal)) => refusal,
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("opened"),
        };
        assert!(matches!(refusal(ECHO, 5000, 4096), GroupRefusal::Capacity(_)));
        assert!(matches!(refusal(ECHO, 1 << 29, 4096), GroupRefusal::Budget(_)));
        assert!(matches!(refusal(99, 4096, 4096), GroupRefusal::Service(_)));
        // The refusals cost nothing: the budget is still there, and comes back when groups are closed.
        for _ in 0..20 {
            let group = link.open_group(ECHO, 1 << 23, 1 << 23).unwrap();
            push(&group, b"x", None);
            assert_eq!(take(&group).0, b"x");
        }
    });
}

#[test]
fn areas_count_as_memory_and_are_refused_with_a_reason() {
    over_every_link(|_card, endpoint| {
        let link = attach(endpoint);
        let ask = |card_area, host_area| {
            let sizes = GroupSizes { card_area, host_area, ..GroupSizes::rings(4096, 4096) };
            link.open_group_of(ECHO, sizes)
        };
        let refusal = |card_area, host_area| match ask(card_area, host_area) {
            Err(OpenGroupError::Refused(refusal)) => refusal,
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("opened"),
        };
        assert!(matches!(refusal(4097, 0), GroupRefusal::Capacity(_)));
        assert!(matches!(refusal(0, u64::MAX), GroupRefusal::Capacity(_)));
        let budget = refusal(32 << 20, 32 << 20);
        assert!(
            matches!(&budget, GroupRefusal::Budget(text) if text.contains("memory_per_host")),
            "{budget}"
        );
        // What fits is given, each area for itself, and comes back when the group is closed.
        for _ in 0..4 {
            let group = ask(24 << 20, 16 << 20).unwrap();
            let areas = group.areas.as_ref().unwrap();
            assert_eq!((areas.card_len(), areas.host_len()), (24 << 20, 16 << 20));
            assert!(matches!(refusal(24 << 20, 0), GroupRefusal::Budget(_)));
            push(&group, b"x", None);
            assert_eq!(take(&group).0, b"x");
        }
        assert!(ask(0, 0).unwrap().areas.is_none());
    });
}

#[test]
fn a_host_can_have_many_groups() {
    over_every_link(|_card, endpoint| {
        let link = attach(endpoint);
        let groups: Vec<_> = (0..64).map(|_| link.open_group(ECHO, 4096, 4096).unwrap()).collect();
        assert!(matches!(
            link.open_group(ECHO, 4096, 4096),
            Err(OpenGroupError::Refused(GroupRefusal::Budget(_)))
        ));
        for (number, group) in groups.iter().enumerate() {
            push(group, &[number as u8], None);
        }
        for (number, group) in groups.iter().enumerate() {
            assert_eq!(take(group).0, [number as u8]);
        }
    });
}

#[test]
fn the_channel_keeps_order_both_ways() {
    over_every_link(|card, endpoint| {
        let link = attach(endpoint);
        let attachment = link.welcome().attachment;
        for number in 0..500u32 {
            while !link.send(&number.to_le_bytes()) {
                std::thread::yield_now();
            }
            card.send(attachment, &number.to_le_bytes());
        }
        for number in 0..500u32 {
            assert_eq!(link.receive(LONG).unwrap(), number.to_le_bytes());
        }
        // What the host said has all arrived once a request sent after it is answered... by a group of its own.
        let group = link.open_group(ECHO, 4096, 4096).unwrap();
        push(&group, b"after", None);
        take(&group);
        let heard = card.channel.lock().unwrap();
        let heard: Vec<u32> = heard
            .iter()
            .filter(|(from, _)| *from == attachment)
            .map(|(_, message)| u32::from_le_bytes(message[..].try_into().unwrap()))
            .collect();
        assert_eq!(heard, (0..500).collect::<Vec<_>>());
    });
}

#[test]
fn a_host_may_attach_several_cards_and_a_card_several_hosts() {
    let cards = [Card::start(None), Card::start(None)];
    let links: Vec<_> = cards.iter().flat_map(|card| [attach(card.unix()), attach(card.tcp())]).collect();
    let groups: Vec<_> = links.iter().map(|link| link.open_group(ECHO, 4096, 4096).unwrap()).collect();
    for (number, group) in groups.iter().enumerate() {
        push(group, &[number as u8], None);
    }
    for (number, group) in groups.iter().enumerate() {
        assert_eq!(take(group).0, [number as u8]);
    }
}

#[test]
fn a_card_that_dies_is_reported_and_wakes_everybody() {
    for over_tcp in [false, true] {
        let card = Card::start(None);
        let link = attach(if over_tcp { card.tcp() } else { card.unix() });
        let group = link.open_group(ECHO, 4096, 4096).unwrap();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| group.wait_response(LONG, || None::<()>));
            drop(card);
            assert_eq!(sleeper.join().unwrap(), Err(WaitError::Gone));
        });
        assert!(link.wait_over(LONG).is_some());
        let message = ob_ring::Outgoing { inline: b"", payload: None };
        assert_eq!(group.sender.push(message), Err(ob_ring::PushError::Closed));
        assert_eq!(link.open_group(ECHO, 4096, 4096).err(), Some(OpenGroupError::Gone));
        assert!(!link.send(b"anyone?"));
    }
}

#[test]
fn without_a_card_the_error_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let nobody = Endpoint::Unix(directory.path().join("link.sock"));
    assert!(matches!(HostLink::attach(&host_config(nobody)), Err(AttachError::NoCard(..))));
    let card = Card::start(None);
    let closed = card.tcp();
    drop(card);
    assert!(matches!(HostLink::attach(&host_config(closed)), Err(AttachError::NoCard(..))));
}

#[test]
fn a_wait_ends_when_its_time_is_up() {
    let card = Card::start(None);
    let link = attach(card.unix());
    let group = link.open_group(ECHO, 4096, 4096).unwrap();
    let waited = group.wait_response(Duration::from_millis(10), || None::<()>);
    assert_eq!(waited, Err(WaitError::TimedOut));
}

#[test]
fn what_was_delivered_is_still_there_when_the_card_stops() {
    for costs in [None, Some(Costs::PCIE4)] {
        for over_tcp in [false, true] {
            let card = Card::start(costs);
            let link = attach(if over_tcp { card.tcp() } else { card.unix() });
            let group = link.open_group(ECHO, 1 << 16, 1 << 16).unwrap();
            let payload = vec![7; 5000];
            push(&group, b"kept", Some(&payload));
            push(&group, b"next", Some(&payload));
            let claimed = group.wait_response(LONG, || group.receiver.receive().unwrap()).unwrap();
            let next = group.wait_response(LONG, || group.receiver.receive().unwrap()).unwrap();
            drop(card);
            assert!(link.wait_over(LONG).is_some());
            for (response, name) in [(claimed, b"kept"), (next, b"next")] {
                let (mut inline, mut copied) = ([0; 4], vec![0; 5000]);
                response.inline(&mut inline);
                response.payload(0, &mut copied);
                assert_eq!((&inline, &copied), (name, &payload));
            }
        }
    }
}

#[test]
fn a_host_that_is_slow_to_take_messages_holds_the_card_back() {
    over_every_link(|card, endpoint| {
        let link = attach(endpoint);
        // More than may wait on the host; the card can only send them as they are taken.
        for number in 0..3000u32 {
            card.send(link.welcome().attachment, &number.to_le_bytes());
        }
        let group = link.open_group(ECHO, 4096, 4096).unwrap();
        push(&group, b"beside", None);
        assert_eq!(take(&group).0, b"beside", "the rings go on");
        for number in 0..3000u32 {
            assert_eq!(link.receive(LONG).unwrap(), number.to_le_bytes());
        }
    });
}
