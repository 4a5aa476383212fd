//! A port of volumes on the card: the target, the front, and the card's half of the split behind it.
//!
//! ```text
//!   reactor ── events ──▶ VolumesCard ── turn ──▶ TargetDriver ◀─▶ VolumeFront ◀─▶ SplitCard ◀── VolumesGroup ◀── link
//!                                                                                  │
//!                                                                                  └─▶ chunk servers
//! ```

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use ob_core::{
    AttachmentId, DeviceCompletion, DeviceInfo, DeviceOp, Incarnation, Instant, Refused, RefusedReason, Token,
};
use ob_io::{Event, Handle, TcpNet};
use ob_nvme::driver::{Store, TargetDriver};
use ob_nvme::target::control::{
    AdminError, BackendId, Backing, Control, ControlConfig, NamespaceSpec, PortKey, SubsystemKey,
};
use ob_nvme::target::{Target, TargetConfig};
use ob_ring::{Batch, BulkDone, CardSender, CardService, GroupKey};
use ob_split::card::{PortConfig, SplitCard};
use ob_split::engine::SoftEngine;
use ob_volume::card::{Patience, VolumeDialect, VolumeFront, VolumeFrontCounts};
use ob_wire_nvme::NamespaceId;

use super::report::VolumesReport;
use super::{BLOCK_LEN, DISK_LEN, NSID, NSIDS, NSIDS_A_LIFE, VolumesError};
use crate::config::CardConfig;
use crate::halves::{CardPart, ServiceEndpoint};
use crate::nvme::{NvmeError, challenge, connect_command, port_spec, subsystem_spec};
use crate::random;

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
/// The port of the target.
const PORT: PortKey = PortKey(1);

type Front = Rc<RefCell<VolumeFront>>;
type Split = SplitCard<TcpNet, Front, VolumeDialect, SoftEngine>;

/// A port of volumes.
pub(crate) struct VolumesCard {
    driver: TargetDriver<TcpNet, NoDevices, Front>,
    front: Front,
    split: Rc<RefCell<Split>>,
    /// Hosts that have gone since the disk got its identity.
    host_left: Rc<Cell<bool>>,
    report: Rc<RefCell<Option<VolumesReport>>>,
    incarnation: Incarnation,
    /// Disks before this one, in this life of the card.
    disks: u64,
    subsystem: SubsystemKey,
    address: SocketAddr,
    connect: String,
}

/// What a card knows of its volumes, for the status.
#[derive(Clone, Debug)]
pub struct VolumesFacts {
    /// Where they are served.
    pub address: SocketAddr,
    /// The number by which initiators know the disk.
    pub namespace: u32,
    /// What the front has done.
    pub front: VolumeFrontCounts,
    /// What the host has told last, if there is one.
    pub report: Option<VolumesReport>,
}

/// What the link needs of it: the host's group, of a card that may not serve volumes.
#[derive(Default)]
pub(crate) struct PortGroup(Option<Port>);

/// The split messages of a port, whether a host has gone since the disk got its identity, and what the host has told last.
type Port = (Rc<RefCell<Split>>, Rc<Cell<bool>>, Rc<RefCell<Option<VolumesReport>>>);

/// The number of a disk: no two that follow each other have the same, over lives of the card and of the host.
fn number_of(incarnation: Incarnation, disks: u64) -> u32 {
    let before = incarnation.0.saturating_sub(1).wrapping_mul(NSIDS_A_LIFE).wrapping_add(disks);
    1 + (before % NSIDS) as u32
}

impl VolumesCard {
    /// Makes the target and listens.
    pub(crate) fn start(
        config: &CardConfig,
        incarnation: Incarnation,
        handle: &Handle,
    ) -> Result<(Self, PortGroup), VolumesError> {
        let section = config.volumes.subsystem();
        let mut control = Control::new(ControlConfig::default()).with_random(challenge);
        let serial: [u8; 8] = random::bytes()?;
        let serial = format!("{:016x}", u64::from_le_bytes(serial));
        let subsystem = control.add_subsystem(subsystem_spec(config, &section, PORT, &serial)?);
        let subsystem = subsystem.map_err(NvmeError::Refused)?;
        let nsid = number_of(incarnation, 0);
        control.add_namespace(subsystem, &disk(nsid)?).map_err(NvmeError::Refused)?;
        let limits = TargetConfig {
            connections_max: CONNECTIONS_MAX as usize,
            capsule_buffers: 512,
            ..TargetConfig::default()
        };
        let target = Target::new(limits, control);
        for arena in target.arenas() {
            if let Err(error) = handle.register_arena(arena) {
                tracing::debug!("buffers are not registered: {error}");
            }
        }
        // Half of the time a command may be held here, and half by the host.
        let mut front = VolumeFront::new(config.volumes.hold.0 / 2);
        front.set_namespace(NamespaceId(nsid), NamespaceId(NSID));
        let front: Front = Rc::new(RefCell::new(front));
        let net = TcpNet::new(handle, CONNECTIONS_MAX + CONNECTIONS_AT_THE_DOOR);
        let mut driver = TargetDriver::with_service(net, NoDevices, target, Rc::clone(&front));
        let address = config.volumes.port();
        let listening = driver.listen(address, PORT).map_err(|source| VolumesError::Listen {
            address,
            source,
            fix: config.source.line_to_change("volumes", "ports", "[\"127.0.0.1:4431\"]"),
        })?;
        let port = driver.target_mut().control_mut().add_port(port_spec(PORT, listening));
        port.map_err(NvmeError::Refused)?;
        let net = TcpNet::new(handle, u32::from(CHANNELS_MAX));
        let dialect = VolumeDialect::new(Patience::default());
        let engine = SoftEngine::new(ENGINE_DEPTH);
        let split = SplitCard::new(port_config(config, incarnation), net, Rc::clone(&front), dialect, engine);
        let split = Rc::new(RefCell::new(split));
        let host_left = Rc::new(Cell::new(false));
        let report = Rc::new(RefCell::new(None));
        let group = PortGroup(Some((Rc::clone(&split), Rc::clone(&host_left), Rc::clone(&report))));
        let connect = connect_command(&section, listening);
        let (disks, address) = (0, listening);
        let card =
            Self { driver, front, split, host_left, report, incarnation, disks, subsystem, address, connect };
        Ok((card, group))
    }

    /// Commands that initiators have sent.
    pub(crate) fn commands(&self) -> u64 {
        self.front.borrow().counts().commands
    }

    /// What is to be shown of them.
    pub(crate) fn facts(&self) -> VolumesFacts {
        VolumesFacts {
            address: self.address,
            namespace: number_of(self.incarnation, self.disks),
            front: self.front.borrow().counts(),
            report: self.report.borrow().clone(),
        }
    }

    /// The host that knew what was where is gone, and the next one begins with nothing: what it serves is another disk, and whoever
    /// has a file system on this one is to notice. It has another number, too: what initiators send again that was for the old one (Linux
    /// does, by the number alone) is answered that there is no such namespace.
    fn renew_disk(&mut self) -> Result<(), VolumesError> {
        tracing::warn!(
            "the host half is gone, and with it what it knew of volumes: {} is an empty disk from now on, with another identity",
            super::DISK
        );
        let before = number_of(self.incarnation, self.disks);
        self.disks += 1;
        let nsid = number_of(self.incarnation, self.disks);
        let disk = disk(nsid)?;
        {
            let mut front = self.front.borrow_mut();
            front.give_up_all();
            front.set_namespace(NamespaceId(nsid), NamespaceId(NSID));
        }
        let control = self.driver.target_mut().control_mut();
        match control.remove_namespace(self.subsystem, before) {
            Ok(_) | Err(AdminError::UnknownNamespace(_)) => {}
            Err(error) => return Err(NvmeError::Refused(error).into()),
        }
        control.add_namespace(self.subsystem, &disk).map_err(NvmeError::Refused)?;
        Ok(())
    }
}

impl CardPart for VolumesCard {
    fn handle(&mut self, event: &Event) -> bool {
        self.driver.net_mut().handle(event) || self.split.borrow_mut().net_mut().handle(event)
    }

    fn turn(&mut self, now: Instant) -> bool {
        if self.host_left.take()
            && let Err(error) = self.renew_disk()
        {
            // It cannot be had anew, so it is not there at all.
            tracing::error!("the disk is not served any more: {error}");
        }
        let turn = self.driver.turn(now);
        let moved = self.split.borrow_mut().turn(now);
        let mut worked = turn.events > 0 || turn.has_more || moved;
        if self.front.borrow().has_answers() {
            // What chunk servers have said just now answers initiators just now.
            worked |= self.driver.turn(now).events > 0;
        }
        worked
    }

    fn next_due(&self) -> Option<Instant> {
        let renew = self.host_left.get().then(Instant::default);
        [renew, self.driver.next_due(), self.split.borrow().next_due()].into_iter().flatten().min()
    }

    fn is_idle(&self) -> bool {
        self.front.borrow().is_idle()
    }

    fn endpoints(&self) -> Vec<ServiceEndpoint> {
        vec![ServiceEndpoint {
            service: "volumes".to_owned(),
            address: format!(
                "{} ({}, {}; preview: a restart of the host half empties it)",
                self.address,
                super::DISK,
                crate::terminal::bytes(DISK_LEN)
            ),
            next: self.connect.clone(),
        }]
    }
}

/// The card's limits, by the memory that is configured: blocks of each size have their share of it.
fn port_config(config: &CardConfig, incarnation: Incarnation) -> PortConfig {
    let memory = config.volumes.card_memory.0;
    let blocks = |share: u64, len: u32| {
        let count = memory / share / u64::from(len);
        (len, u32::try_from(count).unwrap_or(u32::MAX).max(4))
    };
    PortConfig {
        incarnation,
        payload_max: ob_nvme::target::TRANSFER_LEN_MAX as u32,
        handles_max: MESSAGES_MAX,
        plans_max: MESSAGES_MAX,
        channels_max: CHANNELS_MAX,
        hold: config.volumes.hold.0,
        memory: vec![blocks(8, 4 << 10), blocks(8, 16 << 10), blocks(2, 72 << 10)],
        ..PortConfig::default()
    }
}

fn disk(nsid: u32) -> Result<NamespaceSpec, VolumesError> {
    let uuid = random::uuid()?;
    Ok(NamespaceSpec {
        nsid: Some(nsid),
        backing: Backing::Foreign,
        blocks: DISK_LEN / u64::from(BLOCK_LEN),
        block_len: BLOCK_LEN,
        uuid,
        nguid: uuid,
        // A write that is answered is durable on all members.
        volatile_cache: false,
        deallocated_reads_zero: true,
        deallocate_len: BLOCK_LEN,
        ana_group: 1,
        read_only: false,
    })
}

impl CardService for PortGroup {
    fn open(&mut self, key: GroupKey, service: u32) -> Result<(), String> {
        match &self.0 {
            Some((split, ..)) => split.borrow_mut().open(key, service),
            None => Err("this card is not configured to serve volumes".to_owned()),
        }
    }

    fn requests(&mut self, key: GroupKey, batch: Batch, responses: &mut CardSender) {
        if let Some((split, ..)) = &self.0 {
            split.borrow_mut().requests(key, batch, responses);
        }
    }

    fn responses(&mut self, key: GroupKey, responses: &mut CardSender) {
        if let Some((split, ..)) = &self.0 {
            split.borrow_mut().responses(key, responses);
        }
    }

    fn transferred(&mut self, key: GroupKey, done: BulkDone, responses: &mut CardSender) {
        if let Some((split, ..)) = &self.0 {
            split.borrow_mut().transferred(key, done, responses);
        }
    }

    fn suspended(&mut self, attachment: AttachmentId, is_suspended: bool) {
        if let Some((split, ..)) = &self.0 {
            split.borrow_mut().suspended(attachment, is_suspended);
        }
    }

    fn closed(&mut self, key: GroupKey) {
        if let Some((split, host_left, report)) = &self.0 {
            split.borrow_mut().closed(key);
            *report.borrow_mut() = None;
            // The router tells only of groups that were opened.
            host_left.set(true);
        }
    }

    fn poll(&mut self, now: Instant) -> bool {
        self.0.as_ref().is_some_and(|(split, ..)| split.borrow_mut().poll(now))
    }

    fn next_due(&self) -> Option<Instant> {
        self.0.as_ref().and_then(|(split, ..)| CardService::next_due(&*split.borrow()))
    }

    fn waiting(&self, groups: &mut Vec<GroupKey>) {
        if let Some((split, ..)) = &self.0 {
            split.borrow().waiting(groups);
        }
    }

    fn channel(&mut self, _: AttachmentId, message: &[u8]) {
        // Others' messages come by here, too.
        if let (Some((.., report)), Some(told)) = (&self.0, VolumesReport::decode(message)) {
            *report.borrow_mut() = Some(told);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_that_follow_each_other_have_other_numbers() {
        assert_eq!(number_of(Incarnation(1), 0), 1);
        let of = |life, disks| number_of(Incarnation(life), disks);
        for life in 1..200 {
            assert!((1..=1024).contains(&of(life, 0)));
            for disks in 0..31 {
                assert_ne!(of(life, disks), of(life, disks + 1));
                assert_ne!(of(life, disks), of(life + 1, 0));
            }
        }
    }
}
