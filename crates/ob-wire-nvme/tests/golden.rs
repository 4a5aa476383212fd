//! PDUs of a real kernel, read and written again: what Linux says is understood, and said the same way.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

use std::path::{Path, PathBuf};

use ob_wire_nvme::pdu::{
    DIGEST_LEN, DataAlignment, DataDigest, Digests, Framing, Layout, Pdu, PduError, Progress, ReceiveRules,
    Role, receive,
};

struct Golden {
    name: String,
    bytes: Vec<u8>,
}

impl Golden {
    fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let digits: String = text.lines().filter(|line| !line.starts_with('#')).collect();
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        Self { name, bytes: (0..digits.len()).step_by(2).map(byte).collect() }
    }

    /// Who sent it.
    fn sender(&self) -> Role {
        if self.name.starts_with("host-") { Role::Initiator } else { Role::Target }
    }

    /// What its session had agreed on: nothing while it was being agreed on.
    fn digests(&self) -> Digests {
        let is_agreed = !self.name.contains("-icreq") && !self.name.contains("-icresp");
        let both = self.name.ends_with("-digests");
        Digests {
            header: is_agreed && (both || self.name.ends_with("-header-digest")),
            data: is_agreed && (both || self.name.ends_with("-data-digest")),
        }
    }

    fn receive(&self) -> Result<(Layout, Pdu), PduError> {
        let role = match self.sender() {
            Role::Initiator => Role::Target,
            Role::Target => Role::Initiator,
        };
        let rules = ReceiveRules {
            role,
            digests: self.digests(),
            alignment: DataAlignment::default(),
            capsule_data_max: 16 << 10,
            data_max: 1 << 20,
        };
        match receive(&self.bytes, &rules)? {
            Progress::Header(layout, pdu) => Ok((layout, pdu)),
            Progress::Need(len) => panic!("{}: {len} bytes are needed", self.name),
        }
    }
}

fn all() -> Vec<Golden> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let golden: Vec<Golden> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "hex"))
        .map(|path| Golden::read(&path))
        .collect();
    assert!(golden.len() > 150, "only {} PDUs are left", golden.len());
    golden
}

#[test]
fn every_pdu_is_understood_whole() {
    for golden in all() {
        let name = &golden.name;
        let (layout, _) = golden.receive().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(layout.total_len, golden.bytes.len(), "{name}");
        if layout.has_data_digest {
            let mut digest = DataDigest::new();
            digest.update(&golden.bytes[layout.data_at..layout.data_end()]);
            assert!(digest.matches(&golden.bytes[layout.data_end()..][..DIGEST_LEN]), "{name}");
        }
    }
}

#[test]
fn every_pdu_is_written_as_the_kernel_writes_it() {
    for golden in all() {
        let name = &golden.name;
        let (layout, pdu) = golden.receive().unwrap();
        let framing =
            Framing { role: golden.sender(), digests: golden.digests(), alignment: DataAlignment::default() };
        let header: Vec<u8> = match pdu {
            Pdu::IcRequest(request) => request.encode().to_vec(),
            Pdu::IcResponse(response) => response.encode().to_vec(),
            Pdu::Command(entry) => framing.command(&entry, layout.data_len as u32).to_vec(),
            Pdu::Response(entry) => framing.response(&entry).to_vec(),
            Pdu::Data(transfer) => framing.data(&transfer).to_vec(),
            Pdu::ReadyToTransfer(ready) => framing.ready_to_transfer(&ready).to_vec(),
            Pdu::Termination(_) => panic!("{name}: nobody gave up"),
        };
        assert_eq!(header, golden.bytes[..header.len()], "{name}");
        assert_eq!(
            header.len(),
            if layout.data_len > 0 { layout.data_at } else { layout.head_len() },
            "{name}"
        );
    }
}

#[test]
fn a_changed_bit_under_a_digest_is_found() {
    for mut golden in all().into_iter().filter(|golden| golden.digests().header) {
        // Behind the lengths, which say where the digest is.
        golden.bytes[10] ^= 1;
        let error = golden.receive().expect_err(&golden.name);
        assert_eq!(error.status, ob_wire_nvme::pdu::FatalStatus::HeaderDigest, "{}", golden.name);
    }
}
