//! Listing 1 of SmartDS, both ways, on a real card: what a client sends is at its storage servers as it was, compressed where that is
//! worth it, and the link has carried none of it.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use ob_split::wire::{HEADER_LEN, Header, PACKED, REPLY};

use serde_json::Value;
use support::{DEADLINE, Place, Program, number_after};

#[path = "../../../examples/listing1/src/main.rs"]
mod call_by_call;
#[path = "../../../examples/listing1/src/plan.rs"]
mod plan;

use call_by_call::common::{LATENCY_SENSITIVE, MAGIC, MAX};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A card whose port an application may have.
struct Card {
    _program: Program,
    place: Place,
    status: String,
}

impl Card {
    fn start() -> Self {
        let text = "[status]\nlisten = \"127.0.0.1:0\"\n[nvme]\nlisten = \"127.0.0.1:0\"\ndiscovery = \"127.0.0.1:0\"\n\
                    [kv]\nenabled = false\n[files]\nsize = \"64MiB\"\n[split]\n";
        let place = Place::with_config(text);
        let mut program = place.start(&["card"]);
        let ready = program.wait_for("The card is ready");
        let status = format!("127.0.0.1:{}", number_after(&ready, "status http://127.0.0.1:"));
        Self { _program: program, place, status }
    }

    /// Bytes that have crossed its link.
    fn link_bytes(&self) -> u64 {
        let output = self.place.output(&["status", "--json", "--endpoint", &self.status]);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        let bytes = ["dma_read_bytes", "dma_written_bytes"];
        bytes.iter().map(|name| status["link"][name].as_u64().unwrap()).sum()
    }

    fn socket(&self) -> PathBuf {
        self.place.data().join("link.sock")
    }
}

/// A storage server: what it was sent, in the order in which it has answered.
fn storage() -> (SocketAddr, Receiver<(Header, Vec<u8>)>) {
    let listener = TcpListener::bind(ANY).unwrap();
    let (address, (told, stored)) = (listener.local_addr().unwrap(), channel());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while let Some((header, bytes)) = receive(&mut stream) {
            let answer = Header { kind: header.kind | REPLY, payload_len: 0, ..header };
            if told.send((header, bytes)).is_err() || stream.write_all(&answer.encode()).is_err() {
                return;
            }
        }
    });
    (address, stored)
}

fn receive(stream: &mut TcpStream) -> Option<(Header, Vec<u8>)> {
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header).ok()?;
    let header = Header::decode(&header, MAGIC).unwrap();
    let mut bytes = vec![0; header.payload_len as usize];
    stream.read_exact(&mut bytes).ok()?;
    Some((header, bytes))
}

/// A request for each block: its number, whether it is in a hurry, its bytes.
fn blocks() -> Vec<(u64, bool, Vec<u8>)> {
    let text: Vec<u8> = (0..MAX as usize).map(|at| (at / 113) as u8).collect();
    let mut state = 88_172_645_463_325_252_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    })
    .take(MAX as usize)
    .collect();
    let blocks = [&text[..], &text[..4096], &noise[..], &noise[..512], &text[..1]];
    let both = blocks.iter().flat_map(|block| [(false, block.to_vec()), (true, block.to_vec())]);
    both.enumerate().map(|(tag, (is_urgent, block))| (tag as u64, is_urgent, block)).collect()
}

fn request(tag: u64, is_urgent: bool, block: &[u8]) -> Vec<u8> {
    let mut rest = [0; 40];
    // Bytes 24 to 39 are the port's; of the others each protocol has what it likes.
    rest[16..24].copy_from_slice(&(tag * 1000).to_le_bytes());
    // Whether a block is packed says who packs it, whatever its sender says.
    let flags = PACKED | if is_urgent { LATENCY_SENSITIVE } else { 0 };
    let payload_len = block.len() as u32;
    let header = Header { magic: MAGIC, version: 1, kind: 1, status: 0, flags, tag, payload_len, rest };
    [&header.encode()[..], block].concat()
}

/// Sends all, several at a time, and takes all answers.
fn send_all(port: u16, program: JoinHandle<()>) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    // One that is too long is refused, and what follows is stored.
    let long = vec![1; MAX as usize + 1];
    stream.write_all(&request(99, false, &long)).unwrap();
    let (answer, _) = receive(&mut stream).unwrap();
    assert_eq!((answer.tag, answer.kind, answer.status), (99, 1 | REPLY, 1));
    let mut writer = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        blocks()
            .iter()
            .for_each(|(tag, urgent, block)| writer.write_all(&request(*tag, *urgent, block)).unwrap());
        // It has said all, and still hears.
        writer.shutdown(Shutdown::Write).unwrap();
    });
    for (tag, ..) in blocks() {
        let (answer, _) = receive(&mut stream).unwrap();
        assert_eq!((answer.tag, answer.kind, answer.status), (tag, 1 | REPLY, 0));
    }
    sender.join().unwrap();
    drop(stream);
    program.join().unwrap();
}

fn assert_stored(stored: &Receiver<(Header, Vec<u8>)>) {
    for (tag, is_urgent, block) in blocks() {
        let (header, bytes) = stored.recv_timeout(DEADLINE).unwrap();
        assert_eq!(header.rest[16..24], (tag * 1000).to_le_bytes());
        let is_packed = header.flags & PACKED != 0;
        let shrinks = block.len() > 1000 && block[0] == block[1];
        assert_eq!(is_packed, shrinks && !is_urgent, "block {tag}");
        let unpacked =
            if is_packed { lz4::block::decompress(&bytes, Some(block.len() as i32)).unwrap() } else { bytes };
        assert!(unpacked == block, "block {tag} is another");
    }
}

#[test]
fn listing_1_stores_what_it_is_sent() {
    let card = Card::start();
    let (socket, (address, stored), (up, is_up)) = (card.socket(), storage(), channel());
    let program = std::thread::spawn(move || {
        call_by_call::serve(&socket, ANY, address, |port| up.send(port).unwrap()).unwrap();
    });
    send_all(is_up.recv_timeout(DEADLINE).unwrap(), program);
    assert_stored(&stored);
    let sent: usize = blocks().iter().map(|(.., block)| block.len()).sum();
    let crossed = card.link_bytes();
    assert!(crossed > 0 && crossed < sent as u64 / 10, "{crossed} bytes crossed the link of {sent}");
}

#[test]
fn one_plan_a_message_stores_it_at_all_servers() {
    let card = Card::start();
    let servers: Vec<_> = (0..3).map(|_| storage()).collect();
    // The card's port is the next program's when one has ended.
    for round in 0..2 {
        let servers = if round == 0 { &servers[..] } else { &[storage()][..] };
        let (socket, (up, is_up)) = (card.socket(), channel());
        let addresses: Vec<_> = servers.iter().map(|(address, _)| *address).collect();
        let program = std::thread::spawn(move || {
            plan::serve(&socket, ANY, &addresses, |port| up.send(port).unwrap()).unwrap();
        });
        send_all(is_up.recv_timeout(DEADLINE).unwrap(), program);
        servers.iter().for_each(|(_, stored)| assert_stored(stored));
    }
}
