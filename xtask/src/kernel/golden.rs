//! Recorded traffic, cut into PDUs and named by what they are: the golden bytes of `ob-wire-nvme`'s tests.
//!
//! Only as much of the protocol is read here as names need. It is written apart from `ob-wire-nvme` on purpose: bytes that
//! test a parser must not have been chosen by it.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::relay::Recording;

const HEADER_LEN: usize = 8;
const DISCOVERY_NQN: &[u8] = b"nqn.2014-08.org.nvmexpress.discovery\0";

// PDUs larger than this are not worth their place in the repository.
const PDU_LEN_MAX: usize = 6 << 10;

// With one digest alone, these show all there is to see.
const WITH_ONE_DIGEST: &[&str] = &[
    "host-icreq",
    "target-icresp",
    "host-write-in-capsule",
    "host-write-by-request",
    "host-h2cdata-write-by-request",
    "host-read",
    "target-c2hdata-read",
    "target-response-write-in-capsule",
    "target-response-read",
];

// Told by others already, or long and empty.
const UNWANTED: &[&str] = &["discovery-property", "discovery-set-features", "ana-4096-bytes-at"];

// Digests are the same at every length; a few long PDUs show it.
const UNWANTED_WITH_DIGESTS: &[&str] = &[
    "discovery-",
    "get-log-ana",
    "get-log-effects",
    "get-log-changed",
    "-namespace",
    "descriptors",
    "cns-",
    "8-blocks",
];

/// Files by name.
///
/// # Errors
/// When the recorded bytes are not what an NVMe/TCP connection carries.
pub fn files_of(recordings: &[Recording], release: &str) -> Result<BTreeMap<String, String>> {
    let mut files = BTreeMap::new();
    for recording in recordings {
        for (name, comment, bytes) in name_pdus(recording)? {
            let is_wanted = match recording.label.as_str() {
                "plain" => !UNWANTED.iter().any(|part| name.contains(part)),
                "digests" => !UNWANTED_WITH_DIGESTS.iter().any(|part| name.contains(part)),
                "authentication" => name.contains("auth") || name.contains("connect"),
                _ => WITH_ONE_DIGEST.contains(&name.as_str()),
            };
            let suffix =
                if recording.label == "plain" { String::new() } else { format!("-{}", recording.label) };
            if is_wanted && bytes.len() <= PDU_LEN_MAX {
                files.entry(format!("{name}{suffix}.hex")).or_insert_with(|| {
                    hex_text(&format!("{comment}; {}; Linux {release}", recording.label), bytes)
                });
            }
        }
    }
    Ok(files)
}

/// Writes them, with a page that says what they are; files of an earlier recording go.
///
/// # Errors
/// When a file cannot be written.
pub fn write(files: &BTreeMap<String, String>, folder: &Path, page: &str) -> Result<()> {
    fs::create_dir_all(folder)?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "hex") {
            fs::remove_file(path)?;
        }
    }
    for (name, text) in files {
        fs::write(folder.join(name), text)?;
    }
    fs::write(folder.join("README.md"), page)?;
    Ok(())
}

fn hex_text(comment: &str, bytes: &[u8]) -> String {
    let mut text = format!("# {comment}\n");
    for line in bytes.chunks(32) {
        for byte in line {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
    }
    text
}

type Named<'bytes> = (String, String, &'bytes [u8]);

fn name_pdus(recording: &Recording) -> Result<Vec<Named<'_>>> {
    let mut named = Vec::new();
    // A command's number is used again and again: the requests are named first, in order, and each answer belongs to
    // the oldest request of its number that has none yet.
    let mut commands: HashMap<u16, Vec<String>> = HashMap::new();
    let (mut is_discovery, mut is_io) = (false, false);
    for pdu in split(&recording.from_host)? {
        let (name, comment) = match pdu[0] {
            0x00 => ("icreq".to_owned(), "ICReq, host to target".to_owned()),
            0x04 => {
                let entry = pdu.get(HEADER_LEN..HEADER_LEN + 64).context("a short command capsule")?;
                let data = pdu.get(usize::from(pdu[3])..).filter(|_| pdu[3] > 0).unwrap_or_default();
                is_discovery |= data.windows(DISCOVERY_NQN.len()).any(|window| window == DISCOVERY_NQN);
                is_io |= entry[0] == 0x7f && entry[4] == 0x01 && word(entry, 10) >> 16 > 0;
                let prefix = if is_discovery { "discovery-" } else { "" };
                let name = format!("{prefix}{}", command_name(entry, data, is_io));
                let id = u16::from_le_bytes([entry[2], entry[3]]);
                commands.entry(id).or_default().push(name.clone());
                let comment = format!("CapsuleCmd, host to target: {}", name.replace('-', " "));
                (name, comment)
            }
            0x06 => {
                let id = u16::from_le_bytes([pdu[8], pdu[9]]);
                let name = commands.get(&id).and_then(|names| names.last()).context("data of no command")?;
                (format!("h2cdata-{name}"), format!("H2CData, host to target: {}", name.replace('-', " ")))
            }
            other => (format!("type-{other:02x}"), format!("PDU type {other:02x}h, host to target")),
        };
        named.push((format!("host-{name}"), comment, pdu));
    }
    let mut next: HashMap<u16, usize> = HashMap::new();
    for pdu in split(&recording.from_target)? {
        let (kind, id, ends) = match pdu[0] {
            0x01 => {
                named.push(("target-icresp".to_owned(), "ICResp, target to host".to_owned(), pdu));
                continue;
            }
            0x05 => ("response", u16::from_le_bytes([pdu[20], pdu[21]]), true),
            // With the SUCCESS flag, data is the response too.
            0x07 => ("c2hdata", u16::from_le_bytes([pdu[8], pdu[9]]), pdu[1] & 0x08 != 0),
            0x09 => ("r2t", u16::from_le_bytes([pdu[8], pdu[9]]), false),
            other => bail!("the target sent a PDU of type {other:02x}h"),
        };
        let place = next.entry(id).or_default();
        let command =
            commands.get(&id).and_then(|names| names.get(*place)).context("an answer to no command")?;
        *place += usize::from(ends);
        let mut name = command.clone();
        if kind == "c2hdata" && command.starts_with("auth-receive") {
            name = format!("auth-{}", message_name(pdu.get(usize::from(pdu[3])..).unwrap_or_default()));
        }
        let long = match kind {
            "response" => "CapsuleResp",
            "c2hdata" => "C2HData",
            _ => "R2T",
        };
        let comment = format!("{long}, target to host: {}", name.replace('-', " "));
        named.push((format!("target-{kind}-{name}"), comment, pdu));
    }
    Ok(named)
}

fn split(mut stream: &[u8]) -> Result<Vec<&[u8]>> {
    let mut pdus = Vec::new();
    while stream.len() >= HEADER_LEN {
        let len = u32::from_le_bytes([stream[4], stream[5], stream[6], stream[7]]) as usize;
        // The shortest PDU that carries the number of a command has 24 bytes.
        if len < 24 || len > stream.len() {
            bail!("a PDU of {len} bytes where {} are left", stream.len());
        }
        let (pdu, rest) = stream.split_at(len);
        pdus.push(pdu);
        stream = rest;
    }
    Ok(pdus)
}

fn word(entry: &[u8], number: usize) -> u32 {
    let at = number * 4;
    u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
}

/// Administration and I/O commands share opcodes: only the queue tells them apart.
fn command_name(entry: &[u8], data: &[u8], is_io: bool) -> String {
    let low = word(entry, 10) & 0xff;
    match (is_io, entry[0]) {
        (_, 0x7f) => fabrics_name(entry, data),
        (false, 0x02) => {
            let bytes = ((word(entry, 10) >> 16) + 1) * 4;
            let offset = word(entry, 12);
            let place = if offset > 0 { format!("-at-{offset}") } else { String::new() };
            format!("get-log-{}-{bytes}-bytes{place}", log_name(low))
        }
        (false, 0x06) => format!("identify-{}", identify_name(low)),
        (false, 0x09) => format!("set-features-{low:02x}"),
        (false, 0x0a) => format!("get-features-{low:02x}"),
        (false, 0x0c) => "asynchronous-event-request".to_owned(),
        (false, 0x18) => "keep-alive".to_owned(),
        (true, 0x00) => "flush".to_owned(),
        // An address that is an offset, and so within the capsule.
        (true, 0x01) if entry[39] == 0x01 => format!("write-in-capsule{}", blocks(entry)),
        (true, 0x01) => "write-by-request".to_owned(),
        (true, 0x02) => format!("read{}", blocks(entry)),
        (true, 0x08) => "write-zeroes".to_owned(),
        (true, 0x09) => "deallocate".to_owned(),
        (_, other) => format!("opcode-{other:02x}"),
    }
}

/// Nothing for one block.
fn blocks(entry: &[u8]) -> String {
    match word(entry, 12) & 0xffff {
        0 => String::new(),
        less_one => format!("-{}-blocks", less_one + 1),
    }
}

fn fabrics_name(entry: &[u8], data: &[u8]) -> String {
    let property = match word(entry, 11) {
        0x00 => "cap",
        0x08 => "vs",
        0x14 => "cc",
        0x1c => "csts",
        _ => "other",
    };
    let value = word(entry, 12);
    match entry[4] {
        0x00 if property == "cc" && (value >> 14) & 3 > 0 => "property-set-cc-shutdown".to_owned(),
        0x00 if property == "cc" && value & 1 > 0 => "property-set-cc-enable".to_owned(),
        0x00 => format!("property-set-{property}"),
        0x01 if word(entry, 10) >> 16 == 0 => "connect-admin".to_owned(),
        0x01 => "connect-io".to_owned(),
        0x04 => format!("property-get-{property}"),
        0x05 => format!("auth-send-{}", message_name(data)),
        0x06 => "auth-receive".to_owned(),
        0x08 => "disconnect".to_owned(),
        other => format!("fabrics-{other:02x}"),
    }
}

fn message_name(data: &[u8]) -> &'static str {
    match data.get(1) {
        Some(0x00) => "negotiate",
        Some(0x01) => "challenge",
        Some(0x02) => "reply",
        Some(0x03) => "success1",
        Some(0x04) => "success2",
        Some(0xf0) => "failure2",
        Some(0xf1) => "failure1",
        _ => "message",
    }
}

fn identify_name(structure: u32) -> String {
    match structure {
        0 => "namespace".to_owned(),
        1 => "controller".to_owned(),
        2 => "active-namespaces".to_owned(),
        3 => "descriptors".to_owned(),
        other => format!("cns-{other:02x}"),
    }
}

fn log_name(log: u32) -> String {
    match log {
        1 => "error".to_owned(),
        2 => "smart".to_owned(),
        4 => "changed-namespaces".to_owned(),
        5 => "effects".to_owned(),
        0x0c => "ana".to_owned(),
        0x70 => "discovery".to_owned(),
        other => format!("{other:02x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pdu(kind: u8, len: usize, content: &[(usize, u8)]) -> Vec<u8> {
        let mut bytes = vec![0; len];
        bytes[0] = kind;
        bytes[4] = u8::try_from(len).unwrap();
        for (at, byte) in content {
            bytes[*at] = *byte;
        }
        bytes
    }

    #[test]
    fn answers_are_named_by_their_questions() {
        // A Connect to queue 1, a read with the number 5, and the same number again for a flush.
        let connect = pdu(0x04, 72, &[(8, 0x7f), (12, 0x01), (50, 1)]);
        let from_host = [connect, pdu(0x04, 72, &[(8, 0x02), (10, 5)]), pdu(0x04, 72, &[(8, 0x00), (10, 5)])];
        let from_target = [
            pdu(0x05, 24, &[]),
            pdu(0x07, 28, &[(3, 24), (8, 5)]),
            pdu(0x05, 24, &[(20, 5)]),
            pdu(0x05, 24, &[(20, 5)]),
        ];
        let recording = Recording {
            label: "plain".to_owned(),
            from_host: from_host.concat(),
            from_target: from_target.concat(),
        };
        let names: Vec<String> = files_of(&[recording], "6").unwrap().into_keys().collect();
        assert_eq!(
            names,
            [
                "host-connect-io.hex",
                "host-flush.hex",
                "host-read.hex",
                "target-c2hdata-read.hex",
                "target-response-connect-io.hex",
                "target-response-flush.hex",
                "target-response-read.hex"
            ]
        );
    }

    #[test]
    fn cut_off_traffic_is_an_error() {
        let recording = Recording { from_host: pdu(0x04, 72, &[])[..60].to_vec(), ..Recording::default() };
        assert!(files_of(&[recording], "6").is_err());
    }

    #[test]
    fn a_file_is_a_comment_and_lines_of_hexadecimal_digits() {
        assert_eq!(hex_text("what", &[0xab; 33]), format!("# what\n{}\nab\n", "ab".repeat(32)));
    }
}
