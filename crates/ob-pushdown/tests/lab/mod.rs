//! A target with storage functions, the card's files, and hosts that say exactly what they are told to.

// Each test crate uses its own part of this, and none exports it.
#![allow(dead_code, unreachable_pub)]

#[path = "../../../ob-nvme/tests/support/mod.rs"]
pub mod support;

pub mod remote;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use ob_core::{Device, DeviceCompletion, DeviceInfo, DeviceOp, NodeId, Refused, Token};
use ob_files_card::{Drive, FilesOptions, FilesService, FormatOptions, LocalFiles, MetadataOp, Op, Outcome};
use ob_format::files::ROOT;
use ob_memory::{Pool, Source};
use ob_nvme::driver::ForeignService;
use ob_nvme::target::TargetConfig;
use ob_pushdown::target::{FunctionLimits, Functions, Loader, NamedFiles, Shelf, opcodes};
use ob_ring::CardService;
use ob_wire_link::files::FileError;
use ob_wire_nvme::pdu::{Digests, Pdu};
use ob_wire_nvme::pushdown::{
    Extent, FileRef, Function, LoadHeader, MapHeader, Piece, RequestBody, RequestHeader, SCRATCH_LEN,
    name_bytes,
};
use ob_wire_nvme::{CommandId, ControllerId, DataPointer, NamespaceId, Status, SubmissionEntry};
use support::{Client, Rig, Wish};
use zerocopy::IntoBytes;

pub const OBEY: &[u8] = include_bytes!("../programs/obey.o");
pub const FOLDER: &str = "shared";
/// Bytes of a buffer, and of a write from within.
const WRITE_LEN: usize = 64 << 10;

/// What the program is told to do in a call.
pub const DONE: u64 = 0;
pub const READ: u64 = 1;
pub const LOOP: u64 = 2;
pub const FAULT: u64 = 3;
pub const RETURN: u64 = 4;
pub const COPY: u64 = 5;
pub const AGAIN: u64 = 6;

/// An answer: DW0 and DW1, and what came; or the status, with the same.
pub type Answer = Result<(u64, Vec<u8>), (Status, u64)>;

/// A device in memory that does everything at once, but for reads that are held.
pub struct MemoryDisk {
    bytes: Vec<u8>,
    done: VecDeque<DeviceCompletion>,
    /// Reads are kept until the test lets them go.
    pub is_held: bool,
    pub held: VecDeque<(Token, DeviceOp)>,
    /// Where in memory the last read landed.
    pub read_into: Range<usize>,
}

impl MemoryDisk {
    fn new(len: usize) -> Self {
        let (done, held) = Default::default();
        Self { bytes: vec![0; len], done, is_held: false, held, read_into: 0..0 }
    }

    /// Lets all reads go, those that follow too.
    pub fn release(&mut self) {
        self.is_held = false;
        for (token, op) in std::mem::take(&mut self.held) {
            self.apply(token, op);
        }
    }

    fn apply(&mut self, token: Token, mut op: DeviceOp) {
        let (offset, len) = op.extent().unwrap_or((0, 0));
        let range = &mut self.bytes[offset as usize..][..len as usize];
        match &mut op {
            DeviceOp::Read { into, .. } => {
                into.copy_from_slice(range);
                let begin = into.as_ptr().addr();
                self.read_into = begin..begin + into.len();
            }
            DeviceOp::Write { from, .. } => range.copy_from_slice(from),
            DeviceOp::Flush => {}
            DeviceOp::Discard { .. } | DeviceOp::WriteZeroes { .. } => range.fill(0),
        }
        self.done.push_back(DeviceCompletion { token, op, result: Ok(()) });
    }
}

impl Device for MemoryDisk {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            capacity: self.bytes.len() as u64,
            block_len: 512,
            volatile_cache: false,
            discard_unit: 512,
        }
    }

    fn submit(&mut self, token: Token, op: DeviceOp) -> Result<(), Refused<DeviceOp>> {
        if self.is_held && matches!(op, DeviceOp::Read { .. }) {
            self.held.push_back((token, op));
        } else {
            self.apply(token, op);
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<DeviceCompletion> {
        self.done.pop_front()
    }
}

impl Drive for MemoryDisk {
    fn device(&mut self) -> &mut dyn Device {
        self
    }

    fn wait(&mut self) {}
}

/// All of it.
pub struct Lab {
    pub rig: Rig,
    pub functions: Functions,
    pub files: FilesService<MemoryDisk>,
    pub local: LocalFiles,
    answers: BTreeMap<(usize, CommandId), Answer>,
    data: BTreeMap<(usize, CommandId), Vec<u8>>,
    pool: Pool,
    tokens: u32,
}

/// A host's queues.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    pub admin: Client,
    pub io: Client,
    pub controller: ControllerId,
}

impl Lab {
    pub fn new() -> Self {
        Self::with(TargetConfig::default(), FunctionLimits::default())
    }

    pub fn with(config: TargetConfig, limits: FunctionLimits) -> Self {
        Self::with_shelf(config, limits, Shelf::default())
    }

    /// With programs that are loaded already.
    pub fn with_shelf(mut config: TargetConfig, limits: FunctionLimits, shelf: Shelf) -> Self {
        config.foreign = opcodes();
        let rig = Rig::with(config);
        let mut disk = MemoryDisk::new(4 << 20);
        let format = FormatOptions {
            segment_len: Some(4096),
            section_len: Some(32 << 10),
            log_len: Some(12 * (32 << 10)),
        };
        ob_files_card::format(&mut disk, &format, [1; 16]).unwrap();
        let options = FilesOptions { clean_len: 64 << 10, ..FilesOptions::default() };
        let mounted = ob_files_card::mount(&mut disk, &options).unwrap();
        let files = FilesService::new(mounted, disk);
        let named = NamedFiles {
            files: files.local(),
            folders: [(rig.subsystem, FOLDER.as_bytes().to_vec())].into_iter().collect(),
        };
        let mut drawn = 0x5EED_u32;
        let random = move |bytes: &mut [u8]| {
            drawn = drawn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            bytes.iter_mut().zip(drawn.to_le_bytes()).for_each(|(to, from)| *to = from);
        };
        let functions = Functions::new(limits, shelf, Loader::Inline, Some(named), random);
        let (local, pool) = (files.local(), Pool::new(WRITE_LEN, 4));
        let (answers, data) = (BTreeMap::new(), BTreeMap::new());
        Self { rig, functions, files, local, answers, data, pool, tokens: 0 }
    }

    /// A host with its own name.
    pub fn host(&mut self, nqn: &'static str, id: u8) -> Host {
        self.host_as(&Wish { host: nqn, host_id: [id; 16], entries: 32, ..Wish::default() })
    }

    pub fn host_as(&mut self, wish: &Wish) -> Host {
        let (admin, controller) = self.rig.admin_as(Digests::NONE, wish);
        let io = self.rig.open(Digests::NONE);
        let wish = Wish { controller, entries: 128, ..*wish };
        assert_eq!(self.rig.connect_as(io, 1, &wish).status(), Status::SUCCESS);
        Host { admin, io, controller }
    }

    /// One step of the service and of everything else; whether there was anything.
    pub fn step(&mut self) -> bool {
        let mut did = self.functions.turn(self.rig.now, &mut self.rig.target);
        did |= self.files.poll(self.rig.now);
        did |= self.rig.settle();
        did
    }

    /// Does everything that can be done.
    pub fn run(&mut self) {
        for _ in 0..1_000_000 {
            self.rig.run();
            if !self.step() {
                return;
            }
        }
        panic!("it never comes to rest: {:?}", self.functions.counts());
    }

    /// The same, and takes what hosts are told.
    pub fn settle(&mut self) {
        self.run();
        for client in 0..self.rig.clients.len() {
            self.collect(Client(client));
        }
    }

    fn collect(&mut self, client: Client) {
        while let Some(message) = self.rig.next(client) {
            match message.pdu {
                Pdu::Data(transfer) => {
                    let place = (client.0, transfer.command);
                    self.data.entry(place).or_default().extend(message.data);
                    if transfer.is_success {
                        let data = self.data.remove(&place).unwrap_or_default();
                        assert!(self.answers.insert(place, Ok((0, data))).is_none(), "answered twice");
                    }
                }
                Pdu::Response(entry) => {
                    let place = (client.0, entry.command());
                    let data = self.data.remove(&place).unwrap_or_default();
                    let (status, result) = (entry.status(), entry.result());
                    let answer = if status.is_success() { Ok((result, data)) } else { Err((status, result)) };
                    assert!(self.answers.insert(place, answer).is_none(), "answered twice");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Sends a command; how much data it wants, or what it brings.
    pub fn send(&mut self, io: Client, nsid: u32, function: Function, data: &[u8], wanted: u32) -> CommandId {
        let command = self.rig.command_id(io);
        let entry = function.encode(command, NamespaceId(nsid));
        let direction = function.opcode() & 3;
        let pointer = match direction {
            0 => DataPointer::None,
            2 => DataPointer::Transport { len: wanted },
            1 if data.len() > 4096 => DataPointer::Transport { len: data.len() as u32 },
            _ => DataPointer::InCapsule { offset: 0, len: data.len() as u32 },
        };
        let in_capsule = matches!(pointer, DataPointer::InCapsule { .. });
        let bytes = self.rig.capsule(io, &entry.with_data(pointer), if in_capsule { data } else { &[] });
        self.rig.send(io, &bytes);
        if direction == 1 && !in_capsule {
            let wanted = self.rig.solicitation(io);
            self.rig.send_wanted(io, &wanted, data, data.len());
        }
        command
    }

    /// Sends a command as it is, with data in its capsule or with so much wanted.
    pub fn send_entry(&mut self, io: Client, entry: SubmissionEntry, data: &[u8], wanted: u32) -> CommandId {
        let pointer = match entry.opcode & 3 {
            0 => DataPointer::None,
            2 => DataPointer::Transport { len: wanted },
            _ => DataPointer::InCapsule { offset: 0, len: data.len() as u32 },
        };
        let command = self.rig.command_id(io);
        let entry = SubmissionEntry { command_id: command.0.into(), ..entry }.with_data(pointer);
        let brings = matches!(pointer, DataPointer::InCapsule { .. });
        let bytes = self.rig.capsule(io, &entry, if brings { data } else { &[] });
        self.rig.send(io, &bytes);
        command
    }

    /// The answer to a command, if it is there.
    pub fn answer(&mut self, io: Client, command: CommandId) -> Option<Answer> {
        self.settle();
        self.answers.remove(&(io.0, command))
    }

    /// Sends a command, and has it answered.
    pub fn call(&mut self, io: Client, function: Function, data: &[u8], wanted: u32) -> Answer {
        let command = self.send(io, 1, function, data, wanted);
        self.answer(io, command).expect("an answer")
    }

    /// The same, and only the first number of it.
    pub fn number(&mut self, io: Client, function: Function, data: &[u8]) -> Result<u64, Status> {
        self.call(io, function, data, 0).map(|(number, _)| number).map_err(|(status, _)| status)
    }

    pub fn token(&mut self) -> u32 {
        self.tokens += 1;
        self.tokens
    }

    pub fn load(&mut self, io: Client, name: &str, object: &[u8]) -> Result<u64, Status> {
        let header = LoadHeader { name: name_bytes(name) };
        let bytes = [header.as_bytes(), object].concat();
        self.upload(io, Function::Load, &bytes)
    }

    pub fn upload(
        &mut self,
        io: Client,
        function: fn(Piece) -> Function,
        bytes: &[u8],
    ) -> Result<u64, Status> {
        let (token, whole) = (self.token(), bytes.len() as u32);
        let (mut offset, mut number) = (0, 0);
        for piece in bytes.chunks(128 << 10) {
            number = self.number(io, function(Piece { token, offset, whole }), piece)?;
            offset += piece.len() as u32;
        }
        Ok(number)
    }

    /// Maps a file of so many bytes; extents as they go over the wire.
    pub fn map(
        &mut self,
        io: Client,
        (file, version): (u64, u64),
        len: u64,
        extents: &[(u64, u64, u64)],
    ) -> Result<u64, Status> {
        let bytes = map_bytes((file, version), len, extents);
        self.upload(io, Function::Map, &bytes)
    }

    /// Has the program obey, in one command.
    pub fn request(
        &mut self,
        io: Client,
        header: &RequestHeader,
        files: &[(u64, u64)],
        scratch: &[u8],
    ) -> Answer {
        let command = self.begin_request(io, header, files, scratch);
        self.answer(io, command).expect("an answer")
    }

    pub fn begin_request(
        &mut self,
        io: Client,
        header: &RequestHeader,
        files: &[(u64, u64)],
        scratch: &[u8],
    ) -> CommandId {
        let body = body(header, files, scratch);
        self.send(io, 1, Function::Request(SCRATCH_LEN as u32), &body, 0)
    }

    /// Does something with the card's files, from within.
    pub fn local(&mut self, op: Op) -> Outcome {
        self.local.submit(Token(1), op).unwrap();
        for _ in 0..10_000 {
            self.files.poll(self.rig.now);
            if let Some(completion) = self.local.poll() {
                return completion.result.unwrap();
            }
        }
        panic!("the files do not answer")
    }

    /// The same, without waiting for it: what has come of what was begun before, if anything.
    pub fn begin_local(&mut self, op: Op) {
        self.local.submit(Token(1), op).unwrap();
    }

    pub fn local_done(&mut self) -> Option<Result<Outcome, FileError>> {
        for _ in 0..100 {
            self.step();
        }
        self.local.poll().map(|completion| completion.result)
    }

    /// A write of these bytes.
    pub fn write_op(&mut self, file: NodeId, offset: u64, bytes: &[u8]) -> Op {
        let mut buffer = self.pool.take().unwrap();
        buffer.truncate(bytes.len());
        buffer.copy_from_slice(bytes);
        Op::Write { file, offset, from: Source::Owned(buffer), durable: false }
    }

    /// A file of the card's, with these bytes.
    pub fn file(&mut self, path: &str, bytes: &[u8]) -> NodeId {
        let open =
            MetadataOp::Open { base: ROOT, path: path.as_bytes().to_vec(), create: true, exclusive: false };
        let Outcome::Node(node) = self.local(Op::Metadata(open)) else { panic!("no node") };
        for (offset, piece) in (0..).step_by(WRITE_LEN).zip(bytes.chunks(WRITE_LEN)) {
            let write = self.write_op(node.id, offset, piece);
            self.local(write);
        }
        node.id
    }

    pub fn folder(&mut self, path: &str) {
        self.local(Op::Metadata(MetadataOp::MakeDirectory { base: ROOT, path: path.as_bytes().to_vec() }));
    }

    /// Nothing is under way, and nothing is lent.
    pub fn check_rest(&mut self) {
        self.settle();
        let counts = self.rig.target.counts();
        assert_eq!(self.functions.counts().running, 0, "{:?}", self.functions.counts());
        assert_eq!((counts.in_flight, counts.in_service, counts.waiting_for_buffer), (0, 0, 0), "{counts:?}");
        assert_eq!(self.rig.target.memory_used(), 0, "every buffer is back");
    }
}

pub fn map_bytes((file, version): (u64, u64), len: u64, extents: &[(u64, u64, u64)]) -> Vec<u8> {
    let header = MapHeader {
        file: file.into(),
        version: version.into(),
        len: len.into(),
        extents: (extents.len() as u32).into(),
        ..MapHeader::default()
    };
    let extents = extents.iter();
    let extents: Vec<Extent> = extents
        .map(|(at, offset, len)| Extent { at: (*at).into(), offset: (*offset).into(), len: (*len).into() })
        .collect();
    [header.as_bytes(), extents.as_bytes()].concat()
}

pub fn body(header: &RequestHeader, files: &[(u64, u64)], scratch: &[u8]) -> Vec<u8> {
    let refs =
        files.iter().map(|(file, version)| FileRef { file: (*file).into(), version: (*version).into() });
    let refs: Vec<FileRef> = refs.collect();
    RequestBody::encode(header, &refs, scratch)
}

/// A request's header: its program, and its first read.
pub fn header(program: u64, (file, offset, len): (u16, u64, u32)) -> RequestHeader {
    RequestHeader {
        program: program.into(),
        first: file.into(),
        first_offset: offset.into(),
        first_len: len.into(),
        ..RequestHeader::default()
    }
}

/// The scratch that has the program do this, call by call.
pub fn script(orders: &[[u64; 4]]) -> Vec<u8> {
    [[0; 4]].iter().chain(orders).flatten().flat_map(|number| number.to_le_bytes()).collect()
}

/// A number of a scratch.
pub fn word(scratch: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(scratch[8 * at..8 * at + 8].try_into().unwrap())
}

/// What the program says of the last data: its length, and its [`sum`].
pub fn seen(scratch: &[u8]) -> (u64, u64) {
    (word(scratch, 1), word(scratch, 2))
}

/// As the program adds it up.
pub fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let step = if bytes.len() > 16 << 10 { 8 } else { 1 };
    let words = words.iter().step_by(step).map(|word| u64::from_le_bytes(*word));
    let rest = rest.iter().filter(|_| step == 1).map(|byte| u64::from(*byte));
    words.chain(rest).fold(0, u64::wrapping_add)
}

/// What a failed request says: its status, its reads, and the detail.
pub fn end(answer: Answer) -> (Status, u32, u32) {
    let (status, result) = answer.expect_err("it has an answer");
    (status.with_do_not_retry(), result as u32, (result >> 32) as u32)
}
