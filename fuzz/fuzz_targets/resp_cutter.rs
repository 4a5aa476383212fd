//! Any bytes as what Redis clients send, in any pieces: the requests are the same as when all of it comes at once, the
//! cutter never asks for more than is missing, and what it has found can be read.

#![no_main]

use ob_kv::command::Outline;
use ob_kv::resp::{Cut, Cutter, Limits, Request, RequestError};

/// Small enough for a fuzzer to reach every limit.
const SMALL: Limits = Limits { arguments: 20, argument_len: 300, request_len: 1000, line_len: 200 };

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    // The first byte says whose stream it is, the next ones in which pieces it comes.
    let Some((&[setting, pieces @ ..], stream)) = input.split_first_chunk::<8>() else { return };
    let (limits, is_stranger) = if setting % 2 == 0 { (SMALL, false) } else { (Limits::STRANGER, true) };
    let whole = found(stream, &[], &limits, is_stranger);
    assert_eq!(found(stream, &pieces, &limits, is_stranger), whole);
    assert_eq!(found(stream, &[1], &limits, is_stranger), whole);
});

/// What a stream holds.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    requests: Vec<Vec<Vec<u8>>>,
    /// Where the last whole one ends.
    len: usize,
    /// How many bytes are missing to what follows, or what is wrong with it.
    end: Result<usize, RequestError>,
}

/// Cuts a stream that comes in pieces of these lengths, over and over; without any it comes whole.
fn found(stream: &[u8], pieces: &[u8], limits: &Limits, is_stranger: bool) -> Found {
    let mut lengths = pieces.iter().map(|piece| usize::from(*piece) + 1).cycle();
    let mut next = || lengths.next().unwrap_or(stream.len());
    let (mut cutter, mut begin, mut end) = (Cutter::default(), 0, next().min(stream.len()));
    let (mut requests, mut wanted) = (Vec::new(), 0);
    loop {
        let cut = cutter.cut(&stream[begin..end], limits, is_stranger);
        assert!(end >= wanted || matches!(cut, Ok(Cut::Part(_)) | Err(_)), "{cut:?} needs less than was said");
        let len = match cut {
            Err(error) => return Found { requests, len: begin, end: Err(error) },
            Ok(Cut::Part(missing)) => {
                assert!(missing > 0);
                if end == stream.len() {
                    return Found { requests, len: begin, end: Ok(missing) };
                }
                wanted = end + missing;
                end = (end + next()).min(stream.len());
                continue;
            }
            Ok(Cut::Request(len)) => {
                requests.push(checked(&Request::new(&stream[begin..begin + len])));
                len
            }
            Ok(Cut::Line(len)) => {
                match Request::of_line(&stream[begin..begin + len]) {
                    Ok(request) => requests.push(checked(&request)),
                    Err(error) => return Found { requests, len: begin, end: Err(error) },
                }
                len
            }
            Ok(Cut::Nothing(len)) => len,
        };
        assert!(len > 0 && begin + len <= end);
        (begin, wanted) = (begin + len, 0);
    }
}

/// The strings of a request, which can be read in several ways that agree.
fn checked(request: &Request<'_>) -> Vec<Vec<u8>> {
    let strings: Vec<Vec<u8>> = request.arguments().map(<[u8]>::to_vec).collect();
    assert_eq!(strings.len(), request.arguments().len());
    assert!(!strings.is_empty());
    if let Ok(outline) = Outline::of(request) {
        let arguments: Vec<&[u8]> = outline.arguments().collect();
        assert!(outline.keys().all(|key| arguments.contains(&key)));
    }
    // Its bytes are a request again, the same and nothing more.
    let unlimited = Limits {
        arguments: usize::MAX,
        argument_len: usize::MAX >> 1,
        request_len: usize::MAX >> 1,
        line_len: usize::MAX >> 1,
    };
    let cut = Cutter::default().cut(request.bytes(), &unlimited, false);
    assert_eq!(cut, Ok(Cut::Request(request.bytes().len())));
    strings
}
