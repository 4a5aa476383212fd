//! Reads of the card's own files, and their names.

use std::collections::{BTreeMap, VecDeque};

use ob_core::{NodeId, NodeKind, Token};
use ob_files_card::{Completion, FileVersion, LocalFiles, MetadataOp, Op, Outcome};
use ob_format::files::ROOT;
use ob_nvme::target::control::{ControllerKey, SubsystemKey};
use ob_nvme::target::{ForeignKey, Loan, Ticket};
use ob_wire_link::files::FileError;

use super::NamedFiles;

/// The card's files, as requests read them.
pub(super) struct Names {
    files: LocalFiles,
    folders: BTreeMap<SubsystemKey, Vec<u8>>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// What the files have no room for now.
    backlog: VecDeque<(Token, Op)>,
}

struct Flight {
    /// Whose it is; nobody's if its command is over.
    key: Option<ForeignKey>,
    kind: Kind,
}

enum Kind {
    Open(ControllerKey),
    Read(Ticket),
    Look,
}

/// What came of something.
pub(super) enum Named {
    Opened {
        key: ForeignKey,
        controller: ControllerKey,
        result: Result<NodeId, FileError>,
    },
    /// The buffer, how much of it is filled, and what the file was like.
    Read {
        key: ForeignKey,
        result: Result<(u32, Option<FileVersion>), FileError>,
        buffer: Loan,
    },
    Looked {
        key: ForeignKey,
        version: Option<FileVersion>,
    },
}

impl Names {
    pub(super) fn new(named: NamedFiles) -> Self {
        let NamedFiles { files, folders } = named;
        Self { files, folders, flights: Vec::new(), free: Vec::new(), backlog: VecDeque::new() }
    }

    /// Bytes of a block of the device that they lie on.
    pub(super) fn block_len(&self) -> u32 {
        self.files.card_info().block_len
    }

    /// Whether hosts of a subsystem may open anything.
    pub(super) fn has_folder(&self, subsystem: SubsystemKey) -> bool {
        self.folders.contains_key(&subsystem)
    }

    /// Begins to open a file of the subsystem's folder; whether there is such a folder.
    pub(super) fn open(
        &mut self,
        (key, controller): (ForeignKey, ControllerKey),
        subsystem: SubsystemKey,
        name: &[u8],
    ) -> bool {
        let Some(folder) = self.folders.get(&subsystem) else { return false };
        let parts = [folder.as_slice(), name].map(trim_slashes);
        let path = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(&b'/');
        let open = MetadataOp::Open { base: ROOT, path, create: false, exclusive: false };
        self.submit(key, Kind::Open(controller), Op::Metadata(open));
        true
    }

    /// Begins to read; the buffer comes back whole.
    pub(super) fn read(&mut self, key: ForeignKey, file: NodeId, offset: u64, len: u32, into: Loan) {
        let (into, ticket) = into.check_out();
        self.submit(key, Kind::Read(ticket), Op::Read { file, offset, len, into });
    }

    /// Begins to ask what a file is like. The empty buffer is because every read has one.
    pub(super) fn look(&mut self, key: ForeignKey, file: NodeId, empty: Loan) {
        let (into, _) = empty.check_out();
        self.submit(key, Kind::Look, Op::Read { file, offset: 0, len: 0, into });
    }

    fn submit(&mut self, key: ForeignKey, kind: Kind, op: Op) {
        let at = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        if let Some(flight) = self.flights.get_mut(at) {
            *flight = Some(Flight { key: Some(key), kind });
        }
        self.backlog.push_back((Token(at as u64), op));
        self.push_on();
    }

    fn push_on(&mut self) {
        while let Some((token, op)) = self.backlog.pop_front() {
            if let Err(op) = self.files.submit(token, op) {
                return self.backlog.push_front((token, op));
            }
        }
    }

    /// A command is over. What it reads is under way all the same.
    pub(super) fn forget(&mut self, key: ForeignKey) {
        for flight in self.flights.iter_mut().flatten().filter(|flight| flight.key == Some(key)) {
            flight.key = None;
        }
    }

    /// The next thing that is over, of a command that is not.
    pub(super) fn poll(&mut self) -> Option<Named> {
        loop {
            let completion = self.files.poll()?;
            self.push_on();
            if let Some(named) = self.over(completion) {
                return Some(named);
            }
        }
    }

    fn over(&mut self, completion: Completion) -> Option<Named> {
        let Completion { token, result, buffer } = completion;
        let at = token.0 as usize;
        let Flight { key, kind } = self.flights.get_mut(at)?.take()?;
        self.free.push(at);
        let key = key?;
        Some(match kind {
            Kind::Open(controller) => {
                let result = result.and_then(|outcome| match outcome {
                    Outcome::Node(node) if node.kind == NodeKind::File => Ok(node.id),
                    _ => Err(FileError::IsADirectory),
                });
                Named::Opened { key, controller, result }
            }
            Kind::Read(ticket) => {
                let result = result.and_then(|outcome| match outcome {
                    Outcome::Read { len, version } => Ok((len, version)),
                    _ => Err(FileError::Io),
                });
                Named::Read { key, result, buffer: ticket.loan(buffer?) }
            }
            Kind::Look => {
                let version = match result {
                    Ok(Outcome::Read { version, .. }) => version,
                    _ => None,
                };
                Named::Looked { key, version }
            }
        })
    }
}

fn trim_slashes(path: &[u8]) -> &[u8] {
    let begin = path.iter().position(|byte| *byte != b'/').unwrap_or(path.len());
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(begin, |last| last + 1);
    path.get(begin..end).unwrap_or_default()
}
