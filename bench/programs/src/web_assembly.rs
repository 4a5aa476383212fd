//! The programs as WebAssembly, in wasmtime: bounds by guard pages, time by fuel or by nothing.
//!
//! Data, scratch and context lie in the sandbox's memory from the start. Where they come from elsewhere they would have to be copied there
//! first, which is not measured.

use std::time::Duration;

use wasmtime::{Config, Engine, Instance, Memory, Module, Store, TypedFunc};

use crate::Failure;
use crate::harness::{Contender, Place, Query, SCRATCH_LEN, Workload};

/// All programs, from the same sources; `tests/recompile.rs` says how.
const PROGRAMS: &[u8] = include_bytes!("../programs/programs.wasm");
const PAGE_LEN: u64 = 64 << 10;
/// More than any of the calls needs.
const FUEL: u64 = 1 << 20;

pub(crate) struct Sandbox {
    store: Store<()>,
    function: TypedFunc<u32, u64>,
    queries: Vec<Query>,
    is_metered: bool,
    context: u32,
    place: Place,
}

impl Sandbox {
    pub(crate) fn new(workload: &Workload, is_metered: bool) -> Result<Self, Failure> {
        let mut config = Config::new();
        config.consume_fuel(is_metered);
        let engine = Engine::new(&config)?;
        let mut store = Store::new(&engine, ());
        if is_metered {
            store.set_fuel(FUEL)?;
        }
        let module = Module::new(&engine, PROGRAMS)?;
        let instance = Instance::new(&mut store, &module, &[])?;
        let name = match workload.name.as_str() {
            "btree" => "btree_search",
            "bpfkv" => "bpfkv_get",
            name => name,
        };
        let function = instance.get_typed_func::<u32, u64>(&mut store, name)?;
        let memory: Memory = instance.get_memory(&mut store, "memory").ok_or("there is no memory")?;
        // Behind what the compiler uses: scratch, context, data.
        let begin = memory.grow(&mut store, 1)? * PAGE_LEN;
        let (scratch_at, context_at, data_at) =
            (begin, begin + SCRATCH_LEN as u64, begin + 2 * SCRATCH_LEN as u64);
        memory.write(&mut store, data_at as usize, &workload.data)?;
        let bytes = memory.data_ptr(&store);
        let place = Place {
            scratch: bytes.wrapping_add(scratch_at as usize).cast(),
            context: bytes.wrapping_add(context_at as usize).cast(),
            filled: [data_at, workload.data.len() as u64, scratch_at, SCRATCH_LEN as u64],
        };
        let queries = workload.queries.clone();
        Ok(Self { store, function, queries, is_metered, context: u32::try_from(context_at)?, place })
    }
}

/// Calls it, with fuel of its own.
fn run(store: &mut Store<()>, function: &TypedFunc<u32, u64>, context: u32, is_metered: bool) -> u64 {
    if is_metered && store.set_fuel(FUEL).is_err() {
        return u64::MAX;
    }
    function.call(store, context).unwrap_or(u64::MAX)
}

impl Contender for Sandbox {
    fn digest(&mut self, workload: &Workload) -> u64 {
        let Self { store, function, is_metered, context, place, .. } = self;
        // SAFETY: the memory is the store's, which is alive, and grows no more, so that it stays where it is.
        unsafe { place.digest(workload, || run(store, function, *context, *is_metered)) }
    }

    fn measure(&mut self, laps: u32) -> Duration {
        let Self { store, function, queries, is_metered, context, place } = self;
        // SAFETY: as above.
        unsafe { place.measure(queries, laps, || run(store, function, *context, *is_metered)) }
    }
}
