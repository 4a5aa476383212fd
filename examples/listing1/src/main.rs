//! Listing 1 of SmartDS: a middle tier that takes blocks of a virtual machine and has them stored, compressed unless that would take too
//! long. It sees their headers; they themselves stay on the card.
//!
//! ```sh
//! printf '[split]\n' > split.toml && outboard up --config split.toml
//! cargo run --example listing1 -- outboard-data/link.sock 127.0.0.1:7000 127.0.0.1:7001
//! ```
//!
//! The storage server (7001 here) answers each message that it has stored. `plan.rs` does the same with one message to the card each.

#![forbid(unsafe_code)]
#![allow(unreachable_pub, dead_code, reason = "tests have it as a module")]

#[allow(clippy::duplicate_mod, reason = "a test has both programs as modules, each with its own")]
pub mod common;

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;

use common::{MAX, Request, accept, open, refuse};
use ob_split::engine::Effort;
use ob_split::host::{CardTask, Completion, Incoming, SplitFailure};
use ob_split::wire::PACKED;

/// Serves the first virtual machine that connects, until it goes.
pub fn serve(
    card: &Path,
    listen: SocketAddr,
    storage: SocketAddr,
    up: impl FnOnce(u16),
) -> Result<(), Box<dyn Error>> {
    let mut port = open(card)?;
    let split = &mut port.split;
    let compressed = split.card_memory(MAX)?;
    let to_storage = split.connect_and_wait(storage)?;
    let from_vm = accept(split, listen, up)?;
    // The header comes here, the payload stays on the card.
    while let Ok(event) = split.mixed_recv(Incoming::Of(from_vm), MAX) {
        let (header, received) = match split.wait(event) {
            Completion::Received { header, payload, .. } => (header, payload),
            Completion::Failed(SplitFailure::Oversize { header, .. }) => {
                refuse(split, from_vm, &header)?;
                continue;
            }
            _ => break,
        };
        // The part that changes every other week.
        let request = Request::parse(&header)?;
        let mut stored = request.storage_header();
        let mut payload = received.all();
        if !request.is_latency_sensitive {
            let task = CardTask::Compress { effort: Effort::DEFAULT, from: payload, into: &compressed };
            let event = split.engine(task)?;
            // Else it does not shrink.
            if let Completion::Engine(len) = split.wait(event) {
                payload = compressed.range(0..len).ok_or("more was written than there is room for")?;
                stored.flags |= PACKED;
            }
        }
        let event = split.mixed_send(to_storage, &stored.encode(), Some(payload))?;
        let is_stored = split.wait(event) == Completion::Sent;
        let event = split.mixed_send(from_vm, &request.answer(is_stored), None)?;
        split.wait(event);
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [card, listen, storage] = &words[..] else {
        return Err("usage: listing1 LINK_SOCKET LISTEN STORAGE".into());
    };
    serve(Path::new(card), listen.parse()?, storage.parse()?, |port| println!("listening on port {port}"))
}
