//! Numbers and strings as RocksDB writes them: little-endian, or varints of seven bits a byte.

use crate::error::Damage;

/// Takes things from the front of bytes; `what` names what is being read in the error.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Input<'a> {
    /// Reads `bytes`, which are `what`.
    #[must_use]
    pub const fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    /// What has not been read.
    #[must_use]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether everything has been read.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Damage> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Damage::Truncated(self.what))?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Damage> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Damage::Truncated(self.what))?;
        self.rest = rest;
        Ok(*taken)
    }

    /// One byte.
    ///
    /// # Errors
    /// When there is none.
    pub fn byte(&mut self) -> Result<u8, Damage> {
        Ok(self.array::<1>()?[0])
    }

    /// Four bytes.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn fixed32(&mut self) -> Result<u32, Damage> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn fixed64(&mut self) -> Result<u64, Damage> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A varint of up to ten bytes.
    ///
    /// # Errors
    /// When it does not end, or does not fit into 64 bits.
    pub fn varint64(&mut self) -> Result<u64, Damage> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if (bits << shift) >> shift != bits {
                return Err(Damage::Malformed("a number takes more than 64 bits"));
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Damage::Malformed("a number takes more than 64 bits"))
    }

    /// A varint that fits into 32 bits.
    ///
    /// # Errors
    /// When it does not.
    pub fn varint32(&mut self) -> Result<u32, Damage> {
        u32::try_from(self.varint64()?).map_err(|_| Damage::Malformed("a number takes more than 32 bits"))
    }

    /// A signed varint: the sign is its lowest bit (zigzag).
    ///
    /// # Errors
    /// As for [`Input::varint64`].
    pub fn signed_varint64(&mut self) -> Result<i64, Damage> {
        let value = self.varint64()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    /// A string behind its length.
    ///
    /// # Errors
    /// When the bytes end before it does.
    pub fn prefixed(&mut self) -> Result<&'a [u8], Damage> {
        let len = self.varint32()?;
        self.take(len as usize)
    }
}

/// Appends a varint; for those who make keys and blocks, tests above all.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn varints_come_back(value: u64, more: Vec<u8>) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, value);
            let len = bytes.len();
            for short in 0..len {
                prop_assert!(Input::new(&bytes[..short], "x").varint64().is_err());
            }
            bytes.extend_from_slice(&more);
            let mut input = Input::new(&bytes, "x");
            prop_assert_eq!(input.varint64(), Ok(value));
            prop_assert_eq!(input.rest(), &more[..]);
        }

        #[test]
        fn signed_varints_come_back(value: i64) {
            let mut bytes = Vec::new();
            put_varint(&mut bytes, ((value << 1) ^ (value >> 63)).cast_unsigned());
            prop_assert_eq!(Input::new(&bytes, "x").signed_varint64(), Ok(value));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            let mut input = Input::new(&bytes, "x");
            let _ = input.prefixed();
            let _ = input.varint32();
            let _ = input.fixed32();
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(Input::new(&[0xff; 10], "x").varint64().is_err());
        assert!(Input::new(&[0x80, 0x80, 0x80, 0x80, 0x10], "x").varint32().is_err());
        let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(Input::new(&most, "x").varint64(), Ok(u64::MAX));
    }
}
