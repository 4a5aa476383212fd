//! Replies, in both versions of the protocol.

/// Which version a connection speaks: `HELLO` chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// What every client begins with.
    #[default]
    Resp2,
    /// With maps, sets, doubles, booleans and a null of its own.
    Resp3,
}

/// Writes replies behind each other.
#[derive(Debug)]
pub struct Replies<'a> {
    into: &'a mut Vec<u8>,
    version: Version,
}

impl<'a> Replies<'a> {
    /// Appends to `into`.
    pub fn new(into: &'a mut Vec<u8>, version: Version) -> Self {
        Self { into, version }
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.into.push(kind);
        self.into.extend_from_slice(text);
        self.into.extend_from_slice(b"\r\n");
    }

    fn count(&mut self, kind: u8, count: usize) {
        self.into.push(kind);
        push_number(self.into, count as u64);
        self.into.extend_from_slice(b"\r\n");
    }

    /// A word, such as `OK`.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error: a code, a space, and what is wrong. Line ends within it would end it, and become spaces.
    pub fn error(&mut self, text: &str) {
        self.into.push(b'-');
        self.into.extend(text.bytes().map(|byte| if byte == b'\r' || byte == b'\n' { b' ' } else { byte }));
        self.into.extend_from_slice(b"\r\n");
    }

    /// A number.
    pub fn integer(&mut self, value: i64) {
        self.into.push(b':');
        if value < 0 {
            self.into.push(b'-');
        }
        push_number(self.into, value.unsigned_abs());
        self.into.extend_from_slice(b"\r\n");
    }

    /// A string.
    pub fn bulk(&mut self, bytes: &[u8]) {
        bulk_head(self.into, bytes.len());
        self.into.extend_from_slice(bytes);
        self.into.extend_from_slice(BULK_TAIL);
    }

    /// What is not there.
    pub fn null(&mut self) {
        self.into.extend_from_slice(null(self.version));
    }

    /// The head of an array; its items follow.
    pub fn array(&mut self, len: usize) {
        self.count(b'*', len);
    }

    /// The head of a map; keys and values follow, in turn.
    pub fn map(&mut self, len: usize) {
        match self.version {
            Version::Resp2 => self.count(b'*', len * 2),
            Version::Resp3 => self.count(b'%', len),
        }
    }

    /// The head of a set; its items follow.
    pub fn set(&mut self, len: usize) {
        match self.version {
            Version::Resp2 => self.count(b'*', len),
            Version::Resp3 => self.count(b'~', len),
        }
    }

    /// A text for people.
    pub fn text(&mut self, text: &str) {
        match self.version {
            Version::Resp2 => self.bulk(text.as_bytes()),
            Version::Resp3 => {
                self.count(b'=', text.len() + 4);
                self.into.extend_from_slice(b"txt:");
                self.into.extend_from_slice(text.as_bytes());
                self.into.extend_from_slice(BULK_TAIL);
            }
        }
    }
}

/// What ends a string.
pub const BULK_TAIL: &[u8] = b"\r\n";

/// What comes before a string of so many bytes.
pub fn bulk_head(into: &mut Vec<u8>, len: usize) {
    into.push(b'$');
    push_number(into, len as u64);
    into.extend_from_slice(b"\r\n");
}

/// What is not there.
#[must_use]
pub fn null(version: Version) -> &'static [u8] {
    match version {
        Version::Resp2 => b"$-1\r\n",
        Version::Resp3 => b"_\r\n",
    }
}

/// The digits of a number, without an allocation.
fn push_number(into: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    into.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(version: Version, write: impl FnOnce(&mut Replies<'_>)) -> String {
        let mut bytes = Vec::new();
        write(&mut Replies::new(&mut bytes, version));
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn replies_are_as_the_protocol_has_them() {
        let both =
            |write: fn(&mut Replies<'_>)| (written(Version::Resp2, write), written(Version::Resp3, write));
        let same = |text: &str| (text.to_owned(), text.to_owned());
        assert_eq!(both(|replies| replies.simple("OK")), same("+OK\r\n"));
        assert_eq!(both(|replies| replies.error("ERR a\r\nb")), same("-ERR a  b\r\n"));
        assert_eq!(both(|replies| replies.integer(i64::MIN)), same(":-9223372036854775808\r\n"));
        assert_eq!(both(|replies| replies.integer(0)), same(":0\r\n"));
        assert_eq!(both(|replies| replies.bulk(b"a\r\n")), same("$3\r\na\r\n\r\n"));
        assert_eq!(both(|replies| replies.null()), ("$-1\r\n".to_owned(), "_\r\n".to_owned()));
        assert_eq!(both(|replies| replies.array(12)), same("*12\r\n"));
        assert_eq!(both(|replies| replies.map(2)), ("*4\r\n".to_owned(), "%2\r\n".to_owned()));
        assert_eq!(both(|replies| replies.set(2)), ("*2\r\n".to_owned(), "~2\r\n".to_owned()));
        let text = ("$2\r\nhi\r\n".to_owned(), "=6\r\ntxt:hi\r\n".to_owned());
        assert_eq!(both(|replies| replies.text("hi")), text);
    }
}
