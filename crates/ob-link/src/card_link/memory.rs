//! Memory that hosts are granted, and give back.

use super::*;

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
        let host = &mut self.hosts[index];
        if reason != GroupClosedReason::Asked {
            host.lingering += region_len;
            return;
        }
        self.memory_used = self.memory_used.saturating_sub(region_len);
        if let Some(file) = host.files.remove(&RegionId(group.0)) {
            let started = self.reactor.now();
            memory_file::release(&file);
            host.charge_time(started, self.reactor.now());
        }
    }

    /// Opens the next group that a host wished for. To make its memory takes time that the other hosts wait: so one
    /// at a time, and not before nine times as long has passed since the last.
    pub(super) fn grant_wish(&mut self, index: usize, now: Instant, service: &mut dyn CardService) -> bool {
        let host = &mut self.hosts[index];
        if now < host.next_grant || host.over.is_some() {
            return false;
        }
        let Some(wish) = host.wishes.pop_front() else { return false };
        let started = self.reactor.now();
        if let Err(refusal) = self.open_group(index, wish, service) {
            self.hosts[index].core.refuse_group(wish.request, &refusal);
        }
        self.hosts[index].charge_time(started, self.reactor.now());
        true
    }

    pub(super) fn open_group(
        &mut self,
        index: usize,
        wish: Wish,
        service: &mut dyn CardService,
    ) -> Result<(), GroupRefusal> {
        let host = &mut self.hosts[index];
        let plan = host.core.plan_group(wish.request_capacity, wish.response_capacity)?;
        let (spec, _, len) = plan;
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
        let mut region = None;
        if host.core.identity().kind != LinkKind::Tcp {
            let made = memory_file::create(len);
            let (file, memory) = made.map_err(|error| GroupRefusal::Budget(error.to_string()))?;
            host.files.insert(spec.region, file);
            region = Some(memory);
        }
        let opened = host.core.open_group(wish.request, wish.service, plan, region, service);
        match opened {
            Ok(_) => self.memory_used += len,
            Err(_) => drop(host.files.remove(&spec.region)),
        }
        opened.map(drop)
    }
}
