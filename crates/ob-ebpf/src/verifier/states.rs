//! What the verifier held to be so at each instruction, for a campaign that compares it with what is so.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::interpreter;
use crate::isa::Register;
use crate::program::Program;
use crate::verifier::state::State;
use crate::verifier::value::{Scalar, Value};
use crate::verifier::{Accepted, Options, Refused, Verifier};
use crate::world::{Region, World};

/// States that are kept of one program. Of one that has more nothing is compared.
const STATES_MAX: usize = 4000;

/// What was held to be so, by the variant and the instruction.
#[derive(Default)]
pub(crate) struct States {
    held: BTreeMap<(usize, usize), Vec<State>>,
    count: usize,
}

/// Verifies a program, and says what was held to be so on the way.
pub(crate) fn verify_recorded(
    program: &Arc<Program>,
    world: &World,
    options: Options,
) -> (Result<Accepted, Box<Refused>>, States) {
    let mut verifier = Verifier::new(program, world, options);
    verifier.states = Some(States::default());
    let verdict = verifier.run();
    (verdict, verifier.states.unwrap_or_default())
}

impl Verifier<'_> {
    pub(super) fn record(&mut self, at: usize, state: &State) {
        let variant = self.variant_now();
        if let Some(states) = &mut self.states {
            states.count += 1;
            if states.count <= STATES_MAX {
                states.held.entry((variant, at)).or_default().push(state.clone());
            }
        }
    }
}

impl States {
    /// Whether registers before an instruction are what one of the states there says; what they say, if not.
    pub(crate) fn check(
        &self,
        place: (usize, usize),
        registers: &[interpreter::Value; Register::COUNT],
        data_len: usize,
    ) -> Result<(), String> {
        if self.count > STATES_MAX {
            return Ok(());
        }
        let held = self.held.get(&place).map_or(&[][..], Vec::as_slice);
        // The last one is the weakest, most often.
        if held.iter().rev().any(|state| is_so(state, registers, data_len)) {
            return Ok(());
        }
        let states: Vec<String> = held
            .iter()
            .map(|state| {
                let all = Register::all().map(|register| format!("{register}: {}", state.get(register)));
                format!("[at least {} bytes; {}]", state.len_min, all.collect::<Vec<_>>().join("; "))
            })
            .collect();
        Err(format!("{registers:x?} are in none of {}", states.join(", ")))
    }
}

fn is_so(state: &State, registers: &[interpreter::Value; Register::COUNT], data_len: usize) -> bool {
    let interpreter::Value::Pointer(own) = registers[Register::R10.index()] else { return false };
    let mut same: Vec<(u32, interpreter::Value)> = Vec::new();
    state.len_min as usize <= data_len
        && Register::all().zip(registers).all(|(register, found)| {
            let held = state.get(register);
            let id = held.id();
            if id != 0 {
                match same.iter().find(|(known, _)| *known == id) {
                    Some((_, other)) if other != found => return false,
                    Some(_) => {}
                    None => same.push((id, *found)),
                }
            }
            match (held, found) {
                (Value::Uninitialised, _) => true,
                (Value::Number(scalar), interpreter::Value::Number(number)) => {
                    is_one_of(&scalar, *number, data_len)
                }
                (Value::Pointer(held), interpreter::Value::Pointer(found)) => {
                    let is_stack = found.region == Region::Stack;
                    let frame = if is_stack { own.frame.wrapping_sub(found.frame) } else { 0 };
                    (held.place.region, held.place.frame) == (found.region, frame)
                        && is_one_of(&held.offset, found.offset as u64, data_len)
                }
                (Value::Pointer(held), interpreter::Value::Number(0)) => held.is_nullable,
                _ => false,
            }
        })
}

fn is_one_of(scalar: &Scalar, number: u64, data_len: usize) -> bool {
    let end = |at_most: i64| data_len as i128 + i128::from(at_most);
    let is_bounded = scalar.at_most.is_none_or(|at_most| i128::from(number) <= end(at_most));
    let is_length =
        !scalar.is_length || scalar.at_most.is_some_and(|at_most| i128::from(number) == end(at_most));
    scalar.number.contains(number) && is_bounded && is_length
}
