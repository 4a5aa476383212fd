//! Buffers belong to an operation while it is out, and come back with its completion.
//!
//! The memory must stay where it is until the card has answered, whatever becomes of the future or the thread that
//! asked; ownership says that without any unsafe code.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Pieces that are put side by side without an allocation.
const PIECES_INLINE: usize = 16;

/// The memory of a read or write: one piece, or several for scatter and gather.
#[derive(Default)]
#[non_exhaustive]
pub enum Buffer {
    /// No memory.
    #[default]
    Empty,
    /// One piece. A read fills it up to its length, not its capacity.
    Bytes(Vec<u8>),
    /// One piece.
    Boxed(Box<[u8]>),
    /// One piece that others read too, and that no read fills.
    Shared(Arc<Vec<u8>>),
    /// Several pieces, one after the other.
    Pieces(Vec<Vec<u8>>),
    /// Several pieces, one after the other.
    BoxedPieces(Vec<Box<[u8]>>),
    /// Memory of the application's own making.
    Foreign(Box<dyn ForeignBuffer>),
}

/// Memory of the application's own making. Its pieces must not change in number or length while an operation has it; if
/// they do, the operation fails or moves fewer bytes.
pub trait ForeignBuffer: Any + Send {
    /// How many pieces there are.
    fn pieces(&self) -> usize;

    /// One of them, for a write.
    fn piece(&self, index: usize) -> &[u8];

    /// One of them, for a read. Memory that must not be written to gives no bytes.
    fn piece_mut(&mut self, index: usize) -> &mut [u8];
}

/// What can be given to a read or write, and comes back as the same type.
pub trait OwnedBuffer: Sized + Send + 'static {
    /// Gives the memory away.
    fn into_buffer(self) -> Buffer;

    /// Takes it back. `None` only for memory that was given away as another type.
    fn from_buffer(buffer: Buffer) -> Option<Self>;
}

impl OwnedBuffer for Buffer {
    fn into_buffer(self) -> Buffer {
        self
    }

    fn from_buffer(buffer: Buffer) -> Option<Self> {
        Some(buffer)
    }
}

macro_rules! owned {
    ($type:ty, $variant:ident) => {
        impl OwnedBuffer for $type {
            fn into_buffer(self) -> Buffer {
                Buffer::$variant(self)
            }

            fn from_buffer(buffer: Buffer) -> Option<Self> {
                match buffer {
                    Buffer::$variant(own) => Some(own),
                    _ => None,
                }
            }
        }
    };
}

owned!(Vec<u8>, Bytes);
owned!(Box<[u8]>, Boxed);
owned!(Arc<Vec<u8>>, Shared);
owned!(Vec<Vec<u8>>, Pieces);
owned!(Vec<Box<[u8]>>, BoxedPieces);

impl<T: ForeignBuffer> OwnedBuffer for Box<T> {
    fn into_buffer(self) -> Buffer {
        Buffer::Foreign(self)
    }

    fn from_buffer(buffer: Buffer) -> Option<Self> {
        match buffer {
            Buffer::Foreign(own) => (own as Box<dyn Any>).downcast().ok(),
            _ => None,
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Buffer({} bytes in {} pieces)", self.len(), self.pieces())
    }
}

impl Buffer {
    /// Bytes of all pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Boxed(bytes) => bytes.len(),
            Self::Shared(bytes) => bytes.len(),
            _ => (0..self.pieces()).fold(0, |sum, index| self.piece(index).len().saturating_add(sum)),
        }
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many pieces there are.
    #[must_use]
    pub fn pieces(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Bytes(_) | Self::Boxed(_) | Self::Shared(_) => 1,
            Self::Pieces(pieces) => pieces.len(),
            Self::BoxedPieces(pieces) => pieces.len(),
            Self::Foreign(foreign) => foreign.pieces(),
        }
    }

    /// One of the pieces.
    #[must_use]
    pub fn piece(&self, index: usize) -> &[u8] {
        match self {
            Self::Empty => &[],
            Self::Bytes(bytes) => bytes,
            Self::Boxed(bytes) => bytes,
            Self::Shared(bytes) => bytes,
            Self::Pieces(pieces) => pieces.get(index).map_or(&[], |piece| piece),
            Self::BoxedPieces(pieces) => pieces.get(index).map_or(&[], |piece| piece),
            Self::Foreign(foreign) => foreign.piece(index),
        }
    }

    /// One of the pieces.
    pub fn piece_mut(&mut self, index: usize) -> &mut [u8] {
        match self {
            Self::Empty | Self::Shared(_) => &mut [],
            Self::Bytes(bytes) => bytes,
            Self::Boxed(bytes) => bytes,
            Self::Pieces(pieces) => pieces.get_mut(index).map_or(&mut [], |piece| piece),
            Self::BoxedPieces(pieces) => pieces.get_mut(index).map_or(&mut [], |piece| piece),
            Self::Foreign(foreign) => foreign.piece_mut(index),
        }
    }

    /// The bytes of a buffer that was given as one `Vec<u8>`; none otherwise.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        Vec::from_buffer(self).unwrap_or_default()
    }

    /// Lends the pieces that make up `len` bytes from `start` on.
    pub(crate) fn gather<R>(&self, start: usize, len: usize, take: impl FnOnce(&[&[u8]]) -> R) -> R {
        let pieces = self.pieces();
        if pieces == 1 {
            return take(&[within(self.piece(0), start, len)]);
        }
        let mut inline = [&[][..]; PIECES_INLINE];
        let mut on_heap = Vec::new();
        let found: &mut [&[u8]] = if pieces <= PIECES_INLINE {
            &mut inline
        } else {
            on_heap.resize(pieces, &[][..]);
            &mut on_heap
        };
        let (mut skip, mut left, mut count) = (start, len, 0);
        for index in 0..pieces {
            if left == 0 {
                break;
            }
            let piece = self.piece(index);
            let part = within(piece, skip, left);
            skip = skip.saturating_sub(piece.len());
            if !part.is_empty() {
                left -= part.len();
                found[count] = part;
                count += 1;
            }
        }
        take(&found[..count])
    }

    /// Fills `len` bytes from `start` on: `copy` is told which of the `len` bytes come next, and where they go. How many
    /// there was memory for.
    pub(crate) fn scatter(
        &mut self,
        start: usize,
        len: usize,
        mut copy: impl FnMut(usize, &mut [u8]),
    ) -> usize {
        let (mut skip, mut filled) = (start, 0);
        for index in 0..self.pieces() {
            if filled == len {
                break;
            }
            let piece = self.piece_mut(index);
            let from = skip.min(piece.len());
            let to = piece.len().min(from.saturating_add(len - filled));
            skip -= from;
            if from < to {
                copy(filled, &mut piece[from..to]);
                filled += to - from;
            }
        }
        filled
    }
}

fn within(piece: &[u8], start: usize, len: usize) -> &[u8] {
    let from = start.min(piece.len());
    let to = piece.len().min(from.saturating_add(len));
    &piece[from..to]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_kind(bytes: &[u8]) -> Vec<Buffer> {
        let pieces = |size: usize| bytes.chunks(size).map(<[u8]>::to_vec).collect::<Vec<_>>();
        let boxed = |size: usize| bytes.chunks(size).map(Box::from).collect::<Vec<Box<[u8]>>>();
        let mut with_gaps = pieces(7);
        with_gaps.insert(1, Vec::new());
        with_gaps.push(Vec::new());
        vec![
            bytes.to_vec().into_buffer(),
            Box::<[u8]>::from(bytes).into_buffer(),
            pieces(1).into_buffer(),
            pieces(30).into_buffer(),
            with_gaps.into_buffer(),
            boxed(13).into_buffer(),
        ]
    }

    #[test]
    fn any_part_is_gathered_from_any_pieces() {
        let bytes: Vec<u8> = (0..100).collect();
        let shared = Arc::new(bytes.clone()).into_buffer();
        for buffer in every_kind(&bytes).into_iter().chain([shared]) {
            assert_eq!(buffer.len(), 100);
            for start in 0..100 {
                for len in [0, 1, 6, 7, 8, 50, 100 - start] {
                    let len = len.min(100 - start);
                    let part = buffer.gather(start, len, |pieces| pieces.concat());
                    assert_eq!(part, bytes[start..start + len], "{buffer:?} {start} {len}");
                }
            }
        }
    }

    #[test]
    fn any_part_is_scattered_to_any_pieces() {
        let source: Vec<u8> = (100..200).collect();
        for (start, len) in [(0, 100), (0, 1), (5, 20), (29, 2), (99, 1), (60, 40), (50, 0)] {
            for mut buffer in every_kind(&[0; 100]) {
                let filled = buffer.scatter(start, len, |at, into| {
                    into.copy_from_slice(&source[at..at + into.len()]);
                });
                assert_eq!(filled, len);
                let mut expected = vec![0; 100];
                expected[start..start + len].copy_from_slice(&source[..len]);
                assert_eq!(
                    buffer.gather(0, 100, |pieces| pieces.concat()),
                    expected,
                    "{buffer:?} {start} {len}"
                );
            }
        }
    }

    #[test]
    fn too_little_memory_is_said_and_never_left() {
        let mut buffer = vec![vec![0u8; 4], vec![0; 4]].into_buffer();
        assert_eq!(buffer.scatter(6, 10, |_, into| into.fill(1)), 2);
        assert_eq!(buffer.scatter(100, 10, |_, into| into.fill(1)), 0);
        assert_eq!(buffer.gather(6, 10, |pieces| pieces.concat()), [1, 1]);
        assert_eq!(buffer.gather(100, 10, |pieces| pieces.concat()), []);
    }

    #[test]
    fn what_others_read_is_not_filled() {
        let shared = Arc::new(vec![1u8; 8]);
        let mut buffer = Arc::clone(&shared).into_buffer();
        assert_eq!(buffer.scatter(0, 8, |_, into| into.fill(2)), 0);
        assert_eq!(Arc::<Vec<u8>>::from_buffer(buffer).unwrap(), shared);
        assert_eq!(*shared, [1; 8]);
    }

    struct Own(Vec<u8>);

    impl ForeignBuffer for Own {
        fn pieces(&self) -> usize {
            1
        }

        fn piece(&self, _: usize) -> &[u8] {
            &self.0
        }

        fn piece_mut(&mut self, _: usize) -> &mut [u8] {
            &mut self.0
        }
    }

    #[test]
    fn buffers_come_back_as_what_they_were() {
        assert_eq!(Vec::from_buffer(vec![1u8, 2].into_buffer()), Some(vec![1u8, 2]));
        assert_eq!(Vec::<Vec<u8>>::from_buffer(vec![1u8, 2].into_buffer()), None);
        let own = Box::<Own>::from_buffer(Box::new(Own(vec![5])).into_buffer());
        assert_eq!(own.map(|own| own.0), Some(vec![5]));
        assert!(Box::<Own>::from_buffer(Buffer::Empty).is_none());
    }
}
