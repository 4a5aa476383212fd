//! The card's files as the engine reads them: some reads fail, and some bring what is not there.

use ob_core::Token;
use ob_files_card::LocalFiles;
use ob_offload::{BlockRead, BlocksRead, Files};
use ob_sim::Rng;
use ob_wire_link::files::FileError;

/// Files that cannot be trusted.
pub(super) struct FickleFiles {
    files: LocalFiles,
    rng: Rng,
}

impl FickleFiles {
    pub(super) fn new(files: LocalFiles, rng: Rng) -> Self {
        Self { files, rng }
    }
}

impl Files for FickleFiles {
    fn block_len(&self) -> u32 {
        self.files.block_len()
    }

    fn read(&mut self, token: Token, read: BlockRead) -> Result<(), BlockRead> {
        Files::read(&mut self.files, token, read)
    }

    fn poll(&mut self) -> Option<BlocksRead> {
        let mut read = Files::poll(&mut self.files)?;
        if self.rng.one_in(20) {
            read.len = Err(FileError::Io);
        } else if let Some(buffer) = read.buffer.as_mut().filter(|_| self.rng.one_in(20)) {
            // As if another record had come to lie there: every value has an x somewhere, or a digit.
            for byte in buffer.iter_mut() {
                *byte = byte.wrapping_add(u8::from(*byte == b'x' || byte.is_ascii_digit()));
            }
        }
        Some(read)
    }
}
