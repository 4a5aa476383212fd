use proptest::prelude::*;
use zerocopy::IntoBytes;

use super::*;

fn parse(function: Function) -> Result<Function, Status> {
    Function::parse(&function.encode(CommandId(7), NamespaceId(3)))
}

fn functions() -> Vec<Function> {
    let piece = Piece { token: 0x0102_0304, offset: 0x0506_0708, whole: 0x090A_0B0C };
    vec![
        Function::Load(piece),
        Function::Map(piece),
        Function::Open,
        Function::Find,
        Function::Prepare,
        Function::Query(0x0102_0304_0506_0708),
        Function::Describe,
        Function::List(17),
        Function::Refusal(18),
        Function::Run(Run::new(9, None, b"a key").unwrap()),
        Function::Run(Run::new(9, Some(0x0102_0304_0506_0708), &[0xFF; INPUT_LEN_MAX_WITH_OFFSET]).unwrap()),
        Function::Run(Run::new(u64::MAX, None, &[0xFF; INPUT_LEN_MAX]).unwrap()),
        Function::Answer(1 << 63),
        Function::Unload(1),
        Function::Close(2),
        Function::Forget(3),
        Function::Request(4096),
    ]
}

#[test]
fn every_function_is_read_as_it_was_written() {
    for function in functions() {
        assert_eq!(parse(function), Ok(function));
    }
    assert_eq!(Run::new(1, None, &[0; INPUT_LEN_MAX + 1]), None);
    assert_eq!(Run::new(1, Some(1), &[0; INPUT_LEN_MAX_WITH_OFFSET + 1]), None);
}

/// The document's table, byte by byte.
#[test]
fn commands_have_the_documented_bytes() {
    let run = Function::Run(Run::new(0x0203_0000_0405, Some(0x1122_3344_5566_7788), b"abcde").unwrap());
    let entry = run.encode(CommandId(0), NamespaceId(1));
    assert_eq!(entry.opcode, 0xC2);
    assert_eq!(entry.dword10.get(), 1 << 13 | 5 << 8 | 0x14);
    assert_eq!((entry.dword11.get(), entry.dword12.get()), (0x0405, 0x0203));
    assert_eq!((entry.dword13.get(), entry.dword14.get()), (0x6463_6261, 0x65));
    assert_eq!((entry.dword2.get(), entry.dword3.get()), (0x5566_7788, 0x1122_3344));
    let load = Function::Load(Piece { token: 1, offset: 2, whole: 3 }).encode(CommandId(0), NamespaceId(1));
    assert_eq!((load.opcode, load.dword10.get()), (0xC1, 1));
    assert_eq!((load.dword11.get(), load.dword12.get(), load.dword13.get()), (1, 2, 3));
}

#[test]
fn what_is_reserved_is_refused() {
    for function in functions() {
        let entry = function.encode(CommandId(7), NamespaceId(3));
        let other_opcode = SubmissionEntry { opcode: entry.opcode ^ 1, ..entry };
        assert!(Function::parse(&other_opcode).is_err(), "{function:?}");
        if !matches!(function, Function::Run(_)) {
            let more = SubmissionEntry { dword15: 1.into(), ..entry };
            assert!(Function::parse(&more).is_err(), "{function:?}");
        }
    }
    // Input behind what is said to be there.
    let run = Function::Run(Run::new(1, None, b"abc").unwrap()).encode(CommandId(0), NamespaceId(1));
    assert!(Function::parse(&SubmissionEntry { dword3: 1.into(), ..run }).is_err());
    assert!(Function::parse(&SubmissionEntry::new(SEND, CommandId(0), NamespaceId(1))).is_err());
}

#[test]
fn names_end_with_zeros() {
    assert_eq!(name_of(&name_bytes("get")), Some("get"));
    assert_eq!(name_of(&[b'a'; 64]), Some("a".repeat(64).as_str()));
    assert_eq!(name_of(&name_bytes("")), None);
    let mut bytes = name_bytes("get");
    bytes[9] = 1;
    assert_eq!(name_of(&bytes), None);
    // 21 characters of three bytes fit, and a part of one would be none.
    assert_eq!(name_of(&name_bytes(&"€".repeat(22))), Some("€".repeat(21).as_str()));
    assert_eq!(name_of(&[0xFF; 64]), None);
    // An object's is not cut.
    assert_eq!(LoadHeader::new(&"a".repeat(64)).map(|header| header.name), Some([b'a'; 64]));
    for wrong in ["a".repeat(65), "€".repeat(22), String::new(), "a\0b".to_owned(), "a\0".to_owned()] {
        assert!(LoadHeader::new(&wrong).is_none(), "{wrong:?}");
    }
}

fn header() -> RequestHeader {
    RequestHeader { program: 1.into(), first_len: 512.into(), ..RequestHeader::default() }
}

#[test]
fn a_request_is_as_long_as_it_says() {
    let file = FileRef { file: 2.into(), version: 3.into() };
    let bytes = RequestBody::encode(&header(), &[file; 3], b"scratch");
    let body = RequestBody::parse(&bytes).unwrap();
    assert_eq!((body.files, body.scratch), (&[file; 3][..], &b"scratch"[..]));
    for len in 0..bytes.len() {
        assert_eq!(RequestBody::parse(&bytes[..len]), Err(RequestError::Length), "{len}");
    }
    assert_eq!(RequestBody::parse(&[&bytes[..], b"!"].concat()), Err(RequestError::Length));
    assert_eq!(bytes.len(), 40 + 3 * 16 + 7);
}

#[test]
fn requests_that_cannot_be_are_refused() {
    let file = FileRef { file: 2.into(), ..FileRef::default() };
    let parse = |header: RequestHeader, files: &[FileRef], scratch: &[u8]| {
        RequestBody::parse(&RequestBody::encode(&header, files, scratch)).map(|_| ())
    };
    assert_eq!(parse(header(), &[], b""), Err(RequestError::Files));
    assert_eq!(parse(header(), &[file; FILES_MAX + 1], b""), Err(RequestError::Files));
    assert_eq!(parse(header(), &[file; FILES_MAX], b""), Ok(()));
    assert_eq!(parse(RequestHeader { first: 1.into(), ..header() }, &[file], b""), Err(RequestError::First));
    assert_eq!(parse(header(), &[file], &[0; SCRATCH_LEN + 1]), Err(RequestError::Scratch));
    let planned = RequestHeader { plan: 1.into(), program: 0.into(), ..header() };
    assert_eq!(parse(planned, &[], b"key"), Ok(()));
    assert_eq!(parse(planned, &[file], b"key"), Err(RequestError::Files));
    assert_eq!(parse(RequestHeader { program: 1.into(), ..planned }, &[], b""), Err(RequestError::Program));
}

proptest! {
    #[test]
    fn any_command_is_refused_or_means_what_it_says(dwords in any::<[u32; 8]>(), opcode in DO..=EXCHANGE, code in 0u8..0x40) {
        let [ten, eleven, twelve, thirteen, fourteen, fifteen, two, three] = dwords;
        let entry = SubmissionEntry {
            dword2: two.into(),
            dword3: three.into(),
            dword10: (ten & 0xFFFF_FF00 | u32::from(code)).into(),
            dword11: eleven.into(),
            dword12: twelve.into(),
            dword13: thirteen.into(),
            dword14: fourteen.into(),
            dword15: fifteen.into(),
            ..SubmissionEntry::new(opcode, CommandId(0), NamespaceId(1))
        };
        if let Ok(function) = Function::parse(&entry) {
            prop_assert_eq!(function.encode(CommandId(0), NamespaceId(1)), entry);
        }
    }

    #[test]
    fn any_bytes_are_a_request_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        if let Ok(body) = RequestBody::parse(&bytes) {
            prop_assert_eq!(RequestBody::encode(body.header, body.files, body.scratch), bytes);
        }
    }
}

/// A field: its name, offset and length.
type Row = (&'static str, usize, usize);

/// What the document says of layouts is what they are.
#[test]
fn layouts_are_the_documents() {
    let document = include_str!("../../../../docs/wire/pushdown.md");
    let tables: &[(&str, &[Row])] = &[
        (
            "map",
            &[("file", 0, 8), ("version", 8, 8), ("identity", 16, 8), ("len", 24, 8), ("extents", 32, 4)],
        ),
        ("extent", &[("at", 0, 8), ("offset", 8, 8), ("len", 16, 8)]),
        (
            "request",
            &[
                ("program", 0, 8),
                ("plan", 8, 8),
                ("first_offset", 16, 8),
                ("first_len", 24, 4),
                ("read_len_max", 28, 4),
                ("files", 32, 2),
                ("first", 34, 2),
                ("reads_max", 36, 2),
                ("scratch_len", 38, 2),
            ],
        ),
        (
            "entry",
            &[
                ("object", 0, 64),
                ("function", 64, 64),
                ("instructions", 128, 4),
                ("checks", 132, 4),
                ("calls", 136, 8),
                ("faults", 144, 8),
                ("fuel", 152, 8),
            ],
        ),
        (
            "description",
            &[
                ("version", 0, 2),
                ("flags", 2, 2),
                ("files_max", 4, 2),
                ("scratch_len", 8, 4),
                ("read_len_max", 12, 4),
                ("reads_max", 16, 4),
                ("open_max", 20, 4),
                ("extents_max", 24, 4),
                ("plans_max", 28, 4),
                ("queries_max", 32, 4),
                ("objects_max", 36, 4),
                ("instructions_max", 40, 4),
                ("call_fuel", 44, 4),
                ("share", 48, 4),
            ],
        ),
    ];
    for (table, fields) in tables {
        for (name, offset, len) in *fields {
            let row = format!("| `{name}` | {offset} | {len} |");
            assert!(document.contains(&row), "{table}: {row}");
        }
    }
    assert!(document.contains(&format!("`LIST_ENTRY_LEN` = {} bytes", size_of::<ListEntry>())));
    for (status, name) in [(Status::PUSHDOWN_PROGRAM, "PROGRAM"), (Status::PUSHDOWN_TIME, "TIME")] {
        let row = format!("| `PUSHDOWN_{name}` | {:02X}h |", status.code());
        assert!(document.contains(&row), "{row}");
    }
    let header = header();
    assert_eq!(header.as_bytes()[24..28], 512_u32.to_le_bytes());
}
