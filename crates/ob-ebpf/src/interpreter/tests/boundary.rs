//! Calls: contexts, refusals, fuel, and what an interpreter keeps and does not keep.

use super::*;
use crate::call::{Fault, NoLog, NoTable, Refusal};
use crate::interpreter::{Observer, Pointer, Value};
use crate::isa::Register;
use crate::world::Region;

#[test]
fn a_context_has_what_the_hook_put_there() {
    assert_eq!(run("r0 = *(u64 *)(r1 + 32)\nexit"), Ok(7));
    assert_eq!(run("r0 = *(u64 *)(r1 + 40)\nexit"), Ok(8));
    assert_eq!(run("r0 = *(u64 *)(r1 + 8)\nexit"), Ok(100));
    assert_eq!(run("r0 = *(u64 *)(r1 + 24)\nexit"), Ok(64));
    assert_eq!(run("r2 = *(u64 *)(r1 + 0)\nr0 = *(u8 *)(r2 + 99)\nexit"), Ok(199));
    assert_eq!(run("r2 = *(u64 *)(r1 + 16)\nr0 = *(u8 *)(r2 + 63)\nexit"), Ok(63));
}

#[test]
fn results_and_the_scratch_are_the_hooks_again() {
    let mut rig = Rig::default();
    let asm = "r2 = 77\n*(u64 *)(r1 + 40) = r2\nr3 = *(u64 *)(r1 + 40)\nr2 = *(u64 *)(r1 + 16)
        *(u8 *)(r2 + 1) = r3\n*(u64 *)(r1 + 40) = 78\nr0 = 0\nexit";
    assert_eq!(rig.run(asm), Ok(0));
    assert_eq!(rig.context, [0, 0, 0, 0, 7, 78]);
    assert_eq!(rig.scratch[..3], [0, 77, 2]);
}

#[test]
fn a_context_is_accessed_field_by_field() {
    for asm in [
        "r0 = *(u32 *)(r1 + 32)\nexit",
        "r0 = *(u8 *)(r1 + 32)\nexit",
        "r0 = *(s32 *)(r1 + 32)\nexit",
        "r0 = *(u64 *)(r1 + 36)\nexit",
        "r0 = *(u64 *)(r1 + 48)\nexit",
        "r0 = *(u64 *)(r1 - 8)\nexit",
        "r2 = 1\n*(u32 *)(r1 + 40) = r2\nr0 = 0\nexit",
        "*(u64 *)(r1 + 41) = 1\nr0 = 0\nexit",
        "r2 = 1\nlock *(u64 *)(r1 + 40) += r2\nr0 = 0\nexit",
    ] {
        assert!(matches!(violation(asm), Violation::ContextAccess { .. }), "{asm}");
    }
    for offset in [0, 8, 16, 24, 32] {
        let asm = format!("r2 = 1\n*(u64 *)(r1 + {offset}) = r2\nr0 = 0\nexit");
        assert_eq!(violation(&asm), Violation::ReadOnly(Region::Context));
    }
    assert_eq!(violation("*(u64 *)(r1 + 40) = r1\nr0 = 0\nexit"), Violation::PointerStored);
}

#[test]
fn registers_have_no_value_at_entry() {
    for register in [0u8, 2, 3, 4, 5, 6, 7, 8, 9] {
        let named = Register::new(register).unwrap();
        let asm = format!("r0 = r{register}\nexit");
        assert_eq!(violation(&asm), Violation::UninitialisedRegister(named));
    }
}

#[test]
fn a_call_that_does_not_fit_is_refused() {
    let program = program(".data_len_min 10\nr0 = 0\nexit");
    let refusal = |data: usize, begin: usize, scratch: usize, context: usize| {
        let (data, mut context) = (vec![0; data], vec![0; context]);
        let mut rig = Rig::default();
        let mut call = Call {
            data: &data,
            scratch: &mut rig.scratch[begin..begin + scratch],
            context: &mut context,
            fuel: 2,
            table: &NoTable,
            log: &NoLog,
        };
        let world = World { scratch_len: 32, data_len_max: 20, ..WORLD };
        let outcome = Interpreter::new().run(&program, &world, &mut call);
        assert_eq!(call.fuel, if outcome.is_ok() { 0 } else { 2 }, "nothing is paid");
        outcome.err()
    };
    let refused = |refusal| Some(CallError::Refused(refusal));
    assert_eq!(refusal(10, 0, 32, 6), None);
    assert_eq!(refusal(20, 8, 32, 6), None);
    assert_eq!(refusal(9, 0, 32, 6), refused(Refusal::DataTooShort { len: 9, min: 10 }));
    assert_eq!(refusal(21, 0, 32, 6), refused(Refusal::DataTooLong { len: 21, max: 20 }));
    assert_eq!(refusal(10, 0, 31, 6), refused(Refusal::Scratch { len: 31, expected: 32 }));
    assert_eq!(refusal(10, 0, 33, 6), refused(Refusal::Scratch { len: 33, expected: 32 }));
    assert_eq!(refusal(10, 4, 32, 6), refused(Refusal::ScratchMisaligned));
    assert_eq!(refusal(10, 0, 32, 5), refused(Refusal::Context { len: 5, expected: 6 }));
}

/// The fuel that a program needs and is left with none of; with less it is stopped at that instruction.
fn costs(asm: &str, cost: u32, stopped_at: usize) {
    let mut rig = Rig { fuel: cost, ..Rig::default() };
    rig.run(asm).unwrap();
    assert_eq!(rig.fuel, 0);
    let mut rig = Rig { fuel: cost - 1, ..Rig::default() };
    let fault = Fault { at: stopped_at, what: FaultKind::OutOfFuel };
    assert_eq!(rig.run(asm), Err(CallError::Fault(fault)));
}

#[test]
fn fuel_is_paid_at_entry_at_back_edges_and_at_calls() {
    costs("r0 = 0\nexit", 2, 0);
    // Four instructions, and nine times the three of the loop.
    costs("r0 = 10\nagain:\nr0 += -1\nr3 = 0\nif r0 != 0 goto again\nexit", 5 + 9 * 3, 3);
    // The other branch and a jump forward cost nothing.
    costs("r0 = 0\nif r0 == 0 goto there\nr0 = 1\nthere:\ngoto end\nend:\nexit", 5, 0);
    // A function costs all of its instructions, at its call.
    costs("call local f\nr0 = 0\nexit\nf:\nr1 = 1\nr1 = 2\nexit", 3 + 3, 0);
    costs("r1 = 1\nr2 = 2\ncall 6\nexit", 4 + 100, 2);
}

#[test]
fn fuel_that_is_too_little_stays() {
    let mut rig = Rig { fuel: 1 + 99, ..Rig::default() };
    rig.run("r1 = 1\nr2 = 2\ncall 6\nexit").unwrap_err();
    assert_eq!(rig.fuel, 96);
    assert!(rig.logged.borrow().is_empty(), "it is paid before anything is done");
    let mut rig = Rig { fuel: 1, ..Rig::default() };
    rig.run("r0 = 0\nexit").unwrap_err();
    assert_eq!(rig.fuel, 1);
}

#[test]
fn nothing_remains_of_a_call_but_what_the_hook_gave() {
    let mut interpreter = Interpreter::new();
    let mut run = |asm: &str| Rig::default().run_program(&mut interpreter, &program(asm));
    let counts = ".per_call 05\nr2 = per_call ll\nr0 = *(u8 *)(r2 + 0)\nr0 += 1\n*(u8 *)(r2 + 0) = r0\nexit";
    assert_eq!(run(counts), Ok(6));
    assert_eq!(run(counts), Ok(6), "per-call data begins anew");
    run("*(u64 *)(r10 - 8) = 1\n*(u64 *)(r10 - 16) = r1\nr0 = 0\nexit").unwrap();
    for offset in [8, 16] {
        let outcome = run(&format!("r0 = *(u64 *)(r10 - {offset})\nexit"));
        let what = FaultKind::Unproven(Violation::UninitialisedStack { offset: -offset });
        assert_eq!(outcome, Err(CallError::Fault(Fault { at: 0, what })));
    }
    // A fault in a function does not leave its frame behind.
    run("call local f\nexit\nf:\nr0 = *(u8 *)(r10 + 0)\nexit").unwrap_err();
    assert_eq!(run("r0 = 3\nexit"), Ok(3));
}

#[test]
fn what_was_written_before_a_fault_stays() {
    let mut rig = Rig::default();
    rig.run(
        "r2 = *(u64 *)(r1 + 16)\n*(u8 *)(r2 + 0) = 9\n*(u64 *)(r1 + 40) = 5\nr0 = *(u8 *)(r2 + 64)\nexit",
    )
    .unwrap_err();
    assert_eq!((rig.scratch[0], rig.context[5]), (9, 5));
}

#[test]
fn an_observer_sees_every_instruction_and_the_registers_before_it() {
    #[derive(Default)]
    struct Seen(Vec<(usize, Value, Value, u32)>);
    impl Observer for Seen {
        fn before(&mut self, at: usize, registers: &[Value; Register::COUNT], fuel: u32) {
            self.0.push((at, registers[0], registers[10], fuel));
        }
    }
    let mut seen = Seen::default();
    let program = program("r0 = 2\nagain:\nr0 += -1\nif r0 != 0 goto again\nexit");
    let mut memory = [0u64; 0];
    let mut call =
        Call { data: &[], scratch: &mut [], context: &mut memory, fuel: 10, table: &NoTable, log: &NoLog };
    let outcome = Interpreter::new().run_observed(&program, &World::raw(0), &mut call, &mut seen);
    assert_eq!(outcome, Ok(0));
    let end = Value::Pointer(Pointer { region: Region::Stack, frame: 0, activation: 1, offset: 0 });
    let number = |number| Value::Number(number);
    let expected = [
        (0, Value::Uninitialised, 6),
        (1, number(2), 6),
        (2, number(1), 6),
        (1, number(1), 4),
        (2, number(0), 4),
        (3, number(0), 4),
    ];
    assert_eq!(seen.0, expected.map(|(at, r0, fuel)| (at, r0, end, fuel)));
}
