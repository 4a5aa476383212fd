//! Benchmarks run small here, so that they cannot rot. Their figures are not looked at: only that they are there.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use crate::rocksdb::peer::program;
use crate::support;

use support::Place;

#[test]
fn the_ring_is_measured_against_other_rings() {
    let place = Place::new();
    let output = place.output(&["bench", "ring", "--quick", "--json", "ring.json", "--plot", "ring.svg"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = std::fs::read_to_string(place.path().join("ring.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    for ratio in [
        "progress_vs_farm.pcie4.p64",
        "progress_vs_lock.shm.p64",
        "progress_p64_vs_peak",
        "dma_per_message.pcie4.p64",
    ] {
        let value = report["ratios"][ratio].as_f64();
        assert!(value.is_some_and(|value| value.is_finite() && value > 0.0), "{ratio}: {value:?}");
    }
    let cases: Vec<&str> =
        report["cases"].as_array().unwrap().iter().filter_map(|case| case["case"].as_str()).collect();
    for case in
        ["progress.shm.p1", "farm.pcie4.p64", "lock.shm_aside.p4", "doorbell asleep", "doorbell awake"]
    {
        assert!(cases.contains(&case), "{case} is not among {cases:?}");
    }
    assert!(std::fs::read_to_string(place.path().join("ring.svg")).unwrap().contains("</svg>"));
}

#[test]
fn the_table_is_measured_against_other_maps() {
    let place = Place::new();
    let output = place.output(&["bench", "table", "--quick", "--json", "table.json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = std::fs::read_to_string(place.path().join("table.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    for ratio in ["lookup_vs_best.1m", "lookup_vs_best.30m", "batch16_vs_best.30m"] {
        let value = report["ratios"][ratio].as_f64();
        assert!(value.is_some_and(|value| value.is_finite() && value > 0.0), "{ratio}: {value:?}");
    }
    let cases = report["cases"].as_array().unwrap();
    for name in ["table.1m.r1", "dashmap.30m.r2.batch16", "papaya.30m.r1", "rwlock.1m.r2"] {
        let case = cases.iter().find(|case| case["case"] == name).unwrap();
        // While an item is replaced the table finds nothing; the others find everything.
        assert!(case["found"].as_f64().unwrap() > 0.9, "{case}");
    }
}

#[test]
fn files_are_measured_on_disk_and_in_memory() {
    let place = Place::new();
    let output = place.output(&["bench", "files", "--quick", "--json", "files.json", "--plot", "files.svg"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = std::fs::read_to_string(place.path().join("files.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    for ratio in [
        "host_cpu_vs_os.read8k.d32",
        "host_cpu_vs_os.write8k.d32",
        "host_cpu_vs_os.read8k.d32.in_place",
        "throughput_vs_os.read8k.d32",
        "zero_copy_gain.read64k",
    ] {
        let value = report["ratios"][ratio].as_f64();
        assert!(value.is_some_and(|value| value.is_finite() && value > 0.0), "{ratio}: {value:?}");
    }
    let cases: Vec<&str> =
        report["cases"].as_array().unwrap().iter().filter_map(|case| case["case"].as_str()).collect();
    for case in ["os.disk.read1k.d32", "card.disk.write64k.d32", "copying.memory.read64k.d32"] {
        assert!(cases.contains(&case), "{case} is not among {cases:?}");
    }
    assert!(std::fs::read_to_string(place.path().join("files.svg")).unwrap().contains("</svg>"));
    let left: Vec<_> =
        std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let is_known = |name: &std::ffi::OsString| {
        ["files.json", "files.svg", "outboard.toml"].iter().any(|known| name == known)
    };
    assert!(left.iter().all(is_known), "it cleans up: {left:?}");
}

#[test]
fn a_namespace_is_measured_in_memory_and_on_a_file() {
    let place = Place::new();
    let output = place.output(&["bench", "nvme", "--quick", "--json", "nvme.json", "--plot", "nvme.svg"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = std::fs::read_to_string(place.path().join("nvme.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let cases = report["cases"].as_array().unwrap();
    for name in [
        "card.memory.read4k.d32",
        "card.memory.write4k.d32.c4",
        "card.memory.read4k.d32.digests",
        "card.file.write128k.d32",
    ] {
        let case = cases.iter().find(|case| case["case"] == name);
        assert!(case.is_some_and(|case| case["ops_per_s"].as_f64().is_some_and(|rate| rate > 0.0)), "{name}");
    }
    assert!(cases.iter().any(|case| case["case"] == "card.memory.idle" && case["cpu_percent"].is_number()));
    assert!(std::fs::read_to_string(place.path().join("nvme.svg")).unwrap().contains("</svg>"));
}

#[test]
fn the_key_value_store_is_measured_in_both_placements() {
    let place = Place::new();
    let output = place.output(&["bench", "kv", "--quick", "--json", "kv.json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = std::fs::read_to_string(place.path().join("kv.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    for ratio in
        ["p99_vs_host.uniform_read", "p99_vs_host.uniform_read_busy", "throughput_vs_host.uniform_read"]
    {
        let value = report["ratios"][ratio].as_f64();
        assert!(value.is_some_and(|value| value.is_finite() && value > 0.0), "{ratio}: {value:?}");
    }
    // A round may be shorter than the steps in which the kernel tells processor time.
    for ratio in ["host_cpu_vs_host.uniform_read", "total_cpu_vs_host.uniform_read"] {
        assert!(report["ratios"].get(ratio).is_some(), "{ratio}");
    }
    let cases: Vec<&str> =
        report["cases"].as_array().unwrap().iter().filter_map(|case| case["case"].as_str()).collect();
    for case in ["host.uniform_read.v100", "card.zipfian_50_50.v4096", "card.uniform_read_busy.v100.paced"] {
        assert!(cases.contains(&case), "{case} is not among {cases:?}");
    }
    let left = std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(left.filter(|name| name.to_string_lossy().starts_with("ob-bench")).count(), 0, "it cleans up");
}

#[test]
fn what_the_way_over_the_card_adds_is_measured() {
    let place = Place::new();
    let output = place.output(&["bench", "director", "--quick", "--json", "director.json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = std::fs::read_to_string(place.path().join("director.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    for ratio in ["added_us", "added_us.apart", "added_us.ping", "added_us.echo", "p50_vs_copy.64k"] {
        assert!(report["ratios"][ratio].as_f64().is_some_and(f64::is_finite), "{ratio}");
    }
    let cases = report["cases"].as_array().unwrap();
    for case in ["card.echo", "host.echo.apart", "zero-copy.4k", "copy.64k"] {
        assert!(cases.iter().any(|found| found["case"] == case), "{case}");
    }
}

#[test]
fn a_file_over_the_network_is_measured_three_ways() {
    let place = Place::new();
    let output = place.output(&["bench", "remote", "--quick", "--json", "remote.json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = std::fs::read_to_string(place.path().join("remote.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    for ratio in ["throughput_vs_os.read", "throughput_vs_os.write", "throughput_vs_os.read.library"] {
        let value = report["ratios"][ratio].as_f64();
        assert!(value.is_some_and(|value| value.is_finite() && value > 0.0), "{ratio}: {value:?}");
    }
    for ratio in ["host_cpu_vs_os.read", "host_cpu_vs_os.write"] {
        assert!(report["ratios"].get(ratio).is_some(), "{ratio}");
    }
}

#[test]
fn programs_are_measured_and_what_is_not_is_said() {
    let place = Place::new();
    let output = place.output(&["bench", "bpf", "--quick", "--json", "bpf.json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("native_c, rbpf, wasmtime and wasmtime_fuel are not measured"), "{said}");
    let report = std::fs::read_to_string(place.path().join("bpf.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    for ratio in ["entry_ns", "checks_elided_share.rocksdb_block", "compiled_vs_native_rust.btree"] {
        let value = report["ratios"][ratio].as_f64();
        assert!(value.is_some_and(|value| value.is_finite() && value > 0.0), "{ratio}: {value:?}");
    }
    let cases = report["cases"].as_array().unwrap();
    for name in ["native_rust.empty", "compiled.btree", "compiled_checked.bpfkv", "interpreter.rocksdb_block"]
    {
        let case = cases.iter().find(|case| case["case"] == name).unwrap();
        assert!(case["best_ns"].as_f64().unwrap() <= case["median_ns"].as_f64().unwrap(), "{case}");
    }
}

/// A folder with a program that answers like peers do; what it is asked does not matter.
fn peers_that_say(place: &Place, answer: &str) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = place.path().join("program-peers");
    let script = format!("#!/bin/sh\nwhile read -r what rest; do\n{answer}\ndone\n");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    place.path().to_str().unwrap().to_owned()
}

#[test]
fn peers_that_are_absent_are_named() {
    let place = Place::new();
    let peers = peers_that_say(&place, "echo absent native_c there is no compiler; echo end");
    let output = place.output(&["bench", "bpf", "--quick", "--peers", &peers]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("native_c.btree is not measured: there is no compiler"), "{said}");
}

#[test]
fn peers_with_other_results_are_not_measured() {
    let place = Place::new();
    for (answer, expected) in [
        ("echo ready native_c 00000000000000ff; echo end", "native_c and native_rust differ"),
        ("echo well", "`well`"),
        ("exit", "the peers have ended"),
    ] {
        let peers = peers_that_say(&place, answer);
        let output = place.output(&["bench", "bpf", "--quick", "--peers", &peers]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{answer}: {said}");
    }
}

#[test]
fn volumes_are_measured_beside_a_namespace_that_is_kept_once() {
    let place = Place::new();
    let output = place.output(&["bench", "volumes", "--quick", "--json", "volumes.json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = std::fs::read_to_string(place.path().join("volumes.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    for ratio in ["link_bytes_per_payload_byte.split.4k", "link_bytes_per_payload_byte.split.64k"] {
        let value = report["ratios"][ratio].as_f64();
        assert!(value.is_some_and(|value| value > 0.0 && value < 0.5), "{ratio}: {value:?}");
    }
    assert!(report["ratios"]["lz4_vs_library"].as_f64().is_some_and(|ratio| ratio > 0.0));
    let cases = report["cases"].as_array().unwrap();
    for name in ["split.write4k.d16", "split.mixed64k.d16", "once.read64k.d16"] {
        let case = cases.iter().find(|case| case["case"] == name).unwrap();
        assert!(case["ops_per_s"].as_f64().unwrap() > 0.0, "{case}");
        assert_eq!(case["host_cpu_us"].is_number(), name.starts_with("split."), "{case}");
    }
}

#[test]
fn storage_functions_are_measured_against_reads() {
    let place = Place::new();
    let output = place.output(&["bench", "pushdown", "--quick", "--json", "pushdown.json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("lookups in RocksDB and YCSB are not measured"), "{said}");
    let report = std::fs::read_to_string(place.path().join("pushdown.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    for ratio in [
        "btree_get_vs_reads.loopback",
        "btree_get_vs_reads.delay",
        "btree_get_vs_reads.disk",
        "btree_cached_vs_reads.loopback",
        "btree_moving_vs_reads.loopback",
        "range_vs_reads.loopback",
        "total_cpu_vs_reads.btree_get",
    ] {
        let value = report["ratios"][ratio].as_f64();
        assert!(value.is_some_and(|value| value.is_finite() && value > 0.0), "{ratio}: {value:?}");
    }
    let cases = report["cases"].as_array().unwrap();
    let case = |name: &str| cases.iter().find(|case| case["case"] == name).unwrap();
    assert_eq!(case("btree_get.pushed.loopback")["round_trips"], 1.0);
    assert_eq!(case("btree_get.reads.loopback")["round_trips"], 5.0);
    assert_eq!(case("btree_get.here")["round_trips"], 0.0);
    // What of a round was not answered by the card, by reason. Nobody keeps maps here: a request makes the one that it needs.
    for name in ["btree_get.pushed.loopback", "btree_moving.pushed.loopback"] {
        assert_eq!(case(name)["unmapped"], 0.0, "{name}");
        assert!(case(name)["mismatches"].is_f64() && case(name)["discarded"].is_f64(), "{name}");
    }
}

#[test]
fn lookups_in_rocksdb_are_measured_against_reads() {
    let place = Place::new();
    let Some(peer) = program() else { return };
    std::fs::copy(peer, place.path().join("rocksdb-peer")).unwrap();
    let peers = place.path().to_str().unwrap().to_owned();
    let output =
        place.output(&["bench", "pushdown", "--quick", "--peers", &peers, "--json", "pushdown.json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = std::fs::read_to_string(place.path().join("pushdown.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    for ratio in [
        "rocksdb_get_vs_reads.loopback",
        "rocksdb_get_vs_reads.delay",
        "rocksdb_get_vs_reads.disk",
        "rocksdb_get_uncached_vs_reads.loopback",
        "rocksdb_get_cached_vs_reads.delay",
        "total_cpu_vs_reads.rocksdb_get",
        "ycsb_a.zipfian_vs_reads.loopback",
        "ycsb_d.latest_vs_reads.delay",
        "ycsb_e.zipfian_vs_reads.loopback",
        "ycsb_f.zipfian_vs_reads.delay",
    ] {
        let value = report["ratios"][ratio].as_f64();
        assert!(value.is_some_and(|value| value.is_finite() && value > 0.0), "{ratio}: {value:?}");
    }
    let cases = report["cases"].as_array().unwrap();
    let figure = |name: &str, of: &str| {
        cases.iter().find(|case| case["case"] == name).and_then(|case| case[of].as_f64()).unwrap()
    };
    let reads = figure("rocksdb_get.reads.loopback", "round_trips");
    assert!((3.0..=4.0).contains(&reads), "a block of each level: {reads}");
    assert!(figure("rocksdb_get_uncached.reads.loopback", "round_trips") > 1.8 * reads, "and its index");
    assert!(figure("rocksdb_get_cached.reads.loopback", "round_trips") < reads);
    assert_eq!(figure("rocksdb_get.here", "round_trips"), 0.0);
    let pushed = figure("rocksdb_get.pushed.loopback", "round_trips");
    assert!(
        (0.9..1.5).contains(&pushed),
        "one request, and one lookup in a hundred goes the ordinary way: {pushed}"
    );
    assert!(figure("rocksdb_get.pushed.loopback", "pushed") > 0.9);
    assert_eq!(figure("ycsb_a.zipfian.pushed.loopback", "discarded"), 0.0);
}
