//! What pointers may not do, and what the stack remembers of them.

use super::*;
use crate::isa::Register;
use crate::world::Region;

/// r2 to the data, r3 to the scratch.
const BOTH: &str = "r2 = *(u64 *)(r1 + 0)\nr3 = *(u64 *)(r1 + 16)\n";

#[test]
fn pointers_are_moved_and_subtracted_and_nothing_else() {
    for op in ["*", "/", "s/", "%", "s%", "|", "&", "^", "<<", ">>", "s>>"] {
        for right in ["3", "r3", "r4"] {
            let asm = format!("{BOTH}r4 = 3\nr2 {op}= {right}\nr0 = 0\nexit");
            assert_eq!(violation(&asm), Violation::PointerArithmetic, "{asm}");
        }
    }
    for line in ["r2 += r3", "r2 -= r3", "w2 += 1", "w2 -= w2", "r0 = 1\nr0 -= r2", "w0 = 1\nw0 += w2"] {
        let asm = format!("{BOTH}{line}\nr0 = 0\nexit");
        assert_eq!(violation(&asm), Violation::PointerArithmetic, "{asm}");
    }
    for line in
        ["r2 = -r2", "w2 = -w2", "w0 = w2", "r0 = (s8)r2", "w0 = (s16)w2", "r2 = be16 r2", "r2 = bswap64 r2"]
    {
        let asm = format!("{BOTH}{line}\nr0 = 0\nexit");
        assert_eq!(violation(&asm), Violation::PointerAsNumber(Register::R2), "{asm}");
    }
}

#[test]
fn pointers_go_anywhere_and_back() {
    let asm = format!(
        "{BOTH}r4 = 0x7fffffffffffffff ll\nr2 += r4\nr2 += r4\nr2 += 2\nr2 -= 5\nr2 -= -8\nr0 = *(u8 *)(r2 + 0)\nexit"
    );
    assert_eq!(run(&asm), Ok(103));
}

#[test]
fn pointers_are_compared_with_their_like_and_with_null() {
    for (test, expected) in [
        ("r2 == 0", 0),
        ("r2 != 0", 1),
        ("r2 == r5", 0),
        ("r5 == r2", 0),
        ("r5 != r2", 1),
        ("r2 == r2", 1),
        ("r2 < r4", 1),
        ("r4 > r2", 1),
        ("r4 <= r2", 0),
        ("r2 >= r4", 0),
        ("r2 s< r4", 1),
        ("r2 s>= r4", 0),
        ("r6 < r2", 1),
        ("r6 s< r2", 1),
        ("r6 >= r2", 0),
    ] {
        let asm = format!(
            "{BOTH}r5 = 0\nr4 = r2\nr4 += 9\nr6 = r2\nr6 -= 1\nif {test} goto yes\nr0 = 0\nexit\nyes:\nr0 = 1\nexit"
        );
        assert_eq!(run(&asm), Ok(expected), "{test}: one before the begin is below it");
    }
    for test in [
        "r2 == r3",
        "r2 < r3",
        "r2 == 1",
        "r2 > 0",
        "r2 s> 0",
        "r2 & 1",
        "r2 & r2",
        "r5 < r2",
        "w2 == 0",
        "w2 == w2",
        "r2 == r10",
        "r2 != r1",
    ] {
        let asm = format!("{BOTH}r5 = 0\nif {test} goto yes\nr0 = 0\nyes:\nr0 = 1\nexit");
        assert_eq!(violation(&asm), Violation::PointerComparison, "{test}");
    }
}

#[test]
fn pointers_are_not_stored_or_returned() {
    for line in [
        "*(u64 *)(r3 + 0) = r2",
        "*(u32 *)(r10 - 8) = r2",
        "*(u64 *)(r10 - 12) = r2",
        "*(u64 *)(r10 - 9) = r2",
    ] {
        let asm = format!("{BOTH}{line}\nr0 = 0\nexit");
        assert_eq!(violation(&asm), Violation::PointerStored, "{asm}");
    }
    for asm in ["r0 = r1\nexit", "r0 = r10\nexit"] {
        assert_eq!(violation(asm), Violation::PointerReturned);
    }
    let per_call = ".per_call 0000000000000000\nr2 = per_call ll\n*(u64 *)(r2 + 0) = r1\nr0 = 0\nexit";
    assert_eq!(violation(per_call), Violation::PointerStored);
    let atomics = [
        "r2 = atomic_fetch_add((u64 *)(r10 - 8), r2)",
        "r2 = xchg_64(r10 - 8, r2)",
        "lock *(u64 *)(r10 - 8) |= r2",
    ];
    for line in atomics {
        let asm = format!("{BOTH}*(u64 *)(r10 - 8) = 0\n{line}\nr0 = 0\nexit");
        assert_eq!(violation(&asm), Violation::PointerAsNumber(Register::R2), "{asm}");
    }
    let asm = format!(
        "{BOTH}*(u64 *)(r10 - 8) = 0\nr0 = r2\nr4 = 1\nr0 = cmpxchg_64(r10 - 8, r0, r4)\nr0 = 0\nexit"
    );
    assert_eq!(violation(&asm), Violation::PointerAsNumber(Register::R0));
}

#[test]
fn numbers_are_no_addresses() {
    for line in ["r0 = *(u8 *)(r2 + 0)", "*(u8 *)(r2 + 0) = 1", "lock *(u64 *)(r2 + 0) += r2"] {
        for number in [0, 4096] {
            let asm = format!("r2 = {number}\n{line}\nr0 = 0\nexit");
            assert_eq!(violation(&asm), Violation::NumberAsPointer(Register::R2));
        }
    }
}

#[test]
fn memory_for_reading_is_not_written() {
    for (begin, region) in [
        ("r2 = *(u64 *)(r1 + 0)", Region::Data),
        (".read_only 0000000000000000\nr2 = read_only ll", Region::ReadOnly),
    ] {
        for line in
            ["*(u8 *)(r2 + 0) = 1", "r3 = 1\n*(u64 *)(r2 + 0) = r3", "r3 = 1\nlock *(u32 *)(r2 + 0) += r3"]
        {
            let asm = format!("{begin}\n{line}\nr0 = 0\nexit");
            assert_eq!(violation(&asm), Violation::ReadOnly(region), "{asm}");
        }
    }
}

#[test]
fn every_region_ends_where_it_ends() {
    let regions = [
        ("r2 = *(u64 *)(r1 + 0)\n", Region::Data, 0, 100),
        ("r2 = *(u64 *)(r1 + 16)\n", Region::Scratch, 0, 64),
        ("r2 = r10\n", Region::Stack, -512, 0),
        (".read_only 000102030405060708090a\nr2 = read_only ll\n", Region::ReadOnly, 0, 11),
        (".per_call 000102030405060708090a\nr2 = per_call ll\n", Region::PerCall, 0, 11),
    ];
    for (begin, region, first, end) in regions {
        for (size, len) in [("u8", 1i64), ("u16", 2), ("u32", 4), ("u64", 8)] {
            // By an offset in the instruction and by one in the register, within and without.
            for (at, is_in) in [(first, true), (end - len, true), (first - 1, false), (end - len + 1, false)]
            {
                let (offset, sign) = (at.abs(), if at < 0 { '-' } else { '+' });
                let stack = if region == Region::Stack {
                    "r4 = 0\n*(u64 *)(r2 - 8) = r4\n*(u64 *)(r2 - 512) = r4\n"
                } else {
                    ""
                };
                for access in [
                    format!("r3 = *({size} *)(r2 {sign} {offset})"),
                    format!("r4 = {at}\nr2 += r4\nr3 = *({size} *)(r2 + 0)"),
                ] {
                    let asm = format!("{begin}{stack}{access}\nr0 = 0\nexit");
                    if is_in {
                        assert_eq!(run(&asm), Ok(0), "{asm}");
                    } else {
                        let expected = FaultKind::OutOfBounds { region, offset: at, len: len as u32 };
                        assert_eq!(fault(&asm), expected, "{asm}");
                    }
                }
            }
        }
    }
}

#[test]
fn offsets_that_wrap_around_are_out_of_bounds() {
    let asm = format!("{BOTH}r4 = 0x7fffffffffffffff ll\nr2 += r4\nr0 = *(u64 *)(r2 + 32)\nexit");
    let offset = i64::MIN + 31;
    assert_eq!(fault(&asm), FaultKind::OutOfBounds { region: Region::Data, offset, len: 8 });
    let asm = "r4 = 0x7fffffffffffffff ll\nr2 = r10\nr2 += r4\nr0 = *(u8 *)(r2 + 0)\nexit";
    assert_eq!(fault(asm), FaultKind::OutOfBounds { region: Region::Stack, offset: i64::MAX, len: 1 });
}

#[test]
fn a_slot_holds_a_whole_pointer_or_none() {
    // Where the pointer is, a number was before.
    let begin = "*(u64 *)(r10 - 16) = 0\n*(u64 *)(r10 - 8) = 0\n*(u64 *)(r10 - 8) = r1\n";
    for (line, offset) in [
        ("r0 = *(u32 *)(r10 - 8)", -8),
        ("r0 = *(u8 *)(r10 - 1)", -1),
        ("r0 = *(u64 *)(r10 - 12)", -8),
        ("r2 = 1\nlock *(u64 *)(r10 - 8) += r2", -8),
        ("r1 = 0\nr2 = r10\nr2 += -16\nr3 = 10\ncall 3", -8),
    ] {
        let asm = format!("{begin}{line}\nr0 = 0\nexit");
        assert_eq!(violation(&asm), Violation::PointerBytes { offset }, "{asm}");
    }
    // A byte of it is overwritten: the others are nothing, and that byte is one.
    assert_eq!(run(&format!("{begin}*(u8 *)(r10 - 5) = 9\nr0 = *(u8 *)(r10 - 5)\nexit")), Ok(9));
    for (line, offset) in [("r0 = *(u64 *)(r10 - 8)", -8), ("r0 = *(u16 *)(r10 - 5)", -4)] {
        let asm = format!("{begin}*(u8 *)(r10 - 5) = 9\n{line}\nexit");
        assert_eq!(violation(&asm), Violation::UninitialisedStack { offset });
    }
    // A pointer takes a number's place whole.
    let asm =
        "*(u64 *)(r10 - 8) = 5\n*(u64 *)(r10 - 8) = r1\nr2 = *(u64 *)(r10 - 8)\nr0 = *(u64 *)(r2 + 32)\nexit";
    assert_eq!(run(asm), Ok(7));
    // And a number a pointer's.
    assert_eq!(run(&format!("{begin}*(u64 *)(r10 - 8) = 5\nr0 = *(u64 *)(r10 - 8)\nexit")), Ok(5));
}

#[test]
fn bytes_of_the_stack_have_a_value_one_by_one() {
    let asm = "*(u16 *)(r10 - 6) = 0x0102\nr0 = *(u16 *)(r10 - 6)\nexit";
    assert_eq!(run(asm), Ok(0x0102));
    for (line, offset) in [
        ("r0 = *(u8 *)(r10 - 7)", -7),
        ("r0 = *(u8 *)(r10 - 4)", -4),
        ("r0 = *(u32 *)(r10 - 6)", -4),
        ("r0 = *(u32 *)(r10 - 8)", -8),
        ("r0 = 0\nlock *(u32 *)(r10 - 8) += r0", -8),
    ] {
        let asm = format!("*(u16 *)(r10 - 6) = 0x0102\n{line}\nexit");
        assert_eq!(violation(&asm), Violation::UninitialisedStack { offset }, "{asm}");
    }
    // Across two slots, and across the whole frame.
    assert_eq!(run("*(u64 *)(r10 - 12) = -1\nr0 = *(u64 *)(r10 - 12)\nexit"), Ok(u64::MAX));
    let asm = "*(u64 *)(r10 - 12) = -1\nr0 = *(u64 *)(r10 - 13)\nexit";
    assert_eq!(violation(asm), Violation::UninitialisedStack { offset: -13 });
}

#[test]
fn frames_are_reached_by_pointers_that_are_handed_down() {
    // A caller's number, and a caller's pointer.
    let asm = "*(u64 *)(r10 - 8) = r1\n*(u64 *)(r10 - 16) = 5\nr1 = r10\ncall local f\nexit
        f:\nr2 = *(u64 *)(r1 - 8)\nr0 = *(u64 *)(r2 + 32)\nr3 = *(u64 *)(r1 - 16)\nr0 += r3\nexit";
    assert_eq!(run(asm), Ok(12));
    // Its own frame is another, and knows nothing.
    let asm = "*(u64 *)(r10 - 8) = 1\ncall local f\nexit\nf:\nr0 = *(u64 *)(r10 - 8)\nexit";
    assert_eq!(violation(asm), Violation::UninitialisedStack { offset: -8 });
    // Nor does it remember what it wrote when it was called before.
    let asm = "r1 = 1\ncall local f\nr1 = 0\ncall local f\nexit
        f:\nif r1 == 0 goto read\n*(u64 *)(r10 - 8) = 1\nread:\nr0 = *(u64 *)(r10 - 8)\nexit";
    assert_eq!(violation(asm), Violation::UninitialisedStack { offset: -8 });
    // Frames do not lie side by side.
    let asm = "r1 = r10\ncall local f\nexit\nf:\nr0 = *(u8 *)(r10 + 0)\nexit";
    assert_eq!(fault(asm), FaultKind::OutOfBounds { region: Region::Stack, offset: 0, len: 1 });
    let asm = "r1 = r10\ncall local f\nexit\nf:\nr1 -= r10\nr0 = r1\nexit";
    assert_eq!(violation(asm), Violation::PointerArithmetic);
}

#[test]
fn a_pointer_does_not_outlast_its_frame() {
    let returned = Violation::UninitialisedRegister(Register::R0);
    assert_eq!(violation("call local f\nr1 = r0\nr0 = 0\nexit\nf:\nr0 = r10\nexit"), returned);
    // It is left in the caller's frame.
    let leave = "r1 = r10\ncall local f\n";
    let function = "f:\n*(u64 *)(r10 - 8) = 1\n*(u64 *)(r1 - 8) = r10\nr0 = 0\nexit";
    assert_eq!(run(&format!("{leave}r0 = 0\nexit\n{function}")), Ok(0), "it may lie there");
    let asm = format!("{leave}r2 = *(u64 *)(r10 - 8)\nr0 = 0\nexit\n{function}");
    assert_eq!(violation(&asm), Violation::DeadFrame);
    // Nor is it the frame of the function that is called next.
    let asm = format!(
        "{leave}r1 = r10\ncall local g\nexit\ng:\n*(u64 *)(r10 - 8) = 2\nr2 = *(u64 *)(r1 - 8)\nr0 = *(u64 *)(r2 - 8)\nexit\n{function}"
    );
    assert_eq!(violation(&asm), Violation::DeadFrame);
}

#[test]
fn a_function_may_return_what_lives_on() {
    let asm = "*(u64 *)(r10 - 8) = 5\nr1 = r10\ncall local f\nr0 = *(u64 *)(r0 + 0)\nexit
        f:\nr0 = r1\nr0 += -8\nexit";
    assert_eq!(run(asm), Ok(5));
    let asm = "call local f\nr0 = *(u64 *)(r0 + 32)\nexit\nf:\nr0 = r1\nexit";
    assert_eq!(run(asm), Ok(7));
    let nothing = "call local f\nr0 = 1\nexit\nf:\nexit";
    assert_eq!(run(nothing), Ok(1), "or nothing");
    let nothing = "call local f\nexit\nf:\nexit";
    assert_eq!(violation(nothing), Violation::UninitialisedRegister(Register::R0));
    let callers = "r0 = 1\ncall local f\nexit\nf:\nr0 += 1\nexit";
    assert_eq!(violation(callers), Violation::UninitialisedRegister(Register::R0));
}
