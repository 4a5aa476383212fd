//! A card that never polls: whatever a request leaves for a later hop is found without anything else happening.

use std::time::Duration;

use ob_sim::Rng;

use super::support::kv::{Service, Setup};
use super::support::resp::Value;

/// Requests of one client at every distance from the moment when the card falls asleep. A client that is slept over waits in vain,
/// and its read fails.
fn no_request_is_slept_through(setup: Setup) {
    let service = Service::start(setup);
    let mut client = service.client();
    let mut rng = Rng::new(11);
    for round in 0..300 {
        let (key, value) = (format!("key:{}", round % 7), format!("value {round}"));
        std::thread::sleep(Duration::from_micros(rng.below(3000)));
        assert_eq!(client.ask(&["SET", &key, &value]).unwrap(), Value::ok());
        std::thread::sleep(Duration::from_micros(rng.below(3000)));
        assert_eq!(client.ask(&["GET", &key]).unwrap(), Value::bytes(&value));
        std::thread::sleep(Duration::from_micros(rng.below(300)));
        assert_eq!(client.ask(&["STRLEN", &key]).unwrap(), Value::Number(value.len() as i64));
    }
}

/// The answers of such a device are there before anybody has waited for them.
#[test]
fn no_request_is_slept_through_on_a_device_in_memory() {
    no_request_is_slept_through(Setup {
        files: "device = \"memory\"\nsize = \"256MiB\"\n",
        more: "memory = \"64MiB\"\npart = \"16MiB\"\n[reactor]\nspin = 0\n",
        ..Setup::CARD
    });
}

#[test]
fn no_request_is_slept_through_on_a_device_in_a_file() {
    no_request_is_slept_through(Setup {
        durability: "everysec",
        more: "memory = \"64MiB\"\npart = \"16MiB\"\n[reactor]\nspin = 0\n",
        ..Setup::CARD
    });
}
