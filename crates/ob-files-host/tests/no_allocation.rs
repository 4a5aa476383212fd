//! Reads and writes have the library allocate nothing, when as many have been out before. Alone in its process: it counts what the
//! allocator does.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

mod common;
#[path = "../../ob-io/tests/counting/mod.rs"]
mod counting;

use common::{FakeCard, LONG};
use counting::allocations;
use ob_files_host::{Completion, GroupOptions};

const TOGETHER: u64 = 4;
const WARM: u64 = 50;
const ROUNDS: u64 = 500;

#[test]
fn reads_and_writes_by_tag_allocate_nothing() {
    let card = FakeCard::start();
    let session = card.session();
    let file = session.create("/f").wait().unwrap();
    let group = session.group(GroupOptions::polled()).unwrap();
    let file = group.add(&file);
    // The second is too long for the rings of the first.
    for len in [4096, 192 << 10] {
        let mut buffers: Vec<Vec<u8>> = (0..TOGETHER).map(|_| vec![7; len]).collect();
        let mut completions: Vec<Completion> = Vec::with_capacity(buffers.len());
        let mut counted = 0;
        for round in 0..WARM + ROUNDS {
            let before = allocations();
            for (tag, buffer) in (0..).zip(buffers.drain(..)) {
                let offset = tag * len as u64;
                let submitted = if round.is_multiple_of(2) {
                    file.submit_write(buffer, offset, tag)
                } else {
                    file.submit_read(buffer, offset, tag)
                };
                submitted.unwrap();
            }
            while completions.len() < TOGETHER as usize {
                assert!(group.wait_into(&mut completions, LONG) > 0, "no answer comes");
            }
            if round >= WARM {
                counted += allocations() - before;
            }
            for completion in completions.drain(..) {
                assert_eq!(completion.result, Ok(len));
                buffers.push(completion.buffer.into_bytes());
            }
        }
        assert_eq!(counted, 0, "in {} transfers of {len} bytes", ROUNDS * TOGETHER);
    }
}
