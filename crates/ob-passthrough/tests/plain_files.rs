//! Maps of files in the folder for temporary ones, wherever that is: what needs no mount of its own.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;

use ob_passthrough::System;
use ob_passthrough::extents::{Extents, ExtentsError, ExtentsOptions, Unsuitable};
use rustix::fs::{FallocateFlags, fallocate};

use crate::mounts::extents;

/// Whether temporary files are where maps can be made of them.
fn can_map(folder: &Path) -> bool {
    let path = folder.join("probe");
    std::fs::write(&path, [1; 4096]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    match extents(&path) {
        Err(
            error
            @ (ExtentsError::FileSystem { .. } | ExtentsError::Device { .. } | ExtentsError::NotMounted),
        ) => {
            ob_plant::not_tested(format!("temporary files cannot be mapped: {error}"));
            false
        }
        _ => true,
    }
}

#[test]
fn what_is_dirty_is_written_back_first() {
    let folder = tempfile::tempdir().unwrap();
    if !can_map(folder.path()) {
        return;
    }
    let path = folder.path().join("dirty");
    for _ in 0..8 {
        let mut file = File::create(&path).unwrap();
        file.write_all(&[7; 1 << 20]).unwrap();
        drop(file);
        let map = extents(&path).unwrap();
        assert_eq!(map.len, 1 << 20);
        assert_eq!(map.list.iter().map(|extent| extent.len).sum::<u64>(), 1 << 20);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn reserved_space_is_no_data() {
    let folder = tempfile::tempdir().unwrap();
    if !can_map(folder.path()) {
        return;
    }
    let path = folder.path().join("reserved");
    let mut file = File::create(&path).unwrap();
    file.write_all(&[7; 8192]).unwrap();
    fallocate(&file, FallocateFlags::KEEP_SIZE, 8192, 1 << 20).unwrap();
    assert_eq!(extents(&path).unwrap().len, 8192, "beyond the end it does not matter");
    fallocate(&file, FallocateFlags::empty(), 8192, 65_536).unwrap();
    let within = extents(&path);
    assert!(matches!(within, Err(ExtentsError::Unsuitable(Unsuitable::Unwritten))), "{within:?}");
}

#[test]
fn by_default_only_namespaces_are_mapped() {
    let folder = tempfile::tempdir().unwrap();
    let file = File::create_new(folder.path().join("file")).unwrap();
    let refused = Extents::of(file.as_fd(), &System::default(), &ExtentsOptions::default());
    match refused {
        Err(ExtentsError::Device { .. } | ExtentsError::FileSystem { .. }) => {}
        Ok(map) if map.device.name.starts_with("nvme") => {
            ob_plant::not_tested("temporary files are on a namespace");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_no_file_of_a_file_system_on_a_device_is_refused() {
    let options = ExtentsOptions::default();
    let map = |path: &str| Extents::of(File::open(path).unwrap().as_fd(), &System::default(), &options);
    assert!(matches!(map("/"), Err(ExtentsError::NotAFile)));
    assert!(matches!(map("/dev/null"), Err(ExtentsError::NotAFile)));
    let proc = map("/proc/self/status");
    assert!(matches!(&proc, Err(ExtentsError::FileSystem { name, .. }) if name == "proc"), "{proc:?}");
}
