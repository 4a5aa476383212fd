//! A device in memory, and files on it, for the tests in this folder.

#![allow(dead_code, unused_imports)] // Each test program uses a part of it.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

pub(crate) mod device;
pub(crate) mod forged;
pub(crate) mod image;
pub(crate) mod journal;
pub(crate) mod model;
pub(crate) mod rings;

use std::collections::BTreeMap;

use ob_core::{NodeId, NodeKind, Token};
use ob_files_card::{CardFiles, Completion, FilesOptions, FormatOptions, MetadataOp, Op, Outcome};
use ob_memory::{Pool, Slice, Source};
use ob_wire_link::files::{Entries, FileError, NodeInfo, ROOT};

pub(crate) use device::MemoryDevice;
pub(crate) use image::Image;

pub(crate) const UUID: [u8; 16] = *b"a uuid for tests";

/// How files are run in tests: small, so that everything that can run short does.
pub(crate) const SMALL: FilesOptions = FilesOptions {
    requests_max: 256,
    bounce_buffers: 4,
    bounce_len: 8 << 10,
    clean_len: 64 << 10,
    transfer_max: 1 << 20,
    copy_everything: false,
};

/// Sections of 32 KiB and as few of them as can be: the log wraps around soon.
pub(crate) fn small_format(segment_len: u64) -> FormatOptions {
    FormatOptions {
        segment_len: Some(segment_len),
        section_len: Some(32 << 10),
        log_len: Some(8 * (32 << 10)),
    }
}

/// A mounted device.
pub(crate) struct Rig {
    pub(crate) files: CardFiles,
    pub(crate) device: MemoryDevice,
    next: u64,
}

/// What became of a request.
pub(crate) type Answer = Result<Outcome, FileError>;

impl Rig {
    /// Formats a device and mounts it.
    pub(crate) fn format(mut device: MemoryDevice, format: &FormatOptions, options: &FilesOptions) -> Self {
        ob_files_card::format(&mut device, format, UUID).unwrap();
        Self::mount(device, options)
    }

    pub(crate) fn mount(mut device: MemoryDevice, options: &FilesOptions) -> Self {
        let files = ob_files_card::mount(&mut device, options).unwrap();
        Self { files, device, next: 0 }
    }

    pub(crate) fn from_parts(files: CardFiles, device: MemoryDevice) -> Self {
        Self { files, device, next: 0 }
    }

    pub(crate) fn into_parts(self) -> (CardFiles, MemoryDevice) {
        (self.files, self.device)
    }

    pub(crate) fn submit(&mut self, op: Op) -> Token {
        let token = Token(self.next);
        self.next += 1;
        self.files.submit(token, op);
        token
    }

    /// Moves everything on until there is an answer, one operation of the device after the other.
    pub(crate) fn next(&mut self) -> Completion {
        for _ in 0..1_000_000 {
            if let Some(completion) = self.files.next_completion() {
                return completion;
            }
            let moved = self.files.poll(&mut self.device);
            assert!(moved || self.device.credit.is_some(), "a request is never answered");
            self.device.allow_one();
        }
        panic!("a request is never answered");
    }

    /// One request, alone.
    pub(crate) fn run(&mut self, op: Op) -> Completion {
        let token = self.submit(op);
        let completion = self.next();
        assert_eq!(completion.token, token);
        completion
    }

    /// Lets everything that goes on by itself come to an end.
    pub(crate) fn settle(&mut self) {
        for _ in 0..1_000_000 {
            let moved = self.files.poll(&mut self.device);
            if !moved && self.files.is_idle() {
                return;
            }
            self.device.allow_one();
        }
        panic!("the files never come to rest");
    }

    pub(crate) fn metadata(&mut self, op: MetadataOp) -> Answer {
        self.run(Op::Metadata(op)).result
    }

    pub(crate) fn node(&mut self, op: MetadataOp) -> Result<NodeInfo, FileError> {
        match self.metadata(op)? {
            Outcome::Node(info) => Ok(info),
            other => panic!("{other:?} is no node"),
        }
    }

    pub(crate) fn create(&mut self, base: NodeId, path: &[u8]) -> Result<NodeInfo, FileError> {
        self.node(create(base, path))
    }

    pub(crate) fn make_directory(&mut self, base: NodeId, path: &[u8]) -> Result<NodeInfo, FileError> {
        self.node(MetadataOp::MakeDirectory { base, path: path.to_vec() })
    }

    pub(crate) fn stat(&mut self, base: NodeId, path: &[u8]) -> Result<NodeInfo, FileError> {
        self.node(MetadataOp::Stat { base, path: path.to_vec() })
    }

    pub(crate) fn remove(&mut self, base: NodeId, path: &[u8]) -> Answer {
        self.metadata(MetadataOp::Remove { base, path: path.to_vec(), only: None })
    }

    pub(crate) fn rename(&mut self, path: &[u8], to_path: &[u8]) -> Answer {
        self.metadata(rename(path, to_path))
    }

    pub(crate) fn resize(&mut self, file: NodeId, size: u64) -> Answer {
        self.run(Op::Resize { file, size }).result
    }

    pub(crate) fn flush(&mut self) -> Answer {
        self.run(Op::Flush).result
    }

    pub(crate) fn write(&mut self, file: NodeId, offset: u64, bytes: &[u8]) -> Answer {
        self.run(Op::Write { file, offset, from: slice_of(bytes, 0), durable: false }).result
    }

    pub(crate) fn read(&mut self, file: NodeId, offset: u64, len: usize) -> Result<Vec<u8>, FileError> {
        let completion = self.run(Op::Read { file, offset, len: len as u32, into: slice(len, 0) });
        read_bytes(&completion)
    }

    /// A directory's entries, in pages of a few.
    pub(crate) fn list(&mut self, directory: NodeId) -> Result<Vec<Listed>, FileError> {
        let (mut all, mut after) = (Vec::new(), Vec::new());
        loop {
            let op = MetadataOp::List { directory, after, most: 1024 };
            let Outcome::Entries { bytes, more } = self.metadata(op)? else { panic!("no list") };
            for entry in Entries::new(&bytes) {
                let entry = entry.unwrap();
                let (name, id, kind, size) = (entry.name.to_vec(), entry.id, entry.kind, entry.size);
                all.push(Listed { name, id, kind, size });
            }
            if !more {
                return Ok(all);
            }
            after = all.last().unwrap().name.clone();
        }
    }

    /// Everything there is, by path.
    pub(crate) fn walk(&mut self) -> BTreeMap<Vec<u8>, Listed> {
        let mut found = BTreeMap::new();
        let mut directories = vec![(ROOT, Vec::new())];
        while let Some((directory, path)) = directories.pop() {
            for entry in self.list(directory).unwrap() {
                let mut path = path.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend(&entry.name);
                if entry.kind == NodeKind::Directory {
                    directories.push((entry.id, path.clone()));
                }
                found.insert(path, entry);
            }
        }
        found
    }

    /// Whether the free space is what files do not have.
    pub(crate) fn assert_space_is_exact(&mut self) {
        let mut allocated = 0;
        for entry in self.walk().into_values() {
            allocated += self.stat(entry.id, b"").unwrap().allocated;
        }
        let space = self.files.space_info();
        assert_eq!(space.free, space.total - allocated, "free space is exact");
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) name: Vec<u8>,
    pub(crate) id: NodeId,
    pub(crate) kind: NodeKind,
    pub(crate) size: u64,
}

pub(crate) fn create(base: NodeId, path: &[u8]) -> MetadataOp {
    MetadataOp::Open { base, path: path.to_vec(), create: true, exclusive: true }
}

pub(crate) fn rename(path: &[u8], to_path: &[u8]) -> MetadataOp {
    MetadataOp::Rename {
        base: ROOT,
        path: path.to_vec(),
        to_base: ROOT,
        to_path: to_path.to_vec(),
        replace: true,
    }
}

/// Memory of so many bytes that begins `skew` bytes after a page does.
pub(crate) fn slice(len: usize, skew: usize) -> Slice {
    let mut whole = Pool::new((len + skew).max(1), 1).take().unwrap();
    let _ = whole.split_to(skew);
    whole.split_to(len)
}

/// The same, with bytes to write.
pub(crate) fn slice_of(bytes: &[u8], skew: usize) -> Source {
    let mut slice = slice(bytes.len(), skew);
    slice.copy_from_slice(bytes);
    slice.into()
}

/// What a read brought.
pub(crate) fn read_bytes(completion: &Completion) -> Result<Vec<u8>, FileError> {
    match completion.result.clone()? {
        Outcome::Read { len, .. } => Ok(completion.buffer.as_ref().unwrap()[..len as usize].to_vec()),
        other => panic!("{other:?} is no read"),
    }
}

/// Bytes that tell whose they are, and where they belong.
pub(crate) fn pattern(tag: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    for at in offset..offset + len as u64 {
        let word = (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at / 8)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        // Never zero, so that it cannot be taken for a hole.
        bytes.push((word >> (8 * (at % 8))) as u8 | 1);
    }
    bytes
}
