//! What a program of one's own is asked from Rust: `docs/your-own-program.md` explains it, and shows it as it is here.
//!
//! ```text
//!   readings card ADDRESS NAME SENSOR          a file of the card's
//!   readings mounted DEVICE PATH SENSOR        a file of a file system that is mounted from the card
//! ```

#![forbid(unsafe_code)]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use ob_nvme::initiator::{Initiator, Options, block_on};
use ob_passthrough::System;
use ob_passthrough::lease::LeaseKeeper;
use ob_pushdown::client::{File, PushError, Read, Session, Transport};
use ob_pushdown::kernel::{KernelTransport, MountedFile};
use ob_wire_nvme::NamespaceId;

const PROGRAM: &[u8] = include_bytes!("../../../examples/programs/readings.o");
const READING_LEN: usize = 24;

/// How many readings a sensor has, and their sum.
pub type Sum = (u64, i64);

/// Asks a card about a file of its own.
pub async fn of_card(address: &str, name: &str, sensor: u64) -> Result<Sum, Box<dyn Error>> {
    let options = Options::new(address.parse()?, "nqn.2026-11.io.outboard:card", [7; 16])?;
    let session = Session::begin(Initiator::connect(options).await?, NamespaceId(1)).await?;
    Ok(ask(&session, session.named(name), sensor).await?)
}

/// Asks a card about a file of a file system that this machine has mounted from it, and the kernel where the card does not answer.
pub async fn of_mounted(device: &str, path: &Path, sensor: u64) -> Result<Sum, Box<dyn Error>> {
    let system = System::default();
    let transport = KernelTransport::open(&system, device)?;
    let namespace = transport.namespace();
    let session = Session::begin(transport, namespace).await?;
    let keeper = Arc::new(LeaseKeeper::start()?);
    let file = Arc::new(MountedFile::open(path, (namespace, device), &system, &keeper)?);
    let answer = ask(&session, session.mapped(file.clone()), sensor).await;
    // The kernel's connection stays, and with it what the card keeps for this session.
    session.end().await;
    match answer {
        // Somebody writes the file, or the target has no functions: whatever it is, the ordinary path has the answer.
        Err(error) if error.detour().is_some() => {
            let len = std::fs::metadata(path)?.len();
            Ok(ordinary(&file.read_at(0, usize::try_from(len)?)?, sensor))
        }
        answer => Ok(answer?),
    }
}

async fn ask<T: Transport>(session: &Session<T>, file: File, sensor: u64) -> Result<Sum, PushError> {
    // Loaded when the target does not have it.
    let program = session.program("readings", Some(PROGRAM.to_vec()));
    let query = session.query(&program, &[file])?.with_reads_max(1024);
    let first = Read { file: 0, offset: 0, len: 4096 };
    let answer = session.ask(&query, first, &sensor.to_le_bytes(), 24).await?;
    let mut words = [0; 3];
    for (word, bytes) in words.iter_mut().zip(answer.scratch.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    Ok((words[1], words[2].cast_signed()))
}

/// The same by whoever has the bytes.
pub fn ordinary(bytes: &[u8], sensor: u64) -> Sum {
    let (readings, _) = bytes.as_chunks::<READING_LEN>();
    let word =
        |reading: &[u8; READING_LEN], at| reading.as_chunks::<4>().0.get(at).copied().unwrap_or_default();
    let of_sensor =
        readings.iter().filter(|reading| u64::from(u32::from_le_bytes(word(reading, 2))) == sensor);
    of_sensor.fold((0, 0), |(count, sum), reading| {
        (count + 1, sum + i64::from(i32::from_le_bytes(word(reading, 3))))
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (count, sum) = match words[..] {
        ["card", address, name, sensor] => block_on(of_card(address, name, sensor.parse()?))?,
        ["mounted", device, path, sensor] => block_on(of_mounted(device, Path::new(path), sensor.parse()?))?,
        _ => return Err("readings card ADDRESS NAME SENSOR, or readings mounted DEVICE PATH SENSOR".into()),
    };
    println!("{count} readings, in all {sum}");
    Ok(())
}
