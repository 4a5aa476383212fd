//! Authentications, whose arithmetic takes milliseconds: everybody else is served in between.
//!
//! ```text
//!   Authentication Send, Receive ─▶ does it compute? ── no ──▶ Control
//!                                       │ yes                    ▲
//!                                       ▼                        │ one a turn
//!                       a queue for each network ─▶ these take turns
//! ```
//!
//! Whoever knows the name of a host can ask for an exponentiation, before it has proved anything, and on as many
//! connections as it likes. A thread for them would leave this one free; but then a command's answer would depend on
//! two of them, and the target would be a state machine no more. One computation a turn bounds what a turn takes, and that
//! is what others have to wait for.

use std::collections::VecDeque;
use std::net::IpAddr;

use ob_core::Instant;
use ob_wire_nvme::{Status, SubmissionEntry};

use super::Target;
use super::connection::ConnectionKey;
use super::control::QueueIdentity;
use super::shares::network_of;

/// A command that waits for its computation; a connection has one at most, since a host that follows the protocol needs
/// the answer before it knows what to send next.
struct PendingProof {
    connection: ConnectionKey,
    queue: QueueIdentity,
    entry: SubmissionEntry,
    data: Vec<u8>,
    transfer_len: u32,
}

/// All that wait. The network in front is next, with what it has waited with longest.
#[derive(Default)]
pub(super) struct Proofs(VecDeque<(IpAddr, VecDeque<PendingProof>)>);

impl Proofs {
    pub(super) fn len(&self) -> usize {
        self.0.iter().map(|(_, waiting)| waiting.len()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A connection has ended.
    pub(super) fn forget(&mut self, connection: ConnectionKey) {
        for (_, waiting) in &mut self.0 {
            waiting.retain(|proof| proof.connection != connection);
        }
        self.0.retain(|(_, waiting)| !waiting.is_empty());
    }

    /// Has a command wait, unless its connection has one that waits; whether it does.
    fn push(&mut self, network: IpAddr, proof: PendingProof) -> bool {
        match self.0.iter_mut().find(|(known, _)| *known == network) {
            Some((_, waiting)) if waiting.iter().any(|other| other.connection == proof.connection) => {
                return false;
            }
            Some((_, waiting)) => waiting.push_back(proof),
            None => self.0.push_back((network, VecDeque::from([proof]))),
        }
        true
    }

    fn pop(&mut self) -> Option<PendingProof> {
        let (network, mut waiting) = self.0.pop_front()?;
        let next = waiting.pop_front();
        if !waiting.is_empty() {
            self.0.push_back((network, waiting));
        }
        next
    }
}

impl Target {
    /// Does one of the computations that hosts wait for; whether there was any. To be called once in each round of receiving,
    /// completing and sending, while [`Target::can_go_on`] says that there is more.
    pub fn prove(&mut self, now: Instant) -> bool {
        while let Some(proof) = self.proofs.pop() {
            let is_wanted = |target: &Self| {
                target.connection(proof.connection).is_some_and(|connection| connection.closing.is_none())
            };
            if is_wanted(self) {
                let PendingProof { connection, queue, entry, data, transfer_len } = proof;
                self.counts.proofs += 1;
                self.execute_control(now, connection, queue, &entry, &data, transfer_len);
                return true;
            }
        }
        false
    }

    /// Has a command wait for its turn if it takes a computation; whether that is so.
    pub(super) fn prove_later(
        &mut self,
        key: ConnectionKey,
        queue: QueueIdentity,
        entry: &SubmissionEntry,
        data: &[u8],
        transfer_len: u32,
    ) -> bool {
        if !self.control.computes(queue, entry) {
            return false;
        }
        let Some(connection) = self.connection_mut(key) else { return true };
        let (command, network) = (entry.command(), network_of(connection.path.peer));
        connection.remove_command(command);
        connection.add_command(command, None);
        let proof = PendingProof { connection: key, queue, entry: *entry, data: data.to_vec(), transfer_len };
        if !self.proofs.push(network, proof) {
            self.answer(key, command, Status::COMMAND_SEQUENCE_ERROR.with_do_not_retry(), 0);
        }
        true
    }
}
