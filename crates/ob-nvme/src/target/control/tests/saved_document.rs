//! Holds `docs/format/reservations.md` and the saved form of reservations together.

use ob_wire_nvme::io::ReservationRegisterAction as Action;

use super::*;

const DOCUMENT: &str = include_str!("../../../../../../docs/format/reservations.md");

/// Name, offset and length of the fields in each table, in the document's order.
fn tables() -> Vec<Vec<(&'static str, usize, usize)>> {
    let mut tables = Vec::new();
    for line in DOCUMENT.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> =
            line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        match cells[..] {
            ["field", "offset", "bytes", "meaning"] => tables.push(Vec::new()),
            [name, offset, len, _] if offset.parse::<usize>().is_ok() => {
                let table: &mut Vec<_> = tables.last_mut().unwrap();
                table.push((name, offset.parse().unwrap(), len.parse().unwrap()));
            }
            _ => {}
        }
    }
    tables
}

/// Bytes where the document's tables put these values: the header, then each registrant, then the checksum.
fn as_documented(header: &[(&str, u64)], registrants: &[([u8; 16], u64)]) -> Vec<u8> {
    let tables = tables();
    let [header_table, registrant_table] = &tables[..] else { panic!("two tables: {tables:?}") };
    let mut bytes = Vec::new();
    assert_eq!(header.len(), header_table.len());
    for ((name, value), (documented, offset, len)) in header.iter().zip(header_table) {
        assert_eq!((name, bytes.len()), (documented, *offset));
        bytes.extend_from_slice(&value.to_le_bytes()[..*len]);
    }
    for (host_id, key) in registrants {
        let at = bytes.len();
        for (name, offset, len) in registrant_table {
            assert_eq!(bytes.len() - at, *offset);
            match *name {
                "host_id" => bytes.extend_from_slice(&host_id[..*len]),
                "key" => bytes.extend_from_slice(&key.to_le_bytes()[..*len]),
                other => panic!("no such field: {other}"),
            }
        }
    }
    let checksum = ob_wire_nvme::pdu::digest(&bytes);
    bytes.extend(checksum);
    bytes
}

fn state(kind: Option<ReservationType>, persists: bool) -> ReservationState {
    let mut state = ReservationState::default();
    for (host, key) in [([5; 16], 0x0102_0304_0506_0708), ([6; 16], 9)] {
        state.register(&host, Action::Register, false, (0, key), Some(persists)).unwrap();
    }
    if let Some(kind) = kind {
        state.acquire(&[6; 16], 9, kind).unwrap();
    }
    state
}

#[test]
fn every_byte_is_where_the_document_says() {
    let kinds = ReservationType::ALL.iter().copied().map(Some).chain([None]);
    for (kind, persists) in kinds.flat_map(|kind| [(kind, false), (kind, true)]) {
        let state = state(kind, persists);
        let is_one = kind.is_some()
            && !matches!(
                kind,
                Some(ReservationType::WriteExclusiveAll | ReservationType::ExclusiveAccessAll)
            );
        let header = [
            ("magic", u64::from(u32::from_le_bytes(*b"OBRS"))),
            ("format", 1),
            ("version", state.version()),
            ("generation", u64::from(state.generation())),
            ("persists", u64::from(persists)),
            ("type", kind.map_or(0, |kind| u64::from(kind.code()))),
            ("registrants", 2),
            ("holder", if is_one { 1 } else { u64::from(u32::MAX) }),
        ];
        let bytes = as_documented(&header, &[([5; 16], 0x0102_0304_0506_0708), ([6; 16], 9)]);
        assert_eq!(state.encode(), bytes, "{kind:?}");
        let restored = ReservationState::decode(&bytes).unwrap();
        assert_eq!(restored.version(), state.version());
        assert_eq!((restored.kind().is_some(), restored.persists()), (persists && kind.is_some(), persists));
    }
    assert!(DOCUMENT.contains(&format!("{REGISTRANTS_MAX} at most")));
}

#[test]
fn what_the_document_calls_damage_is_refused() {
    let good = [
        ("magic", u64::from(u32::from_le_bytes(*b"OBRS"))),
        ("format", 1),
        ("version", 7),
        ("generation", 2),
        ("persists", 1),
        ("type", 1),
        ("registrants", 2),
        ("holder", 0),
    ];
    let hosts = [([5; 16], 1), ([6; 16], 2)];
    assert!(ReservationState::decode(&as_documented(&good, &hosts)).is_ok());
    for (field, value) in
        [("magic", 0), ("format", 2), ("persists", 2), ("type", 7), ("registrants", 1), ("holder", 2)]
    {
        let wrong = good.map(|(name, old)| (name, if name == field { value } else { old }));
        assert!(ReservationState::decode(&as_documented(&wrong, &hosts)).is_err(), "{field}");
    }
    for hosts in [[([5; 16], 1), ([5; 16], 2)], [([5; 16], 1), ([6; 16], 0)]] {
        assert!(ReservationState::decode(&as_documented(&good, &hosts)).is_err(), "{hosts:?}");
    }
    let many: Vec<_> = (0..=64_u8).map(|host| ([host; 16], 1)).collect();
    let wrong = good.map(|(name, old)| (name, if name == "registrants" { 65 } else { old }));
    assert!(ReservationState::decode(&as_documented(&wrong, &many)).is_err(), "65 registrants");
}
