//! Programs for the card, in Rust: what they find, and what they can call. `docs/programs.md` says what a program may do, and how
//! one is built.
//!
//! ```text
//!   program.rs ─▶ rustc, for bpfel-unknown-none ─▶ object ─▶ the card: verified, compiled, called at a hook with its context
//!             └─▶ cargo test, for the machine of its author: the same functions, the helpers in plain Rust
//! ```
//!
//! A program is one function for a hook. The name of its section says for which:
//!
//! ```
//! use outboard_program::StorageContext;
//! use outboard_program::numbers::read_u64;
//!
//! #[unsafe(link_section = "storage")]
//! #[unsafe(no_mangle)]
//! pub extern "C" fn first_word(context: &mut StorageContext<'_>) -> u64 {
//!     let Some(word) = read_u64(context.data(), 0) else { return 1 };
//!     context.scratch()[..8].copy_from_slice(&word.to_le_bytes());
//!     context.done = 1;
//!     0
//! }
//! ```
//!
//! # What a program must not do
//!
//! - **Panic.** A card has nobody to tell. Take what may be missing with `get`, `first_chunk` or [`numbers`], which give an
//!   [`Option`]; an index that the compiler cannot see to be right leaves a call of a function that is not there, and a place in the
//!   source for it to tell: the loader refuses that, and says so.
//! - **Copy or compare many bytes by `=` or `==`.** The compiler makes calls of C's functions of that, which are not there either:
//!   [`helpers::copy`] and [`helpers::compare`] are.
//! - **Hand an empty slice of its own to a helper.** `&[]` is a number and no address of the card's. Part of the data or the scratch may be
//!   empty.

#![no_std]

pub mod helpers;
#[allow(clippy::len_without_is_empty, reason = "a hook's number may be called len")]
mod hooks;
pub mod numbers;
mod records;

pub use hooks::*;
pub use records::*;

/// Says how many bytes of data there are at least: the card does not call the program with less, and the verifier counts on it. At most
/// once in a program.
///
/// ```
/// outboard_program::data_min!(4096);
/// ```
#[macro_export]
macro_rules! data_min {
    ($len:expr) => {
        const _: () = {
            #[cfg_attr(target_arch = "bpf", unsafe(link_section = "outboard.data_min"))]
            #[used]
            static OB_DATA_MIN: u32 = $len;
        };
    };
}

/// A panic that was linked in, as some linkers do, calls what nobody has: the loader refuses the program and says this name.
#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: it is never called, as no program with this call is ever loaded.
    unsafe extern "C" {
        fn ob_this_program_may_panic() -> !;
    }
    // SAFETY: as above.
    unsafe { ob_this_program_may_panic() }
}
