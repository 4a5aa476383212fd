//! Messages of in-band authentication, DH-HMAC-CHAP (Base §8.13.5): what Authentication Send and Receive carry.
//!
//! ```text
//!   host                                    controller
//!     Negotiate ──────────────────────────▶            what the host can do
//!               ◀────────────────────────── Challenge  the hash and group chosen, C1, g^x
//!     Reply     ──────────────────────────▶            the host's response, C2 if it wants to know too, g^y
//!               ◀────────────────────────── Success1   the controller's response, if C2 was there
//!     Success2  ──────────────────────────▶            only if it was
//!
//!     Failure2  ──▶ at any time ◀── Failure1           and the connection ends
//! ```
//!
//! A message is parsed as a whole: every inner length is held against the transfer before anything is read. Bytes
//! behind a message are ignored, because controllers may fill the host's allocation with zeros.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

/// The security protocol that carries these messages, SECP (Base §6.1, §6.2).
pub const SECURITY_PROTOCOL: u8 = 0xE9;
/// The lower byte of the protocol-specific field, SPSP0 (Base §6.1, §6.2).
pub const PROTOCOL_SPECIFIC_0: u8 = 0x01;
/// The upper byte of the protocol-specific field, SPSP1 (Base §6.1, §6.2).
pub const PROTOCOL_SPECIFIC_1: u8 = 0x01;
/// AUTH_ID of DH-HMAC-CHAP in a protocol descriptor (Base §8.13.5.1).
pub const PROTOCOL_DH_HMAC_CHAP: u8 = 0x01;
/// Hash identifiers that a descriptor has room for, and group identifiers as many (Base §8.13.5.1).
pub const DESCRIPTOR_IDS_MAX: usize = 30;
/// The longest message that has a use: a reply with SHA-512 and a public value of 8192 bits.
pub const MESSAGE_LEN_MAX: usize = 16 + 2 * 64 + 1024;

const COMMON_MESSAGES: u8 = 0x00;
const DH_HMAC_CHAP_MESSAGES: u8 = 0x01;
const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS1: u8 = 0x03;
const SUCCESS2: u8 = 0x04;
const FAILURE2: u8 = 0xF0;
const FAILURE1: u8 = 0xF1;
/// The only reason code there is: what happened is in its explanation (Base §8.13.4.2).
const REASON_AUTHENTICATION_FAILURE: u8 = 0x01;

codes! {
    /// Hash functions (Base §8.13.5.1, figure "DH-HMAC-CHAP HashID Values").
    HashId: u8, "DH-HMAC-CHAP hash" {
        /// SHA-256.
        Sha256 = 0x01,
        /// SHA-384.
        Sha384 = 0x02,
        /// SHA-512.
        Sha512 = 0x03,
    }

    /// Diffie-Hellman groups (Base §8.13.5.1, figure "DH-HMAC-CHAP DHgID Values"; the primes are those of RFC 7919).
    GroupId: u8, "DH-HMAC-CHAP group" {
        /// No Diffie-Hellman exchange: the challenge is answered as it is.
        Null = 0x00,
        /// 2048 bits.
        Ffdhe2048 = 0x01,
        /// 3072 bits.
        Ffdhe3072 = 0x02,
        /// 4096 bits.
        Ffdhe4096 = 0x03,
        /// 6144 bits.
        Ffdhe6144 = 0x04,
        /// 8192 bits.
        Ffdhe8192 = 0x05,
    }

    /// Why an authentication failed (Base §8.13.4.2, reason code explanations).
    FailureReason: u8, "authentication failure" {
        /// A response is wrong, or a key is missing.
        AuthenticationFailed = 0x01,
        /// No protocol that was offered is spoken.
        ProtocolNotUsable = 0x02,
        /// Secure channel concatenation was asked for and is not there, or the other way round.
        ConcatenationMismatch = 0x03,
        /// No hash that was offered is allowed.
        HashNotUsable = 0x04,
        /// No group that was offered is allowed.
        GroupNotUsable = 0x05,
        /// A message does not hold together.
        IncorrectPayload = 0x06,
        /// A message that has no place here.
        IncorrectMessage = 0x07,
    }
}

impl HashId {
    /// Bytes of a hash, and so of a challenge and of a response.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }
}

impl GroupId {
    /// Bytes of a public value, all zeros in front included.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
            Self::Ffdhe6144 => 768,
            Self::Ffdhe8192 => 1024,
        }
    }
}

layout! {
    /// What every message begins with (Base §8.13.2).
    MessageHead[6] {
        /// AUTH_TYPE.
        0 => auth_type: u8,
        /// AUTH_ID.
        1 => auth_id: u8,
        /// Reserved.
        2 => reserved: [u8; 2],
        /// T_ID.
        4 => transaction: U16,
    }

    /// AUTH_Negotiate, before its descriptors (Base §8.13.4.1).
    NegotiateHead[8] {
        /// What every message begins with.
        0 => head: MessageHead,
        /// SC_C.
        6 => secure_channel: u8,
        /// NAPD.
        7 => descriptors: u8,
    }

    /// A protocol that the host speaks (Base §8.13.5.1).
    ProtocolDescriptor[64] {
        /// AuthID.
        0 => protocol: u8,
        /// Reserved.
        1 => reserved: u8,
        /// HALEN.
        2 => hashes_len: u8,
        /// DHLEN.
        3 => groups_len: u8,
        /// IDLIST, hash functions in the host's order.
        4 => hashes: [u8; DESCRIPTOR_IDS_MAX],
        /// IDLIST, groups in the host's order.
        34 => groups: [u8; DESCRIPTOR_IDS_MAX],
    }

    /// DH-HMAC-CHAP_Challenge, before challenge and public value (Base §8.13.5.2).
    ChallengeHead[16] {
        /// What every message begins with.
        0 => head: MessageHead,
        /// HL.
        6 => hash_len: u8,
        /// Reserved.
        7 => reserved: u8,
        /// HashID.
        8 => hash: u8,
        /// DHgID.
        9 => group: u8,
        /// DHVLEN.
        10 => public_len: U16,
        /// SEQNUM, S1.
        12 => sequence: U32,
    }

    /// DH-HMAC-CHAP_Reply, before response, challenge and public value (Base §8.13.5.3).
    ReplyHead[16] {
        /// What every message begins with.
        0 => head: MessageHead,
        /// HL.
        6 => hash_len: u8,
        /// Reserved.
        7 => reserved: u8,
        /// CVALID.
        8 => challenge_valid: u8,
        /// Reserved.
        9 => reserved9: u8,
        /// DHVLEN.
        10 => public_len: U16,
        /// SEQNUM, S2.
        12 => sequence: U32,
    }

    /// DH-HMAC-CHAP_Success1, before the response (Base §8.13.5.4).
    Success1Head[16] {
        /// What every message begins with.
        0 => head: MessageHead,
        /// HL.
        6 => hash_len: u8,
        /// Reserved.
        7 => reserved: u8,
        /// RVALID.
        8 => response_valid: u8,
        /// Reserved.
        9 => reserved9: [u8; 7],
    }

    /// DH-HMAC-CHAP_Success2 (Base §8.13.5.5).
    Success2Layout[16] {
        /// What every message begins with.
        0 => head: MessageHead,
        /// Reserved.
        6 => reserved: [u8; 10],
    }

    /// AUTH_Failure1 and AUTH_Failure2 (Base §8.13.4.2, §8.13.4.3).
    FailureLayout[8] {
        /// What every message begins with.
        0 => head: MessageHead,
        /// Reason code.
        6 => reason: u8,
        /// Reason code explanation.
        7 => explanation: u8,
    }
}

/// What is wrong with the bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Shorter than its head, or than its inner lengths say.
    #[error("the message needs {needed} bytes and has {len}")]
    Truncated {
        /// Bytes it needs.
        needed: usize,
        /// Bytes it has.
        len: usize,
    },
    /// No such message.
    #[error("type {auth_type:#04x} has no message {auth_id:#04x}")]
    Unknown {
        /// AUTH_TYPE.
        auth_type: u8,
        /// AUTH_ID.
        auth_id: u8,
    },
    /// More identifiers than a descriptor has room for.
    #[error("a descriptor lists {0} identifiers, and has room for {DESCRIPTOR_IDS_MAX}")]
    TooManyIds(u8),
    /// The challenge is for a hash that is not known, or whose length is another.
    #[error("no hash is {code:#04x} with {len} bytes")]
    Hash {
        /// HashID.
        code: u8,
        /// HL.
        len: u8,
    },
    /// The challenge is for a group that is not known, or whose public values have another length.
    #[error("no group is {code:#04x} with {len} bytes")]
    Group {
        /// DHgID.
        code: u8,
        /// DHVLEN.
        len: u16,
    },
    /// A field that says yes or no says something else.
    #[error("a flag has the value {0:#04x}")]
    Flag(u8),
}

impl MessageError {
    /// What the peer is told.
    #[must_use]
    pub const fn reason(self) -> FailureReason {
        match self {
            Self::Truncated { .. } | Self::TooManyIds(_) | Self::Flag(_) => FailureReason::IncorrectPayload,
            Self::Unknown { .. } => FailureReason::IncorrectMessage,
            Self::Hash { .. } => FailureReason::HashNotUsable,
            Self::Group { .. } => FailureReason::GroupNotUsable,
        }
    }
}

/// A message that holds together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'bytes> {
    /// The host begins a transaction.
    Negotiate(Negotiate),
    /// The controller challenges the host.
    Challenge(Challenge<'bytes>),
    /// The host responds.
    Reply(Reply<'bytes>),
    /// The controller has let the host in.
    Success1(Success1<'bytes>),
    /// The host trusts the controller.
    Success2(Success2),
    /// The controller gives up.
    Failure1(Failure),
    /// The host gives up.
    Failure2(Failure),
}

/// AUTH_Negotiate (Base §8.13.4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiate {
    /// T_ID: the host's name for this transaction.
    pub transaction: u16,
    /// SC_C: whether a secure channel is to follow; 0 is no.
    pub secure_channel: u8,
    /// What the host can do by DH-HMAC-CHAP, if it offers that at all.
    pub offer: Option<Offer>,
}

/// What a host offers, in its own order. Identifiers that are not known are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// Hash functions.
    pub hashes: Vec<HashId>,
    /// Groups.
    pub groups: Vec<GroupId>,
}

/// DH-HMAC-CHAP_Challenge (Base §8.13.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge<'bytes> {
    /// T_ID.
    pub transaction: u16,
    /// The hash of the whole transaction.
    pub hash: HashId,
    /// The group of the whole transaction.
    pub group: GroupId,
    /// S1.
    pub sequence: u32,
    /// C1: as long as the hash.
    pub challenge: &'bytes [u8],
    /// The controller's public value: as long as the group says.
    pub public: &'bytes [u8],
}

/// DH-HMAC-CHAP_Reply (Base §8.13.5.3). The lengths are what the message says: only the controller knows which
/// hash and group they must fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'bytes> {
    /// T_ID.
    pub transaction: u16,
    /// R1.
    pub response: &'bytes [u8],
    /// S2 and C2 (as long as the response), if the host wants the controller to prove itself.
    pub challenge: Option<(u32, &'bytes [u8])>,
    /// The host's public value.
    pub public: &'bytes [u8],
}

/// DH-HMAC-CHAP_Success1 (Base §8.13.5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success1<'bytes> {
    /// T_ID.
    pub transaction: u16,
    /// HL: given with or without a response, and hosts check it.
    pub hash_len: u8,
    /// R2, if the host has asked.
    pub response: Option<&'bytes [u8]>,
}

/// DH-HMAC-CHAP_Success2 (Base §8.13.5.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success2 {
    /// T_ID.
    pub transaction: u16,
}

/// AUTH_Failure1 or AUTH_Failure2 (Base §8.13.4.2, §8.13.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// T_ID.
    pub transaction: u16,
    /// Why: the explanation as it came, because a peer may know more of them than we do.
    pub explanation: u8,
}

impl<'bytes> Message<'bytes> {
    /// Reads one message.
    pub fn parse(bytes: &'bytes [u8]) -> Result<Self, MessageError> {
        let (head, _) = head_of::<MessageHead>(bytes)?;
        match (head.auth_type, head.auth_id) {
            (COMMON_MESSAGES, NEGOTIATE) => Negotiate::parse(bytes).map(Self::Negotiate),
            (COMMON_MESSAGES, FAILURE1) => Failure::parse(bytes).map(Self::Failure1),
            (COMMON_MESSAGES, FAILURE2) => Failure::parse(bytes).map(Self::Failure2),
            (DH_HMAC_CHAP_MESSAGES, CHALLENGE) => Challenge::parse(bytes).map(Self::Challenge),
            (DH_HMAC_CHAP_MESSAGES, REPLY) => Reply::parse(bytes).map(Self::Reply),
            (DH_HMAC_CHAP_MESSAGES, SUCCESS1) => Success1::parse(bytes).map(Self::Success1),
            (DH_HMAC_CHAP_MESSAGES, SUCCESS2) => Success2::parse(bytes).map(Self::Success2),
            (auth_type, auth_id) => Err(MessageError::Unknown { auth_type, auth_id }),
        }
    }

    /// The transaction it belongs to.
    #[must_use]
    pub const fn transaction(&self) -> u16 {
        match self {
            Self::Negotiate(message) => message.transaction,
            Self::Challenge(message) => message.transaction,
            Self::Reply(message) => message.transaction,
            Self::Success1(message) => message.transaction,
            Self::Success2(message) => message.transaction,
            Self::Failure1(message) | Self::Failure2(message) => message.transaction,
        }
    }

    /// The bytes on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Negotiate(message) => message.to_bytes(),
            Self::Challenge(message) => message.to_bytes(),
            Self::Reply(message) => message.to_bytes(),
            Self::Success1(message) => message.to_bytes(),
            Self::Success2(message) => message.to_bytes(),
            Self::Failure1(message) => message.to_bytes(FAILURE1),
            Self::Failure2(message) => message.to_bytes(FAILURE2),
        }
    }
}

/// The transaction that the bytes name, even if they are no whole message: a refusal should name it too.
#[must_use]
pub fn transaction_of(bytes: &[u8]) -> Option<u16> {
    MessageHead::read_from_prefix(bytes).ok().map(|(head, _)| head.transaction.get())
}

impl Negotiate {
    fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let (head, rest) = head_of::<NegotiateHead>(bytes)?;
        let count = usize::from(head.descriptors);
        let (descriptors, _) =
            <[ProtocolDescriptor]>::ref_from_prefix_with_elems(rest, count).map_err(|_| {
                truncated(size_of::<NegotiateHead>() + count * size_of::<ProtocolDescriptor>(), bytes)
            })?;
        let offer = descriptors
            .iter()
            .find(|descriptor| descriptor.protocol == PROTOCOL_DH_HMAC_CHAP)
            .map(|descriptor| {
                Ok(Offer {
                    hashes: known(&descriptor.hashes, descriptor.hashes_len)?,
                    groups: known(&descriptor.groups, descriptor.groups_len)?,
                })
            })
            .transpose()?;
        Ok(Self { transaction: head.head.transaction.get(), secure_channel: head.secure_channel, offer })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let head = NegotiateHead {
            head: message_head(COMMON_MESSAGES, NEGOTIATE, self.transaction),
            secure_channel: self.secure_channel,
            descriptors: u8::from(self.offer.is_some()),
        };
        let mut bytes = head.as_bytes().to_vec();
        if let Some(offer) = &self.offer {
            let mut descriptor = ProtocolDescriptor { protocol: PROTOCOL_DH_HMAC_CHAP, ..Default::default() };
            descriptor.hashes_len =
                listed(&mut descriptor.hashes, offer.hashes.iter().map(|hash| hash.code()));
            descriptor.groups_len =
                listed(&mut descriptor.groups, offer.groups.iter().map(|group| group.code()));
            bytes.extend_from_slice(descriptor.as_bytes());
        }
        bytes
    }
}

impl<'bytes> Challenge<'bytes> {
    fn parse(bytes: &'bytes [u8]) -> Result<Self, MessageError> {
        let (head, rest) = head_of::<ChallengeHead>(bytes)?;
        let hash = HashId::try_from(head.hash)
            .ok()
            .filter(|hash| hash.size() == usize::from(head.hash_len))
            .ok_or(MessageError::Hash { code: head.hash, len: head.hash_len })?;
        let public_len = head.public_len.get();
        let group = GroupId::try_from(head.group)
            .ok()
            .filter(|group| group.size() == usize::from(public_len))
            .ok_or(MessageError::Group { code: head.group, len: public_len })?;
        let needed = size_of::<ChallengeHead>() + hash.size() + group.size();
        let (challenge, rest) = rest.split_at_checked(hash.size()).ok_or(truncated(needed, bytes))?;
        let (public, _) = rest.split_at_checked(group.size()).ok_or(truncated(needed, bytes))?;
        let (transaction, sequence) = (head.head.transaction.get(), head.sequence.get());
        Ok(Self { transaction, hash, group, sequence, challenge, public })
    }

    fn to_bytes(self) -> Vec<u8> {
        let head = ChallengeHead {
            head: message_head(DH_HMAC_CHAP_MESSAGES, CHALLENGE, self.transaction),
            hash_len: length(self.challenge),
            hash: self.hash.code(),
            group: self.group.code(),
            public_len: U16::new(long_length(self.public)),
            sequence: U32::new(self.sequence),
            ..Default::default()
        };
        [head.as_bytes(), self.challenge, self.public].concat()
    }
}

impl<'bytes> Reply<'bytes> {
    fn parse(bytes: &'bytes [u8]) -> Result<Self, MessageError> {
        let (head, rest) = head_of::<ReplyHead>(bytes)?;
        let (hash_len, public_len) = (usize::from(head.hash_len), usize::from(head.public_len.get()));
        let needed = size_of::<ReplyHead>() + 2 * hash_len + public_len;
        let (response, rest) = rest.split_at_checked(hash_len).ok_or(truncated(needed, bytes))?;
        let (challenge, rest) = rest.split_at_checked(hash_len).ok_or(truncated(needed, bytes))?;
        let (public, _) = rest.split_at_checked(public_len).ok_or(truncated(needed, bytes))?;
        let challenge = flag(head.challenge_valid)?.then_some((head.sequence.get(), challenge));
        Ok(Self { transaction: head.head.transaction.get(), response, challenge, public })
    }

    fn to_bytes(self) -> Vec<u8> {
        // Without a challenge its place is there all the same, as zeros.
        let no_challenge = vec![0; self.response.len()];
        let (sequence, challenge) = self.challenge.unwrap_or((0, &no_challenge));
        let head = ReplyHead {
            head: message_head(DH_HMAC_CHAP_MESSAGES, REPLY, self.transaction),
            hash_len: length(self.response),
            challenge_valid: u8::from(self.challenge.is_some()),
            public_len: U16::new(long_length(self.public)),
            sequence: U32::new(sequence),
            ..Default::default()
        };
        [head.as_bytes(), self.response, challenge, self.public].concat()
    }
}

impl<'bytes> Success1<'bytes> {
    fn parse(bytes: &'bytes [u8]) -> Result<Self, MessageError> {
        let (head, rest) = head_of::<Success1Head>(bytes)?;
        let hash_len = usize::from(head.hash_len);
        let response = if flag(head.response_valid)? {
            Some(rest.get(..hash_len).ok_or(truncated(size_of::<Success1Head>() + hash_len, bytes))?)
        } else {
            None
        };
        Ok(Self { transaction: head.head.transaction.get(), hash_len: head.hash_len, response })
    }

    fn to_bytes(self) -> Vec<u8> {
        let head = Success1Head {
            head: message_head(DH_HMAC_CHAP_MESSAGES, SUCCESS1, self.transaction),
            hash_len: self.hash_len,
            response_valid: u8::from(self.response.is_some()),
            ..Default::default()
        };
        let no_response = vec![0; usize::from(self.hash_len)];
        [head.as_bytes(), self.response.unwrap_or(&no_response)].concat()
    }
}

impl Success2 {
    fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let (layout, _) = head_of::<Success2Layout>(bytes)?;
        Ok(Self { transaction: layout.head.transaction.get() })
    }

    fn to_bytes(self) -> Vec<u8> {
        let head = message_head(DH_HMAC_CHAP_MESSAGES, SUCCESS2, self.transaction);
        Success2Layout { head, ..Default::default() }.as_bytes().to_vec()
    }
}

impl Failure {
    /// A failure for this reason.
    #[must_use]
    pub const fn new(transaction: u16, reason: FailureReason) -> Self {
        Self { transaction, explanation: reason.code() }
    }

    /// The reason, if it is one of the table.
    #[must_use]
    pub fn reason(self) -> Option<FailureReason> {
        FailureReason::try_from(self.explanation).ok()
    }

    fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let (layout, _) = head_of::<FailureLayout>(bytes)?;
        Ok(Self { transaction: layout.head.transaction.get(), explanation: layout.explanation })
    }

    fn to_bytes(self, auth_id: u8) -> Vec<u8> {
        let head = message_head(COMMON_MESSAGES, auth_id, self.transaction);
        let layout =
            FailureLayout { head, reason: REASON_AUTHENTICATION_FAILURE, explanation: self.explanation };
        layout.as_bytes().to_vec()
    }
}

fn message_head(auth_type: u8, auth_id: u8, transaction: u16) -> MessageHead {
    MessageHead { auth_type, auth_id, transaction: U16::new(transaction), ..Default::default() }
}

fn head_of<Head: FromBytes>(bytes: &[u8]) -> Result<(Head, &[u8]), MessageError> {
    Head::read_from_prefix(bytes).map_err(|_| truncated(size_of::<Head>(), bytes))
}

const fn truncated(needed: usize, bytes: &[u8]) -> MessageError {
    MessageError::Truncated { needed, len: bytes.len() }
}

fn known<Id: TryFrom<u8>>(list: &[u8; DESCRIPTOR_IDS_MAX], len: u8) -> Result<Vec<Id>, MessageError> {
    let ids = list.get(..usize::from(len)).ok_or(MessageError::TooManyIds(len))?;
    Ok(ids.iter().filter_map(|id| Id::try_from(*id).ok()).collect())
}

/// Fills a descriptor's list and returns how many identifiers are in it.
fn listed(list: &mut [u8; DESCRIPTOR_IDS_MAX], ids: impl Iterator<Item = u8>) -> u8 {
    let mut len = 0;
    for (place, id) in list.iter_mut().zip(ids) {
        *place = id;
        len += 1;
    }
    len
}

fn flag(value: u8) -> Result<bool, MessageError> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(MessageError::Flag(other)),
    }
}

/// Hashes are at most 64 bytes long; what is longer is no hash, and its length is made one that no hash has.
fn length(hash: &[u8]) -> u8 {
    u8::try_from(hash.len()).unwrap_or(u8::MAX)
}

/// Public values are at most 1024 bytes long; a longer one gets a length that no group has.
fn long_length(public: &[u8]) -> u16 {
    u16::try_from(public.len()).unwrap_or(u16::MAX)
}
