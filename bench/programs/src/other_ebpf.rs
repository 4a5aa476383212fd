//! The programs in rbpf, compiled by its JIT, which checks nothing and counts nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ob_ebpf::elf::Object;
use ob_ebpf::isa;

use crate::Failure;
use crate::harness::{CONTEXT_WORDS, Contender, Place, Query, Request, Workload};

pub(crate) struct Rbpf {
    machine: rbpf::EbpfVmRaw<'static>,
    /// The data stays where it is as long as this.
    _data: Vec<u8>,
    queries: Vec<Query>,
    request: *mut Request,
    place: Place,
}

impl Rbpf {
    pub(crate) fn new(workload: &Workload) -> Result<Self, Failure> {
        let object: &[u8] = match workload.name.as_str() {
            "empty" => include_bytes!("../programs/empty.o"),
            "btree" => include_bytes!("../../../examples/programs/btree_search.o"),
            "bpfkv" => include_bytes!("../../../examples/programs/bpfkv_get.o"),
            // Functions have no frames of their own in this JIT, so that there is one only.
            "rocksdb_block" => include_bytes!("../programs/rocksdb_block_inlined.o"),
            _ => return Err("there is no such program".into()),
        };
        let program = Object::parse(object)?.program(None)?;
        // As many are leaked as there are workloads: the machine wants to borrow them.
        let code = isa::encode(program.instructions())?.leak();
        let mut machine = rbpf::EbpfVmRaw::new(Some(code))?;
        machine.register_helper(2, copy)?;
        machine.register_helper(4, compare)?;
        // It writes beyond the memory that it has taken for some programs, and stops there.
        let compiled = catch_unwind(AssertUnwindSafe(|| machine.jit_compile()));
        compiled.map_err(|_| "its JIT panics over this program")??;
        let data = workload.data.clone();
        let (request, place) = Request::new(&data);
        Ok(Self { machine, _data: data, queries: workload.queries.clone(), request, place })
    }
}

/// Runs it. A context of nobody's lifetime is what the machine asks for.
///
/// # Safety
///
/// The context is alive, and borrowed by nobody; what it points to is, too.
unsafe fn run(machine: &rbpf::EbpfVmRaw<'static>, context: *mut [u64; CONTEXT_WORDS]) -> u64 {
    // SAFETY: as the caller says.
    let bytes = unsafe { std::slice::from_raw_parts_mut(context.cast::<u8>(), 8 * CONTEXT_WORDS) };
    // SAFETY: the program is one that the card's verifier accepts.
    unsafe { machine.execute_program_jit(bytes) }.unwrap_or(u64::MAX)
}

impl Contender for Rbpf {
    fn digest(&mut self, workload: &Workload) -> u64 {
        let context = self.place.context;
        // SAFETY: request and data are alive as long as `self`.
        unsafe { self.place.digest(workload, || run(&self.machine, context)) }
    }

    fn measure(&mut self, laps: u32) -> Duration {
        let context = self.place.context;
        // SAFETY: as above.
        unsafe { self.place.measure(&self.queries, laps, || run(&self.machine, context)) }
    }
}

impl Drop for Rbpf {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`, and nobody else has it.
        drop(unsafe { Box::from_raw(self.request) });
    }
}

/// `ob_copy`.
fn copy(to: u64, to_len: u64, from: u64, from_len: u64, _: u64) -> u64 {
    let len = to_len.min(from_len) as usize;
    let (to, from) = (
        std::ptr::with_exposed_provenance_mut(to as usize),
        std::ptr::with_exposed_provenance(from as usize),
    );
    // SAFETY: the program gives ranges that are in its memory.
    unsafe { std::ptr::copy::<u8>(from, to, len) };
    len as u64
}

/// `ob_compare`.
fn compare(left: u64, left_len: u64, right: u64, right_len: u64, _: u64) -> u64 {
    let bytes = |address: u64, len: u64| {
        let first = std::ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: the program gives ranges that are in its memory.
        unsafe { std::slice::from_raw_parts(first, len as usize) }
    };
    bytes(left, left_len).cmp(bytes(right, right_len)) as i64 as u64
}
