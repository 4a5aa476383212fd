//! Files whose every block says whose it is and which version it is of. What is believed of an answer must be one version of one life of one file,
//! and not older than what was written, and closed, before the request began.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use ob_nvme::initiator::block_on;
use ob_passthrough::System;
use ob_passthrough::lease::LeaseKeeper;
use ob_pushdown::client::{Read, Session};
use ob_pushdown::kernel::{KernelTransport, MountedFile};

use super::{Card, Draw, Plan, unload_now_and_then};

const STAMPS: &[u8] = include_bytes!("../../../../examples/programs/stamps.o");
const BLOCK: usize = 4096;
const FILES: usize = 4;
/// Blocks of the longest file.
const BLOCKS_MAX: u64 = 96;
/// Reads of a chain: so many that writers come in the midst of it, and what they have written reaches the device before it ends.
const READS: u64 = 800;
/// Bytes of the scratch of `stamps`.
const ANSWER: u32 = 64;

/// What is known of a file, by its number.
#[derive(Default)]
struct Known {
    /// Of the newest life: its number, and the newest version that is written, and closed.
    written: Mutex<(u64, u64)>,
}

struct Setting {
    folder: PathBuf,
    known: Vec<Known>,
    stop: AtomicBool,
    believed: AtomicU64,
    detours: AtomicU64,
}

impl Setting {
    fn path(&self, number: usize) -> PathBuf {
        self.folder.join(format!("file{number}"))
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

fn block(owner: u64, life: u64, version: u64, index: u64) -> Vec<u8> {
    let mut bytes = vec![version as u8; BLOCK];
    for (at, word) in [owner, life, version, index].into_iter().enumerate() {
        bytes[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Writes all blocks of a version, and has them on the device: first the last one, soon, so that chains that are underway meet it.
fn fill(file: &File, owner: usize, life: u64, version: u64, blocks: u64) -> std::io::Result<()> {
    let last = blocks - 1;
    file.write_all_at(&block(owner as u64, life, version, last), last * BLOCK as u64)?;
    file.sync_data()?;
    for index in 0..last {
        file.write_all_at(&block(owner as u64, life, version, index), index * BLOCK as u64)?;
    }
    file.sync_all()
}

/// Changes files, each time another and in another way.
fn write(setting: &Setting, seed: u64) -> std::io::Result<u64> {
    let (mut draw, mut changes) = (Draw(seed), 0);
    while !setting.is_over() {
        let number = draw.below(FILES as u64) as usize;
        let path = setting.path(number);
        let (life, version) = *setting.known[number].written.lock().unwrap();
        let blocks = 2 + draw.below(BLOCKS_MAX - 2);
        let done = match draw.below(5) {
            // In place, and then as long as it was or longer.
            0 | 1 => {
                let file = OpenOptions::new().write(true).open(&path)?;
                let blocks = blocks.max(file.metadata()?.len() / BLOCK as u64);
                fill(&file, number, life, version + 1, blocks)?;
                (life, version + 1)
            }
            // Cut off, so that its blocks become free, and written again.
            2 => {
                let file = OpenOptions::new().write(true).truncate(true).open(&path)?;
                fill(&file, number, life, version + 1, blocks)?;
                (life, version + 1)
            }
            // Another file takes its name.
            3 => {
                let other = setting.folder.join("new");
                fill(&File::create(&other)?, number, life + 1, version + 1, blocks)?;
                fs::rename(&other, &path)?;
                (life + 1, version + 1)
            }
            // Removed, and another one is made. Readers look for it meanwhile.
            _ => {
                fs::remove_file(&path)?;
                fill(&File::create(&path)?, number, life + 1, version + 1, blocks)?;
                (life + 1, version + 1)
            }
        };
        *setting.known[number].written.lock().unwrap() = done;
        changes += 1;
        thread::sleep(Duration::from_millis(draw.below(60)));
    }
    Ok(changes)
}

/// Asks, and judges what is believed.
fn read(
    setting: &Setting,
    session: &Session<KernelTransport>,
    device: &str,
    seed: u64,
) -> Result<u64, String> {
    let system = System::default();
    let keeper = Arc::new(LeaseKeeper::start().map_err(|error| error.to_string())?);
    let namespace = session.transport().namespace();
    let program = session.program("stamps", Some(STAMPS.to_vec()));
    let (mut draw, mut asked) = (Draw(seed), 0);
    while !setting.is_over() {
        let number = draw.below(FILES as u64) as usize;
        let Ok(file) = MountedFile::open(&setting.path(number), (namespace, device), &system, &keeper) else {
            continue;
        };
        // Some writers wait for requests, and some have none of it.
        let file = Arc::new(if draw.below(2) == 0 { file.with_grace(Duration::ZERO) } else { file });
        let query = session.query(&program, &[session.mapped(file.clone())]).unwrap().with_reads_max(1000);
        for _ in 0..draw.below(30) {
            let (life, version) = *setting.known[number].written.lock().unwrap();
            let head = file.read_at(0, 32).map_err(|error| error.to_string())?;
            let blocks =
                file.read_at(0, BLOCKS_MAX as usize * BLOCK).map_err(|error| error.to_string())?.len()
                    / BLOCK;
            if head.len() < 32 || blocks < 2 {
                continue;
            }
            asked += 1;
            let input = [number as u64, blocks as u64, READS].map(u64::to_le_bytes).concat();
            let first = Read { file: 0, offset: 0, len: BLOCK as u32 };
            match block_on(session.ask(&query, first, &input, ANSWER)) {
                Ok(answer) => {
                    setting.believed.fetch_add(1, Ordering::Relaxed);
                    judge(&answer.scratch, number, life, version)?;
                }
                Err(error) if error.detour().is_some() => {
                    setting.detours.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }
    Ok(asked)
}

fn judge(scratch: &[u8], number: usize, life: u64, version: u64) -> Result<(), String> {
    let word = |at: usize| u64::from_le_bytes(scratch[8 * at..8 * at + 8].try_into().unwrap());
    let [seen, strange, oldest, newest, found] = [3, 4, 5, 6, 7].map(word);
    let told = format!(
        "file {number}: {seen} blocks seen, {strange} strange, versions {oldest} to {newest} of life {found}"
    );
    if seen != READS || strange != 0 {
        return Err(format!("{told}: blocks of others"));
    }
    if oldest != newest {
        return Err(format!("{told}: two versions in one answer"));
    }
    // A file that was replaced is still what it was, for who has it open.
    if found == life && oldest < version {
        return Err(format!("{told}: version {version} was written before the request"));
    }
    Ok(())
}

/// Everybody at work, until the time is over or something is wrong; what that is.
fn work(setting: &Setting, card: &Card, plan: &Plan) -> Option<String> {
    let (seed, until) = (plan.seed, Instant::now() + plan.time);
    thread::scope(|scope| {
        let writer = scope.spawn(|| write(setting, seed).map_err(|error| error.to_string()));
        let readers: Vec<_> = (1..3)
            .map(|reader| {
                scope.spawn(move || read(setting, &card.session, &card.device, seed ^ reader << 40))
            })
            .collect();
        scope.spawn(|| unload_now_and_then(&card.other, Duration::from_millis(400), &setting.stop));
        while Instant::now() < until
            && readers.iter().all(|reader| !reader.is_finished())
            && !writer.is_finished()
        {
            thread::sleep(Duration::from_millis(100));
        }
        setting.stop.store(true, Ordering::Relaxed);
        let mut failure = None;
        match writer.join().unwrap() {
            Ok(changes) => println!("{changes} changes"),
            Err(error) => failure = Some(format!("the writer: {error}")),
        }
        for reader in readers {
            match reader.join().unwrap() {
                Ok(asked) => println!("{asked} requests"),
                Err(error) => failure = Some(error),
            }
        }
        failure
    })
}

/// Everything, and what is wrong.
pub(super) fn run(plan: &Plan) -> Result<(), Box<dyn Error>> {
    let known = (0..FILES).map(|_| Known { written: Mutex::new((1, 1)) }).collect();
    let setting = Setting {
        folder: plan.folder.clone(),
        known,
        stop: AtomicBool::new(false),
        believed: AtomicU64::new(0),
        detours: AtomicU64::new(0),
    };
    for number in 0..FILES {
        fill(&File::create(setting.path(number))?, number, 1, 1, BLOCKS_MAX / 2)?;
    }
    let card = Card::of(&setting.path(0), plan)?;
    let failure = work(&setting, &card, plan);
    println!("{:?}", card.session.counts());
    for number in 0..FILES {
        // It may have been removed last.
        let _ = fs::remove_file(setting.path(number));
    }
    if let Some(failure) = failure {
        return Err(failure.into());
    }
    if setting.believed.load(Ordering::Relaxed) < 10 || setting.detours.load(Ordering::Relaxed) == 0 {
        return Err("hardly anything was answered by the card, or nothing changed meanwhile".into());
    }
    Ok(())
}
