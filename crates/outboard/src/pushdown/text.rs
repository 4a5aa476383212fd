//! Bytes as a line of a terminal.

/// Text as it is; what would end the line, or is no text, by its number.
pub(super) fn escaped(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => shown.push_str("\\\\"),
                '\n' => shown.push_str("\\n"),
                '\t' => shown.push_str("\\t"),
                other if other.is_ascii_control() => shown.push_str(&format!("\\x{:02x}", other as u32)),
                other if other.is_control() => shown.extend(other.escape_unicode()),
                other => shown.push(other),
            }
        }
        for byte in chunk.invalid() {
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_stays_one_line() {
        assert_eq!(escaped("grüße, a\\b".as_bytes()), "grüße, a\\\\b");
        assert_eq!(escaped(b"1\n2\t3\x1b[31m\0\xff"), "1\\n2\\t3\\x1b[31m\\x00\\xff");
        assert_eq!(escaped("\u{9b}1m".as_bytes()), "\\u{9b}1m");
    }
}
