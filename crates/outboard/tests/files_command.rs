//! `outboard files` as people use it: the real program, a real card, real deaths.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support;

use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use ob_files_host::{Session, SessionOptions};
use rustix::process::{Signal, pidfd_send_signal};
use support::{Place, Program, handle, pid_after};

const STATUS: &str = "[status]\nlisten = \"127.0.0.1:0\"\n";

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Bytes that follow from a seed, and do not repeat at any block's length.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Runs `outboard files` against the card of a place.
fn files_with(place: &Place, config: &str, arguments: &[&str]) -> Output {
    let (command, rest) = arguments.split_first().unwrap();
    let mut all = vec!["files", command, "--config", config, "--data", "data"];
    all.extend(rest);
    place.output(&all)
}

fn files(place: &Place, arguments: &[&str]) -> Output {
    files_with(place, "outboard.toml", arguments)
}

/// The same, and it must go well: what it printed.
fn files_ok(place: &Place, arguments: &[&str]) -> String {
    let output = files(place, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The same, and it must fail: what it said about that.
fn files_fail(place: &Place, arguments: &[&str]) -> String {
    let output = files(place, arguments);
    assert_ne!(output.status.code(), Some(0), "{arguments:?}");
    text(&output.stderr)
}

fn write(place: &Place, name: &str, bytes: &[u8]) {
    std::fs::write(place.path().join(name), bytes).unwrap();
}

fn read(place: &Place, name: &str) -> Vec<u8> {
    std::fs::read(place.path().join(name)).unwrap()
}

fn start_card(place: &Place) -> Program {
    let mut card = place.start(&["card"]);
    card.wait_for("The card is ready");
    card
}

fn stop(card: &mut Program) {
    card.signal(Signal::TERM);
    assert_eq!(card.wait().code(), Some(0), "{:#?}", card.seen());
}

#[test]
fn who_is_done_has_said_goodbye() {
    let place = Place::new();
    let mut card = start_card(&place);
    for _ in 0..20 {
        files_ok(&place, &["ls", "/"]);
        let end = card.wait_for("host detached: ");
        assert!(end.contains("it said goodbye"), "{end}");
    }
    stop(&mut card);
}

#[test]
fn files_go_to_the_card_and_come_back() {
    let place = Place::new();
    let mut up = place.start(&["up"]);
    up.wait_for("Outboard is up");
    up.wait_for("files     data/card/files.img, ");
    up.wait_for("outboard files put FILE / --config outboard.toml --data data");

    let big = noise(7 * (1 << 20) + 4321, 1);
    write(&place, "big", &big);
    write(&place, "empty", b"");
    assert_eq!(files_ok(&place, &["put", "big", "/"]), "");
    files_ok(&place, &["put", "empty", "sub/dir/none", "-p"]);
    files_ok(&place, &["get", "/big", "copy"]);
    assert!(read(&place, "copy") == big);
    files_ok(&place, &["get", "sub/dir/none"]);
    assert_eq!(read(&place, "none"), b"");

    // A put replaces in one step, a get does not replace unless it is told to.
    write(&place, "big", &big[..5000]);
    files_ok(&place, &["put", "big", "big"]);
    let said = files_fail(&place, &["get", "/big", "copy"]);
    assert!(said.contains("cannot write copy") && said.contains("hint: --force replaces it"), "{said}");
    files_ok(&place, &["get", "/big", "copy", "--force"]);
    assert!(read(&place, "copy") == big[..5000]);

    files_ok(&place, &["mv", "/big", "/sub"]);
    files_ok(&place, &["mv", "sub/big", "/sub/dir/larger"]);
    assert_eq!(files_ok(&place, &["ls"]), "sub\n");
    assert_eq!(files_ok(&place, &["ls", "/sub/dir"]), "larger\nnone\n");
    assert_eq!(files_ok(&place, &["ls", "-l", "sub/dir/larger"]), "file            5000 larger\n");
    let listed: serde_json::Value =
        serde_json::from_str(&files_ok(&place, &["ls", "--json", "/sub/dir/"])).unwrap();
    assert_eq!((&listed[0]["name"], &listed[0]["size"]), (&"larger".into(), &5000.into()));
    let stat: serde_json::Value =
        serde_json::from_str(&files_ok(&place, &["stat", "--json", "sub"])).unwrap();
    assert_eq!((&stat["kind"], &stat["size"]), (&"directory".into(), &1.into()));

    let space = |place: &Place| -> serde_json::Value {
        serde_json::from_str(&files_ok(place, &["df", "--json"])).unwrap()
    };
    assert_eq!(space(&place)["files"], 2);
    assert!(files_ok(&place, &["df", "-h"]).contains("GiB"));
    files_ok(&place, &["rm", "-r", "/sub"]);
    assert_eq!((files_ok(&place, &["ls"]), &space(&place)["used_bytes"]), (String::new(), &0.into()));

    up.signal(Signal::TERM);
    assert_eq!(up.wait().code(), Some(0));
    let checked = files_ok(&place, &["check"]);
    assert!(checked.starts_with("data/card/files.img: ok\n"), "{checked}");
}

#[test]
fn any_name_and_any_pipe_will_do() {
    let place = Place::new();
    let _card = start_card(&place);
    for name in ["with blanks in it", "äöü 文件 🦀", "-dash", "--json", "a\"quote'", "line\nbreak"] {
        write(&place, name, name.as_bytes());
        let output = files(&place, &["put", "--", name, "/"]);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", text(&output.stderr));
        std::fs::remove_file(place.path().join(name)).unwrap();
        files_ok(&place, &["get", "--", name, "."]);
        assert_eq!(read(&place, name), name.as_bytes());
    }
    assert_eq!(files_ok(&place, &["get", "/-dash", "-"]), "-dash");
    files_ok(&place, &["rm", "--", "-dash", "--json"]);
    assert_eq!(files_ok(&place, &["ls"]), "a\"quote'\nline\nbreak\nwith blanks in it\näöü 文件 🦀\n");

    let bytes = noise(3_000_001, 2);
    let mut put =
        place.command(&["files", "put", "--config", "outboard.toml", "--data", "data", "-", "/piped"]);
    let mut put = put.stdin(Stdio::piped()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(&bytes).unwrap();
    assert!(put.wait().unwrap().success());
    assert!(files(&place, &["get", "piped", "-"]).stdout == bytes);
    // What is no file is written to, and never replaced.
    files_ok(&place, &["get", "/piped", "/dev/null"]);
    assert!(!Path::new("/dev/null").metadata().unwrap().is_file());
}

#[test]
fn what_cannot_be_done_is_said_with_a_way_out() {
    let place = Place::new();
    let said = files_fail(&place, &["ls"]);
    assert!(said.contains("no card answers at data/link.sock"), "{said}");
    assert!(said.contains("hint: start it with `outboard up --config outboard.toml --data data`"), "{said}");
    let _card = start_card(&place);
    write(&place, "file", b"x");
    files_ok(&place, &["put", "file", "/"]);
    files_ok(&place, &["mkdir", "/directory"]);
    files_ok(&place, &["put", "file", "/directory"]);
    for (arguments, complaint) in [
        (
            &["ls", "/none"][..],
            "cannot list /none: there is no such file or directory\nhint: `outboard files ls",
        ),
        (&["get", "/none", "copy"], "cannot fetch /none: there is no such file"),
        (&["get", "/directory", "copy"], "hint: fetch its files one by one"),
        (&["put", "none", "/"], "cannot read none: No such file"),
        (&["put", ".", "/"], "hint: put its files one by one"),
        (&["put", "file", "/a/b/c"], "hint: -p makes directories that are missing"),
        (&["put", "file", "/file/within"], "cannot store /file/within"),
        (&["put", "-", "/directory"], "what is read has no name"),
        (&["put", "file", "/.."], "`.` and `..` cannot be names\nhint: a path has the names of all"),
        (&["mkdir", "/directory"], "the name is taken\nhint: it is a directory already; -p does not mind"),
        (&["mkdir", "/file"], "the name is taken\nhint: a file has this name"),
        (&["mkdir", "/"], "something within it is needed\nhint: name what is in it"),
        (&["ls", ""], "the path is empty\nhint: the root directory is written as /"),
        (&["put", "file", ""], "the path is empty"),
        (&["get", "/file", "none/copy"], "cannot write none/copy: there is no such directory\nhint: make"),
        (&["get", "/file", "none/"], "cannot write into none/: there is no such directory\nhint: make"),
        (&["get", "/file", "file"], "cannot write file: the file is there already\nhint: --force"),
        (&["mkdir", "/x/y"], "hint: -p makes the directories that it is in as well"),
        (&["mkdir", "-p", "/file/x"], "cannot make the directory"),
        (&["rm", "/directory"], "hint: -r removes a directory with everything in it"),
        (&["rm", "-r", "/"], "the root directory cannot be removed"),
        (&["rm", "/"], "the root directory cannot be removed\nhint: name what is in it"),
        (
            &["mv", "/directory", "/directory/within"],
            "a directory cannot be moved into itself\nhint: give a path that is not within /directory",
        ),
        (&["mv", "/none", "/other"], "cannot move /none to /other: there is no such file or directory"),
        (&["mv", "/none", "/other"], "hint: there is no /none; `outboard files ls /` shows what there is"),
        (&["mv", "/file", "/a/b"], "hint: there is no directory /a; `outboard files mkdir -p /a` makes it"),
        (&["check"], "hint: stop the card that uses it first"),
    ] {
        let said = files_fail(&place, arguments);
        assert!(said.contains(complaint), "{arguments:?}: {said}");
    }
    // One that fails does not keep the others.
    let said = files_fail(&place, &["rm", "/none", "/file"]);
    assert!(said.contains("cannot remove /none"), "{said}");
    assert_eq!(files_ok(&place, &["ls"]), "directory\n");
    assert!(!place.path().join("copy").exists());
}

/// Waits until somebody has stored the first bytes of a file.
fn wait_for_unfinished(session: &Session) {
    let deadline = std::time::Instant::now() + support::DEADLINE;
    let is_begun =
        |entry: &ob_files_host::DirectoryEntry| entry.name.starts_with(b".outboard-put-") && entry.size > 0;
    while !session.list("/").wait().unwrap().iter().any(is_begun) {
        assert!(std::time::Instant::now() < deadline, "nobody stores anything");
    }
}

fn session(place: &Place) -> Session {
    Session::open(SessionOptions::unix(place.data().join("link.sock"))).unwrap()
}

#[test]
fn a_put_survives_the_death_of_the_card() {
    let place = Place::new();
    let mut up = place.start(&["up"]);
    let card = pid_after(&up.wait_for("Outboard is up"), "card (pid ");
    let (early, late) = (noise(2_000_000, 3), noise(96 << 20, 4));
    write(&place, "early", &early);
    write(&place, "late", &late);
    files_ok(&place, &["put", "early", "/"]);

    let session = session(&place);
    let mut put = place.start(&["files", "put", "late", "/"]);
    wait_for_unfinished(&session);
    drop(session);
    pidfd_send_signal(handle(card), Signal::KILL).unwrap();
    up.wait_for("the card is back");
    assert_eq!(put.wait().code(), Some(0), "{:#?}", put.seen());
    assert_eq!(files_ok(&place, &["ls"]), "early\nlate\n", "nothing unfinished is left behind");
    assert!(files(&place, &["get", "/late", "-"]).stdout == late);
    assert!(files(&place, &["get", "/early", "-"]).stdout == early);

    up.signal(Signal::TERM);
    assert_eq!(up.wait().code(), Some(0));
    files_ok(&place, &["check"]);
}

#[test]
fn a_command_waits_for_a_card_that_died_before_it_began() {
    let place = Place::new();
    let mut card = start_card(&place);
    files_ok(&place, &["mkdir", "/kept"]);
    card.signal(Signal::KILL);
    card.wait();
    let mut list = place.start(&["files", "ls"]);
    let mut card = start_card(&place);
    list.wait_for("kept");
    assert_eq!(list.wait().code(), Some(0), "{:#?}", list.seen());
    // One that stopped in order is not waited for.
    stop(&mut card);
    let said = files_fail(&place, &["ls"]);
    assert!(said.contains("no card answers at data/link.sock"), "{said}");
}

#[test]
fn a_put_that_cannot_begin_again_says_so_and_harms_nothing() {
    let place = Place::new();
    let mut card = start_card(&place);
    let early = noise(300_000, 5);
    write(&place, "early", &early);
    files_ok(&place, &["put", "early", "/target"]);

    let session = session(&place);
    let mut put =
        place.command(&["files", "put", "--config", "outboard.toml", "--data", "data", "-", "/target"]);
    let mut put = put.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = put.stdin.take().unwrap();
    input.write_all(&noise(3 << 20, 6)).unwrap();
    wait_for_unfinished(&session);
    drop(session);
    card.signal(Signal::KILL);
    card.wait();
    let mut card = start_card(&place);
    // It may have given up reading already.
    let _ = input.write_all(&noise(3 << 20, 7));
    drop(input);
    let output = put.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the card died meanwhile, and standard input cannot be read twice"), "{said}");

    assert_eq!(files_ok(&place, &["ls"]), "target\n");
    assert!(files(&place, &["get", "/target", "-"]).stdout == early);
    stop(&mut card);
    files_ok(&place, &["check"]);
}

#[test]
fn devices_that_are_not_ours_stay_as_they_are_until_format_is_said() {
    let config = format!("{STATUS}[files]\ndevice = \"../disk.img\"\n");
    let place = Place::with_config(&config);
    for (contents, complaint) in [
        (noise(8 << 20, 8), "../disk.img holds data that is not Outboard's; it was left as it is"),
        (vec![0; 8 << 20], "../disk.img exists and is empty"),
    ] {
        write(&place, "disk.img", &contents);
        let mut card = place.start(&["card"]);
        card.wait_for(complaint);
        card.wait_for("`outboard card --format` formats it");
        assert_eq!(card.wait().code(), Some(2));
        assert!(read(&place, "disk.img") == contents);
    }
    let said = files_fail(&place, &["check"]);
    assert!(said.contains("the device is empty"), "{said}");
    let output = files(&place, &["check", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["ok"], &report["hint"]), (&false.into(), &"--device PATH names another one".into()));
    assert!(!report["error"].as_str().unwrap().contains("hint"), "{report}");

    write(&place, "disk.img", &noise(8 << 20, 9));
    let mut card = place.start(&["card", "--format"]);
    card.wait_for("formatted data/../disk.img: data that was not Outboard's destroyed");
    card.wait_for("The card is ready");
    files_ok(&place, &["put", "outboard.toml", "/"]);
    stop(&mut card);
    // Now it is ours, and --format says what it costs.
    let mut card = start_card(&place);
    assert_eq!(files_ok(&place, &["ls"]), "outboard.toml\n");
    stop(&mut card);
    let mut card = place.start(&["card", "--format"]);
    card.wait_for("formatted data/../disk.img: 1 file and 0 directories destroyed");
    card.wait_for("The card is ready");
    assert_eq!(files_ok(&place, &["ls"]), "");
    stop(&mut card);
}

#[test]
fn up_formats_once_and_not_when_the_card_comes_back() {
    let place = Place::with_config(&format!("{STATUS}[files]\ndevice = \"../disk.img\"\n"));
    write(&place, "disk.img", &noise(64 << 20, 10));
    let mut up = place.start(&["up", "--format"]);
    up.wait_for("up   | formatted data/../disk.img: data that was not Outboard's destroyed");
    let card = pid_after(&up.wait_for("Outboard is up"), "card (pid ");
    files_ok(&place, &["put", "outboard.toml", "/kept"]);
    pidfd_send_signal(handle(card), Signal::KILL).unwrap();
    up.wait_for("the card is back");
    assert_eq!(files_ok(&place, &["ls"]), "kept\n");
    up.signal(Signal::TERM);
    assert_eq!(up.wait().code(), Some(0));
}

#[test]
fn devices_that_cannot_be_used_are_explained() {
    let fails = |config: &str, complaints: &[&str]| {
        let place = Place::with_config(&format!("{STATUS}[files]\n{config}"));
        let mut card = place.start(&["card"]);
        assert_eq!(card.wait().code(), Some(2), "{:#?}", card.seen());
        let said = card.seen().join("\n");
        for complaint in complaints {
            assert!(said.contains(complaint), "{config}: {said}");
        }
        assert!(!place.data().join("card/files.img").exists());
        assert!(!place.data().join("card/.files.img.unfinished").exists());
    };
    fails("segment = \"1GiB\"\nsize = \"1GiB\"\n", &["cannot format", "are needed", "outboard.toml:4"]);
    fails("device = \"none/disk.img\"\n", &["neither does the directory that it is in", "outboard.toml:4"]);
    fails("device = \"/dev/outboard-none\"\n", &["no file is made where the system keeps its devices"]);
    fails("device = \".\"\n", &["is neither a file nor a block device"]);
    fails("device = \"memory\"\nsize = \"1024TiB\"\n", &["is more than this machine has", "outboard.toml:5"]);
    fails("device = \"card/files.img\"\nsgment = \"4KiB\"\n", &["did you mean `segment`?"]);
}

#[test]
fn a_device_that_is_too_small_and_was_there_is_not_explained_with_the_size_of_new_ones() {
    let config = format!("{STATUS}[files]\ndevice = \"../disk.img\"\n");
    let place = Place::with_config(&config);
    for (len, complaint) in [(0, "has 0 bytes"), (64 << 10, "cannot format data/../disk.img")] {
        write(&place, "disk.img", &vec![0; len]);
        let mut card = place.start(&["card", "--format"]);
        assert_eq!(card.wait().code(), Some(2), "{:#?}", card.seen());
        let said = card.seen().join("\n");
        for part in [complaint, "`truncate -s 16G data/../disk.img`", "outboard.toml:4"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
}

#[test]
fn up_does_not_try_again_with_a_device_that_a_person_must_look_at() {
    let place = Place::with_config(&format!("{STATUS}[files]\ndevice = \"../disk.img\"\n"));
    write(&place, "disk.img", &noise(8 << 20, 16));
    let mut up = place.start(&["up"]);
    assert_eq!(up.wait().code(), Some(2), "{:#?}", up.seen());
    let said = up.seen().join("\n");
    assert!(said.contains("error: the card cannot run: data/../disk.img holds data that is not"), "{said}");
    assert!(!said.contains("starting it again"), "{said}");
    assert_eq!(place.incarnation("card"), 1);
}

#[test]
fn what_a_dying_card_left_of_a_new_file_is_in_nobodys_way() {
    let place = Place::new();
    std::fs::create_dir_all(place.data().join("card")).unwrap();
    write(&place, "data/card/.files.img.unfinished", &noise(1 << 20, 11));
    let mut card = start_card(&place);
    files_ok(&place, &["put", "outboard.toml", "/"]);
    stop(&mut card);
    assert!(!place.data().join("card/.files.img.unfinished").exists());
}

#[test]
fn two_cards_do_not_share_a_device() {
    let config = format!("{STATUS}[files]\ndevice = \"../disk.img\"\nsize = \"64MiB\"\n");
    let place = Place::with_config(&config);
    let _card = start_card(&place);
    let output = place.output(&["card", "--config", "outboard.toml", "--data", "other"]);
    assert_eq!(output.status.code(), Some(2));
    let said = text(&output.stderr);
    assert!(
        said.contains("disk.img is in use by another process") && said.contains("outboard.toml:4"),
        "{said}"
    );
}

#[test]
fn damage_is_found_told_and_not_mounted() {
    let place = Place::with_config(&format!("{STATUS}[files]\nsize = \"64MiB\"\n"));
    let mut card = start_card(&place);
    for name in ["/one", "/two", "/three"] {
        files_ok(&place, &["put", "outboard.toml", name]);
    }
    stop(&mut card);
    let report: serde_json::Value = serde_json::from_str(&files_ok(&place, &["check", "--json"])).unwrap();
    assert_eq!((&report["ok"], &report["files"]), (&true.into(), &3.into()));

    // One bit in the first frame of the log, which later frames call durable.
    let device = place.data().join("card/files.img");
    let mut bytes = std::fs::read(&device).unwrap();
    let frame = bytes.windows(4).position(|window| window == b"OBFR").unwrap();
    bytes[frame + 70] ^= 1;
    std::fs::write(&device, &bytes).unwrap();

    let output = files(&place, &["check"]);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stdout);
    assert!(
        told.contains("something is wrong") && told.contains("finding: the log is damaged: frame 1,"),
        "{told}"
    );
    let output = files(&place, &["check", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["ok"], report["findings"].as_array().map(Vec::len)), (&false.into(), Some(1)));

    let mut card = place.start(&["card"]);
    card.wait_for("cannot mount data/card/files.img: the log is damaged");
    card.wait_for("hint: `outboard files check --device data/card/files.img` tells everything");
    assert_eq!(card.wait().code(), Some(2));
    assert!(std::fs::read(&device).unwrap() == bytes, "neither changes anything");
}

#[test]
fn the_status_knows_the_files_and_tells_applications_from_the_host() {
    let place = Place::with_config(&format!("{STATUS}[files]\ndevice = \"memory\"\n"));
    let mut up = place.start(&["up"]);
    let line = up.wait_for("Outboard is up");
    let host = pid_after(&line, "host (pid ");
    let endpoint = up.wait_for("status    http://").split_once("http://").unwrap().1.replace("/status", "");
    let session = session(&place);
    write(&place, "file", &noise(100_000, 12));
    files_ok(&place, &["put", "file", "/"]);
    // A snapshot may be a quarter of a second old: ask until it is of after the put.
    let deadline = std::time::Instant::now() + support::DEADLINE;
    let status = loop {
        let output = place.output(&["status", "--json", "--endpoint", &endpoint]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        // The session of this test is a host on the link as well, and the put's was.
        if status["link"]["hosts"] == 2 && status["files"]["written_bytes"] == 100_000 {
            break status;
        }
        assert!(std::time::Instant::now() < deadline, "{status}");
    };
    assert_eq!(status["health"], "ok");
    assert_eq!(status["host"]["pid"], host);
    let files = &status["files"];
    assert_eq!((&files["device"], &files["files"]), (&"memory".into(), &1.into()));
    assert_eq!(files["read_only"], false);
    assert!(files["flushes"].as_u64().unwrap() >= 2);
    let service = |row: &serde_json::Value| row["service"] == "files" && row["half"] == "card";
    assert!(status["requests"].as_array().unwrap().iter().any(service), "{status}");
    let shown = text(&place.output(&["status", "--endpoint", &endpoint]).stdout);
    assert!(shown.contains("files: memory\n") && shown.contains("1 file, 1 directory"), "{shown}");
    drop(session);
    let said = files_fail(&place, &["check"]);
    assert!(said.contains("has the files in memory"), "{said}");
}

#[test]
fn a_full_device_loses_nothing() {
    let place = Place::with_config(&format!("{STATUS}[files]\nsize = \"8MiB\"\n"));
    let mut card = start_card(&place);
    let kept = noise(3 << 20, 14);
    write(&place, "kept", &kept);
    write(&place, "large", &noise(9 << 20, 15));
    files_ok(&place, &["put", "kept", "/"]);
    let free = files_ok(&place, &["df", "--json"]);
    for target in ["/", "/kept"] {
        let said = files_fail(&place, &["put", "large", target]);
        assert!(said.contains("no space is left on the device\nhint: `outboard files df -h"), "{said}");
    }
    assert_eq!(files_ok(&place, &["ls"]), "kept\n");
    assert!(files(&place, &["get", "/kept", "-"]).stdout == kept);
    let space = |text: &str| -> serde_json::Value { serde_json::from_str(text).unwrap() };
    let after = files_ok(&place, &["df", "--json"]);
    assert_eq!(space(&after)["free_bytes"], space(&free)["free_bytes"]);
    files_ok(&place, &["rm", "/kept"]);
    files_ok(&place, &["put", "kept", "/again"]);
    stop(&mut card);
    files_ok(&place, &["check"]);
}

#[test]
fn files_go_over_tcp_too() {
    let place = Place::with_config(&format!(
        "{STATUS}[link]\nkind = \"tcp\"\nlisten = \"127.0.0.1:0\"\n[files]\nsize = \"1GiB\"\n"
    ));
    let mut card = place.start(&["card"]);
    let line = card.wait_for("The card is ready");
    let address = line.split_once("link tcp ").unwrap().1.split_once(',').unwrap().0;
    write(&place, "there.toml", format!("[link]\nkind = \"tcp\"\ncard = \"{address}\"\n").as_bytes());
    let bytes = noise(5_000_003, 13);
    write(&place, "file", &bytes);
    let output = files_with(&place, "there.toml", &["put", "file", "/a/b", "-p"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(files_with(&place, "there.toml", &["get", "/a/b", "-"]).stdout == bytes);
    stop(&mut card);
    let said = text(&files_with(&place, "there.toml", &["ls"]).stderr);
    assert!(said.contains("`[link] card` in the configuration says where it is looked for"), "{said}");
    files_ok(&place, &["check"]);
}
