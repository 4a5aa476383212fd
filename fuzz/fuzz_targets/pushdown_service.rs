//! Hosts that ask a card's storage functions for anything, while its device completes in any order or fails, files change, time goes by and
//! connections are lost: nothing panics, every command has one answer, no answer is longer than was asked for, and when all hosts are gone nothing of
//! them is left.

#![no_main]

#[path = "../../crates/ob-pushdown/tests/lab/mod.rs"]
mod lab;

use std::cell::RefCell;
use std::time::Duration;

use lab::support::{BLOCK, BLOCKS, HOST, Wish, namespace};
use lab::{Host, Lab, OBEY, body, map_bytes};
use ob_core::{DeviceError, NodeId};
use ob_files_card::{MetadataOp, Op};
use ob_format::files::ROOT;
use ob_nvme::target::TargetConfig;
use ob_pushdown::target::{FunctionLimits, Shelf};
use ob_wire_nvme::io::Abort;
use ob_wire_nvme::pushdown::{Function, Piece, RequestHeader, Run, name_bytes};
use ob_wire_nvme::{CommandId, NamespaceId, QueueId, SubmissionEntry};

const STEPS_MAX: usize = 200;
const OTHER: &str = "nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555";
const NAMES: [&[u8]; 6] = [b"file", b"other", b"inner", b"../secret", b"inner/file", b"none"];
/// Numbers that are near something.
const EDGES: [u64; 12] = [
    0,
    1,
    511,
    512,
    4096,
    16 << 10,
    128 << 10,
    BLOCKS * BLOCK as u64,
    u32::MAX as u64,
    1 << 63,
    u64::MAX - 511,
    u64::MAX,
];

thread_local! {
    /// To compile the program again for each input would take most of the time.
    static SHELF: RefCell<Shelf> = RefCell::default();
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut script = Script(input);
    let mut world = World::new(&mut script);
    for _ in 0..STEPS_MAX {
        if script.0.is_empty() {
            break;
        }
        world.step(&mut script);
    }
    world.end();
});

struct World {
    lab: Lab,
    hosts: Vec<Host>,
    /// Commands that have to be answered, and how much of an answer each may have.
    sent: Vec<(usize, CommandId, usize)>,
    programs: Vec<u64>,
    files: Vec<(u64, u64)>,
    plans: Vec<u64>,
    node: NodeId,
    has_loaded: bool,
}

impl World {
    fn new(script: &mut Script<'_>) -> Self {
        let little = script.number() & 1 == 0;
        let config = TargetConfig {
            transfer_memory: if little { 192 << 10 } else { 4 << 20 },
            connection_transfer_max: 48 << 10,
            capsule_buffers: 6,
            ..TargetConfig::default()
        };
        let limits = FunctionLimits {
            open_max: 6,
            extents_max: 64,
            plans_max: 4,
            queries_max: 4,
            uploads_max: 2,
            ..FunctionLimits::default()
        };
        let shelf = SHELF.with_borrow(Clone::clone);
        let mut lab = Lab::with_shelf(config, limits, shelf);
        for folder in ["shared", "shared/inner"] {
            lab.folder(folder);
        }
        lab.file("secret", &[0x5E; 600]);
        lab.file("shared/inner/file", &[2; 100]);
        let node = lab.file("shared/file", &[1; 5000]);
        let hosts = vec![lab.host(HOST, 9), lab.host(OTHER, 8), lab.host(HOST, 7)];
        let mut world = Self {
            lab,
            hosts,
            sent: Vec::new(),
            programs: Vec::new(),
            files: Vec::new(),
            plans: Vec::new(),
            node,
            has_loaded: false,
        };
        for number in 0..3 {
            let io = world.hosts[number].io;
            let found = world.lab.number(io, Function::Find, b"obey");
            let program = found.or_else(|_| world.lab.load(io, "obey", OBEY)).expect("it was taken before");
            let file = world.lab.map(io, (0, 1), 4000, &[(0, 512, 1024), (1024, 8192, 4096)]).expect("a map");
            world.programs.push(program);
            world.files.push((file, 1));
        }
        world.lab.rig.disk.is_held = true;
        world
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let (action, who) = (script.number(), usize::from(script.number()) % self.hosts.len());
        match action % 24 {
            0..=4 => self.request(who, script),
            5 => self.map(who, script),
            6 => self.open(who, script),
            7 => self.prepare(who, script),
            8 => self.run(who, script),
            9 | 10 => self.pair(who, script),
            11 => self.anything(who, script),
            12 => self.forget(who, script),
            13 => self.load(who, script),
            14..=16 => self.complete(script),
            17 => {
                self.lab.rig.now = self.lab.rig.now + Duration::from_millis(u64::from(script.number()) * 20);
                let now = self.lab.rig.now;
                self.lab.rig.target.tick(now);
            }
            18 => self.change(script),
            19 => self.abort(who, script),
            20 if script.number() % 4 == 0 => self.leave(who),
            21 if script.number() % 4 == 0 => self.replace_namespace(),
            _ => self.lab.run(),
        }
        if action & 0x80 != 0 {
            self.lab.run();
        }
    }

    fn send(&mut self, who: usize, function: Function, data: &[u8], wanted: u32) {
        let entry = function.encode(CommandId(0), NamespaceId(1));
        self.send_entry(who, entry, data, wanted);
    }

    fn send_entry(&mut self, who: usize, entry: SubmissionEntry, data: &[u8], wanted: u32) {
        // A queue has so many entries, and a host that sends more is not listened to.
        let io = self.hosts[who].io;
        if self.sent.iter().filter(|(of, ..)| *of == io.0).count() >= 100 {
            self.collect();
            if self.sent.iter().filter(|(of, ..)| *of == io.0).count() >= 100 {
                return;
            }
        }
        let data = data.get(..data.len().min(8192)).unwrap_or_default();
        let most = if entry.opcode & 2 == 0 { 0 } else { wanted.max(4096) as usize };
        let command = self.lab.send_entry(io, entry, data, wanted.clamp(4, 128 << 10));
        self.sent.push((io.0, command, most));
    }

    fn number(&self, script: &mut Script<'_>, known: &[u64]) -> u64 {
        match script.number() {
            0 => script.long(),
            at => known.get(usize::from(at) % known.len().max(1)).copied().unwrap_or(1),
        }
    }

    fn header(&self, script: &mut Script<'_>) -> RequestHeader {
        let shape = script.number();
        let planned = shape & 1 != 0;
        RequestHeader {
            program: if planned { 0 } else { self.number(script, &self.programs) }.into(),
            plan: if planned { self.number(script, &self.plans) } else { 0 }.into(),
            first_offset: script.edge().into(),
            first_len: (script.edge() as u32).into(),
            read_len_max: if shape & 2 == 0 { 0 } else { script.edge() as u32 }.into(),
            reads_max: if shape & 4 == 0 { 0 } else { script.number().into() }.into(),
            first: u16::from(script.number() % 4).into(),
            ..RequestHeader::default()
        }
    }

    fn refs(&self, script: &mut Script<'_>, header: &RequestHeader) -> Vec<(u64, u64)> {
        if header.plan.get() != 0 {
            return Vec::new();
        }
        let count = 1 + script.number() % 4;
        let one = |script: &mut Script<'_>| match script.number() {
            0 => (script.long(), u64::from(script.number())),
            at => self.files.get(usize::from(at) % self.files.len().max(1)).copied().unwrap_or_default(),
        };
        (0..count).map(|_| one(script)).collect()
    }

    /// The program's orders.
    fn scratch(script: &mut Script<'_>) -> Vec<u8> {
        let mut words = vec![0; 4];
        for _ in 0..script.number() % 8 {
            words.extend([
                u64::from(script.number() % 8),
                u64::from(script.number() % 4),
                script.edge(),
                script.edge(),
            ]);
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn request(&mut self, who: usize, script: &mut Script<'_>) {
        let bytes = self.request_bytes(script);
        let wanted = script.edge() as u32;
        self.send(who, Function::Request(wanted), &bytes, wanted);
    }

    fn request_bytes(&mut self, script: &mut Script<'_>) -> Vec<u8> {
        let header = self.header(script);
        let refs = self.refs(script, &header);
        let mut bytes = body(&header, &refs, &Self::scratch(script));
        script.spoil(&mut bytes);
        bytes
    }

    fn map(&mut self, who: usize, script: &mut Script<'_>) {
        let file = if script.number() & 1 == 0 { 0 } else { self.files.first().map_or(7, |file| file.0) };
        let version = u64::from(script.number() % 8);
        let mut at: u64 = 0;
        let mut extents = Vec::new();
        for _ in 0..script.number() % 8 {
            let len = (1 + u64::from(script.number() % 8)) * 512;
            let offset = if script.number() == 0 { script.edge() } else { u64::from(script.number()) * 4096 };
            extents.push((at, offset, len));
            at = at.wrapping_add(len + u64::from(script.number() & 1) * 512);
        }
        let len = if script.number() & 3 == 0 { script.edge() } else { at };
        let mut bytes = map_bytes((file, version), len, &extents);
        script.spoil(&mut bytes);
        let token = u32::from(script.number() % 4);
        let cut = usize::from(script.number()).min(bytes.len());
        let parts = if script.number() & 3 == 0 {
            vec![(0, cut), (cut, bytes.len())]
        } else {
            vec![(0, bytes.len())]
        };
        for (from, to) in parts {
            let piece = Piece { token, offset: from as u32, whole: bytes.len() as u32 };
            self.ask(who, Function::Map(piece), &bytes[from..to], |world, number| {
                world.files.push((number, version));
            });
        }
    }

    /// Sends something that is answered at once, and takes the number that comes.
    fn ask(&mut self, who: usize, function: Function, data: &[u8], take: impl FnOnce(&mut Self, u64)) {
        if data.is_empty() && function.opcode() & 1 != 0 {
            return;
        }
        let io = self.hosts[who].io;
        let entry = function.encode(CommandId(0), NamespaceId(1));
        let command = self.lab.send_entry(io, entry, data, 4096);
        match self.lab.answer(io, command) {
            Some(Ok((number, _))) if number != 0 => take(self, number),
            Some(_) => {}
            None => self.sent.push((io.0, command, 4096)),
        }
    }

    fn open(&mut self, who: usize, script: &mut Script<'_>) {
        let name = NAMES[usize::from(script.number()) % NAMES.len()];
        let mut name = name.to_vec();
        script.spoil(&mut name);
        self.ask(who, Function::Open, &name, |world, number| world.files.push((number, 0)));
    }

    fn prepare(&mut self, who: usize, script: &mut Script<'_>) {
        let bytes = self.request_bytes(script);
        self.ask(who, Function::Prepare, &bytes, |world, number| world.plans.push(number));
    }

    fn run(&mut self, who: usize, script: &mut Script<'_>) {
        let plan = self.number(script, &self.plans);
        let offset = (script.number() & 1 == 0).then(|| script.edge());
        let len = usize::from(script.number() % 21);
        let input = script.bytes(len);
        if let Some(run) = Run::new(plan, offset, &input) {
            self.send(who, Function::Run(run), &[], script.edge() as u32);
        }
    }

    fn pair(&mut self, who: usize, script: &mut Script<'_>) {
        let token = u64::from(script.number() % 6);
        if script.number() & 1 == 0 {
            let bytes = self.request_bytes(script);
            self.send(who, Function::Query(token), &bytes, 0);
        } else {
            self.send(who, Function::Answer(token), &[], script.edge() as u32);
        }
    }

    /// Any dwords.
    fn anything(&mut self, who: usize, script: &mut Script<'_>) {
        let function = script.number();
        let entry = SubmissionEntry {
            dword2: script.word().into(),
            dword10: (u32::from(function) | u32::from(script.number() & 0x3F) << 8).into(),
            dword11: script.word().into(),
            dword12: script.word().into(),
            ..SubmissionEntry::new(
                0xC0 | script.number() & 3,
                CommandId(0),
                NamespaceId(u32::from(script.number() % 3)),
            )
        };
        let len = usize::from(script.number());
        let data = script.bytes(len);
        self.send_entry(who, entry, &data, script.word() % (128 << 10));
    }

    fn forget(&mut self, who: usize, script: &mut Script<'_>) {
        let function = match script.number() % 6 {
            0 => Function::Close(self.files.get(usize::from(script.number())).map_or(1, |file| file.0)),
            1 => Function::Forget(self.number(script, &self.plans)),
            // Seldom, for the next input has to compile what is taken out.
            2 if script.number() == 0 => Function::Unload(self.number(script, &self.programs)),
            2 => Function::Unload(script.long()),
            3 => Function::List(script.word()),
            4 => Function::Refusal(u32::from(script.number() % 4)),
            _ => Function::Describe,
        };
        self.send(who, function, &[], script.edge() as u32);
    }

    /// The object, cut off most of the time: what lies in objects is for `bpf_object` and `bpf_verify`, and to compile one takes longer
    /// than everything else.
    fn load(&mut self, who: usize, script: &mut Script<'_>) {
        let is_whole = script.number() == 0 && !std::mem::replace(&mut self.has_loaded, true);
        let name = if script.number() & 1 == 0 { "obey" } else { "other" };
        let len = if is_whole { OBEY.len() } else { usize::from(script.number()) * 8 };
        let mut bytes = [&name_bytes(name)[..], &OBEY[..len]].concat();
        script.spoil(&mut bytes);
        let token = u32::from(script.number() % 4);
        let piece = Piece { token, offset: 0, whole: bytes.len() as u32 };
        self.ask(who, Function::Load(piece), &bytes, |world, number| world.programs.push(number));
    }

    fn complete(&mut self, script: &mut Script<'_>) {
        let (which, how) = (usize::from(script.number()), script.number());
        if self.lab.rig.disk.queue.is_empty() {
            return self.lab.run();
        }
        let errors = [DeviceError::Io, DeviceError::Gone];
        if let Some(error) = errors.get(usize::from(how % 16)) {
            self.lab.rig.disk.failures.push_back(*error);
        }
        let which = which % self.lab.rig.disk.queue.len();
        self.lab.rig.complete(which);
        self.lab.run();
    }

    /// Somebody changes the card's file.
    fn change(&mut self, script: &mut Script<'_>) {
        match script.number() % 4 {
            0 => {
                let path = b"shared/file".to_vec();
                self.lab.local(Op::Metadata(MetadataOp::Remove { base: ROOT, path, only: None }));
                self.node = self.lab.file("shared/file", &[3; 3000]);
            }
            1 => drop(self.lab.local(Op::Resize { file: self.node, size: u64::from(script.number()) * 32 })),
            _ => drop(self.lab.file("shared/file", &[script.number(); 2000])),
        }
    }

    fn abort(&mut self, who: usize, script: &mut Script<'_>) {
        let host = self.hosts[who];
        let of_host: Vec<CommandId> =
            self.sent.iter().filter(|(of, ..)| *of == host.io.0).map(|(_, command, _)| *command).collect();
        let Some(command) = of_host.get(usize::from(script.number()) % of_host.len().max(1)).copied() else {
            return;
        };
        let own = self.lab.rig.command_id(host.admin);
        let entry = Abort { queue: QueueId(1), command }.encode(own);
        self.lab.rig.submit(host.admin, &entry, &[]);
        let is_answered = self.lab.answer(host.admin, own).is_some();
        assert!(is_answered || self.lab.rig.clients[host.admin.0].key.is_none(), "an Abort is answered");
    }

    /// A host is gone, and comes again.
    fn leave(&mut self, who: usize) {
        let Host { admin, io, .. } = self.hosts[who];
        self.collect();
        self.lab.rig.hang_up(io);
        self.lab.rig.hang_up(admin);
        self.sent.retain(|(of, ..)| *of != io.0);
        self.lab.run();
        if self.lab.rig.clients.len() < 24 {
            let (host, id) = [(HOST, 9), (OTHER, 8), (HOST, 7)][who];
            let held = std::mem::replace(&mut self.lab.rig.disk.is_held, false);
            self.hosts[who] = self.lab.host_as(&Wish { host, host_id: [id; 16], ..Wish::default() });
            self.lab.rig.disk.is_held = held;
        }
    }

    fn replace_namespace(&mut self) {
        let subsystem = self.lab.rig.subsystem;
        let control = self.lab.rig.target.control_mut();
        let _ = control.remove_namespace(subsystem, 1);
        let _ = control.add_namespace(subsystem, &namespace(1, 8));
    }

    /// Takes what has come.
    fn collect(&mut self) {
        let sent = std::mem::take(&mut self.sent);
        for (io, command, most) in sent {
            match self.lab.answer(lab::support::Client(io), command) {
                Some(Ok((_, data))) => {
                    assert!(data.len() <= most, "{} bytes, and {most} were wanted", data.len())
                }
                Some(Err(_)) => {}
                None => self.sent.push((io, command, most)),
            }
        }
    }

    /// Everything is answered in the end, and of hosts that are gone there is nothing.
    fn end(mut self) {
        self.lab.rig.release_disk();
        for _ in 0..40 {
            self.lab.rig.advance(Duration::from_millis(500));
            self.lab.run();
        }
        self.collect();
        let is_open = |io: usize| {
            let client = &self.lab.rig.clients[io];
            client.key.is_some() && !client.is_finished
        };
        let left: Vec<_> = self.sent.iter().filter(|(io, ..)| is_open(*io)).collect();
        assert!(left.is_empty(), "no answer to {left:?}: {:?}", self.lab.functions.counts());
        for host in self.hosts.clone() {
            self.lab.rig.hang_up(host.io);
            self.lab.rig.hang_up(host.admin);
        }
        self.lab.run();
        let counts = self.lab.functions.counts();
        assert_eq!((counts.running, counts.files, counts.plans), (0, 0, 0), "{counts:?}");
        assert_eq!(self.lab.rig.target.memory_used(), 0, "every buffer is back");
        assert_eq!(self.lab.rig.target.control().controllers(), 0);
    }
}

/// What is left of the input.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn number(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.number(), self.number(), self.number(), self.number()])
    }

    fn long(&mut self) -> u64 {
        u64::from(self.word()) | u64::from(self.word()) << 32
    }

    /// A number near something, or a small one.
    fn edge(&mut self) -> u64 {
        let drawn = self.number();
        match EDGES.get(usize::from(drawn) / 8) {
            Some(edge) => edge.wrapping_add(u64::from(drawn % 8)).wrapping_sub(4 * u64::from(drawn & 1)),
            None => u64::from(drawn) * 16,
        }
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken.to_vec()
    }

    /// Now and then, bytes are not what they were.
    fn spoil(&mut self, bytes: &mut Vec<u8>) {
        if self.number() % 8 != 0 {
            return;
        }
        let (at, mask) = (usize::from(self.number()), self.number());
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= mask;
        }
        if mask & 1 == 0 {
            bytes.pop();
        }
    }
}
