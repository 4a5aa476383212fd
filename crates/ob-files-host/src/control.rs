//! Operations that are no transfers: their messages, and what answers mean for them.

use ob_core::{NodeId, NodeKind};
use ob_ring::{Outgoing, PushError};
use ob_wire_link::files::{
    Entries, NodeInfo, Operation, REQUEST_LEN, ROOT, RequestHeader, ResponseHeader, SpaceInfo, flag,
};

use crate::error::{Error, Fault, Result};
use crate::lane::Limits;
use crate::options::OpenOptions;
use crate::path::{self, AsPath};
use crate::request::{DirectoryEntry, DirectoryPage, RequestId, Sending, Source, Step, Value};

/// Bytes of a list that are asked for at once.
const LIST_LEN: usize = 64 << 10;
/// Entries of one list at most: a card that makes names up must not take all of the application's memory.
const LIST_ENTRIES_MAX: usize = 1 << 22;

/// An operation that is no transfer.
pub(crate) struct Control {
    header: RequestHeader,
    /// Room for the header, then the paths or names.
    message: Vec<u8>,
    flying: bool,
    then: Then,
}

/// What an answer is good for.
enum Then {
    Nothing,
    Node,
    File { truncate: bool },
    Space,
    Resolve,
    List(Vec<DirectoryEntry>),
    Page,
}

/// What may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removed {
    File,
    Directory,
    Either,
}

impl Control {
    fn new(operation: Operation, then: Then) -> Self {
        let header = RequestHeader { operation: operation.code(), node: ROOT, ..RequestHeader::default() };
        Self { header, message: vec![0; REQUEST_LEN], flying: false, then }
    }

    pub(crate) fn flush() -> Self {
        Self::new(Operation::Flush, Then::Nothing)
    }

    pub(crate) fn space() -> Self {
        Self::new(Operation::Space, Then::Space)
    }

    pub(crate) fn open(path: &(impl AsPath + ?Sized), options: OpenOptions) -> Result<Self> {
        let mut control = Self::new(Operation::Open, Then::File { truncate: options.truncate });
        path::append_below_root(path, &mut control.message)?;
        control.header.flags = match (options.create_new, options.create) {
            (true, _) => flag::CREATE | flag::EXCLUSIVE,
            (false, true) => flag::CREATE,
            (false, false) => 0,
        };
        Ok(control)
    }

    pub(crate) fn make_directory(path: &(impl AsPath + ?Sized)) -> Result<Self> {
        let mut control = Self::new(Operation::MakeDirectory, Then::Node);
        path::append_below_root(path, &mut control.message)?;
        Ok(control)
    }

    pub(crate) fn remove(path: &(impl AsPath + ?Sized), removed: Removed) -> Result<Self> {
        let mut control = Self::new(Operation::Remove, Then::Nothing);
        path::append_below_root(path, &mut control.message)?;
        control.header.flags = match removed {
            Removed::File => flag::ONLY_FILE,
            Removed::Directory => flag::ONLY_DIRECTORY,
            Removed::Either => 0,
        };
        Ok(control)
    }

    pub(crate) fn rename(
        from: &(impl AsPath + ?Sized),
        to: &(impl AsPath + ?Sized),
        may_replace: bool,
    ) -> Result<Self> {
        let mut control = Self::new(Operation::Rename, Then::Nothing);
        path::append_below_root(from, &mut control.message)?;
        control.header.length = (control.message.len() - REQUEST_LEN) as u32;
        path::append_below_root(to, &mut control.message)?;
        control.header.node_more = ROOT;
        control.header.flags = if may_replace { 0 } else { flag::NO_REPLACE };
        Ok(control)
    }

    pub(crate) fn stat(path: &(impl AsPath + ?Sized)) -> Result<Self> {
        let mut control = Self::new(Operation::Stat, Then::Node);
        path::append(path, &mut control.message)?;
        Ok(control)
    }

    pub(crate) fn stat_node(node: NodeId) -> Self {
        let mut control = Self::new(Operation::Stat, Then::Node);
        control.header.node = node;
        control
    }

    pub(crate) fn resize(node: NodeId, size: u64) -> Self {
        let mut control = Self::new(Operation::Resize, Then::Node);
        (control.header.node, control.header.offset) = (node, size);
        control
    }

    pub(crate) fn zero(node: NodeId, offset: u64, len: u32) -> Self {
        let mut control = Self::new(Operation::Zero, Then::Nothing);
        (control.header.node, control.header.offset, control.header.length) = (node, offset, len);
        control
    }

    /// All of a directory's entries, page after page.
    pub(crate) fn list(path: &(impl AsPath + ?Sized)) -> Result<Self> {
        let mut control = Self::new(Operation::Stat, Then::Resolve);
        path::append(path, &mut control.message)?;
        if control.message.len() == REQUEST_LEN {
            control.list_next(ROOT, &[]);
            control.then = Then::List(Vec::new());
        }
        Ok(control)
    }

    /// One page: the entries behind this name.
    pub(crate) fn list_page(node: NodeId, after: &[u8]) -> Self {
        let mut control = Self::new(Operation::List, Then::Page);
        control.list_next(node, after);
        control
    }

    fn list_next(&mut self, node: NodeId, after: &[u8]) {
        self.header = RequestHeader { operation: Operation::List.code(), node, ..RequestHeader::default() };
        self.message.truncate(REQUEST_LEN);
        self.message.extend_from_slice(after);
    }

    pub(crate) fn is_out(&self) -> bool {
        self.flying
    }

    pub(crate) fn send(
        &mut self,
        id: RequestId,
        limits: Limits,
        mut push: impl FnMut(Outgoing<'_>) -> std::result::Result<(), PushError>,
    ) -> Sending {
        if self.flying {
            return Sending::Done;
        }
        self.header.id = id.at(0);
        if self.header.operation == Operation::List.code() {
            self.header.length = limits.read_max.min(LIST_LEN) as u32;
        }
        self.message[..REQUEST_LEN].copy_from_slice(&self.header.encode());
        match push(Outgoing { inline: &self.message, payload: None }) {
            Ok(()) => {
                self.flying = true;
                Sending::Done
            }
            Err(PushError::Retry) => Sending::Full,
            Err(PushError::Closed | PushError::Corrupt { .. }) => Sending::Closed,
            Err(PushError::TooLarge { .. }) => Sending::Failed(Error::TooLarge),
        }
    }

    pub(crate) fn answer(
        &mut self,
        place: usize,
        response: &ResponseHeader,
        rest: &[u8],
        source: &impl Source,
    ) -> Step {
        if place != 0 || !self.flying {
            return Step::Stray;
        }
        self.flying = false;
        self.take(response, rest, source).unwrap_or_else(|error| Step::Done(Err(error)))
    }

    fn take(&mut self, response: &ResponseHeader, rest: &[u8], source: &impl Source) -> Result<Step> {
        response.status?;
        let node = || NodeInfo::decode(rest).ok_or(Error::Protocol(Fault::Answer));
        let value = match &mut self.then {
            Then::Nothing => Value::Nothing,
            Then::Node => Value::Node(node()?),
            Then::Space => Value::Space(SpaceInfo::decode(rest).ok_or(Error::Protocol(Fault::Answer))?),
            Then::File { truncate } => {
                let found = node()?;
                if found.kind != NodeKind::File {
                    return Err(Error::IsADirectory);
                }
                if *truncate && found.size > 0 {
                    *self = Self::resize(found.id, 0);
                    return Ok(Step::Send);
                }
                Value::Node(found)
            }
            Then::Resolve => {
                let found = node()?;
                if found.kind != NodeKind::Directory {
                    return Err(Error::NotADirectory);
                }
                self.list_next(found.id, &[]);
                self.then = Then::List(Vec::new());
                return Ok(Step::Send);
            }
            Then::Page => Value::Page(self.page(response, source)?),
            Then::List(_) => return self.next_page(response, source),
        };
        Ok(Step::Done(Ok(value)))
    }

    fn next_page(&mut self, response: &ResponseHeader, source: &impl Source) -> Result<Step> {
        let page = self.page(response, source)?;
        let Then::List(entries) = &mut self.then else { return Ok(Step::Stray) };
        if page.entries.len() > LIST_ENTRIES_MAX.saturating_sub(entries.len()) {
            return Err(Error::TooLarge);
        }
        entries.extend(page.entries);
        if !page.more {
            return Ok(Step::Done(Ok(Value::Entries(std::mem::take(entries)))));
        }
        let last = entries.last().map(|entry| entry.name.clone()).unwrap_or_default();
        self.list_next(self.header.node, &last);
        Ok(Step::Send)
    }

    /// Parses a page. One whose names do not ascend, from the one that was asked for on, could be followed by others
    /// without end.
    fn page(&self, response: &ResponseHeader, source: &impl Source) -> Result<DirectoryPage> {
        let len = response.length as usize;
        if response.length > self.header.length || source.len() != len {
            return Err(Error::Protocol(Fault::Length));
        }
        let mut bytes = vec![0; len];
        source.copy(0, &mut bytes);
        let entries = Entries::new(&bytes)
            .map(|entry| {
                let entry = entry.map_err(|_| Error::Protocol(Fault::List))?;
                let name = entry.name.to_vec();
                Ok(DirectoryEntry { name, node: entry.id, kind: entry.kind, size: entry.size })
            })
            .collect::<Result<Vec<_>>>()?;
        let after = &self.message[REQUEST_LEN..];
        let names = || entries.iter().map(|entry| entry.name.as_slice());
        let gets_on = std::iter::once(after).chain(names()).zip(names()).all(|(before, name)| before < name);
        let more = match response.value {
            0 => false,
            1 => true,
            _ => return Err(Error::Protocol(Fault::List)),
        };
        if !gets_on || more && entries.is_empty() {
            return Err(Error::Protocol(Fault::List));
        }
        Ok(DirectoryPage { entries, more })
    }
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
