//! Whether requests over files of a mounted namespace agree with what the kernel reads, while the files are rewritten, cut off, replaced,
//! removed and made anew, their blocks are reused, and programs come and go: `cargo xtask kernel pushdown` runs this in a guest.
//!
//! ```text
//!   agree stamps FOLDER SECONDS SEED [ioctl]         blocks that say whose they are
//!   agree tree FOLDER SECONDS SEED [ioctl]           a B+tree, of which there are more and more versions
//!   agree database FOLDER SECONDS SEED PEER WORD…    a RocksDB database, copied there, and then written by RocksDB itself: the tests' peer
//! ```

#![forbid(unsafe_code)]
// A check that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod database;
mod stamps;
mod tree;

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ob_nvme::initiator::block_on;
use ob_passthrough::System;
use ob_passthrough::extents::{Extents, ExtentsOptions};
use ob_pushdown::client::Session;
use ob_pushdown::kernel::KernelTransport;
use ob_wire_nvme::NamespaceId;

/// What was asked for.
struct Plan {
    folder: PathBuf,
    time: Duration,
    seed: u64,
    rest: Vec<String>,
}

/// Numbers that look as if they were drawn.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound.max(1)
    }
}

/// The card behind a mounted file, by two sessions: one asks, and by the other programs are taken out.
struct Card {
    device: String,
    namespace: NamespaceId,
    session: Arc<Session<KernelTransport>>,
    other: Session<KernelTransport>,
}

impl Card {
    fn of(path: &Path, plan: &Plan) -> Result<Self, Box<dyn Error>> {
        let (system, file) = (System::default(), File::open(path)?);
        let device = Extents::of(file.as_fd(), &system, &ExtentsOptions::default())?.device.name;
        let is_ioctl = plan.rest.iter().any(|word| word == "ioctl");
        let open = || match is_ioctl {
            true => KernelTransport::by_ioctl(&system, &device),
            false => KernelTransport::open(&system, &device),
        };
        let transport = open()?;
        let namespace = transport.namespace();
        let way = if transport.is_ring() { "io_uring" } else { "ioctl" };
        println!("{device}, namespace {}, by {way}", namespace.0);
        let session = Arc::new(block_on(Session::begin(transport, namespace))?);
        let other = block_on(Session::begin(open()?, namespace))?;
        if session.description().is_none() {
            return Err("the target has no storage functions".into());
        }
        Ok(Self { device, namespace, session, other })
    }
}

/// Takes programs out that others use, each time all of them. To have them back takes a while: longer programs are taken out less often.
fn unload_now_and_then(session: &Session<KernelTransport>, pause: Duration, stop: &AtomicBool) {
    loop {
        thread::sleep(pause);
        if stop.load(Ordering::Relaxed) {
            return;
        }
        for listed in block_on(session.list()).unwrap_or_default() {
            // Another one of its object may have been listed before.
            let _ = block_on(session.unload(&listed.object));
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, folder, seconds, seed, rest @ ..] = &arguments[..] else {
        return Err("agree KIND FOLDER SECONDS SEED [WORD…]".into());
    };
    let plan = Plan {
        folder: PathBuf::from(folder),
        time: Duration::from_secs(seconds.parse()?),
        seed: seed.parse()?,
        rest: rest.to_vec(),
    };
    let done = match kind.as_str() {
        "stamps" => stamps::run(&plan),
        "tree" => tree::run(&plan),
        "database" => database::run(&plan),
        other => Err(format!("{other}: there are `stamps`, `tree` and `database`").into()),
    };
    std::io::stdout().flush()?;
    done
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agree: {error}");
            ExitCode::FAILURE
        }
    }
}
