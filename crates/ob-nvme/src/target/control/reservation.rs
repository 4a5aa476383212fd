//! Reservations of a namespace: who has registered, who holds it, and what that forbids to others (Base §8.20).
//!
//! ```text
//!   register ─▶ registrant ── acquire ─▶ holder ── release ─▶ registrant ── unregister ─▶ nobody
//!                    └── preempted or cleared by another registrant ──────────────────────▶
//! ```
//!
//! A host is its HOSTID: all of its controllers share one registration. The state is plain data that
//! [`ReservationState::encode`] turns into bytes and back, so that it survives a loss of power where hosts ask for that.

use ob_wire_nvme::Status;
use ob_wire_nvme::io::{ReservationRegisterAction, ReservationType};
use ob_wire_nvme::log::ReservationNotificationKind;

use super::Access;
use crate::plant::{self, Bug};

/// Registrants of a namespace at most: what a host can make the target remember is bounded.
pub const REGISTRANTS_MAX: usize = 64;

/// Whether all registrants hold it, rather than one.
const fn is_all_registrants(kind: ReservationType) -> bool {
    matches!(kind, ReservationType::WriteExclusiveAll | ReservationType::ExclusiveAccessAll)
}

/// Whether registrants that do not hold it may do what the holder may.
const fn serves_registrants(kind: ReservationType) -> bool {
    !matches!(kind, ReservationType::WriteExclusive | ReservationType::ExclusiveAccess)
}

/// Whether it restricts nobody's reading.
const fn lets_strangers_read(kind: ReservationType) -> bool {
    matches!(
        kind,
        ReservationType::WriteExclusive
            | ReservationType::WriteExclusiveRegistrants
            | ReservationType::WriteExclusiveAll
    )
}

/// A host that has registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredHost {
    /// HOSTID.
    pub host_id: [u8; 16],
    /// Its key.
    pub key: u64,
}

/// Who holds a namespace, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Held {
    kind: ReservationType,
    /// Who holds it; of no meaning where all registrants do.
    host_id: [u8; 16],
}

/// A namespace's reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReservationState {
    /// Grows with every change; what a save is compared with.
    version: u64,
    /// GEN.
    generation: u32,
    /// PTPL: registrations and the reservation survive a loss of power.
    persists: bool,
    registrants: Vec<RegisteredHost>,
    held: Option<Held>,
}

/// What a command did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Whether the state is another now.
    pub(super) changed: bool,
    /// Who is to be told what.
    pub(super) notices: Vec<([u8; 16], ReservationNotificationKind)>,
    /// Hosts that lost their registration to a preempt.
    pub(super) preempted: Vec<[u8; 16]>,
}

const CONFLICT: Status = Status::RESERVATION_CONFLICT.with_do_not_retry();
const INVALID: Status = Status::INVALID_FIELD.with_do_not_retry();

impl ReservationState {
    /// Grows with every change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// GEN.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether this is to survive a loss of power.
    #[must_use]
    pub fn persists(&self) -> bool {
        self.persists
    }

    /// Who has registered, in the order in which they came.
    #[must_use]
    pub fn registrants(&self) -> &[RegisteredHost] {
        &self.registrants
    }

    /// The type, if the namespace is reserved.
    #[must_use]
    pub fn kind(&self) -> Option<ReservationType> {
        self.held.map(|held| held.kind)
    }

    /// Whether a host holds the reservation.
    #[must_use]
    pub fn is_holder(&self, host_id: &[u8; 16]) -> bool {
        self.held.is_some_and(|held| {
            if is_all_registrants(held.kind) {
                self.registrant(host_id).is_some()
            } else {
                held.host_id == *host_id
            }
        })
    }

    /// Whether reservations let a host's command through (Base figure "Command Behavior in the Presence of a
    /// Reservation").
    #[must_use]
    pub fn admits(&self, host_id: &[u8; 16], access: Access) -> bool {
        let Some(held) = self.held else { return true };
        let is_let_through = match access {
            Access::Read => lets_strangers_read(held.kind),
            Access::Write | Access::Flush => false,
        };
        is_let_through
            || self.is_holder(host_id)
            || (serves_registrants(held.kind) && self.registrant(host_id).is_some())
    }

    /// Sets PTPL.
    pub(super) fn set_persists(&mut self, persists: bool) -> Outcome {
        let changed = self.persists != persists;
        self.persists = persists;
        self.done(Outcome { changed, ..Outcome::default() })
    }

    /// Reservation Register. `persists` is CPTPL, if it asks for a change.
    pub(super) fn register(
        &mut self,
        host_id: &[u8; 16],
        action: ReservationRegisterAction,
        ignore_key: bool,
        (current, new): (u64, u64),
        persists: Option<bool>,
    ) -> Result<Outcome, Status> {
        let mut outcome = Outcome { changed: true, ..Outcome::default() };
        let registered = self.registrant(host_id).map(|found| found.key);
        if action == ReservationRegisterAction::Replace && new == 0 {
            return Err(INVALID);
        }
        match (action, registered) {
            (ReservationRegisterAction::Register, None) => self.add(host_id, new)?,
            (ReservationRegisterAction::Register, Some(key)) if key != new => return Err(CONFLICT),
            (ReservationRegisterAction::Register, Some(_)) => {}
            (ReservationRegisterAction::Replace, None) if ignore_key => self.add(host_id, new)?,
            (ReservationRegisterAction::Unregister | ReservationRegisterAction::Replace, None) => {
                return Err(CONFLICT);
            }
            (_, Some(key)) if key != current && !ignore_key => return Err(CONFLICT),
            (ReservationRegisterAction::Replace, Some(_)) => {
                let found = self.registrants.iter_mut().find(|found| found.host_id == *host_id);
                if let Some(found) = found {
                    found.key = new;
                }
            }
            (ReservationRegisterAction::Unregister, Some(_)) => self.unregister(host_id, &mut outcome),
        }
        if let Some(persists) = persists {
            self.persists = persists;
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(self.done(outcome))
    }

    /// Reservation Acquire without preemption.
    pub(super) fn acquire(
        &mut self,
        host_id: &[u8; 16],
        key: u64,
        kind: ReservationType,
    ) -> Result<Outcome, Status> {
        self.check_key(host_id, key)?;
        match self.held {
            None => {
                self.held = Some(Held { kind, host_id: *host_id });
                Ok(self.done(Outcome { changed: true, ..Outcome::default() }))
            }
            // Acquiring again what one holds changes nothing.
            Some(held) if held.kind == kind && self.is_holder(host_id) => Ok(Outcome::default()),
            Some(_) => Err(CONFLICT),
        }
    }

    /// Reservation Acquire with preemption of whoever registered `preempt_key`, or, where all registrants hold
    /// and the key is 0, of everybody else.
    pub(super) fn preempt(
        &mut self,
        host_id: &[u8; 16],
        key: u64,
        preempt_key: u64,
        kind: ReservationType,
    ) -> Result<Outcome, Status> {
        self.check_key(host_id, key)?;
        let before = self.held;
        let takes_over = match before {
            None => false,
            Some(held) if is_all_registrants(held.kind) => preempt_key == 0,
            Some(held) => {
                if preempt_key == 0 {
                    return Err(INVALID);
                }
                self.registrant(&held.host_id).is_some_and(|holder| holder.key == preempt_key)
            }
        };
        let is_everybody = before.is_some_and(|held| is_all_registrants(held.kind)) && preempt_key == 0;
        let matches = |found: &RegisteredHost| is_everybody || found.key == preempt_key;
        if !takes_over && !self.registrants.iter().any(matches) {
            return Err(CONFLICT);
        }
        let preempted: Vec<[u8; 16]> = self
            .registrants
            .iter()
            .filter(|found| matches(found) && found.host_id != *host_id)
            .map(|found| found.host_id)
            .collect();
        self.registrants.retain(|found| !preempted.contains(&found.host_id));
        let mut outcome = Outcome { changed: true, ..Outcome::default() };
        outcome.notices = preempted
            .iter()
            .map(|host| (*host, ReservationNotificationKind::RegistrationPreempted))
            .collect();
        outcome.preempted = preempted;
        if takes_over {
            self.held = Some(Held { kind, host_id: *host_id });
            if before.is_some_and(|held| held.kind != kind) {
                self.notify_others(host_id, ReservationNotificationKind::ReservationReleased, &mut outcome);
            }
        }
        self.generation = self.generation.wrapping_add(1);
        Ok(self.done(outcome))
    }

    /// Reservation Release. `kind` is RTYPE, whether it exists or not.
    pub(super) fn release(
        &mut self,
        host_id: &[u8; 16],
        key: u64,
        kind: Option<ReservationType>,
    ) -> Result<Outcome, Status> {
        self.check_key(host_id, key)?;
        let Some(held) = self.held else { return Ok(Outcome::default()) };
        // Whoever does not hold it releases nothing, and that is no error.
        if !self.is_holder(host_id) {
            return Ok(Outcome::default());
        }
        if kind != Some(held.kind) {
            return Err(INVALID);
        }
        self.held = None;
        let mut outcome = Outcome { changed: true, ..Outcome::default() };
        if serves_registrants(held.kind) {
            self.notify_others(host_id, ReservationNotificationKind::ReservationReleased, &mut outcome);
        }
        Ok(self.done(outcome))
    }

    /// Reservation Release with the clear action.
    pub(super) fn clear(&mut self, host_id: &[u8; 16], key: u64) -> Result<Outcome, Status> {
        self.check_key(host_id, key)?;
        let mut outcome = Outcome { changed: true, ..Outcome::default() };
        self.notify_others(host_id, ReservationNotificationKind::ReservationPreempted, &mut outcome);
        self.registrants.clear();
        self.held = None;
        self.generation = self.generation.wrapping_add(1);
        Ok(self.done(outcome))
    }

    fn registrant(&self, host_id: &[u8; 16]) -> Option<&RegisteredHost> {
        self.registrants.iter().find(|found| found.host_id == *host_id)
    }

    fn check_key(&self, host_id: &[u8; 16], key: u64) -> Result<(), Status> {
        let found = self.registrant(host_id).filter(|found| found.key == key);
        found.map(|_| ()).ok_or(CONFLICT)
    }

    fn add(&mut self, host_id: &[u8; 16], key: u64) -> Result<(), Status> {
        if key == 0 {
            return Err(INVALID);
        }
        if self.registrants.len() >= REGISTRANTS_MAX {
            // Nothing of the host's is wrong: once another has left, the same command works.
            return Err(Status::INSUFFICIENT_CAPACITY);
        }
        self.registrants.push(RegisteredHost { host_id: *host_id, key });
        Ok(())
    }

    /// The last holder takes the reservation along.
    fn unregister(&mut self, host_id: &[u8; 16], outcome: &mut Outcome) {
        let was_holder = self.is_holder(host_id);
        self.registrants.retain(|found| found.host_id != *host_id);
        let Some(held) = self.held else { return };
        let ends = if is_all_registrants(held.kind) { self.registrants.is_empty() } else { was_holder };
        if !ends {
            return;
        }
        self.held = None;
        if serves_registrants(held.kind) {
            self.notify_others(host_id, ReservationNotificationKind::ReservationReleased, outcome);
        }
    }

    fn notify_others(&self, host_id: &[u8; 16], kind: ReservationNotificationKind, outcome: &mut Outcome) {
        let others = self.registrants.iter().filter(|found| found.host_id != *host_id);
        outcome.notices.extend(others.map(|found| (found.host_id, kind)));
    }

    fn done(&mut self, outcome: Outcome) -> Outcome {
        if outcome.changed {
            self.version += 1;
        }
        outcome
    }
}

/// The saved form, as `docs/format/reservations.md` has it.
mod saved {
    pub(super) const MAGIC: [u8; 4] = *b"OBRS";
    pub(super) const VERSION: u32 = 1;
    pub(super) const HEADER_LEN: usize = 28;
    pub(super) const ENTRY_LEN: usize = 24;
    pub(super) const NO_HOLDER: u32 = u32::MAX;
}

impl ReservationState {
    /// The bytes to save.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(saved::HEADER_LEN + self.registrants.len() * saved::ENTRY_LEN + 4);
        let holder = self
            .held
            .filter(|held| !is_all_registrants(held.kind))
            .and_then(|held| self.registrants.iter().position(|found| found.host_id == held.host_id))
            .and_then(|index| u32::try_from(index).ok())
            .unwrap_or(saved::NO_HOLDER);
        let count = u16::try_from(self.registrants.len()).unwrap_or(u16::MAX);
        bytes.extend_from_slice(&saved::MAGIC);
        bytes.extend_from_slice(&saved::VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&self.generation.to_le_bytes());
        bytes.push(u8::from(self.persists));
        bytes.push(self.kind().map_or(0, ReservationType::code));
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(&holder.to_le_bytes());
        for registrant in &self.registrants {
            if plant::is_planted(Bug::RegistrantFieldsSwapped) {
                bytes.extend_from_slice(&registrant.key.to_le_bytes());
                bytes.extend_from_slice(&registrant.host_id);
                continue;
            }
            bytes.extend_from_slice(&registrant.host_id);
            bytes.extend_from_slice(&registrant.key.to_le_bytes());
        }
        let checksum = ob_wire_nvme::pdu::digest(&bytes);
        bytes.extend_from_slice(&checksum);
        bytes
    }

    /// What survives a loss of power of what was saved: everything where hosts asked for that, nothing otherwise.
    pub fn decode(bytes: &[u8]) -> Result<Self, super::AdminError> {
        let damaged = super::AdminError::BadReservations;
        let (body, checksum) = bytes.split_last_chunk::<4>().ok_or(damaged("too short"))?;
        if ob_wire_nvme::pdu::digest(body) != *checksum {
            return Err(damaged("the checksum does not fit"));
        }
        let (header, entries) =
            body.split_first_chunk::<{ saved::HEADER_LEN }>().ok_or(damaged("too short"))?;
        let word = |at: usize| {
            let bytes = header.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u32::from_le_bytes)
        };
        if header.get(..4) != Some(&saved::MAGIC) || word(4) != saved::VERSION {
            return Err(damaged("not of this version"));
        }
        let (persists, kind) = (header[20] == 1, header[21]);
        if header[20] > 1 {
            return Err(damaged("neither to survive nor not"));
        }
        let registrants = decode_registrants(entries).ok_or(damaged("a registrant is cut off"))?;
        let is_count_right = registrants.len() == usize::from(u16::from_le_bytes([header[22], header[23]]));
        if !is_count_right || registrants.len() > REGISTRANTS_MAX {
            return Err(damaged("the number of registrants does not fit"));
        }
        let is_unique = |(at, one): (usize, &RegisteredHost)| {
            one.key != 0 && !registrants[..at].iter().any(|before| before.host_id == one.host_id)
        };
        if !registrants.iter().enumerate().all(is_unique) {
            return Err(damaged("a host has registered twice, or without a key"));
        }
        let version = u64::from(word(8)) | u64::from(word(12)) << 32;
        if !persists {
            return Ok(Self { version, ..Self::default() });
        }
        let held = if kind == 0 {
            None
        } else {
            let kind = ReservationType::try_from(kind).map_err(|_| damaged("unknown type of reservation"))?;
            let holder = registrants.get(word(24) as usize).map(|found| found.host_id);
            let all = (is_all_registrants(kind) && !registrants.is_empty()).then_some([0; 16]);
            Some(Held { kind, host_id: all.or(holder).ok_or(damaged("the holder has not registered"))? })
        };
        Ok(Self { version, generation: word(16), persists, registrants, held })
    }
}

fn decode_registrants(entries: &[u8]) -> Option<Vec<RegisteredHost>> {
    let (entries, rest) = entries.as_chunks::<{ saved::ENTRY_LEN }>();
    if !rest.is_empty() {
        return None;
    }
    let decode = |entry: &[u8; saved::ENTRY_LEN]| {
        let (host_id, key) = match plant::is_planted(Bug::RegistrantFieldsSwapped) {
            true => entry.split_last_chunk::<16>().map(|(key, host_id)| (host_id, key))?,
            false => entry.split_first_chunk::<16>()?,
        };
        Some(RegisteredHost { host_id: *host_id, key: u64::from_le_bytes(key.try_into().ok()?) })
    };
    entries.iter().map(decode).collect()
}
