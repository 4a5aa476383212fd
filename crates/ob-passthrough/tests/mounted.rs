//! Maps of files in images: what the map says must be what the file has, byte by byte.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use ob_passthrough::System;
use ob_passthrough::extents::{AllowedDevices, Extents, ExtentsError, ExtentsOptions, Unsuitable};
use ob_passthrough::lease::LeaseKeeper;
use rustix::fs::{FallocateFlags, fallocate};

use crate::mounts::{Mounted, PARTITION_START};

const EXT4: &[&str] = &["mkfs.ext4", "-q"];
const XFS: &[&str] = &["mkfs.xfs", "-q"];

/// Numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

fn assert_same(mounted: &Mounted, path: &Path, map: &Extents, story: &str) {
    let by_file = std::fs::read(path).unwrap();
    assert_eq!(map.len as usize, by_file.len(), "{story}");
    let by_map = mounted.read_by(map);
    let differs = by_file.iter().zip(&by_map).position(|(one, other)| one != other);
    assert_eq!(differs, None, "{story}: {:?}", map.list);
}

/// One random change to a file.
fn change(file: &File, numbers: &mut Numbers) {
    let (offset, len) = (numbers.below(200) * 4096 + numbers.below(3) * 77, 1 + numbers.below(40_000));
    match numbers.below(10) {
        0..6 => {
            let bytes: Vec<u8> = (0..len).map(|_| numbers.below(256) as u8).collect();
            file.write_all_at(&bytes, offset).unwrap();
        }
        6 => file.set_len(offset).unwrap(),
        7 => file.set_len(offset + 1_000_000).unwrap(),
        8 => fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len).unwrap(),
        _ => {
            let end = file.metadata().unwrap().len();
            fallocate(file, FallocateFlags::KEEP_SIZE, end, len).unwrap();
        }
    }
}

fn random_files(mkfs: &[&str], seed: u64, has_partition: bool) {
    let Some(mounted) = Mounted::new(mkfs, "", has_partition) else { return };
    let mut numbers = Numbers(seed);
    let paths: Vec<_> = (0..4).map(|index| mounted.path(&format!("file{index}"))).collect();
    let (mut mapped, mut in_pieces) = (0, 0);
    for round in 0..120 {
        // Interleaved, and now and then synced, so that files lie in pieces and blocks are reused.
        for path in &paths {
            let file = open(path);
            change(&file, &mut numbers);
            if numbers.below(3) == 0 {
                file.sync_all().unwrap();
            }
        }
        let path = &paths[numbers.below(4) as usize];
        match mounted.extents(path) {
            Ok(map) => {
                assert_same(&mounted, path, &map, &format!("{mkfs:?}, round {round}, {}", path.display()));
                mapped += 1;
                in_pieces += usize::from(map.list.len() > 2);
                assert!(
                    map.list.iter().all(|extent| !has_partition || extent.device_offset >= PARTITION_START)
                );
            }
            // Space that was reserved and then came to lie before the end.
            Err(ExtentsError::Unsuitable(Unsuitable::Unwritten)) => {}
            Err(error) => panic!("{mkfs:?}, round {round}: {error}"),
        }
        if numbers.below(20) == 0 {
            std::fs::remove_file(path).unwrap();
        }
    }
    assert!(mapped > 30 && in_pieces > 10, "{mapped} mapped, {in_pieces} of them in pieces");
}

#[test]
fn ext4_files_are_where_their_maps_say() {
    random_files(EXT4, 0x5EED_0001, false);
}

#[test]
fn xfs_files_are_where_their_maps_say() {
    random_files(XFS, 0x5EED_0002, false);
}

#[test]
fn a_partition_is_not_forgotten() {
    random_files(EXT4, 0x5EED_0003, true);
}

#[test]
fn many_pieces_are_read_in_batches_and_bounded() {
    for mkfs in [EXT4, XFS] {
        let Some(mounted) = Mounted::new(mkfs, "", false) else { return };
        let path = mounted.path("comb");
        let file = open(&path);
        // First its length: where a file grows xfs reserves more than was written, and what is reserved is no data.
        file.set_len(600 * 8192).unwrap();
        for index in 0..600 {
            file.write_all_at(&[index as u8; 4096], index * 8192).unwrap();
        }
        let map = mounted.extents(&path).unwrap();
        assert_eq!(map.list.len(), 600, "{mkfs:?}");
        assert_same(&mounted, &path, &map, "a comb");
        assert!(map.is_current(file.as_fd()).unwrap());
        let bounded = |extents_max| {
            let options = ExtentsOptions { extents_max, devices: AllowedDevices::SingleDevices };
            Extents::of(file.as_fd(), &System::default(), &options)
        };
        assert!(bounded(600).is_ok());
        assert!(matches!(bounded(599), Err(ExtentsError::TooMany { max: 599 })));
        file.write_all_at(&[1; 4096], 4096).unwrap();
        file.sync_all().unwrap();
        assert!(!map.is_current(file.as_fd()).unwrap(), "a hole was filled");
    }
}

#[test]
fn loop_devices_and_journals_of_data_are_refused() {
    let Some(mounted) = Mounted::new(EXT4, "", false) else { return };
    let path = mounted.path("file");
    std::fs::write(&path, [1; 8192]).unwrap();
    let strict = Extents::of(open(&path).as_fd(), &System::default(), &ExtentsOptions::default());
    assert!(matches!(&strict, Err(ExtentsError::Device { kind: "a loop device", .. })), "{strict:?}");
    assert!(mounted.extents(&path).is_ok());
    if Command::new("chattr").arg("+j").arg(&path).output().is_ok_and(|output| output.status.success()) {
        let journaled = mounted.extents(&path);
        assert!(matches!(journaled, Err(ExtentsError::Unsuitable(Unsuitable::Journaled))), "{journaled:?}");
    } else {
        ob_plant::not_tested("a file of its own with a journal of data: chattr +j is refused here");
    }
    drop(mounted);
    let by_mount = Mounted::try_new(EXT4, &[], "data=journal", false);
    let by_default = Mounted::try_new(EXT4, &["tune2fs", "-o", "journal_data"], "", false);
    for (how, mounted) in [("by mount", by_mount), ("by default", by_default)] {
        let mounted = mounted.unwrap();
        let path = mounted.path("file");
        std::fs::write(&path, [1; 8192]).unwrap();
        let refused = mounted.extents(&path);
        assert!(
            matches!(refused, Err(ExtentsError::Unsuitable(Unsuitable::Journaled))),
            "{how}: {refused:?}"
        );
    }
}

#[test]
fn data_among_metadata_is_refused() {
    let inline = Mounted::try_new(&["mkfs.ext4", "-q", "-O", "inline_data"], &[], "", false);
    let Ok(mounted) = inline else {
        ob_plant::not_tested("no ext4 with data among metadata");
        return;
    };
    let (small, large) = (mounted.path("small"), mounted.path("large"));
    std::fs::write(&small, b"little").unwrap();
    std::fs::write(&large, [1; 8192]).unwrap();
    let refused = mounted.extents(&small);
    assert!(matches!(refused, Err(ExtentsError::Unsuitable(Unsuitable::Inline))), "{refused:?}");
    let map = mounted.extents(&large).unwrap();
    assert_same(&mounted, &large, &map, "beside data among metadata");
    std::fs::write(mounted.path("empty"), b"").unwrap();
    let empty = mounted.extents(&mounted.path("empty"));
    assert!(empty.is_ok_and(|map| map.list.is_empty()));
}

#[test]
fn files_with_indirect_blocks_are_mapped() {
    // As ext3 made them: the map is merged from blocks, and right.
    let Some(mounted) = Mounted::new(&["mkfs.ext4", "-q", "-O", "^extents,^64bit"], "", false) else {
        return;
    };
    let path = mounted.path("file");
    let file = open(&path);
    let bytes: Vec<u8> = (0..300_000u32).map(|index| (index % 251) as u8).collect();
    file.write_all_at(&bytes, 0).unwrap();
    file.write_all_at(&bytes, 1 << 20).unwrap();
    let map = mounted.extents(&path).unwrap();
    assert_same(&mounted, &path, &map, "indirect blocks");
}

#[test]
fn another_file_system_on_top_is_refused_by_name() {
    let Some(mounted) = Mounted::new(EXT4, "", false) else { return };
    for folder in ["lower", "upper", "work", "merged"] {
        std::fs::create_dir(mounted.path(folder)).unwrap();
    }
    std::fs::write(mounted.path("lower/file"), [1; 8192]).unwrap();
    let folder = |name: &str| mounted.path(name).display().to_string();
    let options =
        format!("lowerdir={},upperdir={},workdir={}", folder("lower"), folder("upper"), folder("work"));
    let arguments = ["-t", "overlay", "-o", &options, "overlay", &folder("merged")];
    if !Command::new("mount").args(arguments).status().is_ok_and(|status| status.success()) {
        ob_plant::not_tested("no overlay can be mounted here");
        return;
    }
    let refused = mounted.extents(&mounted.path("merged/file"));
    let _ = Command::new("umount").arg(mounted.path("merged")).status();
    assert!(
        matches!(&refused, Err(ExtentsError::FileSystem { name, .. }) if name == "overlay"),
        "{refused:?}"
    );
}

/// The one thing that leases do not hear of and that moves blocks (docs/leases.md): without a second look at the map, a client
/// would read blocks that have become another file's.
#[test]
fn deduplication_moves_a_leased_file_and_is_noticed() {
    let Some(mounted) = Mounted::new(XFS, "", false) else { return };
    let (one, other) = (mounted.path("one"), mounted.path("other"));
    std::fs::write(&one, [7; 65_536]).unwrap();
    std::fs::write(&other, [7; 65_536]).unwrap();
    let map = mounted.extents(&one).unwrap();
    assert!(map.can_be_remapped);
    let keeper = LeaseKeeper::start().unwrap();
    // Busy for as long as a process that is being started has what was open for writing.
    let leased = || keeper.lease(File::open(&one).unwrap().into()).ok();
    let lease = std::iter::repeat_with(leased).flatten().next().unwrap();
    assert!(map.is_current(lease.file()).unwrap());
    // A source of our own, and the leased file as the destination, opened for reading.
    let said = Command::new("xfs_io")
        .arg("-r")
        .arg("-c")
        .arg(format!("dedupe {} 0 0 65536", other.display()))
        .arg(&one)
        .output();
    match said {
        Ok(output) if output.status.success() => {}
        other => {
            ob_plant::not_tested(format!("deduplication: {other:?}"));
            return;
        }
    }
    assert!(
        lease.is_held(),
        "if this fails the kernel has learnt to break leases, and the second look can go"
    );
    assert!(!map.is_current(lease.file()).unwrap(), "the blocks have moved");
    let map = mounted.extents(&one).unwrap();
    assert_same(&mounted, &one, &map, "shared blocks are as good");
}
