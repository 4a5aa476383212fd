//! The card's files as the engine reads them: some reads fail, and some bring what is not there.

use ob_core::Token;
use ob_files_card::LocalFiles;
use ob_offload::{BlockRead, BlocksRead, Files};
use ob_sim::Rng;
use ob_wire_link::files::FileError;

use super::plan::pick;

/// Files that cannot be trusted.
pub(super) struct FickleFiles {
    files: LocalFiles,
    rng: Rng,
    /// One read in so many fails, and as many bring something else.
    one_in: u64,
}

impl FickleFiles {
    pub(super) fn new(files: LocalFiles, mut rng: Rng) -> Self {
        let one_in = pick(&mut rng, &[20, 20, 4, 1000]);
        Self { files, rng, one_in }
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
        if self.rng.one_in(self.one_in) {
            read.len = Err(FileError::Io);
        } else if let Some(buffer) = read.buffer.as_mut().filter(|_| self.rng.one_in(self.one_in)) {
            // As if another record had come to lie there: every value has an x somewhere, or a digit.
            for byte in buffer.iter_mut() {
                *byte = byte.wrapping_add(u8::from(*byte == b'x' || byte.is_ascii_digit()));
            }
        }
        Some(read)
    }
}
