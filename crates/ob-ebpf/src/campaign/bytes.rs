//! Any bytes as a program, instead of one from a seed: what a fuzzer finds out to be worth trying.

use std::sync::Arc;

use super::input::Input;
use super::oracle::{self, Breach, Found};
use super::random::Random;
use super::setting::Setting;
use super::{Campaign, is_said_again};
use crate::program::Program;
use crate::text::{Listing, disassemble};
use crate::verifier;

impl Campaign {
    /// Tries bytes as the instructions of a program, for each hook. Where it is accepted, it runs on `data`, interpreted and
    /// compiled, and as the plan says on inputs at the edges. What it did that it may not is given back, with a seed that
    /// means nothing.
    ///
    /// (What panics here panics: whoever fuzzes wants to see that.)
    pub fn run_bytes(&mut self, instructions: &[u8], data: &[u8]) -> Option<Box<Found>> {
        self.tally.generated += 1;
        let Ok(program) = Program::from_bytes(instructions).map(Arc::new) else {
            self.tally.shapeless += 1;
            return None;
        };
        self.machines.give(data);
        let found =
            Setting::all().find_map(|setting| Some((setting, self.try_bytes(setting, &program, data)?)));
        let (setting, failed) = found?;
        let (input, breach) = *failed;
        let text = disassemble(&program, Listing { has_lines: false, has_data: true });
        let Setting { world, options } = setting;
        let (world, is_strict) = (world.name, options.is_strict);
        Some(Box::new(Found { seed: 0, breach, world, is_strict, text, input: input.to_string() }))
    }

    fn try_bytes(
        &mut self,
        setting: Setting,
        program: &Arc<Program>,
        data: &[u8],
    ) -> Option<Box<(Input, Breach)>> {
        let Setting { world, options } = setting;
        let given = Input::given(program, world, data.len());
        let accepted = match verifier::verify_recorded(program, world, options, &mut self.states) {
            Ok(accepted) => accepted,
            Err(refused) => {
                self.tally.note_refused(&refused.why);
                return None;
            }
        };
        self.tally.note_accepted(&accepted, options.is_strict);
        if accepted.steps > options.steps_max {
            return Some(Box::new((given, Breach::Unbounded { steps: accepted.steps })));
        }
        if !is_said_again(setting, program, &accepted) {
            return Some(Box::new((given, Breach::Verdicts)));
        }
        let mut random = Random::new(data.len() as u64);
        let mut inputs = vec![given];
        inputs.extend((0..self.plan.runs).map(|number| Input::new(&mut random, program, world, number)));
        for input in &inputs {
            self.tally.runs += 1;
            match oracle::interpret(&mut self.machines, &accepted.verified, Some(&self.states), input) {
                Ok(outcome) => self.tally.note_outcome(outcome),
                Err(breach) => return Some(Box::new((*input, breach))),
            }
        }
        self.tally.compiled += 1;
        oracle::compiled(&mut self.machines, &accepted.verified, &inputs).err().map(Box::new)
    }
}
