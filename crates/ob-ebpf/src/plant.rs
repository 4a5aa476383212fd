//! Known bugs that a test can switch on, to show that the tests catch them.
//!
//! With the feature `planted-bugs` the environment variable `OB_PLANT` names the one that is on; without the
//! feature all of this is `false` at compile time.

/// A bug that can be planted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// `bound-off-by-one`: a comparison that allows equality is taken for one that does not.
    BoundOffByOne,
    /// `upper-half-kept`: the upper half of a 32-bit result is not zero.
    UpperHalfKept,
    /// `join-forgets-bits`: the union of two sets has the known bits of the first.
    JoinForgetsBits,
    /// `carry-forgotten`: a sum's bits are unknown only where a summand's are.
    CarryForgotten,
    /// `zero-divisor-forgotten`: a divisor is not zero.
    ZeroDivisorForgotten,
    /// `end-excluded`: a number that is not the same as another is not that one's least either.
    EndExcluded,
    /// `widened-too-little`: what comes around a loop is not taken in.
    WidenedTooLittle,
    /// `range-off-by-one`: an access that ends one byte behind its memory is taken for one inside.
    RangeOffByOne,
    /// `halves-compared`: a comparison of lower halves is taken for one of whole numbers.
    HalvesCompared,
    /// `merge-keeps-one`: where ways meet, a number is what it was on the first of them.
    MergeKeepsOne,
    /// `stale-spill`: a pointer in a slot outlasts what is written over a part of it.
    StaleSpill,
    /// `relation-kept`: what is computed from a number is taken for the same number.
    RelationKept,
    /// `frames-not-shifted`: a pointer to a caller's frame is counted from the function that returns it.
    FramesNotShifted,
    /// `null-check-spreads`: a pointer that is not null tells that no pointer is.
    NullCheckSpreads,
    /// `wrapped-bound`: what is below zero after a subtraction keeps its bound by the data's length.
    WrappedBound,
    /// `check-tells-too-much`: an access to the data that was inside tells of one more byte.
    CheckTellsTooMuch,
    /// `smudge-forgotten`: a store at a number's offset into the stack changes nothing.
    SmudgeForgotten,
    /// `answer-kept`: compiled code takes a branch's answer for that to the same question about something else.
    AnswerKept,
    /// `edge-for-less`: compiled code takes less fuel for going around a loop than it costs.
    EdgeForLess,
}

/// Whether a bug is planted.
#[cfg(feature = "planted-bugs")]
pub fn is_planted(bug: Bug) -> bool {
    use std::sync::OnceLock;
    static PLANTED: OnceLock<Option<Bug>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| match std::env::var("OB_PLANT").ok()?.as_str() {
        "bound-off-by-one" => Some(Bug::BoundOffByOne),
        "upper-half-kept" => Some(Bug::UpperHalfKept),
        "join-forgets-bits" => Some(Bug::JoinForgetsBits),
        "carry-forgotten" => Some(Bug::CarryForgotten),
        "zero-divisor-forgotten" => Some(Bug::ZeroDivisorForgotten),
        "end-excluded" => Some(Bug::EndExcluded),
        "widened-too-little" => Some(Bug::WidenedTooLittle),
        "range-off-by-one" => Some(Bug::RangeOffByOne),
        "halves-compared" => Some(Bug::HalvesCompared),
        "merge-keeps-one" => Some(Bug::MergeKeepsOne),
        "stale-spill" => Some(Bug::StaleSpill),
        "relation-kept" => Some(Bug::RelationKept),
        "frames-not-shifted" => Some(Bug::FramesNotShifted),
        "null-check-spreads" => Some(Bug::NullCheckSpreads),
        "wrapped-bound" => Some(Bug::WrappedBound),
        "check-tells-too-much" => Some(Bug::CheckTellsTooMuch),
        "smudge-forgotten" => Some(Bug::SmudgeForgotten),
        "answer-kept" => Some(Bug::AnswerKept),
        "edge-for-less" => Some(Bug::EdgeForLess),
        _ => None,
    });
    *planted == Some(bug)
}

/// Whether a bug is planted: never, in this build.
#[cfg(not(feature = "planted-bugs"))]
#[inline]
pub const fn is_planted(_bug: Bug) -> bool {
    false
}
