//! The ordinary path to a file of the card's, which no file system of this machine has: a request a piece.

use std::sync::Mutex;

use ob_wire_nvme::pushdown::SCRATCH_LEN;

use super::node::NODE_LEN;
use super::ordinary::Pages;
use crate::client::{Detour, File, PushError, Query, Read, Session, Transport, join_all, lock};

const FETCH: &[u8] = include_bytes!("../../../../examples/programs/fetch.o");

/// How many bytes came is before them in the scratch of `fetch`.
const BYTES_AT: usize = 8;
/// Bytes that one request brings.
const PIECE_LEN: usize = SCRATCH_LEN - BYTES_AT;
/// Requests that are under way for one read.
const IN_FLIGHT_MAX: usize = 32;

/// By requests that bring what was read, as it is (`fetch`), and look at nothing: there is nothing in the bytes, and next to nothing in the card's limits,
/// that keeps them from an answer. A request sees one version of the file; a read of more than 4,088 bytes is several requests.
pub struct NamedPages<'session, T> {
    session: &'session Session<T>,
    // A plan is for reads of one length: nodes and values are most of them.
    node: Query,
    piece: Query,
    /// Why one of them did not answer, the last time that it did not.
    obstacle: Mutex<Option<PushError>>,
}

impl<'session, T: Transport> NamedPages<'session, T> {
    /// A file that the card can read.
    ///
    /// # Errors
    ///
    /// When it cannot be asked for.
    pub fn new(session: &'session Session<T>, file: &File) -> Result<Self, PushError> {
        let program = session.program("fetch", Some(FETCH.to_vec()));
        let query = |len: usize| {
            let query = session.query(&program, std::slice::from_ref(file))?;
            Ok::<_, PushError>(query.with_read_len_max(len as u32).with_reads_max(1))
        };
        Ok(Self { session, node: query(NODE_LEN)?, piece: query(PIECE_LEN)?, obstacle: Mutex::new(None) })
    }

    /// Why the card brought nothing, the last time that it was asked and did not.
    #[must_use]
    pub fn last_obstacle(&self) -> Option<PushError> {
        lock(&self.obstacle).clone()
    }

    /// Up to so many bytes, which one request brings.
    async fn fetch(&self, offset: u64, len: usize) -> Result<Vec<u8>, PushError> {
        let (query, read_len) =
            if len <= NODE_LEN { (&self.node, NODE_LEN) } else { (&self.piece, PIECE_LEN) };
        let first = Read { file: 0, offset, len: read_len as u32 };
        let wanted = (BYTES_AT + len).next_multiple_of(8) as u32;
        let mut scratch = self.session.ask(query, first, &[], wanted).await?.scratch;
        let cut = PushError::Invalid("the answer is shorter than what was asked for");
        let came = scratch.first_chunk().map(|came| u64::from_le_bytes(*came)).ok_or(cut.clone())?;
        let end = usize::try_from(came).map_or(len, |came| came.min(len)) + BYTES_AT;
        if scratch.len() < end {
            return Err(cut);
        }
        scratch.truncate(end);
        scratch.drain(..BYTES_AT);
        Ok(scratch)
    }

    /// Bytes of the file, by requests of up to so many; fewer where it ends.
    async fn read_by(&self, piece_len: usize, offset: u64, len: usize) -> Result<Vec<u8>, PushError> {
        let too_long = PushError::Invalid("no file is so long");
        let end = offset.checked_add(len as u64).ok_or(too_long)?;
        let (mut bytes, mut at) = (Vec::new(), offset);
        while at < end {
            let mut asked = Vec::new();
            while asked.len() < IN_FLIGHT_MAX && at < end {
                let len = usize::try_from(end - at).map_or(piece_len, |left| left.min(piece_len));
                asked.push(self.fetch(at, len));
                at += len as u64;
            }
            for piece in join_all(asked).await {
                let piece = piece?;
                let is_short = piece.len() < piece_len;
                bytes.extend(piece);
                if is_short {
                    // The last one that was wanted, or the file's end.
                    return Ok(bytes);
                }
            }
        }
        Ok(bytes)
    }
}

impl<T: Transport> Pages for NamedPages<'_, T> {
    fn are_requests(&self) -> bool {
        true
    }

    async fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>, String> {
        let mut read = self.read_by(PIECE_LEN, offset, len).await;
        if read.as_ref().is_err_and(|error| error.detour() == Some(Detour::Fuel)) {
            // Fuel is paid for bytes, too: where calls have little of it, it may do for fewer.
            read = self.read_by(NODE_LEN, offset, len).await;
        }
        read.map_err(|error| {
            let told = error.to_string();
            *lock(&self.obstacle) = Some(error);
            told
        })
    }
}
