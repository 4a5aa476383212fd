//! What SPDK's programs print, and what of it means that all is well.
//!
//! Exit codes alone do not do: some programs print an error and succeed, others do nothing and succeed.

use anyhow::{Context, Result, bail};

use super::tools::Finished;

/// Figures of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Operations a second.
    pub per_second: f64,
    /// Mean latency, in microseconds.
    pub mean_us: f64,
}

// What these programs say when an operation, or the checking of its data, went wrong.
const TROUBLE: &[&str] = &["completed with error", "Buffer mismatch", "ended in about", "errors occurred"];

/// Refuses a program that failed, or that says so.
///
/// # Errors
/// When it did; the text has its last lines.
pub fn sound(finished: &Finished) -> Result<()> {
    if !finished.status.success() {
        bail!("`{}` ended with {}:\n{}", finished.shown, finished.status, tail(&finished.text));
    }
    for words in TROUBLE {
        if let Some(line) = finished.text.lines().find(|line| line.contains(words)) {
            bail!("`{}` says `{}`:\n{}", finished.shown, line.trim(), tail(&finished.text));
        }
    }
    Ok(())
}

/// Refuses a program that failed, or whose driver complains of anything.
///
/// # Errors
/// When it did.
pub fn quiet(finished: &Finished) -> Result<()> {
    sound(finished)?;
    // The driver says this of queues that it has closed itself, whoever the target is.
    let is_farewell = |line: &str| line.contains("DISCONNECTED] CQ transport error -6");
    let is_complaint = |line: &&str| line.contains("ERROR") || line.trim_end().ends_with(" failed");
    let complaint = finished.text.lines().find(|line| is_complaint(line) && !is_farewell(line));
    if let Some(line) = complaint {
        bail!("`{}` says `{}`:\n{}", finished.shown, line.trim(), tail(&finished.text));
    }
    Ok(())
}

/// Figures of `spdk_nvme_perf`: rate, MiB a second, then mean, least and most latency.
///
/// # Errors
/// When it failed, or did nothing.
pub fn perf(finished: &Finished) -> Result<Figures> {
    sound(finished)?;
    figures(finished, 0, 2)
}

/// Figures of `bdevperf`: rate, MiB a second, failures and time-outs a second, then latencies.
///
/// # Errors
/// When it failed, an operation of it failed, or it did nothing.
pub fn bdevperf(finished: &Finished) -> Result<Figures> {
    sound(finished)?;
    let total = total(finished)?;
    if total.get(2).is_none_or(|failures| *failures > 0.0) {
        bail!("`{}` had failures:\n{}", finished.shown, tail(&finished.text));
    }
    figures(finished, 0, 4)
}

/// What stands behind a label such as `Model Number:`.
#[must_use]
pub fn field<'text>(text: &'text str, label: &str) -> Option<&'text str> {
    text.lines().find_map(|line| line.trim_start().strip_prefix(label)).map(str::trim)
}

fn figures(finished: &Finished, rate: usize, mean: usize) -> Result<Figures> {
    let total = total(finished)?;
    let figure = |index: usize| total.get(index).copied().context("a figure is missing");
    let figures = Figures { per_second: figure(rate)?, mean_us: figure(mean)? };
    if figures.per_second <= 0.0 {
        bail!("`{}` did nothing:\n{}", finished.shown, tail(&finished.text));
    }
    Ok(figures)
}

fn total(finished: &Finished) -> Result<Vec<f64>> {
    let line = finished.text.lines().rev().find(|line| line.trim_start().starts_with("Total "));
    let (_, figures) = line
        .and_then(|line| line.split_once(':'))
        .with_context(|| format!("`{}` printed no total:\n{}", finished.shown, tail(&finished.text)))?;
    figures.split_whitespace().map(|word| word.parse().context("a figure is no number")).collect()
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(25)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    const PERF: &str = "\
Initialization complete. Launching workers.
========================================================
                                             Latency(us)
Device Information   :       IOPS      MiB/s    Average        min        max
a from core  0:   1000.00       3.91      31.50      20.00     900.00
========================================================
Total                :   1000.00       3.91      31.50      20.00     900.00
";
    const BDEVPERF: &str = "\
\r Device Information: runtime(s)       IOPS      MiB/s     Fail/s     TO/s    Average        min        max
Job: Nvme0n1 (Core Mask 0x1, workload: verify, depth: 32, IO size: 4096)
\t Verification LBA range: start 0x0 length 0x1000
\t Nvme0n1             :       1.00   500.00       1.95       0.00     0.00     63.00      20.00     900.00
\r ===================================
\r Total                       :              500.00       1.95       0.00     0.00     63.00      20.00     900.00
";

    fn ended(code: i32, text: &str) -> Finished {
        Finished { status: ExitStatus::from_raw(code << 8), text: text.to_owned(), shown: "it".to_owned() }
    }

    #[test]
    fn figures_are_read() {
        assert_eq!(perf(&ended(0, PERF)).unwrap(), Figures { per_second: 1000.0, mean_us: 31.5 });
        assert_eq!(bdevperf(&ended(0, BDEVPERF)).unwrap(), Figures { per_second: 500.0, mean_us: 63.0 });
    }

    #[test]
    fn failures_are_found_whichever_way_they_show() {
        assert!(perf(&ended(1, PERF)).is_err(), "an exit code");
        assert!(perf(&ended(0, &format!("Read completed with error (sct=0, sc=4)\n{PERF}"))).is_err());
        assert!(perf(&ended(0, &PERF.replace("1000.00", "0.00"))).is_err(), "nothing was done");
        assert!(perf(&ended(0, "No valid NVMe controllers found\n")).is_err(), "no total");
        let mismatch = format!("Buffer mismatch! Target: Nvme0n1 Disk Offset: 8\n{BDEVPERF}");
        assert!(bdevperf(&ended(0, &mismatch)).is_err());
        let failing = BDEVPERF.replace("1.95       0.00", "1.95       3.00");
        assert!(bdevperf(&ended(0, &failing)).is_err(), "operations failed");
        assert!(quiet(&ended(0, "get log page failed\nthen it goes on\n")).is_err());
        assert!(
            quiet(&ended(0, "nvme_ctrlr.c:1193: *ERROR*: [x,ENABLED] Failed to read the CC register\n"))
                .is_err()
        );
        assert!(
            quiet(&ended(0, "*ERROR*: [x,DISCONNECTED] CQ transport error -6 (No such device)\n")).is_ok()
        );
    }

    #[test]
    fn fields_are_found_by_their_label() {
        let text = "Serial Number:                         OB1\n  Model Number: Outboard \n";
        assert_eq!(field(text, "Model Number:"), Some("Outboard"));
        assert_eq!(field(text, "Firmware:"), None);
    }
}
