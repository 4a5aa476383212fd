//! Several services behind one link: each group goes to the service that it was opened for.
//!
//! ```text
//!                     ┌─▶ service 1 (probe)
//!   CardLink ─▶ Router┼─▶ service 2 (files)
//!                     └─▶ service 3 (the key-value store's stream)
//! ```

use std::collections::BTreeMap;

use ob_core::{AttachmentId, Instant};
use ob_ring::{Batch, BulkDone, CardSender, CardService, GroupKey};

/// The services of a card.
pub trait Services {
    /// The services' numbers and names, each at its index.
    const DIRECTORY: &'static [(u32, &'static str)];

    /// The service at this index, which is one of the directory's.
    fn service(&self, index: usize) -> &dyn CardService;

    /// The same, to be changed.
    fn service_mut(&mut self, index: usize) -> &mut dyn CardService;
}

/// Sends what comes from the link to the service that it is for.
#[derive(Debug)]
pub struct Router<S> {
    services: S,
    routes: BTreeMap<GroupKey, usize>,
    draining: bool,
}

impl<S: Services> Router<S> {
    /// A router in front of these services.
    pub fn new(services: S) -> Self {
        Self { services, routes: BTreeMap::new(), draining: false }
    }

    /// The services.
    pub fn services(&self) -> &S {
        &self.services
    }

    /// Ends the routing, and gives the services back.
    pub fn into_services(self) -> S {
        self.services
    }

    /// From now on requests that arrive are dropped unread, and no group is opened. What the services have taken goes
    /// on. Who sent what was dropped hears that the card is gone, and may send it to the card's next life.
    pub fn drain(&mut self) {
        self.draining = true;
    }
}

impl<S: Services> CardService for Router<S> {
    fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String> {
        if self.draining {
            return Err("this card is shutting down".to_owned());
        }
        let Some(index) = S::DIRECTORY.iter().position(|(number, _)| *number == service) else {
            let known: Vec<String> =
                S::DIRECTORY.iter().map(|(number, name)| format!("{number} ({name})")).collect();
            return Err(format!("this card has no service {service}; it has {}", known.join(", ")));
        };
        self.services.service_mut(index).open(key, service)?;
        self.routes.insert(key, index);
        Ok(())
    }

    fn requests(&mut self, key: GroupKey, batch: Batch, responses: &mut CardSender) {
        if let Some(index) = self.routes.get(&key)
            && !self.draining
        {
            self.services.service_mut(*index).requests(key, batch, responses);
        }
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        if let Some(index) = self.routes.get(&key) {
            self.services.service_mut(*index).responses(key, responses);
        }
    }

    fn transferred(&mut self, key: GroupKey, done: BulkDone, responses: &mut CardSender) {
        if let Some(index) = self.routes.get(&key) {
            self.services.service_mut(*index).transferred(key, done, responses);
        }
    }

    /// As with messages of the channel, each service knows its own.
    fn suspended(&mut self, attachment: AttachmentId, is_suspended: bool) {
        for index in 0..S::DIRECTORY.len() {
            self.services.service_mut(index).suspended(attachment, is_suspended);
        }
    }

    fn closed(&mut self, key: GroupKey) {
        if let Some(index) = self.routes.remove(&key) {
            self.services.service_mut(index).closed(key);
        }
    }

    fn poll(&mut self, now: Instant) -> bool {
        let mut moved = false;
        for index in 0..S::DIRECTORY.len() {
            moved |= self.services.service_mut(index).poll(now);
        }
        moved
    }

    fn next_due(&self) -> Option<Instant> {
        (0..S::DIRECTORY.len()).filter_map(|index| self.services.service(index).next_due()).min()
    }

    fn waiting(&self, groups: &mut Vec<GroupKey>) {
        for index in 0..S::DIRECTORY.len() {
            self.services.service(index).waiting(groups);
        }
    }

    /// A message of the channel belongs to an attachment, not to a group: each service knows its own.
    fn channel(&mut self, attachment: AttachmentId, message: &[u8]) {
        for index in 0..S::DIRECTORY.len() {
            self.services.service_mut(index).channel(attachment, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use ob_core::{GroupId, RegionId, Token};
    use ob_memory::Pool;
    use ob_ring::Bulk;
    use ob_wire_link::ring::RingSpec;

    use super::*;

    #[derive(Debug, Default)]
    struct Recorder {
        opened: Vec<GroupKey>,
        closed: Vec<GroupKey>,
        transferred: Vec<(GroupKey, u64)>,
        heard: usize,
        suspended: Vec<AttachmentId>,
        polled: usize,
        due: Option<Instant>,
        waits: bool,
    }

    impl CardService for Recorder {
        fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String> {
            if key.group == GroupId(99) {
                return Err(format!("{service} does not like it"));
            }
            self.opened.push(key);
            Ok(())
        }

        fn requests(&mut self, _: GroupKey, _: Batch, _: &mut CardSender) {}

        fn responses(&mut self, _: GroupKey, _: &mut CardSender) {}

        fn transferred(&mut self, key: GroupKey, done: BulkDone, _: &mut CardSender) {
            self.transferred.push((key, done.tag));
        }

        fn suspended(&mut self, attachment: AttachmentId, is_suspended: bool) {
            self.suspended.retain(|other| *other != attachment);
            self.suspended.extend(is_suspended.then_some(attachment));
        }

        fn closed(&mut self, key: GroupKey) {
            self.closed.push(key);
        }

        fn poll(&mut self, _: Instant) -> bool {
            self.polled += 1;
            self.due.is_some()
        }

        fn next_due(&self) -> Option<Instant> {
            self.due
        }

        fn waiting(&self, groups: &mut Vec<GroupKey>) {
            groups.extend(self.opened.iter().filter(|_| self.waits));
        }

        fn channel(&mut self, _: AttachmentId, _: &[u8]) {
            self.heard += 1;
        }
    }

    #[derive(Debug, Default)]
    struct Two([Recorder; 2]);

    impl Services for Two {
        const DIRECTORY: &'static [(u32, &'static str)] = &[(7, "seven"), (3, "three")];

        fn service(&self, index: usize) -> &dyn CardService {
            &self.0[index]
        }

        fn service_mut(&mut self, index: usize) -> &mut dyn CardService {
            &mut self.0[index]
        }
    }

    fn key(group: u32) -> GroupKey {
        GroupKey { attachment: AttachmentId(1), group: GroupId(group) }
    }

    #[test]
    fn groups_go_to_their_services_and_nobody_elses() {
        let mut router = Router::new(Two::default());
        router.open(key(1), 3).unwrap();
        router.open(key(2), 7).unwrap();
        assert_eq!(
            router.open(key(3), 5).unwrap_err(),
            "this card has no service 5; it has 7 (seven), 3 (three)"
        );
        assert_eq!(router.open(key(99), 3).unwrap_err(), "3 does not like it");
        for closed in [1, 3, 99, 1] {
            router.closed(key(closed));
        }
        let Two([seven, three]) = router.services();
        assert_eq!((&seven.opened, &seven.closed), (&vec![key(2)], &vec![]));
        assert_eq!((&three.opened, &three.closed), (&vec![key(1)], &vec![key(1)]));
    }

    #[test]
    fn transfers_that_are_over_are_told_to_those_that_asked_for_them_while_the_card_drains_too() {
        let (_, ring, _) = RingSpec::group(RegionId(1), 4096, 4096, 4096).unwrap();
        let mut responses = CardSender::new(ring, Token(0));
        let done = |tag| {
            let into = Pool::new(8, 1).take().unwrap();
            BulkDone { tag, bulk: Bulk::Read { at: 0, into }, result: Ok(()) }
        };
        let mut router = Router::new(Two::default());
        router.open(key(1), 3).unwrap();
        router.open(key(2), 7).unwrap();
        router.transferred(key(1), done(11), &mut responses);
        router.drain();
        router.transferred(key(2), done(12), &mut responses);
        router.closed(key(1));
        router.transferred(key(1), done(13), &mut responses);
        let told = router.services().0.each_ref().map(|service| &service.transferred[..]);
        assert_eq!(told, [&[(key(2), 12)][..], &[(key(1), 11)][..]]);
    }

    #[test]
    fn all_are_polled_and_hear_the_channel_and_the_earliest_is_due() {
        let mut router = Router::new(Two::default());
        let now = Instant::from_nanoseconds(1);
        assert!(!router.poll(now));
        assert_eq!(router.next_due(), None);
        router.services.0[1].due = Some(Instant::from_nanoseconds(9));
        assert!(router.poll(now));
        assert_eq!(router.next_due(), Some(Instant::from_nanoseconds(9)));
        router.services.0[0].due = Some(Instant::from_nanoseconds(5));
        assert_eq!(router.next_due(), Some(Instant::from_nanoseconds(5)));
        router.channel(AttachmentId(1), b"hello");
        assert_eq!(router.services().0.each_ref().map(|service| service.heard), [1, 1]);
    }

    #[test]
    fn all_hear_of_hosts_of_which_nothing_may_begin() {
        let mut router = Router::new(Two::default());
        router.suspended(AttachmentId(1), true);
        router.suspended(AttachmentId(2), true);
        router.suspended(AttachmentId(1), false);
        for service in &router.services().0 {
            assert_eq!(service.suspended, [AttachmentId(2)]);
        }
    }

    #[test]
    fn a_service_that_always_has_work_keeps_no_other_from_its_turn() {
        for busy in [0, 1] {
            let mut router = Router::new(Two::default());
            router.services.0[busy].due = Some(Instant::from_nanoseconds(1));
            for turn in 1..=100 {
                assert!(router.poll(Instant::from_nanoseconds(turn)));
            }
            assert_eq!(router.services().0.each_ref().map(|service| service.polled), [100, 100]);
        }
    }

    #[test]
    fn no_service_that_has_something_for_its_hosts_hides_behind_another() {
        let mut router = Router::new(Two::default());
        router.open(key(1), 3).unwrap();
        router.open(key(2), 7).unwrap();
        let waiting = |router: &Router<Two>| {
            let mut groups = Vec::new();
            router.waiting(&mut groups);
            groups
        };
        assert_eq!(waiting(&router), []);
        router.services.0[1].waits = true;
        assert_eq!(waiting(&router), [key(1)]);
        router.services.0[0].waits = true;
        assert_eq!(waiting(&router), [key(2), key(1)]);
    }

    #[test]
    fn a_card_that_drains_opens_no_group() {
        let mut router = Router::new(Two::default());
        router.drain();
        assert_eq!(router.open(key(1), 3).unwrap_err(), "this card is shutting down");
    }
}
