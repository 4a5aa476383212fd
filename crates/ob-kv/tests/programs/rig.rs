//! The programs beside the store's own functions: each case goes to all of them.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use ob_core::{Clock, Instant};
use ob_ebpf::call::{Call, NoLog, NoTable};
use ob_ebpf::compiler::{self, Compiled};
use ob_ebpf::elf;
use ob_ebpf::hooks::CALL_FUEL_MAX;
use ob_ebpf::hooks::offload::{CHECK, CHECK_SCRATCH, FUNCTION, FUNCTION_SCRATCH, HIT, PREDICATE};
use ob_ebpf::interpreter::Interpreter;
use ob_ebpf::program::Program;
use ob_ebpf::verifier;
use ob_ebpf::world::{FieldKind, World};
use ob_kv::card::KvApplication;
use ob_offload::{
    Application, FileRead, Hit, Key, ProgramSlot, Programmed, Reads, Reply, Requests, Route, Standing,
    Verdict,
};
use ob_programs::{Library, Limits};

const OBJECT: &[u8] = include_bytes!("../../../../examples/programs/kv_get.o");

/// A clock that nobody reads: the programs have a larger share than they can use.
struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Instant {
        Instant::from_nanoseconds(0)
    }
}

/// A program, for the two that run programs.
struct Runnable {
    program: Arc<Program>,
    compiled: Compiled,
}

/// The store as it is, and with programs.
pub(crate) struct Rig {
    native: KvApplication,
    programmed: Programmed<KvApplication>,
    slot: Arc<ProgramSlot>,
    predicate: Runnable,
    function: Runnable,
    check: Runnable,
}

/// A request as a predicate has listed it.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    bytes: Range<usize>,
    id: u64,
    route: Route,
    keys: Vec<Key>,
}

fn listed(application: &impl Application, message: &[u8], standing: Standing) -> Vec<Listed> {
    let mut requests = Requests::default();
    application.predicate(message, standing, &mut requests);
    let list = (0..requests.len()).map(|index| requests.get(index).unwrap());
    list.map(|request| Listed {
        bytes: request.bytes.clone(),
        id: request.id,
        route: request.route,
        keys: requests.keys(request).to_vec(),
    })
    .collect()
}

fn planned(
    application: &impl Application,
    request: &[u8],
    hits: &[Hit],
    now: u64,
) -> (Verdict, Vec<FileRead>, Reply) {
    let (mut reads, mut reply) = (Vec::new(), Reply::default());
    let verdict = application.function(request, hits, now, &mut reads, &mut reply);
    (verdict, reads, reply)
}

fn put_hit(scratch: &mut [u8], hit: &Hit) {
    let item = hit.item.bytes();
    scratch[HIT.offset_of("stamp")..][..8].copy_from_slice(&hit.stamp.number().to_le_bytes());
    scratch[HIT.offset_of("item_len")..][..4].copy_from_slice(&(item.len() as u32).to_le_bytes());
    scratch[HIT.offset_of("item")..][..item.len()].copy_from_slice(item);
}

impl Rig {
    pub(crate) fn new() -> Self {
        let native = KvApplication::default();
        let slot = Arc::new(ProgramSlot::default());
        let limits = Limits { share: 1_000_000, ..Limits::default() };
        let object = Library::default().load("kv", "kv_get", OBJECT, ProgramSlot::HOOKS, &limits);
        slot.put(vec![object.unwrap_or_else(|refused| panic!("{refused}"))], limits);
        let runnable = |name: &str, world: &World| {
            let program = Arc::new(elf::Object::parse(OBJECT).unwrap().program(Some(name)).unwrap());
            let accepted = verifier::verify(&program, world, verifier::Options::default()).unwrap();
            let compiled = compiler::compile(&accepted.verified, compiler::Options::default()).unwrap();
            Runnable { program, compiled }
        };
        Self {
            native,
            programmed: Programmed::new(native, Arc::clone(&slot), Rc::new(Stopped)),
            slot,
            predicate: runnable("kv_get_predicate", &PREDICATE),
            function: runnable("kv_get_function", &FUNCTION),
            check: runnable("kv_get_check", &CHECK),
        }
    }

    /// How often the program of a hook has answered. No program of the store's is ever stopped, or says what cannot be.
    fn answers(&self, hook: &World) -> u64 {
        let counts = self.slot.counts();
        let (_, found) = counts.hooks.iter().find(|(name, _)| *name == hook.name).unwrap();
        assert_eq!((found.faults, found.wrong, counts.over_share), (0, 0, 0), "{:?}", counts.last_fault);
        found.calls - found.left
    }

    /// What is said of a message, which is what the store itself says; whether it was the program that said it.
    pub(crate) fn predicate(&self, message: &[u8], standing: Standing) -> bool {
        let before = self.answers(&PREDICATE);
        let said = listed(&self.programmed, message, standing);
        let has_answered = self.answers(&PREDICATE) > before;
        assert_eq!(said, listed(&self.native, message, standing), "{}", message.escape_ascii());
        let result = run(&self.predicate, &PREDICATE, message, &[("standing", standing.0.into())], |_| {});
        assert_eq!(result == 0, has_answered, "{}", message.escape_ascii());
        has_answered
    }

    /// The same, of a request whose keys are in the table.
    pub(crate) fn function(&self, request: &[u8], hits: &[Hit], now: u64) -> bool {
        self.plan(request, hits, now).is_some()
    }

    /// The reply that the program has planned, if it was the program.
    fn plan(&self, request: &[u8], hits: &[Hit], now: u64) -> Option<Reply> {
        let before = self.answers(&FUNCTION);
        let (verdict, reads, reply) = planned(&self.programmed, request, hits, now);
        let has_answered = self.answers(&FUNCTION) > before;
        let (native_verdict, native_reads, native_reply) = planned(&self.native, request, hits, now);
        assert_eq!((verdict, reads), (native_verdict, native_reads), "{}", request.escape_ascii());
        let nothing = Reads::of([]);
        assert_eq!(reply.whole(&nothing.bytes()), native_reply.whole(&nothing.bytes()));
        let fields = [("now", now), ("hits", hits.len() as u64)];
        let result = run(&self.function, &FUNCTION, request, &fields, |scratch| {
            for (number, hit) in hits.iter().enumerate() {
                put_hit(&mut scratch[FUNCTION_SCRATCH.offset_of("hits") + number * HIT.len()..], hit);
            }
        });
        assert_eq!(result == 0, has_answered, "{}", request.escape_ascii());
        has_answered.then_some(reply)
    }

    /// What the client gets of what was read for a request that the program has planned; nothing, if the host is asked instead. The
    /// store's own check says the same, to the byte.
    pub(crate) fn check(&self, request: &[u8], hit: &Hit, read: &[u8]) -> Option<Vec<u8>> {
        let hits = [*hit];
        let mut reply = self.plan(request, &hits, 0).expect("the program plans it");
        let reads = Reads::of([read]);
        let reads = reads.bytes();
        let before = self.answers(&CHECK);
        let is_right = self.programmed.check(request, &hits, &reads, &mut reply);
        let said = is_right.then(|| reply.whole(&reads).expect("a reply of what was read"));
        let mut native_reply = Reply::default();
        let is_right = self.native.check(request, &hits, &reads, &mut native_reply);
        assert_eq!(said, is_right.then(|| native_reply.whole(&reads).unwrap()), "{}", read.escape_ascii());
        let result = run(
            &self.check,
            &CHECK,
            read,
            &[("request_len", request.len() as u64), ("reads", 1)],
            |scratch| {
                put_hit(&mut scratch[CHECK_SCRATCH.offset_of("hit")..], hit);
                scratch[CHECK_SCRATCH.offset_of("request")..][..request.len()].copy_from_slice(request);
            },
        );
        assert_eq!(result == 0, said.is_some(), "{}", read.escape_ascii());
        assert_eq!(self.answers(&CHECK) > before, said.is_some());
        said
    }
}

/// Memory that a program can write to.
#[derive(Clone, PartialEq, Eq)]
#[repr(C, align(8))]
struct Scratch([u8; 8192]);

/// Calls a program by the interpreter and by compiled code, which do the same to the last byte and the last unit of fuel.
fn run(
    runnable: &Runnable,
    world: &World,
    data: &[u8],
    fields: &[(&str, u64)],
    fill: impl FnOnce(&mut [u8]),
) -> u64 {
    let mut context = vec![0; world.fields.len()];
    fields.iter().for_each(|(name, value)| context[world.word(name)] = *value);
    // The scratch has something from earlier calls, whatever it is: a program has to write all that it says.
    let mut scratch = Scratch([0xa5; 8192]);
    fill(&mut scratch.0);
    let (mut other_context, mut other_scratch) = (context.clone(), scratch.clone());
    let (said, fuel) = {
        let scratch = &mut scratch.0[..world.scratch_len as usize];
        let mut call = call(data, scratch, &mut context);
        (Interpreter::new().run(&runnable.program, world, &mut call), call.fuel)
    };
    let mut call = call(data, &mut other_scratch.0[..world.scratch_len as usize], &mut other_context);
    assert_eq!((runnable.compiled.run(&mut call), call.fuel), (said, fuel));
    assert!(scratch == other_scratch, "the scratches differ");
    for (field, (one, other)) in world.fields.iter().zip(context.iter().zip(&other_context)) {
        // The words of addresses and lengths are whoever's that runs it.
        let is_said = matches!(field.kind, FieldKind::Number | FieldKind::Result);
        assert!(one == other || !is_said, "{}", field.name);
    }
    said.unwrap_or_else(|error| panic!("{error}"))
}

fn call<'a>(data: &'a [u8], scratch: &'a mut [u8], context: &'a mut [u64]) -> Call<'a> {
    Call { data, scratch, context, fuel: CALL_FUEL_MAX, table: &NoTable, log: &NoLog }
}
