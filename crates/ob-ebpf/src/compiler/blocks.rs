//! Where the blocks of a function begin, and who goes there.
//!
//! Compilers choose between values by a branch over one instruction, and behind that ask again what they have just asked:
//!
//! ```text
//!      if r2 > r6 goto over                  if r2 > r6 goto elsewhere
//!      r7 = r5                               r7 = r5
//!   over:                         becomes
//!      if r2 > r6 goto elsewhere
//!      r9 += 1                               r9 += 1
//! ```
//!
//! Who went there by the first branch takes the second one, too, and who did not does not.

use std::collections::BTreeMap;

use cranelift_codegen::ir::{Block, Value};
use cranelift_frontend::FunctionBuilder;

use crate::isa::{Instruction, Operand, Test, Width};
use crate::plant::{Bug, is_planted};
use crate::program::Function;
use crate::verdict::{Comparison, Variant};

/// How often a question is skipped on one way: what that costs does not grow with the square of a program's length.
const ASKED_MAX: usize = 8;

/// Where blocks begin.
pub(super) struct Blocks {
    by_instruction: BTreeMap<usize, Begin>,
}

/// A block's begin.
pub(super) struct Begin {
    pub(super) block: Block,
    /// Whether all that goes there is known when it begins.
    pub(super) is_only_ahead: bool,
    /// How many jumps and branches go there, a branch that is not taken included.
    pub(super) ways: usize,
}

impl Blocks {
    pub(super) fn new(
        builder: &mut FunctionBuilder<'_>,
        instructions: &[Instruction],
        variant: &Variant,
        function: &Function,
    ) -> Self {
        let mut by_instruction = BTreeMap::new();
        let mut add = |at: usize, is_ahead: bool| {
            let new = || Begin { block: builder.create_block(), is_only_ahead: true, ways: 0 };
            let begin: &mut Begin = by_instruction.entry(at).or_insert_with(new);
            begin.is_only_ahead &= is_ahead;
            begin.ways += 1;
        };
        add(function.begin, true);
        for at in function.begin..function.end {
            let Some(instruction) = instructions.get(at) else { break };
            if let Some((_, target)) = way(instructions, variant, at) {
                add(target, target > at);
                if instruction.falls_through() {
                    add(at + 1, true);
                }
            }
        }
        Self { by_instruction }
    }

    pub(super) fn begin(&self, at: usize) -> Option<&Begin> {
        self.by_instruction.get(&at)
    }

    pub(super) fn get(&self, at: usize) -> Option<Block> {
        self.begin(at).map(|begin| begin.block)
    }
}

/// From where to where a jump goes, or a branch that is taken.
pub(super) fn way(instructions: &[Instruction], variant: &Variant, at: usize) -> Option<(usize, usize)> {
    let question = |at: usize| match instructions.get(at)? {
        Instruction::Branch { width, test, left, right, .. } => {
            Some((*width, *test, *left, *right, variant.comparisons.get(&at)))
        }
        _ => None,
    };
    let (mut from, mut target) = (at, instructions.get(at)?.target()?);
    let asked = question(at);
    for _ in 0..ASKED_MAX {
        // Backwards costs fuel.
        if target <= from || asked.is_none() || question(target) != asked {
            break;
        }
        (from, target) = (target, instructions.get(target)?.target()?);
    }
    Some((from, target))
}

/// A question that a branch asks, by the values that it asks about: as long as these are the same, so is the answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Question {
    pub(super) width: Width,
    pub(super) test: Test,
    pub(super) left: Value,
    /// With what is in the register, if it is one.
    pub(super) right: (Operand, Option<Value>),
    pub(super) comparison: Option<Comparison>,
}

impl Question {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let known = if is_planted(Bug::AnswerKept) { Self { left: other.left, ..*self } } else { *self };
        known == *other
    }
}
