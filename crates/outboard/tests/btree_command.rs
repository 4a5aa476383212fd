//! Trees from a shell: made of lines, and asked of a real card and of a local file, which must say the same.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test stops at the first thing that is not as it should be.

use std::io::Write;
use std::process::{Output, Stdio};

use crate::pushdown::{CONFIG, Card};
use crate::support::Place;

/// The greatest key that can be.
const LAST: &str = "18446744073709551615";

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What a command about trees without a card says and ends with.
fn btree(place: &Place, arguments: &[&str]) -> (String, String, Option<i32>) {
    let output = place.output(&[&["pushdown", "btree"], arguments].concat());
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

fn make_of(place: &Place, lines: &str, arguments: &[&str]) -> Output {
    let mut command = place.command(&[&["pushdown", "btree", "make"], arguments].concat());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It may have refused before it has read anything.
    let _ = child.stdin.take().unwrap().write_all(lines.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn a_tree_that_was_made_of_lines_is_asked_of_the_card_and_here() {
    let card = Card::start(Place::with_config(CONFIG));
    card.files(&["mkdir", "/pushdown"]);
    // Keys in no order, so that it must be put in order.
    let lines: String = (0..3000_u64)
        .map(|number| number * 1999 % 3000)
        .map(|key| format!("{} {key} {}\n", 5 * key, key % 7))
        .collect();
    let made = make_of(&card.place, &lines, &["tree", "-", "--values", "numbers", "--fanout", "7"]);
    assert_eq!(text(&made.stdout), "tree: 3000 keys, 5 levels, 439.0 KiB\n", "{}", text(&made.stderr));
    card.files(&["put", "tree", "/pushdown/tree"]);
    let both = |arguments: &[&str]| {
        let there = card.pushdown(&[&["btree"], arguments, &["--file", "tree"]].concat());
        let (here, told, code) = btree(&card.place, &[arguments, &["--local", "tree"]].concat());
        assert_eq!((&there, code), (&here, Some(0)), "{arguments:?}: {told}");
        there
    };
    assert_eq!(both(&["get", "10", "14995", "0", "--values", "numbers"]), "10 2 2\n14995 2999 3\n0 0\n");
    assert_eq!(both(&["range", "11", "25", "--values", "numbers"]), "15 3 3\n20 4 4\n25 5 5\n");
    assert_eq!(both(&["range", "11", "25", "--limit", "1", "--values", "numbers"]), "15 3 3\n");
    assert_eq!(both(&["range", "25", "11"]), "");
    assert_eq!(both(&["range", "0", LAST, "--values", "numbers"]).lines().count(), 3000);
    let (sum, of_seven) = (2999 * 3000 / 2, (0..3000).filter(|key| key % 7 == 6).count());
    let all = format!("3000 numbers, sum {sum}, least 0, greatest 2999\n");
    assert_eq!(both(&["aggregate"]), all);
    assert_eq!(
        both(&["aggregate", "--field", "8", "--low", "6", "--only", "count"]),
        format!("{of_seven}\n")
    );
    assert_eq!(both(&["aggregate", "10", "19", "--only", "sum"]), "5\n");
    assert_eq!(both(&["aggregate", "11", "14", "--only", "least"]), "-\n");

    // What a range shows can be made into the same tree.
    let shown = both(&["range", "0", LAST, "--values", "hex"]);
    let again = make_of(&card.place, &shown, &["again", "-", "--values", "hex", "--fanout", "7"]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    let read = |name: &str| std::fs::read(card.place.path().join(name)).unwrap();
    assert!(read("tree") == read("again"), "it is another tree");
}

#[test]
fn it_is_said_who_has_answered() {
    let card = Card::start(Place::with_config(CONFIG));
    card.files(&["mkdir", "/pushdown"]);
    assert_eq!(btree(&card.place, &["make", "tree", "--sample", "1000"]).2, Some(0));
    card.files(&["put", "tree", "/pushdown/tree"]);
    let (here, told, _) = btree(&card.place, &["get", "1", "1000", "--local", "tree", "--verbose"]);
    assert_eq!(here, "1 value 1\n1000 value 1000\n");
    // Three levels and the value, for each of two keys.
    assert_eq!(told, "by ordinary reads: 2 answers, 8 reads\n");
    let asked = ["pushdown", "btree", "get", "1", "1000", "--file", "tree", "--address", &card.address];
    let output = card.place.output(&[&asked[..], &["-v"]].concat());
    assert_eq!(text(&output.stdout), here);
    assert_eq!(text(&output.stderr), "by the card: 2 answers, 8 reads there\n");
    let output = card.place.output(&[&asked[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["entries"][1], serde_json::json!({ "key": 1000, "value": "value 1000" }));
    assert_eq!((&json["answered"]["card"], &json["answered"]["ordinary_reads"]), (&2.into(), &0.into()));

    // A key that is not there is told apart from one with an empty value.
    let (found, told, code) = btree(&card.place, &["get", "1001", "7", "0", "--local", "tree"]);
    assert_eq!((&found[..], code), ("7 value 7\n", Some(1)));
    assert_eq!(told, "1001 is not there\n0 is not there\n");
    let told = card.refused(&["btree", "get", "1001", "--file", "tree"]);
    assert_eq!(told, "1001 is not there\n");
}

#[test]
fn a_file_of_the_cards_that_is_no_tree_is_told_as_one_of_this_machine_is() {
    let card = Card::start(Place::with_config(CONFIG));
    card.files(&["mkdir", "/pushdown"]);
    std::fs::write(card.place.path().join("text"), "no tree\n".repeat(1000)).unwrap();
    std::fs::write(card.place.path().join("short"), "no tree").unwrap();
    for name in ["text", "short"] {
        card.files(&["put", name, &format!("/pushdown/{name}")]);
        for question in [&["get", LAST][..], &["get", "0"], &["range", LAST, LAST], &["aggregate"]] {
            let there = card.refused(&[&["btree"], question, &["--file", name]].concat());
            let hint = "hint: a file that `outboard pushdown btree make` has made";
            let (_, told, code) = btree(&card.place, &[question, &["--local", name]].concat());
            assert_eq!((code, there), (Some(1), told.clone()), "whoever reads it");
            assert!(told.contains("the file is no B+tree") && told.contains(hint), "{told}");
        }
    }
    for ordinary in [&[][..], &["--ordinary"]] {
        let told = card.refused(&[&["btree", "get", "7", "--file", "nothing"], ordinary].concat());
        assert!(
            told.contains("no file `nothing`") && told.contains("hint: names are below the folder"),
            "{told}"
        );
    }
}

/// What keeps the card's programs for trees from answering does not keep it from bringing the file.
#[test]
fn a_file_of_the_cards_has_an_ordinary_path() {
    for (fuel, why) in
        [("", ""), ("[programs]\nfuel = 200\n", "; not by the card: the request has used its fuel")]
    {
        let card = Card::start(Place::with_config(&format!("{CONFIG}{fuel}")));
        card.files(&["mkdir", "/pushdown"]);
        let sample = ["make", "tree", "--sample", "2000", "--values", "numbers"];
        assert_eq!(btree(&card.place, &sample).2, Some(0));
        card.files(&["put", "tree", "/pushdown/tree"]);
        let ordinary: &[&str] = if why.is_empty() { &["--ordinary"] } else { &[] };
        let (numbers, all) = (["--values", "numbers"], ["range", "0", LAST, "--values", "numbers"]);
        for (question, reads) in [
            (&[&["get", "31", "1984", "2000"][..], &numbers].concat()[..], 12),
            (&[&["range", "990", "1010"][..], &numbers].concat(), 0),
            (&all, 0),
            (&["aggregate"], 0),
            (&["aggregate", "7", "1500", "--field", "8", "--low", "90"], 0),
        ] {
            let asked = [
                &["btree"],
                question,
                ordinary,
                &["--file", "tree", "--verbose", "--address", &card.address],
            ];
            let there = card.place.output(&[&["pushdown"][..], &asked.concat()].concat());
            let told = text(&there.stderr);
            let (here, _, code) = btree(&card.place, &[question, &["--local", "tree"]].concat());
            assert_eq!((text(&there.stdout), code), (here, Some(0)), "{question:?}: {told}");
            assert!(there.status.success() && told.contains("by ordinary reads: "), "{told}");
            assert!(told.ends_with(&format!("{why}\n")), "{told}");
            assert!(reads == 0 || told.contains(&format!(" {reads} reads")), "{told}");
        }
    }
}

#[test]
fn what_cannot_be_a_tree_is_not_made() {
    let place = Place::with_config(CONFIG);
    let refused = |lines: &str, arguments: &[&str], problem: &str| {
        let output = make_of(&place, lines, arguments);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(problem), "{told}");
    };
    refused("1 a\n1 b\n", &["tree", "-"], "-: line 2 has the key 1 of line 1 again");
    refused("1 a\nb 2\n", &["tree", "-"], "-, line 2: `b` is no key");
    refused("", &["tree", "-"], "there is no tree of 0 keys");
    refused("", &["tree"], "--sample");
    refused("", &["tree", "-", "--sample", "3"], "cannot be used with");
    refused("", &["tree", "--sample", "0"], "there is no tree of 0 keys");
    refused("", &["tree", "--sample", "9", "--fanout", "32"], "32 is not in 2..=31");
    // Neither a tree nor half of one.
    let files = || {
        std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    assert_eq!(files(), ["outboard.toml"]);
    assert_eq!(btree(&place, &["make", "tree", "--sample", "9"]).2, Some(0));
    refused("1 a\n", &["tree", "-"], "tree is there already\nhint: --force replaces it");
    assert!(make_of(&place, "1 a", &["tree", "-", "--force"]).status.success());
    assert_eq!(btree(&place, &["range", "0", "9", "--local", "tree"]).0, "1 a\n");
    assert_eq!(files().len(), 2, "{:?}", files());
    let (_, told, code) = btree(&place, &["make", "no/tree", "--sample", "9"]);
    assert!(code == Some(1) && told.contains("cannot use no/tree: No such file or directory"), "{told}");
}

#[test]
fn a_tree_is_in_one_place() {
    let place = Place::with_config(CONFIG);
    for (arguments, problem) in [
        (&["get", "1"][..], "--file"),
        (&["get", "1", "--file", "a", "--local", "b"], "cannot be used with"),
        (&["get", "1", "--local", "b", "--address", "127.0.0.1:1"], "cannot be used with"),
        (&["get", "1", "--mounted", "b"], "--device"),
        (&["get", "--local", "b"], "KEY"),
        (&["aggregate", "--local", "b", "--field", "57"], "57 is not in 0..=56"),
    ] {
        let (_, told, code) = btree(&place, arguments);
        assert!(code == Some(2) && told.contains(problem), "{arguments:?}: {told}");
    }
    let (_, told, code) = btree(&place, &["get", "1", "--local", "nothing"]);
    assert!(code == Some(1) && told.contains("cannot use nothing: No such file"), "{told}");
    let (_, told, _) = btree(&place, &["get", "1", "--device", "/dev/null", "--mounted", "b"]);
    assert!(told.contains("/dev/null is no NVMe namespace"), "{told}");
}
