//! Paths: names with `/` between them.

use ob_core::check_name;

use super::{FileError, RequestHeader};

/// Most bytes of a path.
pub const PATH_LEN_MAX: usize = 4096;

/// The names of a path that was checked, in their order.
#[derive(Clone, Debug)]
pub struct PathNames<'a> {
    rest: Option<&'a [u8]>,
}

/// Checks a path and gives its names. The empty path has none: it is the directory that it starts from.
///
/// # Errors
///
/// [`FileError::BadName`], when the path is too long or one of its names cannot be.
pub fn path_names(path: &[u8]) -> Result<PathNames<'_>, FileError> {
    let names = PathNames { rest: (!path.is_empty()).then_some(path) };
    if path.len() > PATH_LEN_MAX || names.clone().any(|name| check_name(name).is_err()) {
        return Err(FileError::BadName);
    }
    Ok(names)
}

/// The two paths behind the header of a `RENAME`.
///
/// # Errors
///
/// [`FileError::Invalid`], when the first path would be longer than what is there.
pub fn rename_paths<'a>(header: &RequestHeader, rest: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), FileError> {
    rest.split_at_checked(header.length as usize).ok_or(FileError::Invalid)
}

impl<'a> Iterator for PathNames<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        match rest.iter().position(|byte| *byte == b'/') {
            Some(end) => {
                self.rest = Some(&rest[end + 1..]);
                Some(&rest[..end])
            }
            None => {
                self.rest = None;
                Some(rest)
            }
        }
    }
}

impl std::iter::FusedIterator for PathNames<'_> {}
