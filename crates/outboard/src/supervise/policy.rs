//! When to start, restart, stop and give up: the supervisor's decisions, without a process in sight.
//!
//! ```text
//!            ┌──────────── delay over ─────────────┐
//!            ▼                                     │
//!   Down ─ Start ─▶ Starting ─ Ready ─▶ Ready ─ Exited ─▶ Down (100 ms, doubling to 5 s; anew after 30 s of health)
//!                      │                                   │ 5 configuration errors in 30 s, or one that cannot pass
//!                      │                                   │ before the half has ever served
//!                      └───────────── Exited ──────────────┴──▶ GiveUp
//!   StopRequested: Terminate both ─ 10 s, or a second request ─▶ Kill ─ both gone ─▶ Finish
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::halves::Role;

/// How long a half may take to stop before it is killed.
pub(super) const GRACE: Duration = Duration::from_secs(10);

/// How many configuration errors within [`FAILURE_WINDOW`] end everything.
const FAILURES_MAX: usize = 5;

const FAILURE_WINDOW: Duration = Duration::from_secs(30);
const HEALTHY_AFTER: Duration = Duration::from_secs(30);
// Some tools signal a process and then its group: what comes twice at once was meant once.
const SAME_REQUEST: Duration = Duration::from_secs(1);
const DELAY_MIN: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Time passed.
    Tick,
    /// A half said that it serves.
    Ready(Role),
    /// A half's process ended, or could not be started.
    Exited { half: Role, cause: Cause },
    /// Somebody wants everything to stop.
    StopRequested,
}

/// Why a half ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// It crashed, was killed, or failed in a way that the next start may not.
    Crash,
    /// It said that a person must change something; but a port or a lock may also become free by itself.
    Configuration,
    /// It said that a person must change something, and nothing else helps.
    Lasting,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Start the half's process.
    Start(Role),
    /// Say that both halves serve, for the first time.
    AnnounceReady,
    /// Say that a half serves again.
    AnnounceBack(Role),
    /// Say that a half will be started again after a delay.
    AnnounceRestart(Role, Duration),
    /// Say that a half ended as it was told to.
    AnnounceStopped(Role),
    /// Say that everything is being stopped.
    AnnounceStopping,
    /// Ask the half's process to stop.
    Terminate(Role),
    /// End the half's process.
    Kill(Role),
    /// The half's configuration errors, so many of them, end everything; it is remembered as the reason.
    GiveUp(Role, usize),
    /// Nothing runs any more, and nothing will.
    Finish,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Down { start_at: Instant },
    Starting,
    Ready { since: Instant },
    Gone,
}

#[derive(Debug)]
struct Record {
    half: Role,
    state: State,
    delay: Duration,
    failures: VecDeque<Instant>,
    /// Whether it was ready at any time.
    served: bool,
}

/// Both halves, with what else belongs to them, and whether they are to run or to stop.
#[derive(Debug)]
pub(super) struct Supervision {
    records: Vec<Record>,
    announced: bool,
    stop: Option<Stop>,
}

#[derive(Clone, Copy, Debug)]
struct Stop {
    begun: Instant,
    kill_at: Instant,
    killed: bool,
}

impl Supervision {
    pub(super) fn new(now: Instant, roles: &[Role]) -> Self {
        let record = |half: &Role| Record {
            half: *half,
            state: State::Down { start_at: now },
            delay: DELAY_MIN,
            failures: VecDeque::new(),
            served: false,
        };
        Self { records: roles.iter().map(record).collect(), announced: false, stop: None }
    }

    /// Takes an event in, and says what to do about it, in order.
    pub(super) fn apply(&mut self, now: Instant, event: Event) -> Vec<Action> {
        match event {
            Event::Tick => self.tick(now),
            Event::Ready(half) => self.ready(now, half),
            Event::Exited { half, cause } => self.exited(now, half, cause),
            Event::StopRequested => self.stop_requested(now),
        }
    }

    /// When to send the next [`Event::Tick`], if time matters at all.
    pub(super) fn next_tick(&self) -> Option<Instant> {
        match self.stop {
            Some(stop) => (!stop.killed).then_some(stop.kill_at),
            None => self
                .records
                .iter()
                .filter_map(|record| match record.state {
                    State::Down { start_at } => Some(start_at),
                    State::Starting | State::Ready { .. } | State::Gone => None,
                })
                .min(),
        }
    }

    fn tick(&mut self, now: Instant) -> Vec<Action> {
        if let Some(stop) = self.stop {
            return if now >= stop.kill_at && !stop.killed { self.kill() } else { Vec::new() };
        }
        let mut actions = Vec::new();
        for record in &mut self.records {
            if matches!(record.state, State::Down { start_at } if start_at <= now) {
                record.state = State::Starting;
                actions.push(Action::Start(record.half));
            }
        }
        actions
    }

    fn ready(&mut self, now: Instant, half: Role) -> Vec<Action> {
        let Some(record) = self.record(half) else { return Vec::new() };
        if record.state != State::Starting {
            return Vec::new();
        }
        record.state = State::Ready { since: now };
        record.served = true;
        if self.stop.is_some() {
            return Vec::new();
        }
        if self.announced {
            return vec![Action::AnnounceBack(half)];
        }
        self.announced = self.records.iter().all(|record| matches!(record.state, State::Ready { .. }));
        if self.announced { vec![Action::AnnounceReady] } else { Vec::new() }
    }

    fn exited(&mut self, now: Instant, half: Role, cause: Cause) -> Vec<Action> {
        let is_stopping = self.stop.is_some();
        let Some(record) = self.record(half) else { return Vec::new() };
        if is_stopping {
            record.state = State::Gone;
            let mut actions = vec![Action::AnnounceStopped(half)];
            actions.extend(self.finish_if_gone());
            return actions;
        }
        if matches!(record.state, State::Ready { since } if now - since >= HEALTHY_AFTER) {
            record.delay = DELAY_MIN;
        }
        if cause != Cause::Crash {
            record.failures.push_back(now);
        }
        record.failures.retain(|failure| now - *failure <= FAILURE_WINDOW);
        let failures = record.failures.len();
        // Somebody is watching the first start, and had better know at once.
        let is_hopeless = match cause {
            Cause::Crash => false,
            Cause::Configuration => failures >= FAILURES_MAX,
            Cause::Lasting => failures >= FAILURES_MAX || !record.served,
        };
        if is_hopeless {
            record.state = State::Gone;
            let mut actions = vec![Action::GiveUp(half, failures)];
            actions.extend(self.begin_stop(now));
            return actions;
        }
        let delay = record.delay;
        record.state = State::Down { start_at: now + delay };
        record.delay = (delay * 2).min(DELAY_MAX);
        vec![Action::AnnounceRestart(half, delay)]
    }

    fn stop_requested(&mut self, now: Instant) -> Vec<Action> {
        match self.stop {
            None => {
                let mut actions = vec![Action::AnnounceStopping];
                actions.extend(self.begin_stop(now));
                actions
            }
            // Whoever asks twice does not want to wait.
            Some(stop) if !stop.killed && now - stop.begun >= SAME_REQUEST => self.kill(),
            Some(_) => Vec::new(),
        }
    }

    fn begin_stop(&mut self, now: Instant) -> Vec<Action> {
        self.stop = Some(Stop { begun: now, kill_at: now + GRACE, killed: false });
        let mut actions = Vec::new();
        for record in &mut self.records {
            match record.state {
                State::Starting | State::Ready { .. } => actions.push(Action::Terminate(record.half)),
                State::Down { .. } | State::Gone => record.state = State::Gone,
            }
        }
        actions.extend(self.finish_if_gone());
        actions
    }

    fn kill(&mut self) -> Vec<Action> {
        if let Some(stop) = &mut self.stop {
            stop.killed = true;
        }
        let running = self.records.iter().filter(|record| record.state != State::Gone);
        running.map(|record| Action::Kill(record.half)).collect()
    }

    fn finish_if_gone(&self) -> Option<Action> {
        self.records.iter().all(|record| record.state == State::Gone).then_some(Action::Finish)
    }

    fn record(&mut self, half: Role) -> Option<&mut Record> {
        self.records.iter_mut().find(|record| record.half == half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALVES: [Role; 2] = [Role::Card, Role::Host];
    const BOTH_START: [Action; 2] = [Action::Start(Role::Card), Action::Start(Role::Host)];

    fn crash(half: Role) -> Event {
        Event::Exited { half, cause: Cause::Crash }
    }

    fn misconfigured(half: Role) -> Event {
        Event::Exited { half, cause: Cause::Configuration }
    }

    fn running(now: Instant) -> Supervision {
        let mut supervision = Supervision::new(now, &HALVES);
        assert_eq!(supervision.next_tick(), Some(now));
        assert_eq!(supervision.apply(now, Event::Tick), BOTH_START);
        assert_eq!(supervision.apply(now, Event::Ready(Role::Host)), []);
        assert_eq!(supervision.apply(now, Event::Ready(Role::Card)), [Action::AnnounceReady]);
        assert_eq!(supervision.next_tick(), None);
        supervision
    }

    #[test]
    fn a_crash_leads_to_a_restart_after_a_growing_delay() {
        let mut now = Instant::now();
        let mut supervision = running(now);
        for milliseconds in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let delay = Duration::from_millis(milliseconds);
            let actions = supervision.apply(now, crash(Role::Card));
            assert_eq!(actions, [Action::AnnounceRestart(Role::Card, delay)]);
            assert_eq!(supervision.next_tick(), Some(now + delay));
            assert_eq!(supervision.apply(now + delay - Duration::from_nanos(1), Event::Tick), []);
            now += delay;
            assert_eq!(supervision.apply(now, Event::Tick), [Action::Start(Role::Card)]);
            let actions = supervision.apply(now, Event::Ready(Role::Card));
            assert_eq!(actions, [Action::AnnounceBack(Role::Card)]);
        }
        now += HEALTHY_AFTER;
        let actions = supervision.apply(now, crash(Role::Card));
        assert_eq!(actions, [Action::AnnounceRestart(Role::Card, DELAY_MIN)], "health resets the delay");
    }

    #[test]
    fn configuration_errors_in_a_row_end_everything() {
        let mut now = Instant::now();
        let mut supervision = running(now);
        for _ in 1..FAILURES_MAX {
            let actions = supervision.apply(now, misconfigured(Role::Card));
            assert!(matches!(actions[..], [Action::AnnounceRestart(Role::Card, _)]), "{actions:?}");
            now = supervision.next_tick().unwrap();
            assert_eq!(supervision.apply(now, Event::Tick), [Action::Start(Role::Card)]);
        }
        let actions = supervision.apply(now, misconfigured(Role::Card));
        assert_eq!(actions, [Action::GiveUp(Role::Card, FAILURES_MAX), Action::Terminate(Role::Host)]);
        let actions = supervision.apply(now, crash(Role::Host));
        assert_eq!(actions, [Action::AnnounceStopped(Role::Host), Action::Finish]);
    }

    #[test]
    fn what_cannot_pass_ends_the_first_start_at_once_and_no_later_one() {
        let now = Instant::now();
        let hopeless = Event::Exited { half: Role::Card, cause: Cause::Lasting };
        let mut supervision = Supervision::new(now, &HALVES);
        assert_eq!(supervision.apply(now, Event::Tick), BOTH_START);
        let actions = supervision.apply(now, hopeless);
        assert_eq!(actions, [Action::GiveUp(Role::Card, 1), Action::Terminate(Role::Host)]);

        let actions = running(now).apply(now, hopeless);
        assert_eq!(actions, [Action::AnnounceRestart(Role::Card, DELAY_MIN)]);
    }

    #[test]
    fn old_configuration_errors_are_forgiven_and_crashes_do_not_count() {
        let mut now = Instant::now();
        let mut supervision = running(now);
        for round in 0..3 * FAILURES_MAX {
            let event = if round % 2 == 0 { misconfigured(Role::Host) } else { crash(Role::Host) };
            let actions = supervision.apply(now, event);
            assert!(matches!(actions[..], [Action::AnnounceRestart(Role::Host, _)]), "{actions:?}");
            now = supervision.next_tick().unwrap();
            assert_eq!(supervision.apply(now, Event::Tick), [Action::Start(Role::Host)]);
            now += FAILURE_WINDOW / 4;
        }
    }

    #[test]
    fn a_stop_terminates_then_kills_then_finishes() {
        let now = Instant::now();
        let mut supervision = running(now);
        let terminate =
            [Action::AnnounceStopping, Action::Terminate(Role::Card), Action::Terminate(Role::Host)];
        assert_eq!(supervision.apply(now, Event::StopRequested), terminate);
        assert_eq!(supervision.apply(now, crash(Role::Card)), [Action::AnnounceStopped(Role::Card)]);
        assert_eq!(supervision.next_tick(), Some(now + GRACE));
        assert_eq!(supervision.apply(now + GRACE, Event::Tick), [Action::Kill(Role::Host)]);
        assert_eq!(supervision.next_tick(), None);
        let end = [Action::AnnounceStopped(Role::Host), Action::Finish];
        assert_eq!(supervision.apply(now + GRACE, crash(Role::Host)), end);
    }

    #[test]
    fn a_second_request_does_not_wait() {
        let now = Instant::now();
        let mut supervision = running(now);
        supervision.apply(now, Event::StopRequested);
        assert_eq!(supervision.apply(now, Event::StopRequested), [], "the same request, delivered twice");
        let later = now + SAME_REQUEST;
        let kill = [Action::Kill(Role::Card), Action::Kill(Role::Host)];
        assert_eq!(supervision.apply(later, Event::StopRequested), kill);
        assert_eq!(supervision.apply(later, Event::StopRequested), []);
    }

    #[test]
    fn a_stop_before_the_start_or_between_restarts_starts_nothing() {
        let now = Instant::now();
        let mut supervision = Supervision::new(now, &HALVES);
        let end = [Action::AnnounceStopping, Action::Finish];
        assert_eq!(supervision.apply(now, Event::StopRequested), end);
        assert_eq!(supervision.apply(now + GRACE, Event::Tick), []);

        let mut supervision = running(now);
        supervision.apply(now, crash(Role::Card));
        let actions = supervision.apply(now, Event::StopRequested);
        assert_eq!(actions, [Action::AnnounceStopping, Action::Terminate(Role::Host)]);
        assert_eq!(supervision.apply(now + DELAY_MIN, Event::Tick), []);
        // A half that became ready while it was being stopped is not announced.
        assert_eq!(supervision.apply(now, Event::Ready(Role::Host)), []);
    }

    #[test]
    fn chunk_servers_are_started_announced_and_stopped_with_the_halves() {
        let now = Instant::now();
        let roles = [Role::Card, Role::Host, Role::ChunkServer(1), Role::ChunkServer(2)];
        let mut supervision = Supervision::new(now, &roles);
        assert_eq!(supervision.apply(now, Event::Tick), roles.map(Action::Start));
        for role in [Role::ChunkServer(2), Role::Card, Role::Host] {
            assert_eq!(supervision.apply(now, Event::Ready(role)), []);
        }
        assert_eq!(supervision.apply(now, Event::Ready(Role::ChunkServer(1))), [Action::AnnounceReady]);
        let actions = supervision.apply(now, crash(Role::ChunkServer(2)));
        assert_eq!(actions, [Action::AnnounceRestart(Role::ChunkServer(2), DELAY_MIN)]);
        let actions = supervision.apply(now, Event::StopRequested);
        let running = [Role::Card, Role::Host, Role::ChunkServer(1)].map(Action::Terminate);
        assert_eq!(actions[0], Action::AnnounceStopping);
        assert_eq!(actions[1..], running);
        for role in [Role::ChunkServer(1), Role::Card] {
            assert_eq!(supervision.apply(now, crash(role)), [Action::AnnounceStopped(role)]);
        }
        let end = [Action::AnnounceStopped(Role::Host), Action::Finish];
        assert_eq!(supervision.apply(now, crash(Role::Host)), end);
    }
}
