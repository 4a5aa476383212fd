//! Numbers in bytes, the lowest first, at any address.
//!
//! The card loads from any address in one instruction. The compiler is told so by `-C target-feature=+allows-misaligned-mem-access`;
//! else it takes numbers apart into bytes.

/// The number of two bytes at an offset; none if they are not all there.
#[inline(always)]
#[must_use]
pub fn read_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*part(bytes, at)?))
}

/// The number of four bytes at an offset; none if they are not all there.
#[inline(always)]
#[must_use]
pub fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*part(bytes, at)?))
}

/// The number of eight bytes at an offset; none if they are not all there.
#[inline(always)]
#[must_use]
pub fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*part(bytes, at)?))
}

/// Puts a number into two bytes at an offset; none if they are not all there, and then nothing is written.
#[inline(always)]
#[must_use = "nothing may have been written"]
pub fn write_u16(bytes: &mut [u8], at: usize, number: u16) -> Option<()> {
    *part_mut(bytes, at)? = number.to_le_bytes();
    Some(())
}

/// Puts a number into four bytes at an offset; none if they are not all there, and then nothing is written.
#[inline(always)]
#[must_use = "nothing may have been written"]
pub fn write_u32(bytes: &mut [u8], at: usize, number: u32) -> Option<()> {
    *part_mut(bytes, at)? = number.to_le_bytes();
    Some(())
}

/// Puts a number into eight bytes at an offset; none if they are not all there, and then nothing is written.
#[inline(always)]
#[must_use = "nothing may have been written"]
pub fn write_u64(bytes: &mut [u8], at: usize, number: u64) -> Option<()> {
    *part_mut(bytes, at)? = number.to_le_bytes();
    Some(())
}

// The end is compared with the length, and not what is left with the number's: that is what the verifier understands.
#[inline(always)]
fn part<const LEN: usize>(bytes: &[u8], at: usize) -> Option<&[u8; LEN]> {
    bytes.get(at..at.checked_add(LEN)?)?.first_chunk()
}

#[inline(always)]
fn part_mut<const LEN: usize>(bytes: &mut [u8], at: usize) -> Option<&mut [u8; LEN]> {
    bytes.get_mut(at..at.checked_add(LEN)?)?.first_chunk_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_where_all_of_them_is_there() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9];
        assert_eq!(read_u16(&bytes, 7), Some(0x0908));
        assert_eq!(read_u16(&bytes, 8), None);
        assert_eq!(read_u32(&bytes, 5), Some(0x0908_0706));
        assert_eq!(read_u32(&bytes, 6), None);
        assert_eq!(read_u64(&bytes, 1), Some(0x0908_0706_0504_0302));
        assert_eq!(read_u64(&bytes, 2), None);
        assert_eq!(read_u64(&bytes, usize::MAX), None);
    }

    #[test]
    fn numbers_are_written_whole_or_not_at_all() {
        let mut bytes = [0; 9];
        assert_eq!(write_u64(&mut bytes, 2, u64::MAX), None);
        assert_eq!(write_u32(&mut bytes, 6, u32::MAX), None);
        assert_eq!(write_u16(&mut bytes, usize::MAX, u16::MAX), None);
        assert_eq!(bytes, [0; 9]);
        assert_eq!(write_u64(&mut bytes, 1, 0x0807_0605_0403_0201), Some(()));
        assert_eq!(write_u16(&mut bytes, 0, 0xbbaa), Some(()));
        assert_eq!(write_u32(&mut bytes, 5, 0xffee_ddcc), Some(()));
        assert_eq!(bytes, [0xaa, 0xbb, 2, 3, 4, 0xcc, 0xdd, 0xee, 0xff]);
    }
}
