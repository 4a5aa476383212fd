//! Output for people: colours on terminals only, tables, and numbers that can be read.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anstyle::{AnsiColor, Style};

/// For headings.
pub const HEADING: Style = Style::new().bold();
/// For what is well.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// For what wants attention.
pub const WARNING: Style = AnsiColor::Yellow.on_default();
/// For what is wrong.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// For what may be overlooked.
pub const FAINT: Style = Style::new().dimmed();

/// Puts a text into a style; the writers of this module take it off again where there is no terminal.
#[must_use]
pub fn styled(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

/// Writes a text and the end of the line to standard output.
pub fn say(text: &str) -> io::Result<()> {
    let mut output = anstream::stdout().lock();
    writeln!(output, "{text}")?;
    output.flush()
}

/// Writes a text and the end of the line to standard error. If even that is closed, there is nobody to tell.
pub fn warn(text: &str) {
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

/// Rows in columns, the first row underlined by nothing but its style; numbers are the caller's to align.
#[must_use]
pub fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([heading[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (cell, width) in cells.zip(&widths) {
            // Writing to a String cannot fail.
            let _ = write!(text, "  {cell:<width$}");
        }
        text.trim_end().to_owned()
    };
    let mut lines = vec![styled(HEADING, &line(&mut heading.iter().copied()))];
    lines.extend(rows.iter().map(|row| line(&mut row.iter().map(String::as_str))));
    lines.join("\n")
}

/// A duration for people: `850 ms`, `12.3 s`, `2 h 5 min`.
#[must_use]
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// A number of bytes for people: `512 B`, `1.5 MiB`, `16.0 GiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut scaled = count as f64 / 1024.0;
    let mut unit = 0;
    // What would be rounded up to 1024 belongs to the next unit.
    while scaled >= 1023.95 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    format!("{scaled:.1} {}", UNITS[unit])
}

/// A count with its noun: `1 file`, `2 files`.
#[must_use]
pub fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// A moment in UTC, to the millisecond, as RFC 3339 writes it.
#[must_use]
pub fn timestamp(time: SystemTime) -> String {
    let since_epoch = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since_epoch.as_secs();
    let (year, month, day) = civil_date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let milliseconds = since_epoch.subsec_millis();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milliseconds:03}Z")
}

/// The Gregorian date of a day since 1970, counted in eras of 400 years that begin on the first of March.
fn civil_date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_the_calendar_has_them() {
        let at = |seconds: u64| timestamp(UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 7));
        assert_eq!(at(0), "1970-01-01T00:00:00.007Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.007Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.007Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59.007Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.007Z");
    }

    #[test]
    fn durations_have_the_unit_that_fits() {
        assert_eq!(duration(Duration::from_millis(850)), "850 ms");
        assert_eq!(duration(Duration::from_millis(12_300)), "12.3 s");
        assert_eq!(duration(Duration::from_secs(125)), "2 min 5 s");
        assert_eq!(duration(Duration::from_secs(7500)), "2 h 5 min");
    }

    #[test]
    fn bytes_have_the_unit_that_fits() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1024), "1.0 KiB");
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(bytes(16 << 30), "16.0 GiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
    }

    #[test]
    fn tables_align_their_columns() {
        let rows = vec![vec!["card".to_owned(), "1".to_owned()], vec!["h".to_owned(), "22".to_owned()]];
        let text = anstream::adapter::strip_str(&table(&["half", "pid"], &rows)).to_string();
        assert_eq!(text, "  half  pid\n  card  1\n  h     22");
    }
}
