//! A connection against a target that says exactly the bytes it is told to.

use std::io::IoSlice;
use std::time::Duration;

use ob_core::Instant;
use ob_wire_nvme::command::IoOpcode;
use ob_wire_nvme::io::BlockCommand;
use ob_wire_nvme::pdu::{
    DataAlignment, DataTransfer, Digests, FatalStatus, Framing, IcResponse, Pdu, PduError, PduType, Progress,
    ReadyToTransfer, ReceiveRules, Role, digest, receive,
};
use ob_wire_nvme::{
    CommandId, CompletionEntry, DataPointer, NamespaceId, QueueId, Status, SubmissionEntry, TransferTag,
};
use proptest::prelude::*;

use super::{Completion, Connection, ConnectionConfig, Data, Submission};
use crate::initiator::error::{Cause, ProtocolError};

const DATA_MAX: u32 = 4096;
const NOW: Instant = Instant::from_nanoseconds(1);

struct Peer {
    connection: Connection<u32>,
    framing: Framing,
    /// How many bytes arrive at once.
    step: usize,
}

impl Peer {
    fn closed(digests: Digests) -> Self {
        let config =
            ConnectionConfig { digests, depth: 4, receive_len: 0, command_timeout: Duration::from_secs(30) };
        let framing = Framing { role: Role::Target, digests, alignment: DataAlignment::DWORD };
        Self { connection: Connection::new(config, NOW), framing, step: usize::MAX }
    }

    fn open(digests: Digests) -> Self {
        let mut peer = Self::closed(digests);
        assert_eq!(peer.output().len(), 128, "ICReq");
        let response = IcResponse { alignment: DataAlignment::DWORD, digests, data_max: DATA_MAX };
        peer.feed(&response.encode());
        assert!(peer.connection.is_open());
        peer
    }

    /// Lets bytes arrive, as many at once as `step` says and as there is room for.
    fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let mut count = 0;
            for part in self.connection.receive_into() {
                let len = part.len().min(bytes.len()).min(self.step - count);
                part[..len].copy_from_slice(&bytes[..len]);
                bytes = &bytes[len..];
                count += len;
                if len < part.len() {
                    break;
                }
            }
            assert!(count > 0, "no room to receive");
            self.connection.received(count);
            if self.connection.ended().is_some() {
                return;
            }
        }
    }

    fn output(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            let mut slices = [IoSlice::new(&[]); 3];
            let count = self.connection.transmit(&mut slices);
            let before = bytes.len();
            slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
            if bytes.len() == before {
                return bytes;
            }
            self.connection.sent(bytes.len() - before);
        }
    }

    /// The PDUs in what was sent, with their data.
    fn sent(&mut self) -> Vec<(Pdu, Vec<u8>)> {
        let bytes = self.output();
        let rules = ReceiveRules {
            role: Role::Target,
            digests: self.framing.digests,
            alignment: DataAlignment::DWORD,
            capsule_data_max: 8192,
            data_max: DATA_MAX,
        };
        let mut rest = &bytes[..];
        let mut found = Vec::new();
        while !rest.is_empty() {
            let Progress::Header(layout, pdu) = receive(rest, &rules).unwrap() else { panic!("half a PDU") };
            let data = rest[layout.data_at..layout.data_end()].to_vec();
            if layout.has_data_digest {
                assert_eq!(rest[layout.data_end()..layout.total_len], digest(&data));
            }
            found.push((pdu, data));
            rest = &rest[layout.total_len..];
        }
        found
    }

    fn submit(&mut self, key: u32, opcode: IoOpcode, data: Data) -> CommandId {
        let entry = BlockCommand::new(NamespaceId(1), 0, 1).encode(opcode, CommandId(0), DataPointer::None);
        let submission = Submission { key, entry, data, may_be_short: false, is_patient: false };
        self.connection.submit(NOW, submission).unwrap();
        match self.sent().first() {
            Some((Pdu::Command(entry), _)) => entry.command(),
            other => panic!("no command: {other:?}"),
        }
    }

    fn read(&mut self, key: u32, len: u32) -> CommandId {
        self.submit(key, IoOpcode::Read, Data::ToHost(len))
    }

    /// A write that is too large for its capsule.
    fn write(&mut self, key: u32, data: &[u8]) -> CommandId {
        assert!(data.len() > 8192);
        self.submit(key, IoOpcode::Write, Data::ToController(data.into()))
    }

    fn data(&self, command: CommandId, offset: u32, bytes: &[u8], last: bool, success: bool) -> Vec<u8> {
        let transfer = DataTransfer {
            command,
            tag: TransferTag(0),
            offset,
            len: bytes.len() as u32,
            is_last: last,
            is_success: success,
        };
        let mut pdu = self.framing.data(&transfer).to_vec();
        pdu.extend_from_slice(bytes);
        if self.framing.digests.data {
            pdu.extend(digest(bytes));
        }
        pdu
    }

    fn response(&self, command: CommandId, status: Status) -> Vec<u8> {
        self.framing.response(&CompletionEntry::new(command, QueueId(1), 0, status, 5)).to_vec()
    }

    fn wanted(&self, command: CommandId, offset: u32, len: u32) -> Vec<u8> {
        let wanted = ReadyToTransfer { command, tag: TransferTag(9), offset, len };
        self.framing.ready_to_transfer(&wanted).to_vec()
    }

    fn completions(&mut self) -> Vec<Completion<u32>> {
        std::iter::from_fn(|| self.connection.next_completion()).collect()
    }

    /// That the connection ended for this reason, and what the target is told.
    fn ends_with(mut self, expected: ProtocolError) -> FatalStatus {
        assert_eq!(self.connection.ended(), Some(&Cause::Protocol(expected)));
        let entry = SubmissionEntry::default();
        let refused = Submission { key: 0, entry, data: Data::None, may_be_short: false, is_patient: false };
        assert!(self.connection.submit(NOW, refused).is_err());
        let farewell = self.connection.farewell();
        let sent = self.sent();
        assert!(!farewell.is_empty());
        let Some((Pdu::Termination(reason), _)) = sent.last() else { panic!("{sent:?}") };
        // Whatever follows changes nothing.
        self.feed(&[0xFF; 64]);
        assert!(self.completions().is_empty());
        reason.known_status().unwrap()
    }
}

const DIGESTS: [Digests; 4] = [
    Digests::NONE,
    Digests { header: true, data: false },
    Digests { header: false, data: true },
    Digests::BOTH,
];

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + index / 251) as u8).collect()
}

#[test]
fn reads_are_filled_however_the_bytes_arrive() {
    for digests in DIGESTS {
        for step in [1, 7, 600, usize::MAX] {
            let mut peer = Peer::open(digests);
            peer.step = step;
            let bytes = pattern(5000);
            let (one, two, three) = (peer.read(1, 5000), peer.read(2, 5000), peer.read(3, 16));
            // Two commands at once, one of them in pieces; one answered by its data, one by a response.
            let mut stream = peer.data(one, 0, &bytes[..4096], false, false);
            stream.extend(peer.data(two, 0, &bytes, true, true));
            stream.extend(peer.data(one, 4096, &bytes[4096..], true, false));
            stream.extend(peer.response(one, Status::SUCCESS));
            stream.extend(peer.response(three, Status::LBA_OUT_OF_RANGE));
            peer.feed(&stream);
            assert_eq!(peer.connection.ended(), None);
            let done = peer.completions();
            assert_eq!(done.iter().map(|done| done.key).collect::<Vec<_>>(), [2, 1, 3]);
            assert!(done[0].data == bytes && done[1].data == bytes);
            assert_eq!((done[1].result, done[2].status), (5, Status::LBA_OUT_OF_RANGE));
            assert_eq!((done[2].data.len(), peer.connection.in_flight()), (0, 0));
        }
    }
}

#[test]
fn writes_go_in_the_capsule_or_in_pieces_as_they_are_asked_for() {
    for digests in DIGESTS {
        let mut peer = Peer::open(digests);
        let small = pattern(8192);
        let entry =
            BlockCommand::new(NamespaceId(1), 0, 16).encode(IoOpcode::Write, CommandId(0), DataPointer::None);
        let data = Data::ToController(small.clone().into());
        let submission = Submission { key: 1, entry, data, may_be_short: false, is_patient: false };
        peer.connection.submit(NOW, submission).unwrap();
        let sent = peer.sent();
        let [(Pdu::Command(entry), bytes)] = &sent[..] else { panic!("{sent:?}") };
        assert!(*bytes == small);
        assert_eq!(entry.data_pointer(8192), Ok(DataPointer::InCapsule { offset: 0, len: 8192 }));

        let large = pattern(20_000);
        let command = peer.write(2, &large);
        for (offset, len) in [(0, 9000), (9000, 11_000)] {
            let wanted = peer.wanted(command, offset, len);
            peer.feed(&wanted);
            let mut at = offset;
            let sent = peer.sent();
            for (pdu, bytes) in &sent {
                let Pdu::Data(transfer) = pdu else { panic!("{pdu:?}") };
                assert_eq!((transfer.command, transfer.tag, transfer.offset), (command, TransferTag(9), at));
                assert!(transfer.len <= DATA_MAX && bytes[..] == large[at as usize..][..bytes.len()]);
                at += transfer.len;
                assert_eq!(transfer.is_last, at == offset + len);
            }
            assert_eq!(at, offset + len);
        }
        let response = peer.response(command, Status::SUCCESS);
        peer.feed(&response);
        assert_eq!(peer.completions().len(), 1);
    }
}

#[test]
fn commands_beyond_the_slots_are_handed_back_and_slots_come_back_under_other_numbers() {
    let mut peer = Peer::open(Digests::NONE);
    let mut seen = std::collections::HashSet::new();
    for round in 0..50 {
        let commands: Vec<_> = (0..4).map(|key| peer.read(key, 4)).collect();
        let entry = SubmissionEntry::default();
        let fifth = Submission { key: 5, entry, data: Data::None, may_be_short: false, is_patient: false };
        assert!(peer.connection.submit(NOW, fifth).is_err());
        for command in commands {
            assert!(round >= 60 || seen.insert(command.0), "{command} twice within {round} rounds");
            let data = peer.data(command, 0, &[1; 4], true, true);
            peer.feed(&data);
        }
        assert_eq!(peer.completions().len(), 4);
    }
}

#[test]
fn answers_for_commands_that_are_not_under_way_end_the_connection() {
    type Make = fn(&Peer, CommandId) -> Vec<u8>;
    let kinds: [Make; 3] = [
        |peer, command| peer.response(command, Status::SUCCESS),
        |peer, command| peer.data(command, 0, &[1; 4], true, true),
        |peer, command| peer.wanted(command, 0, 4),
    ];
    for make in kinds {
        for digests in DIGESTS {
            // Never used; of a slot that does not exist; used before.
            let mut peer = Peer::open(digests);
            let bytes = make(&peer, CommandId(0));
            peer.feed(&bytes);
            peer.ends_with(ProtocolError::UnknownCommand(0));
            let mut peer = Peer::open(digests);
            let bytes = make(&peer, CommandId(0xFFFF));
            peer.feed(&bytes);
            peer.ends_with(ProtocolError::UnknownCommand(0xFFFF));
            let mut peer = Peer::open(digests);
            let earlier = peer.read(1, 4);
            let answer = peer.data(earlier, 0, &[1; 4], true, true);
            peer.feed(&answer);
            assert_eq!(peer.completions().len(), 1);
            peer.read(2, 4);
            let bytes = make(&peer, earlier);
            peer.feed(&bytes);
            assert_eq!(peer.connection.in_flight(), 1, "the command that has the slot now stays");
            peer.ends_with(ProtocolError::UnknownCommand(earlier.0));
        }
    }
}

#[test]
fn data_that_was_not_asked_for_ends_the_connection() {
    // Where it begins, how long it is, after how much that was right.
    for (offset, len, before) in
        [(0, 101, 0), (96, 8, 0), (4, 4, 0), (0, 4, 8), (4, 8, 8), (12, 4, 8), (u32::MAX - 4, 4, 0)]
    {
        let mut peer = Peer::open(Digests::NONE);
        let command = peer.read(1, 100);
        if before > 0 {
            let data = peer.data(command, 0, &pattern(before), false, false);
            peer.feed(&data);
            assert_eq!(peer.connection.ended(), None);
        }
        let data = peer.data(command, offset, &pattern(len), false, false);
        peer.feed(&data);
        assert_eq!(peer.ends_with(ProtocolError::UnexpectedData), FatalStatus::OutOfRange);
    }
    // Behind the last; for a write; for a command that has no data.
    let mut peer = Peer::open(Digests::NONE);
    let command = peer.read(1, 100);
    let data = [peer.data(command, 0, &[1; 4], true, false), peer.data(command, 4, &[1; 4], true, false)];
    peer.feed(&data.concat());
    peer.ends_with(ProtocolError::UnexpectedData);
    let mut peer = Peer::open(Digests::NONE);
    let command = peer.write(1, &pattern(10_000));
    let data = peer.data(command, 0, &[1; 4], true, true);
    peer.feed(&data);
    peer.ends_with(ProtocolError::UnexpectedData);
}

#[test]
fn success_without_all_of_the_data_ends_the_connection_and_the_owner_hears_of_it() {
    for is_flag in [false, true] {
        let mut peer = Peer::open(Digests::NONE);
        let command = peer.read(7, 100);
        let mut bytes = peer.data(command, 0, &[1; 96], true, is_flag);
        if !is_flag {
            bytes.extend(peer.response(command, Status::SUCCESS));
        }
        peer.feed(&bytes);
        assert_eq!(peer.connection.ended(), Some(&ProtocolError::MissingData.into()));
        assert_eq!(peer.connection.lost().collect::<Vec<_>>(), [7]);
    }
    // A write whose data was never, not wholly, or not yet sent.
    for wanted in [None, Some(5000), Some(10_000)] {
        let mut peer = Peer::open(Digests::NONE);
        let command = peer.write(7, &pattern(10_000));
        let mut bytes = wanted.map_or(Vec::new(), |len| peer.wanted(command, 0, len));
        bytes.extend(peer.response(command, Status::SUCCESS));
        peer.feed(&bytes);
        peer.ends_with(ProtocolError::MissingData);
    }
    // To fail early is the target's right.
    let mut peer = Peer::open(Digests::NONE);
    let command = peer.write(7, &pattern(10_000));
    let bytes = peer.response(command, Status::WRITE_FAULT);
    peer.feed(&bytes);
    assert_eq!(peer.completions()[0].status, Status::WRITE_FAULT);
}

#[test]
fn requests_for_data_beyond_the_commands_own_end_the_connection() {
    for (offset, len) in [(0, 10_001), (9996, 8), (4, 4), (u32::MAX - 4, 4)] {
        let mut peer = Peer::open(Digests::NONE);
        let command = peer.write(1, &pattern(10_000));
        let bytes = peer.wanted(command, offset, len);
        peer.feed(&bytes);
        assert_eq!(peer.ends_with(ProtocolError::UnexpectedTransfer), FatalStatus::OutOfRange);
    }
    // The same again; of a read; of data that went with the capsule.
    let mut peer = Peer::open(Digests::NONE);
    let command = peer.write(1, &pattern(10_000));
    let bytes = peer.wanted(command, 0, 10_000);
    peer.feed(&bytes);
    peer.output();
    peer.feed(&bytes);
    peer.ends_with(ProtocolError::UnexpectedTransfer);
    let mut peer = Peer::open(Digests::NONE);
    let read = peer.read(1, 512);
    let bytes = peer.wanted(read, 0, 4);
    peer.feed(&bytes);
    peer.ends_with(ProtocolError::UnexpectedTransfer);
    let mut peer = Peer::open(Digests::NONE);
    let small = peer.submit(1, IoOpcode::Write, Data::ToController(vec![1; 512].into()));
    let bytes = peer.wanted(small, 0, 512);
    peer.feed(&bytes);
    peer.ends_with(ProtocolError::UnexpectedTransfer);
    // Two at once are more than were allowed, and the second is never kept.
    let mut peer = Peer::open(Digests::NONE);
    let command = peer.write(1, &pattern(10_000));
    let bytes = [peer.wanted(command, 0, 4), peer.wanted(command, 4, 4)].concat();
    peer.feed(&bytes);
    assert_eq!(peer.ends_with(ProtocolError::TransferLimit), FatalStatus::LimitExceeded);
}

#[test]
fn wrong_digests_end_the_connection() {
    let mut peer = Peer::open(Digests::BOTH);
    let command = peer.read(1, 512);
    let mut bytes = peer.data(command, 0, &[1; 512], true, true);
    *bytes.last_mut().unwrap() ^= 1;
    peer.feed(&bytes);
    peer.ends_with(ProtocolError::DataDigest);
    let mut peer = Peer::open(Digests::BOTH);
    let command = peer.read(1, 512);
    let mut bytes = peer.response(command, Status::INVALID_FIELD);
    *bytes.last_mut().unwrap() ^= 1;
    peer.feed(&bytes);
    let Some(Cause::Protocol(ProtocolError::Pdu(error))) = peer.connection.ended().cloned() else {
        panic!("{:?}", peer.connection.ended())
    };
    assert_eq!(error.status, FatalStatus::HeaderDigest);
    assert_eq!(peer.ends_with(ProtocolError::Pdu(error)), FatalStatus::HeaderDigest);
}

#[test]
fn only_an_icresp_with_the_same_digests_opens_and_only_once() {
    let response = |digests| IcResponse { alignment: DataAlignment::DWORD, digests, data_max: DATA_MAX };
    let mut peer = Peer::closed(Digests::NONE);
    let bytes = peer.response(CommandId(0), Status::SUCCESS);
    peer.feed(&bytes);
    peer.ends_with(ProtocolError::Sequence);
    let mut peer = Peer::open(Digests::NONE);
    peer.feed(&response(Digests::NONE).encode());
    peer.ends_with(ProtocolError::Sequence);
    for (asked, given) in [(Digests::BOTH, Digests::NONE), (Digests::NONE, Digests::BOTH)] {
        let mut peer = Peer::closed(asked);
        peer.output();
        peer.feed(&response(given).encode());
        assert_eq!(peer.connection.ended(), Some(&ProtocolError::Digests.into()));
    }
    let mut peer = Peer::closed(Digests::NONE);
    peer.feed(&IcResponse { data_max: 4092, ..response(Digests::NONE) }.encode());
    peer.ends_with(PduError::invalid(12).into());
}

/// CVE-2025-21927: a header's length as the target says it, above all where a digest follows the header.
#[test]
fn lengths_at_their_extremes_end_the_connection() {
    let lengths =
        [(0, 0, 0), (255, 255, u32::MAX), (24, 0, 24), (24, 24, u32::MAX), (24, 255, 256), (24, 24, 23)];
    for kind in PduType::ALL {
        for digests in DIGESTS {
            for (is_open, (header_len, data_at, total_len)) in
                [false, true].into_iter().flat_map(|is_open| lengths.map(|lengths| (is_open, lengths)))
            {
                let mut peer = if is_open { Peer::open(digests) } else { Peer::closed(digests) };
                if is_open {
                    peer.read(1, 512);
                }
                let mut bytes = [0; 260];
                bytes[..4].copy_from_slice(&[kind.code(), digests.bits(), header_len, data_at]);
                bytes[4..8].copy_from_slice(&total_len.to_le_bytes());
                // The command that is under way, so that nothing but the lengths is wrong; the digest is right too.
                bytes[9] = 4;
                let head = usize::from(header_len).max(8);
                let good = digest(&bytes[..head]);
                bytes[head..head + 4].copy_from_slice(&good);
                peer.feed(&bytes);
                let case = (kind, digests, header_len, data_at, total_len);
                assert!(peer.connection.ended().is_some(), "{case:?}");
                assert!(peer.completions().is_empty(), "{case:?}");
            }
        }
    }
}

#[test]
fn a_terminate_request_ends_the_connection_without_an_answer() {
    let mut peer = Peer::open(Digests::BOTH);
    peer.read(1, 512);
    peer.feed(&PduError::limit(7).encode(Role::Target, &[1; 300]));
    let Some(Cause::Terminated(reason)) = peer.connection.ended() else { panic!("still there") };
    assert_eq!((reason.known_status(), reason.info), (Some(FatalStatus::LimitExceeded), 7));
    assert!(peer.output().is_empty());
}

#[test]
fn a_farewell_waits_for_the_pdu_that_is_half_sent() {
    // A part of the header; the header and a part of the data; both whole.
    for (sent, rest) in [(10, 24 + 4096 - 10), (100, 24 + 4096 - 100), (24 + 4096, 0)] {
        let mut peer = Peer::open(Digests::NONE);
        let command = peer.write(1, &pattern(10_000));
        let bytes = peer.wanted(command, 0, 10_000);
        peer.feed(&bytes);
        peer.connection.sent(sent);
        let unknown = peer.response(CommandId(0xFFFF), Status::SUCCESS);
        peer.feed(&unknown);
        let output = peer.output();
        // The rest of the first of three data PDUs, and the terminate request with what it quotes.
        assert_eq!(output.len(), rest + 24 + 24, "{sent}");
        assert_eq!(output[rest], PduType::H2cTermReq.code());
    }
}

#[test]
fn a_command_that_is_not_answered_ends_the_connection_in_time_and_a_patient_one_does_not() {
    let mut peer = Peer::open(Digests::NONE);
    let entry = SubmissionEntry::default();
    let patient = Submission { key: 1, entry, data: Data::None, may_be_short: false, is_patient: true };
    peer.connection.submit(NOW, patient).unwrap();
    peer.connection.tick(NOW + Duration::from_secs(3600));
    assert_eq!(peer.connection.ended(), None);
    peer.read(2, 4);
    peer.connection.tick(NOW + Duration::from_secs(7200));
    assert_eq!(peer.connection.ended(), Some(&Cause::CommandTimeout));
    assert_eq!(peer.connection.lost().collect::<Vec<_>>(), [1, 2]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a target says: no panic, nothing completed twice, every command is either completed or lost.
    #[test]
    fn no_bytes_break_more_than_the_connection(
        digests in prop::sample::select(&DIGESTS[..]),
        step in 1_usize..5000,
        parts in prop::collection::vec((0_u8..6, any::<u16>(), 0_u32..600, 1_usize..600, any::<(bool, bool)>()), 1..12),
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 0..2),
    ) {
        let mut peer = Peer::open(digests);
        peer.step = step;
        let commands =
            [peer.read(0, 512), peer.read(1, 600), peer.write(2, &pattern(9000)), peer.read(3, 4)];
        let mut stream = Vec::new();
        for (kind, which, offset, len, (last, success)) in parts {
            // Mostly a command that is under way.
            let command = commands.get(usize::from(which % 5)).copied().unwrap_or(CommandId(which));
            stream.extend(match kind {
                0 => peer.response(command, Status::SUCCESS),
                1 => peer.response(command, Status::INVALID_FIELD),
                2 => peer.data(command, 0, &pattern(len), last || success, success),
                3 => peer.data(command, offset, &pattern(len), last || success, success),
                4 => peer.wanted(command, offset * 16, len as u32 * 16),
                _ => vec![which as u8; len],
            });
        }
        for (index, mask) in flips {
            let at = index.index(stream.len());
            stream[at] ^= mask;
        }
        peer.feed(&stream);
        let mut keys: Vec<u32> = peer.completions().iter().map(|done| done.key).collect();
        peer.output();
        keys.extend(peer.connection.lost());
        keys.sort_unstable();
        prop_assert_eq!(keys, [0, 1, 2, 3]);
    }
}
