//! The one owner of a tier's state: told what happened, asked what to do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ob_core::{Instant, PoolId, Revision, SegmentName, TierId, VolumeId};
use ob_format::volume::metadata::Volume;
use ob_split::wire::{Handle, HeaderEntry};
use ob_wire_nvme::Status;

use super::admin::{AdminRequest, Jobs, Ticket};
use super::areas::Areas;
use super::checkpoint::Checkpoint;
use super::command::{Command, Posted};
use super::compact::{Compaction, Mover};
use super::cutting::Cuts;
use super::fates::Keeper;
use super::handing::Unowned;
use super::history::History;
use super::leaving::Leaving;
use super::mend::Mending;
use super::overlaps::Overlaps;
use super::plant::{Bug, is_planted};
use super::ports::{MAIN, Ports};
use super::rebuilding::Rebuilding;
use super::removing::Removals;
use super::repair::Repair;
use super::segments::SegmentCore;
use super::servers::{Call, ServerCore};
use super::slots::ChunkPlace;
use super::status::{Counts, Trouble};
use super::store::{Phase, RETRY, Store};
use super::volumes::Watch;
use super::{PortNumber, TierAction, TierConfig, TierConfigError, TierError, TierEvent};

/// A tier hears of something more often than that, unless its machine sleeps.
const ASLEEP: Duration = Duration::from_secs(3);

/// What a command waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// The lease.
    Unleased,
    /// A slot.
    Slotless,
    /// A chunk server.
    Memberless,
    /// Room for its payload of so many bytes, at its port.
    Payloads { len: u64 },
    /// A segment, or a chunk of it.
    Segment(SegmentName),
}

/// A volume, as the store has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServedVolume {
    pub(super) volume: Volume,
    pub(super) revision: Revision,
}

/// The tier's decisions. Told what happened, asked what to do; all time is the lease clock's.
#[derive(Debug)]
pub struct TierCore {
    pub(super) config: TierConfig,
    /// When the last event was.
    pub(super) now: Instant,
    pub(super) actions: VecDeque<TierAction>,
    pub(super) ports: Ports,
    /// The pool, as the store has said.
    pub(super) pool: Option<PoolId>,
    /// Which tier this is, as the card has said: always the same.
    pub(super) tier: Option<TierId>,
    pub(super) store: Store,
    pub(super) volumes: BTreeMap<VolumeId, ServedVolume>,
    pub(super) watch: Watch,
    pub(super) removals: Removals,
    pub(super) cuts: Cuts,
    /// What administrators have asked.
    pub(super) jobs: Jobs,
    /// And before it was known which volumes there are.
    pub(super) early_jobs: VecDeque<(Ticket, AdminRequest)>,
    /// By NSID.
    pub(super) namespaces: BTreeMap<u32, VolumeId>,
    pub(super) segments: BTreeMap<SegmentName, SegmentCore>,
    pub(super) servers: Vec<ServerCore>,
    /// By handle.
    pub(super) calls: BTreeMap<u32, Call>,
    pub(super) last_call: u32,
    /// Attempts to seal a chunk, to repair one, or to mend a record.
    pub(super) last_attempt: u64,
    /// Since when there are fewer servers than chunks should have members.
    pub(super) short_since: Option<Instant>,
    /// Chunks that are to be sealed.
    pub(super) closing: BTreeSet<ChunkPlace>,
    /// By their numbers.
    pub(super) keepers: BTreeMap<u32, Keeper>,
    pub(super) last_keeper: u32,
    /// The one replica that is made anew.
    pub(super) repair: Option<Repair>,
    /// When it is looked for one that is to be made anew.
    pub(super) repair_at: Option<Instant>,
    /// Chunks of which none could be made, and until when that is not tried again.
    pub(super) repairs_left: BTreeMap<ChunkPlace, Instant>,
    pub(super) rebuilding: Rebuilding,
    /// Records that have rotted somewhere.
    pub(super) mending: Mending,
    pub(super) areas: Areas,
    /// When it is looked for what space can be had, and for what servers have that nobody names.
    pub(super) space_at: Option<Instant>,
    pub(super) sweep_at: Option<Instant>,
    /// Counts what was taken since servers told what they have.
    pub(super) sweep_round: u64,
    /// One at a time.
    pub(super) checkpoints: BTreeMap<SegmentName, Checkpoint>,
    pub(super) checkpoint_again: Option<Instant>,
    pub(super) compaction: Option<Compaction>,
    /// When the next move may begin, by the rate.
    pub(super) compact_at: Option<Instant>,
    /// Chunks that could not be emptied, and until when that is not tried again.
    pub(super) left_alone: BTreeMap<ChunkPlace, Instant>,
    /// By the handles that keep their blocks.
    pub(super) movers: BTreeMap<u32, Mover>,
    /// Those whose blocks are free.
    pub(super) moves_ready: VecDeque<Handle>,
    /// By their numbers here: handles are each port's own.
    pub(super) commands: BTreeMap<u32, Command>,
    pub(super) last_command: u32,
    pub(super) overlaps: BTreeMap<VolumeId, Overlaps>,
    /// Commands to look at.
    pub(super) ready: VecDeque<Handle>,
    /// Commands that wait for the lease.
    pub(super) unleased: VecDeque<Handle>,
    /// Commands that wait for a slot.
    pub(super) slotless: VecDeque<Handle>,
    /// Commands that wait for a chunk server.
    pub(super) memberless: VecDeque<Handle>,
    /// Whether it is known which volumes there are.
    pub(super) is_listed: bool,
    /// Headers that came before that, and until when they wait.
    pub(super) early: VecDeque<(Instant, PortNumber, HeaderEntry)>,
    /// Commands that are looked at again at some time.
    later: VecDeque<(Instant, Handle)>,
    /// Until when commands wait at most, and their handles.
    pub(super) holds: BTreeSet<(Instant, u32)>,
    pub(super) index_reserved: u64,
    /// Segments that are handed over, and until when that is tried.
    pub(super) handing: BTreeMap<SegmentName, Instant>,
    pub(super) unowned: Unowned,
    pub(super) leaving: Leaving,
    pub(super) history: History,
    /// The most that the replay of one of its segments takes beside that.
    pub(super) replay_most: u64,
    pub(super) counts: Counts,
    /// When the last event was, and how long was slept before: of a clock that a bug has stand still.
    slept: (Instant, Duration),
}

impl TierCore {
    /// A tier that knows nothing but its configuration.
    ///
    /// # Errors
    ///
    /// When there can be no such tier.
    pub fn new(config: TierConfig) -> Result<Self, TierConfigError> {
        config.check()?;
        Ok(Self {
            now: Instant::default(),
            actions: VecDeque::new(),
            ports: Ports::new(),
            pool: None,
            tier: None,
            store: Store::new(),
            volumes: BTreeMap::new(),
            watch: Watch::default(),
            removals: Removals::default(),
            cuts: Cuts::default(),
            jobs: Jobs::new(),
            early_jobs: VecDeque::new(),
            namespaces: BTreeMap::new(),
            segments: BTreeMap::new(),
            servers: config.servers.iter().map(|address| ServerCore::new(*address)).collect(),
            calls: BTreeMap::new(),
            last_call: 0,
            last_attempt: 0,
            short_since: None,
            closing: BTreeSet::new(),
            keepers: BTreeMap::new(),
            last_keeper: 0,
            repair: None,
            repair_at: None,
            repairs_left: BTreeMap::new(),
            rebuilding: Rebuilding::default(),
            mending: Mending::default(),
            areas: Areas::new(config.card_area, config.host_area),
            space_at: None,
            sweep_at: None,
            sweep_round: 0,
            checkpoints: BTreeMap::new(),
            checkpoint_again: None,
            compaction: None,
            compact_at: None,
            left_alone: BTreeMap::new(),
            movers: BTreeMap::new(),
            moves_ready: VecDeque::new(),
            commands: BTreeMap::new(),
            last_command: 0,
            overlaps: BTreeMap::new(),
            ready: VecDeque::new(),
            unleased: VecDeque::new(),
            slotless: VecDeque::new(),
            memberless: VecDeque::new(),
            is_listed: false,
            early: VecDeque::new(),
            later: VecDeque::new(),
            holds: BTreeSet::new(),
            index_reserved: 0,
            handing: BTreeMap::new(),
            unowned: Unowned::default(),
            leaving: Leaving::default(),
            history: History::default(),
            replay_most: 0,
            counts: Counts::default(),
            slept: (Instant::default(), Duration::ZERO),
            config,
        })
    }

    /// Takes note of what happened. `now` was read after the event was taken out of a ring (L10).
    ///
    /// # Errors
    ///
    /// When it cannot have happened: then the port is to be closed, and [`TierEvent::PortClosed`] to be told.
    pub fn handle(&mut self, now: Instant, event: TierEvent<'_>) -> Result<(), TierError> {
        self.now = self.now.max(self.judged(now, &event));
        let now = self.now;
        let result = self.take(now, event);
        while let Some(keeper) = self.moves_ready.pop_front() {
            if self.is_cutter(keeper) {
                self.cut_off(now, keeper);
            } else {
                self.post_move(now, keeper);
            }
        }
        self.run(now);
        if !self.handing.is_empty() {
            self.continue_handing(now);
            self.run(now);
        }
        self.continue_leaving(now);
        result
    }

    /// By which time an event is judged: the one that was read, but for bugs.
    fn judged(&mut self, now: Instant, event: &TierEvent<'_>) -> Instant {
        if is_planted(Bug::ClockReadEarly) && matches!(event, TierEvent::Header { .. }) {
            return self.now;
        }
        if !is_planted(Bug::ClockSleeps) {
            return now;
        }
        // Nothing happens while a machine sleeps.
        let (last, slept) = self.slept;
        let passed = now.since(last);
        let slept = if last > Instant::default() && passed > ASLEEP { slept + passed } else { slept };
        self.slept = (now, slept);
        Instant::from_nanoseconds(now.nanoseconds().saturating_sub(slept.as_nanos() as u64))
    }

    fn take(&mut self, now: Instant, event: TierEvent<'_>) -> Result<(), TierError> {
        match event {
            TierEvent::PortOpened { port, welcome } => self.port_opened(now, port, welcome),
            TierEvent::PortClosed { port } => {
                self.check_port(port)?;
                if !self.is_lost_alone(port) {
                    self.port_closed(now);
                }
                Ok(())
            }
            TierEvent::Header { port, header } => {
                self.check_port(port)?;
                self.header(now, port, &header)
            }
            TierEvent::Done { port, completion, reply } => {
                self.check_port(port)?;
                self.done(now, port, &completion, reply)
            }
            TierEvent::Channel { port, is } => {
                self.check_port(port)?;
                if port == MAIN { self.channel_is(now, is) } else { self.link_is(now, port, is) }
            }
            TierEvent::Broken { port, broken } => {
                self.check_port(port)?;
                self.writer_stopped(now, port, &broken)
            }
            TierEvent::Noted { port, number } => {
                self.check_port(port)?;
                self.gate_noted(now, number);
                Ok(())
            }
            TierEvent::Metadata(completion) => self.answered(now, completion),
            TierEvent::Administer { ticket, request } => {
                self.administer(ticket, request);
                Ok(())
            }
            TierEvent::Leave => {
                self.leave(now);
                Ok(())
            }
            TierEvent::Tick => {
                self.due(now);
                Ok(())
            }
        }
    }

    /// What is to be done next, if anything. All of it is to be done, in this order.
    pub fn next_action(&mut self) -> Option<TierAction> {
        self.actions.pop_front()
    }

    /// Commands that it has, of all ports.
    #[must_use]
    pub fn commands(&self) -> usize {
        self.commands.len() + self.early.len()
    }

    /// When it is to be told [`TierEvent::Tick`], if nothing else happens before.
    #[must_use]
    pub fn next_due(&self) -> Option<Instant> {
        let early = self.early.front().map(|(due, ..)| *due);
        let held = self.holds.first().map(|(due, _)| *due).into_iter().chain(early).min();
        let later = self.later.front().map(|(due, _)| *due);
        let port = self.is_connected().then(|| self.servers_next_due()).flatten();
        let openings = self.is_connected().then(|| self.openings_next_due()).flatten();
        let seals = self.is_connected().then(|| self.seals_next_due()).flatten();
        let repair = self.is_connected().then(|| self.repair_next_due()).flatten();
        let segments = self.segments_next_due();
        let takings = self.is_connected().then(|| self.takings_next_due()).flatten();
        let space = self.is_connected().then(|| self.space_next_due()).flatten();
        let compaction = self.is_connected().then(|| self.compaction_next_due()).flatten();
        let others = openings.into_iter().chain(seals).chain(repair).chain(segments).chain(takings);
        let others = others.chain(space).chain(compaction).chain(self.handing_next_due());
        let others = others.chain(self.links_next_due());
        let mends = self.is_connected().then(|| self.mends_next_due()).flatten();
        let others = others.chain(mends).chain(self.leaving_next_due());
        self.store.next_due().into_iter().chain(held).chain(later).chain(port).chain(others).min()
    }

    /// The gate is closed, and all ports with it: nothing that was under way is heard of again. Its commands are the card's.
    fn port_closed(&mut self, now: Instant) {
        self.ports.clear();
        self.end_gate(now);
        self.forget_channels();
        self.commands.clear();
        self.keepers.clear();
        self.overlaps.clear();
        self.early.clear();
        for queue in [&mut self.ready, &mut self.unleased, &mut self.slotless, &mut self.memberless] {
            queue.clear();
        }
        self.later.clear();
        self.holds.clear();
        // What the card was about to say of them nobody knows: only their logs do. They are taken anew.
        self.segments.clear();
        self.handing.clear();
        (self.index_reserved, self.replay_most) = (0, 0);
        self.closing.clear();
        self.repair = None;
        self.repair_at = Some(now);
        self.repairs_left.clear();
        // Whoever has asked is told so by who is left.
        self.jobs.clear();
        self.early_jobs.clear();
        self.end_cuts();
        self.forget_mends();
        self.forget_space();
        self.forget_asked(None);
    }

    fn due(&mut self, now: Instant) {
        self.store_due(now);
        if self.is_connected() {
            self.servers_due(now);
            self.links_due(now);
            self.segments_due(now);
            self.takings_due(now);
            self.seals_due(now);
            self.openings_due(now);
            self.mends_due(now);
            self.repair_due(now);
            self.space_due(now);
            if self.compact_at.is_some_and(|at| at <= now) {
                self.continue_compaction(now);
            }
        }
        while let Some((_, handle)) = self.later.pop_front_if(|(due, _)| *due <= now) {
            self.ready.push_back(handle);
        }
        while let Some((_, port, header)) = self.early.pop_front_if(|(due, ..)| *due <= now) {
            self.admit(now, port, &header);
        }
        while let Some((due, handle)) = self.holds.first().copied().filter(|(due, _)| *due <= now) {
            self.holds.remove(&(due, handle));
            let Some(command) = self.commands.get_mut(&handle) else { continue };
            // A plan of it is under way: if that does not end it, it has waited long enough.
            command.held_until = now + RETRY;
            self.holds.insert((command.held_until, handle));
            if command.posted == Posted::Nothing {
                // Its initiator is told, rather than kept waiting for longer than it waits.
                command.fail(Status::NAMESPACE_NOT_READY);
                self.ready.push_back(Handle(handle));
            }
        }
    }

    /// A command is looked at again, later.
    pub(super) fn again_at(&mut self, due: Instant, handle: Handle) {
        self.later.push_back((due, handle));
    }

    /// A command waits. Those of the line that were answered meanwhile are dropped before they are too many.
    pub(super) fn line_up(&mut self, line: Line, handle: Handle) {
        let most = self.config.commands_max * 2 * self.ports.len().max(1);
        let port = self.commands.get(&handle.0).map(|command| command.port);
        let queue = match line {
            Line::Unleased => &mut self.unleased,
            Line::Slotless => &mut self.slotless,
            Line::Memberless => &mut self.memberless,
            Line::Payloads { len } => match port.and_then(|port| self.ports.get_mut(&port)) {
                Some(port) => port.takes.waiting(len),
                None => return,
            },
            Line::Segment(name) => match self.segments.get_mut(&name) {
                Some(segment) => &mut segment.waiting,
                None => return,
            },
        };
        if queue.len() >= most {
            let mut seen = BTreeSet::new();
            let commands = &self.commands;
            let waits = |command: &Command| command.posted == Posted::Nothing;
            queue.retain(|handle| commands.get(&handle.0).is_some_and(waits) && seen.insert(handle.0));
        }
        queue.push_back(handle);
    }

    /// Those that wait for the lease are looked at again.
    pub(super) fn wake_leased(&mut self) {
        self.ready.extend(self.unleased.drain(..));
    }

    pub(super) const fn trouble(&self) -> Option<Trouble> {
        match self.store.phase {
            Phase::Failed(trouble) => Some(trouble),
            _ => None,
        }
    }
}
