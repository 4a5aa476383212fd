//! Running other programs: shown before they run, never reading our standard input.

use std::env;
use std::fmt::Write as _;
use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result, bail};

use crate::repository::Repository;

/// `cargo`, in the repository's root.
#[must_use]
pub fn cargo(repository: &Repository, arguments: &[&str]) -> Command {
    program(repository, "cargo", arguments)
}

/// Any program, in the repository's root.
#[must_use]
pub fn program(repository: &Repository, name: &str, arguments: &[&str]) -> Command {
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
    fn a_failing_program_is_an_error_that_names_it() {
        let error = run(&mut Command::new("false")).unwrap_err();
        assert!(error.to_string().starts_with("`false` ended with"), "{error}");
    }
}
