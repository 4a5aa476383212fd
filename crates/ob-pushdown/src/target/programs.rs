//! Programs of hosts: loaded on another thread, kept on a shelf that all threads of a card share.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ob_ebpf::hooks::STORAGE;
use ob_ebpf::world::World;
use ob_nvme::target::ForeignKey;
use ob_nvme::target::control::ControllerKey;
use ob_programs::{Library, Limits, LoadRefusal, Object, Workshop, WorkshopError};

/// Hosts whose programs a card keeps. Of those that are not connected, one makes room for the next.
const TENANTS_MAX: usize = 64;

/// Objects of one host that are verified or wait for it: the others of a card want theirs too.
const LOADS_MAX: usize = 2;

/// What is called.
pub(super) const HOOKS: &[&World] = &[&STORAGE];

/// The programs of all hosts. Threads of a card share it by cloning.
#[derive(Clone, Debug, Default)]
pub struct Shelf {
    library: Arc<Library>,
    /// How many controllers each host has.
    connected: Arc<Mutex<BTreeMap<String, usize>>>,
    /// How many objects of each host are verified or wait for it.
    loading: Arc<Mutex<BTreeMap<String, usize>>>,
}

/// One of those that a host may have loaded at once. Dropped, there is room for the next.
struct Place {
    loading: Arc<Mutex<BTreeMap<String, usize>>>,
    tenant: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut loading = lock(&self.loading);
        if let Some(count) = loading.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                loading.remove(&self.tenant);
            }
        }
    }
}

fn lock(counts: &Mutex<BTreeMap<String, usize>>) -> MutexGuard<'_, BTreeMap<String, usize>> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shelf {
    fn connected(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        lock(&self.connected)
    }

    /// A place for one more object of a host, if it may have one.
    fn place(&self, tenant: &str) -> Option<Place> {
        let mut loading = lock(&self.loading);
        let count = loading.entry(tenant.to_owned()).or_default();
        if *count >= LOADS_MAX {
            return None;
        }
        *count += 1;
        Some(Place { loading: Arc::clone(&self.loading), tenant: tenant.to_owned() })
    }

    /// Makes room for one more tenant; whether there is some.
    fn make_room(&self, tenant: &str) -> bool {
        let connected = self.connected();
        let tenants = self.library.tenants();
        if tenants.len() < TENANTS_MAX || tenants.iter().any(|known| known == tenant) {
            return true;
        }
        match tenants.iter().find(|known| !connected.contains_key(known.as_str())) {
            Some(idle) => {
                self.library.remove_tenant(idle);
                true
            }
            None => false,
        }
    }
}

/// Who verifies and compiles.
pub enum Loader {
    /// Another thread, so that nobody waits for it; the function wakes this one.
    Workshop(Workshop, Arc<dyn Fn() + Send + Sync>),
    /// This one, in simulations.
    Inline,
}

/// What came of an upload.
pub(super) struct Loaded {
    pub(super) key: ForeignKey,
    pub(super) controller: ControllerKey,
    pub(super) token: u32,
    pub(super) result: Result<Arc<Object>, Refused>,
}

/// Why an object is not taken.
pub(super) enum Refused {
    Object(Box<LoadRefusal>),
    Busy(WorkshopError),
    TooManyHosts,
    TooManyLoads,
}

impl Refused {
    /// Whether it is for want of room alone: the same object may be taken later, or when others are taken out.
    pub(super) fn is_for_now(&self) -> bool {
        match self {
            Self::Object(refusal) => {
                matches!(**refusal, LoadRefusal::TooMany { .. } | LoadRefusal::TooLarge { .. })
            }
            Self::Busy(_) | Self::TooManyHosts | Self::TooManyLoads => true,
        }
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Object(refusal) => refusal.fmt(formatter),
            Self::Busy(error) => error.fmt(formatter),
            Self::TooManyLoads => {
                write!(
                    formatter,
                    "{LOADS_MAX} objects of this host are being loaded\nhint: try again in a moment"
                )
            }
            Self::TooManyHosts => write!(
                formatter,
                "{TENANTS_MAX} hosts have programs here and are connected\nhint: unload what is not needed"
            ),
        }
    }
}

/// What is to be loaded.
pub(super) struct Load {
    pub(super) key: ForeignKey,
    pub(super) controller: ControllerKey,
    pub(super) tenant: String,
    pub(super) token: u32,
    pub(super) name: String,
    pub(super) bytes: Vec<u8>,
}

/// The programs, as one thread has them.
pub(super) struct Programs {
    shelf: Shelf,
    loader: Loader,
    limits: Limits,
    /// Commands that wait for what they load.
    waiting: Vec<ForeignKey>,
    done: VecDeque<Loaded>,
    sender: Sender<Loaded>,
    receiver: Receiver<Loaded>,
}

impl Programs {
    pub(super) fn new(shelf: Shelf, loader: Loader, limits: Limits) -> Self {
        let (sender, receiver) = channel();
        Self { shelf, loader, limits, waiting: Vec::new(), done: VecDeque::new(), sender, receiver }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        let library = &self.shelf.library;
        let of =
            |tenant: &String| library.of(tenant).iter().map(|object| object.entries.len()).sum::<usize>();
        library.tenants().iter().map(of).sum()
    }

    /// A controller of this host is there.
    pub(super) fn came(&self, tenant: &str) {
        *self.shelf.connected().entry(tenant.to_owned()).or_default() += 1;
    }

    /// It is gone.
    pub(super) fn left(&self, tenant: &str) {
        let mut connected = self.shelf.connected();
        if let Some(count) = connected.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                connected.remove(tenant);
            }
        }
    }

    /// Begins to load. [`Self::next_loaded`] tells what came of it.
    pub(super) fn load(&mut self, load: Load) {
        let Load { key, controller, tenant, token, name, bytes } = load;
        let loaded = move |result| Loaded { key, controller, token, result };
        self.waiting.push(key);
        if !self.shelf.make_room(&tenant) {
            return self.done.push_back(loaded(Err(Refused::TooManyHosts)));
        }
        let Some(place) = self.shelf.place(&tenant) else {
            return self.done.push_back(loaded(Err(Refused::TooManyLoads)));
        };
        let (library, limits) = (Arc::clone(&self.shelf.library), self.limits);
        let prepare = move || {
            let _place = place;
            let object = library.load(&tenant, &name, &bytes, HOOKS, &limits);
            object.map_err(|refusal| Refused::Object(Box::new(refusal)))
        };
        match &self.loader {
            Loader::Inline => self.done.push_back(loaded(prepare())),
            Loader::Workshop(workshop, wake) => {
                let (sender, wake) = (self.sender.clone(), Arc::clone(wake));
                let job = move || {
                    // Who is gone does not want to know.
                    let _ = sender.send(loaded(prepare()));
                    wake();
                };
                if let Err(error) = workshop.submit(job) {
                    self.done.push_back(loaded(Err(Refused::Busy(error))));
                }
            }
        }
    }

    /// The next upload of which something has come, and whether anybody waits for it.
    pub(super) fn next_loaded(&mut self) -> Option<(Loaded, bool)> {
        let loaded = self.done.pop_front().or_else(|| self.receiver.try_recv().ok())?;
        let place = self.waiting.iter().position(|key| *key == loaded.key);
        if let Some(place) = place {
            self.waiting.swap_remove(place);
        }
        Some((loaded, place.is_some()))
    }

    /// Nobody waits for what a command loads.
    pub(super) fn forget(&mut self, key: ForeignKey) {
        self.waiting.retain(|waiting| *waiting != key);
    }

    pub(super) fn find(&self, tenant: &str, object: &str) -> Option<Arc<Object>> {
        self.shelf.library.find(tenant, object)
    }

    pub(super) fn of(&self, tenant: &str) -> Vec<Arc<Object>> {
        self.shelf.library.of(tenant)
    }

    /// Takes an object out, unless another has its name by now.
    pub(super) fn unload(&self, tenant: &str, object: &Arc<Object>) {
        let current = self.shelf.library.find(tenant, &object.name);
        if current.is_some_and(|current| Arc::ptr_eq(&current, object)) {
            self.shelf.library.remove(tenant, &object.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_so_many_loaded_at_once_and_others_theirs() {
        let shelf = Shelf::default();
        let mut places: Vec<Place> = (0..LOADS_MAX).map(|_| shelf.place("one").unwrap()).collect();
        assert!(shelf.place("one").is_none());
        assert!(shelf.clone().place("two").is_some(), "the others wait for nobody");
        places.pop();
        places.push(shelf.place("one").unwrap());
        assert!(shelf.clone().place("one").is_none(), "all threads count together");
        drop(places);
        assert!(lock(&shelf.loading).is_empty());
    }
}
