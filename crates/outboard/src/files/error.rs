//! Why a command about files did not succeed.

use std::io;
use std::path::PathBuf;

use ob_files_host::Error;

use super::device::FilesDeviceError;
use crate::config::ConfigError;

/// Why a command about files did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no card to ask.
    #[error("{reason}\nhint: {hint}")]
    NoCard {
        /// What was tried, and what came of it.
        reason: String,
        /// What to do.
        hint: String,
    },
    /// The card said no, or could not.
    #[error("cannot {action} {path}: {source}{}", hint_line(hint.as_deref()))]
    Remote {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: String,
        /// Why not.
        source: Error,
        /// What to do.
        hint: Option<String>,
    },
    /// The card died while it worked on something that cannot be begun again.
    #[error("cannot {action} {path}: {why}\nhint: {hint}")]
    Interrupted {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: String,
        /// What happened.
        why: String,
        /// What to do.
        hint: &'static str,
    },
    /// A local file cannot be used.
    #[error("cannot {action} {}: {source}{}", path.display(), hint_line(*hint))]
    Local {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
        /// What to do.
        hint: Option<&'static str>,
    },
    /// The command line asks for what cannot be.
    #[error("{problem}\nhint: {hint}")]
    Request {
        /// What is wrong.
        problem: String,
        /// What to do.
        hint: &'static str,
    },
    /// The device to check.
    #[error(transparent)]
    Device(#[from] Box<FilesDeviceError>),
    /// What failed has been told already.
    #[error("failed")]
    Told,
    /// Standard output is gone.
    #[error("cannot write the output: {0}")]
    Output(#[from] io::Error),
}

fn hint_line(hint: Option<&str>) -> String {
    hint.map_or_else(String::new, |hint| format!("\nhint: {hint}"))
}

impl FilesError {
    /// Whether a person must change something before another try can go better.
    #[must_use]
    pub fn is_configuration(&self) -> bool {
        matches!(self, Self::Config(_) | Self::Request { .. })
    }

    /// The card said no, and there is more to say about it than it knows.
    pub(super) fn remote(
        action: &'static str,
        path: &impl ToString,
        source: Error,
        hint: impl Into<String>,
    ) -> Self {
        Self::Remote { action, path: path.to_string(), source, hint: Some(hint.into()) }
    }

    /// A local file cannot be used for a reason that this process found, in its own words.
    pub(super) fn local_because(
        action: &'static str,
        path: impl Into<PathBuf>,
        why: &'static str,
        hint: &'static str,
    ) -> Self {
        Self::Local { action, path: path.into(), source: io::Error::other(why), hint: Some(hint) }
    }

    pub(super) fn local(
        action: &'static str,
        path: impl Into<PathBuf>,
        hint: Option<&'static str>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Local { action, path, source, hint }
    }
}
