//! Errors as numbers and texts.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io::ErrorKind;

use ob_files_host::Error;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps an error's words for `ob_last_message`.
pub(crate) fn remember(error: &Error) {
    let words = CString::new(error.to_string()).unwrap_or_default();
    LAST.with_borrow_mut(|last| *last = words);
}

/// Every number of the header, its text, and the nearest value of `errno`.
const KNOWN: &[(c_int, &CStr, c_int)] = &[
    (0, c"success", 0),
    (-1, c"there is no such file or directory", 2),
    (-2, c"the name is taken", 17),
    (-3, c"a directory is needed, and this is a file", 20),
    (-4, c"a file is needed, and this is a directory", 21),
    (-5, c"the directory is not empty", 39),
    (-6, c"a name or path that cannot be", 22),
    (-7, c"a directory cannot be moved into itself", 22),
    (-8, c"an argument that cannot be", 22),
    (-9, c"beyond the largest file, or larger than a request can be", 27),
    (-10, c"no space is left on the device", 28),
    (-11, c"the card's device failed", 5),
    (-12, c"the card takes no more changes until it is started again", 30),
    (-13, c"the card does not know this", 95),
    (-14, c"the card has too much in flight; try again", 11),
    (-15, c"a namespace lies on this file, and only that namespace may change it", 16),
    (-20, c"the card died before it answered: what was asked for may have happened or not", 103),
    (-21, c"there is no card at the moment, and nothing was sent", 107),
    (-22, c"the group was destroyed", 107),
    (-23, c"the request ring is full; take completions, then try again", 11),
    (-24, c"as many operations are out as the group allows; take completions, then try again", 11),
    (-25, c"the time is up", 110),
    (-26, c"the card answered what it must not", 71),
    (-27, c"the card could not be attached to, or refused a group", 107),
    (-28, c"this process is out of something, or the library has an error", 12),
];

/// The number of an error.
pub(crate) fn code_of(error: &Error) -> c_int {
    match error {
        Error::NotFound => -1,
        Error::Exists => -2,
        Error::NotADirectory => -3,
        Error::IsADirectory => -4,
        Error::NotEmpty => -5,
        Error::BadName | Error::Path(_) => -6,
        Error::WithinItself => -7,
        Error::Invalid => -8,
        Error::TooLarge => -9,
        Error::NoSpace => -10,
        Error::Io => -11,
        Error::ReadOnly => -12,
        Error::Unsupported => -13,
        Error::Busy => -14,
        Error::InUse => -15,
        Error::CardGone => -20,
        Error::Detached => -21,
        Error::Closed => -22,
        Error::RingFull => -23,
        Error::TooManyOutstanding => -24,
        Error::TimedOut => -25,
        Error::Protocol(_) => -26,
        Error::Attach(_) => -27,
        Error::System => -28,
        // What the library learns to say before this table does, by its nearest relative.
        other => match other.kind() {
            ErrorKind::InvalidInput => -8,
            ErrorKind::TimedOut => -25,
            _ => -28,
        },
    }
}

fn known(error: c_int) -> Option<&'static (c_int, &'static CStr, c_int)> {
    KNOWN.iter().find(|(code, ..)| *code == error)
}

#[unsafe(no_mangle)]
pub extern "C" fn ob_error_text(error: c_int) -> *const c_char {
    known(error).map_or(c"an error that is not known", |(_, text, _)| text).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ob_error_errno(error: c_int) -> c_int {
    known(error).map_or(5, |(.., errno)| *errno)
}

#[unsafe(no_mangle)]
pub extern "C" fn ob_last_message() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ob_files_host::Fault;

    const HEADER: &str = include_str!("../include/outboard.h");

    /// The numbers that the header gives.
    fn header_codes() -> Vec<(String, c_int)> {
        let start = HEADER.find("typedef enum ob_error {").unwrap();
        let body = &HEADER[start..start + HEADER[start..].find('}').unwrap()];
        let line = |line: &str| {
            let (name, rest) = line.trim().split_once(" = ")?;
            let number = rest.split([',', ' ']).next()?;
            Some((name.to_owned(), number.parse().ok()?))
        };
        body.lines().filter_map(line).collect()
    }

    #[test]
    fn header_and_table_have_the_same_errors() {
        let codes: Vec<c_int> = header_codes().into_iter().map(|(_, code)| code).collect();
        assert_eq!(codes, KNOWN.iter().map(|(code, ..)| *code).collect::<Vec<_>>());
        assert_eq!(codes.len(), 25);
    }

    #[test]
    fn errors_have_the_numbers_that_the_header_gives() {
        let codes = header_codes();
        for (error, name) in [
            (Error::NotFound, "OB_NOT_FOUND"),
            (Error::Exists, "OB_EXISTS"),
            (Error::NotEmpty, "OB_NOT_EMPTY"),
            (Error::NoSpace, "OB_NO_SPACE"),
            (Error::InUse, "OB_IN_USE"),
            (Error::CardGone, "OB_CARD_GONE"),
            (Error::Detached, "OB_DETACHED"),
            (Error::RingFull, "OB_RING_FULL"),
            (Error::TooManyOutstanding, "OB_TOO_MANY"),
            (Error::TimedOut, "OB_TIMED_OUT"),
            (Error::Protocol(Fault::Ring), "OB_PROTOCOL"),
            (Error::Attach(String::new()), "OB_ATTACH"),
            (Error::System, "OB_SYSTEM"),
        ] {
            assert!(codes.contains(&(name.to_owned(), code_of(&error))), "{name}");
            assert!(known(code_of(&error)).is_some());
        }
    }
}
