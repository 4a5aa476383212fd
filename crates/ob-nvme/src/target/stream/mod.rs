//! One connection's bytes cut into PDUs, and payload put where it belongs.
//!
//! ```text
//!   bytes ─▶ peek ─▶ a header, checked ─▶ the target decides ─▶ begin(sink) ─▶ feed … feed ─▶ finished payload
//!              └─ part of a header: kept in `head`                  │
//!                                                   Sink::Slice: the driver may receive straight into it
//! ```
//!
//! Between two receives a stream keeps at most a part of a header. Payload is never kept here: it goes to the buffer
//! of its command at once, and a command that has none yet holds the bytes up where they are.

mod output;

use ob_memory::Slice;
use ob_wire_nvme::SubmissionEntry;
use ob_wire_nvme::pdu::{
    ADMIN_CAPSULE_DATA_MAX, DIGEST_LEN, DataAlignment, DataDigest, Digests, Framing, IC_LEN, IcRequest,
    IcResponse, Layout, Pdu, PduError, Progress, ReceiveRules, Role, receive,
};

pub(super) use output::Output;

use super::config::TRANSFER_LEN_MIN;
use super::flight::FlightKey;
use super::shares::Lease;

/// Where payload goes.
#[derive(Debug)]
pub(super) enum Sink {
    /// Into this buffer, from this byte on.
    Slice(Slice, usize),
    /// Nowhere: there is no buffer, and its command will fail.
    Nowhere,
}

/// What payload is for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// Data of a command capsule.
    Capsule(SubmissionEntry),
    /// Data that an R2T asked for.
    Transfer {
        /// The command.
        flight: FlightKey,
        /// Bytes.
        len: u32,
    },
}

/// A PDU's payload, all of it.
#[derive(Debug)]
pub(super) struct Payload {
    /// What it is for.
    pub(super) purpose: Purpose,
    /// The buffer, if it went to one.
    pub(super) slice: Option<Slice>,
    /// What came with a capsule holds its buffer; what was asked for has its command for that.
    pub(super) lease: Option<Lease>,
    /// Bytes.
    pub(super) len: usize,
    /// Whether its digest, if there is one, is right.
    pub(super) is_sound: bool,
}

/// What the bytes so far amount to.
pub(super) enum Peek {
    /// The header is not complete. All bytes are taken.
    Partial,
    /// A header; nothing of it is taken before `begin`.
    Header(Layout, Pdu),
}

enum Stage {
    Head,
    Body {
        layout: Layout,
        at: usize,
        sink: Sink,
        lease: Option<Lease>,
        purpose: Purpose,
        digest: [u8; DIGEST_LEN],
    },
}

/// The receiving half of a connection, and how its PDUs are framed.
pub(super) struct Stream {
    rules: ReceiveRules,
    framing: Framing,
    is_open: bool,
    head: [u8; IC_LEN],
    head_len: usize,
    stage: Stage,
}

impl Stream {
    pub(super) fn new() -> Self {
        Self {
            rules: ReceiveRules {
                role: Role::Target,
                digests: Digests::NONE,
                alignment: DataAlignment::DWORD,
                // Until Connect says which queue this is: what Connect itself may bring.
                capsule_data_max: ADMIN_CAPSULE_DATA_MAX,
                data_max: TRANSFER_LEN_MIN as u32,
            },
            framing: Framing { role: Role::Target, digests: Digests::NONE, alignment: DataAlignment::DWORD },
            is_open: false,
            head: [0; IC_LEN],
            head_len: 0,
            stage: Stage::Head,
        }
    }

    /// Takes what the host wants of the connection, and gives the answer.
    pub(super) fn open(&mut self, request: &IcRequest) -> Result<IcResponse, PduError> {
        if self.is_open {
            return Err(PduError::sequence());
        }
        self.is_open = true;
        self.rules.digests = request.digests;
        self.framing.digests = request.digests;
        self.framing.alignment = request.alignment;
        Ok(IcResponse {
            alignment: DataAlignment::DWORD,
            digests: request.digests,
            data_max: self.rules.data_max,
        })
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    pub(super) fn framing(&self) -> &Framing {
        &self.framing
    }

    pub(super) fn set_capsule_data_max(&mut self, bytes: u32) {
        self.rules.capsule_data_max = bytes;
    }

    /// What it says as MAXH2CDATA.
    pub(super) fn set_data_max(&mut self, bytes: u32) {
        self.rules.data_max = bytes;
    }

    /// Whether a PDU has begun and is not complete.
    pub(super) fn is_within_pdu(&self) -> bool {
        self.head_len > 0 || matches!(self.stage, Stage::Body { .. })
    }

    /// The begin of the PDU that is wrong, for a terminate request to quote.
    pub(super) fn quote<'a>(&'a self, input: &'a [u8]) -> &'a [u8] {
        if self.head_len > 0 { self.head.get(..self.head_len).unwrap_or_default() } else { input }
    }

    /// Looks at the header that comes next. Only between PDUs.
    pub(super) fn peek(&mut self, input: &mut &[u8]) -> Result<Peek, PduError> {
        if self.head_len == 0 {
            return match receive(input, &self.rules)? {
                Progress::Header(layout, pdu) => Ok(Peek::Header(layout, pdu)),
                Progress::Need(_) => {
                    self.keep(input, IC_LEN);
                    Ok(Peek::Partial)
                }
            };
        }
        loop {
            match receive(&self.head[..self.head_len], &self.rules)? {
                Progress::Header(layout, pdu) => return Ok(Peek::Header(layout, pdu)),
                Progress::Need(_) if input.is_empty() => return Ok(Peek::Partial),
                Progress::Need(len) => self.keep(input, len),
            }
        }
    }

    /// Moves bytes to `head` until it has `len`.
    fn keep(&mut self, input: &mut &[u8], len: usize) {
        let taken = len.min(IC_LEN).saturating_sub(self.head_len).min(input.len());
        let (kept, rest) = input.split_at(taken);
        self.head[self.head_len..self.head_len + taken].copy_from_slice(kept);
        self.head_len += taken;
        *input = rest;
    }

    /// Takes the header that `peek` showed, which has no payload.
    pub(super) fn take_header(&mut self, layout: &Layout, input: &mut &[u8]) {
        if self.head_len == 0 {
            *input = input.get(layout.head_len()..).unwrap_or_default();
        }
        self.head_len = 0;
    }

    /// Takes the header that `peek` showed; its payload goes to `sink`.
    pub(super) fn begin(
        &mut self,
        layout: Layout,
        input: &mut &[u8],
        purpose: Purpose,
        (sink, lease): (Sink, Option<Lease>),
    ) {
        self.take_header(&layout, input);
        let at = layout.head_len();
        self.stage = Stage::Body { layout, at, sink, lease, purpose, digest: [0; DIGEST_LEN] };
    }

    /// Forgets a payload that is being received: nothing more will be.
    pub(super) fn abandon(&mut self) {
        self.stage = Stage::Head;
    }

    /// Whether payload is being received: then `feed`, else `peek`.
    pub(super) fn is_in_body(&self) -> bool {
        matches!(self.stage, Stage::Body { .. })
    }

    /// The rest of the buffer that is being filled.
    pub(super) fn direct(&mut self) -> Option<&mut [u8]> {
        let Stage::Body { layout, at, sink: Sink::Slice(slice, start), .. } = &mut self.stage else {
            return None;
        };
        let done = at.checked_sub(layout.data_at)?;
        let (from, to) = (*start + done, *start + layout.data_len);
        if from < to { slice.get_mut(from..to) } else { None }
    }

    /// So many bytes were received into `direct`.
    pub(super) fn filled(&mut self, count: usize) {
        if let Stage::Body { at, .. } = &mut self.stage {
            *at += count;
        }
    }

    /// Takes bytes of the body; gives the payload when it is complete.
    pub(super) fn feed(&mut self, input: &mut &[u8]) -> Option<Payload> {
        let Stage::Body { layout, at, sink, digest, .. } = &mut self.stage else { return None };
        // Padding.
        take(input, layout.data_at, at);
        // Data.
        let done = at.saturating_sub(layout.data_at);
        let bytes = take(input, layout.data_end(), at);
        if let Sink::Slice(slice, start) = sink
            && let Some(space) = slice.get_mut(*start + done..*start + done + bytes.len())
        {
            space.copy_from_slice(bytes);
        }
        // Its digest.
        let done = at.saturating_sub(layout.data_end());
        let bytes = take(input, layout.total_len, at);
        if let Some(space) = digest.get_mut(done..done + bytes.len()) {
            space.copy_from_slice(bytes);
        }
        if *at < layout.total_len { None } else { self.finish() }
    }

    fn finish(&mut self) -> Option<Payload> {
        let Stage::Body { layout, sink, lease, purpose, digest, .. } =
            std::mem::replace(&mut self.stage, Stage::Head)
        else {
            return None;
        };
        let (slice, is_sound) = match sink {
            Sink::Nowhere => (None, true),
            Sink::Slice(slice, start) => {
                let is_sound = !layout.has_data_digest || {
                    let mut expected = DataDigest::new();
                    expected.update(slice.get(start..start + layout.data_len).unwrap_or_default());
                    expected.matches(&digest)
                };
                (Some(slice), is_sound)
            }
        };
        Some(Payload { purpose, slice, lease, len: layout.data_len, is_sound })
    }
}

/// Takes bytes until the PDU's byte `end` is reached.
fn take<'a>(input: &mut &'a [u8], end: usize, at: &mut usize) -> &'a [u8] {
    let taken = end.saturating_sub(*at).min(input.len());
    let (bytes, rest) = input.split_at(taken);
    *input = rest;
    *at += taken;
    bytes
}
