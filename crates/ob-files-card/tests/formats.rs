//! Ids of files, from one format of a device to the next.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

use crate::support;

use std::collections::BTreeSet;

use ob_files_card::FormatOptions;
use ob_wire_link::files::{FileError, ROOT};
use support::{MemoryDevice, Rig, SMALL, pattern};

const CAPACITY: u64 = 4 << 20;

/// A device that was formatted just now.
fn fresh(uuid: [u8; 16]) -> Rig {
    let mut device = MemoryDevice::new(CAPACITY, 4096);
    ob_files_card::format(&mut device, &FormatOptions::default(), uuid).unwrap();
    Rig::mount(device, &SMALL)
}

#[test]
fn an_id_of_another_format_finds_nothing() {
    let mut ids = BTreeSet::new();
    let mut random = ob_sim::Rng::new(7);
    for _ in 0..20 {
        let mut uuid = [0; 16];
        random.fill(&mut uuid);
        let mut rig = fresh(uuid);
        let of_this: Vec<_> = (0..10).map(|name: u8| rig.create(ROOT, &[b'a' + name]).unwrap().id).collect();
        for old in &ids {
            assert_eq!(rig.write(*old, 0, &pattern(1, 0, 100)), Err(FileError::NotFound));
            assert_eq!(rig.read(*old, 0, 100), Err(FileError::NotFound));
        }
        ids.extend(of_this);
    }
    assert_eq!(ids.len(), 200);
    assert!(ids.iter().all(|id| id.0 < 1 << 53), "they are exact where numbers are floating-point");
}

#[test]
fn ids_of_one_format_grow_with_each_mount() {
    for uuid in [[0; 16], [0xff; 16]] {
        let mut rig = fresh(uuid);
        let mut last = rig.create(ROOT, b"first").unwrap().id;
        for life in 0..5 {
            rig = Rig::mount(MemoryDevice::with(rig.device.image().clone(), 4096), &SMALL);
            assert!(rig.stat(last, b"").is_ok(), "ids stay valid");
            let next = rig.create(ROOT, format!("{life}").as_bytes()).unwrap().id;
            assert!(next.0 >> 32 > last.0 >> 32, "{next} after {last}");
            last = next;
        }
    }
}
