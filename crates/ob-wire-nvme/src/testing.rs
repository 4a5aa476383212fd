//! What the tests of several modules need.

/// Bytes that are zero but for the given places: golden bytes of large structures, written down from the tables.
pub(crate) fn sparse(len: usize, places: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (offset, values) in places {
        bytes[*offset..offset + values.len()].copy_from_slice(values);
    }
    bytes
}

/// Where two long byte strings differ, instead of thousands of numbers.
pub(crate) fn assert_bytes(found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "length");
    for (offset, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found, expected, "byte {offset}: found {found:#04x}, expected {expected:#04x}");
    }
}
