//! The helpers, as they are called. Made from the tables of `ob-ebpf`; `OB_BLESS=1 cargo test -p outboard-program --test tables` makes it anew.

// SAFETY: what the card has under these names takes so many arguments, of these kinds.
unsafe extern "C" {
    /// Copies as many bytes as the shorter of both ranges has, which may overlap; how many.
    pub(super) fn ob_copy(first: *mut u8, first_len: u64, second: *const u8, second_len: u64) -> u64;
    /// The CRC32C of bytes that follow others whose CRC32C is given, or 0.
    pub(super) fn ob_crc32c(number0: u64, first: *const u8, first_len: u64) -> u64;
    /// -1, 0 or 1: how two ranges follow each other, byte by byte, the shorter first.
    pub(super) fn ob_compare(first: *const u8, first_len: u64, second: *const u8, second_len: u64) -> i64;
    /// Puts the number that bytes begin with into eight others; how many bytes it has, or 0 if it is none.
    pub(super) fn ob_varint(first: *const u8, first_len: u64, second: *mut u8, second_len: u64) -> u64;
    /// Tells the card's log two numbers; not every time, if it is often.
    pub(super) fn ob_log(number0: u64, number1: u64) -> u64;
    /// The XXH3 of bytes: 64 bits, without a seed.
    pub(super) fn ob_xxh3(first: *const u8, first_len: u64) -> u64;
}
