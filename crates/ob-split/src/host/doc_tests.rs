//! Holds `docs/split.md` and this layer's own plans together.

use ob_core::document::rows;

use super::split::own_plans;
use crate::wire::{OVERSIZE, PACKED, PEERS_LEN, USER_LEN};

const DOCUMENT: &str = include_str!("../../../../docs/split.md");

#[test]
fn the_document_has_this_layers_own_plans() {
    for definition in own_plans().unwrap() {
        let number = definition.id().0.to_string();
        let found = rows(DOCUMENT).find(|row| row.get(1) == Some(&&*number));
        let row = found.unwrap_or_else(|| panic!("there is no row of plan {number}"));
        assert_eq!(row.get(2), Some(&&*definition.entry_len(0).to_string()), "bytes of plan {number}");
        let steps = row.get(5).map_or(0, |steps| steps.split('·').count());
        assert_eq!(steps, definition.plan().steps().len(), "steps of plan {number}");
    }
}

#[test]
fn what_users_post_is_the_documents() {
    for wanted in [
        format!("`USER_LEN` = {USER_LEN} bytes"),
        format!("`PEERS_LEN` = {PEERS_LEN} bytes"),
        format!("bit {} of `flags` (`PACKED`)", PACKED.trailing_zeros()),
        format!("status {OVERSIZE} (`OVERSIZE`)"),
    ] {
        assert!(DOCUMENT.contains(&wanted), "{wanted}");
    }
}
