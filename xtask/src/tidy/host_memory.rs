//! Across the link, only the card issues DMA: what runs on the card names no type by which a host's memory is reached, and asks a
//! `Dma` for everything.
//!
//! The crates' dependences cannot keep that apart, for both ends of a ring are in one crate. Like that of purity, this check reads tokens.

use proc_macro2::TokenStream;

use super::Violation;
use super::layering::BLOCKS;
use super::pure::flatten;
use super::snapshot::Snapshot;

/// What has a host's memory, or gives it to whoever asks.
const WORDS: &[&str] = &["Region", "LocalDma", "Many", "HostSender", "HostReceiver", "HostAreas"];

/// Files and crates that are not the card's, or are what executes its transfers.
const OTHERS: &[(&str, &str)] = &[
    ("crates/ob-ring/src/lib.rs", "it names all that the crate has"),
    ("crates/ob-ring/src/many.rs", "it is what host threads do"),
    ("crates/ob-ring/src/host_", "these are the host's ends"),
    ("crates/ob-ring/src/local_dma.rs", "it executes transfers"),
    ("crates/ob-ring/src/baseline/", "both ends of rings that are only measured"),
    ("crates/ob-ring/src/hostile", "it plays a host that means harm"),
    ("crates/ob-files-host/", "it is a host's library"),
    ("crates/ob-split/src/host/", "it is the host's half of a port"),
    ("crates/liboutboard/", "it is the same library for programs in C"),
];

/// Finds where the card's code names a host's memory.
#[must_use]
pub fn check(snapshot: &Snapshot) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (path, text) in snapshot.rust_sources().filter(|(path, _)| is_the_cards(path)) {
        // A file that is not even tokens is reported by the check of lengths.
        let Ok(tokens) = text.parse::<TokenStream>() else { continue };
        let mut words = Vec::new();
        flatten(tokens, &mut words);
        for (word, line) in words.iter().filter(|(word, _)| WORDS.contains(&word.as_str())) {
            let message = format!(
                "`{word}` on the card: it reaches a host's memory through a `Dma` only; what is not the card's is added to OTHERS in {}, \
                 with its reason",
                file!()
            );
            violations.push(Violation::at(path, *line, message));
        }
    }
    violations
}

fn is_the_cards(path: &str) -> bool {
    let mut services = BLOCKS.iter().filter(|block| block.name == "services").flat_map(|block| block.crates);
    let is_inside = path.starts_with("crates/ob-ring/src/")
        || services.any(|name| path.starts_with(&format!("crates/{name}/src/")));
    let is_test = path.contains("/tests/") || path.ends_with("tests.rs");
    is_inside && !is_test && !OTHERS.iter().any(|(other, _)| path.starts_with(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<Option<usize>> {
        check(&Snapshot::of(&[(path, text)])).iter().map(|found| found.line).collect()
    }

    #[test]
    fn a_hosts_memory_in_the_cards_hands_is_found() {
        for text in [
            "use ob_memory::Region;",
            "use ob_memory::{Pool, Region as Memory};",
            "struct End { dma: crate::LocalDma }",
            "fn f(many: &crate::many::Many) {}",
        ] {
            for path in
                ["crates/ob-ring/src/card_send.rs", "crates/ob-ring/src/new.rs", "crates/ob-nvme/src/lib.rs"]
            {
                assert_eq!(found(path, text), [Some(1)], "{path}: {text}");
            }
        }
    }

    #[test]
    fn hosts_engines_tests_and_other_words_pass() {
        for path in [
            "crates/ob-ring/src/many.rs",
            "crates/ob-ring/src/host_send.rs",
            "crates/ob-ring/src/local_dma.rs",
            "crates/ob-ring/src/hostile_tests.rs",
            "crates/ob-ring/tests/bulk.rs",
            "crates/ob-files-host/src/lane.rs",
            "crates/ob-ebpf/src/world.rs",
        ] {
            assert_eq!(found(path, "use ob_memory::Region;"), [], "{path}");
        }
        let text = "// A Region.\nuse ob_core::RegionId;\n#[cfg(test)]\nmod tests { use ob_memory::Region; }";
        assert_eq!(found("crates/ob-ring/src/card_send.rs", text), []);
    }
}
