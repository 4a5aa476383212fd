//! `outboard files check`: what is wrong with a device's files, and where.

use std::io;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use ob_files_card::CheckReport;
use serde_json::json;

use super::command::CheckOptions;
use super::device::{self, FilesDeviceError};
use super::error::FilesError;
use crate::config::FilesDevice;
use crate::terminal::{BAD, GOOD, bytes, counted, say, styled};

pub(super) fn check(options: &CheckOptions) -> Result<(), FilesError> {
    let path = device_path(options)?;
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template("reading the log {wide_bar} {pos}/{len} sections {eta}") {
        bar.set_style(style);
    }
    let checked = device::check(&path, &mut |read, most| {
        bar.set_length(most);
        bar.set_position(read);
    });
    bar.finish_and_clear();
    match checked {
        Ok(report) => tell(&path, &report, options.json),
        Err(error) if options.json => tell_failure(&path, &error),
        Err(error) => Err(Box::new(error).into()),
    }
}

fn device_path(options: &CheckOptions) -> Result<PathBuf, FilesError> {
    if let Some(path) = &options.device {
        return Ok(path.clone());
    }
    match options.config.load()?.card().files.device {
        FilesDevice::Path(path) => Ok(path),
        FilesDevice::Memory => Err(FilesError::Request {
            problem: "the configuration has the files in memory, where only the card can see them".to_owned(),
            hint: "--device PATH checks another device",
        }),
    }
}

fn tell(path: &Path, report: &CheckReport, json: bool) -> Result<(), FilesError> {
    let sound = report.findings.is_empty() && report.superblocks.is_empty();
    if json {
        let findings: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
        let value = json!({
            "ok": sound, "device": path, "findings": findings, "superblocks": report.superblocks,
            "frames": report.frames, "records": report.records, "files": report.files,
            "directories": report.directories, "total_bytes": report.total, "free_bytes": report.free,
        });
        say(&serde_json::to_string_pretty(&value).map_err(io::Error::from)?)?;
    } else {
        say(&in_words(path, report, sound))?;
    }
    if sound { Ok(()) } else { Err(FilesError::Told) }
}

fn in_words(path: &Path, report: &CheckReport, sound: bool) -> String {
    let verdict = if sound { styled(GOOD, "ok") } else { styled(BAD, "something is wrong") };
    let mut lines = vec![format!("{}: {verdict}", path.display())];
    lines.extend(report.findings.iter().map(|finding| format!("  {} {finding}", styled(BAD, "finding:"))));
    for superblock in &report.superblocks {
        let comment = "the other one is sound, and the next start of a card writes this one anew";
        lines.push(format!("  {} {superblock} ({comment})", styled(BAD, "finding:")));
    }
    lines.push(format!(
        "  {}, {}; {} of {} free; {} in {} of the log read",
        counted(report.files, "file", "files"),
        counted(report.directories, "directory", "directories"),
        bytes(report.free),
        bytes(report.total),
        counted(report.records, "record", "records"),
        counted(report.frames, "frame", "frames")
    ));
    lines.join("\n")
}

fn tell_failure(path: &Path, error: &FilesDeviceError) -> Result<(), FilesError> {
    let text = error.to_string();
    let (problem, hint) = match text.split_once("\nhint: ") {
        Some((problem, hint)) => (problem, Some(hint)),
        None => (text.as_str(), None),
    };
    let value = json!({ "ok": false, "device": path, "error": problem, "hint": hint });
    say(&serde_json::to_string_pretty(&value).map_err(io::Error::from)?)?;
    Err(FilesError::Told)
}
