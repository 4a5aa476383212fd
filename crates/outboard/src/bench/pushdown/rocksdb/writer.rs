//! RocksDB itself, in a process of its own (`crates/ob-rocksdb/tests/peer`), which writes the database and is told what over pipes.

use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::records::{Records, key};
use crate::bench::BenchFailure;

/// Keys that are written at once while the database is filled.
const BATCH: usize = 256;

/// The process. Ended when dropped.
pub(super) struct Writer {
    child: Child,
    /// Closed to end it.
    commands: Option<BufWriter<ChildStdin>>,
    answers: BufReader<ChildStdout>,
}

impl Writer {
    /// Has RocksDB open a new database with these options.
    pub(super) fn start(program: &Path, directory: &Path, options: &[String]) -> Result<Self, BenchFailure> {
        let mut child = Command::new(program)
            .arg(directory)
            .arg("1")
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start RocksDB's writer, {}: {error}", program.display()))?;
        let commands = child.stdin.take().map(BufWriter::new);
        let answers = BufReader::new(child.stdout.take().ok_or("RocksDB's writer has no output")?);
        let mut writer = Self { child, commands, answers };
        // When it answers, the database is open.
        writer.rest()?;
        Ok(writer)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes the next values of many keys.
    pub(super) fn fill(
        &mut self,
        records: &mut Records,
        numbers: impl IntoIterator<Item = u32>,
    ) -> Result<(), BenchFailure> {
        let numbers: Vec<u32> = numbers.into_iter().collect();
        for numbers in numbers.chunks(BATCH) {
            self.say(&[format!("batch {}", numbers.len()).as_bytes()])?;
            for number in numbers {
                self.say(&[&key(*number), &records.write(*number)])?;
            }
            self.wait()?;
        }
        Ok(())
    }

    /// Writes the next value of a key, and waits until RocksDB has it in its log.
    pub(super) fn put(&mut self, records: &mut Records, number: u32) -> Result<(), BenchFailure> {
        self.say(&[b"put default", &key(number), &records.write(number)])?;
        self.wait()
    }

    /// Has all that was written since the last time at a level of its own.
    pub(super) fn settle(&mut self, level: u32) -> Result<(), BenchFailure> {
        self.say(&[format!("settle {level}").as_bytes()])?;
        self.wait()
    }

    /// Waits until RocksDB has nothing left to do by itself.
    pub(super) fn rest(&mut self) -> Result<(), BenchFailure> {
        self.say(&[b"rest"])?;
        self.wait()
    }

    /// A line of words.
    fn say(&mut self, words: &[&[u8]]) -> Result<(), BenchFailure> {
        let commands = self.commands.as_mut().ok_or("RocksDB's writer takes no commands")?;
        for (at, word) in words.iter().enumerate() {
            commands.write_all(if at == 0 { b"" } else { b" " })?;
            commands.write_all(word)?;
        }
        Ok(commands.write_all(b"\n")?)
    }

    fn wait(&mut self) -> Result<(), BenchFailure> {
        self.commands.as_mut().ok_or("RocksDB's writer takes no commands")?.flush()?;
        let mut line = String::new();
        match self.answers.read_line(&mut line)? {
            0 => Err("RocksDB's writer has ended".into()),
            _ if line == ".\n" => Ok(()),
            _ => {
                Err(format!("RocksDB's writer said `{}`; is it built from the same source?", line.trim_end())
                    .into())
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.commands.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
