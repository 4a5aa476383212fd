//! Numbers in names of files and of metadata: hexadecimal digits, always as many.

/// 16 digits: of volumes, tiers and servers.
#[must_use]
pub fn long_digits(number: u64) -> String {
    format!("{number:016x}")
}

/// 8 digits: of segments and chunks.
#[must_use]
pub fn short_digits(number: u32) -> String {
    format!("{number:08x}")
}

/// What 16 digits say; a number has only one such name.
#[must_use]
pub fn parse_long(digits: &str) -> Option<u64> {
    are_digits(digits, 16).then(|| u64::from_str_radix(digits, 16).ok()).flatten()
}

/// What 8 digits say.
#[must_use]
pub fn parse_short(digits: &str) -> Option<u32> {
    are_digits(digits, 8).then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

fn are_digits(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_one_name() {
        for number in [0, 1, 0xabc, u64::MAX] {
            assert_eq!(parse_long(&long_digits(number)), Some(number));
            assert_eq!(parse_short(&short_digits(number as u32)), Some(number as u32));
        }
        for other in
            ["", "1", "+000000000000001", "0000000000000ABC", "00000000000000000", "000000000000000é"]
        {
            assert_eq!(parse_long(other), None, "{other}");
        }
        assert_eq!(parse_short("0000000A"), None);
    }
}
