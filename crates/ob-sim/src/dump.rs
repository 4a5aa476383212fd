//! What a device or some files hold, as text: bytes that an earlier build wrote, kept to see that every later one reads them.
//!
//! ```text
//!   # Comments.
//!   device 655360              a piece: its name, and how many bytes it has
//!   000000 4f42464c…           from this offset on, in hexadecimal digits; what no row names is zeros
//!   000020 *7                  the row before it, seven times more
//! ```
//!
//! Rows are short and in order, and those of zeros are left out, so that a dump is small and a difference between two can be
//! read.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Bytes of a row.
const ROW_LEN: usize = 32;
/// More than any piece has.
const PIECE_LEN_MAX: usize = 1 << 28;

/// Pieces of bytes by their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    pieces: BTreeMap<String, Vec<u8>>,
}

/// A line of a dump that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the dump: {what}")]
pub struct DumpError {
    /// Which, counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
}

impl Dump {
    /// The same with one more piece. Its name is a word, and no number in hexadecimal digits.
    #[must_use]
    pub fn with(mut self, name: &str, bytes: &[u8]) -> Self {
        self.pieces.insert(name.to_owned(), bytes.to_vec());
        self
    }

    /// A piece.
    #[must_use]
    pub fn piece(&self, name: &str) -> Option<&[u8]> {
        self.pieces.get(name).map(Vec::as_slice)
    }

    /// All pieces, in the order of their names.
    pub fn pieces(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.pieces.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
    }

    /// The text, with a comment before it.
    #[must_use]
    pub fn to_text(&self, comment: &str) -> String {
        let mut text = String::new();
        for line in comment.lines() {
            let _ = writeln!(text, "# {line}");
        }
        for (name, bytes) in &self.pieces {
            let _ = writeln!(text, "{name} {}", bytes.len());
            let mut rows = bytes.chunks(ROW_LEN).zip((0..).step_by(ROW_LEN)).peekable();
            while let Some((row, at)) = rows.next() {
                let Some(last) = row.iter().rposition(|byte| *byte != 0) else { continue };
                let _ = write!(text, "{at:06x} ");
                for byte in row.iter().take(last + 1) {
                    let _ = write!(text, "{byte:02x}");
                }
                text.push('\n');
                let mut count = 0;
                while rows.next_if(|(next, _)| *next == row).is_some() {
                    count += 1;
                }
                if count > 0 {
                    let _ = writeln!(text, "{:06x} *{count}", at + ROW_LEN);
                }
            }
        }
        text
    }

    /// Reads such a text.
    ///
    /// # Errors
    ///
    /// When a line cannot be.
    pub fn parse(text: &str) -> Result<Self, DumpError> {
        let mut dump = Self::default();
        let mut current: Option<&mut Vec<u8>> = None;
        let mut before: Vec<u8> = Vec::new();
        for (line, number) in text.lines().zip(1..) {
            let wrong = |what: &'static str| DumpError { line: number, what };
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (first, second) = line.split_once(' ').ok_or(wrong("it is not two words"))?;
            match usize::from_str_radix(first, 16) {
                Ok(offset) => {
                    let piece = current.as_deref_mut().ok_or(wrong("a row before any piece"))?;
                    let len = match second.strip_prefix('*') {
                        Some(count) => {
                            let count: usize = count.parse().map_err(|_| wrong("how often is no number"))?;
                            count.checked_mul(ROW_LEN)
                        }
                        None => {
                            before = bytes_of(second).ok_or(wrong("no hexadecimal digits"))?;
                            Some(before.len()).filter(|len| *len <= ROW_LEN)
                        }
                    };
                    let end = len.and_then(|len| offset.checked_add(len));
                    let place = end.and_then(|end| piece.get_mut(offset..end));
                    for row in place.ok_or(wrong("it is beyond the piece, or too long"))?.chunks_mut(ROW_LEN)
                    {
                        row.iter_mut().zip(&before).for_each(|(to, from)| *to = *from);
                    }
                }
                Err(_) => {
                    let len = second.parse().ok().filter(|len| *len <= PIECE_LEN_MAX);
                    let piece = vec![0; len.ok_or(wrong("the length is no number, or too large"))?];
                    if dump.pieces.contains_key(first) {
                        return Err(wrong("two pieces of this name"));
                    }
                    current = Some(dump.pieces.entry(first.to_owned()).or_insert(piece));
                }
            }
        }
        Ok(dump)
    }
}

fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok().filter(|_| pair.len() == 2))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_zeros_take_no_room() {
        let mut long = vec![0; 1 << 20];
        long[5..9].copy_from_slice(b"OBFL");
        long[70_000] = 1;
        long[(1 << 20) - 1] = 0xFF;
        long[4096..16 * 1024].fill(b'x');
        let dump = Dump::default().with("second", b"\0\x01\0").with("device", &long).with("empty", &[]);
        let text = dump.to_text("made by a test\nof dumps");
        assert!(text.len() < 400 && text.contains("\n001020 *383\n"), "{text}");
        assert!(
            text.starts_with("# made by a test\n# of dumps\ndevice 1048576\n000000 00000000004f42464c\n")
        );
        assert_eq!(Dump::parse(&text).unwrap(), dump);
        assert_eq!(dump.piece("second"), Some(&b"\0\x01\0"[..]));
        assert_eq!(dump.pieces().map(|(name, _)| name).collect::<Vec<_>>(), ["device", "empty", "second"]);
    }

    #[test]
    fn lines_that_cannot_be_are_named() {
        for (text, line) in [
            ("000000 00", 1),
            ("piece 4\n000000 0", 2),
            ("piece 4\n000000 zz", 2),
            ("piece 4\n000004 00", 2),
            ("piece 4\nffffffffffffffff 0000", 2),
            ("piece 64\n000000 01\n000020 *2", 3),
            ("piece 64\n000000 01\n000020 *x", 3),
            ("piece x", 1),
            ("piece 999999999999", 1),
            ("piece", 1),
            ("\n# two\npiece 1\npiece 1", 4),
        ] {
            assert_eq!(Dump::parse(text).unwrap_err().line, line, "{text:?}");
        }
    }
}
