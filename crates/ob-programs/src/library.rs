//! Who has which objects.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ob_ebpf::world::World;

use crate::Limits;
use crate::object::{LoadRefusal, Object};

/// Longest name of an object.
const NAME_LEN_MAX: usize = 64;

/// The objects of all tenants. A tenant is whoever answers for programs: a service of the card, or a client of one.
#[derive(Debug, Default)]
pub struct Library {
    tenants: Mutex<BTreeMap<String, Tenant>>,
}

#[derive(Debug, Default)]
struct Tenant {
    objects: BTreeMap<String, Arc<Object>>,
}

impl Tenant {
    /// Whether an object of this name and so many instructions would be within the limits.
    fn has_room(
        &self,
        tenant: &str,
        name: &str,
        instructions: usize,
        limits: &Limits,
    ) -> Result<(), LoadRefusal> {
        let others = || self.objects.values().filter(|object| object.name != name);
        let tenant = tenant.to_owned();
        if others().count() >= limits.objects {
            return Err(LoadRefusal::TooMany { tenant, max: limits.objects });
        }
        let instructions = others().map(|object| object.instructions()).sum::<usize>() + instructions;
        if instructions > limits.instructions {
            return Err(LoadRefusal::TooLarge { tenant, instructions, max: limits.instructions });
        }
        Ok(())
    }
}

impl Library {
    /// Takes an object with programs for these hooks. One of the same name is replaced when the new one is ready.
    ///
    /// This verifies and compiles, and is for the [`crate::Workshop`]'s thread.
    ///
    /// # Errors
    ///
    /// When it is refused; everything is as it was then.
    pub fn load(
        &self,
        tenant: &str,
        name: &str,
        bytes: &[u8],
        hooks: &[&'static World],
        limits: &Limits,
    ) -> Result<Arc<Object>, LoadRefusal> {
        if !is_name(name) {
            return Err(LoadRefusal::Name(name.chars().take(NAME_LEN_MAX).collect()));
        }
        let has_room = |instructions| {
            let tenants = self.lock();
            tenants.get(tenant).unwrap_or(&Tenant::default()).has_room(tenant, name, instructions, limits)
        };
        let object = Arc::new(Object::prepare(name, bytes, hooks, limits, has_room)?);
        let mut tenants = self.lock();
        let found = tenants.entry(tenant.to_owned()).or_default();
        // Another one may have come meanwhile.
        found.has_room(tenant, name, object.instructions(), limits)?;
        for entry in object.entries.iter().filter(|entry| !entry.hook.is_called_by_name) {
            let mut others = found.objects.values().filter(|other| other.name != name);
            if let Some(other) = others.find(|other| other.entry(entry.hook).is_some()) {
                return Err(LoadRefusal::Taken { hook: entry.hook.name, by: other.name.clone() });
            }
        }
        if let Some(replaced) = found.objects.insert(name.to_owned(), Arc::clone(&object)) {
            replaced.retire();
        }
        Ok(object)
    }

    /// Takes an object out. Calls that are under way end as they would have.
    pub fn remove(&self, tenant: &str, name: &str) -> Option<Arc<Object>> {
        let mut tenants = self.lock();
        let found = tenants.get_mut(tenant)?;
        let object = found.objects.remove(name);
        if let Some(object) = &object {
            object.retire();
        }
        if found.objects.is_empty() {
            tenants.remove(tenant);
        }
        object
    }

    /// Takes out all that a tenant has.
    pub fn remove_tenant(&self, tenant: &str) {
        if let Some(found) = self.lock().remove(tenant) {
            found.objects.values().for_each(|object| object.retire());
        }
    }

    /// Who has objects.
    #[must_use]
    pub fn tenants(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// A tenant's object of this name.
    #[must_use]
    pub fn find(&self, tenant: &str, name: &str) -> Option<Arc<Object>> {
        self.lock().get(tenant)?.objects.get(name).cloned()
    }

    /// A tenant's objects, by name.
    #[must_use]
    pub fn of(&self, tenant: &str) -> Vec<Arc<Object>> {
        self.lock().get(tenant).map(|found| found.objects.values().cloned().collect()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Tenant>> {
        // No code of others runs under the lock, and every change of the map is one call: it is right even after a panic.
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names are files' names too.
fn is_name(name: &str) -> bool {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !name.is_empty() && name.len() <= NAME_LEN_MAX && !name.starts_with('.') && name.bytes().all(is_fine)
}
