//! The binary `outboard`: parses the command line and wires; everything else is in the library.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use outboard::cli::{self, Cli, EXIT_SUCCESS};
use outboard::terminal::{BAD, styled, warn};

fn main() -> ExitCode {
    match cli::run(Cli::parse()) {
        Ok(()) => ExitCode::from(EXIT_SUCCESS),
        Err(error) => {
            if !error.is_silent() {
                warn(&format!("{} {error}", styled(BAD, "error:")));
            }
            ExitCode::from(error.exit_code())
        }
    }
}
