//! Why a command about a target did not succeed.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use ob_nvme::auth::{HostFailure, SecretError};
use ob_nvme::initiator::{Cause, Error, ProtocolError, Unreachable};
use ob_wire_nvme::text::Nqn;
use ob_wire_nvme::{NamespaceId, Status};

use crate::terminal::bytes;

/// Why a command about a target did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum InitiatorError {
    /// The address is none.
    #[error("cannot find {text}: {source}\nhint: an address is written as HOST:PORT, such as 127.0.0.1:4420")]
    Address {
        /// What was typed.
        text: String,
        /// Why not.
        source: io::Error,
    },
    /// Nobody answers.
    #[error("cannot connect to {address}: {why}\nhint: {}", unreachable_hint(address))]
    Unreachable {
        /// Where.
        address: SocketAddr,
        /// Why not.
        why: Unreachable,
    },
    /// The target does not let this host in.
    #[error("{address} refused the connection to {subsystem}: {status}\nhint: {}", refused_hint(*status, address))]
    Refused {
        /// Where.
        address: SocketAddr,
        /// What was asked for.
        subsystem: Nqn,
        /// What the target said.
        status: Status,
    },
    /// The target wants a proof, and there is no secret.
    #[error(
        "{subsystem} at {address} lets in only hosts that authenticate themselves\n\
         hint: give --dhchap-secret, and --hostnqn if the target knows this host by another name"
    )]
    AuthenticationRequired {
        /// Where.
        address: SocketAddr,
        /// What was asked for.
        subsystem: Nqn,
    },
    /// One of the two could not prove who it is.
    #[error("authentication with {subsystem} at {address} failed: {source}\nhint: {}", authentication_hint(*source))]
    Authentication {
        /// Where.
        address: SocketAddr,
        /// What was asked for.
        subsystem: Nqn,
        /// Why.
        source: HostFailure,
    },
    /// A secret cannot be used.
    #[error(
        "{origin}: {source}\nhint: `nvme gen-dhchap-key` makes one; it must be the target's, to the letter"
    )]
    Secret {
        /// Where it came from.
        origin: String,
        /// What is wrong with it.
        source: SecretError,
    },
    /// There is no such namespace.
    #[error(
        "{subsystem} at {address} has no namespace {nsid} that can be used\nhint: `outboard nvme list --address {address} \
         --nqn {subsystem}` shows those that it has"
    )]
    NoSuchNamespace {
        /// Where.
        address: SocketAddr,
        /// What was asked.
        subsystem: Nqn,
        /// What for.
        nsid: NamespaceId,
    },
    /// The offset or the length does not fit the blocks.
    #[error(
        "{what} of {count} bytes is not a multiple of the block of {block_len} bytes of namespace {nsid}\nhint: {hint}"
    )]
    NotWholeBlocks {
        /// Offset, length, input.
        what: &'static str,
        /// How much it is.
        count: u64,
        /// A block.
        block_len: u32,
        /// The namespace.
        nsid: NamespaceId,
        /// What to do.
        hint: String,
    },
    /// The bytes are not all within the namespace.
    #[error(
        "{len} bytes from byte {offset} on reach beyond the end of namespace {nsid}, which has {size} bytes ({})\n\
         hint: `outboard nvme list` shows sizes, and `outboard namespace resize` makes one of ours larger",
        bytes(*size)
    )]
    PastEnd {
        /// First byte.
        offset: u64,
        /// How many.
        len: u64,
        /// The namespace.
        nsid: NamespaceId,
        /// Its bytes.
        size: u64,
    },
    /// The target said no, or is gone.
    #[error("cannot {action}: {source}{}", hint_line(failure_hint(source)))]
    Failed {
        /// What was tried.
        action: String,
        /// Why not.
        source: Error,
    },
    /// It failed, but not without effect.
    #[error("{source}\nnote: {note}")]
    Noted {
        /// What failed.
        source: Box<InitiatorError>,
        /// What was done nevertheless.
        note: String,
    },
    /// The command line asks for what cannot be.
    #[error("{problem}\nhint: {hint}")]
    Request {
        /// What is wrong.
        problem: String,
        /// What to do.
        hint: &'static str,
    },
    /// A local file cannot be used.
    #[error("cannot {action} {}: {source}{}", path.display(), hint_line(*hint))]
    Local {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
        /// What to do.
        hint: Option<&'static str>,
    },
    /// What failed has been told already.
    #[error("failed")]
    Told,
    /// Standard output is gone.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

impl InitiatorError {
    /// Whether a person must change something before another try can go better.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        if let Self::Noted { source, .. } = self {
            return source.is_configuration();
        }
        matches!(
            self,
            Self::Address { .. }
                | Self::Secret { .. }
                | Self::NotWholeBlocks { .. }
                | Self::PastEnd { .. }
                | Self::Request { .. }
        )
    }

    /// Why there is no association with a subsystem.
    pub(super) fn connecting(address: SocketAddr, subsystem: &Nqn, error: Error) -> Self {
        let subsystem = subsystem.clone();
        match error {
            Error::Unreachable(why) => Self::Unreachable { address, why },
            Error::NotConnected(Cause::Broken(why)) => Self::Unreachable { address, why },
            Error::Refused { status, .. } => Self::Refused { address, subsystem, status },
            Error::AuthenticationRequired => Self::AuthenticationRequired { address, subsystem },
            Error::Authentication(source) => Self::Authentication { address, subsystem, source },
            source => Self::Failed { action: format!("use {subsystem} at {address}"), source },
        }
    }

    /// The same, with what was done nevertheless.
    pub(super) fn noted(self, note: String) -> Self {
        Self::Noted { source: Box::new(self), note }
    }

    pub(super) fn failed(action: impl Into<String>) -> impl FnOnce(Error) -> Self {
        let action = action.into();
        move |source| Self::Failed { action, source }
    }

    pub(super) fn local(
        action: &'static str,
        path: impl Into<PathBuf>,
        hint: Option<&'static str>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Local { action, path, source, hint }
    }
}

fn hint_line(hint: Option<&str>) -> String {
    hint.map_or_else(String::new, |hint| format!("\nhint: {hint}"))
}

fn unreachable_hint(address: &SocketAddr) -> &'static str {
    if address.ip().is_loopback() {
        "start a card with `outboard up`, or say with --address where the target is"
    } else {
        "is the target running, and is this its address? --address says another"
    }
}

fn refused_hint(status: Status, address: &SocketAddr) -> String {
    if status.is(Status::CONNECT_INVALID_HOST) {
        "the target lists the hosts that it lets in: --hostnqn says who this one is".to_owned()
    } else if status.is(Status::CONNECT_INVALID_PARAMETERS) {
        format!(
            "there may be no such subsystem: `outboard nvme discover --address {address}` shows those there are"
        )
    } else {
        "the target's log may tell more".to_owned()
    }
}

fn authentication_hint(failure: HostFailure) -> &'static str {
    match failure {
        HostFailure::Refused { .. } => {
            "--dhchap-secret must be the one that the target has for this host, and --hostnqn the name it is for"
        }
        HostFailure::NotProven => "--dhchap-ctrl-secret is not what this target knows: is it the right one?",
        HostFailure::Broken(_) | HostFailure::OutOfTurn => {
            "the target's log may tell more; a target without --dhchap-ctrl-secret's key cannot prove itself"
        }
    }
}

fn failure_hint(error: &Error) -> Option<&'static str> {
    match error {
        Error::Command { status, .. } if status.is(Status::RESERVATION_CONFLICT) => {
            Some("another host has reserved the namespace")
        }
        Error::Command { status, .. } if status.is(Status::NAMESPACE_WRITE_PROTECTED) => {
            Some("the namespace is read-only")
        }
        Error::NotConnected(Cause::Protocol(ProtocolError::Digests)) => {
            Some("the target does not do these digests: leave --header-digest and --data-digest away")
        }
        Error::NotConnected(_) => Some("is this an NVMe/TCP target at all?"),
        Error::Lost(_) | Error::GaveUp(_) => Some("see whether the target runs, and run the command again"),
        _ => None,
    }
}
