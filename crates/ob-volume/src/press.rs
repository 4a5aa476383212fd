//! What the host makes of payloads that it takes, where placement is `host`: records' payloads, as they are stored.

use ob_ring::AreaError;
use ob_split::engine::{Effort, SoftEngine};

use crate::plans::{ArgumentsError, GivenPiece, PIECE_LEN, PostedPlan};
use crate::tier::Press;

/// Why a payload could not be made what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PressError {
    /// It does not lie in the areas.
    #[error("a payload lies outside of the areas: {0:?}")]
    Area(AreaError),
    /// What was made of it no card would take.
    #[error("{0}")]
    Arguments(#[from] ArgumentsError),
}

/// Compresses payloads by the host's processor, with the same library as the card's engine.
pub struct Presser {
    engine: SoftEngine,
    plain: Box<[u8]>,
    packed: Box<[u8]>,
}

impl Default for Presser {
    fn default() -> Self {
        let memory = || vec![0; PIECE_LEN as usize].into_boxed_slice();
        Self { engine: SoftEngine::new(1), plain: memory(), packed: memory() }
    }
}

impl Presser {
    /// Makes of a payload what is stored; the plan that writes it. Bytes come out of the card's area, and go into the host's.
    ///
    /// # Errors
    ///
    /// When its bytes do not lie where they should.
    pub fn press(
        &mut self,
        press: &Press,
        copy_out: impl Fn(u64, &mut [u8]) -> Result<(), AreaError>,
        copy_in: impl Fn(u64, &[u8]) -> Result<(), AreaError>,
    ) -> Result<PostedPlan, PressError> {
        let mut at = press.into;
        let mut given = Vec::with_capacity(press.pieces.len());
        for (from, len) in &press.pieces {
            let plain = self.plain.get_mut(..*len as usize).ok_or(PressError::Area(AreaError::OutOfArea))?;
            copy_out(*from, plain).map_err(PressError::Area)?;
            let effort = Effort::new(press.effort).filter(|_| press.effort > 0);
            let packed = effort.and_then(|effort| {
                let len = self.engine.compress(effort, plain, &mut self.packed).ok()?;
                self.packed.get(..len as usize)
            });
            let (stored, is_lz4) = packed.map_or((&*plain, false), |packed| (packed, true));
            copy_in(at, stored).map_err(PressError::Area)?;
            given.push(GivenPiece { at, stored: stored.len() as u32, is_lz4, is_back: false });
            at += u64::from(*len);
        }
        Ok(press.plan(&given)?)
    }
}
