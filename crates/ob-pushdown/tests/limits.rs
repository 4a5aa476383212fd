//! What objects there may be, and what is told of those that may not.

use ob_pushdown::target::FunctionLimits;
use ob_wire_nvme::Status;
use ob_wire_nvme::pushdown::{
    Description, FileRef, Function, ListEntry, Piece, RequestBody, RequestHeader, name_of,
};
use zerocopy::{FromBytes, FromZeros};

use crate::lab::support::HOST;
use crate::lab::{FOLDER, Lab, OBEY};

const REFUSED: Status = Status::PUSHDOWN_REFUSED.with_do_not_retry();
const LIMIT: Status = Status::PUSHDOWN_LIMIT.with_do_not_retry();
const INVALID: Status = Status::INVALID_FIELD.with_do_not_retry();
const UNKNOWN: Status = Status::PUSHDOWN_UNKNOWN.with_do_not_retry();

#[test]
fn refusals_say_why_once() {
    let mut lab = Lab::new();
    let io = lab.host(HOST, 9).io;
    let wrong: &[(&str, &[u8])] = &[
        ("empty", b""),
        ("no-object", b"not an object at all"),
        ("cut", &OBEY[..OBEY.len() / 2]),
        ("a/b", OBEY),
        ("..", OBEY),
        ("a name with blanks", OBEY),
    ];
    for (name, object) in wrong {
        let refused = lab.load(io, name, object);
        assert_eq!(refused, Err(REFUSED), "{name}");
        let token = lab.token() - 1;
        let (len, text) = lab.call(io, Function::Refusal(token), &[], 4096).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(len as usize == text.len() && text.len() > 10, "{name}: {text}");
        assert_eq!(lab.number(io, Function::Refusal(token), &[]), Err(UNKNOWN), "once");
        lab.token();
    }
    assert_eq!(lab.upload(io, Function::Load, &[0; 64]), Err(INVALID), "no name");
    assert_eq!(lab.upload(io, Function::Load, &[1; 63]), Err(INVALID), "no header");
    let odd = [&b"name\0more"[..], &[0; 55], OBEY].concat();
    assert_eq!(lab.upload(io, Function::Load, &odd), Err(INVALID), "something behind the name");
    let long = Function::Load(Piece { token: 5, offset: 0, whole: 64 + (4 << 20) + 1 });
    assert_eq!(lab.number(io, long, &[1; 64]), Err(INVALID));
    assert_eq!(lab.functions.counts().programs, 0);
    lab.check_rest();
}

#[test]
fn objects_are_listed_and_limited() {
    let mut limits = FunctionLimits::default();
    limits.programs.objects = 3;
    let mut lab = Lab::with(Default::default(), limits);
    let io = lab.host(HOST, 9).io;
    for name in ["one", "two", "three"] {
        lab.load(io, name, OBEY).unwrap();
    }
    // For want of room, which is no word about the object.
    assert_eq!(lab.load(io, "four", OBEY), Err(LIMIT));
    let token = lab.token() - 1;
    let (_, text) = lab.call(io, Function::Refusal(token), &[], 4096).unwrap();
    assert!(String::from_utf8(text).unwrap().contains('3'), "and it is said why");
    lab.token();
    assert!(lab.load(io, "two", OBEY).is_ok(), "it takes its own place");
    let list = |lab: &mut Lab, first, len| {
        let (count, bytes) = lab.call(io, Function::List(first), &[], len).unwrap();
        let (entries, rest) =
            <[ListEntry]>::ref_from_prefix_with_elems(&bytes, bytes.len() / size_of::<ListEntry>()).unwrap();
        assert!(rest.is_empty());
        let names: Vec<String> =
            entries.iter().map(|entry| name_of(&entry.object).unwrap().to_owned()).collect();
        assert!(entries.iter().all(|entry| name_of(&entry.function) == Some("obey")));
        (count, names)
    };
    let (count, all) = list(&mut lab, 0, 4096);
    assert_eq!((count, all.len()), (3, 3));
    assert_eq!(list(&mut lab, 0, 192 * 2 + 100), (3, all[..2].to_vec()), "as many as there is room for");
    assert_eq!(list(&mut lab, 2, 4096), (3, all[2..].to_vec()));
    assert_eq!(list(&mut lab, 3, 4096), (3, vec![]));
    assert_eq!(list(&mut lab, u32::MAX, 4096), (3, vec![]));
    for name in [&b"four"[..], b"one/none", b"", b"one/", b"/obey", b"\xFF"] {
        assert!(lab.number(io, Function::Find, name).is_err());
    }
    // What is described holds.
    let (_, bytes) = lab.call(io, Function::Describe, &[], 64).unwrap();
    let told = Description::read_from_bytes(&bytes).unwrap();
    assert_eq!((told.version.get(), told.flags.get(), told.objects_max.get()), (1, Description::BY_NAME, 3));
    assert_eq!(
        (told.files_max.get(), told.scratch_len.get(), told.read_len_max.get()),
        (64, 4096, 128 << 10)
    );
    assert_eq!(lab.call(io, Function::Describe, &[], 4).unwrap().1, bytes[..4]);
    let zero = Description::new_zeroed();
    assert_eq!((told.reserved, told.reserved_end), (zero.reserved, zero.reserved_end));
    lab.check_rest();
}

#[test]
fn objects_that_were_replaced_are_kept_by_nobody() {
    let limits = FunctionLimits { plans_max: 3, ..FunctionLimits::default() };
    let mut lab = Lab::with(Default::default(), limits);
    let (one, other) = (lab.host(HOST, 9).io, lab.host(HOST, 10).io);
    lab.folder(FOLDER);
    lab.file(&format!("{FOLDER}/file"), &[0; 4096]);
    let prepare = |lab: &mut Lab, io| {
        let program = lab.number(io, Function::Find, b"obey")?;
        let file = lab.number(io, Function::Open, b"file").unwrap();
        let header = RequestHeader { program: program.into(), first_len: 512.into(), ..Default::default() };
        let files = [FileRef { file: file.into(), version: 0.into() }];
        lab.number(io, Function::Prepare, &RequestBody::encode(&header, &files, &[]))
    };
    for _ in 0..3 {
        lab.load(one, "obey", OBEY).unwrap();
        // Their plans, all that they may have, were made of what is replaced in the next round.
        for io in [one, other] {
            (0..3).for_each(|_| _ = prepare(&mut lab, io).unwrap());
            assert_eq!(prepare(&mut lab, io), Err(LIMIT));
        }
    }
    lab.check_rest();
}
