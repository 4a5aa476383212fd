//! Small functions become part of those that call them. A parser reads what precedes each of its entries in a function of a few lines;
//! calling that, with fuel and frame handed over by way of memory, would cost more than it does.
//!
//! What is made part of its caller is charged for, fails and finds its frame as if it were called.

use std::borrow::Cow;
use std::collections::BTreeMap;

use cranelift_codegen::inline::{Inline, InlineCommand};
use cranelift_codegen::ir;

use crate::isa::Instruction;
use crate::program::{Function, Program};

/// Instructions of a function that is made part of others.
const SMALL_MAX: usize = 96;
/// Instructions that are kept for this, and that a program has more because of it, at most: what compiling costs stays within its limits.
const ADDED_MAX: usize = 4 << 10;

/// Functions that can be made part of others.
pub(super) struct Small {
    /// By the variant's number, each with how many instructions it has.
    functions: BTreeMap<usize, (ir::Function, usize)>,
    /// Instructions of these.
    kept: usize,
    /// Instructions that may still be added to callers.
    left: usize,
}

impl Small {
    pub(super) const fn new() -> Self {
        Self { functions: BTreeMap::new(), kept: 0, left: ADDED_MAX }
    }

    /// Whether there is room for one more of so many instructions.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.kept + len <= ADDED_MAX
    }

    /// Keeps a variant, given by its number, of so many instructions.
    pub(super) fn keep(&mut self, variant: usize, function: ir::Function, len: usize) {
        self.kept += len;
        self.functions.insert(variant, (function, len));
    }

    /// A variant that was kept.
    pub(super) fn get(&self, variant: usize) -> Option<&ir::Function> {
        self.functions.get(&variant).map(|(function, _)| function)
    }
}

impl Inline for Small {
    fn inline(
        &mut self,
        caller: &ir::Function,
        _: ir::Inst,
        _: ir::Opcode,
        callee: ir::FuncRef,
        _: &[ir::Value],
    ) -> InlineCommand<'_> {
        let ir::ExternalName::User(name) = caller.dfg.ext_funcs[callee].name else {
            return InlineCommand::KeepCall;
        };
        let variant = caller.params.user_named_funcs()[name].index as usize;
        let Some((callee, len)) = self.functions.get(&variant) else { return InlineCommand::KeepCall };
        let Some(left) = self.left.checked_sub(*len) else { return InlineCommand::KeepCall };
        self.left = left;
        InlineCommand::Inline { callee: Cow::Borrowed(callee), visit_callee: false }
    }
}

/// Whether a function is small: short, and without loops, so that no loop gets deeper than it is written.
pub(super) fn is_small(program: &Program, function: &Function) -> bool {
    let loops = |at: usize| {
        let target = program.instructions().get(at).and_then(Instruction::target);
        target.is_some_and(|target| target <= at)
    };
    function.len() <= SMALL_MAX && !(function.begin..function.end).any(loops)
}
