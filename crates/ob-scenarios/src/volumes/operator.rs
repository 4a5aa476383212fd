//! An operator, who makes, cuts, grows, shows and removes volumes while all else goes on: of a second disk, which clients use too, and of
//! others that nobody writes to. He asks one tier at a time, and does not know what became of it if that one's host dies.
//!
//! What is beyond the end of a disk that is cut is trimmed: at some time between his asking for it and the time when it may grow again.

use ob_core::{BlockLen, Instant};
use ob_format::volume::metadata::{Class, Text};
use ob_sim::{Failure, Report, Rng};
use ob_volume::tier::{
    AdminAnswer, AdminError, AdminRequest, NEW_CHUNK_LEN_MIN, NewVolume, SEGMENT_BLOCKS, Ticket, VolumeHealth,
};

use super::judge::{Asked, History, Said};
use super::plan::{Plan, SEGMENTS};
use super::{SECOND, SECOND_NAME};

/// Volumes that nobody writes to.
const SPARE: &str = "spare";

/// What he has asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    Cut { blocks: u64, called: Instant },
    Grow,
    Remove,
    Look,
    Other,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Request {
    asking: Asking,
    ticket: Ticket,
    /// Whom he has asked, in which life.
    tier: usize,
    life: u64,
}

pub(super) struct Operator {
    rng: Rng,
    tickets: u64,
    request: Option<Request>,
    /// The second disk was cut so far, at these times, and has not grown since.
    cuts: Vec<(u64, Instant)>,
    /// It may have been, or may be gone.
    may_be_cut: bool,
    may_be_gone: bool,
    is_to_grow: bool,
    block_len: BlockLen,
    /// Blocks that clients use, by their number on a disk.
    used: std::ops::Range<u64>,
    report: Report,
}

impl Operator {
    pub(super) fn new(plan: &Plan, rng: Rng) -> Self {
        let first = plan.first_block();
        Self {
            rng,
            tickets: 0,
            request: None,
            cuts: Vec::new(),
            may_be_cut: false,
            may_be_gone: false,
            is_to_grow: false,
            block_len: plan.block_len,
            used: first..first + plan.blocks,
            report: Report::default(),
        }
    }

    /// Whether the second disk may be gone.
    pub(super) fn may_be_gone(&self) -> bool {
        self.may_be_gone
    }

    /// Whether he has all that he wants: all of it is there, or nothing.
    pub(super) fn is_over(&self) -> bool {
        (self.may_be_gone || !self.may_be_cut) && self.request.is_none()
    }

    fn is_busy(&self) -> bool {
        self.request.is_some()
    }

    pub(super) fn report(&self) -> &Report {
        &self.report
    }

    fn bytes(&self, blocks: u64) -> u64 {
        blocks * u64::from(self.block_len.bytes())
    }

    /// Whom he asks now, if anybody.
    pub(super) fn whom(&mut self, tiers: usize, one_in: u64) -> Option<usize> {
        let is_time =
            !self.is_busy() && if self.is_to_grow { !self.is_over() } else { self.rng.one_in(one_in) };
        is_time.then(|| self.rng.index(tiers))
    }

    /// He asks for nothing any more.
    pub(super) fn calm_down(&mut self) {
        (self.is_to_grow, self.may_be_cut) = (true, false);
    }

    /// He sees to it that the second disk is whole again, whatever it is.
    pub(super) fn insist(&mut self) {
        self.may_be_cut = true;
    }

    /// What he asks next, of a tier's host in this life of it.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        tier: usize,
        life: u64,
    ) -> Result<(Ticket, AdminRequest), Failure> {
        let asking = match self.rng.below(16) {
            _ if self.is_to_grow => Asking::Grow,
            0..5 => {
                let blocks = self.used.start + self.rng.below(self.used.end - self.used.start);
                Asking::Cut { blocks, called: now }
            }
            5..10 => Asking::Grow,
            10 => Asking::Remove,
            11 | 12 => Asking::Look,
            _ => Asking::Other,
        };
        self.put(asking, tier, life)
    }

    fn put(&mut self, asking: Asking, tier: usize, life: u64) -> Result<(Ticket, AdminRequest), Failure> {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let name = text(SECOND_NAME)?;
        let request = match asking {
            Asking::Cut { blocks, .. } => {
                self.may_be_cut = true;
                AdminRequest::ResizeVolume { name, size: self.bytes(blocks), may_shrink: true }
            }
            Asking::Grow => {
                let size = self.bytes(SEGMENTS * SEGMENT_BLOCKS);
                AdminRequest::ResizeVolume { name, size, may_shrink: false }
            }
            Asking::Remove => {
                self.may_be_gone = true;
                AdminRequest::RemoveVolume { name }
            }
            Asking::Look => AdminRequest::ShowVolume { name },
            Asking::Other => self.other()?,
        };
        self.request = Some(Request { asking, ticket, tier, life });
        self.report.count("operator asks", 1);
        Ok((ticket, request))
    }

    /// Something about volumes that nobody writes to.
    fn other(&mut self) -> Result<AdminRequest, Failure> {
        let name = text(SPARE)?;
        let blocks = 1 + self.rng.below(SEGMENT_BLOCKS);
        let size = self.bytes(blocks);
        Ok(match self.rng.below(4) {
            0 => AdminRequest::ListVolumes,
            1 => AdminRequest::RemoveVolume { name },
            2 => AdminRequest::ResizeVolume { name, size, may_shrink: true },
            _ => AdminRequest::CreateVolume(NewVolume {
                name,
                uuid: self.rng.word().to_le_bytes().repeat(2).try_into().unwrap_or_default(),
                size,
                block_len: self.block_len,
                class: Class::Standard,
                segment_len: self.bytes(SEGMENT_BLOCKS),
                chunk_len: NEW_CHUNK_LEN_MIN * 4,
                replicas: 3,
                replicas_min: 2,
            }),
        })
    }

    /// Whether a host has died that he has asked: he does not know what became of it.
    pub(super) fn look_after(&mut self, lives: impl Fn(usize) -> Option<u64>, history: &mut History) {
        let is_lost = |request: &mut Request| lives(request.tier) != Some(request.life);
        if let Some(request) = self.request.take_if(is_lost) {
            self.report.count("operator's answers lost", 1);
            if let Asking::Cut { blocks, called } = request.asking {
                self.note(blocks, called, None, history);
            }
        }
    }

    /// A tier has answered.
    pub(super) fn hear(
        &mut self,
        now: Instant,
        ticket: Ticket,
        answer: &Result<AdminAnswer, AdminError>,
        history: &mut History,
    ) -> Result<(), Failure> {
        let Some(request) = self.request.take_if(|request| request.ticket == ticket) else { return Ok(()) };
        self.report.count(if answer.is_ok() { "operator answered" } else { "operator refused" }, 1);
        let is_gone = self.may_be_gone();
        match (request.asking, answer) {
            // It may grow when what was cut off is trimmed, and has all its blocks then.
            (Asking::Grow, Ok(_)) => self.grown(now, history),
            (Asking::Cut { blocks, called }, Ok(_)) => self.cuts.push((blocks, called)),
            (Asking::Cut { blocks, called }, Err(_)) => self.note(blocks, called, None, history),
            (Asking::Look, Ok(AdminAnswer::Volume(facts, _)))
                if facts.health == VolumeHealth::Removing && !is_gone =>
            {
                return Err(Failure::new("a volume is being removed that nobody has removed"));
            }
            (_, Err(AdminError::UnknownVolume(name))) if *name == text(SECOND_NAME)? && !is_gone => {
                return Err(Failure::new("a volume is gone that nobody has removed"));
            }
            (_, Err(AdminError::Trouble(trouble))) => {
                return Err(Failure::new(format!("an operator is told: {trouble}")));
            }
            _ => {}
        }
        Ok(())
    }

    fn grown(&mut self, now: Instant, history: &mut History) {
        self.may_be_cut = false;
        for (first, called) in std::mem::take(&mut self.cuts) {
            self.report.count("disks cut and grown", 1);
            self.note(first, called, Some(now), history);
        }
    }

    /// What was cut off is trimmed.
    fn note(&self, first: u64, called: Instant, returned: Option<Instant>, history: &mut History) {
        for block in first.max(self.used.start)..self.used.end {
            let asked = Asked { block: SECOND | block, write: Some(0) };
            let returned = returned.map(|at| (at.nanoseconds(), Said::Done));
            history.add(usize::from(u16::MAX), asked, called.nanoseconds(), returned);
        }
    }

    /// What he does not know in the end.
    pub(super) fn close(&mut self, history: &mut History) {
        for (first, called) in std::mem::take(&mut self.cuts) {
            self.note(first, called, None, history);
        }
    }
}

fn text(name: &str) -> Result<Text<64>, Failure> {
    Text::new(name).ok_or_else(|| Failure::new("a name is no text"))
}
