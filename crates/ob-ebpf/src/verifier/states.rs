//! What the verifier held to be so at each instruction, for a campaign that compares it with what is so.

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
    held: Vec<Held>,
    /// Which of them are of a variant and an instruction, in their order.
    places: Vec<(usize, usize, usize)>,
    count: usize,
}

/// What was held to be so at one place, but for what is on the stack.
struct Held {
    registers: [Value; Register::COUNT],
    len_min: u32,
}

/// Verifies a program for somebody who wants to know whether and why it is refused, and nothing that takes long to tell.
pub(crate) fn verify_briefly(
    program: &Arc<Program>,
    world: &World,
    options: Options,
) -> Result<Accepted, Box<Refused>> {
    let mut verifier = Verifier::new(program, world, options);
    verifier.is_read = false;
    verifier.run()
}

/// Verifies a program as briefly, and says what was held to be so on the way, in place of what `states` said before.
pub(crate) fn verify_recorded(
    program: &Arc<Program>,
    world: &World,
    options: Options,
    states: &mut States,
) -> Result<Accepted, Box<Refused>> {
    let mut verifier = Verifier::new(program, world, options);
    let mut empty = std::mem::take(states);
    empty.held.clear();
    empty.places.clear();
    empty.count = 0;
    (verifier.is_read, verifier.states) = (false, Some(empty));
    let verdict = verifier.run();
    *states = verifier.states.unwrap_or_default();
    states.places.sort_unstable();
    verdict
}

impl Verifier<'_> {
    pub(super) fn record(&mut self, at: usize, state: &State) {
        let variant = self.variant_now();
        if let Some(states) = &mut self.states {
            states.count += 1;
            if states.count <= STATES_MAX {
                states.places.push((variant, at, states.held.len()));
                let mut registers = [Value::Uninitialised; Register::COUNT];
                for (place, register) in registers.iter_mut().zip(Register::all()) {
                    *place = state.get(register);
                }
                states.held.push(Held { registers, len_min: state.len_min });
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
        let begin = self.places.partition_point(|(variant, at, _)| (*variant, *at) < place);
        let behind = self.places.partition_point(|(variant, at, _)| (*variant, *at) <= place);
        let places = self.places.get(begin..behind).unwrap_or_default();
        let held = places.iter().filter_map(|(.., number)| self.held.get(*number));
        // The last one is the weakest, most often.
        if held.clone().rev().any(|held| held.is_so(registers, data_len)) {
            return Ok(());
        }
        let states: Vec<String> = held
            .map(|held| {
                let all = Register::all().zip(&held.registers);
                let all = all.map(|(register, value)| format!("{register}: {value}"));
                format!("[at least {} bytes; {}]", held.len_min, all.collect::<Vec<_>>().join("; "))
            })
            .collect();
        Err(format!("{registers:x?} are in none of {}", states.join(", ")))
    }
}

impl Held {
    fn is_so(&self, registers: &[interpreter::Value; Register::COUNT], data_len: usize) -> bool {
        let interpreter::Value::Pointer(own) = registers[Register::R10.index()] else { return false };
        let mut same: Vec<(u32, interpreter::Value)> = Vec::new();
        self.len_min as usize <= data_len
            && self.registers.iter().zip(registers).all(|(held, found)| {
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
                        is_one_of(scalar, *number, data_len)
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
}

fn is_one_of(scalar: &Scalar, number: u64, data_len: usize) -> bool {
    let end = |at_most: i64| data_len as i128 + i128::from(at_most);
    let is_bounded = scalar.at_most.is_none_or(|at_most| i128::from(number) <= end(at_most));
    let is_length =
        !scalar.is_length || scalar.at_most.is_some_and(|at_most| i128::from(number) == end(at_most));
    scalar.number.contains(number) && is_bounded && is_length
}
