//! Names of files and directories: any bytes, with few exceptions.

/// Most bytes of a name.
pub const NAME_LEN_MAX: usize = 255;

/// Why bytes cannot be the name of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// There are no bytes.
    #[error("a name cannot be empty")]
    Empty,
    /// There are more than [`NAME_LEN_MAX`] bytes.
    #[error("a name of {length} bytes is too long, the longest has {NAME_LEN_MAX}")]
    TooLong {
        /// How many.
        length: usize,
    },
    /// It would be two names of a path.
    #[error("a name cannot hold a `/`")]
    Slash,
    /// No program could say it to the kernel.
    #[error("a name cannot hold a zero byte")]
    Zero,
    /// It is the way to another directory, or to the same one.
    #[error("`.` and `..` cannot be names")]
    Dots,
}

/// Checks that bytes can be the name of a file or directory.
pub fn check_name(name: &[u8]) -> Result<(), NameError> {
    match name {
        [] => Err(NameError::Empty),
        _ if name.len() > NAME_LEN_MAX => Err(NameError::TooLong { length: name.len() }),
        b"." | b".." => Err(NameError::Dots),
        _ if name.contains(&b'/') => Err(NameError::Slash),
        _ if name.contains(&0) => Err(NameError::Zero),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_can_be_a_name_with_few_exceptions() {
        for name in [&b"a"[..], b"...", b".hidden", b"a b\n", b"\xff\xfe", &[b'x'; NAME_LEN_MAX]] {
            assert_eq!(check_name(name), Ok(()), "{name:?}");
        }
        assert_eq!(check_name(b""), Err(NameError::Empty));
        assert_eq!(check_name(&[b'x'; 256]), Err(NameError::TooLong { length: 256 }));
        assert_eq!(check_name(b"."), Err(NameError::Dots));
        assert_eq!(check_name(b".."), Err(NameError::Dots));
        assert_eq!(check_name(b"a/b"), Err(NameError::Slash));
        assert_eq!(check_name(b"a\0"), Err(NameError::Zero));
    }
}
