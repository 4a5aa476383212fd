//! May panic, and is refused therefore; for `tests/objects.rs`.

#![no_std]

use outboard_program::StorageContext;

/// Looks at data that may not be there.
#[unsafe(link_section = "storage")]
#[unsafe(no_mangle)]
pub extern "C" fn panics(context: &mut StorageContext<'_>) -> u64 {
    context.data()[7].into()
}
