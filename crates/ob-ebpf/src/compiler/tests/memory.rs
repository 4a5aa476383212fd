//! Loads, stores and atomic operations in every region, inside and at every edge.

use super::*;
use crate::isa::Size;
use crate::program::FRAME_LEN;
use crate::world::Region;

/// Puts the address of each region's first byte into `r6`, and says how many bytes it has. Of the stack it is the frame's begin.
const REGIONS: [(Region, &str, usize); 6] = [
    (Region::Data, "r6 = *(u64 *)(r1 + 16)", 100),
    (Region::Scratch, "r6 = *(u64 *)(r1 + 32)", 64),
    (Region::Stack, "r6 = r10\nr6 += -512", FRAME_LEN),
    (Region::ReadOnly, "r6 = read_only + 0 ll", 40),
    (Region::PerCall, "r6 = per_call + 0 ll", 48),
    (
        Region::TableValue,
        "*(u64 *)(r10 - 8) = 77\nr1 = r10\nr1 += -8\nr2 = 8\ncall 1\nif r0 == 0 goto nothing\nr6 = r0",
        24,
    ),
];

const SECTIONS: &str = "
    .read_only 00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff8091a2b3c4d5e6f7
    .per_call  ffeeddccbbaa99887766554433221100ffeeddccbbaa998877665544332211000123456789abcdeffedcba9876543210
";

/// A program that finds a region, adds the context's number to its address, and does something there.
fn at_number(find: &str, operation: &str) -> String {
    format!(
        "{SECTIONS}
        r7 = *(u64 *)(r1 + 0)
        {find}
        r6 += r7
        r0 = 0
        r2 = 0x8899aabbccddeeff ll
        {operation}
        exit
    nothing:
        r0 = 1
        exit"
    )
}

/// Fills the frame, so that everything there can be read.
fn filled_frame() -> String {
    let stores: String =
        (1..=64).map(|slot| format!("*(u64 *)(r10 - {}) = {}\n", 8 * slot, slot * 128_000)).collect();
    format!("{stores}\nr6 = r10\nr6 += -512")
}

/// The offset in its region as faults tell it.
fn told(region: Region, offset: i64) -> i64 {
    if region == Region::Stack { offset.wrapping_sub(FRAME_LEN as i64) } else { offset }
}

/// Offsets at which an access of a size just fits, or just does not.
fn edges(len: usize, size: usize) -> Vec<i64> {
    let (len, size) = (len as i64, size as i64);
    let mut edges =
        vec![0, 1, -1, -size, len - size, len - size + 1, len - 1, len, len + 1, i64::MIN, i64::MAX];
    edges.extend([-len, 1 << 32, (1 << 32) + 1, -(1 << 32), i64::MAX - size, -size - 1]);
    edges
}

fn check_edges(region: Region, text: &str, len: usize, size: usize) {
    let offsets = edges(len, size);
    for (offset, after) in offsets.iter().copied().zip(run_all(text, &with_numbers(&offsets))) {
        let is_inside = offset >= 0 && offset as usize + size <= len;
        match after.outcome {
            Ok(_) => assert!(is_inside, "{region:?} {offset} {size}"),
            Err(CallError::Fault(Fault {
                what: FaultKind::OutOfBounds { region: at, offset: told_as, len },
                ..
            })) => {
                assert!(!is_inside, "{region:?} {offset} {size}");
                assert_eq!((at, told_as, len as usize), (region, told(region, offset), size));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn loads_of_every_size_and_sign_stop_at_the_edges_of_every_region() {
    for (region, find, len) in REGIONS {
        let filled = filled_frame();
        let find = if region == Region::Stack { &filled } else { find };
        for (name, size) in [("u8", 1), ("u16", 2), ("u32", 4), ("u64", 8), ("s8", 1), ("s16", 2), ("s32", 4)]
        {
            let text = at_number(find, &format!("r0 = *({name} *)(r6 + 0)"));
            check_edges(region, &text, len, size);
        }
    }
}

#[test]
fn stores_of_every_size_stop_at_the_edges_of_every_region() {
    for (region, find, len) in REGIONS.into_iter().filter(|(region, ..)| region.is_writable()) {
        for size in Size::ALL {
            let store = format!("*(u{} *)(r6 + 0) = r2", size.bits());
            let text = at_number(find, &format!("{store}\nr0 = *(u{} *)(r6 + 0)", size.bits()));
            check_edges(region, &text, len, size.bytes());
            let text = at_number(find, &format!("*(u{} *)(r6 + 0) = -2", size.bits()));
            check_edges(region, &text, len, size.bytes());
        }
    }
}

#[test]
fn offsets_in_the_instruction_count_as_the_address_does() {
    for (offset, number) in [(32767, -32767), (-32768, 32768), (100, -37), (1, i64::MAX), (-1, i64::MIN)] {
        for shift in [0i64, 1, 63, 64] {
            let number = i64::wrapping_add(number, shift);
            let setup = Setup { number: number as u64, ..Setup::new() };
            let sign = if offset < 0 { '-' } else { '+' };
            let text = at_number(REGIONS[1].1, &format!("r0 = *(u8 *)(r6 {sign} {})", i32::abs(offset)));
            let after = run(&text, &setup);
            let at = number.wrapping_add(i64::from(offset));
            assert_eq!(after.outcome.is_ok(), (0..64).contains(&at), "{at}");
        }
    }
}

#[test]
fn data_shorter_than_an_access_is_never_accessed() {
    for len in 0..9 {
        for size in Size::ALL {
            for number in [0u64, 1, 8, u64::MAX, 0u64.wrapping_sub(size.bytes() as u64)] {
                let data = vec![7; len];
                let setup = Setup { data, number, ..Setup::new() };
                let text = at_number(REGIONS[0].1, &format!("r0 = *(u{} *)(r6 + 0)", size.bits()));
                let is_inside = number as usize <= len && number as usize + size.bytes() <= len;
                assert_eq!(run(&text, &setup).outcome.is_ok(), is_inside, "{len} {size:?} {number}");
            }
        }
    }
}

#[test]
fn atomic_operations_are_those_of_the_interpreter() {
    let operations = [
        "lock *(u64 *)(r6 + 0) += r2",
        "lock *(u32 *)(r6 + 0) += r2",
        "lock *(u64 *)(r6 + 0) |= r2",
        "lock *(u32 *)(r6 + 0) &= r2",
        "lock *(u64 *)(r6 + 0) ^= r2",
        "r2 = atomic_fetch_add((u64 *)(r6 + 0), r2)",
        "w2 = atomic_fetch_add((u32 *)(r6 + 0), w2)",
        "r2 = atomic_fetch_or((u64 *)(r6 + 0), r2)",
        "w2 = atomic_fetch_or((u32 *)(r6 + 0), w2)",
        "r2 = atomic_fetch_and((u64 *)(r6 + 0), r2)",
        "w2 = atomic_fetch_and((u32 *)(r6 + 0), w2)",
        "r2 = atomic_fetch_xor((u64 *)(r6 + 0), r2)",
        "w2 = atomic_fetch_xor((u32 *)(r6 + 0), w2)",
        "r2 = xchg_64(r6 + 0, r2)",
        "w2 = xchg32_32(r6 + 0, w2)",
        // The first is not what is there; the second is, and has more above it.
        "r0 = cmpxchg_64(r6 + 0, r0, r2)",
        "r0 = *(u64 *)(r6 + 0)\nr0 = cmpxchg_64(r6 + 0, r0, r2)",
        "w0 = cmpxchg32_32(r6 + 0, w0, w2)",
        "r0 = *(u32 *)(r6 + 0)\nr3 = 0x700000000 ll\nr0 |= r3\nw0 = cmpxchg32_32(r6 + 0, w0, w2)",
    ];
    let filled = filled_frame();
    for (region, find, len) in REGIONS.into_iter().filter(|(region, ..)| region.is_writable()) {
        let find = if region == Region::Stack { &filled } else { find };
        for operation in operations {
            let size = if operation.contains("32") { 4 } else { 8 };
            let text = at_number(find, &format!("{operation}\nr0 ^= r2\nr3 = *(u8 *)(r6 + 0)\nr0 += r3"));
            let mut offsets = edges(len, size);
            offsets.extend([4, 8, 12, 3]);
            let afters = run_all(&text, &with_numbers(&offsets));
            for (offset, After { outcome, .. }) in offsets.into_iter().zip(afters) {
                let is_inside = offset >= 0 && offset as usize + size <= len;
                let is_misaligned = matches!(
                    outcome,
                    Err(CallError::Fault(Fault { what: FaultKind::Misaligned { .. }, .. }))
                );
                let is_aligned = offset % size as i64 == 0;
                assert_eq!(outcome.is_ok(), is_inside && is_aligned, "{region:?} {operation} {offset}");
                assert_eq!(is_misaligned, is_inside && !is_aligned, "{region:?} {operation} {offset}");
            }
        }
    }
}

#[test]
fn a_proven_access_has_no_check_unless_checks_are_kept() {
    let text = at_number(REGIONS[1].1, "*(u8 *)(r6 + 0) = r2\nr0 = *(u8 *)(r6 + 0)");
    let setup = Setup { bounds: Bounds::Proven, number: 63, ..Setup::new() };
    assert_eq!(run(&text, &setup).outcome, Ok(0xff));
    let bare = compile_observed(&text, &setup);
    let keeping = Setup { options: Options { keep_checks: true }, ..setup.clone() };
    assert_eq!(run(&text, &keeping).outcome, Ok(0xff));
    let kept = compile_observed(&text, &keeping);
    assert!(kept.code_len() > bare.code_len(), "{} {}", kept.code_len(), bare.code_len());
    // What was observed for 63 is no proof for 64.
    let broken = call(&Setup { number: 64, ..keeping }, |call| kept.run(call));
    let at = 5;
    let what = FaultKind::ProofBroken { region: Region::Scratch, offset: 64, len: 1 };
    assert_eq!(broken.outcome, fault(at, what));
    assert_eq!(broken.scratch, setup.scratch);
}

/// What cards run in debug builds: nobody asks for the checks there.
#[test]
#[cfg(debug_assertions)]
fn debug_builds_keep_the_checks_of_what_is_proven() {
    let text = at_number(REGIONS[1].1, "r0 = *(u8 *)(r6 + 0)");
    let setup = Setup { bounds: Bounds::Proven, number: 63, options: Options::default(), ..Setup::new() };
    assert_eq!(run(&text, &setup).outcome, Ok(u64::from(setup.scratch[63])));
    // What was observed for 63 is no proof for 64.
    let broken =
        call(&Setup { number: 64, ..setup.clone() }, |call| compile_observed(&text, &setup).run(call));
    let what = FaultKind::ProofBroken { region: Region::Scratch, offset: 64, len: 1 };
    assert!(matches!(broken.outcome, Err(CallError::Fault(Fault { what: found, .. })) if found == what));
}

#[test]
fn only_debug_builds_keep_them_unasked() {
    assert_eq!(Options::default().keep_checks, cfg!(debug_assertions));
}

#[test]
fn fields_of_the_context_are_read_and_written() {
    let text = "
        r2 = *(u64 *)(r1 + 0)
        r3 = *(u64 *)(r1 + 24)
        r4 = *(u64 *)(r1 + 40)
        r2 += r3
        r2 += r4
        *(u64 *)(r1 + 8) = r2
        r0 = *(u64 *)(r1 + 8)
        exit";
    let after = run(text, &Setup::new());
    assert_eq!((after.outcome, after.context[1]), (Ok(7 + 100 + 64), 7 + 100 + 64));
}

#[test]
fn no_address_gets_into_the_context() {
    let compiled = compile_observed("r0 = *(u64 *)(r1 + 24)\nexit", &Setup::new());
    let mut context = [1; 6];
    let mut words = [0; 8];
    let mut call = Call {
        data: &[1, 2, 3],
        scratch: bytes_of(&mut words),
        context: &mut context,
        fuel: 10,
        table: &Table,
        log: &Log::default(),
    };
    assert_eq!(compiled.run(&mut call), Ok(3));
    assert_eq!(context, [1; 6]);
}

/// The fields are not all in memory, and where an address is not known when the code is made, it is found out which one is meant.
#[test]
fn fields_are_found_by_way_of_any_address() {
    let sum = "
        r2 = *(u64 *)(r1 + 16)
        r2 = *(u8 *)(r2 + 1)
        r3 = *(u64 *)(r1 + 24)
        r4 = *(u64 *)(r1 + 32)
        r4 = *(u8 *)(r4 + 2)
        r0 = *(u64 *)(r1 + 40)
        r0 += r2
        r0 += r3
        r0 += r4
        r3 = *(u64 *)(r1 + 0)
        r0 += r3";
    let expected = |setup: &Setup| {
        let bytes = u64::from(setup.data[1]) + u64::from(setup.scratch[2]);
        Ok(bytes + setup.number + 100 + 64)
    };
    let in_a_callee = format!("r1 = r1\n call inner\n exit\n inner:\n {sum}\n exit");
    let behind_a_loop =
        format!("r6 = *(u64 *)(r1 + 0)\n r6 &= 3\n again:\n r6 -= 1\n if r6 s> 0 goto again\n {sum}\n exit");
    let moved = sum.replace("r1 + ", "r1 - ").replace("- 16", "- 24").replace("- 0)", "- 40)");
    let moved = moved.replace("r3 = *(u64 *)(r1 - 24)", "r3 = *(u64 *)(r1 - 16)");
    let moved = moved.replace("- 32", "- 8").replace("r0 = *(u64 *)(r1 - 40)", "r0 = *(u64 *)(r1 + 0)");
    let moved = format!("r1 += 40\n {moved}\n exit");
    // A function with a loop is not made part of its caller, and a long one is not optimised.
    let in_a_loops_callee = format!("call inner\n exit\n inner:\n {behind_a_loop}");
    let unoptimised = format!("{}{behind_a_loop}", "r5 = 1\n".repeat(5000));
    for text in [format!("{sum}\n exit"), in_a_callee, behind_a_loop, moved, in_a_loops_callee, unoptimised] {
        let setups = with_numbers(&[0, 1, 2, 3]);
        for (setup, after) in setups.iter().zip(run_all(&text, &setups)) {
            assert_eq!(after.outcome, expected(setup), "{text}");
        }
    }
}

#[test]
fn one_load_reads_different_fields() {
    let text = "
        r2 = *(u64 *)(r1 + 0)
        r2 <<= 3
        r1 += r2
        r0 = *(u64 *)(r1 + 0)
        exit";
    let outcomes: Vec<_> =
        run_all(text, &with_numbers(&[0, 1, 3, 5])).into_iter().map(|after| after.outcome).collect();
    assert_eq!(outcomes, [0, 0, 100, 64].map(Ok));
}

#[test]
fn per_call_data_begins_anew_in_each_call() {
    let text = ".per_call 0500000000000000
        r1 = per_call + 0 ll
        r0 = *(u64 *)(r1 + 0)
        r2 = r0
        r2 += 1
        *(u64 *)(r1 + 0) = r2
        exit";
    let compiled = compile_observed(text, &Setup::new());
    for _ in 0..3 {
        assert_eq!(call(&Setup::new(), |call| compiled.run(call)).outcome, Ok(5));
    }
}

#[test]
fn a_call_that_does_not_fit_is_refused() {
    let compiled = compile_observed(".data_len_min 50\nr0 = 0\nexit", &Setup::new());
    let short = Setup { data: vec![0; 49], ..Setup::new() };
    assert!(matches!(call(&short, |call| compiled.run(call)).outcome, Err(CallError::Refused(_))));
    let scratch = Setup { scratch: vec![0; 63], ..Setup::new() };
    assert!(matches!(call(&scratch, |call| compiled.run(call)).outcome, Err(CallError::Refused(_))));
}

#[test]
fn pointers_are_in_the_order_of_their_offsets_wherever_memory_lies() {
    for (_, find, _) in REGIONS {
        for test in ["==", "!=", ">", ">=", "<", "<=", "s>", "s>=", "s<", "s<="] {
            let text = format!(
                "{SECTIONS}
                r7 = *(u64 *)(r1 + 0)
                {find}
                r2 = r6
                r2 += r7
                r0 = 0
                if r6 {test} r2 goto one
                exit
            one:
                r0 = 1
                exit
            nothing:
                r0 = 2
                exit"
            );
            let offsets = [0, 1, -1, i64::MIN, i64::MAX, 1 << 62, -(1 << 62), 1 << 47, -(1 << 47)];
            assert!(run_all(&text, &with_numbers(&offsets)).iter().all(|after| after.outcome.is_ok()));
        }
    }
}

#[test]
fn a_pointer_is_not_null_wherever_it_was_moved() {
    // Where the data lies is known to us, not to a program: moved by as much, its address is 0.
    let setup = Setup::new();
    let address = setup.data.as_ptr().addr() as u64;
    for test in ["==", "!="] {
        let text = format!(
            "r2 = *(u64 *)(r1 + 16)
            r3 = {address:#x} ll
            r2 -= r3
            r0 = 0
            if r2 {test} 0 goto one
            exit
        one:
            r0 = 1
            exit"
        );
        assert_eq!(run(&text, &setup).outcome, Ok(u64::from(test == "!=")));
    }
}
