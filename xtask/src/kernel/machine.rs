//! The emulated machine: QEMU, its two serial lines, and its end.
//!
//! ```text
//!   ttyS0  ── kernel and programs ──▶ QEMU's standard error ──▶ Event::Console
//!   ttyS1  ── reports ──────────────▶ QEMU's standard output ─▶ Event::Report
//!          ◀─ orders and answers ─── QEMU's standard input
//! ```

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result};

use super::cpio::Archive;
use super::image::Image;
use super::packages::EMULATOR;
use super::scenarios::SCENARIOS;
use crate::command;

// The kernel makes at most as many I/O queues as it has processors, and four queues are asked for.
// Its processors take turns on one thread. On several, QEMU before 8.1 now and then runs an instruction that the guest has
// just patched as it was before, and a kernel that is booting panics with `int3`. It takes no longer on a machine with few cores.
const ACCELERATOR: &str = "tcg,thread=single,tb-size=256";
const PROCESSORS: &str = "4";
const MEMORY: &str = "1536M";

// Without what is slow to emulate: wide vectors and string instructions.
const PROCESSOR_MODEL: &str = "max,-erms,-avx,-avx2,-fma,-vaes,-svm,-la57,-smap,-smep,-pku";
const KERNEL_LINE: &str =
    "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr tsc=reliable no_timer_check audit=0";

const GUEST_FILES: &[(&str, &str)] = &[
    ("main.sh", include_str!("guest/main.sh")),
    ("functions.sh", include_str!("guest/functions.sh")),
    ("nvmet.sh", include_str!("guest/nvmet.sh")),
    ("scenarios/filesystem.sh", include_str!("guest/scenarios/filesystem.sh")),
];

// A disk has whole sectors.
const SECTOR_LEN: usize = 512;

/// Something that the machine said.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A line of the protocol.
    Report(String),
    /// A line of the kernel or of a program.
    Console(String),
    /// The machine is off.
    Ended,
}

/// A running machine. Dropped, it ends.
pub struct Machine {
    child: Child,
    orders: ChildStdin,
    events: Receiver<Event>,
}

impl Machine {
    /// Starts a machine with this environment for its scripts, and these files of ours beside them. `forward` is a port of this machine that leads to the
    /// guest's port 4420.
    ///
    /// # Errors
    /// When QEMU does not start.
    pub fn boot(
        image: &Image,
        folder: &Path,
        environment: &[(&str, String)],
        programs: &[(String, PathBuf)],
        forward: Option<u16>,
    ) -> Result<Self> {
        let job = folder.join("job.cpio");
        fs::write(&job, job_archive(environment, programs)?)?;
        let mut network = "user,id=net".to_owned();
        if let Some(port) = forward {
            network += &format!(",hostfwd=tcp:127.0.0.1:{port}-:4420");
        }
        let drive = format!("if=none,id=job,format=raw,readonly=on,file={}", job.display());
        let mut command = Command::new(EMULATOR);
        command
            .args(["-accel", ACCELERATOR, "-cpu", PROCESSOR_MODEL, "-machine", "pc,usb=off,hpet=off"])
            .args([
                "-smp",
                PROCESSORS,
                "-m",
                MEMORY,
                "-nodefaults",
                "-no-user-config",
                "-display",
                "none",
                "-no-reboot",
            ])
            .args(["-serial", "file:/dev/stderr", "-serial", "stdio", "-monitor", "none"])
            .args(["-netdev", &network, "-device", "virtio-net-pci,netdev=net,romfile="])
            .args(["-drive", &drive, "-device", "virtio-blk-pci,drive=job"])
            .args(["-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng"])
            .arg("-kernel")
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&image.initramfs)
            .args(["-append", KERNEL_LINE])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        println!("$ {}", command::shown(&command));
        let mut child = command.spawn().with_context(|| format!("cannot start {EMULATOR}"))?;
        let orders = child.stdin.take().context("QEMU has no standard input")?;
        let reports = child.stdout.take().context("QEMU has no standard output")?;
        let console = child.stderr.take().context("QEMU has no standard error")?;
        let (sender, events) = channel();
        let log = File::create(folder.join("console.log"))?;
        forward_lines(reports, None, sender.clone(), Event::Report);
        forward_lines(console, Some(log), sender, Event::Console);
        Ok(Self { child, orders, events })
    }

    /// Writes a line to the guest.
    ///
    /// # Errors
    /// When the machine is off.
    pub fn order(&mut self, line: &str) -> Result<()> {
        self.orders
            .write_all(format!("{line}\n").as_bytes())
            .and_then(|()| self.orders.flush())
            .context("the guest does not listen any more")
    }

    /// The next event, or none when the time is up.
    pub fn next(&mut self, deadline: Instant) -> Option<Event> {
        let patience = deadline.saturating_duration_since(Instant::now());
        match self.events.recv_timeout(patience) {
            Ok(event) => Some(event),
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => None,
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => Some(Event::Ended),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended by itself, and then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn forward_lines(
    stream: impl Read + Send + 'static,
    mut log: Option<File>,
    sender: Sender<Event>,
    event: fn(String) -> Event,
) {
    thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n') {
            let Ok(line) = line else { break };
            let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
            if let Some(log) = &mut log {
                // The log is for people; a full disk must not end the run.
                let _ = writeln!(log, "{line}");
            }
            if sender.send(event(line)).is_err() {
                break;
            }
        }
    });
}

/// The scripts and what they must know, as the content of a disk that the guest unpacks.
fn job_archive(environment: &[(&str, String)], programs: &[(String, PathBuf)]) -> Result<Vec<u8>> {
    let mut archive = Archive::new(Vec::new());
    archive.folder("scenarios")?;
    archive.folder("lib")?;
    for (path, from) in programs {
        archive.copy(path, from)?;
    }
    for (path, text) in GUEST_FILES {
        archive.file(path, 0o444, text.as_bytes())?;
    }
    for scenario in SCENARIOS {
        archive.file(&format!("scenarios/{}.sh", scenario.name), 0o444, scenario.script.as_bytes())?;
    }
    let variables: String = environment
        .iter()
        .map(|(name, value)| format!("export {name}='{}'\n", value.replace('\'', r"'\''")))
        .collect();
    archive.file("environment", 0o444, variables.as_bytes())?;
    let mut bytes = archive.finish()?;
    bytes.resize(bytes.len().next_multiple_of(SECTOR_LEN), 0);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_job_is_whole_sectors_and_survives_quotes() {
        let bytes = job_archive(&[("NAME", "it's".to_owned())], &[]).unwrap();
        assert_eq!(bytes.len() % SECTOR_LEN, 0);
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains(r"export NAME='it'\''s'"));
        for scenario in SCENARIOS {
            assert!(text.contains(&format!("scenarios/{}.sh", scenario.name)));
        }
    }
}
