//! Listing 1 as a plan: what is done with a block is said once, and then each costs one message to the card and one back.
//!
//! ```sh
//! cargo run --example listing1-plan -- outboard-data/link.sock 127.0.0.1:7000 127.0.0.1:7001 127.0.0.1:7002 127.0.0.1:7003
//! ```
//!
//! It goes to each of up to four storage servers, and is answered when all have it.

#![forbid(unsafe_code)]
#![allow(unreachable_pub, dead_code, reason = "tests have it as a module")]

#[allow(clippy::duplicate_mod, reason = "a test has both programs as modules, each with its own")]
pub mod common;

use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;

use common::{MAX, Request, accept, open, refuse};
use ob_split::engine::Effort;
use ob_split::host::{Completion, Incoming, SplitFailure, arguments};
use ob_split::wire::{Answers, Otherwise, Plan, Register, Slot, Step, USER_LEN};

/// Serves the first virtual machine that connects, until it goes.
pub fn serve(
    card: &Path,
    listen: SocketAddr,
    storage: &[SocketAddr],
    up: impl FnOnce(u16),
) -> Result<(), Box<dyn Error>> {
    let mut port = open(card)?;
    let split = &mut port.split;
    let packed = Register::new(2).ok_or("there is no such register")?;
    // Effort 0 leaves it as it is; what does not shrink stays so as well.
    let write = Plan::new(vec![
        Step::Compress { from: Register::PAYLOAD, into: packed, otherwise: Otherwise::Copy },
        Step::Send { payload: Some(packed) },
        Step::Merge { answers: Answers::All },
        Step::Answer { payload: None },
    ])?;
    let write = split.define(&write, USER_LEN, 0)?;
    let stores: Vec<_> = storage.iter().map(|at| split.connect_and_wait(*at)).collect::<Result<_, _>>()?;
    let from_vm = accept(split, listen, up)?;
    while let Ok(event) = split.mixed_recv(Incoming::Of(from_vm), MAX) {
        let (header, payload) = match split.wait(event) {
            Completion::Received { header, payload, .. } => (header, payload),
            Completion::Failed(SplitFailure::Oversize { header, .. }) => {
                refuse(split, from_vm, &header)?;
                continue;
            }
            _ => break,
        };
        let request = Request::parse(&header)?;
        let effort = if request.is_latency_sensitive { Effort::NONE } else { Effort::DEFAULT };
        let arguments = arguments(&stores, &request.storage_header().encode());
        let event = split.post(write, Some(&payload), effort.number(), Slot(0), &arguments)?;
        if !matches!(split.wait(event), Completion::Plan { .. }) {
            let event = split.mixed_send(from_vm, &request.answer(false), None)?;
            split.wait(event);
        }
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [card, listen, storage @ ..] = &words[..] else {
        return Err("usage: listing1-plan LINK_SOCKET LISTEN STORAGE…".into());
    };
    let storage: Vec<SocketAddr> = storage.iter().map(|at| at.parse()).collect::<Result<_, _>>()?;
    serve(Path::new(card), listen.parse()?, &storage, |port| println!("listening on port {port}"))
}
