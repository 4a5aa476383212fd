//! An NVMe/TCP target that says anything: the initiator's connection ends with a reason, or goes on; each of its
//! commands is answered once or lost, and what is sent stays a stream of PDUs.

#![no_main]

use std::io::IoSlice;
use std::time::Duration;

use ob_core::Instant;
use ob_nvme::initiator::{Connection, ConnectionConfig, Data, Submission};
use ob_wire_nvme::pdu::{
    DataAlignment, DataTransfer, Digests, Framing, IcResponse, Progress, ReadyToTransfer, ReceiveRules, Role,
    digest, receive,
};
use ob_wire_nvme::{CommandId, CompletionEntry, NamespaceId, QueueId, Status, SubmissionEntry, TransferTag};

const NOW: Instant = Instant::from_nanoseconds(1);
const COMMANDS: u32 = 6;
const DATA_MAX: u32 = 4096;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some(([setting, step], script)) = bytes.split_first_chunk() else { return };
    let digests = Digests::from_bits(*setting);
    let config =
        ConnectionConfig { digests, depth: 8, receive_len: 0, command_timeout: Duration::from_secs(1) };
    let mut connection = Connection::new(config, NOW);
    let mut sent = drain(&mut connection);
    if setting & 4 == 0 {
        let response = IcResponse { alignment: DataAlignment::DWORD, digests, data_max: DATA_MAX };
        feed(&mut connection, &response.encode(), usize::MAX);
        assert!(connection.is_open());
        for key in 0..COMMANDS {
            let data = match key % 3 {
                0 => Data::ToHost(512 * (key + 1)),
                1 => Data::ToController(vec![key as u8; 9000].into()),
                _ => Data::None,
            };
            let entry = SubmissionEntry::new(0xC0, CommandId(0), NamespaceId(1));
            let (may_be_short, is_patient) = (key == 3, false);
            assert!(
                connection.submit(NOW, Submission { key, entry, data, may_be_short, is_patient }).is_ok()
            );
        }
        sent.extend(drain(&mut connection));
    }
    let framing = Framing { role: Role::Target, digests, alignment: DataAlignment::DWORD };
    let mut rest = script;
    while let Some((head, tail)) = rest.split_first_chunk::<6>() {
        rest = tail;
        let pdu = make(&framing, *head, &mut rest);
        feed(&mut connection, &pdu, usize::from(*step) + 1);
        sent.extend(drain(&mut connection));
    }
    check_output(&sent, digests);
    let mut keys: Vec<u32> =
        std::iter::from_fn(|| connection.next_completion()).map(|done| done.key).collect();
    let has_commands = connection.in_flight() + keys.len() > 0;
    keys.extend(connection.lost());
    keys.sort_unstable();
    assert!(!has_commands || keys.iter().copied().eq(0..COMMANDS), "{keys:?}");
});

/// A PDU with a right frame, or bytes as they are.
fn make(framing: &Framing, [kind, slot, uses, a, b, c]: [u8; 6], rest: &mut &[u8]) -> Vec<u8> {
    let command = CommandId(u16::from(slot & 15) | u16::from(uses & 3) << 10);
    let (offset, len) = (u32::from(a) * 256, u32::from(b) * 16 + u32::from(c & 15));
    match kind % 5 {
        0 => framing
            .response(&CompletionEntry::new(command, QueueId(1), 0, Status::from_field(c.into()), 0))
            .to_vec(),
        1 => {
            framing.ready_to_transfer(&ReadyToTransfer { command, tag: TransferTag(7), offset, len }).to_vec()
        }
        2 | 3 => {
            let (is_last, is_success) = (c & 128 != 0, c & 64 != 0);
            let data = vec![a; len as usize];
            let transfer = DataTransfer { command, tag: TransferTag(0), offset, len, is_last, is_success };
            let mut pdu = framing.data(&transfer).to_vec();
            pdu.extend_from_slice(&data);
            if framing.digests.data {
                pdu.extend(digest(&data));
            }
            pdu
        }
        _ => {
            let (raw, tail) = rest.split_at(usize::from(a).min(rest.len()));
            *rest = tail;
            raw.to_vec()
        }
    }
}

fn feed(connection: &mut Connection<u32>, mut bytes: &[u8], step: usize) {
    while !bytes.is_empty() && connection.ended().is_none() {
        let mut count = 0;
        for part in connection.receive_into() {
            let len = part.len().min(bytes.len()).min(step - count);
            part[..len].copy_from_slice(&bytes[..len]);
            bytes = &bytes[len..];
            count += len;
            if len < part.len() {
                break;
            }
        }
        assert!(count > 0);
        connection.received(count);
    }
}

fn drain(connection: &mut Connection<u32>) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let mut slices = [IoSlice::new(&[]); 5];
        let count = connection.transmit(&mut slices);
        let before = bytes.len();
        slices[..count].iter().for_each(|slice| bytes.extend_from_slice(slice));
        if bytes.len() == before {
            return bytes;
        }
        connection.sent(bytes.len() - before);
    }
}

fn check_output(mut bytes: &[u8], digests: Digests) {
    let mut digests_now = Digests::NONE;
    while !bytes.is_empty() {
        let rules = ReceiveRules {
            role: Role::Target,
            digests: digests_now,
            alignment: DataAlignment::DWORD,
            capsule_data_max: 8192,
            data_max: DATA_MAX,
        };
        match receive(bytes, &rules) {
            Ok(Progress::Header(layout, _)) => bytes = &bytes[layout.total_len..],
            other => panic!("{other:?}"),
        }
        digests_now = digests;
    }
}
