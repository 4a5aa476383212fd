//! Requests of 512 bytes to 1 MiB, end to end: the real programs, volumes of both lengths of blocks, and what they are to have in memory.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::Output;

use ob_nvme::initiator::{Namespace, block_on};

use crate::volume_command::{connect, disk, done, json, listed, wait_until};
use crate::volumes::{Tier, bytes, kill, write};

const MIB: usize = 1 << 20;
/// Bytes of a volume that are used.
const SPAN: usize = 6 * MIB;

/// A disk, and what it has to have.
struct Model {
    disk: Namespace,
    bytes: Vec<u8>,
    dice: u64,
}

impl Model {
    fn new(disk: Namespace) -> Self {
        Self { disk, bytes: vec![0; SPAN], dice: 7 }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) as usize % limit
    }

    fn block(&self) -> usize {
        self.disk.block_len() as usize
    }

    /// Some blocks: a few, a record or so, or as many as a command has.
    fn any(&mut self) -> (usize, usize) {
        let most = [8 * self.block(), 70_000, 200_000, MIB][self.below(4)] / self.block();
        let blocks = 1 + self.below(most);
        (self.below(SPAN / self.block() - blocks), blocks)
    }

    async fn write(&mut self, start: usize, blocks: usize) {
        let (at, len) = (start * self.block(), blocks * self.block());
        let seed = self.below(250) as u8;
        let mut data = bytes(len, seed);
        if self.below(2) == 0 {
            // What shrinks.
            data.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 500) as u8 ^ seed);
        }
        self.bytes[at..at + len].copy_from_slice(&data);
        write(&self.disk, start as u64, data).await;
    }

    async fn clear(&mut self, start: usize, blocks: usize, is_trim: bool) {
        let (at, len) = (start * self.block(), blocks * self.block());
        self.bytes[at..at + len].fill(0);
        match is_trim {
            true => self.disk.deallocate(start as u64, blocks as u64).await.unwrap(),
            false => self.disk.write_zeroes(start as u64, blocks as u64, true).await.unwrap(),
        }
    }

    async fn check(&self, start: usize, blocks: usize) {
        let read = self.disk.read(start as u64, blocks as u64).await.unwrap();
        let expected = &self.bytes[start * self.block()..][..blocks * self.block()];
        let wrong = read.iter().zip(expected).position(|(one, other)| one != other);
        assert_eq!(wrong, None, "of {blocks} blocks from {start} on");
    }

    async fn play(&mut self, steps: usize) {
        for _ in 0..steps {
            let (start, blocks) = self.any();
            match self.below(8) {
                0..4 => self.write(start, blocks).await,
                4 => {
                    let is_trim = self.below(2) == 0;
                    self.clear(start, blocks.min(300), is_trim).await;
                }
                _ => self.check(start, blocks).await,
            }
        }
        self.check_all().await;
    }

    /// In commands as long as there are.
    async fn check_all(&self) {
        self.check(0, SPAN / self.block()).await;
    }
}

fn nvme(tier: &Tier, line: &str, input: &[u8]) -> Output {
    let address = tier.volume.to_string();
    let mut arguments: Vec<&str> = ["nvme"].into_iter().chain(line.split(' ')).collect();
    arguments.extend(["--address", &address, "--nqn", crate::volumes::NQN]);
    let file = tier.place.path().join("input");
    if !input.is_empty() {
        std::fs::write(&file, input).unwrap();
        arguments.extend(["--input", "input"]);
    }
    let output = tier.place.output(&arguments);
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// With as little card memory as there can be, over both placements that there are.
#[test]
fn requests_of_all_lengths_on_blocks_of_both() {
    for placement in ["split", "host"] {
        let lines = format!("card_memory = \"16MiB\"\nplacement = \"{placement}\"\n");
        let mut tier = Tier::start_as(3, &lines);
        let initiator = connect(&tier);
        done(&tier, "create small --size 64MiB --block 512");
        // Requests cross from one of its segments to the next.
        done(&tier, "create cut --size 64MiB --block 512 --segment 2MiB");
        wait_until("the other disks", || block_on(initiator.namespaces()).unwrap().len() == 3);
        assert_eq!(initiator.facts().unwrap().transfer_max as usize, MIB, "the longest request is a command");
        let mut large = Model::new(disk(&initiator, 1));
        let mut small = Model::new(disk(&initiator, 2));
        let mut cut = Model::new(disk(&initiator, 3));
        assert_eq!((large.block(), small.block()), (4096, 512));
        assert_eq!(listed(&tier, "small").unwrap()["segment"].as_u64(), Some(4 << 30));
        block_on(async {
            // Each block is another record, of which 1 MiB has more than the card has memory for at once.
            for block in 0..256 {
                large.write(block, 1).await;
            }
            for block in 0..400 {
                small.write(block * 2, 1).await;
            }
            for model in [&mut large, &mut small, &mut cut] {
                model.check(0, MIB / model.block()).await;
                model.play(60).await;
                // Several of the longest at once, which is more than there is memory for.
                let all = bytes(SPAN, 77);
                model.disk.write(0, all.clone()).await.unwrap();
                model.bytes = all;
                model.check_all().await;
                model.play(20).await;
            }
        });
        // By the command that people use, where nothing is a whole page.
        let image = bytes(MIB + 512 * 7, 9);
        nvme(&tier, "write --nsid 2 --offset 1536B --flush", &image);
        small.bytes[1536..1536 + image.len()].copy_from_slice(&image);
        let read = nvme(&tier, &format!("read --nsid 2 --offset 1536B --length {}B", image.len()), b"");
        assert!(read.stdout == image, "what was written is read");
        // The next life finds all of it in the log.
        kill(&mut tier.host);
        tier.wait_for("it is gone", |volumes| volumes["has_host"] == false);
        tier.host = tier.place.start(&["host"]);
        tier.wait_for("it is back", |volumes| volumes["has_host"] == true);
        for model in [&mut large, &mut small, &mut cut] {
            block_on(async {
                // Until its segment is taken again.
                let (start, blocks) = model.any();
                model.write(start, blocks).await;
                model.check_all().await;
                model.play(20).await;
            });
        }
        assert_eq!(json(&tier, "show cut")["volume"]["segments"].as_array().unwrap().len(), 3);
        let used = listed(&tier, "small").unwrap()["used"].as_u64().unwrap();
        assert!(used > 0 && used.is_multiple_of(512) && used <= SPAN as u64, "{used}");
    }
}
