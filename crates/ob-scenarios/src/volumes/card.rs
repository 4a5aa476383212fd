//! The card of a tier: the target, the front of volumes, and the card's half of the split, as `outboard card` has them.

use std::cell::RefCell;
use std::rc::Rc;

use ob_core::{
    AttachmentId, DeviceCompletion, DeviceInfo, DeviceOp, Incarnation, Instant, LockId, Refused,
    RefusedReason, TierId, Token,
};
use ob_nvme::driver::{Store, TargetDriver};
use ob_nvme::target::Target;
use ob_nvme::target::control::{
    AddressFamily, BackendId, Backing, Control, ControlConfig, NamespaceSpec, PortKey, PortSpec,
    SubsystemSpec, TransportAddress,
};
use ob_sim::{Failure, Network, Rng, SimNet, Trace};
use ob_split::card::{PortConfig, SplitCard};
use ob_split::engine::SoftEngine;
use ob_volume::card::{VolumeDialect, VolumeFront};
use ob_wire_nvme::text::Nqn;

use super::boot::DriftClock;
use super::link::{CardEnd, HostEnd, attach};
use super::plan::Plan;
use super::{NQN, PORT, channels_node, target_node};

type Front = Rc<RefCell<VolumeFront>>;
type Split = SplitCard<SimNet, Front, VolumeDialect, SoftEngine>;

/// One life of the card.
pub(super) struct Card {
    driver: TargetDriver<SimNet, NoDevices, Front>,
    front: Front,
    split: Split,
    end: Option<CardEnd>,
    incarnation: Incarnation,
    attachments: u64,
    clock: DriftClock,
    has_more: bool,
}

impl Card {
    pub(super) fn new(
        plan: &Plan,
        (number, clock): (usize, DriftClock),
        network: &Network,
        incarnation: Incarnation,
    ) -> Result<Self, Failure> {
        let (own, channels) = (target_node(plan, number), channels_node(plan, number));
        let failed =
            |error: &dyn std::fmt::Display| Failure::new(format!("the card does not begin: {error}"));
        let mut control = Control::new(ControlConfig::default());
        let address =
            TransportAddress { family: AddressFamily::Ipv4, address: "10.0.0.0".to_owned(), service: PORT };
        control
            .add_port(PortSpec { port: PortKey(1), address, discovery_only: false })
            .map_err(|error| failed(&error))?;
        let nqn = Nqn::new(NQN).map_err(|error| failed(&error))?;
        let subsystem =
            control.add_subsystem(SubsystemSpec::open(nqn, "SIM")).map_err(|error| failed(&error))?;
        for nsid in 1..=plan.volumes() {
            control.add_namespace(subsystem, &disk(plan, nsid)).map_err(|error| failed(&error))?;
        }
        let target = Target::new(plan.target.clone(), control);
        let front: Front = Rc::new(RefCell::new(VolumeFront::new(plan.hold)));
        let net = network.attach(own);
        let mut driver = TargetDriver::with_service(net, NoDevices, target, Rc::clone(&front));
        driver.listen(Network::address(own, PORT), PortKey(1)).map_err(|error| failed(&error))?;
        let dialect = VolumeDialect::new(plan.patience);
        let engine = SoftEngine::new(plan.engine_depth);
        let config = PortConfig {
            incarnation,
            tier: TierId(if plan.is_copied && number == 1 { 7 } else { 7 + number as u64 }),
            lock: LockId([9 + number as u8; 16]),
            payload_max: ob_nvme::target::TRANSFER_LEN_MAX as u32,
            hold: plan.hold,
            ..plan.port.clone()
        };
        let split = SplitCard::new(config, network.attach(channels), Rc::clone(&front), dialect, engine);
        Ok(Self { driver, front, split, end: None, incarnation, attachments: 0, clock, has_more: true })
    }

    /// A host attaches, in this life of it, and has its port opened.
    pub(super) fn attach(
        &mut self,
        host: Incarnation,
        sizes: (u32, (u64, u64)),
        rng: &Rng,
        trace: &Trace,
    ) -> Result<HostEnd, Failure> {
        self.detach();
        self.attachments += 1;
        let lives = [self.incarnation, host];
        let rng = rng.fork_numbered("attachment", self.attachments);
        let (card, host) = attach(&mut self.split, AttachmentId(self.attachments), lives, sizes, rng, trace)?;
        self.end = Some(card);
        self.has_more = true;
        Ok(host)
    }

    /// The host is gone.
    pub(super) fn detach(&mut self) {
        if let Some(end) = self.end.take() {
            end.end(&mut self.split);
            self.has_more = true;
        }
    }

    /// Does to host memory what is due, and hears whether the host has rung.
    pub(super) fn advance(&mut self, now: Instant) {
        if let Some(end) = &mut self.end {
            end.advance(now);
            end.listen(now);
        }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.has_more || self.next_due().is_some_and(|due| due <= now)
    }

    /// One turn of its reactor.
    pub(super) fn turn(&mut self, now: Instant) -> Result<(), Failure> {
        let mut worked = false;
        if let Some(end) = &mut self.end {
            worked |= end.turn(now, &mut self.split)?;
        }
        let turn = self.driver.turn(now);
        self.split.tell_lease_time(self.clock.shows(now));
        worked |= self.split.turn(now) | turn.has_more;
        if self.front.borrow().has_answers() {
            worked |= self.driver.turn(now).events > 0;
        }
        if let Some(end) = &mut self.end {
            worked |= end.follow(&mut self.split)?;
            if !worked {
                worked |= !end.rest(&mut self.split)?;
            }
        }
        self.has_more = worked;
        Ok(())
    }

    pub(super) fn next_due(&self) -> Option<Instant> {
        let end = self.end.as_ref().and_then(CardEnd::next_due);
        [self.driver.next_due(), self.split.next_due(), end].into_iter().flatten().min()
    }

    /// Whether it has more to do at once.
    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    /// What it still has when nobody asks for anything.
    pub(super) fn leftovers(&self) -> Option<String> {
        let counts = self.split.counts();
        let is_idle = self.front.borrow().is_idle() && counts.messages == 0;
        (!is_idle || counts.blocks_out > 0).then(|| format!("{counts:?}"))
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "card: {:?}, front idle {}, target due {:?}, split due {:?}",
            self.split.counts(),
            self.front.borrow().is_idle(),
            self.driver.next_due(),
            self.split.next_due()
        )
    }
}

fn disk(plan: &Plan, nsid: u32) -> NamespaceSpec {
    NamespaceSpec {
        nsid: Some(nsid),
        backing: Backing::Foreign,
        blocks: plan.disk_blocks(),
        block_len: plan.block_len.bytes(),
        uuid: [6 + nsid as u8; 16],
        nguid: [6 + nsid as u8; 16],
        volatile_cache: false,
        deallocated_reads_zero: true,
        deallocate_len: plan.block_len.bytes(),
        ana_group: 1,
        read_only: false,
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
