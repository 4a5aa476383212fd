//! A service with programs, and programs for it.

#![allow(dead_code, reason = "each test takes what it needs")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on fails")]

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ob_core::{Clock, Instant};
use ob_ebpf::compiler::{self, compile};
use ob_ebpf::world::World;
use ob_ebpf::{text, verifier};
use ob_offload::{
    Application, Candidates, Cut, FileRead, Hit, HookCounts, Item, Key, ProgramSlot, Programmed, ReadBytes,
    Reason, Reply, ReplyOrder, Requests, Route, Stamp, Standing, Verdict,
};
use ob_programs::{Entry, Limits, Object};

/// A service whose own functions are easy to tell from a program's.
pub(crate) struct Native;

impl Application for Native {
    type Cutter = ();
    const REPLIES: ReplyOrder = ReplyOrder::AsAsked;

    fn cut(&self, (): &mut (), bytes: &[u8], _: Standing, _: &mut Vec<u8>) -> Cut {
        Cut::Message(bytes.len())
    }

    fn predicate(&self, message: &[u8], _: Standing, requests: &mut Requests) {
        requests.push(0..message.len(), 0, Route::to_host(Reason::Command));
    }

    fn function(&self, _: &[u8], _: &[Hit], _: u64, reads: &mut Vec<FileRead>, _: &mut Reply) -> Verdict {
        assert!(reads.is_empty());
        Verdict::Host(Reason::Command)
    }

    fn check(&self, _: &[u8], _: &[Hit], _: &ReadBytes<'_>, reply: &mut Reply) -> bool {
        reply.bytes(b"native");
        true
    }

    fn cache(&self, _: &[u8; 16], _: u32, _: u64, _: &[u8], candidates: &mut Candidates) {
        candidates.ends_at(4711);
    }

    fn unavailable(&self, _: u64, _: bool, _: &mut Vec<u8>) {}
}

/// A clock that goes when it is told.
#[derive(Clone, Default)]
pub(crate) struct Stopped(pub(crate) Rc<Cell<u64>>);

impl Clock for Stopped {
    fn now(&self) -> Instant {
        Instant::from_nanoseconds(self.0.get())
    }
}

pub(crate) struct Rig {
    pub(crate) service: Programmed<Native>,
    pub(crate) slot: Arc<ProgramSlot>,
    pub(crate) time: Stopped,
}

pub(crate) fn rig() -> Rig {
    let (slot, time) = (Arc::new(ProgramSlot::default()), Stopped::default());
    let service = Programmed::new(Native, Arc::clone(&slot), Rc::new(time.clone()));
    Rig { service, slot, time }
}

/// Where a field of a context is, for texts.
pub(crate) fn at(world: &World, field: &str) -> String {
    format!("(r1 + {})", world.word(field) * 8)
}

pub(crate) fn entry(hook: &'static World, source: &str) -> Entry {
    let program = Arc::new(text::assemble(source).unwrap().program().unwrap());
    let accepted = verifier::verify(&program, hook, verifier::Options::default()).unwrap();
    let code = compile(&accepted.verified, compiler::Options::default()).unwrap();
    let (accesses, checks) = (accepted.accesses, accepted.checks.len());
    Entry { name: hook.name.to_owned(), hook, code, instructions: 1, accesses, checks, tally: Arc::default() }
}

pub(crate) fn object(entries: Vec<Entry>) -> Arc<Object> {
    Arc::new(Object::new("test", entries, 0, Duration::ZERO))
}

impl Rig {
    pub(crate) fn put(&self, entries: Vec<Entry>) {
        self.slot.put(vec![object(entries)], Limits::default());
    }

    pub(crate) fn predicate(&self, message: &[u8], standing: u32) -> Vec<(Range<usize>, Route, Vec<Key>)> {
        let mut requests = Requests::default();
        self.service.predicate(message, Standing(standing), &mut requests);
        let list = (0..requests.len()).map(|index| requests.get(index).unwrap());
        list.map(|request| (request.bytes.clone(), request.route, requests.keys(request).to_vec())).collect()
    }

    pub(crate) fn function(&self) -> (Verdict, Vec<FileRead>, Reply) {
        let (mut reads, mut reply) = (Vec::new(), Reply::default());
        let verdict = self.service.function(b"request", &[hit()], 5, &mut reads, &mut reply);
        (verdict, reads, reply)
    }

    pub(crate) fn counts(&self, hook: &World) -> HookCounts {
        self.slot.counts().hooks.into_iter().find(|(name, _)| *name == hook.name).unwrap().1
    }
}

pub(crate) fn hit() -> Hit {
    Hit { item: Item::new(b"\x07\0\0\0item").unwrap(), stamp: Stamp::new(9).unwrap() }
}

/// Stores numbers into fields of the context, and returns 0.
pub(crate) fn says(world: &World, words: &[(&str, i64)]) -> String {
    let stores =
        words.iter().map(|(field, value)| format!("r2 = {value} ll\n*(u64 *){} = r2\n", at(world, field)));
    stores.collect::<String>() + "r0 = 0\nexit\n"
}
