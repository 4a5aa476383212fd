//! Memory of the caller, as a buffer of an operation.

use std::ffi::c_void;

use ob_files_host::{Error, ForeignBuffer};

/// One piece of memory, as the header has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Piece {
    pub(crate) memory: *mut c_void,
    pub(crate) len: usize,
}

/// Memory that the caller has lent to an operation.
pub(crate) enum Lent {
    /// One piece, without an allocation more.
    One(Piece),
    Many(Vec<Piece>),
}

// SAFETY: it is memory, not something that belongs to a thread; the caller keeps its own threads away from it until the
// operation is completed.
unsafe impl Send for Lent {}

impl Lent {
    /// # Safety
    ///
    /// The memory stays valid, and nobody else writes to it (or, for a read, uses it at all), until the operation that
    /// gets this is completed.
    pub(crate) unsafe fn one(memory: *mut c_void, len: usize) -> Result<Box<Self>, Error> {
        let piece = Piece { memory, len };
        piece.check().map(|()| Box::new(Self::One(piece)))
    }

    /// # Safety
    ///
    /// As for [`Lent::one`], for each piece; and `pieces` points to `count` of them, or is NULL.
    pub(crate) unsafe fn many(pieces: *const Piece, count: usize) -> Result<Box<Self>, Error> {
        if count == 0 {
            return Ok(Box::new(Self::Many(Vec::new())));
        }
        if pieces.is_null() {
            return Err(Error::Invalid);
        }
        // SAFETY: the caller's, as above.
        let pieces = unsafe { std::slice::from_raw_parts(pieces, count) }.to_vec();
        pieces.iter().try_for_each(Piece::check)?;
        Ok(Box::new(Self::Many(pieces)))
    }

    fn get(&self, index: usize) -> Option<&Piece> {
        let piece = match self {
            Self::One(piece) => Some(piece).filter(|_| index == 0),
            Self::Many(pieces) => pieces.get(index),
        };
        piece.filter(|piece| piece.len > 0)
    }
}

impl Piece {
    /// NULL is no memory, and nothing is longer than half of what there can be.
    fn check(&self) -> Result<(), Error> {
        let is_fine = self.len == 0 || !self.memory.is_null() && isize::try_from(self.len).is_ok();
        if is_fine { Ok(()) } else { Err(Error::Invalid) }
    }
}

impl ForeignBuffer for Lent {
    fn pieces(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(pieces) => pieces.len(),
        }
    }

    fn piece(&self, index: usize) -> &[u8] {
        // SAFETY: the piece is not NULL, is no longer than memory can be, and whoever made this keeps it valid and
        // unchanged until the operation is completed.
        self.get(index)
            .map_or(&[], |piece| unsafe { std::slice::from_raw_parts(piece.memory.cast(), piece.len) })
    }

    fn piece_mut(&mut self, index: usize) -> &mut [u8] {
        // SAFETY: as for `piece`; and nobody else uses the memory of a read. Memory of a write is never asked for this way.
        self.get(index).map_or(&mut [], |piece| unsafe {
            std::slice::from_raw_parts_mut(piece.memory.cast(), piece.len)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_laid_out_as_iovec_is() {
        assert_eq!(size_of::<Piece>(), 2 * size_of::<usize>());
        assert_eq!(std::mem::offset_of!(Piece, memory), 0);
        assert_eq!(std::mem::offset_of!(Piece, len), size_of::<usize>());
    }

    #[test]
    fn memory_that_cannot_be_is_refused() {
        let mut memory = [1u8, 2, 3];
        let pointer: *mut c_void = memory.as_mut_ptr().cast();
        // SAFETY: none of these is read or written; the last one is, and lives.
        unsafe {
            assert!(Lent::one(std::ptr::null_mut(), 1).is_err());
            assert!(Lent::one(pointer, usize::MAX).is_err());
            assert!(Lent::many(std::ptr::null(), 1).is_err());
            assert_eq!(Lent::one(std::ptr::null_mut(), 0).unwrap().piece(0), []);
            let pieces = [Piece { memory: pointer, len: 2 }, Piece { memory: std::ptr::null_mut(), len: 0 }];
            let mut lent = Lent::many(pieces.as_ptr(), 2).unwrap();
            lent.piece_mut(0)[1] = 9;
            assert_eq!((lent.piece(0), lent.piece(1), lent.piece(2)), (&[1, 9][..], &[][..], &[][..]));
        }
        assert_eq!(memory, [1, 9, 3]);
    }
}
