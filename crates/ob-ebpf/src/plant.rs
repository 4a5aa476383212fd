//! Known bugs that a test can switch on, to show that the tests catch them.

ob_plant::plants! {
    /// A bug that can be planted.
    pub enum Bug {
        /// A comparison that allows equality is taken for one that does not.
        BoundOffByOne = "bound-off-by-one",
        /// The upper half of a 32-bit result is not zero.
        UpperHalfKept = "upper-half-kept",
        /// The union of two sets has the known bits of the first.
        JoinForgetsBits = "join-forgets-bits",
        /// A sum's bits are unknown only where a summand's are.
        CarryForgotten = "carry-forgotten",
        /// A divisor is not zero.
        ZeroDivisorForgotten = "zero-divisor-forgotten",
        /// A number that is not the same as another is not that one's least either.
        EndExcluded = "end-excluded",
        /// What comes around a loop is not taken in.
        WidenedTooLittle = "widened-too-little",
        /// An access that ends one byte behind its memory is taken for one inside.
        RangeOffByOne = "range-off-by-one",
        /// A comparison of lower halves is taken for one of whole numbers.
        HalvesCompared = "halves-compared",
        /// Where ways meet, a number is what it was on the first of them.
        MergeKeepsOne = "merge-keeps-one",
        /// A pointer in a slot outlasts what is written over a part of it.
        StaleSpill = "stale-spill",
        /// What is computed from a number is taken for the same number.
        RelationKept = "relation-kept",
        /// A pointer to a caller's frame is counted from the function that returns it.
        FramesNotShifted = "frames-not-shifted",
        /// A pointer that is not null tells that no pointer is.
        NullCheckSpreads = "null-check-spreads",
        /// What is below zero after a subtraction keeps its bound by the data's length.
        WrappedBound = "wrapped-bound",
        /// An access to the data that was inside tells of one more byte.
        CheckTellsTooMuch = "check-tells-too-much",
        /// A store at a number's offset into the stack changes nothing.
        SmudgeForgotten = "smudge-forgotten",
        /// Compiled code takes a branch's answer for that to the same question about something else.
        AnswerKept = "answer-kept",
        /// Compiled code takes less fuel for going around a loop than it costs.
        EdgeForLess = "edge-for-less",
        /// Compiled code leaves a helper out whose result is known.
        HelperLeftOut = "helper-left-out",
    }
}
