//! One pair of rings of a notification group, and what the card said about them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ob_core::RegionId;
use ob_link::{HostGroup, HostLink, OpenGroupError, WaitError};
use ob_ring::{Outgoing, PushError, ReceiveError};
use ob_wire_link::files::{
    CARD_INFO_LEN, CardInfo, FILES_SERVICE, FileError, LANE_LEN, Operation, REQUEST_LEN, RESPONSE_LEN,
    RequestHeader, ResponseHeader, VERSION,
};
use ob_wire_link::ring::{PAYLOAD_ALIGN_MAX, PAYLOAD_HEADER_LEN, RingSpec};

use crate::error::{Error, Fault, Result};
use crate::options::{GroupOptions, RingSizes};

/// The id of a lane's first request; no operation has it.
const HELLO_ID: u64 = u64::MAX;
/// A large transfer goes in parts of this size at most, so that the card works on one while another is copied.
const PART_MAX: usize = 1 << 20;

/// One pair of rings.
pub(crate) struct Lane {
    pub(crate) group: HostGroup,
    pub(crate) limits: Limits,
    /// Whether the words of its request ring were seen to be impossible.
    garbled: AtomicBool,
}

impl Lane {
    /// Sends a message. A ring whose words cannot be is over; whoever looks next finds that.
    pub(crate) fn push(&self, message: Outgoing<'_>) -> std::result::Result<(), PushError> {
        let pushed = self.group.sender.push(message);
        if matches!(pushed, Err(PushError::Corrupt { .. })) {
            self.garble();
        }
        pushed
    }

    pub(crate) fn garble(&self) {
        self.garbled.store(true, Ordering::Release);
    }

    /// Why it is over, if it is.
    pub(crate) fn over(&self) -> Option<Error> {
        if self.garbled.load(Ordering::Acquire) {
            return Some(Error::Protocol(Fault::Ring));
        }
        self.group.is_closed().then_some(Error::CardGone)
    }

    /// Whether there is an answer to take, or none will ever come again.
    pub(crate) fn has_news(&self) -> bool {
        !self.group.receiver.is_empty() || self.over().is_some()
    }
}

/// What one request of a lane may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) read_max: usize,
    pub(crate) write_max: usize,
    /// The device's block: what a write's place in the ring and in the file should be a multiple of.
    pub(crate) block_len: usize,
}

impl Limits {
    /// The ring aligns payloads to so many bytes at most.
    pub(crate) fn payload_align(self) -> u32 {
        (self.block_len as u32).min(PAYLOAD_ALIGN_MAX)
    }

    fn new(card: &CardInfo, request_max: usize, response_max: usize) -> Option<Self> {
        let block_len = card.block_len as usize;
        let align = (block_len as u64).min(u64::from(PAYLOAD_ALIGN_MAX)) as usize;
        // The worst padding counts, as it does for the ring itself.
        let room = |message_max: usize, header: usize| {
            message_max.checked_sub(PAYLOAD_HEADER_LEN + header + align).map(|room| {
                let most = room.min(card.transfer_max as usize).min(PART_MAX);
                // Whole blocks, where there is one: what follows then begins at a block again.
                if most >= align { most - most % align } else { most }
            })
        };
        let read_max = room(response_max, RESPONSE_LEN)?;
        let write_max = room(request_max, REQUEST_LEN)?;
        (read_max > 0 && write_max > 0).then_some(Self { read_max, write_max, block_len })
    }
}

/// The lanes of a group, from one opening to their end.
pub(crate) struct Life {
    /// Small transfers and everything else; transfers above [`LANE_LEN`].
    pub(crate) lanes: [Lane; 2],
    pub(crate) card: CardInfo,
    pub(crate) opened: Instant,
}

/// The index of the lane that a transfer of so many bytes takes.
pub(crate) fn lane_of(len: usize) -> usize {
    usize::from(len > LANE_LEN)
}

/// The lane of everything that is no transfer.
pub(crate) const CONTROL_LANE: usize = 0;

impl Life {
    /// Opens both lanes and exchanges greetings on each.
    pub(crate) fn open(link: &HostLink, options: &GroupOptions, within: Duration) -> Result<Self> {
        let (small, card) = open_lane(link, options.small, within)?;
        let (bulk, _) = open_lane(link, options.bulk, within)?;
        Ok(Self { lanes: [small, bulk], card, opened: Instant::now() })
    }

    /// Why one of the lanes is over, if one is.
    pub(crate) fn over(&self) -> Option<Error> {
        self.lanes.iter().find_map(Lane::over)
    }
}

fn open_lane(link: &HostLink, sizes: RingSizes, within: Duration) -> Result<(Lane, CardInfo)> {
    let group = open_rings(link, FILES_SERVICE, sizes)?;
    let card = greet(&group, within)?;
    let transfer_max = u32::try_from(link.welcome().transfer_max).unwrap_or(u32::MAX);
    let specs = RingSpec::group(RegionId(0), sizes.requests, sizes.responses, transfer_max);
    let (_, responses, _) = specs.map_err(|error| Error::Attach(error.to_string()))?;
    let request_max = group.sender.message_max() as usize;
    let limits = Limits::new(&card, request_max, responses.message_max() as usize);
    let limits = limits.ok_or_else(|| {
        let block = card.block_len;
        Error::Attach(format!("rings of {sizes:?} are too small for blocks of {block} bytes"))
    })?;
    Ok((Lane { group, limits, garbled: AtomicBool::new(false) }, card))
}

/// Opens a group's rings for a service.
pub(crate) fn open_rings(link: &HostLink, service: u32, sizes: RingSizes) -> Result<HostGroup> {
    link.open_group(service, sizes.requests, sizes.responses).map_err(|error| match error {
        OpenGroupError::Gone => Error::CardGone,
        OpenGroupError::Busy => Error::Busy,
        OpenGroupError::TimedOut => Error::TimedOut,
        OpenGroupError::NoMemory => Error::System,
        OpenGroupError::Refused(refusal) => Error::Attach(format!("the card refused a group: {refusal}")),
    })
}

/// Says `HELLO` and waits for the answer: the first thing in each group.
fn greet(group: &HostGroup, within: Duration) -> Result<CardInfo> {
    let header = RequestHeader {
        id: HELLO_ID,
        operation: Operation::Hello.code(),
        offset: u64::from(VERSION),
        ..RequestHeader::default()
    };
    match group.sender.push(Outgoing { inline: &header.encode(), payload: None }) {
        Ok(()) => {}
        Err(PushError::Closed) => return Err(Error::CardGone),
        Err(PushError::TooLarge { .. }) => return Err(Error::TooLarge),
        Err(PushError::Retry | PushError::Corrupt { .. }) => return Err(Error::Protocol(Fault::Ring)),
    }
    let answer = group.wait_response(within, || match group.receiver.receive() {
        Ok(None) => None,
        Ok(Some(response)) => {
            let mut bytes = [0; RESPONSE_LEN + CARD_INFO_LEN];
            let len = response.inline(&mut bytes);
            Some(response.check().map_err(|_| Error::CardGone).and_then(|()| greeted(&bytes[..len])))
        }
        Err(ReceiveError::Closed) => Some(Err(Error::CardGone)),
        Err(ReceiveError::Corrupt(_) | ReceiveError::Pointers { .. }) => {
            Some(Err(Error::Protocol(Fault::Ring)))
        }
    });
    answer.unwrap_or_else(|error| match error {
        WaitError::TimedOut => Err(Error::TimedOut),
        WaitError::Gone => Err(Error::CardGone),
    })
}

fn greeted(bytes: &[u8]) -> Result<CardInfo> {
    let (header, rest) = ResponseHeader::decode(bytes).ok_or(Error::Protocol(Fault::Answer))?;
    if header.id != HELLO_ID {
        return Err(Error::Protocol(Fault::Answer));
    }
    if header.status == Err(FileError::Unsupported) {
        return Err(Error::Attach(format!(
            "the card speaks version {} of the file protocol, and this library version {VERSION}",
            header.value
        )));
    }
    header.status?;
    let card = CardInfo::decode(rest).filter(|card| card.version == VERSION);
    card.ok_or(Error::Protocol(Fault::Answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(block_len: u32, transfer_max: u32) -> CardInfo {
        CardInfo {
            version: VERSION,
            block_len,
            transfer_max,
            segment_len: 1 << 20,
            epoch: 1,
            uuid: [0; 16],
            file_len_max: 1 << 40,
        }
    }

    #[test]
    fn limits_leave_room_for_headers_and_padding() {
        let limits = Limits::new(&card(4096, 1 << 20), 1 << 19, 1 << 20).unwrap();
        assert_eq!(limits.write_max, (1 << 19) - 2 * 4096, "headers and padding take more than one block");
        assert_eq!(limits.read_max, (1 << 20) - 2 * 4096);
        let narrow = Limits::new(&card(512, 100), 1 << 19, 1 << 19).unwrap();
        assert_eq!((narrow.read_max, narrow.write_max), (100, 100), "the card's own limit counts too");
        assert_eq!(Limits::new(&card(4096, 1 << 20), 2048, 2048), None);
        let coarse = Limits::new(&card(65536, 1 << 20), 1 << 19, 1 << 19).unwrap();
        assert_eq!(coarse.payload_align(), 4096);
    }

    #[test]
    fn greetings_that_cannot_be_are_refused() {
        let answer = |header: ResponseHeader, info: &[u8]| [&header.encode()[..], info].concat();
        let good = card(4096, 4096);
        assert_eq!(greeted(&answer(ResponseHeader::done(HELLO_ID), &good.encode())), Ok(good));
        assert_eq!(
            greeted(&answer(ResponseHeader::done(1), &good.encode())),
            Err(Error::Protocol(Fault::Answer))
        );
        for len in [0, 10, RESPONSE_LEN, RESPONSE_LEN + CARD_INFO_LEN - 1] {
            let bytes = answer(ResponseHeader::done(HELLO_ID), &good.encode());
            assert_eq!(greeted(&bytes[..len]), Err(Error::Protocol(Fault::Answer)), "{len}");
        }
        let newer = CardInfo { version: 2, ..good };
        assert_eq!(
            greeted(&answer(ResponseHeader::done(HELLO_ID), &newer.encode())),
            Err(Error::Protocol(Fault::Answer)),
            "it takes the version and speaks another"
        );
        let busy = ResponseHeader::failed(HELLO_ID, FileError::Busy);
        assert_eq!(greeted(&answer(busy, &[])), Err(Error::Busy));
    }

    #[test]
    fn a_card_of_another_version_says_which() {
        let refusal = ResponseHeader { value: 2, ..ResponseHeader::failed(HELLO_ID, FileError::Unsupported) };
        let told = greeted(&refusal.encode()).unwrap_err().to_string();
        assert!(told.contains("version 2") && told.contains("version 1"), "{told}");
    }
}
