//! Logging to standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::LogLevel;

/// Overrides the configured level, module by module if need be: `OUTBOARD_LOG=info,ob_link=trace`.
pub const VARIABLE: &str = "OUTBOARD_LOG";

/// Starts logging. A second call changes nothing.
pub fn start(level: LogLevel) {
    let fallback = || EnvFilter::new(level.name());
    let (filter, complaint) = match std::env::var(VARIABLE) {
        Ok(text) => match EnvFilter::try_new(&text) {
            Ok(filter) => (filter, None),
            Err(error) => (fallback(), Some(error)),
        },
        Err(_) => (fallback(), None),
    };
    let colours =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .with_target(false)
        // Who read the log may go away. The default then complains on standard error, which is what cannot be written to, and panics.
        .log_internal_errors(false)
        .try_init();
    if let (Ok(()), Some(error)) = (started, complaint) {
        tracing::warn!(%error, "{VARIABLE} is not a filter; the configured level holds");
    }
}
