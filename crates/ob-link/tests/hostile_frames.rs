//! Peers that say what they should not: at the sockets of a real card, at a real host, and at the pure cores.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::raw::{Letter, Raw, RawCard, encoded, hello};
use common::watched::{Bystander, WatchedCard};
use common::{Dice, ECHO, Echo, LONG, attach, frames, host_config, observe};
use ob_core::{AttachmentId, GroupId, Incarnation, RegionId};
use ob_io::MonotonicClock;
use ob_link::{
    AttachError, CardAttachment, CardDma, CardEvent, FrameDma, HostCore, HostEvent, HostLink, HostLinkConfig,
    Identity, LinkKind, OpenGroupError, Over,
};
use ob_memory::Region;
use ob_ring::{CardBell, LocalDma};
use ob_wire_link::frame::{FRAME_MAX, Frame, GroupOpened, Resume, VERSION, Welcome};
use ob_wire_link::group::GroupSizes;
use proptest::prelude::*;

fn both(card: &WatchedCard) -> [Raw; 2] {
    [Raw::unix(&card.socket), Raw::tcp(card.tcp)]
}

/// What a refusal said, if that is what came last before the card hung up.
fn refusal(letters: &[Letter]) -> Option<(u32, String)> {
    match letters.last()?.frame() {
        Frame::Refused { code, text } => Some((code, text.to_owned())),
        _ => None,
    }
}

fn goodbye(letters: &[Letter]) -> Option<u32> {
    match letters.last()?.frame() {
        Frame::Goodbye { code, .. } => Some(code),
        _ => None,
    }
}

#[test]
fn garbage_is_refused_and_the_card_goes_on() {
    let card = WatchedCard::start(|_| {});
    let bystander = Bystander::start(card.unix());
    let mut dice = Dice::new(11);
    for round in 0..60 {
        for mut raw in both(&card) {
            let len = 1 + dice.below(3000) as usize;
            let mut garbage = dice.bytes(len);
            if round % 3 == 0 {
                // The length is right, the rest is not.
                garbage.resize(len.max(8), 1);
                let len = garbage.len() as u32;
                garbage[..4].copy_from_slice(&len.to_le_bytes());
            }
            let said = raw.send_bytes(&garbage);
            if raw.is_unix() || round % 3 == 0 {
                // (Garbage on a stream may announce a frame that never comes; then there is nothing to answer.)
                let letters = raw.until_hung_up();
                assert!(letters.is_empty() || refusal(&letters).unwrap().0 == 4, "{said:?}");
            }
        }
    }
    bystander.finish();
    card.wait_hosts(0);
}

#[test]
fn every_frame_before_hello_is_refused() {
    let card = WatchedCard::start(|_| {});
    for kind in 1..frames::KINDS {
        for mut raw in both(&card) {
            raw.send(&frames::any(kind, [1, 1, 4096, 4096], b"x")).unwrap();
            let letters = raw.until_hung_up();
            assert_eq!(refusal(&letters).unwrap().0, 4, "kind {kind}");
        }
    }
    card.wait_hosts(0);
}

#[test]
fn frames_that_a_host_must_not_send_end_its_attachment() {
    let card = WatchedCard::start(|_| {});
    let bystander = Bystander::start(card.unix());
    let allowed = [3, 6, 8, 10, 11, 12, 13];
    for kind in 0..frames::KINDS {
        for mut raw in both(&card) {
            raw.attach();
            let frame = frames::any(kind, [1, 1, 4096, 4096], b"x");
            raw.send(&frame).unwrap();
            if allowed.contains(&kind) {
                // It goes on, or leaves as it said.
                let answered = raw.send(&Frame::Ping { nonce: 77 }).is_ok()
                    && std::iter::from_fn(|| raw.receive())
                        .any(|letter| letter.frame() == Frame::Pong { nonce: 77 });
                assert_eq!(answered, kind != 13, "{frame:?}");
            } else {
                assert_eq!(goodbye(&raw.until_hung_up()), Some(2), "{frame:?}");
            }
        }
    }
    bystander.finish();
    card.wait_hosts(0);
}

#[test]
fn another_version_is_refused_with_both_named() {
    let card = WatchedCard::start(|_| {});
    for version in [0, VERSION + 1, 4711, u16::MAX] {
        for mut raw in both(&card) {
            raw.send(&Frame::Hello(hello(version))).unwrap();
            let (code, text) = refusal(&raw.until_hung_up()).unwrap();
            assert_eq!(code, 1);
            assert!(text.contains(&format!("version {VERSION}")), "{text}");
            assert!(text.contains(&format!("version {version}")), "{text}");
        }
    }
}

#[test]
fn a_frame_in_pieces_is_a_frame_and_half_of_one_is_nothing() {
    let card = WatchedCard::start(|_| {});
    let bytes = encoded(&Frame::Hello(hello(VERSION)));
    // One byte at a time.
    let mut raw = Raw::tcp(card.tcp);
    bytes.iter().for_each(|byte| raw.send_bytes(&[*byte]).unwrap());
    assert!(matches!(raw.receive().unwrap().frame(), Frame::Welcome(_)));
    drop(raw);
    // Cut off anywhere.
    for len in 0..bytes.len() {
        let mut raw = Raw::tcp(card.tcp);
        raw.send_bytes(&bytes[..len]).unwrap();
        drop(raw);
        let mut raw = Raw::unix(&card.socket);
        if len > 0 {
            raw.send_bytes(&bytes[..len]).unwrap();
            assert_eq!(refusal(&raw.until_hung_up()).unwrap().0, 4);
        }
    }
    // Lengths that cannot be.
    for len in [0, 1, 7, FRAME_MAX as u32 + 1, u32::MAX] {
        for mut raw in both(&card) {
            let mut wrong = bytes.clone();
            wrong[..4].copy_from_slice(&len.to_le_bytes());
            raw.send_bytes(&wrong).unwrap();
            assert_eq!(refusal(&raw.until_hung_up()).unwrap().0, 4, "length {len}");
            let mut raw = if raw.is_unix() { Raw::unix(&card.socket) } else { Raw::tcp(card.tcp) };
            raw.attach();
            raw.send_bytes(&wrong).unwrap();
            raw.until_hung_up();
        }
    }
    observe("only hosts that are away", || card.hosts().iter().all(|host| !host.connected).then_some(()));
}

#[test]
fn what_cannot_be_resumed_is_refused_and_harms_nobody() {
    let card = WatchedCard::start(|_| {});
    let mut owner = Raw::tcp(card.tcp);
    let welcome = owner.attach();
    let mut local = Raw::unix(&card.socket);
    let local_welcome = local.attach();
    let right = |welcome: &Welcome| Resume {
        attachment: welcome.attachment,
        secret: welcome.resume_secret,
        received: 0,
        card_incarnation: welcome.card_incarnation,
    };
    let (tcp, shm) = (right(&welcome), right(&local_welcome));
    let wrong = [
        Resume { secret: tcp.secret ^ 1, ..tcp },
        Resume { secret: 0, ..tcp },
        Resume { attachment: AttachmentId(tcp.attachment.0 + 100), ..tcp },
        Resume { card_incarnation: Incarnation(tcp.card_incarnation.0 + 1), ..tcp },
        Resume { received: 1, ..tcp },
        Resume { received: u64::MAX, ..tcp },
        // There is nothing to resume on a Unix socket, nor for whoever was attached over one.
        shm,
    ];
    for resume in wrong {
        for mut raw in both(&card) {
            raw.send(&Frame::Hello(ob_wire_link::frame::Hello { resume: Some(resume), ..hello(VERSION) }))
                .unwrap();
            assert_eq!(refusal(&raw.until_hung_up()).unwrap().0, 3, "{resume:?}");
        }
    }
    for raw in [&mut owner, &mut local] {
        raw.send(&Frame::Ping { nonce: 5 }).unwrap();
        raw.receive_until(|frame| *frame == Frame::Pong { nonce: 5 });
    }
    // And the right one works, and takes the old connection's place.
    let mut raw = Raw::tcp(card.tcp);
    raw.send(&Frame::Hello(ob_wire_link::frame::Hello { resume: Some(tcp), ..hello(VERSION) })).unwrap();
    let Frame::Welcome(again) = raw.receive().unwrap().frame() else { panic!() };
    assert!(again.resumed && again.attachment == welcome.attachment);
    owner.until_hung_up();
    assert_eq!(card.hosts().len(), 2);
}

/// Small rings, and no areas.
const SMALL: GroupSizes = GroupSizes { request: 4096, response: 4096, card_area: 0, host_area: 0 };

/// Opens a group as a `tcp` host that answers transfers as it likes, and gives the first transfer's tag.
fn first_transfer(card: &WatchedCard) -> (Raw, u64) {
    let mut raw = Raw::tcp(card.tcp);
    raw.attach();
    raw.send(&Frame::OpenGroup { request: 1, service: ECHO, sizes: SMALL }).unwrap();
    let letter = raw.receive_until(|frame| matches!(frame, Frame::DmaReadWords { .. }));
    let Frame::DmaReadWords { tag, count, .. } = letter.frame() else { unreachable!() };
    assert_eq!(count, 3);
    (raw, tag)
}

#[test]
fn answers_that_fit_no_transfer_end_the_attachment() {
    let card = WatchedCard::start(|_| {});
    let bystander = Bystander::start(card.tcp());
    let wrong: [(u64, u32, &[u8]); 7] = [
        (1, 0, &[0; 24]),
        (u64::MAX, 0, &[0; 24]),
        (0, 0, &[0; 23]),
        (0, 0, &[]),
        (0, 0, &[0; 4096]),
        (0, 5, &[]),
        (0, u32::MAX, &[0; 24]),
    ];
    for (further, status, bytes) in wrong {
        let (mut raw, tag) = first_transfer(&card);
        raw.send(&Frame::DmaDone { tag: tag.wrapping_add(further), status, bytes }).unwrap();
        assert_eq!(goodbye(&raw.until_hung_up()), Some(2), "{further} {status} {}", bytes.len());
    }
    // An honest failure, or pointers that cannot be, close the group only.
    for (status, bytes) in [(2, &[][..]), (0, &[0xff; 24][..])] {
        let (mut raw, tag) = first_transfer(&card);
        raw.send(&Frame::DmaDone { tag, status, bytes }).unwrap();
        let letter = raw.receive_until(|frame| matches!(frame, Frame::GroupClosed { .. }));
        assert!(matches!(letter.frame(), Frame::GroupClosed { reason: 2, .. }));
        raw.send(&Frame::Ping { nonce: 6 }).unwrap();
        raw.receive_until(|frame| *frame == Frame::Pong { nonce: 6 });
    }
    bystander.finish();
}

#[test]
fn counts_that_cannot_be_end_the_attachment() {
    let card = WatchedCard::start(|_| {});
    for count in [1, u64::MAX] {
        for mut raw in both(&card) {
            raw.attach();
            raw.send(&Frame::Ack { count }).unwrap();
            assert_eq!(goodbye(&raw.until_hung_up()), Some(2));
        }
    }
    card.wait_hosts(0);
}

/// Sends a frame again and again without ever reading, until the card hangs up or `limit` were sent.
fn flood(mut raw: Raw, frame: &Frame<'_>, limit: usize) -> bool {
    raw.attach();
    let bytes = encoded(frame);
    (0..limit).any(|_| raw.send_bytes(&bytes).is_err())
}

fn resident_bytes() -> u64 {
    let statistics = std::fs::read_to_string("/proc/self/statm").unwrap();
    statistics.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn floods_are_bounded_whoever_does_not_read() {
    let card = WatchedCard::start(|_| {});
    let bystander = Bystander::start(card.unix());
    let before = resident_bytes();
    // Asking without acknowledging the answers has an end.
    let ask = Frame::OpenGroup { request: 1, service: 99, sizes: SMALL };
    for raw in both(&card) {
        assert!(flood(raw, &ask, 1_000_000));
    }
    card.wait_hosts(1);
    // Messages that need no answer go on, and cost nothing.
    for raw in both(&card) {
        flood(raw, &Frame::Channel(&[7; 4096]), 3000);
    }
    observe("one host or hosts that are away", || {
        (card.hosts().iter().filter(|host| host.connected).count() == 1).then_some(())
    });
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 512 << 20, "{grown} bytes more than before");
    bystander.finish();
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let card = WatchedCard::start(|_| {});
    let bystander = Bystander::start(card.unix());
    let connections: Vec<Raw> = (0..100).flat_map(|_| both(&card)).collect();
    for endpoint in [card.unix(), card.tcp()] {
        let link = attach(endpoint);
        common::scenes::echo(&link);
    }
    bystander.finish();
    // The card lets go of them by itself.
    for mut raw in connections {
        raw.until_hung_up();
    }
}

#[test]
fn storms_of_connections_harm_nobody() {
    let card = WatchedCard::start(|_| {});
    let bystander = Bystander::start(card.unix());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..600 {
                let mut connections = both(&card);
                let _ = connections[0].send_without_waiting(&encoded(&Frame::Hello(hello(VERSION))));
            }
            stop.store(true, Ordering::Release);
        });
        while !stop.load(Ordering::Acquire) {
            for endpoint in [card.unix(), card.tcp()] {
                match HostLink::attach(&host_config(endpoint)) {
                    Ok(link) => assert_eq!(link.over(), None),
                    // All places may be taken for a moment by those who come and go.
                    Err(AttachError::Refused { code: 2, .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        }
    });
    bystander.finish();
    card.wait_hosts(0);
}

// A hostile card.

fn quick(card: &RawCard) -> HostLinkConfig {
    HostLinkConfig {
        attach_within: Duration::from_secs(5),
        dead_after: Duration::from_millis(300),
        ..host_config(card.endpoint())
    }
}

fn welcome_for(raw: &Raw) -> Welcome {
    welcome_of(if raw.is_unix() { LinkKind::Shm } else { LinkKind::Tcp })
}

fn welcome_of(kind: LinkKind) -> Welcome {
    Welcome {
        pollers: 0,
        resumed: false,
        card_incarnation: Incarnation(3),
        attachment: AttachmentId(1),
        resume_secret: 4,
        received: 0,
        transfer_max: 1 << 20,
        kind,
    }
}

/// Plays a card that answers `HELLO` with what `say` does, then closes the connection when `say` returns.
fn with_card<T>(card: &RawCard, say: impl FnOnce(Raw) + Send, host: impl FnOnce(&RawCard) -> T) -> T {
    std::thread::scope(|scope| {
        scope.spawn(move || say(card.accept()));
        host(card)
    })
}

#[test]
fn a_card_that_answers_nonsense_gives_a_typed_error() {
    let mut dice = Dice::new(21);
    for make in [RawCard::unix, RawCard::tcp] {
        for kind in 0..frames::KINDS + 5 {
            let noise = if kind < frames::KINDS {
                encoded(&frames::any(kind, [1, 1, 4096, 1], b"x"))
            } else {
                let len = 9 + dice.below(200) as usize;
                dice.bytes(len)
            };
            let said = with_card(
                &make(),
                |mut raw| {
                    let _ = raw.send_bytes(&noise);
                },
                |card| HostLink::attach(&quick(card)).map(drop),
            );
            match said {
                Err(AttachError::Ended(..)) => {}
                Err(AttachError::Refused { .. }) => assert_eq!(kind, 2),
                other => panic!("kind {kind}: {other:?}"),
            }
        }
    }
    // One that says nothing at all.
    let card = RawCard::tcp();
    let config = HostLinkConfig { attach_within: Duration::from_millis(100), ..quick(&card) };
    assert!(matches!(HostLink::attach(&config), Err(AttachError::TimedOut(..))));
}

/// A card that welcomes the host and then does `say`; the host must find that it is over.
fn ends_the_attachment(make: fn() -> RawCard, say: impl FnOnce(&mut Raw) + Send) -> Over {
    with_card(
        &make(),
        |mut raw| {
            let welcome = welcome_for(&raw);
            raw.send(&Frame::Welcome(welcome)).unwrap();
            say(&mut raw);
            // Whatever the host still says is read, until it hangs up.
            while raw.receive().is_some() {}
        },
        |card| {
            let link = HostLink::attach(&quick(card)).unwrap();
            let opened = link.open_group(ECHO, 4096, 4096);
            assert!(matches!(opened, Err(OpenGroupError::Gone)), "{:?}", opened.err());
            link.wait_over(LONG).unwrap()
        },
    )
}

fn opened(raw: &mut Raw) -> GroupOpened {
    let letter = raw.receive_until(|frame| matches!(frame, Frame::OpenGroup { .. }));
    let Frame::OpenGroup { request, service, .. } = letter.frame() else { unreachable!() };
    GroupOpened {
        request,
        group: GroupId(1),
        region: RegionId(1),
        sizes: SMALL,
        service,
        region_len: 3 * 4096,
    }
}

#[test]
fn groups_that_cannot_be_end_the_attachment() {
    type Change = fn(&mut GroupOpened);
    let changes: [Change; 11] = [
        |opened| (opened.sizes.card_area, opened.region_len) = (4096, 4 * 4096),
        |opened| (opened.sizes.host_area, opened.region_len) = (4096, 4 * 4096),
        |opened| (opened.sizes.card_area, opened.sizes.host_area) = (4096, u64::MAX - 4095),
        |opened| opened.sizes.request = 0,
        |opened| opened.sizes.request = 5000,
        |opened| opened.sizes.response = u32::MAX,
        // Legal, but nobody asked for so much.
        |opened| (opened.sizes.request, opened.region_len) = (1 << 30, 8192 + (1 << 30)),
        |opened| opened.region_len = 0,
        |opened| opened.region_len = u64::MAX,
        |opened| opened.request += 1,
        |opened| opened.service += 1,
    ];
    for change in changes {
        ends_the_attachment(RawCard::tcp, |raw| {
            let mut opened = opened(raw);
            change(&mut opened);
            raw.send(&Frame::GroupOpened(opened)).unwrap();
        });
    }
    // Answers to what was never asked.
    ends_the_attachment(RawCard::tcp, |raw| {
        let _ = raw.send(&Frame::GroupRefused { request: 4711, code: 1, text: "" });
    });
}

#[test]
fn memory_that_cannot_be_relied_on_ends_the_attachment() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    for (len, seals) in
        [(3 * 4096, SealFlags::empty()), (4096, sealed), (0, sealed), (3 * 4096, SealFlags::GROW)]
    {
        ends_the_attachment(RawCard::unix, |raw| {
            let opened = opened(raw);
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let memory = memfd_create("hostile", flags).unwrap();
            ftruncate(&memory, len).unwrap();
            fcntl_add_seals(&memory, seals).unwrap();
            raw.send_with(&Frame::GroupOpened(opened), &[std::os::fd::AsFd::as_fd(&memory)]).unwrap();
        });
    }
    // Something that is no memory. (None at all is what a process at its limit of descriptors gets.)
    ends_the_attachment(RawCard::unix, |raw| {
        let opened = opened(raw);
        let socket = raw.socket().try_clone_to_owned().unwrap();
        raw.send_with(&Frame::GroupOpened(opened), &[std::os::fd::AsFd::as_fd(&socket)]).unwrap();
    });
}

#[test]
fn transfers_out_of_a_region_are_answered_with_an_error() {
    with_card(
        &RawCard::tcp(),
        |mut raw| {
            let welcome = welcome_for(&raw);
            raw.send(&Frame::Welcome(welcome)).unwrap();
            let opened = opened(&mut raw);
            let (region, len) = (opened.region, opened.region_len);
            raw.send(&Frame::GroupOpened(opened)).unwrap();
            let bad = [
                Frame::DmaRead { tag: 1, region, offset: len, len: 1 },
                Frame::DmaRead { tag: 2, region, offset: u64::MAX, len: 1 << 20 },
                Frame::DmaRead { tag: 3, region: RegionId(9), offset: 0, len: 8 },
                Frame::DmaWrite { tag: 4, region, offset: len - 1, bytes: &[0; 2] },
                Frame::DmaReadWords { tag: 5, region, offset: 4, stride: 64, count: 3 },
                Frame::DmaReadWords { tag: 6, region, offset: 0, stride: u32::MAX, count: 4 },
                Frame::DmaReadWords { tag: 7, region, offset: 0, stride: 64, count: 255 },
                Frame::DmaWriteWord { tag: 8, region, offset: u64::MAX - 7, value: 1 },
                Frame::DmaWriteWord { tag: 9, region, offset: len, value: 1 },
            ];
            for frame in &bad {
                raw.send(&Frame::RingBell { region, offset: len }).unwrap();
                raw.send(&Frame::RingBell { region, offset: 3 }).unwrap();
                raw.send(frame).unwrap();
                let letter = raw.receive_until(|frame| matches!(frame, Frame::DmaDone { .. }));
                assert!(matches!(letter.frame(), Frame::DmaDone { status: 1..=4, .. }), "{frame:?}");
            }
            raw.send(&Frame::Goodbye { code: 1, text: "enough" }).unwrap();
        },
        |card| {
            let link = HostLink::attach(&quick(card)).unwrap();
            let group = link.open_group(ECHO, 4096, 4096).unwrap();
            assert!(matches!(link.wait_over(LONG), Some(Over::Ended(text)) if text.contains("enough")));
            assert!(group.is_closed());
        },
    );
}

#[test]
fn a_card_that_never_stops_talking_is_left() {
    for make in [RawCard::unix, RawCard::tcp] {
        let over = ends_the_attachment(make, |raw| {
            for _ in 0..100_000 {
                if raw.send(&Frame::Channel(&[1; 4096])).is_err() {
                    return;
                }
            }
            panic!("the host took everything");
        });
        assert!(matches!(over, Over::Ended(_)));
    }
}

#[test]
fn a_host_does_not_pile_up_answers_for_a_card_that_never_reads() {
    let taken = with_card(
        &RawCard::tcp(),
        |mut raw| {
            let welcome = welcome_for(&raw);
            raw.send(&Frame::Welcome(welcome)).unwrap();
            let opened = opened(&mut raw);
            let region = opened.region;
            raw.send(&Frame::GroupOpened(opened)).unwrap();
            // Each of these is answered with many times its own bytes.
            let read = encoded(&Frame::DmaRead { tag: 1, region, offset: 0, len: 3 * 4096 });
            let batch = read.repeat(1000);
            let mut silent = 0;
            // The host stops reading at some point: nothing more goes out for a while.
            while silent < 300 {
                match raw.send_without_waiting(&batch) {
                    Ok(_) => silent = 0,
                    Err(rustix::io::Errno::AGAIN) => {
                        silent += 1;
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(_) => return,
                }
            }
        },
        |card| {
            let before = resident_bytes();
            let link = HostLink::attach(&HostLinkConfig { dead_after: LONG, ..quick(card) }).unwrap();
            let group = link.open_group(ECHO, 4096, 4096).unwrap();
            // The card hangs up when nothing moves any more.
            observe("the end of the flood", || (resident_bytes() > 0 && link_is_cut(card)).then_some(()));
            let grown = resident_bytes().saturating_sub(before);
            drop((group, link));
            grown
        },
    );
    assert!(taken < 512 << 20, "{taken} bytes more than before");
}

/// Whether the host has come back to the listener, which it does after a cut.
fn link_is_cut(card: &RawCard) -> bool {
    let RawCard::Tcp(listener) = card else { return true };
    listener.set_nonblocking(true).unwrap();
    listener.accept().is_ok()
}

// The pure cores.

struct NoBell;

impl CardBell for NoBell {
    fn ring(&self) {}
}

/// Numbers that frames are made of: mostly small ones, which may be legal.
fn numbers() -> impl Strategy<Value = [u64; 4]> {
    let number = prop_oneof![
        4 => 0u64..4,
        2 => prop_oneof![Just(4096u64), Just(8192), Just(u64::from(ECHO)), Just(512), Just(4100)],
        1 => any::<u64>(),
    ];
    prop::array::uniform4(number)
}

fn script() -> impl Strategy<Value = Vec<(u8, [u64; 4], Vec<u8>)>> {
    let bytes = prop_oneof![Just(Vec::new()), Just(vec![0; 24]), prop::collection::vec(any::<u8>(), 0..64)];
    prop::collection::vec((any::<u8>(), numbers(), bytes), 0..80)
}

#[test]
fn a_group_is_given_up_even_when_the_card_is_behind() {
    let mut core = HostCore::new("any", Incarnation(1), 0, Arc::new(NoBell));
    core.handle(&Frame::Welcome(welcome_of(LinkKind::Tcp)), None).unwrap();
    let request = core.request_group(ECHO, SMALL).unwrap();
    let opened = GroupOpened {
        request,
        group: GroupId(1),
        region: RegionId(1),
        sizes: SMALL,
        service: ECHO,
        region_len: 3 * 4096,
    };
    core.handle(&Frame::GroupOpened(opened), None).unwrap();
    while core.send(b"never acknowledged") {}
    core.outgoing().clear();
    assert!(core.close_group(GroupId(1)));
    assert_eq!(*core.outgoing(), encoded(&Frame::CloseGroup { group: GroupId(1) }));
}

/// A process at its limit of descriptors gets the frame, and not the memory.
#[test]
fn a_group_without_memory_ends_alone() {
    let mut core = HostCore::new("any", Incarnation(1), 0, Arc::new(NoBell));
    core.handle(&Frame::Welcome(welcome_of(LinkKind::Shm)), None).unwrap();
    let mut open = |id: u32, region: Option<Region>| {
        let request = core.request_group(ECHO, SMALL).unwrap();
        let (group, region_id) = (GroupId(id), RegionId(id));
        let opened = GroupOpened {
            request,
            group,
            region: region_id,
            sizes: SMALL,
            service: ECHO,
            region_len: 3 * 4096,
        };
        core.outgoing().clear();
        let event = core.handle(&Frame::GroupOpened(opened), region).unwrap().unwrap();
        (request, event, core.outgoing().clone())
    };
    let (_, first, _) = open(1, Some(Region::on_heap(3 * 4096)));
    let HostEvent::GroupOpened(first) = first else { panic!("it has memory") };
    let (request, event, said) = open(2, None);
    assert!(matches!(event, HostEvent::GroupWithoutMemory { request: of } if of == request));
    assert_eq!(said, encoded(&Frame::CloseGroup { group: GroupId(2) }), "the card takes its own back");
    assert!(!first.closed.is_closed());
    let (_, again, _) = open(2, Some(Region::on_heap(3 * 4096)));
    assert!(matches!(again, HostEvent::GroupOpened(_)));
}

fn identity(kind: LinkKind) -> Identity {
    Identity {
        attachment: AttachmentId(1),
        secret: 5,
        card_incarnation: Incarnation(1),
        host_incarnation: Incarnation(1),
        name: "any".to_owned(),
        kind,
        card_pollers: 1,
        host_pollers: 0,
    }
}

/// Who asks and asks and never reads the answers takes a bounded part of the card's memory.
#[test]
fn answers_that_nobody_reads_are_bounded() {
    let engines = [CardDma::local(LocalDma::new(64, 1 << 20)), CardDma::frame(FrameDma::new(64))];
    for ((kind, limit), dma) in [(LinkKind::Shm, 2 << 20), (LinkKind::Tcp, 16 << 20)].into_iter().zip(engines)
    {
        let mut core = CardAttachment::<MonotonicClock>::new(identity(kind), dma);
        let (mut service, mut answers) = (Echo::default(), 0);
        while core.handle(&Frame::Ping { nonce: 1 }, &mut service).is_ok() && core.outgoing().is_ok() {
            answers += encoded(&Frame::Pong { nonce: 1 }).len();
            assert!(answers <= limit, "{kind:?}: {answers} bytes wait");
        }
    }
}

/// What the driver would do with an event.
fn act(core: &mut CardAttachment<MonotonicClock>, kind: LinkKind, event: &CardEvent, service: &mut Echo) {
    let CardEvent::OpenGroup { request, service: number, sizes } = *event else { return };
    let opened = core.plan_group(sizes).and_then(|plan| {
        if plan.region_len > 1 << 20 {
            return Err(ob_link::GroupRefusal::Budget("too much".to_owned()));
        }
        let region = (kind != LinkKind::Tcp).then(|| Region::on_heap(plan.region_len as usize));
        core.open_group(request, number, &plan, region, service)
    });
    if let Err(refusal) = opened {
        core.refuse_group(request, &refusal);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a host sends, in whatever order: errors, but no panic, and the core can be shut down.
    #[test]
    fn no_frames_of_a_host_upset_the_cards_core(script in script(), tcp in any::<bool>()) {
        let (kind, dma) = if tcp {
            (LinkKind::Tcp, CardDma::frame(FrameDma::new(64)))
        } else {
            (LinkKind::Shm, CardDma::local(LocalDma::new(64, 1 << 20)))
        };
        let mut core = CardAttachment::<MonotonicClock>::new(identity(kind), dma);
        let mut service = Echo::default();
        let mut events = Vec::new();
        for (step, (which, numbers, bytes)) in script.iter().enumerate() {
            let frame = match which % 32 {
                // Often something that leads on.
                20..24 => frames::any(3, [1, u64::from(ECHO), 4096, 4096], bytes),
                24..28 => frames::any(19, [numbers[0] + step as u64 / 2, 0, 0, 0], bytes),
                which => frames::any(which, *numbers, bytes),
            };
            match core.handle(&frame, &mut service) {
                Ok(Some(event)) => act(&mut core, kind, &event, &mut service),
                Ok(None) => {}
                // The driver would end it here; the core must bear more.
                Err(_) => {}
            }
            core.poll(&mut service, &mut events);
            if which % 3 == 0 {
                core.arm(&mut service, &mut events);
            }
            if *which > 250 && tcp {
                core.disconnected();
                let _ = core.resume(numbers[0]);
            }
            if which % 5 == 0
                && let Ok(out) = core.outgoing() {
                    out.clear();
                }
        }
        core.shut_down(&mut service);
        core.poll(&mut service, &mut events);
        prop_assert_eq!(core.group_count(), 0);
    }

    /// Whatever a card sends, in whatever order: errors, but no panic, and the core can be closed.
    #[test]
    fn no_frames_of_a_card_upset_the_hosts_core(script in script(), tcp in any::<bool>()) {
        let mut core = HostCore::new("any", Incarnation(1), 0, Arc::new(NoBell));
        let welcome = welcome_of(if tcp { LinkKind::Tcp } else { LinkKind::Shm });
        let mut kept = Vec::new();
        for (step, (which, numbers, bytes)) in script.iter().enumerate() {
            if step == 2 {
                let _ = core.handle(&Frame::Welcome(welcome), None);
            }
            if which % 4 == 0 {
                core.request_group(ECHO, SMALL);
            }
            let frame = match which % 32 {
                20..26 => frames::any(4, [numbers[0] | numbers[1] << 32, numbers[1], 4096, 0], bytes),
                which => frames::any(which, *numbers, bytes),
            };
            let region = (!tcp && which % 2 == 0).then(|| Region::on_heap(3 * 4096));
            if let Ok(Some(ob_link::HostEvent::GroupOpened(group))) = core.handle(&frame, region) {
                let _ = group.sender.push(ob_ring::Outgoing { inline: b"request", payload: None });
                let _ = group.receiver.receive().map(drop);
                kept.push(group);
            }
            for group in &kept {
                let _ = group.receiver.receive().map(drop);
            }
            if *which > 250 {
                core.disconnected();
                core.reconnect();
            }
            core.take_bells().for_each(drop);
            core.outgoing().clear();
        }
        core.close_all();
        prop_assert!(kept.iter().all(|group| group.closed.is_closed()));
    }
}
