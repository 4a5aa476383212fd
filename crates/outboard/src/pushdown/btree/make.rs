//! `outboard pushdown btree make`: lines become a tree in a local file.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read};
use std::path::Path;

use ob_pushdown::btree::{BulkLoad, LoadError, Shape, VALUE_LEN};
use serde_json::json;

use super::command::MakeOptions;
use super::values::Values;
use crate::durable;
use crate::files::{transfer_bar, unfinished_name};
use crate::pushdown::error::{BTreeProblem, PushdownError};
use crate::terminal::{bytes, counted, say};

/// Bytes of a line: a key of twenty digits, blanks, and a value of eight such numbers, with room to spare.
const LINE_LEN_MAX: u64 = 1024;

/// A key and its value.
type Entry = (u64, [u8; VALUE_LEN]);

pub(super) fn make(options: &MakeOptions) -> Result<(), PushdownError> {
    if !options.force && options.file.symlink_metadata().is_ok() {
        return Err(PushdownError::Request {
            problem: format!("{} is there already", options.file.display()),
            hint: "--force replaces it".into(),
        });
    }
    let shape = match (options.source.sample, &options.source.input) {
        (Some(keys), _) => {
            let shape = shape(keys, options)?;
            write(options, shape.clone(), |number| number + 1, |number| options.values.sample(number + 1))?;
            shape
        }
        (None, input) => {
            let path = input.as_deref().unwrap_or(Path::new("-"));
            let entries = read_entries(path, options.values)?;
            let shape = shape(entries.len() as u64, options)?;
            let entry = |number: u64| entries.get(number as usize).copied().unwrap_or((0, [0; VALUE_LEN]));
            write(options, shape.clone(), |number| entry(number).0, |number| entry(number).1)?;
            shape
        }
    };
    let (keys, levels, len) = (shape.keys(), shape.levels() as u64, shape.file_len());
    if options.json {
        let told = json!({ "file": options.file, "keys": keys, "levels": levels, "bytes": len });
        say(&format!("{told:#}"))?;
        return Ok(());
    }
    let (keys, levels) = (counted(keys, "key", "keys"), counted(levels, "level", "levels"));
    say(&format!("{}: {keys}, {levels}, {}", options.file.display(), bytes(len)))?;
    Ok(())
}

fn shape(keys: u64, options: &MakeOptions) -> Result<Shape, PushdownError> {
    Shape::new(keys, usize::from(options.fanout)).map_err(|_| PushdownError::Request {
        problem: format!("there is no tree of {}", counted(keys, "key", "keys")),
        hint: "it has at least one, and 2^48 at most".into(),
    })
}

/// Writes it beside its place, so that nobody sees half a tree.
fn write(
    options: &MakeOptions,
    shape: Shape,
    key: impl Fn(u64) -> u64,
    value: impl FnMut(u64) -> [u8; VALUE_LEN],
) -> Result<(), PushdownError> {
    let failed = |source| PushdownError::Local { path: options.file.clone(), source };
    let beside = options.file.with_file_name(unfinished_name("tree").map_err(failed)?);
    let bar = transfer_bar(Some(shape.file_len()), &options.file.display().to_string());
    let written = File::create_new(&beside).map_err(failed).and_then(|file| {
        let output = BufWriter::with_capacity(1 << 20, bar.wrap_write(&file));
        BulkLoad::new(shape, key, value).write(output).map_err(|error| match error {
            LoadError::Output(source) => failed(source),
            error => BTreeProblem::from(error).into(),
        })?;
        file.sync_all().map_err(failed)?;
        durable::put(&beside, &options.file).map_err(failed)
    });
    bar.finish_and_clear();
    if written.is_err() {
        // What is left of it is of no use; that it cannot be removed is not what is to be told.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

fn read_entries(path: &Path, values: Values) -> Result<Vec<Entry>, PushdownError> {
    let failed = |source| PushdownError::Local { path: path.to_owned(), source };
    if path.as_os_str() == "-" {
        return entries_of(path, transfer_bar(None, "standard input").wrap_read(io::stdin().lock()), values);
    }
    let file = File::open(path).map_err(failed)?;
    let len = file.metadata().map_err(failed)?.len();
    entries_of(path, transfer_bar(Some(len), &path.display().to_string()).wrap_read(file), values)
}

/// What the lines say, by key.
fn entries_of(path: &Path, input: impl Read, values: Values) -> Result<Vec<Entry>, PushdownError> {
    let mut input = BufReader::with_capacity(1 << 20, input);
    let (mut entries, mut line, mut number) = (Vec::new(), Vec::new(), 0_u64);
    loop {
        line.clear();
        number += 1;
        let read = input.by_ref().take(LINE_LEN_MAX).read_until(b'\n', &mut line);
        if read.map_err(|source| PushdownError::Local { path: path.to_owned(), source })? == 0 {
            break;
        }
        let wrong = |problem: String| {
            PushdownError::Request {
            problem: format!("{}, line {number}: {problem}", path.display()),
            hint: "a line is a key, a blank and a value, such as `4711 some text`; --values says how values are written".into(),
        }
        };
        let is_whole = line.last() == Some(&b'\n') || (line.len() as u64) < LINE_LEN_MAX;
        if !is_whole {
            return Err(wrong("the line is longer than any that has a key and a value".to_owned()));
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        if let Some((key, value)) = parse(text, values).map_err(wrong)? {
            entries.push((key, value, number));
        }
    }
    // The order of lines with the same key stays, so that the later one is told.
    entries.sort_by_key(|(key, ..)| *key);
    let twice = entries.windows(2).find_map(|two| match two {
        [(one, _, first), (other, _, second)] if one == other => Some((*one, *first, *second)),
        _ => None,
    });
    if let Some((key, first, second)) = twice {
        return Err(PushdownError::Request {
            problem: format!("{}: line {second} has the key {key} of line {first} again", path.display()),
            hint: "a tree has each key once".into(),
        });
    }
    Ok(entries.into_iter().map(|(key, value, _)| (key, value)).collect())
}

/// A key and its value; nothing of an empty line.
fn parse(line: &[u8], values: Values) -> Result<Option<Entry>, String> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let end = line.iter().position(u8::is_ascii_whitespace).unwrap_or(line.len());
    let (word, rest) = line.split_at(end);
    let shown = String::from_utf8_lossy(word);
    let key = shown.parse::<u64>().map_err(|_| format!("`{shown}` is no key"))?;
    Ok(Some((key, values.parse(rest.get(1..).unwrap_or_default())?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Entry>, String> {
        entries_of(Path::new("lines"), text.as_bytes(), Values::Text).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_come_in_any_order_and_leave_by_key() {
        let value = |text: &str| Values::Text.parse(text.as_bytes()).unwrap();
        let expected = vec![(2, value("two words")), (7, value("")), (10, value(" x"))];
        assert_eq!(read("10  x\n\n7\r\n2 two words"), Ok(expected));
        assert_eq!(read(""), Ok(Vec::new()));
    }

    #[test]
    fn a_line_that_is_none_is_told_by_its_number() {
        let long = format!("1 a\n2 {}\n", "x".repeat(70));
        let endless = format!("1 {}", "x".repeat(5000));
        for (text, problem) in [
            ("1 a\nx b\n", "lines, line 2: `x` is no key"),
            (&long[..], "lines, line 2: the value has 70 bytes, more than 64"),
            (&endless, "lines, line 1: the line is longer"),
            ("5 a\n1 b\n5 c\n", "lines: line 3 has the key 5 of line 1 again"),
        ] {
            let told = read(text).unwrap_err();
            assert!(told.contains(problem), "{told}");
        }
    }
}
