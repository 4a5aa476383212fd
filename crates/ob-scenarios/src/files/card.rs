//! The card's process: the service on its device, and the card's ends of the rings.

use std::sync::Arc;

use ob_core::{
    AttachmentId, Clock, Device, DeviceCompletion, DeviceInfo, DeviceOp, Dma, GroupId, Refused,
    RefusedReason, RegionId, Token,
};
use ob_files_card::{Drive, FilesService};
use ob_ring::{CardReceiver, CardSender, CardService, GroupKey, LocalDma, Received, RingError};
use ob_sim::{Failure, SimClock, SimDisk};
use ob_wire_link::files::FILES_SERVICE;

use super::chains::Chains;
use super::host::{Doorbell, Rings};

const REQUEST: Token = Token(0);
const RESPONSE: Token = Token(4);
const REGION: RegionId = RegionId(0);

/// One life of the card.
pub(super) struct Card {
    pub(super) service: FilesService<SimDisk>,
    /// Who reads from within the card.
    pub(super) chains: Chains,
    groups: Vec<Option<Group>>,
    log_used: u64,
    /// How often sections of the log were given back.
    pub(super) cleaned: u64,
}

struct Group {
    key: GroupKey,
    dma: LocalDma,
    receiver: CardReceiver,
    sender: CardSender,
    doorbell: Arc<Doorbell>,
}

impl Card {
    pub(super) fn new(service: FilesService<SimDisk>) -> Self {
        let log_used = service.files().log_used();
        let chains = Chains::new(service.local());
        Self { service, chains, groups: Vec::new(), log_used, cleaned: 0 }
    }

    /// Opens a group; its index.
    pub(super) fn open(&mut self, rings: &Rings) -> Result<usize, Failure> {
        let index = self.groups.len();
        let key = GroupKey { attachment: AttachmentId(1), group: GroupId(index as u32) };
        self.service.open(key, FILES_SERVICE).map_err(Failure::new)?;
        let mut dma = LocalDma::new(64, 1 << 20);
        dma.register(REGION, rings.region.clone());
        let (request, response) = rings.specs;
        let (receiver, sender) = (CardReceiver::new(request, REQUEST), CardSender::new(response, RESPONSE));
        let doorbell = Arc::clone(&rings.doorbell);
        self.groups.push(Some(Group { key, dma, receiver, sender, doorbell }));
        Ok(index)
    }

    /// Closes a group, whatever is on its way in it.
    pub(super) fn close(&mut self, index: usize) {
        if let Some(group) = self.groups[index].take() {
            self.service.closed(group.key);
        }
    }

    /// One turn of the card's reactor; whether something moved.
    pub(super) fn turn(&mut self, clock: &SimClock) -> Result<bool, Failure> {
        let mut moved = self.service.poll(clock.now());
        for group in self.groups.iter_mut().flatten() {
            let turned = group.turn(&mut self.service);
            moved |= turned.map_err(|error| Failure::new(format!("the card gave a ring up: {error}")))?;
        }
        let before = std::mem::replace(&mut self.log_used, self.service.files().log_used());
        self.cleaned += u64::from(self.log_used < before);
        Ok(moved)
    }

    /// The process ends; what it leaves is the disk.
    pub(super) fn into_disk(self) -> SimDisk {
        self.service.into_device()
    }
}

impl Group {
    fn turn(&mut self, service: &mut FilesService<SimDisk>) -> Result<bool, RingError> {
        let mut moved = false;
        if self.doorbell.take() {
            self.receiver.wake();
            self.sender.wake();
        }
        while let Some(completion) = self.dma.poll() {
            if completion.token.0 >= RESPONSE.0 {
                self.sender.complete(completion)?;
                continue;
            }
            if let Received::Batch(batch) = self.receiver.complete(&mut self.dma, completion)? {
                moved = true;
                service.requests(self.key, batch, &mut self.sender);
            }
        }
        service.responses(self.key, &mut self.sender);
        moved |= self.sender.has_ready();
        self.sender.step(&mut self.dma)?;
        self.receiver.step(&mut self.dma)?;
        // Hosts here do not sleep, so there is nobody to ring for.
        let _ = (self.receiver.bell_due(), self.sender.bell_due());
        Ok(moved)
    }
}

/// A disk that is waited for by moving the clock, and that may be gone after some operations.
pub(crate) struct SimDrive<'a> {
    device: Fragile<'a>,
    clock: SimClock,
}

struct Fragile<'a> {
    disk: &'a mut SimDisk,
    left: Option<u32>,
}

impl<'a> SimDrive<'a> {
    pub(crate) fn new(disk: &'a mut SimDisk, clock: SimClock, left: Option<u32>) -> Self {
        Self { device: Fragile { disk, left }, clock }
    }
}

impl Device for Fragile<'_> {
    fn info(&self) -> DeviceInfo {
        self.disk.info()
    }

    fn submit(&mut self, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        match &mut self.left {
            Some(0) => return Err(Refused { op, reason: RefusedReason::Gone }),
            Some(left) => *left -= 1,
            None => {}
        }
        self.disk.submit(token, op)
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        self.disk.poll()
    }
}

impl Drive for SimDrive<'_> {
    fn device(&mut self) -> &mut dyn Device {
        &mut self.device
    }

    fn wait(&mut self) {
        if let Some(due) = self.device.disk.next_due() {
            self.clock.advance_to(due);
        }
    }
}
