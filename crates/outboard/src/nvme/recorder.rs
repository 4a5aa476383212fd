//! The thread that writes the catalogue, so that the reactor does not wait for a disk.
//!
//! ```text
//!   reactor: reservations changed ─▶ newest of each namespace ─▶ thread: Catalogue ─▶ file, durable
//!            command answered     ◀─ saved                     ◀─ wake ◀┘
//! ```
//!
//! What an administrator changes goes the same way, because one after the other is the only order in which a file can be
//! replaced; but the reactor waits for it. That is seldom, and namespace and catalogue are never at odds in between.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use ob_core::Instant;
use ob_nvme::target::control::NamespaceKey;

use super::NvmeError;
use super::catalogue::{Catalogue, NamespacePlace};

/// Jobs that wait: a batch and a call of each reactor thread, which has no more than those.
const JOBS_MAX: usize = 64;

/// Reservations that are to be saved.
pub(super) struct Save {
    pub(super) namespace: NamespaceKey,
    /// Its UUID: by the time that they can be saved, another one may be in its place.
    pub(super) uuid: [u8; 16],
    pub(super) version: u64,
    /// What is to last, if anything.
    pub(super) state: Option<Vec<u8>>,
}

type Batch = BTreeMap<NamespacePlace, Save>;

/// What was saved, or what could not be.
type Outcome = Result<Vec<Saved>, Batch>;

type Wake = Arc<dyn Fn() + Send + Sync>;

enum Job {
    Save(Batch, Sender<Outcome>, Wake),
    Call(Box<dyn FnOnce(&mut Catalogue) + Send>),
}

/// Reservations that are saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Saved {
    pub(super) namespace: NamespaceKey,
    pub(super) version: u64,
}

/// The thread's queue. It ends with the last of these.
#[derive(Clone)]
pub(super) struct RecorderJobs(SyncSender<Job>);

/// Starts the thread.
pub(super) fn start(catalogue: Catalogue) -> io::Result<RecorderJobs> {
    let (jobs, todo) = sync_channel(JOBS_MAX);
    std::thread::Builder::new().name("catalogue".to_owned()).spawn(move || run(catalogue, &todo))?;
    Ok(RecorderJobs(jobs))
}

/// The way to the thread for one that serves.
pub(super) struct Recorder {
    jobs: RecorderJobs,
    wake: Wake,
    done: (Sender<Outcome>, Receiver<Outcome>),
    /// What waits until the batch before it is done.
    waiting: Batch,
    is_saving: bool,
    /// When what could not be saved is tried again.
    retry_at: Option<Instant>,
    ready: Vec<Saved>,
}

/// How long a disk that failed is left alone.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl Recorder {
    /// `wake` is called when there is something to take.
    pub(super) fn new(jobs: RecorderJobs, wake: impl Fn() + Send + Sync + 'static) -> Self {
        let (waiting, ready) = (Batch::new(), Vec::new());
        Self { jobs, wake: Arc::new(wake), done: channel(), waiting, is_saving: false, retry_at: None, ready }
    }

    /// Changes the catalogue, and waits for it.
    pub(super) fn call<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Catalogue) -> Result<T, NvmeError> + Send + 'static,
    ) -> Result<T, NvmeError> {
        let (answer, answered) = sync_channel(1);
        let job = Job::Call(Box::new(move |catalogue| _ = answer.send(change(catalogue))));
        let sent = self.jobs.0.send(job).ok().and_then(|()| answered.recv().ok());
        sent.unwrap_or(Err(NvmeError::Recorder))
    }

    /// Has reservations saved. Of a namespace that waits already, only the newest are.
    pub(super) fn save(&mut self, place: NamespacePlace, save: Save) {
        self.waiting.insert(place, save);
        self.go_on();
    }

    /// The next that are saved. Those that could not be are tried again, with the next change or after a while; until then
    /// whoever waits for them is not answered, which is better than a promise not kept.
    pub(super) fn next_saved(&mut self, now: Instant) -> Option<Saved> {
        if self.is_saving
            && let Ok(done) = self.done.1.try_recv()
        {
            self.is_saving = false;
            match done {
                Ok(saved) => {
                    self.ready.extend(saved);
                    self.go_on();
                }
                Err(failed) => {
                    for (place, save) in failed {
                        // What changed since is newer.
                        self.waiting.entry(place).or_insert(save);
                    }
                    self.retry_at = Some(now + RETRY_AFTER);
                }
            }
        }
        if self.retry_at.is_some_and(|at| at <= now) {
            self.go_on();
        }
        self.ready.pop()
    }

    /// When [`Recorder::next_saved`] is due, if nothing wakes before.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Whether nothing waits to be saved.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_saving && self.waiting.is_empty()
    }

    fn go_on(&mut self) {
        if self.is_saving || self.waiting.is_empty() {
            return;
        }
        self.retry_at = None;
        let batch = std::mem::take(&mut self.waiting);
        let job = Job::Save(batch, self.done.0.clone(), Arc::clone(&self.wake));
        self.is_saving = self.jobs.0.send(job).is_ok();
        if !self.is_saving {
            tracing::error!("reservations are not saved: {}", NvmeError::Recorder);
        }
    }
}

fn run(mut catalogue: Catalogue, todo: &Receiver<Job>) {
    while let Ok(job) = todo.recv() {
        match job {
            Job::Call(change) => change(&mut catalogue),
            Job::Save(batch, done, wake) => {
                let states = batch.iter().map(|(place, save)| (*place, save.uuid, save.state.clone()));
                let saved = match catalogue.save_reservations(states) {
                    Ok(()) => Ok(batch
                        .values()
                        .map(|save| Saved { namespace: save.namespace, version: save.version })
                        .collect()),
                    Err(error) => {
                        tracing::error!("reservations are not saved: {error}");
                        Err(batch)
                    }
                };
                // Whoever asked may be gone.
                let _ = done.send(saved);
                wake();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::sync::Barrier;

    use ob_wire_nvme::text::Nqn;

    use super::super::catalogue::{Configured, Entry};
    use super::*;

    const START: Instant = Instant::from_nanoseconds(0);
    const PLACE: NamespacePlace = NamespacePlace { subsystem: 0, nsid: 1 };

    fn load(path: &Path) -> Catalogue {
        let mut catalogue = Catalogue::load(path).unwrap();
        catalogue.adopt(&Nqn::new("nqn.2026-01.example:a").unwrap(), true).unwrap();
        catalogue
    }

    fn is_saved(path: &Path) -> bool {
        match load(path).configured(PLACE, "disk").unwrap() {
            Configured::Known(entry) => entry.reservations.is_some(),
            _ => false,
        }
    }

    fn save(entry: &Entry, version: u64) -> Save {
        let state = Some(ob_nvme::target::control::ReservationState::default().encode());
        Save { namespace: NamespaceKey(7), uuid: entry.uuid, version, state }
    }

    #[test]
    fn nobody_waits_for_the_disk_and_nothing_is_told_before_it_is_durable() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nvme.json");
        let (woken, wakes) = channel();
        let mut recorder = Recorder::new(start(load(&path)).unwrap(), move || _ = woken.send(()));
        let entry = recorder.call(|catalogue| catalogue.add(PLACE, None, None, None)).unwrap();
        // The thread is held where a slow disk would hold it.
        let gate = Arc::new(Barrier::new(2));
        let held = Arc::clone(&gate);
        recorder.jobs.0.send(Job::Call(Box::new(move |_| _ = held.wait()))).unwrap();
        for version in 1..=100 {
            recorder.save(PLACE, save(&entry, version));
        }
        assert!(recorder.next_saved(START).is_none() && !recorder.is_idle() && !is_saved(&path));
        gate.wait();
        let mut versions = Vec::new();
        while !recorder.is_idle() {
            wakes.recv().unwrap();
            while let Some(saved) = recorder.next_saved(START) {
                assert!(is_saved(&path));
                versions.push(saved.version);
            }
        }
        assert_eq!(versions, [1, 100], "one batch, and the newest of those that came meanwhile");
    }

    /// A recorder whose first save has failed, because a folder lies where the new file would.
    struct Failing {
        recorder: Recorder,
        wakes: Receiver<()>,
        path: PathBuf,
        in_the_way: PathBuf,
    }

    fn failing(directory: &Path) -> Failing {
        let path = directory.join("nvme.json");
        let (woken, wakes) = channel();
        let mut recorder = Recorder::new(start(load(&path)).unwrap(), move || _ = woken.send(()));
        let entry = recorder.call(|catalogue| catalogue.add(PLACE, None, None, None)).unwrap();
        let in_the_way = path.with_extension("json.new");
        std::fs::create_dir(&in_the_way).unwrap();
        recorder.save(PLACE, save(&entry, 1));
        wakes.recv().unwrap();
        assert!(recorder.next_saved(START).is_none() && !is_saved(&path));
        Failing { recorder, wakes, path, in_the_way }
    }

    #[test]
    fn what_cannot_be_saved_is_not_told_to_be() {
        let directory = tempfile::tempdir().unwrap();
        let Failing { mut recorder, wakes, path, in_the_way } = failing(directory.path());
        assert!(!recorder.is_idle());
        assert!(recorder.call(|catalogue| catalogue.remove(PLACE)).is_err());
        std::fs::remove_dir(&in_the_way).unwrap();
        // Nobody has to change it again: it is tried after a while.
        let due = recorder.next_due().unwrap();
        assert!(due > START && recorder.next_saved(START).is_none());
        assert!(recorder.next_saved(due).is_none());
        wakes.recv().unwrap();
        assert_eq!(recorder.next_saved(due), Some(Saved { namespace: NamespaceKey(7), version: 1 }));
        assert!(recorder.is_idle() && recorder.next_due().is_none() && is_saved(&path));
    }

    #[test]
    fn what_could_not_be_saved_of_one_namespace_is_not_the_next_ones() {
        let directory = tempfile::tempdir().unwrap();
        let Failing { mut recorder, wakes, path, in_the_way } = failing(directory.path());
        std::fs::remove_dir(&in_the_way).unwrap();
        // Before it is tried again, another namespace gets the number.
        recorder.call(|catalogue| catalogue.remove(PLACE)).unwrap();
        let entry = recorder.call(|catalogue| catalogue.add(PLACE, None, None, None)).unwrap();
        let due = recorder.next_due().unwrap();
        assert!(recorder.next_saved(due).is_none());
        wakes.recv().unwrap();
        assert!(recorder.next_saved(due).is_some() && recorder.is_idle());
        assert!(!is_saved(&path), "whoever had registered with the old one knows nothing of the new one");
        recorder.save(PLACE, save(&entry, 1));
        wakes.recv().unwrap();
        assert!(recorder.next_saved(due).is_some() && is_saved(&path));
    }
}
