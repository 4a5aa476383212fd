//! Lists: of namespaces, of controllers, of a namespace's ids, of command sets.

use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::IDENTIFY_LEN;
use crate::id::{ControllerId, NamespaceId};
use crate::status::Status;

const NAMESPACES_MAX: usize = 1024;
const CONTROLLERS_MAX: usize = 2047;

layout! {
    /// A list of namespaces in rising order, ended by a zero or by its end: CNS 02h, 07h and 10h (Base §5.17.2.2), and
    /// the changed namespace list (Base §5.16.1.5).
    NamespaceList[4096] {
        /// NSIDs.
        0 => ids: [U32; NAMESPACES_MAX],
    }

    /// A list of controllers in rising order, CNS 12h and 13h (Base §4.4.1).
    ControllerList[4096] {
        /// How many.
        0 => count: U16,
        /// CNTLIDs.
        2 => ids: [U16; CONTROLLERS_MAX],
    }

    /// Combinations of I/O command sets, CNS 1Ch (Base §5.17.2.21).
    CommandSetCombinations[4096] {
        /// Each with a bit for each command set.
        0 => combinations: [U64; 512],
    }

    /// Before each of a namespace's ids, CNS 03h (Base §5.17.2.3).
    IdDescriptorHeader[4] {
        /// NIDT.
        0 => kind: u8,
        /// NIDL: bytes that follow.
        1 => len: u8,
        /// Reserved.
        2 => reserved: [u8; 2],
    }
}

const EUI64: u8 = 1;
const NGUID: u8 = 2;
const UUID: u8 = 3;
const COMMAND_SET: u8 = 4;

impl NamespaceList {
    /// The namespaces behind `after`, as many as fit. `ids` come in rising order. The two largest numbers begin
    /// no list (Base §5.17.2.2).
    pub fn new(after: NamespaceId, ids: impl IntoIterator<Item = NamespaceId>) -> Result<Self, Status> {
        if after.0 >= u32::MAX - 1 {
            return Err(Status::INVALID_NAMESPACE.with_do_not_retry());
        }
        let mut list = Self::default();
        for (place, id) in list.ids.iter_mut().zip(ids.into_iter().filter(|id| *id > after)) {
            *place = id.0.into();
        }
        Ok(list)
    }

    /// What changed: more than fit are said to be all (Base §5.16.1.5).
    #[must_use]
    pub fn changed(ids: impl IntoIterator<Item = NamespaceId>) -> Self {
        let mut list = Self::default();
        let mut ids = ids.into_iter();
        for (place, id) in list.ids.iter_mut().zip(ids.by_ref()) {
            *place = id.0.into();
        }
        if ids.next().is_some() {
            list = Self::default();
            list.ids[0] = NamespaceId::ALL.0.into();
        }
        list
    }

    /// The namespaces.
    pub fn iter(&self) -> impl Iterator<Item = NamespaceId> {
        self.ids.iter().map(|id| NamespaceId(id.get())).take_while(|id| *id != NamespaceId::NONE)
    }

    /// Whether there may be more behind the last.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.ids.iter().all(|id| id.get() != 0)
    }
}

impl ControllerList {
    /// The controllers from `from` on, as many as fit. `ids` come in rising order.
    #[must_use]
    pub fn new(from: ControllerId, ids: impl IntoIterator<Item = ControllerId>) -> Self {
        let mut list = Self::default();
        let mut count = 0;
        for (place, id) in list.ids.iter_mut().zip(ids.into_iter().filter(|id| *id >= from)) {
            *place = id.0.into();
            count += 1;
        }
        list.count = count.into();
        list
    }

    /// The controllers; a count beyond the list's end is cut.
    pub fn iter(&self) -> impl Iterator<Item = ControllerId> {
        self.ids.iter().take(usize::from(self.count.get())).map(|id| ControllerId(id.get()))
    }
}

impl CommandSetCombinations {
    /// The NVM command set alone.
    #[must_use]
    pub fn nvm() -> Self {
        let mut combinations = Self::default();
        combinations.combinations[0] = 1.into();
        combinations
    }
}

/// What is wrong with a list of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdDescriptorError {
    /// A descriptor reaches beyond the list.
    #[error("an id descriptor reaches beyond the list")]
    Length,
    /// A descriptor of a known kind has another length than that kind.
    #[error("id descriptor of type {kind} with {len} bytes")]
    Kind {
        /// NIDT.
        kind: u8,
        /// NIDL.
        len: u8,
    },
}

/// A namespace's ids. At least one of the first three is there, if the list is to be of use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceIds {
    /// EUI64.
    pub eui64: Option<[u8; 8]>,
    /// NGUID.
    pub nguid: Option<[u8; 16]>,
    /// UUID.
    pub uuid: Option<[u8; 16]>,
    /// CSI.
    pub command_set: Option<u8>,
}

impl NamespaceIds {
    /// CNS 03h.
    #[must_use]
    pub fn encode(&self) -> [u8; IDENTIFY_LEN] {
        let command_set = self.command_set.map(|id| [id]);
        let ids: [(u8, Option<&[u8]>); 4] = [
            (EUI64, self.eui64.as_ref().map(|id| id.as_slice())),
            (NGUID, self.nguid.as_ref().map(|id| id.as_slice())),
            (UUID, self.uuid.as_ref().map(|id| id.as_slice())),
            (COMMAND_SET, command_set.as_ref().map(|id| id.as_slice())),
        ];
        let mut list = Vec::with_capacity(IDENTIFY_LEN);
        for (kind, id) in ids {
            if let Some(id) = id {
                list.extend_from_slice(&[kind, id.len() as u8, 0, 0]);
                list.extend_from_slice(id);
            }
        }
        let mut bytes = [0; IDENTIFY_LEN];
        for (byte, value) in bytes.iter_mut().zip(list) {
            *byte = value;
        }
        bytes
    }

    /// Reads a list. Kinds that are not known are skipped; of two of a kind the first counts.
    pub fn parse(mut bytes: &[u8]) -> Result<Self, IdDescriptorError> {
        let mut ids = Self::default();
        while let Ok((header, rest)) = IdDescriptorHeader::read_from_prefix(bytes) {
            if header.len == 0 {
                break;
            }
            let (id, rest) =
                rest.split_at_checked(usize::from(header.len)).ok_or(IdDescriptorError::Length)?;
            ids.take(header.kind, id)
                .ok_or(IdDescriptorError::Kind { kind: header.kind, len: header.len })?;
            bytes = rest;
        }
        Ok(ids)
    }

    /// `None` if the length is not the kind's.
    fn take(&mut self, kind: u8, id: &[u8]) -> Option<()> {
        match kind {
            EUI64 => self.eui64 = self.eui64.or(Some(id.try_into().ok()?)),
            NGUID => self.nguid = self.nguid.or(Some(id.try_into().ok()?)),
            UUID => self.uuid = self.uuid.or(Some(id.try_into().ok()?)),
            COMMAND_SET => {
                let [command_set] = id.try_into().ok()?;
                self.command_set = self.command_set.or(Some(command_set));
            }
            _ => {}
        }
        Some(())
    }
}
