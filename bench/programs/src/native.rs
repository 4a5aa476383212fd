//! The programs as a C compiler makes them.

use std::hint::black_box;
use std::time::Duration;

use crate::Failure;
use crate::harness::{CONTEXT_WORDS, Contender, Place, Query, Request, Workload};

type Function = unsafe extern "C" fn(*mut [u64; CONTEXT_WORDS]) -> u64;

// SAFETY: so they are declared in the sources that the build script compiles.
unsafe extern "C" {
    fn empty(context: *mut [u64; CONTEXT_WORDS]) -> u64;
    fn btree_search(context: *mut [u64; CONTEXT_WORDS]) -> u64;
    fn bpfkv_get(context: *mut [u64; CONTEXT_WORDS]) -> u64;
    fn rocksdb_block(context: *mut [u64; CONTEXT_WORDS]) -> u64;
}

pub(crate) struct Native {
    function: Function,
    /// The data stays where it is as long as this.
    _data: Vec<u8>,
    queries: Vec<Query>,
    request: *mut Request,
    place: Place,
}

impl Native {
    pub(crate) fn new(workload: &Workload) -> Result<Self, Failure> {
        let function: Function = match workload.name.as_str() {
            "empty" => empty,
            "btree" => btree_search,
            "bpfkv" => bpfkv_get,
            "rocksdb_block" => rocksdb_block,
            _ => return Err("there is no such program".into()),
        };
        let data = workload.data.clone();
        let (request, place) = Request::new(&data);
        Ok(Self { function, _data: data, queries: workload.queries.clone(), request, place })
    }
}

impl Contender for Native {
    fn digest(&mut self, workload: &Workload) -> u64 {
        let (function, context) = (self.function, self.place.context);
        // SAFETY: the request is alive as long as `self`, and so is the data; the programs stay within both, for data like this.
        unsafe { self.place.digest(workload, || function(context)) }
    }

    fn measure(&mut self, laps: u32) -> Duration {
        let (function, context) = (black_box(self.function), self.place.context);
        // SAFETY: as above.
        unsafe { self.place.measure(&self.queries, laps, || function(context)) }
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`, and nobody else has it.
        drop(unsafe { Box::from_raw(self.request) });
    }
}
