//! What a request brings: its header, its files, the beginning of its scratch.

use zerocopy::{FromBytes, IntoBytes};

use super::{FILES_MAX, FileRef, RequestHeader, SCRATCH_LEN};

/// A request, as it lies in its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBody<'a> {
    /// Its header.
    pub header: &'a RequestHeader,
    /// Its files.
    pub files: &'a [FileRef],
    /// The beginning of its scratch.
    pub scratch: &'a [u8],
}

/// Why bytes are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// There are fewer or more than the header says.
    #[error("the request is cut off, or has something behind its end")]
    Length,
    /// Too many, or none, or some beside those of a plan.
    #[error("a request has 1 to {FILES_MAX} files, and none of its own with a plan")]
    Files,
    /// The first read is of a file that there is not.
    #[error("the first file is none of the request's")]
    First,
    /// More than there is room for.
    #[error("the scratch has {SCRATCH_LEN} bytes")]
    Scratch,
    /// Which of both is meant?
    #[error("a program is named beside a plan")]
    Program,
}

impl<'a> RequestBody<'a> {
    /// Reads a request.
    ///
    /// # Errors
    ///
    /// When it cannot be one.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, RequestError> {
        let (header, rest) = RequestHeader::ref_from_prefix(bytes).map_err(|_| RequestError::Length)?;
        let count = usize::from(header.files.get());
        let is_planned = header.plan.get() != 0;
        if is_planned != (count == 0) || count > FILES_MAX {
            return Err(RequestError::Files);
        }
        if is_planned && header.program.get() != 0 {
            return Err(RequestError::Program);
        }
        if !is_planned && usize::from(header.first.get()) >= count {
            return Err(RequestError::First);
        }
        let scratch_len = usize::from(header.scratch_len.get());
        if scratch_len > SCRATCH_LEN {
            return Err(RequestError::Scratch);
        }
        let (files, scratch) =
            <[FileRef]>::ref_from_prefix_with_elems(rest, count).map_err(|_| RequestError::Length)?;
        if scratch.len() != scratch_len {
            return Err(RequestError::Length);
        }
        Ok(Self { header, files, scratch })
    }

    /// The bytes of a request; what the header says of lengths is set by what there is.
    #[must_use]
    pub fn encode(header: &RequestHeader, files: &[FileRef], scratch: &[u8]) -> Vec<u8> {
        let header = RequestHeader {
            files: (files.len().min(usize::from(u16::MAX)) as u16).into(),
            scratch_len: (scratch.len().min(usize::from(u16::MAX)) as u16).into(),
            ..*header
        };
        [header.as_bytes(), files.as_bytes(), scratch].concat()
    }
}
