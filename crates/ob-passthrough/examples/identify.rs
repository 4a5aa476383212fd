//! Reads one block of a namespace by ioctl and by io_uring at the same time, and says whether they agree:
//! `cargo run -p ob-passthrough --example identify -- nvme0n1 [LBA]`.

#![forbid(unsafe_code)]

use std::error::Error;

use ob_passthrough::System;
use ob_passthrough::nvme::{Command, IoctlPassthrough, Namespace, RingPassthrough};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().ok_or("which namespace? (nvme0n1)")?;
    let first = arguments.next().map_or(Ok(0), |text| text.parse::<u64>())?;
    let namespace = Namespace::find(&System::default(), name.trim_start_matches("/dev/"))?;
    println!("{namespace:#?}");
    println!("NVMe/TCP: {}, paths: {}", namespace.is_tcp(), namespace.controllers.len());
    let read = || Command::read(namespace.nsid, first, 1, namespace.block_len);
    let ring = RingPassthrough::open(&namespace.generic_path, 64)?;
    // Sixteen on their way while the ioctls run: on the block device, and on the generic one.
    let by_ring: Vec<_> = (0..16).map(|_| ring.submit(read())).collect();
    let mut answers = Vec::new();
    for path in [&namespace.block_path, &namespace.generic_path] {
        let device = IoctlPassthrough::open(path)?;
        println!("{}: nsid {}", path.display(), device.nsid()?);
        answers.push(device.run(read())?);
    }
    for pending in by_ring {
        answers.push(pending.wait()?);
    }
    let equal = answers.iter().all(|answer| answer.data == answers[0].data);
    println!("block {first}: {} answers of {} bytes, equal: {equal}", answers.len(), answers[0].data.len());
    // A block far past the end is refused by the controller with a status, not by the kernel with an errno.
    let past = ring.submit(Command::read(namespace.nsid, u64::MAX / 2, 1, namespace.block_len)).wait();
    println!("past the end: {past:?}");
    if equal { Ok(()) } else { Err("the answers differ".into()) }
}
