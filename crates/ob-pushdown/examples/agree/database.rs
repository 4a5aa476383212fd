//! A RocksDB database on the mount: first one that was made elsewhere and is copied there, whose tables are written and replaced while keys are looked
//! up; then RocksDB itself has it open, writes, flushes and compacts, and a reader follows.
//!
//! What lookups find, by requests or not, is what RocksDB has answered, and what ordinary reads of the same view find.

use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use conversation::{Conversation, Lookup, said};
use ob_nvme::initiator::block_on;
use ob_passthrough::System;
use ob_passthrough::lease::LeaseKeeper;
use ob_pushdown::client::SessionCounts;
use ob_pushdown::kernel::{KernelTransport, MapKeeper, MountedDirectory};
use ob_pushdown::rocksdb::{LookupCounts, Lookups};
use ob_rocksdb::{CacheOptions, Database, Options, Sequence};

use super::{Card, Draw, Plan, unload_now_and_then};

#[allow(dead_code, reason = "scans are not asked for here")]
#[path = "../../../ob-rocksdb/tests/support/conversation.rs"]
mod conversation;

/// What tables look like: such as the card's program reads.
const TABLES: [&str; 3] = ["lengths=7", "filter=bloom", "ranges=4"];
/// So little that blocks go while they are used; with indexes, and without.
const CACHES: [CacheOptions; 2] =
    [CacheOptions { len_max: 2000, pin_indexes: true }, CacheOptions { len_max: 0, pin_indexes: false }];
/// Keys of a batch of the peer's that are written together.
const TOGETHER: [&str; 5] = ["b0", "b1", "b2", "b3", "b4"];

/// RocksDB has a database open at a path, which it makes if there is none.
fn begin(plan: &Plan, path: &Path) -> Result<Conversation, Box<dyn Error>> {
    let (program, words) = plan.rest.split_first().ok_or("which program is the peer?")?;
    let mut command = Command::new(program);
    command.args(words).arg(path).arg(plan.seed.to_string()).args(TABLES);
    Ok(Conversation::begin(&mut command)?)
}

struct Asking<'a> {
    card: &'a Card,
    path: PathBuf,
    keeper: Arc<LeaseKeeper>,
    lookups: Lookups<'a, KernelTransport>,
    begun: SessionCounts,
}

type Mounted<'a> = Database<MountedDirectory<'a, KernelTransport>>;

impl<'a> Asking<'a> {
    fn new(card: &'a Card, path: &Path) -> Self {
        let (keeper, lookups) = (Arc::new(LeaseKeeper::start().unwrap()), Lookups::new(&card.session));
        Self { card, path: path.to_owned(), keeper, lookups, begun: card.session.counts() }
    }

    fn open(&self, cache: CacheOptions) -> Result<Mounted<'a>, Box<dyn Error>> {
        let place = (self.card.namespace, self.card.device.as_str());
        let files =
            MountedDirectory::new(&self.path, &self.card.session, place, &System::default(), &self.keeper);
        Ok(block_on(Database::open(files, Options { cache, ..Options::default() }))?)
    }

    /// Looks a key up by a request, if there is one, and by ordinary reads of the same view.
    fn find(
        &self,
        database: &Mounted<'_>,
        family: &str,
        key: &[u8],
        snapshot: Option<Sequence>,
    ) -> Result<String, Box<dyn Error>> {
        let (value, path) = block_on(self.lookups.get(database, family, key, snapshot, None))?;
        let ordinary = block_on(database.get(family, key, snapshot, None))?;
        if value != ordinary {
            let (value, ordinary) = (said(value), said(ordinary));
            let about = format!("{family} at {snapshot:?}: {}", String::from_utf8_lossy(key));
            return Err(format!("{about}: {value} by {path:?}, and {ordinary} by ordinary reads").into());
        }
        Ok(said(value))
    }

    /// Compares with what RocksDB has said: with how many keys.
    fn compare(&self, database: &Mounted<'_>, lines: &[String]) -> Result<usize, Box<dyn Error>> {
        let mut keys = 0;
        for line in lines {
            let Some((Lookup { family, snapshot, key }, expected)) = Lookup::parse(line) else { continue };
            let found = self.find(database, &family, &key, snapshot)?;
            if found != expected {
                return Err(format!("{found}, and RocksDB said: {line}").into());
            }
            keys += 1;
        }
        Ok(keys)
    }

    /// Says what came of it, and whether it was enough.
    fn end(&self, what: &str) -> Result<(), Box<dyn Error>> {
        let LookupCounts { from_memory, pushed, ordinary, sampled, not_pushed } = self.lookups.counts();
        let session = self.card.session.counts();
        let changed = session.changed + session.unmapped - self.begun.changed - self.begun.unmapped;
        let discarded = session.discarded - self.begun.discarded;
        println!(
            "{what}: {pushed} pushed, {ordinary} ordinary ({sampled} sampled, {not_pushed} not to be pushed), {from_memory} from memory; \
             changed {changed}, discarded {discarded}"
        );
        if pushed < 40 || pushed < (from_memory + pushed + ordinary) / 4 {
            return Err(format!("{what}: hardly anything was answered by the card").into());
        }
        Ok(())
    }
}

/// Makes a database where no card is, and copies it: what RocksDB says of it.
fn copy(plan: &Plan, to: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let from = std::env::temp_dir().join(format!("agree-{}", std::process::id()));
    fs::create_dir_all(&from)?;
    let mut peer = begin(plan, &from.join("db"))?;
    for command in
        ["write 700", "flush_all", "write 500", "compact", "write 300", "flush", "ingest", "write 100"]
    {
        peer.tell(command);
    }
    let lines = peer.tell("ask 300");
    peer.tell("close");
    drop(peer);
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from.join("db"))? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    fs::remove_dir_all(&from)?;
    Ok(lines)
}

/// Writes tables as they are, in place or in another file, and has others take the blocks that become free; and counts them.
fn rewrite(folder: &Path, seed: u64, stop: &AtomicBool, changes: &AtomicU64) -> Result<(), String> {
    let mut draw = Draw(seed);
    let wrong = |error: std::io::Error| format!("the writer: {error}");
    let listed = fs::read_dir(folder).map_err(wrong)?.map(|entry| Ok(entry?.path()));
    let mut tables: Vec<PathBuf> = listed.collect::<Result<_, std::io::Error>>().map_err(wrong)?;
    tables.retain(|path| path.extension().is_some_and(|end| end == "sst"));
    while !stop.load(Ordering::Relaxed) {
        let table = &tables[draw.below(tables.len() as u64) as usize];
        let mut write = || {
            let bytes = fs::read(table)?;
            if draw.below(2) == 0 {
                let file = OpenOptions::new().write(true).open(table)?;
                file.write_all_at(&bytes, 0)?;
                return file.sync_all();
            }
            let (new, filler) = (folder.join("new"), folder.join("filler"));
            fs::write(&new, &bytes)?;
            File::open(&new)?.sync_all()?;
            fs::rename(&new, table)?;
            fs::write(&filler, vec![0xa5; bytes.len()])?;
            File::open(&filler)?.sync_all()?;
            fs::remove_file(&filler)
        };
        write().map_err(wrong)?;
        changes.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(draw.below(80)));
    }
    Ok(())
}

/// Runs something while others meddle.
fn while_others<T>(
    card: &Card,
    meddle: impl FnOnce(&AtomicBool) -> Result<(), String> + Send,
    look: impl FnOnce() -> Result<T, Box<dyn Error>>,
) -> Result<T, Box<dyn Error>> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let meddler = scope.spawn(|| meddle(&stop));
        scope.spawn(|| unload_now_and_then(&card.other, Duration::from_millis(1500), &stop));
        let seen = look();
        stop.store(true, Ordering::Relaxed);
        meddler.join().unwrap()?;
        seen
    })
}

/// The copy, while its files are written and replaced.
fn look_into_copy(plan: &Plan, card: &Card, path: &Path, lines: &[String]) -> Result<(), Box<dyn Error>> {
    let asking = Asking::new(card, path);
    let until = Instant::now() + plan.time / 2;
    let changes = AtomicU64::new(0);
    let has_changed = || {
        changes.load(Ordering::Relaxed) >= 20 && {
            let counts = card.session.counts();
            counts.changed + counts.unmapped > 0
        }
    };
    let look = || {
        let (mut keys, mut at) = (0, 0);
        // A machine that is busy with others takes longer.
        while Instant::now() < until
            || ((keys < 300 || !has_changed()) && Instant::now() < until + 5 * plan.time)
        {
            // Opened again and again: its tables are other files by then.
            for cache in CACHES {
                let database = asking.open(cache)?;
                let some: Vec<String> = lines.iter().cycle().skip(at).take(40).cloned().collect();
                keys += asking.compare(&database, &some)?;
                at = (at + some.len()) % lines.len();
            }
        }
        Ok(keys)
    };
    let keys = while_others(card, |stop| rewrite(path, plan.seed, stop, &changes), look)?;
    let written = changes.load(Ordering::Relaxed);
    asking.end(&format!("a copied database: {keys} keys, {written} tables written or replaced"))?;
    if !has_changed() {
        return Err("nothing changed meanwhile".into());
    }
    Ok(())
}

/// Tables of a directory that have been seen, and are gone.
struct Gone<'a> {
    path: &'a Path,
    seen: BTreeSet<OsString>,
    gone: BTreeSet<OsString>,
}

impl Gone<'_> {
    fn look(&mut self) -> std::io::Result<()> {
        let listed = fs::read_dir(self.path)?.map(|entry| Ok(entry?.file_name()));
        let mut listed = listed.collect::<Result<BTreeSet<OsString>, std::io::Error>>()?;
        listed.retain(|name| name.to_string_lossy().ends_with(".sst"));
        self.gone.extend(self.seen.difference(&listed).cloned());
        self.seen = listed;
        Ok(())
    }
}

/// What was written together is seen together: in how many keys.
fn compare_churned(asking: &Asking<'_>, database: &Mounted<'_>) -> Result<usize, Box<dyn Error>> {
    let sequence = database.view().last_sequence();
    let find = |key: &str| asking.find(database, "churn", key.as_bytes(), Some(sequence));
    let values = TOGETHER.into_iter().map(find).collect::<Result<BTreeSet<String>, _>>()?;
    if values.len() != 1 {
        return Err(format!("written together, and apart now: {values:?}").into());
    }
    Ok(TOGETHER.len())
}

/// The same directory, while RocksDB has it open. What it was told to flush it compacts by itself while keys are looked up; now and then it writes and
/// flushes all the time, too, which in a guest takes most of the time that there is.
fn follow(plan: &Plan, card: &Card, path: &Path) -> Result<(), Box<dyn Error>> {
    let asking = Asking::new(card, path);
    let mut peer = begin(plan, path)?;
    let databases = [asking.open(CACHES[0])?, asking.open(CACHES[1])?];
    let mut tables = Gone { path, seen: BTreeSet::new(), gone: BTreeSet::new() };
    let until = Instant::now() + plan.time / 2;
    let look = || {
        let (mut keys, mut round) = (0, 0);
        while Instant::now() < until || round < 5 {
            peer.tell("write 150");
            peer.tell(["flush_all", "ingest", "flush_all", "compact", "flush"][round % 5]);
            peer.tell("snapshot");
            peer.tell("write 10");
            let is_churned = round % 5 == 2;
            if is_churned {
                peer.tell("churn");
            }
            for database in &databases {
                let lines = peer.tell(if is_churned { "ask 8" } else { "ask 30" });
                block_on(database.catch_up())?;
                keys += asking.compare(database, &lines)?;
                keys += compare_churned(&asking, database)?;
                tables.look()?;
            }
            if is_churned {
                peer.tell("calm");
            }
            peer.tell("release");
            round += 1;
        }
        Ok(keys)
    };
    let keys = while_others(card, |_| Ok(()), look)?;
    let gone = tables.gone.len();
    asking.end(&format!("a database that RocksDB writes: {keys} keys, {gone} tables came and went"))?;
    if gone < 5 {
        return Err("RocksDB hardly changed anything meanwhile".into());
    }
    Ok(())
}

/// Everything, and what is wrong.
pub(super) fn run(plan: &Plan) -> Result<(), Box<dyn Error>> {
    let path = plan.folder.join("db");
    let lines = copy(plan, &path)?;
    let card = Card::of(&path.join("CURRENT"), plan)?;
    look_into_copy(plan, &card, &path, &lines)?;
    // Tables of a database that is followed are opened long before most are asked for.
    let keeper = MapKeeper::start(&card.session)?;
    follow(plan, &card, &path)?;
    drop(keeper);
    println!("{:?}", card.session.counts());
    fs::remove_dir_all(&path)?;
    Ok(())
}
