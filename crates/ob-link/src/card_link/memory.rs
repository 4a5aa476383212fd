//! Memory that hosts are granted, and give back.

use super::*;

/// Memory files of one host.
const FILES_MAX: usize = 64;

impl CardLink {
    /// The memory of a closed group. A host that asked for the close is done with it; one that did not may still be
    /// reading, so the memory stays what it is, and on the host's account, until the attachment is over.
    pub(super) fn forget_group(
        &mut self,
        index: usize,
        group: GroupId,
        region_len: u64,
        reason: GroupClosedReason,
    ) {
        self.unregister(index, Some(group));
        let host = &mut self.hosts[index];
        let region = RegionId(group.0);
        if reason != GroupClosedReason::Asked && host.files.contains_key(&region) {
            host.lingering += region_len;
            return;
        }
        self.memory_used = self.memory_used.saturating_sub(region_len);
        if let Some(file) = host.files.remove(&region) {
            self.release(&[file]);
        }
    }

    /// Lets devices of the card's reactor reach a group's memory without looking up its pages each time. Everything works
    /// without: where the kernel has no room for it, or does not let this process pin so much.
    fn register(&mut self, index: usize, group: GroupId) {
        let host = &mut self.hosts[index];
        for arena in host.core.arenas(group).into_iter().flatten() {
            match self.reactor.register_arena(arena) {
                Ok(()) => host.arenas.push((group, arena)),
                Err(error) => tracing::debug!(group = group.0, "a group's memory is not registered: {error}"),
            }
        }
    }

    /// Undoes that for one group, or for all of them. Must come before the memory is gone: another arena could lie at
    /// the same addresses next, and devices would go on using the old pages.
    pub(super) fn unregister(&mut self, index: usize, group: Option<GroupId>) {
        let reactor = &self.reactor;
        self.hosts[index].arenas.retain(|(owner, arena)| {
            let keep = group.is_some_and(|group| group != *owner);
            if !keep {
                reactor.unregister_arena(*arena);
            }
            keep
        });
    }

    /// Gives memory back, at the expense of the time for making more.
    pub(super) fn release(&mut self, files: &[OwnedFd]) {
        let started = self.reactor.now();
        files.iter().for_each(memory_file::release);
        self.charge_time(started);
    }

    /// Opens the next group that some host wished for. To make its memory takes time that all hosts wait: so one at a
    /// time, by turns, and not before nine times as long has passed as the last took.
    pub(super) fn grant_wish(&mut self, now: Instant, service: &mut dyn CardService) -> bool {
        let hosts = &self.hosts;
        let wishes = |index: usize| {
            hosts.get(index).is_some_and(|host| host.over.is_none() && !host.wishes.is_empty())
        };
        let Some(index) = self.pace.choose(now, hosts.len(), wishes) else { return false };
        let Some(wish) = self.hosts[index].wishes.pop_front() else { return false };
        let started = self.reactor.now();
        if let Err(refusal) = self.open_group(index, wish, service) {
            self.hosts[index].core.refuse_group(wish.request, &refusal);
        }
        self.charge_time(started);
        self.write_frames(index, now);
        true
    }

    fn charge_time(&mut self, started: Instant) {
        self.pace.charge(started, self.reactor.now());
    }

    fn open_group(
        &mut self,
        index: usize,
        wish: Wish,
        service: &mut dyn CardService,
    ) -> Result<(), GroupRefusal> {
        let host = &mut self.hosts[index];
        let spec = host.core.plan_group(wish.sizes)?;
        let len = spec.region_len;
        let used = host.core.region_bytes() + host.lingering;
        for (used, limit, key) in [
            (used, self.config.host_memory_max, "memory_per_host"),
            (self.memory_used, self.config.memory_max, "memory"),
        ] {
            if used.saturating_add(len) > limit {
                let text = format!(
                    "{len} bytes asked for, {used} of {limit} are in use; raise [link] {key} on the card"
                );
                return Err(GroupRefusal::Budget(text));
            }
        }
        // Each has a descriptor, those that were closed and may still be read included.
        if host.files.len() >= FILES_MAX {
            let text =
                format!("{FILES_MAX} groups of this host are open or were closed for cause; attach afresh");
            return Err(GroupRefusal::Budget(text));
        }
        let mut region = None;
        if host.core.identity().kind != LinkKind::Tcp {
            let made = memory_file::create(len);
            let (file, memory) = made.map_err(|error| GroupRefusal::Budget(error.to_string()))?;
            host.files.insert(spec.region(), file);
            region = Some(memory);
        }
        let opened = host.core.open_group(wish.request, wish.service, &spec, region, service);
        match opened {
            Ok(group) => {
                self.memory_used += len;
                self.register(index, group);
            }
            Err(_) => drop(host.files.remove(&spec.region())),
        }
        opened.map(drop)
    }
}
