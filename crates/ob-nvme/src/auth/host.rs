//! The host's side of an authentication. It takes the controller as hostile.

use ob_wire_nvme::auth::{
    Challenge, Failure, FailureReason, MESSAGE_LEN_MAX, Message, Negotiate, Offer, Reply, Success1, Success2,
};
use ob_wire_nvme::text::Nqn;

use super::group::KeyPair;
use super::proof::Proof;
use super::{Fill, Policy, Secret, Sequence, challenge, digest};

/// Room that is made for each message: what other hosts ask for too, and more than any message needs.
const ALLOCATION_LEN: u32 = 4096;
const _: () = assert!(MESSAGE_LEN_MAX <= ALLOCATION_LEN as usize);

/// What a host knows of the subsystem on a queue.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The host's name, as in Connect.
    pub host: Nqn,
    /// The subsystem's name, as in Connect.
    pub subsystem: Nqn,
    /// What the host proves to know.
    pub host_secret: Secret,
    /// What the controller must know. Without one it need prove nothing.
    pub controller_secret: Option<Secret>,
    /// What may be used.
    pub policy: Policy,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostStep<'message> {
    /// Send this, and say [`HostAuthenticator::sent`] when the command has succeeded.
    Send(&'message [u8]),
    /// Receive with this allocation, and hand the data to [`HostAuthenticator::received`].
    Receive {
        /// Bytes to make room for.
        allocation_len: u32,
    },
    /// The queue may be used.
    Done,
    /// The connection has to end.
    Failed(HostFailure),
}

/// Why an authentication failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostFailure {
    /// The controller says no: the reason code explanation that it gave.
    #[error("the controller refused to authenticate this host (explanation {explanation:#04x})")]
    Refused {
        /// Reason code explanation; [`FailureReason`] has the known ones.
        explanation: u8,
    },
    /// The controller does not know its secret, though it must.
    #[error("the controller could not prove that it knows its secret")]
    NotProven,
    /// The controller does not keep to the protocol, or to what it was offered.
    #[error("the controller did not keep to DH-HMAC-CHAP: {0:?}")]
    Broken(FailureReason),
    /// It was called out of turn.
    #[error("the authentication was driven out of turn")]
    OutOfTurn,
}

impl HostFailure {
    fn reason(self) -> FailureReason {
        match self {
            Self::Broken(reason) => reason,
            Self::Refused { .. } | Self::NotProven | Self::OutOfTurn => FailureReason::AuthenticationFailed,
        }
    }
}

/// One queue's authentication, as the host sees it.
///
/// ```text
///   Sending(Negotiate) ─▶ Challenge? ─▶ Sending(Reply) ─▶ Success1? ─┬──────────────────────▶ Done
///                             │                              │       └▶ Sending(Success2) ──┘
///                             ├──────────────────────────────┤
///                             ▼ what is wrong is told        ▼ Failure1
///                       Sending(Failure2) ────────────────▶ Failed
/// ```
pub struct HostAuthenticator {
    config: HostConfig,
    transaction: u16,
    sequence: Sequence,
    state: State,
}

enum State {
    /// This goes out, and then that comes.
    Sending(Vec<u8>, After),
    /// The controller's challenge is awaited.
    Challenge,
    /// Success1 is awaited, with this response, if one was asked for.
    Success1 {
        hash_len: usize,
        response: Option<Vec<u8>>,
    },
    Done,
    Failed(HostFailure),
}

enum After {
    Challenge,
    Success1 { hash_len: usize, response: Option<Vec<u8>> },
    Done,
    Failed(HostFailure),
}

impl HostAuthenticator {
    /// Begins. `transaction` should be another for each transaction of an association.
    #[must_use]
    pub fn new(config: HostConfig, transaction: u16) -> Self {
        let Policy { hashes, groups } = config.policy.clone();
        let negotiate = Negotiate { transaction, secure_channel: 0, offer: Some(Offer { hashes, groups }) };
        let state = State::Sending(Message::Negotiate(negotiate).to_bytes(), After::Challenge);
        Self { config, transaction, sequence: Sequence::default(), state }
    }

    /// What to do next.
    #[must_use]
    pub fn step(&self) -> HostStep<'_> {
        match &self.state {
            State::Sending(message, _) => HostStep::Send(message),
            State::Challenge | State::Success1 { .. } => HostStep::Receive { allocation_len: ALLOCATION_LEN },
            State::Done => HostStep::Done,
            State::Failed(failure) => HostStep::Failed(*failure),
        }
    }

    /// Whether the queue may be used.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// The message of the last step was sent, and its command has succeeded.
    pub fn sent(&mut self) {
        self.state = match std::mem::replace(&mut self.state, State::Failed(HostFailure::OutOfTurn)) {
            State::Sending(_, After::Challenge) => State::Challenge,
            State::Sending(_, After::Success1 { hash_len, response }) => {
                State::Success1 { hash_len, response }
            }
            State::Sending(_, After::Done) => State::Done,
            State::Sending(_, After::Failed(failure)) | State::Failed(failure) => State::Failed(failure),
            State::Challenge | State::Success1 { .. } | State::Done => State::Failed(HostFailure::OutOfTurn),
        };
    }

    /// The data of an Authentication Receive. Zeros behind the message do no harm.
    pub fn received(&mut self, bytes: &[u8], random: Fill<'_>) {
        let state = std::mem::replace(&mut self.state, State::Failed(HostFailure::OutOfTurn));
        if !matches!(state, State::Challenge | State::Success1 { .. }) {
            self.state = match state {
                State::Failed(failure) => State::Failed(failure),
                _ => State::Failed(HostFailure::OutOfTurn),
            };
            return;
        }
        let next = match Message::parse(bytes) {
            Ok(Message::Failure1(failure)) => {
                Ok(State::Failed(HostFailure::Refused { explanation: failure.explanation }))
            }
            Ok(message) if message.transaction() != self.transaction => {
                Err(HostFailure::Broken(FailureReason::IncorrectPayload))
            }
            Ok(message) => self.advance(state, &message, random),
            Err(error) => Err(HostFailure::Broken(error.reason())),
        };
        self.state = next.unwrap_or_else(|failure| {
            let message = Message::Failure2(Failure::new(self.transaction, failure.reason()));
            State::Sending(message.to_bytes(), After::Failed(failure))
        });
    }

    fn advance(
        &mut self,
        state: State,
        message: &Message<'_>,
        random: Fill<'_>,
    ) -> Result<State, HostFailure> {
        match (state, message) {
            (State::Challenge, Message::Challenge(challenge)) => self.reply(challenge, random),
            (State::Success1 { hash_len, response }, Message::Success1(success)) => {
                self.verdict(hash_len, response.as_deref(), success)
            }
            _ => Err(HostFailure::Broken(FailureReason::IncorrectMessage)),
        }
    }

    fn reply(&mut self, asked: &Challenge<'_>, random: Fill<'_>) -> Result<State, HostFailure> {
        let config = &self.config;
        if !config.policy.hashes.contains(&asked.hash) {
            return Err(HostFailure::Broken(FailureReason::HashNotUsable));
        }
        if !config.policy.groups.contains(&asked.group) {
            return Err(HostFailure::Broken(FailureReason::GroupNotUsable));
        }
        let sequence = config.controller_secret.is_some().then(|| self.sequence.next(random));
        let own = sequence.map(|sequence| (sequence, challenge(asked.hash, random)));
        let pair = KeyPair::generate(asked.group, random);
        let shared =
            pair.share(asked.public).map_err(|_| HostFailure::Broken(FailureReason::IncorrectPayload))?;
        let proof = Proof {
            hash: asked.hash,
            transaction: self.transaction,
            host: &config.host,
            subsystem: &config.subsystem,
            shared: shared.as_ref(),
        };
        let reply = Message::Reply(Reply {
            transaction: self.transaction,
            response: &proof.host(&config.host_secret, asked.sequence, asked.challenge),
            challenge: own.as_ref().map(|(sequence, challenge)| (*sequence, &challenge[..])),
            public: pair.public(),
        })
        .to_bytes();
        let response = own
            .zip(config.controller_secret.as_ref())
            .map(|((sequence, challenge), secret)| proof.controller(secret, sequence, &challenge));
        Ok(State::Sending(reply, After::Success1 { hash_len: asked.hash.size(), response }))
    }

    fn verdict(
        &self,
        hash_len: usize,
        expected: Option<&[u8]>,
        success: &Success1<'_>,
    ) -> Result<State, HostFailure> {
        if usize::from(success.hash_len) != hash_len {
            return Err(HostFailure::Broken(FailureReason::IncorrectPayload));
        }
        match (expected, success.response) {
            (None, None) => Ok(State::Done),
            (None, Some(_)) => Err(HostFailure::Broken(FailureReason::IncorrectPayload)),
            (Some(expected), Some(response)) if digest::equal(expected, response) => {
                let success2 = Message::Success2(Success2 { transaction: self.transaction });
                Ok(State::Sending(success2.to_bytes(), After::Done))
            }
            (Some(_), _) => Err(HostFailure::NotProven),
        }
    }
}
