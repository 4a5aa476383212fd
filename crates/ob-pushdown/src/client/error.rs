//! Why there is no answer, as something that a caller can act on.

use ob_wire_nvme::Status;

use super::transport::TransportError;

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The card does not answer this: the ordinary path does.
    #[error("not answered by the card: {0}")]
    Detour(#[from] Detour),
    /// An object is refused. The text is for its author.
    #[error("the card refuses the object: {0}")]
    Refused(String),
    /// There is no room for an object now. The text is for whoever loads it.
    #[error("the card has no room for the object: {0}")]
    NoRoom(String),
    /// No such file, or none that this host may open.
    #[error("the card has no file `{0}` that this host may open")]
    NoSuchFile(String),
    /// The request cannot be, whoever is asked.
    #[error("the request cannot be: {0}")]
    Invalid(&'static str),
    /// Nobody is reached.
    #[error("{0}")]
    Transport(TransportError),
}

/// Why the ordinary path takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Detour {
    /// The target has no storage functions.
    #[error("the target has no storage functions")]
    Unsupported,
    /// The program gave the request up, with this result.
    #[error("its program gave the request up with {0}")]
    Program(u32),
    /// The program was stopped at this instruction.
    #[error("its program was stopped at instruction {0}")]
    Fault(u32),
    /// It cost too much.
    #[error("the request has used its fuel")]
    Fuel,
    /// It made too many reads.
    #[error("the request has made all the reads that it may")]
    Reads,
    /// A file changed, before or while it was read.
    #[error("a file has changed")]
    Changed,
    /// A file has no map now: it is being made, or somebody writes the file, or it cannot be read where it lies.
    #[error("a file has no map of where it lies now")]
    Unmapped,
    /// Programs or files were taken away at the target again and again.
    #[error("the target does not keep the program or the file")]
    Unknown,
    /// A read that the request may not make.
    #[error("the program wanted a read that the request may not make")]
    Range,
    /// The target has no room for more.
    #[error("a limit of the target is reached")]
    Limit,
    /// It took too long.
    #[error("the request took too long")]
    Time,
    /// A device failed, or the target refuses to read it.
    #[error("the target answered: {0}")]
    Device(Status),
}

impl PushError {
    /// What a failed command means.
    pub(super) fn of(error: TransportError) -> Self {
        let TransportError::Status { status, result } = error else { return Self::Transport(error) };
        let detail = (result >> 32) as u32;
        let known = [
            (Status::PUSHDOWN_PROGRAM, Detour::Program(detail)),
            (Status::PUSHDOWN_FAULT, Detour::Fault(detail)),
            (Status::PUSHDOWN_FUEL, Detour::Fuel),
            (Status::PUSHDOWN_READS, Detour::Reads),
            (Status::PUSHDOWN_CHANGED, Detour::Changed),
            (Status::PUSHDOWN_UNKNOWN, Detour::Unknown),
            (Status::PUSHDOWN_RANGE, Detour::Range),
            (Status::PUSHDOWN_LIMIT, Detour::Limit),
            (Status::PUSHDOWN_TIME, Detour::Time),
            (Status::INVALID_OPCODE, Detour::Unsupported),
        ];
        let detour = known.iter().find(|(known, _)| known.is(status)).map(|(_, detour)| *detour);
        Self::Detour(detour.unwrap_or(Detour::Device(status)))
    }

    /// Whether the ordinary path may answer: but for requests that cannot be, it always may.
    #[must_use]
    pub fn has_ordinary_path(&self) -> bool {
        !matches!(self, Self::Invalid(_))
    }

    /// What the card has ended the request with, if it has.
    #[must_use]
    pub fn detour(&self) -> Option<Detour> {
        match self {
            Self::Detour(detour) => Some(*detour),
            _ => None,
        }
    }
}
