//! Running other programs: shown before they run, never reading our standard input.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::num::NonZero;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};

use crate::repository::Repository;

/// `cargo`, in the repository's root.
#[must_use]
pub fn cargo(repository: &Repository, arguments: &[&str]) -> Command {
    program(repository, "cargo", arguments)
}

/// Any program, in the repository's root.
#[must_use]
pub fn program(repository: &Repository, name: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
    let mut command = Command::new(name);
    command.args(arguments).current_dir(repository.root());
    command
}

/// Runs to the end with our own output streams, so that nothing cargo says is lost.
///
/// # Errors
/// When the program cannot be started or does not succeed.
pub fn run(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    println!("$ {shown}");
    let status = command.stdin(Stdio::null()).status().with_context(|| format!("cannot start `{shown}`"))?;
    if !status.success() {
        bail!("`{shown}` ended with {status}");
    }
    Ok(())
}

/// Runs to the end and keeps the output, whether it succeeds or not.
///
/// # Errors
/// When the program cannot be started.
pub fn capture(command: &mut Command) -> Result<Output> {
    let shown = shown(command);
    command.stdin(Stdio::null()).output().with_context(|| format!("cannot start `{shown}`"))
}

/// Keeps the output like [`capture`], and kills the program when a line of its standard output is all that was wanted.
///
/// # Errors
/// When the program cannot be started, or its output not read.
pub fn capture_until(command: &mut Command, is_enough: impl Fn(&str) -> bool) -> Result<Output> {
    let shown = shown(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("cannot start `{shown}`"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let mut stdout = Vec::new();
    let stderr = thread::scope(|scope| {
        let errors = scope.spawn(|| {
            let mut bytes = Vec::new();
            err.map_or(Ok(0), |mut stream| stream.read_to_end(&mut bytes)).map(|_| bytes)
        });
        let mut lines = BufReader::new(out.context("no standard output")?);
        let mut begin = 0;
        while lines.read_until(b'\n', &mut stdout)? > 0 {
            if is_enough(String::from_utf8_lossy(&stdout[begin..]).trim_end()) {
                child.kill()?;
            }
            begin = stdout.len();
        }
        let errors = errors.join().map_err(|_| anyhow!("a thread that reads has panicked"))?;
        anyhow::Ok(errors?)
    })?;
    Ok(Output { status: child.wait()?, stdout, stderr })
}

/// Runs to the end and shows the output then, in one piece: for programs that run side by side.
///
/// # Errors
/// As [`run`].
pub fn run_quietly(command: &mut Command) -> Result<()> {
    let output = capture(command)?;
    let shown = shown(command);
    let text = [output.stderr.as_slice(), &output.stdout].concat();
    println!("$ {shown}\n{}", String::from_utf8_lossy(&text));
    if !output.status.success() {
        bail!("`{shown}` ended with {}", output.status);
    }
    Ok(())
}

/// Does the work for each item, for as many at once as there are processors, beginning with the first ones. Gives the results in
/// the order of the items.
///
/// # Errors
/// The first error, in that order; the rest of the work is done all the same.
pub fn side_by_side<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> Result<R> + Sync) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let done: Vec<Mutex<Option<Result<R>>>> = items.iter().map(|_| Mutex::new(None)).collect();
    let workers = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        for _ in 0..workers.min(items.len()) {
            scope.spawn(|| {
                let take = || next.fetch_add(1, Ordering::Relaxed);
                while let Some((item, done)) = Some(take()).and_then(|at| items.get(at).zip(done.get(at))) {
                    *done.lock().unwrap_or_else(PoisonError::into_inner) = Some(work(item));
                }
            });
        }
    });
    let results = done.into_iter().map(|done| done.into_inner().unwrap_or_else(PoisonError::into_inner));
    results.map(|result| result.context("a piece of work was not done")?).collect()
}

/// Whether the program starts and succeeds; its output is thrown away. For probes such as `--version`.
#[must_use]
pub fn succeeds(command: &mut Command) -> bool {
    capture(command).is_ok_and(|output| output.status.success())
}

/// Whether a program of this name is on the path.
#[must_use]
pub fn is_installed(name: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(name).is_file()))
}

/// The command as one would type it, with the variables that we set.
#[must_use]
pub fn shown(command: &Command) -> String {
    let mut line = String::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = write!(line, "{}={} ", name.to_string_lossy(), quoted(&value.to_string_lossy()));
        }
    }
    line.push_str(&command.get_program().to_string_lossy());
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&quoted(&argument.to_string_lossy()));
    }
    line
}

fn quoted(word: &str) -> String {
    let is_plain = |character: char| character.is_alphanumeric() || "-_=+./:,@%".contains(character);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shown_command_can_be_typed_again() {
        let mut command = Command::new("cargo");
        command.args(["test", "it's", ""]).env("RUSTFLAGS", "--cfg loom");
        assert_eq!(shown(&command), r"RUSTFLAGS='--cfg loom' cargo test 'it'\''s' ''");
    }

    #[test]
    fn a_program_that_has_said_enough_is_ended() {
        let mut endless = Command::new("bash");
        endless.args(["-c", "echo wrong >&2; echo first; echo enough; exec sleep 1000"]);
        let output = capture_until(&mut endless, |line| line == "enough").unwrap();
        assert!(!output.status.success());
        assert_eq!((&output.stdout[..], &output.stderr[..]), (&b"first\nenough\n"[..], &b"wrong\n"[..]));
        let output = capture_until(Command::new("echo").arg("else"), |line| line == "enough").unwrap();
        assert!(output.status.success());
    }

    #[test]
    fn work_that_is_done_side_by_side_comes_back_in_order() {
        let numbers: Vec<u32> = (0..100).collect();
        assert_eq!(side_by_side(&numbers, |number| Ok(*number)).unwrap(), numbers);
        let error = side_by_side(&numbers, |number| if *number < 50 { Ok(()) } else { bail!("{number}") });
        assert_eq!(error.unwrap_err().to_string(), "50");
    }

    #[test]
    fn a_failing_program_is_an_error_that_names_it() {
        let error = run(&mut Command::new("false")).unwrap_err();
        assert!(error.to_string().starts_with("`false` ended with"), "{error}");
    }
}
