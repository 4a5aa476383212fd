//! How a contender is called, the same for all: the query is copied to the begin of the scratch, the context gets the words that a hook fills in, and
//! the call is made.

use std::hint::black_box;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Bytes of a query.
pub(crate) const QUERY_LEN: usize = 40;
/// Bytes of the scratch of the hook `storage`.
pub(crate) const SCRATCH_LEN: usize = 4096;
/// Words of its context.
pub(crate) const CONTEXT_WORDS: usize = 11;

pub(crate) type Query = [u8; QUERY_LEN];

/// What to do.
pub(crate) struct Workload {
    pub(crate) name: String,
    /// As many bytes of the scratch are the answer.
    pub(crate) answer_len: usize,
    pub(crate) data: Vec<u8>,
    pub(crate) queries: Vec<Query>,
}

/// Somebody who can be measured.
pub(crate) trait Contender {
    /// A number that tells what it makes of all queries.
    fn digest(&mut self, workload: &Workload) -> u64;

    /// Processor time of so many laps over all queries.
    fn measure(&mut self, laps: u32) -> Duration;
}

/// Scratch and context, wherever the contender wants them.
pub(crate) struct Place {
    pub(crate) scratch: *mut [u8; SCRATCH_LEN],
    pub(crate) context: *mut [u64; CONTEXT_WORDS],
    /// What a hook fills in: addresses and lengths of data and scratch, as the program sees them.
    pub(crate) filled: [u64; 4],
}

impl Place {
    /// Asks all queries so many times over.
    ///
    /// # Safety
    ///
    /// Scratch and context are alive and borrowed by nobody while `call` does not run.
    pub(crate) unsafe fn measure(
        &self,
        queries: &[Query],
        laps: u32,
        mut call: impl FnMut() -> u64,
    ) -> Duration {
        let before = thread_cpu();
        for _ in 0..laps {
            for query in queries {
                // SAFETY: as the caller says.
                unsafe { self.ask(query) };
                black_box(call());
            }
        }
        thread_cpu() - before
    }

    /// What comes of all queries, each with a scratch of its own.
    ///
    /// # Safety
    ///
    /// As above.
    pub(crate) unsafe fn digest(&self, workload: &Workload, mut call: impl FnMut() -> u64) -> u64 {
        let mut digest = 0xcbf2_9ce4_8422_2325;
        let mut add = |bytes: &[u8]| {
            for byte in bytes {
                digest = (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            }
        };
        for query in &workload.queries {
            // SAFETY: as the caller says.
            unsafe {
                (*self.scratch, *self.context) = ([0; SCRATCH_LEN], [0; CONTEXT_WORDS]);
                self.ask(query);
            }
            add(&call().to_le_bytes());
            // SAFETY: as the caller says.
            let (scratch, context) = unsafe { (&*self.scratch, &*self.context) };
            context[7..].iter().for_each(|word| add(&word.to_le_bytes()));
            add(&scratch[..workload.answer_len]);
        }
        digest
    }

    /// Puts a query in.
    ///
    /// # Safety
    ///
    /// As above.
    unsafe fn ask(&self, query: &Query) {
        // SAFETY: as the caller says.
        let (scratch, context) = unsafe { (&mut *self.scratch, &mut *self.context) };
        scratch[..QUERY_LEN].copy_from_slice(query);
        context[..4].copy_from_slice(&self.filled);
    }
}

/// Scratch and context in memory of this process.
#[repr(C, align(64))]
pub(crate) struct Request {
    pub(crate) scratch: [u8; SCRATCH_LEN],
    pub(crate) context: [u64; CONTEXT_WORDS],
}

impl Request {
    /// The addresses of one that stays where it is, and of data that does.
    pub(crate) fn new(data: &[u8]) -> (*mut Self, Place) {
        let request =
            Box::into_raw(Box::new(Self { scratch: [0; SCRATCH_LEN], context: [0; CONTEXT_WORDS] }));
        // SAFETY: it was made just now.
        let (scratch, context) = unsafe { (&raw mut (*request).scratch, &raw mut (*request).context) };
        let filled = [
            data.as_ptr().expose_provenance() as u64,
            data.len() as u64,
            scratch.expose_provenance() as u64,
            SCRATCH_LEN as u64,
        ];
        (request, Place { scratch, context, filled })
    }
}

fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
