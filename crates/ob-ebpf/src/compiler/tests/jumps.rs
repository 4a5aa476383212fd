//! Questions that are asked twice: the second answer is taken from the first where that is known, and only there.

use super::*;

/// Runs a program with numbers around 5, each with every fuel up to what it costs.
fn run_each(text: &str) -> Vec<Outcome> {
    let numbers = with_numbers(&[-1, 0, 1, 4, 5, 6, 7, 1 << 40]);
    let enough = run_all(text, &numbers);
    let mut setups = numbers.clone();
    for (setup, after) in numbers.iter().zip(&enough) {
        let cost = setup.fuel - after.fuel;
        setups.extend((0..cost).map(|fuel| Setup { fuel, ..setup.clone() }));
    }
    run_all(text, &setups);
    enough.into_iter().map(|after| after.outcome).collect()
}

#[test]
fn a_choice_and_the_branch_behind_it_ask_once() {
    let text = |second: &str| {
        format!(
            "
        r2 = *(u64 *)(r1 + 0)
        r3 = 5
        r4 = 10
        if r2 > r3 goto over
        r4 = 20
    over:
        if r2 > r3 goto {second}
        r4 += 1
    behind:
        r0 = r4
        exit"
        )
    };
    let expected = [10, 21, 21, 21, 21, 10, 10, 10].map(Ok);
    assert_eq!(run_each(&text("behind")), expected);
    let len = |text: &str| compile_observed(text, &Setup::new()).code_len();
    assert!(len(&text("behind")) < len(&text("behind").replacen("> r3", ">= r3", 1)), "it is asked again");
}

#[test]
fn back_edges_behind_a_second_question_cost_what_they_do() {
    let text = "
        r2 = *(u64 *)(r1 + 0)
        r2 &= 15
        r0 = 0
        r3 = 5
        goto first
    again:
        r2 += 1
        r0 += r4
        if r0 > 60 goto out
    first:
        r4 = 1
        if r2 s> r3 goto over
        r4 = 7
    over:
        if r2 s> r3 goto again
        r0 += 100
        goto again
    out:
        exit";
    assert!(run_each(text).iter().all(Result::is_ok));
}

#[test]
fn what_was_overwritten_is_asked_again() {
    for between in ["r2 = 9", "r3 = 0", "r2 -= 1", "w2 = w2", "r3 = r2"] {
        let text = format!(
            "
        r2 = *(u64 *)(r1 + 0)
        r3 = 5
        r0 = 0
        if r2 > r3 goto over
        {between}
    over:
        if r2 > r3 goto out
        r0 += 1
        if r2 > r3 goto out
        r0 += 2
    out:
        exit"
        );
        run_each(&text);
        // The same where nobody comes by the first branch.
        run_each(&text.replace("goto over", "goto out"));
    }
}

#[test]
fn a_place_that_others_go_to_asks_them() {
    let text = "
        r2 = *(u64 *)(r1 + 0)
        r0 = 0
        if r2 == 7 goto over
        if r2 > 5 goto out
        r0 += 1
    over:
        if r2 > 5 goto out
        r0 += 2
    out:
        exit";
    assert_eq!(run_each(text), [0, 3, 3, 3, 3, 0, 0, 0].map(Ok));
    // As above, but it is what follows the branch that others go to.
    let text = "
        r2 = *(u64 *)(r1 + 0)
        r0 = 0
        if r2 == 7 goto behind
        if r2 > 5 goto out
    behind:
        r0 += 1
        if r2 > 5 goto out
        r0 += 2
    out:
        exit";
    assert_eq!(run_each(text), [0, 3, 3, 3, 3, 0, 1, 0].map(Ok));
}

#[test]
fn other_questions_are_asked() {
    for (first, second) in [
        ("r2 > 5", "r2 s> 5"),
        ("r2 > 5", "r2 >= 5"),
        ("r2 > 5", "w2 > 5"),
        ("w2 > 5", "r2 > 5"),
        ("r2 > 5", "r2 > 6"),
        ("r2 > r3", "r3 > r2"),
        ("r2 > r3", "r2 > r4"),
        ("r2 > 5", "r2 > r3"),
        ("r2 & 4", "r2 == 4"),
    ] {
        let text = format!(
            "
        r2 = *(u64 *)(r1 + 0)
        r3 = 5
        r4 = 6
        r0 = 0
        if {first} goto over
        r0 += 1
    over:
        if {second} goto out
        r0 += 2
    out:
        exit"
        );
        run_each(&text);
    }
}

#[test]
fn questions_follow_each_other() {
    let text = "
        r2 = *(u64 *)(r1 + 0)
        r0 = 0
        if r2 > 5 goto second
        r0 += 1
    second:
        if r2 > 5 goto third
        r0 += 2
    third:
        if r2 > 5 goto out
        r0 += 4
    out:
        exit";
    assert_eq!(run_each(text), [0, 7, 7, 7, 7, 0, 0, 0].map(Ok));
}

#[test]
fn pointers_are_asked_about_once_and_by_what_they_point_to() {
    let text = "
        r2 = *(u64 *)(r1 + 16)
        r3 = r2
        r4 = *(u64 *)(r1 + 0)
        r3 += r4
        r0 = 0
        if r3 > r2 goto over
        r0 += 1
    over:
        if r3 > r2 goto out
        r0 += 2
    out:
        exit";
    run_each(text);
}
