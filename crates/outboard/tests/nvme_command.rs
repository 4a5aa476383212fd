//! `outboard nvme` against a real card: what is written is read back, and what goes wrong is told.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

use crate::support;

use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex};

use ob_nvme::auth::{Secret, SecretSize};
use ob_nvme::initiator::{Data, Initiator, Options, RawCommand, block_on, random_host_id};
use ob_wire_nvme::io::{
    PersistChange, ReservationAcquire, ReservationAcquireAction, ReservationRegister,
    ReservationRegisterAction, ReservationType,
};
use ob_wire_nvme::text::DISCOVERY_NQN;
use ob_wire_nvme::{CommandId, DataPointer, NamespaceId};
use rustix::net::{AddressFamily, SocketType};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use serde_json::Value;
use support::{Place, Program, number_after};

const NQN: &str = "nqn.2026-11.io.outboard:card";
const HOST: &str = "nqn.2026-11.example:host";
const MIB: usize = 1 << 20;

/// A card, and where it is.
struct Card {
    place: Place,
    program: Program,
    address: String,
    discovery: String,
    status: String,
}

impl Card {
    fn start(place: Place) -> Self {
        let program = place.start(&["card"]);
        Self::started(place, program)
    }

    fn started(place: Place, mut program: Program) -> Self {
        let line = program.wait_for("The card is ready");
        let at = |word: &str| format!("127.0.0.1:{}", number_after(&line, &format!("{word}127.0.0.1:")));
        let (address, discovery) = (at("nvme on "), at("discovery at "));
        let status = at("status http://");
        Self { place, program, address, discovery, status }
    }

    /// Kills it, and starts its next life, which is somewhere else.
    fn next_life(mut self) -> Self {
        self.program.signal(Signal::KILL);
        self.program.wait();
        Self::start(self.place)
    }

    /// `outboard nvme`, with the arguments of a line and the card's address.
    fn nvme(&self, line: &str) -> Output {
        self.nvme_with(line, &[], &[])
    }

    fn nvme_with(&self, line: &str, environment: &[(&str, &str)], input: &[u8]) -> Output {
        let mut arguments: Vec<&str> = ["nvme"].into_iter().chain(line.split(' ')).collect();
        if !line.contains("--address") {
            arguments.extend(["--address", &self.address]);
        }
        let mut command = self.place.command(&arguments);
        command.env_remove("OUTBOARD_DHCHAP_SECRET").env_remove("OUTBOARD_DHCHAP_CTRL_SECRET");
        command.envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // One that does not want it all has closed its end.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    fn succeeds(&self, line: &str) -> Vec<u8> {
        let output = self.nvme(line);
        assert!(output.status.success(), "{line}: {}", text(&output.stderr));
        output.stdout
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_slice(&self.succeeds(&format!("{line} --json"))).unwrap()
    }

    fn fails(&self, line: &str, code: i32, told: &[&str]) {
        failed(line, &self.nvme(line), code, told);
    }

    /// What the card's status tells of the target.
    fn status(&self) -> Value {
        let output = self.place.output(&["status", "--json", "--endpoint", &self.status]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        status["nvme"].clone()
    }

    fn write_file(&self, name: &str, content: &[u8]) {
        std::fs::write(self.place.path().join(name), content).unwrap();
    }

    fn read_file(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.place.path().join(name)).unwrap()
    }
}

fn failed(what: &str, output: &Output, code: i32, told: &[&str]) {
    let shown = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{what}: {shown}");
    for part in told {
        assert!(shown.contains(part), "{what}: no `{part}` in: {shown}");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn what_is_written_is_read_back_with_and_without_digests() {
    let card = Card::start(Place::new());
    let both = "--header-digest --data-digest --queues 2";
    for (seed, digests) in ["", "--header-digest", "--data-digest", both].into_iter().enumerate() {
        let digests = if digests.is_empty() { String::new() } else { format!(" {digests}") };
        // Longer than what is under way at once, and no multiple of what a command takes.
        let data = pattern(seed as u64, 9 * MIB + 512);
        card.write_file("in", &data);
        let offset = format!("{}B", seed * 12 * MIB + 1536);
        let written = card.json(&format!("write --input in --offset {offset} --flush{digests}"));
        assert_eq!((&written["bytes"], &written["durable"]), (&data.len().into(), &true.into()));
        let length = format!("{}B", data.len());
        let told =
            card.succeeds(&format!("read --offset {offset} --length {length} --out out --force{digests}"));
        assert!(text(&told).starts_with("read 9.0 MiB at "), "{}", text(&told));
        assert!(card.read_file("out") == data, "{digests}");
        // By pipes, durable by each command; the output is the bytes and nothing else.
        let other = pattern(99 + seed as u64, 3 * MIB);
        let output = card.nvme_with(&format!("write --offset {offset} --fua --json{digests}"), &[], &other);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let bytes = card.succeeds(&format!("read --offset {offset} --length {length}{digests}"));
        assert!(bytes[..3 * MIB] == other && bytes[3 * MIB..] == data[3 * MIB..], "{digests}");
        let image = std::fs::read(card.place.data().join("card/nvme.img")).unwrap();
        let at = seed * 12 * MIB + 1536;
        assert!(image[at..at + data.len()] == bytes, "where the card keeps it");
    }
    let unflushed = card.nvme_with("write --json", &[], &[1; 512]);
    let told: Value = serde_json::from_slice(&unflushed.stdout).unwrap();
    assert_eq!((&told["bytes"], &told["durable"]), (&512.into(), &false.into()));
}

#[test]
fn subsystems_namespaces_and_controllers_are_shown() {
    let card = Card::start(Place::new());
    let added = card.place.output(&[
        "namespace",
        "add",
        "--size",
        "8MiB",
        "--device",
        "memory",
        "--config",
        "outboard.toml",
        "--data",
        "data",
    ]);
    assert!(added.status.success(), "{}", text(&added.stderr));

    // Discovery answers on both ports.
    for address in [&card.address, &card.discovery] {
        let found = card.json(&format!("discover --address {address}"));
        let [found, own] = &found.as_array().unwrap()[..] else {
            panic!("one subsystem, and discovery itself: {found}")
        };
        assert_eq!((&found["subsystem"], &found["type"]), (&NQN.into(), &"nvm".into()));
        assert_eq!(format!("127.0.0.1:{}", found["service"]), card.address);
        assert_eq!(own["subsystem"], DISCOVERY_NQN);
        assert_eq!(format!("127.0.0.1:{}", own["service"]), *address, "the one that was reached");
    }
    let shown = text(&card.succeeds(&format!("discover --address {}", card.discovery)));
    let port = card.address.rsplit_once(':').unwrap().1;
    assert!(shown.contains(&format!("nvme connect -t tcp -a 127.0.0.1 -s {port} -n {NQN}")), "{shown}");

    // Found by discovery, and asked for by name.
    let all = card.json(&format!("list --address {}", card.discovery));
    assert_eq!(all, card.json(&format!("list --nqn {NQN}")));
    let sizes: Vec<_> = all.as_array().unwrap().iter().map(|one| (&one["nsid"], &one["size"])).collect();
    assert_eq!(sizes, [(&1.into(), &(64 * MIB).into()), (&2.into(), &(8 * MIB).into())]);
    let uuid = all[0]["uuid"].as_str().unwrap();
    assert_eq!(all[0]["nguid"].as_str().unwrap(), uuid.replace('-', ""));
    let shown = text(&card.succeeds("list"));
    assert!(shown.contains(&format!("uuid:{uuid}")) && shown.contains("8.0 MiB"), "{shown}");

    let id = card.json("id --nsid 2");
    let (controller, namespace) = (&id["controller"], &id["namespace"]);
    assert_eq!((&controller["subsystem"], &controller["type"]), (&NQN.into(), &"io".into()));
    assert_eq!(
        (&controller["transfer_bytes_max"], &controller["io_queues"]),
        (&(128 << 10).into(), &16.into())
    );
    assert_eq!(
        (&controller["fused_compare_and_write"], &controller["ana"]["groups"]),
        (&true.into(), &32.into())
    );
    assert_eq!((&namespace["size"], &namespace["uuid"]), (&(8 * MIB).into(), &all[1]["uuid"]));
    assert_eq!(card.json("id")["namespace"], Value::Null);
    let shown = text(&card.succeeds("id --nsid 1"));
    for part in ["largest transfer   128.0 KiB", "ANA                32 groups", uuid, "64.0 MiB"] {
        assert!(shown.contains(part), "no `{part}` in {shown}");
    }
}

#[test]
fn hosts_prove_who_they_are() {
    let secret = |seed: u8| {
        let mut random = |bytes: &mut [u8]| bytes.fill(seed);
        Secret::generate(SecretSize::Bytes32, None, &mut random).to_text().to_string()
    };
    let [key, controller_key, other] = [1, 2, 3].map(secret);
    let place = Place::with_config(&format!(
        "[status]\nlisten = \"127.0.0.1:0\"\n{}hosts = [\"{HOST}\"]\nkey = \"{key}\"\ncontroller_key = \"{controller_key}\"\n",
        support::FREE_NVME_PORTS
    ));
    let card = Card::start(place);
    card.write_file("key", format!("{key}\n").as_bytes());
    card.write_file("controller-key", controller_key.as_bytes());
    let data = pattern(5, 2 * MIB);
    card.write_file("in", &data);
    let asked = format!("--hostnqn {HOST}");

    // From files, from the environment, and in the open.
    let files = format!("{asked} --dhchap-secret @key --dhchap-ctrl-secret @controller-key");
    card.succeeds(&format!("write --input in --flush {files} --queues 3"));
    let environment = [("OUTBOARD_DHCHAP_SECRET", &*key), ("OUTBOARD_DHCHAP_CTRL_SECRET", "@controller-key")];
    let output = card.nvme_with(&format!("read --length 2MiB {asked}"), &environment, &[]);
    assert!(output.status.success() && output.stdout == data, "{}", text(&output.stderr));
    card.succeeds(&format!("list --nqn {NQN} {asked} --dhchap-secret {key}"));

    card.fails(&format!("id {asked}"), 1, &["authenticate themselves", "--dhchap-secret"]);
    card.fails(
        &format!("id {asked} --dhchap-secret {other}"),
        1,
        &["authentication with", "failed", "hint:"],
    );
    card.fails(
        &format!("id {asked} --dhchap-secret @key --dhchap-ctrl-secret {other}"),
        1,
        &["authentication with", "could not prove", "--dhchap-ctrl-secret"],
    );
    card.fails("id --dhchap-secret @key", 1, &["connect invalid host (1/84h)", "--hostnqn"]);
    card.fails(&format!("id {asked} --dhchap-ctrl-secret @key"), 2, &["--dhchap-secret too"]);
    card.fails(&format!("id {asked} --dhchap-secret @no-such-file"), 1, &["no-such-file"]);
    let wrong = format!("id {asked} --dhchap-secret DHHC-1:00:wrong:");
    card.fails(&wrong, 2, &["--dhchap-secret"]);
    assert!(
        !text(&card.nvme(&wrong).stderr).contains("wrong"),
        "a secret is not shown, not even a wrong one"
    );
}

#[test]
fn mistakes_are_told_with_what_to_do() {
    let card = Card::start(Place::new());
    card.write_file("in", &[1; 1024]);
    card.write_file("odd", &[1; 1000]);
    card.write_file("empty", &[]);
    let cases: &[(&str, i32, &[&str])] = &[
        ("read --length 100B", 2, &["a length of 100 bytes", "block of 512 bytes", "512B"]),
        ("read --length 4KiB --offset 1000B", 2, &["an offset of 1000 bytes", "512B or 1024B"]),
        ("read --length 4KiB --offset 64MiB", 2, &["beyond the end of namespace 1", "67108864 bytes"]),
        ("read --length 4KiB --offset 16777215TiB", 2, &["beyond the end"]),
        ("read --length 0B", 2, &["nothing to read"]),
        ("read --length 512", 2, &["the unit is missing"]),
        ("read --length 4KiB --json", 2, &["--out FILE"]),
        ("read --length 512B --out in", 1, &["there already", "--force"]),
        ("read --length 512B --out none/x", 1, &["none/x"]),
        ("read --length 512B --nsid 9", 1, &["no namespace 9", "outboard nvme list"]),
        ("id --nsid 9", 1, &["no namespace 9"]),
        ("write --input odd", 2, &["an input of 1000 bytes", "512B or 1024B"]),
        ("write --input empty", 2, &["nothing to write"]),
        ("write --input none", 1, &["cannot read none"]),
        ("write --input in --offset 67108352B", 2, &["1024 bytes from byte 67108352 on", "beyond the end"]),
        ("id --nqn nqn.2026-11.example:none", 1, &["connect invalid parameters (1/82h)", "nvme discover"]),
        (
            "id --address no-such-host.invalid:4420",
            2,
            &["cannot find no-such-host.invalid:4420", "HOST:PORT"],
        ),
        ("id --hostid 7", 2, &["UUID"]),
        ("id --timeout 0", 2, &["--timeout"]),
    ];
    for (line, code, told) in cases {
        card.fails(line, *code, told);
    }
    // What standard input holds shows at its end: the part before it was written, and that is told.
    let mut long = pattern(1, 2 * MIB);
    let output = card.nvme_with("write", &[], &[&long[..], &[1, 2, 3]].concat());
    failed("odd input", &output, 2, &["an input of 2097155 bytes", "the first 2097152 bytes were written"]);
    assert!(card.succeeds("read --length 2MiB") == long);
    let output = card.nvme_with("write --offset 63MiB", &[], &long);
    failed("past the end", &output, 2, &["beyond the end", "the first 1048576 bytes were written"]);
    long.truncate(MIB);
    assert!(card.succeeds("read --length 1MiB --offset 63MiB") == long);

    let image = std::fs::read(card.place.data().join("card/nvme.img")).unwrap();
    assert_eq!(image.len(), 64 * MIB, "nothing lies behind the end");
}

#[test]
fn who_does_not_answer_is_named() {
    let place = Place::new();
    let run = |line: &str| {
        let arguments: Vec<&str> = ["nvme"].into_iter().chain(line.split(' ')).collect();
        place.output(&arguments)
    };
    // Bound and never listening: the port refuses connections, and nobody else is given it meanwhile.
    let silent = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&silent, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let nobody = SocketAddrV4::try_from(rustix::net::getsockname(&silent).unwrap()).unwrap();
    for line in ["discover", "list", "id", "read --length 4KiB"] {
        let output = run(&format!("{line} --address {nobody}"));
        failed(
            line,
            &output,
            1,
            &[&format!("cannot connect to {nobody}: connection refused"), "outboard up"],
        );
    }

    // One that takes connections and says nothing, and one that closes them.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = mute.local_addr().unwrap();
    let output = run(&format!("id --address {address} --timeout 100ms"));
    failed("mute", &output, 1, &[&format!("{address}"), "no answer in time"]);
    let rude = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = rude.local_addr().unwrap();
    let closing = std::thread::spawn(move || drop(rude.accept().unwrap()));
    let output = run(&format!("id --address {address}"));
    failed("rude", &output, 1, &[&format!("{address}"), "hint: "]);
    closing.join().unwrap();
}

#[test]
fn what_a_controller_refuses_is_shown_by_name_and_code() {
    let card = Card::start(Place::new());
    let address: SocketAddr = card.address.parse().unwrap();
    let keys = |current: u64, other: u64| [current.to_le_bytes(), other.to_le_bytes()].concat();
    let pointer = DataPointer::Transport { len: 16 };
    let register = ReservationRegister {
        action: ReservationRegisterAction::Register,
        ignore_key: false,
        persist: PersistChange::Keep,
    };
    let acquire = ReservationAcquire {
        action: ReservationAcquireAction::Acquire,
        ignore_key: false,
        kind: ReservationType::ExclusiveAccess,
    };
    let commands = [
        (register.encode(CommandId(0), NamespaceId(1), pointer), keys(0, 7)),
        (acquire.encode(CommandId(0), NamespaceId(1), pointer), keys(7, 0)),
    ];
    let holder = block_on(async {
        let options = Options::new(address, NQN, random_host_id()).unwrap();
        let holder = Initiator::connect(options).await.unwrap();
        for (entry, data) in commands {
            let data = Data::ToController(data.into());
            holder.io(RawCommand { entry, data, is_idempotent: false }).await.unwrap();
        }
        holder
    });
    card.write_file("in", &[1; 512]);
    let told = ["reservation conflict (0/83h)", "another host has reserved the namespace"];
    card.fails("read --length 512B", 1, &[told[0], told[1], "cannot read namespace 1"]);
    card.fails("write --input in", 1, &[told[0], told[1], "the first 0 bytes were written"]);
    block_on(holder.disconnect());
}

/// An address that stays the same while cards come and go. It serves until the test's process ends.
fn forward(target: &Arc<Mutex<String>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let target = Arc::clone(target);
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let card = TcpStream::connect(&*target.lock().unwrap());
            // A client that finds no card is told by the end of its connection.
            let Ok(card) = card else { continue };
            for (from, to) in [(&client, &card), (&card, &client)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    address
}

/// Writes six mebibytes, and has the card die after the first two.
fn write_over_a_death(card: Card, options: &[&str]) -> (Card, Output) {
    let target = Arc::new(Mutex::new(card.address.clone()));
    let address = forward(&target).to_string();
    let mut arguments = vec!["nvme", "write", "--timeout", "60s", "--address", &address];
    arguments.extend(options);
    let mut command = card.place.command(&arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut writer = command.spawn().unwrap();
    let mut input = writer.stdin.take().unwrap();
    let data = pattern(1, 6 * MIB);
    // More than a pipe holds: when it is taken, the writer is connected and has begun.
    input.write_all(&data[..2 * MIB]).unwrap();
    let card = card.next_life();
    target.lock().unwrap().clone_from(&card.address);
    // One that gives up closes its end.
    let _ = input.write_all(&data[2 * MIB..]);
    drop(input);
    (card, writer.wait_with_output().unwrap())
}

#[test]
fn a_write_goes_on_with_the_cards_next_life_but_a_flush_does_not_speak_for_the_one_before() {
    for options in [&["--json"][..], &["--json", "--flush", "--fua"]] {
        let (card, output) = write_over_a_death(Card::start(Place::new()), options);
        assert!(output.status.success(), "{options:?}: {}", text(&output.stderr));
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(told["bytes"], 6 * MIB);
        assert!(card.succeeds("read --length 6MiB") == pattern(1, 6 * MIB), "{options:?}");
    }
    let (_card, output) = write_over_a_death(Card::start(Place::new()), &["--flush"]);
    failed("write --flush", &output, 1, &["run the command again"]);
}

#[test]
fn the_status_tells_who_uses_the_target_and_what_was_done() {
    let card = Card::start(Place::new());
    let status = || card.status();
    let before = status();
    assert_eq!(
        (&before["address"], &before["discovery"]),
        (&(*card.address).into(), &(*card.discovery).into())
    );
    assert_eq!(
        (&before["connections"], &before["reads"], &before["namespaces"]),
        (&0.into(), &0.into(), &1.into())
    );

    card.write_file("in", &pattern(1, MIB));
    card.succeeds("write --input in --flush");
    card.succeeds("read --length 512KiB --out out");
    card.fails("id --nsid 4000", 1, &["no namespace 4000"]);
    let address: SocketAddr = card.address.parse().unwrap();
    let options = Options::new(address, NQN, random_host_id()).unwrap();
    let guest = block_on(Initiator::connect(Options { queues: 2, ..options })).unwrap();
    // A snapshot may be a little old; what the card has done shows in the end.
    let deadline = std::time::Instant::now() + support::DEADLINE;
    let after = loop {
        let after = status();
        if after["connections"] == 3 && after["in_flight"] == 0 {
            break after;
        }
        assert!(std::time::Instant::now() < deadline, "{after}");
    };
    assert_eq!((&after["hosts"], &after["controllers"]), (&1.into(), &1.into()), "{after}");
    assert_eq!((&after["writes"], &after["written_bytes"]), (&8.into(), &MIB.into()));
    assert_eq!((&after["reads"], &after["read_bytes"]), (&4.into(), &(MIB / 2).into()));
    assert_eq!((&after["flushes"], &after["buffer_used_bytes"]), (&1.into(), &0.into()));
    assert!(after["failed"].as_u64() > Some(0) && after["buffer_bytes"].as_u64() > Some(1 << 26), "{after}");
    assert!(after["received_bytes"].as_u64() > Some(MIB as u64), "{after}");
    let output = card.place.output(&["status", "--endpoint", &card.status]);
    let shown = text(&output.stdout);
    for part in [
        "initiators 1, 1 controller, 3 connections of 1024",
        "writes     8 (1.0 MiB)",
        "buffers    0 B in use of",
    ] {
        assert!(shown.contains(part), "no `{part}` in {shown}");
    }
    block_on(guest.disconnect());
}

#[test]
fn connections_that_say_nothing_keep_nobody_out() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let place = Place::new();
    // As few descriptors as a shell may give are not what bounds a card.
    let program = place.start_with_descriptors(256, &["card"]);
    let card = Card::started(place, program);
    let mut silent = Vec::new();
    // Some of them may be late and closed for that: as many as it takes to have the card full once.
    while card.status()["refused"] == 0 {
        silent.extend((0..1100).map(|_| TcpStream::connect(&card.address).unwrap()));
        assert!(silent.len() < 8 * 1100, "the card is never full: {}", card.status());
        let found = card.json("list");
        assert_eq!(found.as_array().unwrap().len(), 1, "{found}");
    }
}
