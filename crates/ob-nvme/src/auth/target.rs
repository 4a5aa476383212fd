//! The controller's side of an authentication.

use ob_wire_nvme::auth::{
    Challenge, Failure, FailureReason, GroupId, HashId, Message, Negotiate, Reply, Success1, transaction_of,
};
use ob_wire_nvme::text::Nqn;

use super::group::KeyPair;
use super::proof::Proof;
use super::{Fill, Policy, Secret, Sequence, challenge, digest};

/// How often a host may begin anew without ever finishing. Each time costs the thread an exponentiation, before
/// anything is known about the host.
const NEGOTIATIONS_MAX: u32 = 8;

/// Bytes of AUTH_Failure1.
const FAILURE_LEN: usize = 8;

/// What a controller knows of the host on a queue.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// The host's name, as in Connect.
    pub host: Nqn,
    /// The subsystem's name, as in Connect.
    pub subsystem: Nqn,
    /// What the host must know.
    pub host_secret: Secret,
    /// What the controller proves to know when the host asks it. Without one, such a host is refused.
    pub controller_secret: Option<Secret>,
    /// What may be used.
    pub policy: Policy,
}

/// Where an authentication stands after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The host has to send or receive more.
    Continue,
    /// The transaction has ended well.
    Done,
    /// It has not: the command is answered with success, then the connection ends.
    Failed(FailureReason),
}

/// What an Authentication Receive brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The message, never longer than the allocation.
    pub message: Vec<u8>,
    /// Where the authentication stands now.
    pub progress: Progress,
}

/// The host has made room for less than the message. Nothing has changed; the command is answered with Invalid Field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message has {needed} bytes")]
pub struct AllocationTooSmall {
    /// Bytes of the message.
    pub needed: usize,
}

/// One queue's authentication, as the controller sees it.
///
/// ```text
///             Negotiate           Challenge              Reply              Success1
///   Idle ───────────────▶ Negotiated ─────▶ Challenged ────────▶ Replied ──────────────▶ Idle, authenticated
///     ▲                                                             │                      ▲
///     │                                                             └──▶ Proving ──────────┘
///     │                                                        if asked            Success2
///     └─ Negotiate in any of them begins anew
///
///   anything else ──▶ Refused ── Failure1 ──▶ Failed ◀── Failure2 ── anywhere
/// ```
pub struct TargetAuthenticator {
    config: TargetConfig,
    state: State,
    sequence: Sequence,
    authenticated: bool,
    /// How many there were since the last that ended well.
    negotiations: u32,
}

enum State {
    /// No transaction: the first, or the next, begins with Negotiate.
    Idle,
    /// The host may fetch its challenge.
    Negotiated(Agreed),
    /// The host has its challenge and owes a reply.
    Challenged { agreed: Agreed, sequence: u32, challenge: Vec<u8>, pair: KeyPair },
    /// The host has proved itself and may fetch Success1, with the response it asked for.
    Replied { agreed: Agreed, response: Option<Vec<u8>> },
    /// The host has the controller's response and owes its verdict.
    Proving { transaction: u16 },
    /// The host may fetch Failure1.
    Refused { transaction: u16, reason: FailureReason },
    /// The connection has to end.
    Failed { transaction: u16, reason: FailureReason },
}

#[derive(Clone, Copy)]
struct Agreed {
    transaction: u16,
    hash: HashId,
    group: GroupId,
}

impl TargetAuthenticator {
    /// Begins, at Connect.
    #[must_use]
    pub fn new(config: TargetConfig) -> Self {
        Self {
            config,
            state: State::Idle,
            sequence: Sequence::default(),
            authenticated: false,
            negotiations: 0,
        }
    }

    /// Whether the host has proved itself. It stays so while it does so again, unless it fails.
    #[must_use]
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Whether the host has proved itself and no transaction is under way. (One that is under way too long, or has
    /// never begun, is the caller's to end.)
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.authenticated && matches!(self.state, State::Idle)
    }

    /// Whether the next Authentication Receive (`to_host`) or Send takes an exponentiation: a key pair for the challenge, what
    /// is shared for the reply.
    #[must_use]
    pub fn computes(&self, to_host: bool) -> bool {
        match (&self.state, to_host) {
            (State::Negotiated(agreed), true) | (State::Challenged { agreed, .. }, false) => {
                agreed.group != GroupId::Null
            }
            _ => false,
        }
    }

    /// Takes the data of an Authentication Send. Unless it says [`Progress::Failed`], the connection goes on, if only
    /// for the host to fetch why it is refused.
    pub fn send(&mut self, bytes: &[u8]) -> Progress {
        match &self.state {
            State::Failed { reason, .. } => return Progress::Failed(*reason),
            State::Refused { .. } => return Progress::Continue,
            _ => {}
        }
        let message = match Message::parse(bytes) {
            Ok(message) => message,
            Err(error) => {
                return self.refuse(transaction_of(bytes).unwrap_or(self.transaction()), error.reason());
            }
        };
        match (std::mem::replace(&mut self.state, State::Idle), message) {
            (_, Message::Negotiate(negotiate)) => self.negotiate(&negotiate),
            (_, Message::Failure2(failure)) => {
                let reason = failure.reason().unwrap_or(FailureReason::AuthenticationFailed);
                self.fail(failure.transaction, reason)
            }
            (State::Challenged { agreed, sequence, challenge, pair }, Message::Reply(reply)) => {
                match self.check(agreed, sequence, &challenge, &pair, &reply) {
                    Ok(response) => {
                        self.state = State::Replied { agreed, response };
                        Progress::Continue
                    }
                    Err(reason) => self.refuse(agreed.transaction, reason),
                }
            }
            (State::Proving { transaction }, Message::Success2(success)) => {
                if success.transaction == transaction {
                    self.succeed()
                } else {
                    self.refuse(transaction, FailureReason::IncorrectPayload)
                }
            }
            (_, message) => self.refuse(message.transaction(), FailureReason::IncorrectMessage),
        }
    }

    /// Answers an Authentication Receive with an allocation of that many bytes.
    pub fn receive(&mut self, allocation_len: u32, random: Fill<'_>) -> Result<Answer, AllocationTooSmall> {
        let needed = self.answer_len();
        if usize::try_from(allocation_len).is_ok_and(|room| room < needed) {
            return Err(AllocationTooSmall { needed });
        }
        let transaction = self.transaction();
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Negotiated(agreed) => Ok(self.challenge(agreed, random)),
            State::Replied { agreed, response } => Ok(self.success1(agreed, response.as_deref())),
            State::Refused { transaction, reason } | State::Failed { transaction, reason } => {
                Ok(self.failure1(transaction, reason))
            }
            // It is the host's turn to send, and it knows that.
            State::Idle | State::Challenged { .. } | State::Proving { .. } => {
                Ok(self.failure1(transaction, FailureReason::IncorrectMessage))
            }
        }
    }

    fn negotiate(&mut self, negotiate: &Negotiate) -> Progress {
        let transaction = negotiate.transaction;
        if self.negotiations >= NEGOTIATIONS_MAX {
            return self.refuse(transaction, FailureReason::IncorrectMessage);
        }
        self.negotiations += 1;
        match self.agree(negotiate) {
            Ok(agreed) => {
                self.state = State::Negotiated(agreed);
                Progress::Continue
            }
            Err(reason) => self.refuse(transaction, reason),
        }
    }

    fn agree(&self, negotiate: &Negotiate) -> Result<Agreed, FailureReason> {
        if negotiate.secure_channel != 0 {
            return Err(FailureReason::ConcatenationMismatch);
        }
        let offer = negotiate.offer.as_ref().ok_or(FailureReason::ProtocolNotUsable)?;
        let policy = &self.config.policy;
        let hash = policy.hashes.iter().find(|hash| offer.hashes.contains(hash));
        let group = policy.groups.iter().find(|group| offer.groups.contains(group));
        Ok(Agreed {
            transaction: negotiate.transaction,
            hash: *hash.ok_or(FailureReason::HashNotUsable)?,
            group: *group.ok_or(FailureReason::GroupNotUsable)?,
        })
    }

    fn challenge(&mut self, agreed: Agreed, random: Fill<'_>) -> Answer {
        let sequence = self.sequence.next(random);
        let challenge = challenge(agreed.hash, random);
        let pair = KeyPair::generate(agreed.group, random);
        let message = Message::Challenge(Challenge {
            transaction: agreed.transaction,
            hash: agreed.hash,
            group: agreed.group,
            sequence,
            challenge: &challenge,
            public: pair.public(),
        })
        .to_bytes();
        self.state = State::Challenged { agreed, sequence, challenge, pair };
        Answer { message, progress: Progress::Continue }
    }

    /// Whether the reply is right, and the controller's response if the host asks for one.
    fn check(
        &self,
        agreed: Agreed,
        sequence: u32,
        challenge: &[u8],
        pair: &KeyPair,
        reply: &Reply<'_>,
    ) -> Result<Option<Vec<u8>>, FailureReason> {
        if reply.transaction != agreed.transaction || reply.response.len() != agreed.hash.size() {
            return Err(FailureReason::IncorrectPayload);
        }
        let shared = pair.share(reply.public).map_err(|_| FailureReason::IncorrectPayload)?;
        let config = &self.config;
        let proof = Proof {
            hash: agreed.hash,
            transaction: agreed.transaction,
            host: &config.host,
            subsystem: &config.subsystem,
            shared: shared.as_ref(),
        };
        if !digest::equal(&proof.host(&config.host_secret, sequence, challenge), reply.response) {
            return Err(FailureReason::AuthenticationFailed);
        }
        match (reply.challenge, &config.controller_secret) {
            (None, _) => Ok(None),
            // 0 asks for no response but for a secure channel, which was not agreed on.
            (Some((0, _)), _) => Err(FailureReason::IncorrectPayload),
            (Some(_), None) => Err(FailureReason::AuthenticationFailed),
            (Some((sequence, challenge)), Some(secret)) => {
                Ok(Some(proof.controller(secret, sequence, challenge)))
            }
        }
    }

    fn success1(&mut self, agreed: Agreed, response: Option<&[u8]>) -> Answer {
        let transaction = agreed.transaction;
        let hash_len = u8::try_from(agreed.hash.size()).unwrap_or(u8::MAX);
        let message = Message::Success1(Success1 { transaction, hash_len, response }).to_bytes();
        let progress = if response.is_some() {
            self.state = State::Proving { transaction };
            Progress::Continue
        } else {
            self.succeed()
        };
        Answer { message, progress }
    }

    fn failure1(&mut self, transaction: u16, reason: FailureReason) -> Answer {
        let message = Message::Failure1(Failure::new(transaction, reason)).to_bytes();
        Answer { message, progress: self.fail(transaction, reason) }
    }

    fn succeed(&mut self) -> Progress {
        self.state = State::Idle;
        self.authenticated = true;
        self.negotiations = 0;
        Progress::Done
    }

    fn refuse(&mut self, transaction: u16, reason: FailureReason) -> Progress {
        self.state = State::Refused { transaction, reason };
        self.authenticated = false;
        Progress::Continue
    }

    fn fail(&mut self, transaction: u16, reason: FailureReason) -> Progress {
        self.state = State::Failed { transaction, reason };
        self.authenticated = false;
        Progress::Failed(reason)
    }

    fn transaction(&self) -> u16 {
        match &self.state {
            State::Idle => 0,
            State::Negotiated(agreed) | State::Challenged { agreed, .. } | State::Replied { agreed, .. } => {
                agreed.transaction
            }
            State::Proving { transaction }
            | State::Refused { transaction, .. }
            | State::Failed { transaction, .. } => *transaction,
        }
    }

    fn answer_len(&self) -> usize {
        match &self.state {
            State::Negotiated(agreed) => 16 + agreed.hash.size() + agreed.group.size(),
            State::Replied { agreed, .. } => 16 + agreed.hash.size(),
            _ => FAILURE_LEN,
        }
    }
}
