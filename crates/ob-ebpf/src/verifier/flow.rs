//! How execution flows through a program: where ways meet, where loops begin, and which registers matter where.

use crate::isa::{AtomicOp, Callee, Instruction, Operand, Register};
use crate::program::Program;
use crate::world::Helper;

/// Registers, as bits.
type Registers = u16;

const ARGUMENTS: Registers = 0b11_1110;
const RESULT: Registers = 1;

/// What is known of a program's ways before anything is interpreted.
pub(crate) struct Flow {
    /// What is read before it is written, from each instruction on.
    live: Vec<Registers>,
    meets: Vec<Meeting>,
}

/// Whether ways meet at an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meeting {
    /// They do not.
    No,
    /// Several ways come here, or one from below that does not come from here.
    Join,
    /// One comes from below, and goes on there from here. Every loop has one such place at least, because no loop goes only downwards.
    Loop,
}

impl Flow {
    pub(crate) fn of(program: &Program) -> Self {
        let instructions = program.instructions();
        let mut ways = vec![0u32; instructions.len()];
        let mut meets = vec![Meeting::No; instructions.len()];
        let cycles = cycles(program);
        for (at, instruction) in instructions.iter().enumerate() {
            for next in successors(at, instruction).into_iter().flatten() {
                let (Some(ways), Some(meets)) = (ways.get_mut(next), meets.get_mut(next)) else { continue };
                *ways += 1;
                if next <= at && cycles.get(next) == cycles.get(at) {
                    *meets = Meeting::Loop;
                } else if (next <= at || *ways > 1) && *meets == Meeting::No {
                    *meets = Meeting::Join;
                }
            }
        }
        let mut flow = Self { live: vec![0; instructions.len()], meets };
        for function in in_order_of_calls(program) {
            flow.find_live(program, function);
        }
        flow
    }

    pub(crate) fn meeting(&self, at: usize) -> Meeting {
        self.meets.get(at).copied().unwrap_or(Meeting::No)
    }

    /// The registers whose values matter at an instruction.
    pub(crate) fn live(&self, at: usize) -> Registers {
        self.live.get(at).copied().unwrap_or(Registers::MAX)
    }

    /// The arguments that a function reads.
    pub(crate) fn arguments(&self, begin: usize) -> Registers {
        self.live(begin) & ARGUMENTS
    }

    fn find_live(&mut self, program: &Program, function: usize) {
        let Some(function) = program.functions().get(function) else { return };
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for at in (function.begin..function.end).rev() {
                let Some(instruction) = program.instructions().get(at) else { continue };
                let behind = successors(at, instruction).into_iter().flatten();
                let behind = behind.fold(0, |live, next| live | self.live.get(next).copied().unwrap_or(0));
                let (reads, writes) = self.effects(instruction);
                let live = (behind & !writes) | reads;
                if let Some(known) = self.live.get_mut(at)
                    && *known != live
                {
                    *known = live;
                    changed = true;
                }
            }
        }
    }

    /// The registers that an instruction reads and those that it writes.
    fn effects(&self, instruction: &Instruction) -> (Registers, Registers) {
        let bit = |register: Register| 1 << register.index();
        let of = |operand: Operand| match operand {
            Operand::Register(register) => bit(register),
            Operand::Immediate(_) => 0,
        };
        let written = instruction.written().map_or(0, bit);
        let reads = match *instruction {
            Instruction::Alu { to, from, .. } => bit(to) | of(from),
            Instruction::Negate { to, .. } | Instruction::Bytes { to, .. } => bit(to),
            Instruction::Move { from, .. } => of(from),
            Instruction::MoveSigned { from, .. } => bit(from),
            Instruction::LoadWide { .. } | Instruction::Jump { .. } => 0,
            Instruction::Load { base, .. } => bit(base),
            Instruction::Store { base, from, .. } => bit(base) | of(from),
            Instruction::Atomic { op, base, from, .. } => {
                let compared = if op == AtomicOp::CompareExchange { RESULT } else { 0 };
                bit(base) | bit(from) | compared
            }
            Instruction::Branch { left, right, .. } => bit(left) | of(right),
            Instruction::Call { callee: Callee::Local(target) } => self.arguments(target),
            Instruction::Call { callee: Callee::Helper(number) } => {
                let count = Helper::of_number(number).map_or(5, |helper| helper.signature().arguments.len());
                ((1 << (count + 1)) - 1) & ARGUMENTS
            }
            Instruction::Exit => RESULT,
        };
        let lost = if matches!(instruction, Instruction::Call { .. }) { ARGUMENTS } else { 0 };
        (reads, written | lost)
    }
}

/// Where execution may go on.
pub(crate) fn successors(at: usize, instruction: &Instruction) -> [Option<usize>; 2] {
    [instruction.falls_through().then_some(at + 1), instruction.target()]
}

/// A number for each instruction; two have the same if execution can go from each of them to the other. A compiler that shares the end of a
/// function puts it anywhere, and so a jump upwards is not always a loop.
fn cycles(program: &Program) -> Vec<usize> {
    let instructions = program.instructions();
    // Where nothing goes upwards there is no loop.
    if !instructions
        .iter()
        .enumerate()
        .any(|(at, instruction)| instruction.target().is_some_and(|to| to <= at))
    {
        return (0..instructions.len()).collect();
    }
    let ways = |at: usize| instructions.get(at).map_or([None; 2], |instruction| successors(at, instruction));
    // First all instructions, each behind those that it leads to; then, from the last on, what leads to each.
    let (mut order, mut is_seen) = (Vec::new(), vec![false; instructions.len()]);
    let mut stack = Vec::new();
    for first in 0..instructions.len() {
        stack.push((first, 0));
        while let Some((at, way)) = stack.last_mut() {
            if *way == 0 && is_seen.get_mut(*at).is_none_or(|seen| std::mem::replace(seen, true)) {
                stack.pop();
                continue;
            }
            let next = ways(*at).get(*way).copied();
            *way += 1;
            match next {
                Some(Some(next)) => stack.push((next, 0)),
                Some(None) => {}
                None => {
                    order.push(*at);
                    stack.pop();
                }
            }
        }
    }
    let before = Before::of(instructions);
    let mut cycles = vec![usize::MAX; instructions.len()];
    let mut stack = Vec::new();
    for first in order.into_iter().rev() {
        stack.push(first);
        while let Some(at) = stack.pop() {
            let Some(cycle) = cycles.get_mut(at).filter(|cycle| **cycle == usize::MAX) else { continue };
            *cycle = first;
            stack.extend(before.ways_to(at));
        }
    }
    cycles
}

/// Where execution comes from, for each instruction: all in one list, those of an instruction one behind the other.
struct Before {
    from: Vec<usize>,
    /// Where in the list those of an instruction begin.
    begins: Vec<usize>,
}

impl Before {
    fn of(instructions: &[Instruction]) -> Self {
        let ways = || {
            let all = instructions.iter().enumerate();
            all.flat_map(|(at, instruction)| successors(at, instruction).map(|next| (at, next)))
                .filter_map(|(at, next)| Some((at, next.filter(|next| *next < instructions.len())?)))
        };
        let mut begins = vec![0; instructions.len() + 1];
        for (_, next) in ways() {
            if let Some(count) = begins.get_mut(next + 1) {
                *count += 1;
            }
        }
        let mut sum = 0;
        for begin in &mut begins {
            sum += *begin;
            *begin = sum;
        }
        let (mut from, mut ends) = (vec![0; sum], begins.clone());
        for (at, next) in ways() {
            if let Some(end) = ends.get_mut(next)
                && let Some(place) = from.get_mut(*end)
            {
                (*place, *end) = (at, *end + 1);
            }
        }
        Self { from, begins }
    }

    fn ways_to(&self, at: usize) -> &[usize] {
        let ends = self.begins.get(at).zip(self.begins.get(at + 1));
        ends.and_then(|(begin, end)| self.from.get(*begin..*end)).unwrap_or_default()
    }
}

/// All functions, each behind those that it calls.
fn in_order_of_calls(program: &Program) -> Vec<usize> {
    let (mut order, mut is_seen) = (Vec::new(), vec![false; program.functions().len()]);
    for first in 0..program.functions().len() {
        // Functions under way, each with the instruction to go on with.
        let mut stack = Vec::new();
        let begin = |function: usize| (function, program.functions().get(function).map_or(0, |f| f.begin));
        if !is_seen.get(first).copied().unwrap_or(true) {
            stack.push(begin(first));
        }
        while let Some((function, at)) = stack.last_mut() {
            if let Some(seen) = is_seen.get_mut(*function) {
                *seen = true;
            }
            if program.functions().get(*function).is_none_or(|f| *at >= f.end) {
                order.push(*function);
                stack.pop();
                continue;
            }
            let here = *at;
            *at += 1;
            if let Some(Instruction::Call { callee: Callee::Local(target) }) =
                program.instructions().get(here)
            {
                let callee = program.function_at(*target);
                if !is_seen.get(callee).copied().unwrap_or(true) {
                    stack.push(begin(callee));
                }
            }
        }
    }
    order
}

/// Constants at which bounds that keep growing stop first.
pub(crate) fn thresholds(program: &Program, lengths: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut found: Vec<u64> = lengths.into_iter().collect();
    for instruction in program.instructions() {
        let constant = match *instruction {
            Instruction::Branch { right: Operand::Immediate(constant), .. } => constant,
            _ => continue,
        };
        let constant = i64::from(constant) as u64;
        found.extend([constant.wrapping_sub(1), constant, constant.wrapping_add(1)]);
    }
    found.sort_unstable();
    found.dedup();
    found
}
