//! Catalogues that earlier builds wrote: every later one finds in them what was there, goes on writing, and finds that.
//!
//! Made once, with the build that first wrote their version, and never again:
//!
//! ```sh
//! cargo test -p outboard --lib catalogue::earlier_tests -- --ignored make
//! ```
//!
//! (Those of versions 1 and 2 are of builds that are gone: this one reads them, and writes version 3.)

use super::*;

const FIRST: &str = include_str!("earlier/nvme-v1.json");
const ONE: &str = include_str!("earlier/nvme-v2-one.json");
const SEVERAL: &str = include_str!("earlier/nvme-v2-several.json");
const ONE_WITH_BLOCKS: &str = include_str!("earlier/nvme-v3-one.json");
const SEVERAL_WITH_BLOCKS: &str = include_str!("earlier/nvme-v3-several.json");

/// Two hosts, the second of which holds the namespace: as in `reservations-v1.txt` of `ob-nvme`.
const RESERVATIONS: &str = concat!(
    "4f425253010000000300000000000000020000000101020001000000050505050505050505050505",
    "0505050508070605040302010606060606060606060606060606060609000000000000000b10699e",
);

fn nqn(name: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-01.example:{name}")).unwrap()
}

fn at(subsystem: usize, nsid: u32) -> NamespacePlace {
    NamespacePlace { subsystem, nsid }
}

fn uuid(first: u8) -> [u8; 16] {
    std::array::from_fn(|index| first + index as u8)
}

fn row(nsid: u32, first: u8) -> Row {
    let uuid = hex(&uuid(first));
    Row {
        nsid,
        uuid,
        device: None,
        lies_on: None,
        size: None,
        block_len: None,
        removed: false,
        reservations: None,
    }
}

/// The rows of one subsystem: what the configuration names, what was added on a file and in memory, and what was removed.
fn rows(first: u8) -> Vec<Row> {
    vec![
        Row {
            lies_on: Some("card/nvme.img".to_owned()),
            reservations: Some(RESERVATIONS.to_owned()),
            block_len: Some(4096),
            ..row(1, first)
        },
        Row { device: Some(PathBuf::from("file:/volumes/a")), block_len: Some(512), ..row(2, first + 1) },
        Row { device: Some(PathBuf::from("memory")), size: Some(1 << 30), ..row(3, first + 2) },
        Row { device: Some(PathBuf::from("/dev/gone")), removed: true, ..row(7, first + 3) },
    ]
}

/// The lengths of blocks of namespaces 1 to 3, where the file tells them.
type Blocks = [Option<u32>; 3];
const NO_BLOCKS: Blocks = [None; 3];
const BLOCKS: Blocks = [Some(4096), Some(512), None];

/// What every build must find in those of one subsystem.
fn assert_holds(catalogue: &mut Catalogue, subsystem: usize, serial: &str, first: u8, blocks: Blocks) {
    assert_eq!(catalogue.serial(subsystem), serial);
    let Configured::Known(entry) = catalogue.configured(at(subsystem, 1), "card/nvme.img").unwrap() else {
        panic!("it was served")
    };
    assert_eq!((entry.uuid, entry.block_len), (uuid(first), blocks[0]));
    let reservations = entry.reservations.expect("they were kept");
    let registered: Vec<_> =
        reservations.registrants().iter().map(|host| (host.host_id[0], host.key)).collect();
    assert_eq!(registered, [(5, 0x0102_0304_0506_0708), (6, 9)]);
    assert!(reservations.is_holder(&[6; 16]) && !reservations.is_holder(&[5; 16]));
    let added = catalogue.added(subsystem).unwrap();
    let added: Vec<_> =
        added.into_iter().map(|it| (it.nsid, it.uuid, it.device, it.size, it.block_len)).collect();
    let on_file = (2, uuid(first + 1), Some(PathBuf::from("file:/volumes/a")), None, blocks[1]);
    let in_memory = (3, uuid(first + 2), Some(PathBuf::from("memory")), Some(1 << 30), blocks[2]);
    assert_eq!(added, [on_file, in_memory]);
    assert!(matches!(catalogue.configured(at(subsystem, 7), "/dev/gone").unwrap(), Configured::Removed));
}

/// A catalogue with these contents, in a place of its own.
fn load(text: &str) -> (tempfile::TempDir, Catalogue) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("nvme.json");
    std::fs::write(&path, text).unwrap();
    let catalogue = Catalogue::load(&path).unwrap();
    (place, catalogue)
}

#[test]
fn a_catalogue_of_one_subsystem_is_read_and_written_on() {
    for (text, name, blocks) in
        [(FIRST, "any", NO_BLOCKS), (ONE, "one", NO_BLOCKS), (ONE_WITH_BLOCKS, "one", BLOCKS)]
    {
        let (place, mut catalogue) = load(text);
        assert_eq!(catalogue.adopt(&nqn(name), true).unwrap(), 0);
        assert_holds(&mut catalogue, 0, "00112233445566ff", 0x10, blocks);
        let on = "card/eight.img";
        let added = catalogue.add(at(0, 8), None, Some(on.to_owned()), None).unwrap();
        catalogue.add(at(0, 9), Some(PathBuf::from("/dev/nine")), None, None).unwrap();
        catalogue.remove(at(0, 9)).unwrap();
        let mut again = Catalogue::load(&place.path().join("nvme.json")).unwrap();
        assert_eq!(again.adopt(&nqn(name), true).unwrap(), 0);
        assert_holds(&mut again, 0, "00112233445566ff", 0x10, blocks);
        let Configured::Known(found) = again.configured(at(0, 8), on).unwrap() else {
            panic!("what was added is gone")
        };
        assert_eq!(found.uuid, added.uuid);
        assert!(matches!(again.configured(at(0, 9), "/dev/nine").unwrap(), Configured::Removed));
    }
}

#[test]
fn a_catalogue_of_several_subsystems_is_read_and_written_on() {
    for (text, blocks) in [(SEVERAL, NO_BLOCKS), (SEVERAL_WITH_BLOCKS, BLOCKS)] {
        let (place, mut catalogue) = load(text);
        let assert_both = |catalogue: &mut Catalogue| {
            let [second, first] = ["second", "first"].map(|name| catalogue.adopt(&nqn(name), false).unwrap());
            assert_holds(catalogue, first, "00112233445566ff", 0x10, blocks);
            assert_holds(catalogue, second, "8899aabbccddeeff", 0x80, blocks);
        };
        assert_both(&mut catalogue);
        let third = catalogue.adopt(&nqn("third"), false).unwrap();
        let on = "card/third.img";
        let added = catalogue.add(at(third, 1), None, Some(on.to_owned()), None).unwrap();
        let mut again = Catalogue::load(&place.path().join("nvme.json")).unwrap();
        assert_both(&mut again);
        assert_eq!(again.adopt(&nqn("third"), false).unwrap(), third);
        let Configured::Known(found) = again.configured(at(third, 1), on).unwrap() else {
            panic!("what was added is gone")
        };
        assert_eq!(found.uuid, added.uuid);
    }
}

#[test]
#[ignore = "writes the files of a new version, once"]
fn make() {
    let subsystem = |name: &str, serial: &str, first: u8| SubsystemRow {
        nqn: Some(nqn(name).as_str().to_owned()),
        serial: serial.to_owned(),
        namespaces: rows(first),
        elsewhere: Vec::new(),
    };
    let one = vec![subsystem("one", "00112233445566ff", 0x10)];
    let several =
        vec![subsystem("first", "00112233445566ff", 0x10), subsystem("second", "8899aabbccddeeff", 0x80)];
    for (name, subsystems) in [("nvme-v3-one.json", one), ("nvme-v3-several.json", several)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/nvme/catalogue/earlier").join(name);
        let is_empty = std::fs::read(&path).is_ok_and(|bytes| bytes.is_empty());
        assert!(is_empty || !path.exists(), "{} is there, and stays as it is", path.display());
        let contents = Contents { version: VERSION, subsystems };
        Catalogue { path, contents, is_behind: false, replaced: None, replace: durable::replace }
            .save()
            .unwrap();
    }
}
