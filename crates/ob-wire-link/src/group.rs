//! What a group's region holds: two rings, and behind them the areas for bulk (`docs/wire/ring.md`).

use ob_core::RegionId;

use crate::ring::{RingSpec, RingSpecError};

/// Areas begin at, and are, multiples of this: so that devices can be pointed at them.
pub const AREA_UNIT: u64 = 4096;
/// Largest area.
pub const AREA_MAX: u64 = 64 << 30;

/// What a host asks for: bytes of each part of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSizes {
    /// Of the request ring.
    pub request: u32,
    /// Of the response ring.
    pub response: u32,
    /// Of the area that the card writes; 0 for none.
    pub card_area: u64,
    /// Of the area that the host writes; 0 for none.
    pub host_area: u64,
}

impl GroupSizes {
    /// Two rings and no areas.
    pub fn rings(request: u32, response: u32) -> Self {
        Self { request, response, card_area: 0, host_area: 0 }
    }

    /// Whether no part is larger than that of another group.
    pub fn fits(&self, other: &Self) -> bool {
        self.request <= other.request
            && self.response <= other.response
            && self.card_area <= other.card_area
            && self.host_area <= other.host_area
    }
}

/// A part of a group's region that one half writes and the other reads. Can hold only legal values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AreaSpec {
    start: u64,
    len: u64,
}

impl AreaSpec {
    fn new(start: u64, len: u64) -> Result<Self, RingSpecError> {
        let is_legal = len.is_multiple_of(AREA_UNIT) && len <= AREA_MAX;
        if is_legal { Ok(Self { start, len }) } else { Err(RingSpecError::Area(len)) }
    }

    /// Bytes of it; 0 if there is none.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where in the region `len` bytes from `at` on lie, if they lie inside the area.
    pub fn place(&self, at: u64, len: u64) -> Option<u64> {
        let end = at.checked_add(len)?;
        (end <= self.len).then(|| self.start + at)
    }

    /// Where in the area an offset of the region is; only for offsets that [`AreaSpec::place`] gave.
    pub fn position(&self, offset: u64) -> u64 {
        offset.saturating_sub(self.start)
    }

    fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// A group as both halves know it. Can hold only legal values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupSpec {
    /// Host to card.
    pub request: RingSpec,
    /// Card to host.
    pub response: RingSpec,
    /// What the card writes.
    pub card_area: AreaSpec,
    /// What the host writes.
    pub host_area: AreaSpec,
    /// The most bytes of one transfer.
    pub transfer_max: u32,
    /// Bytes of the region.
    pub region_len: u64,
}

impl GroupSpec {
    /// A group of these sizes in a region of its own.
    pub fn new(region: RegionId, sizes: GroupSizes, transfer_max: u32) -> Result<Self, RingSpecError> {
        let (request, response, rings) =
            RingSpec::group(region, sizes.request, sizes.response, transfer_max)?;
        let card_area = AreaSpec::new(rings, sizes.card_area)?;
        let host_area = AreaSpec::new(card_area.end(), sizes.host_area)?;
        Ok(Self { request, response, card_area, host_area, transfer_max, region_len: host_area.end() })
    }

    /// Which region it is.
    pub fn region(&self) -> RegionId {
        self.request.region
    }

    /// What was asked for.
    pub fn sizes(&self) -> GroupSizes {
        GroupSizes {
            request: self.request.capacity(),
            response: self.response.capacity(),
            card_area: self.card_area.len,
            host_area: self.host_area.len,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZES: GroupSizes =
        GroupSizes { request: 4096, response: 8192, card_area: 1 << 20, host_area: 12288 };

    #[test]
    fn parts_lie_one_behind_the_other() {
        let spec = GroupSpec::new(RegionId(1), SIZES, 2 << 20).unwrap();
        assert_eq!(spec.sizes(), SIZES);
        assert_eq!(spec.card_area.place(0, 1), Some(4096 + 4096 + 8192));
        assert_eq!(spec.host_area.place(0, 1), Some(4096 + 4096 + 8192 + (1 << 20)));
        assert_eq!(spec.region_len, 4096 + 4096 + 8192 + (1 << 20) + 12288);
        let plain = GroupSpec::new(RegionId(1), GroupSizes::rings(4096, 8192), 2 << 20).unwrap();
        assert!(plain.card_area.is_empty() && plain.host_area.is_empty());
        assert_eq!(plain.region_len, 16384);
        assert_eq!(plain.card_area.place(0, 1), None);
    }

    #[test]
    fn areas_that_cannot_be_are_refused() {
        for area in [1, 4095, 4097, AREA_MAX + AREA_UNIT, u64::MAX, u64::MAX - 4095] {
            for sizes in [GroupSizes { card_area: area, ..SIZES }, GroupSizes { host_area: area, ..SIZES }] {
                let refused = GroupSpec::new(RegionId(1), sizes, 2 << 20);
                assert_eq!(refused, Err(RingSpecError::Area(area)));
            }
        }
        let largest = GroupSizes { card_area: AREA_MAX, host_area: AREA_MAX, ..SIZES };
        assert!(GroupSpec::new(RegionId(1), largest, 2 << 20).is_ok());
    }

    proptest! {
        #[test]
        fn a_place_lies_inside_or_is_refused(at: u64, len in 0u64..1 << 21) {
            let spec = GroupSpec::new(RegionId(1), SIZES, 2 << 20).unwrap();
            for at in [at, at % (2 << 20)] {
                match spec.card_area.place(at, len) {
                    Some(offset) => {
                        prop_assert!(at + len <= SIZES.card_area);
                        prop_assert_eq!(spec.card_area.position(offset), at);
                        prop_assert!(offset >= 16384 && offset + len <= spec.region_len - SIZES.host_area);
                    }
                    None => prop_assert!(at.checked_add(len).is_none_or(|end| end > SIZES.card_area)),
                }
            }
        }
    }
}
