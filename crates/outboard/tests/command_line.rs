//! The commands besides `up`, run as people run them.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::support;

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::process::Stdio;

use rustix::net::{AddressFamily, SocketType};
use rustix::process::Signal;

use support::{Place, Program, pid_after};

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Starts a card and learns where its status is.
fn start_card(place: &Place) -> (Program, String) {
    let mut card = place.start(&["card"]);
    let line = card.wait_for("The card is ready");
    assert_eq!(pid_after(&line, "pid "), card.pid());
    let (_, rest) = line.split_once("http://").unwrap();
    let (address, _) = rest.split_once('/').unwrap();
    (card, address.to_owned())
}

fn http(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_card_answers_for_its_status_and_misses_its_host() {
    let place = Place::new();
    let (mut card, address) = start_card(&place);

    let output = place.output(&["status", "--json", "--endpoint", &address]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["card"]["pid"], card.pid());
    assert_eq!(status["card"]["incarnation"], 1);
    assert_eq!(status["link"]["kind"], "shm");
    assert_eq!(status["health"], "degraded");
    assert_eq!(status["checks"][0]["code"], "OB001");

    let output = place.output(&["status", "--endpoint", &address]);
    let shown = text(&output.stdout);
    let check = "OB001 host not attached — start it with `outboard host --config outboard.toml --data data`";
    assert!(shown.contains(check), "{shown}");
    assert!(!shown.contains('\u{1b}'), "no colours without a terminal");

    assert!(http(&address, "/healthz").ends_with("\r\n\r\ndegraded\n"));
    assert!(http(&address, "/elsewhere").starts_with("HTTP/1.0 404"));

    card.signal(Signal::TERM);
    assert_eq!(card.wait().code(), Some(0));
}

#[test]
fn a_host_alone_says_what_it_misses_and_takes_a_card_when_one_comes() {
    let place = Place::new();
    let mut host = place.start(&["host"]);
    host.wait_for("cannot attach: no card answers at");
    let (_card, _) = start_card(&place);
    let line = host.wait_for("The host is ready");
    assert_eq!(pid_after(&line, "pid "), host.pid());
    host.signal(Signal::TERM);
    assert_eq!(host.wait().code(), Some(0));
    assert_eq!(place.incarnation("host"), 1);
}

#[test]
fn a_card_goes_on_when_nobody_reads_its_log_any_more() {
    let place = Place::new();
    let mut command = place.command(&["card", "--config", "outboard.toml", "--data", "data"]);
    let mut card = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(card.stderr.take().unwrap()).lines();
    assert!(log.any(|line| line.unwrap().contains("card ready")));
    drop(log);
    for _ in 0..3 {
        // A card has something to say of each host that comes and goes.
        let listed = place.output(&["files", "ls", "--config", "outboard.toml", "--data", "data"]);
        assert!(listed.status.success(), "{}", text(&listed.stderr));
        assert!(card.try_wait().unwrap().is_none(), "the card has ended");
    }
    card.kill().unwrap();
    card.wait().unwrap();
}

#[test]
fn a_host_alone_stops_when_asked() {
    let place = Place::new();
    let mut host = place.start(&["host"]);
    host.wait_for("cannot attach: no card answers at");
    host.signal(Signal::TERM);
    assert_eq!(host.wait().code(), Some(0));
}

#[test]
fn a_second_card_on_the_same_data_is_refused() {
    let place = Place::new();
    let (card, _) = start_card(&place);
    let mut second = place.start(&["card", "--json"]);
    let line = second.wait_for("failed");
    assert!(line.contains(&format!("the process {} runs the card", card.pid())), "{line}");
    assert_eq!(second.wait().code(), Some(2));
    assert_eq!(place.incarnation("card"), 1, "it must not count a life that did not begin");
}

#[test]
fn garbage_in_the_incarnation_is_not_overwritten() {
    let place = Place::new();
    let directory = place.data().join("card");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("incarnation"), "seven\n").unwrap();
    let mut card = place.start(&["card"]);
    card.wait_for("should hold one decimal number, but holds \"seven\\n\"");
    card.wait_for("hint: write a number into it that is larger than any it ever held");
    assert_eq!(card.wait().code(), Some(2));
    assert_eq!(std::fs::read_to_string(directory.join("incarnation")).unwrap(), "seven\n");
}

#[test]
fn a_status_that_nobody_serves_says_what_to_do() {
    let place = Place::new();
    // Bound and never listening: the port refuses connections, and nobody else is given it meanwhile.
    let silent = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&silent, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = SocketAddrV4::try_from(rustix::net::getsockname(&silent).unwrap()).unwrap().to_string();
    let output = place.output(&["status", "--endpoint", &address]);
    assert_eq!(output.status.code(), Some(1));
    let shown = text(&output.stderr);
    assert!(shown.contains(&format!("nothing listens on {address}")), "{shown}");
    assert!(shown.contains("outboard up"), "{shown}");
}

#[test]
fn a_port_in_use_names_the_line_to_change() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let place = Place::with_config(&format!("[status]\nlisten = \"{address}\"\n"));
    let output = place.output(&["card", "--config", "outboard.toml", "--data", "data"]);
    assert_eq!(output.status.code(), Some(2));
    let shown = text(&output.stderr);
    assert!(shown.contains(&format!("cannot listen on {address} for status")), "{shown}");
    assert!(shown.contains("change `[status] listen` at outboard.toml:2"), "{shown}");
}

#[test]
fn config_check_explains_and_config_show_can_be_checked() {
    let place = Place::with_config("[link]\nknd = \"shm\"\n");
    let output = place.output(&["config", "check", "outboard.toml"]);
    assert_eq!(output.status.code(), Some(2));
    let shown = text(&output.stderr);
    assert!(shown.contains("--> outboard.toml:2:1") && shown.contains("did you mean `kind`?"), "{shown}");

    let output = place.output(&["config", "check", "outboard.toml", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["ok"], false);
    assert_eq!(report["mistakes"][0]["line"], 2);

    let output = place.output(&["config", "show"]);
    std::fs::write(place.path().join("shown.toml"), &output.stdout).unwrap();
    let output = place.output(&["config", "check", "shown.toml"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), "shown.toml: ok\n");

    let output = place.output(&["config", "check", "missing.toml"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cannot read the configuration missing.toml"));
    assert!(text(&output.stderr).contains("hint: `outboard config show > FILE`"));
}

#[test]
fn unknown_benchmarks_and_scenarios_are_refused() {
    let place = Place::new();
    assert_eq!(place.output(&["bench"]).status.code(), Some(0));
    assert_eq!(place.output(&["bench", "nothing"]).status.code(), Some(2));
    assert_eq!(place.output(&["sim"]).status.code(), Some(0));
    assert_eq!(place.output(&["sim", "nothing", "--seed", "1"]).status.code(), Some(2));
    assert_eq!(place.output(&["sim", "nothing", "--seeds", "5..5"]).status.code(), Some(2));
    assert_eq!(place.output(&["sim", "ring", "--seeds", "0..2", "--trace", "9"]).status.code(), Some(2));
    assert_eq!(place.output(&["sim", "ring", "--seed", "1", "--trace", "1000001"]).status.code(), Some(2));
}

#[test]
fn help_teaches_with_examples() {
    let place = Place::new();
    for arguments in [
        &["--help"][..],
        &["up", "--help"],
        &["status", "--help"],
        &["bench", "--help"],
        &["files", "--help"],
        &["files", "df", "--help"],
    ] {
        let output = place.output(arguments);
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains("Examples:"), "{arguments:?}");
    }
}

#[test]
fn a_run_shows_all_that_a_program_logs() {
    let place = Place::new();
    let text = "r1 = 1\nr2 = 2\ncall ob_log\nr1 = 255\nr2 = -1\ncall ob_log\nr0 = 7\nexit\n";
    std::fs::write(place.path().join("log.txt"), text).unwrap();
    for way in [&[] as &[&str], &["--interpret"]] {
        let run = |more: &[&str]| {
            let output = place.output(&[&["bpf", "run", "log.txt"], way, more].concat());
            assert_eq!(output.status.code(), Some(0), "{}", self::text(&output.stderr));
            self::text(&output.stdout)
        };
        let shown = run(&[]);
        let lines = "\n  ob_log       1 (0x1), 2 (0x2)\n  ob_log       255 (0xff), 18446744073709551615 (0xffffffffffffffff)\n";
        assert!(shown.starts_with("result 7 (0x7), ") && shown.contains(lines), "{shown}");
        let told: serde_json::Value = serde_json::from_str(&run(&["--json"])).unwrap();
        assert_eq!(told["log"], serde_json::json!([[1, 2], [255, u64::MAX]]));
    }
}
