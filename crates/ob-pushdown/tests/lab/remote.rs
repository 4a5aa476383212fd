//! A lab that the library can be over.

use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ob_files_card::{MetadataOp, Op};
use ob_format::files::ROOT;
use ob_pushdown::client::{Command, CommandAnswer, CommandData, Transport, TransportError};
use ob_pushdown::target::FunctionCounts;
use ob_wire_nvme::Status;

use super::{FOLDER, Lab};

enum Asked {
    Command(Command, Sender<Result<CommandAnswer, TransportError>>),
    /// A file of the folder gets other content, of the same length.
    Put(String, Vec<u8>),
    /// Another file takes the place of one in the folder.
    Replace(String, Vec<u8>),
    /// The namespace has these bytes, from this one on.
    Disk(usize, Vec<u8>),
    /// Time passes.
    Wait(Duration),
    Counts(Sender<FunctionCounts>),
}

/// A lab on a thread of its own, which does what it is sent.
pub struct Remote {
    /// What commands have failed with.
    pub failures: Mutex<Vec<Status>>,
    commands: Mutex<Option<Sender<Asked>>>,
    thread: Option<JoinHandle<()>>,
}

impl Remote {
    /// With these files in the folder of its hosts.
    pub fn start(files: Vec<(String, Vec<u8>)>) -> Self {
        let (commands, asked) = mpsc::channel();
        let thread = std::thread::spawn(move || serve(&files, &asked));
        let (failures, commands) = (Mutex::default(), Mutex::new(Some(commands)));
        Self { failures, commands, thread: Some(thread) }
    }
}

impl Remote {
    /// Writes over a file.
    pub fn put(&self, name: &str, content: &[u8]) {
        self.send(Asked::Put(name.to_owned(), content.to_vec()));
    }

    /// Has another file take the place of one.
    pub fn replace(&self, name: &str, content: &[u8]) {
        self.send(Asked::Replace(name.to_owned(), content.to_vec()));
    }

    /// Puts bytes into the namespace.
    pub fn write_disk(&self, offset: u64, bytes: &[u8]) {
        self.send(Asked::Disk(offset as usize, bytes.to_vec()));
    }

    /// Has time pass.
    pub fn wait(&self, time: Duration) {
        self.send(Asked::Wait(time));
    }

    /// What the card says of what was done, and of what there is.
    pub fn counts(&self) -> FunctionCounts {
        let (sender, counts) = mpsc::channel();
        self.send(Asked::Counts(sender));
        counts.recv().unwrap()
    }

    fn send(&self, asked: Asked) {
        self.commands.lock().unwrap().as_ref().unwrap().send(asked).unwrap();
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        drop(self.commands.lock().unwrap_or_else(PoisonError::into_inner).take());
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the card has failed");
    }
}

fn serve(files: &[(String, Vec<u8>)], asked: &Receiver<Asked>) {
    let mut lab = Lab::new();
    lab.folder(FOLDER);
    for (name, content) in files {
        lab.file(&format!("{FOLDER}/{name}"), content);
    }
    let host = lab.host("nqn.2026-11.io.outboard:reader", 1);
    while let Ok(asked) = asked.recv() {
        let (command, answer) = match asked {
            Asked::Command(command, answer) => (command, answer),
            Asked::Put(name, content) => {
                lab.file(&format!("{FOLDER}/{name}"), &content);
                continue;
            }
            Asked::Replace(name, content) => {
                lab.file("replacement", &content);
                let (path, to_path) = (b"replacement".to_vec(), format!("{FOLDER}/{name}").into_bytes());
                let rename = MetadataOp::Rename { base: ROOT, path, to_base: ROOT, to_path, replace: true };
                lab.local(Op::Metadata(rename));
                continue;
            }
            Asked::Disk(offset, bytes) => {
                lab.rig.disk.bytes[offset..][..bytes.len()].copy_from_slice(&bytes);
                continue;
            }
            Asked::Wait(time) => {
                lab.rig.advance(time);
                lab.run();
                continue;
            }
            Asked::Counts(counts) => {
                counts.send(lab.functions.counts()).unwrap();
                continue;
            }
        };
        let (data, wanted) = match command.data {
            CommandData::None => (Vec::new(), 0),
            CommandData::Send(bytes) => (bytes, 0),
            CommandData::Receive(wanted) => (Vec::new(), wanted),
            CommandData::Exchange(bytes, wanted) => (bytes, wanted),
        };
        let sent = lab.send(host.io, 1, command.function, &data, wanted);
        // Who has used its share of a core waits until time has brought some of it back.
        let mut answers = (0..1000).map(|_| {
            let said = lab.answer(host.io, sent);
            lab.rig.advance(Duration::from_millis(1));
            said
        });
        let said = answers.find_map(|said| said).expect("an answer");
        let said = said
            .map(|(result, data)| CommandAnswer { result, data })
            .map_err(|(status, result)| TransportError::Status { status, result });
        answer.send(said).unwrap();
    }
    lab.check_rest();
}

impl Transport for Remote {
    async fn execute(&self, command: Command) -> Result<CommandAnswer, TransportError> {
        let (sender, answer) = mpsc::channel();
        self.send(Asked::Command(command, sender));
        let answer = answer.recv().unwrap();
        if let Err(TransportError::Status { status, .. }) = &answer {
            self.failures.lock().unwrap().push(*status);
        }
        answer
    }

    fn transfer_max(&self) -> usize {
        128 << 10
    }

    fn exchange_max(&self) -> Option<usize> {
        Some(4096)
    }

    fn can_wait_twice(&self) -> bool {
        false
    }
}

/// A target without storage functions.
pub struct Nobody;

impl Transport for Nobody {
    async fn execute(&self, _: Command) -> Result<CommandAnswer, TransportError> {
        Err(TransportError::Status { status: Status::INVALID_OPCODE, result: 0 })
    }

    fn transfer_max(&self) -> usize {
        4096
    }

    fn exchange_max(&self) -> Option<usize> {
        None
    }

    fn can_wait_twice(&self) -> bool {
        false
    }
}
