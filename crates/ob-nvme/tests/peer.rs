//! The initiator against a target that is not ours. `cargo xtask spdk` starts SPDK's and runs this.

// A test that cannot go on should say where.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::loopback;

use std::env;
use std::net::SocketAddr;

use loopback::{block_on, join_all, pattern};
use ob_nvme::initiator::{Error, Initiator, Namespace, Options, discover};
use ob_wire_nvme::NamespaceId;
use ob_wire_nvme::pdu::Digests;

/// Who is asked: the variables `OB_NVME_PEER` (address and port) and `OB_NVME_PEER_NQN`.
fn options() -> Options {
    let address: SocketAddr = env::var("OB_NVME_PEER").expect("OB_NVME_PEER is not set").parse().unwrap();
    let subsystem = env::var("OB_NVME_PEER_NQN").expect("OB_NVME_PEER_NQN is not set");
    Options::new(address, &subsystem, [0xB0; 16]).unwrap()
}

async fn holds_what_is_written(namespace: &Namespace, tag: u64) {
    let block_len = namespace.block_len() as usize;
    // In a capsule, by R2T, and split.
    for (start, len) in [(0, block_len), (64, 8192), (256, 128 << 10), (4096, (1 << 20) + 4096)] {
        let start = start * 4096 / block_len as u64;
        let data = pattern(tag + start, len);
        namespace.write(start, data.clone()).await.unwrap();
        let blocks = (len / block_len) as u64;
        assert!(namespace.read(start, blocks).await.unwrap() == data, "{len} bytes at {start}");
        assert!(namespace.compare(start, data.clone()).await.unwrap(), "{len} bytes at {start}");
        let mut other = data;
        *other.last_mut().unwrap() ^= 1;
        assert!(!namespace.compare(start, other).await.unwrap(), "{len} bytes at {start}");
    }
}

#[test]
#[ignore = "needs a target of others; cargo xtask spdk runs it"]
fn a_target_of_others_is_discovered_written_and_read() {
    let options = options();
    block_on(async {
        let entries = discover(&options).await.unwrap();
        assert!(entries.iter().any(|entry| entry.subsystem == options.subsystem), "{entries:?}");
        let digests = [
            Digests::NONE,
            Digests { header: true, data: false },
            Digests { header: false, data: true },
            Digests::BOTH,
        ];
        for (digests, queues) in digests.into_iter().zip([1, 2, 4, 3]) {
            let initiator = Initiator::connect(Options { digests, queues, ..options.clone() }).await.unwrap();
            assert_eq!(initiator.facts().unwrap().queues, queues);
            let [namespace] = &initiator.namespaces().await.unwrap()[..] else { panic!("one namespace") };
            holds_what_is_written(namespace, u64::from(queues)).await;
            initiator.disconnect().await;
            assert_eq!(namespace.read(0, 1).await, Err(Error::Closed));
        }
    });
}

#[test]
#[ignore = "needs a target of others; cargo xtask spdk runs it"]
fn many_commands_at_once_reach_a_target_of_others_and_the_rest_of_the_commands_do() {
    block_on(async {
        let options = Options { queues: 4, depth: 32, ..options() };
        let initiator = Initiator::connect(options).await.unwrap();
        let namespace = initiator.namespace(NamespaceId(1)).await.unwrap();
        let block_len = namespace.block_len() as usize;
        let blocks_each = (16384 / block_len) as u64;
        // The other test works in the first half.
        let first = namespace.blocks() / 2;
        let parts: Vec<u64> = (0..512).map(|index| first + index * blocks_each).collect();
        let writes = parts.iter().map(|&start| namespace.write(start, pattern(start + 9, 16384)));
        assert!(join_all(writes).await.iter().all(Result::is_ok));
        let reads = parts.iter().map(|&start| namespace.read(start, blocks_each));
        for (start, read) in parts.iter().zip(join_all(reads).await) {
            assert!(read.unwrap() == pattern(start + 9, 16384), "at {start}");
        }
        namespace.flush().await.unwrap();
        namespace.write_zeroes(first, 3 * blocks_each, true).await.unwrap();
        assert!(namespace.read(first, 3 * blocks_each).await.unwrap().iter().all(|byte| *byte == 0));
        assert!(namespace.read(parts[3], blocks_each).await.unwrap() == pattern(parts[3] + 9, 16384));
        namespace.deallocate(parts[8], 100).await.unwrap();
        let beyond = namespace.blocks();
        assert!(matches!(namespace.read(beyond, 1).await, Err(Error::OutOfRange { .. })));
        initiator.disconnect().await;
    });
}
