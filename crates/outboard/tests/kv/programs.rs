//! Programs that come and go while the card serves.

use super::support::kv::{KV_GET, Service, Setup};
use super::support::resp::Value;

const OTHER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/programs/count_lines.o");

fn names(listed: &serde_json::Value) -> Vec<&str> {
    listed["objects"].as_array().unwrap().iter().map(|object| object["name"].as_str().unwrap()).collect()
}

#[test]
fn programs_come_and_go_and_are_there_after_a_restart() {
    let mut service = Service::start(Setup::CARD);
    let mut client = service.client();
    assert_eq!(client.ask_line("SET k v").unwrap(), Value::ok());
    service.wait_until_the_card_serves("k");
    assert_eq!(names(&service.offload(&["ls"])), [""; 0]);
    let loaded = service.offload(&["load", KV_GET]);
    assert_eq!(names(&loaded), ["kv_get"]);
    let hooks: Vec<&str> = loaded["objects"][0]["programs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|program| program["hook"].as_str().unwrap())
        .collect();
    assert_eq!(hooks, ["predicate", "function", "check"]);
    for _ in 0..100 {
        assert_eq!(client.ask(&["GET", "k"]).unwrap(), Value::bytes("v"));
    }
    assert_eq!(service.answered_by_programs(), 100);
    // The same again replaces it, and nothing is missed.
    assert_eq!(names(&service.offload(&["load", KV_GET])), ["kv_get"]);
    assert_eq!(client.ask(&["GET", "k"]).unwrap(), Value::bytes("v"));
    assert_eq!(service.answered_by_programs(), 101);
    let killed = service.client();
    service.kill_card();
    drop(killed);
    service.start_what_is_dead();
    service.wait_until_it_serves();
    client = service.client();
    assert_eq!(client.ask_line("SET k w").unwrap(), Value::ok());
    service.wait_until_the_card_serves("k");
    assert_eq!(names(&service.offload(&["ls"])), ["kv_get"], "it was kept");
    assert_eq!(client.ask(&["GET", "k"]).unwrap(), Value::bytes("w"));
    assert!(service.answered_by_programs() > 0);
    assert_eq!(names(&service.offload(&["rm", "kv_get"])), [""; 0]);
    assert_eq!(client.ask(&["GET", "k"]).unwrap(), Value::bytes("w"));
    service.stop();
    service.start_what_is_dead();
    service.wait_until_it_serves();
    assert_eq!(names(&service.offload(&["ls"])), [""; 0], "it was taken out for good");
}

#[test]
fn what_a_card_does_not_take_is_refused_with_a_reason() {
    let service = Service::start(Setup::CARD);
    let hinted = |arguments: &[&str], why: &str| {
        let told = service.offload_refused(arguments);
        assert!(told.contains(why), "{arguments:?}: {told}");
    };
    hinted(
        &["load", OTHER],
        "`storage`, which is not here; hooks here are predicate, function, check, cache, invalidate",
    );
    hinted(&["load", "outboard.toml"], "ELF");
    hinted(&["load", "outboard.toml"], "\nhint: clang -target bpfel -c");
    hinted(&["load", "no such file"], "cannot read");
    hinted(&["load", KV_GET, "--name", "../escape"], "is no name");
    hinted(&["rm", "kv_get"], "there are none");
    service.offload(&["load", KV_GET]);
    hinted(&["load", KV_GET, "--name", "again"], "has a program already, of `kv_get`");
    hinted(&["rm", "again"], "there are kv_get");
    assert_eq!(names(&service.offload(&["ls"])), ["kv_get"]);
}

#[test]
fn a_host_that_does_it_all_asks_no_programs() {
    let service = Service::start(Setup::HOST);
    let told = service.offload_refused(&["load", KV_GET]);
    assert!(told.contains("does not serve the key-value store") && told.contains("placement"), "{told}");
}

#[test]
fn a_service_that_has_used_its_share_answers_without_programs() {
    // One hundredth of a core, of which the calls of a busy client are more.
    let more = "memory = \"64MiB\"\npart = \"128MiB\"\n[programs]\nshare = 1\n";
    let service = Service::start(Setup { more, ..Setup::PROGRAMS });
    let mut client = service.client();
    assert_eq!(client.ask_line("SET k v").unwrap(), Value::ok());
    service.wait_until_the_card_serves("k");
    let get = super::support::resp::request(&["GET", "k"]);
    let pipeline = get.repeat(1000);
    let mut listed = serde_json::Value::Null;
    for _ in 0..200 {
        client.send(&pipeline).unwrap();
        for _ in 0..1000 {
            assert_eq!(client.receive().unwrap(), Value::bytes("v"));
        }
        listed = service.offload(&["ls"]);
        if listed["over_share"].as_u64().unwrap() > 0 {
            return;
        }
    }
    panic!("it was never too much: {listed}");
}
