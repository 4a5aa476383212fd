//! Histories of which one knows what they are.

use super::*;

const OK: Reply = Reply::Done;
const NIL: Reply = Reply::Nil;

/// Histories with what is said about them.
type Named = Vec<(&'static str, Vec<KvOperation>)>;

fn number(number: i64) -> Reply {
    Reply::Integer(number)
}

fn set_if_absent(key: &str, value: &str) -> Command {
    Command::SetIfAbsent(bytes(key), bytes(value))
}

fn get_and_delete(key: &str) -> Command {
    Command::GetAndDelete(bytes(key))
}

fn good() -> Named {
    vec![
        ("nothing", vec![]),
        ("one after the other", vec![did(0, 0, 1, set("a", "1"), OK), did(1, 2, 3, get("a"), value("1"))]),
        (
            "a read beside a write sees the old value",
            vec![
                did(0, 0, 1, set("a", "1"), OK),
                did(0, 2, 9, set("a", "2"), OK),
                did(1, 3, 4, get("a"), value("1")),
            ],
        ),
        (
            "a read beside a write sees the new value",
            vec![
                did(0, 0, 1, set("a", "1"), OK),
                did(0, 2, 9, set("a", "2"), OK),
                did(1, 3, 4, get("a"), value("2")),
            ],
        ),
        ("at the same instant is beside", vec![did(0, 0, 5, set("a", "1"), OK), did(1, 5, 6, get("a"), NIL)]),
        (
            "what was lost took effect late",
            vec![
                lost(0, 0, set("a", "1")),
                did(1, 10, 11, get("a"), NIL),
                did(1, 20, 21, get("a"), value("1")),
            ],
        ),
        ("what was lost never took effect", vec![lost(0, 0, set("a", "1")), did(1, 10, 11, get("a"), NIL)]),
        (
            "what was lost took effect before its server was gone",
            vec![
                gone(0, 0, 9, set("a", "1")),
                did(1, 5, 6, get("a"), NIL),
                did(1, 20, 21, get("a"), value("1")),
            ],
        ),
        ("a lost read says nothing", vec![did(0, 0, 1, set("a", "1"), OK), lost(1, 2, get("a"))]),
    ]
}

fn good_changes() -> Named {
    vec![
        (
            "increments in any order",
            vec![did(0, 0, 9, increment("a"), number(2)), did(1, 0, 9, increment("a"), number(1))],
        ),
        (
            "a text is not a number",
            vec![
                did(0, 0, 1, set("a", "x"), OK),
                did(0, 2, 3, increment("a"), Reply::Refused),
                did(0, 4, 5, get("a"), value("x")),
            ],
        ),
        (
            "many keys at once",
            vec![
                did(0, 0, 9, set_many(&[("a", "1"), ("b", "1")]), OK),
                did(1, 1, 8, get_many(&["a", "b"]), values(&[None, None])),
                did(2, 1, 8, get_many(&["b", "a"]), values(&[Some("1"), Some("1")])),
            ],
        ),
        (
            "one of two sets what was absent",
            vec![
                did(0, 0, 9, set_if_absent("a", "1"), number(0)),
                did(1, 0, 9, set_if_absent("a", "2"), number(1)),
                did(1, 10, 11, get("a"), value("2")),
            ],
        ),
    ]
}

fn good_times() -> Named {
    vec![
        (
            "there before the expiry and gone after it",
            vec![
                did(0, 0, 1, set_for("a", "1", 100), OK),
                did(0, 50, 51, get("a"), value("1")),
                did(0, 104, 105, get("a"), NIL),
            ],
        ),
        (
            "either within the margin",
            vec![
                did(0, 0, 0, set_for("a", "1", 100), OK),
                did(0, 98, 98, get("a"), NIL),
                did(1, 0, 0, set_for("b", "1", 100), OK),
                did(1, 102, 102, get("b"), value("1")),
            ],
        ),
        (
            "it expires so long after it took effect, whenever that was",
            vec![did(0, 0, 50, set_for("a", "1", 100), OK), did(0, 149, 150, get("a"), value("1"))],
        ),
        (
            "what persists does not expire",
            vec![
                did(0, 0, 1, set_for("a", "1", 10), OK),
                did(0, 2, 3, Command::Expire(bytes("a"), Expiry::Never), number(1)),
                did(0, 99, 99, get("a"), value("1")),
            ],
        ),
        (
            "an appended value keeps its expiry, and a new one has none",
            vec![
                did(0, 0, 1, set_for("a", "1", 10), OK),
                did(0, 2, 3, append("a", "2"), number(2)),
                did(0, 50, 51, append("a", "3"), number(1)),
                did(0, 99, 99, get("a"), value("3")),
            ],
        ),
        (
            "all is cleared",
            vec![
                did(0, 0, 1, set("a", "1"), OK),
                did(1, 0, 1, set("b", "1"), OK),
                did(0, 2, 3, Command::Clear, OK),
                did(1, 4, 5, Command::Exists(vec![bytes("a"), bytes("b")]), number(0)),
            ],
        ),
    ]
}

fn stale() -> Named {
    vec![
        (
            "stale read",
            vec![
                did(0, 0, 1, set("a", "1"), OK),
                did(0, 2, 3, set("a", "2"), OK),
                did(1, 4, 5, get("a"), value("1")),
            ],
        ),
        ("a write that was not seen", vec![did(0, 0, 1, set("a", "1"), OK), did(1, 2, 3, get("a"), NIL)]),
        (
            "a value that nobody wrote",
            vec![did(0, 0, 1, set("a", "1"), OK), did(1, 2, 3, get("a"), value("7"))],
        ),
        (
            "back to the old value while the write is under way",
            vec![
                did(0, 0, 1, set("a", "1"), OK),
                did(0, 2, 90, set("a", "2"), OK),
                did(1, 3, 4, get("a"), value("2")),
                did(1, 5, 6, get("a"), value("1")),
            ],
        ),
        (
            "another client sees less",
            vec![
                did(0, 0, 90, set("a", "1"), OK),
                did(1, 3, 4, get("a"), value("1")),
                did(2, 5, 6, get("a"), NIL),
            ],
        ),
        (
            "two readers see two writes in two orders",
            vec![
                did(0, 0, 9, set("a", "1"), OK),
                did(1, 0, 9, set("a", "2"), OK),
                did(2, 10, 11, get("a"), value("1")),
                did(3, 12, 13, get("a"), value("2")),
            ],
        ),
    ]
}

fn impossible() -> Named {
    vec![
        (
            "an effect before its call",
            vec![did(1, 0, 1, get("a"), value("1")), did(0, 2, 3, set("a", "1"), OK)],
        ),
        (
            "an effect of a lost write before its call",
            vec![did(1, 0, 1, get("a"), value("1")), lost(0, 2, set("a", "1"))],
        ),
        (
            "a write of an earlier life",
            vec![
                gone(0, 0, 9, set("a", "1")),
                did(1, 20, 21, get("a"), NIL),
                did(1, 22, 23, get("a"), value("1")),
            ],
        ),
        (
            "a lost write that came and went",
            vec![
                did(0, 0, 1, set("a", "1"), OK),
                lost(1, 2, set("a", "2")),
                did(0, 3, 4, get("a"), value("2")),
                did(0, 5, 6, get("a"), value("1")),
            ],
        ),
        (
            "back after it was deleted",
            vec![
                did(0, 0, 1, set("a", "1"), OK),
                did(0, 2, 3, delete("a"), number(1)),
                did(1, 4, 5, get("a"), value("1")),
            ],
        ),
        (
            "back after all was cleared",
            vec![
                did(0, 0, 1, set("a", "1"), OK),
                did(0, 2, 3, Command::Clear, OK),
                did(1, 4, 5, Command::Length(bytes("a")), number(1)),
            ],
        ),
    ]
}

fn torn() -> Named {
    vec![
        (
            "an increment was lost",
            vec![
                did(0, 0, 9, increment("a"), number(1)),
                did(1, 0, 9, increment("a"), number(2)),
                did(0, 10, 11, get("a"), value("1")),
            ],
        ),
        (
            "two increments gave the same",
            vec![did(0, 0, 9, increment("a"), number(1)), did(1, 0, 9, increment("a"), number(1))],
        ),
        (
            "an increment happened twice",
            vec![did(0, 0, 1, increment("a"), number(1)), did(0, 2, 3, get("a"), value("2"))],
        ),
        (
            "a lost increment happened twice",
            vec![lost(0, 0, increment("a")), did(1, 5, 6, get("a"), value("2"))],
        ),
        (
            "an appended piece was lost",
            vec![
                did(0, 0, 9, append("a", "x"), number(1)),
                did(1, 0, 9, append("a", "y"), number(2)),
                did(0, 10, 11, get("a"), value("y")),
            ],
        ),
        (
            "pieces in an order that was not",
            vec![
                did(0, 0, 1, append("a", "x"), number(1)),
                did(1, 2, 3, append("a", "y"), number(2)),
                did(0, 10, 11, get("a"), value("yx")),
            ],
        ),
    ]
}

fn shared() -> Named {
    vec![
        (
            "many keys, one before and one after",
            vec![
                did(0, 0, 9, set_many(&[("a", "1"), ("b", "1")]), OK),
                did(1, 1, 8, get_many(&["a", "b"]), values(&[Some("1"), None])),
            ],
        ),
        (
            "two readers see two keys change in two orders",
            vec![
                did(0, 0, 90, set("a", "1"), OK),
                did(1, 0, 90, set("b", "1"), OK),
                did(2, 10, 11, get_many(&["a", "b"]), values(&[Some("1"), None])),
                did(3, 12, 13, get_many(&["a", "b"]), values(&[None, Some("1")])),
            ],
        ),
        (
            "both set what was absent",
            vec![
                did(0, 0, 9, set_if_absent("a", "1"), number(1)),
                did(1, 0, 9, set_if_absent("a", "2"), number(1)),
            ],
        ),
        (
            "both took what was there once",
            vec![
                did(0, 0, 1, set("a", "1"), OK),
                did(0, 2, 9, get_and_delete("a"), value("1")),
                did(1, 2, 9, get_and_delete("a"), value("1")),
            ],
        ),
        (
            "both deleted what was there once",
            vec![
                did(0, 0, 1, set("a", "1"), OK),
                did(0, 2, 9, delete("a"), number(1)),
                did(1, 2, 9, delete("a"), number(1)),
            ],
        ),
    ]
}

fn expired() -> Named {
    vec![
        (
            "seen after it expired",
            vec![did(0, 0, 1, set_for("a", "1", 100), OK), did(1, 104, 105, get("a"), value("1"))],
        ),
        (
            "gone before it expired",
            vec![did(0, 0, 1, set_for("a", "1", 100), OK), did(1, 90, 91, get("a"), NIL)],
        ),
        (
            "expired and back within the margin",
            vec![
                did(0, 0, 0, set_for("a", "1", 100), OK),
                did(1, 99, 99, get("a"), NIL),
                did(1, 100, 100, get("a"), value("1")),
            ],
        ),
        (
            "one of two expired much later than the other",
            vec![
                did(0, 0, 0, Command::Set(bytes("a"), bytes("1"), Expiry::At(100)), OK),
                did(0, 0, 0, Command::Set(bytes("b"), bytes("1"), Expiry::At(110)), OK),
                did(1, 1, 200, get_many(&["a", "b"]), values(&[Some("1"), None])),
            ],
        ),
        (
            "expired though it was written again",
            vec![
                did(0, 0, 1, set_for("a", "1", 100), OK),
                did(0, 50, 51, set("a", "2"), OK),
                did(0, 150, 151, get("a"), NIL),
            ],
        ),
        (
            "it took effect before somebody saw it, so it expires early",
            vec![
                did(0, 0, 90, set_for("a", "1", 100), OK),
                did(1, 5, 6, get("a"), value("1")),
                did(1, 109, 110, get("a"), value("1")),
            ],
        ),
    ]
}

#[test]
fn good_histories_pass() {
    for (name, history) in [good(), good_changes(), good_times()].concat() {
        assert_eq!(verdict(&history), Verdict::Linearizable, "{name}: {}", verdict(&history));
    }
}

/// What was known just before the reply of an operation.
fn before_the_reply_of(history: &[KvOperation], culprit: usize) -> Vec<KvOperation> {
    let at = history[culprit].returned.as_ref().unwrap().at;
    let mut known: Vec<KvOperation> =
        history.iter().filter(|operation| operation.called <= at).cloned().collect();
    for operation in &mut known {
        operation.returned.take_if(|end| end.at >= at);
    }
    known
}

#[test]
fn bad_histories_fail_with_the_first_reply_that_is_too_much() {
    for (name, history) in [stale(), impossible(), torn(), shared(), expired()].concat() {
        let Verdict::Violated(violation) = verdict(&history) else { panic!("{name} passed") };
        let before = before_the_reply_of(&history, violation.culprit);
        assert_eq!(verdict(&before), Verdict::Linearizable, "{name}: {violation}");
        assert!(violation.operations.contains(&violation.culprit), "{name}");
    }
}

#[test]
fn a_broken_record_is_not_a_violation() {
    let history = [did(0, 5, 4, get("a"), NIL)];
    assert_eq!(verdict(&history), Verdict::Malformed { operation: 0 });
}

#[test]
fn it_says_when_it_gives_up() {
    let history = [did(0, 0, 1, set("a", "1"), OK), did(1, 2, 3, get("a"), value("1"))];
    let verdict = check(&SPEC, &history, Limits { steps_max: 1 });
    assert_eq!(verdict, Verdict::GaveUp { steps: 1 });
}

#[test]
fn a_failure_shows_the_shortest_prefix_by_client() {
    let mut history = vec![did(0, 0, 10, set("a", "1"), OK), did(0, 20, 30, set("a", "2"), OK)];
    history.push(did(1, 40, 50, get("a"), value("1")));
    // What comes later is not part of it, and neither are other keys.
    history.push(did(0, 60, 70, set("a", "3"), OK));
    history.push(did(2, 0, 5, set("b", "1"), OK));
    let Verdict::Violated(violation) = verdict(&history) else { panic!("it passed") };
    assert_eq!((violation.operations.as_slice(), violation.culprit), (&[0, 1, 2][..], 2));
    let expected = "\
not linearizable: no order explains what 3 operations saw by 50 ns, and one explains all before it
client 0
  [|-----|                         ] SET a 1 -> OK  (0..10 ns)
  [            |-----|             ] SET a 2 -> OK  (20..30 ns)
client 1
  [                        |------|] GET a -> \"1\"  (40..50 ns)  <== not explained
the longest order found has 2 of them, and ends: SET a 1; SET a 2";
    assert_eq!(violation.to_string(), expected);
}

#[test]
fn a_session_keeps_its_order_where_others_need_not() {
    let in_session = |session, operation| Operation { session, ..operation };
    let history = |session| {
        [
            in_session(session, did(1, 0, 10, set("a", "1"), Reply::Done)),
            in_session(session, did(1, 0, 10, get("a"), Reply::Nil)),
        ]
    };
    assert!(verdict(&history(None)).is_linearizable(), "they overlap");
    assert!(!verdict(&history(Some(1))).is_linearizable(), "the second was asked behind the first");
    let lost_between = |reply| {
        [
            in_session(Some(1), lost(1, 0, set("a", "1"))),
            in_session(Some(1), did(1, 1, 10, get("a"), reply)),
            did(2, 20, 30, get("a"), value("1")),
        ]
    };
    assert!(verdict(&lost_between(value("1"))).is_linearizable(), "what is lost may have taken effect");
    assert!(!verdict(&lost_between(Reply::Nil)).is_linearizable(), "and not behind what followed it");
}
