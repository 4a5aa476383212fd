//! The target that the guest talks to: a process of this machine, with a fresh data folder for each scenario.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::protocol::Answer;

const START_PATIENCE: Duration = Duration::from_secs(60);
const STOP_PATIENCE: Duration = Duration::from_secs(15);
const POLL_PAUSE: Duration = Duration::from_millis(50);

/// The configuration that our own target is started with; words in braces are filled in.
pub const CONFIGURATION: &str = include_str!("target.toml");
/// What our own target reads where hosts must authenticate.
pub const AUTHENTICATING: &str = include_str!("target-authentication.toml");
/// What it reads where the guest's disk is a volume, kept by three chunk servers.
pub const VOLUMES: &str = include_str!("target-volumes.toml");
/// What it reads besides where those have little room.
pub const SMALL: &str = "\n[chunkserver]\nsize = \"768MiB\"\n";

/// Commands that do things to the target. Words in braces are filled in.
#[derive(Clone, Debug)]
pub struct Commands {
    /// Serves in the foreground until it is ended.
    pub serve: String,
    /// What it prints when it is ready; without it, it is ready when its port takes connections.
    pub ready: Option<String>,
    /// Changes the size of `{nsid}` to `{size}`.
    pub resize: String,
    /// Takes `{nsid}` away.
    pub remove: String,
}

/// A target under our control.
pub struct Target {
    commands: Commands,
    words: Vec<(&'static str, String)>,
    folder: PathBuf,
    port: u16,
    child: Option<Child>,
}

impl Target {
    /// A target that is not running yet. `words` are what the commands and the configuration may use.
    #[must_use]
    pub fn new(commands: Commands, folder: &Path, port: u16, words: Vec<(&'static str, String)>) -> Self {
        Self { commands, words, folder: folder.to_owned(), port, child: None }
    }

    /// Ends what runs, and starts with nothing stored.
    ///
    /// # Errors
    /// When the target does not start; the text has the end of its output.
    pub fn start_afresh(&mut self, configuration: &str) -> Result<()> {
        self.stop();
        if self.folder.exists() {
            fs::remove_dir_all(&self.folder)?;
        }
        fs::create_dir_all(&self.folder)?;
        fs::write(self.folder.join("target.toml"), self.filled(configuration, &[]))?;
        self.start()
    }

    /// Does what the guest asks for.
    pub fn please(&mut self, words: &[&str]) -> Answer {
        let done = match *words {
            ["kill-target"] => {
                self.kill();
                Ok(())
            }
            ["restart-target"] => self.start(),
            ["kill-one", what] => self.kill_one(what, ""),
            ["kill-one", what, folder] => self.kill_one(what, folder),
            ["resize", nsid, bytes] => self.run(&self.commands.resize, &[("nsid", nsid), ("size", bytes)]),
            ["remove", nsid] => self.run(&self.commands.remove, &[("nsid", nsid)]),
            ["volume", verb @ ("create" | "resize"), name, bytes] => {
                let words = [("verb", verb), ("name", name), ("size", bytes)];
                self.run("{outboard} volume {verb} --config {config} {name} --size {size}B", &words)
            }
            ["volume", "create", name, bytes, block] => {
                let words = [("name", name), ("size", bytes), ("block", block)];
                let line = "{outboard} volume create --config {config} {name} --size {size}B --block {block}";
                self.run(line, &words)
            }
            ["volume", "rm", name] => {
                self.run("{outboard} volume rm --config {config} {name} --force", &[("name", name)])
            }
            _ => bail_with(words),
        };
        match done {
            Ok(()) => Answer::Yes,
            Err(error) => Answer::No(format!("{error:#}")),
        }
    }

    fn start(&mut self) -> Result<()> {
        let line = self.filled(&self.commands.serve, &[]);
        println!("$ {line}");
        let log = self.log();
        let output = File::options().create(true).append(true).open(&log)?;
        let earlier_len = output.metadata()?.len();
        let mut child = Command::new("sh")
            .args(["-c", &format!("exec {line}")])
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start `{line}`"))?;
        let deadline = Instant::now() + START_PATIENCE;
        while !self.is_ready(earlier_len) {
            if let Some(status) = child.try_wait()? {
                bail!("the target ended with {status} before it was ready:\n{}", tail(&log));
            }
            if Instant::now() > deadline {
                kill_all(&family_of(child.id()));
                let _ = child.wait();
                bail!("the target is not ready after {} s:\n{}", START_PATIENCE.as_secs(), tail(&log));
            }
            thread::sleep(POLL_PAUSE);
        }
        self.child = Some(child);
        Ok(())
    }

    fn is_ready(&self, earlier_len: u64) -> bool {
        match &self.commands.ready {
            None => TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok(),
            Some(text) => {
                let output = fs::read(self.log()).unwrap_or_default();
                let new =
                    output.get(usize::try_from(earlier_len).unwrap_or(usize::MAX)..).unwrap_or_default();
                String::from_utf8_lossy(new).contains(text.as_str())
            }
        }
    }

    /// Ends the target and what it started, without a chance to tidy up.
    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            kill_all(&family_of(child.id()));
            let _ = child.wait();
        }
    }

    /// Ends one of the target's processes, without a chance to tidy up: who has started it starts it again. Of several of a kind it is the one
    /// with an argument that ends in the folder's name.
    fn kill_one(&self, what: &str, folder: &str) -> Result<()> {
        let child = self.child.as_ref().context("the target is not running")?;
        let is_it = |process: &Process| {
            let line = fs::read(format!("/proc/{}/cmdline", process.number)).unwrap_or_default();
            let mut arguments = line.split(|byte| *byte == 0).skip(1);
            arguments.next() == Some(what.as_bytes())
                && arguments.any(|argument| argument.ends_with(folder.as_bytes()))
        };
        let one = family_of(child.id()).into_iter().find(is_it);
        let one = one.with_context(|| format!("the target has no process `{what} {folder}`"))?;
        signal("KILL", &[one.number]);
        Ok(())
    }

    /// Asks the target to end, and insists when it, or something that it started, does not.
    pub fn stop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let family = family_of(child.id());
        signal("TERM", &[child.id()]);
        let deadline = Instant::now() + STOP_PATIENCE;
        while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(POLL_PAUSE);
        }
        kill_all(&family);
        let _ = child.wait();
    }

    /// The end of what the target printed.
    #[must_use]
    pub fn last_words(&self) -> String {
        tail(&self.log())
    }

    fn log(&self) -> PathBuf {
        self.folder.join("target.log")
    }

    fn run(&self, line: &str, more: &[(&str, &str)]) -> Result<()> {
        let line = self.filled(line, more);
        println!("$ {line}");
        let output = Command::new("sh").args(["-c", &line]).stdin(Stdio::null()).output()?;
        if !output.status.success() {
            bail!(
                "`{line}` ended with {}: {}",
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(())
    }

    fn filled(&self, text: &str, more: &[(&str, &str)]) -> String {
        let words = self.words.iter().map(|(name, value)| (*name, value.as_str()));
        words
            .chain(more.iter().copied())
            .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.stop();
    }
}

fn bail_with(words: &[&str]) -> Result<()> {
    bail!("nobody knows how to {}", words.join(" "))
}

/// A port that nobody listens on.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A process, told apart from a later one of the same number by when it started.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Process {
    number: u32,
    parent: u32,
    started_at: u64,
}

impl Process {
    fn of(number: u32) -> Option<Self> {
        let text = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        // The name stands in parentheses and may itself hold some; behind the last are state, parent, and so on.
        let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        let started_at = fields.nth(17)?.parse().ok()?;
        Some(Self { number, parent, started_at })
    }

    fn all() -> Vec<Self> {
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        entries.flatten().filter_map(number).filter_map(Self::of).collect()
    }
}

/// A process and all that it started, parents first: a supervisor must not start its children again.
fn family_of(process: u32) -> Vec<Process> {
    let all = Process::all();
    let mut family: Vec<Process> = all.iter().filter(|one| one.number == process).copied().collect();
    let mut index = 0;
    while let Some(parent) = family.get(index).copied() {
        family.extend(all.iter().filter(|one| one.parent == parent.number));
        index += 1;
    }
    family
}

fn kill_all(family: &[Process]) {
    let is_alive = |process: &&Process| {
        Process::of(process.number).is_some_and(|now| now.started_at == process.started_at)
    };
    let alive: Vec<u32> = family.iter().filter(is_alive).map(|process| process.number).collect();
    if !alive.is_empty() {
        signal("KILL", &alive);
    }
}

fn signal(name: &str, processes: &[u32]) {
    // A process that has ended meanwhile is what the signal was for.
    let _ = Command::new("kill")
        .arg(format!("-{name}"))
        .args(processes.iter().map(u32::to_string))
        .stderr(Stdio::null())
        .status();
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(serve: &str) -> Commands {
        Commands {
            serve: serve.to_owned(),
            ready: Some("ready".to_owned()),
            resize: "test {nsid} -lt {size}".to_owned(),
            remove: "echo no such namespace >&2; false".to_owned(),
        }
    }

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("xtask-kernel-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_killed_target_takes_its_children_along_and_can_be_restarted() {
        let folder = folder("kill");
        let serve = "sh -c 'sleep 600 & echo child $!; echo {word}; wait'";
        let words = vec![("word", "ready".to_owned())];
        let mut target = Target::new(commands(serve), &folder, 0, words);
        target.start_afresh(CONFIGURATION).unwrap();
        let line = target.last_words();
        let child = line.lines().find_map(|line| line.strip_prefix("child ")).unwrap().to_owned();
        assert_eq!(target.please(&["kill-target"]), Answer::Yes);
        let gone = || !Path::new("/proc").join(&child).join("exe").exists();
        let deadline = Instant::now() + STOP_PATIENCE;
        while !gone() && Instant::now() < deadline {
            thread::yield_now();
        }
        assert!(gone(), "the child {child} outlived the target");
        assert_eq!(target.please(&["restart-target"]), Answer::Yes);
        drop(target);
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn commands_are_filled_in_and_their_failures_told() {
        let folder = folder("commands");
        let mut target = Target::new(commands("true"), &folder, 0, Vec::new());
        assert_eq!(target.please(&["resize", "1", "4096"]), Answer::Yes);
        let Answer::No(why) = target.please(&["remove", "1"]) else { panic!("it must fail") };
        assert!(why.contains("no such namespace"), "{why}");
        assert!(matches!(target.please(&["dance"]), Answer::No(_)));
        let why = target.start_afresh(CONFIGURATION).unwrap_err().to_string();
        assert!(why.contains("before it was ready"), "{why}");
        fs::remove_dir_all(folder).unwrap();
    }
}
