use super::*;
use proptest::prelude::*;

const LIMITS: Limits =
    Limits { arguments: 1000, argument_len: 1 << 20, request_len: 2 << 20, line_len: 64 << 10 };

fn cut(text: &str) -> Result<Cut, RequestError> {
    Cutter::default().cut(text.as_bytes(), &LIMITS, false)
}

fn encoded(arguments: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        bytes.extend(format!("${}\r\n", argument.len()).bytes());
        bytes.extend_from_slice(argument);
        bytes.extend(b"\r\n");
    }
    bytes
}

#[test]
fn requests_lines_and_nothing_are_told_apart() {
    let text = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n";
    assert_eq!(cut(&format!("{text}*1\r\n")), Ok(Cut::Request(text.len())));
    assert_eq!(cut("PING\r\nrest"), Ok(Cut::Line(6)));
    assert_eq!(cut("PING\n"), Ok(Cut::Line(5)));
    assert_eq!(cut("\r\n*1"), Ok(Cut::Nothing(2)));
    assert_eq!(cut("*0\r\n"), Ok(Cut::Nothing(4)));
    assert_eq!(cut("*-1\r\n"), Ok(Cut::Nothing(5)));
    assert_eq!(cut(""), Ok(Cut::Part(1)));
    assert_eq!(cut("PIN"), Ok(Cut::Part(1)));
    assert_eq!(cut("*1\r\n$10\r\nabc"), Ok(Cut::Part(9)), "it says how much there is to come");
}

#[test]
fn what_redis_refuses_is_refused_in_its_words() {
    for (text, expected) in [
        ("*abc\r\n", "invalid multibulk length"),
        ("*1001\r\n", "invalid multibulk length"),
        ("*99999999999999999999\r\n", "invalid multibulk length"),
        ("*1\r\n:1\r\n", "expected '$', got ':'"),
        ("*1\r\n$-1\r\n", "invalid bulk length"),
        ("*1\r\n$1x\r\n", "invalid bulk length"),
        ("*1\r\n$1048577\r\n", "invalid bulk length"),
    ] {
        assert_eq!(cut(text).unwrap_err().to_string(), format!("Protocol error: {expected}"), "{text:?}");
    }
    let endless = format!("*{}", "1".repeat(40));
    assert_eq!(cut(&endless), Err(RequestError::CountLine));
    let endless = format!("*1\r\n${}", "1".repeat(40));
    assert_eq!(cut(&endless), Err(RequestError::LengthLine));
    assert_eq!(cut(&"x".repeat(64 << 10)), Err(RequestError::Line));
    let half = "h".repeat(1 << 20);
    let long = format!("*3\r\n$1048576\r\n{half}\r\n$1048576\r\n");
    assert_eq!(cut(&long), Err(RequestError::Request), "as soon as it is said, not when it is there");
}

#[test]
fn strangers_may_say_little() {
    let cut = |text: &str| Cutter::default().cut(text.as_bytes(), &Limits::STRANGER, true);
    assert_eq!(cut("*11\r\n"), Err(RequestError::StrangerCount));
    assert_eq!(cut("*1\r\n$16385\r\n"), Err(RequestError::StrangerLength));
    assert_eq!(cut("*10\r\n$16384\r\n"), Ok(Cut::Part(16386)));
}

#[test]
fn lines_are_cut_into_words_as_redis_does() {
    let words = |line: &[u8]| {
        let request = Request::of_line(line)?;
        Ok(request.arguments().map(<[u8]>::to_vec).collect::<Vec<_>>())
    };
    let expected = |texts: &[&[u8]]| Ok(texts.iter().map(|text| text.to_vec()).collect::<Vec<_>>());
    assert_eq!(words(b"  SET  k\tv \r\n"), expected(&[b"SET", b"k", b"v"]));
    assert_eq!(words(b"SET k \"a b\\n\\x41\\q\\\"\"\n"), expected(&[b"SET", b"k", b"a b\nAq\""]));
    assert_eq!(words(b"SET k 'a \\'b\\n'\n"), expected(&[b"SET", b"k", b"a 'b\\n"]));
    assert_eq!(words(b"SET k \"\"\n"), expected(&[b"SET", b"k", b""]));
    for line in [&b"GET \"a"[..], b"GET \"a\"b", b"GET 'a", b"GET 'a'b", b"GET \"a\\"] {
        assert_eq!(words(line), Err(RequestError::Quotes), "{line:?}");
    }
}

proptest! {
    #[test]
    fn whatever_is_sent_comes_out_whatever_the_pieces(
        requests in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..8), 1..8),
        pieces in prop::collection::vec(1usize..50, 1..20),
    ) {
        let stream: Vec<u8> = requests.iter().flat_map(|request| encoded(request)).collect();
        let (mut cutter, mut begin, mut found) = (Cutter::default(), 0, Vec::new());
        let mut end = 0;
        let mut pieces = pieces.iter().cycle();
        while found.len() < requests.len() {
            match cutter.cut(&stream[begin..end], &LIMITS, false).unwrap() {
                Cut::Request(len) => {
                    let request = Request::new(&stream[begin..begin + len]);
                    prop_assert_eq!(request.arguments().len(), request.arguments().count());
                    found.push(request.arguments().map(<[u8]>::to_vec).collect::<Vec<_>>());
                    begin += len;
                }
                Cut::Part(missing) => {
                    prop_assert!(missing > 0 && end + missing <= stream.len(), "{missing} at {end}");
                    end = (end + pieces.next().unwrap()).min(stream.len());
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
        prop_assert_eq!(found, requests);
        prop_assert_eq!(begin, stream.len());
    }

    #[test]
    fn no_bytes_are_too_wild(bytes in prop::collection::vec(
        prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'"'), any::<u8>()], 0..200))
    {
        let (mut cutter, mut at) = (Cutter::default(), 0);
        while let Ok(cut) = cutter.cut(&bytes[at..], &Limits::STRANGER, true) {
            let len = match cut {
                Cut::Part(missing) => {
                    prop_assert!(missing > 0);
                    break;
                }
                Cut::Request(len) => {
                    let request = Request::new(&bytes[at..at + len]);
                    prop_assert!(request.arguments().count() == request.arguments().len());
                    len
                }
                Cut::Line(len) => {
                    let _ = Request::of_line(&bytes[at..at + len]);
                    len
                }
                Cut::Nothing(len) => len,
            };
            prop_assert!(len > 0 && at + len <= bytes.len());
            at += len;
        }
    }
}

#[test]
fn a_request_has_no_more_strings_than_its_bytes() {
    let len = |bytes: &[u8]| Request::new(bytes).arguments().len();
    assert!(len(b"*1000000000000\r\n$4\r\nMGET\r\n$1\r\nk\r\n") <= 3);
    assert_eq!(len(b"*9223372036854775807\r\n"), 0);
    // Those that are there are all counted, the shortest too.
    assert_eq!(len(b"*3\r\n$0\r\n\r\n$0\r\n\r\n$0\r\n\r\n"), 3);
    assert_eq!(len(b"*2\r\n$0\r\n\r\n$0\r\n"), 2);
}
