//! The test command that the README shows, so that CI runs what a reader types and not something like it.
//!
//! In the README a comment marks the fenced block, which holds one command:
//!
//! ~~~text
//! <!-- test-command -->
//! ```sh
//! cargo test --workspace
//! ```
//! ~~~

use std::fs;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::outcome::Outcome;
use crate::repository::Repository;

const MARK: &str = "<!-- test-command -->";

/// Runs the README's test command.
///
/// # Errors
/// When there is no README, no marked command in it, or the command fails.
pub fn run_test_command(repository: &Repository) -> Result<Outcome> {
    let readme = fs::read_to_string(repository.root().join("README.md"))
        .context("README.md, which must show the test command, cannot be read")?;
    let test_command = test_command(&readme)?;
    // Through a shell, because that is where the reader types it.
    command::run(&mut command::program(repository, "bash", &["-c", test_command]))?;
    Ok(Outcome::Done)
}

/// The one command in the fenced block after the mark.
///
/// # Errors
/// When the mark, the fence or the command is missing, or when there are several commands.
pub fn test_command(readme: &str) -> Result<&str> {
    let mut lines = readme.lines().map(str::trim);
    if !lines.any(|line| line == MARK) {
        bail!("README.md has no line `{MARK}`; put it right above the fenced block with the test command");
    }
    let opening = lines.find(|line| !line.is_empty());
    if !opening.is_some_and(|line| line.starts_with("```")) {
        bail!("README.md: `{MARK}` must be followed by a fenced block");
    }
    let mut commands = lines.take_while(|line| !line.starts_with("```")).filter(|line| !line.is_empty());
    let command = commands.next().with_context(|| format!("README.md: the block after `{MARK}` is empty"))?;
    if let Some(second) = commands.next() {
        bail!("README.md: the block after `{MARK}` must hold one command, but has also `{second}`");
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marked_command_is_found() {
        let readme = "```sh\nother\n```\n<!-- test-command -->\n\n```sh\ncargo test --workspace\n```\nend";
        assert_eq!(test_command(readme).unwrap(), "cargo test --workspace");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (readme, complaint) in [
            ("```sh\ncargo test\n```", "has no line"),
            ("<!-- test-command -->\ncargo test", "followed by a fenced block"),
            ("<!-- test-command -->\n```sh\n```", "is empty"),
            ("<!-- test-command -->\n```sh\none\ntwo\n```", "has also `two`"),
        ] {
            let error = test_command(readme).unwrap_err();
            assert!(error.to_string().contains(complaint), "{readme:?}: {error}");
        }
    }
}
