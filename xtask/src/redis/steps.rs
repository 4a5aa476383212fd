//! What the clients do, and what must come of it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use super::compare::compare;
use super::reply::Connection;
use super::script::{self, Exchange, Tolerance};
use crate::command;
use crate::kernel::target::Target;

/// What both servers are sent.
pub const COMMANDS: &str = include_str!("commands.txt");
const CLIENT: &str = include_str!("client.py");
const PASSWORD: &str = "open-sesame";

// Enough for figures that are not noise, few enough for a machine that does other things too.
const BENCHMARK_REQUESTS: &str = "100000";
const BENCHMARKS: &[&str] = &["SET:", "GET:", "INCR:", "MSET (10 keys):"];

const START_PATIENCE: Duration = Duration::from_secs(60);
const POLL_PAUSE: Duration = Duration::from_millis(20);

/// Differences beyond these are counted and not shown.
const SHOWN_MAX: usize = 60;

/// One step.
pub struct Step {
    /// How it is chosen.
    pub name: &'static str,
    /// What it is for.
    pub purpose: &'static str,
    /// Does it.
    pub run: fn(&mut Bench) -> Result<()>,
}

/// Every step.
pub const STEPS: &[Step] = &[
    Step { name: "cli", purpose: "a session with redis-cli", run: cli },
    Step {
        name: "compare",
        purpose: "the same bytes come back as from Redis, for every command",
        run: comparison,
    },
    Step { name: "python", purpose: "a program in another language, with its library", run: python },
    Step { name: "benchmark", purpose: "redis-benchmark, sixteen requests at once", run: benchmark },
];

/// A server, and where.
pub struct Server {
    /// The process.
    pub target: Target,
    /// Where it listens.
    pub port: u16,
    /// Its configuration.
    pub configuration: &'static str,
    /// The line of its configuration that sets a password.
    pub password_line: &'static str,
}

impl Server {
    fn start(&mut self) -> Result<()> {
        self.target.start_afresh(self.configuration)?;
        self.wait_until_it_serves()
    }

    fn start_locked(&mut self) -> Result<()> {
        let line = self.password_line.replace("{password}", PASSWORD);
        self.target.start_afresh(&format!("{}{line}\n", self.configuration))?;
        self.wait_until_it_serves()
    }

    /// A card takes connections before its host is there; then it asks for patience, in the words of a Redis that loads.
    fn wait_until_it_serves(&self) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            let mut connection = Connection::open(self.port)?;
            connection.send(b"DBSIZE\r\n")?;
            let answer = connection.receive()?;
            if !answer.bytes.starts_with(b"-LOADING") {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "it still loads: {}", String::from_utf8_lossy(&answer.bytes));
            thread::sleep(POLL_PAUSE);
        }
    }

    fn cli(&self, arguments: &[&str]) -> Result<String> {
        let mut cli = Command::new("redis-cli");
        cli.args(["-h", "127.0.0.1", "-p", &self.port.to_string()]).args(arguments);
        said(&mut cli)
    }
}

/// The two servers.
pub struct Bench {
    /// Ours, or Redis in its place where the harness tests itself.
    pub ours: Server,
    /// Redis, which says what is right.
    pub oracle: Server,
    /// Whether Redis stands in for us.
    pub is_self_test: bool,
    /// Where files may be put.
    pub folder: PathBuf,
}

/// Runs a program that must succeed, and returns what it printed.
fn said(program: &mut Command) -> Result<String> {
    println!("$ {}", command::shown(program));
    let output = command::capture(program)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` ended with {}:\n{text}{errors}", command::shown(program), output.status);
    }
    Ok(text)
}

fn cli(bench: &mut Bench) -> Result<()> {
    let server = &mut bench.ours;
    server.start()?;
    let session: &[(&[&str], &str)] = &[
        (&["PING"], "PONG\n"),
        (&["SET", "greeting", "hello, world"], "OK\n"),
        (&["GET", "greeting"], "hello, world\n"),
        (&["-3", "GET", "none"], "\n"),
        (&["--no-raw", "GET", "none"], "(nil)\n"),
        (&["--no-raw", "INCRBY", "count", "42"], "(integer) 42\n"),
        (&["--no-raw", "MGET", "greeting", "none", "count"], "1) \"hello, world\"\n2) (nil)\n3) \"42\"\n"),
        (&["--no-raw", "EXPIRE", "count", "100"], "(integer) 1\n"),
        (&["--scan", "--pattern", "greet*"], "greeting\n"),
        (&["DEL", "greeting", "count"], "2\n"),
        (&["-3", "--no-raw", "DBSIZE"], "(integer) 0\n"),
    ];
    for (arguments, wanted) in session {
        let got = server.cli(arguments)?;
        ensure!(got == *wanted, "redis-cli {arguments:?} said {got:?} instead of {wanted:?}");
    }
    // Sent in bulk, as for the import of data; a reply to each is counted.
    let import = bench.folder.join("import.txt");
    let lines: String = (0..10_000).map(|number| format!("SET import:{number} {number}\r\n")).collect();
    fs::write(&import, lines)?;
    let pipe = format!("redis-cli -p {} --pipe < {}", server.port, import.display());
    let got = said(Command::new("sh").args(["-c", &pipe]))?;
    ensure!(got.contains("errors: 0, replies: 10000"), "redis-cli --pipe said {got}");
    ensure!(server.cli(&["DBSIZE"])? == "10000\n", "not all of the import is there");

    server.start_locked()?;
    ensure!(server.cli(&["GET", "k"])?.starts_with("NOAUTH"), "a password is needed");
    let got = server.cli(&["-a", PASSWORD, "--no-auth-warning", "SET", "k", "v"])?;
    ensure!(got == "OK\n", "with the password redis-cli said {got:?}");
    Ok(())
}

fn comparison(bench: &mut Bench) -> Result<()> {
    let groups = script::parse(&COMMANDS.replace("{password}", PASSWORD))?;
    // Redis in our place does not lack what Redis has.
    let is_self_test = bench.is_self_test;
    let is_compared = |exchange: &Exchange| {
        !(is_self_test && matches!(exchange.tolerance, Tolerance::Missing | Tolerance::Refused))
    };
    let (mut compared, mut differences) = (0, Vec::new());
    for is_locked in [false, true] {
        for server in [&mut bench.ours, &mut bench.oracle] {
            if is_locked { server.start_locked()? } else { server.start()? }
        }
        let flush: Vec<Vec<u8>> = vec![b"FLUSHALL".to_vec()];
        let greeting: &[Vec<Vec<u8>>] = if is_locked { &[] } else { &[flush] };
        for group in groups.iter().filter(|group| group.is_locked == is_locked) {
            let one = compare(group, bench.oracle.port, bench.ours.port, greeting, is_compared)?;
            compared += one.compared;
            differences.extend(one.differences);
        }
    }
    bench.oracle.target.stop();
    println!("redis: {compared} requests compared, {} answered differently", differences.len());
    for difference in differences.iter().take(SHOWN_MAX) {
        println!("{difference}");
    }
    ensure!(differences.is_empty(), "{} of {compared} requests are answered differently", differences.len());
    Ok(())
}

fn python(bench: &mut Bench) -> Result<()> {
    let program = bench.folder.join("client.py");
    fs::write(&program, CLIENT)?;
    let port = bench.ours.port.to_string();
    let run = |password: &[&str]| {
        let mut python = Command::new(super::PYTHON);
        python.arg(&program).args(["127.0.0.1", &port]).args(password);
        command::run(&mut python)
    };
    bench.ours.start()?;
    run(&[])?;
    bench.ours.start_locked()?;
    run(&[PASSWORD])
}

fn benchmark(bench: &mut Bench) -> Result<()> {
    bench.ours.start()?;
    let mut program = Command::new("redis-benchmark");
    program.args(["-h", "127.0.0.1", "-p", &bench.ours.port.to_string(), "-t", "get,set,incr,mset"]);
    program.args(["-P", "16", "-r", "100000", "-n", BENCHMARK_REQUESTS, "-q"]);
    println!("$ {}", command::shown(&program));
    let output = command::capture(&mut program)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let figures = figures(&text);
    for figure in &figures {
        println!("{figure}");
    }
    ensure!(output.status.success(), "redis-benchmark ended with {}:\n{text}{errors}", output.status);
    check_benchmark(&text, &errors)
}

/// The last line of each benchmark; those before it show its progress, and are overwritten on a terminal.
fn figures(text: &str) -> Vec<&str> {
    let is_figure = |line: &&str| line.contains("requests per second");
    text.split(['\n', '\r']).map(str::trim).filter(is_figure).collect()
}

/// Whether each benchmark has a figure above zero, and nothing went wrong.
fn check_benchmark(text: &str, errors: &str) -> Result<()> {
    let figures = figures(text);
    for name in BENCHMARKS {
        let figure = figures.iter().find_map(|line| line.strip_prefix(name));
        let per_second = figure.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        ensure!(per_second.is_some_and(|figure| figure > 0.0), "no figure for {name}\n{text}{errors}");
    }
    for word in ["rror", "WARN", "ERR"] {
        ensure!(!text.contains(word) && !errors.contains(word), "redis-benchmark said\n{text}{errors}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_compared_and_every_difference_has_a_reason() {
        let groups = script::parse(COMMANDS).unwrap();
        let exchanges: Vec<&Exchange> = groups.iter().flat_map(|group| &group.exchanges).collect();
        assert!(exchanges.len() > 400, "{}", exchanges.len());
        let exact = exchanges.iter().filter(|exchange| exchange.tolerance == Tolerance::Exact).count();
        assert!(exact * 10 > exchanges.len() * 7, "{exact} of {} are compared byte by byte", exchanges.len());
        let wanted = "get set getdel setnx mget mset del exists strlen append incr decr incrby decrby expire pexpire ttl \
                      pttl persist getrange scan dbsize flushall ping echo info config command client select auth hello";
        for name in wanted.split_whitespace() {
            let is_it = |exchange: &&&Exchange| {
                exchange.words.first().is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()))
            };
            assert!(exchanges.iter().filter(is_it).count() >= 2, "{name} is hardly compared");
        }
    }

    #[test]
    fn a_benchmark_without_a_figure_or_with_an_error_fails() {
        let good = "SET: rps=1.0 (overall: 2.0)\rSET: 100.50 requests per second, p50=1 msec\n\nGET: 7.00 requests per second\n\
                    INCR: 1.00 requests per second\nMSET (10 keys): 3.00 requests per second\n";
        check_benchmark(good, "").unwrap();
        assert!(check_benchmark(&good.replace("INCR", "DECR"), "").is_err());
        assert!(check_benchmark(&good.replace("7.00", "0.00"), "").is_err());
        assert!(check_benchmark(good, "Error from server: ERR no").is_err());
        assert!(check_benchmark(&format!("{good}WARNING: Could not fetch server CONFIG\n"), "").is_err());
    }
}
