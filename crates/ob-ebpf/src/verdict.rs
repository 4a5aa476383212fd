//! What the verifier hands on of a program that it accepts: where each access to memory goes, and which of them are still to be
//! checked.
//!
//! A [`Verified`] is a promise. Compiled code rests on it as on nothing else: an access that is called proven becomes a bare
//! instruction. So only the verifier makes one.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::isa::{Callee, Instruction, Register};
use crate::program::{FRAME_LEN, Program};
use crate::world::{Region, World};

/// A program that the verifier has accepted.
#[derive(Clone, Debug)]
pub struct Verified {
    program: Arc<Program>,
    world: World,
    variants: Vec<Variant>,
}

/// A function as it was verified, with arguments of one kind. A function whose callers bring pointers into different regions is
/// several of them; what is the same for all its callers needs only one.
///
/// An instruction that touches memory, or calls, and is not mentioned here can never be reached. Reaching it all the same ends the
/// call with a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Which of the program's functions it is.
    pub function: usize,
    /// Where loads, stores and atomic operations go, by the instruction.
    pub accesses: BTreeMap<usize, Access>,
    /// The ranges that calls of helpers hand over, by the instruction and the register with the address.
    pub ranges: BTreeMap<(usize, Register), Access>,
    /// Which variant a local call goes to, by the instruction.
    pub calls: BTreeMap<usize, usize>,
    /// Branches that compare pointers, by the instruction, if addresses would tell something else than offsets. That is so unless both
    /// pointers are shown to be in their region, or at its end. A test whether a lookup has found something is none of these.
    pub comparisons: BTreeMap<usize, Comparison>,
}

/// What a branch compares that has pointers for operands. A pointer may be moved anywhere; what is known of where addresses wrap around
/// would tell a program where memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// Pointers into the same region, which are in the order of their offsets with a sign.
    Offsets {
        /// The memory.
        region: Region,
        /// On the stack, whose frame, as in [`Access::frame`].
        frame: u8,
    },
    /// A pointer that is never null with null.
    NeverNull,
}

/// Where an access goes, or a range that is handed to a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The memory.
    pub region: Region,
    /// On the stack, whose frame: 0 for the function's own, 1 for that of its caller, and so on. 0 elsewhere.
    pub frame: u8,
    /// Whether it stays inside.
    pub bounds: Bounds,
}

/// What is known of an access's place within its region. For a range this includes that it is not longer than the helper takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bounds {
    /// It is inside, whatever happens.
    Proven,
    /// Nobody knows until it happens.
    Checked,
}

impl Access {
    /// An access to a region other than the stack, or to the function's own frame.
    #[must_use]
    pub const fn new(region: Region, bounds: Bounds) -> Self {
        Self { region, frame: 0, bounds }
    }

    /// An access to the frame of a caller, so many calls up.
    #[must_use]
    pub const fn to_frame(frame: u8, bounds: Bounds) -> Self {
        Self { region: Region::Stack, frame, bounds }
    }

    /// What holds of two accesses by the same instruction, if they go to the same memory.
    #[must_use]
    pub fn join(self, other: Self) -> Option<Self> {
        let bounds = match (self.bounds, other.bounds) {
            (Bounds::Proven, Bounds::Proven) => Bounds::Proven,
            _ => Bounds::Checked,
        };
        (self.region == other.region && self.frame == other.frame).then_some(Self { bounds, ..self })
    }
}

impl Variant {
    /// A function of which nothing is known yet.
    #[must_use]
    pub const fn new(function: usize) -> Self {
        Self {
            function,
            accesses: BTreeMap::new(),
            ranges: BTreeMap::new(),
            calls: BTreeMap::new(),
            comparisons: BTreeMap::new(),
        }
    }
}

impl Verified {
    /// What the verifier has shown. The first variant is where the program begins.
    ///
    /// Whoever calls this answers for it: compiled code does what the variants say.
    #[must_use]
    #[allow(dead_code, reason = "the verifier's; without it only tests make verdicts")]
    pub(crate) fn new(program: Arc<Program>, world: World, variants: Vec<Variant>) -> Self {
        Self { program, world, variants }
    }

    /// The same for a program whose functions are each verified once, so that every instruction is one access.
    #[must_use]
    #[allow(dead_code, reason = "the verifier's; without it only tests make verdicts")]
    pub(crate) fn of_functions(
        program: Arc<Program>,
        world: World,
        accesses: &BTreeMap<usize, Access>,
        ranges: &BTreeMap<(usize, Register), Access>,
        comparisons: &BTreeMap<usize, Comparison>,
    ) -> Self {
        let mut variants: Vec<Variant> = (0..program.functions().len()).map(Variant::new).collect();
        for (variant, function) in variants.iter_mut().zip(program.functions()) {
            let all = function.begin..function.end;
            variant.accesses = accesses.range(all.clone()).map(|(at, access)| (*at, *access)).collect();
            let begin = (function.begin, Register::R0);
            variant.ranges = ranges
                .range(begin..(function.end, Register::R0))
                .map(|(at, access)| (*at, *access))
                .collect();
            let own = comparisons.range(all.clone());
            variant.comparisons = own.map(|(at, comparison)| (*at, *comparison)).collect();
            variant.calls = all
                .filter_map(|at| match program.instructions().get(at)? {
                    Instruction::Call { callee: Callee::Local(target) } => {
                        Some((at, program.function_at(*target)))
                    }
                    _ => None,
                })
                .collect();
        }
        Self::new(program, world, variants)
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The hook that it was verified for.
    #[must_use]
    pub const fn world(&self) -> &World {
        &self.world
    }

    /// Its functions, as they were verified. The first is where the program begins.
    #[must_use]
    pub fn variants(&self) -> &[Variant] {
        &self.variants
    }

    /// How many checks are left for when it runs.
    #[must_use]
    pub fn checks(&self) -> usize {
        let accesses =
            self.variants.iter().flat_map(|variant| variant.accesses.values().chain(variant.ranges.values()));
        accesses.filter(|access| access.bounds == Bounds::Checked).count()
    }

    /// Bytes of a region, if every call has as many. Data has another length in each.
    #[must_use]
    pub fn region_len(&self, region: Region) -> Option<usize> {
        match region {
            Region::Context => Some(self.world.context_len()),
            Region::Data => None,
            Region::Scratch => Some(self.world.scratch_len as usize),
            Region::Stack => Some(FRAME_LEN),
            Region::ReadOnly => Some(self.program.read_only().len()),
            Region::PerCall => Some(self.program.per_call().len()),
            Region::TableValue => Some(self.world.table_value_len as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

    use super::*;
    use crate::isa::{self, Size};

    const WORLD: World = World::raw(64);

    fn two_functions() -> Arc<Program> {
        let load = Instruction::Load {
            size: Size::B1,
            is_signed: false,
            to: Register::R0,
            base: Register::R1,
            offset: 0,
        };
        let call = Instruction::Call { callee: Callee::Local(3) };
        let instructions = [load, call, Instruction::Exit, load, Instruction::Exit];
        Arc::new(Program::from_bytes(&isa::encode(&instructions).unwrap()).unwrap())
    }

    #[test]
    fn each_function_gets_its_own_accesses_and_calls() {
        let context = Access::new(Region::Context, Bounds::Proven);
        let data = Access::new(Region::Data, Bounds::Checked);
        let verified = Verified::of_functions(
            two_functions(),
            WORLD,
            &BTreeMap::from([(0, context), (3, data)]),
            &BTreeMap::new(),
            &BTreeMap::new(),
        );
        let [first, second] = verified.variants() else { panic!("two functions") };
        assert_eq!(first.accesses, BTreeMap::from([(0, context)]));
        assert_eq!(first.calls, BTreeMap::from([(1, 1)]));
        assert_eq!(second.accesses, BTreeMap::from([(3, data)]));
        assert_eq!(second.calls, BTreeMap::new());
        assert_eq!(verified.checks(), 1);
    }

    #[test]
    fn accesses_join_only_within_the_same_memory() {
        let proven = Access::new(Region::Data, Bounds::Proven);
        let checked = Access::new(Region::Data, Bounds::Checked);
        assert_eq!(proven.join(proven), Some(proven));
        assert_eq!(proven.join(checked), Some(checked));
        assert_eq!(proven.join(Access::new(Region::Scratch, Bounds::Proven)), None);
        let (own, callers) = (Access::to_frame(0, Bounds::Proven), Access::to_frame(1, Bounds::Proven));
        assert_eq!(own.join(callers), None);
    }
}
