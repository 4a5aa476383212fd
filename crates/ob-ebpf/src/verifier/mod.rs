//! The verifier: shows that a program stays in its memory, or says where it may not.
//!
//! ```text
//!   Program ─▶ Flow: where ways meet ─▶ function by function: states from instruction to instruction ─┬─▶ Accepted (Verified, checks)
//!                                       joined where they meet, widened where loops begin             └─▶ Refused, with the reason
//! ```
//!
//! What it knows, and why that is enough, is in `docs/programs.md`. A state at a place holds for every way there: each state that comes
//! is contained in one that was followed already, or is followed, and what is noted of an access only ever gets weaker. So what is
//! noted in the end holds.

mod branch;
mod calls;
mod explore;
mod flow;
mod memory;
mod refusal;
mod state;
#[cfg(feature = "campaign")]
mod states;
mod step;
mod value;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

pub use refusal::{Refused, Why};
#[cfg(feature = "campaign")]
pub(crate) use states::{States, verify_briefly, verify_recorded};

use crate::isa::Register;
use crate::program::{FRAME_LEN, Program, SourceLine};
use crate::verdict::{self, Access, Bounds, Variant, Verified};
use crate::world::{Entry, Region, World};
use calls::Kind;
use flow::Flow;
use memory::Touched;
use state::State;
use value::{Place, Pointer, Scalar, Value};

/// How to verify.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Whether a program is refused that would have to be checked when it runs.
    pub is_strict: bool,
    /// Instructions that are interpreted before a program is too complex.
    pub steps_max: u64,
    /// Slots of the stack that are compared and copied before it is, and a few for each step: this is its time. Where eight frames are
    /// full, a step can go through thousands.
    pub work_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { is_strict: false, steps_max: 1 << 20, work_max: 1 << 27 }
    }
}

/// A program that was accepted.
#[derive(Clone, Debug)]
pub struct Accepted {
    /// What can be run.
    pub verified: Verified,
    /// What is left to be checked when it runs, in the order of the instructions.
    pub checks: Vec<Check>,
    /// Accesses, and ranges that helpers get: those that are checked and those that are not.
    pub accesses: usize,
    /// Instructions that were interpreted.
    pub steps: u64,
    /// Slots of the stack that were compared and copied, and a few for each step.
    pub work: u64,
}

/// Something that is checked when the program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The instruction.
    pub at: usize,
    /// The argument of a helper, if it is one.
    pub argument: Option<Register>,
    /// The memory.
    pub region: Region,
    /// What it was compiled from, if that is known.
    pub line: Option<SourceLine>,
    /// What could not be shown.
    pub why: String,
}

/// Verifies a program for a hook.
///
/// # Errors
///
/// When it does what it may not, or might.
pub fn verify(program: &Arc<Program>, world: &World, options: Options) -> Result<Accepted, Box<Refused>> {
    Verifier::new(program, world, options).run()
}

/// A function that was verified: with what it may find, and what it leaves then, if it ever returns: any of these.
struct Known {
    entry: State,
    exits: Vec<State>,
}

impl Known {
    fn size(&self) -> usize {
        self.entry.size() + self.exits.iter().map(State::size).sum::<usize>()
    }
}

/// What a branch has compared, on the ways that were followed.
#[derive(Clone, Copy, Default)]
struct Compared {
    /// Words as they are: numbers, or a pointer or null with null.
    words: bool,
    /// Pointers, into this memory.
    pointers: Option<Place>,
    /// Pointers into other memory at other times.
    has_others: bool,
    /// How pointers are to be compared, if not as they are.
    comparison: Option<verdict::Comparison>,
}

struct Verifier<'a> {
    program: &'a Arc<Program>,
    world: &'a World,
    options: Options,
    flow: Flow,
    thresholds: Vec<u64>,
    steps: u64,
    work: u64,
    /// What is kept of states, in slots.
    kept: usize,
    next_id: u32,
    kinds: BTreeMap<Kind, usize>,
    variants: Vec<Variant>,
    /// What is known of each variant.
    known: Vec<Vec<Known>>,
    /// Calls under way: by which instruction, and which variant was called.
    calls: Vec<(usize, usize)>,
    checks: BTreeMap<(usize, Option<Register>), Check>,
    /// What was compared so far, by the variant and the instruction.
    compared: BTreeMap<(usize, usize), Compared>,
    /// Whether somebody reads what is told of refusals and checks.
    is_read: bool,
    /// A refusal within a function that was called.
    refused: Option<Box<Refused>>,
    /// What was held to be so where, if somebody wants to know.
    #[cfg(feature = "campaign")]
    states: Option<States>,
}

impl<'a> Verifier<'a> {
    fn new(program: &'a Arc<Program>, world: &'a World, options: Options) -> Self {
        let sections = [program.read_only().len(), program.per_call().len(), FRAME_LEN];
        let lengths = [world.scratch_len, world.data_len_max, world.table_value_len].map(u64::from);
        let lengths = lengths.into_iter().chain(sections.map(|len| len as u64));
        Self {
            program,
            world,
            options,
            flow: Flow::of(program),
            thresholds: flow::thresholds(program, lengths),
            steps: 0,
            work: 0,
            kept: 0,
            next_id: 0,
            kinds: BTreeMap::new(),
            variants: vec![Variant::new(0)],
            known: vec![Vec::new()],
            calls: Vec::new(),
            checks: BTreeMap::new(),
            compared: BTreeMap::new(),
            is_read: true,
            refused: None,
            #[cfg(feature = "campaign")]
            states: None,
        }
    }

    fn run(&mut self) -> Result<Accepted, Box<Refused>> {
        let mut entry = State::new(self.program.data_len_min());
        match self.world.entry {
            Entry::Context => entry.set(Register::R1, Value::Pointer(Pointer::to(Region::Context))),
            Entry::Memory => {
                entry.set(Register::R1, Value::Pointer(Pointer::to(Region::Scratch)));
                entry.set(Register::R2, Value::Number(Scalar::constant(self.world.scratch_len.into())));
            }
        }
        self.function(0, entry)?;
        let accesses =
            self.variants.iter().map(|variant| variant.accesses.len() + variant.ranges.len()).sum();
        let verified =
            Verified::new(Arc::clone(self.program), *self.world, std::mem::take(&mut self.variants));
        let checks = std::mem::take(&mut self.checks).into_values().collect();
        Ok(Accepted { verified, checks, accesses, steps: self.steps, work: self.work })
    }

    /// So many slots are compared or copied.
    fn spend(&mut self, slots: usize) {
        self.work = self.work.saturating_add(slots as u64);
    }

    /// The variant that is being verified.
    fn variant_now(&self) -> usize {
        self.calls.last().map_or(0, |(_, variant)| *variant)
    }

    /// Notes where an access goes, and whether it is to be checked.
    fn note_access(
        &mut self,
        at: usize,
        argument: Option<Register>,
        touched: &Touched,
        len: u64,
    ) -> Result<(), Why> {
        let Touched { place, bounds, .. } = touched;
        // A loop comes by often, and what is told of the first time is enough.
        if *bounds == Bounds::Checked && !self.checks.contains_key(&(at, argument)) {
            let why = if self.is_read { self.unproven(touched, len) } else { String::new() };
            if self.options.is_strict {
                return Err(Why::Unproven(why));
            }
            let line = self.program.line(at).cloned();
            self.checks.insert((at, argument), Check { at, argument, region: place.region, line, why });
        }
        let access = Access { region: place.region, frame: place.frame, bounds: *bounds };
        let now = self.variant_now();
        let Some(variant) = self.variants.get_mut(now) else { return Ok(()) };
        let known = match argument {
            None => variant.accesses.entry(at).or_insert(access),
            Some(register) => variant.ranges.entry((at, register)).or_insert(access),
        };
        match known.join(access) {
            Some(joined) => {
                *known = joined;
                Ok(())
            }
            None => {
                let before = Place { region: known.region, frame: known.frame };
                Err(Why::RegionUnclear(before.to_string(), place.to_string()))
            }
        }
    }

    /// What could not be shown of an access.
    fn unproven(&self, Touched { place, offset, .. }: &Touched, len: u64) -> String {
        let of = match place.region {
            Region::Data => format!("the data of {} bytes or more", self.program.data_len_min()),
            region => format!("the {} bytes of {place}", self.region_len(region)),
        };
        format!("{len} bytes at offset {offset} may not be in {of}")
    }

    /// Notes how a branch is to compare pointers: their addresses are in the order of their offsets only if they are in their memory.
    fn note_comparison(&mut self, at: usize, of: &branch::Comparison, state: &State) -> Result<(), Why> {
        let len_min = state.len_min;
        let is_near = |pointer: &Pointer| match pointer.place.region {
            Region::Stack => {
                let bounds = pointer.offset.number.signed_bounds();
                *bounds.start() >= -(FRAME_LEN as i64) && *bounds.end() <= 0
            }
            region => self.bounds(len_min, region, &pointer.offset, 0) == Bounds::Proven,
        };
        let mut seen = Compared::default();
        match of.operands(state) {
            (Value::Pointer(left), Value::Pointer(right)) => {
                let Place { region, frame } = left.place;
                seen.pointers = Some(left.place);
                if !(is_near(&left) && is_near(&right)) {
                    seen.comparison = Some(verdict::Comparison::Offsets { region, frame });
                }
            }
            (Value::Pointer(pointer), _) | (_, Value::Pointer(pointer))
                if !pointer.is_nullable && !is_near(&pointer) =>
            {
                seen.comparison = Some(verdict::Comparison::NeverNull);
            }
            _ => seen.words = true,
        }
        let now = self.variant_now();
        let before = self.compared.entry((now, at)).or_default();
        let is_other = before.pointers.zip(seen.pointers).is_some_and(|(before, seen)| before != seen);
        let has_others = before.has_others || is_other;
        let words = before.words || seen.words;
        let comparison = before.comparison.or(seen.comparison);
        let is_clear = match (before.comparison, seen.comparison) {
            (Some(before), Some(seen)) => before == seen,
            _ => true,
        };
        let is_told = comparison.is_none() || (!words && !has_others);
        // Pointers and null tests differ in how they are told.
        let is_mixed = comparison == Some(verdict::Comparison::NeverNull)
            && (before.pointers.is_some() || seen.pointers.is_some());
        *before = Compared { words, pointers: before.pointers.or(seen.pointers), has_others, comparison };
        if !is_clear || !is_told || is_mixed {
            return Err(Why::ComparisonUnclear);
        }
        if let (Some(comparison), Some(variant)) = (comparison, self.variants.get_mut(now)) {
            variant.comparisons.insert(at, comparison);
        }
        Ok(())
    }

    /// Notes which variant of a function is called.
    fn note_call(&mut self, at: usize, callee: usize) -> Result<(), Why> {
        let now = self.variant_now();
        let Some(variant) = self.variants.get_mut(now) else { return Ok(()) };
        if *variant.calls.entry(at).or_insert(callee) == callee { Ok(()) } else { Err(Why::CallUnclear) }
    }
}
