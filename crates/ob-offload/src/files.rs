//! Where the engine reads.

use ob_core::{NodeId, Token};
use ob_files_card::{Completion, FileVersion, LocalFiles, Op, Outcome};
use ob_memory::Slice;
use ob_wire_link::files::FileError;

/// A read of whole blocks.
#[derive(Debug)]
pub struct BlockRead {
    /// The file.
    pub file: NodeId,
    /// Where in it; a multiple of the block's length.
    pub offset: u64,
    /// Where the bytes go, as many as are read; whole blocks too.
    pub into: Slice,
}

/// A read that is over.
#[derive(Debug)]
pub struct BlocksRead {
    /// As given.
    pub token: Token,
    /// How many bytes were read, or why that failed.
    pub len: Result<u32, FileError>,
    /// What the file was like all the while; nothing if it was being changed, or the read failed.
    pub version: Option<FileVersion>,
    /// The buffer, if it came back.
    pub buffer: Option<Slice>,
}

/// Files of the card.
pub trait Files {
    /// Bytes of a block: reads that begin and end with one go to the device as they are.
    fn block_len(&self) -> u32;

    /// Starts a read, or hands it back if there is no room.
    fn read(&mut self, token: Token, read: BlockRead) -> Result<(), BlockRead>;

    /// The next read that is over.
    fn poll(&mut self) -> Option<BlocksRead>;
}

impl Files for LocalFiles {
    fn block_len(&self) -> u32 {
        self.card_info().block_len
    }

    fn read(&mut self, token: Token, read: BlockRead) -> Result<(), BlockRead> {
        let BlockRead { file, offset, into } = read;
        let len = into.len() as u32;
        match self.submit(token, Op::Read { file, offset, len, into }) {
            Err(Op::Read { into, .. }) => Err(BlockRead { file, offset, into }),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn poll(&mut self) -> Option<BlocksRead> {
        let Completion { token, result, buffer } = LocalFiles::poll(self)?;
        let (len, version) = match result {
            Ok(Outcome::Read { len, version }) => (Ok(len), version),
            // Nothing but reads was asked for through this end.
            Ok(_) => (Err(FileError::Invalid), None),
            Err(error) => (Err(error), None),
        };
        Some(BlocksRead { token, len, version, buffer })
    }
}
