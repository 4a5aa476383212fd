//! Helpers, as programs call them.

use super::*;
use crate::helpers;
use crate::isa::Register;
use crate::world::{HELPER_LEN_MAX, Helper, Region};

/// r6 to the data, r7 to the scratch.
const BOTH: &str = "r6 = *(u64 *)(r1 + 0)\nr7 = *(u64 *)(r1 + 16)\n";

#[test]
fn bytes_are_copied_from_everywhere_and_may_overlap() {
    let copy = |to: u64, to_len: u64, from: u64, from_len: u64| {
        let mut rig = Rig::default();
        let asm = format!(
            "{BOTH}r1 = r7\nr1 += {to}\nr2 = {to_len}\nr3 = r7\nr3 += {from}\nr4 = {from_len}\ncall 2\nexit"
        );
        let copied = rig.run(&asm).unwrap() as usize;
        let mut expected = Rig::default().scratch;
        expected.copy_within(from as usize..from as usize + copied, to as usize);
        assert_eq!(rig.scratch, expected);
        copied
    };
    assert_eq!(copy(0, 20, 10, 20), 20);
    assert_eq!(copy(10, 20, 0, 20), 20);
    assert_eq!(copy(5, 8, 5, 9), 8);
    assert_eq!(copy(1, 63, 0, 63), 63);
    assert_eq!(copy(64, 0, 0, 64), 0);
    let mut rig = Rig::default();
    let asm = format!("{BOTH}r1 = r7\nr2 = 4\nr3 = r6\nr3 += 96\nr4 = 4\ncall 2\nexit");
    assert_eq!(rig.run(&asm), Ok(4));
    assert_eq!(rig.scratch[..5], [196, 197, 198, 199, 4]);
}

#[test]
fn what_was_copied_has_a_value_and_nothing_else() {
    let begin =
        format!("{BOTH}*(u64 *)(r10 - 16) = r7\nr1 = r10\nr1 += -16\nr2 = 16\nr3 = r6\nr4 = 10\ncall 2\n");
    assert_eq!(run(&format!("{begin}r0 = *(u16 *)(r10 - 8)\nexit")), Ok(0x6d6c));
    assert_eq!(run(&format!("{begin}r0 = *(u8 *)(r10 - 16)\nexit")), Ok(100), "the pointer is gone");
    let asm = format!("{begin}r0 = *(u8 *)(r10 - 6)\nexit");
    assert_eq!(violation(&asm), Violation::UninitialisedStack { offset: -6 });
}

#[test]
fn checksums_comparisons_and_varints_are_those_of_the_helpers() {
    let data: Vec<u8> = (100..200).collect();
    let asm = format!("{BOTH}r1 = 5\nr2 = r6\nr3 = 100\ncall 3\nexit");
    assert_eq!(run(&asm), Ok(helpers::crc32c(5, &data)));
    let asm = format!("{BOTH}r1 = r6\nr2 = 100\ncall 7\nexit");
    assert_eq!(run(&asm), Ok(helpers::xxh3(&data)));
    for (left, right, expected) in [("r6", "r6", 0), ("r6", "r7", 1), ("r7", "r6", u64::MAX)] {
        let asm = format!("{BOTH}r1 = {left}\nr2 = 10\nr3 = {right}\nr4 = 10\ncall 4\nexit");
        assert_eq!(run(&asm), Ok(expected));
    }
    let mut rig = Rig::default();
    rig.scratch[..2].copy_from_slice(&[0xac, 0x02]);
    let asm = format!(
        "{BOTH}r1 = r7\nr2 = 64\nr3 = r10\nr3 += -8\nr4 = 8\ncall 5\nr1 = *(u64 *)(r10 - 8)\nr0 <<= 32\nr0 |= r1\nexit"
    );
    assert_eq!(rig.run(&asm), Ok(2 << 32 | 300));
    // What it has read from and where it writes to may be the same.
    let mut rig = Rig::default();
    rig.scratch[..2].copy_from_slice(&[0xac, 0x02]);
    let asm = format!("{BOTH}r1 = r7\nr2 = 64\nr3 = r7\nr4 = 8\ncall 5\nexit");
    assert_eq!(rig.run(&asm), Ok(2));
    assert_eq!(rig.scratch[..9], [0x2c, 1, 0, 0, 0, 0, 0, 0, 8]);
}

#[test]
fn lookups_find_values_until_the_next() {
    let table = vec![(b"abcd".to_vec(), [7; 16]), (b"efgh".to_vec(), [9; 16])];
    let look_up = |asm: &str| {
        let begin =
            "*(u32 *)(r10 - 4) = 0x64636261\n*(u32 *)(r10 - 8) = 0x68676665\n*(u32 *)(r10 - 12) = 1\n";
        let find = |offset: i64| format!("r1 = r10\nr1 += {offset}\nr2 = 4\ncall 1\n");
        let asm = asm.replace("ABCD", &find(-4)).replace("EFGH", &find(-8)).replace("NONE", &find(-12));
        Rig { table: table.clone(), ..Rig::default() }.run(&format!("{begin}{asm}"))
    };
    let stopped = |asm: &str| match look_up(asm) {
        Err(CallError::Fault(fault)) => fault.what,
        outcome => panic!("{outcome:?}"),
    };
    assert_eq!(look_up("ABCD r0 = *(u8 *)(r0 + 15)\nexit"), Ok(7));
    assert_eq!(look_up("NONE exit"), Ok(0));
    assert_eq!(look_up("ABCD if r0 == 0 goto +1\nr0 = 1\nexit"), Ok(1));
    assert_eq!(look_up("ABCD r6 = r0\nEFGH r0 = *(u8 *)(r6 + 0)\nexit"), Ok(9), "it is one place");
    assert_eq!(look_up("ABCD r6 = r0\nNONE r0 = *(u8 *)(r6 + 0)\nexit"), Ok(7), "nothing comes into it");
    let out = FaultKind::OutOfBounds { region: Region::TableValue, offset: 16, len: 1 };
    assert_eq!(stopped("ABCD r0 = *(u8 *)(r0 + 16)\nexit"), out);
    let write = FaultKind::Unproven(Violation::ReadOnly(Region::TableValue));
    assert_eq!(stopped("ABCD *(u8 *)(r0 + 0) = 1\nr0 = 0\nexit"), write);
    let null = FaultKind::Unproven(Violation::NumberAsPointer(Register::R0));
    assert_eq!(stopped("NONE r0 = *(u8 *)(r0 + 0)\nexit"), null);
}

#[test]
fn the_log_hears_two_numbers() {
    let mut rig = Rig::default();
    assert_eq!(rig.run("r1 = 1\nr2 = -1\ncall 6\nr1 = 3\nr2 = 4\ncall 6\nexit"), Ok(0));
    assert_eq!(*rig.logged.borrow(), [(1, u64::MAX), (3, 4)]);
}

#[test]
fn ranges_are_checked_from_the_first_to_the_last() {
    let copy = |to: &str, to_len: i64, from: &str, from_len: i64| {
        fault(&format!("{BOTH}r1 = {to}\nr2 = {to_len}\nr3 = {from}\nr4 = {from_len}\ncall 2\nexit"))
    };
    let out = |region, len| FaultKind::OutOfBounds { region, offset: 0, len };
    assert_eq!(copy("r7", 65, "r6", 101), out(Region::Scratch, 65));
    assert_eq!(copy("r7", 64, "r6", 101), out(Region::Data, 101));
    let max = HELPER_LEN_MAX;
    let too_long = |argument, len| FaultKind::RangeTooLong { helper: Helper::Copy, argument, len, max };
    assert_eq!(copy("r7", max.into(), "r6", 65537), too_long(3, 65537));
    assert_eq!(copy("r7", 65537, "r6", 65537), too_long(1, 65537));
    assert_eq!(copy("r7", -1, "r6", 0), too_long(1, u64::MAX));
    assert_eq!(copy("r7", 1, "r10", 1), out(Region::Stack, 1));
    assert_eq!(copy("r10", 0, "r10", 1), out(Region::Stack, 1), "a range without bytes may be at the end");
    let asm = format!("{BOTH}r1 = r7\nr1 += 65\nr2 = 0\nr3 = r6\nr4 = 0\ncall 2\nexit");
    let behind = FaultKind::OutOfBounds { region: Region::Scratch, offset: 65, len: 0 };
    assert_eq!(fault(&asm), behind, "though not behind it");
}

#[test]
fn lengths_come_before_fuel_and_fuel_before_ranges() {
    let run = |len: u64, fuel| {
        let mut rig = Rig { fuel, ..Rig::default() };
        let asm = format!("{BOTH}r1 = 0\nr2 = r6\nr3 = {len}\ncall 3\nexit");
        match rig.run(&asm) {
            Err(CallError::Fault(fault)) => (fault.what, rig.fuel),
            outcome => panic!("{outcome:?}"),
        }
    };
    let (instructions, base) = (7, 20);
    let too_long =
        |len| FaultKind::RangeTooLong { helper: Helper::Crc32c, argument: 2, len, max: HELPER_LEN_MAX };
    assert_eq!(run(65537, instructions), (too_long(65537), 0));
    assert_eq!(run(800, instructions + base + 99), (FaultKind::OutOfFuel, base + 99));
    let out = FaultKind::OutOfBounds { region: Region::Data, offset: 0, len: 800 };
    assert_eq!(run(800, instructions + base + 100), (out, 0));
}

#[test]
fn arguments_are_what_the_signature_says() {
    let stopped = |asm: &str| violation(&format!("{BOTH}{asm}\nexit"));
    assert_eq!(stopped("r1 = r6\nr2 = 1\ncall 6"), Violation::PointerAsNumber(Register::R1));
    assert_eq!(stopped("r1 = 0\nr2 = 0\nr3 = 0\ncall 3"), Violation::NumberAsPointer(Register::R2));
    assert_eq!(stopped("r1 = 0\nr2 = r6\nr3 = r6\ncall 3"), Violation::PointerAsNumber(Register::R3));
    assert_eq!(stopped("r1 = 0\nr2 = r6\ncall 3"), Violation::UninitialisedRegister(Register::R3));
    let write = "r1 = r6\nr2 = 1\nr3 = r7\nr4 = 1\ncall 2";
    assert_eq!(stopped(write), Violation::ReadOnly(Region::Data));
    assert_eq!(violation("r2 = r1\nr1 = 0\nr3 = 8\ncall 3\nexit"), Violation::ContextAccess { offset: 0 });
    let into_context = "r3 = *(u64 *)(r1 + 0)\nr1 += 40\nr2 = 8\nr4 = 8\ncall 2\nexit";
    assert_eq!(violation(into_context), Violation::ContextAccess { offset: 40 });
    let nothing = "r1 = 0\nr2 = r10\nr2 += -8\nr3 = 8\ncall 3";
    assert_eq!(stopped(nothing), Violation::UninitialisedStack { offset: -8 });
    // A range has a value as a whole, though less of it is copied.
    let in_part = "*(u64 *)(r10 - 16) = 1\nr1 = r7\nr2 = 8\nr3 = r10\nr3 += -16\nr4 = 9\ncall 2";
    assert_eq!(stopped(in_part), Violation::UninitialisedStack { offset: -8 });
    for number in [0, 8, 1000] {
        assert_eq!(stopped(&format!("call {number}")), Violation::NoHelper(number));
    }
}

#[test]
fn a_world_without_a_table_has_no_lookups() {
    let program = program("r2 = 0\ncall 1\nexit");
    let mut rig = Rig::default();
    let mut call = Call {
        data: &[],
        scratch: &mut rig.scratch,
        context: &mut rig.context,
        fuel: FUEL,
        table: &Table(&[]),
        log: &rig.logged,
    };
    let world = World { table_value_len: 0, ..WORLD };
    let Err(CallError::Fault(fault)) = Interpreter::new().run(&program, &world, &mut call) else { panic!() };
    assert_eq!(fault.what, FaultKind::Unproven(Violation::NoHelper(1)));
}
