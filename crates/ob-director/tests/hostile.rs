//! Clients and hosts that say anything: nothing panics, nothing goes on for ever, and all memory comes back.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails where something is missing")]

use crate::support;

use ob_core::{ConnectionId, Instant, NodeId};
use ob_wire_link::stream::{Entries, Fragment, FromHost, Recovered, SEEN_END, STAMP_END, push_entry};
use support::lines::Place;
use support::{FILE, World};

struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

/// Words that mean something, in any order, and bytes that mean nothing.
fn say_as_client(world: &mut World, rng: &mut Rng, client: u64) {
    const WORDS: [&str; 14] = [
        "GET a\n",
        "GET b\n",
        "MGET a b\n",
        "LEN a\n",
        "SET a 1\n",
        "DEL b\n",
        "WIPE\n",
        "AUTH\n",
        "GET a;SET b;",
        "\n",
        "GE",
        "T a\n",
        "QUIT\n",
        "LEN b;",
    ];
    let mut bytes = Vec::new();
    for _ in 0..rng.below(12) {
        bytes.extend_from_slice(WORDS[rng.below(WORDS.len() as u64) as usize].as_bytes());
    }
    match rng.below(40) {
        0 => bytes.insert(0, 1),
        1 => bytes.extend(std::iter::repeat_n(b'x', 200_000)),
        _ => {}
    }
    world.arrive(client, &bytes);
    if rng.below(2) == 0 {
        world.turn();
    }
}

/// A stamp where something ends.
fn extreme(rng: &mut Rng) -> u64 {
    let end = [1 << 40, SEEN_END, STAMP_END][rng.below(3) as usize];
    end - 1 - rng.below(4)
}

/// A frame about anything, and now and then bytes that are none.
fn say_as_host(world: &mut World, rng: &mut Rng, known: &[(u64, u64)]) {
    // Mostly about what there is, so that it gets behind the first checks.
    let (mut connection, mut stamp) = (1 + rng.below(1 << 40), 1 + rng.below(40));
    if !known.is_empty() && rng.below(8) > 0 {
        (connection, stamp) = known[rng.below(known.len() as u64) as usize];
        stamp = (stamp + rng.below(3)).saturating_sub(rng.below(2)).max(1);
    }
    let connection = ConnectionId(connection);
    let bytes = vec![b'r'; 1 + rng.below(70) as usize];
    let place = Place {
        file: FILE,
        offset: rng.below(9000) as u32,
        len: rng.below(9000) as u32,
        value_len: 1,
        stamp,
    };
    let mut entries = Vec::new();
    push_entry(&mut entries, [b"a", b"b"][rng.below(2) as usize], place.item().bytes());
    let extra = [0, 0, 0, 5][rng.below(4) as usize];
    if rng.below(40) == 0 {
        stamp = extreme(rng);
    }
    let frame = match rng.below(21) {
        0 => FromHost::Meet { stamp, recovered: Recovered { store: [1; 16], end: rng.below(9) }, terms: 7 },
        1..=3 => FromHost::Standing { connection, stamp, word: rng.below(3) as u32 },
        4 => FromHost::Close { connection, stamp },
        5..=7 => FromHost::Attest { stamp, entries: Entries::new(&entries) },
        8 => FromHost::File { name: rng.below(3) as u32, node: NodeId(70 + rng.below(3)) },
        9 => FromHost::FileGone { name: rng.below(3) as u32 },
        11 => FromHost::Clock { stamp, unix_ms: rng.below(u64::MAX) },
        10 => FromHost::Settled { address: rng.below(1 << 14) },
        _ => FromHost::Reply(Fragment {
            connection,
            stamp,
            length: bytes.len() as u32 + extra,
            offset: if rng.below(9) == 0 { extra } else { 0 },
            bytes: &bytes,
        }),
    };
    let (inline, payload) = frame.encode();
    let (mut inline, mut payload) = (inline.to_vec(), payload.bytes().to_vec());
    if rng.below(10) == 0 {
        spoil(rng, &mut inline, &mut payload);
    }
    world.say_bytes(&inline, &payload);
}

/// Makes something else of a frame: most of the time something that is none.
fn spoil(rng: &mut Rng, inline: &mut Vec<u8>, payload: &mut Vec<u8>) {
    let bytes = if payload.is_empty() || rng.below(3) > 0 { inline } else { payload };
    let place = rng.below(bytes.len() as u64) as usize;
    match rng.below(8) {
        0 => bytes.truncate(place),
        1 => bytes.push(0),
        _ => bytes[place] ^= 1 << rng.below(8),
    }
}

fn story(seed: u64) -> (u64, u64) {
    let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut world = <World>::new();
    let mut clients = Vec::new();
    let mut known = Vec::new();
    for _ in 0..300 {
        known.extend(world.requests().iter().map(|(connection, stamp, _)| (*connection, *stamp)));
        match rng.below(24) {
            0 | 1 => clients.push(world.connect()),
            2..=10 if !clients.is_empty() => {
                let client = clients[rng.below(clients.len() as u64) as usize];
                say_as_client(&mut world, &mut rng, client);
            }
            11..=17 => say_as_host(&mut world, &mut rng, &known),
            18 => {
                let seen = if rng.below(3) == 0 { extreme(&mut rng) } else { rng.below(50) };
                world.meet(seen, rng.below(9));
            }
            19 => world.host_dies(),
            20 if world.reads() > 0 => world.answer_read(rng.below(world.reads() as u64) as usize),
            21 => {
                world.write(["a", "b"][rng.below(2) as usize], "some value", rng.below(30));
                world.settle();
            }
            22 if !clients.is_empty() => {
                let client = clients.swap_remove(rng.below(clients.len() as u64) as usize);
                if rng.below(2) == 0 { world.reset(client) } else { world.end(client) }
            }
            _ => world.set_room(rng.below(4) as usize * 10),
        }
    }
    world.host_dies();
    clients.into_iter().for_each(|client| world.reset(client));
    world.answer_reads();
    let director = world.driver.director();
    assert_eq!((director.engine().in_flight(), director.engine().buffers_out()), (0, 0), "seed {seed}");
    let counts = director.counts();
    assert_eq!((counts.long_left, counts.unread, counts.connections), (128 << 20, 0, 0), "seed {seed}");
    // Whatever others have said, a host that says what is so is met, and asked.
    world.set_room(1000);
    world.meet(50, 9);
    let client = world.connect();
    world.said();
    world.send(client, "SET a 1\n");
    assert_eq!(world.texts(), ["SET a 1"], "seed {seed}");
    assert_ne!(world.driver.next_due(), Some(Instant::default()), "seed {seed}: there is nothing to do");
    (counts.host_refused, counts.card + counts.host.total())
}

#[test]
fn whatever_is_said_memory_comes_back_and_turns_end() {
    let (mut refused, mut served) = (0, 0);
    for seed in 1..=200 {
        let (more_refused, more_served) = story(seed);
        refused += more_refused;
        served += more_served;
    }
    assert!(refused > 50 && served > 2000, "{refused} {served}");
}
