//! Programs, and what the verifier says of them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

use super::*;
use crate::text;
use crate::world::{Field, FieldKind};

const fn field(name: &'static str, kind: FieldKind) -> Field {
    Field { name, kind, purpose: "" }
}

const FIELDS: &[Field] = &[
    field("data", FieldKind::Data),
    field("data_len", FieldKind::DataLen),
    field("scratch", FieldKind::Scratch),
    field("scratch_len", FieldKind::ScratchLen),
    field("number", FieldKind::Number),
    field("result", FieldKind::Result),
];

const WORLD: World = World {
    name: "test",
    entry: Entry::Context,
    fields: FIELDS,
    scratch_len: 64,
    data_len_max: 1 << 20,
    table_value_len: 24,
    is_called_by_name: false,
};

fn program(source: &str) -> Arc<Program> {
    Arc::new(text::assemble(source).unwrap().program().unwrap())
}

fn verified(source: &str) -> Result<Accepted, Box<Refused>> {
    verify(&program(source), &WORLD, Options::default())
}

/// How many checks are left.
fn checks(source: &str) -> usize {
    match verified(source) {
        Ok(accepted) => accepted.checks.len(),
        Err(refused) => panic!("{refused}"),
    }
}

fn why(source: &str) -> Why {
    verified(source).map(|accepted| accepted.checks).unwrap_err().why
}

const DATA: &str = "r6 = *(u64 *)(r1 + 0)\n r7 = *(u64 *)(r1 + 8)\n r8 = *(u64 *)(r1 + 16)\n";

#[test]
fn the_least_program_is_accepted() {
    assert_eq!(checks("r0 = 0\n exit"), 0);
    assert_eq!(why("exit"), Why::Uninitialised(Register::R0));
    assert_eq!(why("r0 = r3\n exit"), Why::Uninitialised(Register::R3));
}

#[test]
fn addresses_do_not_leave_a_program() {
    assert_eq!(why("r0 = r1\n exit"), Why::PointerReturned);
    assert_eq!(why("r0 = r10\n r0 *= 2\n exit"), Why::PointerArithmetic);
    assert_eq!(why("w0 = w10\n exit"), Why::NotANumber(Register::R10));
    assert_eq!(
        why(&format!("{DATA} *(u64 *)(r8 + 0) = r6\n r0 = 0\n exit")),
        Why::PointerStored(Register::R6)
    );
    assert_eq!(why(&format!("{DATA} r6 -= r8\n r0 = r6\n exit")), Why::PointerArithmetic);
    assert_eq!(checks(&format!("{DATA} r9 = r6\n r9 += 8\n r9 -= r6\n r0 = r9\n exit")), 0);
    assert_eq!(why(&format!("{DATA} r0 = 0\n if r6 > r8 goto +0\n exit")), Why::PointerComparison);
    assert_eq!(why(&format!("{DATA} r0 = 0\n if r6 > 5 goto +0\n exit")), Why::PointerComparison);
}

#[test]
fn a_distance_is_not_the_pointer_that_it_was_taken_of() {
    // What a comparison tells of the distance would make the pointer a number, which could be returned.
    let distance = format!(
        "{DATA} r2 = *(u64 *)(r1 + 32)\n r3 = r6\n r3 += r2\n r4 = r3\n r4 -= r6\n if r4 > 5 goto +0\n r0 = r3\n exit"
    );
    assert_eq!(why(&distance), Why::PointerReturned);
}

#[test]
fn the_stack_is_read_where_it_was_written() {
    assert_eq!(checks("*(u64 *)(r10 - 8) = 5\n r0 = *(u64 *)(r10 - 8)\n exit"), 0);
    assert_eq!(why("r0 = *(u64 *)(r10 - 8)\n exit"), Why::StackUninitialised(-8));
    assert_eq!(why("*(u32 *)(r10 - 8) = 5\n r0 = *(u64 *)(r10 - 8)\n exit"), Why::StackUninitialised(-4));
    assert_eq!(why("r0 = *(u64 *)(r10 + 0)\n exit"), Why::StackBounds { offset: 0, len: 8 });
    assert_eq!(
        why("r2 = r10\n r2 += -516\n r0 = *(u32 *)(r2 + 0)\n exit"),
        Why::StackBounds { offset: -516, len: 4 }
    );
    assert_eq!(why("*(u64 *)(r10 - 8) = r1\n r0 = *(u32 *)(r10 - 8)\n exit"), Why::StackPointer(-8));
    // A pointer that was overwritten in part is none.
    let spoilt = "*(u64 *)(r10 - 8) = r1\n *(u8 *)(r10 - 8) = 1\n r2 = *(u64 *)(r10 - 8)\n r0 = 0\n exit";
    assert_eq!(why(spoilt), Why::StackUninitialised(-7));
    let spilt = "*(u64 *)(r10 - 8) = r1\n r2 = *(u64 *)(r10 - 8)\n r0 = *(u64 *)(r2 + 32)\n exit";
    assert_eq!(checks(spilt), 0);
}

#[test]
fn pointers_to_the_stack_may_be_moved_anywhere() {
    // So far that the end of what is there would wrap around.
    for far in ["9223372036854775807", "9223372036854775800", "-9223372036854775808"] {
        let range = format!(
            "*(u64 *)(r10 - 8) = 1\n r2 = {far} ll\n r1 = r10\n r1 += r2\n r2 = 8\n call ob_table_lookup\n r0 = 0\n exit"
        );
        assert_eq!(checks(&range), 1);
    }
}

#[test]
fn the_context_is_read_by_its_fields() {
    assert_eq!(checks("r0 = *(u64 *)(r1 + 32)\n *(u64 *)(r1 + 40) = r0\n exit"), 0);
    assert!(matches!(why("r0 = *(u32 *)(r1 + 32)\n exit"), Why::Context { len: 4, .. }));
    assert!(matches!(why("r0 = *(u64 *)(r1 + 36)\n exit"), Why::Context { .. }));
    assert!(matches!(why("r0 = *(u64 *)(r1 + 48)\n exit"), Why::Context { .. }));
    assert!(matches!(why("*(u64 *)(r1 + 32) = 1\n r0 = 0\n exit"), Why::Context { is_write: true, .. }));
}

#[test]
fn data_is_bounded_by_its_length() {
    assert_eq!(checks(&format!("{DATA} r0 = *(u8 *)(r6 + 0)\n exit")), 1);
    assert_eq!(checks(&format!("{DATA} r0 = 0\n if r7 < 8 goto +1\n r0 = *(u64 *)(r6 + 0)\n exit")), 0);
    assert_eq!(checks(&format!("{DATA} r0 = 0\n if r7 < 7 goto +1\n r0 = *(u64 *)(r6 + 0)\n exit")), 1);
    assert_eq!(checks(&format!(".data_len_min 8\n{DATA} r0 = *(u64 *)(r6 + 0)\n exit")), 0);
    assert_eq!(why(&format!("{DATA} *(u8 *)(r6 + 0) = 1\n r0 = 0\n exit")), Why::ReadOnly(Region::Data));
    // A check that did not fail has told something.
    assert_eq!(checks(&format!("{DATA} r0 = *(u8 *)(r6 + 7)\n r0 = *(u64 *)(r6 + 0)\n exit")), 1);
    assert_eq!(checks(&format!("{DATA} r0 = *(u8 *)(r6 + 6)\n r0 = *(u64 *)(r6 + 0)\n exit")), 2);
    assert_eq!(checks(&format!("{DATA} r0 = *(u64 *)(r6 + 8)\n r0 = *(u64 *)(r6 + 0)\n exit")), 1);
}

#[test]
fn a_loop_over_the_data_needs_no_checks() {
    let by_index = format!(
        "{DATA} r0 = 0\n r2 = 0\n
         next: if r2 >= r7 goto done\n
         r3 = r6\n r3 += r2\n r3 = *(u8 *)(r3 + 0)\n r0 += r3\n r2 += 1\n goto next\n
         done: exit"
    );
    assert_eq!(checks(&by_index), 0);
    let by_pointer = format!(
        "{DATA} r0 = 0\n r2 = r6\n r2 += r7\n
         next: if r6 >= r2 goto done\n
         r3 = *(u8 *)(r6 + 0)\n r0 += r3\n r6 += 1\n goto next\n
         done: exit"
    );
    assert_eq!(checks(&by_pointer), 0);
    // By four bytes, of which the last may be cut off.
    let by_words = format!(
        "{DATA} r0 = 0\n r2 = 0\n
         next: r4 = r2\n r4 += 4\n if r4 > r7 goto done\n
         r3 = r6\n r3 += r2\n r3 = *(u32 *)(r3 + 0)\n r0 += r3\n r2 = r4\n goto next\n
         done: exit"
    );
    assert_eq!(checks(&by_words), 1);
}

#[test]
fn a_bounded_loop_over_the_scratch_needs_no_checks() {
    let loops = format!(
        "{DATA} r2 = 0\n
         next: r3 = r8\n r3 += r2\n *(u8 *)(r3 + 0) = 1\n r2 += 1\n if r2 != 64 goto next\n
         r0 = 0\n exit"
    );
    assert_eq!(checks(&loops), 0);
    let loops = loops.replace("!= 64", "< 64");
    assert_eq!(checks(&loops), 0);
    assert_eq!(checks(&loops.replace("< 64", "<= 64")), 1);
}

#[test]
fn copies_are_known_to_be_the_same() {
    let masked = format!(
        "{DATA} r2 = *(u64 *)(r1 + 32)\n r3 = r2\n r0 = 0\n if r3 > 63 goto +3\n r8 += r2\n r0 = *(u8 *)(r8 + 0)\n r0 = 1\n exit"
    );
    assert_eq!(checks(&masked), 0);
}

#[test]
fn what_a_lookup_finds_may_be_null() {
    let lookup = "*(u64 *)(r10 - 8) = 1\n r1 = r10\n r1 += -8\n r2 = 8\n call ob_table_lookup\n";
    assert_eq!(why(&format!("{lookup} r0 = *(u8 *)(r0 + 0)\n exit")), Why::MayBeNull(Register::R0));
    assert_eq!(
        checks(&format!("{lookup} r1 = r0\n if r1 == 0 goto +1\n r0 = *(u64 *)(r0 + 16)\n r0 = 0\n exit")),
        0
    );
    assert_eq!(
        why(&format!("{lookup} if r0 != 0 goto +1\n r0 = *(u64 *)(r0 + 16)\n r0 = 0\n exit")),
        Why::NotAPointer(Register::R0)
    );
    assert_eq!(
        why("r1 = r10\n r1 += -8\n r2 = 8\n call ob_table_lookup\n r0 = 0\n exit"),
        Why::StackUninitialised(-8)
    );
    assert_eq!(why("call 77\n exit"), Why::NoHelper(77));
}

#[test]
fn a_pointer_that_may_be_anywhere_is_not_null_wherever_it_is() {
    // Its address might be 0, and compiled code go a way that was not followed, if the verdict did not say so.
    let far = format!("{DATA} r2 = *(u64 *)(r1 + 32)\n r8 += r2\n r0 = 0\n if r8 == 0 goto +0\n exit");
    let comparisons = |source: &str| {
        let accepted = verified(source).unwrap_or_else(|refused| panic!("{refused}"));
        accepted.verified.variants()[0].comparisons.clone()
    };
    assert_eq!(comparisons(&far), BTreeMap::from([(6, verdict::Comparison::NeverNull)]));
    assert_eq!(comparisons(&far.replace("r8 += r2", "r2 &= 63\n r8 += r2")), BTreeMap::new());
    let offsets = verdict::Comparison::Offsets { region: Region::Scratch, frame: 0 };
    let order = far.replace("if r8 == 0", "r3 = *(u64 *)(r1 + 16)\n if r3 > r8");
    assert_eq!(comparisons(&order), BTreeMap::from([(7, offsets)]));
}

#[test]
fn functions_are_verified_with_what_they_are_called_with() {
    let calls = format!(
        "{DATA} r1 = r6\n r2 = r7\n call local sum\n r9 = r0\n r1 = r8\n r2 = 64\n call local sum\n r0 += r9\n exit\n
         sum: r0 = 0\n r3 = 0\n
         next: if r3 >= r2 goto done\n r4 = r1\n r4 += r3\n r4 = *(u8 *)(r4 + 0)\n r0 += r4\n r3 += 1\n goto next\n
         done: exit"
    );
    let accepted = verified(&calls).unwrap_or_else(|refused| panic!("{refused}"));
    assert_eq!((accepted.checks.len(), accepted.verified.variants().len()), (0, 3));
    // A function writes to what it was lent, and leaves a pointer where the caller reads it.
    let lent = format!(
        "{DATA} *(u64 *)(r10 - 16) = r6\n r1 = r10\n r1 += -16\n call local step\n r2 = *(u64 *)(r10 - 16)\n r2 -= r6\n r0 = r2\n exit\n
         step: r2 = *(u64 *)(r1 + 0)\n r2 += 1\n *(u64 *)(r1 + 0) = r2\n exit"
    );
    assert_eq!(checks(&lent), 0);
    let dangling =
        "r1 = r10\n r1 += -8\n call local leak\n r2 = *(u64 *)(r10 - 8)\n r0 = *(u64 *)(r2 + 0)\n exit\n
         leak: r2 = r10\n *(u64 *)(r2 - 8) = 1\n r2 += -8\n *(u64 *)(r1 + 0) = r2\n r0 = 0\n exit";
    assert_eq!(why(dangling), Why::StackUninitialised(-8));
    assert_eq!(why("call local own\n r0 = 0\n exit\n own: r0 = r10\n exit"), Why::PointerReturned);
    // Where it is returned on one way only, nobody can use it.
    let sometimes =
        "r1 = *(u64 *)(r1 + 32)\n call local own\n r0 = 0\n exit\n own: if r1 > 7 goto +1\n r0 = r10\n exit";
    assert_eq!(checks(sometimes), 0);
    assert_eq!(why(&sometimes.replace("r0 = 0", "r0 += 0")), Why::Uninitialised(Register::R0));
}

#[test]
fn a_refusal_explains_itself() {
    let refused = verified(&format!(
        "{DATA} if r7 > 3 goto +1\n r3 = 1\n r0 = r3\n r0 = *(u8 *)(r6 + 0)\n r0 = r7\n exit"
    ))
    .unwrap_err();
    assert_eq!((refused.at, refused.why.clone()), (5, Why::Uninitialised(Register::R3)));
    assert_eq!(refused.path, [(3, true)]);
    let told = refused.to_string();
    for expected in ["r0 = r3", "3 taken", "r6: a pointer to the data", "r7: the data's length"] {
        assert!(told.contains(expected), "{told}");
    }
    let strict = Options { is_strict: true, ..Options::default() };
    let refused =
        verify(&program(&format!("{DATA} r0 = *(u8 *)(r6 + 0)\n exit")), &WORLD, strict).unwrap_err();
    assert!(matches!(refused.why, Why::Unproven(_)), "{refused}");
}

#[test]
fn an_end_that_is_shared_is_no_loop_wherever_it_stands() {
    let shared = "r2 = *(u64 *)(r1 + 32)\n goto begin\n
         done: r0 = 0\n if r4 == 0 goto out\n r0 = r3\n
         out: exit\n
         begin: r4 = 0\n if r2 == 0 goto done\n r4 = 1\n r3 = 7\n goto done";
    assert_eq!(checks(shared), 0);
}

/// Makes `r9` a pointer into the data, and `r2` a number up to 64, and goes out unless so many bytes from there on are in the data.
const RANGE: &str = "r6 = *(u64 *)(r1 + 0)\n r7 = *(u64 *)(r1 + 8)\n r2 = *(u64 *)(r1 + 32)\n r0 = 0\n
     if r2 > 64 goto out\n if r2 < 8 goto out\n if r7 == 0 goto out\n
     r3 = *(u8 *)(r6 + 0)\n r9 = r6\n r9 += r3\n r4 = r6\n r4 += r7\n
     r5 = r9\n r5 += r2\n if r5 > r4 goto out\n";

#[test]
fn a_range_is_proven_by_its_end() {
    let crc = "r1 = 0\n r3 = r2\n r2 = r9\n call ob_crc32c\n out: exit";
    assert_eq!(checks(&format!("{RANGE} {crc}")), 0);
    assert_eq!(checks(&format!("{RANGE} r9 += 1\n {crc}")), 1);
    assert_eq!(checks(&format!("{RANGE} r2 += 1\n {crc}")), 1);
    let further = RANGE.replace("if r5 > r4", "r4 += 1\n if r5 > r4");
    assert_eq!(checks(&format!("{further} {crc}")), 1);
    // The last eight bytes of the range, of which there are eight at least.
    let last = |offset| format!("{RANGE} r2 += -8\n r9 += r2\n r0 = *(u64 *)(r9 + {offset})\n out: exit");
    assert_eq!((checks(&last(0)), checks(&last(1))), (0, 1));
    // What is compared is a sum of other numbers each time that ways meet.
    let loops = format!(
        "{RANGE} next: r9 += r2\n r0 = *(u8 *)(r9 - 1)\n r2 = *(u8 *)(r6 + 0)\n if r0 != 0 goto next\n out: exit"
    );
    assert_eq!(checks(&loops), 1);
}

#[test]
fn what_is_taken_from_the_length_leaves_a_part_of_it() {
    let cut = |length: &str| {
        format!(
            "{DATA} r0 = 0\n r2 = *(u64 *)(r1 + 32)\n {length} if r2 > r7 goto out\n r4 = r6\n r4 += r3\n r4 -= r2\n
             if r6 >= r4 goto out\n r0 = *(u8 *)(r6 + 0)\n out: exit"
        )
    };
    assert_eq!(checks(&cut("r3 = r7\n")), 0);
    assert_eq!(checks(&cut("r3 = r7\n r3 += 1\n")), 1);
}

#[test]
fn one_access_may_be_to_several_fields_if_each_is_right() {
    let field =
        |access: &str| format!("r2 = *(u64 *)(r1 + 32)\n r2 &= 8\n r1 += r2\n r0 = 0\n {access}\n exit");
    assert_eq!(checks(&field("r0 = *(u64 *)(r1 + 32)")), 0);
    assert!(matches!(why(&field("*(u64 *)(r1 + 32) = 1")), Why::Context { is_write: true, .. }));
    assert!(matches!(why(&field("r0 = *(u64 *)(r1 + 24)")), Why::Context { is_write: false, .. }));
    assert!(matches!(why(&field("r0 = *(u64 *)(r1 + 40)")), Why::Context { .. }));
}

#[test]
fn what_a_function_returns_tells_what_it_has_written() {
    let read = "read: r0 = 0\n if r2 == 0 goto done\n *(u64 *)(r1 + 0) = 5\n r0 = 1\n done: exit";
    let call = "r2 = *(u64 *)(r1 + 32)\n r1 = r10\n r1 += -8\n call local read\n";
    assert_eq!(
        checks(&format!("{call} if r0 == 0 goto out\n r0 = *(u64 *)(r10 - 8)\n out: exit\n {read}")),
        0
    );
    let unasked = format!("{call} r0 = *(u64 *)(r10 - 8)\n exit\n {read}");
    assert_eq!(why(&unasked), Why::StackUninitialised(-8));
    // A second call with more on the stack does not lose what was there.
    let twice = format!(
        "r6 = *(u64 *)(r1 + 32)\n *(u64 *)(r10 - 16) = 3\n r2 = r6\n r1 = r10\n r1 += -8\n call local read\n
         *(u64 *)(r10 - 24) = 4\n r2 = r6\n r1 = r10\n r1 += -8\n call local read\n
         r0 = *(u64 *)(r10 - 16)\n r1 = *(u64 *)(r10 - 24)\n exit\n {read}"
    );
    assert_eq!(checks(&twice), 0);
}

#[test]
fn ways_that_are_alike_are_joined_before_those_that_are_not() {
    let fails = (1..=8).map(|at| format!("r3 = {at}\n if r2 == {at} goto done\n")).collect::<String>();
    let many = format!(
        "r2 = *(u64 *)(r1 + 32)\n r4 = 0\n {fails} r4 = 1\n r3 = 0\n r6 = 9\n
         done: r0 = r3\n if r4 == 0 goto out\n r0 = r6\n out: exit"
    );
    assert_eq!(checks(&many), 0);
}

#[test]
fn what_goes_along_with_a_counter_is_known_in_a_short_loop() {
    let loops = |len: usize, rounds: usize| {
        format!(
            ".data_len_min {len}\n{DATA} r2 = 0\n
             next: r0 = *(u64 *)(r6 + 0)\n r6 += 8\n r2 += 1\n if r2 != {rounds} goto next\n exit"
        )
    };
    assert_eq!((checks(&loops(64, 8)), checks(&loops(64, 9)), checks(&loops(63, 8))), (0, 1, 1));
    assert_eq!(checks(&loops(8000, 1000)), 1);
    // A loop that the counter does not end.
    let endless = format!(
        "{DATA} r2 = 0\n next: r2 += 1\n r3 = *(u64 *)(r1 + 32)\n if r3 != 0 goto next\n r0 = r2\n exit"
    );
    assert_eq!(checks(&endless), 0);
}

/// One branch compares pointers to two places, one of which is far from its memory: in whichever order the ways are gone, nobody can say from
/// where to count.
#[test]
fn places_that_are_compared_by_one_branch_are_all_remembered() {
    let far = "r1 = r7\n r3 = 0x7fffffffffff0000 ll\n r1 += r3\n r2 = r7";
    let near = "r1 = r7\n r2 = r7\n r2 += 8";
    let stack = "r1 = r10\n r1 += -8\n r2 = r10";
    for [first, second, third] in
        [[far, stack, near], [far, near, stack], [near, stack, far], [near, far, stack], [stack, far, near]]
    {
        let text = format!(
            "r6 = *(u64 *)(r1 + 32)
             r7 = *(u64 *)(r1 + 16)
             r0 = 0
             if r6 == 1 goto second
             if r6 == 2 goto third
             {first}
             goto join
         second:
             {second}
             goto join
         third:
             {third}
         join:
             if r1 < r2 goto yes
             exit
         yes:
             r0 = 1
             exit"
        );
        assert!(matches!(why(&text), Why::ComparisonUnclear), "{text}");
    }
}

/// Functions that fill their frames and lend them to the next one; the last has as many ways as it is long.
fn deep_and_wide(rounds: usize) -> String {
    let fill = (1..=64).map(|slot| format!("*(u64 *)(r10 - {}) = 0\n", slot * 8)).collect::<String>();
    let lend = format!("{fill} *(u64 *)(r10 - 512) = r1\n r1 = r10\n");
    let lenders = (1..7)
        .map(|at| format!("f{at}: {lend} call local f{}\n r0 = 0\n exit\n", at + 1))
        .collect::<String>();
    let ways = "if r6 & 1 goto +0\n *(u64 *)(r10 - 8) = 0\n if r6 & 2 goto +0\n *(u64 *)(r10 - 8) = 0\n";
    format!(
        "r2 = *(u64 *)(r1 + 32)\n {fill} r1 = r10\n call local f1\n r0 = 0\n exit\n {lenders}
         f7: {lend} r6 = r2\n {} r0 = 0\n exit",
        ways.repeat(rounds)
    )
}

/// Calls of one function, each with pointers in other slots of the frame that is lent.
fn many_kinds(calls: usize) -> String {
    let fill = (1..=64).map(|slot| format!("*(u64 *)(r10 - {}) = 0\n", slot * 8)).collect::<String>();
    let calls = (1..=calls).map(|call| {
        let slot = 16 + 8 * call.trailing_zeros();
        let is_pointer = call & (2 << call.trailing_zeros()) == 0;
        let value = if is_pointer { "r10" } else { "r0" };
        format!("r0 = 0\n *(u64 *)(r10 - {slot}) = {value}\n r1 = r10\n call local lent\n")
    });
    format!("{fill} {} r0 = 0\n exit\n lent: *(u64 *)(r1 - 8) = 0\n r0 = 0\n exit", calls.collect::<String>())
}

#[test]
fn what_is_kept_in_mind_is_bounded() {
    assert_eq!(checks(&deep_and_wide(20)), 0);
    assert!(matches!(why(&deep_and_wide(3900)), Why::TooManyWays(_)));
    assert_eq!(checks(&many_kinds(500)), 0);
    assert!(matches!(why(&many_kinds(3500)), Why::TooManyWays(_)));
}

/// A function that knows all slots of eight full frames, and goes so many ways that differ in the last of them, for so many entries.
fn deep_and_alike(frames: usize, ways: usize, entries: usize) -> String {
    let fill = |with: &str| {
        (1..64).map(|slot| format!("*(u64 *)(r10 - {}) = {with}\n", slot * 8)).collect::<String>()
    };
    let lend = "*(u64 *)(r10 - 512) = r1\n r1 = r10\n";
    let lenders = (1..frames - 1)
        .map(|at| format!("f{at}: {} {lend} call local f{}\n r0 = 0\n exit\n", fill("r2"), at + 1))
        .collect::<String>();
    let call = |entry| format!("*(u64 *)(r10 - 8) = {entry}\n r1 = r10\n r2 = r6\n call local known\n");
    let calls = (0..entries).map(call).collect::<String>();
    let loads = (1..64).map(|slot| format!("r0 = *(u64 *)(r8 - {})\n", slot * 8)).collect::<String>();
    let known = vec![loads; frames].join("r8 = *(u64 *)(r8 - 512)\n");
    let way = |way| format!("if r6 & {} goto +1\n *(u64 *)(r8 - 8) = {way}\n", 1 << way);
    let ways = (0..ways).map(way).collect::<String>();
    format!(
        "r2 = *(u64 *)(r1 + 32)\n {} r1 = r10\n call local f1\n r0 = 0\n exit\n {lenders}
         f{}: {} {lend} r6 = r2\n {calls} r0 = 0\n exit\n
         known: r8 = r1\n r6 = r2\n {known} {ways} r0 = 0\n exit",
        fill("r2"),
        frames - 1,
        fill("0"),
    )
}

#[test]
fn what_is_compared_and_copied_is_bounded() {
    let verified = |text: &str, work_max| {
        verify(&program(text), &WORLD, Options { work_max, ..Options::default() })
            .map_err(|refused| refused.why)
    };
    let [shallow, deep] = [2, 7].map(|frames| {
        let accepted = verified(&deep_and_alike(frames, 12, 4), u64::MAX).unwrap();
        (accepted.work, accepted.steps)
    });
    // Much the same steps are more work where there is more to compare.
    assert!(deep.0 > 2 * shallow.0 && deep.0 > 100 * deep.1, "{shallow:?} and {deep:?}");
    let (text, (needed, _)) = (deep_and_alike(7, 12, 4), deep);
    assert!(verified(&text, needed).is_ok());
    assert_eq!(verified(&text, needed / 2).err(), Some(Why::TooMuchToCompare(needed / 2)));
}
