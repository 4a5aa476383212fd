//! A port of volumes on the card: the target, the front, and the card's half of the split behind it. The first one is on the card's own
//! reactor, and has what is of all of them; others have threads of their own (`ports`).
//!
//! ```text
//!   reactor ── events ──▶ VolumesCard ── turn ──▶ TargetDriver ◀─▶ VolumeFront ◀─▶ SplitCard ◀── VolumesGroup ◀── link
//!                                                                                  │
//!                                                                                  └─▶ chunk servers
//! ```

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ob_core::{
    AttachmentId, Clock, DeviceCompletion, DeviceInfo, DeviceOp, DmaCounts, Incarnation, Instant, Refused,
    RefusedReason, TierId, Token,
};
use ob_io::{BootClock, Event, Handle, TcpNet};
use ob_nvme::driver::{Store, TargetDriver};
use ob_nvme::target::control::{
    AdminError, BackendId, Backing, Control, ControlConfig, NamespaceSpec, PortKey, SubsystemKey,
};
use ob_nvme::target::{Target, TargetConfig};
use ob_ring::{Batch, BulkDone, CardSender, CardService, GroupKey};
use ob_split::card::{PortConfig, RECORD_BLOCK_LEN, RetainedCounts, SplitCard};
use ob_split::engine::SoftEngine;
use ob_split::wire::PlanId;
use ob_volume::card::{Patience, VolumeDialect, VolumeFront, VolumeFrontCounts};
use ob_volume::plans::{PAYLOAD_MAX, id};
use ob_wire_nvme::NamespaceId;

use super::VolumesError;
use super::admin::{Desk, DeskInbox, VolumesReply, VolumesRequest, desk, is_answer, uuid_text};
use super::disk::{Disk, Memory, Shown, ShownDisks, Told, ToldDisks};
use super::identity;
use super::ports::{PortThread, Together};
use super::report::VolumesReport;
use crate::config::CardConfig;
use crate::halves::{CardPart, ServiceEndpoint};
use crate::nvme::{NvmeError, challenge, connect_command, port_spec, subsystem_spec};

/// Connections of initiators at once.
const CONNECTIONS_MAX: u32 = 256;
/// Connections that may be accepted beyond those in one turn: the target has to see them to decide who makes room.
const CONNECTIONS_AT_THE_DOOR: u32 = 16;
/// Connections to chunk servers.
const CHANNELS_MAX: u16 = 64;
/// Descriptors that a reactor watches for volumes, beside its own.
pub(crate) const WATCHES_MAX: u32 = CONNECTIONS_MAX + CONNECTIONS_AT_THE_DOOR + CHANNELS_MAX as u32;
/// Messages that the host may have at a time, and plans under way.
const MESSAGES_MAX: u32 = 1024;
/// Tasks that the engine has waiting.
const ENGINE_DEPTH: u16 = 256;
/// Bytes of a port for payloads: half for the longest ones, and for the others not much less than other targets have.
const TRANSFER_MEMORY: usize = 96 << 20;
/// Pauses between attempts to show a disk.
const SHOW_AGAIN: Duration = Duration::from_secs(1);
/// The port of the target.
const PORT: PortKey = PortKey(1);

type Front = Rc<RefCell<VolumeFront>>;
type Split = SplitCard<TcpNet, Front, VolumeDialect, SoftEngine>;

/// What the host says, shared with the link's end.
type FromHost = Rc<RefCell<HostWords>>;

/// Parts of answers that wait for the card's next turn; a host that says more at once is not heard.
const ANSWERS_MAX: usize = 4096;

/// What a host has said.
#[derive(Default)]
struct HostWords {
    /// Whose group the port is: nobody else is heard.
    host: Option<AttachmentId>,
    /// Which host it is, counted.
    life: u64,
    told: ToldDisks,
    /// What is to be shown, as it was told last.
    due: Option<Vec<Disk>>,
    /// Those that it serves. Their sizes may change; another disk by the same number has another host.
    own: Vec<Disk>,
    report: Option<VolumesReport>,
    /// Parts of answers to administrators.
    answers: VecDeque<Vec<u8>>,
}

impl HostWords {
    /// The host says something.
    fn hear(&mut self, message: &[u8]) {
        if let Some(report) = VolumesReport::decode(message) {
            self.report = Some(report);
        } else if is_answer(message) {
            if self.answers.len() < ANSWERS_MAX {
                self.answers.push_back(message.to_owned());
            }
        } else {
            match self.told.take(message) {
                Told::All(disks) if self.may_tell(&disks) => {
                    (self.due, self.own) = (Some(disks.clone()), disks);
                }
                Told::All(_) | Told::Wrong => {
                    tracing::warn!("the host tells of disks that cannot be, which is not heard");
                }
                Told::Part | Told::NotOfDisks => {}
            }
        }
    }

    /// Whether these can be disks of the pool whose others it has told of: what it knows by a number is always the same.
    fn may_tell(&self, disks: &[Disk]) -> bool {
        let is_other =
            |disk: &Disk| self.own.iter().any(|own| own.namespace == disk.namespace && !own.is_same(disk));
        !disks.iter().any(is_other)
    }

    /// The host is gone.
    fn end(&mut self) {
        *self = Self { life: self.life + 1, ..Self::default() };
    }
}

/// A port of volumes.
pub(super) struct VolumesPort {
    driver: TargetDriver<TcpNet, NoDevices, Front>,
    front: Front,
    split: Rc<RefCell<Split>>,
    /// What the host has said, and when its disks are tried again to be shown after that has failed.
    words: FromHost,
    show_again: Option<Instant>,
    /// The disks that initiators see.
    shown: ShownDisks,
    /// What all ports of the card have together, and which disks of it this one has shown.
    together: Arc<Together>,
    followed: u64,
    subsystem: SubsystemKey,
    address: SocketAddr,
    connect: String,
}

/// The first port, and what is of all of them.
pub(crate) struct VolumesCard {
    port: VolumesPort,
    memory: Memory,
    /// What administrators ask, and which life of the host has it.
    inbox: DeskInbox,
    asked_life: u64,
    others: Vec<PortThread>,
}

/// What a card knows of its volumes, for the status.
#[derive(Clone, Debug)]
pub struct VolumesFacts {
    /// Where they are served, and what is done there.
    pub ports: Vec<PortFacts>,
    /// The disks that are shown.
    pub disks: Vec<DiskFacts>,
    /// What the host has told last, if there is one.
    pub report: Option<VolumesReport>,
}

/// Bytes that have crossed the link for plans which are of no command: their entries, what they have moved, and their completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceBytes {
    /// Checkpoints of indexes.
    pub checkpoints: u64,
    /// Compaction: moves, and the lists that say what is in a chunk.
    pub compaction: u64,
    /// All else: requests to chunk servers, replicas that are made anew, records that are mended.
    pub others: u64,
}

/// A port of volumes, for the status.
#[derive(Clone, Copy, Debug)]
pub struct PortFacts {
    /// Where it is.
    pub address: SocketAddr,
    /// Whether a host decides about what comes by it.
    pub has_host: bool,
    /// What its front has done.
    pub front: VolumeFrontCounts,
    /// What the card has retained of what was written by it.
    pub retained: RetainedCounts,
    /// What of its link's bytes was for no command.
    pub maintenance: MaintenanceBytes,
    /// What has crossed its own link; of the first port nothing, as that is the card's.
    pub link: DmaCounts,
}

/// What the target of a port may have.
fn target_config() -> TargetConfig {
    TargetConfig {
        connections_max: CONNECTIONS_MAX as usize,
        capsule_buffers: 512,
        transfer_len_max: PAYLOAD_MAX as usize,
        transfer_memory: TRANSFER_MEMORY,
        connection_transfer_max: TRANSFER_MEMORY / 12,
        // No volume compares anything.
        compares_max: 1,
        ..TargetConfig::default()
    }
}

/// What of all that has crossed a port's link was for no command.
fn maintenance(split: &Split) -> MaintenanceBytes {
    let of = |plans: &[PlanId]| plans.iter().map(|plan| split.crossed(*plan)).sum();
    MaintenanceBytes {
        checkpoints: of(&[id::INDEX]),
        // (A tier looks at lists when it takes a segment, too.)
        compaction: of(&[id::MOVE, id::MOVE_CUT, id::LOOK]),
        others: of(&[id::CALL, id::COPY, id::MEND]),
    }
}

/// A disk, as initiators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFacts {
    /// By which number they know it.
    pub namespace: u32,
    /// Bytes.
    pub bytes: u64,
}

/// What the link needs of it: the host's group, of a card that may not serve volumes.
#[derive(Default)]
pub(crate) struct PortGroup(Option<Port>);

/// The split messages of a port, and what its host says besides.
struct Port {
    split: Rc<RefCell<Split>>,
    words: FromHost,
}

impl VolumesPort {
    /// Makes the target and listens.
    pub(super) fn start(
        config: &CardConfig,
        number: usize,
        incarnation: Incarnation,
        handle: &Handle,
        together: &Arc<Together>,
    ) -> Result<(Self, PortGroup), VolumesError> {
        let section = config.volumes.subsystem();
        let mut control = Control::new(ControlConfig::default()).with_random(challenge);
        let tier = identity::tier(&config.directory)?;
        // Initiators that come back after a restart of the card look whether it is the same.
        let serial = format!("{:016x}", tier.0);
        let subsystem = control.add_subsystem(subsystem_spec(config, &section, PORT, &serial)?);
        let subsystem = subsystem.map_err(NvmeError::Refused)?;
        // Initiators are there before the first host: they find the disks that they know.
        let shown = ShownDisks::recall(&config.directory);
        for shown in &shown.disks {
            control.add_namespace(subsystem, &namespace(shown)).map_err(NvmeError::Refused)?;
        }
        let target = Target::new(target_config(), control);
        register(&target, handle);
        // Half of the time a command may be held here, and half by the host.
        let mut front = VolumeFront::new(config.volumes.hold.0 / 2);
        for Shown { disk, number } in &shown.disks {
            front.set_namespace(NamespaceId(*number), NamespaceId(disk.namespace));
        }
        let front: Front = Rc::new(RefCell::new(front));
        let net = TcpNet::new(handle, CONNECTIONS_MAX + CONNECTIONS_AT_THE_DOOR);
        let mut driver = TargetDriver::with_service(net, NoDevices, target, Rc::clone(&front));
        let address = config.volumes.port(number);
        let listening = driver.listen(address, PORT).map_err(|source| VolumesError::Listen {
            address,
            source,
            fix: config.source.line_to_change("volumes", "ports", "[\"127.0.0.1:4431\"]"),
        })?;
        let port = driver.target_mut().control_mut().add_port(port_spec(PORT, listening));
        port.map_err(NvmeError::Refused)?;
        let mut split = split(config, incarnation, tier, handle, Rc::clone(&front))?;
        // What initiators have sent is for the disks that they see: until the host has said which it serves, it gets nothing of it.
        split.hold_back(true);
        split.share_gate(together.gate());
        let split = Rc::new(RefCell::new(split));
        let words = FromHost::default();
        let group = PortGroup(Some(Port { split: Rc::clone(&split), words: Rc::clone(&words) }));
        let connect = connect_command(&section, listening);
        let (show_again, address, together) = (None, listening, Arc::clone(together));
        let port = Self {
            driver,
            front,
            split,
            words,
            show_again,
            shown,
            together,
            followed: 0,
            subsystem,
            address,
            connect,
        };
        Ok((port, group))
    }

    /// What is to be shown of it.
    pub(super) fn facts(&self, link: DmaCounts) -> PortFacts {
        PortFacts {
            address: self.address,
            has_host: self.words.borrow().host.is_some(),
            front: self.front.borrow().counts(),
            retained: self.split.borrow().retained(),
            maintenance: maintenance(&self.split.borrow()),
            link,
        }
    }

    /// Controllers of hosts that are connected to it.
    pub(super) fn controllers(&mut self) -> usize {
        self.driver.target_mut().control_mut().controllers_of(self.subsystem)
    }

    /// Shows what its host is known to serve; then, and not before, the host hears of what was sent for that. Whether it is so.
    fn show_or_try_again(&mut self, now: Instant, next: ShownDisks) -> bool {
        if let Err(error) = self.show(next) {
            if self.show_again.is_none() {
                tracing::error!("a disk that the host tells of cannot be shown: {error}; trying again");
            }
            self.show_again = Some(now + SHOW_AGAIN);
            return false;
        }
        self.show_again = None;
        self.split.borrow_mut().hold_back(false);
        true
    }

    /// A port that is not the first shows what that has shown, once it has the same host.
    pub(super) fn follow(&mut self, now: Instant) {
        let Some(gate) = self.split.borrow().gate() else {
            (self.followed, self.show_again) = (0, None);
            return;
        };
        if self.show_again.is_some_and(|at| at > now) {
            return;
        }
        if let Some((version, next)) = self.together.shown_by(gate, self.followed)
            && self.show_or_try_again(now, next)
        {
            self.followed = version;
        }
    }

    /// The host says which disks there are. Those that initiators see stay theirs while there is no host, and after; what they have sent
    /// waits for the next one.
    fn show(&mut self, next: ShownDisks) -> Result<(), NvmeError> {
        if next == self.shown {
            return Ok(());
        }
        for gone in self.shown.disks.clone() {
            if !next.disks.iter().any(|shown| shown.number == gone.number && shown.disk.is_same(&gone.disk)) {
                self.hide(&gone)?;
            }
        }
        for shown in &next.disks {
            let control = self.driver.target_mut().control_mut();
            match self.shown.disks.iter_mut().find(|before| before.number == shown.number) {
                Some(before) => {
                    control.resize_namespace(self.subsystem, shown.number, shown.disk.blocks)?;
                    *before = *shown;
                }
                None => {
                    control.add_namespace(self.subsystem, &namespace(shown))?;
                    let (number, known) = (NamespaceId(shown.number), NamespaceId(shown.disk.namespace));
                    self.front.borrow_mut().set_namespace(number, known);
                    self.shown.disks.push(*shown);
                }
            }
        }
        self.shown = next;
        Ok(())
    }

    /// A disk is not served any more. Whoever has a file system on it is to notice, and what was sent for it never reaches another.
    fn hide(&mut self, gone: &Shown) -> Result<(), NvmeError> {
        tracing::warn!(namespace = gone.number, "a disk is gone that initiators knew");
        self.front.borrow_mut().remove_namespace(NamespaceId(gone.number));
        match self.driver.target_mut().control_mut().remove_namespace(self.subsystem, gone.number) {
            Ok(_) | Err(AdminError::UnknownNamespace(_)) => {}
            Err(error) => return Err(error.into()),
        }
        self.shown.disks.retain(|shown| shown.number != gone.number);
        Ok(())
    }

    /// One turn of its own: initiators, plans, answers; whether there was anything.
    pub(super) fn serve(&mut self, now: Instant) -> bool {
        let turn = self.driver.turn(now);
        self.split.borrow_mut().tell_lease_time(BootClock.now());
        let moved = self.split.borrow_mut().turn(now);
        let mut worked = turn.events > 0 || turn.has_more || moved;
        if self.front.borrow().has_answers() {
            // What chunk servers have said just now answers initiators just now.
            worked |= self.driver.turn(now).events > 0;
        }
        worked
    }

    pub(super) fn handle(&mut self, event: &Event) -> bool {
        self.driver.net_mut().handle(event) || self.split.borrow_mut().net_mut().handle(event)
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        [self.driver.next_due(), self.split.borrow().next_due()].into_iter().flatten().min()
    }

    /// When a disk that could not be shown is tried again, at a port that is not the first.
    pub(super) const fn follow_due(&self) -> Option<Instant> {
        self.show_again
    }

    pub(super) fn is_idle(&self) -> bool {
        self.front.borrow().is_idle()
    }

    pub(super) fn endpoint(&self) -> ServiceEndpoint {
        ServiceEndpoint {
            service: "volumes".to_owned(),
            address: format!("{} (`outboard volume ls` lists them)", self.address),
            next: self.connect.clone(),
        }
    }
}

impl VolumesCard {
    /// Starts all ports.
    pub(crate) fn start(
        config: &CardConfig,
        incarnation: Incarnation,
        handle: &Handle,
    ) -> Result<(Self, PortGroup, Desk), VolumesError> {
        let together = Arc::new(Together::default());
        let (port, group) = VolumesPort::start(config, 0, incarnation, handle, &together)?;
        let waker = handle.waker();
        let (desk, inbox) = desk(move || waker.wake());
        let memory = Memory::start(&config.directory)?;
        let others = (1..config.volumes.ports.len())
            .map(|number| PortThread::start(config, number, incarnation, &together, handle.waker()));
        let others = others.collect::<Result<_, _>>()?;
        Ok((Self { port, memory, inbox, asked_life: 0, others }, group, desk))
    }

    /// Commands that initiators have sent.
    pub(crate) fn commands(&self) -> u64 {
        let others = self.others.iter().map(|other| other.facts().front.commands);
        self.port.front.borrow().counts().commands + others.sum::<u64>()
    }

    /// What is to be shown of them.
    pub(crate) fn facts(&self) -> VolumesFacts {
        let others = self.others.iter().map(PortThread::facts);
        VolumesFacts {
            ports: std::iter::once(self.port.facts(DmaCounts::default())).chain(others).collect(),
            disks: self.port.shown.disks.iter().map(DiskFacts::of).collect(),
            report: self.port.words.borrow().report.clone(),
        }
    }

    /// What has crossed the links of other ports than the first, whose link is the card's.
    pub(crate) fn links(&self) -> impl Iterator<Item = DmaCounts> + '_ {
        self.others.iter().map(|other| other.facts().link)
    }

    /// Whether all threads live.
    pub(crate) fn check(&self) -> Result<(), VolumesError> {
        if self.others.iter().any(PortThread::has_failed) { Err(VolumesError::PortEnded) } else { Ok(()) }
    }

    /// The other ports take nothing more, and end.
    pub(crate) fn stop_others(&mut self) {
        self.others.iter().for_each(PortThread::stop);
        self.others.drain(..).for_each(PortThread::join);
    }

    /// The next message for the host that has the port, and who that is.
    pub(crate) fn next_message(&mut self) -> Option<(AttachmentId, &mut VecDeque<Vec<u8>>)> {
        let host = self.port.words.borrow().host?;
        let outgoing = self.inbox.outgoing();
        (!outgoing.is_empty()).then_some((host, outgoing))
    }

    /// The host has told of disks: all ports show them, this one first.
    fn show_told(&mut self, now: Instant) {
        let due = self.port.words.borrow().due.clone();
        let Some(disks) = due.filter(|_| self.port.show_again.is_none_or(|at| at <= now)) else { return };
        let next = self.port.shown.instead(&disks);
        let is_new = next != self.port.shown;
        if !self.port.show_or_try_again(now, next) {
            return;
        }
        self.port.words.borrow_mut().due = None;
        if is_new {
            self.memory.remember(&self.port.shown);
        }
        if let Some(gate) = self.port.split.borrow().gate() {
            self.port.together.show(gate, &self.port.shown);
            self.others.iter().for_each(PortThread::wake);
        }
    }

    /// What administrators ask goes to the host, and what it has answered to them. Disks that it has told of before are shown by now.
    fn administer(&mut self, now: Instant) -> bool {
        let (life, has_host) = {
            let words = self.port.words.borrow();
            (words.life, words.host.is_some())
        };
        if std::mem::replace(&mut self.asked_life, life) != life {
            self.inbox.host_ended();
        }
        let elsewhere: usize = self.others.iter().map(PortThread::controllers).sum();
        let controllers = self.port.controllers() + elsewhere;
        let mut did = self.inbox.take(now, has_host, |request| refuse(request, controllers));
        let (shown, words) = (&self.port.shown, &self.port.words);
        while let Some(part) = words.borrow_mut().answers.pop_front() {
            did = true;
            self.inbox.answered(&part, |reply| add_numbers(reply, shown));
        }
        did
    }
}

impl DiskFacts {
    fn of(shown: &Shown) -> Self {
        let Shown { disk, number } = shown;
        Self { namespace: *number, bytes: disk.blocks.saturating_mul(disk.block_len.into()) }
    }
}

/// What the card refuses by itself: a volume is not taken away from a host that may have a file system on it.
fn refuse(request: &VolumesRequest, controllers: usize) -> Option<String> {
    match request {
        VolumesRequest::Remove { force: false, name } if controllers > 0 => Some(format!(
            "{} connected to this card, and so to {name}\n\
             hint: disconnect (`nvme disconnect -n NQN`), or say --force: what uses the volume gets errors from then on",
            crate::terminal::counted(
                controllers as u64,
                "controller of a host is",
                "controllers of hosts are"
            )
        )),
        _ => None,
    }
}

/// Initiators may know a disk by another number than its pool does.
fn add_numbers(reply: &mut VolumesReply, shown: &ShownDisks) {
    for volume in reply.volumes_mut() {
        let is_it = |shown: &&Shown| uuid_text(&shown.disk.uuid) == volume.uuid;
        volume.nsid = shown.disks.iter().find(is_it).map_or(volume.nsid, |shown| shown.number);
    }
}

impl CardPart for VolumesCard {
    fn handle(&mut self, event: &Event) -> bool {
        self.port.handle(event)
    }

    fn turn(&mut self, now: Instant) -> bool {
        self.show_told(now);
        self.administer(now) | self.port.serve(now)
    }

    fn next_due(&self) -> Option<Instant> {
        let told = self.port.words.borrow().due.as_ref().map(|_| self.port.show_again.unwrap_or_default());
        [self.port.next_due(), self.inbox.next_due(), told].into_iter().flatten().min()
    }

    fn is_idle(&self) -> bool {
        self.port.is_idle()
    }

    fn endpoints(&self) -> Vec<ServiceEndpoint> {
        let others = self.others.iter().map(PortThread::endpoint);
        std::iter::once(self.port.endpoint()).chain(others).collect()
    }
}

/// The target's buffers are where devices and sockets find them at once, if that can be.
fn register(target: &Target, handle: &Handle) {
    for arena in target.arenas() {
        if let Err(error) = handle.register_arena(arena) {
            tracing::debug!("buffers are not registered: {error}");
        }
    }
}

/// The card's half of the port, of this tier.
fn split(
    config: &CardConfig,
    incarnation: Incarnation,
    tier: TierId,
    handle: &Handle,
    front: Front,
) -> Result<Split, VolumesError> {
    let net = TcpNet::new(handle, u32::from(CHANNELS_MAX));
    let dialect = VolumeDialect::new(Patience::default());
    let engine = SoftEngine::new(ENGINE_DEPTH);
    let lock = identity::lock(&config.directory)?;
    let ports = PortConfig { incarnation, tier, lock, ..port_config(config) };
    Ok(SplitCard::new(ports, net, front, dialect, engine))
}

/// The card's limits, by the memory that is configured: blocks of each size have their share of it.
fn port_config(config: &CardConfig) -> PortConfig {
    let memory = config.volumes.card_memory.0;
    let blocks = |parts: u64, len: u32| {
        let count = memory / 32 * parts / u64::from(len);
        (len, u32::try_from(count).unwrap_or(u32::MAX).max(4))
    };
    // Five eighths are records, a quarter is replies and what is copied, and the rest is for headers, and to know what is retained.
    let (_, records) = blocks(20, RECORD_BLOCK_LEN);
    PortConfig {
        payload_max: PAYLOAD_MAX,
        handles_max: MESSAGES_MAX,
        plans_max: MESSAGES_MAX,
        channels_max: CHANNELS_MAX,
        // As long as the front, and counted from when it came as well: then, at the latest, it goes to no host any more.
        hold: config.volumes.hold.0 / 2,
        memory: vec![blocks(1, 4 << 10), blocks(1, 16 << 10), blocks(6, 72 << 10)],
        records,
        ..PortConfig::default()
    }
}

fn namespace(shown: &Shown) -> NamespaceSpec {
    let Shown { disk, number } = *shown;
    NamespaceSpec {
        nsid: Some(number),
        backing: Backing::Foreign,
        blocks: disk.blocks,
        block_len: disk.block_len,
        uuid: disk.uuid,
        nguid: disk.uuid,
        // A write that is answered is durable on all members.
        volatile_cache: false,
        deallocated_reads_zero: true,
        deallocate_len: disk.block_len,
        ana_group: 1,
        read_only: false,
    }
}

impl CardService for PortGroup {
    fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String> {
        let Some(port) = &mut self.0 else {
            return Err("this card is not configured to serve volumes, nor to split messages".to_owned());
        };
        port.split.borrow_mut().open(key, service)?;
        port.words.borrow_mut().host = Some(key.attachment);
        Ok(())
    }

    fn requests(&mut self, key: GroupKey, batch: Batch, responses: &mut CardSender) {
        if let Some(port) = &self.0 {
            port.split.borrow_mut().requests(key, batch, responses);
        }
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        if let Some(port) = &self.0 {
            port.split.borrow_mut().responses(key, responses);
        }
    }

    fn transferred(&mut self, key: GroupKey, done: BulkDone, responses: &mut CardSender) {
        if let Some(port) = &self.0 {
            port.split.borrow_mut().transferred(key, done, responses);
        }
    }

    fn suspended(&mut self, attachment: AttachmentId, is_suspended: bool) {
        if let Some(port) = &self.0 {
            port.split.borrow_mut().suspended(attachment, is_suspended);
        }
    }

    fn closed(&mut self, key: GroupKey) {
        if let Some(port) = &mut self.0 {
            let mut split = port.split.borrow_mut();
            split.closed(key);
            // The next one may serve other disks.
            split.hold_back(true);
            // The router tells only of groups that were opened, and there is one at a time.
            port.words.borrow_mut().end();
        }
    }

    fn poll(&mut self, now: Instant) -> bool {
        self.0.as_ref().is_some_and(|port| port.split.borrow_mut().poll(now))
    }

    fn next_due(&self) -> Option<Instant> {
        self.0.as_ref().and_then(|port| CardService::next_due(&*port.split.borrow()))
    }

    fn waiting(&self, groups: &mut Vec<GroupKey>) {
        if let Some(port) = &self.0 {
            port.split.borrow().waiting(groups);
        }
    }

    fn channel(&mut self, attachment: AttachmentId, message: &[u8]) {
        // Others' messages come by here, too; and an application that uses the card's files says nothing of its disks.
        let Some(port) = &self.0 else { return };
        let mut words = port.words.borrow_mut();
        if words.host == Some(attachment) {
            words.hear(message);
        }
    }
}

/// No device: all of this target's namespaces are a service's.
pub(super) struct NoDevices;

impl Store for NoDevices {
    fn info(&self, _: BackendId) -> Option<DeviceInfo> {
        None
    }

    fn submit(&mut self, _: BackendId, _: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        Err(Refused { op, reason: RefusedReason::Gone })
    }

    fn poll(&mut self) -> Option<(BackendId, DeviceCompletion)> {
        None
    }

    fn next_due(&self) -> Option<Instant> {
        None
    }
}
