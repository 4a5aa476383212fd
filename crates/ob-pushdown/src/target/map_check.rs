//! A map is checked as it comes, piece by piece: all of the longest one at once would keep the card's thread for milliseconds.
//!
//! ```text
//!   pieces ─▶ header, extents ─┬─ ascend in the file, whole blocks, within the namespace: each as it comes
//!                              └─ apart in the namespace: sorted runs, merged when they are alike in length, and all at the end
//! ```

use ob_nvme::target::control::{Namespace, NamespaceKey};
use ob_wire_nvme::pushdown::{Extent, MapHeader};
use zerocopy::FromBytes;

use super::files::{BadMap, Map, Piece};

/// What a map may lie in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) nsid: u32,
    pub(super) namespace: NamespaceKey,
    pub(super) block_len: u32,
    pub(super) blocks: u64,
}

impl Room {
    pub(super) fn of(namespace: &Namespace) -> Self {
        let Namespace { nsid, key, block_len, blocks, .. } = *namespace;
        Self { nsid, namespace: key, block_len, blocks }
    }

    fn len(&self) -> Option<u64> {
        self.blocks.checked_mul(self.block_len.into())
    }
}

/// A map of which not all has come.
pub(super) struct MapCheck {
    room: Room,
    header: Option<MapHeader>,
    /// What is left of the last piece: less than an extent.
    rest: Vec<u8>,
    pieces: Vec<Piece>,
    /// Where in the file, and in the namespace, the extents so far end.
    end: u64,
    reach: u64,
    runs: Vec<Run>,
}

/// Where extents lie in the namespace, in order: offsets and lengths.
type Run = Vec<(u64, u64)>;

impl MapCheck {
    pub(super) fn new(room: Room) -> Self {
        let (header, rest, pieces, runs) = Default::default();
        Self { room, header, rest, pieces, end: 0, reach: 0, runs }
    }

    /// How many extents have come.
    pub(super) fn extents(&self) -> usize {
        self.pieces.len()
    }

    /// Takes what comes next.
    pub(super) fn take(&mut self, room: Room, mut bytes: &[u8]) -> Result<(), BadMap> {
        // Pieces of one map name one namespace. It may have become longer or shorter meanwhile: that counts in the end.
        if (room.nsid, room.namespace, room.block_len)
            != (self.room.nsid, self.room.namespace, self.room.block_len)
        {
            return Err(BadMap);
        }
        self.room = room;
        let first = self.pieces.len();
        while !bytes.is_empty() {
            let record = if self.header.is_none() { size_of::<MapHeader>() } else { size_of::<Extent>() };
            if self.rest.is_empty() && self.header.is_some() {
                let whole = bytes.len() / record;
                let (extents, rest) =
                    <[Extent]>::ref_from_prefix_with_elems(bytes, whole).map_err(|_| BadMap)?;
                extents.iter().try_for_each(|extent| self.take_extent(extent))?;
                self.rest.extend_from_slice(rest);
                break;
            }
            let (front, back) = bytes.split_at((record - self.rest.len()).min(bytes.len()));
            self.rest.extend_from_slice(front);
            bytes = back;
            if self.rest.len() == record {
                self.take_record()?;
            }
        }
        self.take_run(first)
    }

    /// A header or an extent that came in two pieces.
    fn take_record(&mut self) -> Result<(), BadMap> {
        let rest = std::mem::take(&mut self.rest);
        if self.header.is_some() {
            return self.take_extent(Extent::ref_from_bytes(&rest).map_err(|_| BadMap)?);
        }
        let header = MapHeader::read_from_bytes(&rest).map_err(|_| BadMap)?;
        if header.version.get() == 0 || header.reserved.get() != 0 {
            return Err(BadMap);
        }
        self.header = Some(header);
        Ok(())
    }

    fn take_extent(&mut self, extent: &Extent) -> Result<(), BadMap> {
        let header = self.header.as_ref().ok_or(BadMap)?;
        let (at, offset, len) = (extent.at.get(), extent.offset.get(), extent.len.get());
        let block = u64::from(self.room.block_len);
        let is_whole = [at, offset, len].iter().all(|part| part.is_multiple_of(block));
        if !is_whole || len == 0 || at < self.end || at >= header.len.get() {
            return Err(BadMap);
        }
        self.end = at.checked_add(len).ok_or(BadMap)?;
        self.reach = offset.checked_add(len).ok_or(BadMap)?.max(self.reach);
        self.pieces.push(Piece { at, offset, len });
        Ok(())
    }

    /// Puts the extents from one on in order. Runs that are alike in length become one: each extent is merged a few times in all, and
    /// however short the pieces are, there are few runs.
    fn take_run(&mut self, first: usize) -> Result<(), BadMap> {
        let new = self.pieces.get(first..).unwrap_or_default();
        if new.is_empty() {
            return Ok(());
        }
        let mut run: Run = new.iter().map(|piece| (piece.offset, piece.len)).collect();
        run.sort_unstable();
        are_apart(&run)?;
        while let Some(before) = self.runs.pop_if(|before| before.len() <= run.len() * 2) {
            run = merge(before, &run)?;
        }
        self.runs.push(run);
        Ok(())
    }

    /// All has come: the file that is mapped anew, or 0, and its map.
    pub(super) fn finish(mut self) -> Result<(u64, Map), BadMap> {
        let header = self.header.ok_or(BadMap)?;
        let capacity = self.room.len().ok_or(BadMap)?;
        if !self.rest.is_empty()
            || header.extents.get() as usize != self.pieces.len()
            || self.reach > capacity
        {
            return Err(BadMap);
        }
        // No byte of the namespace is two of the file's. The shortest runs are the last.
        let mut all = self.runs.pop().unwrap_or_default();
        while let Some(run) = self.runs.pop() {
            all = merge(run, &all)?;
        }
        let Room { nsid, namespace, .. } = self.room;
        let map = Map::new((nsid, namespace), header.version.get(), header.len.get(), self.pieces);
        Ok((header.file.get(), map))
    }
}

/// Both in one, if nothing of it lies upon something else.
fn merge(mut one: Run, other: &[(u64, u64)]) -> Result<Run, BadMap> {
    one.extend_from_slice(other);
    // A stable sort merges what is in order already.
    one.sort();
    are_apart(&one)?;
    Ok(one)
}

fn are_apart(run: &[(u64, u64)]) -> Result<(), BadMap> {
    let overlap = |two: &[(u64, u64)]| matches!(two, [one, next] if one.0 + one.1 > next.0);
    if run.windows(2).any(overlap) { Err(BadMap) } else { Ok(()) }
}

#[cfg(test)]
#[path = "map_check_tests.rs"]
mod tests;
