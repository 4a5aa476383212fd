//! What waits to be sent: headers, and payload that is never copied.

use std::collections::VecDeque;
use std::io::IoSlice;

use ob_wire_nvme::CommandId;
use ob_wire_nvme::pdu::{HeaderBytes, digest};

use crate::initiator::payload::Payload;

enum Bytes {
    Header(HeaderBytes),
    Payload(Payload),
    Digest([u8; 4]),
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Header(header) => header,
            Self::Payload(payload) => payload,
            Self::Digest(digest) => digest,
        }
    }
}

struct Segment {
    bytes: Bytes,
    /// The command whose requested data ends here.
    ends: Option<CommandId>,
}

/// Segments in their order. Each PDU begins with a header.
#[derive(Default)]
pub(super) struct Output {
    segments: VecDeque<Segment>,
    /// Bytes of the first segment that are sent.
    sent: usize,
}

impl Output {
    pub(super) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(super) fn push_header(&mut self, header: HeaderBytes) {
        self.segments.push_back(Segment { bytes: Bytes::Header(header), ends: None });
    }

    /// The data behind a header; nothing, if there is none.
    pub(super) fn push_payload(&mut self, payload: Payload, has_digest: bool, ends: Option<CommandId>) {
        if payload.is_empty() {
            return;
        }
        let digest = has_digest.then(|| digest(&payload));
        let payload_ends = if digest.is_some() { None } else { ends };
        self.segments.push_back(Segment { bytes: Bytes::Payload(payload), ends: payload_ends });
        if let Some(digest) = digest {
            self.segments.push_back(Segment { bytes: Bytes::Digest(digest), ends });
        }
    }

    /// The last PDU: what is half sent is finished, nothing else goes before it.
    pub(super) fn farewell(&mut self, header: HeaderBytes) {
        let is_header = |segment: &Segment| matches!(segment.bytes, Bytes::Header(_));
        let begun = usize::from(self.sent > 0);
        let next = self.segments.iter().skip(begun).position(is_header);
        self.segments.truncate(next.map_or(self.segments.len(), |next| next + begun));
        self.push_header(header);
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            self.segments.iter().flat_map(|segment| segment.bytes.as_slice().to_vec()).collect();
        bytes.drain(..self.sent.min(bytes.len()));
        bytes
    }

    pub(super) fn transmit<'output>(&'output self, into: &mut [IoSlice<'output>]) -> usize {
        let mut skip = self.sent;
        let mut count = 0;
        for (slice, segment) in into.iter_mut().zip(&self.segments) {
            *slice = IoSlice::new(segment.bytes.as_slice().get(skip..).unwrap_or_default());
            skip = 0;
            count += 1;
        }
        count
    }

    pub(super) fn sent(&mut self, count: usize, mut ended: impl FnMut(CommandId)) {
        self.sent += count;
        while let Some(first) = self.segments.front() {
            let len = first.bytes.as_slice().len();
            if self.sent < len {
                return;
            }
            self.sent -= len;
            if let Some(command) = first.ends {
                ended(command);
            }
            self.segments.pop_front();
        }
        self.sent = 0;
    }
}
