//! Makes a program that was found as short as it can be.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::campaign::Plan;
use crate::campaign::generate::Draft;
use crate::campaign::input::{Input, Machines};
use crate::campaign::oracle::{self, Breach};
use crate::campaign::setting::Setting;
use crate::isa::{Instruction, Operand};
use crate::program::Program;
use crate::verifier::{self, States};

/// Takes out what is not needed for the same sort of breach by the same call.
pub(super) fn shrink(
    machines: &mut Machines,
    plan: Plan,
    (mut draft, mut smallest): (Draft, Arc<Program>),
    input: &Input,
    mut breach: Breach,
) -> (Arc<Program>, Breach) {
    loop {
        let mut is_smaller = false;
        for at in (0..draft.instructions.len()).rev() {
            for candidate in candidates(&draft, at).into_iter().flatten() {
                let Some(program) = candidate.program() else { continue };
                let tried =
                    AssertUnwindSafe(|| breach_of(machines, (plan, draft.setting), &program, input, &breach));
                match catch_unwind(tried).unwrap_or(Some(Breach::Panicked)) {
                    Some(found) if found.is_like(&breach) => {
                        (smallest, breach, draft, is_smaller) = (program, found, candidate, true);
                        break;
                    }
                    _ => {}
                }
            }
        }
        if !is_smaller {
            return (smallest, breach);
        }
    }
}

/// A program without an instruction, or with a simpler one.
fn candidates(draft: &Draft, at: usize) -> [Option<Draft>; 2] {
    let mut shorter = draft.clone();
    shorter.remove(at);
    let mut simpler = draft.clone();
    let is_simpler = match simpler.instructions.get_mut(at) {
        Some(Instruction::Move { from, .. } | Instruction::Store { from, .. }) => {
            let is_register = matches!(from, Operand::Register(_));
            *from = Operand::Immediate(0);
            is_register
        }
        _ => false,
    };
    [Some(shorter), is_simpler.then_some(simpler)]
}

/// What a program does that it may not, in one call.
fn breach_of(
    machines: &mut Machines,
    (plan, setting): (Plan, Setting),
    program: &Arc<Program>,
    input: &Input,
    wanted: &Breach,
) -> Option<Breach> {
    let Setting { world, options } = setting;
    let mut states = States::default();
    let accepted = verifier::verify_recorded(program, world, options, &mut states).ok()?;
    if input.data_len() < program.data_len_min() as usize {
        return None;
    }
    let needs_states = matches!(wanted, Breach::Elsewhere { .. } | Breach::RuledOut { .. });
    let states = needs_states.then_some(&states);
    if let Err(breach) = oracle::interpret(machines, &accepted.verified, states, input) {
        return Some(breach);
    }
    if matches!(wanted, Breach::Compiled(_)) && plan.compiled_share > 0 {
        let compared = oracle::compiled(machines, &accepted.verified, std::slice::from_ref(input));
        return compared.err().map(|(_, breach)| breach);
    }
    None
}
